//! The claims of tokens. They are Centrifugo's (its docs, "Client JWT authentication" and "Channel JWT authorization"),
//! so that a backend need not change.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use dunlin_config::ClaimPath;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::labels::tags_of;
use super::overrides::{OptionsOverride, overrides};
use super::{Allow, Capabilities, Error, Identity, Subscription, TokenClaims};

/// Options of one subscription: a value of `subs`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SubscribeOptions {
    /// Shown to others in this channel beside the connection's own info.
    pub info: Option<Box<RawValue>>,
    /// Sent to the client with the subscription.
    pub data: Option<Box<RawValue>>,
    /// `info` as JSON in base64; goes before it.
    pub b64info: Option<String>,
    /// `data` as JSON in base64; goes before it.
    pub b64data: Option<String>,
    /// Channel options that this subscription overrides.
    #[serde(default, rename = "override", deserialize_with = "overrides")]
    pub overrides: OptionsOverride,
}

impl SubscribeOptions {
    /// Replaces `info` and `data` by their base64 forms, if present.
    ///
    /// # Errors
    /// A base64 form is not JSON in base64.
    pub fn decoded(mut self) -> Result<SubscribeOptions, Error> {
        self.info = one_of("b64info", self.info, self.b64info.take())?;
        self.data = one_of("b64data", self.data, self.b64data.take())?;
        Ok(self)
    }
}

/// The claims of both kinds of tokens.
#[derive(Deserialize)]
pub(super) struct Claims {
    #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
    pub(super) sub: String,
    exp: Option<NumericDate>,
    nbf: Option<NumericDate>,
    iat: Option<NumericDate>,
    /// A string; a number is accepted and converted.
    jti: Option<Value>,
    #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
    pub(super) aud: Audience,
    pub(super) iss: Option<String>,
    expire_at: Option<NumericDate>,
    info: Option<Box<RawValue>>,
    b64info: Option<String>,
    meta: Option<Box<RawValue>>,
    /// Only in connection tokens.
    labels: Option<BTreeMap<String, String>>,
    #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
    channels: Vec<String>,
    #[serde(default, deserialize_with = "dunlin_protocol::json::nullable_map")]
    subs: BTreeMap<String, SubscribeOptions>,
    /// Required in a subscription token, forbidden in a connection token.
    channel: Option<String>,
    client: Option<String>,
    data: Option<Box<RawValue>>,
    b64data: Option<String>,
    #[serde(default, rename = "override", deserialize_with = "overrides")]
    overrides: OptionsOverride,
    #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
    caps: Capabilities,
    #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
    allow: Allow,
}

/// `aud`: one string, or several (RFC 7519 §4.1.3).
#[derive(Default, Deserialize)]
#[serde(untagged)]
pub(super) enum Audience {
    #[default]
    None,
    One(String),
    Several(Vec<String>),
}

impl Audience {
    pub(super) fn names(&self) -> &[String] {
        match self {
            Audience::None => &[],
            Audience::One(name) => std::slice::from_ref(name),
            Audience::Several(names) => names,
        }
    }
}

impl Claims {
    /// Checks `exp` and `nbf`.
    pub(super) fn check_time(&self, now_unix_ms: u64, leeway_ms: u64) -> Result<(), Error> {
        if self.exp.is_some_and(|exp| exp.ms().saturating_add(leeway_ms) <= now_unix_ms) {
            return Err(Error::Expired);
        }
        if self.nbf.is_some_and(|nbf| nbf.ms() > now_unix_ms.saturating_add(leeway_ms)) {
            return Err(Error::NotYetValid);
        }
        Ok(())
    }

    /// Sets labels from other claims of the verified token, replacing those with the same names. A missing claim sets no label.
    pub(super) fn map_labels(&mut self, token: &str, paths: &[(String, ClaimPath)]) {
        let claims = payload_of(token);
        let labels = self.labels.get_or_insert_default();
        for (label, path) in paths {
            if let Some(value) = path.text(&claims) {
                labels.insert(label.clone(), value);
            }
        }
    }

