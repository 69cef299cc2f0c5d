//! Who a client is: the connection token, a JWT (RFC 7519) that the backend signs with HMAC.
//!
//! The claims are those of Centrifugo's connection token, so that a backend need not change: `sub`
//! (the user; empty for an anonymous one), `exp`, `nbf`, `aud`, `iss`, `info`, `meta`, `channels`,
//! `subs`, `expire_at`. Time is an argument; nothing here reads a clock.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dunlin_config::Token;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::jwt_hmac;

/// Longer tokens are refused unread: the HTTP header limits of most proxies end here too.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// Verifies connection tokens by the keys of one configuration.
#[derive(Clone, Debug)]
pub struct Verifier {
    /// The current key, then the one before it; empty when neither is set.
    keys: Vec<Key>,
    /// Keys that tokens name by their `kid` header.
    named: BTreeMap<Arc<str>, Key>,
    validation: Validation,
    leeway_ms: u64,
}

/// A key that tokens are signed with.
#[derive(Clone, Debug)]
struct Key {
    /// Identifies a key within this process.
    fingerprint: u64,
    decoding: DecodingKey,
}

impl Key {
    fn new(secret: &dunlin_config::Secret) -> Key {
        let decoding = DecodingKey::from_secret(secret.reveal().as_bytes());
        Key { fingerprint: fingerprint(secret), decoding }
    }
}

/// The number of a key, from [`Identity::key`].
pub(crate) fn fingerprint(secret: &dunlin_config::Secret) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(secret.reveal().as_bytes());
    hasher.finish()
}

/// What a token says of the client that carries it.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// The user (`sub`); empty for an anonymous one.
    pub user: String,
    /// The key the token is signed with, for [`Verifier::keeps`]; `None` without a token.
    pub key: Option<u64>,
    /// What distinguishes the token from others; `None` without a token.
    pub token: Option<TokenClaims>,
    /// When the connection expires unless the client refreshes it, in seconds since 1970; `None`:
    /// never. It is `expire_at` where the token has it (0: never), else `exp`.
    pub expire_at_s: Option<u64>,
    /// Shown to others in presence, joins and publications: JSON as the backend wrote it.
    pub info: Option<Box<RawValue>>,
    /// Kept with the connection and shown to no client.
    pub meta: Option<Box<RawValue>>,
    /// Server-side subscriptions: those of `subs`, or else the names of `channels` without options,
    /// each name once, in order.
    pub subscriptions: BTreeMap<String, SubscribeOptions>,
}

/// What distinguishes a token from others, so that it can be revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenClaims {
    /// Its id (`jti`).
    pub jti: Option<String>,
    /// When it was issued (`iat`), in seconds since 1970.
    pub issued_at_s: Option<u64>,
    /// Its signature, as it stands in the token.
    pub signature: String,
}

/// Options of one server-side subscription (a value of `subs`).
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SubscribeOptions {
    /// Shown to others in this channel beside the connection's own info.
    pub info: Option<Box<RawValue>>,
    /// Given to the client with the subscription.
    pub data: Option<Box<RawValue>>,
    /// Base64 forms serve the binary protocol alone; a token that has them is refused.
    b64info: Option<String>,
    b64data: Option<String>,
    /// Options of the channel this subscription has otherwise.
    #[serde(default, rename = "override")]
    pub overrides: Overrides,
}

/// Channel options a token sets for its client; `None`: as the namespace has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Overrides {
    /// Takes part in presence.
    #[serde(deserialize_with = "boolean")]
    pub presence: Option<bool>,
    /// Is announced by joins and leaves.
    #[serde(deserialize_with = "boolean")]
    pub join_leave: Option<bool>,
    /// Recovers what it missed.
    #[serde(deserialize_with = "boolean", rename = "force_recovery", alias = "recover")]
    pub recover: Option<bool>,
    /// Has its position watched.
    #[serde(deserialize_with = "boolean", rename = "force_positioning", alias = "position")]
    pub positioned: Option<bool>,
    /// Gets the joins and leaves of others.
    #[serde(deserialize_with = "boolean", rename = "force_push_join_leave")]
    pub push_join_leave: Option<bool>,
}

/// Why a token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// `exp` has passed. The client should get a new token and may try again (error 109 of the
    /// client protocol); every other error is final (disconnect 3500).
    Expired,
    /// `nbf` has not come yet.
    NotYetValid,
    /// The signature is of another key.
    Signature,
    /// Signed by a method other than HS256, HS384 or HS512.
    Algorithm,
    /// `aud` does not name this server.
    Audience,
    /// `iss` is not the configured one.
    Issuer,
    /// It demands extensions that this server does not have (`crit`, RFC 7515 §4.1.11).
    Critical,
    /// No key is configured to verify it with.
    NoKey,
    /// Not a JWT, or a claim has the wrong form.
    Malformed(String),
}

