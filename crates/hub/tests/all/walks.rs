//! Stories of commands about all users, and of those that labels narrow.

use crate::kit::{World, plain};
use dunlin_hub::{
    ChannelRef, DisconnectUser, Error, Event, HubConfig, NewSession, NumberOrder, RefreshUser,
    SessionFilter, SessionId, SubscribeOptions, SubscribeUser, TagCondition, TagFilter, Tags,
    UnsubscribeUser, tenant,
};

fn labels(list: &[(&str, &str)]) -> Tags {
    list.iter().map(|&(name, value)| (name.into(), value.into())).collect()
}

fn open(world: &mut World, worker: u8, user: &str, list: &[(&str, &str)]) -> SessionId {
    let session = world.open(worker, user);
    world.hub(worker).set_labels(session, labels(list));
    session
}

fn is(key: &str, value: &str) -> Option<TagFilter> {
    Some(TagFilter::Tag { key: key.into(), is: TagCondition::Equal(value.into()) })
}

fn all(labels: Option<TagFilter>) -> SessionFilter {
    SessionFilter { all_users: true, labels, ..SessionFilter::default() }
}

fn disconnect(only: SessionFilter) -> DisconnectUser {
    DisconnectUser { only, code: 3503, reason: "go".into(), ..DisconnectUser::default() }
}

/// What became of the command with token 9, and who was disconnected.
fn outcome(world: &mut World) -> (Result<u64, Error>, Vec<SessionId>) {
    world.settle();
    let (mut result, mut ended) = (None, Vec::new());
    for (_, event) in world.take_events() {
        match event {
            Event::Affected { token: 9, result: of } => {
                assert_eq!(result.replace(of), None, "one answer");
            }
            Event::Disconnect { session, .. } => ended.push(session),
            _ => {}
        }
    }
    ended.sort_unstable();
    (result.expect("an answer"), ended)
}

#[test]
fn all_users_with_these_labels_are_disconnected_on_every_worker() {
    let mut world = World::new(3);
    let eu: Vec<SessionId> = (0..3)
        .map(|worker| open(&mut world, worker, "ann", &[("region", "eu"), ("tier", "pro")]))
        .collect();
    let nobody = open(&mut world, 1, "", &[("region", "eu")]);
    let spared = open(&mut world, 2, "bob", &[("region", "eu")]);
    open(&mut world, 0, "bob", &[("region", "us")]);
    let plain = world.open(0, "eve");
    let now = world.now;
    let how = DisconnectUser { except: vec![spared], ..disconnect(all(is("region", "eu"))) };
    world.hub(1).handle_disconnect_user(now, 9, "", how);
    let mut wanted = eu;
    wanted.push(nobody);
    wanted.sort_unstable();
    assert_eq!(outcome(&mut world), (Ok(4), wanted));
    assert_eq!(world.read(plain), "");

    // Who is left but one.
    world.hub(0).handle_disconnect_user(now, 9, "", disconnect(all(None)));
    assert_eq!(outcome(&mut world).0, Ok(3));
}

#[test]
fn labels_narrow_down_a_user_and_a_client() {
    let mut world = World::new(2);
    let old = open(&mut world, 0, "ann", &[("version", "2.9")]);
    let new = open(&mut world, 1, "ann", &[("version", "10")]);
    open(&mut world, 1, "bob", &[("version", "1")]);
    let below_three = || {
        let is = TagCondition::Number(NumberOrder::Less, "3".into());
        Some(TagFilter::Tag { key: "version".into(), is })
    };
    let now = world.now;
    for (client, count) in [(Some(new), 0), (Some(old), 1), (None, 0)] {
        let only = SessionFilter { client, labels: below_three(), ..SessionFilter::default() };
        world.hub(0).handle_disconnect_user(now, 9, "ann", disconnect(only));
        assert_eq!(outcome(&mut world).0, Ok(count), "{client:?}");
    }
    // With all users, too, a client is one.
    let only = SessionFilter { client: Some(new), ..all(None) };
    world.hub(0).handle_disconnect_user(now, 9, "", disconnect(only));
    assert_eq!(outcome(&mut world), (Ok(1), vec![new]));
}

