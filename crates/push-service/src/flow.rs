//! Flow control of a streamed response: limits the bytes that its client has not read yet.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Bytes of one response between the push thread and the client's kernel.
pub(super) const WINDOW_BYTES: usize = 256 << 10;
/// A client that reads nothing for this long counts as stalled.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The window of one client's response. Workers report over the bus how much was read: they cannot wake this thread
/// otherwise, since its wake-up descriptor is not in their descriptor tables.
#[derive(Debug)]
pub(super) struct Flow {
    room: Semaphore,
    gone: AtomicBool,
    read_bytes: AtomicU64,
}

/// The client has disconnected, or does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowError {
    Gone,
    Stalled,
}

impl Flow {
    pub(super) fn new() -> Flow {
        Flow {
            room: Semaphore::new(WINDOW_BYTES),
            gone: AtomicBool::new(false),
            read_bytes: AtomicU64::new(0),
        }
    }

    /// Waits for room for this number of bytes, and takes it.
    pub(super) async fn take(&self, bytes: usize) -> Result<(), FlowError> {
        self.take_within(bytes, TIMEOUT).await
    }

    async fn take_within(&self, bytes: usize, limit: Duration) -> Result<(), FlowError> {
        // A line larger than the window is sent when the window is empty.
        let bytes = bytes.min(WINDOW_BYTES) as u32;
        match timeout(limit, self.room.acquire_many(bytes)).await {
            Ok(Ok(permit)) => {
                permit.forget();
                Ok(())
            }
            Ok(Err(_)) => Err(FlowError::Gone),
            Err(_) => Err(FlowError::Stalled),
        }
    }

    /// Handles that the client's kernel has accepted this number of bytes.
    pub(super) fn handle_read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
        let bytes = bytes.min(WINDOW_BYTES.saturating_sub(self.room.available_permits()));
        self.room.add_permits(bytes);
    }

    /// Returns the total bytes that the client's kernel has accepted.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Relaxed)
    }

    /// Waits until the client's kernel has accepted everything that was sent.
    pub(super) async fn drain(&self) -> Result<(), FlowError> {
        self.take(WINDOW_BYTES).await?;
        self.room.add_permits(WINDOW_BYTES);
        Ok(())
    }

    /// Handles that the client has disconnected.
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
        assert_eq!(flow.take_within(1, Duration::ZERO).await, Err(FlowError::Stalled));
        flow.handle_read(100);
        assert_eq!(flow.take(100).await, Ok(()));
        // A report of more bytes than were sent is capped.
        flow.handle_read(usize::MAX);
        assert_eq!(flow.take(2 * WINDOW_BYTES).await, Ok(()));
        let (taken, ()) = tokio::join!(flow.take(1), async { flow.handle_gone() });
        assert_eq!(taken, Err(FlowError::Gone));
        assert!(flow.is_gone());
    }
}
