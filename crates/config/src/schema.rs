//! The schema as data: a tree of keys, from which checks, default file and documentation are made.

use std::fmt;
use std::sync::OnceLock;

use serde_json::Value;

use crate::effect::Effects;
use crate::path::Path;
use crate::{Config, Secret};

/// Returns the JSON Schema (2020-12) of [`Config`], with `x-applies` on every key.
pub fn json() -> Value {
    let mut schema = declared();
    say_when_it_applies(&mut schema);
    schema
}

/// Returns the schema with `x-effects` on every key, as declared.
fn declared() -> Value {
    let mut schema = schemars::schema_for!(Config).to_value();
    if let Some(object) = schema.as_object_mut() {
        object.insert("title".into(), "Dunlin configuration".into());
    }
    schema
}

/// Replaces the effects of each key by the time at which its change is complete.
fn say_when_it_applies(schema: &mut Value) {
    let Value::Object(object) = schema else { return };
    // The keys of a table say it themselves.
    let is_table = object.contains_key("$ref");
    if let Some(Value::String(names)) = object.remove("x-effects")
        && !is_table
    {
        let applies = Effects::named(&names).applies().name();
        object.insert("x-applies".into(), applies.into());
    }
    object.values_mut().for_each(say_when_it_applies);
}

/// Returns the tree of keys, built once from the JSON Schema.
pub fn root() -> &'static SchemaNode {
    static ROOT: OnceLock<SchemaNode> = OnceLock::new();
    ROOT.get_or_init(|| {
        let schema = declared();
        SchemaNode::read(&schema, &schema)
    })
}

/// A key, a table, or the whole schema.
#[derive(Clone, Debug)]
pub struct SchemaNode {
    /// Its documentation in Markdown, lines joined.
    pub description: String,
    /// When a change takes effect; `None` for tables.
    pub applies: Option<Applies>,
    /// What a change brings about, beside what the keys of a table say; `None` if only they say it.
    pub effects: Option<Effects>,
    /// Its default.
    pub default: Value,
    /// Whether it may be unset.
    pub optional: bool,
    /// The values it accepts.
    pub kind: Kind,
}

/// The values a key accepts.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A table with these keys, in their order.
    Table(Vec<(String, SchemaNode)>),
    /// A table with keys of the operator's choice.
    Map(Box<SchemaNode>),
    /// An array.
    List(Box<SchemaNode>),
    /// One of these words; each with its documentation.
    Choice(Vec<(String, String)>),
    /// Any text.
    Text,
    /// Text that is never shown: a key or a token.
    Secret,
    /// A pattern of names.
    Pattern,
    /// `address:port`.
    SocketAddress,
    /// A whole number within bounds.
    Integer {
        /// The smallest value.
        min: i64,
        /// The largest value.
        max: i64,
    },
    /// `true` or `false`.
    Boolean,
}

/// When a change of a key takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Applies {
    /// At once, on every connection.
    Live,
    /// On connections opened after the change.
    NewConnections,
    /// At the next start.
    Restart,
}

impl Applies {
    /// Returns `live`, `new connections only` or `restart`.
    pub fn name(self) -> &'static str {
        match self {
            Applies::Live => "live",
            Applies::NewConnections => "new connections only",
            Applies::Restart => "restart",
        }
    }
}

impl fmt::Display for Applies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Kind {
    /// Formats the kind for a sentence: "an integer from 1 to 128".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Table(_) | Kind::Map(_) => f.write_str("a table"),
            Kind::List(element) => match &element.kind {
                Kind::Choice(_) => write!(f, "an array, each element {}", element.kind),
                _ => f.write_str("an array of strings"),
            },
            Kind::Choice(words) => {
                f.write_str("one of ")?;
                for (index, (word, _)) in words.iter().enumerate() {
                    write!(f, "{}\"{word}\"", if index > 0 { ", " } else { "" })?;
                }
                Ok(())
            }
            Kind::Text | Kind::Secret => f.write_str("a string"),
            Kind::Pattern => f.write_str("a pattern such as \"room-*\""),
            Kind::SocketAddress => f.write_str("an address with a port such as \"127.0.0.1:8000\""),
            Kind::Integer { min, max: i64::MAX } => write!(f, "an integer not less than {min}"),
            Kind::Integer { min, max } => write!(f, "an integer from {min} to {max}"),
            Kind::Boolean => f.write_str("true or false"),
        }
    }
}

