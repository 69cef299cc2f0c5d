//! Parses a backend's response into a decision or an error.

use std::borrow::Cow;
use std::collections::BTreeMap;

use dunlin_hub::Tags;
use dunlin_protocol::centrifuge::{Disconnect, Error, REASON_BYTES_MAX};
use dunlin_protocol::json::{self, ObjectOnly};
use dunlin_protocol::{Json, Payload};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Denial, ProxyError};
use dunlin_access::auth::OptionsOverride;
use dunlin_access::auth::SubscribeOptions;
use dunlin_access::auth::labels::tags_of;

/// The limit to which an error message is truncated, in bytes.
const MESSAGE_BYTES_MAX: usize = 1_024;
/// Error codes that a backend may return: those of the protocol and those of applications.
const ERROR_CODES: std::ops::RangeInclusive<u32> = 100..=1_999;
/// Disconnect codes that a backend may return: those of the protocol and those of applications.
const DISCONNECT_CODES: std::ops::RangeInclusive<u16> = 3_000..=4_999;

/// The longest time that a response is cached, in seconds.
const CACHE_TTL_S_MAX: u64 = 3_600;

/// The decision of a backend.
#[derive(Clone, Debug, PartialEq)]
pub enum BackendDecision<T> {
    /// Permitted, with this result.
    Granted(T),
    /// The response has neither result, error nor disconnect.
    Nothing,
    /// The command fails with this error.
    Error(Error<'static>),
    /// The client is disconnected.
    Disconnect(Disconnect<'static>),
}

/// The identity and the initial state of a client that may connect.
///
/// ```
/// use dunlin_api::proxy::ConnectResult;
/// use serde_json::json;
///
/// let ada = ConnectResult::user("ada").info(json!({"name": "Ada"})).subscribe("news");
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConnectResult {
    /// The user; empty for an anonymous client.
    #[serde(deserialize_with = "json::nullable")]
    pub user: String,
    /// Unix seconds; 0: never.
    #[serde(deserialize_with = "json::nullable")]
    pub expire_at: u64,
    /// Shown to others, raw JSON.
    pub info: Option<Box<RawValue>>,
    #[serde(deserialize_with = "json::nullable")]
    pub(super) b64info: String,
    /// For the client, raw JSON.
    pub data: Option<Box<RawValue>>,
    #[serde(deserialize_with = "json::nullable")]
    pub(super) b64data: String,
    #[serde(deserialize_with = "json::nullable")]
    pub(super) channels: Vec<String>,
    #[serde(deserialize_with = "json::nullable_map")]
    pub(super) subs: BTreeMap<String, SubscribeOptions>,
    /// For the backend and for expressions, raw JSON; no client sees it.
    pub meta: Option<Box<RawValue>>,
    pub(super) labels: Option<BTreeMap<String, String>>,
}

/// The options of a permitted subscription; by default those of the channel.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SubscribeResult {
    pub(super) info: Option<Box<RawValue>>,
    pub(super) data: Option<Box<RawValue>>,
    pub(super) b64info: Option<String>,
    pub(super) b64data: Option<String>,
    #[serde(rename = "override", deserialize_with = "dunlin_access::auth::overrides")]
    pub(super) overrides: OptionsOverride,
    /// Unix seconds; 0: never.
    #[serde(deserialize_with = "json::nullable")]
    pub expire_at: u64,
}

impl SubscribeResult {
    /// # Errors
    /// A binary form that is no JSON.
    pub fn options(self) -> Result<SubscribeOptions, ProxyError> {
        decoded(self.into())
    }
}

impl From<SubscribeResult> for SubscribeOptions {
    fn from(result: SubscribeResult) -> SubscribeOptions {
        let SubscribeResult { info, data, b64info, b64data, overrides, .. } = result;
        SubscribeOptions { info, data, b64info, b64data, overrides }
    }
}

fn decoded(options: SubscribeOptions) -> Result<SubscribeOptions, ProxyError> {
    options.decoded().map_err(|error| ProxyError::Malformed(error.to_string()))
}

/// How a connection or a subscription continues; by default it does not expire.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RefreshResult {
    /// It ends now.
    #[serde(deserialize_with = "json::nullable")]
    pub expired: bool,
    /// Unix seconds; 0: never.
    #[serde(deserialize_with = "json::nullable")]
    pub expire_at: u64,
    /// Shown to others, raw JSON.
    pub info: Option<Box<RawValue>>,
    #[serde(deserialize_with = "json::nullable")]
    pub(super) b64info: String,
    /// For the backend and for expressions, raw JSON; no client sees it.
    pub meta: Option<Box<RawValue>>,
}

