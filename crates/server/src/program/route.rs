//! Additional HTTP routes on the client port.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use dunlin_net::{ConnId, http};
use matchit::{Params, Router};
use serde_json::Value;

use super::inbox::{Inbox, InboxMessage};

type Route = Box<dyn Fn(&HttpRequest<'_>) -> Reply + Send + Sync>;

/// The routes of a program.
#[derive(Default)]
pub(crate) struct Routes(Router<Route>);

impl Routes {
    /// # Errors
    /// The path is malformed, or has a route already.
    pub(crate) fn insert(&mut self, path: &str, route: Route) -> Result<(), matchit::InsertError> {
        self.0.insert(path, route)
    }

    /// Calls the route of a request; `None` if there is none for its path.
    pub(crate) fn call(
        &self,
        request: &http::Request<'_>,
        place: ResponseAddress,
    ) -> Option<Reply> {
        let found = self.0.at(request.path).ok()?;
        Some((found.value)(&HttpRequest { request, params: found.params, place }))
    }
}

/// A request to a route, with the fields of [`dunlin_net::http::Request`]: method, path, query, headers,
/// body.
pub struct HttpRequest<'a> {
    request: &'a http::Request<'a>,
    params: Params<'a, 'a>,
    place: ResponseAddress,
}

/// The address of a response: the worker's inbox, its incarnation and the connection.
pub(crate) type ResponseAddress = (Arc<Inbox>, u32, ConnId);

impl<'a> Deref for HttpRequest<'a> {
    type Target = http::Request<'a>;

    fn deref(&self) -> &http::Request<'a> {
        self.request
    }
}

impl HttpRequest<'_> {
    /// The part of the path that matches `{name}` of the route, still percent-encoded; empty if the route has
    /// no such parameter.
    pub fn param(&self, name: &str) -> &str {
        self.params.get(name).unwrap_or_default()
    }

    /// Responds later, from any thread.
    pub fn later(&self, work: impl FnOnce(Responder)) -> Reply {
        work(Responder { place: Some(self.place.clone()) });
        Reply(None)
    }
}

/// Sends the response to a request. If it is dropped, the response is 500.
#[derive(Debug)]
#[must_use = "the client waits"]
pub struct Responder {
    place: Option<ResponseAddress>,
}

impl Responder {
    /// Sends the response. It has no effect if the client has disconnected.
    pub fn send(mut self, response: HttpResponse) {
        self.post(response);
    }

    fn post(&mut self, response: HttpResponse) {
        if let Some((inbox, incarnation, conn)) = self.place.take() {
            inbox.send(InboxMessage::Responded { conn: conn.to_u64(), incarnation, response });
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.post(HttpResponse::new(500));
    }
}

/// A response, now or later.
#[derive(Debug)]
pub struct Reply(pub(crate) Option<HttpResponse>);

impl From<HttpResponse> for Reply {
    fn from(response: HttpResponse) -> Reply {
        Reply(Some(response))
    }
}

/// An HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// The status, 200 to 599.
    pub status: u16,
    /// Names and values of headers. `Date`, `Content-Length` and `Connection` are added.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl HttpResponse {
    /// Creates a response without own headers and without a body.
    pub fn new(status: u16) -> HttpResponse {
        HttpResponse { status, headers: Vec::new(), body: Vec::new() }
    }

    /// Creates a 200 response with plain text.
    pub fn text(body: impl Into<String>) -> HttpResponse {
        HttpResponse { body: body.into().into_bytes(), ..HttpResponse::new(200) }
            .header("Content-Type", "text/plain; charset=utf-8")
    }

    /// Creates a 200 response with JSON.
    pub fn json(body: impl Into<Value>) -> HttpResponse {
        HttpResponse { body: body.into().to_string().into_bytes(), ..HttpResponse::new(200) }
            .header("Content-Type", "application/json")
    }

    /// Whether it can be sent: the status is valid, and no header contains a line break.
    pub(crate) fn is_valid(&self) -> bool {
        let is_text = |text: &str| !text.bytes().any(|byte| byte.is_ascii_control());
        (200..600).contains(&self.status)
            && self.headers.iter().all(|(name, value)| {
                !name.is_empty() && !name.contains([':', ' ']) && is_text(name) && is_text(value)
            })
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> HttpResponse {
        self.headers.push((name.into(), value.into()));
        self
    }
}

impl fmt::Debug for HttpRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HttpRequest").field(self.request).finish()
    }
}
