//! Durable pushes, stored on disk (`redb`) until each has its outcome; and a feed of the outcomes.
//!
//! A batch is accepted when all of its pushes are on the disk. Before pushes are sent, the journal records up to which number
//! they may have been sent ([`JournalChange::Start`]). When a push ends, its outcome replaces it in the same transaction
//! ([`JournalChange::End`]). So after a crash each push is either in the feed or still in the journal, and it is known which
//! of the latter may have arrived. The journal does not interpret pushes: it stores bytes.
//!
//! Every call of a [`Journal`] reads or writes the disk: call it from a thread that may block. Pass many changes to a
//! [`JournalWriter`], which writes them together.

mod tables;
mod writer;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redb::{Database, ReadableTable, TableDefinition};

use self::tables::Tables;
pub use self::writer::JournalWriter;
use crate::store::{self, Store};

/// Batch → data common to its pushes.
const BATCHES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("batches");
/// Batch and number → a push without an outcome.
const PENDING: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("pending");
/// Batch → its pushes below this number may have been sent.
const STARTED: TableDefinition<'_, u64, u64> = TableDefinition::new("started");
/// Pushes below that number that have not been sent.
const UNSENT: TableDefinition<'_, (u64, u64), ()> = TableDefinition::new("unsent");
/// Number → outcome.
const OUTCOMES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("outcomes");
/// Idempotency key → batch and its number of pushes.
const KEYS: TableDefinition<'_, &str, (u64, u64)> = TableDefinition::new("keys");
/// Batch → its key, oldest first.
const KEY_AGES: TableDefinition<'_, u64, &str> = TableDefinition::new("key ages");
/// The epoch of the feed, among the counters.
const EPOCH: &str = "epoch";
/// Counters that never decrease.
const COUNTERS: TableDefinition<'_, &str, u64> = TableDefinition::new("counters");

/// Most pushes without an outcome, and their bytes.
const PENDING_MAX: u64 = 2_000_000;
const PENDING_BYTES_MAX: u64 = 1 << 30;
/// Most outcomes; older ones are removed.
const OUTCOMES_MAX: u64 = 2_000_000;
/// Most idempotency keys; older ones are removed.
const KEYS_MAX: u64 = 100_000;

/// A change of the journal.
#[derive(Clone, Debug)]
pub enum JournalChange {
    /// Accepts a batch, unless one with the same key was accepted before.
    Accept(NewBatch),
    /// Pushes below `through` are about to be sent, unless the batch was cancelled.
    Start {
        /// The batch.
        batch: u64,
        /// The number after the last push that may be sent.
        through: u64,
    },
    /// A push was about to be sent, but has not been.
    Unsent {
        /// The batch.
        batch: u64,
        /// The push.
        number: u64,
    },
    /// An unsent push is about to be sent.
    Restart {
        /// The batch.
        batch: u64,
        /// The push.
        number: u64,
    },
    /// A push has its outcome, which goes to the feed.
    End {
        /// The batch.
        batch: u64,
        /// The push.
        number: u64,
        /// The outcome.
        outcome: Vec<u8>,
    },
    /// All pushes of a batch have ended.
    Finish {
        /// The batch.
        batch: u64,
    },
    /// Drops a batch of which no push has started, and its key. The result has the number of its pushes.
    Cancel {
        /// The batch.
        batch: u64,
    },
    /// The outcome of a push outside of batches goes to the feed.
    Outcome(Vec<u8>),
}

/// Pushes to be accepted.
#[derive(Clone, Debug, Default)]
pub struct NewBatch {
    /// A batch with a key that was used before is not accepted again.
    pub idempotency_key: Option<String>,
    /// Data common to all of them.
    pub common: Vec<u8>,
    /// The data of each.
    pub pushes: Vec<Vec<u8>>,
    /// Outcomes for the feed, of pushes that need not be sent.
    pub outcomes: Vec<Vec<u8>>,
}

/// A batch that was accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptedBatch {
    /// Its number.
    pub batch: u64,
    /// The number of its pushes.
    pub pushes: u64,
    /// A batch with the same key was accepted before; this is that one.
    pub repeated: bool,
}

/// A batch with pushes without an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenBatch {
    /// Its number.
    pub batch: u64,
    /// Data common to its pushes.
    pub common: Vec<u8>,
    /// Pushes below this number may have been sent.
    pub started: u64,
}

/// A push without an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingPush {
    /// Its number in the batch.
    pub number: u64,
    /// Its data.
    pub push: Vec<u8>,
    /// It was about to be sent, but has not been.
    pub unsent: bool,
}

