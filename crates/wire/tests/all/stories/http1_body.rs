//! Bodies and their framing (RFC 9112 §6, §7.1).

use dunlin_wire::http1::{Body, BodyDecoder, Error, Limits, encode_chunk_with, encode_last_chunk};

/// What a body came to: its bytes, its trailers, and how it ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Read {
    pub data: Vec<u8>,
    pub trailers: Vec<(String, Vec<u8>)>,
    /// `Ok(Some)`: it ended, with so many bytes behind it. `Ok(None)`: it wants more.
    pub end: Result<Option<usize>, Error>,
}

/// Feeds `bytes` in pieces of the given length, keeping what the decoder leaves.
pub fn read(mut decoder: BodyDecoder, bytes: &[u8], piece: usize) -> Read {
    let mut read = Read { data: Vec::new(), trailers: Vec::new(), end: Ok(None) };
    let (mut begin, mut end) = (0, 0);
    while end < bytes.len() {
        end = (end + piece).min(bytes.len());
        loop {
            let (consumed, body) = match decoder.decode(&bytes[begin..end]) {
                Ok(step) => step,
                Err(error) => {
                    read.end = Err(error);
                    return read;
                }
            };
            begin += consumed;
            match body {
                Body::NeedMore => break,
                Body::Data(data) => read.data.extend_from_slice(data),
                Body::Trailer(name, value) => {
                    read.trailers.push((name.to_owned(), value.to_owned()));
                }
                Body::End => {
                    assert!(decoder.is_done());
                    read.end = Ok(Some(bytes.len() - begin));
                    return read;
                }
            }
        }
    }
    read
}

fn chunked(bytes: &[u8]) -> Read {
    let whole = read(BodyDecoder::chunked(&Limits::default()), bytes, usize::MAX / 2);
    for piece in [1, 2, 3, 7] {
        let cut = read(BodyDecoder::chunked(&Limits::default()), bytes, piece);
        if whole.end.is_ok() {
            let rest = |read: &Read| read.end.map(|end| end.is_some());
            assert_eq!(
                (&cut.data, &cut.trailers, rest(&cut)),
                (&whole.data, &whole.trailers, rest(&whole))
            );
        } else {
            assert!(cut.end.is_err());
        }
    }
    whole
}

#[test]
fn a_length_is_counted_down() {
    let body = read(BodyDecoder::length(5), b"helloGET", 2);
    assert_eq!((&body.data[..], body.end), (&b"hello"[..], Ok(Some(3))));
    let body = read(BodyDecoder::length(5), b"hel", 2);
    assert_eq!((&body.data[..], body.end), (&b"hel"[..], Ok(None)));
    assert_eq!(BodyDecoder::none().decode(b"GET"), Ok((0, Body::End)));
    assert_eq!(BodyDecoder::length(0), BodyDecoder::none());
}

#[test]
fn a_body_lasts_until_close_within_its_limit() {
    let limits = Limits { body_bytes_max: 4, ..Limits::default() };
    let decoder = BodyDecoder::until_close(&limits);
    assert!(decoder.ends_at_close());
    assert_eq!(read(decoder, b"abcd", 1).end, Ok(None));
    assert_eq!(read(decoder, b"abcde", 1).end, Err(Error::BodyTooLong));
}

#[test]
fn chunks_extensions_and_trailers() {
    let body = chunked(
        b"3\r\nabc\r\n000A;name=value;b=\"c d\"\r\n0123456789\r\n1 ;x\r\nz\r\n0\r\n\
          X-Sum: 7 \r\nEmpty:\r\n\r\nGET",
    );
    assert_eq!(body.data, b"abc0123456789z");
    let trailers = [("X-Sum".to_owned(), b"7".to_vec()), ("Empty".to_owned(), Vec::new())];
    assert_eq!(body.trailers, trailers);
    assert_eq!(body.end, Ok(Some(3)));
}

#[test]
fn every_cut_of_a_chunked_body_wants_more() {
    let bytes = b"5;a\r\nhello\r\n0\r\nA: b\r\n\r\n";
    for cut in 0..bytes.len() {
        assert_eq!(chunked(&bytes[..cut]).end, Ok(None), "cut at {cut}");
    }
    assert_eq!(chunked(bytes).end, Ok(Some(0)));
}

#[test]
fn a_chunk_size_is_hexadecimal_and_fits() {
    for bad in
        ["g\r\n", "\r\n", ";\r\n", "-1\r\n", "+1\r\n", "0x1\r\n", " 1\r\n", "00000000000000001\r\n"]
    {
        let error = chunked(bad.as_bytes()).end.unwrap_err();
        assert!(matches!(error, Error::ChunkSize | Error::ChunkFraming), "{bad:?}: {error:?}");
        assert_eq!(error.status(), 400);
    }
    // 64 bits hold it, the limit does not; one more digit and 64 bits do not hold it either.
    assert_eq!(chunked(b"ffffffffffffffff\r\n").end, Err(Error::BodyTooLong));
    assert_eq!(chunked(b"10000000000000000\r\n").end, Err(Error::ChunkSize));
}

