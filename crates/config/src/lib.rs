#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod admin;
mod api;
mod budget;
mod change;
mod changes;
mod channel;
mod check;
mod claim_path;
mod client;
mod cluster;
pub mod docs;
mod document;
mod duration;
mod edit;
mod effect;
mod engine;
mod engine_kind;
mod entries;
pub mod environment;
mod error;
mod federation;
mod fields;
pub mod import;
mod index;
mod ingress;
pub mod json;
mod limits;
mod listener;
mod log;
mod map;
mod otlp;
mod pacing;
mod path;
mod pattern;
mod placeholder;
mod pointer;
mod program;
mod proxy;
mod push;
mod pusher;
mod recipients;
mod redis_url;
pub mod schema;
mod secret;
mod server;
mod shared_change;
mod shutdown;
mod snapshot;
pub mod store;
mod template;
mod tenant;
mod tls;
mod validate;
mod webhooks;
mod wildcards;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use effect::settings;

pub use admin::{Admin, AdminRole, AdminToken};
pub use api::{Api, ApiScope};
pub use budget::{ClientBudget, SharedBudget};
pub use change::{Change, Operation};
pub use changes::Changes;
pub use channel::{
    Ack, Channel, ChannelOptions, DeltaType, Inbox, Overflow, PRIVATE_PREFIX, RecoveryMode,
    split_channel,
};
pub use claim_path::ClaimPath;
pub use client::{
    Client, JwksRules, LongPoll, PersonalChannel, SubscriptionToken, Token, TokenRules,
};
pub use cluster::Cluster;
pub use effect::{Effect, Effects, Keys};
pub use engine::Engine;
pub use engine_kind::{
    ChannelDurability, EngineDurability, EngineKind, EngineLayout, EngineReadFrom, EngineTopology,
    EngineWhenFull,
};
pub use error::{ConfigError, ConfigErrors};
pub use federation::{ClientSend, Federation, FederationPeer};
pub use index::ApiKey;
pub use ingress::Ingress;
pub use limits::Limits;
pub use listener::{Listener, Serves};
pub use log::{Log, LogFormat, LogLevel};
pub use map::{Map, MapChange};
pub use otlp::Otlp;
pub use pacing::Pacing;
pub use path::Path;
pub use pattern::Pattern;
pub use pointer::Pointer;
pub use program::{Framing, OnError, Program};
pub use proxy::{ClientProxy, OnFailure, Proxy, Rpc, RpcNamespace, UnknownRpcNamespace};
pub use push::{ApnsConfig, ApnsEnvironment, FcmConfig, PushConfig, Route, VapidConfig};
pub use pusher::{PusherApp, PusherConfig};
pub use recipients::sends_secret_elsewhere;
pub use schema::Applies;
pub use secret::Secret;
pub use server::Server;
pub use shutdown::Shutdown;
pub use snapshot::{ChangeError, ChangedKey, Judge, PreparedChange, Secrets, Snapshot};
pub use tenant::{TENANT_BYTES_MAX, Tenant};
pub use tls::{Certificate, Tls};
pub use webhooks::{HealthCheck, Hook, HookEventKind, Member, Upstream, Webhooks};

