//! Stories against servers of other people: Go's `net/http` and netty's, over sockets and TLS, and the `h2` crate's, in memory and
//! in virtual time. All answer as the first two digits of the device token say.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod h2;
#[allow(dead_code, reason = "shared with the tests of `push import`")]
mod program;

use std::time::{Duration, SystemTime};

use dunlin_push::apns::{Apns, Credential, DeviceToken, ProviderKey, ProviderToken, Push};
use dunlin_push::{Connections, Origin, Outcome, SenderConfig, Uncertain, results};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::net::{TcpListener, TcpStream};

use self::h2::H2;
use self::program::Program;
use crate::stories::harness::{delay, send_all};

const PUSHES: usize = 2_000;
const NEAR: Duration = Duration::ZERO;
const FAR: Duration = Duration::from_millis(250);
const ONE: Connections = Connections::Fixed(1);

/// A server of other people.
trait Other {
    /// A sender that is so far away from it.
    async fn sender(&self, rtt: Duration, token: ProviderToken, connections: Connections) -> Apns;
}

impl Other for Program {
    async fn sender(&self, rtt: Duration, token: ProviderToken, connections: Connections) -> Apns {
        let mut origin = Origin::new("localhost", self.address.port());
        let address = if rtt.is_zero() { self.address } else { relay(self.address, rtt).await };
        origin.address = Some(address.to_string());
        origin.roots.push(CertificateDer::from_pem_file(self.certificate()).unwrap());
        origin.roots_only = true;
        Apns::start(origin, Credential::Token(token), config(connections)).unwrap()
    }
}

/// Carries connections, each half of the round trip late.
async fn relay(address: std::net::SocketAddr, rtt: Duration) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            tokio::spawn(async move {
                let far = TcpStream::connect(address).await.unwrap();
                near.set_nodelay(true).unwrap();
                far.set_nodelay(true).unwrap();
                delay(near, far, rtt / 2).await;
            });
        }
    });
    at
}

fn config(connections: Connections) -> SenderConfig {
    // Longer than any machine takes.
    let answer_within = Duration::from_secs(600);
    SenderConfig { connections, answer_within, ..SenderConfig::default() }
}

fn token() -> ProviderToken {
    ProviderToken::new(ProviderKey::from_scalar(&[7; 32], "ABC123DEFG", "TEAM123456").unwrap())
}

