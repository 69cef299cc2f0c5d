//! Provider tokens: JWTs signed with ES256 by a key of the developer account ("Establishing a token-based connection to
//! APNs").

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use p256::ecdsa::signature::Verifier;
use p256::ecdsa::{Signature, VerifyingKey};
use p256::pkcs8::{DecodePrivateKey, DecodePublicKey};
use serde::Deserialize;

use super::{Environment, Reason};
use crate::StartError;

/// Lifetime of a token after `iat`.
const AGE_MAX_S: u64 = 3_600;
/// Tolerated clock skew: a token issued further in the future is invalid.
const SKEW_MAX_S: u64 = 600;
/// Maximum size of a token in bytes.
const TOKEN_BYTES_MAX: usize = 4_096;

/// A key whose provider tokens are accepted.
#[derive(Clone, Debug)]
pub struct ProviderKey {
    /// The key's id, ten characters (`kid` of the token).
    pub key_id: String,
    /// The team's id, ten characters (`iss` of the token).
    pub team_id: String,
    /// The public key, or the `.p8` file that Apple issues, in PEM.
    pub pem: String,
    /// Restricts the key to one environment; `None`: both.
    pub environment: Option<Environment>,
    /// Restricts the key to these bundle ids and their suffixed topics; empty: no restriction.
    pub topics: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Keyring {
    keys: Vec<(ProviderKey, VerifyingKey)>,
    environment: Environment,
}

/// The content of a verified token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) key_id: String,
    pub(crate) team_id: String,
    pub(crate) issued_at_s: u64,
    /// Topics the key is restricted to; empty: no restriction.
    pub(crate) topics: Vec<String>,
}

impl Claims {
    pub(crate) fn is_expired(&self, now_s: u64) -> bool {
        now_s > self.issued_at_s.saturating_add(AGE_MAX_S)
    }

    /// Returns whether the key may push to `topic`: a bundle id, or a bundle id with a suffix.
    pub(crate) fn allows(&self, topic: &str) -> bool {
        let is_of = |bundle: &String| {
            topic
                .strip_prefix(bundle.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.topics.is_empty() || self.topics.iter().any(is_of)
    }
}

/// Decodes base64url (RFC 7515 §2), and standard base64 with padding: Apple is known to accept tokens that some senders
/// encode that way. Such senders also encode signatures in DER.
fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').replace('+', "-").replace('/', "_");
    URL_SAFE_NO_PAD.decode(text).ok()
}

impl Keyring {
    pub(crate) fn new(
        keys: Vec<ProviderKey>,
        environment: Environment,
    ) -> Result<Keyring, StartError> {
        let keys = keys.into_iter().map(|key| {
            let public = VerifyingKey::from_public_key_pem(&key.pem).or_else(|_| {
                let secret = p256::ecdsa::SigningKey::from_pkcs8_pem(&key.pem)?;
                Ok::<_, p256::pkcs8::Error>(*secret.verifying_key())
            });
            let public = public.map_err(|_| {
                StartError::new(format!(
                    "key {}: this is no PEM of a P-256 key; give the .p8 file, or the public key made from it with \
                     `openssl ec -in KEY.p8 -pubout`",
                    key.key_id
                ))
            })?;
            Ok((key, public))
        });
        Ok(Keyring { keys: keys.collect::<Result<_, StartError>>()?, environment })
    }

    /// Verifies a token and its age.
    pub(crate) fn verify(&self, token: &[u8], now_s: u64) -> Result<Claims, Reason> {
        let claims = self.read(token)?;
        if claims.issued_at_s > now_s.saturating_add(SKEW_MAX_S) {
            return Err(Reason::InvalidProviderToken);
        }
        if claims.is_expired(now_s) {
            return Err(Reason::ExpiredProviderToken);
        }
        Ok(claims)
    }

    fn read(&self, token: &[u8]) -> Result<Claims, Reason> {
        #[derive(Deserialize)]
        struct Header {
            alg: String,
            kid: String,
        }
        #[derive(Deserialize)]
        struct Body {
            iss: String,
            iat: u64,
        }
        let invalid = Reason::InvalidProviderToken;
        let token = std::str::from_utf8(token).map_err(|_| invalid)?;
        if token.len() > TOKEN_BYTES_MAX {
            return Err(invalid);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(invalid)?;
        let (header, body) = signed.split_once('.').ok_or(invalid)?;
        let decode = |text: &str| decode(text).ok_or(invalid);
        let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| invalid)?;
        let body: Body = serde_json::from_slice(&decode(body)?).map_err(|_| invalid)?;
        let signature = decode(signature)?;
        let signature =
            Signature::from_slice(&signature).or_else(|_| Signature::from_der(&signature));
        let signature = signature.map_err(|_| invalid)?;
        let is_id =
            |id: &str| id.len() == 10 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if header.alg != "ES256" || !is_id(&header.kid) || !is_id(&body.iss) {
            return Err(invalid);
        }
        let mut topics = Vec::new();
        if !self.keys.is_empty() {
            let known = self.keys.iter().find(|(key, _)| key.key_id == header.kid);
            let (key, public) = known.ok_or(invalid)?;
            if key.team_id != body.iss || public.verify(signed.as_bytes(), &signature).is_err() {
                return Err(invalid);
            }
            if key.environment.is_some_and(|environment| environment != self.environment) {
                return Err(Reason::BadEnvironmentKeyIdInToken);
            }
            topics.clone_from(&key.topics);
        }
        Ok(Claims { key_id: header.kid, team_id: body.iss, issued_at_s: body.iat, topics })
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use p256::ecdsa::SigningKey;
    use p256::ecdsa::signature::Signer;
    use p256::pkcs8::EncodePublicKey;

    use super::*;

    #[test]
    fn a_token_is_read_in_either_base64_with_either_signature() {
        let key = SigningKey::from_slice(&[7; 32]).unwrap();
        let pem = key.verifying_key().to_public_key_pem(p256::pkcs8::LineEnding::LF).unwrap();
        let known = ProviderKey {
            key_id: "ABC123DEFG".to_owned(),
            team_id: "DEF123GHIJ".to_owned(),
            pem,
            environment: None,
            topics: Vec::new(),
        };
        let keyring = Keyring::new(vec![known], Environment::Sandbox).unwrap();
        // Lengths that need padding, and a character that differs between the alphabets.
        let header = r#"{"alg":"ES256","kid":"ABC123DEFG","a":"~~~?"}"#;
        let body = r#"{"iss":"DEF123GHIJ","iat":1000}"#;
        for (standard, der) in [(false, false), (true, false), (true, true)] {
            let encode = |bytes: &[u8]| {
                if standard { STANDARD.encode(bytes) } else { URL_SAFE_NO_PAD.encode(bytes) }
            };
            let signed = format!("{}.{}", encode(header.as_bytes()), encode(body.as_bytes()));
            let signature: Signature = key.sign(signed.as_bytes());
            let signature =
                if der { signature.to_der().as_bytes().to_vec() } else { signature.to_vec() };
            let token = format!("{signed}.{}", encode(&signature));
            let claims = keyring.verify(token.as_bytes(), 1_000).unwrap();
            assert_eq!(claims.issued_at_s, 1_000);
            let forged = token.replacen("eyJ", "eyI", 1);
            assert!(keyring.verify(forged.as_bytes(), 1_000).is_err());
        }
    }
}
