//! Stories of nodes that share an engine.

mod acks;
mod model;
mod simulation;

use std::sync::Arc;

use crate::kit::{offsets, plain, publish, with_history};
use dunlin_hub::engine::{EngineConfig, EngineEvent};
use dunlin_hub::{
    ChannelEvent, ChannelEventFilter, ChannelOptions, ChannelRef, Epoch, Error, HistoryFilter,
    NewPublication, Owner, PublicationParts, RecoveryMode, StreamPosition, SubscribeOptions, code,
};
use model::{CONFIG, Fleet};

fn recover(position: StreamPosition) -> SubscribeOptions {
    SubscribeOptions { recover: Some(position), ..SubscribeOptions::default() }
}

const FRESH: fn() -> SubscribeOptions = SubscribeOptions::default;

#[test]
fn publications_of_one_node_reach_subscribers_of_all_nodes_once_and_in_order() {
    let mut fleet = Fleet::new(3, 2);
    let options = with_history();
    let readers: Vec<_> = (0..3)
        .flat_map(|node| [(node, 0), (node, 1)])
        .map(|(node, worker)| (node, fleet.nodes[node].open(worker, "")))
        .collect();
    for &(node, reader) in &readers {
        let subscribed = fleet.subscribe(node, reader, "news", &options, FRESH()).unwrap();
        assert_eq!(subscribed.position.offset, 0);
        assert!(!subscribed.position.epoch.is_none());
    }
    for (node, offset) in [(0, 1), (2, 2), (1, 3)] {
        let published = fleet.publish(node, "news", &options, publish("m")).unwrap();
        assert_eq!(published.position.offset, offset);
    }
    for (node, reader) in readers {
        assert_eq!(fleet.nodes[node].read(reader), "pub news 1 m\npub news 2 m\npub news 3 m\n");
    }
}

#[test]
fn a_channel_without_history_is_heard_on_every_node_too() {
    let mut fleet = Fleet::new(2, 2);
    let reader = fleet.nodes[1].open(1, "");
    let subscribed = fleet.subscribe(1, reader, "ticks", &plain(), FRESH()).unwrap();
    assert_eq!(subscribed.position, StreamPosition::default());
    let published = fleet.publish(0, "ticks", &plain(), publish("42")).unwrap();
    assert_eq!(published.position, StreamPosition::default());
    assert_eq!(fleet.nodes[1].read(reader), "pub ticks 0 42\n");
}

#[test]
fn nothing_falls_between_the_position_and_the_first_publication() {
    let mut fleet = Fleet::new(2, 1);
    let options = with_history();
    fleet.publish(0, "news", &options, publish("before")).unwrap();
    let reader = fleet.nodes[1].open(0, "");
    fleet.begin_subscribe(1, reader, "news", &options, FRESH());
    // The engine has subscribed and answered; its answer is on its way.
    fleet.begin_publish(0, "news", &options, publish("between"));
    fleet.settle();
    let subscribed = fleet.subscribed(1, reader).unwrap().unwrap();
    assert_eq!(subscribed.position.offset, 1);
    assert_eq!(fleet.nodes[1].read(reader), "pub news 2 between\n");
}

#[test]
fn a_client_recovers_on_another_node() {
    let mut fleet = Fleet::new(2, 1);
    let options = with_history();
    let first = fleet.nodes[0].open(0, "");
    let at = fleet.subscribe(0, first, "news", &options, FRESH()).unwrap().position;
    for data in ["a", "b", "c"] {
        fleet.publish(0, "news", &options, publish(data)).unwrap();
    }
    let second = fleet.nodes[1].open(0, "");
    let seen = StreamPosition { offset: 1, ..at };
    let subscribed = fleet.subscribe(1, second, "news", &options, recover(seen)).unwrap();
    assert!(subscribed.recovered);
    assert_eq!(offsets(&subscribed.publications), [2, 3]);
    assert_eq!(subscribed.position.offset, 3);
}

