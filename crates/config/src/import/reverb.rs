//! Laravel Reverb: the variables that its `config/reverb.php` reads.

use serde_json::{Value, json};

use super::dotenv::Variables;
use super::pusher::{App, listen};
use super::report::Mapping;
use super::source::{ImportSource, Kind, count, switch};
use super::store;
use crate::path::Path;

/// Translates the app of an environment.
pub(super) fn translate(variables: &Variables) -> ImportSource {
    let given = variables.iter().filter(|(name, _)| name.starts_with("REVERB_"));
    let left = given.map(|(name, text)| (name.clone(), Value::from(text.as_str()))).collect();
    let mut source = ImportSource::new(Value::Object(left));
    let mut text = |name: &str| source.text(name).unwrap_or_default();
    let (id, app_key, secret) =
        (text("REVERB_APP_ID"), text("REVERB_APP_KEY"), text("REVERB_APP_SECRET"));
    let accepts = text("REVERB_APP_ACCEPT_CLIENT_EVENTS_FROM");
    let mut options = json!({ "client_events": accepts != "none" });
    if let Some(bytes) = source.take("REVERB_APP_MAX_MESSAGE_SIZE").as_ref().and_then(count) {
        options["event_bytes_max"] = bytes.into();
        let note = "`pusher.apps.main.event_bytes_max`";
        source.row("REVERB_APP_MAX_MESSAGE_SIZE", Mapping::Taken, note);
    }
    App { key: "REVERB_APP", id, app_key, secret, options }.write(&mut source, true);
    if accepts == "all" {
        let note = "`client_events`: of clients that are subscribed to the channel";
        source.row("REVERB_APP_ACCEPT_CLIENT_EVENTS_FROM", Mapping::Changed, note);
    }
    let note = "it stands in `config/reverb.php`, which is not read: `pusher.apps.main.allowed_origins` is [\"*\"], as there by default";
    source.row("allowed_origins", Mapping::Changed, note);
    if let Some(s) = source.take("REVERB_APP_ACTIVITY_TIMEOUT").as_ref().and_then(count) {
        source.taken("REVERB_APP_ACTIVITY_TIMEOUT", "pusher.activity_timeout_ms", s.max(1) * 1_000);
        // A client may take less time to answer than it may be silent.
        source.set(&Path::of("pusher.pong_timeout_ms"), (s.max(1) * 500).min(30_000));
    }
    source.move_as("REVERB_APP_MAX_CONNECTIONS", "limits.connections_max", Kind::Count);
    let host = source.text("REVERB_SERVER_HOST");
    let port = source.take("REVERB_SERVER_PORT").as_ref().and_then(count);
    if host.is_some() || port.is_some() {
        let port = port.and_then(|port| u16::try_from(port).ok()).unwrap_or(8080);
        listen(&mut source, "REVERB_SERVER_HOST", host.as_deref(), port);
    }
    if source.take("REVERB_SCALING_ENABLED").as_ref().is_some_and(switch) {
        scaling(&mut source, variables);
    }
    source.absent(|key| {
        let note = match key {
            "REVERB_HOST" | "REVERB_PORT" | "REVERB_SCHEME" => {
                "it is for backends and clients: point them at Dunlin"
            }
            "REVERB_SERVER_PATH" => "there is no prefix: a proxy in front takes it away",
            _ => "",
        };
        note.to_owned()
    });
    source
}

/// Translates the Redis through which servers share events.
fn scaling(source: &mut ImportSource, variables: &Variables) {
    let get = |name: &str| {
        variables.get(name).map(String::as_str).filter(|text| !text.is_empty() && *text != "null")
    };
    let mut settings = match get("REDIS_URL") {
        Some(url) => match store::of_addresses(&[url.to_owned()]) {
            Ok(settings) => settings,
            // It is refused with the other settings, and ends the import.
            Err(_) => json!({ "addresses": [] }),
        },
        None => {
            let (host, port) =
                (get("REDIS_HOST").unwrap_or("127.0.0.1"), get("REDIS_PORT").unwrap_or("6379"));
            let mut settings = json!({ "addresses": [format!("{host}:{port}")] });
            for (name, key) in [("REDIS_USERNAME", "user"), ("REDIS_PASSWORD", "password")] {
                if let Some(text) = get(name) {
                    settings[key] = text.into();
                }
            }
            if let Some(number) = get("REDIS_DB").and_then(|text| text.parse::<u32>().ok()) {
                settings["database"] = number.into();
            }
            settings
        }
    };
    settings["prefix"] = "dunlin".into();
    store::share(source, settings);
    let note = "`engines.main` and `cluster.engine`: nodes share channels, and presence";
    source.row("REVERB_SCALING_ENABLED", Mapping::Taken, note);
}