#[test]
fn all_users_are_subscribed_unsubscribed_and_refreshed() {
    let mut world = World::new(2);
    let ann = open(&mut world, 0, "ann", &[("tier", "pro")]);
    let bob = open(&mut world, 1, "bob", &[("tier", "pro")]);
    let eve = open(&mut world, 1, "eve", &[("tier", "free")]);
    let now = world.now;
    let only = || all(is("tier", "pro"));
    let how = SubscribeUser { only: only(), ..SubscribeUser::default() };
    world.hub(1).handle_subscribe_user(now, 9, "", ChannelRef::new("prices", &plain()), how);
    assert_eq!(outcome(&mut world).0, Ok(2));
    for (session, is_subscribed) in [(ann, true), (bob, true), (eve, false)] {
        assert_eq!(world.hub(session.worker()).is_subscribed(session, "prices"), is_subscribed);
    }
    let how = UnsubscribeUser { only: only(), code: 2000, ..UnsubscribeUser::default() };
    world.hub(1).handle_unsubscribe_user(now, 9, "", "prices", how);
    assert_eq!(outcome(&mut world).0, Ok(2));
    assert!(!world.hub(0).is_subscribed(ann, "prices"));
    let how = RefreshUser { only: only(), expire_at_s: Some(77), ..RefreshUser::default() };
    world.hub(0).handle_refresh_user(now, 9, "", how);
    assert_eq!(outcome(&mut world).0, Ok(2));
}

/// "All users" of a tenant are its own, and of the operator those of no tenant.
#[test]
fn all_users_are_those_of_whoever_asks() {
    let mut world = World::new(2);
    let acme = tenant::qualify("acme", "");
    let ann = world.open(0, &tenant::qualify("acme", "ann"));
    let nobody = world.open(1, &acme);
    let longer = world.open(1, &tenant::qualify("acme2", "ann"));
    let operator = [world.open(0, "ann"), world.open(1, "")];
    let now = world.now;
    world.hub(0).handle_disconnect_user(now, 9, "", disconnect(all(None)));
    assert_eq!(outcome(&mut world), (Ok(2), operator.to_vec()));
    world.hub(0).handle_disconnect_user(now, 9, &acme, disconnect(all(None)));
    assert_eq!(outcome(&mut world), (Ok(2), vec![ann, nobody]));
    assert_eq!(world.read(longer), "");
    // Unless all users are meant, nobody's name is no user.
    world.hub(0).handle_disconnect_user(now, 9, &acme, disconnect(SessionFilter::default()));
    assert_eq!(outcome(&mut world).0, Err(Error::BadRequest));
}

/// A connection whose backend has not said yet who it is.
#[test]
fn session_without_a_user_yet_is_not_among_all_users() {
    let mut world = World::new(1);
    world.open_with(0, NewSession { held: true, ..NewSession::default() });
    let ann = world.open_with(0, NewSession { user: "ann", held: true, ..NewSession::default() });
    let now = world.now;
    world.hub(0).handle_disconnect_user(now, 9, "", disconnect(all(None)));
    assert_eq!(outcome(&mut world), (Ok(1), vec![ann]));
}

/// A million sessions: a turn looks at a part of them, and acts on fewer.
#[test]
fn a_step_is_bounded_whatever_the_filter_costs() {
    let mut world = World::new(1);
    let many: Vec<SessionId> =
        (0..20_000).map(|_| open(&mut world, 0, "ann", &[("a", "x"), ("b", "y")])).collect();
    let now = world.now;
    let steps = |world: &mut World, labels: Option<TagFilter>| {
        world.hub(0).handle_refresh_user(
            now,
            9,
            "",
            RefreshUser { only: all(labels), ..RefreshUser::default() },
        );
        let (mut steps, mut most) = (0, 0);
        while world.hub(0).has_walks() {
            world.hub(0).continue_walks(now);
            steps += 1;
            let mut acted = 0;
            while let Some(event) = world.hub(0).poll_event() {
                acted += u64::from(matches!(event, Event::Refreshed { .. }));
            }
            most = most.max(acted);
        }
        (steps, most)
    };
    assert_eq!(steps(&mut world, None), (20_000_u64.div_ceil(256), 256));
    let one = is("a", "z");
    assert_eq!(steps(&mut world, one.clone()), (20_000_u64.div_ceil(4_096), 0));
    let wide = Some(TagFilter::Or(vec![one.unwrap(); 127].into()));
    assert_eq!(steps(&mut world, wide), (20_000_u64.div_ceil(64), 0));
    assert!(many.iter().all(|&session| world.hub(0).session(session).is_some()));
}

