//! Publications in other forms: differences from the one before, and what a filter admits.

use std::sync::Arc;

use crate::kit::{World, publish, with_history};
use dunlin_hub::{
    ChannelOptions, ChannelRef, Error, Event, HubConfig, NewPublication, NewSession,
    OverflowPolicy, PayloadFormat, SessionId, StreamPosition, SubscribeOptions, TagCondition,
    TagFilter,
};

fn delta() -> SubscribeOptions {
    SubscribeOptions { delta: true, ..SubscribeOptions::default() }
}

fn with_delta() -> Arc<ChannelOptions> {
    Arc::new(ChannelOptions { delta: true, delta_publish: true, ..(*with_history()).clone() })
}

fn kind(value: &str) -> SubscribeOptions {
    let is = TagCondition::Equal(value.into());
    let filter = Some(TagFilter::Tag { key: "kind".into(), is });
    SubscribeOptions { filter, ..SubscribeOptions::default() }
}

fn tagged(data: &str, value: &str) -> NewPublication {
    NewPublication { tags: [("kind".into(), value.into())].into_iter().collect(), ..publish(data) }
}

#[test]
fn the_first_publication_comes_whole_and_each_further_one_as_a_difference() {
    let mut world = World::new(2);
    let channel = &*world.channel_at(1, "doc:");
    let options = with_delta();
    let plain = world.open(0, "");
    let ann = world.open(0, "");
    assert!(!world.subscribe(plain, channel, &options, SubscribeOptions::default()).delta);
    assert!(world.subscribe(ann, channel, &options, delta()).delta);
    world.publish(0, channel, &options, "version one");
    let bob = world.open(0, "");
    assert!(world.subscribe(bob, channel, &options, delta()).delta);
    world.publish(0, channel, &options, "version two");
    world.publish(0, channel, &options, "version three");
    let of =
        |lines: &[&str]| lines.iter().map(|line| line.replace("C", channel)).collect::<String>();
    assert_eq!(
        world.read(ann),
        of(&["whole C 1 version one\n", "delta C 2 ve>wo\n", "delta C 3 ve>ee\n"])
    );
    assert_eq!(world.read(bob), of(&["whole C 2 version two\n", "delta C 3 ve>ee\n"]));
    assert_eq!(
        world.read(plain),
        of(&["pub C 1 version one\n", "pub C 2 version two\n", "pub C 3 version three\n"])
    );
    // One that has no difference, or none that is shorter, comes whole, and the next is from it.
    world.publish(0, channel, &options, "another one");
    world.publish(0, channel, &options, "a");
    world.publish(0, channel, &options, "and another");
    assert_eq!(
        world.read(bob),
        of(&["whole C 4 another one\n", "whole C 5 a\n", "delta C 6 a>er\n"])
    );
}

#[test]
fn only_what_its_publisher_allows_is_sent_as_a_difference() {
    let mut world = World::new(1);
    let options = Arc::new(ChannelOptions { delta: true, ..ChannelOptions::default() });
    let ann = world.open(0, "");
    world.subscribe(ann, "doc", &options, delta());
    world.publish(0, "doc", &options, "version one");
    world.publish(0, "doc", &options, "version two");
    let allowed = NewPublication { delta: true, ..publish("version three") };
    world.publish_with(0, "doc", &options, allowed);
    assert_eq!(
        world.read(ann),
        "whole doc 0 version one\nwhole doc 0 version two\ndelta doc 0 ve>ee\n"
    );
}

#[test]
fn no_differences_where_publications_may_be_dropped_or_are_filtered_or_the_channel_has_none() {
    let mut world = World::new(1);
    let dropping = Arc::new(ChannelOptions {
        overflow: OverflowPolicy::DropOldest,
        ..(*with_delta()).clone()
    });
    let session = world.open(0, "");
    assert!(!world.subscribe(session, "a", &dropping, delta()).delta);
    assert!(!world.subscribe(session, "b", &with_history(), delta()).delta);
    let both = SubscribeOptions { delta: true, ..kind("goal") };
    assert!(!world.subscribe(session, "c", &with_delta(), both).delta);
}

#[test]
fn a_subscriber_that_leaves_takes_the_memory_of_the_publication_along() {
    let mut world = World::new(1);
    let options = Arc::new(ChannelOptions { history_size: 0, ..(*with_delta()).clone() });
    let ann = world.open(0, "");
    for _ in 0..2 {
        world.subscribe(ann, "doc", &options, delta());
        world.publish(0, "doc", &options, "version one");
        world.publish(0, "doc", &options, "version two");
        assert_eq!(world.read(ann), "whole doc 0 version one\ndelta doc 0 ve>wo\n");
        let now = world.now;
        assert!(world.hub(0).handle_unsubscribe(now, ann, "doc", None));
    }
}

