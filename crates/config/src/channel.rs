use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::{ChannelDurability, Map, Pacing, Pattern, SharedBudget};

settings! {
    /// What channels store and what clients may do in them.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Channel {
        /// Options of channels whose name has no namespace, such as `news`.
        pub without_namespace: ChannelOptions | WithoutNamespace,
        /// Uses the options of `without_namespace` for channels of a namespace that is not in `namespaces`,
        /// instead of refusing them. On in development mode.
        pub any_namespace: bool => Permissions,
        /// Options of channels by namespace: `chat:room1` has those of `[channel.namespaces.chat]`. A missing
        /// option has its default, not the value of `without_namespace`. A channel of an unknown namespace is
        /// refused (error 102, unknown channel), unless `any_namespace` is set.
        pub namespaces: Map<ChannelOptions> | Permissions,
    }
}

impl Channel {
    /// Returns the options of a channel, by the part of its name before the first `:`; `None` if that namespace does
    /// not exist.
    pub fn options(&self, channel: &str) -> Option<&ChannelOptions> {
        let fallback = self.any_namespace.then_some(&self.without_namespace);
        match split_channel(channel).0 {
            Some(namespace) => self.namespaces.get(namespace).or(fallback),
            None => Some(&self.without_namespace),
        }
    }
}

/// The prefix of private channels. A client needs a token to subscribe to one.
pub const PRIVATE_PREFIX: char = '$';

/// Splits a channel into its namespace, if it has one, and the rest. The namespace of `chat:1` and of
/// `$chat:1` is `chat`.
pub fn split_channel(channel: &str) -> (Option<&str>, &str) {
    let name = channel.strip_prefix(PRIVATE_PREFIX).unwrap_or(channel);
    match name.split_once(':') {
        Some((namespace, rest)) => (Some(namespace), rest),
        None => (None, channel),
    }
}

