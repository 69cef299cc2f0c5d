//! A set of workers.

/// Bit per worker; two words rather than one `u128`, whose alignment would pad every record.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct WorkerSet([u64; 2]);

impl WorkerSet {
    pub(crate) fn insert(&mut self, worker: u8) -> bool {
        let added = !self.contains(worker);
        self.0[usize::from(worker >> 6)] |= 1 << (worker & 63);
        added
    }

    pub(crate) fn remove(&mut self, worker: u8) -> bool {
        let removed = self.contains(worker);
        self.0[usize::from(worker >> 6)] &= !(1 << (worker & 63));
        removed
    }

    pub(crate) fn contains(self, worker: u8) -> bool {
        self.0[usize::from(worker >> 6)] & 1 << (worker & 63) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == [0, 0]
    }

    pub(crate) fn first(self) -> Option<u8> {
        match self.0 {
            [0, 0] => None,
            [0, high] => Some(64 + high.trailing_zeros() as u8),
            [low, _] => Some(low.trailing_zeros() as u8),
        }
    }

    /// The members that are not in `other`.
    pub(crate) fn without(self, other: Self) -> Self {
        Self([self.0[0] & !other.0[0], self.0[1] & !other.0[1]])
    }

    pub(crate) fn iter(mut self) -> impl Iterator<Item = u8> {
        std::iter::from_fn(move || {
            let worker = self.first()?;
            self.remove(worker);
            Some(worker)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_in_order_across_both_words() {
        let mut set = WorkerSet::default();
        for worker in [127, 0, 64, 63] {
            assert!(set.insert(worker));
            assert!(!set.insert(worker));
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 127]);
        assert!(set.remove(63) && !set.remove(63) && !set.contains(63));
        let mut other = WorkerSet::default();
        other.insert(64);
        assert_eq!(set.without(other).iter().collect::<Vec<_>>(), [0, 127]);
    }
}
