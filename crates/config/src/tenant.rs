use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::{ChannelOptions, Map, Secret, SharedBudget, TokenRules};

settings! {
    /// A customer that shares this server with others. Its users, channels, keys and histories are separate from
    /// those of other tenants and of no tenant, even if names are equal.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Tenant {
        /// API keys of the tenant's backend, sent as `X-API-Key`, each under a name of your choice. A call with
        /// one of them accesses only the tenant's data. At least 16 bytes each, and different from every other
        /// API key.
        pub api_keys: Map<Secret> => Tenants,
        /// Keys of the tenant's tokens, by id. The id in the token's header (`kid`) determines the tenant. A
        /// secret, or a public key in PEM. An id belongs to one tenant and must not be in `client.token.keys`.
        /// Removing a key closes the connections and ends the subscriptions that were authorized with it.
        pub token_keys: Map<Secret> => Tenants,
        /// Options of the tenant's channels whose name has no namespace.
        pub without_namespace: ChannelOptions | Tenants,
        /// Options of the tenant's channels by namespace, as in `channel.namespaces`. Engine, proxies, pacing,
        /// budget and limits cannot be set here: a tenant's channels are in the memory of this node, and the
        /// limits are those of the tenant.
        pub namespaces: Map<ChannelOptions> | Tenants,
        /// Most connections; a further one is refused. 0: limited by `limits.connections_max` only.
        #[schemars(range(max = 1_000_000_000))]
        pub connections_max: u32 => Tenants,
        /// Most channels with subscribers or history, divided evenly between workers; 0: limited by
        /// `limits.channels_max` only. Beyond it, channels without history and subscribers are removed to make
        /// room.
        #[schemars(range(max = 1_000_000_000))]
        pub channels_max: u32 => Tenants,
        /// Most bytes of history, divided evenly between workers; 0: limited by `limits.history_bytes_max` only.
        /// Beyond it the tenant's oldest messages are removed early.
        pub history_bytes_max: u64 => Tenants,
        /// The rates of all clients and API keys of the tenant together.
        pub budget: SharedBudget | Tenants,
    }
}

/// The longest name of a tenant in bytes.
pub const TENANT_BYTES_MAX: usize = 64;

impl Tenant {
    /// Returns how its tokens are verified: with its keys only.
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

    /// Returns whether `name` is valid for a tenant: 1 to [`TENANT_BYTES_MAX`] letters, digits, `-` and `_`.
    pub fn is_name(name: &str) -> bool {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        (1..=TENANT_BYTES_MAX).contains(&name.len()) && name.bytes().all(legal)
    }
}
