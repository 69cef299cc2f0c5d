//! Variables of Centrifugo: `CENTRIFUGO_` and the key in upper case, with `_` for each dot.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::check;
use crate::import::dotenv::Variables;
use crate::import::origin::Origin;
use crate::path::Path;

const PREFIX: &str = "CENTRIFUGO_";
/// Variables with this prefix are no keys: values refer to them.
const REFERRED: &str = "CENTRIFUGO_VAR_";

/// Keys of v6 that have a meaning here, by section. What is under `channel.namespaces` and the like has names in it.
const KEYS: &[(&str, &[&str])] = &[
    (
        "client",
        &[
            "allowed_origins",
            "allow_anonymous_connect_without_token",
            "disallow_anonymous_connection_tokens",
            "ping_interval",
            "pong_timeout",
            "expired_close_delay",
            "expired_sub_close_delay",
            "stale_close_delay",
            "channel_limit",
            "queue_max_size",
            "presence_update_interval",
            "concurrency",
            "channel_position_check_delay",
            "channel_position_max_time_lag",
            "connection_limit",
            "user_connection_limit",
            "connection_rate_limit",
            "connect_include_server_time",
            "history_max_publication_limit",
            "recovery_max_publication_limit",
            "insecure_skip_token_signature_verify",
            "user_id_http_header",
            "insecure",
        ],
    ),
    ("client.token", TOKEN),
    ("client.subscription_token", TOKEN),
    (
        "client.subscribe_to_user_personal_channel",
        &["enabled", "personal_channel_namespace", "single_connection"],
    ),
    ("client.proxy.connect", PROXY),
    ("client.proxy.refresh", PROXY),
    (
        "channel",
        &[
            "history_meta_ttl",
            "max_length",
            "private_prefix",
            "namespace_boundary",
            "user_boundary",
            "user_separator",
            "publication_data_format",
            "namespaces",
        ],
    ),
    ("channel.proxy.subscribe", PROXY),
    ("channel.proxy.publish", PROXY),
    ("channel.proxy.sub_refresh", PROXY),
    ("channel.proxy.subscribe_stream", PROXY),
    ("rpc", &["namespace_boundary", "namespaces"]),
    ("rpc.proxy", PROXY),
    ("rpc.without_namespace", &["proxy_enabled", "proxy_name"]),
    ("http_api", &["disabled", "key", "external", "insecure", "error_mode"]),
    (
        "http_server",
        &["address", "port", "internal_address", "internal_port", "tls_external", "h2c_external"],
    ),
    ("http_server.tls", TLS),
    ("http_server.tls_autocert", &["enabled", "host_whitelist", "cache_dir", "email"]),
    ("engine", &["type"]),
    ("engine.redis", REDIS),
    ("engine.redis.tls", TLS),
    ("engine.redis.sentinel_tls", TLS),
    ("broker", &["enabled", "type"]),
    ("broker.redis", REDIS),
    ("broker.redis.tls", TLS),
    ("broker.nats", &["url", "prefix", "dial_timeout", "write_timeout", "allow_wildcards"]),
    ("broker.nats.tls", TLS),
    ("broker.nats.raw_mode", &["enabled", "prefix", "channel_replacements"]),
    ("presence_manager", &["enabled", "type"]),
    ("websocket", &["disabled", "compression", "message_size_limit", "write_timeout"]),
    ("log", &["level", "file"]),
    ("node", &["name"]),
    ("shutdown", &["timeout"]),
    ("admin", &["enabled", "password", "secret", "insecure", "external"]),
    ("prometheus", &["enabled"]),
    ("health", &["enabled"]),
    ("debug", &["enabled"]),
    ("swagger", &["enabled"]),
    ("sse", &["enabled"]),
    ("http_stream", &["enabled"]),
    ("uni_sse", &["enabled"]),
    ("uni_http_stream", &["enabled"]),
    ("uni_websocket", &["enabled"]),
    ("uni_grpc", &["enabled", "port"]),
    ("grpc_api", &["enabled", "port", "key"]),
    ("usage_stats", &["disabled", "enabled"]),
];