/// Whoever waits would give up, and repeat it.
#[test]
fn a_long_walk_is_answered_after_a_second_and_goes_on() {
    let mut world = World::new(1);
    for _ in 0..2_000 {
        world.open(0, "ann");
    }
    let mut now = world.now;
    world.hub(0).handle_disconnect_user(now, 9, "", disconnect(all(None)));
    // Another waits behind it, and for its answer no longer.
    world.hub(0).handle_disconnect_user(now, 10, "", disconnect(all(None)));
    let mut affected = |now| {
        world.hub(0).continue_walks(now);
        let (mut answers, mut ended) = (Vec::new(), 0);
        while let Some(event) = world.hub(0).poll_event() {
            match event {
                Event::Affected { token, result } => answers.push((token, result)),
                Event::Disconnect { .. } => ended += 1,
                _ => {}
            }
        }
        (answers, ended)
    };
    assert_eq!(affected(now), (vec![], 256));
    now.ms += 1_000;
    assert_eq!(affected(now), (vec![(9, Ok(512)), (10, Ok(0))], 256));
    let rest: usize =
        (0..8).map(|_| affected(now)).map(|(answers, ended)| ended + answers.len()).sum();
    assert_eq!(rest, 2_000 - 512, "all are ended, and nobody is answered twice");
    assert!(!world.hub(0).has_walks());
}

#[test]
fn walks_are_bounded_and_a_tenant_does_not_take_all_of_them() {
    let mut world = World::with_config(HubConfig { workers: 1, ..HubConfig::default() });
    let acme = tenant::qualify("acme", "");
    let now = world.now;
    let mut begin = |user: &str, token| {
        world.hub(0).handle_disconnect_user(now, token, user, disconnect(all(None)));
        match world.hub(0).poll_event() {
            None => Ok(()),
            Some(Event::Affected { result: Err(error), .. }) => Err(error),
            other => panic!("{other:?}"),
        }
    };
    for token in 0..8 {
        assert_eq!(begin(&acme, token), Ok(()));
    }
    assert_eq!(begin(&acme, 8), Err(Error::Overloaded));
    for token in 9..65 {
        assert_eq!(begin("", token), Ok(()));
    }
    assert_eq!(begin("", 65), Err(Error::Overloaded));
    world.settle();
    let answered = world.take_events().len();
    assert_eq!(answered, 64);
}

/// The home worker has no room: nobody is left out for that.
#[test]
fn a_walk_waits_for_room_and_leaves_out_nobody() {
    let config = HubConfig { workers: 2, requests_max: 8, ..HubConfig::default() };
    let mut world = World::with_config(config);
    let channel = world.channel_at(1, "prices");
    let many: Vec<SessionId> = (0..50).map(|n| world.open(0, &format!("user {n}"))).collect();
    let now = world.now;
    let how = SubscribeUser {
        only: all(None),
        subscribe: SubscribeOptions::default(),
        ..SubscribeUser::default()
    };
    world.hub(1).handle_subscribe_user(now, 9, "", ChannelRef::new(&channel, &plain()), how);
    assert_eq!(outcome(&mut world).0, Ok(50));
    assert!(many.iter().all(|&of| world.hub(0).is_subscribed(of, &channel)));
}

#[test]
fn labels_end_with_their_session() {
    let mut world = World::new(1);
    let now = world.now;
    let mut places = std::collections::HashSet::new();
    let mut is_used_again = false;
    for _ in 0..3_000 {
        let session = world.open(0, "ann");
        assert!(world.hub(0).labels(session).is_empty());
        is_used_again |= !places.insert(session.slot());
        world.hub(0).set_labels(session, labels(&[("tier", "pro")]));
        assert_eq!(world.hub(0).labels(session), &labels(&[("tier", "pro")]));
        world.hub(0).close_session(now, session);
        assert!(world.hub(0).labels(session).is_empty());
    }
    assert!(is_used_again);
}
