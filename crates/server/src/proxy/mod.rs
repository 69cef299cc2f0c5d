//! Backends that are asked before something is done: what they are sent, what they answer, and when they are left in
//! peace. The fields are Centrifugo's (its docs, "Proxy events to the backend"), so that a backend need not change.
//!
//! No I/O and no clock: the worker asks ([`worker::proxy`](crate::worker)), and its parts keep who waits.

mod decided;
mod error;
mod request;
mod response;
mod result;
mod stats;

pub(crate) use self::decided::{AnyDecision, ProxyReply};
pub use self::decided::{DecisionResult, Denial};
pub(crate) use self::error::ProxyError;
pub(crate) use self::request::{Question, Requester};
pub(crate) use self::response::{BackendDecision, cache_ttl_ms, payload};
pub use self::response::{ConnectResult, PublishResult, RefreshResult, RpcResult, SubscribeResult};
pub(crate) use self::stats::{ProxiesStats, ProxyMetric, ProxyStats};

/// What a backend is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Connect,
    Subscribe,
    Publish,
    Rpc,
    Refresh,
    SubRefresh,
}

impl Event {
    /// Whether the backend may be asked twice: a question has no effect, what a procedure does may not be done again.
    pub(crate) fn is_question(self) -> bool {
        !matches!(self, Event::Publish | Event::Rpc)
    }

    /// Whether the server asks by itself, and no command of the client waits.
    pub(crate) fn is_unasked(self) -> bool {
        matches!(self, Event::Refresh | Event::SubRefresh)
    }
}
