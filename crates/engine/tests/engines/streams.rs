//! Behaviour of every engine, in each deployment.

use std::sync::Arc;

use dunlin_engine::redis::{Layout, RedisConfig};
use dunlin_engine::{EngineEvent, EngineRequest, Retention};
use dunlin_hub::{
    ClientInfo, Epoch, Error, HistoryFilter, NewPublication, PayloadFormat, SessionId,
    StreamPosition,
};

use crate::nats_server::NatsServer;
use crate::nodes::{Fleet, KEPT, Setup, UNKEPT, data_of, heard};
use crate::servers::{Deployment, RedisServer};

/// Returns a configuration with the layout of Centrifugo.
pub fn centrifugo(deployment: &Deployment) -> RedisConfig {
    let config = RedisConfig::new(deployment.topology.clone());
    RedisConfig { layout: Layout::Centrifugo, prefix: "centrifugo".to_owned(), ..config }
}

/// Runs a test for each engine and deployment.
fn with_each(story: impl Fn(&Setup, &[RedisServer])) {
    for deployment in [
        Deployment::single(),
        Deployment::servers(3),
        Deployment::sentinel(),
        Deployment::cluster(3),
    ] {
        story(&Setup::from(&deployment.topology), &deployment.servers);
    }
    for deployment in [Deployment::single(), Deployment::servers(3), Deployment::cluster(3)] {
        story(&Setup::from(&centrifugo(&deployment)), &deployment.servers);
    }
    let server = NatsServer::start(&["-js"]);
    story(&Setup::Nats(server.config()), &[]);
}

#[test]
fn publications_of_one_node_reach_others_once_and_in_order() {
    with_each(|setup, _| {
        let mut fleet = Fleet::new(setup, 3);
        for channel in ["a", "b", "c", "d"] {
            for node in 0..2 {
                let at = fleet.subscribe(node, channel, KEPT);
                assert!(at.position.offset == 0 && at.inherits.is_empty());
            }
            // A hundred in one turn are joined.
            let tokens: Vec<u64> = (0..100)
                .map(|number| fleet.send(2, channel, KEPT, data_of(&number.to_string())))
                .collect();
            let results: Vec<_> =
                tokens.iter().map(|&token| fleet.published(2, token).unwrap()).collect();
            for (number, result) in results.iter().enumerate() {
                assert_eq!(result.position.offset, number as u64 + 1);
                assert_eq!(result.position.epoch, results[0].position.epoch);
                assert!(!result.suppressed);
            }
            // Then one by one, from two nodes.
            for number in 100..120 {
                let at = fleet.publish(number % 2, channel, &number.to_string());
                assert_eq!(at.offset, number as u64 + 1);
            }
            fleet.until("heard", |nodes| nodes[..2].iter().all(|n| heard(n, channel).len() == 120));
            for node in &fleet.nodes.0[..2] {
                let all: Vec<_> = (0..120).map(|n| (n as u64 + 1, n.to_string())).collect();
                assert_eq!(heard(node, channel), all);
            }
            assert!(heard(&fleet.nodes.0[2], channel).is_empty());
            let at = fleet.subscribe(2, channel, KEPT);
            assert_eq!(at.position.offset, 120);
        }
        let stats = fleet.nodes.0[2].engine.stats();
        assert!(stats.published == 400 && stats.publish_commands < 40, "{stats:?}");
    });
}

#[test]
fn publication_without_history_has_no_offset() {
    with_each(|setup, _| {
        let mut fleet = Fleet::new(setup, 2);
        fleet.subscribe(0, "ticker", UNKEPT);
        for number in 0..3 {
            let token = fleet.send(1, "ticker", UNKEPT, data_of(&number.to_string()));
            let published = fleet.published(1, token).unwrap();
            assert_eq!(published.position, StreamPosition::default());
        }
        let keyed = || NewPublication { idempotency_key: Some("k".into()), ..data_of("3") };
        for suppressed in [false, true] {
            let token = fleet.send(1, "ticker", UNKEPT, keyed());
            assert_eq!(fleet.published(1, token).unwrap().suppressed, suppressed);
        }
        let channel = "ticker".into();
        fleet.until("heard", |nodes| heard(&nodes[0], "ticker").len() == 4);
        fleet.ask(0, |_| EngineRequest::Unsubscribe { channel });
        // The next subscription shows that this one has ended.
        fleet.subscribe(0, "other", UNKEPT);
        let token = fleet.send(1, "ticker", UNKEPT, data_of("unheard"));
        fleet.published(1, token).unwrap();
        fleet.subscribe(0, "third", UNKEPT);
        let all: Vec<_> = (0..4).map(|number| (0, number.to_string())).collect();
        assert_eq!(heard(&fleet.nodes.0[0], "ticker"), all);
    });
}

