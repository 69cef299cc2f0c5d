//! Limits of one outbox and of all outboxes together.

use std::sync::Arc;

use hashbrown::HashSet;

use super::Hub;
use super::session::DisconnectCause;
use crate::code;
use crate::encode::{EncodingId, Outgoing};
use crate::frame_log::{CHUNK_BYTES, Frame, FrameKind, FrameLabel, Range, SESSION_TAIL};
use crate::session::{BLOCKED, DIRTY, HELD, SLOW};
use crate::slots::NONE;

/// Factor on the limit of an outbox that has not been flushed yet.
const UNFLUSHED_FACTOR: u32 = 4;

/// How long an outbox may exceed its limit, by up to [`UNFLUSHED_FACTOR`], if only a disconnect would reduce
/// it: a burst fills it faster than any socket accepts it.
const SLOW_AFTER_MS: u64 = 1_000;

/// Larger ranges, on average, are not copied together: they hold little memory of others, and copies for many
/// slow sessions would need far more.
const RANGE_BYTES_MAX: usize = CHUNK_BYTES / 4;

/// Slow sessions reduced in one call. If that does not free enough, the next call continues.
const SLOW_SESSIONS_PER_PASS_MAX: u32 = 1024;

impl Hub {
    /// Enforces the limit of a session's outbox. `ranges_max`: maximum number of ranges of an outbox that
    /// cannot be flushed. `droppable`: the frame that was appended may be dropped.
    pub(super) fn enforce_limit(&mut self, slot: u32, ranges_max: usize, droppable: bool) {
        let session = &self.sessions[slot];
        if !session.is_live() {
            return;
        }
        // A session that is not blocked is not slow: it has only not been flushed yet.
        let factor = if session.is(BLOCKED | HELD) { 1 } else { UNFLUSHED_FACTOR };
        let bytes_max = session.outbox_bytes_max.saturating_mul(factor);
        let is_over = session.outbox.bytes() > bytes_max;
        if is_over && (droppable || !self.has_time_left(slot)) {
            // A frame larger than the limit could otherwise never be sent.
            let session = &self.sessions[slot];
            if session.outbox.len() == 1 && !session.is(BLOCKED) {
                let only = session.outbox.ranges().next();
                if only.is_some_and(|range| self.log.frames(range).count() == 1) {
                    return;
                }
            }
            // Leave some room, so that the next message does not repeat this.
            self.drop_frames(slot, bytes_max - bytes_max / 8);
            if self.sessions[slot].outbox.bytes() > bytes_max {
                self.disconnect_slow(slot);
            }
        } else if self.sessions[slot].is(BLOCKED | HELD)
            && self.sessions[slot].outbox.len() > ranges_max
            && self.sessions[slot].outbox.bytes() as usize
                <= self.sessions[slot].outbox.len() * RANGE_BYTES_MAX
        {
            let ranges = self.sessions[slot].outbox.take();
            self.compact(slot, &ranges);
        }
    }

    /// Whether a blocked session beyond its limit still has time to recover.
    fn has_time_left(&mut self, slot: u32) -> bool {
        let session = &self.sessions[slot];
        let most = session.outbox_bytes_max.saturating_mul(UNFLUSHED_FACTOR);
        if !session.is(BLOCKED | HELD) || session.outbox.bytes() > most {
            return false;
        }
        let since_ms = *self.overdue.entry(slot).or_insert(self.now.ms);
        self.now.ms < since_ms + SLOW_AFTER_MS
    }

    /// A part of a session's outbox was sent, or all of it was cleared.
    pub(super) fn outbox_shrank(&mut self, slot: u32) {
        if !self.overdue.is_empty() {
            let session = &self.sessions[slot];
            if session.outbox.bytes() <= session.outbox_bytes_max {
                self.overdue.remove(&slot);
            }
        }
    }

