use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::{ClaimPath, ClientProxy, Map, Secret};

settings! {
    /// How clients connect and authenticate.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Client {
        /// Origins of web pages that may connect: `https://example.com`, `https://*.example.com`, or `*` for any.
        /// Empty: only pages of this server's own host, and clients without an `Origin` header (which are not
        /// browsers).
        pub allowed_origins: Arc<[String]> => NewConnections,
        /// Accepts clients without a token, as the user with the empty id.
        pub anonymous: bool => NewConnections & Anonymous,
        /// Serves a demo page at `/` on the client port, which subscribes to a channel and publishes to it.
        pub demo_page: bool => Read,
        /// How often the server pings each client.
        #[schemars(range(min = 1_000, max = 86_400_000))]
        pub ping_interval_ms: u64 => NewConnections,
        /// How long a client may take to answer a ping before it is disconnected; less than
        /// `ping_interval_ms`.
        #[schemars(range(min = 100, max = 86_400_000))]
        pub pong_timeout_ms: u64 => NewConnections,
        /// How long an open connection may take to send its connect command.
        #[schemars(range(min = 100, max = 3_600_000))]
        pub connect_timeout_ms: u64 => NewConnections,
        /// Offers permessage-deflate to WebSocket clients that request it. Costs CPU for each message and each
        /// encoding; useful only for large messages and paid traffic.
        pub compression: bool => NewConnections,
        /// The connection token: a JWT signed by your backend.
        pub token: Token | ConnectionTokens & SubscriptionTokens,
        /// The subscription token: a JWT that permits its client to subscribe to one channel.
        pub subscription_token: SubscriptionToken | SubscriptionTokens,
        /// The channel to which each user is subscribed on connect.
        pub subscribe_to_user_personal_channel: PersonalChannel,
        /// Most commands of one connection that wait for a backend (see `proxies`) at the same time; further
        /// commands wait.
        #[schemars(range(min = 1, max = 65_535))]
        pub concurrency: u32 => Read,
        /// The proxies for connections and remote procedures.
        pub proxy: ClientProxy,
        /// The long-poll transport.
        pub long_poll: LongPoll,
    }
}

impl Default for Client {
    fn default() -> Client {
        Client {
            allowed_origins: Arc::default(),
            anonymous: false,
            demo_page: false,
            ping_interval_ms: 25_000,
            pong_timeout_ms: 8_000,
            connect_timeout_ms: 10_000,
            compression: false,
            token: Token::default(),
            subscription_token: SubscriptionToken::default(),
            subscribe_to_user_personal_channel: PersonalChannel::default(),
            concurrency: 16,
            proxy: ClientProxy::default(),
            long_poll: LongPoll::default(),
        }
    }
}

