//! Errors of operations.

/// Why an operation failed. A failed operation has no effect unless the variant says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The session id is stale, of another node, or of a session that is closing.
    #[error("no such session")]
    NoSession,
    /// The session is subscribed to the channel, or its subscription is pending.
    #[error("already subscribed")]
    AlreadySubscribed,
    /// A limit would be exceeded: subscriptions of a client, channels of a worker, or outstanding requests.
    #[error("limit exceeded")]
    LimitExceeded,
    /// The filter has no room beside those of the same owner, of the namespace, or of all. Try again.
    #[error("there is no room for the filter now; end subscriptions with filters, or try again")]
    FiltersFull,
    /// The channel's name is empty or longer than the limit.
    #[error("the channel name is empty or too long")]
    ChannelName,
    /// The payload is larger than the channel allows.
    #[error("the publication is larger than the channel allows")]
    PublicationTooLarge,
    /// The channel has no history.
    #[error(
        "the channel keeps no history; set `history_size` and `history_ttl_ms` of its namespace"
    )]
    HistoryOff,
    /// The channel has no presence.
    #[error("the channel has no presence; set `presence` of its namespace")]
    PresenceOff,
    /// The name is a [wildcard](crate::wildcard), but the operation needs a single channel.
    #[error("a wildcard stands for many channels and is only subscribed to; name one of them")]
    Wildcard,
    /// The channel's engine transports only payloads, but the publication has more.
    #[error("the channel carries payloads alone: no tags, key, idempotency key, version or delta")]
    PayloadAlone,
    /// The publication should survive the end of the process or a loss of power, but is not stored on a disk of this
    /// node.
    #[error(
        "it is not stored on a disk, and can be neither `written` nor `synced`; leave out `durability`, or give its namespace an `engine` of type \"disk\" and a history"
    )]
    NotDurable,
    /// The channel's namespace has no acknowledgements.
    #[error(
        "the channel has no acknowledgements; set `ack` of its namespace, and the history that it needs"
    )]
    AckOff,
    /// An acknowledgement, or a subscription that begins at a cursor, of an anonymous client.
    #[error("a cursor is a user's, and this client has no user; give its token a `sub`")]
    AckWithoutUser,
    /// The name of a device or of a user is too long for a cursor.
    #[error("the device has at most 128 bytes, and the user 1024")]
    DeviceName,
    /// The acknowledged offset is 0, or beyond the last publication.
    #[error("no publication has this offset; the first has 1 and the last {top}")]
    AckOffset {
        /// Offset of the last publication.
        top: u64,
    },
    /// The user has cursors of as many devices as it may.
    #[error(
        "the user has acknowledged from as many devices as it may; raise `ack_devices_max` of the namespace, or wait until one expires"
    )]
    TooManyDevices,
    /// The namespace has no memory for another cursor.
    #[error("the namespace has no room for another cursor; raise its `ack_bytes_max`")]
    CursorsFull,
    /// The epoch is not that of the stream. Contains the stream's position.
    #[error("unrecoverable position")]
    UnrecoverablePosition(crate::position::StreamPosition),
    /// A reverse history read from before the first offset, or an empty user.
    #[error("bad request")]
    BadRequest,
    /// The queue to the channel's home worker is full. Try again.
    #[error("the channel's home worker is overloaded")]
    Overloaded,
    /// The home worker did not reply in time. The operation may have been executed.
    #[error("the channel's home worker did not answer in time; it may have been done or not")]
    Timeout,
    /// The home worker died during the operation. The operation may have been executed.
    #[error("the channel's home worker was restarted; it may have been done or not")]
    WorkerRestarted,
    /// The channel's engine cannot be reached or cannot accept the operation now. Nothing was stored.
    #[error("the channel's engine is unavailable; nothing was stored")]
    EngineUnavailable,
    /// The channel's engine refused the operation; see the log. Nothing was stored.
    #[error("the channel's engine refused it; nothing was stored, and the log has the reason")]
    EngineRefused,
    /// The channel's engine did not answer. The publication may have been stored and delivered.
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
    /// Whether the same request may succeed later without a change by the caller.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::FiltersFull
                | Self::Overloaded
                | Self::Timeout
                | Self::WorkerRestarted
                | Self::EngineUnavailable
                | Self::EngineRefused
                | Self::EngineUncertain
        )
    }
}
