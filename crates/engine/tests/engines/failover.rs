//! Servers that lose data, are replaced, or give slots away: equal offsets of different generations are never confused.

use dunlin_engine::EngineEvent;
use dunlin_hub::{Error, HistoryFilter, StreamPosition};

use crate::nodes::{Fleet, KEPT, data_of, heard, subscribed};
use crate::servers::{Deployment, RedisServer, cluster_node, meet};

/// Recovers from a position, as a client would after a reconnect.
fn recover(fleet: &mut Fleet, node: usize, since: StreamPosition) -> Result<Vec<u64>, Error> {
    let filter = HistoryFilter { since: Some(since), ..HistoryFilter::default() };
    let history = fleet.history(node, "a", filter)?;
    Ok(history.publications.iter().map(|publication| publication.offset()).collect())
}

#[test]
fn a_server_that_lost_everything_has_streams_that_inherit_nothing() {
    let mut deployment = Deployment::single();
    let mut fleet = Fleet::new(&deployment.topology, 2);
    let token = fleet.begin_subscribe(0, "a", KEPT);
    fleet.until("subscribed", |nodes| !nodes[0].events.is_empty());
    for number in 1..=5 {
        fleet.publish(1, "a", &number.to_string());
    }
    let before = fleet.publish(1, "a", "6");
    deployment.servers[0].kill();
    fleet.until("noticed", |nodes| nodes.iter().all(|node| !node.engine.is_ready()));
    deployment.servers[0].restart();
    fleet.until_ready();
    // More publications than before, so that offsets alone would match.
    for number in 1..=9 {
        fleet.publish(1, "a", &format!("new {number}"));
    }
    fleet.until("subscribed anew", |nodes| {
        nodes[0].events.iter().filter(|e| matches!(e, EngineEvent::Subscribed { .. })).count() == 2
    });
    let anew = fleet.subscribed(0, token).swap_remove(1);
    assert_ne!(anew.position.epoch, before.epoch);
    assert!(anew.inherits.is_empty());
    let recovered = recover(&mut fleet, 0, before);
    assert!(matches!(recovered, Err(Error::UnrecoverablePosition(_))), "{recovered:?}");
}

/// With an append-only file a restart loses nothing, and all clients recover.
#[test]
fn a_server_that_kept_everything_has_streams_that_inherit_all() {
    let server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let topology = dunlin_engine::redis::Topology::Servers(vec![server.server()]);
    let mut server = server;
    let mut fleet = Fleet::new(&topology, 2);
    let token = fleet.begin_subscribe(0, "a", KEPT);
    fleet.until("subscribed", |nodes| !nodes[0].events.is_empty());
    fleet.publish(1, "a", "1");
    let before = fleet.publish(1, "a", "2");
    fleet.until("heard", |nodes| heard(&nodes[0], "a").len() == 2);
    server.kill();
    fleet.until("noticed", |nodes| nodes.iter().all(|node| !node.engine.is_ready()));
    server.restart();
    fleet.until_ready();
    fleet.until_subscribed(0, token, 2);
    fleet.publish(1, "a", "3");
    fleet.until("heard", |nodes| heard(&nodes[0], "a").len() == 3);
    let anew = fleet.subscribed(0, token).pop().unwrap();
    assert_eq!(anew.inherits, [before].into_iter().collect());
    assert_eq!(recover(&mut fleet, 1, StreamPosition { offset: 1, ..before }), Ok(vec![2, 3]));
    let said = |event: &EngineEvent| matches!(event, EngineEvent::Lineage { inherits, .. } if inherits.contains(before));
    assert!(
        fleet.nodes.0[1].events.iter().any(said),
        "who reads is notified what there was before"
    );
    assert_eq!(recover(&mut fleet, 1, before), Ok(vec![3]));
    // An offset beyond the end of the earlier epoch does not belong to this epoch.
    let beyond = StreamPosition { offset: 3, ..before };
    assert!(recover(&mut fleet, 1, beyond).is_err());

    // A client that was away for several restarts recovers, too.
    for number in 4..=6 {
        server.kill();
        fleet.until("noticed", |nodes| nodes.iter().all(|node| !node.engine.is_ready()));
        server.restart();
        fleet.until_ready();
        fleet.publish(1, "a", &number.to_string());
    }
    assert_eq!(recover(&mut fleet, 1, before), Ok(vec![3, 4, 5, 6]));
    assert!(recover(&mut fleet, 1, beyond).is_err());
    assert_eq!(fleet.nodes.0[0].engine.stats().streams_cut, 0);
}

