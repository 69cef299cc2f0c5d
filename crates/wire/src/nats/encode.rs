//! Encodes the operations of a client.

use std::io::Write as _;

const HEADERS_BEGIN: &[u8] = b"NATS/1.0\r\n";

/// Appends the `CONNECT` of a client with a JSON object.
pub fn encode_connect(out: &mut Vec<u8>, json: &[u8]) {
    for part in [b"CONNECT ", json, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Appends a message, its payload in parts. Subjects must not contain blanks. Header names and values are truncated at a line
/// break.
pub fn encode_publish(
    out: &mut Vec<u8>,
    subject: &[u8],
    reply: Option<&[u8]>,
    headers: &[(&str, &str)],
    payload: &[&[u8]],
) {
    let line = |text: &str| text.find(['\r', '\n']).unwrap_or(text.len());
    let of_headers = |(name, value): &(&str, &str)| line(name) + line(value) + 4;
    let payload_bytes: usize = payload.iter().map(|part| part.len()).sum();
    out.extend_from_slice(if headers.is_empty() { b"PUB " } else { b"HPUB " });
    out.extend_from_slice(subject);
    if let Some(reply) = reply {
        out.push(b' ');
        out.extend_from_slice(reply);
    }
    let mut head_bytes = 0;
    if !headers.is_empty() {
        head_bytes = HEADERS_BEGIN.len() + headers.iter().map(of_headers).sum::<usize>() + 2;
        let _ = write!(out, " {head_bytes}");
    }
    let _ = write!(out, " {}\r\n", head_bytes + payload_bytes);
    if !headers.is_empty() {
        out.extend_from_slice(HEADERS_BEGIN);
        for (name, value) in headers {
            let _ = write!(out, "{}: {}\r\n", &name[..line(name)], &value[..line(value)]);
        }
        out.extend_from_slice(b"\r\n");
    }
    for part in payload {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a subscription with an id that the client chooses.
pub fn encode_subscribe(out: &mut Vec<u8>, subject: &[u8], sid: u64) {
    out.extend_from_slice(b"SUB ");
    out.extend_from_slice(subject);
    let _ = write!(out, " {sid}\r\n");
}

/// Appends the end of a subscription.
pub fn encode_unsubscribe(out: &mut Vec<u8>, sid: u64) {
    let _ = write!(out, "UNSUB {sid}\r\n");
}
