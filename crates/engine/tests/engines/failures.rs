//! Failures of a Redis server: each has a name and a fix, and no loss is silent.

use dunlin_engine::redis::{Layout, RedisConfig, Topology};
use dunlin_engine::{EngineEvent, EngineRequest, RefusalReason, ShardState};
use dunlin_hub::{Error, HistoryFilter, NewPublication};
use dunlin_wire::resp::ServerError;

use crate::nodes::{Fleet, KEPT, Node, UNKEPT, data_of, heard};
use crate::servers::{Deployment, RedisServer, free_port};

fn state(node: &Node) -> ShardState {
    node.engine.shards().next().unwrap().state
}

fn topology_of(server: &RedisServer) -> Topology {
    Topology::Servers(vec![server.server()])
}

#[test]
fn a_server_that_comes_late_is_waited_for() {
    let mut server = RedisServer::start(&[]);
    server.kill();
    let config = RedisConfig { hold_ms: 1, ..RedisConfig::new(topology_of(&server)) };
    let mut fleet = Fleet::starting(&config, 1, None);
    let subscription = fleet.begin_subscribe(0, "a", KEPT);
    let token = fleet.send(0, "a", KEPT, data_of("x"));
    assert_eq!(fleet.published(0, token), Err(Error::EngineUnavailable));
    fleet.until("said", |nodes| {
        let shard = nodes[0].engine.shards().next().unwrap();
        shard.state == ShardState::Connecting && shard.detail.contains("refused")
    });
    assert!(!state(&fleet.nodes.0[0]).fix().is_empty());
    server.restart();
    fleet.until_ready();
    fleet.until("subscribed", |nodes| !nodes[0].events.is_empty());
    fleet.publish(0, "a", "y");
    fleet.until("heard", |nodes| heard(&nodes[0], "a").len() == 1);
    assert_eq!(fleet.subscribed(0, subscription).len(), 1);
    let shard = fleet.nodes.0[0].engine.shards().next().unwrap();
    assert!(
        shard.state == ShardState::Ready
            && shard.detail.is_empty()
            && shard.version.starts_with(char::is_numeric)
    );
}

#[test]
fn a_server_that_reads_its_data_is_waited_for() {
    // A fiftieth of a second a key.
    let mut server = RedisServer::start(&[
        "--appendonly",
        "yes",
        "--key-load-delay",
        "20000",
        "--loading-process-events-interval-bytes",
        "1024",
    ]);
    let fill = "for i = 1, 300 do redis.call('SET', 'key' .. i, string.rep('x', 4000)) end";
    server.cli(&["EVAL", fill, "0"]);
    let before = Fleet::new(&topology_of(&server), 1).publish(0, "a", "1");
    server.cli(&["BGREWRITEAOF"]);
    server.wait(&["INFO", "persistence"], "aof_rewrite_in_progress:0");
    server.kill();
    server.restart_until("Loading RDB produced");
    let config = RedisConfig { hold_ms: 60_000, ..RedisConfig::new(topology_of(&server)) };
    let mut fleet = Fleet::starting(&config, 1, None);
    let token = fleet.send(0, "a", KEPT, data_of("2"));
    let loading = ShardState::Refused(ServerError::Loading.into());
    fleet.until("named", |nodes| state(&nodes[0]) == loading);
    let after = fleet.published(0, token).unwrap().position;
    assert!(after.offset == before.offset + 1 && after.epoch != before.epoch);
}

#[test]
fn what_waits_is_bounded() {
    let config = RedisConfig {
        queue_bytes_max: 10_000,
        hold_ms: 1_000_000,
        ..RedisConfig::new(Topology::Servers(vec![dunlin_engine::Server {
            host: "127.0.0.1".to_owned(),
            port: free_port(),
            role: dunlin_engine::ServerRole::Data,
        }]))
    };
    let mut fleet = Fleet::starting(&config, 1, None);
    for number in 0..200 {
        fleet.send(0, &number.to_string(), KEPT, data_of("some bytes"));
    }
    fleet.turn();
    let refused = fleet.nodes.0[0].events.iter().filter(|event| {
        matches!(event, EngineEvent::Published { result: Err(Error::EngineUnavailable), .. })
    });
    assert!((150..200).contains(&refused.count()));
}

