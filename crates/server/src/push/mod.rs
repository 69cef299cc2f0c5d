//! Push notifications: what `/api/push` and what is below it do.
//!
//! The senders of `dunlin-push` live in a thread of their own with a `tokio` runtime. A worker hands it a request's
//! body over the bus and goes on ([`Ask`]); what comes back ([`Said`]) are pieces of an answer, as many as the client
//! has room for ([`flow`]). The admin thread hands it credentials whenever a change of them is in effect
//! ([`Pushes::apply`]), so that the answer to the change means that they are used, and has them judged before
//! ([`judge`]).
//!
//! A call ([`call`]) reads its body ([`order`]), finds the devices ([`devices`]), hands each push to its credential's
//! sender ([`senders`]) and tells what became of it ([`outcome`]). Nobody waits for a call but its own client.

mod call;
mod credentials;
mod devices;
mod environment;
mod flow;
mod metrics;
mod online;
mod order;
mod outcome;
mod senders;
mod tally;
mod thread;
mod trace_parent;
mod verdicts;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use dunlin_net::ConnId;

pub(crate) use self::call::refusal;
pub(crate) use self::credentials::judge;
pub(crate) use self::thread::PushThread;
pub(crate) use self::trace_parent::TraceParent;

/// Calls under way at once; the next is told to come again.
const CALLS_MAX: usize = 512;
/// Bytes of the bodies of all of them together.
const BODY_BYTES_MAX: usize = 256 << 20;

/// A request of a client, on its way from a worker to the push thread.
pub(crate) struct Ask {
    /// Counts up in the life of the process.
    pub(crate) call: u64,
    /// Whom to answer, at the worker it comes from.
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
    pub(crate) admitted: Admitted,
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
            _ => return None,
        })
    }
}

/// A piece of an answer, on its way back.
pub(crate) struct Said {
    pub(crate) call: u64,
    pub(crate) conn: ConnId,
    pub(crate) what: Saying,
}

/// What is to be said to the client.
pub(crate) enum Saying {
    /// The whole answer: status and JSON.
    Answer(u16, Vec<u8>),
    /// Lines of an answer that goes on; the first of them begin it.
    Lines(Vec<u8>),
    /// The last lines.
    End(Vec<u8>),
    /// Nobody reads it: the connection is to be cut.
    Cut,
}

/// The push thread as everybody else sees it.
#[derive(Clone)]
pub(crate) struct Pushes(Arc<thread::Shared>);

/// What bounds the calls under way.
#[derive(Debug, Default)]
struct Admissions {
    calls: AtomicUsize,
    bytes: AtomicUsize,
    begun: AtomicU64,
}

/// A place among the calls under way.
#[derive(Debug)]
pub(crate) struct Admitted {
    admissions: Arc<Admissions>,
    bytes: usize,
}

impl Admissions {
    /// A place and a number for a call with so large a body, unless there are too many.
    fn admit(self: &Arc<Self>, bytes: usize) -> Option<(u64, Admitted)> {
        let calls = self.calls.fetch_add(1, Relaxed) + 1;
        let total = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        // Given back by its drop, if it is one too many.
        let admitted = Admitted { admissions: Arc::clone(self), bytes };
        (calls <= CALLS_MAX && total <= BODY_BYTES_MAX)
            .then(|| (self.begun.fetch_add(1, Relaxed), admitted))
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admissions.calls.fetch_sub(1, Relaxed);
        self.admissions.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

impl Pushes {
    /// A place and a number for a call, for a worker. `None`: too much is under way.
    pub(crate) fn admit(&self, bytes: usize) -> Option<(u64, Admitted)> {
        self.0.admissions.admit(bytes)
    }

    /// Takes up changed credentials: new ones are started, changed ones take the place of those before, and those that
    /// are gone end what they have under way. Gives what is wrong with those that cannot be used. For the admin thread.
    pub(crate) fn apply(
        &self,
        before: &dunlin_config::Push,
        after: &dunlin_config::Push,
    ) -> dunlin_config::Faults {
        let _runtime = self.0.runtime.enter();
        self.0.senders.apply(before, after)
    }

    /// What `/metrics` shows of it.
    pub(crate) fn exposition(&self) -> String {
        metrics::exposition(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_bounded_in_number_and_in_bytes() {
        let admissions = Arc::new(Admissions::default());
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
