//! `dunlin bench http`, `serve`, `delay` and `ledger` as a person at a shell runs them, against each other.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use dunlin_testkit::Addresses;
use serde_json::Value;

use crate::BENCH;

/// A server or proxy that ends with its test.
struct Running {
    child: Child,
    address: String,
}

impl Running {
    /// `dunlin bench serve` with more options, on a port of its own.
    fn serve(options: &[&str]) -> Running {
        let address = Addresses::new().client.to_string();
        let mut arguments = vec!["serve", "--listen", &address];
        arguments.extend(options);
        Running::start(&arguments, &address)
    }

    fn start(arguments: &[&str], address: &str) -> Running {
        let mut child = Command::new(BENCH)
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

fn scratch(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("dunlin-bench-http-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    directory.join(name)
}

fn http(arguments: &[&str]) -> Output {
    Command::new(BENCH).args(["http"]).args(arguments).output().expect("the binary runs")
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

fn reported(output: &Output) -> String {
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
        let check = Command::new(BENCH)
            .args(["ledger", "--client", ledger, "--server", log, "--requests", "3000", "--json"])
            .output()
            .expect("the binary runs");
        assert!(check.status.success(), "{how}: {}", reported(&check));
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
    assert!(reported(&refused).contains("--idempotent"), "{}", reported(&refused));

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
        ("truncated-head", "closed in the head of the answer, given up after 2 attempts"),
        ("cut-body", "closed in the body of the answer, given up after 2 attempts"),
        ("cut-chunk", "closed in the body of the answer, given up after 2 attempts"),
        ("reset-body", "closed in the body of the answer, given up after 2 attempts"),
        ("nothing", "closed before the answer, given up after 2 attempts"),
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
        // Which request, of whom, and a sentence on what to do.
        assert!(sample.contains("request "), "{fault}: {sample}");
        assert!(sample.contains(&format!(" to {}: ", server.address)), "{fault}: {sample}");
        assert!(sample.contains(". ") && sample.ends_with('.'), "{fault}: {sample}");
        assert!(!sample.contains(".."), "{fault}: {sample}");
    }
    // The answer nobody asked for is never an answer: with ids each request gets its own or none.
    let (value, well) =
        load(&[&server.url("/broken/unasked"), "-c", "2", "-n", "6", "--attempts", "3"]);
    assert!(!well, "{value}");
    assert_each_ended_once(&value, 6);
    assert!(value["errors"].to_string().contains("nobody asked for"), "{value}");
}

#[test]
fn an_answer_that_comes_byte_by_byte_is_not_waited_for_longer_than_another() {
    let server = Running::serve(&[]);
    // Bytes for half a minute, each of which shows that the server is alive; later requests have their own timeout.
    let slow = scratch("slow.jsonl");
    std::fs::write(&slow, "{\"path\":\"/slow/20ms/bytes/1500\"}\n{\"path\":\"/hello\"}\n")
        .expect("written");
    let (value, well) = load(&[
        &server.url("/"),
        "--from",
        slow.to_str().expect("UTF-8"),
        "-c",
        "1",
        "-p",
        "2",
        "-n",
        "4",
        "--timeout",
        "300ms",
    ]);
    assert!(!well, "{value}");
    assert_eq!((number(&value, "answered"), number(&value, "failed")), (2, 2), "{value}");
    assert_eq!(value["errors"]["no answer in time"], 2, "{value}");
}

#[test]
fn a_connection_that_ends_in_the_answer_to_a_post_fails_it_for_it_was_done() {
    let server = Running::serve(&[]);
    let url = server.url("/broken/cut-body");
    let (value, well) = load(&[&url, "-X", "POST", "-c", "1", "-n", "3"]);
    assert!(!well && number(&value, "failed") == 3 && number(&value, "resent") == 0, "{value}");
    let sample = value["error_samples"][0].as_str().expect("a sentence");
    assert!(sample.contains("closed in the body") && sample.contains("--idempotent"), "{sample}");
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
fn a_schedule_is_kept_and_a_long_road_shows_in_every_latency() {
    let server = Running::serve(&[]);
    let address = Addresses::new().client.to_string();
    let proxy = Running::start(
        &["delay", "--listen", &address, "--to", &server.address, "--rtt", "30ms"],
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
fn the_depth_is_found_and_reported() {
    let server = Running::serve(&[]);
    let address = Addresses::new().client.to_string();
    let proxy = Running::start(
        &["delay", "--listen", &address, "--to", &server.address, "--rtt", "20ms"],
        &address,
    );
    let (value, well) =
        load(&[&proxy.url("/hello"), "-p", "auto", "-n", "20000", "-c", "4", "--check-id"]);
    assert!(well, "{value}");
    assert_eq!((number(&value, "answered"), &value["pipeline"]), (20_000, &"auto".into()));
    // It begins with one, and a server so far away asks for more.
    assert!(number(&value, "depth_most") > 1, "{value}");
    let fixed = load(&[&server.url("/hello"), "-p", "3", "-n", "10", "-c", "1"]).0;
    assert!(fixed["depth_most"].is_null());
}

#[test]
fn warm_up_requests_do_not_count() {
    let log = scratch("warm-up.log");
    let _ = std::fs::remove_file(&log);
    let server = Running::serve(&["--log", log.to_str().expect("UTF-8")]);
    let (value, well) = load(&[
        &server.url("/hello"),
        "-n",
        "50",
        "-c",
        "2",
        "--rate",
        "1000",
        "--warm-up",
        "300ms",
        "--check-id",
    ]);
    assert!(well && number(&value, "answered") == 50, "{value}");
    assert_eq!(number(&value["statuses"], "200"), 50, "{value}");
    drop(server);
    let asked = std::fs::read_to_string(&log).expect("a log").lines().count();
    assert!(asked > 50, "{asked} requests with those of the warm-up");
}

#[test]
fn the_result_is_standard_output_and_its_progress_is_not() {
    let server = Running::serve(&[]);
    let output = http(&[&server.url("/hello"), "-n", "50", "-c", "2"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("50 answers in ") && text.contains("requests/s"), "{text}");
    let output = http(&[&server.url("/hello"), "-n", "50", "-c", "2", "--json"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1, "one object");
    assert!(reported(&output).contains("50 answers in "), "{}", reported(&output));
}

#[test]
fn ctrl_c_ends_a_run_with_the_result_of_what_it_did() {
    let server = Running::serve(&[]);
    let mut child = Command::new(BENCH)
        .args(["http", &server.url("/hello"), "-c", "2", "-d", "1h", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut hears = |word: &str| {
        let heard = lines.by_ref().map_while(Result::ok).any(|line| line.contains(word));
        assert!(heard, "it says {word}");
    };
    // The first line of progress comes when there are answers.
    hears("answered");
    // The shell's own: a program of that name is not on every machine.
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
    hears("ended by Ctrl-C");
    let output = child.wait_with_output().expect("it ends");
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(value["interrupted"], true, "{value}");
    assert!(number(&value, "answered") > 0 && number(&value, "failed") == 0, "{value}");
}

#[test]
fn a_unix_socket_and_ipv6_are_places_like_others() {
    let path = scratch("server.sock");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("a socket");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer_each_line_of_its_own(stream));
        }
    });
    let path = path.to_str().expect("UTF-8");
    let (value, well) =
        load(&["http://a.example/", "--unix-socket", path, "-c", "3", "-p", "5", "-n", "300"]);
    assert!(well && number(&value, "answered") == 300, "{value}");
    let (value, well) =
        load(&["http://a.example/", "--unix-socket", "/nonexistent.sock", "-n", "1", "-c", "1"]);
    let sample = value["error_samples"][0].as_str().expect("a sentence");
    assert!(!well && sample.contains("a.example (/nonexistent.sock)"), "{sample}");
    assert!(sample.contains("fix the path"), "{sample}");

    let address = TcpListener::bind("[::1]:0").and_then(|socket| socket.local_addr());
    let address = address.expect("a free port").to_string();
    let server = Running::start(&["serve", "--listen", &address], &address);
    assert!(load(&[&server.url("/hello"), "-n", "100", "-c", "2", "--check-id"]).1);
}

/// An HTTP server of a few lines, for requests without bodies.
fn answer_each_line_of_its_own(mut stream: UnixStream) {
    let mut heard = Vec::new();
    let mut bytes = [0; 4096];
    while let Ok(length) = stream.read(&mut bytes)
        && length > 0
    {
        heard.extend_from_slice(&bytes[..length]);
        while let Some(end) = heard.windows(4).position(|four| four == b"\r\n\r\n") {
            heard.drain(..end + 4);
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").is_err() {
                return;
            }
        }
    }
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
    // The compressed form, in base64: other readers know no other.
    assert!(text(&hdr).contains(",HISTFA"), "{}", text(&hdr));
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

    // Both ends know both versions; HTTP/2 is one thing this server does not know.
    for version in ["1.2", "1.3"] {
        assert!(load(&[&url, "--ca", &pem, "--tls-version", version, "-n", "10", "-c", "1"]).1);
    }
    let http2 = wrong(&["--ca", &pem, "--http", "2", "-d", "1h"]);
    assert!(http2.contains("does not speak HTTP/2") && http2.contains("--http 1.1"), "{http2}");

    let old = scratch("old.pem").display().to_string();
    let server = Running::serve(&["--tls", "--tls-expired", "--tls-certificate", &old]);
    let url = server.url("/hello").replace("http:", "https:");
    let (value, well) = load(&[&url, "--ca", &old, "-n", "10", "-c", "1"]);
    assert!(!well && value["errors"].to_string().to_lowercase().contains("expired"), "{value}");
}

#[test]
fn refused_and_unresolved_addresses_are_reported_with_the_fix() {
    let (value, well) =
        load(&[&format!("http://{}/", Addresses::new().client), "-n", "5", "-c", "1"]);
    assert!(!well && number(&value, "unanswered") == 5, "{value}");
    assert!(
        value["error_samples"][0].as_str().expect("a sentence").contains("start the server"),
        "{value}"
    );
    let (value, well) = load(&[
        &format!("http://{}/", Addresses::new().client),
        "--http",
        "2",
        "-n",
        "5",
        "-c",
        "1",
    ]);
    assert!(!well && number(&value, "unanswered") == 5, "{value}");
    assert!(value["error_samples"].to_string().contains("start the server"), "{value}");
    let server = Running::serve(&[]);
    // It ends at once, however long it was to last.
    let (value, well) = load(&[&server.url("/hello"), "--http", "2", "-d", "1h", "-c", "8"]);
    let refused = value["errors"]["the answer is not HTTP/2"].as_u64().expect("a number");
    assert!(!well && (1..=64).contains(&refused), "{value}");
    assert!(value["error_samples"][0].as_str().expect("a sentence").contains("--http 1.1"));
    let name = http(&["http://no-such-name.invalid/"]);
    assert!(
        reported(&name).contains("no-such-name.invalid does not resolve"),
        "{}",
        reported(&name)
    );
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
        (&[url, "--insecure"], "write https://"),
        (&["https://127.0.0.1:1/", "--cert", "a.pem"], "--key"),
        (&["https://127.0.0.1:1/", "--tls-version", "1.1"], "1.2, 1.3"),
    ] {
        let output = http(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(reported(&output).contains(fix), "{arguments:?}: {}", reported(&output));
    }
}
