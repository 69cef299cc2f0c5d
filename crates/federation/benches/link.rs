//! What the machines of a link cost, both ends on one core and without sockets: `cargo bench -p dunlin-federation`.
//!
//! The floor is a copy of the same bytes. A message is encoded, queued, framed, read, decoded, taken, acknowledged and settled.

use std::time::Instant;

use dunlin_federation::{Event, FrameReader, LinkId, Message, NewLink, Peer, PeerConfig, Side};

const MESSAGES: u64 = 1_000_000;
const BATCH: u64 = 1_000;

fn main() {
    for bytes in [100, 1_000, 20_000] {
        let count = MESSAGES * 100 / bytes.max(100) as u64;
        let data = vec![b'x'; bytes];
        let began = Instant::now();
        let mut copied = Vec::new();
        for _ in 0..count {
            copied.clear();
            copied.extend_from_slice(std::hint::black_box(&data));
            std::hint::black_box(&copied);
        }
        let floor_s = began.elapsed().as_secs_f64();
        let link_s = run(count, &data);
        println!(
            "{bytes:>6} B: {:>9.0} messages/s and core, {:.0} ns each; a copy takes {:.0} ns",
            count as f64 / link_s,
            link_s * 1e9 / count as f64,
            floor_s * 1e9 / count as f64,
        );
    }
}

fn run(count: u64, data: &[u8]) -> f64 {
    let config = PeerConfig { queue_bytes_max: 1 << 30, ..PeerConfig::default() };
    let mut sender = Peer::new("a.example", "b.example", config, (1, 1));
    let mut receiver = Peer::new("b.example", "a.example", config, (2, 2));
    let id = LinkId(1);
    let link = |side| NewLink { id, side, begun_ms: 0, reader: FrameReader::default() };
    sender.handle_link(0, link(Side::Dialer));
    receiver.handle_link(0, link(Side::Listener));
    let message = Message {
        from: "alice".into(),
        to: "bob".into(),
        data: data.to_vec(),
        ..Message::default()
    };
    let began = Instant::now();
    let (mut up, mut down, mut sent, mut settled) = (Vec::new(), Vec::new(), 0, 0);
    while settled < count {
        for _ in 0..BATCH.min(count - sent) {
            let seq = sender.next_seq();
            if sender.push(0, seq, message.encode()).is_err() {
                break;
            }
            sender.handle_stored(seq);
            sent += 1;
        }
        up.clear();
        sender.poll_transmit(0, &mut up, 256 << 10);
        receiver.handle_data(0, id, &up);
        while let Some(event) = receiver.poll_event() {
            match event {
                Event::Deliver { stream, seq, message } => {
                    std::hint::black_box(&message);
                    receiver.handle_taken(stream, seq, Ok(()));
                }
                Event::Taken { stream, taken } => receiver.handle_taken_stored(stream, taken),
                _ => {}
            }
        }
        down.clear();
        receiver.poll_transmit(0, &mut down, 256 << 10);
        sender.handle_data(0, id, &down);
        while let Some(event) = sender.poll_event() {
            settled += u64::from(matches!(event, Event::Settled { .. }));
        }
    }
    began.elapsed().as_secs_f64()
}
