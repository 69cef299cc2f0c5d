//! Sessions, channels, history, presence and outboxes, without I/O or clock.

#![forbid(unsafe_code)]

mod channel;
pub mod code;
mod command;
mod config;
mod encode;
mod error;
mod event;
mod frame_log;
mod glob;
mod history;
mod home_channel;
mod hub;
mod idempotency;
mod message;
mod named;
mod options;
mod outbox;
mod position;
mod publication;
mod request;
mod session;
mod session_id;
mod slots;
mod transmit;
mod user;
mod worker_set;

pub use command::{
    DisconnectUser, Flush, HistoryFilter, NewSession, SessionView, Stats, Subscribe, SubscribeUser,
    UnsubscribeUser,
};
pub use config::{HubConfig, Now};
pub use encode::{ENCODINGS_MAX, Encode, Encoding, Push};
pub use error::Error;
pub use event::{ChannelSummary, Event, History, Info, PresenceStats, Published, Subscribed};
pub use hub::Hub;
pub use message::Message;
pub use options::{ChannelOptions, Overflow};
pub use position::{Epoch, StreamPosition};
pub use publication::{ClientInfo, Publication, Publish, Tags};
pub use session_id::{
    BOOTS_MAX, InvalidSessionId, NODES_MAX, SESSIONS_MAX, SessionId, WORKERS_MAX,
};
