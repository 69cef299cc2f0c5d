//! Whether the store has all members of the living nodes. While it may lack some, reads of presence wait for a bounded time and
//! then fail: a list without a node's members would look like a complete one.
//!
//! A node that joins, or returns after a lost connection, compares its members with the store and writes the difference. Until
//! that is written, its lease says so. It then renews the lease and sends the others a message, so that they need not wait for
//! their next renewal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::lease::Node;

/// Whether presence may be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// The store has all members.
    Ready,
    /// It may lack some; reads wait until this time at most.
    Waiting(Instant),
    /// It has lacked some for too long: why.
    Overdue(String),
}

/// The nodes whose members the store may lack.
#[derive(Debug)]
pub(super) struct Completeness {
    /// Since when it may lack members of this node.
    own: Option<Instant>,
    /// All workers have listed their members; the changes that this requires are being written.
    is_listed: bool,
    /// This node's lease says that the store may lack members of it.
    is_published: bool,
    /// The lease that is being written is the first that does not say so any more; the others are informed once it is written.
    is_announced: bool,
    /// Other nodes whose leases say so: their names, and since when this node knows.
    others: BTreeMap<Arc<str>, (Arc<str>, Instant)>,
    /// Nodes that were alive and of which the store has lost the lease: they are alive until it would have ended.
    vanished: Vec<(Node, Instant)>,
}

impl Completeness {
    pub(super) fn new(now: Instant) -> Completeness {
        let others = BTreeMap::new();
        Completeness {
            own: Some(now),
            is_listed: false,
            is_published: false,
            is_announced: false,
            others,
            vanished: Vec::new(),
        }
    }

    /// The store may lack members of this node.
    pub(super) fn lose(&mut self, now: Instant) {
        self.is_listed = false;
        self.own.get_or_insert(now);
    }

    /// A connection was opened: the time before it does not count.
    pub(super) fn restart(&mut self, now: Instant) {
        self.is_listed = false;
        self.own = Some(now);
        self.others.clear();
    }

    /// All workers have listed their members.
    pub(super) fn handle_listed(&mut self) {
        self.is_listed = true;
    }

    /// Called when the changes of the last comparison were written. Returns `true` if the lease must be renewed, because it says
    /// that the store may lack members.
    pub(super) fn handle_written(&mut self) -> bool {
        if !self.is_listed {
            return false;
        }
        self.own = None;
        self.is_published
    }

    /// For the lease that is about to be written: whether the store may lack members of this node.
    pub(super) fn publish(&mut self) -> bool {
        let may_lack = self.own.is_some();
        let said_so = std::mem::replace(&mut self.is_published, may_lack);
        self.is_announced = !may_lack && (said_so || self.is_announced);
        may_lack
    }

    /// Called when the lease was written. Returns `true` if the other nodes must be informed that the store has all members.
    pub(super) fn take_announcement(&mut self) -> bool {
        std::mem::take(&mut self.is_announced)
    }

