//! Nodes that share a real Redis or NATS server.

#[path = "engines/nats.rs"]
mod nats;
#[path = "engines/polls.rs"]
mod polls;
#[path = "engines/raw.rs"]
mod raw;
#[path = "engines/redis.rs"]
mod redis;
#[path = "engines/wildcards.rs"]
mod wildcards;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use dunlin_config::{Config, Engine};
use dunlin_testkit::Redis;
use serde_json::{Value, json};

use super::{Cluster, Listener, TIMEOUT};
use crate::message::worker::WorkerMessage;
use crate::state::Lifecycle;
use crate::state::settings::Settings;

/// Channels without a namespace use Redis; those of `local` do not.
fn on_redis(config: &mut Config, redis: SocketAddr) {
    let addresses = [redis.to_string()].into();
    on_engine(config, Engine { addresses, ..Engine::default() });
}

fn on_engine(config: &mut Config, engine: Engine) {
    config.engines.insert("main", engine);
    let options = &mut config.channel.without_namespace;
    (options.history_size, options.history_ttl_ms) = (1_000, 600_000);
    options.recover = true;
    config.channel.any_namespace = false;
    config.channel.namespaces.insert("local", options.clone());
    config.channel.without_namespace.engine = Some("main".into());
}

fn node(number: u16, redis: SocketAddr) -> Cluster {
    let addresses = [redis.to_string()].into();
    node_on(number, Engine { addresses, ..Engine::default() })
}

