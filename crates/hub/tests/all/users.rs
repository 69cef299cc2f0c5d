//! Stories of presence, join and leave, and of users with sessions on several workers.

use std::sync::Arc;

use crate::kit::{World, plain, with_history};
use dunlin_hub::{
    ChannelOptions, ChannelRef, ChannelSummary, CheckedSubscription, DisconnectUser, Error, Event,
    Info, NewSession, PayloadFormat, PresenceStats, SendToUser, SessionId, SubscribeOptions,
    SubscribeUser, SubscriberRights, UnsubscribeUser, Withdrawal,
};

fn with_presence() -> Arc<ChannelOptions> {
    Arc::new(ChannelOptions { presence: true, join_leave: true, ..ChannelOptions::default() })
}

fn present(world: &mut World, channel: &str) -> Vec<(String, SessionId)> {
    let now = world.now;
    world.hub(0).handle_presence(now, 1, ChannelRef::new(channel, &with_presence()), usize::MAX);
    world.settle();
    let event = world.take_events().pop();
    let Some((0, Event::Presence { token: 1, result: Ok(infos) })) = event else {
        panic!("{event:?}");
    };
    let mut present: Vec<(String, SessionId)> =
        infos.iter().map(|info| (info.user.to_string(), info.client)).collect();
    present.sort();
    present
}

fn affected(world: &mut World) -> u64 {
    world.settle();
    let events = world.take_events();
    let counts: Vec<u64> = events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Affected { token: 9, result } => Some(result.expect("an answer")),
            _ => None,
        })
        .collect();
    assert_eq!(counts.len(), 1, "{events:?}");
    counts[0]
}

#[test]
fn everyone_present_is_listed_and_watchers_are_reported() {
    let mut world = World::new(3);
    let options = with_presence();
    let watch = SubscribeOptions { join_leave: true, ..SubscribeOptions::default() };
    let ann = world.open(0, "ann");
    world.subscribe(ann, "room", &options, watch);
    assert_eq!(world.read(ann), "join room ann\n", "one's own arrival too, after the answer");
    let bob = world.open(1, "bob");
    world.subscribe(bob, "room", &options, SubscribeOptions::default());
    let again = world.open_with(2, NewSession { user: "ann", ..NewSession::default() });
    world.subscribe(again, "room", &options, SubscribeOptions::default());
    assert_eq!(world.read(ann), "join room bob\njoin room ann\n");
    assert_eq!(world.read(bob), "", "did not ask");

    let listed = [("ann", ann), ("ann", again), ("bob", bob)];
    let listed = listed.map(|(user, client)| (user.to_owned(), client));
    assert_eq!(present(&mut world, "room"), listed);
    let now = world.now;
    world.hub(2).handle_presence_stats(now, 2, ChannelRef::new("room", &options));
    world.settle();
    let stats = PresenceStats { clients: 3, users: 2 };
    let expected = Event::PresenceStats { token: 2, result: Ok(stats) };
    assert_eq!(world.take_events(), [(2, expected)]);

    world.hub(1).handle_unsubscribe(now, bob, "room", None);
    world.hub(2).close_session(now, again);
    world.settle();
    let mut received: Vec<String> = world.read(ann).lines().map(str::to_owned).collect();
    received.sort();
    assert_eq!(received, ["leave room ann", "leave room bob"]);
    assert_eq!(present(&mut world, "room"), [("ann".to_owned(), ann)]);
    world.hub(0).close_session(now, ann);
    world.settle();
    assert_eq!(present(&mut world, "room"), []);
    assert!(world.hubs.iter().all(|hub| hub.stats().home_channels == 0));
}

#[test]
fn presence_is_off_until_configured() {
    let mut world = World::new(1);
    let now = world.now;
    let session = world.open(0, "ann");
    world.subscribe(session, "room", &plain(), SubscribeOptions::default());
    world.hub(0).handle_presence(now, 1, ChannelRef::new("room", &plain()), usize::MAX);
    let refused = Event::Presence { token: 1, result: Err(Error::PresenceOff) };
    assert_eq!(world.hub(0).poll_event(), Some(refused));
    assert_eq!(present(&mut world, "room"), [], "and nothing was noted meanwhile");
}

