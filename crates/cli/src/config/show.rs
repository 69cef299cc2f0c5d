//! Formats settings and changes for people: like `git diff`, in TOML.

use std::fmt::Write;

use dunlin_config::Pointer;
use serde_json::Value;

use crate::error::CliError;
use crate::style::{BAD, BOLD, DIM, GOOD, LINK, WARN, grouped, paint};

/// Formats a single value as it is, or a table as TOML.
pub(super) fn value(value: &Value) -> Result<String, CliError> {
    Ok(match value {
        Value::Object(_) => toml::to_string(&set_only(value))?,
        Value::String(text) => format!("{text}\n"),
        Value::Null => format!("{}\n", paint(DIM, "not set")),
        other => format!("{other}\n"),
    })
}

/// Removes keys that are not set, because TOML has no null.
fn set_only(value: &Value) -> Value {
    match value {
        Value::Object(object) => object
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), set_only(value)))
            .collect(),
        other => other.clone(),
    }
}

/// Describes what a change did, or would do.
pub(super) fn outcome(answer: &Value, dry_run: bool) -> String {
    let mut out = String::new();
    let number = |name: &str| answer[name].as_u64();
    let changes = answer["changes"].as_array();
    if let Some(changes) = changes {
        out.push_str(&diff(changes));
    }
    let count = changes.map(|changes| changes.len() as u64).or(number("changes")).unwrap_or(0);
    let revision = number("revision").unwrap_or(0);
    let keys = if count == 1 { "change" } else { "changes" };
    if count == 0 {
        let _ = writeln!(out, "Nothing to change; the revision is {revision}.");
    } else if dry_run {
        let count = grouped(count);
        let _ = writeln!(out, "{count} {keys}; nothing is done yet, the revision is {revision}.");
        sessions(&mut out, &answer["sessions"]);
    } else {
        let done = paint(GOOD, format_args!("Revision {revision}"));
        let _ = write!(out, "{done}, {} {keys}; every worker runs it", grouped(count));
        let durable = answer["durable"].as_bool() == Some(true);
        let _ = writeln!(out, "{}.", if durable { ", and it is safe on the disk" } else { "" });
    }
    waits(&mut out, answer);
    for node in list(&answer["nodes"]) {
        let name = node["name"].as_str().unwrap_or_default();
        let outcome = node["outcome"].as_str().unwrap_or_default();
        let runs = matches!(outcome, "applied" | "unchanged");
        let outcome = paint(if runs { GOOD } else { WARN }, outcome.replace('_', " "));
        let revision = node["revision"].as_u64().map(|of| format!(", revision {of}"));
        let problem = &node["problem"];
        let why = problem["errors"][0]["detail"].as_str().or(problem["detail"].as_str());
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        let _ = writeln!(out, "  {name}: {outcome}{}{why}", revision.unwrap_or_default());
    }
    for warning in list(&answer["warnings"]) {
        let path = dotted(warning["pointer"].as_str().unwrap_or_default());
        let detail = warning["detail"].as_str().unwrap_or_default();
        let fix = warning["fix"].as_str().map(|fix| format!("; {fix}")).unwrap_or_default();
        let _ = writeln!(out, "{} {path}: {detail}{fix}", paint(WARN, "warning:"));
    }
    out
}

/// Iterates over the elements of an array; over nothing if it is no array.
fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Appends how many sessions are affected.
fn sessions(out: &mut String, sessions: &Value) {
    let number = |name: &str| sessions[name].as_u64().filter(|count| *count > 0);
    if let (Some(affected), Some(total)) = (number("affected"), number("total")) {
        let (affected, total) = (grouped(affected), grouped(total));
        let _ = writeln!(out, "It concerns {affected} of {total} sessions.");
    }
    for place in list(&sessions["by"]) {
        let path = dotted(place["pointer"].as_str().unwrap_or_default());
        let counts = ["sessions", "subscriptions", "connections"];
        let found = counts.into_iter().find_map(|name| Some((name, place[name].as_u64()?)));
        let Some((name, count)) = found else { continue };
        let closed = if place["closed"] == true { ", which are closed" } else { "" };
        let _ = writeln!(out, "  {path}: {} {name}{closed}", grouped(count));
    }
    if let Some(closed) = number("closed") {
        let reported = format!("It would close {} connections.", grouped(closed));
        let _ = writeln!(out, "{}", paint(WARN, reported));
    }
    if let Some(silent) = sessions["unresponsive_workers"].as_array() {
        let _ = writeln!(out, "{} workers did not count in time.", silent.len());
    }
}

