//! Stories of broadcasts that take several turns.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use crate::kit::{World, plain, publish, with_history};
use dunlin_hub::{
    ChannelOptions, ChannelRef, HubConfig, OverflowPolicy, Pacing, SessionId, SubscribeOptions,
};

const QUANTUM: usize = 10;

fn world() -> World {
    World::with_config(HubConfig {
        broadcast_quantum: NonZeroU32::new(QUANTUM as u32),
        ..HubConfig::default()
    })
}

fn subscribers(
    world: &mut World,
    count: usize,
    channel: &str,
    options: &Arc<ChannelOptions>,
) -> Vec<SessionId> {
    (0..count)
        .map(|_| {
            let session = world.open(0, "");
            world.subscribe(session, channel, options, SubscribeOptions::default());
            session
        })
        .collect()
}

fn in_namespace(name: &str) -> Arc<ChannelOptions> {
    Arc::new(ChannelOptions { namespace: name.into(), ..ChannelOptions::default() })
}

/// Who was written to in a turn.
fn turn(world: &mut World) -> Vec<(SessionId, String)> {
    world.flush(0).into_iter().map(|(flush, text)| (flush.session, text)).collect()
}

/// Turns until a turn writes nothing and none is due; everything written.
fn drain(world: &mut World) -> Vec<(SessionId, String)> {
    let mut all = Vec::new();
    loop {
        let written = turn(world);
        let due_ms = world.hub(0).flush_due_ms();
        all.extend(written);
        match due_ms {
            None => return all,
            Some(at_ms) => world.now.ms = world.now.ms.max(at_ms),
        }
    }
}

#[test]
fn a_broadcast_leaves_a_quantum_a_turn_and_reaches_everyone_once() {
    let mut world = world();
    let everyone = subscribers(&mut world, 95, "all", &plain());
    world.publish(0, "all", &plain(), "hi");
    let mut turns = Vec::new();
    loop {
        let written = turn(&mut world);
        if written.is_empty() {
            break;
        }
        assert!(written.iter().all(|(_, text)| text == "pub all 0 hi\n"));
        turns.push(written.len());
    }
    assert_eq!(turns, [10, 10, 10, 10, 10, 10, 10, 10, 10, 5]);
    assert_eq!(turns.iter().sum::<usize>(), everyone.len());
    assert_eq!(world.hub(0).flush_due_ms(), None, "nothing is left");
    assert_eq!(world.hub(0).stats().pending_bytes, 0);
}

#[test]
fn other_traffic_leaves_in_the_turn_it_came() {
    let mut world = world();
    subscribers(&mut world, 50, "all", &plain());
    let two = subscribers(&mut world, 2, "talk", &plain());
    world.publish(0, "all", &plain(), "hi");
    turn(&mut world);
    world.publish(0, "talk", &plain(), "ho");
    let written = turn(&mut world);
    let first: Vec<SessionId> = written.iter().take(2).map(|(session, _)| *session).collect();
    assert_eq!(first, two, "before the broadcast goes on");
    assert_eq!(written.len(), 2 + QUANTUM);
}

#[test]
fn publication_during_pacing_is_sent_with_those_that_wait_in_order() {
    let mut world = world();
    let everyone = subscribers(&mut world, 30, "all", &with_history());
    world.publish(0, "all", &with_history(), "1");
    let first = turn(&mut world);
    world.publish(0, "all", &with_history(), "2");
    let rest = drain(&mut world);
    let both = rest.iter().filter(|(_, text)| text == "pub all 1 1\npub all 2 2\n").count();
    assert_eq!((first.len(), both), (10, 20), "who waited gets both in one write");
    let second = rest.iter().filter(|(_, text)| text == "pub all 2 2\n").count();
    assert_eq!(second, 10);
    assert_eq!(rest.len(), everyone.len());
}

#[test]
fn a_reply_takes_along_what_waits_before_it() {
    let mut world = world();
    let everyone = subscribers(&mut world, 30, "all", &plain());
    world.publish(0, "all", &plain(), "hi");
    let last = everyone[29];
    world.hub(0).push(last, |out| out.extend_from_slice(b"reply\n"));
    let written = turn(&mut world);
    assert_eq!(written[0], (last, "pub all 0 hi\nreply\n".into()));
    let all = drain(&mut world);
    assert_eq!(written.len() + all.len(), 30, "and is not written to again");
}

