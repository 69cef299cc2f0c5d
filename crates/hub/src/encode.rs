//! The interface between the hub, which decides who receives what and in which order, and the
//! protocols, which encode it.

use crate::position::StreamPosition;
use crate::publication::{ClientInfo, PayloadFormat, Publication};
use crate::tenant::bare;

/// The encoding of a session's pushes: an index below [`ENCODINGS_MAX`]. The [`Encode`]
/// implementation gives it a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EncodingId(pub u8);

/// The maximum number of encodings; a subscriber entry has five bits for one.
pub const ENCODINGS_MAX: usize = 32;

/// Encodes pushes: once per worker and encoding, not per client.
pub trait Encode {
    /// Appends to `out` the complete bytes for the socket: a WebSocket frame, an SSE event, a line
    /// of JSON. Appends nothing when the encoding does not have this push; its sessions then
    /// receive nothing. Must not change what `out` already holds.
    fn encode(&mut self, encoding: EncodingId, outgoing: &Outgoing<'_>, out: &mut Vec<u8>);

    /// Appends the delta from `source` to `target`, for [`Outgoing::Delta`]. Appends nothing if deltas are not
    /// supported; every publication is then sent in full. The delta of two texts is a text.
    fn encode_delta(&mut self, source: &[u8], target: &[u8], out: &mut Vec<u8>) {
        let _ = (source, target, out);
    }

    /// Whether the raw JSON about a connection ([`NewSession::conn_info`](crate::NewSession)) names this device.
    fn is_of_device(&self, conn_info: &[u8], device: &str) -> bool {
        let _ = (conn_info, device);
        false
    }
}

/// The delta of a payload from the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patch<'a> {
    /// The output of [`Encode::encode_delta`].
    pub bytes: &'a [u8],
    /// Both payloads are JSON on one line, so JSON encodings may use the delta.
    pub is_text: bool,
}

/// A push from the hub to clients.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Outgoing<'a> {
    /// A message of a channel.
    Publication {
        /// The channel.
        channel: &'a str,
        /// The message.
        publication: &'a Publication,
    },
    /// A message of a channel for subscribers with delta compression.
    Delta {
        /// The channel.
        channel: &'a str,
        /// The message.
        publication: &'a Publication,
        /// The delta from the previous message; `None`: send the message in full.
        patch: Option<Patch<'a>>,
    },
    /// A client subscribed.
    Join {
        /// The channel.
        channel: &'a str,
        /// The client.
        info: &'a ClientInfo,
        /// No other session of this user was subscribed. Always `true` if [users are not
        /// counted](crate::ChannelOptions::presence_users_max).
        of_user: bool,
    },
    /// A client unsubscribed.
    Leave {
        /// The channel.
        channel: &'a str,
        /// The client.
        info: &'a ClientInfo,
        /// No other session of this user is subscribed any more. Always `true` if users are not counted.
        of_user: bool,
    },
    /// The server ended the subscription. Codes from 2500: subscribe again.
    Unsubscribe {
        /// The channel.
        channel: &'a str,
        /// One of [`crate::code`]'s unsubscribe codes, or the API caller's.
        code: u32,
        /// The reason as text.
        reason: &'a str,
    },
    /// The server subscribed the client.
    Subscribe {
        /// The channel.
        channel: &'a str,
        /// Where the subscription begins.
        position: StreamPosition,
        /// The client may recover from a position after a reconnect.
        recoverable: bool,
        /// The client can use offsets.
        positioned: bool,
        /// Raw JSON from the API caller that subscribed the client.
        data: Option<&'a [u8]>,
    },
    /// Publications of the channel were dropped because the client reads too slowly.
    Missed {
        /// The channel.
        channel: &'a str,
        /// The number of dropped publications.
        count: u64,
    },
    /// The last push before the connection is closed.
    Disconnect {
        /// One of [`crate::code`]'s disconnect codes, or the API caller's.
        code: u32,
        /// The reason as text.
        reason: &'a str,
        /// Whether the client should reconnect.
        reconnect: bool,
    },
    /// A message for this session only.
    Message {
        /// The payload.
        data: &'a [u8],
        /// The format of the payload.
        format: PayloadFormat,
    },
}

impl Outgoing<'_> {
    /// The same push with the channel's name without the [tenant](crate::tenant).
    pub fn bare(mut self) -> Self {
        match &mut self {
            Outgoing::Publication { channel, .. }
            | Outgoing::Delta { channel, .. }
            | Outgoing::Join { channel, .. }
            | Outgoing::Leave { channel, .. }
            | Outgoing::Unsubscribe { channel, .. }
            | Outgoing::Subscribe { channel, .. }
            | Outgoing::Missed { channel, .. } => *channel = bare(channel),
            Outgoing::Disconnect { .. } | Outgoing::Message { .. } => {}
        }
        self
    }
}
