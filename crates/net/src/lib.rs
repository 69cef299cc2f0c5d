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

pub mod http;
pub mod redis;
pub mod websocket;

mod core;
mod protocols;

pub use protocols::UpgradeError;

pub use core::{
    Admit, ClientTls, CloseReason, ConnId, ConnectConfig, Context, Descriptors, EventLoop, Exit,
    Handler, Inbox, Interest, Limits, ListenConfig, ListenerId, LoopConfig, LoopGone,
    ProtocolError, Ready, Remote, ResolveError, Role, ServerTls, Sleep, Stats, TIME_SLICE_MAX,
    TimerId, Tls, WorkerConfig, Workers, WriteError, open_listener, pin, remote_pair,
    set_time_slice, spawn_workers,
};
