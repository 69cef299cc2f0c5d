use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::{Map, Secret};

/// What the senders of `dunlin-push` have by default.
const CONNECTIONS_MAX: u32 = 64;
const QUEUE_BYTES_MAX: u64 = 64 << 20;
const ANSWER_TIMEOUT_MS: u64 = 30_000;

settings! {
    /// Credentials of the push services that reach offline users, each under a name of your choice.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct PushConfig {
        /// Apps at Apple's push service.
        pub apns: Map<ApnsConfig> | PushSenders,
        /// Projects at Firebase Cloud Messaging.
        pub fcm: Map<FcmConfig> | PushSenders,
        /// VAPID keys for the browsers' push services (RFC 8292).
        pub vapid: Map<VapidConfig> | PushSenders,
    }
}

settings! {
    /// Overrides how connections to a push service are made: for a simulator, a proxy, or a firewall that
    /// intercepts TLS.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Route {
        /// Connects to this address instead of the service's, for example "127.0.0.1:2197" of `dunlin apns
        /// simulate`, or a relay. Its certificate must have the name of the service.
        pub address: Option<Arc<str>> => PushSenders,
        /// Root certificates to trust in addition to those of the system: the text of a PEM file.
        pub ca: Option<Arc<str>> => PushSenders,
        /// The proxy: "http://user:password@host:port" (CONNECT) or "socks5://host:port".
        pub proxy: Option<Secret> => PushSenders,
    }
}

settings! {
    /// An app at Apple's push service: a signing key (`team_id`, `key_id`, `key`) or a certificate.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct ApnsConfig {
        /// The team's id, ten characters.
        pub team_id: Option<Arc<str>> => PushSenders,
        /// The signing key's id, ten characters.
        pub key_id: Option<Arc<str>> => PushSenders,
        /// The signing key: the text of the `.p8` file.
        pub key: Option<Secret> => PushSenders,
        /// A certificate with its key: a PKCS #12 file (`.p12`) in Base64, or the text of a PEM file with both.
        pub certificate: Option<Secret> => PushSenders,
        /// The password of that file.
        pub certificate_password: Option<Secret> => PushSenders,
        /// The app's bundle id.
        pub topic: Arc<str> => PushSenders,
        /// The environment of Apple's push service that the app's device tokens belong to.
        pub environment: ApnsEnvironment => PushSenders,
        /// The port: 443, or 2197 if a firewall blocks 443.
        #[schemars(range(min = 1))]
        pub port: u16 => PushSenders,
        /// Most connections; fewer are opened if they suffice for the load.
        #[schemars(range(min = 1, max = 1_000))]
        pub connections_max: u32 => PushSenders,
        /// Most bytes of queued pushes and pushes in flight; beyond it further pushes wait.
        #[schemars(range(min = 65_536, max = 1_073_741_824))]
        pub queue_bytes_max: u64 => PushSenders,
        /// How long to wait for the answer to a push that was sent, even if it has more time; afterwards its outcome is
        /// uncertain.
        #[schemars(range(min = 1_000, max = 3_600_000))]
        pub answer_timeout_ms: u64 => PushSenders,
        /// Overrides how connections are made.
        pub route: Route,
    }
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

settings! {
    /// A project at Firebase Cloud Messaging.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct FcmConfig {
        /// The service account: the text of the JSON file from the console.
        pub service_account: Option<Secret> => PushSenders,
        /// The address to fetch access tokens from, instead of the account's `token_uri`.
        pub token_address: Option<Arc<str>> => PushSenders,
        /// Most connections; fewer are opened if they suffice for the load.
        #[schemars(range(min = 1, max = 1_000))]
        pub connections_max: u32 => PushSenders,
        /// Most bytes of queued pushes and pushes in flight; beyond it further pushes wait.
        #[schemars(range(min = 65_536, max = 1_073_741_824))]
        pub queue_bytes_max: u64 => PushSenders,
        /// How long to wait for the answer to a push that was sent, even if it has more time; afterwards its outcome is
        /// uncertain.
        #[schemars(range(min = 1_000, max = 3_600_000))]
        pub answer_timeout_ms: u64 => PushSenders,
        /// Overrides how connections are made.
        pub route: Route,
    }
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

settings! {
    /// A VAPID key for the browsers' push services.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct VapidConfig {
        /// The private key: 32 bytes in URL-safe Base64, or PEM.
        pub private_key: Option<Secret> => PushSenders,
        /// The contact for push services: `mailto:ops@example.com`, or an `https:` URL.
        pub subject: Arc<str> => PushSenders,
        /// Hosts of push services that subscriptions may use; ".example.com" includes all hosts below it.
        /// Subscriptions come from browsers and cannot be trusted. Empty: the services of common browsers.
        pub hosts: Arc<[String]> => PushSenders,
        /// Most connections to each push service; fewer are opened if they suffice for the load.
        #[schemars(range(min = 1, max = 1_000))]
        pub connections_max: u32 => PushSenders,
        /// Most bytes of queued pushes and pushes in flight to each push service; beyond it further pushes wait.
        #[schemars(range(min = 65_536, max = 1_073_741_824))]
        pub queue_bytes_max: u64 => PushSenders,
        /// How long to wait for the answer to a push that was sent, even if it has more time; afterwards its outcome is
        /// uncertain.
        #[schemars(range(min = 1_000, max = 3_600_000))]
        pub answer_timeout_ms: u64 => PushSenders,
        /// Overrides how connections are made.
        pub route: Route,
    }
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
