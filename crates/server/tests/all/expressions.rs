//! Allow rules as expressions, over sockets: who may subscribe, publish, and see what was and who is there.

#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dunlin_config::ChannelOptions;
use dunlin_server::{Authorizer, Config, Connect, ConnectResult, Decision, Server, json};
use serde_json::Value;

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client is who its token says; `root` has a role.
struct Names;

impl Authorizer for Names {
    fn connect(&mut self, ask: &Connect<'_>) -> Decision<ConnectResult> {
        let roles = if ask.token == "root" { json!(["admin"]) } else { json!([]) };
        Decision::grant(ConnectResult::user(ask.token).meta(json!({"roles": roles})))
    }
}

/// Client and admin address.
fn serve(room: ChannelOptions) -> (SocketAddr, SocketAddr) {
    let mut config = Config::development();
    config.server.client_addr = SocketAddr::from(([127, 0, 0, 1], 0));
    config.server.admin_addr = SocketAddr::from(([127, 0, 0, 1], 0));
    config.server.workers = 2;
    config.channel.namespaces.insert("room", room);
    let (ready, serving) = mpsc::channel();
    thread::spawn(move || {
        let server = Server::new(config).authorizer(|| Names);
        server.run(move |of| ready.send((of.client_addr, of.admin_addr)).unwrap()).unwrap();
    });
    serving.recv_timeout(TIMEOUT).expect("it serves")
}

/// A client in lines of JSON that says this after its connect; and its replies, in their order.
fn say(address: SocketAddr, user: &str, commands: &[Value]) -> (BufReader<TcpStream>, Vec<Value>) {
    let mut said = json!({"id": 1, "connect": {"token": user}}).to_string();
    for (id, command) in (2..).zip(commands) {
        let mut command = command.clone();
        command["id"] = json!(id);
        said = format!("{said}\n{command}");
    }
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(
        stream,
        "POST /connection/http_stream HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{said}",
        said.len()
    )
    .unwrap();
    let mut lines = BufReader::new(stream);
    let mut replies = Vec::new();
    while replies.len() <= commands.len() {
        let heard = next(&mut lines);
        if heard["id"].is_number() {
            replies.push(heard);
        }
    }
    replies.sort_by_key(|reply| reply["id"].as_u64());
    replies.remove(0);
    (lines, replies)
}

fn next(lines: &mut BufReader<TcpStream>) -> Value {
    loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).expect("a line") > 0, "the stream has ended");
        // Heads, chunk sizes and line ends are between the objects.
        if line.starts_with('{') && line.trim_end() != "{}" {
            return serde_json::from_str(&line).unwrap();
        }
    }
}

/// Status and answer of a call with JSON.
fn call(address: SocketAddr, line: &str, body: &Value) -> (u16, String) {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(
        stream,
        "{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer[9..12].parse().unwrap(), answer)
}

/// Sets an option of the namespace.
fn set(admin: SocketAddr, key: &str, value: &Value) -> (u16, String) {
    call(admin, &format!("PUT /config/channel/namespaces/room/{key}"), value)
}

fn subscribe(channel: &str) -> Value {
    json!({"subscribe": {"channel": channel}})
}

fn is_let_in(reply: &Value) -> bool {
    match reply["error"]["code"].as_u64() {
        None => true,
        Some(code) => {
            assert_eq!(code, 103, "{reply}");
            false
        }
    }
}

#[test]
fn expressions_let_in_whom_the_rules_do_not_and_nobody_else() {
    let (address, _) = serve(ChannelOptions {
        subscribe_cel: Some("channel == 'room:' + user || 'admin' in meta.roles".into()),
        publish_cel: Some("subscribed && user != 'mute'".into()),
        history_cel: Some("user == 'root'".into()),
        presence_cel: Some("channel.endsWith(user)".into()),
        presence: true,
        history_size: 10,
        history_ttl_ms: 60_000,
        ..ChannelOptions::default()
    });
    let asked = [
        json!({"publish": {"channel": "room:ada", "data": 1}}),
        subscribe("room:ada"),
        subscribe("room:bob"),
        json!({"publish": {"channel": "room:ada", "data": 2}}),
        json!({"history": {"channel": "room:ada", "limit": 10}}),
        json!({"presence": {"channel": "room:ada"}}),
    ];
    let (_ada, replies) = say(address, "ada", &asked);
    let may: Vec<bool> = replies.iter().map(is_let_in).collect();
    assert_eq!(may[1..3], [true, false], "{replies:?}");
    assert_eq!(may[4..], [false, true], "{replies:?}");
    assert!(!may[0], "who has not subscribed yet does not publish: {replies:?}");
    let (_root, replies) =
        say(address, "root", &[asked[1].clone(), asked[4].clone(), asked[5].clone()]);
    assert_eq!(
        replies.iter().map(is_let_in).collect::<Vec<_>>(),
        [true, true, false],
        "{replies:?}"
    );
    let (_bob, replies) = say(address, "bob", &[asked[1].clone()]);
    assert!(!is_let_in(&replies[0]));
}

#[test]
fn an_expression_that_changes_ends_what_it_does_not_let_in_any_more() {
    let room = ChannelOptions { allow_subscribe_for_client: true, ..ChannelOptions::default() };
    let (address, admin) = serve(room);
    let (mut ada, replies) = say(address, "ada", &[subscribe("room:1")]);
    assert!(is_let_in(&replies[0]));
    let (mut bob, replies) = say(address, "bob", &[subscribe("room:1")]);
    assert!(is_let_in(&replies[0]));
    // In the place of a rule: whom it lets in stays, whoever had let him in.
    assert_eq!(set(admin, "subscribe_cel", &json!("user in ['bob', 'cleo']")).0, 200);
    assert_eq!(set(admin, "allow_subscribe_for_client", &json!(false)).0, 200);
    assert_eq!(next(&mut ada)["push"]["unsubscribe"]["code"], 2000);
    let (mut cleo, replies) = say(address, "cleo", &[subscribe("room:1")]);
    assert!(is_let_in(&replies[0]));
    let publish = json!({"channel": "room:1", "data": 7});
    assert_eq!(call(address, "POST /api/publish", &publish).0, 200);
    for there in [&mut bob, &mut cleo] {
        assert_eq!(next(there)["push"]["pub"]["data"], 7);
    }
    assert_eq!(set(admin, "subscribe_cel", &json!("user == 'bob'")).0, 200);
    assert_eq!(next(&mut cleo)["push"]["unsubscribe"]["code"], 2000);
    let (_, replies) = say(address, "cleo", &[subscribe("room:1")]);
    assert!(!is_let_in(&replies[0]));
    let (_, replies) = say(address, "bob", &[subscribe("room:1")]);
    assert!(is_let_in(&replies[0]));
}

#[test]
fn an_expression_that_is_none_or_slow_is_refused_when_it_is_set() {
    let (_, admin) = serve(ChannelOptions::default());
    for (expression, why) in [
        ("user ==", "write it as in"),
        ("meta.a.all(x, meta.a.all(y, x == y))", "it loops"),
        ("meta.s.matches('(a+)+$')", "there is no function `matches`"),
        ("token == ''", "there is no `token`"),
    ] {
        let (status, answer) = set(admin, "publish_cel", &json!(expression));
        assert!(status == 422 && answer.contains(why), "{expression}: {answer}");
        assert!(answer.contains("/channel/namespaces/room/publish_cel"), "{answer}");
    }
}
