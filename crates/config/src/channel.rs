use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Map, Pacing, Pattern, SharedBudget};

/// What channels keep and who may do what in them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Channel {
    /// Options of channels whose name has no namespace, such as `news`.
    pub without_namespace: ChannelOptions,
    /// Gives channels of a namespace that is not in `namespaces` the options of `without_namespace`,
    /// in place of refusing them. Development mode does.
    #[schemars(extend("x-applies" = LIVE))]
    pub any_namespace: bool,
    /// Options of channels by namespace: `chat:room1` has those of `[channel.namespaces.chat]`. An
    /// option left out has its default, not the value of `without_namespace`. A channel of a
    /// namespace that is not here is refused (error 102, unknown channel), unless `any_namespace` says otherwise.
    #[schemars(extend("x-applies" = LIVE))]
    pub namespaces: Map<ChannelOptions>,
}

impl Channel {
    /// The options that hold for a channel, by the part of its name before the first `:`; `None` when
    /// that namespace does not exist.
    pub fn options(&self, channel: &str) -> Option<&ChannelOptions> {
        let fallback = self.any_namespace.then_some(&self.without_namespace);
        match split_channel(channel).0 {
            Some(namespace) => self.namespaces.get(namespace).or(fallback),
            None => Some(&self.without_namespace),
        }
    }
}

/// What the name of a private channel begins with: nobody subscribes to it without a token for it.
pub const PRIVATE_PREFIX: char = '$';

/// The namespace of a channel, if it has one, and what is behind it: of `chat:1` and of `$chat:1` it is `chat`.
pub fn split_channel(channel: &str) -> (Option<&str>, &str) {
    let name = channel.strip_prefix(PRIVATE_PREFIX).unwrap_or(channel);
    match name.split_once(':') {
        Some((namespace, rest)) => (Some(namespace), rest),
        None => (None, channel),
    }
}

