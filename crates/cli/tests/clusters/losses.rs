//! What a cluster's nodes make of it when a node, or what is kept where they meet, is gone.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::kit::client::Client;
use crate::kit::cluster::{Cluster, Kind, Node, until};
use serde_json::{Value, json};

crate::kit::cluster::wherever_they_meet! {
    a_node_that_may_serve_though_its_lease_has_ended_is_named
    revocations_that_a_store_has_lost_are_kept_again
    a_list_of_members_is_complete_or_an_error
}

/// Regression: answers did not name a living node that was not asked.
fn a_node_that_may_serve_though_its_lease_has_ended_is_named(kind: Kind) {
    let mut cluster = Cluster::start(kind, 3);
    for (node, name) in cluster.nodes.iter().zip(["\"web-0\"", "\"web-1\"", "\"web-2\""]) {
        assert_eq!(node.served.call("PUT", "/config/server/name", name).unwrap().0, 200);
    }
    let is_known = |status: &Value, name: &str| {
        status["nodes"].as_array().unwrap().iter().any(|of| of["name"] == name)
    };
    cluster.nodes[0].until("all names", |of| is_known(of, "web-1") && is_known(of, "web-2"));
    let disconnect = |cluster: &Cluster| {
        let answer = cluster.nodes[0].api("disconnect", json!({ "user": "bob" }));
        answer["error"]["message"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(disconnect(&cluster), "");
    // This one leaves.
    let pid = cluster.nodes[2].served.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    cluster.nodes[2].served.child.wait().unwrap();
    cluster.nodes[1].kill();
    let alive = |of: &Value| {
        of["nodes"].as_array().unwrap().iter().filter(|of| of["alive"] == true).count()
    };
    cluster.nodes[0].until("alone", |of| alive(of) == 1);
    let message = disconnect(&cluster);
    assert!(message.contains("no answer from web-1;"), "{message}");
    let error = &cluster.nodes[0].api("disconnect", json!({ "user": "bob" }))["error"];
    assert_eq!((&error["answered"], &error["unreachable"]), (&json!(["web-0"]), &json!(["web-1"])));
    let reached = &cluster.nodes[0].api("channels", json!({}))["result"];
    assert_eq!(reached["unreachable"], Value::Null, "a call that reads waits for no dead node");
    cluster.nodes[1] = cluster.nodes[1].restarted();
    cluster.nodes[0].until("together", |of| alive(of) == 2);
    until("it is back", || disconnect(&cluster).is_empty());
    // Regression test: who had crashed, come back and then left was named for five minutes, since the process that had crashed
    // had not left.
    let pid = cluster.nodes[1].served.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    cluster.nodes[1].served.child.wait().unwrap();
    cluster.nodes[0].until("alone", |of| alive(of) == 1);
    assert_eq!(disconnect(&cluster), "");
}

/// Regression: revocations known to living nodes were not written again.
fn revocations_that_a_store_has_lost_are_kept_again(kind: Kind) {
    let mut cluster = Cluster::start(kind, 2);
    let blocked = cluster.nodes[0].api("block_user", json!({ "user": "hal" }));
    assert_eq!(blocked, json!({ "result": {} }));
    cluster.nodes[1].kill();
    cluster.meeting.lose_all();
    until("it is kept again", || {
        let records = cluster.meeting.records();
        records.contains(":revocations") || records.contains(".kept.")
    });
    // One that knows nothing of it.
    let state = tempfile::tempdir().unwrap();
    let engine = cluster.nodes[1].engine.clone();
    cluster.nodes[1] = Node::start(state.path().to_owned(), engine);
    cluster.settle();
    until("hal is blocked", || {
        let revoked = cluster.nodes[1].served.call("GET", "/revocations", "").unwrap();
        revoked.1.contains("hal")
    });
}

/// Regression: while nodes wrote their members to a store that had lost them, `presence` answered with those that were there.
fn a_list_of_members_is_complete_or_an_error(kind: Kind) {
    let mut cluster = Cluster::start(kind, 3);
    let _clients: Vec<_> = cluster
        .nodes
        .iter()
        .zip(["ann", "bob", "cid"])
        .map(|(node, user)| Client::connect(node, user, "room"))
        .collect();
    let all = ["ann", "bob", "cid"];
    cluster.nodes.iter().for_each(|node| node.until_present("room", &all));
    let is_done = AtomicBool::new(false);
    let Cluster { meeting, nodes, .. } = &mut cluster;
    std::thread::scope(|scope| {
        let readers = nodes.iter().map(|node| {
            scope.spawn(|| {
                let (mut lists, mut errors) = (0, Vec::new());
                while !is_done.load(Ordering::Acquire) {
                    let answer = node.api("presence", json!({ "channel": "room" }));
                    let Some(present) = answer["result"]["presence"].as_object() else {
                        errors.push(answer["error"]["message"].to_string());
                        continue;
                    };
                    assert_eq!(present.len(), all.len(), "{present:?}");
                    lists += 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
                (lists, errors)
            })
        });
        let readers: Vec<_> = readers.collect();
        for _ in 0..2 {
            meeting.lose_all();
            nodes.iter().for_each(|node| node.until_present("room", &all));
        }
        is_done.store(true, Ordering::Release);
        for reader in readers {
            let (lists, errors) = reader.join().unwrap();
            assert!(lists > 0, "{errors:?}");
            assert!(errors.iter().all(|error| error.contains("is unknown")), "{errors:?}");
        }
    });
}
