//! Validates the entries of maps, each by itself, and their references to each other.

use std::sync::Arc;

use crate::Engine;
use crate::error::ConfigErrors;
use crate::index::Index;
use crate::ingress::{Ingress, parse_network};
use crate::path::Path;
use crate::pusher;
use crate::validate::{channel, overlap};
use crate::wildcards;
use crate::{
    AdminToken, ApnsConfig, Certificate, ChannelOptions, Config, EngineKind, FcmConfig, Hook,
    Inbox, Map, Member, OnError, Otlp, Program, Proxy, Secret, TENANT_BYTES_MAX, Tenant, Upstream,
    VapidConfig,
};

/// Minimum length of a key that cannot be guessed; also longer than a placeholder left in the file.
pub(crate) const SECRET_BYTES_MIN: usize = 16;
/// Maximum length of an entry's name.
const NAME_BYTES_MAX: usize = 255;
/// Maximum number of listeners: each has a socket on every worker.
const LISTENERS_MAX: usize = 64;

/// Checks every entry that differs from a valid configuration.
pub(crate) fn validate(config: &Config, valid: &Config, errors: &mut ConfigErrors) {
    let secret = |path: &Path, secret: &Secret, errors: &mut ConfigErrors| {
        long_enough(path.clone(), secret, errors);
    };
    each("api.keys", &valid.api.keys, &config.api.keys, errors, secret);
    each("api.scopes", &valid.api.scopes, &config.api.scopes, errors, |_, _, _| {});
    each("admin.tokens", &valid.admin.tokens, &config.admin.tokens, errors, admin_token);
    for (map, valid, now) in [
        ("client.token.keys", &valid.client.token.keys, &config.client.token.keys),
        (
            "client.subscription_token.keys",
            &valid.client.subscription_token.keys,
            &config.client.subscription_token.keys,
        ),
    ] {
        each(map, valid, now, errors, secret);
    }
    let all = (&config.channel.namespaces, &valid.channel.namespaces);
    namespaces(&Path::of("channel.namespaces"), all, (config, valid), errors);
    tenants(config, valid, errors);
    listeners(config, errors);
    each(
        "tls.certificates",
        &valid.tls.certificates,
        &config.tls.certificates,
        errors,
        certificate,
    );
    each("push.apns", &valid.push.apns, &config.push.apns, errors, apns);
    each("push.fcm", &valid.push.fcm, &config.push.fcm, errors, fcm);
    each("push.vapid", &valid.push.vapid, &config.push.vapid, errors, vapid);
    for (name, before, after) in config.webhooks.upstreams.changes_from(&valid.webhooks.upstreams) {
        let Some(after) = after else { continue };
        let path = Path::of("webhooks.upstreams").join(name);
        named(&path, name, errors);
        authority(&path, after, errors);
        if let Some(target) = &after.health_check.path {
            request_path(|| path.join("health_check").join("path"), target, errors);
        }
        let none = Upstream::default();
        let before = before.map_or(&none, |before| before);
        for (name, _, member) in after.members.changes_from(&before.members) {
            if let Some(after) = member {
                let path = path.join("members").join(name);
                named(&path, name, errors);
                self::member(&path, after, errors);
            }
        }
    }
    each("webhooks.hooks", &valid.webhooks.hooks, &config.webhooks.hooks, errors, hook);
    each("proxies", &valid.proxies, &config.proxies, errors, proxy);
    each("programs", &valid.programs, &config.programs, errors, program);
    programs(config, errors);
    each("engines", &valid.engines, &config.engines, errors, |path, engine, errors| {
        engine.validate(path, wrong_address, errors);
    });
    for (name, engine) in config.engines.iter() {
        if engine.timeout_ms >= config.limits.bus_request_timeout_ms {
            let path = Path::of("engines").join(name).join("timeout_ms");
            let message = "workers do not wait that long for each other";
            errors.add(path, message, "set it below `limits.bus_request_timeout_ms`");
        }
    }
    each("pusher.apps", &valid.pusher.apps, &config.pusher.apps, errors, pusher::app);
}

