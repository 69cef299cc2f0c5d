//! Raw TCP: dialogues, half-close, slow readers, limits, time-outs.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use std::collections::VecDeque;
use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::support::{Peer, TIMEOUT, run, run_with};
use dunlin_net::{
    Admit, CloseReason, ConnId, ConnectConfig, Context, EventLoop, Handler, ListenConfig,
    ListenerId, LoopConfig, Tcp, WriteError,
};

/// Sends back what it gets and reports its events.
struct Echo {
    story: Sender<Event>,
    finish_with_peer: bool,
    admit: Admit,
}

#[derive(Debug, PartialEq)]
enum Event {
    Open,
    Eof,
    Closed(CloseReason),
    Deadline,
}

fn echo() -> (Echo, Receiver<Event>) {
    let (story, events) = channel();
    (Echo { story, finish_with_peer: true, admit: Admit::Accept }, events)
}

impl Handler for Echo {
    type Data = u32;
    type Protocols = Tcp;

    fn on_accept(
        &mut self,
        _: &mut Context<u32>,
        _: ListenerId,
        peer: Option<SocketAddr>,
        _: &mut u32,
    ) -> Admit {
        assert!(peer.unwrap().ip().is_loopback());
        self.admit
    }

    fn on_open(&mut self, cx: &mut Context<u32>, conn: ConnId) {
        *cx.data(conn).unwrap() = 7;
        self.story.send(Event::Open).unwrap();
    }

    fn on_data(&mut self, cx: &mut Context<u32>, conn: ConnId, bytes: &[u8]) {
        match bytes {
            b"close" => cx.close(conn),
            b"abort" => cx.abort(conn),
            b"coalesce" => {
                cx.coalesce_input(conn);
                cx.write(conn, b"coalesced").unwrap();
            }
            b"bye" => {
                cx.write(conn, b"bye").unwrap();
                cx.shutdown_write(conn);
                assert_eq!(cx.write(conn, b"more"), Err(WriteError::OutOfTurn));
            }
            b"remind me" => cx.set_deadline(conn, Some(cx.now_ms() + 5)),
            bytes => cx.write(conn, bytes).unwrap(),
        }
    }

    fn on_eof(&mut self, cx: &mut Context<u32>, conn: ConnId) {
        let _ = self.story.send(Event::Eof);
        if self.finish_with_peer {
            cx.close(conn);
        } else {
            cx.write(conn, b"you have finished, I have not").unwrap();
            cx.close(conn);
        }
    }

    fn on_deadline(&mut self, cx: &mut Context<u32>, conn: ConnId) {
        assert_eq!(cx.deadline(conn), None);
        let _ = self.story.send(Event::Deadline);
        cx.write(conn, b"now").unwrap();
    }

    fn on_close(&mut self, cx: &mut Context<u32>, conn: ConnId, data: u32, why: CloseReason) {
        assert_eq!(data, 7, "the data comes back");
        assert_eq!(cx.data(conn), None);
        assert_eq!(cx.write(conn, b"too late"), Err(WriteError::Stale));
        let _ = self.story.send(Event::Closed(why));
    }
}

#[test]
fn a_dialogue_and_an_orderly_end() {
    let (handler, events) = echo();
    let server = run(handler, ListenConfig::tcp());
    let mut peer = server.connect();
    peer.says("hello").hears("hello").says("again").hears("again");
    peer.finishes().hears_the_end();
    for event in [Event::Open, Event::Eof, Event::Closed(CloseReason::Local)] {
        assert_eq!(events.recv_timeout(TIMEOUT), Ok(event));
    }
    server.until(|_, cx| cx.stats().connections == 0);
}

#[test]
fn a_peer_that_finished_still_hears_the_answer() {
    let (mut handler, _reported) = echo();
    handler.finish_with_peer = false;
    let server = run(handler, ListenConfig::tcp());
    let mut peer = server.connect();
    peer.says("hello").finishes();
    assert_eq!(peer.hears_the_rest(), "helloyou have finished, I have not");
}

#[test]
fn the_server_finishes_first_and_still_hears() {
    let (handler, events) = echo();
    let server = run(handler, ListenConfig::tcp());
    let mut peer = server.connect();
    peer.says("bye").hears("bye").hears_the_end();
    peer.finishes();
    for event in [Event::Open, Event::Eof, Event::Closed(CloseReason::Local)] {
        assert_eq!(events.recv_timeout(TIMEOUT), Ok(event));
    }
}

