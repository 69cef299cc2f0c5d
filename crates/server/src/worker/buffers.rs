//! Limits on the bytes buffered for connections: per address, and in total.

use super::accept::Front;
use super::parts::BufferHolder;
use super::turn::Turn;
use crate::metrics::Metric;

impl Front<'_> {
    /// Limits the loop's buffers to this worker's share.
    pub(super) fn bound_buffers(&mut self, turn: &mut Turn<'_, '_>) {
        let (limits, memory) = (&turn.core.settings.config.limits, &turn.core.settings.memory);
        let share =
            |bytes: usize, least: usize| bytes.div_ceil(turn.core.state.workers()).max(least);
        let one = limits.body_bytes_max + limits.answer_bytes_max;
        let per_address_max = share(memory.buffered_bytes_per_address_max, one);
        let bytes_max = share(memory.buffered_bytes_max, per_address_max);
        self.buffers.set_limits(bytes_max, per_address_max);
        turn.cx.set_buffered_bytes_max(bytes_max);
    }

    /// Closes connections of addresses that hold too much, if a check is due.
    pub(super) fn enforce_buffer_limits(&mut self, turn: &mut Turn<'_, '_>) {
        if !self.buffers.is_due(turn.cx.buffered_bytes_in_all()) {
            return;
        }
        let mut holders = Vec::new();
        turn.cx.for_each_connection(|cx, conn| {
            let bytes = cx.buffered_bytes(conn);
            if let Some(link) = cx.data(conn).filter(|_| bytes > 0) {
                holders.push(BufferHolder {
                    conn,
                    bytes,
                    address: turn.core.peers.counted(link.peer),
                });
            }
        });
        for conn in self.buffers.evict(holders) {
            turn.core.count(Metric::BuffersEvicted);
            turn.cx.abort(conn);
        }
    }

    /// Called once a second: input that was read since the last check makes the next one due sooner.
    pub(super) fn look_at_buffers(&mut self, turn: &mut Turn<'_, '_>) {
        self.buffers.handle_second(turn.cx.buffered_bytes_in_all());
    }
}
