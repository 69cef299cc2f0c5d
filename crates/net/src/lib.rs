//! Event loop, timing wheel, and TCP, HTTP and WebSocket servers and clients.
//!
//! A thread owns an [`EventLoop`]; the loop owns connections and calls a [`Handler`]; the handler answers
//! through a [`Context`]. There is no task, no future and no closure a connection: an idle one is a record of
//! forty bytes and the handler's own data, and a million of them fit in one thread.
//!
//! ```no_run
//! use dunlin_net::http::{Request, Response};
//! use dunlin_net::{ConnId, Context, EventLoop, Handler, ListenConfig, LoopConfig};
//!
//! struct Hello;
//!
//! impl Handler for Hello {
//!     type Data = ();
//!
//!     fn on_request(&mut self, cx: &mut Context<()>, conn: ConnId, _: &Request<'_>) {
//!         let _ = cx.respond(conn, &Response::text("hello\n"));
//!     }
//! }
//!
//! let mut event_loop = EventLoop::new(LoopConfig::default())?;
//! event_loop.context().listen("127.0.0.1:8080".parse().unwrap(), &ListenConfig::http())?;
//! event_loop.run(&mut Hello)?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! - Connections: [`Context::listen`], [`Context::connect`] (with [`Tls`] if wanted), [`Context::connect_unix`]; named by [`ConnId`], which goes stale.
//! - Protocols: raw TCP, [`http`], [`websocket`], each for servers and clients; [`redis`] for clients.
//! - Time: a deadline a connection ([`Context::set_deadline`]), timers ([`Context::run_after`],
//!   [`Context::run_every`]), time-outs of the loop's own ([`Limits`]).
//! - Threads: [`spawn_workers`], each with a loop and, if wanted, a descriptor table of its own; [`Remote`]
//!   runs closures in a loop from outside.
//! - Bounds: [`LoopConfig`] and [`Limits`] say what peers can make a loop cost.
//!
//! Output is corked: what a turn of the loop writes to a connection leaves in one system call at its end.

#![deny(unsafe_code)]

mod config;
mod conn;
mod connect;
mod context;
mod ending;
mod error;
mod event_loop;
mod handler;
pub mod http;
mod listener;
pub mod redis;
mod remote;
mod signal;
mod slab;
mod spill;
mod stats;
mod stream;
mod time_slice;
mod timer;
mod tls;
mod token;
pub mod websocket;
mod wheel;
mod worker;

pub use config::{ConnectConfig, Limits, ListenConfig, LoopConfig, Role};
pub use conn::ConnId;
pub use context::{Context, ListenerId, TimerId};
pub use error::{CloseReason, WriteError};
pub use event_loop::EventLoop;
pub use handler::{Admit, Handler, ProtocolError, Sleep};
pub use listener::open_listener;
pub use remote::{Inbox, LoopGone, Remote, remote_pair};
pub use stats::Stats;
pub use time_slice::{TIME_SLICE_MAX, set_time_slice};
pub use tls::{ClientTls, Tls};
pub use worker::{Descriptors, Exit, WorkerConfig, Workers, pin, spawn_workers};
