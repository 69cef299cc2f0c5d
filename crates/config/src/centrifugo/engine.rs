//! Translates the Redis engine, in which nodes of Centrifugo and Dunlin can share channels.

use serde_json::{Value, json};

use super::Mapping;
use super::source::{ImportSource, Kind, count, is_nothing, switch};
use crate::Config;
use crate::path::Path;

/// The name of the engine in Dunlin.
const NAME: &str = "main";

fn is_redis(source: &ImportSource) -> bool {
    source.peek("engine.type").and_then(Value::as_str) == Some("redis")
}

/// The default address of Redis.
const ADDRESS: &str = "redis://127.0.0.1:6379";

/// Translates an engine of type `redis` and assigns all namespaces to it. If it cannot be shared, the reason is
/// reported and nothing is taken.
pub(super) fn engine(source: &mut ImportSource) {
    if !is_redis(source) {
        return;
    }
    if source.peek("broker.enabled").is_some_and(switch) {
        // The NATS broker is translated later.
        let note = match source.peek("broker.type").and_then(Value::as_str) {
            Some("nats") => {
                "channels are where `broker` says; what is kept in Redis beside it is not taken"
            }
            _ => "channels are where `broker` says: write `engines` by hand",
        };
        source.take("engine.type");
        return source.row("engine.type", Mapping::Absent, note);
    }
    if let Err((key, note)) = place(source).and_then(|place| take(source, place)) {
        source.take("engine.type");
        source.take(key);
        source.row(key, Mapping::Absent, note);
    }
}

/// The key that prevents the translation, and the reason.
type Refusal = (&'static str, String);

/// The location of Redis: settings of an engine, and the key they come from.
struct Place {
    key: &'static str,
    settings: Value,
}

/// Reads the location of Redis. Fails if the engine cannot be shared.
fn place(source: &ImportSource) -> Result<Place, Refusal> {
    let given = |key: &str| source.peek(key).filter(|value| !is_nothing(value));
    if given("engine.redis.history_use_lists").is_some_and(switch) {
        let note = "histories in lists cannot be shared: channels live in the memory of one node. Set it to false at Centrifugo first";
        return Err(("engine.redis.history_use_lists", note.to_owned()));
    }
    if given("engine.redis.cluster_address").is_some() {
        let note = "a channel has a slot of its own in this layout of a cluster, which is not followed: write `engines` by hand, \
                    with `topology = \"cluster\"` in Dunlin's own layout, and move over by the address";
        return Err(("engine.redis.cluster_address", note.to_owned()));
    }
    if let Some(sentinels) = given("engine.redis.sentinel_address") {
        let key = "engine.redis.sentinel_address";
        let addresses = texts(sentinels);
        if sentinels.as_array().is_some_and(|groups| groups.len() > 1) {
            let note = "several groups of Sentinels: write `engines` by hand";
            return Err((key, note.to_owned()));
        }
        let name = given("engine.redis.sentinel_master_name").and_then(Value::as_str);
        let Some(name) = name else {
            let note = "there is no `sentinel_master_name`: write `engines` by hand";
            return Err((key, note.to_owned()));
        };
        let primaries = [name];
        let settings = json!({
            "topology": "sentinel", "addresses": addresses, "sentinel_primaries": primaries,
        });
        return Ok(Place { key, settings });
    }
    let key = "engine.redis.address";
    let default = Value::from(ADDRESS);
    let addresses = texts(given(key).unwrap_or(&default));
    let mut settings = json!({});
    let mut hosts = Vec::new();
    for address in &addresses {
        // TLS, login and database of an address apply to all addresses in Dunlin.
        hosts.push(server(address, &mut settings).map_err(|note| (key, note))?);
    }
    settings["addresses"] = json!(hosts);
    Ok(Place { key, settings })
}

/// Returns host and port of an address, which may be a URL; the rest of the URL is written to `settings`.
fn server(address: &str, settings: &mut Value) -> Result<String, String> {
    let unreadable = || "it is no address of Redis: write `engines` by hand".to_owned();
    let Some((scheme, rest)) = address.split_once("://") else { return Ok(address.to_owned()) };
    match scheme {
        "redis" | "tcp" => {}
        "rediss" => settings["tls"] = true.into(),
        _ => return Err(format!("`{scheme}` is not read from a URL: write `engines` by hand")),
    }
    let (rest, _) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    if !database.is_empty() {
        settings["database"] = database.parse::<u32>().map_err(|_| unreadable())?.into();
    }
    let Some((login, host)) = authority.rsplit_once('@') else { return Ok(authority.to_owned()) };
    let (user, password) = login.split_once(':').ok_or_else(unreadable)?;
    if [user, password].iter().any(|text| text.contains('%')) {
        return Err("its user and password are percent-encoded: write `engines` by hand".to_owned());
    }
    if !user.is_empty() {
        settings["user"] = user.into();
    }
    settings["password"] = password.into();
    Ok(host.to_owned())
}

/// Reads a list of texts, or one text with commas.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) => list.iter().flat_map(texts).collect(),
        Value::String(all) => all.split(',').map(|one| one.trim().to_owned()).collect(),
        _ => Vec::new(),
    }
}

