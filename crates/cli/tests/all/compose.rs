//! What `packaging/cluster` sets for its nodes is what Dunlin knows, and its servers of NATS take their file.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kit::{Addresses, Served};
use serde_json::Value;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/cluster").join(name)
}

/// The settings of the nodes in files of which each is laid over those before.
fn environment(files: &[&str]) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for name in files {
        let text = std::fs::read_to_string(file(name)).unwrap();
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("DUNLIN_")) {
            let (key, value) = line.split_once(": ").unwrap();
            let value = match value.starts_with("${") {
                true => "what whoever starts it has in his environment",
                false => value.trim_matches(['\'', '"']),
            };
            all.push((format!("DUNLIN_{key}"), value.to_owned()));
        }
    }
    all
}

/// What a node runs with.
fn config(files: &[&str]) -> Value {
    let environment = environment(files);
    assert!(environment.len() >= 10, "{environment:?}");
    let environment: Vec<_> = environment.iter().map(|(key, value)| (&**key, &**value)).collect();
    let scratch = tempfile::tempdir().unwrap();
    let node = Served::begin(scratch.path(), Addresses::new(), "", &environment);
    let (status, body) = node.expect("it starts").call("GET", "/config", "").unwrap();
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[test]
fn the_nodes_of_compose_meet_in_redis_or_in_nats() {
    let redis = config(&["compose.yaml"]);
    assert_eq!(redis["engines"]["main"]["addresses"][0], "redis:6379", "{redis:#}");
    let nats = config(&["compose.yaml", "compose.nats.yaml"]);
    let engine = &nats["engines"]["main"];
    assert_eq!((&engine["type"], &engine["stream_replicas"]), (&"nats".into(), &3.into()));
    assert_eq!(engine["addresses"].as_array().unwrap().len(), 3);
    for config in [redis, nats] {
        assert_eq!(config["cluster"]["engine"], "main");
        assert_eq!(config["channel"]["without_namespace"]["engine"], "main");
    }
    let checked = Command::new("nats-server")
        .args(["-t", "-c"])
        .arg(file("nats.conf"))
        .env("SERVER_NAME", "nats1")
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
