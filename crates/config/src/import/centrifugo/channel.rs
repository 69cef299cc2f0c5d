//! Channels: options of namespaces, and who may do what in them.

use serde_json::{Map, Value, json};

use crate::import::report::Mapping;
use crate::import::source::{ImportSource, Kind, is_nothing, milliseconds, switch};
use crate::import::validity::revoke;
use crate::path::Path;

/// Options that are handled one by one: they have a counterpart, or close what they guard.
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

/// Permissions with the same name in Dunlin.
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

/// Expressions with the same name in Dunlin.
const EXPRESSIONS: &[&str] = &["subscribe_cel", "publish_cel", "history_cel", "presence_cel"];

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
    "keep_latest_publication",
    "shared_position_sync",
    "write_delay",
];

/// Returns whether Centrifugo v6 has this option in a namespace; v5 had it at the top level.
pub(super) fn is_option(name: &str) -> bool {
    [OWN, PERMISSIONS, EXPRESSIONS, HARMLESS].iter().any(|options| options.contains(&name))
}

pub(super) fn channels(source: &mut ImportSource) {
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
    // A list of objects with names; older versions of the file have an object, which is refused.
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

/// Settings that apply to every namespace.
struct Rules {
    meta_ttl_ms: Option<u64>,
    /// Why all channels are closed: Centrifugo would split their names differently.
    closed: Option<String>,
    anonymous_tokens_refused: bool,
    users_are_the_same: bool,
}

/// Returns why all channels must be closed, if namespaces end with another separator than `:`.
fn boundary(source: &mut ImportSource) -> Option<String> {
    let other = source.text("channel.namespace_boundary").filter(|boundary| boundary != ":")?;
    let note = format!(
        "namespaces end with \":\" here, not with {other:?}: clients may do nothing in any channel"
    );
    source.row("channel.namespace_boundary", Mapping::Closed, &note);
    Some(note)
}

/// Closes channels without a namespace if private channels have another prefix than `$`: the prefix would have no
/// meaning in Dunlin.
fn close_private(source: &mut ImportSource) {
    if let Some(prefix) = source.text("channel.private_prefix").filter(|prefix| prefix != "$") {
        let note = format!(
            "private channels begin with \"$\" here, not with {prefix:?}: those without a namespace are closed"
        );
        source.row("channel.private_prefix", Mapping::Closed, note);
        revoke(source, &Path::of("channel.without_namespace"));
    }
}

/// Returns whether users after a `#` are written as in Dunlin.
fn users(source: &mut ImportSource) -> bool {
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

fn namespace(source: &mut ImportSource, rules: &Rules, key: &str, to: &Path, options: Value) {
    let Value::Object(options) = options else {
        return source.row(key, Mapping::Closed, "expected an object of options");
    };
    let closings = rules.closed.iter().cloned().collect();
    let mut namespace =
        Namespace { source, rules, key, to, options: &options, keeps: false, closings };
    namespace.read_history();
    for (name, value) in options.iter().filter(|(_, value)| !is_nothing(value)) {
        namespace.read(name, value);
    }
    namespace.close();
}

/// A namespace while its options are read.
struct Namespace<'a> {
    source: &'a mut ImportSource,
    rules: &'a Rules,
    key: &'a str,
    to: &'a Path,
    options: &'a Map<String, Value>,
    /// Whether the namespace has history: both size and TTL are set.
    keeps: bool,
    /// Reasons why clients may do nothing in it.
    closings: Vec<String>,
}

impl Namespace<'_> {
    fn is_on(&self, name: &str) -> bool {
        self.options.get(name).is_some_and(switch)
    }

    fn row(&mut self, name: &str, mapping: Mapping, note: impl Into<String>) {
        self.source.row(&format!("{}.{name}", self.key), mapping, note);
    }

    /// Copies an option with the same name.
    fn take(&mut self, name: &str, value: impl Into<Value>) {
        self.row(name, Mapping::Taken, format!("`{}`", self.to));
        self.source.set(&self.to.join(name), value);
    }

    /// Converts the history options, which only have an effect together.
    fn read_history(&mut self) {
        let time = |name: &str| self.options.get(name).and_then(milliseconds).unwrap_or(0);
        let size =
            self.options.get("history_size").and_then(crate::import::source::count).unwrap_or(0);
        let ttl_ms = time("history_ttl");
        let meta_ttl_ms = match time("history_meta_ttl") {
            0 => self.rules.meta_ttl_ms.unwrap_or(720 * 3_600_000),
            own => own,
        };
        self.keeps = size > 0 && ttl_ms > 0;
        if self.keeps {
            self.source.set(&self.to.join("history_size"), size);
            self.source.set(&self.to.join("history_ttl_ms"), ttl_ms);
            self.source.set(&self.to.join("history_meta_ttl_ms"), meta_ttl_ms.max(ttl_ms));
        }
    }

    fn read(&mut self, name: &str, value: &Value) {
        match name {
            "history_size" | "history_ttl" if !self.keeps => {
                self.row(name, Mapping::Changed, "nothing is kept without the other of the two");
            }
            "history_size" | "history_ttl" | "history_meta_ttl" => {
                self.row(name, Mapping::Taken, format!("`{}`", self.to));
            }
            "presence"
            | "join_leave"
            | "force_push_join_leave"
            | "allow_tags_filter"
            | "delta_publish" => match switch(value) {
                true => self.take(name, true),
                false => self.row(name, Mapping::Absent, "it is off"),
            },
            "force_recovery_mode" if *value == json!("stream") || *value == json!("cache") => {
                self.take(name, value.clone());
            }
            // A client may ignore these, so nothing depends on them.
            "force_recovery_mode" => self.row(name, Mapping::Absent, "`stream`, as by default"),
            "allowed_delta_types" => match names_of(value).iter().any(|kind| kind == "fossil") {
                true => self.take(name, json!(["fossil"])),
                false => self.row(name, Mapping::Absent, "the one kind of deltas is `fossil`"),
            },
            "force_recovery" | "allow_recovery" | "force_positioning" | "allow_positioning" => {
                self.read_recovery(name);
            }
            _ if PERMISSIONS.contains(&name) => self.read_permission(name, value),
            _ if EXPRESSIONS.contains(&name) => self.read_expression(name, value),
            "subscribe_stream_proxy_enabled" => self.row(
                name,
                Mapping::Closed,
                "backends are asked, and stream nothing: clients come in by a token, or by the API",
            ),
            "subscribe_proxy_enabled" | "publish_proxy_enabled" | "sub_refresh_proxy_enabled" => {
                self.read_proxy(name);
            }
            "subscribe_proxy_name" | "publish_proxy_name" | "sub_refresh_proxy_name" => {}
            "channel_regex" => match value.as_str() {
                Some(regex) => self.take(name, regex),
                None => self.closings.push(format!("`{name}` is no text")),
            },
            "allow_user_limited_channels" if switch(value) => {
                match self.rules.users_are_the_same && !self.is_on("subscribe_proxy_enabled") {
                    true => self.take(name, true),
                    // If the option were dropped, a name that should restrict the users would restrict nobody.
                    false => self.closings.push(format!("`{name}`")),
                }
            }
            _ if is_hint(name) => {
                self.row(name, Mapping::Absent, super::client::absent_note(name));
            }
            // An unknown option may be a restriction.
            _ => self.closings.push(format!("`{name}` is not known")),
        }
    }

    /// Converts recovery and positioning, which apply to every subscription in Dunlin and need history.
    fn read_recovery(&mut self, name: &str) {
        if !self.keeps {
            return self.row(name, Mapping::Changed, "off: the namespace keeps no history");
        }
        let (to, note) = match name.ends_with("_recovery") {
            true => ("recover", "`recover`: every subscription of the namespace recovers"),
            false => ("positioned", "`positioned`, for every subscription of the namespace"),
        };
        let is_forced = name.starts_with("force_");
        self.row(name, if is_forced { Mapping::Taken } else { Mapping::Changed }, note);
        self.source.set(&self.to.join(to), true);
    }

    /// Copies a permission, unless a backend decides instead.
    fn read_permission(&mut self, name: &str, value: &Value) {
        let asks_instead = |event: &str, proxy: &str| {
            name.starts_with(&format!("allow_{event}")) && self.is_on(proxy)
        };
        let asks = if name.contains("_anonymous") && self.rules.anonymous_tokens_refused {
            Some("client.disallow_anonymous_connection_tokens")
        } else {
            [
                ("subscribe", "subscribe_proxy_enabled"),
                ("subscribe", "subscribe_stream_proxy_enabled"),
                ("publish", "publish_proxy_enabled"),
            ]
            .into_iter()
            .find_map(|(event, proxy)| asks_instead(event, proxy).then_some(proxy))
        };
        match asks {
            Some(asks) => self.row(name, Mapping::Closed, format!("off, because of `{asks}`")),
            None if switch(value) => self.take(name, true),
            None => self.row(name, Mapping::Closed, "it cannot be read as a switch"),
        }
    }

    /// Copies an expression if it is the only rule of its kind. Next to other rules it may be an additional condition.
    fn read_expression(&mut self, name: &str, value: &Value) {
        let event = name.trim_end_matches("_cel");
        let rule = format!("allow_{event}_");
        let is_alone = !self.options.keys().any(|key| key.starts_with(&rule) && self.is_on(key))
            && !self.is_on(&format!("{event}_proxy_enabled"))
            && !self.is_on(&format!("{event}_stream_proxy_enabled"))
            && !self.rules.anonymous_tokens_refused;
        match value.as_str() {
            Some(text) if is_alone => self.take(name, text),
            Some(_) => self.closings.push(format!("`{name}` is not the only rule of its kind")),
            None => self.closings.push(format!("`{name}` is no text")),
        }
    }

    fn read_proxy(&mut self, name: &str) {
        let event = name.trim_end_matches("_proxy_enabled");
        let named = self.options.get(&format!("{event}_proxy_name"));
        let default = format!("channel-{}", event.replace('_', "-"));
        let to = self.to.join(format!("{event}_proxy"));
        match super::proxy::named(self.source, named, &default) {
            Some(proxy) => {
                let note = format!("`{to}`; an answer `{{}}` grants nothing here");
                self.row(name, Mapping::Changed, note);
                self.source.set(&to, proxy);
            }
            None => self.row(
                name,
                Mapping::Closed,
                "its proxy could not be taken: nobody is asked, and nothing is granted",
            ),
        }
    }

    /// Revokes all permissions if an option that could not be converted might have restricted them.
    fn close(self) {
        let Some(why) = self.closings.first() else { return };
        let more = match self.closings.len() {
            1 => String::new(),
            all => format!(", and {} more", all - 1),
        };
        let note = format!("clients may do nothing in it: {why}{more}");
        self.source.row(self.key, Mapping::Closed, note);
        revoke(self.source, self.to);
    }
}

/// Returns whether nothing that anybody may do depends on this option: hints about when and how to deliver.
fn is_hint(name: &str) -> bool {
    HARMLESS.contains(&name)
        || ["batch_", "state_proxy_", "cache_empty_proxy_", "map_", "shared_poll"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        || ["debounce", "throttle", "_delay", "_hint"].iter().any(|part| name.contains(part))
}

/// Reads a list of names, or one text with blanks.
fn names_of(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Value::String(names) => names.split_whitespace().map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}
