//! The layout of Centrifugo: its names and bytes, as one of its nodes writes and reads them. What all engines do, this layout
//! does in [`streams`](crate::streams); beside a node of Centrifugo's library it stands in `tests/interop`.

use dunlin_engine::redis::Topology;
use dunlin_engine::{EngineEvent, EngineRequest};
use dunlin_hub::{
    ClientInfo, Error, HistoryFilter, NewPublication, PayloadFormat, Publication, SessionId,
    StreamPosition,
};

use crate::nodes::{Fleet, KEPT, UNKEPT, data_of, heard};
use crate::servers::{Deployment, RedisServer};
use crate::streams::centrifugo;

/// Encodes a publication of Centrifugo: field 4 is the data, 5 the client info, 7 a tag.
fn foreign(data: &str, user: &str) -> String {
    let field = |number: u8, bytes: &str| {
        format!("{}{}{bytes}", (number << 3 | 2) as char, bytes.len() as u8 as char)
    };
    let info = field(1, user) + &field(2, "0e0ba3a1-6a3c-4a4e-9a0b-2a1d4d8a3c55");
    field(4, data) + &field(5, &info) + &field(7, &(field(1, "tag") + &field(2, "value")))
}

fn publication(fleet: &mut Fleet, node: usize, offset: u64) -> Publication {
    fleet.answer(node, "heard", |event| match event {
        EngineEvent::Publication { publication, .. } if publication.offset() == offset => {
            Some(publication.clone())
        }
        _ => None,
    })
}

#[test]
fn history_written_by_centrifugo_is_read() {
    let deployment = Deployment::single();
    let server = &deployment.servers[0];
    let mut fleet = Fleet::new(&centrifugo(&deployment), 1);
    server.cli(&["HSET", "centrifugo.stream.meta.a", "e", "AbCdEfGh", "s", "0"]);
    let at = fleet.subscribe(0, "a", KEPT).position;
    assert_eq!((at.epoch.to_string().as_str(), at.offset), ("AbCdEfGh", 0));
    let mut messages = Vec::new();
    for (offset, data) in [(1, "{\"a\":\n1}"), (2, "no json"), (3, "3")] {
        let (message, id) = (foreign(data, "ada"), format!("{offset}-0"));
        server.cli(&["HINCRBY", "centrifugo.stream.meta.a", "s", "1"]);
        server.cli(&["XADD", "centrifugo.stream.a", &id, "d", &message]);
        let head = match messages.last() {
            Some(before) if offset == 3 => {
                let before: &String = before;
                format!("__d1:3:AbCdEfGh:{}:{before}:{}:", before.len(), message.len())
            }
            _ => format!("__p1:{offset}:AbCdEfGh__"),
        };
        server.cli(&["PUBLISH", "centrifugo.client.a", &(head + &message)]);
        messages.push(message);
    }
    // Messages to ignore, and some that are invalid.
    for message in ["__j__", "__l__x", "__z1:", "__p1:x:e__", "__d1:4:e:9:a", "__"] {
        server.cli(&["PUBLISH", "centrifugo.client.a", message]);
    }
    fleet.until("heard", |nodes| nodes[0].engine.stats().messages == 9);
    let first = publication(&mut fleet, 0, 1);
    assert_eq!((first.data(), first.format()), (&b"{\"a\": 1}"[..], PayloadFormat::Json));
    let info = first.info().expect("somebody's");
    assert_eq!(&*info.user, "ada");
    assert_eq!(info.foreign_client.as_deref(), Some("0e0ba3a1-6a3c-4a4e-9a0b-2a1d4d8a3c55"));
    assert_eq!(first.tags()[0], ("tag".into(), "value".into()));
    let second = publication(&mut fleet, 0, 2);
    assert_eq!((second.data(), second.format()), (&b"no json"[..], PayloadFormat::Binary));
    let third = publication(&mut fleet, 0, 3);
    assert!(third.delta() && third.data() == b"3" && !second.delta());
    assert_eq!(third.info(), first.info(), "one client is one number");
    let stats = fleet.nodes.0[0].engine.stats();
    assert_eq!(stats.unreadable, 5, "{stats:?}");
    let history = fleet.history(0, "a", HistoryFilter::default()).unwrap();
    assert_eq!(history.position, StreamPosition { offset: 3, ..at });
    assert_eq!(history.publications[..2], [first, second]);
    // A stored result of Centrifugo for an idempotency key.
    server.cli(&["HSET", "centrifugo.result.a.k", "e", "AbCdEfGh", "s", "2"]);
    let keyed = NewPublication { idempotency_key: Some("k".into()), ..data_of("again") };
    let token = fleet.send(0, "a", KEPT, keyed);
    let published = fleet.published(0, token).unwrap();
    assert_eq!((published.suppressed, published.position.offset), (true, 2));
}