impl Verifier {
    /// A verifier for the keys and rules of a config.
    pub fn new(config: &Token) -> Verifier {
        jwt_hmac::install();
        let secrets = [config.hmac_secret.as_ref(), config.hmac_secret_previous.as_ref()];
        let mut validation = Validation::new(Algorithm::HS256);
        validation.algorithms = vec![Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
        // Time is checked below, by the caller's clock.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        // A claim that is checked must be there: absent, it would count as fitting.
        let mut required = Vec::new();
        validation.validate_aud = config.audience.is_some();
        if let Some(audience) = &config.audience {
            validation.set_audience(&[audience]);
            required.push("aud");
        }
        if let Some(issuer) = &config.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        validation.set_required_spec_claims(&required);
        Verifier {
            keys: secrets.into_iter().flatten().map(Key::new).collect(),
            named: config
                .keys
                .iter_shared()
                .map(|(kid, secret)| (Arc::clone(kid), Key::new(secret)))
                .collect(),
            validation,
            leeway_ms: config.leeway_ms,
        }
    }

    /// Verifies a token at `now_unix_ms`, milliseconds since 1970.
    ///
    /// # Errors
    /// Why it is not accepted; nothing of an unaccepted token is returned.
    pub fn verify(&self, token: &str, now_unix_ms: u64) -> Result<Identity, Error> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Error::Malformed(format!("longer than {TOKEN_BYTES_MAX} bytes")));
        }
        let header = Header::of(token)?;
        let mut outcome = Err(Error::NoKey);
        for key in self.candidates(&header) {
            let decoded = jsonwebtoken::decode::<Claims>(token, &key.decoding, &self.validation);
            outcome = decoded
                .map(|data| (data.claims, key.fingerprint))
                .map_err(|error| Error::of(error.kind()));
            if outcome.as_ref().err() != Some(&Error::Signature) {
                break;
            }
        }
        let (claims, key) = outcome?;
        if claims.exp.is_some_and(|exp| exp.ms().saturating_add(self.leeway_ms) <= now_unix_ms) {
            return Err(Error::Expired);
        }
        if claims.nbf.is_some_and(|nbf| nbf.ms() > now_unix_ms.saturating_add(self.leeway_ms)) {
            return Err(Error::NotYetValid);
        }
        // Whoever signed it says that it must be refused where this is not understood, and nothing is understood here.
        if header.crit.is_some() {
            return Err(Error::Critical);
        }
        let mut identity = claims.identity()?;
        identity.key = Some(key);
        if let Some(claims) = &mut identity.token {
            claims.signature = token.rsplit('.').next().unwrap_or_default().to_owned();
        }
        Ok(identity)
    }

    /// Whether the key of this number, from [`Identity::key`], still lets clients in.
    pub fn keeps(&self, key: u64) -> bool {
        self.keys.iter().chain(self.named.values()).any(|of| of.fingerprint == key)
    }

    /// The key a token names by its `kid`, or else those without a name.
    fn candidates(&self, header: &Header) -> &[Key] {
        match header.kid.as_ref().and_then(|kid| self.named.get(kid.as_str())) {
            Some(key) => std::slice::from_ref(key),
            None => &self.keys,
        }
    }
}

/// What of a token's header is looked at here; the rest is `jsonwebtoken`'s.
#[derive(Deserialize)]
struct Header {
    kid: Option<String>,
    crit: Option<IgnoredAny>,
}

impl Header {
    fn of(token: &str) -> Result<Header, Error> {
        let text = token.split('.').next().unwrap_or_default();
        let json = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|error| Error::Malformed(format!("its header: {error}")))?;
        serde_json::from_slice(&json)
            .map_err(|error| Error::Malformed(format!("its header: {error}")))
    }
}

