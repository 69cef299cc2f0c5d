use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Map, Secret};

/// What the senders of `dunlin-push` have by default.
const CONNECTIONS_MAX: u32 = 64;
const QUEUE_BYTES_MAX: u64 = 64 << 20;
const ANSWER_TIMEOUT_MS: u64 = 30_000;

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
    /// VAPID keys for the browsers' push services (RFC 8292).
    #[schemars(extend("x-applies" = LIVE))]
    pub vapid: Map<VapidConfig>,
}

/// Overrides how connections to a push service are made: for a simulator, a proxy, or a firewall that
/// intercepts TLS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Route {
    /// Connects to this address instead of the service's, for example "127.0.0.1:2197" of `dunlin apns
    /// simulate`, or a relay. Its certificate must have the name of the service.
    #[schemars(extend("x-applies" = LIVE))]
    pub address: Option<Arc<str>>,
    /// Root certificates to trust in addition to those of the system: the text of a PEM file.
    #[schemars(extend("x-applies" = LIVE))]
    pub ca: Option<Arc<str>>,
    /// The proxy: "http://user:password@host:port" (CONNECT) or "socks5://host:port".
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
    /// The environment of Apple's push service that the app's device tokens belong to.
    #[schemars(extend("x-applies" = LIVE))]
    pub environment: ApnsEnvironment,
    /// The port: 443, or 2197 if a firewall blocks 443.
    #[schemars(range(min = 1), extend("x-applies" = LIVE))]
    pub port: u16,
    /// Most connections; fewer are opened if they suffice for the load.
    #[schemars(range(min = 1, max = 1_000), extend("x-applies" = LIVE))]
    pub connections_max: u32,
    /// Most bytes of queued pushes and pushes in flight; beyond it further pushes wait.
    #[schemars(range(min = 65_536, max = 1_073_741_824), extend("x-applies" = LIVE))]
    pub queue_bytes_max: u64,
    /// How long to wait for the answer to a push that was sent, even if it has more time; afterwards its outcome is
    /// uncertain.
    #[schemars(range(min = 1_000, max = 3_600_000), extend("x-applies" = LIVE))]
    pub answer_timeout_ms: u64,
    /// Overrides how connections are made.
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
            answer_timeout_ms: ANSWER_TIMEOUT_MS,
            route: Route::default(),
        }
    }
}

/// An environment of Apple's push service.
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
    /// The service account: the text of the JSON file from the console.
    #[schemars(extend("x-applies" = LIVE))]
    pub service_account: Option<Secret>,
    /// The address to fetch access tokens from, instead of the account's `token_uri`.
    #[schemars(extend("x-applies" = LIVE))]
    pub token_address: Option<Arc<str>>,
    /// Most connections; fewer are opened if they suffice for the load.
    #[schemars(range(min = 1, max = 1_000), extend("x-applies" = LIVE))]
    pub connections_max: u32,
    /// Most bytes of queued pushes and pushes in flight; beyond it further pushes wait.
    #[schemars(range(min = 65_536, max = 1_073_741_824), extend("x-applies" = LIVE))]
    pub queue_bytes_max: u64,
    /// How long to wait for the answer to a push that was sent, even if it has more time; afterwards its outcome is
    /// uncertain.
    #[schemars(range(min = 1_000, max = 3_600_000), extend("x-applies" = LIVE))]
    pub answer_timeout_ms: u64,
    /// Overrides how connections are made.
    pub route: Route,
}

impl Default for FcmConfig {
    fn default() -> FcmConfig {
        FcmConfig {
            service_account: None,
            token_address: None,
            connections_max: CONNECTIONS_MAX,
            queue_bytes_max: QUEUE_BYTES_MAX,
            answer_timeout_ms: ANSWER_TIMEOUT_MS,
            route: Route::default(),
        }
    }
}

/// A VAPID key for the browsers' push services.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VapidConfig {
    /// The private key: 32 bytes in URL-safe Base64, or PEM.
    #[schemars(extend("x-applies" = LIVE))]
    pub private_key: Option<Secret>,
    /// The contact for push services: `mailto:ops@example.com`, or an `https:` URL.
    #[schemars(extend("x-applies" = LIVE))]
    pub subject: Arc<str>,
    /// Hosts of push services that subscriptions may use; ".example.com" includes all hosts below it.
    /// Subscriptions come from browsers and cannot be trusted. Empty: the services of common browsers.
    #[schemars(extend("x-applies" = LIVE))]
    pub hosts: Arc<[String]>,
    /// Most connections to each push service; fewer are opened if they suffice for the load.
    #[schemars(range(min = 1, max = 1_000), extend("x-applies" = LIVE))]
    pub connections_max: u32,
    /// Most bytes of queued pushes and pushes in flight to each push service; beyond it further pushes wait.
    #[schemars(range(min = 65_536, max = 1_073_741_824), extend("x-applies" = LIVE))]
    pub queue_bytes_max: u64,
    /// How long to wait for the answer to a push that was sent, even if it has more time; afterwards its outcome is
    /// uncertain.
    #[schemars(range(min = 1_000, max = 3_600_000), extend("x-applies" = LIVE))]
    pub answer_timeout_ms: u64,
    /// Overrides how connections are made.
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
            answer_timeout_ms: ANSWER_TIMEOUT_MS,
            route: Route::default(),
        }
    }
}
