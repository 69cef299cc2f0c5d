//! In flight grows to what binds, and no further.

use std::time::Duration;

use dunlin_push::{Binding, Connections, Outcome, results};
use tokio::time::{Instant, sleep_until};

use super::harness::{Script, Server, push, send_all};

const RTT: Duration = Duration::from_millis(250);

/// Sends as much as will go; answers a second in the third second after the start, their median answer
/// time by the connection's own account, and what bound.
async fn run(
    script: Script,
    bytes: usize,
    connections: Connections,
    seconds: u64,
) -> (f64, Vec<Binding>, usize) {
    let server = Server::new(script);
    let apns = server.sender(connections);
    let (sender, mut ends) = results();
    let submitting = {
        let apns = apns.clone();
        tokio::spawn(async move {
            let push = push(1, bytes);
            loop {
                if apns.submit(&push, 0, &sender).await.is_err() {
                    return;
                }
            }
        })
    };
    let begin = Instant::now();
    // Not at a multiple of the round trip, where a batch of answers could fall on either side.
    let end = begin + Duration::from_secs(seconds) + RTT / 2;
    let mut last_second = 0;
    loop {
        tokio::select! {
            biased;
            () = sleep_until(end) => break,
            Some(_) = ends.recv() => {
                if Instant::now() + Duration::from_secs(1) > end {
                    last_second += 1;
                }
            }
        }
    }
    submitting.abort();
    let metrics = apns.metrics();
    let bindings = metrics.connections.iter().map(|connection| connection.binding).collect();
    (f64::from(last_second), bindings, metrics.connections.len())
}

const ONE: Connections = Connections::Fixed(1);

#[tokio::test(start_paused = true)]
async fn a_small_window_returned_at_once_is_used_to_its_last_byte() {
    for bytes in [437, 1_024, 4_096] {
        let script = Script { window_more: 0, ..Script::default() };
        let (answered, bindings, _) = run(script, bytes, ONE, 3).await;
        let allowed = 65_535.0 / (bytes as f64 * RTT.as_secs_f64());
        assert!(answered >= 0.95 * allowed, "{answered} of {allowed} at {bytes}");
        assert_eq!(bindings, [Binding::Window]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_returned_by_halves_gives_half() {
    let script = Script { window_more: 0, window_return: 32_768, ..Script::default() };
    let (answered, bindings, _) = run(script, 437, ONE, 3).await;
    let allowed = 32_768.0 / (437.0 * RTT.as_secs_f64());
    assert!(answered >= 0.95 * allowed, "{answered} of {allowed}");
    assert_eq!(bindings, [Binding::Window]);
}

#[tokio::test(start_paused = true)]
async fn a_large_window_leaves_the_stream_limit() {
    let (answered, bindings, _) = run(Script::default(), 437, ONE, 3).await;
    assert!(answered >= 0.95 * 4_000.0, "{answered}");
    assert_eq!(bindings, [Binding::Streams]);
}

#[tokio::test(start_paused = true)]
async fn connections_are_opened_while_each_pays() {
    let script = Script { window_more: 0, ..Script::default() };
    let (answered, _, connections) = run(script, 1_024, Connections::Auto { max: 8 }, 20).await;
    assert_eq!(connections, 8);
    assert!(answered >= 0.9 * 8.0 * 256.0, "{answered}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_doubled_the_rate_is_kept() {
    // The first window is a whole one, and half of it comes back from then on.
    let script = Script { window_more: 0, window_return: 32_768, ..Script::default() };
    let (answered, _, connections) = run(script, 1_024, Connections::Auto { max: 2 }, 10).await;
    assert_eq!(connections, 2);
    assert!(answered >= 0.95 * 2.0 * 128.0, "{answered}");
}

#[tokio::test(start_paused = true)]
async fn windows_that_never_come_back_are_followed_by_more_of_them() {
    let script = Script { window_more: 0, window_return: u32::MAX, ..Script::default() };
    let server = Server::new(script);
    let apns = server.sender(Connections::Auto { max: 16 });
    let pushes: Vec<_> = (0..3_000).map(|number| push(number, 437)).collect();
    let begin = Instant::now();
    let outcomes = send_all(&apns, &pushes).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Accepted(_))));
    // One at a time does 150 in each second and a quarter.
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert!(pushes.iter().all(|push| server.accepted(push) == 1));
}

#[tokio::test(start_paused = true)]
async fn a_list_queued_at_once_is_demand() {
    let script = Script { window_more: 0, window_return: 32_768, ..Script::default() };
    let server = Server::new(script);
    let apns = server.sender(Connections::Auto { max: 64 });
    let pushes: Vec<_> = (0..10_000).map(|number| push(number, 1_024)).collect();
    let begin = Instant::now();
    let outcomes = send_all(&apns, &pushes).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Accepted(_))));
    // One connection does 128 a second.
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_gathered_while_connections_were_opened_is_drained_by_more_that_are_given_back() {
    let script = Script { window_more: 0, window_return: 32_768, ..Script::default() };
    let server = Server::new(script);
    let apns = server.sender(Connections::Auto { max: 64 });
    let (sender, mut ends) = results();
    let mut clock = tokio::time::interval(Duration::from_millis(10));
    let push = push(1, 1_024);
    // A thousand a second: what waits after half a minute is what came within a window's round trip. Eight of them bring
    // back what that needs.
    for connections_max in [14, 10] {
        for _ in 0..3_000 {
            clock.tick().await;
            for _ in 0..10 {
                apns.submit(&push, 0, &sender).await.unwrap();
            }
            while ends.try_recv().is_some() {}
        }
        let (queued, connections) = (apns.metrics().queued, apns.metrics().connections.len());
        assert!(queued <= 250, "{queued} wait for {connections}");
        assert!(connections <= connections_max, "{connections}");
    }
}
