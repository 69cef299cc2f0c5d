//! A program that serves by this crate, and clients of it over sockets: the example, and one that decides otherwise.

#![allow(missing_docs, clippy::unwrap_used)]

#[allow(dead_code, reason = "the example has a main")]
#[path = "../../examples/rooms.rs"]
mod rooms;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use dunlin_server::{
    Authorizer, Config, Connect, ConnectResult, Decision, DecisionSender, Denial, Handle,
    HttpResponse, OptionsOverride, Publish, PublishResult, Refresh, RefreshResult, Rpc, RpcResult,
    Server, SubRefresh, Subscribe, SubscribeResult, json,
};
use serde_json::Value;

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Serves on free ports until the process ends.
fn serve(change: impl FnOnce(&mut Config), server: fn(Config) -> Server) -> (SocketAddr, Handle) {
    let mut config = Config::development();
    config.server.client_addr = SocketAddr::from(([127, 0, 0, 1], 0));
    config.server.admin_addr = SocketAddr::from(([127, 0, 0, 1], 0));
    config.server.workers = 2;
    change(&mut config);
    let (ready, serving) = mpsc::channel();
    thread::spawn(move || {
        let server = server(config);
        let handle = server.handle();
        server.run(move |of| ready.send((of.client_addr, handle)).unwrap()).unwrap();
    });
    serving.recv_timeout(TIMEOUT).expect("it serves")
}

/// A client in lines of JSON.
struct Client {
    lines: BufReader<TcpStream>,
}

impl Client {
    /// On `path` with a body, and the first it reads.
    fn open(address: SocketAddr, path: &str, body: &Value) -> (Client, Value) {
        let commands = match body {
            Value::Array(commands) => {
                commands.iter().map(Value::to_string).collect::<Vec<_>>().join("\n")
            }
            body => body.to_string(),
        };
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Device: phone\r\nContent-Length: {}\r\n\r\n{commands}",
            commands.len()
        )
        .expect("written");
        let mut client = Client { lines: BufReader::new(stream) };
        let first = client.next();
        (client, first)
    }

    /// A bidirectional one that says this.
    #[expect(clippy::needless_pass_by_value, reason = "callers make it in place")]
    fn say(address: SocketAddr, commands: Value) -> (Client, Value) {
        Client::open(address, "/connection/http_stream", &commands)
    }

    /// The next reply or push.
    fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).expect("a line") > 0, "the stream has ended");
            // Heads, chunk sizes and line ends are between the objects.
            if line.starts_with('{') && line.trim_end() != "{}" {
                return serde_json::from_str(&line).unwrap();
            }
        }
    }

    /// The reply to a command, whichever comes first.
    fn replies(&mut self, of: usize) -> Vec<Value> {
        let mut replies: Vec<Value> = (0..of).map(|_| self.next()).collect();
        replies.sort_by_key(|reply| reply["id"].as_u64());
        replies
    }
}

/// Status and body.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

#[test]
fn the_example_decides_serves_its_route_and_publishes() {
    let (address, _) = serve(|_| {}, rooms::server);
    let (mut ada, connected) = Client::say(
        address,
        json!([
            {"id": 1, "connect": {"token": "key of ada"}},
            {"id": 2, "subscribe": {"channel": "ada's room"}},
            {"id": 3, "subscribe": {"channel": "bob's room"}},
            {"id": 4, "subscribe": {"channel": "anybody"}},
            {"id": 5, "rpc": {"method": "who am I", "data": null}},
            {"id": 6, "rpc": {"method": "another", "data": null}},
        ]),
    );
    assert!(connected["connect"]["subs"]["news"].is_object(), "{connected}");
    let replies = ada.replies(5);
    assert!(replies[0]["subscribe"].is_object(), "{replies:?}");
    assert_eq!(replies[1]["error"]["code"], 103);
    assert!(replies[2]["subscribe"].is_object(), "the rules of development mode let her in");
    assert_eq!(replies[3]["rpc"]["data"], "ada");
    assert_eq!(replies[4]["error"]["code"], 108, "the rules know no procedures");
    assert_eq!(get(address, "/announce/hello"), (200, "published\n".to_owned()));
    assert_eq!(ada.next()["push"]["pub"]["data"], "hello");
    assert_eq!(get(address, "/announce").0, 404);
    let (_, refused) = Client::say(address, json!([{"id": 1, "connect": {"token": "stolen"}}]));
    assert_eq!(refused["push"]["disconnect"]["code"], 4501, "{refused}");
}

