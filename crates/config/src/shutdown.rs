use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::LIVE;

/// How the server leaves on SIGTERM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// How long outboxes may take to drain before the process exits with what is left undelivered;
    /// not less than `reconnect_spread_ms`. Docker kills after 10 s, systemd after 90 s.
    #[schemars(range(max = 3_600_000), extend("x-applies" = LIVE))]
    pub drain_timeout_ms: u64,
    /// Over how long clients are asked to reconnect, so that they do not arrive elsewhere all at once.
    #[schemars(range(max = 3_600_000), extend("x-applies" = LIVE))]
    pub reconnect_spread_ms: u64,
}

impl Default for Shutdown {
    fn default() -> Shutdown {
        Shutdown { drain_timeout_ms: 8_000, reconnect_spread_ms: 3_000 }
    }
}