#[test]
fn all_of_a_publication_crosses() {
    let deployment = Deployment::single();
    let mut fleet = Fleet::new(&deployment.topology, 2);
    fleet.subscribe(0, "a", KEPT);
    let info = ClientInfo {
        user_is_number: false,
        foreign_client: None,
        user: "ada".into(),
        client: SessionId::from_u64(77).unwrap(),
        conn_info: Some(b"{}".as_slice().into()),
        chan_info: None,
    };
    let publish = NewPublication {
        data: b"\0\xff".as_slice().into(),
        format: PayloadFormat::Binary,
        delta: true,
        tags: [("tag".into(), "value".into())].into_iter().collect(),
        info: Some(Arc::new(info)),
        key: Some("key".into()),
        ..NewPublication::default()
    };
    let token = fleet.send(1, "a", KEPT, publish.clone());
    fleet.published(1, token).unwrap();
    let publication = fleet.answer(0, "heard", |event| match event {
        EngineEvent::Publication { publication, .. } => Some(publication.clone()),
        _ => None,
    });
    assert_eq!((publication.data(), publication.format()), (&*publish.data, publish.format));
    assert_eq!((publication.tags(), publication.info()), (&publish.tags, publish.info.as_ref()));
    assert!(publication.delta() && publication.key() == Some("key"));
    let history = fleet.history(0, "a", HistoryFilter::default()).unwrap();
    assert_eq!(history.publications, [publication]);
}

#[test]
fn history_reads_as_that_of_memory_does() {
    with_each(|setup, _| {
        let mut fleet = Fleet::new(setup, 2);
        // One by one, and joined.
        for (channel, joined) in [("one", 1), ("many", 7), ("all", 64)] {
            let mut tokens = Vec::new();
            for number in 1..=250 {
                tokens.push(fleet.send(0, channel, KEPT, data_of(&number.to_string())));
                if number % joined == 0 {
                    fleet.turn();
                }
            }
            let last = tokens[tokens.len() - 1];
            let top = fleet.published(0, last).unwrap().position;
            assert_eq!(top.offset, 250);
            let mut read = |since: Option<u64>, limit, reverse| {
                let since = since.map(|offset| StreamPosition { offset, ..top });
                let filter = HistoryFilter { since, limit, reverse, ..HistoryFilter::default() };
                let history = fleet.history(1, channel, filter).unwrap();
                assert_eq!(history.position, top);
                for publication in &history.publications {
                    assert_eq!(*publication.data(), *publication.offset().to_string().as_bytes());
                }
                history.publications.iter().map(|of| of.offset()).collect::<Vec<_>>()
            };
            let none: [u64; 0] = [];
            assert_eq!(read(None, None, false), (151..=250).collect::<Vec<_>>());
            assert_eq!(read(None, Some(0), false), none);
            assert_eq!(read(None, Some(2), false), [151, 152]);
            assert_eq!(read(None, Some(2), true), [250, 249]);
            assert_eq!(read(Some(200), None, false), (201..=250).collect::<Vec<_>>());
            assert_eq!(read(Some(200), Some(3), false), [201, 202, 203]);
            assert_eq!(read(Some(2), Some(1), false), [151], "what is left");
            assert_eq!(read(Some(250), None, false), none);
            assert_eq!(read(Some(u64::MAX), None, false), none);
            assert_eq!(read(Some(153), None, true), [152, 151]);
            assert_eq!(read(Some(251), Some(1), true), [250]);
            assert_eq!(read(Some(252), None, true), none);
            assert_eq!(read(Some(3), None, true), none);
            let foreign = StreamPosition { offset: 3, epoch: Epoch::FOREIGN };
            let filter = HistoryFilter { since: Some(foreign), ..HistoryFilter::default() };
            let refused = fleet.history(1, channel, filter);
            assert_eq!(refused, Err(Error::UnrecoverablePosition(top)));
            let since = Some(StreamPosition { offset: 0, ..top });
            let filter = HistoryFilter { since, reverse: true, ..HistoryFilter::default() };
            assert_eq!(fleet.history(1, channel, filter), Err(Error::BadRequest));
            let filter = HistoryFilter { bytes_max: Some(1), ..HistoryFilter::default() };
            assert_eq!(fleet.history(1, channel, filter).unwrap().publications.len(), 1);
            // In pages of limited size, in both directions.
            for reverse in [false, true] {
                let (mut since, mut offsets) = (None, Vec::new());
                loop {
                    let filter = HistoryFilter {
                        since,
                        reverse,
                        bytes_max: Some(1_000),
                        ..Default::default()
                    };
                    let page = fleet.history(1, channel, filter).unwrap().publications;
                    let Some(last) = page.last() else { break };
                    since = Some(StreamPosition { offset: last.offset(), ..top });
                    offsets.extend(page.iter().map(|of| of.offset()));
                }
                if reverse {
                    offsets.reverse();
                }
                assert_eq!(offsets, (151..=250).collect::<Vec<_>>());
            }
        }
    });
}

