//! Stories of subscribers and publishers.

use std::sync::Arc;

use crate::kit::{World, offsets, plain, publish, with_history};
use dunlin_hub::{
    ChannelOptions, ChannelPattern, ChannelRef, EncodingId, Epoch, Error, Event, HistoryFilter,
    HubConfig, NewPublication, NewSession, Owner, SessionId, StreamPosition, SubscribeOptions,
};

#[test]
fn a_message_reaches_subscribers_of_every_worker_once() {
    let mut world = World::new(3);
    let options = with_history();
    let readers: Vec<SessionId> = (0..3).map(|worker| world.open(worker, "")).collect();
    for &reader in &readers {
        let subscribed = world.subscribe(reader, "news", &options, SubscribeOptions::default());
        assert_eq!(subscribed.position.offset, 0);
        assert!(!subscribed.position.epoch.is_none());
        assert!(subscribed.recoverable && subscribed.positioned);
    }
    let published = world.publish(1, "news", &options, "hello");
    assert_eq!(published.position.offset, 1);
    assert_eq!(world.publish(2, "news", &options, "again").position.offset, 2);
    for reader in readers {
        assert_eq!(world.read(reader), "pub news 1 hello\npub news 2 again\n");
        assert_eq!(world.read(reader), "");
    }
}

#[test]
fn the_answer_precedes_the_first_message_whatever_is_handled_between() {
    let mut world = World::new(1);
    let reader = world.open(0, "");
    let now = world.now;
    let options = with_history();
    let hub = world.hub(0);
    hub.handle_subscribe(
        now,
        1,
        reader,
        ChannelRef::new("news", &options),
        SubscribeOptions::default(),
    );
    // The caller is slow to take the event and publishes first.
    hub.handle_publish(now, 2, ChannelRef::new("news", &options), publish("early"));
    assert!(hub.poll_flush().is_none());
    let Some(Event::Subscribed { token: 1, result: Ok(subscribed), .. }) = hub.poll_event() else {
        panic!("the subscription comes first");
    };
    assert_eq!(subscribed.position.offset, 0);
    hub.push(reader, |out| out.extend_from_slice(b"answer\n"));
    assert!(matches!(hub.poll_event(), Some(Event::Published { token: 2, result: Ok(_) })));
    assert_eq!(world.read(reader), "answer\npub news 1 early\n");
}

#[test]
fn a_second_subscriber_is_answered_without_asking_home() {
    let mut world = World::new(2);
    let channel = world.channel_at(1, "room:");
    let options = with_history();
    let first = world.open(0, "");
    world.subscribe(first, &channel, &options, SubscribeOptions::default());
    world.publish(0, &channel, &options, "one");
    let second = world.open(0, "");
    let now = world.now;
    world.hub(0).handle_subscribe(
        now,
        9,
        second,
        ChannelRef::new(&channel, &options),
        SubscribeOptions::default(),
    );
    let event = world.hub(0).poll_event();
    let Some(Event::Subscribed { token: 9, result: Ok(subscribed), .. }) = event else {
        panic!("answered at once: {event:?}");
    };
    assert_eq!(subscribed.position.offset, 1);
    assert!(world.hub(0).poll_transmit().is_none());
    assert_eq!(world.hub(0).position(second, &channel), Some(subscribed.position));
}

