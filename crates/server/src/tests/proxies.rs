//! Proxies over sockets: backends that decide, and backends that fail to.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use dunlin_config::{ChannelOptions, Config, OnFailure, Proxy, Secret};
use serde_json::{Value, json};

use super::{Cluster, Listener, TIMEOUT};
use crate::auth::revocation::Revocation;
use crate::proxy::ProxyMetric;
use crate::state::settings::Settings;

/// A request to the backend, with its header names in lower case and the lines of a header between bars.
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Value,
}

/// An invalid response, after which the connection is closed.
pub(crate) const CLOSE: &[u8] = b"HTTP";

/// Starts a backend that sends the bytes of `answer` as response to each request, with a thread per connection.
pub(crate) fn backend(answer: impl Fn(Asked) -> Vec<u8> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            thread::spawn(move || serve(stream, &*answer));
        }
    });
    address
}

fn serve(mut stream: TcpStream, answer: &dyn Fn(Asked) -> Vec<u8>) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let path = line.split(' ').nth(1)?.to_owned();
        let mut headers: BTreeMap<String, String> = BTreeMap::new();
        loop {
            let mut line = String::new();
            lines.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            let lines: &mut String = headers.entry(name.to_lowercase()).or_default();
            let separator = if lines.is_empty() { "" } else { " | " };
            lines.push_str(&format!("{separator}{value}"));
        }
        let mut body = vec![0; headers["content-length"].parse().ok()?];
        lines.read_exact(&mut body).ok()?;
        let body = serde_json::from_slice(&body).expect("requests are JSON");
        let answer = answer(Asked { path, headers, body });
        stream.write_all(&answer).ok().filter(|()| answer != CLOSE)?;
    }
}

pub(crate) fn ok(body: &Value) -> Vec<u8> {
    response(200, &body.to_string())
}

