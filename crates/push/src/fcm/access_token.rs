//! Access tokens: fetched with an assertion, kept until shortly before their expiry, and fetched once for all waiting
//! requests.

use std::sync::Arc;
use std::time::Duration;

use dunlin_wire::backoff::Backoff;
use serde::Deserialize;

use super::ServiceAccount;

/// A token is renewed this long before its expiry, and used meanwhile.
const RENEW_BEFORE_S: u64 = 300;
/// Delays after failed attempts.
const BACKOFF: Backoff = Backoff { min_ms: 1_000, max_ms: 300_000 };
/// The longest `Retry-After` that is waited for.
const RETRY_AFTER_S_MAX: u64 = 3_600;
/// Refusals within this time count as one of the same token.
const REFUSED_TOGETHER_S: u64 = 30;

/// The access token of a service account. [`poll_request`](AccessTokens::poll_request) returns the request when one
/// is to be fetched; pass the result to [`handle_response`](AccessTokens::handle_response) or
/// [`handle_failure`](AccessTokens::handle_failure).
#[derive(Debug)]
pub struct AccessTokens {
    account: ServiceAccount,
    token: Option<Token>,
    generation: u64,
    fetching: bool,
    /// The time of the next attempt at the earliest, in seconds since 1970.
    not_before_s: u64,
    failures: u32,
    /// When FCM last refused a token.
    refused_s: u64,
}

#[derive(Debug)]
struct Token {
    authorization: Arc<str>,
    expires_s: u64,
}

/// A POST request for an access token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequest {
    /// The complete URL.
    pub url: String,
    /// `content-type` of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

/// Why there is no access token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The account is refused; contains Google's message. Fix the account before another attempt.
    #[error("the service account is refused: {0}")]
    Refused(String),
    /// The response is invalid, or there was none; another attempt follows.
    #[error("no access token yet: {0}")]
    Unavailable(String),
}

impl AccessTokens {
    /// Creates the state without a token.
    pub fn new(account: ServiceAccount) -> AccessTokens {
        AccessTokens {
            account,
            token: None,
            generation: 0,
            fetching: false,
            not_before_s: 0,
            failures: 0,
            refused_s: 0,
        }
    }

    /// Returns the service account.
    pub fn account(&self) -> &ServiceAccount {
        &self.account
    }

    /// Returns the `authorization` header of requests sent now and its generation; `None`: fetch a token first.
    pub fn authorization(&self, now_s: u64) -> Option<(Arc<str>, u64)> {
        let token = self.token.as_ref().filter(|token| token.expires_s > now_s)?;
        Some((Arc::clone(&token.authorization), self.generation))
    }

    /// Returns whether a token must be fetched now.
    pub fn is_due(&self, now_s: u64) -> bool {
        let fresh = |token: &Token| token.expires_s > now_s + RENEW_BEFORE_S;
        !self.token.as_ref().is_some_and(fresh) && !self.fetching && now_s >= self.not_before_s
    }

    /// Returns the request that fetches a token, if one is due and none is in flight.
    pub fn poll_request(&mut self, now_s: u64) -> Option<TokenRequest> {
        if !self.is_due(now_s) {
            return None;
        }
        let assertion = self.account.assertion(now_s)?;
        self.fetching = true;
        Some(TokenRequest {
            url: self.account.token_uri().to_owned(),
            content_type: "application/x-www-form-urlencoded",
            body: format!(
                "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion={assertion}"
            ),
        })
    }

    /// Returns the time until the next attempt; zero if it may begin now.
    pub fn wait(&self, now_s: u64) -> Duration {
        Duration::from_secs(self.not_before_s.saturating_sub(now_s))
    }

