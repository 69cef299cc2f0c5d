//! Results of requests to a backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Maximum `Retry-After` in milliseconds; longer ones are shortened.
const RETRY_AFTER_MS_MAX: u64 = 600_000;

/// Result of a request to a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    /// 2xx.
    Delivered,
    /// A status that is neither 2xx nor retried: a retry would get the same response.
    Rejected {
        /// The status.
        status: u16,
    },
    /// 408, 425, 429, 5xx: retried later.
    Busy {
        /// The status.
        status: u16,
        /// The response's `Retry-After`.
        retry_after_ms: Option<u64>,
    },
    /// The request was not sent because name resolution, connecting or TLS failed.
    Unreachable(Arc<str>),
    /// No response in time.
    TimedOut,
    /// The request was sent, but no valid response was received.
    Broken(Arc<str>),
    /// The member was removed during the request; its state is unknown.
    Cancelled,
}

impl DeliveryResult {
    /// Returns the result for a response. `retry_after` is from its header.
    pub fn from_status(status: u16, retry_after: Option<Duration>) -> DeliveryResult {
        match status {
            200..=299 => DeliveryResult::Delivered,
            408 | 425 | 429 | 500..=599 => DeliveryResult::Busy {
                status,
                retry_after_ms: retry_after
                    .map(|after| (after.as_millis() as u64).min(RETRY_AFTER_MS_MAX)),
            },
            _ => DeliveryResult::Rejected { status },
        }
    }

    /// Returns whether this result opens the circuit of the member.
    pub(crate) fn opens_circuit(&self) -> bool {
        match self {
            DeliveryResult::Unreachable(_)
            | DeliveryResult::TimedOut
            | DeliveryResult::Broken(_) => true,
            DeliveryResult::Busy { status, retry_after_ms } => {
                matches!(status, 429 | 503) || retry_after_ms.is_some()
            }
            DeliveryResult::Delivered
            | DeliveryResult::Rejected { .. }
            | DeliveryResult::Cancelled => false,
        }
    }
}

impl fmt::Display for DeliveryResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeliveryResult::Delivered => f.write_str("delivered"),
            DeliveryResult::Rejected { status: status @ 300..=399 } => {
                write!(
                    f,
                    "answered {status}; redirects are not followed, set `path` or the member's address to where it leads"
                )
            }
            DeliveryResult::Rejected { status } => {
                write!(f, "answered {status}, which is not retried; look at the backend's log")
            }
            DeliveryResult::Busy { status, retry_after_ms: None } => write!(f, "answered {status}"),
            DeliveryResult::Busy { status, retry_after_ms: Some(after_ms) } => {
                write!(f, "answered {status} with Retry-After: {} s", after_ms.div_ceil(1000))
            }
            DeliveryResult::TimedOut => f.write_str(
                "no answer within `timeout_ms`; raise it, or look why the backend is slow",
            ),
            DeliveryResult::Unreachable(why) | DeliveryResult::Broken(why) => f.write_str(why),
            DeliveryResult::Cancelled => f.write_str("the member was removed"),
        }
    }
}
