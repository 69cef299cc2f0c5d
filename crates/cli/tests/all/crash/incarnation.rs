//! One incarnation of the server: its changes, which of them were acknowledged, and whether the next start finds them.
#![allow(unreachable_pub, reason = "a part of a test")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::listener::Listener;
use crate::kit::{Addresses, Served, TIMEOUT};

/// Clients that are connected while the changes are made.
const LISTENERS: usize = 4;
/// Concurrent changes that share one sync of the disk.
const GROUP: usize = 6;
const NAMESPACES: &str = "/channel/namespaces";
/// A list of this many origins makes a record of some megabytes.
const ORIGINS: usize = 40_000;

/// What happens.
#[derive(Clone, Copy, PartialEq)]
pub enum Story {
    /// Changes of each kind one after another, one of which a worker refuses; then several at once.
    Changes,
    /// One worker tries a change first.
    Trial,
    /// A change that makes the log too long, so that it is compacted.
    Compaction,
}

/// A request, and the configuration it leads to if acknowledged.
struct Change {
    method: &'static str,
    target: String,
    kind: &'static str,
    body: String,
    becomes: Becomes,
}

enum Becomes {
    With(String, Value),
    Without(String),
    /// The one that was acknowledged as this one.
    Again(usize),
    Refused,
}

/// What was acknowledged.
pub struct Incarnation {
    /// Revisions and their configurations, oldest first; the first one was found.
    acknowledged: Vec<(u64, Value)>,
    /// The configuration whose acknowledgement was under way.
    under_way: Option<Value>,
    /// Names of the concurrent changes that were requested, and of those acknowledged.
    asked: BTreeSet<String>,
    answered: BTreeSet<String>,
    /// The options of a new namespace: everything is allowed in its channels but to subscribe.
    options: Value,
    listeners: Vec<Listener>,
}

impl Story {
    /// Returns the state directory it begins with.
    pub fn state(self, grown: &Path) -> TempDir {
        let state = tempfile::tempdir().unwrap();
        if self == Story::Compaction {
            for entry in fs::read_dir(grown).unwrap() {
                let entry = entry.unwrap();
                if !entry.file_type().unwrap().is_file() {
                    // The operator's socket is made anew.
                    continue;
                }
                fs::copy(entry.path(), state.path().join(entry.file_name())).unwrap();
            }
        }
        state
    }

    fn changes(self, options: &Value, served: &Served) -> Vec<Change> {
        let put = |pointer: &str, value: Value, query: &str| Change {
            method: "PUT",
            target: format!("/config{pointer}{query}"),
            kind: "application/json",
            body: value.to_string(),
            becomes: Becomes::With(pointer.to_owned(), value),
        };
        let namespace =
            |name: &str, query: &str| put(&format!("{NAMESPACES}/{name}"), options.clone(), query);
        // Every worker has to agree to another number of the node, those that sleep are woken for it.
        let refused = |query: &str| Change {
            method: "PATCH",
            target: format!("/config{query}"),
            kind: "application/merge-patch+json",
            body: json!({ "server": { "name": "refused by worker 1", "node": 7 } }).to_string(),
            becomes: Becomes::Refused,
        };
        match self {
            Story::Changes => vec![
                put("/limits/connections_max", json!(1_000_001), ""),
                namespace("a", "?durable=1"),
                Change {
                    method: "PATCH",
                    target: "/config".to_owned(),
                    kind: "application/merge-patch+json",
                    body: json!({ "limits": { "bus_slots": 64 } }).to_string(),
                    becomes: Becomes::With("/limits/bus_slots".to_owned(), json!(64)),
                },
                refused(""),
                namespace("b", ""),
                refused("?durable=1"),
                // Every worker is woken for this one.
                put(
                    "/listeners/extra",
                    json!({
                        "addr": served.at.extra.to_string(),
                        "backlog": 1_024,
                        "program": null,
                        "serves": "all",
                        "ingress": { "trusted_proxies": [], "proxy_protocol": false, "tls": false, "client_ca": null, "access_log": false },
                    }),
                    "?durable=1",
                ),
                Change {
                    method: "DELETE",
                    target: format!("/config{NAMESPACES}/a?durable=1"),
                    kind: "application/json",
                    body: String::new(),
                    becomes: Becomes::Without(format!("{NAMESPACES}/a")),
                },
                Change {
                    method: "POST",
                    target: String::new(),
                    kind: "application/json",
                    body: String::new(),
                    becomes: Becomes::Again(2),
                },
            ],
            Story::Trial => vec![
                namespace("t", "?canary=worker&seconds=1&durable=1"),
                namespace("u", "?canary=worker&seconds=1"),
            ],
            Story::Compaction => vec![
                put("/client/allowed_origins", origins("one"), ""),
                put("/client/allowed_origins", origins("two"), ""),
                // Its sync waits behind the compaction.
                namespace("c", "?durable=1"),
                namespace("d", "?durable=1"),
            ],
        }
    }
}

