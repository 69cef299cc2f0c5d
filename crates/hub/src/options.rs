//! How a channel behaves.

use std::sync::Arc;

/// A channel that an operation is about.
#[derive(Clone, Copy, Debug)]
pub struct ChannelRef<'a> {
    /// Its name.
    pub name: &'a str,
    /// How it behaves.
    pub options: &'a Arc<ChannelOptions>,
}

impl<'a> ChannelRef<'a> {
    /// The channel of this name, with the options of its namespace.
    pub fn new(name: &'a str, options: &'a Arc<ChannelOptions>) -> ChannelRef<'a> {
        ChannelRef { name, options }
    }
}

/// Options of a channel. The caller resolves them from the channel's namespace for each operation,
/// so a changed configuration takes effect with the next operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelOptions {
    /// The namespace, whose [rates](crate::Hub::set_pacing) its broadcasts keep.
    pub namespace: Arc<str>,
    /// The name is a [wildcard](crate::wildcard): it is subscribed to, and nothing else. It keeps nothing.
    pub wildcard: bool,
    /// Its engine carries payloads alone, for other programs.
    pub raw: bool,
    /// Publications kept; 0: no history, no offsets.
    pub history_size: u32,
    /// Milliseconds the history is kept after the last publication; 0: no history.
    pub history_ttl_ms: u64,
    /// Milliseconds a stream's epoch and top offset are remembered after the last publication,
    /// read or subscriber; 0: [`HubConfig::history_meta_ttl_ms`](crate::HubConfig).
    pub history_meta_ttl_ms: u64,
    /// Streams of the namespace on all workers together; `None`: as many as there may be.
    pub channels_max: Option<u32>,
    /// Memory for the history of the namespace on all workers together; `None`: as much as there may be.
    pub history_bytes_max: Option<usize>,
    /// Subscribers are listed in the channel's presence.
    pub presence: bool,
    /// Subscribers that ask for it receive join and leave pushes.
    pub join_leave: bool,
    /// Different users that may be present at once; one more is refused. Joins and leaves then say which of them begin and
    /// end the presence of their user. `None`: there is no bound, and users are not counted.
    pub presence_users_max: Option<u32>,
    /// Every subscriber receives join and leave pushes.
    pub force_push_join_leave: bool,
    /// Subscribers that ask for it get differences between publications, where a publication allows it. Only for
    /// [`OverflowPolicy::Disconnect`]: a difference is worth nothing without the publication before.
    pub delta: bool,
    /// Every publication allows it.
    pub delta_publish: bool,
    /// Every subscription is positioned.
    pub force_positioning: bool,
    /// Every subscription is recoverable.
    pub force_recovery: bool,
    /// What a recovery brings.
    pub recovery_mode: RecoveryMode,
    /// What happens to a subscriber that does not keep up.
    pub overflow: OverflowPolicy,
    /// Largest payload in bytes; 0: unlimited here.
    pub publication_bytes_max: u32,
    /// Maximum number of publications of a recovery; if more are missing, it fails. 0: no limit.
    pub recovery_publications_max: u32,
    /// Bytes of publications of one recovery. 0: no bound. Callers hold other answers to clients to it too.
    pub recovery_bytes_max: usize,
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
        }
    }
}

impl ChannelOptions {
    /// The same for a [wildcard](crate::wildcard) of the namespace.
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
            ..self.clone()
        }
    }

    /// True when the channel numbers and keeps its publications.
    pub fn keeps_history(&self) -> bool {
        self.history_size > 0 && self.history_ttl_ms > 0
    }
}

/// What a recovery brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecoveryMode {
    /// All publications after the position, or it fails.
    #[default]
    Stream,
    /// The last publication, unless the position is behind it: the channel holds a state, not events. It fails where the
    /// history does not hold it any more.
    Cache,
}

/// What is dropped when a session's outbox is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverflowPolicy {
    /// The session: disconnected with code 3008 "slow". It reconnects and recovers.
    #[default]
    Disconnect,
    /// The oldest publications. [`Outgoing::Missed`](crate::Outgoing::Missed) informs the client.
    DropOldest,
    /// Publications that a later one with the same key (without a key: of the same channel) made
    /// obsolete, then the oldest. [`Outgoing::Missed`](crate::Outgoing::Missed) informs the client.
    KeepLatest,
}
