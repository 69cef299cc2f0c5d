//! Identity and limits of a hub.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::user_directory::UserDirectory;

/// Identity and limits of one worker's [`Hub`](crate::Hub). Limits are per worker unless noted.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// The number of this node, below [`NODES_MAX`](crate::NODES_MAX). [`Hub::set_node`](crate::Hub::set_node)
    /// changes it.
    pub node: u16,
    /// The number of this boot of the node, below [`BOOTS_MAX`](crate::BOOTS_MAX). A restarted worker gets another
    /// one, so that its session ids differ from those of its former incarnation.
    pub boot: u8,
    /// The number of this worker, below `workers`.
    pub worker: u8,
    /// Workers of the process, at most [`WORKERS_MAX`](crate::WORKERS_MAX).
    pub workers: u8,
    /// 0 for a worker's first incarnation, one more after each restart.
    pub incarnation: u32,
    /// Random seed, the same on every worker of the process. It determines the home worker of a channel.
    pub hash_seed: u64,
    /// Random seed, different for every hub. Epochs are derived from it.
    pub seed: u64,
    /// The users of all workers of the process. `None`: commands about a user are sent to every worker.
    pub users: Option<Arc<UserDirectory>>,

    /// Most sessions; at most [`SESSIONS_MAX`](crate::SESSIONS_MAX).
    pub sessions_max: u32,
    /// Most subscriptions of one session.
    pub subscriptions_per_session_max: u16,
    /// Most channels with subscribers here, and most channels at home here.
    pub channels_max: u32,
    /// Most channels with a stream created by one [`Owner`](crate::Owner), on all workers together, and most channels
    /// here that exist only because its sessions are subscribed.
    pub channels_per_owner_max: u32,
    /// Most bytes of a channel's name.
    pub channel_name_bytes_max: u16,
    /// Most outstanding requests to other workers.
    pub requests_max: u32,
    /// Milliseconds until a request to another worker times out.
    pub request_timeout_ms: u64,
    /// Most payload bytes waiting for one other worker whose ring is full.
    pub transmit_bytes_max: usize,
    /// Most memory for all outboxes together: frames (shared ones once) and queue entries. At the limit, the frames
    /// of the session that has been slow for longest are dropped first.
    pub pending_bytes_max: usize,
    /// Most memory for history of all home channels together.
    pub history_bytes_max: usize,
    /// Most memory for the filters of all subscriptions together. One owner may hold an eighth of what is left of it, a
    /// namespace four times what is left.
    pub filter_bytes_max: usize,
    /// Default of [`ChannelOptions::history_meta_ttl_ms`](crate::ChannelOptions), not 0.
    pub history_meta_ttl_ms: u64,
    /// Most idempotency keys; beyond it the key that expires first is evicted, from the namespace with the most keys.
    pub idempotency_keys_max: usize,
    /// Sessions of broadcasts flushed in one turn, after everything else. A fan-out to more subscribers takes several
    /// turns. `None`: every fan-out is flushed in one turn.
    pub broadcast_quantum: Option<NonZeroU32>,
}

impl Default for HubConfig {
    /// A single worker with the default limits. The seeds are constants: set them.
    fn default() -> Self {
        Self {
            node: 0,
            boot: 0,
            worker: 0,
            workers: 1,
            incarnation: 0,
            hash_seed: 0,
            seed: 0,
            users: None,
            sessions_max: crate::session_id::SESSIONS_MAX as u32,
            subscriptions_per_session_max: 128,
            channels_max: 1 << 20,
            channels_per_owner_max: 100_000,
            channel_name_bytes_max: 255,
            requests_max: 1 << 16,
            request_timeout_ms: 5_000,
            transmit_bytes_max: 64 << 20,
            pending_bytes_max: 512 << 20,
            history_bytes_max: 1 << 30,
            filter_bytes_max: 64 << 20,
            history_meta_ttl_ms: 30 * 24 * 3600 * 1000,
            idempotency_keys_max: 1 << 20,
            broadcast_quantum: None,
        }
    }
}

/// The time, read once per turn of the worker's loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Now {
    /// Monotonic milliseconds from any origin.
    pub ms: u64,
    /// Milliseconds of Unix time, for [`Publication::time_ms`](crate::Publication::time_ms).
    pub unix_ms: u64,
}
