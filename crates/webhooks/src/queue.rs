//! An ordered queue of a hook, and its request in flight.

use std::sync::Arc;

use dunlin_hub::TraceContext;
use dunlin_wire::fair_queue::FairQueue;

use crate::encoder::DropReason;
use crate::owner::{EventOwner, OwnerKind};

/// Bytes accounted for each event in addition to its JSON.
const ENTRY_BYTES: usize = 64;
/// Bytes of events that an owner sends before it is another one's turn.
const TURN_BYTES: u32 = 2_048;
/// The most owners that are named as having lost events while none of their own were queued. Others are counted together.
const NAMED_MAX: usize = 16;

/// Events in the order of their owners. At most one request, with the first events, is in flight.
#[derive(Debug)]
pub(crate) struct OrderedQueue {
    /// By [`OwnerKind`].
    entries: [FairQueue<Entry>; 2],
    /// The kind of owners that has the next turn.
    turn: OwnerKind,
    /// Dropped events whose owners have none in the queue.
    missed: Vec<Missed>,
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

/// An encoded event, and the span that has caused it.
pub(crate) type TracedEvent = (Arc<[u8]>, Option<TraceContext>);

#[derive(Debug)]
struct Entry {
    /// An encoded event, shared by all hooks.
    event: Arc<[u8]>,
    /// The span that has caused it.
    trace: Option<TraceContext>,
    /// The owner's events that were dropped after it.
    missed: Vec<Missed>,
}

/// Dropped events: a `missed` event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missed {
    pub(crate) count: u64,
    pub(crate) reason: DropReason,
    /// Who caused them; `None`: several.
    pub(crate) owner: Option<Arc<EventOwner>>,
}

impl Missed {
    pub(crate) fn unnamed(count: u64, reason: DropReason) -> Missed {
        Missed { count, reason, owner: None }
    }
}

/// Adds dropped events to those that are counted already.
fn add_to(all: &mut Vec<Missed>, mut missed: Missed) {
    let is_known = |all: &[Missed], missed: &Missed| {
        all.iter().any(|of| of.reason == missed.reason && of.owner == missed.owner)
    };
    if all.len() >= NAMED_MAX && !is_known(all, &missed) {
        missed.owner = None;
    }
    let known = all.iter_mut().find(|of| of.reason == missed.reason && of.owner == missed.owner);
    match known {
        Some(known) => known.count += missed.count,
        None => all.push(missed),
    }
}

/// The events of one request. Each attempt sends the same body with the same key.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) key: Arc<str>,
    pub(crate) body: Arc<[u8]>,
    /// The span that has caused the first of its events that are traced.
    pub(crate) trace: Option<TraceContext>,
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

impl Default for OrderedQueue {
    fn default() -> OrderedQueue {
        OrderedQueue {
            entries: [FairQueue::new(TURN_BYTES), FairQueue::new(TURN_BYTES)],
            turn: OwnerKind::Session,
            missed: Vec::new(),
            batch: None,
            state: QueueState::Idle,
        }
    }
}

impl OrderedQueue {
    pub(crate) fn push(&mut self, flow: u64, (event, trace): TracedEvent) {
        let cost = u32::try_from(cost_bytes(&event)).unwrap_or(u32::MAX);
        self.of(flow).push_back(flow, cost, Entry { event, trace, missed: Vec::new() });
    }

    fn of(&mut self, flow: u64) -> &mut FairQueue<Entry> {
        &mut self.entries[OwnerKind::of_flow(flow) as usize]
    }

    /// Returns the bytes of the owner's events.
    pub(crate) fn bytes_of(&self, flow: u64) -> u64 {
        self.entries[OwnerKind::of_flow(flow) as usize].cost_of(flow)
    }

