//! Stories of slow readers, bursts and bounds.

use std::io::IoSlice;
use std::sync::Arc;

use crate::kit::{World, plain, publish, with_history};
use dunlin_hub::{
    ChannelOptions, ChannelRef, EncodingId, Event, HubConfig, NewSession, Outgoing, OverflowPolicy,
    PayloadFormat, SessionId, SubscribeOptions,
};

fn policy(overflow: OverflowPolicy) -> Arc<ChannelOptions> {
    Arc::new(ChannelOptions { overflow, ..ChannelOptions::default() })
}

/// A subscribed session that may have 100 bytes waiting, and whose socket takes nothing.
fn slow_reader(world: &mut World, channel: &str, options: &Arc<ChannelOptions>) -> SessionId {
    let new = NewSession { tag: 5, outbox_bytes_max: 100, ..NewSession::default() };
    let session = world.open_with(0, new);
    world.subscribe(session, channel, options, SubscribeOptions::default());
    world.hub(0).set_blocked(session, true);
    session
}

/// The socket takes `bytes` bytes; what they are.
fn take(world: &mut World, session: SessionId, bytes: usize) -> String {
    let hub = world.hub(session.worker());
    let mut slices = [IoSlice::new(&[]); 64];
    let filled = hub.outbox(session, &mut slices);
    let mut waiting: Vec<u8> =
        slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect();
    waiting.truncate(bytes);
    hub.advance(session, waiting.len());
    String::from_utf8(waiting).expect("text")
}

fn unblock(world: &mut World, session: SessionId) -> String {
    world.hub(session.worker()).set_blocked(session, false);
    world.read(session)
}

#[test]
fn a_burst_leaves_as_one_slice_for_every_subscriber() {
    let mut world = World::new(1);
    let sessions: Vec<SessionId> = (0..50).map(|_| world.open(0, "")).collect();
    for &session in &sessions {
        world.subscribe(session, "news", &plain(), SubscribeOptions::default());
    }
    let now = world.now;
    for n in 0..100 {
        world.hub(0).handle_publish(
            now,
            n,
            ChannelRef::new("news", &plain()),
            publish(&format!("{n:03}")),
        );
    }
    world.settle();
    // A reply to one of them in between is one more slice, for that one alone.
    let hub = world.hub(0);
    hub.push(sessions[7], |out| out.extend_from_slice(b"reply\n"));
    while let Some(flush) = hub.poll_flush() {
        let mut slices = [IoSlice::new(&[]); 4];
        let filled = hub.outbox(flush.session, &mut slices);
        assert_eq!(filled, if flush.session == sessions[7] { 2 } else { 1 });
        assert_eq!(slices[0].len(), 100 * "pub news 0 000\n".len());
        let bytes = hub.outbox_bytes(flush.session);
        hub.advance(flush.session, bytes);
    }
    assert_eq!(hub.stats().pending_bytes, 0);
    assert!(hub.stats().pending_memory_bytes < 300_000);
    assert_eq!(hub.stats().deliveries, 50 * 100);
}

#[test]
fn each_encoding_is_spelled_once_and_may_have_no_word() {
    let mut world = World::new(1);
    let options = Arc::new(ChannelOptions {
        join_leave: true,
        force_push_join_leave: true,
        ..ChannelOptions::default()
    });
    let open = |world: &mut World, encoding| {
        let new = NewSession { encoding: EncodingId(encoding), user: "u", ..NewSession::default() };
        let session = world.open_with(0, new);
        world.subscribe(session, "c", &options, SubscribeOptions::default());
        session
    };
    let speaks = open(&mut world, 0);
    let mute = open(&mut world, 1);
    assert_eq!(world.flush(0).len(), 1, "nothing to flush for who is sent nothing");
    world.publish(0, "c", &options, "x");
    let sent = world.flush(0);
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().any(|(flush, text)| flush.session == mute && text == "pub c 0 x\n"));
    assert!(sent.iter().any(|(flush, text)| flush.session == speaks && text == "pub c 0 x\n"));
}