/// A state directory with a pair of snapshot and log that was followed by another, whose log is nearly as long as one
/// may be; and of which nothing is kept that need not be.
pub fn grow(state: &Path) {
    let served = Served::start(state, "");
    let put = |pointer: &str, value: &Value| {
        let target = format!("/config{pointer}?durable=1");
        let (status, answer) = served.call("PUT", &target, &value.to_string()).unwrap();
        assert_eq!(status, 200, "{answer}");
    };
    put("/config/revisions_max", &json!(1));
    let bytes = |kind: &str| -> Vec<u64> {
        let files = fs::read_dir(state).unwrap().map(Result::unwrap);
        let of_kind = files.filter(|file| file.file_name().to_str().unwrap().ends_with(kind));
        of_kind.map(|file| file.metadata().unwrap().len()).collect()
    };
    let logs = bytes(".log").len();
    let mut changes = 0;
    // The one that is counted down from is the first of a new log.
    let mut left = None;
    while left != Some(0) {
        put("/client/allowed_origins", &origins(&changes.to_string()));
        changes += 1;
        left = match left {
            Some(left) => Some(left - 1),
            // As many as fit the log before, but one: that is what the story does.
            None if bytes(".log").len() > logs => Some(changes - 2),
            None => None,
        };
        assert!(changes < 100, "no log is too long: {:?}", bytes(".log"));
    }
}

fn origins(of: &str) -> Value {
    (0..ORIGINS).map(|number| json!(format!("https://{number}.{of}.example"))).collect()
}

impl Incarnation {
    /// Reads the current state, and connects clients; `None` if the server exits meanwhile.
    pub fn begin(served: &Served) -> Option<Incarnation> {
        let found = Found::ask(served)?;
        let (_, options) = served.call("GET", "/config/channel/without_namespace", "")?;
        let mut options: Value = serde_json::from_str(&options).unwrap();
        options["allow_subscribe_for_client"] = json!(false);
        options["allow_subscribe_for_anonymous"] = json!(false);
        let mut listeners = Vec::new();
        for _ in 0..LISTENERS {
            let mut listener = Listener::connect(served.at.client)?;
            assert!(listener.subscribe("news")?, "everything is allowed");
            listeners.push(listener);
        }
        Some(Incarnation {
            acknowledged: vec![(found.revision, found.config)],
            under_way: None,
            asked: BTreeSet::new(),
            answered: BTreeSet::new(),
            options,
            listeners,
        })
    }

    /// Makes the changes of a story. Returns false if the server exited before the last was answered.
    pub fn play(&mut self, served: &Served, story: Story) -> bool {
        for change in story.changes(&self.options, served) {
            if self.make(served, change).is_none() {
                return false;
            }
        }
        story != Story::Changes || self.make_at_once(served)
    }

    fn make(&mut self, served: &Served, change: Change) -> Option<()> {
        let mut config = self.newest().clone();
        let mut target = change.target;
        self.under_way = match change.becomes {
            Becomes::With(pointer, value) => {
                let (table, key) = pointer.rsplit_once('/').unwrap();
                config.pointer_mut(table).unwrap()[key] = value;
                Some(config)
            }
            Becomes::Without(pointer) => {
                let (table, key) = pointer.rsplit_once('/').unwrap();
                config.pointer_mut(table).unwrap().as_object_mut().unwrap().remove(key);
                Some(config)
            }
            Becomes::Again(at) => {
                let (revision, config) = &self.acknowledged[at];
                target = format!("/config/revisions/{revision}/restore?durable=1");
                Some(config.clone())
            }
            Becomes::Refused => None,
        };
        let (status, answer) = served.call_as(change.method, &target, change.kind, &change.body)?;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        match self.under_way.take() {
            Some(config) => {
                assert!(matches!(status, 200 | 201), "{target}: {answer}");
                self.acknowledged.push((answer["revision"].as_u64().unwrap(), config));
            }
            None => assert_eq!(answer["type"], "/problems/not-applied", "{target}"),
        }
        Some(())
    }

