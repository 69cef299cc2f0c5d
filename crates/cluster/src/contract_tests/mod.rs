//! What every store of a cluster promises, tried on each: the memory of a process, Redis, NATS.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_config::{Engine, EngineKind};
use dunlin_hub::{ClientInfo, SessionId};
use tokio::time::sleep;

use super::inbox::{InboxReader, inbox};
use super::lease::{Facts, Lease, LeaseReply, LeaseWrite};
use super::log_position::LogPosition;
use super::members::Gathered;
use super::memory::{Memory, MemoryLink};
use super::nats::{self, NatsAddress};
use super::node_message::{MemberChange, StoredMember};
use super::records::settings_log::parts;
use super::records::{Group, Key, RecordPut, RecordRead, RecordVersion};
use super::redis::{RedisAddress, RedisStore};
use super::store::{Destination, LogClaim, LogEntry, LogPart, Store, StoreError, UserCountsWrite};
use super::test_servers::{Nats, Redis, Wire};

macro_rules! contract {
    ($backend:ident: $kind:ty; $($story:ident),* $(,)?) => {
        mod $backend {
            $(#[tokio::test]
            async fn $story() {
                super::$story::<$kind>().await;
            })*
        }
    };
    ($($story:ident),* $(,)?) => {
        contract!(in_memory: std::sync::Arc<super::Memory>; $($story),*);
        contract!(on_redis: super::Redis; $($story),*);
        contract!(on_nats: super::Nats; $($story),*);
    };
}

mod members;
mod records;

/// Longer than what a test waits for on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);
const LONG_MS: u64 = 60_000;

/// A kind of store.
trait Backend: Sized {
    fn start() -> Self;

    /// Opens a connection of the process `uid`.
    async fn open(&self, uid: &str) -> Node;

    /// Loses all data.
    async fn flush(&self);
}

fn engine(kind: EngineKind, server: &str) -> Arc<Engine> {
    Arc::new(Engine { kind, addresses: [server.to_owned()].into(), ..Engine::default() })
}

/// A connection of a process.
struct Node {
    store: Arc<dyn Store>,
    messages: InboxReader,
    link: Link,
}

enum Link {
    Memory(MemoryLink),
    Wire(Wire),
}

impl Link {
    /// Loses all answers and messages from now on.
    fn mute(&self) {
        match self {
            Link::Memory(link) => link.mute(),
            Link::Wire(wire) => wire.mute(),
        }
    }

    fn cut(&self) {
        match self {
            Link::Memory(link) => link.cut(),
            Link::Wire(wire) => wire.cut(),
        }
    }
}

impl Backend for Arc<Memory> {
    fn start() -> Arc<Memory> {
        Arc::default()
    }

    async fn open(&self, uid: &str) -> Node {
        let (sender, messages) = inbox();
        let (store, link) = Memory::open(self, uid.into(), sender);
        Node { store: Arc::new(store), messages, link: Link::Memory(link) }
    }

    async fn flush(&self) {
        Memory::flush(self);
    }
}

impl Backend for Redis {
    fn start() -> Redis {
        Redis::start(&[])
    }

    async fn open(&self, uid: &str) -> Node {
        let (sender, messages) = inbox();
        let wire = Wire::to(self.server()).await;
        let address = RedisAddress::new(&engine(EngineKind::Redis, &wire.address));
        let store = RedisStore::open(&address, uid.into(), sender).await.unwrap();
        Node { store: Arc::new(store), messages, link: Link::Wire(wire) }
    }

    async fn flush(&self) {
        assert_eq!(self.cli(&["FLUSHALL"]), "OK");
    }
}

impl Backend for Nats {
    fn start() -> Nats {
        Nats::start()
    }

    async fn open(&self, uid: &str) -> Node {
        let (sender, messages) = inbox();
        let wire = Wire::to(self.server.clone()).await;
        let address = NatsAddress::new(&engine(EngineKind::Nats, &wire.address));
        let store = nats::open(&address, uid.into(), sender).await.unwrap();
        Node { store: Arc::new(store), messages, link: Link::Wire(wire) }
    }

    async fn flush(&self) {
        let (sender, _messages) = inbox();
        let address = NatsAddress::new(&engine(EngineKind::Nats, &self.server));
        let store = nats::open(&address, "admin".into(), sender).await.unwrap();
        store.0.stream.delete().await;
    }
}

impl Node {
    fn lease(&self, lease_ms: u64) -> Lease {
        let uid = Arc::clone(self.store.uid());
        let number = uid.bytes().map(u16::from).sum();
        Lease { uid, number, lease_ms, is_wanted: false }
    }

