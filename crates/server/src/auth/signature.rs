//! Signatures of tokens by `ring`, which TLS uses too: HMAC, RSA with PKCS #1 and PSS, ECDSA on P-256 and P-384, and Ed25519
//! (RFC 7518 §3, RFC 8037). The backends of `jsonwebtoken` would add a second implementation of each. `ring` does not support
//! P-521 (ES512).

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error, Signer, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::{hmac, signature};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |algorithm, key| Ok(Box::new(Hmac::new(*algorithm, key.as_bytes())?)),
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes `jsonwebtoken` use this verifier in this process. Idempotent.
pub(super) fn install() {
    let _ = PROVIDER.install_default();
}

/// Returns the verifier for an algorithm. A key verifies only algorithms of its family, so a published public key is never
/// used as an HMAC secret.
fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() {
        return Err(new_error(ErrorKind::InvalidAlgorithm));
    }
    let Some(by) = public_key_algorithm(*algorithm) else {
        return Ok(Box::new(Hmac::new(*algorithm, key.try_get_as_bytes()?)?));
    };
    Ok(Box::new(PublicKey { algorithm: *algorithm, by, key: key.kind().clone() }))
}

#[derive(Clone, Copy)]
enum By {
    Rsa(&'static signature::RsaParameters),
    Other(&'static dyn signature::VerificationAlgorithm),
}

fn public_key_algorithm(algorithm: Algorithm) -> Option<By> {
    Some(match algorithm {
        Algorithm::RS256 => By::Rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => By::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => By::Rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => By::Rsa(&signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => By::Rsa(&signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => By::Rsa(&signature::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => By::Other(&signature::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => By::Other(&signature::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => By::Other(&signature::ED25519),
        _ => return None,
    })
}

struct PublicKey {
    algorithm: Algorithm,
    by: By,
    key: DecodingKeyKind,
}

impl Verifier<Vec<u8>> for PublicKey {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let verified = match (self.by, &self.key) {
            (By::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                signature::RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (By::Rsa(parameters), DecodingKeyKind::SecretOrDer(key)) => {
                signature::UnparsedPublicKey::new(parameters, key).verify(message, signature)
            }
            (By::Other(algorithm), DecodingKeyKind::SecretOrDer(key)) => {
                signature::UnparsedPublicKey::new(algorithm, key).verify(message, signature)
            }
            (By::Other(_), DecodingKeyKind::RsaModulusExponent { .. }) => return Err(Error::new()),
        };
        verified.map_err(|_| Error::new())
    }
}

impl JwtVerifier for PublicKey {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

struct Hmac {
    algorithm: Algorithm,
    key: hmac::Key,
}

impl Hmac {
    fn new(algorithm: Algorithm, secret: &[u8]) -> Result<Hmac> {
        let hash = match algorithm {
            Algorithm::HS256 => hmac::HMAC_SHA256,
            Algorithm::HS384 => hmac::HMAC_SHA384,
            Algorithm::HS512 => hmac::HMAC_SHA512,
            _ => return Err(new_error(ErrorKind::InvalidAlgorithm)),
        };
        Ok(Hmac { algorithm, key: hmac::Key::new(hash, secret) })
    }
}

impl Signer<Vec<u8>> for Hmac {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, Error> {
        Ok(hmac::sign(&self.key, message).as_ref().to_vec())
    }
}

impl Verifier<Vec<u8>> for Hmac {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        hmac::verify(&self.key, message, signature).map_err(|_| Error::new())
    }
}

impl JwtSigner for Hmac {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl JwtVerifier for Hmac {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
