//! Open WebSockets on the loop, client and server side: messages and control frames.

use super::WebSocketHandler;
use super::protocol::Protocol;
use crate::core::connection::{ConnId, End, Flags, Phase};
use crate::core::context::Context;
use crate::core::error::{CloseReason, WriteError};
use crate::websocket::{
    Agreed, CONTROL_PAYLOAD_BYTES_MAX, CloseSent, Connection, Event, Opcode, OutgoingMessage,
    ProtocolError, Role, SharedCompression, close_code, encode_frame,
};

impl From<CloseSent> for WriteError {
    fn from(CloseSent: CloseSent) -> WriteError {
        WriteError::OutOfTurn
    }
}

impl<D: Default> Context<D> {
    /// Sends a `Text` or `Binary` message as one frame. It is compressed if compression was negotiated and the
    /// payload is long enough. The caller guarantees that text is UTF-8.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfTurn`] if the connection is not a WebSocket, a close frame has been sent, or `opcode` is
    /// neither `Text` nor `Binary`; [`WriteError::Full`]; [`WriteError::Stale`].
    pub fn ws_send(
        &mut self,
        conn: ConnId,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<(), WriteError> {
        let (mut websocket, profile) = self.websocket(conn)?;
        if !matches!(opcode, Opcode::Text | Opcode::Binary) {
            return Err(WriteError::OutOfTurn);
        }
        let agreed = self.profile_at(profile).agreed;
        let message = OutgoingMessage { opcode, payload, mask: self.mask(&websocket) };
        let bytes = payload.len() + 14;
        let Some(params) = websocket.compresses(payload, &agreed) else {
            let plain = Agreed { deflate: None, ..agreed };
            let mut none = SharedCompression::new(0);
            return self.write_with(conn, bytes, |out| {
                _ = websocket.encode_message(out, &message, &mut none, &plain);
            });
        };
        if params.outgoing(websocket.role()).context_takeover {
            websocket = self.borrow_contexts(conn, &websocket);
        }
        let mut compression = self.take_compression();
        let sent = self.write_with(conn, bytes, |out| {
            _ = websocket.encode_message(out, &message, &mut compression, &agreed);
        });
        self.upper.compression = compression;
        self.return_contexts(conn, websocket);
        sent
    }

    /// Sends a text message.
    ///
    /// # Errors
    ///
    /// Those of [`Context::ws_send`].
    pub fn ws_send_text(&mut self, conn: ConnId, text: &str) -> Result<(), WriteError> {
        self.ws_send(conn, Opcode::Text, text.as_bytes())
    }

    /// Sends a message to each open WebSocket for whose data `wanted` returns `true`. Returns the number of
    /// connections that accepted it. The frame is encoded once for all server connections without compression.
    /// Connections that are full or closing are skipped.
    pub fn ws_broadcast(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        mut wanted: impl FnMut(&D) -> bool,
    ) -> usize {
        let (mut taken, mut frame) = (0, Vec::with_capacity(payload.len() + 14));
        encode_frame(&mut frame, opcode, payload);
        self.for_each_connection(|cx, conn| {
            let Ok((websocket, profile)) = cx.websocket(conn) else { return };
            if !cx.data(conn).is_some_and(|data| wanted(data)) {
                return;
            }
            let agreed = cx.profile_at(profile).agreed;
            let plain = websocket.role() == Role::Server
                && websocket.compresses(payload, &agreed).is_none();
            let sent = match plain {
                true => cx.write(conn, &frame),
                false => cx.ws_send(conn, opcode, payload),
            };
            taken += usize::from(sent.is_ok());
        });
        taken
    }

    /// Sends a ping. The payload is truncated to 125 bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Context::ws_send`].
    pub fn ws_ping(&mut self, conn: ConnId, payload: &[u8]) -> Result<(), WriteError> {
        self.send_control(conn, Opcode::Ping, payload)
    }

    /// Sends a pong. The payload is truncated to 125 bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Context::ws_send`].
    pub fn ws_pong(&mut self, conn: ConnId, payload: &[u8]) -> Result<(), WriteError> {
        self.send_control(conn, Opcode::Pong, payload)
    }

    /// Begins the closing handshake: sends a close frame and waits at most
    /// [`linger_ms`](crate::LoopConfig::linger_ms) for the peer's close frame. A code that must not be sent (RFC 6455
    /// §7.4.1) is omitted; the reason is truncated to 123 bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Context::ws_send`].
    pub fn ws_close(&mut self, conn: ConnId, code: u16, reason: &str) -> Result<(), WriteError> {
        self.send_close_frame(conn, code, reason)?;
        self.slab.at_mut(conn.index()).flags.clear(Flags::IDLE_DEADLINE);
        self.schedule_own(conn, self.config.linger());
        Ok(())
    }

    /// Replies with a close frame, unless one was sent before, and closes the connection: the default of
    /// [`WebSocketHandler::on_close_frame`].
    pub fn answer_close_frame(&mut self, conn: ConnId, code: u16) {
        if self.websocket(conn).is_ok() {
            let code = if code == close_code::NONE { 0 } else { code };
            // If the buffer is full, the peer does not read.
            let _ = self.send_close_frame(conn, code, "");
            if let Some(record) = self.slab.get_mut(conn) {
                record.end = record.end.max(End::Peer);
            }
        }
        self.begin_drain(conn);
    }

    /// Handles a protocol violation: the handler decides on the response.
    pub(super) fn websocket_error<H: WebSocketHandler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        error: &ProtocolError,
    ) {
        // Later bytes cannot be trusted to begin a frame: stop reading.
        self.distrust(conn);
        handler.on_websocket_error(self, conn, error);
    }

