//! Long-polls of channels whose engine loses data or is changed.

use std::sync::Arc;

use serde_json::Value;

use super::{Cluster, Listener, Redis, node, on_redis, publish, ready, recovering};
use crate::state::settings::Settings;
use crate::tests::polls::{WaitingPoll, cursor, data, poll};

fn ask(answer: &Value) -> String {
    format!("channel=news&channel=local:1&cursor={}", cursor(answer))
}

/// Regression: the poll waited on without a subscription, and was answered with the position of another subscriber: it lost
/// what was published meanwhile, and was not notified.
#[test]
fn poll_after_redis_lost_its_data_is_answered_at_once_and_notified_of_the_gap() {
    let mut redis = Redis::start(&[]);
    let cluster = node(1, redis.addr);
    publish(&cluster, "news", 1);
    let first = poll(&cluster, "channel=news&channel=local:1");
    let waiting = WaitingPoll::park(&cluster, &ask(&first), "news", 1);
    redis.kill();
    redis.restart();
    publish(&cluster, "news", 2);
    // Another subscriber is at the new stream's position.
    let _later = Listener::connect(cluster.address, "news");
    publish(&cluster, "news", 3);
    let second = waiting.answer();
    assert_eq!(data(&second), [0u64; 0], "{second}");
    assert_eq!(second["positions"]["news"], first["positions"]["news"], "its own: {second}");
    let third = poll(&cluster, &ask(&second));
    assert_eq!(third["gap"][0]["reason"], "new_stream", "{third}");
    assert_eq!(data(&third), [2, 3], "{third}");
}

/// Redis has lost the last publications: its stream goes on in an epoch that inherits nothing, and still has what the client
/// has had long before.
#[test]
fn poll_after_a_new_stream_does_not_repeat_what_the_client_had() {
    let mut redis = Redis::start(&[]);
    let cluster = node(1, redis.addr);
    let all = |number: u64| publish(&cluster, "news", number);
    (1..=3).for_each(|number| _ = all(number));
    assert_eq!(redis.cli(&["SAVE"]), "OK");
    (4..=5).for_each(|number| _ = all(number));
    let first = poll(&cluster, "channel=news&channel=local:1&cursor=0");
    assert_eq!(data(&first), [1, 2, 3, 4, 5]);
    let waiting = WaitingPoll::park(&cluster, &ask(&first), "news", 1);
    redis.kill();
    redis.restart();
    all(6);
    let second = waiting.answer();
    assert_eq!(second["positions"]["news"], first["positions"]["news"], "{second}");
    all(7);
    let third = poll(&cluster, &ask(&second));
    assert_eq!(third["gap"][0]["reason"], "new_stream", "{third}");
    assert_eq!(data(&third), [6, 7], "{third}");
}

#[test]
fn poll_of_a_namespace_that_moves_to_an_engine_is_answered_from_its_own_position() {
    let redis = Redis::start(&[]);
    let cluster = Cluster::start_with(2, |config| {
        on_redis(config, redis.addr);
        config.channel.without_namespace.engine = None;
    });
    ready(&cluster);
    publish(&cluster, "news", 1);
    let first = poll(&cluster, "channel=news&channel=local:1");
    let waiting = WaitingPoll::park(&cluster, &ask(&first), "news", 1);
    let mut config = cluster.state.settings.load().config.clone();
    config.channel.without_namespace.engine = Some("main".into());
    let snapshot = Arc::new(dunlin_config::Snapshot::new(2, config).unwrap());
    cluster.state.publish(Arc::new(Settings::new(snapshot)));
    let second = waiting.answer();
    assert_eq!(second["positions"]["news"], first["positions"]["news"], "{second}");
    publish(&cluster, "news", 2);
    let third = poll(&cluster, &ask(&second));
    assert_eq!(third["gap"][0]["reason"], "new_stream", "{third}");
    assert_eq!(data(&third), [2], "{third}");
}

/// The client of a server-side subscription does not subscribe again while it is connected.
#[test]
fn client_with_a_server_side_subscription_is_made_to_come_back_after_a_gap() {
    let mut redis = Redis::start(&[]);
    let cluster = node(1, redis.addr);
    let epoch = publish(&cluster, "news", 1)["epoch"].clone();
    let mut listener = Listener::connect(cluster.address, "news");
    redis.kill();
    redis.restart();
    publish(&cluster, "news", 2);
    let ended = listener.next().expect("an unsubscribe push");
    assert_eq!(ended["unsubscribe"]["code"], 2500, "{ended}");
    let disconnected = listener.next().expect("a disconnect push");
    assert_eq!(disconnected["disconnect"]["code"], 3010, "{disconnected}");
    assert!(listener.next().is_none(), "and its stream ends: an EventSource opens another one");
    let (_, connect) = Listener::connect_to(cluster.address, &recovering("news", 1, &epoch));
    assert_eq!(connect["connect"]["subs"]["news"]["offset"], 1, "{connect}");
}
