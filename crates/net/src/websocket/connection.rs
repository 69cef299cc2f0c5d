//! The state of an open WebSocket, client or server side, without a socket (RFC 6455).

use dunlin_wire::websocket::deflate::{DeflateParams, Deflater, Inflater, SharedDeflate};
use dunlin_wire::websocket::{
    Decoder, Event as Frame, MessageAssembly, Role, encode_close_masked, encode_frame_masked,
};

use super::{
    CONTROL_PAYLOAD_BYTES_MAX, Error, Limits, Message, Opcode, close_code, encode_close,
    encode_frame,
};

/// Payloads shorter than this many bytes are not compressed.
const COMPRESS_BYTES_MIN: usize = 32;

/// A close frame was sent; no frame may follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a close frame has been sent; no frame may follow it")]
pub struct CloseSent;

/// The negotiated parameters of a connection and the local limits. Shared by many connections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Agreed {
    /// Limits of received frames and messages.
    pub limits: Limits,
    /// The negotiated compression parameters.
    pub deflate: Option<DeflateParams>,
}

/// The state of an open WebSocket in one byte. An idle connection stores nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(u8);

impl State {
    const CLIENT: u8 = 1;
    const CLOSE_SENT: u8 = 2;
    const CLOSE_RECEIVED: u8 = 4;

    pub(crate) fn has_received_close(self) -> bool {
        self.0 & State::CLOSE_RECEIVED != 0
    }
}

/// Compression contexts of a connection that negotiated context takeover.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    deflater: Option<Deflater>,
    inflater: Option<Inflater>,
}

/// The compressors of all connections without context takeover. They are created on first use.
#[derive(Debug)]
pub struct SharedCompression {
    /// Level from 1 (fastest) to 9 (smallest).
    level: u32,
    shared: Option<Box<SharedDeflate>>,
}

impl SharedCompression {
    /// Creates compressors with a level from 1 (fastest) to 9 (smallest).
    pub fn new(level: u32) -> SharedCompression {
        SharedCompression { level, shared: None }
    }

    fn get(&mut self) -> &mut SharedDeflate {
        let level = self.level;
        self.shared.get_or_insert_with(|| Box::new(SharedDeflate::new(level)))
    }
}

/// A message to send in one frame.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingMessage<'a> {
    /// [`Opcode::Text`] or [`Opcode::Binary`].
    pub opcode: Opcode,
    /// The uncompressed payload. UTF-8 if the message is text.
    pub payload: &'a [u8],
    /// The masking key of a client: four unpredictable bytes (RFC 6455 §10.3). `None` for a server.
    pub mask: Option<[u8; 4]>,
}

