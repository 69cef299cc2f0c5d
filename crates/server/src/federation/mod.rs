//! The federation thread: one link to each peer, on an event loop of its own.
//!
//! Workers reach it over the bus, whichever of them has the client: it owns all links, so that no peer's backlog, handshake or flood
//! takes time of clients. What decides is in the crate `federation`, which has neither sockets nor a clock.

mod peers;
mod queue;
mod thread;
mod tls;

pub(crate) use thread::FederationThread;
