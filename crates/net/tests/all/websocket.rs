//! WebSocket between two ends of one loop, and against scripted peers.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use std::num::NonZeroU64;

use crate::support::{Running, TIMEOUT, run};
use dunlin_net::http::{Request, RequestId, Response};
use dunlin_net::websocket::{
    ClientHandshakeError, DeflateConfig, HandshakeError, Message, NewHandshake, Opcode,
    ProtocolError, WebSocketConfig, close_code,
};
use dunlin_net::{
    CloseReason, ConnId, ConnectConfig, Context, EventLoop, Handler, Http, HttpHandler,
    ListenConfig, LoopConfig, UpgradeError, WebSocket, WebSocketHandler, WriteError,
};

/// Serves an echo, asks it, and writes down what happens at both ends.
#[derive(Default)]
struct Both {
    config: WebSocketConfig<'static>,
    story: Vec<String>,
    /// What the client says, one at a time.
    lines: Vec<Vec<u8>>,
    closed: usize,
}

/// True at the client's end.
#[derive(Default)]
struct IsClient(bool);

impl Both {
    fn record(&mut self, cx: &mut Context<IsClient>, conn: ConnId, what: &str) {
        let who = if cx.data(conn).is_some_and(|data| data.0) { "client" } else { "server" };
        self.story.push(format!("{who}: {what}"));
    }

    fn say_next(&mut self, cx: &mut Context<IsClient>, conn: ConnId) {
        match self.lines.pop() {
            Some(line) => cx.ws_send(conn, Opcode::Binary, &line).unwrap(),
            None => cx.ws_ping(conn, b"still there?").unwrap(),
        }
    }
}

impl Handler for Both {
    type Data = IsClient;
    type Protocols = (Http, WebSocket);

    fn on_close(&mut self, _: &mut Context<IsClient>, _: ConnId, data: IsClient, why: CloseReason) {
        let who = if data.0 { "client" } else { "server" };
        self.story.push(format!("{who}: {why}"));
        self.closed += 1;
    }
}

impl HttpHandler for Both {
    fn on_request(&mut self, cx: &mut Context<IsClient>, id: RequestId, request: &Request<'_>) {
        match cx.upgrade_websocket(id, request, &self.config) {
            Ok(protocol) => self.story.push(format!("server: upgraded, {protocol:?}")),
            Err(UpgradeError::Handshake(error)) => self.story.push(format!("server: {error}")),
            Err(UpgradeError::Write(error)) => panic!("{error}"),
        }
    }
}

impl WebSocketHandler for Both {
    fn on_websocket(&mut self, cx: &mut Context<IsClient>, conn: ConnId, protocol: Option<&str>) {
        *cx.data(conn).unwrap() = IsClient(true);
        self.record(cx, conn, &format!("open, {protocol:?}"));
        self.say_next(cx, conn);
    }

    fn on_message(&mut self, cx: &mut Context<IsClient>, conn: ConnId, message: Message<'_>) {
        let bytes = message.payload.len();
        let shown = message.text().map_or(format!("{bytes} bytes"), str::to_owned);
        self.record(cx, conn, &shown);
        if cx.data(conn).unwrap().0 {
            self.say_next(cx, conn);
        } else if message.payload == b"close" {
            cx.ws_close(conn, 4000, "as you wish").unwrap();
            assert_eq!(cx.ws_send(conn, Opcode::Text, b"more"), Err(WriteError::OutOfTurn));
        } else {
            cx.ws_send(conn, message.opcode, message.payload).unwrap();
        }
    }

    fn on_pong(&mut self, cx: &mut Context<IsClient>, conn: ConnId, payload: &[u8]) {
        self.record(cx, conn, &format!("pong {}", String::from_utf8_lossy(payload)));
        cx.ws_close(conn, close_code::NORMAL, "done").unwrap();
    }

    fn on_close_frame(
        &mut self,
        cx: &mut Context<IsClient>,
        conn: ConnId,
        code: u16,
        reason: &str,
    ) {
        self.record(cx, conn, &format!("close frame {code} {reason:?}"));
        cx.answer_close_frame(conn, code);
    }

    fn on_websocket_error(
        &mut self,
        cx: &mut Context<IsClient>,
        conn: ConnId,
        error: &ProtocolError,
    ) {
        self.record(cx, conn, &format!("{error:?}"));
        cx.answer_websocket_error(conn, error);
    }
}

/// Both ends on one loop, until both have closed.
fn converse(mut both: Both, handshake: &NewHandshake<'_>) -> Vec<String> {
    let mut event_loop = EventLoop::new(LoopConfig::default()).unwrap();
    let cx = event_loop.context();
    let listener = cx.listen("127.0.0.1:0".parse().unwrap(), &ListenConfig::http()).unwrap();
    let addr = cx.listener_addr(listener).unwrap();
    let conn = cx.connect(addr, &ConnectConfig::default()).unwrap();
    cx.websocket_handshake(conn, handshake).unwrap();
    let begun = std::time::Instant::now();
    while both.closed < 2 {
        event_loop.turn(&mut both, Some(TIMEOUT)).unwrap();
        assert!(begun.elapsed() < TIMEOUT, "{:?}", both.story);
    }
    assert_eq!(event_loop.context().stats().buffered_bytes, 0);
    both.story
}

