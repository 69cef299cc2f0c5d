//! Translates settings of clients, the server API, addresses, TLS and the rest.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde_json::{Map, Value, json};

use crate::entries::SECRET_BYTES_MIN;
use crate::import::report::{Mapping, Row};
use crate::import::source::{ImportSource, Kind, count};
use crate::import::variables::has_reference;
use crate::path::Path;
use crate::validate::origin_pattern;

/// Keys that differ only in their names.
const SAME: &[(&str, &str, Kind)] = &[
    ("client.ping_interval", "client.ping_interval_ms", Kind::Time),
    ("client.pong_timeout", "client.pong_timeout_ms", Kind::Time),
    ("client.stale_close_delay", "client.connect_timeout_ms", Kind::Time),
    ("client.expired_close_delay", "client.token.refresh_grace_ms", Kind::Time),
    ("client.channel_limit", "limits.subscriptions_per_client_max", Kind::Count),
    ("client.queue_max_size", "limits.outbox_bytes_max", Kind::Count),
    ("client.connection_limit", "limits.connections_max", Kind::Count),
    ("client.user_connection_limit", "limits.connections_per_user_max", Kind::Count),
    ("client.connection_rate_limit", "limits.accepts_per_s_max", Kind::Count),
    ("client.concurrency", "client.concurrency", Kind::Count),
    ("client.history_max_publication_limit", "limits.history_messages_max", Kind::Count),
    ("client.recovery_max_publication_limit", "limits.recovery_messages_max", Kind::Count),
    (
        "client.subscribe_to_user_personal_channel.enabled",
        "client.subscribe_to_user_personal_channel.enabled",
        Kind::Switch,
    ),
    (
        "client.subscribe_to_user_personal_channel.personal_channel_namespace",
        "client.subscribe_to_user_personal_channel.personal_channel_namespace",
        Kind::Text,
    ),
    ("websocket.compression", "client.compression", Kind::Switch),
    ("shutdown.timeout", "shutdown.drain_timeout_ms", Kind::Time),
    ("node.name", "server.name", Kind::Text),
];

pub(super) fn client(source: &mut ImportSource) {
    token(source, "client.token");
    // Subscription tokens without keys are refused, even if no key could be converted.
    if source.is_on("client.subscription_token.enabled") {
        token(source, "client.subscription_token");
        let key = "client.subscription_token.enabled";
        source.taken(key, key, true);
    } else if source.take("client.subscription_token").is_some() {
        source.row("client.subscription_token", Mapping::Absent, "it is not enabled");
    }
    for (key, to, kind) in SAME {
        source.move_as(key, to, *kind);
    }
    if let Some(bytes) = source.take("websocket.message_size_limit").as_ref().and_then(count) {
        source.set(&Path::of("limits.frame_bytes_max"), bytes);
        source.taken("websocket.message_size_limit", "limits.message_bytes_max", bytes);
    }
    // A connect proxy may refuse a client that `client.anonymous` would admit.
    let is_closed =
        |row: &Row| row.mapping == Mapping::Closed && row.key.starts_with("client.proxy.connect");
    let asks =
        source.out.pointer("/client/proxy/connect").is_some() || source.rows.iter().any(is_closed);
    if source.is_on("client.allow_anonymous_connect_without_token") {
        let key = "client.allow_anonymous_connect_without_token";
        match asks {
            true => source.row(key, Mapping::Closed, "off, because of the connect proxy"),
            false => source.taken(key, "client.anonymous", true),
        }
    }
    for (key, note) in [
        (
            "client.insecure",
            "nothing is open to everybody here; development mode is, on this machine",
        ),
        ("client.insecure_skip_token_signature_verify", "a token is always verified"),
        (
            "skip_user_check_in_subscription_token",
            "a subscription token is for the user in its `sub` alone",
        ),
        ("http_api.insecure", "calls of the API show a key"),
        ("admin.insecure", "changes on the admin port show a token"),
        (
            "client.user_id_http_header",
            "no header says who a client is; clients come in with a token",
        ),
    ] {
        if source.take(key).is_some() {
            source.row(key, Mapping::Closed, note);
        }
    }
    origins(source);
}

