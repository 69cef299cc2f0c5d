//! Stories of members, as they are recorded for whoever lists them beyond this process.

use std::sync::Arc;

use crate::kit::World;
use dunlin_hub::{ChannelOptions, ClientInfo, MemberEvent, SessionId, SubscribeOptions};

fn options() -> Arc<ChannelOptions> {
    Arc::new(ChannelOptions { presence: true, join_leave: true, ..ChannelOptions::default() })
}

fn shown(event: &MemberEvent) -> String {
    let (sign, edge) = (if event.joined { '+' } else { '-' }, if event.at_edge { "!" } else { "" });
    format!("{sign}{}{edge}", event.info.user)
}

/// What the home worker of the channel has recorded.
fn recorded(world: &mut World, channel: &str) -> Vec<String> {
    let home = world.home_of(channel);
    let hub = world.hub(home);
    std::iter::from_fn(|| hub.poll_member_event()).map(|event| shown(&event)).collect()
}

#[test]
fn members_are_recorded_once_by_the_home_worker_with_the_first_and_last_marked() {
    let mut world = World::new(3);
    let ann = world.open(0, "ann");
    world.subscribe(ann, "room", &options(), SubscribeOptions::default());
    assert!(recorded(&mut world, "room").is_empty(), "nobody wants to know");
    world.hubs.iter_mut().for_each(|hub| hub.record_members(true));
    let home = world.home_of("room");
    assert_eq!(world.hub(home).members().map(|event| shown(&event)).collect::<Vec<_>>(), ["+ann!"]);
    let bob = world.open(1, "bob");
    world.subscribe(bob, "room", &options(), SubscribeOptions::default());
    assert_eq!(recorded(&mut world, "room"), ["+bob"]);
    for session in [ann, bob] {
        let now = world.now;
        world.hub(session.worker()).close_session(now, session);
        world.settle();
    }
    assert_eq!(recorded(&mut world, "room"), ["-ann", "-bob!"]);
    assert_eq!(world.hub(home).members().count(), 0);
}

#[test]
fn member_with_new_info_is_updated_and_has_not_joined() {
    let mut world = World::new(3);
    world.hubs.iter_mut().for_each(|hub| hub.record_members(true));
    let (ann, bob) = (world.open(0, "ann"), world.open(1, "bob"));
    let watch = || SubscribeOptions { join_leave: true, ..SubscribeOptions::default() };
    for session in [ann, bob] {
        world.subscribe(session, "room", &options(), watch());
    }
    recorded(&mut world, "room");
    world.read(bob);
    let now = world.now;
    for info in ["1", "2", "2"] {
        world.hub(0).set_chan_info(now, ann, "room", info.as_bytes().into());
        world.settle();
    }
    world.hub(0).set_chan_info(now, ann, "nowhere", b"3".as_slice().into());
    let chan_info = |info: &ClientInfo| info.chan_info.clone().map(Vec::from);
    let seen = world.hub(0).client_info(ann, Some("room")).expect("open");
    assert_eq!(chan_info(&seen), Some(b"2".to_vec()), "in publications");
    let home = world.home_of("room");
    let mut listed: Vec<_> = world
        .hub(home)
        .members()
        .map(|of| (of.info.user.to_string(), chan_info(&of.info)))
        .collect();
    listed.sort();
    assert_eq!(listed, [("ann".to_owned(), Some(b"2".to_vec())), ("bob".to_owned(), None)]);
    assert_eq!(recorded(&mut world, "room"), ["+ann", "+ann"], "once for each that is another");
    assert!(world.read(bob).is_empty(), "nobody is notified");
    world.hub(0).close_session(now, ann);
    world.settle();
    assert_eq!(recorded(&mut world, "room"), ["-ann"]);
}

#[test]
fn join_on_another_node_is_announced_to_local_subscribers_if_there_are_any() {
    let mut world = World::new(2);
    let ann = world.open(0, "ann");
    let watch = SubscribeOptions { join_leave: true, ..SubscribeOptions::default() };
    world.subscribe(ann, "room", &options(), watch);
    world.read(ann);
    let client = SessionId::pack(77, 1, 1, 1, 1);
    let info = ClientInfo {
        client,
        user_is_number: false,
        foreign_client: None,
        user: "bob".into(),
        conn_info: None,
        chan_info: None,
    };
    let info = Arc::new(info);
    for worker in 0..2 {
        let now = world.now;
        world.hub(worker).announce_remote(now, "room", &info, true);
        world.hub(worker).announce_remote(now, "elsewhere", &info, true);
    }
    world.settle();
    let sent = world.read(ann);
    assert_eq!(sent.matches("bob").count(), 1, "{sent}");
}
