//! Requests: the body of each method, read and judged.
//!
//! What is wrong with a body is said with the path of the field. A member the method does not have is an error too:
//! a misspelled option that is ignored costs its author an evening.

use std::borrow::Cow;

use dunlin_hub::{ChannelOptions, Epoch, HistoryFilter, Publish, SessionId, StreamPosition};
use dunlin_protocol::Json;
use dunlin_protocol::centrifuge::{DisconnectCode, REASON_BYTES_MAX};
use dunlin_protocol::json::{self, Members, Pairs, Text};
use serde::Deserialize;

use super::error::{ApiError, ApiErrorCode};
use super::method::Method;

/// One command of a backend, ready to be carried out. Borrows from the body.
#[derive(Clone, Debug, PartialEq)]
pub enum Request<'a> {
    /// See [`Method::Publish`].
    Publish(PublishRequest<'a>),
    /// See [`Method::Broadcast`].
    Broadcast(BroadcastRequest<'a>),
    /// See [`Method::Subscribe`].
    Subscribe(SubscribeRequest<'a>),
    /// See [`Method::Unsubscribe`].
    Unsubscribe(UnsubscribeRequest<'a>),
    /// See [`Method::Disconnect`].
    Disconnect(DisconnectRequest<'a>),
    /// See [`Method::Refresh`].
    Refresh(RefreshRequest<'a>),
    /// See [`Method::Presence`].
    Presence(ChannelRequest<'a>),
    /// See [`Method::PresenceStats`].
    PresenceStats(ChannelRequest<'a>),
    /// See [`Method::History`].
    History(HistoryRequest<'a>),
    /// See [`Method::HistoryRemove`].
    HistoryRemove(ChannelRequest<'a>),
    /// See [`Method::Channels`].
    Channels(ChannelsRequest<'a>),
    /// See [`Method::Info`].
    Info,
}

impl<'a> Request<'a> {
    /// Reads the body of `POST /api/METHOD`.
    ///
    /// # Errors
    /// "bad request" with the path of the field; "not available" for what this server does not do.
    pub fn parse(method: Method, body: &'a [u8]) -> Result<Request<'a>, ApiError> {
        let body = match (method, body.trim_ascii()) {
            // Nothing has to be said to these two.
            (Method::Info | Method::Channels, b"") => b"{}",
            (_, b"") => {
                return Err(ApiError::malformed("the body is empty; it should be a JSON object"));
            }
            (_, body) => body,
        };
        Ok(match method {
            Method::Publish => {
                Request::Publish(json::from_slice::<PublishBody<'_>>(body)?.judge()?)
            }
            Method::Broadcast => {
                Request::Broadcast(json::from_slice::<BroadcastBody<'_>>(body)?.judge()?)
            }
            Method::Subscribe => {
                Request::Subscribe(json::from_slice::<SubscribeBody<'_>>(body)?.judge()?)
            }
            Method::Unsubscribe => {
                Request::Unsubscribe(json::from_slice::<UnsubscribeBody<'_>>(body)?.judge()?)
            }
            Method::Disconnect => {
                Request::Disconnect(json::from_slice::<DisconnectBody<'_>>(body)?.judge()?)
            }
            Method::Refresh => {
                Request::Refresh(json::from_slice::<RefreshBody<'_>>(body)?.judge()?)
            }
            Method::Presence => Request::Presence(ChannelRequest::parse(body)?),
            Method::PresenceStats => Request::PresenceStats(ChannelRequest::parse(body)?),
            Method::History => {
                Request::History(json::from_slice::<HistoryBody<'_>>(body)?.judge()?)
            }
            Method::HistoryRemove => Request::HistoryRemove(ChannelRequest::parse(body)?),
            Method::Channels => Request::Channels(json::from_slice(body)?),
            Method::Info => {
                json::from_slice::<InfoBody>(body)?;
                Request::Info
            }
        })
    }

    /// The method.
    pub const fn method(&self) -> Method {
        match self {
            Request::Publish(_) => Method::Publish,
            Request::Broadcast(_) => Method::Broadcast,
            Request::Subscribe(_) => Method::Subscribe,
            Request::Unsubscribe(_) => Method::Unsubscribe,
            Request::Disconnect(_) => Method::Disconnect,
            Request::Refresh(_) => Method::Refresh,
            Request::Presence(_) => Method::Presence,
            Request::PresenceStats(_) => Method::PresenceStats,
            Request::History(_) => Method::History,
            Request::HistoryRemove(_) => Method::HistoryRemove,
            Request::Channels(_) => Method::Channels,
            Request::Info => Method::Info,
        }
    }
}

/// Publishes into a channel.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishRequest<'a> {
    /// The channel, not empty.
    pub channel: Cow<'a, str>,
    /// What is published.
    pub message: Message<'a>,
}

/// Publishes the same into many channels. One answer each, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct BroadcastRequest<'a> {
    /// The channels, at least one. An empty name is the error of that channel alone.
    pub channels: Vec<Text<'a>>,
    /// What is published.
    pub message: Message<'a>,
}

/// What is published, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Message<'a> {
    /// The payload.
    pub data: Json<'a>,
    /// Labels for clients.
    pub tags: Pairs<'a, Text<'a>>,
    /// Only to those present: not numbered, not kept.
    pub skip_history: bool,
    /// A second publication with this key is answered like the first and not published. Empty: none.
    pub idempotency_key: Cow<'a, str>,
    /// If above 0: not published unless above the version published last.
    pub version: u64,
    /// Versions compare within the same epoch only. Empty: regardless.
    pub version_epoch: Cow<'a, str>,
}

impl Message<'_> {
    /// The publication as the hub takes it.
    pub fn to_publish(&self) -> Publish {
        let some = |text: &str| (!text.is_empty()).then(|| text.into());
        Publish {
            data: self.data.as_bytes().into(),
            tags: self.tags.iter().map(|(name, value)| (name.into(), (*value.0).into())).collect(),
            idempotency_key: some(&self.idempotency_key),
            skip_history: self.skip_history,
            version: self.version,
            version_epoch: (*self.version_epoch).into(),
            ..Publish::default()
        }
    }
}

/// Subscribes a user's sessions to a channel.
#[derive(Clone, Debug, PartialEq)]
pub struct SubscribeRequest<'a> {
    /// Whose sessions.
    pub target: Target<'a>,
    /// The channel, not empty.
    pub channel: Cow<'a, str>,
    /// About the connection in this channel, for presence, join and leave.
    pub info: Option<Json<'a>>,
    /// For the client, with the push that tells it.
    pub data: Option<Json<'a>>,
    /// Hand over what was published since.
    pub recover_since: Option<StreamPosition>,
    /// Options of the channel that are different for these subscriptions.
    pub options: OptionsOverride,
}

/// Options of a channel that are different for one subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptionsOverride {
    /// List the subscriber in presence.
    pub presence: Option<bool>,
    /// Tell others that it joins and leaves.
    pub join_leave: Option<bool>,
    /// Tell it of others who join and leave.
    pub force_push_join_leave: Option<bool>,
    /// Watch its position.
    pub force_positioning: Option<bool>,
    /// Let it recover.
    pub force_recovery: Option<bool>,
}

impl OptionsOverride {
    /// Whether anything is different.
    pub fn is_empty(&self) -> bool {
        *self == OptionsOverride::default()
    }

    /// The channel's options with what is different.
    pub fn apply(&self, options: &ChannelOptions) -> ChannelOptions {
        ChannelOptions {
            presence: self.presence.unwrap_or(options.presence),
            join_leave: self.join_leave.unwrap_or(options.join_leave),
            force_push_join_leave: self
                .force_push_join_leave
                .unwrap_or(options.force_push_join_leave),
            force_positioning: self.force_positioning.unwrap_or(options.force_positioning),
            force_recovery: self.force_recovery.unwrap_or(options.force_recovery),
            ..options.clone()
        }
    }
}

/// Unsubscribes a user's sessions from a channel.
#[derive(Clone, Debug, PartialEq)]
pub struct UnsubscribeRequest<'a> {
    /// Whose sessions.
    pub target: Target<'a>,
    /// The channel, not empty.
    pub channel: Cow<'a, str>,
}

/// Disconnects a user's sessions.
#[derive(Clone, Debug, PartialEq)]
pub struct DisconnectRequest<'a> {
    /// Whose sessions.
    pub target: Target<'a>,
    /// All but these.
    pub whitelist: Vec<SessionId>,
    /// What the client is told: 3000–4999.
    pub code: u16,
    /// For people, at most [`REASON_BYTES_MAX`] bytes.
    pub reason: Cow<'a, str>,
}

/// Prolongs or ends a user's connections.
#[derive(Clone, Debug, PartialEq)]
pub struct RefreshRequest<'a> {
    /// Whose sessions.
    pub target: Target<'a>,
    /// The connections have expired now: disconnect 3005.
    pub expired: bool,
    /// Unix time in seconds at which the connections will expire; 0: never.
    pub expire_at_s: i64,
    /// About the connection from now on, for presence, join and leave.
    pub info: Option<Json<'a>>,
}

/// Which sessions a command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Whose; empty only beside a `client` or `session`.
    pub user: Cow<'a, str>,
    /// Only the session with this id.
    pub client: Option<SessionId>,
    /// Only the session with this secret; empty: any.
    pub session: Cow<'a, str>,
}

/// A command about a channel and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelRequest<'a> {
    /// The channel, not empty.
    #[serde(borrow, default, deserialize_with = "json::text")]
    pub channel: Cow<'a, str>,
}

impl<'a> ChannelRequest<'a> {
    fn parse(body: &'a [u8]) -> Result<ChannelRequest<'a>, ApiError> {
        let request: ChannelRequest<'a> = json::from_slice(body)?;
        given("channel", &request.channel)?;
        Ok(request)
    }
}

/// Publications of the past.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryRequest<'a> {
    /// The channel, not empty.
    pub channel: Cow<'a, str>,
    /// Most publications to return: 0 none, only the position; negative all.
    pub limit: i32,
    /// Only what is after (reverse: before) this position.
    pub since: Option<StreamPosition>,
    /// Newest first.
    pub reverse: bool,
}

impl HistoryRequest<'_> {
    /// The filter as the hub takes it.
    pub fn filter(&self) -> HistoryFilter {
        HistoryFilter {
            since: self.since,
            limit: u32::try_from(self.limit).ok(),
            reverse: self.reverse,
        }
    }
}

/// Channels with subscribers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChannelsRequest<'a> {
    /// Only those that match this glob; empty: all.
    #[serde(borrow, deserialize_with = "json::text")]
    pub pattern: Cow<'a, str>,
}

// The bodies as they are on the wire. What follows from what is judged by `judge`.

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InfoBody {}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PublishBody<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    channel: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::payload")]
    data: Option<Json<'a>>,
    #[serde(borrow, deserialize_with = "json::text")]
    b64data: Cow<'a, str>,
    #[serde(deserialize_with = "json::nullable")]
    skip_history: bool,
    #[serde(borrow, deserialize_with = "json::nullable")]
    tags: Pairs<'a, Text<'a>>,
    #[serde(borrow, deserialize_with = "json::text")]
    idempotency_key: Cow<'a, str>,
    /// Permission to send differences to clients that understand them. Nobody here is sent one.
    #[serde(rename = "delta", deserialize_with = "json::nullable")]
    _delta: bool,
    #[serde(deserialize_with = "json::nullable")]
    version: u64,
    #[serde(borrow, deserialize_with = "json::text")]
    version_epoch: Cow<'a, str>,
}

impl<'a> PublishBody<'a> {
    fn judge(self) -> Result<PublishRequest<'a>, ApiError> {
        given("channel", &self.channel)?;
        let message = Message {
            data: data(self.data, &self.b64data)?,
            tags: self.tags,
            skip_history: self.skip_history,
            idempotency_key: self.idempotency_key,
            version: self.version,
            version_epoch: self.version_epoch,
        };
        Ok(PublishRequest { channel: self.channel, message })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct BroadcastBody<'a> {
    #[serde(borrow, deserialize_with = "json::nullable")]
    channels: Vec<Text<'a>>,
    #[serde(borrow, deserialize_with = "json::payload")]
    data: Option<Json<'a>>,
    #[serde(borrow, deserialize_with = "json::text")]
    b64data: Cow<'a, str>,
    #[serde(deserialize_with = "json::nullable")]
    skip_history: bool,
    #[serde(borrow, deserialize_with = "json::nullable")]
    tags: Pairs<'a, Text<'a>>,
    #[serde(borrow, deserialize_with = "json::text")]
    idempotency_key: Cow<'a, str>,
    /// See [`PublishBody`].
    #[serde(rename = "delta", deserialize_with = "json::nullable")]
    _delta: bool,
    #[serde(deserialize_with = "json::nullable")]
    version: u64,
    #[serde(borrow, deserialize_with = "json::text")]
    version_epoch: Cow<'a, str>,
}

impl<'a> BroadcastBody<'a> {
    fn judge(self) -> Result<BroadcastRequest<'a>, ApiError> {
        if self.channels.is_empty() {
            return Err(ApiErrorCode::BadRequest.because("channels: name at least one channel"));
        }
        let message = Message {
            data: data(self.data, &self.b64data)?,
            tags: self.tags,
            skip_history: self.skip_history,
            idempotency_key: self.idempotency_key,
            version: self.version,
            version_epoch: self.version_epoch,
        };
        Ok(BroadcastRequest { channels: self.channels, message })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SubscribeBody<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    user: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    channel: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    client: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    session: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::payload")]
    info: Option<Json<'a>>,
    #[serde(borrow, deserialize_with = "json::text")]
    b64info: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::payload")]
    data: Option<Json<'a>>,
    #[serde(borrow, deserialize_with = "json::text")]
    b64data: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::optional_object")]
    recover_since: Option<PositionBody<'a>>,
    #[serde(deserialize_with = "json::nullable")]
    expire_at: i64,
    #[serde(rename = "override", deserialize_with = "json::object")]
    options: OverrideBody,
}

impl<'a> SubscribeBody<'a> {
    fn judge(self) -> Result<SubscribeRequest<'a>, ApiError> {
        given("channel", &self.channel)?;
        if self.expire_at != 0 {
            return Err(ApiErrorCode::NotAvailable
                .because("expire_at: subscriptions made by the API do not expire here"));
        }
        Ok(SubscribeRequest {
            target: target(self.user, &self.client, self.session)?,
            channel: self.channel,
            info: optional("b64info", self.info, &self.b64info)?,
            data: optional("b64data", self.data, &self.b64data)?,
            recover_since: self.recover_since.map(PositionBody::into_hub),
            options: self.options.into(),
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OverrideBody {
    presence: Option<Members<BoolValue>>,
    join_leave: Option<Members<BoolValue>>,
    force_push_join_leave: Option<Members<BoolValue>>,
    force_positioning: Option<Members<BoolValue>>,
    force_recovery: Option<Members<BoolValue>>,
}

impl From<OverrideBody> for OptionsOverride {
    fn from(body: OverrideBody) -> Self {
        let value = |option: Option<Members<BoolValue>>| option.map(|Members(option)| option.value);
        OptionsOverride {
            presence: value(body.presence),
            join_leave: value(body.join_leave),
            force_push_join_leave: value(body.force_push_join_leave),
            force_positioning: value(body.force_positioning),
            force_recovery: value(body.force_recovery),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BoolValue {
    #[serde(default, deserialize_with = "json::nullable")]
    value: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct UnsubscribeBody<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    user: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    channel: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    client: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    session: Cow<'a, str>,
}

impl<'a> UnsubscribeBody<'a> {
    fn judge(self) -> Result<UnsubscribeRequest<'a>, ApiError> {
        given("channel", &self.channel)?;
        let target = target(self.user, &self.client, self.session)?;
        Ok(UnsubscribeRequest { target, channel: self.channel })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DisconnectBody<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    user: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    client: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    session: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::nullable")]
    whitelist: Vec<Text<'a>>,
    #[serde(borrow, deserialize_with = "json::optional_object")]
    disconnect: Option<DisconnectObject<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DisconnectObject<'a> {
    #[serde(deserialize_with = "json::nullable")]
    code: u32,
    #[serde(borrow, deserialize_with = "json::text")]
    reason: Cow<'a, str>,
    /// Of older libraries, from when the code did not say it.
    #[serde(deserialize_with = "json::nullable")]
    reconnect: bool,
}

impl<'a> DisconnectBody<'a> {
    fn judge(self) -> Result<DisconnectRequest<'a>, ApiError> {
        let target = target(self.user, &self.client, self.session)?;
        let given = self.disconnect.unwrap_or_default();
        let default = if given.reconnect {
            DisconnectCode::ForceReconnect
        } else {
            DisconnectCode::ForceNoReconnect
        };
        let code = match given.code {
            0 => default.code(),
            code @ 3000..=4999 => code as u16,
            code => {
                return Err(ApiErrorCode::BadRequest.because(format_args!(
                    "disconnect.code: {code} is not one of 3000–4999 (an application's own are 4000–4999)"
                )));
            }
        };
        if given.reason.len() > REASON_BYTES_MAX {
            return Err(ApiErrorCode::BadRequest.because(format_args!(
                "disconnect.reason: is {} bytes long, a close frame holds {REASON_BYTES_MAX}",
                given.reason.len()
            )));
        }
        let reason = if given.reason.is_empty() && given.code == 0 {
            Cow::Borrowed(default.text())
        } else {
            given.reason
        };
        let whitelist = self
            .whitelist
            .iter()
            .map(|id| session_id("whitelist", &id.0))
            .collect::<Result<_, _>>()?;
        Ok(DisconnectRequest { target, whitelist, code, reason })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RefreshBody<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    user: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    client: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    session: Cow<'a, str>,
    #[serde(deserialize_with = "json::nullable")]
    expired: bool,
    #[serde(deserialize_with = "json::nullable")]
    expire_at: i64,
    #[serde(borrow, deserialize_with = "json::payload")]
    info: Option<Json<'a>>,
}

impl<'a> RefreshBody<'a> {
    fn judge(self) -> Result<RefreshRequest<'a>, ApiError> {
        if self.expire_at < 0 {
            return Err(ApiErrorCode::BadRequest.because("expire_at: is before 1970"));
        }
        Ok(RefreshRequest {
            target: target(self.user, &self.client, self.session)?,
            expired: self.expired,
            expire_at_s: self.expire_at,
            info: self.info,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HistoryBody<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    channel: Cow<'a, str>,
    #[serde(deserialize_with = "json::nullable")]
    limit: i32,
    #[serde(borrow, deserialize_with = "json::optional_object")]
    since: Option<PositionBody<'a>>,
    #[serde(deserialize_with = "json::nullable")]
    reverse: bool,
}

impl<'a> HistoryBody<'a> {
    fn judge(self) -> Result<HistoryRequest<'a>, ApiError> {
        given("channel", &self.channel)?;
        Ok(HistoryRequest {
            channel: self.channel,
            limit: self.limit,
            since: self.since.map(PositionBody::into_hub),
            reverse: self.reverse,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PositionBody<'a> {
    #[serde(deserialize_with = "json::nullable")]
    offset: u64,
    #[serde(borrow, deserialize_with = "json::text")]
    epoch: Cow<'a, str>,
}

impl PositionBody<'_> {
    fn into_hub(self) -> StreamPosition {
        StreamPosition { offset: self.offset, epoch: Epoch::parse(&self.epoch) }
    }
}

fn given(field: &str, value: &str) -> Result<(), ApiError> {
    if value.is_empty() {
        return Err(ApiErrorCode::BadRequest.because(format_args!("{field}: is missing or empty")));
    }
    Ok(())
}

fn data<'a>(data: Option<Json<'a>>, b64data: &str) -> Result<Json<'a>, ApiError> {
    optional("b64data", data, b64data)?
        .ok_or_else(|| ApiErrorCode::BadRequest.because("data: is missing"))
}

/// A payload that may come in base64 instead, which then goes first.
fn optional<'a>(
    field: &str,
    data: Option<Json<'a>>,
    base64: &str,
) -> Result<Option<Json<'a>>, ApiError> {
    if base64.is_empty() {
        return Ok(data);
    }
    match Json::from_base64(base64) {
        Ok(data) => Ok(Some(data)),
        Err(why) => Err(ApiErrorCode::BadRequest.because(format_args!("{field}: {why}"))),
    }
}

fn target<'a>(
    user: Cow<'a, str>,
    client: &str,
    session: Cow<'a, str>,
) -> Result<Target<'a>, ApiError> {
    let client = match client {
        "" => None,
        client => Some(session_id("client", client)?),
    };
    if user.is_empty() && client.is_none() && session.is_empty() {
        return Err(ApiErrorCode::BadRequest
            .because("user: is missing or empty; name a user, or one client by its id"));
    }
    Ok(Target { user, client, session })
}

fn session_id(field: &str, text: &str) -> Result<SessionId, ApiError> {
    text.parse().map_err(|_| {
        let text = &text[..text.floor_char_boundary(64)];
        ApiErrorCode::BadRequest.because(format_args!("{field}: {text:?} is not a client id"))
    })
}
