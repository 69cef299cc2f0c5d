//! Validates that the values of a configuration fit together.

use std::net::{IpAddr, SocketAddr};

use crate::entries;
use crate::error::{ConfigError, ConfigErrors};
use crate::index::Index;
use crate::path::Path;
use crate::placeholder;
use crate::pusher;
use crate::snapshot::changes;
use crate::{Ack, ChannelOptions, ClaimPath, Config, Inbox, Map, RecoveryMode, Serves, TokenRules};

/// Most bytes added to a publication on its way to a client: envelope, channel name, client info.
const ENVELOPE_BYTES: usize = 4_096;
/// Maximum number of labels of a connection, and maximum length of a name in bytes.
const LABELS_MAX: usize = 32;
const LABEL_NAME_BYTES_MAX: usize = 64;
/// Limits that follow from the memory of the process where they are 0.
const FOLLOW_MEMORY: [&str; 4] = [
    "history_bytes_max",
    "pending_bytes_max",
    "buffered_bytes_max",
    "buffered_bytes_per_address_max",
];

impl Config {
    /// Checks constraints between keys.
    ///
    /// # Errors
    /// Every error, with the key, a sentence and a fix. A configuration with errors must not be served: one of the
    /// errors is a public address without authentication.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        let mut errors = ConfigErrors::default();
        self.validate_changes(&Index::default(), &Config::default(), &mut errors);
        placeholder::judge(&changes(&Config::default(), self), &mut errors);
        errors.or(())
    }

    /// Like [`Config::validate`], but checks map entries only if they differ from a valid configuration; single keys
    /// are few and always checked. Returns the index of this configuration.
    pub(crate) fn validate_changes(
        &self,
        index: &Index,
        valid: &Config,
        errors: &mut ConfigErrors,
    ) -> Index {
        let mut index = index.clone();
        self.addresses(errors);
        self.client(errors);
        if self.pusher.pong_timeout_ms >= self.pusher.activity_timeout_ms {
            errors.add(
                "pusher.pong_timeout_ms",
                "the next ping would leave before the answer to this one is due",
                "set it below `pusher.activity_timeout_ms`",
            );
        }
        self.secrets(errors);
        entries::validate(self, valid, errors);
        index.follow(valid, self, errors);
        entries::references(self, valid, &index, errors);
        let options = &self.channel.without_namespace;
        if valid.channel.without_namespace != *options {
            channel(&Path::of("channel.without_namespace"), options, errors);
        }
        self.limits(errors);
        let is_target = |name: &str| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
            !name.is_empty() && name.bytes().all(is_part)
        };
        for name in self.log.targets.keys().filter(|name| !is_target(name)) {
            let error = ConfigError::new(Path::of("log.targets").join(name), "this is no target")
                .with_fix("name one of docs/operating/log.md, such as `dunlin::client`");
            errors.push(error);
        }
        if self.shutdown.drain_timeout_ms < self.shutdown.reconnect_spread_ms {
            errors.add(
                "shutdown.drain_timeout_ms",
                "the process would exit before every client was asked to reconnect",
                "set it to at least `shutdown.reconnect_spread_ms`",
            );
        }
        index
    }

    /// Returns warnings about settings that are valid but probably not meant.
    pub fn warnings(&self) -> Vec<ConfigError> {
        let lost = self.api.scopes.keys().filter(|name| !self.api.keys.contains_key(name));
        let mut warnings: Vec<ConfigError> = lost
            .map(|name| {
                let message = "there is no such key, and a key without a scope may do everything";
                ConfigError::new(Path::of("api.scopes").join(name), message)
                    .with_fix("name it as in `api.keys`, or remove it")
            })
            .collect();
        let mut warn = |path: &str, message: &str, fix: &str| {
            warnings.push(ConfigError::new(path.into(), message).with_fix(fix));
        };
        for (name, first) in pusher::shared(&self.pusher.apps) {
            let message =
                format!("it has the channels of the app {first:?}, private ones among them");
            let fix = "give each its own namespace or tenant, unless both are one application";
            warn(&format!("pusher.apps.{name}.namespace"), &message, fix);
        }
        // Tenants and apps have their own keys.
        let has_apps = !self.pusher.apps.is_empty() || !self.tenants.is_empty();
        let lets_in = self.client.anonymous || self.client.proxy.connect.is_some() || has_apps;
        if !self.client.token.rules().has_key() && !lets_in {
            warn(
                "client.token.hmac_secret",
                "no client can connect",
                "set it to the key your backend signs connection tokens with, or set \
                 `client.anonymous = true`",
            );
        }
        for (path, rules) in [
            ("client.token.jwks_public_endpoint", self.client.token.rules()),
            (
                "client.subscription_token.jwks_public_endpoint",
                self.client.subscription_token.rules(),
            ),
        ] {
            if rules.jwks.is_some_and(|jwks| is_plain_elsewhere(jwks.endpoint)) {
                let message = "an attacker on the path to it could answer with keys of their own";
                warn(path, message, "write https://");
            }
        }
        let options = || {
            self.channel.namespaces.values().chain(std::iter::once(&self.channel.without_namespace))
        };
        // Evaluated last: there may be ten thousand namespaces, and this runs after each change.
        let clients_publish = || {
            options().any(|options| {
                options.allow_publish_for_client
                    || options.allow_publish_for_subscriber
                    || options.allow_publish_for_anonymous
                    || options.publish_proxy.is_some()
            })
        };
        if self.api.keys.is_empty() && !self.api.without_key && !has_apps && !clients_publish() {
            warn("api.keys", "nobody can publish", "give your backend a key: `backend = \"...\"`");
        }
        let origins = &self.client.allowed_origins;
        let is_cookie = |name: &String| name.eq_ignore_ascii_case("Cookie");
        let cookies = self.proxies.iter().find(|(_, of)| of.http_headers.iter().any(is_cookie));
        let anybody = origins.iter().find(|origin| ["*", "null"].contains(&origin.as_str()));
        if let (Some(anybody), Some((proxy, _))) = (anybody, cookies) {
            let message = format!(
                "proxies.{proxy} does not get the cookies of pages that only {anybody:?} admits, as any page could use its visitor's"
            );
            let fix = "name your own pages: [\"https://example.com\"]";
            warn("client.allowed_origins", &message, fix);
        } else if origins.iter().any(|origin| origin == "*") {
            warn(
                "client.allowed_origins",
                "any web page may connect, from its visitor's machine and network",
                "name your own pages: [\"https://example.com\"]",
            );
        }
        if self.limits.connections_per_address_max > self.limits.connections_max {
            warn(
                "limits.connections_per_address_max",
                "it is above `limits.connections_max` and bounds nothing",
                "lower it, or set it to 0",
            );
        }
        let current = self.client.token.hmac_secret.as_ref();
        if current.is_some() && current == self.client.token.hmac_secret_previous.as_ref() {
            warn(
                "client.token.hmac_secret_previous",
                "it is the same as `client.token.hmac_secret`",
                "remove it once no token signed with the key before is in use",
            );
        }
        warnings
    }

    fn addresses(&self, errors: &mut ConfigErrors) {
        let client = self.server.client_addr;
        let serves = self.server.client_serves;
        self.exposed(client, serves, errors, || "server.client_addr".into());
        for (name, listener) in self.listeners.iter() {
            let path = || Path::of("listeners").join(name).join("addr");
            self.exposed(listener.addr, listener.serves, errors, path);
        }
        for (key, ingress) in [
            ("server.client_ingress", &self.server.client_ingress),
            ("server.admin_ingress", &self.server.admin_ingress),
        ] {
            entries::ingress(|| Path::of(key), ingress, self, errors);
        }
        let admin = self.server.admin_addr;
        if !is_loopback(admin) && !self.admin.demands_token() {
            errors.add(
                "server.admin_addr",
                format!("others can reach {admin}, and there is nothing to keep them out"),
                format!("set `admin.token`, or bind to 127.0.0.1:{}", admin.port()),
            );
        }
        if overlap(client, admin) {
            let message = match client == admin {
                true => format!("it is {admin}, as is `server.client_addr`"),
                false => format!("it is {admin}, and `server.client_addr` is {client}"),
            };
            errors.add("server.admin_addr", message, "give one of them another port");
        }
    }

    /// Checks that a public address requires authentication.
    fn exposed(
        &self,
        addr: SocketAddr,
        serves: Serves,
        errors: &mut ConfigErrors,
        path: impl Fn() -> Path,
    ) {
        if is_loopback(addr) {
            return;
        }
        let mut missing = Vec::new();
        // Tenants and apps of the Pusher protocol have their own keys for both; without other keys nobody else is admitted.
        let has_apps = !self.pusher.apps.is_empty() || !self.tenants.is_empty();
        if self.api.keys.is_empty() && !has_apps && serves != Serves::Clients {
            missing.push("an API key (`[api.keys]` with `backend = \"...\"`)");
        }
        let asked = self.client.proxy.connect.is_some() && !self.client.anonymous;
        let is_closed = has_apps && !self.client.anonymous;
        if !self.client.token.rules().has_key() && !asked && !is_closed && serves != Serves::Api {
            missing.push("client authentication (`client.token.hmac_secret = \"...\"`)");
        }
        if !missing.is_empty() {
            errors.add(
                path(),
                format!("others can reach {addr}, and there is nothing to keep them out"),
                format!("set {}, or bind to 127.0.0.1:{}", missing.join(" and "), addr.port()),
            );
        }
        if self.api.without_key {
            let message = format!("anyone who reaches {addr} could publish");
            errors.add("api.without_key", message, "set it to false, or bind to 127.0.0.1");
        }
        for (key, rules) in [
            ("client.token.short_hmac_secret", self.client.token.rules()),
            ("client.subscription_token.short_hmac_secret", self.client.subscription_token.rules()),
        ] {
            if rules.short_hmac_secret {
                let message = format!("anyone who reaches {addr} could find the key of a token");
                errors.add(key, message, "set it to false, or bind to 127.0.0.1");
            }
        }
    }

    fn client(&self, errors: &mut ConfigErrors) {
        let client = &self.client;
        if client.pong_timeout_ms >= client.ping_interval_ms {
            errors.add(
                "client.pong_timeout_ms",
                "the next ping would leave before the answer to this one is due",
                "set it below `client.ping_interval_ms`",
            );
        }
        if client.long_poll.timeout_ms > client.long_poll.timeout_ms_max {
            let message = "it is above `client.long_poll.timeout_ms_max`";
            errors.add("client.long_poll.timeout_ms", message, "lower it");
        }
        for (index, origin) in client.allowed_origins.iter().enumerate() {
            if let Err(fix) = origin_pattern(origin) {
                let path = Path::of("client.allowed_origins").join(index);
                errors.add(path, format!("{origin:?} is not an origin"), fix);
            }
        }
        tokens(&Path::of("client.token"), client.token.rules(), errors);
        let subscription = client.subscription_token.rules();
        tokens(&Path::of("client.subscription_token"), subscription, errors);
        if client.subscription_token.enabled && !subscription.has_key() {
            errors.add(
                "client.subscription_token.enabled",
                "it has no key, and every subscription token would be refused",
                "set `client.subscription_token.hmac_secret`, or leave `enabled` out",
            );
        }
    }

    fn secrets(&self, errors: &mut ConfigErrors) {
        entries::otlp(&self.otlp, errors);
        if let Some(secret) = &self.cluster.secret {
            entries::long_enough(Path::of("cluster.secret"), secret, errors);
        }
        if let Some(secret) = &self.admin.token {
            entries::bearer(&Path::of("admin.token"), secret, errors);
        }
    }

    fn limits(&self, errors: &mut ConfigErrors) {
        let limits = &self.limits;
        let publication = limits.publication_bytes_max;
        for (key, value, bound, because, fix) in [
            (
                "message_bytes_max",
                limits.message_bytes_max,
                limits.frame_bytes_max,
                "a message of one frame could not be as large as a frame may be",
                "`limits.frame_bytes_max`",
            ),
            (
                "outbox_bytes_max",
                limits.outbox_bytes_max,
                publication.saturating_add(ENVELOPE_BYTES),
                "the largest publication could never be delivered",
                "`limits.publication_bytes_max` + 4096",
            ),
            (
                "body_bytes_max",
                limits.body_bytes_max,
                publication,
                "the API could not take the largest publication",
                "`limits.publication_bytes_max`",
            ),
            (
                "pending_bytes_max",
                limits.pending_bytes_max,
                limits.outbox_bytes_max,
                "one client's outbox would not fit",
                "`limits.outbox_bytes_max`",
            ),
            (
                "history_bytes_max",
                limits.history_bytes_max,
                publication,
                "the largest publication could never be kept",
                "`limits.publication_bytes_max`",
            ),
        ] {
            // 0 follows from the memory, and is never below the bound.
            if value < bound && !(value == 0 && FOLLOW_MEMORY.contains(&key)) {
                let path = Path::of("limits").join(key);
                errors.add(path, because, format!("set it to at least {fix}"));
            }
        }
        let least = 1 << 20;
        for (key, value) in FOLLOW_MEMORY.into_iter().zip([
            limits.history_bytes_max,
            limits.pending_bytes_max,
            limits.buffered_bytes_max,
            limits.buffered_bytes_per_address_max,
        ]) {
            if (1..least).contains(&value) {
                let fix =
                    format!("set it to at least {least}, or to 0: it follows from the memory");
                errors.add(Path::of("limits").join(key), "it holds next to nothing", fix);
            }
        }
        if !limits.bus_slots.is_power_of_two() {
            let fix = format!("set it to {}", limits.bus_slots.next_power_of_two());
            errors.add("limits.bus_slots", "it is not a power of two", fix);
        }
    }
}

