//! Decoding of request heads.

use super::body::BodyDecoder;
use super::header::{Coding, HeaderSlots, Headers, RepeatedLength, Semantics, has_bare_lf};
use super::{Decoded, Error, Limits, Method, Version};
use crate::token::is_authority;

/// The head of a request, borrowed from the bytes it was decoded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead<'a> {
    /// The method.
    pub method: Method<'a>,
    /// The request target as it was sent.
    pub target: &'a str,
    /// The path of the target, still percent-encoded: begins with `/`, or is `*`.
    pub path: &'a str,
    /// What follows the first `?` of the target. See [`query`](super::query).
    pub query: Option<&'a str>,
    /// The authority of the target if it has one, else the `Host` header. HTTP/1.0 may lack both.
    pub host: Option<&'a str>,
    /// The version.
    pub version: Version,
    /// The header fields.
    pub headers: Headers<'a>,
    /// Whether the client expects the connection to stay open after the response.
    pub keep_alive: bool,
    /// Whether the client asks for another protocol (`Connection: upgrade` and an `Upgrade` field).
    pub upgrade: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub expect_continue: bool,
    /// Decoder for the body that follows the head; already done when there is no body.
    pub body: BodyDecoder,
}

/// Decodes the head of a request at the start of `bytes`.
///
/// `bytes` are the unconsumed bytes of a connection, including pipelined requests. Empty lines
/// before the request line are skipped (RFC 9112 §2.2) and counted as consumed.
///
/// # Errors
///
/// [`Error`] with the status code of the response, after which the connection closes. An error is
/// returned as soon as it can be recognised, even if the head is still incomplete.
pub fn decode_request<'a>(
    bytes: &'a [u8],
    slots: &'a mut HeaderSlots<'a>,
    limits: &Limits,
) -> Result<Decoded<RequestHead<'a>>, Error> {
    let headers_max = limits.headers_max.min(slots.slots.len());
    let mut parsed = httparse::Request::new(&mut []);
    let status = parsed.parse_with_uninit_headers(bytes, &mut slots.slots[..headers_max]);
    let consumed = match status {
        Ok(httparse::Status::Complete(consumed)) => consumed,
        Ok(httparse::Status::Partial) => return need_more(bytes, limits),
        Err(httparse::Error::Version) => return Err(version_error(bytes)),
        Err(error) => return Err(Error::from_httparse(error)),
    };
    if consumed > limits.head_bytes_max {
        return Err(Error::HeadTooLong);
    }
    if has_bare_lf(&bytes[..consumed]) {
        return Err(Error::BareLineEnd);
    }
    let target = parsed.path.ok_or(Error::StartLine)?;
    if target.len() > limits.target_bytes_max {
        return Err(Error::TargetTooLong);
    }
    let method = Method::new(parsed.method.ok_or(Error::StartLine)?);
    let version = match parsed.version {
        Some(1) => Version::Http11,
        _ => Version::Http10,
    };
    let headers = Headers::new(parsed.headers);
    let semantics = Semantics::read(headers, RepeatedLength::Refused)?;

    let host = match semantics.host {
        // The authority of an http URI has a host (RFC 9110 §4.2.1).
        Some([]) => return Err(Error::Host),
        Some(host) => Some(authority(host)?),
        None if version == Version::Http11 => return Err(Error::Host),
        None => None,
    };
    let Target { path, query, authority } = Target::split(method, target)?;
    let expect_continue = match semantics.expect {
        // RFC 9110 §10.1.1: an HTTP/1.0 client cannot be waiting for an interim answer.
        Some(expect) if version == Version::Http11 => {
            if !expect.eq_ignore_ascii_case(b"100-continue") {
                return Err(Error::Expectation);
            }
            true
        }
        _ => false,
    };
    let body = match semantics.coding {
        Coding::Absent => match semantics.content_length {
            None | Some(0) => BodyDecoder::none(),
            Some(length) if length > limits.body_bytes_max => return Err(Error::BodyTooLong),
            Some(length) => BodyDecoder::length(length),
        },
        // RFC 9112 §6.1: the framing of an HTTP/1.0 message with a coding is faulty.
        _ if version == Version::Http10 => return Err(Error::TransferEncoding),
        Coding::Chunked => BodyDecoder::chunked(limits),
        Coding::ChunkedOverUnknown => return Err(Error::TransferCodingUnknown),
        Coding::NotFinallyChunked => return Err(Error::TransferEncoding),
    };
    let head = RequestHead {
        method,
        target,
        path,
        query,
        host: authority.or(host),
        version,
        headers,
        keep_alive: semantics.persists(version),
        upgrade: semantics.upgrade && semantics.connection_upgrade && version == Version::Http11,
        expect_continue: expect_continue && !body.is_done(),
        body,
    };
    Ok(Decoded::Head(head, consumed))
}

