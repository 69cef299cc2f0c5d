//! Decoding of response heads.

use super::body::BodyDecoder;
use super::header::{Coding, HeaderSlots, Headers, RepeatedLength, Semantics, has_bare_lf};
use super::{Decoded, Error, Limits, Method, Version};

/// The head of a response, borrowed from the bytes it was decoded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead<'a> {
    /// The version.
    pub version: Version,
    /// The status code, 100 to 599.
    pub status: u16,
    /// The reason phrase, often empty.
    pub reason: &'a str,
    /// The header fields.
    pub headers: Headers<'a>,
    /// Whether the connection can carry another request after this response.
    pub keep_alive: bool,
    /// Decoder for the body that follows the head; already done when there is no body.
    pub body: BodyDecoder,
}

impl ResponseHead<'_> {
    /// Returns true for 1xx other than 101: the final response is still to come (RFC 9110 §15.2).
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }
}

/// Decodes the head of a response to a request of method `method` at the start of `bytes`.
///
/// An interim response (1xx) is a head of its own without a body; decode again after it. The bytes
/// after a 101 belong to the other protocol.
///
/// A head with folded lines is [`Error::Folded`]; decode what [`unfolded`] makes of it.
///
/// # Errors
///
/// [`Error`]; the connection is then unusable.
pub fn decode_response<'a>(
    bytes: &'a [u8],
    slots: &'a mut HeaderSlots<'a>,
    limits: &Limits,
    method: Method<'_>,
) -> Result<Decoded<ResponseHead<'a>>, Error> {
    let headers_max = limits.headers_max.min(slots.slots.len());
    let mut parsed = httparse::Response::new(&mut []);
    let mut config = httparse::ParserConfig::default();
    // Otherwise a folded line would be an error before the head is complete.
    config.allow_obsolete_multiline_headers_in_responses(true);
    let status = config.parse_response_with_uninit_headers(
        &mut parsed,
        bytes,
        &mut slots.slots[..headers_max],
    );
    let consumed = match status {
        Ok(httparse::Status::Complete(consumed)) => consumed,
        Ok(httparse::Status::Partial) if has_bare_lf(bytes) => return Err(Error::BareLineEnd),
        Ok(httparse::Status::Partial) if bytes.len() >= limits.head_bytes_max => {
            return Err(Error::HeadTooLong);
        }
        Ok(httparse::Status::Partial) => return Ok(Decoded::NeedMore),
        Err(error) => return Err(Error::from_httparse(error)),
    };
    if consumed > limits.head_bytes_max {
        return Err(Error::HeadTooLong);
    }
    if has_bare_lf(&bytes[..consumed]) {
        return Err(Error::BareLineEnd);
    }
    let status = parsed.code.filter(|code| (100..600).contains(code)).ok_or(Error::StatusCode)?;
    let version = match parsed.version {
        Some(1) => Version::Http11,
        _ => Version::Http10,
    };
    let headers = Headers::new(parsed.headers);
    if headers.iter().any(|(_, value)| value.contains(&b'\n')) {
        return Err(Error::Folded);
    }
    let semantics = Semantics::read(headers, RepeatedLength::Equal)?;
    let body = if ends_with_head(status, method) {
        BodyDecoder::none()
    } else {
        match (semantics.coding, semantics.content_length) {
            (Coding::Absent, Some(length)) if length > limits.body_bytes_max => {
                return Err(Error::BodyTooLong);
            }
            (Coding::Absent, Some(length)) => BodyDecoder::length(length),
            (Coding::Absent, None) => BodyDecoder::until_close(limits),
            _ if version == Version::Http10 => return Err(Error::TransferEncoding),
            (Coding::Chunked, _) => BodyDecoder::chunked(limits),
            (Coding::ChunkedOverUnknown | Coding::NotFinallyChunked, _) => {
                return Err(Error::TransferCodingUnknown);
            }
        }
    };
    let head = ResponseHead {
        version,
        status,
        reason: parsed.reason.unwrap_or_default(),
        headers,
        keep_alive: semantics.persists(version) && !body.ends_at_close() && status != 101,
        body,
    };
    Ok(Decoded::Head(head, consumed))
}

/// Returns the head at the start of `bytes` with each line fold as blanks, as a client has to read it (RFC 9112 §5.2). The
/// copy is as long as the head, so the body follows at the same place.
///
/// ```
/// let head = b"HTTP/1.1 200 OK\r\nX-Long: a\r\n  b\r\n\r\nbody";
/// let unfolded = dunlin_wire::http1::unfolded(head);
/// assert_eq!(unfolded, b"HTTP/1.1 200 OK\r\nX-Long: a    b\r\n\r\n");
/// ```
pub fn unfolded(bytes: &[u8]) -> Vec<u8> {
    let end = bytes.windows(4).position(|end| end == b"\r\n\r\n");
    let mut head = bytes[..end.map_or(bytes.len(), |end| end + 4)].to_vec();
    for at in 2..head.len() {
        if matches!(head[at], b' ' | b'\t') && head[at - 2..at] == *b"\r\n" {
            head[at - 2..at].fill(b' ');
        }
    }
    head
}

/// Returns true for a response that ends with its head whatever its headers (RFC 9112 §6.3, rules 1
/// and 2).
fn ends_with_head(status: u16, method: Method<'_>) -> bool {
    method == Method::Head
        || super::status::has_no_body(status)
        || (method == Method::Connect && (200..300).contains(&status))
}