/// Appends the changes that do not take effect at once.
fn waits(out: &mut String, answer: &Value) {
    let restart: Vec<_> =
        list(&answer["restart_needed"]).filter_map(Value::as_str).map(dotted).collect();
    if !restart.is_empty() {
        let _ = writeln!(
            out,
            "{} {} at the next start: restart the server.",
            restart.join(", "),
            if restart.len() == 1 { "takes effect" } else { "take effect" }
        );
    }
    for key in list(&answer["new_connections_only"]) {
        let key = dotted(key.as_str().unwrap_or_default());
        let _ = writeln!(out, "{key} holds for connections opened from now on.");
    }
    if list(&answer["changes"]).any(|change| change["applies"] == "new connections only") {
        out.push_str("Connections that are open keep what they had where it says so.\n");
    }
}

/// Formats changes as removed and added lines.
pub(super) fn diff(changes: &[Value]) -> String {
    let mut out = String::new();
    for change in changes {
        let path = dotted(change["pointer"].as_str().unwrap_or_default());
        let applies = match change["applies"].as_str() {
            None | Some("live") => String::new(),
            Some(applies) => format!("  {}", paint(DIM, format_args!("# {applies}"))),
        };
        let _ = writeln!(out, "{}{applies}", paint(BOLD, &path));
        for (sign, style, value) in [('-', BAD, &change["before"]), ('+', GOOD, &change["after"])] {
            // Null means not set: there is no line on that side.
            for line in lines(value) {
                let _ = writeln!(out, "{}", paint(style, format_args!("{sign} {line}")));
            }
        }
    }
    out
}

fn lines(value: &Value) -> Vec<String> {
    match value {
        Value::Null => Vec::new(),
        Value::Object(object) if object.is_empty() => vec!["{} (all defaults)".to_owned()],
        Value::Object(_) => {
            let toml = toml::to_string(&set_only(value)).unwrap_or_else(|_| value.to_string());
            toml.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
        }
        other => vec![other.to_string()],
    }
}

/// Formats a pointer as a TOML key.
fn dotted(pointer: &str) -> String {
    match Pointer::parse(pointer) {
        Ok(pointer) if pointer.is_root() => "everything".to_owned(),
        Ok(pointer) => pointer.path().to_string(),
        Err(_) => pointer.to_owned(),
    }
}

