//! Tests in which loom explores every interleaving:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p dunlin-bus --lib`.
//!
//! A lost wake-up shows as a deadlock; a slot read or freed too early shows as a race.
#![allow(clippy::unwrap_used, reason = "a model that fails may panic")]

use loom::{model::Builder, thread};

use crate::{
    Endpoint, MeshConfig, Rollout, SendError, mesh,
    ring::{Consumer, Producer, Ring},
    sync::{Arc, AtomicU64, Ordering},
};

/// Maximum number of preemptions in an explored execution. Bugs of this kind are usually found within it; without it
/// the larger tests would take hours.
const PREEMPTIONS_MAX: usize = 3;

fn explore(story: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound.get_or_insert(PREEMPTIONS_MAX);
    builder.check(story);
}

fn ring<T>(slots_min: usize, slots_max: usize) -> (Producer<T>, Consumer<T>) {
    let ring = Arc::new(Ring::new(slots_min));
    // SAFETY: the ring is new, and no other producer or consumer is created for it.
    unsafe { (Producer::new(Arc::clone(&ring), slots_max), Consumer::new(ring)) }
}

/// Boxed, so that a value read twice or never shows as a double free or a leak.
type Message = Box<u32>;

/// Returns the next message of a ring.
fn next(consumer: &mut Consumer<Message>) -> Message {
    loop {
        match consumer.pop() {
            Some(value) => return value,
            None => thread::yield_now(),
        }
    }
}

fn endpoints<const N: usize>(ring_slots: usize) -> [Endpoint<Message>; N] {
    let config = MeshConfig { ring_slots, ring_slots_initial: 1, burst: 2 };
    mesh(N, &config).unwrap().try_into().unwrap()
}

/// Runs the loop of a worker that only uses the bus: sleeps until there is a message.
fn receive(endpoint: &mut Endpoint<Message>) -> (usize, u32) {
    loop {
        if let Some((from, value)) = endpoint.recv() {
            return (from, *value);
        }
        if endpoint.prepare_sleep() {
            endpoint.wait_for_doorbell();
        }
        endpoint.wake();
    }
}

/// Runs the loop of a worker that receives at most `max` messages per turn and then tries to sleep, with the ready bits
/// of emptied edges still set. Ends with the turn of message `last`.
fn receive_in_turns(endpoint: &mut Endpoint<Message>, max: usize, last: u32) {
    let mut expected = 1;
    while expected <= last {
        if endpoint.prepare_sleep() {
            endpoint.wait_for_doorbell();
        }
        endpoint.wake();
        endpoint.drain(max, |_, value| {
            assert_eq!(*value, expected);
            expected += 1;
        });
    }
}

#[test]
fn a_ring_that_wraps_keeps_order() {
    explore(|| {
        let (mut producer, mut consumer) = ring::<Message>(2, 2);
        let sender = thread::spawn(move || {
            let mut value = 1;
            while value <= 3 {
                match producer.push(Box::new(value)) {
                    Ok(()) => value += 1,
                    Err(_) => thread::yield_now(),
                }
            }
        });
        for expected in 1..=3 {
            assert_eq!(*next(&mut consumer), expected);
        }
        sender.join().unwrap();
        assert!(consumer.pop().is_none());
    });
}

#[test]
fn a_ring_that_grows_keeps_order_and_frees_what_it_left() {
    explore(|| {
        let (mut producer, mut consumer) = ring::<Message>(1, 4);
        let sender = thread::spawn(move || {
            for value in 1..=4 {
                assert!(producer.push(Box::new(value)).is_ok(), "four fit");
            }
        });
        let mut expected = 1;
        // The rest is dropped with the ring, by the end that is dropped last.
        while expected <= 2 {
            match consumer.pop() {
                Some(value) => {
                    assert_eq!(*value, expected);
                    expected += 1;
                }
                None => thread::yield_now(),
            }
        }
        drop(consumer);
        sender.join().unwrap();
    });
}

