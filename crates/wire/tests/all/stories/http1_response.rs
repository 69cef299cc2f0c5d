//! A client reads responses (RFC 9112 §4, §6.3), and a server writes them.

use dunlin_wire::http1::{
    Decoded, Error, HeaderSlots, LAST_CHUNK, Limits, Method, RequestWriter, ResponseHead,
    ResponseWriter, Version, decode_response, encode_chunk,
};

pub fn response<R>(
    bytes: &[u8],
    method: Method<'_>,
    look: impl FnOnce(ResponseHead<'_>, usize) -> R,
) -> R {
    let mut slots = HeaderSlots::new();
    match decode_response(bytes, &mut slots, &Limits::default(), method) {
        Ok(Decoded::Head(head, consumed)) => look(head, consumed),
        Ok(Decoded::NeedMore) => panic!("not complete: {:?}", String::from_utf8_lossy(bytes)),
        Err(error) => panic!("{error}: {:?}", String::from_utf8_lossy(bytes)),
    }
}

#[track_caller]
fn refuses(bytes: &[u8], error: Error) {
    let mut slots = HeaderSlots::new();
    let result = decode_response(bytes, &mut slots, &Limits::default(), Method::Get);
    assert_eq!(result, Err(error), "{:?}", String::from_utf8_lossy(bytes));
}

#[test]
fn the_framing_of_a_body_follows_status_method_and_headers() {
    let length = "Content-Length: 7\r\n";
    let chunked = "Transfer-Encoding: chunked\r\n";
    // Bytes announced, or until close; and whether the connection persists.
    let cases = [
        (Method::Get, "200 OK", length, Some(7), false, true),
        (Method::Get, "200 OK", chunked, None, false, true),
        (Method::Get, "200 OK", "", None, true, false),
        (Method::Head, "200 OK", length, Some(0), false, true),
        (Method::Head, "200 OK", "", Some(0), false, true),
        (Method::Get, "204 No Content", length, Some(0), false, true),
        (Method::Get, "304 Not Modified", length, Some(0), false, true),
        (Method::Get, "103 Early Hints", "", Some(0), false, true),
        (Method::Get, "101 Switching Protocols", "", Some(0), false, false),
        (Method::Connect, "200 OK", "", Some(0), false, true),
        (Method::Get, "200", length, Some(7), false, true),
    ];
    for (method, status, header, remaining, until_close, keep_alive) in cases {
        let bytes = format!("HTTP/1.1 {status}\r\n{header}\r\n");
        response(bytes.as_bytes(), method, |head, consumed| {
            assert_eq!(consumed, bytes.len());
            assert_eq!(head.body.remaining(), remaining, "{method:?} {bytes}");
            assert_eq!(head.body.ends_at_close(), until_close, "{method:?} {bytes}");
            assert_eq!(head.keep_alive, keep_alive, "{method:?} {bytes}");
            assert_eq!(head.is_interim(), status.starts_with("103"));
        });
    }
}

#[test]
fn an_old_server_closes_unless_it_says_otherwise() {
    response(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n", Method::Get, |head, _| {
        assert_eq!((head.version, head.keep_alive), (Version::Http10, false));
    });
    let kept = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\n";
    response(kept, Method::Get, |head, _| assert!(head.keep_alive));
}

