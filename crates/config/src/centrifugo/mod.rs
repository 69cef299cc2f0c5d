//! Translates a configuration of Centrifugo v6 into one of Dunlin.
//!
//! Settings with the same meaning are taken over, similar ones are converted, and both conversions and settings without a
//! counterpart are reported. **Nothing that was closed is opened**: a check or a permission without a counterpart closes
//! what it guarded. The result is always valid.
//!
//! Names and defaults are those of Centrifugo's `internal/config` and `internal/configtypes` (v6).

mod broker;
mod channel;
mod client;
mod engine;
mod proxy;
mod source;
mod v5;

use std::fmt;

use serde_json::{Value, json};

use self::source::ImportSource;
use crate::error::{ConfigError, ConfigErrors};
use crate::{Config, Path, check};

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON (RFC 8259).
    Json,
    /// YAML 1.2.
    Yaml,
    /// TOML 1.
    Toml,
}

impl Format {
    /// Detects the format by the extension of the file's name, otherwise by the beginning of the text.
    pub fn of(name: &str, text: &str) -> Format {
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("json") => Format::Json,
            Some("yaml" | "yml") => Format::Yaml,
            Some("toml") => Format::Toml,
            _ if text.trim_start().starts_with('{') => Format::Json,
            _ if toml::from_str::<toml::Table>(text).is_ok() => Format::Toml,
            _ => Format::Yaml,
        }
    }
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
}

/// The result for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The key in Centrifugo.
    pub key: String,
    /// How it was translated.
    pub mapping: Mapping,
    /// The new key, or why there is none; never a secret.
    pub note: String,
}

/// How a key was translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mapping {
    /// Dunlin has the same setting.
    Taken,
    /// Dunlin has a similar setting.
    Changed,
    /// Dunlin has no such setting, and nothing depends on it.
    Absent,
    /// Dunlin has no such setting, and what it guarded is closed.
    Closed,
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mapping::Taken => "taken",
            Mapping::Changed => "changed",
            Mapping::Absent => "no counterpart",
            Mapping::Closed => "closed",
        })
    }
}

/// Reads a configuration of Centrifugo v6.
///
/// # Errors
/// The text does not have this format, or is a configuration of Centrifugo v5: then each key of v5 is reported with its
/// name in v6.
pub fn import(text: &str, format: Format) -> Result<Imported, ConfigErrors> {
    let document = parse(text, format)?;
    let Value::Object(_) = &document else {
        let what = "this is no configuration: it should be an object of sections";
        return Err(ConfigError::new(Path::root(), what).into());
    };
    v5::refuse(&document)?;
    let mut source = ImportSource::new(document);
    proxy::proxies(&mut source);
    client::client(&mut source);
    client::server(&mut source);
    channel::channels(&mut source);
    engine::engine(&mut source);
    broker::broker(&mut source);
    client::rest(&mut source);
    source.absent();
    let config = valid(&mut source);
    let ImportSource { out, rows, .. } = source;
    let toml = toml::to_string_pretty(&out).unwrap_or_default();
    Ok(Imported { config, toml, rows })
}

fn parse(text: &str, format: Format) -> Result<Value, ConfigErrors> {
    let refused = |name: &str, why: String| {
        let why = why.lines().next().unwrap_or_default().to_owned();
        ConfigErrors::from(ConfigError::new(Path::root(), format!("this is not {name}: {why}")))
    };
    match format {
        Format::Json => serde_json::from_str(text).map_err(|why| refused("JSON", why.to_string())),
        Format::Yaml => {
            serde_saphyr::from_str(text).map_err(|why| refused("YAML", why.to_string()))
        }
        Format::Toml => {
            toml::from_str::<Value>(text).map_err(|why| refused("TOML", why.message().to_owned()))
        }
    }
}

/// Returns the translated configuration without the values that Dunlin refuses: their defaults admit nobody.
fn valid(source: &mut ImportSource) -> Config {
    loop {
        let errors = match Config::from_json(source.out.clone()) {
            Ok(config) => match config.validate() {
                Ok(()) => return config,
                Err(errors) => errors,
            },
            Err(errors) => errors,
        };
        let before = source.out.clone();
        for error in &errors {
            let steps = error.path.steps();
            check::remove(&mut source.out, steps);
            let note = format!("left out: {error}");
            source.row(&error.path.to_string(), Mapping::Closed, note);
            // Without its certificates or its client authentication, an address must be loopback.
            if steps.iter().any(|step| step == "tls" || step == "client_ingress") {
                source.unset("server.client_addr");
            }
            // Without a rule no key may remain, because it would admit tokens that the rule refuses. Both kinds are
            // removed, because subscription tokens without keys of their own would be verified with those of
            // connections.
            let [client, kind, rule, ..] = steps else { continue };
            let is_rule = ["audience", "audience_regex", "issuer", "issuer_regex", "user_id_claim"];
            if client == "client"
                && (kind == "subscription_token"
                    || kind == "token" && is_rule.contains(&rule.as_str()))
            {
                for kind in ["client.token", "client.subscription_token"] {
                    source.unset(kind);
                }
            }
        }
        if source.out == before {
            // The error is not in a key that was written; the defaults are valid.
            source.out = json!({});
        }
    }
}
