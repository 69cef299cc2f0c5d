//! Nodes that meet in three servers of NATS: the leader of what they share is killed, and they go on.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use crate::kit::TIMEOUT;
use crate::kit::cluster::{Node, until};
use crate::kit::nats::Nats;
use serde_json::{Value, json};

/// A client of a node in the channel `room`.
struct Client {
    lines: BufReader<TcpStream>,
    id: String,
}

impl Client {
    fn connect(node: &Node) -> Client {
        let mut stream = TcpStream::connect(node.served.at.client).unwrap();
        stream.set_read_timeout(Some(2 * TIMEOUT)).unwrap();
        let body = json!({ "subs": { "room": {} } }).to_string();
        let length = body.len();
        let head = "POST /connection/uni_http_stream HTTP/1.1\r\nHost: d";
        write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        let mut client = Client { lines: BufReader::new(stream), id: String::new() };
        let connected = client.until(|push| push["connect"].is_object());
        client.id = connected["connect"]["client"].as_str().unwrap().to_owned();
        client
    }

    /// Reads until it is sent such a push.
    fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + 2 * TIMEOUT;
        loop {
            assert!(Instant::now() < deadline, "no such push");
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the stream has ended");
            match serde_json::from_str::<Value>(&line) {
                Ok(push) if is_it(&push) => return push,
                // A ping, another push, or the length of a chunk.
                _ => {}
            }
        }
    }
}

fn until_present(nodes: &[Node], count: usize) {
    for node in nodes {
        until("all are present", || {
            let answer = node.api("presence_stats", json!({ "channel": "room" }));
            answer["result"]["num_clients"] == count
        });
    }
}

fn patch(node: &Node, target: &str, change: &str) -> (u16, String) {
    node.served.call_as("PATCH", target, "application/merge-patch+json", change).unwrap()
}

/// What a server says of how the stream of the cluster stands.
fn stream(server: &Nats) -> Value {
    let answer = server.try_ask("STREAM.INFO.dunlin-cluster", &json!({}));
    answer.unwrap_or_default()["cluster"].take()
}

/// Which server leads it.
fn leader(servers: &[Nats; 3], asked: usize) -> Option<usize> {
    let leader = stream(&servers[asked])["leader"].take();
    servers.iter().position(|of| leader == of.addr.ip().to_string())
}

#[test]
fn nodes_go_on_when_the_leader_of_three_servers_is_killed() {
    let mut servers = Nats::cluster();
    let addresses: Vec<String> = servers.iter().map(|of| of.addr.to_string()).collect();
    let engine = json!({ "type": "nats", "addresses": addresses, "stream_replicas": 3 });
    let scratch = tempfile::tempdir().unwrap();
    let nodes: Vec<Node> = (0..3)
        .map(|at| Node::start(scratch.path().join(format!("{at}")), engine.clone()))
        .collect();
    for node in &nodes {
        let anonymous = json!({ "client": { "anonymous": true } }).to_string();
        assert_eq!(patch(node, "/config", &anonymous).0, 200);
        let alive = |status: &Value| {
            status["nodes"].as_array().unwrap().iter().filter(|of| of["alive"] == true).count()
        };
        node.until("one of three", |status| alive(status) == 3);
    }
    let mut clients: Vec<Client> = nodes.iter().map(Client::connect).collect();
    until_present(&nodes, 3);
    until("a leader", || leader(&servers, 0).is_some());
    let dead = leader(&servers, 0).unwrap();
    servers[dead].kill();
    let asked = (dead + 1) % 3;
    until("another leads", || leader(&servers, asked).is_some_and(|of| of != dead));

    // All nodes are connected again and have stored their members. A join whose write is uncertain meanwhile is not announced.
    until_present(&nodes, 3);

    // Who comes is announced to clients of every node, and there with all those before.
    let newcomer = Client::connect(&nodes[0]);
    for client in &mut clients {
        client.until(|push| push["join"]["info"]["client"] == *newcomer.id);
    }
    until_present(&nodes, 4);
    // A call reaches all nodes, and so does a change of their settings.
    until("all are asked", || {
        let answer = nodes[1].api("channels", json!({}));
        answer["result"] == json!({ "channels": { "room": { "num_clients": 4 } } })
    });
    let change = json!({ "limits": { "connections_max": 12_345 } }).to_string();
    until("the change is made on all", || {
        let (status, body) = patch(&nodes[2], "/config?scope=cluster", &change);
        status == 200 && body.matches("\"outcome\"").count() == nodes.len()
    });
    for node in &nodes {
        let config = node.served.call("GET", "/config", "").unwrap().1;
        let config: Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config["limits"]["connections_max"], 12_345);
    }
}
