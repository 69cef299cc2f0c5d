//! Clusters of nodes that share a real Redis or a real NATS.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use dunlin_testkit::Redis;
use serde_json::{Value, json};

use super::nats::Nats;
use super::redis;
use super::{Addresses, Served, TIMEOUT};

pub const SECRET: &str = "a secret that all nodes have";

/// Tests that hold wherever the nodes meet.
#[allow(unused_macros, reason = "each test uses a part of this")]
macro_rules! wherever_they_meet {
    ($($test:ident)*) => {
        mod in_redis {
            $(#[test] fn $test() { super::$test(super::Kind::Redis); })*
        }
        mod in_nats {
            $(#[test] fn $test() { super::$test(super::Kind::Nats); })*
        }
    };
}
#[allow(unused_imports, reason = "each test uses a part of this")]
pub(crate) use wherever_they_meet;

/// The kind of store that nodes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Redis,
    Nats,
}

/// The store that nodes share.
pub enum Meeting {
    Redis(Redis),
    Nats(Nats),
}

impl Meeting {
    pub fn start(kind: Kind) -> Meeting {
        match kind {
            Kind::Redis => Meeting::Redis(redis::start()),
            Kind::Nats => Meeting::Nats(Nats::start()),
        }
    }

    pub fn at(&self) -> SocketAddr {
        match self {
            Meeting::Redis(redis) => redis.addr,
            Meeting::Nats(nats) => nats.addr,
        }
    }

    /// Returns the engine settings that reach the store at this address.
    fn engine(&self, way: SocketAddr) -> Value {
        let kind = match self {
            Meeting::Redis(_) => "redis",
            Meeting::Nats(_) => "nats",
        };
        json!({ "type": kind, "addresses": [way.to_string()] })
    }

    /// A signal of `kill`: STOP, CONT.
    pub fn signal(&self, signal: &str) {
        let signal = format!("-{signal}");
        match self {
            Meeting::Redis(redis) => redis.signal(&signal),
            Meeting::Nats(nats) => nats.signal(&signal),
        }
    }

    /// Restarts it without data.
    pub fn lose_all(&mut self) {
        match self {
            Meeting::Redis(redis) => redis.restart(),
            Meeting::Nats(nats) => nats.restart(false),
        }
    }

    /// Returns the names of all stored records, one per line, and the uids of known processes.
    pub fn records(&self) -> String {
        match self {
            Meeting::Redis(redis) => {
                let uids = redis.cli(&["SMEMBERS", "dunlin:cluster:uids"]);
                format!("{}\n{uids}\n", redis.cli(&["KEYS", "dunlin:cluster:*"]))
            }
            Meeting::Nats(nats) => nats.records(),
        }
    }

    /// Returns each process's reported number of connections of a user, in any order.
    pub fn counts(&self, user: &str) -> Vec<u64> {
        let mut counts: Vec<u64> = match self {
            Meeting::Redis(redis) => {
                let keys = redis.cli(&["KEYS", "dunlin:cluster:users:*"]);
                let entries = keys.lines().map(|key| redis.cli(&["HGET", key, user]));
                entries.filter_map(|entry| entry.strip_prefix("1 ")?.parse().ok()).collect()
            }
            Meeting::Nats(nats) => {
                let records = nats.records();
                let of_user = |of: &&str| of.contains(&format!(".users.{user}."));
                let counts = records.lines().filter(of_user).filter_map(|subject| {
                    let count: Value = serde_json::from_slice(&nats.record(subject)).ok()?;
                    count["connections"].as_u64()
                });
                counts.collect()
            }
        };
        counts.sort_unstable();
        counts
    }

    /// Returns the stored log of settings changes of all nodes.
    pub fn settings_log(&self) -> String {
        match self {
            Meeting::Redis(redis) => redis.cli(&["HGETALL", "dunlin:cluster:settings"]),
            Meeting::Nats(nats) => {
                let records = nats.records();
                let of_it =
                    |record: &&str| record.contains(".log.") || record.contains("state.settings");
                let all = records.lines().filter(of_it).flat_map(|subject| nats.record(subject));
                String::from_utf8_lossy(&all.collect::<Vec<u8>>()).into_owned()
            }
        }
    }

    /// Takes or releases another node's right to change the settings of all.
    pub fn set_claim(&self, is_held: bool) {
        match self {
            Meeting::Redis(redis) => {
                let key = "dunlin:cluster:settings:claim";
                let (held, free) = (["SET", key, "another", "PX", "60000"], ["DEL", key]);
                redis.cli(if is_held { &held } else { &free });
            }
            Meeting::Nats(nats) => {
                let subject = "dunlin.cluster.state.settings";
                let mut head: Value = serde_json::from_slice(&nats.record(subject)).unwrap();
                head["claim"] = match is_held {
                    true => json!({ "uid": "another", "hold_ms": 60_000 }),
                    false => Value::Null,
                };
                nats.store(subject, &head);
            }
        }
    }

    pub fn redis(&self) -> &Redis {
        match self {
            Meeting::Redis(redis) => redis,
            Meeting::Nats(_) => panic!("it is NATS"),
        }
    }

    pub fn nats(&mut self) -> &mut Nats {
        match self {
            Meeting::Nats(nats) => nats,
            Meeting::Redis(_) => panic!("it is Redis"),
        }
    }
}

/// A node and its state directory, which survives restarts.
pub struct Node {
    pub served: Served,
    pub state: PathBuf,
    pub engine: Value,
}

/// A cluster whose nodes know each other.
pub struct Cluster {
    pub meeting: Meeting,
    pub nodes: Vec<Node>,
    _scratch: tempfile::TempDir,
}

impl Node {
    pub fn start(state: PathBuf, engine: Value) -> Node {
        let served = Served::begin(&state, Addresses::new(), "", &[]).expect("it starts");
        let node = Node { served, state, engine };
        node.configure(&json!({}));
        node
    }

    pub fn configure(&self, cluster: &Value) {
        let mut settings = json!({
            "engines": { "main": self.engine },
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

    /// Starts the node again from its state directory.
    pub fn restarted(&self) -> Node {
        Node::start(self.state.clone(), self.engine.clone())
    }

    pub fn kill(&mut self) {
        let pid = self.served.child.id().to_string();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        self.served.kill();
    }

    /// Returns its status of the cluster.
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

    /// Returns a metric without labels.
    pub fn metric(&self, name: &str) -> u64 {
        let metrics = self.served.call("GET", "/metrics", "").expect("an answer").1;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.expect("a metric").parse().unwrap()
    }

    /// Returns how often it has compared its members with the store.
    pub fn resyncs(&self) -> u64 {
        self.metric("dunlin_cluster_member_resyncs_total")
    }

    /// Calls the server API and returns the answer.
    #[expect(clippy::needless_pass_by_value, reason = "callers make it in place")]
    pub fn api(&self, method: &str, body: Value) -> Value {
        self.served.api("", method, &body)
    }

    /// The same with an API key.
    #[expect(clippy::needless_pass_by_value, reason = "callers make it in place")]
    pub fn api_as(&self, key: &str, method: &str, body: Value) -> Value {
        self.served.api(key, method, &body)
    }

    /// Returns the users in a channel, sorted.
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
    pub fn start(kind: Kind, nodes: usize) -> Cluster {
        let meeting = Meeting::start(kind);
        let ways = vec![meeting.at(); nodes];
        Cluster::start_by(meeting, &ways)
    }

    /// Starts nodes that each reach the store at their own address.
    pub fn start_by(meeting: Meeting, ways: &[SocketAddr]) -> Cluster {
        let scratch = tempfile::tempdir().unwrap();
        let nodes = ways.iter().zip(0..).map(|(way, at)| {
            Node::start(scratch.path().join(format!("{at}")), meeting.engine(*way))
        });
        let cluster = Cluster { nodes: nodes.collect(), meeting, _scratch: scratch };
        cluster.settle();
        cluster
    }

    /// Waits until a channel has no members and the store has none of it. Reading it removes late entries.
    pub fn until_empty(&self, channel: &str) {
        let is_of_it = |record: &str| {
            record.contains(&format!("members:{channel}"))
                || record.contains(&format!("members.{channel}."))
        };
        until("nobody is left", || {
            let node = self.nodes.last().expect("a node");
            node.present(channel).is_empty() && !self.meeting.records().lines().any(is_of_it)
        });
    }

    /// Waits until all nodes know each other.
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
