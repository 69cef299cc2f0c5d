//! Tests of the admin port over real sockets, with real workers.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dunlin_config::store::{Directory, Disk};
use dunlin_config::{LogFormat, LogLevel, Secret};
use serde_json::{Value, json};

use super::testkit::{OPERATOR, Subscriber, TestResponse, TestServer, Watch, development, receive};

const CHAT: &str = "/config/channel/namespaces/chat";
const SIZE: &str = "/config/channel/namespaces/chat/history_size";

#[test]
fn a_value_is_set_read_guarded_and_taken_away() {
    let server = TestServer::start(2);
    let made = server.put(CHAT, r#"{"history_size":10,"history_ttl_ms":1000}"#);
    assert_eq!((made.status, made.header("ETag")), (201, Some("\"2\"")), "{made:?}");
    assert_eq!(made.json()["workers"]["total"], 2);
    assert_eq!(made.json()["durable"], false);

    let changed = server.call("PUT", SIZE, &[("If-Match", "\"2\"")], "20");
    assert_eq!((changed.status, &changed.json()["previous"]), (200, &json!(2)));
    let stale = server.call("PUT", SIZE, &[("If-Match", "\"2\"")], "30");
    assert_eq!((stale.status, stale.problem().as_str()), (412, "/problems/revision-mismatch"));
    assert_eq!(stale.json()["current"], 3);
    let read = server.get(SIZE);
    assert_eq!((read.body.trim(), read.header("ETag")), ("20", Some("\"3\"")));
    let again = server.call("GET", SIZE, &[("If-None-Match", "\"3\"")], "");
    assert_eq!((again.status, again.body.as_str()), (304, ""));

    let same = server.put(SIZE, "20");
    assert_eq!((same.status, &same.json()["changes"]), (200, &json!(0)));
    assert_eq!(server.call("DELETE", CHAT, &[], "").status, 200);
    assert_eq!(server.get(CHAT).status, 404);
    assert_eq!(server.call("DELETE", CHAT, &[], "").status, 404);
    let misspelt = server.get("/config/client/ping_intervall_ms");
    assert_eq!(
        (misspelt.status, &misspelt.json()["errors"][0]["fix"]),
        (404, &json!("did you mean `ping_interval_ms`?"))
    );
}

#[test]
fn an_invalid_change_is_rejected_with_its_place_and_changes_nothing() {
    let server = TestServer::start(1);
    let invalid = server.merge("/config", &json!({"client": {"ping_interval_ms": 1, "ping": 2}}));
    assert_eq!((invalid.status, invalid.problem().as_str()), (422, "/problems/invalid"));
    let pointers: Vec<Value> =
        invalid.json()["errors"].as_array().unwrap().iter().map(|e| e["pointer"].clone()).collect();
    assert!(pointers.contains(&json!("/client/ping_interval_ms")), "{pointers:?}");
    assert!(pointers.contains(&json!("/client/ping")), "{pointers:?}");
    for (target, body, status) in [
        ("/config/limits", "{", 400),
        ("/config/limits", r#"{"connections_max":1,"connections_max":2}"#, 400),
        ("/config/limits/connections_max", "\"many\"", 422),
        ("/config?dryrun=1", "{}", 400),
    ] {
        assert_eq!(server.put(target, body).status, status, "{target} {body}");
    }
    let deep = "[".repeat(10_000);
    assert_eq!(server.put("/config/limits", &deep).status, 400);
    let text = server.call("PUT", SIZE, &[("Content-Type", "text/plain")], "1");
    assert_eq!(text.status, 415);
    assert!(text.header("Accept-Patch").is_some());
    let patch = server.call("PATCH", "/config", &[("Content-Type", "application/json")], "{}");
    let types = "application/merge-patch+json or application/json-patch+json";
    assert!(patch.status == 415 && patch.json()["detail"].to_string().contains(types), "{patch:?}");
    assert_eq!(server.call("POST", "/config", &[], "").status, 405);
    assert_eq!(server.call("PUT", SIZE, &[("If-Match", "3")], "1").status, 400);
    assert_eq!(server.revision(), 1);
}

#[test]
fn a_body_beyond_the_bound_is_rejected_unread() {
    let server = TestServer::start(1);
    let mut stream = server.connect();
    write!(stream, "PUT /config HTTP/1.1\r\nHost: d\r\nContent-Length: 100000000\r\n\r\n{{")
        .unwrap();
    let refused = receive(&mut stream);
    assert_eq!((refused.status, refused.problem().as_str()), (413, "/problems/too-large"));
    assert!(refused.json()["limit"].as_u64().unwrap() > 0);
}

#[test]
fn json_with_the_content_type_of_curl_is_accepted() {
    let server = TestServer::start(1);
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let put = server.call("PUT", "/config/limits/connections_max", &form, "12345");
    assert_eq!(
        (put.status, server.get("/config/limits/connections_max").json()),
        (200, json!(12345))
    );
}

#[test]
fn a_patch_is_all_or_nothing_and_a_dry_run_is_nothing() {
    let server = TestServer::start(1);
    let dry = server.merge("/config?dry_run=1", &json!({"limits": {"connections_max": 7}}));
    assert_eq!(dry.status, 200);
    assert_eq!(dry.json()["changes"][0]["pointer"], "/limits/connections_max");
    assert_eq!(dry.json()["changes"][0]["after"], 7);
    assert_eq!(server.revision(), 1);

    let media = [("Content-Type", "application/json-patch+json")];
    let patch = json!([
        {"op": "add", "path": "/channel/namespaces/a", "value": {}},
        {"op": "test", "path": "/limits/connections_max", "value": 12345},
    ]);
    let failed = server.call("PATCH", "/config", &media, &patch.to_string());
    assert_eq!((failed.status, failed.problem().as_str()), (409, "/problems/test-failed"));
    assert_eq!(server.get("/config/channel/namespaces/a").status, 404);
    let restart = server.merge("/config", &json!({"server": {"workers": 3}}));
    assert_eq!(restart.json()["restart_needed"], json!(["/server/workers"]));
}

#[test]
fn the_history_says_who_changed_what_and_any_revision_can_be_had_again() {
    let server = TestServer::start(2);
    server.put(CHAT, "{}");
    let headers = [("From", "alice@example.com")];
    server.call("PUT", &format!("{SIZE}?comment=more%20room"), &headers, "0");
    server.call("PUT", "/config/channel/namespaces/chat/presence", &headers, "true");
    let page = server.get("/config/revisions?limit=1").json();
    assert_eq!((&page["current"], &page["oldest"]), (&json!(3), &json!(1)));
    assert_eq!(page["revisions"][0]["who"], "alice@example.com");
    assert_eq!(page["revisions"].as_array().unwrap().len(), 1);
    let revision = server.get("/config/revisions/3").json();
    assert_eq!(revision["changes"][0]["pointer"], "/channel/namespaces/chat/presence");
    assert_eq!(server.get("/config/revisions/99").status, 404);

    let restored = server.call("POST", "/config/revisions/1/restore", &[], "");
    assert_eq!((restored.status, &restored.json()["revision"]), (200, &json!(4)), "{restored:?}");
    assert_eq!(server.get(CHAT).status, 404);
    assert_eq!(
        server.get("/config/revisions/3/config").json()["channel"]["namespaces"]["chat"]["presence"],
        true
    );
}

#[test]
fn secrets_are_shown_to_a_caller_with_the_token_that_asks() {
    let mut config = development();
    config.api.keys.insert("backend", Secret::new("0123456789abcdef0123"));
    let mut server = TestServer::begin(1, config, None);
    assert_eq!(server.get("/config/api/keys/backend").json(), "***");
    server.token = None;
    assert_eq!(server.get("/config/api/keys?secrets=1").status, 403, "no token is shown");
    server.token = Some(OPERATOR);
    assert_eq!(server.put("/config/admin/token", "\"a token of some length\"").status, 200);
    server.token = None;
    assert_eq!(server.get("/config").status, 401);
    assert_eq!(server.get("/health").status, 200);
    server.token = Some("a token of some length");
    assert_eq!(server.get("/config/api/keys?secrets=1").json()["backend"], "0123456789abcdef0123");
    // A redacted read can be written back.
    let keys = server.get("/config/api/keys").body;
    assert_eq!(server.put("/config/api/keys", &keys).json()["changes"], 0);
    let history = server.get("/config/revisions/2").body;
    assert!(!history.contains("some length") && history.contains("***"), "{history}");
}

#[test]
fn a_watcher_gets_every_revision_once_and_in_order() {
    let server = TestServer::start(2);
    server.put(CHAT, "{}");
    let mut now = Watch::begin(&server, "/config/watch");
    let mut from = Watch::begin(&server, "/config/watch?from=1");
    let mut old = Watch::begin(&server, "/config/watch?from=0");
    assert_eq!(now.next("progress").1["revision"], 2);
    assert_eq!(from.next("change").1["changes"][0]["pointer"], "/channel/namespaces/chat");
    let (id, snapshot) = old.next("snapshot");
    assert_eq!((id.as_str(), &snapshot["revision"]), ("2", &json!(2)));
    assert!(snapshot["config"]["channel"]["namespaces"]["chat"].is_object());
    for history_size in 1..=20 {
        server.merge("/config", &json!({"limits": {"history_messages_max": 100 + history_size}}));
    }
    for watch in [&mut now, &mut from, &mut old] {
        for revision in 3..=22 {
            let (id, change) = watch.next("change");
            assert_eq!((id, &change["previous"]), (revision.to_string(), &json!(revision - 1)));
        }
    }
}

#[test]
fn a_thousand_writers_that_match_the_same_revision_are_one_success() {
    let server = TestServer::start(2);
    server.put(CHAT, "{}");
    let mut writers: Vec<TcpStream> = (0..1_000).map(|_| server.connect()).collect();
    for round in 0..3 {
        let before = server.revision();
        let tag = format!("\"{before}\"");
        for (writer, stream) in writers.iter_mut().enumerate() {
            let value = (1 + round * 1_000 + writer).to_string();
            let target = "/config/channel/namespaces/chat/history_meta_ttl_ms";
            let value = format!("{}", 90_000_000 + value.parse::<u64>().unwrap());
            server.send(stream, "PUT", target, &[("If-Match", &tag)], &value);
        }
        let statuses: Vec<u16> = writers.iter_mut().map(|stream| receive(stream).status).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1);
        assert_eq!(statuses.iter().filter(|status| **status == 412).count(), 999);
        assert_eq!(server.revision(), before + 1);
    }
}

#[test]
fn writers_at_once_are_each_in_the_history_once() {
    let server = TestServer::start(2);
    server.put(CHAT, "{}");
    let answered: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let server = &server;
                scope.spawn(move || {
                    let mut stream = server.connect();
                    (0..50)
                        .map(|change| {
                            let target = format!("/config/channel/namespaces/w{writer}-{change}");
                            server.send(&mut stream, "PUT", &target, &[], "{}");
                            let answer = receive(&mut stream);
                            assert_eq!(answer.status, 201, "{answer:?}");
                            answer.json()["revision"].as_u64().unwrap()
                        })
                        .collect::<Vec<u64>>()
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    let mut answered = answered;
    answered.sort_unstable();
    assert_eq!(answered, (3..403).collect::<Vec<u64>>());
    let page = server.get("/config/revisions?limit=1000").json();
    assert_eq!(page["revisions"].as_array().unwrap().len(), 402);
}

#[test]
fn a_change_is_rolled_back_when_a_worker_is_stuck_in_its_turn() {
    let mut server = TestServer::start(2);
    server.put(CHAT, r#"{"history_meta_ttl_ms":5000}"#);
    server.put("/config/config/commit_timeout_ms", "100");
    let stalled = server.stall(1);
    let refused = server.put("/config/channel/namespaces/chat/presence", "true");
    assert_eq!(
        (refused.status, refused.problem().as_str()),
        (409, "/problems/not-applied"),
        "{refused:?}"
    );
    let reasons = refused.json()["workers"].clone();
    assert_eq!((&reasons[0]["worker"], reasons.as_array().unwrap().len()), (&json!(1), 1));
    assert!(reasons[0]["reason"].as_str().unwrap().contains("commit_timeout_ms"), "{reasons}");
    let revision = server.revision();
    assert_eq!(refused.json()["revision"], revision);
    assert_eq!(server.get(&format!("{CHAT}/presence")).json(), false);

    // Every worker runs the previous settings, and the next change succeeds. On a busy machine a turn may exceed the
    // timeout.
    drop(stalled);
    server
        .wait_until(|server| server.put("/config/config/commit_timeout_ms", "10000").status == 200);
    let changed = server.put("/config/channel/namespaces/chat/presence", "true");
    assert_eq!(changed.status, 200, "{changed:?}");
    assert_eq!(server.get(&format!("{CHAT}/presence")).json(), true);
}

#[test]
fn a_change_that_a_worker_rejects_is_rolled_back_with_the_reason() {
    let mut server = TestServer::start(2);
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let patch = json!({
        "server": {"name": "refused by worker 1"},
        "listeners": {"extra": {"addr": format!("127.0.0.1:{port}")}},
    });
    let refused = server.merge("/config", &patch);
    assert_eq!(
        (refused.status, refused.problem().as_str()),
        (409, "/problems/not-applied"),
        "{refused:?}"
    );
    assert_eq!(refused.json()["workers"], json!([{"worker": 1, "reason": "refused by a test"}]));
    assert_eq!(server.get("/config/listeners/extra").status, 404);
    // The worker that had opened its listener has closed it again.
    server.wait_until(|_| TcpStream::connect(("127.0.0.1", port)).is_err());
    let revision = server.revision();
    server.wait_until(|server| {
        let workers = server.get("/status/workers").json()["workers"].clone();
        let standing = |worker: usize| workers[worker]["revision"].as_u64().unwrap();
        (0..2).all(|worker| standing(worker) == revision || workers[worker]["asleep"] == true)
    });
}

#[test]
fn an_address_that_cannot_be_bound_is_an_error_in_a_dry_run_too() {
    let server = TestServer::start(1);
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let root = include_str!("../../tests/data/root.pem");
    let upstream = |ca: &str| {
        let members = json!({"a": {"address": "push.example:443"}});
        json!({"webhooks": {"upstreams": {"backend": {"tls": true, "ca": ca, "members": members}}}})
    };
    for (patch, pointer) in [
        (json!({"listeners": {"side": {"addr": address}}}), "/listeners/side/addr"),
        (json!({"server": {"admin_addr": address}}), "/server/admin_addr"),
        (upstream(&root.replace("MII", "MI")), "/webhooks/upstreams/backend/ca"),
    ] {
        for target in ["/config?dry_run=1", "/config"] {
            let refused = server.merge(target, &patch);
            assert_eq!((refused.status, refused.problem().as_str()), (422, "/problems/invalid"));
            assert_eq!(refused.json()["errors"][0]["pointer"], pointer, "{refused:?}");
        }
    }
    assert_eq!(server.merge("/config?dry_run=1", &upstream(root)).status, 200);
    drop(taken);
    let side = json!({"listeners": {"side": {"addr": address}}});
    assert_eq!(server.merge("/config?dry_run=1", &side).status, 200);
    assert!(TcpStream::connect(&address).is_err(), "nothing is held after it");
    assert_eq!(server.merge("/config", &side).status, 200);
}

#[test]
fn a_listener_comes_and_goes_and_its_sessions_stay() {
    let server = TestServer::start(2);
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let wrong = json!({"addr": taken.local_addr().unwrap().to_string()}).to_string();
    let refused = server.put("/config/listeners/side", &wrong);
    assert_eq!(refused.status, 422, "{refused:?}");
    assert_eq!(refused.json()["errors"][0]["pointer"], "/listeners/side/addr");
    let address = taken.local_addr().unwrap();
    drop(taken);

    assert_eq!(server.put("/config/listeners/side", &wrong).status, 201);
    let mut through_it: Vec<Subscriber> =
        (0..8).map(|_| Subscriber::at(address, "news", "")).collect();
    assert!(server.publish("news", 1).contains("\"offset\":1"));
    let removed = server.call("DELETE", "/config/listeners/side", &[], "");
    assert_eq!(removed.status, 200, "{removed:?}");
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
    server.publish("news", 2);
    for subscriber in &mut through_it {
        assert_eq!(subscriber.publication()["data"], 1);
        assert_eq!(subscriber.publication()["data"], 2);
    }
}

#[test]
fn a_revoked_key_closes_its_sessions_and_no_others() {
    let mut config = development();
    config.client.token.hmac_secret = Some(Secret::new("the key of the year before"));
    let server = TestServer::begin(2, config, None);
    let token = |key: &str| {
        let key = jsonwebtoken::EncodingKey::from_secret(key.as_bytes());
        let claims = json!({"sub": "42", "channels": ["news"]});
        jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
    };
    let old = token("the key of the year before");
    let mut old: Vec<Subscriber> =
        (0..6).map(|_| Subscriber::at(server.clients, "news", &old)).collect();
    let mut anonymous = server.subscribe("news");
    let rotated = server.merge(
        "/config",
        &json!({"client": {"token": {
            "hmac_secret": "the key of this year", "hmac_secret_previous": "the key of the year before",
        }}}),
    );
    assert_eq!(rotated.status, 200, "{rotated:?}");
    let new = token("the key of this year");
    let mut new = Subscriber::at(server.clients, "news", &new);
    server.publish("news", 1);
    assert!(old.iter_mut().all(|of| of.publication()["data"] == 1), "both keys hold");

    assert_eq!(
        server.call("DELETE", "/config/client/token/hmac_secret_previous", &[], "").status,
        200
    );
    for subscriber in &mut old {
        let push = subscriber.next().expect("a disconnect");
        assert_eq!(push["disconnect"]["code"], 3005, "{push}");
        assert!(subscriber.next().is_none());
    }
    server.publish("news", 2);
    for subscriber in [&mut anonymous, &mut new] {
        assert_eq!(subscriber.publication()["data"], 1);
        assert_eq!(subscriber.publication()["data"], 2);
    }
}

#[test]
fn a_trial_that_goes_well_is_committed_and_nobody_comes_between() {
    let server = TestServer::start(2);
    let body = json!({"history_size": 5, "history_ttl_ms": 1000}).to_string();
    std::thread::scope(|scope| {
        let trying = scope.spawn(|| server.put(&format!("{CHAT}?canary=worker&seconds=1"), &body));
        loop {
            assert!(!trying.is_finished(), "nobody was kept from coming between");
            let between = server.put("/config/channel/namespaces/other", "{}");
            if between.status == 409 {
                assert_eq!(between.problem(), "/problems/canary-under-way");
                assert!(between.header("Retry-After").is_some());
                break;
            }
            server.call("DELETE", "/config/channel/namespaces/other", &[], "");
        }
        let tried = trying.join().unwrap();
        assert_eq!(tried.status, 201, "{tried:?}");
        assert_eq!(tried.json()["canary"]["worker"], 0);
    });
    assert_eq!(server.get(SIZE).json(), 5);
}

#[test]
fn a_trial_with_errors_is_rolled_back() {
    let server = TestServer::start(2);
    server.put(CHAT, "{}");
    let over = AtomicBool::new(false);
    let refused = std::thread::scope(|scope| {
        let (server, over) = (&server, &over);
        // On the worker that tries the change, the namespace is removed.
        scope.spawn(move || {
            while !over.load(Ordering::Acquire) {
                server.publish("chat:1", 1);
            }
        });
        let target = format!("{CHAT}?canary=worker&worker=0&seconds=20");
        let refused = server.call("DELETE", &target, &[], "");
        over.store(true, Ordering::Release);
        refused
    });
    assert_eq!(
        (refused.status, refused.problem().as_str()),
        (409, "/problems/canary-failed"),
        "{refused:?}"
    );
    assert!(refused.json()["canary"]["errors"].as_u64().unwrap() >= 5);
    assert_eq!(server.get(CHAT).status, 200);
    for attempt in 0..20 {
        assert!(server.publish("chat:1", attempt).contains("result"), "every worker has it");
    }
}

#[test]
fn the_status_of_the_workers_says_what_they_run() {
    let mut server = TestServer::start(2);
    server.put(CHAT, "{}");
    let _subscriber = server.subscribe("news");
    server.wait_until(|server| {
        let status = server.get("/status/workers").json();
        let workers = status["workers"].as_array().unwrap().clone();
        assert_eq!((workers.len(), &status["revision"]), (2, &json!(2)));
        let sessions: u64 = workers.iter().map(|one| one["sessions"].as_u64().unwrap()).sum();
        // Each second the workers report their counters and measure the hop to the next one.
        sessions == 1
            && status["hops"]["measured"].as_u64().unwrap() >= 2
            && workers.iter().all(|one| one["revision"] == 2)
            && status["edges"].as_array().unwrap().iter().any(|edge| edge["to"] == 1)
    });
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("dunlin_config_revision 2"), "{metrics}");
}

/// Clients count their messages while the configuration changes back and forth.
#[test]
fn no_change_drops_a_connection_or_a_message() {
    const CLIENTS: usize = 60;
    const MESSAGES: u64 = 300;
    const MESSAGES_A_CHANGE: u64 = 5;
    let server = TestServer::start(3);
    server.put(
        CHAT,
        r#"{"history_size":1000,"history_ttl_ms":600000,"allow_subscribe_for_anonymous":true}"#,
    );
    let mut clients: Vec<Subscriber> = (0..CLIENTS).map(|_| server.subscribe("chat:1")).collect();
    let over = AtomicBool::new(false);
    let changes = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let mut stream = server.connect();
            let mut seed = 7_u64;
            while !over.load(Ordering::Acquire) {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let n = seed >> 40;
                let (method, target, body) = match seed >> 33 & 7 {
                    0 => ("PUT", format!("/config/channel/namespaces/n{}", n % 50), "{}".into()),
                    1 => {
                        ("DELETE", format!("/config/channel/namespaces/n{}", n % 50), String::new())
                    }
                    2 => (
                        "PUT",
                        "/config/client/ping_interval_ms".into(),
                        (10_000 + n % 50_000).to_string(),
                    ),
                    3 => (
                        "PUT",
                        "/config/limits/outbox_bytes_max".into(),
                        (1_000_000 + n % 5_000_000).to_string(),
                    ),
                    4 => (
                        "PUT",
                        "/config/limits/channels_max".into(),
                        (1_000 + n % 1_000_000).to_string(),
                    ),
                    5 => (
                        "PUT",
                        "/config/channel/namespaces/chat/presence".into(),
                        n.is_multiple_of(2).to_string(),
                    ),
                    6 => (
                        "PUT",
                        "/config/client/allowed_origins".into(),
                        format!("[\"https://{n}.example\"]"),
                    ),
                    _ => {
                        let page = server.get("/config/revisions?limit=1000").json();
                        let kept = page["revisions"].as_array().unwrap();
                        // Not the first revision: it has no `chat` namespace.
                        let undo = &kept[n as usize % kept.len()]["revision"];
                        if *undo == 1 {
                            continue;
                        }
                        ("POST", format!("/config/revisions/{undo}/restore"), String::new())
                    }
                };
                server.send(&mut stream, method, &target, &[], &body);
                let answer = receive(&mut stream);
                assert!(matches!(answer.status, 200 | 201 | 404), "{method} {target}: {answer:?}");
                changes.fetch_add(1, Ordering::Release);
            }
        });
        for message in 1..=MESSAGES {
            while changes.load(Ordering::Acquire) * MESSAGES_A_CHANGE < message {
                assert!(!changing.is_finished(), "nothing changes any more");
                std::thread::yield_now();
            }
            let answer = server.publish("chat:1", message);
            assert!(answer.contains(&format!("\"offset\":{message},")), "{answer}");
        }
        over.store(true, Ordering::Release);
    });
    for client in &mut clients {
        for message in 1..=MESSAGES {
            let publication = client.publication();
            assert_eq!(
                (&publication["offset"], &publication["data"]),
                (&json!(message), &json!(message))
            );
        }
    }
}

