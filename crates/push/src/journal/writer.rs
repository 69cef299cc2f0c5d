//! Changes of many callers, written in groups: one transaction and one wait for the disk for all that came while the group
//! before was being written.

use std::sync::Arc;

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, mpsc, oneshot};

use super::{AcceptedBatch, Journal, JournalChange, JournalError};

/// Callers that wait; who comes then waits, too.
const WAITING_MAX: usize = 1_024;
/// A group is full with so many changes.
const GROUP_MAX: usize = 16_384;

type Done = Vec<Result<AcceptedBatch, JournalError>>;
type Waiting = (Vec<JournalChange>, oneshot::Sender<Result<Done, JournalError>>);

/// Takes changes from many callers. It ends with its runtime, or when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct JournalWriter {
    waiting: mpsc::Sender<Waiting>,
    written: Arc<Notify>,
}

impl JournalWriter {
    /// Begins to write, on threads of the current `tokio` runtime that may wait.
    ///
    /// # Panics
    /// Outside of a `tokio` runtime.
    pub fn start(journal: Arc<Journal>) -> JournalWriter {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let written = Arc::new(Notify::new());
        tokio::spawn(write_groups(journal, receiver, Arc::clone(&written)));
        JournalWriter { waiting: sender, written }
    }

    /// Has changes written: waits until they are on the disk. Gives what was done, as [`Journal::apply`].
    ///
    /// # Errors
    /// Those of [`Journal::apply`].
    pub async fn write(&self, changes: Vec<JournalChange>) -> Result<Done, JournalError> {
        let (done, answer) = oneshot::channel();
        let sent = self.waiting.send((changes, done)).await;
        sent.map_err(|_| JournalError::Closed)?;
        answer.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Ends when something has been written after this call: the feed may have something new.
    pub fn next(&self) -> Notified<'_> {
        self.written.notified()
    }

    /// Has whoever waits for the next outcome look up.
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
        let applied = tokio::task::spawn_blocking(move || journal.apply(&group)).await;
        let applied = applied.unwrap_or(Err(JournalError::Closed));
        if let Err(error) = &applied {
            tracing::error!(%error, "the journal of pushes is not written");
        }
        let mut applied = applied.map(Vec::into_iter);
        for (count, caller) in callers {
            let answer = match &mut applied {
                Ok(applied) => Ok(applied.by_ref().take(count).collect()),
                Err(error) => Err(error.clone()),
            };
            // Its caller may have gone.
            let _ = caller.send(answer);
        }
        written.notify_waiters();
    }
}
