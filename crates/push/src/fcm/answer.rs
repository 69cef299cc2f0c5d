//! What FCM's answer means ("ErrorCode" of the HTTP v1 API).

use std::time::Duration;

use dunlin_wire::http1::retry_after;
use serde::Deserialize;

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FcmAnswer {
    /// FCM took it.
    Accepted {
        /// `projects/PROJECT/messages/ID`.
        name: String,
    },
    /// The registration token is over: drop it (`UNREGISTERED`).
    Unregistered,
    /// The message is at fault, or who sends it: again would change nothing.
    Refused {
        /// The HTTP status.
        status: u16,
        /// FCM's error code, such as `INVALID_ARGUMENT` or `SENDER_ID_MISMATCH`; ones unknown to us are kept.
        reason: String,
        /// What FCM says about it.
        message: String,
    },
    /// The access token is spent: fetch another, then again.
    Reauthorize,
    /// A quota is used up (`QUOTA_EXCEEDED`): nothing else either until then.
    Pause {
        /// How long; a minute where FCM does not say.
        after: Duration,
    },
    /// FCM failed or is busy (`UNAVAILABLE`, `INTERNAL`).
    Retry {
        /// The HTTP status.
        status: u16,
        /// How long; where FCM does not say, the caller backs off from ten seconds on.
        after: Option<Duration>,
    },
}

/// Without `Retry-After` a quota's minute has to pass.
const QUOTA_PAUSE: Duration = Duration::from_secs(60);

/// Judges an answer. `header` gives a header's value by its name in lower case.
pub fn judge<'h>(
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
    let Fault { reason, message } = Fault::read(body);
    match (status, reason.as_str()) {
        (404, "UNREGISTERED") => FcmAnswer::Unregistered,
        (401, "THIRD_PARTY_AUTH_ERROR") => FcmAnswer::Refused { status, reason, message },
        (401, _) => FcmAnswer::Reauthorize,
        (429, _) => FcmAnswer::Pause { after: after.unwrap_or(QUOTA_PAUSE) },
        (408 | 500..=599, _) => FcmAnswer::Retry { status, after },
        _ => FcmAnswer::Refused { status, reason, message },
    }
}

/// The error as Google's APIs spell it.
struct Fault {
    reason: String,
    message: String,
}

impl Fault {
    fn read(body: &[u8]) -> Fault {
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
        }
        match serde_json::from_slice::<Body>(body) {
            Ok(Body { error }) => {
                let code = error.details.into_iter().find_map(|detail| detail.error_code);
                Fault { reason: code.unwrap_or(error.status), message: error.message }
            }
            Err(_) => Fault { reason: String::new(), message: String::new() },
        }
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
        judge(code, |_| None, error(code, status, error_code).as_bytes(), 0)
    }

    #[test]
    fn each_error_of_the_api_says_what_to_do() {
        let name = "projects/p/messages/0:1".to_owned();
        let sent = br#"{"name": "projects/p/messages/0:1"}"#;
        assert_eq!(judge(200, |_| None, sent, 0), FcmAnswer::Accepted { name });
        assert_eq!(judged(404, "NOT_FOUND", Some("UNREGISTERED")), FcmAnswer::Unregistered);
        assert_eq!(judged(401, "UNAUTHENTICATED", None), FcmAnswer::Reauthorize);
        let pause = FcmAnswer::Pause { after: Duration::from_secs(60) };
        assert_eq!(judged(429, "RESOURCE_EXHAUSTED", Some("QUOTA_EXCEEDED")), pause);
        let retry = |status| FcmAnswer::Retry { status, after: None };
        assert_eq!(judged(503, "UNAVAILABLE", Some("UNAVAILABLE")), retry(503));
        assert_eq!(judged(500, "INTERNAL", Some("INTERNAL")), retry(500));
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
    fn what_the_service_asks_for_is_waited_and_an_answer_that_is_no_json_is_an_answer() {
        let after = |name: &str| (name == "retry-after").then_some("7");
        let seven = Duration::from_secs(7);
        assert_eq!(judge(429, after, b"", 0), FcmAnswer::Pause { after: seven });
        let retry = FcmAnswer::Retry { status: 502, after: Some(seven) };
        assert_eq!(judge(502, after, b"<html>", 0), retry);
    }
}
