//! Histories are read from a replica if it has the requested part, otherwise from the primary.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use dunlin_engine::redis::{ReadFrom, RedisConfig, Topology};
use dunlin_engine::{ServerRole, ShardState};
use dunlin_hub::{Error, HistoryFilter, StreamPosition};

use crate::nodes::{Fleet, KEPT, Node, data_of, heard};
use crate::servers::{Deployment, RedisServer, cluster_node, meet};

/// A proxy between a primary and its replica. While it is shut, the replica receives nothing, but the link stays up.
struct Gate {
    port: u16,
    shut: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    fn before(server: &RedisServer) -> Gate {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shut: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let (to, gate) = (server.port, Arc::clone(&shut));
        std::thread::spawn(move || {
            for replica in listener.incoming().map_while(Result::ok) {
                let Ok(primary) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)) else { continue };
                let (from, back) = (replica.try_clone().unwrap(), primary.try_clone().unwrap());
                std::thread::spawn(move || carry(from, primary, &Arc::default()));
                let gate = Arc::clone(&gate);
                std::thread::spawn(move || carry(back, replica, &gate));
            }
        });
        Gate { port, shut }
    }

    fn set(&self, shut: bool) {
        *self.shut.0.lock().unwrap() = shut;
        self.shut.1.notify_all();
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, gate: &(Mutex<bool>, Condvar)) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        drop(gate.1.wait_while(gate.0.lock().unwrap(), |shut| *shut).unwrap());
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

struct Stage {
    fleet: Fleet,
    primary: RedisServer,
    replica: RedisServer,
    gate: Gate,
}

/// Starts a primary, its replica, and nodes that prefer the replica.
fn stage(nodes: usize) -> Stage {
    let primary = RedisServer::start(&[]);
    let gate = Gate::before(&primary);
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &gate.port.to_string()]);
    replica.wait(&["INFO", "replication"], "master_link_status:up");
    primary.wait(&["INFO", "replication"], "state=online");
    let config = preferred(Topology::Servers(vec![primary.server()]));
    Stage { fleet: Fleet::new(&config, nodes), primary, replica, gate }
}

fn preferred(topology: Topology) -> RedisConfig {
    let probe_interval_ms = 50;
    let read_from = ReadFrom::ReplicaPreferred;
    RedisConfig { probe_interval_ms, read_from, ..RedisConfig::new(topology) }
}

/// Reads a channel until its replica has answered.
fn until_read_from_replica(fleet: &mut Fleet, node: usize, channel: &str) {
    let before = fleet.nodes.0[node].engine.stats().replica_reads;
    while fleet.nodes.0[node].engine.stats().replica_reads == before {
        fleet.history(node, channel, HistoryFilter::default()).unwrap();
        fleet.turn();
    }
}

fn offsets(fleet: &mut Fleet, node: usize, filter: HistoryFilter) -> Result<Vec<u64>, Error> {
    let history = fleet.history(node, "a", filter)?;
    Ok(history.publications.iter().map(|publication| publication.offset()).collect())
}

fn since(offset: u64, at: StreamPosition) -> HistoryFilter {
    let since = Some(StreamPosition { offset, ..at });
    HistoryFilter { since, ..HistoryFilter::default() }
}

/// Returns the reported condition of the primary.
fn condition(node: &Node) -> &'static str {
    let mut shards = node.engine.shards();
    shards.find(|shard| shard.partitions > 0).unwrap().condition().name
}

fn replica_links(node: &Node) -> usize {
    node.engine.shards().filter(|shard| shard.server.role == ServerRole::Replica).count()
}

