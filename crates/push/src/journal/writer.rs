//! Group commit for changes of many callers: all changes that arrive while a group is being written share the next
//! transaction and its sync.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, mpsc, oneshot};

use super::{Done, Journal, JournalChange, JournalError};

/// Capacity of the queue; further callers wait for space in it.
const WAITING_MAX: usize = 1_024;
/// A group with this many changes is full.
const GROUP_MAX: usize = 16_384;

/// The delay between attempts of [`JournalWriter::write_surely`] after a failure of the disk.
const RETRY: Duration = Duration::from_secs(1);

/// The result of a write; changes that were not written are returned.
type Written = Result<Done, (JournalError, Vec<JournalChange>)>;
type Waiting = (Vec<JournalChange>, oneshot::Sender<Written>);

/// Takes changes from many callers. It ends with its runtime, or when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct JournalWriter {
    waiting: mpsc::Sender<Waiting>,
    written: Arc<Notify>,
}

impl JournalWriter {
    /// Starts to write, on blocking threads of the current `tokio` runtime.
    ///
    /// # Panics
    /// Outside of a `tokio` runtime.
    pub fn start(journal: Arc<Journal>) -> JournalWriter {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let written = Arc::new(Notify::new());
        tokio::spawn(write_groups(journal, receiver, Arc::clone(&written)));
        JournalWriter { waiting: sender, written }
    }

    /// Writes changes and waits until they are on the disk. Returns what [`Journal::apply`] returns.
    ///
    /// # Errors
    /// Those of [`Journal::apply`].
    pub async fn write(&self, changes: Vec<JournalChange>) -> Result<Done, JournalError> {
        self.try_write(changes).await.map_err(|(error, _)| error)
    }

    /// Writes changes that record what has happened: retries for as long as the disk refuses them.
    ///
    /// # Errors
    /// [`JournalError::Closed`].
    pub async fn write_surely(
        &self,
        mut changes: Vec<JournalChange>,
    ) -> Result<Done, JournalError> {
        loop {
            match self.try_write(changes).await {
                Ok(done) => return Ok(done),
                Err((JournalError::Store(_), back)) => changes = back,
                Err((error, _)) => return Err(error),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn try_write(&self, changes: Vec<JournalChange>) -> Written {
        let (done, answer) = oneshot::channel();
        let closed = || (JournalError::Closed, Vec::new());
        self.waiting.send((changes, done)).await.map_err(|_| closed())?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Returns a future that ends after the next write: the feed may have something new.
    pub fn next(&self) -> Notified<'_> {
        self.written.notified()
    }

    /// Wakes everyone who waits for the next outcome.
    pub fn wake(&self) {
        self.written.notify_waiters();
    }
}

async fn write_groups(
    journal: Arc<Journal>,
    mut waiting: mpsc::Receiver<Waiting>,
    written: Arc<Notify>,
) {
    while let Some((mut group, done)) = waiting.recv().await {
        let mut callers = vec![(group.len(), done)];
        while group.len() < GROUP_MAX
            && let Ok((changes, done)) = waiting.try_recv()
        {
            callers.push((changes.len(), done));
            group.extend(changes);
        }
        let journal = Arc::clone(&journal);
        let applied = tokio::task::spawn_blocking(move || (journal.apply(&group), group)).await;
        let (applied, group) = applied.unwrap_or((Err(JournalError::Closed), Vec::new()));
        if let Err(error) = &applied {
            tracing::error!(%error, "the journal of pushes is not written");
        }
        let (mut applied, mut group) = (applied.map(Vec::into_iter), group.into_iter());
        for (count, caller) in callers {
            let changes = group.by_ref().take(count);
            let answer = match &mut applied {
                Ok(applied) => Ok(applied.by_ref().take(count).collect()),
                Err(error) => Err((error.clone(), changes.collect())),
            };
            // The caller may have been dropped.
            let _ = caller.send(answer);
        }
        written.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::super::make;
    use super::*;
    use crate::store::disk::Disk;

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_fails_for_a_while_keeps_nothing_from_the_journal() {
        let disk = Disk::default();
        let journal = Arc::new(Journal::with(disk.open(make).unwrap()).unwrap());
        let writer = JournalWriter::start(Arc::clone(&journal));
        disk.set_full(true);
        let refused = writer.write(vec![JournalChange::Outcome(b"0".to_vec())]).await.unwrap_err();
        assert!(matches!(refused, JournalError::Store(_)), "{refused}");
        let sure = writer.write_surely(vec![JournalChange::Outcome(b"1".to_vec())]);
        let mends = async {
            tokio::time::sleep(RETRY * 3).await;
            disk.set_full(false);
        };
        let (written, ()) = tokio::join!(sure, mends);
        assert!(written.is_ok());
        assert_eq!(journal.outcomes(0, 10).unwrap(), [(1, b"1".to_vec())]);
    }
}
