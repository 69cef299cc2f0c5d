//! Stories of channels whose users are counted, and of publications that leave a session out.

use std::sync::Arc;

use crate::kit::{Lines, World, plain, publish};
use dunlin_hub::{
    ChannelEvent, ChannelEventFilter, ChannelOptions, ChannelRef, Encode, EncodingId, Error, Event,
    NewPublication, NewSession, Outgoing, SessionId, SubscribeOptions, Subscribed,
};

fn counted(users_max: u32) -> Arc<ChannelOptions> {
    Arc::new(ChannelOptions {
        presence: true,
        join_leave: true,
        presence_users_max: Some(users_max),
        ..ChannelOptions::default()
    })
}

/// Somebody in the presence of a channel, whoever the session's user is.
fn member(user: &str) -> SubscribeOptions {
    SubscribeOptions {
        join_leave: true,
        skip_own_join: true,
        list_members: true,
        member: Some(user.into()),
        ..SubscribeOptions::default()
    }
}

fn users(subscribed: &Subscribed) -> Vec<&str> {
    let mut users: Vec<&str> = subscribed.members.iter().map(|info| &*info.user).collect();
    users.sort_unstable();
    users
}

fn leave(world: &mut World, session: SessionId, channel: &str) {
    let now = world.now;
    assert!(world.hub(session.worker()).handle_unsubscribe(now, session, channel, None));
    world.settle();
}

/// A hub's lines, and behind those of joins and leaves whether they are of the user.
struct OfUsers;

impl Encode for OfUsers {
    fn encode(&mut self, encoding: EncodingId, outgoing: &Outgoing<'_>, out: &mut Vec<u8>) {
        match outgoing {
            Outgoing::Join { info, of_user: true, .. } => {
                out.extend_from_slice(format!("+{} ", info.user).as_bytes());
            }
            Outgoing::Leave { info, of_user: true, .. } => {
                out.extend_from_slice(format!("-{} ", info.user).as_bytes());
            }
            Outgoing::Join { .. } | Outgoing::Leave { .. } => {}
            other => Lines.encode(encoding, other, out),
        }
    }
}

fn world_of_users(workers: u8) -> World {
    World::with_encoder(workers, || Box::new(OfUsers))
}

#[test]
fn a_user_joins_with_the_first_session_and_leaves_with_the_last() {
    let mut world = world_of_users(3);
    let options = counted(10);
    let ann = world.open(0, "");
    assert_eq!(users(&world.subscribe(ann, "room", &options, member("ann"))), ["ann"]);
    let first = world.open(1, "");
    assert_eq!(users(&world.subscribe(first, "room", &options, member("bob"))), ["ann", "bob"]);
    let second = world.open(2, "");
    let listed = world.subscribe(second, "room", &options, member("bob"));
    assert_eq!(users(&listed), ["ann", "bob"]);
    assert_eq!(world.read(ann), "+bob ", "not herself, and him once");
    assert_eq!(world.read(first), "", "nor himself by another session");
    leave(&mut world, first, "room");
    assert_eq!(world.read(ann), "");
    let now = world.now;
    world.hub(2).close_session(now, second);
    world.settle();
    assert_eq!(world.read(ann), "-bob ");
}

#[test]
fn a_channel_says_when_it_is_occupied_and_who_is_in_it() {
    let mut world = World::new(2);
    let filter = ChannelEventFilter { occupancy: true, ..ChannelEventFilter::default() };
    (0..2).for_each(|worker| world.hub(worker).set_channel_event_filter(filter));
    let options = counted(10);
    let sessions: Vec<SessionId> = (0..3).map(|at| world.open(at % 2, "")).collect();
    for (session, user) in sessions.iter().zip(["ann", "bob", "bob"]) {
        world.subscribe(*session, "room", &options, member(user));
    }
    for &session in &sessions {
        leave(&mut world, session, "room");
    }
    let events =
        world.hubs.iter_mut().flat_map(|hub| std::iter::from_fn(|| hub.poll_channel_event()));
    let reported: Vec<String> = events
        .map(|event| match event {
            ChannelEvent::Occupied { channel, occupied } => format!("{channel} {occupied}"),
            ChannelEvent::Member { user, added, .. } => format!("{user} {added}"),
            other => format!("{other:?}"),
        })
        .collect();
    let mut sorted = reported.clone();
    sorted.sort_unstable();
    assert_eq!(
        sorted,
        ["ann false", "ann true", "bob false", "bob true", "room false", "room true"],
        "{reported:?}"
    );
    assert_eq!(reported[0], "room true");
}

