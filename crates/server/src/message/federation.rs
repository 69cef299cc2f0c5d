//! What the federation thread receives, and what it sends to workers.

use std::sync::Arc;

use dunlin_federation::{Message, Reason};

/// A message to the federation thread.
pub(crate) enum FederationMessage {
    /// From a worker: send a message to a user of a peer. [`FederationToWorker::Answer`] follows.
    Send {
        /// Repeated in the answer.
        token: u64,
        peer: Arc<str>,
        message: Box<Message>,
    },
    /// From a worker: the home of a message's recipient has taken it, or has refused it for good.
    Taken(Box<DeliveryId>, Result<(), Reason>),
    /// From the admin thread: dial a peer now that is not linked.
    Retry(Arc<str>),
    /// From the admin thread: wakes the receiver, because a new snapshot has work for it.
    AdoptSettings,
    /// From the control thread: end the links, and leave the event loop.
    Stop,
}

/// A message to a worker.
pub(crate) enum FederationToWorker {
    /// Publish a message to its recipient.
    Deliver(DeliveryId, Arc<Message>),
    /// The answer to [`FederationMessage::Send`].
    Answer { token: u64, answer: SendAnswer },
    /// A message of a user here has failed after it was answered with `queued`.
    Notice { user: Box<str>, to: Box<str>, id: MessageId, reason: Reason },
}

/// Which message of which peer is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryId {
    pub(crate) peer: Arc<str>,
    pub(crate) stream: u64,
    pub(crate) seq: u64,
}

/// Identifies a message to a peer in answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageId {
    pub(crate) stream: u64,
    pub(crate) seq: u64,
}

impl std::fmt::Display for MessageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}-{}", self.stream, self.seq)
    }
}

/// What has become of a message when its sender is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendAnswer {
    Delivered(MessageId),
    /// It is stored, and sent when the peer is there.
    Queued(MessageId),
    Failed(Reason),
}

impl SendAnswer {
    /// Returns the answer as JSON.
    pub(crate) fn to_json(self) -> Box<[u8]> {
        let text = match self {
            SendAnswer::Delivered(id) => format!(r#"{{"status":"delivered","id":"{id}"}}"#),
            SendAnswer::Queued(id) => format!(r#"{{"status":"queued","id":"{id}"}}"#),
            SendAnswer::Failed(reason) => format!(r#"{{"status":"failed","reason":"{reason}"}}"#),
        };
        text.into_bytes().into()
    }
}
