use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;

settings! {
    /// The rates of one client. Usage of commands, bytes and deliveries adds up: half of each rate exceeds the
    /// budget. Commands beyond the budget are delayed, and the client's connection is not read meanwhile; nothing
    /// is refused.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct ClientBudget {
        /// Commands per second; 0 means no limit.
        pub commands_per_s: u32 => Read,
        /// Publications per second, in addition to the limit of all commands; 0 means no separate limit.
        pub publishes_per_s: u32 => Read,
        /// Subscribes and unsubscribes per second; 0 means no separate limit.
        pub subscribes_per_s: u32 => Read,
        /// Requests for history, presence and presence stats per second; 0 means no separate limit.
        pub reads_per_s: u32 => Read,
        /// Procedure calls and messages to the server per second; 0 means no separate limit.
        pub rpcs_per_s: u32 => Read,
        /// Bytes of commands and their responses per second; 0 means no limit.
        pub bytes_per_s: u64 => Read,
        /// Messages per second that its commands send to other clients. A publication to a thousand subscribers
        /// counts a thousand, and as much again for each KiB; so do a join and a leave if subscribers are
        /// notified. 0 means no limit.
        pub deliveries_per_s: u64 => Read,
        /// The burst after a pause: as much as the rates permit in this time.
        #[schemars(range(min = 10, max = 60_000))]
        pub burst_ms: u32 => Read,
    }
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

settings! {
    /// The rates of many clients together, on all workers, in the same units as `limits.client_budget`.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct SharedBudget {
        /// Commands per second; 0 means no limit.
        pub commands_per_s: u32 => Read,
        /// Publications per second, in addition to the limit of all commands; 0 means no separate limit.
        pub publishes_per_s: u32 => Read,
        /// Subscribes and unsubscribes per second; 0 means no separate limit.
        pub subscribes_per_s: u32 => Read,
        /// Requests for history, presence and presence stats per second; 0 means no separate limit.
        pub reads_per_s: u32 => Read,
        /// Procedure calls and messages to the server per second; 0 means no separate limit.
        pub rpcs_per_s: u32 => Read,
        /// Bytes of commands and their responses per second; 0 means no limit.
        pub bytes_per_s: u64 => Read,
        /// Messages per second that their commands send to other clients; 0 means no limit.
        pub deliveries_per_s: u64 => Read,
        /// The burst after a pause: as much as the rates permit in this time.
        #[schemars(range(min = 10, max = 60_000))]
        pub burst_ms: u32 => Read,
    }
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