/// Formats a line for each revision, newest first.
pub(super) fn revisions(answer: &Value) -> String {
    let mut out = String::new();
    let rows: Vec<[String; 5]> = list(&answer["revisions"])
        .map(|revision| {
            let text = |name: &str| revision[name].as_str().unwrap_or_default().to_owned();
            let who = match (text("who"), text("from")) {
                (who, from) if from.is_empty() => who,
                (who, from) if who.is_empty() => from,
                (who, from) => format!("{who} ({from})"),
            };
            let changes = revision["changes"].as_array().map(|changes| changes.len() as u64);
            let changes = changes.or(revision["changes"].as_u64()).unwrap_or(0);
            let number = revision["revision"].as_u64().unwrap_or(0).to_string();
            [number, text("when"), grouped(changes), who, text("comment")]
        })
        .collect();
    let names = ["revision", "when", "changes", "who", "why"];
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([names[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..names.len()).map(width).collect();
    let line = |cells: [&str; 5]| {
        let [number, when, changes, who, why] = cells;
        let [a, b, c, d, _] = widths[..] else { return String::new() };
        format!("{number:>a$}  {when:<b$}  {changes:>c$}  {who:<d$}  {why}").trim_end().to_owned()
    };
    let _ = writeln!(out, "{}", paint(DIM, line(names)));
    for row in &rows {
        let _ = writeln!(out, "{}", line(row.each_ref().map(String::as_str)));
    }
    let oldest = answer["oldest"].as_u64().unwrap_or(0);
    let kept = format!("Kept from {oldest} on. `dunlin config restore N` goes back to one.");
    let _ = writeln!(out, "{}", paint(DIM, kept));
    out
}

/// Formats one revision with its changes.
pub(super) fn revision(answer: &Value) -> String {
    let text = |name: &str| answer[name].as_str().unwrap_or_default();
    let number = answer["revision"].as_u64().unwrap_or(0);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}  {}  {} {}",
        paint(LINK, format_args!("revision {number}")),
        text("when"),
        text("who"),
        paint(DIM, text("from"))
    );
    if !text("comment").is_empty() {
        let _ = writeln!(out, "    {}", text("comment"));
    }
    if let Some(changes) = answer["changes"].as_array() {
        out.push_str(&diff(changes));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn a_dry_run_is_reported_as_a_diff_with_what_waits() {
        let answer = json!({"revision": 7, "sessions": {"total": 9, "closed": 3, "affected": 5, "by": [
                {"pointer": "/api/keys/old", "sessions": 3, "closed": true},
                {"pointer": "/channel/namespaces/a.b", "subscriptions": 1200},
            ]},
            "restart_needed": ["/server/workers"], "changes": [
            {"op": "replace", "pointer": "/client/ping_interval_ms", "before": 25000, "after": 10000,
             "applies": "new connections only"},
            {"op": "add", "pointer": "/channel/namespaces/a.b", "after": {"presence": true}, "applies": "live"},
            {"op": "remove", "pointer": "/api/keys/old", "before": "***", "applies": "live"},
            {"op": "replace", "pointer": "/server/workers", "before": 0, "after": 2, "applies": "restart"},
        ]});
        assert_eq!(
            plain(&outcome(&answer, true)),
            "client.ping_interval_ms  # new connections only\n- 25000\n+ 10000\n\
             channel.namespaces.\"a.b\"\n+ presence = true\n\
             api.keys.old\n- \"***\"\n\
             server.workers  # restart\n- 0\n+ 2\n\
             4 changes; nothing is done yet, the revision is 7.\n\
             It concerns 5 of 9 sessions.\n  \
             api.keys.old: 3 sessions, which are closed\n  \
             channel.namespaces.\"a.b\": 1,200 subscriptions\n\
             It would close 3 connections.\n\
             server.workers takes effect at the next start: restart the server.\n\
             Connections that are open keep what they had where it says so.\n"
        );
        let done = json!({"revision": 8, "previous": 7, "changes": 1, "durable": true});
        assert_eq!(
            plain(&outcome(&done, false)),
            "Revision 8, 1 change; every worker runs it, and it is safe on the disk.\n"
        );
        let late = json!({"revision": 8, "changes": 1, "new_connections_only": ["/client/ping_interval_ms"],
            "warnings": [{"pointer": "/server/admin_addr", "detail": "it moved", "fix": "go there"}]});
        assert_eq!(
            plain(&outcome(&late, false)),
            "Revision 8, 1 change; every worker runs it.\n\
             client.ping_interval_ms holds for connections opened from now on.\n\
             warning: server.admin_addr: it moved; go there\n"
        );
        let same = json!({"revision": 8, "previous": 8, "changes": 0});
        assert_eq!(plain(&outcome(&same, false)), "Nothing to change; the revision is 8.\n");
    }

    #[test]
    fn a_value_is_printed_alone_and_a_table_as_toml() {
        assert_eq!(value(&json!(25000)).unwrap(), "25000\n");
        assert_eq!(value(&json!("disconnect")).unwrap(), "disconnect\n");
        let table = json!({"a": 1, "b": null, "c": {"d": "x"}});
        assert_eq!(value(&table).unwrap(), "a = 1\n\n[c]\nd = \"x\"\n");
    }

    #[test]
    fn revisions_stand_in_columns() {
        let answer = json!({"current": 12, "oldest": 3, "revisions": [
            {"revision": 12, "when": "2026-11-21T13:00:00Z", "who": "ada@laptop", "from": "127.0.0.1:4", "comment": "faster pings", "changes": 1},
            {"revision": 9, "when": "2026-11-21T12:00:00Z", "who": "start", "from": "", "comment": "", "changes": 1200},
        ]});
        assert_eq!(
            plain(&revisions(&answer)),
            "revision  when                  changes  who                       why\n      \
             12  2026-11-21T13:00:00Z        1  ada@laptop (127.0.0.1:4)  faster pings\n       \
             9  2026-11-21T12:00:00Z    1,200  start\n\
             Kept from 3 on. `dunlin config restore N` goes back to one.\n"
        );
    }
}