#[test]
fn a_publication_can_say_who_made_it() {
    let mut world = World::new(1);
    let new = NewSession {
        user: "ann",
        conn_info: Some(b"{\"name\":\"Ann\"}".as_slice().into()),
        ..NewSession::default()
    };
    let ann = world.open_with(0, new);
    let subscribe = SubscribeOptions {
        chan_info: Some(b"{\"role\":1}".as_slice().into()),
        ..SubscribeOptions::default()
    };
    world.subscribe(ann, "room", &plain(), subscribe);
    let hub = world.hub(0);
    let info = hub.client_info(ann, Some("room")).expect("open");
    assert_eq!((&*info.user, info.client), ("ann", ann));
    assert_eq!(info.conn_info.as_deref(), Some(b"{\"name\":\"Ann\"}".as_slice()));
    assert_eq!(info.chan_info.as_deref(), Some(b"{\"role\":1}".as_slice()));
    let elsewhere = hub.client_info(ann, Some("other")).expect("open");
    assert_eq!(elsewhere.chan_info, None);
}

#[test]
fn a_member_stays_as_he_came_when_his_connection_is_described_anew() {
    let mut world = World::new(2);
    let ann = world.open(0, "ann");
    let options = Arc::new(ChannelOptions { presence: true, ..ChannelOptions::default() });
    world.subscribe(ann, "room", &options, SubscribeOptions::default());
    world.subscribe(ann, "other", &plain(), SubscribeOptions::default());
    let conn_info = |world: &mut World, channel| {
        let info = world.hub(0).client_info(ann, Some(channel)).expect("open");
        info.conn_info.as_deref().map(|json| String::from_utf8_lossy(json).into_owned())
    };
    assert_eq!(conn_info(&mut world, "room"), None);
    world.hub(0).set_conn_info(ann, b"1".as_slice().into());
    world.hub(0).set_conn_info(ann, b"2".as_slice().into());
    assert_eq!(conn_info(&mut world, "room"), None, "as the others see him there");
    assert_eq!(conn_info(&mut world, "other").as_deref(), Some("2"));
    let present = world.hub(0).client_info(ann, Some("room")).expect("open");
    assert_eq!(&*present.user, "ann");
}

#[test]
fn session_keeps_its_id_when_the_node_gets_another_number() {
    let mut world = World::new(2);
    let options = with_presence();
    let ann = world.open(0, "ann");
    world.subscribe(ann, "room", &options, SubscribeOptions::default());
    for worker in 0..2 {
        world.hub(worker).set_node(7).expect("the second number");
    }
    let again = world.open(0, "ann");
    world.subscribe(again, "room", &options, SubscribeOptions::default());
    assert_eq!((ann.node(), again.node()), (0, 7));
    let listed = [("ann".to_owned(), ann), ("ann".to_owned(), again)];
    assert_eq!(present(&mut world, "room"), listed);
    assert_eq!(world.hub(0).sessions_of("ann").count(), 2);
    assert!(world.hub(0).is_subscribed(ann, "room"));
    // The same slot under the present number is nobody.
    let stranger = SessionId::pack(7, ann.boot(), ann.worker(), ann.slot(), ann.generation());
    assert!(world.hub(0).session(stranger).is_none());

    let now = world.now;
    let one = DisconnectUser { only: Some(ann).into(), code: 3503, ..DisconnectUser::default() };
    world.hub(1).handle_disconnect_user(now, 9, "ann", one);
    world.settle();
    let received: Vec<SessionId> = world
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Disconnect { session, .. } => Some(*session),
            _ => None,
        })
        .collect();
    assert_eq!(received, [ann], "found by its id, from another worker");
    world.hub(0).close_session(now, ann);
    world.settle();
    assert!(world.hub(0).session(ann).is_none());
    assert_eq!(present(&mut world, "room"), [("ann".to_owned(), again)]);
}

