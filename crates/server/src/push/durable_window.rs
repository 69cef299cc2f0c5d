//! How many durable pushes have begun and have no outcome in the journal: all of them may be sent twice after a crash, and carry
//! the mark that says so. So no more begin than the connections take up.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::Semaphore;

/// Pushes at least, so that the journal is written for many of them together; and at most.
const MIN: usize = 512;
const MAX: usize = 8_192;
/// Of what is in flight: as much again is on its way into the journal, or waits for its turn.
const PER_IN_FLIGHT: usize = 2;
/// Of the window, how many begin together.
const GROUPS: usize = 4;

/// Room for durable pushes that have begun.
#[derive(Debug)]
pub(super) struct DurableWindow {
    room: Semaphore,
    /// Room and those who have it.
    size: AtomicUsize,
}

impl DurableWindow {
    pub(super) fn new() -> DurableWindow {
        DurableWindow { room: Semaphore::new(MIN), size: AtomicUsize::new(MIN) }
    }

    /// How many may begin together.
    pub(super) fn group(&self) -> usize {
        self.size.load(Relaxed) / GROUPS
    }

    /// Waits for room for a group. False: the process is going down.
    pub(super) async fn enter(&self, pushes: usize) -> bool {
        let permits = self.room.acquire_many(pushes as u32).await;
        permits.map(tokio::sync::SemaphorePermit::forget).is_ok()
    }

    /// The outcomes of so many are in the journal, and so many pushes are in flight.
    pub(super) fn leave(&self, pushes: usize, in_flight: usize) {
        let wanted = (in_flight * PER_IN_FLIGHT).clamp(MIN, MAX);
        let size = self.size.load(Relaxed);
        // It shrinks by what leaves.
        let next = wanted.max(size.saturating_sub(pushes));
        self.size.store(next, Relaxed);
        self.room.add_permits(pushes + next - size);
    }

    /// Nothing begins any more.
    pub(super) fn close(&self) {
        self.room.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_window_is_twice_what_is_in_flight_and_never_more_than_its_bounds() {
        let window = DurableWindow::new();
        let room = |window: &DurableWindow| window.room.available_permits();
        assert!(window.enter(MIN).await);
        assert_eq!(room(&window), 0);
        window.leave(100, MIN);
        assert_eq!((room(&window), window.group()), (100 + MIN, 2 * MIN / GROUPS));
        window.leave(MIN - 100, 1 << 20);
        assert_eq!(room(&window), MAX);
        // What has no use shrinks away as it leaves.
        assert!(window.enter(MAX).await);
        window.leave(MAX - MIN, 0);
        assert_eq!(room(&window), 0);
        window.leave(MIN, 0);
        assert_eq!((room(&window), window.group()), (MIN, MIN / GROUPS));
    }
}