#[test]
fn a_conversation_from_handshake_to_close() {
    let config = WebSocketConfig { protocols: &["one", "two"], ..WebSocketConfig::default() };
    let lines = vec![vec![7; 60_000], b"x".to_vec(), Vec::new()];
    let both = Both { config, lines, ..Both::default() };
    let protocols = &["three", "two", "one"];
    let story = converse(both, &NewHandshake { protocols, ..NewHandshake::new("/", "x") });
    assert_eq!(
        story,
        [
            "server: upgraded, Some(\"two\")",
            "client: open, Some(\"two\")",
            "server: 0 bytes",
            "client: 0 bytes",
            "server: 1 bytes",
            "client: 1 bytes",
            "server: 60000 bytes",
            "client: 60000 bytes",
            "client: pong still there?",
            "server: close frame 1000 \"done\"",
            "server: closed by the peer",
            "client: close frame 1000 \"\"",
            "client: closed here",
        ]
    );
}

#[test]
fn compression_with_and_without_context_takeover() {
    for takeover in [false, true] {
        for window_bits in [9, 15] {
            let deflate = DeflateConfig {
                server_context_takeover: takeover,
                client_context_takeover: takeover,
                server_max_window_bits: window_bits,
                client_max_window_bits: window_bits,
            };
            let config = WebSocketConfig { deflate: Some(deflate), ..WebSocketConfig::default() };
            let text = b"flocks of tens of thousands which turn as one. ".repeat(1000);
            let lines = vec![text[..2000].to_vec(), text.clone(), b"short".to_vec(), text];
            let both = Both { config, lines, ..Both::default() };
            let deflate = Some(deflate);
            let story = converse(both, &NewHandshake { deflate, ..NewHandshake::new("/", "x") });
            let echoed: Vec<&String> =
                story.iter().filter(|line| line.ends_with("bytes")).collect();
            assert_eq!(echoed.len(), 8, "{story:?}");
            assert!(echoed[0].ends_with("47000 bytes") && echoed[7].ends_with("2000 bytes"));
        }
    }
}

#[test]
fn the_server_may_close_first() {
    let both = Both { lines: vec![b"close".to_vec()], ..Both::default() };
    let story = converse(both, &NewHandshake::new("/", "x"));
    assert_eq!(
        story[2..],
        [
            "server: 5 bytes",
            "client: close frame 4000 \"as you wish\"",
            "client: closed by the peer",
            "server: close frame 4000 \"\"",
            "server: closed here",
        ]
    );
}

#[test]
fn a_server_that_speaks_no_websocket_is_reported_apart() {
    struct Plain;
    impl Handler for Plain {
        type Data = ();
        type Protocols = Http;
    }
    impl HttpHandler for Plain {
        fn on_request(&mut self, cx: &mut Context<()>, id: RequestId, _: &Request<'_>) {
            cx.respond(id, &Response::new(404)).unwrap();
        }
    }
    let plain = run(Plain, ListenConfig::http());
    let mut event_loop = EventLoop::new(LoopConfig::default()).unwrap();
    let cx = event_loop.context();
    let conn = cx.connect(plain.addr, &ConnectConfig::default()).unwrap();
    cx.websocket_handshake(conn, &NewHandshake::new("/", "x")).unwrap();
    let mut both = Both::default();
    while both.closed < 1 {
        event_loop.turn(&mut both, Some(TIMEOUT)).unwrap();
    }
    let error = ProtocolError::Handshake(ClientHandshakeError::Status(404));
    assert_eq!(
        both.story,
        [format!("server: {error:?}"), "server: protocol violated by the peer".to_owned()]
    );
}

const HANDSHAKE: &str = "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const ACCEPTED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

fn server() -> Running<Both> {
    run(Both::default(), ListenConfig::http())
}

/// A client's frame with a mask of zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first, 0x80 | payload.len() as u8, 0, 0, 0, 0];
    frame.extend_from_slice(payload);
    frame
}

#[test]
fn frames_may_come_with_the_handshake_and_in_any_pieces() {
    let server = server();
    let mut bytes = HANDSHAKE.as_bytes().to_vec();
    bytes.extend(frame(0x81, b"whole"));
    bytes.extend(frame(0x01, b"in "));
    bytes.extend(frame(0x89, b"ping"));
    bytes.extend(frame(0x80, b"pieces"));
    for size in [1, 2, 3, 7, 50, bytes.len()] {
        let mut peer = server.connect();
        for piece in bytes.chunks(size) {
            peer.says(piece);
        }
        peer.hears(ACCEPTED).hears(b"\x81\x05whole\x8a\x04ping\x81\x09in pieces");
        peer.says(frame(0x88, b"\x03\xe8bye")).hears(b"\x88\x02\x03\xe8").hears_the_end();
    }
    server.until(|_, cx| cx.stats().buffered_bytes == 0);
}