settings! {
    /// Everything that can be set.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Config {
        /// Addresses and threads.
        pub server: Server,
        /// How clients connect and who they are.
        pub client: Client,
        /// The HTTP API through which a backend publishes.
        pub api: Api,
        /// What channels keep and who may do what in them.
        pub channel: Channel,
        /// Further addresses clients may connect to, each under a name of your choice. One that is taken
        /// away stops accepting; connections that came in through it stay.
        pub listeners: Map<Listener> | Listeners,
        /// TLS of the addresses whose `ingress` says so.
        pub tls: Tls,
        /// Webhooks: events posted to your backend over HTTP.
        pub webhooks: Webhooks,
        /// Backends that are asked before something is done, each under a name of your choice; `client.proxy` and the
        /// namespaces name them.
        pub proxies: Map<Proxy> | Proxies,
        /// Programs that decide in the place of proxies, each under a name of your choice; whatever names a proxy may name one,
        /// and one with the name of a proxy answers instead of it. To change them takes the role `program`.
        pub programs: Map<Program> | Programs,
        /// Where channels live that several nodes share, each under a name of your choice; the namespaces name them.
        pub engines: Map<Engine> | Engines,
        /// Remote procedures that clients call.
        pub rpc: Rpc,
        /// The Pusher protocol: `pusher-js`, Laravel Echo and Pusher's server libraries.
        pub pusher: PusherConfig,
        /// Customers that share this server, each under a name of your choice (letters, digits, `-` and `_`). One that is taken
        /// away is gone with its connections, channels and histories.
        pub tenants: Map<Tenant> | Tenants & Permissions,
        /// Nodes that act as one.
        pub cluster: Cluster,
        /// Servers of other owners.
        pub federation: Federation,
        /// Credentials of the push services that reach offline users, each under a name of your
        /// choice.
        pub push: PushConfig,
        /// The bound of everything that could grow. All hold before authentication too; each refusal is
        /// counted in the metrics.
        pub limits: Limits,
        /// Changes while the server runs.
        pub config: Changes,
        /// How the server leaves on SIGTERM.
        pub shutdown: Shutdown,
        /// The admin port.
        pub admin: Admin,
        /// What is logged, and in which form.
        pub log: Log,
        /// Traces and metrics for a collector of OpenTelemetry.
        pub otlp: Otlp,
    }
}

impl Config {
    /// Returns the settings of `dunlin serve` without a file. Nothing requires a key or a token, so
    /// [`Config::validate`] refuses them for addresses other than loopback. Channels may have any name, keep their last
    /// 100 messages for 5 minutes, support recovery and maintain presence.
    pub fn development() -> Config {
        let channel = ChannelOptions {
            history_size: 100,
            history_ttl_ms: 300_000,
            recover: true,
            positioned: true,
            presence: true,
            allow_subscribe_for_client: true,
            allow_subscribe_for_anonymous: true,
            allow_publish_for_client: true,
            allow_publish_for_anonymous: true,
            allow_history_for_client: true,
            allow_history_for_anonymous: true,
            allow_presence_for_client: true,
            allow_presence_for_anonymous: true,
            ..ChannelOptions::default()
        };
        let mut config = Config {
            channel: Channel {
                without_namespace: channel,
                any_namespace: true,
                namespaces: Map::new(),
            },
            ..Config::default()
        };
        config.client.anonymous = true;
        config.client.demo_page = true;
        config.api.without_key = true;
        config
    }

    /// Parses a TOML file. Missing keys have their defaults.
    ///
    /// # Errors
    /// Every error of form, with its line: TOML syntax, unknown keys (and which was probably meant), values of a wrong
    /// type or out of bounds. [`Config::validate`] checks that the values fit together.
    pub fn from_toml(text: &str) -> Result<Config, ConfigErrors> {
        let mut document = document::Document::parse(text)?;
        Config::from_json(std::mem::take(&mut document.value)).map_err(|mut errors| {
            errors.locate_in(&document);
            errors
        })
    }

    /// Parses the valid parts of a TOML file and returns all errors of form, so that a caller can show them together
    /// with those of validation. If the text is not TOML, the configuration is the default.
    pub fn from_toml_partly(text: &str) -> (Config, ConfigErrors) {
        let mut document = match document::Document::parse(text) {
            Ok(document) => document,
            Err(errors) => return (Config::default(), errors),
        };
        let mut value = std::mem::take(&mut document.value);
        let mut errors = check::shape(&value);
        errors.locate_in(&document);
        for error in &errors {
            check::remove(&mut value, error.path.steps());
        }
        let config = Config::from_json(value).unwrap_or_else(|also| {
            errors.extend(also.iter().cloned());
            Config::default()
        });
        (config, errors)
    }

    /// Parses the JSON form, which has the same keys.
    ///
    /// # Errors
    /// Like [`Config::from_toml`], without lines.
    pub fn from_json(value: serde_json::Value) -> Result<Config, ConfigErrors> {
        check::shape(&value).or(())?;
        serde_json::from_value(value)
            .map_err(|error| ConfigError::new(Path::root(), error.to_string()).into())
    }

    /// Returns a TOML file with every key, its default and its documentation. Parsing it yields [`Config::default`].
    pub fn default_toml() -> String {
        template::toml()
    }
}
