//! What is wrong with NATS has a name in `/health`, in the log and in the metrics, with its fix, and is over when its cause is.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::path::PathBuf;

use crate::kit::cluster::until;
use crate::kit::nats::Nats;
use crate::kit::{Addresses, Served};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};

/// A node whose channels, and whose meeting, are in NATS.
struct Node {
    served: Served,
    log: PathBuf,
    _scratch: tempfile::TempDir,
}

/// A state, as the engine and the cluster have it, and a word of the fix of each.
struct Named<'a> {
    engine: (&'a str, &'a str),
    cluster: (&'a str, &'a str),
}

impl Node {
    fn start(nats: &Nats, engine: &Value) -> Node {
        let scratch = tempfile::tempdir().unwrap();
        let log = scratch.path().join("log");
        let redirected = format!("exec 2>{};", log.display());
        let state = scratch.path().join("state");
        let served = Served::begin(&state, Addresses::new(), &redirected, &[]).expect("it starts");
        let node = Node { served, log, _scratch: scratch };
        node.patch(&json!({
            "engines": { "main": { "type": "nats", "addresses": [nats.addr.to_string()] } },
            "channel": { "namespaces": { "kept": {
                "engine": "main", "history_size": 100, "history_ttl_ms": 600_000
            } } },
        }));
        node.engine(engine);
        node.patch(&json!({ "cluster": { "engine": "main", "lease_ms": 5_000 } }));
        node
    }

    fn patch(&self, change: &Value) {
        let kind = "application/merge-patch+json";
        let answer = self.served.call_as("PATCH", "/config", kind, &change.to_string()).unwrap();
        assert_eq!(answer.0, 200, "{answer:?}");
    }

    fn engine(&self, change: &Value) {
        self.patch(&json!({ "engines": { "main": change } }));
    }

    fn get(&self, path: &str) -> Value {
        serde_json::from_str(&self.served.call("GET", path, "").expect("an answer").1).unwrap()
    }

    fn publish(&self, data: &str) -> Value {
        self.served.api("", "publish", &json!({ "channel": "kept:a", "data": data }))
    }

    /// Waits until it has these names, everywhere where somebody may look.
    fn until_named(&self, named: &Named<'_>) {
        let (engine, fix) = named.engine;
        until(engine, || self.get("/health")["engines"]["main"] == engine);
        let status = self.get("/status/engines");
        let connections = status["connections"].as_array().unwrap();
        let shows = |of: &Value| {
            (of["state"] == engine || of["refusing"] == engine)
                && of["fix"].as_str().unwrap().contains(fix)
        };
        assert!(connections.iter().any(shows), "{status:#}");
        let is_logged = |name: &str, fix: &str, what: &str| {
            let log = std::fs::read_to_string(&self.log).unwrap();
            log.lines().any(|line| {
                line.contains("WARN")
                    && line.contains(what)
                    && line.contains(&format!("\"{name}\""))
                    && line.contains(fix)
            })
        };
        until("in the log", || is_logged(engine, fix, "a server of an engine"));

        let (cluster, fix) = named.cluster;
        until(cluster, || self.get("/health")["cluster"] == cluster);
        let status = self.get("/cluster");
        assert!(status["fix"].as_str().unwrap().contains(fix), "{status:#}");
        let metrics = self.served.call("GET", "/metrics", "").expect("an answer").1;
        let line = format!("dunlin_cluster_condition{{condition=\"{cluster}\"}} 1");
        assert!(metrics.contains(&line), "{metrics}");
    }

    /// How many workers say that they can publish to all channels of the engine.
    fn ready(&self) -> usize {
        let metrics = self.served.call("GET", "/metrics", "").expect("an answer").1;
        let is_ready =
            |line: &&str| line.starts_with("dunlin_engine_ready{") && line.ends_with(" 1");
        metrics.lines().filter(is_ready).count()
    }

    /// Waits until nothing is wrong, and publishes.
    fn until_well(&self) {
        until("well", || {
            let health = self.get("/health");
            let is_member = health["cluster"] == "member" || health["cluster"] == "record_lost";
            is_member && health["engines"]["main"] == "ready" && self.ready() == 2
        });
        let answer = self.publish("x");
        assert!(answer["result"]["offset"].is_u64(), "{answer}");
    }
}

/// JetStream in its own directory, which the command line names.
const JETSTREAM: &str = "jetstream {}";

#[test]
fn a_full_storage() {
    let mut nats = Nats::start();
    nats.restart_as("jetstream { max_file_store: 1000000 }");
    let node = Node::start(&nats, &json!({}));
    node.until_well();
    let refused =
        (0..100).map(|_| node.publish(&"x".repeat(20_000))).find(|of| of["error"].is_object());
    let refused = refused.expect("its storage has an end");
    assert!(
        refused["error"]["message"].as_str().unwrap().contains("nothing was stored"),
        "{refused}"
    );
    node.until_named(&Named {
        engine: ("storage_full", "stream_bytes_max"),
        cluster: ("storage_full", "stream_bytes_max"),
    });
    nats.restart(true);
    node.until_well();
}