/// Checks that every upstream, proxy, engine and tenant that is named exists.
pub(crate) fn references(
    config: &Config,
    valid: &Config,
    index: &Index,
    errors: &mut ConfigErrors,
) {
    named_references(config, valid, errors);
    kept_by_engines(config, errors);
    wildcards::references(config, valid, errors);
    pusher::references(config, valid, errors);
    tenant_references(config, valid, errors);
    let upstreams = &config.webhooks.upstreams;
    let (none, before) = (Map::new(), &valid.webhooks.upstreams);
    // Removing an upstream also affects proxies that did not change.
    let gone = upstreams.changes_from(before).any(|(.., after)| after.is_none());
    for (name, _, after) in config.proxies.changes_from(if gone { &none } else { &valid.proxies }) {
        if let Some(upstream) = after.and_then(|proxy| proxy.upstream.as_ref())
            && !upstreams.contains_key(upstream)
        {
            let path = Path::of("proxies").join(name).join("upstream");
            let fix = "name one of `webhooks.upstreams`, or add it there";
            errors.add(path, format!("there is no upstream {upstream:?}"), fix);
        }
    }
    let mut missing = |name: &str, hook: &Hook| {
        errors.add(
            Path::of("webhooks.hooks").join(name).join("upstream"),
            format!("there is no upstream {:?}", hook.upstream),
            "name one of `webhooks.upstreams`, or add it there",
        );
    };
    for (name, _, after) in config.webhooks.hooks.changes_from(&valid.webhooks.hooks) {
        if let Some(hook) = after.filter(|hook| !upstreams.contains_key(&hook.upstream)) {
            missing(name, hook);
        }
    }
    for (gone, _, after) in upstreams.changes_from(&valid.webhooks.upstreams) {
        if after.is_some() || index.hooks_of(gone) == 0 {
            continue;
        }
        // The references are searched only for a change that is refused.
        for (name, hook) in config.webhooks.hooks.iter().filter(|(_, hook)| hook.upstream == *gone)
        {
            let reported = valid.webhooks.hooks.get(name).is_none_or(|before| before != hook);
            if !reported {
                missing(name, hook);
            }
        }
    }
}

fn named_references(config: &Config, valid: &Config, errors: &mut ConfigErrors) {
    let mut check = |path: &dyn Fn() -> Path, kind: &str, name: &Option<Arc<str>>| {
        let Some(name) = name else { return };
        let (is_there, map) = match kind {
            "engine" => (config.engines.contains_key(name), "engines"),
            _ => (
                config.proxies.contains_key(name) || config.programs.contains_key(name),
                "proxies` or `programs",
            ),
        };
        if !is_there {
            let fix = format!("name one of `{map}`, or add it there");
            errors.add(path(), format!("there is no {kind} {name:?}"), fix);
        }
    };
    let client = &config.client.proxy;
    for (key, name) in
        [("connect", &client.connect), ("refresh", &client.refresh), ("rpc", &client.rpc)]
    {
        check(&|| Path::of("client.proxy").join(key), "proxy", name);
    }
    for (namespace, of) in config.rpc.namespaces.iter() {
        let path = || Path::of("rpc.namespaces").join(namespace).join("proxy");
        check(&path, "proxy", &Some(Arc::clone(&of.proxy)));
    }
    check(&|| Path::of("cluster.engine"), "engine", &config.cluster.engine);
    let (mut unkept, mut lost, mut lost_inbox) = (Vec::new(), Vec::new(), None);
    let mut check_channel = |path: &dyn Fn() -> Path, options: &ChannelOptions| {
        check(&|| path().join("engine"), "engine", &options.engine);
        let engine = options.engine.as_ref().and_then(|name| config.engines.get(name));
        if options.durability.of_namespace().is_some()
            && engine.is_none_or(|of| of.kind != EngineKind::Disk)
        {
            unkept.push(path().join("durability"));
        }
        let letters = options.ack_dead_letter.as_ref();
        let of_letters = letters.map(|channel| config.channel.options(channel));
        if of_letters.is_some_and(|of| of.is_none_or(|of| of.ack_dead_letter.is_some())) {
            lost.push(path().join("ack_dead_letter"));
        }
        for (key, name) in [
            ("subscribe_proxy", &options.subscribe_proxy),
            ("sub_refresh_proxy", &options.sub_refresh_proxy),
            ("publish_proxy", &options.publish_proxy),
        ] {
            check(&|| path().join(key), "proxy", name);
        }
    };
    check_channel(&|| Path::of("channel.without_namespace"), &config.channel.without_namespace);
    if config.channel.without_namespace.inbox != Inbox::Off {
        lost_inbox = Some(Path::of("channel.without_namespace.inbox"));
    }
    // Removing a proxy or an engine, and another kind of engine, also affects namespaces that did not change.
    let none = Map::new();
    let is_other = |before: Option<&Engine>, after: Option<&Engine>| {
        after.map(|engine| engine.kind) != before.map(|engine| engine.kind)
    };
    let gone = config.proxies.changes_from(&valid.proxies).any(|(_, _, after)| after.is_none())
        || config.programs.changes_from(&valid.programs).any(|(_, _, after)| after.is_none())
        || (config.engines.changes_from(&valid.engines)).any(|(_, before, after)| {
            before.is_some() && is_other(before.map(|of| &**of), after.map(|of| &**of))
        });
    let compared = if gone { &none } else { &valid.channel.namespaces };
    for (name, _, after) in config.channel.namespaces.changes_from(compared) {
        if let Some(after) = after {
            check_channel(&|| Path::of("channel.namespaces").join(name), after);
        }
    }
    if let Some(path) = lost_inbox {
        let fix = "set it in a namespace: `[channel.namespaces.inbox]`";
        errors.add(path, "a channel without a namespace is no inbox", fix);
    }
    for path in lost {
        let fix = "name a channel of a namespace that exists and has no `ack_dead_letter` itself";
        errors.add(path, "messages would go to no channel, or round in circles", fix);
    }
    for path in unkept {
        let fix = "leave it out, or name an `engine` of type \"disk\"";
        errors.add(path, "its engine cannot tell what a publication survives", fix);
    }
}

