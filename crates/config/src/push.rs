use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Map, Secret};

/// What the senders of `dunlin-push` have by default.
const CONNECTIONS_MAX: u32 = 64;
const QUEUE_BYTES_MAX: u64 = 64 << 20;

/// Credentials of the push services that reach offline users, each under a name of your choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PushConfig {
    /// Apps at Apple's push service.
    #[schemars(extend("x-applies" = LIVE))]
    pub apns: Map<ApnsConfig>,
    /// Projects at Firebase Cloud Messaging.
    #[schemars(extend("x-applies" = LIVE))]
    pub fcm: Map<FcmConfig>,
    /// Identities towards the browsers' push services (RFC 8292).
    #[schemars(extend("x-applies" = LIVE))]
    pub vapid: Map<VapidConfig>,
}

/// How connections to a push service are made, where the plain way does not do: a simulator, a proxy, a
/// firewall that opens TLS connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Route {
    /// Connect here instead of looking the service's name up, as in "127.0.0.1:2197": `dunlin apns simulate`, or
    /// a relay. The certificate there has to bear the service's name all the same.
    #[schemars(extend("x-applies" = LIVE))]
    pub address: Option<Arc<str>>,
    /// Root certificates to trust beside those of the system: the text of a PEM file.
    #[schemars(extend("x-applies" = LIVE))]
    pub ca: Option<Arc<str>>,
    /// The proxy between: "http://user:password@host:port" (CONNECT) or "socks5://host:port".
    #[schemars(extend("x-applies" = LIVE))]
    pub proxy: Option<Secret>,
}

/// An app at Apple's push service: a signing key (`team_id`, `key_id`, `key`) or a certificate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApnsConfig {
    /// The team's id, ten characters.
    #[schemars(extend("x-applies" = LIVE))]
    pub team_id: Option<Arc<str>>,
    /// The signing key's id, ten characters.
    #[schemars(extend("x-applies" = LIVE))]
    pub key_id: Option<Arc<str>>,
    /// The signing key: the text of the `.p8` file.
    #[schemars(extend("x-applies" = LIVE))]
    pub key: Option<Secret>,
    /// A certificate with its key: a PKCS #12 file (`.p12`) in Base64, or the text of a PEM file with both.
    #[schemars(extend("x-applies" = LIVE))]
    pub certificate: Option<Secret>,
    /// The password of that file.
    #[schemars(extend("x-applies" = LIVE))]
    pub certificate_password: Option<Secret>,
    /// The app's bundle id.
    #[schemars(extend("x-applies" = LIVE))]
    pub topic: Arc<str>,
    /// Which of Apple's services the app's device tokens are of.
    #[schemars(extend("x-applies" = LIVE))]
    pub environment: ApnsEnvironment,
    /// Apple listens on 443 and, for firewalls, on 2197.
    #[schemars(range(min = 1), extend("x-applies" = LIVE))]
    pub port: u16,
    /// Connections at most; fewer are opened where fewer carry the load.
    #[schemars(range(min = 1, max = 1_000), extend("x-applies" = LIVE))]
    pub connections_max: u32,
    /// Bytes of pushes that wait or are under way; who sends more waits.
    #[schemars(range(min = 65_536, max = 1_073_741_824), extend("x-applies" = LIVE))]
    pub queue_bytes_max: u64,
    /// How connections are made.
    pub route: Route,
}

impl Default for ApnsConfig {
    fn default() -> ApnsConfig {
        ApnsConfig {
            team_id: None,
            key_id: None,
            key: None,
            certificate: None,
            certificate_password: None,
            topic: Arc::default(),
            environment: ApnsEnvironment::default(),
            port: 443,
            connections_max: CONNECTIONS_MAX,
            queue_bytes_max: QUEUE_BYTES_MAX,
            route: Route::default(),
        }
    }
}

/// Which of Apple's services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum ApnsEnvironment {
    /// Apps from the store and from TestFlight.
    #[default]
    Production,
    /// Apps run from Xcode.
    Sandbox,
}

/// A project at Firebase Cloud Messaging.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FcmConfig {
    /// The service account: the text of the JSON file that the console gives.
    #[schemars(extend("x-applies" = LIVE))]
    pub service_account: Option<Secret>,
    /// Where to connect for access tokens, instead of to the account's `token_uri`.
    #[schemars(extend("x-applies" = LIVE))]
    pub token_address: Option<Arc<str>>,
    /// Connections at most; fewer are opened where fewer carry the load.
    #[schemars(range(min = 1, max = 1_000), extend("x-applies" = LIVE))]
    pub connections_max: u32,
    /// Bytes of pushes that wait or are under way; who sends more waits.
    #[schemars(range(min = 65_536, max = 1_073_741_824), extend("x-applies" = LIVE))]
    pub queue_bytes_max: u64,
    /// How connections are made.
    pub route: Route,
}

impl Default for FcmConfig {
    fn default() -> FcmConfig {
        FcmConfig {
            service_account: None,
            token_address: None,
            connections_max: CONNECTIONS_MAX,
            queue_bytes_max: QUEUE_BYTES_MAX,
            route: Route::default(),
        }
    }
}

/// An identity towards the browsers' push services.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VapidConfig {
    /// The private key: 32 bytes in URL-safe Base64, or PEM.
    #[schemars(extend("x-applies" = LIVE))]
    pub private_key: Option<Secret>,
    /// Whom a push service may write to: `mailto:ops@example.com`, or an `https:` address.
    #[schemars(extend("x-applies" = LIVE))]
    pub subject: Arc<str>,
    /// Push services that subscriptions may name, by host; ".example.com" stands for all below it. Subscriptions
    /// come from browsers, so from anybody. Empty: those of the browsers in use.
    #[schemars(extend("x-applies" = LIVE))]
    pub hosts: Arc<[String]>,
    /// Connections to each push service at most; fewer are opened where fewer carry the load.
    #[schemars(range(min = 1, max = 1_000), extend("x-applies" = LIVE))]
    pub connections_max: u32,
    /// Bytes of pushes to each push service that wait or are under way; who sends more waits.
    #[schemars(range(min = 65_536, max = 1_073_741_824), extend("x-applies" = LIVE))]
    pub queue_bytes_max: u64,
    /// How connections are made.
    pub route: Route,
}

impl Default for VapidConfig {
    fn default() -> VapidConfig {
        VapidConfig {
            private_key: None,
            subject: Arc::default(),
            hosts: Arc::default(),
            connections_max: CONNECTIONS_MAX,
            queue_bytes_max: QUEUE_BYTES_MAX,
            route: Route::default(),
        }
    }
}
