//! Detects two living nodes with the same name. Operators, and the responses of calls, distinguish nodes by name.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::lease::Node;

/// A lease whose expiry moved by at least this much was renewed. Smaller differences can come from clocks and network latency.
const PROLONGED: Duration = Duration::from_millis(1_000);

/// Another node with this node's name. It counts as a conflict once that node has renewed its lease; until then it may be an
/// earlier run of this node that was killed.
#[derive(Debug, Default)]
pub(super) struct NameConflict {
    /// Its uid, and the expiry of its lease when it was first seen.
    seen: Option<(Arc<str>, Instant)>,
    is_living: bool,
}

impl NameConflict {
    /// Looks for a conflict among all nodes; `own` is the uid of this one. Returns a description of it.
    pub(super) fn find<'a>(
        &mut self,
        now: Instant,
        own: &str,
        name: &str,
        mut nodes: impl Iterator<Item = &'a Node>,
    ) -> Option<String> {
        let Some(node) =
            nodes.find(|node| node.is_alive() && *node.uid != *own && *node.facts.name == *name)
        else {
            *self = NameConflict::default();
            return None;
        };
        let ends = now + Duration::from_millis(node.left_ms.unsigned_abs());
        match &self.seen {
            Some((uid, first)) if *uid == node.uid => {
                self.is_living |= ends.saturating_duration_since(*first) > PROLONGED;
            }
            _ => (self.seen, self.is_living) = (Some((Arc::clone(&node.uid), ends)), false),
        }
        self.is_living.then(|| {
            let (number, addr) = (node.number, &node.facts.client_addr);
            format!("node {number} at {addr} is called {name:?}, too")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Facts;

    fn node(uid: &str, name: &str, left_ms: i64) -> Node {
        let facts = Facts::named(name);
        Node { number: 7, uid: uid.into(), left_ms, facts }
    }

    /// A node that was killed and is back found its own lease, and took itself for another.
    #[test]
    fn only_a_node_that_prolongs_its_lease_takes_the_name() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut name_conflict = NameConflict::default();
        let mut look =
            |ms: u64, node: Node| name_conflict.find(at(ms), "own", "web-1:8000", [node].iter());
        assert_eq!(look(0, node("own", "web-1:8000", 9_000)), None);
        assert_eq!(look(0, node("other", "web-2:8000", 9_000)), None);
        // What this node was before: its lease ends when it was to end.
        assert_eq!(look(0, node("before", "web-1:8000", 9_000)), None);
        assert_eq!(look(3_000, node("before", "web-1:8000", 6_100)), None);
        assert_eq!(look(9_000, node("before", "web-1:8000", -1)), None);
        // Another machine.
        assert_eq!(look(9_000, node("other", "web-1:8000", 7_000)), None);
        let said = look(12_000, node("other", "web-1:8000", 8_000)).expect("it lives");
        assert!(said.contains("node 7 at 10.0.0.7:8000"), "{said}");
        assert!(look(15_000, node("other", "web-1:8000", 5_000)).is_some());
        // It was given another.
        assert_eq!(look(18_000, node("other", "web-2:8000", 9_000)), None);
        assert_eq!(look(21_000, node("other", "web-1:8000", 9_000)), None);
    }
}
