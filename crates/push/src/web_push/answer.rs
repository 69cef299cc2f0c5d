//! What a push service's answer means (RFC 8030 §5, §7.3, §8.4).

use std::time::Duration;

use dunlin_wire::http1::retry_after;

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebPushAnswer {
    /// The service took it; `location` names it, where the service says so.
    Accepted {
        /// The `location` header.
        location: Option<String>,
    },
    /// The subscription is over: drop it (404, 410).
    Gone,
    /// The message is at fault, or who sends it: again would change nothing.
    Refused {
        /// The HTTP status.
        status: u16,
        /// What the service says about it, shortened.
        reason: String,
    },
    /// Later (429, 5xx).
    Retry {
        /// The HTTP status.
        status: u16,
        /// When the service asks to be asked again.
        after: Option<Duration>,
    },
}

/// Bytes of a reason that are kept.
const REASON_BYTES_MAX: usize = 200;

/// Judges an answer. `header` gives a header's value by its name in lower case; `now_s` is for a `Retry-After` that
/// names a date.
pub fn judge<'h>(
    status: u16,
    header: impl Fn(&str) -> Option<&'h str>,
    body: &[u8],
    now_s: u64,
) -> WebPushAnswer {
    match status {
        200..=299 => WebPushAnswer::Accepted { location: header("location").map(str::to_owned) },
        404 | 410 => WebPushAnswer::Gone,
        408 | 429 | 500..=599 => {
            let after = header("retry-after").and_then(|text| retry_after::parse(text, now_s));
            WebPushAnswer::Retry { status, after }
        }
        _ => {
            let text = String::from_utf8_lossy(&body[..body.len().min(REASON_BYTES_MAX)]);
            let reason = text.split_whitespace().collect::<Vec<_>>().join(" ");
            WebPushAnswer::Refused { status, reason }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_whether_to_keep_the_subscription_and_when_to_try_again() {
        let none = |_: &str| None;
        let location = |name: &str| (name == "location").then_some("https://p.example/m/1");
        let accepted = WebPushAnswer::Accepted { location: Some("https://p.example/m/1".into()) };
        assert_eq!(judge(201, location, b"", 0), accepted);
        assert_eq!(judge(404, none, b"", 0), WebPushAnswer::Gone);
        assert_eq!(judge(410, none, b"", 0), WebPushAnswer::Gone);
        let after = |name: &str| (name == "retry-after").then_some("120");
        let retry = |status, after| WebPushAnswer::Retry { status, after };
        assert_eq!(judge(429, after, b"", 0), retry(429, Some(Duration::from_secs(120))));
        assert_eq!(judge(503, none, b"", 0), retry(503, None));
        let refused = WebPushAnswer::Refused { status: 403, reason: "bad key".into() };
        assert_eq!(judge(403, none, b" bad\n key ", 0), refused);
    }
}
