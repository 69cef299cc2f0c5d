//! Threads that sleep and are woken.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::thread;

use crate::epoll::{Epoll, receive};
use dunlin_bus::{Endpoint, MeshConfig, SendError, mesh};

fn endpoints<T: Send, const N: usize>(ring_slots: usize) -> [Endpoint<T>; N] {
    let config = MeshConfig { ring_slots, ..MeshConfig::default() };
    mesh(N, &config).unwrap().try_into().unwrap()
}

#[test]
fn an_awake_receiver_costs_no_wake() {
    let [mut a, b] = endpoints(4);
    let epoll = Epoll::new(&b);
    a.send(1, ()).unwrap();
    assert_eq!(a.flush(), 0);
    assert!(!epoll.was_rung());
}

#[test]
fn a_sleeper_is_rung_once_however_much_it_is_sent() {
    let [mut a, mut b, mut c] = endpoints(4);
    let epoll = Epoll::new(&c);
    assert!(c.prepare_sleep());
    for value in 0..4 {
        a.send(2, value).unwrap();
        b.send(2, value).unwrap();
    }
    assert_eq!((a.flush(), b.flush()), (1, 0));
    assert!(epoll.was_rung());
    assert!(!epoll.was_rung(), "edge-triggered, and the doorbell is never read");
    c.wake();
    assert_eq!(c.drain(100, |_, _| ()), 8);

    for _ in 0..3 {
        assert!(c.prepare_sleep());
        a.send(2, 9).unwrap();
        assert_eq!(a.flush(), 1, "each sleep has a wake of its own");
        assert!(epoll.was_rung());
        c.wake();
        assert_eq!(c.recv(), Some((0, 9)));
    }
}

#[test]
fn a_sleeper_that_has_taken_everything_is_left_asleep() {
    let [mut a, mut b] = endpoints(4);
    a.send(1, ()).unwrap();
    assert!(b.recv().is_some() && b.prepare_sleep());
    assert_eq!(a.flush(), 0, "sent in the same turn, read already");
}

#[test]
fn going_to_sleep_flushes() {
    let [mut a, mut b] = endpoints(4);
    let epoll = Epoll::new(&b);
    assert!(b.prepare_sleep());
    a.send(1, ()).unwrap();
    assert!(a.prepare_sleep());
    assert!(epoll.was_rung());
}

#[test]
fn work_that_came_first_forbids_sleep() {
    let [mut a, mut b] = endpoints(4);
    a.send(1, 1).unwrap();
    assert!(!b.prepare_sleep());
    assert_eq!(b.recv(), Some((0, 1)));
    assert!(b.prepare_sleep(), "with a stale ready bit");
    a.send(1, 2).unwrap();
    assert_eq!(a.flush(), 1);
}

/// Every endpoint sends to every other through edges too small for it, sleeps when it has no work,
/// keeps refused messages and continues when there is room. Nobody polls: one lost wake-up, of a
/// message or of room, and the test hangs.
#[test]
fn nothing_is_lost_when_everyone_sleeps_and_edges_are_small() {
    const ENDPOINTS: usize = 4;
    let each: u64 = if cfg!(miri) { 20 } else { 20_000 };
    let config = MeshConfig { ring_slots: 7, ring_slots_initial: 2, burst: 3 };
    let endpoints = mesh::<u64>(ENDPOINTS, &config).unwrap();
    thread::scope(|scope| {
        for endpoint in endpoints {
            scope.spawn(move || talk_to_everyone(endpoint, each));
        }
    });
}

fn talk_to_everyone(mut endpoint: Endpoint<u64>, each: u64) {
    let epoll = Epoll::new(&endpoint);
    let mut next = vec![0; endpoint.len()];
    let mut received = vec![0; endpoint.len()];
    let mut may_send: Vec<usize> = (0..endpoint.len()).collect();
    loop {
        for to in std::mem::take(&mut may_send) {
            while next[to] < each {
                match endpoint.send(to, next[to]) {
                    Ok(()) => next[to] += 1,
                    Err(SendError::Full { .. }) => break,
                    Err(refused) => unreachable!("everyone stays: {refused}"),
                }
            }
        }
        endpoint.flush();
        endpoint.drain(10, |from, value| {
            assert_eq!(value, received[from], "from {from}");
            received[from] += 1;
        });
        may_send.extend(std::iter::from_fn(|| endpoint.poll_room()));
        let finished = received.iter().all(|&count| count == each);
        if finished && next.iter().all(|&count| count == each) {
            // Others may read ours when we are gone.
            return;
        }
        if may_send.is_empty() && endpoint.prepare_sleep() {
            epoll.sleep();
        }
        endpoint.wake();
    }
}

#[test]
fn an_endpoint_works_behind_a_descriptor_table_of_its_own() {
    if cfg!(miri) {
        return; // unshare(2) is beyond it
    }
    let [mut a, mut b] = endpoints(4);
    thread::scope(|scope| {
        scope.spawn(move || {
            // SAFETY: this thread opens and closes descriptors of its own only, in safe code.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) }.unwrap();
            let epoll = Epoll::new(&b);
            for _ in 0..100 {
                let (from, value) = receive(&mut b, &epoll);
                b.send(from, value + 1).unwrap();
            }
            b.flush();
        });
        let epoll = Epoll::new(&a);
        for value in 0..100 {
            a.send(1, value).unwrap();
            assert_eq!(receive(&mut a, &epoll), (1, value + 1));
        }
    });
}
