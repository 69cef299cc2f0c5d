//! A server reads requests (RFC 9112 §3, §5, §6, §11).

use dunlin_wire::http1::{
    BodyDecoder, Decoded, Error, HeaderSlots, Limits, Method, RequestHead, Version, decode_request,
};

/// Decodes one request and lends its head to `look`.
pub fn request<R>(bytes: &[u8], look: impl FnOnce(RequestHead<'_>, usize) -> R) -> R {
    let mut slots = HeaderSlots::new();
    match decode_request(bytes, &mut slots, &Limits::default()) {
        Ok(Decoded::Head(head, consumed)) => look(head, consumed),
        Ok(Decoded::NeedMore) => panic!("not complete: {:?}", String::from_utf8_lossy(bytes)),
        Err(error) => panic!("{error}: {:?}", String::from_utf8_lossy(bytes)),
    }
}

#[track_caller]
fn refuses(bytes: impl AsRef<[u8]>, error: Error, status: u16) {
    let mut slots = HeaderSlots::new();
    let result = decode_request(bytes.as_ref(), &mut slots, &Limits::default());
    assert_eq!(result, Err(error), "{:?}", String::from_utf8_lossy(bytes.as_ref()));
    assert_eq!(error.status(), status);
    assert!(!error.message().is_empty());
}

#[track_caller]
fn refuses_header(header: &str, error: Error, status: u16) {
    refuses(format!("POST / HTTP/1.1\r\nHost: a\r\n{header}\r\n\r\n"), error, status);
}

#[test]
fn a_browser_asks_for_a_page() {
    let bytes = b"GET /watch?channel=a&b HTTP/1.1\r\nHost: push.example:8000\r\nAccept: */*\r\n\
        X-Empty:\r\nx-twice: 1\r\nX-Twice:  2 \r\n\r\n";
    request(bytes, |head, consumed| {
        assert_eq!(consumed, bytes.len());
        assert_eq!(head.method, Method::Get);
        assert_eq!(head.target, "/watch?channel=a&b");
        assert_eq!((head.path, head.query), ("/watch", Some("channel=a&b")));
        assert_eq!(head.host, Some("push.example:8000"));
        assert_eq!(head.version, Version::Http11);
        assert!(head.keep_alive && !head.upgrade && !head.expect_continue);
        assert_eq!(head.body, BodyDecoder::none());
        assert_eq!(head.headers.len(), 5);
        assert_eq!(head.headers.get_str("ACCEPT"), Some("*/*"));
        assert_eq!(head.headers.get("x-empty"), Some(&b""[..]));
        assert_eq!(head.headers.get_all("x-twice").collect::<Vec<_>>(), [b"1", b"2"]);
        assert_eq!(head.headers.get("x-missing"), None);
    });
}

#[test]
fn requests_arrive_in_pieces_and_in_a_row() {
    let first = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n";
    let mut bytes = first.to_vec();
    bytes.extend_from_slice(b"abcGET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    for cut in 0..first.len() {
        let mut slots = HeaderSlots::new();
        let result = decode_request(&bytes[..cut], &mut slots, &Limits::default());
        assert_eq!(result, Ok(Decoded::NeedMore), "cut at {cut}");
    }
    request(&bytes, |head, consumed| {
        assert_eq!((head.path, consumed), ("/a", first.len()));
        assert_eq!(head.body.remaining(), Some(3));
    });
    request(&bytes[first.len() + 3..], |head, _| assert_eq!(head.path, "/b"));
}

#[test]
fn empty_lines_before_a_request_are_skipped() {
    request(b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", |head, consumed| {
        assert_eq!((head.path, consumed), ("/", 31));
    });
}

#[test]
fn a_connection_stays_open_by_version_and_wish() {
    let cases = [
        ("HTTP/1.1", "", true),
        ("HTTP/1.1", "Connection: close\r\n", false),
        ("HTTP/1.1", "Connection: foo, Close\r\n", false),
        ("HTTP/1.1", "Connection: keep-alive\r\nConnection: close\r\n", false),
        ("HTTP/1.0", "", false),
        ("HTTP/1.0", "Connection: Keep-Alive\r\n", true),
    ];
    for (version, header, keep_alive) in cases {
        let bytes = format!("GET / {version}\r\nHost: a\r\n{header}\r\n");
        request(bytes.as_bytes(), |head, _| assert_eq!(head.keep_alive, keep_alive, "{bytes}"));
    }
}