#[test]
fn a_user_is_disconnected_wherever_he_is() {
    let mut world = World::new(3);
    let sessions: Vec<SessionId> = (0..3).map(|worker| world.open(worker, "ann")).collect();
    let other = world.open(1, "bob");
    let spared = world.open(2, "ann");
    let now = world.now;
    let disconnect = DisconnectUser {
        except: vec![spared],
        code: 3503,
        reason: "go".into(),
        ..DisconnectUser::default()
    };
    world.hub(1).handle_disconnect_user(now, 9, "ann", disconnect.clone());
    world.settle();
    let received: Vec<SessionId> = world
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Disconnect { session, code: 3503, reason, .. } if **reason == *"go" => {
                Some(*session)
            }
            _ => None,
        })
        .collect();
    assert_eq!(received.len(), 3);
    assert_eq!(affected(&mut world), 3);
    for session in sessions {
        assert!(received.contains(&session));
        assert_eq!(world.read(session), "bye 3503\n");
    }
    assert_eq!(world.read(other), "");
    world.hub(0).handle_disconnect_user(now, 9, "ann", disconnect);
    assert_eq!(affected(&mut world), 0, "they are on their way already");

    // One session, by its id alone or with its user's name.
    for (user, client, count) in [
        ("", other, 1),
        ("", other, 0),
        ("bob", spared, 0),
        ("ann", spared, 1),
        ("", SessionId::pack(0, 0, 100, 0, 0), 0),
    ] {
        let disconnect =
            DisconnectUser { only: Some(client).into(), code: 3503, ..DisconnectUser::default() };
        world.hub(0).handle_disconnect_user(now, 9, user, disconnect);
        assert_eq!(affected(&mut world), count, "{user:?} {client:?}");
    }
    world.hub(0).handle_disconnect_user(now, 8, "", DisconnectUser::default());
    let refused = Event::Affected { token: 8, result: Err(Error::BadRequest) };
    assert_eq!(world.hub(0).poll_event(), Some(refused));
}

#[test]
fn a_user_is_subscribed_and_unsubscribed_by_the_server() {
    let mut world = World::new(2);
    let options = with_history();
    let here = world.open(0, "ann");
    let there = world.open(1, "ann");
    world.subscribe(there, "news", &options, SubscribeOptions::default());
    world.publish(0, "news", &options, "one");
    world.read(there);
    let now = world.now;
    let subscribe = SubscribeUser {
        subscribe: SubscribeOptions {
            recover: Some(dunlin_hub::StreamPosition::default()),
            ..SubscribeOptions::default()
        },
        ..SubscribeUser::default()
    };
    world.hub(1).handle_subscribe_user(now, 9, "ann", ChannelRef::new("news", &options), subscribe);
    assert_eq!(affected(&mut world), 1, "the other one is subscribed already");
    world.publish(1, "news", &options, "two");
    let epoch = world.hub(0).position(here, "news").expect("subscribed").epoch;
    assert_eq!(world.read(here), format!("sub news 1 {epoch}\npub news 1 one\npub news 2 two\n"));
    assert_eq!(world.read(there), "pub news 2 two\n");

    let unsubscribe = UnsubscribeUser { code: 2000, ..UnsubscribeUser::default() };
    world.hub(0).handle_unsubscribe_user(now, 9, "ann", "news", unsubscribe.clone());
    world.settle();
    let ended = world
        .events
        .iter()
        .filter(|(_, event)| matches!(event, Event::Unsubscribed { code: 2000, .. }))
        .count();
    assert_eq!(ended, 2);
    assert_eq!(affected(&mut world), 2);
    world.publish(1, "news", &options, "three");
    assert_eq!(world.read(here), "unsub news 2000\n");
    assert_eq!(world.read(there), "unsub news 2000\n");

    world.subscribe(here, "a", &options, SubscribeOptions::default());
    world.subscribe(here, "b", &options, SubscribeOptions::default());
    world.hub(0).handle_unsubscribe_user(now, 9, "ann", "", unsubscribe);
    assert_eq!(affected(&mut world), 1, "from everything");
    assert_eq!(world.hub(0).subscriptions(here).count(), 0);
}

#[test]
fn channels_and_counts_are_gathered_from_all_workers() {
    let mut world = World::new(3);
    let plans = [(0, "ann", "chat:1"), (1, "bob", "chat:1"), (2, "", "chat:2"), (2, "", "news")];
    for (worker, user, channel) in plans {
        let session = world.open(worker, user);
        world.subscribe(session, channel, &plain(), SubscribeOptions::default());
    }
    let now = world.now;
    for (pattern, expected) in [
        ("", vec![("chat:1", 2), ("chat:2", 1), ("news", 1)]),
        ("chat:*", vec![("chat:1", 2), ("chat:2", 1)]),
        ("{news,chat:2}", vec![("chat:2", 1), ("news", 1)]),
        ("x", vec![]),
    ] {
        world.hub(1).handle_channels(now, 4, pattern);
        world.settle();
        let channels = expected
            .into_iter()
            .map(|(name, clients)| ChannelSummary { name: name.into(), clients })
            .collect();
        let expected = Event::Channels { token: 4, result: Ok(channels) };
        assert_eq!(world.take_events(), [(1, expected)]);
    }
    world.hub(1).handle_channels(now, 4, "{");
    let refused = Event::Channels { token: 4, result: Err(Error::BadRequest) };
    assert_eq!(world.hub(1).poll_event(), Some(refused));
    world.hub(2).handle_info(now, 5);
    world.settle();
    let info = Info { clients: 4, users: 2, channels: 3, subscriptions: 4 };
    assert_eq!(world.take_events(), [(2, Event::Info { token: 5, result: Ok(info) })]);
}

