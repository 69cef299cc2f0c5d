//! The store that nodes share, as an engine that all namespaces name.

use serde_json::{Map, Value, json};

use super::source::ImportSource;
use crate::engine_kind::EngineTopology;
use crate::path::Path;
use crate::redis_url::RedisUrl;

/// The name of the engine in Dunlin.
pub(super) const NAME: &str = "main";

/// Sets the engine, and lets every namespace and the cluster of nodes use it.
pub(super) fn share(source: &mut ImportSource, settings: Value) {
    source.set(&Path::of("engines").join(NAME), settings);
    let mut namespaces = vec![Path::of("channel.without_namespace")];
    let named = source.out.pointer("/channel/namespaces").and_then(Value::as_object);
    let named = named.into_iter().flat_map(Map::keys);
    namespaces.extend(named.map(|name| Path::of("channel.namespaces").join(name)));
    for namespace in &namespaces {
        source.set(&namespace.join("engine"), NAME);
    }
    source.set(&Path::of("cluster.engine"), NAME);
}

/// Returns the settings of an engine for addresses that are URLs, or host and port.
///
/// # Errors
/// One cannot be read, or they differ in what holds for all of them.
pub(super) fn of_addresses(addresses: &[String]) -> Result<Value, String> {
    let RedisUrl {
        topology,
        addresses,
        tls,
        user,
        password,
        database,
        sentinel_primary,
        sentinel_user,
        sentinel_password,
        connect_timeout_ms,
        timeout_ms,
    } = RedisUrl::of_all(addresses)?;
    if topology == EngineTopology::Sentinel && sentinel_primary.is_none() {
        return Err("its Sentinels need the name of a primary".to_owned());
    }
    let mut settings = json!({ "topology": topology, "addresses": addresses });
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            settings[key] = value;
        }
    };
    set("tls", tls.then_some(true.into()));
    set("user", user.filter(|_| password.is_some()).map(Value::from));
    set("password", password.filter(|text| !text.is_empty()).map(Value::from));
    set("database", database.filter(|number| *number > 0).map(Value::from));
    set("sentinel_primaries", sentinel_primary.map(|name| json!([name])));
    set("sentinel_user", sentinel_user.map(Value::from));
    set("sentinel_password", sentinel_password.map(Value::from));
    set("connect_timeout_ms", connect_timeout_ms.map(|ms| ms.clamp(10, 60_000).into()));
    set("timeout_ms", timeout_ms.map(|ms| ms.clamp(10, 60_000).into()));
    Ok(settings)
}
