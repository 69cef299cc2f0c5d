//! The log of the operator: one [`Kind`] for each kind of event, with its target, its level and its sentence.
//!
//! Whoever has an event checks [`is_enabled`] first and writes the [`Entry`] then, so that a level that is off costs two loads.
//! Lines of a kind are bounded for each second ([`Gate`]); how many more there were is said at its end
//! ([`tell_suppressed`]). Values that peers choose are cut and recorded as strings, which both formats escape. Payloads, tokens,
//! keys and queries are not among the fields of an entry.

pub(crate) mod live;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use dunlin_hub::{SessionId, tenant};
use tracing::Level;

/// The longest text of a field, in bytes: names that peers choose are cut here.
const TEXT_BYTES_MAX: usize = 256;
/// The most lines of a kind and second.
const LINES_MAX: u64 = 50;
/// The same of requests and of single messages, which are asked for to be read whole.
const MANY_LINES_MAX: u64 = 5_000;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $kind:ident, $level:ident, $target:literal, $name:literal, $text:literal;)*) => {
        /// A kind of event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Kind {
            $($(#[doc = $doc])* $kind,)*
        }

        impl Kind {
            pub(crate) const ALL: &[Kind] = &[$(Kind::$kind),*];

            /// Returns the value of the field `event`.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name,)* }
            }

            const fn level(self) -> Level {
                match self { $(Kind::$kind => Level::$level,)* }
            }

            const fn text(self) -> &'static str {
                match self { $(Kind::$kind => $text,)* }
            }
        }

        /// Returns whether the log has lines of this kind.
        pub(crate) fn is_enabled(kind: Kind) -> bool {
            match kind {
                $(Kind::$kind => tracing::enabled!(target: $target, Level::$level),)*
            }
        }

        fn write_line(kind: Kind, fields: &Fields<'_>) {
            match kind {
                $(Kind::$kind => line!($target, $level, kind, fields),)*
            }
        }

        fn write_suppressed(kind: Kind, more: u64) {
            let event = kind.name();
            let count = Thousands(more);
            match kind {
                $(Kind::$kind => tracing::event!(
                    target: $target, Level::$level, event, more, "and {count} more like it in this second"
                ),)*
            }
        }
    };
}

macro_rules! line {
    ($target:literal, $level:ident, $kind:expr, $fields:expr) => {{
        let Fields { entry, tenant, user, channel, client } = $fields;
        tracing::event!(
            target: $target,
            Level::$level,
            event = $kind.name(),
            code = entry.code,
            status = entry.status,
            reason = cut(entry.reason),
            user,
            client = client.map(display),
            address = entry.address.map(display),
            transport = cut(entry.transport),
            protocol = cut(entry.protocol),
            channel,
            namespace = cut(entry.namespace),
            tenant,
            method = cut(entry.method),
            key = cut(entry.key),
            by = cut(entry.by),
            origin = cut(entry.origin),
            path = cut(entry.path),
            listener = cut(entry.listener),
            keys = cut(entry.keys),
            revision = entry.revision,
            bytes = entry.bytes,
            duration_ms = entry.duration_ms,
            "{}",
            $kind.text()
        )
    }};
}

kinds! {
    /// The server accepts connections.
    Serving, INFO, "dunlin::server", "serving", "the server accepts connections";
    /// The server has ended.
    Stopped, INFO, "dunlin::server", "stopped", "the server has stopped";
    /// A revision of the settings is in effect.
    SettingsChanged, INFO, "dunlin::settings", "settings_changed", "settings were changed";
    /// A change of the settings was refused.
    SettingsRefused, DEBUG, "dunlin::settings", "settings_refused", "a change of the settings was refused";
    /// Tokens were revoked, users blocked, broadcasts paused.
    Operated, INFO, "dunlin::admin", "operated", "an operator has acted";
    /// A request to the admin port was refused.
    AdminRefused, DEBUG, "dunlin::admin", "admin_refused", "a request to the admin port was refused";
    /// A connection was refused when it was accepted.
    ConnectionRefused, DEBUG, "dunlin::listener", "connection_refused", "a connection was refused";
    /// A TLS handshake failed.
    HandshakeFailed, DEBUG, "dunlin::listener", "handshake_failed", "a TLS handshake failed";
    /// A request to a client port was answered with an error.
    RequestRefused, DEBUG, "dunlin::listener", "request_refused", "a request was refused";
    /// A request of a listener with an access log.
    Request, INFO, "dunlin::access", "request", "a request was answered";
    /// A client has a session.
    ClientConnected, DEBUG, "dunlin::client", "client_connected", "a client has connected";
    /// A client was disconnected before it had a session.
    ClientRefused, DEBUG, "dunlin::client", "client_refused", "a client was refused";
    /// A client with a session was disconnected by the server.
    ClientDisconnected, DEBUG, "dunlin::client", "client_disconnected", "a client was disconnected";
    /// A client has left, or its connection broke.
    ClientClosed, DEBUG, "dunlin::client", "client_closed", "a client has left";
    /// A client's input violates the protocol of its transport.
    ProtocolError, DEBUG, "dunlin::client", "protocol_error", "a client violated the protocol";
    /// A command was answered with an error.
    CommandRefused, DEBUG, "dunlin::client", "command_refused", "a command was refused";
    /// The server has ended a subscription.
    Unsubscribed, DEBUG, "dunlin::client", "unsubscribed", "a subscription was ended";
    /// A message was not acknowledged, and went to the channel for such messages.
    DeadLetter, INFO, "dunlin::acks", "dead_letter", "a message was delivered as often as it may be";
    /// It could not be put there.
    DeadLetterFailed, WARN, "dunlin::acks", "dead_letter_failed", "a message that cannot be delivered stays where it is";
    /// A call of the server API, or a command of one, was answered with an error.
    ApiRefused, DEBUG, "dunlin::api", "api_refused", "a command of the server API was refused";
    /// A client has sent a command.
    Command, TRACE, "dunlin::message", "command", "a client has sent a command";
    /// A rule, a token or a backend has permitted a command.
    Permitted, TRACE, "dunlin::message", "permitted", "a command was permitted";
    /// A backend has sent a command of the server API.
    ApiCommand, TRACE, "dunlin::message", "api_command", "a backend has sent a command";
    /// A message goes to a channel.
    Publication, TRACE, "dunlin::message", "publication", "a message goes to a channel";
    /// Bytes were written to a client.
    Delivered, TRACE, "dunlin::message", "delivered", "bytes were written to a client";
    /// The socket of a client is full: it reads more slowly than it is written to.
    Blocked, TRACE, "dunlin::message", "blocked", "the socket of a client is full";
}

