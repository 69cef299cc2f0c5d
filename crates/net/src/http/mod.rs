//! HTTP/1.1 on the loop: what a handler is given, and what it answers with.

mod client;
mod date;
mod server;

use std::ops::Deref;

pub use dunlin_wire::http1::{
    Error, HEADERS_MAX, Headers, LAST_CHUNK, Limits, Method, RequestHead, ResponseHead, Version,
    encode_chunk, encode_chunk_with, query,
};

pub(crate) use client::Asked;
pub(crate) use date::Date;

use dunlin_wire::http1::{Body, BodyDecoder};

/// A request as a server receives it: its head, reached through `Deref`, and its whole body.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Method, path, query, headers and the like.
    pub head: RequestHead<'a>,
    /// The body, chunked or not; empty when there is none.
    pub body: &'a [u8],
}

impl<'a> Deref for Request<'a> {
    type Target = RequestHead<'a>;

    fn deref(&self) -> &RequestHead<'a> {
        &self.head
    }
}

/// An answer as a client receives it: its head, reached through `Deref`, and its whole body.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// Status, headers and the like.
    pub head: ResponseHead<'a>,
    /// The body; empty when there is none, or when it follows in `on_body`.
    pub body: &'a [u8],
}

impl<'a> Deref for Answer<'a> {
    type Target = ResponseHead<'a>;

    fn deref(&self) -> &ResponseHead<'a> {
        &self.head
    }
}

/// An answer as a server sends it. `Date`, `Content-Length`, `Transfer-Encoding` and `Connection` are added;
/// do not list them.
///
/// ```
/// use dunlin_net::http::Response;
///
/// let ok = Response::text("hello");
/// let moved = Response { headers: &[("Location", "/")], ..Response::new(308) };
/// assert_eq!((ok.status, moved.body), (200, &b""[..]));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Response<'a> {
    /// The status code, 200 to 599.
    pub status: u16,
    /// Names and values of headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body. Left out, but for its length, when the request was a `HEAD`; entirely, with 204 and 304.
    pub body: &'a [u8],
}

impl<'a> Response<'a> {
    /// An answer without headers of its own and without a body.
    pub const fn new(status: u16) -> Response<'a> {
        Response { status, headers: &[], body: b"" }
    }

    /// 200 with plain text.
    pub const fn text(body: &'a str) -> Response<'a> {
        Response {
            status: 200,
            headers: &[("Content-Type", "text/plain; charset=utf-8")],
            body: body.as_bytes(),
        }
    }

    /// 200 with JSON.
    pub const fn json(body: &'a [u8]) -> Response<'a> {
        Response { status: 200, headers: &[("Content-Type", "application/json")], body }
    }
}

/// How the end of a streamed answer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The stream is written in chunks ([`encode_chunk`]) and ends with [`LAST_CHUNK`]. Needs HTTP/1.1.
    Chunked,
    /// The stream ends when the connection is closed.
    UntilClose,
}

/// A request as a client sends it. `Host`, `Content-Length` and `Connection` are added.
///
/// ```
/// use dunlin_net::http::NewRequest;
///
/// let get = NewRequest::get("/info", "127.0.0.1:8000");
/// let publish = NewRequest { headers: &[("X-API-Key", "k")], ..NewRequest::post("/api/publish", "a", b"{}") };
/// assert_eq!((get.method, publish.method), ("GET", "POST"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// Path and query, percent-encoded.
    pub target: &'a str,
    /// The authority for the `Host` header.
    pub host: &'a str,
    /// Names and values of further headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body; `None` sends none and says nothing of its length.
    pub body: Option<&'a [u8]>,
    /// Hand the answer's body out as it arrives, by `on_body`, instead of gathering it.
    pub stream: bool,
}

impl<'a> NewRequest<'a> {
    /// A `GET`.
    pub const fn get(target: &'a str, host: &'a str) -> NewRequest<'a> {
        NewRequest { method: "GET", target, host, headers: &[], body: None, stream: false }
    }

    /// A `POST` with a body.
    pub const fn post(target: &'a str, host: &'a str, body: &'a [u8]) -> NewRequest<'a> {
        NewRequest { method: "POST", target, host, headers: &[], body: Some(body), stream: false }
    }
}

/// A message whose head is here and whose body is not yet.
#[derive(Debug)]
pub(crate) struct PartialMessage {
    /// The head as it came, to be decoded once more when the body is complete.
    head: Vec<u8>,
    body: Vec<u8>,
    decoder: BodyDecoder,
}

impl PartialMessage {
    fn new(head: &[u8], decoder: BodyDecoder) -> PartialMessage {
        PartialMessage { head: head.to_vec(), body: Vec::new(), decoder }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Gathers what is here of the body. Returns the bytes consumed and whether the body is complete.
    fn gather(&mut self, bytes: &[u8]) -> Result<(usize, bool), Error> {
        let mut at = 0;
        loop {
            let (consumed, piece) = self.decoder.decode(&bytes[at..])?;
            at += consumed;
            match piece {
                Body::Data(data) => self.body.extend_from_slice(data),
                Body::Trailer(..) => {}
                Body::NeedMore => return Ok((at, false)),
                Body::End => return Ok((at, true)),
            }
        }
    }
}

/// True when a head that was not complete may be now: only a line end completes one. Spares the decoder
/// from a peer that sends its head byte by byte.
fn worth_decoding(bytes: &[u8], carried: usize, limits: &Limits) -> bool {
    carried == 0 || bytes.len() >= limits.head_bytes_max || bytes[carried..].contains(&b'\n')
}
