//! TLS to real servers of NATS, as they are run: by upgrade, from the first byte, with certificates of clients.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;

use dunlin_engine::nats::{Login, NatsConfig, NatsEngine, TlsMode};
use dunlin_engine::{Server, ServerRole};
use dunlin_hub::HistoryFilter;
use dunlin_net::Tls;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;

use crate::nats_server::NatsServer;
use crate::nodes::{Fleet, Node};

/// A certificate authority with its certificates, as files and as text.
struct Authority {
    directory: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Authority { directory: TempDir::new().unwrap(), issuer };
        std::fs::write(authority.path("ca"), authority.issuer.pem()).unwrap();
        let (certificate, key) = authority.issue("127.0.0.1");
        std::fs::write(authority.path("cert"), certificate).unwrap();
        std::fs::write(authority.path("key"), key).unwrap();
        authority
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    /// Issues a certificate for this name; returns it and its key in PEM.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn trusted(&self) -> Tls {
        Tls::with_roots(self.issuer.pem().as_bytes()).unwrap()
    }

    /// A server with TLS, and more in its block of it.
    fn server(&self, tls: &str, config: &str) -> NatsServer {
        let (cert, key) = (self.path("cert"), self.path("key"));
        let tls = format!("tls {{ cert_file: {cert:?}, key_file: {key:?}, {tls} }}\n");
        NatsServer::start_with(&["-js"], &(tls + config))
    }
}

fn upgraded(config: NatsConfig) -> NatsConfig {
    NatsConfig { tls: TlsMode::Upgrade, ..config }
}

fn by_password() -> Login {
    Login { user: Some("u".into()), password: Some("secret".into()), ..Login::default() }
}

const USERS: &str = "authorization { users = [{ user: u, password: secret }] }";

fn state(node: &Node) -> (&'static str, String) {
    let shard = node.engine.shards().next().unwrap();
    (shard.state.name(), shard.detail)
}

#[track_caller]
fn until_state(fleet: &mut Fleet, state_wanted: &str, detail: &str) {
    fleet.until(state_wanted, |nodes| {
        let (name, said) = state(&nodes[0]);
        name == state_wanted && said.contains(detail)
    });
    let shard = fleet.nodes.0[0].engine.shards().next().unwrap();
    assert!(!shard.state.fix().is_empty());
    assert!(!format!("{shard:?}").contains("secret"));
}

#[test]
fn a_server_that_speaks_plain_text_first_is_upgraded_to_tls() {
    let authority = Authority::new();
    // The server requires TLS, or leaves it to the client.
    for (tls, allows_plain) in [("", ""), ("", "allow_non_tls: true\n")] {
        let mut server = authority.server(tls, &format!("{allows_plain}{USERS}"));
        let config = NatsConfig { login: by_password(), ..upgraded(server.config()) };
        let mut fleet = Fleet::by_tls(&config, 2, &authority.trusted());
        fleet.until_ready();
        fleet.publish(1, "a", &"x".repeat(100_000));
        let history = fleet.history(0, "a", HistoryFilter::default()).unwrap();
        assert_eq!(history.publications[0].data().len(), 100_000);
        // Reconnects use TLS, too.
        fleet.cut(0);
        fleet.publish(1, "a", "while it is cut off");
        server.kill();
        fleet.until("noticed", |nodes| nodes.iter().all(|node| !node.engine.is_ready()));
        server.restart();
        fleet.until_ready();
        assert_eq!(fleet.publish(0, "a", "after").offset, 3);
    }
}

#[test]
fn a_server_whose_certificate_is_not_trusted_has_a_name_and_gets_no_password() {
    let authority = Authority::new();
    let server = authority.server("", USERS);
    let config = NatsConfig { login: by_password(), ..upgraded(server.config()) };
    let mut fleet = Fleet::by_tls(&config, 1, &Authority::new().trusted());
    until_state(&mut fleet, "tls_failed", "invalid peer certificate");
    // The certificate has another name.
    let named = Server { host: "localhost".to_owned(), ..config.servers[0].clone() };
    let config = NatsConfig { servers: vec![named], ..config };
    let mut fleet = Fleet::by_tls(&config, 1, &authority.trusted());
    until_state(&mut fleet, "tls_failed", "not valid for name");
}

