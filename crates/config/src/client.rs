use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Map, NEW_CONNECTIONS, Secret};

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
            long_poll: LongPoll::default(),
        }
    }
}

/// The connection token: a JWT signed by your backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Token {
    /// The key your backend signs connection tokens with (HS256, HS384 or HS512); at least 16 bytes,
    /// better 32 random ones: `openssl rand -hex 32`.
    #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
    pub hmac_secret: Option<Secret>,
    /// The key before the current one, accepted as well while tokens signed with it are in use.
    #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
    pub hmac_secret_previous: Option<Secret>,
    /// Further keys, each under its id: a token whose header names one (`kid`) is judged by that key
    /// alone. Taking a key away closes the connections that came in with it.
    #[schemars(extend("x-applies" = LIVE))]
    pub keys: Map<Secret>,
    /// How long a client whose token has expired may take to send a new one before it is
    /// disconnected.
    #[schemars(range(max = 86_400_000), extend("x-applies" = LIVE))]
    pub refresh_grace_ms: u64,
    /// Accepts only tokens whose `aud` names this.
    #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
    pub audience: Option<String>,
    /// Accepts only tokens whose `iss` is this.
    #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
    pub issuer: Option<String>,
    /// How far the clocks of backend and server may differ when `exp` and `nbf` are judged.
    #[schemars(range(max = 300_000), extend("x-applies" = NEW_CONNECTIONS))]
    pub leeway_ms: u64,
    /// How long a token lets nobody in after a client that came with it was disconnected for good: by
    /// the API's `disconnect` with a code that says not to come back. 0: it lets in at once.
    #[schemars(range(max = 86_400_000), extend("x-applies" = LIVE))]
    pub bar_after_disconnect_ms: u64,
    /// Revoked and barred tokens and users that are remembered, each in some hundred bytes; one more is
    /// refused.
    #[schemars(range(min = 1, max = 10_000_000), extend("x-applies" = LIVE))]
    pub revocations_max: u32,
}

impl Default for Token {
    fn default() -> Token {
        Token {
            hmac_secret: None,
            hmac_secret_previous: None,
            keys: Map::new(),
            refresh_grace_ms: 25_000,
            audience: None,
            issuer: None,
            leeway_ms: 0,
            bar_after_disconnect_ms: 60_000,
            revocations_max: 100_000,
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
