//! Memory for the filters of subscriptions, divided among users and namespaces.
//!
//! A filter cannot be evicted, so what is full stays full. Therefore a user, or a namespace, may only hold so much in
//! relation to what is left: however many have come, the next one finds room (A. K. Choudhury and E. L. Hahne, "Dynamic
//! queue length thresholds").

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::error::Error;
use crate::shares::Owner;

/// An owner may hold one part in this many of what is left: alone, a ninth of all.
const OWNER_PART: usize = 8;
/// A namespace may hold this many times what is left: alone, four fifths of all.
const NAMESPACE_TIMES: usize = 4;

/// Whose a filter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilterOwner {
    pub(crate) owner: Owner,
    /// Index of the channel's namespace.
    pub(crate) namespace: u32,
}

/// The memory of all filters of a worker.
#[derive(Debug, Default)]
pub(crate) struct FilterShares {
    bytes: usize,
    by_owner: HashMap<Owner, usize, RandomState>,
    by_namespace: HashMap<u32, usize, RandomState>,
}

impl FilterShares {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Checks that a filter of so many bytes has room.
    ///
    /// # Errors
    ///
    /// [`Error::FiltersFull`] while others or its owner hold too much, [`Error::LimitExceeded`] for a filter that never has room.
    pub(crate) fn check(
        &self,
        of: FilterOwner,
        bytes: usize,
        bytes_max: usize,
    ) -> Result<(), Error> {
        let fits = |used: usize, own: usize, in_namespace: usize| {
            let left = bytes_max.saturating_sub(used + bytes);
            (own + bytes).saturating_mul(OWNER_PART) <= left
                && in_namespace + bytes <= left.saturating_mul(NAMESPACE_TIMES)
        };
        let own = self.by_owner.get(&of.owner).copied().unwrap_or(0);
        let in_namespace = self.by_namespace.get(&of.namespace).copied().unwrap_or(0);
        match fits(self.bytes, own, in_namespace) {
            true => Ok(()),
            false if fits(0, 0, 0) => Err(Error::FiltersFull),
            false => Err(Error::LimitExceeded),
        }
    }

    pub(crate) fn add(&mut self, of: FilterOwner, bytes: usize) {
        if bytes > 0 {
            self.bytes += bytes;
            *self.by_owner.entry(of.owner).or_default() += bytes;
            *self.by_namespace.entry(of.namespace).or_default() += bytes;
        }
    }

    pub(crate) fn remove(&mut self, of: FilterOwner, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        reduce(self.by_owner.entry(of.owner), bytes);
        reduce(self.by_namespace.entry(of.namespace), bytes);
        if self.bytes == 0 {
            *self = Self::default();
        }
    }
}

fn reduce<K>(entry: Entry<'_, K, usize, RandomState>, bytes: usize) {
    if let Entry::Occupied(mut held) = entry {
        *held.get_mut() = held.get().saturating_sub(bytes);
        if *held.get() == 0 {
            held.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 900_000;

    /// Takes as much as there is for an owner, in filters of 1,000 bytes.
    fn fill(shares: &mut FilterShares, owner: u32, namespace: u32) -> usize {
        let of = FilterOwner { owner: Owner(owner), namespace };
        let mut taken = 0;
        while shares.check(of, 1_000, MAX).is_ok() {
            shares.add(of, 1_000);
            taken += 1_000;
        }
        assert_eq!(shares.check(of, 1_000, MAX), Err(Error::FiltersFull));
        taken
    }

    #[test]
    fn owner_takes_a_ninth_and_the_next_ones_find_room() {
        let mut shares = FilterShares::default();
        assert_eq!(fill(&mut shares, 1, 0), 100_000);
        let second = fill(&mut shares, 2, 0);
        assert!((85_000..=90_000).contains(&second), "{second}");
        for owner in 3..13 {
            assert!(fill(&mut shares, owner, 0) >= 20_000, "{owner}");
        }
        let one = FilterOwner { owner: Owner(1), namespace: 0 };
        shares.remove(one, 100_000);
        assert!(shares.check(one, 1_000, MAX).is_ok(), "what was given up is free");
    }

    #[test]
    fn namespace_leaves_a_fifth_to_the_others() {
        let mut shares = FilterShares::default();
        let taken: usize = (1..100).map(|owner| fill(&mut shares, owner, 0)).sum();
        assert!((700_000..=720_000).contains(&taken), "{taken}");
        assert!(fill(&mut shares, 200, 1) >= 15_000);
    }

    #[test]
    fn filter_that_never_has_room_is_refused_for_good() {
        let shares = FilterShares::default();
        let of = FilterOwner { owner: Owner(1), namespace: 0 };
        assert_eq!(shares.check(of, MAX / 8, MAX), Err(Error::LimitExceeded));
        assert_eq!(shares.check(of, MAX / 9, MAX), Ok(()));
    }
}
