//! Checks, times and counts answers.

use std::collections::HashMap;

use dunlin_pipeline::{Head, InFlight, Sink};

use super::plan::{Checks, Ledger};
use super::schedule::Schedule;
use super::tally::Tally;

/// Most bytes of a body that are searched.
pub(super) const SEARCHED_BYTES_MAX: usize = 16 << 20;

/// State of the answer that a connection is reading, kept between reads.
#[derive(Debug, Default)]
pub(super) struct Reading {
    status: u16,
    status_right: bool,
    /// When its head arrived.
    head_ns: u64,
    wrong: Option<&'static Mismatch>,
    body: Vec<u8>,
    served: Vec<u8>,
}

/// A valid HTTP answer that is not the expected one, with advice.
#[derive(Debug)]
pub(super) struct Mismatch {
    pub(super) kind: &'static str,
    pub(super) advice: &'static str,
}

pub(super) static OTHER_ID: Mismatch = Mismatch {
    kind: "the id of another request",
    advice: "Look for a server or proxy that mixes answers up.",
};
pub(super) static NO_ID: Mismatch = Mismatch {
    kind: "no id in the answer",
    advice: "The server must bring the header of the request back; --id-header names another.",
};
pub(super) static OTHER_BODY: Mismatch = Mismatch {
    kind: "the body does not hold the text of --expect-body",
    advice: "Check the server's response, or fix the text.",
};

/// Takes the answers of one read.
///
/// All of them have the same arrival time, so answers to requests that were sent together have the same latency and are
/// recorded in the histogram as one batch.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) checks: &'a Checks,
    /// The server's name, for error messages.
    pub(super) host: &'a str,
    pub(super) schedule: &'a Schedule,
    pub(super) tally: &'a mut Tally,
    pub(super) ledger: Option<&'a mut Ledger>,
    /// How often each in-flight request was sent, for those sent more than once.
    pub(super) attempts: &'a mut HashMap<u64, u16>,
    pub(super) reading: &'a mut Reading,
    pub(super) look_inside: bool,
    /// Requests with smaller tags belong to the warm-up and do not count.
    pub(super) counted_from: u64,
    pub(super) now_ns: u64,
    pub(super) read: Read,
}

/// Counts of one read.
#[derive(Debug, Default)]
pub(super) struct Read {
    batch_sent_ns: u64,
    batch: u64,
    /// Complete answers.
    ended: u64,
    /// Those of them that answer requests of the warm-up.
    uncounted: u64,
    /// When the request of the last complete answer was sent.
    last_sent_ns: u64,
}

