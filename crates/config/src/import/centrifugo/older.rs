//! Keys of Centrifugo v3, v4 and v5, which had no sections, as those of v6.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::channel::is_option;
use crate::import::origin::Origin;
use crate::import::report::{Mapping, Row};
use crate::import::source::{is_nothing, object, switch};
use crate::path::Path;

/// A file of an older version with the keys of v6.
pub(super) struct Converted {
    pub(super) document: Value,
    /// Keys of v6, and those of the file that they stand for.
    pub(super) names: HashMap<String, String>,
    pub(super) rows: Vec<Row>,
}

/// Sections of v6 that are switches or texts in older versions, and those that older versions do not have.
const SECTIONS: &[&str] = &[
    "http_server",
    "log",
    "engine",
    "broker",
    "presence_manager",
    "map_broker",
    "controller",
    "client",
    "channel",
    "rpc",
    "http_api",
    "grpc_api",
    "websocket",
    "sse",
    "http_stream",
    "webtransport",
    "uni_sse",
    "uni_http_stream",
    "uni_websocket",
    "uni_grpc",
    "emulation",
    "admin",
    "prometheus",
    "health",
    "swagger",
    "debug",
    "init",
    "opentelemetry",
    "graphite",
    "usage_stats",
    "node",
    "shutdown",
    "shared_poll",
];

/// Returns whether this is a section of v6.
pub(super) fn is_section(key: &str, value: &Value) -> bool {
    SECTIONS.contains(&key) && value.is_object()
}

/// Options of channels, and other keys, that only v3 has.
const OF_V3: &[&str] = &[
    "protected",
    "publish",
    "subscribe_to_publish",
    "anonymous",
    "recover",
    "position",
    "presence_disable_for_client",
    "history_disable_for_client",
    "client_anonymous",
    "use_unlimited_history_by_default",
    "redis_idle_timeout",
    "redis_read_timeout",
    "redis_write_timeout",
    "redis_tls_skip_verify",
];

/// Keys that v4 has and v5 has not.
const OF_V4: &[&str] = &[
    "disable_client_protocol_v1",
    "use_client_protocol_v1_by_default",
    "skip_user_check_in_subscription_token",
    "presence_ttl",
    "uni_websocket_ping_interval",
    "websocket_ping_interval",
    "sockjs_heartbeat_delay",
];

/// Returns the version of a file without sections. Of v3 and later ones v3 is the open one: it is assumed only if a key says so,
/// and no permission of a later version is beside it.
pub(super) fn generation(document: &Value) -> Origin {
    let top = document.as_object().into_iter().flat_map(Map::keys);
    let within = document["namespaces"].as_array().into_iter().flatten();
    let within = within.filter_map(Value::as_object).flat_map(Map::keys);
    let keys: Vec<&str> = top.chain(within).map(String::as_str).collect();
    let has = |list: &[&str]| keys.iter().any(|key| list.contains(key));
    let is_later = |key: &&str| {
        key.starts_with("allow_") && key.contains("_for_")
            || matches!(*key, "allow_user_limited_channels" | "force_recovery" | "allow_recovery")
    };
    match () {
        () if has(OF_V3) && !keys.iter().any(is_later) => Origin::CentrifugoV3,
        () if has(OF_V4) => Origin::CentrifugoV4,
        () => Origin::CentrifugoV5,
    }
}

/// Returns whether an older version has this key.
pub(super) fn is_key(key: &str) -> bool {
    const PREFIXES: &[&str] = &[
        "token_",
        "subscription_token_",
        "api_",
        "redis_",
        "nats_",
        "proxy_",
        "tls_",
        "user_",
        "sockjs",
        "tarantool_",
        "global_",
    ];
    MOVED.iter().any(|(old, _)| *old == key)
        || is_option(key)
        || OF_V3.contains(&key)
        || OF_V4.contains(&key)
        || PREFIXES.iter().any(|prefix| key.starts_with(prefix))
        || matches!(
            key,
            "connect_proxy_name" | "refresh_proxy_name" | "rpc_namespaces" | "rpc_proxy_name"
        )
}

