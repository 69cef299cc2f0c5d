//! A server of this build in a separate process, for the other tests.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "what does not start fails the test")]

pub mod client;
pub mod cluster;
pub mod held;
pub mod nats;
pub mod redis;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

pub use dunlin_testkit::Addresses;
use serde_json::Value;

/// Longer than any step takes.
pub const TIMEOUT: Duration = Duration::from_secs(30);

pub struct Served {
    pub child: Child,
    pub at: Addresses,
    /// The header with the token of its state directory.
    authorization: String,
    /// Keeps the pipe open, so that the server can still write to it.
    _output: BufReader<ChildStdout>,
}

impl Served {
    pub fn start(state: &Path, limits: &str) -> Served {
        Served::begin(state, Addresses::new(), limits, &[]).expect("it starts")
    }

    /// Starts the server through a shell, so that `limits` can be set first; `None` if it exits before it serves.
    pub fn begin(
        state: &Path,
        at: Addresses,
        limits: &str,
        environment: &[(&str, &str)],
    ) -> Option<Served> {
        let Addresses { client, admin, .. } = at;
        let command = format!(
            "{limits} exec {} serve --workers 2 --client {client} --admin {admin} --state {}",
            env!("CARGO_BIN_EXE_dunlin"),
            state.display()
        );
        let mut child = Command::new("sh")
            .args(["-c", &command])
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let mut reported = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        while !line.contains(&admin.to_string()) {
            line.clear();
            if reported.read_line(&mut line).expect("text") == 0 {
                child.wait().expect("it has ended");
                return None;
            }
        }
        let token = std::fs::read_to_string(state.join("admin-token")).expect("a token");
        let authorization = format!("Authorization: Bearer {}\r\n", token.trim());
        Some(Served { child, at, authorization, _output: reported })
    }

    /// Returns status and body of a response; `None` if the server exits before it is complete.
    pub fn call(&self, method: &str, target: &str, body: &str) -> Option<(u16, String)> {
        self.call_as(method, target, "application/json", body)
    }

    pub fn call_as(
        &self,
        method: &str,
        target: &str,
        kind: &str,
        body: &str,
    ) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(self.at.admin).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).ok()?;
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: d\r\nConnection: close\r\nContent-Type: {kind}\r\n\
             {}Content-Length: {}\r\n\r\n{body}",
            self.authorization,
            body.len()
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("Content-Length").then(|| value.parse::<usize>().ok())?
        });
        (length? == body.len()).then(|| (status, body.to_owned()))
    }

    /// Calls the server API with this key and returns the answer.
    pub fn api(&self, key: &str, method: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(self.at.client).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let body = body.to_string();
        write!(
            stream,
            "POST /api/{method} HTTP/1.1\r\nHost: d\r\nConnection: close\r\nX-API-Key: {key}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"))
    }

    pub fn kill(&mut self) {
        // It may have been killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}
