use std::collections::HashMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::entries::long_enough;
use crate::error::ConfigErrors;
use crate::path::Path;
use crate::validate::origin_pattern;
use crate::{Config, Map, Secret};

settings! {
    /// The Pusher protocol: `pusher-js` and Laravel Echo connect to `/app/KEY`, and Pusher's server libraries
    /// call `/apps/ID/...`, on the client addresses.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct PusherConfig {
        /// Time without input after which a client pings the server, and the server pings a client. Proxies between them must
        /// keep idle connections for longer; most do so for 60 s.
        #[schemars(range(min = 1_000, max = 3_600_000))]
        pub activity_timeout_ms: u64 => NewConnections,
        /// How long a client may take to answer a ping. Below `activity_timeout_ms`.
        #[schemars(range(min = 100, max = 3_600_000))]
        pub pong_timeout_ms: u64 => NewConnections,
        /// Apps, each under a name of your choice. Removing an app disconnects its clients.
        pub apps: Map<PusherApp> | PusherApps & Permissions,
    }
}

impl Default for PusherConfig {
    fn default() -> PusherConfig {
        PusherConfig { activity_timeout_ms: 30_000, pong_timeout_ms: 10_000, apps: Map::new() }
    }
}

settings! {
    /// One app of the Pusher protocol.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct PusherApp {
        /// The app's id, in the paths of the HTTP API: letters, digits, `-` and `_`.
        pub id: Arc<str> => PusherApps,
        /// The app's key, which clients send: letters, digits, `-` and `_`. It is not secret.
        pub key: Arc<str> => PusherApps,
        /// The secret that the backend signs with: subscriptions, sign-ins and calls of the HTTP API. At least 16
        /// bytes.
        pub secret: Option<Secret> => PusherApps,
        /// The namespace of the app's channels, from `channel.namespaces`: `news` is the channel `NAMESPACE:news`
        /// for clients of the other protocols. Its `allow_...` keys and proxies apply to those clients; they need
        /// a token for channels that begin with `private-`, `presence-` or `#`.
        pub namespace: Arc<str> => PusherApps,
        /// The tenant of the app, from `tenants`: `namespace` is then one of the tenant's, and channels and users
        /// are those of the tenant, separate from all other apps. Apps without a tenant that use the same
        /// namespace share its channels, including private ones.
        pub tenant: Option<Arc<str>> => PusherApps,
        /// Origins of web pages that may connect, as in `client.allowed_origins`. By default all, because no
        /// permission depends on a cookie.
        pub allowed_origins: Arc<[String]> => PusherApps,
        /// Permits client events in private and presence channels.
        pub client_events: bool => PusherApps,
        /// Events per second that a client may send; further ones are refused.
        #[schemars(range(min = 1, max = 1_000_000))]
        pub client_events_per_s: u32 => PusherApps,
        /// Most bytes of the data of an event.
        #[schemars(range(min = 1, max = 16_777_216))]
        pub event_bytes_max: usize => PusherApps,
        /// Most channels of one event that a backend publishes.
        #[schemars(range(min = 1, max = 10_000))]
        pub channels_per_event_max: usize => PusherApps,
        /// Most events of one batch.
        #[schemars(range(min = 1, max = 1_000))]
        pub batch_events_max: usize => PusherApps,
        /// Most users in a presence channel.
        #[schemars(range(min = 1, max = 100_000))]
        pub presence_members_max: u32 => PusherApps,
        /// Most bytes of the data of a member of a presence channel.
        #[schemars(range(min = 64, max = 65_536))]
        pub member_bytes_max: usize => PusherApps,
        /// How long a cache channel keeps its last event.
        #[schemars(range(min = 1_000, max = 31_536_000_000_u64))]
        pub cache_ttl_ms: u64 => PusherApps,
    }
}