#[test]
fn histories_are_read_from_the_replica_and_nothing_else_is() {
    let mut stage = stage(2);
    let fleet = &mut stage.fleet;
    fleet.subscribe(1, "a", KEPT);
    for number in 1..=5 {
        fleet.publish(0, "a", &number.to_string());
    }
    fleet.until("heard", |nodes| heard(&nodes[1], "a").len() == 5);
    let last = fleet.publish(0, "b", "1");
    assert_eq!(replica_links(&fleet.nodes.0[0]), 0, "a connection is made where reads go");
    until_read_from_replica(fleet, 1, "a");
    stage.primary.cli(&["CONFIG", "RESETSTAT"]);
    stage.replica.cli(&["CONFIG", "RESETSTAT"]);
    for _ in 0..20 {
        let whole = offsets(fleet, 1, HistoryFilter::default()).unwrap();
        assert_eq!(whole, [1, 2, 3, 4, 5]);
    }
    let newest = HistoryFilter { reverse: true, limit: Some(2), ..HistoryFilter::default() };
    assert_eq!(offsets(fleet, 1, newest), Ok(vec![5, 4]));
    let (at_primary, at_replica) =
        [&stage.primary, &stage.replica].map(|server| server.cli(&["INFO", "commandstats"])).into();
    assert!(at_replica.contains("cmdstat_lrange"), "{at_replica}");
    assert!(!at_primary.contains("cmdstat_lrange"), "{at_primary}");
    assert_eq!(fleet.nodes.0[1].engine.stats().replica_misses, 0);

    // The primary decides about refused positions, and answers reads of a position alone.
    let token = fleet.begin_history(1, "a", HistoryFilter::default(), true);
    assert_eq!(fleet.history_of(1, token).unwrap().publications.len(), 5);
    let alone = HistoryFilter { limit: Some(0), ..HistoryFilter::default() };
    assert_eq!(fleet.history(1, "a", alone).unwrap().position.offset, 5);
    let reads = fleet.nodes.0[1].engine.stats().replica_reads;
    // A new stream begins at the primary, and only the primary refuses a trimmed position.
    assert_eq!(fleet.history(1, "new", HistoryFilter::default()).unwrap().position.offset, 0);
    assert_eq!(offsets(fleet, 1, since(5, last)).ok(), None, "the epoch of another channel");
    assert_eq!(fleet.nodes.0[1].engine.stats().replica_reads, reads);
    assert_eq!(condition(&fleet.nodes.0[1]), "ready");

    // The setting changes at run time.
    fleet.nodes.0[1].engine.redis().set_read_from(ReadFrom::Primary);
    fleet.turn();
    assert_eq!(replica_links(&fleet.nodes.0[1]), 0);
    assert_eq!(offsets(fleet, 1, HistoryFilter::default()).unwrap().len(), 5);
    assert_eq!(fleet.nodes.0[1].engine.stats().replica_reads, reads);
}

