//! Responses of FCM ("ErrorCode" of the HTTP v1 API).

use std::time::Duration;

use dunlin_wire::http1::retry_after;
use serde::Deserialize;

/// A response of FCM to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FcmAnswer {
    /// FCM accepted it.
    Accepted {
        /// `projects/PROJECT/messages/ID`.
        name: String,
    },
    /// The registration token is invalid: remove it (`UNREGISTERED`).
    Unregistered,
    /// The message or the sender's configuration is invalid: a retry would have the same result.
    Refused {
        /// The HTTP status.
        status: u16,
        /// FCM's error code, such as `INVALID_ARGUMENT` or `SENDER_ID_MISMATCH`; unknown ones are passed on.
        reason: String,
        /// FCM's message.
        message: String,
    },
    /// The access token has expired: fetch another and try again.
    Reauthorize,
    /// The project's quota is exhausted: send nothing until then.
    Pause {
        /// The delay; a minute if FCM gives none.
        after: Duration,
        /// FCM's message.
        message: String,
    },
    /// FCM failed or is overloaded (`UNAVAILABLE`, `INTERNAL`), or a quota of this device or topic is exhausted
    /// (`QUOTA_EXCEEDED`).
    Retry {
        /// FCM's error code.
        reason: String,
        /// The delay, if FCM gives one.
        after: Option<Duration>,
        /// Otherwise the first delay; it doubles each time.
        least: Duration,
        /// FCM's message.
        message: String,
    },
}

/// Without `Retry-After`: the period of a quota.
const QUOTA_PAUSE: Duration = Duration::from_secs(60);
/// The delay that FCM requests after a failure ("Best practices when sending FCM messages at scale").
const FAILURE_PAUSE: Duration = Duration::from_secs(10);

/// Classifies a response. `header` returns the value of a header by its lower-case name.
pub fn classify<'h>(
    status: u16,
    header: impl Fn(&str) -> Option<&'h str>,
    body: &[u8],
    now_s: u64,
) -> FcmAnswer {
    #[derive(Deserialize)]
    struct Sent {
        name: String,
    }
    let after = header("retry-after").and_then(|text| retry_after::parse(text, now_s));
    if status == 200 {
        return match serde_json::from_slice::<Sent>(body) {
            Ok(Sent { name }) => FcmAnswer::Accepted { name },
            Err(_) => FcmAnswer::Accepted { name: String::new() },
        };
    }
    let GoogleError { reason, message, of_target } = GoogleError::read(body);
    match (status, reason.as_str()) {
        (404, "UNREGISTERED") => FcmAnswer::Unregistered,
        (401, "THIRD_PARTY_AUTH_ERROR") => FcmAnswer::Refused { status, reason, message },
        (401, _) => FcmAnswer::Reauthorize,
        (429, _) if of_target => FcmAnswer::Retry { reason, after, least: QUOTA_PAUSE, message },
        (429, _) => FcmAnswer::Pause { after: after.unwrap_or(QUOTA_PAUSE), message },
        (408 | 500..=599, _) => {
            let reason = if reason.is_empty() { "UNAVAILABLE".to_owned() } else { reason };
            FcmAnswer::Retry { reason, after, least: FAILURE_PAUSE, message }
        }
        _ => FcmAnswer::Refused { status, reason, message },
    }
}

/// The error format of Google's APIs.
struct GoogleError {
    reason: String,
    message: String,
    /// The quota of a device or topic, not of the project. The code is the same; the details distinguish them.
    of_target: bool,
}

