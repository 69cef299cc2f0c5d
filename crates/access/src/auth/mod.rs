//! Client identity and channel permissions from tokens that the backend signs: JWTs (RFC 7519).
//!
//! A connection token identifies the client; a subscription token permits a subscription to one channel. Time is an
//! argument; this module reads no clock.

mod capability;
mod claims;
pub mod derived_keys;
pub mod jwks;
mod key;
pub mod labels;
mod overrides;
pub mod revocation;
pub mod session_token;
mod signature;
#[cfg(any(test, feature = "fuzz"))]
mod test_signer;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dunlin_config::{ClaimPath, Map, TokenRules};
use dunlin_hub::Tags;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

pub use self::capability::Regexes;
pub use self::capability::{Allow, Capabilities};
use self::claims::Claims;
pub use self::claims::SubscribeOptions;
use self::jwks::MissingKey;
pub use self::jwks::{Jwks, KeySet};
use self::key::Key;
pub use self::overrides::OptionsOverride;
pub use self::overrides::overrides;
use self::signature::Algorithm;
use crate::namespace::bounded_regex::BoundedRegex;
use crate::namespace::meta::Meta;

pub use self::key::{Family, fingerprint, judge, judge_pem, judge_secret};

/// The longest token, in bytes; longer ones are refused unparsed. Most proxies limit HTTP headers to about this size.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// Verifies tokens of one kind with the keys of a configuration.
#[derive(Clone, Debug)]
pub struct Verifier {
    /// Secrets without a `kid`: the current one, then the previous one.
    secrets: Vec<Key>,
    /// Public keys without a `kid`.
    public: Vec<Key>,
    /// Keys by the `kid` with which tokens name them.
    /// `None` is a key that cannot be read: a token that names it is refused, and no other key is tried.
    named: BTreeMap<Arc<str>, Option<Key>>,
    /// Further keys at a URL, by their `kid`.
    jwks: Option<Arc<Jwks>>,
    audience: Rule,
    issuer: Rule,
    /// The claim that names the user, if not `sub`.
    user_id_claim: Option<String>,
    /// Names of labels, each with the path of the claim that has its value.
    labels_from_claim: Vec<(String, ClaimPath)>,
    leeway_ms: u64,
}

/// The required value of a claim.
#[derive(Clone, Debug)]
enum Rule {
    Anything,
    Is(String),
    Matches(BoundedRegex),
}

impl Rule {
    fn of(is: Option<&str>, matches: Option<&str>) -> Rule {
        match (is, matches) {
            (Some(is), _) => Rule::Is(is.to_owned()),
            (None, Some(text)) => {
                Rule::Matches(BoundedRegex::of_setting("audience_regex or issuer_regex", text))
            }
            (None, None) => Rule::Anything,
        }
    }

    fn admits(&self, claims: &[String]) -> bool {
        match self {
            Rule::Anything => true,
            Rule::Is(is) => claims.contains(is),
            Rule::Matches(regex) => claims.iter().any(|claim| regex.is_match(claim)),
        }
    }
}

/// The content of a connection token.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// The user (`sub`); empty for an anonymous one.
    pub user: String,
    /// The key the token is signed with, for [`Verifier::keeps`]; `None` without a token.
    pub key: Option<u64>,
    /// Identifies the token for revocation; `None` without a token.
    pub token: Option<TokenClaims>,
    /// When the connection expires unless the client refreshes it, in seconds since 1970; `None`:
    /// never. It is `expire_at` where the token has it (0: never), else `exp`.
    pub expire_at_s: Option<u64>,
    /// Shown to others in presence, joins and publications: JSON as the backend wrote it.
    pub info: Option<Box<RawValue>>,
    /// Kept with the connection and shown to no client.
    pub meta: Option<Box<RawValue>>,
    /// The same, for expressions, once one has looked at it.
    pub parsed_meta: OnceCell<Meta>,
    /// Labels by which the server API selects connections.
    pub labels: Tags,
    /// Server-side subscriptions: those of `subs`, or else the names of `channels` without options,
    /// each name once, in order.
    pub subscriptions: BTreeMap<String, SubscribeOptions>,
    /// What it may do in channels in addition to what their namespaces allow (`caps`).
    pub capabilities: Capabilities,
    /// The device that the client names itself, unless `info` names one.
    pub device: Option<Box<str>>,
}