/// A kind of token: how it is verified, and its additional settings.
macro_rules! token {
    (
        $(#[$meta:meta])*
        $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty => $effect:ident = $default:expr,)* }
    ) => {
        settings! {
            $(#[$meta])*
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
            #[serde(default, deny_unknown_fields)]
            pub struct $name {
                $($(#[$field_meta])* pub $field: $type => $effect,)*
                /// The secret that your backend signs these tokens with (HS256, HS384 or HS512); at least 16
                /// bytes, preferably 32 random ones: `openssl rand -hex 32`.
                pub hmac_secret: Option<Secret> => NewConnections,
                /// The previous secret, also accepted while tokens signed with it are in use.
                pub hmac_secret_previous: Option<Secret> => NewConnections,
                /// Accepts an `hmac_secret` of fewer than 16 bytes, as used by tests of client libraries. Anyone
                /// who has a token can find such a secret, so this is allowed only if every address is loopback.
                pub short_hmac_secret: bool => NewConnections,
                /// The public key of tokens signed with RSA (RS256, RS384, RS512, PS256, PS384, PS512), in PEM;
                /// 2048 to 8192 bits.
                pub rsa_public_key: Option<String> => NewConnections,
                /// The public key of tokens signed with ECDSA (ES256 with P-256, ES384 with P-384, ES512 with P-521), in PEM.
                pub ecdsa_public_key: Option<String> => NewConnections,
                /// The public key of tokens signed with EdDSA (Ed25519; the `alg` may be either name), in PEM.
                pub eddsa_public_key: Option<String> => NewConnections,
                /// Further keys by id: a token with this id in its header (`kid`) is verified with this key only.
                /// A secret, or a public key in PEM. Removing a key closes the connections and ends the
                /// subscriptions that were authorized with it.
                pub keys: Map<Secret> => Read,
                /// The URL of a JSON Web Key Set (RFC 7517) with further public keys: `https://idp.example/keys`.
                /// A token whose `kid` is not in `keys` is verified with the key of that id in the set.
                pub jwks_public_endpoint: Option<String> => Read,
                /// Certificates to trust for that URL, in PEM; not set: those of the system.
                pub jwks_ca: Option<String> => Read,
                /// How often the set is fetched if no unknown key is requested.
                #[schemars(range(min = 1_000, max = 86_400_000))]
                pub jwks_refresh_ms: u64 => Read,
                /// The least time between fetches because of unknown keys.
                #[schemars(range(min = 100, max = 3_600_000))]
                pub jwks_refetch_ms: u64 => Read,
                /// Time limit of a fetch, including the last byte.
                #[schemars(range(min = 100, max = 60_000))]
                pub jwks_timeout_ms: u64 => Read,
                /// How long after the expiry of its token a client may send a new one before the connection is
                /// closed or the subscription ends.
                #[schemars(range(max = 86_400_000))]
                pub refresh_grace_ms: u64 => Read,
                /// Accepts only tokens whose `aud` contains this value.
                pub audience: Option<String> => NewConnections,
                /// The same as a regular expression, in place of `audience`. It matches anywhere unless it begins
                /// with `^` and ends with `$`.
                pub audience_regex: Option<String> => NewConnections,
                /// Accepts only tokens whose `iss` is this value.
                pub issuer: Option<String> => NewConnections,
                /// The same as a regular expression, in place of `issuer`. It matches anywhere unless it begins
                /// with `^` and ends with `$`.
                pub issuer_regex: Option<String> => NewConnections,
                /// The claim with the user id, if it is not `sub`. A token without it is refused.
                pub user_id_claim: Option<String> => NewConnections,
                /// The permitted difference between the clocks of backend and server when `exp` and `nbf` are
                /// checked.
                #[schemars(range(max = 300_000))]
                pub leeway_ms: u64 => NewConnections,
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name {
                    $($field: $default,)*
                    hmac_secret: None,
                    hmac_secret_previous: None,
                    short_hmac_secret: false,
                    rsa_public_key: None,
                    ecdsa_public_key: None,
                    eddsa_public_key: None,
                    keys: Map::new(),
                    jwks_public_endpoint: None,
                    jwks_ca: None,
                    jwks_refresh_ms: 3_600_000,
                    jwks_refetch_ms: 5_000,
                    jwks_timeout_ms: 5_000,
                    refresh_grace_ms: 25_000,
                    audience: None,
                    audience_regex: None,
                    issuer: None,
                    issuer_regex: None,
                    user_id_claim: None,
                    leeway_ms: 0,
                }
            }
        }

        impl $name {
            /// Returns how these tokens are verified.
            pub fn rules(&self) -> TokenRules<'_> {
                TokenRules {
                    hmac_secret: self.hmac_secret.as_ref(),
                    hmac_secret_previous: self.hmac_secret_previous.as_ref(),
                    short_hmac_secret: self.short_hmac_secret,
                    rsa_public_key: self.rsa_public_key.as_deref(),
                    ecdsa_public_key: self.ecdsa_public_key.as_deref(),
                    eddsa_public_key: self.eddsa_public_key.as_deref(),
                    keys: &self.keys,
                    jwks: self.jwks_public_endpoint.as_deref().map(|endpoint| JwksRules {
                        endpoint,
                        ca: self.jwks_ca.as_deref(),
                        refresh_ms: self.jwks_refresh_ms,
                        refetch_ms: self.jwks_refetch_ms,
                        timeout_ms: self.jwks_timeout_ms,
                    }),
                    audience: self.audience.as_deref(),
                    audience_regex: self.audience_regex.as_deref(),
                    issuer: self.issuer.as_deref(),
                    issuer_regex: self.issuer_regex.as_deref(),
                    user_id_claim: self.user_id_claim.as_deref(),
                    labels_from_claim: self.labels(),
                    leeway_ms: self.leeway_ms,
                }
            }
        }
    };
}

token! {
    /// The connection token: a JWT signed by your backend.
    Token {
        /// How long a token is refused after its client was disconnected finally, by `disconnect` of the API
        /// with a code that does not ask to reconnect. 0: it is not refused.
        #[schemars(range(max = 86_400_000))]
        bar_after_disconnect_ms: u64 => Read = 60_000,
        /// Most revocations, each of about a hundred bytes; further ones are refused. It is also the limit of
        /// tokens that are refused after a disconnect; beyond it the oldest of these is accepted again.
        #[schemars(range(min = 1, max = 10_000_000))]
        revocations_max: u32 => Read = 100_000,
        /// Labels of a connection from claims of its token, by label name: `region = "deployment.region"`. A
        /// dot separates the levels of objects; `\\` escapes the next character. Values other than text are
        /// written as JSON; a missing claim sets no label. These labels take precedence over those in
        /// `labels` of the token.
        labels_from_claim: Map<ClaimPath> => NewConnections = Map::new(),
    }
}

token! {
    /// The subscription token: a JWT that permits its client to subscribe to one channel.
    SubscriptionToken {
        /// Verifies subscription tokens with the keys and rules of this table instead of those of
        /// `client.token`.
        enabled: bool => Read = false,
    }
}

impl Token {
    fn labels(&self) -> Option<&Map<ClaimPath>> {
        Some(&self.labels_from_claim)
    }
}

impl SubscriptionToken {
    /// Returns `None`: a connection gets its labels when it connects, not from subscription tokens.
    fn labels(&self) -> Option<&Map<ClaimPath>> {
        None
    }
}

/// How tokens of one kind are verified: see [`Token`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenRules<'a> {
    /// The current key.
    pub hmac_secret: Option<&'a Secret>,
    /// The previous key.
    pub hmac_secret_previous: Option<&'a Secret>,
    /// Accepts secrets that are shorter than is safe.
    pub short_hmac_secret: bool,
    /// In PEM.
    pub rsa_public_key: Option<&'a str>,
    /// In PEM.
    pub ecdsa_public_key: Option<&'a str>,
    /// In PEM.
    pub eddsa_public_key: Option<&'a str>,
    /// Keys by their `kid`.
    pub keys: &'a Map<Secret>,
    /// The key set with further keys.
    pub jwks: Option<JwksRules<'a>>,
    /// The required `aud`.
    pub audience: Option<&'a str>,
    /// The regular expression that `aud` must match.
    pub audience_regex: Option<&'a str>,
    /// The required `iss`.
    pub issuer: Option<&'a str>,
    /// The regular expression that `iss` must match.
    pub issuer_regex: Option<&'a str>,
    /// The claim with the user, if not `sub`.
    pub user_id_claim: Option<&'a str>,
    /// Label names, each with the path to its claim; `None` for tokens that set no labels.
    pub labels_from_claim: Option<&'a Map<ClaimPath>>,
    /// The permitted clock difference, in milliseconds.
    pub leeway_ms: u64,
}

