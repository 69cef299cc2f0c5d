//! Signed tokens, and the time to verify their signatures.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use dunlin_load::Error;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
    UnparsedPublicKey,
};
use ring::{hmac, pkcs8::Document};
use serde_json::{Value, json};

/// Long enough for the server's minimum length.
pub(crate) const SECRET: &str = "the secret of the benchmark, of 43 letters.";

/// Signs a token with HMAC-SHA-256.
pub(crate) fn hs256(claims: &Value) -> String {
    let content = content("HS256", claims);
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let signature = base64_url(hmac::sign(&key, content.as_bytes()).as_ref());
    format!("{content}.{signature}")
}

/// A token signed with ECDSA on P-256, the public key in PEM, and the library's time for one verification.
pub(crate) struct Es256 {
    pub(crate) token: String,
    pub(crate) public_key: String,
    pub(crate) verify: Duration,
}

pub(crate) fn es256(claims: &Value) -> Result<Es256, Error> {
    let unusable = |_| Error::new("cannot make a key");
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let document: Document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(unusable)?;
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random)
        .map_err(|error| Error::new(format!("cannot take the key: {error}")))?;
    let content = content("ES256", claims);
    let signature = pair.sign(&random, content.as_bytes()).map_err(unusable)?;
    // An uncompressed point, preceded by the algorithm identifier of P-256 (RFC 5480 §2.1.1).
    let point = pair.public_key().as_ref();
    let mut spki =
        vec![0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    spki.extend_from_slice(&[
        0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0,
    ]);
    spki.extend_from_slice(point);
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
    Ok(Es256 {
        public_key: format!(
            "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
            BASE64_STANDARD.encode(spki)
        ),
        verify: time_of(|| key.verify(content.as_bytes(), signature.as_ref()).is_ok()),
        token: format!("{content}.{}", base64_url(signature.as_ref())),
    })
}

/// Returns the median time of many calls.
fn time_of(verify: impl Fn() -> bool) -> Duration {
    let mut times: Vec<Duration> = (0..2_001)
        .map(|_| {
            let began = Instant::now();
            assert!(std::hint::black_box(verify()), "the library verifies what it has signed");
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn content(algorithm: &str, claims: &Value) -> String {
    let header = json!({"typ": "JWT", "alg": algorithm}).to_string();
    format!("{}.{}", base64_url(header.as_bytes()), base64_url(claims.to_string().as_bytes()))
}

fn base64_url(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}
