//! A credential that expires, or is refused now and then, while many pushes are in flight.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dunlin_push::apns::{Apns, ProviderKey, ProviderToken};
use dunlin_push::{Connections, Outcome, OutcomeCounts, SenderConfig};
use tokio::time::Instant;

use super::harness::{Act, Script, Server, push, send_all};

const RTT: Duration = Duration::from_millis(250);

/// A sender with a provider token that was issued so long ago.
fn sender(server: &Server, token_age: Duration) -> Apns {
    let key = ProviderKey::from_scalar(&[7; 32], "KEY1234567", "TEAM123456").unwrap();
    let token = ProviderToken::new(key);
    token.authorization(SystemTime::now() - token_age);
    let config = SenderConfig { connections: Connections::Fixed(1), ..SenderConfig::default() };
    Apns::start_with("push.test".to_owned(), Some(token), server.clone(), config)
}

fn counts(outcomes: &[Outcome]) -> OutcomeCounts {
    let mut counts = OutcomeCounts::default();
    outcomes.iter().for_each(|outcome| counts.count(outcome.kind()));
    counts
}

#[tokio::test(start_paused = true)]
async fn a_token_that_expires_under_500_pushes_in_flight_is_renewed_and_all_are_sent_again() {
    let expired_at = Arc::new(Mutex::new(None::<Instant>));
    let refused = Arc::new(Mutex::new(0));
    let act = {
        let (expired_at, refused) = (Arc::clone(&expired_at), Arc::clone(&refused));
        // From the 501st request on the token is expired. What arrives within a round trip of the first refusal left
        // before anybody could know of it, and so carries that token.
        move |number: usize| {
            if number < 500 {
                return Act::Accept;
            }
            let since = *expired_at.lock().unwrap().get_or_insert_with(Instant::now);
            if Instant::now() < since + RTT {
                *refused.lock().unwrap() += 1;
                return Act::Refuse(403, "ExpiredProviderToken");
            }
            Act::Accept
        }
    };
    let script = Script { rtt: RTT, act: Arc::new(act), ..Script::default() };
    let server = Server::new(script);
    let apns = sender(&server, Duration::from_secs(30 * 60));
    let warm: Vec<_> = (0..500).map(|number| push(number, 100)).collect();
    assert_eq!(counts(&send_all(&apns, &warm).await).accepted, 500);
    let pushes: Vec<_> = (500..1_000).map(|number| push(number, 100)).collect();
    let outcomes = send_all(&apns, &pushes).await;
    assert_eq!(counts(&outcomes).accepted, 500, "{:?}", outcomes.last());
    assert!(*refused.lock().unwrap() >= 3, "{refused:?} carried the expired token");
    assert!(pushes.iter().all(|push| server.accepted(push) == 1), "each once");
}

#[tokio::test(start_paused = true)]
async fn a_push_that_was_put_off_again_and_again_still_has_a_spent_token_renewed() {
    let act = |number: usize| match number {
        0..3 => Act::Refuse(503, "ServiceUnavailable"),
        3 => Act::Refuse(403, "ExpiredProviderToken"),
        _ => Act::Accept,
    };
    let server = Server::new(Script { rtt: RTT, act: Arc::new(act), ..Script::default() });
    let apns = sender(&server, Duration::from_secs(30 * 60));
    let outcomes = send_all(&apns, &[push(1, 100)]).await;
    assert!(matches!(&outcomes[..], [Outcome::Accepted(_)]), "{outcomes:?}");
}

#[tokio::test(start_paused = true)]
async fn four_spurious_refusals_after_500_good_answers_stop_nothing() {
    let act = |number: usize| match number {
        500..504 => Act::Refuse(403, "InvalidProviderToken"),
        _ => Act::Accept,
    };
    let server = Server::new(Script { rtt: RTT, act: Arc::new(act), ..Script::default() });
    let apns = sender(&server, Duration::ZERO);
    let pushes: Vec<_> = (0..4_000).map(|number| push(number, 100)).collect();
    let counts = counts(&send_all(&apns, &pushes).await);
    assert_eq!((counts.accepted, counts.rejected, counts.not_sent), (3_996, 4, 0));
}