    /// Records that events of the owner were dropped after those in the queue.
    pub(crate) fn add_missed_of(&mut self, flow: u64, missed: Missed) {
        match self.of(flow).back_of_mut(flow) {
            Some(newest) => add_to(&mut newest.missed, missed),
            None => add_to(&mut self.missed, missed),
        }
    }

    /// Records that events were dropped; the next request begins with them.
    pub(crate) fn add_missed(&mut self, missed: Missed) {
        add_to(&mut self.missed, missed);
    }

    /// Drops the owner's newest event. Returns its bytes.
    pub(crate) fn drop_newest(&mut self, flow: u64, missed: Missed) -> Option<usize> {
        let dropped = self.of(flow).pop_back_of(flow)?;
        self.add_missed_of(flow, missed);
        dropped.missed.into_iter().for_each(|missed| self.add_missed_of(flow, missed));
        Some(cost_bytes(&dropped.event))
    }

    /// Returns whether there is an event to send. A `missed` event is never sent alone: a backend that rejects all
    /// requests would get such events endlessly.
    pub(crate) fn has_events(&self) -> bool {
        self.batch.is_some() || self.waiting() > 0
    }

    /// Returns the number of events that are queued or in flight.
    pub(crate) fn len(&self) -> u64 {
        self.waiting() + self.batch.as_ref().map_or(0, |batch| batch.events)
    }

    fn waiting(&self) -> u64 {
        self.entries.iter().map(|entries| entries.len() as u64).sum()
    }

    /// Returns the next event and the kind of its owner.
    fn next(&self) -> Option<(OwnerKind, &Entry)> {
        let front = |kind: OwnerKind| Some((kind, self.entries[kind as usize].front()?.1));
        front(self.turn).or_else(|| front(self.turn.other()))
    }