    /// Sends a close frame with the code of the error, if the WebSocket is open, and closes the connection: the default
    /// of [`WebSocketHandler::on_websocket_error`].
    pub fn answer_websocket_error(&mut self, conn: ConnId, error: &ProtocolError) {
        if let ProtocolError::Frame(error) = error {
            // If the buffer is full, the peer does not read.
            let _ = self.send_close_frame(conn, error.close_code(), error.message());
        }
        self.begin_drain(conn);
    }

    fn send_close_frame(
        &mut self,
        conn: ConnId,
        code: u16,
        reason: &str,
    ) -> Result<(), WriteError> {
        let (mut websocket, _) = self.websocket(conn)?;
        let mask = self.mask(&websocket);
        self.write_with(conn, CONTROL_PAYLOAD_BYTES_MAX, |out| {
            _ = websocket.encode_close(out, code, reason, mask);
        })?;
        self.slab.at_mut(conn.index()).protocol = Protocol::WebSocket(websocket.suspend().0);
        Ok(())
    }

    fn send_control(
        &mut self,
        conn: ConnId,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<(), WriteError> {
        let (websocket, _) = self.websocket(conn)?;
        let mask = self.mask(&websocket);
        self.write_with(conn, payload.len() + 14, |out| {
            _ = websocket.encode_control(out, opcode, payload, mask);
        })
    }

    /// Returns the state of an open WebSocket that may send, without its compression contexts, and the connection's
    /// profile.
    fn websocket(&self, conn: ConnId) -> Result<(Connection, u16), WriteError> {
        let record = self.slab.get(conn).ok_or(WriteError::Stale)?;
        if record.phase != Phase::Open {
            return Err(WriteError::Stale);
        }
        let Protocol::WebSocket(state) = record.protocol else { return Err(WriteError::OutOfTurn) };
        let websocket = Connection::resume(state, None);
        websocket.expect_open()?;
        Ok((websocket, record.profile))
    }

    fn mask(&mut self, websocket: &Connection) -> Option<[u8; 4]> {
        (websocket.role() == Role::Client).then(|| self.random.take())
    }

    /// Emits the messages and control frames in `bytes`. An incomplete message is kept in an assembly. If the handler
    /// pauses reading, the bytes after the current message are not consumed.
    pub(super) fn websocket_input<H: WebSocketHandler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        bytes: &mut [u8],
    ) -> usize {
        let record = self.slab.at_mut(conn.index());
        let mut assembly = record.spill.as_mut().and_then(|spill| spill.upper.assembly.take());
        self.stats.buffered_bytes -= assembly.as_ref().map_or(0, |kept| kept.memory_bytes());
        let agreed = self.profiles[record.profile as usize].agreed;
        // Take the scratch buffer: the handler may use the loop during the call.
        let mut inflated = std::mem::take(&mut self.upper.inflated);
        let (mut at, mut paused) = (0, false);
        while at < bytes.len() && !paused {
            let Protocol::WebSocket(state) = self.slab.at(conn.index()).protocol else { break };
            let mut websocket = Connection::resume(state, None);
            let with_contexts = agreed
                .deflate
                .is_some_and(|params| params.incoming(websocket.role()).context_takeover);
            if with_contexts {
                websocket = self.borrow_contexts(conn, &websocket);
            }
            let read = websocket.handle_input(
                &mut bytes[at..],
                &mut assembly,
                &mut inflated,
                &mut self.upper.compression,
                &agreed,
            );
            self.slab.at_mut(conn.index()).protocol = Protocol::WebSocket(websocket.state());
            if with_contexts {
                self.return_contexts(conn, websocket);
            }
            let (consumed, event) = match read {
                Ok(read) => read,
                Err(error) => {
                    self.websocket_error(handler, conn, &ProtocolError::Frame(error));
                    break;
                }
            };
            at += consumed;
            match event {
                Event::NeedMore => break,
                Event::Continue => {
                    assembly.get_or_insert_with(|| self.upper.borrow_assembly());
                    continue;
                }
                Event::Message(message) => {
                    self.stats.messages += 1;
                    handler.on_message(self, conn, message);
                }
                Event::Ping(payload) => handler.on_ping(self, conn, payload),
                Event::Pong(payload) => handler.on_pong(self, conn, payload),
                Event::Close { code, reason } => handler.on_close_frame(self, conn, code, reason),
            }
            let open = self.slab.get(conn).filter(|record| {
                record.phase == Phase::Open
                    && record.end != End::ProtocolError
                    && !matches!(record.protocol, Protocol::WebSocket(state) if state.has_received_close())
            });
            let Some(record) = open else { break };
            paused = record.flags.has(Flags::READ_PAUSED);
        }
        inflated.shrink_to(self.config.receive_bytes);
        self.upper.inflated = inflated;

        if let Some(assembly) = assembly {
            let open = self.slab.get(conn).is_some_and(|record| record.phase == Phase::Open);
            if assembly.is_idle() || !open {
                self.upper.give_back_assembly(assembly);
            } else {
                self.stats.buffered_bytes += assembly.memory_bytes();
                let record = self.slab.at_mut(conn.index());
                record.spill.get_or_insert_with(|| self.pool.borrow()).upper.assembly =
                    Some(assembly);
                if self.stats.buffered_bytes > self.config.buffered_bytes_max {
                    self.finish(conn, CloseReason::OutOfMemory);
                }
            }
        }
        if paused { at } else { bytes.len() }
    }

    /// Takes the loop's compressors for the duration of a write.
    fn take_compression(&mut self) -> SharedCompression {
        let empty = SharedCompression::new(self.config.deflate_level);
        std::mem::replace(&mut self.upper.compression, empty)
    }

    /// Returns the state of a WebSocket together with the compression contexts of its connection.
    fn borrow_contexts(&mut self, conn: ConnId, websocket: &Connection) -> Connection {
        let spill = self.slab.at_mut(conn.index()).spill.as_mut();
        let contexts = spill.and_then(|spill| spill.upper.contexts.take());
        Connection::resume(websocket.state(), contexts)
    }

    fn return_contexts(&mut self, conn: ConnId, websocket: Connection) {
        let record = self.slab.at_mut(conn.index());
        if let Some(contexts) = websocket.suspend().1
            && record.phase == Phase::Open
        {
            record.spill.get_or_insert_with(|| self.pool.borrow()).upper.contexts = Some(contexts);
        }
    }
}
