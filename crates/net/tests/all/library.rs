//! What a program of its own finds: names, Unix sockets, TLS listeners, timers with closures, descriptors, broadcasts.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{Peer, TIMEOUT};
use dunlin_net::http::{Request, RequestId, Response};
use dunlin_net::websocket::{Message, NewHandshake, Opcode, WebSocketConfig};
use dunlin_net::{
    ClientTls, CloseReason, ConnId, ConnectConfig, Context, EventLoop, Handler, Http, HttpHandler,
    Interest, ListenConfig, ListenerId, LoopConfig, Ready, ResolveError, ServerConfig, ServerTls,
    Tcp, TimerId, Tls, UpgradeError, WebSocket, WebSocketHandler, WriteError, start,
};
use rcgen::{CertifiedKey, generate_simple_self_signed};

/// Writes down what happens at both ends of one loop.
#[derive(Default)]
struct Both {
    story: Vec<String>,
    /// Says nothing when it has connected.
    quiet: bool,
}

impl Handler for Both {
    type Data = bool;
    type Protocols = (Http, WebSocket);

    fn on_accept(
        &mut self,
        _: &mut Context<bool>,
        _: ListenerId,
        peer: Option<SocketAddr>,
        _: &mut bool,
    ) -> dunlin_net::Admit {
        self.story.push(format!("accept {}", peer.map_or("unix".into(), |p| p.ip().to_string())));
        dunlin_net::Admit::Accept
    }

    fn on_open(&mut self, cx: &mut Context<bool>, conn: ConnId) {
        *cx.data(conn).unwrap() = true;
        self.story.push("open".into());
    }

    fn on_connect(&mut self, cx: &mut Context<bool>, conn: ConnId) {
        self.story.push("connect".into());
        if !self.quiet {
            cx.write(conn, b"hello").unwrap();
        }
    }

    fn on_connect_failed(&mut self, _: &mut Context<bool>, _: ConnId, _: bool, error: &io::Error) {
        let kind = match ResolveError::of(error) {
            Some(error) => format!("{} does not resolve", error.name),
            None => format!("{:?}", error.kind()),
        };
        self.story.push(format!("failed: {kind}"));
    }

    fn on_data(&mut self, cx: &mut Context<bool>, conn: ConnId, bytes: &[u8]) {
        let who = if *cx.data(conn).unwrap() { "server" } else { "client" };
        self.story.push(format!("{who} hears {}", String::from_utf8_lossy(bytes)));
        if who == "server" {
            cx.write(conn, b"goodbye").unwrap();
            cx.close(conn);
        }
    }

    fn on_fd(&mut self, cx: &mut Context<bool>, token: u64, ready: Ready) {
        self.story.push(format!("{token} {} {}", ready.readable, ready.writable));
        if self.story.len() >= 3 {
            cx.stop();
        }
    }

    fn on_close(&mut self, _: &mut Context<bool>, _: ConnId, server: bool, why: CloseReason) {
        let who = if server { "server" } else { "client" };
        self.story.push(format!("{who}: {why}"));
    }
}

impl HttpHandler for Both {
    fn on_request(&mut self, cx: &mut Context<bool>, id: RequestId, request: &Request<'_>) {
        match request.upgrade {
            true => _ = cx.upgrade_websocket(id, request, &WebSocketConfig::default()),
            false => cx.respond(id, &Response::text("over TLS")).unwrap(),
        }
    }
}

impl WebSocketHandler for Both {
    fn on_websocket(&mut self, cx: &mut Context<bool>, conn: ConnId, _: Option<&str>) {
        self.story.push("websocket".into());
        cx.ws_send_text(conn, "hi").unwrap();
    }

    fn on_message(&mut self, cx: &mut Context<bool>, conn: ConnId, message: Message<'_>) {
        let server = *cx.data(conn).unwrap();
        let who = if server { "server" } else { "client" };
        self.story.push(format!("{who}: {}", message.text().unwrap_or_default()));
        if server {
            let reached = cx.ws_broadcast(Opcode::Text, b"to all", |is_server| *is_server);
            self.story.push(format!("broadcast to {reached}"));
        }
    }
}

struct Stage {
    event_loop: EventLoop<Both>,
    both: Both,
}

impl Stage {
    fn new() -> Stage {
        let event_loop = EventLoop::new(LoopConfig::default()).unwrap();
        Stage { event_loop, both: Both::default() }
    }

