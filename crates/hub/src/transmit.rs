//! What waits for other workers.

use std::collections::VecDeque;

use crate::message::{HubMessage, HubMessageKind};
use crate::worker_set::WorkerSet;

/// A queue per other worker, first in, first out, even if its ring is full.
///
/// Bounded in bytes: publications, requests and replies that carry data are admitted only while
/// there is room ([`TransmitQueues::has_room`]). What is always admitted is small and bounded by other
/// state: an unsubscription follows an admitted subscription, a gap ends a worker's interest, a
/// reply without data follows a request.
pub(crate) struct TransmitQueues {
    edges: Box<[Edge]>,
    /// Workers with something queued.
    waiting: WorkerSet,
    /// Workers whose ring refused since all queues were last tried.
    refused: WorkerSet,
    bytes_max: usize,
    bytes: usize,
    incarnation: u32,
}

#[derive(Default)]
struct Edge {
    queue: VecDeque<HubMessage>,
    bytes: usize,
}

impl TransmitQueues {
    pub(crate) fn new(workers: u8, incarnation: u32, bytes_max: usize) -> Self {
        Self {
            edges: (0..workers).map(|_| Edge::default()).collect(),
            waiting: WorkerSet::default(),
            refused: WorkerSet::default(),
            bytes_max,
            bytes: 0,
            incarnation,
        }
    }

    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// True when something waits that could not be handed over.
    pub(crate) fn is_backlogged(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// True when another `cost` bytes may wait for `to`. An empty queue takes anything.
    pub(crate) fn has_room(&self, to: u8, cost: usize) -> bool {
        let edge = &self.edges[usize::from(to)];
        edge.bytes == 0 || edge.bytes + cost <= self.bytes_max
    }

    pub(crate) fn push(&mut self, to: u8, kind: HubMessageKind) {
        let cost = kind.cost();
        let edge = &mut self.edges[usize::from(to)];
        edge.queue.push_back(HubMessage { incarnation: self.incarnation, kind });
        edge.bytes += cost;
        self.bytes += cost;
        self.waiting.insert(to);
    }

    /// The next message, of any worker whose ring has not refused one in this round; `None` ends
    /// the round.
    pub(crate) fn pop(&mut self) -> Option<(u8, HubMessage)> {
        let Some(to) = self.waiting.without(self.refused).first() else {
            self.refused = WorkerSet::default();
            return None;
        };
        let edge = &mut self.edges[usize::from(to)];
        let message = edge.queue.pop_front()?;
        let cost = message.kind.cost();
        edge.bytes -= cost;
        self.bytes -= cost;
        if edge.queue.is_empty() {
            self.waiting.remove(to);
            edge.queue.shrink_to(64);
        }
        Some((to, message))
    }

    /// Takes back what the ring refused, to be the next again.
    pub(crate) fn unpop(&mut self, to: u8, message: HubMessage) {
        let cost = message.kind.cost();
        let edge = &mut self.edges[usize::from(to)];
        edge.queue.push_front(message);
        edge.bytes += cost;
        self.bytes += cost;
        self.waiting.insert(to);
        self.refused.insert(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_message_stays_first_and_does_not_hold_up_other_workers() {
        let mut transmit = TransmitQueues::new(3, 0, 1000);
        for (to, incarnation) in [(1, 10), (2, 20), (1, 11)] {
            transmit.incarnation = incarnation;
            transmit.push(to, HubMessageKind::Restarted);
        }
        let (to, first) = transmit.pop().expect("queued");
        assert_eq!((to, first.incarnation), (1, 10));
        transmit.unpop(to, first);
        assert_eq!(transmit.pop().map(|(to, m)| (to, m.incarnation)), Some((2, 20)));
        assert!(transmit.pop().is_none(), "the round is over");
        assert!(transmit.is_backlogged());
        let rest: Vec<u32> =
            std::iter::from_fn(|| transmit.pop()).map(|(_, m)| m.incarnation).collect();
        assert_eq!(rest, [10, 11], "the next round tries again, in order");
        assert_eq!((transmit.bytes(), transmit.is_backlogged()), (0, false));
    }
}
