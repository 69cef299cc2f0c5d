//! `dunlin bench abuse` against this very build: what ordinary clients notice of every attack, in small.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::process::Command;

use dunlin_testkit::{Addresses, server_beside};

const BENCH: &str = env!("CARGO_BIN_EXE_dunlin-bench");

#[test]
fn attacks_cost_those_who_carry_them_out_and_nobody_else() {
    let dunlin = server_beside(BENCH);
    let at = Addresses::new();
    let output = Command::new(BENCH)
        .args(["abuse", "--program", &dunlin, "--admin", &at.admin.to_string()])
        .args(["--url", &format!("ws://{}/connection/websocket", at.client)])
        .args(["--short", "--scale", "0.02", "--clients", "100", "--time", "500ms"])
        .output()
        .unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{reported}");
}
