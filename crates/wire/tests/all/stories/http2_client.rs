//! A client's connection and a scripted server: what is sent when, and how each stream ends.

use dunlin_wire::http2::client::{Capacity, Config, Connection, Event, OpenError, SendProgress};
use dunlin_wire::http2::frame::{self, Frame};
use dunlin_wire::http2::hpack::{Decoder, Encoder, Indexing};
use dunlin_wire::http2::{ErrorCode, FRAME_BYTES_MAX, PREFACE, Setting};

/// What the client sent, in words: `HEADERS 1`, `DATA 1 100 end`.
fn said(client: &mut Connection<Vec<u8>>) -> Vec<String> {
    let bytes = client.transmit().to_vec();
    client.handle_transmitted(bytes.len());
    let mut bytes = bytes.strip_prefix(PREFACE).unwrap_or(&bytes);
    let mut words = Vec::new();
    while let Some((frame, length)) = frame::decode(bytes, FRAME_BYTES_MAX).unwrap() {
        let end = |end| if end { " end" } else { "" };
        words.push(match frame {
            Frame::Headers { stream, end_stream, .. } => {
                format!("HEADERS {stream}{}", end(end_stream))
            }
            Frame::Data { stream, data, end_stream, .. } => {
                format!("DATA {stream} {}{}", data.len(), end(end_stream))
            }
            Frame::Reset { stream, code } => format!("RST {stream} {code}"),
            Frame::Settings(_) => "SETTINGS".to_owned(),
            Frame::SettingsAck => "SETTINGS ack".to_owned(),
            Frame::Ping { ack, .. } => format!("PING {ack}"),
            Frame::WindowUpdate { stream, increment } => format!("WINDOW {stream} {increment}"),
            Frame::GoAway { code, .. } => format!("GOAWAY {code}"),
            other => format!("{other:?}"),
        });
        bytes = &bytes[length..];
    }
    assert!(bytes.is_empty(), "whole frames only");
    words
}

/// The server's side of the dialogue.
#[derive(Default)]
struct Server {
    out: Vec<u8>,
    encoder: Encoder,
}

impl Server {
    fn settings(mut self, settings: &[(Setting, u32)]) -> Server {
        frame::encode_settings(&mut self.out, settings);
        self
    }

    fn window(mut self, stream: u32, bytes: u32) -> Server {
        frame::encode_window_update(&mut self.out, stream, bytes);
        self
    }

    fn answers(mut self, stream: u32, status: &str, body: &[u8]) -> Server {
        let mut block = Vec::new();
        self.encoder.encode(&mut block, b":status", status.as_bytes(), Indexing::Table);
        self.encoder.encode(&mut block, b"apns-id", b"some-id", Indexing::None);
        frame::encode_headers(&mut self.out, stream, &block, body.is_empty(), 16_384);
        if !body.is_empty() {
            frame::encode_data(&mut self.out, stream, body, true);
        }
        self
    }

    fn resets(mut self, stream: u32, code: ErrorCode) -> Server {
        frame::encode_reset(&mut self.out, stream, code);
        self
    }

    fn goes_away(mut self, last: u32) -> Server {
        frame::encode_go_away(&mut self.out, last, ErrorCode::NO_ERROR, b"bye");
        self
    }

    fn to(&mut self, client: &mut Connection<Vec<u8>>) {
        client.handle_bytes(&std::mem::take(&mut self.out)).unwrap();
    }
}

fn connection(server: &mut Server) -> Connection<Vec<u8>> {
    let mut client = Connection::new(Config::default());
    said(&mut client);
    server.to(&mut client);
    assert_eq!(client.poll_event(), Some(Event::Settings));
    assert_eq!(said(&mut client)[0], "SETTINGS ack");
    client
}

fn open(client: &mut Connection<Vec<u8>>, bytes: usize) -> Result<u32, OpenError> {
    client.open(vec![7; bytes], |field| {
        field(b":method", b"POST", Indexing::Table);
        field(b":path", b"/3/device/0", Indexing::None);
    })
}

fn status(event: Option<Event>) -> (u32, u16) {
    match event {
        Some(Event::Response { stream, response }) => (stream, response.status),
        other => panic!("an answer, not {other:?}"),
    }
}

