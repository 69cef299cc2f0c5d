//! The server side of HTTP/1.1: requests and responses of an [`HttpHandler`](crate::HttpHandler), and its state machine
//! [`ServerConnection`]. HTTP clients are in `dunlin-pipeline`.

mod date;
mod request_id;
mod router;
mod server;

use std::ops::Deref;

pub use dunlin_wire::http1::{
    CONTINUE, Error, HEADERS_MAX, HeaderSlots, Headers, LAST_CHUNK, Limits, Method, RequestHead,
    Version, encode_chunk, encode_chunk_with, query,
};

pub(crate) use self::server::{encode_continue, encode_error};
pub(crate) use date::Date;
pub use request_id::RequestId;
pub use router::{Match, NoRoute, Params, RouteError, Router};
pub(crate) use server::ServerState;
pub use server::{AfterResponse, OutOfTurn, PartialRequest, ServerConnection, ServerEvent};

/// A request received by a server: the head, which is also the target of `Deref`, and the complete body.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Method, path, query and headers.
    pub head: RequestHead<'a>,
    /// The body, with chunked coding removed. Empty if the request has none.
    pub body: &'a [u8],
}

impl<'a> Deref for Request<'a> {
    type Target = RequestHead<'a>;

    fn deref(&self) -> &RequestHead<'a> {
        &self.head
    }
}

/// A response sent by a server. `Date`, `Content-Length`, `Transfer-Encoding` and `Connection` are added
/// automatically; do not list them in `headers`.
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
    /// Names and values of the response's own headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body. For a `HEAD` request only its length is sent. With status 204 or 304 neither is sent.
    pub body: &'a [u8],
}

impl<'a> Response<'a> {
    /// Creates a response without own headers and without a body.
    pub const fn new(status: u16) -> Response<'a> {
        Response { status, headers: &[], body: b"" }
    }

    /// Creates a 200 response with a plain text body.
    pub const fn text(body: &'a str) -> Response<'a> {
        Response {
            status: 200,
            headers: &[("Content-Type", "text/plain; charset=utf-8")],
            body: body.as_bytes(),
        }
    }

    /// Creates a 200 response with a JSON body.
    pub const fn json(body: &'a [u8]) -> Response<'a> {
        Response { status: 200, headers: &[("Content-Type", "application/json")], body }
    }
}

/// How a streamed response is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The caller writes the stream in chunks ([`encode_chunk`]) and ends it with [`LAST_CHUNK`]. Requires HTTP/1.1.
    Chunked,
    /// The stream ends when the connection is closed.
    UntilClose,
}
