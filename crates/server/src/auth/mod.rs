//! Who a client is, and what it may subscribe to: tokens that the backend signs, JWTs (RFC 7519).
//!
//! A connection token says who the client is, a subscription token that it may subscribe to one channel. Time is an
//! argument; nothing here reads a clock.

mod capability;
mod claims;
pub(crate) mod derived_keys;
pub(crate) mod jwks;
mod key;
pub(crate) mod key_fetcher;
pub(crate) mod labels;
pub(crate) mod revocation;
pub(crate) mod session_token;
mod signature;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dunlin_config::{ClaimPath, Map, TokenRules};
use dunlin_hub::Tags;
use jsonwebtoken::Algorithm;
use jsonwebtoken::errors::ErrorKind;
use regex::Regex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

pub(crate) use self::capability::Regexes;
pub use self::capability::{Allow, Capabilities};
use self::claims::Claims;
pub use self::claims::SubscribeOptions;
pub(crate) use self::claims::overrides;
use self::jwks::MissingKey;
pub use self::jwks::{Jwks, KeySet};
use self::key::Key;
use crate::namespace::bounded_regex::compile;

pub(crate) use self::key::{Family, fingerprint, judge, judge_pem, judge_secret};

/// Longer tokens are refused unread: the HTTP header limits of most proxies end here too.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// Verifies the tokens of one kind by the keys of one configuration.
#[derive(Clone, Debug)]
pub struct Verifier {
    /// Secrets without a name: the current one, then the one before it.
    secrets: Vec<Key>,
    /// Public keys without a name.
    public: Vec<Key>,
    /// Keys that tokens name by their `kid` header.
    named: BTreeMap<Arc<str>, Key>,
    /// Where further ones are, by their `kid`.
    jwks: Option<Arc<Jwks>>,
    audience: Rule,
    issuer: Rule,
    /// The claim that names the user, if not `sub`.
    user_id_claim: Option<String>,
    /// Names of labels, each with the way to the claim that has its value.
    labels_from_claim: Vec<(String, ClaimPath)>,
    leeway_ms: u64,
}

/// What a claim must be.
#[derive(Clone, Debug)]
enum Rule {
    Anything,
    Is(String),
    Matches(Regex),
    /// What it should match could not be read: [`judge`] says so before.
    Nothing,
}

impl Rule {
    fn of(is: Option<&str>, matches: Option<&str>) -> Rule {
        match (is, matches.map(compile)) {
            (Some(is), _) => Rule::Is(is.to_owned()),
            (None, Some(Ok(regex))) => Rule::Matches(regex),
            (None, Some(Err(_))) => Rule::Nothing,
            (None, None) => Rule::Anything,
        }
    }

    fn admits(&self, claims: &[String]) -> bool {
        match self {
            Rule::Anything => true,
            Rule::Is(is) => claims.contains(is),
            Rule::Matches(regex) => claims.iter().any(|claim| regex.is_match(claim)),
            Rule::Nothing => false,
        }
    }
}

/// What a connection token says of the client that carries it.
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
    /// By which the server API tells connections apart.
    pub labels: Tags,
    /// Server-side subscriptions: those of `subs`, or else the names of `channels` without options,
    /// each name once, in order.
    pub subscriptions: BTreeMap<String, SubscribeOptions>,
    /// What it may do in channels beside what they allow anyway (`caps`).
    pub capabilities: Capabilities,
}

/// What a subscription token says: this user may subscribe to this channel.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// The user (`sub`); empty for an anonymous one.
    pub user: String,
    /// The channel.
    pub channel: String,
    /// The only session that it is for, by its id; `None`: any of the user's.
    pub client: Option<String>,
    /// The key the token is signed with, for [`Verifier::keeps`].
    pub key: u64,
    /// What distinguishes the token from others.
    pub token: TokenClaims,
    /// When the subscription expires unless the client refreshes it, in seconds since 1970; `None`:
    /// never. It is `expire_at` where the token has it (0: never), else `exp`.
    pub expire_at_s: Option<u64>,
    /// How the client is subscribed.
    pub options: SubscribeOptions,
    /// What else it may do in the channel while it is subscribed (`allow`).
    pub allow: Allow,
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

/// Why a token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// `exp` has passed. The client should get a new token and may try again (error 109 of the
    /// client protocol); every other error is final.
    Expired,
    /// `nbf` has not come yet.
    NotYetValid,
    /// The signature is of another key.
    Signature,
    /// Signed by a method that the key does not have.
    Algorithm,
    /// `aud` does not name this server.
    Audience,
    /// `iss` is not the configured one.
    Issuer,
    /// It demands extensions that this server does not have (`crit`, RFC 7515 §4.1.11).
    Critical,
    /// No key is configured to verify it with.
    NoKey,
    /// It names no key, and the keys of the set go by their names.
    NoKeyId,
    /// The set has no key of this name.
    UnknownKey,
    /// The set cannot be fetched, and may be later.
    Unavailable,
    /// The set is being fetched; ask again when it is there.
    Pending,
    /// Not a JWT, or a claim has the wrong form.
    Malformed(String),
}

impl Verifier {
    /// A verifier for the keys and rules of a config. A key that cannot be read verifies nothing; `judge` says which,
    /// before a setting is taken.
    pub fn new(rules: TokenRules<'_>) -> Verifier {
        Verifier::next(rules, None)
    }

