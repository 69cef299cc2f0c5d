//! Encoding of events.

use std::io::Write;

/// The media type of an event stream.
pub const CONTENT_TYPE: &str = "text/event-stream";

/// An event, or a change of the stream's settings when it has no data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `Last-Event-ID` that the client sends when it reconnects. `Some("")` clears it.
    pub id: Option<&'a str>,
    /// The event's type; `message` if there is none.
    pub event: Option<&'a str>,
    /// The payload, UTF-8, with any number of lines. CR and CRLF arrive as LF, because the format
    /// cannot distinguish them. Without data the client dispatches no event.
    pub data: Option<&'a [u8]>,
    /// How long the client waits before it reconnects, in milliseconds.
    pub retry_ms: Option<u64>,
}

impl Event<'_> {
    /// Appends the event. Line breaks and NUL in `id` and `event`, which the format cannot carry,
    /// are omitted, so that neither can start another field.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if let Some(id) = self.id {
            encode_line(out, b"id: ", id);
        }
        if let Some(event) = self.event {
            encode_line(out, b"event: ", event);
        }
        if let Some(retry_ms) = self.retry_ms {
            // Writing to a Vec cannot fail.
            let _ = writeln!(out, "retry: {retry_ms}");
        }
        if let Some(data) = self.data {
            encode_lines(out, b"data: ", data);
        }
        out.push(b'\n');
    }
}

/// Appends a comment, which clients ignore: a heartbeat that keeps proxies from closing the stream.
pub fn encode_comment(out: &mut Vec<u8>, text: &str) {
    encode_lines(out, b": ", text.as_bytes());
    out.push(b'\n');
}

fn encode_line(out: &mut Vec<u8>, name: &[u8], value: &str) {
    out.extend_from_slice(name);
    out.extend(value.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n' | 0)));
    out.push(b'\n');
}

fn encode_lines(out: &mut Vec<u8>, name: &[u8], mut text: &[u8]) {
    loop {
        let end = text.iter().position(|&byte| matches!(byte, b'\r' | b'\n'));
        out.extend_from_slice(name);
        out.extend_from_slice(&text[..end.unwrap_or(text.len())]);
        out.push(b'\n');
        let Some(end) = end else { return };
        let line_end = if text[end..].starts_with(b"\r\n") { 2 } else { 1 };
        text = &text[end + line_end..];
    }
}
