//! The Centrifugal client protocol, version 2, in JSON.
//!
//! A client sends [`Command`]s, the server sends [`Reply`]s; a reply without an id is a push, or, if it is empty, a
//! ping. Several of either may share a frame, one a line. Source: `client.proto` in centrifugal/protocol and the
//! client protocol chapters of centrifugal.dev.
//!
//! [`ProtocolState`] knows what may be said when; the numbers of errors and disconnects, and what they ask of the
//! client, are in [`ErrorCode`], [`UnsubscribeCode`] and [`DisconnectCode`].

mod code;
mod command;
mod push;
mod reply;
mod state;

pub use code::{
    Advice, Disconnect, DisconnectCode, Error, ErrorCode, REASON_BYTES_MAX, UnsubscribeCode,
    reconnects,
};
pub use command::{
    ChannelRequest, Command, Commands, ConnectRequest, HistoryRequest, Position, PublishRequest,
    RefreshRequest, Request, RpcRequest, SendRequest, SubRefreshRequest, SubscribeRequest,
};
pub use push::{write_connect_push, write_push, write_refresh_push};
pub(crate) use reply::write_publication_rest;
pub use reply::{
    ConnectResult, RefreshResult, Reply, SubscribeResult, write_client_info, write_epoch,
    write_presence, write_publication, write_publications,
};
pub use state::{Admission, CommandError, ConnectPhase, ProtocolState};
