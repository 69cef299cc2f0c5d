use std::error::Error;
use std::fmt;

use crate::document::Document;
use crate::path::Path;

/// The most errors one check reports; a hostile document has more, and nobody reads them.
const ERRORS_MAX: usize = 100;

/// One thing that is wrong with a config: where, what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The key that is wrong; empty when the document as a whole is.
    pub path: Path,
    /// Its line in the file, counted from 1, when it came from one.
    pub line: Option<usize>,
    /// What is wrong, in a sentence without its full stop.
    pub message: String,
    /// What to do about it, when that can be said.
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
    /// `line 2: client.ping_interval: there is no such key; did you mean ...?`
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

/// Everything that is wrong with a config; never empty as an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors {
    list: Vec<ConfigError>,
    /// ConfigErrors found beyond [`ERRORS_MAX`].
    more: usize,
}

impl ConfigErrors {
    /// Adds one more.
    pub fn push(&mut self, error: ConfigError) {
        if self.list.len() < ERRORS_MAX {
            self.list.push(error);
        } else {
            self.more += 1;
        }
    }

    /// Adds one more, with what to do about it.
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

    /// Adds those of a later look that are about something else than those found already.
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

    /// The errors, at most a hundred.
    pub fn iter(&self) -> std::slice::Iter<'_, ConfigError> {
        self.list.iter()
    }

    /// How many there are, those not listed included.
    pub fn len(&self) -> usize {
        self.list.len() + self.more
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Says of each error on which line of the file the key, or the nearest table around it, stands.
    /// Semantic errors are found in a [`Config`](crate::Config), which has no lines; this gives them
    /// back.
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
    /// A line for each error.
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
