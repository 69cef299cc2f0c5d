//! Stories of acknowledgements, in memory and in an engine that nodes share: one list for both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dunlin_hub::{
    AckOptions, ChannelOptions, CursorOwner, CursorState, Epoch, Error, Event, INBOX_ID,
    INBOX_TTL_MS, NewPublication, NewSession, SessionId, StreamPosition, SubscribeOptions,
};
use proptest::prelude::*;

use super::model::Fleet;
use crate::kit::{offsets, publish, with_history};

/// Where cursors live, and how many nodes share them.
const PLACES: [(&str, usize); 2] = [("memory", 1), ("", 2)];

fn options(namespace: &str, ack: AckOptions) -> Arc<ChannelOptions> {
    let namespace = namespace.into();
    Arc::new(ChannelOptions { namespace, ack: Some(ack), ..(*with_history()).clone() })
}

fn by_device() -> AckOptions {
    AckOptions {
        by_user: false,
        ttl_ms: 600_000,
        devices_max: 3,
        bytes_max: None,
        timeout_ms: 0,
        window: 0,
        deliveries_max: 0,
    }
}

/// Messages come again after ten seconds, and at most `window` are in flight.
fn again(window: u32) -> AckOptions {
    AckOptions { timeout_ms: 10_000, window, ..by_device() }
}

fn cursor_of(user: &str, device: &str) -> SubscribeOptions {
    let owner = CursorOwner { user: user.into(), device: device.into() };
    SubscribeOptions { cursor: Some(Box::new(owner)), ..SubscribeOptions::default() }
}

fn at(offset: u64) -> StreamPosition {
    StreamPosition { offset, epoch: Epoch::NONE }
}

/// A user with an inbox.
struct Inbox {
    fleet: Fleet,
    nodes: usize,
    options: Arc<ChannelOptions>,
    /// Where the next session opens.
    turn: usize,
}

const CHANNEL: &str = "inbox:ada";

impl Inbox {
    fn new((namespace, nodes): (&str, usize), ack: AckOptions) -> Inbox {
        let (fleet, options) = (Fleet::new(nodes, 2), options(namespace, ack));
        Inbox { fleet, nodes, options, turn: 0 }
    }

    fn publish(&mut self, count: usize) {
        for _ in 0..count {
            self.fleet.publish(0, CHANNEL, &self.options, publish("m")).expect("published");
        }
    }

    /// Connects, each time elsewhere. Returns the session, what it is sent again, and where its cursor stands.
    fn connect(&mut self, device: &str) -> (usize, SessionId, Vec<u64>, CursorState) {
        self.turn += 1;
        let (node, worker) = (self.turn % self.nodes, (self.turn / self.nodes % 2) as u8);
        let session = self.fleet.nodes[node].open(worker, "ada");
        let begins = cursor_of("ada", device);
        let subscribed = self
            .fleet
            .subscribe(node, session, CHANNEL, &self.options, begins)
            .expect("subscribed");
        let again = offsets(&subscribed.publications);
        (node, session, again, *subscribed.cursor.expect("a cursor"))
    }

    fn leave(&mut self, (node, session): (usize, SessionId)) {
        let now = self.fleet.nodes[node].now;
        self.fleet.nodes[node].hub(session.worker()).close_session(now, session);
        self.fleet.settle();
    }

    fn ack(&mut self, device: &str, acked: StreamPosition) -> Result<CursorState, Error> {
        self.turn += 1;
        let place = (self.turn % self.nodes, (self.turn / 2 % 2) as u8);
        let options = Arc::clone(&self.options);
        self.fleet.cursor(place, (CHANNEL, &options), ("ada", device), Some(acked))
    }

    /// The offsets that a session was sent since it was last asked for.
    fn sent(&mut self, (node, session): (usize, SessionId)) -> Vec<u64> {
        self.fleet.settle();
        let text = self.fleet.nodes[node].read(session);
        let offset =
            |line: &str| line.strip_prefix("pub inbox:ada ")?.split(' ').next()?.parse().ok();
        text.lines().filter_map(offset).collect()
    }

