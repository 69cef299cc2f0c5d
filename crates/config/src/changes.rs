use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;

settings! {
    /// Changes of settings while the server runs.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Changes {
        /// How long a change waits until every worker that is awake runs it; after that it is rolled back.
        #[schemars(range(min = 10, max = 600_000))]
        pub commit_timeout_ms: u64 => Read,
        /// Most bytes of the body of one call that changes settings.
        #[schemars(range(min = 1_024, max = 67_108_864))]
        pub body_bytes_max: usize => AdminPort,
        /// Most revisions kept for inspection and restore; beyond it the oldest is removed.
        #[schemars(range(min = 1, max = 1_000_000))]
        pub revisions_max: u32 => Read,
        /// Most bytes of the changes in all kept revisions.
        #[schemars(range(min = 65_536))]
        pub revisions_bytes_max: usize => Read,
    }
}

impl Default for Changes {
    fn default() -> Changes {
        Changes {
            commit_timeout_ms: 1_000,
            body_bytes_max: 16 << 20,
            revisions_max: 1_000,
            revisions_bytes_max: 64 << 20,
        }
    }
}
