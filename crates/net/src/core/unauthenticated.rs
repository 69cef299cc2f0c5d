//! Accepted connections that nobody has vouched for: how many there may be, and which gives way to a newer one.

use std::collections::VecDeque;

use super::connection::{ConnId, Flags, Phase};
use super::context::Context;
use super::error::CloseReason;

/// How many give way when descriptors run out.
const DISPLACED_AT_ONCE: usize = 64;
/// Stale entries of the queue that are not worth a look at all of them.
const STALE_MIN: usize = 1024;

/// The unauthenticated connections of a loop, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Unauthenticated {
    /// Those that were authenticated or ended since are still in it, and recognised.
    queue: VecDeque<ConnId>,
    /// Those that were not.
    count: usize,
}

impl Unauthenticated {
    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

impl<D: Default> Context<D> {
    /// The peer of an accepted connection has shown who it is: the connection does not count among those bounded by
    /// [`unauthenticated_max`](crate::LoopConfig::unauthenticated_max) any more.
    pub fn mark_authenticated(&mut self, conn: ConnId) {
        if let Some(record) = self.slab.get_mut(conn)
            && record.flags.take(Flags::UNAUTHENTICATED)
        {
            self.unauthenticated.count -= 1;
        }
    }

    /// Bounds from now on how many accepted connections nobody has vouched for; see
    /// [`unauthenticated_max`](crate::LoopConfig::unauthenticated_max).
    pub fn set_unauthenticated_max(&mut self, connections: usize) {
        self.config.unauthenticated_max = connections;
    }

    /// A connection has been accepted: it is the newest of them. The oldest may have to go.
    pub(crate) fn mark_unauthenticated(&mut self, conn: ConnId) {
        if self.config.unauthenticated_max == usize::MAX {
            return;
        }
        self.slab.at_mut(conn.index()).flags.set(Flags::UNAUTHENTICATED);
        self.unauthenticated.queue.push_back(conn);
        self.unauthenticated.count += 1;
        // The newest stays in any case.
        while self.unauthenticated.count > self.config.unauthenticated_max.max(1) {
            self.displace_oldest();
        }
        let Unauthenticated { queue, count } = &mut self.unauthenticated;
        if queue.len() > 2 * *count + STALE_MIN {
            let slab = &self.slab;
            queue.retain(|&conn| {
                slab.get(conn).is_some_and(|record| record.flags.has(Flags::UNAUTHENTICATED))
            });
        }
    }

    /// Descriptors have run out: the oldest make room.
    pub(crate) fn displace_some(&mut self) {
        for _ in 0..DISPLACED_AT_ONCE.min(self.unauthenticated.count) {
            self.displace_oldest();
        }
    }

    fn displace_oldest(&mut self) {
        while let Some(conn) = self.unauthenticated.queue.pop_front() {
            let Some(record) = self.slab.get_mut(conn) else { continue };
            if !record.flags.take(Flags::UNAUTHENTICATED) {
                continue;
            }
            self.unauthenticated.count -= 1;
            self.stats.displaced += 1;
            if record.phase == Phase::Lingering {
                self.release(conn);
            } else {
                self.reset(conn, CloseReason::Displaced);
            }
            return;
        }
    }
}