impl Identity {
    /// Returns the content of a connection token with these claims, that nobody has signed: to explain what it would permit.
    ///
    /// # Errors
    /// A claim has the wrong form.
    pub fn of_claims(claims: &str) -> Result<Identity, Error> {
        let claims: Claims =
            serde_json::from_str(claims).map_err(|error| Error::Malformed(error.to_string()))?;
        Ok(Identity { key: None, token: None, ..claims.identity(0, [0; 32])? })
    }
}

/// The content of a subscription token: this user may subscribe to this channel.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// The user (`sub`); empty for an anonymous one.
    pub user: String,
    /// The channel.
    pub channel: String,
    /// The id of the only session that may use it; `None`: any session of the user.
    pub client: Option<String>,
    /// The key the token is signed with, for [`Verifier::keeps`].
    pub key: u64,
    /// Identifies the token for revocation.
    pub token: TokenClaims,
    /// When the subscription expires unless the client refreshes it, in seconds since 1970; `None`:
    /// never. It is `expire_at` where the token has it (0: never), else `exp`.
    pub expire_at_s: Option<u64>,
    /// How the client is subscribed.
    pub options: SubscribeOptions,
    /// What the client may also do in the channel while it is subscribed (`allow`).
    pub allow: Allow,
}

/// What identifies a token for revocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenClaims {
    /// Its id (`jti`).
    pub jti: Option<String>,
    /// When it was issued (`iat`), in seconds since 1970.
    pub issued_at_s: Option<u64>,
    /// SHA-256 of what is signed, header and payload as encoded in the token. The signature does not identify it: from one of
    /// ECDSA anyone makes another that is valid for the same text.
    pub signed: [u8; 32],
}

/// Why a token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// `exp` has passed. The client should get a new token and may try again (error 109 of the
    /// client protocol); every other error is final.
    Expired,
    /// `nbf` has not come yet.
    NotYetValid,
    /// The signature does not match the key.
    Signature,
    /// The algorithm is not one of the key's.
    Algorithm,
    /// `aud` does not name this server.
    Audience,
    /// `iss` is not the configured one.
    Issuer,
    /// It requires extensions that this server does not support (`crit`, RFC 7515 §4.1.11).
    Critical,
    /// No key is configured to verify it with.
    NoKey,
    /// It has no `kid`, so no key of the set can be selected.
    NoKeyId,
    /// The set has no key with this `kid`.
    UnknownKey,
    /// The set cannot be fetched at the moment.
    Unavailable,
    /// The set is being fetched; verify again afterwards.
    Pending,
    /// Not a JWT, or a claim has the wrong form.
    Malformed(String),
}

impl Verifier {
    /// Creates a verifier for the keys and rules of a configuration. An invalid key verifies nothing; `judge` rejects such
    /// settings beforehand.
    pub fn new(rules: TokenRules<'_>) -> Verifier {
        Verifier::next(rules, None)
    }

