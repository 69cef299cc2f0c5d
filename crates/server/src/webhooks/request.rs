//! A request to a backend: a batch of events, signed.

use dunlin_config::Secret;
use dunlin_pipeline::{BodyMode, Request};
use ring::hmac;

use super::dispatcher::Attempt;

const USER_AGENT: &str = concat!("dunlin/", env!("CARGO_PKG_VERSION"));

/// Hands the request of an attempt to `take`.
pub(crate) fn with_request<R>(attempt: &Attempt, take: impl FnOnce(&Request<'_>) -> R) -> R {
    let number = attempt.number.to_string();
    let signature = attempt.hook.secret.as_ref().map(|secret| signature(secret, &attempt.body));
    let mut headers = vec![
        ("Content-Type", "application/json"),
        ("User-Agent", USER_AGENT),
        // The same in every attempt. It also makes the POST one that may be repeated.
        ("Idempotency-Key", &*attempt.key),
        ("Dunlin-Attempt", &*number),
    ];
    if let Some(signature) = &signature {
        headers.push(("Dunlin-Signature", signature));
    }
    take(&Request {
        headers: &headers,
        // What else the backend has to say is for its own log.
        answer: BodyMode::Count,
        ..Request::post(&attempt.hook.path, &attempt.body)
    })
}

/// `sha256=` and the HMAC-SHA256 (RFC 2104) of the body in hexadecimal.
fn signature(secret: &Secret, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.reveal().as_bytes());
    let tag = hmac::sign(&key, body);
    tag.as_ref().iter().fold("sha256=".to_owned(), |text, byte| text + &format!("{byte:02x}"))
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
