//! Whom a change would concern: counted for the admin thread, a little in each turn.

use std::sync::Arc;

use dunlin_hub::SubscriberCount;
use dunlin_net::{ConnId, Context};

use super::Worker;
use super::link::Link;
use crate::bus_message::{AffectedCounts, AffectedScope, BusMessage};

/// Channels and subscribers looked at in one turn; some ten microseconds.
const STEPS: usize = 4_096;
/// Connections asked for their address in one turn; each is a system call.
const CONNECTIONS: usize = 64;

/// A count under way.
pub(super) struct Count {
    request_id: u64,
    scope: Arc<AffectedScope>,
    census: SubscriberCount,
    /// Those still to be asked through which listener they came.
    connections: Vec<ConnId>,
    found: AffectedCounts,
}

impl Worker<'_> {
    pub(super) fn begin_count(
        &mut self,
        cx: &Context<Link>,
        request_id: u64,
        scope: Arc<AffectedScope>,
    ) {
        let connections = match scope.listeners.is_empty() {
            true => Vec::new(),
            false => cx.connections().collect(),
        };
        let (census, found) = (SubscriberCount::default(), AffectedCounts::default());
        self.counts.push(Count { request_id, scope, census, connections, found });
    }

    /// Goes on with the counts under way, and tells the admin thread of those that are over. Called each turn; the
    /// loop does not sleep before all are.
    pub(super) fn go_on_counting(&mut self, cx: &Context<Link>) {
        let Some(mut count) = self.counts.pop() else { return };
        let Count { request_id, scope, census, connections, found } = &mut count;
        let over = self.hub.count_subscribers(census, STEPS, |namespace, subscribers| {
            let is_wanted = scope.namespaces.contains(namespace);
            if is_wanted {
                *found.subscriptions.entry(Arc::clone(namespace)).or_default() += subscribers;
            }
            is_wanted
        });
        let left = connections.len().saturating_sub(CONNECTIONS);
        for conn in connections.drain(left..) {
            let Some(address) = cx.local_addr(conn) else { continue };
            let through = scope.listeners.iter().find(|(_, of)| {
                *of == address || of.ip().is_unspecified() && of.port() == address.port()
            });
            if let Some((name, _)) = through {
                *found.connections.entry(Arc::clone(name)).or_default() += 1;
            }
        }
        if !over || !connections.is_empty() {
            self.counts.push(count);
            return;
        }
        found.sessions = census.sessions();
        let counts = Box::new(std::mem::take(found));
        let reply =
            BusMessage::AffectedReply { request_id: *request_id, worker: self.index, counts };
        // Refused by a full ring, this worker is one that kept silent.
        let _ = self.endpoint.send(self.state.admin_endpoint(), reply);
    }
}
