//! HTTP/1.1 as a server speaks it: what a [`Handler`](crate::Handler) is given and what it answers with, and the machine
//! behind both, [`ServerConnection`]. Clients are in `dunlin-pipeline`.

mod date;
mod router;
mod server;

use std::ops::Deref;

pub use dunlin_wire::http1::{
    CONTINUE, Error, HEADERS_MAX, HeaderSlots, Headers, LAST_CHUNK, Limits, Method, RequestHead,
    Version, encode_chunk, encode_chunk_with, query,
};

pub(crate) use self::server::{encode_continue, encode_error};
pub(crate) use date::Date;
pub use router::{Match, NoRoute, Params, RouteError, Router};
pub(crate) use server::ServerState;
pub use server::{AfterResponse, OutOfTurn, PartialRequest, ServerConnection, ServerEvent};

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

/// How the end of a streamed answer is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The stream is written in chunks ([`encode_chunk`]) and ends with [`LAST_CHUNK`]. Needs HTTP/1.1.
    Chunked,
    /// The stream ends when the connection is closed.
    UntilClose,
}