    /// Like [`Verifier::new`], but keeps the keys that `before` has fetched if the endpoint is unchanged.
    pub fn next(rules: TokenRules<'_>, before: Option<&Verifier>) -> Verifier {
        #[cfg(any(test, feature = "fuzz"))]
        test_signer::install();
        let before = before.and_then(|before| before.jwks.as_ref());
        let jwks = rules.jwks.map(|rules| {
            let kept = before.filter(|jwks| jwks.is(&rules)).map(Arc::clone);
            kept.unwrap_or_else(|| Arc::new(Jwks::new(&rules)))
        });
        let secrets = [rules.hmac_secret, rules.hmac_secret_previous];
        let public = [rules.rsa_public_key, rules.ecdsa_public_key, rules.eddsa_public_key];
        let named = rules.keys.iter_shared();
        Verifier {
            secrets: secrets.into_iter().flatten().filter_map(|key| usable(Key::of(key))).collect(),
            public: public
                .into_iter()
                .flatten()
                .filter_map(|key| usable(Key::of_pem(key)))
                .collect(),
            named: named.map(|(kid, key)| (Arc::clone(kid), usable(Key::of(key)))).collect(),
            jwks,
            audience: Rule::of(rules.audience, rules.audience_regex),
            issuer: Rule::of(rules.issuer, rules.issuer_regex),
            user_id_claim: rules.user_id_claim.map(str::to_owned),
            labels_from_claim: rules
                .labels_from_claim
                .into_iter()
                .flat_map(Map::iter)
                .map(|(label, path)| (label.to_owned(), path.clone()))
                .collect(),
            leeway_ms: rules.leeway_ms,
        }
    }

    /// Verifies a connection token at `now_unix_ms`, milliseconds since 1970.
    ///
    /// # Errors
    /// The reason why the token is not accepted.
    pub fn verify(&self, token: &str, now_unix_ms: u64) -> Result<Identity, Error> {
        let (mut claims, key) = self.claims(token, now_unix_ms)?;
        if !self.labels_from_claim.is_empty() {
            claims.map_labels(token, &self.labels_from_claim);
        }
        claims.identity(key, digest_of(token))
    }

    /// Verifies a subscription token at `now_unix_ms`, milliseconds since 1970.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub fn verify_subscription(
        &self,
        token: &str,
        now_unix_ms: u64,
    ) -> Result<Subscription, Error> {
        let (claims, key) = self.claims(token, now_unix_ms)?;
        claims.subscription(key, digest_of(token))
    }

    /// Returns the claims of a valid token, and the fingerprint of the key that signed it.
    fn claims(&self, token: &str, now_unix_ms: u64) -> Result<(Claims, u64), Error> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Error::Malformed(format!("longer than {TOKEN_BYTES_MAX} bytes")));
        }
        let header = Header::of(token)?;
        let (mut claims, key) = match self.candidates(&header) {
            Some(keys) => verify_by(token, header.alg, keys)?,
            None => {
                let (jwks, kid) = (self.jwks.as_ref(), header.kid.as_ref());
                let (jwks, kid) =
                    jwks.zip(kid.ok_or(Error::NoKeyId)?.into()).ok_or(Error::NoKey)?;
                jwks.with(kid, now_unix_ms, |keys| verify_by(token, header.alg, keys))??
            }
        };
        claims.check_time(now_unix_ms, self.leeway_ms)?;
        if !self.audience.admits(claims.aud.names()) {
            return Err(Error::Audience);
        }
        if !self.issuer.admits(claims.iss.as_slice()) {
            return Err(Error::Issuer);
        }
        // A token with a critical extension must be refused unless it is supported (RFC 7515 §4.1.11); none is.
        if header.crit.is_some() {
            return Err(Error::Critical);
        }
        if let Some(claim) = &self.user_id_claim {
            claims.sub = claims::text_of(token, claim)?;
        }
        Ok((claims, key))
    }

    /// Whether the key with this fingerprint, from [`Identity::key`], is still accepted.
    pub fn keeps(&self, key: u64) -> bool {
        let unnamed = self.secrets.iter().chain(&self.public);
        unnamed.chain(self.named.values().flatten()).any(|of| of.fingerprint == key)
            || self.jwks.as_ref().is_some_and(|jwks| jwks.fingerprint() == key)
    }

    /// The key set that is fetched from a URL.
    pub fn jwks(&self) -> Option<&Arc<Jwks>> {
        self.jwks.as_ref()
    }

    /// Returns the configured key with the token's `kid`, or else those without a `kid`; `None` if the key must be in the set.
    fn candidates(&self, header: &Header) -> Option<&[Key]> {
        match header.kid.as_ref().and_then(|kid| self.named.get(kid.as_str())) {
            Some(key) => Some(key.as_slice()),
            // A fetched set contains no secrets.
            None if key::HMAC.contains(&header.alg) => Some(&self.secrets),
            None if self.jwks.is_some() && (header.kid.is_some() || self.public.is_empty()) => None,
            None if self.public.is_empty() => Some(&self.secrets),
            None => Some(&self.public),
        }
    }
}

