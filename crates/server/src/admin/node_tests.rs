//! Tests of changes of the node number and the ring size while clients are connected.

use dunlin_hub::SessionId;
use serde_json::json;

use super::testkit::{Subscriber, TestServer, receive};

impl TestServer {
    /// Returns the response to a command of the server API.
    fn ask_api(&self, method: &str, body: &serde_json::Value) -> serde_json::Value {
        let mut stream = std::net::TcpStream::connect(self.clients).unwrap();
        let body = body.to_string();
        self.send(&mut stream, "POST", &format!("/api/{method}"), &[], &body);
        receive(&mut stream).json()
    }
}

fn ids(server: &TestServer, channel: &str) -> Vec<SessionId> {
    let answer = server.ask_api("presence", &json!({ "channel": channel }));
    let present = answer["result"]["presence"].as_object().unwrap_or_else(|| panic!("{answer}"));
    present.keys().map(|id| id.parse().unwrap()).collect()
}

#[test]
fn sessions_keep_the_number_of_the_node_that_they_were_reported() {
    let server = TestServer::start(2);
    let room = server.put("/config/channel/without_namespace/presence", "true");
    assert_eq!(room.status, 200, "{room:?}");
    let mut early: Vec<Subscriber> = (0..6).map(|_| server.subscribe("room")).collect();
    let before = ids(&server, "room");
    assert!(before.len() == 6 && before.iter().all(|id| id.node() == 0));

    let renumbered = server.put("/config/server/node", "4095");
    assert_eq!(renumbered.json()["new_connections_only"], json!(["/server/node"]));
    assert_eq!(renumbered.json()["restart_needed"], json!(null));
    let mut late: Vec<Subscriber> = (0..6).map(|_| server.subscribe("room")).collect();
    let after = ids(&server, "room");
    assert_eq!(after.iter().filter(|id| id.node() == 4095).count(), 6);
    assert!(before.iter().all(|id| after.contains(id)), "nobody has another id");

    server.publish("room", 1);
    for subscriber in early.iter_mut().chain(&mut late) {
        assert_eq!(subscriber.publication()["data"], 1);
    }
    // Disconnects by the id in the connect reply, through whichever worker accepts the request.
    for id in &before {
        let gone = server.ask_api("disconnect", &json!({ "user": "", "client": id.to_string() }));
        assert_eq!(gone["error"], json!(null), "{gone}");
    }
    for subscriber in &mut early {
        assert_eq!(subscriber.next().expect("a last word")["disconnect"]["code"], 3503);
    }
    assert_eq!(ids(&server, "room").len(), 6);
}

#[test]
fn a_number_more_than_can_be_reported_apart_is_refused_until_sessions_end() {
    let mut server = TestServer::start(1);
    let mut held = Vec::new();
    for number in 0..8 {
        assert_eq!(server.put("/config/server/node", &number.to_string()).status, 200);
        held.push(server.subscribe("room"));
    }
    let refused = server.put("/config/server/node", "8");
    assert_eq!(refused.problem(), "/problems/not-applied", "{refused:?}");
    let reason = refused.json()["workers"][0]["reason"].clone();
    assert!(reason.as_str().unwrap().contains("server.node"), "{reason}");
    assert_eq!(server.get("/config/server/node").json(), 7);
    held.remove(3);
    server.wait_until(|server| server.put("/config/server/node", "8").status == 200);
}

#[test]
fn the_bound_of_the_rings_changes_under_messages_and_each_arrives_once_and_in_order() {
    let server = TestServer::start(3);
    let mut subscribers: Vec<Subscriber> = (0..9).map(|_| server.subscribe("news")).collect();
    let messages = 3_000;
    std::thread::scope(|scope| {
        let server = &server;
        scope.spawn(move || {
            for slots in [16, 1_024, 32, 65_536, 16, 4_096] {
                let changed = server.put("/config/limits/bus_slots", &slots.to_string());
                assert_eq!(
                    (changed.status, changed.json()["restart_needed"].is_null()),
                    (200, true)
                );
                std::thread::yield_now();
            }
        });
        scope.spawn(move || {
            // More messages at once than the smallest ring holds.
            for first in (1..=messages).step_by(100) {
                let commands: Vec<_> = (first..first + 100)
                    .map(|data| json!({ "publish": { "channel": "news", "data": data } }))
                    .collect();
                let batch = server.ask_api("batch", &json!({ "commands": commands }));
                let replies = batch["replies"].as_array().unwrap_or_else(|| panic!("{batch}"));
                assert!(replies.iter().all(|reply| reply["error"].is_null()), "{batch}");
            }
        });
        for subscriber in &mut subscribers {
            for expected in 1..=messages {
                assert_eq!(subscriber.publication()["data"], expected);
            }
        }
    });
}
