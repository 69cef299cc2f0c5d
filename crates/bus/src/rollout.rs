//! Which threads have adopted which generation of a shared value, without waking sleeping threads.
//!
//! A publisher stores a new value where every thread can load it (an atomic pointer), numbers it
//! with a *generation*, and needs to know when no thread uses an older one. A sleeping thread uses
//! nothing, and on waking it loads the newest value first: it counts as having adopted whatever is
//! published while it sleeps, and is not woken. The publisher waits only for awake threads; they
//! switch at the boundary of their loop.
//!
//! # Why no old value is used once the publisher knows of its adoption
//!
//! Two threads, two places, and between the two accesses of each a `SeqCst` fence:
//!
//! ```text
//! publisher                          follower
//!   value := new                       word := awake
//!   fence                              fence
//!   read word                          read value
//! ```
//!
//! One of the fences comes first in their total order. If it is the publisher's, the follower reads
//! the new value. If it is the follower's, the publisher reads `awake` and waits until the
//! follower's word has the new generation. There is no third case: a follower that the publisher
//! reads as *asleep* will read the new value before it does anything. What the follower did before
//! it became *asleep*, or named the new generation, happened before the publisher read so: the word
//! is written with `Release` and read with `Acquire`. `loom_tests.rs` has loom explore it.

use crate::sync::{AtomicU64, Ordering, Padded, fence};

const ASLEEP: u64 = 1;
/// The publisher waits for this word to change and must be notified.
const AWAITED: u64 = 2;
const SHIFT: u32 = 2;

/// One word per follower. One publisher at a time.
#[derive(Debug)]
pub struct Rollout {
    words: Box<[Padded<AtomicU64>]>,
}

/// A follower's state, as the publisher reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerState {
    /// The last generation that it used.
    pub generation: u64,
    /// It sleeps, and will load the newest value before it does anything else.
    pub asleep: bool,
}

impl FollowerState {
    /// Returns whether it uses nothing older than `generation`.
    pub fn is_at(self, generation: u64) -> bool {
        self.asleep || self.generation >= generation
    }
}

/// A follower must not sleep: the publisher waits for it to adopt a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdoptionAwaited;

impl Rollout {
    /// Creates the state of `followers` threads, all asleep at generation 0: a thread that does not
    /// run yet uses nothing, and calls [`wake`](Rollout::wake) first.
    pub fn new(followers: usize) -> Rollout {
        Rollout { words: (0..followers).map(|_| Padded(AtomicU64::new(ASLEEP))).collect() }
    }

    /// Returns the number of followers.
    pub fn followers(&self) -> usize {
        self.words.len()
    }

    /// Records that the follower is awake again, still at `generation`. It must then load the
    /// newest value before it uses any.
    ///
    /// # Panics
    /// If there is no such follower.
    pub fn wake(&self, follower: usize, generation: u64) {
        let word = &self.words[follower];
        // A publisher does not await a sleeping follower. The flag can only be left from an
        // incarnation of this follower that ended while awake; the next one answers it.
        if word.swap(generation << SHIFT, Ordering::AcqRel) & AWAITED != 0 {
            word.fetch_or(AWAITED, Ordering::AcqRel);
        }
        fence(Ordering::SeqCst);
    }

    /// Records that the follower uses `generation` from now on. Returns true when the publisher
    /// waits for it and must be notified.
    ///
    /// # Panics
    /// If there is no such follower.
    pub fn adopted(&self, follower: usize, generation: u64) -> bool {
        self.words[follower].swap(generation << SHIFT, Ordering::AcqRel) & AWAITED != 0
    }

