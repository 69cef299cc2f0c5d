//! Values of Centrifugo's Helm chart: the configuration is under `config`, variables are under `env` and `secrets`.

use serde_json::Value;

use super::dotenv::Variables;
use super::report::{Mapping, Row};

/// Secrets of charts before version 12, and their variables.
const SECRETS: &[(&str, &str)] = &[
    ("tokenHmacSecretKey", "CENTRIFUGO_TOKEN_HMAC_SECRET_KEY"),
    ("adminPassword", "CENTRIFUGO_ADMIN_PASSWORD"),
    ("adminSecret", "CENTRIFUGO_ADMIN_SECRET"),
    ("apiKey", "CENTRIFUGO_API_KEY"),
    ("grpcApiKey", "CENTRIFUGO_GRPC_API_KEY"),
    ("redisAddress", "CENTRIFUGO_REDIS_ADDRESS"),
    ("redisPassword", "CENTRIFUGO_REDIS_PASSWORD"),
    ("redisSentinelPassword", "CENTRIFUGO_REDIS_SENTINEL_PASSWORD"),
    ("natsUrl", "CENTRIFUGO_NATS_URL"),
];

/// Replaces the values of a chart by the configuration in them, and adds their variables unless they are given. Returns
/// whether it was a chart. The chart may be a dependency of another one, under `centrifugo`.
pub(super) fn unwrap(document: &mut Value, variables: &mut Variables, rows: &mut Vec<Row>) -> bool {
    let own = ["/config", "/centrifugo/config"];
    let Some(at) = own.into_iter().find(|at| document.pointer(at).is_some_and(Value::is_object))
    else {
        return false;
    };
    let values = match at {
        "/config" => document.take(),
        _ => document["centrifugo"].take(),
    };
    for (key, name) in SECRETS {
        if let Some(text) = values["secrets"][key].as_str().filter(|text| !text.is_empty()) {
            variables.entry((*name).to_owned()).or_insert_with(|| text.to_owned());
        }
    }
    for (name, value) in values["env"].as_object().into_iter().flatten() {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            _ => continue,
        };
        variables.entry(name.clone()).or_insert(text);
    }
    let mut closed = |key: &str, what: String| {
        let note =
            format!("{what}: give them with --env FILE; what they guard is closed until then");
        rows.push(Row { key: key.to_owned(), mapping: Mapping::Closed, note });
    };
    for key in ["existingSecret", "existingSecretName"] {
        if let Some(name) = values[key].as_str().filter(|name| !name.is_empty()) {
            closed(key, format!("the variables of the Secret {name:?} are not in this file"));
        }
    }
    for entry in values["envSecret"].as_array().into_iter().flatten() {
        let name = entry["name"].as_str().unwrap_or_default();
        if !variables.contains_key(name) {
            closed("envSecret", format!("the value of {name} is in a Secret"));
        }
    }
    if values["envFrom"].as_array().is_some_and(|list| !list.is_empty()) {
        closed("envFrom", "its variables are not in this file".to_owned());
    }
    *document = values["config"].clone();
    true
}
