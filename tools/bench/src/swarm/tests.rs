//! Tests of the swarm against an independent WebSocket server (tungstenite).

use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::*;
use crate::protocol::ProtocolName;

type Socket = WebSocketStream<TcpStream>;

/// Serves every connection with `script`, on a thread that ends with the process.
fn server<F>(script: impl Fn(Socket) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = Option<()>> + Send + 'static,
{
    let (address, ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            address.send(listener.local_addr().unwrap()).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok(socket) = tokio_tungstenite::accept_async(stream).await {
                    tokio::spawn(script(socket));
                }
            }
        });
    });
    ready.recv().unwrap()
}

fn plan(server: SocketAddr, name: ProtocolName, connections: usize, threads: usize) -> Plan {
    Plan {
        server,
        protocol: Protocol {
            name,
            host: server.to_string(),
            path: "/connection/websocket".into(),
            channel: Some("c".into()),
            hello: Some("hello from {n}".into()),
            tokens: Arc::default(),
            delta: false,
            join_leave: false,
        },
        connections,
        tls: None,
        threads,
        cores: Vec::new(),
        connects_per_second: None,
        opening_max: 16,
        sources: Some(Ipv4Addr::new(127, 1, 0, 0)),
        ping: Ping::Answer,
        departures: None,
        clock: Clock::new(),
    }
}

fn until(swarm: &Swarm, what: impl Fn(&Counts) -> bool) -> Counts {
    let start = Instant::now();
    loop {
        let counts = swarm.counts();
        if what(&counts) {
            return counts;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{counts:?}");
        std::thread::yield_now();
    }
}

fn ready(plan: &Plan) -> Swarm {
    let swarm = Swarm::start(plan).unwrap();
    swarm.wait_ready(Duration::from_secs(20), |_| {}).unwrap();
    swarm
}

/// Reads connect and subscribe, and answers both in one frame.
async fn welcome<S>(socket: &mut WebSocketStream<S>) -> Option<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let hello = socket.next().await?.ok()?.into_text().ok()?;
    assert_eq!(
        hello.as_str(),
        "{\"connect\":{},\"id\":1}\n{\"subscribe\":{\"channel\":\"c\"},\"id\":2}"
    );
    let answers = "{\"id\":1,\"connect\":{\"client\":\"1\",\"ping\":25,\"pong\":true}}\n{\"id\":2,\"subscribe\":{}}";
    socket.send(Message::text(answers)).await.ok()
}

fn push(sequence: u32, offset: u64) -> Message {
    Message::text(format!(
        "{{\"push\":{{\"channel\":\"c\",\"pub\":{{\"data\":{{\"seq\":\"{sequence:010}\"}},\"offset\":{offset}}}}}}}"
    ))
}

#[test]
fn every_client_is_welcomed_asked_and_sent_three_messages() {
    let server = server(|mut socket| async move {
        welcome(&mut socket).await?;
        socket.send(Message::text("{}")).await.ok()?;
        assert_eq!(socket.next().await?.ok()?, Message::text("{}"));
        for sequence in 1..=3 {
            socket.send(push(sequence, 40 + u64::from(sequence))).await.ok()?;
        }
        while socket.next().await?.is_ok() {}
        None
    });
    let swarm = ready(&plan(server, ProtocolName::Centrifuge, 300, 3));
    let counts = until(&swarm, |counts| counts.publications == 900);
    assert_eq!((counts.ready, counts.pings, counts.closed), (300, 300, 0));
    let tally = swarm.finish(3).unwrap();
    assert!(tally.faults.is_none());
    assert_eq!((tally.complete, tally.pings_min), (300, 1));
}

#[test]
fn a_lost_a_repeated_and_a_late_message_are_reported_apart() {
    let server = server(|mut socket| async move {
        welcome(&mut socket).await?;
        for sequence in [1, 4, 4, 2] {
            socket.send(push(sequence, u64::from(sequence))).await.ok()?;
        }
        while socket.next().await?.is_ok() {}
        None
    });
    let swarm = ready(&plan(server, ProtocolName::Centrifuge, 10, 1));
    until(&swarm, |counts| counts.publications == 40);
    let tally = swarm.finish(4).unwrap();
    let faults = Faults { lost: 10, duplicated: 10, reordered: 10, offset_jumps: 30 };
    assert_eq!(tally.faults, faults);
}

#[test]
fn a_plain_websocket_says_hello_and_answers_a_ping_with_its_payload() {
    let server = server(|mut socket| async move {
        let hello = socket.next().await?.ok()?.into_text().ok()?;
        assert!(hello.as_str().starts_with("hello from "));
        socket.send(Message::Ping("are you there".into())).await.ok()?;
        assert_eq!(socket.next().await?.ok()?, Message::Pong("are you there".into()));
        socket.send(Message::text("x".repeat(70_000))).await.ok()?;
        while socket.next().await?.is_ok() {}
        None
    });
    let swarm = ready(&plan(server, ProtocolName::Websocket, 5, 1));
    // The message is longer than the receive buffer: it is cut, carried over and counted once.
    let counts = until(&swarm, |counts| counts.publications == 5);
    assert_eq!((counts.pings, counts.publication_bytes), (5, 350_000));
}

