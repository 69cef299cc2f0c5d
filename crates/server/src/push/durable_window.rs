//! How many durable pushes have begun and have no outcome in the journal: all of them may be sent twice after a crash, and carry
//! the mark that says so. So no more begin than keep the connections busy.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::Semaphore;

/// Pushes at least, so that the journal is written for many of them together; and at most.
const MIN: usize = 512;
const MAX: usize = 4_096;
/// Of the window, how many begin together.
const GROUPS: usize = 4;
/// Of the window, what may wait for a connection: with more of it the window is too large, with less too small.
const MOST_WAIT: usize = 2;
const SOME_WAIT: usize = 8;

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

    /// The outcomes of so many are in the journal, and so many pushes wait for a connection.
    pub(super) fn leave(&self, pushes: usize, waiting: usize) {
        let size = self.size.load(Relaxed);
        let next = if waiting > size / MOST_WAIT {
            // By no more than what leaves: the others have their room.
            size.saturating_sub(pushes.min(waiting - size / MOST_WAIT)).max(MIN)
        } else if waiting < size / SOME_WAIT {
            (size + pushes).min(MAX)
        } else {
            size
        };
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
    async fn a_window_grows_while_connections_find_nothing_and_shrinks_while_much_waits_for_them() {
        let window = DurableWindow::new();
        let room = |window: &DurableWindow| window.room.available_permits();
        assert!(window.enter(MIN).await);
        window.leave(100, 0);
        assert_eq!((room(&window), window.group()), (200, (MIN + 100) / GROUPS));
        for _ in 0..100 {
            assert!(window.enter(room(&window)).await);
            window.leave(MIN, 0);
        }
        assert!(window.enter(room(&window)).await);
        window.leave(MAX, MAX / 4);
        assert_eq!(room(&window), MAX, "it stays where a little waits");
        // What only waits has no room any more as it leaves.
        assert!(window.enter(MAX).await);
        window.leave(100, MAX);
        assert_eq!((room(&window), window.group()), (0, (MAX - 100) / GROUPS));
        window.leave(MAX - 100, MAX);
        assert_eq!((room(&window), window.group()), (1_898, 1_898 / GROUPS));
    }
}
