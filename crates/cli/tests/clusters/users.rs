//! Users on several nodes and a real Redis, or a real NATS: what is called for one, and how many connections he may have.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use crate::kit::client::{Client, signed};
use crate::kit::cluster::{Cluster, Kind, Node, until};
use serde_json::{Value, json};

crate::kit::cluster::wherever_they_meet! {
    a_call_about_a_user_is_carried_out_where_he_is_and_bars_his_tokens_everywhere
    of_connects_at_once_on_all_nodes_no_more_stay_than_the_user_may_have
    connections_of_a_user_are_bounded_over_all_nodes_and_those_of_a_dead_node_end_with_its_lease
}

/// Returns the calls that a node has carried out for others, and those about users that it does not have.
fn calls(node: &Node) -> (u64, u64) {
    let metric = |name: &str| node.metric(&format!("dunlin_cluster_calls_{name}_total"));
    (metric("served"), metric("unconcerned"))
}

/// Makes a call at the first node, and gives what the others had to do with it, in order: 1 where it was carried out.
fn call(cluster: &Cluster, method: &str, body: Value) -> (Value, Vec<u64>) {
    let before: Vec<_> = cluster.nodes[1..].iter().map(calls).collect();
    let answer = cluster.nodes[0].api(method, body);
    let after = cluster.nodes[1..].iter().map(calls);
    let carried_out = after.zip(before).map(|(after, before)| {
        assert_eq!(after.0 + after.1, before.0 + before.1 + 1, "each answers once");
        after.0 - before.0
    });
    let carried_out = carried_out.collect();
    (answer["result"].clone(), carried_out)
}

/// Regression: all workers of every node carried the call out.
fn a_call_about_a_user_is_carried_out_where_he_is_and_bars_his_tokens_everywhere(kind: Kind) {
    let mut cluster = Cluster::start(kind, 3);
    let now_s = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let of_ann = signed(&json!({ "sub": "ann", "iat": now_s - 10 }));
    let mut ann = Client::with_token(&cluster.nodes[1], &of_ann, "room").unwrap();
    let mut eves = [1, 2].map(|at| Client::connect(&cluster.nodes[at], "eve", "room"));
    let done = |carried_out: &[u64]| (json!({}), carried_out.to_vec());

    assert_eq!(call(&cluster, "refresh", json!({ "user": "eve" })), done(&[1, 1]));
    let aside = |user: &str| json!({ "user": user, "channel": "aside" });
    assert_eq!(call(&cluster, "subscribe", aside("ann")), done(&[1, 0]));
    assert_eq!(call(&cluster, "unsubscribe", aside("nobody")), done(&[0, 0]));
    let (found, carried_out) = call(&cluster, "connections", json!({ "user": "ann" }));
    assert_eq!((found["connections"].as_object().unwrap().len(), carried_out), (1, vec![1, 0]));
    // Who has no name may be anywhere, and so may those with a label.
    let all = json!({ "all_users": true, "label_filter": { "key": "app", "cmp": "ex" } });
    assert_eq!(call(&cluster, "refresh", all), done(&[1, 1]));

    assert_eq!(call(&cluster, "disconnect", json!({ "user": "ann" })), done(&[1, 0]));
    assert_eq!(ann.until_disconnected(), 3503);
    for node in &cluster.nodes {
        // By those who had nothing else to do with it, too.
        let refused = Client::with_token(node, &of_ann, "room").err().expect("barred");
        assert_eq!(refused["disconnect"]["code"], 3503, "{refused}");
    }
    // A token of which one client is disconnected by its id is barred everywhere, too, and no other of the user.
    let [of_joe, of_joes_other] =
        [20, 10].map(|ago_s| signed(&json!({ "sub": "joe", "iat": now_s - ago_s })));
    let mut joe = Client::with_token(&cluster.nodes[1], &of_joe, "room").unwrap();
    let client = joe.id.clone();
    cluster.nodes[0].api("disconnect", json!({ "user": "joe", "client": client }));
    assert_eq!(joe.until_disconnected(), 3503);
    for node in &cluster.nodes {
        let is_barred = || Client::with_token(node, &of_joe, "room").is_err();
        until("his token is barred", is_barred);
        Client::with_token(node, &of_joes_other, "room").unwrap();
    }
    until("she has gone", || call(&cluster, "refresh", json!({ "user": "ann" })) == done(&[0, 0]));

    // What is asked does not hang on what is stored.
    cluster.meeting.lose_all();
    cluster.settle();
    let reconnect = json!({ "code": 3000, "reason": "again" });
    let again = json!({ "user": "eve", "disconnect": reconnect });
    assert_eq!(call(&cluster, "disconnect", again), done(&[1, 1]));
    for eve in &mut eves {
        assert_eq!(eve.until_disconnected(), 3000);
    }
    let mut eve = Client::connect(&cluster.nodes[1], "eve", "room");
    cluster.nodes[2].kill();
    let name = |at: usize| cluster.nodes[at].served.at.client.to_string();
    // A node that is gone is missed, whoever was there; the others carry it out.
    let missed = cluster.nodes[0].api("refresh", json!({ "user": "eve" }));
    assert!(missed["error"]["message"].as_str().unwrap().contains(&name(2)), "{missed}");
    cluster.nodes[0].api("disconnect", json!({ "user": "eve" }));
    assert_eq!(eve.until_disconnected(), 3503);
}

