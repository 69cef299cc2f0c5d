//! A mesh on one thread.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use dunlin_bus::{ENDPOINTS_MAX, Endpoint, EndpointState, MeshConfig, SendError, mesh};

fn config(ring_slots: usize) -> MeshConfig {
    MeshConfig { ring_slots, ..MeshConfig::default() }
}

fn endpoints<T: Send, const N: usize>(ring_slots: usize) -> [Endpoint<T>; N] {
    mesh(N, &config(ring_slots)).unwrap().try_into().unwrap()
}

#[test]
fn messages_of_one_sender_arrive_in_order() {
    let [mut a, mut b] = endpoints(1000);
    for value in 0..1000 {
        a.send(1, value).unwrap();
    }
    for value in 0..1000 {
        assert_eq!(b.recv(), Some((0, value)));
    }
    assert_eq!(b.recv(), None);
}

#[test]
fn an_endpoint_may_write_to_itself() {
    let [mut a] = endpoints(2);
    a.send(0, "note to self").unwrap();
    assert!(!a.prepare_sleep(), "there is work");
    assert_eq!(a.recv(), Some((0, "note to self")));
    assert!(a.prepare_sleep());
}

#[test]
fn a_full_edge_returns_the_message_and_reports_room_once() {
    let [mut a, mut b, mut c] = endpoints(3);
    for value in 0..3 {
        a.send(1, value).unwrap();
    }
    assert_eq!(a.send(1, 3), Err(SendError::Full { to: 1, value: 3 }));
    assert_eq!(a.send(1, 4), Err(SendError::Full { to: 1, value: 4 }));
    a.send(2, 5).expect("another edge has room of its own");
    assert_eq!(a.poll_room(), None, "b has not read");

    assert_eq!(b.drain(100, |_, _| ()), 3);
    assert_eq!(a.poll_room(), Some(1));
    assert_eq!(a.poll_room(), None);
    a.send(1, 3).unwrap();
    assert_eq!(b.recv(), Some((0, 3)));
    assert_eq!(c.recv(), Some((0, 5)));
    assert_eq!(a.poll_room(), None, "nothing was refused since");
}

#[test]
fn an_endpoint_that_ignores_room_sleeps() {
    let [mut a, mut b] = endpoints(1);
    a.send(1, 0).unwrap();
    a.send(1, 1).unwrap_err();
    b.recv().unwrap();
    assert!(!a.prepare_sleep(), "there is room");
    assert!(a.prepare_sleep(), "which was said");
}

#[test]
fn a_ring_bound_is_exact_at_any_size() {
    for ring_slots in [1, 2, 3, 5, 31, 32, 33, 100] {
        let [mut a, mut b] = endpoints(ring_slots);
        for round in 0..3 {
            let sent = (0..).take_while(|&value| a.send(1, value).is_ok()).count();
            assert_eq!(sent, ring_slots, "round {round}");
            assert_eq!(b.recv(), Some((0, 0)));
            a.send(1, ring_slots).expect("one was taken");
            a.send(1, 0).unwrap_err();
            assert_eq!(b.drain(usize::MAX, |_, _| ()), ring_slots);
        }
    }
}

#[test]
fn a_bound_is_changed_under_messages_and_none_of_them_moves() {
    let high = if cfg!(miri) { 64 } else { 1_000 };
    for (high, low) in [(2, 1), (33, 5), (100, 32), (high, 16)] {
        let [mut a, mut b, mut c] = endpoints(high);
        let mut sent = (0..).take_while(|&value| a.send(1, value).is_ok()).count();
        assert_eq!(sent, high);
        a.set_ring_slots(low);
        let mut expected = 0;
        for _ in 0..high - low {
            assert!(a.send(1, sent).unwrap_err().is_full(), "{high} wait where {low} may");
            assert_eq!(b.recv(), Some((0, expected)));
            expected += 1;
        }
        assert!(a.send(1, sent).unwrap_err().is_full(), "{low} wait, as many as may");
        assert_eq!(b.recv(), Some((0, expected)));
        expected += 1;
        a.send(1, sent).expect("one was taken");
        sent += 1;
        let more = (0..).take_while(|&value| a.send(2, value).is_ok()).count();
        assert_eq!(more, low, "an edge that is first used now");

        a.set_ring_slots(high);
        while a.send(1, sent).is_ok() {
            sent += 1;
        }
        assert_eq!(sent - expected, high);
        let order = expected..sent;
        let mut received = Vec::new();
        b.drain(usize::MAX, |_, value| received.push(value));
        assert_eq!(received, order.collect::<Vec<_>>());
        assert_eq!(c.drain(usize::MAX, |_, _| ()), low);
    }
}

