//! Clients that ask for more than their budget, with sockets.

use std::sync::Arc;

use dunlin_config::{ClientBudget, Config, Snapshot};
use serde_json::Value;

use crate::metrics::Metric;
use crate::settings::Settings;
use crate::tests::{Cluster, Listener};

fn budget(config: &mut Config, commands_per_s: u32) {
    config.limits.anonymous_budget =
        ClientBudget { commands_per_s, burst_ms: 100, ..ClientBudget::default() };
}

fn publishes(ids: std::ops::Range<u32>, channel: &str) -> String {
    let command = |id: u32| {
        format!("{{\"id\":{id},\"publish\":{{\"channel\":\"{channel}\",\"data\":{id}}}}}")
    };
    ids.map(command).collect::<Vec<_>>().join("\n")
}

/// A client of an HTTP stream, which begins with these commands.
fn client(cluster: &Cluster, commands: &str) -> (Listener, Value) {
    let body = format!("{{\"id\":1,\"connect\":{{}}}}\n{commands}");
    Listener::open(cluster.address, "/connection/http_stream", &body)
}

fn delayed(cluster: &Cluster) -> u64 {
    cluster.state.counters[0].get(Metric::CommandsDelayed)
}

#[test]
fn commands_beyond_the_budget_wait_and_are_carried_out_in_order() {
    let cluster = Cluster::start_with(1, |config| budget(config, 1_000));
    let mut reader = client(&cluster, "{\"id\":2,\"subscribe\":{\"channel\":\"a\"}}").0;
    assert_eq!(reader.next().unwrap()["id"], 2);
    let (mut writer, _) = client(&cluster, &publishes(2..502, "a"));
    for id in 2..502 {
        assert_eq!(writer.next().unwrap()["id"], id, "answered in order, none refused");
        let push = reader.next().unwrap();
        assert_eq!(push["push"]["pub"]["data"], id, "{push}");
    }
    assert!(delayed(&cluster) > 0);
}

#[test]
fn one_frame_is_carried_out_over_many_turns_whatever_the_budget() {
    let cluster = Cluster::start_with(1, |config| budget(config, 0));
    let (mut writer, _) = client(&cluster, &publishes(2..1_002, "a"));
    for id in 2..1_002 {
        assert_eq!(writer.next().unwrap()["id"], id);
    }
    assert!((3..10).contains(&delayed(&cluster)), "of 256 each: {}", delayed(&cluster));
}

#[test]
fn who_sends_requests_without_end_is_disconnected_and_nobody_else() {
    let cluster = Cluster::start_with(1, |config| {
        budget(config, 10);
        (config.limits.frame_bytes_max, config.limits.message_bytes_max) = (10_000, 10_000);
    });
    let (mut other, _) = client(&cluster, "{\"id\":2,\"subscribe\":{\"channel\":\"b\"}}");
    assert_eq!(other.next().unwrap()["id"], 2);
    let (mut writer, connected) = client(&cluster, &publishes(2..5, "a"));
    let session = connected["connect"]["session"].as_str().unwrap();
    let data = Value::from(publishes(10..20, "a")).to_string();
    let body = format!("{{\"session\":\"{session}\",\"node\":\"\",\"data\":{data}}}");
    for _ in 0..40 {
        cluster.post("/emulation", &body);
    }
    let mut last = Value::Null;
    while let Some(said) = writer.next() {
        last = said;
    }
    assert_eq!(last["push"]["disconnect"]["code"], 3013, "{last}");
    cluster.post("/api/publish", "{\"channel\":\"b\",\"data\":7}");
    assert_eq!(other.next().unwrap()["push"]["pub"]["data"], 7);
}

#[test]
fn a_budget_changes_while_clients_wait() {
    let cluster = Cluster::start_with(1, |config| budget(config, 2));
    // At the rate it begins with, the last of these would be answered after minutes.
    let (mut writer, _) = client(&cluster, &publishes(2..1_002, "a"));
    assert_eq!(writer.next().unwrap()["id"], 2);
    let mut config = cluster.state.newest_for(0).config.clone();
    budget(&mut config, 0);
    let snapshot = Arc::new(Snapshot::new(2, config).unwrap());
    cluster.state.publish(Arc::new(Settings::new(snapshot)));
    for id in 3..1_002 {
        assert_eq!(writer.next().unwrap()["id"], id);
    }
}
