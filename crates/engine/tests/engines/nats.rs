//! Failures of NATS: each has a name and a fix, and no loss is silent.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use dunlin_engine::nats::{Login, NatsConfig, RawSubjects, StreamConfig};
use dunlin_engine::{EngineEvent, EngineRequest, Retention, ShardState};
use dunlin_hub::{Error, HistoryFilter, NewPublication, PayloadFormat, StreamPosition};

use crate::nats_server::NatsServer;
use crate::nodes::{Fleet, KEPT, Node, UNKEPT, data_of, heard};

fn state(node: &Node) -> &'static str {
    node.engine.shards().next().unwrap().state.name()
}

fn refusing(node: &Node) -> Option<&'static str> {
    node.engine.shards().next().unwrap().refusing.map(|refusal| refusal.name)
}

fn subscriptions(node: &Node) -> usize {
    let events = node.events.iter();
    events.filter(|event| matches!(event, EngineEvent::Subscribed { .. })).count()
}

/// Returns the offset that a subscription to "a" has reached. Publications follow each position without a gap; one that the
/// position already covers may be delivered as well, and the hub drops it.
fn offset_reached(node: &Node, token: u64) -> u64 {
    node.events.iter().fold(0, |offset, event| match event {
        EngineEvent::Subscribed { token: of, result } if *of == token => {
            result.as_ref().expect("subscribed").position.offset
        }
        EngineEvent::Publication { channel, publication, .. } if **channel == *"a" => {
            assert!(publication.offset() <= offset + 1, "a hole behind {offset}");
            offset.max(publication.offset())
        }
        _ => offset,
    })
}

/// Recovers from a position, as a client would after a reconnect.
fn recover(fleet: &mut Fleet, node: usize, since: StreamPosition) -> Result<Vec<u64>, Error> {
    let filter = HistoryFilter { since: Some(since), ..HistoryFilter::default() };
    let history = fleet.history(node, "a", filter)?;
    Ok(history.publications.iter().map(|publication| publication.offset()).collect())
}

/// Returns channel, offset and payload of the messages received through a wildcard.
fn matched(node: &Node, name: &str) -> Vec<(String, u64, String)> {
    let publication = |event: &EngineEvent| match event {
        EngineEvent::Publication { channel: of, publication, .. } if **of == *name => {
            let data = String::from_utf8_lossy(publication.data()).into_owned();
            Some((publication.channel()?.to_owned(), publication.offset(), data))
        }
        _ => None,
    };
    node.events.iter().filter_map(publication).collect()
}

#[test]
fn a_wildcard_hears_what_is_kept_and_what_is_not_in_the_order_of_each_channel() {
    const EACH: u64 = 50;
    let mut server = NatsServer::start(&["-js"]);
    let mut fleet = Fleet::new(&server.config(), 2);
    let mut tokens = Vec::new();
    for name in ["chat:>", "chat:a.*", ">"] {
        let channel = name.into();
        let (retention, is_wildcard) = (UNKEPT, true);
        let request = |token| EngineRequest::Subscribe { token, channel, retention, is_wildcard };
        tokens.push(fleet.ask(1, request));
        fleet.until_subscribed(1, tokens[tokens.len() - 1], 1);
    }
    let channels = ["chat:a.b", "chat:a..", "chat:a.b.c d", "a.b", "$chat:a.b", "chat:a.b#1", "*"];
    for number in 0..EACH {
        for (channel, retention) in channels.into_iter().zip([KEPT, UNKEPT].into_iter().cycle()) {
            fleet.send(0, channel, retention, data_of(&number.to_string()));
        }
        fleet.turn_now();
    }
    fleet.send(0, "chat:end", UNKEPT, data_of("0"));
    let heard_all = 3 * EACH as usize + 1;
    fleet.until("heard", |nodes| {
        matched(&nodes[1], "chat:>").len() >= heard_all
            && matched(&nodes[1], ">").len() >= 2 * EACH as usize
    });
    let node = &fleet.nodes.0[1];
    for (name, expected) in [
        ("chat:>", &["chat:a.b", "chat:a..", "chat:a.b.c d"][..]),
        ("chat:a.*", &["chat:a.b"][..]),
        (">", &["a.b", "*"][..]),
    ] {
        let all = matched(node, name);
        for channel in expected {
            let of: Vec<(u64, String)> =
                all.iter().filter(|of| of.0 == *channel).map(|of| (of.1, of.2.clone())).collect();
            let sent: Vec<(u64, String)> = (0..EACH).map(|of| (0, of.to_string())).collect();
            assert_eq!(of, sent, "{name} {channel}");
        }
        let others = all.iter().filter(|of| !expected.contains(&&*of.0) && of.0 != "chat:end");
        assert_eq!(others.count(), 0, "{name}");
    }

    // After an outage of the server a possible gap is reported, and everything continues.
    server.kill();
    fleet.until("gone", |nodes| nodes.iter().all(|node| !node.engine.is_ready()));
    server.restart();
    fleet.until_subscribed(1, tokens[0], 2);
    fleet.until_ready();
    fleet.send(0, "chat:back", UNKEPT, data_of("1"));
    let is_back = |of: &(String, u64, String)| of.0 == "chat:back";
    fleet.until("heard again", |nodes| matched(&nodes[1], "chat:>").iter().any(is_back));
}