#[test]
fn returning_client_gets_the_missed_publications_and_no_others() {
    let mut world = World::new(2);
    let options = with_history();
    let reader = world.open(0, "");
    let start = world.subscribe(reader, "news", &options, SubscribeOptions::default()).position;
    for n in 1..=5 {
        world.publish(1, "news", &options, &format!("m{n}"));
    }
    let now = world.now;
    world.hub(0).close_session(now, reader);
    world.settle();

    let back = world.open(1, "");
    let recover = Some(StreamPosition { offset: 2, ..start });
    let subscribe = SubscribeOptions { recover, ..SubscribeOptions::default() };
    let subscribed = world.subscribe(back, "news", &options, subscribe);
    assert!(subscribed.recovered && subscribed.was_recovering);
    assert_eq!(offsets(&subscribed.publications), [3, 4, 5]);
    assert_eq!(subscribed.position.offset, 5);
    world.publish(1, "news", &options, "m6");
    assert_eq!(world.read(back), "pub news 6 m6\n");

    // The same with another subscriber on the worker already, and from the very top.
    for (since, expected) in [(2, vec![3, 4, 5, 6]), (6, vec![])] {
        let other = world.open(1, "");
        let recover = Some(StreamPosition { offset: since, ..start });
        let subscribe = SubscribeOptions { recover, ..SubscribeOptions::default() };
        let subscribed = world.subscribe(other, "news", &options, subscribe);
        assert!(subscribed.recovered);
        assert_eq!(offsets(&subscribed.publications), expected);
    }

    // An epoch of another incarnation, or more than the history holds: not recovered, nothing sent.
    for (offset, epoch) in [(2, Epoch::FOREIGN), (2, Epoch::from_u64(99)), (7, start.epoch)] {
        let other = world.open(1, "");
        let recover = Some(StreamPosition { offset, epoch });
        let subscribe = SubscribeOptions { recover, ..SubscribeOptions::default() };
        let subscribed = world.subscribe(other, "news", &options, subscribe);
        assert!(subscribed.was_recovering && !subscribed.recovered);
        assert_eq!(subscribed.publications, []);
        assert_eq!(subscribed.position.offset, 6);
    }
}

#[test]
fn history_holds_so_many_for_so_long() {
    let mut world = World::new(2);
    let options = Arc::new(ChannelOptions {
        history_size: 3,
        history_ttl_ms: 10_000,
        history_meta_ttl_ms: 60_000,
        ..ChannelOptions::default()
    });
    for n in 1..=5 {
        world.publish(0, "news", &options, &format!("m{n}"));
    }
    let read = |world: &mut World, filter| {
        let now = world.now;
        world.hub(1).handle_history(now, 5, ChannelRef::new("news", &options), filter, Owner::NONE);
        world.settle();
        match world.take_events().pop() {
            Some((1, Event::History { token: 5, result })) => result,
            other => panic!("{other:?}"),
        }
    };
    let all = read(&mut world, HistoryFilter::default()).expect("history");
    assert_eq!(offsets(&all.publications), [3, 4, 5]);
    assert_eq!(all.position.offset, 5);
    let reverse = HistoryFilter { reverse: true, limit: Some(2), ..HistoryFilter::default() };
    assert_eq!(offsets(&read(&mut world, reverse).expect("history").publications), [5, 4]);
    let foreign = StreamPosition { offset: 1, epoch: Epoch::FOREIGN };
    let filter = HistoryFilter { since: Some(foreign), ..HistoryFilter::default() };
    assert_eq!(read(&mut world, filter), Err(Error::UnrecoverablePosition(all.position)));

    world.pass(9_999);
    assert_eq!(read(&mut world, HistoryFilter::default()).expect("kept").publications.len(), 3);
    world.pass(1);
    let expired = read(&mut world, HistoryFilter::default()).expect("history");
    assert_eq!((expired.publications.len(), expired.position), (0, all.position));
    assert_eq!(world.publish(0, "news", &options, "m6").position.offset, 6);

    let now = world.now;
    world.hub(0).handle_history_remove(now, 6, ChannelRef::new("news", &options));
    world.settle();
    let removed = Event::HistoryRemoved { token: 6, result: Ok(()) };
    assert_eq!(world.take_events(), [(0, removed)]);
    let removed = read(&mut world, HistoryFilter::default()).expect("history");
    assert_eq!((removed.publications.len(), removed.position.offset), (0, 6));

    // The meta time-to-live counts from the last read: then the stream begins anew.
    world.pass(60_000);
    let anew = read(&mut world, HistoryFilter::default()).expect("history");
    assert_eq!(anew.position.offset, 0);
    assert_ne!(anew.position.epoch, all.position.epoch);
    assert_eq!(world.hubs.iter().map(|hub| hub.stats().history_bytes).sum::<u64>(), 0);
}

