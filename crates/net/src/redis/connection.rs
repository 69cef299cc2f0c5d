//! The protocol state of one connection to a Redis server, without a socket.

use std::collections::VecDeque;

use dunlin_wire::resp::{Error, Limits, Scanner, Value, encode_command};

/// Commands that are answered by one push for each channel, or by an error reply if the server rejects them.
const ANSWERED_BY_PUSHES: [&str; 6] =
    ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"];

/// A value received from the server.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
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
        Connection { scanner: Scanner::new(&Limits::default()), expected: VecDeque::new() }
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
    /// pass the same bytes again together with those that follow.
    ///
    /// # Errors
    ///
    /// Returns an error if the input is not valid RESP, or is a reply that no command expects. Close the connection.
    pub fn handle_input<'a>(
        &mut self,
        bytes: &'a [u8],
    ) -> Result<Option<(Event<'a>, usize)>, Error> {
        let Some(length) = self.scanner.scan(bytes)? else { return Ok(None) };
        let value = Value::parse(&bytes[..length]).ok_or(Error::Malformed)?;
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

    #[test]
    fn a_command_with_any_number_of_answers_is_refused() {
        let (mut connection, mut out) = (Connection::new(), Vec::new());
        for command in [&[][..], &[&b"UNSUBSCRIBE"[..]]] {
            assert_eq!(connection.encode_command(&mut out, command), Err(InvalidCommand));
        }
        assert!(out.is_empty() && connection.outstanding() == 0);
    }
}