/// Checks labels from claims: their names and paths follow Centrifugo's rules.
fn labels_from_claim(path: &Path, labels: &Map<ClaimPath>, errors: &mut ConfigErrors) {
    if labels.len() > LABELS_MAX {
        let message = format!("there are {}", labels.len());
        errors.add(path.clone(), message, format!("a connection has at most {LABELS_MAX} labels"));
    }
    for (name, claim) in labels.iter() {
        let first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
        let is_name = name.bytes().all(|byte| first(byte) || byte.is_ascii_digit())
            && name.bytes().next().is_some_and(first)
            && name.len() <= LABEL_NAME_BYTES_MAX;
        if !is_name {
            let fix = "write letters, digits and `_`, at most 64, and no digit first";
            errors.add(path.join(name), "this is no name of a label", fix);
        }
        if !claim.is_legal() {
            let fix = "write names of claims with dots between them, in at most 256 bytes; `\\` before one of `@#[]{}*?!|`";
            errors.add(path.join(name), "this is no way to a claim", fix);
        }
    }
}

/// Checks the keys and rules of one kind of token.
fn tokens(path: &Path, rules: TokenRules<'_>, errors: &mut ConfigErrors) {
    if rules.hmac_secret.is_none() && rules.hmac_secret_previous.is_some() {
        errors.add(
            path.join("hmac_secret_previous"),
            format!("there is no current key, `{}`", path.join("hmac_secret")),
            "set the current key, or remove this one",
        );
    }
    for (key, secret) in
        [("hmac_secret", rules.hmac_secret), ("hmac_secret_previous", rules.hmac_secret_previous)]
    {
        if let Some(secret) = secret
            && !rules.short_hmac_secret
        {
            entries::long_enough(path.join(key), secret, errors);
        }
    }
    if let Some(labels) = rules.labels_from_claim {
        labels_from_claim(&path.join("labels_from_claim"), labels, errors);
    }
    for (key, exact, regex) in [
        ("audience_regex", rules.audience, rules.audience_regex),
        ("issuer_regex", rules.issuer, rules.issuer_regex),
    ] {
        if exact.is_some() && regex.is_some() {
            let plain = key.trim_end_matches("_regex");
            let message = format!("`{}` is set, too", path.join(plain));
            errors.add(path.join(key), message, "keep one of the two");
        }
    }
    for (key, claim) in [
        ("audience", rules.audience),
        ("issuer", rules.issuer),
        ("user_id_claim", rules.user_id_claim),
    ] {
        if claim == Some("") {
            let fix = "remove it, or write what your backend puts into tokens";
            errors.add(path.join(key), "it is empty, and every token would be refused", fix);
        }
    }
}

