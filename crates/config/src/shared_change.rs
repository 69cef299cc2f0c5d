//! Changes for all nodes of a cluster: their JSON form, and the settings that they must not touch.

use serde_json::{Map, Value, json};

use crate::change::{Change, Operation};
use crate::error::{ConfigError, ConfigErrors};
use crate::path::Path;
use crate::pointer::Pointer;
use crate::snapshot::Snapshot;

/// Settings that differ between nodes; `*` is any one step.
const NODE_SETTINGS: [&[&str]; 7] = [
    &["server", "client_addr"],
    &["server", "admin_addr"],
    &["server", "node"],
    &["server", "name"],
    &["listeners", "*", "addr"],
    &["engines", "*", "addresses"],
    &["cluster", "engine"],
];
/// The secret that a node needs to decrypt such a change.
const SEAL: &[&str] = &["cluster", "secret"];

impl Change {
    /// Returns the change in the form that another node reads with [`Change::from_shared`]. `None` for
    /// [`Change::Restore`], because other nodes do not have the revision; use [`Change::difference`] for it.
    pub fn to_shared(&self) -> Option<Value> {
        Some(match self {
            Change::Put { pointer, value } => json!({ "put": pointer, "value": value }),
            Change::Delete { pointer } => json!({ "delete": pointer }),
            Change::Merge(patch) => json!({ "merge": patch }),
            Change::Patch(operations) => json!({ "patch": operations }),
            Change::Restore(_) => return None,
        })
    }

    /// Parses the output of [`Change::to_shared`].
    ///
    /// # Errors
    /// The change is from a version with other kinds of changes.
    pub fn from_shared(value: &Value) -> Result<Change, ConfigErrors> {
        let pointer = |name: &str| value[name].as_str().map(Pointer::parse).transpose();
        if let Some(pointer) = pointer("put")? {
            return Ok(Change::Put { pointer, value: value["value"].clone() });
        }
        if let Some(pointer) = pointer("delete")? {
            return Ok(Change::Delete { pointer });
        }
        if let Some(patch) = value.get("merge") {
            return Ok(Change::Merge(patch.clone()));
        }
        if let Some(operations) = value.get("patch") {
            return Change::patch(operations.to_string().as_bytes());
        }
        let fix = "run the same version on every node";
        Err(ConfigError::new(Path::root(), "this version does not know such a change")
            .with_fix(fix)
            .into())
    }

    /// Returns the difference between two snapshots as a merge patch.
    pub fn difference(before: &Snapshot, after: &Snapshot) -> Change {
        let mut patch = Value::Object(Map::new());
        for changed in after.changes_from(before) {
            let pointer = Pointer::parse(&changed.pointer).unwrap_or_default();
            let mut at = &mut patch;
            for step in pointer.steps() {
                at = &mut at[step.as_str()];
            }
            *at = changed.after.unwrap_or(Value::Null);
        }
        Change::Merge(patch)
    }

    /// Returns the place of a setting of a single node, if the change could modify one.
    pub fn node_setting(&self) -> Option<Pointer> {
        let of_node = |pointer: &Pointer| {
            let matches = |setting: &&[&str]| {
                // A change of a parent also modifies the setting.
                let mut steps = setting.iter().zip(pointer.steps());
                steps.all(|(of, step)| *of == "*" || *of == step.as_str())
            };
            NODE_SETTINGS.iter().chain([&SEAL]).any(matches).then(|| pointer.clone())
        };
        match self {
            Change::Put { pointer, .. } | Change::Delete { pointer } => of_node(pointer),
            Change::Merge(patch) => leaves(patch, Pointer::root()).iter().find_map(of_node),
            Change::Patch(operations) => operations.iter().find_map(|operation| match operation {
                Operation::Add { path, .. }
                | Operation::Remove { path }
                | Operation::Replace { path, .. }
                | Operation::Copy { path, .. } => of_node(path),
                Operation::Move { from, path } => of_node(from).or_else(|| of_node(path)),
                Operation::Test { .. } => None,
            }),
            Change::Restore(_) => Some(Pointer::root()),
        }
    }
}

