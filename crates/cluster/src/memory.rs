//! The store of a cluster in the memory of one process, for tests: the nodes of a test share a [`Memory`].
//!
//! It is a [`RecordStream`] as NATS is one, so what stands on that runs without a server. A connection can lose its answers, and
//! be cut.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::inbox::Inbox;
use super::node_message::unix_ms;
use super::ordered::{OrderedStore, Record, RecordStream, RecordWrite};
use super::store::StoreError;

/// The prefix of all subjects.
const PREFIX: &str = "memory";

/// The records and connections of a cluster.
#[derive(Default)]
pub(super) struct Memory(Mutex<State>);

#[derive(Default)]
struct State {
    newest: u64,
    records: BTreeMap<Box<str>, Record>,
    opened: u64,
    /// The open connections: the subjects that each hears, and its inbox.
    connections: HashMap<u64, ([String; 2], Inbox)>,
}

/// What a connection can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Open,
    /// Requests arrive, answers and messages do not.
    Mute,
    Cut,
}

/// Cuts a connection.
pub(super) struct MemoryLink {
    memory: Arc<Memory>,
    number: u64,
    state: watch::Sender<LinkState>,
}

impl MemoryLink {
    /// Loses all answers from now on.
    pub(super) fn mute(&self) {
        self.memory.lock().connections.entry(self.number).and_modify(|(subjects, _)| {
            *subjects = Default::default();
        });
        self.state.send_replace(LinkState::Mute);
    }

    pub(super) fn cut(&self) {
        self.memory.lock().connections.remove(&self.number);
        self.state.send_replace(LinkState::Cut);
    }
}

impl Memory {
    /// Opens a connection of the process `uid`.
    pub(super) fn open(
        self: &Arc<Memory>,
        uid: Arc<str>,
        messages: Inbox,
    ) -> (OrderedStore<MemoryStream>, MemoryLink) {
        let number = {
            let mut state = self.lock();
            state.opened += 1;
            let subjects = [format!("{PREFIX}.calls"), format!("{PREFIX}.calls.{uid}")];
            let number = state.opened;
            state.connections.insert(number, (subjects, messages));
            number
        };
        let (sender, state) = watch::channel(LinkState::Open);
        let link = MemoryLink { memory: Arc::clone(self), number, state: sender };
        let stream = MemoryStream { memory: Arc::clone(self), number, state };
        (OrderedStore::new(stream, &PREFIX.into(), uid), link)
    }

