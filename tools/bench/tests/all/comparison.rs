//! `scripts/bench/comparison` with this build: what it measures agrees with what can be computed.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::BENCH;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/bench/comparison")
}

#[test]
fn examples_in_the_script_hold() {
    let code = "import doctest, importlib.machinery, sys, types\n\
                script = types.ModuleType('comparison')\n\
                importlib.machinery.SourceFileLoader('comparison', sys.argv[1]).exec_module(script)\n\
                sys.exit(doctest.testmod(script).failed)";
    let output = Command::new("python3").args(["-Bc", code]).arg(script()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The server stalls for a second, and what the schedule's requests wait follows from that.
#[test]
fn latencies_of_a_server_that_stalls_are_those_that_are_computed() {
    let bench = Path::new(BENCH).parent().unwrap().display();
    let path = format!("{bench}:{}", std::env::var("PATH").unwrap());
    let output = Command::new(script())
        .args(["omission", "--server-core", "0", "--core", "0"])
        .env("PATH", path)
        .output()
        .unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).expect(&reported);
    assert_eq!(report["benchmark"], "http-omission");
    assert!(report["host"]["command"].as_str().unwrap().starts_with("scripts/bench/comparison"));
    assert_eq!(report["rows"].as_array().unwrap().len(), 5, "{report}");
    // How well they agree depends on what else runs here; that they are of the stall does not.
    assert!(report["rows"][2]["measured_us"].as_f64().unwrap() > 500_000.0, "{report}");
}
