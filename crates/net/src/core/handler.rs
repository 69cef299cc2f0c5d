//! The callbacks of an application: one method an event, each with a default.

use std::io;
use std::net::SocketAddr;

use super::connection::ConnId;
use super::context::{Context, ListenerId, TimerId};
use super::error::CloseReason;
use super::foreign::Ready;
use crate::http;
use crate::websocket;

/// Whether to keep a connection that was just accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Keep it; `on_open` follows.
    Accept,
    /// Close it at once, unread and unanswered. Counted in `Stats::refused`.
    Refuse,
    /// Keep it, but accept no more from this listener until [`Context::resume_accept`]. Further connections wait in the kernel's
    /// backlog.
    Pause,
}

/// Whether the loop may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Wait until something happens.
    Block,
    /// Check the sockets and return at once.
    Poll,
}

/// How a peer broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// Malformed, oversized or late HTTP, with the status code for it.
    #[error("{0}")]
    Http(http::Error),
    /// A WebSocket protocol error, with the close code for it.
    #[error("{0}")]
    WebSocket(websocket::Error),
    /// The response to a client's WebSocket handshake is not valid.
    #[error("{0}")]
    Handshake(websocket::ClientHandshakeError),
}

/// The application. It owns its state; the loop owns the connections.
///
/// The loop calls one method at a time, in the order of events, and never from inside a method of [`Context`]: a
/// connection that is closed in `on_data` has its `on_close` later in the turn.
/// After `on_close` no method is called for that connection again.
///
/// An accepted connection is announced by `on_open`, a connect of ours by `on_connect`; `on_close` ends both. A connect
/// that fails has `on_connect_failed` instead of all that. In between a connection speaks one protocol at a time: raw
/// bytes (`on_data`), HTTP (`on_request`), or WebSocket (`on_message`).
#[expect(unused_variables, reason = "the names of the arguments are documentation")]
pub trait Handler: Sized {
    /// The application's data of each connection, kept in the connection's record. Keep it small: every connection pays for it.
    type Data: Default;

    /// A connection was accepted from `peer`, which is `None` on a Unix socket. Decides whether to keep it. A connection that is
    /// kept begins with `data` as this method leaves it. Its `on_open` follows, after the TLS handshake if there is one, or
    /// its `on_open_failed`.
    fn on_accept(
        &mut self,
        cx: &mut Context<Self::Data>,
        listener: ListenerId,
        peer: Option<SocketAddr>,
        data: &mut Self::Data,
    ) -> Admit {
        Admit::Accept
    }

    /// A listener could not accept: the process is out of descriptors (`EMFILE`), the system of memory. It
    /// is paused and tries again by itself, when a connection closes or after
    /// [`accept_retry_ms`](crate::LoopConfig::accept_retry_ms).
    fn on_accept_failed(
        &mut self,
        cx: &mut Context<Self::Data>,
        listener: ListenerId,
        error: &io::Error,
    ) {
    }

    /// An accepted connection is open, its TLS handshake included.
    fn on_open(&mut self, cx: &mut Context<Self::Data>, conn: ConnId) {}

    /// An accepted connection ended before it was open: its TLS handshake failed, took too long, or gave way to newer
    /// connections. Its data comes back; neither `on_open` nor `on_close` is called for it.
    fn on_open_failed(
        &mut self,
        cx: &mut Context<Self::Data>,
        data: Self::Data,
        error: &io::Error,
    ) {
    }

    /// A connection that [`Context::connect`] began is open, its TLS handshake included.
    fn on_connect(&mut self, cx: &mut Context<Self::Data>, conn: ConnId) {}

    /// A connect failed or took too long (`ErrorKind::TimedOut`). Neither `on_connect` nor `on_close` is
    /// called for it.
    fn on_connect_failed(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        data: Self::Data,
        error: &io::Error,
    ) {
    }

    /// The TLS handshake that [`Context::begin_tls`] began is done: what is written and what arrives from now on is
    /// encrypted.
    fn on_secure(&mut self, cx: &mut Context<Self::Data>, conn: ConnId) {}