pub(crate) fn response(status: u16, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

pub(crate) fn proxy(address: SocketAddr, path: &str) -> Proxy {
    Proxy {
        endpoint: format!("http://{address}{path}").into(),
        timeout_ms: 20_000,
        ..Proxy::default()
    }
}

/// Configures all proxies with this address.
fn asks(config: &mut Config, address: SocketAddr) {
    for event in ["connect", "rpc", "subscribe", "publish"] {
        config.proxies.insert(event, proxy(address, &format!("/{event}")));
    }
    config.client.anonymous = false;
    config.client.proxy.connect = Some("connect".into());
    config.client.proxy.rpc = Some("rpc".into());
    let room = ChannelOptions {
        subscribe_proxy: Some("subscribe".into()),
        publish_proxy: Some("publish".into()),
        presence: true,
        ..config.channel.without_namespace.clone()
    };
    config.channel.namespaces.insert("room", room);
}

/// Opens a bidirectional client that sends these commands at once, one per line.
pub(crate) fn client(cluster: &Cluster, commands: &[Value]) -> (Listener, Value) {
    let said: Vec<String> = commands.iter().map(Value::to_string).collect();
    Listener::open(cluster.address, "/connection/http_stream", &said.join("\n"))
}

pub(crate) fn connect() -> Value {
    json!({"id": 1, "connect": {}})
}

fn count(cluster: &Cluster, proxy: &str, metric: ProxyMetric) -> u64 {
    let all = cluster.state.proxies.live();
    let of = all.iter().filter(|((_, name), _)| &**name == proxy);
    of.map(|(_, stats)| stats.counters.get(metric)).sum()
}

#[test]
fn a_client_is_who_the_backend_says_and_calls_its_procedures() {
    let address = backend(|asked| match &*asked.path {
        "/connect" => {
            assert_eq!(asked.headers["content-type"], "application/json");
            assert_eq!(asked.headers["authorization"], "Bearer static");
            assert_eq!(asked.headers["x-session"], "emulated");
            assert_eq!(asked.body["transport"], "http_stream");
            assert_eq!(
                (&asked.body["data"], &asked.body["name"]),
                (&json!({"a": 1}), &json!("js"))
            );
            assert!(asked.body.get("user").is_none());
            let client = asked.body["client"].clone();
            ok(&json!({"result": {
                "user": "ada", "info": {"n": 1}, "data": {"client": client}, "meta": {"m": 1},
                "channels": ["news"], "subs": {"room:1": {"data": [1], "info": {"c": 1}}},
            }}))
        }
        "/rpc" => {
            assert_eq!(asked.body["user"], "ada");
            assert_eq!(asked.body["meta"], json!({"m": 1}));
            let sum = asked.body["data"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_i64)
                .sum::<i64>();
            match asked.body["method"].as_str() {
                Some("sum") => ok(&json!({"result": {"data": sum}})),
                Some("end") => ok(&json!({"disconnect": {"code": 4500, "reason": "enough"}})),
                _ => ok(&json!({"error": {"code": 1000, "message": "no such"}})),
            }
        }
        other => panic!("{other}"),
    });
    let cluster = Cluster::start_with(2, |config| {
        asks(config, address);
        let mut connect = proxy(address, "/connect");
        connect.static_headers.insert("Authorization", Secret::new("Bearer static"));
        connect.emulated_headers = ["X-Session".to_owned()].into();
        config.proxies.insert("connect", connect);
        config
            .proxies
            .insert("rpc", Proxy { include_connection_meta: true, ..proxy(address, "/rpc") });
    });
    // All at once: commands after the connect wait for it.
    let (mut client, connected) = client(
        &cluster,
        &[
            json!({"id": 1, "connect": {"data": {"a": 1}, "name": "js", "headers": {"X-Session": "emulated"}}}),
            json!({"id": 2, "rpc": {"method": "sum", "data": [1, 2]}}),
            json!({"id": 3, "rpc": {"method": "other", "data": []}}),
            json!({"id": 4, "presence": {"channel": "room:1"}}),
        ],
    );
    let result = &connected["connect"];
    assert_eq!(result["data"]["client"], result["client"], "{connected}");
    assert_eq!(result["subs"]["room:1"]["data"], json!([1]));
    assert!(result["subs"]["news"].is_object() && result.get("expires").is_none());
    let mut replies: Vec<Value> = (0..3).filter_map(|_| client.next()).collect();
    replies.sort_by_key(|reply| reply["id"].as_u64());
    assert_eq!(replies[0]["rpc"]["data"], 3);
    assert_eq!(replies[1]["error"]["code"], 1000);
    let present = replies[2]["presence"]["presence"].as_object().unwrap();
    let info = present.values().next().unwrap();
    assert_eq!((&info["user"], &info["conn_info"]), (&json!("ada"), &json!({"n": 1})), "{info}");
    assert_eq!(info["chan_info"], json!({"c": 1}));
    // The rest of the server knows the client as that user.
    let ended = cluster.post("/api/disconnect", r#"{"user":"ada"}"#);
    assert!(ended.contains("result"), "{ended}");
    assert_eq!(client.next().unwrap()["push"]["disconnect"]["code"], 3503);
}

#[test]
fn a_client_that_the_backend_refuses_gets_its_answer() {
    let address = backend(|asked| {
        ok(&match asked.body["name"].as_str() {
            Some("error") => json!({"error": {"code": 1001, "message": "who?", "temporary": true}}),
            Some("disconnect") => json!({"disconnect": {"code": 4501, "reason": "unauthorized"}}),
            Some("nothing") => json!({}),
            Some("unknown") => json!({"result": {"user": "a", "channels": ["nowhere:1"]}}),
            Some("past") => json!({"result": {"user": "a", "expire_at": 1}}),
            Some("blocked") => json!({"result": {"user": "blocked"}}),
            _ => json!({"result": {"user": 7}}),
        })
    });
    let cluster = Cluster::start_with(1, |config| {
        asks(config, address);
        config.channel.any_namespace = false;
    });
    let said = |name: &str| json!({"id": 1, "connect": {"name": name}});
    for (name, code) in [("error", 1001), ("unknown", 102), ("past", 110), ("wrong type", 100)] {
        let (_, reply) = client(&cluster, &[said(name)]);
        assert_eq!(reply["error"]["code"], code, "{name}: {reply}");
    }
    for (name, code) in [("disconnect", 4501), ("nothing", 3507)] {
        let (_, push) = client(&cluster, &[said(name)]);
        assert_eq!(push["push"]["disconnect"]["code"], code, "{name}: {push}");
    }
    // A backend cannot let in a user whom an operator has blocked.
    cluster.state.revocations.add(Revocation::block("blocked", 0), 0, 9).unwrap();
    let (_, push) = client(&cluster, &[said("blocked")]);
    assert_eq!(push["push"]["disconnect"]["code"], 3500, "{push}");
    // A unidirectional client has no replies.
    let (_, push) =
        Listener::connect_to(cluster.address, &said("wrong type")["connect"].to_string());
    assert_eq!(push["disconnect"]["code"], 3004, "{push}");
    assert_eq!(count(&cluster, "connect", ProxyMetric::Malformed), 3);
    assert_eq!(count(&cluster, "connect", ProxyMetric::Calls), 8);
}

#[test]
fn a_backend_that_does_not_decide_refuses_and_disturbs_nobody() {
    let never = backend(|_| {
        loop {
            thread::park();
        }
    });
    // Nothing listens there any more.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endless = backend(|_| {
        let mut bytes =
            b"HTTP/1.1 200 x\r\nContent-Length: 100000000\r\n\r\n{\"result\":{\"data\":\"".to_vec();
        bytes.resize(4 << 20, b'x');
        bytes
    });
    let wrong = backend(|asked| match &*asked.path {
        "/status" => response(500, "{\"result\":{}}"),
        "/garbage" => b"\x16\x03\x01 what is this\r\n\r\n".to_vec(),
        _ => response(200, "<html>"),
    });
    let cluster = Cluster::start_with(1, |config| {
        config.client.proxy.rpc = Some("rpc".into());
        let room =
            ChannelOptions { subscribe_proxy: Some("rpc".into()), ..ChannelOptions::default() };
        config.channel.namespaces.insert("room", room);
        config.proxies.insert("rpc", proxy(gone, "/"));
        for (name, address, path) in [
            ("gone", gone, "/"),
            ("never", never, "/"),
            ("endless", endless, "/"),
            ("status", wrong, "/status"),
            ("garbage", wrong, "/garbage"),
            ("html", wrong, "/html"),
        ] {
            // The other cases must not time out, however slow this machine is.
            let timeout_ms = if name == "never" { 200 } else { 60_000 };
            let of = Proxy { timeout_ms, ..proxy(address, path) };
            config.proxies.insert(name, of);
            let room = ChannelOptions {
                subscribe_proxy: Some(name.into()),
                publish_proxy: Some(name.into()),
                ..config.channel.without_namespace.clone()
            };
            config.channel.namespaces.insert(name, room);
        }
    });
    let mut bystander = Listener::connect_to(cluster.address, r#"{"subs":{"news":{}}}"#).0;
    for (name, metric) in [
        ("gone", ProxyMetric::Unreachable),
        ("never", ProxyMetric::TimedOut),
        ("endless", ProxyMetric::Malformed),
        ("status", ProxyMetric::Status),
        ("garbage", ProxyMetric::Malformed),
        ("html", ProxyMetric::Malformed),
    ] {
        let channel = format!("{name}:1");
        let (mut client, _) = client(
            &cluster,
            &[
                connect(),
                json!({"id": 2, "subscribe": {"channel": channel}}),
                json!({"id": 3, "publish": {"channel": channel, "data": 1}}),
                json!({"id": 4, "publish": {"channel": "news", "data": name}}),
            ],
        );
        // Commands that need no backend are executed meanwhile.
        assert_eq!(bystander.next().unwrap()["pub"]["data"], name);
        let mut replies: Vec<Value> = (0..3).filter_map(|_| client.next()).collect();
        replies.sort_by_key(|reply| reply["id"].as_u64());
        for reply in &replies[..2] {
            assert_eq!(reply["error"]["code"], 100, "{name}: {reply}");
            assert_eq!(reply["error"]["temporary"], true, "{name}: {reply}");
        }
        assert_eq!(replies[2]["publish"], json!({}), "{name}");
        assert_eq!(count(&cluster, name, metric), 2, "{name}");
        // A long-poll does not call the backend, so it is rejected.
        let (status, why) =
            cluster.call(&format!("GET /connection/poll?channel={channel}"), "", "");
        assert_eq!(status, 403, "{why}");
    }
}

#[test]
fn a_circuit_opens_and_rules_decide_where_they_may() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let cluster = Cluster::start_with(1, |config| {
        let of =
            Proxy { breaker_failures_max: 1, on_failure: OnFailure::Rules, ..proxy(gone, "/") };
        config.proxies.insert("rules", of);
        for (name, open) in [("open", true), ("closed", false), ("other", true)] {
            let rules = ChannelOptions {
                subscribe_proxy: Some("rules".into()),
                allow_subscribe_for_anonymous: open,
                ..ChannelOptions::default()
            };
            config.channel.namespaces.insert(name, rules);
        }
    });
    let mut last = None;
    for _ in 0..2 {
        let (mut client, _) = client(
            &cluster,
            &[
                connect(),
                json!({"id": 2, "subscribe": {"channel": "open:1"}}),
                json!({"id": 3, "subscribe": {"channel": "closed:1"}}),
            ],
        );
        let mut replies = [client.next().unwrap(), client.next().unwrap()];
        replies.sort_by_key(|reply| reply["id"].as_u64());
        assert!(replies[0]["subscribe"].is_object(), "{replies:?}");
        assert_eq!(replies[1]["error"]["code"], 100, "what is closed stays so: {replies:?}");
        last = Some(client);
    }
    assert!(count(&cluster, "rules", ProxyMetric::BreakerOpen) > 0);

    // A subscription permitted by the rules ends when these rules change, and not when those of another namespace
    // change.
    let mut client = last.unwrap();
    let mut config = cluster.state.newest_for(0).config.clone();
    for (revision, name) in [(2, "other"), (3, "open")] {
        let mut rules = config.channel.namespaces.get(name).unwrap().clone();
        rules.allow_subscribe_for_anonymous = false;
        config.channel.namespaces.insert(name, rules);
        let snapshot = Arc::new(dunlin_config::Snapshot::new(revision, config.clone()).unwrap());
        cluster.state.publish(Arc::new(Settings::new(snapshot)));
        cluster.post("/api/publish", "{\"channel\":\"open:1\",\"data\":1}");
        let push = client.next().unwrap();
        let found = (&push["push"]["pub"]["data"], push["push"]["unsubscribe"].is_object());
        let wanted = if name == "open" { (&Value::Null, true) } else { (&json!(1), false) };
        assert_eq!(found, wanted, "{name}: {push}");
    }
}

