//! `dunlin bench webhooks` against a real Dunlin and the backend that it is measured with, which Go's compiler makes.

use std::path::PathBuf;
use std::process::Command;

use dunlin_testkit::{Addresses, server_beside};
use serde_json::Value;

use crate::BENCH;

#[test]
fn every_event_reaches_the_backend_once_and_other_clients_get_their_messages() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let directory = tempfile::tempdir().expect("a directory");
    let receiver = directory.path().join("receiver");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&receiver)
        .arg(".")
        .current_dir(root.join("scripts/bench/go-receiver"))
        .status();
    assert!(built.is_ok_and(|status| status.success()), "go builds the receiver: scripts/packages");

    let dunlin = server_beside(BENCH);
    let at = Addresses::new();
    let output = Command::new(BENCH)
        .args(["webhooks", "--program", &dunlin, "--receiver"])
        .arg(&receiver)
        .args(["--receiver-addr", &at.extra.to_string(), "--admin", &at.admin.to_string()])
        .args(["--url", &format!("ws://{}/connection/websocket", at.client)])
        .args(["--rate", "500", "--time", "1s", "--rounds", "1", "--subscribers", "5", "--json"])
        .output()
        .expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("a line of JSON");

    let rows = found["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4, "two floors, a schedule, as many as go: {said}");
    for row in rows {
        assert_eq!(row["published"], row["delivered"], "{row}");
        assert_eq!((&row["twice"], &row["missed"]), (&0.into(), &0.into()), "{row}");
        assert!(row["latency_us"]["p50"].as_f64().is_some_and(|us| us > 0.0), "{row}");
    }
    // The second before the one that is measured is part of the schedule.
    assert_eq!(rows[2]["published"], 1_000);
    assert!(rows[2]["post_cpu_s_per_10k"].as_f64().is_some_and(|s| s > 0.0), "{}", rows[2]);
    for beside in found["beside"].as_array().expect("both") {
        for round in beside["rounds"].as_array().expect("rounds") {
            assert_eq!((&round["delivered"], &round["closed"]), (&round["expected"], &0.into()));
        }
    }
}
