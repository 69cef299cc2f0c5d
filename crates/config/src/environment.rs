//! Settings from environment variables, named by one rule from the schema.
//!
//! The variable of a key is `DUNLIN_` and its path in upper case, with `_` for each dot: `client.ping_interval_ms` is
//! `DUNLIN_CLIENT_PING_INTERVAL_MS`. Names chosen by the operator are also written in upper case and read in lower
//! case: `DUNLIN_CHANNEL_NAMESPACES_CHAT_PRESENCE`.

use serde_json::Value;

use crate::Config;
use crate::check;
use crate::error::{ConfigError, ConfigErrors};
use crate::path::Path;
use crate::schema::{self, Kind, SchemaNode};

/// The prefix of all variables.
pub const PREFIX: &str = "DUNLIN_";

/// Variables with that prefix that are not settings: the log filter, and the server that `dunlin config` connects to.
const OTHERS: &[&str] = &["DUNLIN_LOG", "DUNLIN_ADMIN"];

/// The least similarity of a misspelled name to the name that was probably meant.
const LIKENESS_MIN: f64 = 0.85;

impl Config {
    /// Returns this configuration with the values of environment variables, and warnings about unknown variables.
    /// Ignores variables without [`PREFIX`].
    ///
    /// # Errors
    /// Each variable whose value its key does not accept; the messages contain no secrets.
    pub fn with_environment(
        &self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(Config, Vec<String>), ConfigErrors> {
        let (mut errors, mut warnings) = (ConfigErrors::default(), Vec::new());
        let mut document = None;
        for (variable, text) in variables {
            let Some(name) = variable.strip_prefix(PREFIX) else { continue };
            if OTHERS.contains(&&*variable) {
                continue;
            }
            let mut places = Vec::new();
            find(name, schema::root(), &Path::root(), 0, &mut places);
            // A schema key takes precedence over a name of the operator's choice (`api.keys_in_query` over
            // `api.keys.in_query`), and such names are as short as possible (`NAME.connect_timeout_ms` over
            // `NAME_CONNECT.timeout_ms`).
            let Some((path, node, _)) = places.iter().min_by_key(|(_, _, chosen)| *chosen) else {
                warnings.extend(unknown(&variable));
                continue;
            };
            let mut wrong = ConfigErrors::default();
            match read(&node.kind, &text) {
                Some(value) => {
                    check::value(path, node, &value, &mut wrong);
                    let document = document
                        .get_or_insert_with(|| serde_json::to_value(self).unwrap_or_default());
                    set(document, path.steps(), value);
                }
                None => wrong.push(ConfigError::new(path.clone(), "this is no JSON object")),
            }
            errors.extend(wrong.iter().map(|error| ConfigError {
                message: format!("{variable}: {}", error.message),
                ..error.clone()
            }));
        }
        let config = match document {
            Some(document) if errors.is_empty() => Config::from_json(document)?,
            _ => self.clone(),
        };
        errors.or((config, warnings))
    }
}

/// Returns the names of all variables; `NAME` stands for a name of the operator's choice.
pub fn names() -> Vec<String> {
    fn below(path: &str, node: &SchemaNode, names: &mut Vec<String>) {
        match &node.kind {
            Kind::Table(keys) => {
                for (key, node) in keys {
                    below(&format!("{path}_{}", key.to_uppercase()), node, names);
                }
            }
            Kind::Map(entry) => {
                names.push(path.to_owned());
                below(&format!("{path}_NAME"), entry, names);
            }
            _ => names.push(path.to_owned()),
        }
    }
    let mut names = Vec::new();
    below(PREFIX.trim_end_matches('_'), schema::root(), &mut names);
    names
}

/// Finds the keys that `name` may stand for, and how many of its bytes are names of the operator's choice.
fn find<'s>(
    name: &str,
    node: &'s SchemaNode,
    path: &Path,
    chosen: usize,
    places: &mut Vec<(Path, &'s SchemaNode, usize)>,
) {
    match &node.kind {
        Kind::Table(keys) => {
            for (key, node) in keys {
                let upper = key.to_uppercase();
                let Some(rest) = name.strip_prefix(&upper) else { continue };
                if let Some(rest) = rest.strip_prefix('_') {
                    find(rest, node, &path.join(key), chosen, places);
                } else if rest.is_empty() && !matches!(node.kind, Kind::Table(_)) {
                    places.push((path.join(key), node, chosen));
                }
            }
        }
        Kind::Map(entry) if matches!(entry.kind, Kind::Table(_)) => {
            for (at, _) in name.match_indices('_').filter(|(at, _)| *at > 0) {
                let path = path.join(name[..at].to_lowercase());
                find(&name[at + 1..], entry, &path, chosen + at, places);
            }
        }
        Kind::Map(entry) if !name.is_empty() => {
            places.push((path.join(name.to_lowercase()), entry, chosen + name.len()));
        }
        _ => {}
    }
}

/// Parses a text as a value of a key of this kind. `None` if it is not one and must not be shown.
fn read(kind: &Kind, text: &str) -> Option<Value> {
    let plain = || Value::String(text.to_owned());
    Some(match kind {
        Kind::Boolean => match text {
            "true" | "1" => true.into(),
            "false" | "0" => false.into(),
            _ => plain(),
        },
        Kind::Integer { .. } => {
            text.replace('_', "").parse::<i64>().map_or_else(|_| plain(), Value::from)
        }
        Kind::List(_) if text.trim_start().starts_with('[') => {
            serde_json::from_str(text).unwrap_or_else(|_| plain())
        }
        Kind::List(element) => {
            let elements = text.split(',').map(str::trim).filter(|element| !element.is_empty());
            Value::Array(elements.filter_map(|text| read(&element.kind, text)).collect())
        }
        Kind::Map(_) | Kind::Table(_) => {
            serde_json::from_str(text).ok().filter(Value::is_object)?
        }
        _ => plain(),
    })
}

fn set(document: &mut Value, steps: &[String], value: Value) {
    let mut at = document;
    for step in steps {
        if !at.is_object() {
            *at = Value::Object(serde_json::Map::new());
        }
        at = &mut at[step];
    }
    *at = value;
}

/// Returns the warning for a variable that is not a setting. `None` if it does not resemble one, because others may use
/// the prefix.
fn unknown(variable: &str) -> Option<String> {
    let names = names();
    let name = &variable[PREFIX.len()..];
    let likeness =
        |name: &str| strsim::jaro_winkler(&name[PREFIX.len()..], &variable[PREFIX.len()..]);
    let nearest = names.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    if let Some(nearest) = nearest.filter(|nearest| likeness(nearest) >= LIKENESS_MIN) {
        return Some(format!("{variable} is no setting; did you mean {nearest}?"));
    }
    let Kind::Table(sections) = &schema::root().kind else { return None };
    let is_of = |(section, _): &(String, SchemaNode)| {
        name.strip_prefix(&section.to_uppercase()).is_some_and(|rest| rest.starts_with('_'))
    };
    sections.iter().any(is_of).then(|| format!("{variable} is no setting"))
}
