//! Tests of the permissions that the user in Redis needs.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use dunlin_config::{Engine, EngineTopology, Secret};
use dunlin_hub::{ClientInfo, SessionId};
use dunlin_testkit::Redis;

use super::*;
use crate::inbox::inbox;
use crate::lease::LeaseWrite;
use crate::log_position::LogPosition;
use crate::node_message::StoredMember;
use crate::store::{LogClaim, LogEntry};

/// The words of the documented `ACL SETUSER` line.
fn documented_user() -> Vec<&'static str> {
    let page = include_str!("../../../../docs/operating/cluster.md");
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
        let addresses = [redis.addr.to_string()].into();
        let (user, password) = (Some("dunlin".into()), Some(Secret::new("password")));
        let engine = Engine { addresses, topology, user, password, ..Engine::default() };
        does_all(&RedisAddress::new(&Arc::new(engine))).await;
    }
}
