//! The machine of an HTTP server: input in any pieces, answers of every kind, in turn and out of it.

use dunlin_net::http::{
    AfterResponse, Framing, HeaderSlots, Limits, OutOfTurn, Response, ServerConnection, ServerEvent,
};

use super::{Choices, pieces};

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

const LIMITS: Limits = Limits {
    head_bytes_max: 1024,
    headers_max: 16,
    target_bytes_max: 512,
    body_bytes_max: 4096,
    chunk_overhead_bytes_max: 256,
};

/// What one way of cutting the input has led to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Story {
    requests: Vec<String>,
    out: Vec<u8>,
}

/// The first byte chooses the answers, the rest is input. However it is cut, the same requests are read and the same bytes
/// answered.
pub fn server(data: &[u8]) {
    let Some((&seed, input)) = data.split_first() else { return };
    let whole = converse(seed, &pieces(input, 0));
    assert_eq!(whole, converse(seed, &pieces(input, 1)), "byte by byte");
    assert_eq!(whole, converse(seed, &pieces(input, 2 + u64::from(seed))), "in pieces");
}

fn converse(seed: u8, pieces: &[&[u8]]) -> Story {
    let mut choices = Choices::new(seed);
    let (mut connection, mut story) = (ServerConnection::new(), Story::default());
    let (mut input, mut seen): (Vec<u8>, usize) = (Vec::new(), 0);
    for piece in pieces {
        input.extend_from_slice(piece);
        while !input.is_empty() {
            let (mut partial, mut slots) = (None, HeaderSlots::new());
            let read = connection.handle_input(&input, seen, &mut partial, &mut slots, &LIMITS);
            let Ok((consumed, event)) = read else { return story };
            assert!(consumed <= input.len());
            let request = match event {
                ServerEvent::Request(request) => Some(format!(
                    "{} {} {:?}",
                    request.method.as_str(),
                    request.target,
                    request.body
                )),
                ServerEvent::Head { .. } | ServerEvent::NeedMore { .. } => None,
            };
            input.drain(..consumed);
            seen = if consumed > 0 { 0 } else { input.len() };
            assert!(connection.buffered_bytes() <= 1024 + 4096, "what is kept is bounded");
            match request {
                Some(request) => {
                    story.requests.push(request);
                    seen = 0;
                    let after = answer(&mut connection, &mut story.out, &mut choices);
                    if after != AfterResponse::KeepAlive {
                        return story;
                    }
                }
                None if consumed == 0 => break,
                None => {}
            }
        }
    }
    story
}

fn answer(
    connection: &mut ServerConnection,
    out: &mut Vec<u8>,
    choices: &mut Choices,
) -> AfterResponse {
    assert!(connection.is_awaiting_response());
    assert_eq!(connection.write_chunk(out, b"x"), Err(OutOfTurn), "no chunks have begun");
    assert_eq!(connection.end_chunks(out), Err(OutOfTurn), "no chunks have begun");
    let before = out.len();
    let text = Response::text("text");
    let after = match choices.next(6) {
        0 => connection.respond(out, &text, DATE),
        1 => connection.respond(out, &Response::new(204), DATE),
        2 => {
            connection.close_after_response();
            let after = connection.respond(out, &text, DATE);
            assert_eq!(after, Ok(AfterResponse::Close));
            after
        }
        3 => {
            connection.start_chunked(out, &text, DATE).expect("it is due");
            assert_eq!(connection.respond(out, &text, DATE), Err(OutOfTurn), "chunks have begun");
            for _ in 0..choices.next(3) {
                connection.write_chunk(out, b"piece").expect("chunks have begun");
            }
            connection.end_chunks(out)
        }
        4 => connection
            .start_stream(out, &text, Framing::Chunked, DATE)
            .or_else(|OutOfTurn| connection.start_stream(out, &text, Framing::UntilClose, DATE)),
        _ => connection.respond(out, &Response { body: &[b'b'; 300], ..text }, DATE),
    };
    assert!(out.len() > before, "an answer has bytes");
    assert!(!connection.is_awaiting_response());
    let length = out.len();
    assert_eq!(connection.respond(out, &text, DATE), Err(OutOfTurn), "it has been answered");
    assert_eq!(out.len(), length);
    after.expect("it was due")
}