#[test]
fn a_channel_takes_so_many_users_and_any_number_of_their_sessions() {
    let mut world = World::new(2);
    let options = counted(2);
    for (worker, user) in [(0, "a"), (1, "b"), (0, "b"), (1, "a")] {
        let session = world.open(worker, "");
        world.subscribe(session, "room", &options, member(user));
    }
    let third = world.open(0, "");
    let now = world.now;
    world.hub(0).handle_subscribe(now, 5, third, ChannelRef::new("room", &options), member("c"));
    world.settle();
    let events = world.take_events();
    let is_refused = |(_, event): &(u8, Event)| {
        matches!(event, Event::Subscribed { token: 5, result: Err(Error::LimitExceeded), .. })
    };
    assert!(events.iter().any(is_refused), "{events:?}");
    assert!(!world.hub(0).has_subscription(third, "room"));
    // Where nobody is, a refusal leaves nothing behind.
    let homes = |world: &World| world.hubs.iter().map(|hub| hub.stats().home_channels).sum::<u64>();
    assert_eq!(homes(&world), 1);
}

/// More of them than are announced at once: they are gathered, and what is announced in the end is what has changed.
#[test]
fn of_a_flood_of_sessions_each_user_is_announced_as_it_ends_up() {
    let mut world = world_of_users(2);
    let options = counted(1_000);
    let watcher = world.open(0, "");
    world.subscribe(watcher, "room", &options, member("watcher"));
    let steady = world.open(1, "");
    world.subscribe(steady, "room", &options, member("steady"));
    let filler: Vec<SessionId> = (0..40)
        .map(|number| {
            let session = world.open(1, "");
            world.subscribe(session, "room", &options, member(&format!("f{number}")));
            session
        })
        .collect();
    // Gathered from here on: one changes its session, one comes and goes, one comes twice.
    leave(&mut world, steady, "room");
    let again = world.open(0, "");
    world.subscribe(again, "room", &options, member("steady"));
    let brief = world.open(1, "");
    world.subscribe(brief, "room", &options, member("brief"));
    leave(&mut world, brief, "room");
    for _ in 0..2 {
        let session = world.open(1, "");
        world.subscribe(session, "room", &options, member("twice"));
    }
    let late = world.open(0, "");
    let listed = world.subscribe(late, "room", &options, member("late"));
    let known = users(&listed).len();
    world.pass(200);
    world.settle();
    let reported = world.read(watcher);
    let of = |user: &str| {
        reported.split(' ').filter(|line| line.trim_start_matches(['+', '-']) == user).count()
    };
    assert_eq!((of("steady"), of("brief"), of("twice"), of("late")), (1, 0, 1, 1), "{reported}");
    assert_eq!(reported.matches("+f").count(), filler.len());
    // Who came late was given those whom the others knew of, and hears of the rest as they are.
    let reported = world.read(late);
    assert_eq!(known + reported.matches('+').count(), 2 + 40 + 1 + 1, "{reported}");
    assert!(!reported.contains("late") && reported.contains("+twice"), "{reported}");
}

#[test]
fn a_publication_leaves_out_the_session_it_says_wherever_that_is() {
    let mut world = World::new(2);
    let options = plain();
    let sessions: Vec<SessionId> = (0..4).map(|at| world.open(at % 2, "")).collect();
    for &session in &sessions {
        world.subscribe(session, "room", &options, SubscribeOptions::default());
    }
    for (at, &except) in sessions.iter().enumerate() {
        let publication = NewPublication { except: Some(except), ..publish(&at.to_string()) };
        world.publish_with(0, "room", &options, publication);
        for &session in &sessions {
            let read = world.read(session);
            let expected =
                if session == except { String::new() } else { format!("pub room 0 {at}\n") };
            assert_eq!(read, expected, "{session}");
        }
    }
    // One that has left, or was never there, is nobody.
    leave(&mut world, sessions[0], "room");
    let stale = NewPublication { except: Some(sessions[0]), ..publish("x") };
    world.publish_with(1, "room", &options, stale);
    assert_eq!(world.read(sessions[1]), "pub room 0 x\n");
}

#[test]
fn whom_a_publication_leaves_out_is_in_the_next_one_though_others_were_disconnected_meanwhile() {
    let mut world = World::new(1);
    let options = plain();
    let slow = world.open_with(0, NewSession { outbox_bytes_max: 8, ..NewSession::default() });
    world.subscribe(slow, "room", &options, SubscribeOptions::default());
    let spared = world.open(0, "");
    world.subscribe(spared, "room", &options, SubscribeOptions::default());
    world.hub(0).set_blocked(slow, true);
    let publication =
        NewPublication { except: Some(spared), ..publish("a long one for the first") };
    world.publish_with(0, "room", &options, publication);
    assert!(!world.hub(0).is_subscribed(slow, "room"), "it was disconnected, and the other moved");
    world.publish(0, "room", &options, "b");
    assert_eq!(world.read(spared), "pub room 0 b\n");
}
