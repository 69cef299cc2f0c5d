//! Who holds too much of the bytes that are held for connections.
//!
//! They are counted in all as they come, by address only when there is something to be judged: a look at all connections
//! costs milliseconds where there are a million, and follows no sooner than so many bytes more as it is worth.

use std::cmp::Reverse;

use dunlin_net::ConnId;

use super::FastMap;
use crate::limits::admission::CountedAddress;

/// Judges by address what connections hold.
#[derive(Debug, Default)]
pub(crate) struct BufferGate {
    bytes_max: usize,
    per_address_max: usize,
    /// How many bytes in all make the next look due.
    due_bytes: usize,
}

/// A connection that bytes are held for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferHolder {
    pub(crate) conn: ConnId,
    pub(crate) bytes: usize,
    /// `None`: it was never looked up.
    pub(crate) address: Option<CountedAddress>,
}

impl BufferGate {
    pub(crate) fn set_limits(&mut self, bytes_max: usize, per_address_max: usize) {
        (self.bytes_max, self.per_address_max) = (bytes_max, per_address_max);
        self.due_bytes = per_address_max.min(self.high());
    }

    /// Beyond so many bytes in all, those with the most lose some.
    fn high(&self) -> usize {
        self.bytes_max / 8 * 7
    }

    /// Whether somebody may hold too much.
    pub(crate) fn is_due(&self, bytes: usize) -> bool {
        bytes > self.due_bytes
    }

    /// Says whose connections are to be closed, the largest first, so that no address holds more than its share, and all
    /// together three quarters of what they may.
    pub(crate) fn evict(&mut self, mut holders: Vec<BufferHolder>) -> Vec<ConnId> {
        let mut held: FastMap<Option<CountedAddress>, usize> = FastMap::default();
        for holder in &holders {
            *held.entry(holder.address).or_default() += holder.bytes;
        }
        let total: usize = held.values().sum();
        let mut share = self.per_address_max;
        if total > self.high() {
            share = share.min(level(held.values().copied().collect(), self.bytes_max / 4 * 3));
        }
        holders.sort_unstable_by_key(|holder| Reverse(holder.bytes));
        let mut left = total;
        let evicted = holders.iter().filter(|holder| {
            let of_address = held.entry(holder.address).or_default();
            let is_over = *of_address > share;
            if is_over {
                *of_address -= holder.bytes;
                left -= holder.bytes;
            }
            is_over
        });
        let evicted = evicted.map(|holder| holder.conn).collect();
        self.look_again(left);
        evicted
    }

    /// Some time has passed; so much is held now.
    pub(crate) fn handle_second(&mut self, bytes: usize) {
        let due_bytes = self.due_bytes;
        self.look_again(bytes);
        self.due_bytes = self.due_bytes.min(due_bytes);
    }

    fn look_again(&mut self, bytes: usize) {
        let step = self.per_address_max / 4;
        self.due_bytes =
            (bytes + step).max(self.per_address_max).min(self.high().max(bytes + step / 4));
    }
}

/// The most that each may keep so that all together have no more than `total`.
fn level(mut held: Vec<usize>, total: usize) -> usize {
    held.sort_unstable();
    let (mut left, mut others) = (total, held.len());
    for bytes in held {
        let share = left / others;
        if bytes > share {
            return share;
        }
        left -= bytes;
        others -= 1;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(conn: u64, address: u32, bytes: usize) -> BufferHolder {
        let address = Some(CountedAddress::of(std::net::Ipv4Addr::from_bits(address).into(), 64));
        BufferHolder { conn: ConnId::from_u64(conn), bytes, address }
    }

    fn evicted(gate: &mut BufferGate, holders: &[BufferHolder]) -> Vec<u64> {
        gate.evict(holders.to_vec()).into_iter().map(ConnId::to_u64).collect()
    }

    #[test]
    fn an_address_beyond_its_share_loses_its_largest_and_nobody_else_does() {
        let mut gate = BufferGate::default();
        gate.set_limits(1000, 100);
        assert!(!gate.is_due(100) && gate.is_due(101));
        let holders = [
            holder(1, 1, 40),
            holder(2, 1, 30),
            holder(3, 1, 50),
            holder(4, 2, 99),
            holder(5, 3, 1),
        ];
        assert_eq!(evicted(&mut gate, &holders), [3]);
        assert!(!gate.is_due(190), "a look at all is not worth it yet");
        gate.handle_second(10);
        assert!(gate.is_due(101));
    }

    #[test]
    fn when_all_hold_too_much_those_with_the_most_lose_it() {
        let mut gate = BufferGate::default();
        gate.set_limits(1000, 900);
        let mut holders = vec![holder(100, 1, 400), holder(101, 1, 200), holder(102, 2, 200)];
        holders.extend((0..10).map(|at| holder(at, 10 + at as u32, 10)));
        assert_eq!(evicted(&mut gate, &holders), [100], "750 in all are left 500");
        assert_eq!(level(vec![10, 20, 600], 300), 270);
        assert_eq!(level(vec![10, 20], 300), usize::MAX);
    }

    #[test]
    fn the_next_look_is_always_due_before_there_is_no_room() {
        let mut gate = BufferGate::default();
        gate.set_limits(1000, 100);
        for bytes in 0..1000 {
            gate.look_again(bytes);
            assert!(gate.due_bytes > bytes && gate.due_bytes <= bytes.max(900) + 25, "{bytes}");
        }
    }
}
