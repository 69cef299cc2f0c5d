//! The Centrifugal client protocol, version 2, in JSON and Protobuf.
//!
//! Both formats are read into the same [`Command`] and written from the same [`Reply`], so the server behaves the same
//! in both.
//!
//! A client sends [`Command`]s, the server sends [`Reply`]s. A reply without an id is a push, or a ping if it is empty.
//! A frame may contain several messages: one per line in JSON, length-delimited in Protobuf. Source: `client.proto` in
//! centrifugal/protocol and the client protocol chapters of centrifugal.dev.
//!
//! [`ProtocolState`] checks the order of commands. Codes are in [`ErrorCode`], [`UnsubscribeCode`]
//! and [`DisconnectCode`].

mod ack;
mod code;
mod command;
mod commands;
mod filter_node;
pub(crate) mod protobuf;
mod push;
mod remote_send;
mod reply;
mod state;

pub use ack::{ACK, AckRequest, UNREAD, with_cursor, write_cursor};
pub use code::{Disconnect, DisconnectCode, Error, ErrorCode, REASON_BYTES_MAX, UnsubscribeCode};
pub use command::{
    ChannelRequest, Command, ConnectRequest, HistoryRequest, Position, PublishRequest,
    RefreshRequest, Request, RpcRequest, SendRequest, SubRefreshRequest, SubscribeRequest,
};
pub use commands::Commands;
pub use filter_node::FilterNode;
pub use push::{write_connect_push, write_push, write_refresh_push};
pub use remote_send::{RemoteSend, SEND};
pub(crate) use reply::write_publication_members;
pub use reply::{
    ConnectResult, RefreshResult, Reply, SubscribeResult, write_client_info, write_epoch,
    write_presence, write_publication, write_publications,
};
pub use state::{Admission, CommandError, ConnectPhase, ProtocolState};
