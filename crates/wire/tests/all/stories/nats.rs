//! What NATS servers say, well and badly.

use dunlin_wire::nats::{
    Error, Headers, Limits, NatsMessage, Operation, encode_connect, encode_publish,
    encode_subscribe, encode_unsubscribe, parse,
};

fn read(bytes: &[u8]) -> Result<Option<(Operation<'_>, usize)>, Error> {
    parse(bytes, &Limits { line_bytes_max: 60, message_bytes_max: 100 })
}

#[test]
fn each_operation_is_read() {
    for (bytes, operation) in [
        (&b"INFO {\"a\": 1} \r\n"[..], Operation::Info(b"{\"a\": 1}")),
        (b"PING\r\n", Operation::Ping),
        (b"pong\r\n", Operation::Pong),
        (b"+OK\r\n", Operation::Ok),
        (b"-ERR 'Slow Consumer'\r\n", Operation::Error("Slow Consumer")),
    ] {
        assert_eq!(read(bytes), Ok(Some((operation, bytes.len()))));
    }
    let message = |reply: bool, headers: &'static [u8]| NatsMessage {
        subject: b"a.b",
        sid: 12,
        reply: reply.then_some(&b"r.1"[..]),
        headers: Headers(headers),
        payload: b"x\r\ny",
    };
    let head = b"NATS/1.0\r\n\r\n";
    for (bytes, message) in [
        (&b"MSG a.b 12 4\r\nx\r\ny\r\n"[..], message(false, b"")),
        (b"MSG a.b 12 r.1 4\r\nx\r\ny\r\n", message(true, b"")),
        (b"HMSG a.b 12 12 16\r\nNATS/1.0\r\n\r\nx\r\ny\r\n", message(false, head)),
        (b"HMSG a.b\t12  r.1 12 16\r\nNATS/1.0\r\n\r\nx\r\ny\r\n", message(true, head)),
    ] {
        assert_eq!(read(bytes), Ok(Some((Operation::Message(message), bytes.len()))));
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut]), Ok(None), "{cut}");
        }
    }
}

#[test]
fn malformed_nats_input_is_an_error() {
    for (bytes, error) in [
        (&b"HTTP/1.1 400 Bad Request\r\n"[..], Error::Unknown),
        (b"PING\n", Error::Malformed),
        (b"MSG a 1\r\n", Error::Malformed),
        (b"MSG a x 1\r\n", Error::Malformed),
        (b"MSG a 1 -1\r\n", Error::Malformed),
        (b"MSG a 1 r 1 1\r\n", Error::Malformed),
        (b"MSG a 1 99999999999999999999\r\n", Error::Malformed),
        (b"HMSG a 1 5\r\n", Error::Malformed),
        (b"HMSG a 1 5 4\r\n", Error::Malformed),
        (b"HMSG a 1 r 4 5 6\r\n", Error::Malformed),
        (b"MSG a 1 101\r\n", Error::TooLong),
        (b"MSG a 1 2\r\nabc\r\n", Error::Malformed),
        (&[b'x'; 62], Error::TooLong),
    ] {
        assert_eq!(read(bytes), Err(error), "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn a_client_says_what_a_server_reads() {
    let mut out = Vec::new();
    encode_connect(&mut out, b"{}");
    encode_subscribe(&mut out, b"a.*", 3);
    encode_publish(&mut out, b"a.b", None, &[], &[b"x", b"y"]);
    encode_publish(&mut out, b"a", Some(b"r"), &[("K", "v\r\nEvil: 1")], &[]);
    encode_unsubscribe(&mut out, 3);
    let said = "CONNECT {}\r\nSUB a.* 3\r\nPUB a.b 2\r\nxy\r\n\
        HPUB a r 18 18\r\nNATS/1.0\r\nK: v\r\n\r\n\r\nUNSUB 3\r\n";
    assert_eq!(String::from_utf8_lossy(&out), said);
}