/// Checks that engines can store what their namespaces keep, and that the cluster's engine supports clusters. A change
/// of an engine affects all its namespaces, so all are checked.
fn kept_by_engines(config: &Config, errors: &mut ConfigErrors) {
    if config.engines.iter().all(|(_, engine)| engine.kind == EngineKind::Redis) {
        return;
    }
    let met = config.cluster.engine.as_ref().and_then(|name| config.engines.get(name));
    if met.is_some_and(|engine| engine.kind == EngineKind::Nats && !engine.jetstream) {
        let fix = "set `jetstream = true` of it, or name another";
        errors.add(Path::of("cluster.engine"), "nodes meet in JetStream, which it has not", fix);
    }
    if met.is_some_and(|engine| engine.kind == EngineKind::Disk) {
        let fix = "name an engine of type \"redis\" or \"nats\"";
        errors.add(Path::of("cluster.engine"), "a disk of this machine is no place to meet", fix);
    }
    if met.is_some_and(|engine| engine.raw) {
        let fix = "name an engine without `raw`; it may have the same addresses";
        errors.add(Path::of("cluster.engine"), "nodes meet in subjects of their own", fix);
    }
    let mut check = |path: Path, options: &ChannelOptions| {
        let engine = options.engine.as_ref().and_then(|name| config.engines.get(name));
        if engine.is_some_and(|engine| engine.kind == EngineKind::Disk)
            && config.cluster.engine.is_some()
        {
            let message =
                "its engine is on a disk of one node, and the nodes of a cluster share channels";
            let fix = "name an engine of type \"redis\" or \"nats\"; for durable history in NATS, one with JetStream";
            errors.add(path.join("engine"), message, fix);
        }
        if let Some(engine) = engine {
            engine.validate_namespace(&path, options, errors);
        }
    };
    check(Path::of("channel.without_namespace"), &config.channel.without_namespace);
    for (name, options) in config.channel.namespaces.iter() {
        check(Path::of("channel.namespaces").join(name), options);
    }
}

/// The most programs: each has a machine on each worker.
const PROGRAMS_MAX: usize = 64;

/// A path of clients that no program may have.
const EMULATION: &str = "/emulation";

fn programs(config: &Config, errors: &mut ConfigErrors) {
    if config.programs.len() > PROGRAMS_MAX {
        let message =
            format!("there are {}; each takes memory on each worker", config.programs.len());
        errors.add(Path::of("programs"), message, format!("leave at most {PROGRAMS_MAX}"));
    }
}

