//! `dunlin token`: a connection token, or a subscription token, as a backend would sign it.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use clap::{Args, ValueHint};
use dunlin_config::{Config, Secret};
use ring::hmac;
use serde_json::{Map, Value, json};

use crate::config::File;
use crate::error::CliError;
use crate::style;

#[derive(Debug, Args)]
pub(crate) struct Token {
    /// User of the token (`sub`); "" for an anonymous user
    user: String,
    /// Sign with `client.token.hmac_secret` of this file, and set its audience and issuer
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Sign with this secret; a config file keeps it out of the process list and shell history
    #[arg(long, conflicts_with = "config")]
    secret: Option<String>,
    /// How long the token is valid: 30s, 10m, 24h, 7d or never
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration_s)]
    expires: Expiry,
    /// Server-side subscription to this channel; may be repeated
    #[arg(long = "channel", value_name = "NAME")]
    channels: Vec<String>,
    /// Make a subscription token: the user's clients may subscribe to this channel with it
    #[arg(long, value_name = "CHANNEL", conflicts_with = "channels")]
    subscription: Option<String>,
    /// JSON that other clients receive with this client in presence and publications
    #[arg(long, value_name = "JSON", value_parser = json_value)]
    info: Option<Value>,
}

/// Seconds from now; `None` is never.
type Expiry = Option<u64>;

impl Token {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let mut config = match &self.config {
            Some(file) => File::read(file)?.config()?,
            None => Config::default(),
        };
        if let Some(secret) = self.secret {
            config.client.token.hmac_secret = Some(Secret::new(secret));
        }
        // A token that the server would refuse the key of is no use.
        let errors = dunlin_server::errors_of(&config);
        if let Some(error) =
            errors.iter().find(|error| error.path.to_string().starts_with("client.token."))
        {
            return Err(error.to_string().into());
        }
        let rules = match &self.subscription {
            Some(_) => config.client.subscription_rules(),
            None => config.client.token.rules(),
        };
        let Some(secret) = rules.hmac_secret.map(Secret::reveal) else {
            return Err("there is no key to sign with; name a file that sets \
                        `client.token.hmac_secret` with --config, or give --secret"
                .into());
        };
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let mut claims = Map::new();
        claims.insert("sub".into(), self.user.into());
        claims.insert("iat".into(), now_s.into());
        let mut claim = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                claims.insert(name.into(), value);
            }
        };
        claim("exp", self.expires.map(|seconds| now_s.saturating_add(seconds).into()));
        claim("aud", rules.audience.map(Value::from));
        claim("iss", rules.issuer.map(Value::from));
        claim("channel", self.subscription.map(Value::from));
        claim("channels", (!self.channels.is_empty()).then(|| json!(self.channels)));
        claim("info", self.info);
        style::print(&format!("{}\n", signed(&claims.into(), secret)))
    }
}

/// A JWT by HMAC with SHA-256 (RFC 7515 §3.1).
fn signed(claims: &Value, secret: &str) -> String {
    let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let header = encode(br#"{"typ":"JWT","alg":"HS256"}"#);
    let content = format!("{header}.{}", encode(claims.to_string().as_bytes()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signature = encode(hmac::sign(&key, content.as_bytes()).as_ref());
    format!("{content}.{signature}")
}

fn duration_s(text: &str) -> Result<Expiry, String> {
    if text == "never" {
        return Ok(None);
    }
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor = match &text[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err("write a number and its unit, as in 30s, 10m, 24h or 7d, or never".into()),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{digits:?} is not a whole number"))?;
    number.checked_mul(factor).map(Some).ok_or_else(|| "that is too long; write never".into())
}

pub(crate) fn json_value(text: &str) -> Result<Value, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("it is not JSON ({error}); quote it: '{{\"name\": \"Ada\"}}'"))
}

#[cfg(test)]
mod tests {
    use super::duration_s;

    #[test]
    fn a_time_is_a_number_with_its_unit() {
        assert_eq!(duration_s("90s"), Ok(Some(90)));
        assert_eq!(duration_s("7d"), Ok(Some(604_800)));
        assert_eq!(duration_s("never"), Ok(None));
        assert!(
            duration_s("10").is_err() && duration_s("h").is_err() && duration_s("1.5h").is_err()
        );
        assert!(duration_s("99999999999999999999d").is_err());
    }
}
