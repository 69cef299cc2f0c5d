//! Tests of the store in NATS: a large channel, and three replicated servers, one of which lags behind.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_config::{Engine, EngineKind};
use dunlin_hub::{ClientInfo, SessionId};
use serde_json::Value;

use super::inbox::Inbox;
use super::lease::{Facts, Lease, LeaseWrite};
use super::members::Gathered;
use super::nats::{self, NatsAddress, NatsStream};
use super::node_message::{MemberChange, StoredMember};
use super::ordered::OrderedStore;
use super::store::{Store as _, StoreError};
use super::test_servers::{Nats, Running};

type NatsStore = OrderedStore<NatsStream>;

/// Enough to keep a restarted server behind for a while.
const MEMBERS: u64 = 8_000;
const TIMEOUT: Duration = Duration::from_secs(60);

fn address<const N: usize>(servers: [String; N], stream_replicas: u8) -> NatsAddress {
    let (kind, addresses) = (EngineKind::Nats, servers.into());
    let engine = Engine { kind, addresses, stream_replicas, ..Engine::default() };
    NatsAddress::new(&Arc::new(engine))
}

async fn renew(store: &NatsStore) -> Result<LeaseWrite, StoreError> {
    let lease = Lease { uid: "a".into(), number: 1, lease_ms: 60_000, is_wanted: false };
    Ok(store.write_lease(lease, Facts::named(""), Vec::new()).await?.written)
}

/// Sessions 1 to `count` join a channel.
async fn join(store: &NatsStore, count: u64, conn_info: Option<Box<[u8]>>) {
    let info = ClientInfo {
        user_is_number: false,
        foreign_client: None,
        client: SessionId::from_u64(0).unwrap(),
        user: "".into(),
        conn_info,
        chan_info: None,
    };
    let member = StoredMember { presence: true, ..StoredMember::new(store.uid(), &info) };
    let join = |client| {
        let member = member.clone();
        (MemberChange { channel: "room".into(), client, joined: true, member }, false)
    };
    store.write_members(&(1..=count).map(join).collect::<Vec<_>>()).await.unwrap();
}

async fn present(store: &NatsStore) -> u64 {
    let wanted = Gathered::new(["a".into()].into(), None, true);
    store.members_in("room", wanted).await.unwrap().stats().clients
}

/// Regression test: all members of a channel were delivered before the response to a lease renewal on the same connection.
#[tokio::test]
async fn a_lease_is_written_while_a_large_channel_is_read() {
    let nats = Nats::start();
    let address = address([nats.server.clone()], 1);
    let store = nats::open(&address, "a".into(), Inbox::of_nobody()).await.unwrap();
    renew(&store).await.unwrap();
    let info = format!("\"{}\"", "x".repeat(16 << 10)).into_bytes();
    join(&store, 2_000, Some(info.into())).await;
    let reader = store.clone();
    let read = tokio::spawn(async move { present(&reader).await });
    assert_eq!(renew(&store).await, Ok(LeaseWrite::Renewed));
    assert!(!read.is_finished(), "the lease came behind all members");
    assert_eq!(read.await.unwrap(), 2_000);
}

/// One of the three servers.
struct Server {
    name: String,
    directory: tempfile::TempDir,
    running: Option<Running>,
}

impl Server {
    fn begin(&mut self) {
        self.running = Some(Nats::start_with(&self.directory.path().join("nats.conf")));
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
        let mut server = Server { name, directory, running: None };
        server.begin();
        server
    })
}

/// Opens a connection, once the servers have formed a cluster.
async fn store(servers: &[Server; 3]) -> NatsStore {
    let address = address(servers.each_ref().map(|of| format!("{}:4222", of.name)), 3);
    let began = Instant::now();
    loop {
        let opened = nats::open(&address, "a".into(), Inbox::of_nobody()).await;
        match opened {
            Ok(store) if renew(&store).await.is_ok() => return store,
            _ => assert!(began.elapsed() < TIMEOUT, "the servers do not find each other"),
        }
    }
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
    let store = store(&servers).await;
    let leader = store.0.stream.replicas().await["leader"].take();
    // Not the first server, which has this connection.
    let behind = if leader == servers[2].name { 1 } else { 2 };
    servers[behind].running = None;
    join(&store, MEMBERS, None).await;
    servers[behind].begin();
    let mut reads = 0;
    while reads < 6 || is_behind(&store.0.stream.replicas().await) {
        assert_eq!(store.own_members().await.unwrap().len() as u64, MEMBERS);
        assert_eq!(present(&store).await, MEMBERS);
        reads += 1;
    }
}