/// The location of a key set, and how it is fetched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JwksRules<'a> {
    /// Its URL.
    pub endpoint: &'a str,
    /// Certificates to trust, in PEM.
    pub ca: Option<&'a str>,
    /// Milliseconds between fetches.
    pub refresh_ms: u64,
    /// Least milliseconds between fetches because of unknown keys.
    pub refetch_ms: u64,
    /// Time limit of a fetch, in milliseconds.
    pub timeout_ms: u64,
}

impl TokenRules<'_> {
    /// Returns whether there is any key to verify a token with.
    pub fn has_key(&self) -> bool {
        let public = [self.rsa_public_key, self.ecdsa_public_key, self.eddsa_public_key];
        self.hmac_secret.is_some()
            || public.iter().any(Option::is_some)
            || self.jwks.is_some()
            || !self.keys.is_empty()
    }
}

impl Client {
    /// Returns how subscription tokens are verified.
    pub fn subscription_rules(&self) -> TokenRules<'_> {
        match self.subscription_token.enabled {
            true => self.subscription_token.rules(),
            false => self.token.rules(),
        }
    }
}

settings! {
    /// The long-poll transport.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct LongPoll {
        /// How long a poll waits for a message if the request has no `timeout`.
        #[schemars(range(min = 100, max = 600_000))]
        pub timeout_ms: u64 => Read,
        /// The longest `timeout` of a request. Set it below the idle timeout of any proxy in front of the server.
        #[schemars(range(min = 100, max = 600_000))]
        pub timeout_ms_max: u64 => Read,
    }
}

impl Default for LongPoll {
    fn default() -> LongPoll {
        LongPoll { timeout_ms: 25_000, timeout_ms_max: 55_000 }
    }
}

settings! {
    /// The channel to which each user is subscribed on connect: `#` and the user id, with the namespace in front
    /// if there is one.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct PersonalChannel {
        /// Subscribes every client that is not anonymous.
        pub enabled: bool => NewConnections,
        /// The namespace of these channels; empty: none. If it does not exist, no client is subscribed.
        pub personal_channel_namespace: String => NewConnections,
    }
}

impl PersonalChannel {
    /// Returns the user's channel; `None` for anonymous clients, or if this is not enabled.
    pub fn of(&self, user: &str) -> Option<String> {
        let is_wanted = self.enabled && !user.is_empty();
        is_wanted.then(|| match &*self.personal_channel_namespace {
            "" => format!("#{user}"),
            namespace => format!("{namespace}:#{user}"),
        })
    }
}