#[test]
fn slow_session_is_disconnected() {
    let mut world = World::new(1);
    let options = policy(OverflowPolicy::Disconnect);
    let slow = slow_reader(&mut world, "c", &options);
    let quick = world.open(0, "");
    world.subscribe(quick, "c", &options, SubscribeOptions::default());
    world.publish(0, "c", &options, &"a".repeat(60));
    assert_eq!(take(&mut world, slow, 10), "pub c 0 aa");
    world.publish(0, "c", &options, &"b".repeat(60));
    assert!(world.take_events().is_empty(), "a burst; its socket may still take it");
    world.pass(1_000);
    world.publish(0, "c", &options, "late");
    let events = world.take_events();
    let [(0, Event::Disconnect { session, tag: 5, code: 3008, .. })] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(*session, slow);
    // Nothing follows but the rest of the frame that was cut, and the last word.
    world.publish(0, "c", &options, "late");
    assert!(!world.hub(0).push(slow, |_| panic!("no replies any more")));
    let rest = unblock(&mut world, slow);
    assert_eq!(rest, format!("{}\nbye 3008\n", "a".repeat(58)));
    let now = world.now;
    world.hub(0).close_session(now, slow);
    assert_eq!(world.hub(0).stats().slow_disconnects, 1);
    assert_eq!(world.hub(0).stats().subscriptions, 1);
    assert!(world.read(quick).ends_with("pub c 0 late\n"));
}

#[test]
fn a_burst_that_is_read_in_time_disconnects_nobody_and_one_beyond_all_bounds_does() {
    let mut world = World::new(1);
    let options = policy(OverflowPolicy::Disconnect);
    let reads = slow_reader(&mut world, "c", &options);
    let rests = slow_reader(&mut world, "c", &options);
    for _ in 0..5 {
        world.publish(0, "c", &options, &"a".repeat(60));
    }
    assert!(world.take_events().is_empty());
    assert_eq!(take(&mut world, reads, 300).len(), 300);
    world.pass(999);
    world.publish(0, "c", &options, "x");
    assert!(world.take_events().is_empty());
    world.pass(1);
    // From here the one that has read most of it has a second of its own again.
    world.publish(0, "c", &options, &"b".repeat(60));
    let events = world.take_events();
    assert!(
        matches!(&events[..], [(0, Event::Disconnect { session, .. })] if *session == rests),
        "{events:?}"
    );
    for _ in 0..5 {
        world.publish(0, "c", &options, &"c".repeat(60));
    }
    let events = world.take_events();
    assert!(
        matches!(&events[..], [(0, Event::Disconnect { session, .. })] if *session == reads),
        "four times the bound, whatever the time is: {events:?}"
    );
}

#[test]
fn the_oldest_make_room_and_a_mark_stands_in_their_place() {
    let mut world = World::new(1);
    let options = policy(OverflowPolicy::DropOldest);
    let slow = slow_reader(&mut world, "c", &options);
    for n in 1..=4 {
        world.publish(0, "c", &options, &format!("{n}{}", "x".repeat(11)));
    }
    assert_eq!(take(&mut world, slow, 5), "pub c");
    world.hub(0).push(slow, |out| out.extend_from_slice(b"reply\n"));
    for n in 5..=9 {
        world.publish(0, "c", &options, &format!("{n}{}", "x".repeat(11)));
    }
    assert!(world.hub(0).outbox_bytes(slow) <= 100);
    assert_eq!(world.hub(0).stats().dropped, 6);
    let rest = unblock(&mut world, slow);
    let x = "x".repeat(11);
    assert_eq!(
        rest,
        format!(" 0 1{x}\nmissed c 3\nreply\nmissed c 3\npub c 0 8{x}\npub c 0 9{x}\n",),
        "the cut frame ends, replies stay, and the newest are there"
    );
    assert!(world.take_events().is_empty());
    world.publish(0, "c", &options, "next");
    assert_eq!(world.read(slow), "pub c 0 next\n", "reported once");
}

#[test]
fn the_latest_of_each_key_stays() {
    let mut world = World::new(1);
    let options = policy(OverflowPolicy::KeepLatest);
    let slow = slow_reader(&mut world, "c", &options);
    for (key, data) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("a", "a3"), ("c", "c1")] {
        let publish = dunlin_hub::NewPublication { key: Some(key.into()), ..publish(data) };
        world.publish_with(0, "c", &options, publish);
    }
    for n in 4..=9 {
        let publish =
            dunlin_hub::NewPublication { key: Some("a".into()), ..publish(&format!("a{n}")) };
        world.publish_with(0, "c", &options, publish);
    }
    let rest = unblock(&mut world, slow);
    assert!(rest.starts_with("missed c "), "{rest}");
    assert!(rest.contains("b1") && rest.contains("c1") && rest.ends_with("a9\n"), "{rest}");
    let kept = rest.lines().filter(|line| line.starts_with("pub")).count() as u64;
    assert_eq!(rest.lines().next(), Some(&*format!("missed c {}", 11 - kept)));
}

