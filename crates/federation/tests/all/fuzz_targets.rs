//! The bodies of the fuzz targets.

use dunlin_federation::{
    Event, FRAME_BYTES_MAX, Frame, FrameReader, LinkId, Message, NewLink, Peer, PeerConfig, Side,
};

type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[("federation_frame", frame), ("federation_link", link)];

/// Whatever is read as a frame is written as the same bytes; the place of cuts does not matter.
pub fn frame(data: &[u8]) {
    let mut reader = FrameReader::default();
    let mut whole = Vec::new();
    reader.push(data);
    while let Ok(Some(frame)) = reader.next(FRAME_BYTES_MAX) {
        frame.encode(&mut whole);
    }
    assert_eq!(whole, data[..whole.len()]);
    let (mut reader, mut cut) = (FrameReader::default(), Vec::new());
    'all: for piece in data.chunks(7) {
        reader.push(piece);
        loop {
            match reader.next(FRAME_BYTES_MAX) {
                Ok(Some(frame)) => frame.encode(&mut cut),
                Ok(None) => break,
                Err(_) => break 'all,
            }
        }
    }
    assert_eq!(whole, cut);
    if let Ok(message) = Message::decode(data) {
        assert_eq!(&*message.encode(), data);
    }
}

/// A peer says anything, and the other end does its work: the first byte chooses how many messages wait, each later one is a frame's.
pub fn link(data: &[u8]) {
    let Some((&first, data)) = data.split_first() else { return };
    let mut peer = Peer::new("a.example", "b.example", PeerConfig::default(), (5, 5));
    let body = Message { to: "bob".into(), ..Message::default() }.encode();
    for seq in 1..=u64::from(first % 8) {
        peer.push(0, seq, body.clone()).expect("an empty queue has room");
        peer.handle_stored(seq);
    }
    let (id, reader) = (LinkId(1), FrameReader::default());
    peer.handle_link(0, NewLink { id, side: Side::Dialer, begun_ms: 0, reader });
    let mut settled = 0;
    for (at, piece) in (0..).zip(data.chunks(64)) {
        peer.handle_data(at, id, piece);
        while let Some(event) = peer.poll_event() {
            match event {
                Event::Settled { .. } => settled += 1,
                Event::Deliver { stream, seq, .. } if first & 8 == 0 => {
                    peer.handle_taken(stream, seq, Ok(()));
                }
                Event::Taken { stream, taken } => peer.handle_taken_stored(stream, taken),
                _ => {}
            }
        }
        let mut out = Vec::new();
        peer.poll_transmit(at, &mut out, 1 << 16);
        let mut reader = FrameReader::default();
        reader.push(&out);
        while reader.next(FRAME_BYTES_MAX).expect("what is sent can be read").is_some() {}
        peer.handle_timeout(at);
    }
    assert!(settled <= u64::from(first % 8), "a message has one result");
    assert_eq!(peer.stats().queued as u64, u64::from(first % 8) - settled);
}

/// Seeds, from which the corpus is written.
#[test]
fn seeds_of_the_corpus_are_current() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut bytes = Vec::new();
    let body = Message { to: "bob".into(), data: b"{}".to_vec(), ..Message::default() }.encode();
    let resume = dunlin_federation::Resume {
        stream: 9,
        base: 1,
        known: 5,
        taken: 0,
        credit: 1 << 20,
        failures: vec![(1, 3)],
    };
    Frame::Resume(resume).encode(&mut bytes);
    let total = body.len() as u32;
    let whole = dunlin_federation::Fragment { seq: 1, total, bytes: &body };
    Frame::Fragment(whole).encode(&mut bytes);
    Frame::Skip { seq: 2 }.encode(&mut bytes);
    Frame::Failed { seq: 1, reason: 3 }.encode(&mut bytes);
    Frame::Ack { taken: 1 }.encode(&mut bytes);
    Frame::Credit { granted: 1 << 21 }.encode(&mut bytes);
    Frame::Ping.encode(&mut bytes);
    let with_first = [&[3], &bytes[..]].concat();
    for (target, seed) in [("federation_frame", &bytes), ("federation_link", &with_first)] {
        let path = folder.join(target).join("session");
        if std::env::var_os("DUNLIN_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(folder.join(target)).expect("the corpus is writable");
            std::fs::write(&path, seed).expect("the corpus is writable");
        }
        assert_eq!(&std::fs::read(&path).expect("a seed"), seed, "{target}");
    }
}