#[test]
fn a_ring_trimmed_by_both_ends_keeps_its_messages() {
    explore(|| {
        let (mut producer, mut consumer) = ring::<Message>(1, 2);
        assert!(producer.push(Box::new(1)).is_ok() && producer.push(Box::new(2)).is_ok());
        assert_eq!((consumer.pop(), consumer.pop()), (Some(Box::new(1)), Some(Box::new(2))));
        producer.trim();
        let sender = thread::spawn(move || {
            assert!(producer.trim(), "quiet since, and empty");
            assert!(producer.push(Box::new(3)).is_ok());
        });
        consumer.trim();
        assert_eq!(*next(&mut consumer), 3);
        sender.join().unwrap();
    });
}

/// The limit changes from four messages to one and back while messages pass. The ring begins with one slot, so that it
/// grows under the first limit and again under the last.
#[test]
fn a_ring_whose_bound_changes_keeps_order_and_the_bound() {
    explore(|| {
        let (mut producer, mut consumer) = ring::<Message>(1, 4);
        let sender = thread::spawn(move || {
            assert!(producer.push(Box::new(1)).is_ok() && producer.push(Box::new(2)).is_ok());
            producer.set_slots_max(1);
            while producer.push(Box::new(3)).is_err() {
                thread::yield_now();
            }
            assert!(producer.depth() <= 1, "it took one beyond the bound");
            producer.set_slots_max(4);
            assert!(producer.push(Box::new(4)).is_ok(), "four fit again");
        });
        for expected in 1..=4 {
            assert_eq!(*next(&mut consumer), expected);
        }
        sender.join().unwrap();
        assert!(consumer.pop().is_none());
    });
}

#[test]
fn a_sleeper_hears_of_every_message() {
    explore(|| {
        let [mut a, mut b] = endpoints(4);
        let sender = thread::spawn(move || {
            for value in 1..=2 {
                a.send(1, Box::new(value)).unwrap();
                a.flush();
            }
            a
        });
        assert_eq!(receive(&mut b), (0, 1));
        assert_eq!(receive(&mut b), (0, 2));
        assert!(b.recv().is_none());
        let _ = sender.join().unwrap();
    });
}

#[test]
fn a_late_flush_loses_nothing() {
    explore(|| {
        let [mut a, mut b] = endpoints(4);
        let sender = thread::spawn(move || {
            // The receiver may take the first and fall asleep before the second is sent.
            a.send(1, Box::new(1)).unwrap();
            a.send(1, Box::new(2)).unwrap();
            a.flush();
            a
        });
        assert_eq!(receive(&mut b), (0, 1));
        assert_eq!(receive(&mut b), (0, 2));
        let _ = sender.join().unwrap();
    });
}

#[test]
fn one_message_a_turn_and_none_is_left_behind() {
    explore(|| in_turns(1));
}

#[test]
fn two_messages_a_turn_and_none_is_left_behind() {
    explore(|| in_turns(2));
}

fn in_turns(max: usize) {
    let [mut a, mut b] = endpoints(4);
    let sender = thread::spawn(move || {
        a.send(1, Box::new(1)).unwrap();
        a.flush();
        a.send(1, Box::new(2)).unwrap();
        a.send(1, Box::new(3)).unwrap();
        a.flush();
        a
    });
    receive_in_turns(&mut b, max, 3);
    let _ = sender.join().unwrap();
}

/// The receiver moves from b's edge to a's, and then returns to b's because of its bit, which is still set, while b
/// sends again.
#[test]
fn messages_that_come_as_their_edge_is_retired_are_not_left_behind() {
    explore(|| {
        let [mut a, mut b, mut c] = endpoints(4);
        b.send(2, Box::new(1)).unwrap();
        b.flush();
        a.send(2, Box::new(2)).unwrap();
        a.flush();
        let sender = thread::spawn(move || {
            b.send(2, Box::new(3)).unwrap();
            b.send(2, Box::new(4)).unwrap();
            b.flush();
            b
        });
        assert_eq!(receive_from_two(&mut c, 4), [(0, 2), (1, 1), (1, 3), (1, 4)]);
        let _ = sender.join().unwrap();
    });
}

/// The same with a full edge, and a sender that waits for room.
#[test]
fn a_sender_refused_as_its_edge_is_retired_hears_of_room() {
    explore(|| {
        let [mut a, mut b, mut c] = endpoints(1);
        b.send(2, Box::new(1)).unwrap();
        b.flush();
        a.send(2, Box::new(2)).unwrap();
        a.flush();
        let sender = thread::spawn(move || {
            send_when_there_is_room(&mut b, 2, 3);
            b
        });
        assert_eq!(receive_from_two(&mut c, 3), [(0, 2), (1, 1), (1, 3)]);
        let _ = sender.join().unwrap();
    });
}

