use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Map, Secret, SharedBudget, split_channel};

/// The HTTP API through which a backend publishes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Api {
    /// Keys a backend may send as `X-API-Key`, each under a name of your choice that logs may show:
    /// `backend = "..."`. At least 16 bytes each. Without a key the API refuses every call.
    #[schemars(extend("x-applies" = LIVE))]
    pub keys: Map<Secret>,
    /// What a key may do, under the key's name. A key that is not here may do everything.
    #[schemars(extend("x-applies" = LIVE))]
    pub scopes: Map<ApiScope>,
    /// Takes a key from the query string too (`?api_key=...`), where proxies and logs see it. Off:
    /// such a call is refused, and a key comes in a header.
    #[schemars(extend("x-applies" = LIVE))]
    pub keys_in_query: bool,
    /// Answers calls that carry no key. Only for a loopback address: elsewhere it is refused.
    #[schemars(extend("x-applies" = LIVE))]
    pub without_key: bool,
    /// Refuses a call with a field that Dunlin does not know. Off: such a field is ignored, and named in a `Warning`
    /// header of the answer, so that a library newer than the server works.
    #[schemars(extend("x-applies" = LIVE))]
    pub strict: bool,
    /// How long an `idempotency_key` is remembered: a call repeated within this time is answered as
    /// the first one was and publishes nothing.
    #[schemars(range(min = 1_000, max = 86_400_000), extend("x-applies" = LIVE))]
    pub idempotency_ttl_ms: u64,
}

/// What an API key may do: whatever none of these excludes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApiScope {
    /// Only methods that change nothing: `presence`, `presence_stats`, `history`, `channels`, `info`.
    #[schemars(extend("x-applies" = LIVE))]
    pub read_only: bool,
    /// Only these methods, as in `["publish", "broadcast"]`; `push` stands for all below
    /// `/api/push`. Empty: all.
    #[schemars(extend("x-applies" = LIVE))]
    pub methods: Arc<[String]>,
    /// Only channels of these namespaces, `""` for channels without one, and no method that is not
    /// about channels. Empty: all.
    #[schemars(extend("x-applies" = LIVE))]
    pub namespaces: Arc<[String]>,
    /// What may be asked for with the key, by all who have it together. Whoever asks for more is answered as much later.
    pub budget: SharedBudget,
}

impl ApiScope {
    /// Whether the key may deal with this channel.
    pub fn admits_channel(&self, channel: &str) -> bool {
        let namespace = split_channel(channel).0.unwrap_or("");
        self.namespaces.is_empty() || self.namespaces.iter().any(|name| name == namespace)
    }
}

impl Default for Api {
    fn default() -> Api {
        Api {
            keys: Map::new(),
            scopes: Map::new(),
            keys_in_query: true,
            without_key: false,
            strict: false,
            idempotency_ttl_ms: 300_000,
        }
    }
}