#[test]
fn a_stream_does_not_end_under_its_subscribers() {
    let mut world = World::new(2);
    let options = Arc::new(ChannelOptions {
        history_meta_ttl_ms: 1_000,
        ..ChannelOptions::clone(&with_history())
    });
    let reader = world.open(0, "");
    let start = world.subscribe(reader, "news", &options, SubscribeOptions::default()).position;
    for _ in 0..10 {
        world.pass(1_000);
    }
    let published = world.publish(1, "news", &options, "late").position;
    assert_eq!((published.offset, published.epoch), (1, start.epoch));
    assert_eq!(world.read(reader), "pub news 1 late\n");
}

#[test]
fn the_same_key_publishes_once() {
    let mut world = World::new(2);
    let options = with_history();
    let reader = world.open(0, "");
    world.subscribe(reader, "news", &options, SubscribeOptions::default());
    let keyed = || NewPublication { idempotency_key: Some("k1".into()), ..publish("once") };
    let first = world.publish_with(0, "news", &options, keyed());
    let second = world.publish_with(1, "news", &options, keyed());
    assert!(!first.suppressed && second.suppressed);
    assert_eq!(first.position, second.position);
    assert!(!world.publish_with(1, "other", &options, keyed()).suppressed);
    assert_eq!(world.read(reader), "pub news 1 once\n");
    world.pass(5 * 60 * 1000);
    assert!(!world.publish_with(1, "news", &options, keyed()).suppressed);
}

#[test]
fn an_older_version_is_suppressed() {
    let mut world = World::new(1);
    let options = with_history();
    let versioned = |version| NewPublication { version, ..publish("state") };
    assert!(!world.publish_with(0, "news", &options, versioned(2)).suppressed);
    let older = world.publish_with(0, "news", &options, versioned(1));
    assert!(older.suppressed);
    assert_eq!(older.position.offset, 1);
    assert_eq!(world.publish_with(0, "news", &options, versioned(3)).position.offset, 2);
}

#[test]
fn without_history_there_are_no_offsets() {
    let mut world = World::new(2);
    let reader = world.open(0, "");
    let subscribed = world.subscribe(reader, "chat", &plain(), SubscribeOptions::default());
    assert_eq!(subscribed.position, StreamPosition::default());
    assert_eq!(world.publish(1, "chat", &plain(), "hi").position, StreamPosition::default());
    let skipped = NewPublication { skip_history: true, ..publish("skip") };
    let published = world.publish_with(1, "chat", &with_history(), skipped);
    assert_eq!(published.position.offset, 0);
    assert_eq!(world.read(reader), "pub chat 0 hi\npub chat 0 skip\n");
    let now = world.now;
    world.hub(0).handle_history(
        now,
        3,
        ChannelRef::new("chat", &plain()),
        HistoryFilter::default(),
        Owner::NONE,
    );
    let refused = Event::History { token: 3, result: Err(Error::HistoryOff) };
    assert_eq!(world.hub(0).poll_event(), Some(refused));
    // Nothing is remembered of it when its subscriber has gone.
    world.hub(0).close_session(now, reader);
    world.settle();
    assert!(world.hubs.iter().all(|hub| hub.stats().home_channels == 0));
    assert!(world.hubs.iter().all(|hub| hub.stats().channels == 0));
}