#[test]
fn a_closed_endpoint_refuses() {
    let value = Arc::new(());
    let [mut a, mut b, c] = endpoints(2);
    a.send(1, Arc::clone(&value)).unwrap();
    a.send(1, Arc::clone(&value)).unwrap();
    a.send(1, Arc::clone(&value)).unwrap_err();
    b.send(0, Arc::clone(&value)).unwrap();
    drop(b);
    assert_eq!(a.poll_room(), Some(1), "so that what waits is not kept for ever");
    a.flush();
    assert!(matches!(a.send(1, Arc::clone(&value)), Err(SendError::Closed { to: 1, .. })));
    assert_eq!(a.broadcast(|_| Arc::clone(&value)).sent, 1, "c alone is left");

    assert!(matches!(a.recv(), Some((1, _))), "what b said before it went is still heard");
    assert_eq!(Arc::strong_count(&value), 2, "ours and the one c has not read");
    drop(c);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn an_endpoint_that_leaves_before_the_flush_is_noticed_when_its_edge_is_full() {
    let [mut a, b] = endpoints(2);
    drop(b);
    let mut outcomes = std::iter::repeat_with(|| a.send(1, ()));
    assert!(outcomes.by_ref().take(2).all(|sent| sent.is_ok()));
    assert_eq!(outcomes.next(), Some(Err(SendError::Closed { to: 1, value: () })));
}

#[test]
fn an_unknown_endpoint_is_an_outcome_not_a_panic() {
    let [mut a, _b] = endpoints(2);
    let refused = a.send(2, "lost").unwrap_err();
    assert_eq!(refused.to_string(), "the mesh has no endpoint 2");
    assert!(!refused.is_full());
    assert_eq!((refused.to(), refused.into_value()), (2, "lost"));
}

#[test]
fn a_broadcast_is_one_arc_for_all_others() {
    let [mut a, mut b, mut c, mut d] = endpoints(1);
    a.send(2, Arc::from("fills the edge to c")).unwrap();
    let text: Arc<str> = Arc::from("to everyone");
    let outcome = a.broadcast(|_| Arc::clone(&text));
    assert_eq!(outcome.sent, 2);
    assert_eq!(outcome.refused, [SendError::Full { to: 2, value: Arc::clone(&text) }]);
    for endpoint in [&mut b, &mut d] {
        let (from, received) = endpoint.recv().unwrap();
        assert!(from == 0 && Arc::ptr_eq(&received, &text));
    }
    c.recv().unwrap();
    assert!(a.recv().is_none() && c.recv().is_none());
}

#[test]
fn a_firehose_does_not_keep_others_waiting() {
    let burst = 8;
    let config = MeshConfig { burst, ..config(1000) };
    let [mut quiet, mut firehose, mut other, mut reader] =
        mesh(4, &config).unwrap().try_into().unwrap();
    for value in 0..1000 {
        firehose.send(3, value).unwrap();
    }
    quiet.send(3, 1).unwrap();
    other.send(3, 2).unwrap();
    let mut seen = Vec::new();
    reader.drain(2 * burst + 2, |from, _| seen.push(from));
    assert!(seen.contains(&0) && seen.contains(&2), "{seen:?}");
}

#[test]
fn the_largest_mesh_joins_everyone_to_everyone() {
    let count = if cfg!(miri) { 66 } else { ENDPOINTS_MAX };
    // All of them; under Miri, which is slow, a few from either word of ready bits.
    let senders = |index: &usize| !cfg!(miri) || index % 32 == 1;
    let mut endpoints = mesh(count, &config(4)).unwrap();
    for endpoint in endpoints.iter_mut().filter(|endpoint| senders(&endpoint.index())) {
        let index = endpoint.index();
        let outcome = endpoint.broadcast(|to| (index, to));
        assert_eq!(outcome.sent, count - 1);
    }
    for endpoint in &mut endpoints {
        let index = endpoint.index();
        let mut froms = Vec::new();
        endpoint.drain(usize::MAX, |from, message| {
            assert_eq!(message, (from, index));
            froms.push(from);
        });
        froms.sort_unstable();
        assert!(froms.into_iter().eq((0..count).filter(senders).filter(|&from| from != index)));
        assert!(endpoint.prepare_sleep());
    }
}

#[test]
fn a_mesh_has_1_to_128_endpoints() {
    for endpoints in [0, ENDPOINTS_MAX + 1] {
        let error = mesh::<()>(endpoints, &config(1)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[test]
fn a_worker_that_panics_in_a_message_goes_on_with_the_next() {
    let [mut a, mut b] = endpoints(10);
    for value in 1..=4 {
        a.send(1, value).unwrap();
    }
    let handle_all = |b: &mut Endpoint<i32>| {
        b.drain(usize::MAX, |from, value| assert!(value != 2, "bad message from {from}"));
    };
    // The first incarnation replies before it dies, and does not reach its flush.
    let died = catch_unwind(AssertUnwindSafe(|| {
        b.send(0, -1).unwrap();
        handle_all(&mut b);
    }));
    assert!(died.is_err());
    assert!(a.recv().is_some() && a.prepare_sleep());
    a.wake();

    let mut next_incarnation = b;
    next_incarnation.wake();
    let mut received = Vec::new();
    next_incarnation.drain(usize::MAX, |_, value| received.push(value));
    assert_eq!(received, [3, 4], "1 was handled, 2 killed its worker and is gone");
}

#[test]
fn a_worker_that_dies_before_its_flush_has_its_wake_sent_by_the_next_incarnation() {
    let [mut a, mut b] = endpoints(10);
    assert!(a.prepare_sleep());
    let died = catch_unwind(AssertUnwindSafe(|| {
        b.send(0, 1).unwrap();
        panic!("before the flush");
    }));
    assert!(died.is_err());
    b.wake();
    assert_eq!(b.flush(), 1);
    a.wake();
    assert_eq!(a.recv(), Some((1, 1)));
}

#[test]
fn a_broadcast_whose_sender_panics_has_sent_what_it_had() {
    let [mut a, mut b, mut c] = endpoints(10);
    let died = catch_unwind(AssertUnwindSafe(|| {
        let _ = a.broadcast(|to| if to == 2 { panic!("no message for c") } else { to });
    }));
    assert!(died.is_err());
    assert_eq!(b.recv(), Some((0, 1)));
    assert_eq!(c.recv(), None);
    assert_eq!(a.broadcast(|to| to).sent, 2, "and goes on");
}

#[test]
fn counters_are_read_by_another_thread() {
    let [mut a, mut b, c] = endpoints(2);
    let monitor = c.monitor();
    a.send(1, 0).unwrap();
    assert_eq!(a.flush(), 0, "b is awake");
    a.send(1, 1).unwrap();
    a.send(1, 2).unwrap_err();
    b.recv().unwrap();

    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(monitor.endpoints(), 3);
            let edge = monitor.edge(0, 1).unwrap();
            assert_eq!((edge.from, edge.to), (0, 1));
            assert_eq!((edge.sent, edge.received, edge.depth, edge.refused), (2, 1, 1, 1));
            assert_eq!((edge.wakes_sent, edge.wakes_suppressed, edge.wakes_failed), (0, 1, 0));
            assert_eq!(monitor.edge(1, 0), None, "never used");
            assert_eq!(monitor.edge(0, 3), None, "no such edge");
            assert_eq!(monitor.edges().count(), 1);
        });
    });
    assert!(a.stats().eq(monitor.edges()));

    b.recv().unwrap();
    assert!(b.prepare_sleep());
    assert_eq!(monitor.state(1), EndpointState::Sleep);
    a.send(1, 3).unwrap();
    assert_eq!(a.flush(), 1);
    assert_eq!(monitor.state(1), EndpointState::Notified);
    assert_eq!(monitor.edge(0, 1).unwrap().wakes_sent, 1);
    b.wake();
    assert_eq!(monitor.state(1), EndpointState::Run);
    drop(b);
    assert_eq!(monitor.state(1), EndpointState::Closed);
}
