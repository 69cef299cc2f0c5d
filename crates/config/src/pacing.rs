use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::LIVE;

/// How fast broadcasts may leave: a token bucket for messages and one for bytes.
///
/// What a bucket has no token for waits in the outboxes; nothing is dropped by it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pacing {
    /// Messages that may leave a worker in a second, a message to two clients counted twice; 0 means
    /// no bound.
    #[schemars(extend("x-applies" = LIVE))]
    pub messages_per_s: u64,
    /// Bytes that may leave a worker in a second; 0 means no bound.
    #[schemars(extend("x-applies" = LIVE))]
    pub bytes_per_s: u64,
    /// How much may leave at once after a pause: what the rates allow in this time.
    #[schemars(range(min = 1, max = 60_000), extend("x-applies" = LIVE))]
    pub burst_ms: u32,
    /// Clients of one broadcast written to in a turn of a worker's loop; 0 means as many as
    /// `limits.broadcast_quantum` allows.
    #[schemars(range(max = 1_000_000), extend("x-applies" = LIVE))]
    pub sessions_per_turn: u32,
}

impl Default for Pacing {
    fn default() -> Pacing {
        Pacing { messages_per_s: 0, bytes_per_s: 0, burst_ms: 100, sessions_per_turn: 0 }
    }
}
