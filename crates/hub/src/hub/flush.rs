//! Writing of outboxes to sockets.

use std::io::IoSlice;

use super::Hub;
use crate::command::Flush;
use crate::encode::Outgoing;
use crate::frame_log::{FrameLabel, SESSION_TAIL};
use crate::session::{BLOCKED, DIRTY, HELD, OPEN, POLL};
use crate::session_id::SessionId;
use crate::trace::TracedDelivery;

impl Hub {
    /// Returns the next session with output, each once, except [blocked](Hub::set_blocked) and held ones.
    /// Broadcasts come last, within the quantum of [`Hub::begin_flush`].
    ///
    /// Write its [outbox](Hub::outbox) and call [`Hub::advance`] with the number of bytes that the socket
    /// accepted. If bytes are left, call [`Hub::set_blocked`]; otherwise the session is returned again only
    /// after more output was added.
    pub fn poll_flush(&mut self) -> Option<Flush> {
        while let Some(slot) = self.dirty.pop_front() {
            let session = &mut self.sessions[slot];
            // Stale entry: the session has been closed or blocked since.
            if !session.is(DIRTY) {
                continue;
            }
            session.flags &= !DIRTY;
            if session.flags & (OPEN | BLOCKED | HELD) != OPEN {
                continue;
            }
            let poll = session.is(POLL);
            let tag = session.tag;
            if !session.outbox.is_empty() {
                return Some(Flush { session: self.id_of(slot), tag, poll });
            }
        }
        let flush = self.poll_broadcast();
        if flush.is_none() {
            self.flush_wanted = false;
        }
        flush
    }

    /// The deliveries since the last call: times of publications ([`Publication::time_ms`](crate::Publication::time_ms)), each with
    /// how often it was delivered. Of broadcasts that take several turns, the time at which they began.
    pub fn take_delivered(&mut self) -> impl Iterator<Item = (u64, u64)> {
        self.ages.take()
    }

    /// The traced publications that were put into outboxes since the last call.
    pub fn take_traced(&mut self) -> Vec<TracedDelivery> {
        std::mem::take(&mut self.traced)
    }

    /// Whether outboxes are full only because they were not flushed: flush before handling more input.
    pub fn wants_flush(&self) -> bool {
        self.flush_wanted || self.is_short_of_memory()
    }

    /// Whether the output of all sessions exceeds its limit.
    pub(super) fn is_short_of_memory(&self) -> bool {
        self.log.is_over(self.config.pending_bytes_max)
    }

    /// Points `slices` at the first bytes of a session's outbox, in order. Returns the number of slices; 0
    /// for a stale id or an empty outbox.
    pub fn outbox<'a>(&'a self, id: SessionId, slices: &mut [IoSlice<'a>]) -> usize {
        self.slot_of(id).map_or(0, |slot| self.sessions[slot].outbox.slices(&self.log, slices))
    }

    /// Bytes in a session's outbox.
    pub fn outbox_bytes(&self, id: SessionId) -> usize {
        self.slot_of(id).map_or(0, |slot| self.sessions[slot].outbox.bytes() as usize)
    }

    /// Removes the first `bytes` bytes of a session's outbox, which were sent.
    pub fn advance(&mut self, id: SessionId, bytes: usize) {
        let Some(slot) = self.slot_of(id) else { return };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let sent = self.sessions[slot].outbox.advance(bytes, &mut self.log);
        self.pending_bytes -= u64::from(sent);
        self.outbox_shrank(slot);
    }

    /// Records whether a session's socket is full. A session that is no longer blocked is returned by
    /// [`Hub::poll_flush`] if it has output.
    pub fn set_blocked(&mut self, id: SessionId, blocked: bool) {
        let Some(slot) = self.slot_of(id) else { return };
        let session = &mut self.sessions[slot];
        if blocked {
            session.flags = session.flags & !DIRTY | BLOCKED;
            self.link_slow(slot);
            return;
        }
        session.flags &= !BLOCKED;
        if !session.is(HELD) {
            self.unlink_slow(slot);
        }
        if !self.sessions[slot].outbox.is_empty() {
            self.mark_dirty(slot);
        }
    }

    /// Appends bytes to this session's outbox. `write` appends complete output for the socket. Returns
    /// `false`, without calling `write`, if the id is stale or the session is closing.
    pub fn push(&mut self, id: SessionId, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Some(slot) = self.live_slot(id) else { return false };
        if let Some(frame) = self.log.append(SESSION_TAIL, 512, FrameLabel::KEPT, write) {
            self.enqueue_frame(slot, frame);
        }
        true
    }

    /// Encodes a push into this session's outbox. Returns `false` if the id is stale or the session is
    /// closing.
    pub fn send(&mut self, id: SessionId, outgoing: &Outgoing<'_>) -> bool {
        let Some(slot) = self.live_slot(id) else { return false };
        self.enqueue(slot, outgoing);
        true
    }

    /// Releases a session opened with [`held`](crate::NewSession::held). The output of `write` precedes
    /// everything that has arrived meanwhile. Returns `false`, without calling `write`, if the session is not
    /// held.
    pub fn release(&mut self, id: SessionId, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Some(slot) = self.live_slot(id).filter(|&slot| self.sessions[slot].is(HELD)) else {
            return false;
        };
        if let Some(frame) = self.log.append(SESSION_TAIL, 512, FrameLabel::KEPT, write) {
            self.log.retain(frame.chunk, 1);
            self.pending_bytes += u64::from(frame.len());
            self.insert_front(slot, &[frame]);
        }
        self.sessions[slot].flags &= !HELD;
        if !self.sessions[slot].is(BLOCKED) {
            self.unlink_slow(slot);
        }
        if !self.sessions[slot].outbox.is_empty() {
            self.mark_dirty(slot);
        }
        self.enforce_limit(slot, usize::MAX, false);
        true
    }
}
