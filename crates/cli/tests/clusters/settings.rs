//! Changes of settings on all nodes, with several nodes and a real Redis, or a real NATS.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::time::Instant;

use crate::kit::TIMEOUT;
use crate::kit::cluster::{Cluster, Kind, Node, until};
use serde_json::{Value, json};

const LIMIT: &str = "/config/limits/connections_max";

crate::kit::cluster::wherever_they_meet! {
    a_change_of_all_runs_on_all_and_one_that_the_first_refuses_on_none
    a_node_that_was_away_catches_up_and_one_that_restarts_keeps_what_it_has
    of_changes_at_once_on_several_nodes_each_is_made_everywhere_or_nowhere
    a_change_that_a_node_has_missed_and_the_store_has_lost_reaches_it_or_it_says_so
    a_node_with_another_secret_makes_no_change_of_all_and_none_is_made_beside_it
}

/// Calls the admin port and returns status and body.
fn call(node: &Node, method: &str, target: &str, body: &Value) -> (u16, Value) {
    let kind = match method {
        "PATCH" if body.is_array() => "application/json-patch+json",
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let answer = node.served.call_as(method, target, kind, &body.to_string());
    let (status, body) = answer.unwrap_or_else(|| panic!("no answer to {method} {target}"));
    (status, serde_json::from_str(&body).unwrap())
}

/// Changes all nodes; retries if another change came first.
fn change(node: &Node, method: &str, target: &str, body: &Value) -> (u16, Value) {
    let target = format!("{target}?scope=cluster");
    let deadline = Instant::now() + 2 * TIMEOUT;
    loop {
        let (status, answer) = call(node, method, &target, body);
        if answer["type"] != "/problems/cluster-change-under-way" {
            return (status, answer);
        }
        assert!(Instant::now() < deadline, "{answer}");
    }
}

fn value(node: &Node, target: &str) -> Value {
    call(node, "GET", target, &Value::Null).1
}

/// Returns each node's outcome, the first node's first.
fn outcomes(answer: &Value) -> Vec<&str> {
    let nodes = answer["nodes"].as_array().unwrap_or_else(|| panic!("{answer}"));
    nodes.iter().map(|node| node["outcome"].as_str().unwrap()).collect()
}

/// Makes a change until every node has answered in time, this one (504) and the others (207).
fn change_all(cluster: &Cluster, target: &str, body: &Value) -> Value {
    let deadline = Instant::now() + 2 * TIMEOUT;
    loop {
        let (status, answer) = change(&cluster.nodes[0], "PUT", target, body);
        if status == 200 && outcomes(&answer).len() == cluster.nodes.len() {
            return answer;
        }
        assert!(Instant::now() < deadline && [207, 504].contains(&status), "{status} {answer}");
    }
}

fn a_change_of_all_runs_on_all_and_one_that_the_first_refuses_on_none(kind: Kind) {
    let cluster = Cluster::start(kind, 3);
    let [a, b, c] = &cluster.nodes[..] else { panic!("three were started") };
    let answer = change_all(&cluster, LIMIT, &json!(12_345));
    assert!(answer["cluster_revision"].as_u64().unwrap() >= 1, "{answer}");
    for node in &cluster.nodes {
        assert_eq!(value(node, LIMIT), json!(12_345));
    }
    let of_b = &value(b, "/config/revisions?limit=1")["revisions"][0];
    assert!(of_b["cluster_revision"].as_u64().unwrap() >= 1, "{of_b}");

    // What the first refuses reaches nobody, and the next may make a change at once.
    let before = a.status()["settings_revision"].clone();
    let (status, answer) = change(a, "PUT", LIMIT, &json!(-1));
    assert_eq!((status, &answer["type"]), (422, &json!("/problems/invalid")), "{answer}");
    let (status, answer) = change(a, "PUT", "/config/server/name", &json!("a"));
    assert_eq!((status, &answer["type"]), (422, &json!("/problems/node-setting")), "{answer}");
    assert!(answer["detail"].as_str().unwrap().contains("/server/name"), "{answer}");
    assert_eq!(a.status()["settings_revision"], before);
    change_all(&cluster, LIMIT, &json!(23_456));

    // A value of one node's own gives way to the next change of all; one that a node refuses is named, and shown.
    assert_eq!(call(c, "PUT", LIMIT, &json!(777)).0, 200);
    let patch = json!([
        { "op": "test", "path": "/limits/connections_max", "value": 23_456 },
        { "op": "replace", "path": "/limits/connections_max", "value": 34_567 },
    ]);
    let (status, answer) = change(a, "PATCH", "/config", &patch);
    assert_eq!(status, 207, "{answer}");
    assert_eq!(value(a, LIMIT), json!(34_567));
    assert_eq!(value(c, LIMIT), json!(777));
    let refused = c.until("refused", |status| status["condition"] == "settings_refused");
    assert!(refused["detail"].as_str().unwrap().contains("it has another value"), "{refused}");
    assert!(refused["fix"].as_str().unwrap().contains("scope=cluster"), "{refused}");
    let health = c.served.call("GET", "/health", "").unwrap().1;
    assert!(health.contains("settings_refused"), "{health}");
    change_all(&cluster, LIMIT, &json!(45_678));
    assert_eq!(value(c, LIMIT), json!(45_678));
    c.until("a member again", |status| status["condition"] == "member");

    // Secrets reach the nodes, and nobody who reads the log.
    let secret = "what-only-the-nodes-are-to-know";
    change_all(&cluster, "/config/client/token/hmac_secret_previous", &json!(secret));
    let kept = cluster.meeting.settings_log();
    assert!(kept.contains("revision") && !kept.contains(secret), "{kept}");
    let of_c = value(c, "/config/client/token/hmac_secret_previous?secrets=1");
    assert_eq!(of_c, json!(secret));

    // Back to what was before, on all.
    let revision = value(b, "/config/revisions?limit=1")["current"].as_u64().unwrap();
    change_all(&cluster, LIMIT, &json!(56_789));
    let (status, answer) =
        change(b, "POST", &format!("/config/revisions/{revision}/restore"), &Value::Null);
    assert!(status == 200 || status == 207, "{answer}");
    until("restored on all", || {
        cluster.nodes.iter().all(|node| value(node, LIMIT) == json!(45_678))
    });
}

fn a_node_that_was_away_catches_up_and_one_that_restarts_keeps_what_it_has(kind: Kind) {
    let mut cluster = Cluster::start(kind, 3);
    change_all(&cluster, LIMIT, &json!(10_001));
    // One that is stopped.
    let signal = |node: &Node, signal: &str| {
        let pid = node.served.child.id().to_string();
        let sent = std::process::Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(sent.success());
    };
    signal(&cluster.nodes[2], "-STOP");
    let (status, answer) = change(&cluster.nodes[0], "PUT", LIMIT, &json!(10_002));
    let of_stopped = outcomes(&answer).into_iter().filter(|of| matches!(*of, "no_answer" | "away"));
    assert_eq!(of_stopped.count(), 1, "{status} {answer}");
    signal(&cluster.nodes[2], "-CONT");
    until("caught up", || value(&cluster.nodes[2], LIMIT) == json!(10_002));

    // One that is killed misses two, and runs both when it is back.
    cluster.nodes[1].kill();
    let retention = "/config/limits/broadcast_quantum";
    assert!(change(&cluster.nodes[0], "PUT", LIMIT, &json!(10_003)).0 < 300);
    assert!(change(&cluster.nodes[2], "PUT", retention, &json!(77)).0 < 300);
    cluster.nodes[1] = cluster.nodes[1].restarted();
    until("caught up", || {
        let node = &cluster.nodes[1];
        value(node, LIMIT) == json!(10_003) && value(node, retention) == json!(77)
    });

    // A value of its own, set since, stays over a restart: what it runs already it does not run again.
    assert_eq!(call(&cluster.nodes[1], "PUT", LIMIT, &json!(555)).0, 200);
    cluster.nodes[1].kill();
    cluster.nodes[1] = cluster.nodes[1].restarted();
    let newest = cluster.nodes[0].status()["settings_revision"].as_u64().unwrap();
    let number =
        cluster.nodes[1].until("a member", |of| of["condition"] == "member")["node"].clone();
    let follows = |status: &Value| {
        let nodes = status["nodes"].as_array().unwrap();
        nodes.iter().any(|of| of["node"] == number && of["settings_revision"] == newest)
    };
    cluster.nodes[0].until("all there", follows);
    assert_eq!(value(&cluster.nodes[1], LIMIT), json!(555));

    // After the store has lost the log, the nodes continue from their own state.
    cluster.meeting.lose_all();
    cluster.settle();
    let answer = change_all(&cluster, LIMIT, &json!(10_004));
    assert!(answer["cluster_revision"].as_u64().unwrap() > newest, "{answer}");
    for node in &cluster.nodes {
        assert_eq!(value(node, LIMIT), json!(10_004));
    }
}

/// Regression: nobody wrote again what such a log had held, and the node passed for one that runs everything.
fn a_change_that_a_node_has_missed_and_the_store_has_lost_reaches_it_or_it_says_so(kind: Kind) {
    let mut cluster = Cluster::start(kind, 2);
    change_all(&cluster, LIMIT, &json!(10_001));
    cluster.nodes[1].kill();
    assert!(change(&cluster.nodes[0], "PUT", LIMIT, &json!(10_002)).0 < 300);
    cluster.meeting.lose_all();
    cluster.nodes[1] = cluster.nodes[1].restarted();
    until("it is written again", || value(&cluster.nodes[1], LIMIT) == json!(10_002));
    cluster.settle();
    let answer = change_all(&cluster, LIMIT, &json!(10_003));
    assert!(answer["cluster_revision"].as_u64().unwrap() >= 3, "{answer}");

    // Who has made the change was restarted since, and has it no more in the log's form.
    cluster.nodes[1].kill();
    assert!(change(&cluster.nodes[0], "PUT", LIMIT, &json!(10_004)).0 < 300);
    cluster.nodes[0].kill();
    cluster.meeting.lose_all();
    for node in &mut cluster.nodes {
        *node = node.restarted();
    }
    let is_missed = |status: &Value| status["condition"] == "settings_missed";
    let missed = cluster.nodes[0].until("lost", is_missed);
    let detail = missed["detail"].as_str().unwrap();
    assert!(detail.contains("does not have the last change"), "{detail}");
    assert!(missed["fix"].as_str().unwrap().contains("scope=cluster"), "{missed}");
    assert_eq!(value(&cluster.nodes[0], LIMIT), json!(10_004));
    change_all(&cluster, LIMIT, &json!(10_005));
    cluster.nodes[0].until("a member", |status| status["condition"] == "member");

    // Another node knows the number of what was lost.
    cluster.nodes[1].kill();
    assert!(change(&cluster.nodes[0], "PUT", LIMIT, &json!(10_006)).0 < 300);
    assert!(change(&cluster.nodes[0], "PUT", LIMIT, &json!(10_007)).0 < 300);
    cluster.nodes[0].kill();
    cluster.meeting.lose_all();
    for node in &mut cluster.nodes {
        *node = node.restarted();
    }
    let missed = cluster.nodes[1].until("missed", is_missed);
    let detail = missed["detail"].as_str().unwrap();
    assert!(detail.contains("has lost changes of all nodes' settings up to number"), "{detail}");
}

fn of_changes_at_once_on_several_nodes_each_is_made_everywhere_or_nowhere(kind: Kind) {
    let cluster = Cluster::start(kind, 3);
    let newest = change_all(&cluster, LIMIT, &json!(100))["cluster_revision"].clone();
    cluster.meeting.set_claim(true);
    let target = format!("{LIMIT}?scope=cluster");
    let (status, answer) = call(&cluster.nodes[1], "PUT", &target, &json!(101));
    assert_eq!(status, 409, "{answer}");
    assert_eq!(answer["type"], "/problems/cluster-change-under-way");
    assert_eq!(answer["cluster_revision"], newest);
    assert_eq!(value(&cluster.nodes[1], LIMIT), json!(100));
    cluster.meeting.set_claim(false);

    let made: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let threads = cluster.nodes.iter().zip(1..).map(|(node, at)| {
            let target = &target;
            scope.spawn(move || {
                let mut made = Vec::new();
                for step in 0..20 {
                    let wanted = at * 1_000 + step;
                    let (status, answer) = call(node, "PUT", target, &json!(wanted));
                    match status {
                        200 | 207 => {
                            made.push((answer["cluster_revision"].as_u64().unwrap(), wanted));
                        }
                        409 => {}
                        _ => panic!("{status} {answer}"),
                    }
                }
                made
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let numbers: std::collections::BTreeSet<u64> = made.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers.len(), made.len(), "each has a number of its own: {made:?}");
    let (_, last) = made.iter().max().expect("somebody makes one");
    until("the last runs everywhere", || {
        cluster.nodes.iter().all(|node| value(node, LIMIT) == json!(last))
    });
}

#[test]
fn a_node_that_is_alone_is_all_there_are_and_without_a_secret_no_other_gets_a_change() {
    let scratch = tempfile::tempdir().unwrap();
    let alone = crate::kit::Served::start(&scratch.path().join("alone"), "");
    let target = format!("{LIMIT}?scope=cluster");
    let (status, body) = alone.call("PUT", &target, "321").unwrap();
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 200, "{answer}");
    assert_eq!((outcomes(&answer), &answer["cluster_revision"]), (vec!["applied"], &Value::Null));
    let (status, body) = alone.call("GET", "/config?scope=cluster", "").unwrap();
    assert_eq!(status, 400, "{body}");

    let cluster = Cluster::start(Kind::Redis, 1);
    let node = &cluster.nodes[0];
    assert_eq!(call(node, "DELETE", "/config/cluster/secret", &Value::Null).0, 200);
    let (status, answer) = call(node, "PUT", &target, &json!(1));
    assert_eq!((status, &answer["type"]), (409, &json!("/problems/no-cluster-secret")), "{answer}");
}

fn a_node_with_another_secret_makes_no_change_of_all_and_none_is_made_beside_it(kind: Kind) {
    let cluster = Cluster::start(kind, 2);
    change_all(&cluster, LIMIT, &json!(10_001));
    let [a, b] = &cluster.nodes[..] else { panic!("two were started") };
    let path = "/config/cluster/secret";
    assert_eq!(call(b, "PUT", path, &json!("another secret than theirs")).0, 200);
    let target = format!("{LIMIT}?scope=cluster");
    let differs = |node: &Node, of: &Node| {
        let (status, answer) = call(node, "PUT", &target, &json!(10_002));
        assert!(status == 409 || status < 300, "{answer}");
        let name = of.served.at.client.to_string();
        answer["type"] == "/problems/cluster-secret-differs"
            && answer["detail"].as_str().unwrap().contains(&name)
    };
    // Each has learnt of the other's with the next lease renewals.
    until("it is refused at both", || differs(a, b) && differs(b, a));
    let kept = [value(a, LIMIT), value(b, LIMIT)];
    assert!(differs(a, b) && [value(a, LIMIT), value(b, LIMIT)] == kept, "nothing was changed");
    assert_eq!(call(b, "PUT", path, &json!(crate::kit::cluster::SECRET)).0, 200);
    until("it is made again", || !differs(a, b));
    change_all(&cluster, LIMIT, &json!(10_003));
    for node in &cluster.nodes {
        assert_eq!(value(node, LIMIT), json!(10_003));
        node.until("a member", |status| status["condition"] == "member");
    }
}

/// The agent that waits for the others' answers is the one that has to connect anew.
#[test]
fn a_change_of_the_engine_that_the_nodes_meet_at_is_answered_by_all_of_them() {
    let cluster = Cluster::start(Kind::Redis, 3);
    let redis = cluster.meeting.redis();
    redis.cli(&["ACL", "SETUSER", "default", "on", ">a-new-password"]);
    let target = "/config/engines/main/password";
    let answer = change_all(&cluster, target, &json!("a-new-password"));
    assert_eq!(outcomes(&answer), ["applied"; 3]);
    for node in &cluster.nodes {
        node.until("a member", |status| status["condition"] == "member");
    }
    cluster.settle();
    // With the new connections, and nobody is away who is back.
    let answer = change_all(&cluster, LIMIT, &json!(10_001));
    assert_eq!(outcomes(&answer), ["applied"; 3]);
}
