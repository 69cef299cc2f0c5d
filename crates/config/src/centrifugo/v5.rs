//! Keys of Centrifugo v5, which had no sections, and their names in v6.

use serde_json::Value;

use super::channel::is_option;
use crate::error::{ConfigError, ConfigErrors};
use crate::path::Path;

/// Refuses a file of v5 and reports each key that v6 has moved.
///
/// # Errors
/// Each moved key with its name in v6.
pub(super) fn refuse(document: &Value) -> Result<(), ConfigErrors> {
    let mut errors = ConfigErrors::default();
    for (key, value) in document.as_object().into_iter().flatten() {
        // Some sections of v6 are booleans or texts in v5: `engine`, `admin`, `uni_sse`.
        let is_section = value.is_object() || SECTIONS_OF_LISTS.contains(&&**key);
        if let Some(name) = name_in_v6(key).filter(|_| !is_section) {
            let what = "this is a key of Centrifugo v5, and Dunlin reads files of v6";
            let fix = format!(
                "in v6 it is `{name}`; convert the file as centrifugal.dev says (Migrating to v6)"
            );
            errors.push(ConfigError::new(Path::root().join(key), what).with_fix(fix));
        }
    }
    errors.or(())
}

const SECTIONS_OF_LISTS: &[&str] = &["consumers", "proxies"];

fn name_in_v6(key: &str) -> Option<String> {
    if let Some((_, name)) = MOVED.iter().find(|(old, _)| *old == key) {
        return Some((*name).to_owned());
    }
    if is_option(key) {
        return Some(format!("channel.without_namespace.{key}"));
    }
    let (section, rest) =
        PREFIXES.iter().find_map(|(old, new)| Some((new, key.strip_prefix(old)?)))?;
    Some(format!("{section}.{rest}"))
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
    ("granular_proxy_mode", "proxies"),
    ("proxy_connect_endpoint", "client.proxy.connect.endpoint"),
    ("proxy_refresh_endpoint", "client.proxy.refresh.endpoint"),
    ("proxy_subscribe_endpoint", "channel.proxy.subscribe.endpoint"),
    ("proxy_publish_endpoint", "channel.proxy.publish.endpoint"),
    ("proxy_sub_refresh_endpoint", "channel.proxy.sub_refresh.endpoint"),
    ("proxy_rpc_endpoint", "rpc.proxy.endpoint"),
    ("proxy_subscribe", "channel.without_namespace.subscribe_proxy_enabled"),
    ("proxy_publish", "channel.without_namespace.publish_proxy_enabled"),
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
