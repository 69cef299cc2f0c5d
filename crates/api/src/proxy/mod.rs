//! Proxies to backends that decide about clients' operations: requests, responses and errors. The fields are Centrifugo's (its
//! docs, "Proxy events to the backend"), so that a backend need not change.
//!
//! No I/O and no clock: the worker sends the requests (`worker::proxy`) and keeps those that wait.

mod decided;
mod error;
mod request;
mod response;
mod result;
mod stats;

pub use self::decided::{AnyDecision, ProxyReply};
pub use self::decided::{DecisionResult, Denial};
pub use self::error::ProxyError;
pub use self::request::{Question, Requester};
pub use self::response::{BackendDecision, cache_ttl_ms, payload};
pub use self::response::{ConnectResult, PublishResult, RefreshResult, RpcResult, SubscribeResult};
pub use self::stats::{ProxiesStats, ProxyMetric, ProxyStats};

/// The operation that a backend decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client connects.
    Connect,
    /// A client subscribes.
    Subscribe,
    /// A client publishes.
    Publish,
    /// A client calls a procedure.
    Rpc,
    /// A connection expires.
    Refresh,
    /// A subscription expires.
    SubRefresh,
}

impl Event {
    /// Returns the name of the client's command.
    pub const fn name(self) -> &'static str {
        match self {
            Event::Connect => "connect",
            Event::Subscribe => "subscribe",
            Event::Publish => "publish",
            Event::Rpc => "rpc",
            Event::Refresh => "refresh",
            Event::SubRefresh => "sub_refresh",
        }
    }

    /// Whether the request may be repeated. A publish or a procedure may have an effect, so it is sent once.
    pub fn is_question(self) -> bool {
        !matches!(self, Event::Publish | Event::Rpc)
    }

    /// Whether the server initiates the request, so that no command of the client waits for it.
    pub fn is_unasked(self) -> bool {
        matches!(self, Event::Refresh | Event::SubRefresh)
    }
}
