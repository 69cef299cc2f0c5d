//! Event streams (WHATWG HTML §9.2).

use dunlin_wire::sse::{Decoder, Event, EventTooLong, encode_comment};

/// Id, type and data of each event of a stream fed in pieces.
pub fn events(
    decoder: &mut Decoder,
    bytes: &[u8],
    piece: usize,
) -> Result<Vec<(String, String, String)>, EventTooLong> {
    let mut events = Vec::new();
    for mut piece in bytes.chunks(piece) {
        while !piece.is_empty() {
            let (consumed, event) = decoder.decode(piece)?;
            if let Some(event) = event {
                events.push((event.id.to_owned(), event.event.to_owned(), event.data.to_owned()));
            }
            piece = &piece[consumed..];
        }
    }
    Ok(events)
}

fn decode(stream: &str) -> Vec<(String, String, String)> {
    let whole = events(&mut Decoder::new(4096), stream.as_bytes(), 4096).unwrap();
    for piece in 1..5 {
        assert_eq!(events(&mut Decoder::new(4096), stream.as_bytes(), piece).unwrap(), whole);
    }
    whole
}

fn data(stream: &str) -> Vec<String> {
    decode(stream).into_iter().map(|(_, _, data)| data).collect()
}

#[test]
fn the_examples_of_the_standard() {
    assert_eq!(data("data: YHOO\ndata: +2\ndata: 10\n\n"), ["YHOO\n+2\n10"]);
    let stream =
        ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third\n\n";
    let expected = [("1", "first event"), ("", "second event"), ("", " third")];
    let events = decode(stream);
    for ((id, event, data), expected) in events.iter().zip(expected) {
        assert_eq!((id.as_str(), data.as_str()), expected);
        assert_eq!(event, "message");
    }
    assert_eq!(events.len(), 3);
    assert_eq!(data("data\n\ndata\ndata\n\ndata:"), ["", "\n"]);
    assert_eq!(data("data:test\n\ndata: test\n\n"), ["test", "test"]);
}

#[test]
fn lines_end_in_three_ways() {
    assert_eq!(data("data: a\r\rdata: b\r\n\r\ndata: c\n\n"), ["a", "b", "c"]);
    assert_eq!(data("\u{feff}data: a\n\n"), ["a"]);
}

#[test]
fn an_event_without_data_is_none() {
    assert_eq!(data("event: a\nid: 1\n\ndata: b\n\n"), ["b"]);
    assert_eq!(decode("event: a\n\ndata: b\n\n")[0].1, "message");
}

#[test]
fn the_stream_sets_when_to_reconnect() {
    let mut decoder = Decoder::new(64);
    events(&mut decoder, b"retry: 10x\n\n", 64).unwrap();
    assert_eq!(decoder.retry_ms(), None);
    events(&mut decoder, b"retry: 1500\n\n", 64).unwrap();
    assert_eq!(decoder.retry_ms(), Some(1500));
}

#[test]
fn an_id_stays_until_the_next() {
    let ids: Vec<_> = decode("id: 1\ndata: a\n\ndata: b\n\nid: x\0y\ndata: c\n\n")
        .into_iter()
        .map(|e| e.0)
        .collect();
    assert_eq!(ids, ["1", "1", "1"]);
}

#[test]
fn events_are_bounded() {
    let long = "a".repeat(100);
    assert_eq!(events(&mut Decoder::new(64), long.as_bytes(), 7), Err(EventTooLong));
    assert_eq!(
        events(&mut Decoder::new(64), format!("data: {long}\n").as_bytes(), 999),
        Err(EventTooLong)
    );
    let lines = "data: 0123456789\n".repeat(9);
    assert_eq!(events(&mut Decoder::new(64), lines.as_bytes(), 999), Err(EventTooLong));
}

#[test]
fn no_field_smuggles_another() {
    let mut out = Vec::new();
    Event {
        id: Some("1\ndata: evil"),
        event: Some("a\r\n\r\ndata: evil"),
        data: Some(b"x\r\n\ndata: y"),
        retry_ms: Some(5),
    }
    .encode(&mut out);
    encode_comment(&mut out, "ping\n\ndata: evil");
    let out = String::from_utf8(out).unwrap();
    let events = decode(&out);
    assert_eq!(events.len(), 1);
    let (id, event, data) = &events[0];
    assert_eq!(id, "1data: evil");
    assert_eq!(event, "adata: evil");
    assert_eq!(data, "x\n\ndata: y");
}
