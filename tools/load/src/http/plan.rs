//! The settings of a run, and the state its threads share.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

use memchr::memmem::Finder;

use super::address::{Address, ResolvedAddress};
use super::options::Depth;
use super::request::Requests;
use super::tally::Tally;
use crate::transport::Tls;
use crate::{Clock, Context, Error};

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) url: String,
    pub(super) address: Address,
    pub(super) resolved: ResolvedAddress,
    pub(super) tls: Option<Tls>,
    pub(super) requests: Requests,
    pub(super) checks: Checks,
    pub(super) connections: u32,
    pub(super) threads: u32,
    pub(super) depth: Depth,
    pub(super) timeout_ns: u64,
    pub(super) connect_timeout_ns: u64,
    pub(super) attempts_max: u16,
    pub(super) rate: Option<f64>,
    pub(super) count: Option<u64>,
    pub(super) duration_ns: Option<u64>,
    pub(super) warm_up_ns: u64,
    /// Length of a span of the timeline.
    pub(super) span_ns: u64,
    pub(super) cores: Vec<usize>,
    pub(super) clock: Clock,
    pub(super) ledger: Option<Arc<File>>,
}

impl Plan {
    /// Names the server for error messages: the authority, and the Unix socket if there is one.
    pub(super) fn server(&self) -> String {
        match &self.resolved {
            ResolvedAddress::Unix(path) => {
                format!("{} ({})", self.address.authority, path.display())
            }
            ResolvedAddress::Network(_) => self.address.authority.clone(),
        }
    }

    /// Returns how many requests to send after the warm-up: the number given, or what the schedule has room for.
    pub(super) fn requests_wanted(&self) -> Option<u64> {
        let schedule = self
            .rate
            .zip(self.duration_ns)
            .map(|(rate, ns)| ((rate * ns as f64 / 1e9).round() as u64).max(1));
        match (self.count, schedule) {
            (Some(count), Some(schedule)) => Some(count.min(schedule)),
            (count, schedule) => count.or(schedule),
        }
    }
}

/// The conditions of a correct answer.
#[derive(Debug)]
pub(super) struct Checks {
    pub(super) statuses: Vec<(u16, u16)>,
    pub(super) body: Option<Finder<'static>>,
    /// The answer must repeat the number of its request in this header.
    pub(super) id: Option<String>,
    /// The header in which the server names its answer; recorded in the ledger.
    pub(super) served: Option<String>,
}

impl Checks {
    pub(super) fn is_status_right(&self, status: u16) -> bool {
        if self.statuses.is_empty() {
            return (200..400).contains(&status);
        }
        self.statuses.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }

    /// Returns whether more of an answer than its status is checked or recorded.
    pub(super) fn look_inside(&self) -> bool {
        self.body.is_some() || self.id.is_some() || self.served.is_some()
    }
}

/// State shared by the threads and their observer.
#[derive(Debug)]
pub(super) struct Shared {
    /// When the run began, in nanoseconds of its clock; 0 before that.
    start_ns: AtomicU64,
    ready: AtomicU32,
    threads: u32,
    /// Set to end the run: threads send no more.
    pub(super) stop: AtomicBool,
    pub(super) live: Vec<Live>,
}

/// Running counts of one thread, on their own cache lines: written once a turn, read a few times a second.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Live {
    pub(super) answered: AtomicU64,
    pub(super) bad: AtomicU64,
    pub(super) open: AtomicU64,
}

impl Shared {
    pub(super) fn new(threads: u32) -> Self {
        Self {
            start_ns: AtomicU64::new(0),
            ready: AtomicU32::new(0),
            threads,
            stop: AtomicBool::new(false),
            live: (0..threads).map(|_| Live::default()).collect(),
        }
    }

    /// Records that a thread's connections have opened, or have failed once. The run begins when all threads have
    /// reported.
    pub(super) fn ready(&self, now_ns: u64) {
        if self.ready.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.start_ns.store(now_ns.max(1), Ordering::Release);
        }
    }

    pub(super) fn start_ns(&self) -> Option<u64> {
        match self.start_ns.load(Ordering::Acquire) {
            0 => None,
            start_ns => Some(start_ns),
        }
    }
}

/// What a thread counted in one span of time.
#[derive(Debug)]
pub(super) struct Span {
    /// Index of the span since the run began; `None` for counts before the end of the warm-up.
    pub(super) index: Option<u64>,
    pub(super) tally: Box<Tally>,
}

/// A thread's end of the channel to the observer: sends full tallies, receives empty ones.
#[derive(Debug)]
pub(super) struct Reporter {
    pub(super) spans: SyncSender<Span>,
    pub(super) empty: Receiver<Box<Tally>>,
}

impl Reporter {
    /// Sends `tally` to the observer and puts an empty one in its place.
    pub(super) fn report(&self, index: Option<u64>, tally: &mut Box<Tally>) {
        let fresh = self.empty.try_recv().unwrap_or_else(|_| Box::new(Tally::new()));
        let full = std::mem::replace(tally, fresh);
        // The observer is gone only if the run has failed already.
        let _ = self.spans.send(Span { index, tally: full });
    }
}

/// A thread's lines of the ledger. Whole lines are appended to a file that all threads share.
#[derive(Debug)]
pub(super) struct Ledger {
    file: Arc<File>,
    lines: Vec<u8>,
}

impl Ledger {
    pub(super) fn new(file: Arc<File>) -> Self {
        Self { file, lines: Vec::new() }
    }

    /// Appends `NUMBER SENT OUTCOME STATUS SERVED`: times sent, how it ended, and the server's name for its answer.
    pub(super) fn note(
        &mut self,
        number: u64,
        sent: u16,
        outcome: &str,
        status: u16,
        served: &[u8],
    ) {
        // Writing to a Vec cannot fail.
        let _ = write!(self.lines, "{number} {sent} {outcome} {status} ");
        self.lines.extend_from_slice(if served.is_empty() { b"-" } else { served });
        self.lines.push(b'\n');
    }

    pub(super) fn flush_if(&mut self, bytes_min: usize) -> Result<(), Error> {
        if self.lines.len() > bytes_min {
            (&*self.file).write_all(&self.lines).context("cannot write the ledger")?;
            self.lines.clear();
        }
        Ok(())
    }
}
