//! A revision of all settings, and the preparation of the next one.

use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::Config;
use crate::change::{Change, known};
use crate::edit::{Difference, Part};
use crate::error::{ConfigError, ConfigErrors};
use crate::index::{ApiKey, Index};
use crate::path::Path;
use crate::placeholder;
use crate::pointer::Pointer;
use crate::schema::{self, Applies};

/// One revision of all settings. Immutable.
///
/// The cost of a change is proportional to its size: the next snapshot shares the rest with this one.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Its number; each change has the next one.
    pub revision: u64,
    /// The settings; valid.
    pub config: Config,
    index: Index,
}

/// Adds the errors of the checks that this crate cannot make, because they need other libraries or open something. Called
/// with a valid configuration and the one that follows it, and compares the two.
pub type Judge = fn(before: &Config, after: &Config, errors: &mut ConfigErrors);

/// Whether secrets are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrets {
    /// As `***`.
    Hidden,
    /// As they are, but for the tokens of the admin port: with one of those its reader could do more than it may.
    ButAdmin,
    /// As they are.
    Shown,
}

/// A key that a change sets, or a map's entry that it adds or removes.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedKey {
    /// Where it is: a JSON Pointer.
    pub pointer: String,
    /// The old value; `None` if there was none. Of an entry, the values that differ from the defaults.
    pub before: Option<Value>,
    /// The new value; `None` if removed.
    pub after: Option<Value>,
    /// When the change takes effect.
    pub applies: Applies,
}

/// A validated change, with the complete snapshot that it leads to.
#[derive(Clone, Debug)]
pub struct PreparedChange {
    base: Arc<Snapshot>,
    snapshot: Arc<Snapshot>,
    changes: Arc<[ChangedKey]>,
    created: bool,
}

/// Why a change cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChangeError {
    /// Another change was made before; `current` is the current revision.
    #[error("the revision is {current}; read it again, and change that")]
    Revision {
        /// The current revision.
        current: u64,
    },
    /// The value, or the configuration with it, is not valid.
    #[error("{0}")]
    Invalid(ConfigErrors),
    /// An operation of a JSON Patch does not fit the current settings: a place is missing, or a test failed.
    #[error("{0}")]
    Conflict(ConfigError),
    /// There is no such place.
    #[error("{0}")]
    NotFound(ConfigError),
}

