//! Encoders of heads that always produce consistent framing.

use super::{Version, reason_phrase};
use crate::token::{is_token, is_token_byte};

/// The interim response that a client with `Expect: 100-continue` waits for.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Appends a response to a buffer. The method that ends the head decides the framing and writes its
/// header; do not pass `Content-Length`, `Transfer-Encoding` or `Connection` to
/// [`header`](ResponseWriter::header).
///
/// ```
/// use dunlin_wire::http1::{ResponseWriter, Version};
///
/// let mut out = Vec::new();
/// ResponseWriter::new(&mut out, 200)
///     .header("Content-Type", "text/plain")
///     .keep_alive(true, Version::Http11)
///     .body(b"hello");
/// assert_eq!(out, b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello");
/// ```
#[derive(Debug)]
#[must_use = "the head is not complete until its framing is chosen"]
pub struct ResponseWriter<'o> {
    out: &'o mut Vec<u8>,
    status: u16,
}

impl<'o> ResponseWriter<'o> {
    /// Begins a response with the standard reason phrase of `status`.
    pub fn new(out: &'o mut Vec<u8>, status: u16) -> ResponseWriter<'o> {
        debug_assert!((100..600).contains(&status), "status code {status}");
        if status == 200 {
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        } else {
            out.extend_from_slice(b"HTTP/1.1 ");
            write_decimal(out, u64::from(status));
            out.push(b' ');
            out.extend_from_slice(reason_phrase(status).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        ResponseWriter { out, status }
    }

    /// Adds a header. Line breaks and NUL in the value become spaces (RFC 9110 §5.5), so that a
    /// value cannot add a header; bytes that are not allowed in names are omitted from the name.
    pub fn header(self, name: &str, value: &str) -> Self {
        write_field(self.out, name, value.as_bytes());
        self
    }

    /// Adds several headers.
    pub fn headers(self, headers: &[(&str, &str)]) -> Self {
        for (name, value) in headers {
            write_field(self.out, name, value.as_bytes());
        }
        self
    }

    /// Adds the `Connection` header that a client of `version` needs; none if the version's default
    /// applies.
    pub fn keep_alive(self, keep_alive: bool, version: Version) -> Self {
        match (keep_alive, version) {
            (true, Version::Http11) => {}
            (true, Version::Http10) => self.out.extend_from_slice(b"Connection: keep-alive\r\n"),
            (false, _) => self.out.extend_from_slice(b"Connection: close\r\n"),
        }
        self
    }

    /// Ends the head and writes a body of known length. Writes no body for a status that has none
    /// (1xx, 204, 304): a client would read its bytes as the next response.
    pub fn body(self, body: &[u8]) {
        if super::status::has_no_body(self.status) {
            return self.no_body();
        }
        write_content_length(self.out, body.len() as u64);
        self.out.extend_from_slice(body);
    }

    /// Ends the head with a `Content-Length`: for a response to `HEAD`, or if the caller writes the
    /// `length` bytes itself.
    pub fn content_length(self, length: u64) {
        write_content_length(self.out, length);
    }

    /// Ends the head. The caller writes the body by [`encode_chunk`](super::encode_chunk) and ends
    /// it with [`LAST_CHUNK`](super::LAST_CHUNK). Not for HTTP/1.0 clients.
    pub fn chunked(self) {
        debug_assert!(!super::status::has_no_body(self.status), "{} has no body", self.status);
        self.out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
    }

    /// Ends the head. The body ends when the connection closes. For HTTP/1.0 clients, together with
    /// `keep_alive(false, _)`.
    pub fn until_close(self) {
        self.out.extend_from_slice(b"\r\n");
    }

    /// Ends the head of a response whose status has no body: 1xx, 204 and 304.
    pub fn no_body(self) {
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Appends a request to a buffer.
///
/// ```
/// use dunlin_wire::http1::RequestWriter;
///
/// let mut out = Vec::new();
/// RequestWriter::new(&mut out, "POST", "/api/publish", "127.0.0.1:8000").body(b"{}");
/// assert_eq!(
///     out,
///     b"POST /api/publish HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nContent-Length: 2\r\n\r\n{}",
/// );
/// ```
#[derive(Debug)]
#[must_use = "the head is not complete until its framing is chosen"]
pub struct RequestWriter<'o> {
    out: &'o mut Vec<u8>,
}

impl<'o> RequestWriter<'o> {
    /// Begins a request. Bytes not allowed in a request line (white space, controls) are
    /// percent-encoded in the target and omitted from the method.
    pub fn new(out: &'o mut Vec<u8>, method: &str, target: &str, host: &str) -> Self {
        out.extend(method.bytes().filter(is_token_byte));
        out.push(b' ');
        for byte in target.bytes() {
            if matches!(byte, b'!'..=b'~') {
                out.push(byte);
            } else {
                let hex = |digit: u8| b"0123456789ABCDEF"[usize::from(digit & 15)];
                out.extend_from_slice(&[b'%', hex(byte >> 4), hex(byte)]);
            }
        }
        out.extend_from_slice(b" HTTP/1.1\r\n");
        write_field(out, "Host", host.as_bytes());
        RequestWriter { out }
    }

    /// Adds a header, as [`ResponseWriter::header`] does.
    pub fn header(self, name: &str, value: &str) -> Self {
        write_field(self.out, name, value.as_bytes());
        self
    }

    /// Adds several headers.
    pub fn headers(self, headers: &[(&str, &str)]) -> Self {
        for (name, value) in headers {
            write_field(self.out, name, value.as_bytes());
        }
        self
    }

    /// Asks the server to close the connection after its response.
    pub fn close(self) -> Self {
        self.out.extend_from_slice(b"Connection: close\r\n");
        self
    }

    /// Ends the head and writes a body of known length.
    pub fn body(self, body: &[u8]) {
        write_content_length(self.out, body.len() as u64);
        self.out.extend_from_slice(body);
    }

    /// Ends the head; the body follows in chunks.
    pub fn chunked(self) {
        self.out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
    }

    /// Ends the head of a request without a body.
    pub fn no_body(self) {
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Appends one header line; it stays one line whatever the value contains.
pub(crate) fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    debug_assert!(is_token(name.as_bytes()), "{name:?} is no header name");
    if is_token(name.as_bytes()) {
        out.extend_from_slice(name.as_bytes());
    } else {
        out.extend(name.bytes().filter(is_token_byte));
    }
    out.extend_from_slice(b": ");
    let begin = out.len();
    out.extend_from_slice(value);
    for byte in &mut out[begin..] {
        if matches!(byte, b'\r' | b'\n' | 0) {
            *byte = b' ';
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn write_content_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"Content-Length: ");
    write_decimal(out, length);
    out.extend_from_slice(b"\r\n\r\n");
}

fn write_decimal(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}
