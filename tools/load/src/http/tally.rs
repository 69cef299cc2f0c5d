//! Counts, latencies and errors by kind.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::clock::new_histogram;

/// Kinds of errors counted separately; all others are counted together.
const KINDS_MAX: usize = 64;
/// Errors kept in full: of all kinds, and of one kind.
const SAMPLES_MAX: usize = 12;
const SAMPLES_OF_KIND_MAX: usize = 2;

/// How requests ended, and how many were resent. Every request that was begun ends exactly once: answered, failed,
/// uncertain or unanswered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndCounts {
    /// Answered completely, whatever the status.
    pub(crate) answered: u64,
    /// Those answered whose status, body or id was not the expected one.
    pub(crate) wrong: u64,
    /// Ended by an invalid answer, by the timeout, or after too many attempts.
    pub(crate) failed: u64,
    /// The connection ended without notice, and a repetition could execute the request twice.
    pub(crate) uncertain: u64,
    /// Never sent, or in flight when the run ended.
    pub(crate) unanswered: u64,
    /// How often requests were sent again after a close before their answer.
    pub(crate) resent: u64,
}

/// Events of connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EventCounts {
    pub(crate) opened: u64,
    pub(crate) connect_failed: u64,
    /// Closed by the server with `Connection: close`.
    pub(crate) closed_with_notice: u64,
    /// Closed at the number of requests that the server is known to take on a connection.
    pub(crate) closed_at_budget: u64,
    /// Closed without notice while requests were in flight.
    pub(crate) closed_in_flight: u64,
    pub(crate) closed_idle: u64,
    pub(crate) reset: u64,
    pub(crate) timed_out: u64,
    /// Closed here, because of an invalid answer.
    pub(crate) violated: u64,
}

/// Everything one thread counted in a span of time.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) ends: EndCounts,
    pub(crate) events: EventCounts,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    /// By status code.
    pub(crate) statuses: Box<[u64; 600]>,
    pub(crate) errors: BTreeMap<String, u64>,
    /// Some errors in full, each preceded by its kind.
    pub(crate) samples: Vec<(String, String)>,
    /// Nanoseconds from when a request was first sent, or was due, to the end of its answer.
    pub(crate) latency: Histogram<u64>,
    /// The same, to the first byte of the answer.
    pub(crate) first_byte: Histogram<u64>,
    /// The part of the latency in which the request was the oldest of its connection: without the wait behind others.
    pub(crate) service: Histogram<u64>,
    /// How late requests left, in an open model.
    pub(crate) late: Histogram<u64>,
    /// When the last answer ended, nanoseconds of the run's clock.
    pub(crate) last_answer_ns: u64,
    /// The most requests that `--pipeline auto` had in flight on one connection; 0 if the depth is fixed.
    pub(crate) depth_most: u32,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            ends: EndCounts::default(),
            events: EventCounts::default(),
            read_bytes: 0,
            written_bytes: 0,
            statuses: Box::new([0; 600]),
            errors: BTreeMap::new(),
            samples: Vec::new(),
            latency: new_histogram(),
            first_byte: new_histogram(),
            service: new_histogram(),
            late: new_histogram(),
            last_answer_ns: 0,
            depth_most: 0,
        }
    }

    pub(crate) fn error(&mut self, kind: &str, count: u64) {
        if let Some(sum) = self.errors.get_mut(kind) {
            *sum += count;
        } else {
            let kind = if self.errors.len() < KINDS_MAX { kind } else { "other" };
            *self.errors.entry(kind.to_owned()).or_default() += count;
        }
    }

    /// Keeps a sentence about an error, unless enough of this kind are kept or it is a duplicate.
    pub(crate) fn sample(&mut self, kind: &str, sentence: impl FnOnce() -> String) {
        let of_kind = || self.samples.iter().filter(|(there, _)| there == kind);
        if self.samples.len() < SAMPLES_MAX && of_kind().count() < SAMPLES_OF_KIND_MAX {
            let sentence = sentence();
            if of_kind().all(|(_, there)| *there != sentence) {
                self.samples.push((kind.to_owned(), sentence));
            }
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let (a, b) = (&mut self.ends, &other.ends);
        a.answered += b.answered;
        a.wrong += b.wrong;
        a.failed += b.failed;
        a.uncertain += b.uncertain;
        a.unanswered += b.unanswered;
        a.resent += b.resent;
        let (a, b) = (&mut self.events, &other.events);
        a.opened += b.opened;
        a.connect_failed += b.connect_failed;
        a.closed_with_notice += b.closed_with_notice;
        a.closed_at_budget += b.closed_at_budget;
        a.closed_in_flight += b.closed_in_flight;
        a.closed_idle += b.closed_idle;
        a.reset += b.reset;
        a.timed_out += b.timed_out;
        a.violated += b.violated;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        for (sum, part) in self.statuses.iter_mut().zip(other.statuses.iter()) {
            *sum += part;
        }
        for (kind, count) in &other.errors {
            self.error(kind, *count);
        }
        for (kind, sentence) in &other.samples {
            self.sample(kind, || sentence.clone());
        }
        // The bounds are the same constants, so the sums cannot fail.
        self.latency.add(&other.latency).unwrap_or_default();
        self.first_byte.add(&other.first_byte).unwrap_or_default();
        self.service.add(&other.service).unwrap_or_default();
        self.late.add(&other.late).unwrap_or_default();
        self.last_answer_ns = self.last_answer_ns.max(other.last_answer_ns);
        self.depth_most = self.depth_most.max(other.depth_most);
    }

    /// Resets all counts and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.ends = EndCounts::default();
        self.events = EventCounts::default();
        (self.read_bytes, self.written_bytes, self.last_answer_ns) = (0, 0, 0);
        self.depth_most = 0;
        self.statuses.fill(0);
        self.errors.clear();
        self.samples.clear();
        for histogram in
            [&mut self.latency, &mut self.first_byte, &mut self.service, &mut self.late]
        {
            histogram.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_errors_are_bounded_and_none_is_lost() {
        let mut tally = Tally::new();
        for number in 0..1000 {
            tally.error(&format!("kind {number}"), 1);
            tally.sample(&format!("kind {number}"), || number.to_string());
        }
        assert_eq!(tally.errors.len(), KINDS_MAX + 1);
        assert_eq!(tally.errors.values().sum::<u64>(), 1000);
        assert_eq!(tally.samples.len(), SAMPLES_MAX);
        let mut same = Tally::new();
        (0..3).for_each(|_| same.sample("connecting", || "refused".to_owned()));
        (0..9).for_each(|number| same.sample("status 503", || format!("request {number}")));
        let reported: Vec<&str> = same.samples.iter().map(|(_, sentence)| &**sentence).collect();
        assert_eq!(reported, ["refused", "request 0", "request 1"]);
        let mut sum = Tally::new();
        sum.add(&tally);
        sum.add(&tally);
        assert_eq!(sum.errors.values().sum::<u64>(), 2000);
        tally.clear();
        assert!(tally.errors.is_empty());
    }
}
