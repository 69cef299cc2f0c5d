//! A push for the provider API ("Sending notification requests to APNs").

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use dunlin_wire::http2::hpack::Indexing;
use serde_json::Value;
use tokio::time::Instant;

use super::DeviceToken;
use crate::request::{Class, ConnectionGroup, Header, Request};

/// The maximum payload, and that of VoIP and broadcast pushes.
const PAYLOAD_BYTES_MAX: usize = 4_096;
const PAYLOAD_BYTES_MAX_LARGE: usize = 5_120;
const COLLAPSE_ID_BYTES_MAX: usize = 64;

/// A push: its recipient, its content and its headers.
#[derive(Clone, Debug)]
pub struct Push {
    /// The recipient.
    pub target: Target,
    /// JSON, with `aps` for all types except `mdm`.
    pub payload: Bytes,
    /// The type of the push.
    pub push_type: PushType,
    /// The app's bundle identifier, or the complete topic: the suffix of the type is added if it is missing. May be
    /// omitted with a certificate for one topic.
    pub topic: Option<Arc<str>>,
    /// `apns-id`, a UUID in lower case; Apple creates one if it is missing. `apns-request-id` of a broadcast.
    pub id: Option<String>,
    /// `apns-expiration`: how long Apple stores it for a device that is offline; `UNIX_EPOCH` is not at all.
    pub expiration: Option<SystemTime>,
    /// `apns-priority`: 10, 5 or 1.
    pub priority: u8,
    /// `apns-collapse-id`: replaces an earlier push with the same id. If it is uncertain whether the push was
    /// accepted, it is sent again, because that is harmless.
    pub collapse_id: Option<String>,
    /// Time limit of the push, including queue and response.
    pub timeout: Duration,
    /// Send it again if it was sent and no response came, even without a collapse id.
    pub resend_uncertain: bool,
    /// The token is not known to be valid: use the connection for suspects.
    pub suspect: bool,
}

/// The recipient of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// One device.
    Device(DeviceToken),
    /// All subscribers of a broadcast channel, by its id (base64, as returned by Apple).
    Channel(String),
}

/// The type of a push: `apns-push-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "Apple's words, which its documentation explains")]
pub enum PushType {
    Alert,
    Background,
    Location,
    Voip,
    Complication,
    Fileprovider,
    Mdm,
    Liveactivity,
    Pushtotalk,
    Widgets,
    Controls,
}

/// Why a push is invalid, with the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PushError(pub String);

const TYPES: [(PushType, &str, &str); 11] = [
    (PushType::Alert, "alert", ""),
    (PushType::Background, "background", ""),
    (PushType::Location, "location", ".location-query"),
    (PushType::Voip, "voip", ".voip"),
    (PushType::Complication, "complication", ".complication"),
    (PushType::Fileprovider, "fileprovider", ".pushkit.fileprovider"),
    (PushType::Mdm, "mdm", ""),
    (PushType::Liveactivity, "liveactivity", ".push-type.liveactivity"),
    (PushType::Pushtotalk, "pushtotalk", ".voip-ptt"),
    (PushType::Widgets, "widgets", ".push-type.widgets"),
    (PushType::Controls, "controls", ".push-type.controls"),
];

impl PushType {
    fn entry(self) -> &'static (PushType, &'static str, &'static str) {
        // Every type is in the table; a test verifies this.
        TYPES.iter().find(|(known, ..)| *known == self).unwrap_or(&TYPES[0])
    }

    /// Returns the text that Apple uses.
    pub fn as_str(self) -> &'static str {
        self.entry().1
    }

    /// Returns the type that a payload asks for: what its `aps` has an iPhone do. `None` if it asks for nothing that shows.
    /// Apple drops a push whose type does not fit its payload, or delays it.
    pub fn of_payload(payload: &Value) -> Option<PushType> {
        let aps = &payload["aps"];
        if aps["timestamp"].is_number() && aps["event"].is_string() {
            return Some(PushType::Liveactivity);
        }
        if ["alert", "badge", "sound"].iter().any(|name| !aps[*name].is_null()) {
            return Some(PushType::Alert);
        }
        match (&aps["content-available"], &aps["content-changed"], &payload["mdm"]) {
            (Value::Number(_), ..) => Some(PushType::Background),
            (_, Value::Bool(true), _) => Some(PushType::Widgets),
            (_, _, Value::String(_)) => Some(PushType::Mdm),
            _ => None,
        }
    }

    /// Returns the highest priority that Apple accepts for it.
    pub fn priority(self) -> u8 {
        if self == PushType::Background { 5 } else { 10 }
    }

    /// Returns the suffix of its topic after the bundle identifier.
    pub fn topic_suffix(self) -> &'static str {
        self.entry().2
    }
}

