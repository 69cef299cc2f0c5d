//! Counts which sessions a change affects, for the admin thread: a little in each turn.

use std::net::SocketAddr;
use std::sync::Arc;

use dunlin_hub::{Hub, SubscriberCount};
use dunlin_net::ConnId;

use crate::message::worker::{AffectedCounts, AffectedScope};

/// Channels and subscribers looked at in one turn; some ten microseconds.
const STEPS: usize = 4_096;
/// Connections asked for their address in one turn; each is a system call.
const CONNECTIONS: usize = 64;

/// The counts under way.
#[derive(Default)]
pub(crate) struct AffectedCounter(Vec<PendingCount>);

struct PendingCount {
    request_id: u64,
    scope: Arc<AffectedScope>,
    subscribers: SubscriberCount,
    /// Those still to be asked through which listener they came.
    connections: Vec<ConnId>,
    counts: AffectedCounts,
}

impl AffectedCounter {
    /// Begins to count. Of `connections` only those are looked at that exist now.
    pub(crate) fn begin(
        &mut self,
        request_id: u64,
        scope: Arc<AffectedScope>,
        connections: impl Iterator<Item = ConnId>,
    ) {
        let connections = match scope.listeners.is_empty() {
            true => Vec::new(),
            false => connections.collect(),
        };
        let (subscribers, counts) = Default::default();
        self.0.push(PendingCount { request_id, scope, subscribers, connections, counts });
    }

    /// Nothing is left to count: the worker may sleep.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.is_empty()
    }

    /// Goes on for one turn. Gives a count that is complete, with its request.
    pub(crate) fn step(
        &mut self,
        hub: &Hub,
        local_addr: impl Fn(ConnId) -> Option<SocketAddr>,
    ) -> Option<(u64, AffectedCounts)> {
        let count = self.0.last_mut()?;
        let PendingCount { scope, subscribers, connections, counts, .. } = count;
        let is_over = hub.count_subscribers(subscribers, STEPS, |namespace, count| {
            let is_wanted = scope.namespaces.contains(namespace);
            if is_wanted {
                *counts.subscriptions.entry(Arc::clone(namespace)).or_default() += count;
            }
            is_wanted
        });
        let left = connections.len().saturating_sub(CONNECTIONS);
        for conn in connections.drain(left..) {
            let Some(address) = local_addr(conn) else { continue };
            let listener = scope.listeners.iter().find(|(_, of)| {
                *of == address || of.ip().is_unspecified() && of.port() == address.port()
            });
            if let Some((name, _)) = listener {
                *counts.connections.entry(Arc::clone(name)).or_default() += 1;
            }
        }
        if !is_over || !connections.is_empty() {
            return None;
        }
        let PendingCount { request_id, subscribers, mut counts, .. } = self.0.pop()?;
        counts.sessions = subscribers.sessions();
        Some((request_id, counts))
    }
}

#[cfg(test)]
mod tests {
    use dunlin_hub::HubConfig;
    use dunlin_protocol::FrameEncoder;

    use super::*;

    #[test]
    fn connections_are_counted_by_listener_some_in_each_turn() {
        let hub = Hub::new(HubConfig::default(), Box::new(FrameEncoder::new(None)));
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let listeners = vec![
            (Arc::from("any"), SocketAddr::from(([0, 0, 0, 0], 8001))),
            (Arc::from("one"), address(8002)),
        ];
        let scope = AffectedScope { namespaces: Default::default(), listeners };
        let mut counter = AffectedCounter::default();
        assert!(counter.is_idle() && counter.step(&hub, |_| None).is_none());
        counter.begin(7, Arc::new(scope), (0..300).map(ConnId::from_u64));
        let mut turns = 0;
        let (request_id, counts) = loop {
            assert!(!counter.is_idle());
            turns += 1;
            // Every third connection came through each listener, and every third through another.
            let step = counter.step(&hub, |conn| Some(address(8001 + conn.to_u64() as u16 % 3)));
            if let Some(counted) = step {
                break counted;
            }
        };
        assert!(counter.is_idle());
        assert_eq!((request_id, turns), (7, 300_usize.div_ceil(CONNECTIONS)));
        assert_eq!(
            counts.connections.into_iter().collect::<Vec<_>>(),
            [(Arc::from("any"), 100), (Arc::from("one"), 100)]
        );
        assert_eq!(counts.sessions, 0);
    }
}