fn program(path: &Path, program: &Program, errors: &mut ConfigErrors) {
    if program.source.trim().is_empty() {
        let fix = "set it to the program's text, which `dunlin program check FILE` has accepted";
        errors.add(path.join("source"), "it is not set", fix);
    }
    if program.on_error == OnError::Unset {
        let fix = "set it to \"deny\" or to \"allow\"";
        errors.add(path.join("on_error"), "nothing is chosen, and a program may fail", fix);
    }
    let target = &*program.websocket_path;
    if !target.is_empty() && (!target.starts_with('/') || target.contains(['?', '#', ' '])) {
        let fix = "write a path that begins with a slash: \"/irc\"";
        errors.add(path.join("websocket_path"), format!("{target:?} is no path"), fix);
    }
    let own = ["/api", "/app", "/connection", EMULATION];
    if own.iter().any(|of| {
        target == *of || target.starts_with(&format!("{of}/")) || target.starts_with("/apps/")
    }) {
        let message = format!("{target:?} is served already");
        errors.add(path.join("websocket_path"), message, "choose another path");
    }
    if !(1..=1 << 20).contains(&program.frame_bytes_max) {
        let fix = "set it from 1 to 1048576";
        errors.add(path.join("frame_bytes_max"), "a frame would have no bound", fix);
    }
}

/// Checks the name and the value of every entry that is new or different.
fn each<T: PartialEq>(
    map: &str,
    valid: &Map<T>,
    now: &Map<T>,
    errors: &mut ConfigErrors,
    check: impl Fn(&Path, &T, &mut ConfigErrors),
) {
    for (name, _, after) in now.changes_from(valid) {
        if let Some(after) = after {
            let path = Path::of(map).join(name);
            named(&path, name, errors);
            check(&path, after, errors);
        }
    }
}

fn named(path: &Path, name: &str, errors: &mut ConfigErrors) {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let message = match name {
            "" => "it has no name".to_owned(),
            name => format!("{:?} is no name", name.chars().take(40).collect::<String>()),
        };
        let fix = format!(
            "name it after what it is, in at most {NAME_BYTES_MAX} bytes without control characters"
        );
        errors.add(path.clone(), message, fix);
    }
}

pub(crate) fn long_enough(path: impl Into<Path>, secret: &Secret, errors: &mut ConfigErrors) {
    if secret.reveal().len() < SECRET_BYTES_MIN {
        let message = format!("it is shorter than {SECRET_BYTES_MIN} bytes");
        errors.add(path, message, "make one with `openssl rand -hex 32`");
    }
}

fn admin_token(path: &Path, token: &AdminToken, errors: &mut ConfigErrors) {
    let path = path.join("token");
    match &token.token {
        Some(secret) => bearer(&path, secret, errors),
        None => errors.add(path, "it is not set", "make one with `openssl rand -hex 32`"),
    }
}

/// Checks a secret that is sent in an `Authorization` header.
pub(crate) fn bearer(path: &Path, secret: &Secret, errors: &mut ConfigErrors) {
    long_enough(path.clone(), secret, errors);
    let shown = secret.reveal();
    if shown.trim() != shown || shown.chars().any(char::is_control) {
        let message = "no header can carry it: there are blanks or line ends around it";
        errors.add(path.clone(), message, "remove them");
    }
}

/// Checks namespaces that are new or different; `of` are the new and the previous ones.
fn namespaces(
    path: &Path,
    of: (&Map<ChannelOptions>, &Map<ChannelOptions>),
    (config, valid): (&Config, &Config),
    errors: &mut ConfigErrors,
) {
    let channel_bytes_max = config.limits.channel_bytes_max;
    // A lower limit also affects namespaces that did not change.
    let none = Map::new();
    let lower = channel_bytes_max < valid.limits.channel_bytes_max;
    for (name, _, after) in of.0.changes_from(if lower { &none } else { of.1 }) {
        let Some(after) = after else { continue };
        let path = path.join(name);
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || !name.bytes().all(legal) {
            let fix = "use letters, digits, `-`, `_` and `.`";
            errors.add(path.clone(), "this is not a namespace's name", fix);
        } else if name.len() + 1 >= channel_bytes_max {
            let message = "no channel of it fits `limits.channel_bytes_max`";
            errors.add(path.clone(), message, "shorten the name, or raise the limit");
        }
        channel(&path, after, errors);
    }
}