impl std::str::FromStr for PushType {
    type Err = PushError;

    fn from_str(text: &str) -> Result<PushType, PushError> {
        let known = TYPES.iter().find(|(_, name, _)| *name == text);
        known.map(|(push_type, ..)| *push_type).ok_or_else(|| {
            let names: Vec<&str> = TYPES.iter().map(|(_, name, _)| *name).collect();
            PushError(format!("push type: {text:?} is not one of {}", names.join(", ")))
        })
    }
}

impl Push {
    /// Creates a push to one device with a time limit of 30 seconds. Its type is the one that the payload asks for
    /// ([`PushType::of_payload`]), an alert if it asks for none, and its priority the highest of that type.
    pub fn new(token: DeviceToken, topic: &str, payload: impl Into<Bytes>) -> Push {
        let payload = payload.into();
        let json: Value = serde_json::from_slice(&payload).unwrap_or_default();
        let push_type = PushType::of_payload(&json).unwrap_or(PushType::Alert);
        Push {
            target: Target::Device(token),
            payload,
            push_type,
            topic: Some(topic.into()),
            id: None,
            expiration: None,
            priority: push_type.priority(),
            collapse_id: None,
            timeout: Duration::from_secs(30),
            resend_uncertain: false,
            suspect: false,
        }
    }

    /// Validates the push and encodes it.
    ///
    /// # Errors
    ///
    /// Names the field that is wrong and what it must be.
    pub fn request(&self) -> Result<Request, PushError> {
        self.validate_content()?;
        let mut headers = Headers(Vec::with_capacity(8));
        let (path, subject) = match &self.target {
            Target::Device(token) => (format!("/3/device/{token}"), token.hash()),
            Target::Channel(channel) => (self.broadcast_path(channel, &mut headers)?, 0),
        };
        headers.indexed("apns-push-type", self.push_type.as_str());
        if let (Target::Device(_), Some(topic)) = (&self.target, &self.topic) {
            check_topic(topic)?;
            let suffix = self.push_type.topic_suffix();
            let is_whole = topic.ends_with(suffix);
            headers.indexed(
                "apns-topic",
                if is_whole { topic.clone() } else { format!("{topic}{suffix}").into() },
            );
        }
        let priority = match self.priority {
            10 => "10",
            5 => "5",
            _ => "1",
        };
        headers.indexed("apns-priority", priority);
        let expires = self.expiration_header(&mut headers);
        self.name_headers(&mut headers)?;
        Ok(Request {
            path,
            headers: headers.0,
            body: self.payload.clone(),
            class: match (self.push_type, self.priority) {
                (PushType::Voip, _) => Class::Voip,
                (_, 10) => Class::High,
                (_, 5) => Class::Normal,
                _ => Class::Low,
            },
            group: if self.suspect { ConnectionGroup::Suspect } else { ConnectionGroup::Main },
            deadline: Instant::now() + self.timeout,
            expires,
            resend_uncertain: self.resend_uncertain || self.collapse_id.is_some(),
            subject,
        })
    }

    fn is_broadcast(&self) -> bool {
        matches!(self.target, Target::Channel(_))
    }

    /// Validates payload, priority and type together.
    fn validate_content(&self) -> Result<(), PushError> {
        let wrong = |text: String| Err(PushError(text));
        let payload_bytes_max = if self.is_broadcast() || self.push_type == PushType::Voip {
            PAYLOAD_BYTES_MAX_LARGE
        } else {
            PAYLOAD_BYTES_MAX
        };
        if self.payload.len() > payload_bytes_max {
            return wrong(format!(
                "payload: {} bytes, at most {payload_bytes_max} are allowed for {}",
                self.payload.len(),
                self.push_type.as_str()
            ));
        }
        if let Err(error) = serde_json::from_slice::<Object>(&self.payload) {
            return wrong(format!("payload: not a JSON object ({error})"));
        }
        match (self.priority, self.push_type) {
            (10, PushType::Background) => {
                return wrong(
                    "priority: a background push has 5 or 1; Apple refuses 10".to_owned(),
                );
            }
            (10 | 5 | 1, _) => {}
            (other, _) => return wrong(format!("priority: {other} is not one of 10, 5, 1")),
        }
        if self.is_broadcast() && self.push_type != PushType::Liveactivity {
            return wrong("push type: a broadcast is of type liveactivity".to_owned());
        }
        Ok(())
    }