#[test]
fn a_server_that_verifies_clients_is_shown_a_certificate() {
    let authority = Authority::new();
    let ca = authority.path("ca");
    let server = authority.server(&format!("ca_file: {ca:?}, verify: true"), "");
    let config = upgraded(server.config());
    let mut fleet = Fleet::by_tls(&config, 1, &authority.trusted());
    until_state(&mut fleet, "tls_failed", "received fatal alert");

    let (certificate, key) = authority.issue("node");
    let own = authority.trusted();
    let own = own.with_client_certificate(certificate.as_bytes(), key.as_bytes()).unwrap();
    let mut fleet = Fleet::by_tls(&config, 1, &own);
    fleet.until_ready();
    fleet.publish(0, "a", "x");

    let (_, other) = authority.issue("node");
    let tls = authority.trusted();
    assert!(tls.with_client_certificate(certificate.as_bytes(), other.as_bytes()).is_err());
    assert!(tls.with_client_certificate(b"", key.as_bytes()).is_err());
}

#[test]
fn a_server_without_tls_and_one_that_insists_have_names() {
    let authority = Authority::new();
    let plain = NatsServer::start_with(&["-js"], USERS);
    let config = NatsConfig { login: by_password(), ..upgraded(plain.config()) };
    let mut fleet = Fleet::by_tls(&config, 1, &authority.trusted());
    until_state(&mut fleet, "tls_unavailable", "does not offer TLS");

    let server = authority.server("", USERS);
    let config = NatsConfig { login: by_password(), ..server.config() };
    until_state(&mut Fleet::starting(&config, 1, None), "tls_required", "asks for TLS");
    // A client that begins TLS with the first byte receives plain text.
    let config = NatsConfig { tls: TlsMode::HandshakeFirst, ..config };
    let mut fleet = Fleet::by_tls(&config, 1, &authority.trusted());
    until_state(&mut fleet, "tls_failed", "corrupt message");
}

/// Starts a TLS proxy in front of a server, with a thread for each connection.
fn in_front_of(server: &NatsServer, authority: &Authority) -> u16 {
    let (certificate, key) = authority.issue("127.0.0.1");
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    let config = std::sync::Arc::new(config);
    let to = server.port;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let config = config.clone();
            std::thread::spawn(move || _ = pass_on(client, to, config));
        }
    });
    port
}

/// Copies bytes in both directions until one end closes.
fn pass_on(
    mut client: TcpStream,
    to: u16,
    config: std::sync::Arc<rustls::ServerConfig>,
) -> std::io::Result<()> {
    let mut tls = rustls::ServerConnection::new(config).map_err(std::io::Error::other)?;
    while tls.is_handshaking() {
        tls.complete_io(&mut client)?;
    }
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, to))?;
    // Neither is waited for alone.
    client.set_nonblocking(true)?;
    server.set_nonblocking(true)?;
    let mut bytes = [0; 16 << 10];
    let mut session = rustls::StreamOwned::new(tls, client);
    let mut server = server;
    loop {
        let mut idle = true;
        for to_server in [true, false] {
            let read = match to_server {
                true => session.read(&mut bytes),
                false => server.read(&mut bytes),
            };
            match read {
                Ok(0) => return server.shutdown(Shutdown::Both),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
                Ok(read) => match to_server {
                    true => server.write_all(&bytes[..read])?,
                    false => session.write_all(&bytes[..read])?,
                },
            }
            idle = false;
        }
        if idle {
            std::thread::yield_now();
        }
    }
}

