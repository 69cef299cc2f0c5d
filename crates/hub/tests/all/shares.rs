//! Stories of those who take more than their share, and of those who keep theirs.

use std::sync::Arc;

use crate::kit::{World, publish};
use dunlin_hub::{
    ChannelOptions, ChannelRef, Error, Event, HistoryFilter, HubConfig, NewPublication, NewSession,
    Owner, SessionId, StreamPosition, SubscribeOptions,
};
use proptest::prelude::*;

fn namespace(name: &str) -> ChannelOptions {
    ChannelOptions {
        namespace: name.into(),
        history_size: 1_000,
        history_ttl_ms: 60_000,
        history_meta_ttl_ms: 600_000,
        ..ChannelOptions::default()
    }
}

fn session_of(world: &mut World, user: &str) -> SessionId {
    let owner = world.hub(0).owner_of(user);
    world.open_with(0, NewSession { user, owner, ..NewSession::default() })
}

/// Subscribes to a channel and leaves it; whether it could.
fn visit(
    world: &mut World,
    session: SessionId,
    channel: &str,
    options: &Arc<ChannelOptions>,
) -> bool {
    let now = world.now;
    world.hub(0).handle_subscribe(
        now,
        1,
        session,
        ChannelRef::new(channel, options),
        SubscribeOptions::default(),
    );
    world.settle();
    let events = world.take_events();
    let [(_, Event::Subscribed { result, .. })] = &events[..] else { panic!("{events:?}") };
    let subscribed = result.is_ok();
    world.hub(0).handle_unsubscribe(now, session, channel, None);
    world.settle();
    subscribed
}

fn position(
    world: &mut World,
    channel: &str,
    options: &Arc<ChannelOptions>,
) -> (usize, StreamPosition) {
    let now = world.now;
    let filter = HistoryFilter::default();
    world.hub(0).handle_history(now, 9, ChannelRef::new(channel, options), filter, Owner::NONE);
    world.settle();
    match &world.take_events()[..] {
        [(_, Event::History { result: Ok(history), .. })] => {
            (history.publications.len(), history.position)
        }
        events => panic!("{events:?}"),
    }
}