#[test]
fn sessions_of_a_lost_worker_leave_presence() {
    let mut world = World::new(2);
    let channel = world.channel_at(0, "room:");
    let options = with_presence();
    let ann = world.open(0, "ann");
    let watch = SubscribeOptions { join_leave: true, ..SubscribeOptions::default() };
    world.subscribe(ann, &channel, &options, watch);
    let bob = world.open(1, "bob");
    world.subscribe(bob, &channel, &options, SubscribeOptions::default());
    world.read(ann);
    world.restart(1);
    world.settle();
    assert_eq!(world.read(ann), format!("leave {channel} bob\n"));
    assert_eq!(present(&mut world, &channel), [("ann".to_owned(), ann)]);
    // The new worker's sessions are not taken for the old one's.
    let eve = world.open(1, "eve");
    assert_ne!(eve, bob);
    assert!(world.hub(1).session(bob).is_none());
}

#[test]
fn a_home_that_dies_is_marked_to_its_subscribers() {
    let mut world = World::new(2);
    let channel = world.channel_at(1, "room:");
    let options = with_history();
    let ann = world.open(0, "ann");
    world.subscribe(ann, &channel, &options, SubscribeOptions::default());
    let position = world.publish(0, &channel, &options, "one").position;
    world.read(ann);
    let now = world.now;
    // Under way when the worker dies.
    world.hub(0).handle_publish(
        now,
        3,
        ChannelRef::new(&channel, &options),
        crate::kit::publish("lost"),
    );
    world.restart(1);
    world.settle();
    assert_eq!(world.read(ann), format!("unsub {channel} 2500\n"));
    let events = world.take_events();
    assert!(events.iter().any(|(_, event)| matches!(
        event,
        Event::Published { token: 3, result: Err(Error::WorkerRestarted) }
    )));
    let recover = SubscribeOptions { recover: Some(position), ..SubscribeOptions::default() };
    let subscribed = world.subscribe(ann, &channel, &options, recover);
    assert!(!subscribed.recovered, "the epoch is another, and that is reported");
    world.publish(0, &channel, &options, "two");
    assert!(world.read(ann).ends_with("two\n"));
}

#[test]
fn a_withdrawal_ends_what_clients_asked_for_and_nothing_else() {
    let mut world = World::new(2);
    let options = plain();
    let asked = SubscribeOptions::default;
    let made = || SubscribeOptions { granted: true, ..SubscribeOptions::default() };
    let sessions: Vec<SessionId> = ["ann", "bob", "eve"].map(|user| world.open(0, user)).into();
    for &session in &sessions {
        world.subscribe(session, "chat:a", &options, asked());
        world.subscribe(session, "news", &options, asked());
    }
    let chosen = world.open(0, "dan");
    world.subscribe(chosen, "chat:a", &options, made());
    let lost = world.open(0, "dan");
    world.subscribe(lost, "chat:a", &options, made());
    // One that has ended leaves its place behind.
    let (gone, now) = (world.open(0, "gone"), world.now);
    world.subscribe(gone, "news", &options, asked());
    assert!(world.hub(0).handle_unsubscribe(now, gone, "news", None));
    // This one's home worker has not answered yet.
    let late = world.open(0, "eve");
    let far = world.channel_at(1, "chat:");
    let now = world.now;
    world.hub(0).handle_subscribe(now, 77, late, ChannelRef::new(&far, &options), asked());

    let mut withdrawal = Withdrawal::default();
    let permits = |of: &CheckedSubscription<'_>| SubscriberRights {
        subscription: !of.channel.starts_with("chat:") || of.user == "bob",
        join_leave: true,
        grant: of.session != lost,
        join_leave_grant: true,
    };
    let mut turns = 1;
    while !world.hub(0).withdraw(now, &mut withdrawal, 3, "withdrawn", permits) {
        turns += 1;
    }
    assert!(turns > 1, "in steps");
    world.settle();
    let failed = world.take_events().into_iter().find_map(|(_, event)| match event {
        Event::Subscribed { token: 77, result, .. } => Some(result.map(|_| ())),
        _ => None,
    });
    assert_eq!(failed, Some(Err(Error::PermissionWithdrawn)));
    world.publish(1, "chat:a", &options, "x");
    world.publish(1, &far, &options, "x");
    world.publish(1, "news", &options, "y");
    let read = sessions.iter().map(|&of| world.read(of)).collect::<Vec<_>>();
    let ended = "unsub chat:a 2000\npub news 0 y\n";
    assert_eq!(read, [ended, "pub chat:a 0 x\npub news 0 y\n", ended]);
    assert_eq!(world.read(chosen), "pub chat:a 0 x\n", "the server had subscribed it");
    assert_eq!(world.read(lost), "unsub chat:a 2000\n", "what it was granted by does not hold");
    assert_eq!(world.read(late), "");
}

