//! Clients that ask for more than their budget, with sockets.

use std::sync::Arc;

use dunlin_config::{ApiScope, ClientBudget, Config, Secret, SharedBudget, Snapshot};
use serde_json::Value;

use crate::metrics::Metric;
use crate::state::settings::Settings;
use crate::tests::{Cluster, Listener, TIMEOUT};

fn budget(config: &mut Config, commands_per_s: u32) {
    config.limits.anonymous_budget =
        ClientBudget { commands_per_s, burst_ms: 100, ..ClientBudget::default() };
}

fn publishes(ids: std::ops::Range<u32>, channel: &str) -> String {
    let command = |id: u32| {
        format!("{{\"id\":{id},\"publish\":{{\"channel\":\"{channel}\",\"data\":{id}}}}}")
    };
    ids.map(command).collect::<Vec<_>>().join("\n")
}

/// A client of an HTTP stream, which begins with these commands.
fn client(cluster: &Cluster, commands: &str) -> (Listener, Value) {
    let body = format!("{{\"id\":1,\"connect\":{{}}}}\n{commands}");
    Listener::open(cluster.address, "/connection/http_stream", &body)
}

fn delayed(cluster: &Cluster) -> u64 {
    cluster.state.counters[0].get(Metric::CommandsDelayed)
}

#[test]
fn commands_beyond_the_budget_wait_and_are_carried_out_in_order() {
    let cluster = Cluster::start_with(1, |config| budget(config, 1_000));
    let mut reader = client(&cluster, "{\"id\":2,\"subscribe\":{\"channel\":\"a\"}}").0;
    assert_eq!(reader.next().unwrap()["id"], 2);
    let (mut writer, _) = client(&cluster, &publishes(2..502, "a"));
    for id in 2..502 {
        assert_eq!(writer.next().unwrap()["id"], id, "answered in order, none refused");
        let push = reader.next().unwrap();
        assert_eq!(push["push"]["pub"]["data"], id, "{push}");
    }
    assert!(delayed(&cluster) > 0);
}

/// As an expression over a large `meta` did, for each command anew: at a rate of 1,000 commands a second it took a core.
#[test]
fn commands_that_take_long_wait_where_as_many_short_ones_do_not() {
    let cluster = Cluster::start_with(1, |config| budget(config, 1_000));
    let mut short = client(&cluster, &publishes(2..52, "a")).0;
    (2..52).for_each(|id| assert_eq!(short.next().unwrap()["id"], id));
    assert_eq!(delayed(&cluster), 0);
    let long_ns = 20 * crate::limits::budget::COMMAND_NS;
    cluster.state.test_command_ns.store(long_ns, std::sync::atomic::Ordering::Relaxed);
    let mut long = client(&cluster, &publishes(2..52, "a")).0;
    (2..52).for_each(|id| assert_eq!(long.next().unwrap()["id"], id, "none is refused"));
    let turns = delayed(&cluster);
    assert!(turns >= 25, "each turn ends after two of them: {turns}");
}

/// Ten publications a second, and as many other commands as it likes.
#[test]
fn a_kind_of_command_waits_for_a_rate_of_its_own() {
    let cluster = Cluster::start_with(1, |config| {
        budget(config, 0);
        config.limits.anonymous_budget.publishes_per_s = 20;
    });
    let read = |id: u32| format!("{{\"id\":{id},\"history\":{{\"channel\":\"a\"}}}}");
    let reads = (2..202).map(read).collect::<Vec<_>>().join("\n");
    let (mut reader, _) = client(&cluster, &reads);
    for id in 2..202 {
        assert_eq!(reader.next().unwrap()["id"], id);
    }
    assert_eq!(delayed(&cluster), 0, "reads have no rate");
    let (mut writer, _) = client(&cluster, &publishes(2..6, "a"));
    for id in 2..6 {
        assert_eq!(writer.next().unwrap()["id"], id, "answered in order, none refused");
    }
    assert!(delayed(&cluster) > 0);
}

#[test]
fn one_frame_is_carried_out_over_many_turns_whatever_the_budget() {
    let cluster = Cluster::start_with(1, |config| budget(config, 0));
    let (mut writer, _) = client(&cluster, &publishes(2..1_002, "a"));
    for id in 2..1_002 {
        assert_eq!(writer.next().unwrap()["id"], id);
    }
    assert!((3..10).contains(&delayed(&cluster)), "of 256 each: {}", delayed(&cluster));
}

