//! Which channels have subscribers, and which users are in presence channels, on any node: webhooks are notified of the first and the
//! last, once for all nodes.
//!
//! Each key, a channel or a user in a channel, has an owner among the living nodes, by rendezvous hashing. A node reports to the
//! owner what begins and ends on it. The owner emits an event when the first node has a key, and when the last has no longer.
//! When nodes come and go, few keys change their owner; the nodes report theirs to the new one, as known already.
//!
//! Reports are not stored. A node that has lost its connection lists its keys to the owners afterwards, and asks the others for
//! theirs. Without a connection it is the owner of all its keys.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hasher;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use crate::message::OccupancyEdge;

/// The most reports in a message.
const REPORTS_A_MESSAGE: usize = 256;
/// The most keys of this node. Events of further ones are of this node alone.
const KEYS_MAX: usize = 1 << 20;

/// A channel, or a user in a presence channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct OccupancyKey {
    pub(crate) channel: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<Arc<str>>,
}

/// A key has begun to be occupied on a node, or has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OccupancyReport {
    /// The uid of the node.
    node: Arc<str>,
    key: OccupancyKey,
    edge: OccupancyEdge,
}

/// A message from node to node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OccupancyMessage {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reports: Vec<OccupancyReport>,
    /// `true`: the sender begins to list its keys of which the receiver is the owner. `false`: these were all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    list: Option<bool>,
    /// The sender asks for such a list.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    wanted: bool,
}

/// What this node knows.
#[derive(Debug)]
pub(super) struct Occupancy {
    uid: Arc<str>,
    /// The uids of the nodes that are alive, with this one.
    living: BTreeSet<Arc<str>>,
    is_connected: bool,
    /// Whether the other nodes are known, or there was no connection; what happens before waits.
    is_settled: bool,
    early: Vec<(OccupancyKey, OccupancyEdge)>,
    /// The keys of this node.
    own: HashSet<OccupancyKey>,
    /// The keys that this node owns, and the nodes that have each.
    held: HashMap<OccupancyKey, HashSet<Arc<str>>>,
    /// Nodes that are listing their keys, and those that they had before and have not listed so far.
    listing: HashMap<Arc<str>, HashSet<OccupancyKey>>,
    messages: Vec<(Arc<str>, OccupancyMessage)>,
    events: Vec<(OccupancyKey, bool)>,
}

