//! Stories against servers of other people: Go's `net/http`, over a socket and TLS, and the `h2` crate's. Both answer as the
//! first two digits of the device token say (scripts/bench/go-server).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dunlin_push::apns::{Apns, Credential, ProviderKey, ProviderToken, Push};
use dunlin_push::{
    Connect, Connecting, Connections, Io, Origin, Outcome, SenderConfig, Stage, results,
};
use rustls::pki_types::CertificateDer;

use super::{each_once, push};

const PUSHES: usize = 2_000;

/// A server of other people.
trait Other {
    fn sender(&self, token: ProviderToken, config: SenderConfig) -> Apns;
}

/// Go's, until dropped.
struct Go {
    child: Child,
    address: SocketAddr,
    certificate: CertificateDer<'static>,
}

impl Go {
    /// `None` where there is no Go.
    fn start() -> Option<Go> {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
        std::fs::create_dir_all(&directory).unwrap();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/bench/go-server");
        let program = directory.join("go-server");
        let mut build = Command::new("go");
        build.arg("build").arg("-o").arg(&program).arg(".").current_dir(sources);
        match build.status() {
            Ok(status) => assert!(status.success(), "the server does not build"),
            Err(error) => {
                eprintln!("no Go here, not tried: {error}");
                return None;
            }
        }
        let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (certificate, key) = (directory.join("cert.pem"), directory.join("key.pem"));
        std::fs::write(&certificate, signed.cert.pem()).unwrap();
        std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut server = Command::new(&program);
        server.arg(free.to_string()).args([&certificate, &key]).arg("vary");
        let child = server.stderr(Stdio::null()).spawn().unwrap();
        let certificate = CertificateDer::from(signed.cert.der().to_vec());
        Some(Go { child, address: free, certificate })
    }
}