/// One event. What is empty or `None` is left out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry<'a> {
    /// The code that the client or the backend gets.
    pub(crate) code: Option<u32>,
    /// The HTTP status.
    pub(crate) status: Option<u16>,
    /// The reason that it gets.
    pub(crate) reason: &'a str,
    /// The user, with its tenant.
    pub(crate) user: &'a str,
    pub(crate) client: Option<SessionId>,
    pub(crate) address: Option<IpAddr>,
    pub(crate) transport: &'a str,
    pub(crate) protocol: &'a str,
    /// The channel, with its tenant.
    pub(crate) channel: &'a str,
    pub(crate) namespace: &'a str,
    /// The name of a command or an HTTP method.
    pub(crate) method: &'a str,
    /// The name of an API key or an admin token, never its value.
    pub(crate) key: &'a str,
    /// What has decided: a rule, a token, a proxy; or who has acted.
    pub(crate) by: &'a str,
    pub(crate) origin: &'a str,
    /// The path of a request, without its query.
    pub(crate) path: &'a str,
    /// The name of the listener; empty for that of `server.client_addr`.
    pub(crate) listener: &'a str,
    /// Pointers of settings.
    pub(crate) keys: &'a str,
    pub(crate) revision: Option<u64>,
    pub(crate) bytes: Option<u64>,
    pub(crate) duration_ms: Option<u64>,
}

/// An entry, with names as their owners know them.
struct Fields<'a> {
    entry: &'a Entry<'a>,
    tenant: Option<&'a str>,
    user: Option<&'a str>,
    channel: Option<&'a str>,
    client: Option<SessionId>,
}

impl<'a> Fields<'a> {
    fn of(entry: &'a Entry<'a>) -> Fields<'a> {
        let (of_user, user) = tenant::split(entry.user);
        let (of_channel, channel) = tenant::split(entry.channel);
        let tenant = of_user.or(of_channel).and_then(cut);
        Fields { entry, tenant, user: cut(user), channel: cut(channel), client: entry.client }
    }
}

/// Returns the beginning of a text; `None` if there is nothing to tell.
fn cut(text: &str) -> Option<&str> {
    (!text.is_empty()).then(|| &text[..text.floor_char_boundary(TEXT_BYTES_MAX)])
}

/// Bounds the lines of a kind and second. It reads no clock: [`tell_suppressed`] begins the next second.
struct Gate(AtomicU64);

static GATES: [Gate; Kind::ALL.len()] = [const { Gate(AtomicU64::new(0)) }; Kind::ALL.len()];

impl Gate {
    fn passes(&self, max: u64) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) < max
    }

    /// Begins the next second. Returns how many lines this one was too short for.
    fn turn_over(&self, max: u64) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.0.swap(0, Ordering::Relaxed).saturating_sub(max),
        }
    }
}

fn lines_max(kind: Kind) -> u64 {
    match kind {
        Kind::Request => MANY_LINES_MAX,
        kind if kind.level() == Level::TRACE => MANY_LINES_MAX,
        _ => LINES_MAX,
    }
}

/// Writes a line, unless there were too many of its kind in this second.
pub(crate) fn write(kind: Kind, entry: &Entry<'_>) {
    if is_enabled(kind) && GATES[kind as usize].passes(lines_max(kind)) {
        write_line(kind, &Fields::of(entry));
    }
}

/// Says of which kinds there were more events than lines; called once a second.
pub(crate) fn tell_suppressed() {
    for &kind in Kind::ALL {
        let more = GATES[kind as usize].turn_over(lines_max(kind));
        if more > 0 {
            write_suppressed(kind, more);
        }
    }
}

/// A number for people: `4,812`.
struct Thousands(u64);

impl std::fmt::Display for Thousands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = self.0.to_string();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_a_kind_is_its_first_lines_and_a_count() {
        let gate = Gate(AtomicU64::new(0));
        let lines = (0..4_862).filter(|_| gate.passes(50)).count();
        assert_eq!((lines, gate.turn_over(50)), (50, 4_812));
        assert_eq!(Thousands(4_812).to_string(), "4,812");
        assert!(gate.passes(50), "the next second has lines of its own");
        assert_eq!(
            (Thousands(0).to_string(), Thousands(1_000_000).to_string()),
            ("0".into(), "1,000,000".into())
        );
    }

    #[test]
    fn a_kind_has_a_name_of_its_own_and_long_text_is_cut_between_characters() {
        let mut names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kind::ALL.len());
        let long = "ä".repeat(TEXT_BYTES_MAX);
        assert_eq!(cut(&long).map(str::len), Some(TEXT_BYTES_MAX));
        assert_eq!(cut(&format!("a{long}")).map(str::len), Some(TEXT_BYTES_MAX - 1));
        assert_eq!(cut(""), None);
    }
}
