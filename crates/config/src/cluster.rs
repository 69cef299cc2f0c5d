use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Secret;
use crate::effect::settings;

settings! {
    /// Connects nodes to a cluster: calls of the server API, presence and revoked tokens then apply to all nodes.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Cluster {
        /// The engine through which the nodes communicate; a name of `engines`. With several Redis servers the
        /// first one is used; NATS needs `jetstream`. Not set: the node is not in a cluster.
        pub engine: Option<Arc<str>> => Cluster & UserCounts,
        /// How long a node counts as a member after its last lease renewal; it renews three times in this period.
        /// Afterwards the other nodes remove its presence.
        #[schemars(range(min = 1_000, max = 300_000))]
        pub lease_ms: u64 => Cluster,
        /// How long to wait for the responses of other nodes to a call. The response names nodes that did not
        /// respond in time.
        #[schemars(range(min = 50, max = 10_000))]
        pub call_timeout_ms: u64 => Cluster,
        /// Applies the budgets of users, addresses, namespaces and API keys to all nodes together: once a second
        /// each node announces its usage. If off, each node has its own.
        pub budgets_shared: bool => Read,
        /// The secret that encrypts changes of settings for all nodes (`?scope=cluster`) in the engine, so that
        /// its readers learn no secrets and its writers cannot change settings. At least 16 bytes, the same on
        /// every node. Not set: such changes are refused.
        pub secret: Option<Secret> => Cluster,
    }
}

impl Default for Cluster {
    fn default() -> Cluster {
        Cluster {
            engine: None,
            lease_ms: 9_000,
            call_timeout_ms: 1_000,
            budgets_shared: true,
            secret: None,
        }
    }
}
