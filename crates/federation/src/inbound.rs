//! The stream from a peer: what has arrived in parts, what its recipients' homes have taken, and what may still be sent.

use std::collections::VecDeque;

use crate::frame::{FAILURES_MAX, Fragment};
use crate::message::MESSAGE_BYTES_MAX;
use crate::outbound::INTERLEAVED_MAX;
use crate::reason::Reason;

/// The bytes of messages that a peer may send ahead of what was taken. Messages that have arrived in part are at most half of it, so
/// that there is always room for the rest of one.
pub(crate) const WINDOW_BYTES: u64 = 8 << 20;
const _: () = assert!(WINDOW_BYTES >= 2 * (INTERLEAVED_MAX * MESSAGE_BYTES_MAX) as u64);
/// The most messages that have arrived and are not taken. More means that credit is not kept, as each message has a byte at least.
const PENDING_MAX: usize = 1 << 20;

/// A message that has arrived in part.
#[derive(Debug)]
struct Partial {
    seq: u64,
    total: usize,
    body: Vec<u8>,
}

/// How far a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not complete on any link.
    Missing,
    /// Given to its recipient's home; so many bytes are to be credited once it is taken.
    Given(u32),
    Taken,
}

/// What a fragment has led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Nothing,
    Message(u64, Vec<u8>),
}

/// The stream from a peer.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    /// Its id; 0: none was seen.
    pub(crate) stream: u64,
    /// All up to this number is taken.
    pub(crate) taken: u64,
    /// The states of the numbers behind it.
    window: VecDeque<State>,
    /// The newest number that was begun on this link.
    begun: u64,
    partials: Vec<Partial>,
    failures: VecDeque<(u64, u8)>,
    /// The bytes received on this link, those that may be, and those that were taken since the last grant.
    used: u64,
    granted: u64,
    credited: u64,
    /// The bytes of messages whose homes have not answered, on whatever link they came. With the credit that is left they are
    /// [`WINDOW_BYTES`].
    given: u64,
}

impl Inbound {
    /// What was known before a restart.
    pub(crate) fn restore(&mut self, stream: u64, taken: u64) {
        (self.stream, self.taken) = (stream, taken);
    }

    /// Returns what has failed last, for the beginning of a link.
    pub(crate) fn failures(&self) -> Vec<(u64, u8)> {
        self.failures.iter().copied().collect()
    }

    /// A link begins. `stream` is the peer's, and it has nothing before `base` any more.
    pub(crate) fn begin_link(&mut self, stream: u64, base: u64) {
        if stream != self.stream {
            (self.stream, self.taken, self.given) = (stream, 0, 0);
            self.window.clear();
            self.failures.clear();
        }
        while self.taken + 1 < base {
            match self.window.pop_front() {
                Some(state) => {
                    self.taken += 1;
                    if let State::Given(bytes) = state {
                        self.given -= u64::from(bytes);
                    }
                }
                None => self.taken = base - 1,
            }
        }
        self.advance();
        self.begun = self.taken;
    }

    /// This side of a link begins. Returns the credit.
    pub(crate) fn open_window(&mut self) -> u64 {
        self.partials.clear();
        (self.used, self.credited) = (0, 0);
        self.granted = WINDOW_BYTES - self.given;
        self.granted
    }

