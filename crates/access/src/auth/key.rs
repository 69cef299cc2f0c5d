//! Keys that verify tokens: a secret, or a public key in PEM. A key verifies only the algorithms of its family.

use std::hash::{DefaultHasher, Hasher};

use dunlin_config::Secret;
use dunlin_wire::text::trim_byte_order_mark;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_NIST_EC_P521,
    OID_PKCS1_RSAENCRYPTION, OID_SIG_ED25519, Oid,
};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::RSAPublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

pub use super::signature::Family;
use super::signature::{Algorithm, KeyMaterial};

use Algorithm::{
    ES256, ES384, ES512, Ed25519, HS256, HS384, HS512, PS256, PS384, PS512, RS256, RS384, RS512,
};

pub(super) const HMAC: &[Algorithm] = &[HS256, HS384, HS512];
pub(super) const RSA: &[Algorithm] = &[RS256, RS384, RS512, PS256, PS384, PS512];
/// Accepted sizes of RSA keys, in bits: those that `ring` supports.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// A key that verifies tokens.
#[derive(Clone, Debug)]
pub(super) struct Key {
    /// Identifies a key within this process.
    pub(super) fingerprint: u64,
    pub(super) material: KeyMaterial,
    /// The accepted algorithms: those of its family, for ECDSA the one of its curve.
    pub(super) algorithms: Vec<Algorithm>,
}

/// Why a text is not a valid key.
pub(crate) type KeyError = &'static str;

/// Returns the fingerprint of a key, as in [`Identity::key`](super::Identity::key).
pub fn fingerprint(secret: &Secret) -> u64 {
    fingerprint_of(secret.reveal().as_bytes())
}

pub(super) fn fingerprint_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Whether the text is PEM rather than a secret.
fn is_pem(text: &str) -> bool {
    trim_byte_order_mark(text).trim_start().starts_with("-----BEGIN")
}

impl Key {
    pub(super) fn new(fingerprint: u64, material: KeyMaterial, algorithms: &[Algorithm]) -> Key {
        Key { fingerprint, material, algorithms: algorithms.to_vec() }
    }

    /// Parses a public key if the text is PEM, else an HMAC secret.
    ///
    /// # Errors
    /// The text is PEM without a supported public key.
    pub(super) fn of(secret: &Secret) -> Result<Key, KeyError> {
        let text = secret.reveal();
        if is_pem(text) {
            return Key::of_pem(text);
        }
        Ok(Key::new(fingerprint(secret), KeyMaterial::Secret(text.as_bytes().to_vec()), HMAC))
    }

    /// Parses a public key (`PUBLIC KEY`, `RSA PUBLIC KEY`), or takes that of a certificate.
    ///
    /// # Errors
    /// The text has no supported public key.
    pub(super) fn of_pem(text: &str) -> Result<Key, KeyError> {
        const UNREADABLE: KeyError = "it is no public key in PEM that can be read";
        let pem = Pem::iter_from_buffer(trim_byte_order_mark(text).as_bytes())
            .next()
            .and_then(Result::ok);
        let pem = pem.ok_or(UNREADABLE)?;
        let number = fingerprint_of(text.as_bytes());
        match pem.label.as_str() {
            "PUBLIC KEY" => {
                let spki = SubjectPublicKeyInfo::from_der(&pem.contents).map_err(|_| UNREADABLE)?;
                Key::of_spki(number, &spki.1)
            }
            "CERTIFICATE" => {
                let certificate = pem.parse_x509().map_err(|_| UNREADABLE)?;
                Key::of_spki(number, certificate.public_key())
            }
            "RSA PUBLIC KEY" => Key::of_rsa(number, &pem.contents),
            label if label.ends_with("PRIVATE KEY") => {
                Err("this is a private key, and the server needs the public one alone")
            }
            _ => Err(UNREADABLE),
        }
    }

