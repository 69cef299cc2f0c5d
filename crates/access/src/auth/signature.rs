//! Signatures of tokens (RFC 7515): HMAC, RSA with PKCS #1 and PSS, ECDSA and Ed25519 (RFC 7518 §3, RFC 8037, RFC 9864) by
//! `ring`, which TLS uses too. `ring` has no P-521 (ES512); `p521` is of the family that signs for push services.

use std::fmt;

use p521::ecdsa::signature::Verifier as _;
use ring::{hmac, signature};
use serde::Deserialize;

/// The algorithm of a signature, by its name in `alg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum Algorithm {
    HS256,
    HS384,
    HS512,
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    ES512,
    /// Ed25519: of the curves of EdDSA it is the one that is supported. RFC 9864 gives it a name of its own.
    #[serde(rename = "EdDSA", alias = "Ed25519")]
    Ed25519,
}

impl Algorithm {
    /// Returns the algorithm with this name.
    pub(super) fn named(name: &str) -> Option<Algorithm> {
        Algorithm::deserialize(serde::de::value::StrDeserializer::<serde::de::value::Error>::new(
            name,
        ))
        .ok()
    }
}

/// The family of a key: it verifies only algorithms of its family, so a published public key is never an HMAC secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// A shared secret.
    Hmac,
    /// RSA.
    Rsa,
    /// ECDSA.
    Ec,
    /// Ed25519.
    Ed,
}

/// What signatures are verified with.
#[derive(Clone)]
pub(super) enum KeyMaterial {
    Secret(Vec<u8>),
    /// PKCS #1, in DER.
    Rsa(Vec<u8>),
    /// Modulus and exponent.
    RsaNumbers(Vec<u8>, Vec<u8>),
    /// An uncompressed point on P-256 or P-384.
    Point(Vec<u8>),
    P521(Box<p521::ecdsa::VerifyingKey>),
    Ed25519(Vec<u8>),
}

impl fmt::Debug for KeyMaterial {
    /// Shows no key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyMaterial({:?})", self.family())
    }
}

impl KeyMaterial {
    pub(super) fn family(&self) -> Family {
        match self {
            KeyMaterial::Secret(_) => Family::Hmac,
            KeyMaterial::Rsa(_) | KeyMaterial::RsaNumbers(..) => Family::Rsa,
            KeyMaterial::Point(_) | KeyMaterial::P521(_) => Family::Ec,
            KeyMaterial::Ed25519(_) => Family::Ed,
        }
    }

    /// Returns whether the signature is that of the message. The algorithm and the key are of one family.
    pub(super) fn verifies(&self, by: Algorithm, message: &[u8], signed: &[u8]) -> bool {
        match self {
            KeyMaterial::Secret(secret) => hash(by).is_some_and(|hash| {
                hmac::verify(&hmac::Key::new(hash, secret), message, signed).is_ok()
            }),
            KeyMaterial::Rsa(der) => rsa(by).is_some_and(|parameters| {
                let key = signature::UnparsedPublicKey::new(parameters, der);
                key.verify(message, signed).is_ok()
            }),
            KeyMaterial::RsaNumbers(n, e) => rsa(by).is_some_and(|parameters| {
                let key = signature::RsaPublicKeyComponents { n, e };
                key.verify(parameters, message, signed).is_ok()
            }),
            KeyMaterial::Point(key) | KeyMaterial::Ed25519(key) => {
                let verifier: &dyn signature::VerificationAlgorithm = match by {
                    Algorithm::ES256 => &signature::ECDSA_P256_SHA256_FIXED,
                    Algorithm::ES384 => &signature::ECDSA_P384_SHA384_FIXED,
                    Algorithm::Ed25519 => &signature::ED25519,
                    _ => return false,
                };
                let key = signature::UnparsedPublicKey::new(verifier, key);
                key.verify(message, signed).is_ok()
            }
            KeyMaterial::P521(key) => {
                let signed = p521::ecdsa::Signature::from_slice(signed);
                by == Algorithm::ES512
                    && signed.is_ok_and(|signed| key.verify(message, &signed).is_ok())
            }
        }
    }
}

fn hash(by: Algorithm) -> Option<hmac::Algorithm> {
    match by {
        Algorithm::HS256 => Some(hmac::HMAC_SHA256),
        Algorithm::HS384 => Some(hmac::HMAC_SHA384),
        Algorithm::HS512 => Some(hmac::HMAC_SHA512),
        _ => None,
    }
}

fn rsa(by: Algorithm) -> Option<&'static signature::RsaParameters> {
    match by {
        Algorithm::RS256 => Some(&signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&signature::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}