/// Nodes publish into one channel as fast as they can: all see one order, without gaps or duplicates.
#[test]
fn publishers_on_three_nodes_share_one_channel() {
    const EACH: usize = 400;
    let server = NatsServer::start(&["-js"]);
    let mut fleet = Fleet::new(&server.config(), 3);
    for node in 0..3 {
        fleet.subscribe(node, "a", KEPT);
    }
    for number in 0..EACH {
        for node in 0..3 {
            fleet.send(node, "a", KEPT, data_of(&format!("{node}:{number}")));
        }
        if number % 7 == 0 {
            fleet.turn_now();
        }
    }
    fleet.until("heard", |nodes| nodes.iter().all(|node| heard(node, "a").len() == 3 * EACH));
    let first = heard(&fleet.nodes.0[0], "a");
    for (index, (offset, _)) in first.iter().enumerate() {
        assert_eq!(*offset, index as u64 + 1);
    }
    for node in 0..3 {
        assert_eq!(heard(&fleet.nodes.0[node], "a"), first);
        let of: Vec<&String> = first
            .iter()
            .map(|(_, data)| data)
            .filter(|data| data.starts_with(&format!("{node}:")))
            .collect();
        let sent: Vec<String> = (0..EACH).map(|number| format!("{node}:{number}")).collect();
        assert!(of.iter().copied().eq(&sent), "in the order of its publisher");
    }
}

/// A position covers what is published while a node is disconnected, and no publication is stored twice.
#[test]
fn a_cut_link_is_made_anew_and_says_where_the_stream_is() {
    let server = NatsServer::start(&["-js"]);
    let mut fleet = Fleet::new(&server.config(), 2);
    let token = fleet.begin_subscribe(0, "a", KEPT);
    fleet.subscribe(0, "b", UNKEPT);
    fleet.publish(1, "a", "1");
    fleet.until("heard", |nodes| offset_reached(&nodes[0], token) == 1);
    for round in 0..20u64 {
        // In flight when the connection is cut: the engine finds out whether it was stored.
        let sent = fleet.send(0, "a", KEPT, data_of(&format!("cut {round}")));
        for _ in 0..round % 4 {
            fleet.turn_now();
        }
        fleet.cut(0);
        let other = fleet.publish(1, "a", &format!("missed {round}"));
        let mine = fleet.published(0, sent).unwrap().position;
        assert!(mine.offset != other.offset && mine.epoch == other.epoch);
    }
    // The offset is reached by the position of the last subscription, or by publications right after it.
    fleet.until("subscribed anew", |nodes| {
        nodes[0].engine.is_ready() && offset_reached(&nodes[0], token) == 41
    });
    let history = fleet.history(1, "a", HistoryFilter::default()).unwrap();
    let mut data: Vec<&[u8]> = history.publications.iter().map(|of| of.data()).collect();
    assert_eq!(data.len(), 41);
    data.sort();
    data.dedup();
    assert_eq!(data.len(), 41, "each once");
    assert!(fleet.subscribed(0, token).len() > 1);
    fleet.publish(1, "a", "after");
    fleet.until("heard", |nodes| heard(&nodes[0], "a").last().is_some_and(|last| last.0 == 42));
}

