//! Channels: options of namespaces, and who may do what in them.

use serde_json::{Value, json};

use super::source::{Kind, Source, is_nothing, milliseconds, switch};
use super::{Mapping, Row};
use crate::path::Path;

/// Options that have a counterpart, or close what they guard.
const OWN: &[&str] = &[
    "presence",
    "join_leave",
    "force_push_join_leave",
    "history_size",
    "history_ttl",
    "history_meta_ttl",
    "force_positioning",
    "allow_positioning",
    "force_recovery",
    "allow_recovery",
    "force_recovery_mode",
    "allowed_delta_types",
    "allow_tags_filter",
    "delta_publish",
    "allow_user_limited_channels",
    "channel_regex",
    "subscribe_proxy_enabled",
    "publish_proxy_enabled",
    "sub_refresh_proxy_enabled",
    "subscribe_stream_proxy_enabled",
];

/// Permissions that have the same name here.
const PERMISSIONS: &[&str] = &[
    "allow_subscribe_for_client",
    "allow_subscribe_for_anonymous",
    "allow_publish_for_client",
    "allow_publish_for_subscriber",
    "allow_publish_for_anonymous",
    "allow_history_for_client",
    "allow_history_for_subscriber",
    "allow_history_for_anonymous",
    "allow_presence_for_client",
    "allow_presence_for_subscriber",
    "allow_presence_for_anonymous",
];

/// Options without a counterpart on which no permission depends.
const HARMLESS: &[&str] = &[
    "auto_cache_recover",
    "publication_data_format",
    "subscription_type",
    "map",
    "shared_poll",
    "map_clients_presence_channel_prefix",
    "map_users_presence_channel_prefix",
    "subscribe_proxy_name",
    "publish_proxy_name",
    "sub_refresh_proxy_name",
    "subscribe_stream_proxy_name",
    "subscribe_stream_proxy_bidirectional",
];

/// Whether Centrifugo's v6 has such an option of a namespace; v5 had it at the top.
pub(super) fn is_option(name: &str) -> bool {
    [OWN, PERMISSIONS, HARMLESS].iter().any(|options| options.contains(&name))
}

pub(super) fn channels(source: &mut Source) {
    source.move_as("channel.max_length", "limits.channel_bytes_max", Kind::Count);
    let meta_ttl = source.take("channel.history_meta_ttl");
    let rules = Rules {
        meta_ttl_ms: meta_ttl.as_ref().and_then(milliseconds),
        closed: boundary(source),
        users_are_the_same: users(source),
        anonymous_tokens_refused: source.is_on("client.disallow_anonymous_connection_tokens"),
    };
    if meta_ttl.is_some() {
        let note = "`history_meta_ttl_ms` of each namespace with history";
        source.row("channel.history_meta_ttl", Mapping::Changed, note);
    }
    if rules.anonymous_tokens_refused {
        let note = "tokens without a user are let in here, and may do nothing: no `allow_..._for_anonymous` is taken";
        source.row("client.disallow_anonymous_connection_tokens", Mapping::Closed, note);
    }
    if let Some(options) = source.take("channel.without_namespace") {
        let to = Path::of("channel.without_namespace");
        namespace(source, &rules, "channel.without_namespace", &to, options);
    }
    close_private(source);
    // A list of objects with their names, or as the file of an older version has it, an object.
    match source.take("channel.namespaces") {
        Some(Value::Array(list)) => {
            for mut options in list {
                let name = options.as_object_mut().and_then(|of| of.remove("name"));
                let Some(name) = name.as_ref().and_then(Value::as_str).map(str::to_owned) else {
                    source.row("channel.namespaces", Mapping::Closed, "a namespace without a name");
                    continue;
                };
                let to = Path::of("channel.namespaces").join(&name);
                let key = format!("channel.namespaces[{name}]");
                source.set(&to, json!({}));
                namespace(source, &rules, &key, &to, options);
            }
        }
        Some(_) => {
            source.row("channel.namespaces", Mapping::Closed, "expected a list of namespaces");
        }
        None => {}
    }
}

/// What holds for every namespace.
struct Rules {
    meta_ttl_ms: Option<u64>,
    /// Names of channels are not read as Centrifugo reads them: nobody may do anything in any.
    closed: Option<String>,
    anonymous_tokens_refused: bool,
    users_are_the_same: bool,
}