#[test]
fn violations_are_answered_with_their_code() {
    let server = server();
    for (bytes, code) in [
        (b"\x81\x05naked".to_vec(), close_code::PROTOCOL),
        (frame(0xc1, b"rsv1"), close_code::PROTOCOL),
        (frame(0x81, b"\xff"), close_code::INVALID_DATA),
        (b"\x82\xff\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00".to_vec(), close_code::TOO_BIG),
    ] {
        let mut peer = server.connect();
        peer.says(HANDSHAKE).hears(ACCEPTED).says(&bytes).says(frame(0x81, b"unheard"));
        let mut heard = [0; 4];
        std::io::Read::read_exact(&mut peer.stream, &mut heard).unwrap();
        assert_eq!(heard[0], 0x88);
        assert_eq!(u16::from_be_bytes([heard[2], heard[3]]), code);
    }
}

#[test]
fn a_bad_handshake_is_answered_with_what_to_mend() {
    let server = server();
    for (request, status, error) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 426, HandshakeError::UpgradeMissing),
        (HANDSHAKE.replace("13", "12"), 426, HandshakeError::Version),
        (HANDSHAKE.replace("==", ""), 400, HandshakeError::Key),
        (HANDSHAKE.replace("GET", "PUT"), 405, HandshakeError::Method),
    ] {
        let mut peer = server.connect();
        peer.says(request);
        let (head, body) = peer.hears_response();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        assert_eq!(body, error.message());
        // It is still a connection of HTTP.
        peer.says(HANDSHAKE).hears(ACCEPTED);
    }
}

#[test]
fn an_idle_websocket_costs_its_record_and_nothing_else() {
    let server = server();
    let mut peers: Vec<_> = (0..50).map(|_| server.connect()).collect();
    for peer in &mut peers {
        peer.says(HANDSHAKE).hears(ACCEPTED).says(frame(0x81, b"x")).hears(b"\x81\x01x");
    }
    assert_eq!(server.ask(|_, cx| (cx.stats().connections, cx.buffers_lent())), (50, 0));
}

#[test]
fn a_websocket_that_says_nothing_for_the_idle_time_is_closed() {
    let config =
        WebSocketConfig { idle_timeout_ms: NonZeroU64::new(30), ..WebSocketConfig::default() };
    let server = run(Both { config, ..Both::default() }, ListenConfig::http());
    let mut peer = server.connect();
    peer.says(HANDSHAKE).hears(ACCEPTED).says(frame(0x89, b"")).hears(b"\x8a\x00");
    peer.hears_the_end();
    let story = server.ask(|both, _| both.story.clone());
    assert_eq!(story, ["server: upgraded, None", "server: timed out"]);
}

/// Pauses reading at each message.
#[derive(Default)]
struct OneByOne {
    conn: Option<ConnId>,
    heard: Vec<String>,
}

impl Handler for OneByOne {
    type Data = ();
    type Protocols = (Http, WebSocket);
}

impl HttpHandler for OneByOne {
    fn on_request(&mut self, cx: &mut Context<()>, id: RequestId, request: &Request<'_>) {
        cx.upgrade_websocket(id, request, &WebSocketConfig::default()).unwrap();
    }
}

impl WebSocketHandler for OneByOne {
    fn on_message(&mut self, cx: &mut Context<()>, conn: ConnId, message: Message<'_>) {
        self.heard.push(String::from_utf8_lossy(message.payload).into_owned());
        self.conn = Some(conn);
        cx.pause_read(conn);
    }
}

#[test]
fn messages_received_already_wait_while_reading_is_paused() {
    let server = run(OneByOne::default(), ListenConfig::http());
    let mut peer = server.connect();
    let said: Vec<u8> = [HANDSHAKE.as_bytes().to_vec()]
        .into_iter()
        .chain((0..5).map(|n| frame(0x81, format!("{n}").as_bytes())))
        .flatten()
        .chain(frame(0x81, b"cut")[..7].to_vec())
        .collect();
    peer.says(said).hears(ACCEPTED);
    for count in 1..=5 {
        server.until(move |handler, _| handler.heard.len() == count);
        let more = server.ask(|handler, cx| {
            let before = handler.heard.len();
            cx.resume_read(handler.conn.unwrap());
            before
        });
        assert_eq!(more, count, "nothing is handed out before reading goes on");
    }
    peer.says(&frame(0x81, b"cut")[7..]);
    server.until(|handler, _| handler.heard.len() == 6);
    assert_eq!(server.ask(|handler, _| handler.heard.join(" ")), "0 1 2 3 4 cut");
    server.ask(|handler, cx| cx.resume_read(handler.conn.unwrap()));
    server.until(|_, cx| cx.stats().buffered_bytes == 0);
}
