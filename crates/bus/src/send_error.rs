//! Messages that were not sent.

use std::fmt;

/// A message that was not sent, and why.
#[derive(Clone, PartialEq, Eq)]
pub enum SendError<T> {
    /// The edge is full. Try again when [`poll_room`](crate::Endpoint::poll_room) returns `to`.
    Full {
        /// The endpoint it was for.
        to: usize,
        /// The message.
        value: T,
    },
    /// The receiving endpoint was dropped.
    Closed {
        /// The endpoint it was for.
        to: usize,
        /// The message.
        value: T,
    },
    /// The mesh has no endpoint with that number.
    Unknown {
        /// The endpoint it was for.
        to: usize,
        /// The message.
        value: T,
    },
}

impl<T> SendError<T> {
    /// Returns the endpoint the message was for.
    pub fn to(&self) -> usize {
        match self {
            SendError::Full { to, .. }
            | SendError::Closed { to, .. }
            | SendError::Unknown { to, .. } => *to,
        }
    }

    /// Returns the message.
    pub fn into_value(self) -> T {
        match self {
            SendError::Full { value, .. }
            | SendError::Closed { value, .. }
            | SendError::Unknown { value, .. } => value,
        }
    }

    /// Returns whether a later attempt can succeed.
    pub fn is_full(&self) -> bool {
        matches!(self, SendError::Full { .. })
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::Full { to, .. } => write!(
                f,
                "the edge to endpoint {to} is full; wait for poll_room, or raise ring_slots"
            ),
            SendError::Closed { to, .. } => write!(f, "endpoint {to} is gone; send it to another"),
            SendError::Unknown { to, .. } => write!(f, "the mesh has no endpoint {to}"),
        }
    }
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, to) = match self {
            SendError::Full { to, .. } => ("Full", to),
            SendError::Closed { to, .. } => ("Closed", to),
            SendError::Unknown { to, .. } => ("Unknown", to),
        };
        f.debug_struct(name).field("to", to).finish_non_exhaustive()
    }
}

impl<T> std::error::Error for SendError<T> {}

/// Result of a [broadcast](crate::Endpoint::broadcast).
#[derive(Debug)]
#[must_use = "messages that were refused are in here"]
pub struct BroadcastOutcome<T> {
    /// Number of endpoints it was sent to.
    pub sent: usize,
    /// Messages that were not sent. Allocates only if there are any.
    pub refused: Vec<SendError<T>>,
}
