//! The stream to a peer: what waits, what is being sent, and what awaits its acknowledgement.

use std::collections::VecDeque;

use crate::frame::{FRAGMENT_BYTES_MAX, FRAGMENT_HEAD_BYTES, Fragment, Frame};
use crate::reason::Reason;

/// Messages of more than one fragment that are sent at a time.
pub(crate) const INTERLEAVED_MAX: usize = 4;
/// What a message counts beside its bytes.
const MESSAGE_COST: usize = 64;

/// The queue has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A message of the stream.
#[derive(Debug)]
struct Queued {
    /// `None`: it has failed here, and its number is to be skipped.
    body: Option<Box<[u8]>>,
    expires_ms: u64,
    /// A part of it was sent on some link, so that the peer may have it.
    was_sent: bool,
    /// The peer has said that it has failed.
    failed: Option<Reason>,
}

/// A message that is sent in several fragments.
#[derive(Debug)]
struct Partly {
    seq: u64,
    sent: usize,
}

/// The stream to a peer. Numbers of messages have no gaps.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) stream: u64,
    /// The number of the first in the queue; all before it are settled.
    base: u64,
    queue: VecDeque<Queued>,
    bytes: usize,
    /// Up to this number messages are stored, and may be sent.
    stored: u64,
    /// Up to this number all was sent in full on some link.
    pub(crate) sent: u64,
    /// The next number to begin with on this link.
    next: u64,
    partly: VecDeque<Partly>,
    /// The bytes of messages sent on this link, and those that may be.
    used: u64,
    granted: u64,
    settled: VecDeque<(u64, Result<(), Reason>)>,
}

impl Outbound {
    pub(crate) fn new(stream: u64) -> Outbound {
        Outbound {
            stream,
            base: 1,
            queue: VecDeque::new(),
            bytes: 0,
            stored: 0,
            sent: 0,
            next: 1,
            partly: VecDeque::new(),
            used: 0,
            granted: 0,
            settled: VecDeque::new(),
        }
    }

    /// The stream continues with this number, as it does after a restart. What is before it may have been sent.
    pub(crate) fn restore(&mut self, base: u64) {
        debug_assert!(self.queue.is_empty(), "it comes before the first message");
        (self.base, self.next) = (base, base);
        (self.stored, self.sent) = (base - 1, base - 1);
    }

    pub(crate) fn next_seq(&self) -> u64 {
        self.base + self.queue.len() as u64
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the time at which the oldest message expires.
    pub(crate) fn oldest_expires_ms(&self) -> Option<u64> {
        self.queue.iter().find(|of| of.body.is_some()).map(|of| of.expires_ms)
    }

    pub(crate) fn push(
        &mut self,
        seq: u64,
        body: Box<[u8]>,
        (expires_ms, bytes_max, was_sent): (u64, usize, bool),
    ) -> Result<(), Full> {
        let cost = MESSAGE_COST + body.len();
        if self.bytes + cost > bytes_max && !was_sent {
            return Err(Full);
        }
        // Numbers that are not there any more: what was stored of them is damaged, or has expired.
        while self.next_seq() < seq {
            self.bytes += MESSAGE_COST;
            self.queue.push_back(Queued { body: None, expires_ms, was_sent, failed: None });
        }
        debug_assert_eq!(self.next_seq(), seq);
        self.bytes += cost;
        self.queue.push_back(Queued { body: Some(body), expires_ms, was_sent, failed: None });
        if was_sent {
            (self.stored, self.sent) = (seq, seq);
        }
        Ok(())
    }

    /// All up to this number is stored.
    pub(crate) fn handle_stored(&mut self, seq: u64) {
        self.stored = self.stored.max(seq);
    }

    /// A message cannot be stored, and is not sent.
    pub(crate) fn fail(&mut self, seq: u64, reason: Reason) {
        self.drop_body(seq, reason);
        self.handle_stored(seq);
    }

    /// A new link begins: the peer has taken all up to `taken`.
    pub(crate) fn begin_link(&mut self, taken: u64, credit: u64) -> Result<(), &'static str> {
        self.partly.clear();
        (self.used, self.granted) = (0, credit);
        self.handle_ack(taken)?;
        self.next = self.base;
        Ok(())
    }

    pub(crate) fn end_link(&mut self) {
        self.partly.clear();
        (self.used, self.granted) = (0, 0);
    }

    pub(crate) fn handle_credit(&mut self, granted: u64) {
        self.granted = self.granted.max(granted);
    }