/// Answers that are sent when the test says so.
static WAITING: Mutex<Vec<DecisionSender<ConnectResult>>> = Mutex::new(Vec::new());
static REFRESHED: AtomicU32 = AtomicU32::new(0);

/// A runtime that sleeps, and is woken by a descriptor.
fn runtime() -> &'static tokio::runtime::Handle {
    static HANDLE: OnceLock<tokio::runtime::Handle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        handle
    })
}

struct Rules;

impl Authorizer for Rules {
    fn headers(&self) -> Vec<String> {
        vec!["X-Device".into(), "Cookie".into()]
    }

    fn connect(&mut self, ask: &Connect<'_>) -> Decision<ConnectResult> {
        assert!(ask.client.user.is_empty() && ask.client.address.is_some());
        match ask.token {
            "" => Decision::rules(),
            "drop" => ask.later(drop),
            "wait" => ask.later(|answer| WAITING.lock().unwrap().push(answer)),
            "tokio" => ask.later(|answer| {
                let user = ConnectResult::user("of the runtime");
                runtime().spawn(async move { answer.send(Ok(user)) });
            }),
            "no code" => Decision::deny(Denial::error(99, "what is that?")),
            "short" => Decision::grant(ConnectResult::user("short").expire_at(now_s() + 1)),
            user => Decision::grant(
                ConnectResult::user(user)
                    .info(json!({"device": ask.client.header("x-device")}))
                    .data(json!({"cookie": ask.client.emulated_header("Cookie")}))
                    .meta(json!({"session": 7}))
                    .labels([("region", "eu"), ("tier", "pro")])
                    .subscribe_with("inbox", SubscribeResult::default().data(json!("first"))),
            ),
        }
    }

    fn subscribe(&mut self, ask: &Subscribe<'_>) -> Decision<SubscribeResult> {
        match ask.channel {
            "refused" => Decision::deny(Denial::error(403, "not you")),
            "later" => ask.later(|answer| answer.send(Ok(SubscribeResult::default()))),
            "ends" => Decision::grant(SubscribeResult::default().expire_at(now_s() + 1)),
            "seen" => Decision::grant(
                SubscribeResult::default()
                    .info(json!({"in": "seen"}))
                    .overrides(OptionsOverride { presence: Some(true), ..Default::default() }),
            ),
            _ => Decision::rules(),
        }
    }

    fn publish(&mut self, ask: &Publish<'_>) -> Decision<PublishResult> {
        match ask.data {
            b"\"shout\"" => Decision::grant(PublishResult::default().data(json!("SHOUT"))),
            b"\"curse\"" => Decision::deny(Denial::disconnect(4500, "mind your words")),
            _ => Decision::grant(PublishResult::default()),
        }
    }

    fn rpc(&mut self, ask: &Rpc<'_>) -> Decision<RpcResult> {
        let meta = ask.client.meta.map(|meta| serde_json::from_slice::<Value>(meta).unwrap());
        Decision::grant(RpcResult::data(json!({"method": ask.method, "meta": meta})))
    }

    fn refresh(&mut self, _: &Refresh<'_>) -> Decision<RefreshResult> {
        match REFRESHED.fetch_add(1, Ordering::Relaxed) {
            0 => Decision::grant(RefreshResult::until(now_s() + 1)),
            _ => Decision::grant(RefreshResult::expired()),
        }
    }

    fn sub_refresh(&mut self, ask: &SubRefresh<'_>) -> Decision<RefreshResult> {
        assert_eq!(ask.channel, "ends");
        Decision::grant(RefreshResult::expired())
    }
}

fn now_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