/// A replica has to have everything the engine knows of a stream, however it was learned.
#[test]
fn a_replica_that_lags_is_never_believed() {
    let mut stage = stage(4);
    let fleet = &mut stage.fleet;
    let [hears, publishes, knows_nothing, checks] = [0, 1, 2, 3];
    for node in [hears, checks] {
        fleet.subscribe(node, "a", KEPT);
    }
    for number in 1..=3 {
        fleet.publish(publishes, "a", &number.to_string());
    }
    fleet.until("heard", |nodes| heard(&nodes[hears], "a").len() == 3);
    stage.replica.wait(&["LRANGE", "dunlin:c:a", "0", "-1"], ":3:");
    for node in 0..4 {
        until_read_from_replica(fleet, node, "a");
    }

    stage.gate.set(true);
    fleet.nodes.0[checks].deafen();
    fleet.publish(publishes, "a", "4");
    let last = fleet.publish(publishes, "a", "5");
    fleet.until("heard", |nodes| heard(&nodes[hears], "a").len() == 5);
    let all = vec![1, 2, 3, 4, 5];
    // Nodes that know the position because they received it, published it, or were given it.
    for node in [hears, publishes] {
        assert_eq!(offsets(fleet, node, HistoryFilter::default()), Ok(all.clone()));
        assert_eq!(offsets(fleet, node, since(3, last)), Ok(vec![4, 5]));
    }
    assert_eq!(offsets(fleet, knows_nothing, since(4, last)), Ok(vec![5]));
    // This node knows nothing of the stream until this read.
    assert_eq!(offsets(fleet, knows_nothing, HistoryFilter::default()), Ok(all.clone()));
    for node in [hears, publishes, knows_nothing] {
        assert!(fleet.nodes.0[node].engine.stats().replica_misses > 0, "it was asked");
    }
    // A node that missed the messages reads what it knows of, until a position check at the primary.
    assert_eq!(offsets(fleet, checks, HistoryFilter::default()), Ok(vec![1, 2, 3]));
    let channels = vec!["a".into()];
    let token =
        fleet.ask(checks, |token| dunlin_engine::EngineRequest::Positions { token, channels });
    let positions = fleet.answer(checks, "positions", |event| match event {
        dunlin_engine::EngineEvent::Positions { token: of, result } if *of == token => {
            Some(result.clone().unwrap())
        }
        _ => None,
    });
    assert_eq!(positions, [last]);
    assert_eq!(offsets(fleet, checks, since(3, last)), Ok(vec![4, 5]));

    // A replica that lags for long is not used, until it has caught up.
    for _ in 0..20 {
        assert_eq!(offsets(fleet, hears, HistoryFilter::default()), Ok(all.clone()));
    }
    stage.gate.set(false);
    stage.replica.wait(&["LRANGE", "dunlin:c:a", "0", "-1"], ":5:");
    for node in 0..4 {
        until_read_from_replica(fleet, node, "a");
        assert_eq!(offsets(fleet, node, HistoryFilter::default()), Ok(all.clone()));
        assert_eq!(condition(&fleet.nodes.0[node]), "ready");
    }
}

/// The state of a stream does not expire because its primary is no longer read.
#[test]
fn history_read_from_a_replica_is_kept_as_long_as_one_read_from_the_primary() {
    let mut stage = stage(1);
    let fleet = &mut stage.fleet;
    fleet.publish(0, "a", "1");
    until_read_from_replica(fleet, 0, "a");
    let remaining_ms = |server: &RedisServer| {
        let said = server.cli(&["PTTL", "dunlin:m:a"]);
        said.parse::<u64>().unwrap()
    };
    stage.primary.cli(&["PEXPIRE", "dunlin:m:a", "100000"]);
    while remaining_ms(&stage.replica) > 100_000 {}
    until_read_from_replica(fleet, 0, "a");
    while remaining_ms(&stage.primary) < KEPT.meta_ttl_ms {
        fleet.turn();
    }
}

#[test]
fn a_long_history_is_read_from_the_replica_page_by_page() {
    let mut stage = stage(1);
    let fleet = &mut stage.fleet;
    let data = "x".repeat(40_000);
    for _ in 0..60 {
        fleet.publish(0, "a", &data);
    }
    until_read_from_replica(fleet, 0, "a");
    let before = fleet.nodes.0[0].engine.stats();
    assert_eq!(offsets(fleet, 0, HistoryFilter::default()), Ok((1..=60).collect()));
    let after = fleet.nodes.0[0].engine.stats();
    assert!(after.replica_reads - before.replica_reads > 2, "2.4 MB are several pages");
    assert_eq!(after.replica_misses, before.replica_misses);
}

