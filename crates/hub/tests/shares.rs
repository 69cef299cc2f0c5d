//! Stories of those who take more than their share, and of those who keep theirs.

mod kit;

use std::sync::Arc;

use dunlin_hub::{
    ChannelOptions, Event, HistoryFilter, HubConfig, Maker, NewPublication, NewSession, SessionId,
    StreamPosition, SubscribeOptions,
};
use kit::{World, publish};

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
    let maker = world.hub(0).maker_of(user);
    world.open_with(0, NewSession { user, maker, ..NewSession::default() })
}

/// Subscribes to a channel and leaves it; whether it could.
fn visit(
    world: &mut World,
    session: SessionId,
    channel: &str,
    options: &Arc<ChannelOptions>,
) -> bool {
    let now = world.now;
    world.hub(0).handle_subscribe(now, 1, session, channel, options, SubscribeOptions::default());
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
    world.hub(0).handle_history(now, 9, channel, options, filter, Maker::NONE);
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
fn a_maker_at_his_quota_loses_his_own_empty_channels_first() {
    let config = HubConfig { streams_per_maker_max: 10, ..HubConfig::default() };
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
    let maker = world.hub(0).maker(mallory);
    for number in 0..20 {
        let channel = format!("n:full{number}");
        let publication = NewPublication { maker, ..publish("x") };
        let now = world.now;
        world.hub(0).handle_publish(now, number, &channel, &options, publication);
        world.settle();
    }
    let events = world.take_events();
    let failed = events.iter().filter(|(_, event)| {
        matches!(event, Event::Published { result: Err(dunlin_hub::Error::LimitExceeded), .. })
    });
    assert_eq!((failed.count(), world.hub(0).stats().home_channels), (10, 11));
}

#[test]
fn a_namespace_has_as_many_channels_and_bytes_as_its_settings_say() {
    let mut world = World::new(1);
    let bounded = ChannelOptions { channels_max: 5, history_bytes_max: 10_000, ..namespace("b") };
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
fn what_expires_is_given_back_to_its_share() {
    let config = HubConfig { streams_per_maker_max: 10, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let options = Arc::new(namespace("n"));
    let session = session_of(&mut world, "u");
    for round in 0..3 {
        let maker = world.hub(0).maker(session);
        for number in 0..10 {
            let publication = NewPublication { maker, ..publish("x") };
            let now = world.now;
            let channel = format!("n:{round}-{number}");
            world.hub(0).handle_publish(now, number, &channel, &options, publication);
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
