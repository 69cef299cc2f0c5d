//! The Pusher Channels protocol, version 7, as `pusher-js` and Laravel Echo speak it over WebSocket.
//!
//! Each WebSocket message is one JSON object with the name of an event. Clients send [`Message`]s; [`event`] writes the
//! server's events. Clients prove by signatures which channels they may subscribe to. The caller computes those of
//! [`private_channel_text`], [`presence_channel_text`] and [`sign_in_text`]. Source: the pages "Pusher Channels
//! Protocol" and "Authenticating users" of pusher.com/docs/channels.
//!
//! A Pusher channel is the channel `namespace:name` of the hub, so that clients of other protocols can share it. An
//! event's name is the publication's tag [`EVENT_TAG`]. Its data is the payload. Pusher's libraries send JSON in a
//! string; the payload is that JSON if it is valid, and a JSON string otherwise.

mod channel;
mod code;
pub mod event;
mod message;
mod payload;
mod socket_id;

pub use channel::{
    ChannelKind, NAME_BYTES_MAX, is_name, pusher_name, server_to_user, server_to_user_channel,
};
pub use code::PusherCode;
pub use message::{Message, MessageError, Messages, SignIn, Subscribe};
pub use payload::{EVENT_TAG, Member, is_reserved, payload_of_text, write_user_id};
pub use socket_id::{SocketId, presence_channel_text, private_channel_text, sign_in_text};

/// Supported versions of the protocol. Before 5, payloads were not strings, and events had other names.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 5..=7;
/// Maximum length of an event's name in bytes.
pub const EVENT_NAME_BYTES_MAX: usize = 200;
/// Maximum length of a user's id in bytes.
pub const USER_ID_BYTES_MAX: usize = 128;
