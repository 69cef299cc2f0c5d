//! Wildcards: names with which a client subscribes to many channels, as in NATS.
//!
//! After the `:` of its namespace a name consists of tokens separated by dots. `*` matches one token; `>`, as the
//! last token, matches one or more: `chat:*.typing`, `chat:rooms.>`. A wildcard matches channels of its own namespace
//! and tenant, except [private](PRIVATE) ones and those with [users](USERS) in their names. In a namespace without
//! wildcards these characters have no special meaning.

use crate::tenant;

/// The prefix of private channels.
pub const PRIVATE: char = '$';
/// The character before the users in the name of a channel that is limited to them.
pub const USERS: char = '#';

/// The kind of a name in a namespace with wildcards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// One channel.
    Channel,
    /// A wildcard, which can only be subscribed to.
    Wildcard,
    /// Neither.
    Invalid,
}

impl NameKind {
    /// The kind of a name, with or without its tenant.
    pub fn of(name: &str) -> NameKind {
        if !has_wildcard(name) {
            return NameKind::Channel;
        }
        let (head, rest) = split(name);
        let mut tokens = rest.split('.').peekable();
        let mut is_well_formed = !has_wildcard(head) && !rest.contains(USERS);
        is_well_formed &= !tenant::bare(head).starts_with(PRIVATE);
        while let Some(token) = tokens.next() {
            is_well_formed &= match token {
                "" => false,
                "*" => true,
                ">" => tokens.peek().is_none(),
                token => !has_wildcard(token),
            };
        }
        if is_well_formed { NameKind::Wildcard } else { NameKind::Invalid }
    }
}

/// Whether a wildcard may match the channel.
pub fn may_match(channel: &str) -> bool {
    let (head, rest) = split(channel);
    !tenant::bare(head).starts_with(PRIVATE) && !rest.contains(USERS)
}

/// Splits a name into its tenant, [`PRIVATE`] and namespace up to the `:` (each if present), and its tokens.
pub fn split(name: &str) -> (&str, &str) {
    let bare = tenant::bare(name);
    let namespace = bare.find(':').map_or(0, |at| at + 1);
    let private = usize::from(bare.starts_with(PRIVATE));
    name.split_at(name.len() - bare.len() + namespace.max(private))
}

/// The prefix of all channels that a wildcard matches.
pub fn literal_prefix(wildcard: &str) -> &str {
    let end = wildcard.find(['*', '>']).unwrap_or(wildcard.len());
    &wildcard[..end]
}

fn has_wildcard(text: &str) -> bool {
    text.bytes().any(|byte| matches!(byte, b'*' | b'>'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::qualify;

    #[test]
    fn a_wildcard_is_whole_tokens_of_one_namespace() {
        for wildcard in ["*", ">", "a.*", "a.>", "*.b", "*.*.>", "chat:*", "chat:a.>", "chat:a:*"] {
            let expected =
                if wildcard == "chat:a:*" { NameKind::Invalid } else { NameKind::Wildcard };
            assert_eq!(NameKind::of(wildcard), expected, "{wildcard}");
            assert_eq!(NameKind::of(&qualify("acme", wildcard)), expected, "{wildcard}");
        }
        for channel in ["", "a", "chat:a.b", "chat:", "$chat:a", "chat:a#1,2", "a..b"] {
            assert_eq!(NameKind::of(channel), NameKind::Channel, "{channel}");
        }
        let invalid = [
            "a*",
            "*a",
            "a.>.b",
            ">.a",
            "a..*",
            ".*",
            "*.",
            "**",
            ">>",
            "*:a",
            "ch*:a",
            ">:>",
            "*:*",
            "$*",
            "$chat:*",
            "$>",
            "chat:*#1",
            "#*",
            "chat:a#*",
            "dialog#*,42",
        ];
        for name in invalid {
            assert_eq!(NameKind::of(name), NameKind::Invalid, "{name}");
            assert_eq!(NameKind::of(&qualify("acme", name)), NameKind::Invalid, "{name}");
        }
    }

    #[test]
    fn private_channels_and_those_of_some_users_match_nothing() {
        for channel in ["a", "chat:a.b", "chat:$a", &qualify("acme", "chat:a")] {
            assert!(may_match(channel), "{channel}");
        }
        for channel in ["$a", "$chat:a", "chat:a#1", "#1", &qualify("acme", "$a")] {
            assert!(!may_match(channel), "{channel}");
        }
    }

    #[test]
    fn a_name_is_split_behind_its_namespace() {
        assert_eq!(split("chat:a.b:c"), ("chat:", "a.b:c"));
        assert_eq!(
            (split("a.b"), split("$a"), split("$chat:a")),
            (("", "a.b"), ("$", "a"), ("$chat:", "a"))
        );
        let acme = qualify("acme", "chat:a");
        assert_eq!(split(&acme), (&*qualify("acme", "chat:"), "a"));
        assert_eq!((literal_prefix("chat:a.*.b"), literal_prefix("chat:>")), ("chat:a.", "chat:"));
    }
}
