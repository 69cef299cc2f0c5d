//! TLS that begins on an open connection, against a server of `rustls` that speaks plain text first.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_net::{
    BeginTlsError, ClientTls, CloseReason, ConnId, ConnectConfig, Context, EventLoop, Handler,
    LoopConfig, Tcp, TimeoutMs, Tls, WriteError,
};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

const TIMEOUT: Duration = Duration::from_secs(30);

/// What the server says before TLS.
const READY: &[u8] = b"INFO\r\n";

/// A server that has one conversation on a plain socket, with what it needs for TLS, and whom to trust to believe it.
fn serve(
    conversation: impl FnOnce(TcpStream, Arc<ServerConfig>) + Send + 'static,
) -> (SocketAddr, Tls) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["server.example".to_owned()]).unwrap();
    let tls = Tls::with_roots(cert.pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        conversation(stream, Arc::new(config));
    });
    (addr, tls)
}

fn secure(
    stream: TcpStream,
    config: Arc<ServerConfig>,
) -> StreamOwned<ServerConnection, TcpStream> {
    StreamOwned::new(ServerConnection::new(config).unwrap(), stream)
}

/// Begins TLS once it has heard the server's word, and says who it is behind it.
struct Client {
    to: ClientTls,
    timeout_ms: TimeoutMs,
    plain: Vec<u8>,
    refused: Option<BeginTlsError>,
    /// What happened, in order.
    story: Vec<String>,
    ended: bool,
}

impl Client {
    fn new(tls: &Tls, name: &str) -> Client {
        Client {
            to: tls.client(name).unwrap(),
            timeout_ms: None,
            plain: Vec::new(),
            refused: None,
            story: Vec::new(),
            ended: false,
        }
    }

    fn play(mut self, addr: SocketAddr) -> Client {
        let mut event_loop = EventLoop::new(LoopConfig::default()).unwrap();
        event_loop.context().connect(addr, &ConnectConfig::default()).unwrap();
        let began = Instant::now();
        while !self.ended {
            assert!(began.elapsed() < TIMEOUT, "it did not end: {:?}", self.story);
            event_loop.turn(&mut self, Some(Duration::from_millis(100))).unwrap();
        }
        assert_eq!(event_loop.context().buffered_bytes_in_all(), 0);
        self
    }
}

impl Handler for Client {
    type Data = ();
    type Protocols = Tcp;

    fn on_connect(&mut self, _: &mut Context<()>, _: ConnId) {
        self.story.push("open".to_owned());
    }

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        if self.story.iter().any(|line| line == "secure") {
            return self.story.push(format!("heard {:?}", String::from_utf8_lossy(bytes)));
        }
        self.plain.extend_from_slice(bytes);
        let Some(end) = self.plain.iter().position(|&byte| byte == b'\n') else { return };
        if let Err(error) = cx.begin_tls(conn, &self.to, &self.plain[end + 1..], self.timeout_ms) {
            self.refused = Some(error);
            return cx.abort(conn);
        }
        // It waits for the handshake.
        cx.write(conn, b"password").unwrap();
        assert!(cx.is_open(conn));
        let again = cx.begin_tls(conn, &self.to, b"", None);
        assert!(matches!(again, Err(BeginTlsError::OutOfTurn)), "{again:?}");
    }

    fn on_secure(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.story.push("secure".to_owned());
        cx.write(conn, b" and more").unwrap();
        let again = cx.begin_tls(conn, &self.to, b"", None);
        assert!(matches!(again, Err(BeginTlsError::OutOfTurn)), "{again:?}");
    }

    fn on_tls_failed(&mut self, cx: &mut Context<()>, conn: ConnId, error: &io::Error) {
        self.story.push(format!("failed: {error}"));
        assert_eq!(cx.write(conn, b"password"), Err(WriteError::Stale));
    }

    fn on_connect_failed(&mut self, _: &mut Context<()>, _: ConnId, (): (), error: &io::Error) {
        panic!("{error}");
    }

    fn on_close(&mut self, cx: &mut Context<()>, conn: ConnId, (): (), reason: CloseReason) {
        self.story.push(reason.to_string());
        self.ended = true;
        let stale = cx.begin_tls(conn, &self.to, b"", None);
        assert!(matches!(stale, Err(BeginTlsError::Stale)), "{stale:?}");
    }
}