/// Why the journal did not make a change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum JournalError {
    /// There are too many pushes without an outcome.
    Full,
    /// There is no such batch: all of its pushes have ended, or it was cancelled.
    Unknown(u64),
    /// The batch has started, so it cannot be cancelled.
    Started(u64),
    /// The store failed.
    Store(Arc<redb::Error>),
    /// The writer has ended.
    Closed,
}

impl JournalError {
    /// Returns whether the file is damaged, or has another format, so that another attempt cannot succeed.
    pub fn is_damage(&self) -> bool {
        matches!(self, JournalError::Store(error) if store::is_damage(error))
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JournalError::Full => write!(
                f,
                "the journal of pushes is full: it holds {PENDING_MAX} or 1 GiB of them without an outcome; send again later"
            ),
            JournalError::Unknown(batch) => write!(
                f,
                "batch {batch} is not in the journal: its pushes have ended, or it was cancelled; see the feed of outcomes"
            ),
            JournalError::Started(batch) => {
                write!(f, "batch {batch} is being sent, so it cannot be cancelled")
            }
            JournalError::Store(error) => write!(f, "the journal of pushes failed: {error}"),
            JournalError::Closed => f.write_str("the journal of pushes is closed"),
        }
    }
}

impl std::error::Error for JournalError {}

impl<E: Into<redb::Error>> From<E> for JournalError {
    fn from(error: E) -> JournalError {
        JournalError::Store(Arc::new(error.into()))
    }
}

/// The result of each change.
type Done = Vec<Result<AcceptedBatch, JournalError>>;

/// Pushes without an outcome, and outcomes. After a failure of the disk the store is opened again.
#[derive(Debug)]
pub struct Journal {
    store: Store,
    pending: AtomicU64,
    pending_bytes: AtomicU64,
    /// The last batch that was accepted before this journal was opened. Those after it belong to this run of the process,
    /// which sends each when it accepts it.
    last_earlier: u64,
    epoch: u64,
}

impl Journal {
    /// Opens the store in `file`, and creates it if there is none. Only one process at a time can open it.
    ///
    /// # Errors
    /// The error of the store.
    pub fn open(file: &Path) -> Result<Journal, JournalError> {
        Journal::with(Store::open(file, make)?)
    }

    /// Creates a journal in memory: nothing is durable, but there is a feed.
    ///
    /// # Errors
    /// The error of the store.
    pub fn in_memory() -> Result<Journal, JournalError> {
        Journal::with(Store::in_memory(make)?)
    }

    fn with(store: Store) -> Result<Journal, JournalError> {
        let (mut pending, mut pending_bytes) = (0, 0);
        let read = store.begin_read()?;
        for entry in read.open_table(PENDING)?.iter()? {
            pending += 1;
            pending_bytes += entry?.1.value().len() as u64;
        }
        let counters = read.open_table(COUNTERS)?;
        let last_earlier = counters.get("batch")?.map_or(0, |last| last.value());
        let epoch = counters.get(EPOCH)?.map_or(0, |epoch| epoch.value());
        let (pending, pending_bytes) = (pending.into(), pending_bytes.into());
        Ok(Journal { store, pending, pending_bytes, last_earlier, epoch })
    }

    /// Returns the number of pushes without an outcome.
    pub fn pending(&self) -> u64 {
        self.pending.load(Relaxed)
    }

    /// Makes changes in order and in one transaction: they are on the disk when this returns. Returns the result of each
    /// change. A batch that is refused as [`JournalError::Full`] does not affect the others.
    ///
    /// # Errors
    /// The error of the store; none of the changes was made.
    pub fn apply(&self, changes: &[JournalChange]) -> Result<Done, JournalError> {
        let (done, pending, bytes) =
            self.store.with_database(|database| self.carry_out(changes, database))?;
        self.pending.store(pending, Relaxed);
        self.pending_bytes.store(bytes, Relaxed);
        Ok(done)
    }

    /// Returns the results, and the pushes without an outcome afterwards: their number and their bytes.
    fn carry_out(
        &self,
        changes: &[JournalChange],
        database: &Database,
    ) -> Result<(Done, u64, u64), redb::Error> {
        let write = database.begin_write()?;
        let mut tables = Tables::open(&write, (self.pending(), self.pending_bytes.load(Relaxed)))?;
        let done =
            changes.iter().map(|change| tables.apply(change)).collect::<Result<Done, _>>()?;
        let (pending, bytes) = tables.close()?;
        write.commit()?;
        Ok((done, pending, bytes))
    }

    /// Returns the batches with pushes without an outcome that an earlier run of the process has left, oldest first. A batch
    /// that was accepted since this journal was opened is never among them: whoever accepted it sends it.
    ///
    /// # Errors
    /// The error of the store.
    pub fn left_batches(&self) -> Result<Vec<OpenBatch>, JournalError> {
        self.batches(0..=self.last_earlier)
    }

