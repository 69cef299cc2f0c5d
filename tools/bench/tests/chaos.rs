//! `dunlin bench chaos` against this very build, in small: nodes, servers and links fail while clients move between the nodes, and each
//! message reaches each of them once and in order, or they are notified.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::process::Command;

use dunlin_testkit::server_beside;

const BENCH: &str = env!("CARGO_BIN_EXE_dunlin-bench");

/// A small run with these options, in which nothing may be wrong.
fn run(options: &[&str]) {
    let dunlin = server_beside(BENCH);
    let output = Command::new(BENCH)
        .args(["chaos", "--program", &dunlin, "--clients", "60", "--channels", "20"])
        .args(["--polls", "12", "--streams", "12", "--rate", "40", "--stay", "2s", "--pause", "1s"])
        .args(options)
        .output()
        .unwrap();
    let (said, shown) =
        (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{said}\n{shown}");
}

#[test]
fn faults_lose_no_message_or_notify_the_client() {
    run(&["--duration", "15s"]);
}

/// What is written to a primary that nobody replicates is lost when a replica takes its place; who saw none of it is notified, too.
#[test]
fn sentinel_failover_notifies_clients_of_lost_messages() {
    run(&["--layout", "sentinel", "--duration", "1s", "--only", "primary-split"]);
}

#[test]
fn cluster_failover_notifies_clients_of_lost_messages() {
    run(&["--layout", "cluster", "--duration", "5s", "--only", "primary-split"]);
}

#[test]
fn moving_slots_lose_no_message() {
    run(&["--layout", "cluster", "--duration", "5s", "--only", "slots-moved"]);
}

/// Nobody is answered `recovered: false`: clients of the node that goes recover at another, with their offsets.
#[test]
fn nodes_are_restarted_in_turn_with_other_settings_and_everybody_recovers() {
    run(&["--duration", "1s", "--only", "nodes-rolled"]);
}

#[test]
fn faults_of_nats_lose_no_message_or_notify_the_client() {
    run(&["--layout", "nats", "--duration", "8s"]);
}

/// Nobody is answered `recovered: false`: a majority of the servers has what was acknowledged.
#[test]
fn new_nats_leader_loses_no_message() {
    run(&["--layout", "nats-cluster", "--duration", "5s", "--only", "leader-moved"]);
}