impl RefreshResult {
    /// Replaces `info` by its base64 form, if present.
    ///
    /// # Errors
    /// The base64 form is not JSON.
    pub fn decode(&mut self) -> Result<(), ProxyError> {
        if let Some(info) = json_of("b64info", &self.b64info)? {
            self.info = Some(info);
        }
        Ok(())
    }
}

/// What is published; by default the client's own data.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PublishResult {
    /// For the client, raw JSON.
    pub data: Option<Box<RawValue>>,
    /// `data` in base64; goes before it.
    #[serde(deserialize_with = "json::nullable")]
    pub b64data: String,
    /// It is not kept.
    #[serde(deserialize_with = "json::nullable")]
    pub skip_history: bool,
    /// Labels for clients.
    #[serde(deserialize_with = "json::nullable_map")]
    pub tags: BTreeMap<String, String>,
    /// A second publication with this key is not published; empty: none.
    #[serde(deserialize_with = "json::nullable")]
    pub idempotency_key: String,
    /// If above 0: published only if it is above the version published last.
    #[serde(deserialize_with = "json::nullable")]
    pub version: u64,
    /// Versions are compared only within the same version epoch.
    #[serde(deserialize_with = "json::nullable")]
    pub version_epoch: String,
}

/// The result of a procedure; empty by default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RpcResult {
    /// For the client, raw JSON.
    pub data: Option<Box<RawValue>>,
    /// `data` in base64; goes before it.
    #[serde(deserialize_with = "json::nullable")]
    pub b64data: String,
}

impl ConnectResult {
    /// Replaces `info` and `data` by their base64 forms, if present.
    ///
    /// # Errors
    /// A base64 form is not JSON.
    pub fn decode(&mut self) -> Result<(), ProxyError> {
        for (json, base64, name) in
            [(&mut self.info, &self.b64info, "b64info"), (&mut self.data, &self.b64data, "b64data")]
        {
            if let Some(decoded) = json_of(name, base64)? {
                *json = Some(decoded);
            }
        }
        Ok(())
    }

    /// Takes the labels by which the server API selects connections.
    ///
    /// # Errors
    /// The labels exceed a limit.
    pub fn take_labels(&mut self) -> Result<Tags, ProxyError> {
        let labels = tags_of(self.labels.take().unwrap_or_default());
        labels.map_err(|error| ProxyError::Malformed(format!("result.{error}")))
    }

    /// Takes the initial subscriptions: those of `subs` with their options, and those of `channels`.
    ///
    /// # Errors
    /// A base64 form is not JSON.
    pub fn subscriptions(&mut self) -> Result<BTreeMap<String, SubscribeOptions>, ProxyError> {
        let subs = std::mem::take(&mut self.subs).into_iter();
        let mut all = subs
            .map(|(channel, options)| Ok((channel, decoded(options)?)))
            .collect::<Result<BTreeMap<_, _>, ProxyError>>()?;
        for channel in std::mem::take(&mut self.channels) {
            all.entry(channel).or_default();
        }
        Ok(all)
    }
}