#[test]
fn a_wrong_password_and_a_user_without_rights_have_names() {
    let server = RedisServer::start(&[]);
    server.cli(&["ACL", "SETUSER", "weak", "on", ">w", "~*", "resetchannels", "+@all"]);
    server.cli(&["ACL", "SETUSER", "exact", "on", ">e", "~dunlin*", "&dunlin*", "+@all"]);
    let config = RedisConfig::new(topology_of(&server));
    for (user, password, error) in
        [("exact", "wrong", ServerError::WrongPassword), ("weak", "w", ServerError::NoPermission)]
    {
        let auth = Some((user.to_owned(), password.to_owned()));
        let mut fleet = Fleet::starting(&config, 1, auth.as_ref());
        fleet.until("named", |nodes| state(&nodes[0]) == ShardState::Refused(error.clone().into()));
        assert!(!fleet.nodes.0[0].engine.is_ready());
    }
    let auth = Some(("exact".to_owned(), "e".to_owned()));
    let mut fleet = Fleet::starting(&config, 1, auth.as_ref());
    fleet.until_ready();
    fleet.subscribe(0, "a", KEPT);
    fleet.publish(0, "a", "x");
}

/// Returns the words of the documented `ACL SETUSER` line.
fn documented_acl() -> Vec<&'static str> {
    let page = include_str!("../../../../docs/operating/cluster.md");
    let line = page.split('`').find(|text| text.starts_with("ACL SETUSER ")).expect("it is there");
    let rules = line.split_once(">password ").expect("a password").1;
    let fix = ServerError::NoPermission.fix().replace("PREFIX", "dunlin");
    assert!(fix.contains(rules), "{fix}: {rules}");
    line.split(' ').collect()
}

/// A user with the documented permissions can do everything an engine does, on one server and on cluster nodes.
#[test]
fn the_documented_user_may_do_what_is_needed() {
    let login = Some(("dunlin".to_owned(), "password".to_owned()));
    for deployment in [Deployment::single(), Deployment::cluster(2)] {
        for server in &deployment.servers {
            assert_eq!(server.cli(&documented_acl()), "OK");
            server.cli(&["CONFIG", "SET", "maxmemory", "1gb"]);
        }
        let config = RedisConfig::new(deployment.topology.clone());
        let mut fleet = Fleet::starting(&config, 2, login.as_ref());
        fleet.until_ready();
        for channel in ["a", "b", "c", "d"] {
            fleet.subscribe(1, channel, KEPT);
            fleet.publish(0, channel, "1");
            let keyed = NewPublication { idempotency_key: Some("k".into()), ..data_of("2") };
            let token = fleet.send(0, channel, KEPT, keyed);
            assert_eq!(fleet.published(0, token).unwrap().position.offset, 2);
            let token = fleet.send(0, channel, UNKEPT, data_of("3"));
            assert!(fleet.published(0, token).is_ok());
            fleet.until("heard", |nodes| heard(&nodes[1], channel).len() == 3);
            let history = fleet.history(1, channel, HistoryFilter::default()).unwrap();
            assert_eq!(history.publications.len(), 2);
        }
        fleet.nodes.0[0].engine.redis().set_wait(std::num::NonZeroU8::new(1), 1);
        let token = fleet.send(0, "a", KEPT, data_of("4"));
        assert_eq!(fleet.published(0, token), Err(Error::EngineUncertain), "WAIT was carried out");
        let behind = |node: &Node| {
            node.engine.shards().any(|shard| shard.condition().name == "replicas_behind")
        };
        assert!(behind(&fleet.nodes.0[0]));
    }
}