fn ruled(config: Config) -> Server {
    let count = Arc::new(AtomicU32::new(0));
    Server::new(config)
        .authorizer(|| Rules)
        .route("/later/{word}", move |request| {
            let word = request.param("word").to_owned();
            let nth = count.fetch_add(1, Ordering::Relaxed);
            request.later(move |responder| {
                thread::spawn(move || match &*word {
                    "never" => drop(responder),
                    word => responder.send(HttpResponse::text(format!("{word} {nth}"))),
                });
            })
        })
        .route("/split", |_| HttpResponse::new(204).header("X-One", "1\r\nX-Two: 2").into())
        .route("/json", |_| HttpResponse::json(json!({"a": [1]})).header("X-One", "1").into())
}

fn served() -> (SocketAddr, Handle) {
    serve(|config| config.client.anonymous = false, ruled)
}

#[test]
fn a_client_is_what_the_program_says_and_is_asked_about_by_its_headers() {
    let (address, handle) = served();
    let (mut client, connected) = Client::say(
        address,
        json!([
            {"id": 1, "connect": {"token": "ada", "headers": {"cookie": "a=1"}}},
            {"id": 2, "rpc": {"method": "m", "data": 1}},
            {"id": 3, "subscribe": {"channel": "seen"}},
            {"id": 4, "presence": {"channel": "seen"}},
            {"id": 5, "subscribe": {"channel": "later"}},
            {"id": 6, "publish": {"channel": "later", "data": "shout"}},
        ]),
    );
    let result = &connected["connect"];
    assert_eq!(result["data"], json!({"cookie": "a=1"}), "{connected}");
    assert_eq!(result["subs"]["inbox"]["data"], "first");
    let mut replies = Vec::new();
    let mut pushed = Value::Null;
    while replies.len() < 5 || pushed.is_null() {
        match client.next() {
            push if push["push"]["pub"].is_object() => pushed = push,
            reply => replies.push(reply),
        }
    }
    replies.sort_by_key(|reply| reply["id"].as_u64());
    assert_eq!(replies[0]["rpc"]["data"], json!({"method": "m", "meta": {"session": 7}}));
    let present = replies[2]["presence"]["presence"].as_object().unwrap();
    let info = present.values().next().unwrap();
    assert_eq!((&info["user"], &info["conn_info"]), (&json!("ada"), &json!({"device": "phone"})));
    assert_eq!(info["chan_info"], json!({"in": "seen"}), "{info}");
    assert!(replies[3]["subscribe"].is_object() && replies[4]["publish"].is_object());
    assert_eq!(pushed["push"]["pub"]["data"], "SHOUT");

    // The rest of the server knows it by that user, and the program's threads reach it.
    let (respond, response) = mpsc::channel();
    let then = move |body: &[u8]| respond.send(String::from_utf8(body.to_vec()).unwrap()).unwrap();
    let labels = json!({"key": "tier", "cmp": "eq", "val": "pro"});
    let all = json!({"all_users": true, "label_filter": labels});
    handle.call("disconnect", &all, then).unwrap();
    assert_eq!(response.recv_timeout(TIMEOUT).unwrap(), r#"{"result":{}}"#);
    assert_eq!(client.next()["push"]["disconnect"]["code"], 3503);
    assert!(handle.call("no such", &json!({}), |_| {}).is_err());
}

#[test]
fn refused_dropped_or_malformed_answer_admits_nobody() {
    let (address, _) = served();
    let connect = |token: &str| json!([{"id": 1, "connect": {"token": token}}]);
    for (token, code) in [("drop", 100), ("no code", 100)] {
        let (_, reply) = Client::say(address, connect(token));
        assert_eq!(reply["error"]["code"], code, "{token}: {reply}");
    }
    // Left to the rules, which let nobody in without a token.
    let (_, reply) = Client::say(address, connect(""));
    assert_eq!(reply["push"]["disconnect"]["code"], 3507, "{reply}");
    let (mut client, _) = Client::say(
        address,
        json!([
            {"id": 1, "connect": {"token": "eve"}},
            {"id": 2, "subscribe": {"channel": "refused"}},
            {"id": 3, "subscribe": {"channel": "later"}},
        ]),
    );
    let replies = client.replies(2);
    assert_eq!(replies[0]["error"], json!({"code": 403, "message": "not you"}));
    assert!(replies[1]["subscribe"].is_object());
    let curses = json!([
        {"id": 1, "connect": {"token": "eve"}},
        {"id": 2, "publish": {"channel": "room", "data": "curse"}},
    ]);
    let (mut client, mut said) = Client::say(address, curses);
    if said["connect"].is_object() {
        said = client.next();
    }
    assert_eq!(said["push"]["disconnect"]["code"], 4500, "{said}");
}

#[test]
fn a_transport_that_cannot_wait_is_refused_what_is_decided_later() {
    let (address, _) = served();
    let subs =
        json!({"token": "uni", "subs": {"refused": {}, "later": {}, "seen": {}, "free": {}}});
    let (_, push) = Client::open(address, "/connection/uni_http_stream", &subs);
    let mut made = push["connect"]["subs"].as_object().unwrap().keys().collect::<Vec<_>>();
    made.sort();
    assert_eq!(made, ["free", "inbox", "seen"], "{push}");
    // A long-poll's connect is decided by the rules.
    let (address, _) = serve(|_| {}, ruled);
    assert_eq!(get(address, "/connection/poll?channel=refused&timeout=0").0, 403);
    assert_eq!(get(address, "/connection/poll?channel=later&timeout=0").0, 403);
    assert_eq!(get(address, "/connection/poll?channel=seen&timeout=0").0, 200);
    assert_eq!(get(address, "/connection/poll?channel=free&timeout=0").0, 200);
}

#[test]
fn a_client_that_leaves_before_the_answer_disturbs_nobody() {
    let (address, _) = served();
    let commands = r#"{"id":1,"connect":{"token":"wait"}}"#;
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST /connection/http_stream HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{commands}",
        commands.len()
    )
    .unwrap();
    let mut head = [0; 1];
    stream.read_exact(&mut head).unwrap();
    let answer = loop {
        if let Some(answer) = WAITING.lock().unwrap().pop() {
            break answer;
        }
        thread::yield_now();
    };
    drop(stream);
    answer.send(Ok(ConnectResult::user("gone")));
    let (_, connected) = Client::say(address, json!([{"id": 1, "connect": {"token": "there"}}]));
    assert!(connected["connect"].is_object(), "{connected}");
}