fn tenants(config: &Config, valid: &Config, errors: &mut ConfigErrors) {
    let nothing = Tenant::default();
    for (name, before, after) in config.tenants.changes_from(&valid.tenants) {
        let Some(after) = after else { continue };
        let before = before.map_or(&nothing, |of| of);
        let path = Path::of("tenants").join(name);
        if !Tenant::is_name(name) {
            let fix = format!("write letters, digits, `-` and `_`, at most {TENANT_BYTES_MAX}");
            errors.add(path.clone(), "this is not a tenant's name", fix);
        }
        for (key, before, after) in [
            ("api_keys", &before.api_keys, &after.api_keys),
            ("token_keys", &before.token_keys, &after.token_keys),
        ] {
            for (name, _, secret) in after.changes_from(before) {
                let Some(secret) = secret else { continue };
                let path = path.join(key).join(name);
                named(&path, name, errors);
                long_enough(path, secret, errors);
            }
        }
        let all = (&after.namespaces, &before.namespaces);
        namespaces(&path.join("namespaces"), all, (config, valid), errors);
        channel(&path.join("without_namespace"), &after.without_namespace, errors);
        let named = after.namespaces.iter();
        let named = named.map(|(name, options)| (path.join("namespaces").join(name), options));
        let without = (path.join("without_namespace"), &after.without_namespace);
        for (path, options) in named.chain([without]) {
            not_of_tenants(&path, options, errors);
        }
    }
    // Either of the two maps may have changed.
    let known = &config.client.token.keys;
    if known.is_same(&valid.client.token.keys) && config.tenants.is_same(&valid.tenants) {
        return;
    }
    for (name, tenant) in config.tenants.iter() {
        for kid in tenant.token_keys.keys().filter(|kid| known.contains_key(kid)) {
            let path = Path::of("tenants").join(name).join("token_keys").join(kid);
            let message = "a key of `client.token.keys` has this id, and it says whose a token is";
            errors.add(path, message, "give one of them another");
        }
    }
}

/// Checks that every tenant named by a hook exists.
fn tenant_references(config: &Config, valid: &Config, errors: &mut ConfigErrors) {
    let is_less = config.tenants.changes_from(&valid.tenants).any(|(.., after)| after.is_none());
    let none = Map::new();
    let compared = if is_less { &none } else { &valid.webhooks.hooks };
    for (name, _, after) in config.webhooks.hooks.changes_from(compared) {
        if let Some(tenant) = after.and_then(|hook| hook.tenant.as_ref())
            && !config.tenants.contains_key(tenant)
        {
            let path = Path::of("webhooks.hooks").join(name).join("tenant");
            let fix = "name one of `tenants`, or take the hook away first";
            errors.add(path, format!("there is no tenant {tenant:?}"), fix);
        }
    }
}

/// Refuses options that a tenant's namespaces cannot have: they are set for the tenant as a whole, or not available.
fn not_of_tenants(path: &Path, of: &ChannelOptions, errors: &mut ConfigErrors) {
    let default = ChannelOptions::default();
    for (key, is_set, fix) in [
        ("engine", of.engine.is_some(), "leave it out: a tenant's channels are in memory"),
        ("wildcards", of.wildcards, "leave it out: a tenant's channels are in memory"),
        (
            "durability",
            of.durability != default.durability,
            "leave it out: a tenant's channels are in memory",
        ),
        ("subscribe_proxy", of.subscribe_proxy.is_some(), "leave it out, and use tokens"),
        ("sub_refresh_proxy", of.sub_refresh_proxy.is_some(), "leave it out, and use tokens"),
        ("publish_proxy", of.publish_proxy.is_some(), "leave it out"),
        ("channels_max", of.channels_max > 0, "set the tenant's own `channels_max`"),
        ("history_bytes_max", of.history_bytes_max > 0, "set the tenant's own `history_bytes_max`"),
        ("pacing", of.pacing != default.pacing, "leave it out"),
        ("budget", of.budget != default.budget, "set the tenant's own `budget`"),
    ] {
        if is_set {
            errors.add(path.join(key), "a namespace of a tenant does not have it", fix);
        }
    }
}

