//! HTTP/1.1: no cut changes what a message means, and none means two things.

use dunlin_wire::http1::{
    self, Body, BodyDecoder, Decoded, Error, HeaderSlots, Limits, Method, decode_request,
    decode_response,
};

const LIMITS: Limits = Limits {
    head_bytes_max: 1024,
    target_bytes_max: 200,
    headers_max: 16,
    body_bytes_max: 4096,
    chunk_overhead_bytes_max: 256,
};

/// A server reads pipelined requests.
pub fn request(mut data: &[u8]) {
    loop {
        let mut slots = HeaderSlots::new();
        match decode_request(data, &mut slots, &LIMITS) {
            Ok(Decoded::Head(head, consumed)) => {
                assert_head(&data[..consumed]);
                assert!(head.path.starts_with('/') || head.path == "*");
                assert!(head.target.len() <= LIMITS.target_bytes_max);
                assert!(head.headers.len() <= LIMITS.headers_max);
                assert!(head.method != Method::Connect);
                let codings = head.headers.get_all("transfer-encoding").count();
                let lengths = head.headers.get_all("content-length").count();
                assert!(lengths <= 1 && (lengths == 0 || codings == 0));
                // A body is announced by a header, and only so.
                assert!(head.body.is_done() || lengths + codings > 0);
                for cut in cuts(consumed) {
                    let mut slots = HeaderSlots::new();
                    let result = decode_request(&data[..cut], &mut slots, &LIMITS);
                    assert_eq!(result, Ok(Decoded::NeedMore), "cut at {cut} of {consumed}");
                }
                match body(head.body, &data[consumed..], usize::MAX) {
                    Outcome { end: Ok(Some(rest)), .. } => data = &data[data.len() - rest..],
                    _ => return,
                }
            }
            Ok(Decoded::NeedMore) => return assert!(data.len() < LIMITS.head_bytes_max),
            Err(error) => return assert!((400..600).contains(&error.status())),
        }
    }
}

/// A client reads a response.
pub fn response(data: &[u8]) {
    let Some((settings, data)) = super::settings(data) else { return };
    let method =
        [Method::Get, Method::Head, Method::Connect, Method::Post][usize::from(settings & 3)];
    let mut slots = HeaderSlots::new();
    let Ok(Decoded::Head(head, consumed)) = decode_response(data, &mut slots, &LIMITS, method)
    else {
        return;
    };
    assert_head(&data[..consumed]);
    assert!((100..600).contains(&head.status));
    assert!(!(head.keep_alive && head.body.ends_at_close()));
    assert!(method != Method::Head || head.body.is_done());
    for cut in cuts(consumed) {
        let mut slots = HeaderSlots::new();
        let result = decode_response(&data[..cut], &mut slots, &LIMITS, method);
        assert_eq!(result, Ok(Decoded::NeedMore), "cut at {cut} of {consumed}");
    }
    body(head.body, &data[consumed..], usize::MAX);
}

/// A chunked body comes in pieces.
pub fn chunked(data: &[u8]) {
    let Some((settings, data)) = super::settings(data) else { return };
    let decoder = BodyDecoder::chunked(&LIMITS);
    let whole = body(decoder, data, usize::MAX);
    assert!(whole.data.len() as u64 <= LIMITS.body_bytes_max);
    let piece = usize::from(settings) % 16 + 1;
    let cut = body(decoder, data, piece);
    // A limit may be reported earlier or later, with other data; all else is equal.
    match (whole.end, cut.end) {
        (Err(_), Err(_)) => {}
        _ => assert_eq!(whole, cut),
    }
    // What was read is what would be written, and would be read again.
    if whole.end.is_ok_and(|end| end.is_some()) {
        let mut written = Vec::new();
        http1::encode_chunk(&mut written, &whole.data);
        written.extend_from_slice(http1::LAST_CHUNK);
        let again = body(decoder, &written, piece);
        assert_eq!((again.data, again.end), (whole.data, Ok(Some(0))));
    }
}

/// Query strings decode to text that is no longer than they are.
pub fn query(data: &[u8]) {
    let Ok(query) = str::from_utf8(data) else { return };
    for (name, value) in http1::query::pairs(query) {
        // U+FFFD has three bytes and stands for one, which three wrote; or for a part of one more.
        assert!(name.len() + value.len() <= 3 * query.len());
    }
    if !query.contains(['%', '+']) {
        assert_eq!(http1::query::decode(query), query);
    }
    assert!(http1::query::decode_path(query).len() <= query.len());
}

#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    data: Vec<u8>,
    trailers: Vec<(String, Vec<u8>)>,
    /// Bytes behind the body, if it ended.
    end: Result<Option<usize>, Error>,
}

fn body(mut decoder: BodyDecoder, data: &[u8], piece: usize) -> Outcome {
    let mut outcome = Outcome { data: Vec::new(), trailers: Vec::new(), end: Ok(None) };
    let (mut begin, mut end) = (0, 0);
    loop {
        match decoder.decode(&data[begin..end]) {
            Err(error) => {
                outcome.end = Err(error);
                return outcome;
            }
            Ok((consumed, step)) => {
                begin += consumed;
                assert!(begin <= end);
                match step {
                    Body::Data(bytes) => {
                        assert!(!bytes.is_empty() && consumed >= bytes.len());
                        outcome.data.extend_from_slice(bytes);
                    }
                    Body::Trailer(name, value) => {
                        assert!(!name.is_empty() && !value.contains(&b'\n'));
                        outcome.trailers.push((name.to_owned(), value.to_owned()));
                    }
                    Body::End => {
                        assert!(decoder.is_done());
                        outcome.end = Ok(Some(data.len() - begin));
                        return outcome;
                    }
                    Body::NeedMore if end == data.len() => return outcome,
                    Body::NeedMore => end = end.saturating_add(piece).min(data.len()),
                }
            }
        }
    }
}

/// Lines of a head end in CRLF, and the last one is empty.
fn assert_head(head: &[u8]) {
    assert!(head.len() <= LIMITS.head_bytes_max);
    assert!(head.ends_with(b"\r\n\r\n"));
    for (index, byte) in head.iter().enumerate() {
        match byte {
            b'\n' => assert_eq!(head[index - 1], b'\r'),
            b'\r' => assert_eq!(head[index + 1], b'\n'),
            0 => panic!("a NUL in a head"),
            _ => {}
        }
    }
}

/// Some places to cut at, few enough for a fuzzer.
fn cuts(length: usize) -> impl Iterator<Item = usize> {
    (0..length).step_by(length / 16 + 1).chain(length.saturating_sub(4)..length)
}