/// A server restarts with data from before its last start, such as a backup or those of an isolated primary. What was
/// acknowledged since then has an epoch unknown to these data.
#[test]
fn a_server_that_goes_back_behind_an_epoch_cuts_its_streams() {
    let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let topology = dunlin_engine::redis::Topology::Servers(vec![server.server()]);
    let mut fleet = Fleet::new(&topology, 2);
    fleet.subscribe(0, "a", KEPT);
    fleet.publish(1, "a", "1");
    let before = fleet.publish(1, "a", "2");
    let restart = |server: &mut RedisServer, fleet: &mut Fleet| {
        fleet.until("noticed", |nodes| nodes.iter().all(|node| !node.engine.is_ready()));
        server.restart();
        fleet.until_ready();
    };
    let backup = server.backup();
    server.kill();
    restart(&mut server, &mut fleet);
    let lost = fleet.publish(1, "a", "lost");
    assert_ne!(lost.epoch, before.epoch);
    assert_eq!(recover(&mut fleet, 0, before), Ok(vec![3]));
    server.kill();
    server.put_back(&backup);
    restart(&mut server, &mut fleet);
    fleet.until("cut", |nodes| nodes.iter().any(|node| node.engine.stats().streams_cut > 0));
    fleet.publish(1, "a", "another");
    for since in [before, lost] {
        let recovered = recover(&mut fleet, 0, since);
        assert!(matches!(recovered, Err(Error::UnrecoverablePosition(_))), "{recovered:?}");
    }
}

/// The replica lacked the last publications when it became primary. Clients that saw them must not appear recovered, and
/// neither must those that did not.
#[test]
fn a_replica_that_lacks_publications_cuts_their_streams() {
    for node_with_evidence in [0, 1] {
        let deployment = Deployment::sentinel();
        let mut fleet = Fleet::new(&deployment.topology, 2);
        let token = fleet.begin_subscribe(0, "a", KEPT);
        fleet.until("subscribed", |nodes| !nodes[0].events.is_empty());
        for number in 1..=3 {
            fleet.publish(1, "a", &number.to_string());
        }
        let (primary, replica) = (&deployment.servers[0], &deployment.servers[1]);
        replica.wait(&["LRANGE", "dunlin:c:a", "0", "-1"], ":3:");
        let kept = fleet.publish(1, "a", "4");
        replica.wait(&["LRANGE", "dunlin:c:a", "0", "-1"], ":4:");
        // From here on the replica receives nothing: its replication password is wrong.
        replica.cli(&["CONFIG", "SET", "masterauth", "wrong"]);
        primary.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
        replica.wait(&["INFO", "replication"], "master_link_status:down");
        let lost = match node_with_evidence {
            0 => {
                let lost = fleet.publish(1, "a", "lost");
                fleet.until("heard", |nodes| heard(&nodes[0], "a").len() == 5);
                lost
            }
            // The subscriber's node is not notified.
            _ => {
                fleet.nodes.0[0].deafen();
                fleet.publish(1, "a", "lost")
            }
        };
        assert_eq!(lost, StreamPosition { offset: 5, ..kept });
        primary.signal("-KILL");
        replica.wait(&["INFO", "replication"], "role:master");
        fleet.until_ready();
        fleet.until("cut", |nodes| nodes.iter().any(|n| n.engine.stats().streams_cut > 0));
        for number in 5..=9 {
            fleet.publish(1, "a", &format!("new {number}"));
        }
        // The engine's last event at the subscriber's node: another epoch, which inherits nothing.
        fleet.until("notified", |nodes| {
            let mut said = nodes[0].events.iter().rev().filter_map(|event| match event {
                EngineEvent::Subscribed { token: of, result } if *of == token => {
                    result.clone().ok()
                }
                _ => None,
            });
            said.next().is_some_and(|at| at.position.epoch != kept.epoch && at.inherits.is_empty())
        });
        for since in [kept, lost] {
            let recovered = recover(&mut fleet, 0, since);
            assert!(matches!(recovered, Err(Error::UnrecoverablePosition(_))), "{recovered:?}");
        }
    }
}

#[test]
fn a_failover_that_loses_nothing_is_followed_and_all_recover() {
    let deployment = Deployment::sentinel();
    let mut fleet = Fleet::new(&deployment.topology, 2);
    let token = fleet.begin_subscribe(0, "a", KEPT);
    fleet.until_subscribed(0, token, 1);
    let before = fleet.publish(1, "a", "1");
    deployment.servers[1].wait(&["LRANGE", "dunlin:c:a", "0", "-1"], ":1:");
    let mut primary = deployment.servers.into_iter();
    let replica = primary.by_ref().nth(1).unwrap();
    drop(primary);
    replica.wait(&["INFO", "replication"], "role:master");
    fleet.until("followed", |nodes| {
        nodes.iter().all(|n| n.engine.is_ready() && n.engine.stats().generations == 1)
    });
    fleet.until_subscribed(0, token, 2);
    fleet.publish(1, "a", "2");
    fleet.until("heard", |nodes| heard(&nodes[0], "a").len() == 2);
    assert_eq!(recover(&mut fleet, 0, before), Ok(vec![2]));
}