    /// Loses all records.
    pub(super) fn flush(&self) {
        self.lock().records.clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a node reaches a [`Memory`]: a network that can be cut.
#[derive(Clone)]
pub(super) struct MemoryAddress {
    memory: Arc<Memory>,
    prefix: Arc<str>,
    network: Arc<Mutex<Network>>,
}

#[derive(Default)]
struct Network {
    is_cut: bool,
    /// The connection that was opened last.
    link: Option<MemoryLink>,
}

impl MemoryAddress {
    pub(super) fn new(memory: &Arc<Memory>) -> MemoryAddress {
        let (memory, prefix) = (Arc::clone(memory), PREFIX.into());
        MemoryAddress { memory, prefix, network: Arc::default() }
    }

    pub(super) fn prefix(&self) -> &Arc<str> {
        &self.prefix
    }

    pub(super) fn open(
        &self,
        uid: Arc<str>,
        messages: Inbox,
    ) -> Result<OrderedStore<MemoryStream>, StoreError> {
        let mut network = self.network();
        if network.is_cut {
            return Err(closed());
        }
        let (store, link) = self.memory.open(uid, messages);
        network.link = Some(link);
        Ok(store)
    }

    pub(super) fn cut(&self) {
        let mut network = self.network();
        network.is_cut = true;
        network.link.take().iter().for_each(MemoryLink::cut);
    }

    pub(super) fn mend(&self) {
        self.network().is_cut = false;
    }

    fn network(&self) -> std::sync::MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection to a [`Memory`].
pub(super) struct MemoryStream {
    memory: Arc<Memory>,
    number: u64,
    state: watch::Receiver<LinkState>,
}

impl Drop for MemoryStream {
    fn drop(&mut self) {
        self.memory.lock().connections.remove(&self.number);
    }
}

fn closed() -> StoreError {
    StoreError::Closed("the connection has ended".into())
}

impl MemoryStream {
    /// Executes a request, and returns its answer once it arrives.
    async fn request<T>(&self, request: impl FnOnce(&mut State) -> T) -> Result<T, StoreError> {
        if *self.state.borrow() == LinkState::Cut {
            return Err(closed());
        }
        let answer = request(&mut self.memory.lock());
        // Others have their turn before an answer arrives.
        tokio::task::yield_now().await;
        let mut state = self.state.clone();
        let arrived = state.wait_for(|state| *state != LinkState::Mute).await;
        match arrived.map(|state| *state) {
            Ok(LinkState::Open) => Ok(answer),
            _ => Err(closed()),
        }
    }
}

/// Whether a filter of NATS matches a subject.
fn matches(filter: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in filter.split('.') {
        match (wanted, tokens.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (wanted, Some(token)) if wanted == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

impl RecordStream for MemoryStream {
    async fn create(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn put_all(&self, puts: &[RecordWrite]) -> Result<Vec<Option<u64>>, StoreError> {
        let put = |state: &mut State, RecordWrite { subject, after, payload }: &RecordWrite| {
            if state.records.get(&**subject).map_or(0, |record| record.seq) != *after {
                return None;
            }
            state.newest += 1;
            let record = Record {
                seq: state.newest,
                time_ms: unix_ms() as i64,
                subject: subject.as_str().into(),
                payload: payload.as_slice().into(),
            };
            state.records.insert(record.subject.clone(), record);
            Some(state.newest)
        };
        // As with a server, others may come in between.
        let mut written = Vec::with_capacity(puts.len());
        for write in puts {
            written.push(self.request(|state| put(state, write)).await?);
        }
        Ok(written)
    }

    async fn get_all(&self, subjects: &[String]) -> Result<Vec<Option<Record>>, StoreError> {
        let mut found = Vec::with_capacity(subjects.len());
        for subject in subjects {
            found.push(self.request(|state| state.records.get(&**subject).cloned()).await?);
        }
        Ok(found)
    }

    async fn remove_all(&self, seqs: &[u64]) -> Result<Vec<bool>, StoreError> {
        let remove = |state: &mut State, seq: u64| {
            let before = state.records.len();
            state.records.retain(|_, record| record.seq != seq);
            state.records.len() < before
        };
        let mut removed = Vec::with_capacity(seqs.len());
        for seq in seqs {
            removed.push(self.request(|state| remove(state, *seq)).await?);
        }
        Ok(removed)
    }

    async fn read(&self, filter: &str) -> Result<Vec<Record>, StoreError> {
        let mut found = self
            .request(|state| {
                let records = state.records.values();
                records.filter(|of| matches(filter, &of.subject)).cloned().collect::<Vec<_>>()
            })
            .await?;
        found.sort_unstable_by_key(|record| record.seq);
        Ok(found)
    }

    async fn purge(&self, filter: &str) -> Result<(), StoreError> {
        self.request(|state| state.records.retain(|subject, _| !matches(filter, subject))).await
    }

    fn is_replicated(&self) -> bool {
        false
    }

    async fn wait_for_leader(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn publish(&self, subject: &str, payload: &[u8]) -> Result<(), StoreError> {
        if *self.state.borrow() == LinkState::Cut {
            return Err(closed());
        }
        let connections = &mut self.memory.lock().connections;
        // A connection whose inbox is full ends.
        connections.retain(|_, (subjects, inbox)| {
            !subjects.iter().any(|of| of == subject) || inbox.put(payload.into())
        });
        Ok(())
    }

    fn payload_bytes_max(&self) -> usize {
        1 << 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_match_subjects_token_by_token() {
        assert!(matches("p.users.*.a", "p.users.ann.a") && !matches("p.users.*.a", "p.users.a"));
        assert!(matches("p.state.>", "p.state.nodes.7") && !matches("p.state.>", "p.state"));
        assert!(!matches("p.log.*", "p.log.7.1") && !matches("p.log", "p.log.7"));
    }
}