impl Reader<'_> {
    /// Ends the read. `oldest_since_ns` is when the first answered request became the oldest of its connection.
    ///
    /// Returns the number of complete answers, and when the request of the last one was sent.
    #[inline]
    pub(super) fn finish(mut self, oldest_since_ns: u64) -> (u64, u64) {
        self.record_batch();
        let counted = self.read.ended - self.read.uncounted;
        if counted > 0 {
            self.tally.ends.answered += counted;
            self.tally.last_answer_ns = self.now_ns;
            self.tally.service.saturating_record(self.now_ns.saturating_sub(oldest_since_ns));
            if counted > 1 {
                self.tally.service.saturating_record_n(0, counted - 1);
            }
        }
        (self.read.ended, self.read.last_sent_ns)
    }

    #[inline]
    fn record_batch(&mut self) {
        if self.read.batch > 0 {
            let latency_ns = self.now_ns.saturating_sub(self.read.batch_sent_ns);
            self.tally.latency.saturating_record_n(latency_ns, self.read.batch);
            self.tally.first_byte.saturating_record_n(latency_ns, self.read.batch);
            self.read.batch = 0;
        }
    }

    #[cold]
    fn look_at_head(&mut self, request: &InFlight, head: &Head<'_>) {
        self.reading.body.clear();
        self.reading.served.clear();
        self.reading.wrong = None;
        if let Some(name) = &self.checks.id {
            let number = self.schedule.number(request.tag);
            let claimed: Option<u64> =
                head.header(name).and_then(|value| str::from_utf8(value).ok()?.parse().ok());
            self.reading.wrong = match claimed {
                Some(claimed) if number == claimed => None,
                Some(_) => Some(&OTHER_ID),
                None => Some(&NO_ID),
            };
        }
        if let Some(value) = self.checks.served.as_ref().and_then(|name| head.header(name)) {
            self.reading.served.extend(value.iter().filter(|byte| byte.is_ascii_graphic()));
        }
    }

    #[cold]
    fn count_wrong(&mut self, request: &InFlight) {
        self.tally.ends.wrong += 1;
        let number = self.schedule.number(request.tag);
        let status = self.reading.status;
        let (kind, advice) = match self.reading.wrong {
            Some(wrong) => (wrong.kind.to_owned(), wrong.advice.to_owned()),
            None => (
                format!("status {status}"),
                format!("Look at the server's log; --expect-status {status} takes it for right."),
            ),
        };
        self.tally.error(&kind, 1);
        let host = self.host;
        let status = if self.reading.wrong.is_some() {
            format!(" (status {status})")
        } else {
            String::new()
        };
        self.tally
            .sample(&kind, || format!("request {number} to {host}: {kind}{status}. {advice}"));
    }

    /// Discards an answer to a request of the warm-up.
    #[cold]
    fn end_of_warm_up(&mut self, request: &InFlight) {
        self.read.uncounted += 1;
        self.attempts.remove(&request.tag);
        self.reading.wrong = None;
    }

    /// Checks and records an answer that cannot be part of a batch.
    #[cold]
    fn end_apart(&mut self, request: &InFlight) {
        if let Some(finder) = &self.checks.body
            && self.reading.wrong.is_none()
            && finder.find(&self.reading.body).is_none()
        {
            self.reading.wrong = Some(&OTHER_BODY);
        }
        let attempts =
            if request.kind.is_replayed() { self.attempts.remove(&request.tag) } else { None };
        if let Some(ledger) = &mut self.ledger {
            let number = self.schedule.number(request.tag);
            let (status, served) = (self.reading.status, &self.reading.served[..]);
            ledger.note(number, attempts.unwrap_or(1), "answered", status, served);
        }
        self.tally.latency.saturating_record(self.now_ns.saturating_sub(request.sent_ns));
        let first_byte_ns = self.reading.head_ns.saturating_sub(request.sent_ns);
        self.tally.first_byte.saturating_record(first_byte_ns);
    }
}

impl Sink for Reader<'_> {
    #[inline]
    fn on_head(&mut self, request: &InFlight, head: &Head<'_>) {
        // A repeated status needs no second check; the first head of a connection never counts as repeated.
        if self.reading.status != head.status {
            self.reading.status = head.status;
            self.reading.status_right = self.checks.is_status_right(head.status);
        }
        self.reading.head_ns = self.now_ns;
        if self.look_inside {
            self.look_at_head(request, head);
        }
    }

    #[inline]
    fn on_body(&mut self, _: &InFlight, bytes: &[u8]) {
        if self.checks.body.is_some() {
            let room = SEARCHED_BYTES_MAX.saturating_sub(self.reading.body.len());
            self.reading.body.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    #[inline]
    fn on_end(&mut self, request: &InFlight) {
        self.read.ended += 1;
        self.read.last_sent_ns = request.sent_ns;
        if request.tag < self.counted_from {
            return self.end_of_warm_up(request);
        }
        self.tally.statuses[usize::from(self.reading.status) % 600] += 1;
        if self.look_inside || self.reading.head_ns != self.now_ns || request.kind.is_replayed() {
            self.end_apart(request);
        } else if request.sent_ns == self.read.batch_sent_ns {
            self.read.batch += 1;
        } else {
            self.record_batch();
            self.read.batch_sent_ns = request.sent_ns;
            self.read.batch = 1;
        }
        if !self.reading.status_right || self.reading.wrong.is_some() {
            self.count_wrong(request);
            self.reading.wrong = None;
        }
    }
}