#[test]
fn slots_that_move_are_followed_while_messages_flow() {
    let deployment = Deployment::cluster(2);
    let mut fleet = Fleet::new(&deployment.topology, 2);
    let token = fleet.begin_subscribe(0, "a", KEPT);
    fleet.until("subscribed", |nodes| !nodes[0].events.is_empty());
    let first = fleet.publish(1, "a", "1");
    // Which server has it.
    let [one, two] = &deployment.servers[..] else { panic!("two servers") };
    let list = |server: &RedisServer| server.cli(&["KEYS", "*:c:a"]);
    let (from, to) = if list(one).is_empty() { (two, one) } else { (one, two) };
    let list = list(from);
    let slot = from.cli(&["CLUSTER", "KEYSLOT", &list]);
    let (from_id, to_id) = (from.cli(&["CLUSTER", "MYID"]), to.cli(&["CLUSTER", "MYID"]));
    to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    let during = fleet.send(1, "a", KEPT, data_of("2"));
    fleet.turn();
    let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
    let port = to.port.to_string();
    let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
    migrate.extend(keys.lines());
    assert_eq!(from.cli(&migrate), "OK");
    for server in [to, from] {
        assert_eq!(server.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]), "OK");
    }
    assert_eq!(fleet.published(1, during).unwrap().position.offset, 2);
    for number in 3..=20 {
        assert_eq!(fleet.publish(1, "a", &number.to_string()).offset, number);
    }
    fleet.until("heard", |nodes| heard(&nodes[0], "a").iter().any(|(offset, _)| *offset == 20));
    assert!(!to.cli(&["KEYS", "*:c:a"]).is_empty());
    // Received in order; the position of the second subscription covers what fell between the two.
    let offsets: Vec<u64> = heard(&fleet.nodes.0[0], "a").iter().map(|(o, _)| *o).collect();
    assert!(offsets.is_sorted(), "{offsets:?}");
    let anew = fleet.subscribed(0, token).pop().unwrap();
    let missing: Vec<u64> = (1..=20).filter(|offset| !offsets.contains(offset)).collect();
    assert!(missing.iter().all(|offset| *offset <= anew.position.offset), "{missing:?}");
    assert_eq!(recover(&mut fleet, 0, first), Ok((2..=20).collect()));
}

#[test]
fn a_node_of_a_cluster_that_dies_is_replaced_by_its_replica() {
    let mut deployment = Deployment::cluster(3);
    let replica = cluster_node();
    meet(&deployment.servers[0], &replica);
    let id = deployment.servers[0].cli(&["CLUSTER", "MYID"]);
    replica.wait(&["CLUSTER", "NODES"], &id);
    replica.wait(&["CLUSTER", "REPLICATE", &id], "OK");
    replica.wait(&["INFO", "replication"], "master_link_status:up");
    for server in &deployment.servers {
        server.wait(&["CLUSTER", "NODES"], "slave");
    }
    let mut fleet = Fleet::new(&deployment.topology, 2);
    // Some of these are on the first server.
    let channels: Vec<String> = (0..12).map(|number| format!("channel{number}")).collect();
    let mut tokens = Vec::new();
    for channel in &channels {
        let token = fleet.begin_subscribe(0, channel, KEPT);
        fleet.until_subscribed(0, token, 1);
        fleet.publish(1, channel, "before");
        tokens.push(token);
    }
    for channel in &channels {
        fleet.until("heard", |nodes| heard(&nodes[0], channel).len() == 1);
    }
    deployment.servers[0].kill();
    deployment.servers[1].wait(&["CLUSTER", "NODES"], "fail");
    deployment.servers[1].wait(&["CLUSTER", "INFO"], "cluster_state:ok");
    fleet.until("followed", |nodes| {
        nodes.iter().all(|n| n.engine.is_ready() && n.engine.stats().generations > 0)
    });
    for (channel, token) in channels.iter().zip(tokens) {
        let at = fleet.publish(1, channel, "after");
        assert_eq!(at.offset, 2, "{channel}");
        // Received, or covered by the position of the subscription to the new primary.
        fleet.until("heard", |nodes| {
            heard(&nodes[0], channel).len() == 2
                || subscribed(&nodes[0], token).iter().any(|anew| anew.position.offset == 2)
        });
    }
}
