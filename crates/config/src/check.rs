//! Validates a document against the schema. Reports all errors at once, each with its path.

use serde_json::{Map, Value};

use crate::Pattern;
use crate::error::{ConfigError, ConfigErrors};
use crate::path::Path;
use crate::schema::{self, Kind, SchemaNode};

/// Minimum similarity of a misspelled name to the one that was probably meant.
const LIKENESS_MIN: f64 = 0.8;
/// Maximum number of characters of a wrong value that a message quotes.
const QUOTED_CHARS_MAX: usize = 40;

/// Returns an error for every key that the schema does not have and every value that it does not allow.
pub(crate) fn shape(document: &Value) -> ConfigErrors {
    let mut errors = ConfigErrors::default();
    value(&Path::root(), schema::root(), document, &mut errors);
    errors
}

/// Checks one value against the node `schema`; `path` is its place.
pub(crate) fn value(path: &Path, schema: &SchemaNode, value: &Value, errors: &mut ConfigErrors) {
    let rules = Rules { null_removes: false };
    rules.node(&Location::Start(path), schema, value, errors);
}

/// Checks a merge patch (RFC 7396), in which null removes a key.
pub(crate) fn patch(path: &Path, schema: &SchemaNode, value: &Value, errors: &mut ConfigErrors) {
    let rules = Rules { null_removes: true };
    rules.node(&Location::Start(path), schema, value, errors);
}

/// Removes the value at a location. Within an array the whole array is removed, so that no other element moves.
pub(crate) fn remove(value: &mut Value, steps: &[String]) {
    let Some((first, rest)) = steps.split_first() else {
        return *value = Value::Object(Map::new());
    };
    let Value::Object(object) = value else { return };
    match object.get_mut(first) {
        Some(within @ Value::Object(_)) if !rest.is_empty() => remove(within, rest),
        _ => drop(object.remove(first)),
    }
}

/// The location of the walk. The path is built only for an error, since most documents have none.
enum Location<'a> {
    Start(&'a Path),
    Key(&'a Location<'a>, &'a str),
    Element(&'a Location<'a>, usize),
}

impl Location<'_> {
    fn path(&self) -> Path {
        match self {
            Location::Start(path) => (*path).clone(),
            Location::Key(above, key) => above.path().join(key),
            Location::Element(above, index) => above.path().join(index),
        }
    }
}

struct Rules {
    null_removes: bool,
}

impl Rules {
    fn node(
        &self,
        location: &Location<'_>,
        schema: &SchemaNode,
        value: &Value,
        errors: &mut ConfigErrors,
    ) {
        let wrong = |value| {
            let message = format!("expected {}, found {}", schema.kind, found(&schema.kind, value));
            let path = location.path();
            let meant = likely_meant(&path, &schema.kind, value);
            let error = ConfigError::new(path, message);
            match meant {
                Some(fix) => error.with_fix(fix),
                None => error,
            }
        };
        match (&schema.kind, value) {
            // An optional key may be null in JSON; TOML has no such value.
            (_, Value::Null) if schema.optional || self.null_removes => {}
            (Kind::Table(keys), Value::Object(object)) => {
                for (key, value) in object {
                    match keys.iter().find(|(name, _)| name == key) {
                        Some((_, schema)) => {
                            self.node(&Location::Key(location, key), schema, value, errors);
                        }
                        None => errors.push(unknown(&location.path(), key, keys)),
                    }
                }
            }
            (Kind::Map(schema), Value::Object(object)) => {
                for (key, value) in object {
                    self.node(&Location::Key(location, key), schema, value, errors);
                }
            }
            (Kind::List(schema), Value::Array(array)) => {
                for (index, value) in array.iter().enumerate() {
                    // In an array, null is not allowed even in a merge patch.
                    let location = Location::Element(location, index);
                    Rules { null_removes: false }.node(&location, schema, value, errors);
                }
            }
            (Kind::Text | Kind::Secret, Value::String(_)) | (Kind::Boolean, Value::Bool(_)) => {}
            (Kind::Choice(words), Value::String(text))
                if words.iter().any(|(word, _)| word == text) => {}
            (Kind::SocketAddress, Value::String(text))
                if text.parse::<std::net::SocketAddr>().is_ok() => {}
            (Kind::Integer { min, max }, Value::Number(number))
                if number.as_i64().is_some_and(|number| (*min..=*max).contains(&number)) => {}
            (Kind::Pattern, Value::String(text)) => {
                if let Err((what, fix)) = Pattern::parse(text) {
                    errors.push(ConfigError::new(location.path(), what).with_fix(fix));
                }
            }
            (_, value) => errors.push(wrong(value)),
        }
    }
}

