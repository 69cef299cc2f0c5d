//! What a person should know of a change, beside that it is in effect.

use dunlin_config::{ConfigError, PreparedChange};
use serde_json::{Value, json};

/// Places warnings one by one.
const PLACES_MAX: usize = 20;

/// Warnings about what a change leads to, as an answer has them. `closed`: sessions that it ends.
pub(super) fn of(prepared: &PreparedChange, closed: u64) -> Vec<Value> {
    let (old, new) = (&prepared.base().config, &prepared.snapshot().config);
    let mut warnings = Vec::new();
    let mut tell = |pointer: &str, detail: String, fix: Option<&str>| {
        warnings.push(json!({"pointer": pointer, "detail": detail, "fix": fix}));
    };
    if closed > 0 {
        tell(
            "/client/token",
            format!("{closed} sessions are closed (3005), for the key that let them in is gone"),
            Some("have them connect with a token of a key that is there"),
        );
    }
    if old.server.admin_addr != new.server.admin_addr {
        let address = new.server.admin_addr;
        let fix = format!("call it there from now on: --admin {address}");
        tell("/server/admin_addr", format!("the admin port is {address}"), Some(&fix));
    }
    if old.server.client_addr != new.server.client_addr {
        let (before, address) = (old.server.client_addr, new.server.client_addr);
        let detail = format!("nobody is let in at {before} any more; who is connected stays");
        tell("/server/client_addr", detail, Some(&format!("have clients connect to {address}")));
    }
    let gone = prepared.changes().iter().filter(|change| {
        let namespace = change.pointer.strip_prefix("/channel/namespaces/");
        change.after.is_none() && namespace.is_some_and(|name| !name.contains('/'))
    });
    for change in gone.take(PLACES_MAX) {
        let detail = "its channels are refused from now on (error 102); who is subscribed stays";
        tell(&change.pointer, detail.into(), None);
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
