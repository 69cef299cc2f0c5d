//! `dunlin program`: what one who writes a program sees.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::path::PathBuf;
use std::process::{Command, Output};

const MODERATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../program/examples/moderate.luau");

fn program(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
    command.arg("program").args(arguments).env("NO_COLOR", "1").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn program_check_prints_hooks_and_the_line_of_an_error() {
    let good = program(&["check", MODERATE]);
    assert!(
        good.status.success() && text(&good.stdout).ends_with("moderate.luau: publish\n"),
        "{good:?}"
    );
    let directory = tempfile::tempdir().unwrap();
    let file: PathBuf = directory.path().join("broken.luau");
    std::fs::write(&file, "return {\n  publish = function(event)\n    if event then\n}").unwrap();
    let bad = program(&["check", file.to_str().unwrap()]);
    assert!(!bad.status.success());
    assert!(text(&bad.stderr).contains("program \"broken\", line 4: "), "{bad:?}");
}

#[test]
fn program_test_runs_the_tests_beside_it_and_fails_with_the_line() {
    let good = program(&["test", MODERATE]);
    assert!(good.status.success() && text(&good.stdout).ends_with("5 passed\n"), "{good:?}");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("p.luau");
    std::fs::write(&file, "return { rpc = function() dunlin.log('asked') return true end }")
        .unwrap();
    let tests = "test('one', function()\n  equal(ask('rpc', {}).decision, 'denied')\nend)";
    std::fs::write(directory.path().join("p_test.luau"), tests).unwrap();
    let bad = program(&["test", file.to_str().unwrap()]);
    assert!(!bad.status.success());
    assert!(text(&bad.stdout).contains("p_test.luau:2: it: granted is not denied"), "{bad:?}");
    assert!(
        text(&bad.stderr).contains("asked") && text(&bad.stderr).contains("1 of 1 tests failed"),
        "{bad:?}"
    );
}

#[test]
fn program_run_prints_a_decision_as_json() {
    let event = r#"{"user":"ann","channel":"chat:room","data":{"text":"see https://spam.example"},"permitted":true}"#;
    let run = program(&["run", MODERATE, "publish", event]);
    assert!(run.status.success(), "{run:?}");
    assert_eq!(
        text(&run.stdout),
        "{\"decision\":\"refused\",\"code\":403,\"reason\":\"no links here\"}\n"
    );
    let no_hook = program(&["run", MODERATE, "connect", "{}"]);
    assert!(text(&no_hook.stderr).contains("has no function `connect`"), "{no_hook:?}");
}

const IRC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../program/examples/irc.luau");

#[test]
fn program_run_passes_the_input_to_a_protocol_and_prints_what_its_client_is_sent() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
    let mut run = command
        .args(["program", "run", IRC, "frame"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = run.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"NICK ann\r\nUSER ann\r\nPING 1\r\n").unwrap();
    drop(input);
    let run = run.wait_with_output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let out = text(&run.stdout);
    assert!(
        out.starts_with(":dunlin 001 ann :Welcome") && out.ends_with("PONG dunlin :1\r\n"),
        "{out}"
    );
    let checked = program(&["check", IRC]);
    assert!(text(&checked.stdout).ends_with("irc.luau: a protocol\n"), "{checked:?}");
}

#[test]
fn settings_on_the_page_of_protocols_are_valid() {
    let page = include_str!("../../../../docs/operating/protocols.md");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let (settings, _) = rest.split_once("```").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("dunlin.toml");
    std::fs::write(&file, settings).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
    let checked = command.args(["config", "check", file.to_str().unwrap()]).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
}