#[test]
fn session_whose_connection_is_given_less_loses_that_and_nothing_else() {
    let mut world = World::new(2);
    let options = Arc::new(ChannelOptions { join_leave: true, ..ChannelOptions::default() });
    let given = || SubscribeOptions { granted: true, of_connection: true, ..Default::default() };
    let [ann, bob] = ["ann", "bob"].map(|user| world.open(0, user));
    for session in [ann, bob] {
        world.subscribe(session, "kept", &options, given());
        world.subscribe(session, "lost", &options, given());
        let granted = SubscribeOptions { granted: true, ..SubscribeOptions::default() };
        world.subscribe(session, "by the server API", &options, granted);
        let capable = SubscribeOptions {
            join_leave: true,
            join_leave_granted: true,
            skip_own_join: true,
            ..SubscribeOptions::default()
        };
        world.subscribe(session, "joins", &options, capable);
    }
    // Its home worker has not answered yet.
    let (now, far) = (world.now, world.channel_at(1, "lost:"));
    world.hub(0).handle_subscribe(now, 77, ann, ChannelRef::new(&far, &options), given());
    for session in [ann, bob] {
        world.read(session);
    }
    assert!(world.hub(0).is_of_connection(ann, "kept"));
    assert!(!world.hub(0).is_of_connection(ann, "joins"));
    let permits = |of: &CheckedSubscription<'_>| SubscriberRights {
        subscription: !of.basis.of_connection,
        join_leave: false,
        grant: !of.channel.starts_with("lost"),
        join_leave_grant: false,
    };
    world.hub(0).compare_session(now, ann, "less", permits);
    world.settle();
    let failed = world.take_events().into_iter().any(|(_, event)| {
        matches!(
            event,
            Event::Subscribed { token: 77, result: Err(Error::PermissionWithdrawn), .. }
        )
    });
    assert!(failed, "one that is pending ends, too");
    let visitor = world.open(0, "visitor");
    world.subscribe(visitor, "joins", &options, SubscribeOptions::default());
    for channel in ["kept", "lost", "by the server API", "joins"] {
        world.publish(1, channel, &options, "x");
    }
    let rest = "pub by the server API 0 x\npub joins 0 x\n";
    assert_eq!(world.read(ann), format!("unsub lost 2000\npub kept 0 x\n{rest}"));
    let all = format!("join joins visitor\npub kept 0 x\npub lost 0 x\n{rest}");
    assert_eq!(world.read(bob), all, "another session");
}

#[test]
fn joins_and_leaves_end_with_the_permission_and_the_subscription_stays() {
    let mut world = World::new(1);
    let options = Arc::new(ChannelOptions { join_leave: true, ..ChannelOptions::default() });
    let forced =
        Arc::new(ChannelOptions { force_push_join_leave: true, ..ChannelOptions::clone(&options) });
    let asked = || SubscribeOptions { join_leave: true, ..SubscribeOptions::default() };
    let of_token = || SubscribeOptions { granted: true, ..asked() };
    let capable = || SubscribeOptions { join_leave_granted: true, ..asked() };
    let [ann, bob, eve, dan, amy] =
        ["ann", "bob", "eve", "dan", "amy"].map(|user| world.open(0, user));
    world.subscribe(amy, "room", &options, capable());
    world.subscribe(ann, "room", &options, asked());
    world.subscribe(bob, "room", &options, asked());
    world.subscribe(eve, "room", &options, of_token());
    world.subscribe(dan, "room", &forced, of_token());
    for session in [ann, bob, eve, dan, amy] {
        world.read(session);
    }
    let late = world.open(0, "late");
    let now = world.now;
    world.hub(0).handle_subscribe(now, 7, late, ChannelRef::new("other", &options), asked());
    let mut withdrawal = Withdrawal::default();
    let permits = |of: &CheckedSubscription<'_>| SubscriberRights {
        subscription: true,
        join_leave: of.user == "bob",
        grant: true,
        join_leave_grant: true,
    };
    while !world.hub(0).withdraw(now, &mut withdrawal, 2, "", permits) {}
    world.settle();
    let visitor = world.open(0, "visitor");
    world.subscribe(visitor, "room", &options, SubscribeOptions::default());
    world.subscribe(visitor, "other", &options, SubscribeOptions::default());
    world.publish(0, "room", &options, "x");
    let all = "join room visitor\npub room 0 x\n";
    assert_eq!(world.read(bob), all);
    assert_eq!(world.read(dan), all, "his token says so");
    assert_eq!(world.read(amy), all, "hers as well");
    assert_eq!(world.read(ann), "pub room 0 x\n");
    assert_eq!(world.read(eve), "pub room 0 x\n", "hers does not");
    assert_eq!(world.read(late), "");
}