impl SchemaNode {
    /// Returns the keys of a table with fixed keys; empty for other nodes.
    pub fn keys(&self) -> &[(String, SchemaNode)] {
        match &self.kind {
            Kind::Table(keys) => keys,
            _ => &[],
        }
    }

    /// Returns the node of a path such as `client.token`; a map accepts any key.
    pub fn find(&self, dotted: &str) -> Option<&SchemaNode> {
        dotted.split('.').try_fold(self, |node, step| match &node.kind {
            // An array has no keys.
            Kind::List(_) => None,
            _ => node.below(step),
        })
    }

    /// Returns the node of a key or an element.
    pub fn below(&self, step: &str) -> Option<&SchemaNode> {
        match &self.kind {
            Kind::Table(keys) => keys.iter().find(|(key, _)| key == step).map(|(_, node)| node),
            Kind::Map(value) | Kind::List(value) => Some(&**value),
            _ => None,
        }
    }

    /// Returns the node of a pointer, and when a change of it takes effect: as its key or the nearest key above says;
    /// for a table the latest of its keys.
    pub(crate) fn at<'s>(
        &self,
        steps: impl IntoIterator<Item = &'s str>,
    ) -> Option<(&SchemaNode, Applies)> {
        let mut node = self;
        let mut applies = None;
        for step in steps {
            node = node.below(step)?;
            applies = node.applies.or(applies);
        }
        Some((node, applies.unwrap_or_else(|| node.latest())))
    }

    /// Returns what a change of a key brings about: what it says, and what the tables say that it is in.
    pub fn effects_at<'s>(&self, steps: impl IntoIterator<Item = &'s str>) -> Effects {
        let mut effects = self.effects.unwrap_or_default();
        let mut node = self;
        for step in steps {
            let Some(below) = node.below(step) else { break };
            node = below;
            effects.insert(node.effects.unwrap_or_default());
        }
        effects
    }

    fn latest(&self) -> Applies {
        let below =
            self.keys().iter().map(|(_, node)| node.applies.unwrap_or_else(|| node.latest()));
        below.max().unwrap_or(Applies::Live)
    }

    /// Replaces every secret in a value of this node by `***`.
    pub(crate) fn hide(&self, value: &mut Value) {
        match (&self.kind, value) {
            (Kind::Secret, Value::String(secret)) => *secret = Secret::HIDDEN.to_owned(),
            (Kind::Map(node), _) if !node.has_secrets() => {}
            (Kind::Map(node), Value::Object(object)) => {
                object.values_mut().for_each(|value| node.hide(value));
            }
            (_, Value::Object(object)) => {
                for (key, value) in object {
                    if let Some(node) = self.below(key) {
                        node.hide(value);
                    }
                }
            }
            _ => {}
        }
    }

    /// Calls `visit` with each secret in a value of this node, and its path.
    pub(crate) fn each_secret(
        &self,
        path: &Path,
        value: &Value,
        visit: &mut impl FnMut(&Path, &str),
    ) {
        match (&self.kind, value) {
            (Kind::Secret, Value::String(secret)) => visit(path, secret),
            (Kind::Map(node), _) if !node.has_secrets() => {}
            (Kind::List(node), Value::Array(elements)) => {
                for (index, value) in elements.iter().enumerate() {
                    node.each_secret(&path.join(index), value, visit);
                }
            }
            (_, Value::Object(object)) => {
                for (key, value) in object {
                    if let Some(node) = self.below(key) {
                        node.each_secret(&path.join(key), value, visit);
                    }
                }
            }
            _ => {}
        }
    }

    pub(crate) fn has_secrets(&self) -> bool {
        match &self.kind {
            Kind::Secret => true,
            Kind::Table(keys) => keys.iter().any(|(_, node)| node.has_secrets()),
            Kind::Map(node) | Kind::List(node) => node.has_secrets(),
            _ => false,
        }
    }

    /// Reads the constructs that schemars generates for the types of this crate: `$ref`s into `$defs`, `type` (alone or
    /// with `null`), `enum` or `oneOf` of `const`s.
    fn read(schema: &Value, document: &Value) -> SchemaNode {
        let target = match schema["$ref"].as_str().and_then(|at| at.strip_prefix('#')) {
            Some(pointer) => document.pointer(pointer).unwrap_or(&Value::Null),
            None => schema,
        };
        let own = |key: &str| if schema[key].is_null() { &target[key] } else { &schema[key] };
        let effects = own("x-effects").as_str().map(Effects::named);
        let kind = Kind::read(target, document);
        let is_table = matches!(kind, Kind::Table(_));
        SchemaNode {
            description: own("description").as_str().unwrap_or_default().replace('\n', " "),
            applies: effects.filter(|_| !is_table).map(Effects::applies),
            effects,
            default: own("default").clone(),
            optional: target["type"].as_array().is_some_and(|types| types.contains(&"null".into())),
            kind,
        }
    }
}