/// Receives `count` messages in turns of three, which make the receiver change between edges. Returns them sorted by
/// sender.
fn receive_from_two(endpoint: &mut Endpoint<Message>, count: usize) -> Vec<(usize, u32)> {
    let mut received = Vec::new();
    while received.len() < count {
        if endpoint.prepare_sleep() {
            endpoint.wait_for_doorbell();
        }
        endpoint.wake();
        endpoint.drain(3, |from, value| received.push((from, *value)));
    }
    received.sort_unstable();
    received
}

#[test]
fn two_senders_wake_one_sleeper() {
    explore(|| {
        let [mut a, mut b, mut c] = endpoints(2);
        let senders = [
            thread::spawn(move || {
                a.send(2, Box::new(1)).unwrap();
                a.flush();
                a
            }),
            thread::spawn(move || {
                b.send(2, Box::new(2)).unwrap();
                b.flush();
                b
            }),
        ];
        let mut received = [receive(&mut c), receive(&mut c)];
        received.sort_unstable();
        assert_eq!(received, [(0, 1), (1, 2)]);
        for sender in senders {
            let _ = sender.join().unwrap();
        }
    });
}

#[test]
fn a_question_and_its_answer_between_sleepers() {
    explore(|| {
        let [mut a, mut b] = endpoints(2);
        let answerer = thread::spawn(move || {
            let (from, value) = receive(&mut b);
            b.send(from, Box::new(value + 1)).unwrap();
            b.flush();
            b
        });
        a.send(1, Box::new(41)).unwrap();
        // `prepare_sleep` flushes.
        assert_eq!(receive(&mut a), (1, 42));
        let _ = answerer.join().unwrap();
    });
}

#[test]
fn a_refused_sender_hears_of_room_in_its_sleep() {
    explore(|| {
        let [mut a, mut b] = endpoints(1);
        let sender = thread::spawn(move || {
            a.send(1, Box::new(1)).unwrap();
            send_when_there_is_room(&mut a, 1, 2);
            a
        });
        assert_eq!(receive(&mut b), (0, 1));
        assert_eq!(receive(&mut b), (0, 2));
        // Sleep once more, which notifies a sender rejected meanwhile.
        assert!(b.recv().is_none() && b.prepare_sleep());
        let _ = sender.join().unwrap();
    });
}

#[test]
fn a_refused_sender_hears_of_room_when_the_receiver_goes_to_sleep() {
    explore(|| {
        let [mut a, mut b] = endpoints(1);
        let sender = thread::spawn(move || {
            a.send(1, Box::new(1)).unwrap();
            send_when_there_is_room(&mut a, 1, 2);
            a
        });
        receive_in_turns(&mut b, 1, 2);
        let _ = sender.join().unwrap();
    });
}

/// Rejected with two messages queued and a limit of one: taking the first of them makes no room yet.
#[test]
fn a_sender_refused_by_a_lowered_bound_hears_of_room() {
    explore(|| {
        let [mut a, mut b] = endpoints(2);
        let sender = thread::spawn(move || {
            a.send(1, Box::new(1)).unwrap();
            a.send(1, Box::new(2)).unwrap();
            a.set_ring_slots(1);
            send_when_there_is_room(&mut a, 1, 3);
            a
        });
        receive_in_turns(&mut b, 1, 3);
        let _ = sender.join().unwrap();
    });
}

fn send_when_there_is_room(endpoint: &mut Endpoint<Message>, to: usize, value: u32) {
    let mut refused = endpoint.send(to, Box::new(value)).err();
    while let Some(SendError::Full { to, value }) = refused.take() {
        endpoint.flush();
        while endpoint.poll_room() != Some(to) {
            if endpoint.prepare_sleep() {
                endpoint.wait_for_doorbell();
            }
            endpoint.wake();
        }
        refused = endpoint.send(to, value).err();
    }
    endpoint.flush();
}

