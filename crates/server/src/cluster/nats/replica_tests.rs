//! Tests of the NATS store with three replicated servers, one of which lags behind.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dunlin_testkit::{Addresses, Nats};
use serde_json::Value;

use super::tests::{address, present, renew, write};
use super::*;

/// Enough to keep a restarted server behind for a while.
const MEMBERS: u64 = 8_000;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts three servers at loopback addresses that no other process uses.
fn servers() -> [Nats; 3] {
    let ats = [(); 3].map(|()| SocketAddr::new(Addresses::new().client.ip(), 4222));
    let routes = ats.map(|at| format!("\"nats-route://{}:6222\"", at.ip())).join(", ");
    ats.map(|at| {
        let ip = at.ip();
        let config = format!(
            "server_name: \"{ip}\"
cluster {{ name: c, listen: \"{ip}:6222\", routes: [{routes}] }}"
        );
        Nats::start_at(at, &["-js"], &config)
    })
}

/// Opens a connection of the process `uid`, once the servers have formed a cluster.
async fn store(servers: &[Nats; 3], uid: &str) -> NatsStore {
    let address = address(servers.each_ref().map(|of| of.addr.to_string()), 3);
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
    let behind = if leader == servers[2].addr.ip().to_string() { 1 } else { 2 };
    servers[behind].kill();
    let changes: Vec<String> = (1..=MEMBERS).map(|client| format!("+{client}")).collect();
    let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
    write(&store, &changes).await;
    servers[behind].restart();
    let mut reads = 0;
    while reads < 6 || is_behind(&replicas(&store).await) {
        assert_eq!(store.own_members().await.unwrap().len() as u64, MEMBERS);
        assert_eq!(present(&store).await.len() as u64, MEMBERS);
        reads += 1;
    }
}
