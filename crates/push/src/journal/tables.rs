//! The journal's tables in one transaction, and how changes modify them.

use redb::{ReadableTable, ReadableTableMetadata, Table, WriteTransaction};

use super::{
    AcceptedBatch, BATCHES, COUNTERS, JournalChange, JournalError, KEY_AGES, KEYS, KEYS_MAX,
    NewBatch, OUTCOMES, OUTCOMES_MAX, PENDING, PENDING_BYTES_MAX, PENDING_MAX, STARTED, UNSENT,
};

pub(super) struct Tables<'a> {
    batches: Table<'a, u64, &'static [u8]>,
    rows: Table<'a, (u64, u64), &'static [u8]>,
    started: Table<'a, u64, u64>,
    unsent: Table<'a, (u64, u64), ()>,
    outcomes: Table<'a, u64, &'static [u8]>,
    keys: Table<'a, &'static str, (u64, u64)>,
    ages: Table<'a, u64, &'static str>,
    counters: Table<'a, &'static str, u64>,
    last_batch: u64,
    last_outcome: u64,
    /// Number of pushes without an outcome, and their bytes.
    pending: u64,
    bytes: u64,
}

impl<'a> Tables<'a> {
    /// Opens the tables. The pair is the current number of pushes without an outcome, and their bytes.
    pub(super) fn open(
        write: &'a WriteTransaction,
        (pending, bytes): (u64, u64),
    ) -> Result<Tables<'a>, redb::Error> {
        let counters = write.open_table(COUNTERS)?;
        let counter = |name: &str| -> Result<u64, redb::Error> {
            Ok(counters.get(name)?.map_or(0, |value| value.value()))
        };
        let (last_batch, last_outcome) = (counter("batch")?, counter("outcome")?);
        Ok(Tables {
            batches: write.open_table(BATCHES)?,
            rows: write.open_table(PENDING)?,
            started: write.open_table(STARTED)?,
            unsent: write.open_table(UNSENT)?,
            outcomes: write.open_table(OUTCOMES)?,
            keys: write.open_table(KEYS)?,
            ages: write.open_table(KEY_AGES)?,
            counters,
            last_batch,
            last_outcome,
            pending,
            bytes,
        })
    }

    /// Applies a change. The outer error ends the transaction; the inner one concerns this change only.
    pub(super) fn apply(
        &mut self,
        change: &JournalChange,
    ) -> Result<Result<AcceptedBatch, JournalError>, redb::Error> {
        match change {
            JournalChange::Accept(new) => return self.accept(new),
            JournalChange::Start { batch, through } => {
                if self.batches.get(batch)?.is_none() {
                    return Ok(Err(JournalError::Unknown(*batch)));
                }
                self.started.insert(batch, through)?;
            }
            JournalChange::Unsent { batch, number } => {
                self.unsent.insert((*batch, *number), ())?;
            }
            JournalChange::Restart { batch, number } => {
                self.unsent.remove((*batch, *number))?;
            }
            JournalChange::End { batch, number, outcome } => {
                // Only a pending push can end, so that each outcome enters the feed once.
                let ended = self.rows.remove((*batch, *number))?.map(|row| row.value().len());
                if let Some(bytes) = ended {
                    self.pending -= 1;
                    self.bytes -= bytes as u64;
                    self.feed(outcome)?;
                }
                self.unsent.remove((*batch, *number))?;
            }
            JournalChange::Finish { batch } => {
                self.batches.remove(batch)?;
                self.started.remove(batch)?;
            }
            JournalChange::Cancel { batch } => return self.cancel(*batch),
            JournalChange::Outcome(outcome) => self.feed(outcome)?,
        }
        Ok(Ok(AcceptedBatch::default()))
    }

    fn accept(
        &mut self,
        new: &NewBatch,
    ) -> Result<Result<AcceptedBatch, JournalError>, redb::Error> {
        if let Some(key) = &new.idempotency_key
            && let Some(before) = self.keys.get(key.as_str())?
        {
            let (batch, pushes) = before.value();
            return Ok(Ok(AcceptedBatch { batch, pushes, repeated: true }));
        }
        let pushes = new.pushes.len() as u64;
        let bytes: u64 = new.pushes.iter().map(|push| push.len() as u64).sum();
        if self.pending + pushes > PENDING_MAX || self.bytes + bytes > PENDING_BYTES_MAX {
            return Ok(Err(JournalError::Full));
        }
        self.last_batch += 1;
        let batch = self.last_batch;
        for (number, push) in (0u64..).zip(&new.pushes) {
            self.rows.insert((batch, number), push.as_slice())?;
        }
        (self.pending, self.bytes) = (self.pending + pushes, self.bytes + bytes);
        if pushes > 0 {
            self.batches.insert(batch, new.common.as_slice())?;
        }
        for outcome in &new.outcomes {
            self.feed(outcome)?;
        }
        if let Some(key) = &new.idempotency_key {
            self.keys.insert(key.as_str(), (batch, pushes))?;
            self.ages.insert(batch, key.as_str())?;
            if self.ages.len()? > KEYS_MAX
                && let Some((_, oldest)) = self.ages.pop_first()?
            {
                self.keys.remove(oldest.value())?;
            }
        }
        Ok(Ok(AcceptedBatch { batch, pushes, repeated: false }))
    }

    fn cancel(&mut self, batch: u64) -> Result<Result<AcceptedBatch, JournalError>, redb::Error> {
        if self.started.get(batch)?.is_some() {
            return Ok(Err(JournalError::Started(batch)));
        }
        if self.batches.remove(batch)?.is_none() {
            return Ok(Err(JournalError::Unknown(batch)));
        }
        let (mut pushes, mut bytes) = (0, 0);
        self.rows.retain_in((batch, 0)..(batch + 1, 0), |_, push| {
            (pushes, bytes) = (pushes + 1, bytes + push.len() as u64);
            false
        })?;
        (self.pending, self.bytes) = (self.pending - pushes, self.bytes - bytes);
        if let Some(key) = self.ages.remove(batch)? {
            self.keys.remove(key.value())?;
        }
        Ok(Ok(AcceptedBatch { batch, pushes, repeated: false }))
    }

    fn feed(&mut self, outcome: &[u8]) -> Result<(), redb::Error> {
        self.last_outcome += 1;
        self.outcomes.insert(self.last_outcome, outcome)?;
        if let Some(old) = self.last_outcome.checked_sub(OUTCOMES_MAX) {
            self.outcomes.remove(old)?;
        }
        Ok(())
    }

    /// Writes the counters. Returns the number of pushes without an outcome, and their bytes.
    pub(super) fn close(mut self) -> Result<(u64, u64), redb::Error> {
        self.counters.insert("batch", self.last_batch)?;
        self.counters.insert("outcome", self.last_outcome)?;
        Ok((self.pending, self.bytes))
    }
}
