//! Stories of channels whose members are on several nodes, and of subscribers here who see all of them.

use std::sync::Arc;

use crate::kit::World;
use dunlin_hub::{
    ChannelOptions, ChannelRef, ClientInfo, Encode, EncodingId, Error, Event, MemberListError,
    MemberListRequest, Outgoing, SessionId, SubscribeOptions, Subscribed,
};

const ROOM: &str = "room";

fn options() -> Arc<ChannelOptions> {
    Arc::new(ChannelOptions {
        presence: true,
        join_leave: true,
        presence_users_max: Some(3),
        ..ChannelOptions::default()
    })
}

fn member(user: &str) -> SubscribeOptions {
    SubscribeOptions {
        join_leave: true,
        skip_own_join: true,
        list_members: true,
        member: Some(user.into()),
        ..SubscribeOptions::default()
    }
}

/// Writes who comes and goes, each user once for all of its sessions.
struct OfUsers;

impl Encode for OfUsers {
    fn encode(&mut self, _: EncodingId, outgoing: &Outgoing<'_>, out: &mut Vec<u8>) {
        let line = match outgoing {
            Outgoing::Join { info, of_user: true, .. } => format!("+{} ", info.user),
            Outgoing::Leave { info, of_user: true, .. } => format!("-{} ", info.user),
            _ => return,
        };
        out.extend_from_slice(line.as_bytes());
    }
}

/// Two workers of a node among others.
struct Node {
    world: World,
    home: u8,
}

impl Node {
    fn new() -> Node {
        let mut world = World::with_encoder(2, || Box::new(OfUsers));
        world.hubs.iter_mut().for_each(|hub| hub.record_members(true));
        let home = world.home_of(ROOM);
        Node { world, home }
    }

    /// A session begins to subscribe to the room.
    fn begin(&mut self, user: &str) -> SessionId {
        let session = self.world.open(1 - self.home, "");
        let now = self.world.now;
        let channel = options();
        let channel = ChannelRef::new(ROOM, &channel);
        self.world.hub(1 - self.home).handle_subscribe(now, 7, session, channel, member(user));
        self.world.settle();
        session
    }

    /// The list that the node requests, if it does.
    fn requested(&mut self) -> Option<MemberListRequest> {
        let home = self.home;
        assert_eq!(
            self.world.hub(1 - home).poll_member_list(),
            None,
            "the channel is not at home there"
        );
        self.world.hub(home).poll_member_list()
    }

    fn answer(
        &mut self,
        request: &MemberListRequest,
        list: Result<&[(u32, &str)], MemberListError>,
    ) {
        let (now, home) = (self.world.now, self.home);
        let list = list.map(|list| list.iter().map(|(at, user)| elsewhere(*at, user)).collect());
        self.world.hub(home).handle_member_list(now, request, list);
        self.world.settle();
    }

    /// Other nodes announce.
    fn announced(&mut self, at: u32, user: &str, joined: bool) {
        let now = self.world.now;
        for hub in &mut self.world.hubs {
            hub.announce_remote(now, ROOM, &elsewhere(at, user), joined);
        }
        self.world.settle();
    }

    fn leaves(&mut self, session: SessionId) {
        let now = self.world.now;
        self.world.hub(session.worker()).close_session(now, session);
        self.world.settle();
    }

    /// The answers to subscriptions since the last call.
    fn subscribed(&mut self) -> Vec<Result<Vec<String>, Error>> {
        let users = |subscribed: Subscribed| {
            let mut users: Vec<_> =
                subscribed.members.iter().map(|of| of.user.to_string()).collect();
            users.sort();
            users
        };
        let events = self.world.take_events().into_iter();
        let answers = events.filter_map(|(_, event)| match event {
            Event::Subscribed { result, .. } => Some(result.map(users)),
            _ => None,
        });
        answers.collect()
    }

    fn read(&mut self, session: SessionId) -> String {
        self.world.read(session)
    }
}

/// A session on another node.
fn elsewhere(at: u32, user: &str) -> Arc<ClientInfo> {
    Arc::new(ClientInfo {
        client: SessionId::pack(77, 1, 1, at, 1),
        user: user.into(),
        user_is_number: false,
        foreign_client: None,
        conn_info: None,
        chan_info: None,
    })
}

fn users(users: &[&str]) -> Result<Vec<String>, Error> {
    Ok(users.iter().map(|user| (*user).to_owned()).collect())
}