    /// Returns the content of the connection token.
    pub(super) fn identity(self, key: u64, signed: [u8; 32]) -> Result<Identity, Error> {
        if self.channel.is_some_and(|channel| !channel.is_empty()) {
            let why = "it has a `channel`: it is a subscription token, and lets nobody connect";
            return Err(Error::Malformed(why.into()));
        }
        let subscriptions = if self.subs.is_empty() {
            self.channels.into_iter().map(|name| (name, SubscribeOptions::default())).collect()
        } else {
            let decoded =
                |(name, options): (String, SubscribeOptions)| Ok((name, options.decoded()?));
            self.subs.into_iter().map(decoded).collect::<Result<_, Error>>()?
        };
        Ok(Identity {
            user: self.sub,
            key: Some(key),
            token: Some(token_claims(self.jti, self.iat, signed)),
            expire_at_s: expire_at_s(self.expire_at, self.exp),
            info: one_of("b64info", self.info, self.b64info)?,
            meta: self.meta,
            parsed_meta: OnceCell::new(),
            labels: tags_of(self.labels.unwrap_or_default())
                .map_err(|error| Error::Malformed(error.to_string()))?,
            subscriptions,
            capabilities: self.caps,
            device: None,
        })
    }

    /// Returns the content of the subscription token.
    pub(super) fn subscription(self, key: u64, signed: [u8; 32]) -> Result<Subscription, Error> {
        let Some(channel) = self.channel.filter(|channel| !channel.is_empty()) else {
            return Err(Error::Malformed(
                "it has no `channel`: it is no subscription token".into(),
            ));
        };
        let options = SubscribeOptions {
            info: self.info,
            data: self.data,
            b64info: self.b64info,
            b64data: self.b64data,
            overrides: self.overrides,
        };
        Ok(Subscription {
            user: self.sub,
            channel,
            client: self.client.filter(|client| !client.is_empty()),
            key,
            token: token_claims(self.jti, self.iat, signed),
            expire_at_s: expire_at_s(self.expire_at, self.exp),
            options: options.decoded()?,
            allow: self.allow,
        })
    }
}

fn token_claims(jti: Option<Value>, iat: Option<NumericDate>, signed: [u8; 32]) -> TokenClaims {
    TokenClaims {
        jti: jti.map(|jti| match jti {
            Value::String(jti) => jti,
            other => other.to_string(),
        }),
        issued_at_s: iat.map(|iat| iat.ms() / 1_000),
        signed,
    }
}

fn expire_at_s(expire_at: Option<NumericDate>, exp: Option<NumericDate>) -> Option<u64> {
    match expire_at {
        Some(at) if at.0 < 1.0 => None,
        Some(at) => Some(at.ms() / 1_000),
        None => exp.map(|exp| exp.ms() / 1_000),
    }
}

/// Returns the base64 form of JSON if there is one, else the plain form.
fn one_of(
    name: &str,
    json: Option<Box<RawValue>>,
    base64: Option<String>,
) -> Result<Option<Box<RawValue>>, Error> {
    let Some(base64) = base64.filter(|text| !text.is_empty()) else { return Ok(json) };
    let bytes = STANDARD.decode(base64).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    let decoded = text.and_then(|text| RawValue::from_string(text).ok());
    match decoded {
        Some(json) => Ok(Some(json)),
        None => Err(Error::Malformed(format!("`{name}` is no JSON in base64"))),
    }
}

/// Returns all claims of a verified token.
fn payload_of(token: &str) -> Value {
    let payload = token.split('.').nth(1).unwrap_or_default();
    let json = URL_SAFE_NO_PAD.decode(payload).unwrap_or_default();
    serde_json::from_slice(&json).unwrap_or_default()
}

/// Returns a claim of a verified token as a string; a number is converted.
pub(super) fn text_of(token: &str, claim: &str) -> Result<String, Error> {
    match payload_of(token).get(claim) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        _ => Err(Error::Malformed(format!("it names no user: it has no {claim:?}"))),
    }
}

/// Seconds since 1970, possibly with a fraction (RFC 7519 §2).
#[derive(Clone, Copy, Deserialize)]
struct NumericDate(f64);

impl NumericDate {
    /// Saturates: times before 1970 become 0.
    fn ms(self) -> u64 {
        (self.0 * 1_000.0) as u64
    }
}