/// Its connection carries nothing, and it does not know that yet.
#[test]
fn a_client_that_is_ahead_of_its_new_node_is_not_refused_and_sent_nothing_again() {
    let mut fleet = Fleet::new(2, 1);
    let options = with_history();
    let first = fleet.nodes[0].open(0, "");
    let at = fleet.subscribe(0, first, "news", &options, FRESH()).unwrap().position;
    let reader = fleet.nodes[1].open(0, "");
    fleet.subscribe(1, reader, "news", &options, FRESH()).unwrap();
    fleet.publish(0, "news", &options, publish("a")).unwrap();
    fleet.cut(1);
    fleet.publish(0, "news", &options, publish("b")).unwrap();
    let second = fleet.nodes[1].open(0, "");
    let seen = StreamPosition { offset: 2, ..at };
    fleet.begin_subscribe(1, second, "news", &options, recover(seen));
    fleet.settle();
    assert!(fleet.subscribed(1, second).is_none(), "the engine is asked");
    fleet.mend(1);
    fleet.settle();
    let subscribed = fleet.subscribed(1, second).unwrap().unwrap();
    assert!(subscribed.recovered && subscribed.publications.is_empty(), "{subscribed:?}");
    fleet.publish(0, "news", &options, publish("c")).unwrap();
    fleet.settle();
    assert_eq!(fleet.nodes[1].read(second), "pub news 3 c\n");
    assert_eq!(fleet.nodes[1].read(reader), "pub news 1 a\npub news 2 b\npub news 3 c\n");

    // One that nobody has ever seen is refused, by one read.
    let reads = fleet.reads;
    let third = fleet.nodes[1].open(0, "");
    let never = StreamPosition { offset: 99, ..at };
    assert!(!fleet.subscribe(1, third, "news", &options, recover(never)).unwrap().recovered);
    assert_eq!(fleet.reads, reads + 1);
}

/// It is sent a message of the new epoch before it is answered where the stream is.
#[test]
fn client_that_returns_before_the_node_resubscribes_recovers_from_a_read() {
    let mut fleet = Fleet::new(1, 1);
    let options = with_history();
    let reader = fleet.nodes[0].open(0, "");
    let at = fleet.subscribe(0, reader, "news", &options, FRESH()).unwrap().position;
    let seen = fleet.publish(0, "news", &options, publish("one")).unwrap().position;
    let now = fleet.nodes[0].now;
    let (channel, epoch): (Arc<str>, _) = ("news".into(), Epoch::from_u64(77));
    assert_ne!(at.epoch, epoch);
    let NewPublication { data, format, delta, info, tags, key, .. } = publish("two");
    let publication = PublicationParts {
        offset: 2,
        data,
        format,
        delta,
        info,
        tags,
        key,
        ..PublicationParts::default()
    };
    let hub = fleet.nodes[0].hub(0);
    for event in [
        EngineEvent::Publication {
            channel: channel.clone(),
            epoch,
            publication: publication.into(),
            except: None,
        },
        EngineEvent::Lineage { channel, epoch, inherits: [seen].into_iter().collect() },
    ] {
        hub.handle_engine(now, CONFIG.id, event);
    }
    fleet.settle();
    let said = format!("pub news 1 one\nunsub news {}\n", code::UNSUBSCRIBE_INSUFFICIENT_STATE);
    assert_eq!(fleet.nodes[0].read(reader), said);
    let subscribed = fleet.subscribe(0, reader, "news", &options, recover(seen)).unwrap();
    assert_eq!((subscribed.position.epoch, subscribed.recovered), (epoch, true));
    assert_eq!(offsets(&subscribed.publications), [2]);
}

