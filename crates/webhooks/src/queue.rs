//! An ordered queue of a hook, and its request in flight.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::encoder::DropReason;

/// Bytes accounted for each event in addition to its JSON.
const ENTRY_BYTES: usize = 64;

/// Events in order. At most one request, with the first events, is in flight.
#[derive(Debug, Default)]
pub(crate) struct OrderedQueue {
    entries: VecDeque<Entry>,
    /// Number of events in `entries`.
    events: u64,
    pub(crate) batch: Option<Batch>,
    pub(crate) state: QueueState,
}

/// What a queue is waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum QueueState {
    /// An event.
    #[default]
    Idle,
    /// Its turn to send.
    Ready,
    /// An available member of its upstream.
    AwaitingMember,
    /// The result of its request.
    InFlight,
    /// The time of its next attempt, in milliseconds.
    BackingOff(u64),
}

#[derive(Debug)]
enum Entry {
    /// An encoded event, shared by all hooks.
    Event(Arc<[u8]>),
    /// The number of events dropped at this point, and why.
    Missed(u64, DropReason),
}

/// The events of one request. Each attempt sends the same body with the same key.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) key: Arc<str>,
    pub(crate) body: Arc<[u8]>,
    pub(crate) events: u64,
    /// Sum of the counts of the batch's `missed` events.
    missed: u64,
    /// Bytes counted against the hook's limit.
    pub(crate) cost_bytes: usize,
    /// Attempts that reached a backend or may have reached it.
    pub(crate) attempts: u32,
    /// The member of the last attempt.
    pub(crate) member: Option<Arc<str>>,
}

/// Returns the bytes of an event counted against the hook's limit.
pub(crate) fn cost_bytes(event: &[u8]) -> usize {
    event.len() + ENTRY_BYTES
}

impl OrderedQueue {
    pub(crate) fn push(&mut self, event: Arc<[u8]>) {
        self.entries.push_back(Entry::Event(event));
        self.events += 1;
    }

    /// Records that events were dropped after those in the queue.
    pub(crate) fn add_missed(&mut self, count: u64, reason: DropReason) {
        let behind = self.entries.iter_mut().rev().map_while(|entry| match entry {
            Entry::Missed(total, reason) => Some((total, *reason)),
            Entry::Event(_) => None,
        });
        // One entry per reason after the last event, so that alternating reasons use no additional memory.
        match behind.into_iter().find(|(_, same)| *same == reason) {
            Some((total, _)) => *total += count,
            None => self.entries.push_back(Entry::Missed(count, reason)),
        }
    }

    /// Returns whether there is an event to send. A `missed` event is never sent alone: a backend that rejects all
    /// requests would get such events endlessly.
    pub(crate) fn has_events(&self) -> bool {
        self.batch.is_some() || self.events > 0
    }

    /// Returns the number of events that are queued or in flight.
    pub(crate) fn len(&self) -> u64 {
        self.events + self.batch.as_ref().map_or(0, |batch| batch.events)
    }

    /// Creates a request from the first events. `key` is its idempotency key; `missed` encodes a `missed` event.
    pub(crate) fn compose(
        &mut self,
        events_max: u32,
        bytes_max: usize,
        key: impl FnOnce() -> String,
        mut missed: impl FnMut(&mut Vec<u8>, u64, DropReason),
    ) {
        if self.events == 0 {
            return;
        }
        let mut batch = Batch {
            key: "".into(),
            body: Arc::default(),
            events: 0,
            missed: 0,
            cost_bytes: 0,
            attempts: 0,
            member: None,
        };
        let mut body = vec![b'['];
        while let Some(first) = self.entries.front() {
            if let Entry::Event(event) = first
                && batch.events > 0
                && (batch.events >= u64::from(events_max) || body.len() + event.len() > bytes_max)
            {
                break;
            }
            if body.len() > 1 {
                body.push(b',');
            }
            match first {
                Entry::Event(event) => {
                    body.extend_from_slice(event);
                    batch.events += 1;
                    batch.cost_bytes += cost_bytes(event);
                }
                Entry::Missed(count, reason) => {
                    missed(&mut body, *count, *reason);
                    batch.missed += count;
                }
            }
            self.entries.pop_front();
        }
        body.push(b']');
        self.events -= batch.events;
        (batch.key, batch.body) = (key().into(), body.into());
        self.batch = Some(batch);
    }

    /// Removes the request in flight after its delivery.
    pub(crate) fn delivered(&mut self) -> Option<Batch> {
        self.batch.take()
    }

    /// Drops the request in flight; the next request begins with a `missed` event.
    pub(crate) fn drop_batch(&mut self, reason: DropReason) -> Option<Batch> {
        let batch = self.batch.take()?;
        let dropped = batch.events + batch.missed;
        match self.entries.front_mut() {
            Some(Entry::Missed(count, same)) if *same == reason => *count += dropped,
            _ => self.entries.push_front(Entry::Missed(dropped, reason)),
        }
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> Arc<[u8]> {
        text.as_bytes().into()
    }

    fn compose(queue: &mut OrderedQueue, events_max: u32, bytes_max: usize) -> String {
        queue.compose(
            events_max,
            bytes_max,
            || "key".into(),
            |out, count, reason| {
                out.extend_from_slice(format!("{count} {reason:?}").as_bytes());
            },
        );
        let body = queue.batch.as_ref().map_or(&[][..], |batch| &batch.body);
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[test]
    fn a_request_takes_events_in_order_up_to_its_bounds() {
        let mut queue = OrderedQueue::default();
        ["1", "22", "333", "4"].iter().for_each(|text| queue.push(event(text)));
        assert_eq!(compose(&mut queue, 2, 100), "[1,22]");
        assert_eq!((queue.len(), queue.delivered().unwrap().cost_bytes), (4, 3 + 2 * ENTRY_BYTES));
        assert_eq!(compose(&mut queue, 9, 4), "[333]", "the bytes are bounded");
        queue.delivered();
        assert_eq!(compose(&mut queue, 9, 1), "[4]", "a larger event has a request to itself");
        queue.delivered();
        assert!(!queue.has_events());
    }

    #[test]
    fn alternating_drop_reasons_do_not_grow_a_full_queue() {
        let mut queue = OrderedQueue::default();
        queue.push(event("1"));
        for _ in 0..1_000 {
            queue.add_missed(1, DropReason::QueueFull);
            queue.add_missed(2, DropReason::Overflow);
        }
        assert_eq!(queue.entries.len(), 3);
        assert_eq!(compose(&mut queue, 9, 100), "[1,1000 QueueFull,2000 Overflow]");
    }

    #[test]
    fn a_missed_event_stands_where_events_were_dropped_and_is_never_sent_alone() {
        let mut queue = OrderedQueue::default();
        queue.push(event("1"));
        queue.add_missed(1, DropReason::QueueFull);
        queue.add_missed(1, DropReason::QueueFull);
        queue.push(event("2"));
        assert_eq!(compose(&mut queue, 9, 100), "[1,2 QueueFull,2]");
        assert_eq!(queue.drop_batch(DropReason::GivenUp).unwrap().events, 2);
        assert!(!queue.has_events());
        assert_eq!(compose(&mut queue, 9, 100), "", "never alone");
        queue.push(event("3"));
        // The dropped request began with a `missed` event, whose count is included.
        assert_eq!(compose(&mut queue, 9, 100), "[4 GivenUp,3]");
    }
}
