//! A configuration file, validated with the line of each error.

use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::Path;

use dunlin_config::{Config, ConfigError, ConfigErrors};
use dunlin_server::ValidConfig;
use dunlin_wire::text::trim_byte_order_mark;

use super::environment;
use crate::error::CliError;
use crate::style;

/// A configuration file with its text, so that errors can be reported with their lines.
pub(crate) struct File {
    name: String,
    text: String,
}

impl File {
    pub(crate) fn read(path: &Path) -> Result<File, CliError> {
        Ok(File::of(path, text_of(path)?))
    }

    /// Wraps a file that was already read.
    pub(crate) fn of(path: &Path, text: String) -> File {
        let name = path.display().to_string();
        File { name: if name == "-" { "standard input".to_owned() } else { name }, text }
    }

    /// Returns whether the file has no line but comments.
    pub(crate) fn is_empty(&self) -> bool {
        self.text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#'))
    }

    /// Returns the file's configuration alone; [`File::validate`] checks it as a whole.
    pub(crate) fn config(&self) -> Result<Config, CliError> {
        Config::from_toml(&self.text).map_err(|errors| self.invalid(errors))
    }

    /// Validates the file with the environment's values and with flags, as `dunlin serve` and `dunlin config check` do: its
    /// form, what does not fit together, what cannot be opened. Warns of what is probably not meant.
    ///
    /// # Errors
    /// Everything that is wrong, and the same with the lines of the file.
    pub(crate) fn validate(
        &self,
        with_flags: impl FnOnce(Config) -> Config,
    ) -> Result<ValidConfig, (ConfigErrors, CliError)> {
        let (config, mut errors) = Config::from_toml_partly(&self.text);
        let config = environment::apply(&config, &mut errors);
        let config = with_flags(config);
        errors.add_further(&dunlin_server::errors_of(&config));
        let valid = match errors.is_empty() {
            true => ValidConfig::new(config),
            false => Err(errors),
        };
        let valid = valid.map_err(|errors| (errors.clone(), self.invalid(errors)))?;
        valid.get().warnings().iter().for_each(style::warning);
        Ok(valid)
    }

    /// Returns the errors of this file, with their lines if known.
    pub(crate) fn invalid(&self, mut errors: ConfigErrors) -> CliError {
        errors.locate(&self.text);
        Box::new(InvalidFile { file: self.name.clone(), errors })
    }
}

/// Reads a file's text; `-` is standard input.
pub(super) fn text_of(path: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().read_to_string(&mut text),
        _ => std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text)),
    };
    read.map_err(|error| {
        let fix = match error.kind() {
            ErrorKind::NotFound => {
                "; name another, or write one with `dunlin config default > FILE`"
            }
            _ => "",
        };
        format!("{} cannot be read: {error}{fix}", path.display())
    })?;
    Ok(trim_byte_order_mark(&text).to_owned())
}

/// The errors of a file, each on a line that editors can jump to.
#[derive(Debug)]
struct InvalidFile {
    file: String,
    errors: ConfigErrors,
}

impl fmt::Display for InvalidFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.errors.len();
        write!(f, "{} has {count} error{}", self.file, if count == 1 { "" } else { "s" })?;
        for error in &self.errors {
            write!(f, "\n  {}", style::paint(style::BOLD, &self.file))?;
            if let Some(line) = error.line {
                write!(f, "{}", style::paint(style::BOLD, format_args!(":{line}")))?;
            }
            let said = ConfigError { line: None, fix: None, ..error.clone() };
            write!(f, ": {said}")?;
            if let Some(fix) = &error.fix {
                write!(f, "\n    {} {fix}", style::paint(style::GOOD, "fix:"))?;
            }
        }
        let listed = self.errors.iter().count();
        if listed < count {
            write!(f, "\n  and {} more", count - listed)?;
        }
        Ok(())
    }
}

impl std::error::Error for InvalidFile {}