#[test]
fn the_ring_serves_who_comes_back_without_a_read_of_the_engine() {
    let mut fleet = Fleet::new(1, 2);
    let options = with_history();
    let reader = fleet.nodes[0].open(0, "");
    let at = fleet.subscribe(0, reader, "news", &options, FRESH()).unwrap().position;
    for _ in 0..5 {
        fleet.publish(0, "news", &options, publish("m")).unwrap();
    }
    let now = fleet.nodes[0].now;
    // The only subscriber goes, and comes back a little later.
    fleet.nodes[0].hub(0).close_session(now, reader);
    fleet.settle();
    fleet.publish(0, "news", &options, publish("m")).unwrap();
    fleet.pass(1_000);
    let reader = fleet.nodes[0].open(1, "");
    let seen = StreamPosition { offset: 2, ..at };
    let subscribed = fleet.subscribe(0, reader, "news", &options, recover(seen)).unwrap();
    assert_eq!(offsets(&subscribed.publications), [3, 4, 5, 6]);
    assert_eq!(fleet.reads, 0);

    // After a while without subscribers the node hears the channel no more.
    fleet.nodes[0].hub(1).close_session(now, reader);
    fleet.settle();
    fleet.pass(CONFIG.position_check_ms);
    fleet.pass(CONFIG.position_check_ms);
    let stats = fleet.nodes[0].hubs.iter().map(|hub| hub.stats());
    assert_eq!(stats.map(|of| of.engine_channels + of.home_channels).sum::<u64>(), 0);
}

#[test]
fn one_read_serves_all_who_recover_after_a_restart() {
    let mut fleet = Fleet::new(2, 1);
    let options = with_history();
    let epoch = fleet.publish(0, "news", &options, publish("m")).unwrap().position.epoch;
    for _ in 0..20 {
        fleet.publish(0, "news", &options, publish("m")).unwrap();
    }
    let readers: Vec<_> = (0..10).map(|_| fleet.nodes[1].open(0, "")).collect();
    for (offset, &reader) in (5..).zip(&readers) {
        let seen = StreamPosition { offset, epoch };
        fleet.begin_subscribe(1, reader, "news", &options, recover(seen));
    }
    fleet.settle();
    for (offset, &reader) in (5..).zip(&readers) {
        let subscribed = fleet.subscribed(1, reader).unwrap().unwrap();
        assert!(subscribed.recovered);
        assert_eq!(offsets(&subscribed.publications), (offset + 1..=21).collect::<Vec<u64>>());
    }
    assert_eq!(fleet.reads, 1);
    // What was read is in the ring from now on.
    let late = fleet.nodes[1].open(0, "");
    let seen = StreamPosition { offset: 7, epoch };
    assert!(fleet.subscribe(1, late, "news", &options, recover(seen)).unwrap().recovered);
    assert_eq!(fleet.reads, 1);
}

#[test]
fn a_gap_is_repaired_before_a_client_sees_what_comes_later() {
    let mut fleet = Fleet::new(2, 2);
    let options = with_history();
    let readers = [fleet.nodes[1].open(0, ""), fleet.nodes[1].open(1, "")];
    for reader in readers {
        fleet.subscribe(1, reader, "news", &options, FRESH()).unwrap();
    }
    fleet.publish(0, "news", &options, publish("one")).unwrap();
    fleet.links(1).for_each(|link| link.lose = 2);
    for data in ["two", "three", "four", "five"] {
        fleet.publish(0, "news", &options, publish(data)).unwrap();
    }
    for reader in readers {
        let said =
            "pub news 1 one\npub news 2 two\npub news 3 three\npub news 4 four\npub news 5 five\n";
        assert_eq!(fleet.nodes[1].read(reader), said);
    }
    let stats = fleet.nodes[1].hubs.iter().map(|hub| hub.stats());
    let sums = stats.map(|of| (of.engine_repaired, of.gaps, of.engine_held_bytes));
    assert_eq!(sums.fold((0, 0, 0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2)), (1, 0, 0));
}

