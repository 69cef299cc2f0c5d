//! What subscribers were sent and have not acknowledged, where a channel sends it again.
//!
//! Acknowledgements are cumulative, so that what is in flight to a subscriber is a range of offsets: those behind its cursor, up to
//! the last that it was sent.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Requests for deliveries that are under way at once, on one worker.
pub(crate) const REQUESTS_MAX: u32 = 1024;
/// Most messages that are read at once to be sent again.
pub(crate) const PAGE_MAX: u64 = 1_000;

/// The subscriptions of a worker whose messages come again.
#[derive(Default)]
pub(crate) struct InFlight {
    deliveries: HashMap<u32, Delivery, RandomState>,
    /// The subscriptions of each channel.
    channels: HashMap<u32, Vec<u32>, RandomState>,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// Requests under way.
    pub(crate) requests: u32,
}

/// What one subscriber was sent.
pub(crate) struct Delivery {
    /// The device of its cursor; empty where the cursor is the user's.
    pub(crate) device: Box<str>,
    /// Everything up to here is acknowledged.
    pub(crate) acked: u64,
    /// Everything up to here was sent.
    pub(crate) sent: u64,
    /// When what is in flight is sent again; `u64::MAX` if nothing is.
    pub(crate) due_ms: u64,
    /// Of the timer that is set.
    timer_ms: u64,
    /// It is sent nothing with the other subscribers: its window is full, or it is behind them.
    pub(crate) is_paused: bool,
    /// A request is under way.
    pub(crate) is_waiting: bool,
}

impl Delivery {
    pub(crate) fn new(device: Box<str>, acked: u64, sent: u64) -> Delivery {
        let (due_ms, timer_ms) = (u64::MAX, u64::MAX);
        Delivery { device, acked, sent, due_ms, timer_ms, is_paused: false, is_waiting: false }
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.sent.saturating_sub(self.acked)
    }

    /// Messages that it may be sent now, with this window (0: no window).
    pub(crate) fn room(&self, window: u32) -> u64 {
        match window {
            0 => PAGE_MAX,
            window => u64::from(window).saturating_sub(self.in_flight()),
        }
    }

    /// Its cursor stands here. Returns whether that is news.
    pub(crate) fn acknowledge(&mut self, offset: u64, due_ms: u64) -> bool {
        if offset <= self.acked {
            return false;
        }
        self.acked = offset;
        // Another device has read on for all.
        self.sent = self.sent.max(offset);
        self.due_ms = if self.in_flight() > 0 { due_ms } else { u64::MAX };
        true
    }
}

impl InFlight {
    pub(crate) fn is_empty(&self) -> bool {
        self.deliveries.is_empty()
    }

    pub(crate) fn insert(&mut self, channel: u32, subscription: u32, delivery: Delivery) {
        self.channels.entry(channel).or_default().push(subscription);
        self.deliveries.insert(subscription, delivery);
        self.set_timer(subscription);
    }

    pub(crate) fn remove(&mut self, channel: u32, subscription: u32) {
        if self.deliveries.remove(&subscription).is_none() {
            return;
        }
        if let Some(of) = self.channels.get_mut(&channel) {
            of.retain(|&at| at != subscription);
            if of.is_empty() {
                self.channels.remove(&channel);
            }
        }
        if self.deliveries.is_empty() {
            let requests = self.requests;
            *self = InFlight { requests, ..InFlight::default() };
        }
    }

    pub(crate) fn get_mut(&mut self, subscription: u32) -> Option<&mut Delivery> {
        self.deliveries.get_mut(&subscription)
    }

    /// The subscriptions of a channel.
    pub(crate) fn of_channel(&self, channel: u32) -> &[u32] {
        self.channels.get(&channel).map_or(&[], |of| of)
    }

    /// Subscriptions that are paused.
    pub(crate) fn paused(&self) -> usize {
        self.deliveries.values().filter(|of| of.is_paused).count()
    }

    /// Has [`poll_due`](Self::poll_due) return a subscription once it is due.
    pub(crate) fn set_timer(&mut self, subscription: u32) {
        let Some(of) = self.deliveries.get_mut(&subscription) else { return };
        if of.due_ms < of.timer_ms {
            of.timer_ms = of.due_ms;
            self.timers.push(Reverse((of.due_ms, subscription)));
        }
    }

    /// When one is due.
    pub(crate) fn due_ms(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse((due_ms, _))| *due_ms)
    }

    /// The next subscription that is due.
    pub(crate) fn poll_due(&mut self, now_ms: u64) -> Option<u32> {
        while let Some(&Reverse((timer_ms, subscription))) = self.timers.peek() {
            if timer_ms > now_ms {
                return None;
            }
            self.timers.pop();
            let Some(of) = self.deliveries.get_mut(&subscription) else { continue };
            if of.timer_ms != timer_ms {
                continue;
            }
            of.timer_ms = u64::MAX;
            if of.due_ms <= now_ms {
                return Some(subscription);
            }
            self.set_timer(subscription);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_is_due_once_and_no_earlier_than_it_was_put_off_to() {
        let mut in_flight = InFlight::default();
        let mut delivery = Delivery::new("".into(), 3, 5);
        delivery.due_ms = 100;
        in_flight.insert(7, 1, delivery);
        assert_eq!(in_flight.poll_due(99), None);
        let of = in_flight.get_mut(1).expect("inserted");
        assert!(of.acknowledge(4, 150) && !of.acknowledge(4, 200));
        assert_eq!((in_flight.poll_due(149), in_flight.poll_due(150)), (None, Some(1)));
        assert_eq!((in_flight.poll_due(1_000), in_flight.due_ms()), (None, None));
        in_flight.get_mut(1).expect("inserted").due_ms = 300;
        in_flight.set_timer(1);
        in_flight.remove(7, 1);
        assert_eq!((in_flight.poll_due(1_000), in_flight.is_empty()), (None, true));
    }

    #[test]
    fn delivery_of_an_idle_subscriber_is_small() {
        // With its entry in the table, its place in the list of its channel and that list.
        let entry = (size_of::<(u32, Delivery)>() + 1) * 8 / 7;
        assert!(entry <= 82, "{entry}");
    }
}
