//! A configuration file, validated with the line of each error.

use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::Path;

use dunlin_config::{Config, ConfigError, ConfigErrors};
use dunlin_wire::text::trim_byte_order_mark;

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

    /// Returns the file's configuration; [`File::validate`] checks it as a whole.
    pub(crate) fn config(&self) -> Result<Config, CliError> {
        Config::from_toml(&self.text).map_err(|errors| self.invalid(errors))
    }

    /// Returns the errors of its form.
    pub(crate) fn errors(&self) -> ConfigErrors {
        Config::from_toml(&self.text).err().unwrap_or_default()
    }

    /// Refuses a config that must not be served, and warns of what is probably not meant. The config
    /// may differ from the file by flags.
    pub(crate) fn validate(&self, config: &Config) -> Result<(), CliError> {
        config.validate().map_err(|errors| self.invalid(errors))?;
        // Errors that the server would find when it opens keys and certificates.
        let opened = dunlin_server::validate(&Config::default(), config);
        opened.map_err(|errors| self.invalid(errors))?;
        config.warnings().iter().for_each(style::warning);
        Ok(())
    }

    /// Refuses a file that must not be served, with everything that is wrong with it: its form, what does not fit
    /// together, what cannot be opened.
    pub(crate) fn check(&self) -> Result<(), CliError> {
        let (config, mut errors) = Config::from_toml_partly(&self.text);
        if let Err(further) = config.validate() {
            errors.add_further(&further);
        }
        if let Err(further) = dunlin_server::validate(&Config::default(), &config) {
            errors.add_further(&further);
        }
        if !errors.is_empty() {
            return Err(self.invalid(errors));
        }
        config.warnings().iter().for_each(style::warning);
        Ok(())
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
