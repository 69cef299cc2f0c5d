//! Broadcasts that leave by and by, so that other traffic need not wait for them.
//!
//! A publication enters every subscriber's outbox at once, whatever its size: that keeps the order
//! of a channel and of a session, and costs a few hundredths of a microsecond each. What takes its
//! time is the system call for each client. So when a channel has more subscribers here than a
//! turn's quantum, or its namespace has rates, its sessions are not marked to be flushed in this
//! turn but wait in the broadcast's queue, from which each turn takes a quantum. What is published
//! meanwhile joins what waits and leaves with it in one write. A session that gets something else
//! meanwhile is flushed at once, with all that waits for it.

use std::sync::Arc;

use super::Hub;
use crate::broadcast::{Broadcast, BroadcastStatus};
use crate::command::Flush;
use crate::config::Now;
use crate::encode::{EncodingId, Outgoing};
use crate::frame_log::{FrameKind, Label, Range, SESSION_LANE};
use crate::pacing::{Pacing, RateLimiter};
use crate::session::{BLOCKED, DIRTY, HELD, OPEN, POLL};

impl Hub {
    /// Begins a turn's flush: gives broadcasts their quantum and their rates' tokens.
    pub fn begin_flush(&mut self, now: Now) {
        self.now = now;
        let broadcasts = &mut self.broadcasts;
        broadcasts.budget = if broadcasts.quantum == 0 { u32::MAX } else { broadcasts.quantum };
        if broadcasts.running.is_empty() {
            return;
        }
        broadcasts.worker.refill(now.ms);
        for broadcast in &mut broadcasts.running {
            broadcast.turn_budget = u32::MAX;
            if let Some(limiter) = broadcasts.namespaces.get_mut(&broadcast.namespace) {
                limiter.refill(now.ms);
                let own = limiter.pacing().sessions_per_turn;
                broadcast.turn_budget = if own == 0 { u32::MAX } else { own };
            }
        }
    }

    /// Gives broadcasts nothing in this turn after all, unless they fill up memory.
    pub fn hold_broadcasts(&mut self) {
        self.broadcasts.budget = 0;
    }

    /// When broadcasts want the next turn, in [`Now::ms`]: now, if only the quantum was used up, or
    /// when their rates let them go on. `None`: nothing waits, or only what is paused.
    pub fn flush_due_ms(&self) -> Option<u64> {
        let waiting = self.broadcasts.running.iter().filter(|broadcast| !broadcast.status.paused);
        let times = waiting.map(|broadcast| self.broadcasts.ready_ms(broadcast));
        times.min().map(|at| at.max(self.now.ms))
    }

    /// Sessions of broadcasts flushed in a turn, more or fewer from now on; 0: all at once.
    pub fn set_broadcast_quantum(&mut self, sessions: u32) {
        self.broadcasts.quantum = sessions;
    }

    /// Rates of a namespace's broadcasts on this worker from now on, also for those under way.
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

    /// Rates of all broadcasts of this worker together from now on.
    pub fn set_worker_pacing(&mut self, now: Now, pacing: Pacing) {
        if self.broadcasts.worker.pacing() != pacing {
            self.broadcasts.worker.change(pacing, now.ms);
        }
    }

    /// The broadcasts under way on this worker.
    pub fn broadcasts(&self) -> impl Iterator<Item = BroadcastStatus> + '_ {
        self.broadcasts.running.iter().map(|broadcast| {
            let mut status = broadcast.status.clone();
            if !status.paused {
                status.waiting = broadcast.queue.len() as u64;
            }
            status
        })
    }

    /// Holds a channel's broadcast, and what is published into it, until it is resumed. Clients that
    /// get something else meanwhile get what waits for them with it. False: none is under way.
    pub fn pause_broadcast(&mut self, channel: &str) -> bool {
        let Some(at) = self.broadcasts.position(channel) else { return false };
        let broadcast = &mut self.broadcasts.running[at];
        if !std::mem::replace(&mut broadcast.status.paused, true) {
            broadcast.status.waiting = broadcast.queue.len() as u64;
            // Without the flag, so that other broadcasts need not wait for this one. The queue is made
            // anew from the subscribers who have something waiting.
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

    /// Puts a session that waits in the queue of `channel`'s broadcast no longer into that of another one
    /// which it waits for as well: a session is in one queue of a kind only.
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

    /// Lets a paused broadcast go on. False: none is under way.
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

    /// Ends a channel's broadcast: whoever has not got it is told by [`Outgoing::Missed`] how many
    /// publications that were. Returns how many publications were taken back from clients together;
    /// `None`: no broadcast is under way.
    pub fn cancel_broadcast(&mut self, channel: &str) -> Option<u64> {
        // Its queue is empty while it is paused.
        self.resume_broadcast(channel).then_some(())?;
        let at = self.broadcasts.position(channel)?;
        let Broadcast { status, queue, flag, .. } = self.broadcasts.running.swap_remove(at);
        let mut taken = 0;
        for slot in queue {
            let session = &mut self.sessions[slot];
            if session.is(flag) && session.is(OPEN) {
                session.flags &= !flag;
                taken += self.withdraw(slot, &status.channel);
                if !self.sessions[slot].outbox.is_empty() {
                    self.mark_dirty(slot);
                }
            }
        }
        // Who waited for another broadcast before is in that one's queue, and stays there.
        if let Some(place) = self.channels.find(&self.names, channel) {
            for at in 0..self.channels[place].subscribers.len() {
                let slot = self.channels[place].subscribers[at].slot();
                if self.sessions[slot].is(flag) {
                    taken += self.withdraw(slot, &status.channel);
                }
            }
        }
        self.stats.dropped += taken;
        Some(taken)
    }

    /// The next session of a broadcast whose turn it is.
    pub(super) fn poll_broadcast(&mut self) -> Option<Flush> {
        let mut tried = 0;
        while tried < self.broadcasts.running.len() {
            // What fills up memory is not kept to its quantum, only to its rates.
            if self.broadcasts.budget == 0 && !self.wants_flush() {
                return None;
            }
            let at = self.broadcasts.cursor % self.broadcasts.running.len();
            let broadcast = &self.broadcasts.running[at];
            let held =
                broadcast.status.paused || (broadcast.turn_budget == 0 && !self.wants_flush());
            if held || self.broadcasts.ready_ms(broadcast) > self.now.ms {
                self.broadcasts.cursor = at + 1;
                tried += 1;
                continue;
            }
            let broadcast = &mut self.broadcasts.running[at];
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
            self.broadcasts.budget = self.broadcasts.budget.saturating_sub(1);
            let left = &mut self.broadcasts.running[at].turn_budget;
            *left = left.saturating_sub(1);
            // By turns, so that a large one does not hold up a small one.
            self.broadcasts.cursor = at + 1;
            return Some(Flush { session: self.id_of(slot), tag, poll });
        }
        None
    }

    /// Takes a channel's whole publications out of what waits for a session, and puts a mark in
    /// their place. Returns how many they were.
    fn withdraw(&mut self, slot: u32, channel: &Arc<str>) -> u64 {
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
            let label = Label { kind: FrameKind::GapMarker, key: count, channel: Some(channel) };
            let encoder = &mut self.encoder;
            let frame = self
                .log
                .append(SESSION_LANE, 256, label, |out| encoder.encode(encoding, &outgoing, out));
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