#[test]
fn history_is_written_where_centrifugo_reads_it() {
    let deployment = Deployment::single();
    let server = &deployment.servers[0];
    let mut fleet = Fleet::new(&centrifugo(&deployment), 1);
    let keyed = NewPublication { idempotency_key: Some("k".into()), ..data_of("one") };
    let token = fleet.send(0, "a", KEPT, keyed);
    let epoch = fleet.published(0, token).unwrap().position.epoch.to_string();
    let tokens: Vec<u64> =
        ["two", "three"].iter().map(|data| fleet.send(0, "a", KEPT, data_of(data))).collect();
    assert_eq!(fleet.published(0, tokens[1]).unwrap().position.offset, 3);
    let keys = server.cli(&["KEYS", "*"]);
    let mut keys: Vec<&str> = keys.lines().collect();
    keys.sort_unstable();
    assert_eq!(keys, ["centrifugo.result.a.k", "centrifugo.stream.a", "centrifugo.stream.meta.a"]);
    assert_eq!(server.cli(&["HMGET", "centrifugo.result.a.k", "e", "s"]), format!("{epoch}\n1"));
    assert_eq!(server.cli(&["HMGET", "centrifugo.stream.meta.a", "e", "s"]), format!("{epoch}\n3"));
    let entries = server.cli(&["XRANGE", "centrifugo.stream.a", "2-0", "2-0"]);
    let lines: Vec<&str> = entries.lines().collect();
    assert_eq!(lines[..2], ["2-0", "d"]);
    assert!(lines[2].starts_with("\"\x03two"), "field 4 is the data: {:?}", lines[2]);
    let ttl = |key: &str| server.cli(&["PTTL", key]).parse::<u64>().unwrap();
    assert!((1..=60_000).contains(&ttl("centrifugo.stream.a")));
    assert!((60_001..=600_000).contains(&ttl("centrifugo.stream.meta.a")));
    assert!((60_001..=300_000).contains(&ttl("centrifugo.result.a.k")));
}

#[test]
fn joins_and_leaves_are_said_to_centrifugo_and_heard_of_it() {
    let deployment = Deployment::single();
    let server = &deployment.servers[0];
    let mut fleet = Fleet::new(&centrifugo(&deployment), 2);
    for node in 0..2 {
        fleet.subscribe(node, "a", KEPT);
    }
    let client = "0e0ba3a1-6a3c-4a4e-9a0b-2a1d4d8a3c55";
    let info = format!("\n\x03ada\x12{}{client}", client.len() as u8 as char);
    for kind in ["__j__", "__l__"] {
        server.cli(&["PUBLISH", "centrifugo.client.a", &(kind.to_owned() + &info)]);
    }
    let announced = |node: &crate::nodes::Node| -> Vec<(String, bool)> {
        let events = node.events.iter();
        let of = |event: &EngineEvent| match event {
            EngineEvent::Announced { info, joined, .. } => {
                Some((info.foreign_client.as_deref()?.to_owned(), *joined))
            }
            _ => None,
        };
        events.filter_map(of).collect()
    };
    fleet.until("announced", |nodes| nodes.iter().all(|node| announced(node).len() == 2));
    assert_eq!(
        announced(&fleet.nodes.0[0]),
        [(client.to_owned(), true), (client.to_owned(), false)]
    );
    // What a node of Dunlin says is Centrifugo's to hear; the other node hears of it by the cluster.
    let info = std::sync::Arc::new(ClientInfo {
        user: "bob".into(),
        client: SessionId::from_u64(77).unwrap(),
        user_is_number: false,
        foreign_client: None,
        conn_info: None,
        chan_info: None,
    });
    let channel = "a".into();
    fleet.ask(0, |_| EngineRequest::Announce { channel, info, joined: true });
    fleet.until("heard", |nodes| nodes.iter().all(|node| node.engine.stats().messages == 3));
    assert_eq!(announced(&fleet.nodes.0[1]).len(), 2);
    assert_eq!(fleet.nodes.0[1].engine.stats().unreadable, 0);
}