fn listeners(config: &Config, errors: &mut ConfigErrors) {
    let listeners = &config.listeners;
    if listeners.len() > LISTENERS_MAX {
        let message = format!("there are {} listeners", listeners.len());
        let fix = format!("keep at most {LISTENERS_MAX}; one address serves everyone");
        return errors.add("listeners", message, fix);
    }
    if listeners.is_empty() {
        return;
    }
    let admin = config.server.admin_addr;
    let mut taken = vec![("`server.client_addr`".to_owned(), config.server.client_addr)];
    for (name, listener) in listeners.iter() {
        let path = Path::of("listeners").join(name);
        named(&path, name, errors);
        let addr = listener.addr;
        if let Some((other, _)) = taken.iter().find(|(_, a)| *a == addr && addr.port() != 0) {
            let message = format!("it is {addr}, as is {other}");
            errors.add(path.join("addr"), message, "give one of them another port");
        }
        if config.server.admin_tcp && overlap(addr, admin) {
            let message = match addr == admin {
                true => format!("it is {addr}, as is `server.admin_addr`"),
                false => format!("it is {addr}, and `server.admin_addr` is {admin}"),
            };
            errors.add(path.join("addr"), message, "give one of them another port");
        }
        if addr.port() == 0 {
            let message = "nobody would know which port that is";
            errors.add(path.join("addr"), message, "name its port; it is 0");
        }
        ingress(|| path.join("ingress"), &listener.ingress, config, errors);
        if let Some(program) = &listener.program
            && !config.programs.contains_key(program)
        {
            let message = format!("there is no program {program:?}");
            errors.add(path.join("program"), message, "name one of `programs`, or add it there");
        }
        taken.push((format!("`{path}`"), addr));
    }
}

/// Checks the proxies and the TLS settings of an address.
pub(crate) fn ingress(
    path: impl Fn() -> Path,
    ingress: &Ingress,
    config: &Config,
    errors: &mut ConfigErrors,
) {
    for (index, network) in ingress.trusted_proxies.iter().enumerate() {
        if parse_network(network).is_none() {
            errors.add(
                path().join("trusted_proxies").join(index),
                format!("{network:?} is no network"),
                "write \"10.0.0.0/8\", \"2001:db8::/32\" or \"192.0.2.7\"",
            );
        }
    }
    let mut push = |key, message, fix| errors.add(path().join(key), message, fix);
    if ingress.client_ca.is_some() && !ingress.tls {
        let fix = "set `tls = true`, or remove it";
        push("client_ca", "nobody shows a certificate without TLS", fix);
    }
    if ingress.tls && config.tls.certificates.is_empty() {
        let fix = "add one: `tls.certificates.NAME = { chain_file = \"...\", key_file = \"...\" }`";
        push("tls", "there is no certificate", fix);
    }
    if ingress.proxy_protocol && ingress.trusted_proxies.is_empty() {
        let fix = "name the proxies in `trusted_proxies`";
        push("proxy_protocol", "nobody may send its header", fix);
    }
}

fn authority(path: &Path, upstream: &Upstream, errors: &mut ConfigErrors) {
    let Some(ca) = &upstream.ca else { return };
    let mut push = |message, fix| errors.add(path.join("ca"), message, fix);
    if !upstream.tls {
        push("its members are not spoken to by TLS", "set `tls = true`, or remove it");
    }
    if !ca.contains("-----BEGIN CERTIFICATE-----") || !ca.contains("-----END CERTIFICATE-----") {
        push("there is no certificate in PEM in it", "set it to the text of the .pem file");
    }
}

fn member(path: &Path, member: &Member, errors: &mut ConfigErrors) {
    if let Some(wrong) = wrong_address(&member.address) {
        errors.add(path.join("address"), wrong, "write host and port, as in \"10.0.0.7:8080\"");
    }
}

/// Returns why this is not a host and port, if it is not.
pub(crate) fn wrong_address(address: &str) -> Option<&'static str> {
    match address.rsplit_once(':') {
        _ if address.is_empty() => Some("it is not set"),
        Some((_, port)) if !port.parse::<u16>().is_ok_and(|port| port != 0) => {
            Some("its port is no number from 1 to 65535")
        }
        Some((host, _)) if !is_host(host) => Some("its host is no name and no IP address"),
        Some(_) => None,
        None => Some("it has no port"),
    }
}

