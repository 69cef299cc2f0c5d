//! What a token permits in channels in addition to what their namespaces allow: the claims `caps` and `allow`
//! (Centrifugo's docs, "Channel capabilities"). They only grant, and never deny.

use std::collections::HashMap;

use dunlin_hub::wildcard;
use serde::{Deserialize, Deserializer};

use crate::namespace::bounded_regex::BoundedRegex;

/// The most compiled expressions in the cache.
const COMPILED_MAX: usize = 256;
/// The most expressions of one token.
const REGEXES_MAX: usize = 32;

/// A set of operations on a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allow(u8);

impl Allow {
    /// Nothing.
    pub const NONE: Allow = Allow(0);
    /// Subscribe (`sub`).
    pub const SUBSCRIBE: Allow = Allow(1);
    /// Publish (`pub`).
    pub const PUBLISH: Allow = Allow(2);
    /// Read presence, and receive joins and leaves (`prs`).
    pub const PRESENCE: Allow = Allow(4);
    /// Read the history, and recover (`hst`).
    pub const HISTORY: Allow = Allow(8);

    /// Whether all of these are among them.
    pub fn contains(self, all: Allow) -> bool {
        self.0 & all.0 == all.0
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(self, other: Allow) -> Allow {
        Allow(self.0 | other.0)
    }
}

impl<'de> Deserialize<'de> for Allow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Allow, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Name {
            Sub,
            Pub,
            Prs,
            Hst,
        }
        let names = Vec::<Name>::deserialize(deserializer)?;
        Ok(names.into_iter().fold(Allow::NONE, |allow, name| {
            allow.union(match name {
                Name::Sub => Allow::SUBSCRIBE,
                Name::Pub => Allow::PUBLISH,
                Name::Prs => Allow::PRESENCE,
                Name::Hst => Allow::HISTORY,
            })
        }))
    }
}

/// The claim `caps`. A channel is granted the union of what its entries grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Box<[Capability]>")]
pub struct Capabilities(Box<[Capability]>);

impl TryFrom<Box<[Capability]>> for Capabilities {
    type Error = String;