impl GoogleError {
    fn read(body: &[u8]) -> GoogleError {
        #[derive(Deserialize)]
        struct Body {
            error: Error,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Error {
            status: String,
            message: String,
            details: Vec<Detail>,
        }
        #[derive(Deserialize)]
        struct Detail {
            #[serde(rename = "errorCode")]
            error_code: Option<String>,
            /// Of `google.rpc.QuotaFailure`.
            #[serde(default)]
            violations: Vec<Violation>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Violation {
            subject: String,
            description: String,
        }
        let Ok(Body { error }) = serde_json::from_slice::<Body>(body) else {
            return GoogleError { reason: String::new(), message: String::new(), of_target: false };
        };
        let of_target = {
            let violations = error.details.iter().flat_map(|detail| &detail.violations);
            let texts = violations.flat_map(|v| [v.subject.as_str(), v.description.as_str()]);
            texts.chain([error.message.as_str()]).any(|text| {
                let text = text.to_ascii_lowercase();
                text.contains("device") || text.contains("topic")
            })
        };
        let code = error.details.into_iter().find_map(|detail| detail.error_code);
        GoogleError { reason: code.unwrap_or(error.status), message: error.message, of_target }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u16, status: &str, error_code: Option<&str>) -> String {
        let kind = "type.googleapis.com/google.firebase.fcm.v1.FcmError";
        let details: Vec<_> = error_code
            .iter()
            .map(|code| serde_json::json!({ "@type": kind, "errorCode": code }))
            .collect();
        let error = serde_json::json!({ "code": code, "message": "why", "status": status, "details": details });
        serde_json::json!({ "error": error }).to_string()
    }

    fn judged(code: u16, status: &str, error_code: Option<&str>) -> FcmAnswer {
        classify(code, |_| None, error(code, status, error_code).as_bytes(), 0)
    }

    #[test]
    fn each_error_of_the_api_says_what_to_do() {
        let name = "projects/p/messages/0:1".to_owned();
        let sent = br#"{"name": "projects/p/messages/0:1"}"#;
        assert_eq!(classify(200, |_| None, sent, 0), FcmAnswer::Accepted { name });
        assert_eq!(judged(404, "NOT_FOUND", Some("UNREGISTERED")), FcmAnswer::Unregistered);
        assert_eq!(judged(401, "UNAUTHENTICATED", None), FcmAnswer::Reauthorize);
        let pause = FcmAnswer::Pause { after: Duration::from_secs(60), message: "why".to_owned() };
        assert_eq!(judged(429, "RESOURCE_EXHAUSTED", Some("QUOTA_EXCEEDED")), pause);
        let retry = |reason: &str| {
            let (reason, message) = (reason.to_owned(), "why".to_owned());
            FcmAnswer::Retry { reason, after: None, least: Duration::from_secs(10), message }
        };
        assert_eq!(judged(503, "UNAVAILABLE", Some("UNAVAILABLE")), retry("UNAVAILABLE"));
        assert_eq!(judged(500, "INTERNAL", Some("INTERNAL")), retry("INTERNAL"));
        for (status, name, code) in [
            (400, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
            (403, "PERMISSION_DENIED", "SENDER_ID_MISMATCH"),
            (401, "UNAUTHENTICATED", "THIRD_PARTY_AUTH_ERROR"),
            (404, "NOT_FOUND", "SOMETHING_NEW"),
        ] {
            let (reason, message) = (code.to_owned(), "why".to_owned());
            let refused = FcmAnswer::Refused { status, reason, message };
            assert_eq!(judged(status, name, Some(code)), refused);
        }
    }

    #[test]
    fn retry_after_is_waited_and_an_answer_without_json_is_an_answer() {
        let after = |name: &str| (name == "retry-after").then_some("7");
        let seven = Duration::from_secs(7);
        let pause = FcmAnswer::Pause { after: seven, message: String::new() };
        assert_eq!(classify(429, after, b"", 0), pause);
        let answer_to = classify(502, after, b"<html>", 0);
        assert!(matches!(answer_to, FcmAnswer::Retry { after: Some(after), reason, .. }
            if after == seven && reason == "UNAVAILABLE"));
    }

    #[test]
    fn a_quota_of_one_topic_or_device_does_not_stop_the_others() {
        let fcm = serde_json::json!({ "errorCode": "QUOTA_EXCEEDED" });
        let answer_to = |message: &str, details: serde_json::Value| {
            let error = serde_json::json!({
                "code": 429, "status": "RESOURCE_EXHAUSTED", "message": message, "details": details
            });
            classify(429, |_| None, serde_json::json!({ "error": error }).to_string().as_bytes(), 0)
        };
        let minute = Duration::from_secs(60);
        for answer in [
            answer_to("Topic quota exceeded.", serde_json::json!([fcm])),
            answer_to(
                "Quota exceeded.",
                serde_json::json!([fcm, { "violations": [{ "subject": "device:x" }] }]),
            ),
        ] {
            assert!(matches!(answer, FcmAnswer::Retry { least, reason, after: None, .. }
                if least == minute && reason == "QUOTA_EXCEEDED"));
        }
        let project =
            "Quota exceeded for quota metric 'Send requests' and limit 'Send requests per minute'";
        let info = serde_json::json!([{ "reason": "RATE_LIMIT_EXCEEDED" }]);
        let answer = answer_to(project, info);
        assert!(matches!(answer, FcmAnswer::Pause { after, .. } if after == minute), "{answer:?}");
    }
}
