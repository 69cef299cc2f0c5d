//! Event streams: no cut changes what they say, and no field breaks out of its line.

use dunlin_wire::sse::{Decoder, Event, EventTooLong, encode_comment};

type Events = Vec<(String, String, String)>;

fn events(stream: &[u8], piece: usize) -> (Events, Option<u64>, Result<(), EventTooLong>) {
    let mut decoder = Decoder::new(512);
    let mut events = Vec::new();
    for mut piece in stream.chunks(piece) {
        while !piece.is_empty() {
            match decoder.decode(piece) {
                Ok((consumed, event)) => {
                    assert!(consumed > 0 && consumed <= piece.len());
                    if let Some(event) = event {
                        assert!(event.data.len() <= 3 * 512);
                        events.push((event.id.into(), event.event.into(), event.data.into()));
                    }
                    piece = &piece[consumed..];
                }
                Err(error) => return (events, decoder.retry_ms(), Err(error)),
            }
        }
    }
    (events, decoder.retry_ms(), Ok(()))
}

/// A client reads a stream.
pub fn decoder(data: &[u8]) {
    let Some((settings, data)) = super::settings(data) else { return };
    let whole = events(data, usize::MAX);
    let cut = events(data, usize::from(settings) % 16 + 1);
    assert_eq!(whole, cut);
}

/// A server writes an event whose fields hold anything.
pub fn event(data: &[u8]) {
    let text = String::from_utf8_lossy(&data[..data.len().min(256)]);
    let mut fields = text.splitn(3, '|');
    let (id, event) = (fields.next().unwrap_or_default(), fields.next());
    let data = fields.next().unwrap_or_default();
    let mut out = Vec::new();
    encode_comment(&mut out, data);
    Event { id: Some(id), event, data: Some(data.as_bytes()), retry_ms: None }.encode(&mut out);
    let (events, retry_ms, end) = events(&out, 7);
    // A line of data may be longer once the bytes that were no text are.
    if end.is_err() {
        return;
    }
    let without = |text: &str| text.replace(['\r', '\n', '\0'], "");
    let event = event.map(without).filter(|event| !event.is_empty());
    let lines = data.replace("\r\n", "\n").replace('\r', "\n");
    let expected = (without(id), event.unwrap_or_else(|| "message".into()), lines);
    assert_eq!((events, retry_ms), (vec![expected], None));
}