/// Translates the keys and rules of one kind of token.
fn token(source: &mut ImportSource, of: &str) {
    let key = |name: &str| format!("{of}.{name}");
    let mut unread = None;
    for (name, to) in [
        ("audience", "audience"),
        ("audience_regex", "audience_regex"),
        ("issuer", "issuer"),
        ("issuer_regex", "issuer_regex"),
        ("user_id_claim", "user_id_claim"),
        ("jwks_public_endpoint", "jwks_public_endpoint"),
        ("hmac_secret_key", "hmac_secret"),
        ("rsa_public_key", "rsa_public_key"),
        ("ecdsa_public_key", "ecdsa_public_key"),
    ] {
        match source.take(&key(name)) {
            Some(Value::String(text)) if to == "hmac_secret" && is_short(&text) => {
                let allowed = format!(
                    "until the move is done it may be set beside `{}`, on this machine alone",
                    key("short_hmac_secret")
                );
                source.row(&key(name), Mapping::Closed, short(&allowed));
            }
            Some(Value::String(text)) => source.taken(&key(name), &key(to), text),
            // It may be a rule: then no key may be taken, since it would admit tokens that the rule refuses.
            Some(_) => unread = Some(name),
            None => {}
        }
    }
    if let Some(name) = unread {
        let note = "expected a text; no key of these tokens is taken";
        source.row(&key(name), Mapping::Closed, note);
        source.unset(of);
    }
    if of == "client.token" {
        labels_from_claim(source, &key("labels_from_claim"));
    }
    for (name, note) in [
        (
            "hmac_previous_secret_key",
            "left out, for it would hold without an end here; set `hmac_secret_previous` while it is in use",
        ),
        ("hmac_previous_secret_key_valid_until", "see `hmac_previous_secret_key`"),
    ] {
        if source.take(&key(name)).is_some() {
            source.row(&key(name), Mapping::Closed, note);
        }
    }
}

/// Returns whether a secret is refused for its length. One that refers to a variable is refused for that.
fn is_short(secret: &str) -> bool {
    secret.len() < SECRET_BYTES_MIN && !has_reference(secret)
}

/// The note for a secret that is too short.
fn short(then: &str) -> String {
    format!(
        "left out: it is shorter than {SECRET_BYTES_MIN} bytes; make one with `openssl rand -hex 32`, and {then}"
    )
}

/// Translates labels from claims, from a list of pairs to a table.
fn labels_from_claim(source: &mut ImportSource, key: &str) {
    let Some(list) = source.take(key) else { return };
    let pair = |of: &Value| Some((of["key"].as_str()?.to_owned(), of["value"].clone()));
    let pairs: Option<Map<String, Value>> =
        list.as_array().and_then(|list| list.iter().map(pair).collect());
    match pairs.filter(|pairs| pairs.values().all(Value::is_string)) {
        Some(pairs) => source.taken(key, key, pairs),
        None => source.row(key, Mapping::Closed, "expected a list of `key` and `value`"),
    }
}

fn origins(source: &mut ImportSource) {
    let key = "client.allowed_origins";
    let list = match source.take(key) {
        Some(Value::Array(list)) => list,
        Some(Value::String(text)) => text.split_whitespace().map(Value::from).collect(),
        Some(_) => return source.row(key, Mapping::Closed, "expected a list of origins"),
        None => return,
    };
    let (known, unknown): (Vec<_>, Vec<_>) = list
        .into_iter()
        .partition(|origin| origin.as_str().is_some_and(|origin| origin_pattern(origin).is_ok()));
    for origin in unknown {
        let note =
            format!("{origin} is left out: write `https://example.com` or `https://*.example.com`");
        source.row(key, Mapping::Closed, note);
    }
    if !known.is_empty() {
        source.taken(key, key, known);
    }
}

/// Translates the server API and the addresses.
pub(super) fn server(source: &mut ImportSource) {
    let key = "http_api.key";
    if source.is_on("http_api.disabled") {
        source.take(key);
        source.row(
            "http_api.disabled",
            Mapping::Closed,
            "no key is taken, so that nobody calls the API",
        );
    } else if let Some(secret) = source.text(key) {
        match is_short(&secret) {
            true => source.row(key, Mapping::Closed, short("give it to the backend too")),
            false => source.taken(key, "api.keys.backend", secret),
        }
    }
    let secure = tls(source);
    let (address, port) = (source.text("http_server.address"), source.take("http_server.port"));
    let port = port.as_ref().and_then(count).and_then(|port| u16::try_from(port).ok());
    if address.is_some() || port.is_some() {
        let ip = match address.as_deref() {
            None | Some("") => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            Some("localhost") => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            Some(address) => address.trim_matches(['[', ']']).parse().ok(),
        };
        // A public address requires TLS, a token key and an API key.
        let has = |key: &str| source.out.pointer(key).is_some();
        let token = ["hmac_secret", "rsa_public_key", "ecdsa_public_key", "jwks_public_endpoint"];
        let token = token.into_iter().any(|key| has(&format!("/client/token/{key}")));
        let guarded = secure && token && has("/api/keys/backend");
        let ip = ip.filter(|ip| guarded || ip.is_loopback());
        let to =
            SocketAddr::new(ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), port.unwrap_or(8000));
        let note = match ip {
            Some(_) => format!("`server.client_addr` is {to}"),
            None => format!(
                "`server.client_addr` is {to}, for this machine alone, until keys keep others out"
            ),
        };
        let mapping = if ip.is_some() { Mapping::Taken } else { Mapping::Closed };
        let key = if address.is_some() { "http_server.address" } else { "http_server.port" };
        source.row(key, mapping, note);
        source.set(&Path::of("server.client_addr"), to.to_string());
    }
    let internal = source.text("http_server.internal_port").and_then(|port| port.parse().ok());
    if let Some(port) = internal {
        let to = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let note = format!("`server.admin_addr` is {to}; elsewhere it takes `admin.token`");
        source.row("http_server.internal_port", Mapping::Changed, note);
        source.set(&Path::of("server.admin_addr"), to.to_string());
    }
}