    /// The positions that were reported as undeliverable.
    fn undeliverable(&mut self) -> Vec<(u64, u8)> {
        let mut all = Vec::new();
        for node in &mut self.fleet.nodes {
            for (_, event) in node
                .events
                .extract_if(.., |(_, event)| matches!(event, Event::Undeliverable { .. }))
            {
                let Event::Undeliverable { owner, position, deliveries, .. } = event else {
                    continue;
                };
                assert_eq!(&*owner.user, "ada");
                all.push((position.offset, deliveries));
            }
        }
        all
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 1_000 {
            self.fleet.pass(1_000);
            self.fleet.settle();
        }
    }

    /// Acknowledges on the node of the connection, as its client does.
    fn ack_here(&mut self, node: usize, offset: u64) {
        let options = Arc::clone(&self.options);
        let whose = ("ada", "phone");
        let acked = self.fleet.cursor((node, 1), (CHANNEL, &options), whose, Some(at(offset)));
        acked.expect("acknowledged");
    }

    fn unread(&mut self, device: &str) -> CursorState {
        let options = Arc::clone(&self.options);
        let read = self.fleet.cursor((0, 0), (CHANNEL, &options), ("ada", device), None);
        read.expect("a cursor")
    }
}

#[test]
fn device_gets_again_what_it_has_not_acknowledged_wherever_it_comes_back() {
    for place in PLACES {
        let mut inbox = Inbox::new(place, by_device());
        inbox.publish(3);
        let (node, session, again, cursor) = inbox.connect("phone");
        assert_eq!((again, cursor.is_new, cursor.unread()), (vec![1, 2, 3], true, 3));
        inbox.publish(1);
        assert!(inbox.fleet.nodes[node].read(session).contains("pub inbox:ada 4 m"));
        inbox.leave((node, session));
        let acked = inbox.ack("phone", at(2)).expect("acknowledged");
        assert_eq!((acked.acked.offset, acked.unread(), acked.advanced), (2, 2, true));
        for _ in 0..4 {
            let (_, _, again, cursor) = inbox.connect("phone");
            assert_eq!((again, cursor.is_new), (vec![3, 4], false));
        }
        let (_, _, again, cursor) = inbox.connect("laptop");
        assert_eq!((again, cursor.is_new), (vec![1, 2, 3, 4], true), "each device for itself");
        let earlier = inbox.ack("phone", at(1)).expect("it is behind");
        assert_eq!((earlier.acked.offset, earlier.advanced), (2, false), "cumulative");
        inbox.ack("phone", at(4)).expect("acknowledged");
        assert_eq!(inbox.connect("phone").2, [0u64; 0]);
        assert_eq!((inbox.unread("phone").unread(), inbox.unread("laptop").unread()), (0, 4));
    }
}

#[test]
fn one_acknowledgement_is_of_all_devices_where_the_namespace_says_so() {
    for place in PLACES {
        let mut inbox = Inbox::new(place, AckOptions { by_user: true, ..by_device() });
        inbox.publish(3);
        inbox.ack("phone", at(2)).expect("acknowledged");
        assert_eq!(inbox.connect("laptop").2, [3]);
        assert_eq!(inbox.unread("watch").unread(), 1);
    }
}

#[test]
fn what_is_gone_before_it_was_acknowledged_is_reported() {
    for place in PLACES {
        let mut inbox = Inbox::new(place, by_device());
        inbox.publish(5);
        inbox.ack("phone", at(2)).expect("acknowledged");
        inbox.publish(100);
        let (_, _, again, cursor) = inbox.connect("phone");
        assert_eq!(again, (6..=105).collect::<Vec<_>>(), "all that is there");
        assert_eq!((cursor.trimmed_before, cursor.unread()), (Some(6), 100));
        inbox.ack("phone", at(105)).expect("acknowledged");
        assert_eq!(inbox.connect("phone").3.trimmed_before, None);
    }
}

