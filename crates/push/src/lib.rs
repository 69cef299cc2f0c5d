#![doc = include_str!("../README.md")]
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]

pub mod apns;
mod connect;
mod dial;
#[cfg(feature = "fcm")]
pub mod fcm;
#[cfg(feature = "store")]
pub mod journal;
mod key_text;
mod names;
#[cfg(feature = "notification")]
pub mod notification;
mod origin;
mod outcome;
#[cfg(feature = "store")]
pub mod registry;
mod request;
mod sender;
mod service;
#[cfg(feature = "store")]
mod store;
mod tunnel;
#[cfg(feature = "web-push")]
pub mod web_push;

pub use key_text::base64 as decode_base64;

pub use connect::{Connect, ConnectError, ConnectFault, Connecting, Io, Stage, Stream};
pub use dial::Dialer;
pub use origin::{ClientIdentity, Origin, OriginError, Proxy, ProxyKind};
pub use outcome::{
    Accepted, NotSent, Outcome, OutcomeCounts, OutcomeJson, OutcomeKind, Rejected, Timings,
    Uncertain,
};
pub use request::{Class, ConnectionGroup, Header, Request};
pub use sender::concurrency::ConcurrencyLimit;
pub use sender::{
    Binding, ConnectionMetrics, Connections, ResultStream, Results, Sender, SenderConfig,
    SenderMetrics, results,
};
pub use service::{Attempt, Authorization, CredentialError, ResponseAction, Service};

pub use dunlin_wire::backoff::Backoff;
pub use dunlin_wire::http2::client::Response;
pub use dunlin_wire::http2::hpack::Indexing;
/// The version of the certificate and key types in [`Origin`] and [`ClientIdentity`].
pub use rustls;

/// Returns a hash of the recipient of a request.
#[cfg(any(feature = "fcm", feature = "web-push"))]
fn subject(text: &str) -> u64 {
    hash(text)
}

fn hash(value: impl std::hash::Hash) -> u64 {
    use std::hash::BuildHasher;
    foldhash::fast::FixedState::default().hash_one(value)
}