#[test]
fn a_server_that_kept_its_store_has_streams_that_inherit_all() {
    let mut server = NatsServer::start(&["-js"]);
    let mut fleet = Fleet::new(&server.config(), 2);
    let token = fleet.begin_subscribe(0, "a", KEPT);
    fleet.publish(1, "a", "1");
    let before = fleet.publish(1, "a", "2");
    fleet.until("subscribed", |nodes| subscriptions(&nodes[0]) == 1);
    for round in 0..3 {
        server.kill();
        fleet.until("noticed", |nodes| nodes.iter().all(|node| !node.engine.is_ready()));
        server.restart();
        fleet.until("subscribed anew", |nodes| subscriptions(&nodes[0]) > 1 + round);
        fleet.publish(1, "a", "more");
        fleet.until("heard", |nodes| {
            heard(&nodes[0], "a").last().is_some_and(|last| last.0 == 3 + round as u64)
        });
    }
    let anew = fleet.subscribed(0, token).pop().unwrap();
    assert_ne!(anew.position.epoch, before.epoch, "another process may have lost something");
    assert!(anew.inherits.contains(before), "{anew:?}");
    let since = StreamPosition { offset: 1, ..before };
    assert_eq!(recover(&mut fleet, 1, since), Ok(vec![2, 3, 4, 5]));
    let beyond = StreamPosition { offset: 3, ..before };
    assert!(matches!(recover(&mut fleet, 1, beyond), Err(Error::UnrecoverablePosition(_))));
}

/// With a memory store, or after the loss of the store, equal offsets are not confused.
#[test]
fn a_server_that_lost_everything_has_streams_that_inherit_nothing() {
    for in_memory in [true, false] {
        let mut server = NatsServer::start(&["-js"]);
        let stream = StreamConfig { in_memory, ..StreamConfig::default() };
        let config = NatsConfig { stream: Some(stream), ..server.config() };
        let mut fleet = Fleet::new(&config, 2);
        let token = fleet.begin_subscribe(0, "a", KEPT);
        for number in 1..=5 {
            fleet.publish(1, "a", &number.to_string());
        }
        let before = fleet.publish(1, "a", "6");
        server.kill();
        fleet.until("noticed", |nodes| nodes.iter().all(|node| !node.engine.is_ready()));
        if !in_memory {
            server.lose_store();
        }
        server.restart();
        fleet.until_subscribed(0, token, 2);
        // More publications than before, so that offsets alone would match.
        for number in 1..=9 {
            fleet.publish(1, "a", &format!("new {number}"));
        }
        fleet.until("heard", |nodes| {
            heard(&nodes[0], "a").last().is_some_and(|last| last.1 == "new 9")
        });
        let anew = fleet.subscribed(0, token).pop().unwrap();
        assert_ne!(anew.position.epoch, before.epoch);
        assert!(anew.inherits.is_empty(), "{anew:?}");
        let recovered = recover(&mut fleet, 0, before);
        assert!(matches!(recovered, Err(Error::UnrecoverablePosition(_))), "{recovered:?}");
    }
}

/// The store returns to an earlier state: an engine that has seen more cuts the epoch.
#[test]
fn a_server_that_lost_the_end_of_a_stream_cuts_it() {
    let mut server = NatsServer::start(&["-js"]);
    let mut fleet = Fleet::new(&server.config(), 1);
    let token = fleet.begin_subscribe(0, "a", KEPT);
    fleet.publish(0, "a", "1");
    let store = server.directory().join("store");
    let copy = server.directory().join("copy");
    let copied = std::process::Command::new("cp").arg("-r").args([&store, &copy]).status().unwrap();
    assert!(copied.success());
    let seen = fleet.publish(0, "a", "2");
    server.kill();
    server.lose_store();
    std::fs::rename(&copy, &store).unwrap();
    server.restart();
    fleet.until_ready();
    let published = fleet.publish(0, "a", "another");
    assert!(published.offset == 2 && published.epoch != seen.epoch, "{published:?}");
    fleet.until("subscribed anew", |nodes| nodes[0].engine.stats().streams_cut > 0);
    let anew = fleet.subscribed(0, token).pop().unwrap();
    assert!(!anew.inherits.contains(seen), "{anew:?}");
    assert!(matches!(recover(&mut fleet, 0, seen), Err(Error::UnrecoverablePosition(_))));
}

