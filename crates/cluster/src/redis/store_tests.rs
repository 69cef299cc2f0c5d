//! Tests of what the store in Redis does in its own way: the index of channels, refused writes, large reads, and what nodes of
//! earlier versions find.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use dunlin_config::Engine;
use dunlin_hub::{ClientInfo, SessionId};

use super::link::RedisReply;
use super::*;
use crate::lease::LeaseWrite;
use crate::log_position::LogPosition;
use crate::node_message::StoredMember;
use crate::store::{LogClaim, LogEntry, LogPart};
use crate::test_servers::Redis;

/// Opens a connection of the process `uid`.
async fn store(redis: &Redis, uid: &str) -> RedisStore {
    let engine = Engine { addresses: [redis.server()].into(), ..Engine::default() };
    let address = RedisAddress::new(&Arc::new(engine));
    RedisStore::open(&address, uid.into(), Inbox::of_nobody()).await.unwrap()
}

async fn renew(store: &RedisStore) -> Result<LeaseWrite, StoreError> {
    let number = store.uid.bytes().map(u16::from).sum();
    let uid = Arc::clone(&store.uid);
    let lease = Lease { uid, number, lease_ms: 60_000, is_wanted: false };
    Ok(store.write_lease(lease, Facts::named(""), Vec::new()).await?.written)
}

/// A session of the process joins a channel (`+`) or leaves it (`-`); `!`: it is the first there, or the last to leave.
fn change(store: &RedisStore, (channel, client): (&str, u64), kind: &str) -> TrackedChange {
    let (joined, at_edge) = (kind.starts_with('+'), kind.ends_with('!'));
    let info = ClientInfo {
        user_is_number: false,
        foreign_client: None,
        client: SessionId::from_u64(0).unwrap(),
        user: "ann".into(),
        conn_info: Some(format!("\"{}\"", "x".repeat(200)).into_bytes().into()),
        chan_info: None,
    };
    let member = StoredMember { presence: true, ..StoredMember::new(&store.uid, &info) };
    (MemberChange { channel: channel.into(), client, joined, member }, at_edge)
}

async fn call(store: &RedisStore, command: &[&str]) -> RedisReply {
    let command: Vec<&[u8]> = command.iter().map(|word| word.as_bytes()).collect();
    store.link.call(&[&command]).await.unwrap().remove(0)
}

fn is_fenced<T>(written: &Result<T, StoreError>) -> bool {
    matches!(written, Err(StoreError::Refused(_, error)) if error.starts_with("FENCED "))
}

/// Regression test: only the last change of a channel in a report decided whether the process had members there. If a second
/// member joined and left in one report, the channel was dropped from the index, and neither sweep nor reconciliation found the
/// first.
#[tokio::test]
async fn channel_is_in_the_index_while_the_process_has_a_member_there() {
    let redis = Redis::start(&[]);
    let node = store(&redis, "a").await;
    renew(&node).await.unwrap();
    let of = |client, kind| change(&node, ("room", client), kind);
    let own = async || -> Vec<u64> {
        node.own_members().await.unwrap().keys().map(|(_, client)| *client).collect()
    };
    let written = node.write_members(&[of(1, "+!"), of(2, "+"), of(2, "-")]).await;
    assert_eq!(written, Ok(vec![true, true, true]));
    assert_eq!(own().await, [1]);
    let written = node.write_members(&[of(1, "+"), of(1, "-!"), of(3, "+!")]).await;
    assert_eq!(written, Ok(vec![false, true, true]), "one was there");
    assert_eq!(own().await, [3]);
    node.write_members(&[of(3, "-!")]).await.unwrap();
    let (channels, members) = (node.key("channels:a"), node.key("members:room"));
    assert_eq!(call(&node, &["EXISTS", &channels, &members]).await, RedisReply::Integer(0));
}

#[tokio::test]
async fn write_without_a_lease_is_refused() {
    let redis = Redis::start(&[]);
    let node = store(&redis, "a").await;
    assert!(is_fenced(&node.write_members(&[change(&node, ("room", 1), "+!")]).await));
    assert!(is_fenced(&node.keep("user u", b"1".to_vec()).await));
    assert!(is_fenced(&node.keep_absent(vec![("user u".into(), b"1".to_vec())]).await));
    let counts = UserCountsWrite { users: vec![("u".into(), 1)], ..UserCountsWrite::default() };
    assert!(is_fenced(&node.count_users(counts).await));
}