fn take(source: &mut ImportSource, place: Place) -> Result<(), Refusal> {
    let mut settings = place.settings;
    for (key, name) in [
        ("user", "user"),
        ("password", "password"),
        ("sentinel_user", "sentinel_user"),
        ("sentinel_password", "sentinel_password"),
    ] {
        if let Some(text) = source.text(&format!("engine.redis.{key}")) {
            settings[name] = text.into();
        }
    }
    if let Some(database) = source.take("engine.redis.db").as_ref().and_then(count) {
        settings["database"] = database.into();
    }
    let prefix = source.text("engine.redis.prefix").unwrap_or_else(|| "centrifugo".to_owned());
    settings["prefix"] = prefix.into();
    settings["layout"] = "centrifugo".into();
    tls(source, &mut settings);
    let alone = json!({ "engines": { NAME: settings } });
    let valid = Config::from_json(alone).and_then(|config| config.validate());
    if let Err(errors) = valid {
        let error = errors.iter().next().map(ToString::to_string).unwrap_or_default();
        return Err((place.key, format!("write `engines` by hand: {error}")));
    }
    source.take("engine.type");
    source.take(place.key);
    source.take("engine.redis.sentinel_master_name");
    source.set(&Path::of("engines").join(NAME), settings);
    source.move_as("engine.redis.connect_timeout", "engines.main.connect_timeout_ms", Kind::Time);
    source.move_as("engine.redis.io_timeout", "engines.main.timeout_ms", Kind::Time);
    for (key, note) in [
        ("presence_ttl", "presence of nodes of Dunlin is shared by `cluster.engine`"),
        ("presence_hash_field_ttl", "presence of nodes of Dunlin is shared by `cluster.engine`"),
        ("presence_user_mapping", "presence of nodes of Dunlin is shared by `cluster.engine`"),
        ("client_name", "it is `dunlin`"),
        ("force_resp2", "RESP3 is spoken"),
        ("replica_client.enabled", "the primary is read"),
    ] {
        let key = format!("engine.redis.{key}");
        if source.take(&key).is_some() {
            source.row(&key, Mapping::Absent, note);
        }
    }
    let mut namespaces = vec![Path::of("channel.without_namespace")];
    let named = source.out.pointer("/channel/namespaces").and_then(Value::as_object);
    let named = named.into_iter().flat_map(serde_json::Map::keys);
    namespaces.extend(named.map(|name| Path::of("channel.namespaces").join(name)));
    for namespace in &namespaces {
        source.set(&namespace.join("engine"), NAME);
    }
    source.set(&Path::of("cluster.engine"), NAME);
    let note = "`engines.main` with `layout = \"centrifugo\"`, for all namespaces, and `cluster.engine`: \
                its nodes and those of Centrifugo share channels";
    source.row("engine.type", Mapping::Taken, note);
    Ok(())
}

fn tls(source: &mut ImportSource, settings: &mut Value) {
    let key = "engine.redis.tls";
    let Some(given) = source.take(key) else { return };
    if !switch(&given["enabled"]) {
        return source.row(key, Mapping::Absent, "it is not enabled");
    }
    settings["tls"] = true.into();
    let ca = given["server_ca_pem"].as_str().unwrap_or_default();
    let certificate = given["cert_pem"].as_str().unwrap_or_default();
    let (mapping, note) = match (ca.contains("-----BEGIN"), ca.is_empty(), certificate.is_empty()) {
        (_, _, false) => (Mapping::Absent, "certificates of clients are not shown to Redis"),
        (true, ..) => (Mapping::Taken, "`engines.main.tls` and `ca`"),
        (false, true, _) => (Mapping::Taken, "`engines.main.tls`"),
        (false, false, _) => (Mapping::Changed, "set `engines.main.ca` to the text of the file"),
    };
    if ca.contains("-----BEGIN") {
        settings["ca"] = ca.into();
    }
    source.row(key, mapping, note);
}