/// Returns the keys of v5 at the top of a file of v6, each with its name there.
pub(super) fn leftovers(document: &Value) -> Vec<(String, String)> {
    let keys = document.as_object().into_iter().flatten();
    keys.filter(|(key, value)| !is_section(key, value) && is_key(key))
        .filter(|(key, _)| !matches!(key.as_str(), "proxies" | "consumers"))
        .map(|(key, _)| (key.clone(), name_in_v6(key)))
        .collect()
}

/// Rewrites a file.
pub(super) fn convert(document: Value, origin: Origin) -> Converted {
    let mut converter = Converter {
        flat: object(document),
        origin,
        out: json!({}),
        names: HashMap::new(),
        rows: Vec::new(),
    };
    converter.tls();
    converter.proxies();
    converter.namespaces();
    converter.broker();
    if origin == Origin::CentrifugoV3 {
        let note = "a token for a channel names its user in `sub`, as in Centrifugo since v4";
        converter.row("subscription tokens", Mapping::Changed, note);
        converter.rename("client_anonymous", "client.allow_anonymous_connect_without_token");
    }
    if origin != Origin::CentrifugoV5 {
        converter.rename("history_meta_ttl", "channel.history_meta_ttl");
    }
    let mut options = Map::new();
    for (key, value) in std::mem::take(&mut converter.flat) {
        if is_option(&key) || is_old_option(&key, origin) {
            options.insert(key, value);
        } else {
            converter.set(&name_in_v6(&key), &key, value);
        }
    }
    if !options.is_empty() || origin == Origin::CentrifugoV3 {
        let options = converter.options("", options);
        converter.set("channel.without_namespace", "channels without a namespace", options);
    }
    Converted { document: converter.out, names: converter.names, rows: converter.rows }
}

fn is_old_option(key: &str, origin: Origin) -> bool {
    let of_all = [
        "proxy_subscribe",
        "proxy_publish",
        "proxy_sub_refresh",
        "proxy_subscribe_stream",
        "proxy_subscribe_stream_bidirectional",
        "proxy_cache_empty",
        "cache_empty_proxy_name",
    ];
    let of_v3 = origin == Origin::CentrifugoV3 && OF_V3[..8].contains(&key);
    of_all.contains(&key) || of_v3
}

struct Converter {
    /// The keys that are left.
    flat: Map<String, Value>,
    origin: Origin,
    out: Value,
    names: HashMap<String, String>,
    rows: Vec<Row>,
}

impl Converter {
    fn set(&mut self, to: &str, key: &str, value: Value) {
        let path = Path::of(to);
        let mut at = &mut self.out;
        for step in path.steps() {
            if !at.is_object() {
                *at = json!({});
            }
            at = &mut at[step];
        }
        *at = value;
        self.names.insert(to.to_owned(), key.to_owned());
    }

    fn row(&mut self, key: &str, mapping: Mapping, note: impl Into<String>) {
        self.rows.push(Row { key: key.to_owned(), mapping, note: note.into() });
    }