#[test]
fn a_session_that_leaves_and_one_that_comes_disturb_nothing() {
    let mut world = world();
    let everyone = subscribers(&mut world, 30, "all", &with_history());
    world.publish(0, "all", &with_history(), "1");
    turn(&mut world);
    let now = world.now;
    world.hub(0).close_session(now, everyone[20]);
    world.settle();
    // In the slot of the one that left, and with the first publication behind it.
    let new = world.open(0, "");
    let subscribed = world.subscribe(new, "all", &with_history(), SubscribeOptions::default());
    assert_eq!(subscribed.position.offset, 1);
    world.publish(0, "all", &with_history(), "2");
    let written = drain(&mut world);
    let of = |who: SessionId| -> String {
        written.iter().filter(|(session, _)| *session == who).map(|(_, text)| &**text).collect()
    };
    assert_eq!(of(new), "pub all 2 2\n");
    assert_eq!(of(everyone[29]), "pub all 1 1\npub all 2 2\n");
    assert_eq!(of(everyone[20]), "");
}

#[test]
fn a_namespace_keeps_its_rate_and_does_not_hold_up_another() {
    let mut world = world();
    let slow = in_namespace("slow");
    let pacing = Pacing { messages_per_s: NonZeroU64::new(100), burst_ms: 10, ..Pacing::default() };
    let now = world.now;
    world.hub(0).set_pacing(now, &"slow".into(), pacing);
    let both = subscribers(&mut world, 40, "slow:x", &slow);
    for &session in &both {
        world.subscribe(session, "fast", &plain(), SubscribeOptions::default());
    }
    world.publish(0, "slow:x", &slow, "s");
    assert_eq!(turn(&mut world).len(), 1, "the burst is one message");
    assert_eq!(world.hub(0).flush_due_ms(), Some(now.ms + 1));
    world.publish(0, "fast", &plain(), "f");
    let mut fast = 0;
    while fast < 40 {
        let written = turn(&mut world);
        assert!(!written.is_empty(), "the fast one waits for no token");
        fast += written.iter().filter(|(_, text)| text.ends_with("pub fast 0 f\n")).count();
    }
    assert_eq!(world.now, now, "and all that in no time");
    assert_eq!(drain(&mut world), [], "who was written to has it all");
}

#[test]
fn a_changed_rate_takes_effect_on_a_broadcast_under_way() {
    let mut world = world();
    let options = in_namespace("n");
    let rate =
        |per_s| Pacing { messages_per_s: NonZeroU64::new(per_s), burst_ms: 1, ..Pacing::default() };
    let name: Arc<str> = "n".into();
    let now = world.now;
    world.hub(0).set_pacing(now, &name, rate(1));
    subscribers(&mut world, 100, "n:x", &options);
    world.publish(0, "n:x", &options, "hi");
    assert_eq!(turn(&mut world).len(), 1);
    world.now.ms += 10;
    turn(&mut world);
    world.now.ms += 10;
    assert_eq!(turn(&mut world).len(), 0, "the burst is over, a second has to pass");
    let now = world.now;
    world.hub(0).set_pacing(now, &name, rate(1000));
    world.now.ms += 1000;
    turn(&mut world);
    let started = world.now.ms;
    let left = drain(&mut world).len();
    assert!(left > 80, "{left} of 100 were still waiting");
    assert!(world.now.ms - started <= 200, "now at 1,000 a second");
}

#[test]
fn bytes_are_kept_to_as_well_and_so_is_the_worker() {
    let mut world = world();
    let pacing = Pacing { bytes_per_s: NonZeroU64::new(1300), burst_ms: 10, ..Pacing::default() };
    let now = world.now;
    world.hub(0).set_worker_pacing(now, pacing);
    subscribers(&mut world, 21, "all", &plain());
    world.publish(0, "all", &plain(), "hi");
    assert_eq!(drain(&mut world).len(), 21);
    // 21 × 13 bytes at 1.3 a millisecond, but for the burst.
    let passed = world.now.ms - now.ms;
    assert!((190..=210).contains(&passed), "{passed}");
}

#[test]
fn a_namespace_may_have_a_smaller_quantum_of_its_own() {
    let mut world = world();
    let options = in_namespace("big");
    let now = world.now;
    let pacing = Pacing { sessions_per_turn: NonZeroU32::new(3), ..Pacing::default() };
    world.hub(0).set_pacing(now, &"big".into(), pacing);
    subscribers(&mut world, 7, "big:x", &options);
    world.publish(0, "big:x", &options, "hi");
    let turns: Vec<usize> = (0..4).map(|_| turn(&mut world).len()).collect();
    assert_eq!(turns, [3, 3, 1, 0]);
}

