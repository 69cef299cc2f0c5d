//! A server that stops reading.

use std::time::Duration;

use dunlin_push::{NotSent, Outcome, SenderConfig, Uncertain, results};
use dunlin_simulate::apns::{Behaviour, Order};

use super::{Connections, origin, push, sender, sender_with, simulator};

const PUSHES: usize = 2_000;

fn large() -> String {
    format!("{{\"aps\":\"{}\"}}", "x".repeat(4_000))
}

#[tokio::test]
async fn holds_nobody_beyond_their_deadline() {
    let simulator = simulator(Behaviour { connection_window: 16 << 20, ..Behaviour::default() });
    let apns = sender(origin(&simulator), Connections::Fixed(1));
    assert!(matches!(apns.send(&push("aaaa", 0)).await, Outcome::Accepted(_)));
    simulator.order(Order::Stall { ms: 60_000 });
    // It has heard of it when this does not end any more.
    let mut late = push("aaaa", 1);
    late.timeout = Duration::from_millis(300);
    while matches!(apns.send(&late).await, Outcome::Accepted(_)) {}
    let (sink, mut ends) = results();
    for number in 0..PUSHES {
        let mut push = push("aaaa", number);
        push.payload = large().into();
        push.timeout = Duration::from_secs(1);
        apns.submit(&push, number as u64, &sink).await.unwrap();
    }
    for _ in 0..PUSHES {
        let (_, outcome) = ends.recv().await.unwrap();
        let late = matches!(outcome, Outcome::NotSent(NotSent::Deadline) | Outcome::Uncertain(_));
        assert!(late, "{outcome}");
    }
    assert_eq!(apns.metrics().queued_bytes, 0, "and all room was given back");
}

#[tokio::test]
async fn is_cut_off_what_had_left_is_uncertain_and_the_rest_goes_on_another_connection() {
    let simulator = simulator(Behaviour { connection_window: 16 << 20, ..Behaviour::default() });
    let config = SenderConfig {
        connections: Connections::Fixed(1),
        silence: Duration::from_secs(1),
        ..SenderConfig::default()
    };
    let apns = sender_with(origin(&simulator), config);
    assert!(matches!(apns.send(&push("aaaa", 0)).await, Outcome::Accepted(_)));
    simulator.order(Order::Stall { ms: 3_600_000 });
    let mut late = push("bbbb", 1);
    late.timeout = Duration::from_millis(100);
    while matches!(apns.send(&late).await, Outcome::Accepted(_)) {}
    let opened = apns.metrics().opened;
    let (sink, mut ends) = results();
    for number in 1..=PUSHES {
        let mut push = push("aaaa", number);
        push.payload = large().into();
        push.timeout = Duration::from_secs(60);
        apns.submit(&push, number as u64, &sink).await.unwrap();
    }
    let (mut accepted, mut uncertain) = (Vec::new(), 0);
    for _ in 0..PUSHES {
        match ends.recv().await.unwrap() {
            (tag, Outcome::Accepted(_)) => accepted.push(tag as usize),
            (_, Outcome::Uncertain(Uncertain::ConnectionLost)) => uncertain += 1,
            (_, outcome) => panic!("{outcome}"),
        }
    }
    // The peer granted a thousand streams, and its kernel and ours take so much and no more. (A machine that stands still
    // for a second seems to be such a peer, too.)
    let metrics = apns.metrics();
    assert!((1..=1_000 * metrics.lost as usize).contains(&uncertain), "{uncertain}");
    assert_eq!(accepted.len() + uncertain, PUSHES);
    let mut arrived: Vec<usize> = simulator
        .ledger()
        .iter()
        .filter(|entry| entry.device_token.starts_with("aaaa"))
        .map(|entry| usize::from_str_radix(&entry.device_token[4..], 16).unwrap())
        .filter(|&number| number > 0)
        .collect();
    arrived.sort_unstable();
    accepted.sort_unstable();
    assert!(arrived.is_sorted_by(|one, next| one < next), "none arrived twice");
    let unknown = arrived.iter().filter(|number| accepted.binary_search(number).is_err()).count();
    assert_eq!(arrived.len() - unknown, accepted.len(), "each that is called accepted arrived");
    assert!(unknown <= (metrics.lost as usize - 1) * 1_000, "{unknown} others arrived, too");
    assert!(metrics.opened - opened >= 1 && metrics.opened - opened <= metrics.lost);
    assert_eq!(metrics.queued_bytes, 0);
    let why = metrics.lost_error.unwrap();
    assert!(why.contains("PING") || why.contains("does not read"), "{why}");
}
