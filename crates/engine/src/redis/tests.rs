//! What a server's answers and messages do in one order or another, without a server.

use std::sync::Arc;

use dunlin_hub::engine::{EngineEvent, EnginePublish, EngineRequest, Retention};
use dunlin_hub::{Epoch, NewPublication, SessionId, StreamPosition};
use dunlin_wire::resp::Value;

use super::{RedisConfig, RedisEngine, Topology};
use crate::frame;
use crate::links::{LinkFull, Links, Server, ServerRole, ShardId};

const SHARD: ShardId = ShardId(0);
const KEPT: Retention =
    Retention { size: 10, ttl_ms: 60_000, meta_ttl_ms: 60_000, durability: None };

/// Connections that write down what is sent.
#[derive(Default)]
struct Notes {
    commands: Vec<(u64, Vec<String>)>,
    reconnects: usize,
}

impl Links for Notes {
    fn open(&mut self, _: ShardId, _: &Server) {}

    fn reconnect(&mut self, _: ShardId) {
        self.reconnects += 1;
    }

    fn close(&mut self, _: ShardId) {}
    fn subscribe(&mut self, _: ShardId, _: &[u8], _: bool) {}
    fn unsubscribe(&mut self, _: ShardId, _: &[u8], _: bool) {}

    fn command(&mut self, _: ShardId, token: u64, arguments: &[&[u8]]) -> Result<(), LinkFull> {
        let text = |argument: &&[u8]| String::from_utf8_lossy(argument).into_owned();
        self.commands.push((token, arguments.iter().map(text).collect()));
        Ok(())
    }
}

struct Stage {
    engine: RedisEngine,
    notes: Notes,
    now_ms: u64,
}

impl Stage {
    fn new() -> Stage {
        let host = "redis.example".to_owned();
        let server = Server { host, port: 6379, role: ServerRole::Data };
        let config = RedisConfig::new(Topology::Servers(vec![server]));
        Stage { engine: RedisEngine::new(config, 7, 0), notes: Notes::default(), now_ms: 0 }
    }

    /// Token of the command that was sent last and has this script.
    fn sent(&mut self, sha: &str) -> u64 {
        self.engine.flush(self.now_ms, &mut self.notes);
        let sent = self.notes.commands.iter().rfind(|(_, words)| words[1] == sha);
        let (token, _) = sent.expect("sent");
        *token
    }

    /// A connection is greeted, and its server's data are of this generation.
    fn connect(&mut self, generation: &str) {
        self.engine.handle_ready(self.now_ms, SHARD);
        let sha = self.engine.scripts.generation.sha.clone();
        let token = self.sent(&sha);
        let reply = [generation, "7.0", "", "0"].map(|text| Value::Bulk(text.as_bytes())).to_vec();
        self.engine.handle_reply(self.now_ms, SHARD, token, &Value::Array(reply));
    }

    fn answer_open(&mut self, epoch: &str, top: &str, before: &str) {
        let sha = self.engine.scripts.open.sha.clone();
        let token = self.sent(&sha);
        let reply = [epoch, top, before].map(|text| Value::Bulk(text.as_bytes())).to_vec();
        self.engine.handle_reply(self.now_ms, SHARD, token, &Value::Array(reply));
    }

    fn hear(&mut self, head: &str, publish: &NewPublication) {
        let mut message = head.as_bytes().to_vec();
        frame::encode(&mut message, publish, 0);
        self.engine.handle_message(self.now_ms, SHARD, b"dunlin:c:a", &message);
    }

    fn events(&mut self) -> Vec<EngineEvent> {
        std::iter::from_fn(|| self.engine.poll_event()).collect()
    }

    /// Publishes to a channel that is not heard, as number `top` of an epoch.
    fn publish(&mut self, epoch: &str, top: &str) {
        let publish = NewPublication::default();
        let (channel, retention) = ("unheard".into(), KEPT);
        let request = EnginePublish { token: 2, channel, retention, publish, time_ms: 0 };
        self.engine.handle_request(self.now_ms, EngineRequest::Publish(Box::new(request)));
        let token = self.sent(&self.engine.scripts.publish.sha.clone());
        let reply = [epoch, top].map(|text| Value::Bulk(text.as_bytes())).to_vec();
        self.engine.handle_reply(self.now_ms, SHARD, token, &Value::Array(reply));
    }

    /// What is said of streams that are opened.
    fn opened(&mut self) -> Vec<Vec<String>> {
        self.engine.flush(self.now_ms, &mut self.notes);
        let sha = &self.engine.scripts.open.sha;
        let opened = std::mem::take(&mut self.notes.commands).into_iter();
        opened.map(|(_, words)| words).filter(|words| words.get(1) == Some(sha)).collect()
    }

    fn subscribe(&mut self) {
        let channel: Arc<str> = "a".into();
        let request =
            EngineRequest::Subscribe { token: 1, channel, retention: KEPT, is_wildcard: false };
        self.engine.handle_request(self.now_ms, request);
    }
}

