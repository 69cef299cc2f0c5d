//! The callbacks of an HTTP server.

use crate::core::connection::ConnId;
use crate::core::context::Context;
use crate::core::handler::Handler;
use crate::http::{Error, Request, RequestHead, RequestId};

/// A [`Handler`] that serves HTTP/1.1, on listeners of [`ListenConfig::http`](crate::ListenConfig::http). It has
/// `type Protocols = Http;`, or `(Http, WebSocket)`.
///
/// ```
/// use dunlin_net::http::{Request, RequestId, Response};
/// use dunlin_net::{Context, Handler, Http, HttpHandler};
///
/// struct Hello;
///
/// impl Handler for Hello {
///     type Data = ();
///     type Protocols = Http;
/// }
///
/// impl HttpHandler for Hello {
///     fn on_request(&mut self, cx: &mut Context<()>, id: RequestId, _: &Request<'_>) {
///         if cx.respond(id, &Response::text("hello\n")).is_err() {
///             cx.abort(id.conn()); // it asks without reading the answers
///         }
///     }
/// }
/// ```
///
/// The compiler rejects a handler with HTTP that does not implement this trait:
///
/// ```compile_fail,E0277
/// use dunlin_net::{Handler, Http};
///
/// struct Silent;
///
/// impl Handler for Silent {
///     type Data = ();
///     type Protocols = Http;
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` speaks HTTP, and does not say what it answers",
    label = "`impl HttpHandler for {Self}` is missing",
    note = "write `impl HttpHandler for {Self} {{ fn on_request(…) }}`, or `type Protocols = Tcp;` if it speaks raw TCP alone"
)]
#[expect(unused_variables, reason = "the names of the arguments are documentation")]
pub trait HttpHandler: Handler {
    /// Decides on a request whose head has arrived and whose body is incomplete. Returns the maximum body size in
    /// bytes, at most [`body_bytes_max`](crate::http::Limits::body_bytes_max); a longer body gets status 413. `None`:
    /// this method has responded to the request by [`Context::respond`], and the connection ends with the response.
    fn on_request_head(
        &mut self,
        cx: &mut Context<Self::Data>,
        id: RequestId,
        head: &RequestHead<'_>,
    ) -> Option<u64> {
        Some(u64::MAX)
    }

    /// Handles a complete request: head and body. Respond to its id, now or in a later turn, with [`Context::respond`],
    /// [`Context::start_stream`], [`Context::start_chunked`] or [`Context::upgrade_websocket`]. Further pipelined
    /// requests of this connection wait until then.
    fn on_request(&mut self, cx: &mut Context<Self::Data>, id: RequestId, request: &Request<'_>);

    /// Handles malformed, oversized or late HTTP. By default it responds with the status of the error and closes the
    /// connection. An implementation must eventually close the connection; its input is no longer read.
    fn on_http_error(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, error: Error) {
        cx.answer_http_error(conn, error);
    }
}
