//! `dunlin-bench apns bench` against a server that it does not trust.

use std::process::Command;

use dunlin_simulate::apns::Simulator;

use crate::BENCH;

#[test]
fn a_bench_of_a_server_that_is_not_trusted_says_so_instead_of_measuring_nothing() {
    let simulator = Simulator::start(Default::default()).unwrap();
    let roots =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/push/tests/certificates/valid.pem");
    let address = simulator.addr().to_string();
    let output = Command::new(BENCH)
        .args(["apns", "bench", "--server", &address, "--roots", roots])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("server: no connection:") && error.contains("certificate"), "{error}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("/s"), "no row");
}