    /// The same with what a verifier before it has fetched, where the keys are at the same URL.
    pub(crate) fn next(rules: TokenRules<'_>, before: Option<&Verifier>) -> Verifier {
        signature::install();
        let before = before.and_then(|before| before.jwks.as_ref());
        let jwks = rules.jwks.map(|rules| {
            let kept = before.filter(|jwks| jwks.is(&rules)).map(Arc::clone);
            kept.unwrap_or_else(|| Arc::new(Jwks::new(&rules)))
        });
        let secrets = [rules.hmac_secret, rules.hmac_secret_previous];
        let public = [rules.rsa_public_key, rules.ecdsa_public_key, rules.eddsa_public_key];
        let named = rules.keys.iter_shared();
        Verifier {
            secrets: secrets.into_iter().flatten().filter_map(|key| Key::of(key).ok()).collect(),
            public: public.into_iter().flatten().filter_map(|key| Key::of_pem(key).ok()).collect(),
            named: named
                .filter_map(|(kid, secret)| Some((Arc::clone(kid), Key::of(secret).ok()?)))
                .collect(),
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
    /// Why it is not accepted; nothing of an unaccepted token is returned.
    pub fn verify(&self, token: &str, now_unix_ms: u64) -> Result<Identity, Error> {
        let (mut claims, key) = self.claims(token, now_unix_ms)?;
        if !self.labels_from_claim.is_empty() {
            claims.map_labels(token, &self.labels_from_claim);
        }
        claims.identity(key, signature_of(token))
    }

    /// The same for a subscription token.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub fn verify_subscription(
        &self,
        token: &str,
        now_unix_ms: u64,
    ) -> Result<Subscription, Error> {
        let (claims, key) = self.claims(token, now_unix_ms)?;
        claims.subscription(key, signature_of(token))
    }

    /// The claims of a token that is valid, and the key it is signed with.
    fn claims(&self, token: &str, now_unix_ms: u64) -> Result<(Claims, u64), Error> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Error::Malformed(format!("longer than {TOKEN_BYTES_MAX} bytes")));
        }
        let header = Header::of(token)?;
        let (mut claims, key) = match self.candidates(&header) {
            Some(keys) => verify_by(token, keys)?,
            None => {
                let (jwks, kid) = (self.jwks.as_ref(), header.kid.as_ref());
                let (jwks, kid) =
                    jwks.zip(kid.ok_or(Error::NoKeyId)?.into()).ok_or(Error::NoKey)?;
                jwks.with(kid, now_unix_ms, |keys| verify_by(token, keys))??
            }
        };
        claims.check_time(now_unix_ms, self.leeway_ms)?;
        if !self.audience.admits(claims.aud.names()) {
            return Err(Error::Audience);
        }
        if !self.issuer.admits(claims.iss.as_slice()) {
            return Err(Error::Issuer);
        }
        // Whoever signed it says that it must be refused where this is not understood, and nothing is understood here.
        if header.crit.is_some() {
            return Err(Error::Critical);
        }
        if let Some(claim) = &self.user_id_claim {
            claims.sub = claims::text_of(token, claim)?;
        }
        Ok((claims, key))
    }

    /// Whether the key of this number, from [`Identity::key`], still lets clients in.
    pub fn keeps(&self, key: u64) -> bool {
        let unnamed = self.secrets.iter().chain(&self.public);
        unnamed.chain(self.named.values()).any(|of| of.fingerprint == key)
            || self.jwks.as_ref().is_some_and(|jwks| jwks.fingerprint() == key)
    }

    /// Where keys are fetched from.
    pub(crate) fn jwks(&self) -> Option<&Arc<Jwks>> {
        self.jwks.as_ref()
    }

    /// The configured key that a token names by its `kid`, or else those without a name. `None`: its key is in the set.
    fn candidates(&self, header: &Header) -> Option<&[Key]> {
        match header.kid.as_ref().and_then(|kid| self.named.get(kid.as_str())) {
            Some(key) => Some(std::slice::from_ref(key)),
            // A set has no secrets.
            None if key::HMAC.contains(&header.alg) => Some(&self.secrets),
            None if self.jwks.is_some() && (header.kid.is_some() || self.public.is_empty()) => None,
            None if self.public.is_empty() => Some(&self.secrets),
            None => Some(&self.public),
        }
    }
}

/// The claims of a token, by the first of the keys that has signed it, and that key.
fn verify_by(token: &str, keys: &[Key]) -> Result<(Claims, u64), Error> {
    let mut outcome = Err(Error::NoKey);
    for key in keys {
        let decoded = jsonwebtoken::decode::<Claims>(token, &key.decoding, &key.validation);
        outcome = decoded
            .map(|data| (data.claims, key.fingerprint))
            .map_err(|error| Error::of(error.kind()));
        // Another key may be the one.
        if !matches!(outcome, Err(Error::Signature | Error::Algorithm)) {
            break;
        }
    }
    outcome
}

/// What of a token's header is looked at here; the rest is `jsonwebtoken`'s.
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

/// The id of the key that a token says it is signed with (`kid`), unverified.
pub(crate) fn key_id(token: &str) -> Option<String> {
    if token.len() > TOKEN_BYTES_MAX {
        return None;
    }
    Header::of(token).ok()?.kid
}

fn signature_of(token: &str) -> &str {
    token.rsplit('.').next().unwrap_or_default()
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

impl Error {
    fn of(kind: &ErrorKind) -> Error {
        match kind {
            ErrorKind::InvalidSignature => Error::Signature,
            ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => Error::Algorithm,
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
