//! Everything at once: the sender's ledger and the server's agree push by push.

use std::sync::Arc;
use std::time::Duration;

use dunlin_push::{Connections, Outcome};

use super::harness::{Act, Script, Server, push, send_all};

#[tokio::test(start_paused = true)]
async fn no_push_is_lost_and_none_is_twice_that_was_not_marked() {
    let act = |number: usize| match number {
        // Bursts of 503.
        _ if number % 5_000 < 50 => Act::Refuse(503, "ServiceUnavailable"),
        _ if number % 1_000 == 999 => Act::GoAway,
        _ if number.is_multiple_of(701) => Act::Cut,
        _ if number.is_multiple_of(97) => Act::RefuseStream,
        _ if number.is_multiple_of(89) => Act::AcceptAndReset,
        _ if number.is_multiple_of(211) => Act::AcceptSilently,
        _ if number.is_multiple_of(307) => Act::Streams(1),
        _ if number % 307 == 20 => Act::Streams(1_000),
        _ if number.is_multiple_of(61) => Act::Refuse(410, "Unregistered"),
        _ => Act::Accept,
    };
    let script = Script {
        act: Arc::new(act),
        rtt: Duration::from_millis(50),
        window_more: 0,
        ..Script::default()
    };
    for (resend, connections) in
        [(false, Connections::Fixed(1)), (true, Connections::Auto { max: 4 })]
    {
        let server = Server::new(script.clone());
        let apns = server.sender(connections);
        let pushes: Vec<_> = (0..20_000)
            .map(|number| {
                let mut push = push(number, 100 + number % 900);
                push.resend_uncertain = resend;
                push.timeout = Duration::from_secs(600);
                push
            })
            .collect();
        let outcomes = send_all(&apns, &pushes).await;
        let mut counts = [0; 4];
        for (push, outcome) in pushes.iter().zip(&outcomes) {
            let accepted = server.accepted(push);
            let (kind, right) = match outcome {
                Outcome::Accepted(how) if how.possible_duplicate => (0, accepted >= 1),
                Outcome::Accepted(_) => (0, accepted == 1),
                Outcome::Rejected(_) => (1, accepted == 0 || resend),
                Outcome::NotSent(_) => (2, accepted == 0),
                Outcome::Uncertain(_) => (3, accepted <= 1 || resend),
            };
            assert!(right, "{outcome:?}, accepted {accepted} times");
            counts[kind] += 1;
        }
        let metrics = apns.metrics();
        // A cut leaves what was in flight uncertain.
        assert!(counts[0] > if resend { 19_000 } else { 12_000 }, "{counts:?}");
        assert!(metrics.refused > 100 && metrics.retried > 50, "{metrics:?}");
        assert_eq!(metrics.accepted as usize, counts[0]);
        assert_eq!(metrics.queued_bytes, 0, "and all room was given back");
    }
}