#[test]
fn a_runtime_of_the_program_is_woken_from_a_worker() {
    runtime();
    let (address, _) = served();
    for _ in 0..8 {
        let (_, connected) =
            Client::say(address, json!([{"id": 1, "connect": {"token": "tokio"}}]));
        assert!(connected["connect"].is_object(), "{connected}");
    }
}

#[test]
fn grant_with_an_expiry_is_renewed_at_its_end() {
    let (address, _) = served();
    let (mut client, _) = Client::say(
        address,
        json!([
            {"id": 1, "connect": {"token": "stays"}},
            {"id": 2, "subscribe": {"channel": "ends"}},
        ]),
    );
    assert!(client.next()["subscribe"].is_object());
    let end = client.next();
    assert_eq!(end["push"]["unsubscribe"]["code"], 2501, "{end}");
    let (mut client, connected) =
        Client::say(address, json!([{"id": 1, "connect": {"token": "short"}}]));
    assert!(connected["connect"]["expires"].is_null(), "{connected}");
    let end = client.next();
    assert_eq!(end["push"]["disconnect"]["code"], 3005, "{end}");
    assert_eq!(REFRESHED.load(Ordering::Relaxed), 2);
}

#[test]
fn a_route_answers_at_once_or_later_and_in_its_own_words() {
    let (address, _) = served();
    assert_eq!(get(address, "/later/word"), (200, "word 0".to_owned()));
    assert_eq!(get(address, "/later/never").0, 500);
    assert_eq!(get(address, "/json"), (200, r#"{"a":[1]}"#.to_owned()));
    assert_eq!(get(address, "/split").0, 500, "a header has no other within it");
    assert_eq!(get(address, "/jso").0, 404);
    assert_eq!(get(address, "/api/publish").0, 405, "the server's own paths go first");
}
