use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;

settings! {
    /// How the server stops on SIGTERM.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Shutdown {
        /// Time limit for emptying outboxes before the process exits; not less than `reconnect_spread_ms`. Docker
        /// kills after 10 s, systemd after 90 s.
        #[schemars(range(max = 3_600_000))]
        pub drain_timeout_ms: u64 => Read,
        /// The period over which clients are asked to reconnect, so that they do not all reconnect at once.
        #[schemars(range(max = 3_600_000))]
        pub reconnect_spread_ms: u64 => Read,
    }
}

impl Default for Shutdown {
    fn default() -> Shutdown {
        Shutdown { drain_timeout_ms: 8_000, reconnect_spread_ms: 3_000 }
    }
}
