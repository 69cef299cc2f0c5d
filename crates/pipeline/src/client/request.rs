//! Requests, and their records until they have ended.

use std::fmt;
use std::sync::Arc;

use dunlin_wire::http1::RequestWriter;

use crate::Kind;

/// What to do with the body of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyMode {
    /// Gather it, up to [`body_bytes_max`](crate::HostConfig::body_bytes_max), and report it with the answer.
    #[default]
    Gather,
    /// Pass it to [`Caller::on_body`](crate::Caller::on_body) as it arrives. After a part was passed on, the request
    /// is not sent again.
    Stream,
    /// Discard it and count its bytes.
    Count,
}

/// A request to render. `Host` and `Content-Length` are added.
///
/// ```
/// use dunlin_pipeline::Request;
///
/// let get = Request::get("/info");
/// let publish = Request { headers: &[("X-API-Key", "k")], ..Request::post("/api/publish", b"{}") };
/// assert_eq!((get.method, publish.method), ("GET", "POST"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// Names and values of additional headers. An `Idempotency-Key` header makes any method idempotent.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body. `None` sends neither a body nor its length.
    pub body: Option<&'a [u8]>,
    /// What to do with the body of the answer.
    pub answer: BodyMode,
    /// Permits other requests on its connection although it is not idempotent. By default such a request uses a
    /// connection alone, so that fewer requests are uncertain if the connection breaks.
    pub pipelined: bool,
    /// The request is idempotent although its method and headers do not say so, for example a query.
    pub idempotent: bool,
}

impl<'a> Request<'a> {
    /// The flow of requests that are sent for nobody in particular.
    pub const NO_FLOW: u64 = 0;

    /// Creates a `GET` request.
    pub const fn get(target: &'a str) -> Request<'a> {
        Request {
            method: "GET",
            target,
            headers: &[],
            body: None,
            answer: BodyMode::Gather,
            pipelined: false,
            idempotent: false,
        }
    }

    /// Creates a `POST` request with a body.
    pub const fn post(target: &'a str, body: &'a [u8]) -> Request<'a> {
        Request { method: "POST", body: Some(body), ..Request::get(target) }
    }

    fn kind(&self) -> Kind {
        let key = self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("idempotency-key"));
        let kind = Kind::of_method(self.method);
        if key || self.idempotent { kind.idempotent(true) } else { kind }
    }
}

/// A request rendered for one host. It can be sent any number of times. Cloning it is cheap.
#[derive(Clone)]
pub struct Prepared {
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) kind: Kind,
    pub(crate) answer: BodyMode,
    /// Other requests may be in flight on its connection.
    pub(crate) shares: bool,
}

impl Prepared {
    /// Renders a request for a host with this authority (`name:port`).
    pub fn new(authority: &str, request: &Request<'_>) -> Prepared {
        let mut bytes = Vec::with_capacity(128 + request.body.map_or(0, <[u8]>::len));
        let writer = RequestWriter::new(&mut bytes, request.method, request.target, authority)
            .headers(request.headers);
        match request.body {
            Some(body) => writer.body(body),
            None => writer.no_body(),
        }
        let kind = request.kind();
        let shares = kind.is_idempotent() || request.pipelined;
        Prepared { bytes: bytes.into(), kind, answer: request.answer, shares }
    }
}

impl Prepared {
    /// Renders the same request for another authority.
    pub(crate) fn for_authority(&self, authority: &str) -> Prepared {
        // `new` has written the request line, then the `Host` header.
        let line_end = |from: usize| {
            let rest = &self.bytes[from..];
            rest.windows(2)
                .position(|pair| pair == b"\r\n")
                .map_or(self.bytes.len(), |at| from + at + 2)
        };
        let host = line_end(0);
        let mut bytes = Vec::with_capacity(self.bytes.len() + authority.len());
        bytes.extend_from_slice(&self.bytes[..host]);
        bytes.extend_from_slice(b"Host: ");
        bytes.extend_from_slice(authority.as_bytes());
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.bytes[line_end(host)..]);
        Prepared { bytes: bytes.into(), ..*self }
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.bytes.split(|&byte| byte == b'\r').next().unwrap_or_default();
        write!(f, "Prepared({})", String::from_utf8_lossy(line))
    }
}

/// The id of a request of one client. Ids are assigned in order and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

impl RequestId {
    /// Returns the id as a number.
    pub fn to_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a request was not accepted. It has no id and no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The queue of the host has `queue_max` requests or `queue_bytes_max` bytes.
    /// [`Caller::on_room`](crate::Caller::on_room) follows.
    #[error("the host's queue is full; wait for on_room, or raise queue_max or queue_bytes_max")]
    Full,
    /// The flow has as many queued requests as the queue has room for others. Nothing reports when that changes.
    #[error("the flow's share of the host's queue is full; send less for it, or raise queue_max")]
    FlowFull,
    /// As many requests as a [`ThreadedClient`](crate::ThreadedClient) accepts have not ended.
    #[error(
        "outstanding_max requests have not ended; send it again when one has, or raise outstanding_max"
    )]
    Outstanding,
    /// The client has no such host.
    #[error("the client has no such host; take the id from the client that sends")]
    UnknownHost,
    /// The client is shutting down, or the host was [removed](crate::Requests::remove).
    #[error("the client is shutting down, or the host was removed; send it to another")]
    Closing,
}

/// The state of a request from `send` to its outcome.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) prepared: Prepared,
    pub(crate) id: RequestId,
    pub(crate) tag: u64,
    /// Whom it is sent for.
    pub(crate) flow: u64,
    pub(crate) queued_ns: u64,
    /// How many connections ended without notice while the request was on them.
    pub(crate) replays: u8,
    /// It was written to a connection.
    pub(crate) sent: bool,
    /// A part of its answer was passed on.
    pub(crate) begun: bool,
}

/// The records, in slots that are reused.
#[derive(Debug, Default)]
pub(crate) struct Records {
    places: Vec<Option<Record>>,
    free: Vec<u32>,
}

impl Records {
    pub(crate) fn insert(&mut self, record: Record) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = Some(record);
                place
            }
            None => {
                self.places.push(Some(record));
                self.places.len() as u32 - 1
            }
        }
    }

    pub(crate) fn get(&self, place: u32) -> Option<&Record> {
        self.places.get(place as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut Record> {
        self.places.get_mut(place as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, place: u32) -> Option<Record> {
        let record = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(record)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_same_for_another_host_but_for_its_name() {
        for request in [
            Request::get("/a?b=c"),
            Request { headers: &[("X-A", "1")], ..Request::post("/", b"\r\n\r\n") },
        ] {
            let first = Prepared::new("a.example:1", &request);
            let other = Prepared::new("[::1]:80", &request);
            assert_eq!(first.for_authority("[::1]:80").bytes, other.bytes);
        }
    }
}
