//! The wire format of request bodies, and their validation into requests.

use std::borrow::Cow;

use dunlin_hub::{Durability, Epoch, INBOX_ID, INBOX_TTL_MS, StreamPosition, TagFilter, tenant};
use dunlin_protocol::centrifuge::{DisconnectCode, FilterNode, REASON_BYTES_MAX};
use dunlin_protocol::json::{self, ObjectOnly, Pairs, Text};
use dunlin_protocol::{Json, Payload};
use serde::Deserialize;

use super::error::{ApiError, ApiErrorCode};
use super::method::Method;
use super::request::{
    BroadcastRequest, DisconnectRequest, HistoryRequest, PublishParams, PublishRequest,
    RefreshRequest, SendRequest, SubscribeRequest, Target, UnsubscribeRequest,
};
use dunlin_access::auth::OptionsOverride;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InfoBody {}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PublishBody<'a> {
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
    #[serde(deserialize_with = "json::nullable")]
    delta: bool,
    #[serde(deserialize_with = "json::nullable")]
    version: u64,
    #[serde(borrow, deserialize_with = "json::text")]
    version_epoch: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    durability: Cow<'a, str>,
}

impl<'a> PublishBody<'a> {
    pub(super) fn validate(self) -> Result<PublishRequest<'a>, ApiError> {
        given("channel", &self.channel)?;
        let message = PublishParams {
            data: payload(self.data, &self.b64data)?,
            tags: self.tags,
            skip_history: self.skip_history,
            delta: self.delta,
            idempotency_key: self.idempotency_key,
            version: self.version,
            version_epoch: self.version_epoch,
            durability: durability(&self.durability)?,
        };
        Ok(PublishRequest { channel: self.channel, message })
    }
}

