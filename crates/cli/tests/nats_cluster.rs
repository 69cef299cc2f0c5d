//! Nodes that meet in three servers of NATS: the leader of what they share is killed, and they go on.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

mod kit;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use kit::TIMEOUT;
use kit::cluster::{Node, until};
use kit::nats::Nats;
use serde_json::{Value, json};

/// A client of a node in the channel `room`.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(node: &Node) -> Client {
        let mut stream = TcpStream::connect(node.served.at.client).unwrap();
        stream.set_read_timeout(Some(2 * TIMEOUT)).unwrap();
        let body = json!({ "subs": { "room": {} } }).to_string();
        let length = body.len();
        let head = "POST /connection/uni_http_stream HTTP/1.1\r\nHost: d";
        write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        let mut client = Client(BufReader::new(stream));
        client.until(|push| push["connect"].is_object());
        client
    }

    /// Reads until it is sent such a push.
    fn until(&mut self, is_it: impl Fn(&Value) -> bool) {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream has ended");
            if serde_json::from_str::<Value>(&line).is_ok_and(|push| is_it(&push)) {
                return;
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

/// Which server leads the stream of the cluster, of which all servers that are asked have all.
fn leader(servers: &[Nats; 3], asked: usize) -> Option<usize> {
    let cluster = servers[asked].ask("STREAM.INFO.dunlin-cluster", &json!({}))["cluster"].take();
    servers.iter().position(|of| cluster["leader"] == of.at.ip().to_string())
}

#[test]
fn nodes_go_on_when_the_leader_of_three_servers_is_killed() {
    let mut servers = Nats::cluster();
    let addresses: Vec<String> = servers.iter().map(|of| of.at.to_string()).collect();
    let engine = json!({ "type": "nats", "addresses": addresses, "stream_replicas": 3 });
    let scratch = tempfile::tempdir().unwrap();
    let nodes: Vec<Node> = (0..3)
        .map(|at| Node::start(scratch.path().join(format!("{at}")), engine.clone()))
        .collect();
    let change_all = |node: &Node, rate: u64| {
        let body = json!({ "limits": { "connections_max": rate } }).to_string();
        let kind = "application/merge-patch+json";
        node.served.call_as("PATCH", "/config?scope=cluster", kind, &body).unwrap()
    };
    for node in &nodes {
        let anonymous = json!({ "client": { "anonymous": true } }).to_string();
        let kind = "application/merge-patch+json";
        assert_eq!(node.served.call_as("PATCH", "/config", kind, &anonymous).unwrap().0, 200);
        let alive = |status: &Value| {
            status["nodes"].as_array().unwrap().iter().filter(|of| of["alive"] == true).count()
        };
        node.until("one of three", |status| alive(status) == 3);
    }
    let mut clients: Vec<Client> = nodes.iter().map(Client::connect).collect();
    until_present(&nodes, 3);
    for round in 0..2 {
        let asked = round % 3;
        until("a leader", || leader(&servers, asked).is_some());
        let dead = leader(&servers, asked).unwrap();
        servers[dead].kill();
        let asked = (dead + 1) % 3;
        until("another leads", || leader(&servers, asked).is_some_and(|of| of != dead));

        // Who comes is announced to clients of every node, and there with all those before.
        let newcomer = Client::connect(&nodes[round]);
        for client in &mut clients {
            client.until(|push| push["join"].is_object());
        }
        until_present(&nodes, 4 + round);
        clients.push(newcomer);
        // A call reaches all nodes, and so does a change of their settings.
        until("all are asked", || {
            let answer = nodes[round].api("channels", json!({}));
            answer["result"] == json!({ "channels": { "room": { "num_clients": 4 + round } } })
        });
        until("the change is made on all", || {
            let (status, body) = change_all(&nodes[round], 10_000 + round as u64);
            status == 200 && !body.contains("away")
        });
        for node in &nodes {
            let config = node.served.call("GET", "/config", "").unwrap().1;
            let config: Value = serde_json::from_str(&config).unwrap();
            assert_eq!(config["limits"]["connections_max"], 10_000 + round);
        }
        servers[dead].rejoin();
        until("all servers have all", || {
            let cluster = servers[asked].ask("STREAM.INFO.dunlin-cluster", &json!({}));
            let replicas = cluster["cluster"]["replicas"].as_array().cloned().unwrap_or_default();
            replicas.len() == 2 && replicas.iter().all(|of| of["current"] == true)
        });
    }
}