/// Checks the options of a namespace, or of channels without one.
pub(crate) fn channel(path: &Path, options: &ChannelOptions, errors: &mut ConfigErrors) {
    let mut push = |key, message, fix| errors.add(path.join(key), message, fix);
    let off = "nothing is kept, as the other of `history_size` and `history_ttl_ms` is 0";
    if options.history_size > 0 && options.history_ttl_ms == 0 {
        push("history_size", off, "set `history_ttl_ms` too");
    }
    if options.history_ttl_ms > 0 && options.history_size == 0 {
        push("history_ttl_ms", off, "set `history_size` too");
    }
    if options.history_meta_ttl_ms < options.history_ttl_ms {
        push(
            "history_meta_ttl_ms",
            "messages would outlive the offset they were numbered with",
            "set it to at least `history_ttl_ms`",
        );
    }
    let acks = options.ack != Ack::Off;
    if acks && !options.recover {
        push("ack", "what is not acknowledged comes again by recovery", "set `recover = true`");
    }
    if acks && options.force_recovery_mode != RecoveryMode::Stream {
        push(
            "ack",
            "a recovery of the last message alone skips others",
            "leave `force_recovery_mode` out",
        );
    }
    if options.inbox != Inbox::Off && !acks {
        push("inbox", "nobody would know what a user has read", "set `ack` too, or leave it out");
    }
    let again = options.ack_timeout_ms;
    for (key, on) in
        [("ack_timeout_ms", again > 0), ("ack_deliveries_max", options.ack_deliveries_max > 0)]
    {
        if on && !acks {
            push(key, "nobody acknowledges in this namespace", "set `ack` too, or leave it out");
        }
    }
    if (1..1_000).contains(&again) {
        push("ack_timeout_ms", "messages would come again before they are handled", "1000 or more");
    }
    if options.ack_deliveries_max > 0 && acks && again == 0 {
        let why = "it counts what comes again, which nothing does on a living connection";
        push("ack_deliveries_max", why, "set `ack_timeout_ms` too");
    }
    if options.ack_in_flight_max > 0 && again == 0 {
        let why = "a lost acknowledgement would stop the subscriber for ever";
        push("ack_in_flight_max", why, "set `ack_timeout_ms` too");
    }
    match (options.ack_deliveries_max, &options.ack_dead_letter) {
        (1.., None) => {
            let why = "nothing says where a message goes that is not acknowledged";
            push("ack_deliveries_max", why, "name a channel as `ack_dead_letter`");
        }
        (0, Some(_)) => {
            let why = "no message goes there without a bound of deliveries";
            push("ack_dead_letter", why, "set `ack_deliveries_max` too");
        }
        _ => {}
    }
    for (key, on) in [("recover", options.recover), ("positioned", options.positioned)] {
        if on && !options.has_history() {
            push(key, "it needs history", "set `history_size` and `history_ttl_ms`");
        }
    }
}

