//! Soketi: its JSON file and its environment, whose variables override the file.

use serde_json::{Map, Value, json};

use super::dotenv::Variables;
use super::pusher::{App, listen};
use super::report::Mapping;
use super::source::{ImportSource, Kind, count, is_nothing, object, switch};
use super::{store, variables as references};
use crate::path::Path;

/// Variables without the prefix `SOKETI_`, and the options that they set.
const VARIABLES: &[(&str, &str)] = &[
    ("ADAPTER_DRIVER", "adapter.driver"),
    ("ADAPTER_REDIS_PREFIX", "adapter.redis.prefix"),
    ("ADAPTER_REDIS_CLUSTER_MODE", "adapter.redis.clusterMode"),
    ("ADAPTER_NATS_SERVERS", "adapter.nats.servers"),
    ("ADAPTER_NATS_USER", "adapter.nats.user"),
    ("ADAPTER_NATS_PASSWORD", "adapter.nats.pass"),
    ("ADAPTER_NATS_TOKEN", "adapter.nats.token"),
    ("APP_MANAGER_DRIVER", "appManager.driver"),
    ("CHANNEL_LIMITS_MAX_NAME_LENGTH", "channelLimits.maxNameLength"),
    ("CHANNEL_CACHE_TTL", "channelLimits.cacheTtl"),
    ("DEFAULT_APP_ID", "appManager.array.apps.0.id"),
    ("DEFAULT_APP_KEY", "appManager.array.apps.0.key"),
    ("DEFAULT_APP_SECRET", "appManager.array.apps.0.secret"),
    ("DEFAULT_APP_MAX_CONNS", "appManager.array.apps.0.maxConnections"),
    ("DEFAULT_APP_ENABLE_CLIENT_MESSAGES", "appManager.array.apps.0.enableClientMessages"),
    ("DEFAULT_APP_ENABLED", "appManager.array.apps.0.enabled"),
    ("DEFAULT_APP_MAX_BACKEND_EVENTS_PER_SEC", "appManager.array.apps.0.maxBackendEventsPerSecond"),
    ("DEFAULT_APP_MAX_CLIENT_EVENTS_PER_SEC", "appManager.array.apps.0.maxClientEventsPerSecond"),
    ("DEFAULT_APP_MAX_READ_REQ_PER_SEC", "appManager.array.apps.0.maxReadRequestsPerSecond"),
    ("DEFAULT_APP_USER_AUTHENTICATION", "appManager.array.apps.0.enableUserAuthentication"),
    ("DEFAULT_APP_WEBHOOKS", "appManager.array.apps.0.webhooks"),
    ("DB_REDIS_HOST", "database.redis.host"),
    ("DB_REDIS_PORT", "database.redis.port"),
    ("DB_REDIS_DB", "database.redis.db"),
    ("DB_REDIS_USERNAME", "database.redis.username"),
    ("DB_REDIS_PASSWORD", "database.redis.password"),
    ("DB_REDIS_SENTINELS", "database.redis.sentinels"),
    ("DB_REDIS_SENTINEL_PASSWORD", "database.redis.sentinelPassword"),
    ("DB_REDIS_CLUSTER_NODES", "database.redis.clusterNodes"),
    ("DB_REDIS_INSTANCE_NAME", "database.redis.name"),
    ("EVENT_MAX_BATCH_SIZE", "eventLimits.maxBatchSize"),
    ("EVENT_MAX_CHANNELS_AT_ONCE", "eventLimits.maxChannelsAtOnce"),
    ("EVENT_MAX_SIZE_IN_KB", "eventLimits.maxPayloadInKb"),
    ("HOST", "host"),
    ("PORT", "port"),
    ("PATH_PREFIX", "pathPrefix"),
    ("METRICS_ENABLED", "metrics.enabled"),
    ("PRESENCE_MAX_MEMBER_SIZE", "presence.maxMemberSizeInKb"),
    ("PRESENCE_MAX_MEMBERS", "presence.maxMembersPerChannel"),
    ("SHUTDOWN_GRACE_PERIOD", "shutdownGracePeriod"),
    ("SSL_CERT", "ssl.certPath"),
    ("SSL_KEY", "ssl.keyPath"),
    ("SSL_PASS", "ssl.passphrase"),
    ("SSL_CA", "ssl.caPath"),
];

