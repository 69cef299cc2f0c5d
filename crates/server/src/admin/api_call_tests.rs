//! Tests of the server API on the admin port, and of what the operator's page reads.

use serde_json::{Value, json};

use super::testkit::{TestServer, development};

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

fn api(server: &TestServer, method: &str, params: &Value) -> Value {
    let response = server.call("POST", &format!("/api/{method}"), &JSON, &params.to_string());
    assert_eq!(response.status, 200, "{response:?}");
    response.json()
}

/// A server with a token of each role.
fn with_roles() -> TestServer {
    let server = TestServer::start(2);
    for role in ["see", "operate", "change"] {
        let token = json!({ "token": format!("a token of role {role}"), "role": role });
        assert!(
            server.put(&format!("/config/admin/tokens/{role}"), &token.to_string()).status < 300
        );
    }
    server
}

#[test]
fn an_operator_lists_clients_and_channels_and_acts_on_them() {
    let server = TestServer::start(2);
    let hostile = "<img src=x onerror=alert(1)> #100% ' \"";
    let mut clients: Vec<_> = [hostile, "news"].map(|channel| server.subscribe(channel)).into();
    let found = api(&server, "connections", &json!({ "channel": hostile }));
    let found = found["result"]["connections"].as_object().unwrap_or_else(|| panic!("{found}"));
    assert_eq!(found.len(), 1);
    let id = found.keys().next().unwrap();
    let channels = api(&server, "channels", &json!({}));
    assert_eq!(channels["result"]["channels"][hostile]["num_clients"], 1, "{channels}");
    let published = api(&server, "publish", &json!({ "channel": "news", "data": 7 }));
    assert_eq!(published["result"]["offset"], 1);
    assert_eq!(clients[1].publication()["data"], 7);
    let history = api(&server, "history", &json!({ "channel": "news", "limit": 5 }));
    assert_eq!(history["result"]["publications"][0]["data"], 7);
    assert_eq!(api(&server, "disconnect", &json!({ "client": id }))["result"], json!({}));
    assert!(clients[0].next().is_none_or(|push| push["disconnect"].is_object()));
    assert_eq!(api(&server, "publish", &json!({ "channel": "" }))["error"]["code"], 107);
}

/// Returns all pages of a search, joined, and their number.
fn pages(
    server: &TestServer,
    method: &str,
    kind: &str,
    params: &Value,
) -> (Vec<(String, Value)>, usize) {
    let (mut found, mut count, mut params) = (Vec::new(), 0, params.clone());
    loop {
        let page = api(server, method, &params)["result"].clone();
        let entries = page[kind].as_object().unwrap_or_else(|| panic!("{page}")).clone();
        let limit = params["limit"].as_u64().unwrap();
        assert!(entries.len() as u64 <= limit, "{page}");
        found.extend(entries);
        count += 1;
        match page["cursor"].as_str() {
            Some(cursor) => params["cursor"] = cursor.into(),
            None => return (found, count),
        }
    }
}

#[test]
fn channels_come_a_page_at_a_time_each_once_with_subscribers_of_all_workers() {
    let mut server = TestServer::start(3);
    let names: Vec<String> = (0..40).map(|n| format!("room-{n}")).collect();
    let clients: Vec<_> =
        names.iter().chain(&names[..10]).map(|name| server.subscribe(name)).collect();
    server.publish("quiet", 1);
    let (mut found, count) = pages(&server, "channels", "channels", &json!({ "limit": 7 }));
    found.sort_by_key(|(name, _)| name["room-".len()..].parse::<usize>().unwrap());
    assert!(count >= 6, "{count} pages");
    let wanted = names
        .iter()
        .enumerate()
        .map(|(at, name)| (name.clone(), json!({ "num_clients": if at < 10 { 2 } else { 1 } })));
    assert_eq!(found, wanted.collect::<Vec<_>>());

    let of = |params: Value| pages(&server, "channels", "channels", &params).0;
    assert_eq!(of(json!({ "limit": 3, "pattern": "room-1?" })).len(), 10);
    assert_eq!(of(json!({ "limit": 3, "pattern": "room-5" })).len(), 1);
    assert_eq!(of(json!({ "limit": 3, "pattern": "quiet" })), []);
    let quiet = of(json!({ "limit": 3, "pattern": "q*", "without_subscribers": true }));
    assert_eq!(quiet, [("quiet".to_owned(), json!({ "num_clients": 0 }))]);
    let bad = api(&server, "channels", &json!({ "limit": 1, "cursor": "here" }));
    assert_eq!(bad["error"]["code"], 107, "{bad}");
    let all = api(&server, "channels", &json!({}));
    assert_eq!(all["result"]["channels"].as_object().unwrap().len(), 40, "without a limit");
    drop(clients);
    server.wait_until(|server| {
        pages(server, "channels", "channels", &json!({ "limit": 7 })).0.is_empty()
    });
}