fn node_on(number: u16, engine: Engine) -> Cluster {
    let cluster = Cluster::start_with(2, |config| {
        config.server.node = number;
        on_engine(config, engine);
    });
    ready(&cluster);
    cluster
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Waits until the engine is ready on every worker.
fn ready(cluster: &Cluster) {
    until("the engine is never ready", || {
        cluster.state.engines.health().into_values().eq(["ready"])
    });
}

/// Publishes until it is acknowledged; returns the result.
fn publish(cluster: &Cluster, channel: &str, data: u64) -> Value {
    let body = json!({"channel": channel, "data": data}).to_string();
    let mut answer = Value::Null;
    until("it is never published", || {
        answer = serde_json::from_str(&cluster.post("/api/publish", &body)).unwrap();
        answer["error"].is_null()
    });
    answer["result"].take()
}

fn recovering(channel: &str, offset: u64, epoch: &Value) -> String {
    let position = json!({"recover": true, "offset": offset, "epoch": epoch});
    json!({"subs": {channel: position}}).to_string()
}

#[test]
fn publications_of_one_node_reach_and_recover_clients_of_the_other() {
    let redis = Redis::start(&[]);
    crosses(&node(1, redis.addr), &node(2, redis.addr));
}

/// Clients of one node receive and recover what the other node publishes.
fn crosses(a: &Cluster, b: &Cluster) {
    let mut here: Vec<Listener> = (0..4).map(|_| Listener::connect(a.address, "news")).collect();
    let mut there: Vec<Listener> = (0..4).map(|_| Listener::connect(b.address, "news")).collect();
    let mut epoch = Value::Null;
    for number in 1..=20 {
        let node = if number % 2 == 0 { a } else { b };
        let published = publish(node, "news", number);
        assert_eq!(published["offset"], number, "one order for both");
        epoch = published["epoch"].clone();
    }
    for listener in here.iter_mut().chain(&mut there) {
        for number in 1..=20 {
            let push = listener.next().unwrap();
            assert_eq!(push["pub"]["offset"], number, "{push}");
            assert_eq!(push["pub"]["data"], number, "{push}");
        }
    }
    // A client moves from one node to the other with its position.
    let (_, connect) = Listener::connect_to(b.address, &recovering("news", 15, &epoch));
    let subscribed = &connect["connect"]["subs"]["news"];
    assert_eq!(subscribed["recovered"], true, "{connect}");
    let recovered = subscribed["publications"].as_array().unwrap().iter();
    let offsets: Vec<u64> = recovered.map(|of| of["offset"].as_u64().unwrap()).collect();
    assert_eq!(offsets, [16, 17, 18, 19, 20]);
    // A channel without subscribers has its history on every node, and an idempotency key applies to all nodes.
    let once = |node: &Cluster| {
        node.post("/api/publish", "{\"channel\":\"log\",\"data\":7,\"idempotency_key\":\"k\"}")
    };
    assert_eq!(once(a), once(b));
    let history = a.post("/api/history", "{\"channel\":\"log\",\"limit\":10}");
    assert_eq!(history.matches("\"data\":7").count(), 1, "{history}");
    b.post("/api/history_remove", "{\"channel\":\"log\"}");
    let history = a.post("/api/history", "{\"channel\":\"log\",\"limit\":10}");
    assert!(!history.contains("\"data\":7") && history.contains("\"offset\":1"), "{history}");
}

#[test]
fn a_redis_that_was_killed_and_kept_its_data_loses_nothing() {
    let mut redis = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (a, b) = (node(1, redis.addr), node(2, redis.addr));
    survives(&a, &b, |is_killed| match is_killed {
        true => redis.kill(),
        false => redis.restart(),
    });
}

/// Checks that all acknowledged publications arrive in order although the engine's server is killed repeatedly. `turn`
/// kills it (true) or restarts it.
fn survives(a: &Cluster, b: &Cluster, mut turn: impl FnMut(bool)) {
    let mut listener = Listener::connect(b.address, "news");
    let mut acknowledged = Vec::new();
    for number in 1..=60 {
        if number % 20 == 0 {
            turn(true);
            let body = json!({"channel": "news", "data": 0}).to_string();
            let refused = a.post("/api/publish", &body);
            assert!(
                refused.contains("stored"),
                "it says whether it may have been stored: {refused}"
            );
            turn(false);
        }
        publish(a, "news", number);
        acknowledged.push(number);
    }
    // An unsubscribed client returns with its position, until it has everything.
    let (mut heard, mut last, mut epoch) = (Vec::new(), 0, Value::Null);
    while heard.last() != Some(&60) {
        let Some(push) = listener.next() else { panic!("cut off after {heard:?}") };
        let mut publications = vec![push["pub"].clone()];
        if push["unsubscribe"]["code"] == 2500 {
            let connect;
            (listener, connect) =
                Listener::connect_to(b.address, &recovering("news", last, &epoch));
            let subscribed = &connect["connect"]["subs"]["news"];
            assert_eq!(
                subscribed["recovered"], true,
                "nothing was lost after {last} of {epoch}: {connect}"
            );
            epoch = subscribed["epoch"].clone();
            publications = subscribed["publications"].as_array().cloned().unwrap_or_default();
        } else {
            assert!(push["pub"].is_object(), "{push}");
        }
        for publication in publications {
            assert_eq!(publication["offset"], last + 1, "{publication} after {last}");
            last += 1;
            heard.push(publication["data"].as_u64().unwrap());
        }
    }
    // A publication without a response may be stored twice, because `publish` retries. None is missing, and the order
    // is kept.
    heard.retain(|&number| number > 0);
    heard.dedup();
    assert_eq!(heard, acknowledged);
}

#[test]
fn a_redis_that_lost_its_data_is_noticed() {
    let mut redis = Redis::start(&[]);
    let (a, b) = (node(1, redis.addr), node(2, redis.addr));
    let mut listener = Listener::connect(b.address, "news");
    let epoch = publish(&a, "news", 1)["epoch"].clone();
    assert_eq!(listener.next().unwrap()["pub"]["data"], 1);
    redis.kill();
    redis.restart();
    // The same offset as before, in another generation of the data.
    publish(&a, "news", 2);
    let push = listener.next().expect("it is still connected");
    assert_eq!(push["unsubscribe"]["code"], 2500, "{push}");
    let (mut listener, connect) = Listener::connect_to(b.address, &recovering("news", 1, &epoch));
    let subscribed = &connect["connect"]["subs"]["news"];
    assert_ne!(subscribed["recovered"], true, "{connect}");
    assert_ne!(subscribed["epoch"], epoch);
    publish(&a, "news", 3);
    assert_eq!(listener.next().unwrap()["pub"]["data"], 3);
}

/// Clients of `a` in channels that `b` publishes to, and in channels at rest, are unsubscribed once when the server loses its data.
fn is_lost_once(a: &Cluster, b: &Cluster, lose: impl FnOnce()) {
    const ROOMS: usize = 12;
    let (address, room) = (a.address, |at: usize| format!("room{at}"));
    let follow = |at: usize, mut listener: Listener| {
        let (mut gaps, mut since) = (0, (0, json!("")));
        while let Some(push) = listener.next() {
            if push["pub"]["data"] == 99 {
                return gaps;
            }
            if let Some(offset) = push["pub"]["offset"].as_u64() {
                since.0 = offset;
            }
            if push["unsubscribe"]["code"] == 2500 {
                gaps += 1;
                let connect;
                let positions = recovering(&room(at), since.0, &since.1);
                (listener, connect) = Listener::connect_to(address, &positions);
                let sub = &connect["connect"]["subs"][room(at)];
                since = (sub["offset"].as_u64().unwrap_or(0), sub["epoch"].clone());
                let missed = sub["publications"].as_array().into_iter().flatten();
                if missed.into_iter().any(|publication| publication["data"] == 99) {
                    return gaps;
                }
            }
        }
        panic!("{} is cut off", room(at));
    };
    let listeners: Vec<_> = (0..ROOMS).map(|at| Listener::connect(address, &room(at))).collect();
    for at in 0..ROOMS {
        publish(b, &room(at), 1);
    }
    let gaps: Vec<i32> = std::thread::scope(|scope| {
        let follow = &follow;
        let listeners = listeners.into_iter().enumerate();
        let threads: Vec<_> =
            listeners.map(|(at, listener)| scope.spawn(move || follow(at, listener))).collect();
        lose();
        // Longer than it takes a node to ask which generation of its data a server has.
        let since = Instant::now();
        while since.elapsed() < std::time::Duration::from_secs(6) {
            (0..ROOMS).step_by(2).for_each(|at| _ = publish(b, &room(at), 2));
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        (0..ROOMS).for_each(|at| _ = publish(b, &room(at), 99));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(gaps, [1; ROOMS]);
}

#[test]
fn a_redis_that_comes_late_is_waited_for() {
    let mut redis = Redis::start(&[]);
    redis.kill();
    let cluster = Cluster::start_with(1, |config| on_redis(config, redis.addr));
    until("the state of the engine is never known", || {
        cluster.state.engines.health().into_values().eq(["connecting"])
    });
    let refused = cluster.post("/api/publish", "{\"channel\":\"news\",\"data\":1}");
    assert!(refused.contains("nothing was stored"), "{refused}");
    // In-memory channels are not affected.
    let mut local = Listener::connect(cluster.address, "local:1");
    let answer = cluster.post("/api/publish", "{\"channel\":\"local:1\",\"data\":1}");
    assert!(answer.contains("result"), "{answer}");
    assert_eq!(local.next().unwrap()["pub"]["data"], 1);
    redis.restart();
    ready(&cluster);
    let mut listener = Listener::connect(cluster.address, "news");
    publish(&cluster, "news", 2);
    assert_eq!(listener.next().unwrap()["pub"]["data"], 2);
}

#[test]
fn connections_that_redis_cuts_are_made_good_and_nobody_is_unsubscribed() {
    let redis = Redis::start(&[]);
    let (a, b) = (node(1, redis.addr), node(2, redis.addr));
    let mut listeners: Vec<Listener> =
        (0..20).map(|at| Listener::connect(b.address, &format!("room{at}"))).collect();
    for round in 1..=3 {
        let killed = redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert!(killed.parse::<u64>().is_ok_and(|killed| killed > 0), "{killed}");
        for at in 0..20 {
            publish(&a, &format!("room{at}"), round);
        }
    }
    for (at, listener) in listeners.iter_mut().enumerate() {
        let mut offset = 0;
        loop {
            let push = listener.next().expect("it is still connected");
            offset += 1;
            assert_eq!(push["pub"]["offset"], offset, "room{at}: {push}");
            if push["pub"]["data"] == 3 {
                break;
            }
        }
    }
}

#[test]
fn a_redis_that_is_stopped_holds_up_nobody_but_its_own_channels() {
    let redis = Redis::start(&[]);
    let (a, b) = (node(1, redis.addr), node(2, redis.addr));
    let mut listener = Listener::connect(b.address, "news");
    publish(&a, "news", 1);
    assert_eq!(listener.next().unwrap()["pub"]["data"], 1);
    redis.signal("-STOP");
    let refused = a.post("/api/publish", "{\"channel\":\"news\",\"data\":2}");
    assert!(refused.contains("may have been stored"), "{refused}");
    let mut local = Listener::connect(a.address, "local:1");
    publish(&a, "local:1", 1);
    assert_eq!(local.next().unwrap()["pub"]["data"], 1);
    // A channel that the node already follows is subscribed to without asking Redis.
    let (_, connect) = Listener::connect_to(b.address, "{\"subs\":{\"news\":{}}}");
    assert_eq!(connect["connect"]["subs"]["news"]["offset"], 1, "{connect}");
    // A client whose subscription fails is disconnected: without the channel, it would not notice what it misses.
    let (_, refused) = Listener::connect_to(b.address, "{\"subs\":{\"unheard\":{}}}");
    assert_eq!(refused["disconnect"]["code"], 3004, "{refused}");
    redis.signal("-CONT");
    publish(&a, "news", 3);
    let mut offset = 1;
    loop {
        let push = listener.next().expect("it is still connected");
        offset += 1;
        assert_eq!(push["pub"]["offset"], offset, "{push}");
        match push["pub"]["data"].as_u64() {
            // It was still in the socket.
            Some(2) => assert_eq!(offset, 2),
            other => break assert_eq!(other, Some(3)),
        }
    }
}

#[test]
fn a_namespace_that_moves_to_an_engine_takes_its_subscribers_along() {
    let redis = Redis::start(&[]);
    let mut other = node(2, redis.addr);
    let cluster = Cluster::start_with(2, |config| {
        on_redis(config, redis.addr);
        config.channel.without_namespace.engine = None;
    });
    let mut listener = Listener::connect(cluster.address, "news");
    publish(&cluster, "news", 1);
    assert_eq!(listener.next().unwrap()["pub"]["data"], 1);
    let mut config = cluster.state.settings.load().config.clone();
    config.channel.without_namespace.engine = Some("main".into());
    let snapshot = Arc::new(dunlin_config::Snapshot::new(2, config).unwrap());
    cluster.state.publish(Arc::new(Settings::new(snapshot)));
    let push = listener.next().expect("it is still connected");
    assert_eq!(push["unsubscribe"]["code"], 2500, "{push}");
    ready(&cluster);
    let mut listener = Listener::connect(cluster.address, "news");
    publish(&other, "news", 2);
    assert_eq!(listener.next().unwrap()["pub"]["data"], 2);

    // A draining node continues to receive until its clients have left.
    let mut there = Listener::connect(other.address, "news");
    other.state.set_lifecycle(Lifecycle::Draining);
    for worker in 0..2 {
        other.send(worker, WorkerMessage::Drain);
    }
    assert_eq!(there.next().expect("a disconnect push")["disconnect"]["code"], 3001);
    drop(there);
    other.look_after_until(|state| state.workers_left() == 0);
}
