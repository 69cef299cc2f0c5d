//! Identity and limits of a hub.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::user_directory::UserDirectory;

/// Identity and limits of one worker's [`Hub`](crate::Hub). A limit is per worker where it says nothing else.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// This node, below [`NODES_MAX`](crate::NODES_MAX). [`Hub::set_node`](crate::Hub::set_node) changes it.
    pub node: u16,
    /// This boot of the node, below [`BOOTS_MAX`](crate::BOOTS_MAX). A restarted worker gets
    /// another one, so that its sessions' ids differ from those of its former incarnation.
    pub boot: u8,
    /// This worker, below `workers`.
    pub worker: u8,
    /// Workers of the process, at most [`WORKERS_MAX`](crate::WORKERS_MAX).
    pub workers: u8,
    /// 0 for a worker's first incarnation, one more after each restart.
    pub incarnation: u32,
    /// Random, the same on every worker of the process: it selects the home worker of a channel.
    pub hash_seed: u64,
    /// Random, different for every hub: epochs derive from it.
    pub seed: u64,
    /// Of all workers of the process. `None`: what concerns a user is sent to every worker.
    pub users: Option<Arc<UserDirectory>>,

    /// Sessions, at most [`SESSIONS_MAX`](crate::SESSIONS_MAX).
    pub sessions_max: u32,
    /// Subscriptions of one session.
    pub subscriptions_per_session_max: u16,
    /// Channels with subscribers here, and channels at home here, each.
    pub channels_max: u32,
    /// Channels with a stream that one [`Owner`](crate::Owner) may have brought into being, on all workers together; and
    /// channels here that there are because its sessions are subscribed.
    pub channels_per_owner_max: u32,
    /// Bytes of a channel's name.
    pub channel_name_bytes_max: u16,
    /// Requests to other workers under way at once.
    pub requests_max: u32,
    /// Milliseconds until a request to another worker times out.
    pub request_timeout_ms: u64,
    /// Bytes of payload waiting for one other worker whose ring is full.
    pub transmit_bytes_max: usize,
    /// Memory for all outboxes together: frames (shared ones once) and queue entries. At the bound
    /// the session that has been slow for longest loses its frames first.
    pub pending_bytes_max: usize,
    /// Memory for history of all home channels together.
    pub history_bytes_max: usize,
    /// Default of [`ChannelOptions::history_meta_ttl_ms`](crate::ChannelOptions), not 0.
    pub history_meta_ttl_ms: u64,
    /// Idempotency keys kept; beyond it, of the namespace that has most, the one that would expire first is evicted.
    pub idempotency_keys_max: usize,
    /// Sessions of broadcasts flushed in one turn, after everything else. A fan-out to more
    /// subscribers takes several turns. `None`: every fan-out leaves in one turn.
    pub broadcast_quantum: Option<NonZeroU32>,
}

impl Default for HubConfig {
    /// One worker, alone, with the default limits. The seeds are constants: set them.
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