/// Holds requests back until a given number has arrived.
#[derive(Default)]
struct Gate {
    waiting: Mutex<usize>,
    changed: Condvar,
}

impl Gate {
    /// Waits for the other requests. Returns the number of this one, from 1.
    fn pass(&self, all: usize) -> usize {
        let mut waiting = self.waiting.lock().unwrap();
        *waiting += 1;
        let number = *waiting;
        self.changed.notify_all();
        let done = self.changed.wait_timeout_while(waiting, TIMEOUT, |waiting| *waiting < all);
        assert!(!done.unwrap().1.timed_out(), "not all have come");
        number
    }
}

#[test]
fn many_wait_for_a_slow_backend_at_once_and_none_is_lost() {
    const CLIENTS: usize = 150;
    let gate = Gate::default();
    // Answers no request before all of them have arrived.
    let address =
        backend(move |_| ok(&json!({"result": {"user": gate.pass(CLIENTS).to_string()}})));
    let cluster = Cluster::start_with(2, |config| {
        asks(config, address);
    });
    let address = cluster.address;
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| thread::spawn(move || Listener::connect_to(address, "{}"))).collect();
    for client in clients {
        let (_listener, connected) = client.join().unwrap();
        assert!(connected["connect"]["client"].is_string(), "{connected}");
    }
}

