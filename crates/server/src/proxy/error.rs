//! Why a backend has not decided.

use std::fmt;

use dunlin_protocol::centrifuge::{Error, ErrorCode};

use super::stats::ProxyMetric;

/// Why there is no decision. The client gets the kind, the log the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProxyError {
    /// No connection could be opened, or it broke.
    Unreachable(String),
    /// No answer within `timeout_ms`, or no connection within `queue_timeout_ms`.
    TimedOut,
    /// As many requests wait as may.
    Overflow,
    /// No backend is available: circuits are open, or health checks fail.
    BreakerOpen,
    /// An answer with another status than 200.
    Status(u16),
    /// The answer is longer than `answer_bytes_max`.
    TooLong,
    /// The answer is not what it should be.
    Malformed(String),
    /// The proxy was changed or removed while the request waited.
    Cancelled,
}

impl ProxyError {
    /// What counts it.
    pub(crate) fn metric(&self) -> ProxyMetric {
        match self {
            ProxyError::Unreachable(_) | ProxyError::Cancelled => ProxyMetric::Unreachable,
            ProxyError::TimedOut => ProxyMetric::TimedOut,
            ProxyError::Overflow => ProxyMetric::Overflow,
            ProxyError::BreakerOpen => ProxyMetric::BreakerOpen,
            ProxyError::Status(_) => ProxyMetric::Status,
            ProxyError::TooLong | ProxyError::Malformed(_) => ProxyMetric::Malformed,
        }
    }

    /// What the client is answered. All are temporary, and say nothing of the backend.
    pub(crate) fn reply(&self) -> Error<'static> {
        match self {
            ProxyError::Overflow => ErrorCode::TooManyRequests.into(),
            _ => ErrorCode::Internal.into(),
        }
    }
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProxyError::Unreachable(why) => f.write_str(why),
            ProxyError::TimedOut => f.write_str("no answer in time (timeout_ms, queue_timeout_ms)"),
            ProxyError::Overflow => f.write_str("too many requests wait for it (queue_max)"),
            ProxyError::BreakerOpen => {
                f.write_str(
                "nobody is asked: it has not answered (breaker_failures_max), fails its checks, or is down",
            )
            }
            ProxyError::Status(status) => {
                write!(f, "it answered with status {status}; 200 is expected")
            }
            ProxyError::TooLong => f.write_str("its answer is longer than answer_bytes_max"),
            ProxyError::Malformed(why) => write!(f, "its answer is not valid: {why}"),
            ProxyError::Cancelled => f.write_str("the proxy was changed while the request waited"),
        }
    }
}