/// All that a server hears on a plain socket.
fn all_heard(mut stream: TcpStream) -> Vec<u8> {
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    heard
}

#[test]
fn bytes_written_during_the_handshake_leave_encrypted() {
    for pieces in [&[READY][..], &[b"IN", b"FO\r", b"\n"]] {
        let (addr, tls) = serve(move |mut stream, config| {
            stream.set_nodelay(true).unwrap();
            for piece in pieces {
                stream.write_all(piece).unwrap();
                std::thread::yield_now();
            }
            let mut session = secure(stream, config);
            let mut said = [0; 17];
            session.read_exact(&mut said).unwrap();
            session.write_all(&said).unwrap();
            session.conn.send_close_notify();
            session.flush().unwrap();
            let _ = session.read(&mut [0]);
        });
        let client = Client::new(&tls, "server.example").play(addr);
        let heard = "heard \"password and more\"";
        assert_eq!(client.story, ["open", "secure", heard, "closed here"]);
    }
}

/// Somebody in between says something behind the server's word: it must not pass for what the server says by TLS.
#[test]
fn plain_bytes_behind_starttls_are_refused() {
    let (addr, tls) = serve(|mut stream, _| {
        stream.write_all(b"INFO\r\n+OK\r\n").unwrap();
        assert_eq!(all_heard(stream), b"");
    });
    let client = Client::new(&tls, "server.example").play(addr);
    assert!(matches!(client.refused, Some(BeginTlsError::Unread(5))), "{:?}", client.refused);
    assert_eq!(client.story, ["open", "aborted here"]);
}

#[test]
fn plain_text_behind_it_is_no_record() {
    let (addr, tls) = serve(|mut stream, _| {
        stream.write_all(READY).unwrap();
        // The client has begun.
        stream.read_exact(&mut [0]).unwrap();
        stream.write_all(b"+OK\r\nMSG a 1 5\r\nhello\r\n").unwrap();
        let heard = all_heard(stream);
        assert!(!heard.windows(8).any(|bytes| bytes == b"password"));
    });
    let client = Client::new(&tls, "server.example").play(addr);
    assert_eq!(client.story.len(), 3, "{:?}", client.story);
    assert!(client.story[1].starts_with("failed: received corrupt message"), "{:?}", client.story);
    assert_eq!(client.story[2], "invalid data");
}

#[test]
fn client_without_a_certificate_gets_no_data() {
    let (addr, tls) = serve(|mut stream, config| {
        stream.write_all(READY).unwrap();
        let mut said = Vec::new();
        assert!(secure(stream, config).read_to_end(&mut said).is_err());
        assert_eq!(said, b"");
    });
    let client = Client::new(&tls, "other.example").play(addr);
    assert!(client.story[1].starts_with("failed: invalid peer certificate"), "{:?}", client.story);
    assert_eq!(client.story[2..], ["invalid data"]);
}

#[test]
fn a_handshake_that_never_ends_is_bounded() {
    let (addr, tls) = serve(|mut stream, _| {
        stream.write_all(READY).unwrap();
        all_heard(stream);
    });
    let mut client = Client::new(&tls, "server.example");
    client.timeout_ms = NonZeroU64::new(50);
    assert_eq!(client.play(addr).story, ["open", "failed: timed out", "timed out"]);
}

#[test]
fn a_server_that_goes_away_in_the_handshake_is_noticed() {
    let (addr, tls) = serve(|mut stream, _| {
        stream.write_all(READY).unwrap();
        stream.read_exact(&mut [0]).unwrap();
    });
    let story = Client::new(&tls, "server.example").play(addr).story;
    assert!(story[1].starts_with("failed: "), "{story:?}");
    assert_eq!(story.len(), 3);
}