    /// Records that the follower is about to block and uses nothing until it calls
    /// [`wake`](Rollout::wake).
    ///
    /// # Errors
    /// [`AdoptionAwaited`] when the publisher waits for it: it must stay awake, adopt and notify.
    ///
    /// # Panics
    /// If there is no such follower.
    pub fn try_sleep(&self, follower: usize, generation: u64) -> Result<(), AdoptionAwaited> {
        let awake = generation << SHIFT;
        // Not a plain store: the flag may be set between a load and the store.
        self.words[follower]
            .compare_exchange(awake, awake | ASLEEP, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(|_| AdoptionAwaited)
    }

    /// Orders the publisher's store of a value before its reads of the followers' states.
    pub fn published(&self) {
        fence(Ordering::SeqCst);
    }

    /// Returns a follower's state.
    ///
    /// # Panics
    /// If there is no such follower.
    pub fn follower_state(&self, follower: usize) -> FollowerState {
        FollowerState::read(self.words[follower].load(Ordering::Acquire))
    }

    /// Returns a follower's state. Unless it is at `generation`, it will notify the publisher of
    /// its next adoption.
    ///
    /// # Panics
    /// If there is no such follower.
    pub fn await_adoption(&self, follower: usize, generation: u64) -> FollowerState {
        let word = &self.words[follower];
        let mut seen = word.load(Ordering::Acquire);
        while !FollowerState::read(seen).is_at(generation) {
            match word.compare_exchange_weak(
                seen,
                seen | AWAITED,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        FollowerState::read(seen)
    }
}

impl FollowerState {
    fn read(word: u64) -> FollowerState {
        FollowerState { generation: word >> SHIFT, asleep: word & ASLEEP != 0 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64 as Plain, Ordering::Relaxed};

    use super::*;

    #[test]
    fn a_thread_not_started_is_at_every_generation() {
        let rollout = Rollout::new(1);
        assert!(rollout.follower_state(0).is_at(9));
        rollout.wake(0, 0);
        assert!(!rollout.follower_state(0).is_at(9));
        assert!(!rollout.adopted(0, 9), "nobody awaits it");
        assert!(rollout.follower_state(0).is_at(9));
    }

    #[test]
    fn an_awaited_follower_stays_awake_and_reports_once() {
        let rollout = Rollout::new(1);
        rollout.wake(0, 1);
        assert_eq!(rollout.await_adoption(0, 2), FollowerState { generation: 1, asleep: false });
        assert_eq!(rollout.try_sleep(0, 1), Err(AdoptionAwaited));
        assert!(rollout.adopted(0, 2));
        assert!(!rollout.adopted(0, 2));
        assert_eq!(rollout.try_sleep(0, 2), Ok(()));
        assert!(rollout.await_adoption(0, 3).asleep, "a sleeper is not asked");
        rollout.wake(0, 2);
        assert!(!rollout.adopted(0, 3));
    }

    /// Stress test on real threads: once the publisher knows of the adoption, no follower uses an
    /// older value.
    #[test]
    fn no_old_value_is_used_once_the_publisher_knows_of_its_adoption() {
        const FOLLOWERS: usize = 3;
        const PUBLICATIONS: u64 = if cfg!(miri) { 30 } else { 20_000 };
        let rollout = Arc::new(Rollout::new(FOLLOWERS));
        let value = Arc::new(Plain::new(0));
        // The generation that the publisher knows to be adopted.
        let acknowledged = Arc::new(Plain::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let ready = Arc::new(std::sync::Barrier::new(FOLLOWERS + 1));
        let followers: Vec<_> = (0..FOLLOWERS)
            .map(|me| {
                let (rollout, value) = (Arc::clone(&rollout), Arc::clone(&value));
                let (acknowledged, over) = (Arc::clone(&acknowledged), Arc::clone(&over));
                let ready = Arc::clone(&ready);
                std::thread::spawn(move || {
                    rollout.wake(me, 0);
                    ready.wait();
                    let mut turn = me as u64;
                    let mut mine = 0;
                    let mut slept = 0_u64;
                    while !over.load(Relaxed) {
                        turn = turn.wrapping_mul(6364136223846793005).wrapping_add(1);
                        let newest = value.load(Ordering::Acquire);
                        if newest != mine {
                            mine = newest;
                            rollout.adopted(me, mine);
                        }
                        if turn >> 62 != 0 && rollout.try_sleep(me, mine).is_ok() {
                            slept += 1;
                            if turn >> 61 & 1 == 1 {
                                std::thread::yield_now();
                            }
                            rollout.wake(me, mine);
                            let newest = value.load(Ordering::Acquire);
                            if newest != mine {
                                mine = newest;
                                rollout.adopted(me, mine);
                            }
                        }
                        assert!(
                            mine >= acknowledged.load(Ordering::SeqCst),
                            "an old value is acted on"
                        );
                    }
                    slept
                })
            })
            .collect();
        ready.wait();
        for generation in 1..=PUBLICATIONS {
            value.store(generation, Ordering::Release);
            rollout.published();
            for follower in 0..FOLLOWERS {
                while !rollout.await_adoption(follower, generation).is_at(generation) {
                    std::thread::yield_now();
                }
            }
            acknowledged.store(generation, Ordering::SeqCst);
        }
        over.store(true, Relaxed);
        let slept: u64 = followers.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!(slept > 0, "some of it was seen from sleep");
    }
}