    /// Returns the path of a broadcast, and adds the header of its channel.
    fn broadcast_path(&self, channel: &str, headers: &mut Headers) -> Result<String, PushError> {
        let Some(bundle) = &self.topic else {
            let why = "topic: a broadcast needs the app's bundle identifier";
            return Err(PushError(why.to_owned()));
        };
        if channel.is_empty() || !is_field_value(channel) {
            return Err(PushError(format!("channel: {channel:?} is no channel id")));
        }
        check_topic(bundle)?;
        let bundle = bundle.strip_suffix(self.push_type.topic_suffix()).unwrap_or(bundle);
        headers.indexed("apns-channel-id", channel);
        Ok(format!("/4/broadcasts/apps/{bundle}"))
    }

    /// Adds the header for how long Apple stores the push. Returns the time after which it need not be sent.
    fn expiration_header(&self, headers: &mut Headers) -> Option<SystemTime> {
        let Some(expiration) = self.expiration else {
            if self.is_broadcast() {
                headers.indexed("apns-expiration", "0");
            }
            return None;
        };
        let seconds = expiration.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        headers.literal("apns-expiration", seconds.to_string());
        // 0 applies to storage at Apple, not to our queue.
        (seconds > 0).then_some(expiration)
    }

    /// Adds the headers of the caller's ids: that of the push, and that of the pushes it replaces.
    fn name_headers(&self, headers: &mut Headers) -> Result<(), PushError> {
        if let Some(id) = &self.id {
            if !is_uuid(id) {
                return Err(PushError(format!(
                    "apns-id: {id:?} is no UUID like 123e4567-e89b-12d3-a456-426614174000"
                )));
            }
            let name = if self.is_broadcast() { "apns-request-id" } else { "apns-id" };
            headers.literal(name, id.as_str());
        }
        let Some(collapse_id) = &self.collapse_id else { return Ok(()) };
        if self.is_broadcast() {
            let why = "collapse id: a broadcast knows none; leave it out, a later `timestamp` wins";
            return Err(PushError(why.to_owned()));
        }
        if collapse_id.len() > COLLAPSE_ID_BYTES_MAX || !is_field_value(collapse_id) {
            return Err(PushError(format!(
                "collapse id: {collapse_id:?} has more than {COLLAPSE_ID_BYTES_MAX} bytes or a control \
                 character"
            )));
        }
        headers.literal("apns-collapse-id", collapse_id.as_str());
        Ok(())
    }
}

/// The headers of a request under construction.
struct Headers(Vec<Header>);

impl Headers {
    /// Adds a value that is repeated: it enters the table of the connection.
    fn indexed(&mut self, name: &'static str, value: impl Into<Arc<str>>) {
        self.push(name, value.into(), Indexing::Table);
    }

    /// Adds a value that is specific to this push.
    fn literal(&mut self, name: &'static str, value: impl Into<Arc<str>>) {
        self.push(name, value.into(), Indexing::None);
    }

    fn push(&mut self, name: &'static str, value: Arc<str>, indexing: Indexing) {
        self.0.push(Header { name: Cow::Borrowed(name), value, indexing });
    }
}

/// A JSON object that is parsed and discarded.
struct Object;

