//! Tests of the permissions that the user in Redis needs.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use dunlin_config::{Engine, EngineTopology, Secret};
use dunlin_hub::{ClientInfo, SessionId};

use super::*;
use crate::cluster::inbox::inbox;
use crate::cluster::lease::LeaseWrite;
use crate::cluster::log_position::LogPosition;
use crate::cluster::message::StoredMember;
use crate::cluster::store::{LogClaim, LogEntry};

struct Redis {
    child: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Redis {
    fn start(arguments: &[&str]) -> Redis {
        // The port was free a moment ago; if another process has taken it, try another one.
        for _ in 0..20 {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let directory = tempfile::tempdir().unwrap();
            let mut child = Command::new("redis-server")
                .args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string(), "--dir"])
                .arg(directory.path())
                .args(arguments)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap_or_else(|error| panic!("redis-server: {error}; scripts/packages"));
            let mut said =
                BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
            let is_ready = said.by_ref().any(|line| line.contains("Ready to accept"));
            // It keeps writing, and must not block on a full pipe.
            std::thread::spawn(move || said.for_each(drop));
            if is_ready {
                return Redis { child, port, _directory: directory };
            }
            let _ = child.wait();
        }
        panic!("redis-server does not start");
    }

    /// Returns the output of redis-cli for a command.
    fn cli(&self, arguments: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(arguments).output();
        String::from_utf8_lossy(&output.unwrap().stdout).trim().to_owned()
    }
}

/// The words of the documented `ACL SETUSER` line.
fn documented_user() -> Vec<&'static str> {
    let page = include_str!("../../../../../docs/operating/cluster.md");
    let line = page.split('`').find(|text| text.starts_with("ACL SETUSER ")).unwrap();
    let rules = line.split_once(">password ").unwrap().1;
    let fix = Condition::NotPermitted.fix(dunlin_config::EngineKind::Redis);
    assert!(fix.replace("PREFIX", "dunlin").contains(rules), "{fix}: {rules}");
    line.split(' ').collect()
}

/// Calls every operation of a store.
async fn does_all(address: &RedisAddress) {
    let (messages, mut said) = inbox();
    let store = RedisStore::open(address, "a".into(), messages).await.unwrap();
    let lease = || Lease { uid: "a".into(), number: 1, lease_ms: 60_000, is_wanted: false };
    let renewed = store.write_lease(lease(), Facts::named("a"), b"probe".to_vec()).await.unwrap();
    assert_eq!(renewed.written, LeaseWrite::Created);
    assert_eq!(&*said.next().await.unwrap(), b"probe");
    store.send(vec![(Destination::All, b"call".to_vec())]).await.unwrap();
    assert_eq!(&*said.next().await.unwrap(), b"call");

    let info = ClientInfo {
        user_is_number: false,
        foreign_client: None,
        client: SessionId::from_u64(0).unwrap(),
        user: "".into(),
        conn_info: None,
        chan_info: None,
    };
    let member =
        StoredMember { presence: true, join_leave: true, ..StoredMember::new(&"a".into(), &info) };
    let change = MemberChange { channel: "room".into(), client: 7, joined: true, member };
    assert_eq!(store.write_members(&[(change, true)]).await.unwrap(), [true]);
    assert_eq!(store.own_members().await.unwrap().len(), 1);
    let wanted = Gathered::new(["a".into()].into(), None, true);
    assert_eq!(store.members_in("room", wanted).await.unwrap().stats().clients, 1);
    let users = vec![("user".into(), 1)];
    let counts = UserCountsWrite { users, is_all: true, others: vec!["b".into()] };
    assert_eq!(store.count_users(counts).await.unwrap(), [0]);
    assert_eq!(store.budgets_key([7; 16]).await.unwrap(), [7; 16]);
    store.keep("name", br#""call""#.to_vec()).await.unwrap();
    assert_eq!(store.kept().await.unwrap().len(), 1);
    store.drop_kept(vec![("name".into(), br#""call""#.to_vec())]).await.unwrap();
    let known = LogPosition::default();
    assert!(matches!(store.claim_log(60_000, known).await.unwrap(), LogClaim::Claimed(_)));
    let at = LogPosition { id: 1, revision: 1 };
    let entry = LogEntry { at, sealed: b"sealed".to_vec(), message: b"message".to_vec() };
    assert!(store.append_log(entry).await.unwrap());
    store.read_log(known).await.unwrap();
    store.release_log().await.unwrap();
    store.sweep("b".into(), 60_000).await.unwrap();
    store.forget("b".into()).await.unwrap();
    store.leave(lease()).await.unwrap();
}

#[tokio::test]
async fn the_documented_user_may_do_what_is_needed() {
    for topology in [EngineTopology::Servers, EngineTopology::Cluster] {
        let is_cluster = topology == EngineTopology::Cluster;
        let redis = match is_cluster {
            true => Redis::start(&["--cluster-enabled", "yes"]),
            false => Redis::start(&[]),
        };
        if is_cluster {
            redis.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
            while !redis.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
        assert_eq!(redis.cli(&documented_user()), "OK");
        let addresses = [format!("127.0.0.1:{}", redis.port)].into();
        let (user, password) = (Some("dunlin".into()), Some(Secret::new("password")));
        let engine = Engine { addresses, topology, user, password, ..Engine::default() };
        does_all(&RedisAddress::new(&Arc::new(engine))).await;
    }
}