#[test]
fn a_request_is_answered() {
    let mut server = Server::default().settings(&[]);
    let mut client = connection(&mut server);
    assert_eq!(open(&mut client, 100), Ok(1));
    assert_eq!(said(&mut client), ["HEADERS 1", "DATA 1 100 end"]);
    server.answers(1, "400", b"{\"reason\":\"BadDeviceToken\"}").to(&mut client);
    let Some(Event::Response { stream: 1, response }) = client.poll_event() else { panic!() };
    assert_eq!(response.status, 400);
    assert_eq!(response.fields.get("apns-id"), Some("some-id"));
    assert_eq!(response.body, b"{\"reason\":\"BadDeviceToken\"}");
    assert_eq!(client.streams_open(), 0);
}

#[test]
fn the_settings_of_a_server_come_before_anything_else() {
    let mut client = Connection::<Vec<u8>>::new(Config::default());
    let mut bytes = Vec::new();
    frame::encode_ping(&mut bytes, [0; 8], false);
    assert!(client.handle_bytes(&bytes).is_err());
    assert_eq!(said(&mut client).last().unwrap(), "GOAWAY PROTOCOL_ERROR");
    assert_eq!(open(&mut client, 1), Err(OpenError::Closing));
}

#[test]
fn one_stream_until_the_server_says_more() {
    let mut client = Connection::new(Config { streams_before_settings: 1, ..Config::default() });
    assert_eq!(open(&mut client, 1), Ok(1));
    assert_eq!(open(&mut client, 1), Err(OpenError::StreamLimit));
    let mut server = Server::default().settings(&[(Setting::MaxConcurrentStreams, 1)]);
    server.to(&mut client);
    assert_eq!(client.capacity().streams, 0);
    server = server.answers(1, "200", b"").settings(&[(Setting::MaxConcurrentStreams, 1_000)]);
    server.to(&mut client);
    assert_eq!(client.capacity().streams, 1_000);
    // And down again, under what is open: none can be opened, none is lost.
    open(&mut client, 1).unwrap();
    open(&mut client, 1).unwrap();
    server.settings(&[(Setting::MaxConcurrentStreams, 1)]).to(&mut client);
    assert_eq!((client.capacity().streams, client.streams_open()), (0, 2));
}

#[test]
fn the_window_of_the_connection_is_used_to_its_last_byte() {
    let mut server = Server::default().settings(&[]);
    let mut client = connection(&mut server);
    for _ in 0..16 {
        open(&mut client, 4_096).unwrap();
    }
    let words = said(&mut client);
    assert_eq!(words.last().unwrap(), "DATA 31 4095");
    assert_eq!(client.capacity(), Capacity { streams: u32::MAX - 16, window_bytes: 0 });
    assert_eq!(client.unsent_bytes(), 1);
    // The next one begins, and its body waits behind the one that came before.
    open(&mut client, 10).unwrap();
    assert_eq!(said(&mut client), ["HEADERS 33"]);
    server = server.window(0, 5);
    server.to(&mut client);
    assert_eq!(said(&mut client), ["DATA 31 1 end", "DATA 33 4"]);
    server.window(0, 1_000).to(&mut client);
    assert_eq!(said(&mut client), ["DATA 33 6 end"]);
    assert_eq!(client.capacity().window_bytes, 994);
}

#[test]
fn a_stream_without_window_keeps_nobody_waiting() {
    let mut server = Server::default().settings(&[(Setting::InitialWindowSize, 10)]);
    let mut client = connection(&mut server);
    open(&mut client, 15).unwrap();
    open(&mut client, 8).unwrap();
    assert_eq!(said(&mut client), ["HEADERS 1", "DATA 1 10", "HEADERS 3", "DATA 3 8 end"]);
    // Lowered under what was sent: two bytes more leave the stream eight below zero.
    server = server.settings(&[(Setting::InitialWindowSize, 0)]).window(1, 2);
    server.to(&mut client);
    assert_eq!(said(&mut client), ["SETTINGS ack"]);
    server = server.settings(&[(Setting::InitialWindowSize, 10)]);
    server.to(&mut client);
    assert_eq!(said(&mut client), ["SETTINGS ack", "DATA 1 2"]);
    server.window(1, 100).to(&mut client);
    assert_eq!(said(&mut client), ["DATA 1 3 end"]);
}