impl Snapshot {
    /// Creates the first snapshot of a configuration.
    ///
    /// # Errors
    /// Why the configuration is not valid ([`Config::validate`]).
    pub fn new(revision: u64, config: Config) -> Result<Snapshot, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        let index = config.validate_changes(&Index::default(), &Config::default(), &mut errors);
        placeholder::judge(&changes(&Config::default(), &config), &mut errors);
        errors.or(Snapshot { revision, config, index })
    }

    /// Returns the value at a place, including defaults; `None` if there is no such place.
    pub fn get(&self, pointer: &Pointer, secrets: Secrets) -> Option<Value> {
        let mut value = self.config.at(pointer.steps())?;
        let steps = pointer.steps();
        match secrets {
            Secrets::ButAdmin if steps.is_empty() => {
                let admin = Pointer::parse("/admin").ok()?;
                known(&admin).ok()?.hide(value.get_mut("admin")?);
            }
            Secrets::ButAdmin if steps[0] != "admin" => {}
            Secrets::Shown => {}
            Secrets::Hidden | Secrets::ButAdmin => known(pointer).ok()?.hide(&mut value),
        }
        Some(value)
    }

    /// Appends the value at a place as JSON. Returns `false` if there is no such place.
    pub fn write_json(&self, pointer: &Pointer, secrets: Secrets, out: &mut Vec<u8>) -> bool {
        let Some(value) = self.get(pointer, secrets) else { return false };
        serde_json::to_writer(out, &value).is_ok()
    }

    /// Returns the error for a missing place: the key that was probably meant, or the missing entry.
    pub fn missing(&self, pointer: &Pointer) -> ConfigError {
        if let Err(error) = known(pointer) {
            return error;
        }
        let steps = pointer.steps();
        let there = (0..steps.len()).take_while(|&depth| self.config.has(&steps[..depth])).count();
        let path = Path::from_steps(steps[..there].to_vec());
        ConfigError::new(path, "there is nothing here")
            .with_fix("see what there is one step up, or set it")
    }

    /// Returns the name and tenant of the API key that a caller presents. Keys are found by a keyed hash, so that the
    /// time does not depend on them.
    pub fn api_key(&self, shown: &str) -> Option<&ApiKey> {
        self.index.api_key(shown)
    }

    /// Returns the tenant that has a token key of this id (`kid`).
    pub fn tenant_of_token_key(&self, kid: &str) -> Option<&Arc<str>> {
        self.index.token_key(kid)
    }

    /// Returns the differences from an older snapshot. Skips what both share.
    pub fn changes_from(&self, older: &Snapshot) -> Vec<ChangedKey> {
        changes(&older.config, &self.config)
    }

    /// Prepares the snapshot that a change leads to; this one is not modified.
    ///
    /// # Errors
    /// Why the change cannot be made: every error that can be found at once.
    pub fn prepare(
        self: &Arc<Snapshot>,
        change: &Change,
        expected: Option<u64>,
    ) -> Result<PreparedChange, ChangeError> {
        self.prepare_judged(change, expected, |_, _, _| {})
    }

    /// Like [`Snapshot::prepare`], with the errors of further checks ([`Judge`]).
    ///
    /// # Errors
    /// As [`Snapshot::prepare`].
    pub fn prepare_judged(
        self: &Arc<Snapshot>,
        change: &Change,
        expected: Option<u64>,
        judge: impl FnOnce(&Config, &Config, &mut ConfigErrors),
    ) -> Result<PreparedChange, ChangeError> {
        if expected.is_some_and(|expected| expected != self.revision) {
            return Err(ChangeError::Revision { current: self.revision });
        }
        let created = match change {
            Change::Put { pointer, .. } => !self.config.has(pointer.steps()),
            _ => false,
        };
        let mut config = self.config.clone();
        change.apply(&mut config)?;
        let changes: Arc<[ChangedKey]> = changes(&self.config, &config).into();
        let base = Arc::clone(self);
        if changes.is_empty() {
            let snapshot = Arc::clone(self);
            return Ok(PreparedChange { base, snapshot, changes, created: false });
        }
        let mut errors = ConfigErrors::default();
        let index = config.validate_changes(&self.index, &self.config, &mut errors);
        placeholder::judge(&changes, &mut errors);
        let mut further = ConfigErrors::default();
        judge(&self.config, &config, &mut further);
        errors.add_further(&further);
        errors.or(()).map_err(ChangeError::Invalid)?;
        let snapshot = Arc::new(Snapshot { revision: self.revision + 1, config, index });
        Ok(PreparedChange { base, snapshot, changes, created })
    }

    /// Returns the same settings under another number.
    pub(crate) fn renumbered(&self, revision: u64) -> Snapshot {
        Snapshot { revision, ..self.clone() }
    }

    /// Applies a change of the log without validating it. Fails if the place does not exist or the value does not fit.
    pub(crate) fn replay(
        config: &mut Config,
        pointer: &Pointer,
        after: Option<Value>,
    ) -> Result<(), String> {
        use crate::edit::{Edit, EditError};
        let edit = after.map_or(Edit::Remove, Edit::Add);
        config.edit(pointer.steps(), edit).map_err(|error| match error {
            EditError::NotFound => "there is no such setting".to_owned(),
            EditError::Invalid(message) => message,
        })
    }

    pub(crate) fn from_replay(revision: u64, config: Config) -> Snapshot {
        let mut errors = ConfigErrors::default();
        let index = config.validate_changes(&Index::default(), &Config::default(), &mut errors);
        Snapshot { revision, config, index }
    }

    /// Like [`Snapshot::from_replay`], but cheap: based on the previous snapshot.
    pub(crate) fn next_replay(&self, revision: u64, config: Config) -> Snapshot {
        let mut errors = ConfigErrors::default();
        let index = config.validate_changes(&self.index, &self.config, &mut errors);
        Snapshot { revision, config, index }
    }
}

