//! The subscription of a browser: `PushSubscription.toJSON()` of the Push API.

use p256::PublicKey;
use serde::Deserialize;

use crate::key_text::{base64, unmarked};

/// Most bytes of an endpoint.
const ENDPOINT_BYTES_MAX: usize = 2_048;

/// The subscription of a browser.
#[derive(Clone, Debug)]
pub struct Subscription {
    endpoint: String,
    /// Where the path begins in the endpoint.
    path_at: usize,
    pub(super) public: PublicKey,
    pub(super) auth: [u8; 16],
}

/// Why a subscription is invalid; the text names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SubscriptionError(String);

impl Subscription {
    /// Parses the output of the browser's `JSON.stringify(subscription)`.
    ///
    /// # Errors
    /// Names the field that is missing or wrong.
    pub fn from_json(json: &str) -> Result<Subscription, SubscriptionError> {
        #[derive(Deserialize)]
        struct Json {
            endpoint: String,
            keys: Keys,
        }
        #[derive(Deserialize)]
        struct Keys {
            p256dh: String,
            auth: String,
        }
        let json: Json = serde_json::from_str(unmarked(json))
            .map_err(|error| SubscriptionError(format!("this is no subscription: {error}")))?;
        Subscription::new(json.endpoint, &json.keys.p256dh, &json.keys.auth)
    }

    /// Creates a subscription from its three parts, with the keys in Base64, of either alphabet.
    ///
    /// # Errors
    /// Names the part that is wrong.
    pub fn new(
        endpoint: String,
        p256dh: &str,
        auth: &str,
    ) -> Result<Subscription, SubscriptionError> {
        let wrong = |text: &str| SubscriptionError(text.to_owned());
        let rest = endpoint.strip_prefix("https://");
        let rest = rest.ok_or_else(|| wrong("endpoint: it has to begin with https://"))?;
        let legal = |byte: u8| byte.is_ascii_graphic();
        if endpoint.len() > ENDPOINT_BYTES_MAX || !endpoint.bytes().all(legal) {
            return Err(wrong("endpoint: it is no URL of at most 2,048 bytes"));
        }
        let path_at = rest.find('/').ok_or_else(|| wrong("endpoint: it has no path"))? + 8;
        let authority = &endpoint[8..path_at];
        if authority.is_empty() || authority.contains(['@', '?', '#']) || endpoint.contains('#') {
            return Err(wrong("endpoint: it is no plain https://HOST/PATH"));
        }
        let public = base64(p256dh).ok_or_else(|| wrong("keys.p256dh: it is not Base64"))?;
        let public = PublicKey::from_sec1_bytes(&public)
            .map_err(|_| wrong("keys.p256dh: it is no point of P-256, 65 bytes uncompressed"))?;
        let auth = base64(auth).and_then(|auth| auth.try_into().ok());
        let auth = auth.ok_or_else(|| wrong("keys.auth: it is not 16 bytes in Base64"))?;
        Ok(Subscription { endpoint, path_at, public, auth })
    }

    /// Returns the complete URL, which identifies the subscription.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns the origin (RFC 6454), `https://HOST` or `https://HOST:PORT`: connections and VAPID tokens are shared by
    /// it.
    pub fn origin(&self) -> &str {
        &self.endpoint[..self.path_at]
    }

    /// Returns `:path` of the request.
    pub fn path(&self) -> &str {
        &self.endpoint[self.path_at..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P256DH: &str =
        "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
    const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";

    #[test]
    fn a_subscription_is_read_as_browsers_write_it() {
        let json = format!(
            r#"{{"endpoint":"https://push.example.net/push/JzLQ3","expirationTime":null,
                "keys":{{"p256dh":"{P256DH}","auth":"{AUTH}=="}}}}"#
        );
        let subscription = Subscription::from_json(&json).unwrap();
        assert_eq!(subscription.origin(), "https://push.example.net");
        assert_eq!(subscription.path(), "/push/JzLQ3");
        // A backend that stored the keys in standard Base64.
        let standard = |key: &str| key.replace('-', "+").replace('_', "/");
        let endpoint = "https://push.example.net/x".to_owned();
        let again = Subscription::new(endpoint, &standard(P256DH), &standard(AUTH)).unwrap();
        assert_eq!((again.public, again.auth), (subscription.public, subscription.auth));
    }

    #[test]
    fn malformed_input_is_named() {
        let new = |endpoint: &str, p256dh: &str, auth: &str| {
            Subscription::new(endpoint.to_owned(), p256dh, auth).unwrap_err().to_string()
        };
        assert!(new("http://push.example.net/x", P256DH, AUTH).contains("https://"));
        assert!(new("https://push.example.net", P256DH, AUTH).contains("no path"));
        assert!(new("https://u@push.example.net/x", P256DH, AUTH).contains("plain"));
        assert!(new("https://push.example.net/x", "AAAA", AUTH).contains("p256dh"));
        assert!(new("https://push.example.net/x", P256DH, "AAAA").contains("auth"));
        assert!(Subscription::from_json("{}").unwrap_err().to_string().contains("endpoint"));
    }
}
