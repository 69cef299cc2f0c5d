//! The callbacks of WebSockets.

use crate::core::connection::ConnId;
use crate::core::context::Context;
use crate::core::handler::Handler;
use crate::websocket::{Message, ProtocolError};

/// A [`Handler`] with WebSockets, for servers and clients. It has `type Protocols = (Http, WebSocket);`, or `type
/// Protocols = WebSocket;` if it only connects.
///
/// ```
/// use dunlin_net::websocket::Message;
/// use dunlin_net::{ConnId, Context, Handler, WebSocket, WebSocketHandler};
///
/// struct Client;
///
/// impl Handler for Client {
///     type Data = ();
///     type Protocols = WebSocket;
/// }
///
/// impl WebSocketHandler for Client {
///     fn on_message(&mut self, _: &mut Context<()>, _: ConnId, message: Message<'_>) {
///         println!("{} bytes", message.payload.len());
///     }
/// }
/// ```
///
/// The compiler rejects a handler with WebSocket that does not implement this trait:
///
/// ```compile_fail,E0277
/// use dunlin_net::{Handler, WebSocket};
///
/// struct Silent;
///
/// impl Handler for Silent {
///     type Data = ();
///     type Protocols = WebSocket;
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` speaks WebSocket, and does not say what becomes of messages",
    label = "`impl WebSocketHandler for {Self}` is missing",
    note = "write `impl WebSocketHandler for {Self} {{ fn on_message(…) }}`, or take `WebSocket` out of its `type Protocols`"
)]
#[expect(unused_variables, reason = "the names of the arguments are documentation")]
pub trait WebSocketHandler: Handler {
    /// Reports that a client's WebSocket handshake has succeeded, with the subprotocol that the server chose: messages
    /// may be sent. Not called for server connections.
    fn on_websocket(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, protocol: Option<&str>) {
    }

    /// Delivers a complete message, unmasked and inflated. Text is valid UTF-8.
    fn on_message(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, message: Message<'_>);

    /// Delivers a ping. By default it is answered with a pong of the same payload (RFC 6455 §5.5.2).
    fn on_ping(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, payload: &[u8]) {
        let _ = cx.ws_pong(conn, payload);
    }

    /// Delivers a pong.
    fn on_pong(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, payload: &[u8]) {}

    /// Delivers a close frame; `code` is 1005 when it had none. No message follows. By default it is answered with a
    /// close frame, unless one was sent before, and the connection is closed (RFC 6455 §5.5.1). An implementation must
    /// eventually do the same.
    fn on_close_frame(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        code: u16,
        reason: &str,
    ) {
        cx.answer_close_frame(conn, code);
    }

    /// Handles a protocol violation by the peer. By default it sends a close frame with the code of the error and
    /// closes the connection. An implementation must eventually close the connection; its input is no longer read.
    fn on_websocket_error(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        error: &ProtocolError,
    ) {
        cx.answer_websocket_error(conn, error);
    }
}
