//! `dunlin bench http`, `serve`, `delay` and `ledger` as a person at a shell runs them, against each other.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A server or proxy that ends with its test.
struct Running {
    child: Child,
    address: String,
}

impl Running {
    /// `dunlin bench serve` with more options, on a port of its own.
    fn serve(options: &[&str]) -> Running {
        let address = free_address();
        let mut arguments = vec!["bench", "serve", "--listen", &address];
        arguments.extend(options);
        Running::start(&arguments, &address)
    }

    fn start(arguments: &[&str], address: &str) -> Running {
        let mut child = Command::new(env!("CARGO_BIN_EXE_dunlin"))
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        // Its first line says that it listens.
        let mut line = String::new();
        let stderr = child.stderr.take().expect("a pipe");
        BufReader::new(stderr).read_line(&mut line).expect("a line");
        assert!(line.contains(address), "{line}");
        Running { child, address: address.to_owned() }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

fn scratch(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("dunlin-bench-http-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    directory.join(name)
}

fn http(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["bench", "http"])
        .args(arguments)
        .output()
        .expect("the binary runs")
}

/// Runs it with `--json`: the object, and whether all was well.
fn load(arguments: &[&str]) -> (Value, bool) {
    let output = http(&[arguments, &["--json"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    let value = serde_json::from_str(line);
    let value = value.unwrap_or_else(|error| {
        panic!("{error}: {line}\n{}", String::from_utf8_lossy(&output.stderr))
    });
    (value, output.status.success())
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"))
}

/// Every request that was begun ended exactly once.
fn assert_each_ended_once(value: &Value, requests: u64) {
    let ends: u64 = ["answered", "failed", "uncertain", "unanswered"]
        .map(|key| number(value, key))
        .iter()
        .sum();
    assert_eq!(ends, requests, "{value}");
}

#[test]
fn pipelined_requests_are_answered_counted_and_timed() {
    let server = Running::serve(&[]);
    let (value, well) = load(&[
        &server.url("/hello"),
        "-c",
        "20",
        "-p",
        "50",
        "-n",
        "30000",
        "-t",
        "2",
        "--check-id",
    ]);
    assert!(well, "{value}");
    assert_eq!((number(&value, "answered"), number(&value, "wrong")), (30_000, 0));
    assert_eq!(value["statuses"]["200"], 30_000);
    assert!(value["requests_per_second"].as_f64().expect("a number") > 0.0);
    let timeline: u64 = value["timeline"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|moment| number(moment, "answered"))
        .sum();
    let histogram: u64 = value["histogram"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|step| step[1].as_u64().expect("a count"))
        .sum();
    assert_eq!((timeline, histogram), (30_000, 30_000));
}

#[test]
fn a_server_that_closes_in_every_way_answers_each_get_exactly_once_and_both_ledgers_agree() {
    for how in ["--close-after 7", "--drop-after 7", "--reset-after 7", "--reset-one-in 50"] {
        let (log, ledger) = (scratch("server.log"), scratch("client.ledger"));
        let _ = std::fs::remove_file(&log);
        let (log, ledger) = (log.to_str().expect("UTF-8"), ledger.to_str().expect("UTF-8"));
        let mut options: Vec<&str> = how.split(' ').collect();
        options.extend(["--log", log]);
        let server = Running::serve(&options);
        let (value, well) = load(&[
            &server.url("/hello"),
            "-c",
            "10",
            "-p",
            "20",
            "-n",
            "3000",
            "--check-id",
            "--ledger",
            ledger,
        ]);
        assert!(well, "{how}: {value}");
        assert_eq!(number(&value, "answered"), 3000, "{how}");
        let check = Command::new(env!("CARGO_BIN_EXE_dunlin"))
            .args([
                "bench",
                "ledger",
                "--client",
                ledger,
                "--server",
                log,
                "--requests",
                "3000",
                "--json",
            ])
            .output()
            .expect("the binary runs");
        assert!(check.status.success(), "{how}: {}", told(&check));
        let agreement: Value = serde_json::from_slice(&check.stdout).expect("JSON");
        assert_eq!(number(&agreement, "agreed"), 3000, "{how}");
        if how.starts_with("--close") {
            // What said that it closes had not done the rest: nothing is done twice.
            assert_eq!(number(&agreement, "done_twice"), 0, "{agreement}");
        }
    }
}

#[test]
fn a_post_behind_a_silent_close_is_uncertain_and_not_sent_again_unless_it_may_be() {
    let server = Running::serve(&[]);
    let url = server.url("/broken/nothing");
    let (value, well) = load(&[&url, "-X", "POST", "--body", "{\"n\":{n}}", "-c", "1", "-n", "3"]);
    assert!(!well);
    assert_eq!((number(&value, "uncertain"), number(&value, "resent")), (3, 0), "{value}");

    let refused = http(&[&url, "-X", "POST", "-p", "10"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(told(&refused).contains("--idempotent"), "{}", told(&refused));

    let url = server.url("/drop-after/3");
    let (value, well) =
        load(&[&url, "-X", "POST", "--idempotent", "-p", "10", "-c", "2", "-n", "30"]);
    assert!(well && number(&value, "resent") > 0, "{value}");
    assert_eq!(number(&value, "answered"), 30);
}

#[test]
fn every_bad_answer_is_an_error_of_its_kind_and_given_to_no_wrong_request() {
    let server = Running::serve(&[]);
    for (fault, kind) in [
        ("header-flood", "bad answer: "),
        ("two-lengths", "Content-Length"),
        ("length-and-chunked", "bad answer: "),
        ("negative-length", "Content-Length"),
        ("huge-length", "Content-Length"),
        ("bad-chunk-size", "chunk"),
        ("bad-chunk-end", "chunk"),
        ("not-http", "not HTTP"),
        ("bad-version", "bad answer: "),
        ("bad-status", "status"),
        ("truncated-head", "given up"),
        ("cut-body", "given up"),
        ("cut-chunk", "given up"),
        ("reset-body", "given up"),
        ("never", "no answer in time"),
    ] {
        let (value, well) = load(&[
            &server.url(&format!("/broken/{fault}")),
            "-c",
            "2",
            "-p",
            "3",
            "-n",
            "6",
            "--attempts",
            "2",
            "--timeout",
            "200ms",
        ]);
        assert!(!well, "{fault}");
        assert_each_ended_once(&value, 6);
        assert_eq!(number(&value, "answered"), 0, "{fault}: {value}");
        let errors = value["errors"].to_string();
        assert!(errors.contains(kind), "{fault}: {errors}");
        let sample = value["error_samples"][0].as_str().expect("a sentence");
        assert!(sample.contains("request ") && sample.contains(". "), "{fault}: {sample}");
    }
    // The answer nobody asked for is never an answer: with ids each request gets its own or none.
    let (value, well) =
        load(&[&server.url("/broken/unasked"), "-c", "2", "-n", "6", "--attempts", "3"]);
    assert!(!well, "{value}");
    assert_each_ended_once(&value, 6);
    assert!(value["errors"].to_string().contains("nobody asked for"), "{value}");
}

#[test]
fn checks_find_the_wrong_status_body_and_id() {
    let server = Running::serve(&[]);
    let (value, well) = load(&[&server.url("/status/503"), "-n", "10", "-c", "1"]);
    assert!(!well && value["errors"]["status 503"] == 10, "{value}");
    assert!(load(&[&server.url("/status/503"), "-n", "10", "-c", "1", "--expect-status", "5xx"]).1);
    let (value, well) =
        load(&[&server.url("/hello"), "-n", "10", "-c", "1", "--expect-body", "Goodbye"]);
    assert!(!well && number(&value, "wrong") == 10, "{value}");
    assert!(load(&[&server.url("/chunked/3"), "-n", "10", "-c", "1", "--expect-body", "World"]).1);
    // Whatever is asked, this answers with the id of another.
    let (value, well) = load(&[&server.url("/id/77"), "-n", "10", "-c", "1", "--check-id"]);
    assert!(!well && value["errors"]["the id of another request"] == 10, "{value}");
}

#[test]
fn a_file_of_requests_is_taken_by_turns() {
    let server = Running::serve(&[]);
    let file = scratch("requests.jsonl");
    std::fs::write(
        &file,
        "{\"path\":\"/status/201\"}\n{\"method\":\"POST\",\"path\":\"/echo\",\"body\":{\"n\":1}}\n",
    )
    .expect("written");
    let (value, well) =
        load(&[&server.url("/"), "--from", file.to_str().expect("UTF-8"), "-n", "10", "-c", "2"]);
    assert!(well, "{value}");
    assert_eq!((&value["statuses"]["201"], &value["statuses"]["200"]), (&5.into(), &5.into()));
}

#[test]
fn a_timetable_is_kept_and_a_long_road_shows_in_every_latency() {
    let server = Running::serve(&[]);
    let address = free_address();
    let proxy = Running::start(
        &["bench", "delay", "--listen", &address, "--to", &server.address, "--rtt", "30ms"],
        &address,
    );
    let (value, well) = load(&[
        &proxy.url("/hello"),
        "--rate",
        "500",
        "-n",
        "200",
        "-c",
        "5",
        "-p",
        "100",
        "--check-id",
    ]);
    assert!(well, "{value}");
    assert_eq!(number(&value, "answered"), 200);
    // The proxy can be late, never early.
    assert!(value["latency_us"]["min"].as_f64().expect("a number") >= 29_900.0, "{value}");
    assert!(value["late_us"]["p50"].is_number());
}

#[test]
fn a_comparison_has_three_modes_and_their_ratio() {
    let server = Running::serve(&["--delay", "5ms"]);
    let report = scratch("report.html");
    let report = report.to_str().expect("UTF-8");
    let (value, well) = load(&[
        &server.url("/hello"),
        "--compare",
        "-c",
        "4",
        "-p",
        "10",
        "-n",
        "80",
        "--report",
        report,
    ]);
    assert!(well, "{value}");
    assert_eq!(value["modes"].as_array().expect("a list").len(), 3);
    // A delay holds back what is behind it by no more than itself: ten wait as long as one.
    assert!(value["pipelined_to_one_connection"].as_f64().expect("a number") > 1.0, "{value}");
    let page = std::fs::read_to_string(report).expect("a page");
    assert!(page.contains("one at a time on each connection"));
}

#[test]
fn results_are_written_for_other_programs_and_the_next_report() {
    let server = Running::serve(&[]);
    let [csv, hdr, first, report] = ["run.csv", "run.hlog", "first.json", "next.html"]
        .map(|name| scratch(name).display().to_string());
    let url = server.url("/hello");
    let (value, _) =
        load(&[&url, "-n", "1000", "-c", "2", "--name", "first", "--csv", &csv, "--hdr-log", &hdr]);
    std::fs::write(&first, value.to_string()).expect("written");
    let (_, well) = load(&[&url, "-n", "1000", "-c", "2", "--report", &report, "--with", &first]);
    assert!(well);
    let text = |path: &str| std::fs::read_to_string(path).expect("a file");
    assert!(text(&csv).starts_with("at_s,answered,requests_per_second"));
    assert!(text(&hdr).contains("HIST"), "{}", text(&hdr));
    assert!(text(&report).contains("\"name\":\"first\""));
}

#[test]
fn a_certificate_is_verified() {
    let pem = scratch("server.pem").display().to_string();
    let server = Running::serve(&["--tls", "--tls-certificate", &pem]);
    let url = server.url("/hello").replace("http:", "https:");
    let (value, well) =
        load(&[&url, "--ca", &pem, "-n", "1000", "-c", "4", "-p", "10", "--check-id"]);
    assert!(well, "{value}");
    assert!(load(&[&url, "--insecure", "-n", "10", "-c", "1"]).1);
    let wrong = |arguments: &[&str]| {
        let (value, well) = load(&[&[&url, "-n", "10", "-c", "1"], arguments].concat());
        assert!(!well && number(&value, "unanswered") == 10, "{value}");
        value["error_samples"].to_string()
    };
    assert!(wrong(&[]).contains("--ca FILE"));
    let name = wrong(&["--ca", &pem, "--server-name", "other.example"]);
    assert!(name.contains("other.example") || name.contains("not valid for name"), "{name}");

    let old = scratch("old.pem").display().to_string();
    let server = Running::serve(&["--tls", "--tls-expired", "--tls-certificate", &old]);
    let url = server.url("/hello").replace("http:", "https:");
    let (value, well) = load(&[&url, "--ca", &old, "-n", "10", "-c", "1"]);
    assert!(!well && value["errors"].to_string().to_lowercase().contains("expired"), "{value}");
}

#[test]
fn nobody_there_and_no_such_name_are_told_with_what_to_do() {
    let (value, well) = load(&[&format!("http://{}/", free_address()), "-n", "5", "-c", "1"]);
    assert!(!well && number(&value, "unanswered") == 5, "{value}");
    assert!(
        value["error_samples"][0].as_str().expect("a sentence").contains("start the server"),
        "{value}"
    );
    let name = http(&["http://no-such-name.invalid/"]);
    assert!(told(&name).contains("no-such-name.invalid does not resolve"), "{}", told(&name));
}

#[test]
fn a_wrong_flag_names_its_fix() {
    let url = "http://127.0.0.1:1/";
    for (arguments, fix) in [
        (&["127.0.0.1:1"][..], "http://127.0.0.1:8500/hello"),
        (&[url, "-p", "deep"], "or auto"),
        (&[url, "-t", "8", "-c", "2"], "raise --connections"),
        (&[url, "--compare"], "add --pipeline 100"),
        (&[url, "-H", "no colon"], "Name: value"),
        (&["http://127.0.0.1:1/{count}"], "{n%K}"),
        (&[url, "--http", "3"], "1.1, 2"),
        (&[url, "--http", "2", "-p", "auto"], "--pipeline 100"),
        (&[url, "--from", "/nonexistent"], "cannot read /nonexistent"),
        (&[url, "--with", "a.json"], "--report"),
        (&[url, "--duration", "soon"], "write 500ms"),
        (&["https://127.0.0.1:1/", "--ca", "/nonexistent"], "PEM"),
        (&[url, "--ledger", "x.ledger", "--warm-up", "1s"], "--warm-up"),
    ] {
        let output = http(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(told(&output).contains(fix), "{arguments:?}: {}", told(&output));
    }
}
