//! Bytes per session and subscription, as the allocator counts them.

mod kit;

use std::alloc::System;
use std::sync::Arc;

use dunlin_hub::{
    ChannelOptions, ChannelRef, Hub, HubConfig, NewSession, Now, SessionId, SubscribeOptions,
};
use kit::Lines;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const NOW: Now = Now { ms: 1, unix_ms: 1 };

/// Bytes `build` keeps for each of `count`. The only test of its file, as the allocator counts
/// for the whole process.
fn bytes_each(count: usize, build: impl FnOnce()) -> usize {
    let region = Region::new(ALLOCATOR);
    build();
    let change = region.change();
    let net = change.bytes_allocated as isize - change.bytes_deallocated as isize;
    usize::try_from(net).expect("something was kept") / count
}

fn subscribe(hub: &mut Hub, options: &Arc<ChannelOptions>, user: &str, channel: &str) -> SessionId {
    let session =
        hub.open_session(NOW, NewSession { user, ..NewSession::default() }).expect("room");
    hub.handle_subscribe(
        NOW,
        0,
        session,
        ChannelRef::new(channel, options),
        SubscribeOptions::default(),
    );
    while hub.poll_event().is_some() {}
    session
}

#[test]
fn a_session_and_its_subscription_are_small() {
    let options = Arc::new(ChannelOptions::default());
    let mut hub = Hub::new(HubConfig::default(), Box::new(Lines));
    let mut sessions = Vec::with_capacity(19_000);

    // A room that everybody is in. The vectors' last doubling is included.
    let shared = bytes_each(19_000, || {
        for _ in 0..19_000 {
            sessions.push(subscribe(&mut hub, &options, "", "room"));
        }
    });
    assert!(shared <= 110, "{shared} bytes a session with one subscription");

    // A message to everybody leaves nothing behind but the log's own chunk.
    let burst = bytes_each(1, || {
        for _ in 0..3 {
            let publish = kit::publish("x");
            hub.handle_publish(NOW, 0, ChannelRef::new("room", &options), publish);
            while hub.poll_event().is_some() {}
            while let Some(flush) = hub.poll_flush() {
                let bytes = hub.outbox_bytes(flush.session);
                hub.advance(flush.session, bytes);
            }
        }
    });
    assert!(burst < 400_000, "{burst} bytes kept by a flushed burst");

    // Each in a channel of its own: the channel's two records, its name and indices on top.
    let alone = bytes_each(19_000, || {
        for n in 0..19_000 {
            sessions.push(subscribe(&mut hub, &options, "", &format!("user:{n}")));
        }
    });
    assert!(alone <= 400, "{alone} bytes a session alone in its channel");

    // With a name: the user's record.
    let named = bytes_each(19_000, || {
        for n in 0..19_000 {
            sessions.push(subscribe(&mut hub, &options, &format!("user-{n}"), "room"));
        }
    });
    assert!(named <= 200, "{named} bytes a session of a named user");

    // In presence, in rooms of a hundred, and each of a user of his own: two words in the room's table beside the user.
    let with_presence = ChannelOptions { presence: true, ..ChannelOptions::default() };
    let with_presence = Arc::new(with_presence);
    let present = bytes_each(19_000, || {
        for n in 0..19_000 {
            let (user, channel) = (format!("member-{n}"), format!("hall:{}", n % 190));
            sessions.push(subscribe(&mut hub, &with_presence, &user, &channel));
        }
    });
    assert!(present <= 220, "{present} bytes a session of a named user in presence");

    // Messages in a history: one allocation each, and a place in the channel's list.
    let kept = Arc::new(ChannelOptions {
        history_size: 20,
        history_ttl_ms: 60_000,
        ..ChannelOptions::default()
    });
    let mut publish = |n: usize| {
        let publish = kit::publish(&"x".repeat(77));
        hub.handle_publish(NOW, 0, ChannelRef::new(&format!("kept:{n}"), &kept), publish);
        while hub.poll_event().is_some() {}
    };
    (0..500).for_each(&mut publish);
    let stored = bytes_each(500 * 19, || (0..19).for_each(|_| (0..500).for_each(&mut publish)));
    assert!(stored <= 130, "{stored} bytes a message of 77");
    println!(
        "{shared} shared, {alone} alone, {named} named, {present} present, {stored} stored, {burst} after a burst"
    );

    // Large messages for many who do not read are there once, not once for each.
    let deaf: Vec<SessionId> = (0..50)
        .map(|_| {
            let session = subscribe(&mut hub, &options, "", "deaf");
            hub.push(session, |out| out.extend_from_slice(b"x"));
            hub.set_blocked(session, true);
            session
        })
        .collect();
    let region = Region::new(ALLOCATOR);
    for _ in 0..34 {
        let publish = kit::publish(&"x".repeat(100 << 10));
        hub.handle_publish(NOW, 0, ChannelRef::new("deaf", &options), publish);
        while hub.poll_event().is_some() {}
    }
    let copied = region.change().bytes_allocated;
    assert!(copied < 30 << 20, "{copied} bytes for 34 messages of 100 KiB to 50 sessions");
    sessions.extend(deaf);

    for session in sessions {
        hub.close_session(NOW, session);
    }
    while hub.poll_event().is_some() {}
    let stats = hub.stats();
    assert_eq!((stats.sessions, stats.subscriptions, stats.users), (0, 0, 0));
    assert_eq!((stats.channels, stats.home_channels), (0, 500));
}
