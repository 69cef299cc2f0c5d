//! Requests: the body of each method, parsed and validated.
//!
//! Errors name the path of the field. A member that the method does not have is an error here;
//! [`LenientReader`](super::LenientReader) removes such members first.

use std::borrow::Cow;

use dunlin_hub::{Durability, HistoryFilter, NewPublication, SessionId, StreamPosition};
use dunlin_protocol::centrifuge::FilterNode;
use dunlin_protocol::json::{self, Pairs, Text};
use dunlin_protocol::{Json, Payload};
use serde::Deserialize;

use super::body::{
    BroadcastBody, DisconnectBody, HistoryBody, InboxCancelBody, InboxPublishBody, InfoBody,
    PublishBody, RefreshBody, SendBody, SubscribeBody, UnsubscribeBody, given, label_filter,
};
use super::error::ApiError;
use super::method::Method;
use dunlin_access::auth::OptionsOverride;
use dunlin_access::limits::budget::CommandKind;

/// One validated command of a backend. Borrows from the body.
#[derive(Clone, Debug, PartialEq)]
pub enum Request<'a> {
    /// See [`Method::Publish`].
    Publish(PublishRequest<'a>),
    /// See [`Method::Broadcast`], [`Method::InboxPublish`] and [`Method::InboxCancel`].
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
    /// See [`Method::Ack`].
    Ack(AckRequest<'a>),
    /// See [`Method::Unread`].
    Unread(UnreadRequest<'a>),
    /// See [`Method::Send`].
    Send(SendRequest<'a>),
    /// See [`Method::RevokeToken`].
    RevokeToken(RevokeTokenRequest<'a>),
    /// See [`Method::InvalidateUserTokens`].
    InvalidateUserTokens(InvalidateUserTokensRequest<'a>),
    /// See [`Method::BlockUser`].
    BlockUser(BlockUserRequest<'a>),
    /// See [`Method::UnblockUser`].
    UnblockUser(UnblockUserRequest<'a>),
    /// See [`Method::Connections`].
    Connections(ConnectionsRequest<'a>),
    /// See [`Method::Channels`].
    Channels(ChannelsRequest<'a>),
    /// See [`Method::Info`].
    Info,
}

impl<'a> Request<'a> {
    /// Reads the body of `POST /api/METHOD`.
    ///
    /// # Errors
    /// "bad request" with the path of the field; "not available" for unsupported features.
    pub fn parse(method: Method, body: &'a [u8]) -> Result<Request<'a>, ApiError> {
        let body = match (method, body.trim_ascii()) {
            // These methods have no mandatory parameters.
            (Method::Info | Method::Channels | Method::Connections, b"") => b"{}",
            (_, b"") => {
                return Err(ApiError::malformed("the body is empty; it should be a JSON object"));
            }
            (_, body) => body,
        };
        Ok(match method {
            Method::Publish => {
                Request::Publish(json::from_slice::<PublishBody<'_>>(body)?.validate()?)
            }
            Method::Broadcast => {
                Request::Broadcast(json::from_slice::<BroadcastBody<'_>>(body)?.validate()?)
            }
            Method::InboxPublish => {
                Request::Broadcast(json::from_slice::<InboxPublishBody<'_>>(body)?.validate()?)
            }
            Method::InboxCancel => {
                Request::Broadcast(json::from_slice::<InboxCancelBody<'_>>(body)?.validate()?)
            }
            Method::Subscribe => {
                Request::Subscribe(json::from_slice::<SubscribeBody<'_>>(body)?.validate()?)
            }
            Method::Unsubscribe => {
                Request::Unsubscribe(json::from_slice::<UnsubscribeBody<'_>>(body)?.validate()?)
            }
            Method::Disconnect => {
                Request::Disconnect(json::from_slice::<DisconnectBody<'_>>(body)?.validate()?)
            }
            Method::Refresh => {
                Request::Refresh(json::from_slice::<RefreshBody<'_>>(body)?.validate()?)
            }
            Method::Presence => Request::Presence(ChannelRequest::parse(body)?),
            Method::PresenceStats => Request::PresenceStats(ChannelRequest::parse(body)?),
            Method::History => {
                Request::History(json::from_slice::<HistoryBody<'_>>(body)?.validate()?)
            }
            Method::HistoryRemove => Request::HistoryRemove(ChannelRequest::parse(body)?),
            Method::Ack => {
                let request: AckRequest<'_> = json::from_slice(body)?;
                given("user", &request.user)?;
                given("channel", &request.channel)?;
                Request::Ack(request)
            }
            Method::Unread => {
                let request: UnreadRequest<'_> = json::from_slice(body)?;
                given("user", &request.user)?;
                given("channel", &request.channel)?;
                Request::Unread(request)
            }
            Method::Send => Request::Send(json::from_slice::<SendBody<'_>>(body)?.validate()?),
            Method::RevokeToken => {
                let request: RevokeTokenRequest<'_> = json::from_slice(body)?;
                given("uid", &request.uid)?;
                Request::RevokeToken(request)
            }
            Method::InvalidateUserTokens => {
                let request: InvalidateUserTokensRequest<'_> = json::from_slice(body)?;
                given("user", &request.user)?;
                Request::InvalidateUserTokens(request)
            }
            Method::BlockUser => {
                let request: BlockUserRequest<'_> = json::from_slice(body)?;
                given("user", &request.user)?;
                Request::BlockUser(request)
            }
            Method::UnblockUser => {
                let request: UnblockUserRequest<'_> = json::from_slice(body)?;
                given("user", &request.user)?;
                Request::UnblockUser(request)
            }
            Method::Connections => {
                let mut request: ConnectionsRequest<'_> = json::from_slice(body)?;
                label_filter(request.label_filter.as_ref())?;
                request.limit = match request.limit {
                    0 => PAGE_DEFAULT,
                    limit => limit.min(PAGE_MAX),
                };
                Request::Connections(request)
            }
            Method::Channels => {
                let mut request: ChannelsRequest<'_> = json::from_slice(body)?;
                let is_page = !request.cursor.is_empty() || request.without_subscribers;
                request.limit = match request.limit {
                    0 if is_page => PAGE_DEFAULT,
                    limit => limit.min(PAGE_MAX),
                };
                Request::Channels(request)
            }
            Method::Info => {
                json::from_slice::<InfoBody>(body)?;
                Request::Info
            }
        })
    }

    /// Returns the channel that it is about; of several, the first.
    pub fn channel(&self) -> Option<&str> {
        match self {
            Request::Publish(of) => Some(&of.channel),
            Request::Broadcast(of) => of.channels.first().map(|channel| &*channel.0),
            Request::Subscribe(of) => Some(&of.channel),
            Request::Unsubscribe(of) => Some(&of.channel),
            Request::Presence(of) | Request::PresenceStats(of) | Request::HistoryRemove(of) => {
                Some(&of.channel)
            }
            Request::History(of) => Some(&of.channel),
            _ => None,
        }
    }

    /// Returns the user that it is about.
    pub fn user_name(&self) -> Option<&str> {
        match self {
            Request::Subscribe(of) => Some(&of.target.user),
            Request::Unsubscribe(of) => Some(&of.target.user),
            Request::Disconnect(of) => Some(&of.target.user),
            Request::Refresh(of) => Some(&of.target.user),
            Request::Send(of) => Some(&of.target.user),
            Request::InvalidateUserTokens(of) => Some(&of.user),
            Request::BlockUser(of) => Some(&of.user),
            Request::UnblockUser(of) => Some(&of.user),
            Request::Connections(of) => Some(&of.user),
            _ => None,
        }
    }

    /// Returns the method.
    pub const fn method(&self) -> Method {
        match self {
            Request::Publish(_) => Method::Publish,
            Request::Broadcast(of) => of.method,
            Request::Subscribe(_) => Method::Subscribe,
            Request::Unsubscribe(_) => Method::Unsubscribe,
            Request::Disconnect(_) => Method::Disconnect,
            Request::Refresh(_) => Method::Refresh,
            Request::Presence(_) => Method::Presence,
            Request::PresenceStats(_) => Method::PresenceStats,
            Request::History(_) => Method::History,
            Request::HistoryRemove(_) => Method::HistoryRemove,
            Request::Ack(_) => Method::Ack,
            Request::Unread(_) => Method::Unread,
            Request::Send(_) => Method::Send,
            Request::RevokeToken(_) => Method::RevokeToken,
            Request::InvalidateUserTokens(_) => Method::InvalidateUserTokens,
            Request::BlockUser(_) => Method::BlockUser,
            Request::UnblockUser(_) => Method::UnblockUser,
            Request::Connections(_) => Method::Connections,
            Request::Channels(_) => Method::Channels,
            Request::Info => Method::Info,
        }
    }

    /// Returns the kind of command that its caller's budget counts; `None` if only the rate of all calls counts.
    pub fn kind(&self) -> Option<CommandKind> {
        match self {
            Request::Publish(_) | Request::Broadcast(_) | Request::Send(_) => {
                Some(CommandKind::Publish)
            }
            Request::Subscribe(_) | Request::Unsubscribe(_) => Some(CommandKind::Subscribe),
            Request::History(_)
            | Request::Unread(_)
            | Request::Presence(_)
            | Request::PresenceStats(_) => Some(CommandKind::Read),
            Request::HistoryRemove(_)
            | Request::Ack(_)
            | Request::Disconnect(_)
            | Request::Refresh(_)
            | Request::RevokeToken(_)
            | Request::InvalidateUserTokens(_)
            | Request::BlockUser(_)
            | Request::UnblockUser(_)
            | Request::Connections(_)
            | Request::Channels(_)
            | Request::Info => None,
        }
    }
}

/// Publishes into a channel.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishRequest<'a> {
    /// The channel, not empty.
    pub channel: Cow<'a, str>,
    /// What is published.
    pub message: PublishParams<'a>,
}

/// Publishes one message into many channels. The response has one result per channel, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct BroadcastRequest<'a> {
    /// [`Method::Broadcast`], or one that does the same to inboxes.
    pub method: Method,
    /// The channels, at least one. An empty name is an error of that channel only.
    pub channels: Vec<Text<'a>>,
    /// What is published.
    pub message: PublishParams<'a>,
}

/// What is published, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishParams<'a> {
    /// The payload.
    pub data: Payload<'a>,
    /// Labels for clients.
    pub tags: Pairs<'a, Text<'a>>,
    /// Sent to current subscribers only: gets no offset and is not kept.
    pub skip_history: bool,
    /// May be sent as a difference to the previous publication.
    pub delta: bool,
    /// A second publication with this key is not published; it gets the result of the first. Empty: none.
    pub idempotency_key: Cow<'a, str>,
    /// If above 0: published only if it is above the version published last.
    pub version: u64,
    /// Versions are compared only within the same version epoch. Empty: always.
    pub version_epoch: Cow<'a, str>,
    /// What it survives before it is answered; `None`: what its namespace says.
    pub durability: Option<Durability>,
}

impl PublishParams<'_> {
    /// Returns the bytes of tags and version epoch that count against `limits.tags_bytes_max`.
    pub fn tags_bytes(&self) -> usize {
        let tags = self.tags.iter().map(|(name, value)| name.len() + value.0.len() + 16);
        tags.sum::<usize>() + self.version_epoch.len()
    }

    /// Converts to the hub's publication.
    pub fn to_publish(&self) -> NewPublication {
        let some = |text: &str| (!text.is_empty()).then(|| text.into());
        NewPublication {
            data: self.data.as_bytes().into(),
            format: self.data.format(),
            tags: self.tags.iter().map(|(name, value)| (name.into(), (*value.0).into())).collect(),
            idempotency_key: some(&self.idempotency_key),
            skip_history: self.skip_history,
            delta: self.delta,
            version: self.version,
            version_epoch: (*self.version_epoch).into(),
            durability: self.durability,
            ..NewPublication::default()
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
    /// Info about the connection in this channel, for presence, join and leave.
    pub info: Option<Json<'a>>,
    /// Data for the client, in the subscribe push.
    pub data: Option<Json<'a>>,
    /// Recovers the publications after this position.
    pub recover_since: Option<StreamPosition>,
    /// Channel options overridden for these subscriptions.
    pub options: OptionsOverride,
    /// Unix time in seconds at which the subscriptions expire; 0: never.
    pub expire_at_s: u64,
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
    /// Sessions that are not disconnected.
    pub whitelist: Vec<SessionId>,
    /// The close code for the client: 3000–4999.
    pub code: u16,
    /// A readable reason of at most [`REASON_BYTES_MAX`](dunlin_protocol::centrifuge::REASON_BYTES_MAX) bytes.
    pub reason: Cow<'a, str>,
}

/// Prolongs or ends a user's connections.
#[derive(Clone, Debug, PartialEq)]
pub struct RefreshRequest<'a> {
    /// Whose sessions.
    pub target: Target<'a>,
    /// Expires the connections now: disconnect 3005.
    pub expired: bool,
    /// Unix time in seconds at which the connections will expire; 0: never.
    pub expire_at_s: i64,
    /// New info about the connection, for presence, join and leave.
    pub info: Option<Json<'a>>,
}

/// Sends a message to a user's sessions, outside any channel.
#[derive(Clone, Debug, PartialEq)]
pub struct SendRequest<'a> {
    /// Whose sessions.
    pub target: Target<'a>,
    /// Only sessions whose connection info names this device; empty: any.
    pub device: Cow<'a, str>,
    /// The payload.
    pub data: Payload<'a>,
    /// To a user of another server: the user here who sends it; empty: the backend.
    pub from: Cow<'a, str>,
    /// To a user of another server: a second message with this key is not delivered. Empty: none.
    pub idempotency_key: Cow<'a, str>,
}

/// The sessions that a command applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The user; empty only with `client`, `session` or `all_users`.
    pub user: Cow<'a, str>,
    /// Only the session with this id; empty: any. An id that Dunlin has not issued matches no session.
    pub client: Cow<'a, str>,
    /// Only the session with this secret; empty: any. One that Dunlin has not issued matches no session.
    pub session: Cow<'a, str>,
    /// All users; valid only if `user` is empty, or qualified with a tenant and otherwise empty.
    pub all_users: bool,
    /// Only sessions whose labels pass this filter. Already validated.
    pub label_filter: Option<FilterNode<'a>>,
}

impl Target<'_> {
    /// Selects all sessions of a user.
    pub fn user(user: String) -> Target<'static> {
        Target {
            user: user.into(),
            client: Cow::Borrowed(""),
            session: Cow::Borrowed(""),
            all_users: false,
            label_filter: None,
        }
    }
}

/// A command whose only parameter is a channel.
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

/// Reads publications from a channel's history.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryRequest<'a> {
    /// The channel, not empty.
    pub channel: Cow<'a, str>,
    /// Most publications to return: 0 none, only the position; negative all.
    pub limit: i32,
    /// Only publications after (reverse: before) this position.
    pub since: Option<StreamPosition>,
    /// Newest first.
    pub reverse: bool,
}

impl HistoryRequest<'_> {
    /// Converts to the hub's filter.
    pub fn filter(&self) -> HistoryFilter {
        HistoryFilter {
            since: self.since,
            limit: u32::try_from(self.limit).ok(),
            reverse: self.reverse,
            ..HistoryFilter::default()
        }
    }
}

/// Acknowledges everything up to a publication, for a device of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AckRequest<'a> {
    /// The user, not empty.
    #[serde(borrow, deserialize_with = "json::text")]
    pub user: Cow<'a, str>,
    /// The channel, not empty.
    #[serde(borrow, deserialize_with = "json::text")]
    pub channel: Cow<'a, str>,
    /// The device, where each acknowledges for itself.
    #[serde(borrow, deserialize_with = "json::text")]
    pub device: Cow<'a, str>,
    /// The offset of the last publication that is acknowledged.
    #[serde(deserialize_with = "json::nullable")]
    pub offset: u64,
    /// Its epoch; empty: the present one.
    #[serde(borrow, deserialize_with = "json::text")]
    pub epoch: Cow<'a, str>,
}

/// Reads where the cursor of a device of a user stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UnreadRequest<'a> {
    /// The user, not empty.
    #[serde(borrow, deserialize_with = "json::text")]
    pub user: Cow<'a, str>,
    /// The channel, not empty.
    #[serde(borrow, deserialize_with = "json::text")]
    pub channel: Cow<'a, str>,
    /// The device, where each acknowledges for itself.
    #[serde(borrow, deserialize_with = "json::text")]
    pub device: Cow<'a, str>,
}

/// Revokes a token by its id: rejects it and disconnects its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RevokeTokenRequest<'a> {
    /// The token's `jti`, not empty.
    #[serde(borrow, deserialize_with = "json::text")]
    pub uid: Cow<'a, str>,
    /// Unix time in seconds until which the revocation is kept: not before the token's `exp`. 0: forever.
    #[serde(deserialize_with = "json::nullable")]
    pub expire_at: u64,
}

/// Revokes the tokens of a user that were issued before a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InvalidateUserTokensRequest<'a> {
    /// The user, not empty.
    #[serde(borrow, deserialize_with = "json::text")]
    pub user: Cow<'a, str>,
    /// Unix time in seconds. Revokes tokens whose `iat` is before it, and tokens without `iat`. 0: now.
    #[serde(deserialize_with = "json::nullable")]
    pub issued_before: u64,
    /// As [`RevokeTokenRequest::expire_at`].
    #[serde(deserialize_with = "json::nullable")]
    pub expire_at: u64,
}

/// Blocks a user: rejects all tokens of the user and disconnects the user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlockUserRequest<'a> {
    /// The user, not empty.
    #[serde(borrow, deserialize_with = "json::text")]
    pub user: Cow<'a, str>,
    /// Unix time in seconds until which the user is blocked. 0: forever.
    #[serde(deserialize_with = "json::nullable")]
    pub expire_at: u64,
}

/// Unblocks a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UnblockUserRequest<'a> {
    /// The user, not empty.
    #[serde(borrow, deserialize_with = "json::text")]
    pub user: Cow<'a, str>,
}

/// Connections or channels per page, if the request does not set a limit.
const PAGE_DEFAULT: u32 = 100;
/// Most connections or channels per page.
const PAGE_MAX: u32 = 1_000;

/// Lists the connections that match all given criteria, one page at a time.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectionsRequest<'a> {
    /// Only of this user; empty: any.
    #[serde(borrow, deserialize_with = "json::text")]
    pub user: Cow<'a, str>,
    /// Only the connection with this id; empty: any.
    #[serde(borrow, deserialize_with = "json::text")]
    pub client: Cow<'a, str>,
    /// Only from this IP address; empty: any.
    #[serde(borrow, deserialize_with = "json::text")]
    pub address: Cow<'a, str>,
    /// Only subscribed to this channel; empty: any.
    #[serde(borrow, deserialize_with = "json::text")]
    pub channel: Cow<'a, str>,
    /// Only over this transport, as `transport` of a connection names it; empty: any.
    #[serde(borrow, deserialize_with = "json::text")]
    pub transport: Cow<'a, str>,
    /// Only connected for at least so many seconds.
    #[serde(deserialize_with = "json::nullable")]
    pub age_min_s: u64,
    /// Only with at least so many bytes waiting in the outbox.
    #[serde(deserialize_with = "json::nullable")]
    pub outbox_bytes_min: u64,
    /// Only with these members in the connection info: an object.
    #[serde(borrow, deserialize_with = "json::payload")]
    pub info: Option<Json<'a>>,
    /// Only with labels that pass this filter.
    #[serde(borrow, deserialize_with = "json::optional_object")]
    pub label_filter: Option<FilterNode<'a>>,
    /// Most connections of the page, at most 1,000.
    #[serde(deserialize_with = "json::nullable")]
    pub limit: u32,
    /// The start of the page: the cursor in the response of the previous page; empty: the first page.
    #[serde(borrow, deserialize_with = "json::text")]
    pub cursor: Cow<'a, str>,
}

/// Lists channels with subscribers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChannelsRequest<'a> {
    /// Only channels that match this glob; empty: all.
    #[serde(borrow, deserialize_with = "json::text")]
    pub pattern: Cow<'a, str>,
    /// Also channels that have a history or a position, but no subscribers; for a page only.
    #[serde(deserialize_with = "json::nullable")]
    pub without_subscribers: bool,
    /// Most channels of the page, at most 1,000; 0 without a cursor: all channels in one answer.
    #[serde(deserialize_with = "json::nullable")]
    pub limit: u32,
    /// The start of the page: the cursor in the response of the previous page; empty: the first page.
    #[serde(borrow, deserialize_with = "json::text")]
    pub cursor: Cow<'a, str>,
}
