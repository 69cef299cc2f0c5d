//! Limits the durable pushes that have begun and have no outcome in the journal. After a crash each of them may be sent
//! twice and is marked as a possible duplicate, so only as many begin as keep the connections busy.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::Semaphore;

/// The smallest window, so that one write to the journal covers many pushes; and the largest.
const MIN: usize = 512;
const MAX: usize = 4_096;
/// A group of pushes that begin together is this fraction of the window.
const GROUPS: usize = 4;
/// Fractions of the window. If more than 1/`MOST_WAIT` waits for a connection, the window shrinks; if less than
/// 1/`SOME_WAIT`, it grows.
const MOST_WAIT: usize = 2;
const SOME_WAIT: usize = 8;

/// The window of durable pushes that have begun.
#[derive(Debug)]
pub(super) struct DurableWindow {
    room: Semaphore,
    /// Free and taken places together.
    size: AtomicUsize,
}

impl DurableWindow {
    pub(super) fn new() -> DurableWindow {
        DurableWindow { room: Semaphore::new(MIN), size: AtomicUsize::new(MIN) }
    }

    /// Returns how many pushes may begin together.
    pub(super) fn group(&self) -> usize {
        self.size.load(Relaxed) / GROUPS
    }

    /// Waits for room for a group. Returns `false` if the process is shutting down.
    pub(super) async fn enter(&self, pushes: usize) -> bool {
        let permits = self.room.acquire_many(pushes as u32).await;
        permits.map(tokio::sync::SemaphorePermit::forget).is_ok()
    }

    /// Handles that the outcomes of `pushes` are in the journal while `waiting` pushes wait for a connection; adjusts the size.
    pub(super) fn leave(&self, pushes: usize, waiting: usize) {
        let size = self.size.load(Relaxed);
        let next = if waiting > size / MOST_WAIT {
            // Shrinks by at most the pushes that leave: the others still hold their places.
            size.saturating_sub(pushes.min(waiting - size / MOST_WAIT)).max(MIN)
        } else if waiting < size / SOME_WAIT {
            (size + pushes).min(MAX)
        } else {
            size
        };
        self.size.store(next, Relaxed);
        self.room.add_permits(pushes + next - size);
    }

    /// Prevents further pushes from beginning.
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
        // While too many pushes wait, those that leave shrink the window instead of freeing places.
        assert!(window.enter(MAX).await);
        window.leave(100, MAX);
        assert_eq!((room(&window), window.group()), (0, (MAX - 100) / GROUPS));
        window.leave(MAX - 100, MAX);
        assert_eq!((room(&window), window.group()), (1_898, 1_898 / GROUPS));
    }
}