    pub(crate) fn handle_fragment(&mut self, of: &Fragment<'_>) -> Result<Received, &'static str> {
        let Fragment { seq, total, bytes } = *of;
        self.used += bytes.len() as u64;
        if self.used > self.granted {
            return Err("sends more than its credit");
        }
        let total = total as usize;
        if bytes.is_empty() || total > MESSAGE_BYTES_MAX || bytes.len() > total {
            return Err("sends a fragment of a wrong size");
        }
        if let Some(at) = self.partials.iter().position(|of| of.seq == seq) {
            let partial = &mut self.partials[at];
            if partial.total != total || partial.body.len() + bytes.len() > total {
                return Err("sends a fragment of a wrong size");
            }
            partial.body.extend_from_slice(bytes);
            if partial.body.len() < total {
                return Ok(Received::Nothing);
            }
            let Partial { body, .. } = self.partials.swap_remove(at);
            return Ok(self.complete(seq, body));
        }
        self.begin(seq)?;
        if bytes.len() == total {
            return Ok(self.complete(seq, bytes.to_vec()));
        }
        if self.partials.len() >= INTERLEAVED_MAX {
            return Err("begins too many messages at once");
        }
        self.partials.push(Partial { seq, total, body: bytes.to_vec() });
        Ok(Received::Nothing)
    }

    /// There is no message of this number.
    pub(crate) fn handle_skip(&mut self, seq: u64) -> Result<(), &'static str> {
        self.begin(seq)?;
        if seq <= self.taken {
            return Ok(());
        }
        let state = self.state(seq);
        // One that was given on an earlier link is taken when its home says so.
        if *state == State::Missing {
            *state = State::Taken;
        }
        self.advance();
        Ok(())
    }

    /// A message begins, the next one of this link.
    fn begin(&mut self, seq: u64) -> Result<(), &'static str> {
        if seq != self.begun + 1 {
            return Err("does not number its messages one by one");
        }
        if seq.saturating_sub(self.taken) > PENDING_MAX as u64 {
            return Err("sends too many messages ahead");
        }
        self.begun = seq;
        Ok(())
    }

    fn state(&mut self, seq: u64) -> &mut State {
        let at = (seq - self.taken - 1) as usize;
        if self.window.len() <= at {
            self.window.resize(at + 1, State::Missing);
        }
        &mut self.window[at]
    }

    fn complete(&mut self, seq: u64, body: Vec<u8>) -> Received {
        let bytes = body.len() as u32;
        if seq <= self.taken {
            self.credited += u64::from(bytes);
            return Received::Nothing;
        }
        match self.state(seq) {
            state @ State::Missing => {
                *state = State::Given(bytes);
                self.given += u64::from(bytes);
                Received::Message(seq, body)
            }
            // It was given on an earlier link, and its home has not answered, or has.
            State::Given(_) | State::Taken => {
                self.credited += u64::from(bytes);
                Received::Nothing
            }
        }
    }

    /// The home of a message's recipient has answered. Returns whether it is news.
    pub(crate) fn handle_taken(
        &mut self,
        stream: u64,
        seq: u64,
        result: Result<(), Reason>,
    ) -> bool {
        if stream != self.stream || seq <= self.taken {
            return false;
        }
        let state = self.state(seq);
        let State::Given(bytes) = *state else { return false };
        *state = State::Taken;
        self.given -= u64::from(bytes);
        self.credited += u64::from(bytes);
        if let Err(reason) = result {
            if self.failures.len() == FAILURES_MAX {
                self.failures.pop_front();
            }
            self.failures.push_back((seq, reason.code()));
        }
        self.advance();
        true
    }

    fn advance(&mut self) {
        while self.window.front() == Some(&State::Taken) {
            self.window.pop_front();
            self.taken += 1;
        }
    }

    /// Returns the bytes that may be received on this link.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// Returns the credit to announce, if there is enough of it. `bytes_max`: what the peer's rate leaves.
    pub(crate) fn poll_credit(&mut self, bytes_max: u64) -> Option<u64> {
        let bytes = self.credited.min(bytes_max);
        let is_ample = self.granted - self.used >= WINDOW_BYTES / 2;
        if bytes == 0 || bytes < WINDOW_BYTES / 8 && is_ample {
            return None;
        }
        self.credited -= bytes;
        self.granted += bytes;
        Some(self.granted)
    }

    /// Returns the messages whose homes have not answered, and the bytes that wait for the rest of their message.
    pub(crate) fn pending(&self) -> (usize, usize) {
        (self.window.len(), self.partials.iter().map(|of| of.body.len()).sum())
    }
}
