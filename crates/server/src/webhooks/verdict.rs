//! What became of a request, as far as it decides what to do next.

use std::sync::Arc;

use dunlin_pipeline::{Answer, ErrorKind, Outcome, RequestError};
use dunlin_wire::http1::retry_after;

/// The longest that a backend's `Retry-After` is believed.
const AFTER_MS_MAX: u64 = 600_000;

/// How a request to a backend ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// 2xx: it is done.
    Delivered,
    /// The backend does not want it, whoever is asked and how often: any other status.
    Refused { status: u16 },
    /// Not now: 408, 425, 429, 5xx. `after_ms` is its `Retry-After`.
    Busy { status: u16, after_ms: Option<u64> },
    /// It never left: no connection, no name, no trust.
    Unreachable(Arc<str>),
    /// No answer in time.
    TimedOut,
    /// The connection ended, or what came is no answer.
    Broken(Arc<str>),
    /// The member it was for is not there any more; nothing is known against anybody.
    Moved,
}

impl Verdict {
    /// Judges an outcome. `now_s` is the time since 1970, for dates in `Retry-After`.
    pub(crate) fn of(outcome: &Outcome<'_>, now_s: u64) -> Verdict {
        match outcome {
            Outcome::Answered(answer) => Verdict::of_answer(answer, now_s),
            Outcome::NotSent(error) => match error.kind {
                ErrorKind::Removed | ErrorKind::Shutdown => Verdict::Moved,
                _ => Verdict::Unreachable(told(error)),
            },
            Outcome::Failed(error) | Outcome::Uncertain(error) => match error.kind {
                ErrorKind::Removed | ErrorKind::Shutdown => Verdict::Moved,
                ErrorKind::AnswerTimeout => Verdict::TimedOut,
                _ => Verdict::Broken(told(error)),
            },
        }
    }

    fn of_answer(answer: &Answer<'_>, now_s: u64) -> Verdict {
        match answer.status {
            200..=299 => Verdict::Delivered,
            status @ (408 | 425 | 429 | 500..=599) => {
                let said = answer.head.header("retry-after");
                let said = said.and_then(|value| std::str::from_utf8(value).ok());
                let after = said.and_then(|value| retry_after::parse(value, now_s));
                let after_ms = after.map(|after| (after.as_millis() as u64).min(AFTER_MS_MAX));
                Verdict::Busy { status, after_ms }
            }
            status => Verdict::Refused { status },
        }
    }
}

/// What a person is told of it; who was asked stands beside it.
fn told(error: &RequestError) -> Arc<str> {
    error.kind.to_string().into()
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Delivered => f.write_str("delivered"),
            Verdict::Refused { status: status @ 300..=399 } => {
                write!(
                    f,
                    "answered {status}; redirects are not followed, set `path` or the member's address to where it leads"
                )
            }
            Verdict::Refused { status } => {
                write!(f, "answered {status}, which is not retried; look at the backend's log")
            }
            Verdict::Busy { status, after_ms: None } => write!(f, "answered {status}"),
            Verdict::Busy { status, after_ms: Some(after_ms) } => {
                write!(f, "answered {status}, to be asked again in {} s", after_ms.div_ceil(1000))
            }
            Verdict::TimedOut => f.write_str(
                "no answer within `timeout_ms`; raise it, or look why the backend is slow",
            ),
            Verdict::Unreachable(why) | Verdict::Broken(why) => f.write_str(why),
            Verdict::Moved => f.write_str("the member was removed"),
        }
    }
}