#[test]
fn server_with_tls_from_the_first_byte_is_connected_with_tls() {
    let authority = Authority::new();
    let server = NatsServer::start_with(&["-js"], USERS);
    let place = Server {
        host: Ipv4Addr::LOCALHOST.to_string(),
        port: in_front_of(&server, &authority),
        role: ServerRole::Data,
    };
    let config = NatsConfig { login: by_password(), ..NatsConfig::new(vec![place]) };
    let first = NatsConfig { tls: TlsMode::HandshakeFirst, ..config };
    let mut fleet = Fleet::by_tls(&first, 1, &authority.trusted());
    fleet.until_ready();
    fleet.publish(0, "a", "x");
}

/// Starts a plain-text server for one connection; sends what the client wrote when it closes.
fn says(greeting: &'static [u8], behind: &'static [u8]) -> (NatsConfig, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut heard = vec![0; 1];
            let _ = client.write_all(greeting);
            if !behind.is_empty() && client.read_exact(&mut heard).is_ok() {
                let _ = client.write_all(behind);
            }
            let _ = client.read_to_end(&mut heard);
            let _ = sender.send(heard);
        }
    });
    let host = Ipv4Addr::LOCALHOST.to_string();
    let place = Server { host, port, role: ServerRole::Data };
    (NatsConfig { login: by_password(), ..upgraded(NatsConfig::new(vec![place])) }, receiver)
}

const OFFERS_TLS: &[u8] =
    b"INFO {\"headers\":true,\"max_payload\":1048576,\"tls_required\":true,\"jetstream\":true}\r\n";
const INJECTED: &[u8] =
    b"INFO {\"headers\":true,\"max_payload\":1048576,\"tls_required\":true,\"jetstream\":true}\r\nPONG\r\n\
    MSG dunlin.p.-.a 2 1\r\nx\r\n";
const FULL: &[u8] =
    b"INFO {\"headers\":true,\"tls_required\":true}\r\n-ERR 'maximum connections exceeded'\r\n";

/// Plain text from a man in the middle does not count as received through TLS, and no secret is sent to it.
#[test]
fn plain_text_behind_the_start_of_tls_is_refused() {
    let trusted = Authority::new().trusted();
    for (greeting, behind, name, detail) in [
        (INJECTED, &b""[..], "tls_failed", "unencrypted bytes"),
        (OFFERS_TLS, b"PONG\r\n", "tls_failed", "corrupt message"),
        (FULL, b"", "too_many_clients", "maximum connections exceeded"),
    ] {
        let (config, conversations) = says(greeting, behind);
        let mut fleet = Fleet::by_tls(&config, 1, &trusted);
        until_state(&mut fleet, name, detail);
        for _ in 0..2 {
            fleet.until("gone", |nodes| !nodes[0].engine.is_ready());
            let heard = loop {
                match conversations.try_recv() {
                    Ok(heard) => break heard,
                    Err(_) => fleet.turn(),
                }
            };
            for plain in [&b"CONNECT"[..], b"secret"] {
                assert!(!heard.windows(plain.len()).any(|bytes| bytes == plain));
            }
        }
        assert!(fleet.nodes.0[0].events.is_empty());
    }
}

/// A server that awaits TLS sends nothing, and closes when it receives nothing.
#[test]
fn a_server_that_says_nothing_has_a_name() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let host = Ipv4Addr::LOCALHOST.to_string();
    let place = Server { host, port, role: ServerRole::Data };
    let config = upgraded(NatsConfig::new(vec![place]));
    let mut fleet = Fleet::by_tls(&config, 1, &Authority::new().trusted());
    until_state(&mut fleet, "no_greeting", "said nothing");

    // Or it never closes.
    let mut engine = NatsEngine::new(config, 1, 0, 0);
    engine.flush(0, &mut Nowhere);
    engine.handle_connected(0);
    engine.handle_timeout(engine.poll_timeout().unwrap());
    assert_eq!(engine.shards().next().unwrap().state.name(), "no_greeting");
}

/// A connection without a peer.
struct Nowhere;

impl dunlin_engine::nats::Pipe for Nowhere {
    fn open(&mut self, _: &Server, _: bool) {}

    fn begin_tls(&mut self, _: &Server, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn close(&mut self) {}

    fn write(&mut self, _: &[u8]) -> Result<(), dunlin_engine::LinkFull> {
        Ok(())
    }
}