/// Returns the places that a merge patch sets: its values that are not objects.
fn leaves(patch: &Value, at: Pointer) -> Vec<Pointer> {
    match patch {
        Value::Object(object) => {
            object.iter().flat_map(|(key, value)| leaves(value, at.join(key))).collect()
        }
        _ => vec![at],
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Config;

    fn put(pointer: &str, value: Value) -> Change {
        Change::Put { pointer: Pointer::parse(pointer).unwrap(), value }
    }

    fn merge(patch: Value) -> Change {
        Change::Merge(patch)
    }

    #[test]
    fn a_change_reaches_another_node_as_it_was_said() {
        let base = Arc::new(Snapshot::new(1, Config::default()).unwrap());
        let patch = br#"[{"op":"add","path":"/channel/namespaces/a-b","value":{"presence":true}},
            {"op":"copy","from":"/channel/namespaces/a-b","path":"/channel/namespaces/c"},
            {"op":"test","path":"/channel/namespaces/c/presence","value":true}]"#;
        for change in [
            put("/channel/namespaces/b", json!({ "join_leave": true })),
            merge(
                json!({ "limits": { "connections_max": 7 }, "client": { "ping_interval_ms": null } }),
            ),
            Change::patch(patch).unwrap(),
            Change::Delete { pointer: Pointer::parse("/limits/connections_max").unwrap() },
        ] {
            let shared = change.to_shared().unwrap().to_string();
            let again = Change::from_shared(&serde_json::from_str(&shared).unwrap()).unwrap();
            let of = |change: &Change| {
                let prepared = base.prepare(change, None).unwrap();
                prepared.snapshot().config.clone()
            };
            assert_eq!(of(&change), of(&again), "{shared}");
        }
        assert!(Change::from_shared(&json!({ "grow": 1 })).is_err());
    }

    #[test]
    fn key_of_a_single_node_is_found_in_every_form_of_a_change() {
        for change in [
            put("/server/client_addr", json!("127.0.0.1:1")),
            put("/server", json!({})),
            put("", json!({})),
            put("/listeners/a/addr", json!("127.0.0.1:1")),
            put("/listeners/a", json!({})),
            put("/cluster/secret", json!("x")),
            merge(json!({ "engines": { "main": { "addresses": ["a:1"] } } })),
            merge(json!({ "engines": { "main": null } })),
            merge(json!({ "server": { "name": "a" } })),
            Change::patch(br#"[{"op":"remove","path":"/cluster/engine"}]"#).unwrap(),
            Change::Delete { pointer: Pointer::parse("/engines/main").unwrap() },
        ] {
            assert!(change.node_setting().is_some(), "{change:?}");
        }
        for change in [
            put("/limits", json!({})),
            put("/server/backlog", json!(5)),
            put("/engines/main/timeout_ms", json!(5)),
            merge(json!({ "engines": { "main": { "timeout_ms": 5 } }, "server": {} })),
            Change::patch(br#"[{"op":"test","path":"/server/name","value":""}]"#).unwrap(),
        ] {
            assert_eq!(change.node_setting(), None, "{change:?}");
        }
    }

    #[test]
    fn a_difference_is_a_merge_patch_that_makes_it() {
        let base = Arc::new(Snapshot::new(1, Config::default()).unwrap());
        let text = json!({
            "limits": { "connections_max": 7 },
            "channel": { "namespaces": { "chat": { "presence": true, "join_leave": true } } },
            "client": { "token": { "hmac_secret": "a secret of thirty-two bytes or so" } },
        });
        let there = base.prepare(&merge(text), None).unwrap();
        for (from, to) in [(&base, there.snapshot()), (there.snapshot(), &base)] {
            let made = from.prepare(&Change::difference(from, to), None).unwrap();
            assert_eq!(made.snapshot().config, to.config);
        }
    }
}
