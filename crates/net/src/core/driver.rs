//! The interface through which the loop calls the protocols above it.

use super::connection::{ConnId, Phase};
use super::context::Context;
use super::handler::Handler;
use super::upper::Protocol;

/// The protocols of a handler.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plugged {
    /// A listener may serve HTTP.
    pub http: bool,
    /// A connection may become a WebSocket.
    pub websocket: bool,
}

/// The protocols of a loop whose handler is `H`. The core stores the protocols' state, and calls this trait when bytes,
/// an end of input or a timeout must be handled. Implemented by types without values: each loop is compiled for the
/// protocols of its handler.
#[expect(private_interfaces, reason = "whoever is outside neither calls nor implements it")]
pub trait Driver<H: Handler> {
    /// The protocols that this type implements.
    const PLUGGED: Plugged;

    /// Returns whether it implements this protocol. Raw TCP, which all implement, does not count.
    fn speaks(protocol: Protocol) -> bool;

    /// Passes input to the connection's protocol, which is one that it implements or raw TCP. Returns the number of
    /// bytes consumed. It has seen the first `carried` bytes before.
    fn step(
        handler: &mut H,
        cx: &mut Context<H::Data>,
        conn: ConnId,
        protocol: Protocol,
        bytes: &mut [u8],
        carried: usize,
    ) -> usize;

    /// Handles the FIN of the peer of an open connection.
    fn peer_finished(handler: &mut H, cx: &mut Context<H::Data>, conn: ConnId, protocol: Protocol);

    /// Handles the expiry of the loop's own deadline of an open connection.
    fn timed_out(handler: &mut H, cx: &mut Context<H::Data>, conn: ConnId, protocol: Protocol);

    /// Passes input to the successive protocols of the connection: a request may turn it into a WebSocket whose first
    /// frame has already arrived. Returns the number of bytes consumed, of which the first `carried` were seen before.
    fn input(
        handler: &mut H,
        cx: &mut Context<H::Data>,
        conn: ConnId,
        bytes: &mut [u8],
        carried: usize,
    ) -> usize {
        let mut consumed = 0;
        loop {
            let open = |cx: &Context<H::Data>| {
                let record = cx.slab.get(conn).filter(|record| record.phase == Phase::Open)?;
                Some(record.protocol)
            };
            let Some(protocol) = open(cx) else { return bytes.len() };
            let (rest, seen) = (&mut bytes[consumed..], carried.saturating_sub(consumed));
            consumed += Self::step(handler, cx, conn, protocol, rest, seen);
            let changed = open(cx).is_some_and(|now| {
                std::mem::discriminant(&now) != std::mem::discriminant(&protocol)
            });
            if !changed || consumed == bytes.len() {
                return consumed;
            }
        }
    }
}