settings! {
    /// What a channel stores and what clients may do in it.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct ChannelOptions {
        /// The engine that stores the channels; a name of `engines`. Not set: the memory of this node, which is
        /// not shared with other nodes. A change unsubscribes all subscribers (code 2500, insufficient state);
        /// clients subscribe again and recover what is available.
        pub engine: Option<Arc<str>> => EngineOfChannels,
        /// What a publication survives before it is delivered and acknowledged, in an engine of type `disk`. A call of the
        /// server API may ask for another answer. A change unsubscribes all subscribers (code 2500).
        pub durability: ChannelDurability => EngineOfChannels,
        /// Permits wildcard subscriptions as in NATS: `chat:*.typing` matches channels with one token in place of
        /// `*`, `chat:rooms.>` matches channels with one or more tokens after `chat:rooms.`. A client that may
        /// subscribe to the channels may subscribe to their wildcards. A capability must cover everything that a
        /// wildcard matches; an expression that uses `channel` never permits one. Wildcards do not match private
        /// channels or channels with a `#`, and have no history. Needs an `engine` of type `nats`. A change
        /// unsubscribes all subscribers (code 2500).
        pub wildcards: bool => EngineOfChannels & Permissions,
        /// The pattern of channel names, without the namespace. `?` matches one character, `[a-z0-9]` one of
        /// these, `[!a-z]` one that is none of these, and `*`, once, any text: `room-*`, `[0-9]*`. Not set: any
        /// name. A channel with another name is refused (error 102, unknown channel).
        pub name_pattern: Option<Pattern> => Permissions,
        /// The same as a regular expression, for example `^[0-9]+$`. It matches anywhere unless it begins with
        /// `^` and ends with `$`.
        pub channel_regex: Option<String> => Permissions,
        /// Messages in the history of a channel; 0 disables history.
        #[schemars(range(max = 1_000_000))]
        pub history_size: u32 => Read,
        /// How long a channel keeps its messages after the last publication; 0 disables history.
        #[schemars(range(max = 31_536_000_000_u64))]
        pub history_ttl_ms: u64 => Read,
        /// How long a channel keeps its offset and epoch after its last use. A client that returns within this
        /// time can recover exactly what it missed. Not less than `history_ttl_ms`.
        #[schemars(range(min = 1_000, max = 31_536_000_000_u64))]
        pub history_meta_ttl_ms: u64 => Read,
        /// Enables recovery for every subscription: a client that reconnects receives the messages it missed.
        /// Needs history.
        pub recover: bool => Read,
        /// What a recovering client receives.
        pub force_recovery_mode: RecoveryMode => Read,
        /// Tracks the position of every subscription: a client that missed a message is asked to subscribe again.
        /// Needs history.
        pub positioned: bool => Read,
        /// Clients acknowledge the messages that they have processed, and get every other one again: a subscription
        /// begins after the last acknowledged message, on any transport, worker and node, after a restart. Needs
        /// `recover`. See `docs/acknowledgements.md`.
        pub ack: Ack => Read,
        /// How long the cursor of a device is kept after its last acknowledgement. A device that comes back later begins
        /// with the oldest message that is there.
        #[schemars(range(min = 1_000, max = 31_536_000_000_u64))]
        pub ack_ttl_ms: u64 => Read,
        /// Most devices of a user with cursors in one channel. A further one is refused its acknowledgements until a
        /// cursor expires.
        #[schemars(range(min = 1, max = 255))]
        pub ack_devices_max: u32 => Read,
        /// Most bytes of the namespace's cursors in memory, divided evenly between workers; 0: no limit. Beyond it the user
        /// with most of them gives up those that have been still for longest. Cursors in an engine are bounded by the engine.
        pub ack_bytes_max: u64 => Read,
        /// Sends a message again on the same connection if it was not acknowledged for so long; 0: only when the client
        /// subscribes again. Otherwise at least 1,000. Counts from the first message that is not acknowledged, or from the
        /// last acknowledgement. Subscribers then get no deltas.
        #[schemars(range(max = 86_400_000))]
        pub ack_timeout_ms: u64 => Read,
        /// Most messages that a subscriber is sent before it acknowledges; the others wait in the history. 0: no limit. Needs
        /// `ack_timeout_ms`.
        #[schemars(range(max = 1_000))]
        pub ack_in_flight_max: u32 => Read,
        /// How often a message is delivered to a device that does not acknowledge it. Then it goes to `ack_dead_letter`, and
        /// the device gets what follows. 0: as often as needed. Needs `ack_timeout_ms`.
        #[schemars(range(max = 254))]
        pub ack_deliveries_max: u32 => Read,
        /// The channel that gets the messages that were delivered `ack_deliveries_max` times, with tags that say from where and
        /// whose they are.
        pub ack_dead_letter: Option<Arc<str>> => Read,
        /// Each channel of the namespace is the inbox of the user whose name follows the `:`, as `inbox:42` is that of user 42: only
        /// that user may subscribe to it and read its history, whatever the `allow_` keys say. Needs `ack`. See `docs/inbox.md`.
        pub inbox: Inbox => Permissions & NewConnections,
        /// Maintains presence and presence stats.
        pub presence: bool => Read,
        /// Notifies subscribers when a client joins or leaves the channel, if they request it and may read
        /// presence.
        pub join_leave: bool => Read,
        /// Notifies every subscriber when a client joins or leaves the channel, even without a request or
        /// permission. Needs `join_leave`.
        pub force_push_join_leave: bool => Read,
        /// Formats of message deltas that subscribers may request. Needs `overflow = "disconnect"`.
        pub allowed_delta_types: Vec<DeltaType> => Read,
        /// Sends any message as a delta, not only those published with `delta` of the server API.
        pub delta_publish: bool => Read,
        /// Subscribers may filter messages by their tags.
        pub allow_tags_filter: bool => Read,
        /// What happens when a client reads more slowly than messages arrive and `limits.outbox_bytes_max` is
        /// reached.
        pub overflow: Overflow => Read,
        /// Any client that is not anonymous may subscribe.
        pub allow_subscribe_for_client: bool => Permissions,
        /// An anonymous client may subscribe.
        pub allow_subscribe_for_anonymous: bool => Permissions,
        /// Restricts a channel with users after a `#`, such as `dialog#42,43`, to these users; other clients need
        /// a token. If off, `#` has no meaning.
        pub allow_user_limited_channels: bool => Permissions,
        /// Any client that is not anonymous may publish.
        pub allow_publish_for_client: bool => Read,
        /// A subscriber of the channel may publish to it.
        pub allow_publish_for_subscriber: bool => Read,
        /// An anonymous client may publish.
        pub allow_publish_for_anonymous: bool => Read,
        /// Any client that is not anonymous may read the history.
        pub allow_history_for_client: bool => Read,
        /// A subscriber of the channel may read its history.
        pub allow_history_for_subscriber: bool => Read,
        /// An anonymous client may read the history.
        pub allow_history_for_anonymous: bool => Read,
        /// Any client that is not anonymous may read presence.
        pub allow_presence_for_client: bool => Permissions,
        /// A subscriber of the channel may read presence.
        pub allow_presence_for_subscriber: bool => Permissions,
        /// An anonymous client may read presence.
        pub allow_presence_for_anonymous: bool => Permissions,
        /// Permits subscriptions in addition to the `allow_` keys, by a CEL expression over `user`, `channel`,
        /// `meta` (of the connection's token or connect proxy) and `subscribed`: `"channel == 'room:' + user ||
        /// 'admin' in meta.roles"`. It is evaluated before `subscribe_proxy`. A change ends subscriptions that
        /// are no longer permitted.
        pub subscribe_cel: Option<String> => Permissions & ExpressionData,
        /// Permits publishing, in the same way; evaluated before `publish_proxy`.
        pub publish_cel: Option<String> => ExpressionData,
        /// Permits reading the history, in the same way.
        pub history_cel: Option<String> => ExpressionData,
        /// Permits reading presence, in the same way.
        pub presence_cel: Option<String> => Permissions & ExpressionData,
        /// The backend that decides whether a client may subscribe, in place of the `allow_subscribe_…` keys; a
        /// name of `proxies` or `programs`. It is not asked if the client has a subscription token.
        pub subscribe_proxy: Option<Arc<str>> => Permissions,
        /// The backend that decides whether a subscription with an expiry (`expire_at`) from the subscribe proxy
        /// continues after that time; a name of `proxies` or `programs`.
        pub sub_refresh_proxy: Option<Arc<str>> => Read,
        /// The backend that decides whether a client may publish, and what, in place of the `allow_publish_…`
        /// keys; a name of `proxies` or `programs`.
        pub publish_proxy: Option<Arc<str>> => Read,
        /// Most channels of the namespace with subscribers or history, divided evenly between workers; 0: limited
        /// by `limits.channels_max` only. Beyond it, channels without history and subscribers are removed to make
        /// room.
        #[schemars(range(max = 1_000_000_000))]
        pub channels_max: u32 => Read,
        /// Most bytes of the namespace's history, divided evenly between workers; 0: limited by
        /// `limits.history_bytes_max` only. Beyond it the oldest messages are removed early.
        pub history_bytes_max: u64 => Read,
        /// The rate of the namespace's broadcasts from a worker.
        pub pacing: Pacing,
        /// The rates of all clients together in the namespace's channels.
        pub budget: SharedBudget,
    }
}

