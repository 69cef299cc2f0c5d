//! Changes requested by callers, applied to a copy of the configuration.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::edit::{Edit, EditError, Part};
use crate::error::{ConfigError, ConfigErrors};
use crate::path::Path;
use crate::pointer::Pointer;
use crate::schema::{self, Kind, SchemaNode};
use crate::snapshot::{ChangeError, Snapshot};
use crate::{Config, Secret, check, json};

/// The most operations of one JSON Patch.
const OPERATIONS_MAX: usize = 200_000;

/// A change of the configuration, made as a whole or not at all.
#[derive(Clone, Debug)]
pub enum Change {
    /// Sets one place; keys missing from a table have their defaults.
    Put {
        /// The place.
        pointer: Pointer,
        /// Its new value.
        value: Value,
    },
    /// Removes an entry from a map, or resets a key of the schema to its default.
    Delete {
        /// The place.
        pointer: Pointer,
    },
    /// A JSON Merge Patch (RFC 7396): changes the keys it names; null removes.
    Merge(Value),
    /// A JSON Patch (RFC 6902), in its order.
    Patch(Vec<Operation>),
    /// Restores all settings of another revision.
    Restore(Arc<Snapshot>),
}

/// An operation of a JSON Patch (RFC 6902 §4).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Operation {
    /// Sets a place; in an array inserts before it.
    Add {
        /// The place.
        path: Pointer,
        /// Its new value.
        value: Value,
    },
    /// Removes the value at a place.
    Remove {
        /// The place.
        path: Pointer,
    },
    /// Replaces the value at a place.
    Replace {
        /// The place.
        path: Pointer,
        /// Its new value.
        value: Value,
    },
    /// Moves a value to another place.
    Move {
        /// Where it is.
        from: Pointer,
        /// The new place.
        path: Pointer,
    },
    /// Copies a value to another place.
    Copy {
        /// Where it is.
        from: Pointer,
        /// The new place.
        path: Pointer,
    },
    /// Fails the patch unless the place has this value.
    Test {
        /// The place.
        path: Pointer,
        /// The value it must have.
        value: Value,
    },
}

impl Change {
    /// Returns whether it moves, copies or tests a secret, and so could disclose it without setting one.
    pub fn reads_secrets(&self) -> bool {
        let Change::Patch(operations) = self else { return false };
        operations.iter().any(|operation| match operation {
            Operation::Move { from: read, .. }
            | Operation::Copy { from: read, .. }
            | Operation::Test { path: read, .. } => known(read).is_ok_and(SchemaNode::has_secrets),
            Operation::Add { .. } | Operation::Remove { .. } | Operation::Replace { .. } => false,
        })
    }

    /// Returns whether it has the value of a secret, even the present one: who may not set secrets would learn by it whether that
    /// is right.
    pub fn names_secrets(&self) -> bool {
        fn names(node: &SchemaNode, value: &Value) -> bool {
            match (&node.kind, value) {
                (Kind::Secret, Value::String(text)) => text != Secret::HIDDEN,
                (_, Value::Object(object)) if node.has_secrets() => object
                    .iter()
                    .any(|(key, value)| node.below(key).is_some_and(|below| names(below, value))),
                _ => false,
            }
        }
        let at = |pointer: &Pointer, value| known(pointer).is_ok_and(|node| names(node, value));
        match self {
            Change::Put { pointer, value } => at(pointer, value),
            Change::Merge(patch) => names(schema::root(), patch),
            Change::Patch(operations) => operations.iter().any(|operation| match operation {
                Operation::Add { path, value }
                | Operation::Replace { path, value }
                | Operation::Test { path, value } => at(path, value),
                Operation::Remove { .. } | Operation::Move { .. } | Operation::Copy { .. } => false,
            }),
            Change::Delete { .. } | Change::Restore(_) => false,
        }
    }

    /// Creates a [`Change::Put`] from a JSON text.
    ///
    /// # Errors
    /// The errors of [`json::parse`]. Whether the value fits is checked when the change is prepared.
    pub fn put(pointer: Pointer, text: &[u8]) -> Result<Change, ConfigErrors> {
        Ok(Change::Put { pointer, value: json::parse(text, json::BYTES_MAX)? })
    }

    /// Creates a [`Change::Merge`] from a JSON text.
    ///
    /// # Errors
    /// As [`Change::put`].
    pub fn merge(text: &[u8]) -> Result<Change, ConfigErrors> {
        Ok(Change::Merge(json::parse(text, json::BYTES_MAX)?))
    }

