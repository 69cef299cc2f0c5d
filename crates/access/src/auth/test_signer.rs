//! Lets tests and fuzz targets sign tokens with `jsonwebtoken`: HMAC by `ring`.

use jsonwebtoken::Algorithm;
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error, Signer};
use ring::hmac;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |algorithm, key| Ok(Box::new(Hmac::new(*algorithm, key.as_bytes())?)),
    verifier_factory: |_, _| Err(new_error(ErrorKind::InvalidAlgorithm)),
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes `jsonwebtoken` use this signer in this process. Idempotent.
pub(super) fn install() {
    let _ = PROVIDER.install_default();
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

impl JwtSigner for Hmac {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