impl Default for ChannelOptions {
    fn default() -> ChannelOptions {
        ChannelOptions {
            engine: None,
            durability: ChannelDurability::Engine,
            wildcards: false,
            name_pattern: None,
            channel_regex: None,
            history_size: 0,
            history_ttl_ms: 0,
            history_meta_ttl_ms: 86_400_000,
            recover: false,
            force_recovery_mode: RecoveryMode::Stream,
            positioned: false,
            ack: Ack::Off,
            ack_ttl_ms: 2_592_000_000,
            ack_devices_max: 16,
            ack_bytes_max: 67_108_864,
            ack_timeout_ms: 0,
            ack_in_flight_max: 0,
            ack_deliveries_max: 0,
            ack_dead_letter: None,
            inbox: Inbox::Off,
            presence: false,
            join_leave: false,
            force_push_join_leave: false,
            allowed_delta_types: Vec::new(),
            delta_publish: false,
            allow_tags_filter: false,
            overflow: Overflow::Disconnect,
            allow_subscribe_for_client: false,
            allow_subscribe_for_anonymous: false,
            allow_user_limited_channels: false,
            allow_publish_for_client: false,
            allow_publish_for_subscriber: false,
            allow_publish_for_anonymous: false,
            allow_history_for_client: false,
            allow_history_for_subscriber: false,
            allow_history_for_anonymous: false,
            allow_presence_for_client: false,
            allow_presence_for_subscriber: false,
            allow_presence_for_anonymous: false,
            subscribe_cel: None,
            publish_cel: None,
            history_cel: None,
            presence_cel: None,
            subscribe_proxy: None,
            sub_refresh_proxy: None,
            publish_proxy: None,
            channels_max: 0,
            history_bytes_max: 0,
            pacing: Pacing::default(),
            budget: SharedBudget::default(),
        }
    }
}

impl ChannelOptions {
    /// Returns whether the channel has a history.
    pub(crate) fn has_history(&self) -> bool {
        self.history_size > 0 && self.history_ttl_ms > 0
    }
}

/// What a recovering client receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum RecoveryMode {
    /// All missed messages, if the history still has them.
    #[default]
    Stream,
    /// Only the last message, unless the client has it. For channels that hold a state.
    Cache,
}

/// Who acknowledges messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Ack {
    /// Nobody.
    #[default]
    Off,
    /// Each device of a user for itself.
    Device,
    /// The first device for all of the user's: the others are notified, and do not get the messages any more.
    User,
}

/// Whether channels are inboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Inbox {
    /// They are not.
    #[default]
    Off,
    /// They are, and clients subscribe to them.
    On,
    /// They are, and the server subscribes each connection of a user to the user's.
    Subscribed,
}

/// A format of message deltas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum DeltaType {
    /// Fossil's delta format.
    Fossil,
}

/// What happens to a client whose outbox is full. Messages that are not delivered are counted, and the client
/// is notified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Overflow {
    /// The client is disconnected (code 3008, slow) and recovers when it reconnects.
    #[default]
    Disconnect,
    /// The oldest undelivered messages are dropped.
    DropOldest,
    /// Only the latest undelivered message of a channel is kept.
    KeepLatest,
}
