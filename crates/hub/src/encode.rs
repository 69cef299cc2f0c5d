//! The interface between the hub, which decides who receives what and in which order, and the
//! protocols, which encode it.

use crate::position::StreamPosition;
use crate::publication::{ClientInfo, PayloadFormat, Publication};
use crate::tenant::bare;

/// The encoding of a session's pushes: an index below [`ENCODINGS_MAX`]. The [`Encode`]
/// implementation gives it a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EncodingId(pub u8);

/// Most encodings, as five bits of a subscriber entry hold one.
pub const ENCODINGS_MAX: usize = 32;

/// Encodes pushes: once per worker and encoding, not per client.
pub trait Encode {
    /// Appends to `out` the complete bytes for the socket: a WebSocket frame, an SSE event, a line
    /// of JSON. Appends nothing when the encoding does not have this push; its sessions then
    /// receive nothing. Must not change what `out` already holds.
    fn encode(&mut self, encoding: EncodingId, outgoing: &Outgoing<'_>, out: &mut Vec<u8>);

    /// Appends what makes `target` of `source`, for [`Outgoing::Delta`]; nothing where there are no differences, and every
    /// publication is sent whole. Text of text is text.
    fn encode_delta(&mut self, source: &[u8], target: &[u8], out: &mut Vec<u8>) {
        let _ = (source, target, out);
    }

    /// Whether the raw JSON about a connection ([`NewSession::conn_info`](crate::NewSession)) says that it is this device's.
    fn is_of_device(&self, conn_info: &[u8], device: &str) -> bool {
        let _ = (conn_info, device);
        false
    }
}

/// The difference of a payload from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patch<'a> {
    /// As [`Encode::encode_delta`] wrote it.
    pub bytes: &'a [u8],
    /// Both payloads are JSON on one line: encodings in JSON may use it.
    pub is_text: bool,
}

/// What the hub sends to clients by itself.
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
    /// A message of a channel, to subscribers that take differences.
    Delta {
        /// The channel.
        channel: &'a str,
        /// The message.
        publication: &'a Publication,
        /// What makes its payload of that of the message before; `None`: it is sent whole.
        patch: Option<Patch<'a>>,
    },
    /// Someone subscribed.
    Join {
        /// The channel.
        channel: &'a str,
        /// Who.
        info: &'a ClientInfo,
        /// No other session of this user was there. True of every one where [users are not
        /// counted](crate::ChannelOptions::presence_users_max).
        of_user: bool,
    },
    /// Someone unsubscribed.
    Leave {
        /// The channel.
        channel: &'a str,
        /// Who.
        info: &'a ClientInfo,
        /// No other session of this user is left, as of a join.
        of_user: bool,
    },
    /// The server ended the subscription. Codes from 2500: subscribe again.
    Unsubscribe {
        /// The channel.
        channel: &'a str,
        /// One of [`crate::code`]'s unsubscribe codes, or the API caller's.
        code: u32,
        /// For people.
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
        /// Offsets have a meaning for the client.
        positioned: bool,
        /// Raw JSON from the API caller that subscribed the client.
        data: Option<&'a [u8]>,
    },
    /// Publications of the channel were dropped here because the client does not keep up.
    Missed {
        /// The channel.
        channel: &'a str,
        /// How many.
        count: u64,
    },
    /// Sent last, before the connection is closed.
    Disconnect {
        /// One of [`crate::code`]'s disconnect codes, or the API caller's.
        code: u32,
        /// For people.
        reason: &'a str,
        /// The client should come back.
        reconnect: bool,
    },
    /// A message for this session alone.
    Message {
        /// The payload.
        data: &'a [u8],
        /// What it is.
        format: PayloadFormat,
    },
}

impl Outgoing<'_> {
    /// The same with the channel's name as it is outside of its [tenant](crate::tenant).
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
