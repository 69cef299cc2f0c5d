//! Messages and control frames of an open WebSocket, either end.

use dunlin_wire::websocket::deflate::{DeflateParams, Deflater, Inflater};
use dunlin_wire::websocket::{Decoder, Event, Role, encode_close_masked, encode_frame_masked};

use super::{
    CONTROL_PAYLOAD_BYTES_MAX, Error, Message, Opcode, close_code, encode_close, encode_frame,
};
use crate::conn::{ConnId, Flags, Phase, Protocol};
use crate::context::Context;
use crate::error::{CloseReason, WriteError};
use crate::handler::{Handler, ProtocolError};

/// Payloads below this many bytes are not worth compressing.
const COMPRESS_BYTES_MIN: usize = 32;

/// Compression contexts of a connection that negotiated context takeover.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    deflater: Option<Deflater>,
    inflater: Option<Inflater>,
}

impl<D: Default> Context<D> {
    /// Sends a message of one frame, `Text` or `Binary`, compressed if that was negotiated and makes it
    /// smaller. The caller vouches that text is UTF-8.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfTurn`] when it is no WebSocket, a close frame has been sent, or the opcode is not
    /// that of a message; [`WriteError::Full`]; [`WriteError::Stale`].
    pub fn ws_send(
        &mut self,
        conn: ConnId,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<(), WriteError> {
        let (role, params) = self.sending(conn)?;
        if !matches!(opcode, Opcode::Text | Opcode::Binary) {
            return Err(WriteError::OutOfTurn);
        }
        match params {
            Some(params) if payload.len() >= COMPRESS_BYTES_MIN => {
                self.send_compressed(conn, role, params, opcode, payload)
            }
            _ => self.send_frame(conn, role, opcode, payload),
        }
    }

    /// Sends a text message.
    ///
    /// # Errors
    ///
    /// As [`Context::ws_send`].
    pub fn ws_send_text(&mut self, conn: ConnId, text: &str) -> Result<(), WriteError> {
        self.ws_send(conn, Opcode::Text, text.as_bytes())
    }

    /// Sends a ping of at most 125 bytes (more are cut off).
    ///
    /// # Errors
    ///
    /// As [`Context::ws_send`].
    pub fn ws_ping(&mut self, conn: ConnId, payload: &[u8]) -> Result<(), WriteError> {
        let (role, _) = self.sending(conn)?;
        let payload = &payload[..payload.len().min(CONTROL_PAYLOAD_BYTES_MAX)];
        self.send_frame(conn, role, Opcode::Ping, payload)
    }

    /// Sends a pong of at most 125 bytes (more are cut off).
    ///
    /// # Errors
    ///
    /// As [`Context::ws_send`].
    pub fn ws_pong(&mut self, conn: ConnId, payload: &[u8]) -> Result<(), WriteError> {
        let (role, _) = self.sending(conn)?;
        let payload = &payload[..payload.len().min(CONTROL_PAYLOAD_BYTES_MAX)];
        self.send_frame(conn, role, Opcode::Pong, payload)
    }

    /// Begins the closing handshake: sends a close frame and waits for the peer's, at most
    /// [`linger_ms`](crate::LoopConfig::linger_ms). A code that must not stand in a frame (RFC 6455 §7.4.1)
    /// sends one without code; a reason is cut to 123 bytes.
    ///
    /// # Errors
    ///
    /// As [`Context::ws_send`].
    pub fn ws_close(&mut self, conn: ConnId, code: u16, reason: &str) -> Result<(), WriteError> {
        self.send_close_frame(conn, code, reason)?;
        self.slab.at_mut(conn.index()).flags.clear(Flags::IDLE_DEADLINE);
        self.schedule_own(conn, self.config.linger_ms);
        Ok(())
    }

    /// What [`Handler::on_close_frame`] does by default: answers the close frame, unless it is an answer
    /// itself, and closes the connection.
    pub fn answer_close_frame(&mut self, conn: ConnId, code: u16) {
        if self.sending(conn).is_ok() {
            let code = if code == close_code::NONE { 0 } else { code };
            // If it does not fit, the peer is not reading.
            let _ = self.send_close_frame(conn, code, "");
            if let Some(record) = self.slab.get_mut(conn) {
                record.flags.set(Flags::CLOSED_BY_PEER);
            }
        }
        self.begin_drain(conn);
    }

    pub(crate) fn send_close_frame(
        &mut self,
        conn: ConnId,
        code: u16,
        reason: &str,
    ) -> Result<(), WriteError> {
        let (role, _) = self.sending(conn)?;
        let mask = (role == Role::Client).then(|| self.masks.take());
        self.append(conn, CONTROL_PAYLOAD_BYTES_MAX, |out| match mask {
            None => encode_close(out, code, reason),
            Some(mask) => encode_close_masked(out, code, reason, mask),
        })?;
        self.slab.at_mut(conn.index()).flags.set(Flags::CLOSE_SENT);
        Ok(())
    }

    /// Which end of an open WebSocket this is, and what it agreed to on compression.
    fn sending(&self, conn: ConnId) -> Result<(Role, Option<DeflateParams>), WriteError> {
        let record = self.slab.get(conn).ok_or(WriteError::Stale)?;
        if record.phase != Phase::Open {
            return Err(WriteError::Stale);
        }
        let role = role(record.protocol).ok_or(WriteError::OutOfTurn)?;
        if record.flags.has(Flags::CLOSE_SENT) {
            return Err(WriteError::OutOfTurn);
        }
        Ok((role, self.profile_at(record.profile).deflate))
    }

    fn send_frame(
        &mut self,
        conn: ConnId,
        role: Role,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<(), WriteError> {
        let mask = (role == Role::Client).then(|| self.masks.take());
        self.append(conn, payload.len() + 14, |out| match mask {
            None => encode_frame(out, opcode, payload),
            Some(mask) => encode_frame_masked(out, opcode, payload, mask),
        })
    }

    fn send_compressed(
        &mut self,
        conn: ConnId,
        role: Role,
        params: DeflateParams,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<(), WriteError> {
        let direction = params.outgoing(role);
        if !direction.can_compress() {
            return self.send_frame(conn, role, opcode, payload);
        }
        let mask = (role == Role::Client).then(|| self.masks.take());
        let bytes = payload.len() + 14;
        if direction.context_takeover {
            let mut contexts = self.borrow_contexts(conn);
            let deflater = contexts
                .deflater
                .get_or_insert_with(|| Deflater::new(self.config.deflate_level, direction));
            let sent =
                self.append(conn, bytes, |out| deflater.encode_frame(out, opcode, payload, mask));
            self.return_contexts(conn, contexts);
            return sent;
        }
        let mut shared = self.deflate.take().unwrap_or_else(|| self.new_deflate());
        let sent = match shared.deflater(direction) {
            Some(deflater) => {
                self.append(conn, bytes, |out| deflater.encode_frame(out, opcode, payload, mask))
            }
            None => self.send_frame(conn, role, opcode, payload),
        };
        self.deflate = Some(shared);
        sent
    }

    /// Hands out what the bytes hold. All of them are consumed: what is cut goes to an assembly.
    pub(crate) fn websocket_input<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        bytes: &mut [u8],
    ) -> usize {
        let record = self.slab.at_mut(conn.index());
        let Some(role) = role(record.protocol) else { return bytes.len() };
        let mut assembly = record.spill.as_mut().and_then(|spill| spill.assembly.take());
        self.stats.buffered_bytes -= assembly.as_ref().map_or(0, |kept| kept.memory_bytes());
        let profile = self.profile_at(self.slab.at(conn.index()).profile);
        let (limits, params) = (profile.websocket, profile.deflate);
        let decoder = Decoder { role, limits, deflate: params.is_some() };

        let mut at = 0;
        while at < bytes.len() {
            let decoded = match decoder.decode(assembly.as_deref_mut(), &mut bytes[at..]) {
                Ok(decoded) => decoded,
                Err(error) => {
                    self.websocket_violation(handler, conn, error);
                    break;
                }
            };
            at += decoded.consumed;
            match decoded.event {
                Event::NeedAssembly => assembly = Some(self.pool.borrow_assembly()),
                Event::NeedMore { .. } => break,
                Event::Message(message) if message.compressed => {
                    let params = params.expect("else the decoder refuses the bit");
                    self.hand_out_inflated(handler, conn, message, &decoder, params);
                }
                Event::Message(message) => {
                    self.stats.messages += 1;
                    handler.on_message(self, conn, message);
                }
                Event::Ping(payload) => handler.on_ping(self, conn, payload),
                Event::Pong(payload) => handler.on_pong(self, conn, payload),
                Event::Close(frame) => {
                    let (code, reason) =
                        frame.map_or((close_code::NONE, ""), |frame| (frame.code, frame.reason));
                    let record = self.slab.at_mut(conn.index());
                    record.flags.set(Flags::CLOSE_RECEIVED);
                    handler.on_close_frame(self, conn, code, reason);
                }
            }
            let over = self.slab.get(conn).is_none_or(|record| {
                record.phase != Phase::Open
                    || record.flags.has(Flags::CLOSE_RECEIVED | Flags::VIOLATED)
            });
            if over {
                break;
            }
        }

        if let Some(assembly) = assembly {
            let open = self.slab.get(conn).is_some_and(|record| record.phase == Phase::Open);
            if assembly.is_idle() || !open {
                self.pool.give_back_assembly(assembly);
            } else {
                self.stats.buffered_bytes += assembly.memory_bytes();
                let record = self.slab.at_mut(conn.index());
                record.spill.get_or_insert_with(|| self.pool.borrow()).assembly = Some(assembly);
                if self.stats.buffered_bytes > self.config.buffered_bytes_max {
                    self.finish(conn, CloseReason::OutOfMemory);
                }
            }
        }
        bytes.len()
    }

    fn hand_out_inflated<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        message: Message<'_>,
        decoder: &Decoder,
        params: DeflateParams,
    ) {
        // The scratch buffer belongs to the loop; the handler may use the loop meanwhile.
        let mut scratch = std::mem::take(&mut self.inflated);
        let direction = params.incoming(decoder.role);
        let inflated = if direction.context_takeover {
            let mut contexts = self.borrow_contexts(conn);
            let inflater = contexts.inflater.get_or_insert_with(|| Inflater::new(direction));
            let inflated = inflater.message(message, &mut scratch, &decoder.limits);
            self.return_contexts(conn, contexts);
            inflated
        } else {
            let mut shared = self.deflate.take().unwrap_or_else(|| self.new_deflate());
            let inflated = shared.inflater().message(message, &mut scratch, &decoder.limits);
            self.deflate = Some(shared);
            inflated
        };
        match inflated {
            Ok(message) => {
                self.stats.messages += 1;
                handler.on_message(self, conn, message);
            }
            Err(error) => self.websocket_violation(handler, conn, error),
        }
        scratch.shrink_to(self.config.receive_bytes);
        self.inflated = scratch;
    }

    fn websocket_violation<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        error: Error,
    ) {
        self.violation(handler, conn, &ProtocolError::WebSocket(error));
    }

    fn borrow_contexts(&mut self, conn: ConnId) -> Box<Contexts> {
        let spill = &mut self.slab.at_mut(conn.index()).spill;
        spill.as_mut().and_then(|spill| spill.contexts.take()).unwrap_or_default()
    }

    fn return_contexts(&mut self, conn: ConnId, contexts: Box<Contexts>) {
        let record = self.slab.at_mut(conn.index());
        if record.phase == Phase::Open {
            let spill = record.spill.get_or_insert_with(|| self.pool.borrow());
            spill.contexts = Some(contexts);
        }
    }
}

fn role(protocol: Protocol) -> Option<Role> {
    match protocol {
        Protocol::WebSocketServer => Some(Role::Server),
        Protocol::WebSocketClient => Some(Role::Client),
        _ => None,
    }
}
