//! The document being translated, the result, and a report row for each key.

use serde_json::{Map, Value, json};

use super::{Mapping, Row};
use crate::check;
use crate::path::Path;

/// The keys of a Centrifugo configuration that are not processed yet, and the result so far.
pub(super) struct ImportSource {
    left: Value,
    pub(super) out: Value,
    pub(super) rows: Vec<Row>,
}

impl ImportSource {
    pub(super) fn new(left: Value) -> ImportSource {
        ImportSource { left, out: json!({}), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, key: &str, mapping: Mapping, note: impl Into<String>) {
        self.rows.push(Row { key: key.to_owned(), mapping, note: note.into() });
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

    /// Reports all remaining keys as having no counterpart.
    pub(super) fn absent(&mut self) {
        let left = std::mem::take(&mut self.left);
        let mut keys = Vec::new();
        leaves(&Path::root(), &left, &mut keys);
        for key in keys {
            let note = super::client::absent_note(&key);
            self.row(&key, Mapping::Absent, note);
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
        Value::String(text) => text == "true" || text == "1",
        Value::Number(number) => number.as_i64() == Some(1),
        _ => false,
    }
}

pub(super) fn count(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// Parses a Go duration: `1h30m`, `300ms`, `0.5s`; a bare number is nanoseconds.
pub(super) fn milliseconds(value: &Value) -> Option<u64> {
    if let Some(ns) = value.as_u64() {
        return Some(ns / 1_000_000);
    }
    let mut rest = value.as_str()?;
    let mut ms = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(digits);
        let unit = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit);
        let scale = match unit {
            "ns" => 1e-6,
            "us" | "µs" => 1e-3,
            "ms" => 1.0,
            "s" => 1e3,
            "m" => 6e4,
            "h" => 3.6e6,
            "d" => 8.64e7,
            _ => return None,
        };
        ms += number.parse::<f64>().ok()? * scale;
        rest = behind;
    }
    // A cast saturates, as intended.
    Some(ms as u64)
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