#[test]
fn binary_payloads_have_differences_that_json_may_not_use() {
    let mut world = World::new(1);
    let options = with_delta();
    let ann = world.open(0, "");
    world.subscribe(ann, "doc", &options, delta());
    for data in ["version one", "version two"] {
        let binary = NewPublication { format: PayloadFormat::Binary, ..publish(data) };
        world.publish_with(0, "doc", &options, binary);
    }
    assert_eq!(world.read(ann), "whole doc 1 version one\ndelta doc 2 ve>wo\n");
}

#[test]
fn a_filter_admits_what_it_says_and_recovery_keeps_to_it() {
    let mut world = World::new(2);
    let channel = &*world.channel_at(1, "match:");
    let options = with_history();
    let all = world.open(0, "");
    world.subscribe(all, channel, &options, SubscribeOptions::default());
    let goals = [world.open(0, ""), world.open(0, ""), world.open(1, "")];
    for session in goals {
        world.subscribe(session, channel, &options, kind("goal"));
    }
    let cards = world.open(0, "");
    world.subscribe(cards, channel, &options, kind("card"));
    let start = world.publish_with(0, channel, &options, tagged("a", "goal")).position;
    world.publish_with(0, channel, &options, tagged("b", "card"));
    world.publish_with(0, channel, &options, tagged("c", "goal"));
    world.publish(0, channel, &options, "d");
    for session in goals {
        assert_eq!(world.read(session), format!("pub {channel} 1 a\npub {channel} 3 c\n"));
    }
    assert_eq!(world.read(cards), format!("pub {channel} 2 b\n"));
    assert_eq!(world.read(all).lines().count(), 4);
    // The others' filters hold when one of them goes.
    let now = world.now;
    world.hub(0).close_session(now, goals[0]);
    world.publish_with(0, channel, &options, tagged("e", "goal"));
    assert_eq!(world.read(goals[1]), format!("pub {channel} 5 e\n"));
    let late = world.open(0, "");
    let recover = Some(StreamPosition { offset: 1, ..start });
    let recovered =
        world.subscribe(late, channel, &options, SubscribeOptions { recover, ..kind("goal") });
    assert!(recovered.recovered);
    assert_eq!((recovered.publications.len(), recovered.position.offset), (2, 5));
}

/// Subscribes to as many channels as have room with filters of this size; their number, and the refusals by error.
fn subscribe_many(world: &mut World, session: SessionId, count: usize) -> (usize, Vec<Error>) {
    let options = Arc::new(ChannelOptions::default());
    let (now, mut made, mut refused) = (world.now, 0, Vec::new());
    for n in 0..count {
        let of = kind(&format!("{session:?}{n}{}", "x".repeat(16_000)));
        let channel = format!("c{session:?}-{n}");
        let channel = ChannelRef::new(&channel, &options);
        world.hub(0).handle_subscribe(now, 1, session, channel, of);
        world.settle();
        for (_, event) in world.take_events() {
            match event {
                Event::Subscribed { result: Err(error), .. } => refused.push(error),
                Event::Subscribed { result: Ok(_), .. } => made += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    (made, refused)
}

/// Whoever came first took it all, and the others were refused for good.
#[test]
fn user_with_many_large_filters_leaves_room_for_the_others() {
    let mut world = World::with_config(HubConfig {
        subscriptions_per_session_max: u16::MAX,
        filter_bytes_max: 16 << 20,
        ..HubConfig::default()
    });
    let mut session_of = |user: &str| {
        let owner = world.hub(0).owner_of(user);
        world.open_with(0, NewSession { user, owner, ..NewSession::default() })
    };
    let attackers = [session_of("mallory"), session_of("mallory"), session_of("mallory")];
    let others: Vec<SessionId> = (0..12).map(|n| session_of(&format!("u{n}"))).collect();
    let mut made = 0;
    for session in attackers {
        let (some, refused) = subscribe_many(&mut world, session, 500);
        made += some;
        assert!(refused.iter().all(|&error| error == Error::FiltersFull && error.is_temporary()));
    }
    // A ninth of the memory for all of his connections.
    assert!((100..120).contains(&made), "{made}");
    for &session in &others {
        let (made, refused) = subscribe_many(&mut world, session, 10);
        assert_eq!((made, refused), (10, Vec::new()));
    }
    let bytes = world.hub(0).stats().filter_bytes;
    assert!(bytes > 200 * 16_000, "{bytes}");
    assert!(
        world.hub(0).session_bytes(others[0]) > 160_000,
        "they are part of the session's memory"
    );
    let now = world.now;
    for session in attackers.into_iter().chain(others) {
        world.hub(0).close_session(now, session);
    }
    assert_eq!(world.hub(0).stats().filter_bytes, 0);
}
