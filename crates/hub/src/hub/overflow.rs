//! What gives way when there is no room: in one outbox, or in all of them together.

use std::sync::Arc;

use hashbrown::HashSet;

use super::Hub;
use crate::code;
use crate::encode::{EncodingId, Outgoing};
use crate::frame_log::{FrameKind, Label, PRIVATE_LANE, Part, Range};
use crate::session::{BLOCKED, DIRTY, HELD, SLOW};
use crate::slots::NONE;

/// How many times its bound may gather for a session between two flushes.
const UNFLUSHED_GRACE: u32 = 4;

/// Slow sessions that pay at once; if that was not enough, the next ones pay next time.
const PAYERS_MAX: u32 = 1024;

impl Hub {
    /// Brings a session's outbox back within its bounds, if it is over them. `ranges_max`: how
    /// many ranges one that cannot be flushed may consist of.
    pub(super) fn relieve(&mut self, slot: u32, ranges_max: usize) {
        let session = &self.sessions[slot];
        if !session.is_live() {
            return;
        }
        // A session that is not blocked is not slow: it only has not been flushed yet.
        let grace = if session.is(BLOCKED | HELD) { 1 } else { UNFLUSHED_GRACE };
        let bytes_max = session.outbox_bytes_max.saturating_mul(grace);
        if session.outbox.bytes() > bytes_max {
            // What is larger than the bound by itself could never be sent otherwise.
            if session.outbox.len() == 1 && !session.is(BLOCKED) {
                let only = session.outbox.ranges().next();
                if only.is_some_and(|range| self.log.parts(range).count() == 1) {
                    return;
                }
            }
            // Down to a little less than full, so that the next message finds room without all
            // this.
            self.shed(slot, bytes_max - bytes_max / 8);
            if self.sessions[slot].outbox.bytes() > bytes_max {
                self.disconnect_slow(slot);
            }
        } else if session.is(BLOCKED | HELD) && session.outbox.len() > ranges_max {
            let ranges = self.sessions[slot].outbox.take();
            self.refill_dense(slot, &ranges);
        }
    }

    /// Brings the memory of all outboxes together back within its bound, if it is over it: the
    /// sessions that could not be flushed for longest pay first.
    pub(super) fn keep_budget(&mut self) {
        let mut round = self.slow_len.min(PAYERS_MAX);
        while round > 0 && self.log.is_over(self.config.pending_bytes_max) {
            round -= 1;
            let slot = self.slow_head;
            self.shed(slot, 0);
            let ranges = self.sessions[slot].outbox.take();
            let mut parts = ranges.iter().flat_map(|&range| self.log.parts(range));
            let owes = parts.any(|part| part.whole && part.label.kind != FrameKind::Mark);
            drop(parts);
            self.refill_dense(slot, &ranges);
            if owes && self.sessions[slot].is_live() {
                // What is left may not be dropped one by one.
                self.disconnect_slow(slot);
            }
            if self.sessions[slot].is(SLOW) {
                self.unlink_slow(slot);
                self.link_slow(slot);
            }
        }
    }

    /// Forgets all that waits for a session but the rest of a frame partly sent.
    pub(super) fn keep_cut_frame(&mut self, slot: u32) {
        let ranges = self.sessions[slot].outbox.take();
        let bytes: u64 = ranges.iter().map(|range| u64::from(range.len())).sum();
        let first = ranges.first().and_then(|&range| self.log.parts(range).next());
        let cut: Vec<Range> =
            first.filter(|part| !part.whole).map(|part| part.range).into_iter().collect();
        self.pending_bytes -= bytes;
        self.pending_bytes += cut.iter().map(|range| u64::from(range.len())).sum::<u64>();
        if !cut.is_empty() {
            let own = self.log.relocate(&cut);
            self.sessions[slot].outbox.refill([own], &mut self.log);
        }
        for range in ranges {
            self.log.release(range.chunk, 1);
        }
    }