const TOKEN: &[&str] = &[
    "enabled",
    "hmac_secret_key",
    "hmac_previous_secret_key",
    "hmac_previous_secret_key_valid_until",
    "rsa_public_key",
    "ecdsa_public_key",
    "jwks_public_endpoint",
    "audience",
    "audience_regex",
    "issuer",
    "issuer_regex",
    "user_id_claim",
    "labels_from_claim",
    "insecure_skip_jwks_endpoint_safety_check",
];

const PROXY: &[&str] = &[
    "enabled",
    "endpoint",
    "timeout",
    "http_headers",
    "grpc_metadata",
    "emulated_headers",
    "binary_encoding",
    "include_connection_meta",
    "http.static_headers",
    "http.status_to_code_transforms",
    "http.tls.enabled",
    "http.tls.server_ca_pem",
    "http.tls.cert_pem",
    "http.tls.key_pem",
    "http.tls.insecure_skip_verify",
    "grpc.tls.enabled",
    "grpc.credentials_key",
    "grpc.credentials_value",
    "grpc.static_metadata",
];

const TLS: &[&str] = &[
    "enabled",
    "cert_pem",
    "key_pem",
    "server_ca_pem",
    "client_ca_pem",
    "insecure_skip_verify",
    "server_name",
];

const REDIS: &[&str] = &[
    "address",
    "prefix",
    "connect_timeout",
    "io_timeout",
    "db",
    "user",
    "password",
    "client_name",
    "force_resp2",
    "cluster_address",
    "sentinel_address",
    "sentinel_user",
    "sentinel_password",
    "sentinel_master_name",
    "sentinel_client_name",
    "history_use_lists",
    "presence_ttl",
    "presence_hash_field_ttl",
    "presence_user_mapping",
    "replica_client.enabled",
];

/// Lists whose elements have a name, and may be given by the names alone; each element then has variables of its own.
const LISTS: &[&str] = &["channel.namespaces", "rpc.namespaces", "proxies", "consumers"];

/// Returns the variables that are keys, without their prefix.
pub(super) fn keys(variables: &Variables) -> impl Iterator<Item = (&str, &str, &str)> {
    variables.iter().filter_map(|(name, text)| {
        let short = name.strip_prefix(PREFIX).filter(|_| !name.starts_with(REFERRED))?;
        // Kubernetes sets variables with the addresses of services, one of which is often called `centrifugo`.
        let is_of_kubernetes =
            short.contains("SERVICE_") || short.contains("_PORT_") || text.starts_with("tcp://");
        // An empty variable is none.
        (!is_of_kubernetes && !text.is_empty()).then_some((name.as_str(), short, text.as_str()))
    })
}

/// Returns the version whose variables these are.
pub(super) fn generation(variables: &Variables) -> Origin {
    let is_of_v6 = |short: &str| {
        // Many keys have the same variable in all versions.
        let own = ["CHANNEL_NAMESPACES", "RPC_NAMESPACES_", "CHANNEL_WITHOUT_NAMESPACE_"];
        own.iter().any(|prefix| short.starts_with(prefix))
            || key_of_v6(short)
                .is_some_and(|key| super::older::name_in_v6(&short.to_lowercase()) != key)
    };
    let is_old = |short: &str| super::older::is_key(&short.to_lowercase());
    let all: Vec<&str> = keys(variables).map(|(_, short, _)| short).collect();
    match all.iter().any(|short| is_of_v6(short)) || !all.iter().any(|short| is_old(short)) {
        true => Origin::CentrifugoV6,
        false => {
            let flat: serde_json::Map<String, Value> = keys(variables)
                .map(|(_, short, text)| (short.to_lowercase(), value(text)))
                .collect();
            super::older::generation(&Value::Object(flat))
        }
    }
}

