//! The loop and its streams: connection records, timing wheel, listeners, outgoing connections, TLS.
//!
//! The protocols that a handler names interpret the bytes, through the trait [`driver::Driver`]. The core stores their
//! state: for an idle connection in its record, for incomplete input or output in its [`spill`], and for all
//! connections together in the [`context`]. The types of this state are named in [`upper`], so that no module here
//! imports a protocol.

pub(crate) mod close;
pub(crate) mod coalesce;
pub(crate) mod config;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod context;
pub(crate) mod dial;
pub(crate) mod driver;
pub(crate) mod error;
pub(crate) mod event_loop;
pub(crate) mod foreign;
pub(crate) mod handler;
pub(crate) mod heap;
pub(crate) mod listener;
pub(crate) mod proxy;
pub(crate) mod random;
#[cfg(feature = "tls")]
pub(crate) mod record;
pub(crate) mod remote;
pub(crate) mod resolver;
pub(crate) mod server;
pub(crate) mod signal;
pub(crate) mod slab;
pub(crate) mod spill;
pub(crate) mod starttls;
pub(crate) mod stats;
pub(crate) mod stream;
pub(crate) mod time_slice;
pub(crate) mod timer;
#[cfg_attr(not(feature = "tls"), path = "tls_absent.rs")]
pub(crate) mod tls;
pub(crate) mod token;
pub(crate) mod unauthenticated;
pub(crate) mod upper;
pub(crate) mod url;
pub(crate) mod wheel;
pub(crate) mod worker;

pub use config::{ConnectConfig, Limits, ListenConfig, LoopConfig, Role};
pub use connection::ConnId;
pub use context::{Context, ListenerId, TimerId};
pub use error::{BeginTlsError, CloseReason, WriteError};
pub use event_loop::EventLoop;
pub use foreign::{Interest, Ready};
pub use handler::{Admit, Handler, Protocols, Sleep};
pub use heap::{free_heap_bytes, trim_heap};
pub use listener::open_listener;
pub use remote::{Inbox, LoopGone, Remote, remote_pair};
pub use resolver::ResolveError;
pub use server::{Server, ServerConfig, start, start_with};
pub use stats::Stats;
pub use time_slice::{TIME_SLICE_MAX, set_time_slice};
pub use tls::{ClientTls, ServerTls, Tls};
pub use url::{ServerAddr, Url, UrlError};
pub use worker::{Descriptors, Exit, WorkerConfig, Workers, pin, spawn_workers};
