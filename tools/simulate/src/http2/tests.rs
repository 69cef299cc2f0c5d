//! Tests of the server connection, frame by frame.

use dunlin_wire::http2::frame::{self, Frame};
use dunlin_wire::http2::{ErrorCode, PREFACE, Setting, hpack};

use super::{Connection, Limits, WindowReturn};

const LIMITS: Limits = Limits {
    streams_max: 10,
    connection_window: 65_535,
    stream_window: 65_535,
    window_return: WindowReturn::Eager,
    header_list_bytes_max: 8_000,
    body_bytes_max: 1_000,
};

/// A client's encoder and the connection it sends to.
struct Pair {
    connection: Connection,
    encoder: hpack::Encoder,
    bytes: Vec<u8>,
}

impl Pair {
    fn new(limits: Limits) -> Pair {
        let mut bytes = PREFACE.to_vec();
        frame::encode_settings(&mut bytes, &[]);
        frame::encode_settings_ack(&mut bytes);
        let mut pair =
            Pair { connection: Connection::new(limits), encoder: hpack::Encoder::new(), bytes };
        pair.says().unwrap();
        pair.hears();
        pair
    }

    fn headers(&mut self, stream: u32, end: bool) {
        let mut block = Vec::new();
        for (name, value) in [(":method", "POST"), (":scheme", "https"), (":path", "/")] {
            self.encoder.encode(
                &mut block,
                name.as_bytes(),
                value.as_bytes(),
                hpack::Indexing::Table,
            );
        }
        frame::encode_headers(&mut self.bytes, stream, &block, end, 16_384);
    }

    fn push(&mut self, stream: u32, body: &[u8]) {
        self.headers(stream, false);
        frame::encode_data(&mut self.bytes, stream, body, true);
    }

    /// Delivers one byte at a time, because input can be split anywhere.
    fn says(&mut self) -> Result<(), ErrorCode> {
        let bytes = std::mem::take(&mut self.bytes);
        for byte in bytes.chunks(1) {
            self.connection.handle_bytes(byte).map_err(|error| error.code)?;
        }
        Ok(())
    }

    fn hears(&mut self) -> Vec<String> {
        let bytes = std::mem::take(self.connection.output());
        let mut at = 0;
        let mut heard = Vec::new();
        while let Some((frame, length)) = frame::decode(&bytes[at..], 1 << 20).unwrap() {
            at += length;
            heard.push(match frame {
                Frame::Headers { stream, end_stream, .. } => {
                    format!("headers {stream} {end_stream}")
                }
                Frame::Data { stream, data, end_stream, .. } => {
                    format!("data {stream} {} {end_stream}", data.len())
                }
                Frame::Reset { stream, code } => format!("reset {stream} {code}"),
                Frame::Settings(settings) => {
                    let list: Vec<_> =
                        settings.iter().map(|(name, value)| format!("{name:?}={value}")).collect();
                    format!("settings {}", list.join(" "))
                }
                Frame::GoAway { last_stream, code, .. } => format!("goaway {last_stream} {code}"),
                Frame::WindowUpdate { stream, increment } => format!("window {stream} {increment}"),
                other => format!("{other:?}"),
            });
        }
        assert_eq!(at, bytes.len(), "whole frames");
        heard
    }
}

#[test]
fn a_request_is_handed_out_whole_and_answered() {
    let mut pair = Pair::new(LIMITS);
    pair.push(1, b"hello");
    pair.says().unwrap();
    let request = pair.connection.poll_request().unwrap();
    assert_eq!((request.stream, &request.body[..]), (1, &b"hello"[..]));
    pair.connection.recycle(request);
    pair.connection.respond(1, 200, &[(b"apns-id", b"x")], b"");
    let heard = pair.hears();
    assert_eq!(heard.last().unwrap(), "headers 1 true");
    assert_eq!(pair.connection.open_streams(), 0);
}

#[test]
fn a_window_is_given_back_at_once_or_after_half_or_never() {
    let body = [b'x'; 10_000];
    for (window_return, expected) in [
        (WindowReturn::Eager, "window 0 "),
        (WindowReturn::Half, "window 0 "),
        (WindowReturn::Never, "-"),
    ] {
        let mut pair = Pair::new(Limits { window_return, ..LIMITS });
        let mut given = 0;
        for stream in [1, 3, 5, 7, 9, 11] {
            pair.push(stream, &body);
            let bytes = std::mem::take(&mut pair.bytes);
            pair.connection.handle_bytes(&bytes).unwrap();
            while let Some(request) = pair.connection.poll_request() {
                pair.connection.respond(request.stream, 200, &[], b"");
            }
            let heard = pair.hears();
            given += heard.iter().filter(|line| line.starts_with(expected)).count();
        }
        let times = match window_return {
            WindowReturn::Eager => 6,
            WindowReturn::Half => 1,
            WindowReturn::Never => 0,
        };
        assert_eq!(given, times, "{window_return:?}");
        pair.push(13, &body);
        let outcome = pair.says();
        let code = (window_return == WindowReturn::Never).then_some(ErrorCode::FLOW_CONTROL_ERROR);
        assert_eq!(outcome.err(), code, "60,000 of 65,535 bytes are used");
    }
}