#[test]
fn close_sends_fin_abort_sends_a_reset() {
    let (handler, events) = echo();
    let server = run(handler, ListenConfig::tcp());

    let mut peer = server.connect();
    peer.says("close").hears_the_end();
    // Closed and not yet finished by us: what we still say meets no reset.
    peer.says("are you there?").finishes();
    assert_eq!(events.recv_timeout(TIMEOUT), Ok(Event::Open));
    assert_eq!(events.recv_timeout(TIMEOUT), Ok(Event::Closed(CloseReason::Local)));
    server.until(|_, cx| cx.stats().connections == 0);

    let mut peer = server.connect();
    peer.says("abort");
    let error = peer.stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(events.recv_timeout(TIMEOUT), Ok(Event::Open));
    assert_eq!(events.recv_timeout(TIMEOUT), Ok(Event::Closed(CloseReason::Aborted)));
}

#[test]
fn a_peer_that_vanishes_is_a_reset() {
    let (handler, events) = echo();
    let server = run(handler, ListenConfig::tcp());
    let peer = server.connect();
    assert_eq!(events.recv_timeout(TIMEOUT), Ok(Event::Open));
    socket2::SockRef::from(&peer.stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(peer);
    let closed = events.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(closed, Event::Closed(CloseReason::Io(std::io::ErrorKind::ConnectionReset)));
}

#[test]
fn accepted_sockets_do_not_delay() {
    let (handler, _reported) = echo();
    let server = run(handler, ListenConfig::tcp());
    server.connect().says("x").hears("x");
    let delays = server.ask(|_, cx| {
        let delays = cx.connections().map(|conn| {
            let socket = cx.descriptor(conn).unwrap();
            !socket2::SockRef::from(&socket).tcp_nodelay().unwrap()
        });
        delays.collect::<Vec<_>>()
    });
    assert!(delays.iter().all(|delays| !delays), "Linux hands TCP_NODELAY down from the listener");
}

/// The kernel took four megabytes for each peer that reads nothing, until it had no memory for anybody's connections.
#[test]
fn a_peer_that_reads_nothing_takes_little_of_the_kernels_memory() {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let server = run(Flood { direct: true, ..Flood::default() }, ListenConfig::tcp());
    socket.set_recv_buffer_size(64 << 10).unwrap();
    socket.connect(&server.addr.into()).unwrap();
    server.until(|flood, _| flood.taken > 0);
    let taken = server.ask(|flood, _| flood.taken);
    assert!(taken < 1 << 20, "{taken}");
}

/// Nothing is read before it is due, then all of it: more than the loop takes from the kernel at once, too.
#[test]
fn coalesced_input_is_read_once_for_all() {
    let (handler, events) = echo();
    let config = LoopConfig { coalesce_ms: 50, events_max: 4, ..LoopConfig::default() };
    let server = run_with(handler, config, ListenConfig::tcp());
    server.ask(|_, cx| cx.set_clock(1_000));
    let mut peers: Vec<Peer> = (0..10).map(|_| server.connect()).collect();
    for peer in &mut peers {
        // Who says it twice is not registered twice.
        peer.says("coalesce").hears("coalesced");
    }
    for round in 1..=3 {
        let read = server.ask(|_, cx| cx.stats().reads);
        for peer in &mut peers {
            peer.says("coalesce");
        }
        // Others are heard meanwhile, and the loop sends.
        server.connect().says("hello").hears("hello");
        server.until(|_, cx| cx.stats().connections == 10);
        let others = server.ask(|_, cx| cx.stats().reads) - read;
        assert!(others <= 3, "{others} reads, and ten peers wait to be read");
        server.ask(move |_, cx| cx.set_clock(1_000 + round * 50));
        for peer in &mut peers {
            peer.hears("coalesced");
        }
    }
    // An end is noticed as late, and input that came before it is not lost.
    peers[0].says("the last").finishes();
    server.ask(|_, cx| cx.set_clock(2_000));
    server.until(|_, cx| {
        cx.set_clock(cx.now_ms() + 50);
        cx.stats().connections == 9
    });
    peers[0].hears("the last").hears_the_end();
    assert!(events.try_iter().any(|event| event == Event::Eof));
    // From now on nobody waits.
    server.ask(|_, cx| cx.set_coalesce_ms(0));
    peers[1].says("at once").hears("at once");
    server.connect().says("coalesce").hears("coalesced").says("at once").hears("at once");
}

#[test]
fn refused_connections_are_closed_unheard() {
    let (mut handler, events) = echo();
    handler.admit = Admit::Refuse;
    let server = run(handler, ListenConfig::tcp());
    let mut refused = server.connect();
    // FIN or, had it said something, a reset: nothing is heard in either case.
    assert!(matches!(refused.stream.read(&mut [0]), Ok(0) | Err(_)));
    assert_eq!(server.ask(|_, cx| cx.stats().refused), 1);
    assert!(events.try_recv().is_err());
}

#[test]
fn a_full_loop_refuses() {
    let (handler, _reported) = echo();
    let config = LoopConfig { connections_max: 1, ..LoopConfig::default() };
    let server = run_with(handler, config, ListenConfig::tcp());
    let mut first = server.connect();
    first.says("x").hears("x");
    let mut second = server.connect();
    assert!(matches!(second.stream.read(&mut [0]), Ok(0) | Err(_)));
    first.says("y").hears("y").finishes().hears_the_end();
    server.until(|_, cx| cx.stats().connections == 0);
    server.connect().says("z").hears("z");
}

#[test]
fn a_storm_of_connects_is_let_in_by_portions() {
    let (handler, _reported) = echo();
    let config = LoopConfig { accept_budget: 3, ..LoopConfig::default() };
    let server = run_with(handler, config, ListenConfig::tcp());
    let (go, wait) = channel::<()>();
    // They gather in the backlog while the loop is held up.
    server.remote.run(move |_, _| _ = wait.recv()).unwrap();
    let mut peers: Vec<Peer> = (0..500).map(|_| server.connect()).collect();
    drop(go);
    for peer in &mut peers {
        peer.says("in").hears("in");
    }
    let (accepted, turns) = server.ask(|_, cx| (cx.stats().accepted, cx.stats().turns));
    assert_eq!(accepted, 500);
    assert!(turns >= 500 / 3, "{turns}");
}

#[test]
fn a_paused_listener_lets_them_wait() {
    let (mut handler, events) = echo();
    handler.admit = Admit::Pause;
    let server = run(handler, ListenConfig::tcp());
    let mut first = server.connect();
    first.says("x").hears("x");
    let mut second = server.connect();
    second.says("y");
    // The loop has turned several times since; nobody else was let in.
    for _ in 0..3 {
        assert_eq!(server.ask(|_, cx| cx.stats().accepted), 1);
    }
    server.ask(|handler, cx| {
        handler.admit = Admit::Accept;
        let listener = cx.listeners().next().unwrap();
        cx.resume_accept(listener);
    });
    second.hears("y");
    assert_eq!(events.try_iter().filter(|event| *event == Event::Open).count(), 2);
}

/// Regression: it was taken for a lack of descriptors, and the oldest connections had to go.
#[test]
fn listener_that_is_shut_down_costs_no_connection() {
    let (handler, _events) = echo();
    let server = run(handler, ListenConfig::tcp());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, shared) = (listener.local_addr().unwrap(), listener.try_clone().unwrap());
    server.ask(move |_, cx| cx.adopt_listener(shared, &ListenConfig::tcp()).unwrap());
    let mut peer = Peer::connect(address);
    peer.says("x").hears("x");
    rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
    TcpStream::connect(address).unwrap_err();
    peer.says("y").hears("y");
    let stats = server.ask(|_, cx| cx.stats());
    assert_eq!((stats.accept_failed, stats.displaced, stats.connections), (0, 0, 1));
    server.connect().says("elsewhere").hears("elsewhere");
}