impl Error {
    fn of(kind: &ErrorKind) -> Error {
        match kind {
            ErrorKind::InvalidSignature => Error::Signature,
            ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => Error::Algorithm,
            ErrorKind::InvalidAudience => Error::Audience,
            ErrorKind::InvalidIssuer => Error::Issuer,
            ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => Error::Audience,
            ErrorKind::MissingRequiredClaim(_) => Error::Issuer,
            ErrorKind::Json(error) => Error::Malformed(error.to_string()),
            ErrorKind::Base64(error) => Error::Malformed(error.to_string()),
            _ => Error::Malformed("it is not three parts with dots between".into()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Expired => "the token has expired; get a new one",
            Error::NotYetValid => "the token is not valid yet (`nbf`); compare the clocks",
            Error::Signature => {
                "the token is signed with another key than `client.token.hmac_secret`"
            }
            Error::Algorithm => "the token is not signed by HS256, HS384 or HS512",
            Error::Audience => "the token's `aud` does not name `client.token.audience`",
            Error::Issuer => "the token's `iss` is not `client.token.issuer`",
            Error::Critical => {
                "the token's header has `crit`: it demands extensions that this server does not have"
            }
            Error::NoKey => "there is no key to verify tokens with; set `client.token.hmac_secret`",
            Error::Malformed(why) => return write!(f, "this is no connection token: {why}"),
        })
    }
}

impl std::error::Error for Error {}

#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    sub: String,
    exp: Option<NumericDate>,
    nbf: Option<NumericDate>,
    iat: Option<NumericDate>,
    /// A string; a number is taken for one.
    jti: Option<Value>,
    expire_at: Option<NumericDate>,
    info: Option<Box<RawValue>>,
    b64info: Option<String>,
    meta: Option<Box<RawValue>>,
    #[serde(default)]
    channels: Vec<String>,
    #[serde(default)]
    subs: BTreeMap<String, SubscribeOptions>,
}

impl Claims {
    fn identity(self) -> Result<Identity, Error> {
        let binary = self.b64info.is_some()
            || self.subs.values().any(|sub| sub.b64info.is_some() || sub.b64data.is_some());
        if binary {
            let why = "`b64info` and `b64data` are of the binary protocol; write `info` and `data`";
            return Err(Error::Malformed(why.into()));
        }
        let subscriptions = if self.subs.is_empty() {
            self.channels.into_iter().map(|name| (name, SubscribeOptions::default())).collect()
        } else {
            self.subs
        };
        Ok(Identity {
            user: self.sub,
            key: None,
            token: Some(TokenClaims {
                jti: self.jti.map(|jti| match jti {
                    Value::String(jti) => jti,
                    other => other.to_string(),
                }),
                issued_at_s: self.iat.map(|iat| iat.ms() / 1_000),
                signature: String::new(),
            }),
            expire_at_s: match self.expire_at {
                Some(at) if at.0 < 1.0 => None,
                Some(at) => Some(at.ms() / 1_000),
                None => self.exp.map(|exp| exp.ms() / 1_000),
            },
            info: self.info,
            meta: self.meta,
            subscriptions,
        })
    }
}

/// Seconds since 1970, perhaps with a fraction (RFC 7519 §2).
#[derive(Clone, Copy, Deserialize)]
struct NumericDate(f64);

impl NumericDate {
    /// Saturates: what lies before 1970 is 1970.
    fn ms(self) -> u64 {
        (self.0 * 1_000.0) as u64
    }
}

/// `{"value": true}`.
fn boolean<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    #[derive(Deserialize)]
    struct Boolean {
        #[serde(default)]
        value: bool,
    }
    Ok(Option::<Boolean>::deserialize(deserializer)?.map(|boolean| boolean.value))
}

#[cfg(test)]
mod tests {
    use dunlin_config::Secret;
    use jsonwebtoken::EncodingKey;
    use serde_json::json;

    use super::*;

    const KEY: &str = "the backend's key";
    const NOW_MS: u64 = 1_700_000_000_000;
    const NOW_S: u64 = NOW_MS / 1_000;

    fn rules() -> Token {
        Token { hmac_secret: Some(Secret::new(KEY)), ..Token::default() }
    }

    fn signed(algorithm: Algorithm, key: &str, claims: &Value) -> String {
        let key = EncodingKey::from_secret(key.as_bytes());
        let header = jsonwebtoken::Header::new(algorithm);
        jsonwebtoken::encode(&header, claims, &key).expect("claims are JSON")
    }

    fn verified_by(rules: &Token, claims: &Value) -> Result<Identity, Error> {
        Verifier::new(rules).verify(&signed(Algorithm::HS256, KEY, claims), NOW_MS)
    }

    fn verified(claims: &Value) -> Result<Identity, Error> {
        verified_by(&rules(), claims)
    }

