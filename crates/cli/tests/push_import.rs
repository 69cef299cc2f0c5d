//! `dunlin push import` against the simulator: every token once, however often it is run.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::path::Path;
use std::process::{Command, Output};

use dunlin_simulate::apns::{Config, Simulator};

fn import(simulator: &Simulator, directory: &Path) -> Output {
    let file = |name: &str| directory.join(name).into_os_string();
    let (pem, key) = simulator.authority().client_certificate("com.example.app", false).unwrap();
    std::fs::write(directory.join("app.pem"), pem + &key).unwrap();
    std::fs::write(directory.join("ca.pem"), simulator.ca_pem()).unwrap();
    Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["push", "import"])
        .arg(file("tokens"))
        .args(["--topic", "com.example.app", "--payload", r#"{"aps":{"alert":"hello"}}"#])
        .args(["--address", &simulator.addr().to_string()])
        .arg("--certificate")
        .arg(file("app.pem"))
        .arg("--roots")
        .arg(file("ca.pem"))
        .output()
        .unwrap()
}

#[test]
fn each_token_of_the_file_is_sent_to_once_however_often_it_is_run() {
    let simulator = Simulator::start(Config::default()).unwrap();
    let directory = std::env::temp_dir().join(format!("dunlin-import-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let mut tokens: String = (0..500).map(|n| format!("{n:064x}\n")).collect();
    tokens.push_str(&format!("# a comment\n\n{:064x} # again\ndead{:060x}\n", 7, 1));
    std::fs::write(directory.join("tokens"), &tokens).unwrap();

    let first = import(&simulator, &directory);
    let told = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(first.status.success(), "{told}{}", String::from_utf8_lossy(&first.stderr));
    assert!(told.contains("accepted 500") && told.contains("rejected 1"), "{told}");
    assert_eq!((simulator.counts().accepted, simulator.counts().rejected), (500, 1));
    let results = std::fs::read_to_string(directory.join("tokens.results")).unwrap();
    assert_eq!(results.lines().count(), 501);
    assert!(results.contains(r#""status":410,"reason":"Unregistered","timestamp_ms":"#));

    std::fs::write(directory.join("tokens"), tokens + &format!("{:064x}\n", 500)).unwrap();
    let second = import(&simulator, &directory);
    let told = String::from_utf8_lossy(&second.stdout).into_owned();
    assert!(second.status.success(), "{told}{}", String::from_utf8_lossy(&second.stderr));
    assert!(told.contains("accepted 1") && told.contains("501 had an answer before"), "{told}");
    assert_eq!(simulator.counts().accepted, 501);
    std::fs::remove_dir_all(&directory).unwrap();
}
