//! The fuzz target of the server connection and its invariants.

use std::collections::BTreeSet;

use dunlin_wire::http2::frame::{self, Frame};
use dunlin_wire::http2::{ErrorCode, PREFACE};

use super::{Connection, Limits, WindowReturn};

const STREAMS_MAX: u32 = 8;
const BODY_BYTES_MAX: usize = 1_000;

/// A fuzz target.
type Target = fn(&[u8]);

/// All targets by name; `fuzz/corpus/NAME` holds the seeds of each.
pub(crate) const TARGETS: &[(&str, Target)] = &[("simulate_http2", server)];

/// Checks for any input, split at any points: streams, bodies and answers keep their bounds, each request is returned
/// once, and the output consists of valid frames.
fn server(data: &[u8]) {
    let Some((&settings, data)) = data.split_first() else { return };
    let window_return = match settings & 3 {
        0 => WindowReturn::Eager,
        1 => WindowReturn::Half,
        _ => WindowReturn::Never,
    };
    let piece = usize::from(settings >> 3) * 13 + 1;
    // Fuzzer input rarely begins with the preface.
    let begin = if settings & 4 == 0 { beginning() } else { Vec::new() };
    if window_return == WindowReturn::Never {
        // The window is never returned, so that the result must not depend on how the input is split.
        let whole = silent(&begin, data, data.len().max(1));
        assert_eq!(whole, silent(&begin, data, piece), "in pieces of {piece}");
    }
    talk(&begin, data, piece, window_return);
}

fn connection(window_return: WindowReturn) -> Connection {
    Connection::new(Limits {
        streams_max: STREAMS_MAX,
        connection_window: 65_535,
        stream_window: 2_000,
        window_return,
        header_list_bytes_max: 4_000,
        body_bytes_max: BODY_BYTES_MAX,
    })
}

fn beginning() -> Vec<u8> {
    let mut begin = PREFACE.to_vec();
    frame::encode_settings(&mut begin, &[]);
    frame::encode_settings_ack(&mut begin);
    begin
}

/// Returns the requests of a client that gets no answers, and the error that ended the connection.
fn silent(begin: &[u8], data: &[u8], piece: usize) -> (Vec<(u32, Vec<u8>)>, Option<ErrorCode>) {
    let mut connection = connection(WindowReturn::Never);
    let mut end = connection.handle_bytes(begin).err();
    for piece in data.chunks(piece) {
        if end.is_none() {
            end = connection.handle_bytes(piece).err();
        }
    }
    let requests = std::iter::from_fn(|| connection.poll_request());
    (requests.map(|request| (request.stream, request.body)).collect(), end.map(|error| error.code))
}

/// Answers requests in every possible way.
fn talk(begin: &[u8], data: &[u8], piece: usize, window_return: WindowReturn) {
    let mut connection = connection(window_return);
    let mut seen = BTreeSet::new();
    let mut failed = connection.handle_bytes(begin).is_err();
    for (turn, piece) in data.chunks(piece).enumerate() {
        failed |= connection.handle_bytes(piece).is_err();
        while let Some(request) = connection.poll_request() {
            let stream = request.stream;
            assert!(stream % 2 == 1 && stream <= connection.last_stream(), "{stream}");
            assert!(seen.insert(stream), "{stream} came twice");
            assert!(request.body.len() <= BODY_BYTES_MAX);
            assert!(request.head.iter().any(|(name, _)| name == b":method"));
            match stream / 2 % 5 {
                0 => connection.respond(stream, 200, &[(b"apns-id", b"1")], b""),
                1 => connection.respond(stream, 400, &[], &[b'x'; 3_000]),
                2 => connection.reset(stream, ErrorCode::REFUSED_STREAM),
                3 => connection.respond_half(stream, 200, &[]),
                _ => {}
            }
            connection.recycle(request);
        }
        match turn % 64 {
            20 => connection.set_streams_max(1),
            40 => connection.set_streams_max(STREAMS_MAX),
            60 => connection.send_settings(),
            63 if turn > 200 => connection.go_away(connection.last_stream(), ErrorCode::NO_ERROR),
            _ => {}
        }
        assert!(connection.open_streams() <= STREAMS_MAX as usize);
        let goodbyes = heard(&std::mem::take(connection.output()));
        if failed {
            // A failed connection sends GOAWAY last and ignores further input.
            assert!(goodbyes > 0);
            assert!(connection.handle_bytes(&[0; 100]).is_ok());
            return assert!(connection.output().is_empty());
        }
    }
}

/// Decodes the server's output and counts its GOAWAY frames.
fn heard(bytes: &[u8]) -> usize {
    let (mut at, mut goodbyes) = (0, 0);
    while at < bytes.len() {
        let read = frame::decode(&bytes[at..], 16_384);
        let Ok(Some((frame, length))) = read else { panic!("no frame at {at}: {read:?}") };
        goodbyes += usize::from(matches!(frame, Frame::GoAway { .. }));
        at += length;
    }
    goodbyes
}

#[cfg(test)]
mod tests {
    use super::super::replay;

    replay::tests!(super::TARGETS, 2_048);
}
