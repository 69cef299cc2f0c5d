//! Accepted connections that are not authenticated yet: how many are allowed, which of them is closed for a newer one,
//! and how much of their input is read in a turn.

use std::collections::VecDeque;

use super::connection::{ConnId, Flags, Phase};
use super::context::Context;
use super::error::CloseReason;
use super::handler::Handler;

/// Bytes read in one turn from unauthenticated and lingering connections together: a fraction of a millisecond. The
/// rest waits for the next turn, in order, after the input of all other connections.
const READ_BYTES_PER_TURN: usize = 512 << 10;
/// The least that a read counts: handling it costs more than its bytes.
const READ_BYTES_MIN: usize = 2 << 10;
/// Number of connections closed when descriptors run out.
const DISPLACED_AT_ONCE: usize = 64;
/// Number of stale queue entries below which the queue is not cleaned.
const STALE_MIN: usize = 1024;

/// The unauthenticated connections of a loop, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Unauthenticated {
    /// May include connections that have since been authenticated or ended; these are recognised.
    queue: VecDeque<ConnId>,
    /// Number of unauthenticated connections.
    count: usize,
    /// Connections read last that have input but had no room in this turn, the next one first.
    waiting: VecDeque<ConnId>,
    /// Bytes that may still be read from them in this turn.
    readable_bytes: usize,
}

impl Unauthenticated {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns whether the next turn must read from such connections.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn begin_turn(&mut self) {
        self.readable_bytes = READ_BYTES_PER_TURN;
    }
}

impl<D: Default> Context<D> {
    /// Marks the peer of an accepted connection as authenticated: the connection no longer counts against
    /// [`unauthenticated_max`](crate::LoopConfig::unauthenticated_max).
    pub fn mark_authenticated(&mut self, conn: ConnId) {
        if let Some(record) = self.slab.get_mut(conn)
            && record.flags.take(Flags::UNAUTHENTICATED)
        {
            self.unauthenticated.count -= 1;
        }
    }

    /// Sets the limit on unauthenticated connections; see
    /// [`unauthenticated_max`](crate::LoopConfig::unauthenticated_max).
    pub fn set_unauthenticated_max(&mut self, connections: Option<usize>) {
        self.config.unauthenticated_max = connections;
    }

    /// Adds an accepted connection. The oldest ones may be closed for it.
    pub(crate) fn mark_unauthenticated(&mut self, conn: ConnId) {
        let Some(most) = self.config.unauthenticated_max else { return };
        self.slab.at_mut(conn.index()).flags.set(Flags::UNAUTHENTICATED);
        self.unauthenticated.queue.push_back(conn);
        self.unauthenticated.count += 1;
        // The newest one is always kept.
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

    /// Returns whether a connection is read after the authenticated ones.
    pub(crate) fn is_read_last(&self, conn: ConnId) -> bool {
        self.slab.get(conn).is_some_and(|record| {
            record.flags.has(Flags::UNAUTHENTICATED) || record.phase == Phase::Lingering
        })
    }

    /// Queues a connection that is read last, unless it can be read now. Returns whether it was queued.
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

    /// Counts bytes read from a connection that is read last.
    pub(crate) fn count_read_last(&mut self, bytes: usize) {
        let left = &mut self.unauthenticated.readable_bytes;
        *left = left.saturating_sub(bytes.max(READ_BYTES_MIN));
    }

    /// Reads from waiting connections, each once, while this turn has room.
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
                    // The waiting input may include FIN: read until the socket is empty.
                    _ => self.read(handler, conn, true),
                }
            }
        }
    }

    /// Closes some of the oldest, because descriptors have run out.
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