#[test]
fn a_client_that_leaves_while_it_waits_leaves_nothing() {
    let gate = Arc::new(Gate::default());
    let held = Arc::clone(&gate);
    let address = backend(move |_| {
        held.pass(2);
        ok(&json!({"result": {"user": "ada"}}))
    });
    let cluster = Cluster::start_with(1, |config| asks(config, address));
    let mut stream = TcpStream::connect(cluster.address).unwrap();
    write!(stream, "POST /connection/uni_http_stream HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{{}}").unwrap();
    // Wait until the backend has received the request.
    let asked = gate.waiting.lock().unwrap();
    let (asked, waited) =
        gate.changed.wait_timeout_while(asked, TIMEOUT, |waiting| *waiting < 1).unwrap();
    assert!(!waited.timed_out());
    drop((asked, stream));
    // The second client takes the place of the first, whose response is dropped.
    let (_second, connected) = Listener::connect_to(cluster.address, "{}");
    assert!(connected["connect"]["client"].is_string(), "{connected}");
    let info = cluster.post("/api/info", "{}");
    assert!(info.contains("\"num_clients\":1"), "{info}");
}

#[test]
fn subscriptions_and_publications_are_as_the_backend_says() {
    let address = backend(|asked| {
        let channel = asked.body["channel"].as_str().unwrap_or_default().to_owned();
        match (&*asked.path, &*channel) {
            ("/connect", _) => ok(&json!({"result": {"user": "ada"}})),
            ("/subscribe", "room:open") => {
                assert_eq!(asked.body["data"], json!({"k": 1}));
                ok(&json!({"result": {"info": {"i": 1}, "data": {"d": 1}}}))
            }
            ("/subscribe", "room:bare") => {
                ok(&json!({"result": {"override": {"presence": {"value": false}}}}))
            }
            ("/subscribe", "room:empty") => ok(&json!({})),
            ("/subscribe", _) => ok(&json!({"error": {"code": 403, "message": "no"}})),
            (_, "room:open") if asked.body["data"] == "bad" => {
                ok(&json!({"disconnect": {"code": 4400}}))
            }
            (_, "room:open") if asked.body["data"] == "plain" => ok(&json!({"result": {}})),
            (_, "room:open") => ok(&json!({"result": {
                "data": {"changed": asked.body["data"]}, "tags": {"t": "1"}, "skip_history": true,
            }})),
            _ => ok(&json!({"error": {"code": 103, "message": "no"}})),
        }
    });
    let cluster = Cluster::start_with(1, |config| asks(config, address));
    let subscribe = |id: u32, channel: &str| json!({"id": id, "subscribe": {"channel": channel, "data": {"k": 1}}});
    let publish = |id: u32, channel: &str, data: &str| json!({"id": id, "publish": {"channel": channel, "data": data}});
    let (mut client, _) = client(
        &cluster,
        &[
            connect(),
            subscribe(2, "room:open"),
            subscribe(3, "room:closed"),
            subscribe(4, "room:empty"),
            publish(5, "room:open", "plain"),
            publish(6, "room:open", "changed"),
            publish(7, "room:closed", "x"),
            json!({"id": 8, "history": {"channel": "room:open", "limit": 10}}),
            json!({"id": 9, "presence": {"channel": "room:open"}}),
            subscribe(10, "room:bare"),
        ],
    );
    let mut by_id: BTreeMap<u64, Value> = BTreeMap::new();
    let mut published = Vec::new();
    while by_id.len() < 9 {
        let said = client.next().expect("a reply");
        match said["id"].as_u64() {
            Some(id) => drop(by_id.insert(id, said)),
            None => published.push(said["push"]["pub"].clone()),
        }
    }
    assert_eq!(by_id[&2]["subscribe"]["data"], json!({"d": 1}), "{}", by_id[&2]);
    assert_eq!(by_id[&3]["error"]["code"], 403);
    assert_eq!(by_id[&4]["error"]["code"], 100, "no opinion is no permission");
    assert_eq!(by_id[&7]["error"]["code"], 103);
    // In the order in which the client has published, whatever the order of the backend's responses.
    assert_eq!(published.len(), 2, "{published:?}");
    assert_eq!(published[0]["data"], "plain");
    assert_eq!(published[0]["info"]["chan_info"], json!({"i": 1}));
    assert_eq!(published[1]["data"], json!({"changed": "changed"}));
    assert_eq!(published[1]["tags"], json!({"t": "1"}));
    let history = by_id[&8]["history"]["publications"].as_array().unwrap();
    assert_eq!(history.len(), 1, "one was not to be kept: {}", by_id[&8]);
    let present = &by_id[&9]["presence"]["presence"];
    assert_eq!(present.as_object().unwrap().len(), 1);
    assert!(by_id[&10]["subscribe"].is_object(), "{}", by_id[&10]);
}

