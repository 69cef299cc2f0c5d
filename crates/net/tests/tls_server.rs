//! TLS of a listener, against clients of `rustls` with blocking sockets: every suite, cuts anywhere, keys renewed, and what
//! an idle connection costs.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]
#![allow(unsafe_code, reason = "an allocator that counts")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use dunlin_net::{ConnId, Context, Handler, ListenConfig, ServerTls, Tcp};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use support::{Running, TIMEOUT, run};

struct Counting;

thread_local! {
    /// By this thread: a loop has one of its own.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands everything to the system's allocator and counts bytes beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get().wrapping_add(layout.size()));
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.set(ALLOCATED.get().wrapping_sub(layout.size()));
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends back what it is sent.
struct Echo;

impl Handler for Echo {
    type Data = ();
    type Protocols = Tcp;

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        let bytes = bytes.to_vec();
        cx.write(conn, &bytes).unwrap();
    }
}

/// A server that sends back, and what its clients need.
struct Server {
    running: Running<Echo>,
    certificate: CertifiedKey<KeyPair>,
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

impl Server {
    fn start() -> Server {
        let certificate = generate_simple_self_signed(vec!["server.example".to_owned()]).unwrap();
        let key = certificate.signing_key.serialize_pem();
        let tls = ServerTls::from_pem(certificate.cert.pem().as_bytes(), key.as_bytes()).unwrap();
        let mut listen = ListenConfig { tls: Some(tls), ..ListenConfig::tcp() };
        listen.limits.output_bytes_max = 16 << 20;
        Server { running: run(Echo, listen), certificate }
    }

    fn config(&self, provider: CryptoProvider) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.cert.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    }

    fn connect(&self, config: &Arc<ClientConfig>) -> Stream {
        let name = "server.example".try_into().unwrap();
        let client = ClientConnection::new(Arc::clone(config), name).unwrap();
        let stream = TcpStream::connect(self.running.addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        StreamOwned::new(client, stream)
    }
}

/// A provider of one suite each: one version of TLS with it.
fn suites() -> impl Iterator<Item = CryptoProvider> {
    let all = rustls::crypto::ring::default_provider();
    all.cipher_suites
        .clone()
        .into_iter()
        .filter(|suite| {
            // The certificate of the tests is one of an elliptic curve.
            !format!("{suite:?}").contains("RSA")
        })
        .map(move |suite| CryptoProvider { cipher_suites: vec![suite], ..all.clone() })
}

fn echoed(stream: &mut Stream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    stream.flush().unwrap();
    let mut heard = vec![0; bytes.len()];
    stream.read_exact(&mut heard).unwrap();
    assert!(heard == bytes, "{} bytes came back changed", bytes.len());
}

#[test]
fn every_suite_carries_messages_of_every_length_and_ends_in_order() {
    let server = Server::start();
    let block: Vec<u8> = (0..200_000u32).map(|at| (at * 7) as u8).collect();
    let mut suites_seen = 0;
    for provider in suites() {
        let mut stream = server.connect(&server.config(provider));
        for length in [1, 5, 16_383, 16_384, 16_385, 200_000] {
            echoed(&mut stream, &block[..length]);
        }
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        let mut rest = Vec::new();
        // Without the server's own word the end would be an error.
        assert_eq!(stream.read_to_end(&mut rest).unwrap(), 0);
        suites_seen += 1;
    }
    assert_eq!(suites_seen, 6);
    server.running.until(|_, cx| cx.stats().connections == 0 && cx.stats().buffered_bytes == 0);
}

/// Passes on a byte at a time.
struct Bytewise(TcpStream);

impl Read for Bytewise {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Bytewise {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(1)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn records_cut_anywhere_are_the_same_records() {
    let server = Server::start();
    for provider in suites() {
        let StreamOwned { conn, sock } = server.connect(&server.config(provider));
        let mut stream = StreamOwned::new(conn, Bytewise(sock));
        for message in ["hello", "again"] {
            stream.write_all(message.as_bytes()).unwrap();
            let mut heard = [0; 5];
            stream.read_exact(&mut heard).unwrap();
            assert_eq!(heard, message.as_bytes());
        }
    }
}

#[test]
fn keys_are_renewed_in_both_directions() {
    let server = Server::start();
    let config = server.config(rustls::crypto::ring::default_provider());
    let mut stream = server.connect(&config);
    echoed(&mut stream, b"before");
    for _ in 0..3 {
        // Asks for the server's to be renewed, too.
        stream.conn.refresh_traffic_keys().unwrap();
        echoed(&mut stream, b"after");
    }
}

#[test]
fn peer_that_only_updates_keys_is_closed() {
    let server = Server::start();
    let config = server.config(rustls::crypto::ring::default_provider());
    let mut stream = server.connect(&config);
    echoed(&mut stream, b"before");
    let refused =
        (0..100).any(|_| stream.conn.refresh_traffic_keys().is_err() || stream.flush().is_err());
    let ended = refused || !matches!(stream.read(&mut [0; 16]), Ok(1..));
    assert!(ended);
    server.running.until(|_, cx| cx.stats().connections == 0 && cx.stats().buffered_bytes == 0);
}

#[test]
fn a_session_is_resumed() {
    let server = Server::start();
    for provider in suites() {
        let config = server.config(provider);
        let mut first = server.connect(&config);
        echoed(&mut first, b"hello");
        let mut second = server.connect(&config);
        echoed(&mut second, b"hello");
        assert_eq!(second.conn.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
    }
}

#[test]
fn a_record_that_was_tampered_with_ends_the_connection_and_says_why() {
    let server = Server::start();
    for provider in suites() {
        let mut stream = server.connect(&server.config(provider));
        echoed(&mut stream, b"hello");
        let mut records = Vec::new();
        stream.conn.writer().write_all(b"tampered").unwrap();
        stream.conn.write_tls(&mut records).unwrap();
        let last = records.len() - 1;
        records[last] ^= 1;
        stream.sock.write_all(&records).unwrap();
        let error = stream.read(&mut [0; 16]).unwrap_err();
        assert!(error.to_string().contains("BadRecordMac"), "{error}");
    }
    server.running.until(|_, cx| cx.stats().connections == 0 && cx.stats().buffered_bytes == 0);
}

#[test]
fn an_idle_connection_costs_little_more_than_without_tls() {
    const CONNECTIONS: usize = 100;
    const BYTES_MAX: usize = 1536;
    let server = Server::start();
    for provider in suites() {
        let suite = provider.cipher_suites[0].suite();
        let config = server.config(provider);
        // Once, for what the loop itself grows by.
        let connect = || {
            let mut stream = server.connect(&config);
            echoed(&mut stream, &[7; 5000]);
            stream
        };
        let warm: Vec<Stream> = (0..CONNECTIONS).map(|_| connect()).collect();
        drop(warm);
        server.running.until(|_, cx| cx.stats().connections == 0);
        let before = server.running.ask(|_, _| ALLOCATED.get());
        let streams: Vec<Stream> = (0..CONNECTIONS).map(|_| connect()).collect();
        let after = server.running.ask(|_, _| ALLOCATED.get());
        let each = after.wrapping_sub(before) / CONNECTIONS;
        println!("{suite:?}: {each} bytes");
        assert!(each <= BYTES_MAX, "{suite:?}: {each} bytes");
        drop(streams);
        server.running.until(|_, cx| cx.stats().connections == 0);
    }
}
