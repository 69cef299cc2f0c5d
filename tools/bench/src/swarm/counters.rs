use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// What clients have done and received so far, summed over clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Counts {
    /// Clients that have received every answer they need to count as ready; never decreases.
    pub(crate) ready: u64,
    /// Connects given up.
    pub(crate) failed: u64,
    /// Connects tried again after a failure.
    pub(crate) retried: u64,
    /// Clients closed by the server after they were ready.
    pub(crate) closed: u64,
    pub(crate) publications: u64,
    /// Publications that carry a sequence number of the bench.
    pub(crate) numbered: u64,
    pub(crate) publication_bytes: u64,
    /// Documents other than publications and pings.
    pub(crate) others: u64,
    /// Pings of the server, each answered.
    pub(crate) pings: u64,
    /// Pings of the clients, and the server's answers.
    pub(crate) pings_sent: u64,
    pub(crate) pongs: u64,
    pub(crate) received_bytes: u64,
    /// When the last publication arrived, nanoseconds on the run's clock.
    #[serde(skip)]
    pub(crate) last_publication_ns: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        let last = self.last_publication_ns.max(other.last_publication_ns);
        for (sum, part) in self.fields_mut().into_iter().zip(other.fields()) {
            *sum += part;
        }
        self.last_publication_ns = last;
    }

    fn fields(&self) -> [u64; FIELDS] {
        [
            self.ready,
            self.failed,
            self.retried,
            self.closed,
            self.publications,
            self.numbered,
            self.publication_bytes,
            self.others,
            self.pings,
            self.pings_sent,
            self.pongs,
            self.received_bytes,
            self.last_publication_ns,
        ]
    }

    fn fields_mut(&mut self) -> [&mut u64; FIELDS] {
        [
            &mut self.ready,
            &mut self.failed,
            &mut self.retried,
            &mut self.closed,
            &mut self.publications,
            &mut self.numbered,
            &mut self.publication_bytes,
            &mut self.others,
            &mut self.pings,
            &mut self.pings_sent,
            &mut self.pongs,
            &mut self.received_bytes,
            &mut self.last_publication_ns,
        ]
    }
}

const FIELDS: usize = 13;

/// The counts of one thread, read by other threads while it runs. They have their own cache lines to avoid false
/// sharing.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    values: [AtomicU64; FIELDS],
    first_failure: OnceLock<String>,
}

impl Counters {
    /// Writes the last field first: who reads a count reads the time of its last publication with it, or a later one.
    pub(crate) fn store(&self, counts: &Counts) {
        for (value, field) in self.values.iter().zip(counts.fields()).rev() {
            value.store(field, Ordering::Release);
        }
    }

    /// Reads the first field first, see [`Self::store`].
    pub(crate) fn load(&self) -> Counts {
        let mut counts = Counts::default();
        for (field, value) in counts.fields_mut().into_iter().zip(&self.values) {
            *field = value.load(Ordering::Acquire);
        }
        counts
    }

    pub(crate) fn note_failure(&self, reason: &str) {
        self.first_failure.get_or_init(|| reason.to_owned());
    }

    pub(crate) fn first_failure(&self) -> Option<String> {
        self.first_failure.get().cloned()
    }
}
