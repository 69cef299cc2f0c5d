//! The protocol state of one connection to a Redis server, without a socket.

use std::collections::VecDeque;

use dunlin_wire::resp::{Error, Limits, Scan, Scanner, Value, encode_command};

/// Commands that are answered by one push for each channel, or by an error reply if the server rejects them.
const ANSWERED_BY_PUSHES: [&str; 6] =
    ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"];

/// The reply in place of one that is beyond the limits and was skipped.
const OVERLONG: Value<'static> = Value::Error(
    "TOOLONG the reply was skipped: it is longer than value_bytes_max of the client, or has more than a million elements",
);

/// A value received from the server.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// Nothing: these bytes are part of a value beyond the limits.
    Skipped,
    /// The reply to the oldest outstanding command.
    Reply(Value<'a>),
    /// A message of a channel, the confirmation of a subscription, or the error that rejects it.
    Push(Value<'a>),
}

/// The command has no name, or subscribes to or unsubscribes from no channel. The number of values that answer it is
/// unknown, so replies to later commands could not be matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the command has no name, or names no channel; name each channel")]
pub struct InvalidCommand;

/// The state of one connection to Redis (RESP3): the outstanding commands and the position in an incomplete value.
///
/// ```
/// use dunlin_net::redis::{Connection, Event, Value};
///
/// let mut connection = Connection::new();
/// let mut out = Vec::new();
/// connection.encode_command(&mut out, &[b"PING"])?;
/// assert_eq!(out, b"*1\r\n$4\r\nPING\r\n");
/// let input = b"+PONG\r\n+PO";
/// assert_eq!(connection.handle_input(input), Ok(Some((Event::Reply(Value::Simple("PONG")), 7))));
/// # Ok::<(), dunlin_net::redis::InvalidCommand>(())
/// ```
#[derive(Debug)]
pub struct Connection {
    scanner: Scanner,
    /// Outstanding commands, oldest first.
    expected: VecDeque<Expected>,
}

/// The answer that a command expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// One reply.
    Reply,
    /// This number of pushes of the kind with this index in [`ANSWERED_BY_PUSHES`], or one error.
    Pushes(u8, u32),
}

impl Default for Connection {
    fn default() -> Connection {
        Connection::new()
    }
}

impl Connection {
    /// Creates the state of a new connection.
    pub fn new() -> Connection {
        Connection::with_limits(&Limits::default())
    }

    /// Creates the state of a new connection with these limits of a value.
    pub fn with_limits(limits: &Limits) -> Connection {
        Connection { scanner: Scanner::new(limits), expected: VecDeque::new() }
    }

    /// Appends a command to `out`. Commands of the `SUBSCRIBE` family are answered by one push for each channel, all
    /// others by one reply.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidCommand`] if the replies could not be matched; nothing is appended.
    pub fn encode_command(
        &mut self,
        out: &mut Vec<u8>,
        arguments: &[&[u8]],
    ) -> Result<(), InvalidCommand> {
        let expected = expected(arguments).ok_or(InvalidCommand)?;
        encode_command(out, arguments);
        self.expected.push_back(expected);
        Ok(())
    }

    /// Checks whether a command can be sent.
    pub(super) fn check(arguments: &[&[u8]]) -> Result<(), InvalidCommand> {
        expected(arguments).map(drop).ok_or(InvalidCommand)
    }

    /// Returns the number of commands without an answer.
    pub fn outstanding(&self) -> usize {
        self.expected.len()
    }

    /// Reads one value from the start of `bytes`. Returns the value and its length, or `None` if it is incomplete:
    /// pass the same bytes again together with those that follow. A reply beyond the limits becomes an error reply to
    /// its command, and a message beyond them a push of `Null`; their bytes are not stored.
    ///
    /// # Errors
    ///
    /// Returns an error if the input is not valid RESP, or is a reply that no command expects. Close the connection.
    pub fn handle_input<'a>(
        &mut self,
        bytes: &'a [u8],
    ) -> Result<Option<(Event<'a>, usize)>, Error> {
        let (value, length) = match self.scanner.scan(bytes)? {
            Scan::Incomplete => return Ok(None),
            Scan::Drop(length) => return Ok(Some((Event::Skipped, length))),
            Scan::Overlong { bytes, is_push: true } => {
                return Ok(Some((Event::Push(Value::Null), bytes)));
            }
            Scan::Overlong { bytes, is_push: false } => (OVERLONG, bytes),
            Scan::Value(length) => {
                (Value::parse(&bytes[..length]).ok_or(Error::Malformed)?, length)
            }
        };
        if let Value::Push(elements) = &value {
            let kind = elements.first().and_then(Value::text).unwrap_or_default();
            // A push of another kind is unsolicited: when a slot moves to another server, a server ends the
            // subscriptions to its channels.
            if let Some(Expected::Pushes(expected, left)) = self.expected.front_mut()
                && kind_of(kind.as_bytes()) == Some(*expected)
            {
                *left -= 1;
                if *left == 0 {
                    self.expected.pop_front();
                }
            }
            return Ok(Some((Event::Push(value), length)));
        }
        match self.expected.pop_front() {
            Some(Expected::Reply) => Ok(Some((Event::Reply(value), length))),
            // The server has rejected a subscription.
            Some(Expected::Pushes(..)) => Ok(Some((Event::Push(value), length))),
            None => Err(Error::Type),
        }
    }
}