#[test]
fn client_that_exceeds_its_budget_is_disconnected_alone() {
    let cluster = Cluster::start_with(1, |config| {
        budget(config, 10);
        (config.limits.frame_bytes_max, config.limits.message_bytes_max) = (10_000, 10_000);
    });
    let (mut other, _) = client(&cluster, "{\"id\":2,\"subscribe\":{\"channel\":\"b\"}}");
    assert_eq!(other.next().unwrap()["id"], 2);
    let (mut writer, connected) = client(&cluster, &publishes(2..5, "a"));
    let session = connected["connect"]["session"].as_str().unwrap();
    let data = Value::from(publishes(10..20, "a")).to_string();
    let body = format!("{{\"session\":\"{session}\",\"node\":\"\",\"data\":{data}}}");
    for _ in 0..40 {
        cluster.post("/emulation", &body);
    }
    let mut last = Value::Null;
    while let Some(said) = writer.next() {
        last = said;
    }
    assert_eq!(last["push"]["disconnect"]["code"], 3013, "{last}");
    cluster.post("/api/publish", "{\"channel\":\"b\",\"data\":7}");
    assert_eq!(other.next().unwrap()["push"]["pub"]["data"], 7);
}

#[test]
fn a_budget_changes_while_clients_wait() {
    let cluster = Cluster::start_with(1, |config| budget(config, 2));
    // At the rate it begins with, the last of these would be answered after minutes.
    let (mut writer, _) = client(&cluster, &publishes(2..1_002, "a"));
    assert_eq!(writer.next().unwrap()["id"], 2);
    let mut config = cluster.state.newest_for(0).config.clone();
    budget(&mut config, 0);
    let snapshot = Arc::new(Snapshot::new(2, config).unwrap());
    cluster.state.publish(Arc::new(Settings::new(snapshot)));
    for id in 3..1_002 {
        assert_eq!(writer.next().unwrap()["id"], id);
    }
}

/// Few commands or bytes a second for all of one address.
fn address_budget(config: &mut Config, commands_per_s: u32, bytes_per_s: u64) {
    config.limits.address_budget =
        SharedBudget { commands_per_s, bytes_per_s, burst_ms: 100, ..SharedBudget::default() };
}

/// Every channel keeps messages and gives them to who subscribes.
fn recovering(config: &mut Config) {
    let options = &mut config.channel.without_namespace;
    (options.history_size, options.history_ttl_ms, options.recover) = (100, 60_000, true);
}

const RECOVER: &str = "{\"recover\":true,\"epoch\":\"\",\"offset\":0}";

/// Polls and connects were free, whatever the budget.
#[test]
fn polls_pay_and_learn_when_to_come_back() {
    let cluster = Cluster::start_with(1, |config| address_budget(config, 1, 0));
    let line = "GET /connection/poll?channel=a&timeout=0";
    let poll = || cluster.exchange(line, "Host: 127.0.0.1\r\n", "");
    let first = poll();
    assert!(first.starts_with("HTTP/1.1 200"), "a burst: {first}");
    let refused = poll();
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    let after = refused.lines().find_map(|line| line.strip_prefix("Retry-After: ")).unwrap();
    assert!((1..=2).contains(&after.parse::<u32>().unwrap()), "{after}");
}

#[test]
fn connects_beyond_the_budget_are_refused_for_now() {
    let cluster = Cluster::start_with(1, |config| address_budget(config, 1, 0));
    let asked = "{\"subs\":{\"a\":{},\"b\":{}}}";
    let (_stays, connected) = Listener::connect_to(cluster.address, asked);
    assert!(connected["connect"]["subs"]["a"].is_object(), "{connected}");
    let (_, refused) = Listener::connect_to(cluster.address, "{}");
    assert_eq!(refused["disconnect"]["code"], 3013, "{refused}");
    let (_, refused) =
        Listener::open(cluster.address, "/connection/http_stream", "{\"id\":1,\"connect\":{}}");
    assert_eq!(refused["error"]["code"], 111, "{refused}");
}