    /// Creates a [`Change::Patch`] from a JSON text.
    ///
    /// # Errors
    /// As [`Change::put`], and every invalid operation.
    pub fn patch(text: &[u8]) -> Result<Change, ConfigErrors> {
        let Value::Array(operations) = json::parse(text, json::BYTES_MAX)? else {
            return Err(ConfigError::new(Path::root(), "a JSON Patch is an array of operations")
                .with_fix("write [{\"op\": \"replace\", \"path\": \"/...\", \"value\": ...}]")
                .into());
        };
        if operations.len() > OPERATIONS_MAX {
            let message = format!("there are {} operations", operations.len());
            return Err(ConfigError::new(Path::root(), message)
                .with_fix(format!("send at most {OPERATIONS_MAX} at once"))
                .into());
        }
        let mut errors = ConfigErrors::default();
        let mut read = Vec::with_capacity(operations.len());
        for (number, operation) in operations.into_iter().enumerate() {
            match Operation::read(operation) {
                Ok(operation) => read.push(operation),
                Err(mut error) => {
                    error.message = format!("operation {number}: {}", error.message);
                    errors.push(error);
                }
            }
        }
        errors.or(Change::Patch(read))
    }

    /// Applies the change to a configuration. After an error that is half changed and must be discarded.
    pub(crate) fn apply(&self, config: &mut Config) -> Result<(), ChangeError> {
        match self {
            Change::Put { pointer, .. } | Change::Delete { pointer } => {
                let edit = match self {
                    Change::Put { value, .. } => {
                        Edit::Add(fitting(config, pointer, value.clone())?)
                    }
                    _ => known(pointer).map(|_| Edit::Remove).map_err(ChangeError::NotFound)?,
                };
                let done = config.edit(pointer.steps(), edit);
                done.map_err(|error| change_error(error, pointer, ChangeError::NotFound))
            }
            Change::Merge(patch) => {
                let mut errors = ConfigErrors::default();
                check::patch(&Path::root(), schema::root(), patch, &mut errors);
                errors.or(()).map_err(ChangeError::Invalid)?;
                let mut patch = patch.clone();
                reveal(config, &Pointer::root(), &mut patch).map_err(ChangeError::Invalid)?;
                let done = config.merge(patch);
                done.map_err(|error| change_error(error, &Pointer::root(), ChangeError::NotFound))
            }
            Change::Patch(operations) => patch(config, operations),
            Change::Restore(snapshot) => {
                *config = snapshot.config.clone();
                Ok(())
            }
        }
    }
}

impl Operation {
    fn read(value: Value) -> Result<Operation, ConfigError> {
        let error = |message: &str| ConfigError::new(Path::root(), message);
        let Value::Object(mut object) = value else {
            return Err(error("it is no object").with_fix("write {\"op\": ..., \"path\": ...}"));
        };
        let pointer = |name: &str| match object.get(name) {
            Some(Value::String(text)) => Pointer::parse(text),
            _ => Err(error(&format!("it has no `{name}`")).with_fix("give it a JSON Pointer")),
        };
        let path = pointer("path")?;
        let op = object.get("op").and_then(Value::as_str).unwrap_or_default().to_owned();
        let from = match op.as_str() {
            "move" | "copy" => pointer("from")?,
            _ => Pointer::root(),
        };
        let value = object.remove("value");
        let value = || value.ok_or_else(|| error("it has no `value`").with_fix("give it one"));
        Ok(match op.as_str() {
            "add" => Operation::Add { path, value: value()? },
            "remove" => Operation::Remove { path },
            "replace" => Operation::Replace { path, value: value()? },
            "move" if from != path && from.contains(&path) => {
                return Err(error("a value cannot be moved into itself")
                    .with_fix("copy it, or move it elsewhere"));
            }
            "move" => Operation::Move { from, path },
            "copy" => Operation::Copy { from, path },
            "test" => Operation::Test { path, value: value()? },
            op => {
                let message = format!("there is no operation {op:?}");
                return Err(
                    error(&message).with_fix("use one of add, remove, replace, move, copy, test")
                );
            }
        })
    }
}