/// Some servers, and proxies in front of them, write the length twice (RFC 9112 §6.3).
#[test]
fn response_with_equal_repeated_lengths_has_that_length() {
    for lengths in ["Content-Length: 5\r\ncontent-length: 5", "Content-Length: 5, 5"] {
        let bytes = format!("HTTP/1.1 200 OK\r\n{lengths}\r\n\r\n");
        response(bytes.as_bytes(), Method::Get, |head, _| {
            assert_eq!(head.body.remaining(), Some(5), "{lengths}");
        });
    }
    refuses(b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n", Error::ContentLengthRepeated);
    for lengths in ["5,", "5, x", ",5", "+5"] {
        let bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: {lengths}\r\n\r\n");
        refuses(bytes.as_bytes(), Error::ContentLength);
    }
}

/// A client reads a fold as blanks (RFC 9112 §5.2).
#[test]
fn response_with_folded_lines_is_read_once_they_are_unfolded() {
    let bytes = b"HTTP/1.1 200 OK\r\nX-Long: a,\r\n\tb\r\nContent-Length:\r\n 3\r\n\r\nabc";
    refuses(bytes, Error::Folded);
    let unfolded = dunlin_wire::http1::unfolded(bytes);
    assert_eq!(unfolded.len() + 3, bytes.len());
    response(&unfolded, Method::Get, |head, consumed| {
        assert_eq!(consumed, unfolded.len());
        assert_eq!(head.headers.get("x-long"), Some(&b"a,  \tb"[..]));
        assert_eq!(head.body.remaining(), Some(3));
    });
    for cut in 20..unfolded.len() {
        let mut slots = HeaderSlots::new();
        let cut = decode_response(&bytes[..cut], &mut slots, &Limits::default(), Method::Get);
        assert_eq!(cut, Ok(Decoded::NeedMore));
    }
}

#[test]
fn responses_that_could_be_read_in_two_ways_are_refused() {
    refuses(b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", Error::BareLineEnd);
    refuses(b"HTTP/1.1 200 OK\r\nX: a\n", Error::BareLineEnd);
    refuses(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        Error::LengthAndCoding,
    );
    refuses(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        Error::ContentLengthRepeated,
    );
    refuses(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", Error::TransferCodingUnknown);
    refuses(b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Error::TransferEncoding);
    refuses(b"HTTP/1.1 099 ?\r\n\r\n", Error::StatusCode);
    refuses(b"HTTP/1.1 600 ?\r\n\r\n", Error::StatusCode);
    refuses(b"HTTP/1.1 20 OK\r\n\r\n", Error::StatusCode);
    refuses(b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", Error::Folded);
    refuses(b"HTTP/1.1 200 OK\r\nX : a\r\n\r\n", Error::HeaderName);
}

#[test]
fn no_value_adds_a_header_of_its_own() {
    let mut out = Vec::new();
    ResponseWriter::new(&mut out, 204)
        .header("X-Echo", "a\r\nSet-Cookie: b\0")
        .keep_alive(true, Version::Http11)
        .no_body();
    response(&out, Method::Get, |head, consumed| {
        assert_eq!(consumed, out.len());
        assert_eq!(head.headers.len(), 1);
        assert_eq!(head.headers.get_str("x-echo"), Some("a  Set-Cookie: b"));
    });
    let mut out = Vec::new();
    RequestWriter::new(&mut out, "GET", "/a b\r\nX: y", "h\r\nX: y").close().no_body();
    super::http1_request::request(&out.replace_host(), |head, _| {
        assert_eq!(head.target, "/a%20b%0D%0AX:%20y");
        assert_eq!(head.headers.len(), 2);
    });
}

/// A host with a space in it is refused by the request decoder, as it should be; put a plain one there
/// to read the rest.
trait ReplaceHost {
    fn replace_host(&self) -> Vec<u8>;
}

impl ReplaceHost for Vec<u8> {
    fn replace_host(&self) -> Vec<u8> {
        String::from_utf8_lossy(self).replace("h  X: y", "h").into_bytes()
    }
}

#[test]
fn a_stream_is_written_in_chunks() {
    let mut out = Vec::new();
    ResponseWriter::new(&mut out, 200)
        .headers(&[("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache")])
        .keep_alive(false, Version::Http11)
        .chunked();
    encode_chunk(&mut out, b"data: a\n\n");
    encode_chunk(&mut out, b"");
    out.extend_from_slice(LAST_CHUNK);
    assert_eq!(
        String::from_utf8_lossy(&out),
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n\
         Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n0\r\n\r\n"
    );
}
