//! The callbacks of an application: one method per event, each with a default.

use std::io;
use std::net::SocketAddr;

use super::connection::ConnId;
use super::context::{Context, ListenerId, TimerId};
use super::driver::Driver;
use super::error::CloseReason;
use super::foreign::Ready;

/// Whether to keep a connection that was just accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Keep it; `on_open` follows.
    Accept,
    /// Close it at once, without reading or responding. Counted in `Stats::refused`.
    Refuse,
    /// Keep it, but stop accepting from this listener until [`Context::resume_accept`]. Further connections wait in the
    /// kernel's backlog.
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

/// The protocols of the handler `H` beside raw TCP: [`Tcp`](crate::Tcp) for none, [`Http`](crate::Http),
/// [`WebSocket`](crate::WebSocket), or the pair `(Http, WebSocket)`. Each requires the handler to implement its trait
/// of callbacks. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a handler speaks",
    label = "not a protocol of this library",
    note = "a handler has `type Protocols = Tcp;`, `Http`, `WebSocket` or `(Http, WebSocket)`"
)]
pub trait Protocols<H: Handler>: Driver<H> {}

/// The application. It owns its state; the loop owns the connections.
///
/// The loop calls one method at a time, in the order of events, and never from within a method of [`Context`]: a
/// connection that is closed in `on_data` has its `on_close` later in the turn. After `on_close` no method is called
/// for that connection again.
///
/// `on_open` reports an accepted connection, `on_connect` an outgoing one; `on_close` reports the end of both. For a
/// failed connect only `on_connect_failed` is called. In between, a connection uses one protocol at a time: raw bytes
/// (`on_data`), or one of `Protocols`, whose events are methods of its own trait: [`HttpHandler`](crate::HttpHandler),
/// [`WebSocketHandler`](crate::WebSocketHandler).
#[expect(unused_variables, reason = "the names of the arguments are documentation")]
pub trait Handler: Sized {
    /// The application's data of each connection, stored in its record. Keep it small: every connection uses this
    /// memory.
    type Data: Default;

    /// The protocols of the handler: [`Tcp`](crate::Tcp) for raw bytes only; [`Http`](crate::Http), with
    /// [`HttpHandler`](crate::HttpHandler); [`WebSocket`](crate::WebSocket), with
    /// [`WebSocketHandler`](crate::WebSocketHandler); or the pair `(Http, WebSocket)`.
    type Protocols: Protocols<Self>;

    /// Decides whether to keep a connection that was accepted from `peer`, which is `None` on a Unix socket. This
    /// method can initialise the connection's `data`. If the connection is kept, `on_open` or `on_open_failed` follows,
    /// after any TLS handshake.
    fn on_accept(
        &mut self,
        cx: &mut Context<Self::Data>,
        listener: ListenerId,
        peer: Option<SocketAddr>,
        data: &mut Self::Data,
    ) -> Admit {
        Admit::Accept
    }

    /// Reports that a listener could not accept: the process is out of descriptors (`EMFILE`), or the system out of
    /// memory. The listener is paused and retries when a connection closes or after
    /// [`accept_retry_ms`](crate::LoopConfig::accept_retry_ms).
    fn on_accept_failed(
        &mut self,
        cx: &mut Context<Self::Data>,
        listener: ListenerId,
        error: &io::Error,
    ) {
    }

    /// Reports that an accepted connection is open, after any TLS handshake.
    fn on_open(&mut self, cx: &mut Context<Self::Data>, conn: ConnId) {}

    /// Reports that an accepted connection ended before it was open: its TLS handshake failed, took too long, or was
    /// displaced by newer connections. Returns its data; neither `on_open` nor `on_close` is called for it.
    fn on_open_failed(
        &mut self,
        cx: &mut Context<Self::Data>,
        data: Self::Data,
        error: &io::Error,
    ) {
    }

    /// Reports that a connection started by [`Context::connect`] is open, after any TLS handshake.
    fn on_connect(&mut self, cx: &mut Context<Self::Data>, conn: ConnId) {}

    /// Reports that a connect failed or took too long (`ErrorKind::TimedOut`). Neither `on_connect` nor `on_close` is
    /// called for it.
    fn on_connect_failed(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        data: Self::Data,
        error: &io::Error,
    ) {
    }

    /// Reports that the TLS handshake started by [`Context::begin_tls`] is complete: further input and output are
    /// encrypted.
    fn on_secure(&mut self, cx: &mut Context<Self::Data>, conn: ConnId) {}

    /// Reports that TLS of an open connection has failed: in the handshake started by [`Context::begin_tls`]
    /// (`TimedOut` if it took too long), or later, as when a server rejects the client's certificate by an alert. The
    /// connection has ended; `on_close` follows and returns its data.
    fn on_tls_failed(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, error: &io::Error) {}

    /// Delivers bytes of a raw TCP connection. The slice is valid for the duration of the call.
    fn on_data(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, bytes: &[u8]) {}

    /// Reports that the peer of a raw TCP connection has finished sending; it may still be reading. By default the
    /// connection is closed once its buffered output is sent. A handler that leaves it open must close it itself.
    fn on_eof(&mut self, cx: &mut Context<Self::Data>, conn: ConnId) {
        cx.close(conn);
    }

    /// Reports that there is room to write again, after `try_write_slices` took less than all bytes or a buffered write
    /// returned [`WriteError::Full`](crate::WriteError::Full).
    fn on_writable(&mut self, cx: &mut Context<Self::Data>, conn: ConnId) {}

    /// Reports that a connection has ended, and returns its data; its id is stale afterwards. Not called for
    /// connections that are open when the loop is dropped.
    fn on_close(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        data: Self::Data,
        reason: CloseReason,
    ) {
    }

    /// Reports that the deadline set by [`Context::set_deadline`] has passed; it is cleared.
    fn on_deadline(&mut self, cx: &mut Context<Self::Data>, conn: ConnId) {}

    /// Reports that a timer has fired. A timer that fires once has ended.
    fn on_timer(&mut self, cx: &mut Context<Self::Data>, timer: TimerId, data: u64) {}

    /// Reports that a descriptor registered by [`Context::register_fd`] is ready. If it is edge-triggered, read or
    /// write until it would block, unless every write to it causes an event, as with an eventfd.
    fn on_fd(&mut self, cx: &mut Context<Self::Data>, token: u64, ready: Ready) {}

    /// Reports a signal that was registered by [`Context::register_signals`].
    fn on_signal(&mut self, cx: &mut Context<Self::Data>, signal: i32) {}

    /// Called once per turn of the loop: after its events and timers, before output is sent.
    fn on_tick(&mut self, cx: &mut Context<Self::Data>) {}

    /// Called before the loop blocks. Return [`Sleep::Poll`] to prevent it, if there is other work.
    fn on_sleep(&mut self, cx: &mut Context<Self::Data>) -> Sleep {
        Sleep::Block
    }

    /// Called after the loop has woken, if `on_sleep` returned [`Sleep::Block`], and before any event is delivered.
    fn on_wake(&mut self, cx: &mut Context<Self::Data>) {}
}
