//! Requests that await a reply of the hub: a token identifies the requester.

use std::sync::Arc;

use dunlin_bus::{RequestId, RequestTable};
use dunlin_hub::{CursorOwner, MemberListRequest, SessionId, StreamPosition};

use super::CallId;
use crate::message::federation::DeliveryId;

/// The most pending requests of one worker.
const PENDING_MAX: usize = 1 << 20;
/// The hub answers every request within its own timeout; this multiple of it is a second line of defence.
const TIMEOUTS: u64 = 4;

/// The requester behind a token given to the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// A command of a client, answered with a reply.
    Command {
        session: SessionId,
        /// The command's id.
        id: u32,
    },
    /// A command whose reply is also charged to the channel's namespace.
    ChargedCommand { session: SessionId, id: u32, channel: Arc<str> },
    /// A request of a client of the Pusher protocol.
    Pusher { session: SessionId },
    /// The sign-in of a client of that protocol, which is confirmed once its user's channel is subscribed.
    PusherSignIn { session: SessionId, user_data: Arc<str> },
    /// The hub's request for the members of a channel on other nodes.
    MemberList(Box<MemberListRequest>),
    /// A subscription of a connect, which is answered with the last of them.
    Connect { session: SessionId },
    /// A command of a server API call.
    Api(CommandPlace),
    /// A call of `dunlin.shared` by the program of a connection.
    ProgramStore { conn: u64, id: u32 },
    /// An acknowledgement, or a request for a cursor.
    Ack(Box<PendingAck>),
    /// A message that cannot be delivered: it is read, then published elsewhere.
    DeadLetter(Box<DeadLetter>),
    /// A subscription of a long-poll, or the page of history that replaces it.
    Poll { session: SessionId, channel: Arc<str> },
    /// A message of a peer, which is published.
    Remote(Box<DeliveryId>),
}

// As many as there are requests under way.
const _: () = assert!(size_of::<Pending>() == 32);

/// An acknowledgement on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingAck {
    pub(crate) by: AckBy,
    /// Whose cursor it is.
    pub(crate) user: Box<str>,
    pub(crate) channel: Box<str>,
    /// It stands for all devices of the user, which are notified.
    pub(crate) by_user: bool,
}

/// A message that was delivered as often as it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeadLetter {
    pub(crate) channel: Arc<str>,
    /// Whose cursor stands before it.
    pub(crate) owner: CursorOwner,
    pub(crate) position: StreamPosition,
    pub(crate) deliveries: u8,
}

/// Who is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckBy {
    Command {
        session: SessionId,
        id: u32,
    },
    Api(CommandPlace),
    /// The server acknowledges for a device.
    Nobody,
    /// A poll, only if it fails.
    Poll {
        session: SessionId,
    },
}

/// The position of a command: its call, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandPlace {
    pub(crate) call: CallId,
    pub(crate) at: u32,
    /// The index of the channel in a broadcast; `None` for other commands.
    pub(crate) part: Option<u32>,
}

/// The pending requests of one worker.
#[derive(Debug)]
pub(crate) struct PendingRequests(RequestTable<Pending>);

impl Default for PendingRequests {
    fn default() -> Self {
        Self(RequestTable::new(PENDING_MAX))
    }
}

impl PendingRequests {
    /// Stores `pending` for longer than the hub's own `timeout_ms`, and returns its token.
    ///
    /// # Errors
    /// Returns `pending` if too many requests are pending.
    pub(crate) fn insert(
        &mut self,
        now_ms: u64,
        timeout_ms: u64,
        pending: Pending,
    ) -> Result<u64, Pending> {
        let deadline_ms = now_ms + TIMEOUTS * timeout_ms;
        self.0.insert(deadline_ms, pending).map(RequestId::to_u64).map_err(|full| full.0)
    }

    /// Removes the requester of a token. `None`: it was answered before, or has timed out.
    pub(crate) fn take(&mut self, token: u64) -> Option<Pending> {
        RequestId::from_u64(token).and_then(|id| self.0.take(id))
    }

    /// Removes and returns the requests that the hub has not answered in time.
    pub(crate) fn expire(&mut self, now_ms: u64) -> Vec<Pending> {
        self.0.expire(now_ms).map(|(_, pending)| pending).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_once_by_its_answer_or_by_the_timeout() {
        let mut requests = PendingRequests::default();
        let session = SessionId::pack(0, 0, 0, 1, 0);
        let command = |id| Pending::Command { session, id };
        let answered = requests.insert(100, 50, command(1)).unwrap();
        let lost = requests.insert(100, 50, command(2)).unwrap();
        assert_eq!(requests.take(answered), Some(command(1)));
        assert_eq!(requests.take(answered), None, "a second answer finds nobody");
        assert_eq!(requests.expire(299), []);
        assert_eq!(requests.expire(300), [command(2)]);
        assert_eq!(requests.take(lost), None, "an answer that comes late finds nobody");
        assert_eq!(requests.take(0), None, "the hub's own requests have no token");
    }
}
