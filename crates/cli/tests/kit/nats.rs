//! A real NATS for a test, at its own address.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::{Addresses, TIMEOUT};

pub struct Nats {
    child: Child,
    pub at: SocketAddr,
    directory: tempfile::TempDir,
}

impl Nats {
    pub fn start() -> Nats {
        let at = SocketAddr::new(Addresses::new().client.ip(), 4222);
        let directory = tempfile::tempdir().unwrap();
        let child = Nats::begin(at, directory.path());
        Nats { child, at, directory }
    }

    /// Starts three servers that replicate all streams.
    pub fn cluster() -> [Nats; 3] {
        let ats = [(); 3].map(|()| SocketAddr::new(Addresses::new().client.ip(), 4222));
        let routes = ats.map(|at| format!("\"nats-route://{}:6222\"", at.ip())).join(", ");
        ats.map(|at| {
            let (ip, directory) = (at.ip(), tempfile::tempdir().unwrap());
            let text = format!(
                "server_name: \"{ip}\"\njetstream {{ store_dir: {:?} }}\n\
                 cluster {{ name: c, listen: \"{ip}:6222\", routes: [{routes}] }}",
                directory.path()
            );
            std::fs::write(directory.path().join("nats.conf"), text).unwrap();
            let child = Nats::configured(at, directory.path());
            Nats { child, at, directory }
        })
    }

    /// Restarts it, with or without its data.
    pub fn restart(&mut self, keeps_data: bool) {
        self.kill();
        if !keeps_data {
            std::fs::remove_dir_all(self.directory.path().join("jetstream")).unwrap();
        }
        self.child = Nats::begin(self.at, self.directory.path());
    }

    /// Restarts it with a configuration in its own language, and with its data.
    pub fn restart_as(&mut self, configuration: &str) {
        self.kill();
        std::fs::write(self.directory.path().join("nats.conf"), configuration).unwrap();
        self.child = Nats::configured(self.at, self.directory.path());
    }

    fn configured(at: SocketAddr, directory: &std::path::Path) -> Child {
        Nats::run(at, &["-c", directory.join("nats.conf").to_str().unwrap()])
    }

    /// Returns the directory of JetStream's data.
    pub fn store_dir(&self) -> String {
        self.directory.path().display().to_string()
    }

    fn begin(at: SocketAddr, directory: &std::path::Path) -> Child {
        Nats::run(at, &["-js", "-sd", directory.to_str().unwrap()])
    }

    fn run(at: SocketAddr, arguments: &[&str]) -> Child {
        let child = Command::new("nats-server")
            .args(["-a", &at.ip().to_string(), "-p", &at.port().to_string()])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("nats-server: {error}; scripts/packages installs it"));
        let deadline = Instant::now() + TIMEOUT;
        while TcpStream::connect(at).is_err() {
            assert!(Instant::now() < deadline, "nats-server does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request to the JetStream API and returns the answer.
    pub fn ask(&self, what: &str, body: &Value) -> Value {
        self.request(&format!("$JS.API.{what}"), body)
    }

    /// Sends a request to a server that may have no responder: `None` after a timeout.
    pub fn try_ask(&self, what: &str, body: &Value) -> Option<Value> {
        self.request_within(&format!("$JS.API.{what}"), body, Duration::from_secs(1))
    }

    fn request(&self, subject: &str, body: &Value) -> Value {
        self.request_within(subject, body, TIMEOUT).expect("an answer")
    }

    fn request_within(&self, subject: &str, body: &Value, time: Duration) -> Option<Value> {
        let mut stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(time)).unwrap();
        let body = body.to_string();
        let hello = r#"CONNECT {"verbose":false,"headers":true,"no_responders":true}"#;
        let length = body.len();
        write!(stream, "{hello}\r\nSUB answer 1\r\nPUB {subject} answer {length}\r\n{body}\r\n")
            .unwrap();
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.filter_map(|line| serde_json::from_str(&line).ok()).find(Value::is_object)
    }

    /// Returns the subjects of the messages in a cluster's stream, one per line.
    pub fn records(&self) -> String {
        let answer = self
            .ask("STREAM.INFO.dunlin-cluster", &json!({ "subjects_filter": "dunlin.cluster.>" }));
        let subjects = answer["state"]["subjects"].as_object().cloned().unwrap_or_default();
        subjects.keys().map(|subject| format!("{subject}\n")).collect()
    }

    /// Returns the record of a subject.
    pub fn record(&self, subject: &str) -> Vec<u8> {
        let answer = self.ask("STREAM.MSG.GET.dunlin-cluster", &json!({ "last_by_subj": subject }));
        BASE64_STANDARD.decode(answer["message"]["data"].as_str().unwrap_or_default()).unwrap()
    }

    /// Stores a record under a subject.
    pub fn store(&self, subject: &str, record: &Value) {
        let answer = self.request(subject, record);
        assert!(answer["seq"].is_u64(), "{answer}");
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}
