//! What workers and the push thread say to each other, and the bound on what is under way between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use dunlin_net::ConnId;

use crate::request::trace_parent::TraceParent;

/// Calls under way at once; the next is refused with 503.
const CALLS_MAX: usize = 512;
/// Bytes of the bodies of all of them together.
const BODY_BYTES_MAX: usize = 256 << 20;

/// A request of a client, on its way from a worker to the push thread.
pub(crate) struct PushRequest {
    /// Counts up while the process runs.
    pub(crate) call: u64,
    /// The requester at the sending worker.
    pub(crate) conn: ConnId,
    /// What is asked.
    pub(crate) method: PushMethod,
    /// The body of the request.
    pub(crate) body: Box<[u8]>,
    /// The caller wants errors as HTTP statuses.
    pub(crate) errors_as_status: bool,
    /// The trace it belongs to.
    pub(crate) trace: Option<TraceParent>,
    /// Held for as long as the call lasts.
    pub(crate) permit: PushPermit,
}

/// What can be asked below `/api/push`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushMethod {
    /// One notification; one answer.
    Push,
    /// Many, and a line for each outcome as it comes.
    Batch,
    /// Gives a user devices.
    Register,
    /// Takes devices away.
    Remove,
    /// The devices of a user.
    List,
    /// Which tokens turned out dead.
    Feed,
    /// How durable pushes ended, and those whose caller has gone.
    Outcomes,
}

impl PushMethod {
    /// The method of what follows `/api/`.
    pub(crate) fn find(path: &str) -> Option<PushMethod> {
        Some(match path {
            "push" => PushMethod::Push,
            "push/batch" => PushMethod::Batch,
            "push/devices/register" => PushMethod::Register,
            "push/devices/remove" => PushMethod::Remove,
            "push/devices/list" => PushMethod::List,
            "push/devices/feed" => PushMethod::Feed,
            "push/outcomes/feed" => PushMethod::Outcomes,
            _ => return None,
        })
    }
}

/// A piece of an answer, on its way back.
pub(crate) struct PushReply {
    pub(crate) call: u64,
    pub(crate) conn: ConnId,
    pub(crate) body: PushReplyBody,
}

/// What the worker is to write to the client.
pub(crate) enum PushReplyBody {
    /// The whole response: status and JSON.
    Complete(u16, Vec<u8>),
    /// Lines of an answer that continues; the first of them begin it.
    Lines(Vec<u8>),
    /// The last lines.
    LastLines(Vec<u8>),
    /// It has no reader: abort the connection.
    Abort,
}

/// The calls under way, bounded in number and in the bytes of their bodies.
#[derive(Debug, Default)]
pub(crate) struct PushAdmissions {
    calls: AtomicUsize,
    bytes: AtomicUsize,
    begun: AtomicU64,
}

/// A place among the calls under way, given back by its drop.
#[derive(Debug)]
pub(crate) struct PushPermit {
    admissions: Arc<PushAdmissions>,
    bytes: usize,
}

impl PushAdmissions {
    /// Calls under way.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }

    /// A permit and a number for a call with a body of `bytes`; `None` when too much is under way.
    pub(crate) fn admit(self: &Arc<Self>, bytes: usize) -> Option<(u64, PushPermit)> {
        let calls = self.calls.fetch_add(1, Relaxed) + 1;
        let total = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        // Its drop takes this back if it is one too many.
        let permit = PushPermit { admissions: Arc::clone(self), bytes };
        (calls <= CALLS_MAX && total <= BODY_BYTES_MAX)
            .then(|| (self.begun.fetch_add(1, Relaxed), permit))
    }
}

impl Drop for PushPermit {
    fn drop(&mut self) {
        self.admissions.calls.fetch_sub(1, Relaxed);
        self.admissions.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_bounded_in_number_and_in_bytes() {
        let admissions = Arc::new(PushAdmissions::default());
        assert!(admissions.admit(BODY_BYTES_MAX + 1).is_none());
        let large = admissions.admit(BODY_BYTES_MAX).unwrap();
        assert!(admissions.admit(1).is_none());
        drop(large);
        let held: Vec<_> = (0..CALLS_MAX).map(|_| admissions.admit(1).unwrap()).collect();
        assert!(admissions.admit(1).is_none());
        assert_eq!(held[1].0, held[0].0 + 1);
        drop(held);
        assert!(admissions.admit(1).is_some());
    }
}