fn found(expected: &Kind, value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(is) => is.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) if matches!(expected, Kind::Secret) => "a string".into(),
        Value::String(text) => {
            let short: String = text.chars().take(QUOTED_CHARS_MAX).collect();
            let rest = if short.len() < text.len() { " ..." } else { "" };
            format!("the string {short:?}{rest}")
        }
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "a table".into(),
    }
}

/// Suggests a fix for common mistakes: a bare port, a host name, a duration with a unit, a string in place of an array.
fn likely_meant(path: &Path, expected: &Kind, value: &Value) -> Option<String> {
    match (expected, value) {
        (Kind::SocketAddress, Value::Number(port)) => {
            Some(format!("write \"127.0.0.1:{port}\" for this machine alone"))
        }
        (Kind::SocketAddress, Value::String(text)) => {
            let (host, port) = text.rsplit_once(':').unwrap_or((text.as_str(), ""));
            match (host, port) {
                ("", port) => Some(format!("write \"0.0.0.0:{port}\" for every IPv4 address")),
                ("localhost", port) => Some(format!("write \"127.0.0.1:{port}\"")),
                (_, "") => Some("add the port".into()),
                _ => Some("names are not looked up, write the IP address".into()),
            }
        }
        (Kind::List(_), Value::String(text)) => Some(format!("write [{text:?}]")),
        (Kind::Integer { .. }, Value::String(text)) if path.to_string().contains("_ms") => {
            let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
            let factor = match text[digits.len()..].trim() {
                "ms" | "" => 1,
                "s" => 1_000,
                "m" | "min" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return None,
            };
            let number = digits.parse::<i64>().ok()?.checked_mul(factor)?;
            Some(format!("write {number}, the unit is milliseconds"))
        }
        (Kind::Integer { .. } | Kind::Boolean, Value::String(text))
            if text.parse::<i64>().is_ok() || text == "true" || text == "false" =>
        {
            Some(format!("write {text} without quotes"))
        }
        _ => None,
    }
}

/// Returns the error for an unknown key, with the key that was probably meant: the most similar sibling, otherwise a
/// key of the same name in another table, otherwise all siblings.
pub(crate) fn unknown(path: &Path, key: &str, siblings: &[(String, SchemaNode)]) -> ConfigError {
    let error = ConfigError::new(path.join(key), "there is no such key");
    let likeness = |name: &str| strsim::jaro_winkler(name, key);
    let nearest = siblings.iter().max_by(|a, b| likeness(&a.0).total_cmp(&likeness(&b.0)));
    if let Some((name, _)) = nearest.filter(|(name, _)| likeness(name) >= LIKENESS_MIN) {
        return error.with_fix(format!("did you mean `{name}`?"));
    }
    if let Some(elsewhere) = same_name(&Path::root(), schema::root(), key) {
        return error.with_fix(format!("did you mean `{elsewhere}`?"));
    }
    let names: Vec<_> = siblings.iter().map(|(name, _)| format!("`{name}`")).collect();
    let location = if path.is_root() { "at the top".to_owned() } else { format!("in [{path}]") };
    error.with_fix(format!("{location} there are {}", names.join(", ")))
}

fn same_name(path: &Path, schema: &SchemaNode, key: &str) -> Option<Path> {
    schema.keys().iter().find_map(|(name, node)| {
        let path = path.join(name);
        if name == key { Some(path) } else { same_name(&path, node, key) }
    })
}