#[test]
fn a_message_to_an_endpoint_that_leaves_is_refused_or_dropped_once() {
    explore(|| {
        let [mut a, b] = endpoints(2);
        let leaver = thread::spawn(move || drop(b));
        match a.send(1, Box::new(1)) {
            Ok(()) => _ = a.flush(),
            Err(refused) => assert!(matches!(refused, SendError::Closed { to: 1, .. })),
        }
        leaver.join().unwrap();
        let _ = a.send(1, Box::new(2));
        a.flush();
        assert!(matches!(a.send(1, Box::new(3)), Err(SendError::Closed { .. })));
        assert_eq!(a.stats().filter(|edge| edge.wakes_sent > 0).count(), 0);
    });
}

/// A follower that falls asleep, wakes and acts meanwhile never uses an older value than the publisher knows to be
/// adopted.
#[test]
fn no_old_value_is_used_once_the_publisher_knows_of_its_adoption() {
    explore(|| {
        let rollout = Arc::new(Rollout::new(1));
        let value = Arc::new(AtomicU64::new(0));
        let acknowledged = Arc::new(AtomicU64::new(0));
        // Actions of the follower while it used the old value.
        let done = Arc::new(AtomicU64::new(0));
        let follower = {
            let (rollout, value, acknowledged, done) = (
                Arc::clone(&rollout),
                Arc::clone(&value),
                Arc::clone(&acknowledged),
                Arc::clone(&done),
            );
            thread::spawn(move || {
                let mut mine = 0;
                let take = |mine: &mut u64| {
                    let newest = value.load(Ordering::Acquire);
                    if newest != *mine {
                        *mine = newest;
                        rollout.adopted(0, newest);
                    }
                };
                for _ in 0..2 {
                    rollout.wake(0, mine);
                    take(&mut mine);
                    assert!(acknowledged.load(Ordering::Relaxed) <= mine);
                    if mine == 0 {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    if rollout.try_sleep(0, mine).is_err() {
                        take(&mut mine);
                        assert!(acknowledged.load(Ordering::Relaxed) <= mine);
                        // Adoption is awaited and the generation has arrived: nothing else prevents sleep.
                        assert!(rollout.try_sleep(0, mine).is_ok());
                    }
                }
            })
        };
        value.store(1, Ordering::Release);
        rollout.published();
        // Check once more, as a waiting publisher does.
        let is_at = rollout.await_adoption(0, 1).is_at(1) || rollout.follower_state(0).is_at(1);
        let seen = is_at.then(|| {
            acknowledged.store(1, Ordering::Relaxed);
            done.load(Ordering::Relaxed)
        });
        follower.join().unwrap();
        // The publisher has seen all of it.
        assert!(seen.is_none_or(|seen| seen == done.load(Ordering::Relaxed)));
        assert!(rollout.follower_state(0).is_at(1));
    });
}

/// An awaited follower does not fall asleep before it has adopted the value, and a flag left for an incarnation that
/// ended while awake is answered by the next one.
#[test]
fn an_awaited_adoption_is_reported() {
    explore(|| {
        let rollout = Arc::new(Rollout::new(1));
        let value = Arc::new(AtomicU64::new(0));
        let heard = Arc::new(AtomicU64::new(0));
        let follower = {
            let (rollout, value, heard) =
                (Arc::clone(&rollout), Arc::clone(&value), Arc::clone(&heard));
            thread::spawn(move || {
                let take = || {
                    let newest = value.load(Ordering::Acquire);
                    if rollout.adopted(0, newest) {
                        // It may be for an earlier generation: the publisher checks and awaits again.
                        heard.store(1, Ordering::Relaxed);
                    }
                    newest
                };
                // An incarnation that ends without a report, followed by the next one.
                rollout.wake(0, 0);
                rollout.wake(0, 0);
                let mine = take();
                if rollout.try_sleep(0, mine).is_err() {
                    let mine = take();
                    assert!(rollout.try_sleep(0, mine).is_ok());
                }
            })
        };
        value.store(1, Ordering::Release);
        rollout.published();
        let waits = !rollout.await_adoption(0, 1).is_at(1);
        follower.join().unwrap();
        assert!(!waits || heard.load(Ordering::Relaxed) == 1, "the publisher was not notified");
    });
}
