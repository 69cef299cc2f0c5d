use std::error::Error;
use std::fmt;

use crate::document::Document;
use crate::path::Path;

/// The most faults one check reports; a hostile document has more, and nobody reads them.
const FAULTS_MAX: usize = 100;

/// One thing that is wrong with a config: where, what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The key at fault; empty when the document as a whole is.
    pub path: Path,
    /// Its line in the file, counted from 1, when it came from one.
    pub line: Option<usize>,
    /// What is wrong, in a sentence without its full stop.
    pub sentence: String,
    /// What to do about it, when that can be said.
    pub fix: Option<String>,
}

impl Fault {
    pub(crate) fn new(path: Path, sentence: impl Into<String>) -> Fault {
        Fault { path, line: None, sentence: sentence.into(), fix: None }
    }

    pub(crate) fn with_fix(mut self, fix: impl Into<String>) -> Fault {
        self.fix = Some(fix.into());
        self
    }
}

impl fmt::Display for Fault {
    /// `line 2: client.ping_interval: there is no such key; did you mean ...?`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_root() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.sentence)?;
        match &self.fix {
            Some(fix) => write!(f, "; {fix}"),
            None => Ok(()),
        }
    }
}

/// Everything that is wrong with a config; never empty as an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    list: Vec<Fault>,
    /// Faults found beyond [`FAULTS_MAX`].
    more: usize,
}

impl Faults {
    /// Adds one more.
    pub fn push(&mut self, fault: Fault) {
        if self.list.len() < FAULTS_MAX {
            self.list.push(fault);
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn extend(&mut self, faults: impl IntoIterator<Item = Fault>) {
        faults.into_iter().for_each(|fault| self.push(fault));
    }

    pub(crate) fn or<T>(self, value: T) -> Result<T, Faults> {
        if self.list.is_empty() { Ok(value) } else { Err(self) }
    }

    /// The faults, at most a hundred.
    pub fn iter(&self) -> std::slice::Iter<'_, Fault> {
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

    /// Says of each fault on which line of the file the key, or the nearest table around it, stands.
    /// Semantic faults are found in a [`Config`](crate::Config), which has no lines; this gives them
    /// back.
    pub fn locate(&mut self, toml: &str) {
        if let Ok(document) = Document::parse(toml) {
            self.locate_in(&document);
        }
    }

    pub(crate) fn locate_in(&mut self, document: &Document) {
        for fault in &mut self.list {
            fault.line = fault.line.or_else(|| document.line(&fault.path));
        }
        self.list.sort_by_key(|fault| fault.line);
    }
}

impl<'a> IntoIterator for &'a Faults {
    type Item = &'a Fault;
    type IntoIter = std::slice::Iter<'a, Fault>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Faults {
        Faults { list: vec![fault], more: 0 }
    }
}

impl fmt::Display for Faults {
    /// A line for each fault.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.list.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{fault}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl Error for Faults {}