    /// Returns all batches with pushes without an outcome, oldest first.
    ///
    /// # Errors
    /// The error of the store.
    pub fn open_batches(&self) -> Result<Vec<OpenBatch>, JournalError> {
        self.batches(0..=u64::MAX)
    }

    /// Returns a batch, if it has pushes without an outcome.
    ///
    /// # Errors
    /// The error of the store.
    pub fn open_batch(&self, batch: u64) -> Result<Option<OpenBatch>, JournalError> {
        Ok(self.batches(batch..=batch)?.pop())
    }

    fn batches(&self, range: RangeInclusive<u64>) -> Result<Vec<OpenBatch>, JournalError> {
        let read = self.store.begin_read()?;
        let (batches, started) = (read.open_table(BATCHES)?, read.open_table(STARTED)?);
        let mut open = Vec::new();
        for entry in batches.range(range)? {
            let (batch, common) = entry?;
            let (batch, common) = (batch.value(), common.value().to_vec());
            let started = started.get(batch)?.map_or(0, |through| through.value());
            open.push(OpenBatch { batch, common, started });
        }
        Ok(open)
    }

    /// Returns at most `max` pushes of a batch without an outcome, from number `from` on.
    ///
    /// # Errors
    /// The error of the store.
    pub fn pushes(
        &self,
        batch: u64,
        from: u64,
        max: usize,
    ) -> Result<Vec<PendingPush>, JournalError> {
        let read = self.store.begin_read()?;
        let (rows, unsent) = (read.open_table(PENDING)?, read.open_table(UNSENT)?);
        let mut pushes = Vec::new();
        for entry in rows.range((batch, from)..(batch + 1, 0))?.take(max) {
            let (key, push) = entry?;
            let (batch, number) = key.value();
            let unsent = unsent.get((batch, number))?.is_some();
            pushes.push(PendingPush { number, push: push.value().to_vec(), unsent });
        }
        Ok(pushes)
    }

    /// Returns the number of pushes of a batch without an outcome.
    ///
    /// # Errors
    /// The error of the store.
    pub fn pending_of(&self, batch: u64) -> Result<u64, JournalError> {
        let rows = self.store.begin_read()?.open_table(PENDING)?;
        Ok(rows.range((batch, 0)..(batch + 1, 0))?.count() as u64)
    }

    /// Returns the epoch of the feed of outcomes. A feed that begins anew has another one, and its numbers begin at 1 again.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of the last outcome.
    ///
    /// # Errors
    /// The error of the store.
    pub fn last_outcome(&self) -> Result<u64, JournalError> {
        let counters = self.store.begin_read()?.open_table(COUNTERS)?;
        Ok(counters.get("outcome")?.map_or(0, |last| last.value()))
    }

    /// Returns at most `max` outcomes after number `after`, in order, each with its number. To follow the feed, pass the
    /// last number received.
    ///
    /// # Errors
    /// The error of the store.
    pub fn outcomes(&self, after: u64, max: usize) -> Result<Vec<(u64, Vec<u8>)>, JournalError> {
        let read = self.store.begin_read()?;
        let table = read.open_table(OUTCOMES)?;
        let mut outcomes = Vec::new();
        for entry in table.range(after.saturating_add(1)..)?.take(max) {
            let (number, outcome) = entry?;
            outcomes.push((number.value(), outcome.value().to_vec()));
        }
        Ok(outcomes)
    }
}

