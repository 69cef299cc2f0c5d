//! The sender against the simulator, over sockets and TLS.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod bad_input;
mod go_away;
mod no_connection;
mod stalled;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use dunlin_push::apns::{Apns, Credential, DeviceToken, ProviderKey, ProviderToken, Push};
use dunlin_push::{Connections, Origin, Outcome, ResultStream, SenderConfig, results};
use dunlin_simulate::apns::{Behaviour, Config, FlipStreams, GoAway, Simulator, Unavailable};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// The ends of pushes with the tags from 0 on, each of which comes once.
async fn each_once(ends: &mut ResultStream, pushes: usize) -> Vec<Outcome> {
    let mut outcomes: Vec<Option<Outcome>> = vec![None; pushes];
    for _ in 0..pushes {
        let (tag, outcome) = ends.recv().await.unwrap();
        assert_eq!(outcomes[tag as usize].replace(outcome), None, "a push ends once");
    }
    outcomes.into_iter().map(|outcome| outcome.unwrap()).collect()
}

fn simulator(behaviour: Behaviour) -> Simulator {
    let listen = ([127, 0, 0, 1], 0).into();
    Simulator::start(Config { listen, behaviour, ..Config::default() }).unwrap()
}

fn origin(simulator: &Simulator) -> Origin {
    let mut origin = Origin::new("localhost", simulator.addr().port());
    origin.address = Some(simulator.addr().to_string());
    origin.roots.push(CertificateDer::from_pem_slice(simulator.ca_pem().as_bytes()).unwrap());
    origin.roots_only = true;
    origin
}

/// Where nobody listens until the caller does: a loopback address for each by this process and a count, and a port that no
/// outgoing connection gets.
fn nobody() -> SocketAddr {
    static COUNT: AtomicU8 = AtomicU8::new(0);
    let [low, high, ..] = std::process::id().to_le_bytes();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    SocketAddr::from((Ipv4Addr::new(127, 128 | high & 63, low, count), 61_234))
}

/// A sender that waits for answers longer than any machine takes.
fn sender(origin: Origin, connections: Connections) -> Apns {
    patient_sender(origin, connections, Duration::from_secs(600))
}

fn patient_sender(origin: Origin, connections: Connections, answer_within: Duration) -> Apns {
    sender_with(origin, SenderConfig { connections, answer_within, ..SenderConfig::default() })
}

fn sender_with(origin: Origin, config: SenderConfig) -> Apns {
    let key = ProviderKey::from_scalar(&[7; 32], "ABC123DEFG", "TEAM123456").unwrap();
    Apns::start(origin, Credential::Token(ProviderToken::new(key)), config).unwrap()
}

/// Waits until something is so.
async fn until(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("it never came to be");
}

fn push(prefix: &str, number: usize) -> Push {
    let digits = 64 - prefix.len();
    let token = DeviceToken::new(&format!("{prefix}{number:0digits$x}")).unwrap();
    Push::new(token, "com.example.app", &br#"{"aps":{"alert":"hi"}}"#[..])
}

#[tokio::test]
async fn refusals_arrive_as_apple_words_them() {
    let simulator = simulator(Behaviour::default());
    let apns = sender(origin(&simulator), Connections::Fixed(1));
    let outcome = apns.send(&push("aaaa", 1)).await;
    let Outcome::Accepted(accepted) = &outcome else { panic!("{outcome}") };
    assert_eq!(accepted.id, simulator.ledger()[0].apns_id);
    for (prefix, status, reason) in [
        ("dead", 410, "Unregistered"),
        ("bad0", 400, "BadDeviceToken"),
        ("d0f0", 400, "DeviceTokenNotForTopic"),
    ] {
        let outcome = apns.send(&push(prefix, 1)).await;
        let Outcome::Rejected(rejected) = &outcome else { panic!("{outcome}") };
        assert_eq!((rejected.status, &*rejected.reason), (status, reason));
        assert_eq!(rejected.timestamp_ms.is_some(), status == 410);
    }
}

/// Proxies of one connection each: they read what they are asked, answer, and carry.
#[tokio::test]
async fn proxies_are_passed() {
    let simulator = simulator(Behaviour::default());
    let target = simulator.addr();
    for scheme in ["http", "socks5"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let proxy = tokio::spawn(async move {
            let (mut near, _) = listener.accept().await.unwrap();
            if scheme == "http" {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(near.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                assert!(
                    head.starts_with(&format!("CONNECT localhost:{} HTTP/1.1\r\n", target.port()))
                );
                assert!(head.contains("Proxy-Authorization: Basic dXNlcjpwdw==\r\n"), "{head}");
                near.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
            } else {
                let mut hello = [0; 3];
                near.read_exact(&mut hello).await.unwrap();
                assert_eq!(hello, [5, 1, 2]);
                near.write_all(&[5, 2]).await.unwrap();
                let mut login = [0; 9];
                near.read_exact(&mut login).await.unwrap();
                assert_eq!(&login, b"\x01\x04user\x02pw");
                near.write_all(&[1, 0]).await.unwrap();
                let mut request = [0; 16];
                near.read_exact(&mut request).await.unwrap();
                assert_eq!(&request[..14], b"\x05\x01\x00\x03\x09localhost");
                near.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
            }
            let mut far = TcpStream::connect(target).await.unwrap();
            let _ = copy_bidirectional(&mut near, &mut far).await;
        });
        let mut origin = origin(&simulator);
        origin.address = None;
        origin.proxy = Some(format!("{scheme}://user:pw@{at}").parse().unwrap());
        let apns = sender(origin, Connections::Fixed(1));
        let outcome = apns.send(&push("aaaa", 1)).await;
        assert!(matches!(outcome, Outcome::Accepted(_)), "{scheme}: {outcome}");
        drop(apns);
        proxy.await.unwrap();
    }
    for wrong in
        ["localhost:1", "ftp://localhost:1", "http://localhost", "http://:1", "socks5://a:b"]
    {
        assert!(wrong.parse::<dunlin_push::Proxy>().is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn both_ledgers_agree_after_a_storm() {
    const PUSHES: usize = 5_000;
    let simulator = simulator(Behaviour {
        goaway: GoAway { every: 1_000, unprocessed: 10, close: false },
        reset_every: 501,
        reset_code: 2,
        lose_answer_every: 997,
        unavailable: Unavailable { every: 1_500, burst: 20 },
        flip_streams: FlipStreams { every: 500, low: 1 },
        ..Behaviour::default()
    });
    // An answer that is lost holds its stream for so long, which may be the only one.
    let answer_within = Duration::from_millis(300);
    let apns = patient_sender(origin(&simulator), Connections::Auto { max: 4 }, answer_within);
    let (sender, mut ends) = results();
    let submitting = async {
        for number in 0..PUSHES {
            let mut push = push("aaaa", number);
            push.timeout = Duration::from_secs(120);
            apns.submit(&push, number as u64, &sender).await.unwrap();
        }
    };
    let ((), outcomes) = tokio::join!(submitting, each_once(&mut ends, PUSHES));
    let mut accepted = vec![0; PUSHES];
    for entry in simulator.ledger().iter().filter(|entry| entry.status == 200) {
        accepted[usize::from_str_radix(&entry.device_token[4..], 16).unwrap()] += 1;
    }
    for (outcome, times) in outcomes.into_iter().zip(accepted) {
        match outcome {
            Outcome::Accepted(_) => assert_eq!(times, 1),
            Outcome::Uncertain(_) => assert!(times <= 1, "{times}"),
            Outcome::Rejected(_) | Outcome::NotSent(_) => assert_eq!(times, 0),
        }
    }
}
