//! Options of channels.

use std::sync::Arc;

/// The channel of an operation.
#[derive(Clone, Copy, Debug)]
pub struct ChannelRef<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its options.
    pub options: &'a Arc<ChannelOptions>,
}

impl<'a> ChannelRef<'a> {
    /// A channel with the options of its namespace.
    pub fn new(name: &'a str, options: &'a Arc<ChannelOptions>) -> ChannelRef<'a> {
        ChannelRef { name, options }
    }
}

/// Options of a channel. The caller resolves them from the channel's namespace for each operation,
/// so a changed configuration takes effect with the next operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelOptions {
    /// The namespace, whose [rates](crate::Hub::set_pacing) apply to its broadcasts.
    pub namespace: Arc<str>,
    /// The name is a [wildcard](crate::wildcard). It can only be subscribed to, and has no history.
    pub wildcard: bool,
    /// Its engine transports only payloads, for other programs.
    pub raw: bool,
    /// Publications kept; 0: no history, no offsets.
    pub history_size: u32,
    /// Milliseconds the history is kept after the last publication; 0: no history.
    pub history_ttl_ms: u64,
    /// Milliseconds a stream's epoch and top offset are remembered after the last publication,
    /// read or subscriber; 0: [`HubConfig::history_meta_ttl_ms`](crate::HubConfig).
    pub history_meta_ttl_ms: u64,
    /// Most streams of the namespace on all workers together; `None`: no limit.
    pub channels_max: Option<u32>,
    /// Most memory for the history of the namespace on all workers together; `None`: no limit.
    pub history_bytes_max: Option<usize>,
    /// Subscribers are included in the channel's presence.
    pub presence: bool,
    /// Subscribers that request it receive join and leave pushes.
    pub join_leave: bool,
    /// Most distinct users in presence; a further one is refused. Joins and leaves then say whether they begin or end
    /// the presence of a user. `None`: no limit, and users are not counted.
    pub presence_users_max: Option<u32>,
    /// Every subscriber receives join and leave pushes.
    pub force_push_join_leave: bool,
    /// Subscribers that request it receive deltas, if a publication permits it. Only with
    /// [`OverflowPolicy::Disconnect`], because a delta requires the previous publication.
    pub delta: bool,
    /// Every publication permits deltas.
    pub delta_publish: bool,
    /// Every subscription is positioned.
    pub force_positioning: bool,
    /// Every subscription is recoverable.
    pub force_recovery: bool,
    /// What a recovery returns.
    pub recovery_mode: RecoveryMode,
    /// What happens to a subscriber that reads too slowly.
    pub overflow: OverflowPolicy,
    /// Largest payload in bytes; 0: unlimited here.
    pub publication_bytes_max: u32,
    /// Most publications of a recovery; if more are missing, it fails. 0: no limit.
    pub recovery_publications_max: u32,
    /// Most bytes of publications of one recovery. 0: no limit. Callers limit other responses to clients to it, too.
    pub recovery_bytes_max: usize,
    /// Clients acknowledge publications; `None`: they do not.
    pub ack: Option<AckOptions>,
    /// Subscribers are given only what still [counts](crate::INBOX_ID) of what they missed.
    pub inbox: bool,
}

/// How acknowledgements of a channel are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckOptions {
    /// One cursor stands for all devices of a user; otherwise each device has its own.
    pub by_user: bool,
    /// Milliseconds for which a cursor is kept that does not move.
    pub ttl_ms: u64,
    /// Most devices of a user with cursors.
    pub devices_max: u8,
    /// Most bytes of the namespace's cursors in memory, on all workers together; `None`: no limit. Cursors in an
    /// engine are bounded by it.
    pub bytes_max: Option<usize>,
    /// Milliseconds after which what a subscriber was sent and has not acknowledged is sent again; 0: only when it subscribes
    /// again.
    pub timeout_ms: u64,
    /// Most messages that a subscriber is sent before it acknowledges, with a [`timeout_ms`](Self::timeout_ms); 0: no limit.
    pub window: u32,
    /// Most deliveries of a message to a device, at most 254, with a [`timeout_ms`](Self::timeout_ms). Then it is [undeliverable](crate::Event::Undeliverable). 0: no
    /// limit.
    pub deliveries_max: u8,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self {
            namespace: Arc::default(),
            wildcard: false,
            raw: false,
            history_size: 0,
            history_ttl_ms: 0,
            history_meta_ttl_ms: 0,
            channels_max: None,
            history_bytes_max: None,
            presence: false,
            join_leave: false,
            presence_users_max: None,
            force_push_join_leave: false,
            delta: false,
            delta_publish: false,
            force_positioning: false,
            force_recovery: false,
            recovery_mode: RecoveryMode::Stream,
            overflow: OverflowPolicy::Disconnect,
            publication_bytes_max: 0,
            recovery_publications_max: 0,
            recovery_bytes_max: 0,
            ack: None,
            inbox: false,
        }
    }
}

impl ChannelOptions {
    /// The options of a [wildcard](crate::wildcard) in the namespace.
    #[must_use]
    pub fn of_wildcard(&self) -> Self {
        Self {
            wildcard: true,
            history_size: 0,
            history_ttl_ms: 0,
            presence: false,
            join_leave: false,
            force_push_join_leave: false,
            delta: false,
            delta_publish: false,
            force_positioning: false,
            force_recovery: false,
            ack: None,
            ..self.clone()
        }
    }

    /// Whether the channel numbers and stores its publications.
    pub fn keeps_history(&self) -> bool {
        self.history_size > 0 && self.history_ttl_ms > 0
    }
}

/// What a recovery returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecoveryMode {
    /// All publications after the position; otherwise the recovery fails.
    #[default]
    Stream,
    /// The last publication, unless the position includes it: the channel holds a state, not events. Fails if the
    /// history no longer has it.
    Cache,
}

/// What is dropped when a session's outbox is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverflowPolicy {
    /// The session is disconnected with code 3008 "slow". It reconnects and recovers.
    #[default]
    Disconnect,
    /// The oldest publications are dropped. [`Outgoing::Missed`](crate::Outgoing::Missed) informs the client.
    DropOldest,
    /// Publications that a later one with the same key (or, without a key, of the same channel) replaces are dropped,
    /// then the oldest. [`Outgoing::Missed`](crate::Outgoing::Missed) informs the client.
    KeepLatest,
}
