//! Sessions, channels, history, presence and outboxes, without I/O or clock.

#![forbid(unsafe_code)]

pub mod code;
mod config;
mod encode;
mod error;
mod event;
mod hub;
mod options;
mod position;
mod publication;
mod requests;
mod session_id;

pub use config::{HubConfig, Now};
pub use encode::{ENCODINGS_MAX, Encode, Encoding, Push};
pub use error::Error;
pub use event::{ChannelSummary, Event, History, Info, PresenceStats, Published, Subscribed};
pub use hub::{Hub, Message};
pub use options::{ChannelOptions, Overflow};
pub use position::{Epoch, StreamPosition};
pub use publication::{ClientInfo, Publication, Publish, Tags};
pub use requests::{
    DisconnectUser, Flush, HistoryFilter, NewSession, SessionView, Stats, Subscribe, SubscribeUser,
    UnsubscribeUser,
};
pub use session_id::{
    BOOTS_MAX, InvalidSessionId, NODES_MAX, SESSIONS_MAX, SessionId, WORKERS_MAX,
};