/// Decodes JSON in base64; `None` if the text is empty.
fn json_of(name: &str, base64: &str) -> Result<Option<Box<RawValue>>, ProxyError> {
    if base64.is_empty() {
        return Ok(None);
    }
    let malformed = || ProxyError::Malformed(format!("result.{name} is no JSON in base64"));
    let decoded = Json::from_base64(base64).map_err(|_| malformed())?;
    let text = String::from_utf8(decoded.as_bytes().to_vec()).map_err(|_| malformed())?;
    RawValue::from_string(text).map(Some).map_err(|_| malformed())
}

/// Returns how long the response may be cached for the same user and channel, in milliseconds; 0: not at all. At most until
/// its grant expires.
pub fn cache_ttl_ms(status: u16, body: &[u8], unix_ms: u64) -> u64 {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct CacheHint {
        #[serde(deserialize_with = "json::nullable")]
        cache_ttl: u64,
        result: Option<Granted>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Granted {
        #[serde(deserialize_with = "json::nullable")]
        expire_at: u64,
    }
    if status != 200 || !body.windows(9).any(|part| part == b"cache_ttl") {
        return 0;
    }
    let answer = serde_json::from_slice::<ObjectOnly<CacheHint>>(body);
    answer.map_or(0, |ObjectOnly(answer)| {
        let ttl_ms = answer.cache_ttl.min(CACHE_TTL_S_MAX) * 1_000;
        match answer.result.map_or(0, |result| result.expire_at) {
            0 => ttl_ms,
            end_s => ttl_ms.min(end_s.saturating_mul(1_000).saturating_sub(unix_ms)),
        }
    })
}

/// Returns the payload: `b64data` unless it is empty, else `data`.
///
/// # Errors
/// `b64data` is malformed.
pub fn payload<'a>(
    data: Option<&'a RawValue>,
    b64data: &str,
) -> Result<Option<Payload<'a>>, ProxyError> {
    if b64data.is_empty() {
        return Ok(data.map(|raw| Json::from_raw(raw).into()));
    }
    let decoded = Payload::from_base64(b64data);
    decoded.map(Some).map_err(|why| ProxyError::Malformed(format!("result.b64data {why}")))
}

/// Parses a response.
///
/// # Errors
/// The status is not 200, or the body is malformed.
pub(super) fn read<'a, T: Deserialize<'a>>(
    status: u16,
    body: &'a [u8],
) -> Result<BackendDecision<T>, ProxyError> {
    #[derive(Deserialize)]
    struct Response<T> {
        #[serde(default = "none")]
        result: Option<ObjectOnly<T>>,
        error: Option<ObjectOnly<BackendError>>,
        disconnect: Option<ObjectOnly<BackendDisconnect>>,
    }
    fn none<T>() -> Option<T> {
        None
    }
    #[derive(Deserialize)]
    struct BackendError {
        code: u32,
        #[serde(default, deserialize_with = "json::nullable")]
        message: String,
        #[serde(default, deserialize_with = "json::nullable")]
        temporary: bool,
    }
    #[derive(Deserialize)]
    struct BackendDisconnect {
        code: u16,
        #[serde(default, deserialize_with = "json::nullable")]
        reason: String,
    }
    if status != 200 {
        return Err(ProxyError::Status(status));
    }
    let ObjectOnly(response) = serde_json::from_slice::<ObjectOnly<Response<T>>>(body)
        .map_err(|error| ProxyError::Malformed(error.to_string()))?;
    if let Some(ObjectOnly(BackendDisconnect { code, reason })) = response.disconnect {
        return denied(Denial::Disconnect { code, reason });
    }
    if let Some(ObjectOnly(BackendError { code, message, temporary })) = response.error {
        return denied(Denial::Error { code, message, temporary });
    }
    Ok(response
        .result
        .map_or(BackendDecision::Nothing, |ObjectOnly(result)| BackendDecision::Granted(result)))
}

