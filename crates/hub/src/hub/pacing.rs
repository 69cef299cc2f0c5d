//! Broadcasts flushed over several turns, so that other traffic need not wait for them.
//!
//! A publication enters every subscriber's outbox at once. This keeps the order of a channel and of a
//! session, and costs a few hundredths of a microsecond for each. The expensive part is the system call for
//! each client. If a channel has more subscribers here than a turn's quantum, or its namespace has rates, its
//! sessions wait in the broadcast's queue. Each turn flushes a quantum of them, fewer if there are many bytes
//! for each. Publications that arrive meanwhile are sent together in one write. A session that receives
//! anything else meanwhile is flushed at once, with all of its output.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::Hub;
use crate::broadcast::{Broadcast, BroadcastStatus, shares};
use crate::command::Flush;
use crate::config::Now;
use crate::encode::{EncodingId, Outgoing};
use crate::frame_log::{FrameKind, FrameLabel, Range, SESSION_TAIL};
use crate::pacing::{Pacing, RateLimiter};
use crate::session::{BLOCKED, DIRTY, HELD, OPEN, POLL};

impl Hub {
    /// Begins a turn's flush: refills the quantum and the rates of broadcasts.
    pub fn begin_flush(&mut self, now: Now) {
        self.now = now;
        let broadcasts = &mut self.broadcasts;
        broadcasts.budget = broadcasts.quantum.map_or(u32::MAX, NonZeroU32::get);
        if broadcasts.running.is_empty() {
            return;
        }
        broadcasts.worker.refill(now.ms);
        for broadcast in &mut broadcasts.running {
            broadcast.turn_budget = u32::MAX;
            if let Some(limiter) = broadcasts.namespaces.get_mut(&broadcast.namespace) {
                limiter.refill(now.ms);
                broadcast.turn_budget = limiter.pacing().turn_budget();
            }
        }
    }

    /// Flushes no broadcasts in this turn, unless memory is short.
    pub fn hold_broadcasts(&mut self) {
        self.broadcasts.budget = 0;
    }

    /// When broadcasts need the next turn, in [`Now::ms`]: now if only the quantum was exhausted, otherwise
    /// when their rates permit it. `None`: nothing waits, or all waiting broadcasts are paused.
    pub fn flush_due_ms(&self) -> Option<u64> {
        let waiting = self.broadcasts.running.iter().filter(|broadcast| !broadcast.status.paused);
        let times = waiting.map(|broadcast| self.broadcasts.ready_ms(broadcast));
        times.min().map(|at| at.max(self.now.ms))
    }

    /// Channels whose publications fill outboxes faster than broadcasts are flushed: an outbox is half full,
    /// and only waits for turns. Delay further publications to these channels.
    pub fn channels_behind(&self) -> impl Iterator<Item = &Arc<str>> {
        let behind = self.broadcasts.running.iter().filter(|broadcast| {
            broadcast.is_behind
                && !broadcast.status.paused
                && self.broadcasts.ready_ms(broadcast) <= self.now.ms
        });
        behind.map(|broadcast| &broadcast.status.channel)
    }

    /// Changes the number of sessions of broadcasts flushed in a turn. `None`: no limit.
    pub fn set_broadcast_quantum(&mut self, sessions: Option<NonZeroU32>) {
        self.broadcasts.quantum = sessions;
    }

    /// Changes the rates of a namespace's broadcasts on this worker, including current ones.
    pub fn set_pacing(&mut self, now: Now, namespace: &Arc<str>, pacing: Pacing) {
        let namespaces = &mut self.broadcasts.namespaces;
        if !pacing.is_limited() {
            namespaces.remove(namespace);
        } else if let Some(limiter) = namespaces.get_mut(namespace) {
            limiter.change(pacing, now.ms);
        } else {
            namespaces.insert(Arc::clone(namespace), RateLimiter::new(pacing, now.ms));
        }
    }

    /// Changes the rates of all broadcasts of this worker together.
    pub fn set_worker_pacing(&mut self, now: Now, pacing: Pacing) {
        if self.broadcasts.worker.pacing() != pacing {
            self.broadcasts.worker.change(pacing, now.ms);
        }
    }

