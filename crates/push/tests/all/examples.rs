//! The examples, run where no service can be reached: each says why in a sentence and fails.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use std::process::Command;

/// What an example prints with a proxy that does not run; it must fail.
fn complaint(name: &str, arguments: &[&str]) -> String {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // Cargo builds the examples of a package with its tests, beside them.
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.extend(["examples", name]);
    let mut command = Command::new(path);
    let output = command.args(arguments).env("HTTPS_PROXY", format!("http://{nobody}")).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[test]
fn examples_that_reach_no_service_say_so_and_fail() {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    let key = rcgen::KeyPair::generate().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), key.serialize_pem()).unwrap();
    let file = file.path().to_str().unwrap().to_owned();
    let subscription = r#"{"endpoint":"https://web.push.apple.com/x","keys":{
        "p256dh":"BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
        "auth":"BTBZMqHH6r4Tts7J_aSIgg"}}"#;
    let vapid = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw";
    let token = "0".repeat(64);
    let account = format!("{data}/service-account.json");
    let runs = [
        ("apns", vec!["sandbox", &file, "ABC123DEFG", "DEF123GHIJ", "com.example.app", &token]),
        ("fcm", vec![&account, "Hello", "token"]),
        ("web_push", vec![vapid, "mailto:a@b.example", subscription, "Hello"]),
    ];
    std::thread::scope(|scope| {
        for (name, arguments) in &runs {
            scope.spawn(move || {
                let text = complaint(name, arguments);
                assert!(text.contains("not sent: "), "{name}: {text}");
                assert!(text.contains("proxy") || text.contains("refused"), "{name}: {text}");
            });
        }
    });
}

#[test]
fn examples_without_arguments_say_which() {
    for name in ["apns", "fcm", "web_push"] {
        assert!(complaint(name, &[]).contains("write "), "{name}");
    }
}