    fn of_spki(number: u64, spki: &SubjectPublicKeyInfo<'_>) -> Result<Key, KeyError> {
        let (bytes, kind) = (&*spki.subject_public_key.data, &spki.algorithm.algorithm);
        let is = |oid: &Oid<'_>| kind == oid;
        if is(&OID_PKCS1_RSAENCRYPTION) {
            return Key::of_rsa(number, bytes);
        }
        if is(&OID_SIG_ED25519) {
            return Key::of_ed25519(number, bytes);
        }
        if is(&OID_KEY_TYPE_EC_PUBLIC_KEY) {
            let curve = spki.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
            let algorithm = match curve {
                Some(curve) if curve == OID_EC_P256 => ES256,
                Some(curve) if curve == OID_NIST_EC_P384 => ES384,
                Some(curve) if curve == OID_NIST_EC_P521 => ES512,
                _ => return Err("its curve is none of P-256, P-384 and P-521"),
            };
            return Key::of_point(number, bytes, algorithm);
        }
        Err("it is neither RSA, ECDSA nor Ed25519")
    }

    /// `der`: RFC 8017, appendix A.1.1.
    fn of_rsa(number: u64, der: &[u8]) -> Result<Key, KeyError> {
        let (_, rsa) = RSAPublicKey::from_der(der).map_err(|_| "it is no RSA key")?;
        is_rsa_size(rsa.modulus)?;
        Ok(Key::new(number, KeyMaterial::Rsa(der.to_vec()), RSA))
    }

    /// Creates a key from an uncompressed point (SEC 1 §2.3.3).
    pub(super) fn of_point(
        number: u64,
        point: &[u8],
        algorithm: Algorithm,
    ) -> Result<Key, KeyError> {
        const OTHER: KeyError = "its point is not of its curve, or is compressed";
        let bytes = match algorithm {
            ES256 => 65,
            ES384 => 97,
            _ => 133,
        };
        if point.len() != bytes || point[0] != 4 {
            return Err(OTHER);
        }
        let material = match algorithm {
            ES512 => {
                let key = p521::ecdsa::VerifyingKey::from_sec1_bytes(point).map_err(|_| OTHER)?;
                KeyMaterial::P521(Box::new(key))
            }
            _ => KeyMaterial::Point(point.to_vec()),
        };
        Ok(Key::new(number, material, &[algorithm]))
    }

    pub(super) fn of_ed25519(number: u64, key: &[u8]) -> Result<Key, KeyError> {
        if key.len() != 32 {
            return Err("an Ed25519 key has 32 bytes");
        }
        Ok(Key::new(number, KeyMaterial::Ed25519(key.to_vec()), &[Ed25519]))
    }
}

/// Checks the size of a big-endian modulus.
pub(super) fn is_rsa_size(modulus: &[u8]) -> Result<(), KeyError> {
    let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
    let bits = match modulus.get(zeros) {
        Some(first) => (modulus.len() - zeros) * 8 - first.leading_zeros() as usize,
        None => 0,
    };
    RSA_BITS.contains(&bits).then_some(()).ok_or("an RSA key has from 2048 to 8192 bits")
}

/// Checks the value of a named key before the setting is accepted.
///
/// # Errors
/// It is not a supported key.
pub fn judge(secret: &Secret) -> Result<(), KeyError> {
    Key::of(secret).map(|_| ())
}

/// Checks a public key before the setting is accepted.
///
/// # Errors
/// It is not a supported key, or of another family.
pub fn judge_pem(text: &str, family: Family) -> Result<(), KeyError> {
    let is = Key::of_pem(text)?.material.family();
    if is == family { Ok(()) } else { Err("it is a public key of another kind") }
}

/// Checks an HMAC secret before the setting is accepted.
///
/// # Errors
/// It is a key in PEM.
pub fn judge_secret(secret: &Secret) -> Result<(), KeyError> {
    match is_pem(secret.reveal()) {
        true => Err("this is a key in PEM, and no secret: set `rsa_public_key` or the like"),
        false => Ok(()),
    }
}
