//! Several nodes and a real Redis, or a real NATS: calls, presence and revocations hold on all of them, whatever ends in between.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::kit::client::{Client, signed, signed_by};
use crate::kit::cluster::{Cluster, Kind, Meeting, Node, until};
use crate::kit::held::Way;
use crate::kit::redis;
use crate::kit::{Served, TIMEOUT};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};

crate::kit::cluster::wherever_they_meet! {
    calls_presence_and_joins_hold_on_all_nodes
    a_node_that_has_joined_is_asked_at_once_and_members_have_their_information
    connections_of_all_nodes_come_in_pages_and_those_of_a_tenant_to_its_keys_alone
    a_killed_node_is_swept_and_its_leaves_are_sent_once_and_one_that_was_away_learns_who_is_blocked
    one_admin_port_shows_every_node_and_names_those_that_do_not_answer
    what_a_lost_connection_or_a_killed_node_has_under_way_brings_nobody_back
    without_a_store_each_node_serves_says_so_and_comes_back_when_it_does
    two_nodes_that_want_one_number_and_two_clusters_with_one_prefix_are_named
    two_nodes_of_one_name_are_named_until_one_has_another
    what_is_used_of_a_budget_at_one_node_is_used_at_all
}

/// Returns the uid of a node's process.
fn uid(node: &Node) -> String {
    let status = node.status();
    let own = |of: &&Value| of["node"] == status["node"];
    let own = status["nodes"].as_array().unwrap().iter().find(own).unwrap();
    own["uid"].as_str().unwrap().to_owned()
}

/// Leases are renewed so rarely that only the join itself can announce a node.
fn a_node_that_has_joined_is_asked_at_once_and_members_have_their_information(kind: Kind) {
    let mut cluster = Cluster::start(kind, 2);
    for node in &cluster.nodes {
        node.configure(&json!({ "lease_ms": 300_000 }));
    }
    cluster.settle();
    cluster.nodes[1].kill();
    cluster.nodes[1] = cluster.nodes[1].restarted();
    let [a, b] = &cluster.nodes[..] else { panic!("two were started") };
    b.until("a member", |status| status["condition"] == "member");
    let claims = json!({ "sub": "ann", "info": { "name": "Ann" } });
    let ann = Client::with_token(b, &signed(&claims), "room").unwrap();
    let mut bob = Client::connect(a, "bob", "room");
    a.until_present("room", &["ann", "bob"]);
    let found = a.api("connections", json!({ "user": "ann" }));
    assert!(found["result"]["connections"][&ann.id].is_object(), "{found}");
    let present = a.api("presence", json!({ "channel": "room" }));
    let of_ann = &present["result"]["presence"][&ann.id];
    assert_eq!(of_ann["conn_info"], json!({ "name": "Ann" }), "{present}");
    drop(ann);
    bob.until_notified("leave", "ann");
    a.until_present("room", &["bob"]);
}

