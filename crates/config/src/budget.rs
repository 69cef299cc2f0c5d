use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::LIVE;

/// What one client may ask of the server. Commands, bytes and deliveries add up: half of each rate is more than a whole.
/// Commands beyond it wait and the client's connection is not read from; nothing is refused.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientBudget {
    /// Commands in a second; 0 means no bound.
    #[schemars(extend("x-applies" = LIVE))]
    pub commands_per_s: u32,
    /// Publications in a second, beside the bound of all commands; 0 means none of their own.
    #[schemars(extend("x-applies" = LIVE))]
    pub publishes_per_s: u32,
    /// Subscriptions and their ends in a second; 0 means no bound of their own.
    #[schemars(extend("x-applies" = LIVE))]
    pub subscribes_per_s: u32,
    /// Questions for history, presence and its counts in a second; 0 means no bound of their own.
    #[schemars(extend("x-applies" = LIVE))]
    pub reads_per_s: u32,
    /// Procedure calls and messages to the server in a second; 0 means no bound of their own.
    #[schemars(extend("x-applies" = LIVE))]
    pub rpcs_per_s: u32,
    /// Bytes of its commands and of the answers to them in a second; 0 means no bound.
    #[schemars(extend("x-applies" = LIVE))]
    pub bytes_per_s: u64,
    /// Messages to others that its commands cause in a second: a publication to a thousand subscribers counts a thousand
    /// times, and as often again for each KiB of it; so do a join and a leave where subscribers are notified. 0 means no
    /// bound.
    #[schemars(extend("x-applies" = LIVE))]
    pub deliveries_per_s: u64,
    /// How much is allowed at once after a pause: what the rates allow in this time.
    #[schemars(range(min = 10, max = 60_000), extend("x-applies" = LIVE))]
    pub burst_ms: u32,
}

impl Default for ClientBudget {
    fn default() -> ClientBudget {
        ClientBudget {
            commands_per_s: 1_000,
            publishes_per_s: 0,
            subscribes_per_s: 0,
            reads_per_s: 0,
            rpcs_per_s: 0,
            bytes_per_s: 4 << 20,
            // At about five microseconds each, a quarter of a core.
            deliveries_per_s: 50_000,
            burst_ms: 1_000,
        }
    }
}

/// What many clients together may ask for, on all workers, in the same units as `limits.client_budget`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SharedBudget {
    /// Commands in a second; 0 means no bound.
    #[schemars(extend("x-applies" = LIVE))]
    pub commands_per_s: u32,
    /// Publications in a second, beside the bound of all commands; 0 means none of their own.
    #[schemars(extend("x-applies" = LIVE))]
    pub publishes_per_s: u32,
    /// Subscriptions and their ends in a second; 0 means no bound of their own.
    #[schemars(extend("x-applies" = LIVE))]
    pub subscribes_per_s: u32,
    /// Questions for history, presence and its counts in a second; 0 means no bound of their own.
    #[schemars(extend("x-applies" = LIVE))]
    pub reads_per_s: u32,
    /// Procedure calls and messages to the server in a second; 0 means no bound of their own.
    #[schemars(extend("x-applies" = LIVE))]
    pub rpcs_per_s: u32,
    /// Bytes of their commands and of the answers to them in a second; 0 means no bound.
    #[schemars(extend("x-applies" = LIVE))]
    pub bytes_per_s: u64,
    /// Messages to others that their commands cause in a second; 0 means no bound.
    #[schemars(extend("x-applies" = LIVE))]
    pub deliveries_per_s: u64,
    /// How much is allowed at once after a pause: what the rates allow in this time.
    #[schemars(range(min = 10, max = 60_000), extend("x-applies" = LIVE))]
    pub burst_ms: u32,
}

impl Default for SharedBudget {
    fn default() -> SharedBudget {
        SharedBudget {
            commands_per_s: 0,
            publishes_per_s: 0,
            subscribes_per_s: 0,
            reads_per_s: 0,
            rpcs_per_s: 0,
            bytes_per_s: 0,
            deliveries_per_s: 0,
            burst_ms: 1_000,
        }
    }
}
