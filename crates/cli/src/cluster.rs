//! `dunlin cluster`: the nodes of a cluster as one of them sees them.

use clap::Subcommand;
use serde_json::Value;

use crate::config::Server;
use crate::error::CliError;
use crate::style;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the nodes: numbers, names, versions, sessions, lag, and when each was last seen
    Status {
        #[command(flatten)]
        server: Server,
    },
}

impl Command {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let Command::Status { server } = self;
        let status = server.get("/cluster")?;
        if server.wants_json() {
            return style::print(&format!("{status:#}\n"));
        }
        style::print(&shown(&status))
    }
}

/// The status for a person.
fn shown(status: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let condition = text(&status["condition"]);
    if condition == "alone" {
        return "this node is not in a cluster; set `cluster.engine` on each node to form one\n"
            .into();
    }
    let mut out = format!(
        "engine {} at {}, prefix {}: ",
        text(&status["engine"]),
        text(&status["servers"]),
        text(&status["prefix"])
    );
    let is_member = condition == "member";
    out += &style::paint(if is_member { style::GOOD } else { style::BAD }, &condition);
    out.push('\n');
    for key in ["detail", "fix"] {
        if let Some(sentence) = status[key].as_str().filter(|sentence| !sentence.is_empty()) {
            out += &format!("  {key}: {sentence}\n");
        }
    }
    let newest = status["settings_revision"].as_u64().unwrap_or_default();
    let heads = [
        "node",
        "name",
        "state",
        "version",
        "revision",
        "settings",
        "sessions",
        "lag",
        "last seen",
    ];
    let mut rows = vec![heads.map(str::to_owned)];
    for node in status["nodes"].as_array().into_iter().flatten() {
        let alive = node["alive"].as_bool().unwrap_or_default();
        let own = if node["node"] == status["node"] { "*" } else { "" };
        rows.push([
            format!("{}{own}", node["node"]),
            text(&node["name"]),
            if alive { "alive" } else { "gone" }.to_owned(),
            text(&node["version"]),
            node["revision"].to_string(),
            settings(node["settings_revision"].as_u64().unwrap_or_default(), newest),
            style::grouped(node["sessions"].as_u64().unwrap_or_default()),
            format!("{} µs", style::grouped(node["lag_us"].as_u64().unwrap_or_default())),
            format!("{:.1} s ago", node["age_ms"].as_f64().unwrap_or_default().max(0.0) / 1e3),
        ]);
    }
    out + &table(&rows)
}

/// How far a node has followed the changes of all nodes' settings.
fn settings(has: u64, newest: u64) -> String {
    match newest.saturating_sub(has) {
        0 => has.to_string(),
        behind => format!("{has}, {behind} behind"),
    }
}

fn table(rows: &[[String; 9]]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; 9] = std::array::from_fn(width);
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        out += cells.collect::<Vec<_>>().join("  ").trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_a_line_and_what_is_wrong_stands_above_them_with_its_fix() {
        let status = json!({
            "condition": "unreachable", "detail": "refused", "fix": "start Redis",
            "engine": "main", "servers": "10.0.0.7:6379", "prefix": "dunlin:cluster", "node": 7, "settings_revision": 12,
            "nodes": [
                {"node": 7, "name": "a", "alive": true, "version": "1.0", "revision": 3, "sessions": 12_000,
                 "lag_us": 240, "age_ms": 1_200, "settings_revision": 12},
                {"node": 4000, "name": "b", "alive": false, "version": "1.0", "revision": 2, "sessions": 0,
                 "lag_us": 0, "age_ms": 61_000},
            ],
        });
        let shown = shown(&status);
        for part in [
            "detail: refused",
            "fix: start Redis",
            "7*",
            "12,000",
            "240 µs",
            "61.0 s ago",
            "0, 12 behind",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert_eq!(shown.lines().filter(|line| line.contains("alive")).count(), 1, "{shown}");
    }
}
