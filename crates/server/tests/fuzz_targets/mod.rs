//! What the fuzzer feeds, and what must hold whatever it feeds.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dunlin_config::{Secret, Token};
use dunlin_server::auth::{Error, KeySet, Verifier};
use ring::hmac;

/// A target by the name of its corpus.
pub type Target = fn(&[u8]);

/// All targets: `fuzz/corpus/NAME` holds the seeds of each.
pub const TARGETS: &[(&str, Target)] =
    &[("auth_token", token), ("auth_claims", claims), ("auth_key_set", key_set)];

const SECRET: &[u8] = b"the secret that nobody fuzzes";
const NOW_MS: u64 = 1_700_000_000_000;
const ED25519: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
";

static VERIFIER: LazyLock<Verifier> = LazyLock::new(|| {
    let mut rules = Token {
        hmac_secret: Some(Secret::new(std::str::from_utf8(SECRET).expect("text"))),
        eddsa_public_key: Some(ED25519.into()),
        ..Token::default()
    };
    rules.keys.insert("k", Secret::new(ED25519));
    Verifier::new(rules.rules())
});

/// Nobody comes in with a text that nobody has signed.
fn token(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (connection, subscription) =
        (VERIFIER.verify(text, NOW_MS), VERIFIER.verify_subscription(text, NOW_MS));
    assert!(connection.is_err() && subscription.is_err(), "{text}");
    if text.len() > 16 << 10 {
        assert!(matches!(connection, Err(Error::Malformed(_))), "refused by its length");
    }
}

/// Claims that are signed are taken or refused, and are those of one kind of token at most.
fn claims(bytes: &[u8]) {
    let header = URL_SAFE_NO_PAD.encode(br#"{"alg":"HS256"}"#);
    let content = format!("{header}.{}", URL_SAFE_NO_PAD.encode(bytes));
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), content.as_bytes());
    let token = format!("{content}.{}", URL_SAFE_NO_PAD.encode(signature));
    let connection = VERIFIER.verify(&token, NOW_MS);
    let subscription = VERIFIER.verify_subscription(&token, NOW_MS);
    assert!(connection.is_err() || subscription.is_err());
    for refused in [connection.err(), subscription.err()].into_iter().flatten() {
        assert!(!matches!(refused, Error::Signature | Error::NoKey | Error::Pending), "{refused}");
    }
}

/// A set is refused, or bounded.
fn key_set(bytes: &[u8]) {
    if let Ok(keys) = KeySet::parse(bytes) {
        assert!(keys.len() <= 256);
        assert!(serde_json::from_slice::<serde_json::Value>(bytes).is_ok());
    }
}
