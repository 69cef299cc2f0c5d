//! The headers of a request, including its signature.

use dunlin_config::Secret;
use ring::hmac;

use crate::dispatcher::Attempt;

const USER_AGENT: &str = concat!("dunlin/", env!("CARGO_PKG_VERSION"));

impl Attempt {
    /// Calls `take` with the headers of the request.
    pub fn with_headers<R>(&self, take: impl FnOnce(&[(&str, &str)]) -> R) -> R {
        let number = self.number.to_string();
        if let Some(app) = &self.app {
            let signature = app.secret.as_ref().map(|secret| hex_hmac(secret, &self.body));
            let headers = [
                ("Content-Type", "application/json"),
                ("User-Agent", USER_AGENT),
                ("Idempotency-Key", &*self.key),
                ("Dunlin-Attempt", &*number),
                ("X-Pusher-Key", &*app.key),
                ("X-Pusher-Signature", signature.as_deref().unwrap_or_default()),
            ];
            return take(&headers);
        }
        let signature = self.hook.secret.as_ref().map(|secret| signature(secret, &self.body));
        let headers = [
            ("Content-Type", "application/json"),
            ("User-Agent", USER_AGENT),
            // The same in every attempt. This header also makes the POST repeatable.
            ("Idempotency-Key", &*self.key),
            ("Dunlin-Attempt", &*number),
            ("Dunlin-Signature", signature.as_deref().unwrap_or_default()),
        ];
        take(&headers[..headers.len() - usize::from(signature.is_none())])
    }
}

/// Returns `sha256=` and the HMAC-SHA256 (RFC 2104) of the body in hexadecimal.
fn signature(secret: &Secret, body: &[u8]) -> String {
    "sha256=".to_owned() + &hex_hmac(secret, body)
}

fn hex_hmac(secret: &Secret, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.reveal().as_bytes());
    let tag = hmac::sign(&key, body);
    tag.as_ref().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_openssl() {
        // printf '[]' | openssl dgst -sha256 -hmac 0123456789abcdef
        let secret = Secret::new("0123456789abcdef");
        assert_eq!(
            signature(&secret, b"[]"),
            "sha256=2990879d155f29f7d8b33a79448dbd6810c05b6d35d8e73158e57bdf4b394c4c"
        );
    }
}