    pub(super) fn drop_outbox(&mut self, slot: u32) {
        let ranges = self.sessions[slot].outbox.take();
        for range in ranges {
            self.pending_bytes -= u64::from(range.len());
            self.log.release(range.chunk, 1);
        }
    }

    pub(super) fn mark_dirty(&mut self, slot: u32) {
        let session = &mut self.sessions[slot];
        if session.flags & (DIRTY | BLOCKED | HELD) == 0 {
            session.flags |= DIRTY;
            self.dirty.push_back(slot);
        }
    }

    /// Puts retained frames before everything that waits, but for the rest of a frame partly sent.
    pub(super) fn insert_front(&mut self, slot: u32, frames: &[Range]) {
        let mut ranges = self.sessions[slot].outbox.take();
        let head = ranges.first().copied();
        let cut = head.and_then(|head| {
            let part = self.log.parts(head).next().filter(|part| !part.whole)?.range;
            Some((part, Range { start: part.end, ..head }))
        });
        if let Some((part, rest)) = cut {
            ranges[0] = part;
            if rest.len() > 0 {
                self.log.retain(rest.chunk, 1);
                ranges.insert(1, rest);
            }
            ranges.splice(1..1, frames.iter().copied());
        } else {
            ranges.splice(0..0, frames.iter().copied());
        }
        self.sessions[slot].outbox.refill(ranges, &mut self.log);
    }

    /// Puts a session at the end of the list of those that cannot be flushed.
    pub(super) fn link_slow(&mut self, slot: u32) {
        if self.sessions[slot].is(SLOW) {
            return;
        }
        let last = std::mem::replace(&mut self.slow_tail, slot);
        self.slow_len += 1;
        self.sessions[slot].flags |= SLOW;
        if last == NONE {
            self.slow_head = slot;
        } else {
            self.sessions[last].outbox.more_mut().slow_next = slot;
            self.sessions[slot].outbox.more_mut().slow_prev = last;
        }
    }

    pub(super) fn unlink_slow(&mut self, slot: u32) {
        let session = &mut self.sessions[slot];
        if !session.is(SLOW) {
            return;
        }
        session.flags &= !SLOW;
        self.slow_len -= 1;
        let (prev, next) = match session.outbox.more() {
            Some(more) => (more.slow_prev, more.slow_next),
            None => (NONE, NONE),
        };
        if session.outbox.more().is_some() {
            let more = session.outbox.more_mut();
            (more.slow_prev, more.slow_next) = (NONE, NONE);
            session.outbox.trim();
        }
        if prev == NONE {
            self.slow_head = next;
        } else {
            self.sessions[prev].outbox.more_mut().slow_next = next;
            self.sessions[prev].outbox.trim();
        }
        if next == NONE {
            self.slow_tail = prev;
        } else {
            self.sessions[next].outbox.more_mut().slow_prev = prev;
            self.sessions[next].outbox.trim();
        }
    }

