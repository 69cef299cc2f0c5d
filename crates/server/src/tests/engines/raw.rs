//! Raw subjects of a real NATS: publications of any program, and subjects that clients cannot reach.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use dunlin_config::{ChannelOptions, Config, Engine};
use serde_json::{Value, json};

use super::super::{Cluster, Listener};
use super::nats;
use super::{publish, until};
use dunlin_testkit::Nats;

/// Another program that uses the NATS server.
struct Program(BufReader<TcpStream>);

impl Program {
    fn connect(addr: SocketAddr) -> Program {
        let mut program = Program(BufReader::new(TcpStream::connect(addr).unwrap()));
        assert!(program.line().starts_with("INFO "));
        program.say(b"CONNECT {\"verbose\":false}\r\n");
        program.settled();
        program
    }

    fn say(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// Waits until the server has processed all commands.
    fn settled(&mut self) {
        self.say(b"PING\r\n");
        assert_eq!(self.line(), "PONG");
    }

    fn publish(&mut self, subject: &str, payload: &[u8]) {
        let head = format!("PUB {subject} {}\r\n", payload.len());
        self.say(&[head.as_bytes(), payload, b"\r\n"].concat());
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

fn raw(nats: &Nats) -> Engine {
    Engine { raw: true, raw_separator: ".".into(), ..nats::engine_at(nats) }
}

fn node(nats: &Nats, engine: Engine, change: impl FnOnce(&mut Config)) -> Cluster {
    let cluster = Cluster::start_with(2, |config| {
        config.engines.insert("kept", Engine { prefix: "inner".into(), ..nats::engine_at(nats) });
        config.engines.insert("raw", engine);
        let open = ChannelOptions {
            wildcards: true,
            allow_subscribe_for_anonymous: true,
            ..ChannelOptions::default()
        };
        for (name, engine) in [("chat", "raw"), ("other", "raw"), ("secret", "kept")] {
            let engine = Some(engine.into());
            config.channel.namespaces.insert(name, ChannelOptions { engine, ..open.clone() });
        }
        config.channel.any_namespace = false;
        config.limits.publication_bytes_max = 1_000;
        change(config);
    });
    until("the engines are never ready", || {
        cluster.state.engines.health().into_values().eq(["ready", "ready"])
    });
    cluster
}

fn subscribe(cluster: &Cluster, channels: &[&str]) -> (Listener, Value) {
    let subs: serde_json::Map<String, Value> =
        channels.iter().map(|&channel| (channel.to_owned(), json!({}))).collect();
    Listener::connect_to(cluster.address, &json!({ "subs": subs }).to_string())
}

#[test]
fn clients_and_any_program_of_nats_hear_each_other() {
    let nats = nats::start();
    let node = node(&nats, raw(&nats), |_| {});
    let mut program = Program::connect(nats.addr);
    let (mut exact, _) = subscribe(&node, &["chat:a.b"]);
    let (mut wide, _) = subscribe(&node, &["chat:>"]);
    program.say(b"SUB chat.out 1\r\n");
    program.settled();

    program.publish("chat.a.b", b"{\"n\":1}");
    program.publish("chat.a.b", b"{\n\"n\": 2\r\n}");
    program.publish("chat.a.b", b"\xff not JSON\n");
    program.publish("chat.a.b", &[b'1'; 1_001]);
    program.publish("other.a.b", b"99");
    program.publish("chat.$end", b"");
    program.publish("chat.a#1", b"99");
    program.publish("chat.a.b", b"3");
    program.publish("chat.x", b"4");
    let said = |push: Value| (push["pub"]["data"].clone(), push["pub"]["b64data"].clone());
    let first = [
        (json!({"n": 1}), Value::Null),
        (json!({"n": 2}), Value::Null),
        (Value::Null, json!("/yBub3QgSlNPTgo=")),
    ];
    let mut heard = Vec::new();
    for _ in 0..4 {
        heard.push(said(exact.next().unwrap()));
    }
    assert_eq!(heard, [&first[..], &[(json!(3), Value::Null)]].concat());
    let mut heard = Vec::new();
    for _ in 0..6 {
        let push = wide.next().unwrap();
        assert_eq!(push["channel"], "chat:>");
        heard.push((push["pub"]["channel"].clone(), push["pub"]["data"].clone()));
    }
    let of = |channel: &str, data: Value| (json!(channel), data);
    assert_eq!(
        heard[3..],
        [of("chat:$end", Value::Null), of("chat:a.b", json!(3)), of("chat:x", json!(4)),]
    );

    publish(&node, "chat:out", 7);
    assert_eq!((program.line(), program.line()), ("MSG chat.out 1 1".into(), "7".into()));
    for more in [
        json!({"channel": "chat:out", "data": 1, "tags": {"a": "b"}}),
        json!({"channel": "chat:out", "data": 1, "idempotency_key": "k"}),
    ] {
        let answer = node.post("/api/publish", &more.to_string());
        assert!(answer.contains("carries payloads alone"), "{answer}");
    }
}

#[test]
fn no_client_reaches_a_subject_beyond_its_namespaces() {
    let nats = nats::start();
    let engine = Engine { raw_prefix: "app.".into(), raw_separator: ":".into(), ..raw(&nats) };
    let node = node(&nats, engine, |config| {
        config.channel.without_namespace = ChannelOptions {
            engine: Some("raw".into()),
            wildcards: true,
            allow_subscribe_for_anonymous: true,
            allow_publish_for_anonymous: true,
            ..ChannelOptions::default()
        };
    });
    ready_again(&node);
    let mut program = Program::connect(nats.addr);
    program.say(b"SUB > 1\r\n");
    program.settled();
    for name in ["", "a.", ".a", "a..b", "a b", "a\r\nPUB inner.p.x 0", "a*", "chat:a\tb"] {
        let (_, connect) = subscribe(&node, &[name]);
        assert!(connect["connect"]["subs"].get(name).is_none(), "{name:?}: {connect}");
        let answer = node.post("/api/publish", &json!({"channel": name, "data": 1}).to_string());
        assert!(answer.contains("\"error\""), "{name:?}: {answer}");
    }
    // For these names, the node only uses subjects with the prefix.
    for name in ["inner.p.-.a", "dunlin.r.1.1", "$SYS.REQ", "_INBOX.a", "$JS.API.INFO"] {
        let private = name.starts_with('$');
        let (_, connect) = subscribe(&node, &[name]);
        assert_eq!(connect["connect"]["subs"].get(name).is_none(), private, "{connect}");
        publish(&node, name, 1);
        let heard = loop {
            let line = program.line();
            if line.starts_with("MSG ") && !line.contains(".r.") {
                break line;
            }
            if line.contains(" app.dunlin.r.") {
                break line;
            }
        };
        assert_eq!(heard, format!("MSG app.{name} 1 1"));
    }
    // The widest wildcard only receives subjects with the prefix, none of other namespaces and none that are private.
    let (mut widest, connect) = subscribe(&node, &["x.>", ">"]);
    assert!(connect["connect"]["subs"].get(">").is_some(), "{connect}");
    for subject in
        ["plain", "inner.p.-.a", "dunlin.x", "app.chat:a", "app.$a", "app.a#1", "app.secret:x"]
    {
        program.publish(subject, b"99");
    }
    program.publish("app.end", b"1");
    let push = widest.next().unwrap();
    assert_eq!((&push["pub"]["channel"], &push["pub"]["data"]), (&json!("end"), &json!(1)));
}

fn ready_again(cluster: &Cluster) {
    until("the engines are never ready", || {
        cluster.state.engines.health().into_values().all(|state| state == "ready")
    });
}