fn calls_presence_and_joins_hold_on_all_nodes(kind: Kind) {
    let cluster = Cluster::start(kind, 3);
    let [a, b, c] = &cluster.nodes[..] else { panic!("three were started") };
    let numbers: std::collections::HashSet<_> =
        cluster.nodes.iter().map(|node| node.status()["node"].as_u64().unwrap()).collect();
    assert_eq!(numbers.len(), 3, "each has a number of its own");

    let mut bob = Client::connect(c, "bob", "room");
    let mut ann = Client::connect(b, "ann", "room");
    bob.until_notified("join", "ann");
    a.until_present("room", &["ann", "bob"]);
    let stats = a.api("presence_stats", json!({ "channel": "room" }));
    assert_eq!(stats["result"], json!({ "num_clients": 2, "num_users": 2 }));
    let channels = a.api("channels", json!({}));
    assert_eq!(channels["result"], json!({ "channels": { "room": { "num_clients": 2 } } }));
    let info = a.api("info", json!({}));
    assert_eq!(info["result"]["nodes"].as_array().unwrap().len(), 3, "{info}");

    // By the user, and by the id of one session, whichever node has it.
    assert_eq!(a.api("disconnect", json!({ "user": "ann" })), json!({ "result": {} }));
    assert_eq!(ann.until_disconnected(), 3503);
    bob.until_notified("leave", "ann");
    let mut first = Client::connect(b, "eve", "room");
    let second = Client::connect(b, "eve", "room");
    let by_id = json!({ "user": "eve", "client": first.id, "disconnect": { "code": 4100, "reason": "so" } });
    assert_eq!(c.api("disconnect", by_id), json!({ "result": {} }));
    assert_eq!(first.until_disconnected(), 4100);
    a.until_present("room", &["bob", "eve"]);
    // By labels, whatever the user and wherever.
    let mut labelled: Vec<Client> = [(a, "tom"), (b, "tim"), (c, "tom")]
        .into_iter()
        .map(|(node, user)| {
            let claims = json!({ "sub": user, "labels": { "app": "old" } });
            Client::with_token(node, &signed(&claims), "room").unwrap()
        })
        .collect();
    let old = json!({ "key": "app", "cmp": "eq", "val": "old" });
    let everybody = json!({ "all_users": true, "label_filter": old, "disconnect": { "code": 4200, "reason": "old" } });
    assert_eq!(b.api("disconnect", everybody), json!({ "result": {} }));
    for client in &mut labelled {
        assert_eq!(client.until_disconnected(), 4200);
    }
    a.until_present("room", &["bob", "eve"]);
    // Another node subscribes a session here.
    let subscribe = json!({ "user": "eve", "client": second.id, "channel": "aside" });
    assert_eq!(a.api("subscribe", subscribe), json!({ "result": {} }));
    c.until_present("aside", &["eve"]);
    let unsubscribe = json!({ "user": "eve", "channel": "aside" });
    assert_eq!(a.api("unsubscribe", unsubscribe), json!({ "result": {} }));
    c.until_present("aside", &[]);
    drop(second);
    bob.until_notified("leave", "eve");

    let health = a.served.call("GET", "/health", "").unwrap().1;
    let health: Value = serde_json::from_str(&health).unwrap();
    assert_eq!(health["cluster"], "member");
    let status = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["cluster", "status", "--admin", &a.served.at.admin.to_string(), "--token"])
        .arg(std::fs::read_to_string(a.state.join("admin-token")).unwrap().trim())
        .output()
        .unwrap();
    let shown = String::from_utf8(status.stdout).unwrap();
    assert_eq!(shown.lines().filter(|line| line.contains("alive")).count(), 3, "{shown}");
}