/// Returns a key of the settings, which verifies tokens and so can only admit. Validation has refused one that cannot be
/// read; should one get here all the same, the log says that it verifies nothing.
fn usable(key: Result<Key, key::KeyError>) -> Option<Key> {
    key.map_err(|error| tracing::error!(error, "closed: a key of tokens verifies nothing")).ok()
}

/// Returns the claims of a token, and the fingerprint of the first key that verifies it.
fn verify_by(token: &str, by: Algorithm, keys: &[Key]) -> Result<(Claims, u64), Error> {
    let parts = token.rsplit_once('.').and_then(|(message, signature)| {
        let (_, payload) = message.split_once('.').filter(|(_, payload)| !payload.contains('.'))?;
        Some((message, payload, signature))
    });
    let (message, payload, signature) =
        parts.ok_or_else(|| Error::Malformed("it is not three parts with dots between".into()))?;
    let decoded = |text: &str| {
        URL_SAFE_NO_PAD.decode(text).map_err(|error| Error::Malformed(error.to_string()))
    };
    let signature = decoded(signature)?;
    let mut refused = Error::NoKey;
    for key in keys {
        if !key.algorithms.contains(&by) {
            refused = Error::Algorithm;
        } else if !key.material.verifies(by, message.as_bytes(), &signature) {
            refused = Error::Signature;
        } else {
            let claims = serde_json::from_slice(&decoded(payload)?);
            let claims = claims.map_err(|error| Error::Malformed(error.to_string()))?;
            return Ok((claims, key.fingerprint));
        }
    }
    Err(refused)
}

/// The fields of a token's header.
#[derive(Deserialize)]
struct Header {
    alg: Algorithm,
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

/// Returns the `kid` in a token's header, unverified.
pub fn key_id(token: &str) -> Option<String> {
    if token.len() > TOKEN_BYTES_MAX {
        return None;
    }
    Header::of(token).ok()?.kid
}

/// Hashes what a token's signature is for (RFC 7515 §5.1): all before its last dot.
fn digest_of(token: &str) -> [u8; 32] {
    let signed = token.rsplit_once('.').map_or("", |(signed, _)| signed);
    let mut digest = [0; 32];
    digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, signed.as_bytes()).as_ref());
    digest
}

impl From<MissingKey> for Error {
    fn from(missing: MissingKey) -> Error {
        match missing {
            MissingKey::Unknown => Error::UnknownKey,
            MissingKey::Unavailable => Error::Unavailable,
            MissingKey::Pending => Error::Pending,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Expired => "the token has expired; get a new one",
            Error::NotYetValid => "the token is not valid yet (`nbf`); compare the clocks",
            Error::Signature => "the token is signed with another key than those that are configured",
            Error::Algorithm => "the token is signed by an algorithm for which no key is configured",
            Error::Audience => "the token's `aud` does not name `client.token.audience`",
            Error::Issuer => "the token's `iss` is not `client.token.issuer`",
            Error::Critical => {
                "the token's header has `crit`: it demands extensions that this server does not have"
            }
            Error::NoKey => "there is no key to verify tokens with; set `client.token.hmac_secret`",
            Error::NoKeyId => "the token's header has no `kid`, and keys are looked up by it",
            Error::UnknownKey => "the token's `kid` is in no key set",
            Error::Unavailable | Error::Pending => {
                "the key of the token could not be fetched yet; try again later"
            }
            Error::Malformed(why) => return write!(f, "this is no token: {why}"),
        })
    }
}

impl std::error::Error for Error {}
