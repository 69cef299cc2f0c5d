//! Accepted connections that are not authenticated yet: how many there may be, which of them gives way to a newer one, and how much
//! of their input is read in a turn.

use std::collections::VecDeque;

use super::connection::{ConnId, Flags, Phase};
use super::context::Context;
use super::error::CloseReason;
use super::handler::Handler;

/// Bytes read in one turn from unauthenticated and lingering connections together: a fraction of a millisecond. The rest waits
/// for the next turn, in order, behind the input of all other connections.
const READ_BYTES_PER_TURN: usize = 512 << 10;
/// What the smallest read counts as: what it leads to costs more than its bytes.
const READ_BYTES_MIN: usize = 2 << 10;
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
    /// Those with input that this turn has no room for, and those that linger with some; the next one first.
    waiting: VecDeque<ConnId>,
    /// Bytes of theirs that this turn still reads.
    readable_bytes: usize,
}

impl Unauthenticated {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Whether the next turn has something to read of them.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn begin_turn(&mut self) {
        self.readable_bytes = READ_BYTES_PER_TURN;
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

    /// Sets the bound on unauthenticated connections; see
    /// [`unauthenticated_max`](crate::LoopConfig::unauthenticated_max).
    pub fn set_unauthenticated_max(&mut self, connections: Option<usize>) {
        self.config.unauthenticated_max = connections;
    }

    /// A connection was accepted and is the newest of them. The oldest may be closed for it.
    pub(crate) fn mark_unauthenticated(&mut self, conn: ConnId) {
        let Some(most) = self.config.unauthenticated_max else { return };
        self.slab.at_mut(conn.index()).flags.set(Flags::UNAUTHENTICATED);
        self.unauthenticated.queue.push_back(conn);
        self.unauthenticated.count += 1;
        // The newest stays in any case.
        while self.unauthenticated.count > most.max(1) {
            self.displace_oldest();
        }
        let Unauthenticated { queue, count, .. } = &mut self.unauthenticated;
        if queue.len() > 2 * *count + STALE_MIN {
            let slab = &self.slab;
            queue.retain(|&conn| {
                slab.get(conn).is_some_and(|record| record.flags.has(Flags::UNAUTHENTICATED))
            });
        }
    }

    /// Whether a connection is read from after the authenticated ones.
    pub(crate) fn is_read_last(&self, conn: ConnId) -> bool {
        self.slab.get(conn).is_some_and(|record| {
            record.flags.has(Flags::UNAUTHENTICATED) || record.phase == Phase::Lingering
        })
    }

    /// Queues a connection that is read last, unless it is its turn now.
    pub(crate) fn waits_to_be_read(&mut self, conn: ConnId) -> bool {
        let Unauthenticated { waiting, readable_bytes, .. } = &self.unauthenticated;
        if (waiting.is_empty() && *readable_bytes > 0) || !self.is_read_last(conn) {
            return false;
        }
        self.queue_read(conn);
        true
    }

    pub(crate) fn wait_to_be_read(&mut self, conn: ConnId) {
        self.unauthenticated.waiting.push_back(conn);
    }

    /// So many bytes of a connection that is read last have been read.
    pub(crate) fn count_read_last(&mut self, bytes: usize) {
        let left = &mut self.unauthenticated.readable_bytes;
        *left = left.saturating_sub(bytes.max(READ_BYTES_MIN));
    }

    /// Reads from those that wait, each once, as far as this turn has room.
    pub(crate) fn read_waiting<H: Handler<Data = D>>(&mut self, handler: &mut H) {
        for _ in 0..self.unauthenticated.waiting.len() {
            if self.unauthenticated.readable_bytes == 0 {
                return;
            }
            let Some(conn) = self.unauthenticated.waiting.pop_front() else { return };
            if let Some(record) = self.slab.get_mut(conn)
                && record.flags.take(Flags::READ_QUEUED)
            {
                match record.phase {
                    Phase::Upgrading => self.tls_handshake(handler, conn),
                    // FIN may be among what waited: read until the socket says it is empty.
                    _ => self.read(handler, conn, true),
                }
            }
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
