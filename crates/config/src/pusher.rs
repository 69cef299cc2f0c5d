use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Map, NEW_CONNECTIONS, Secret};

/// The Pusher protocol: `pusher-js` and Laravel Echo connect to `/app/KEY`, and Pusher's server libraries call
/// `/apps/ID/...`, on the addresses of the clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PusherConfig {
    /// After so long without anything received a client asks whether the server is still there, and the server pings a
    /// client.
    #[schemars(range(min = 1_000, max = 3_600_000), extend("x-applies" = NEW_CONNECTIONS))]
    pub activity_timeout_ms: u64,
    /// How long a client may take to answer a ping. Below `activity_timeout_ms`.
    #[schemars(range(min = 100, max = 3_600_000), extend("x-applies" = NEW_CONNECTIONS))]
    pub pong_timeout_ms: u64,
    /// Apps, each under a name of your choice. Clients of one that is taken away are disconnected.
    #[schemars(extend("x-applies" = LIVE))]
    pub apps: Map<PusherApp>,
}

impl Default for PusherConfig {
    fn default() -> PusherConfig {
        PusherConfig { activity_timeout_ms: 120_000, pong_timeout_ms: 30_000, apps: Map::new() }
    }
}

/// One app of the Pusher protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PusherApp {
    /// The app's id, in the paths of the HTTP API: letters, digits, `-` and `_`.
    #[schemars(extend("x-applies" = LIVE))]
    pub id: Arc<str>,
    /// The app's key, which clients show: letters, digits, `-` and `_`. It is not secret.
    #[schemars(extend("x-applies" = LIVE))]
    pub key: Arc<str>,
    /// What the backend signs with: subscriptions, sign-ins and calls of the HTTP API. At least 16 bytes.
    #[schemars(extend("x-applies" = LIVE))]
    pub secret: Option<Secret>,
    /// The namespace, of `channel.namespaces`, that the app's channels are in: `news` is the channel `NAMESPACE:news` for
    /// clients of the other protocols. Its `allow_...` keys and proxies are for those; whose channel begins with `private-`,
    /// `presence-` or `#` is open to them by a token alone.
    #[schemars(extend("x-applies" = LIVE))]
    pub namespace: Arc<str>,
    /// Origins of the pages that may connect, as of `client.allowed_origins`. Nothing that a page may do rests on its
    /// visitor's cookies, so by default any may.
    #[schemars(extend("x-applies" = LIVE))]
    pub allowed_origins: Arc<[String]>,
    /// Lets clients send events to each other in private and presence channels.
    #[schemars(extend("x-applies" = LIVE))]
    pub client_events: bool,
    /// Events that a client may send in a second; those beyond are refused.
    #[schemars(range(min = 1, max = 1_000_000), extend("x-applies" = LIVE))]
    pub client_events_per_s: u32,
    /// Bytes of the data of an event.
    #[schemars(range(min = 1, max = 16_777_216), extend("x-applies" = LIVE))]
    pub event_bytes_max: usize,
    /// Channels of one event that a backend publishes.
    #[schemars(range(min = 1, max = 10_000), extend("x-applies" = LIVE))]
    pub channels_per_event_max: usize,
    /// Events of one batch.
    #[schemars(range(min = 1, max = 1_000), extend("x-applies" = LIVE))]
    pub batch_events_max: usize,
    /// Users that may be in a presence channel at once.
    #[schemars(range(min = 1, max = 100_000), extend("x-applies" = LIVE))]
    pub presence_members_max: u32,
    /// Bytes of what a member of a presence channel says of itself.
    #[schemars(range(min = 64, max = 65_536), extend("x-applies" = LIVE))]
    pub member_bytes_max: usize,
    /// How long a cache channel keeps its last event.
    #[schemars(range(min = 1_000, max = 31_536_000_000_u64), extend("x-applies" = LIVE))]
    pub cache_ttl_ms: u64,
}

impl Default for PusherApp {
    fn default() -> PusherApp {
        PusherApp {
            id: Arc::default(),
            key: Arc::default(),
            secret: None,
            namespace: Arc::default(),
            allowed_origins: ["*".to_owned()].into(),
            client_events: false,
            client_events_per_s: 10,
            event_bytes_max: 10_240,
            channels_per_event_max: 100,
            batch_events_max: 10,
            presence_members_max: 100,
            member_bytes_max: 2_048,
            cache_ttl_ms: 1_800_000,
        }
    }
}