    /// The current broadcasts of this worker.
    pub fn broadcasts(&self) -> impl Iterator<Item = BroadcastStatus> + '_ {
        self.broadcasts.running.iter().map(|broadcast| {
            let mut status = broadcast.status.clone();
            if !status.paused {
                status.waiting = broadcast.queue.len() as u64;
            }
            status
        })
    }

    /// Pauses a channel's broadcast, including later publications, until it is resumed. A client that
    /// receives anything else meanwhile also receives the publications. Returns `false` if there is no
    /// broadcast.
    pub fn pause_broadcast(&mut self, channel: &str) -> bool {
        let Some(at) = self.broadcasts.position(channel) else { return false };
        let broadcast = &mut self.broadcasts.running[at];
        if !std::mem::replace(&mut broadcast.status.paused, true) {
            broadcast.status.waiting = broadcast.queue.len() as u64;
            // Without the flag, other broadcasts do not skip these sessions. Resuming rebuilds the queue from
            // the subscribers with output.
            let (flag, queue) = (broadcast.flag, std::mem::take(&mut broadcast.queue));
            for &slot in &queue {
                self.sessions[slot].flags &= !flag;
            }
            for slot in queue {
                self.join_other_broadcast(slot, channel, flag);
            }
        }
        true
    }

    /// Moves a session of this paused broadcast to another broadcast that it also waits for: a
    /// session is in one queue of each kind.
    fn join_other_broadcast(&mut self, slot: u32, channel: &str, flag: u16) {
        let session = &self.sessions[slot];
        if session.outbox.is_empty()
            || session.flags & (OPEN | DIRTY | BLOCKED | HELD | flag) != OPEN
        {
            return;
        }
        let running = &self.broadcasts.running;
        let frames = session.outbox.ranges().flat_map(|range| self.log.frames(range));
        let waits_for = frames.filter_map(|frame| frame.label.channel);
        let others = waits_for.filter(|name| ***name != *channel);
        let other = { others }.find_map(|name| {
            running.iter().position(|broadcast| {
                let Broadcast { status, flag: of, .. } = broadcast;
                *of == flag && !status.paused && status.channel == *name
            })
        });
        if let Some(other) = other {
            self.sessions[slot].flags |= flag;
            self.broadcasts.running[other].queue.push_back(slot);
        }
    }

    /// Resumes a paused broadcast. Returns `false` if there is none.
    pub fn resume_broadcast(&mut self, channel: &str) -> bool {
        let Some(at) = self.broadcasts.position(channel) else { return false };
        let broadcast = &mut self.broadcasts.running[at];
        if std::mem::replace(&mut broadcast.status.paused, false)
            && let Some(place) = self.channels.find(&self.names, channel)
        {
            for subscriber in &self.channels[place].subscribers {
                let session = &mut self.sessions[subscriber.slot()];
                let served = DIRTY | BLOCKED | HELD | broadcast.flag;
                if !session.outbox.is_empty() && session.flags & served == 0 {
                    session.flags |= broadcast.flag;
                    broadcast.queue.push_back(subscriber.slot());
                }
            }
        }
        true
    }

    /// Cancels a channel's broadcast. Clients that have not received it get an [`Outgoing::Missed`] with the
    /// number of publications. Returns the sum over all clients; `None` if there is no broadcast.
    pub fn cancel_broadcast(&mut self, channel: &str) -> Option<u64> {
        // A paused broadcast has an empty queue.
        self.resume_broadcast(channel).then_some(())?;
        let at = self.broadcasts.position(channel)?;
        let Broadcast { status, queue, flag, .. } = self.broadcasts.running.swap_remove(at);
        let mut taken = 0;
        for slot in queue {
            let session = &mut self.sessions[slot];
            if session.is(flag) && session.is(OPEN) {
                session.flags &= !flag;
                taken += self.take_back(slot, &status.channel);
                if !self.sessions[slot].outbox.is_empty() {
                    self.mark_dirty(slot);
                }
            }
        }
        // Sessions that waited for another broadcast before are in its queue and stay there.
        if let Some(place) = self.channels.find(&self.names, channel) {
            for at in 0..self.channels[place].subscribers.len() {
                let slot = self.channels[place].subscribers[at].slot();
                if self.sessions[slot].is(flag) {
                    taken += self.take_back(slot, &status.channel);
                }
            }
        }
        self.stats.dropped += taken;
        Some(taken)
    }

    /// The next session of a broadcast to flush.
    pub(super) fn poll_broadcast(&mut self) -> Option<Flush> {
        let mut tried = 0;
        while tried < self.broadcasts.running.len() {
            // A lack of memory overrides the quantum, but not the rates.
            if self.broadcasts.budget == 0 && !self.is_short_of_memory() {
                return None;
            }
            let at = self.broadcasts.cursor % self.broadcasts.running.len();
            let broadcast = &self.broadcasts.running[at];
            let held = broadcast.status.paused
                || (broadcast.turn_budget == 0 && !self.is_short_of_memory());
            if held || self.broadcasts.ready_ms(broadcast) > self.now.ms {
                self.broadcasts.cursor = at + 1;
                tried += 1;
                continue;
            }
            let broadcast = &mut self.broadcasts.running[at];
            if broadcast.debt > 0 {
                broadcast.debt -= 1;
                self.broadcasts.cursor = at + 1;
                continue;
            }
            let Some(slot) = broadcast.queue.pop_front() else {
                self.broadcasts.running.swap_remove(at);
                continue;
            };
            let session = &mut self.sessions[slot];
            let waited = session.is(broadcast.flag);
            session.flags &= !broadcast.flag;
            let ready = session.flags & (OPEN | BLOCKED | HELD) == OPEN;
            if !waited || !ready || session.outbox.is_empty() {
                continue;
            }
            let (poll, tag) = (session.is(POLL), session.tag);
            let bytes = u64::from(session.outbox.bytes());
            let messages = if self.broadcasts.counts_messages(at) {
                let ranges = self.sessions[slot].outbox.ranges();
                ranges.map(|range| self.log.frames(range).count() as u64).sum()
            } else {
                1
            };
            self.broadcasts.charge(at, messages, bytes);
            self.ages.add(self.broadcasts.running[at].status.started_unix_ms, 1);
            let shares = shares(bytes);
            self.broadcasts.budget = self.broadcasts.budget.saturating_sub(shares);
            let broadcast = &mut self.broadcasts.running[at];
            broadcast.turn_budget = broadcast.turn_budget.saturating_sub(1);
            broadcast.debt = shares - 1;
            // Round robin, so that a large broadcast does not delay a small one.
            self.broadcasts.cursor = at + 1;
            return Some(Flush { session: self.id_of(slot), tag, poll });
        }
        None
    }

    /// Removes a channel's unsent publications from a session's outbox and inserts a gap marker. Returns
    /// their number.
    fn take_back(&mut self, slot: u32, channel: &Arc<str>) -> u64 {
        let ranges = self.sessions[slot].outbox.take();
        let before: u64 = ranges.iter().map(|range| u64::from(range.len())).sum();
        let mut kept: Vec<Range> = Vec::new();
        let (mut count, mut place) = (0u32, None);
        for frame in ranges.iter().flat_map(|&range| self.log.frames(range)) {
            let theirs = frame.label.channel.is_some_and(|name| **name == **channel);
            if theirs && frame.whole && frame.label.kind != FrameKind::GapMarker {
                count += 1;
                place.get_or_insert(kept.len());
            } else {
                kept.push(frame.range);
            }
        }
        for range in &kept {
            self.log.retain(range.chunk, 1);
        }
        if let Some(place) = place {
            let encoding = EncodingId(self.sessions[slot].encoding);
            let outgoing = Outgoing::Missed { channel, count: count.into() };
            let label =
                FrameLabel { kind: FrameKind::GapMarker, key: count, channel: Some(channel) };
            let encoder = &mut self.encoder;
            let frame = self
                .log
                .append(SESSION_TAIL, 256, label, |out| encoder.encode(encoding, &outgoing, out));
            if let Some(frame) = frame {
                self.log.retain(frame.chunk, 1);
                kept.insert(place, frame);
            }
        }
        self.sessions[slot].outbox.refill(kept, &mut self.log);
        for range in ranges {
            self.log.release(range.chunk, 1);
        }
        self.pending_bytes += u64::from(self.sessions[slot].outbox.bytes());
        self.pending_bytes -= before;
        u64::from(count)
    }
}
