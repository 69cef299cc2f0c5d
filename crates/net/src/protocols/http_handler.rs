//! The callbacks of an HTTP server.

use crate::core::connection::ConnId;
use crate::core::context::Context;
use crate::core::handler::Handler;
use crate::http::{Error, Request, RequestHead};

/// A [`Handler`] that serves HTTP/1.1, on listeners of [`ListenConfig::http`](crate::ListenConfig::http). It has
/// `type Protocols = Http;`, or `(Http, WebSocket)`.
///
/// ```
/// use dunlin_net::http::{Request, Response};
/// use dunlin_net::{ConnId, Context, Handler, Http, HttpHandler};
///
/// struct Hello;
///
/// impl Handler for Hello {
///     type Data = ();
///     type Protocols = Http;
/// }
///
/// impl HttpHandler for Hello {
///     fn on_request(&mut self, cx: &mut Context<()>, conn: ConnId, _: &Request<'_>) {
///         if cx.respond(conn, &Response::text("hello\n")).is_err() {
///             cx.abort(conn); // it asks without reading the answers
///         }
///     }
/// }
/// ```
///
/// A handler that speaks HTTP and does not say what it answers is refused by the compiler:
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
    /// The head of a request has arrived, and its body has not, or not all of it. Says how many bytes of body are taken, at
    /// most [`body_bytes_max`](crate::http::Limits::body_bytes_max); more are answered with 413. `None`: the request has been
    /// answered here, with [`Context::respond`], and the connection ends with the response.
    fn on_request_head(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        head: &RequestHead<'_>,
    ) -> Option<u64> {
        Some(u64::MAX)
    }

    /// A complete request has arrived: head and body. Answer it now or in a later turn with
    /// [`Context::respond`], [`Context::start_stream`], [`Context::start_chunked`] or
    /// [`Context::upgrade_websocket`]. Further pipelined requests of this connection wait until then.
    fn on_request(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, request: &Request<'_>);

    /// The peer sent malformed, oversized or late HTTP. By default it is answered with the status of the error, and the
    /// connection is closed. A handler that overrides this must close it in the end; nothing more is read from it in any
    /// case.
    fn on_http_error(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, error: Error) {
        cx.answer_http_error(conn, error);
    }
}
