//! A server of this very build, and what it is asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dunlin_simulate::apns::{Behaviour, Config, Simulator};
use serde_json::{Value, json};

use crate::kit::Addresses;

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(600);
/// What opens the admin port.
const TOKEN: &str = "the token of these tests";
/// Keys made for these tests; they open nothing.
pub(crate) const KEY: &str = include_str!("../../../../server/tests/data/apns-key.p8");
pub(crate) const OTHER_KEY: &str = include_str!("../../../../server/tests/data/apns-key-2.p8");

/// A server of this very build.
pub(crate) struct Served {
    child: Child,
    pub(crate) client: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Served {
    pub(crate) fn start(state: Option<&Path>) -> Served {
        let Addresses { client, admin, .. } = Addresses::new();
        // What is so without a file, and a token: credentials are secrets.
        let mut config = dunlin_config::Config::development();
        config.admin.token = Some(dunlin_config::Secret::new(TOKEN));
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(toml::to_string(&config).unwrap().as_bytes()).unwrap();
        // A write beyond the limit of a file's size is to fail, and not to end the process.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_dunlin")]);
        command.args(["serve", "--workers", "2", "--config"]).arg(file.path());
        command.args(["--client", &client.to_string(), "--admin", &admin.to_string()]);
        if let Some(state) = state {
            command.arg("--state").arg(state);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line.contains(&admin.to_string())));
        assert!(ready, "it did not start");
        Served { child, client, admin }
    }

    pub(crate) fn send(address: SocketAddr, method: &str, target: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: d\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// Status and body of the answer.
    pub(crate) fn call(
        address: SocketAddr,
        method: &str,
        target: &str,
        body: &Value,
    ) -> (u16, String) {
        let mut answer = String::new();
        Served::send(address, method, target, body).read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// The same of a POST to a server that may be killed meanwhile; `None` when it was.
    pub(crate) fn try_call(
        address: SocketAddr,
        target: &str,
        body: &Value,
    ) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (body, mut answer) = (body.to_string(), String::new());
        let length = body.len();
        let request = format!(
            "POST {target} HTTP/1.1\r\nHost: d\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).ok()?;
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    /// The answer of the server API.
    pub(crate) fn api(&self, method: &str, body: &Value) -> Value {
        let (_, text) = Served::call(self.client, "POST", &format!("/api/{method}"), body);
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
    }

    pub(crate) fn put(&self, pointer: &str, value: &Value) -> (u16, Value) {
        let (status, text) = Served::call(self.admin, "PUT", &format!("/config/{pointer}"), value);
        (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}")))
    }

    pub(crate) fn metrics(&self) -> String {
        Served::call(self.admin, "GET", "/metrics", &Value::Null).1
    }

    /// Resident memory of the server.
    pub(crate) fn rss_kib(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Has its writes to files fail behind so many bytes.
    pub(crate) fn set_file_bytes_max(&self, bytes: Option<u64>) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32);
        let limit = rustix::process::Rlimit { current: bytes, maximum: None };
        rustix::process::prlimit(pid, rustix::process::Resource::Fsize, limit).unwrap();
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) {
        // Killed already, or about to be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn terminate(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap();
    }

    /// Begins a batch; its lines are read one by one.
    pub(crate) fn batch(&self, body: &Value) -> Lines {
        let stream = Served::send(self.client, "POST", "/api/push/batch", body);
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert_ne!(reader.read_line(&mut line).unwrap(), 0, "the head has an end");
        }
        Lines { reader, pieces: Vec::new() }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The lines of a chunked answer.
pub(crate) struct Lines {
    reader: BufReader<TcpStream>,
    pieces: Vec<u8>,
}

impl Iterator for Lines {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.pieces.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pieces.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let mut size = String::new();
            if self.reader.read_line(&mut size).unwrap() == 0 {
                return None;
            }
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            self.reader.read_exact(&mut chunk).unwrap();
            if size == 0 {
                return None;
            }
            self.pieces.extend_from_slice(&chunk[..size]);
        }
    }
}

pub(crate) fn simulator(behaviour: Behaviour) -> Simulator {
    Simulator::start(Config { behaviour, ..Config::default() }).unwrap()
}

/// A credential of the configuration that leads to the simulator.
pub(crate) fn credential(simulator: &Simulator, key: &str) -> Value {
    json!({
        "key": key, "key_id": "KEY1234567", "team_id": "TEAM123456", "topic": "com.example.app",
        "route": { "address": simulator.addr().to_string(), "ca": simulator.ca_pem() }
    })
}

pub(crate) fn token(n: usize) -> String {
    format!("{n:064x}")
}

pub(crate) fn to(tokens: &[String]) -> Value {
    to_app("shop", tokens)
}

pub(crate) fn to_app(app: &str, tokens: &[String]) -> Value {
    json!({
        "notification": { "title": "Hello", "data": { "room": 7 } },
        "devices": [{ "provider": "apns", "app": app, "tokens": tokens }]
    })
}