/// Reports all errors of form at once, before it applies the operations in order.
fn patch(config: &mut Config, operations: &[Operation]) -> Result<(), ChangeError> {
    let mut errors = ConfigErrors::default();
    for operation in operations {
        match operation {
            Operation::Add { path, value } | Operation::Replace { path, value } => {
                match known(path) {
                    Ok(node) => check::value(&path.path(), node, value, &mut errors),
                    Err(error) => errors.push(error),
                }
            }
            Operation::Remove { path } | Operation::Test { path, .. } => {
                errors.extend(known(path).err());
            }
            Operation::Move { from, path } | Operation::Copy { from, path } => {
                errors.extend(known(from).err());
                errors.extend(known(path).err());
            }
        }
    }
    errors.or(()).map_err(ChangeError::Invalid)?;
    for (number, operation) in operations.iter().enumerate() {
        let at = |error, pointer: &Pointer| {
            let mut change_error = change_error(error, pointer, ChangeError::Conflict);
            if let ChangeError::Conflict(error) = &mut change_error {
                error.message = format!("operation {number}: {}", error.message);
            }
            change_error
        };
        let get = |config: &Config, path: &Pointer| {
            config.at(path.steps()).ok_or_else(|| at(EditError::NotFound, path))
        };
        let edit = |config: &mut Config, path: &Pointer, edit| {
            config.edit(path.steps(), edit).map_err(|error| at(error, path))
        };
        match operation {
            Operation::Add { path, value } => {
                let value = revealed(config, path, value.clone())?;
                edit(config, path, Edit::Add(value))?;
            }
            Operation::Replace { path, value } => {
                let value = revealed(config, path, value.clone())?;
                edit(config, path, Edit::Replace(value))?;
            }
            Operation::Remove { path } => edit(config, path, Edit::Remove)?,
            Operation::Move { from, path } if from == path => drop(get(config, from)?),
            Operation::Move { from, path } | Operation::Copy { from, path } => {
                let value = get(config, from)?;
                if matches!(operation, Operation::Move { .. }) {
                    edit(config, from, Edit::Remove)?;
                }
                let value = fitting(config, path, value)?;
                edit(config, path, Edit::Add(value))?;
            }
            Operation::Test { path, value } => {
                if get(config, path)? != *value {
                    let message = format!("operation {number}: it has another value");
                    return Err(ChangeError::Conflict(
                        ConfigError::new(path.path(), message)
                            .with_fix("read it, and send the patch for what is there"),
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Returns the schema node of a pointer.
///
/// # Errors
/// The first unknown step, and what was probably meant.
pub(crate) fn known(pointer: &Pointer) -> Result<&'static SchemaNode, ConfigError> {
    let mut node = schema::root();
    for (depth, step) in pointer.steps().iter().enumerate() {
        node = match node.below(step) {
            Some(below) => below,
            None => {
                let path = Path::from_steps(pointer.steps()[..depth].to_vec());
                return Err(match &node.kind {
                    Kind::Table(keys) => check::unknown(&path, step, keys),
                    _ => ConfigError::new(path.join(step), "there is nothing below this key")
                        .with_fix(format!("name the key itself: `{path}`")),
                });
            }
        };
    }
    Ok(node)
}

/// Checks a value for a place, and fills in the present secrets for `***`.
fn fitting(config: &Config, pointer: &Pointer, value: Value) -> Result<Value, ChangeError> {
    let node = known(pointer).map_err(ChangeError::NotFound)?;
    let mut errors = ConfigErrors::default();
    check::value(&pointer.path(), node, &value, &mut errors);
    errors.or(()).map_err(ChangeError::Invalid)?;
    revealed(config, pointer, value)
}

fn revealed(config: &Config, pointer: &Pointer, mut value: Value) -> Result<Value, ChangeError> {
    reveal(config, pointer, &mut value).map_err(ChangeError::Invalid)?;
    Ok(value)
}

/// Replaces `***` in a value by the present secret.
fn reveal(config: &Config, pointer: &Pointer, value: &mut Value) -> Result<(), ConfigErrors> {
    fn walk(
        config: &Config,
        node: &SchemaNode,
        steps: &mut Vec<String>,
        value: &mut Value,
        errors: &mut ConfigErrors,
    ) {
        match value {
            Value::String(text) if text == Secret::HIDDEN && matches!(node.kind, Kind::Secret) => {
                match config.at(steps) {
                    Some(Value::String(secret)) => *text = secret,
                    _ => errors.add(
                        Path::from_steps(steps.clone()),
                        "there is no secret yet that \"***\" could leave as it is",
                        "write the secret",
                    ),
                }
            }
            Value::Object(object) if node.has_secrets() => {
                for (key, value) in object {
                    if let Some(below) = node.below(key) {
                        steps.push(key.clone());
                        walk(config, below, steps, value, errors);
                        steps.pop();
                    }
                }
            }
            _ => {}
        }
    }
    let mut errors = ConfigErrors::default();
    if let Ok(node) = known(pointer)
        && node.has_secrets()
    {
        walk(config, node, &mut pointer.steps().to_vec(), value, &mut errors);
    }
    errors.or(())
}

fn change_error(
    error: EditError,
    pointer: &Pointer,
    missing: fn(ConfigError) -> ChangeError,
) -> ChangeError {
    match error {
        EditError::NotFound => missing(
            ConfigError::new(pointer.path(), "there is nothing here")
                .with_fix("check the pointer, or create what it is in first"),
        ),
        EditError::Invalid(message) => {
            ChangeError::Invalid(ConfigError::new(pointer.path(), message).into())
        }
    }
}