#[test]
fn the_last_publication_is_missed_no_longer_than_until_the_next_check() {
    let mut fleet = Fleet::new(2, 1);
    let options = with_history();
    let reader = fleet.nodes[1].open(0, "");
    fleet.subscribe(1, reader, "news", &options, FRESH()).unwrap();
    fleet.links(1).for_each(|link| link.lose = 1);
    fleet.publish(0, "news", &options, publish("last")).unwrap();
    assert_eq!(fleet.nodes[1].read(reader), "");
    fleet.pass(CONFIG.position_check_ms);
    fleet.pass(CONFIG.position_check_ms);
    assert_eq!(fleet.nodes[1].read(reader), "pub news 1 last\n");
}

/// A channel at rest is checked at one interval of four: there are many of them.
#[test]
fn position_check_of_a_channel_at_rest_is_rare_and_finds_a_lost_last_publication() {
    let mut fleet = Fleet::new(2, 1);
    let options = with_history();
    let readers: Vec<_> = (0..200).map(|_| fleet.nodes[1].open(0, "")).collect();
    for (channel, &reader) in readers.iter().enumerate() {
        fleet.subscribe(1, reader, &format!("c{channel}"), &options, FRESH()).unwrap();
    }
    for _ in 0..8 {
        fleet.pass(CONFIG.position_check_ms);
    }
    let before = fleet.positions_read;
    for _ in 0..20 {
        fleet.pass(CONFIG.position_check_ms);
    }
    let per_interval = (fleet.positions_read - before) / 20;
    assert!((1..=50).contains(&per_interval), "{per_interval} of 200");
    fleet.links(1).for_each(|link| link.lose = 1);
    fleet.publish(0, "c7", &options, publish("last")).unwrap();
    assert_eq!(fleet.nodes[1].read(readers[7]), "");
    for _ in 0..5 {
        fleet.pass(CONFIG.position_check_ms);
    }
    assert_eq!(fleet.nodes[1].read(readers[7]), "pub c7 1 last\n");
}

/// The figures of docs/operating/engines.md.
#[test]
fn position_checks_of_a_hundred_thousand_channels_at_rest_are_some_sixty_requests_an_interval() {
    const INTERVALS: u64 = 4;
    let mut fleet = Fleet::new(1, 1);
    let options = with_history();
    for at in 0..1_000 {
        let reader = fleet.nodes[0].open(0, "");
        for channel in 0..100 {
            let channel = format!("c{at}-{channel}");
            fleet.subscribe(0, reader, &channel, &options, FRESH()).unwrap();
        }
    }
    let mut pass = |intervals: u64| {
        (0..intervals * 50).for_each(|_| fleet.pass(CONFIG.position_check_ms / 50));
        (fleet.positions_read as u64, fleet.position_requests as u64)
    };
    let before = pass(8);
    let after = pass(INTERVALS);
    let [positions, requests] = [after.0 - before.0, after.1 - before.1].map(|of| of / INTERVALS);
    assert!((24_000..=26_500).contains(&positions), "{positions} positions an interval");
    assert!((49..=70).contains(&requests), "{requests} requests an interval");
}

#[test]
fn idle_channels_are_checked_together() {
    let mut fleet = Fleet::new(1, 1);
    let options = with_history();
    for channel in 0..100 {
        let reader = fleet.nodes[0].open(0, "");
        fleet.subscribe(0, reader, &format!("c{channel}"), &options, FRESH()).unwrap();
    }
    for _ in 0..3 {
        fleet.pass(CONFIG.position_check_ms);
    }
    assert_eq!(fleet.position_requests, 2, "in the first interval all of them were heard");
}

