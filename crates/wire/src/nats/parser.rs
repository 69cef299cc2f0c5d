//! Parses the operations of a server.

use super::{Headers, Limits};

/// An operation of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// The server's information, a JSON object. It is the first operation, and repeated when something changes.
    Info(&'a [u8]),
    /// A message of a subscription.
    Message(NatsMessage<'a>),
    /// A ping, to be answered by [`PONG`](super::PONG).
    Ping,
    /// The answer to [`PING`](super::PING).
    Pong,
    /// A success, if the client has asked for acknowledgements.
    Ok,
    /// An error, without the quotes.
    Error(&'a str),
}

/// A message of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatsMessage<'a> {
    /// The subject it was published to.
    pub subject: &'a [u8],
    /// The subscription's id.
    pub sid: u64,
    /// The subject for an answer.
    pub reply: Option<&'a [u8]>,
    /// Its headers.
    pub headers: Headers<'a>,
    /// The payload.
    pub payload: &'a [u8],
}

/// The input is not the NATS protocol. Close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation that does not exist.
    #[error("this is no operation of NATS")]
    Unknown,
    /// A line or a message is longer than the limits allow.
    #[error("a line or a message is longer than allowed")]
    TooLong,
    /// The arguments of an operation are malformed, or a message does not end as it should.
    #[error("an operation is malformed")]
    Malformed,
}

/// Parses the operation at the start of `bytes`, and returns it and its length. `None` if it is incomplete: call again with the
/// same bytes and more after them. Nothing is copied.
///
/// # Errors
/// [`Error`].
pub fn parse<'a>(
    bytes: &'a [u8],
    limits: &Limits,
) -> Result<Option<(Operation<'a>, usize)>, Error> {
    let window = &bytes[..bytes.len().min(limits.line_bytes_max.saturating_add(2))];
    let Some(end) = window.iter().position(|&byte| byte == b'\n') else {
        return match window.len() > limits.line_bytes_max.saturating_add(1) {
            true => Err(Error::TooLong),
            false => Ok(None),
        };
    };
    let line = window[..end].strip_suffix(b"\r").ok_or(Error::Malformed)?;
    let body = end + 1;
    let name_end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let (name, rest) = (&line[..name_end], line[name_end..].trim_ascii());
    let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
    let operation = if is("MSG") || is("HMSG") {
        return message(bytes, rest, body, is("HMSG"), limits);
    } else if is("PING") {
        Operation::Ping
    } else if is("PONG") {
        Operation::Pong
    } else if is("+OK") {
        Operation::Ok
    } else if is("INFO") {
        Operation::Info(rest)
    } else if is("-ERR") {
        let text = str::from_utf8(rest).map_err(|_| Error::Malformed)?;
        Operation::Error(text.trim_matches('\''))
    } else {
        return Err(Error::Unknown);
    };
    Ok(Some((operation, body)))
}

/// Parses `SUBJECT SID [REPLY] [BYTES OF HEADERS] BYTES`, and the headers and payload after the line.
fn message<'a>(
    bytes: &'a [u8],
    line: &'a [u8],
    body: usize,
    has_headers: bool,
    limits: &Limits,
) -> Result<Option<(Operation<'a>, usize)>, Error> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut word = || words.next().ok_or(Error::Malformed);
    let (subject, sid) = (word()?, number(word()?)?);
    let mut last = [word()?, words.next().unwrap_or_default(), words.next().unwrap_or_default()];
    let count = last.iter().filter(|word| !word.is_empty()).count();
    let wanted = 1 + usize::from(has_headers);
    let reply = match count {
        _ if words.next().is_some() => return Err(Error::Malformed),
        count if count == wanted => None,
        count if count == wanted + 1 => {
            last.rotate_left(1);
            Some(last[2])
        }
        _ => return Err(Error::Malformed),
    };
    let (head, total) = match has_headers {
        true => (number(last[0])?, number(last[1])?),
        false => (0, number(last[0])?),
    };
    if total > limits.message_bytes_max as u64 {
        return Err(Error::TooLong);
    }
    let (head, total) = (head as usize, total as usize);
    if head > total {
        return Err(Error::Malformed);
    }
    let Some(all) = bytes.get(body..body + total + 2) else { return Ok(None) };
    if all[total..] != *b"\r\n" {
        return Err(Error::Malformed);
    }
    let (headers, payload) = (Headers(&all[..head]), &all[head..total]);
    let message = NatsMessage { subject, sid, reply, headers, payload };
    Ok(Some((Operation::Message(message), body + total + 2)))
}

/// Parses decimal digits that fit.
fn number(word: &[u8]) -> Result<u64, Error> {
    if word.is_empty() || word.len() > 19 {
        return Err(Error::Malformed);
    }
    word.iter().try_fold(0u64, |number, &digit| match digit {
        b'0'..=b'9' => Ok(number * 10 + u64::from(digit - b'0')),
        _ => Err(Error::Malformed),
    })
}