/// Parses the results of a program.
///
/// # Errors
/// They are malformed.
pub(super) fn result<'a, T: Deserialize<'a>>(
    body: &'a [u8],
) -> Result<BackendDecision<T>, ProxyError> {
    serde_json::from_slice::<ObjectOnly<T>>(body)
        .map(|ObjectOnly(result)| BackendDecision::Granted(result))
        .map_err(|error| ProxyError::Malformed(error.to_string()))
}

/// Converts a denial to a decision.
///
/// # Errors
/// The code is outside the range for backends.
pub(super) fn denied<T>(denial: Denial) -> Result<BackendDecision<T>, ProxyError> {
    match denial {
        Denial::Disconnect { code, mut reason } => {
            if !DISCONNECT_CODES.contains(&code) {
                let why = format!("disconnect.code {code} is not within 4000 to 4999");
                return Err(ProxyError::Malformed(why));
            }
            reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
            Ok(BackendDecision::Disconnect(Disconnect { code, reason: Cow::Owned(reason) }))
        }
        Denial::Error { code, mut message, temporary } => {
            if !ERROR_CODES.contains(&code) {
                return Err(ProxyError::Malformed(format!(
                    "error.code {code} is not within 400 to 1999"
                )));
            }
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
            Ok(BackendDecision::Error(Error { code, message: Cow::Owned(message), temporary }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rpc(body: &str) -> Result<BackendDecision<RpcResult>, ProxyError> {
        read(200, body.as_bytes())
    }

    #[test]
    fn null_in_any_member_of_an_answer_is_as_if_it_were_absent() {
        use dunlin_protocol::json::members_without_null;
        assert!(members_without_null::<ConnectResult>("{}").is_empty());
        assert!(members_without_null::<SubscribeResult>("{}").is_empty());
        assert!(members_without_null::<RefreshResult>("{}").is_empty());
        assert!(members_without_null::<PublishResult>("{}").is_empty());
        assert!(members_without_null::<RpcResult>("{}").is_empty());
        // As Go writes a result without channels.
        let answer = r#"{"result":{"user":"u","channels":null,"subs":{"a":null}},"error":null}"#;
        let Ok(BackendDecision::Granted(mut granted)) =
            read::<ConnectResult>(200, answer.as_bytes())
        else {
            panic!("{answer} refuses the client");
        };
        assert_eq!(granted.user, "u");
        assert_eq!(granted.subscriptions().unwrap().into_keys().collect::<Vec<_>>(), ["a"]);
        let error = r#"{"error":{"code":1000,"message":null,"temporary":null}}"#;
        assert!(matches!(rpc(error), Ok(BackendDecision::Error(_))));
        let disconnect = r#"{"disconnect":{"code":4000,"reason":null}}"#;
        assert!(matches!(rpc(disconnect), Ok(BackendDecision::Disconnect(_))));
        let body = br#"{"cache_ttl":60,"result":{"expire_at":null}}"#;
        assert_eq!(cache_ttl_ms(200, body, 0), 60_000);
    }

    #[test]
    fn an_answer_is_a_result_an_error_a_disconnect_or_nothing() {
        assert!(matches!(
            rpc(r#"{"result":{"data":1,"later":[]}}"#),
            Ok(BackendDecision::Granted(_))
        ));
        assert!(matches!(rpc("{}"), Ok(BackendDecision::Nothing)));
        assert!(matches!(rpc(r#"{"result":null}"#), Ok(BackendDecision::Nothing)));
        let error = rpc(r#"{"result":{},"error":{"code":1000,"message":"no"}}"#);
        assert!(
            matches!(error, Ok(BackendDecision::Error(error)) if error.code == 1000 && !error.temporary)
        );
        let end = rpc(r#"{"disconnect":{"code":4500}}"#);
        assert!(
            matches!(end, Ok(BackendDecision::Disconnect(end)) if end.code == 4500 && !end.reconnects())
        );
    }

    #[test]
    fn malformed_answer_is_a_fault() {
        for body in [
            "",
            "[]",
            "null",
            "{",
            "\u{0}",
            "{}{}",
            r#"{"result":7}"#,
            r#"{"result":[]}"#,
            r#"{"error":{"code":99}}"#,
            r#"{"error":{"code":"1000"}}"#,
            r#"{"error":{"code":-1}}"#,
            r#"{"error":{"code":2000}}"#,
            r#"{"error":true}"#,
            r#"{"disconnect":{"code":1000}}"#,
            r#"{"disconnect":{"code":70000}}"#,
            r#"{"disconnect":{}}"#,
        ] {
            assert!(matches!(rpc(body), Err(ProxyError::Malformed(_))), "{body}");
        }
        let deep = format!("{{\"result\":{}", "[".repeat(100_000));
        assert!(matches!(rpc(&deep), Err(ProxyError::Malformed(_))));
        for status in [0, 201, 204, 301, 404, 500, 999] {
            assert!(matches!(read::<RpcResult>(status, b"{}"), Err(ProxyError::Status(_))));
        }
        let wrong = br#"{"result":{"user":7}}"#;
        assert!(matches!(read::<ConnectResult>(200, wrong), Err(ProxyError::Malformed(_))));
    }

    #[test]
    fn forwarded_data_is_bounded() {
        let long = "ü".repeat(2_000);
        let Ok(BackendDecision::Error(error)) =
            rpc(&format!(r#"{{"error":{{"code":400,"message":"{long}"}}}}"#))
        else {
            panic!("an error");
        };
        assert!(error.message.len() <= MESSAGE_BYTES_MAX);
        let Ok(BackendDecision::Disconnect(end)) =
            rpc(&format!(r#"{{"disconnect":{{"code":4000,"reason":"{long}"}}}}"#))
        else {
            panic!("a disconnect");
        };
        assert!(end.reason.len() <= REASON_BYTES_MAX);
    }

    #[test]
    fn an_answer_is_kept_for_as_long_as_it_says_and_an_hour_at_most() {
        for (status, body, ttl_ms) in [
            (200, r#"{"result":{},"cache_ttl":60}"#, 60_000),
            (200, r#"{"cache_ttl":100000,"error":{"code":403}}"#, 3_600_000),
            (200, r#"{"result":{"cache_ttl":60}}"#, 0),
            (200, r#"{"cache_ttl":"60"}"#, 0),
            (200, r#"{"cache_ttl":-1}"#, 0),
            (500, r#"{"cache_ttl":60}"#, 0),
            (200, "cache_ttl", 0),
            (200, r#"{"result":{"expire_at":100},"cache_ttl":60}"#, 10_000),
            (200, r#"{"result":{"expire_at":80},"cache_ttl":60}"#, 0),
            (200, r#"{"result":null,"cache_ttl":60}"#, 60_000),
        ] {
            assert_eq!(cache_ttl_ms(status, body.as_bytes(), 90_000), ttl_ms, "{body}");
        }
    }

    #[test]
    fn a_connect_has_the_channels_of_both_lists() {
        let body = br#"{"result":{"user":"ada","b64data":"WzFd","channels":["a","b"],
            "subs":{"a":{"data":2,"override":{"presence":{"value":true}}}}}}"#;
        let Ok(BackendDecision::Granted(mut result)) = read::<ConnectResult>(200, body) else {
            panic!("a result")
        };
        result.decode().unwrap();
        assert_eq!(result.data.as_deref().map(RawValue::get), Some("[1]"));
        let subscriptions = result.subscriptions().unwrap();
        assert_eq!(subscriptions.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(subscriptions["a"].overrides.presence, Some(true));
        let body = br#"{"result":{"b64info":"%"}}"#;
        let Ok(BackendDecision::Granted(mut result)) = read::<ConnectResult>(200, body) else {
            panic!("a result")
        };
        assert!(matches!(result.decode(), Err(ProxyError::Malformed(_))));
    }
}