    /// TLS of an open connection has failed: in the handshake that [`Context::begin_tls`] began (`TimedOut` if it took too
    /// long), or after a handshake, as when a server rejects the client's certificate by an alert. The connection has ended;
    /// `on_close` follows and returns its data.
    fn on_tls_failed(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, error: &io::Error) {}

    /// Bytes have arrived on a raw TCP connection. The slice is valid for the length of the call.
    fn on_data(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, bytes: &[u8]) {}

    /// The peer of a raw TCP connection has finished sending; it may still be reading. By default the
    /// connection is closed once what is buffered has left. A handler that leaves it open must close it
    /// itself.
    fn on_eof(&mut self, cx: &mut Context<Self::Data>, conn: ConnId) {
        cx.close(conn);
    }

    /// The head of a request has arrived, and its body has not, or not all of it. Says how many bytes of body are taken, at
    /// most [`body_bytes_max`](http::Limits::body_bytes_max); more are answered with 413. `None`: the request has been
    /// answered here, with [`Context::respond`], and the connection ends with the response.
    fn on_request_head(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        head: &http::RequestHead<'_>,
    ) -> Option<u64> {
        Some(u64::MAX)
    }

    /// A complete request has arrived: head and body. Answer it now or in a later turn with
    /// [`Context::respond`], [`Context::start_stream`], [`Context::start_chunked`] or
    /// [`Context::upgrade_websocket`]. Further pipelined requests of this connection wait until then.
    fn on_request(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        request: &http::Request<'_>,
    ) {
        let _ = cx.respond(conn, &http::Response::new(404));
    }

    /// A client's WebSocket handshake has succeeded, with the subprotocol the server chose: messages may be
    /// sent. (A server knows when it upgrades.)
    fn on_websocket(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, protocol: Option<&str>) {
    }

    /// A complete message, unmasked, inflated and, if text, valid UTF-8.
    fn on_message(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        message: websocket::Message<'_>,
    ) {
    }

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

    /// The peer broke the protocol. By default an HTTP server answers with the status of the error, a
    /// WebSocket end sends a close frame with its code, and the connection is closed. A handler that
    /// overrides this must close it in the end; nothing more is read from it in any case.
    fn on_protocol_error(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        error: &ProtocolError,
    ) {
        cx.answer_protocol_error(conn, error);
    }

    /// There is room to write again, after `try_write_slices` took less than it was given or a buffered write was refused as
    /// full.
    fn on_writable(&mut self, cx: &mut Context<Self::Data>, conn: ConnId) {}

    /// A connection has ended. Returns its data to the handler; the id is stale afterwards. Not called for connections that are
    /// open when the loop is dropped.
    fn on_close(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        data: Self::Data,
        reason: CloseReason,
    ) {
    }

    /// The deadline set with [`Context::set_deadline`] has passed. It is cleared.
    fn on_deadline(&mut self, cx: &mut Context<Self::Data>, conn: ConnId) {}

    /// A timer has fired. One that fires once has ended.
    fn on_timer(&mut self, cx: &mut Context<Self::Data>, timer: TimerId, data: u64) {}

    /// A descriptor registered with [`Context::register_fd`] is ready. If it is edge-triggered, read or write until it
    /// takes no more, unless each of its edges stands for itself, as an eventfd's do.
    fn on_fd(&mut self, cx: &mut Context<Self::Data>, token: u64, ready: Ready) {}

    /// A signal registered with [`Context::register_signals`] has been sent to the process.
    fn on_signal(&mut self, cx: &mut Context<Self::Data>, signal: i32) {}

    /// Called once a turn of the loop: after its events and timers, before output is sent.
    fn on_tick(&mut self, cx: &mut Context<Self::Data>) {}

    /// The loop is about to block. Return [`Sleep::Poll`] to prevent it, if there is other work.
    fn on_sleep(&mut self, cx: &mut Context<Self::Data>) -> Sleep {
        Sleep::Block
    }

    /// The loop has woken after `on_sleep` returned [`Sleep::Block`]. Called before any event is delivered.
    fn on_wake(&mut self, cx: &mut Context<Self::Data>) {}
}
