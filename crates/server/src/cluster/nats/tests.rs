//! Tests of the NATS store with a real server.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use dunlin_config::{Engine, EngineKind};
use dunlin_hub::{ClientInfo, SessionId};

use super::*;
use crate::cluster::lease::LeaseWrite;
use crate::cluster::message::StoredMember;

struct Nats {
    address: NatsAddress,
    _server: dunlin_testkit::Nats,
}

impl Nats {
    fn start() -> Nats {
        let server = dunlin_testkit::Nats::start(&["-js"], "");
        Nats { address: address([server.addr.to_string()], 1), _server: server }
    }

    /// Opens a connection of the process `uid`.
    async fn store(&self, uid: &str) -> NatsStore {
        let messages = Inbox::of_nobody();
        NatsStore::open(&self.address, uid.into(), messages).await.unwrap()
    }
}

/// Returns the address of servers with this number of replicas of each stream.
pub(super) fn address<const N: usize>(at: [String; N], stream_replicas: u8) -> NatsAddress {
    let (kind, addresses) = (EngineKind::Nats, at.into());
    let engine = Engine { kind, addresses, stream_replicas, ..Engine::default() };
    NatsAddress::new(&Arc::new(engine))
}

pub(super) async fn renew(store: &NatsStore) -> Result<LeaseWrite, StoreError> {
    let facts = Facts::named("");
    let number = store.0.uid.bytes().map(u16::from).sum();
    let uid = Arc::clone(&store.0.uid);
    let lease = Lease { uid, number, lease_ms: 60_000, is_wanted: false };
    Ok(store.write_lease(lease, facts, Vec::new()).await?.written)
}

/// Writes changes: `+1`: session 1 joins, `-1`: it leaves. Returns for each whether it changed the store.
pub(super) async fn write(store: &NatsStore, changes: &[&str]) -> Vec<bool> {
    write_info(store, changes, None).await
}

/// Writes changes like [`write`], with this connection info.
async fn write_info(
    store: &NatsStore,
    changes: &[&str],
    conn_info: Option<Box<[u8]>>,
) -> Vec<bool> {
    let changes = changes.iter().map(|change| {
        let info = ClientInfo {
            user_is_number: false,
            foreign_client: None,
            client: SessionId::from_u64(0).unwrap(),
            user: "".into(),
            conn_info: conn_info.clone(),
            chan_info: None,
        };
        let member = StoredMember {
            presence: true,
            join_leave: true,
            ..StoredMember::new(&store.0.uid, &info)
        };
        let (joined, client) = (change.starts_with('+'), change[1..].parse().unwrap());
        (MemberChange { channel: "a room.*".into(), client, joined, member }, false)
    });
    store.write_members(&changes.collect::<Vec<_>>()).await.unwrap()
}

async fn swept(store: &NatsStore, dead: &str) -> Option<Vec<u64>> {
    let gone = store.sweep(dead.into(), 60_000).await.unwrap()?;
    Some(gone.iter().map(|change| change.client).collect())
}

async fn listed(store: &NatsStore) -> Vec<u64> {
    store.own_members().await.unwrap().keys().map(|(_, client)| *client).collect()
}

pub(super) async fn present(store: &NatsStore) -> Vec<u64> {
    let living = ["a", "b"].map(Arc::from).into();
    let wanted = Gathered::new(living, Some(usize::MAX), false);
    let found = store.members_in("a room.*", wanted).await.unwrap().list(usize::MAX);
    found.unwrap().iter().map(|info| info.client.to_u64()).collect()
}

async fn records(store: &NatsStore, filter: &str) -> usize {
    store.0.stream.read(&store.subject(filter)).await.unwrap().len()
}

