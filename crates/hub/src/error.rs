//! Errors of operations.

use std::fmt;

/// Why an operation failed. It then has changed nothing, unless the variant says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    /// The session id is stale, of another node, or of a session that is closing.
    NoSession,
    /// The session is subscribed to the channel, or about to be.
    AlreadySubscribed,
    /// A limit would be passed: subscriptions of a client, channels of a worker, requests under
    /// way.
    LimitExceeded,
    /// The channel's name is empty or longer than the limit.
    ChannelName,
    /// The payload is larger than the channel allows.
    PublicationTooLarge,
    /// The channel has no history, or no presence.
    NotAvailable,
    /// The epoch is not the stream's. Carries the stream's position.
    UnrecoverablePosition(crate::position::StreamPosition),
    /// Reverse history from before the first offset, or an empty user.
    BadRequest,
    /// The queue to the channel's home worker is full. Try again.
    Overloaded,
    /// The home worker did not reply in time. The operation may or may not have happened.
    Timeout,
    /// The home worker died during the operation, which may or may not have happened.
    WorkerRestarted,
    /// The subscription ended (unsubscribed, session closed) before it was established.
    Cancelled,
    /// The permission to subscribe was withdrawn before the subscription was established.
    PermissionWithdrawn,
}

impl Error {
    /// True when the same request may succeed later without anybody changing anything.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Overloaded | Self::Timeout | Self::WorkerRestarted)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSession => "no such session",
            Self::AlreadySubscribed => "already subscribed",
            Self::LimitExceeded => "limit exceeded",
            Self::ChannelName => "the channel name is empty or too long",
            Self::PublicationTooLarge => "the publication is larger than the channel allows",
            Self::NotAvailable => "not available for this channel",
            Self::UnrecoverablePosition(_) => "unrecoverable position",
            Self::BadRequest => "bad request",
            Self::Overloaded => "the channel's home worker is overloaded",
            Self::Timeout => "the channel's home worker did not answer in time",
            Self::WorkerRestarted => "the channel's home worker was restarted",
            Self::Cancelled => "cancelled",
            Self::PermissionWithdrawn => "the permission to subscribe was withdrawn",
        })
    }
}

impl std::error::Error for Error {}