#[test]
fn a_server_that_comes_late_is_waited_for() {
    let mut server = NatsServer::start(&["-js"]);
    server.kill();
    let config = NatsConfig { hold_ms: 1, ..server.config() };
    let mut fleet = Fleet::starting(&config, 1, None);
    let subscription = fleet.begin_subscribe(0, "a", KEPT);
    for (channel, retention) in [("a", KEPT), ("b", UNKEPT)] {
        let token = fleet.send(0, channel, retention, data_of("x"));
        assert_eq!(fleet.published(0, token), Err(Error::EngineUnavailable));
    }
    fleet.until("said", |nodes| {
        let shard = nodes[0].engine.shards().next().unwrap();
        shard.state == ShardState::Connecting && shard.detail.contains("refused")
    });
    server.restart();
    fleet.until_ready();
    fleet.until("subscribed", |nodes| {
        nodes[0].events.iter().any(|event| matches!(event, EngineEvent::Subscribed { .. }))
    });
    fleet.publish(0, "a", "y");
    fleet.until("heard", |nodes| heard(&nodes[0], "a").len() == 1);
    assert_eq!(fleet.subscribed(0, subscription).len(), 1);
    let shard = fleet.nodes.0[0].engine.shards().next().unwrap();
    assert!(shard.detail.is_empty() && shard.version.starts_with(char::is_numeric), "{shard:?}");
}

#[test]
fn another_server_is_taken_when_one_is_gone() {
    let mut gone = NatsServer::start(&["-js"]);
    let server = NatsServer::start(&["-js"]);
    gone.kill();
    let config = NatsConfig {
        servers: [&gone, &server].map(|server| server.config().servers[0].clone()).into(),
        ..server.config()
    };
    Fleet::new(&config, 1).publish(0, "a", "x");
}

#[test]
fn a_login_that_is_wrong_has_a_name() {
    let users = "authorization { users = [{ user: u, password: p }] }";
    for (config, right) in [
        (users, Login { user: Some("u".into()), password: Some("p".into()), ..Login::default() }),
        ("authorization { token: t }", Login { token: Some("t".into()), ..Login::default() }),
    ] {
        let server = NatsServer::start_with(&["-js"], config);
        let mut fleet = Fleet::starting(&server.config(), 1, None);
        fleet.until("named", |nodes| state(&nodes[0]) == "wrong_password");
        assert!(!fleet.nodes.0[0].engine.is_ready());
        Fleet::new(&NatsConfig { login: right, ..server.config() }, 1).publish(0, "a", "x");
    }
}

/// Channels without history work without JetStream; publications with history wait and fail after their timeout.
#[test]
fn a_server_without_jetstream_has_a_name() {
    let server = NatsServer::start(&[]);
    let mut fleet = Fleet::starting(&server.config(), 1, None);
    fleet.until("named", |nodes| state(&nodes[0]) == "no_jetstream");
    fleet.subscribe(0, "b", UNKEPT);
    let token = fleet.send(0, "b", UNKEPT, data_of("x"));
    assert_eq!(fleet.published(0, token).unwrap().position, StreamPosition::default());
    fleet.until("heard", |nodes| heard(&nodes[0], "b").len() == 1);
    let token = fleet.send(0, "a", KEPT, data_of("x"));
    assert_eq!(fleet.published(0, token), Err(Error::EngineUnavailable));

    let mut fleet = Fleet::new(&NatsConfig { stream: None, ..server.config() }, 1);
    let token = fleet.send(0, "a", KEPT, data_of("x"));
    assert_eq!(fleet.published(0, token), Err(Error::EngineRefused));
}

