//! Records ordered by a number of each, with the largest first.

use crate::slots::NONE;

/// Where the records keep their place in a ranking.
pub(crate) trait Places {
    /// The place of a record, [`NONE`] outside the ranking.
    fn place(&mut self, of: u32) -> &mut u32;
}

impl Places for Vec<u32> {
    fn place(&mut self, of: u32) -> &mut u32 {
        &mut self[of as usize]
    }
}

/// A binary heap whose records know their place in it: a change is found at once, and most are small and move nothing.
#[derive(Debug)]
pub(crate) struct Ranking<N> {
    /// Numbers with their records. No parent's number is below a child's.
    heap: Vec<(N, u32)>,
}

impl<N> Default for Ranking<N> {
    fn default() -> Self {
        Self { heap: Vec::new() }
    }
}

impl<N: Copy + Ord> Ranking<N> {
    /// The record with the largest number.
    pub(crate) fn first(&self) -> Option<(N, u32)> {
        self.heap.first().copied()
    }

    /// The second largest number.
    pub(crate) fn second(&self) -> Option<N> {
        self.heap.iter().skip(1).take(2).map(|&(number, _)| number).max()
    }

    /// Sets the number of a record, which is added if it is new.
    pub(crate) fn set(&mut self, of: u32, number: N, places: &mut impl Places) {
        let at = match *places.place(of) {
            NONE => {
                self.heap.push((number, of));
                self.heap.len() - 1
            }
            at => at as usize,
        };
        self.heap[at].0 = number;
        self.settle(at, places);
    }

    /// Removes a record, if it is there.
    pub(crate) fn remove(&mut self, of: u32, places: &mut impl Places) {
        let at = std::mem::replace(places.place(of), NONE);
        if at == NONE {
            return;
        }
        self.heap.swap_remove(at as usize);
        if (at as usize) < self.heap.len() {
            self.settle(at as usize, places);
        }
        if self.heap.len() * 4 <= self.heap.capacity() {
            self.heap.shrink_to(self.heap.len() * 2);
        }
    }

    /// Moves the record at a place to where its number belongs.
    fn settle(&mut self, mut at: usize, places: &mut impl Places) {
        while at > 0 && self.heap[(at - 1) / 2].0 < self.heap[at].0 {
            at = self.swap(at, (at - 1) / 2, places);
        }
        while let Some(larger) =
            (2 * at + 1..self.heap.len().min(2 * at + 3)).max_by_key(|&child| self.heap[child].0)
            && self.heap[larger].0 > self.heap[at].0
        {
            at = self.swap(at, larger, places);
        }
        *places.place(self.heap[at].1) = at as u32;
    }

    /// Exchanges two places; returns the second.
    fn swap(&mut self, one: usize, other: usize, places: &mut impl Places) -> usize {
        self.heap.swap(one, other);
        *places.place(self.heap[one].1) = one as u32;
        other
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_largest_of_all_is_known_whatever_changes(
            changes in proptest::collection::vec((0..40_u32, proptest::option::of(0..50_usize)), 1..300)
        ) {
            let mut ranking = Ranking::default();
            let (mut numbers, mut places) = ([None; 40], vec![NONE; 40]);
            for (of, number) in changes {
                numbers[of as usize] = number;
                match number {
                    Some(number) => ranking.set(of, number, &mut places),
                    None => ranking.remove(of, &mut places),
                }
                let mut sorted: Vec<usize> = numbers.iter().copied().flatten().collect();
                sorted.sort_unstable_by(|one, other| other.cmp(one));
                let first = ranking.first();
                prop_assert_eq!(first.map(|(number, _)| number), sorted.first().copied());
                prop_assert_eq!(first.and_then(|(_, of)| numbers[of as usize]), sorted.first().copied());
                prop_assert_eq!(ranking.second(), sorted.get(1).copied());
            }
        }
    }
}