#[test]
fn a_replica_is_refused_until_it_is_the_primary() {
    let primary = RedisServer::start(&[]);
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
    let config = RedisConfig { hold_ms: 60_000, ..RedisConfig::new(topology_of(&replica)) };
    let mut fleet = Fleet::starting(&config, 1, None);
    let token = fleet.send(0, "a", KEPT, data_of("x"));
    let read_only = ShardState::Refused(ServerError::ReadOnly.into());
    fleet.until("named", |nodes| state(&nodes[0]) == read_only);
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(fleet.published(0, token).unwrap().position.offset, 1);
    // When it becomes a replica again, refused publications are not lost.
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    let token = fleet.send(0, "a", KEPT, data_of("y"));
    fleet.until("named", |nodes| state(&nodes[0]) == read_only);
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    assert!(fleet.published(0, token).is_ok());
}

#[test]
fn a_server_without_memory_refuses_and_eviction_is_warned_of() {
    let server = RedisServer::start(&[]);
    let mut fleet = Fleet::new(&topology_of(&server), 1);
    fleet.subscribe(0, "a", KEPT);
    fleet.publish(0, "a", "1");
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let token = fleet.send(0, "a", KEPT, data_of("refused"));
    assert_eq!(fleet.published(0, token), Err(Error::EngineRefused));
    let detail = fleet.nodes.0[0].engine.shards().next().unwrap().detail;
    assert_eq!(ServerError::parse(&detail), ServerError::OutOfMemory);
    let refusing = |fleet: &Fleet| fleet.nodes.0[0].engine.shards().next().unwrap().refusing;
    assert_eq!(refusing(&fleet), Some(RefusalReason::from(ServerError::OutOfMemory)));
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(fleet.publish(0, "a", "2").offset, 2, "the refused one took no offset");
    assert_eq!(refusing(&fleet), None);
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1gb"]);
    fleet.until("warned", |nodes| {
        nodes[0].engine.shards().next().unwrap().eviction.starts_with("allkeys-lru")
    });
    let condition = fleet.nodes.0[0].engine.shards().next().unwrap().condition();
    assert!(condition.name == "may_evict" && condition.fix.contains("noeviction"));
    // The state of the stream is evicted: the stream begins again in another epoch.
    let before = fleet.publish(0, "a", "3");
    server.cli(&["DEL", "dunlin:m:a"]);
    let after = fleet.publish(0, "a", "4");
    assert!(after.offset == 1 && after.epoch != before.epoch);
}

#[test]
fn scripts_that_were_flushed_are_loaded_again_and_order_holds() {
    let server = RedisServer::start(&[]);
    let mut fleet = Fleet::new(&topology_of(&server), 1);
    fleet.subscribe(0, "a", KEPT);
    for round in 0..3 {
        server.cli(&["SCRIPT", "FLUSH"]);
        for number in 0..50 {
            fleet.send(0, "a", KEPT, data_of(&(round * 50 + number).to_string()));
            fleet.turn();
        }
    }
    fleet.until("heard", |nodes| heard(&nodes[0], "a").len() == 150);
    let all: Vec<_> = (0..150).map(|number| (number as u64 + 1, number.to_string())).collect();
    assert_eq!(heard(&fleet.nodes.0[0], "a"), all);
    assert!(fleet.nodes.0[0].engine.stats().retried > 0);
}

#[test]
fn a_foreign_key_of_another_type_is_refused_and_left_alone() {
    let server = RedisServer::start(&[]);
    let mut fleet = Fleet::new(&topology_of(&server), 1);
    server.cli(&["SET", "dunlin:c:a", "somebody's"]);
    server.cli(&["SET", "dunlin:m:b", "somebody's"]);
    for channel in ["a", "b"] {
        let token = fleet.send(0, channel, KEPT, data_of("x"));
        assert_eq!(fleet.published(0, token), Err(Error::EngineRefused));
        let detail = fleet.nodes.0[0].engine.shards().next().unwrap().detail;
        assert_eq!(ServerError::parse(&detail), ServerError::WrongType, "{detail}");
        let token = fleet.begin_subscribe(0, channel, KEPT);
        let refused = fleet.answer(0, "refused", |event| match event {
            EngineEvent::Subscribed { token: of, result } if *of == token => Some(result.clone()),
            _ => None,
        });
        assert_eq!(refused, Err(Error::EngineRefused));
    }
    assert_eq!(server.cli(&["GET", "dunlin:c:a"]), "somebody's");
    // Another channel in the same turn is not affected.
    fleet.subscribe(0, "c", KEPT);
    fleet.publish(0, "c", "x");
    // In the middle of a stream, a refused publication takes no offset.
    server.cli(&["RENAME", "dunlin:c:c", "away"]);
    server.cli(&["SET", "dunlin:c:c", "somebody's"]);
    let token = fleet.send(0, "c", KEPT, data_of("refused"));
    assert_eq!(fleet.published(0, token), Err(Error::EngineRefused));
    server.cli(&["RENAME", "away", "dunlin:c:c"]);
    assert_eq!(fleet.publish(0, "c", "y").offset, 2);
}

