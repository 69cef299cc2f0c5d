//! VAPID tokens, signed with the application's key (RFC 8292), and kept for each push service until shortly before
//! their expiry.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use p256::ecdsa::signature::Signer;
use p256::ecdsa::{Signature, SigningKey};
use p256::elliptic_curve::sec1::ToSec1Point;

use crate::key_text::{self, BASE64_URL as BASE64};

/// The validity of a token; a service may refuse one of more than a day (RFC 8292 §2).
const VALID_S: u64 = 12 * 3_600;
/// A token is renewed this long before its expiry.
const RENEW_BEFORE_S: u64 = 3_600;
/// Most push services to keep tokens for; an application uses a few.
const ORIGINS_MAX: usize = 1_000;

/// The application's key, and its tokens.
pub struct Vapid {
    key: SigningKey,
    public: String,
    contact: String,
    tokens: HashMap<String, Token>,
}

struct Token {
    authorization: Arc<str>,
    expires_s: u64,
}

/// Why a key or a contact is invalid; the text names the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct VapidError(&'static str);

impl fmt::Debug for Vapid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vapid").field("public", &self.public).finish_non_exhaustive()
    }
}

impl Vapid {
    /// Creates the key from the private key, in Base64 as written by the `web-push` tools or in PEM (PKCS #8, or SEC 1 as
    /// written by `openssl ecparam`), and a contact for push services: `mailto:...` or `https://...`.
    ///
    /// # Errors
    ///
    /// The key is not a P-256 key, or the contact has another form.
    pub fn new(private_key: &str, contact: &str) -> Result<Vapid, VapidError> {
        let key = key_text::p256_key(private_key).ok_or(VapidError(
            "the VAPID key is no private key of P-256; give its 32 bytes in Base64, or a PEM file",
        ))?;
        if !["mailto:", "https://"].iter().any(|scheme| contact.starts_with(scheme)) {
            return Err(VapidError("the VAPID contact has to begin with mailto: or https://"));
        }
        if contact.contains(|c: char| c.is_whitespace() || c.is_control() || "<>".contains(c)) {
            // Apple answers it with BadJwtToken and no details.
            return Err(VapidError(
                "the VAPID contact has a space or a bracket; write it as in mailto:ops@example.com",
            ));
        }
        let public = BASE64.encode(key.public_key().to_sec1_point(false).as_bytes());
        let key = SigningKey::from(key);
        Ok(Vapid { key, public, contact: contact.to_owned(), tokens: HashMap::new() })
    }

    /// Returns the public key in base64url, which the page passes as `applicationServerKey`.
    pub fn public_key(&self) -> &str {
        &self.public
    }

    /// Returns the `authorization` header for the push service with this origin.
    pub fn authorization(&mut self, origin: &str, now_s: u64) -> Arc<str> {
        if let Some(token) = self.tokens.get(origin)
            && token.expires_s > now_s + RENEW_BEFORE_S
        {
            return Arc::clone(&token.authorization);
        }
        let expires_s = now_s + VALID_S;
        let claims = serde_json::json!({ "aud": origin, "exp": expires_s, "sub": self.contact });
        let header = BASE64.encode(r#"{"typ":"JWT","alg":"ES256"}"#);
        let signed = format!("{header}.{}", BASE64.encode(claims.to_string()));
        let signature: Signature = self.key.sign(signed.as_bytes());
        let signature = BASE64.encode(signature.to_bytes());
        let authorization: Arc<str> =
            format!("vapid t={signed}.{signature}, k={}", self.public).into();
        if self.tokens.len() >= ORIGINS_MAX {
            self.tokens.retain(|_, token| token.expires_s > now_s + RENEW_BEFORE_S);
        }
        // Subscriptions contain the origins, so an attacker could use many; further tokens are not kept.
        if self.tokens.len() < ORIGINS_MAX {
            let token = Token { authorization: Arc::clone(&authorization), expires_s };
            self.tokens.insert(origin.to_owned(), token);
        }
        authorization
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use p256::ecdsa::VerifyingKey;
    use p256::ecdsa::signature::Verifier;

    const KEY: &str = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw";
    const NOW_S: u64 = 1_700_000_000;

    fn vapid() -> Vapid {
        Vapid::new(KEY, "mailto:push@example.com").unwrap()
    }

    #[test]
    fn a_token_names_the_service_and_is_signed_with_the_key_beside_it() {
        let authorization = vapid().authorization("https://push.example.net", NOW_S);
        let (token, key) =
            authorization.strip_prefix("vapid t=").unwrap().split_once(", k=").unwrap();
        let public = VerifyingKey::from_sec1_bytes(&BASE64.decode(key).unwrap()).unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = Signature::from_slice(&BASE64.decode(signature).unwrap()).unwrap();
        public.verify(signed.as_bytes(), &signature).unwrap();
        let claims = BASE64.decode(signed.split_once('.').unwrap().1).unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(claims["aud"], "https://push.example.net");
        assert_eq!(claims["exp"], NOW_S + 43_200);
        assert_eq!(claims["sub"], "mailto:push@example.com");
    }

    #[test]
    fn a_token_is_kept_for_its_service_until_an_hour_before_its_end() {
        let mut vapid = vapid();
        let first = vapid.authorization("https://a.example", NOW_S);
        assert!(Arc::ptr_eq(&first, &vapid.authorization("https://a.example", NOW_S + 39_599)));
        assert_ne!(first, vapid.authorization("https://b.example", NOW_S));
        assert_ne!(first, vapid.authorization("https://a.example", NOW_S + 39_600));
    }

    #[test]
    fn one_key_is_read_in_each_form_that_tools_write() {
        let bytes = BASE64.decode(KEY).unwrap();
        let secret = p256::SecretKey::from_slice(&bytes).unwrap();
        let sec1 = secret.to_sec1_pem(Default::default()).unwrap().to_string();
        let pkcs8 = pkcs8::EncodePrivateKey::to_pkcs8_pem(&secret, Default::default());
        let pkcs8 = pkcs8.unwrap().to_string();
        let standard = base64::prelude::BASE64_STANDARD.encode(&bytes);
        assert!(standard.contains(['+', '/', '=']), "it differs from the other alphabet");
        // As `openssl ecparam -genkey` writes it.
        let with_curve = format!(
            "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n{sec1}"
        );
        let escaped = pkcs8.replace('\n', "\\n");
        for key in [standard, format!("\u{feff}{sec1}"), with_curve, escaped, pkcs8] {
            let read = Vapid::new(&key, "mailto:a@b.example").unwrap_or_else(|_| panic!("{key}"));
            assert_eq!(read.public_key(), vapid().public_key(), "{key}");
        }
    }

    #[test]
    fn a_wrong_key_or_contact_names_the_fix() {
        assert!(Vapid::new("abc", "mailto:a@b").unwrap_err().to_string().contains("32 bytes"));
        assert!(Vapid::new(KEY, "a@b").unwrap_err().to_string().contains("mailto:"));
        let named = Vapid::new(KEY, "mailto: <a@b.example>").unwrap_err().to_string();
        assert!(named.contains("bracket"), "{named}");
    }
}
