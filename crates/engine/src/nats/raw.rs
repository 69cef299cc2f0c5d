//! Maps channels directly to subjects, with payloads from any publisher.

use dunlin_hub::tenant::MARK;
use dunlin_hub::wildcard;

/// The longest subject, in bytes.
const SUBJECT_BYTES_MAX: usize = 1_024;

/// Maps the channels of a raw engine to subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSubjects {
    /// The prefix of each subject, with its final dot; may be empty.
    pub prefix: String,
    /// Replaces the `:` after a namespace.
    pub separator: char,
    /// The first token of the engine's own subjects.
    pub reserved: String,
}

impl RawSubjects {
    /// Returns the subject of a channel or a wildcard. `None` if it is not a valid subject, or one that clients must not reach:
    /// the engine's own, and those of the server, which begin with `$` or `_`.
    pub fn of(&self, name: &str, is_wildcard: bool) -> Option<String> {
        let mut subject = self.literal(name)?;
        subject.push_str(wildcard::split(name).1);
        let mut tokens = subject.split('.').peekable();
        let first = *tokens.peek()?;
        if subject.len() > SUBJECT_BYTES_MAX
            || first.starts_with(['$', '_', '*', '>'])
            || first == self.reserved
            || subject.bytes().any(|byte| byte <= b' ' || byte == 0x7f)
        {
            return None;
        }
        while let Some(token) = tokens.next() {
            let fits = match token {
                "" => false,
                "*" => is_wildcard,
                ">" => is_wildcard && tokens.peek().is_none(),
                token => !token.contains(['*', '>']),
            };
            if !fits {
                return None;
            }
        }
        Some(subject)
    }

    /// Returns the channel of a message received through a wildcard.
    pub(super) fn channel_of(&self, name: &str, subject: &[u8]) -> Option<String> {
        let tokens = str::from_utf8(subject).ok()?.strip_prefix(&self.literal(name)?)?;
        Some(format!("{}{tokens}", wildcard::split(name).0))
    }

    /// Returns the prefix of all subjects of a namespace.
    fn literal(&self, name: &str) -> Option<String> {
        if name.starts_with(MARK) {
            return None;
        }
        let (head, _) = wildcard::split(name);
        Some(match head.strip_suffix(':') {
            Some(namespace) => format!("{}{namespace}{}", self.prefix, self.separator),
            None => format!("{}{head}", self.prefix),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects(prefix: &str, separator: char) -> RawSubjects {
        RawSubjects { prefix: prefix.into(), separator, reserved: "dunlin".into() }
    }

    #[test]
    fn a_channel_is_a_subject_as_it_is() {
        let (bare, app) = (subjects("", '.'), subjects("app.", ':'));
        assert_eq!(bare.of("chat:a.b", false).as_deref(), Some("chat.a.b"));
        assert_eq!(app.of("chat:a.b", false).as_deref(), Some("app.chat:a.b"));
        assert_eq!(app.of("$chat:a", false).as_deref(), Some("app.$chat:a"));
        assert_eq!(app.of("news", false).as_deref(), Some("app.news"));
        assert_eq!(bare.of("chat:*.>", true).as_deref(), Some("chat.*.>"));
        assert_eq!(bare.channel_of("chat:>", b"chat.a.b").as_deref(), Some("chat:a.b"));
        assert_eq!(app.channel_of("chat:a.*", b"app.chat:a.b").as_deref(), Some("chat:a.b"));
        assert_eq!(bare.channel_of("chat:>", b"other.a"), None);
        assert_eq!(bare.channel_of("chat:>", b"chat.\xff"), None);
    }

    #[test]
    fn no_client_reaches_the_servers_subjects_or_the_engines_own() {
        let (bare, app) = (subjects("", '.'), subjects("app.", '.'));
        for name in [
            "$SYS:a",
            "$SYS.>",
            "$JS.API.STREAM.DELETE.x",
            "_INBOX:a",
            "_INBOX.a",
            "dunlin:r.1.2",
            "dunlin.p.x",
            "*",
            ">",
            "*.a",
            ">.a",
            "",
            "a.",
            ".a",
            "a..b",
            "chat:",
            "chat:.a",
            "chat:a.",
            "chat:a b",
            "chat:a\r\nPUB x",
            "chat:a\tb",
            "chat:a\u{7f}",
            "chat:a*",
            "chat:>.a",
            "\u{1}acme\u{1}chat:a",
        ] {
            for is_wildcard in [false, true] {
                assert_eq!(bare.of(name, is_wildcard), None, "{name:?}");
            }
        }
        assert_eq!((bare.of("chat:*", false), bare.of("chat:>", false)), (None, None));
        // After a prefix these are ordinary names, and wildcards match only names with the prefix.
        assert_eq!(app.of("$SYS:a", false).as_deref(), Some("app.$SYS.a"));
        assert_eq!(app.of(">", true).as_deref(), Some("app.>"));
        assert_eq!(bare.of(&format!("chat:{}", "a".repeat(2_000)), false), None);
    }
}
