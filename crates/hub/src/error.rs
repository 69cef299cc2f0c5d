//! Errors of operations.

/// Why an operation failed. It then has changed nothing, unless the variant says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The session id is stale, of another node, or of a session that is closing.
    #[error("no such session")]
    NoSession,
    /// The session is subscribed to the channel, or about to be.
    #[error("already subscribed")]
    AlreadySubscribed,
    /// A limit would be passed: subscriptions of a client, channels of a worker, requests under
    /// way.
    #[error("limit exceeded")]
    LimitExceeded,
    /// The channel's name is empty or longer than the limit.
    #[error("the channel name is empty or too long")]
    ChannelName,
    /// The payload is larger than the channel allows.
    #[error("the publication is larger than the channel allows")]
    PublicationTooLarge,
    /// The channel keeps no history.
    #[error(
        "the channel keeps no history; set `history_size` and `history_ttl_ms` of its namespace"
    )]
    HistoryOff,
    /// The channel keeps no presence.
    #[error("nobody notes who is in the channel; set `presence` of its namespace")]
    PresenceOff,
    /// The epoch is not the stream's. Carries the stream's position.
    #[error("unrecoverable position")]
    UnrecoverablePosition(crate::position::StreamPosition),
    /// Reverse history from before the first offset, or an empty user.
    #[error("bad request")]
    BadRequest,
    /// The queue to the channel's home worker is full. Try again.
    #[error("the channel's home worker is overloaded")]
    Overloaded,
    /// The home worker did not reply in time. The operation may or may not have happened.
    #[error("the channel's home worker did not answer in time")]
    Timeout,
    /// The home worker died during the operation, which may or may not have happened.
    #[error("the channel's home worker was restarted")]
    WorkerRestarted,
    /// The subscription ended (unsubscribed, session closed) before it was established.
    #[error("cancelled")]
    Cancelled,
    /// The permission to subscribe was withdrawn before the subscription was established.
    #[error("the permission to subscribe was withdrawn")]
    PermissionWithdrawn,
}

impl Error {
    /// True when the same request may succeed later without anybody changing anything.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Overloaded | Self::Timeout | Self::WorkerRestarted)
    }
}
