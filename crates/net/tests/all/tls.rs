//! TLS below the protocols, against a server of `rustls` with a blocking socket.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use dunlin_net::{
    CloseReason, ConnId, ConnectConfig, Context, EventLoop, Handler, ListenConfig, LoopConfig,
    ServerTls, Tcp, Tls,
};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

const TIMEOUT: Duration = Duration::from_secs(30);

type Session = StreamOwned<ServerConnection, TcpStream>;

/// A server that has one conversation, and whom to trust to believe it.
fn serve(conversation: impl FnOnce(Session) + Send + 'static) -> (SocketAddr, Tls) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["server.example".to_owned()]).unwrap();
    let tls = Tls::with_roots(cert.pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![cert.der().clone()],
            PrivateKeyDer::Pkcs8(signing_key.serialize_der().into()),
        )
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        conversation(StreamOwned::new(ServerConnection::new(Arc::new(config)).unwrap(), stream));
    });
    (addr, tls)
}

/// Somebody in between who passes everything on in pieces of a few bytes.
fn in_pieces(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(to).unwrap();
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        for (mut from, mut to) in
            [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
        {
            std::thread::spawn(move || {
                let mut bytes = [0; 700];
                while let Ok(read @ 1..) = from.read(&mut bytes) {
                    for piece in bytes[..read].chunks(7) {
                        let _ = to.write_all(piece);
                    }
                }
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    addr
}

/// Sends a block as the socket takes it, and gathers what comes.
#[derive(Default)]
struct Sender {
    block: Vec<u8>,
    sent: usize,
    /// Notified when the connection takes no more for the first time.
    stalled: Option<mpsc::Sender<()>>,
    heard: Vec<u8>,
    end: Option<String>,
}

const SLICE_BYTES: usize = 25_000;

impl Sender {
    fn send(&mut self, cx: &mut Context<()>, conn: ConnId) {
        while self.sent < self.block.len() {
            let pieces = self.block[self.sent..].chunks(SLICE_BYTES).take(16);
            let slices: Vec<IoSlice<'_>> = pieces.map(IoSlice::new).collect();
            match cx.try_write_slices(conn, &slices) {
                Ok(0) | Err(_) => {
                    if let Some(stalled) = self.stalled.take() {
                        stalled.send(()).unwrap();
                    }
                    return;
                }
                Ok(taken) => self.sent += taken,
            }
        }
    }
}

impl Handler for Sender {
    type Data = ();
    type Protocols = Tcp;

    fn on_connect(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.send(cx, conn);
    }

    fn on_writable(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.send(cx, conn);
    }

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        self.heard.extend_from_slice(bytes);
        if !self.block.is_empty() && self.heard.len() >= self.block.len() + 5 {
            cx.close(conn);
        }
    }

    fn on_close(&mut self, cx: &mut Context<()>, _: ConnId, (): (), reason: CloseReason) {
        self.end = Some(reason.to_string());
        cx.stop();
    }

    fn on_connect_failed(&mut self, cx: &mut Context<()>, _: ConnId, (): (), error: &io::Error) {
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        self.end = Some(error.to_string());
        cx.stop();
    }
}

fn play(
    sender: Sender,
    addr: SocketAddr,
    config: &ConnectConfig,
    begin: impl FnOnce(&mut Context<()>, ConnId),
) -> Sender {
    play_on(LoopConfig::default(), sender, addr, config, begin)
}

fn play_on(
    on: LoopConfig,
    sender: Sender,
    addr: SocketAddr,
    config: &ConnectConfig,
    begin: impl FnOnce(&mut Context<()>, ConnId),
) -> Sender {
    let mut event_loop = EventLoop::new(on).unwrap();
    let conn = event_loop.context().connect(addr, config).unwrap();
    begin(event_loop.context(), conn);
    let mut sender = sender;
    let began = Instant::now();
    while sender.end.is_none() {
        assert!(began.elapsed() < TIMEOUT, "it did not end; {} bytes came", sender.heard.len());
        event_loop.turn(&mut sender, Some(Duration::from_millis(100))).unwrap();
    }
    // What `close` still sends.
    for _ in 0..3 {
        event_loop.turn(&mut sender, Some(Duration::from_millis(1))).unwrap();
    }
    sender
}

fn named(tls: &Tls, config: ConnectConfig) -> ConnectConfig {
    ConnectConfig { tls: Some(tls.client("server.example").unwrap()), ..config }
}

#[test]
fn megabytes_go_there_and_back() {
    for cut in [false, true] {
        let length = if cut { 100_000 } else { 8 << 20 };
        let (ended, goodbye) = mpsc::channel();
        let (addr, tls) = serve(move |mut session| {
            let mut bytes = vec![0; 5 + length];
            session.read_exact(&mut bytes).unwrap();
            session.write_all(&bytes).unwrap();
            session.flush().unwrap();
            // The client's word that it closes, not a cut.
            ended.send(session.read(&mut [0]).unwrap()).unwrap();
        });
        let addr = if cut { in_pieces(addr) } else { addr };
        let block: Vec<u8> = (0..length).map(|at| (at / 3) as u8).collect();
        let sender = Sender { block: block.clone(), ..Sender::default() };
        // Written before the handshake: it leaves first.
        let sender = play(sender, addr, &named(&tls, ConnectConfig::default()), |cx, conn| {
            cx.write(conn, b"first").unwrap();
        });
        assert!(sender.heard == [b"first", &block[..]].concat());
        assert_eq!(sender.end.unwrap(), "closed here");
        assert_eq!(goodbye.recv_timeout(TIMEOUT), Ok(0));
    }
}

/// The bound of the loop is met in the middle of what is offered: what was taken before it is not offered again.
#[test]
fn a_loop_that_may_buffer_little_sends_nothing_twice() {
    const LENGTH: usize = 8 << 20;
    let (stalled, is_full) = mpsc::channel();
    let (addr, tls) = serve(move |mut session| {
        // Reads when nothing more fits.
        session.read_exact(&mut [0; 5]).unwrap();
        is_full.recv_timeout(TIMEOUT).unwrap();
        let mut bytes = vec![0; LENGTH];
        session.read_exact(&mut bytes).unwrap();
        session.write_all(b"first").unwrap();
        session.write_all(&bytes).unwrap();
        session.flush().unwrap();
        let _ = session.read(&mut [0]);
    });
    let block: Vec<u8> = (0..LENGTH).map(|at| (at / 1000) as u8).collect();
    let sender = Sender { block: block.clone(), stalled: Some(stalled), ..Sender::default() };
    let little = LoopConfig { buffered_bytes_max: 3 * SLICE_BYTES, ..LoopConfig::default() };
    let sender =
        play_on(little, sender, addr, &named(&tls, ConnectConfig::default()), |cx, conn| {
            cx.write(conn, b"first").unwrap();
        });
    assert!(sender.heard == [b"first", &block[..]].concat());
}

#[test]
fn data_before_close_notify_is_delivered() {
    let (addr, tls) = serve(|mut session| {
        let mut heard = Vec::new();
        while !heard.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            session.read_exact(&mut byte).unwrap();
            heard.push(byte[0]);
        }
        assert!(heard.starts_with(b"GET /a HTTP/1.1\r\nHost: server.example\r\n"));
        session.write_all(b"HTTP/1.1 200 OK\r\n\r\nuntil ").unwrap();
        session.flush().unwrap();
        session.write_all(b"the end").unwrap();
        session.conn.send_close_notify();
        session.flush().unwrap();
    });
    let sender =
        play(Sender::default(), addr, &named(&tls, ConnectConfig::default()), |cx, conn| {
            cx.write(conn, b"GET /a HTTP/1.1\r\nHost: server.example\r\n\r\n").unwrap();
        });
    assert!(sender.heard.ends_with(b"until the end"));
    assert_eq!(sender.end.unwrap(), "closed here");
}

#[test]
fn an_end_without_a_word_is_a_cut() {
    let (addr, tls) = serve(|mut session| {
        session.read_exact(&mut [0; 10]).unwrap();
        session.write_all(b"HTTP/1.1 200 OK\r\n\r\nall of").unwrap();
        session.flush().unwrap();
        session.sock.shutdown(Shutdown::Write).unwrap();
        let _ = session.sock.read(&mut [0; 100]);
    });
    let sender =
        play(Sender::default(), addr, &named(&tls, ConnectConfig::default()), |cx, conn| {
            cx.write(conn, b"GET /a HTTP/1.1\r\nHost: server.example\r\n\r\n").unwrap();
        });
    assert_eq!(sender.end.unwrap(), "unexpected end of file");
}

#[test]
fn server_without_a_trusted_certificate_is_refused() {
    // Another name, another root, no TLS at all, nothing at all.
    let (addr, tls) = serve(|mut session| drop(session.read(&mut [0])));
    let other = ConnectConfig {
        tls: Some(tls.client("other.example").unwrap()),
        ..ConnectConfig::default()
    };
    let sender = play(Sender::default(), addr, &other, |_, _| {});
    assert!(sender.end.unwrap().contains("certificate"));

    let (addr, _) = serve(|mut session| drop(session.read(&mut [0])));
    let (_, stranger) = serve(|_| {});
    let sender =
        play(Sender::default(), addr, &named(&stranger, ConnectConfig::default()), |_, _| {});
    assert!(sender.end.unwrap().contains("certificate"));

    for said in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 1000]).unwrap() > 0);
            stream.write_all(said).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let _ = stream.read(&mut [0; 1000]);
        });
        let sender =
            play(Sender::default(), addr, &named(&tls, ConnectConfig::default()), |_, _| {});
        assert!(!sender.end.unwrap().is_empty());
    }
    assert!(Tls::with_roots(b"no PEM").is_err());
    assert!(tls.client("not a name").is_err());
}