/// Returns the answer that a command expects; `None` if its end could not be recognised.
fn expected(arguments: &[&[u8]]) -> Option<Expected> {
    let (name, channels) = arguments.split_first()?;
    match kind_of(name) {
        Some(_) if channels.is_empty() => None,
        Some(kind) => Some(Expected::Pushes(kind, channels.len() as u32)),
        None => Some(Expected::Reply),
    }
}

fn kind_of(name: &[u8]) -> Option<u8> {
    ANSWERED_BY_PUSHES
        .iter()
        .position(|other| name.eq_ignore_ascii_case(other.as_bytes()))
        .map(|kind| kind as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the events of a connection that has sent these commands, for input in pieces of this size.
    fn read(commands: &[&[&[u8]]], input: &[u8], piece: usize) -> Vec<String> {
        let mut connection = Connection::new();
        let mut out = Vec::new();
        for command in commands {
            connection.encode_command(&mut out, command).expect("a valid command");
        }
        let (mut events, mut kept) = (Vec::new(), Vec::new());
        for piece in input.chunks(piece) {
            kept.extend_from_slice(piece);
            loop {
                match connection.handle_input(&kept) {
                    Ok(None) => break,
                    Ok(Some((event, length))) => {
                        events.push(format!("{event:?}"));
                        kept.drain(..length);
                    }
                    Err(error) => {
                        events.push(format!("{error:?}"));
                        return events;
                    }
                }
                if kept.is_empty() {
                    break;
                }
            }
        }
        events
    }

    #[test]
    fn input_that_is_no_redis_is_an_error() {
        for piece in [1, 3, 1000] {
            let events = read(&[&[b"PING"]], b"HTTP/1.1 400 Bad Request\r\n\r\n", piece);
            assert_eq!(events, ["Type"]);
            let events = read(&[&[b"PING"]], b"+OK\r\n+OK\r\n", piece);
            assert_eq!(events, ["Reply(Simple(\"OK\"))", "Type"], "one reply too many");
        }
    }

    #[test]
    fn a_subscription_refused_takes_no_reply_from_a_command() {
        let commands: &[&[&[u8]]] =
            &[&[b"GET", b"a"], &[b"SUBSCRIBE", b"x", b"y"], &[b"subscribe", b"c"], &[b"GET", b"b"]];
        let input = b"+a\r\n-NOPERM no\r\n>3\r\n+subscribe\r\n+c\r\n:1\r\n+b\r\n";
        for piece in [1, 3, 1000] {
            let events = read(commands, input, piece);
            assert_eq!(events[0], "Reply(Simple(\"a\"))");
            assert_eq!(events[1], "Push(Error(\"NOPERM no\"))");
            assert!(events[2].starts_with("Push(Push([Simple(\"subscribe\")"));
            assert_eq!(events[3], "Reply(Simple(\"b\"))");
        }
    }

    /// A server that gives up a slot ends the subscriptions to its channels unasked.
    #[test]
    fn a_push_that_nobody_asked_for_answers_no_other_command() {
        let commands: &[&[&[u8]]] = &[&[b"SSUBSCRIBE", b"x"], &[b"GET", b"a"]];
        let input = b">3\r\n+sunsubscribe\r\n+old\r\n:0\r\n-MOVED 1 :7000\r\n+a\r\n";
        let events = read(commands, input, 1000);
        assert!(events[0].starts_with("Push(Push([Simple(\"sunsubscribe\")"));
        assert_eq!(events[1..], ["Push(Error(\"MOVED 1 :7000\"))", "Reply(Simple(\"a\"))"]);
    }

    /// A reply beyond the limits costs its own command the answer, and no other.
    #[test]
    fn overlong_reply_is_an_error_of_its_command_alone() {
        let limits = Limits { value_bytes_max: 100, ..Limits::default() };
        let input = format!(
            "+a\r\n$500\r\n{0}\r\n*2\r\n+x\r\n$120\r\n{1}\r\n>3\r\n+message\r\n+c\r\n$150\r\n{0:.150}\r\n+b\r\n",
            "x".repeat(500),
            "\r\n".repeat(60),
        );
        for piece in [1, 7, 10_000] {
            let mut connection = Connection::with_limits(&limits);
            for _ in 0..4 {
                connection.encode_command(&mut Vec::new(), &[b"GET", b"k"]).expect("it is valid");
            }
            let (mut kept, mut events) = (Vec::new(), Vec::new());
            for piece in input.as_bytes().chunks(piece) {
                kept.extend_from_slice(piece);
                while let Some((event, length)) = connection.handle_input(&kept).expect("valid") {
                    if event != Event::Skipped {
                        events.push(format!("{event:?}"));
                    }
                    kept.drain(..length);
                }
                assert!(kept.len() <= 100 + piece.len(), "nothing of it is stored");
            }
            let overlong = format!("{:?}", Event::Reply(OVERLONG));
            let a = "Reply(Simple(\"a\"))".to_owned();
            let b = "Reply(Simple(\"b\"))".to_owned();
            let push = "Push(Null)".to_owned();
            assert_eq!(events, [a, overlong.clone(), overlong, push, b]);
            assert_eq!(connection.outstanding(), 0);
        }
    }

    #[test]
    fn a_command_with_any_number_of_answers_is_refused() {
        let (mut connection, mut out) = (Connection::new(), Vec::new());
        for command in [&[][..], &[&b"UNSUBSCRIBE"[..]]] {
            assert_eq!(connection.encode_command(&mut out, command), Err(InvalidCommand));
        }
        assert!(out.is_empty() && connection.outstanding() == 0);
    }
}