/// Creates missing tables in a store.
fn make(database: &Database) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    write.open_table(BATCHES)?;
    write.open_table(PENDING)?;
    write.open_table(STARTED)?;
    write.open_table(UNSENT)?;
    write.open_table(OUTCOMES)?;
    write.open_table(KEYS)?;
    write.open_table(KEY_AGES)?;
    {
        let mut counters = write.open_table(COUNTERS)?;
        if counters.get(EPOCH)?.is_none() {
            counters.insert(EPOCH, store::new_epoch())?;
        }
    }
    Ok(write.commit()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(key: Option<&str>, pushes: &[&str]) -> JournalChange {
        JournalChange::Accept(NewBatch {
            idempotency_key: key.map(str::to_owned),
            common: b"common".to_vec(),
            pushes: pushes.iter().map(|push| push.as_bytes().to_vec()).collect(),
            outcomes: Vec::new(),
        })
    }

    fn end(batch: u64, number: u64) -> JournalChange {
        JournalChange::End { batch, number, outcome: format!("{batch}.{number}").into_bytes() }
    }

    #[test]
    fn a_push_is_in_the_journal_or_in_the_feed_and_never_in_both() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pushes.redb");
        {
            let journal = Journal::open(&file).unwrap();
            let accepted = journal.apply(&[accept(None, &["a", "b", "c"])]).unwrap();
            assert_eq!(accepted[0].as_ref().unwrap().pushes, 3);
            let start = JournalChange::Start { batch: 1, through: 2 };
            journal.apply(&[start, end(1, 0), end(1, 0)]).unwrap();
        }
        let journal = Journal::open(&file).unwrap();
        let common = b"common".to_vec();
        let open = journal.open_batches().unwrap();
        assert_eq!(open, [OpenBatch { batch: 1, common, started: 2 }]);
        let numbers = |journal: &Journal| {
            let left = journal.pushes(1, 0, 10).unwrap();
            left.into_iter().map(|push| (push.number, push.unsent)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&journal), [(1, false), (2, false)]);
        journal.apply(&[JournalChange::Unsent { batch: 1, number: 1 }]).unwrap();
        assert_eq!(numbers(&journal), [(1, true), (2, false)]);
        journal
            .apply(&[JournalChange::Restart { batch: 1, number: 1 }, end(1, 1), end(1, 2)])
            .unwrap();
        journal.apply(&[JournalChange::Finish { batch: 1 }]).unwrap();
        assert_eq!((numbers(&journal).len(), journal.pending()), (0, 0));
        assert_eq!(journal.open_batches().unwrap(), []);
        let feed = journal.outcomes(0, 10).unwrap();
        let feed: Vec<(u64, &[u8])> = feed.iter().map(|(n, line)| (*n, line.as_slice())).collect();
        assert_eq!(feed, [(1, &b"1.0"[..]), (2, b"1.1"), (3, b"1.2")]);
    }

    #[test]
    fn batch_accepted_since_the_start_is_not_among_those_an_earlier_run_left() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pushes.redb");
        Journal::open(&file).unwrap().apply(&[accept(None, &["a"])]).unwrap();
        let journal = Journal::open(&file).unwrap();
        journal.apply(&[accept(None, &["b"])]).unwrap();
        let numbers =
            |batches: Vec<OpenBatch>| batches.iter().map(|one| one.batch).collect::<Vec<_>>();
        assert_eq!(numbers(journal.left_batches().unwrap()), [1]);
        assert_eq!(numbers(journal.open_batches().unwrap()), [1, 2]);
    }

    #[test]
    fn batch_is_cancelled_until_it_starts_and_starts_unless_it_is_cancelled() {
        let journal = Journal::in_memory().unwrap();
        let pushes = [accept(Some("k"), &["a", "b"]), accept(None, &["c"])];
        journal.apply(&pushes).unwrap();
        let apply = |change| journal.apply(&[change]).unwrap().remove(0);
        assert_eq!(journal.pending_of(1).unwrap(), 2);
        assert_eq!(apply(JournalChange::Cancel { batch: 1 }).unwrap().pushes, 2);
        let start = apply(JournalChange::Start { batch: 1, through: 1 });
        assert!(matches!(start, Err(JournalError::Unknown(1))), "{start:?}");
        assert_eq!((journal.pending(), journal.open_batch(1).unwrap()), (1, None));
        assert!(!apply(accept(Some("k"), &["a"])).unwrap().repeated, "its key is free");

        apply(JournalChange::Start { batch: 2, through: 1 }).unwrap();
        let cancelled = apply(JournalChange::Cancel { batch: 2 });
        assert!(matches!(cancelled, Err(JournalError::Started(2))), "{cancelled:?}");
        assert_eq!(journal.pushes(2, 0, 10).unwrap().len(), 1);
    }

    #[test]
    fn feed_has_an_epoch_that_outlives_the_process_and_not_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let open = |name: &str| Journal::open(&directory.path().join(name)).unwrap().epoch();
        assert_eq!(open("a"), open("a"));
        assert_ne!(open("a"), open("b"));
    }

    #[test]
    fn a_key_is_taken_once_and_a_full_journal_says_so() {
        let journal = Journal::in_memory().unwrap();
        let taken = journal.apply(&[accept(Some("k"), &["a"]), accept(Some("k"), &["a", "b"])]);
        let taken: Vec<_> = taken.unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!(taken[1], AcceptedBatch { batch: 1, pushes: 1, repeated: true });
        assert_eq!(journal.pending(), 1);
        journal.pending.store(PENDING_MAX, Relaxed);
        let refused = journal.apply(&[accept(None, &["a"])]).unwrap().remove(0).unwrap_err();
        assert!(refused.to_string().contains("full"), "{refused}");
    }
}
