//! How much of an answer may be on its way to a client that reads it at its own pace.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Bytes of one answer between the push thread and the client's kernel.
pub(super) const WINDOW_BYTES: usize = 256 << 10;
/// A client that has made no room for so long is not reading any more.
const PATIENCE: Duration = Duration::from_secs(60);

/// The room that one client has left for lines of its answer. Workers say how much was read over the bus: they cannot
/// wake this thread any other way, for its wake-up descriptor is not in their tables.
#[derive(Debug)]
pub(super) struct Flow {
    room: Semaphore,
    gone: AtomicBool,
}

/// The client has gone, or does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    Gone,
    Stalled,
}

impl Flow {
    pub(super) fn new() -> Flow {
        Flow { room: Semaphore::new(WINDOW_BYTES), gone: AtomicBool::new(false) }
    }

    /// Waits until there is room for so many bytes, and takes it.
    pub(super) async fn take(&self, bytes: usize) -> Result<(), Unread> {
        self.take_within(bytes, PATIENCE).await
    }

    async fn take_within(&self, bytes: usize, patience: Duration) -> Result<(), Unread> {
        // A single line may be larger than the window; then it goes alone.
        let bytes = bytes.min(WINDOW_BYTES) as u32;
        match timeout(patience, self.room.acquire_many(bytes)).await {
            Ok(Ok(permit)) => {
                permit.forget();
                Ok(())
            }
            Ok(Err(_)) => Err(Unread::Gone),
            Err(_) => Err(Unread::Stalled),
        }
    }

    /// The client's kernel has taken so many bytes.
    pub(super) fn handle_read(&self, bytes: usize) {
        let bytes = bytes.min(WINDOW_BYTES.saturating_sub(self.room.available_permits()));
        self.room.add_permits(bytes);
    }

    /// Nobody wants the rest.
    pub(super) fn handle_gone(&self) {
        self.gone.store(true, Relaxed);
        self.room.close();
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_stops_reading_is_given_up_and_one_that_goes_ends_the_wait() {
        let flow = Flow::new();
        assert_eq!(flow.take(WINDOW_BYTES - 10).await, Ok(()));
        assert_eq!(flow.take(10).await, Ok(()));
        assert_eq!(flow.take_within(1, Duration::ZERO).await, Err(Unread::Stalled));
        flow.handle_read(100);
        assert_eq!(flow.take(100).await, Ok(()));
        // What it says it has read is never more than it was sent.
        flow.handle_read(usize::MAX);
        assert_eq!(flow.take(2 * WINDOW_BYTES).await, Ok(()));
        let (taken, ()) = tokio::join!(flow.take(1), async { flow.handle_gone() });
        assert_eq!(taken, Err(Unread::Gone));
        assert!(flow.is_gone());
    }
}
