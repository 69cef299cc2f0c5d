//! The interface that the loop calls the protocols above it through.

use super::connection::{ConnId, Protocol};
use super::context::Context;
use super::handler::Handler;

/// The protocols of a loop, plugged in below a [`Handler`]. The core keeps the state of a protocol, and calls this when there
/// are bytes, an end or a time-out to be judged by it.
pub(crate) trait Driver: Handler {
    /// Gives input to the connection's protocol. Returns the bytes consumed. It has seen the first `carried` bytes before.
    fn input(
        &mut self,
        cx: &mut Context<Self::Data>,
        conn: ConnId,
        bytes: &mut [u8],
        carried: usize,
    ) -> usize;

    /// The peer of an open connection has sent its FIN.
    fn peer_finished(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, protocol: Protocol);

    /// The loop's own deadline of an open connection has passed.
    fn timed_out(&mut self, cx: &mut Context<Self::Data>, conn: ConnId, protocol: Protocol);
}
