//! A simulation of several workers, publishers and clients that come and go, with full rings, slow
//! sockets and workers that die, in an order that a seed decides.
//!
//! A client checks by the protocol's rules: after a subscription at a position every publication
//! has the next offset and the content published under it, unless a gap is reported. In the end,
//! when everything is delivered, every subscriber has received every publication or a gap.

#![allow(unreachable_pub)]

mod actions;
mod client;
mod oracle;
mod simulation;

use crate::replay;
use proptest::prelude::*;
use simulation::{FaultProfile, Simulation};

fn run(seed: u64, steps: usize, faults: FaultProfile) -> (u64, u64, u64) {
    let mut simulation = Simulation::new(seed, faults);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for _ in 0..steps {
            simulation.step();
        }
        simulation.rest();
        simulation.check()
    }));
    outcome.unwrap_or_else(|panic| {
        eprintln!("seed {seed}, {faults:?}; the last lines:\n{}", simulation.log.join("\n"));
        std::panic::resume_unwind(panic)
    })
}

const FAIR: FaultProfile = FaultProfile {
    restarts: false,
    ring_slots: usize::MAX,
    transmit_bytes_max: usize::MAX,
    outbox_bytes_max: 1 << 20,
    pending_bytes_max: usize::MAX,
    blocking: false,
    history_size: 10_000,
};

#[test]
fn without_faults_nothing_is_missing() {
    for seed in 0..20 {
        let (received, recovered, gaps) = run(seed, 2_000, FAIR);
        assert_eq!(gaps, 0, "seed {seed}");
        assert!(received > 500 && recovered > 10, "seed {seed}: {received} {recovered}");
    }
}

#[test]
fn slow_sockets_and_full_rings_delay_but_lose_nothing() {
    let faults = FaultProfile { blocking: true, ring_slots: 2, ..FAIR };
    for seed in 100..120 {
        let (received, _, gaps) = run(seed, 2_000, faults);
        assert_eq!(gaps, 0, "seed {seed}");
        assert!(received > 500);
    }
}

#[test]
fn with_bounded_queues_whatever_is_missing_is_marked() {
    let faults = FaultProfile {
        blocking: true,
        ring_slots: 2,
        transmit_bytes_max: 600,
        outbox_bytes_max: 700,
        ..FAIR
    };
    let (mut received, mut gaps) = (0, 0);
    for seed in 200..230 {
        let seen = run(seed, 2_000, faults);
        received += seen.0;
        gaps += seen.2;
    }
    assert!(gaps > 100 && received > 10_000, "{gaps} {received}");
}

#[test]
fn a_worker_that_dies_takes_only_its_own_along() {
    let faults = FaultProfile { restarts: true, ring_slots: 3, blocking: true, ..FAIR };
    let (mut received, mut gaps) = (0, 0);
    for seed in 300..330 {
        let seen = run(seed, 2_000, faults);
        received += seen.0;
        gaps += seen.2;
    }
    assert!(gaps > 100 && received > 10_000, "{gaps} {received}");
}

replay::tests!(actions::TARGETS, 24);

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn with_any_faults_every_gap_is_reported(
        seed: u64,
        steps in 1usize..1_500,
        restarts: bool,
        blocking: bool,
        ring_slots in 1usize..5,
        transmit_bytes_max in 300usize..5_000,
        outbox_bytes_max in 100u32..5_000,
        pending_bytes_max in prop_oneof![Just(usize::MAX), 100_000usize..400_000],
        history_size in 1u32..50,
    ) {
        run(seed, steps, FaultProfile {
            restarts, ring_slots, transmit_bytes_max, outbox_bytes_max, pending_bytes_max,
            blocking, history_size,
        });
    }
}
