//! `dunlin bench cluster` against this very build, in small: what nodes share is a Redis or a NATS.

use std::process::Command;

use dunlin_testkit::server_beside;
use serde_json::Value;

use crate::BENCH;

/// The rows of a small run over this server.
fn run(store: &str) -> Value {
    let dunlin = server_beside(BENCH);
    let output = Command::new(BENCH)
        .args(["cluster", "--program", &dunlin, "--store", store, "--json"])
        .args(["--only", "across", "--only", "presence-at-rest"])
        .args(["--channels", "20", "--publishes", "200", "--rest-s", "4", "--rounds", "1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report[store].is_string(), "its version: {report}");
    report["rows"].clone()
}

#[test]
fn nothing_is_lost_from_node_to_node_and_what_their_server_takes_bears_its_name() {
    for (store, cpu, share) in
        [("redis", "redis_us", "redis_share"), ("nats", "nats_us", "nats_share")]
    {
        let rows = run(store);
        assert_eq!(rows["across"]["lost"], 0, "{rows}");
        assert!(rows["across"][cpu].as_f64().unwrap() > 0.0, "{rows}");
        let at_rest = &rows["presence_at_rest"];
        assert!(at_rest["commands_per_s"].as_f64().unwrap() > 0.0, "its leases: {rows}");
        assert!(at_rest[share].is_number(), "{rows}");
    }
}