#[tokio::test]
async fn a_write_says_whether_it_has_changed_anything_and_nothing_stays_of_who_has_gone() {
    let nats = Nats::start();
    let store = nats.store("a").await;
    assert_eq!(renew(&store).await, Ok(LeaseWrite::Created));
    assert_eq!(
        write(&store, &["+1", "+2", "-2", "+2", "-3"]).await,
        [true, true, true, true, false]
    );
    assert_eq!(write(&store, &["+1"]).await, [false], "it was there");
    assert_eq!((listed(&store).await, present(&store).await), (vec![1, 2], vec![2, 1]));
    assert_eq!(write(&store, &["-1", "-2"]).await, [true, true]);
    assert_eq!(records(&store, "members.>").await, 0);
    let many: Vec<String> = (1..=5_000).map(|client| format!("+{client}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(write(&store, &many).await.into_iter().all(|has_changed| has_changed));
    assert_eq!(present(&store).await.len(), 5_000);
}

/// Regression test: all members of a channel were delivered before the response to a lease renewal on the same connection.
#[tokio::test]
async fn a_lease_is_written_while_a_large_channel_is_read() {
    let nats = Nats::start();
    let store = nats.store("a").await;
    renew(&store).await.unwrap();
    let changes: Vec<String> = (1..=2_000).map(|client| format!("+{client}")).collect();
    let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
    let info = format!("\"{}\"", "x".repeat(16 << 10)).into_bytes();
    write_info(&store, &changes, Some(info.into())).await;
    let reader = store.clone();
    let read = tokio::spawn(async move { present(&reader).await.len() });
    assert_eq!(renew(&store).await, Ok(LeaseWrite::Renewed));
    assert!(!read.is_finished(), "the lease came behind all members");
    assert_eq!(read.await.unwrap(), 2_000);
}

/// Late writes of an abandoned connection are stored but have no effect.
#[tokio::test]
async fn what_an_earlier_connection_writes_counts_for_nothing() {
    let nats = Nats::start();
    let (former, store) = (nats.store("a").await, nats.store("a").await);
    renew(&former).await.unwrap();
    write(&former, &["+1", "+4"]).await;
    assert_eq!(renew(&store).await, Ok(LeaseWrite::Renewed));
    // Rewrites existing entries over this connection, as a reconciliation does.
    assert_eq!(write(&store, &["+1", "+4"]).await, [false, false]);
    write(&former, &["+2"]).await;
    assert!(renew(&former).await.is_err(), "late, and it changes nothing");
    write(&store, &["+3"]).await;
    assert_eq!(present(&store).await, [1, 4, 3]);
    assert_eq!(write(&store, &["+2"]).await, [true], "what came late is nobody's");
    assert_eq!(listed(&store).await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn nothing_counts_that_comes_after_a_sweep_and_who_lives_finds_out() {
    let nats = Nats::start();
    let (store, other) = (nats.store("a").await, nats.store("b").await);
    renew(&store).await.unwrap();
    write(&store, &["+1", "+2"]).await;
    renew(&other).await.unwrap();
    assert_eq!(swept(&other, "a").await.unwrap(), [1, 2]);
    assert_eq!(present(&other).await, [0; 0], "what is being swept does not count");
    other.forget("a".into()).await.unwrap();
    assert_eq!(records(&other, "members.>").await, 0);
    assert_eq!(records(&other, "state.processes.*").await, 1);
    write(&store, &["+3"]).await;
    renew(&other).await.unwrap();
    // The process has no record, so a reader removes its entries.
    present(&other).await;
    while records(&other, "members.>").await > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(renew(&store).await, Ok(LeaseWrite::Revived));
    assert_eq!(write(&store, &["+3"]).await, [true]);
    assert_eq!(listed(&store).await, [3]);
}

/// A process that is revived during its sweep keeps what it has written since.
#[tokio::test]
async fn leaves_that_a_sweep_did_not_announce_are_announced_by_the_next_unless_the_process_lives() {
    let nats = Nats::start();
    let (store, other, third) =
        (nats.store("a").await, nats.store("b").await, nats.store("c").await);
    renew(&store).await.unwrap();
    write(&store, &["+1", "+2"]).await;
    assert_eq!(swept(&other, "a").await.unwrap(), [1, 2]);
    drop(other);
    assert_eq!(swept(&third, "a").await, None, "the claim holds for a while");
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    assert_eq!(third.sweep("a".into(), 0).await.unwrap().map(|gone| gone.len()), Some(2));
    assert_eq!(renew(&store).await, Ok(LeaseWrite::Revived));
    assert_eq!(write(&store, &["+1"]).await, [true], "it was announced as gone");
    third.forget("a".into()).await.unwrap();
    assert_eq!(listed(&store).await, [1]);
    assert_eq!(swept(&third, "nobody").await, None);
}

#[tokio::test]
async fn of_two_that_want_one_number_one_has_it() {
    let nats = Nats::start();
    let stores = [nats.store("ab").await, nats.store("ba").await];
    let [one, other] = stores.each_ref().map(renew);
    let (one, other) = tokio::join!(one, other);
    let mut written = [one.unwrap(), other.unwrap()];
    written.sort_by_key(|written| *written == LeaseWrite::Taken);
    assert_eq!(written, [LeaseWrite::Created, LeaseWrite::Taken]);
}

/// Regression test: of two nodes that admitted the last connection at once, both or none were refused.
#[tokio::test]
async fn of_two_that_count_a_user_at_once_the_second_learns_of_the_first() {
    let nats = Nats::start();
    let stores = [nats.store("a").await, nats.store("b").await];
    for store in &stores {
        renew(store).await.unwrap();
    }
    let count = |at: usize, user: &str, connections| {
        let users = vec![(user.into(), connections)];
        let others = vec![["b", "a"][at].into()];
        stores[at].count_users(UserCountsWrite { users, is_all: false, others })
    };
    assert_eq!(count(0, "ann ü. *", 1).await, Ok(vec![0]));
    assert_eq!(count(1, "ann ü. *", 3).await, Ok(vec![1]));
    assert_eq!(count(0, "ann ü. *", 2).await, Ok(vec![3]));
    for user in 0..20 {
        let user = format!("bob{user}");
        let (one, other) = tokio::join!(count(0, &user, 1), count(1, &user, 1));
        let mut elsewhere = [one.unwrap()[0], other.unwrap()[0]];
        elsewhere.sort_unstable();
        assert_eq!(elsewhere, [0, 1]);
    }
    assert_eq!(count(1, "ann ü. *", 0).await, Ok(vec![0]));
    assert_eq!(count(0, "ann ü. *", 3).await, Ok(vec![0]));
    // Writes all counts over a new connection; late writes of the former one have no effect.
    let again = nats.store("a").await;
    renew(&again).await.unwrap();
    let users = vec![("ann ü. *".into(), 5)];
    let all = UserCountsWrite { users, is_all: true, others: vec!["b".into()] };
    assert_eq!(again.count_users(all).await, Ok(vec![0]));
    assert_eq!(records(&again, "users.*.a").await, 1);
    assert_eq!(count(0, "bob0", 9).await, Ok(vec![1]));
    renew(&stores[1]).await.unwrap();
    assert_eq!(count(1, "bob0", 1).await, Ok(vec![0]));
    assert_eq!(count(1, "ann ü. *", 1).await, Ok(vec![5]));
    // Nothing is left of a dead process.
    assert!(swept(&stores[1], "a").await.is_some());
    stores[1].forget("a".into()).await.unwrap();
    assert_eq!(records(&stores[1], "users.*.a").await, 0);
}

#[tokio::test]
async fn a_call_takes_the_place_of_the_one_before_and_is_removed_by_its_name() {
    let nats = Nats::start();
    let store = nats.store("a").await;
    for call in [r#""blocked""#, r#""unblocked""#] {
        store.keep("user ü. *", call.into()).await.unwrap();
    }
    store.keep("user b", b"1".to_vec()).await.unwrap();
    let kept = store.kept().await.unwrap();
    let of_u = ("user ü. *".into(), br#""unblocked""#.to_vec());
    assert_eq!(kept, [of_u.clone(), ("user b".into(), b"1".to_vec())]);
    store.drop_kept(vec!["user b".into(), "user c".into()]).await.unwrap();
    let absent = [("user ü. *", "3"), ("user b", "4")];
    let absent = absent.map(|(name, call)| (name.into(), call.into()));
    store.keep_absent(absent.into()).await.unwrap();
    assert_eq!(store.kept().await.unwrap(), [of_u, ("user b".into(), b"4".to_vec())]);
}

#[tokio::test]
async fn the_log_of_settings_has_one_writer_at_a_time_and_a_bounded_number_of_changes() {
    let nats = Nats::start();
    let (store, other) = (nats.store("a").await, nats.store("b").await);
    let none = LogPosition::default();
    renew(&other).await.unwrap();
    assert_eq!(store.claim_log(60_000, none).await, Ok(LogClaim::Claimed(none)));
    assert_eq!(other.claim_log(60_000, none).await, Ok(LogClaim::UnderWay(none)));
    let entry = |revision: u64, bytes: usize| {
        let at = LogPosition { id: 7, revision };
        LogEntry { at, sealed: vec![revision as u8; bytes], message: b"{}".to_vec() }
    };
    assert_eq!(other.append_log(entry(1, 10)).await, Ok(false));
    assert_eq!(store.append_log(entry(1, 10)).await, Ok(true));
    assert_eq!(store.append_log(entry(2, 10)).await, Ok(false), "the right is used up");
    let first = LogPosition { id: 7, revision: 1 };
    assert_eq!(other.claim_log(60_000, none).await, Ok(LogClaim::Behind(first)));
    assert_eq!(other.claim_log(60_000, first).await, Ok(LogClaim::Claimed(first)));
    other.release_log().await.unwrap();
    for revision in 2..=12 {
        let read = LogPosition { id: 7, revision: revision - 1 };
        assert_eq!(store.claim_log(60_000, read).await, Ok(LogClaim::Claimed(read)));
        assert_eq!(store.append_log(entry(revision, 900_000)).await, Ok(true));
    }
    let part = other.read_log(none).await.unwrap();
    assert_eq!((part.log.revision, part.since, part.changes.len()), (12, 3, 9));
    assert_eq!(records(&store, "log.>").await, 9);
    let newest = other.read_log(LogPosition { id: 7, revision: 11 }).await.unwrap();
    assert_eq!(newest.changes, [(12, vec![12; 900_000])]);
    // The largest change exceeds the size of a message once it is sealed.
    let claim = |read| store.claim_log(60_000, read);
    assert!(matches!(claim(part.log).await, Ok(LogClaim::Claimed(_))));
    assert_eq!(store.append_log(entry(13, (1 << 20) + 100)).await, Ok(true));
    let newest = other.read_log(part.log).await.unwrap();
    assert_eq!(newest.changes, [(13, vec![13; (1 << 20) + 100])]);
    assert_eq!(records(&store, "log.13.*").await, 1);
    for revision in 14..=22 {
        let read = LogPosition { id: 7, revision: revision - 1 };
        assert_eq!(claim(read).await, Ok(LogClaim::Claimed(read)));
        assert_eq!(store.append_log(entry(revision, 900_000)).await, Ok(true));
    }
    assert_eq!(records(&store, "log.>").await, 9, "nothing is left of the parts");
    let part = other.read_log(none).await.unwrap();
    // A log that was lost continues from the position of the nodes.
    assert!(matches!(store.claim_log(60_000, part.log).await, Ok(LogClaim::Claimed(_))));
    assert_eq!(store.append_log(entry(30, 10)).await, Ok(true));
    let part = other.read_log(part.log).await.unwrap();
    assert_eq!((part.since, part.changes.len()), (29, 1));
}

/// A record that is replaced during a read may not be delivered. The test uses one that lease reads never deliver.
#[tokio::test]
async fn a_record_that_was_known_and_is_not_delivered_is_asked_for() {
    let nats = Nats::start();
    let store = nats.store("a").await;
    renew(&store).await.unwrap();
    assert_eq!(write(&store, &["+1"]).await, [true]);
    let members = store.0.stream.read(&store.subject("members.>")).await.unwrap();
    let [member] = &members[..] else { panic!("{members:?}") };
    let known = || store.known().subjects().any(|subject| *subject == *member.subject);
    store.known().know(&member.subject);
    renew(&store).await.unwrap();
    assert!(known(), "it is there, and was asked for");
    assert_eq!(write(&store, &["-1"]).await, [true]);
    renew(&store).await.unwrap();
    assert!(!known(), "it is removed");
}
