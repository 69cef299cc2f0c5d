//! The known abuses of HTTP/2, by a server, over sockets and TLS: every push ends with a true outcome, the connection is
//! given up with the reason, the next one carries on, and memory stays where it was. Alone in its process, so that its
//! memory is the sender's (and the simulator's, which makes its floods as they are taken).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use dunlin_push::apns::{Apns, Credential, DeviceToken, ProviderKey, ProviderToken, Push};
use dunlin_push::{Connections, Origin, Outcome, SenderConfig, Uncertain, results};
use dunlin_simulate::apns::{AnswerTime, Behaviour, Config, Order, Simulator};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(120);
const PUSHES: usize = 200;
/// A flood without end, for all who have ends: 17 MB of PING, 64 MiB of header block.
const FRAMES: u32 = 1_000_000;
/// How much the most that the process ever held may grow: far less than a single flood.
const GROWTH_BYTES_MAX: u64 = 12 << 20;
/// How often each abuse comes: what one leaves behind would add up.
const ROUNDS: usize = 2;

/// The most memory that the process held so far.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn push(number: usize) -> Push {
    let token = DeviceToken::new(&format!("{number:064x}")).unwrap();
    let mut push = Push::new(token, "com.example.app", &br#"{"aps":{"alert":"hi"}}"#[..]);
    push.timeout = TIMEOUT;
    push
}

struct Stage {
    simulator: Simulator,
    apns: Apns,
    numbers: std::ops::RangeFrom<usize>,
}

impl Stage {
    fn new() -> Stage {
        let behaviour =
            Behaviour { answer_time: AnswerTime::constant(20.0), ..Behaviour::default() };
        let simulator = Simulator::start(Config { behaviour, ..Config::default() }).unwrap();
        let mut origin = Origin::new("localhost", simulator.addr().port());
        origin.address = Some(simulator.addr().to_string());
        let root = CertificateDer::from_pem_slice(simulator.ca_pem().as_bytes()).unwrap();
        (origin.roots, origin.roots_only) = (vec![root], true);
        let key = ProviderKey::from_scalar(&[7; 32], "ABC123DEFG", "TEAM123456").unwrap();
        let config = SenderConfig { connections: Connections::Fixed(1), ..SenderConfig::default() };
        let credential = Credential::Token(ProviderToken::new(key));
        let apns = Apns::start(origin, credential, config).unwrap();
        Stage { simulator, apns, numbers: 0.. }
    }

    /// Has the server do it in the midst of pushes, and judges how each of them ended. Says why the sender gave the
    /// connection up.
    async fn suffer(&mut self, order: Order) -> String {
        let (apns, simulator) = (&self.apns, &self.simulator);
        // So that the peer has granted more than one stream.
        let first = apns.send(&push(self.numbers.next().unwrap())).await;
        assert!(matches!(first, Outcome::Accepted(_)), "{order:?}: {first}");
        let before = apns.metrics();
        let numbers: Vec<usize> = self.numbers.by_ref().take(PUSHES).collect();
        let (sink, mut ends) = results();
        let received = simulator.counts().received;
        for &number in &numbers {
            apns.submit(&push(number), number as u64, &sink).await.unwrap();
        }
        while simulator.counts().received < received + PUSHES as u64 / 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        simulator.order(order);
        let mut outcomes = Vec::new();
        for _ in 0..PUSHES {
            outcomes.push(ends.recv().await.unwrap());
        }
        let ledger = simulator.ledger();
        for (number, outcome) in outcomes {
            let token = format!("{number:064x}");
            let times = ledger.iter().filter(|entry| entry.device_token == token).count();
            let is_true = match &outcome {
                Outcome::Accepted(_) => times == 1,
                Outcome::Uncertain(Uncertain::ConnectionLost | Uncertain::Reset) => times <= 1,
                _ => false,
            };
            assert!(is_true, "{order:?}: {outcome}, processed {times} times");
        }
        // One that is abused when everything has been answered is given up all the same.
        let is_old = |id| before.connections.iter().any(|connection| connection.id == id);
        while apns.metrics().connections.iter().any(|connection| is_old(connection.id)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let after = apns.metrics();
        if after.lost > before.lost { after.lost_error.unwrap() } else { "drained".to_owned() }
    }
}

#[tokio::test]
async fn abuses_end_their_connection_and_cost_no_push_and_no_memory() {
    let abuses = [
        (Order::Garbage, "the peer broke HTTP/2"),
        (Order::EndlessHeaders, "header block is too long"),
        (Order::FloodContinuation { n: FRAMES }, "header block is too long"),
        (Order::FloodSettings { n: FRAMES }, "flood of SETTINGS"),
        (Order::FloodPing { n: FRAMES }, "flood of PING"),
        (Order::FloodReset { n: FRAMES }, "flood of RST_STREAM"),
        (Order::FloodWindowUpdate { n: FRAMES }, "flood of WINDOW_UPDATE"),
        (Order::FloodData { n: FRAMES }, "flood of "),
        // Drained, if nothing was under way any more.
        (Order::FloodGoAway { n: FRAMES }, ""),
        (Order::FloodUnknown { n: FRAMES }, "flood of frames that mean nothing"),
        (Order::Abort, ""),
        (Order::Close, "the peer closed the connection"),
    ];
    let stories = async {
        let mut stage = Stage::new();
        // What is held for good (buffers, certificates, code) is there after a first round.
        stage.suffer(Order::FloodPing { n: FRAMES }).await;
        let before = peak_bytes();
        for _ in 0..ROUNDS {
            for (order, reason) in abuses {
                let why = stage.suffer(order).await;
                assert!(why.contains(reason), "{order:?}: {why}");
            }
        }
        let metrics = stage.apns.metrics();
        assert_eq!(metrics.queued_bytes, 0, "all room was given back");
        assert_eq!(metrics.rejected + metrics.not_sent, 0, "{metrics:?}");
        let growth = peak_bytes() - before;
        assert!(growth <= GROWTH_BYTES_MAX, "grew by {growth} bytes");
    };
    tokio::time::timeout(TIMEOUT, stories).await.expect("in time");
}
