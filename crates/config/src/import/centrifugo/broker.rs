//! Translates the NATS broker to an engine that all namespaces use.

use serde_json::{Value, json};

use super::engine::refused;
use crate::entries::wrong_address;
use crate::error::ConfigErrors;
use crate::import::report::Mapping;
use crate::import::source::{ImportSource, milliseconds, switch};
use crate::import::store::NAME;
use crate::import::variables::has_reference;
use crate::path::Path;
use crate::redis_url::decoded;

/// Translates the broker. Runs after the namespaces are translated, because it assigns them to the engine.
///
/// # Errors
/// Its subjects or servers cannot be taken, and `without_engine` is not set.
pub(super) fn broker(source: &mut ImportSource, without_engine: bool) -> Result<(), ConfigErrors> {
    let is_nats = source.peek("broker.type").and_then(Value::as_str) == Some("nats");
    if !is_nats || !source.peek("broker.enabled").is_some_and(switch) {
        return Ok(());
    }
    let Ok(raw) = Raw::of(source) else {
        let why = "its subjects cannot be the same: a prefix ends with a dot, and `:` alone is replaced, by `.`";
        source.take("broker.nats");
        return refused(source, "broker.nats.raw_mode", why.to_owned(), without_engine);
    };
    let url = source.peek("broker.nats.url").cloned().unwrap_or(json!("nats://localhost:4222"));
    let servers = url.as_str().filter(|url| !has_reference(url)).and_then(Servers::of);
    let Some(servers) = servers else {
        source.take("broker.nats");
        let why = "it cannot be read as URLs of NATS".to_owned();
        return refused(source, "broker.nats.url", why, without_engine);
    };
    let mut engine = json!({ "type": "nats", "addresses": servers.addresses, "tls": servers.tls });
    for (key, value) in
        [("user", &servers.user), ("password", &servers.password), ("token", &servers.token)]
    {
        if let Some(value) = value {
            engine[key] = value.as_str().into();
        }
    }
    for key in ["broker.enabled", "broker.type", "broker.nats.url"] {
        source.take(key);
    }
    source.row("broker.type", Mapping::Changed, "`engines.main`, which every namespace names");
    source.row("broker.nats.url", Mapping::Taken, "`engines.main.addresses`, and the login");
    tls(source, &mut engine);
    if let Some(ms) = source.take("broker.nats.dial_timeout").as_ref().and_then(milliseconds) {
        engine["connect_timeout_ms"] = ms.clamp(10, 60_000).into();
        let note = "`engines.main.connect_timeout_ms`";
        source.row("broker.nats.dial_timeout", Mapping::Taken, note);
    }
    if let Some(prefix) = source.text("broker.nats.prefix") {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let fits = prefix.len() <= 64 && prefix.bytes().all(is_plain);
        let note = match fits {
            true => "`engines.main.prefix`; messages of Centrifugo and Dunlin are not the same",
            false => "a stream cannot be called so: `engines.main.prefix` has its default",
        };
        if fits {
            engine["prefix"] = prefix.into();
        }
        source.row("broker.nats.prefix", Mapping::Changed, note);
    }
    let wildcards = source.take("broker.nats.allow_wildcards");
    let has_wildcards = wildcards.as_ref().is_some_and(switch);
    if wildcards.is_some() {
        let (mapping, note) = match has_wildcards {
            true => {
                (Mapping::Changed, "`wildcards` of each namespace; none matches beyond its own")
            }
            false => (Mapping::Taken, "`wildcards` of no namespace"),
        };
        source.row("broker.nats.allow_wildcards", mapping, note);
    }
    // Centrifugo's NATS broker stores nothing: JetStream is needed only for namespaces with history.
    engine["jetstream"] = name_engine(source, has_wildcards, raw.as_ref()).into();
    if let Some(raw) = raw {
        source.take("broker.nats.raw_mode");
        engine["raw"] = true.into();
        engine["raw_prefix"] = raw.prefix.into();
        engine["raw_separator"] = raw.separator.into();
        let note =
            "`engines.main.raw`; of what its namespaces keep nothing is left, as in Centrifugo";
        source.row("broker.nats.raw_mode", Mapping::Changed, note);
    }
    source.set(&Path::of("engines").join(NAME), engine);
    Ok(())
}

/// Assigns every namespace to the engine. Returns whether any has history.
fn name_engine(source: &mut ImportSource, has_wildcards: bool, raw: Option<&Raw>) -> bool {
    let namespaces = source.out.pointer("/channel/namespaces").and_then(Value::as_object);
    let names: Vec<String> = namespaces.into_iter().flat_map(|all| all.keys().cloned()).collect();
    let without = Path::of("channel.without_namespace");
    let mut paths = Vec::new();
    if raw.is_some_and(|raw| raw.prefix.is_empty() || raw.separator == ".") {
        let note = "without `raw_prefix`, or with `.` for `:`, they would reach subjects of all: they stay in memory";
        source.row("channel.without_namespace", Mapping::Closed, note);
    } else {
        paths.push(without);
    }
    paths.extend(names.iter().map(|name| Path::of("channel.namespaces").join(name)));
    let mut keeps = false;
    for path in paths {
        source.set(&path.join("engine"), NAME);
        if raw.is_some()
            && let Some(options) =
                source.out.pointer_mut(&path.pointer()).and_then(Value::as_object_mut)
        {
            options.retain(|key, _| !NOT_RAW.contains(&key.as_str()));
        }
        if has_wildcards {
            source.set(&path.join("wildcards"), true);
        }
        let size = source.out.pointer(&path.join("history_size").pointer());
        keeps |= size.and_then(Value::as_u64).is_some_and(|size| size > 0);
    }
    keeps
}