    /// Handles the response to the request; `retry_after` is its `Retry-After`, if it has one.
    ///
    /// # Errors
    ///
    /// Why it has no token.
    pub fn handle_response(
        &mut self,
        status: u16,
        body: &[u8],
        retry_after: Option<Duration>,
        now_s: u64,
    ) -> Result<(), TokenError> {
        #[derive(Deserialize)]
        struct TokenBody {
            access_token: String,
            expires_in: u64,
        }
        #[derive(Deserialize)]
        struct ErrorBody {
            error: String,
            error_description: Option<String>,
        }
        self.fetching = false;
        if status == 200
            && let Ok(granted) = serde_json::from_slice::<TokenBody>(body)
            && granted.access_token.bytes().all(|byte| byte.is_ascii_graphic())
        {
            self.generation += 1;
            self.failures = 0;
            self.not_before_s = 0;
            self.token = Some(Token {
                authorization: format!("Bearer {}", granted.access_token).into(),
                expires_s: now_s.saturating_add(granted.expires_in),
            });
            return Ok(());
        }
        let error = match serde_json::from_slice::<ErrorBody>(body) {
            // A server that is busy (408, 429, 5xx) says nothing about the account.
            Ok(ErrorBody { error, error_description })
                if (400..500).contains(&status) && !matches!(status, 408 | 429) =>
            {
                let more = error_description.map_or(String::new(), |text| format!(" ({text})"));
                TokenError::Refused(format!("{error}{more}"))
            }
            _ => TokenError::Unavailable(format!("the token server answered {status}")),
        };
        self.back_off(now_s);
        if let (TokenError::Unavailable(_), Some(after)) = (&error, retry_after) {
            let after_s = after.as_secs().min(RETRY_AFTER_S_MAX);
            self.not_before_s = self.not_before_s.max(now_s + after_s);
        }
        Err(error)
    }

    /// Handles a request for a token that got no response.
    pub fn handle_failure(&mut self, now_s: u64) {
        self.fetching = false;
        self.back_off(now_s);
    }

    /// Drops the token of this generation, which FCM has called expired. A newer one stays in use.
    pub fn handle_spent(&mut self, generation: u64) {
        if generation == self.generation {
            self.token = None;
        }
    }

    /// Drops the token after FCM refused one of unknown generation. Other requests in flight with it are refused, too;
    /// their responses do not drop the next token.
    pub fn handle_refused(&mut self, now_s: u64) {
        if now_s >= self.refused_s + REFUSED_TOGETHER_S {
            self.refused_s = now_s;
            self.token = None;
        }
    }

    fn back_off(&mut self, now_s: u64) {
        self.failures = self.failures.saturating_add(1);
        self.not_before_s = now_s + BACKOFF.delay_ms(self.failures) / 1_000;
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use ring::signature::{KeyPair, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    const NOW_S: u64 = 1_700_000_000;
    /// Made for this test; it opens nothing.
    const FILE: &str = include_str!("../../tests/data/service-account.json");

    fn tokens() -> AccessTokens {
        AccessTokens::new(ServiceAccount::from_json(FILE).unwrap())
    }

    fn grant(tokens: &mut AccessTokens, token: &str, now_s: u64) {
        assert!(tokens.poll_request(now_s).is_some());
        let body =
            format!(r#"{{"access_token":"{token}","expires_in":3599,"token_type":"Bearer"}}"#);
        tokens.handle_response(200, body.as_bytes(), None, now_s).unwrap();
    }

    #[test]
    fn the_assertion_is_signed_by_the_accounts_key() {
        let request = tokens().poll_request(NOW_S).unwrap();
        assert_eq!(request.url, "https://oauth2.googleapis.com/token");
        let assertion = request.body.split_once("&assertion=").unwrap().1;
        let (signed, signature) = assertion.rsplit_once('.').unwrap();
        let file: serde_json::Value = serde_json::from_str(FILE).unwrap();
        let pem = file["private_key"].as_str().unwrap();
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).unwrap();
        let public = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).unwrap().public_key().clone();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public)
            .verify(signed.as_bytes(), &signature)
            .unwrap();
        let claims = URL_SAFE_NO_PAD.decode(signed.split_once('.').unwrap().1).unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(claims["iss"], "push@demo-1.iam.gserviceaccount.com");
        assert_eq!((&claims["iat"], &claims["exp"]), (&NOW_S.into(), &(NOW_S + 3_600).into()));
    }

    #[test]
    fn one_token_serves_all_and_is_renewed_before_its_end() {
        let mut tokens = tokens();
        assert_eq!(tokens.authorization(NOW_S), None);
        assert!(tokens.poll_request(NOW_S).is_some());
        assert_eq!(tokens.poll_request(NOW_S), None, "one request however many wait");
        tokens.handle_failure(NOW_S);
        assert_eq!(tokens.wait(NOW_S), Duration::from_secs(1));
        grant(&mut tokens, "first", NOW_S + 1);
        let (authorization, generation) = tokens.authorization(NOW_S + 2).unwrap();
        assert_eq!(&*authorization, "Bearer first");
        assert_eq!(tokens.poll_request(NOW_S + 3_000), None);
        grant(&mut tokens, "second", NOW_S + 3_301);
        assert_eq!(&*tokens.authorization(NOW_S + 3_302).unwrap().0, "Bearer second");
        // An answer to a request with the old one arrives late.
        tokens.handle_spent(generation);
        assert!(tokens.authorization(NOW_S + 3_302).is_some());
        tokens.handle_spent(generation + 1);
        assert!(tokens.authorization(NOW_S + 3_302).is_none());
        // Two that were in flight together are refused.
        grant(&mut tokens, "third", NOW_S + 3_303);
        tokens.handle_refused(NOW_S + 3_304);
        grant(&mut tokens, "fourth", NOW_S + 3_305);
        tokens.handle_refused(NOW_S + 3_306);
        assert!(tokens.authorization(NOW_S + 3_306).is_some());
    }