/// The result of one call of [`handle_input`](Connection::handle_input).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// All input was consumed; a frame or message is incomplete.
    NeedMore,
    /// No event yet. Pass the remaining bytes.
    Continue,
    /// A complete message, unmasked and decompressed. Text is valid UTF-8.
    Message(Message<'a>),
    /// A ping. Reply with a pong that has the same payload.
    Ping(&'a [u8]),
    /// A pong.
    Pong(&'a [u8]),
    /// A close frame. Reply with a close frame unless one was sent before. Ignore all further input.
    Close {
        /// The close code; 1005 if the frame had none.
        code: u16,
        /// The peer's reason.
        reason: &'a str,
    },
}

/// The state of one open WebSocket. It does no I/O and reads no clock.
///
/// ```
/// use dunlin_net::websocket::{
///     Agreed, Connection, Event, Opcode, OutgoingMessage, SharedCompression,
/// };
///
/// let (mut server, mut client) = (Connection::server(), Connection::client());
/// let (agreed, mut compression) = (Agreed::default(), SharedCompression::new(1));
/// let mut sent = Vec::new();
/// let hello = OutgoingMessage { opcode: Opcode::Text, payload: b"hello", mask: Some([1, 2, 3, 4]) };
/// client.encode_message(&mut sent, &hello, &mut compression, &agreed)?;
/// let (mut assembly, mut inflated) = (None, Vec::new());
/// let (consumed, event) =
///     server.handle_input(&mut sent, &mut assembly, &mut inflated, &mut compression, &agreed)?;
/// assert!(matches!(event, Event::Message(message) if message.text() == Some("hello")));
/// assert_eq!(consumed, 11);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Connection {
    state: State,
    contexts: Option<Box<Contexts>>,
}

impl Connection {
    /// Creates the server side of a connection.
    pub fn server() -> Connection {
        Connection { state: State(0), contexts: None }
    }

    /// Creates the client side of a connection. Its frames are masked.
    pub fn client() -> Connection {
        Connection { state: State(State::CLIENT), contexts: None }
    }

    pub(crate) fn resume(state: State, contexts: Option<Box<Contexts>>) -> Connection {
        Connection { state, contexts }
    }

    pub(crate) fn suspend(self) -> (State, Option<Box<Contexts>>) {
        (self.state, self.contexts)
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Returns the side of the connection.
    pub fn role(&self) -> Role {
        if self.state.0 & State::CLIENT == 0 { Role::Server } else { Role::Client }
    }

    /// Returns whether a close frame was sent.
    pub fn has_sent_close(&self) -> bool {
        self.state.0 & State::CLOSE_SENT != 0
    }

    /// Returns whether a close frame was received.
    pub fn has_received_close(&self) -> bool {
        self.state.has_received_close()
    }

    /// Reads at most one message or control frame from the start of `bytes` and unmasks it in place. Returns the
    /// number of bytes consumed. An incomplete frame or message is kept in `assembly`; a compressed message is
    /// decompressed into `inflated`.
    ///
    /// # Errors
    ///
    /// Returns an error if the peer violates the protocol. Send a close frame with the error's code and close the
    /// connection.
    pub fn handle_input<'a>(
        &mut self,
        bytes: &'a mut [u8],
        assembly: &'a mut Option<Box<MessageAssembly>>,
        inflated: &'a mut Vec<u8>,
        compression: &mut SharedCompression,
        agreed: &Agreed,
    ) -> Result<(usize, Event<'a>), Error> {
        let role = self.role();
        let decoder = Decoder { role, limits: agreed.limits, deflate: agreed.deflate.is_some() };
        let decoded = decoder.decode(assembly.as_deref_mut(), bytes)?;
        let event = match decoded.event {
            Frame::NeedAssembly => Event::Continue,
            Frame::NeedMore { .. } => Event::NeedMore,
            Frame::Message(message) if message.compressed => {
                let params = agreed.deflate.ok_or(Error::ReservedBits)?;
                let direction = params.incoming(role);
                Event::Message(if direction.context_takeover {
                    let contexts = self.contexts.get_or_insert_default();
                    let inflater =
                        contexts.inflater.get_or_insert_with(|| Inflater::new(direction));
                    inflater.message(message, inflated, &agreed.limits)?
                } else {
                    compression.get().inflater().message(message, inflated, &agreed.limits)?
                })
            }
            Frame::Message(message) => Event::Message(message),
            Frame::Ping(payload) => Event::Ping(payload),
            Frame::Pong(payload) => Event::Pong(payload),
            Frame::Close(frame) => {
                self.state.0 |= State::CLOSE_RECEIVED;
                let (code, reason) =
                    frame.map_or((close_code::NONE, ""), |frame| (frame.code, frame.reason));
                Event::Close { code, reason }
            }
        };
        Ok((decoded.consumed, event))
    }

    /// Appends a message as one frame. It is compressed if compression was negotiated and the payload is long enough.
    ///
    /// # Errors
    ///
    /// Returns [`CloseSent`] if a close frame has been sent; nothing is appended.
    pub fn encode_message(
        &mut self,
        out: &mut Vec<u8>,
        message: &OutgoingMessage<'_>,
        compression: &mut SharedCompression,
        agreed: &Agreed,
    ) -> Result<(), CloseSent> {
        self.expect_open()?;
        let &OutgoingMessage { opcode, payload, mask } = message;
        let direction = self.compresses(payload, agreed).map(|params| params.outgoing(self.role()));
        match direction {
            Some(direction) if direction.context_takeover => {
                let contexts = self.contexts.get_or_insert_default();
                let deflater = contexts
                    .deflater
                    .get_or_insert_with(|| Deflater::new(compression.level, direction));
                deflater.encode_frame(out, opcode, payload, mask);
            }
            Some(direction) => match compression.get().deflater(direction) {
                Some(deflater) => deflater.encode_frame(out, opcode, payload, mask),
                None => frame(out, opcode, payload, mask),
            },
            None => frame(out, opcode, payload, mask),
        }
        Ok(())
    }

    /// Appends a ping or pong. The payload is truncated to 125 bytes.
    ///
    /// # Errors
    ///
    /// Returns [`CloseSent`] if a close frame has been sent; nothing is appended.
    pub fn encode_control(
        &self,
        out: &mut Vec<u8>,
        opcode: Opcode,
        payload: &[u8],
        mask: Option<[u8; 4]>,
    ) -> Result<(), CloseSent> {
        self.expect_open()?;
        frame(out, opcode, &payload[..payload.len().min(CONTROL_PAYLOAD_BYTES_MAX)], mask);
        Ok(())
    }

    /// Appends a close frame, which is the last frame of this side. A code that must not be sent (RFC 6455 §7.4.1) is
    /// omitted; the reason is truncated to 123 bytes.
    ///
    /// # Errors
    ///
    /// Returns [`CloseSent`] if a close frame has been sent; nothing is appended.
    pub fn encode_close(
        &mut self,
        out: &mut Vec<u8>,
        code: u16,
        reason: &str,
        mask: Option<[u8; 4]>,
    ) -> Result<(), CloseSent> {
        self.expect_open()?;
        match mask {
            None => encode_close(out, code, reason),
            Some(mask) => encode_close_masked(out, code, reason, mask),
        }
        self.state.0 |= State::CLOSE_SENT;
        Ok(())
    }

    pub(crate) fn expect_open(&self) -> Result<(), CloseSent> {
        if self.has_sent_close() { Err(CloseSent) } else { Ok(()) }
    }

    /// Returns the compression parameters, if this payload is to be compressed.
    pub(crate) fn compresses(&self, payload: &[u8], agreed: &Agreed) -> Option<DeflateParams> {
        let params = agreed.deflate.filter(|_| payload.len() >= COMPRESS_BYTES_MIN)?;
        params.outgoing(self.role()).can_compress().then_some(params)
    }
}

fn frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], mask: Option<[u8; 4]>) {
    match mask {
        None => encode_frame(out, opcode, payload),
        Some(mask) => encode_frame_masked(out, opcode, payload, mask),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the events that `to` emits for input in pieces of this size.
    fn read(to: &mut Connection, bytes: &[u8], piece: usize, agreed: &Agreed) -> Vec<String> {
        let (mut assembly, mut inflated) = (None, Vec::new());
        let mut compression = SharedCompression::new(1);
        let mut events = Vec::new();
        for piece in bytes.chunks(piece) {
            let mut piece = piece.to_vec();
            let mut at = 0;
            while at < piece.len() {
                let read = to.handle_input(
                    &mut piece[at..],
                    &mut assembly,
                    &mut inflated,
                    &mut compression,
                    agreed,
                );
                match read {
                    Ok((consumed, Event::Continue)) => {
                        at += consumed;
                        assembly.get_or_insert_default();
                    }
                    Ok((consumed, event)) => {
                        at += consumed;
                        match event {
                            Event::NeedMore => break,
                            Event::Message(message) => {
                                let text = String::from_utf8_lossy(message.payload);
                                events.push(format!("message {text}"));
                            }
                            event => events.push(format!("{event:?}")),
                        }
                    }
                    Err(error) => {
                        events.push(format!("{error:?}"));
                        return events;
                    }
                }
            }
        }
        events
    }

    #[test]
    fn a_state_is_a_byte() {
        assert_eq!(size_of::<State>(), 1);
    }

    #[test]
    fn messages_and_control_frames_cut_anywhere() {
        let agreed = Agreed::default();
        let mut compression = SharedCompression::new(1);
        for piece in 1..40 {
            let (mut server, mut client) = (Connection::server(), Connection::client());
            let (mut sent, mask) = (Vec::new(), Some([7, 0, 9, 1]));
            let one = OutgoingMessage { opcode: Opcode::Text, payload: b"one", mask };
            client.encode_message(&mut sent, &one, &mut compression, &agreed).expect("open");
            client.encode_control(&mut sent, Opcode::Ping, b"?", mask).expect("open");
            client.encode_close(&mut sent, 1000, "done", mask).expect("open");
            assert_eq!(client.encode_close(&mut sent, 1000, "", mask), Err(CloseSent));
            assert_eq!(
                read(&mut server, &sent, piece, &agreed),
                ["message one", "Ping([63])", "Close { code: 1000, reason: \"done\" }"]
            );
            assert!(server.has_received_close() && !server.has_sent_close());
        }
    }

    #[test]
    fn an_unmasked_frame_of_a_client_is_an_error() {
        let (mut server, mut sent) = (Connection::server(), Vec::new());
        encode_frame(&mut sent, Opcode::Text, b"one");
        assert_eq!(read(&mut server, &sent, 100, &Agreed::default()), ["MaskMissing"]);
    }
}
