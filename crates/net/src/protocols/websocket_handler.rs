//! The callbacks of WebSockets.

use crate::core::connection::ConnId;
use crate::core::context::Context;
use crate::core::handler::Handler;
use crate::websocket::{Message, ProtocolError};

/// A [`Handler`] with WebSockets, either end. It has `type Protocols = (Http, WebSocket);` if it serves, and may have
/// `type Protocols = WebSocket;` if it only connects.
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
/// A handler that speaks WebSocket and does not say what becomes of messages is refused by the compiler:
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
    /// A client's WebSocket handshake has succeeded, with the subprotocol the server chose: messages may be
    /// sent. (A server knows when it upgrades.)
    fn on_websocket(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, protocol: Option<&str>) {
    }

    /// A complete message, unmasked, inflated and, if text, valid UTF-8.
    fn on_message(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, message: Message<'_>);

    /// A ping frame. By default answered with a pong of the same payload (RFC 6455 §5.5.2).
    fn on_ping(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, payload: &[u8]) {
        let _ = cx.ws_pong(conn, payload);
    }

    /// A pong frame.
    fn on_pong(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, payload: &[u8]) {}

    /// A close frame; `code` is 1005 when it had none. No message follows. By default the close frame is
    /// answered, unless ours went first, and the connection closed (RFC 6455 §5.5.1). A handler that
    /// overrides this must do as much in the end.
    fn on_close_frame(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        code: u16,
        reason: &str,
    ) {
        cx.answer_close_frame(conn, code);
    }

    /// The peer broke the protocol. By default it is sent a close frame with the code of the error, and the connection is
    /// closed. A handler that overrides this must close it in the end; nothing more is read from it in any case.
    fn on_websocket_error(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        error: &ProtocolError,
    ) {
        cx.answer_websocket_error(conn, error);
    }
}
