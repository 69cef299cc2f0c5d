use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClaimPath, ClientProxy, LIVE, Map, NEW_CONNECTIONS, Secret};

/// How clients connect and who they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Client {
    /// Web pages that may connect: `https://example.com`, `https://*.example.com`, or `*` for any.
    /// Empty: only pages of this server's own host, and clients that send no `Origin` (which are not
    /// browsers).
    #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
    pub allowed_origins: Arc<[String]>,
    /// Accepts clients without a token, as the user with the empty id.
    #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
    pub anonymous: bool,
    /// Serves a page at `/` on the client port where a person watches a channel and publishes to it.
    #[schemars(extend("x-applies" = LIVE))]
    pub demo_page: bool,
    /// How often the server pings each client.
    #[schemars(range(min = 1_000, max = 86_400_000), extend("x-applies" = NEW_CONNECTIONS))]
    pub ping_interval_ms: u64,
    /// How long a client may take to answer a ping before it is disconnected; less than
    /// `ping_interval_ms`.
    #[schemars(range(min = 100, max = 86_400_000), extend("x-applies" = NEW_CONNECTIONS))]
    pub pong_timeout_ms: u64,
    /// How long an open connection may take to send its connect command.
    #[schemars(range(min = 100, max = 3_600_000), extend("x-applies" = NEW_CONNECTIONS))]
    pub connect_timeout_ms: u64,
    /// Offers permessage-deflate to WebSocket clients that ask for it. Costs CPU for each message
    /// and each encoding; worth it for large messages and paid traffic only.
    #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
    pub compression: bool,
    /// The connection token: a JWT signed by your backend.
    pub token: Token,
    /// The subscription token: a JWT that lets its client subscribe to one channel.
    pub subscription_token: SubscriptionToken,
    /// The channel that each user is subscribed to by connecting.
    pub subscribe_to_user_personal_channel: PersonalChannel,
    /// Commands of one connection that may wait for a backend (see `proxies`) at once; those behind them wait until one
    /// is answered.
    #[schemars(range(min = 1, max = 65_535), extend("x-applies" = LIVE))]
    pub concurrency: u32,
    /// Which of `proxies` is asked about connections and remote procedures.
    pub proxy: ClientProxy,
    /// The long-poll transport.
    pub long_poll: LongPoll,
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

/// A kind of token: how it is verified, and what else is set of it.
macro_rules! token {
    (
        $(#[$meta:meta])*
        $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty = $default:expr,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
            /// The key your backend signs these tokens with (HS256, HS384 or HS512); at least 16 bytes,
            /// better 32 random ones: `openssl rand -hex 32`.
            #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
            pub hmac_secret: Option<Secret>,
            /// The key before the current one, accepted as well while tokens signed with it are in use.
            #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
            pub hmac_secret_previous: Option<Secret>,
            /// Takes an `hmac_secret` of fewer than 16 bytes, as the tests of client libraries sign with: whoever sees a token
            /// can find such a key. Only where every address is loopback: elsewhere it is refused.
            #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
            pub short_hmac_secret: bool,
            /// The public key of tokens signed by RSA (RS256, RS384, RS512, PS256, PS384, PS512), in PEM; of
            /// 2048 to 8192 bits.
            #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
            pub rsa_public_key: Option<String>,
            /// The public key of tokens signed by ECDSA (ES256 with P-256, ES384 with P-384), in PEM.
            #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
            pub ecdsa_public_key: Option<String>,
            /// The public key of tokens signed by EdDSA (Ed25519), in PEM.
            #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
            pub eddsa_public_key: Option<String>,
            /// Further keys, each under its id: a token whose header names one (`kid`) is judged by that key
            /// alone. A secret, or a public key in PEM. Taking a key away closes the connections, and ends the subscriptions, that came in with it.
            #[schemars(extend("x-applies" = LIVE))]
            pub keys: Map<Secret>,
            /// Where further public keys are, a JSON Web Key Set (RFC 7517): `https://idp.example/keys`. A token
            /// whose `kid` is not in `keys` is verified with the key of that id in the set.
            #[schemars(extend("x-applies" = LIVE))]
            pub jwks_public_endpoint: Option<String>,
            /// The certificates to trust there, in PEM; not set: those of the system.
            #[schemars(extend("x-applies" = LIVE))]
            pub jwks_ca: Option<String>,
            /// How often the set is fetched again though nobody has shown an unknown key.
            #[schemars(range(min = 1_000, max = 86_400_000), extend("x-applies" = LIVE))]
            pub jwks_refresh_ms: u64,
            /// How long after a fetch an unknown key begins no other.
            #[schemars(range(min = 100, max = 3_600_000), extend("x-applies" = LIVE))]
            pub jwks_refetch_ms: u64,
            /// How long a fetch may take, to its last byte.
            #[schemars(range(min = 100, max = 60_000), extend("x-applies" = LIVE))]
            pub jwks_timeout_ms: u64,
            /// How long after the end of its token a client may take to send a new one before the connection
            /// is closed, or the subscription ended.
            #[schemars(range(max = 86_400_000), extend("x-applies" = LIVE))]
            pub refresh_grace_ms: u64,
            /// Accepts only tokens whose `aud` names this.
            #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
            pub audience: Option<String>,
            /// The same by a regular expression, which matches anywhere unless it begins with `^` and ends with
            /// `$`; in the place of `audience`.
            #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
            pub audience_regex: Option<String>,
            /// Accepts only tokens whose `iss` is this.
            #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
            pub issuer: Option<String>,
            /// The same by a regular expression, as `audience_regex`; in the place of `issuer`.
            #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
            pub issuer_regex: Option<String>,
            /// The claim that names the user, where that is not `sub`. A token without it is refused.
            #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
            pub user_id_claim: Option<String>,
            /// How far the clocks of backend and server may differ when `exp` and `nbf` are judged.
            #[schemars(range(max = 300_000), extend("x-applies" = NEW_CONNECTIONS))]
            pub leeway_ms: u64,
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
            /// How its tokens are verified.
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
        /// How long a token lets nobody in after a client that came with it was disconnected for good: by
        /// the API's `disconnect` with a code that says not to come back. 0: it lets in at once.
        #[schemars(range(max = 86_400_000), extend("x-applies" = LIVE))]
        bar_after_disconnect_ms: u64 = 60_000,
        /// Revoked tokens and users that are remembered, each in some hundred bytes; one more is refused. As many
        /// barred tokens; one more lets the one before it in again.
        #[schemars(range(min = 1, max = 10_000_000), extend("x-applies" = LIVE))]
        revocations_max: u32 = 100_000,
        /// Labels of a connection from claims of its token, each under its name: `region = "deployment.region"`. Dots
        /// lead into objects, `\\` takes the next character as it is. What is no text is written as JSON; a claim that is not
        /// there gives no label. One that `labels` of the token has by this name gives way.
        #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
        labels_from_claim: Map<ClaimPath> = Map::new(),
    }
}

token! {
    /// The subscription token: a JWT that lets its client subscribe to one channel.
    SubscriptionToken {
        /// Subscription tokens are verified by the keys and rules of this table; else by those of
        /// `client.token`.
        #[schemars(extend("x-applies" = LIVE))]
        enabled: bool = false,
    }
}

impl Token {
    fn labels(&self) -> Option<&Map<ClaimPath>> {
        Some(&self.labels_from_claim)
    }
}

impl SubscriptionToken {
    /// A connection has its labels from its connect on.
    fn labels(&self) -> Option<&Map<ClaimPath>> {
        None
    }
}

/// How tokens of one kind are verified: see [`Token`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenRules<'a> {
    /// The current key.
    pub hmac_secret: Option<&'a Secret>,
    /// The key before it.
    pub hmac_secret_previous: Option<&'a Secret>,
    /// They may be shorter than is safe.
    pub short_hmac_secret: bool,
    /// In PEM.
    pub rsa_public_key: Option<&'a str>,
    /// In PEM.
    pub ecdsa_public_key: Option<&'a str>,
    /// In PEM.
    pub eddsa_public_key: Option<&'a str>,
    /// Keys by their `kid`.
    pub keys: &'a Map<Secret>,
    /// Where further keys are.
    pub jwks: Option<JwksRules<'a>>,
    /// What `aud` must name.
    pub audience: Option<&'a str>,
    /// What it must match.
    pub audience_regex: Option<&'a str>,
    /// What `iss` must be.
    pub issuer: Option<&'a str>,
    /// What it must match.
    pub issuer_regex: Option<&'a str>,
    /// Which claim names the user, if not `sub`.
    pub user_id_claim: Option<&'a str>,
    /// Names of labels, each with the way to the claim that has its value; `None`: these tokens say nothing of connections.
    pub labels_from_claim: Option<&'a Map<ClaimPath>>,
    /// How far clocks may differ, in milliseconds.
    pub leeway_ms: u64,
}