#[test]
fn a_history_switched_on_later_does_not_disturb_subscribers() {
    let mut world = World::new(2);
    let channel = world.channel_at(1, "room:");
    let early = world.open(0, "");
    world.subscribe(early, &channel, &plain(), SubscribeOptions::default());
    world.publish(0, &channel, &plain(), "zero");
    let options = with_history();
    world.publish(0, &channel, &options, "one");
    let late = world.open(0, "");
    let subscribed = world.subscribe(late, &channel, &options, SubscribeOptions::default());
    assert_eq!(subscribed.position.offset, 1);
    world.publish(0, &channel, &options, "two");
    let expected = format!("pub {channel} 0 zero\npub {channel} 1 one\npub {channel} 2 two\n");
    let sent = world.flush(0);
    assert_eq!(sent[0].1, expected);
    assert_eq!(sent[1].1, format!("pub {channel} 2 two\n"));
}

#[test]
fn page_of_channels_visits_no_more_places_than_it_may() {
    let mut world = World::new(1);
    let reader = world.open(0, "");
    for n in 0..9 {
        world.subscribe(reader, &format!("room{n}"), &plain(), SubscribeOptions::default());
    }
    world.publish(0, "idle", &with_history(), "hi");
    let hub = world.hub(0);
    let read = |places: u32, pattern: &str, idle: bool| {
        let pattern = ChannelPattern::parse(pattern).unwrap();
        let (mut from, mut pages, mut names) = (0, 0, Vec::new());
        loop {
            let (found, next) = hub.channels_page(from, places, &pattern, idle);
            assert!(found.len() <= places as usize);
            assert!(found.iter().all(|(place, _)| (from..from + places).contains(place)));
            names.extend(found.into_iter().map(|(_, name)| name));
            pages += 1;
            match next {
                Some(next) => from = next,
                None => return (names.len(), pages),
            }
        }
    };
    assert_eq!(read(4, "", false), (9, 3));
    assert_eq!(read(4, "", true), (10, 3));
    assert_eq!(read(100, "room{1,2}", false), (2, 1));
    assert_eq!(read(100, "idle", false), (0, 1), "nobody is subscribed");
    assert_eq!(hub.subscriber_count("room3"), 1);
    assert_eq!(hub.subscriber_count("idle") + hub.subscriber_count("nothing"), 0);
    assert_eq!(ChannelPattern::parse("{"), Err(Error::BadRequest));
}