#[test]
fn operation_that_the_server_forbids_is_refused_and_others_go_on() {
    let server = NatsServer::start_with(
        &["-js"],
        "authorization { users = [{ user: u, password: p, permissions: {
            publish: { deny: [\"dunlin.p.-.no\", \"dunlin.s.-.no\"] } } }] }",
    );
    let login = Login { user: Some("u".into()), password: Some("p".into()), ..Login::default() };
    let mut fleet = Fleet::new(&NatsConfig { login, ..server.config() }, 1);
    for retention in [KEPT, UNKEPT] {
        let token = fleet.send(0, "no", retention, data_of("x"));
        assert_eq!(fleet.published(0, token), Err(Error::EngineRefused));
        assert_eq!(refusing(&fleet.nodes.0[0]), Some("no_permission"));
        let token = fleet.send(0, "yes", retention, data_of("x"));
        assert!(fleet.published(0, token).is_ok());
    }
}

#[test]
fn a_publication_above_the_servers_bound_is_refused() {
    let server = NatsServer::start_with(&["-js"], "max_payload: 8192");
    let mut fleet = Fleet::new(&server.config(), 1);
    let token = fleet.send(0, "a", KEPT, data_of(&"x".repeat(10_000)));
    assert_eq!(fleet.published(0, token), Err(Error::EngineRefused));
    assert_eq!(refusing(&fleet.nodes.0[0]), Some("max_payload"));
    // Joined publications stay within the server's limit.
    let tokens: Vec<u64> =
        (0..40).map(|_| fleet.send(0, "a", KEPT, data_of(&"x".repeat(1000)))).collect();
    for token in tokens {
        assert!(fleet.published(0, token).is_ok());
    }
    assert_eq!(refusing(&fleet.nodes.0[0]), None);
}

/// A stopped server process neither answers nor closes connections.
#[test]
fn a_connection_that_does_not_hear_itself_is_given_up() {
    let server = NatsServer::start(&["-js"]);
    let config = NatsConfig { probe_interval_ms: 20, probe_timeout_ms: 2_000, ..server.config() };
    let mut fleet = Fleet::new(&config, 1);
    let subscription = fleet.begin_subscribe(0, "a", KEPT);
    fleet.until_subscribed(0, subscription, 1);
    server.signal("-STOP");
    let token = fleet.send(0, "a", KEPT, data_of("x"));
    fleet.turn();
    fleet.until("given up", |nodes| nodes[0].engine.stats().silences > 0);
    let result = fleet.published(0, token);
    assert!(matches!(result, Err(Error::EngineUncertain | Error::EngineUnavailable)), "{result:?}");
    server.signal("-CONT");
    fleet.until_subscribed(0, subscription, 2);
    fleet.publish(0, "a", "y");
    fleet.until("heard", |nodes| !heard(&nodes[0], "a").is_empty());
}

/// Changed settings update the stream; a change that the server rejects is reported by name.
#[test]
fn a_stream_follows_the_settings() {
    let server = NatsServer::start(&["-js"]);
    let before = Fleet::new(&server.config(), 1).publish(0, "a", "1");
    let with = |stream| NatsConfig { stream: Some(stream), ..server.config() };
    let fewer = StreamConfig { channel_messages_max: 3, ..StreamConfig::default() };
    let mut fleet = Fleet::new(&with(fewer), 1);
    for number in 2..=9 {
        fleet.publish(0, "a", &number.to_string());
    }
    let since = StreamPosition { offset: 6, ..before };
    assert_eq!(recover(&mut fleet, 0, since), Ok(vec![7, 8, 9]));
    let lost = StreamPosition { offset: 1, ..before };
    assert_eq!(recover(&mut fleet, 0, lost), Ok(vec![7, 8, 9]), "what is left");
    let replicas = StreamConfig { replicas: 3, ..StreamConfig::default() };
    let fleet = &mut Fleet::starting(&with(replicas), 1, None);
    fleet.until("named", |nodes| state(&nodes[0]) == "stream_config");
}

/// Removed histories are not read, and the stream continues.
#[test]
fn a_stream_goes_on_when_its_publications_have_expired() {
    let server = NatsServer::start(&["-js"]);
    let mut fleet = Fleet::new(&server.config(), 1);
    let short = Retention { ttl_ms: 50, ..KEPT };
    let token = fleet.send(0, "a", short, data_of("1"));
    let first = fleet.published(0, token).unwrap().position;
    std::thread::sleep(std::time::Duration::from_millis(60));
    fleet.turn();
    let channel: std::sync::Arc<str> = "a".into();
    let token = fleet.ask(0, |token| EngineRequest::History {
        token,
        channel,
        retention: short,
        filter: HistoryFilter::default(),
        latest: false,
    });
    let history = fleet.answer(0, "history", |event| match event {
        EngineEvent::History { token: of, result } if *of == token => Some(result.clone().unwrap()),
        _ => None,
    });
    assert_eq!((history.position, history.publications.len()), (first, 0));
    assert_eq!(fleet.publish(0, "a", "2"), StreamPosition { offset: 2, ..first });
}

#[test]
fn any_name_is_a_channel() {
    let server = NatsServer::start(&["-js"]);
    let mut fleet = Fleet::new(&server.config(), 2);
    for channel in ["a.b", "*", ">", "a b", "é\r\n%", "$SYS", "x:#,&?"] {
        fleet.subscribe(0, channel, KEPT);
        let keyed = NewPublication { idempotency_key: Some("k \r\n".into()), ..data_of("x") };
        let token = fleet.send(1, channel, KEPT, keyed);
        assert!(!fleet.published(1, token).unwrap().suppressed);
        fleet.until("heard", |nodes| heard(&nodes[0], channel).len() == 1);
    }
}

#[test]
fn what_waits_is_bounded() {
    let mut server = NatsServer::start(&["-js"]);
    server.kill();
    let config = NatsConfig { queue_bytes_max: 10_000, hold_ms: 1_000_000, ..server.config() };
    let mut fleet = Fleet::starting(&config, 1, None);
    for number in 0..200 {
        fleet.send(0, &number.to_string(), KEPT, data_of(&"x".repeat(100)));
    }
    fleet.turn();
    let refused = fleet.nodes.0[0].events.iter().filter(|event| {
        matches!(event, EngineEvent::Published { result: Err(Error::EngineUnavailable), .. })
    });
    assert!((50..200).contains(&refused.count()));
}

#[test]
fn positions_are_read_once_while_nothing_is_stored() {
    let server = NatsServer::start(&["-js"]);
    let mut fleet = Fleet::new(&server.config(), 2);
    let channels: Vec<std::sync::Arc<str>> =
        (0..50).map(|number| number.to_string().into()).collect();
    for channel in &channels {
        fleet.subscribe(0, channel, KEPT);
    }
    let read = |fleet: &mut Fleet| {
        let channels = channels.clone();
        let token = fleet.ask(0, |token| EngineRequest::Positions { token, channels });
        let positions = fleet.answer(0, "positions", |event| match event {
            EngineEvent::Positions { token: of, result } if *of == token => {
                Some(result.clone().unwrap())
            }
            _ => None,
        });
        positions.iter().map(|at| at.offset).sum::<u64>()
    };
    for _ in 0..3 {
        assert_eq!(read(&mut fleet), 0);
    }
    fleet.publish(1, "7", "x");
    for _ in 0..3 {
        assert_eq!(read(&mut fleet), 1);
    }
}

/// NATS closes a connection that does not read its data. The next position covers what it missed, and the history is read.
#[test]
fn a_subscriber_that_is_cut_for_being_slow_finds_what_it_missed() {
    let server =
        NatsServer::start_with(&["-js"], "max_pending: 2000000\nwrite_deadline: \"100ms\"");
    let mut slow = Fleet::new(&server.config(), 1);
    let mut other = Fleet::new(&server.config(), 1);
    let token = slow.begin_subscribe(0, "a", KEPT);
    slow.until_subscribed(0, token, 1);
    // The node's loop is stopped: the kernel buffers some megabytes, and the server at most two.
    let payload = "x".repeat(50_000);
    for number in 1..=800 {
        assert_eq!(other.publish(0, "a", &payload).offset, number);
    }
    slow.until_subscribed(0, token, 2);
    slow.until("there", |nodes| nodes[0].engine.is_ready());
    let reached = slow.subscribed(0, token).last().unwrap().position.offset;
    assert_eq!(reached, 800, "what was cut is known to be missing");
    let history = slow.history(0, "a", HistoryFilter::default()).unwrap();
    let offsets: Vec<u64> = history.publications.iter().map(|of| of.offset()).collect();
    assert_eq!(offsets, (701..=800).collect::<Vec<_>>(), "and can be read");
    other.publish(0, "a", "next");
    slow.until("heard", |nodes| heard(&nodes[0], "a").iter().any(|(offset, _)| *offset == 801));
}

/// A line-by-line client of NATS.
struct Plain(BufReader<TcpStream>);

impl Plain {
    fn connect(config: &NatsConfig) -> Plain {
        let server = &config.servers[0];
        let stream = TcpStream::connect((server.host.as_str(), server.port)).unwrap();
        let mut plain = Plain(BufReader::new(stream));
        plain.line();
        plain.say("CONNECT {\"verbose\":false}\r\nPING\r\n");
        assert_eq!(plain.line(), "PONG");
        plain
    }

    fn say(&mut self, text: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(text.as_ref()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

#[test]
fn a_raw_engine_and_any_program_of_nats_hear_each_other() {
    let server = NatsServer::start(&[]);
    let raw = RawSubjects { prefix: String::new(), separator: '.', reserved: "dunlin".to_owned() };
    let mut fleet =
        Fleet::new(&NatsConfig { raw: Some(raw.into()), stream: None, ..server.config() }, 2);
    let mut plain = Plain::connect(&server.config());
    for (name, is_wildcard) in [("chat:a.b", false), ("chat:>", true)] {
        let channel = name.into();
        let request =
            |token| EngineRequest::Subscribe { token, channel, retention: UNKEPT, is_wildcard };
        let token = fleet.ask(0, request);
        fleet.until_subscribed(0, token, 1);
    }
    plain.say("SUB chat.> 1\r\nPING\r\n");
    assert_eq!(plain.line(), "PONG");
    // One subject that both receive, and others that only the wildcard receives.
    plain.say(
        b"PUB chat.a.b 7\r\n{\"a\":1}\r\nPUB chat.x 3\r\n[\n]\r\nPUB chat.x 2\r\n\xff\xfe\r\n",
    );
    plain.say(b"PUB chat.x 2\r\n\xff{\r\nPUB other.x 1\r\n1\r\nPUB chat.end 2\r\n{}\r\n");
    fleet.until("heard", |nodes| matched(&nodes[0], "chat:>").iter().any(|of| of.0 == "chat:end"));
    let node = &fleet.nodes.0[0];
    let formats = |name: &str| {
        let publication = |event: &EngineEvent| match event {
            EngineEvent::Publication { channel, publication, .. } if **channel == *name => {
                assert_eq!(publication.offset(), 0);
                let of = publication.channel().unwrap_or(name).to_owned();
                Some((of, publication.data().to_vec(), publication.format()))
            }
            _ => None,
        };
        node.events.iter().filter_map(publication).collect::<Vec<_>>()
    };
    let first = ("chat:a.b".to_owned(), b"{\"a\":1}".to_vec(), PayloadFormat::Json);
    assert_eq!(formats("chat:a.b"), std::slice::from_ref(&first));
    let all = formats("chat:>");
    assert_eq!((&all[0], all.len()), (&first, 5));
    assert!(
        all[1..4].iter().all(|of| of.0 == "chat:x" && of.2 == PayloadFormat::Binary),
        "{all:?}"
    );

    // A node publishes its payload alone.
    let mut plain = Plain::connect(&server.config());
    plain.say("SUB chat.out 1\r\nPING\r\n");
    assert_eq!(plain.line(), "PONG");
    let token = fleet.send(1, "chat:out", UNKEPT, data_of("{\"n\":1}"));
    fleet.published(1, token).expect("published");
    assert_eq!(
        (plain.line(), plain.line()),
        ("MSG chat.out 1 7".to_owned(), "{\"n\":1}".to_owned())
    );

    // Names that clients must not reach are refused before the server is asked.
    for name in ["$SYS:a", "_INBOX:a", "dunlin:r.1.1", "chat:*", "chat:a b", "chat:a\r\nPUB x 0"] {
        let token = fleet.send(1, name, UNKEPT, data_of("1"));
        assert_eq!(fleet.published(1, token), Err(Error::EngineRefused), "{name}");
    }
}
