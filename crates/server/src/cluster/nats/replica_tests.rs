//! Tests of the NATS store with three replicated servers, one of which lags behind.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::net::Ipv4Addr;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::tests::{address, begin, present, renew, write};
use super::*;

/// Enough to keep a restarted server behind for a while.
const MEMBERS: u64 = 8_000;
const TIMEOUT: Duration = Duration::from_secs(60);

/// One of the three servers.
struct Server {
    name: String,
    directory: tempfile::TempDir,
    child: Option<Child>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Server {
    fn begin(&mut self) {
        let file = self.directory.path().join("nats.conf");
        self.child = Some(begin(&["-c", file.to_str().unwrap()]).0);
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// Starts three servers at loopback addresses that no other process uses.
fn servers() -> [Server; 3] {
    let [low, high, ..] = std::process::id().to_le_bytes();
    let names = [201, 202, 203].map(|at| Ipv4Addr::new(127, 64 | high & 63, low, at).to_string());
    let route = |name: &String| format!("\"nats-route://{name}:6222\"");
    let routes = names.each_ref().map(route).join(", ");
    names.map(|name| {
        let directory = tempfile::tempdir().unwrap();
        let settings = format!(
            "server_name: \"{name}\"\nlisten: \"{name}:4222\"\njetstream {{ store_dir: {:?} }}\n\
             cluster {{ name: c, listen: \"{name}:6222\", routes: [{routes}] }}",
            directory.path()
        );
        std::fs::write(directory.path().join("nats.conf"), settings).unwrap();
        let mut server = Server { name, directory, child: None };
        server.begin();
        server
    })
}

/// Opens a connection of the process `uid`, once the servers have formed a cluster.
async fn store(servers: &[Server; 3], uid: &str) -> NatsStore {
    let address = address(servers.each_ref().map(|of| format!("{}:4222", of.name)), 3);
    let began = Instant::now();
    loop {
        let opened = NatsStore::open(&address, uid.into(), Inbox::of_nobody()).await;
        match opened {
            Ok(store) if renew(&store).await.is_ok() => return store,
            _ => assert!(began.elapsed() < TIMEOUT, "the servers do not find each other"),
        }
    }
}

/// Returns the state of the stream's replicas, as reported by its leader.
async fn replicas(store: &NatsStore) -> Value {
    let answer = store.0.stream.ask("STREAM.INFO", &json!({})).next().await.unwrap();
    serde_json::from_slice::<Value>(&answer.payload).unwrap()["cluster"].take()
}

fn is_behind(cluster: &Value) -> bool {
    let replicas = cluster["replicas"].as_array().unwrap();
    !replicas.iter().all(|of| of["current"] == true && of["offline"] != true)
}

/// Regression test: a read was served by any of the servers, including one that lagged behind. Its incomplete result hid stale
/// members from the reconciliation, so they stayed listed.
#[tokio::test]
async fn a_read_has_all_that_is_stored_while_a_server_is_behind() {
    let mut servers = servers();
    let store = store(&servers, "a").await;
    let leader = replicas(&store).await["leader"].take();
    // Not the first server, which has this connection.
    let behind = if leader == servers[2].name { 1 } else { 2 };
    servers[behind].kill();
    let changes: Vec<String> = (1..=MEMBERS).map(|client| format!("+{client}")).collect();
    let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
    write(&store, &changes).await;
    servers[behind].begin();
    let mut reads = 0;
    while reads < 6 || is_behind(&replicas(&store).await) {
        assert_eq!(store.own_members().await.unwrap().len() as u64, MEMBERS);
        assert_eq!(present(&store).await.len() as u64, MEMBERS);
        reads += 1;
    }
}