#[test]
fn a_deadline_passes_once() {
    let (handler, events) = echo();
    let server = run(handler, ListenConfig::tcp());
    server.connect().says("remind me").hears("now");
    assert_eq!(events.iter().take(2).collect::<Vec<_>>(), [Event::Open, Event::Deadline]);
}

#[test]
fn idle_connection_is_closed() {
    let (handler, events) = echo();
    let mut listen = ListenConfig::tcp();
    listen.limits.idle_timeout_ms = NonZeroU64::new(20);
    let server = run(handler, listen);
    server.connect().hears_the_end();
    assert_eq!(events.recv_timeout(TIMEOUT), Ok(Event::Open));
    assert_eq!(events.recv_timeout(TIMEOUT), Ok(Event::Closed(CloseReason::TimedOut)));
    assert_eq!(server.ask(|_, cx| cx.stats().timed_out), 1);
}

/// Writes as much as it may to whoever connects, and counts.
#[derive(Default)]
struct Flood {
    taken: usize,
    refused: usize,
    writable: usize,
    direct: bool,
}

const FLOOD_BYTES: usize = 8 << 20;
const BLOCK: [u8; 10_000] = [b'x'; 10_000];

impl Flood {
    fn pour(&mut self, cx: &mut Context<()>, conn: ConnId) {
        while self.taken < FLOOD_BYTES {
            if self.direct {
                let slices = [IoSlice::new(&BLOCK[..3000]), IoSlice::new(&BLOCK[3000..])];
                let taken = cx.try_write_slices(conn, &slices).unwrap();
                self.taken += taken;
                if taken < BLOCK.len() {
                    assert_eq!(cx.try_write_slices(conn, &slices), Ok(0), "full is full");
                    return;
                }
            } else {
                match cx.write(conn, &BLOCK) {
                    Ok(()) => self.taken += BLOCK.len(),
                    Err(error) => {
                        assert_eq!(error, WriteError::Full);
                        self.refused += 1;
                        assert!(cx.output_bytes(conn) <= 100_000, "bounded");
                        return;
                    }
                }
            }
        }
        cx.close(conn);
    }
}