impl Occupancy {
    pub(super) fn new(uid: &Arc<str>) -> Occupancy {
        Occupancy {
            uid: Arc::clone(uid),
            living: BTreeSet::from([Arc::clone(uid)]),
            is_connected: false,
            is_settled: false,
            early: Vec::new(),
            own: HashSet::new(),
            held: HashMap::new(),
            listing: HashMap::new(),
            messages: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Takes what has happened on this node.
    pub(super) fn handle_own(&mut self, key: OccupancyKey, edge: OccupancyEdge) {
        if !self.is_settled {
            return self.early.push((key, edge));
        }
        if edge == OccupancyEdge::Ended {
            match self.own.remove(&key) {
                true => self.report(key, edge),
                false => self.events.push((key, false)),
            }
        } else if self.own.contains(&key) {
            // A worker has listed it again.
        } else if self.own.len() < KEYS_MAX {
            self.own.insert(key.clone());
            self.report(key, edge);
        } else if edge == OccupancyEdge::Begun {
            self.events.push((key, true));
        }
    }

    fn settle(&mut self) {
        if !std::mem::replace(&mut self.is_settled, true) {
            for (key, edge) in std::mem::take(&mut self.early) {
                self.handle_own(key, edge);
            }
        }
    }

    /// Takes a message of another node.
    pub(super) fn handle_message(&mut self, from: &Arc<str>, message: OccupancyMessage) {
        if message.list == Some(true) {
            let has = self.held.iter().filter(|(_, nodes)| nodes.contains(from));
            let has = has.map(|(key, _)| key.clone()).collect();
            self.listing.insert(Arc::clone(from), has);
        }
        for report in message.reports {
            let owner = self.owner_of(&report.key);
            // One that was passed on is taken, so that nodes that disagree do not pass it to and fro.
            if *owner != *self.uid && report.node == *from {
                let passed =
                    OccupancyMessage { reports: vec![report], ..OccupancyMessage::default() };
                self.messages.push((owner, passed));
            } else {
                self.take(report);
            }
        }
        if message.list == Some(false) {
            for key in self.listing.remove(from).into_iter().flatten() {
                self.end(from, &key);
            }
        }
        if message.wanted {
            // What its receiver lacks was lost on the way, and has not been an event.
            self.list_to(from, OccupancyEdge::Begun);
        }
    }

    /// Takes the uids of the nodes that are alive.
    pub(super) fn set_living(&mut self, living: impl Iterator<Item = Arc<str>>) {
        let mut living: BTreeSet<Arc<str>> = living.collect();
        living.insert(Arc::clone(&self.uid));
        if living == self.living {
            return;
        }
        let dead: Vec<Arc<str>> = self.living.difference(&living).cloned().collect();
        let former = std::mem::replace(&mut self.living, living);
        for uid in &dead {
            self.listing.remove(uid);
            let has = self.held.iter().filter(|(_, nodes)| nodes.contains(uid));
            let has: Vec<_> = has.map(|(key, _)| key.clone()).collect();
            has.iter().for_each(|key| self.end(uid, key));
        }
        if !self.is_connected {
            return;
        }
        let moved = self.own.iter().filter(|key| owner(&former, key) != owner(&self.living, key));
        let moved: Vec<_> = moved.cloned().collect();
        self.release();
        moved.into_iter().for_each(|key| self.report(key, OccupancyEdge::Known));
    }

    /// The leases were read over a connection. If it is a new one, the owners are notified of what this node has, and asked for what the
    /// others have.
    pub(super) fn handle_connected(&mut self) {
        if std::mem::replace(&mut self.is_connected, true) {
            return;
        }
        self.release();
        let others: Vec<_> = self.living.iter().filter(|uid| **uid != self.uid).cloned().collect();
        for other in &others {
            self.list_to(other, OccupancyEdge::Known);
            let wanted = OccupancyMessage { wanted: true, ..OccupancyMessage::default() };
            self.messages.push((Arc::clone(other), wanted));
        }
        let own = self.own.iter().filter(|key| *self.owner_of(key) == *self.uid);
        let own: Vec<_> = own.cloned().collect();
        own.into_iter().for_each(|key| self.report(key, OccupancyEdge::Known));
        self.settle();
    }

    /// Messages of other nodes were lost: they are asked for what they have.
    pub(super) fn handle_lost(&mut self) {
        for other in self.living.iter().filter(|uid| **uid != self.uid) {
            let wanted = OccupancyMessage { wanted: true, ..OccupancyMessage::default() };
            self.messages.push((Arc::clone(other), wanted));
        }
    }

    pub(super) fn handle_disconnected(&mut self) {
        self.is_connected = false;
        self.messages.clear();
        self.listing.clear();
        self.settle();
    }

    /// The messages to send, and their receivers.
    pub(super) fn take_messages(&mut self) -> Vec<(Arc<str>, OccupancyMessage)> {
        std::mem::take(&mut self.messages)
    }

    /// The events of all nodes: keys that are occupied now, or no longer.
    pub(super) fn take_events(&mut self) -> Vec<(OccupancyKey, bool)> {
        std::mem::take(&mut self.events)
    }

    fn owner_of(&self, key: &OccupancyKey) -> Arc<str> {
        match self.is_connected {
            true => owner(&self.living, key),
            false => Arc::clone(&self.uid),
        }
    }

    /// Reports a key of this node to its owner.
    fn report(&mut self, key: OccupancyKey, edge: OccupancyEdge) {
        let owner = self.owner_of(&key);
        let report = OccupancyReport { node: Arc::clone(&self.uid), key, edge };
        if owner == self.uid {
            return self.take(report);
        }
        // Those for one owner that follow each other share a message.
        if let Some((to, message)) = self.messages.last_mut()
            && *to == owner
            && message.list.is_none()
            && !message.wanted
            && message.reports.len() < REPORTS_A_MESSAGE
        {
            return message.reports.push(report);
        }
        let message = OccupancyMessage { reports: vec![report], ..OccupancyMessage::default() };
        self.messages.push((owner, message));
    }

    /// Lists the keys of this node that another one owns.
    fn list_to(&mut self, other: &Arc<str>, edge: OccupancyEdge) {
        let mark = |list| OccupancyMessage { list: Some(list), ..OccupancyMessage::default() };
        self.messages.push((Arc::clone(other), mark(true)));
        let its = self.own.iter().filter(|key| self.owner_of(key) == *other);
        let its: Vec<_> = its.cloned().collect();
        its.into_iter().for_each(|key| self.report(key, edge));
        self.messages.push((Arc::clone(other), mark(false)));
    }

    /// Takes a report as the owner.
    fn take(&mut self, report: OccupancyReport) {
        let OccupancyReport { node, key, edge } = report;
        if edge == OccupancyEdge::Ended {
            return self.end(&node, &key);
        }
        if let Some(unlisted) = self.listing.get_mut(&node) {
            unlisted.remove(&key);
        }
        let nodes = self.held.entry(key.clone()).or_default();
        let is_first = nodes.is_empty();
        nodes.insert(node);
        if is_first && edge == OccupancyEdge::Begun {
            self.events.push((key, true));
        }
    }

    fn end(&mut self, node: &Arc<str>, key: &OccupancyKey) {
        let Some(nodes) = self.held.get_mut(key) else { return };
        if nodes.remove(node) && nodes.is_empty() {
            self.held.remove(key);
            self.events.push((key.clone(), false));
        }
    }

    /// Forgets keys that another node owns now.
    fn release(&mut self) {
        let (living, uid) = (&self.living, &self.uid);
        self.held.retain(|key, _| owner(living, key) == *uid);
    }
}

/// The owner of a key: the node whose hash with it is the largest.
fn owner(living: &BTreeSet<Arc<str>>, key: &OccupancyKey) -> Arc<str> {
    let weight = |uid: &Arc<str>| {
        let mut hasher = SipHasher13::new();
        let user = key.user.as_deref().unwrap_or("");
        for part in [&**uid, &*key.channel, user] {
            hasher.write(part.as_bytes());
            hasher.write_u8(0xff);
        }
        hasher.finish()
    };
    let owner = living.iter().max_by_key(|uid| weight(uid));
    Arc::clone(owner.expect("this node is alive"))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Nodes, and the messages between them.
    struct World {
        nodes: Vec<Occupancy>,
        /// By sender, in order.
        sent: Vec<VecDeque<(Arc<str>, OccupancyMessage)>>,
        /// Nodes whose messages are lost, and who get none.
        cut: HashSet<usize>,
        events: Vec<String>,
    }

    impl World {
        fn new(count: usize) -> World {
            let nodes: Vec<_> = (0..count).map(|at| Occupancy::new(&uid(at))).collect();
            let sent = vec![VecDeque::new(); count];
            let mut world = World { nodes, sent, cut: HashSet::new(), events: Vec::new() };
            for at in 0..count {
                world.nodes[at].set_living((0..count).map(uid));
                world.nodes[at].handle_connected();
            }
            world.settle();
            world
        }

        fn settle(&mut self) {
            loop {
                for at in 0..self.nodes.len() {
                    let messages = self.nodes[at].take_messages();
                    if !self.cut.contains(&at) {
                        self.sent[at].extend(messages);
                    }
                    let events = self.nodes[at].take_events().into_iter();
                    self.events.extend(events.map(|(key, occupied)| {
                        let user = key.user.map(|user| format!("/{user}")).unwrap_or_default();
                        format!("{}{}{user}", if occupied { '+' } else { '-' }, key.channel)
                    }));
                }
                let Some(from) = self.sent.iter().position(|sent| !sent.is_empty()) else { return };
                let (to, message) = self.sent[from].pop_front().unwrap();
                let to = self.nodes.iter().position(|node| node.uid == to);
                if let Some(to) = to.filter(|to| !self.cut.contains(to)) {
                    // As it goes over the wire.
                    let text = serde_json::to_string(&message).unwrap();
                    let message = serde_json::from_str(&text).unwrap();
                    self.nodes[to].handle_message(&uid(from), message);
                }
            }
        }

        fn change(&mut self, at: usize, channel: &str, occupied: bool) {
            let edge = if occupied { OccupancyEdge::Begun } else { OccupancyEdge::Ended };
            self.nodes[at].handle_own(key(channel), edge);
            self.settle();
        }

        fn living(&mut self, living: &[usize]) {
            for at in living {
                self.nodes[*at].set_living(living.iter().map(|at| uid(*at)));
            }
            self.settle();
        }

        fn events(&mut self) -> Vec<String> {
            let mut events = std::mem::take(&mut self.events);
            events.sort();
            events
        }
    }

    fn uid(at: usize) -> Arc<str> {
        format!("n{at}").into()
    }

    fn key(channel: &str) -> OccupancyKey {
        OccupancyKey { channel: channel.into(), user: None }
    }

    /// Channels enough that every node owns some.
    fn channels() -> Vec<String> {
        (0..30).map(|at| format!("c{at:02}")).collect()
    }

    fn all(sign: char) -> Vec<String> {
        channels().into_iter().map(|channel| format!("{sign}{channel}")).collect()
    }

    #[test]
    fn the_first_and_the_last_of_all_nodes_are_events_and_nothing_in_between() {
        let mut world = World::new(3);
        for channel in channels() {
            (0..3).for_each(|at| world.change(at, &channel, true));
        }
        assert_eq!(world.events(), all('+'));
        for channel in channels() {
            (0..2).for_each(|at| world.change(at, &channel, false));
        }
        assert_eq!(world.events(), [""; 0]);
        channels().iter().for_each(|channel| world.change(2, channel, false));
        assert_eq!(world.events(), all('-'));
        let user = OccupancyKey { user: Some("ann".into()), ..key("presence-a") };
        world.nodes[1].handle_own(user, OccupancyEdge::Begun);
        world.settle();
        assert_eq!(world.events(), ["+presence-a/ann"]);
    }

    #[test]
    fn nodes_that_come_and_go_change_nothing_but_what_only_they_had() {
        let mut world = World::new(4);
        world.living(&[0, 1, 2]);
        for channel in channels() {
            world.change(0, &channel, true);
            world.change(1, &channel, true);
        }
        assert_eq!(world.events(), all('+'));
        world.living(&[0, 1, 2, 3]);
        world.change(3, "late", true);
        world.change(2, "late", true);
        world.living(&[0, 1, 3]);
        assert_eq!(world.events(), ["+late"]);
        world.cut.insert(1);
        world.living(&[0, 3]);
        assert_eq!(world.events(), [""; 0], "the other node has them, too");
        channels().iter().for_each(|channel| world.change(0, channel, false));
        assert_eq!(world.events(), all('-'));
    }

    #[test]
    fn a_node_that_was_cut_off_lists_what_it_has_and_asks_the_others() {
        let mut world = World::new(3);
        channels().iter().for_each(|channel| world.change(0, channel, true));
        world.events();
        world.cut.insert(0);
        world.nodes[0].handle_disconnected();
        let (gone, stays) = (channels()[..20].to_vec(), channels()[20..].to_vec());
        gone.iter().for_each(|channel| world.change(0, channel, false));
        world.change(0, "own", true);
        // Its owner is the node that is cut off: the report is lost.
        let living = world.nodes[1].living.clone();
        let lost = (0..).map(|at| format!("lost{at}"));
        let lost = lost.into_iter().find(|of| *owner(&living, &key(of)) == *uid(0)).unwrap();
        world.events();
        world.change(1, &lost, true);
        assert_eq!(world.events(), [""; 0]);
        world.cut.clear();
        world.nodes[0].handle_connected();
        world.settle();
        world.events.retain(|event| event.starts_with('+'));
        assert_eq!(world.events(), [format!("+{lost}")], "and nothing begins twice");
        stays.iter().for_each(|channel| world.change(1, channel, true));
        assert_eq!(world.events(), [""; 0], "they are known to be occupied");
        for at in [0, 1] {
            stays.iter().for_each(|channel| world.change(at, channel, false));
        }
        let ended: Vec<_> = stays.iter().map(|channel| format!("-{channel}")).collect();
        assert_eq!(world.events(), ended);
        world.change(2, &gone[0], true);
        assert_eq!(world.events(), [format!("+{}", gone[0])]);
        world.change(1, &lost, false);
        assert_eq!(world.events(), [format!("-{lost}")]);
    }

    #[test]
    fn occupancy_before_a_hook_was_set_ends_once() {
        let mut world = World::new(2);
        for at in 0..2 {
            world.nodes[at].handle_own(key("a"), OccupancyEdge::Known);
        }
        world.settle();
        world.change(0, "a", false);
        assert_eq!(world.events(), [""; 0]);
        world.change(1, "a", false);
        assert_eq!(world.events(), ["-a"]);
    }
}