/// Where a key set is, and how it is fetched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JwksRules<'a> {
    /// Its URL.
    pub endpoint: &'a str,
    /// Whom to trust there, in PEM.
    pub ca: Option<&'a str>,
    /// How often, in milliseconds.
    pub refresh_ms: u64,
    /// How often at most for unknown keys, in milliseconds.
    pub refetch_ms: u64,
    /// How long it may take, in milliseconds.
    pub timeout_ms: u64,
}

impl TokenRules<'_> {
    /// Whether there is any key to verify a token with.
    pub fn has_key(&self) -> bool {
        let public = [self.rsa_public_key, self.ecdsa_public_key, self.eddsa_public_key];
        self.hmac_secret.is_some()
            || public.iter().any(Option::is_some)
            || self.jwks.is_some()
            || !self.keys.is_empty()
    }
}

impl Client {
    /// How subscription tokens are verified.
    pub fn subscription_rules(&self) -> TokenRules<'_> {
        match self.subscription_token.enabled {
            true => self.subscription_token.rules(),
            false => self.token.rules(),
        }
    }
}

/// The long-poll transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LongPoll {
    /// How long a poll waits for a message when the request names no `timeout`.
    #[schemars(range(min = 100, max = 600_000), extend("x-applies" = LIVE))]
    pub timeout_ms: u64,
    /// The longest `timeout` a request may name; below the idle time-out of any proxy in between.
    #[schemars(range(min = 100, max = 600_000), extend("x-applies" = LIVE))]
    pub timeout_ms_max: u64,
}

impl Default for LongPoll {
    fn default() -> LongPoll {
        LongPoll { timeout_ms: 25_000, timeout_ms_max: 55_000 }
    }
}

/// The channel that each user is subscribed to by connecting: `#` and the user, behind the namespace if there is one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PersonalChannel {
    /// Subscribes every client that is not anonymous.
    #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
    pub enabled: bool,
    /// The namespace of these channels, whose options they have; empty: none. Where it does not exist nobody is subscribed.
    #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
    pub personal_channel_namespace: String,
}

impl PersonalChannel {
    /// The user's channel; `None` for anonymous clients, and where this is not enabled.
    pub fn of(&self, user: &str) -> Option<String> {
        let is_wanted = self.enabled && !user.is_empty();
        is_wanted.then(|| match &*self.personal_channel_namespace {
            "" => format!("#{user}"),
            namespace => format!("{namespace}:#{user}"),
        })
    }
}