    fn try_from(all: Box<[Capability]>) -> Result<Capabilities, String> {
        let by_regex = all.iter().filter(|capability| capability.by == Match::Regex);
        if by_regex.map(|capability| capability.channels.len()).sum::<usize>() > REGEXES_MAX {
            return Err(format!("`caps` has more than {REGEXES_MAX} expressions"));
        }
        Ok(Capabilities(all))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Capability {
    #[serde(deserialize_with = "dunlin_protocol::json::nullable")]
    channels: Box<[Box<str>]>,
    #[serde(default, rename = "match", deserialize_with = "dunlin_protocol::json::nullable")]
    by: Match,
    #[serde(deserialize_with = "dunlin_protocol::json::nullable")]
    allow: Allow,
}

/// How the channels of a capability are matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Match {
    /// Exact names.
    #[default]
    #[serde(alias = "")]
    Exact,
    /// `*` stands for any text.
    Wildcard,
    /// Regular expressions.
    Regex,
}

impl Capabilities {
    /// Whether there are no grants.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns what a client may do in the channel.
    pub fn in_channel(&self, channel: &str, regexes: &mut Regexes) -> Allow {
        let granting = self.0.iter().filter(|capability| {
            capability.channels.iter().any(|name| match capability.by {
                Match::Exact => **name == *channel,
                Match::Wildcard => matches_wildcard(name, channel),
                Match::Regex => regexes.is_match(name, channel),
            })
        });
        granting.fold(Allow::NONE, |allow, capability| allow.union(capability.allow))
    }
}

impl Capabilities {
    /// Returns what a client may do in all channels that a wildcard matches. An entry that covers only some of them grants
    /// nothing: it must be the wildcard itself, or a prefix of all of them followed by one `*`.
    pub fn in_wildcard(&self, name: &str) -> Allow {
        let prefix = wildcard::literal_prefix(name);
        let granting = self.0.iter().filter(|capability| {
            capability.channels.iter().any(|of| match capability.by {
                Match::Exact => **of == *name,
                Match::Wildcard => of
                    .strip_suffix('*')
                    .is_some_and(|text| !text.contains('*') && prefix.starts_with(text)),
                Match::Regex => false,
            })
        });
        granting.fold(Allow::NONE, |allow, capability| allow.union(capability.allow))
    }
}

/// A cache of compiled expressions, so that sessions hold only their texts.
#[derive(Debug, Default)]
pub struct Regexes(HashMap<Box<str>, BoundedRegex>);

impl Regexes {
    /// An expression that does not compile matches nothing.
    fn is_match(&mut self, text: &str, channel: &str) -> bool {
        if let Some(regex) = self.0.get(text) {
            return regex.is_match(channel);
        }
        if self.0.len() >= COMPILED_MAX {
            self.0.clear();
        }
        let regex = BoundedRegex::of_token(text);
        let is_match = regex.is_match(channel);
        self.0.insert(text.into(), regex);
        is_match
    }
}

/// Matches a pattern in which `*` stands for any text, in at most O(pattern length × name length).
fn matches_wildcard(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        // The first occurrence suffices: it leaves the longest rest.
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn allowed(caps: Value, channel: &str) -> Allow {
        let caps: Capabilities = serde_json::from_value(caps).unwrap();
        caps.in_channel(channel, &mut Regexes::default())
    }

    #[test]
    fn a_channel_is_granted_what_any_entry_grants_it() {
        let caps = json!([
            {"channels": ["news", "user_42"], "allow": ["sub"]},
            {"channels": ["user_42"], "allow": ["pub", "hst"]},
            {"channels": ["chat:*"], "match": "wildcard", "allow": ["sub", "prs"]},
            {"channels": ["^posts_[0-9]+$", "("], "match": "regex", "allow": ["sub"]},
        ]);
        let of = |channel| allowed(caps.clone(), channel);
        assert_eq!(of("news"), Allow::SUBSCRIBE);
        let all = Allow::SUBSCRIBE.union(Allow::PUBLISH).union(Allow::HISTORY);
        assert!(of("user_42") == all && !all.contains(Allow::PRESENCE));
        assert_eq!(of("chat:1"), Allow::SUBSCRIBE.union(Allow::PRESENCE));
        assert_eq!(of("posts_7"), Allow::SUBSCRIBE);
        for nowhere in ["News", "chat", "posts_", "xposts_7", "(", ""] {
            assert_eq!(of(nowhere), Allow::NONE, "{nowhere}");
        }
    }

    #[test]
    fn a_wildcard_is_granted_by_what_covers_all_of_it() {
        let of = |channels: Value, by: &str, name: &str| {
            let caps = json!([{"channels": channels, "match": by, "allow": ["sub"]}]);
            let caps: Capabilities = serde_json::from_value(caps).unwrap();
            caps.in_wildcard(name) == Allow::SUBSCRIBE
        };
        assert!(of(json!(["chat:a.*"]), "", "chat:a.*"), "it names it");
        assert!(
            !of(json!(["chat:a.*"]), "", "chat:a.>") && !of(json!(["chat:a.b"]), "", "chat:a.*")
        );
        for covering in ["*", "chat:*", "chat:a*", "chat:a.*"] {
            assert!(of(json!([covering]), "wildcard", "chat:a.*"), "{covering}");
            assert!(of(json!([covering]), "wildcard", "chat:a.b.>"), "{covering}");
        }
        // Each entry matches the wildcard's text, but not all channels that the wildcard matches.
        for some in
            ["chat:a.*.b", "chat:a.*1", "*.*", "chat:a.*x*", "chat:a.b*", "chat:a.>", "chat:a.*>"]
        {
            assert!(!of(json!([some]), "wildcard", "chat:a.*"), "{some}");
            assert!(!of(json!([some]), "wildcard", "chat:a.>"), "{some}");
        }
        for some in ["^chat:a\\.[^b]$", ".*", "^chat:a\\.\\*$", "^chat:"] {
            assert!(!of(json!([some]), "regex", "chat:a.*"), "{some}");
        }
    }

    #[test]
    fn claims_that_are_no_capabilities_are_refused() {
        for caps in [
            json!({}),
            json!([{"channels": "news", "allow": ["sub"]}]),
            json!([{"channels": ["news"], "allow": ["everything"]}]),
            json!([{"channels": ["news"], "match": "sql", "allow": ["sub"]}]),
            json!([{"channels": ["news"]}]),
            json!([{"channels": vec!["a"; REGEXES_MAX + 1], "match": "regex", "allow": ["sub"]}]),
        ] {
            assert!(serde_json::from_value::<Capabilities>(caps.clone()).is_err(), "{caps}");
        }
    }

    #[test]
    fn a_wildcard_is_any_text() {
        for (pattern, name, matches) in [
            ("*", "", true),
            ("*", "a:b", true),
            ("a*", "a", true),
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "ac", false),
            ("ab*ba", "aba", false),
            ("", "", true),
            ("", "a", false),
            ("\u{e4}*", "\u{e4}\u{f6}", true),
        ] {
            assert_eq!(matches_wildcard(pattern, name), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn compiled_expressions_are_bounded() {
        let mut regexes = Regexes::default();
        for n in 0..1_000 {
            assert!(regexes.is_match(&format!("^{n}$"), &n.to_string()));
        }
        assert!(regexes.0.len() <= COMPILED_MAX);
    }
}
