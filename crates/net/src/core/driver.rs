//! The interface that the loop calls the protocols above it through.

use super::connection::{ConnId, Phase};
use super::context::Context;
use super::handler::Handler;
use super::upper::Protocol;

/// The protocols that are plugged in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plugged {
    /// A listener may serve HTTP.
    pub http: bool,
    /// A connection may become a WebSocket.
    pub websocket: bool,
}

/// What drives the protocols of a loop whose handler is `H`. The core keeps the state of a protocol, and calls this when there
/// are bytes, an end or a time-out to be judged by it. Implemented by types that have no values: each loop is compiled for what
/// its handler speaks.
#[expect(private_interfaces, reason = "whoever is outside neither calls nor implements it")]
pub trait Driver<H: Handler> {
    /// What it drives.
    const PLUGGED: Plugged;

    /// Whether it drives this protocol, raw TCP aside, which all do.
    fn speaks(protocol: Protocol) -> bool;

    /// Gives input to the connection's protocol, which is one that it speaks or raw TCP. Returns the bytes consumed. It has
    /// seen the first `carried` bytes before.
    fn step(
        handler: &mut H,
        cx: &mut Context<H::Data>,
        conn: ConnId,
        protocol: Protocol,
        bytes: &mut [u8],
        carried: usize,
    ) -> usize;

    /// The peer of an open connection has sent its FIN.
    fn peer_finished(handler: &mut H, cx: &mut Context<H::Data>, conn: ConnId, protocol: Protocol);

    /// The loop's own deadline of an open connection has passed.
    fn timed_out(handler: &mut H, cx: &mut Context<H::Data>, conn: ConnId, protocol: Protocol);

    /// Gives input to the protocols that the connection speaks one after the other: a request may turn it into a WebSocket whose
    /// first frame is here already. Returns the bytes consumed, of which the first `carried` were seen before.
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