#[test]
fn of_many_channels_each_is_checked_once_in_an_interval_a_slice_at_a_time() {
    let mut fleet = Fleet::new(1, 1);
    let options = with_history();
    for channel in 0..1_500 {
        let reader = fleet.nodes[0].open(0, "");
        fleet.subscribe(0, reader, &format!("c{channel}"), &options, FRESH()).unwrap();
    }
    fleet.pass(CONFIG.position_check_ms);
    for _ in 0..100 {
        fleet.pass(CONFIG.position_check_ms / 50);
    }
    // Of two intervals the first knew them all as heard.
    let checked = fleet.positions_read;
    assert!((1_500..=3_000).contains(&checked), "{checked}");
}

#[test]
fn gap_that_cannot_be_repaired_is_reported() {
    let mut fleet = Fleet::new(2, 1);
    let options = with_history();
    let reader = fleet.nodes[1].open(0, "");
    let at = fleet.subscribe(1, reader, "news", &options, FRESH()).unwrap().position;
    fleet.links(1).for_each(|link| link.lose = 1);
    fleet.publish(0, "news", &options, publish("one")).unwrap();
    fleet.trim("news", 1);
    fleet.publish(0, "news", &options, publish("two")).unwrap();
    let said = format!("unsub news {}\n", code::UNSUBSCRIBE_INSUFFICIENT_STATE);
    assert_eq!(fleet.nodes[1].read(reader), said);
    let subscribed = fleet.subscribe(1, reader, "news", &options, recover(at)).unwrap();
    assert!(!subscribed.recovered);
    assert_eq!(subscribed.position.offset, 2);
    fleet.publish(0, "news", &options, publish("three")).unwrap();
    assert_eq!(fleet.nodes[1].read(reader), "pub news 3 three\n");
}

#[test]
fn publications_behind_a_gap_are_bounded() {
    let mut fleet = Fleet::new(2, 1);
    let options = with_history();
    fleet.use_engine(1, &EngineConfig { held_bytes_max: 1_000, ..CONFIG });
    let reader = fleet.nodes[1].open(0, "");
    let at = fleet.subscribe(1, reader, "news", &options, FRESH()).unwrap().position;
    fleet.links(1).for_each(|link| link.lose = 1);
    fleet.begin_publish(0, "news", &options, publish("lost"));
    // Its answer to the read is late; much is published meanwhile.
    for _ in 0..20 {
        fleet.begin_publish(0, "news", &options, publish(&"x".repeat(100)));
    }
    for _ in 0..15 {
        assert!(fleet.deliver(1, 0));
        assert!(fleet.nodes[1].hubs[0].stats().engine_held_bytes <= 1_000);
    }
    fleet.settle();
    let said = format!("unsub news {}\n", code::UNSUBSCRIBE_INSUFFICIENT_STATE);
    assert_eq!(fleet.nodes[1].read(reader), said);
    // Nothing is lost: it is in the engine.
    let subscribed = fleet.subscribe(1, reader, "news", &options, recover(at)).unwrap();
    assert_eq!(offsets(&subscribed.publications), (1..=21).collect::<Vec<u64>>());
    assert_eq!(fleet.nodes[1].hubs[0].stats().engine_held_bytes, 0);
}

#[test]
fn a_connection_that_was_lost_is_made_good() {
    let mut fleet = Fleet::new(2, 1);
    let options = with_history();
    let reader = fleet.nodes[1].open(0, "");
    fleet.subscribe(1, reader, "news", &options, FRESH()).unwrap();
    let ticker = fleet.nodes[1].open(0, "");
    fleet.subscribe(1, ticker, "ticks", &plain(), FRESH()).unwrap();
    fleet.cut(1);
    for data in ["one", "two"] {
        fleet.publish(0, "news", &options, publish(data)).unwrap();
        fleet.publish(0, "ticks", &plain(), publish(data)).unwrap();
    }
    fleet.mend(1);
    fleet.publish(0, "news", &options, publish("three")).unwrap();
    fleet.settle();
    assert_eq!(
        fleet.nodes[1].read(reader),
        "pub news 1 one\npub news 2 two\npub news 3 three\n",
        "nobody was thrown out"
    );
    let said = format!("unsub ticks {}\n", code::UNSUBSCRIBE_INSUFFICIENT_STATE);
    assert_eq!(fleet.nodes[1].read(ticker), said, "what keeps nothing cannot be repaired");
}