    fn until(&mut self, line: &str) -> &[String] {
        let begun = Instant::now();
        while !self.both.story.iter().any(|said| said == line) {
            assert!(begun.elapsed() < TIMEOUT, "{:?}", self.both.story);
            self.event_loop.turn(&mut self.both, Some(Duration::from_millis(100))).unwrap();
        }
        &self.both.story
    }
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn certificate() -> (ServerTls, ClientTls) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let server =
        ServerTls::from_pem(cert.pem().as_bytes(), signing_key.serialize_pem().as_bytes()).unwrap();
    let trust = Tls::with_roots(cert.pem().as_bytes()).unwrap();
    (server, trust.client("localhost").unwrap())
}

#[test]
fn accepted_and_connected_are_different_events() {
    let mut stage = Stage::new();
    let cx = stage.event_loop.context();
    let listener = cx.listen(anywhere(), &ListenConfig::tcp()).unwrap();
    let addr = cx.listener_addr(listener).unwrap();
    cx.connect(addr, &ConnectConfig::default()).unwrap();
    let story = stage.until("client: closed here");
    for line in
        ["accept 127.0.0.1", "open", "connect", "server hears hello", "client hears goodbye"]
    {
        assert!(story.iter().any(|said| said == line), "{line}: {story:?}");
    }
}

#[test]
fn a_name_is_resolved_and_a_dead_address_holds_up_nobody() {
    let mut stage = Stage::new();
    let cx = stage.event_loop.context();
    let listener = cx.listen(anywhere(), &ListenConfig::tcp()).unwrap();
    let addr = cx.listener_addr(listener).unwrap();
    let config = ConnectConfig { attempt_delay_ms: 5, ..ConnectConfig::default() };
    cx.connect_name("localhost", addr.port(), &config).unwrap();
    stage.until("client: closed here");
    stage.both.story.clear();

    // One refuses at once, one does not answer at all.
    let refuses = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    silent.bind(&anywhere().into()).unwrap();
    silent.listen(0).unwrap();
    let silent_addr = silent.local_addr().unwrap().as_socket().unwrap();
    let _waiting: Vec<_> = (0..4)
        .filter_map(|_| {
            std::net::TcpStream::connect_timeout(&silent_addr, Duration::from_millis(50)).ok()
        })
        .collect();
    let cx = stage.event_loop.context();
    let conn = cx.connect_any(&[silent_addr, refuses, addr], &config).unwrap();
    assert!(cx.is_open(conn) && cx.peer_addr(conn).is_none(), "it has an id and no socket yet");
    cx.write(conn, b"early, ").unwrap();
    stage.until("server hears early, hello");
    stage.until("client: closed here");
    assert_eq!(stage.event_loop.context().stats().buffered_bytes, 0);
}

#[test]
fn a_name_that_does_not_resolve_and_a_connect_that_is_given_up() {
    let mut stage = Stage::new();
    let cx = stage.event_loop.context();
    cx.connect_name("no-such-name.invalid", 1, &ConnectConfig::default()).unwrap();
    stage.until("failed: no-such-name.invalid does not resolve");
    let cx = stage.event_loop.context();
    let conn = cx.connect_name("another-name.invalid", 1, &ConnectConfig::default()).unwrap();
    cx.close(conn);
    stage.until("failed: ConnectionAborted");
    let cx = stage.event_loop.context();
    cx.connect_any(&[], &ConnectConfig::default()).unwrap();
    stage.until("failed: NotFound");
    assert_eq!(stage.event_loop.context().stats().connections, 0);
}

