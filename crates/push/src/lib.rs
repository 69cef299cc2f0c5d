//! Push notifications, sent at the speed the connection allows, and none lost.
//!
//! A [`Sender`] holds one credential at one origin: a queue bounded in bytes, and HTTP/2 connections that
//! it opens while they pay for themselves. Each connection carries as many requests as its window, the
//! peer's stream limit and the path allow, says which of them binds, and no more, so that answers take a
//! round trip and not a queue. Every request ends exactly once, in an [`Outcome`].
//!
//! What differs between push services is a [`Service`]: how requests authenticate, and what an answer
//! means. [`apns`] is Apple's, [`fcm`] Google's, [`web_push`] the browsers'. A [`notification`] is spelled for each
//! of them; the [`registry`] knows which devices a user has.
//!
//! Everything runs on `tokio`, beside the workers: nothing on the way of a message to a connected client
//! waits for it.

#![forbid(unsafe_code)]

pub mod apns;
mod connect;
mod dial;
pub mod fcm;
pub mod journal;
mod names;
pub mod notification;
mod origin;
mod outcome;
pub mod registry;
mod request;
mod sender;
mod service;
mod tunnel;
pub mod web_push;

pub use connect::{Connect, ConnectError, ConnectFault, Connecting, Io, Stage, Stream};
pub use dial::Dialer;
pub use origin::{ClientIdentity, Origin, OriginError, Proxy};
pub use outcome::{
    Accepted, NotSent, Outcome, OutcomeCounts, OutcomeJson, OutcomeKind, Rejected, Uncertain,
};
pub use request::{Class, Header, Lane, Request};
pub use sender::concurrency::ConcurrencyLimit;
pub use sender::{
    Binding, ConnectionMetrics, Connections, QueueFull, ResultStream, Results, Sender,
    SenderConfig, SenderMetrics, results,
};
pub use service::{Attempt, Authorization, CredentialError, ResponseAction, Service};

pub use dunlin_wire::http2::client::Response;
pub use dunlin_wire::http2::hpack::Indexing;

/// A hash of whom a request is for.
fn subject(text: &str) -> u64 {
    hash(text)
}

fn hash(value: impl std::hash::Hash) -> u64 {
    use std::hash::BuildHasher;
    foldhash::fast::FixedState::default().hash_one(value)
}
