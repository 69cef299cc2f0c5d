//! Tests of changes of addresses that are in use.

use std::net::{SocketAddr, TcpListener, TcpStream};

use serde_json::json;

use super::testkit::{Subscriber, TestServer, receive};

const CLIENT_ADDR: &str = "/config/server/client_addr";
const ADMIN_ADDR: &str = "/config/server/admin_addr";

fn free() -> SocketAddr {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap()
}

fn quoted(address: SocketAddr) -> String {
    json!(address.to_string()).to_string()
}

#[test]
fn the_address_of_the_clients_moves_and_who_is_connected_stays() {
    let mut server = TestServer::start(2);
    let first = server.clients;
    let mut everyone: Vec<Subscriber> = (0..8).map(|_| server.subscribe("news")).collect();
    let mut published = 0;
    // Moves away from the initial listeners, then once more.
    for _ in 0..2 {
        let (before, after) = (server.clients, free());
        let moved = server.put(CLIENT_ADDR, &quoted(after));
        assert_eq!(
            (moved.status, &moved.json()["restart_needed"]),
            (200, &json!(null)),
            "{moved:?}"
        );
        assert_eq!(moved.json()["warnings"][0]["pointer"], "/server/client_addr");
        assert!(TcpStream::connect(before).is_err(), "nobody is left listening");
        server.clients = after;
        everyone.extend((0..8).map(|_| server.subscribe("news")));
        published += 1;
        assert!(server.publish("news", published).contains(&format!("\"offset\":{published}")));
    }
    // The first address is free for others.
    drop(TcpListener::bind(first).unwrap());
    for (at, subscriber) in everyone.iter_mut().enumerate() {
        for message in 1 + (at as u64).saturating_sub(8) / 8..=published {
            assert_eq!(subscriber.publication()["data"], message);
        }
    }
}

#[test]
fn an_address_that_is_taken_or_that_a_worker_refuses_changes_nothing() {
    let server = TestServer::start(2);
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    for target in [CLIENT_ADDR, ADMIN_ADDR] {
        let refused = server.put(target, &quoted(taken.local_addr().unwrap()));
        assert_eq!(refused.status, 422, "{refused:?}");
        let pointer = target.strip_prefix("/config").unwrap();
        assert_eq!(refused.json()["errors"][0]["pointer"], pointer);
        assert_eq!(server.put(target, "\"127.0.0.1:0\"").status, 422, "nobody would know where");
    }
    let elsewhere = free();
    let patch = json!({"server": {
        "name": "refused by worker 1", "client_addr": elsewhere.to_string(), "admin_addr": free().to_string(),
    }});
    assert_eq!(server.merge("/config", &patch).problem(), "/problems/not-applied");
    let mut subscribers: Vec<Subscriber> = (0..8).map(|_| server.subscribe("news")).collect();
    server.publish("news", 1);
    assert!(subscribers.iter_mut().all(|of| of.publication()["data"] == 1), "all is as it was");
    assert!(TcpStream::connect(elsewhere).is_err());
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn the_admin_port_moves_and_who_is_connected_to_it_stays() {
    let mut server = TestServer::start(1);
    let mut stream = server.connect();
    let (before, after) = (server.address, free());
    server.send(&mut stream, "PUT", ADMIN_ADDR, &[], &quoted(after));
    let moved = receive(&mut stream);
    assert_eq!(moved.status, 200, "{moved:?}");
    let fix = moved.json()["warnings"][0]["fix"].as_str().unwrap().to_owned();
    assert!(fix.contains(&after.to_string()), "{fix}");
    assert!(TcpStream::connect(before).is_err());
    server.send(&mut stream, "GET", "/health", &[], "");
    assert_eq!(receive(&mut stream).status, 200);
    server.address = after;
    assert_eq!(server.get(ADMIN_ADDR).json(), after.to_string());
    // Moving back works, too.
    assert_eq!(server.put(ADMIN_ADDR, &quoted(before)).status, 200);
    server.address = before;
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn the_other_keys_of_the_server_that_once_took_a_restart_take_none() {
    let server = TestServer::start(2);
    for (target, value) in [
        ("/config/server/backlog", "128"),
        ("/config/server/pin_workers", "true"),
        ("/config/server/pin_workers", "false"),
        ("/config/limits/bus_backlog_bytes_max", "1000000"),
    ] {
        let changed = server.put(target, value);
        assert_eq!((changed.status, &changed.json()["restart_needed"]), (200, &json!(null)));
    }
    let late = server.put("/config/client/ping_interval_ms", "20000");
    assert_eq!(late.json()["new_connections_only"], json!(["/client/ping_interval_ms"]));
    let _subscriber = server.subscribe("news");
}