#[test]
fn after_the_engine_lost_its_data_nobody_recovers_by_chance() {
    let mut fleet = Fleet::new(2, 1);
    let options = with_history();
    let reader = fleet.nodes[1].open(0, "");
    let at = fleet.subscribe(1, reader, "news", &options, FRESH()).unwrap().position;
    fleet.publish(0, "news", &options, publish("one")).unwrap();
    fleet.cut(1);
    fleet.forget();
    fleet.publish(0, "news", &options, publish("another one")).unwrap();
    fleet.mend(1);
    fleet.settle();
    let said = format!("pub news 1 one\nunsub news {}\n", code::UNSUBSCRIBE_INSUFFICIENT_STATE);
    assert_eq!(fleet.nodes[1].read(reader), said);
    let seen = StreamPosition { offset: 1, ..at };
    let subscribed = fleet.subscribe(1, reader, "news", &options, recover(seen)).unwrap();
    assert!(!subscribed.recovered, "equal offsets of another epoch");
    assert_ne!(subscribed.position.epoch, at.epoch);
}

#[test]
fn a_stream_that_the_engine_has_forgotten_is_noticed_where_nothing_is_published() {
    let mut fleet = Fleet::new(1, 1);
    let options = with_history();
    let reader = fleet.nodes[0].open(0, "");
    let at = fleet.subscribe(0, reader, "news", &options, FRESH()).unwrap().position;
    fleet.forget();
    fleet.pass(CONFIG.position_check_ms);
    fleet.pass(CONFIG.position_check_ms);
    let said = format!("unsub news {}\n", code::UNSUBSCRIBE_INSUFFICIENT_STATE);
    assert_eq!(fleet.nodes[0].read(reader), said);
    let subscribed = fleet.subscribe(0, reader, "news", &options, FRESH()).unwrap();
    assert_ne!(subscribed.position.epoch, at.epoch);
    fleet.publish(0, "news", &options, publish("one")).unwrap();
    assert_eq!(fleet.nodes[0].read(reader), "pub news 1 one\n");
}

#[test]
fn a_silent_engine_leaves_subscribers_and_answers_everybody() {
    let mut fleet = Fleet::new(1, 1);
    let options = with_history();
    let reader = fleet.nodes[0].open(0, "");
    let at = fleet.subscribe(0, reader, "news", &options, FRESH()).unwrap().position;
    fleet.cut(0);
    fleet.begin_publish(0, "news", &options, publish("one"));
    let waits = fleet.nodes[0].open(0, "");
    fleet.begin_subscribe(0, waits, "other", &options, FRESH());
    assert_eq!(fleet.published(0), None);
    fleet.pass(CONFIG.timeout_ms - 1);
    assert_eq!(fleet.published(0), None);
    fleet.pass(CONFIG.timeout_ms);
    assert_eq!(fleet.published(0), Some(Err(Error::EngineUncertain)));
    assert_eq!(fleet.subscribed(0, waits), Some(Err(Error::EngineUnavailable)));
    assert_eq!(fleet.nodes[0].read(reader), "", "who is subscribed stays so");
    // What this node knows it answers by itself.
    let same = fleet.nodes[0].open(0, "");
    assert!(fleet.subscribe(0, same, "news", &options, recover(at)).unwrap().recovered);
    let stats = fleet.nodes[0].hubs[0].stats();
    assert_eq!((stats.engine_pending, stats.engine_channels), (0, 1));
    fleet.mend(0);
    fleet.settle();
    assert_eq!(fleet.nodes[0].read(reader), "pub news 1 one\n", "it was in the pipe");
    assert!(fleet.subscribe(0, waits, "other", &options, FRESH()).is_ok());
}

