//! Connections of users on a stream of records: a record for each user of each process.
//!
//! A process writes its count and then reads those of the others. All records share one sequence: a connection that another
//! process has counted after this one's record was admitted later, and that process must disconnect it. So of two processes that
//! admit the last connection at once, the second disconnects it.

use std::sync::Arc;

use dunlin_engine::nats::word;
use serde::{Deserialize, Serialize};

use super::{OrderedStore, Record, RecordStream, RecordWrite};
use crate::records::{ATTEMPTS_MAX, VERSION, contended};
use crate::store::{StoreError, UserCountsWrite};

/// The stored form of a count.
#[derive(Serialize, Deserialize)]
struct CountRecord {
    v: u8,
    /// The number of the connection that has written it.
    link: u64,
    connections: u32,
    /// The count in the previous record.
    before: u32,
}

impl CountRecord {
    fn of(record: &Record) -> Option<CountRecord> {
        record.read().filter(|of: &CountRecord| of.v == VERSION)
    }
}

impl<S: RecordStream> OrderedStore<S> {
    fn count_subject(&self, user: &str, uid: &str) -> String {
        self.subject(&format!("users.{}.{uid}", word(user)))
    }

    /// Removes all counts of a process.
    pub(super) async fn purge_counts(&self, uid: &str) -> Result<(), StoreError> {
        self.0.stream.purge(&self.subject(&format!("users.*.{uid}"))).await
    }
}

/// Writes counts of this process and reads those of the others.
pub(super) async fn write(
    store: &OrderedStore<impl RecordStream>,
    UserCountsWrite { users, is_all, others }: &UserCountsWrite,
) -> Result<Vec<u64>, StoreError> {
    if *is_all {
        store.purge_counts(&store.0.uid).await?;
    }
    let seqs = write_own(store, users, *is_all).await?;
    // For each other process, and each user with a new connection.
    let come: Vec<usize> = (0..users.len()).filter(|at| users[*at].1 > 0).collect();
    let mut elsewhere = vec![0; users.len()];
    for uid in others {
        let subjects: Vec<String> =
            come.iter().map(|at| store.count_subject(&users[*at].0, uid)).collect();
        let found = store.0.stream.get_all(&subjects).await?;
        for (at, record) in come.iter().copied().zip(found) {
            elsewhere[at] += record.map_or(0, |record| counted(store, uid, &record, seqs[at]));
        }
    }
    Ok(elsewhere)
}

/// The connections that another process had when this one wrote its own record.
fn counted(
    store: &OrderedStore<impl RecordStream>,
    uid: &Arc<str>,
    record: &Record,
    own_seq: u64,
) -> u64 {
    let Some(count) = CountRecord::of(record) else { return 0 };
    let known = store.known();
    let is_late = known
        .processes
        .get(uid)
        .is_some_and(|(at, process)| count.link < process.link && record.seq > process.fence(*at));
    if is_late {
        return 0;
    }
    u64::from(if record.seq < own_seq { count.connections } else { count.before })
}

/// Returns the sequences of the records; 0 for a record that was removed.
async fn write_own(
    store: &OrderedStore<impl RecordStream>,
    users: &[(Box<str>, u32)],
    is_all: bool,
) -> Result<Vec<u64>, StoreError> {
    let stream = &store.0.stream;
    let mut seqs = vec![0; users.len()];
    let mut due: Vec<usize> = (0..users.len()).collect();
    for _ in 0..ATTEMPTS_MAX {
        if due.is_empty() {
            return Ok(seqs);
        }
        let subject = |at: usize| store.count_subject(&users[at].0, &store.0.uid);
        let subjects: Vec<String> = due.iter().copied().map(subject).collect();
        let found = stream.get_all(&subjects).await?;
        let (mut puts, mut of_puts, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for (at, record) in due.drain(..).zip(found) {
            let (connections, link) = (users[at].1, store.0.number);
            let after = record.as_ref().map_or(0, |record| record.seq);
            if connections == 0 {
                gone.extend(record.map(|record| record.seq));
                continue;
            }
            let before = record.as_ref().and_then(CountRecord::of).map_or(0, |of| of.connections);
            // A count that is written again existed before.
            let before = if is_all { connections } else { before };
            let payload = CountRecord { v: VERSION, link, connections, before };
            let payload = serde_json::to_vec(&payload).unwrap_or_default();
            puts.push(RecordWrite { subject: subject(at), after, payload });
            of_puts.push(at);
        }
        for (at, written) in of_puts.into_iter().zip(stream.put_all(&puts).await?) {
            match written {
                Some(seq) => seqs[at] = seq,
                // A write of an earlier connection came in between.
                None => due.push(at),
            }
        }
        stream.remove_all(&gone).await?;
    }
    if due.is_empty() { Ok(seqs) } else { Err(contended()) }
}