impl Handler for Flood {
    type Data = ();
    type Protocols = Tcp;

    fn on_open(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.pour(cx, conn);
    }

    fn on_writable(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.writable += 1;
        self.pour(cx, conn);
    }
}

/// Peers on a loop that may buffer little. One takes all of it.
#[derive(Default)]
struct Waiters {
    refused: Option<ConnId>,
    events: usize,
}

impl Handler for Waiters {
    type Data = ();
    type Protocols = Tcp;

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        if bytes == b"fill" {
            while cx.write(conn, &BLOCK).is_ok() {}
            return;
        }
        assert_eq!(cx.write(conn, &BLOCK), Err(WriteError::Full));
        assert_eq!(cx.output_bytes(conn), 0, "it is others who stand in the way");
        self.refused = Some(conn);
    }

    fn on_writable(&mut self, cx: &mut Context<()>, conn: ConnId) {
        if self.refused == Some(conn) {
            self.events += 1;
            cx.write(conn, &BLOCK).unwrap();
            self.refused = None;
        }
    }
}

#[test]
fn refused_writer_is_notified_when_shared_buffer_space_is_free() {
    let config = LoopConfig { buffered_bytes_max: 100_000, ..LoopConfig::default() };
    let mut listen = ListenConfig::tcp();
    listen.limits.output_bytes_max = usize::MAX;
    let server = run_with(Waiters::default(), config, listen);
    let mut greedy = server.connect();
    greedy.says("fill");
    server.until(|_, cx| cx.stats().refused_writes > 0);
    let mut modest = server.connect();
    modest.says("me too");
    server.until(|waiters, _| waiters.refused.is_some());
    // The greedy one reads at last; it ends with the server.
    let reader = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while matches!(greedy.stream.read(&mut buffer), Ok(1..)) {}
    });
    modest.hears(BLOCK);
    assert_eq!(server.ask(|waiters, _| waiters.events), 1);
    drop(server);
    reader.join().unwrap();
}