#[test]
fn session_that_leaves_during_an_engine_call_is_not_subscribed_by_its_answer() {
    let mut fleet = Fleet::new(1, 2);
    let options = with_history();
    let channel = fleet.nodes[0].channel_at(1, "c");
    let reader = fleet.nodes[0].open(0, "");
    fleet.begin_subscribe(0, reader, &channel, &options, FRESH());
    let world = &mut fleet.nodes[0];
    let now = world.now;
    world.hub(0).close_session(now, reader);
    fleet.settle();
    fleet.publish(0, &channel, &options, publish("m")).unwrap();
    fleet.pass(CONFIG.position_check_ms);
    fleet.pass(CONFIG.position_check_ms);
    let stats = fleet.nodes[0].hubs[1].stats();
    assert_eq!((stats.engine_channels, stats.home_channels), (0, 0));
}

#[test]
fn a_channel_that_moves_to_an_engine_sends_its_subscribers_there() {
    let mut fleet = Fleet::new(2, 2);
    let options = with_history();
    for node in 0..2 {
        let world = &mut fleet.nodes[node];
        for hub in &mut world.hubs {
            hub.set_engines(world.now, &[], []);
        }
    }
    let reader = fleet.nodes[0].open(0, "");
    let at = fleet.subscribe(0, reader, "news", &options, FRESH()).unwrap().position;
    fleet.publish(0, "news", &options, publish("here")).unwrap();
    for node in 0..2 {
        fleet.use_engine(node, &CONFIG);
    }
    let said = format!("pub news 1 here\nunsub news {}\n", code::UNSUBSCRIBE_INSUFFICIENT_STATE);
    assert_eq!(fleet.nodes[0].read(reader), said);
    let seen = StreamPosition { offset: 1, ..at };
    let subscribed = fleet.subscribe(0, reader, "news", &options, recover(seen)).unwrap();
    assert!(!subscribed.recovered);
    fleet.publish(1, "news", &options, publish("there")).unwrap();
    assert_eq!(fleet.nodes[0].read(reader), "pub news 1 there\n");
}

#[test]
fn the_last_value_of_a_channel_is_had_from_the_engine() {
    let mut fleet = Fleet::new(2, 1);
    let mut options = (*with_history()).clone();
    options.recovery_mode = RecoveryMode::Cache;
    let options = options.into();
    for data in ["a", "b"] {
        fleet.publish(0, "state", &options, publish(data)).unwrap();
    }
    let reader = fleet.nodes[1].open(0, "");
    let asked = recover(StreamPosition::default());
    let subscribed = fleet.subscribe(1, reader, "state", &options, asked).unwrap();
    assert_eq!(offsets(&subscribed.publications), [2]);
}

