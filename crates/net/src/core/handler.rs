//! The callbacks of an application: one method an event, each with a default.

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

/// What the handler `H` speaks beside raw TCP: [`Tcp`](crate::Tcp), which is nothing, [`Http`](crate::Http),
/// [`WebSocket`](crate::WebSocket), or two of them as a pair, `(Http, WebSocket)`. Each asks the handler for the trait of
/// its callbacks. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a handler speaks",
    label = "not a protocol of this library",
    note = "a handler has `type Protocols = Tcp;`, `Http`, `WebSocket` or `(Http, WebSocket)`"
)]
pub trait Protocols<H: Handler>: Driver<H> {}

/// The application. It owns its state; the loop owns the connections.
///
/// The loop calls one method at a time, in the order of events, and never from inside a method of [`Context`]: a
/// connection that is closed in `on_data` has its `on_close` later in the turn.
/// After `on_close` no method is called for that connection again.
///
/// An accepted connection is announced by `on_open`, a connect of ours by `on_connect`; `on_close` ends both. A connect
/// that fails has `on_connect_failed` instead of all that. In between a connection speaks one protocol at a time: raw
/// bytes (`on_data`), or one that is plugged in by `Protocols`, whose events are methods of a trait of its own:
/// [`HttpHandler`](crate::HttpHandler), [`WebSocketHandler`](crate::WebSocketHandler).
#[expect(unused_variables, reason = "the names of the arguments are documentation")]
pub trait Handler: Sized {
    /// The application's data of each connection, kept in the connection's record. Keep it small: every connection pays for it.
    type Data: Default;

    /// What it speaks: [`Tcp`](crate::Tcp), raw bytes alone; [`Http`](crate::Http), as an
    /// [`HttpHandler`](crate::HttpHandler); [`WebSocket`](crate::WebSocket), as a
    /// [`WebSocketHandler`](crate::WebSocketHandler); or the pair `(Http, WebSocket)`.
    type Protocols: Protocols<Self>;

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
