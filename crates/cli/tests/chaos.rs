//! `dunlin bench chaos` against this very build, in small: nodes and Redis fail while clients move between the nodes, and each
//! message reaches each of them once and in order, or they are notified.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::process::Command;

#[test]
fn whatever_fails_each_message_arrives_once_and_in_order_or_the_client_is_notified() {
    let dunlin = env!("CARGO_BIN_EXE_dunlin");
    let output = Command::new(dunlin)
        .args(["bench", "chaos", "--program", dunlin, "--duration", "15s", "--clients", "60"])
        .args(["--channels", "20", "--rate", "40", "--stay", "3s", "--pause", "1s"])
        .output()
        .unwrap();
    let (said, shown) =
        (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{said}\n{shown}");
}
