use std::error::Error;
use std::fmt;

use crate::document::Document;
use crate::path::Path;

/// Maximum number of errors that are listed; a hostile document may have any number.
const ERRORS_MAX: usize = 100;

/// An error in a configuration: the key, the problem, and a fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The key; empty for the document as a whole.
    pub path: Path,
    /// Its line in the file, from 1, if it came from a file.
    pub line: Option<usize>,
    /// The problem, a sentence without a full stop.
    pub message: String,
    /// How to fix it, if known.
    pub fix: Option<String>,
}

impl ConfigError {
    pub(crate) fn new(path: Path, message: impl Into<String>) -> ConfigError {
        ConfigError { path, line: None, message: message.into(), fix: None }
    }

    pub(crate) fn with_fix(mut self, fix: impl Into<String>) -> ConfigError {
        self.fix = Some(fix.into());
        self
    }
}

impl Error for ConfigError {}

impl fmt::Display for ConfigError {
    /// Formats as `line 2: client.ping_interval: there is no such key; did you mean ...?`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_root() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.fix {
            Some(fix) => write!(f, "; {fix}"),
            None => Ok(()),
        }
    }
}

/// All errors of a configuration; never empty when returned as an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors {
    list: Vec<ConfigError>,
    /// Number of errors beyond [`ERRORS_MAX`].
    more: usize,
}

impl ConfigErrors {
    /// Adds an error.
    pub fn push(&mut self, error: ConfigError) {
        if self.list.len() < ERRORS_MAX {
            self.list.push(error);
        } else {
            self.more += 1;
        }
    }

    /// Adds an error with a fix.
    pub(crate) fn add(
        &mut self,
        path: impl Into<Path>,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.push(ConfigError::new(path.into(), message).with_fix(fix));
    }

    pub(crate) fn extend(&mut self, errors: impl IntoIterator<Item = ConfigError>) {
        errors.into_iter().for_each(|error| self.push(error));
    }

    pub(crate) fn or<T>(self, value: T) -> Result<T, ConfigErrors> {
        if self.list.is_empty() { Ok(value) } else { Err(self) }
    }

    /// Adds the errors of a later check, except those about a key that has an error already, or about a key above or
    /// below it.
    pub fn add_further(&mut self, further: &ConfigErrors) {
        let of = |error: &ConfigError| error.path.steps().to_vec();
        let known: Vec<_> = self.list.iter().map(of).collect();
        for error in &further.list {
            let steps = of(error);
            if !known.iter().any(|known| known.starts_with(&steps) || steps.starts_with(known)) {
                self.push(error.clone());
            }
        }
        self.more += further.more;
    }

    /// Returns the errors, at most a hundred.
    pub fn iter(&self) -> std::slice::Iter<'_, ConfigError> {
        self.list.iter()
    }

    /// Returns the number of errors, including those not listed.
    pub fn len(&self) -> usize {
        self.list.len() + self.more
    }

    /// Returns whether there is no error.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Sets the line of each error: that of the key, or of the nearest table around it. Semantic errors are found in a
    /// [`Config`](crate::Config), which has no lines.
    pub fn locate(&mut self, toml: &str) {
        if let Ok(document) = Document::parse(toml) {
            self.locate_in(&document);
        }
    }

    pub(crate) fn locate_in(&mut self, document: &Document) {
        for error in &mut self.list {
            error.line = error.line.or_else(|| document.line(&error.path));
        }
        self.list.sort_by_key(|error| error.line);
    }
}

impl<'a> IntoIterator for &'a ConfigErrors {
    type Item = &'a ConfigError;
    type IntoIter = std::slice::Iter<'a, ConfigError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> ConfigErrors {
        ConfigErrors { list: vec![error], more: 0 }
    }
}

impl fmt::Display for ConfigErrors {
    /// Writes one line for each error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.list.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl Error for ConfigErrors {}