    #[test]
    fn a_token_says_who_the_client_is() {
        let identity = verified(&json!({
            "sub": "42",
            "exp": NOW_S + 60,
            "info": {"name": "Ada"},
            "meta": {"plan": 1},
            "channels": ["news", "chat:1", "news"],
            "iat": NOW_S,
        }))
        .unwrap();
        assert_eq!(identity.user, "42");
        assert_eq!(identity.expire_at_s, Some(NOW_S + 60));
        assert_eq!(identity.info.unwrap().get(), r#"{"name":"Ada"}"#);
        assert_eq!(identity.meta.unwrap().get(), r#"{"plan":1}"#);
        assert_eq!(identity.subscriptions.into_keys().collect::<Vec<_>>(), ["chat:1", "news"]);
    }

    #[test]
    fn subs_say_more_than_channels_and_go_before_them() {
        let identity = verified(&json!({
            "channels": ["ignored"],
            "subs": {"news": {
                "data": [1],
                "override": {"presence": {"value": true}, "force_recovery": {"value": false}},
            }},
        }))
        .unwrap();
        assert_eq!((identity.user.as_str(), identity.expire_at_s), ("", None));
        let (name, options) = identity.subscriptions.first_key_value().unwrap();
        assert_eq!((name.as_str(), options.data.as_ref().unwrap().get()), ("news", "[1]"));
        let expected =
            Overrides { presence: Some(true), recover: Some(false), ..Overrides::default() };
        assert_eq!(options.overrides, expected);
        assert_eq!(identity.subscriptions.len(), 1);
    }

    #[test]
    fn a_token_ends_at_its_second_and_leeway_moves_it() {
        assert_eq!(verified(&json!({"exp": NOW_S})).unwrap_err(), Error::Expired);
        assert!(verified(&json!({"exp": NOW_S as f64 + 0.5})).is_ok());
        assert_eq!(verified(&json!({"exp": -1})).unwrap_err(), Error::Expired);
        assert_eq!(verified(&json!({"nbf": NOW_S + 1})).unwrap_err(), Error::NotYetValid);

        let lenient = Token { leeway_ms: 2_000, ..rules() };
        assert!(verified_by(&lenient, &json!({"exp": NOW_S - 1, "nbf": NOW_S + 1})).is_ok());
        assert_eq!(verified_by(&lenient, &json!({"exp": NOW_S - 2})).unwrap_err(), Error::Expired);
    }

    #[test]
    fn expire_at_is_the_connections_own_end() {
        let end = |claims| verified(&claims).unwrap().expire_at_s;
        assert_eq!(end(json!({"exp": NOW_S + 5, "expire_at": NOW_S + 900})), Some(NOW_S + 900));
        assert_eq!(end(json!({"exp": NOW_S + 5, "expire_at": 0})), None);
        assert_eq!(
            verified(&json!({"exp": NOW_S - 5, "expire_at": 0})).unwrap_err(),
            Error::Expired,
            "the token itself still ends at `exp`"
        );
    }

    #[test]
    fn only_hmac_by_a_known_key_is_accepted() {
        let claims = json!({"sub": "42"});
        let mut rules = rules();
        let verify = |rules: &Token, token: &str| Verifier::new(rules).verify(token, NOW_MS);
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            assert!(verify(&rules, &signed(algorithm, KEY, &claims)).is_ok());
        }
        let before = signed(Algorithm::HS256, "the key before", &claims);
        assert_eq!(verify(&rules, &before).unwrap_err(), Error::Signature);
        rules.hmac_secret_previous = Some(Secret::new("the key before"));
        assert!(verify(&rules, &before).is_ok());
        assert_eq!(verify(&Token::default(), &before).unwrap_err(), Error::NoKey);

        // {"alg":"none","typ":"JWT"} and {"alg":"RS256","typ":"JWT"}, each with {"sub":"42"}.
        let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJzdWIiOiI0MiJ9.";
        assert!(matches!(verify(&rules, none).unwrap_err(), Error::Malformed(_)));
        let rs256 = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiI0MiJ9.AAAA";
        assert_eq!(verify(&rules, rs256).unwrap_err(), Error::Algorithm);
    }

    #[test]
    fn audience_and_issuer_are_demanded_once_configured() {
        assert!(verified(&json!({"aud": "anyone", "iss": "anyone"})).is_ok());
        let rules =
            Token { audience: Some("push".into()), issuer: Some("backend".into()), ..rules() };
        let verified = |claims| verified_by(&rules, &claims).map(|_| ());
        assert_eq!(verified(json!({"aud": ["web", "push"], "iss": "backend"})), Ok(()));
        assert_eq!(verified(json!({"aud": "push"})), Err(Error::Issuer));
        assert_eq!(verified(json!({"iss": "backend"})), Err(Error::Audience));
        assert_eq!(verified(json!({"aud": "web", "iss": "backend"})), Err(Error::Audience));
        assert_eq!(verified(json!({"aud": "push", "iss": "someone"})), Err(Error::Issuer));
    }

    #[test]
    fn a_malformed_connection_token_is_rejected() {
        for token in ["", "a.b", "a.b.c", "....", "\u{2603}.\u{2603}.\u{2603}"] {
            let error = Verifier::new(&rules()).verify(token, NOW_MS).unwrap_err();
            assert!(matches!(error, Error::Malformed(_)), "{token}: {error}");
        }
        for claims in [
            json!({"sub": 42}),
            json!({"exp": "tomorrow"}),
            json!({"channels": "news"}),
            json!({"b64info": "e30="}),
            json!({"subs": {"a": {"b64data": "e30="}}}),
            json!([]),
        ] {
            let error = verified(&claims).unwrap_err();
            assert!(matches!(error, Error::Malformed(_)), "{claims}: {error}");
        }
        let long = "a".repeat(TOKEN_BYTES_MAX + 1);
        assert!(Verifier::new(&rules()).verify(&long, NOW_MS).is_err());
    }

    #[test]
    fn a_token_that_names_its_key_is_verified_by_that_key_alone() {
        let mut rules = rules();
        rules.keys.insert("2026", Secret::new("the key of 2026"));
        let signed_as = |kid: Option<&str>, key: &str| {
            let header = jsonwebtoken::Header {
                kid: kid.map(str::to_owned),
                ..jsonwebtoken::Header::new(Algorithm::HS256)
            };
            let key = EncodingKey::from_secret(key.as_bytes());
            jsonwebtoken::encode(&header, &json!({"sub": "42"}), &key).expect("claims are JSON")
        };
        let before = Verifier::new(&rules);
        let verify = |token: &str| before.verify(token, NOW_MS);
        let named = verify(&signed_as(Some("2026"), "the key of 2026")).unwrap();
        assert_eq!(verify(&signed_as(Some("2026"), KEY)).unwrap_err(), Error::Signature);
        let unnamed = verify(&signed_as(Some("unknown"), KEY)).unwrap();
        assert_ne!(named.key, unnamed.key);
        assert!(before.keeps(named.key.unwrap()) && before.keeps(unnamed.key.unwrap()));

        rules.keys.remove("2026");
        rules.hmac_secret_previous = rules.hmac_secret.replace(Secret::new("a newer key"));
        let after = Verifier::new(&rules);
        assert!(!after.keeps(named.key.unwrap()), "revoked");
        assert!(after.keeps(unnamed.key.unwrap()), "the one before the newest still holds");
    }

    #[test]
    fn a_token_that_demands_what_is_not_understood_is_refused() {
        for (header, refused) in [
            (json!({"alg": "HS256", "crit": ["exp"]}), true),
            (json!({"alg": "HS256", "crit": ["b64"], "b64": false}), true),
            (json!({"alg": "HS256", "crit": []}), true),
            (json!({"alg": "HS256", "unknown": 1}), false),
        ] {
            let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
            let message = format!("{}.{}", part(&header), part(&json!({"sub": "42"})));
            let key = EncodingKey::from_secret(KEY.as_bytes());
            let signature =
                jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256).unwrap();
            let token = format!("{message}.{signature}");
            let verified = Verifier::new(&rules()).verify(&token, NOW_MS).map(|_| ());
            let expected = if refused { Err(Error::Critical) } else { Ok(()) };
            assert_eq!(verified, expected, "{header}");
        }
    }

    #[test]
    fn what_distinguishes_a_token_is_kept() {
        let of = |claims| verified(&claims).unwrap().token.unwrap();
        let token = of(json!({"jti": "a", "iat": NOW_S}));
        assert_eq!((token.jti.as_deref(), token.issued_at_s), (Some("a"), Some(NOW_S)));
        let unnamed = of(json!({"sub": "42"}));
        assert_eq!((&unnamed.jti, unnamed.issued_at_s), (&None, None));
        assert_ne!(unnamed.signature, token.signature);
        assert_eq!(of(json!({"jti": 7})).jti.as_deref(), Some("7"));
    }

    #[test]
    fn a_verifier_does_not_show_its_keys() {
        assert!(!format!("{:?}", Verifier::new(&rules())).contains(KEY));
    }
}
