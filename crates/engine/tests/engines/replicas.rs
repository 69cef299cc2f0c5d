//! Publications that are acknowledged once a replica has them.

use std::num::NonZeroU8;

use dunlin_engine::redis::{RedisConfig, Topology};
use dunlin_hub::{Error, HistoryFilter};

use crate::nodes::{Fleet, KEPT, UNKEPT, data_of, heard};
use crate::servers::{Deployment, RedisServer};

fn primary_and_replica() -> (RedisServer, RedisServer, RedisConfig) {
    let primary = RedisServer::start(&[]);
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
    replica.wait(&["INFO", "replication"], "master_link_status:up");
    primary.wait(&["INFO", "replication"], "state=online");
    let topology = Topology::Servers(vec![primary.server()]);
    // The replica has it long before, and a machine under load is no reason to fail.
    let wait_timeout_ms = 2_000;
    let config = RedisConfig {
        wait_replicas: NonZeroU8::new(1),
        wait_timeout_ms,
        ..RedisConfig::new(topology)
    };
    (primary, replica, config)
}

fn condition(fleet: &Fleet) -> &'static str {
    fleet.nodes.0[0].engine.shards().next().unwrap().condition().name
}

#[test]
fn a_publication_that_no_replica_has_is_not_acknowledged() {
    let (_primary, replica, config) = primary_and_replica();
    let mut fleet = Fleet::new(&config, 1);
    fleet.subscribe(0, "a", KEPT);
    assert_eq!(fleet.publish(0, "a", "1").offset, 1);
    assert!(replica.cli(&["LRANGE", "dunlin:c:a", "0", "-1"]).contains(":1:"), "it has it");

    replica.signal("-STOP");
    fleet.nodes.0[0].engine.redis().set_wait(NonZeroU8::new(1), 50);
    let kept = fleet.send(0, "a", KEPT, data_of("2"));
    let unkept = fleet.send(0, "b", UNKEPT, data_of("x"));
    assert!(fleet.published(0, unkept).is_ok(), "what is not kept is not waited for");
    assert_eq!(fleet.published(0, kept), Err(Error::EngineUncertain));
    assert_eq!(condition(&fleet), "replicas_behind");
    // The server has it, so its outcome is uncertain.
    fleet.until("heard", |nodes| heard(&nodes[0], "a").len() == 2);
    let history = fleet.history(0, "a", HistoryFilter::default()).unwrap();
    assert_eq!(history.publications.len(), 2);

    // The setting changes at run time.
    fleet.nodes.0[0].engine.redis().set_wait(None, 50);
    assert_eq!(fleet.publish(0, "a", "3").offset, 3);
    fleet.nodes.0[0].engine.redis().set_wait(NonZeroU8::new(1), 2_000);
    replica.signal("-CONT");
    fleet.until("followed", |nodes| {
        let shard = nodes[0].engine.shards().next().unwrap();
        shard.condition().name == "ready"
    });
    assert_eq!(fleet.publish(0, "a", "4").offset, 4);
    assert!(replica.cli(&["LRANGE", "dunlin:c:a", "0", "-1"]).contains(":4:"));
}

/// One `WAIT` covers all publications of a turn.
#[test]
fn replicas_are_asked_once_a_turn() {
    let (primary, _replica, config) = primary_and_replica();
    let mut fleet = Fleet::new(&config, 1);
    fleet.publish(0, "a", "first");
    primary.cli(&["CONFIG", "RESETSTAT"]);
    let tokens: Vec<u64> = (0..500)
        .map(|number| fleet.send(0, &format!("channel{number}"), KEPT, data_of("x")))
        .collect();
    for token in tokens {
        assert!(fleet.published(0, token).is_ok());
    }
    let stats = primary.cli(&["INFO", "commandstats"]);
    assert!(stats.contains("cmdstat_wait:calls=1,"), "{stats}");
}

/// The connection breaks while the replicas are waited for.
#[test]
fn write_without_a_replica_acknowledgement_is_uncertain_when_the_connection_breaks() {
    let (primary, replica, config) = primary_and_replica();
    let mut fleet = Fleet::new(&config, 1);
    fleet.subscribe(0, "a", KEPT);
    replica.signal("-STOP");
    // Longer than the test.
    fleet.nodes.0[0].engine.redis().set_wait(NonZeroU8::new(1), 600_000);
    let token = fleet.send(0, "a", KEPT, data_of("1"));
    fleet.until("heard", |nodes| heard(&nodes[0], "a").len() == 1);
    primary.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert_eq!(fleet.published(0, token), Err(Error::EngineUncertain));
    replica.signal("-CONT");
}

/// In a cluster each connection asks for the replicas of its own server; a server without any is named.
#[test]
fn a_server_of_a_cluster_without_a_replica_is_named() {
    let deployment = Deployment::cluster(2);
    let config = RedisConfig {
        wait_replicas: NonZeroU8::new(1),
        wait_timeout_ms: 20,
        ..RedisConfig::new(deployment.topology)
    };
    let mut fleet = Fleet::new(&config, 1);
    let token = fleet.send(0, "a", KEPT, data_of("1"));
    assert_eq!(fleet.published(0, token), Err(Error::EngineUncertain));
    let behind = |shard: &dunlin_engine::ShardStatus| shard.condition().name == "replicas_behind";
    assert_eq!(fleet.nodes.0[0].engine.shards().filter(behind).count(), 1);
    fleet.until("ready", |nodes| nodes[0].engine.is_ready());
}