/// A backend with one connection works off what one user's connections ask. Before, another user's call waited behind all of it.
#[test]
fn call_of_a_user_does_not_wait_behind_those_of_a_busy_one() {
    type Gate = (Mutex<(Vec<String>, bool)>, Condvar);
    let gate: Arc<Gate> = Arc::default();
    let at = Arc::clone(&gate);
    let address = backend(move |asked| {
        if asked.path == "/connect" {
            return ok(&json!({"result": {"user": asked.body["name"]}}));
        }
        let mut state = at.0.lock().unwrap();
        state.0.push(asked.body["user"].as_str().unwrap().to_owned());
        while !state.1 {
            state = at.1.wait(state).unwrap();
        }
        ok(&json!({"result": {"data": 1}}))
    });
    let cluster = Cluster::start_with(1, |config| {
        asks(config, address);
        config.client.concurrency = 8;
        config.proxies.insert("rpc", Proxy { connections_max: 1, ..proxy(address, "/rpc") });
    });
    let open = |user: &str, calls: u32| {
        let rpc = |id: u32| json!({"id": id, "rpc": {"method": "a", "data": 1}});
        let first = [json!({"id": 1, "connect": {"name": user}})];
        let commands: Vec<Value> = first.into_iter().chain((2..2 + calls).map(rpc)).collect();
        client(&cluster, &commands).0
    };
    let calls = || count(&cluster, "rpc", ProxyMetric::Calls);
    let mut busy: Vec<Listener> = (0..5).map(|_| open("busy", 8)).collect();
    until(|| calls() == 40);
    let mut quiet = open("ann", 1);
    until(|| calls() == 41);
    gate.0.lock().unwrap().1 = true;
    gate.1.notify_all();
    assert_eq!(quiet.next().unwrap()["rpc"]["data"], 1);
    for client in &mut busy {
        (0..8).for_each(|_| assert_eq!(client.next().unwrap()["rpc"]["data"], 1));
    }
    let order = gate.0.lock().unwrap().0.clone();
    let place = order.iter().position(|user| user == "ann");
    assert!(place.is_some_and(|place| place <= 2), "{place:?} of {}", order.len());
}

