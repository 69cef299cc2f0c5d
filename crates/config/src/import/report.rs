//! What became of each key.

use std::fmt;

/// The result for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The key in the file that was read, or the name of the variable.
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