/// Options that channels of a raw engine cannot have.
const NOT_RAW: [&str; 9] = [
    "history_size",
    "history_ttl_ms",
    "recover",
    "positioned",
    "presence",
    "join_leave",
    "allowed_delta_types",
    "delta_publish",
    "allow_tags_filter",
];

/// The mapping of channels to subjects in raw mode.
struct Raw {
    prefix: String,
    separator: &'static str,
}

impl Raw {
    /// Reads the raw mode. `None`: raw mode is off. An error: the subjects cannot be the same in Dunlin.
    fn of(source: &ImportSource) -> Result<Option<Raw>, ()> {
        let Some(mode) = source.peek("broker.nats.raw_mode").filter(|of| switch(&of["enabled"]))
        else {
            return Ok(None);
        };
        let prefix = mode["prefix"].as_str().unwrap_or_default().to_owned();
        let replaced = mode["channel_replacements"].as_object();
        let separator = match replaced.map(|all| (all.len(), all.get(":").and_then(Value::as_str)))
        {
            None | Some((0, _)) => ":",
            Some((1, Some("."))) => ".",
            Some(_) => return Err(()),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let is_token = |token: &str| !token.is_empty() && token.bytes().all(is_plain);
        let fits = prefix.is_empty()
            || prefix.len() <= 64
                && !prefix.starts_with('_')
                && prefix.strip_suffix('.').is_some_and(|of| of.split('.').all(is_token));
        if fits { Ok(Some(Raw { prefix, separator })) } else { Err(()) }
    }
}

fn tls(source: &mut ImportSource, engine: &mut Value) {
    let Some(given) = source.take("broker.nats.tls") else { return };
    if !switch(&given["enabled"]) {
        return source.row("broker.nats.tls", Mapping::Absent, "it is not enabled");
    }
    engine["tls"] = true.into();
    source.row("broker.nats.tls", Mapping::Taken, "`engines.main.tls`");
    let text = |key: &str| given[key].as_str().filter(|text| !text.is_empty());
    let is_pem = |text: &str| text.contains("-----BEGIN");
    if let Some(ca) = text("server_ca_pem") {
        match is_pem(ca) {
            true => engine["ca"] = ca.into(),
            false => {
                let note = "it is not PEM: set `engines.main.ca` to its text; until then the system's roots hold";
                source.row("broker.nats.tls.server_ca_pem", Mapping::Closed, note);
            }
        }
    }
    match (text("cert_pem"), text("key_pem")) {
        (None, None) => {}
        (Some(certificate), Some(key)) if is_pem(certificate) && is_pem(key) => {
            engine["tls_client_cert"] = certificate.into();
            engine["tls_client_key"] = key.into();
        }
        _ => {
            let note = "they are not PEM: set `engines.main.tls_client_cert` and `tls_client_key` to their texts";
            source.row("broker.nats.tls.cert_pem", Mapping::Closed, note);
        }
    }
    if switch(&given["insecure_skip_verify"]) {
        let note = "a certificate is always verified: set `engines.main.ca`";
        source.row("broker.nats.tls.insecure_skip_verify", Mapping::Closed, note);
    }
    if text("server_name").is_some() {
        let note = "the certificate bears the name in `engines.main.addresses`";
        source.row("broker.nats.tls.server_name", Mapping::Closed, note);
    }
}

/// The content of a URL of NATS clients: several servers, and the first login among them.
#[derive(Default)]
struct Servers {
    addresses: Vec<String>,
    user: Option<String>,
    password: Option<String>,
    token: Option<String>,
    tls: bool,
}

impl Servers {
    fn of(url: &str) -> Option<Servers> {
        let mut servers = Servers::default();
        for url in url.split(',').map(str::trim) {
            let (scheme, rest) = url.split_once("://").unwrap_or(("nats", url));
            servers.tls |= match scheme {
                "nats" => false,
                "tls" => true,
                _ => return None,
            };
            let rest = rest.trim_end_matches('/');
            let (login, address) =
                rest.rsplit_once('@').map_or((None, rest), |(login, at)| (Some(login), at));
            let host_end = address.rfind(']').map_or(0, |at| at + 1);
            let address = match address[host_end..].contains(':') {
                true => address.to_owned(),
                false => format!("{address}:4222"),
            };
            if wrong_address(&address).is_some() || servers.addresses.contains(&address) {
                return None;
            }
            servers.addresses.push(address);
            let Some(login) = login.filter(|_| servers.user.is_none() && servers.token.is_none())
            else {
                continue;
            };
            match login.split_once(':') {
                Some((user, password)) => {
                    (servers.user, servers.password) =
                        (Some(decoded(user)?), Some(decoded(password)?));
                }
                None => servers.token = Some(decoded(login)?),
            }
        }
        Some(servers)
    }
}
