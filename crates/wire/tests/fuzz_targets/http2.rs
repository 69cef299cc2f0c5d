//! HTTP/2: whatever a server sends, a client keeps its bounds and its accounts.

use std::collections::BTreeSet;

use dunlin_wire::http2::client::{Config, Connection, Event};
use dunlin_wire::http2::hpack::{Decoder, Encoder, Indexing};
use dunlin_wire::http2::{HeaderAssembly, frame};

/// Frames and the header blocks in them, as both ends read them.
pub fn frames(data: &[u8]) {
    let mut headers = HeaderAssembly::new(1_000);
    let mut decoder = Decoder::new(4_096);
    let mut at = 0;
    loop {
        match frame::decode(&data[at..], 16_384) {
            Ok(Some((frame, length))) => {
                assert!((9..=data.len() - at).contains(&length));
                for cut in [0, 8, length - 1] {
                    let cut = frame::decode(&data[at..at + cut.min(length - 1)], 16_384);
                    assert!(!matches!(cut, Ok(Some(_))));
                }
                match headers.handle_frame(&frame) {
                    Ok(Some(block)) => {
                        assert!(block.block.len() <= 1_000);
                        if decoder.decode(block.block, 4_096, |_, _| ()).is_err() {
                            return;
                        }
                    }
                    Ok(None) => {}
                    Err(_) => return,
                }
                at += length;
            }
            Ok(None) | Err(_) => return,
        }
    }
}

/// A header block: what can be read is written and read again.
pub fn hpack(data: &[u8]) {
    let mut decoder = Decoder::new(4_096);
    let mut fields = Vec::new();
    let mut bytes = 0;
    let result = decoder.decode(data, 4_096, |name, value| {
        bytes += name.len() + value.len() + 32;
        fields.push((name.to_vec(), value.to_vec()));
    });
    assert!(bytes <= 4_096);
    if result.is_err() {
        return;
    }
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4_096));
    for _ in 0..2 {
        let mut block = Vec::new();
        for (name, value) in &fields {
            encoder.encode(&mut block, name, value, Indexing::Table);
        }
        let mut read = Vec::new();
        let again =
            decoder.decode(&block, 4_096, |name, value| read.push((name.to_vec(), value.to_vec())));
        assert_eq!((again, &read), (Ok(()), &fields));
    }
}

/// A client with a few requests under way.
pub fn client(data: &[u8]) {
    let Some((settings, data)) = super::settings(data) else { return };
    let config = Config {
        streams_before_settings: 8,
        body_bytes_max: 1_000,
        idle_frames_max: 50,
        ..Config::default()
    };
    let mut client = Connection::new(config);
    let mut open = BTreeSet::new();
    for index in 0..8 {
        let stream = client.open(vec![0u8; index * 5_000], |_| ());
        open.insert(stream.expect("eight are allowed"));
    }
    for piece in data.chunks(usize::from(settings) + 1) {
        let result = client.handle_bytes(piece);
        while let Some(event) = client.poll_event() {
            // A stream ends once, and only one that was open.
            match event {
                Event::Response { stream, response } => {
                    assert!(open.remove(&stream));
                    assert!((200..1_000).contains(&response.status));
                    assert!(response.body.len() <= 1_000);
                }
                Event::Refused { stream } | Event::Reset { stream, .. } => {
                    assert!(open.remove(&stream));
                }
                Event::Settings | Event::GoAway { .. } | Event::Pong(_) => {}
            }
        }
        let streams: BTreeSet<u32> = client.open_streams().map(|(stream, _)| stream).collect();
        assert_eq!(streams, open);
        if result.is_err() {
            return assert!(client.is_closing());
        }
    }
    let sent = client.transmit();
    assert!(sent.len() < 300_000, "{} bytes to transmit", sent.len());
}
