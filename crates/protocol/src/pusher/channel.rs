//! Channel names and their prefixes.

/// Maximum length of a channel's name in bytes, which Pusher's libraries also check.
pub const NAME_BYTES_MAX: usize = 200;

const SERVER_TO_USER: &str = "#server-to-user-";

/// The kind of a channel, by the prefix of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelKind {
    /// Anyone who knows the app's key may subscribe.
    Public,
    /// `private-`: a subscription needs a signature of the backend. So does `private-encrypted-`, whose payloads only
    /// clients can decrypt.
    Private,
    /// `presence-`: private, and subscribers can see each other.
    Presence,
    /// `#server-to-user-ID`: for the connections of one user.
    User,
}

impl ChannelKind {
    /// Returns the kind of a channel.
    pub fn of(name: &str) -> ChannelKind {
        if name.starts_with("private-") {
            ChannelKind::Private
        } else if name.starts_with("presence-") {
            ChannelKind::Presence
        } else if name.starts_with('#') {
            ChannelKind::User
        } else {
            ChannelKind::Public
        }
    }

    /// Returns whether new subscribers receive the last event: `cache-`, `private-cache-`, `presence-cache-`,
    /// `private-encrypted-cache-`.
    pub fn is_cache(name: &str) -> bool {
        let rest =
            name.strip_prefix("private-encrypted-").or_else(|| name.strip_prefix("private-"));
        rest.or_else(|| name.strip_prefix("presence-")).unwrap_or(name).starts_with("cache-")
    }

    /// Returns whether the publisher's library encrypts the payloads.
    pub fn is_encrypted(name: &str) -> bool {
        name.starts_with("private-encrypted-")
    }

    /// Returns whether clients may send events to each other, if their app permits it.
    pub fn takes_client_events(name: &str) -> bool {
        matches!(ChannelKind::of(name), ChannelKind::Private | ChannelKind::Presence)
            && !ChannelKind::is_encrypted(name)
    }
}

/// Returns whether a name is valid: letters, digits and `_-=@,.;`, at most [`NAME_BYTES_MAX`] bytes; or the channel of
/// a user.
pub fn is_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_-=@,.;".contains(&byte);
    let is_user = name.strip_prefix(SERVER_TO_USER).is_some_and(|user| !user.is_empty());
    (1..=NAME_BYTES_MAX).contains(&name.len()) && (is_user || name.bytes().all(legal))
}

/// Returns the channel's name in this protocol, from its name in the hub.
pub fn pusher_name(channel: &str) -> &str {
    channel.split_once(':').map_or(channel, |(_, name)| name)
}

/// Returns the name of a user's channel, on which backends send to all connections of the user.
pub fn server_to_user_channel(user: &str) -> String {
    format!("{SERVER_TO_USER}{user}")
}

/// Returns the user whose channel this is.
pub fn server_to_user(name: &str) -> Option<&str> {
    name.strip_prefix(SERVER_TO_USER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_name_begins_says_what_its_channel_is() {
        use ChannelKind::{Presence, Private, Public, User};
        for (name, kind, cache) in [
            ("news", Public, false),
            ("cache-news", Public, true),
            ("privately", Public, false),
            ("private-a", Private, false),
            ("private-cache-a", Private, true),
            ("private-encrypted-a", Private, false),
            ("private-encrypted-cache-a", Private, true),
            ("presence-a", Presence, false),
            ("presence-cache-a", Presence, true),
            ("#server-to-user-42", User, false),
        ] {
            assert_eq!(
                (ChannelKind::of(name), ChannelKind::is_cache(name)),
                (kind, cache),
                "{name}"
            );
            assert!(is_name(name));
        }
        assert!(ChannelKind::takes_client_events("presence-a"));
        for name in ["news", "private-encrypted-a", "#server-to-user-42"] {
            assert!(!ChannelKind::takes_client_events(name), "{name}");
        }
    }

    #[test]
    fn name_that_reads_as_a_pattern_is_refused() {
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for name in ["", "a b", "a:b", "a/b", "ä", "a*", "#", "#server-to-user-", "#other", &long]
        {
            assert!(!is_name(name), "{name}");
        }
        assert!(is_name("#server-to-user-a:b c"));
        assert_eq!(pusher_name("chat:#server-to-user-a:b"), "#server-to-user-a:b");
        assert_eq!(server_to_user("#server-to-user-a:b"), Some("a:b"));
    }
}
