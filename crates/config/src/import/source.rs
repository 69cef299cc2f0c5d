//! The document being translated, the result, and a report row for each key.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::report::{Mapping, Row};
use crate::path::Path;
use crate::{check, duration};

/// The keys of a configuration that are not processed yet, and the result so far.
pub(super) struct ImportSource {
    left: Value,
    pub(super) out: Value,
    pub(super) rows: Vec<Row>,
    /// What keys are called where they came from, if that is not their path in `left`: names of an older version, variables.
    names: HashMap<String, String>,
    /// Whether the file has no sections, so that options of channels stand at its top.
    pub(super) is_flat: bool,
}

impl ImportSource {
    pub(super) fn new(left: Value) -> ImportSource {
        ImportSource {
            left,
            out: json!({}),
            rows: Vec::new(),
            names: HashMap::new(),
            is_flat: false,
        }
    }

    /// Reports these keys by other names.
    pub(super) fn with_names(mut self, names: HashMap<String, String>) -> ImportSource {
        self.names = names;
        self
    }

    pub(super) fn row(&mut self, key: &str, mapping: Mapping, note: impl Into<String>) {
        let key = self.name_of(key);
        self.rows.push(Row { key, mapping, note: note.into() });
    }

    /// Returns what a key is called where it came from.
    pub(super) fn name_of(&self, key: &str) -> String {
        if let Some(name) = self.names.get(key) {
            return name.clone();
        }
        if self.is_flat {
            let option = key.strip_prefix("channel.without_namespace.");
            if let Some(option) = option.or_else(|| {
                key.strip_prefix("channel.").filter(|rest| rest.starts_with("namespaces["))
            }) {
                return option.to_owned();
            }
        }
        key.to_owned()
    }

    /// Returns the keys that are left.
    pub(super) fn rest(&self) -> &Value {
        &self.left
    }

    /// Removes a key and returns its value; `None` if it is unset or empty.
    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        let path = Path::of(key);
        let found = path.steps().iter().try_fold(&self.left, |at, step| at.get(step))?.clone();
        check::remove(&mut self.left, path.steps());
        (!is_nothing(&found)).then_some(found)
    }

    /// Returns the value of a key without removing it.
    pub(super) fn peek(&self, key: &str) -> Option<&Value> {
        Path::of(key).steps().iter().try_fold(&self.left, |at, step| at.get(step))
    }

    /// Removes a boolean key; anything that is not a boolean is false.
    pub(super) fn is_on(&mut self, key: &str) -> bool {
        self.take(key).is_some_and(|value| switch(&value))
    }

    /// Removes a text key.
    pub(super) fn text(&mut self, key: &str) -> Option<String> {
        match self.take(key)? {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            other => {
                self.row(key, Mapping::Closed, format!("expected a text, found {}", kind(&other)));
                None
            }
        }
    }

    /// Sets a key of Dunlin.
    pub(super) fn set(&mut self, key: &Path, value: impl Into<Value>) {
        let mut at = &mut self.out;
        for step in key.steps() {
            if !at.is_object() {
                *at = Value::Object(Map::new());
            }
            at = &mut at[step];
        }
        *at = value.into();
    }

    /// Removes a key of Dunlin again.
    pub(super) fn unset(&mut self, key: &str) {
        check::remove(&mut self.out, Path::of(key).steps());
    }

    /// Sets a key of Dunlin and reports it as the equivalent of a Centrifugo key.
    pub(super) fn taken(&mut self, key: &str, to: &str, value: impl Into<Value>) {
        self.set(&Path::of(to), value);
        self.row(key, Mapping::Taken, format!("`{to}`"));
    }

    /// Withdraws the report that a key became `to`, and returns the key.
    pub(super) fn untake(&mut self, to: &str) -> Option<String> {
        let note = format!("`{to}`");
        let index =
            self.rows.iter().position(|row| row.mapping == Mapping::Taken && row.note == note)?;
        Some(self.rows.remove(index).key)
    }

    /// Converts a key of this kind and sets it under its name in Dunlin.
    pub(super) fn move_as(&mut self, key: &str, to: &str, what: Kind) {
        let Some(value) = self.take(key) else { return };
        let read = match what {
            Kind::Switch => Some(Value::Bool(switch(&value))),
            Kind::Count => count(&value).map(Value::from),
            Kind::Text => value.as_str().map(Value::from),
            Kind::Time => milliseconds(&value).map(Value::from),
        };
        match read {
            Some(value) => self.taken(key, to, value),
            None => {
                self.row(
                    key,
                    Mapping::Absent,
                    format!("it cannot be read; `{to}` has its default"),
                );
            }
        }
    }

    /// Reports all remaining keys as having no counterpart, each with a note.
    pub(super) fn absent(&mut self, note: impl Fn(&str) -> String) {
        let left = std::mem::take(&mut self.left);
        let mut keys = Vec::new();
        leaves(&Path::root(), &left, &mut keys);
        for key in keys {
            self.row(&key, Mapping::Absent, note(&key));
        }
    }
}

/// The kind of a value that is converted.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Switch,
    Count,
    Text,
    Time,
}

/// Returns whether Centrifugo treats the value as unset.
pub(super) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.values().all(is_nothing),
    }
}

pub(super) fn switch(value: &Value) -> bool {
    match value {
        Value::Bool(is) => *is,
        // As Go reads it.
        Value::String(text) => matches!(text.as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True"),
        Value::Number(number) => number.as_i64() == Some(1),
        _ => false,
    }
}

pub(super) fn count(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// Reads a Go duration: `1h30m`, `300ms`, `0.5s`; a bare number is nanoseconds.
pub(super) fn milliseconds(value: &Value) -> Option<u64> {
    match value {
        Value::Number(ns) => ns.as_u64().map(|ns| ns / 1_000_000),
        // As a variable has it.
        Value::String(text) if text == "0" => Some(0),
        Value::String(text) => duration::milliseconds(text),
        _ => None,
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a switch",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn leaves(path: &Path, value: &Value, keys: &mut Vec<String>) {
    match value {
        _ if is_nothing(value) => {}
        Value::Object(object) => {
            object.iter().for_each(|(key, value)| leaves(&path.join(key), value, keys));
        }
        _ => keys.push(path.to_string()),
    }
}

/// Returns the object in a value, or an empty one.
pub(super) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}