/// Translates the certificates. Returns false if connections would lose their encryption or client authentication.
fn tls(source: &mut ImportSource) -> bool {
    if source.is_on("http_server.tls_autocert.enabled") {
        source.take("http_server.tls_autocert");
        let note = "no certificate is fetched here: set `tls.certificates`, and let a program such as certbot renew it; this machine alone is served";
        source.row("http_server.tls_autocert.enabled", Mapping::Closed, note);
        return false;
    }
    let Some(given) = source.take("http_server.tls") else { return true };
    let text = |key: &str| given[key].as_str().filter(|text| !text.is_empty());
    let key = "http_server.tls";
    if !crate::import::source::switch(&given["enabled"]) {
        source.row(key, Mapping::Absent, "it is not enabled");
        return true;
    }
    let mut certificate = json!({});
    for (from, inline, file) in
        [("cert_pem", "chain", "chain_file"), ("key_pem", "key", "key_file")]
    {
        match text(from) {
            Some(pem) if pem.contains("-----BEGIN") => certificate[inline] = pem.into(),
            Some(path) if path.len() < 1024 && path.contains(['/', '.']) => {
                certificate[file] = path.into();
            }
            _ => {
                let note =
                    format!("`{from}` is neither PEM nor a file: this machine alone is served");
                source.row(key, Mapping::Closed, note);
                return false;
            }
        }
    }
    if let Some(ca) = text("client_ca_pem") {
        if !ca.contains("-----BEGIN") {
            let note =
                "`client_ca_pem` is not PEM: set `server.client_ingress.client_ca` to its text";
            source.row(key, Mapping::Closed, note);
            return false;
        }
        source.set(&Path::of("server.client_ingress.client_ca"), ca);
    }
    source.set(&Path::of("tls.certificates.main"), certificate);
    source.set(&Path::of("server.client_ingress.tls"), true);
    source.row(key, Mapping::Taken, "`tls.certificates.main`, `server.client_ingress`");
    true
}

/// Translates logging, and settings of features that are always on in Dunlin.
pub(super) fn rest(source: &mut ImportSource) {
    if let Some(level) = source.text("log.level") {
        let (to, mapping) = match level.as_str() {
            "trace" | "debug" | "info" | "warn" | "error" => (level.as_str(), Mapping::Taken),
            _ => ("error", Mapping::Changed),
        };
        source.set(&Path::of("log.level"), to);
        source.row("log.level", mapping, format!("`log.level` is {to}"));
    }
    for (key, note) in [
        (
            "prometheus.enabled",
            "`/metrics` on the admin port, always; its names are in docs/operating/metrics.md",
        ),
        ("health.enabled", "`/health` on the admin port, always"),
        ("sse.enabled", "always on"),
        ("http_stream.enabled", "always on"),
        ("uni_sse.enabled", "always on"),
        ("uni_http_stream.enabled", "always on"),
        ("uni_websocket.enabled", "always on"),
        ("websocket.disabled", "WebSocket is always on; it asks for the same token"),
    ] {
        if source.take(key).is_some() {
            source.row(key, Mapping::Changed, note);
        }
    }
}

/// Returns the reason why a key has no counterpart.
pub(super) fn absent_note(key: &str) -> String {
    let note = match key.split('.').next().unwrap_or_default() {
        "engine" | "broker" => "what channels live in is another one",
        "presence_manager" | "controller" => "presence is shared by `cluster.engine`",
        "map_broker" | "shared_poll" => "there are no such subscriptions",
        "admin" => "the admin port has `admin.token`, which you choose anew",
        "grpc_api" | "uni_grpc" => "there is no GRPC",
        "consumers" => "publish by the API; nothing is consumed",
        "opentelemetry" | "graphite" => "scrape `/metrics`",
        "usage_stats" | "usage_stats_disable" => "nothing is reported to anybody",
        "sockjs" | "sockjs_url" | "sockjs_handler_prefix" | "sockjs_heartbeat_delay" => {
            "there is no SockJS: clients use WebSocket, or HTTP stream and SSE"
        }
        "websocket_ping_interval" => "pings are those of the protocol: `client.ping_interval_ms`",
        _ => "",
    };
    note.to_owned()
}