    /// Drops whole frames that may be dropped: those a later one made obsolete, then the oldest,
    /// until at most `target` bytes wait or none is left.
    fn shed(&mut self, slot: u32, target: u32) {
        let ranges = self.sessions[slot].outbox.take();
        let before: u64 = ranges.iter().map(|range| u64::from(range.len())).sum();
        let parts: Vec<Part<'_>> = ranges.iter().flat_map(|&range| self.log.parts(range)).collect();
        let keep = choose(&parts, before, u64::from(target));

        // A mark takes the place of the first frame dropped, or of the mark that is there. Not
        // across a frame that is fixed: that may be the answer to a later subscription, to which
        // what was missed before is nothing.
        let mut kept = Vec::new();
        let mut marks: Vec<Mark> = Vec::new();
        let mut rest = parts.into_iter().zip(keep).peekable();
        while rest.peek().is_some() {
            let mut run = Vec::new();
            for (part, keep) in rest.by_ref() {
                run.push((part, keep));
                if part.label.kind.is_fixed() {
                    break;
                }
            }
            let first = marks.len();
            for (part, _) in run.iter().filter(|(_, keep)| !keep) {
                if let Some(channel) = part.label.channel
                    && !marks[first..].iter().any(|mark| mark.channel == *channel)
                {
                    marks.push(Mark { channel: Arc::clone(channel), count: 0, place: None });
                }
            }
            for (part, keep) in run {
                let Label { kind, key, channel } = part.label;
                let replaced = kind == FrameKind::Mark && part.whole;
                let mark = marks[first..].iter_mut().find(|mark| Some(&mark.channel) == channel);
                match mark {
                    Some(mark) if !keep || replaced => {
                        mark.count = mark.count.saturating_add(if keep { key } else { 1 });
                        self.stats.dropped += u64::from(!keep);
                        mark.place.get_or_insert_with(|| {
                            kept.push(Range::NONE);
                            kept.len() - 1
                        });
                    }
                    _ => kept.push(part.range),
                }
            }
        }
        for range in kept.iter().filter(|range| !range.is_none()) {
            self.log.retain(range.chunk, 1);
        }
        for mark in marks {
            if let (Some(place), Some(frame)) = (mark.place, self.spell_mark(slot, &mark)) {
                self.log.retain(frame.chunk, 1);
                kept[place] = frame;
            }
        }
        kept.retain(|range| !range.is_none());
        self.sessions[slot].outbox.refill(kept, &mut self.log);
        for range in ranges {
            self.log.release(range.chunk, 1);
        }
        self.pending_bytes += u64::from(self.sessions[slot].outbox.bytes());
        self.pending_bytes -= before;
    }

    fn spell_mark(&mut self, slot: u32, mark: &Mark) -> Option<Range> {
        let encoding = EncodingId(self.sessions[slot].encoding);
        let outgoing = Outgoing::Missed { channel: &mark.channel, count: mark.count.into() };
        let label = Label { kind: FrameKind::Mark, key: mark.count, channel: Some(&mark.channel) };
        let encoder = &mut self.encoder;
        self.log.append(PRIVATE_LANE, 256, label, |out| encoder.encode(encoding, &outgoing, out))
    }

    fn disconnect_slow(&mut self, slot: u32) {
        self.stats.slow_disconnects += 1;
        self.disconnect(slot, code::DISCONNECT_SLOW, &Arc::from("slow"), true);
    }

    /// Copies what waits into a chunk of its own, which holds nobody else's frames.
    fn refill_dense(&mut self, slot: u32, ranges: &[Range]) {
        if !ranges.is_empty() {
            let own = self.log.relocate(ranges);
            self.sessions[slot].outbox.refill([own], &mut self.log);
        }
        for range in ranges {
            self.log.release(range.chunk, 1);
        }
    }
}

/// Which of the frames that wait are kept: not those a later one made obsolete, then not the
/// oldest, until at most `target` of the `waiting` bytes are left or nothing more may be dropped.
fn choose(parts: &[Part<'_>], mut waiting: u64, target: u64) -> Vec<bool> {
    let mut keep = vec![true; parts.len()];
    // Latest first, to know what came later.
    let mut seen = HashSet::new();
    for (part, keep) in parts.iter().zip(&mut keep).rev() {
        let Label { kind, key, channel } = part.label;
        if kind == FrameKind::KeepLatest && !seen.insert((channel, key)) && part.whole {
            *keep = false;
            waiting -= u64::from(part.range.len());
        }
    }
    for (part, keep) in parts.iter().zip(&mut keep) {
        if waiting <= target {
            break;
        }
        if *keep && part.label.kind.is_droppable() && part.whole {
            *keep = false;
            waiting -= u64::from(part.range.len());
        }
    }
    keep
}

/// What a session has to be told about a channel of which publications were dropped.
struct Mark {
    channel: Arc<str>,
    count: u32,
    /// Where among the frames that are kept.
    place: Option<usize>,
}
