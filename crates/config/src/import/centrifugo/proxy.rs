//! Translates proxies: backends that Centrifugo asks.

use serde_json::{Map, Value};

use crate::import::report::Mapping;
use crate::import::source::{ImportSource, is_nothing, milliseconds, switch};
use crate::path::Path;

/// Proxies without a name in Centrifugo: their key, and their name in Dunlin.
const UNNAMED: &[(&str, &str)] = &[
    ("client.proxy.connect", "client-connect"),
    ("client.proxy.refresh", "client-refresh"),
    ("channel.proxy.subscribe", "channel-subscribe"),
    ("channel.proxy.publish", "channel-publish"),
    ("channel.proxy.sub_refresh", "channel-sub-refresh"),
    ("rpc.proxy", "rpc-default"),
];

/// Translates the proxies, and their use by clients and remote procedures.
pub(super) fn proxies(source: &mut ImportSource) {
    for (key, name) in UNNAMED {
        let enabled = format!("{key}.enabled");
        let is_on = !key.starts_with("client.") || source.is_on(&enabled);
        let Some(Value::Object(options)) = source.take(key) else {
            if is_on && key.starts_with("client.") {
                source.row(&enabled, Mapping::Closed, "it has no endpoint");
            }
            continue;
        };
        if !is_on {
            source.row(key, Mapping::Absent, "it is not enabled");
        } else if define(source, key, name, &options) && key.starts_with("client.") {
            source.set(&Path::of(key), *name);
        }
    }
    if let Some(Value::Array(list)) = source.take("proxies") {
        for proxy in list {
            let Value::Object(options) = proxy else { continue };
            let name = options.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            define(source, &format!("proxies[{name}]"), &name, &options);
        }
    }
    rpc(source);
}

/// Returns the proxy that an option of a namespace or of `rpc` refers to; `None` if it was not translated.
pub(super) fn named(source: &ImportSource, name: Option<&Value>, default: &str) -> Option<String> {
    let name = match name.and_then(Value::as_str) {
        None | Some("" | "default") => default,
        Some(name) => name,
    };
    source.out.get("proxies").and_then(|of| of.get(name)).map(|_| name.to_owned())
}

fn rpc(source: &mut ImportSource) {
    let of = |source: &mut ImportSource, key: &str, to: &Path, options: &Value| {
        if !options.get("proxy_enabled").is_some_and(switch) {
            return;
        }
        match named(source, options.get("proxy_name"), "rpc-default") {
            Some(name) => {
                source.set(to, name);
                source.row(key, Mapping::Taken, format!("`{to}`"));
            }
            None => source.row(key, Mapping::Closed, "its proxy could not be taken"),
        }
    };
    if let Some(options) = source.take("rpc.without_namespace") {
        of(source, "rpc.without_namespace", &Path::of("client.proxy.rpc"), &options);
    }
    let boundary = source.text("rpc.namespace_boundary").filter(|boundary| boundary != ":");
    if let Some(Value::Array(list)) = source.take("rpc.namespaces") {
        for options in list {
            let name = options.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let key = format!("rpc.namespaces[{name}]");
            if let Some(boundary) = &boundary {
                let note = format!("a namespace ends with \":\" here, not with {boundary:?}");
                source.row(&key, Mapping::Closed, note);
                continue;
            }
            let to = Path::of("rpc.namespaces").join(name).join("proxy");
            of(source, &key, &to, &options);
        }
    }
}

/// Writes a proxy. Returns false if it has no endpoint or does not use HTTP.
fn define(source: &mut ImportSource, key: &str, name: &str, options: &Map<String, Value>) -> bool {
    let endpoint = options.get("endpoint").and_then(Value::as_str).unwrap_or_default();
    if endpoint.is_empty() {
        return false;
    }
    if name.is_empty() || !(endpoint.starts_with("http://") || endpoint.starts_with("https://")) {
        let note = "it is asked by GRPC, which is not spoken here: nobody is asked, and nothing is granted";
        source.row(key, Mapping::Closed, note);
        return false;
    }
    let to = Path::of("proxies").join(name);
    source.set(&to.join("endpoint"), endpoint);
    for (option, value) in options.iter().filter(|(_, value)| !is_nothing(value)) {
        let of = format!("{key}.{option}");
        match option.as_str() {
            "endpoint" | "name" => {}
            "timeout" => match milliseconds(value) {
                Some(ms) => source.set(&to.join("timeout_ms"), ms),
                None => source.row(&of, Mapping::Absent, "it cannot be read; it is 1 s"),
            },
            // A variable has names with blanks between.
            "http_headers" | "emulated_headers" => {
                let names = match value {
                    Value::String(names) => names.split_whitespace().map(Value::from).collect(),
                    names => names.clone(),
                };
                source.set(&to.join(option), names);
            }
            "include_connection_meta" => source.set(&to.join(option), switch(value)),
            "http" => http(source, &of, &to, value),
            "binary_encoding" => {
                let note = "payloads that are no JSON are in base64, and those that are are not";
                source.row(&of, Mapping::Changed, note);
            }
            _ => source.row(&of, Mapping::Absent, "there is no GRPC"),
        }
    }
    source.row(key, Mapping::Taken, format!("`{to}`"));
    true
}

fn http(source: &mut ImportSource, key: &str, to: &Path, options: &Value) {
    let Value::Object(options) = options else { return };
    for (option, value) in options.iter().filter(|(_, value)| !is_nothing(value)) {
        let of = format!("{key}.{option}");
        match option.as_str() {
            "static_headers" => match headers_of(value) {
                Some(headers) => source.set(&to.join(option), headers),
                None => source.row(&of, Mapping::Closed, "expected names and values; none is sent"),
            },
            "status_to_code_transforms" => {
                source.row(&of, Mapping::Changed, "another status than 200 is error 100 here");
            }
            "tls" if !value.get("enabled").is_some_and(switch) => {}
            "tls" => {
                let ca = value.get("server_ca_pem").or_else(|| value.get("root_ca_pem"));
                match ca.and_then(Value::as_str).filter(|pem| pem.starts_with("-----BEGIN")) {
                    Some(pem) => source.set(&to.join("ca"), pem),
                    None => {
                        let note = "the system's authorities are trusted; write others into `ca`, in PEM. No certificate is shown, and the backend's is always verified";
                        source.row(&of, Mapping::Changed, note);
                    }
                }
            }
            _ => source.row(&of, Mapping::Absent, ""),
        }
    }
}

/// Reads headers: an object, or a list of `key` and `value`.
fn headers_of(value: &Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(headers) => Some(headers.clone()),
        Value::Array(list) => list
            .iter()
            .map(|pair| Some((pair["key"].as_str()?.to_owned(), pair["value"].clone())))
            .collect(),
        _ => None,
    }
}