#[test]
fn a_broadcast_is_listed_paused_and_resumed() {
    let mut world = world();
    subscribers(&mut world, 30, "all", &plain());
    let other = subscribers(&mut world, 1, "talk", &plain())[0];
    world.publish(0, "all", &plain(), "1");
    turn(&mut world);
    assert!(world.hub(0).pause_broadcast("all"));
    assert_eq!(turn(&mut world).len(), 0);
    assert_eq!(world.hub(0).flush_due_ms(), None, "what is paused wants no turn");
    world.publish(0, "all", &plain(), "2");
    world.publish(0, "talk", &plain(), "x");
    assert_eq!(turn(&mut world), [(other, "pub talk 0 x\n".into())]);

    let status: Vec<_> = world.hub(0).broadcasts().collect();
    assert_eq!(status.len(), 1);
    let status = &status[0];
    assert_eq!((&*status.channel, status.publications, status.paused), ("all", 2, true));
    assert_eq!((status.written, status.waiting), (10, 20));

    assert!(world.hub(0).resume_broadcast("all"));
    let written = drain(&mut world);
    let both = written.iter().filter(|(_, text)| text == "pub all 0 1\npub all 0 2\n").count();
    assert_eq!((both, written.len()), (20, 30));
    assert_eq!(world.hub(0).broadcasts().count(), 0);
    assert!(!world.hub(0).pause_broadcast("all"), "none is under way");
}

#[test]
fn a_cancelled_broadcast_tells_whom_it_did_not_reach() {
    for policy in [OverflowPolicy::Disconnect, OverflowPolicy::DropOldest] {
        let mut world = world();
        let options = Arc::new(ChannelOptions { overflow: policy, ..ChannelOptions::default() });
        let everyone = subscribers(&mut world, 30, "all", &options);
        world.publish(0, "all", &options, "1");
        world.publish(0, "all", &options, "2");
        let reached = turn(&mut world);
        // Something else waits for one of the others, and stays.
        world.hub(0).push(everyone[25], |out| out.extend_from_slice(b"reply\n"));
        assert_eq!(world.hub(0).cancel_broadcast("all"), Some(2 * 20));
        let received = drain(&mut world);
        assert_eq!(reached.len(), 10);
        let missed = received.iter().filter(|(_, text)| text == "missed all 2\n").count();
        assert_eq!((missed, received.len()), (19, 20));
        assert!(received.contains(&(everyone[25], "missed all 2\nreply\n".into())));
        assert_eq!(world.hub(0).cancel_broadcast("all"), None);
        assert_eq!(world.hub(0).stats().pending_bytes, 0);
        assert_eq!(world.hub(0).stats().dropped, 40);
        world.publish(0, "all", &options, "3");
        assert_eq!(drain(&mut world).len(), 30, "the next one is whole");
    }
}

#[test]
fn a_paused_broadcast_can_be_cancelled_too() {
    let mut world = world();
    subscribers(&mut world, 30, "all", &plain());
    world.publish(0, "all", &plain(), "1");
    turn(&mut world);
    world.hub(0).pause_broadcast("all");
    assert_eq!(world.hub(0).cancel_broadcast("all"), Some(20));
}

/// Thirty clients of two channels that are both broadcast, `all` first; none has been written to.
fn two_broadcasts(world: &mut World) {
    for session in subscribers(world, 30, "all", &plain()) {
        world.subscribe(session, "talk", &plain(), SubscribeOptions::default());
    }
    world.publish(0, "all", &plain(), "1");
    world.publish(0, "talk", &plain(), "2");
}

#[test]
fn a_pause_holds_up_no_other_broadcast_to_the_same_clients() {
    let mut world = world();
    two_broadcasts(&mut world);
    assert!(world.hub(0).pause_broadcast("all"));
    let written = drain(&mut world);
    let both = written.iter().filter(|(_, text)| text == "pub all 0 1\npub talk 0 2\n").count();
    assert_eq!(both, 30, "of 30 clients; `talk` takes along what waits before it");
    assert!(world.hub(0).resume_broadcast("all"));
    assert_eq!(drain(&mut world), []);
    assert_eq!(world.hub(0).stats().pending_bytes, 0);
}

#[test]
fn a_paused_broadcast_keeps_who_waits_for_nothing_else() {
    let mut world = world();
    two_broadcasts(&mut world);
    let alone = subscribers(&mut world, 5, "all", &plain());
    world.publish(0, "all", &plain(), "3");
    assert!(world.hub(0).pause_broadcast("all"));
    assert_eq!(drain(&mut world).len(), 30);
    assert!(world.hub(0).resume_broadcast("all"));
    let late: Vec<SessionId> = drain(&mut world).into_iter().map(|(session, _)| session).collect();
    assert_eq!(late, alone);
}