#[test]
fn hooks_learn_of_a_publication_once_from_the_node_that_took_it() {
    let mut fleet = Fleet::new(2, 1);
    let options = with_history();
    for node in 0..2 {
        let filter = ChannelEventFilter { publications: true, ..ChannelEventFilter::default() };
        fleet.nodes[node].hub(0).set_channel_event_filter(filter);
        let reader = fleet.nodes[node].open(0, "");
        fleet.subscribe(node, reader, "news", &options, FRESH()).unwrap();
    }
    fleet.publish(0, "news", &options, publish("m")).unwrap();
    fleet.cut(0);
    fleet.begin_publish(0, "news", &options, publish("refused"));
    fleet.pass(CONFIG.timeout_ms);
    let mut reported = |node: usize| {
        std::iter::from_fn(|| fleet.nodes[node].hub(0).poll_channel_event()).collect::<Vec<_>>()
    };
    let events = reported(0);
    let [ChannelEvent::Published { publication, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((publication.offset(), publication.data()), (1, &b"m"[..]));
    assert_eq!(reported(1), []);
}

#[test]
fn history_is_the_engine_s_and_its_removal_reaches_every_ring() {
    let mut fleet = Fleet::new(2, 1);
    let options = with_history();
    let reader = fleet.nodes[1].open(0, "");
    let at = fleet.subscribe(1, reader, "news", &options, FRESH()).unwrap().position;
    fleet.publish(0, "news", &options, publish("one")).unwrap();
    let now = fleet.nodes[0].now;
    let filter = HistoryFilter::default();
    fleet.nodes[0].hub(0).handle_history(
        now,
        5,
        ChannelRef::new("news", &options),
        filter,
        Owner::NONE,
    );
    fleet.nodes[0].hub(0).handle_history_remove(now, 6, ChannelRef::new("news", &options));
    fleet.settle();
    let events = fleet.nodes[0].take_events();
    assert!(format!("{events:?}").contains("offset: 1"), "{events:?}");
    let other = fleet.nodes[1].open(0, "");
    assert!(!fleet.subscribe(1, other, "news", &options, recover(at)).unwrap().recovered);
}

#[test]
fn joins_and_leaves_are_exchanged_with_servers_of_another_kind() {
    let mut fleet = Fleet::new(2, 2);
    for node in 0..2 {
        fleet.use_engine(node, &EngineConfig { shares_members: true, ..CONFIG });
    }
    let options =
        Arc::new(ChannelOptions { join_leave: true, ..ChannelOptions::clone(&with_history()) });
    let joining = || SubscribeOptions { join_leave: true, ..FRESH() };
    let watcher = fleet.nodes[1].open(1, "watcher");
    fleet.subscribe(1, watcher, "room", &options, joining()).unwrap();
    fleet.nodes[1].read(watcher);
    let ada = fleet.nodes[0].open(0, "ada");
    fleet.subscribe(0, ada, "room", &options, joining()).unwrap();
    assert_eq!(fleet.nodes[1].read(watcher), "join room ada\n");
    let now = fleet.nodes[0].now;
    fleet.nodes[0].hub(0).close_session(now, ada);
    fleet.settle();
    assert_eq!(fleet.nodes[1].read(watcher), "leave room ada\n");
}

#[test]
fn a_wildcard_follows_nothing_and_is_one_of_so_many() {
    let mut fleet = Fleet::new(1, 1);
    let options = Arc::new(with_history().of_wildcard());
    let reader = fleet.nodes[0].open(0, "");
    let asked = SubscribeOptions {
        recoverable: true,
        positioned: true,
        ..recover(StreamPosition::default())
    };
    let subscribed = fleet.subscribe(0, reader, "a.*", &options, asked).unwrap();
    assert!(subscribed.was_recovering && !subscribed.recovered);
    assert!(!subscribed.recoverable && !subscribed.positioned);
    assert_eq!(subscribed.position, StreamPosition::default());
    // The model's engine has room for two.
    let others = [fleet.nodes[0].open(0, ""), fleet.nodes[0].open(0, "")];
    assert!(fleet.subscribe(0, others[0], "a.*", &options, FRESH()).is_ok());
    assert!(fleet.subscribe(0, others[0], "b.*", &options, FRESH()).is_ok());
    let refused = fleet.subscribe(0, others[1], "c.*", &options, FRESH());
    assert_eq!(refused.map(|of| of.position), Err(Error::LimitExceeded));
    assert!(fleet.subscribe(0, others[1], "c", &with_history(), FRESH()).is_ok());
    let refused = fleet.publish(0, "a.*", &options, publish("1"));
    assert_eq!(refused.map(|of| of.position), Err(Error::Wildcard));
    // One that nobody listens to any more makes room.
    let world = &mut fleet.nodes[0];
    world.hubs[0].handle_unsubscribe(world.now, others[0], "b.*", None);
    for _ in 0..3 {
        fleet.pass(CONFIG.position_check_ms);
    }
    assert!(fleet.subscribe(0, others[1], "c.*", &options, FRESH()).is_ok());
}