/// Of a cluster of servers too few are there.
#[test]
fn a_jetstream_without_a_leader() {
    let mut nats = Nats::start();
    let node = Node::start(&nats, &json!({}));
    node.until_well();
    let ip = nats.addr.ip();
    let routes = format!("\"nats-route://{ip}:6223\", \"nats-route://{ip}:6224\"");
    let cluster = format!("cluster {{ name: c, listen: \"{ip}:6222\", routes: [{routes}] }}");
    nats.restart_as(&format!("server_name: a\n{}\n{cluster}", JETSTREAM));
    node.until_named(&Named {
        engine: ("jetstream_unavailable", "leader"),
        cluster: ("jetstream_unavailable", "majority"),
    });
    assert_eq!(node.ready(), 0);
    nats.restart(true);
    node.until_well();
}

/// Somebody has made streams of these names that cannot become what they are to be.
#[test]
fn streams_that_are_others() {
    let nats = Nats::start();
    let streams = [("dunlin", "elsewhere.>"), ("dunlin-cluster", "nowhere.>")];
    for (name, subject) in streams {
        let config = json!({ "name": name, "subjects": [subject], "storage": "memory" });
        let made = nats.ask(&format!("STREAM.CREATE.{name}"), &config);
        assert!(made["error"].is_null(), "{made}");
    }
    let node = Node::start(&nats, &json!({}));
    node.until_named(&Named {
        engine: ("stream_config", "stream_"),
        cluster: ("stream_config", "delete that stream"),
    });
    assert_eq!(node.ready(), 0);
    for (name, _) in streams {
        nats.ask(&format!("STREAM.DELETE.{name}"), &json!({}));
    }
    node.until_well();
}

#[test]
fn a_certificate_of_somebody_else() {
    let authority = || {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (right, wrong) = (authority(), authority());
    let mut nats = Nats::start();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![nats.addr.ip().to_string()]).unwrap();
    let chain = params.signed_by(&key, &right).unwrap().pem();
    let file = |name: &str, text: &str| {
        let path = nats.store_dir().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (chain, key) = (file("chain.pem", &chain), file("key.pem", &key.serialize_pem()));
    let tls = format!("tls {{ cert_file: {chain:?}, key_file: {key:?} }}");
    nats.restart_as(&format!("{}\n{tls}", JETSTREAM));
    let node = Node::start(&nats, &json!({ "tls": true, "ca": wrong.pem() }));
    node.until_named(&Named { engine: ("tls_failed", "`ca`"), cluster: ("tls_failed", "`ca`") });
    assert_eq!(node.ready(), 0);
    node.engine(&json!({ "ca": right.pem() }));
    node.until_well();
}

#[test]
fn a_password_that_is_wrong_and_a_seed_that_cannot_be_read() {
    /// Of a user that nobody has but this test: made by `nk -gen user -pubout`.
    const SEED: &str = "SUAFOI4M5WPR57IPS36SGGJM3K7WGC2SW5MAIBBJXGQ27W2IPNRHTOUKT4";
    const PUBLIC: &str = "UBJHEHGFI4EEBOKRZ6KWHDCPGNBN4VKANEP2LDKZL33LL4CL37S2CLOH";
    let mut nats = Nats::start();
    let users = format!("users: [ {{ user: u, password: p }}, {{ nkey: {PUBLIC} }} ]");
    let configuration = format!("{}\nauthorization {{ {users} }}", JETSTREAM);
    nats.restart_as(&configuration);
    let node = Node::start(&nats, &json!({ "user": "u", "password": "other" }));
    node.until_named(&Named {
        engine: ("wrong_password", "password"),
        cluster: ("wrong_password", "password"),
    });
    assert_eq!(node.ready(), 0);
    node.engine(&json!({ "password": "p" }));
    node.until_well();

    // One that is good when it is set, and not any more when it is read again.
    let seed = nats.store_dir().join("seed");
    std::fs::write(&seed, SEED).unwrap();
    node.engine(&json!({ "user": null, "password": null, "nkey_seed_file": seed }));
    node.until_well();
    std::fs::write(&seed, "SU...\n").unwrap();
    nats.restart_as(&configuration);
    node.until_named(&Named {
        engine: ("bad_credentials", "nkey_seed_file"),
        cluster: ("bad_credentials", "file"),
    });
    std::fs::write(&seed, SEED).unwrap();
    node.until_well();
}
