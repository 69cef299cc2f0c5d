#![doc = include_str!("../README.md")]
#![warn(clippy::missing_errors_doc)]
#![deny(unsafe_code)]

pub mod http;
#[cfg(feature = "redis")]
pub mod redis;
pub mod websocket;

mod core;
mod protocols;
mod timeout;

pub use ipnet::IpNet;
pub use protocols::{Http, HttpHandler, Tcp, UpgradeError, WebSocket, WebSocketHandler};
/// The `rustls` version that [`Tls::from_config`] and [`ServerTls::from_config`] accept.
#[cfg(feature = "tls")]
pub use rustls;
pub use timeout::TimeoutMs;

pub use core::{
    Admit, BeginTlsError, ClientTls, CloseReason, ConnId, ConnectConfig, Context, Descriptors,
    EventLoop, Exit, Handler, Inbox, Interest, Limits, ListenConfig, ListenerId, LoopConfig,
    LoopGone, Protocols, Ready, Remote, ResolveError, Role, Server, ServerAddr, ServerConfig,
    ServerTls, Sleep, Stats, TIME_SLICE_MAX, TimerId, Tls, Url, UrlError, WorkerConfig, Workers,
    WriteError, free_heap_bytes, open_listener, pin, remote_pair, set_time_slice, spawn_workers,
    start, start_with, trim_heap,
};