#[test]
fn a_slow_reader_is_waited_for_and_misses_nothing() {
    for direct in [false, true] {
        let mut listen = ListenConfig::tcp();
        listen.limits.output_bytes_max = 100_000;
        let server = run(Flood { direct, ..Flood::default() }, listen);
        let mut peer = server.connect();
        // It fills up before anybody reads.
        server.until(move |flood, _| if direct { flood.taken > 0 } else { flood.refused > 0 });
        let mut heard = 0;
        let mut buffer = vec![0; 1 << 16];
        loop {
            match peer.stream.read(&mut buffer).unwrap() {
                0 => break,
                bytes => heard += bytes,
            }
        }
        let (taken, writable) = server.ask(|flood, _| (flood.taken, flood.writable));
        assert_eq!(heard, taken);
        assert!(heard >= FLOOD_BYTES && writable > 0);
        server.until(|_, cx| cx.stats().buffered_bytes == 0);
    }
}

/// A client that says its lines and keeps what it hears.
#[derive(Default)]
struct Client {
    events: VecDeque<String>,
    heard: Vec<u8>,
}

impl Handler for Client {
    type Data = u8;
    type Protocols = Tcp;

    fn on_connect(&mut self, cx: &mut Context<u8>, conn: ConnId) {
        self.events.push_back("open".into());
        cx.write(conn, b", world").unwrap();
        cx.shutdown_write(conn);
    }

    fn on_connect_failed(
        &mut self,
        _: &mut Context<u8>,
        _: ConnId,
        data: u8,
        error: &std::io::Error,
    ) {
        self.events.push_back(format!("failed {data}: {:?}", error.kind()));
    }

    fn on_data(&mut self, _: &mut Context<u8>, _: ConnId, bytes: &[u8]) {
        self.heard.extend_from_slice(bytes);
    }

    fn on_close(&mut self, _: &mut Context<u8>, _: ConnId, _: u8, why: CloseReason) {
        self.events.push_back(format!("closed: {why}"));
    }
}

fn turn_until(event_loop: &mut EventLoop<Client>, client: &mut Client, ends: usize) {
    let begun = std::time::Instant::now();
    while client.events.iter().filter(|event| !event.starts_with("open")).count() < ends {
        event_loop.turn(client, Some(TIMEOUT)).unwrap();
        assert!(begun.elapsed() < TIMEOUT);
    }
}

#[test]
fn a_client_connects_writes_early_and_half_closes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut event_loop = EventLoop::new(LoopConfig::default()).unwrap();
    let mut client = Client::default();
    let cx = event_loop.context();
    let from = Some("127.0.0.7:0".parse().unwrap());
    let config = ConnectConfig { from, ..ConnectConfig::default() };
    let conn = cx.connect(listener.local_addr().unwrap(), &config).unwrap();
    cx.write(conn, b"hello").unwrap();

    let server = std::thread::spawn(move || {
        let (stream, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip().to_string(), "127.0.0.7");
        let mut server = Peer::from(stream);
        assert_eq!(server.hears_the_rest(), "hello, world", "FIN behind the last byte");
        server.says("goodbye");
    });
    turn_until(&mut event_loop, &mut client, 1);
    server.join().unwrap();
    assert_eq!(client.heard, b"goodbye");
    assert_eq!(client.events, ["open", "closed: closed here"]);
}

#[test]
fn a_refused_connect_and_one_that_takes_too_long() {
    let mut event_loop = EventLoop::new(LoopConfig::default()).unwrap();
    let mut client = Client::default();

    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let conn = event_loop.context().connect(nobody, &ConnectConfig::default()).unwrap();
    *event_loop.context().data(conn).unwrap() = 1;
    turn_until(&mut event_loop, &mut client, 1);
    assert_eq!(client.events, ["failed 1: ConnectionRefused"]);

    // A listener with a full backlog does not answer.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    full.listen(0).unwrap();
    let addr = full.local_addr().unwrap().as_socket().unwrap();
    let config = ConnectConfig { timeout_ms: NonZeroU64::new(50), ..ConnectConfig::default() };
    let mut filled = client.events.len();
    while filled < 3 {
        for _ in 0..4 {
            event_loop.context().connect(addr, &config).unwrap();
        }
        turn_until(&mut event_loop, &mut client, filled + 1);
        filled += 2;
    }
    assert!(client.events.contains(&"failed 0: TimedOut".to_owned()), "{:?}", client.events);
}

