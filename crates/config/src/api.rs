use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::{Map, Secret, SharedBudget, split_channel};

settings! {
    /// The HTTP API through which a backend publishes.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Api {
        /// API keys of backends, sent as `X-API-Key`, each under a name of your choice that appears in logs:
        /// `backend = "..."`. At least 16 bytes each. Without a key the API refuses every call.
        pub keys: Map<Secret> => Read,
        /// Restrictions of API keys, under the key's name. A key without an entry is not restricted.
        pub scopes: Map<ApiScope> | Read,
        /// Also accepts a key in the query string (`?api_key=...`), where proxies and logs can see it. If off,
        /// such a call is refused; send the key in a header.
        pub keys_in_query: bool => Read,
        /// Accepts calls without a key. Allowed only on loopback addresses.
        pub without_key: bool => Read,
        /// Refuses a call with an unknown field. If off, such a field is ignored and named in a `Warning` header
        /// of the response, so that a library newer than the server works.
        pub strict: bool => Read,
        /// How long an `idempotency_key` is remembered. A call that is repeated within this time gets the
        /// response of the first one and publishes nothing.
        #[schemars(range(min = 1_000, max = 86_400_000))]
        pub idempotency_ttl_ms: u64 => Read,
    }
}

settings! {
    /// The restrictions of an API key. A call must satisfy all of them.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct ApiScope {
        /// Permits only methods that change nothing: `presence`, `presence_stats`, `history`, `channels`, `info`.
        pub read_only: bool => Read,
        /// Permits only these methods, for example `["publish", "broadcast"]`; `push` includes all methods below
        /// `/api/push`. Empty: all.
        pub methods: Arc<[String]> => Read,
        /// Permits only channels of these namespaces, and no methods without a channel. `""` is channels without
        /// a namespace. Empty: all.
        pub namespaces: Arc<[String]> => Read,
        /// Limits the rate of calls with this key, for all its users together. Calls beyond the budget are
        /// delayed.
        pub budget: SharedBudget,
    }
}

impl ApiScope {
    /// Returns whether the key permits calls about this channel.
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