#[test]
fn a_repeated_key_and_an_older_version_are_suppressed() {
    with_each(|setup, _| {
        let mut fleet = Fleet::new(setup, 2);
        fleet.subscribe(0, "a", KEPT);
        let keyed = || NewPublication { idempotency_key: Some("k".into()), ..data_of("keyed") };
        let token = fleet.send(0, "a", KEPT, keyed());
        let first = fleet.published(0, token).unwrap();
        assert!(!first.suppressed && first.position.offset == 1);
        fleet.publish(1, "a", "between");
        let token = fleet.send(1, "a", KEPT, keyed());
        let again = fleet.published(1, token).unwrap();
        assert_eq!((again.suppressed, again.position), (true, first.position));

        let mut versions = |version, epoch: &str, node| {
            let version_epoch = epoch.into();
            let publish = NewPublication { version, version_epoch, ..data_of("versioned") };
            let token = fleet.send(node, "a", KEPT, publish);
            fleet.published(node, token).unwrap().suppressed
        };
        assert!(!versions(9, "", 0));
        assert!(versions(9, "", 1) && versions(8, "", 0), "an older one");
        assert!(!versions(10, "", 1), "ten is more than nine");
        assert!(!versions(u64::MAX, "", 1));
        assert!(!versions(3, "b", 0) && versions(3, "b", 1), "another epoch begins anew");
        fleet.until("heard", |nodes| heard(&nodes[0], "a").len() == 6);
        let offsets: Vec<u64> =
            heard(&fleet.nodes.0[0], "a").iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets, [1, 2, 3, 4, 5, 6]);
    });
}

#[test]
fn removed_history_is_gone_for_all_and_offsets_go_on() {
    with_each(|setup, servers| {
        let mut fleet = Fleet::new(setup, 2);
        fleet.subscribe(0, "a", KEPT);
        for number in 1..=3 {
            fleet.publish(1, "a", &number.to_string());
        }
        let channel: Arc<str> = "a".into();
        let token = fleet.ask(1, |token| EngineRequest::RemoveHistory { token, channel });
        let removed = fleet.answer(1, "removed", |event| match event {
            EngineEvent::HistoryRemoved { token: of, result } if *of == token => Some(*result),
            _ => None,
        });
        assert_eq!(removed, Ok(()));
        fleet.answer(0, "cleared", |event| {
            matches!(event, EngineEvent::Cleared { channel } if **channel == *"a").then_some(())
        });
        assert!(fleet.history(0, "a", HistoryFilter::default()).unwrap().publications.is_empty());
        assert_eq!(fleet.publish(1, "a", "4").offset, 4);
        let history = fleet.history(0, "a", HistoryFilter::default()).unwrap();
        assert_eq!(history.publications.len(), 1);
        for server in servers {
            let ttl = server.cli(&["EVAL", NO_TTL, "0"]);
            assert!(ttl.is_empty() || ttl.starts_with("MOVED"), "keys without end: {ttl}");
        }
    });
}

/// A script that lists the stream keys without a time to live.
const NO_TTL: &str = "local out = {} for _, k in ipairs(redis.call('KEYS', '*[:.][cms]*')) do \
     if redis.call('TTL', k) < 0 then out[#out + 1] = k end end return out";

#[test]
fn positions_of_many_channels_are_read_at_once() {
    with_each(|setup, _| {
        let mut fleet = Fleet::new(setup, 1);
        let mut channels: Vec<Arc<str>> = Vec::new();
        let mut expected = Vec::new();
        for number in 0..20u32 {
            let channel = format!("channel{number}");
            for _ in 0..number % 3 {
                fleet.publish(0, &channel, "x");
            }
            expected.push(u64::from(number % 3));
            channels.push(channel.into());
        }
        let token = fleet.ask(0, |token| EngineRequest::Positions { token, channels });
        let positions = fleet.answer(0, "positions", |event| match event {
            EngineEvent::Positions { token: of, result } if *of == token => {
                Some(result.clone().unwrap())
            }
            _ => None,
        });
        let offsets: Vec<u64> = positions.iter().map(|position| position.offset).collect();
        assert_eq!(offsets, expected);
        assert_eq!(positions[0], StreamPosition::default(), "it has no stream");
        assert_eq!(positions[4].epoch, fleet.publish(0, "channel4", "x").epoch);
    });
}

/// The epoch and the top outlive the publications, so that a client that missed nothing recovers.
#[test]
fn a_stream_goes_on_when_its_publications_have_expired() {
    let deployment = Deployment::single();
    let mut fleet = Fleet::new(&deployment.topology, 2);
    let short = Retention { ttl_ms: 50, ..KEPT };
    let token = fleet.send(0, "a", short, data_of("1"));
    let first = fleet.published(0, token).unwrap().position;
    deployment.servers[0].wait(&["EXISTS", "dunlin:c:a"], "0");
    let at = fleet.subscribe(1, "a", short);
    assert_eq!(at.position, first);
    let token = fleet.send(0, "a", short, data_of("2"));
    let second = fleet.published(0, token).unwrap().position;
    assert_eq!(second, StreamPosition { offset: 2, ..first });
    deployment.servers[0].wait(&["EXISTS", "dunlin:c:a"], "0");
    let ttl: i64 = deployment.servers[0].cli(&["PTTL", "dunlin:m:a"]).parse().unwrap();
    assert!(ttl > 0 && ttl <= 610_000, "{ttl}");
}
