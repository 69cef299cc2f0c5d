//! `dunlin push import` against servers of other people (scripts/bench/go-server, scripts/bench/netty-server), by their own account
//! of what they have accepted.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]
#![allow(unreachable_pub, dead_code, reason = "shared with the sender's tests")]

#[path = "../../../push/tests/all/others/program.rs"]
mod program;

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use program::Program;
use serde_json::Value;

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(120);
const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/data/apns-key.p8");
const TOKENS: usize = 12_000;

struct List {
    server: Program,
    directory: tempfile::TempDir,
}

impl List {
    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
        command.args(["push", "import"]).arg(self.file("tokens")).args(options);
        command.args(["--topic", "com.example.app", "--payload", r#"{"aps":{"alert":"hello"}}"#]);
        command.args(["--json", "--address", &self.server.address.to_string()]);
        command.args(["--key", KEY, "--key-id", "KEY1234567", "--team-id", "TEAM123456"]);
        command.arg("--roots").arg(self.server.certificate());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn results(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.file("tokens.results")).unwrap_or_default();
        // The last line may be half of one.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Begins a run that is slow enough to be interrupted on any machine, and waits until so many more tokens have a line.
    fn begin(&self, ended: usize) -> Child {
        let before = self.results().len();
        let child = self.command(&["--rate", "500"]).spawn().unwrap();
        let begun = Instant::now();
        while self.results().len() < before + ended {
            assert!(begun.elapsed() < TIMEOUT, "it sends");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    fn run(&self, options: &[&str]) -> (Option<i32>, Value) {
        let output = self.command(options).output().unwrap();
        let (out, error) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
        let counts = serde_json::from_slice(out).unwrap_or_else(|_| panic!("{error}"));
        (output.status.code(), counts)
    }
}

/// Temporary refusals are asked again by the next run; SIGTERM doubles nothing; what kill -9 doubles is named.
fn list_is_finished_once(server: Program) {
    let name = server.name;
    let list = List { server, directory: tempfile::tempdir().unwrap() };
    // 503 at first; later answer times that vary.
    let refused: Vec<String> = (0..200).map(|n| format!("b3{n:062x}\n")).collect();
    fs::write(list.file("tokens"), refused.concat()).unwrap();
    let (code, counts) = list.run(&["--timeout", "1"]);
    assert_eq!((code, &counts["accepted"]), (Some(3), &0.into()), "{name}: {counts}");
    let all = refused.into_iter().chain((0..TOKENS).map(|n| format!("ab{n:062x}\n")));
    fs::write(list.file("tokens"), all.collect::<String>()).unwrap();

    let mut child = list.begin(300);
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3), "{name}");
    let marked = |lines: &[Value]| -> HashSet<String> {
        let marked = lines.iter().filter(|line| line["possible_duplicate"] == true);
        marked.map(|line| line["token"].as_str().unwrap().to_owned()).collect()
    };
    assert!(marked(&list.results()).is_empty(), "{name}");
    let mut child = list.begin(300);
    child.kill().unwrap();
    child.wait().unwrap();

    let (code, counts) = list.run(&[]);
    assert_eq!(code, Some(0), "{name}: {counts}");
    let marked = marked(&list.results());
    let accepted = list.server.accepted();
    assert_eq!(accepted.len(), TOKENS + 200, "{name}: none is missing");
    let twice = accepted.iter().filter(|(_, times)| **times > 1);
    for (path, times) in twice {
        assert!(marked.contains(&path["/3/device/".len()..]), "{name}: {path} {times} times");
    }
    assert!(marked.len() < TOKENS, "{name}: only what was under way is: {}", marked.len());
}

#[test]
fn a_list_is_finished_once_at_gos_server_whatever_ends_its_runs() {
    Program::go().into_iter().for_each(list_is_finished_once);
}

#[test]
fn a_list_is_finished_once_at_nettys_server_whatever_ends_its_runs() {
    Program::netty().into_iter().for_each(list_is_finished_once);
}