/// Returns the differences between two configurations.
pub(crate) fn changes(before: &Config, after: &Config) -> Vec<ChangedKey> {
    let mut differences = Vec::new();
    before.compare(after, &mut String::new(), &mut differences);
    differences.into_iter().map(ChangedKey::of).collect()
}

impl ChangedKey {
    fn of(difference: Difference) -> ChangedKey {
        let Difference { pointer, before, after } = difference;
        let applies = Pointer::parse(&pointer)
            .ok()
            .and_then(|at| schema::root().at(at.steps().iter().map(String::as_str)))
            .map_or(Applies::Live, |(_, applies)| applies);
        ChangedKey { pointer, before, after, applies }
    }

    /// Returns the change with `***` for each secret; it still shows that a secret was changed.
    pub fn hidden(&self) -> ChangedKey {
        let mut hidden = self.clone();
        let pointer = Pointer::parse(&self.pointer).unwrap_or_default();
        if let Ok(node) = known(&pointer) {
            hidden.before.iter_mut().chain(hidden.after.iter_mut()).for_each(|v| node.hide(v));
        }
        hidden
    }

    /// Returns whether it sets, changes or removes a secret.
    pub fn has_secret(&self) -> bool {
        let hidden = self.hidden();
        (&hidden.before, &hidden.after) != (&self.before, &self.after)
    }

    /// Returns the approximate memory in bytes.
    pub(crate) fn weight(&self) -> usize {
        fn of(value: &Value) -> usize {
            let below = match value {
                Value::String(text) => text.len(),
                Value::Array(elements) => elements.iter().map(of).sum(),
                Value::Object(object) => object.iter().map(|(k, v)| k.len() + 24 + of(v)).sum(),
                _ => 0,
            };
            size_of::<Value>() + below
        }
        let values = [&self.before, &self.after];
        size_of::<ChangedKey>()
            + self.pointer.len()
            + values.into_iter().flatten().map(of).sum::<usize>()
    }
}

impl Serialize for ChangedKey {
    /// Serializes as `{"op": "replace", "pointer": "/...", "before": 1, "after": 2, "applies": "live"}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let op = match (&self.before, &self.after) {
            (None, _) => "add",
            (_, None) => "remove",
            _ => "replace",
        };
        let mut key = serializer.serialize_map(None)?;
        key.serialize_entry("op", op)?;
        key.serialize_entry("pointer", &self.pointer)?;
        for (name, value) in [("before", &self.before), ("after", &self.after)] {
            if let Some(value) = value {
                key.serialize_entry(name, value)?;
            }
        }
        key.serialize_entry("applies", self.applies.name())?;
        key.end()
    }
}

impl PreparedChange {
    /// Returns the snapshot the change leads to; the base if nothing changes.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Returns the snapshot it was prepared on.
    pub fn base(&self) -> &Arc<Snapshot> {
        &self.base
    }

    /// Returns the changed keys.
    pub fn changes(&self) -> &[ChangedKey] {
        &self.changes
    }

    /// Like [`PreparedChange::changes`], but returns the `Arc`.
    pub(crate) fn shared_changes(&self) -> &Arc<[ChangedKey]> {
        &self.changes
    }

    /// Returns whether the change has no effect.
    pub fn is_unchanged(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns whether a [`Change::Put`] created a new entry.
    pub fn created(&self) -> bool {
        self.created
    }

    /// Returns the latest of the times at which its keys take effect.
    pub fn applies(&self) -> Applies {
        self.changes.iter().map(|change| change.applies).max().unwrap_or(Applies::Live)
    }
}
