//! Errors of backend requests.

use std::fmt;

use dunlin_protocol::centrifuge::{Error, ErrorCode};

use super::stats::ProxyMetric;

/// Why a request has no decision. The client learns the kind; details go to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyError {
    /// No connection could be opened, or it broke.
    Unreachable(String),
    /// No response within `timeout_ms`, or no connection within `queue_timeout_ms`.
    TimedOut,
    /// The queue of waiting requests is full.
    Overflow,
    /// The user or address of the client has its share of the queue, or of the commands that may wait.
    ShareFull,
    /// No backend is available: circuits are open, or health checks fail.
    BreakerOpen,
    /// A response with a status other than 200.
    Status(u16),
    /// The response is longer than `answer_bytes_max`.
    TooLong,
    /// The response is malformed.
    Malformed(String),
    /// The proxy was changed or removed while the request waited.
    Cancelled,
    /// A program has failed; it was logged and counted.
    Program,
    /// A program leaves the decision to the settings.
    Undecided,
}

impl ProxyError {
    /// The metric that counts it.
    pub fn metric(&self) -> ProxyMetric {
        match self {
            ProxyError::Unreachable(_)
            | ProxyError::Cancelled
            | ProxyError::Program
            | ProxyError::Undecided => ProxyMetric::Unreachable,
            ProxyError::TimedOut => ProxyMetric::TimedOut,
            ProxyError::Overflow | ProxyError::ShareFull => ProxyMetric::Overflow,
            ProxyError::BreakerOpen => ProxyMetric::BreakerOpen,
            ProxyError::Status(_) => ProxyMetric::Status,
            ProxyError::TooLong | ProxyError::Malformed(_) => ProxyMetric::Malformed,
        }
    }

    /// Returns the error for the client. All are temporary and reveal nothing about the backend.
    pub fn reply(&self) -> Error<'static> {
        match self {
            ProxyError::Overflow | ProxyError::ShareFull => ErrorCode::TooManyRequests.into(),
            ProxyError::Undecided => ErrorCode::PermissionDenied.into(),
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
            ProxyError::ShareFull => {
                f.write_str("too many requests of one user or address wait for it (queue_max)")
            }
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
            ProxyError::Program => f.write_str("the program has failed"),
            ProxyError::Undecided => f.write_str("the program leaves it to the settings"),
            ProxyError::Cancelled => f.write_str("the proxy was changed while the request waited"),
        }
    }
}
