//! The request that sends one message (`projects.messages.send`).

use serde_json::{Map, Value};

/// `:authority` of the API.
pub const AUTHORITY: &str = "fcm.googleapis.com";

/// Most bytes of the keys and values of a message ("ErrorCode": 4,096 for most messages, 2,048 to topics). FCM also
/// counts some overhead, so it may refuse a message of this size.
pub const MESSAGE_BYTES_MAX: usize = 4_096;
/// The limit of a message to a topic or a condition.
const TOPIC_MESSAGE_BYTES_MAX: usize = 2_048;

/// The recipient of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient<'a> {
    /// One installation, by its registration token.
    Token(&'a str),
    /// All devices subscribed to a topic.
    Topic(&'a str),
    /// All devices whose topics match a condition, such as `'dogs' in topics || 'cats' in topics`.
    Condition(&'a str),
}

/// A POST request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FcmRequest {
    /// `:path`.
    pub path: String,
    /// The body, `application/json`.
    pub body: Vec<u8>,
}

/// Why a message is invalid; the text names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MessageError(String);

impl FcmRequest {
    /// Creates a request. `message` is the `Message` of the API without its target: `notification`, `data`,
    /// `android`, and so on.
    ///
    /// # Errors
    ///
    /// The recipient is invalid, the message is too large, or `data` has values other than text or names reserved by
    /// FCM.
    pub fn new(
        project_id: &str,
        to: Recipient<'_>,
        message: &Map<String, Value>,
        validate_only: bool,
    ) -> Result<FcmRequest, MessageError> {
        let wrong = |text: &str| Err(MessageError(text.to_owned()));
        let (field, target) = match to {
            Recipient::Token(token) => ("token", token),
            Recipient::Topic(topic) => ("topic", topic.strip_prefix("/topics/").unwrap_or(topic)),
            Recipient::Condition(condition) => ("condition", condition),
        };
        if target.is_empty() || target.len() > 4_096 || target.chars().any(char::is_control) {
            return wrong(&format!("{field}: it is empty, too long, or has control characters"));
        }
        if ["token", "topic", "condition", "name"].iter().any(|field| message.contains_key(*field))
        {
            return wrong("message: must not name a recipient; that is given separately");
        }
        if let Some(data) = message.get("data") {
            let texts = data.as_object().is_some_and(|data| data.values().all(Value::is_string));
            if !texts {
                return wrong(
                    "data: FCM takes an object whose values are texts; quote numbers and objects",
                );
            }
        }
        let reserved = |name: &&String| {
            matches!(name.as_str(), "from" | "message_type")
                || name.starts_with("google.")
                || name.starts_with("gcm.")
        };
        let data = message.get("data").and_then(Value::as_object);
        if let Some(name) = data.and_then(|data| data.keys().find(reserved)) {
            return wrong(&format!("data: {name:?} is FCM's own; take another name"));
        }
        let bytes = payload_bytes(message);
        let bytes_max = match to {
            Recipient::Token(_) => MESSAGE_BYTES_MAX,
            Recipient::Topic(_) | Recipient::Condition(_) => TOPIC_MESSAGE_BYTES_MAX,
        };
        if bytes > bytes_max {
            return wrong(&format!(
                "message: it has {bytes} bytes, and {bytes_max} is the most; shorten it, or have the app fetch the rest"
            ));
        }
        let mut message = message.clone();
        message.insert(field.to_owned(), target.into());
        let mut body = serde_json::json!({ "message": message });
        if validate_only {
            body["validate_only"] = true.into();
        }
        let path = format!("/v1/projects/{project_id}/messages:send");
        Ok(FcmRequest { path, body: body.to_string().into_bytes() })
    }
}

/// Counts the bytes of the displayed text and of the app's data.
fn payload_bytes(message: &Map<String, Value>) -> usize {
    fn bytes(value: &Value) -> usize {
        match value {
            Value::String(text) => text.len(),
            Value::Object(object) => {
                object.iter().map(|(key, value)| key.len() + bytes(value)).sum()
            }
            other => other.to_string().len(),
        }
    }
    ["notification", "data"].iter().filter_map(|part| message.get(*part)).map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(json: Value) -> Map<String, Value> {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_message_goes_to_its_project_with_its_target() {
        let message = message(serde_json::json!({ "notification": { "title": "Hi" } }));
        let request =
            FcmRequest::new("demo-1", Recipient::Token("abc:def"), &message, true).unwrap();
        assert_eq!(request.path, "/v1/projects/demo-1/messages:send");
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let expected = serde_json::json!({
            "message": { "notification": { "title": "Hi" }, "token": "abc:def" }, "validate_only": true
        });
        assert_eq!(body, expected);
        let request =
            FcmRequest::new("p", Recipient::Topic("/topics/news"), &message, false).unwrap();
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(body["message"]["topic"], "news");
    }

    #[test]
    fn message_that_fcm_would_refuse_is_not_sent() {
        let new = |to, json: Value| {
            FcmRequest::new("p", to, &message(json), false).unwrap_err().to_string()
        };
        let long = "x".repeat(MESSAGE_BYTES_MAX);
        assert!(new(Recipient::Token(""), serde_json::json!({})).contains("token"));
        assert!(
            new(Recipient::Token("t"), serde_json::json!({ "data": { "n": 1 } })).contains("quote")
        );
        assert!(
            new(Recipient::Token("t"), serde_json::json!({ "data": { "x": long } }))
                .contains("4096 is the most")
        );
        let medium = serde_json::json!({ "data": { "x": "x".repeat(2_048) } });
        assert!(new(Recipient::Topic("t"), medium.clone()).contains("2048 is the most"));
        assert!(FcmRequest::new("p", Recipient::Token("t"), &message(medium), false).is_ok());
        let reserved = serde_json::json!({ "data": { "google.x": "1" } });
        assert!(new(Recipient::Token("t"), reserved).contains("google.x"));
        assert!(
            new(Recipient::Token("t"), serde_json::json!({ "topic": "x" })).contains("recipient")
        );
    }
}