    #[test]
    fn a_refusal_is_reported_and_tries_are_spaced() {
        let mut tokens = tokens();
        let body = br#"{"error":"invalid_grant","error_description":"Invalid JWT Signature."}"#;
        let mut now_s = NOW_S;
        for pause_s in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert!(tokens.poll_request(now_s).is_some());
            let refused = tokens.handle_response(400, body, None, now_s).unwrap_err();
            assert_eq!(
                refused.to_string(),
                "the service account is refused: invalid_grant (Invalid JWT Signature.)"
            );
            assert_eq!(tokens.wait(now_s), Duration::from_secs(pause_s));
            assert_eq!(tokens.poll_request(now_s + pause_s - 1), None);
            now_s += pause_s;
        }
        assert!(tokens.poll_request(now_s).is_some());
        let busy = tokens.handle_response(502, b"<html>", None, now_s).unwrap_err();
        assert!(matches!(busy, TokenError::Unavailable(_)));
    }

    #[test]
    fn account_with_a_key_in_pkcs1_a_byte_order_mark_or_escaped_line_ends_is_read() {
        let file: serde_json::Value = serde_json::from_str(FILE).unwrap();
        let pem = file["private_key"].as_str().unwrap();
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).unwrap();
        // PKCS #8 holds PKCS #1 in an octet string at its end.
        let pkcs8 = der.secret_pkcs8_der();
        let at = pkcs8.windows(2).skip(4).position(|two| two == [0x30, 0x82]).unwrap() + 4;
        let inner = base64::prelude::BASE64_STANDARD.encode(&pkcs8[at..]);
        let pkcs1 =
            format!("-----BEGIN RSA PRIVATE KEY-----\n{inner}\n-----END RSA PRIVATE KEY-----\n");
        let with = |key: &str| {
            let mut file = file.clone();
            file["private_key"] = key.into();
            format!("\u{feff}{file}")
        };
        let public = |key: &str| {
            let mut tokens = AccessTokens::new(ServiceAccount::from_json(&with(key)).unwrap());
            let body = tokens.poll_request(NOW_S).unwrap().body;
            body.split_once("&assertion=").unwrap().1.to_owned()
        };
        let expected = public(pem);
        assert_eq!(public(&pkcs1), expected, "the same signature");
        assert_eq!(public(&pem.replace('\n', "\\n")), expected);
    }

    #[test]
    fn token_server_that_is_busy_is_asked_again_when_it_says_and_refuses_no_account() {
        for status in [408, 429, 503] {
            let mut tokens = tokens();
            assert!(tokens.poll_request(NOW_S).is_some());
            let body = br#"{"error":"rate_limit_exceeded"}"#;
            let after = Some(Duration::from_secs(90));
            let busy = tokens.handle_response(status, body, after, NOW_S).unwrap_err();
            assert!(matches!(busy, TokenError::Unavailable(_)), "{busy}");
            assert_eq!(tokens.wait(NOW_S), Duration::from_secs(90));
            assert!(tokens.poll_request(NOW_S + 90).is_some());
        }
    }

    #[test]
    fn a_file_that_is_no_service_account_names_the_field() {
        let error = |from: &str, to: &str| {
            ServiceAccount::from_json(&FILE.replace(from, to)).unwrap_err().to_string()
        };
        assert!(error("\"service_account\"", "\"authorized_user\"").contains("type"));
        assert!(error("project_id", "project").contains("project_id"));
        assert!(error("BEGIN PRIVATE KEY", "BEGIN RSA KEY").contains("private_key"));
        assert!(error("https://oauth2", "http://oauth2").contains("token_uri"));
        assert!(!format!("{:?}", tokens()).contains("BEGIN"));
    }
}