/// What a channel keeps and who may do what in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChannelOptions {
    /// Where the channels live; a name of `engines`. Not set: in the memory of this node, where other nodes know nothing of
    /// them. A change unsubscribes who is subscribed (2500, insufficient state); clients come back and recover what there is.
    #[schemars(extend("x-applies" = LIVE))]
    pub engine: Option<Arc<str>>,
    /// Names may be wildcards, as NATS has them: `chat:*.typing` hears every channel with one token in place of `*`, `chat:rooms.>`
    /// every one with one or more behind `chat:rooms.`. Who may subscribe to the channels may subscribe to wildcards of them; a
    /// capability has to cover all that one matches, an expression that looks at the channel lets nobody in. They match neither
    /// private channels nor those with a `#`, and keep nothing. Needs an `engine` of type `nats`. A change
    /// unsubscribes who is subscribed (2500).
    #[schemars(extend("x-applies" = LIVE))]
    pub wildcards: bool,
    /// Which names a channel may have: what stands behind `chat:` (the whole name, where there is no
    /// namespace) must look like this. `?` stands for any one character, `[a-z0-9]` for one of these,
    /// `[!a-z]` for one of none of these, `*`, once, for any text: `room-*`, `[0-9]*`. Not set: any
    /// name. A channel of another name is refused (error 102, unknown channel).
    #[schemars(extend("x-applies" = LIVE))]
    pub name_pattern: Option<Pattern>,
    /// The same by a regular expression, as in `^[0-9]+$`; it matches anywhere unless it begins with `^` and
    /// ends with `$`.
    #[schemars(extend("x-applies" = LIVE))]
    pub channel_regex: Option<String>,
    /// Messages a channel keeps; 0 keeps none.
    #[schemars(range(max = 1_000_000), extend("x-applies" = LIVE))]
    pub history_size: u32,
    /// How long a channel keeps its messages after the last one was published; 0 keeps none.
    #[schemars(range(max = 31_536_000_000_u64), extend("x-applies" = LIVE))]
    pub history_ttl_ms: u64,
    /// How long a channel remembers its offset and epoch after its last use, so that a client that
    /// comes back within this time gets exactly what it missed. Not less than `history_ttl_ms`.
    #[schemars(range(min = 1_000, max = 31_536_000_000_u64), extend("x-applies" = LIVE))]
    pub history_meta_ttl_ms: u64,
    /// Recovers every subscription: a client that reconnects is given what it missed. Needs history.
    #[schemars(extend("x-applies" = LIVE))]
    pub recover: bool,
    /// What a client that recovers is given.
    #[schemars(extend("x-applies" = LIVE))]
    pub force_recovery_mode: RecoveryMode,
    /// Watches the position of every subscription: a client that missed a message is asked to
    /// resubscribe. Needs history.
    #[schemars(extend("x-applies" = LIVE))]
    pub positioned: bool,
    /// Keeps who is subscribed, for presence and presence stats.
    #[schemars(extend("x-applies" = LIVE))]
    pub presence: bool,
    /// Notifies subscribers that ask for it, and may ask who is present, when a client joins or leaves
    /// the channel.
    #[schemars(extend("x-applies" = LIVE))]
    pub join_leave: bool,
    /// Notifies every subscriber when a client joins or leaves the channel, also who has not asked for it or may not ask who is
    /// present. Needs `join_leave`.
    #[schemars(extend("x-applies" = LIVE))]
    pub force_push_join_leave: bool,
    /// Formats in which subscribers may ask for the difference between messages instead of whole messages. Needs
    /// `overflow = "disconnect"`.
    #[schemars(extend("x-applies" = LIVE))]
    pub allowed_delta_types: Vec<DeltaType>,
    /// Every message may be sent as a difference, also where its publisher has not said so (`delta` of the server API).
    #[schemars(extend("x-applies" = LIVE))]
    pub delta_publish: bool,
    /// Subscribers may filter messages by their tags.
    #[schemars(extend("x-applies" = LIVE))]
    pub allow_tags_filter: bool,
    /// What happens to a client that does not read as fast as messages arrive, once
    /// `limits.outbox_bytes_max` is reached.
    #[schemars(extend("x-applies" = LIVE))]
    pub overflow: Overflow,
    /// Any client that is not anonymous may subscribe.
    #[schemars(extend("x-applies" = LIVE))]
    pub allow_subscribe_for_client: bool,
    /// An anonymous client may subscribe.
    #[schemars(extend("x-applies" = LIVE))]
    pub allow_subscribe_for_anonymous: bool,
    /// A channel whose name has users behind a `#`, as in `dialog#42,43`, may be subscribed to by them, and by
    /// no others without a token. Else a `#` means nothing.
    #[schemars(extend("x-applies" = LIVE))]
    pub allow_user_limited_channels: bool,
    /// Any client that is not anonymous may publish.
    #[schemars(extend("x-applies" = LIVE))]
    pub allow_publish_for_client: bool,
    /// A subscriber of the channel may publish to it.
    #[schemars(extend("x-applies" = LIVE))]
    pub allow_publish_for_subscriber: bool,
    /// An anonymous client may publish.
    #[schemars(extend("x-applies" = LIVE))]
    pub allow_publish_for_anonymous: bool,
    /// Any client that is not anonymous may read the history.
    #[schemars(extend("x-applies" = LIVE))]
    pub allow_history_for_client: bool,
    /// A subscriber of the channel may read its history.
    #[schemars(extend("x-applies" = LIVE))]
    pub allow_history_for_subscriber: bool,
    /// An anonymous client may read the history.
    #[schemars(extend("x-applies" = LIVE))]
    pub allow_history_for_anonymous: bool,
    /// Any client that is not anonymous may ask who is present.
    #[schemars(extend("x-applies" = LIVE))]
    pub allow_presence_for_client: bool,
    /// A subscriber of the channel may ask who is present.
    #[schemars(extend("x-applies" = LIVE))]
    pub allow_presence_for_subscriber: bool,
    /// An anonymous client may ask who is present.
    #[schemars(extend("x-applies" = LIVE))]
    pub allow_presence_for_anonymous: bool,
    /// Who may subscribe beside those whom the `allow_` keys let in, as an expression in CEL over `user`, `channel`, `meta` (of the
    /// connection's token or connect proxy) and `subscribed`: `"channel == 'room:' + user || 'admin' in meta.roles"`. It is asked before
    /// `subscribe_proxy`. A change ends the subscriptions that it does not let in any more.
    #[schemars(extend("x-applies" = LIVE))]
    pub subscribe_cel: Option<String>,
    /// The same of publishing; asked before `publish_proxy`.
    #[schemars(extend("x-applies" = LIVE))]
    pub publish_cel: Option<String>,
    /// The same of reading the history.
    #[schemars(extend("x-applies" = LIVE))]
    pub history_cel: Option<String>,
    /// The same of asking who is present.
    #[schemars(extend("x-applies" = LIVE))]
    pub presence_cel: Option<String>,
    /// Asked whether a client may subscribe, in place of the `allow_subscribe_…` keys; a name of `proxies`. A subscription
    /// token is not asked about.
    #[schemars(extend("x-applies" = LIVE))]
    pub subscribe_proxy: Option<Arc<str>>,
    /// Asked whether a subscription that the subscribe proxy granted until a time (`expire_at`) goes on when that has come; a name
    /// of `proxies`.
    #[schemars(extend("x-applies" = LIVE))]
    pub sub_refresh_proxy: Option<Arc<str>>,
    /// Asked whether a client may publish, and what, in place of the `allow_publish_…` keys; a name of `proxies`.
    #[schemars(extend("x-applies" = LIVE))]
    pub publish_proxy: Option<Arc<str>>,
    /// Channels of the namespace that have subscribers or history, about as many on each worker; 0: as many as
    /// `limits.channels_max` allows. Beyond it those that hold nothing and have no subscribers give way to new ones.
    #[schemars(range(max = 1_000_000_000), extend("x-applies" = LIVE))]
    pub channels_max: u32,
    /// Bytes of the namespace's history, about as many on each worker; 0: as many as `limits.history_bytes_max` allows. Beyond
    /// it its oldest messages leave early.
    #[schemars(extend("x-applies" = LIVE))]
    pub history_bytes_max: u64,
    /// How fast the namespace's broadcasts may leave a worker.
    pub pacing: Pacing,
    /// What all clients together may do in the namespace's channels.
    pub budget: SharedBudget,
}

impl Default for ChannelOptions {
    fn default() -> ChannelOptions {
        ChannelOptions {
            engine: None,
            wildcards: false,
            name_pattern: None,
            channel_regex: None,
            history_size: 0,
            history_ttl_ms: 0,
            history_meta_ttl_ms: 86_400_000,
            recover: false,
            force_recovery_mode: RecoveryMode::Stream,
            positioned: false,
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
    /// Whether the channel keeps messages at all.
    pub(crate) fn has_history(&self) -> bool {
        self.history_size > 0 && self.history_ttl_ms > 0
    }
}

/// What a client that recovers is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum RecoveryMode {
    /// Every message that it missed, as long as the history holds them all.
    #[default]
    Stream,
    /// The last message alone, unless it has it: for channels that hold a state.
    Cache,
}

/// A format of differences between messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum DeltaType {
    /// Fossil's delta format.
    Fossil,
}

/// What happens to a client whose outbox is full. Whatever is not delivered is counted, and the
/// client is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Overflow {
    /// The client is disconnected (code 3008, slow) and recovers when it reconnects.
    #[default]
    Disconnect,
    /// The oldest undelivered messages give way to new ones.
    DropOldest,
    /// Of the undelivered messages of a channel only the latest stays.
    KeepLatest,
}