/// Translates a file, and the variables of Soketi.
pub(super) fn translate(document: Value, variables: &Variables) -> ImportSource {
    let mut options = json!({});
    for (key, value) in object(document) {
        merge(&mut options, &key.split('.').collect::<Vec<_>>(), value);
    }
    let mut names = std::collections::HashMap::new();
    for (name, text) in variables {
        let Some(short) = name.strip_prefix("SOKETI_").filter(|_| !text.is_empty()) else {
            continue;
        };
        // Soketi reads a value as JSON if it is that.
        let value = match serde_json::from_str::<Value>(text) {
            Ok(value) if !value.is_null() => value,
            _ => text.as_str().into(),
        };
        let key = VARIABLES.iter().find(|(variable, _)| *variable == short).map(|(_, key)| *key);
        let key = key.unwrap_or(name);
        names.insert(key.to_owned(), name.clone());
        merge(&mut options, &key.split('.').collect::<Vec<_>>(), value);
    }
    references::expand_all(&mut options, &|name| variables.get(name).cloned());
    let mut source = ImportSource::new(options).with_names(names);
    apps(&mut source);
    tls(&mut source);
    let port =
        source.take("port").as_ref().and_then(count).and_then(|port| u16::try_from(port).ok());
    let host = source.text("host");
    if host.is_some() || port.is_some() {
        listen(&mut source, "port", host.as_deref(), port.unwrap_or(6001));
    }
    adapter(&mut source);
    source.move_as("shutdownGracePeriod", "shutdown.drain_timeout_ms", Kind::Count);
    source.absent(|key| {
        let note = match key.split('.').next().unwrap_or_default() {
            "metrics" => "`/metrics` on the admin port, always",
            "pathPrefix" => "there is no prefix: a proxy in front takes it away",
            "rateLimiter" | "cache" | "queue" | "database" | "databasePooling" => {
                "nothing depends on it here"
            }
            _ => "",
        };
        note.to_owned()
    });
    source
}

/// Sets a value at a place; a number stands for an element of a list.
fn merge(at: &mut Value, steps: &[&str], value: Value) {
    let Some((step, rest)) = steps.split_first() else {
        return match (at, value) {
            (Value::Object(own), Value::Object(other)) => {
                for (key, value) in other {
                    merge(own.entry(&key).or_insert(Value::Null), &[], value);
                }
            }
            (at, value) => *at = value,
        };
    };
    match step.parse::<usize>() {
        Ok(index) if index < 1_000 => {
            if !at.is_array() {
                *at = json!([]);
            }
            let Value::Array(list) = at else { return };
            while list.len() <= index {
                list.push(json!({}));
            }
            merge(&mut list[index], rest, value);
        }
        _ => {
            if !at.is_object() {
                *at = json!({});
            }
            merge(&mut at[*step], rest, value);
        }
    }
}

fn text(of: &Value) -> String {
    match of {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    }
}

