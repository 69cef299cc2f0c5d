//! The request that asks a push service to deliver a message (RFC 8030 §5).

use std::sync::Arc;

use super::{EncryptError, Subscription, Vapid, encrypt};

/// The urgency of a message with regard to the device's power (RFC 8030 §5.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// Only with power and Wi-Fi: advertisements.
    VeryLow,
    /// With power or Wi-Fi: topic updates.
    Low,
    /// Without either: chat.
    #[default]
    Normal,
    /// Even when the battery is low: a call.
    High,
}

impl Urgency {
    fn as_str(self) -> &'static str {
        match self {
            Urgency::VeryLow => "very-low",
            Urgency::Low => "low",
            Urgency::Normal => "normal",
            Urgency::High => "high",
        }
    }
}

/// Delivery options of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    ttl_s: u32,
    urgency: Urgency,
    topic: Option<String>,
}

/// Why an option is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionsError(&'static str);

impl Options {
    /// Creates options for a message that is stored for `ttl_s` seconds while the browser is offline; with 0 it is
    /// delivered at once or never.
    pub fn new(ttl_s: u32, urgency: Urgency) -> Options {
        Options { ttl_s, urgency, topic: None }
    }

    /// Returns the urgency.
    pub fn urgency(&self) -> Urgency {
        self.urgency
    }

    /// Returns the topic.
    pub fn topic(&self) -> Option<&str> {
        self.topic.as_deref()
    }

    /// Replaces a stored message with the same topic (RFC 8030 §5.4).
    ///
    /// # Errors
    ///
    /// The topic is not 1 to 32 characters of base64url.
    pub fn with_topic(mut self, topic: &str) -> Result<Options, OptionsError> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if topic.is_empty() || topic.len() > 32 || !topic.bytes().all(legal) {
            return Err(OptionsError("a topic has 1 to 32 letters, digits, - and _"));
        }
        self.topic = Some(topic.to_owned());
        Ok(self)
    }
}

/// A request to be sent by POST to [`WebPushRequest::origin`].
#[derive(Clone, Debug)]
pub struct WebPushRequest {
    /// `https://HOST[:PORT]`: connections are shared by it.
    pub origin: String,
    /// `:path`.
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(&'static str, Arc<str>)>,
    /// The encrypted message.
    pub body: Vec<u8>,
}

impl WebPushRequest {
    /// Encrypts a message and signs for it.
    ///
    /// # Errors
    /// Those of [`encrypt`].
    pub fn new(
        subscription: &Subscription,
        message: &[u8],
        options: &Options,
        vapid: &mut Vapid,
        now_s: u64,
    ) -> Result<WebPushRequest, EncryptError> {
        let body = encrypt(subscription, message)?;
        let mut headers = vec![
            ("authorization", vapid.authorization(subscription.origin(), now_s)),
            ("content-encoding", "aes128gcm".into()),
            ("content-type", "application/octet-stream".into()),
            ("ttl", options.ttl_s.to_string().into()),
            ("urgency", options.urgency.as_str().into()),
        ];
        if let Some(topic) = &options.topic {
            headers.push(("topic", topic.as_str().into()));
        }
        let (origin, path) = (subscription.origin().to_owned(), subscription.path().to_owned());
        Ok(WebPushRequest { origin, path, headers, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_how_long_how_urgent_and_what_it_replaces() {
        let subscription = Subscription::new(
            "https://push.example.net:8443/push/x?y=1".to_owned(),
            "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            "BTBZMqHH6r4Tts7J_aSIgg",
        )
        .unwrap();
        let mut vapid =
            Vapid::new("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw", "mailto:a@b.example")
                .unwrap();
        let options = Options::new(60, Urgency::VeryLow).with_topic("news").unwrap();
        let request = WebPushRequest::new(&subscription, b"hi", &options, &mut vapid, 1).unwrap();
        assert_eq!(request.origin, "https://push.example.net:8443");
        assert_eq!(request.path, "/push/x?y=1");
        let header = |wanted: &str| {
            let found = request.headers.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| value.to_string())
        };
        assert_eq!(header("ttl").as_deref(), Some("60"));
        assert_eq!(header("urgency").as_deref(), Some("very-low"));
        assert_eq!(header("topic").as_deref(), Some("news"));
        assert_eq!(header("content-encoding").as_deref(), Some("aes128gcm"));
        assert!(header("authorization").unwrap().starts_with("vapid t="));
        assert!(Options::default().with_topic("a b").is_err());
    }
}