#[test]
fn a_larger_window_is_granted_at_the_start() {
    let mut connection = Connection::new(Limits { connection_window: 16 << 20, ..LIMITS });
    let output = std::mem::take(connection.output());
    let (first, length) = frame::decode(&output, 16_384).unwrap().unwrap();
    let Frame::Settings(settings) = first else { panic!("{first:?}") };
    assert!(settings.iter().any(|setting| setting == (Setting::MaxConcurrentStreams, 10)));
    let (second, _) = frame::decode(&output[length..], 16_384).unwrap().unwrap();
    assert_eq!(second, Frame::WindowUpdate { stream: 0, increment: (16 << 20) - 65_535 });
}

#[test]
fn streams_beyond_the_limit_are_refused_and_a_lower_one_holds_once_acknowledged() {
    let mut pair = Pair::new(Limits { streams_max: 2, ..LIMITS });
    for stream in [1, 3, 5] {
        pair.headers(stream, false);
    }
    pair.says().unwrap();
    assert_eq!(pair.hears(), ["reset 5 REFUSED_STREAM"]);
    pair.connection.set_streams_max(1);
    pair.connection.reset(1, ErrorCode::CANCEL);
    pair.headers(7, false);
    pair.says().unwrap();
    assert_eq!(pair.hears(), ["settings MaxConcurrentStreams=1", "reset 1 CANCEL"]);
    frame::encode_settings_ack(&mut pair.bytes);
    pair.connection.reset(3, ErrorCode::CANCEL);
    pair.headers(9, false);
    pair.says().unwrap();
    assert_eq!(pair.hears(), ["reset 3 CANCEL", "reset 9 REFUSED_STREAM"]);
}

#[test]
fn streams_above_the_last_of_goaway_are_forgotten() {
    let mut pair = Pair::new(LIMITS);
    for stream in [1, 3, 5] {
        pair.headers(stream, true);
    }
    pair.says().unwrap();
    pair.connection.go_away(3, ErrorCode::NO_ERROR);
    assert_eq!(pair.hears(), ["goaway 3 NO_ERROR"]);
    let mut served = Vec::new();
    while let Some(request) = pair.connection.poll_request() {
        served.push(request.stream);
        pair.connection.respond(request.stream, 200, &[], b"");
    }
    pair.push(7, b"late");
    pair.says().unwrap();
    assert_eq!(served, [1, 3]);
    assert_eq!(
        (pair.connection.open_streams(), pair.connection.poll_request().is_none()),
        (0, true)
    );
}

#[test]
fn an_answer_waits_for_window() {
    let mut pair = Pair::new(LIMITS);
    frame::encode_settings(&mut pair.bytes, &[(Setting::InitialWindowSize, 4)]);
    pair.headers(1, true);
    pair.says().unwrap();
    pair.connection.respond(1, 400, &[], b"0123456789");
    assert_eq!(pair.hears()[1..], ["headers 1 false", "data 1 4 false"]);
    frame::encode_window_update(&mut pair.bytes, 1, 100);
    pair.says().unwrap();
    assert_eq!(pair.hears(), ["data 1 6 true"]);
}

#[test]
fn settings_are_acknowledged_before_what_they_allow_is_sent() {
    let mut pair = Pair::new(LIMITS);
    frame::encode_settings(&mut pair.bytes, &[(Setting::InitialWindowSize, 0)]);
    pair.headers(1, true);
    pair.says().unwrap();
    pair.connection.respond(1, 400, &[], b"0123456789");
    assert_eq!(pair.hears()[1..], ["headers 1 false"]);
    frame::encode_settings(&mut pair.bytes, &[(Setting::InitialWindowSize, 1)]);
    pair.says().unwrap();
    assert_eq!(pair.hears(), ["SettingsAck", "data 1 1 false"]);
}

#[test]
fn floods_end_the_connection() {
    let mut pings = Pair::new(LIMITS);
    for _ in 0..20_000 {
        frame::encode_ping(&mut pings.bytes, [0; 8], false);
    }
    assert_eq!(pings.says(), Err(ErrorCode::ENHANCE_YOUR_CALM));
    // Rapid reset (CVE-2023-44487): complete requests, each reset at once.
    let mut resets = Pair::new(LIMITS);
    for stream in (1..30_001).step_by(2) {
        resets.headers(stream, true);
        frame::encode_reset(&mut resets.bytes, stream, ErrorCode::CANCEL);
    }
    assert_eq!(resets.says(), Err(ErrorCode::ENHANCE_YOUR_CALM));
}

#[test]
fn a_body_keeps_no_more_than_its_bound() {
    let mut pair = Pair::new(LIMITS);
    pair.push(1, &[b'x'; 5_000]);
    pair.says().unwrap();
    assert_eq!(pair.connection.poll_request().unwrap().body.len(), 1_000);
}
