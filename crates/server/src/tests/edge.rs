//! Tests of admission: which connections are accepted, on whose behalf, and against whose limits.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::{Cluster, Listener, TIMEOUT};
use dunlin_config::Secret;

use crate::message::worker::WorkerMessage;
use crate::metrics::Metric;

/// Opens a connection from this loopback address and sends nothing.
fn silent(to: SocketAddr, from: [u8; 4]) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.into()
}

/// Returns whether the server has closed a connection.
fn is_closed(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(read) => read == 0,
        // Any other error is not a close, above all a timeout.
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn half_open_connections_take_places_from_their_own_address_and_from_nobody_who_is_known() {
    let mut cluster = Cluster::start_with(1, |config| {
        config.limits.unauthenticated_per_address_max = 2;
    });
    let mut known: Vec<Listener> =
        (0..4).map(|_| Listener::connect(cluster.address, "news")).collect();
    let _held = [(); 2].map(|()| silent(cluster.address, [127, 0, 0, 1]));
    let refused = silent(cluster.address, [127, 0, 0, 1]);
    assert!(is_closed(&refused), "the third of one address");
    assert_eq!(cluster.state.counters[0].get(Metric::RefusedUnauthenticated), 1);
    let mut elsewhere = silent(cluster.address, [127, 0, 0, 2]);
    let body = "{\"channel\":\"news\",\"data\":1}";
    let length = body.len();
    write!(
        elsewhere,
        "POST /api/publish HTTP/1.1\r\nHost: d\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    for client in &mut known {
        assert_eq!(client.next().unwrap()["pub"]["data"], 1);
    }
    // All connections are released, even if their worker panics.
    cluster.send(0, WorkerMessage::Panic);
    cluster.look_after_until(|state| state.counters[0].get(Metric::Restarts) == 1);
    assert_eq!(cluster.state.admissions.total(), 0);
    cluster.look_after_until(|state| state.workers_ready() == 1);
    assert_eq!(Listener::connect(cluster.address, "news").id.worker(), 0);
}

#[test]
fn the_oldest_half_open_connection_gives_way_when_there_are_too_many() {
    let cluster = Cluster::start_with(1, |config| config.limits.unauthenticated_max = 16);
    let mut known = Listener::connect(cluster.address, "news");
    let held: Vec<TcpStream> = (0..20).map(|_| silent(cluster.address, [127, 0, 0, 1])).collect();
    assert!(held[..4].iter().all(is_closed));
    // A client that authenticates is still served.
    let mut late = Listener::connect(cluster.address, "news");
    cluster.post("/api/publish", "{\"channel\":\"news\",\"data\":1}");
    for client in [&mut known, &mut late] {
        assert_eq!(client.next().unwrap()["pub"]["data"], 1);
    }
}

#[test]
fn a_head_of_as_many_fields_as_may_be_set_is_answered() {
    let cluster = Cluster::start_with(1, |config| config.limits.headers_max = 256);
    let mut stream = TcpStream::connect(cluster.address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let fields = "X: y\r\n".repeat(200);
    write!(stream, "GET / HTTP/1.1\r\nHost: d\r\nConnection: close\r\n{fields}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Regression: at an address without the API, a wrong key was rejected at the head, while a valid
/// one waited for the body.
#[test]
fn an_address_for_clients_alone_tells_nobody_whether_a_key_is_right() {
    const KEY: &str = "the key of the backend";
    let cluster = Cluster::start_with(1, |config| {
        config.api.without_key = false;
        config.api.keys.insert("backend", Secret::new(KEY));
        config.server.client_serves = dunlin_config::Serves::Clients;
    });
    for key in [KEY, "a key that is guessed"] {
        let mut stream = silent(cluster.address, [127, 0, 0, 1]);
        let head = format!("POST /api/publish HTTP/1.1\r\nHost: d\r\nX-API-Key: {key}");
        write!(stream, "{head}\r\nContent-Length: 100\r\n\r\n{{").unwrap();
        let mut answer = [0; 512];
        let read = stream.read(&mut answer).unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 404"), "{key}");
    }
}

/// Regression: a budget belonged to a table entry, and the next address in that entry inherited the
/// debt.
#[test]
fn budget_of_an_address_outlives_its_connections() {
    let mut cluster = Cluster::start_with(1, |config| {
        config.limits.anonymous_budget.commands_per_s = 0;
        config.limits.address_budget.commands_per_s = 1;
        config.limits.address_budget.burst_ms = 60_000;
    });
    let delayed = |cluster: &Cluster| cluster.state.counters[0].get(Metric::CommandsDelayed);
    // Sends this many commands, waits for the first reply, then closes the connection.
    let visit = |cluster: &mut Cluster, from, commands: u32| {
        let ping = |id| format!("\n{{\"id\":{id},\"presence_stats\":{{\"channel\":\"a\"}}}}");
        let body = "{\"id\":1,\"connect\":{}}".to_owned();
        let body = (2..=commands).fold(body, |body, id| body + &ping(id));
        let mut stream = silent(cluster.address, from);
        let head = "POST /connection/http_stream HTTP/1.1\r\nHost: 127.0.0.1";
        write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let first = lines.find(|line| line.contains("\"id\":1")).expect("an answer to the connect");
        cluster.look_after_until(|state| {
            state.counters[0].get(Metric::Commands) >= u64::from(commands.min(61))
        });
        drop(lines);
        cluster.look_after_until(|state| state.admissions.total() == 0);
        first
    };
    visit(&mut cluster, [127, 0, 0, 2], 100);
    let before = delayed(&cluster);
    assert!(before > 0, "it is beyond its burst");
    let connected = visit(&mut cluster, [127, 0, 0, 3], 1);
    assert!(connected.contains("\"connect\""), "another address owes nothing: {connected}");
    assert_eq!(delayed(&cluster), before);
    let refused = visit(&mut cluster, [127, 0, 0, 2], 1);
    assert!(refused.contains("\"code\":111"), "it still owes after it has come back: {refused}");
}

const OUTSIDE: [u8; 4] = [127, 0, 0, 1];
const PROXY: [u8; 4] = [127, 0, 0, 9];

/// Starts one worker that accepts two connections per address and trusts the proxy at 127.0.0.9.
fn behind_a_proxy(proxy_protocol: bool) -> Cluster {
    Cluster::start_with(1, |config| {
        config.limits.connections_per_address_max = 2;
        config.server.client_ingress.trusted_proxies = ["127.0.0.9/32".to_owned()].into();
        config.server.client_ingress.proxy_protocol = proxy_protocol;
    })
}

/// Sends a request and returns the status of the response; the connection stays open.
fn ask(stream: &mut TcpStream, before: &str, headers: &str) -> Option<u16> {
    // The server may already have reset a rejected connection.
    let _ = write!(stream, "{before}GET /nowhere HTTP/1.1\r\nHost: d\r\n{headers}\r\n");
    let mut answer = [0; 512];
    let read = stream.read(&mut answer).unwrap_or(0);
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    answer.split(' ').nth(1)?.parse().ok()
}

fn count(cluster: &Cluster, metric: Metric) -> u64 {
    cluster.state.counters[0].get(metric)
}

#[test]
fn behind_a_proxy_a_limit_per_address_is_one_per_client() {
    let cluster = behind_a_proxy(true);
    let line = |client: &str| format!("PROXY TCP4 {client} 127.0.0.1 4711 80\r\n");
    let mut held = Vec::new();
    let mut through = |client: &str| {
        let mut stream = silent(cluster.address, PROXY);
        let status = ask(&mut stream, &line(client), "");
        held.push(stream);
        status
    };
    for client in ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.1"] {
        assert_eq!(through(client), Some(404), "{client}");
    }
    assert_eq!(through("192.0.2.1"), None, "its third");
    assert_eq!(count(&cluster, Metric::RefusedAddress), 1);
    held.clear();
    let mut cluster = cluster;
    cluster.look_after_until(|state| state.admissions.total() == 0);
}

/// Regression test: the network of an IPv6 client, which counts for limits, was shown as its address.
#[test]
fn clients_of_one_ipv6_network_count_as_one_and_are_listed_each_with_its_address() {
    let cluster = behind_a_proxy(false);
    let mut held = Vec::new();
    let mut connect = |client: &str| {
        let mut stream = silent(cluster.address, PROXY);
        let target = "/connection/uni_sse?cf_connect=%7B%22subs%22%3A%7B%22news%22%3A%7B%7D%7D%7D";
        let head = format!("GET {target} HTTP/1.1\r\nHost: d\r\nX-Forwarded-For: {client}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = [0; 512];
        let read = stream.read(&mut answer).unwrap();
        held.push(stream);
        String::from_utf8_lossy(&answer[..read]).split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(connect("2001:db8::7"), "200");
    assert_eq!(connect("2001:db8::8"), "200");
    assert_eq!(connect("2001:db8::9"), "429", "the third of one network");
    assert_eq!(connect("2001:db8:0:1::7"), "200", "another network");
    let listed = |body: &str| {
        let mut stream = silent(cluster.address, OUTSIDE);
        write!(
            stream,
            "POST /api/connections HTTP/1.1\r\nHost: d\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let answer: serde_json::Value = serde_json::from_str(body).unwrap();
        let all = answer["result"]["connections"].as_object().unwrap().values();
        let mut all: Vec<_> = all.map(|of| of["address"].as_str().unwrap().to_owned()).collect();
        all.sort();
        all
    };
    assert_eq!(listed("{}"), ["2001:db8:0:1::7", "2001:db8::7", "2001:db8::8"]);
    assert_eq!(listed(r#"{"address":"2001:db8::8"}"#), ["2001:db8::8"]);
}

#[test]
fn forwarded_address_is_taken_from_a_proxy_alone() {
    let cluster = behind_a_proxy(true);
    let mut outsider = silent(cluster.address, OUTSIDE);
    let line = "PROXY TCP4 192.0.2.1 127.0.0.1 4711 80\r\n";
    assert_eq!(ask(&mut outsider, line, ""), Some(400), "it is no request");
    let mut outsider = silent(cluster.address, OUTSIDE);
    assert_eq!(ask(&mut outsider, "", ""), Some(404), "who comes directly is served");
    // A proxy's connection without a valid header is closed.
    for other in ["", "PROXY TCP4 192.0.2.1 127.0.0.1 4711\r\n"] {
        let mut proxy = silent(cluster.address, PROXY);
        assert_eq!(ask(&mut proxy, other, ""), None, "{other:?}");
    }
    let mut cluster = cluster;
    cluster.look_after_until(|state| state.counters[0].get(Metric::ProxyFailed) == 2);
}

#[test]
fn a_header_in_pieces_and_a_request_with_it_are_read() {
    let cluster = behind_a_proxy(true);
    let mut proxy = silent(cluster.address, PROXY);
    proxy.set_nodelay(true).unwrap();
    let head = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\x7f\0\0\x01\x12\x67\0\x50";
    for byte in head {
        proxy.write_all(&[*byte]).unwrap();
    }
    assert_eq!(ask(&mut proxy, "", ""), Some(404));
    let mut proxy = silent(cluster.address, PROXY);
    proxy.write_all(&[head, &b"GET /nowhere HTTP/1.1\r\nHost: d\r\n\r\n"[..]].concat()).unwrap();
    let mut answer = [0; 512];
    let read = proxy.read(&mut answer).unwrap();
    assert!(answer[..read].starts_with(b"HTTP/1.1 404"));
}

#[test]
fn a_request_that_a_proxy_passes_on_is_its_clients() {
    let cluster = behind_a_proxy(false);
    let of = |client: &str| format!("X-Forwarded-For: {client}\r\n");
    let mut streams = [(); 5].map(|()| silent(cluster.address, PROXY));
    let clients = ["192.0.2.1", "192.0.2.2", "whatever, 192.0.2.1", "192.0.2.3, 127.0.0.9"];
    for (stream, client) in streams.iter_mut().zip(clients) {
        assert_eq!(ask(stream, "", &of(client)), Some(404), "{client}");
    }
    assert_eq!(ask(&mut streams[4], "", &of("192.0.2.1")), Some(429), "its third");
    // The next request of a connection may come from another client.
    assert_eq!(ask(&mut streams[0], "", &of("192.0.2.4")), Some(404));
    let mut again = silent(cluster.address, PROXY);
    assert_eq!(ask(&mut again, "", &of("192.0.2.1")), Some(404));
    let mut malformed = silent(cluster.address, PROXY);
    assert_eq!(ask(&mut malformed, "", &of("192.0.2.1, unknown")), Some(400));
    assert_eq!(count(&cluster, Metric::ForwardedMalformed), 1);
    // The header of an untrusted peer is ignored: its address may have two connections, whatever it
    // claims.
    let _held = ["192.0.2.8", "192.0.2.9"].map(|client| {
        let mut outsider = silent(cluster.address, OUTSIDE);
        assert_eq!(ask(&mut outsider, "", &of(client)), Some(404));
        outsider
    });
    let mut third = silent(cluster.address, OUTSIDE);
    assert_eq!(ask(&mut third, "", &of("192.0.2.7")), None);
}

/// Regression: each listener trusted the proxies of all listeners.
#[test]
fn a_listener_believes_its_own_proxies_alone() {
    let inner = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let cluster = Cluster::start_with(1, |config| {
        config.limits.connections_per_address_max = 2;
        config.server.client_ingress.trusted_proxies = ["127.0.0.9".to_owned()].into();
        let mut listener = dunlin_config::Listener { addr: inner, ..Default::default() };
        listener.ingress.trusted_proxies = ["198.51.100.0/24".to_owned()].into();
        config.listeners.insert("inner", listener);
    });
    // Each request names another client, behind a hop that only the other listener trusts.
    let mut through = |client: u8| {
        let mut stream = silent(cluster.address, PROXY);
        let status =
            ask(&mut stream, "", &format!("X-Forwarded-For: 192.0.2.{client}, 198.51.100.7\r\n"));
        (stream, status)
    };
    let held = [1, 2].map(&mut through);
    assert!(held.iter().all(|(_, status)| *status == Some(404)));
    assert_eq!(through(3).1, Some(429), "the third of 198.51.100.7");
}

/// Creates a self-signed certificate for a name, with its key.
fn certificate(name: &str) -> rcgen::CertifiedKey<rcgen::KeyPair> {
    rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap()
}

fn with_tls(
    certificates: &[&rcgen::CertifiedKey<rcgen::KeyPair>],
    change: impl FnOnce(&mut dunlin_config::Config),
) -> Cluster {
    Cluster::start_with(1, |config| {
        for (at, of) in certificates.iter().enumerate() {
            let certificate = dunlin_config::Certificate {
                chain: Some(of.cert.pem().into()),
                key: Some(Secret::new(of.signing_key.serialize_pem())),
                ..Default::default()
            };
            config.tls.certificates.insert(format!("{at}"), certificate);
        }
        config.server.client_ingress.tls = true;
        change(config);
    })
}

/// A client that requests a server name, trusts one certificate, and may present one.
struct TlsClient<'c> {
    name: &'static str,
    trusts: &'c rcgen::CertifiedKey<rcgen::KeyPair>,
    shows: Option<&'c rcgen::CertifiedKey<rcgen::KeyPair>>,
    version: &'static rustls::SupportedProtocolVersion,
}

impl TlsClient<'_> {
    /// Sends a request and returns the response.
    fn ask(&self, to: SocketAddr, from: [u8; 4]) -> std::io::Result<String> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.trusts.cert.der().clone()).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[self.version])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match self.shows {
            None => builder.with_no_client_auth(),
            Some(of) => {
                let key = of.signing_key.serialize_der();
                let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.into());
                builder.with_client_auth_cert(vec![of.cert.der().clone()], key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = self.name.try_into().unwrap();
        let client = rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
        let mut stream = rustls::StreamOwned::new(client, silent(to, from));
        stream.write_all(b"GET / HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        Ok(answer)
    }
}

#[test]
fn a_client_is_given_the_certificate_of_the_name_it_asks_for() {
    let (a, b) = (certificate("a.example"), certificate("*.b.example"));
    let cluster = with_tls(&[&a, &b], |_| {});
    for version in rustls::ALL_VERSIONS {
        for (name, trusts, is_served) in [
            ("a.example", &a, true),
            ("x.b.example", &b, true),
            ("a.example", &b, false),
            ("other.example", &a, false),
        ] {
            let client = TlsClient { name, trusts, shows: None, version };
            let answer = client.ask(cluster.address, OUTSIDE);
            assert_eq!(answer.is_ok(), is_served, "{name} {version:?}: {answer:?}");
            assert!(!is_served || answer.unwrap().starts_with("HTTP/1.1 200"));
        }
    }
    // Plain HTTP gets a response.
    let mut plain = silent(cluster.address, OUTSIDE);
    assert_eq!(ask(&mut plain, "", ""), Some(400));
    // A connection that sends anything else is closed and leaves nothing behind.
    silent(cluster.address, OUTSIDE).write_all(b"\x16\x03\x01\x00\x05nope!").unwrap();
    let mut cluster = cluster;
    cluster.look_after_until(|state| state.admissions.total() == 0);
    cluster.look_after_until(|state| state.counters[0].get(Metric::HandshakesFailed) >= 2);
}

#[test]
fn a_listener_may_ask_for_a_certificate_of_its_clients() {
    let (own, theirs, other) =
        (certificate("a.example"), certificate("them"), certificate("others"));
    let cluster = with_tls(&[&own], |config| {
        config.server.client_ingress.client_ca = Some(theirs.cert.pem().into());
    });
    for version in rustls::ALL_VERSIONS {
        for (shows, is_served) in [(Some(&theirs), true), (Some(&other), false), (None, false)] {
            let client = TlsClient { name: "a.example", trusts: &own, shows, version };
            let answer = client.ask(cluster.address, OUTSIDE);
            let served = answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"));
            assert_eq!(served, is_served, "{version:?}");
        }
    }
}

#[test]
fn handshakes_of_one_address_are_bounded_and_those_of_another_are_not_held_up() {
    let own = certificate("a.example");
    let cluster = with_tls(&[&own], |config| config.limits.handshakes_per_address_per_s_max = 2);
    let version = &rustls::version::TLS13;
    let client = TlsClient { name: "a.example", trusts: &own, shows: None, version };
    let served = (0..20).filter(|_| client.ask(cluster.address, OUTSIDE).is_ok()).count();
    assert!((1..20).contains(&served), "{served} were served");
    assert!(client.ask(cluster.address, [127, 0, 0, 2]).is_ok());
    assert_eq!(count(&cluster, Metric::HandshakesRefused), 20 - served as u64);
}

#[test]
fn behind_a_proxy_tls_follows_its_header() {
    let own = certificate("a.example");
    let cluster = with_tls(&[&own], |config| {
        config.server.client_ingress.trusted_proxies = ["127.0.0.9".to_owned()].into();
        config.server.client_ingress.proxy_protocol = true;
    });
    let mut roots = rustls::RootCertStore::empty();
    roots.add(own.cert.der().clone()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "a.example".try_into().unwrap();
    let client = rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
    let mut stream = silent(cluster.address, PROXY);
    stream.write_all(b"PROXY TCP4 192.0.2.1 127.0.0.1 4711 443\r\n").unwrap();
    let mut stream = rustls::StreamOwned::new(client, stream);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Regression test: the body of a call was received, however slowly it came, though the scope of its key refuses it.
#[test]
fn call_that_its_head_refuses_is_answered_before_its_body_comes() {
    let cluster = Cluster::start_with(1, |config| {
        config.api.without_key = false;
        config.api.keys.insert("reads", Secret::new("the key that reads"));
        config.api.keys.insert("publishes", Secret::new("the key that publishes"));
        let reads = dunlin_config::ApiScope { read_only: true, ..Default::default() };
        config.api.scopes.insert("reads", reads);
        let methods = ["publish".to_owned()].into();
        let publishes = dunlin_config::ApiScope { methods, ..Default::default() };
        config.api.scopes.insert("publishes", publishes);
    });
    let answer = |line: &str, headers: &str| {
        let mut stream = TcpStream::connect(cluster.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        write!(
            stream,
            "{line} HTTP/1.1\r\nHost: d\r\nConnection: close\r\n{headers}Content-Length: 9\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let with_key = |line: &str, name: &str| {
        answer(
            line,
            &format!("X-API-Key: the key that {name}\r\nX-Centrifugo-Error-Mode: transport\r\n"),
        )
    };
    for (line, name) in [
        ("POST /api/publish", "reads"),
        ("POST /api/disconnect", "publishes"),
        ("POST /api/push", "publishes"),
        ("POST /api/push/batch", "reads"),
    ] {
        let answer = with_key(line, name);
        assert!(answer.contains("\"code\":103"), "{line}: {answer}");
    }
    assert!(with_key("PUT /api/publish", "publishes").starts_with("HTTP/1.1 405"));
    let foreign = "Origin: https://elsewhere.example\r\n";
    for line in
        ["POST /connection/uni_http_stream", "POST /connection/http_stream", "POST /emulation"]
    {
        let answer = answer(line, foreign);
        assert!(answer.starts_with("HTTP/1.1 403"), "{line}: {answer}");
    }
}

#[test]
fn ids_that_dunlin_has_not_issued_are_nobodys() {
    let cluster = Cluster::start_with(2, |config| config.api.strict = true);
    let mut listener = Listener::connect(cluster.address, "news");
    for target in [
        r#""user":"","client":"6cf2b2a7-3c4d-4a53-9e0e-1b9b1b1c7e55""#,
        r#""user":"","session":"0123abcd""#,
        r#""user":"","client":"9007199254740991""#,
    ] {
        for (method, more) in [
            ("disconnect", r#""whitelist":["not one of ours"]"#),
            ("unsubscribe", r#""channel":"news""#),
            ("subscribe", r#""channel":"other""#),
            ("refresh", r#""expired":true"#),
        ] {
            let answer = cluster.post(&format!("/api/{method}"), &format!("{{{target},{more}}}"));
            assert_eq!(answer, r#"{"result":{}}"#, "{method} {target}");
        }
    }
    cluster.post("/api/publish", r#"{"channel":"news","data":1}"#);
    assert_eq!(listener.next().unwrap()["pub"]["data"], 1, "nobody was disconnected");
}

#[test]
fn a_field_that_dunlin_does_not_know_is_ignored_and_said_in_a_header() {
    let cluster = Cluster::start(1);
    let body = r#"{"channel":"news","data":1,"shard":2}"#;
    let answer = cluster.exchange("POST /api/publish", "Host: 127.0.0.1\r\n", body);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"offset\":1"), "{answer}");
    assert!(
        answer.contains("\r\nWarning: 299 - \"ignored unknown fields: shard\"\r\n"),
        "{answer}"
    );
    let batch = format!(
        "{{\"commands\":[{{\"publish\":{body}}},{{\"info\":{{}}}},{{\"publish\":{body}}}]}}"
    );
    let answer = cluster.exchange("POST /api/batch", "Host: 127.0.0.1\r\n", &batch);
    assert!(answer.contains("commands[0].publish.shard, commands[2].publish.shard"), "{answer}");
    assert!(answer.contains("\"offset\":3") && !answer.contains("error"), "{answer}");
}

#[test]
fn in_development_mode_a_channel_has_any_name_and_presence() {
    let cluster = Cluster::start(2);
    let mut listener = Listener::connect(cluster.address, "chat:1");
    let published = cluster.post("/api/publish", r#"{"channel":"chat:1","data":"hi"}"#);
    assert!(published.contains("\"offset\":1"), "{published}");
    assert_eq!(listener.next().unwrap()["pub"]["data"], "hi");
    let present = cluster.post("/api/presence_stats", r#"{"channel":"chat:1"}"#);
    assert_eq!(present, r#"{"result":{"num_clients":1,"num_users":1}}"#);
}

#[test]
fn refusal_as_not_available_names_the_setting() {
    let cluster = Cluster::start_with(1, |config| {
        config.channel.without_namespace = dunlin_config::ChannelOptions::default();
        config.channel.any_namespace = false;
    });
    for (method, settings) in [
        ("presence", "set `presence` of its namespace"),
        ("presence_stats", "set `presence` of its namespace"),
        ("history", "set `history_size` and `history_ttl_ms` of its namespace"),
    ] {
        let answer = cluster.post(&format!("/api/{method}"), r#"{"channel":"news"}"#);
        assert!(answer.contains("\"code\":108") && answer.contains(settings), "{answer}");
    }
    let answer = cluster.post("/api/presence", r#"{"channel":"chat:1"}"#);
    assert!(answer.contains("\"code\":102"), "{answer}");
}

/// A key in a query string appears in the logs of every proxy on its way.
#[test]
fn a_key_may_be_kept_out_of_query_strings() {
    const KEY: &str = "a-key-that-nobody-guesses";
    for (in_query, status) in [(true, 200), (false, 401)] {
        let cluster = Cluster::start_with(1, |config| {
            config.api.without_key = false;
            config.api.keys_in_query = in_query;
            config.api.keys.insert("backend", Secret::new(KEY));
        });
        let line = format!("POST /api/info?api_key={KEY}");
        assert_eq!(cluster.call(&line, "", "{}").0, status);
        let header = format!("X-API-Key: {KEY}\r\n");
        assert_eq!(cluster.call("POST /api/info", &header, "{}").0, 200);
    }
}

/// Regression: the connect reply contained it.
#[test]
fn clients_do_not_learn_the_name_of_the_machine() {
    let cluster = Cluster::start_with(1, |_| {});
    let open = "{\"id\":1,\"connect\":{}}";
    let (_, connected) = Listener::open(cluster.address, "/connection/http_stream", open);
    // `node` is the uid of the process, which is assigned when it starts and empty in this test.
    assert_eq!(connected["connect"]["node"].as_str().unwrap_or(""), cluster.state.uid);
}

#[test]
fn clients_whose_input_is_coalesced_hear_at_once_and_their_end_is_noticed() {
    let mut cluster = Cluster::start_with(2, |config| config.server.coalesce_ms = 50);
    let mut clients: Vec<Listener> =
        (0..8).map(|_| Listener::connect(cluster.address, "news")).collect();
    for message in 1..=20 {
        let body = format!("{{\"channel\":\"news\",\"data\":{message}}}");
        assert!(cluster.post("/api/publish", &body).contains("\"offset\""));
        for client in &mut clients {
            assert_eq!(client.next().unwrap()["pub"]["data"], message);
        }
    }
    drop(clients);
    cluster.look_after_until(|state| state.admissions.total() == 0);
}