#[test]
fn acknowledgement_that_cannot_be_is_a_named_error() {
    for place in PLACES {
        let mut inbox = Inbox::new(place, by_device());
        let refused = |result: Result<CursorState, Error>| result.expect_err("refused");
        assert_eq!(refused(inbox.ack("a", at(1))), Error::AckOffset { top: 0 });
        inbox.publish(3);
        assert_eq!(refused(inbox.ack("a", at(4))), Error::AckOffset { top: 3 });
        assert_eq!(refused(inbox.ack("a", at(0))), Error::AckOffset { top: 3 });
        assert_eq!(refused(inbox.ack("a", at(u64::MAX))), Error::AckOffset { top: 3 });
        let gone = StreamPosition { offset: 1, epoch: Epoch::from_u64(77) };
        assert!(matches!(refused(inbox.ack("a", gone)), Error::UnrecoverablePosition(_)));
        assert_eq!(refused(inbox.ack(&"d".repeat(1 << 20), at(1))), Error::DeviceName);
        for device in ["a", "b", "c"] {
            inbox.ack(device, at(1)).expect("acknowledged");
        }
        assert_eq!(refused(inbox.ack("d", at(1))), Error::TooManyDevices);
        // The cursors of dead devices expire.
        inbox.ack("a", at(2)).expect("acknowledged");
        inbox.fleet.pass(299_000);
        inbox.publish(1);
        inbox.ack("a", at(3)).expect("acknowledged");
        inbox.fleet.pass(301_001);
        inbox.ack("d", at(1)).expect("there is room");
        assert!(inbox.unread("b").is_new && !inbox.unread("a").is_new);

        let options = Arc::clone(&inbox.options);
        let nobody = inbox.fleet.cursor((0, 0), (CHANNEL, &options), ("", "a"), Some(at(1)));
        assert_eq!(nobody, Err(Error::AckWithoutUser));
        let off = with_history();
        let nobody = inbox.fleet.cursor((0, 0), (CHANNEL, &off), ("ada", "a"), Some(at(1)));
        assert_eq!(nobody, Err(Error::AckOff));
    }
}

#[test]
fn subscription_that_ends_while_its_cursor_is_read_is_not_made() {
    let mut inbox = Inbox::new(PLACES[1], by_device());
    inbox.publish(1);
    let session = inbox.fleet.nodes[1].open(0, "ada");
    let options = Arc::clone(&inbox.options);
    inbox.fleet.begin_subscribe(1, session, CHANNEL, &options, cursor_of("ada", "a"));
    let now = inbox.fleet.nodes[1].now;
    inbox.fleet.nodes[1].hub(0).handle_unsubscribe(now, session, CHANNEL, None);
    inbox.fleet.settle();
    assert_eq!(inbox.fleet.subscribed(1, session), Some(Err(Error::Cancelled)));
    inbox.publish(1);
    assert_eq!(inbox.fleet.nodes[1].read(session), "");
}

#[test]
fn acknowledgements_of_an_engine_that_is_silent_fail_and_the_next_ones_do_not() {
    let mut inbox = Inbox::new(PLACES[1], by_device());
    inbox.publish(2);
    inbox.fleet.cut(1);
    let options = Arc::clone(&inbox.options);
    for offset in 1..=2 {
        let acked = Some(at(offset));
        inbox.fleet.begin_cursor((1, 0), (CHANNEL, &options), ("ada", "a"), acked);
    }
    inbox.fleet.pass(2_001);
    let failed = Err(Error::EngineUnavailable);
    assert_eq!(inbox.fleet.cursor_answers(1), [failed, failed]);
    inbox.fleet.mend(1);
    inbox.fleet.settle();
    let acked = inbox.fleet.cursor((1, 0), (CHANNEL, &options), ("ada", "a"), Some(at(2)));
    assert_eq!(acked.map(|state| state.acked.offset), Ok(2));
}

#[test]
fn message_without_acknowledgement_comes_again_on_the_living_connection() {
    for place in PLACES {
        let mut inbox = Inbox::new(place, again(0));
        inbox.publish(1);
        let (node, session, first, _) = inbox.connect("phone");
        let to = (node, session);
        assert_eq!((first, inbox.sent(to)), (vec![1], vec![]));
        inbox.publish(2);
        assert_eq!(inbox.sent(to), [2, 3]);
        inbox.pass(9_000);
        assert_eq!(inbox.sent(to), [0u64; 0], "it has ten seconds");
        inbox.pass(2_000);
        assert_eq!(inbox.sent(to), [1, 2, 3], "all that is not acknowledged, in order");
        inbox.ack("phone", at(2)).expect("acknowledged");
        inbox.pass(11_000);
        assert_eq!(inbox.sent(to), [3], "{place:?}");
        inbox.ack("phone", at(3)).expect("acknowledged");
        inbox.pass(60_000);
        assert_eq!(inbox.sent(to), [0u64; 0], "nothing is in flight");
        inbox.publish(1);
        assert_eq!(inbox.sent(to), [4]);
    }
}

