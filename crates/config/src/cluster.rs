use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Secret};

/// Nodes that act as one: calls of the server API, presence and revoked tokens hold on all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    /// The engine in which the nodes meet; a name of `engines`. Of several servers of Redis it is the first; of NATS it has `jetstream`. Not set: this node
    /// is alone.
    #[schemars(extend("x-applies" = LIVE))]
    pub engine: Option<Arc<str>>,
    /// How long a node counts as a member after its last sign of life, of which it gives three in this time. Then
    /// the others end its members' presence.
    #[schemars(range(min = 1_000, max = 300_000), extend("x-applies" = LIVE))]
    pub lease_ms: u64,
    /// How long the answers of other nodes to a call are waited for. An answer that is missing is named in the
    /// response.
    #[schemars(range(min = 50, max = 10_000), extend("x-applies" = LIVE))]
    pub call_timeout_ms: u64,
    /// The budgets of users, addresses, namespaces and API keys hold for all nodes together: once a second each tells the others what was
    /// used. Off: they hold for each node.
    #[schemars(extend("x-applies" = LIVE))]
    pub budgets_shared: bool,
    /// Seals the changes of settings for all nodes (`?scope=cluster`), so that who reads them where the nodes meet learns no
    /// secret of theirs, and who writes to it changes nothing. At least 16 bytes, the same on every node. Not set: such
    /// changes are refused.
    #[schemars(extend("x-applies" = LIVE))]
    pub secret: Option<Secret>,
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
