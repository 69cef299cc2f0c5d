//! Long-polls: the first response, and how a poll ends with its subscription.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use dunlin_config::{Config, Secret};
use serde_json::{Value, json};

use super::{Cluster, Listener, TIMEOUT};
use crate::message::worker::WorkerMessage;
use crate::metrics::Metric;
use crate::state::settings::Settings;

/// A long-poll that waits for its response.
pub(super) struct WaitingPoll(TcpStream);

impl WaitingPoll {
    /// Sends a poll with this query.
    pub(super) fn send(address: SocketAddr, query: &str) -> WaitingPoll {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let head = "HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
        write!(stream, "GET /connection/poll?{query} {head}").unwrap();
        WaitingPoll(stream)
    }

    /// Sends a poll that lasts longer than a test, and waits until it is subscribed to `channel` as one of `count`.
    pub(super) fn park(cluster: &Cluster, query: &str, channel: &str, count: u64) -> WaitingPoll {
        let poll = WaitingPoll::send(cluster.address, &format!("{query}&timeout=50"));
        until_followed(cluster, channel, count);
        poll
    }

    /// The status and the body of the response.
    pub(super) fn response(mut self) -> (u16, Value) {
        let mut answer = String::new();
        self.0.read_to_string(&mut answer).expect("the poll is not answered");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a response");
        (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
    }

    /// The body of a response with status 200.
    pub(super) fn answer(self) -> Value {
        let (status, body) = self.response();
        assert_eq!(status, 200, "{body}");
        body
    }
}

/// Waits until a channel has so many subscribers.
fn until_followed(cluster: &Cluster, channel: &str, count: u64) {
    let deadline = std::time::Instant::now() + TIMEOUT;
    loop {
        let channels: Value = serde_json::from_str(&cluster.post("/api/channels", "{}")).unwrap();
        if channels["result"]["channels"][channel]["num_clients"].as_u64() == Some(count) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{channel} of {channels}");
        std::thread::yield_now();
    }
}

/// The response to a poll of a cluster that has it at once, or in a moment.
pub(super) fn poll(cluster: &Cluster, query: &str) -> Value {
    WaitingPoll::send(cluster.address, query).answer()
}

/// What a response has of publications.
pub(super) fn data(answer: &Value) -> Vec<u64> {
    let publications = answer["publications"].as_array().unwrap().iter();
    publications.map(|of| of["data"].as_u64().unwrap()).collect()
}

pub(super) fn cursor(answer: &Value) -> &str {
    answer["cursor"].as_str().expect("a cursor")
}

fn with_history(config: &mut Config) {
    let options = &mut config.channel.without_namespace;
    (options.history_size, options.history_ttl_ms) = (1_000, 600_000);
    options.recover = true;
}

fn publish(cluster: &Cluster, channel: &str, data: u64) {
    let body = json!({"channel": channel, "data": data}).to_string();
    let answer = cluster.post("/api/publish", &body);
    assert!(answer.contains("\"result\""), "{answer}");
}

/// Regression: it waited, and a client that gave up had no position to continue from.
#[test]
fn poll_without_cursor_is_answered_at_once() {
    let cluster = Cluster::start_with(1, with_history);
    publish(&cluster, "news", 1);
    let first = poll(&cluster, "channel=news");
    assert_eq!(data(&first), [0u64; 0]);
    assert_eq!(first["positions"]["news"]["offset"], 1, "{first}");
    publish(&cluster, "news", 2);
    let query = format!("channel=news&cursor={}", cursor(&first));
    assert_eq!(data(&poll(&cluster, &query)), [2]);
    // So is one that asks for another channel: it has no position there.
    let more = poll(&cluster, &format!("channel=news&channel=chat&cursor={}", cursor(&first)));
    assert_eq!(data(&more), [2]);
}

/// Regression: the poll waited on, and was answered with the position of a subscriber that had come later.
#[test]
fn poll_after_the_home_worker_panicked_is_answered_from_its_own_position() {
    let mut cluster = Cluster::start_with(2, with_history);
    let channels: Vec<String> = (0..40).map(|at| format!("room{at}")).collect();
    let mut waiting = Vec::new();
    for channel in &channels {
        publish(&cluster, channel, 1);
        let first = poll(&cluster, &format!("channel={channel}"));
        let query = format!("channel={channel}&cursor={}", cursor(&first));
        waiting.push((WaitingPoll::park(&cluster, &query, channel, 1), first));
    }
    cluster.send(0, WorkerMessage::Panic);
    cluster.look_after_until(|state| state.counters[0].get(Metric::Restarts) == 1);
    cluster.look_after_until(|state| state.workers_ready() == 2);
    let (mut ended, mut gaps) = (0, 0);
    for (channel, (mut poll_of, first)) in channels.iter().zip(waiting) {
        // A poll of the worker that panicked is cut off, and its client has its cursor.
        let mut answer = String::new();
        // Another subscriber is there, and the stream goes on, if this one is of the other worker.
        let _later = Listener::connect(cluster.address, channel);
        publish(&cluster, channel, 2);
        let read = poll_of.0.read_to_string(&mut answer);
        if read.is_err() || answer.is_empty() {
            continue;
        }
        let body = answer.split_once("\r\n\r\n").expect("a response").1;
        let second: Value = serde_json::from_str(body).unwrap();
        if data(&second) == [2] {
            continue;
        }
        ended += 1;
        assert_eq!(second["positions"], first["positions"], "it had nothing after that");
        let third = poll(&cluster, &format!("channel={channel}&cursor={}", cursor(&second)));
        assert_eq!(data(&third), [2], "{third}");
        gaps += usize::from(third["gap"][0]["reason"] == "new_stream");
    }
    assert!(ended > 0, "some channels had their home on the worker that panicked");
    assert_eq!(gaps, ended, "their streams are lost, and their clients are notified");
}

const KEY: &str = "a secret of more than thirty-two bytes";

fn token(user: &str) -> String {
    let key = jsonwebtoken::EncodingKey::from_secret(KEY.as_bytes());
    let claims = json!({"sub": user});
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
}

/// Regression: it waited for the rest of its time, and lost what was published meanwhile.
#[test]
fn poll_that_the_api_unsubscribes_is_answered_at_once() {
    let cluster = Cluster::start_with(1, |config| {
        with_history(config);
        config.client.token.hmac_secret = Some(Secret::new(KEY));
    });
    let token = token("ada");
    let ask = |cursor: &str| format!("channel=news&channel=chat&token={token}&cursor={cursor}");
    let first = poll(&cluster, &ask("0").replace("cursor=0", "timeout=0"));
    let waiting = WaitingPoll::park(&cluster, &ask(cursor(&first)), "news", 1);
    // Somebody else stays subscribed.
    let _other = WaitingPoll::park(&cluster, &ask(cursor(&first)), "news", 2);
    cluster.post("/api/unsubscribe", r#"{"user":"ada","channel":"news"}"#);
    let second = waiting.answer();
    assert_eq!((data(&second), &second["gap"]), (vec![], &Value::Null), "{second}");
    publish(&cluster, "news", 1);
    publish(&cluster, "chat", 2);
    let mut third = data(&poll(&cluster, &ask(cursor(&second))));
    third.sort_unstable();
    assert_eq!(third, [1, 2]);
}

#[test]
fn poll_whose_permission_is_withdrawn_is_answered_and_then_refused() {
    let cluster = Cluster::start_with(1, |config| {
        with_history(config);
        let open = config.channel.without_namespace.clone();
        config.channel.namespaces.insert("open", open);
    });
    let first = poll(&cluster, "channel=open:a&channel=news");
    let query = format!("channel=open:a&channel=news&cursor={}", cursor(&first));
    let waiting = WaitingPoll::park(&cluster, &query, "open:a", 1);
    let mut config = cluster.state.newest_for(0).config.clone();
    config.channel.namespaces.remove("open");
    config.channel.any_namespace = false;
    let snapshot = Arc::new(dunlin_config::Snapshot::new(2, config).unwrap());
    cluster.state.publish(Arc::new(Settings::new(snapshot)));
    publish(&cluster, "news", 7);
    let second = waiting.answer();
    // Of what was published in the same moment it has either nothing or all, and its cursor says which.
    let has = second["positions"]["news"]["offset"].as_u64().unwrap() as usize;
    assert_eq!(data(&second), vec![7; has], "{second}");
    let refused = WaitingPoll::send(cluster.address, &query).response();
    assert_eq!(refused.0, 404, "{}", refused.1);
}
