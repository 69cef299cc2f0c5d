//! Warnings: consequences of a change that its author may not expect.

use dunlin_config::{ConfigError, PreparedChange};
use serde_json::{Value, json};

/// Places listed one by one.
const PLACES_MAX: usize = 20;

/// The warnings of a change, as a response has them. `closed`: sessions that it ends.
pub(super) fn of(prepared: &PreparedChange, closed: u64) -> Vec<Value> {
    let (old, new) = (&prepared.base().config, &prepared.snapshot().config);
    let mut warnings = Vec::new();
    let mut warn = |pointer: &str, detail: String, fix: Option<&str>| {
        warnings.push(json!({"pointer": pointer, "detail": detail, "fix": fix}));
    };
    if closed > 0 {
        warn(
            "/client/token",
            format!(
                "{closed} sessions are closed (3005), since the key that authenticated them is removed"
            ),
            Some("have them connect with a token of a configured key"),
        );
    }
    if old.server.admin_addr != new.server.admin_addr {
        let address = new.server.admin_addr;
        let fix = format!("call it there from now on: --admin {address}");
        warn("/server/admin_addr", format!("the admin port is {address}"), Some(&fix));
    }
    if old.server.client_addr != new.server.client_addr {
        let (before, address) = (old.server.client_addr, new.server.client_addr);
        let detail = format!("{before} accepts no connections any more; those that are open stay");
        warn("/server/client_addr", detail, Some(&format!("have clients connect to {address}")));
    }
    let gone = prepared.changes().iter().filter(|change| {
        let namespace = change.pointer.strip_prefix("/channel/namespaces/");
        change.after.is_none() && namespace.is_some_and(|name| !name.contains('/'))
    });
    for change in gone.take(PLACES_MAX) {
        let detail = "its channels are unknown from now on (error 102); subscriptions stay";
        warn(&change.pointer, detail.into(), None);
    }
    let known = new.warnings();
    if !known.is_empty() {
        let before = old.warnings();
        warnings.extend(known.iter().filter(|warning| !before.contains(warning)).map(encoded));
    }
    warnings
}

fn encoded(warning: &ConfigError) -> Value {
    json!({
        "pointer": warning.path.pointer(),
        "detail": warning.message,
        "fix": warning.fix,
    })
}