fn until(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
}

/// Sends a request to a unidirectional transport with these header lines. Returns what the backend has received as `X-Forwarded-For`.
fn forwarded(to: SocketAddr, lines: &str, received: &Mutex<Option<String>>) -> Option<String> {
    let mut stream = TcpStream::connect(to).unwrap();
    let head = "POST /connection/uni_http_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2";
    stream.write_all(format!("{head}\r\n{lines}\r\n{{}}").as_bytes()).unwrap();
    until(|| received.lock().unwrap().is_some());
    received.lock().unwrap().take()
}

/// A proxy in front appends a line of its own behind the one that the client has forged. Only the forged one reached the backend.
#[test]
fn repeated_header_reaches_the_backend_with_all_lines_in_order() {
    let received: Arc<Mutex<Option<String>>> = Arc::default();
    let heard = Arc::clone(&received);
    let address = backend(move |asked| {
        *heard.lock().unwrap() = asked.headers.get("x-forwarded-for").cloned();
        ok(&json!({"result": {"user": "ann"}}))
    });
    let cluster = Cluster::start_with(1, |config| {
        asks(config, address);
        let http_headers = ["X-Forwarded-For".to_owned()].into();
        config.proxies.insert("connect", Proxy { http_headers, ..proxy(address, "/connect") });
    });
    let forged = "X-Forwarded-For: 6.6.6.6\r\n";
    let lines = format!("{forged}x-forwarded-for: 192.0.2.7, 10.0.0.1\r\n");
    let all = forwarded(cluster.address, &lines, &received);
    assert_eq!(all.as_deref(), Some("6.6.6.6 | 192.0.2.7, 10.0.0.1"));

    // The same through a real HAProxy, where there is one.
    let directory = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = directory.path().join("haproxy.cfg");
    let text = format!(
        "defaults\n mode http\n timeout connect 20s\n timeout client 20s\n timeout server 20s\n option forwardfor\n\
         frontend f\n bind 127.0.0.1:{port}\n default_backend b\nbackend b\n server s {}\n",
        cluster.address
    );
    std::fs::write(&config, text).unwrap();
    let started = Command::new("haproxy").arg("-db").arg("-f").arg(&config).spawn();
    let Ok(mut haproxy) = started else { return eprintln!("haproxy is not installed") };
    let front = SocketAddr::from(([127, 0, 0, 1], port));
    until(|| TcpStream::connect(front).is_ok());
    let all = forwarded(front, forged, &received);
    haproxy.kill().unwrap();
    haproxy.wait().unwrap();
    assert_eq!(all.as_deref(), Some("6.6.6.6 | 127.0.0.1"));
}