    /// Makes several changes at once. Returns false if one was not answered.
    fn make_at_once(&mut self, served: &Served) -> bool {
        let names = (0..GROUP).map(|number| format!("at-once-{number}"));
        self.asked = names.collect();
        let body = self.options.to_string();
        let put = |name: &String| {
            let target = format!("/config{NAMESPACES}/{name}?durable=1");
            let (status, answer) = served.call("PUT", &target, &body)?;
            assert_eq!(status, 201, "{answer}");
            Some(name.clone())
        };
        let answered: Vec<Option<String>> = std::thread::scope(|scope| {
            let put = &put;
            let writers: Vec<_> =
                self.asked.iter().map(|name| scope.spawn(move || put(name))).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        self.answered = answered.iter().flatten().cloned().collect();
        self.answered.len() == GROUP
    }

    /// Checks that no change has closed a connection: each client receives a publication.
    pub fn everybody_is_still_connected(&mut self, served: &Served) {
        let body = json!({ "channel": "news", "data": "still here?" }).to_string();
        let mut stream = TcpStream::connect(served.at.client).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        write!(
            stream,
            "POST /api/publish HTTP/1.1\r\nHost: d\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        for listener in &mut self.listeners {
            assert_eq!(listener.publication(), Some(json!("still here?")));
        }
    }

    fn newest(&self) -> &Value {
        &self.acknowledged.last().unwrap().1
    }

    /// Checks what was found after a crash at this step.
    pub fn judge(&self, found: &Found, step: &str) {
        let (revision, _) = *self.acknowledged.last().unwrap();
        // Of those at once, any that were asked for may be there, and those that were answered have to be.
        let there: BTreeSet<String> =
            self.asked.iter().filter(|name| found.has_namespace(name)).cloned().collect();
        let lost: Vec<_> = self.answered.difference(&there).collect();
        assert!(lost.is_empty(), "killed at {step}, {lost:?} are lost");
        let with_those = |config: &Value| {
            let mut config = config.clone();
            let namespaces = config.pointer_mut(NAMESPACES).unwrap();
            there.iter().for_each(|name| namespaces[name] = self.options.clone());
            config
        };
        let is_newest = found.config == with_those(self.newest());
        let is_under_way = self.under_way.as_ref().is_some_and(|config| *config == found.config);
        assert!(
            is_newest || is_under_way,
            "killed at {step}, neither revision {revision} is found nor the one after it: {:?}",
            found.revisions
        );
        if self.under_way.is_some()
            && let Some(expected) = is_in_effect(step)
        {
            assert_eq!(is_under_way, expected, "killed at {step}");
        }
        // No revision is listed twice, and each that was acknowledged is listed, as far as they are kept.
        assert!(
            found.revisions.is_sorted_by(|newer, older| newer > older),
            "{:?}",
            found.revisions
        );
        for (revision, _) in &self.acknowledged {
            let is_kept = *revision >= *found.revisions.last().unwrap();
            assert!(
                !is_kept || found.revisions.contains(revision),
                "{revision}: {:?}",
                found.revisions
            );
        }
    }
}

/// Whether the change under way when the process died at this step has to be found, where that is certain.
fn is_in_effect(step: &str) -> Option<bool> {
    match step.split_once('>').map_or(step, |(step, _)| step) {
        // All of them before the mark is written.
        "append" | "appended" | "published" | "woken" | "confirm" => Some(false),
        // Once it is answered, another one may be under way.
        "confirmed" | "answer" => Some(true),
        _ => None,
    }
}

/// The state of a server.
pub struct Found {
    pub revision: u64,
    pub config: Value,
    /// The revisions kept, newest first.
    revisions: Vec<u64>,
}

impl Found {
    pub fn by(served: &Served) -> Found {
        Found::ask(served).expect("it answers")
    }

    fn ask(served: &Served) -> Option<Found> {
        let json = |target: &str| -> Option<Value> {
            let (status, answer) = served.call("GET", target, "")?;
            assert_eq!(status, 200, "{answer}");
            Some(serde_json::from_str(&answer).unwrap())
        };
        let history = json("/config/revisions?limit=1000")?;
        let numbers = history["revisions"].as_array().unwrap().iter();
        let revisions: Vec<u64> = numbers.map(|of| of["revision"].as_u64().unwrap()).collect();
        let revision = history["current"].as_u64().unwrap();
        assert_eq!(revisions.first(), Some(&revision));
        let config = json("/config")?;
        // The same as the newest of the history has.
        assert_eq!(json(&format!("/config/revisions/{revision}/config"))?, config);
        Some(Found { revision, config, revisions })
    }

    fn has_namespace(&self, name: &str) -> bool {
        self.config.pointer(NAMESPACES).is_some_and(|namespaces| namespaces.get(name).is_some())
    }

    /// The workers run what is found: nobody may subscribe in its namespaces; where there is none, anybody may.
    pub fn is_run(&self, served: &Served) {
        for name in ["a", "b", "at-once-0"] {
            let mut listener = Listener::connect(served.at.client).expect("it serves");
            let allowed = listener.subscribe(&format!("{name}:x")).expect("it serves");
            assert_eq!(allowed, !self.has_namespace(name), "{name}");
        }
        if let Some(extra) = self.config.pointer("/listeners/extra/addr") {
            let at = extra.as_str().unwrap().parse().unwrap();
            assert!(Listener::connect(at).is_some(), "{at} is listened on");
        }
        let Addresses { client, .. } = served.at;
        assert_eq!(self.config["server"]["client_addr"], json!(client.to_string()));
    }
}