#[test]
fn answers_are_charged_to_all_who_pay() {
    let message = format!("{{\"channel\":\"a\",\"data\":\"{}\"}}", "x".repeat(20_000));
    // To the address.
    let cluster = Cluster::start_with(1, |config| {
        recovering(config);
        address_budget(config, 0, 1_000);
    });
    cluster.post("/api/publish", &message);
    let asked = format!("{{\"subs\":{{\"a\":{RECOVER}}}}}");
    let (_stays, connected) = Listener::connect_to(cluster.address, &asked);
    assert_eq!(connected["connect"]["subs"]["a"]["recovered"], true);
    let (_, refused) = Listener::connect_to(cluster.address, &asked);
    assert_eq!(refused["disconnect"]["code"], 3013, "for the answer before: {refused}");
    // To the namespace, and by a poll.
    let cluster = Cluster::start_with(1, |config| {
        recovering(config);
        config.channel.without_namespace.budget =
            SharedBudget { bytes_per_s: 1_000, burst_ms: 100, ..SharedBudget::default() };
    });
    cluster.post("/api/publish", &message);
    let headers = "Host: 127.0.0.1\r\n";
    let poll =
        || cluster.exchange("GET /connection/poll?channel=a&timeout=0&cursor=0", headers, "");
    let (first, second) = (poll(), poll());
    assert!(first.starts_with("HTTP/1.1 200") && first.len() > 20_000, "{first}");
    assert!(second.starts_with("HTTP/1.1 429"), "{second}");
    let (_, refused) = Listener::connect_to(cluster.address, &asked);
    assert_eq!(refused["disconnect"]["code"], 3013, "{refused}");
}