fn upper(key: &str) -> String {
    key.replace(['.', '-'], "_").to_uppercase()
}

fn key_of_v6(short: &str) -> Option<String> {
    KEYS.iter().find_map(|(section, keys)| {
        let rest = short.strip_prefix(&upper(section))?.strip_prefix('_')?;
        let key = keys.iter().find(|key| upper(key) == rest)?;
        Some(format!("{section}.{key}"))
    })
}

/// Reads a variable: JSON if it is a list or an object, and Go's words for a switch.
fn value(text: &str) -> Value {
    match text {
        "true" | "True" | "TRUE" | "t" | "T" => true.into(),
        "false" | "False" | "FALSE" | "f" | "F" => false.into(),
        "0" => 0.into(),
        _ if text.trim_start().starts_with(['[', '{']) => {
            serde_json::from_str(text).unwrap_or_else(|_| text.into())
        }
        _ => text.into(),
    }
}

/// Writes the variables into the document. Returns, for each key that one has set, its name.
pub(super) fn merge(
    document: &mut Value,
    variables: &Variables,
    is_v6: bool,
) -> HashMap<String, String> {
    let mut names = HashMap::new();
    let mut set = |document: &mut Value, key: &str, name: &str, value: Value| {
        let path = Path::of(key);
        let mut at = &mut *document;
        for step in path.steps() {
            if !at.is_object() {
                *at = json!({});
            }
            at = &mut at[step];
        }
        *at = value;
        names.insert(key.to_owned(), name.to_owned());
    };
    if !is_v6 {
        for (name, short, text) in keys(variables) {
            set(document, &short.to_lowercase(), name, value(text));
        }
        return names;
    }
    let mut within = Vec::new();
    for (name, short, text) in keys(variables) {
        let list = LISTS.iter().find(|list| short == upper(list));
        if let Some(list) = list {
            let value = match value(text) {
                Value::String(text) => {
                    text.split_whitespace().map(|name| json!({ "name": name })).collect()
                }
                value => value,
            };
            set(document, list, name, value);
        } else if let Some(option) = short.strip_prefix("CHANNEL_WITHOUT_NAMESPACE_") {
            let key = format!("channel.without_namespace.{}", option.to_lowercase());
            set(document, &key, name, value(text));
        } else if let Some(list) = LISTS.iter().find(|list| short.starts_with(&(upper(list) + "_")))
        {
            within.push((*list, name, short, text));
        } else {
            let key = key_of_v6(short).unwrap_or_else(|| name.to_owned());
            set(document, &key, name, value(text));
        }
    }
    for (list, name, short, text) in within {
        let rest = &short[upper(list).len() + 1..];
        if element(document, list, rest, text).is_none() {
            set(document, name, name, text.into());
        }
    }
    names
}

/// Sets an option of an element of a list. `None`: no element has a name with which the variable begins.
fn element(document: &mut Value, list: &str, rest: &str, text: &str) -> Option<()> {
    let elements = document.pointer_mut(&Path::of(list).pointer())?.as_array_mut()?;
    let own = |of: &Value| -> Option<usize> {
        let name = upper(of["name"].as_str()?) + "_";
        rest.strip_prefix(&name).map(|_| name.len())
    };
    // Of `a` and `a_b` the longer name is meant.
    let (index, length) = elements
        .iter()
        .enumerate()
        .filter_map(|(index, of)| Some((index, own(of)?)))
        .max_by_key(|(_, length)| *length)?;
    let option = rest[length..].to_lowercase();
    let known = PROXY.iter().find(|key| upper(key).to_lowercase() == option);
    let path = Path::of(known.copied().unwrap_or(&option));
    let mut at = &mut elements[index];
    check::remove(at, path.steps());
    for step in path.steps() {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[step];
    }
    *at = value(text);
    Some(())
}