/// Simulates a full publish/subscribe output buffer.
#[test]
fn connections_that_a_server_kills_come_back_and_say_where_the_stream_is() {
    let server = RedisServer::start(&[]);
    let mut fleet = Fleet::new(&topology_of(&server), 1);
    let mut tokens = Vec::new();
    for number in 0..1000 {
        tokens.push(fleet.begin_subscribe(0, &format!("channel{number}"), KEPT));
    }
    let count = |node: &Node| {
        node.events.iter().filter(|event| matches!(event, EngineEvent::Subscribed { .. })).count()
    };
    fleet.until("subscribed", |nodes| count(&nodes[0]) == 1000);
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    // Another node publishes while this one is disconnected.
    let mut other = Fleet::new(&topology_of(&server), 1);
    other.publish(0, "channel7", "missed");
    fleet.until("subscribed anew", |nodes| count(&nodes[0]) == 2000);
    let positions = fleet.subscribed(0, tokens[7]);
    assert_eq!(positions[1].position.offset, 1);
    assert_eq!(positions[1].position.epoch, positions[0].position.epoch);
    other.publish(0, "channel7", "heard");
    fleet.until("heard", |nodes| heard(&nodes[0], "channel7").len() == 1);
}

/// Redis closes a subscriber whose pending output exceeds `client-output-buffer-limit`.
#[test]
fn a_subscriber_that_is_cut_for_its_output_buffer_finds_what_it_missed() {
    let server = RedisServer::start(&[]);
    let mut fleet = Fleet::new(&topology_of(&server), 1);
    let mut other = Fleet::new(&topology_of(&server), 1);
    let token = fleet.begin_subscribe(0, "a", KEPT);
    fleet.until("subscribed", |nodes| !nodes[0].events.is_empty());
    let limit = |limit| server.cli(&["CONFIG", "SET", "client-output-buffer-limit", limit]);
    limit("pubsub 32768 0 0");
    // One message exceeds the limit.
    other.publish(0, "a", &"x".repeat(2 << 20));
    let subscribed = |node: &Node| {
        node.events.iter().filter(|event| matches!(event, EngineEvent::Subscribed { .. })).count()
    };
    fleet.until("subscribed anew", |nodes| subscribed(&nodes[0]) == 2);
    limit("pubsub 33554432 8388608 60");
    assert!(heard(&fleet.nodes.0[0], "a").is_empty(), "the message was cut");
    let positions = fleet.subscribed(0, token);
    assert_eq!((positions[0].position.offset, positions[1].position.offset), (0, 1));
    assert_eq!(positions[1].position.epoch, positions[0].position.epoch, "it can be read");
    other.publish(0, "a", "next");
    fleet.until("heard", |nodes| heard(&nodes[0], "a").iter().any(|(offset, _)| *offset == 2));
}