#[test]
fn a_plain_websocket_sends_pings_to_the_server() {
    // Tungstenite answers pings itself while the socket is read.
    let server = server(|mut socket| async move {
        while socket.next().await?.is_ok() {}
        None
    });
    let mut plan = plan(server, ProtocolName::Websocket, 20, 2);
    plan.ping = Ping::SendEvery(Duration::from_millis(50));
    let swarm = ready(&plan);
    until(&swarm, |counts| counts.pongs >= 60);
    assert_eq!(swarm.finish(0).unwrap().silent, 0);
}

#[test]
fn a_client_the_server_closes_is_counted_with_the_reason() {
    let server = server(|mut socket| async move {
        welcome(&mut socket).await?;
        let close = tokio_tungstenite::tungstenite::protocol::CloseFrame {
            code: 3001.into(),
            reason: "shutdown".into(),
        };
        socket.close(Some(close)).await.ok()
    });
    let swarm = ready(&plan(server, ProtocolName::Centrifuge, 4, 1));
    until(&swarm, |counts| counts.closed == 4);
    let tally = swarm.finish(0).unwrap();
    assert_eq!(tally.reasons.get("close 3001 shutdown"), Some(&4));
    assert_eq!(tally.complete, 0);
}

#[test]
fn a_server_that_says_no_is_quoted() {
    let server = server(|mut socket| async move {
        socket.next().await?.ok()?;
        let no = "{\"id\":1,\"error\":{\"code\":101,\"message\":\"unauthorized\"}}";
        socket.send(Message::text(no)).await.ok()
    });
    let swarm = Swarm::start(&plan(server, ProtocolName::Centrifuge, 1, 1)).unwrap();
    let error = swarm.wait_ready(Duration::from_secs(20), |_| {}).unwrap_err();
    assert!(error.to_string().contains("unauthorized"), "{error}");
}

#[test]
fn latencies_count_from_the_schedule() {
    let server = server(|mut socket| async move {
        welcome(&mut socket).await?;
        socket.send(push(1, 1)).await.ok()?;
        while socket.next().await?.is_ok() {}
        None
    });
    let mut plan = plan(server, ProtocolName::Centrifuge, 2, 1);
    let departures = Arc::new(Departures::new(1));
    // It was due a nanosecond after the clock began.
    departures.set(1, 1);
    plan.departures = Some(departures);
    let swarm = ready(&plan);
    let counts = until(&swarm, |counts| counts.publications == 2);
    let latencies = swarm.finish(1).unwrap().latencies.unwrap();
    assert_eq!(latencies.len(), 2);
    assert!(latencies.max() >= counts.last_publication_ns - 1);
}

#[test]
fn more_connections_than_descriptors_are_refused_with_the_remedy() {
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let error = Swarm::start(&plan(address, ProtocolName::Centrifuge, 100_000_000, 1)).unwrap_err();
    assert!(error.to_string().contains("use --threads"), "{error}");
}

#[test]
fn a_million_clients_spread_over_addresses_of_the_loopback_network() {
    let address = SocketAddr::from(([127, 0, 0, 1], 8000));
    let plan = plan(address, ProtocolName::Centrifuge, 1_000_000, 56);
    assert_eq!(plan.source(0), Some(IpAddr::from([127, 1, 1, 1])));
    assert_eq!(plan.source(7_999), plan.source(0));
    assert_eq!(plan.source(8_000), Some(IpAddr::from([127, 1, 1, 2])));
    let last = plan.source(64_515 * CLIENTS_PER_SOURCE);
    assert_eq!(last, Some(IpAddr::from([127, 1, 254, 254])));
}

#[test]
fn a_message_that_is_not_measured_has_no_departure() {
    let departures = Departures::new(2);
    departures.set(2, 17);
    departures.set(3, 18);
    let table = [0, 1, 2, 3].map(|sequence| departures.get(sequence));
    assert_eq!(table, [None, None, Some(17), None]);
}

#[test]
fn clients_speak_tls_to_a_server_of_somebody_elses_code() {
    let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let (address, bound) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            address.send(listener.local_addr().unwrap()).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let stream = acceptor.accept(stream).await.ok()?;
                    let mut socket = tokio_tungstenite::accept_async(stream).await.ok()?;
                    welcome(&mut socket).await?;
                    socket.send(push(1, 41)).await.ok()?;
                    while socket.next().await?.is_ok() {}
                    Some(())
                });
            }
        });
    });
    let mut plan = plan(bound.recv().unwrap(), ProtocolName::Centrifuge, 20, 2);
    plan.tls = Some(dunlin_load::http::tls::unverified().unwrap());
    let swarm = ready(&plan);
    let counts = until(&swarm, |counts| counts.publications == 20);
    assert_eq!((counts.ready, counts.closed, counts.failed), (20, 0, 0));
    assert!(swarm.finish(1).unwrap().faults.is_none());
}