/// Returns whether this is a name, an IPv4 address, or an IPv6 address in brackets.
fn is_host(host: &str) -> bool {
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !host.is_empty() && host.len() <= 253 && host.bytes().all(legal)
        }
    }
}

/// Checks the URL of a backend with a single address.
fn url(path: &Path, proxy: &Proxy, errors: &mut ConfigErrors) {
    let endpoint = &*proxy.endpoint;
    if !is_http_url(endpoint) {
        let message = if endpoint.is_empty() { "it is not set" } else { "this is no URL of HTTP" };
        let fix = "write \"http://10.0.0.7:3000/path\", or name an `upstream`";
        errors.add(path.join("endpoint"), message, fix);
    }
    if proxy.ca.is_some() && !endpoint.starts_with("https://") {
        let fix = "begin `endpoint` with `https://`, or remove it";
        errors.add(path.join("ca"), "the backend is not spoken to by TLS", fix);
    }
}

/// Checks the collector of traces and metrics.
pub(crate) fn otlp(otlp: &Otlp, errors: &mut ConfigErrors) {
    let path = Path::of("otlp");
    if !otlp.endpoint.is_empty() && !is_http_url(&otlp.endpoint) {
        let fix = "write \"http://127.0.0.1:4318\"";
        errors.add(path.join("endpoint"), "this is no URL of HTTP", fix);
    }
    if otlp.ca.is_some() && !otlp.endpoint.starts_with("https://") {
        let fix = "begin `endpoint` with `https://`, or remove it";
        errors.add(path.join("ca"), "the collector is not spoken to by TLS", fix);
    }
    headers(&path, "headers", &otlp.headers, errors);
}

/// Checks headers with their values.
fn headers(path: &Path, key: &str, headers: &Map<Secret>, errors: &mut ConfigErrors) {
    for (name, value) in headers.iter() {
        header_name(|| path.join(key).join(name), name, errors);
        if value.reveal().bytes().any(|byte| byte.is_ascii_control()) {
            let path = path.join(key).join(name);
            errors.add(path, "no header can carry it", "remove line ends and control characters");
        }
    }
}

fn is_http_url(endpoint: &str) -> bool {
    let schemes = ["http://", "https://"];
    let rest = schemes.iter().find_map(|scheme| endpoint.strip_prefix(scheme));
    let (authority, target) = rest.map_or(("", ""), |rest| match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    });
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok_and(|port| port != 0) => host,
        _ => authority,
    };
    let legal = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    rest.is_some() && is_host(host) && target.bytes().all(legal)
}

fn proxy(path: &Path, proxy: &Proxy, errors: &mut ConfigErrors) {
    let endpoint = &*proxy.endpoint;
    if proxy.upstream.is_some() {
        request_path(|| path.join("endpoint"), endpoint, errors);
        if proxy.ca.is_some() {
            let fix = "set the upstream's, and remove this one";
            errors.add(path.join("ca"), "the upstream says whom to trust", fix);
        }
    } else {
        url(path, proxy, errors);
    }
    if let Some(ca) = &proxy.ca
        && !ca.contains("-----BEGIN CERTIFICATE-----")
    {
        let fix = "set it to the text of the .pem file";
        errors.add(path.join("ca"), "there is no certificate in PEM in it", fix);
    }
    let listed =
        [("http_headers", &proxy.http_headers), ("emulated_headers", &proxy.emulated_headers)];
    for (key, names) in listed {
        for (index, name) in names.iter().enumerate() {
            header_name(|| path.join(key).join(index), name, errors);
        }
    }
    headers(path, "static_headers", &proxy.static_headers, errors);
}

/// Checks a header name (RFC 9110 §5.1). Headers that frame the request or that the server sets itself are refused.
fn header_name(path: impl Fn() -> Path, name: &str, errors: &mut ConfigErrors) {
    const OWN: [&str; 8] = [
        "host",
        "content-length",
        "content-type",
        "transfer-encoding",
        "connection",
        "upgrade",
        "te",
        "expect",
    ];
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(legal) {
        errors.add(path(), format!("{name:?} is no name of a header"), "write \"Cookie\"");
    } else if OWN.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        errors.add(path(), format!("{name} is what the request itself says"), "remove it");
    }
}

