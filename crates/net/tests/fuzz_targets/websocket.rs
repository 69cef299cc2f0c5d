//! The machine of an open WebSocket: input in any pieces, and what its other end makes of the answers.

use dunlin_net::websocket::{
    Agreed, CloseSent, Connection, DeflateParams, Event, Limits, MessageAssembly, Opcode,
    OutgoingMessage, SharedCompression,
};

use super::{Choices, pieces};

const DEFLATE: DeflateParams = DeflateParams {
    server_no_context_takeover: false,
    client_no_context_takeover: false,
    server_max_window_bits: 15,
    client_max_window_bits: 15,
};

/// One end: the machine and what its caller keeps for it.
struct End {
    connection: Connection,
    assembly: Option<Box<MessageAssembly>>,
    inflated: Vec<u8>,
    compression: SharedCompression,
    agreed: Agreed,
}

/// The first byte chooses compression and answers, the rest is what a client sends. However it is cut, the same events
/// follow; and the client reads every answer.
pub fn connection(data: &[u8]) {
    let Some((&seed, input)) = data.split_first() else { return };
    let whole = converse(seed, &pieces(input, 0));
    assert_eq!(whole, converse(seed, &pieces(input, 1)), "byte by byte");
    assert_eq!(whole, converse(seed, &pieces(input, 2 + u64::from(seed))), "in pieces");
}

fn converse(seed: u8, pieces: &[&[u8]]) -> Vec<String> {
    let limits = Limits { frame_bytes_max: 4096, message_bytes_max: 8192 };
    let deflate = (seed & 1 == 1).then_some(DEFLATE);
    let agreed = Agreed { limits, deflate };
    let mut server = End::new(Connection::server(), agreed);
    let mut choices = Choices::new(seed);
    let (mut events, mut sent, mut out) = (Vec::new(), Vec::new(), Vec::new());
    for piece in pieces {
        let mut piece = piece.to_vec();
        let before = events.len();
        let goes_on = server.read(&mut piece, &mut events);
        for _ in before..events.len() {
            server.answer(&mut out, &mut sent, &mut choices);
        }
        if !goes_on {
            break;
        }
    }
    // The other end, which masks what it sends and reads what is not masked.
    let mut client = End::new(Connection::client(), agreed);
    let mut read = Vec::new();
    assert!(client.read(&mut out, &mut read) || client.connection.has_received_close());
    assert_eq!(read, sent, "the client reads what the server sent");
    events
}

impl End {
    fn new(connection: Connection, agreed: Agreed) -> End {
        let compression = SharedCompression::new(1);
        End { connection, assembly: None, inflated: Vec::new(), compression, agreed }
    }

    /// False once nothing more is to be read: after an error, or a close frame.
    fn read(&mut self, bytes: &mut [u8], events: &mut Vec<String>) -> bool {
        let mut at = 0;
        while at < bytes.len() {
            let read = self.connection.handle_input(
                &mut bytes[at..],
                &mut self.assembly,
                &mut self.inflated,
                &mut self.compression,
                &self.agreed,
            );
            let Ok((consumed, event)) = read else { return false };
            at += consumed;
            match event {
                Event::NeedMore => return true,
                Event::Continue => {
                    self.assembly.get_or_insert_default();
                }
                Event::Message(message) => {
                    assert!(message.payload.len() <= 8192, "messages are bounded");
                    events.push(format!("{:?} {:?}", message.opcode, message.payload));
                }
                Event::Ping(payload) => events.push(format!("ping {payload:?}")),
                Event::Pong(payload) => events.push(format!("pong {payload:?}")),
                Event::Close { code, .. } => {
                    events.push(format!("close {code}"));
                    return false;
                }
            }
        }
        true
    }

    fn answer(&mut self, out: &mut Vec<u8>, sent: &mut Vec<String>, choices: &mut Choices) {
        let End { connection, compression, agreed, .. } = self;
        let before = out.len();
        let payload = vec![b'a' + (choices.next(20) as u8); choices.next(200) as usize];
        let encoded = match choices.next(8) {
            0 => connection
                .encode_control(out, Opcode::Ping, b"?", None)
                .map(|()| "ping [63]".into()),
            1 => connection.encode_close(out, 1000, "", None).map(|()| "close 1000".into()),
            _ => {
                let message =
                    OutgoingMessage { opcode: Opcode::Text, payload: &payload, mask: None };
                let encoded = connection.encode_message(out, &message, compression, agreed);
                encoded.map(|()| format!("Text {payload:?}"))
            }
        };
        match encoded {
            Ok(event) => sent.push(event),
            Err(CloseSent) => {
                assert!(connection.has_sent_close());
                assert_eq!(out.len(), before, "nothing follows a close frame");
            }
        }
    }
}
