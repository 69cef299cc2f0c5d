//! Nodes that meet in a real Redis.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::redis::Redis;
use super::{Addresses, Served, TIMEOUT};

pub const SECRET: &str = "a secret that all nodes have";

/// A node and its state directory, which outlives its processes.
pub struct Node {
    pub served: Served,
    pub state: PathBuf,
    redis: String,
}

/// A cluster whose nodes know each other.
pub struct Cluster {
    pub redis: Redis,
    pub nodes: Vec<Node>,
    _scratch: tempfile::TempDir,
}

impl Node {
    pub fn start(state: PathBuf, redis: &str) -> Node {
        let served = Served::begin(&state, Addresses::new(), "", &[]).expect("it starts");
        let node = Node { served, state, redis: redis.to_owned() };
        node.configure(&json!({}));
        node
    }

    pub fn configure(&self, cluster: &Value) {
        let mut settings = json!({
            "engines": { "main": { "addresses": [self.redis] } },
            "cluster": { "engine": "main", "lease_ms": 5_000, "secret": SECRET },
            "client": { "token": { "hmac_secret": SECRET } },
            "channel": { "without_namespace": {
                "presence": true, "join_leave": true, "force_push_join_leave": true
            } },
        });
        for (key, value) in cluster.as_object().unwrap() {
            settings["cluster"][key] = value.clone();
        }
        let kind = "application/merge-patch+json";
        let answer = self.served.call_as("PATCH", "/config", kind, &settings.to_string()).unwrap();
        assert_eq!(answer.0, 200, "{answer:?}");
    }

    /// The same again, of what it has left on its disk.
    pub fn restarted(&self) -> Node {
        Node::start(self.state.clone(), &self.redis)
    }

    pub fn kill(&mut self) {
        let pid = self.served.child.id().to_string();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        self.served.kill();
    }

    /// What it knows of the cluster.
    pub fn status(&self) -> Value {
        let (status, body) = self.served.call("GET", "/cluster", "").expect("an answer");
        assert_eq!(status, 200);
        serde_json::from_str(&body).unwrap()
    }

    pub fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + 2 * TIMEOUT;
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "not {what}: {status:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// How often it has compared its members with what Redis has.
    pub fn resyncs(&self) -> u64 {
        let metrics = self.served.call("GET", "/metrics", "").expect("an answer").1;
        let mut lines = metrics.lines();
        let value =
            lines.find_map(|line| line.strip_prefix("dunlin_cluster_member_resyncs_total "));
        value.expect("a metric").parse().unwrap()
    }

    /// The answer of the server API.
    pub fn api(&self, method: &str, body: Value) -> Value {
        self.api_as("", method, body)
    }

    /// The same with an API key.
    #[expect(clippy::needless_pass_by_value, reason = "callers make it in place")]
    pub fn api_as(&self, key: &str, method: &str, body: Value) -> Value {
        let mut stream = TcpStream::connect(self.served.at.client).unwrap();
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

    /// The users in a channel, sorted.
    pub fn present(&self, channel: &str) -> Vec<String> {
        let answer = self.api("presence", json!({ "channel": channel }));
        let Some(present) = answer["result"]["presence"].as_object() else {
            return vec![answer.to_string()];
        };
        let mut users: Vec<_> =
            present.values().map(|of| of["user"].as_str().unwrap().to_owned()).collect();
        users.sort();
        users
    }

    pub fn until_present(&self, channel: &str, users: &[&str]) {
        let deadline = Instant::now() + 2 * TIMEOUT;
        while self.present(channel) != users {
            assert!(Instant::now() < deadline, "{:?}, not {users:?}", self.present(channel));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Cluster {
    pub fn start(nodes: usize) -> Cluster {
        let redis = Redis::start();
        let ways = vec![redis.at; nodes];
        Cluster::start_by(redis, &ways)
    }

    /// Of nodes that reach Redis each in its way.
    pub fn start_by(redis: Redis, ways: &[SocketAddr]) -> Cluster {
        let scratch = tempfile::tempdir().unwrap();
        let nodes = ways
            .iter()
            .zip(0..)
            .map(|(way, at)| Node::start(scratch.path().join(format!("{at}")), &way.to_string()));
        let cluster = Cluster { nodes: nodes.collect(), redis, _scratch: scratch };
        cluster.settle();
        cluster
    }

    /// Waits until Redis has no members of a channel.
    pub fn until_empty(&self, channel: &str) {
        let key = format!("dunlin:cluster:members:{channel}");
        let members = || self.redis.cli(&["HGETALL", &key]);
        until("nobody is left", || members().is_empty());
    }

    /// Waits until all know all.
    pub fn settle(&self) {
        for node in &self.nodes {
            node.until("a member among all", |status| {
                let alive = status["nodes"].as_array().unwrap().iter();
                let alive = alive.filter(|of| of["alive"] == true).count();
                let condition = &status["condition"];
                alive == self.nodes.len() && (condition == "member" || condition == "record_lost")
            });
        }
    }
}

pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + 2 * TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not so: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