    /// Takes a key if it has a value.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.flat.remove(key).filter(|value| !is_nothing(value))
    }

    fn text(&mut self, key: &str) -> Option<String> {
        self.take(key)?.as_str().map(str::to_owned)
    }

    fn rename(&mut self, key: &str, to: &str) {
        if let Some(value) = self.take(key) {
            self.set(to, key, value);
        }
    }

    /// Gathers the keys of TLS, which were files, or texts in a second key.
    fn tls(&mut self) {
        for (prefix, section) in [
            ("redis_sentinel_", "engine.redis.sentinel_tls"),
            ("redis_", "engine.redis.tls"),
            ("grpc_api_", "grpc_api.tls"),
            ("uni_grpc_", "uni_grpc.tls"),
            ("", "http_server.tls"),
        ] {
            for (old, new) in [
                ("tls", "enabled"),
                ("tls_cert", "cert_pem"),
                ("tls_cert_pem", "cert_pem"),
                ("tls_key", "key_pem"),
                ("tls_key_pem", "key_pem"),
                ("tls_root_ca", "server_ca_pem"),
                ("tls_root_ca_pem", "server_ca_pem"),
                ("tls_client_ca", "client_ca_pem"),
                ("tls_client_ca_pem", "client_ca_pem"),
                ("tls_server_name", "server_name"),
                ("tls_insecure_skip_verify", "insecure_skip_verify"),
                ("tls_skip_verify", "insecure_skip_verify"),
            ] {
                let key = format!("{prefix}{old}");
                if let Some(value) = self.take(&key) {
                    self.set(&format!("{section}.{new}"), &key, value);
                }
            }
            self.names.entry(section.to_owned()).or_insert_with(|| format!("{prefix}tls"));
        }
    }

    /// Gathers the proxies, of which there was one for each event, or several with names.
    fn proxies(&mut self) {
        let mut common = json!({});
        for (old, new) in [
            ("proxy_http_headers", "http_headers"),
            ("proxy_include_connection_meta", "include_connection_meta"),
            ("proxy_binary_encoding", "binary_encoding"),
        ] {
            if let Some(value) = self.take(old) {
                common[new] = value;
            }
        }
        for (old, new) in [
            ("proxy_static_http_headers", "static_headers"),
            ("proxy_http_status_code_transforms", "status_to_code_transforms"),
        ] {
            if let Some(value) = self.take(old) {
                common["http"][new] = value;
            }
        }
        let named = match self.take("proxies") {
            Some(Value::Array(list)) => list.into_iter().map(named_proxy).collect(),
            Some(Value::String(text)) => match serde_json::from_str(&text) {
                Ok(Value::Array(list)) => list.into_iter().map(named_proxy).collect(),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        let mut rpc_proxy = false;
        for (event, to) in [
            ("connect", "client.proxy.connect"),
            ("refresh", "client.proxy.refresh"),
            ("subscribe", "channel.proxy.subscribe"),
            ("publish", "channel.proxy.publish"),
            ("sub_refresh", "channel.proxy.sub_refresh"),
            ("subscribe_stream", "channel.proxy.subscribe_stream"),
            ("rpc", "rpc.proxy"),
        ] {
            let key = format!("proxy_{event}_endpoint");
            let timeout = self.take(&format!("proxy_{event}_timeout"));
            let Some(endpoint) = self.take(&key) else { continue };
            let mut proxy = common.clone();
            proxy["endpoint"] = endpoint;
            if let Some(timeout) = timeout {
                proxy["timeout"] = timeout;
            }
            if to.starts_with("client.") {
                proxy["enabled"] = true.into();
            }
            rpc_proxy |= event == "rpc";
            self.set(to, &key, proxy);
        }
        for event in ["connect", "refresh"] {
            let key = format!("{event}_proxy_name");
            let Some(name) = self.text(&key) else { continue };
            let of = named.iter().find(|proxy| proxy["name"] == *name).cloned();
            // Without an endpoint it is reported as closed.
            let mut proxy = of.unwrap_or_else(|| json!({}));
            if let Value::Object(options) = &mut proxy {
                options.remove("name");
            }
            proxy["enabled"] = true.into();
            self.set(&format!("client.proxy.{event}"), &key, proxy);
        }
        let rpc_name = self.text("rpc_proxy_name");
        if let Some(name) = &rpc_name {
            let options = json!({ "proxy_enabled": true, "proxy_name": name });
            self.set("rpc.without_namespace", "rpc_proxy_name", options);
        } else if rpc_proxy {
            let options = json!({ "proxy_enabled": true });
            self.set("rpc.without_namespace", "proxy_rpc_endpoint", options);
        }
        let namespaces = list_of(self.take("rpc_namespaces"));
        let namespaces: Vec<Value> = namespaces
            .into_iter()
            .map(|of| {
                let name = of["rpc_proxy_name"].as_str().filter(|name| !name.is_empty());
                match name {
                    Some(name) => {
                        json!({ "name": of["name"], "proxy_enabled": true, "proxy_name": name })
                    }
                    None => json!({ "name": of["name"], "proxy_enabled": rpc_proxy }),
                }
            })
            .collect();
        if !namespaces.is_empty() {
            self.set("rpc.namespaces", "rpc_namespaces", namespaces.into());
        }
        if !named.is_empty() {
            self.set("proxies", "proxies", named.into());
        }
        self.flat.remove("granular_proxy_mode");
    }

    fn namespaces(&mut self) {
        let given = match self.take("namespaces") {
            // Of an environment.
            Some(Value::String(text)) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
            Some(value) => value,
            None => return,
        };
        let Value::Array(list) = given else {
            return self.set("channel.namespaces", "namespaces", given);
        };
        let list: Vec<Value> = list
            .into_iter()
            .map(|of| {
                let mut options = object(of);
                let name = options.remove("name");
                let key = format!(
                    "namespaces[{}].",
                    name.as_ref().and_then(Value::as_str).unwrap_or_default()
                );
                let mut options = self.options(&key, options);
                if let Some(name) = name {
                    options["name"] = name;
                }
                options
            })
            .collect();
        self.set("channel.namespaces", "namespaces", list.into());
    }

    fn broker(&mut self) {
        if let Some(broker) = self.text("broker") {
            self.set("broker.enabled", "broker", true.into());
            self.set("broker.type", "broker", broker.into());
        }
    }

    /// Rewrites the options of a namespace. `at` is its place in the file.
    fn options(&mut self, at: &str, mut options: Map<String, Value>) -> Value {
        let is_v3 = self.origin == Origin::CentrifugoV3;
        for (event, old) in [
            ("subscribe", "proxy_subscribe"),
            ("publish", "proxy_publish"),
            ("sub_refresh", "proxy_sub_refresh"),
            ("subscribe_stream", "proxy_subscribe_stream"),
        ] {
            let name = format!("{event}_proxy_name");
            let is_named = options.get(&name).is_some_and(|name| !is_nothing(name));
            if options.remove(old).is_some_and(|value| switch(&value)) || is_named {
                options.insert(format!("{event}_proxy_enabled"), true.into());
            }
        }
        options.remove("proxy_subscribe_stream_bidirectional");
        for harmless in ["proxy_cache_empty", "cache_empty_proxy_name"] {
            if options.remove(harmless).is_some_and(|value| !is_nothing(&value)) {
                self.row(
                    &format!("{at}{harmless}"),
                    Mapping::Absent,
                    "nothing is asked for an empty cache",
                );
            }
        }
        if is_v3 {
            self.options_of_v3(at, &mut options);
        }
        Value::Object(options)
    }

    /// In v3 a channel was open to clients with a user, unless something closed it.
    fn options_of_v3(&mut self, at: &str, options: &mut Map<String, Value>) {
        let mut is_on = |name: &str| options.remove(name).is_some_and(|value| switch(&value));
        let protected = is_on("protected");
        let anonymous = is_on("anonymous");
        let publish = is_on("publish");
        let subscribed = is_on("subscribe_to_publish");
        let no_presence = is_on("presence_disable_for_client");
        let no_history = is_on("history_disable_for_client");
        let (recover, position) = (is_on("recover"), is_on("position"));
        let asks = |event: &str| options.get(&format!("{event}_proxy_enabled")).is_some_and(switch);
        let (asks_subscribe, asks_publish) = (asks("subscribe"), asks("publish"));
        let mut allow = Vec::new();
        let mut notes = Vec::new();
        if asks_subscribe {
            // The backend was not asked about these names: only their users could subscribe.
            options.insert("channel_regex".to_owned(), "^[^#]*$".into());
            let text = "`subscribe_proxy`; names with `#`, about which it was not asked, are refused. It is asked about clients without a user, too";
            notes.push(("proxy_subscribe", Mapping::Changed, text));
        } else {
            allow.push("allow_user_limited_channels");
            if protected {
                notes.push(("protected", Mapping::Taken, "no `allow_subscribe_for_client`"));
            } else {
                allow.push("allow_subscribe_for_client");
                if anonymous {
                    allow.push("allow_subscribe_for_anonymous");
                }
            }
        }
        match (publish, subscribed, asks_publish) {
            (true, true, true) => {
                options.remove("publish_proxy_enabled");
                options.remove("publish_proxy_name");
                let text = "off: the backend was asked about subscribers alone";
                notes.push(("subscribe_to_publish", Mapping::Closed, text));
            }
            (true, true, false) => allow.push("allow_publish_for_subscriber"),
            (true, false, false) => allow.push("allow_publish_for_client"),
            (true, false, true) => {}
            (false, _, true) => {
                options.remove("publish_proxy_enabled");
                options.remove("publish_proxy_name");
                notes.push(("proxy_publish", Mapping::Closed, "off, as without `publish` in v3"));
            }
            (false, _, false) => {}
        }
        if publish && anonymous && !asks_publish {
            allow.push("allow_publish_for_anonymous");
        }
        let has = |name: &str| options.get(name).is_some_and(|value| !is_nothing(value));
        if has("presence") && !no_presence {
            allow.push("allow_presence_for_subscriber");
            if anonymous {
                allow.push("allow_presence_for_anonymous");
            }
        }
        if has("history_size") && !no_history {
            allow.push("allow_history_for_subscriber");
            if anonymous {
                allow.push("allow_history_for_anonymous");
            }
        }
        if has("join_leave") {
            allow.push("force_push_join_leave");
        }
        if recover {
            allow.push("force_recovery");
        }
        if position {
            allow.push("force_positioning");
        }
        for option in allow {
            options.insert(option.to_owned(), true.into());
        }
        for (what, mapping, note) in notes {
            self.row(&format!("{at}{what}"), mapping, note);
        }
    }
}

/// Rewrites an element of `proxies`.
fn named_proxy(proxy: Value) -> Value {
    let mut options = object(proxy);
    for (old, new) in [
        ("static_http_headers", "static_headers"),
        ("http_status_to_code_transforms", "status_to_code_transforms"),
    ] {
        if let Some(value) = options.remove(old).filter(|value| !is_nothing(value)) {
            options.entry("http").or_insert_with(|| json!({}))[new] = value;
        }
    }
    options.retain(|name, _| !name.starts_with("grpc_"));
    Value::Object(options)
}

fn list_of(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(list)) => list,
        Some(Value::String(text)) => serde_json::from_str(&text).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Returns the name of a key in v6.
pub(super) fn name_in_v6(key: &str) -> String {
    if let Some((_, name)) = MOVED.iter().find(|(old, _)| *old == key) {
        return (*name).to_owned();
    }
    if is_option(key) {
        return format!("channel.without_namespace.{key}");
    }
    let prefixed =
        PREFIXES.iter().find_map(|(old, new)| Some(format!("{new}.{}", key.strip_prefix(old)?)));
    prefixed.unwrap_or_else(|| key.to_owned())
}

/// Keys that moved individually.
const MOVED: &[(&str, &str)] = &[
    ("namespaces", "channel.namespaces"),
    ("allowed_origins", "client.allowed_origins"),
    ("allow_anonymous_connect_without_token", "client.allow_anonymous_connect_without_token"),
    ("disallow_anonymous_connection_tokens", "client.disallow_anonymous_connection_tokens"),
    ("separate_subscription_token_config", "client.subscription_token.enabled"),
    ("global_history_meta_ttl", "channel.history_meta_ttl"),
    ("user_subscribe_to_personal", "client.subscribe_to_user_personal_channel.enabled"),
    (
        "user_personal_channel_namespace",
        "client.subscribe_to_user_personal_channel.personal_channel_namespace",
    ),
    (
        "user_personal_single_connection",
        "client.subscribe_to_user_personal_channel.single_connection",
    ),
    ("global_presence_ttl", "engine.redis.presence_ttl"),
    ("presence_ttl", "engine.redis.presence_ttl"),
    ("global_redis_presence_user_mapping", "engine.redis.presence_user_mapping"),
    ("redis_use_lists", "engine.redis.history_use_lists"),
    ("redis_read_timeout", "engine.redis.io_timeout"),
    ("tls_autocert", "http_server.tls_autocert.enabled"),
    ("rpc_ping", "rpc.ping.enabled"),
    ("ping_interval", "client.ping_interval"),
    ("pong_timeout", "client.pong_timeout"),
    ("name", "node.name"),
    ("engine", "engine.type"),
    ("broker", "broker.type"),
    ("address", "http_server.address"),
    ("port", "http_server.port"),
    ("internal_address", "http_server.internal_address"),
    ("internal_port", "http_server.internal_port"),
    ("tls", "http_server.tls.enabled"),
    ("tls_cert", "http_server.tls.cert_pem"),
    ("tls_key", "http_server.tls.key_pem"),
    ("tls_external", "http_server.tls_external"),
    ("http3", "http_server.http3.enabled"),
    ("api_disable", "http_api.disabled"),
    ("websocket_disable", "websocket.disabled"),
    ("admin", "admin.enabled"),
    ("debug", "debug.enabled"),
    ("prometheus", "prometheus.enabled"),
    ("health", "health.enabled"),
    ("swagger", "swagger.enabled"),
    ("graphite", "graphite.enabled"),
    ("grpc_api", "grpc_api.enabled"),
    ("opentelemetry", "opentelemetry.enabled"),
    ("sse", "sse.enabled"),
    ("http_stream", "http_stream.enabled"),
    ("webtransport", "webtransport.enabled"),
    ("uni_sse", "uni_sse.enabled"),
    ("uni_http_stream", "uni_http_stream.enabled"),
    ("uni_websocket", "uni_websocket.enabled"),
    ("uni_grpc", "uni_grpc.enabled"),
    ("usage_stats_disable", "usage_stats.disabled"),
    ("proxy_connect_endpoint", "client.proxy.connect.endpoint"),
    ("proxy_refresh_endpoint", "client.proxy.refresh.endpoint"),
    ("proxy_subscribe_endpoint", "channel.proxy.subscribe.endpoint"),
    ("proxy_publish_endpoint", "channel.proxy.publish.endpoint"),
    ("proxy_sub_refresh_endpoint", "channel.proxy.sub_refresh.endpoint"),
    ("proxy_rpc_endpoint", "rpc.proxy.endpoint"),
];

/// Prefixes of names that became sections, longer ones first.
const PREFIXES: &[(&str, &str)] = &[
    ("subscription_token_", "client.subscription_token"),
    ("token_", "client.token"),
    ("client_", "client"),
    ("channel_", "channel"),
    ("rpc_", "rpc"),
    ("grpc_api_", "grpc_api"),
    ("api_", "http_api"),
    ("admin_", "admin"),
    ("uni_websocket_", "uni_websocket"),
    ("uni_sse_", "uni_sse"),
    ("uni_http_stream_", "uni_http_stream"),
    ("uni_grpc_", "uni_grpc"),
    ("websocket_", "websocket"),
    ("http_stream_", "http_stream"),
    ("sse_", "sse"),
    ("redis_", "engine.redis"),
    ("nats_", "broker.nats"),
    ("log_", "log"),
    ("tls_autocert_", "http_server.tls_autocert"),
    ("tls_", "http_server.tls"),
    ("graphite_", "graphite"),
    ("shutdown_", "shutdown"),
    ("node_", "node"),
    ("opentelemetry_", "opentelemetry"),
];
