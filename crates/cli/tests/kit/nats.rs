//! A real NATS for a test, at its own address.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::{Addresses, TIMEOUT};

/// With JetStream, unless a test restarts it otherwise.
pub struct Nats(dunlin_testkit::Nats);

const JETSTREAM: &str = "jetstream {}\n";

fn address() -> SocketAddr {
    SocketAddr::new(Addresses::new().client.ip(), 4222)
}

impl Nats {
    pub fn start() -> Nats {
        Nats(dunlin_testkit::Nats::start_at(address(), &[], JETSTREAM))
    }

    /// Starts three servers that replicate all streams.
    pub fn cluster() -> [Nats; 3] {
        let ats = [(); 3].map(|()| address());
        let routes = ats.map(|at| format!("\"nats-route://{}:6222\"", at.ip())).join(", ");
        ats.map(|at| {
            let ip = at.ip();
            let cluster = format!(
                "server_name: \"{ip}\"\ncluster {{ name: c, listen: \"{ip}:6222\", routes: [{routes}] }}"
            );
            Nats(dunlin_testkit::Nats::start_at(at, &[], &format!("{JETSTREAM}{cluster}")))
        })
    }

    /// Restarts it, with or without its data.
    pub fn restart(&mut self, keeps_data: bool) {
        self.0.kill();
        if !keeps_data {
            self.0.lose_store();
        }
        self.restart_as(JETSTREAM);
    }

    /// Restarts it with a configuration in its own language, and with its data.
    pub fn restart_as(&mut self, configuration: &str) {
        self.0.configure(configuration);
        self.0.restart();
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
        let mut stream = TcpStream::connect(self.addr).unwrap();
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
}

impl Deref for Nats {
    type Target = dunlin_testkit::Nats;

    fn deref(&self) -> &dunlin_testkit::Nats {
        &self.0
    }
}

impl DerefMut for Nats {
    fn deref_mut(&mut self) -> &mut dunlin_testkit::Nats {
        &mut self.0
    }
}