#[test]
fn a_frame_larger_than_the_bound_is_sent_by_itself() {
    let mut world = World::new(1);
    let options = policy(OverflowPolicy::Disconnect);
    let new = NewSession { outbox_bytes_max: 100, ..NewSession::default() };
    let session = world.open_with(0, new);
    world.subscribe(session, "c", &options, SubscribeOptions::default());
    world.publish(0, "c", &options, &"y".repeat(5_000));
    assert!(world.hub(0).wants_flush());
    assert_eq!(world.read(session).len(), "pub c 0 \n".len() + 5_000);
    assert!(!world.hub(0).wants_flush());
}

#[test]
fn a_burst_between_two_flushes_is_not_slowness() {
    let mut world = World::new(1);
    let options = policy(OverflowPolicy::Disconnect);
    let new = NewSession { outbox_bytes_max: 100, ..NewSession::default() };
    let session = world.open_with(0, new);
    world.subscribe(session, "c", &options, SubscribeOptions::default());
    let mut published = 0;
    while !world.hub(0).wants_flush() {
        world.publish(0, "c", &options, "0123456789");
        published += 1;
    }
    assert!((3..10).contains(&published));
    for _ in 0..10 {
        world.publish(0, "c", &options, "0123456789");
    }
    assert!(world.hub(0).session(session).is_some_and(|session| !session.closing));
    assert_eq!(world.read(session).lines().count(), published + 10);
}

