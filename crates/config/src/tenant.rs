use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ChannelOptions, LIVE, Map, Secret, SharedBudget, TokenRules};

/// A customer that shares this server with others, and nothing else: its users, channels, keys and histories are apart from
/// those of every other tenant and from those outside of tenants, also where their names are the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tenant {
    /// Keys that the tenant's backend may send as `X-API-Key`, each under a name of your choice. A call with one of them
    /// sees and does what is the tenant's alone. At least 16 bytes each, and different from every other API key.
    #[schemars(extend("x-applies" = LIVE))]
    pub api_keys: Map<Secret>,
    /// Keys that the tenant's tokens are signed with, each under its id: the token's header names it (`kid`), and so says
    /// whose token it is. A secret, or a public key in PEM. An id belongs to one tenant and must not be in `client.token.keys`.
    /// Taking a key away closes the connections, and ends the subscriptions, that came in with it.
    #[schemars(extend("x-applies" = LIVE))]
    pub token_keys: Map<Secret>,
    /// Options of the tenant's channels whose name has no namespace.
    pub without_namespace: ChannelOptions,
    /// Options of the tenant's channels by namespace, as those of `channel.namespaces`. Engine, proxies, pacing, budget and
    /// bounds are not set here: a tenant's channels are in the memory of this node, and the bounds are the tenant's.
    #[schemars(extend("x-applies" = LIVE))]
    pub namespaces: Map<ChannelOptions>,
    /// Connections at once; one more is refused. 0: as many as `limits.connections_max` allows.
    #[schemars(range(max = 1_000_000_000), extend("x-applies" = LIVE))]
    pub connections_max: u32,
    /// Channels that have subscribers or history, about as many on each worker; 0: as many as `limits.channels_max` allows.
    /// Beyond it those that hold nothing and have no subscribers give way to new ones.
    #[schemars(range(max = 1_000_000_000), extend("x-applies" = LIVE))]
    pub channels_max: u32,
    /// Bytes of history, about as many on each worker; 0: as many as `limits.history_bytes_max` allows. Beyond it the
    /// tenant's oldest messages leave early.
    #[schemars(extend("x-applies" = LIVE))]
    pub history_bytes_max: u64,
    /// What all clients and API keys of the tenant may ask for together.
    pub budget: SharedBudget,
}

/// The longest name of a tenant.
pub const TENANT_BYTES_MAX: usize = 64;

impl Tenant {
    /// How its tokens are verified: by its keys, and by nothing else that they say.
    pub fn token_rules(&self) -> TokenRules<'_> {
        TokenRules {
            hmac_secret: None,
            hmac_secret_previous: None,
            short_hmac_secret: false,
            rsa_public_key: None,
            ecdsa_public_key: None,
            eddsa_public_key: None,
            keys: &self.token_keys,
            jwks: None,
            audience: None,
            audience_regex: None,
            issuer: None,
            issuer_regex: None,
            user_id_claim: None,
            labels_from_claim: None,
            leeway_ms: 0,
        }
    }

    /// Whether this can be a tenant's name: letters, digits, `-` and `_`, 1 to [`TENANT_BYTES_MAX`] of them.
    pub fn is_name(name: &str) -> bool {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        (1..=TENANT_BYTES_MAX).contains(&name.len()) && name.bytes().all(legal)
    }
}