/// Regression test: the members of many channels, including those of other nodes, came in one reply. It exceeded the output
/// buffer limit of a subscribed connection, which Redis closed repeatedly.
#[tokio::test]
async fn members_of_a_large_fleet_are_read_beside_the_connection_that_subscribes() {
    const CHANNELS: usize = 20;
    let redis = Redis::start(&[]);
    let (node, other) = (store(&redis, "a").await, store(&redis, "b").await);
    renew(&node).await.unwrap();
    renew(&other).await.unwrap();
    call(&node, &["CONFIG", "SET", "client-output-buffer-limit", "pubsub 256kb 256kb 1"]).await;
    for (store, base, count) in [(&node, 0, 3), (&other, 10_000, 300)] {
        let each = (0..CHANNELS).flat_map(|at| (1..=count).map(move |client| (at, client)));
        let join = |(at, client): (usize, u64)| {
            change(
                store,
                (&format!("room{at}"), base + client),
                if client == 1 { "+!" } else { "+" },
            )
        };
        for step in each.map(join).collect::<Vec<_>>().chunks(4_096) {
            store.write_members(step).await.unwrap();
        }
    }
    assert_eq!(node.own_members().await.unwrap().len(), 3 * CHANNELS);
    let living = || ["a", "b"].map(Arc::from).into();
    let all = node.members_in("room7", Gathered::new(living(), Some(usize::MAX), true)).await;
    let all = all.unwrap();
    assert_eq!((all.list(usize::MAX).unwrap().len(), all.stats().clients), (303, 303));
    assert_eq!(all.stats().users, 1);
    let some = node.members_in("room7", Gathered::new(living(), Some(50_000), false)).await;
    assert!(some.unwrap().list(50_000).is_err(), "it is too large");
    let swept = node.sweep("b".into(), 60_000).await.unwrap().unwrap();
    assert_eq!(swept.len(), 300 * CHANNELS);
    assert!(renew(&node).await.is_ok() && !other.link.has_ended(), "they were not cut");
}

