//! Events between a worker and the webhooks thread.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Most bytes of one worker's events in transit. Further events are an overflow.
const BYTES_MAX: u64 = 16 << 20;
/// The groups into which flows are divided. A group is what one flow fills; others of its group suffer with it.
const GROUPS: usize = 64;

/// The events in transit from one worker. Each end writes its own counters.
///
/// A group of flows may have as much in transit as there is room for others: one alone half of the room, two a third each.
#[derive(Debug, Default)]
pub(crate) struct InTransit {
    sent: Counters,
    received: Counters,
}

#[derive(Debug)]
#[repr(align(128))]
struct Counters {
    all: Load,
    groups: [Load; GROUPS],
}

/// Bytes and number of events.
#[derive(Debug, Default)]
struct Load {
    bytes: AtomicU64,
    events: AtomicU64,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters { all: Load::default(), groups: std::array::from_fn(|_| Load::default()) }
    }
}

impl Counters {
    fn add(&self, flow: u64, bytes: u64, events: u64) {
        self.all.add(bytes, events);
        self.group(flow).add(bytes, events);
    }

    fn group(&self, flow: u64) -> &Load {
        &self.groups[flow as usize % GROUPS]
    }
}

impl Load {
    /// Only one thread writes. Wraps, also to subtract.
    fn add(&self, bytes: u64, events: u64) {
        self.bytes.store(self.bytes.load(Relaxed).wrapping_add(bytes), Relaxed);
        self.events.store(self.events.load(Relaxed).wrapping_add(events), Relaxed);
    }

    /// Returns bytes and events that were sent and are not received.
    fn less(&self, received: &Load) -> (u64, u64) {
        let bytes = self.bytes.load(Relaxed).wrapping_sub(received.bytes.load(Relaxed));
        let events = self.events.load(Relaxed).wrapping_sub(received.events.load(Relaxed));
        (bytes, events)
    }
}

impl InTransit {
    /// Counts an event of a flow as sent, over an edge that holds `events_max`. Returns `false` if there is no room, or the flow
    /// has its share. Only called by the worker.
    pub(crate) fn try_send(&self, flow: u64, bytes: u64, events_max: u64) -> bool {
        let (all_bytes, all_events) = self.sent.all.less(&self.received.all);
        let (own_bytes, own_events) = self.sent.group(flow).less(self.received.group(flow));
        let room = own_bytes < BYTES_MAX.saturating_sub(all_bytes)
            && own_events < events_max.saturating_sub(all_events);
        if room {
            self.sent.add(flow, bytes, 1);
        }
        room
    }

    /// Reverts the count of an event that was not sent. Only called by the worker.
    pub(crate) fn cancel_send(&self, flow: u64, bytes: u64) {
        self.sent.add(flow, bytes.wrapping_neg(), 1_u64.wrapping_neg());
    }

    /// Counts an event as received. Only called by the webhooks thread.
    pub(crate) fn received(&self, flow: u64, bytes: u64) {
        self.received.add(flow, bytes, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_that_fills_the_way_leaves_room_for_others() {
        for (bytes, events_max) in [(128, 4_096), (64 << 10, 1 << 20)] {
            let in_transit = InTransit::default();
            let sent =
                (0..1 << 20).take_while(|_| in_transit.try_send(1, bytes, events_max)).count();
            assert!(sent > 100, "{sent}");
            let others = (2..18).filter(|flow| {
                (0..sent / 64).all(|_| in_transit.try_send(*flow, bytes, events_max))
            });
            assert_eq!(others.count(), 16);
            (0..sent).for_each(|_| in_transit.received(1, bytes));
            assert!(in_transit.try_send(1, bytes, events_max), "there is room again");
            in_transit.cancel_send(1, bytes);
            assert_eq!(in_transit.sent.group(1).less(in_transit.received.group(1)), (0, 0));
        }
    }
}
