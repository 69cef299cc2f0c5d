//! The Pusher Channels protocol, version 7, as `pusher-js` and Laravel Echo speak it over WebSocket.
//!
//! Each WebSocket message is one JSON object with the name of an event. A client sends [`Message`]s; the server's events are
//! written by [`event`]. Whether a client may subscribe follows from signatures, which are the caller's to compute: what is
//! signed is [`private_channel_text`], [`presence_channel_text`] and [`sign_in_text`]. Source: the pages "Pusher Channels
//! Protocol" and "Authenticating users" of pusher.com/docs/channels.
//!
//! A Pusher channel is the channel `namespace:name` of the hub, so that clients of other protocols can share it. An event's
//! name is the publication's tag [`EVENT_TAG`]; its data is the payload, which is JSON where the publisher sent JSON in a
//! string, as Pusher's libraries do, and a JSON string otherwise.

mod channel;
mod code;
pub mod event;
mod message;
mod payload;
mod socket_id;

pub use channel::{ChannelKind, NAME_BYTES_MAX, is_name, pusher_name, server_to_user};
pub use code::PusherCode;
pub use message::{Message, MessageError, Messages, SignIn, Subscribe};
pub use payload::{EVENT_TAG, Member, payload_of_text};
pub use socket_id::{SocketId, presence_channel_text, private_channel_text, sign_in_text};

/// Versions of the protocol that are spoken. Before 5 payloads were not text, and names of events differed.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 5..=7;
/// Longest name of an event, in bytes.
pub const EVENT_NAME_BYTES_MAX: usize = 200;
/// Longest id of a user, in bytes.
pub const USER_ID_BYTES_MAX: usize = 128;