#[test]
fn subscribers_wait_for_the_list_of_all_nodes_and_later_ones_are_answered_at_once() {
    let mut node = Node::new();
    let ann = node.begin("ann");
    node.begin("bob");
    assert_eq!(node.subscribed(), [], "the others are not known yet");
    let request = node.requested().expect("it asks for them");
    assert_eq!((&*request.channel, node.requested()), (ROOM, None), "once");
    node.answer(&request, Ok(&[(1, "eve"), (2, "eve")]));
    assert_eq!(node.subscribed(), [users(&["ann", "eve"]), users(&["ann", "bob", "eve"])]);
    assert_eq!(node.read(ann), "+bob ");
    let again = node.begin("ann");
    assert_eq!((node.subscribed(), node.requested()), (vec![users(&["ann", "bob", "eve"])], None));
    assert_eq!(node.read(ann), "", "she is here already");
    node.begin("dan");
    assert_eq!(node.subscribed(), [Err(Error::LimitExceeded)], "three users on all nodes");
    node.leaves(again);
    assert_eq!(node.read(ann), "");
}

#[test]
fn a_user_on_several_nodes_joins_once_and_leaves_once() {
    let mut node = Node::new();
    let ann = node.begin("ann");
    let request = node.requested().unwrap();
    node.answer(&request, Ok(&[]));
    node.announced(1, "bob", true);
    assert_eq!(node.read(ann), "+bob ");
    let here = node.begin("bob");
    node.announced(2, "bob", true);
    node.announced(2, "bob", true);
    node.announced(1, "bob", false);
    node.leaves(here);
    assert_eq!(node.read(ann), "", "his second session on the other node is there");
    node.announced(2, "bob", false);
    node.announced(2, "bob", false);
    assert_eq!(node.read(ann), "-bob ");
    node.announced(3, "ann", true);
    node.announced(3, "ann", false);
    assert_eq!(node.read(ann), "", "she is here");
}

#[test]
fn announcements_during_a_request_prevail_over_its_list() {
    let mut node = Node::new();
    let ann = node.begin("ann");
    let request = node.requested().unwrap();
    node.announced(1, "eve", false);
    node.announced(2, "bob", true);
    node.answer(&request, Ok(&[(1, "eve")]));
    assert_eq!(node.subscribed(), [users(&["ann", "bob"])]);
    node.announced(2, "bob", false);
    assert_eq!(node.read(ann), "-bob ");
}

#[test]
fn a_list_that_is_read_again_announces_what_was_lost() {
    let mut node = Node::new();
    let ann = node.begin("ann");
    let first = node.requested().unwrap();
    node.answer(&first, Ok(&[(1, "eve")]));
    node.world.hub(node.home).refresh_member_lists();
    let second = node.requested().expect("it asks again");
    // Announcements are lost again before the answer.
    node.world.hub(node.home).refresh_member_lists();
    node.answer(&first, Ok(&[]));
    assert_eq!(node.read(ann), "", "an answer of before is ignored");
    node.answer(&second, Ok(&[(2, "bob")]));
    let read = node.read(ann);
    assert!(read == "-eve +bob " || read == "+bob -eve ", "{read}");
    let third = node.requested().expect("once more");
    node.answer(&third, Ok(&[(2, "bob")]));
    assert_eq!((node.read(ann), node.requested()), (String::new(), None));
}

#[test]
fn without_a_list_subscribers_get_whom_the_node_knows_and_the_others_once_there_is_one() {
    let mut node = Node::new();
    let ann = node.begin("ann");
    let request = node.requested().unwrap();
    node.answer(&request, Err(MemberListError::Unavailable));
    assert_eq!((node.subscribed(), node.requested()), (vec![users(&["ann"])], None));
    let (now, home) = (node.world.now, node.home);
    node.world.hub(home).look_at_member_lists(now);
    let request = node.requested().expect("it is requested again after a while");
    node.answer(&request, Ok(&[(1, "eve")]));
    assert_eq!(node.read(ann), "+eve ");
}

#[test]
fn a_list_that_is_too_large_refuses_the_subscription_as_one_of_a_single_node() {
    let mut node = Node::new();
    node.begin("ann");
    let request = node.requested().unwrap();
    node.answer(&request, Err(MemberListError::TooLarge));
    assert_eq!(node.subscribed(), [Err(Error::LimitExceeded)]);
}

#[test]
fn session_that_left_while_it_waited_is_not_answered_and_an_unused_list_is_dropped() {
    let mut node = Node::new();
    let ann = node.begin("ann");
    let request = node.requested().unwrap();
    node.leaves(ann);
    node.answer(&request, Ok(&[(1, "eve")]));
    assert_eq!(node.subscribed(), [Err(Error::Cancelled)], "when it went");
    for _ in 0..2 {
        node.world.pass(60_000);
        let (now, home) = (node.world.now, node.home);
        node.world.hub(home).look_at_member_lists(now);
    }
    node.begin("bob");
    assert!(node.requested().is_some(), "it is requested anew");
}
