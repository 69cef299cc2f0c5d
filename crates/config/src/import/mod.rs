//! Translates the configurations of other servers into one of Dunlin: files, environments and Helm values of Centrifugo v3 to
//! v6, and the apps of Soketi and Laravel Reverb.
//!
//! Settings with the same meaning are taken over, similar ones are converted, and both conversions and settings without a
//! counterpart are reported. **Nothing that was closed is opened**: a check or a permission without a counterpart closes
//! what it guarded. A store that nodes shared and that cannot be taken ends the import, because nodes without it would share
//! nothing. The result is always valid.
//!
//! Names and defaults are those in the sources of these servers.

mod centrifugo;
mod detect;
mod dotenv;
mod format;
mod helm;
mod origin;
mod pusher;
mod report;
mod reverb;
mod soketi;
mod source;
mod store;
mod validity;
mod variables;

use serde_json::json;

pub use self::dotenv::Variables;
pub use self::format::Format;
pub use self::origin::Origin;
pub use self::report::{Mapping, Row};
use self::source::ImportSource;
use crate::error::{ConfigError, ConfigErrors};
use crate::{Config, Path};

/// What is translated.
#[derive(Clone, Debug)]
pub struct Import<'a> {
    /// The file; empty if there are variables only.
    pub text: &'a str,
    /// Its format.
    pub format: Format,
    /// The environment, whose variables override the file.
    pub variables: Variables,
    /// Whose configuration it is; `None`: as detected.
    pub origin: Option<Origin>,
    /// Goes on without a store that cannot be taken: channels are then in the memory of one node.
    pub without_engine: bool,
}

/// The result of a translation.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The configuration; valid.
    pub config: Config,
    /// The configuration in TOML, without defaults.
    pub toml: String,
    /// The result for each key that was set, in order of processing.
    pub rows: Vec<Row>,
    /// Whose configuration it is.
    pub origin: Origin,
    /// Whether it was in the values of a Helm chart.
    pub is_chart: bool,
}

/// Reads the variables of a `.env` file. `${NAME}` is replaced where the variable is in an earlier line or in `around`.
///
/// # Errors
/// A line that sets no variable.
pub fn read_variables(text: &str, around: &Variables) -> Result<Variables, ConfigErrors> {
    dotenv::parse(text, around).map_err(|(line, why)| {
        let error = ConfigError::new(Path::root(), why).with_fix("write NAME=value");
        ConfigError { line: Some(line), ..error }.into()
    })
}

impl Import<'_> {
    /// A file alone.
    pub fn of(text: &str, format: Format) -> Import<'_> {
        let variables = Variables::new();
        Import { text, format, variables, origin: None, without_engine: false }
    }

    /// Translates it.
    ///
    /// # Errors
    /// The text does not have this format, it is of no server that is known, or a store that nodes share cannot be taken.
    pub fn run(self) -> Result<Imported, ConfigErrors> {
        let Import { text, format, mut variables, origin, without_engine } = self;
        let mut document = match format {
            Format::Environment => {
                for (name, value) in read_variables(text, &variables)? {
                    variables.entry(name).or_insert(value);
                }
                json!({})
            }
            format if text.trim().is_empty() && format != Format::Json => json!({}),
            format => format::parse(text, format)?,
        };
        if !document.is_object() {
            let what = "this is no configuration: it should be an object of sections";
            return Err(ConfigError::new(Path::root(), what).into());
        }
        let mut rows = Vec::new();
        let is_chart = helm::unwrap(&mut document, &mut variables, &mut rows);
        let origin = match origin {
            Some(origin) => origin,
            None => detect::detect(&document, &variables)?,
        };
        let mut source = match origin {
            Origin::Soketi => soketi::translate(document, &variables),
            Origin::Reverb => reverb::translate(&variables),
            _ => centrifugo::translate(document, &variables, origin, without_engine)?,
        };
        let config = validity::valid(&mut source, without_engine)?;
        let ImportSource { out, rows: more, .. } = source;
        rows.extend(more);
        let toml = toml::to_string_pretty(&out).unwrap_or_default();
        Ok(Imported { config, toml, rows, origin, is_chart })
    }
}