/// Both ends of a connection on one loop, and what each has exported.
#[derive(Default)]
struct Ends(Vec<Result<[u8; 32], String>>);

impl Ends {
    fn export(&mut self, cx: &mut Context<()>, conn: ConnId) {
        let exported = cx.export_keying_material(conn, b"EXPERIMENTAL-test");
        self.0.push(exported.map_err(|error| error.to_string()));
        if self.0.len() == 2 {
            cx.stop();
        }
    }
}

impl Handler for Ends {
    type Data = ();
    type Protocols = Tcp;

    fn on_open(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.export(cx, conn);
    }

    fn on_connect(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.export(cx, conn);
    }
}

#[test]
fn both_ends_export_the_same_keys_where_the_listener_keeps_its_exporter() {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["server.example".to_owned()]).unwrap();
    let server =
        ServerTls::from_pem(cert.pem().as_bytes(), signing_key.serialize_pem().as_bytes()).unwrap();
    let client = Tls::with_roots(cert.pem().as_bytes()).unwrap();
    let mut seen = Vec::new();
    for tls in [server.clone().with_exporter(), server.clone().with_exporter(), server] {
        let mut event_loop = EventLoop::new(LoopConfig::default()).unwrap();
        let cx = event_loop.context();
        let listen = ListenConfig { tls: Some(tls), ..ListenConfig::tcp() };
        let listener = cx.listen("127.0.0.1:0".parse().unwrap(), &listen).unwrap();
        let addr = cx.listener_addr(listener).unwrap();
        let tls = Some(client.client("server.example").unwrap());
        cx.connect(addr, &ConnectConfig { tls, ..ConnectConfig::default() }).unwrap();
        let mut ends = Ends::default();
        event_loop.run(&mut ends).unwrap();
        seen.push(ends.0);
    }
    assert!(seen[0][0].is_ok() && seen[0][0] == seen[0][1], "{seen:?}");
    assert_ne!(seen[0][0], seen[1][0], "each connection has keys of its own");
    assert_eq!(seen[2].iter().filter(|of| of.is_ok()).count(), 1, "the listener has dropped them");
}
