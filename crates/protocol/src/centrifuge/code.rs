//! The protocol's codes: errors in replies, unsubscribes, disconnects.
//!
//! Codes and standard texts are the Centrifugal protocol's (centrifugal.dev, "Client protocol codes"). Client libraries
//! decide by the codes whether to retry, resubscribe or reconnect.

use std::borrow::Cow;
use std::fmt;

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident: $repr:ty { $($(#[$doc:meta])* $variant:ident = $code:literal, $text:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr($repr)]
        pub enum $name { $($(#[$doc])* $variant = $code,)+ }

        impl $name {
            /// All codes, in ascending order.
            pub const ALL: &[$name] = &[$($name::$variant),+];

            /// Returns the number on the wire.
            pub const fn code(self) -> $repr {
                self as $repr
            }

            /// Returns the standard text on the wire.
            pub const fn text(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }

            /// Returns the code with this number.
            pub fn from_code(code: $repr) -> Option<$name> {
                match code { $($code => Some($name::$variant),)+ _ => None }
            }
        }
    };
}

codes! {
    /// Error of one command, sent in its reply; the connection continues.
    ErrorCode: u32 {
        /// An internal failure of the server. Temporary: the client retries.
        Internal = 100, "internal server error";
        /// The request is not authenticated.
        Unauthorized = 101, "unauthorized";
        /// The channel belongs to a namespace that is not configured.
        UnknownChannel = 102, "unknown channel";
        /// The client lacks the permission.
        PermissionDenied = 103, "permission denied";
        /// The server has no such method or remote procedure.
        MethodNotFound = 104, "method not found";
        /// The connection is already subscribed to the channel.
        AlreadySubscribed = 105, "already subscribed";
        /// A limit would be exceeded: length of a channel name, number of subscriptions, size of a publication.
        LimitExceeded = 106, "limit exceeded";
        /// The request is invalid; repeating it does not help.
        BadRequest = 107, "bad request";
        /// The feature is disabled for this channel: history, presence, publishing by clients.
        NotAvailable = 108, "not available";
        /// The token has expired: the client gets a new one from its backend and repeats the command.
        TokenExpired = 109, "token expired";
        /// The connection or subscription has expired, although its token has not.
        Expired = 110, "expired";
        /// Rate limit. Temporary: the client retries.
        TooManyRequests = 111, "too many requests";
        /// The stream no longer has the publications after the position, or has another epoch.
        UnrecoverablePosition = 112, "unrecoverable position";
    }
}

impl ErrorCode {
    /// Whether the client may expect the same command to succeed later.
    pub const fn temporary(self) -> bool {
        matches!(self, ErrorCode::Internal | ErrorCode::TooManyRequests)
    }

    /// Returns the disconnect code of a unidirectional connection, which has no replies, when its connect request fails
    /// with this error.
    pub const fn disconnect(self) -> DisconnectCode {
        match self {
            ErrorCode::Unauthorized | ErrorCode::PermissionDenied => {
                DisconnectCode::PermissionDenied
            }
            ErrorCode::TokenExpired | ErrorCode::Expired => DisconnectCode::Expired,
            ErrorCode::LimitExceeded => DisconnectCode::ChannelLimit,
            ErrorCode::TooManyRequests => DisconnectCode::TooManyRequests,
            ErrorCode::NotAvailable => DisconnectCode::NotAvailable,
            ErrorCode::BadRequest
            | ErrorCode::UnknownChannel
            | ErrorCode::MethodNotFound
            | ErrorCode::AlreadySubscribed => DisconnectCode::BadRequest,
            ErrorCode::Internal | ErrorCode::UnrecoverablePosition => DisconnectCode::ServerError,
        }
    }

    /// Returns the error with a specific message: the standard text, a colon, and the reason.
    pub fn with_reason(self, reason: impl fmt::Display) -> Error<'static> {
        Error {
            code: self.code(),
            message: Cow::Owned(format!("{}: {reason}", self.text())),
            temporary: self.temporary(),
        }
    }
}

/// An error in a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error<'a> {
    /// 100–199 are the protocol's ([`ErrorCode`]), 400–1999 an application's.
    pub code: u32,
    /// For people; programs use the code.
    pub message: Cow<'a, str>,
    /// Whether the client may expect the same command to succeed later.
    pub temporary: bool,
}

impl From<ErrorCode> for Error<'static> {
    fn from(code: ErrorCode) -> Self {
        Error {
            code: code.code(),
            message: Cow::Borrowed(code.text()),
            temporary: code.temporary(),
        }
    }
}

impl From<dunlin_hub::Error> for Error<'static> {
    /// Returns the client's error for a failed operation.
    fn from(error: dunlin_hub::Error) -> Self {
        use dunlin_hub::Error as Hub;
        match error {
            Hub::AlreadySubscribed => ErrorCode::AlreadySubscribed.into(),
            Hub::LimitExceeded => ErrorCode::LimitExceeded.into(),
            Hub::FiltersFull => ErrorCode::TooManyRequests.with_reason(error),
            Hub::PublicationTooLarge => ErrorCode::LimitExceeded.with_reason(error),
            Hub::ChannelName => ErrorCode::BadRequest.with_reason(error),
            Hub::BadRequest => ErrorCode::BadRequest.into(),
            Hub::Wildcard | Hub::PayloadAlone | Hub::NotDurable => {
                ErrorCode::BadRequest.with_reason(error)
            }
            Hub::AckWithoutUser | Hub::DeviceName | Hub::AckOffset { .. } => {
                ErrorCode::BadRequest.with_reason(error)
            }
            Hub::TooManyDevices | Hub::CursorsFull => ErrorCode::LimitExceeded.with_reason(error),
            Hub::HistoryOff | Hub::PresenceOff | Hub::AckOff => {
                ErrorCode::NotAvailable.with_reason(error)
            }
            Hub::PermissionWithdrawn => ErrorCode::PermissionDenied.with_reason(error),
            Hub::UnrecoverablePosition(_) => ErrorCode::UnrecoverablePosition.into(),
            // All of these are temporary: the queue drains, the worker restarts, a new session replaces the old one.
            _ => ErrorCode::Internal.with_reason(error),
        }
    }
}