fn apps(source: &mut ImportSource) {
    let driver = source.text("appManager.driver").unwrap_or_else(|| "array".to_owned());
    if driver != "array" {
        let note = format!(
            "the apps are in {driver}: write `pusher.apps` by hand, or through the config API"
        );
        return source.row("appManager.driver", Mapping::Closed, note);
    }
    let mut limits = Map::new();
    for (key, option, factor) in [
        ("eventLimits.maxPayloadInKb", "event_bytes_max", 1_024.0),
        ("eventLimits.maxChannelsAtOnce", "channels_per_event_max", 1.0),
        ("eventLimits.maxBatchSize", "batch_events_max", 1.0),
        ("presence.maxMembersPerChannel", "presence_members_max", 1.0),
        ("presence.maxMemberSizeInKb", "member_bytes_max", 1_024.0),
        ("channelLimits.cacheTtl", "cache_ttl_ms", 1_000.0),
    ] {
        let Some(given) = source.take(key) else { continue };
        let number = given.as_f64().or_else(|| given.as_str()?.parse().ok());
        match number.filter(|number| *number > 0.0) {
            Some(number) => {
                // A cast saturates, as intended.
                limits.insert(option.to_owned(), ((number * factor) as u64).into());
                source.row(key, Mapping::Taken, format!("`{option}` of each app"));
            }
            None => source.row(key, Mapping::Absent, "it cannot be read; the default holds"),
        }
    }
    let list = match source.take("appManager.array.apps") {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    if list.is_empty() {
        let note = "no app is named: that of Soketi itself has a secret that everybody knows, and is not taken";
        return source.row("appManager.array.apps", Mapping::Closed, note);
    }
    let is_only = list.len() == 1;
    for (index, app) in list.iter().enumerate() {
        let key = format!("appManager.array.apps[{index}]");
        if app.get("enabled").is_some_and(is_nothing) {
            source.row(&key, Mapping::Closed, "it is not enabled, and left out");
            continue;
        }
        let mut options = limits.clone();
        options.insert("client_events".to_owned(), switch(&app["enableClientMessages"]).into());
        if let Some(count) = count(&app["maxClientEventsPerSecond"]).filter(|count| *count > 0) {
            options.insert("client_events_per_s".to_owned(), count.into());
        }
        for (option, note) in [
            ("maxBackendEventsPerSecond", "a backend with the secret is trusted"),
            ("maxReadRequestsPerSecond", "a backend with the secret is trusted"),
            ("webhooks", "write them as `webhooks.hooks`, with `pusher_app`"),
        ] {
            let is_bound = |value: &Value| !is_nothing(value) && value.as_i64() != Some(-1);
            if app.get(option).is_some_and(is_bound) {
                source.row(&format!("{key}.{option}"), Mapping::Absent, note);
            }
        }
        if let Some(most) = count(&app["maxConnections"]).filter(|most| *most > 0) {
            if is_only {
                source.taken(&format!("{key}.maxConnections"), "limits.connections_max", most);
            } else {
                let note = "there is no bound of one app; `limits.connections_max` is for all";
                source.row(&format!("{key}.maxConnections"), Mapping::Absent, note);
            }
        }
        let app = App {
            key: &key,
            id: text(&app["id"]),
            app_key: text(&app["key"]),
            secret: text(&app["secret"]),
            options: Value::Object(options),
        };
        app.write(source, is_only);
    }
}

fn tls(source: &mut ImportSource) {
    let (chain, key) = (source.text("ssl.certPath"), source.text("ssl.keyPath"));
    let Some((chain, key_file)) = chain.zip(key) else { return };
    if source.take("ssl.passphrase").is_some() {
        let note = "a key with a passphrase is not read: write it without one";
        source.row("ssl.passphrase", Mapping::Closed, note);
    }
    if source.take("ssl.caPath").is_some() {
        let note =
            "put the certificates that signed the server's own into the file of `chain_file`";
        source.row("ssl.caPath", Mapping::Changed, note);
    }
    let certificate = json!({ "chain_file": chain, "key_file": key_file });
    source.set(&Path::of("tls.certificates.main"), certificate);
    source.set(&Path::of("server.client_ingress.tls"), true);
    source.row("ssl.certPath", Mapping::Taken, "`tls.certificates.main`, `server.client_ingress`");
}

/// Translates what nodes share events by.
fn adapter(source: &mut ImportSource) {
    let driver = source.text("adapter.driver").unwrap_or_else(|| "local".to_owned());
    let mut settings = match driver.as_str() {
        "local" => return,
        "redis" => redis(source),
        "nats" => nats(source),
        // The list without an address is refused with the other settings, and ends the import.
        _ => json!({ "addresses": [] }),
    };
    settings["prefix"] = "dunlin".into();
    store::share(source, settings);
    let note = "`engines.main` and `cluster.engine`: nodes share channels, and presence";
    source.row("adapter.driver", Mapping::Taken, note);
}

fn redis(source: &mut ImportSource) -> Value {
    let place = |of: &Value, port: u64| {
        let host = of["host"].as_str().unwrap_or("127.0.0.1").to_owned();
        format!("{host}:{}", count(&of["port"]).unwrap_or(port))
    };
    let of = source.take("database.redis").unwrap_or_else(|| json!({}));
    let mut settings = json!({ "addresses": [place(&of, 6379)] });
    for (key, to) in [("username", "user"), ("password", "password")] {
        let given = text(&of[key]);
        if !given.is_empty() {
            settings[to] = given.into();
        }
    }
    if let Some(number) = count(&of["db"]).filter(|number| *number > 0) {
        settings["database"] = number.into();
    }
    let list = |key: &str| of[key].as_array().filter(|list| !list.is_empty()).cloned();
    if let Some(sentinels) = list("sentinels") {
        settings["topology"] = "sentinel".into();
        settings["addresses"] = sentinels.iter().map(|of| place(of, 26_379)).collect();
        settings["sentinel_primaries"] = json!([of["name"].as_str().unwrap_or("mymaster")]);
        let password = text(&of["sentinelPassword"]);
        if !password.is_empty() {
            settings["sentinel_password"] = password.into();
        }
    } else if source.is_on("adapter.redis.clusterMode") {
        settings["topology"] = "cluster".into();
        let nodes = list("clusterNodes").unwrap_or_default();
        settings["addresses"] = nodes.iter().map(|of| place(of, 6379)).collect();
        settings["database"] = 0.into();
    }
    settings
}

fn nats(source: &mut ImportSource) -> Value {
    let of = source.take("adapter.nats").unwrap_or_else(|| json!({}));
    let servers = match &of["servers"] {
        Value::Array(list) => list.clone(),
        Value::String(one) => vec![one.as_str().into()],
        _ => vec!["127.0.0.1:4222".into()],
    };
    let mut settings = json!({ "type": "nats", "addresses": servers });
    for (key, to) in [("user", "user"), ("pass", "password"), ("token", "token")] {
        let given = text(&of[key]);
        if !given.is_empty() {
            settings[to] = given.into();
        }
    }
    settings
}
