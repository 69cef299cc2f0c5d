use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;

settings! {
    /// The rate of broadcasts: a token bucket for messages and one for bytes. Messages without a token wait in
    /// the outboxes; none is dropped.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Pacing {
        /// Messages per second from a worker; a message to two clients counts twice. 0 means no limit.
        pub messages_per_s: u64 => Pacing,
        /// Bytes per second from a worker; 0 means no limit.
        pub bytes_per_s: u64 => Pacing,
        /// The burst after a pause: as much as the rates permit in this time.
        #[schemars(range(min = 1, max = 60_000))]
        pub burst_ms: u32 => Pacing,
        /// Clients of one broadcast written to in one turn of a worker's loop; 0 means as many as
        /// `limits.broadcast_quantum` permits.
        #[schemars(range(max = 1_000_000))]
        pub sessions_per_turn: u32 => Pacing,
    }
}

impl Default for Pacing {
    fn default() -> Pacing {
        Pacing { messages_per_s: 0, bytes_per_s: 0, burst_ms: 100, sessions_per_turn: 0 }
    }
}
