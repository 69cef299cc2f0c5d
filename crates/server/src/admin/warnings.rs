//! Warnings: consequences of a change that its author may not expect.

use dunlin_config::{ChannelOptions as Rules, ConfigError, Pointer, PreparedChange};
use serde_json::{Value, json};

use crate::state::settings::withdraws_subscribing;

/// Most places listed one by one.
const PLACES_MAX: usize = 20;

/// Returns the warnings of a change for its response. `closed`: the number of sessions that it ends, out of `sessions`.
pub(super) fn of(prepared: &PreparedChange, closed: u64, sessions: u64) -> Vec<Value> {
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
    if old.client.anonymous && !new.client.anonymous {
        let detail = "clients that are connected without a token are disconnected (3507)";
        warn("/client/anonymous", detail.into(), None);
    }
    for (pointer, changed) in [
        ("/client/allowed_origins", old.client.allowed_origins != new.client.allowed_origins),
        ("/client/token/audience", old.client.token.audience != new.client.token.audience),
        ("/client/token/issuer", old.client.token.issuer != new.client.token.issuer),
    ] {
        if changed && sessions > 0 {
            let detail = format!("it is asked of new connections; {sessions} sessions stay");
            warn(
                pointer,
                detail,
                Some("end those that must not with `disconnect`, or change the key"),
            );
        }
    }
    let withdraws = |before: Option<&Rules>, after: Option<&Rules>| {
        before.is_some_and(|before| withdraws_subscribing(before, after)) && after.is_some()
    };
    let mut withdrawn = Vec::new();
    if withdraws(Some(&old.channel.without_namespace), Some(&new.channel.without_namespace)) {
        withdrawn.push("/channel/without_namespace".to_owned());
    }
    let namespaces = Pointer::parse("/channel/namespaces").unwrap_or_default();
    let changed = new.channel.namespaces.changes_from(&old.channel.namespaces);
    let of_namespaces = changed
        .filter(|(_, before, after)| withdraws(before.map(|of| &**of), after.map(|of| &**of)));
    withdrawn.extend(
        of_namespaces.take(PLACES_MAX).map(|(name, ..)| namespaces.join(&**name).to_string()),
    );
    for pointer in withdrawn {
        let detail = "subscriptions of clients that may not subscribe any more end (2000)";
        warn(&pointer, detail.into(), None);
    }
    let gone = prepared.changes().iter().filter(|change| {
        let namespace = change.pointer.strip_prefix("/channel/namespaces/");
        change.after.is_none() && namespace.is_some_and(|name| !name.contains('/'))
    });
    for change in gone.take(PLACES_MAX) {
        let detail = "its channels are unknown from now on (error 102); clients' subscriptions to them end (2000)";
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