/// Handles an incomplete head: returns [`Decoded::NeedMore`] unless it is already too long.
fn need_more<H>(bytes: &[u8], limits: &Limits) -> Result<Decoded<H>, Error> {
    if has_bare_lf(bytes) {
        return Err(Error::BareLineEnd);
    }
    let line = start_line(bytes);
    if line.len() > limits.target_bytes_max {
        // A target beyond the limit makes the line longer than the limit too.
        let target =
            line.iter().position(|&byte| byte == b' ').map_or(&[][..], |at| &line[at + 1..]);
        let target = target.split(|&byte| byte == b' ').next().unwrap_or_default();
        if target.len() > limits.target_bytes_max {
            return Err(Error::TargetTooLong);
        }
    }
    if bytes.len() >= limits.head_bytes_max {
        return Err(Error::HeadTooLong);
    }
    Ok(Decoded::NeedMore)
}

/// Returns the first line that is not empty, or the part of it that has arrived.
fn start_line(bytes: &[u8]) -> &[u8] {
    let begin =
        bytes.iter().position(|&byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(bytes.len());
    let line = &bytes[begin..];
    &line[..line.iter().position(|&byte| matches!(byte, b'\r' | b'\n')).unwrap_or(line.len())]
}

/// Distinguishes an unsupported version (505) from a line without a version (400).
fn version_error(bytes: &[u8]) -> Error {
    let mut words = start_line(bytes).split(|&byte| byte == b' ');
    let version = words.nth(2).filter(|_| words.next().is_none()).unwrap_or_default();
    match version.strip_prefix(b"HTTP/") {
        Some([major]) if major.is_ascii_digit() => Error::Version,
        Some([major, b'.', minor]) if major.is_ascii_digit() && minor.is_ascii_digit() => {
            Error::Version
        }
        _ => Error::StartLine,
    }
}

/// The parts of a request target (RFC 9112 §3.2).
struct Target<'a> {
    path: &'a str,
    query: Option<&'a str>,
    authority: Option<&'a str>,
}

impl<'a> Target<'a> {
    fn split(method: Method<'_>, target: &'a str) -> Result<Target<'a>, Error> {
        if method == Method::Connect {
            return Err(Error::MethodNotImplemented);
        }
        // Characters outside ASCII must be percent-encoded (RFC 3986 §2.1).
        if !target.is_ascii() {
            return Err(Error::Target);
        }
        if target.starts_with('/') {
            return Target::of_path(target, None);
        }
        if target == "*" && method == Method::Options {
            return Ok(Target { path: "*", query: None, authority: None });
        }
        let rest = strip_scheme(target, "http://").or_else(|| strip_scheme(target, "https://"));
        let rest = rest.ok_or(Error::Target)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let authority = authority(&rest.as_bytes()[..end])?;
        if authority.is_empty() {
            return Err(Error::Target);
        }
        Target::of_path(&rest[end..], Some(authority))
    }

    fn of_path(path: &'a str, authority: Option<&'a str>) -> Result<Target<'a>, Error> {
        // User agents never send a fragment (RFC 9110 §4.2.5).
        if path.bytes().fold(false, |found, byte| found | (byte == b'#')) {
            return Err(Error::Target);
        }
        let (path, query) = match path.bytes().position(|byte| byte == b'?') {
            Some(at) => (&path[..at], Some(&path[at + 1..])),
            None => (path, None),
        };
        Ok(Target { path: if path.is_empty() { "/" } else { path }, query, authority })
    }
}

fn strip_scheme<'a>(target: &'a str, scheme: &str) -> Option<&'a str> {
    let (head, rest) = target.split_at_checked(scheme.len())?;
    head.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// Parses `host [ ":" port ]` without user information (RFC 3986 §3.2.2).
fn authority(value: &[u8]) -> Result<&str, Error> {
    if !is_authority(value) {
        return Err(Error::Host);
    }
    str::from_utf8(value).map_err(|_| Error::Host)
}
