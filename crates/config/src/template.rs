//! The default file, read off the schema: each key with its documentation and its default.

use std::fmt::Write;

use serde_json::Value;

use crate::schema::{self, Kind, SchemaNode};

const COLUMNS: usize = 96;

const HEAD: &str = "\
# Dunlin's settings: every key, with its default. A key left out has the default; a key that does
# not exist is refused. Check a file with `dunlin config check FILE`.
";

/// Names for the examples of tables with keys of the operator's choice.
const EXAMPLES: [(&str, &str); 22] = [
    ("admin.tokens", "dashboard"),
    ("api.keys", "backend"),
    ("api.scopes", "backend"),
    ("channel.namespaces", "chat"),
    ("client.token.keys", "2026-01"),
    ("client.token.labels_from_claim", "region"),
    ("client.subscription_token.keys", "2026-01"),
    ("engines", "main"),
    ("listeners", "internal"),
    ("proxies", "backend"),
    ("proxies.backend.static_headers", "X-Api-Key"),
    ("tenants", "acme"),
    ("tenants.acme.api_keys", "backend"),
    ("tenants.acme.namespaces", "chat"),
    ("tenants.acme.token_keys", "acme-1"),
    ("webhooks.upstreams", "backend"),
    ("webhooks.upstreams.backend.members", "a"),
    ("webhooks.hooks", "audit"),
    ("pusher.apps", "shop"),
    ("push.apns", "my-app"),
    ("push.fcm", "my-app"),
    ("push.vapid", "my-site"),
];

pub(crate) fn toml() -> String {
    let mut out = HEAD.to_owned();
    table(&mut out, "", schema::root(), false);
    out
}

/// Writes a table: its own keys first, then its subtables, as TOML requires. `commented` writes it as an example, for a
/// table that does not exist by default.
fn table(out: &mut String, path: &str, schema: &SchemaNode, commented: bool) {
    let hash = if commented { "#" } else { "" };
    let is_table = |node: &SchemaNode| matches!(node.kind, Kind::Table(_) | Kind::Map(_));
    if schema.keys().iter().any(|(_, node)| !is_table(node)) {
        out.push('\n');
        if !commented {
            comment(out, &schema.description);
        }
        line(out, &format!("{hash}[{path}]"));
    }
    for (key, node) in schema.keys().iter().filter(|(_, node)| !is_table(node)) {
        if !commented {
            out.push('\n');
            comment(out, &note(node));
        }
        match (&node.default, node.optional) {
            (_, true) => line(out, &format!("#{key} = {}", placeholder(&node.kind))),
            (default, _) => line(out, &format!("{hash}{key} = {}", value(key, default))),
        }
    }
    for (key, node) in schema.keys().iter().filter(|(_, node)| is_table(node)) {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let Kind::Map(below) = &node.kind else {
            table(out, &path, node, commented);
            continue;
        };
        let example = EXAMPLES.iter().find(|(map, _)| *map == path).map_or("name", |(_, e)| e);
        out.push('\n');
        comment(out, &note(node));
        if matches!(below.kind, Kind::Table(_)) {
            table(out, &format!("{path}.{example}"), below, true);
        } else {
            line(out, &format!("#[{path}]"));
            line(out, &format!("#{example} = {}", placeholder(&below.kind)));
        }
    }
}

/// Returns a possible value of an option of this kind.
fn placeholder(kind: &Kind) -> String {
    match kind {
        Kind::Integer { min, .. } => min.to_string(),
        Kind::Choice(words) => format!("\"{}\"", words[0].0),
        Kind::SocketAddress => "\"127.0.0.1:7443\"".to_owned(),
        _ => "\"...\"".to_owned(),
    }
}

/// Returns the documentation, the values allowed if the default does not show them, and when a change takes effect.
fn note(node: &SchemaNode) -> String {
    let mut note = node.description.clone();
    match &node.kind {
        Kind::Integer { .. } => {
            let _ = write!(note, " {}.", capitalised(&node.kind.to_string()));
        }
        Kind::Choice(words) => {
            for (word, meaning) in words {
                let _ =
                    write!(note, " \"{word}\": {}{}", meaning[..1].to_lowercase(), &meaning[1..]);
            }
        }
        _ => {}
    }
    if let Some(applies) = node.applies {
        let _ = write!(note, " ({applies})");
    }
    note
}

fn capitalised(message: &str) -> String {
    let mut chars = message.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn comment(out: &mut String, text: &str) {
    let mut width = 0;
    for word in text.split_whitespace() {
        if width == 0 || width + 1 + word.len() > COLUMNS {
            out.push_str(if width == 0 { "#" } else { "\n#" });
            width = 1;
        }
        out.push(' ');
        out.push_str(word);
        width += 1 + word.len();
    }
    out.push('\n');
}

/// Formats a default for TOML, with digits of long numbers in groups of three.
pub(crate) fn value(key: &str, default: &Value) -> String {
    match default {
        Value::Number(number) if !key.ends_with("_addr") => grouped(&number.to_string()),
        Value::Array(elements) => {
            let elements: Vec<_> = elements.iter().map(|element| value(key, element)).collect();
            format!("[{}]", elements.join(", "))
        }
        other => other.to_string(),
    }
}

fn grouped(digits: &str) -> String {
    if digits.len() < 5 {
        return digits.to_owned();
    }
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('_');
        }
        out.push(digit);
    }
    out
}