/// Checks an origin: `*`, `scheme://host`, `scheme://host:port`, `scheme://*.host`, or `null` (a sandboxed page). The
/// error says what to write instead.
pub(crate) fn origin_pattern(origin: &str) -> Result<(), String> {
    if origin == "*" || origin == "null" {
        return Ok(());
    }
    let Some((scheme, authority)) = origin.split_once("://") else {
        return Err(format!("write its scheme too: \"https://{}\"", origin.trim_end_matches('/')));
    };
    if let Some((authority, _)) = authority.split_once('/') {
        return Err(format!("an origin has no path, write \"{scheme}://{authority}\""));
    }
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let host = authority.strip_prefix("*.").unwrap_or(authority);
    let (host, port) = match host.rsplit_once(':') {
        // An IPv6 address contains colons.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port != 0)) {
        return Err("its port is no number from 1 to 65535".into());
    }
    if let ("https", Some("443")) | ("http", Some("80")) = (scheme, port) {
        let name = authority.rsplit_once(':').map_or(authority, |(name, _)| name);
        return Err(format!("browsers leave this port out: write \"{scheme}://{name}\""));
    }
    if !scheme.bytes().all(legal) || host.is_empty() || host.contains(['*', ' ', '?', '#', '@']) {
        return Err("write \"https://example.com\", \"https://*.example.com\", or \"*\"".into());
    }
    if origin.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(format!("browsers send it in lower case: {:?}", origin.to_ascii_lowercase()));
    }
    Ok(())
}

/// Returns whether a URL leads to another machine without TLS.
fn is_plain_elsewhere(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return false };
    let host = match rest.strip_prefix('[') {
        Some(v6) => v6.split(']').next(),
        None => rest.split(['/', ':', '?']).next(),
    };
    let host = host.unwrap_or_default();
    host != "localhost" && !host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns whether one of two addresses has a part of the other, so that the second cannot be bound.
pub(crate) fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let has = |any: SocketAddr, of: SocketAddr| {
        // The IPv6 address of all interfaces takes connections of IPv4 as well.
        any.ip().is_unspecified() && (any.is_ipv6() || of.is_ipv4())
    };
    one.port() == other.port()
        && one.port() != 0
        && (one == other || has(one, other) || has(other, one))
}

pub(crate) fn is_loopback(addr: SocketAddr) -> bool {
    match addr.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.to_canonical().is_loopback(),
    }
}