/// Redis also closes a subscriber's connection for a reply that exceeds its output buffer.
#[test]
fn histories_larger_than_the_output_buffer_are_read_in_pages() {
    for layout in [Layout::Dunlin, Layout::Centrifugo] {
        let server = RedisServer::start(&[]);
        let config = RedisConfig { layout, ..RedisConfig::new(topology_of(&server)) };
        let mut fleet = Fleet::new(&config, 1);
        let subscription = fleet.begin_subscribe(0, "other", KEPT);
        fleet.until_subscribed(0, subscription, 1);
        let data = "x".repeat(64 << 10);
        let tokens: Vec<u64> = (0..100).map(|_| fleet.send(0, "a", KEPT, data_of(&data))).collect();
        for token in tokens {
            assert!(fleet.published(0, token).is_ok());
        }
        // Less than one of these histories.
        server.cli(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 6291456 0 0"]);
        let ask = |fleet: &mut Fleet, reverse, limit| {
            let filter = HistoryFilter { reverse, limit, ..HistoryFilter::default() };
            fleet.ask(0, |token| EngineRequest::History {
                token,
                channel: "a".into(),
                retention: KEPT,
                filter,
                latest: false,
            })
        };
        let all: Vec<u64> = (1..=100).collect();
        let cases = [
            (false, None, all.clone()),
            (true, None, all.iter().rev().copied().collect()),
            (false, Some(50), all[..50].to_vec()),
            (true, Some(50), all.iter().rev().copied().take(50).collect()),
        ];
        let asked: Vec<_> = cases
            .iter()
            .map(|(reverse, limit, offsets)| (ask(&mut fleet, *reverse, *limit), offsets))
            .collect();
        for (token, offsets) in asked {
            let history = fleet.answer(0, "history", |event| match event {
                EngineEvent::History { token: of, result } if *of == token => Some(result.clone()),
                _ => None,
            });
            let publications = history.unwrap().publications;
            assert!(publications.iter().map(|of| of.offset()).eq(offsets.iter().copied()));
        }
        assert_eq!(fleet.subscribed(0, subscription).len(), 1, "no connection broke");
        assert_eq!(fleet.nodes.0[0].engine.stats().retried, 0);
        // A page that exceeds the bound of bytes in flight is read alone.
        server.cli(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 33554432 0 0"]);
        fleet.publish(0, "b", &"x".repeat(5 << 20));
        fleet.publish(0, "b", "2");
        let history = fleet.history(0, "b", HistoryFilter::default()).unwrap();
        assert_eq!(history.publications.len(), 2);
    }
}

/// If the buffer limit is below the size of one message, the read is not repeated endlessly: each attempt loses everything in
/// flight.
#[test]
fn a_history_that_breaks_the_connection_fails_at_the_second_time() {
    let server = RedisServer::start(&[]);
    let mut fleet = Fleet::new(&topology_of(&server), 1);
    fleet.publish(0, "a", &"x".repeat(1 << 20));
    server.cli(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 65536 0 0"]);
    assert_eq!(fleet.history(0, "a", HistoryFilter::default()), Err(Error::EngineUnavailable));
    assert_eq!(fleet.nodes.0[0].engine.stats().retried, 1);
    fleet.until_ready();
    assert_eq!(fleet.publish(0, "a", "2").offset, 2);
}

/// With a slow server that accepts commands, unanswered ones count against the bound, for all partitions of a cluster together.
#[test]
fn operations_in_flight_and_waiting_are_bounded_together() {
    let deployment = Deployment::cluster(2);
    let (queue_bytes_max, probe_timeout_ms) = (1 << 20, 600_000);
    let config = RedisConfig {
        queue_bytes_max,
        probe_timeout_ms,
        hold_ms: 600_000,
        ..RedisConfig::new(deployment.topology.clone())
    };
    let mut fleet = Fleet::new(&config, 1);
    deployment.servers.iter().for_each(|server| server.signal("-STOP"));
    let data = "x".repeat(10_000);
    for number in 0..300 {
        fleet.send(0, &format!("channel{number}"), KEPT, data_of(&data));
        fleet.turn_now();
    }
    let refused = |nodes: &[Node]| {
        let refused = nodes[0].events.iter().filter(|event| {
            matches!(event, EngineEvent::Published { result: Err(Error::EngineUnavailable), .. })
        });
        refused.count()
    };
    let taken = 300 - refused(&fleet.nodes.0);
    assert!((90..=queue_bytes_max / data.len()).contains(&taken), "{taken}");
    deployment.servers.iter().for_each(|server| server.signal("-CONT"));
    fleet.until("answered", |nodes| nodes[0].engine.stats().published == taken as u64);
    for number in 0..300 {
        fleet.publish(0, &format!("channel{number}"), "there is room again");
    }
}

/// A stopped server process neither answers nor closes connections.
#[test]
fn a_connection_that_does_not_hear_itself_is_given_up() {
    let server = RedisServer::start(&[]);
    let config = RedisConfig {
        probe_interval_ms: 20,
        probe_timeout_ms: 2_000,
        ..RedisConfig::new(topology_of(&server))
    };
    let mut fleet = Fleet::starting(&config, 1, None);
    fleet.until_ready();
    let subscription = fleet.begin_subscribe(0, "a", KEPT);
    fleet.until_subscribed(0, subscription, 1);
    server.signal("-STOP");
    let token = fleet.send(0, "a", KEPT, data_of("x"));
    fleet.turn();
    fleet.until("given up", |nodes| nodes[0].engine.stats().silences > 0);
    let result = fleet.published(0, token);
    assert_eq!(result, Err(Error::EngineUncertain), "it had left");
    server.signal("-CONT");
    fleet.until_subscribed(0, subscription, 2);
    fleet.publish(0, "a", "y");
    fleet.until("heard", |nodes| !heard(&nodes[0], "a").is_empty());
}

/// A publication with an idempotency key is sent again on the next connection, and remains marked as possibly stored.
#[test]
fn resent_operation_that_may_have_been_executed_is_uncertain() {
    let server = RedisServer::start(&[]);
    let config = RedisConfig {
        probe_interval_ms: 20,
        probe_timeout_ms: 200,
        hold_ms: 500,
        ..RedisConfig::new(topology_of(&server))
    };
    let mut fleet = Fleet::starting(&config, 1, None);
    fleet.until_ready();
    server.signal("-STOP");
    let keyed = NewPublication { idempotency_key: Some("once".into()), ..data_of("x") };
    let token = fleet.send(0, "a", KEPT, keyed);
    fleet.turn();
    fleet.until("sent again", |nodes| nodes[0].engine.stats().retried > 0);
    assert_eq!(fleet.published(0, token), Err(Error::EngineUncertain));
    server.signal("-CONT");
}

/// Commands are answered but no messages arrive, as on a connection to a former primary.
#[test]
fn a_connection_without_its_subscriptions_is_given_up() {
    let deployment = Deployment::single();
    let config = RedisConfig {
        probe_interval_ms: 20,
        probe_timeout_ms: 200,
        ..RedisConfig::new(topology_of(&deployment.servers[0]))
    };
    let mut fleet = Fleet::starting(&config, 1, None);
    fleet.until_ready();
    let silences = |nodes: &[Node]| nodes[0].engine.stats().silences;
    fleet.nodes.0[0].deafen();
    fleet.until("given up", |nodes| silences(nodes) > 0);
    fleet.until_ready();
}

/// A command larger than a connection can hold was retried forever and blocked all later ones.
#[test]
fn a_publication_that_no_connection_takes_is_refused_and_the_rest_goes_on() {
    let server = RedisServer::start(&[]);
    let config = RedisConfig::new(topology_of(&server));
    let mut fleet = Fleet::new(&config, 1);
    let refusing = |fleet: &Fleet| fleet.nodes.0[0].engine.shards().next().unwrap().refusing;
    // As much as the connection can hold, without the rest of the command.
    let fits = "x".repeat(config.queue_bytes_max - (16 << 10));
    assert_eq!(fleet.publish(0, "a", &fits).offset, 1);
    let token = fleet.send(0, "a", KEPT, data_of(&"x".repeat(config.queue_bytes_max)));
    assert_eq!(fleet.published(0, token), Err(Error::EngineRefused));
    assert_eq!(refusing(&fleet), Some(RefusalReason::from(ServerError::TooLarge)));
    assert_eq!(fleet.publish(0, "a", "2").offset, 2);
    assert_eq!(refusing(&fleet), None);
    // Two that fit separately but not in one command.
    let half = "x".repeat(config.queue_bytes_max - (2 << 20));
    let tokens = ["small", &half].map(|data| fleet.send(0, "b", KEPT, data_of(data)));
    for token in tokens {
        assert!(fleet.published(0, token).is_ok());
    }
}

/// Redis closes a connection on which an argument is too long. Only that argument is refused, and is known not to be stored.
/// The error of Redis may be lost: Redis closes with unread bytes, and the reset may overtake the error. Then the outcome is
/// unknown.
#[test]
fn a_publication_above_the_servers_bound_is_refused_and_was_not_stored() {
    let server = RedisServer::start(&[]);
    let mut fleet = Fleet::new(&topology_of(&server), 1);
    fleet.subscribe(0, "a", KEPT);
    server.cli(&["CONFIG", "SET", "proto-max-bulk-len", "1mb"]);
    let fits = "x".repeat((1 << 20) - 1024);
    assert_eq!(fleet.publish(0, "a", &fits).offset, 1);
    for key in [None, Some("once")] {
        let refused = (0..50).any(|_| {
            let publish = NewPublication {
                idempotency_key: key.map(Into::into),
                ..data_of(&"x".repeat((1 << 20) + 1))
            };
            let token = fleet.send(0, "a", KEPT, publish);
            let result = fleet.published(0, token);
            let refusing = fleet.nodes.0[0].engine.shards().next().unwrap().refusing;
            fleet.until_ready();
            match result {
                Err(Error::EngineRefused) => {
                    assert_eq!(refusing, Some(RefusalReason::from(ServerError::TooLarge)));
                    true
                }
                lost => {
                    assert_eq!(lost, Err(Error::EngineUncertain));
                    false
                }
            }
        });
        assert!(refused, "it was never said why");
    }
    assert_eq!(fleet.publish(0, "a", "2").offset, 2, "nothing of it was stored");
}

/// The partitions of a server lose their data together, and are opened again together: each once.
#[test]
fn partitions_of_a_server_that_was_flushed_are_opened_again_at_once_and_once() {
    let deployment = Deployment::cluster(1);
    let config = RedisConfig {
        // Nothing is noticed by the probe.
        probe_interval_ms: 30_000,
        ..RedisConfig::new(deployment.topology.clone())
    };
    let mut fleet = Fleet::new(&config, 1);
    let channels: Vec<String> = (0..24).map(|at| format!("room{at}")).collect();
    let tokens: Vec<u64> =
        channels.iter().map(|channel| fleet.begin_subscribe(0, channel, KEPT)).collect();
    for (channel, &token) in channels.iter().zip(&tokens) {
        fleet.until_subscribed(0, token, 1);
        fleet.publish(0, channel, "x");
    }
    deployment.servers[0].cli(&["FLUSHALL"]);
    // One channel is published to, or looked at: all partitions are asked.
    let positions = |channels: &[String]| EngineRequest::Positions {
        token: 1_000,
        channels: channels.iter().map(|channel| channel.as_str().into()).collect(),
    };
    fleet.ask(0, |_| positions(&channels[..1]));
    for &token in &tokens {
        fleet.until_subscribed(0, token, 2);
    }
    for channel in &channels {
        fleet.publish(0, channel, "y");
    }
    fleet.ask(0, |_| EngineRequest::Positions {
        token: 1_001,
        channels: channels.iter().map(|channel| channel.as_str().into()).collect(),
    });
    fleet.until("checked", |nodes| {
        let is_last = |event: &EngineEvent| {
            matches!(event, EngineEvent::Positions { token: 1_001, result: Ok(_) })
        };
        nodes[0].events.iter().any(is_last)
    });
    for (channel, &token) in channels.iter().zip(&tokens) {
        let positions = fleet.subscribed(0, token);
        assert_eq!(positions.len(), 2, "{channel}: {positions:?}");
        assert_eq!(positions[1].position.offset, 0, "{channel} is of the new data");
    }
}