#[test]
fn a_unix_socket_is_served_and_a_stale_one_replaced() {
    let path = std::env::temp_dir().join(format!("dunlin-net-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    for _ in 0..2 {
        let mut stage = Stage::new();
        let cx = stage.event_loop.context();
        cx.listen_unix(&path, &ListenConfig::tcp()).unwrap();
        let taken = cx.listen_unix(&path, &ListenConfig::tcp()).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        let client = path.clone();
        let said = std::thread::spawn(move || {
            let mut stream = UnixStream::connect(client).unwrap();
            stream.write_all(b"hi").unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            said
        });
        assert!(stage.until("server hears hi").contains(&"accept unix".to_owned()));
        while !said.is_finished() {
            stage.event_loop.turn(&mut stage.both, Some(Duration::from_millis(10))).unwrap();
        }
        // The socket file outlives its loop.
        assert_eq!(said.join().unwrap(), "goodbye");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_listener_speaks_tls_and_one_that_does_not_is_refused_unseen() {
    let mut stage = Stage::new();
    let (server, client) = certificate();
    let cx = stage.event_loop.context();
    let config = ListenConfig { tls: Some(server), ..ListenConfig::tcp() };
    let listener = cx.listen(anywhere(), &config).unwrap();
    let addr = cx.listener_addr(listener).unwrap();
    cx.connect(addr, &ConnectConfig { tls: Some(client), ..ConnectConfig::default() }).unwrap();
    stage.until("client hears goodbye");
    stage.until("server: closed here");
    let opened = stage.both.story.iter().filter(|line| *line == "open").count();

    let mut plain = Peer::connect(addr);
    plain.says("GET / HTTP/1.1\r\n\r\n");
    let begun = Instant::now();
    while stage.event_loop.context().stats().handshakes_failed == 0 {
        assert!(begun.elapsed() < TIMEOUT);
        stage.event_loop.turn(&mut stage.both, Some(Duration::from_millis(10))).unwrap();
    }
    let opens = stage.both.story.iter().filter(|line| *line == "open").count();
    assert_eq!(opens, opened, "the handler never knew of it");
}

#[test]
fn a_websocket_by_its_url_and_a_broadcast() {
    let mut stage = Stage::new();
    let (server, client) = certificate();
    let cx = stage.event_loop.context();
    let config = ListenConfig { tls: Some(server), ..ListenConfig::http() };
    let listener = cx.listen(anywhere(), &config).unwrap();
    let port = cx.listener_addr(listener).unwrap().port();
    let config = ConnectConfig { tls: Some(client), ..ConnectConfig::default() };
    stage.both.quiet = true;
    let cx = stage.event_loop.context();
    let url = format!("wss://localhost:{port}/chat");
    cx.connect_websocket(&url, &NewHandshake::default(), &config).unwrap();
    stage.until("client: to all");
    assert!(stage.both.story.contains(&"broadcast to 1".to_owned()), "{:?}", stage.both.story);
    let refused = stage.event_loop.context().connect_websocket(
        "gopher://a",
        &NewHandshake::default(),
        &config,
    );
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn timers_call_closures() {
    let mut stage = Stage::new();
    let cx = stage.event_loop.context();
    let calls = Arc::new(std::sync::Mutex::new(Vec::new()));
    let [once, often] = [Arc::clone(&calls), Arc::clone(&calls)];
    cx.call_after(2, move |cx| {
        once.lock().unwrap().push("once");
        cx.call_after(1, |cx| cx.stop());
    });
    let mut left = 2;
    let beat = cx.call_every(1, move |_| {
        left -= 1;
        often.lock().unwrap().push(if left < 0 { "too often" } else { "beat" });
    });
    let begun = Instant::now();
    while calls.lock().unwrap().iter().filter(|call| **call == "beat").count() < 2 {
        assert!(begun.elapsed() < TIMEOUT);
        stage.event_loop.turn(&mut stage.both, None).unwrap();
    }
    assert!(stage.event_loop.context().cancel(beat));
    stage.event_loop.run(&mut stage.both).unwrap();
    assert!(calls.lock().unwrap().contains(&"once"));
    assert!(!calls.lock().unwrap().contains(&"too often"));
}

#[test]
fn a_foreign_descriptor_is_watched_as_asked() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut stage = Stage::new();
    let cx = stage.event_loop.context();
    cx.register_fd(ours.as_fd(), 7, (Interest::READABLE | Interest::WRITABLE).level()).unwrap();
    stage.event_loop.turn(&mut stage.both, Some(TIMEOUT)).unwrap();
    stage.event_loop.turn(&mut stage.both, Some(TIMEOUT)).unwrap();
    assert_eq!(stage.both.story, ["7 false true", "7 false true"], "again and again");
    stage.both.story.clear();
    stage.event_loop.context().register_fd(ours.as_fd(), 8, Interest::READABLE).unwrap();
    stage.event_loop.turn(&mut stage.both, Some(Duration::ZERO)).unwrap();
    assert!(stage.both.story.is_empty(), "nobody asks for room any more");
    (&theirs).write_all(b"x").unwrap();
    stage.event_loop.turn(&mut stage.both, Some(TIMEOUT)).unwrap();
    stage.event_loop.turn(&mut stage.both, Some(Duration::ZERO)).unwrap();
    assert_eq!(stage.both.story, ["8 true false"], "one edge");
    drop(theirs);
    stage.event_loop.turn(&mut stage.both, Some(TIMEOUT)).unwrap();
    assert_eq!(stage.both.story.last().unwrap(), "8 true false");
}

struct Worker(usize);

impl Handler for Worker {
    type Data = ();
    type Protocols = Http;
}

impl HttpHandler for Worker {
    fn on_request(&mut self, cx: &mut Context<()>, id: RequestId, _: &Request<'_>) {
        cx.respond_and_close(id, &Response::text(&format!("worker {}", self.0))).unwrap();
    }
}

#[test]
fn protocol_that_the_handler_does_not_speak_is_refused() {
    struct Raw;
    impl Handler for Raw {
        type Data = ();
        type Protocols = Tcp;
    }
    let mut event_loop = EventLoop::<Raw>::new(LoopConfig::default()).unwrap();
    let cx = event_loop.context();
    for refused in [
        cx.listen(anywhere(), &ListenConfig::http()),
        cx.adopt_listener(TcpListener::bind(anywhere()).unwrap(), &ListenConfig::http()),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("`Http`"), "{error}");
    }
    let raw = cx.listen(anywhere(), &ListenConfig::tcp()).unwrap();
    let addr = cx.listener_addr(raw).unwrap();
    let conn = cx.connect(addr, &ConnectConfig::default()).unwrap();
    let refused = cx.websocket_handshake(conn, &NewHandshake::new("/", "x"));
    assert_eq!(refused, Err(WriteError::NotPlugged));

    /// Serves HTTP, and is asked for more.
    struct Plain;
    impl Handler for Plain {
        type Data = ();
        type Protocols = Http;
    }
    impl HttpHandler for Plain {
        fn on_request(&mut self, cx: &mut Context<()>, id: RequestId, request: &Request<'_>) {
            let refused = cx.upgrade_websocket(id, request, &WebSocketConfig::default());
            assert_eq!(refused, Err(UpgradeError::Write(WriteError::NotPlugged)));
            cx.respond_and_close(id, &Response::text("plain")).unwrap();
        }
    }
    let server = start(anywhere(), ServerConfig::new(1, ListenConfig::http()), |_| Plain).unwrap();
    let handshake = "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut peer = Peer::connect(server.addr());
    assert_eq!(peer.says(handshake).hears_response().1, "plain");
}

#[test]
fn workers_are_started_in_one_line() {
    let event_loop = LoopConfig { connections_max: 100, ..LoopConfig::default() };
    let config =
        ServerConfig { event_loop, pin: true, ..ServerConfig::new(2, ListenConfig::http()) };
    let server = start(anywhere(), config, Worker).unwrap();
    let mut heard = std::collections::BTreeSet::new();
    let begun = Instant::now();
    while heard.len() < 2 {
        assert!(begun.elapsed() < TIMEOUT, "the kernel spreads connections: {heard:?}");
        let mut peer = Peer::connect(server.addr());
        heard.insert(peer.says("GET / HTTP/1.1\r\nHost: x\r\n\r\n").hears_response().1);
    }
    server.stop();
    server.wait().unwrap();
}

#[test]
fn a_server_that_is_dropped_has_ended() {
    let server = start(anywhere(), ServerConfig::new(2, ListenConfig::http()), Worker).unwrap();
    let (addr, remote) = (server.addr(), server.remotes()[0].clone());
    drop(server);
    assert!(remote.run(|_, _| ()).is_err(), "its loops are gone");
    TcpListener::bind(addr).expect("and so are its listeners");
}

/// A timer once counted from the last turn: one set after a long start-up fired at once.
#[test]
fn timer_set_between_turns_counts_from_when_it_is_set() {
    struct Timers(Option<Instant>);
    impl Handler for Timers {
        type Data = ();
        type Protocols = Tcp;

        fn on_timer(&mut self, cx: &mut Context<()>, _: TimerId, _: u64) {
            self.0 = Some(Instant::now());
            cx.stop();
        }
    }
    let mut event_loop = EventLoop::<Timers>::new(LoopConfig::default()).unwrap();
    let cx = event_loop.context();
    std::thread::sleep(Duration::from_millis(60));
    let set = Instant::now();
    cx.run_after(40, 0);
    let mut timers = Timers(None);
    event_loop.run(&mut timers).unwrap();
    let waited = timers.0.unwrap() - set;
    assert!(waited >= Duration::from_millis(39), "{waited:?}");
}
