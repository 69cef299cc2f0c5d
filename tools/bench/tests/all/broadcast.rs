//! A broadcast by more workers than the machine has cores, from publisher to the last client.

use std::process::Command;

use dunlin_testkit::{Addresses, server_beside};
use serde_json::Value;

use crate::BENCH;

const WORKERS: usize = 8;
const SUBSCRIBERS: u64 = 1_200;
const PUBLISHES: u64 = 40;

/// Each worker has more subscribers than a quantum, so that all of them broadcast by turns.
#[test]
fn workers_that_take_turns_leave_nobody_out() {
    let Addresses { client, admin, .. } = Addresses::new();
    let dunlin = server_beside(BENCH);
    let server = format!("{dunlin} serve --client {client} --admin {admin} --workers {WORKERS}");
    let output = Command::new(BENCH)
        .args(["fanout", "--mode", "one", "--rounds", "1", "--json", "--channel", "c"])
        .args(["--subscribers", &SUBSCRIBERS.to_string(), "--publishes", &PUBLISHES.to_string()])
        .args(["--url", &format!("ws://{client}/connection/websocket"), "--cmd", &server])
        .output()
        .expect("the binary runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let report: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    let ours = &report["contenders"][0];
    assert_eq!(ours["complete"], SUBSCRIBERS, "{report}");
    assert_eq!(ours["rounds"][0]["messages"], SUBSCRIBERS * PUBLISHES, "{report}");
}