/// The replica is stopped, killed or cut off: the primary answers the reads in flight, before their own timeouts.
#[test]
fn a_replica_that_fails_is_replaced_by_its_primary_and_read_from_when_it_is_back() {
    let mut stage = stage(1);
    let fleet = &mut stage.fleet;
    fleet.subscribe(0, "a", KEPT);
    for number in 1..=3 {
        fleet.publish(0, "a", &number.to_string());
    }
    until_read_from_replica(fleet, 0, "a");
    let read = |fleet: &mut Fleet, what: &str| {
        let tokens: Vec<u64> =
            (0..50).map(|_| fleet.begin_history(0, "a", HistoryFilter::default(), false)).collect();
        for token in tokens {
            let history = fleet.history_of(0, token);
            assert_eq!(history.expect(what).publications.len(), 3, "{what}");
        }
    };
    let until = |fleet: &mut Fleet, name: &'static str| {
        fleet.until(name, |nodes| condition(&nodes[0]) == name);
    };

    stage.replica.signal("-STOP");
    read(fleet, "stopped");
    assert_eq!(condition(&fleet.nodes.0[0]), "replica_silent");
    let silent = fleet.nodes.0[0].engine.stats();
    read(fleet, "still stopped");
    let after = fleet.nodes.0[0].engine.stats();
    assert_eq!(after.replica_misses, silent.replica_misses, "it is not asked any more");
    stage.replica.signal("-CONT");
    until(fleet, "ready");
    until_read_from_replica(fleet, 0, "a");

    stage.replica.cli(&["CONFIG", "SET", "masterauth", "wrong"]);
    stage.primary.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    stage.replica.wait(&["INFO", "replication"], "master_link_status:down");
    fleet.publish(0, "b", "1");
    read(fleet, "cut off");
    fleet.until("named", |nodes| matches!(condition(&nodes[0]), "replica_cut_off" | "no_replica"));
    stage.replica.cli(&["CONFIG", "SET", "masterauth", ""]);
    stage.replica.wait(&["INFO", "replication"], "master_link_status:up");
    until_read_from_replica(fleet, 0, "a");

    let tokens: Vec<u64> =
        (0..50).map(|_| fleet.begin_history(0, "a", HistoryFilter::default(), false)).collect();
    stage.replica.kill();
    for token in tokens {
        assert_eq!(fleet.history_of(0, token).expect("killed").publications.len(), 3);
    }
    read(fleet, "killed");
    until(fleet, "no_replica");
    stage.replica.restart();
    stage.primary.wait(&["INFO", "replication"], "state=online");
    until_read_from_replica(fleet, 0, "a");
    until(fleet, "ready");
    let ready = |shard: &dunlin_engine::ShardStatus| shard.state == ShardState::Ready;
    assert!(fleet.nodes.0[0].engine.shards().all(|shard| ready(&shard)));
}

/// With two replicas, the other one takes over.
#[test]
fn where_there_are_two_the_other_one_is_read_from() {
    let mut stage = stage(1);
    let port = stage.primary.port.to_string();
    let second = RedisServer::start(&["--replicaof", "127.0.0.1", &port]);
    second.wait(&["INFO", "replication"], "master_link_status:up");
    let fleet = &mut stage.fleet;
    fleet.publish(0, "a", "1");
    until_read_from_replica(fleet, 0, "a");
    let chosen = |node: &Node| {
        let mut shards = node.engine.shards();
        shards.find(|shard| shard.server.role == ServerRole::Replica).map(|of| of.server.port)
    };
    // The second replica is known after the next probe.
    let probed = |nodes: &[Node]| nodes[0].engine.stats().replica_reads > 0;
    fleet.until("probed", probed);
    let first = chosen(&fleet.nodes.0[0]).unwrap();
    let (stopped, other) = match first == second.port {
        true => (&second, &stage.replica),
        false => (&stage.replica, &second),
    };
    stopped.signal("-STOP");
    while chosen(&fleet.nodes.0[0]) != Some(other.port) {
        assert_eq!(offsets(fleet, 0, HistoryFilter::default()), Ok(vec![1]));
    }
    until_read_from_replica(fleet, 0, "a");
    stopped.signal("-CONT");
}

