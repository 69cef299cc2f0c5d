//! Why a backend has not decided.

use std::fmt;

use dunlin_protocol::centrifuge::{Error, ErrorCode};

use super::stats::ProxyMetric;

/// Why there is no decision. The client gets the kind, the log the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No connection could be opened, or it broke.
    Unreachable(String),
    /// No answer within `timeout_ms`, or no connection within `queue_timeout_ms`.
    TimedOut,
    /// As many requests wait as may.
    Overflow,
    /// It is not asked at present: it did not answer those before.
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

impl Fault {
    /// What counts it.
    pub(crate) fn metric(&self) -> ProxyMetric {
        match self {
            Fault::Unreachable(_) | Fault::Cancelled => ProxyMetric::Unreachable,
            Fault::TimedOut => ProxyMetric::TimedOut,
            Fault::Overflow => ProxyMetric::Overflow,
            Fault::BreakerOpen => ProxyMetric::BreakerOpen,
            Fault::Status(_) => ProxyMetric::Status,
            Fault::TooLong | Fault::Malformed(_) => ProxyMetric::Malformed,
        }
    }

    /// What the client is answered. All are temporary, and say nothing of the backend.
    pub(crate) fn reply(&self) -> Error<'static> {
        match self {
            Fault::Overflow => ErrorCode::TooManyRequests.into(),
            _ => ErrorCode::Internal.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unreachable(why) => f.write_str(why),
            Fault::TimedOut => f.write_str("no answer in time (timeout_ms, queue_timeout_ms)"),
            Fault::Overflow => f.write_str("too many requests wait for it (queue_max)"),
            Fault::BreakerOpen => {
                f.write_str("it is not asked, for it has not answered (breaker_failures_max)")
            }
            Fault::Status(status) => write!(f, "it answered with status {status}; 200 is expected"),
            Fault::TooLong => f.write_str("its answer is longer than answer_bytes_max"),
            Fault::Malformed(why) => write!(f, "its answer is not valid: {why}"),
            Fault::Cancelled => f.write_str("the proxy was changed while the request waited"),
        }
    }
}
