//! A TOML text as a JSON value that remembers the line of each key.

use std::collections::HashMap;

use serde_json::{Map, Number, Value};
use toml::de::{DeTable, DeValue};

use crate::error::{ConfigError, ConfigErrors};
use crate::path::Path;

pub(crate) struct Document {
    pub(crate) value: Value,
    lines: HashMap<Path, usize>,
}

impl Document {
    /// Reads a TOML text.
    ///
    /// # Errors
    /// A syntax error or duplicate key in TOML, and values that JSON does not have: dates, infinities.
    pub(crate) fn parse(text: &str) -> Result<Document, ConfigErrors> {
        let lines = Lines::of(text);
        let table = DeTable::parse(text).map_err(|cause| {
            let message = cause.message().trim_end_matches('.').replace('\n', ", ");
            let mut error = ConfigError::new(Path::root(), format!("this is not TOML: {message}"));
            error.line = cause.span().map(|span| lines.at(span.start));
            error
        })?;
        let mut reader =
            Reader { text: &lines, lines: HashMap::new(), errors: ConfigErrors::default() };
        let value = reader.table(&Path::root(), table.get_ref());
        reader.errors.or(Document { value, lines: reader.lines })
    }

    /// Returns the line of a key, or of the nearest table around it.
    pub(crate) fn line(&self, path: &Path) -> Option<usize> {
        let mut path = path.clone();
        loop {
            if let Some(line) = self.lines.get(&path) {
                return Some(*line);
            }
            path = path.parent()?;
        }
    }
}

struct Reader<'a> {
    text: &'a Lines,
    lines: HashMap<Path, usize>,
    errors: ConfigErrors,
}

impl Reader<'_> {
    fn table(&mut self, path: &Path, table: &DeTable<'_>) -> Value {
        let mut object = Map::new();
        for (key, value) in table {
            let path = path.join(key.get_ref());
            // For a table this is the line of its first header.
            self.lines.insert(path.clone(), self.text.at(key.span().start));
            object.insert(key.get_ref().to_string(), self.value(&path, value.get_ref()));
        }
        Value::Object(object)
    }

    fn value(&mut self, path: &Path, value: &DeValue<'_>) -> Value {
        match value {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Boolean(is) => Value::Bool(*is),
            DeValue::Integer(integer) => {
                let digits = integer.as_str().trim_start_matches('+');
                match i64::from_str_radix(digits, integer.radix()) {
                    Ok(number) => Value::Number(number.into()),
                    Err(_) => self.refuse(path, "the number is too large"),
                }
            }
            DeValue::Float(float) => match float.as_str().parse().ok().and_then(Number::from_f64) {
                Some(number) => Value::Number(number),
                None => self.refuse(path, "the number is not finite"),
            },
            DeValue::Datetime(_) => self.refuse(path, "no key takes a date"),
            DeValue::Array(array) => {
                let elements = array.iter().enumerate();
                elements.map(|(i, element)| self.value(&path.join(i), element.get_ref())).collect()
            }
            DeValue::Table(table) => self.table(path, table),
        }
    }

    fn refuse(&mut self, path: &Path, message: &str) -> Value {
        let mut error = ConfigError::new(path.clone(), message);
        error.line = self.lines.get(path).copied();
        self.errors.push(error);
        Value::Null
    }
}

/// Offsets of line starts, so that a byte's line is found by binary search.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Lines {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Lines(std::iter::once(0).chain(ends.map(|(index, _)| index + 1)).collect())
    }

    fn at(&self, byte: usize) -> usize {
        self.0.partition_point(|start| *start <= byte)
    }
}