/// The replica becomes the primary: positions that it lacks are refused as usual, and there is no replica.
#[test]
fn a_failover_to_the_replica_that_is_read_from_is_followed() {
    let deployment = Deployment::sentinel();
    let mut fleet = Fleet::new(&preferred(deployment.topology), 2);
    let token = fleet.begin_subscribe(0, "a", KEPT);
    fleet.until_subscribed(0, token, 1);
    for number in 1..=3 {
        fleet.publish(1, "a", &number.to_string());
    }
    fleet.until("heard", |nodes| heard(&nodes[0], "a").len() == 3);
    for node in 0..2 {
        until_read_from_replica(&mut fleet, node, "a");
    }
    let mut servers = deployment.servers.into_iter();
    let (primary, replica) = (servers.next().unwrap(), servers.next().unwrap());
    // From here on the replica receives nothing.
    replica.cli(&["CONFIG", "SET", "masterauth", "wrong"]);
    primary.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    replica.wait(&["INFO", "replication"], "master_link_status:down");
    let lost = fleet.publish(1, "a", "lost");
    fleet.until("heard", |nodes| heard(&nodes[0], "a").len() == 4);
    assert_eq!(offsets(&mut fleet, 0, since(3, lost)), Ok(vec![4]));
    drop(primary);
    replica.wait(&["INFO", "replication"], "role:master");
    fleet.until_ready();
    fleet.until("cut", |nodes| nodes.iter().any(|n| n.engine.stats().streams_cut > 0));
    fleet.until_subscribed(0, token, 2);
    for number in 4..=6 {
        fleet.publish(1, "a", &format!("new {number}"));
    }
    for node in 0..2 {
        let recovered = offsets(&mut fleet, node, since(4, lost));
        assert!(matches!(recovered, Err(Error::UnrecoverablePosition(_))), "{recovered:?}");
        assert_eq!(offsets(&mut fleet, node, HistoryFilter::default()), Ok((1..=6).collect()));
        assert_eq!(condition(&fleet.nodes.0[node]), "no_replica");
    }
}

#[test]
fn the_replicas_of_a_cluster_are_read_from() {
    let deployment = Deployment::cluster(2);
    let replicas: Vec<RedisServer> = deployment
        .servers
        .iter()
        .map(|primary| {
            let replica = cluster_node();
            meet(&deployment.servers[0], &replica);
            let id = primary.cli(&["CLUSTER", "MYID"]);
            replica.wait(&["CLUSTER", "NODES"], &id);
            replica.wait(&["CLUSTER", "REPLICATE", &id], "OK");
            replica.wait(&["INFO", "replication"], "master_link_status:up");
            primary.wait(&["INFO", "replication"], "state=online");
            replica
        })
        .collect();
    let mut fleet = Fleet::new(&preferred(deployment.topology), 2);
    let channels: Vec<String> = (0..12).map(|number| format!("channel{number}")).collect();
    for channel in &channels {
        fleet.subscribe(0, channel, KEPT);
        fleet.publish(1, channel, "1");
        until_read_from_replica(&mut fleet, 0, channel);
        until_read_from_replica(&mut fleet, 1, channel);
    }
    for server in &deployment.servers {
        server.cli(&["CONFIG", "RESETSTAT"]);
    }
    for channel in &channels {
        let token = fleet.send(1, channel, KEPT, data_of("2"));
        let at = fleet.published(1, token).unwrap().position;
        fleet.until("heard", |nodes| heard(&nodes[0], channel).len() == 2);
        let history = fleet.history(0, channel, since(1, at)).unwrap();
        assert_eq!(history.publications.len(), 1);
    }
    for replica in &replicas {
        let stats = replica.cli(&["INFO", "commandstats"]);
        assert!(stats.contains("cmdstat_lrange"), "each answers for its primary: {stats}");
    }
    assert_eq!(replica_links(&fleet.nodes.0[0]), 2);

    // A replica takes over: its node is read like any primary.
    assert_eq!(replicas[0].cli(&["CLUSTER", "FAILOVER"]), "OK");
    replicas[0].wait(&["INFO", "replication"], "role:master");
    fleet.until("followed", |nodes| {
        let is_ready = |node: &Node| node.engine.is_ready() && node.engine.stats().generations > 0;
        nodes.iter().all(is_ready)
    });
    for channel in &channels {
        assert_eq!(fleet.publish(1, channel, "3").offset, 3);
        until_read_from_replica(&mut fleet, 0, channel);
        let history = fleet.history(0, channel, HistoryFilter::default()).unwrap();
        assert_eq!(history.publications.len(), 3, "{channel}");
    }
}