impl fmt::Display for Error<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Error<'_> {}

codes! {
    /// Why the server ended a subscription. Below 2500 the client stays unsubscribed. From 2500 on it resubscribes and,
    /// if the subscription was recoverable, recovers.
    UnsubscribeCode: u32 {
        /// The server API ended it.
        Server = 2000, "server unsubscribe";
        /// Publications were lost; resubscribing recovers them if the history still has them.
        Insufficient = 2500, "insufficient state";
        /// The subscription's token expired.
        Expired = 2501, "subscription expired";
        /// The token of the subscription is no longer valid: the client gets a new one and resubscribes.
        StateInvalidated = 2502, "state invalidated";
    }
}

codes! {
    /// Why the server closes a connection. [`reconnects`](dunlin_hub::code::reconnects) has the code ranges that decide
    /// whether the client reconnects.
    DisconnectCode: u16 {
        /// The connection ended without a disconnect. Never sent.
        ConnectionClosed = 3000, "connection closed";
        /// The server shuts down; the client reconnects.
        Shutdown = 3001, "shutdown";
        /// An internal failure of the server.
        ServerError = 3004, "internal server error";
        /// The connection's token expired without a refresh.
        Expired = 3005, "connection expired";
        /// A subscription's token expired without a refresh.
        SubExpired = 3006, "subscription expired";
        /// The client reads too slowly: its outbox is full.
        Slow = 3008, "slow";
        /// Writing to the connection failed.
        WriteError = 3009, "write error";
        /// Publications were lost; reconnecting recovers them if the history still has them.
        InsufficientState = 3010, "insufficient state";
        /// An operator requests that the client reconnects.
        ForceReconnect = 3011, "force reconnect";
        /// The client did not answer a ping in time.
        NoPong = 3012, "no pong";
        /// The client exceeds its command rate.
        TooManyRequests = 3013, "too many requests";
        /// The token is not valid.
        InvalidToken = 3500, "invalid token";
        /// A frame that violates the protocol.
        BadRequest = 3501, "bad request";
        /// The client connected and sent no command in time.
        Stale = 3502, "stale";
        /// An operator disconnected the client permanently.
        ForceNoReconnect = 3503, "force disconnect";
        /// Too many connections of a user, of an address, or in total.
        ConnectionLimit = 3504, "connection limit";
        /// Too many channels for one connection.
        ChannelLimit = 3505, "channel limit";
        /// The connection's format does not support the channel's data.
        InappropriateProtocol = 3506, "inappropriate protocol";
        /// The client may not connect.
        PermissionDenied = 3507, "permission denied";
        /// The server has no handler for the message.
        NotAvailable = 3508, "not available";
        /// The client causes too many errors.
        TooManyErrors = 3509, "too many errors";
    }
}

impl DisconnectCode {
    /// Returns the disconnect with a specific reason: the standard text, a colon, and the reason, truncated to the
    /// length of a WebSocket close frame.
    pub fn with_reason(self, reason: impl fmt::Display) -> Disconnect<'static> {
        let mut reason = format!("{}: {reason}", self.text());
        if reason.len() > REASON_BYTES_MAX {
            reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        }
        Disconnect { code: self.code(), reason: Cow::Owned(reason) }
    }
}

/// Maximum length of a reason in bytes: a close frame's payload is at most 125 bytes, two of which are the code (RFC
/// 6455 §5.5).
pub const REASON_BYTES_MAX: usize = 123;

/// A disconnect as it is sent: in a push on streams, in the close frame on WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect<'a> {
    /// 3000–3999 are the protocol's ([`DisconnectCode`]), 4000–4999 an application's.
    pub code: u16,
    /// For people, at most [`REASON_BYTES_MAX`] bytes.
    pub reason: Cow<'a, str>,
}

impl Disconnect<'_> {
    /// Returns whether the client reconnects.
    pub const fn reconnects(&self) -> bool {
        dunlin_hub::code::reconnects(self.code as u32)
    }
}

impl From<DisconnectCode> for Disconnect<'static> {
    fn from(code: DisconnectCode) -> Self {
        Disconnect { code: code.code(), reason: Cow::Borrowed(code.text()) }
    }
}

impl fmt::Display for Disconnect<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_its_number() {
        for &code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_code(code.code()), Some(code));
        }
        for &code in UnsubscribeCode::ALL {
            assert_eq!(UnsubscribeCode::from_code(code.code()), Some(code));
        }
        for &code in DisconnectCode::ALL {
            assert_eq!(DisconnectCode::from_code(code.code()), Some(code));
        }
        assert_eq!(ErrorCode::from_code(99), None);
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let reason = DisconnectCode::BadRequest.with_reason("ü".repeat(200)).reason;
        assert!(reason.len() <= REASON_BYTES_MAX);
        assert!(reason.starts_with("bad request: ü"));
    }
}