/// A token that is verified and refused was free.
#[test]
fn connects_that_are_refused_pay() {
    const KEY: &str = "the backend's own key, long enough";
    let cluster = Cluster::start_with(1, |config| {
        address_budget(config, 1, 0);
        config.client.token.hmac_secret = Some(Secret::new(KEY));
        config.client.anonymous = true;
    });
    let key = jsonwebtoken::EncodingKey::from_secret(KEY.as_bytes());
    let claims = serde_json::json!({"sub": "ada", "exp": 1_000});
    let token = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap();
    for (connect, code) in [(format!("{{\"token\":\"{token}\"}}"), 109), ("{}".into(), 111)] {
        let body = format!("{{\"id\":1,\"connect\":{connect}}}");
        let (_, answer) = Listener::open(cluster.address, "/connection/http_stream", &body);
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
}

/// Whoever had as many connections as a user may have could ask for more without end: nobody was charged for a connect that
/// ended its connection.
#[test]
fn connects_beyond_the_connections_of_a_user_pay() {
    const KEY: &str = "the backend's own key, long enough";
    let cluster = Cluster::start_with(1, |config| {
        config.limits.connections_per_user_max = 1;
        config.limits.user_budget =
            SharedBudget { commands_per_s: 2, burst_ms: 2_000, ..SharedBudget::default() };
        config.client.token.hmac_secret = Some(Secret::new(KEY));
    });
    let key = jsonwebtoken::EncodingKey::from_secret(KEY.as_bytes());
    let claims = serde_json::json!({"sub": "ada"});
    let token = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap();
    let body = format!("{{\"id\":1,\"connect\":{{\"token\":\"{token}\"}}}}");
    let open = || Listener::open(cluster.address, "/connection/http_stream", &body);
    let (_stays, connected) = open();
    assert!(connected["connect"].is_object(), "{connected}");
    let answers: Vec<Value> = (0..20).map(|_| open().1).collect();
    assert_eq!(answers[0]["push"]["disconnect"]["code"], 3504, "{}", answers[0]);
    assert_eq!(answers[19]["error"]["code"], 111, "{}", answers[19]);
}

/// Each of them was added to what the address owed, which kept out others of it for as many seconds afterwards.
#[test]
fn connects_that_are_refused_keep_an_address_out_for_a_moment_only() {
    let cluster = Cluster::start_with(1, |config| address_budget(config, 1, 0));
    for _ in 0..30 {
        let body = "{\"id\":1,\"connect\":{}}";
        let _ = Listener::open(cluster.address, "/connection/http_stream", body);
    }
    let line = "GET /connection/poll?channel=a&timeout=0";
    let refused = cluster.exchange(line, "Host: 127.0.0.1\r\n", "");
    let after = refused.lines().find_map(|line| line.strip_prefix("Retry-After: "));
    let after_s = after.map_or(0, |after| after.parse::<u32>().unwrap());
    assert!(after_s <= 3, "{refused}");
}

/// Thirty channels of 900 KB were one answer of 27 MB.
#[test]
fn recoveries_of_one_connect_share_one_bound() {
    let cluster = Cluster::start_with(2, |config| {
        recovering(config);
        config.limits.publication_bytes_max = 60_000;
        config.limits.outbox_bytes_max = 100_000;
    });
    let names: Vec<String> = (0..10).map(|n| format!("c{n}")).collect();
    let data = "x".repeat(40_000);
    for name in &names {
        cluster.post("/api/publish", &format!("{{\"channel\":\"{name}\",\"data\":\"{data}\"}}"));
    }
    let subs: Vec<String> = names.iter().map(|name| format!("\"{name}\":{RECOVER}")).collect();
    let asked = format!("{{\"subs\":{{{}}}}}", subs.join(","));
    let (mut client, connected) = Listener::connect_to(cluster.address, &asked);
    let subs = connected["connect"]["subs"].as_object().unwrap();
    let recovered = subs.values().filter(|of| of["recovered"] == true).count();
    assert_eq!((subs.len(), recovered), (10, 2));
    assert!(subs.values().all(|of| of["was_recovering"] == true && of["offset"] == 1));
    cluster.post("/api/publish", "{\"channel\":\"c7\",\"data\":7}");
    assert_eq!(client.next().unwrap()["pub"]["offset"], 2, "all are subscribed");
}

/// The calls of a key were free.
#[test]
fn a_key_has_a_budget_and_its_calls_wait_and_are_all_carried_out() {
    const KEY: &str = "a key of the budget's tests";
    let cluster = Cluster::start_with(1, |config| {
        config.api.without_key = false;
        config.api.keys.insert("slow", Secret::new(KEY));
        let budget = SharedBudget { commands_per_s: 200, burst_ms: 10, ..SharedBudget::default() };
        config.api.scopes.insert("slow", ApiScope { budget, ..ApiScope::default() });
    });
    let headers =
        format!("Host: 127.0.0.1\r\nX-API-Key: {KEY}\r\nContent-Type: application/json\r\n");
    let publish = "{\"publish\":{\"channel\":\"a\",\"data\":1}}";
    let batch = format!("{{\"commands\":[{}]}}", vec![publish; 20].join(","));
    let answer = cluster.exchange("POST /api/batch", &headers, &batch);
    assert_eq!(answer.matches("\"publish\":{").count(), 20, "{answer}");
    assert!(delayed(&cluster) > 10, "{}", delayed(&cluster));
}

/// Calls were held for as long as their key owed, however long that was and whether or not anybody waited for them.
#[test]
fn a_key_far_ahead_of_its_budget_is_refused_and_learns_when_to_come_back() {
    const KEY: &str = "a key of the budget's tests";
    let cluster = Cluster::start_with(2, |config| {
        config.api.without_key = false;
        for (name, key) in [("slow", KEY), ("other", "another key of the budget's tests")] {
            config.api.keys.insert(name, Secret::new(key));
        }
        let budget = SharedBudget { bytes_per_s: 1_000, burst_ms: 10, ..SharedBudget::default() };
        config.api.scopes.insert("slow", ApiScope { budget, ..ApiScope::default() });
    });
    let publish = |key: &str, data: &str| {
        let headers =
            format!("Host: 127.0.0.1\r\nX-API-Key: {key}\r\nContent-Type: application/json\r\n");
        let body = format!("{{\"channel\":\"a\",\"data\":\"{data}\"}}");
        (headers, body)
    };
    // Whoever asks for it does not wait for the answer.
    let (headers, body) = publish(KEY, &"x".repeat(100_000));
    let mut gone = std::net::TcpStream::connect(cluster.address).unwrap();
    let request = format!(
        "POST /api/publish HTTP/1.1\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    std::io::Write::write_all(&mut gone, request.as_bytes()).unwrap();
    // A call that begins before it is charged waits with it.
    let is_charged = || cluster.state.counters.iter().any(|of| of.get(Metric::CommandsDelayed) > 0);
    let deadline = std::time::Instant::now() + TIMEOUT;
    while !is_charged() {
        assert!(std::time::Instant::now() < deadline, "nothing was charged");
        std::thread::yield_now();
    }
    let (headers, body) = publish(KEY, "1");
    let refused = std::iter::repeat_with(|| cluster.exchange("POST /api/publish", &headers, &body))
        .find(|answer| answer.starts_with("HTTP/1.1 429"))
        .unwrap();
    let after = refused.lines().find_map(|line| line.strip_prefix("Retry-After: ")).unwrap();
    assert!((11..=101).contains(&after.parse::<u32>().unwrap()), "{refused}");
    let (headers, body) = publish("another key of the budget's tests", "1");
    let answer = cluster.exchange("POST /api/publish", &headers, &body);
    assert!(answer.starts_with("HTTP/1.1 200"), "others are not concerned: {answer}");
}

/// What was answered of histories was the session's alone to pay.
#[test]
fn a_namespace_pays_for_the_answers_of_its_history() {
    let cluster = Cluster::start_with(1, |config| {
        budget(config, 0);
        config.limits.anonymous_budget.bytes_per_s = 0;
        recovering(config);
        let options = &mut config.channel.without_namespace;
        options.allow_history_for_anonymous = true;
        options.budget = SharedBudget { bytes_per_s: 100, burst_ms: 1_000, ..options.budget };
    });
    let data = "x".repeat(20_000);
    cluster.post("/api/publish", &format!("{{\"channel\":\"a\",\"data\":\"{data}\"}}"));
    let asked = "{\"id\":2,\"history\":{\"channel\":\"a\",\"limit\":10}}";
    let (mut reader, _) = client(&cluster, asked);
    assert!(reader.next().unwrap().to_string().len() > 20_000);
    let before = delayed(&cluster);
    let (mut other, _) = client(&cluster, &publishes(2..3, "a"));
    assert_eq!(other.next().unwrap()["id"], 2);
    assert!(delayed(&cluster) > before, "what another does there waits");
}

/// Regression: the time that a poll took was nobody's, and neither was that of a unidirectional connect.
#[test]
fn polls_and_connects_that_take_long_use_up_the_budget_of_their_address() {
    for path in ["/connection/poll?channel=a&timeout=0", "/connection/uni_http_stream"] {
        let cluster = Cluster::start_with(1, |config| address_budget(config, 100, 0));
        let request = || match path.contains("poll") {
            true => cluster.call(&format!("GET {path}"), "", "").0 == 429,
            false => {
                let pushed = Listener::open(cluster.address, path, "{}").1;
                pushed["disconnect"].is_object()
            }
        };
        assert!(!(0..3).any(|_| request()), "{path}: short ones");
        let long_ns = 40 * crate::limits::budget::COMMAND_NS;
        cluster.state.test_command_ns.store(long_ns, std::sync::atomic::Ordering::Relaxed);
        assert!((0..3).any(|_| request()), "{path}: long ones");
    }
}

/// Regression: calls of the server API were charged by their number alone.
#[test]
fn calls_that_take_long_wait_where_as_many_short_ones_do_not() {
    let key = "a key of its own, long enough";
    let cluster = Cluster::start_with(1, |config| {
        config.api.without_key = false;
        config.api.keys.insert("one", Secret::new(key));
        let budget = SharedBudget { commands_per_s: 1_000, burst_ms: 100, ..Default::default() };
        config.api.scopes.insert("one", ApiScope { budget, ..ApiScope::default() });
    });
    let call = || {
        let head = format!("X-API-Key: {key}\r\nContent-Type: application/json\r\n");
        let answer = cluster.call("POST /api/info", &head, "{}");
        assert_eq!(answer.0, 200, "{answer:?}");
    };
    (0..20).for_each(|_| call());
    assert_eq!(delayed(&cluster), 0);
    let long_ns = 80 * crate::limits::budget::COMMAND_NS;
    cluster.state.test_command_ns.store(long_ns, std::sync::atomic::Ordering::Relaxed);
    (0..4).for_each(|_| call());
    assert!(delayed(&cluster) > 0);
}