impl Default for PusherApp {
    fn default() -> PusherApp {
        PusherApp {
            id: Arc::default(),
            key: Arc::default(),
            secret: None,
            namespace: Arc::default(),
            tenant: None,
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

/// Checks that every app has a namespace (of its tenant, if it has one) and a unique id and key, and that
/// every hook for an app has the app's tenant.
pub(crate) fn references(config: &Config, valid: &Config, errors: &mut ConfigErrors) {
    let (apps, before) = (&config.pusher.apps, &valid.pusher.apps);
    let same_apps = apps.is_same(before);
    let namespaces = &config.channel.namespaces;
    let path = |name: &str| Path::of("pusher.apps").join(name);
    let gone = || namespaces.changes_from(&valid.channel.namespaces).any(|(.., of)| of.is_none());
    let same_tenants = config.tenants.is_same(&valid.tenants);
    let none = Map::new();
    hooks(config, if same_apps { &valid.webhooks.hooks } else { &none }, errors);
    if apps.is_empty() || same_apps && same_tenants && !gone() {
        return;
    }
    let (mut ids, mut keys) = (HashMap::new(), HashMap::new());
    for (name, app) in apps.iter() {
        let of_tenant = app.tenant.as_ref().map(|tenant| (tenant, config.tenants.get(tenant)));
        if let Some((tenant, None)) = of_tenant {
            let fix = "name one of `tenants`, or take the app away first";
            errors.add(path(name).join("tenant"), format!("there is no tenant {tenant:?}"), fix);
        } else {
            let own = of_tenant.and_then(|(_, tenant)| tenant);
            if !own.map_or(namespaces, |tenant| &tenant.namespaces).contains_key(&app.namespace) {
                let message = format!("there is no namespace {:?}", app.namespace);
                let fix = match &app.tenant {
                    Some(tenant) => {
                        format!("name one of `tenants.{tenant}.namespaces`, or add it there")
                    }
                    None => "name one of `channel.namespaces`, or add it there".to_owned(),
                };
                errors.add(path(name).join("namespace"), message, fix);
            }
        }
        for (key, value, seen) in [("id", &app.id, &mut ids), ("key", &app.key, &mut keys)] {
            if let Some(other) = seen.insert(Arc::clone(value), name) {
                let message = format!("it is that of {other:?}");
                errors.add(path(name).join(key), message, "give each app its own");
            }
        }
    }
}

fn hooks(config: &Config, before: &Map<crate::Hook>, errors: &mut ConfigErrors) {
    for (name, _, after) in config.webhooks.hooks.changes_from(before) {
        let Some((hook, app)) = after.and_then(|hook| Some((hook, hook.pusher_app.as_ref()?)))
        else {
            continue;
        };
        let path = Path::of("webhooks.hooks").join(name);
        match config.pusher.apps.get(app) {
            None => {
                let fix = "name one of `pusher.apps`, or add it there";
                errors.add(path.join("pusher_app"), format!("there is no app {app:?}"), fix);
            }
            Some(of) if of.tenant != hook.tenant => {
                let message = format!("it is not that of the app {app:?}, whose events it gets");
                let fix = match &of.tenant {
                    Some(tenant) => format!("set it to {tenant:?}"),
                    None => "leave it out".to_owned(),
                };
                errors.add(path.join("tenant"), message, fix);
            }
            Some(_) => {}
        }
    }
}

/// Apps that share channels: for each app, the first earlier one with the same namespace.
pub(crate) fn shared(apps: &Map<PusherApp>) -> Vec<(&str, &str)> {
    let mut seen = HashMap::new();
    let mut shared = Vec::new();
    for (name, app) in apps.iter() {
        match seen.get(&(&app.tenant, &app.namespace)) {
            Some(first) => shared.push((name, *first)),
            None => drop(seen.insert((&app.tenant, &app.namespace), name)),
        }
    }
    shared
}

pub(crate) fn app(path: &Path, app: &PusherApp, errors: &mut ConfigErrors) {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    for (key, value) in [("id", &app.id), ("key", &app.key)] {
        if value.is_empty() || value.len() > 128 || !value.bytes().all(legal) {
            let message = if value.is_empty() { "it is not set" } else { "no path can carry it" };
            let fix = "write letters, digits, `-` and `_`, at most 128";
            errors.add(path.join(key), message, fix);
        }
    }
    for (index, origin) in app.allowed_origins.iter().enumerate() {
        if let Err(fix) = origin_pattern(origin) {
            let path = path.join("allowed_origins").join(index);
            errors.add(path, format!("{origin:?} is not an origin"), fix);
        }
    }
    match &app.secret {
        Some(secret) => long_enough(path.join("secret"), secret, errors),
        None => {
            let fix = "make one with `openssl rand -hex 32`";
            errors.add(path.join("secret"), "it is not set", fix);
        }
    }
}