#[test]
fn subscriber_is_sent_no_more_than_its_window_until_it_acknowledges() {
    for place in PLACES {
        let mut inbox = Inbox::new(place, again(3));
        inbox.publish(5);
        let (node, session, first, cursor) = inbox.connect("phone");
        let to = (node, session);
        assert_eq!((first, cursor.unread()), (vec![1, 2, 3], 5), "{place:?}");
        inbox.publish(2);
        assert_eq!(inbox.sent(to), [0u64; 0], "the window is full");
        inbox.ack_here(node, 1);
        assert_eq!(inbox.sent(to), [4]);
        inbox.ack_here(node, 4);
        assert_eq!(inbox.sent(to), [5, 6, 7]);
        inbox.ack_here(node, 7);
        inbox.publish(4);
        assert_eq!(inbox.sent(to), [8, 9, 10], "with all others, up to the window");
        inbox.pass(11_000);
        assert_eq!(inbox.sent(to), [8, 9, 10], "again, and no more");
        inbox.ack_here(node, 10);
        assert_eq!(inbox.sent(to), [11]);
    }
}

#[test]
fn backlog_beyond_a_recovery_comes_by_windows_and_needs_no_reading() {
    for place in PLACES {
        let mut inbox = Inbox::new(place, again(40));
        inbox.options =
            Arc::new(ChannelOptions { recovery_publications_max: 10, ..(*inbox.options).clone() });
        inbox.publish(95);
        let (node, session, mut sent, _) = inbox.connect("phone");
        assert_eq!(sent, [0u64; 0], "more than one recovery may have");
        sent = inbox.sent((node, session));
        while let Some(&last) = sent.last().filter(|&&last| last < 95) {
            inbox.ack_here(node, last);
            let more = inbox.sent((node, session));
            assert!((1..=40).contains(&more.len()), "{place:?}: {more:?}");
            sent.extend(more);
        }
        assert_eq!(sent, (1..=95).collect::<Vec<_>>(), "{place:?}");
    }
}

