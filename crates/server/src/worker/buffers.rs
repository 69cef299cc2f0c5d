//! Limits on the bytes buffered for connections: per address, and in total.

use dunlin_net::Context;

use super::Worker;
use super::link::Link;
use super::parts::BufferHolder;
use crate::metrics::Metric;

impl Worker<'_> {
    /// Limits the loop's buffers to this worker's share.
    pub(super) fn bound_buffers(&mut self, cx: &mut Context<Link>) {
        let (limits, memory) = (&self.settings.config.limits, &self.settings.memory);
        let share = |bytes: usize, least: usize| bytes.div_ceil(self.state.workers()).max(least);
        let one = limits.body_bytes_max + limits.answer_bytes_max;
        let per_address_max = share(memory.buffered_bytes_per_address_max, one);
        let bytes_max = share(memory.buffered_bytes_max, per_address_max);
        self.buffers.set_limits(bytes_max, per_address_max);
        cx.set_buffered_bytes_max(bytes_max);
    }

    /// Closes connections of addresses that hold too much, if a check is due.
    pub(super) fn enforce_buffer_limits(&mut self, cx: &mut Context<Link>) {
        if !self.buffers.is_due(cx.buffered_bytes_in_all()) {
            return;
        }
        let mut holders = Vec::new();
        cx.for_each_connection(|cx, conn| {
            let bytes = cx.buffered_bytes(conn);
            if let Some(link) = cx.data(conn).filter(|_| bytes > 0) {
                holders.push(BufferHolder { conn, bytes, address: self.peers.counted(link.peer) });
            }
        });
        for conn in self.buffers.evict(holders) {
            self.count(Metric::BuffersEvicted);
            cx.abort(conn);
        }
    }

    /// Called once a second: input that was read since the last check makes the next one due sooner.
    pub(super) fn look_at_buffers(&mut self, cx: &Context<Link>) {
        self.buffers.handle_second(cx.buffered_bytes_in_all());
    }
}