#[test]
fn connections_are_found_by_transport_age_and_outbox() {
    let server = TestServer::start(2);
    let clients: Vec<_> = (0..3).map(|_| server.subscribe("news")).collect();
    let of = |params: Value| pages(&server, "connections", "connections", &params).0.len();
    assert_eq!(of(json!({ "limit": 2, "transport": "uni_http_stream" })), 3);
    assert_eq!(of(json!({ "limit": 2, "transport": "websocket" })), 0);
    assert_eq!(of(json!({ "limit": 2, "age_min_s": 3600 })), 0);
    assert_eq!(of(json!({ "limit": 2, "outbox_bytes_min": 1_000_000 })), 0);
    drop(clients);
}

#[test]
fn a_role_reaches_as_far_as_its_name_and_a_page_of_another_site_nowhere() {
    let mut server = with_roles();
    for (token, role, statuses) in [
        ("a token of role see", "see", [200, 403, 403]),
        ("a token of role operate", "operate", [200, 200, 403]),
        ("a token of role change", "change", [200, 200, 200]),
    ] {
        server.token = Some(token);
        let who = server.get("/whoami").json();
        assert_eq!((&who["role"], &who["secrets"]), (&json!(role), &json!(role == "change")));
        assert_eq!(who["token"], format!("admin.tokens.{role}"));
        let found = [
            server.call("POST", "/api/connections", &JSON, "{}").status,
            server.call("POST", "/api/history", &JSON, r#"{"channel":"news"}"#).status,
            server.put("/config/limits/connections_max", "12345").status,
        ];
        assert_eq!(found, statuses, "{role}");
        let foreign =
            [JSON[0], ("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site")];
        assert_eq!(server.call("POST", "/api/connections", &foreign, "{}").status, 403);
    }
    server.token = Some("a token that nobody has");
    for path in ["/whoami", "/status/overview", "/status/series"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    server.token = None;
    assert_eq!(server.call("POST", "/api/connections", &JSON, "{}").status, 401);
    server.token = Some("a token of role change");
    assert_eq!(server.get("/api/connections").status, 405);
    assert_eq!(server.call("POST", "/api/nothing", &JSON, "{}").status, 404);
}

#[test]
fn without_a_state_directory_development_mode_says_that_it_lets_everybody_change() {
    let mut server = TestServer::begin_as(1, development(), None, false);
    server.token = None;
    let local = [("Host", "127.0.0.1")];
    let who = server.call("GET", "/whoami", &local, "").json();
    assert_eq!((&who["role"], &who["secrets"]), (&json!("change"), &json!(false)));
}

#[test]
fn a_worker_that_does_not_answer_is_named() {
    let mut server = TestServer::start(1);
    let release = server.stall(0);
    let response = server.call("POST", "/api/info", &JSON, "{}");
    assert_eq!((response.status, response.problem().as_str()), (503, "/problems/overloaded"));
    assert!(response.json()["detail"].to_string().contains("worker 0"), "{response:?}");
    drop(release);
    assert!(api(&server, "info", &json!({}))["result"].is_object());
}

#[test]
fn the_overview_counts_sessions_by_transport_and_raises_alarms() {
    let mut server = TestServer::start(2);
    let clients: Vec<_> = (0..3).map(|_| server.subscribe("news")).collect();
    server.wait_until(|server| {
        let overview = server.get("/status/overview").json();
        overview["connections"]["by_transport"] == json!({ "uni_http_stream": 3 })
    });
    assert_eq!(server.get("/status/overview").json()["alarms"], json!([]));
    assert_eq!(server.put("/config/limits/connections_max", "3").status, 200);
    let overview = server.get("/status/overview").json();
    let alarm = &overview["alarms"][0];
    assert_eq!(
        (&alarm["level"], &alarm["what"]),
        (&json!("urgent"), &json!("connections: 3 of 3"))
    );
    assert!(alarm["fix"].to_string().contains("limits.connections_max"));
    drop(clients);
    server.wait_until(|server| {
        let overview = server.get("/status/overview").json();
        overview["connections"]["by_transport"] == json!({})
    });
}

#[test]
fn samples_are_taken_while_workers_sleep() {
    let mut server = TestServer::start(1);
    server.wait_until(|server| server.get("/status/series").json()["newest"] != 0);
    let series = server.get("/status/series?span=hour").json();
    assert!(series["series"]["resident_bytes"][0].as_f64().unwrap() > 1e6, "{series}");
    assert!(server.get("/status/overview").json()["figures"]["cpu_cores"].is_number());
    assert_eq!(server.get("/status/series?span=year").status, 400);
}
