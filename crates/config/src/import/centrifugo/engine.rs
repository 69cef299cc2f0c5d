//! Translates the Redis that nodes share. In the layout of Centrifugo 6, nodes of Centrifugo and Dunlin can share channels.

use serde_json::{Value, json};

use crate::Config;
use crate::error::ConfigErrors;
use crate::import::origin::Origin;
use crate::import::report::Mapping;
use crate::import::source::{ImportSource, count, is_nothing, milliseconds, switch};
use crate::import::validity::no_engine;
use crate::import::{store, variables};

/// The default address of Redis.
const ADDRESS: &str = "redis://127.0.0.1:6379";

/// Translates an engine or a broker of type `redis`, and assigns all namespaces to it.
///
/// # Errors
/// Nodes shared a store that cannot be taken, and `without_engine` is not set.
pub(super) fn engine(
    source: &mut ImportSource,
    origin: Origin,
    without_engine: bool,
) -> Result<(), ConfigErrors> {
    let text = |key: &str| source.peek(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (engine, broker) = (text("engine.type"), text("broker.type"));
    let has_broker = source.peek("broker.enabled").is_some_and(switch);
    let from = match (has_broker, broker.as_str(), engine.as_str()) {
        // The broker is translated later.
        (true, "nats", engine) => {
            if engine == "redis" {
                source.take("engine.type");
                let note = "channels are where `broker` says; what is kept in Redis beside it is not taken";
                source.row("engine.type", Mapping::Absent, note);
            }
            return Ok(());
        }
        (true, "redis", _) => "broker",
        (true, "" | "memory", _) | (false, _, "" | "memory") => {
            source.take("engine.type");
            return Ok(());
        }
        (false, _, "redis") => "engine",
        (true, other, _) => {
            let why = format!("a broker of the type {other:?} is not known here");
            return refused(source, "broker.type", why, without_engine);
        }
        (false, _, other) => {
            let why = format!("an engine of the type {other:?} is not known here");
            return refused(source, "engine.type", why, without_engine);
        }
    };
    if let Err((key, why)) = take(source, from, origin) {
        return refused(source, &key, why, without_engine);
    }
    Ok(())
}

/// Ends the import, or reports what is left out.
pub(super) fn refused(
    source: &mut ImportSource,
    key: &str,
    why: String,
    without_engine: bool,
) -> Result<(), ConfigErrors> {
    if !without_engine {
        return Err(no_engine(source, key, why));
    }
    for key in ["engine.type", "engine.redis", "broker.enabled", "broker.type", "broker.redis"] {
        source.take(key);
    }
    let note = format!("left out, as asked for: {why}; channels live in the memory of one node");
    source.row(key, Mapping::Closed, note);
    Ok(())
}

/// The key that prevents the translation, and the reason.
type Refusal = (String, String);

/// The location of Redis: settings of an engine, and the key they come from.
struct Place {
    key: String,
    settings: Value,
    /// Whether nodes of Centrifugo can share it.
    is_shared: bool,
}

/// Reads the location of Redis.
fn place(source: &ImportSource, redis: &str, origin: Origin) -> Result<Place, Refusal> {
    let key = |name: &str| format!("{redis}.{name}");
    let given = |name: &str| source.peek(&key(name)).filter(|value| !is_nothing(value));
    let uses_lists = given("history_use_lists").is_some_and(switch);
    let refused = |name: &str, why: &str| Err((key(name), why.to_owned()));
    let one_group = |name: &str| {
        let groups = given(name).map(texts).unwrap_or_default();
        match &groups[..] {
            [group] => Ok(group.split(',').map(|one| one.trim().to_owned()).collect::<Vec<_>>()),
            _ => Err((key(name), "several groups of servers are not known here".to_owned())),
        }
    };
    let (name, mut settings) = if given("cluster_address").is_some() {
        let addresses = one_group("cluster_address")?;
        ("cluster_address", json!({ "topology": "cluster", "addresses": addresses }))
    } else if given("sentinel_address").is_some() {
        let addresses = one_group("sentinel_address")?;
        ("sentinel_address", json!({ "topology": "sentinel", "addresses": addresses }))
    } else {
        let default = Value::from(ADDRESS);
        let addresses: Vec<String> = texts(given("address").unwrap_or(&default))
            .into_iter()
            .flat_map(|one| match one.contains("://") {
                true => vec![one],
                false => one.split(',').map(|one| one.trim().to_owned()).collect(),
            })
            .collect();
        if addresses.iter().any(|address| variables::has_reference(address)) {
            return refused(
                "address",
                "it refers to a variable that is not known here: give it with --env FILE",
            );
        }
        let settings = store::of_addresses(&addresses).map_err(|why| (key("address"), why))?;
        ("address", settings)
    };
    if settings["topology"] == "sentinel" && settings.get("sentinel_primaries").is_none() {
        let Some(primary) = given("sentinel_master_name").and_then(Value::as_str) else {
            return refused(name, "there is no `sentinel_master_name`");
        };
        settings["sentinel_primaries"] = json!([primary]);
    }
    let is_shared =
        settings["topology"] != "cluster" && !uses_lists && origin == Origin::CentrifugoV6;
    Ok(Place { key: key(name), settings, is_shared })
}

/// Reads a list of texts, or one text with blanks.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) => list.iter().flat_map(texts).collect(),
        Value::String(all) => all.split_whitespace().map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

fn take(source: &mut ImportSource, from: &str, origin: Origin) -> Result<(), Refusal> {
    let redis = format!("{from}.redis");
    let Place { key, mut settings, is_shared } = place(source, &redis, origin)?;
    let at = |name: &str| format!("{redis}.{name}");
    for name in ["user", "password", "sentinel_user", "sentinel_password"] {
        // What an address says holds before these.
        match source.text(&at(name)) {
            Some(text) if variables::has_reference(&text) => {
                let why = "it refers to a variable that is not known here: give it with --env FILE";
                return Err((at(name), why.to_owned()));
            }
            Some(text) if settings.get(name).is_none() => settings[name] = text.into(),
            _ => {}
        }
    }
    for (user, password) in [("user", "password"), ("sentinel_user", "sentinel_password")] {
        if settings.get(password).is_none() {
            crate::check::remove(&mut settings, &[user.to_owned()]);
        }
    }
    if let Some(database) = source.take(&at("db")).as_ref().and_then(count)
        && settings.get("database").is_none()
    {
        settings["database"] = database.into();
    }
    let prefix = source.text(&at("prefix"));
    settings["prefix"] = match (is_shared, prefix) {
        (true, prefix) => prefix.unwrap_or_else(|| "centrifugo".to_owned()),
        // Keys of another layout have another prefix.
        (false, Some(prefix)) if prefix != "centrifugo" => format!("{prefix}-dunlin"),
        (false, _) => "dunlin".to_owned(),
    }
    .into();
    if is_shared {
        settings["layout"] = "centrifugo".into();
    }
    tls(source, &redis, &mut settings);
    for (name, to) in [("connect_timeout", "connect_timeout_ms"), ("io_timeout", "timeout_ms")] {
        let given = source.take(&at(name));
        if let Some(ms) = given.as_ref().and_then(milliseconds)
            && settings.get(to).is_none()
        {
            settings[to] = ms.clamp(10, 60_000).into();
            source.row(&at(name), Mapping::Taken, format!("`engines.main.{to}`"));
        }
    }
    let alone = json!({ "engines": { (store::NAME): settings } });
    let valid = Config::from_json(alone).and_then(|config| config.validate());
    if let Err(errors) = valid {
        let error = errors.iter().next().map(ToString::to_string).unwrap_or_default();
        return Err((key, format!("it cannot be taken: {error}")));
    }
    for name in ["address", "cluster_address", "sentinel_address", "sentinel_master_name"] {
        source.take(&at(name));
    }
    for key in ["engine.type", "broker.enabled", "broker.type"] {
        source.take(key);
    }
    store::share(source, settings);
    let presence = "presence of nodes of Dunlin is shared by `cluster.engine`";
    for (name, note) in [
        ("presence_ttl", presence),
        ("presence_hash_field_ttl", presence),
        ("presence_user_mapping", presence),
        ("client_name", "it is `dunlin`"),
        ("sentinel_client_name", "it is `dunlin`"),
        ("force_resp2", "RESP3 is spoken"),
        ("replica_client.enabled", "the primary is read"),
    ] {
        if source.take(&at(name)).is_some() {
            source.row(&at(name), Mapping::Absent, note);
        }
    }
    if source.take(&at("history_use_lists")).is_some() {
        let note = "histories are streams, in Dunlin's own layout";
        source.row(&at("history_use_lists"), Mapping::Changed, note);
    }
    let (mapping, note) = match (is_shared, origin) {
        (true, _) => (
            Mapping::Taken,
            "`engines.main` with `layout = \"centrifugo\"`, for all namespaces, and `cluster.engine`: \
             its nodes and those of Centrifugo share channels",
        ),
        (false, Origin::CentrifugoV6) => (
            Mapping::Changed,
            "`engines.main`, for all namespaces, and `cluster.engine`: nodes of Dunlin share channels with each other, and none \
             with those of Centrifugo, so move all clients at once",
        ),
        (false, _) => (
            Mapping::Changed,
            "`engines.main`, for all namespaces, and `cluster.engine`: nodes of Dunlin share channels with each other. To share \
             them with nodes of Centrifugo while you move, bring those to v6 first",
        ),
    };
    source.row(&format!("{from}.type"), mapping, note);
    source.row(&key, Mapping::Taken, "`engines.main.addresses`, and the login");
    Ok(())
}

fn tls(source: &mut ImportSource, redis: &str, settings: &mut Value) {
    for name in ["tls", "sentinel_tls"] {
        let key = format!("{redis}.{name}");
        let Some(given) = source.take(&key) else { continue };
        if !switch(&given["enabled"]) {
            source.row(&key, Mapping::Absent, "it is not enabled");
            continue;
        }
        settings["tls"] = true.into();
        let text = |of: &str| given[of].as_str().filter(|text| !text.is_empty());
        let is_pem = |text: &str| text.contains("-----BEGIN");
        match text("server_ca_pem") {
            Some(ca) if is_pem(ca) => settings["ca"] = ca.into(),
            Some(_) => {
                let note = "it is not PEM: set `engines.main.ca` to its text; until then the system's roots hold";
                source.row(&format!("{key}.server_ca_pem"), Mapping::Closed, note);
            }
            None => {}
        }
        match (text("cert_pem"), text("key_pem")) {
            (None, None) => {}
            (Some(certificate), Some(private)) if is_pem(certificate) && is_pem(private) => {
                settings["tls_client_cert"] = certificate.into();
                settings["tls_client_key"] = private.into();
            }
            _ => {
                let note = "they are not PEM: set `engines.main.tls_client_cert` and `tls_client_key` to their texts";
                source.row(&format!("{key}.cert_pem"), Mapping::Closed, note);
            }
        }
        if switch(&given["insecure_skip_verify"]) {
            let note = "a certificate is always verified: set `engines.main.ca`";
            source.row(&format!("{key}.insecure_skip_verify"), Mapping::Closed, note);
        }
        if text("server_name").is_some() {
            let note = "the certificate bears the name in `engines.main.addresses`";
            source.row(&format!("{key}.server_name"), Mapping::Closed, note);
        }
        source.row(&key, Mapping::Taken, "`engines.main.tls`");
    }
}
