use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Map, Secret};

/// The HTTP API through which a backend publishes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Api {
    /// Keys a backend may send as `X-API-Key`, each under a name of your choice that logs may show:
    /// `backend = "..."`. At least 16 bytes each. Without a key the API refuses every call.
    #[schemars(extend("x-applies" = LIVE))]
    pub keys: Map<Secret>,
    /// Answers calls that carry no key. Only for a loopback address: elsewhere it is refused.
    #[schemars(extend("x-applies" = LIVE))]
    pub without_key: bool,
    /// How long an `idempotency_key` is remembered: a call repeated within this time is answered as
    /// the first one was and publishes nothing.
    #[schemars(range(min = 1_000, max = 86_400_000), extend("x-applies" = LIVE))]
    pub idempotency_ttl_ms: u64,
}

impl Default for Api {
    fn default() -> Api {
        Api { keys: Map::new(), without_key: false, idempotency_ttl_ms: 300_000 }
    }
}