#[test]
fn a_durable_change_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let disk = || Some(Box::new(Directory::open(directory.path()).unwrap()) as Box<dyn Disk>);
    let memory = TestServer::start(1);
    assert_eq!(memory.put(&format!("{CHAT}?durable=1"), "{}").problem(), "/problems/no-state");
    drop(memory);
    let server = TestServer::begin(1, development(), disk());
    let made = server.put(&format!("{CHAT}?durable=1"), "{}");
    assert_eq!((made.status, &made.json()["durable"]), (201, &json!(true)), "{made:?}");
    let writers: Vec<TestResponse> = std::thread::scope(|scope| {
        let server = &server;
        let writing: Vec<_> = (0..16)
            .map(|n| {
                scope.spawn(move || {
                    server.put(&format!("/config/channel/namespaces/d{n}?durable=1"), "{}")
                })
            })
            .collect();
        writing.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert!(writers.iter().all(|answer| answer.status == 201));
    drop(server);
    let server = TestServer::begin(1, development(), disk());
    assert_eq!(server.revision(), 18);
    assert_eq!(server.get("/config/channel/namespaces/d7").status, 200);
}

#[test]
fn log_settings_are_passed_on_once_they_run_and_only_when_they_change() {
    let server = TestServer::start(1);
    assert_eq!(server.put("/config/log/level", "\"debug\"").status, 200);
    assert_eq!(server.put("/config/server/name", "\"else\"").status, 200);
    assert_eq!(server.put("/config/log/level", "\"loud\"").status, 422);
    assert_eq!(server.put("/config/log/level", "\"info\"").status, 200);
    assert_eq!(server.put("/config/log/format", "\"json\"").status, 200);
    let passed_on: Vec<_> =
        server.logs.lock().unwrap().iter().map(|log| (log.level, log.format)).collect();
    let due = [
        (LogLevel::Debug, LogFormat::Text),
        (LogLevel::Info, LogFormat::Text),
        (LogLevel::Info, LogFormat::Json),
    ];
    assert_eq!(passed_on, due);
}

#[test]
fn connections_that_say_nothing_keep_nobody_from_the_admin_port() {
    let server = TestServer::start(1);
    let mut watching = server.connect();
    server.send(&mut watching, "GET", "/info", &[], "");
    assert_eq!(receive(&mut watching).status, 200);
    let silent: Vec<_> = (0..4_200).map(|_| server.connect()).collect();
    assert_eq!(server.call("GET", "/health", &[], "").status, 200);
    assert_eq!(server.call("GET", "/info", &[], "").status, 200);
    // A connection that has received a response stays open.
    server.send(&mut watching, "GET", "/info", &[], "");
    assert_eq!(receive(&mut watching).status, 200);
    drop(silent);
}
