//! Connects the state machines of `http` and `websocket` to the loop: passes bytes to them and their events to the
//! traits of a [`Handler`], and writes their output.

mod handshake;
mod http;
mod http_handler;
mod kept;
mod protocol;
mod shared;
mod websocket;
mod websocket_handler;

pub use handshake::UpgradeError;
pub use http_handler::HttpHandler;
pub use websocket_handler::WebSocketHandler;

use protocol::Protocol;

use crate::core::connection::ConnId;
use crate::core::context::Context;
use crate::core::driver::{Driver, Plugged};
use crate::core::error::CloseReason;
use crate::core::handler::{Handler, Protocols};

/// The protocols of a [`Handler`] with only raw TCP.
#[derive(Debug)]
pub enum Tcp {}

/// The protocols of a [`Handler`] that serves HTTP/1.1, beside raw TCP. The handler implements [`HttpHandler`].
#[derive(Debug)]
pub enum Http {}

/// The protocols of a [`Handler`] with WebSockets, beside raw TCP. The handler implements [`WebSocketHandler`]. By
/// itself it is for clients: a server's WebSockets begin as HTTP, which requires `(Http, WebSocket)`.
#[derive(Debug)]
pub enum WebSocket {}

impl<H: Handler> Protocols<H> for Tcp {}
impl<H: HttpHandler> Protocols<H> for Http {}
impl<H: WebSocketHandler> Protocols<H> for WebSocket {}
impl<H: Handler, A: Protocols<H>, B: Protocols<H>> Protocols<H> for (A, B) {}

impl<H: Handler> Driver<H> for Tcp {
    const PLUGGED: Plugged = Plugged { http: false, websocket: false };

    fn speaks(protocol: Protocol) -> bool {
        protocol == Protocol::Tcp
    }

    fn step(
        handler: &mut H,
        cx: &mut Context<H::Data>,
        conn: ConnId,
        _: Protocol,
        bytes: &mut [u8],
        _: usize,
    ) -> usize {
        handler.on_data(cx, conn, bytes);
        bytes.len()
    }

    fn peer_finished(handler: &mut H, cx: &mut Context<H::Data>, conn: ConnId, _: Protocol) {
        handler.on_eof(cx, conn);
    }

    fn timed_out(_: &mut H, cx: &mut Context<H::Data>, conn: ConnId, _: Protocol) {
        cx.finish(conn, CloseReason::TimedOut);
    }
}

impl<H: HttpHandler> Driver<H> for Http {
    const PLUGGED: Plugged = Plugged { http: true, websocket: false };

    fn speaks(protocol: Protocol) -> bool {
        matches!(protocol, Protocol::Http(_) | Protocol::Stream)
    }

    fn step(
        handler: &mut H,
        cx: &mut Context<H::Data>,
        conn: ConnId,
        protocol: Protocol,
        bytes: &mut [u8],
        carried: usize,
    ) -> usize {
        match protocol {
            Protocol::Http(_) => cx.http_input(handler, conn, bytes, carried),
            Protocol::Stream => bytes.len(),
            _ => Tcp::step(handler, cx, conn, protocol, bytes, carried),
        }
    }

    fn peer_finished(handler: &mut H, cx: &mut Context<H::Data>, conn: ConnId, protocol: Protocol) {
        match protocol {
            // Responses already written are still sent; nobody waits for an outstanding one.
            Protocol::Http(_) => cx.drain_for_peer(conn),
            Protocol::Stream => cx.finish(conn, CloseReason::Peer),
            _ => Tcp::peer_finished(handler, cx, conn, protocol),
        }
    }

    fn timed_out(handler: &mut H, cx: &mut Context<H::Data>, conn: ConnId, protocol: Protocol) {
        match protocol {
            Protocol::Http(_) => cx.http_timeout(handler, conn),
            _ => Tcp::timed_out(handler, cx, conn, protocol),
        }
    }
}

impl<H: WebSocketHandler> Driver<H> for WebSocket {
    const PLUGGED: Plugged = Plugged { http: false, websocket: true };

    fn speaks(protocol: Protocol) -> bool {
        matches!(protocol, Protocol::WebSocketHandshake | Protocol::WebSocket(_))
    }

    fn step(
        handler: &mut H,
        cx: &mut Context<H::Data>,
        conn: ConnId,
        protocol: Protocol,
        bytes: &mut [u8],
        carried: usize,
    ) -> usize {
        match protocol {
            Protocol::WebSocket(_) => cx.websocket_input(handler, conn, bytes),
            Protocol::WebSocketHandshake => cx.handshake_input(handler, conn, bytes),
            _ => Tcp::step(handler, cx, conn, protocol, bytes, carried),
        }
    }

    fn peer_finished(handler: &mut H, cx: &mut Context<H::Data>, conn: ConnId, protocol: Protocol) {
        if <Self as Driver<H>>::speaks(protocol) {
            return cx.finish(conn, CloseReason::Peer);
        }
        Tcp::peer_finished(handler, cx, conn, protocol);
    }

    fn timed_out(handler: &mut H, cx: &mut Context<H::Data>, conn: ConnId, protocol: Protocol) {
        Tcp::timed_out(handler, cx, conn, protocol);
    }
}

impl<H: Handler, A: Driver<H>, B: Driver<H>> Driver<H> for (A, B) {
    const PLUGGED: Plugged = Plugged {
        http: A::PLUGGED.http || B::PLUGGED.http,
        websocket: A::PLUGGED.websocket || B::PLUGGED.websocket,
    };

    fn speaks(protocol: Protocol) -> bool {
        A::speaks(protocol) || B::speaks(protocol)
    }

    fn step(
        handler: &mut H,
        cx: &mut Context<H::Data>,
        conn: ConnId,
        protocol: Protocol,
        bytes: &mut [u8],
        carried: usize,
    ) -> usize {
        match A::speaks(protocol) {
            true => A::step(handler, cx, conn, protocol, bytes, carried),
            false => B::step(handler, cx, conn, protocol, bytes, carried),
        }
    }

    fn peer_finished(handler: &mut H, cx: &mut Context<H::Data>, conn: ConnId, protocol: Protocol) {
        match A::speaks(protocol) {
            true => A::peer_finished(handler, cx, conn, protocol),
            false => B::peer_finished(handler, cx, conn, protocol),
        }
    }

    fn timed_out(handler: &mut H, cx: &mut Context<H::Data>, conn: ConnId, protocol: Protocol) {
        match A::speaks(protocol) {
            true => A::timed_out(handler, cx, conn, protocol),
            false => B::timed_out(handler, cx, conn, protocol),
        }
    }
}