/// Checks a request target (RFC 9112 §3.2.1); a fragment is never sent.
fn request_path(path: impl Fn() -> Path, target: &str, errors: &mut ConfigErrors) {
    let legal = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    if !target.starts_with('/') || !target.bytes().all(legal) {
        let fix = "begin it with `/`, leave `#` out, and write a blank as `%20`, `ü` as `%C3%BC`";
        errors.add(path(), "this is no path of a request", fix);
    }
}

fn hook(path: &Path, hook: &Hook, errors: &mut ConfigErrors) {
    request_path(|| path.join("path"), &hook.path, errors);
    if hook.events.is_empty() {
        errors.add(path.join("events"), "it gets no events", "name events, as in [\"publish\"]");
    }
    if let Some(secret) = &hook.secret {
        long_enough(path.join("secret"), secret, errors);
    }
}

fn certificate(path: &Path, certificate: &Certificate, errors: &mut ConfigErrors) {
    let mut one_of = |key: &str, inline: bool, file: bool| {
        let (message, fix) = match (inline, file) {
            (true, true) => ("it is set twice, inline and as a file", "keep one of the two"),
            (false, false) => ("it is not set", "set it, or name its file"),
            _ => return,
        };
        errors.add(path.join(key), message, fix);
    };
    one_of("chain", certificate.chain.is_some(), certificate.chain_file.is_some());
    one_of("key", certificate.key.is_some(), certificate.key_file.is_some());
}

fn apns(path: &Path, apns: &ApnsConfig, errors: &mut ConfigErrors) {
    let mut push = |key, message, fix| errors.add(path.join(key), message, fix);
    if apns.topic.is_empty() {
        push("topic", "it is not set", "set it to the app's bundle id");
    }
    match (&apns.key, &apns.certificate) {
        (Some(_), Some(_)) => {
            push("certificate", "there is a signing key too", "keep one of the two");
        }
        (None, None) => push(
            "key",
            "there is neither a signing key nor a certificate",
            "set `key`, `key_id` and `team_id`, or `certificate`",
        ),
        (Some(key), None) => {
            if !key.reveal().contains("-----BEGIN PRIVATE KEY-----") {
                push("key", "this is no private key in PEM", "set it to the text of the .p8 file");
            }
            for (name, id) in [("key_id", &apns.key_id), ("team_id", &apns.team_id)] {
                let id = id.as_deref().unwrap_or_default();
                if id.len() != 10 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                    push(name, "it is not ten letters and digits", "copy it from the account");
                }
            }
        }
        (None, Some(_)) => {}
    }
}

fn fcm(path: &Path, fcm: &FcmConfig, errors: &mut ConfigErrors) {
    let account = fcm.service_account.as_ref().map(|account| {
        serde_json::from_str::<serde_json::Value>(account.reveal()).unwrap_or_default()
    });
    let wrong = match &account {
        None => "it is not set".to_owned(),
        Some(account) => {
            let keys = ["project_id", "client_email", "private_key"];
            match keys.iter().find(|key| !account[**key].is_string()) {
                Some(key) => format!("this is no service account: it has no \"{key}\""),
                None => return,
            }
        }
    };
    let fix = "set it to the text of the JSON file that the console gives";
    errors.add(path.join("service_account"), wrong, fix);
}

fn vapid(path: &Path, vapid: &VapidConfig, errors: &mut ConfigErrors) {
    if vapid.private_key.is_none() {
        let fix = "make one with `openssl ecparam -genkey -name prime256v1`";
        errors.add(path.join("private_key"), "it is not set", fix);
    }
    if !["mailto:", "https://"].iter().any(|scheme| vapid.subject.starts_with(scheme)) {
        errors.add(
            path.join("subject"),
            "this is no address a push service could write to",
            "write \"mailto:ops@example.com\" or an https address",
        );
    }
    for (index, host) in vapid.hosts.iter().enumerate() {
        // Hosts are compared with endpoints as browsers write them: in lower case, without a scheme.
        let name = host.strip_prefix('.').unwrap_or(host);
        if !is_host(name) || name.starts_with('.') || name.bytes().any(|b| b.is_ascii_uppercase()) {
            errors.add(
                path.join("hosts").join(index),
                format!("{host:?} is the host of no endpoint"),
                "write the name alone, in lower case: \"push.example.com\", or \".example.com\"",
            );
        }
    }
}
