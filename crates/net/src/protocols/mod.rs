//! What the loop does with the machines of `http` and `websocket`: gives them bytes, hands their events to the
//! [`Handler`], writes what they answer.

mod handshake;
mod http;
mod websocket;

pub use handshake::UpgradeError;

use crate::core::connection::{ConnId, Phase, Protocol};
use crate::core::context::Context;
use crate::core::driver::Driver;
use crate::core::error::CloseReason;
use crate::core::handler::{Handler, ProtocolError};

impl<H: Handler> Driver for H {
    fn input(
        &mut self,
        cx: &mut Context<H::Data>,
        conn: ConnId,
        bytes: &mut [u8],
        carried: usize,
    ) -> usize {
        let mut consumed = 0;
        // A request may turn the connection into a WebSocket whose first frame is here already.
        loop {
            let open = |cx: &Context<H::Data>| {
                let record = cx.slab.get(conn).filter(|record| record.phase == Phase::Open)?;
                Some(record.protocol)
            };
            let Some(protocol) = open(cx) else { return bytes.len() };
            let rest = &mut bytes[consumed..];
            consumed += match protocol {
                Protocol::Tcp => {
                    self.on_data(cx, conn, rest);
                    rest.len()
                }
                Protocol::Http(_) => {
                    cx.http_input(self, conn, rest, carried.saturating_sub(consumed))
                }
                Protocol::Stream => rest.len(),
                Protocol::WebSocketHandshake => cx.handshake_input(self, conn, rest),
                Protocol::WebSocket(_) => cx.websocket_input(self, conn, rest),
            };
            let changed = open(cx).is_some_and(|now| {
                std::mem::discriminant(&now) != std::mem::discriminant(&protocol)
            });
            if !changed || consumed == bytes.len() {
                return consumed;
            }
        }
    }

    fn peer_finished(&mut self, cx: &mut Context<H::Data>, conn: ConnId, protocol: Protocol) {
        match protocol {
            Protocol::Tcp => self.on_eof(cx, conn),
            // Answers already given leave; an answer outstanding has lost its requester.
            Protocol::Http(_) => cx.drain_for_peer(conn),
            Protocol::Stream | Protocol::WebSocketHandshake | Protocol::WebSocket(_) => {
                cx.finish(conn, CloseReason::Peer);
            }
        }
    }

    fn timed_out(&mut self, cx: &mut Context<H::Data>, conn: ConnId, protocol: Protocol) {
        match protocol {
            Protocol::Http(_) => cx.http_timeout(self, conn),
            _ => cx.finish(conn, CloseReason::TimedOut),
        }
    }
}

impl<D: Default> Context<D> {
    /// The peer broke the rules: the handler says how it ends.
    pub(crate) fn protocol_error<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        error: &ProtocolError,
    ) {
        // What follows cannot be trusted to begin anywhere: no more of it is read.
        self.distrust(conn);
        handler.on_protocol_error(self, conn, error);
    }

    /// What [`Handler::on_protocol_error`] does by default: answers in the protocol's own words and closes.
    pub fn answer_protocol_error(&mut self, conn: ConnId, error: &ProtocolError) {
        match error {
            ProtocolError::Http(error) => self.answer_http_error(conn, *error),
            ProtocolError::WebSocket(error) => {
                // If it does not fit, the peer is not reading.
                let _ = self.send_close_frame(conn, error.close_code(), error.message());
            }
            ProtocolError::Handshake(_) => {}
        }
        self.begin_drain(conn);
    }
}