#[test]
fn the_longest_slow_pays_first_when_memory_is_used_up() {
    let config = HubConfig { pending_bytes_max: 400_000, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let keep = policy(OverflowPolicy::Disconnect);
    let drop = policy(OverflowPolicy::DropOldest);
    let sessions: Vec<SessionId> = (0..6)
        .map(|n| {
            let options = if n % 2 == 0 { &keep } else { &drop };
            let session = world.open(0, "");
            world.subscribe(session, &format!("c{n}"), options, SubscribeOptions::default());
            world.hub(0).set_blocked(session, true);
            session
        })
        .collect();
    for round in 0..40 {
        for n in 0..6 {
            let options = if n % 2 == 0 { &keep } else { &drop };
            world.publish(0, &format!("c{n}"), options, &"z".repeat(4_000));
        }
        let memory = world.hub(0).stats().pending_memory_bytes;
        assert!(memory < 600_000, "round {round}: {memory}");
    }
    let closing: Vec<bool> = sessions
        .iter()
        .map(|&session| world.hub(0).session(session).is_some_and(|session| session.closing))
        .collect();
    assert!(closing[0] && !closing[1] && !closing[3] && !closing[5], "{closing:?}");
    let text = unblock(&mut world, sessions[1]);
    assert!(text.starts_with("missed c1 "), "{}", &text[..40]);
    assert_eq!(unblock(&mut world, sessions[0]), "bye 3008\n");
    let now = world.now;
    for session in sessions {
        world.hub(0).close_session(now, session);
    }
    let stats = world.hub(0).stats();
    assert_eq!(stats.pending_bytes, 0);
    assert!(stats.pending_memory_bytes < 250_000, "{}", stats.pending_memory_bytes);
}

#[test]
fn a_slow_reader_of_scattered_messages_does_not_pin_the_log() {
    let mut world = World::new(1);
    let slow = world.open(0, "");
    world.subscribe(slow, "mine", &plain(), SubscribeOptions::default());
    world.hub(0).set_blocked(slow, true);
    let quick = world.open(0, "");
    world.subscribe(quick, "busy", &plain(), SubscribeOptions::default());
    for _ in 0..200 {
        world.publish(0, "mine", &plain(), "small");
        for _ in 0..16 {
            world.publish(0, "busy", &plain(), &"w".repeat(5_000));
        }
        world.flush(0);
    }
    // 200 small messages between 16 MB of others, which fill more than 200 chunks.
    let stats = world.hub(0).stats();
    assert!(stats.pending_memory_bytes < 40 * 66_000, "{}", stats.pending_memory_bytes);
    assert_eq!(unblock(&mut world, slow).lines().count(), 200);
}

#[test]
fn a_held_session_hears_its_answer_first() {
    let mut world = World::new(1);
    let session = world.open_with(0, NewSession { held: true, ..NewSession::default() });
    world.subscribe(session, "c", &plain(), SubscribeOptions::default());
    world.publish(0, "c", &plain(), "early");
    assert_eq!(world.flush(0), []);
    assert!(world.hub(0).release(session, |out| out.extend_from_slice(b"connected\n")));
    assert!(!world.hub(0).release(session, |_| panic!("only once")));
    assert_eq!(world.read(session), "connected\npub c 0 early\n");
}

#[test]
fn a_long_poll_is_woken_once_for_a_burst() {
    let mut world = World::new(2);
    let options = with_history();
    let new = NewSession { tag: 42, poll: true, ..NewSession::default() };
    let poll = world.open_with(1, new);
    let first = world.subscribe(poll, "c", &options, SubscribeOptions::default()).position;
    assert_eq!(world.flush(1), []);
    for n in 0..3 {
        world.publish(0, "c", &options, &format!("m{n}"));
    }
    let sent = world.flush(1);
    assert_eq!(sent.len(), 1);
    assert!(sent[0].0.poll && sent[0].0.tag == 42);
    let cursor = world.hub(1).position(poll, "c").expect("subscribed");
    assert_eq!((cursor.offset, cursor.epoch), (3, first.epoch));
    let now = world.now;
    world.hub(1).close_session(now, poll);
    world.settle();
    world.publish(0, "c", &options, "m3");
    // The next poll comes to another worker with the cursor it was given.
    let next = world.open_with(0, NewSession { poll: true, ..NewSession::default() });
    let subscribe = SubscribeOptions { recover: Some(cursor), ..SubscribeOptions::default() };
    let subscribed = world.subscribe(next, "c", &options, subscribe);
    assert!(subscribed.recovered);
    assert_eq!(crate::kit::offsets(&subscribed.publications), [4]);
}

#[test]
fn nothing_is_sent_to_a_stale_session() {
    let mut world = World::new(1);
    let old = world.open(0, "");
    world.subscribe(old, "c", &plain(), SubscribeOptions::default());
    world.publish(0, "c", &plain(), "for the old one");
    let now = world.now;
    world.hub(0).close_session(now, old);
    // Slots are used again only after many others; the generation differs then.
    let mut new = world.open(0, "");
    while new.slot() != old.slot() {
        world.hub(0).close_session(now, new);
        new = world.open(0, "");
    }
    assert_ne!(new, old);
    let hub = world.hub(0);
    assert!(!hub.push(old, |_| panic!("stale")));
    assert!(!hub.send(old, &Outgoing::Message { data: b"1", format: PayloadFormat::Json }));
    assert_eq!(hub.outbox(old, &mut [IoSlice::new(&[])]), 0);
    hub.advance(old, 10);
    hub.set_blocked(old, true);
    hub.disconnect_session(now, old, 3000, "x");
    hub.close_session(now, old);
    assert!(hub.session(old).is_none());
    assert!(hub.session(new).is_some_and(|session| !session.blocked && !session.closing));
    assert_eq!(world.flush(0), []);
    assert_eq!(world.hub(0).stats().pending_bytes, 0);
}

/// The current chunks of all encodings take more than this bound; dropping frames would not free them.
#[test]
fn a_client_held_for_its_greeting_does_not_pay_for_memory_that_nobody_waits_for() {
    let bytes_max = 100_000;
    let mut world =
        World::with_config(HubConfig { pending_bytes_max: bytes_max, ..HubConfig::default() });
    for encoding in 0..4 {
        let other = NewSession { encoding: EncodingId(encoding), ..NewSession::default() };
        let other = world.open_with(0, other);
        world.subscribe(other, "room", &with_history(), SubscribeOptions::default());
    }
    world.publish(0, "room", &with_history(), "hi");
    world.flush(0);
    assert!(world.hub(0).stats().pending_memory_bytes > bytes_max as u64);
    assert!(!world.hub(0).wants_flush(), "nothing waits");
    let held = world.open_with(0, NewSession { held: true, ..NewSession::default() });
    world.subscribe(held, "room", &with_history(), SubscribeOptions::default());
    world.publish(0, "room", &with_history(), "ho");
    world.take_events();
    assert!(world.hub(0).release(held, |out| out.extend_from_slice(b"hello\n")));
    assert_eq!(world.read(held), "hello\npub room 2 ho\n");
    assert_eq!(world.hub(0).stats().slow_disconnects, 0);
}