fn push(prefix: &str, number: usize) -> Push {
    let digits = 64 - prefix.len();
    let token = DeviceToken::new(&format!("{prefix}{number:0digits$x}")).unwrap();
    let mut push = Push::new(token, "com.example.app", &br#"{"aps":{"alert":"hi"}}"#[..]);
    push.timeout = Duration::from_secs(600);
    push
}

/// One of a kilobyte.
fn large(prefix: &str, number: usize) -> Push {
    let payload = format!("{{\"aps\":\"{}\"}}", "x".repeat(1_014));
    Push { payload: payload.into(), ..push(prefix, number) }
}

fn pushes(prefix: &str, count: usize) -> Vec<Push> {
    (0..count).map(|number| push(prefix, number)).collect()
}

fn all_accepted(outcomes: &[Outcome]) {
    let other = outcomes.iter().find(|outcome| !matches!(outcome, Outcome::Accepted(_)));
    assert_eq!(other, None);
}

/// What becomes of pushes one by one. `heads`: the server sends heads that are longer than it was asked to.
async fn answers(server: &impl Other, varies: &[&str], heads: bool) {
    // A token that expires under 500 pushes in flight: those that carried it are sent again with the next.
    let aged = token();
    aged.authorization(SystemTime::now() - Duration::from_secs(30 * 60));
    let apns = server.sender(NEAR, aged, ONE).await;
    all_accepted(&send_all(&apns, &pushes("ee", 100)).await);
    all_accepted(&send_all(&apns, &pushes("d0", 500)).await);

    // Answer times that vary. The rate is judged in virtual time and by the benchmark.
    let apns = server.sender(NEAR, token(), ONE).await;
    all_accepted(&send_all(&apns, &pushes("ed", 500)).await);
    for prefix in varies {
        all_accepted(&send_all(&apns, &pushes(prefix, PUSHES)).await);
    }

    // Four spurious refusals of the credential stop nothing.
    let of = |n| if n < 4 { push("c0", n) } else { push("ef", n) };
    let outcomes = send_all(&apns, &(0..1_000).map(of).collect::<Vec<_>>()).await;
    all_accepted(&outcomes[4..]);
    assert!(outcomes[..4].iter().all(|outcome| outcome.reason() == "InvalidProviderToken"));

    // A head that is too long costs neither its push nor its connection.
    let of = |n| if heads && n == 50 { push("b2", n) } else { push("e0", n) };
    all_accepted(&send_all(&apns, &(0..100).map(of).collect::<Vec<_>>()).await);
    assert_eq!((apns.metrics().lost, apns.metrics().opened), (0, 1));

    // A refusal for a while is asked again, a dead token keeps its reason, a resend that is rejected its mark.
    all_accepted(&[apns.send(&push("b3", 1)).await]);
    let dead = apns.send(&push("b1", 1)).await;
    assert!(matches!(&dead, Outcome::Rejected(rejected)
        if rejected.reason == "Unregistered" && rejected.timestamp_ms == Some(1_795_276_142_526)));
    let mut twice = push("b4", 1);
    twice.resend_uncertain = true;
    let twice = apns.send(&twice).await;
    assert!(
        matches!(&twice, Outcome::Rejected(rejected) if rejected.possible_duplicate),
        "{twice}"
    );

    // What left before its deadline is answered after it, once the sender knows how long answers take. Where the machine was
    // too slow for it to leave at all, another is tried.
    let apns = server.sender(NEAR, token(), ONE).await;
    all_accepted(&[apns.send(&push("b5", 0)).await]);
    for number in 1.. {
        let mut late = push("b5", number);
        late.timeout = Duration::from_millis(500);
        match apns.send(&late).await {
            Outcome::Accepted(_) => break,
            Outcome::NotSent(_) | Outcome::Uncertain(Uncertain::Deadline) if number < 20 => {}
            outcome => panic!("{outcome}"),
        }
    }
}

/// Streams that are refused are begun again, ever more rarely. (Go has no word for this.)
async fn refused_streams(server: &impl Other) {
    let apns = server.sender(NEAR, token(), ONE).await;
    all_accepted(&send_all(&apns, &pushes("b6", 20)).await);
    assert_eq!(apns.metrics().refused, 20 * 5, "each as often as the server does it");
}

/// A list that is queued at once is demand, for which connections are opened; of a longer one, where the machine is so slow that
/// one connection could not be seen to be bound.
async fn list(server: &impl Other, opened_min: u64) {
    let apns = server.sender(FAR, token(), Connections::Auto { max: 32 }).await;
    for count in [6_000, 12_000, 24_000] {
        let list: Vec<Push> = (0..count).map(|number| large("e1", number)).collect();
        all_accepted(&send_all(&apns, &list).await);
        if apns.metrics().opened >= opened_min {
            return;
        }
    }
    panic!("{} were opened", apns.metrics().opened);
}

/// A connection that doubled the rate is kept: under constant demand both come to answer more than a trial takes. How many were
/// opened for that.
async fn kept(server: &impl Other) -> u64 {
    let apns = server.sender(FAR, token(), Connections::Auto { max: 2 }).await;
    let (sink, mut outcomes) = results();
    let (mut number, mut waiting) = (0, 0);
    loop {
        while waiting < 4_000 {
            apns.submit(&large("e2", number), 0, &sink).await.unwrap();
            (number, waiting) = (number + 1, waiting + 1);
        }
        let (_, outcome) = outcomes.recv().await.unwrap();
        assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome}");
        waiting -= 1;
        if !number.is_multiple_of(100) {
            continue;
        }
        let connections = apns.metrics().connections;
        if connections.iter().filter(|connection| connection.answered >= 2_500).count() == 2 {
            return apns.metrics().opened;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_story_holds_against_gos_server() {
    if let Some(go) = Program::go() {
        answers(&go, &["aa", "ab", "ac"], true).await;
        list(&go, 2).await;
        kept(&go).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_story_holds_against_nettys_server() {
    if let Some(netty) = Program::netty() {
        answers(&netty, &["aa", "ab", "ac"], false).await;
        refused_streams(&netty).await;
        list(&netty, 4).await;
        kept(&netty).await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_story_holds_against_the_h2_crates_server() {
    let server = H2::default();
    answers(&server, &["aa", "ab"], true).await;
    refused_streams(&server).await;
    list(&server, 4).await;
    assert_eq!(kept(&server).await, 2, "none is closed");
}

/// Connections begin quick, and become slower as requests to the slow shard take up their streams. One more is compared with what
/// the others do by then.
#[tokio::test(start_paused = true)]
async fn connections_are_opened_though_one_device_in_eight_is_slow() {
    let mut server = H2::default();
    server.streams = 100;
    let apns =
        server.sender(Duration::from_millis(50), token(), Connections::Auto { max: 4 }).await;
    let (sink, mut outcomes) = results();
    let end = tokio::time::Instant::now() + Duration::from_secs(20);
    let (mut number, mut waiting) = (0, 0);
    while tokio::time::Instant::now() < end {
        while waiting < 2_000 {
            apns.submit(&push("ad", number), 0, &sink).await.unwrap();
            (number, waiting) = (number + 1, waiting + 1);
        }
        assert!(matches!(outcomes.recv().await, Some((_, Outcome::Accepted(_)))));
        waiting -= 1;
    }
    assert_eq!(apns.metrics().connections.len(), 4);
}