    /// Takes what the leases of the other nodes say. `before`: the nodes that were known before.
    pub(super) fn follow<'a>(
        &mut self,
        nodes: impl Iterator<Item = &'a Node> + Clone,
        before: impl Iterator<Item = &'a Node>,
        now: Instant,
    ) {
        let is_missing = |node: &Node| nodes.clone().all(|of| of.uid != node.uid);
        self.vanished.retain(|(node, until)| *until > now && is_missing(node));
        let lost = before.filter(|node| node.is_alive() && is_missing(node));
        let until = |node: &Node| now + Duration::from_millis(node.left_ms.unsigned_abs());
        self.vanished.extend(lost.map(|node| (node.clone(), until(node))));
        let before = std::mem::take(&mut self.others);
        let entry = |node: &Node| (Arc::clone(&node.uid), (Arc::clone(&node.facts.name), now));
        let pending = nodes.filter(|node| node.is_alive() && node.facts.members_pending);
        let vanished = self.vanished.iter().map(|(node, _)| entry(node));
        self.others = pending.map(entry).chain(vanished).collect();
        for (uid, (_, since)) in &mut self.others {
            *since = before.get(uid).map_or(now, |(_, since)| *since);
        }
    }

    /// Another node says that the store has all its members. They count only once this node has read its lease.
    pub(super) fn handle_stored(&mut self, uid: &str) {
        if self.vanished.iter().all(|(node, _)| *node.uid != *uid) {
            self.others.remove(uid);
        }
    }

    /// Whether presence may be read, for requests that wait for `within` at most.
    pub(super) fn readiness(&self, now: Instant, within: Duration) -> Readiness {
        let own = self.own.map(|since| (None, since));
        let others = self.others.values().map(|(name, since)| (Some(name), *since));
        let Some((name, since)) = own.into_iter().chain(others).min_by_key(|(_, since)| *since)
        else {
            return Readiness::Ready;
        };
        if now < since + within {
            return Readiness::Waiting(since + within);
        }
        let whose = name.map_or_else(|| "this node".to_owned(), |name| format!("node {name}"));
        let seconds = (now - since).as_secs();
        Readiness::Overdue(format!(
            "the members of {whose} have not been stored completely for {seconds} s; its `condition` in `dunlin cluster status` says why"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::lease::Facts;
    use super::*;

    const WITHIN: Duration = Duration::from_secs(1);

    fn node(uid: &str, members_pending: bool) -> Node {
        let facts = Facts { members_pending, ..Facts::named(uid) };
        Node { number: 1, uid: uid.into(), left_ms: 5_000, facts }
    }

    #[test]
    fn presence_is_read_once_this_node_has_listed_and_written_its_members() {
        let now = Instant::now();
        let mut members = Completeness::new(now);
        assert!(members.publish());
        assert!(!members.handle_written(), "the workers have not listed theirs");
        assert_eq!(members.readiness(now, WITHIN), Readiness::Waiting(now + WITHIN));
        members.handle_listed();
        assert!(members.handle_written(), "the lease says otherwise");
        assert_eq!(members.readiness(now, WITHIN), Readiness::Ready);
        assert!(!members.publish() && members.take_announcement() && !members.take_announcement());
        members.lose(now + WITHIN);
        members.lose(now + 2 * WITHIN);
        let later = now + 4 * WITHIN;
        let Readiness::Overdue(why) = members.readiness(later, WITHIN) else { panic!("waits") };
        assert!(why.starts_with("the members of this node") && why.contains("for 3 s"), "{why}");
        members.restart(later);
        assert_eq!(members.readiness(later, WITHIN), Readiness::Waiting(later + WITHIN));
        members.handle_listed();
        assert!(!members.handle_written(), "the lease has not said so");
    }

    #[test]
    fn another_node_is_waited_for_until_its_lease_or_its_message_says_that_it_is_done() {
        let now = Instant::now();
        let mut members = Completeness::new(now);
        members.handle_listed();
        members.handle_written();
        let nodes = [node("a", false), node("b", true)];
        members.follow(nodes.iter(), [].iter(), now);
        members.follow(nodes.iter(), nodes.iter(), now + WITHIN / 2);
        assert_eq!(members.readiness(now, WITHIN), Readiness::Waiting(now + WITHIN));
        let Readiness::Overdue(why) = members.readiness(now + WITHIN, WITHIN) else {
            panic!("waits")
        };
        assert!(why.starts_with("the members of node b have"), "{why}");
        members.handle_stored("a");
        assert_ne!(members.readiness(now, WITHIN), Readiness::Ready);
        members.handle_stored("b");
        assert_eq!(members.readiness(now, WITHIN), Readiness::Ready);
        members.follow([node("b", true)].iter(), [].iter(), now);
        members.follow([node("b", false)].iter(), [].iter(), now);
        assert_eq!(members.readiness(now, WITHIN), Readiness::Ready);
    }

    #[test]
    fn a_node_whose_lease_the_store_has_lost_is_waited_for_until_it_is_back_or_would_have_ended() {
        let now = Instant::now();
        let mut members = Completeness::new(now);
        members.handle_listed();
        members.handle_written();
        let (a, b) = (node("a", false), node("b", false));
        let ended = Node { left_ms: -1, ..node("c", false) };
        let before = [a.clone(), b, ended];
        members.follow([].iter(), before.iter(), now);
        assert_eq!(members.readiness(now, WITHIN), Readiness::Waiting(now + WITHIN));
        members.handle_stored("b");
        members.follow([a.clone()].iter(), [].iter(), now + WITHIN);
        let Readiness::Overdue(why) = members.readiness(now + WITHIN, WITHIN) else {
            panic!("waits")
        };
        assert!(why.contains("node b"), "{why}");
        members.follow([a.clone()].iter(), [a].iter(), now + Duration::from_secs(6));
        assert_eq!(members.readiness(now, WITHIN), Readiness::Ready);
    }
}
