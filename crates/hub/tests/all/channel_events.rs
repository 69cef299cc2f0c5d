//! Stories of channel events.

use std::sync::Arc;

use crate::kit::{World, plain, with_history};
use dunlin_hub::{
    ChannelEvent, ChannelEventFilter, ChannelRef, Epoch, NewSession, SubscribeUser,
    UnsubscribeCause, UnsubscribeUser,
};
use dunlin_hub::{SubscribeOptions, code};

const EVERYTHING: ChannelEventFilter =
    ChannelEventFilter { subscriptions: true, publications: true, occupancy: false };

fn watched(workers: u8) -> World {
    let mut world = World::new(workers);
    world.hubs.iter_mut().for_each(|hub| hub.set_channel_event_filter(EVERYTHING));
    world
}

/// What a hub has noticed, in words.
fn channel_events(world: &mut World, worker: u8) -> Vec<String> {
    let hub = world.hub(worker);
    let channel_events = std::iter::from_fn(|| hub.poll_channel_event());
    channel_events
        .map(|event| match event {
            ChannelEvent::Subscribed { user, channel, .. } => format!("{user} in {channel}"),
            ChannelEvent::Unsubscribed { user, channel, cause, .. } => {
                format!("{user} out {channel} {cause:?}")
            }
            ChannelEvent::Published { channel, epoch, publication } => {
                let epoch = if epoch == Epoch::NONE { "" } else { " kept" };
                format!("{channel} {}{epoch}", publication.offset())
            }
            other => format!("{other:?}"),
        })
        .collect()
}

#[test]
fn subscriptions_are_noticed_whoever_begins_and_ends_them() {
    let mut world = watched(2);
    let (now, options) = (world.now, plain());
    let ann = world.open(0, "ann");
    for channel in ["a", "b", "c"] {
        world.subscribe(ann, channel, &options, SubscribeOptions::default());
    }
    world.hub(1).handle_subscribe_user(
        now,
        9,
        "ann",
        ChannelRef::new("d", &options),
        SubscribeUser::default(),
    );
    world.settle();
    world.hub(0).handle_unsubscribe(now, ann, "a", None);
    let how = UnsubscribeUser { code: 2000, ..UnsubscribeUser::default() };
    world.hub(1).handle_unsubscribe_user(now, 9, "ann", "b", how);
    world.settle();
    world.hub(0).close_session(now, ann);
    assert_eq!(
        channel_events(&mut world, 0),
        [
            "ann in a",
            "ann in b",
            "ann in c",
            "ann in d",
            "ann out a Client",
            "ann out b Server",
            "ann out d Disconnect",
            "ann out c Disconnect",
        ]
    );
    assert_eq!(channel_events(&mut world, 1), [] as [&str; 0]);
}

#[test]
fn a_subscription_that_never_was_is_not_noticed_nor_is_a_long_poll() {
    let mut world = watched(2);
    let (now, options) = (world.now, plain());
    let far = world.channel_at(1, "far");
    let ann = world.open(0, "ann");
    world.hub(0).handle_subscribe(
        now,
        1,
        ann,
        ChannelRef::new(&far, &options),
        SubscribeOptions::default(),
    );
    // Before the home worker has answered.
    world.hub(0).handle_unsubscribe(now, ann, &far, None);
    world.settle();
    let poll = world.open_with(0, NewSession { poll: true, ..NewSession::default() });
    world.subscribe(poll, "a", &options, SubscribeOptions::default());
    world.hub(0).close_session(now, poll);
    assert_eq!(channel_events(&mut world, 0), [] as [&str; 0]);
}

#[test]
fn a_gap_is_the_servers_and_says_so() {
    let mut world = watched(2);
    let far = world.channel_at(1, "far");
    let ann = world.open(0, "ann");
    world.subscribe(ann, &far, &plain(), SubscribeOptions::default());
    world.restart(1);
    world.settle();
    let received = channel_events(&mut world, 0);
    assert_eq!(received, [format!("ann in {far}"), format!("ann out {far} InsufficientState")]);
    assert_eq!(code::UNSUBSCRIBE_INSUFFICIENT_STATE, 2500);
    assert_ne!(UnsubscribeCause::InsufficientState, UnsubscribeCause::Server);
}

#[test]
fn publications_are_noticed_at_home_in_the_order_of_their_offsets() {
    let mut world = watched(2);
    let (kept, far) = (with_history(), world.channel_at(1, "far"));
    for n in 1..=3 {
        world.publish(0, &far, &kept, &n.to_string());
    }
    let bare = world.channel_at(1, "bare");
    world.publish(1, &bare, &plain(), "1");
    assert_eq!(channel_events(&mut world, 0), [] as [&str; 0], "only the home worker records it");
    let mut expected: Vec<String> = (1..=3).map(|n| format!("{far} {n} kept")).collect();
    expected.push(format!("{bare} 0"));
    assert_eq!(channel_events(&mut world, 1), expected);
}

#[test]
fn subscriber_without_joins_and_leaves_gets_none() {
    let mut world = World::new(1);
    let ann = world.open(0, "ann");
    world.subscribe(ann, "a", &plain(), SubscribeOptions::default());
    world.publish(0, "a", &Arc::clone(&plain()), "1");
    assert_eq!(channel_events(&mut world, 0), [] as [&str; 0]);
}
