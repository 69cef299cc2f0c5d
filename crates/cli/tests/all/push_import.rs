//! `dunlin push import` against the simulator: every token once, however often it is run, and however it ends.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use dunlin_simulate::apns::{Behaviour, Config, Reason, Rule, Simulator};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);
const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/data/apns-key.p8");
/// Pushes under way at once: twice what the streams of a connection carry.
const UNDER_WAY_MAX: usize = 2_000;

/// A simulator, and a directory with a list for it.
struct List {
    simulator: Simulator,
    directory: TempDir,
}

impl List {
    fn new(behaviour: Behaviour, tokens: &str) -> List {
        List::at(Config { behaviour, ..Config::default() }, tokens)
    }

    fn at(config: Config, tokens: &str) -> List {
        let simulator = Simulator::start(config).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let (pem, key) =
            simulator.authority().client_certificate("com.example.app", false).unwrap();
        let list = List { simulator, directory };
        fs::write(list.file("app.pem"), pem + &key).unwrap();
        fs::write(list.file("ca.pem"), list.simulator.ca_pem()).unwrap();
        fs::write(list.file("tokens"), tokens).unwrap();
        list
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
        command.args(["push", "import"]).arg(self.file("tokens"));
        command.args(["--topic", "com.example.app", "--payload", r#"{"aps":{"alert":"hello"}}"#]);
        command.args(["--json", "--address", &self.simulator.addr().to_string()]);
        command.arg("--certificate").arg(self.file("app.pem"));
        command.arg("--roots").arg(self.file("ca.pem")).args(options);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs to its end: the exit code, and the counts.
    fn run(&self, options: &[&str]) -> (i32, Value) {
        finish(&self.command(options).output().unwrap())
    }

    /// Begins a run, and waits until so many have been accepted.
    fn begin(&self, accepted: u64, options: &[&str]) -> Child {
        let before = self.simulator.counts().accepted;
        let child = self.command(options).spawn().unwrap();
        let begun = Instant::now();
        while self.simulator.counts().accepted < before + accepted {
            assert!(begun.elapsed() < TIMEOUT, "it sends");
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }

    /// The lines of each token.
    fn results(&self) -> HashMap<String, Vec<Value>> {
        let mut lines: HashMap<String, Vec<Value>> = HashMap::new();
        for line in fs::read_to_string(self.file("tokens.results")).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let token = line["token"].as_str().unwrap().to_owned();
            lines.entry(token).or_default().push(line);
        }
        lines
    }

    /// How often each token was accepted, by the simulator's own ledger.
    fn accepted(&self) -> HashMap<String, usize> {
        let mut accepted = HashMap::new();
        for entry in self.simulator.ledger().into_iter().filter(|entry| entry.status == 200) {
            *accepted.entry(entry.device_token).or_default() += 1;
        }
        accepted
    }
}

fn finish(output: &Output) -> (i32, Value) {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let code = output.status.code().unwrap_or_else(|| panic!("{out}{err}"));
    (code, serde_json::from_str(&out).unwrap_or_else(|_| panic!("{code}: {out}{err}")))
}

fn tokens(numbers: std::ops::Range<u32>) -> String {
    numbers.map(|n| format!("{n:064x}\n")).collect()
}

#[test]
fn each_token_of_the_file_is_sent_to_once_however_often_it_is_run() {
    let mut text = tokens(0..500);
    text.push_str(&format!("# a comment\n\n{:064x} # again\ndead{:060x}\n", 7, 1));
    let list = List::new(Behaviour::default(), &text);
    let (code, counts) = list.run(&[]);
    assert_eq!((code, &counts["accepted"], &counts["rejected"]), (0, &500.into(), &1.into()));
    assert_eq!((list.simulator.counts().accepted, list.simulator.counts().rejected), (500, 1));
    let results = fs::read_to_string(list.file("tokens.results")).unwrap();
    assert_eq!(results.lines().count(), 501);
    assert!(results.contains(r#""status":410,"reason":"Unregistered","timestamp_ms":"#));

    fs::write(list.file("tokens"), text + &format!("{:064x}\n", 500)).unwrap();
    let (code, counts) = list.run(&[]);
    assert_eq!((code, &counts["accepted"], &counts["passed_over"]), (0, &1.into(), &501.into()));
    assert_eq!(list.simulator.counts().accepted, 501);
    assert!(!list.file("tokens.results.journal").exists(), "nothing is open");
}

#[test]
fn temporarily_refused_push_is_resent_by_the_next_run() {
    for (reason, times) in [
        (Reason::ServiceUnavailable, 200),
        (Reason::InternalServerError, 200),
        (Reason::TooManyRequests, 200),
        (Reason::InvalidProviderToken, 3),
    ] {
        let rule = Rule { token: String::new(), times, reason, ..Rule::defaults().remove(0) };
        let list = List::at(Config { rules: vec![rule], ..Config::default() }, &tokens(0..200));
        // A second: the refusal that would have to be tried again behind it is the outcome.
        let (code, counts) = list.run(&["--timeout", "1"]);
        let found = (code, &counts["to_repeat"], &counts["accepted"]);
        assert_eq!(found, (3, &times.into(), &(200 - times).into()), "{reason:?}: {counts}");
        let (code, counts) = list.run(&[]);
        let found = (code, &counts["accepted"], &counts["passed_over"]);
        assert_eq!(found, (0, &times.into(), &(200 - times).into()), "{reason:?}: {counts}");
        assert!(list.accepted().values().all(|times| *times == 1), "{reason:?}");
    }
}

#[test]
fn a_payload_that_is_refused_and_a_token_that_is_none_have_a_code_of_their_own() {
    let list = List::new(Behaviour::default(), "xyz\n");
    let (code, counts) = list.run(&[]);
    assert_eq!((code, &counts["refused"]), (4, &1.into()));
    assert_eq!(list.run(&[]).1["passed_over"], 1, "it will be none tomorrow");
}

#[test]
fn lines_may_have_a_payload_and_an_id_of_their_own_and_a_rate_is_kept() {
    let id = "123e4567-e89b-12d3-a456-426614174000";
    let text = format!(
        "{{\"token\":\"{:064x}\",\"payload\":{{\"aps\":{{\"badge\":1}}}},\"id\":\"{id}\"}}\n{}",
        1,
        tokens(2..42)
    );
    let list = List::new(Behaviour::default(), &text);
    let begun = Instant::now();
    let (code, counts) = list.run(&["--rate", "40", "--expiration", "3600"]);
    assert_eq!((code, &counts["accepted"]), (0, &41.into()), "{counts}");
    assert!(begun.elapsed() > Duration::from_millis(900), "{:?}", begun.elapsed());
    let ledger = list.simulator.ledger();
    let own = ledger.iter().find(|entry| entry.apns_id == id).unwrap();
    assert_eq!(own.device_token, format!("{:064x}", 1));
    let bodies: HashSet<&str> = ledger.iter().map(|entry| entry.body_sha256.as_str()).collect();
    assert_eq!(bodies.len(), 2);
}

#[test]
fn standard_input_is_a_list_too_and_its_lines_may_name_different_apps() {
    let list = List::new(Behaviour::default(), "");
    let results = list.file("results");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
    command.args(["push", "import", "-", "--json", "--payload", r#"{"aps":{"alert":"hello"}}"#]);
    command.args(["--topic", "com.example.app", "--key", KEY]);
    command.args(["--key-id", "KEY1234567", "--team-id", "TEAM123456"]);
    command.args(["--address", &list.simulator.addr().to_string(), "--roots"]);
    command.arg(list.file("ca.pem")).stdin(Stdio::piped());
    let refused = command.output().unwrap();
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && complaint.contains("--results"), "{complaint}");

    command.arg("--results").arg(&results).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let text =
        format!("{:064x}\n{{\"token\":\"{:064x}\",\"topic\":\"com.example.other\"}}\nxyz\n", 1, 2);
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let (code, counts) = finish(&child.wait_with_output().unwrap());
    let found = (code, &counts["accepted"], &counts["refused"], &counts["results"]);
    let wanted = (4, &2.into(), &1.into(), &results.to_str().unwrap().into());
    assert_eq!(found, wanted, "a token that is none has an exit code of its own: {counts}");
    let topics: HashMap<String, String> = list
        .simulator
        .ledger()
        .into_iter()
        .map(|entry| (entry.device_token, entry.topic))
        .collect();
    assert_eq!(topics[&format!("{:064x}", 1)], "com.example.app");
    assert_eq!(topics[&format!("{:064x}", 2)], "com.example.other");
}

#[test]
fn sigterm_ends_a_run_in_order_and_the_next_one_sends_nothing_twice() {
    let behaviour = Behaviour { rtt_ms: 250, ..Behaviour::default() };
    let list = List::new(behaviour, &tokens(0..20_000));
    // Slow enough that much is left, whenever the signal comes.
    let mut child = list.begin(1_000, &["--rate", "1000"]);
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let (code, counts) = list.run(&[]);
    assert_eq!((code, &counts["possible_duplicates"]), (0, &0.into()), "{counts}");
    let accepted = list.accepted();
    assert_eq!(accepted.len(), 20_000);
    assert!(accepted.values().all(|times| *times == 1));
}

#[test]
fn after_kill_9_what_may_arrive_twice_is_named_and_no_more_than_was_under_way() {
    let behaviour = Behaviour { rtt_ms: 250, ..Behaviour::default() };
    let list = List::new(behaviour, &tokens(0..20_000));
    let kills = 3;
    for _ in 0..kills {
        let mut child = list.begin(500, &["--rate", "1000"]);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let (code, counts) = list.run(&[]);
    assert_eq!(code, 0, "{counts}");
    let (accepted, results) = (list.accepted(), list.results());
    assert_eq!((accepted.len(), results.len()), (20_000, 20_000), "none is missing");
    let marked: HashSet<&String> = results
        .iter()
        .filter(|(_, lines)| lines.iter().any(|line| line["possible_duplicate"] == true))
        .map(|(token, _)| token)
        .collect();
    let twice: HashSet<&String> =
        accepted.iter().filter(|(_, times)| **times > 1).map(|(token, _)| token).collect();
    assert!(twice.is_subset(&marked), "{} twice, {} marked", twice.len(), marked.len());
    assert!(marked.len() <= kills * UNDER_WAY_MAX, "{} marked", marked.len());
    assert!(results.values().all(|lines| lines.len() == 1), "each has one line");
}

#[test]
fn csv_file_is_sent_to_and_a_fault_has_its_line_and_a_named_type_is_not_needed() {
    let device = |n: u32| format!("{n:064x}");
    let text = format!(
        "\u{feff}user,token,payload\r\nada,{},\r\nbob,{},\"{{\"\"aps\"\":{{\"\"content-available\"\":1}}}}\"\r\neve,no token,\r\n",
        device(1),
        device(2)
    );
    let list = List::new(Behaviour::default(), &text);
    let (code, counts) = list.run(&[]);
    assert_eq!((code, &counts["accepted"], &counts["not_sent"]), (4, &2.into(), &1.into()));
    let results = list.results();
    let wrong = &results["no token"][0];
    assert!(wrong["detail"].as_str().unwrap().starts_with("line 4: "), "{wrong}");
    fs::write(list.file("tokens"), "user,token\nada\n").unwrap();
    let output = list.command(&[]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("tokens, line 2: it has 1 columns"), "{said}");
    fs::write(list.file("tokens"), r#"{"provider":"fcm","token":"a"}"#).unwrap();
    let output = list.command(&[]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("line 1") && said.contains("--service-account"), "{said}");
}
