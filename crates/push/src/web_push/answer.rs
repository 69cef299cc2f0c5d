//! Responses of a push service (RFC 8030 §5, §7.3, §8.4).

use std::time::Duration;

use dunlin_wire::http1::retry_after;
use serde::Deserialize;

/// A response of a push service to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebPushAnswer {
    /// The service accepted it; `location` is its id, if there is one.
    Accepted {
        /// The `location` header.
        location: Option<String>,
    },
    /// The subscription is invalid: remove it (404, 410).
    Gone,
    /// The message or the sender's configuration is invalid: a retry would have the same result.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The service's reason, such as Apple's `BadJwtToken`, or that of the status.
        reason: String,
        /// The service's message, shortened.
        message: String,
    },
    /// Try again later (429, 5xx; Microsoft's service uses 406 instead of 429).
    Retry {
        /// The HTTP status.
        status: u16,
        /// The delay that the service requests.
        after: Option<Duration>,
    },
}

/// Most characters of a reason or a message.
const REASON_MAX: usize = 64;
const MESSAGE_MAX: usize = 200;

/// Classifies a response. `header` returns the value of a header by its lower-case name; `now_s` is used for a
/// `Retry-After` with a date.
pub fn classify<'h>(
    status: u16,
    header: impl Fn(&str) -> Option<&'h str>,
    body: &[u8],
    now_s: u64,
) -> WebPushAnswer {
    match status {
        200..=299 => WebPushAnswer::Accepted { location: header("location").map(str::to_owned) },
        404 | 410 => WebPushAnswer::Gone,
        406 | 408 | 429 | 500..=599 => {
            let after = header("retry-after").and_then(|text| retry_after::parse(text, now_s));
            WebPushAnswer::Retry { status, after }
        }
        _ => {
            let ErrorBody { reason, message } = ErrorBody::read(body);
            let word = match status {
                400 => "BadRequest",
                401 => "Unauthorized",
                403 => "Forbidden",
                413 => "PayloadTooLarge",
                _ => "Refused",
            };
            let reason = if reason.is_empty() { word.to_owned() } else { reason };
            WebPushAnswer::Refused { status, reason, message }
        }
    }
}

/// The body of a refusal: a reason from Apple, a JSON message from Mozilla, a text from Google.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorBody {
    reason: String,
    message: String,
}

impl ErrorBody {
    fn read(body: &[u8]) -> ErrorBody {
        let said = serde_json::from_slice::<ErrorBody>(body).unwrap_or_else(|_| {
            let message = String::from_utf8_lossy(body).into_owned();
            ErrorBody { message, ..ErrorBody::default() }
        });
        let line = |text: &str, max| {
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            words.chars().take(max).collect()
        };
        ErrorBody {
            reason: line(&said.reason, REASON_MAX),
            message: line(&said.message, MESSAGE_MAX),
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
        assert_eq!(classify(201, location, b"", 0), accepted);
        assert_eq!(classify(404, none, b"", 0), WebPushAnswer::Gone);
        assert_eq!(classify(410, none, b"", 0), WebPushAnswer::Gone);
        let after = |name: &str| (name == "retry-after").then_some("120");
        let retry = |status, after| WebPushAnswer::Retry { status, after };
        assert_eq!(classify(429, after, b"", 0), retry(429, Some(Duration::from_secs(120))));
        assert_eq!(classify(503, none, b"", 0), retry(503, None));
        assert_eq!(classify(406, none, b"", 0), retry(406, None));
    }

    #[test]
    fn a_refusal_is_a_word_and_a_sentence_whoever_wrote_it() {
        let refusal = |status, body: &str| match classify(status, |_| None, body.as_bytes(), 0) {
            WebPushAnswer::Refused { reason, message, .. } => (reason, message),
            other => panic!("{other:?}"),
        };
        let said = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
        assert_eq!(refusal(403, r#"{"reason":"BadJwtToken"}"#), said("BadJwtToken", ""));
        let mozilla = r#"{"code":401,"errno":109,"error":"Unauthorized","message":"Request did not validate"}"#;
        assert_eq!(refusal(401, mozilla), said("Unauthorized", "Request did not validate"));
        assert_eq!(refusal(403, " invalid\n JWT "), said("Forbidden", "invalid JWT"));
        let (reason, message) = refusal(418, &"ä".repeat(1_000));
        assert_eq!((&*reason, message.chars().count()), ("Refused", MESSAGE_MAX));
    }
}