impl<'de> serde::Deserialize<'de> for Object {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Object, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Object, A::Error> {
                while map.next_entry::<serde::de::IgnoredAny, serde::de::IgnoredAny>()?.is_some() {}
                Ok(Object)
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

pub(super) fn check_topic(topic: &str) -> Result<(), PushError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if topic.is_empty() || topic.len() > 255 || !topic.chars().all(legal) {
        return Err(PushError(format!(
            "topic: {topic:?} is no bundle identifier like com.example.app"
        )));
    }
    Ok(())
}

fn is_field_value(text: &str) -> bool {
    text.bytes().all(|byte| byte >= b' ' && byte != 0x7f)
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(index, byte)| match index {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push() -> Push {
        let token = DeviceToken::new(&"ab".repeat(32)).expect("a token");
        Push::new(token, "com.example.app", &br#"{"aps":{"alert":"hi"}}"#[..])
    }

    fn header(request: &Request, name: &str) -> Option<String> {
        let header = request.headers.iter().find(|header| header.name == name)?;
        Some(header.value.to_string())
    }

    #[test]
    fn type_and_priority_of_a_push_follow_its_payload() {
        let token = DeviceToken::new(&"ab".repeat(32)).expect("a token");
        for (payload, push_type, priority) in [
            (r#"{"aps":{"alert":"hi","content-available":1}}"#, PushType::Alert, 10),
            (r#"{"aps":{"badge":0}}"#, PushType::Alert, 10),
            (r#"{"aps":{"content-available":1},"room":7}"#, PushType::Background, 5),
            (r#"{"aps":{"timestamp":1,"event":"end"}}"#, PushType::Liveactivity, 10),
            (r#"{"aps":{"content-changed":true}}"#, PushType::Widgets, 10),
            (r#"{"mdm":"magic"}"#, PushType::Mdm, 10),
            (r#"{"aps":"text"}"#, PushType::Alert, 10),
            ("no JSON", PushType::Alert, 10),
        ] {
            let push = Push::new(token.clone(), "com.example.app", payload);
            assert_eq!((push.push_type, push.priority), (push_type, priority), "{payload}");
        }
    }

    #[test]
    fn every_type_has_its_word_and_topic() {
        for (push_type, name, suffix) in TYPES {
            assert_eq!(name.parse(), Ok(push_type));
            let push = Push { push_type, priority: 5, ..push() };
            let request = push.request().expect("valid");
            assert_eq!(header(&request, "apns-push-type").as_deref(), Some(name));
            let topic = format!("com.example.app{suffix}");
            assert_eq!(header(&request, "apns-topic"), Some(topic.clone()));
            // A caller who knows the suffix need not forget it.
            let again =
                Push { topic: Some(topic.as_str().into()), ..push }.request().expect("valid");
            assert_eq!(header(&again, "apns-topic"), Some(topic));
        }
        let error = "alerts".parse::<PushType>().expect_err("unknown");
        assert!(error.0.contains("alert, background"), "{error}");
    }

    #[test]
    fn a_push_becomes_a_request() {
        let push = Push {
            id: Some("123e4567-e89b-12d3-a456-426614174000".to_owned()),
            expiration: Some(UNIX_EPOCH + Duration::from_secs(1_900_000_000)),
            collapse_id: Some("score".to_owned()),
            ..push()
        };
        let request = push.request().expect("valid");
        assert_eq!(request.path, format!("/3/device/{}", "ab".repeat(32)));
        assert_eq!(header(&request, "apns-priority").as_deref(), Some("10"));
        assert_eq!(header(&request, "apns-expiration").as_deref(), Some("1900000000"));
        assert_eq!(header(&request, "apns-collapse-id").as_deref(), Some("score"));
        assert!(request.resend_uncertain, "a collapse id makes it harmless");
        assert_eq!((request.class, request.group), (Class::High, ConnectionGroup::Main));
    }

    #[test]
    fn a_broadcast_goes_to_its_app_and_channel() {
        let push = Push {
            target: Target::Channel("dHN0LXNyY2gtY2hubA==".to_owned()),
            push_type: PushType::Liveactivity,
            payload: format!(r#"{{"aps":"{}"}}"#, "x".repeat(5_000)).into(),
            ..push()
        };
        let request = push.request().expect("valid");
        assert_eq!(request.path, "/4/broadcasts/apps/com.example.app");
        assert_eq!(header(&request, "apns-channel-id").as_deref(), Some("dHN0LXNyY2gtY2hubA=="));
        assert_eq!(header(&request, "apns-topic"), None);
        assert_eq!(header(&request, "apns-expiration").as_deref(), Some("0"));

        let id = "123e4567-e89b-12d3-a456-426614174000".to_owned();
        let topic = Some("com.example.app.push-type.liveactivity".into());
        let named = Push { id: Some(id.clone()), topic, ..push.clone() }.request().expect("valid");
        assert_eq!(named.path, "/4/broadcasts/apps/com.example.app");
        assert_eq!(header(&named, "apns-request-id"), Some(id));
        assert_eq!(header(&named, "apns-id"), None);
        let replaced = Push { collapse_id: Some("score".to_owned()), ..push };
        assert!(replaced.request().expect_err("refused").0.starts_with("collapse id"));
    }

    #[test]
    fn malformed_field_is_named() {
        let refused = |push: Push| push.request().expect_err("refused").0;
        let large = format!(r#"{{"aps":"{}"}}"#, "x".repeat(4_090));
        assert!(
            refused(Push { payload: large.clone().into(), ..push() }).starts_with("payload: 4100")
        );
        let voip = Push { payload: large.into(), push_type: PushType::Voip, ..push() };
        assert!(voip.request().is_ok(), "a call may have 5 KB");
        for payload in ["", "[]", "{", "hello", "{} {}"] {
            let refused = refused(Push { payload: payload.into(), ..push() });
            assert!(refused.starts_with("payload: not a JSON object"), "{refused}");
        }
        assert!(refused(Push { priority: 7, ..push() }).starts_with("priority"));
        let background = Push { push_type: PushType::Background, ..push() };
        assert!(refused(background).contains("background"));
        assert!(refused(Push { topic: Some("a b".into()), ..push() }).starts_with("topic"));
        assert!(refused(Push { id: Some("1".to_owned()), ..push() }).starts_with("apns-id"));
        assert!(
            refused(Push { collapse_id: Some("x".repeat(65)), ..push() }).starts_with("collapse")
        );
        for (token, word) in [("ab", "64 to 200"), ("<ab", "'<'"), ("", "0 characters")] {
            let error = DeviceToken::new(token).expect_err("refused").to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