    /// All up to `taken` has been taken by its recipients' homes.
    pub(crate) fn handle_ack(&mut self, taken: u64) -> Result<(), &'static str> {
        if taken > self.sent {
            return Err("acknowledges what was never sent");
        }
        while self.base <= taken {
            let Some(queued) = self.queue.pop_front() else { break };
            self.bytes -= cost(&queued);
            if queued.body.is_some() {
                self.settled.push_back((self.base, queued.failed.map_or(Ok(()), Err)));
            }
            self.base += 1;
        }
        self.base = self.base.max(taken + 1);
        self.next = self.next.max(self.base);
        self.partly.retain(|of| of.seq > taken);
        Ok(())
    }

    /// The peer says that a message has failed. The acknowledgement follows.
    pub(crate) fn handle_failed(&mut self, seq: u64, reason: Reason) {
        if seq <= self.sent
            && let Some(at) = seq.checked_sub(self.base)
            && let Some(queued) = self.queue.get_mut(at as usize)
        {
            queued.failed = Some(reason);
        }
    }

    /// Fails what is too old. What is being sent goes on.
    pub(crate) fn expire(&mut self, now_ms: u64, is_linked: bool) {
        for at in 0..self.queue.len() {
            let queued = &self.queue[at];
            let seq = self.base + at as u64;
            if queued.body.is_none() {
                continue;
            }
            if queued.expires_ms > now_ms {
                break;
            }
            // On a link, what was sent is about to be answered.
            if is_linked && seq < self.next {
                continue;
            }
            let reason = if queued.was_sent { Reason::Unconfirmed } else { Reason::Expired };
            self.drop_body(seq, reason);
        }
        // The peer learns from the base that it need not wait for these.
        while !is_linked && self.queue.front().is_some_and(|of| of.body.is_none()) {
            self.queue.pop_front();
            self.bytes -= MESSAGE_COST;
            self.base += 1;
            self.next = self.next.max(self.base);
            self.sent = self.sent.max(self.base - 1);
        }
    }

    /// Fails all that waits.
    pub(crate) fn fail_all(&mut self, reason: Reason) {
        for seq in self.base..self.next_seq() {
            self.drop_body(seq, reason);
        }
    }

    fn drop_body(&mut self, seq: u64, reason: Reason) {
        let at = seq.checked_sub(self.base).and_then(|at| self.queue.get_mut(at as usize));
        if let Some(queued) = at
            && let Some(body) = queued.body.take()
        {
            self.bytes -= body.len();
            self.settled.push_back((seq, Err(reason)));
        }
    }

    pub(crate) fn poll_settled(&mut self) -> Option<(u64, Result<(), Reason>)> {
        self.settled.pop_front()
    }

    /// Whether there is something that may be sent now.
    pub(crate) fn is_ready(&self) -> bool {
        self.used < self.granted && (!self.partly.is_empty() || self.next <= self.stored)
    }

    /// Appends frames while there is credit, up to about `bytes_max` bytes. Messages of several fragments take turns with those behind
    /// them.
    pub(crate) fn poll_transmit(&mut self, out: &mut Vec<u8>, bytes_max: usize) {
        while out.len() < bytes_max {
            let begun = self.partly.len() < INTERLEAVED_MAX && self.begin_next(out);
            let continued = self.continue_next(out);
            if !begun && !continued {
                return;
            }
        }
    }

    /// Sends the first fragment of the next message.
    fn begin_next(&mut self, out: &mut Vec<u8>) -> bool {
        let seq = self.next;
        if seq > self.stored {
            return false;
        }
        let Some(queued) = self.queue.get_mut((seq - self.base) as usize) else { return false };
        let Some(body) = &queued.body else {
            Frame::Skip { seq }.encode(out);
            self.next += 1;
            self.advance_sent();
            return true;
        };
        let first = body.len().min(FRAGMENT_BYTES_MAX);
        if self.used + first as u64 > self.granted {
            return false;
        }
        out.reserve(first + FRAGMENT_HEAD_BYTES);
        let total = body.len() as u32;
        Frame::Fragment(Fragment { seq, total, bytes: &body[..first] }).encode(out);
        self.used += first as u64;
        queued.was_sent = true;
        self.next += 1;
        if first < body.len() {
            self.partly.push_back(Partly { seq, sent: first });
        }
        self.advance_sent();
        true
    }

    /// Sends another fragment of a message that was begun.
    fn continue_next(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(mut partly) = self.partly.pop_front() else { return false };
        let at = (partly.seq - self.base) as usize;
        let Some(body) = self.queue.get(at).and_then(|of| of.body.as_ref()) else { return true };
        let end = body.len().min(partly.sent + FRAGMENT_BYTES_MAX);
        let bytes = &body[partly.sent..end];
        if self.used + bytes.len() as u64 > self.granted {
            self.partly.push_front(partly);
            return false;
        }
        self.used += bytes.len() as u64;
        Frame::Fragment(Fragment { seq: partly.seq, total: body.len() as u32, bytes }).encode(out);
        partly.sent = end;
        if end < body.len() {
            self.partly.push_back(partly);
        } else {
            self.advance_sent();
        }
        true
    }

    fn advance_sent(&mut self) {
        let first_partly = self.partly.iter().map(|of| of.seq).min();
        let sent = first_partly.map_or(self.next, |seq| seq.min(self.next)) - 1;
        self.sent = self.sent.max(sent);
    }
}

fn cost(queued: &Queued) -> usize {
    MESSAGE_COST + queued.body.as_ref().map_or(0, |body| body.len())
}