/// Whether a channel's namespace ends elsewhere than here.
fn boundary(source: &mut Source) -> Option<String> {
    let other = source.text("channel.namespace_boundary").filter(|boundary| boundary != ":")?;
    let note = format!(
        "namespaces end with \":\" here, not with {other:?}: clients may do nothing in any channel"
    );
    source.row("channel.namespace_boundary", Mapping::Closed, &note);
    Some(note)
}

/// Channels of another prefix, which a token opens there, have no name of their own here.
fn close_private(source: &mut Source) {
    if let Some(prefix) = source.text("channel.private_prefix").filter(|prefix| prefix != "$") {
        let note = format!(
            "private channels begin with \"$\" here, not with {prefix:?}: those without a namespace are closed"
        );
        source.row("channel.private_prefix", Mapping::Closed, note);
        revoke(source, &Path::of("channel.without_namespace"));
    }
}

/// Whether the users behind a `#` are written as they are here.
fn users(source: &mut Source) -> bool {
    let mut are_the_same = true;
    for (key, here) in [("channel.user_boundary", "#"), ("channel.user_separator", ",")] {
        if let Some(other) = source.text(key).filter(|other| other != here) {
            let note = format!(
                "it is {here:?} here, not {other:?}: `allow_user_limited_channels` is not taken"
            );
            source.row(key, Mapping::Closed, note);
            are_the_same = false;
        }
    }
    are_the_same
}