#[test]
fn a_presence_answer_has_a_bound() {
    let mut world = World::new(2);
    let options = with_presence();
    for number in 0..100 {
        let session = world.open(number % 2, &"u".repeat(100));
        world.subscribe(session, "room", &options, SubscribeOptions::default());
    }
    let mut ask = |bytes_max| {
        let now = world.now;
        world.hub(0).handle_presence(now, 5, ChannelRef::new("room", &options), bytes_max);
        world.settle();
        match world.take_events().pop() {
            Some((0, Event::Presence { token: 5, result })) => result.map(|present| present.len()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(30_000), Ok(100));
    assert_eq!(ask(20_000), Err(Error::LimitExceeded));
}

#[test]
fn a_message_for_a_user_reaches_his_sessions_and_costs_no_other_worker() {
    let mut world = World::new(4);
    let named = |user, info: &str| NewSession {
        user,
        conn_info: Some(info.as_bytes().into()),
        ..NewSession::default()
    };
    let phone = world.open_with(1, named("ann", "phone"));
    let page = world.open_with(2, named("ann", "page"));
    let bob = world.open(3, "bob");
    let stranger = world.open(3, "");
    let send = |world: &mut World, user: &str, client, device: &str, text: &str| {
        let (data, device) = (text.as_bytes().into(), device.into());
        let send = SendToUser { client, device, data, format: PayloadFormat::Json };
        let now = world.now;
        world.hub(0).handle_send_to_user(now, 9, user, send);
        world.settle();
        let sent = world.take_events().into_iter().find_map(|(_, event)| match event {
            Event::Sent { token: 9, result } => Some(result),
            _ => None,
        });
        sent.expect("an answer")
    };
    assert_eq!(send(&mut world, "ann", None, "", "1"), Ok(2));
    assert_eq!(send(&mut world, "ann", None, "phone", "2"), Ok(1));
    assert_eq!(send(&mut world, "", Some(stranger), "", "3"), Ok(1));
    assert_eq!(send(&mut world, "ann", Some(bob), "", "4"), Ok(0), "another user's session");
    assert_eq!(send(&mut world, "nobody", None, "", "5"), Ok(0));
    assert_eq!(send(&mut world, "", None, "", "6"), Err(Error::BadRequest));
    assert_eq!(world.read(phone), "msg 1\nmsg 2\n");
    assert_eq!(world.read(page), "msg 1\n");
    assert_eq!((world.read(bob), world.read(stranger)), (String::new(), "msg 3\n".to_owned()));

    // Nobody else is asked: with all rings but his worker's full, a message reaches bob.
    let now = world.now;
    let send = SendToUser { data: b"7"[..].into(), ..SendToUser::default() };
    world.hub(0).handle_send_to_user(now, 10, "bob", send);
    let mut asked = Vec::new();
    while let Some((to, message)) = world.hub(0).poll_transmit() {
        asked.push(to);
        drop(message);
    }
    assert_eq!(asked, [3]);

    // A worker that begins anew has no users, until they come back.
    world.restart(1);
    world.settle();
    world.restart(2);
    world.settle();
    let now = world.now;
    world.hub(0).handle_disconnect_user(now, 9, "ann", DisconnectUser::default());
    assert_eq!(affected(&mut world), 0);
    let back = world.open(2, "ann");
    world.hub(0).handle_disconnect_user(now, 9, "ann", DisconnectUser::default());
    assert_eq!(affected(&mut world), 1);
    assert!(world.hubs[2].session(back).is_none_or(|of| of.closing));
}