/// What a publication survives before it is answered; empty: what its namespace says.
fn durability(name: &str) -> Result<Option<Durability>, ApiError> {
    match name {
        "" => Ok(None),
        "written" => Ok(Some(Durability::Written)),
        "synced" => Ok(Some(Durability::Synced)),
        other => {
            let why = format_args!("durability: {other:?} is neither \"written\" nor \"synced\"");
            Err(ApiErrorCode::BadRequest.with_reason(why))
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct BroadcastBody<'a> {
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
    #[serde(deserialize_with = "json::nullable")]
    delta: bool,
    #[serde(deserialize_with = "json::nullable")]
    version: u64,
    #[serde(borrow, deserialize_with = "json::text")]
    version_epoch: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    durability: Cow<'a, str>,
}

impl<'a> BroadcastBody<'a> {
    pub(super) fn validate(self) -> Result<BroadcastRequest<'a>, ApiError> {
        if self.channels.is_empty() {
            return Err(ApiErrorCode::BadRequest.with_reason("channels: name at least one channel"));
        }
        let message = PublishParams {
            data: payload(self.data, &self.b64data)?,
            tags: self.tags,
            skip_history: self.skip_history,
            delta: self.delta,
            idempotency_key: self.idempotency_key,
            version: self.version,
            version_epoch: self.version_epoch,
            durability: durability(&self.durability)?,
        };
        Ok(BroadcastRequest { method: Method::Broadcast, channels: self.channels, message })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct InboxPublishBody<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    namespace: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::nullable")]
    users: Vec<Text<'a>>,
    #[serde(borrow, deserialize_with = "json::payload")]
    data: Option<Json<'a>>,
    #[serde(borrow, deserialize_with = "json::text")]
    b64data: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    id: Cow<'a, str>,
    #[serde(deserialize_with = "json::nullable")]
    ttl_ms: u64,
    #[serde(borrow, deserialize_with = "json::text")]
    priority: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::nullable")]
    tags: Pairs<'a, Text<'a>>,
    #[serde(borrow, deserialize_with = "json::text")]
    idempotency_key: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    durability: Cow<'a, str>,
}

impl<'a> InboxPublishBody<'a> {
    pub(super) fn validate(self) -> Result<BroadcastRequest<'a>, ApiError> {
        let channels = inboxes(&self.namespace, self.users)?;
        check_inbox_id(&self.id)?;
        if let Some((name, _)) = self.tags.iter().find(|(name, _)| name.starts_with("inbox_")) {
            let why = format_args!("tags: {name:?} is set by the inbox; take another name");
            return Err(ApiErrorCode::BadRequest.with_reason(why));
        }
        if !["", "low", "normal", "high"].contains(&&*self.priority) {
            let why = format_args!("priority: {:?} is not low, normal or high", self.priority);
            return Err(ApiErrorCode::BadRequest.with_reason(why));
        }
        let mut tags = self.tags;
        let ttl_ms = match self.ttl_ms {
            0 => Cow::Borrowed(""),
            ttl_ms => ttl_ms.to_string().into(),
        };
        for (name, value) in
            [(INBOX_ID, self.id), (INBOX_TTL_MS, ttl_ms), ("inbox_priority", self.priority)]
        {
            if !value.is_empty() {
                tags.0.push((name.into(), Text(value)));
            }
        }
        let message = PublishParams {
            data: payload(self.data, &self.b64data)?,
            tags,
            skip_history: false,
            delta: false,
            idempotency_key: self.idempotency_key,
            version: 0,
            version_epoch: Cow::Borrowed(""),
            durability: durability(&self.durability)?,
        };
        Ok(BroadcastRequest { method: Method::InboxPublish, channels, message })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct InboxCancelBody<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    namespace: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::nullable")]
    users: Vec<Text<'a>>,
    #[serde(borrow, deserialize_with = "json::text")]
    id: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    durability: Cow<'a, str>,
}

impl<'a> InboxCancelBody<'a> {
    pub(super) fn validate(self) -> Result<BroadcastRequest<'a>, ApiError> {
        let channels = inboxes(&self.namespace, self.users)?;
        given("id", &self.id)?;
        check_inbox_id(&self.id)?;
        let tags = vec![
            (INBOX_ID.into(), Text(self.id)),
            ("inbox_cancelled".into(), Text(Cow::Borrowed("true"))),
        ];
        let nothing = Json::parse(b"null").map_err(ApiError::malformed)?;
        let message = PublishParams {
            data: Payload::from(nothing),
            tags: Pairs(tags),
            skip_history: false,
            delta: false,
            idempotency_key: Cow::Borrowed(""),
            version: 0,
            version_epoch: Cow::Borrowed(""),
            durability: durability(&self.durability)?,
        };
        Ok(BroadcastRequest { method: Method::InboxCancel, channels, message })
    }
}

/// Longest id of a message in an inbox.
const INBOX_ID_BYTES_MAX: usize = 256;

fn check_inbox_id(id: &str) -> Result<(), ApiError> {
    if id.len() > INBOX_ID_BYTES_MAX {
        let why = format_args!("id: has more than {INBOX_ID_BYTES_MAX} bytes");
        return Err(ApiErrorCode::BadRequest.with_reason(why));
    }
    Ok(())
}

/// The inboxes of users: channels of a namespace.
fn inboxes<'a>(namespace: &str, users: Vec<Text<'a>>) -> Result<Vec<Text<'a>>, ApiError> {
    given("namespace", namespace)?;
    if users.is_empty() {
        return Err(ApiErrorCode::BadRequest.with_reason("users: name at least one user"));
    }
    let mut inboxes = Vec::with_capacity(users.len());
    for user in users {
        given("users", &user.0)?;
        inboxes.push(Text(format!("{namespace}:{}", user.0).into()));
    }
    Ok(inboxes)
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SubscribeBody<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    user: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    channel: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    client: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    session: Cow<'a, str>,
    #[serde(deserialize_with = "json::nullable")]
    all_users: bool,
    #[serde(borrow, deserialize_with = "json::optional_object")]
    label_filter: Option<FilterNode<'a>>,
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
    pub(super) fn validate(self) -> Result<SubscribeRequest<'a>, ApiError> {
        given("channel", &self.channel)?;
        let before = |_| ApiErrorCode::BadRequest.with_reason("expire_at: is before 1970");
        let expire_at_s = u64::try_from(self.expire_at).map_err(before)?;
        Ok(SubscribeRequest {
            target: target(
                (self.user, self.client, self.session),
                (self.all_users, self.label_filter),
            )?,
            channel: self.channel,
            info: optional("b64info", self.info, &self.b64info)?,
            data: optional("b64data", self.data, &self.b64data)?,
            recover_since: self.recover_since.map(PositionBody::into_hub),
            options: self.options.into(),
            expire_at_s,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct OverrideBody {
    presence: Option<ObjectOnly<BoolValue>>,
    join_leave: Option<ObjectOnly<BoolValue>>,
    force_push_join_leave: Option<ObjectOnly<BoolValue>>,
    force_positioning: Option<ObjectOnly<BoolValue>>,
    force_recovery: Option<ObjectOnly<BoolValue>>,
}

impl From<OverrideBody> for OptionsOverride {
    fn from(body: OverrideBody) -> Self {
        let value =
            |option: Option<ObjectOnly<BoolValue>>| option.map(|ObjectOnly(option)| option.value);
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
pub(super) struct BoolValue {
    #[serde(default, deserialize_with = "json::nullable")]
    value: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct UnsubscribeBody<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    user: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    channel: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    client: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    session: Cow<'a, str>,
    #[serde(deserialize_with = "json::nullable")]
    all_users: bool,
    #[serde(borrow, deserialize_with = "json::optional_object")]
    label_filter: Option<FilterNode<'a>>,
}

impl<'a> UnsubscribeBody<'a> {
    pub(super) fn validate(self) -> Result<UnsubscribeRequest<'a>, ApiError> {
        given("channel", &self.channel)?;
        let target =
            target((self.user, self.client, self.session), (self.all_users, self.label_filter))?;
        Ok(UnsubscribeRequest { target, channel: self.channel })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DisconnectBody<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    user: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    client: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    session: Cow<'a, str>,
    #[serde(deserialize_with = "json::nullable")]
    all_users: bool,
    #[serde(borrow, deserialize_with = "json::optional_object")]
    label_filter: Option<FilterNode<'a>>,
    #[serde(borrow, deserialize_with = "json::nullable")]
    whitelist: Vec<Text<'a>>,
    #[serde(borrow, deserialize_with = "json::optional_object")]
    disconnect: Option<DisconnectObject<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DisconnectObject<'a> {
    #[serde(deserialize_with = "json::nullable")]
    code: u32,
    #[serde(borrow, deserialize_with = "json::text")]
    reason: Cow<'a, str>,
    /// Sent by older libraries, from when the code did not imply whether to reconnect.
    #[serde(deserialize_with = "json::nullable")]
    reconnect: bool,
}

impl<'a> DisconnectBody<'a> {
    pub(super) fn validate(self) -> Result<DisconnectRequest<'a>, ApiError> {
        let target =
            target((self.user, self.client, self.session), (self.all_users, self.label_filter))?;
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
                return Err(ApiErrorCode::BadRequest.with_reason(format_args!(
                    "disconnect.code: {code} is not one of 3000–4999 (an application's own are 4000–4999)"
                )));
            }
        };
        if given.reason.len() > REASON_BYTES_MAX {
            return Err(ApiErrorCode::BadRequest.with_reason(format_args!(
                "disconnect.reason: is {} bytes long, a close frame holds {REASON_BYTES_MAX}",
                given.reason.len()
            )));
        }
        let reason = if given.reason.is_empty() && given.code == 0 {
            Cow::Borrowed(default.text())
        } else {
            given.reason
        };
        // An invalid id matches no session.
        let whitelist = self.whitelist.iter().filter_map(|id| id.0.parse().ok()).collect();
        Ok(DisconnectRequest { target, whitelist, code, reason })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RefreshBody<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    user: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    client: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    session: Cow<'a, str>,
    #[serde(deserialize_with = "json::nullable")]
    all_users: bool,
    #[serde(borrow, deserialize_with = "json::optional_object")]
    label_filter: Option<FilterNode<'a>>,
    #[serde(deserialize_with = "json::nullable")]
    expired: bool,
    #[serde(deserialize_with = "json::nullable")]
    expire_at: i64,
    #[serde(borrow, deserialize_with = "json::payload")]
    info: Option<Json<'a>>,
}

impl<'a> RefreshBody<'a> {
    pub(super) fn validate(self) -> Result<RefreshRequest<'a>, ApiError> {
        if self.expire_at < 0 {
            return Err(ApiErrorCode::BadRequest.with_reason("expire_at: is before 1970"));
        }
        Ok(RefreshRequest {
            target: target(
                (self.user, self.client, self.session),
                (self.all_users, self.label_filter),
            )?,
            expired: self.expired,
            expire_at_s: self.expire_at,
            info: self.info,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SendBody<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    user: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    client: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    session: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    device: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::payload")]
    data: Option<Json<'a>>,
    #[serde(borrow, deserialize_with = "json::text")]
    b64data: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    from: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "json::text")]
    idempotency_key: Cow<'a, str>,
}

impl<'a> SendBody<'a> {
    pub(super) fn validate(self) -> Result<SendRequest<'a>, ApiError> {
        Ok(SendRequest {
            target: target((self.user, self.client, self.session), (false, None))?,
            device: self.device,
            data: payload(self.data, &self.b64data)?,
            from: self.from,
            idempotency_key: self.idempotency_key,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HistoryBody<'a> {
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
    pub(super) fn validate(self) -> Result<HistoryRequest<'a>, ApiError> {
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
pub(super) struct PositionBody<'a> {
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

pub(super) fn given(field: &str, value: &str) -> Result<(), ApiError> {
    if value.is_empty() {
        return Err(
            ApiErrorCode::BadRequest.with_reason(format_args!("{field}: is missing or empty"))
        );
    }
    Ok(())
}

/// Returns the payload of a publication: JSON, or bytes in base64, which take precedence.
fn payload<'a>(data: Option<Json<'a>>, b64data: &str) -> Result<Payload<'a>, ApiError> {
    if b64data.is_empty() {
        let missing = || ApiErrorCode::BadRequest.with_reason("data: is missing");
        return data.map(Payload::from).ok_or_else(missing);
    }
    Payload::from_base64(b64data)
        .map_err(|why| ApiErrorCode::BadRequest.with_reason(format_args!("b64data: {why}")))
}

/// Returns JSON, given as such or in base64, which takes precedence.
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
        Err(why) => Err(ApiErrorCode::BadRequest.with_reason(format_args!("{field}: {why}"))),
    }
}

fn target<'a>(
    (user, client, session): (Cow<'a, str>, Cow<'a, str>, Cow<'a, str>),
    (all_users, filter): (bool, Option<FilterNode<'a>>),
) -> Result<Target<'a>, ApiError> {
    // `all_users` is ignored if a user is given.
    let all_users = all_users && matches!(tenant::split(&user), (_, ""));
    if user.is_empty() && client.is_empty() && session.is_empty() && !all_users {
        return Err(ApiErrorCode::BadRequest.with_reason(
            "user: is missing or empty; name a user, or one client by its id, or set all_users",
        ));
    }
    label_filter(filter.as_ref())?;
    Ok(Target { user, client, session, all_users, label_filter: filter })
}

/// Validates a label filter. `None` without one.
pub fn label_filter(node: Option<&FilterNode<'_>>) -> Result<Option<TagFilter>, ApiError> {
    let wrong = |why| ApiErrorCode::BadRequest.with_reason(format_args!("label_filter: {why}"));
    node.map(|node| node.to_filter().map_err(wrong)).transpose()
}