fn subscribed(events: &[EngineEvent]) -> Option<StreamPosition> {
    match events {
        [EngineEvent::Subscribed { token: 1, result: Ok(at) }] => Some(at.position),
        _ => None,
    }
}

/// After a failover another node is quicker and publishes in the stream's new epoch. Its message came before the position
/// that says what this epoch inherits, and the hub gave up subscribers who had missed nothing.
#[test]
fn no_message_of_a_new_epoch_comes_before_what_the_epoch_inherits() {
    let mut stage = Stage::new();
    stage.subscribe();
    stage.connect("one");
    stage.answer_open("A", "3", "");
    let at = StreamPosition { offset: 3, epoch: Epoch::parse("A") };
    assert_eq!(subscribed(&stage.events()), Some(at));
    stage.hear("1pA:4:", &NewPublication::default());
    assert!(matches!(&stage.events()[..], [EngineEvent::Publication { .. }]));

    stage.engine.handle_closed(0, SHARD, "");
    stage.connect("two");
    stage.hear("1pB:5:", &NewPublication::default());
    assert_eq!(stage.events(), [], "it is part of what the position reaches");
    stage.answer_open("B", "5", "A:4");
    let events = stage.events();
    let [EngineEvent::Subscribed { result: Ok(anew), .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(anew.position, StreamPosition { offset: 5, epoch: Epoch::parse("B") });
    assert_eq!(anew.inherits, [StreamPosition { offset: 4, ..at }].into_iter().collect());
    stage.hear("1pB:6:", &NewPublication::default());
    assert!(matches!(&stage.events()[..], [EngineEvent::Publication { .. }]));
}

/// The session that published is not sent its own message on another node, either.
#[test]
fn a_message_says_whom_it_is_not_for() {
    let mut stage = Stage::new();
    stage.subscribe();
    stage.connect("one");
    stage.answer_open("A", "0", "");
    let except = SessionId::from_u64(77);
    stage.events();
    stage.hear("1pA:1:", &NewPublication { except, ..NewPublication::default() });
    let events = stage.events();
    let [EngineEvent::Publication { except: heard, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(*heard == except && except.is_some());
}

/// What was seen of a stream is said when the server's data turn out to be another generation's, and then alone.
#[test]
fn evidence_of_lost_publications_is_given_to_the_script() {
    let mut stage = Stage::new();
    stage.subscribe();
    stage.connect("one");
    stage.answer_open("A", "3", "");
    stage.hear("1pA:4:", &NewPublication::default());
    for (generation, known, seen) in [("one", "A", ""), ("two", "", "A:4")] {
        stage.engine.handle_closed(0, SHARD, "");
        stage.connect(generation);
        let sha = stage.engine.scripts.open.sha.clone();
        let token = stage.sent(&sha);
        let (_, words) = stage.notes.commands.iter().rfind(|(of, _)| *of == token).expect("sent");
        let [.., said, _, last] = &words[..] else { panic!("{words:?}") };
        assert_eq!((&said[..], &last[..]), (known, seen));
        stage.engine.handle_lost(0, SHARD, token, true);
    }
}

/// However long the server was away: what it had acknowledged right before is held against it, though nobody hears the channel.
#[test]
fn evidence_counts_from_when_the_data_were_known_last() {
    for (known_ms, is_evident) in [(30_000, true), (70_000, false)] {
        let mut stage = Stage::new();
        stage.connect("one");
        stage.publish("A", "7");
        // The same data again, on a connection that was made anew.
        stage.now_ms = known_ms;
        stage.engine.handle_closed(known_ms, SHARD, "");
        stage.connect("one");
        stage.opened();
        stage.engine.handle_closed(known_ms, SHARD, "");
        stage.now_ms = known_ms + 3_600_000;
        stage.connect("two");
        let opened = stage.opened();
        let seen = opened.iter().any(|words| words.last().is_some_and(|seen| seen == "A:7"));
        assert_eq!(seen, is_evident, "{opened:?}");
    }
}

/// Something accepts connections and says nothing, before the greeting or after it.
#[test]
fn a_connection_that_is_not_greeted_is_made_anew() {
    let mut stage = Stage::new();
    stage.engine.flush(0, &mut stage.notes);
    let due_ms = stage.engine.poll_timeout().expect("a deadline");
    stage.engine.handle_timeout(due_ms - 1);
    stage.engine.flush(due_ms - 1, &mut stage.notes);
    assert_eq!(stage.notes.reconnects, 0);
    stage.engine.handle_timeout(due_ms);
    stage.engine.flush(due_ms, &mut stage.notes);
    assert_eq!(stage.notes.reconnects, 1);
    stage.engine.handle_ready(due_ms, SHARD);
    let due_ms = stage.engine.poll_timeout().expect("a deadline");
    stage.engine.handle_timeout(due_ms);
    stage.engine.flush(due_ms, &mut stage.notes);
    assert_eq!(stage.notes.reconnects, 2);
}
