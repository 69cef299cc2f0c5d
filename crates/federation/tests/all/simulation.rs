use dunlin_federation::{PeerConfig, Reason};

use crate::kit::World;

fn world(seed: u64) -> World {
    World::new(seed, PeerConfig::default())
}

/// Checks the ledger: each accepted message has arrived once, and its sender has one result.
fn balance(world: &World, seed: u64) {
    for at in 0..2 {
        let (from, to) = (&world.servers[at], &world.servers[1 - at]);
        let mut arrived = to.arrived.clone();
        arrived.sort();
        let mut accepted: Vec<_> = from.accepted.iter().map(|(_, text)| text.clone()).collect();
        accepted.sort();
        assert_eq!(arrived, accepted, "seed {seed}, sender {at}");
        for (seq, text) in &from.accepted {
            assert_eq!(
                from.settled.get(seq).map(Vec::as_slice),
                Some(&[Ok(())][..]),
                "{seed} {text}"
            );
        }
    }
}

#[test]
fn messages_of_both_directions_over_cut_links_arrive_once() {
    for seed in 0..24 {
        let mut world = world(seed);
        world.servers[1].home_delay_ms = world.rng.below(400);
        for round in 0..40 {
            for at in 0..2 {
                for _ in 0..world.rng.below(6) {
                    let bytes = [10, 200, 20_000, 200_000][world.rng.below(4) as usize];
                    let text = format!("{at}-{round}-{}", world.rng.below(u64::MAX));
                    let now_ms = world.now_ms;
                    assert!(world.servers[at].send(now_ms, text, bytes));
                }
            }
            let ms = world.rng.below(60);
            world.run(ms);
            if world.rng.below(3) == 0 {
                world.cut();
            }
        }
        world.run(40_000);
        balance(&world, seed);
    }
}

#[test]
fn messages_of_servers_that_are_killed_arrive_once() {
    for seed in 0..24 {
        let mut world = world(1_000 + seed);
        world.servers[1].home_delay_ms = world.rng.below(50);
        for round in 0..30 {
            for at in 0..2 {
                for _ in 0..world.rng.below(5) {
                    let bytes = [10, 50_000][world.rng.below(2) as usize];
                    let text = format!("{at}-{round}-{}", world.rng.below(u64::MAX));
                    let now_ms = world.now_ms;
                    assert!(world.servers[at].send(now_ms, text, bytes));
                }
            }
            let ms = world.rng.below(100);
            world.run(ms);
            match world.rng.below(4) {
                0 => world.kill(0),
                1 => world.kill(1),
                2 => world.cut(),
                _ => {}
            }
        }
        world.run(60_000);
        balance(&world, seed);
    }
}

#[test]
fn two_that_dial_at_once_keep_the_same_link() {
    for seed in 0..20 {
        let mut world = world(seed);
        world.run(200);
        assert_eq!(world.dialers().len(), 1, "seed {seed}");
        assert!(world.servers.iter().all(|of| of.peer.is_up()));
        let stats = [0, 1].map(|at| world.servers[at].peer.stats().link);
        assert!(stats[0].is_some() && stats[0] != stats[1], "{stats:?}");
    }
}

#[test]
fn large_message_does_not_hold_up_small_ones() {
    let mut world = world(1);
    world.run(100);
    let now_ms = world.now_ms;
    world.servers[0].send(now_ms, "large".to_owned(), 1_000_000);
    world.servers[0].send(now_ms, "small".to_owned(), 10);
    world.run(1_000);
    assert_eq!(world.servers[1].arrived, ["small", "large"]);
}

#[test]
fn message_that_is_too_old_fails_and_what_was_sent_says_so() {
    let config = PeerConfig { expiry_ms: 5_000, ..PeerConfig::default() };
    let mut world = World::new(3, config);
    world.is_reachable = false;
    world.run(100);
    let now_ms = world.now_ms;
    world.servers[0].send(now_ms, "never sent".to_owned(), 10);
    world.run(7_000);
    assert_eq!(world.servers[0].settled[&1], [Err(Reason::Expired)]);
    // One that was sent before the link broke may have arrived.
    world.is_reachable = true;
    world.servers[1].home_delay_ms = 60_000;
    world.run(70_000);
    let now_ms = world.now_ms;
    world.servers[0].send(now_ms, "sent".to_owned(), 10);
    world.run(100);
    world.cut();
    world.is_reachable = false;
    world.run(7_000);
    assert_eq!(world.servers[0].settled[&2], [Err(Reason::Unconfirmed)]);
    // The stream goes on behind both.
    world.is_reachable = true;
    world.servers[1].home_delay_ms = 1;
    world.run(70_000);
    let now_ms = world.now_ms;
    world.servers[0].send(now_ms, "later".to_owned(), 10);
    world.run(100);
    assert_eq!(world.servers[0].settled[&3], [Ok(())]);
    assert!(world.servers[1].arrived.contains(&"later".to_owned()));
}

#[test]
fn recipient_that_is_not_there_is_an_answer_also_over_a_cut() {
    for cut in [false, true] {
        let mut world = world(5);
        world.servers[1].refuses = Some("nobody");
        world.run(100);
        let now_ms = world.now_ms;
        world.servers[0].send(now_ms, "for nobody".to_owned(), 10);
        world.servers[0].send(now_ms, "for bob".to_owned(), 10);
        if cut {
            world.run(9);
            world.cut();
        }
        world.run(5_000);
        assert_eq!(world.servers[0].settled[&1], [Err(Reason::Unreachable)], "cut: {cut}");
        assert_eq!(world.servers[0].settled[&2], [Ok(())]);
    }
}

#[test]
fn full_queue_refuses_and_empties_when_the_peer_is_back() {
    let config = PeerConfig { queue_bytes_max: 10_000, ..PeerConfig::default() };
    let mut world = World::new(7, config);
    world.is_reachable = false;
    let accepted = (0..1_000).filter(|i| world.servers[0].send(1_000, format!("{i}"), 100)).count();
    assert!((40..70).contains(&accepted), "{accepted}");
    world.run(3_600_000 / 10);
    world.is_reachable = true;
    world.run(61_000);
    assert_eq!(world.servers[1].arrived.len(), accepted);
    let now_ms = world.now_ms;
    assert!(world.servers[0].send(now_ms, "again".to_owned(), 100));
}

#[test]
fn peer_that_is_away_is_dialed_with_growing_waits_up_to_a_minute() {
    let mut world = world(9);
    world.is_reachable = false;
    world.run(600_000);
    let stats = world.servers[0].peer.stats();
    assert!((10..30).contains(&stats.attempts), "{stats:?}");
    let wait_ms = stats.next_attempt_ms.unwrap() - world.now_ms;
    assert!(wait_ms <= 60_000);
    // An operator, or a contact of the peer, does not wait, and the count stays.
    world.servers[0].peer.dial_now(world.now_ms);
    world.run(2);
    assert_eq!(world.servers[0].peer.stats().attempts, stats.attempts + 1);
}

#[test]
fn idle_peer_takes_a_kibibyte() {
    assert!(size_of::<dunlin_federation::Peer>() <= 1_024);
}
