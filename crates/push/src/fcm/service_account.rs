//! The service account, a JSON file from Google, and the assertion it signs (RFC 7523).

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivateKeyDer;
use serde::Deserialize;

use crate::key_text;

/// The requested scope of an access token.
const SCOPE: &str = "https://www.googleapis.com/auth/firebase.messaging";
/// The validity of an assertion, Google's maximum.
const ASSERTION_VALID_S: u64 = 3_600;

/// The service account of a project, with its key.
pub struct ServiceAccount {
    project_id: String,
    client_email: String,
    private_key_id: Option<String>,
    token_uri: String,
    key: RsaKeyPair,
}

impl fmt::Debug for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceAccount")
            .field("project_id", &self.project_id)
            .field("client_email", &self.client_email)
            .finish_non_exhaustive()
    }
}

/// Why a service account's file is invalid; the text names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ServiceAccountError(String);

impl ServiceAccount {
    /// Reads the JSON file ("Generate new private key" in the Firebase console).
    ///
    /// # Errors
    /// Names the field that is missing or wrong.
    pub fn from_json(json: &str) -> Result<ServiceAccount, ServiceAccountError> {
        #[derive(Deserialize)]
        struct Json {
            #[serde(rename = "type")]
            kind: String,
            project_id: String,
            client_email: String,
            private_key: String,
            private_key_id: Option<String>,
            token_uri: String,
        }
        let wrong = |text: String| ServiceAccountError(text);
        let json: Json = serde_json::from_str(key_text::unmarked(json))
            .map_err(|error| wrong(format!("this is no service account's file: {error}")))?;
        if json.kind != "service_account" {
            return Err(wrong(format!(
                "type: {:?} is no service account; make a key in the Firebase console under Service accounts",
                json.kind
            )));
        }
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b':' | b'.');
        if json.project_id.is_empty() || !json.project_id.bytes().all(legal) {
            return Err(wrong(format!("project_id: {:?} is invalid", json.project_id)));
        }
        if !json.token_uri.starts_with("https://") {
            return Err(wrong(format!(
                "token_uri: {:?} does not begin with https://",
                json.token_uri
            )));
        }
        let key = match key_text::private_key(&json.private_key) {
            Some(PrivateKeyDer::Pkcs8(der)) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
            Some(PrivateKeyDer::Pkcs1(der)) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
            _ => {
                let why = "private_key: it is no PEM of a private key (PKCS #8 or PKCS #1)";
                return Err(wrong(why.to_owned()));
            }
        };
        let key = key.map_err(|error| {
            wrong(format!("private_key: it is no RSA key to sign with ({error})"))
        })?;
        Ok(ServiceAccount {
            project_id: json.project_id,
            client_email: json.client_email,
            private_key_id: json.private_key_id,
            token_uri: json.token_uri,
            key,
        })
    }

    /// Returns the project, which is part of every request's path.
    pub fn project_id(&self) -> &str {
        &self.project_id
    }

    /// Returns the URL that issues access tokens.
    pub fn token_uri(&self) -> &str {
        &self.token_uri
    }

    /// Returns a JWT that requests an access token (RS256). `None` if the system has no random numbers.
    pub(super) fn assertion(&self, now_s: u64) -> Option<String> {
        let mut header = serde_json::json!({ "alg": "RS256", "typ": "JWT" });
        if let Some(id) = &self.private_key_id {
            header["kid"] = id.as_str().into();
        }
        let claims = serde_json::json!({
            "iss": self.client_email,
            "scope": SCOPE,
            "aud": self.token_uri,
            "iat": now_s,
            "exp": now_s + ASSERTION_VALID_S,
        });
        let part = |json: serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let mut signature = vec![0; self.key.public().modulus_len()];
        let random = SystemRandom::new();
        self.key.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).ok()?;
        Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}