#[test]
fn message_delivered_as_often_as_it_may_be_is_reported_and_then_left_out() {
    for place in PLACES {
        let mut inbox = Inbox::new(place, AckOptions { deliveries_max: 3, ..again(0) });
        inbox.publish(1);
        // It ends the client each time: the count is the cursor's, and not the connection's.
        for _ in 0..2 {
            let (node, session, first, _) = inbox.connect("phone");
            assert_eq!(first, [1]);
            inbox.leave((node, session));
        }
        let (node, session, first, _) = inbox.connect("phone");
        let to = (node, session);
        inbox.publish(1);
        assert_eq!((first, inbox.sent(to), inbox.undeliverable()), (vec![1], vec![2], vec![]));
        inbox.pass(11_000);
        assert_eq!(inbox.undeliverable(), [(1, 4)], "{place:?}");
        assert_eq!(inbox.sent(to), [2], "what follows it comes again");
        inbox.pass(10_000);
        assert_eq!(inbox.undeliverable(), [(1, 4)], "until somebody acknowledges it");
        inbox.sent(to);
        let (_, _, first, _) = inbox.connect("phone");
        assert_eq!((first, inbox.undeliverable()), (vec![2], vec![(1, 4)]));
        inbox.ack("phone", at(1)).expect("acknowledged");
        assert_eq!(inbox.unread("phone").deliveries, 0);
        inbox.pass(11_000);
        assert_eq!((inbox.undeliverable(), inbox.sent(to)), (vec![], vec![2]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Against a model: a client that acknowledges some of what it has, and loses some of what it is sent, has everything in the
    /// end, in order, and has never more in flight than its window.
    #[test]
    fn client_that_loses_messages_has_all_of_them_in_the_end_and_never_more_than_its_window(
        place in 0..PLACES.len(),
        window in 1..8u32,
        steps in proptest::collection::vec((0..3usize, any::<bool>(), 0..=100u64), 1..40),
    ) {
        let mut inbox = Inbox::new(PLACES[place], again(window));
        let (node, session, _, _) = inbox.connect("phone");
        let (mut top, mut handled, mut acked) = (0u64, 0u64, 0u64);
        let mut step = |inbox: &mut Inbox, count: usize, loses: bool, share: u64| {
            inbox.publish(count);
            top += count as u64;
            for offset in inbox.sent((node, session)) {
                assert!(offset <= acked + u64::from(window), "{offset} with {acked} acknowledged");
                // It handles them in order: what follows one that it has lost waits for it.
                if !loses && offset == handled + 1 {
                    handled = offset;
                }
            }
            let next = acked + (handled - acked) * share / 100;
            if next > acked {
                acked = next;
                inbox.ack_here(node, acked);
            }
            (top, acked)
        };
        for (count, loses, share) in steps {
            step(&mut inbox, count, loses, share);
            if loses {
                inbox.pass(4_000);
            }
        }
        for _ in 0..100 {
            let (top, acked) = step(&mut inbox, 0, false, 100);
            if acked == top {
                return Ok(());
            }
            inbox.pass(3_000);
        }
        prop_assert!(false, "something never came again");
    }
}

#[test]
fn poll_that_leaves_out_a_message_delivered_too_often_reports_it() {
    for place in PLACES {
        let mut inbox = Inbox::new(place, AckOptions { deliveries_max: 2, ..again(0) });
        inbox.publish(2);
        for given in [vec![1, 2], vec![1, 2], vec![2]] {
            let new = NewSession { user: "ada", poll: true, ..NewSession::default() };
            let session = inbox.fleet.nodes[0].open_with(0, new);
            let options = Arc::clone(&inbox.options);
            let begins = cursor_of("ada", "phone");
            let polled = inbox.fleet.subscribe(0, session, CHANNEL, &options, begins);
            assert_eq!(offsets(&polled.expect("subscribed").publications), given, "{place:?}");
            let reported = if given.len() == 1 { vec![(1, 3)] } else { vec![] };
            assert_eq!(inbox.undeliverable(), reported);
            inbox.leave((0, session));
        }
    }
}

#[test]
fn inbox_in_an_engine_that_nobody_is_connected_to_takes_no_memory() {
    let mut inbox = Inbox::new(PLACES[1], again(10));
    let options = Arc::new(ChannelOptions { inbox: true, ..(*inbox.options).clone() });
    for user in 0..200 {
        let (user, channel) = (format!("user-{user}"), format!("inbox:user-{user}"));
        let session = inbox.fleet.nodes[0].open(0, &user);
        let begins = cursor_of(&user, "phone");
        inbox.fleet.publish(0, &channel, &options, publish("m")).expect("published");
        inbox.fleet.subscribe(0, session, &channel, &options, begins).expect("subscribed");
        inbox.leave((0, session));
    }
    for _ in 0..60 {
        inbox.fleet.pass(2_000);
    }
    for worker in 0..2 {
        let stats = inbox.fleet.nodes[0].hub(worker).stats();
        let memory = [stats.home_channels, stats.channels, stats.history_bytes, stats.cursor_bytes];
        assert_eq!((memory, stats.engine_channels), ([0; 4], 0));
    }
}

#[test]
fn inbox_is_given_without_what_was_replaced_or_has_expired_by_any_way() {
    for (place, window) in PLACES.into_iter().zip([2, 100]) {
        let mut inbox = Inbox::new(place, again(window));
        inbox.options = Arc::new(ChannelOptions { inbox: true, ..(*inbox.options).clone() });
        let put = |inbox: &mut Inbox, tags: &[(&str, &str)]| {
            let tags = tags.iter().map(|&(name, value)| (name.into(), value.into())).collect();
            let options = Arc::clone(&inbox.options);
            let message = NewPublication { tags, ..publish("m") };
            inbox.fleet.publish(0, CHANNEL, &options, message).expect("published");
        };
        put(&mut inbox, &[(INBOX_ID, "a")]);
        put(&mut inbox, &[(INBOX_TTL_MS, "1000")]);
        put(&mut inbox, &[(INBOX_ID, "a")]);
        put(&mut inbox, &[]);
        inbox.pass(2_000);
        let (node, session, mut sent, cursor) = inbox.connect("phone");
        assert_eq!(cursor.unread(), 4);
        sent.extend(inbox.sent((node, session)));
        assert_eq!(sent, [3, 4], "{place:?}");
        inbox.pass(11_000);
        assert_eq!(inbox.sent((node, session)), [3, 4], "{place:?}: again");
        inbox.ack_here(node, 4);
        put(&mut inbox, &[(INBOX_ID, "a")]);
        assert_eq!(inbox.sent((node, session)), [5], "{place:?}");
    }
}

#[derive(Clone, Debug)]
enum Action {
    Publish(usize),
    /// The device acknowledges this share of what it has, in per cent.
    Ack(usize, u64),
    /// Several at once, before any is answered.
    AckAtOnce(Vec<(usize, u64)>),
    Reconnect(usize),
    Pass(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        (1..20usize).prop_map(Action::Publish),
        (0..3usize, 0..=100u64).prop_map(|(device, share)| Action::Ack(device, share)),
        proptest::collection::vec((0..3usize, 0..=100u64), 1..5).prop_map(Action::AckAtOnce),
        (0..3usize).prop_map(Action::Reconnect),
        (1..2_000u64).prop_map(Action::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Against a model that is a number for each device: nothing unacknowledged is lost but what is reported as gone, and nothing
    /// acknowledged comes again.
    #[test]
    fn each_device_gets_exactly_what_it_has_not_acknowledged(
        place in 0..PLACES.len(),
        by_user: bool,
        actions in proptest::collection::vec(action(), 1..40),
    ) {
        let mut inbox = Inbox::new(PLACES[place], AckOptions { by_user, ..by_device() });
        let (mut top, mut acked) = (0u64, BTreeMap::<String, u64>::new());
        let name = |device: usize| format!("device-{device}");
        let key = |device: usize| if by_user { String::new() } else { name(device) };
        for action in actions {
            match action {
                Action::Publish(count) => {
                    inbox.publish(count);
                    top += count as u64;
                }
                Action::Ack(device, share) => {
                    let offset = top * share / 100;
                    let result = inbox.ack(&name(device), at(offset));
                    if offset == 0 {
                        prop_assert_eq!(result, Err(Error::AckOffset { top }));
                        continue;
                    }
                    let known = acked.entry(key(device)).or_default();
                    let state = result.expect("acknowledged");
                    prop_assert_eq!(state.advanced, offset > *known);
                    *known = (*known).max(offset);
                    prop_assert_eq!(state.acked.offset, *known);
                }
                Action::AckAtOnce(all) => {
                    let options = Arc::clone(&inbox.options);
                    let mut nodes = BTreeSet::new();
                    for (at_once, (device, share)) in all.into_iter().enumerate() {
                        let offset = (top * share / 100).max(1);
                        let (node, device_name) = (at_once % inbox.nodes, name(device));
                        let whose = ("ada", device_name.as_str());
                        let acks = Some(at(offset));
                        inbox.fleet.begin_cursor((node, 0), (CHANNEL, &options), whose, acks);
                        nodes.insert(node);
                        if top > 0 {
                            let known = acked.entry(key(device)).or_default();
                            *known = (*known).max(offset);
                        }
                    }
                    inbox.fleet.settle();
                    for node in nodes {
                        for result in inbox.fleet.cursor_answers(node) {
                            prop_assert_eq!(result.is_ok(), top > 0);
                        }
                    }
                }
                Action::Reconnect(device) => {
                    let (node, session, again, cursor) = inbox.connect(&name(device));
                    let known = acked.get(&key(device)).copied().unwrap_or_default();
                    let first = (known + 1).max(top.saturating_sub(99));
                    prop_assert_eq!(again, (first..=top).collect::<Vec<_>>());
                    let trimmed = (first > known + 1).then_some(first);
                    prop_assert_eq!((cursor.acked.offset, cursor.trimmed_before), (known, trimmed));
                    inbox.leave((node, session));
                }
                Action::Pass(ms) => inbox.fleet.pass(ms),
            }
        }
    }
}