/// Regression: two nodes each admitted the full number of connections.
fn connections_of_a_user_are_bounded_over_all_nodes_and_those_of_a_dead_node_end_with_its_lease(
    kind: Kind,
) {
    let mut cluster = Cluster::start(kind, 2);
    let bound = |node: &Node, max: u32| {
        let path = "/config/limits/connections_per_user_max";
        assert_eq!(node.served.call("PUT", path, &max.to_string()).unwrap().0, 200);
    };
    cluster.nodes.iter().for_each(|node| bound(node, 2));
    let counts = |user: &str| cluster.meeting.counts(user);
    // The agent has seen the bound, once a count of its node is there.
    let mut of_others = cluster.nodes.iter().zip(["bob", "tom"]);
    let _others: Vec<_> =
        of_others.by_ref().map(|(node, user)| Client::connect(node, user, "room")).collect();
    until("both nodes count", || counts("bob") == [1] && counts("tom") == [1]);
    let [a, b] = &cluster.nodes[..] else { panic!("two were started") };
    let first = Client::connect(a, "ann", "room");
    let second = Client::connect(b, "ann", "room");
    // Known on both nodes, however fast the second came.
    until("both are counted", || counts("ann") == [1, 1]);
    // What it is sent first is that it is refused.
    let refused = |node: &Node| {
        let first = Client::try_connect(node, "ann", "room").err().expect("refused");
        first["disconnect"]["code"].as_u64().unwrap_or(0)
    };
    assert_eq!((refused(a), refused(b)), (3504, 3504));
    // Others are not concerned, and what has closed makes room.
    until("those that were refused are not counted", || counts("ann") == [1, 1]);
    drop(first);
    until("it is not counted", || counts("ann") == [1]);
    let third = Client::connect(a, "ann", "room");
    until("it has stayed", || counts("ann") == [1, 1] && has(b, &third) && has(b, &second));
    assert_eq!(refused(b), 3504);

    let dead = uid(a);
    cluster.nodes[0].kill();
    let b = &cluster.nodes[1];
    until("the dead node's are not counted", || {
        let Ok(client) = Client::try_connect(b, "ann", "room") else { return false };
        let is_let_in = || cluster.meeting.counts("ann").contains(&2);
        until("it is decided", || !has(b, &client) || is_let_in());
        has(b, &client)
    });
    until("nothing is left of it", || !cluster.meeting.records().contains(&dead));
    assert_eq!(cluster.meeting.counts("bob"), [0; 0]);
    // What was counted is counted again where all was lost.
    cluster.meeting.lose_all();
    until("they are counted again", || cluster.meeting.counts("ann") == [1]);
    let b = &cluster.nodes[1];
    bound(b, 0);
    until("nothing is left where there is no bound", || cluster.meeting.counts("ann").is_empty());
    let _many: Vec<_> = (0..4).map(|_| Client::connect(b, "ann", "room")).collect();
}

fn of_connects_at_once_on_all_nodes_no_more_stay_than_the_user_may_have(kind: Kind) {
    let cluster = Cluster::start(kind, 3);
    for node in &cluster.nodes {
        let path = "/config/limits/connections_per_user_max";
        assert_eq!(node.served.call("PUT", path, "3").unwrap().0, 200);
    }
    let counts = |user: &str| cluster.meeting.counts(user);
    let others = cluster.nodes.iter().zip(["bob", "tom", "tim"]);
    let _others: Vec<_> = others.map(|(node, user)| Client::connect(node, user, "room")).collect();
    until("all nodes count", || ["bob", "tom", "tim"].iter().all(|of| counts(of) == [1]));
    let clients: Vec<Client> = std::thread::scope(|scope| {
        let connects: Vec<_> = (0..24)
            .map(|at| {
                let node = &cluster.nodes[at % 3];
                scope.spawn(move || Client::try_connect(node, "ann", "room").ok())
            })
            .collect();
        connects.into_iter().filter_map(|connect| connect.join().unwrap()).collect()
    });
    let connected = || {
        let found = cluster.nodes[0].api("connections", json!({ "user": "ann" }));
        found["result"]["connections"].as_object().map_or(0, |found| found.len())
    };
    until("no more than three are left", || connected() <= 3);
    // One that was refused in the same moment as others may leave room.
    assert!(!clients.is_empty());
    until("they are counted", || counts("ann").iter().sum::<u64>() == connected() as u64);
}

/// Returns whether a client is connected, as a node sees all nodes.
fn has(node: &Node, client: &Client) -> bool {
    let found = node.api("connections", json!({ "client": client.id }));
    found["result"]["connections"].as_object().is_some_and(|found| !found.is_empty())
}

/// Returns the uid of a node's process.
fn uid(node: &Node) -> String {
    let status = node.status();
    let own = |of: &&Value| of["node"] == status["node"];
    let own = status["nodes"].as_array().unwrap().iter().find(own).unwrap();
    own["uid"].as_str().unwrap().to_owned()
}
