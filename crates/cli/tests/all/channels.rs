//! `dunlin apns channels` against the simulator.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::path::Path;
use std::process::Command;

use dunlin_simulate::apns::{Config, Simulator};

const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/data/apns-key.p8");

/// What `dunlin apns` says, and whether it is content.
fn apns(simulator: &Simulator, ca: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .arg("apns")
        .args(arguments)
        .args(["--topic", "com.example.app", "--key", KEY])
        .args(["--key-id", "KEY1234567", "--team-id", "TEAM123456"])
        .args(["--address", &simulator.addr().to_string()])
        .arg("--roots")
        .arg(ca)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn a_channel_is_made_listed_shown_sent_to_and_deleted() {
    let simulator = Simulator::start(Config::default()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, simulator.ca_pem()).unwrap();
    let apns = |arguments: &[&str]| apns(&simulator, &ca, arguments);
    let content = |arguments: &[&str]| {
        let (content, reported) = apns(arguments);
        assert!(content, "{reported}");
        reported.trim().to_owned()
    };
    assert_eq!(content(&["channels", "list"]), "");
    let plain = content(&["channels", "create"]);
    let kept = content(&["channels", "create", "--store"]);
    let listed = content(&["channels", "list"]);
    assert!(listed.contains(&plain) && listed.contains(&kept) && plain != kept, "{listed}");
    assert!(content(&["channels", "show", &plain]).contains("nothing is kept"));
    assert!(content(&["channels", "show", &kept]).contains("most recent"));

    let goal = r#"{"aps": {"timestamp": 7, "event": "update", "content-state": {"goals": 1}}}"#;
    let send = ["send", "--channel", &plain, "--type", "liveactivity", "--payload", goal];
    assert!(content(&send).starts_with("accepted"));
    assert!(content(&["channels", "delete", &plain]).contains("deleted"));
    assert_eq!(content(&["channels", "list"]), kept);
    for gone in [&send[..], &["channels", "show", &plain], &["channels", "delete", &plain]] {
        let (content, reported) = apns(gone);
        assert!(!content && reported.contains("ChannelNotRegistered"), "{reported}");
    }
}