impl Drop for Go {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Other for Go {
    fn sender(&self, token: ProviderToken, config: SenderConfig) -> Apns {
        let mut origin = Origin::new("localhost", self.address.port());
        origin.address = Some(self.address.to_string());
        origin.roots.push(self.certificate.clone());
        origin.roots_only = true;
        // Until it listens, connecting is tried again.
        Apns::start(origin, Credential::Token(token), config).unwrap()
    }
}

/// The `h2` crate's, over a pipe in memory.
#[derive(Clone, Default)]
struct H2(Arc<Mutex<Asked>>);

#[derive(Default)]
struct Asked {
    by_path: HashMap<String, usize>,
    first: Option<Vec<u8>>,
}

impl H2 {
    /// How long, and what.
    fn answer(&self, path: &str, authorization: &[u8]) -> (u64, Result<(u16, &str), h2::Reason>) {
        let mut asked = self.0.lock().unwrap();
        let before = asked.by_path.entry(path.to_owned()).or_default();
        *before += 1;
        let (before, all) = (*before - 1, asked.by_path.len() as u64);
        let is_first = asked.first.get_or_insert_with(|| authorization.to_vec()) == authorization;
        let drawn = (all.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / f64::from(1 << 24);
        match &path["/3/device/".len()..][..2] {
            "aa" => (if all.is_multiple_of(20) { 1 } else { 30 }, Ok((200, ""))),
            "ab" => (5 + (-25.0 * (1.0 - drawn).ln()) as u64, Ok((200, ""))),
            "b1" => (0, Ok((410, r#"{"reason":"Unregistered","timestamp":"1795276142526.25"}"#))),
            "b3" if before == 0 => (0, Ok((503, r#"{"reason":"ServiceUnavailable"}"#))),
            "b4" if before == 0 => (0, Err(h2::Reason::INTERNAL_ERROR)),
            "b4" => (0, Ok((400, r#"{"reason":"BadDeviceToken"}"#))),
            "b5" => (700, Ok((200, ""))),
            "b6" if before < 5 => (0, Err(h2::Reason::REFUSED_STREAM)),
            "c0" => (0, Ok((403, r#"{"reason":"InvalidProviderToken"}"#))),
            "d0" if is_first => (50, Ok((403, r#"{"reason":"ExpiredProviderToken"}"#))),
            _ => (0, Ok((200, ""))),
        }
    }

    async fn serve(self, stream: tokio::io::DuplexStream) {
        let mut connection = h2::server::Builder::new();
        connection.max_concurrent_streams(1_000);
        let mut connection = connection.handshake::<_, Bytes>(stream).await.unwrap();
        while let Some(Ok((mut request, mut respond))) = connection.accept().await {
            let server = self.clone();
            tokio::spawn(async move {
                while let Some(Ok(piece)) = request.body_mut().data().await {
                    let _ = request.body_mut().flow_control().release_capacity(piece.len());
                }
                let path = request.uri().path();
                let (ms, answer) =
                    server.answer(path, request.headers()["authorization"].as_bytes());
                tokio::time::sleep(Duration::from_millis(ms)).await;
                match answer {
                    Err(reason) => respond.send_reset(reason),
                    Ok((status, body)) => {
                        let mut response = http::Response::builder().status(status);
                        if path.starts_with("/3/device/b2") {
                            response = response.header("x-filler", "x".repeat(32 << 10));
                        }
                        let response = response.body(()).unwrap();
                        // The peer may have given it up.
                        if let Ok(mut stream) = respond.send_response(response, false) {
                            let _ = stream.send_data(Bytes::from(body.to_owned()), true);
                        }
                    }
                }
            });
        }
    }
}

impl Connect for H2 {
    fn connect(&self, _: Stage) -> Connecting<'_> {
        Box::pin(async {
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            tokio::spawn(self.clone().serve(theirs));
            Ok(Box::new(ours) as Io)
        })
    }
}

impl Other for H2 {
    fn sender(&self, token: ProviderToken, config: SenderConfig) -> Apns {
        Apns::start_with("push.test".to_owned(), Some(token), self.clone(), config)
    }
}

fn token() -> ProviderToken {
    ProviderToken::new(ProviderKey::from_scalar(&[7; 32], "ABC123DEFG", "TEAM123456").unwrap())
}

fn config() -> SenderConfig {
    SenderConfig { connections: Connections::Fixed(1), ..SenderConfig::default() }
}

async fn send_all(apns: &Apns, pushes: impl Iterator<Item = Push>) -> Vec<Outcome> {
    let (outcomes_in, mut outcomes) = results();
    let mut count = 0;
    for push in pushes {
        apns.submit(&push, count as u64, &outcomes_in).await.unwrap();
        count += 1;
    }
    each_once(&mut outcomes, count).await
}

fn all_accepted(outcomes: &[Outcome]) {
    let other = outcomes.iter().find(|outcome| !matches!(outcome, Outcome::Accepted(_)));
    assert_eq!(other, None);
}

/// All stories that both can play.
async fn stories(server: &impl Other, varies: &[&str]) {
    // A token that expires under 500 pushes in flight: those that carried it are sent again with the next.
    let aged = token();
    aged.authorization(SystemTime::now() - Duration::from_secs(30 * 60));
    let apns = server.sender(aged, config());
    all_accepted(&send_all(&apns, (0..100).map(|n| push("ee", n))).await);
    all_accepted(&send_all(&apns, (0..500).map(|n| push("d0", n))).await);

    // Answer times that vary. The rate is judged in virtual time and by the benchmark.
    let apns = server.sender(token(), config());
    all_accepted(&send_all(&apns, (0..500).map(|n| push("ee", n))).await);
    for prefix in varies {
        let pushes = (0..PUSHES).map(|n| push(prefix, n));
        all_accepted(&send_all(&apns, pushes).await);
    }

    // Four spurious refusals of the credential stop nothing.
    let of = |n| if n < 4 { push("c0", n) } else { push("ef", n) };
    let outcomes = send_all(&apns, (0..1_000).map(of)).await;
    all_accepted(&outcomes[4..]);
    assert!(outcomes[..4].iter().all(|outcome| outcome.reason() == "InvalidProviderToken"));

    // A head that is too long costs neither its push nor its connection.
    let of = |n| if n == 50 { push("b2", n) } else { push("e0", n) };
    all_accepted(&send_all(&apns, (0..100).map(of)).await);
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

    // What left before its deadline is answered after it. Of a sender that has seen no answer yet, which waits a second.
    let apns = server.sender(token(), config());
    let mut late = push("b5", 1);
    late.timeout = Duration::from_millis(500);
    all_accepted(&[apns.send(&late).await]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_story_holds_against_gos_server() {
    if let Some(go) = Go::start() {
        stories(&go, &["aa", "ab", "ac"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_story_holds_against_the_h2_crates_server() {
    let server = H2::default();
    stories(&server, &["aa", "ab"]).await;
    // Go has no word for this: streams that are refused are begun again, ever more rarely.
    let apns = server.sender(token(), config());
    all_accepted(&send_all(&apns, (0..20).map(|n| push("b6", n))).await);
    let asked = server.0.lock().unwrap();
    let tries = asked.by_path.iter().filter(|(path, _)| path.starts_with("/3/device/b6"));
    assert!(
        tries.map(|(_, tries)| *tries).max() == Some(6),
        "each as often as it was refused, and once more"
    );
}