/// Nodes of earlier versions read and write the same keys.
#[tokio::test]
async fn records_have_the_keys_and_encodings_of_earlier_versions() {
    let redis = Redis::start(&[]);
    let node = store(&redis, "a").await;
    renew(&node).await.unwrap();
    let text = async |command: &[&str]| call(&node, command).await.text().map(str::to_owned);
    let (calls, budgets) = (node.key("revocations"), node.key("budgets"));
    node.keep("user u", br#"{"v":1}"#.to_vec()).await.unwrap();
    assert_eq!(text(&["HGET", &calls, "user u"]).await.as_deref(), Some(r#"{"v":1}"#));
    call(&node, &["HSET", &calls, "user v", r#"{"v":2}"#]).await;
    let mut kept = node.kept().await.unwrap();
    kept.sort();
    let entry = |name: &str, call: &str| (name.into(), call.as_bytes().to_vec());
    assert_eq!(kept, [entry("user u", r#"{"v":1}"#), entry("user v", r#"{"v":2}"#)]);
    assert_eq!(node.budgets_key([1; 16]).await, Ok([1; 16]));
    let stored = text(&["GET", &budgets]).await;
    assert_eq!(stored.as_deref(), Some("1 01010101010101010101010101010101"));
    call(&node, &["SET", &budgets, "1 000000000000000000000000000000ff"]).await;
    assert_eq!(node.budgets_key([1; 16]).await.map(|key| key[15]), Ok(255));
    call(&node, &["SET", &budgets, "2 of a later version"]).await;
    let refused = node.budgets_key([1; 16]).await.map_err(|error| error.condition());
    assert_eq!(refused, Err(Condition::ForeignKey));

    let (log, claim) = (node.key("settings"), node.key("settings:claim"));
    let none = LogPosition::default();
    assert_eq!(node.claim_log(60_000, none).await, Ok(LogClaim::Claimed(none)));
    assert_eq!(text(&["GET", &claim]).await.as_deref(), Some("a"));
    assert!(matches!(call(&node, &["PTTL", &claim]).await, RedisReply::Integer(50_000..=60_000)));
    let at = LogPosition { id: 7, revision: 1 };
    let entry = LogEntry { at, sealed: b"sealed".to_vec(), message: b"{}".to_vec() };
    assert_eq!(node.append_log(entry).await, Ok(true));
    let fields = ["id", "revision", "since", "bytes", "1"];
    let mut stored = Vec::new();
    for field in fields {
        stored.push(text(&["HGET", &log, field]).await.unwrap());
    }
    assert_eq!(stored, ["7", "1", "0", "6", "sealed"]);
    assert_eq!(call(&node, &["HLEN", &log]).await, RedisReply::Integer(5));
    assert_eq!(call(&node, &["EXISTS", &claim]).await, RedisReply::Integer(0));
}

/// How nodes of earlier versions claim the log: KEYS: log, claim. ARGV: uid, milliseconds, id and newest change that was read.
const EARLIER_CLAIM: &str = r"
local log = redis.call('HMGET', KEYS[1], 'id', 'revision')
local revision = log[2] or '0'
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then return {'under_way', log[1] or '0', revision} end
if log[1] and (log[1] ~= ARGV[3] or revision ~= ARGV[4]) then return {'behind', log[1], revision} end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {'claimed', log[1] or '0', revision}
";

/// How they append: KEYS: log, claim. ARGV: uid, id of the log, number, change, the most changes and bytes to keep, channel, message.
const EARLIER_APPEND: &str = r"
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
local number = tonumber(ARGV[3])
local log = redis.call('HMGET', KEYS[1], 'id', 'revision', 'since', 'bytes')
local since, bytes = tonumber(log[3] or 0), tonumber(log[4] or 0)
if log[1] ~= ARGV[2] or tonumber(log[2] or 0) + 1 ~= number then
  redis.call('DEL', KEYS[1])
  since, bytes = number - 1, 0
end
bytes = bytes + #ARGV[4]
while since < number - 1 and (number - since > tonumber(ARGV[5]) or bytes > tonumber(ARGV[6])) do
  since = since + 1
  local gone = redis.call('HGET', KEYS[1], since)
  if gone then bytes = bytes - #gone end
  redis.call('HDEL', KEYS[1], since)
end
redis.call('HSET', KEYS[1], 'id', ARGV[2], 'revision', number, 'since', since, 'bytes', bytes, number, ARGV[4])
redis.call('DEL', KEYS[2])
redis.call('PUBLISH', ARGV[7], ARGV[8])
return 1
";

/// A rolling upgrade: a node of an earlier version and one of this version make changes by turns.
#[tokio::test]
async fn settings_log_is_shared_with_nodes_of_earlier_versions() {
    let redis = Redis::start(&[]);
    let node = store(&redis, "a").await;
    renew(&node).await.unwrap();
    let (log, claim) = (node.key("settings"), node.key("settings:claim"));
    let run = async |script: &str, arguments: &[&str]| {
        let keys = [log.as_str(), claim.as_str()];
        call(&node, &[&["EVAL", script, "2"], &keys[..], arguments].concat()).await
    };
    let earlier_claim = async |revision: &str| {
        let claimed = run(EARLIER_CLAIM, &["earlier", "60000", "7", revision]).await;
        claimed.list()[0].text().unwrap().to_owned()
    };
    let earlier_append = async |number: &str, sealed: &str| {
        run(EARLIER_APPEND, &["earlier", "7", number, sealed, "1000", "8388608", "c", "m"]).await
    };
    let at = |revision| LogPosition { id: 7, revision };
    let append = |revision| {
        let message = b"{}".to_vec();
        node.append_log(LogEntry { at: at(revision), sealed: vec![b'n'; 9], message })
    };
    let none = LogPosition::default();
    assert_eq!(node.claim_log(60_000, none).await, Ok(LogClaim::Claimed(none)));
    assert_eq!(earlier_claim("0").await, "under_way");
    assert_eq!(append(1).await, Ok(true));
    assert_eq!(earlier_claim("0").await, "behind");
    assert_eq!(earlier_claim("1").await, "claimed");
    assert_eq!(node.claim_log(60_000, at(1)).await, Ok(LogClaim::UnderWay(at(1))));
    assert_eq!(append(2).await, Ok(false), "the claim is the other's");
    assert_eq!(earlier_append("2", "earlier").await, RedisReply::Integer(1));
    assert_eq!(node.claim_log(60_000, at(1)).await, Ok(LogClaim::Behind(at(2))));
    assert_eq!(node.claim_log(60_000, at(2)).await, Ok(LogClaim::Claimed(at(2))));
    assert_eq!(append(3).await, Ok(true));
    assert_eq!(earlier_claim("3").await, "claimed");
    assert_eq!(earlier_append("4", "earlier").await, RedisReply::Integer(1));
    let changes = [(1, &b"nnnnnnnnn"[..]), (2, b"earlier"), (3, b"nnnnnnnnn"), (4, b"earlier")];
    let changes = changes.map(|(number, sealed)| (number, sealed.to_vec())).into();
    assert_eq!(node.read_log(none).await, Ok(LogPart { log: at(4), since: 0, changes }));
    assert_eq!(call(&node, &["HGET", &log, "bytes"]).await.text(), Some("32"));
}