/// Entries whose hash was evicted belong to a stream that is gone.
#[test]
fn a_stream_without_its_hash_begins_anew() {
    let deployment = Deployment::single();
    let server = &deployment.servers[0];
    let mut fleet = Fleet::new(&centrifugo(&deployment), 1);
    fleet.publish(0, "a", "1");
    let before = fleet.publish(0, "a", "2");
    server.cli(&["DEL", "centrifugo.stream.meta.a"]);
    let after = fleet.publish(0, "a", "new");
    assert!(after.offset == 1 && after.epoch != before.epoch);
    let history = fleet.history(0, "a", HistoryFilter::default()).unwrap();
    assert_eq!(history.publications.len(), 1);
    // A key of another type is refused, and the top stays.
    server.cli(&["DEL", "centrifugo.stream.a"]);
    server.cli(&["SET", "centrifugo.stream.a", "somebody's"]);
    let token = fleet.send(0, "a", KEPT, data_of("refused"));
    assert_eq!(fleet.published(0, token), Err(Error::EngineRefused));
    assert_eq!(server.cli(&["HGET", "centrifugo.stream.meta.a", "s"]), "1");
}

/// The layout has no generations. A node that has seen more than the server has begins another epoch.
#[test]
fn a_server_that_went_back_has_another_epoch_once_a_node_has_seen_more() {
    let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let topology = Topology::Servers(vec![server.server()]);
    let config = dunlin_engine::redis::RedisConfig {
        layout: dunlin_engine::redis::Layout::Centrifugo,
        prefix: "centrifugo".to_owned(),
        ..dunlin_engine::redis::RedisConfig::new(topology)
    };
    let mut fleet = Fleet::new(&config, 2);
    let tokens = ["a", "b"].map(|channel| fleet.begin_subscribe(0, channel, KEPT));
    fleet.until("subscribed", |nodes| nodes[0].events.len() == 2);
    fleet.publish(1, "a", "1");
    let kept = fleet.publish(1, "b", "kept");
    let backup = server.backup();
    let lost = fleet.publish(1, "a", "lost");
    fleet.until("heard", |nodes| heard(&nodes[0], "a").len() == 2);
    server.kill();
    server.put_back(&backup);
    fleet.until("noticed", |nodes| nodes.iter().all(|node| !node.engine.is_ready()));
    server.restart();
    fleet.until_ready();
    for token in tokens {
        fleet.until_subscribed(0, token, 2);
    }
    let after = fleet.publish(1, "a", "new");
    assert!(after.offset == lost.offset && after.epoch != lost.epoch, "{after:?} {lost:?}");
    let filter = HistoryFilter { since: Some(lost), ..HistoryFilter::default() };
    assert!(matches!(fleet.history(1, "a", filter), Err(Error::UnrecoverablePosition(_))));
    // A stream that lost nothing continues.
    assert_eq!(fleet.publish(1, "b", "new"), StreamPosition { offset: 2, ..kept });
    assert!(fleet.nodes.0[0].engine.stats().streams_cut > 0);
}

#[test]
fn several_without_history_leave_as_messages_of_their_own() {
    let deployment = Deployment::single();
    let mut fleet = Fleet::new(&centrifugo(&deployment), 2);
    fleet.subscribe(0, "ticker", UNKEPT);
    let tokens: Vec<u64> =
        (0..5).map(|n| fleet.send(1, "ticker", UNKEPT, data_of(&n.to_string()))).collect();
    for token in tokens {
        assert_eq!(fleet.published(1, token).unwrap().position, StreamPosition::default());
    }
    fleet.until("heard", |nodes| heard(&nodes[0], "ticker").len() == 5);
    assert_eq!(fleet.nodes.0[0].engine.stats().messages, 5);
}
