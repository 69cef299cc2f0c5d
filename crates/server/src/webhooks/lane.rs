//! A lane of a hook: events in their order, and the request that is under way with the first of them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::spelling::Cause;

/// What an event in a queue takes beside its text.
const ENTRY_BYTES: usize = 64;

/// Events that keep their order among each other. At most one request of them is under way.
#[derive(Default)]
pub(crate) struct Lane {
    queue: VecDeque<Entry>,
    /// Events in the queue.
    events: u64,
    pub(crate) batch: Option<Batch>,
    pub(crate) state: State,
}

/// Where a lane stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// There is nothing to be sent.
    #[default]
    Idle,
    /// It waits for its turn.
    Ready,
    /// It waits for a member that can be asked.
    Parked,
    /// Its request is under way.
    InFlight,
    /// It waits for the time of its next attempt, in milliseconds.
    Resting(u64),
}

enum Entry {
    /// An event, spelled. Hooks share it.
    Event(Arc<[u8]>),
    /// Here so many are missing.
    Missed(u64, Cause),
}

/// Events of one request: sent again as they are, under the same key.
pub(crate) struct Batch {
    pub(crate) key: Arc<str>,
    pub(crate) body: Arc<[u8]>,
    pub(crate) events: u64,
    /// Events that it says are missing.
    missed: u64,
    /// Bytes it takes of the hook's queue.
    pub(crate) cost: usize,
    /// Times it was sent and counted.
    pub(crate) attempts: u32,
    /// Who was asked last.
    pub(crate) member: Option<Arc<str>>,
}

/// Bytes that an event takes of its hook's queue.
pub(crate) fn cost(event: &[u8]) -> usize {
    event.len() + ENTRY_BYTES
}

impl Lane {
    pub(crate) fn push(&mut self, event: Arc<[u8]>) {
        self.queue.push_back(Entry::Event(event));
        self.events += 1;
    }

    /// Events are missing behind those that wait.
    pub(crate) fn miss(&mut self, count: u64, cause: Cause) {
        let behind = self.queue.iter_mut().rev().map_while(|entry| match entry {
            Entry::Missed(so_far, cause) => Some((so_far, *cause)),
            Entry::Event(_) => None,
        });
        // One for each cause behind an event: causes that take turns while the queue is full take no room.
        match behind.into_iter().find(|(_, same)| *same == cause) {
            Some((so_far, _)) => *so_far += count,
            None => self.queue.push_back(Entry::Missed(count, cause)),
        }
    }

    /// Whether there is an event to be sent. That some are missing is not said alone: a backend that refuses
    /// everything would be told of it for ever.
    pub(crate) fn has_events(&self) -> bool {
        self.batch.is_some() || self.events > 0
    }

    /// Events that wait or are under way.
    pub(crate) fn len(&self) -> u64 {
        self.events + self.batch.as_ref().map_or(0, |batch| batch.events)
    }

    /// Puts the first events together into the body of a request. `missed` spells that some are missing, `key`
    /// names the request.
    pub(crate) fn compose(
        &mut self,
        events_max: u32,
        bytes_max: usize,
        key: impl FnOnce() -> String,
        mut missed: impl FnMut(&mut Vec<u8>, u64, Cause),
    ) {
        if self.events == 0 {
            return;
        }
        let mut batch = Batch {
            key: "".into(),
            body: Arc::default(),
            events: 0,
            missed: 0,
            cost: 0,
            attempts: 0,
            member: None,
        };
        let mut body = vec![b'['];
        while let Some(first) = self.queue.front() {
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
                    batch.cost += cost(event);
                }
                Entry::Missed(count, cause) => {
                    missed(&mut body, *count, *cause);
                    batch.missed += count;
                }
            }
            self.queue.pop_front();
        }
        body.push(b']');
        self.events -= batch.events;
        (batch.key, batch.body) = (key().into(), body.into());
        self.batch = Some(batch);
    }

    /// Its request has reached the backend.
    pub(crate) fn delivered(&mut self) -> Option<Batch> {
        self.batch.take()
    }

    /// Its request is given up; the next says so.
    pub(crate) fn drop_batch(&mut self, cause: Cause) -> Option<Batch> {
        let batch = self.batch.take()?;
        let gone = batch.events + batch.missed;
        match self.queue.front_mut() {
            Some(Entry::Missed(count, same)) if *same == cause => *count += gone,
            _ => self.queue.push_front(Entry::Missed(gone, cause)),
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

    fn compose(lane: &mut Lane, events_max: u32, bytes_max: usize) -> String {
        lane.compose(
            events_max,
            bytes_max,
            || "key".into(),
            |out, count, cause| {
                out.extend_from_slice(format!("{count} {cause:?}").as_bytes());
            },
        );
        let body = lane.batch.as_ref().map_or(&[][..], |batch| &batch.body);
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[test]
    fn a_request_takes_events_in_order_up_to_its_bounds() {
        let mut lane = Lane::default();
        ["1", "22", "333", "4"].iter().for_each(|text| lane.push(event(text)));
        assert_eq!(compose(&mut lane, 2, 100), "[1,22]");
        assert_eq!((lane.len(), lane.delivered().unwrap().cost), (4, 3 + 2 * ENTRY_BYTES));
        assert_eq!(compose(&mut lane, 9, 4), "[333]", "the bytes are bounded");
        lane.delivered();
        assert_eq!(compose(&mut lane, 9, 1), "[4]", "what is larger has a request to itself");
        lane.delivered();
        assert!(!lane.has_events());
    }

    #[test]
    fn causes_that_take_turns_while_the_queue_is_full_take_no_room() {
        let mut lane = Lane::default();
        lane.push(event("1"));
        for _ in 0..1_000 {
            lane.miss(1, Cause::QueueFull);
            lane.miss(2, Cause::Overflow);
        }
        assert_eq!(lane.queue.len(), 3);
        assert_eq!(compose(&mut lane, 9, 100), "[1,1000 QueueFull,2000 Overflow]");
    }

    #[test]
    fn what_is_missing_is_said_where_it_is_missing_and_never_alone() {
        let mut lane = Lane::default();
        lane.push(event("1"));
        lane.miss(1, Cause::QueueFull);
        lane.miss(1, Cause::QueueFull);
        lane.push(event("2"));
        assert_eq!(compose(&mut lane, 9, 100), "[1,2 QueueFull,2]");
        assert_eq!(lane.drop_batch(Cause::GivenUp).unwrap().events, 2);
        assert!(!lane.has_events());
        assert_eq!(compose(&mut lane, 9, 100), "", "nobody is told that and nothing else");
        lane.push(event("3"));
        // What was missing before is missing with what said so.
        assert_eq!(compose(&mut lane, 9, 100), "[4 GivenUp,3]");
    }
}
