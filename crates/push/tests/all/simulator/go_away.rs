//! The gap after a GOAWAY: what was above its last stream is on another connection before the old one has drained.

use std::time::Duration;

use dunlin_push::{Outcome, SenderConfig, results};
use dunlin_simulate::apns::{AnswerTime, Behaviour, Entry, GoAway, Order, Simulator};

use super::{Connections, each_once, origin, patient_sender, push, sender_with, simulator, until};

fn number(entry: &Entry) -> usize {
    usize::from_str_radix(&entry.device_token[4..], 16).unwrap()
}

fn of_connection(simulator: &Simulator, connection: u32) -> Vec<usize> {
    let ledger = simulator.ledger();
    ledger.iter().filter(|entry| entry.connection == connection).map(number).collect()
}

#[tokio::test]
async fn nothing_waits_for_the_drain_and_what_was_not_processed_goes_first() {
    const PUSHES: usize = 350;
    // Every answer takes an hour: a connection with a GOAWAY never drains in this story.
    let simulator = simulator(Behaviour {
        streams_first: 1_000,
        answer_time: AnswerTime::constant(3_600_000.0),
        goaway: GoAway { every: 100, unprocessed: 10, close: false },
        ..Behaviour::default()
    });
    let config = SenderConfig {
        connections: Connections::Fixed(1),
        answer_within: Duration::from_secs(600),
        ..SenderConfig::default()
    };
    let apns = sender_with(origin(&simulator), config);
    let (sink, mut ends) = results();
    for number in 0..PUSHES {
        let mut push = push("aaaa", number);
        push.payload = format!("{{\"aps\":{{\"badge\":{number}}}}}").into();
        push.timeout = Duration::from_secs(600);
        apns.submit(&push, number as u64, &sink).await.unwrap();
    }
    // Three connections carry ninety each and say goodbye, a fourth has the rest.
    until(|| simulator.counts().accepted == PUSHES as u64).await;
    let counts = simulator.counts();
    assert!(ends.try_recv().is_none(), "no push has been answered: nothing has drained");
    assert_eq!((counts.connections, counts.connections_open, counts.goaways), (4, 4, 3));
    assert_eq!(counts.unprocessed, 30);
    assert!(apns.metrics().refused >= 30);
    let mut all: Vec<usize> = simulator.ledger().iter().map(number).collect();
    for connection in 1..=3 {
        let (here, next) =
            (of_connection(&simulator, connection), of_connection(&simulator, connection + 1));
        assert_eq!(here.len(), 90);
        // In their order, and before all that was still in the queue.
        let last = *here.last().unwrap();
        assert_eq!(next[..10], (last + 1..=last + 10).collect::<Vec<_>>(), "after {connection}");
    }
    all.sort_unstable();
    assert_eq!(all, (0..PUSHES).collect::<Vec<_>>(), "each was processed once");
}

#[tokio::test]
async fn whatever_stream_a_goaway_names_every_push_ends_and_is_processed() {
    const PUSHES: usize = 2_000;
    for (last, close) in [
        (None, false),
        (None, true),
        (Some(0), false),
        (Some(1), false),
        (Some(101), true),
        // "I will go away": nothing is refused by it (RFC 9113 §6.8).
        (Some(0x7fff_ffff), false),
    ] {
        let simulator =
            simulator(Behaviour { answer_time: AnswerTime::constant(5.0), ..Behaviour::default() });
        let apns =
            patient_sender(origin(&simulator), Connections::Fixed(2), Duration::from_secs(60));
        let (sink, mut ends) = results();
        let submitting = async {
            for number in 0..PUSHES {
                let mut push = push("aaaa", number);
                push.timeout = Duration::from_secs(60);
                apns.submit(&push, number as u64, &sink).await.unwrap();
                if number % 500 == 250 {
                    let received = number as u64 / 2;
                    until(|| simulator.counts().received >= received).await;
                    simulator.order(Order::GoAway { last, code: 0, close });
                }
            }
        };
        let ((), outcomes) = tokio::join!(submitting, each_once(&mut ends, PUSHES));
        let mut processed = vec![0; PUSHES];
        simulator.ledger().iter().for_each(|entry| processed[number(entry)] += 1);
        // One that names a stream below what it has processed lies: those are processed twice, by its own fault.
        let lies = last.is_some_and(|last| last < 0x7fff_ffff);
        for (outcome, times) in outcomes.into_iter().zip(processed) {
            let is_true = match &outcome {
                Outcome::Accepted(_) => times == 1 || lies && times > 1,
                // Its answer was under way when the connection closed; or it was itself, with nobody to say of it which
                // stream was the last.
                Outcome::Uncertain(_) if close || last == Some(0x7fff_ffff) => times <= 1 || lies,
                _ => false,
            };
            assert!(is_true, "{last:?}, close {close}: {outcome}, processed {times} times");
        }
        let metrics = apns.metrics();
        assert!(metrics.opened > 2, "{metrics:?}");
        assert_eq!(metrics.queued_bytes, 0);
    }
}