    /// Creates a request from the first events, at most `(events_max, bytes_max)`. `key` is its idempotency key, `missed` encodes
    /// a `missed` event, and `taken` gets the flow and the bytes of each event.
    pub(crate) fn compose(
        &mut self,
        (events_max, bytes_max): (u32, usize),
        key: impl FnOnce() -> String,
        mut missed: impl FnMut(&mut Vec<u8>, &Missed),
        mut taken: impl FnMut(u64, usize),
    ) {
        if self.waiting() == 0 {
            return;
        }
        let mut batch = Batch {
            key: "".into(),
            body: Arc::default(),
            trace: None,
            events: 0,
            missed: 0,
            cost_bytes: 0,
            attempts: 0,
            member: None,
        };
        let mut body = vec![b'['];
        let mut add_missed = |batch: &mut Batch, body: &mut Vec<u8>, all: Vec<Missed>| {
            for dropped in all {
                if body.len() > 1 {
                    body.push(b',');
                }
                missed(body, &dropped);
                batch.missed += dropped.count;
            }
        };
        add_missed(&mut batch, &mut body, std::mem::take(&mut self.missed));
        while let Some((kind, next)) = self.next() {
            let is_full = batch.events >= u64::from(events_max);
            if batch.events > 0 && (is_full || body.len() + next.event.len() > bytes_max) {
                break;
            }
            let Some((flow, entry)) = self.entries[kind as usize].pop_front() else { break };
            self.turn = kind.other();
            if body.len() > 1 {
                body.push(b',');
            }
            body.extend_from_slice(&entry.event);
            let cost = cost_bytes(&entry.event);
            taken(flow, cost);
            batch.trace = batch.trace.or(entry.trace);
            batch.events += 1;
            batch.cost_bytes += cost;
            add_missed(&mut batch, &mut body, entry.missed);
        }
        body.push(b']');
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
        self.add_missed(Missed::unnamed(batch.events + batch.missed, reason));
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Owner;

    fn event(text: &str) -> TracedEvent {
        (text.as_bytes().into(), None)
    }

    fn flow(user: &str) -> u64 {
        Owner::User(user).flow()
    }

    fn missed(user: &str, count: u64, reason: DropReason) -> Missed {
        Missed { count, reason, owner: Some(Arc::new(Owner::User(user).into())) }
    }

    fn compose(queue: &mut OrderedQueue, events_max: u32, bytes_max: usize) -> String {
        queue.compose(
            (events_max, bytes_max),
            || "key".into(),
            |out, missed| {
                let owner = missed.owner.as_ref().map_or(&b""[..], |owner| &owner.json);
                let owner = String::from_utf8_lossy(owner);
                let text = format!("{} {:?}{owner}", missed.count, missed.reason);
                out.extend_from_slice(text.as_bytes());
            },
            |_, _| {},
        );
        let body = queue.batch.as_ref().map_or(&[][..], |batch| &batch.body);
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[test]
    fn a_request_takes_events_in_order_up_to_its_bounds() {
        let mut queue = OrderedQueue::default();
        ["1", "22", "333", "4"].iter().for_each(|text| queue.push(flow("ada"), event(text)));
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
        queue.push(flow("ada"), event("1"));
        for _ in 0..1_000 {
            queue.add_missed_of(flow("ada"), missed("ada", 1, DropReason::QueueFull));
            queue.add_missed_of(flow("ada"), missed("ada", 2, DropReason::Overflow));
        }
        assert_eq!(
            compose(&mut queue, 9, 100),
            "[1,1000 QueueFull,\"user\":\"ada\",2000 Overflow,\"user\":\"ada\"]"
        );
        queue.delivered();
        for n in 0..1_000 {
            let user = n.to_string();
            queue.add_missed_of(flow(&user), missed(&user, 1, DropReason::QueueFull));
        }
        assert_eq!(queue.missed.len(), NAMED_MAX + 1, "the others are counted together");
        assert_eq!(queue.missed.iter().map(|missed| missed.count).sum::<u64>(), 1_000);
    }

    #[test]
    fn a_missed_event_stands_where_events_were_dropped_and_is_never_sent_alone() {
        let mut queue = OrderedQueue::default();
        queue.push(flow("ada"), event("1"));
        queue.add_missed_of(flow("ada"), missed("ada", 1, DropReason::QueueFull));
        queue.add_missed_of(flow("ada"), missed("ada", 1, DropReason::QueueFull));
        queue.push(flow("ada"), event("2"));
        assert_eq!(compose(&mut queue, 9, 100), "[1,2 QueueFull,\"user\":\"ada\",2]");
        assert_eq!(queue.drop_batch(DropReason::GivenUp).unwrap().events, 2);
        assert!(!queue.has_events());
        assert_eq!(compose(&mut queue, 9, 100), "", "never alone");
        queue.push(flow("ada"), event("3"));
        // The dropped request began with a `missed` event, whose count is included.
        assert_eq!(compose(&mut queue, 9, 100), "[4 GivenUp,3]");
    }

    #[test]
    fn dropped_newest_event_is_missed_after_the_one_before_it() {
        let mut queue = OrderedQueue::default();
        ["1", "2", "3"].iter().for_each(|text| queue.push(flow("ada"), event(text)));
        queue.push(flow("bob"), event("9"));
        queue.drop_newest(flow("ada"), missed("ada", 1, DropReason::QueueFull));
        queue.drop_newest(flow("ada"), missed("ada", 1, DropReason::QueueFull));
        queue.push(flow("ada"), event("4"));
        let body = compose(&mut queue, 9, 200);
        assert_eq!(body, "[1,2 QueueFull,\"user\":\"ada\",4,9]");
    }

    #[test]
    fn events_of_sessions_and_of_channels_alternate() {
        let mut queue = OrderedQueue::default();
        for n in 0..100 {
            queue.push(Owner::Channel(&n.to_string()).flow(), event("0"));
        }
        ["1", "2", "3"].iter().for_each(|text| queue.push(flow("ada"), event(text)));
        assert_eq!(compose(&mut queue, 6, 200), "[1,0,2,0,3,0]");
    }
}
