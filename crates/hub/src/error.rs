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
    /// The name is a [wildcard](crate::wildcard), and this is done with one channel.
    #[error("a wildcard stands for many channels and is only subscribed to; name one of them")]
    Wildcard,
    /// The channel's engine carries payloads alone, and the publication has more.
    #[error("the channel carries payloads alone: no tags, key, idempotency key, version or delta")]
    PayloadAlone,
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
    #[error("the channel's home worker did not answer in time; it may have been done or not")]
    Timeout,
    /// The home worker died during the operation, which may or may not have happened.
    #[error("the channel's home worker was restarted; it may have been done or not")]
    WorkerRestarted,
    /// The channel's engine cannot be reached, or cannot take it now. Nothing was stored.
    #[error("the channel's engine is unavailable; nothing was stored")]
    EngineUnavailable,
    /// The channel's engine refused it, as the log says. Nothing was stored.
    #[error("the channel's engine refused it; nothing was stored, and the log has the reason")]
    EngineRefused,
    /// The channel's engine did not answer. A publication may have been stored and delivered, or may not.
    #[error("the channel's engine did not answer; it may have been stored or not")]
    EngineUncertain,
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
        matches!(
            self,
            Self::Overloaded
                | Self::Timeout
                | Self::WorkerRestarted
                | Self::EngineUnavailable
                | Self::EngineRefused
                | Self::EngineUncertain
        )
    }
}
