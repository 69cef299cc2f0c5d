//! Messages between workers and the push thread, and the bound on the calls in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use dunlin_api::online::{OnlineQuery, OnlineReply};
use dunlin_net::ConnId;
use dunlin_webhooks::HookEvent;

use crate::trace_parent::TraceParent;

/// The most calls in progress; further calls get a 503.
const CALLS_MAX: usize = 512;
/// The most bytes of the bodies of all calls together.
const BODY_BYTES_MAX: usize = 256 << 20;

/// A message to the push thread.
pub enum PushMessage {
    /// A worker's request below `/api/push`.
    Request(Box<PushRequest>),
    /// The client's socket has accepted `bytes` of the response.
    ReplyRead {
        /// The number of the call.
        call: u64,
        /// The bytes since the last report.
        bytes: usize,
    },
    /// The client of this call has closed its connection.
    CallerGone {
        /// The number of the call.
        call: u64,
    },
    /// Of a worker, or of the agent of the cluster on behalf of the other nodes.
    OnlineReply(OnlineReply),
}

impl From<OnlineReply> for PushMessage {
    fn from(reply: OnlineReply) -> PushMessage {
        PushMessage::OnlineReply(reply)
    }
}

/// A message of the push thread to a worker.
pub enum PushToWorker {
    /// A piece of a response.
    Reply(Box<PushReply>),
    /// Which of these users have a session at the worker?
    OnlineQuery(OnlineQuery),
}

/// A message of the push thread, with its receiver.
pub enum PushOutput {
    /// To the worker with this number.
    Worker(usize, PushToWorker),
    /// To the agent of the cluster: the query for the other nodes.
    Cluster(OnlineQuery),
    /// To the webhooks thread.
    Webhooks(Box<HookEvent>),
}

/// A client's request to the push thread.
pub struct PushRequest {
    /// The number of the call, unique in this run of the process.
    pub call: u64,
    /// The client's connection at the sending worker.
    pub conn: ConnId,
    /// The called method.
    pub method: PushMethod,
    /// The body of the request.
    pub body: Box<[u8]>,
    /// Whether the caller wants errors as HTTP statuses.
    pub errors_as_status: bool,
    /// The trace that the request belongs to.
    pub trace: Option<TraceParent>,
    /// Held until the call ends.
    pub permit: PushPermit,
}

/// The methods below `/api/push`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushMethod {
    /// Sends one notification, with a single response.
    Push,
    /// Sends many notifications; the response has one line for each outcome, as it arrives.
    Batch,
    /// Adds devices to a user.
    Register,
    /// Removes devices.
    Remove,
    /// Lists the devices of a user.
    List,
    /// Lists tokens that turned out to be invalid.
    Feed,
    /// Lists the outcomes of durable pushes, and of pushes whose caller disconnected.
    Outcomes,
    /// Lists the durable batches that wait for their time.
    ScheduledList,
    /// Cancels one of them.
    ScheduledCancel,
}

impl PushMethod {
    /// Returns the path below `/api/`.
    pub const fn path(self) -> &'static str {
        match self {
            PushMethod::Push => "push",
            PushMethod::Batch => "push/batch",
            PushMethod::Register => "push/devices/register",
            PushMethod::Remove => "push/devices/remove",
            PushMethod::List => "push/devices/list",
            PushMethod::Feed => "push/devices/feed",
            PushMethod::Outcomes => "push/outcomes/feed",
            PushMethod::ScheduledList => "push/scheduled/list",
            PushMethod::ScheduledCancel => "push/scheduled/cancel",
        }
    }

    const ALL: [PushMethod; 9] = [
        PushMethod::Push,
        PushMethod::Batch,
        PushMethod::Register,
        PushMethod::Remove,
        PushMethod::List,
        PushMethod::Feed,
        PushMethod::Outcomes,
        PushMethod::ScheduledList,
        PushMethod::ScheduledCancel,
    ];

    /// Returns the method of a path below `/api/`.
    pub fn find(path: &str) -> Option<PushMethod> {
        PushMethod::ALL.into_iter().find(|method| method.path() == path)
    }
}

/// A part of a response, for the worker.
pub struct PushReply {
    /// As in the request.
    pub call: u64,
    /// As in the request.
    pub conn: ConnId,
    /// What the client gets.
    pub body: PushReplyBody,
}

/// What the worker writes to the client.
pub enum PushReplyBody {
    /// The whole response: status and JSON.
    Complete(u16, Vec<u8>),
    /// Lines of a response that continues; the first lines start the response.
    Lines(Vec<u8>),
    /// The last lines.
    LastLines(Vec<u8>),
    /// Abort the connection: the response has no reader.
    Abort,
}

/// Counts the calls in progress, which are bounded in number and in the bytes of their bodies.
#[derive(Debug, Default)]
pub struct PushAdmissions {
    calls: AtomicUsize,
    bytes: AtomicUsize,
    begun: AtomicU64,
}

/// A permit of one call; its drop returns it.
#[derive(Debug)]
pub struct PushPermit {
    admissions: Arc<PushAdmissions>,
    bytes: usize,
}

impl PushAdmissions {
    /// Returns the number of calls in progress.
    pub fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }

    /// Returns the number and the permit of a call with a body of `bytes`; `None` if too much is in progress.
    pub fn admit(self: &Arc<Self>, bytes: usize) -> Option<(u64, PushPermit)> {
        let calls = self.calls.fetch_add(1, Relaxed) + 1;
        let total = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        // If it exceeds a limit, its drop reverts the counts.
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