#[test]
fn requests_beyond_limits_are_refused_and_leave_nothing() {
    let config = HubConfig {
        workers: 1,
        sessions_max: 2,
        subscriptions_per_session_max: 2,
        channel_name_bytes_max: 8,
        channels_max: 3,
        ..HubConfig::default()
    };
    let mut world = World::with_config(config);
    let session = world.open(0, "");
    let other = world.open(0, "");
    let now = world.now;
    let hub = world.hub(0);
    assert_eq!(hub.open_session(now, NewSession::default()), Err(Error::LimitExceeded));
    let strange = NewSession {
        encoding: EncodingId(dunlin_hub::ENCODINGS_MAX as u8),
        ..NewSession::default()
    };
    assert_eq!(hub.open_session(now, strange), Err(Error::BadRequest));
    let mut subscribe = |session, channel: &str| {
        hub.handle_subscribe(
            now,
            1,
            session,
            ChannelRef::new(channel, &plain()),
            SubscribeOptions::default(),
        );
        match hub.poll_event() {
            Some(Event::Subscribed { result, .. }) => result.err(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(subscribe(session, ""), Some(Error::ChannelName));
    assert_eq!(subscribe(session, "ninebytes"), Some(Error::ChannelName));
    assert_eq!(subscribe(session, "a"), None);
    assert_eq!(subscribe(session, "a"), Some(Error::AlreadySubscribed));
    assert_eq!(subscribe(session, "b"), None);
    assert_eq!(subscribe(session, "c"), Some(Error::LimitExceeded));
    assert_eq!(subscribe(other, "c"), None);
    assert_eq!(subscribe(other, "d"), Some(Error::LimitExceeded), "channels");
    let small = Arc::new(ChannelOptions { publication_bytes_max: 3, ..ChannelOptions::default() });
    hub.handle_publish(now, 2, ChannelRef::new("a", &small), publish("four"));
    let refused = Event::Published { token: 2, result: Err(Error::PublicationTooLarge) };
    assert_eq!(hub.poll_event(), Some(refused));
    hub.close_session(now, session);
    let mut stale = |session| {
        hub.handle_subscribe(
            now,
            1,
            session,
            ChannelRef::new("a", &plain()),
            SubscribeOptions::default(),
        );
        matches!(hub.poll_event(), Some(Event::Subscribed { result: Err(Error::NoSession), .. }))
    };
    assert!(stale(session));
    assert!(stale(SessionId::pack(1, 0, 0, other.slot(), other.generation())));
}

#[test]
fn a_channel_at_its_limit_displaces_one_nobody_listens_to() {
    let mut world = World::with_config(HubConfig { channels_max: 2, ..HubConfig::default() });
    let options = with_history();
    let reader = world.open(0, "");
    world.subscribe(reader, "kept", &options, SubscribeOptions::default());
    for n in 0..10 {
        world.publish(0, &format!("idle:{n}"), &options, "x");
    }
    let stats = world.hub(0).stats();
    assert_eq!((stats.home_channels, stats.channels_evicted), (2, 9));
    world.publish(0, "kept", &options, "y");
    assert_eq!(world.read(reader), "pub kept 1 y\n");
}

#[test]
fn history_memory_is_bounded_and_what_is_left_out_is_reported() {
    let config = HubConfig { history_bytes_max: 20_000, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let options = with_history();
    let start = world.publish(0, "c0", &options, "first").position;
    for n in 0..100 {
        world.publish(0, &format!("c{}", n % 5), &options, &"x".repeat(1_000));
        assert!(world.hub(0).stats().history_bytes <= 20_000);
    }
    assert!(world.hub(0).stats().history_evicted > 50);
    let reader = world.open(0, "");
    let subscribe = SubscribeOptions { recover: Some(start), ..SubscribeOptions::default() };
    assert!(!world.subscribe(reader, "c0", &options, subscribe).recovered);
    // A message larger than all of the memory is delivered, and missing from history.
    let top = world.publish(0, "c0", &options, &"y".repeat(30_000)).position;
    assert_eq!(world.read(reader).len(), "pub c0 22 \n".len() + 30_000);
    let late = world.open(0, "");
    let before = StreamPosition { offset: top.offset - 1, ..top };
    let subscribe = SubscribeOptions { recover: Some(before), ..SubscribeOptions::default() };
    assert!(!world.subscribe(late, "c0", &options, subscribe).recovered);
}

#[test]
fn a_subscription_given_up_is_cancelled_on_both_sides() {
    let mut world = World::new(2);
    let channel = world.channel_at(1, "room:");
    let options = Arc::new(ChannelOptions { presence: true, ..ChannelOptions::default() });
    let session = world.open(0, "ann");
    let now = world.now;
    world.hub(0).handle_subscribe(
        now,
        4,
        session,
        ChannelRef::new(&channel, &options),
        SubscribeOptions::default(),
    );
    assert!(!world.hub(0).is_subscribed(session, &channel));
    assert!(world.hub(0).handle_unsubscribe(now, session, &channel, None));
    assert!(!world.hub(0).handle_unsubscribe(now, session, &channel, None));
    world.settle();
    let events = world.take_events();
    assert_eq!(events.len(), 1);
    let (0, Event::Subscribed { token: 4, result: Err(Error::Cancelled), .. }) = &events[0] else {
        panic!("{events:?}");
    };
    assert_eq!(world.hub(1).stats().home_channels, 0);
    assert_eq!(world.hub(0).stats().subscriptions, 0);
}

#[test]
fn a_silent_home_worker_is_waited_for_so_long() {
    let mut world = World::new(2);
    let channel = world.channel_at(1, "room:");
    let session = world.open(0, "");
    let now = world.now;
    let hub = world.hub(0);
    hub.handle_subscribe(
        now,
        1,
        session,
        ChannelRef::new(&channel, &plain()),
        SubscribeOptions::default(),
    );
    hub.handle_publish(now, 2, ChannelRef::new(&channel, &plain()), publish("x"));
    assert_eq!(hub.poll_event(), None);
    while hub.poll_transmit().is_some() {}
    let deadline = hub.poll_timeout().expect("a deadline");
    assert_eq!(deadline, now.ms + 5_000);
    world.pass(5_000);
    let results: Vec<_> = world
        .take_events()
        .into_iter()
        .map(|(_, event)| match event {
            Event::Subscribed { token, result, .. } => (token, result.err()),
            Event::Published { token, result } => (token, result.err()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(results, [(1, Some(Error::Timeout)), (2, Some(Error::Timeout))]);
    assert_eq!(world.hub(0).stats().channels, 0);
    assert_eq!(world.hub(0).stats().timeouts, 2);
}

#[test]
fn from_nowhere_to_nowhere_nothing_is_missing() {
    // What a long-poll's cursor says of a channel without history; as Centrifugo answers it.
    let mut world = World::new(2);
    for worker in [0, 1, 1] {
        let reader = world.open(worker, "");
        let recover = Some(StreamPosition::default());
        let subscribe = SubscribeOptions { recover, ..SubscribeOptions::default() };
        let subscribed = world.subscribe(reader, "chat", &plain(), subscribe);
        assert!(subscribed.recovered && subscribed.position.epoch.is_none());
        let recover = Some(StreamPosition { offset: 3, epoch: Epoch::from_u64(4) });
        let subscribe = SubscribeOptions { recover, ..SubscribeOptions::default() };
        let other = world.open(worker, "");
        assert!(!world.subscribe(other, "chat", &plain(), subscribe).recovered);
    }
}

#[test]
fn subscription_that_rejects_gaps_is_refused_when_the_history_does_not_reach_back() {
    let mut world = World::new(2);
    let channel = world.channel_at(1, "room:");
    let options = Arc::new(ChannelOptions {
        presence: true,
        join_leave: true,
        history_size: 2,
        ..(*with_history()).clone()
    });
    let watcher = world.open(0, "watcher");
    let watch = SubscribeOptions { join_leave: true, ..SubscribeOptions::default() };
    world.subscribe(watcher, &channel, &options, watch);
    let start = world.publish(0, &channel, &options, "1").position;
    for data in ["2", "3", "4"] {
        world.publish(0, &channel, &options, data);
    }
    world.read(watcher);
    let session = world.open(0, "ann");
    let now = world.now;
    let subscribe = SubscribeOptions {
        recover: Some(start),
        reject_unrecovered: true,
        ..SubscribeOptions::default()
    };
    world.hub(0).handle_subscribe(now, 9, session, ChannelRef::new(&channel, &options), subscribe);
    world.settle();
    let events = world.take_events();
    let [(0, Event::Subscribed { token: 9, result: Err(error), .. })] = &events[..] else {
        panic!("{events:?}");
    };
    let top = StreamPosition { offset: 4, ..start };
    assert_eq!(*error, Error::UnrecoverablePosition(top));
    assert_eq!(world.read(watcher), "", "nobody came, so nobody is announced");
    assert!(!world.hub(0).is_subscribed(session, &channel));
    // What the history holds is recovered as ever.
    let recover = Some(StreamPosition { offset: 2, ..start });
    let subscribe =
        SubscribeOptions { recover, reject_unrecovered: true, ..SubscribeOptions::default() };
    assert_eq!(world.subscribe(session, &channel, &options, subscribe).publications.len(), 2);
}
