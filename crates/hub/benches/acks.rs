//! What acknowledgements cost a worker: `cargo bench -p dunlin-hub --bench acks`.
//!
//! One hub, without sockets and without an engine: commands of clients go in, answers come out. Each user has an inbox and two
//! devices. Memory is what the hub counts, which a test compares with what its records take.

use std::sync::Arc;
use std::time::Instant;

use dunlin_hub::{
    AckOptions, ChannelOptions, ChannelRef, CursorOwner, Encode, EncodingId, Epoch, Event, Hub,
    HubConfig, NewPublication, Now, Outgoing, StreamPosition,
};

const USERS: usize = 50_000;
const MESSAGES: u64 = 10;
const DEVICES: [&str; 2] = ["phone", "laptop"];

struct Nothing;

impl Encode for Nothing {
    fn encode(&mut self, _: EncodingId, _: &Outgoing<'_>, _: &mut Vec<u8>) {}

    fn encode_delta(&mut self, _: &[u8], _: &[u8], _: &mut Vec<u8>) {}
}

/// Takes the answers; returns how many acknowledgements were stored.
fn answers(hub: &mut Hub) -> usize {
    let mut stored = 0;
    while let Some(event) = hub.poll_event() {
        if let Event::Cursor { result, .. } = event {
            stored += usize::from(result.is_ok_and(|state| state.advanced));
        }
    }
    stored
}

fn main() {
    let config = HubConfig { workers: 1, channels_max: 1 << 20, ..HubConfig::default() };
    let mut hub = Hub::new(config, Box::new(Nothing));
    let now = Now { ms: 1_000_000, unix_ms: 1_700_000_000_000 };
    let ack = AckOptions {
        by_user: false,
        ttl_ms: 86_400_000,
        devices_max: 16,
        bytes_max: None,
        timeout_ms: 30_000,
        window: 100,
        deliveries_max: 5,
    };
    let options = Arc::new(ChannelOptions {
        history_size: 100,
        history_ttl_ms: 86_400_000,
        ack: Some(ack),
        ..ChannelOptions::default()
    });
    let users: Vec<_> = (0..USERS).map(|user| format!("user-{user:06}")).collect();
    let channels: Vec<_> = users.iter().map(|user| format!("inbox:{user}")).collect();
    for channel in &channels {
        for _ in 0..MESSAGES {
            let message = NewPublication { data: b"1"[..].into(), ..NewPublication::default() };
            hub.handle_publish(now, 1, ChannelRef::new(channel, &options), message);
            answers(&mut hub);
        }
    }
    let mut names = 0;
    for offset in 1..=MESSAGES {
        let (began, mut stored) = (Instant::now(), 0);
        for (user, channel) in users.iter().zip(&channels) {
            for device in DEVICES {
                let owner = CursorOwner { user: (**user).into(), device: device.into() };
                let acked = Some(StreamPosition { offset, epoch: Epoch::NONE });
                hub.handle_cursor(now, 1, ChannelRef::new(channel, &options), owner, acked);
                stored += answers(&mut hub);
                names += device.len() * usize::from(offset == 1);
            }
            names += (user.len() + channel.len() + 1) * usize::from(offset == 1);
        }
        assert_eq!(stored, USERS * DEVICES.len(), "each moves a cursor");
        let per_s = stored as f64 / began.elapsed().as_secs_f64();
        let what = if offset == 1 { "new cursors" } else { "acknowledgements" };
        println!("{what:<18} {per_s:>12.0} a second and core");
    }
    let bytes = hub.stats().cursor_bytes as usize;
    let each = (bytes - names) as f64 / (USERS * DEVICES.len()) as f64;
    println!(
        "idle cursor        {each:>12.1} bytes a device beyond the names, {} devices a user",
        DEVICES.len()
    );
}
