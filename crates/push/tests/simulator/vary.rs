//! Answer times that vary, from the simulator and from a server of other people.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dunlin_push::apns::Apns;
use dunlin_push::{Connections, Origin, Outcome, results};
use dunlin_simulate::apns::{AnswerTime, Behaviour};
use rustls::pki_types::CertificateDer;

use super::{each_once, origin, sender, simulator};

const PUSHES: usize = 2_000;
/// What they take with four in flight and 28.5 ms each. With hundreds it is a fiftieth of that.
const FOUR_IN_FLIGHT: Duration = Duration::from_millis(2_000 * 285 / 10 / 4);

async fn all_are_accepted_in_a_fraction(apns: &Apns) {
    let (outcomes_in, mut outcomes) = results();
    let begin = Instant::now();
    for tag in 0..PUSHES {
        let push = super::push("aa", tag);
        apns.submit(&push, tag as u64, &outcomes_in).await.unwrap();
    }
    for outcome in each_once(&mut outcomes, PUSHES).await {
        assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome}");
    }
    assert!(begin.elapsed() < FOUR_IN_FLIGHT / 4, "{:?} {:?}", begin.elapsed(), apns.metrics());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fastest_answer_is_not_taken_for_the_path() {
    for (rtt_ms, answer_time) in [(0, "bimodal:0.05,1,30"), (20, "5+exponential:20")] {
        let answer_time = answer_time.parse::<AnswerTime>().unwrap();
        let behaviour =
            Behaviour { rtt_ms, answer_time, connection_window: 16 << 20, ..Behaviour::default() };
        let simulator = simulator(behaviour);
        let apns = sender(origin(&simulator), Connections::Fixed(1));
        all_are_accepted_in_a_fraction(&apns).await;
    }
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Go's `net/http`, whose scheduler and windows are its own. Where there is no Go there is nothing to show.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_other_people_varies_as_it_likes() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("vary");
    std::fs::create_dir_all(&directory).unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/bench/go-server");
    let program = directory.join("go-server");
    let mut built = Command::new("go");
    built.arg("build").arg("-o").arg(&program).arg(".").current_dir(sources);
    if !built.status().is_ok_and(|status| status.success()) {
        eprintln!("no Go here: not tried");
        return;
    }
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (directory.join("cert.pem"), directory.join("key.pem"));
    std::fs::write(&certificate, signed.cert.pem()).unwrap();
    std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Command::new(&program)
        .arg(free.to_string())
        .args([&certificate, &key])
        .args(["1ms", "30ms"])
        .stderr(Stdio::null())
        .spawn();
    let _server = Running(server.unwrap());
    let mut origin = Origin::new("localhost", free.port());
    origin.address = Some(free.to_string());
    origin.roots.push(CertificateDer::from(signed.cert.der().to_vec()));
    origin.roots_only = true;
    let apns = sender(origin, Connections::Fixed(1));
    // Until it listens, connecting is tried again.
    apns.send(&super::push("aa", 0)).await;
    all_are_accepted_in_a_fraction(&apns).await;
}
