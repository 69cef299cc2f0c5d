//! Provider tokens: ES256 tokens that authenticate a team ("Establishing a token-based connection").

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use p256::ecdsa::signature::Signer;
use p256::ecdsa::{Signature, SigningKey};

use crate::key_text;
use crate::service::Authorization;

/// Apple accepts a token for an hour, and accepts no new one within twenty minutes; this is in between.
const RENEW_AFTER: Duration = Duration::from_secs(40 * 60);
const RENEW_NOT_BEFORE: Duration = Duration::from_secs(20 * 60);

/// A signing key: the `.p8` file of the developer account, its id and the team id.
#[derive(Clone)]
pub struct ProviderKey {
    key: SigningKey,
    key_id: String,
    team_id: String,
}

impl fmt::Debug for ProviderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key itself is secret.
        f.debug_struct("ProviderKey")
            .field("key_id", &self.key_id)
            .field("team_id", &self.team_id)
            .finish_non_exhaustive()
    }
}

impl ProviderKey {
    /// Reads a key.
    ///
    /// # Errors
    ///
    /// Names the argument that is wrong and what it must be.
    pub fn new(pem: &str, key_id: &str, team_id: &str) -> Result<ProviderKey, String> {
        for (name, id) in [("key id", key_id), ("team id", team_id)] {
            if id.len() != 10 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                return Err(format!("{name} {id:?}: it is to have ten letters and digits"));
            }
        }
        if !pem.contains("-----BEGIN") {
            return Err(
                "key: this is no PEM file; it begins with -----BEGIN PRIVATE KEY-----".to_owned()
            );
        }
        if !pem.contains("PRIVATE KEY-----") {
            let kind = pem.split("-----").nth(1).unwrap_or_default();
            return Err(format!(
                "key: this is {kind:?}; the .p8 file of the developer account holds a PRIVATE KEY"
            ));
        }
        let key = key_text::p256_key(pem)
            .ok_or("key: not an elliptic-curve key on P-256, as APNs keys are")?;
        Ok(ProviderKey { key: key.into(), key_id: key_id.to_owned(), team_id: team_id.to_owned() })
    }

    /// Creates a key from its secret number, for tests and benchmarks.
    ///
    /// # Errors
    ///
    /// The number is 0 or too large.
    pub fn from_scalar(
        scalar: &[u8; 32],
        key_id: &str,
        team_id: &str,
    ) -> Result<ProviderKey, String> {
        let key = SigningKey::from_slice(scalar).map_err(|error| format!("key: {error}"))?;
        Ok(ProviderKey { key, key_id: key_id.to_owned(), team_id: team_id.to_owned() })
    }

    /// Creates a token issued at this time (RFC 7515, RFC 7518 §3.4).
    fn sign(&self, issued_at_s: u64) -> String {
        let header = format!(r#"{{"alg":"ES256","kid":"{}"}}"#, self.key_id);
        let claims = format!(r#"{{"iss":"{}","iat":{issued_at_s}}}"#, self.team_id);
        let mut token = BASE64_URL_SAFE_NO_PAD.encode(header);
        token.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(claims, &mut token);
        let signature: Signature = self.key.sign(token.as_bytes());
        token.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(signature.to_bytes(), &mut token);
        token
    }
}

/// The token of a key, created on demand and shared by all senders that clone it: Apple limits the tokens of a key,
/// not of a sender.
#[derive(Clone, Debug)]
pub struct ProviderToken {
    key: Arc<ProviderKey>,
    current: Arc<Mutex<Option<Current>>>,
}

/// The state of a token that the service refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenAge {
    /// A newer one is in use: the refusal does not apply to that.
    Replaced,
    /// It may be replaced.
    Old,
    /// It is too young to be replaced, and cannot have expired by our clock, which gives this age.
    Young(Duration),
}

#[derive(Debug)]
struct Current {
    authorization: Authorization,
    issued_at: SystemTime,
    /// Apple has called it expired.
    spent: bool,
}

impl ProviderToken {
    /// Creates the provider token of this key.
    pub fn new(key: ProviderKey) -> ProviderToken {
        ProviderToken { key: Arc::new(key), current: Arc::default() }
    }

    /// Returns the value of the `authorization` header for a request sent at `now`.
    pub fn authorization(&self, now: SystemTime) -> Authorization {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = match &*current {
            None => 0,
            Some(token) => {
                // The age is negative if the clock was set back.
                let age = now.duration_since(token.issued_at).unwrap_or(Duration::MAX);
                if age < RENEW_NOT_BEFORE || (age < RENEW_AFTER && !token.spent) {
                    return token.authorization.clone();
                }
                token.authorization.generation + 1
            }
        };
        let issued_at_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let value = format!("bearer {}", self.key.sign(issued_at_s)).into();
        let authorization = Authorization { value, generation };
        *current =
            Some(Current { authorization: authorization.clone(), issued_at: now, spent: false });
        authorization
    }