#[test]
fn targets_have_four_forms() {
    let cases = [
        ("GET", "/", "/", None, "a"),
        ("GET", "/a?", "/a", Some(""), "a"),
        ("GET", "/a?b?c", "/a", Some("b?c"), "a"),
        ("GET", "http://b:80/c?d", "/c", Some("d"), "b:80"),
        ("GET", "HTTPS://b", "/", None, "b"),
        ("GET", "http://b?d", "/", Some("d"), "b"),
        ("OPTIONS", "*", "*", None, "a"),
    ];
    for (method, target, path, query, host) in cases {
        let bytes = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        request(bytes.as_bytes(), |head, _| {
            assert_eq!((head.path, head.query, head.host), (path, query, Some(host)), "{bytes}");
        });
    }
    for target in
        ["a", "*", "http://", "http:///a", "/a#b", "ftp://a/", "a:443", "?a", "/ä", "/?q=ä"]
    {
        refuses(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"), Error::Target, 400);
    }
    for target in ["http://user@b/", "http://b\\c/"] {
        refuses(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"), Error::Host, 400);
    }
    refuses("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", Error::MethodNotImplemented, 501);
}

#[test]
fn methods_are_case_sensitive_and_open() {
    request(b"get / HTTP/1.1\r\nHost: a\r\n\r\n", |head, _| {
        assert_eq!(head.method, Method::Other("get"));
    });
    request(b"PURGE / HTTP/1.1\r\nHost: a\r\n\r\n", |head, _| {
        assert_eq!(head.method.as_str(), "PURGE");
    });
}

#[test]
fn host_is_needed_once_and_well_formed() {
    refuses("GET / HTTP/1.1\r\n\r\n", Error::Host, 400);
    refuses("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Error::Host, 400);
    refuses("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", Error::Host, 400);
    for line in ["/ HTTP/1.1\r\nHost:", "/ HTTP/1.0\r\nHost: ", "http://a/ HTTP/1.1\r\nHost:"] {
        refuses(format!("GET {line}\r\n\r\n"), Error::Host, 400);
    }
    refuses("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", Error::Host, 400);
    request(b"GET / HTTP/1.0\r\n\r\n", |head, _| assert_eq!(head.host, None));
    request(b"GET / HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n", |head, _| {
        assert_eq!(head.host, Some("[::1]:8000"));
    });
}

#[test]
fn lines_end_in_crlf_and_in_nothing_else() {
    refuses("GET / HTTP/1.1\nHost: a\n\n", Error::BareLineEnd, 400);
    refuses("GET / HTTP/1.1\r\nHost: a\n\r\n", Error::BareLineEnd, 400);
    refuses("GET / HTTP/1.1\r\nHost: a\r\n\n", Error::BareLineEnd, 400);
    refuses("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Error::BareLineEnd, 400);
    // Reported before the head is complete.
    refuses("GET / HTTP/1.1\r\nHost: a\nX", Error::BareLineEnd, 400);
    // A CR alone, in the middle of a value, is no line end either.
    refuses("GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", Error::HeaderValue, 400);
}

#[test]
fn a_header_line_is_a_name_a_colon_and_a_value() {
    refuses_header("X : a", Error::HeaderName, 400);
    refuses_header("X\t: a", Error::HeaderName, 400);
    refuses_header("X: a\r\n b", Error::HeaderName, 400);
    refuses_header(": a", Error::HeaderName, 400);
    refuses_header("X", Error::HeaderName, 400);
    refuses_header("X: a\0b", Error::HeaderValue, 400);
    refuses_header("X: a\x07b", Error::HeaderValue, 400);
    refuses("GET / HTTP/1.1\r\n Host: a\r\n\r\n", Error::HeaderName, 400);
}

#[test]
fn a_start_line_is_three_words_and_a_known_version() {
    refuses("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", Error::StartLine, 400);
    refuses("GET /\r\n", Error::StartLine, 400);
    refuses("GET / a HTTP/1.1\r\n", Error::StartLine, 400);
    refuses("GET / HTTP/1.1 \r\n", Error::BareLineEnd, 400);
    refuses("GET / http/1.1\r\n", Error::StartLine, 400);
    refuses("GET / HTTP/1.10\r\n", Error::BareLineEnd, 400);
    refuses("GET / HTTP/2.0\r\n", Error::Version, 505);
    refuses("GET / HTTP/1.2\r\n", Error::Version, 505);
    refuses("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Error::Version, 505);
    // A TLS client on a plain port gets its error at once.
    refuses(b"\x16\x03\x01\x02\x00\x01", Error::StartLine, 400);
}

#[test]
fn a_body_has_one_length() {
    request(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0010\r\n\r\n", |head, _| {
        assert_eq!(head.body.remaining(), Some(10));
    });
    for value in ["", "-1", "+1", "1 ", "1,1", "1, 2", "0x1", "1a", "99999999999999999999", "١"] {
        let valid = value == "1 "; // white space at the end of a value is not part of it
        if !valid {
            refuses_header(&format!("Content-Length: {value}"), Error::ContentLength, 400);
        }
    }
    let repeated = "Content-Length: 3\r\nContent-Length: 4";
    refuses_header(repeated, Error::ContentLengthRepeated, 400);
    // Equal or not: a sender of two has two writers.
    let repeated = "Content-Length: 3\r\ncontent-length: 3";
    refuses_header(repeated, Error::ContentLengthRepeated, 400);
    refuses_header("Content-Length: 1048577", Error::BodyTooLong, 413);
}

#[test]
fn a_length_and_a_coding_exclude_each_other() {
    let both = "Content-Length: 3\r\nTransfer-Encoding: chunked";
    refuses_header(both, Error::LengthAndCoding, 400);
    let both = "Transfer-Encoding: identity\r\nContent-Length: 3";
    refuses_header(both, Error::LengthAndCoding, 400);
}

#[test]
fn codings_end_in_one_chunked() {
    for value in ["chunked", "Chunked", ",chunked", "chunked ,"] {
        let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: {value}\r\n\r\n");
        request(bytes.as_bytes(), |head, _| assert_eq!(head.body.remaining(), None));
    }
    for value in
        ["", ",", "identity", "gzip", "chunked, gzip", "xchunked", "chunked;a=b", "\x0bchunked"]
    {
        let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: {value}\r\n\r\n");
        let mut slots = HeaderSlots::new();
        let error = decode_request(bytes.as_bytes(), &mut slots, &Limits::default()).unwrap_err();
        assert!(matches!(error, Error::TransferEncoding | Error::HeaderValue), "{value}");
        assert_eq!(error.status(), 400);
    }
    refuses_header("Transfer-Encoding: chunked, chunked", Error::TransferEncoding, 400);
    let twice = "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked";
    refuses_header(twice, Error::TransferEncoding, 400);
    let hidden = "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity";
    refuses_header(hidden, Error::TransferEncoding, 400);
    refuses_header("Transfer-Encoding: gzip, chunked", Error::TransferCodingUnknown, 501);
    refuses_header(
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        Error::TransferCodingUnknown,
        501,
    );
    refuses("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", Error::TransferEncoding, 400);
}

#[test]
fn an_expectation_is_100_continue() {
    let bytes = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n";
    request(bytes, |head, _| assert!(head.expect_continue));
    let bytes = b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    request(bytes, |head, _| assert!(!head.expect_continue));
    refuses_header("Expect: a-miracle", Error::Expectation, 417);
}

#[test]
fn heads_are_bounded() {
    let limits =
        Limits { head_bytes_max: 256, target_bytes_max: 64, headers_max: 4, ..Limits::default() };
    let decode = |bytes: &str| {
        let mut slots = HeaderSlots::new();
        match decode_request(bytes.as_bytes(), &mut slots, &limits) {
            Ok(Decoded::Head(..)) => Ok(true),
            Ok(Decoded::NeedMore) => Ok(false),
            Err(error) => Err((error, error.status())),
        }
    };
    let long = "a".repeat(64);
    assert_eq!(decode(&format!("GET /{long}")), Err((Error::TargetTooLong, 414)));
    assert_eq!(
        decode(&format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n")),
        Err((Error::TargetTooLong, 414))
    );
    assert_eq!(decode(&format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", &long[1..])), Ok(true));
    let head =
        |value: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(value));
    let room = 256 - head(0).len();
    assert_eq!(decode(&head(room)), Ok(true));
    assert_eq!(decode(&head(room + 1)), Err((Error::HeadTooLong, 431)));
    assert_eq!(decode(&head(room)[..255]), Ok(false));
    assert_eq!(decode(&head(300)[..256]), Err((Error::HeadTooLong, 431)));
    assert_eq!(decode(&"\r\n".repeat(128)), Err((Error::HeadTooLong, 431)));
    let many = "X: a\r\n".repeat(4);
    assert_eq!(
        decode(&format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n")),
        Err((Error::TooManyHeaders, 431))
    );
}

#[test]
fn a_client_asks_to_upgrade() {
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n";
    request(bytes, |head, _| assert!(head.upgrade && head.keep_alive));
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n";
    request(bytes, |head, _| assert!(!head.upgrade));
}