fn namespace(source: &mut Source, rules: &Rules, key: &str, to: &Path, options: Value) {
    let Value::Object(options) = options else {
        return source.row(key, Mapping::Closed, "expected an object of options");
    };
    let mut closings: Vec<String> = rules.closed.iter().cloned().collect();
    let is_on = |name: &str| options.get(name).is_some_and(switch);
    let number = |name: &str| options.get(name).and_then(super::source::count).unwrap_or(0);
    let time = |name: &str| options.get(name).and_then(milliseconds).unwrap_or(0);
    let (size, ttl_ms) = (number("history_size"), time("history_ttl"));
    let keeps = size > 0 && ttl_ms > 0;
    let meta_ttl_ms = match time("history_meta_ttl") {
        0 => rules.meta_ttl_ms.unwrap_or(720 * 3_600_000),
        own => own,
    };
    if keeps {
        source.set(&to.join("history_size"), size);
        source.set(&to.join("history_ttl_ms"), ttl_ms);
        source.set(&to.join("history_meta_ttl_ms"), meta_ttl_ms.max(ttl_ms));
    }
    for (name, value) in options.iter().filter(|(_, value)| !is_nothing(value)) {
        let of = format!("{key}.{name}");
        let mut say = |mapping, note: String| {
            source.rows.push(Row { key: of.clone(), mapping, note });
        };
        match name.as_str() {
            "history_size" | "history_ttl" if keeps => say(Mapping::Taken, format!("`{to}`")),
            "history_size" | "history_ttl" => {
                say(Mapping::Changed, "nothing is kept without the other of the two".to_owned());
            }
            "history_meta_ttl" => say(Mapping::Taken, format!("`{to}`")),
            "presence" | "join_leave" => {
                say(Mapping::Taken, format!("`{to}`"));
                source.set(&to.join(name), true);
            }
            "force_push_join_leave" | "allow_tags_filter" | "delta_publish" if switch(value) => {
                say(Mapping::Taken, format!("`{to}`"));
                source.set(&to.join(name), true);
            }
            "force_recovery_mode" if *value == json!("stream") || *value == json!("cache") => {
                say(Mapping::Taken, format!("`{to}`"));
                source.set(&to.join(name), value.clone());
            }
            "allowed_delta_types" if *value == json!(["fossil"]) => {
                say(Mapping::Taken, format!("`{to}`"));
                source.set(&to.join(name), value.clone());
            }
            "force_recovery" | "allow_recovery" if keeps => {
                source.set(&to.join("recover"), true);
                let mapping =
                    if name == "force_recovery" { Mapping::Taken } else { Mapping::Changed };
                source.row(&of, mapping, "`recover`: every subscription of the namespace recovers");
            }
            "force_positioning" | "allow_positioning" if keeps => {
                source.set(&to.join("positioned"), true);
                let mapping =
                    if name == "force_positioning" { Mapping::Taken } else { Mapping::Changed };
                source.row(&of, mapping, "`positioned`, for every subscription of the namespace");
            }
            "force_recovery" | "allow_recovery" | "force_positioning" | "allow_positioning" => {
                say(Mapping::Changed, "off: the namespace keeps no history".to_owned());
            }
            name if PERMISSIONS.contains(&name) => {
                let asks = match () {
                    () if name.contains("_anonymous") && rules.anonymous_tokens_refused => {
                        Some("client.disallow_anonymous_connection_tokens")
                    }
                    () if name.starts_with("allow_subscribe")
                        && is_on("subscribe_proxy_enabled") =>
                    {
                        Some("subscribe_proxy_enabled")
                    }
                    () if name.starts_with("allow_subscribe")
                        && is_on("subscribe_stream_proxy_enabled") =>
                    {
                        Some("subscribe_stream_proxy_enabled")
                    }
                    () if name.starts_with("allow_publish") && is_on("publish_proxy_enabled") => {
                        Some("publish_proxy_enabled")
                    }
                    () => None,
                };
                match asks {
                    Some(asks) => say(Mapping::Closed, format!("off, because of `{asks}`")),
                    None if switch(value) => {
                        say(Mapping::Taken, format!("`{to}`"));
                        source.set(&to.join(name), true);
                    }
                    None => say(Mapping::Closed, "it cannot be read as a switch".to_owned()),
                }
            }
            "subscribe_stream_proxy_enabled" => say(
                Mapping::Closed,
                "backends are asked, and stream nothing: clients come in by a token, or by the API"
                    .to_owned(),
            ),
            "subscribe_proxy_enabled" | "publish_proxy_enabled" | "sub_refresh_proxy_enabled" => {
                let event = name.trim_end_matches("_proxy_enabled");
                let named = options.get(&format!("{event}_proxy_name"));
                let default = format!("channel-{}", event.replace('_', "-"));
                let to = to.join(format!("{event}_proxy"));
                match super::proxy::named(source, named, &default) {
                    Some(proxy) => {
                        let note = format!("`{to}`; an answer `{{}}` grants nothing here");
                        source.row(&of, Mapping::Changed, note);
                        source.set(&to, proxy);
                    }
                    None => source.row(
                        &of,
                        Mapping::Closed,
                        "its proxy could not be taken: nobody is asked, and nothing is granted",
                    ),
                }
            }
            "subscribe_proxy_name" | "publish_proxy_name" | "sub_refresh_proxy_name" => {}
            "channel_regex" => match value.as_str() {
                Some(regex) => {
                    say(Mapping::Taken, format!("`{to}`"));
                    source.set(&to.join(name), regex);
                }
                None => closings.push(format!("`{name}` is no text")),
            },
            "allow_user_limited_channels" if switch(value) => {
                match rules.users_are_the_same && !is_on("subscribe_proxy_enabled") {
                    true => {
                        say(Mapping::Taken, format!("`{to}`"));
                        source.set(&to.join(name), true);
                    }
                    // A name that limits who may come would limit nobody.
                    false => closings.push(format!("`{name}`")),
                }
            }
            name if HARMLESS.contains(&name) => {
                say(Mapping::Absent, super::client::absent_note(name));
            }
            // It may be a condition: what it guards is not known.
            name => closings.push(format!("`{name}` is not known")),
        }
    }
    if let Some(why) = closings.first() {
        let more = if closings.len() > 1 {
            format!(", and {} more", closings.len() - 1)
        } else {
            String::new()
        };
        source.row(key, Mapping::Closed, format!("clients may do nothing in it: {why}{more}"));
        revoke(source, to);
    }
}

/// Takes every permission of a namespace back.
fn revoke(source: &mut Source, to: &Path) {
    let mut at = &mut source.out;
    for step in to.steps() {
        match at.get_mut(step) {
            Some(within) => at = within,
            None => return,
        }
    }
    if let Value::Object(options) = at {
        options.retain(|name, _| !name.starts_with("allow_") && !name.ends_with("_proxy"));
    }
}