#[test]
fn a_cancelled_broadcast_is_taken_back_from_those_too_who_wait_for_another() {
    let mut world = world();
    two_broadcasts(&mut world);
    assert_eq!(world.hub(0).cancel_broadcast("talk"), Some(30));
    assert_eq!(turn(&mut world).len(), QUANTUM, "the other one goes on as it was");
    let rest = drain(&mut world);
    assert!(rest.iter().all(|(_, text)| text == "pub all 0 1\nmissed talk 1\n"), "{rest:?}");
    assert_eq!(rest.len(), 20);
    assert_eq!(world.hub(0).stats().pending_bytes, 0);
}

#[test]
fn outboxes_that_fill_up_are_flushed_without_regard_to_the_quantum() {
    let mut world = world();
    subscribers(&mut world, 30, "all", &plain());
    let now = world.now;
    let large = "x".repeat(10_000);
    for n in 0..60 {
        world.hub(0).handle_publish(now, n, ChannelRef::new("all", &plain()), publish(&large));
    }
    world.settle();
    assert!(!world.hub(0).wants_flush(), "more than half of what they hold");
    for n in 60..110 {
        world.hub(0).handle_publish(now, n, ChannelRef::new("all", &plain()), publish(&large));
    }
    world.settle();
    assert!(world.hub(0).wants_flush(), "more than what they hold");
    let written = turn(&mut world);
    assert_eq!(written.len(), 30);
    assert!(written.iter().all(|(_, text)| text.len() > 1_100_000));
}

/// One publisher of large messages filled outboxes until they were all flushed in one turn, again and again.
#[test]
fn a_channel_that_fills_outboxes_faster_than_turns_flush_them_is_behind_until_they_are() {
    let mut world = world();
    subscribers(&mut world, 30, "all", &plain());
    let deaf = subscribers(&mut world, 30, "deaf", &plain());
    let behind = |world: &mut World| -> Vec<String> {
        world.hub(0).channels_behind().map(|name| name.to_string()).collect()
    };
    let large = "x".repeat(100_000);
    for channel in ["all", "deaf"] {
        world.publish(0, channel, &plain(), &large);
    }
    for session in deaf {
        world.hub(0).set_blocked(session, true);
    }
    assert_eq!(behind(&mut world), [""; 0], "one message waits");
    for _ in 0..5 {
        world.publish(0, "all", &plain(), &large);
        world.publish(0, "deaf", &plain(), &large);
    }
    assert_eq!(behind(&mut world), ["all"], "who does not read keeps nobody waiting");
    assert!(!world.hub(0).wants_flush());
    assert!(world.hub(0).pause_broadcast("all"));
    assert_eq!(behind(&mut world), [""; 0], "no turn would flush it");
    assert!(world.hub(0).resume_broadcast("all"));
    assert_eq!(behind(&mut world), ["all"]);
    assert_eq!(drain(&mut world).len(), 30);
    assert_eq!(behind(&mut world), [""; 0]);
}

#[test]
fn few_subscribers_of_large_messages_take_several_turns_too() {
    let mut world = world();
    subscribers(&mut world, 8, "large", &plain());
    world.publish(0, "large", &plain(), &"x".repeat(150_000));
    let first = turn(&mut world).len();
    assert!(first <= 2, "one of them counts as ten");
    assert_eq!(drain(&mut world).len(), 8 - first);
}

#[test]
fn a_broadcast_of_large_messages_delays_one_of_small_messages_no_more_than_its_share() {
    let mut world = world();
    subscribers(&mut world, 40, "large", &plain());
    let talk = subscribers(&mut world, 40, "talk", &plain());
    world.publish(0, "large", &plain(), &"x".repeat(150_000));
    world.publish(0, "talk", &plain(), "hi");
    let (mut turns, mut small, mut large) = (0, 0, 0);
    while small < talk.len() {
        let written = turn(&mut world);
        assert!(written.iter().filter(|(_, text)| text.len() > 1_000).count() <= 2, "in a turn");
        small += written.iter().filter(|(_, text)| text == "pub talk 0 hi\n").count();
        large += written.iter().filter(|(_, text)| text.len() > 1_000).count();
        turns += 1;
    }
    // The quantum is ten, and one of the large ones counts as ten.
    assert!((8..=10).contains(&turns) && (4..=6).contains(&large), "{turns} turns, {large}");
    assert_eq!(drain(&mut world).len(), 40 - large);
}