#[test]
fn a_firehose_does_not_starve_the_others() {
    let (handler, _reported) = echo();
    let config = LoopConfig {
        receive_bytes: 4096,
        read_budget_bytes: 8192,
        buffered_bytes_max: 64 << 20,
        ..LoopConfig::default()
    };
    let mut listen = ListenConfig::tcp();
    listen.limits.output_bytes_max = 32 << 20;
    let server = run_with(handler, config, listen);
    let mut firehose = server.connect();
    let mut reader = firehose.stream.try_clone().unwrap();
    let pouring = std::thread::spawn(move || {
        let block = vec![b'f'; 1 << 20];
        for _ in 0..8 {
            firehose.stream.write_all(&block).unwrap();
        }
    });
    let mut modest = server.connect();
    for _ in 0..20 {
        modest.says("me too").hears("me too");
    }
    let mut all = vec![0; 8 << 20];
    reader.read_exact(&mut all).unwrap();
    assert!(all.iter().all(|&byte| byte == b'f'));
    pouring.join().unwrap();
}

#[test]
fn unauthenticated_connections_are_displaced_oldest_first() {
    let (handler, events) = echo();
    let config = LoopConfig { unauthenticated_max: Some(2), ..LoopConfig::default() };
    let server = run_with(handler, config, ListenConfig::tcp());
    let mut known = server.connect();
    known.says("hello").hears("hello");
    server.ask(|_, cx| {
        let conn = cx.connections().next().unwrap();
        cx.mark_authenticated(conn);
        cx.mark_authenticated(conn);
    });
    let mut silent: Vec<Peer> = (0..3).map(|_| server.connect()).collect();
    for event in [Event::Open, Event::Open, Event::Open, Event::Open] {
        assert_eq!(events.recv_timeout(TIMEOUT), Ok(event));
    }
    assert_eq!(events.recv_timeout(TIMEOUT), Ok(Event::Closed(CloseReason::Displaced)));
    let mut newest = silent.pop().unwrap();
    newest.says("I am here").hears("I am here");
    silent[1].says("so am I").hears("so am I");
    known.says("still").hears("still");
    let reset = silent[0].stream.read(&mut [0; 1]);
    assert_eq!(reset.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    let stats = server.ask(|_, cx| cx.stats());
    assert_eq!((stats.displaced, stats.unauthenticated, stats.connections), (1, 2, 3));
}

/// Counts what it is sent; whoever says "vouched" is vouched for.
#[derive(Default)]
struct Count {
    vouched: Option<ConnId>,
    of_vouched: usize,
    of_others: usize,
}

impl Handler for Count {
    type Data = ();
    type Protocols = Tcp;

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        if bytes == b"vouched" {
            cx.mark_authenticated(conn);
            self.vouched = Some(conn);
        } else if self.vouched == Some(conn) {
            self.of_vouched += bytes.len();
        } else {
            self.of_others += bytes.len();
        }
    }
}

#[test]
fn unauthenticated_connections_are_read_last_and_a_little_in_a_turn() {
    const PEERS: usize = 40;
    const EACH: usize = 50_000;
    let config = LoopConfig { unauthenticated_max: Some(1_000), ..LoopConfig::default() };
    let mut event_loop = EventLoop::new(config).unwrap();
    let listener =
        event_loop.context().listen("127.0.0.1:0".parse().unwrap(), &ListenConfig::tcp()).unwrap();
    let address = event_loop.context().listener_addr(listener).unwrap();
    let connect = || TcpStream::connect(address).unwrap();
    let (mut strangers, mut known) = (Vec::new(), connect());
    known.write_all(b"vouched").unwrap();
    strangers.resize_with(PEERS, connect);
    let mut count = Count::default();
    while count.vouched.is_none() || event_loop.context().stats().accepted < 1 + PEERS as u64 {
        event_loop.turn(&mut count, Some(TIMEOUT)).unwrap();
    }

    for stranger in &mut strangers {
        stranger.write_all(&[b'x'; EACH]).unwrap();
    }
    known.write_all(b"hello").unwrap();
    let mut turns = 0;
    while count.of_others < PEERS * EACH {
        let before = count.of_others;
        event_loop.turn(&mut count, Some(TIMEOUT)).unwrap();
        assert_eq!(count.of_vouched, 5, "in the first of these turns");
        assert!(count.of_others - before < 700_000, "{} in one turn", count.of_others - before);
        turns += 1;
    }
    assert!(turns >= 3, "{turns}");
}