#[test]
fn the_sum_of_chunks_is_bounded() {
    let limits = Limits { body_bytes_max: 6, ..Limits::default() };
    let body = read(BodyDecoder::chunked(&limits), b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n", 99);
    assert_eq!(body.end, Ok(Some(0)));
    let body = read(BodyDecoder::chunked(&limits), b"3\r\nabc\r\n4\r\n", 99);
    assert_eq!(body.end, Err(Error::BodyTooLong));
}

#[test]
fn chunks_are_framed_by_crlf_alone() {
    for bad in [
        "3\nabc\r\n",
        "3\rabc\r\n",
        "3\r\nabc\n0\r\n\r\n",
        "3\r\nabcd\r\n",
        "3\r\nabc\rx",
        "3 \r\nabc\r\n",
        "3;a\nb\r\n",
        "3;a\0b\r\n",
        "3,4\r\n",
    ] {
        let error = chunked(bad.as_bytes()).end.unwrap_err();
        assert_eq!(error, Error::ChunkFraming, "{bad:?}");
    }
}

#[test]
fn extensions_have_the_grammar_of_rfc_9112() {
    for good in
        ["", ";a", ";a=b", " ; a = b", "\t;\ta\t=\tb ;c", ";a=\"b;=\\\"\\\\ ä\" ;c=d;e", ";a=\"\""]
    {
        let body = chunked(format!("1{good}\r\nx\r\n0{good}\r\n\r\n").as_bytes());
        assert_eq!((&body.data[..], body.end), (&b"x"[..], Ok(Some(0))), "{good:?}");
    }
    for bad in [
        ";",
        ";;a",
        ";=b",
        ";a=",
        ";a=;b",
        "; ",
        ";a ",
        ";a=b ",
        ";a b",
        ";a=b c",
        ";a=b=c",
        ";a=\"b",
        ";a=\"b\"c",
        ";a=\"b\" ",
        ";a\"b\"",
        ";(a)",
        ";a=/",
        ";a=\"\\\u{1}\"",
        " ",
    ] {
        let error = chunked(format!("1{bad}\r\nx\r\n").as_bytes()).end.unwrap_err();
        assert_eq!(error, Error::ChunkFraming, "{bad:?}");
    }
}

#[test]
fn trailers_are_fields() {
    for bad in ["A\r\n", "A : b\r\n", ": b\r\n", " A: b\r\n", "A: b\n\r\n", "A: b\0\r\n", "\n"] {
        let error = chunked(format!("0\r\n{bad}\r\n").as_bytes()).end.unwrap_err();
        assert_eq!(error, Error::Trailer, "{bad:?}");
    }
}

#[test]
fn chunk_overhead_and_trailers_are_bounded() {
    // One byte of data a chunk, and a long extension each (CVE-2023-39326).
    let chunk = format!("1;{}\r\nx\r\n", "a".repeat(500));
    let body = chunked(chunk.repeat(100).as_bytes());
    assert_eq!(body.end, Err(Error::ChunkOverhead));
    assert!(body.data.len() < 20);
    // An extension without end.
    let body = chunked(format!("1;{}", "a".repeat(5000)).as_bytes());
    assert_eq!(body.end, Err(Error::ChunkOverhead));
    // Trailers without end, of many lines and of one.
    let body = chunked(format!("0\r\n{}", "A: b\r\n".repeat(5000)).as_bytes());
    assert_eq!(body.end, Err(Error::TrailersTooLong));
    assert_eq!(Error::TrailersTooLong.status(), 431);
    let body = chunked(format!("0\r\nA: {}", "b".repeat(20_000)).as_bytes());
    assert_eq!(body.end, Err(Error::TrailersTooLong));
}

#[test]
fn a_chunk_is_written_before_its_size_is_known() {
    for length in [0, 1, 15, 16, 255, 256, 4095, 4096, 70_000] {
        let data: Vec<u8> = (0..length).map(|number| number as u8).collect();
        let mut out = b"before".to_vec();
        encode_chunk_with(&mut out, |out| out.extend_from_slice(&data));
        let mut expected = b"before".to_vec();
        if length > 0 {
            expected.extend_from_slice(format!("{length:x}\r\n").as_bytes());
            expected.extend_from_slice(&data);
            expected.extend_from_slice(b"\r\n");
        }
        assert_eq!(out, expected, "length {length}");
    }
    let mut out = Vec::new();
    encode_last_chunk(&mut out, &[("X-Sum", "7\r\n")]);
    assert_eq!(out, b"0\r\nX-Sum: 7  \r\n\r\n");
}

#[test]
fn a_decoder_is_a_few_words() {
    assert!(size_of::<BodyDecoder>() <= 32);
}