    /// Returns the state of the token of this generation after a refusal.
    pub(super) fn standing(&self, generation: u64, now: SystemTime) -> TokenAge {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some(token) if token.authorization.generation == generation => {
                match now.duration_since(token.issued_at) {
                    Ok(age) if age < RENEW_NOT_BEFORE => TokenAge::Young(age),
                    // The age is negative if the clock was set back.
                    _ => TokenAge::Old,
                }
            }
            _ => TokenAge::Replaced,
        }
    }

    /// Records that Apple has called the token of this generation expired. Returns whether a new one can be created: a
    /// token that is younger than twenty minutes has not expired; the clocks differ.
    pub fn handle_spent(&self, generation: u64, now: SystemTime) -> bool {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *current {
            Some(token) if token.authorization.generation == generation => {
                token.spent = true;
                let age = now.duration_since(token.issued_at).unwrap_or(Duration::MAX);
                age >= RENEW_NOT_BEFORE
            }
            // It has been renewed already.
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use p256::ecdsa::signature::Verifier;
    use p256::pkcs8::{EncodePrivateKey, LineEnding};

    use super::*;

    fn pem() -> String {
        let secret = p256::SecretKey::from_slice(&[7; 32]).expect("a scalar");
        secret.to_pkcs8_pem(LineEnding::LF).expect("PKCS #8").to_string()
    }

    fn key() -> ProviderKey {
        ProviderKey::new(&pem(), "ABC123DEFG", "TEAM123456").expect("a key")
    }

    const NOON: u64 = 1_800_000_000;

    fn at(minutes: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(NOON + 60 * minutes)
    }

    #[test]
    fn a_token_says_who_and_when_and_is_signed() {
        let token = ProviderToken::new(key()).authorization(at(0)).value;
        let token = token.strip_prefix("bearer ").expect("a bearer token");
        let parts: Vec<&str> = token.split('.').collect();
        let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).expect("base64url");
        assert_eq!(decode(parts[0]), br#"{"alg":"ES256","kid":"ABC123DEFG"}"#);
        assert_eq!(decode(parts[1]), br#"{"iss":"TEAM123456","iat":1800000000}"#);
        let signed = format!("{}.{}", parts[0], parts[1]);
        let signature = Signature::from_slice(&decode(parts[2])).expect("64 bytes");
        key().key.verifying_key().verify(signed.as_bytes(), &signature).expect("its signature");
    }

    #[test]
    fn a_token_is_shared_and_renewed_between_twenty_and_sixty_minutes() {
        let token = ProviderToken::new(key());
        let other = token.clone();
        let first = token.authorization(at(0));
        assert_eq!(other.authorization(at(39)).value, first.value);
        assert_eq!(token.authorization(at(41)).generation, first.generation + 1);
        assert_eq!(other.authorization(at(42)).generation, first.generation + 1);
    }

    #[test]
    fn a_spent_token_is_renewed_once_and_not_too_early() {
        let token = ProviderToken::new(key());
        let first = token.authorization(at(0));
        let young = TokenAge::Young(Duration::from_secs(5 * 60));
        assert_eq!(token.standing(first.generation, at(5)), young);
        assert!(!token.handle_spent(first.generation, at(5)), "five minutes old: the clock is off");
        assert_eq!(token.authorization(at(6)).generation, first.generation);
        assert_eq!(token.standing(first.generation, at(25)), TokenAge::Old);
        assert!(token.handle_spent(first.generation, at(25)));
        let second = token.authorization(at(25)).generation;
        assert_eq!(second, first.generation + 1);
        // A late answer to the old one spends nothing.
        assert_eq!(token.standing(first.generation, at(26)), TokenAge::Replaced);
        assert!(token.handle_spent(first.generation, at(26)));
        assert_eq!(token.authorization(at(26)).generation, second);
    }

    #[test]
    fn malformed_key_is_refused_with_a_reason() {
        let refused = |pem: &str, key_id: &str, team_id: &str| {
            ProviderKey::new(pem, key_id, team_id).expect_err("refused")
        };
        assert!(refused(&pem(), "short", "TEAM123456").starts_with("key id"));
        assert!(refused(&pem(), "ABC123DEFG", "team").starts_with("team id"));
        assert!(refused("hello", "ABC123DEFG", "TEAM123456").contains("no PEM"));
        let certificate = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        assert!(refused(certificate, "ABC123DEFG", "TEAM123456").contains("CERTIFICATE"));
        // An Ed25519 key (RFC 8410 §10.3).
        let ed25519 = "-----BEGIN PRIVATE KEY-----\n\
                       MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
                       -----END PRIVATE KEY-----\n";
        assert!(refused(ed25519, "ABC123DEFG", "TEAM123456").contains("P-256"));
    }
}