impl Kind {
    fn read(schema: &Value, document: &Value) -> Kind {
        if let Some(properties) = schema["properties"].as_object() {
            let keys = properties.iter().map(|(k, v)| (k.clone(), SchemaNode::read(v, document)));
            return Kind::Table(keys.collect());
        }
        if let Some(words) = schema["oneOf"].as_array() {
            let text = |value: &Value| value.as_str().unwrap_or_default().replace('\n', " ");
            let word = |one: &Value| (text(&one["const"]), text(&one["description"]));
            return Kind::Choice(words.iter().map(word).collect());
        }
        let types = match &schema["type"] {
            Value::Array(types) => types.first().and_then(Value::as_str),
            one => one.as_str(),
        };
        match (types, schema["format"].as_str()) {
            (Some("object"), _) => {
                Kind::Map(Box::new(SchemaNode::read(&schema["additionalProperties"], document)))
            }
            (Some("array"), _) => {
                Kind::List(Box::new(SchemaNode::read(&schema["items"], document)))
            }
            (Some("boolean"), _) => Kind::Boolean,
            (Some("integer"), format) => Kind::Integer {
                min: schema["minimum"].as_i64().unwrap_or(0),
                max: schema["maximum"].as_i64().unwrap_or(match format {
                    Some("uint8") => i64::from(u8::MAX),
                    Some("uint16") => i64::from(u16::MAX),
                    Some("uint32") => i64::from(u32::MAX),
                    _ => i64::MAX,
                }),
            },
            (_, Some("password")) => Kind::Secret,
            (_, Some("socket-address")) => Kind::SocketAddress,
            (_, Some("name-pattern")) => Kind::Pattern,
            _ => Kind::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each<'a>(path: &str, node: &'a SchemaNode, visit: &mut impl FnMut(&str, &'a SchemaNode)) {
        visit(path, node);
        let mut below =
            |key: &str, node: &'a SchemaNode| each(&format!("{path}.{key}"), node, visit);
        match &node.kind {
            Kind::Table(keys) => keys.iter().for_each(|(key, node)| below(key, node)),
            Kind::Map(node) => below("NAME", node),
            _ => {}
        }
    }

    #[test]
    fn every_key_has_a_doc_and_says_when_it_applies() {
        each("config", root(), &mut |path, node| {
            assert!(node.description.ends_with('.'), "{path} has no doc: {:?}", node.description);
            let is_key = !matches!(node.kind, Kind::Table(_)) && !path.ends_with(".NAME");
            assert_eq!(node.applies.is_some(), is_key, "{path} does not say when it applies");
        });
    }

    #[test]
    fn every_number_has_its_unit_last_in_its_name_or_counts_something() {
        const COUNTS: [&str; 15] = [
            "workers",
            "concurrency",
            "database",
            "node",
            "port",
            "backlog",
            "history_size",
            "weight",
            "broadcast_quantum",
            "sessions_per_turn",
            "stream_replicas",
            "wait_replicas",
            "status",
            "fall",
            "rise",
        ];
        each("config", root(), &mut |path, node| {
            let name = path.rsplit('.').next().unwrap();
            let unit = ["_ms", "_ms_max", "_max", "_slots", "_per_s", "_bits", "_per_million"]
                .iter()
                .any(|unit| name.ends_with(unit));
            let number = matches!(node.kind, Kind::Integer { .. });
            assert!(!number || unit || COUNTS.contains(&name), "{path} does not name its unit");
        });
    }

    #[test]
    fn bounds_come_from_the_schema_or_the_width_of_the_type() {
        let kind = |path| root().find(path).unwrap().kind.to_string();
        assert_eq!(kind("server.workers"), "an integer from 0 to 124");
        assert_eq!(kind("limits.accepts_per_s_max"), "an integer from 0 to 4294967295");
        assert_eq!(kind("limits.outbox_bytes_max"), "an integer from 4096 to 1073741824");
        assert_eq!(
            kind("channel.namespaces.chat.overflow"),
            "one of \"disconnect\", \"drop_oldest\", \"keep_latest\""
        );
    }
}
