//! A key as an argument: any text is accepted; shells complete the known keys.

use std::ffi::OsStr;
use std::sync::OnceLock;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command};
use dunlin_config::schema::{self, Kind, SchemaNode};

/// Accepts any text: the server validates keys and suggests corrections. Completion scripts list the keys of the
/// schema.
#[derive(Clone)]
pub(super) struct KeyParser;

impl TypedValueParser for KeyParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        static KEYS: OnceLock<Vec<String>> = OnceLock::new();
        let keys = KEYS.get_or_init(|| {
            let mut keys = Vec::new();
            collect(schema::root(), "", &mut keys);
            keys
        });
        Some(Box::new(keys.iter().map(|key| PossibleValue::new(key.as_str()))))
    }
}

/// Collects every table and key of the schema, dotted. Keys within tables whose names the operator chooses are unknown.
fn collect(node: &'static SchemaNode, path: &str, keys: &mut Vec<String>) {
    for (key, below) in node.keys() {
        let dotted = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if matches!(below.kind, Kind::Table(_)) {
            collect(below, &dotted, keys);
        }
        keys.push(dotted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_are_reported_every_key_and_any_text_is_taken() {
        let reported: Vec<String> =
            KeyParser.possible_values().unwrap().map(|key| key.get_name().to_owned()).collect();
        for key in ["client", "client.ping_interval_ms", "channel.namespaces", "log.level"] {
            assert!(reported.iter().any(|reported| reported == key), "{key}");
        }
        let command = Command::new("get").arg(Arg::new("key").value_parser(KeyParser));
        let matches = command.try_get_matches_from(["get", "channel.namespaces.chat"]).unwrap();
        assert_eq!(matches.get_one::<String>("key").unwrap(), "channel.namespaces.chat");
    }
}