#[test]
fn streams_above_the_last_of_a_goaway_were_not_processed() {
    let mut server = Server::default().settings(&[]);
    let mut client = connection(&mut server);
    for _ in 0..3 {
        open(&mut client, 10).unwrap();
    }
    server = server.goes_away(3);
    server.to(&mut client);
    assert_eq!(client.poll_event(), Some(Event::Refused { stream: 5 }));
    assert!(matches!(client.poll_event(), Some(Event::GoAway { .. })));
    assert_eq!(open(&mut client, 10), Err(OpenError::Closing));
    // A second one lowers the last stream; what is accepted still ends.
    server = server.answers(1, "200", b"").goes_away(1);
    server.to(&mut client);
    assert_eq!(status(client.poll_event()), (1, 200));
    assert_eq!(client.poll_event(), Some(Event::Refused { stream: 3 }));
    assert_eq!(client.streams_open(), 0);
}

#[test]
fn a_refused_stream_is_reported_from_a_reset_one() {
    let mut server = Server::default().settings(&[]);
    let mut client = connection(&mut server);
    open(&mut client, 10).unwrap();
    open(&mut client, 10).unwrap();
    said(&mut client);
    open(&mut client, 10).unwrap();
    // The third has not left yet.
    server = server.resets(5, ErrorCode::INTERNAL_ERROR);
    server
        .resets(1, ErrorCode::REFUSED_STREAM)
        .resets(3, ErrorCode::INTERNAL_ERROR)
        .to(&mut client);
    let code = ErrorCode::INTERNAL_ERROR;
    assert_eq!(
        client.poll_event(),
        Some(Event::Reset { stream: 5, code, sent: SendProgress::Partly })
    );
    assert_eq!(client.poll_event(), Some(Event::Refused { stream: 1 }));
    assert_eq!(
        client.poll_event(),
        Some(Event::Reset { stream: 3, code, sent: SendProgress::Wholly })
    );
}

#[test]
fn an_answer_before_the_end_of_the_body_ends_the_body() {
    let mut server = Server::default().settings(&[(Setting::InitialWindowSize, 10)]);
    let mut client = connection(&mut server);
    open(&mut client, 100).unwrap();
    said(&mut client);
    server.answers(1, "413", b"").to(&mut client);
    assert_eq!(status(client.poll_event()), (1, 413));
    assert_eq!(said(&mut client), ["RST 1 CANCEL"]);
    assert_eq!(client.unsent_bytes(), 0);
}

#[test]
fn frames_of_a_reset_stream_are_ignored() {
    let mut server = Server::default().settings(&[]);
    let mut client = connection(&mut server);
    open(&mut client, 10).unwrap();
    said(&mut client);
    assert_eq!(client.cancel(1), Some(SendProgress::Wholly));
    assert_eq!(said(&mut client), ["RST 1 CANCEL"]);
    open(&mut client, 10).unwrap();
    // The block of the first is read all the same: the second refers to it.
    server.answers(1, "203", b"late").answers(3, "203", b"").to(&mut client);
    assert_eq!(status(client.poll_event()), (3, 203));
    assert_eq!(client.poll_event(), None);
}

#[test]
fn a_body_beyond_the_bound_is_cut() {
    let mut server = Server::default().settings(&[]);
    let mut client = Connection::new(Config { body_bytes_max: 10, ..Config::default() });
    open(&mut client, 1).unwrap();
    let mut block = Vec::new();
    server.encoder.encode(&mut block, b":status", b"500", Indexing::None);
    frame::encode_headers(&mut server.out, 1, &block, false, 16_384);
    frame::encode_data(&mut server.out, 1, &[b'x'; 10], false);
    server.to(&mut client);
    assert_eq!(client.poll_event(), Some(Event::Settings));
    let Some(Event::Response { response, .. }) = client.poll_event() else { panic!() };
    assert!(response.truncated && response.body.len() == 10);
    assert_eq!(said(&mut client).last().unwrap(), "RST 1 CANCEL");
}