#[test]
fn names_subscribed_to_and_left_push_out_nobody_elses_history() {
    let config = HubConfig { channels_max: 100, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let (ours, theirs) = (Arc::new(namespace("ours")), Arc::new(namespace("theirs")));
    for number in 0..50 {
        world.publish(0, &format!("ours:{number}"), &ours, "kept");
    }
    let before = position(&mut world, "ours:0", &ours);
    let attacker = session_of(&mut world, "mallory");
    for number in 0..10_000 {
        assert!(visit(&mut world, attacker, &format!("theirs:{number}"), &theirs));
    }
    let stats = world.hub(0).stats();
    assert_eq!((stats.home_channels, stats.channels_evicted), (100, 9_950));
    assert_eq!(stats.history_evicted, 0);
    assert_eq!(position(&mut world, "ours:0", &ours), before);
    // A publication that is to be kept finds room all the same.
    world.publish(0, "ours:new", &ours, "kept");
    assert_eq!(position(&mut world, "ours:new", &ours).0, 1);
}

#[test]
fn a_full_table_of_histories_takes_no_name_without_one() {
    let config = HubConfig { channels_max: 10, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let options = Arc::new(namespace("n"));
    for number in 0..10 {
        world.publish(0, &format!("n:{number}"), &options, "kept");
    }
    let visitor = session_of(&mut world, "v");
    assert!(!visit(&mut world, visitor, "n:other", &options), "error 106");
    world.publish(0, "n:other", &options, "kept");
    assert_eq!(world.hub(0).stats().channels_evicted, 1, "for one that holds something");
}

#[test]
fn an_owner_at_his_quota_loses_his_own_empty_channels_first() {
    let config = HubConfig { channels_per_owner_max: 10, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let options = Arc::new(namespace("n"));
    let (alice, mallory) = (session_of(&mut world, "alice"), session_of(&mut world, "mallory"));
    assert!(visit(&mut world, alice, "n:alice", &options));
    let before = position(&mut world, "n:alice", &options);
    for number in 0..1_000 {
        assert!(visit(&mut world, mallory, &format!("n:{number}"), &options));
    }
    assert_eq!(world.hub(0).stats().home_channels, 11);
    assert_eq!(position(&mut world, "n:alice", &options), before, "the same epoch");
    // Channels that hold something do not make room for more.
    let owner = world.hub(0).owner(mallory);
    for number in 0..20 {
        let channel = format!("n:full{number}");
        let publication = NewPublication { owner, ..publish("x") };
        let now = world.now;
        world.hub(0).handle_publish(now, number, ChannelRef::new(&channel, &options), publication);
        world.settle();
    }
    let events = world.take_events();
    let failed = events.iter().filter(|(_, event)| {
        matches!(event, Event::Published { result: Err(Error::LimitExceeded), .. })
    });
    assert_eq!((failed.count(), world.hub(0).stats().home_channels), (10, 11));
}

#[test]
fn a_namespace_has_as_many_channels_and_bytes_as_its_settings_say() {
    let mut world = World::new(1);
    let bounded =
        ChannelOptions { channels_max: Some(5), history_bytes_max: Some(10_000), ..namespace("b") };
    let (bounded, free) = (Arc::new(bounded), Arc::new(namespace("free")));
    let visitor = session_of(&mut world, "v");
    for number in 0..100 {
        assert!(visit(&mut world, visitor, &format!("b:{number}"), &bounded));
        assert!(visit(&mut world, visitor, &format!("free:{number}"), &free));
    }
    assert_eq!(world.hub(0).stats().home_channels, 105);
    for _ in 0..100 {
        world.publish(0, "b:1", &bounded, &"x".repeat(1_000));
        world.publish(0, "free:1", &free, &"x".repeat(1_000));
    }
    assert!((5..10).contains(&position(&mut world, "b:1", &bounded).0));
    assert_eq!(position(&mut world, "free:1", &free).0, 100);
}

#[test]
fn one_publisher_fills_his_own_history_and_takes_no_message_of_an_idle_channel() {
    let config = HubConfig { history_bytes_max: 100_000, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let options = Arc::new(namespace("n"));
    for _ in 0..5 {
        world.publish(0, "n:idle", &options, "a message");
    }
    let before = position(&mut world, "n:idle", &options);
    for _ in 0..1_000 {
        world.publish(0, "n:flood", &options, &"x".repeat(1_000));
    }
    // Neither does one who fills many.
    for number in 0..2_000 {
        world.publish(0, &format!("n:flood{}", number % 40), &options, &"x".repeat(1_000));
    }
    assert_eq!(position(&mut world, "n:idle", &options), before);
    assert!(world.hub(0).stats().history_bytes <= 100_000);
    assert!(world.hub(0).stats().history_evicted > 1_000);
}

#[test]
fn the_namespace_that_holds_most_pays_for_what_the_others_publish() {
    let config = HubConfig { history_bytes_max: 100_000, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let (large, small) = (Arc::new(namespace("large")), Arc::new(namespace("small")));
    for _ in 0..1_000 {
        world.publish(0, "large:1", &large, &"x".repeat(1_000));
    }
    for _ in 0..10 {
        world.publish(0, "small:1", &small, &"x".repeat(1_000));
    }
    assert_eq!(position(&mut world, "small:1", &small).0, 10);
    let left = position(&mut world, "large:1", &large).0;
    assert!((60..90).contains(&left), "{left}");
}

/// The large channel was looked for among the next thousand of all; where it was not, the one that was published to paid.
#[test]
fn the_namespace_that_holds_most_pays_however_many_channels_the_others_have() {
    let config = HubConfig { history_bytes_max: 6_000_000, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let (large, small) = (Arc::new(namespace("large")), Arc::new(namespace("small")));
    for _ in 0..50 {
        world.publish(0, "small:mine", &small, "a message");
    }
    for number in 0..10_000 {
        world.publish(0, &format!("small:{number}"), &small, "a message");
    }
    while world.hub(0).stats().history_evicted == 0 {
        world.publish(0, "large:1", &large, &"x".repeat(10_000));
    }
    let before = position(&mut world, "large:1", &large).0;
    for _ in 0..3 {
        world.publish(0, "small:mine", &small, &"x".repeat(10_000));
    }
    assert_eq!(position(&mut world, "small:mine", &small).0, 53);
    assert!(position(&mut world, "large:1", &large).0 < before);
}

#[test]
fn expired_history_is_returned_to_its_share() {
    let config = HubConfig { channels_per_owner_max: 10, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let options = Arc::new(namespace("n"));
    let session = session_of(&mut world, "u");
    for round in 0..3 {
        let owner = world.hub(0).owner(session);
        for number in 0..10 {
            let publication = NewPublication { owner, ..publish("x") };
            let now = world.now;
            let channel = format!("n:{round}-{number}");
            world.hub(0).handle_publish(
                now,
                number,
                ChannelRef::new(&channel, &options),
                publication,
            );
            world.settle();
        }
        let failed = world
            .take_events()
            .iter()
            .any(|(_, event)| matches!(event, Event::Published { result: Err(_), .. }));
        assert!(!failed, "round {round}");
        world.pass(600_000);
        let stats = world.hub(0).stats();
        assert_eq!((stats.home_channels, stats.history_bytes), (0, 0));
    }
}

#[test]
fn one_large_message_takes_the_place_of_many_small_ones_and_of_no_other_namespaces() {
    let config = HubConfig { history_bytes_max: 1 << 20, workers: 1, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let (theirs, ours) = (Arc::new(namespace("a")), Arc::new(namespace("b")));
    for _ in 0..3 {
        world.publish(0, "b:v", &ours, "kept");
    }
    for number in 0..14_000 {
        world.publish(0, &format!("a:{}", number % 150), &theirs, "1");
    }
    world.publish(0, "b:v", &ours, &"x".repeat(400_000));
    assert_eq!(position(&mut world, "b:v", &ours).0, 4, "nothing of it is lost");
    assert!(world.hub(0).stats().history_bytes <= 1 << 20);
    // It takes the place of messages of many channels, not of whole ones.
    assert!((0..150).all(|at| position(&mut world, &format!("a:{at}"), &theirs).0 > 10));
}

#[test]
fn a_message_that_history_cannot_keep_takes_nothing_along() {
    let mut world = World::new(2);
    let options = ChannelOptions { history_bytes_max: Some(20_000), ..namespace("n") };
    let options = Arc::new(options);
    world.publish(0, "n:1", &options, "kept");
    let before = position(&mut world, "n:1", &options);
    let reader = session_of(&mut world, "u");
    assert!(join(&mut world, reader, "n:1", &options));
    world.publish(0, "n:1", &options, &"x".repeat(10_000));
    assert!(world.read(reader).starts_with("pub n:1 2 xxx"), "it is delivered");
    let after = position(&mut world, "n:1", &options);
    assert_eq!((after.0, after.1.offset), (before.0, before.1.offset + 1));
}

#[test]
fn a_bound_that_was_lowered_is_reached_after_some_publications() {
    let mut world = World::new(1);
    let options = Arc::new(ChannelOptions { history_size: 100_000, ..namespace("n") });
    for number in 0..10_000 {
        world.publish(0, &format!("n:{}", number % 7), &options, "1");
    }
    let lowered = HubConfig { history_bytes_max: 10_000, ..HubConfig::default() };
    world.hub(0).set_limits(&lowered);
    for _ in 0..20 {
        world.publish(0, "n:new", &options, "1");
    }
    assert!(world.hub(0).stats().history_bytes <= 10_000);
    assert!(position(&mut world, "n:new", &options).0 > 5);
}

/// Subscribes and stays; whether it could.
fn join(
    world: &mut World,
    session: SessionId,
    channel: &str,
    options: &Arc<ChannelOptions>,
) -> bool {
    let (now, subscribe) = (world.now, SubscribeOptions::default());
    world.hub(session.worker()).handle_subscribe(
        now,
        1,
        session,
        ChannelRef::new(channel, options),
        subscribe,
    );
    world.settle();
    let events = world.take_events();
    events.iter().all(|(_, event)| matches!(event, Event::Subscribed { result: Ok(_), .. }))
}

fn without_history(name: &str) -> Arc<ChannelOptions> {
    Arc::new(ChannelOptions { namespace: name.into(), ..ChannelOptions::default() })
}

#[test]
fn a_user_who_subscribes_to_many_names_locks_out_nobody() {
    let config =
        HubConfig { channels_max: 150, channels_per_owner_max: 10, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let (live, kept) = (without_history("a"), Arc::new(namespace("b")));
    let sessions = [(); 3].map(|()| session_of(&mut world, "mallory"));
    let joined = (0..300usize)
        .filter(|at| join(&mut world, sessions[at % 3], &format!("a:{at}"), &live))
        .count();
    assert_eq!(joined, 10, "for all of his connections");
    let other = session_of(&mut world, "ann");
    assert!(join(&mut world, other, "a:ann", &live) && join(&mut world, other, "b:ann", &kept));
    // Names that others hold are free.
    assert!(join(&mut world, sessions[0], "a:ann", &live));
    // And who leaves has room again.
    let now = world.now;
    for session in sessions {
        world.hub(0).close_session(now, session);
    }
    world.settle();
    let again = session_of(&mut world, "mallory");
    assert!((0..10).all(|at| join(&mut world, again, &format!("a:new{at}"), &live)));
    assert!(!join(&mut world, again, "a:one more", &live));
}

#[test]
fn a_channel_counts_for_one_who_is_in_it() {
    let config = HubConfig { channels_per_owner_max: 2, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let live = without_history("a");
    let (agent, guest) = (session_of(&mut world, "agent"), session_of(&mut world, "guest"));
    // He opens rooms, and leaves them to others.
    for at in 0..2 {
        let room = format!("a:{at}");
        assert!(join(&mut world, agent, &room, &live) && join(&mut world, guest, &room, &live));
    }
    assert!(!join(&mut world, agent, "a:2", &live));
    let now = world.now;
    world.hub(0).handle_unsubscribe(now, agent, "a:0", None);
    assert!(join(&mut world, agent, "a:2", &live), "he has one room now");
    world.hub(0).handle_unsubscribe(now, agent, "a:1", None);
    assert!(!join(&mut world, guest, "a:3", &live), "and the guest two");
}

#[test]
fn a_namespace_has_as_many_channels_with_subscribers_as_its_settings_say() {
    let mut world = World::new(2);
    let live =
        ChannelOptions { channels_max: Some(20), ..ChannelOptions::clone(&without_history("a")) };
    let live = Arc::new(live);
    let sessions = [0, 1].map(|worker| {
        let owner = world.hub(worker).owner_of("u");
        world.open_with(worker, NewSession { user: "u", owner, ..NewSession::default() })
    });
    let joined =
        (0..200).filter(|at| join(&mut world, sessions[at % 2], &format!("a:{at}"), &live)).count();
    assert_eq!(joined, 20);
    let other = without_history("b");
    assert!(join(&mut world, sessions[0], "b:1", &other), "another namespace has its own");
    let channels: u64 = (0..2).map(|worker| world.hub(worker).stats().channels).sum();
    assert_eq!(channels, 21, "nothing is left of those that were refused");
    // A channel with subscribers and then a history is one channel.
    let now = world.now;
    for session in sessions {
        world.hub(session.worker()).close_session(now, session);
    }
    world.settle();
    let homes: u64 = (0..2).map(|worker| world.hub(worker).stats().home_channels).sum();
    assert_eq!(homes, 0);
    let kept = Arc::new(ChannelOptions { channels_max: Some(2), ..namespace("a") });
    let visitor = session_of(&mut world, "v");
    for at in 0..10 {
        assert!(visit(&mut world, visitor, &format!("a:{at}"), &kept));
    }
    let homes: u64 = (0..2).map(|worker| world.hub(worker).stats().home_channels).sum();
    assert_eq!(homes, 2);
}

/// Publishes as a user, or as the server's API if `user` is empty.
fn publish_as(
    world: &mut World,
    user: &str,
    channel: &str,
    options: &Arc<ChannelOptions>,
    bytes: usize,
) {
    let owner = if user.is_empty() { Owner::NONE } else { world.hub(0).owner_of(user) };
    let publication = NewPublication { owner, ..publish(&"x".repeat(bytes)) };
    let now = world.now;
    world.hub(0).handle_publish(now, 1, ChannelRef::new(channel, options), publication);
    world.settle();
    world.take_events();
}

fn kept(world: &mut World, channel: &str, options: &Arc<ChannelOptions>) -> usize {
    position(world, channel, options).0
}

/// The one who pays was the largest of sixteen channels beside each other; where all of them were small, one of those lost half.
#[test]
fn publisher_of_large_messages_to_ever_new_names_takes_no_small_history() {
    let config = HubConfig { history_bytes_max: 4 << 20, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let options = Arc::new(namespace("hist"));
    for number in 0..50 {
        for _ in 0..10 {
            publish_as(&mut world, "", &format!("hist:{number}"), &options, 20);
        }
    }
    for number in 0..2_000 {
        publish_as(&mut world, "mallory", &format!("hist:new{number}"), &options, 50_000);
    }
    for number in 0..50 {
        assert_eq!(kept(&mut world, &format!("hist:{number}"), &options), 10, "hist:{number}");
    }
    assert!(world.hub(0).stats().history_bytes <= 4 << 20);
    assert_eq!(kept(&mut world, "hist:new1999", &options), 1, "his last one is kept");
}

/// A history of many messages is no reason to lose some of them to one who has more names.
#[test]
fn user_with_many_channels_pays_before_one_with_a_long_history() {
    let config = HubConfig { history_bytes_max: 1 << 20, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let options = Arc::new(namespace("hist"));
    for _ in 0..100 {
        publish_as(&mut world, "ann", "hist:ann", &options, 1_000);
    }
    for number in 0..5_000 {
        publish_as(&mut world, "mallory", &format!("hist:{number}"), &options, 1_000);
    }
    assert_eq!(kept(&mut world, "hist:ann", &options), 100);
}

#[test]
fn message_of_a_second_publisher_makes_a_history_one_of_its_own() {
    let config = HubConfig { history_bytes_max: 1 << 20, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let options = Arc::new(namespace("hist"));
    // Mallory opens the room that others use, and then fills the rest.
    publish_as(&mut world, "mallory", "hist:room", &options, 100);
    for _ in 0..50 {
        publish_as(&mut world, "ann", "hist:room", &options, 100);
    }
    for number in 0..5_000 {
        publish_as(&mut world, "mallory", &format!("hist:{number}"), &options, 1_000);
    }
    assert_eq!(kept(&mut world, "hist:room", &options), 51);
}

#[test]
fn publisher_to_ever_new_names_in_a_full_table_evicts_his_own() {
    let config = HubConfig { channels_max: 200, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let options = Arc::new(namespace("hist"));
    for number in 0..50 {
        publish_as(&mut world, "ann", &format!("hist:{number}"), &options, 20);
    }
    for number in 0..2_000 {
        publish_as(&mut world, "mallory", &format!("hist:new{number}"), &options, 20);
    }
    assert!((0..50).all(|at| kept(&mut world, &format!("hist:{at}"), &options) == 1));
    assert_eq!(world.hub(0).stats().home_channels, 200);
    // One who is new there has a place all the same.
    publish_as(&mut world, "bob", "hist:bob", &options, 20);
    assert_eq!(kept(&mut world, "hist:bob", &options), 1);
}

/// What a publication is: by whom, to which of his channels, how large.
fn story() -> impl Strategy<Value = Vec<(usize, usize, usize)>> {
    proptest::collection::vec((0..12_usize, 0..6_usize, 1..3_000_usize), 50..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whoever holds less than an equal part loses nothing, in whatever order channels come and messages arrive.
    #[test]
    fn account_below_its_equal_part_loses_nothing(story in story(), flood in 500..60_000_usize) {
        // Users 0 to 3 publish for themselves, 4 to 7 share channels, 8 to 11 are channels of the server.
        let mut world = World::with_config(HubConfig { history_bytes_max: 2_400_000, ..HubConfig::default() });
        let options = Arc::new(namespace("n"));
        let mut published = std::collections::BTreeMap::<String, usize>::new();
        for (number, (of, at, bytes)) in story.into_iter().enumerate() {
            let (user, channel) = match of {
                0..4 => (format!("u{of}"), format!("n:{of}-{at}")),
                4..8 => (format!("u{of}"), format!("n:shared{at}")),
                _ => (String::new(), format!("n:server{of}-{at}")),
            };
            publish_as(&mut world, &user, &channel, &options, bytes);
            *published.entry(channel).or_default() += 1;
            for name in 0..3 {
                publish_as(&mut world, "mallory", &format!("n:flood{number}-{name}"), &options, flood);
            }
        }
        for (channel, count) in published {
            prop_assert_eq!(kept(&mut world, &channel, &options), count, "{}", channel);
        }
        prop_assert!(world.hub(0).stats().history_bytes <= 2_400_000);
    }
}

/// Each refusal tried a thousand of the owner's channels.
#[test]
fn refusal_beyond_an_owners_quota_costs_the_same_however_many_channels_he_holds() {
    let options = Arc::new(namespace("n"));
    let time = |held: u32| {
        let config = HubConfig { channels_per_owner_max: held, ..HubConfig::default() };
        let mut world = World::with_config(config);
        for number in 0..held {
            publish_as(&mut world, "mallory", &format!("n:{number}"), &options, 1);
        }
        let owner = world.hub(0).owner_of("mallory");
        let mut refusals = || {
            let began = std::time::Instant::now();
            for number in 0..200 {
                let (now, publication) = (world.now, NewPublication { owner, ..publish("x") });
                let channel = ChannelRef::new("n:one more", &options);
                world.hub(0).handle_publish(now, number, channel, publication);
                let event = world.hub(0).poll_event();
                let refused = Err(Error::LimitExceeded);
                assert!(
                    matches!(event, Some(Event::Published { result, .. }) if result == refused)
                );
            }
            began.elapsed()
        };
        (0..10).map(|_| refusals()).min().expect("ten rounds")
    };
    let (few, many) = (time(16), time(2_000));
    assert!(many < few * 4, "{many:?} for 200 of them, {few:?} with few channels");
}