fn a_killed_node_is_swept_and_its_leaves_are_sent_once_and_one_that_was_away_learns_who_is_blocked(
    kind: Kind,
) {
    let mut cluster = Cluster::start(kind, 3);
    let mut bob = Client::connect(&cluster.nodes[0], "bob", "room");
    let _dan = Client::connect(&cluster.nodes[2], "dan", "room");
    let _eve = Client::connect(&cluster.nodes[2], "eve", "room");
    let _fay = Client::connect(&cluster.nodes[1], "fay", "room");
    cluster.nodes[1].until_present("room", &["bob", "dan", "eve", "fay"]);
    let dead = uid(&cluster.nodes[2]);
    cluster.nodes[2].kill();
    let mut left = Vec::new();
    while left.len() < 2 {
        if let Some(user) = bob.next()["leave"]["info"]["user"].as_str() {
            left.push(user.to_owned());
        }
    }
    left.sort();
    assert_eq!(left, ["dan", "eve"]);
    cluster.nodes[1].until_present("room", &["bob", "fay"]);
    until("nothing is left of the dead node", || !cluster.meeting.records().contains(&dead));

    // The next that bob is sent is that gus has come: no leave comes twice.
    // The node that has not swept may wait for the dead one for a moment more, and say so.
    let block = || cluster.nodes[1].api("block_user", json!({ "user": "hal" }));
    let deadline = Instant::now() + TIMEOUT;
    while block() != json!({ "result": {} }) {
        assert!(Instant::now() < deadline, "{}", block());
    }
    let gus = Client::connect(&cluster.nodes[1], "gus", "room");
    assert_eq!(bob.next()["join"]["info"]["user"], "gus");
    drop(gus);

    cluster.nodes[2] = cluster.nodes[2].restarted();
    cluster.settle();
    let deadline = Instant::now() + TIMEOUT;
    while Client::try_connect(&cluster.nodes[2], "hal", "room").is_ok() {
        assert!(Instant::now() < deadline, "hal is blocked, and comes in");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn one_admin_port_shows_every_node_and_names_those_that_do_not_answer(kind: Kind) {
    let cluster = Cluster::start(kind, 2);
    let [node, other] = &cluster.nodes[..] else { panic!("two were started") };
    let ask = |page: &str| {
        let (status, body) = node.served.call("GET", page, "").expect("an answer");
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    let of_all = |page: &str| {
        let (status, all) = ask(&format!("{page}?scope=cluster"));
        assert_eq!(status, 200, "{all}");
        all
    };
    // A slow machine may make a node late: it answers in the end.
    let complete = |page: &str| {
        let deadline = Instant::now() + 2 * TIMEOUT;
        loop {
            let all = of_all(page);
            if all["unreachable"] == json!([]) && all["nodes"][1] != Value::Null {
                return all;
            }
            assert!(Instant::now() < deadline, "{all}");
        }
    };
    let _ann = Client::connect(other, "ann", "room");
    let numbers: std::collections::BTreeSet<_> =
        [node, other].map(|of| of.status()["node"].as_u64().unwrap()).into();
    for (page, member) in [
        ("/info", "workers"),
        ("/cluster", "condition"),
        ("/status/workers", "edges"),
        ("/status/engines", "connections"),
        ("/status/tenants", "tenants"),
        ("/status/upstreams", "upstreams"),
        ("/status/webhooks", "hooks"),
    ] {
        let all = complete(page);
        let nodes = all["nodes"].as_array().unwrap();
        let found: Vec<_> = nodes.iter().map(|of| of["node"].as_u64().unwrap()).collect();
        assert_eq!(found, numbers.iter().copied().collect::<Vec<_>>(), "{page}: {all}");
        let shown = |of: &Value| of["status"].get(member).is_some();
        assert!(nodes.iter().all(shown), "{page}: {all}");
    }
    until("ann's session is counted, which the other node has", || {
        let all = complete("/status/workers");
        let workers = all["nodes"].as_array().unwrap().iter().map(|of| &of["status"]["workers"]);
        let workers = workers.flat_map(|workers| workers.as_array().unwrap());
        workers.map(|worker| worker["sessions"].as_u64().unwrap()).sum::<u64>() == 1
    });
    assert_eq!(ask("/info?scope=clutser").0, 400);
    assert_eq!(ask("/info?scope=node").1["unreachable"], Value::Null);

    let own = node.status()["node"].clone();
    let all = complete("/info");
    let of_other = all["nodes"].as_array().unwrap().iter().find(|of| of["node"] != own);
    let name = &of_other.unwrap()["name"];
    let pid = other.served.child.id().to_string();
    let signal = |signal: &str| Command::new("kill").args([signal, &pid]).status().unwrap();
    // Unless its lease ends just then.
    until("a node that is stopped is named", || {
        assert!(signal("-STOP").success());
        let all = of_all("/info");
        assert!(signal("-CONT").success());
        complete("/info");
        let nodes = all["nodes"].as_array().unwrap();
        nodes.len() == 1 && nodes[0]["node"] == own && all["unreachable"] == json!([name])
    });

    // A node that is alone is all there is.
    let state = tempfile::tempdir().unwrap();
    let alone = Served::start(state.path(), "");
    let (status, all) = alone.call("GET", "/info?scope=cluster", "").unwrap();
    let all: Value = serde_json::from_str(&all).unwrap();
    assert_eq!((status, all["nodes"].as_array().unwrap().len()), (200, 1), "{all}");
    assert_eq!(all["unreachable"], json!([]));
}

/// Regression: with N nodes a key had N budgets.
fn what_is_used_of_a_budget_at_one_node_is_used_at_all(kind: Kind) {
    const SLOW: &str = "a key with a budget";
    const OTHER: &str = "another with the same";
    let cluster = Cluster::start(kind, 2);
    let budget = json!({ "budget": { "bytes_per_s": 1_000, "burst_ms": 100 } });
    let api = json!({ "api": {
        "without_key": false,
        "keys": { "slow": SLOW, "other": OTHER },
        "scopes": { "slow": budget, "other": budget },
    } });
    for node in &cluster.nodes {
        let kind = "application/merge-patch+json";
        let answer = node.served.call_as("PATCH", "/config", kind, &api.to_string()).unwrap();
        assert_eq!(answer.0, 200, "{answer:?}");
    }
    let [a, b] = &cluster.nodes[..] else { panic!("two were started") };
    // It pays for minutes at this node, and is answered when they are over.
    let body = json!({ "channel": "a", "data": "x".repeat(300_000) }).to_string();
    let mut unanswered = TcpStream::connect(a.served.at.client).unwrap();
    write!(
        unanswered,
        "POST /api/publish HTTP/1.1\r\nHost: d\r\nX-API-Key: {SLOW}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    // One call after the other waits as long as it has to, and is never refused for what it has used itself.
    let of_b = |key: &str| b.api_as(key, "presence_stats", json!({ "channel": "a" }));
    until("the other node knows", || of_b(SLOW)["error"]["code"] == 429);
    assert_eq!(of_b(OTHER)["error"], Value::Null, "another key has its own");
    let metrics = b.served.call("GET", "/metrics", "").unwrap().1;
    assert!(metrics.contains("dunlin_cluster_budget_charges_forgotten_total 0"));
}

/// Regression: entries in flight on a connection that its node had given up, or from a killed node, were written
/// after all comparisons and sweeps, and stayed forever.
fn what_a_lost_connection_or_a_killed_node_has_under_way_brings_nobody_back(kind: Kind) {
    let meeting = Meeting::start(kind);
    let way = Way::to(meeting.at());
    let ways = [way.at, meeting.at()];
    let mut cluster = Cluster::start_by(meeting, &ways);
    let [node, other] = &cluster.nodes[..] else { panic!("two were started") };
    // On a busy machine a node gives a silent connection up before anything is under way on it.
    let longer = json!({ "cluster": { "lease_ms": 15_000 } }).to_string();
    for node in &cluster.nodes {
        let merge = "application/merge-patch+json";
        assert_eq!(node.served.call_as("PATCH", "/config", merge, &longer).unwrap().0, 200);
    }
    let _bob = Client::connect(node, "bob", "room");
    other.until_present("room", &["bob"]);

    let before = node.resyncs();
    way.hold();
    let ann = Client::connect(node, "ann", "aside");
    until("ann is under way", || way.holds("ann"));
    way.cut();
    drop(ann);
    until("it has a connection again", || node.resyncs() > before);
    let _eve = Client::connect(node, "eve", "room");
    other.until_present("room", &["bob", "eve"]);
    way.release();
    cluster.until_empty("aside");

    let uid = uid(node);
    way.hold();
    let _fay = Client::connect(node, "fay", "aside");
    until("fay is under way", || way.holds("fay"));
    cluster.nodes[0].kill();
    until("it is swept", || !cluster.meeting.records().contains(&uid));
    cluster.nodes[1].until_present("room", &[]);
    way.release();
    cluster.until_empty("aside");
    until("nothing is left of it", || !cluster.meeting.records().contains(&uid));
}

fn without_a_store_each_node_serves_says_so_and_comes_back_when_it_does(kind: Kind) {
    let mut cluster = Cluster::start(kind, 2);
    let _ann = Client::connect(&cluster.nodes[0], "ann", "room");
    let mut bob = Client::connect(&cluster.nodes[1], "bob", "room");
    cluster.nodes[0].until_present("room", &["ann", "bob"]);

    cluster.meeting.signal("STOP");
    let silent = cluster.nodes[0].api("disconnect", json!({ "user": "bob" }));
    let message = silent["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("no answer from"), "{silent}");
    // What this node has is served all the same.
    let _cat = Client::connect(&cluster.nodes[0], "cat", "room");
    // Both have given their connections up: what Redis passes on when it goes on reaches nobody, and bob stays.
    for node in &cluster.nodes {
        node.until("unreachable", |status| status["condition"] == "unreachable");
    }
    let unkept = cluster.nodes[0].api("block_user", json!({ "user": "hal" }));
    let message = unkept["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains(", which keeps it for nodes that are away;"), "{unkept}");
    let health = cluster.nodes[0].served.call("GET", "/health", "").unwrap();
    assert_eq!(health.0, 200, "clients are served: {health:?}");
    cluster.meeting.signal("CONT");
    cluster.settle();
    cluster.nodes[1].until_present("room", &["ann", "bob", "cat"]);

    // After the store has lost its data, members are written again.
    cluster.meeting.lose_all();
    cluster.settle();
    cluster.nodes[1].until_present("room", &["ann", "bob", "cat"]);
    assert_eq!(
        cluster.nodes[0].api("disconnect", json!({ "user": "bob" })),
        json!({ "result": {} })
    );
    assert_eq!(bob.until_disconnected(), 3503);
}

fn two_nodes_that_want_one_number_and_two_clusters_with_one_prefix_are_named(kind: Kind) {
    let cluster = Cluster::start(kind, 2);
    for node in &cluster.nodes {
        let (status, body) = node.served.call("PUT", "/config/server/node", "7").unwrap();
        assert_eq!(status, 200, "{body}");
    }
    let conditions = || cluster.nodes.iter().map(|node| node.status()["condition"].clone());
    let deadline = Instant::now() + 2 * TIMEOUT;
    while conditions().filter(|condition| condition == "number_taken").count() != 1 {
        assert!(Instant::now() < deadline, "{:?}", conditions().collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(50));
    }
    let warned = cluster.nodes.iter().find(|node| node.status()["condition"] == "number_taken");
    let status = warned.unwrap().status();
    assert!(status["detail"].as_str().unwrap().contains("holds node number 7"), "{status}");
    assert!(status["fix"].as_str().unwrap().contains("server.node"), "{status}");
    assert_ne!(status["node"], 7);

    let secret = r#""a secret of another cluster""#;
    let (status, body) =
        cluster.nodes[0].served.call("PUT", "/config/client/token/hmac_secret", secret).unwrap();
    assert_eq!(status, 200, "{body}");
    let other =
        cluster.nodes[1].until("of another cluster", |of| of["condition"] == "other_cluster");
    assert!(other["fix"].as_str().unwrap().contains("another prefix"), "{other}");
}

/// What is said of one by its name was said of both.
fn two_nodes_of_one_name_are_named_until_one_has_another(kind: Kind) {
    let mut cluster = Cluster::start(kind, 2);
    for node in &cluster.nodes {
        let (status, body) = node.served.call("PUT", "/config/server/name", "\"web\"").unwrap();
        assert_eq!(status, 200, "{body}");
    }
    for node in &cluster.nodes {
        let status = node.until("of one name", |of| of["condition"] == "name_taken");
        assert!(status["detail"].as_str().unwrap().contains("is called \"web\""), "{status}");
        assert!(status["fix"].as_str().unwrap().contains("server.name"), "{status}");
        let metrics = node.served.call("GET", "/metrics", "").unwrap().1;
        let metric = "dunlin_cluster_condition{condition=\"name_taken\"} 1";
        assert!(metrics.contains(metric), "{metrics}");
    }
    let a = &cluster.nodes[0];
    let printed = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["cluster", "status", "--admin", &a.served.at.admin.to_string(), "--token"])
        .arg(std::fs::read_to_string(a.state.join("admin-token")).unwrap().trim())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(printed.contains("name_taken") && printed.contains("server.name"), "{printed}");
    let (status, body) = a.served.call("PUT", "/config/server/name", "\"web-1\"").unwrap();
    assert_eq!(status, 200, "{body}");
    cluster.settle();

    // A node that is killed and restarted finds its own lease, which nobody renews.
    cluster.nodes[0].kill();
    cluster.nodes[0] = cluster.nodes[0].restarted();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = cluster.nodes[0].status();
        assert_ne!(status["condition"], "name_taken", "{status}");
        let nodes = status["nodes"].as_array().unwrap().iter();
        let gone = nodes.filter(|node| node["name"] == "web-1" && node["alive"] == false);
        if gone.count() == 1 {
            break;
        }
        assert!(Instant::now() < deadline, "{status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// As Redis has it after its clock was set forth or back by an hour: all leases have ended, or end an hour later.
fn shift_leases(cluster: &Cluster, by_ms: i64) {
    const SHIFT: &str = "local all = redis.call('HGETALL', KEYS[1])
        for at = 1, #all, 2 do
          local uid, ends, facts = string.match(all[at + 1], '^(%S+) (%d+) (.*)$')
          redis.call('HSET', KEYS[1], all[at], string.format('%s %.0f %s', uid, ends + ARGV[1], facts))
        end
        return 'shifted'";
    let by = by_ms.to_string();
    let said = cluster.meeting.redis().cli(&["EVAL", SHIFT, "1", "dunlin:cluster:nodes", &by]);
    assert!(said.contains("shifted"), "{said}");
}

/// Regression: with the clock set back, a dead node and its members stayed for an hour.
#[test]
fn a_clock_that_jumps_ends_no_membership_and_prolongs_none() {
    let mut cluster = Cluster::start(Kind::Redis, 2);
    let _ann = Client::connect(&cluster.nodes[0], "ann", "room");
    let _bob = Client::connect(&cluster.nodes[1], "bob", "room");
    cluster.nodes[0].until_present("room", &["ann", "bob"]);
    shift_leases(&cluster, -3_600_000);
    cluster.settle();
    cluster.nodes[0].until_present("room", &["ann", "bob"]);
    cluster.nodes[1].kill();
    shift_leases(&cluster, 3_600_000);
    cluster.nodes[0].until_present("room", &["ann"]);
}

/// After a restart stored data is there, and nothing is announced again; a deleted stream is created again.
#[test]
fn a_nats_that_is_back_with_its_data_has_everybody_and_one_whose_stream_is_deleted_has_again() {
    let mut cluster = Cluster::start(Kind::Nats, 2);
    let mut ann = Client::connect(&cluster.nodes[0], "ann", "room");
    let _bob = Client::connect(&cluster.nodes[1], "bob", "room");
    ann.until_notified("join", "bob");
    cluster.nodes[0].until_present("room", &["ann", "bob"]);
    let before = cluster.nodes.iter().map(Node::resyncs).collect::<Vec<_>>();
    cluster.meeting.nats().restart(true);
    until("both have a connection again", || {
        cluster.nodes.iter().zip(&before).all(|(node, before)| node.resyncs() > *before)
    });
    cluster.settle();
    cluster.nodes[1].until_present("room", &["ann", "bob"]);
    let _cat = Client::connect(&cluster.nodes[1], "cat", "room");
    assert_eq!(ann.next()["join"]["info"]["user"], "cat");

    let deleted = cluster.meeting.nats().ask("STREAM.DELETE.dunlin-cluster", &json!({}));
    assert_eq!(deleted["success"], true, "{deleted}");
    for node in &cluster.nodes {
        let status = node.until("of what was lost", |of| of["condition"] == "record_lost");
        assert!(status["fix"].as_str().unwrap().contains("stream_replicas"), "{status}");
    }
    cluster.nodes[1].until_present("room", &["ann", "bob", "cat"]);
}

fn connections_of_all_nodes_come_in_pages_and_those_of_a_tenant_to_its_keys_alone(kind: Kind) {
    const ACME: &str = "a secret of acme, and only of acme";
    let mut cluster = Cluster::start(kind, 3);
    for node in &cluster.nodes {
        let acme = json!({ "api_keys": { "backend": ACME }, "token_keys": { "acme": ACME } });
        let settings = json!({ "tenants": { "acme": acme } });
        let kind = "application/merge-patch+json";
        let answer = node.served.call_as("PATCH", "/config", kind, &settings.to_string()).unwrap();
        assert_eq!(answer.0, 200, "{answer:?}");
    }
    let [a, b, c] = &cluster.nodes[..] else { panic!("three were started") };
    let users =
        [(a, "ann"), (a, "eve"), (b, "bob"), (b, "eve"), (c, "eve"), (c, "tom"), (c, "tim")];
    let clients = users.map(|(node, user)| Client::connect(node, user, "room"));
    let head = json!({ "alg": "HS256", "kid": "acme" });
    let of_acme = signed_by(&head, ACME, &json!({ "sub": "ann" }));
    let of_acme = Client::with_token(b, &of_acme, "room").unwrap();

    let ids = |answer: &Value| {
        let found = answer["result"]["connections"].as_object();
        found.unwrap_or_else(|| panic!("{answer}")).keys().cloned().collect::<Vec<_>>()
    };
    // Page by page, through any node.
    let all = |limit: usize| {
        let (mut found, mut cursor, mut from) =
            (Vec::new(), String::new(), [a, b, c].into_iter().cycle());
        loop {
            let request = json!({ "limit": limit, "cursor": cursor });
            let answer = from.next().unwrap().api("connections", request);
            assert_eq!(answer["result"]["unreachable"], Value::Null, "{answer}");
            let page = ids(&answer);
            assert!(page.len() <= limit, "{answer}");
            found.extend(page);
            match answer["result"]["cursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => break,
            }
        }
        found.sort();
        found
    };
    let mut expected: Vec<_> = clients.iter().map(|client| client.id.clone()).collect();
    expected.sort();
    for limit in [1, 2, 3, 5, 100] {
        assert_eq!(all(limit), expected, "{limit} a page");
    }
    let of_eve = a.api("connections", json!({ "user": "eve", "channel": "room" }));
    assert_eq!(ids(&of_eve).len(), 3, "{of_eve}");
    let shown = &of_eve["result"]["connections"][&clients[4].id];
    assert_eq!((&shown["user"], &shown["channels"]), (&json!("eve"), &json!({ "room": {} })));
    let one = json!({ "client": clients[2].id });
    assert_eq!(ids(&c.api("connections", one.clone())), [&*clients[2].id]);
    assert_eq!(c.api("connections", json!({ "client": "x" }))["result"]["connections"], json!({}));
    for wrong in [json!({ "cursor": "0.0" }), json!({ "address": "here" })] {
        assert_eq!(c.api("connections", wrong)["error"]["code"], 107);
    }
    let shown = c.api_as(ACME, "connections", json!({}));
    assert_eq!(ids(&shown), [&*of_acme.id], "of the tenant's: {shown}");
    assert_eq!(shown["result"]["connections"][&of_acme.id]["user"], "ann");
    assert_eq!(ids(&a.api_as(ACME, "connections", one)), [""; 0]);

    let name = c.status()["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|of| (of["node"] == c.status()["node"]).then(|| of["name"].clone()));
    cluster.nodes[2].kill();
    let answer = cluster.nodes[0].api("connections", json!({}));
    assert_eq!(answer["result"]["unreachable"], json!([name.unwrap()]));
    assert_eq!(ids(&answer).len(), 4, "{answer}");
}

#[test]
fn refusal_of_nats_is_named_with_its_fix() {
    let mut cluster = Cluster::start(Kind::Nats, 1);
    let store = "jetstream {}";
    let user = "user: u, password: p";
    let narrow = "permissions: { publish: \"dunlin.>\", subscribe: \"dunlin.>\" }";
    for (condition, fix, configuration) in [
        ("no_jetstream", "-js", String::new()),
        ("wrong_password", "nkey", format!("{store}\nauthorization {{ {user} }}")),
        (
            "not_permitted",
            "$JS.API.>",
            format!(
                "{store}\nauthorization {{ users: [ {{ {user}, {narrow} }} ] }}\nno_auth_user: u"
            ),
        ),
    ] {
        cluster.meeting.nats().restart_as(&configuration);
        let status = cluster.nodes[0].until(condition, |of| of["condition"] == condition);
        assert!(status["fix"].as_str().unwrap().contains(fix), "{status}");
    }
    cluster.meeting.nats().restart(true);
    cluster.settle();
}

/// Its servers verify clients, as those of NATS may.
#[test]
fn a_redis_that_verifies_clients_is_shown_a_certificate() {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // A certificate that bears the name of its issuer is its own issuer to OpenSSL.
    params.distinguished_name.push(DnType::CommonName, "authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let issue = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
    };
    let redis = redis::start_verifying(&authority.pem(), |name| issue(name));
    let scratch = tempfile::tempdir().unwrap();
    let engine =
        json!({ "addresses": [redis.addr.to_string()], "tls": true, "ca": authority.pem() });
    let node = Node::start(scratch.path().join("node"), engine);
    let kept = json!({ "engine": "main", "history_size": 10, "history_ttl_ms": 60_000 });
    let change = |patch: &Value| {
        let kind = "application/merge-patch+json";
        let answer = node.served.call_as("PATCH", "/config", kind, &patch.to_string()).unwrap();
        assert_eq!(answer.0, 200, "{answer:?}");
    };
    change(&json!({ "channel": { "namespaces": { "kept": kept } } }));
    let publish = || node.api("publish", json!({ "channel": "kept:a", "data": 1 }));
    node.until("unreachable", |status| status["condition"] == "unreachable");
    assert_ne!(publish()["error"], Value::Null);

    let (certificate, key) = issue("node");
    let shown = json!({ "tls_client_cert": certificate, "tls_client_key": key });
    change(&json!({ "engines": { "main": shown } }));
    node.until("a member", |status| status["condition"] == "member");
    until("the engine takes it", || publish()["result"]["offset"].is_u64());
}