/// A line of what a hostile server sends, again and again.
fn flood(send: impl Fn(&mut Vec<u8>)) -> String {
    let mut server = Server::default().settings(&[]);
    let mut client = connection(&mut server);
    open(&mut client, 1_000_000).unwrap();
    let mut held = 0;
    for _ in 0..100_000 {
        let mut bytes = Vec::new();
        send(&mut bytes);
        let result = client.handle_bytes(&bytes);
        while client.poll_event().is_some() {}
        held = held.max(client.transmit().len());
        if let Err(error) = result {
            assert!(held < 200_000, "{held} bytes are held");
            return error.code.to_string();
        }
    }
    "no end".to_owned()
}

#[test]
fn floods_end_the_connection() {
    let calm = "ENHANCE_YOUR_CALM";
    assert_eq!(flood(|out| frame::encode_settings(out, &[])), calm);
    assert_eq!(flood(frame::encode_settings_ack), calm);
    assert_eq!(flood(|out| frame::encode_ping(out, [0; 8], false)), calm);
    assert_eq!(flood(|out| frame::encode_ping(out, [0; 8], true)), calm);
    assert_eq!(flood(|out| frame::encode_window_update(out, 1, 1)), calm);
    assert_eq!(flood(|out| frame::encode_go_away(out, 1, ErrorCode::NO_ERROR, b"")), calm);
    let second_reset = |out: &mut Vec<u8>| frame::encode_reset(out, 1, ErrorCode::CANCEL);
    assert_eq!(flood(second_reset), calm);
    // A block that never ends: CONTINUATION after CONTINUATION, empty ones and full ones.
    for bytes in [0, 16_384] {
        let mut server = Server::default().settings(&[]);
        let mut client = connection(&mut server);
        open(&mut client, 1).unwrap();
        let mut bytes_sent = vec![0, 0, 0, 1, 0, 0, 0, 0, 1];
        for _ in 0..20 {
            bytes_sent.extend([0, (bytes >> 8) as u8, bytes as u8, 9, 0, 0, 0, 0, 1]);
            bytes_sent.extend(vec![0x40; bytes]);
        }
        assert_eq!(client.handle_bytes(&bytes_sent).unwrap_err().code.to_string(), calm);
    }
}

#[test]
fn garbage_is_a_protocol_error_and_not_a_panic() {
    for (bytes, code) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "FRAME_SIZE_ERROR"),
        (&[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0], "PROTOCOL_ERROR"),
        (&[0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff], "FLOW_CONTROL_ERROR"),
        (&[0, 0, 1, 0, 0, 0, 0, 0, 99, 0], "PROTOCOL_ERROR"),
        (&[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x80], "COMPRESSION_ERROR"),
        (&[0, 0, 0, 9, 4, 0, 0, 0, 1], "PROTOCOL_ERROR"),
        (&[0, 0, 5, 5, 4, 0, 0, 0, 1, 0, 0, 0, 2, 0x88], "PROTOCOL_ERROR"),
    ] {
        let mut server = Server::default().settings(&[]);
        let mut client = connection(&mut server);
        open(&mut client, 1).unwrap();
        let error = client.handle_bytes(bytes).unwrap_err();
        assert_eq!(error.code.to_string(), code, "{bytes:?}: {error}");
    }
}

#[test]
fn headers_are_split_for_a_peer_with_small_frames() {
    let mut server = Server::default().settings(&[]);
    let mut client = connection(&mut server);
    let value = vec![b'~'; 40_000];
    client.open(Vec::new(), |field| field(b"x", &value, Indexing::None)).unwrap();
    let bytes = client.transmit().to_vec();
    let (mut block, mut at, mut frames) = (Vec::new(), 0, 0);
    while let Some((frame, length)) = frame::decode(&bytes[at..], 16_384).unwrap() {
        match frame {
            Frame::Headers { fragment, end_stream, .. } => {
                assert!(end_stream && frames == 0);
                block.extend_from_slice(fragment);
            }
            Frame::Continuation { fragment, .. } => block.extend_from_slice(fragment),
            other => panic!("{other:?}"),
        }
        frames += 1;
        at += length;
    }
    assert_eq!(frames, 3);
    let mut seen = Vec::new();
    Decoder::new(4096).decode(&block, 100_000, |_, value| seen = value.to_vec()).unwrap();
    assert_eq!(seen, value);
}