    /// Enforces the limit of all outboxes together. The frames of the session that has been slow for longest
    /// are dropped first.
    pub(super) fn enforce_budget(&mut self) {
        let mut round = self.slow_len.min(SLOW_SESSIONS_PER_PASS_MAX);
        while round > 0 && self.log.is_over(self.config.pending_bytes_max) {
            round -= 1;
            let slot = self.slow_head;
            self.drop_frames(slot, 0);
            let ranges = self.sessions[slot].outbox.take();
            let mut frames = ranges.iter().flat_map(|&range| self.log.frames(range));
            let undroppable =
                frames.any(|frame| frame.whole && frame.label.kind != FrameKind::GapMarker);
            drop(frames);
            if undroppable && self.sessions[slot].is_live() {
                // The remaining frames must not be dropped one by one, and a copy would not help.
                self.sessions[slot].outbox.refill(ranges, &mut self.log);
                self.disconnect_slow(slot);
            } else {
                self.compact(slot, &ranges);
            }
            if self.sessions[slot].is(SLOW) {
                self.unlink_slow(slot);
                self.link_slow(slot);
            }
        }
    }

    /// Clears a session's outbox except for the rest of a partly sent frame.
    pub(super) fn keep_partial_frame(&mut self, slot: u32) {
        let ranges = self.sessions[slot].outbox.take();
        let bytes: u64 = ranges.iter().map(|range| u64::from(range.len())).sum();
        let first = ranges.first().and_then(|&range| self.log.frames(range).next());
        let cut: Vec<Range> =
            first.filter(|frame| !frame.whole).map(|frame| frame.range).into_iter().collect();
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

    pub(super) fn clear_outbox(&mut self, slot: u32) {
        let ranges = self.sessions[slot].outbox.take();
        for range in ranges {
            self.pending_bytes -= u64::from(range.len());
            self.log.release(range.chunk, 1);
        }
        self.outbox_shrank(slot);
    }

    pub(super) fn mark_dirty(&mut self, slot: u32) {
        let session = &mut self.sessions[slot];
        if session.flags & (DIRTY | BLOCKED | HELD) == 0 {
            session.flags |= DIRTY;
            self.dirty.push_back(slot);
        }
    }

    /// Inserts retained frames at the front, after the rest of a partly sent frame.
    pub(super) fn insert_front(&mut self, slot: u32, frames: &[Range]) {
        let mut ranges = self.sessions[slot].outbox.take();
        let head = ranges.first().copied();
        let cut = head.and_then(|head| {
            let frame = self.log.frames(head).next().filter(|frame| !frame.whole)?.range;
            Some((frame, Range { start: frame.end, ..head }))
        });
        if let Some((frame, rest)) = cut {
            ranges[0] = frame;
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

    /// Appends a session to the list of sessions that cannot be flushed.
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
            self.sessions[last].outbox.backlog_mut().slow_next = slot;
            self.sessions[slot].outbox.backlog_mut().slow_prev = last;
        }
    }

    pub(super) fn unlink_slow(&mut self, slot: u32) {
        let session = &mut self.sessions[slot];
        if !session.is(SLOW) {
            return;
        }
        session.flags &= !SLOW;
        self.slow_len -= 1;
        let (prev, next) = match session.outbox.backlog() {
            Some(backlog) => (backlog.slow_prev, backlog.slow_next),
            None => (NONE, NONE),
        };
        if session.outbox.backlog().is_some() {
            let backlog = session.outbox.backlog_mut();
            (backlog.slow_prev, backlog.slow_next) = (NONE, NONE);
            session.outbox.trim();
        }
        if prev == NONE {
            self.slow_head = next;
        } else {
            self.sessions[prev].outbox.backlog_mut().slow_next = next;
            self.sessions[prev].outbox.trim();
        }
        if next == NONE {
            self.slow_tail = prev;
        } else {
            self.sessions[next].outbox.backlog_mut().slow_prev = prev;
            self.sessions[next].outbox.trim();
        }
    }

    /// Drops droppable frames that are not partly sent: first those that a later one replaces, then the
    /// oldest, until at most `target` bytes are left or none is droppable.
    fn drop_frames(&mut self, slot: u32, target: u32) {
        let ranges = self.sessions[slot].outbox.take();
        let before: u64 = ranges.iter().map(|range| u64::from(range.len())).sum();
        let frames: Vec<Frame<'_>> =
            ranges.iter().flat_map(|&range| self.log.frames(range)).collect();
        let keep = choose(&frames, before, u64::from(target));
        let TrimmedFrames { mut kept, markers, dropped } = shorten(frames, keep);
        self.stats.dropped += dropped;
        for range in kept.iter().filter(|range| !range.is_none()) {
            self.log.retain(range.chunk, 1);
        }
        for marker in markers {
            if let (Some(place), Some(frame)) =
                (marker.place, self.encode_gap_marker(slot, &marker))
            {
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

    fn encode_gap_marker(&mut self, slot: u32, marker: &GapMarker) -> Option<Range> {
        let encoding = EncodingId(self.sessions[slot].encoding);
        let outgoing = Outgoing::Missed { channel: &marker.channel, count: marker.count.into() };
        let label = FrameLabel {
            kind: FrameKind::GapMarker,
            key: marker.count,
            channel: Some(&marker.channel),
        };
        let encoder = &mut self.encoder;
        self.log.append(SESSION_TAIL, 256, label, |out| encoder.encode(encoding, &outgoing, out))
    }

    fn disconnect_slow(&mut self, slot: u32) {
        self.stats.slow_disconnects += 1;
        self.disconnect(slot, code::DISCONNECT_SLOW, &Arc::from("slow"), DisconnectCause::Slow);
    }

    /// Copies the outbox into a separate chunk without frames of other sessions.
    fn compact(&mut self, slot: u32, ranges: &[Range]) {
        if !ranges.is_empty() {
            let own = self.log.relocate(ranges);
            self.sessions[slot].outbox.refill([own], &mut self.log);
        }
        for range in ranges {
            self.log.release(range.chunk, 1);
        }
    }
}

/// Selects the frames to keep. Drops those that a later one replaces, then the oldest, until at most `target`
/// of the `waiting` bytes are left or none is droppable.
fn choose(frames: &[Frame<'_>], mut waiting: u64, target: u64) -> Vec<bool> {
    let mut keep = vec![true; frames.len()];
    // Newest first, to find replaced frames.
    let mut seen = HashSet::new();
    for (frame, keep) in frames.iter().zip(&mut keep).rev() {
        let FrameLabel { kind, key, channel } = frame.label;
        if kind == FrameKind::KeepLatest && !seen.insert((channel, key)) && frame.whole {
            *keep = false;
            waiting -= u64::from(frame.range.len());
        }
    }
    for (frame, keep) in frames.iter().zip(&mut keep) {
        if waiting <= target {
            break;
        }
        if *keep && frame.label.kind.is_droppable() && frame.whole {
            *keep = false;
            waiting -= u64::from(frame.range.len());
        }
    }
    keep
}

/// A session's frames after some were dropped.
struct TrimmedFrames {
    /// Frames that stay, and [`Range::NONE`] where a gap marker goes.
    kept: Vec<Range>,
    markers: Vec<GapMarker>,
    dropped: u64,
}

/// Informs a client of the number of dropped publications of a channel.
struct GapMarker {
    channel: Arc<str>,
    count: u32,
    /// Index in [`TrimmedFrames::kept`].
    place: Option<usize>,
}

/// Drops the frames that are not kept. A gap marker replaces the first dropped frame of its channel, or the
/// existing marker. It does not move across a fixed frame, which may be the reply to a later subscription, to
/// which the earlier gap does not apply.
fn shorten(frames: Vec<Frame<'_>>, keep: Vec<bool>) -> TrimmedFrames {
    let mut kept = Vec::new();
    let mut markers: Vec<GapMarker> = Vec::new();
    let mut dropped = 0;
    let mut rest = frames.into_iter().zip(keep).peekable();
    while rest.peek().is_some() {
        let mut run = Vec::new();
        for (frame, keep) in rest.by_ref() {
            run.push((frame, keep));
            if frame.label.kind.is_fixed() {
                break;
            }
        }
        let first = markers.len();
        for (frame, _) in run.iter().filter(|(_, keep)| !keep) {
            if let Some(channel) = frame.label.channel
                && !markers[first..].iter().any(|marker| marker.channel == *channel)
            {
                markers.push(GapMarker { channel: Arc::clone(channel), count: 0, place: None });
            }
        }
        for (frame, keep) in run {
            let FrameLabel { kind, key, channel } = frame.label;
            let replaced = kind == FrameKind::GapMarker && frame.whole;
            let marker =
                markers[first..].iter_mut().find(|marker| Some(&marker.channel) == channel);
            match marker {
                Some(marker) if !keep || replaced => {
                    marker.count = marker.count.saturating_add(if keep { key } else { 1 });
                    dropped += u64::from(!keep);
                    marker.place.get_or_insert_with(|| {
                        kept.push(Range::NONE);
                        kept.len() - 1
                    });
                }
                _ => kept.push(frame.range),
            }
        }
    }
    TrimmedFrames { kept, markers, dropped }
}