    async fn renew_for(&self, lease_ms: u64) -> Result<LeaseReply, StoreError> {
        let facts = Facts { lease_ms, ..Facts::named("") };
        self.store.write_lease(self.lease(lease_ms), facts, b"probe".to_vec()).await
    }

    async fn renew(&self) -> Result<LeaseWrite, StoreError> {
        Ok(self.renew_for(LONG_MS).await?.written)
    }

    /// Writes changes: `+1`: session 1 joins, `-1`: it leaves; `!`: it is the first to join or the last to leave. Returns for each
    /// whether it changed the store.
    async fn write(&self, changes: &[&str]) -> Result<Vec<bool>, StoreError> {
        let changes = changes.iter().map(|change| {
            let info = ClientInfo {
                user_is_number: false,
                foreign_client: None,
                client: SessionId::from_u64(0).unwrap(),
                user: "ann".into(),
                conn_info: Some(br#"{"name":"Ann"}"#[..].into()),
                chan_info: None,
            };
            let member = StoredMember {
                presence: true,
                join_leave: true,
                ..StoredMember::new(self.store.uid(), &info)
            };
            let joined = change.starts_with('+');
            let client = change[1..].trim_end_matches('!').parse().unwrap();
            let change_of = MemberChange { channel: "a room.*".into(), client, joined, member };
            (change_of, change.ends_with('!'))
        });
        self.store.write_members(&changes.collect::<Vec<_>>()).await
    }

    /// The sessions of this process, as the store has them.
    async fn own(&self) -> Vec<u64> {
        self.store.own_members().await.unwrap().keys().map(|(_, client)| *client).collect()
    }

    /// The sessions in the channel, if processes `a` and `b` are alive.
    async fn present(&self) -> Result<Vec<u64>, StoreError> {
        let living = ["a", "b"].map(Arc::from).into();
        let wanted = Gathered::new(living, Some(usize::MAX), false);
        let found = self.store.members_in("a room.*", wanted).await?.list(usize::MAX).unwrap();
        let mut found: Vec<u64> = found.iter().map(|info| info.client.to_u64()).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Sweeps a process. Returns the sessions to announce as left; `None` if another node has the claim.
    async fn sweep(&self, dead: &str, claim_ms: u64) -> Option<Vec<u64>> {
        let mut gone: Vec<u64> = {
            let gone = self.store.sweep(dead.into(), claim_ms).await.unwrap()?;
            gone.iter().map(|change| change.client).collect()
        };
        gone.sort_unstable();
        Some(gone)
    }

    async fn count(&self, user: &str, connections: u32, is_all: bool) -> Result<u64, StoreError> {
        let others = ["a", "b"].into_iter().filter(|uid| **uid != **self.store.uid());
        let others = others.map(Arc::from).collect();
        let users = vec![(user.into(), connections)];
        Ok(self.store.count_users(UserCountsWrite { users, is_all, others }).await?[0])
    }

    async fn get(&self, key: &Key) -> Option<RecordRead> {
        self.store.records().get(vec![key.clone()]).await.unwrap().remove(0)
    }

    async fn put(
        &self,
        key: &Key,
        after: Option<&RecordVersion>,
        value: &[u8],
    ) -> Result<Option<RecordVersion>, StoreError> {
        let put = RecordPut { key: key.clone(), after: after.cloned(), value: value.to_vec() };
        Ok(self.store.records().put(vec![put]).await?.remove(0))
    }

    async fn remove(&self, version: &RecordVersion) -> bool {
        self.store.records().remove(vec![version.clone()]).await.unwrap()[0]
    }

    async fn kept(&self) -> Vec<(Box<str>, Vec<u8>)> {
        let mut kept = self.store.kept().await.unwrap();
        kept.sort();
        kept
    }

    async fn append(&self, revision: u64, sealed: Vec<u8>) -> Result<bool, StoreError> {
        let at = LogPosition { id: 7, revision };
        self.store.append_log(LogEntry { at, sealed, message: b"{}".to_vec() }).await
    }

    /// The number of records of the log.
    async fn changes(&self) -> usize {
        self.store.records().list(Group::LogChanges).await.unwrap().len()
    }

    /// The next message that is no probe.
    async fn next(&mut self) -> Option<Box<[u8]>> {
        loop {
            let message = tokio::time::timeout(TIMEOUT, self.messages.next()).await.unwrap()?;
            if *message != *b"probe" {
                return Some(message);
            }
        }
    }
}

/// The value of a change in the log.
fn change(text: &str) -> Vec<u8> {
    parts(text.as_bytes(), 1_000).unwrap().remove(0)
}

fn at(revision: u64) -> LogPosition {
    LogPosition { id: 7, revision }
}
