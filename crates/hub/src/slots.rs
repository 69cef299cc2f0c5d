//! Records in chunks, addressed by index, never moved.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

const CHUNK_BITS: u32 = 9;
const CHUNK: usize = 1 << CHUNK_BITS;

/// "No record", in fields that hold an index.
pub(crate) const NONE: u32 = u32::MAX;

/// A table of `T`, grown a chunk at a time so that a million records are never copied at once. A
/// vacant slot holds `T::default()`.
pub(crate) struct Slots<T> {
    chunks: Vec<Box<[T; CHUNK]>>,
    free: VecDeque<u32>,
    /// Slots below this have been used.
    touched: u32,
    /// Minimum number of vacant slots before one is reused: a reused index comes late, so that the
    /// generation beside it lasts.
    quarantine: usize,
}

impl<T: Default> Slots<T> {
    pub(crate) const fn new(quarantine: usize) -> Self {
        Self { chunks: Vec::new(), free: VecDeque::new(), touched: 0, quarantine }
    }

    /// Occupied slots.
    pub(crate) fn len(&self) -> u32 {
        self.touched - self.free.len() as u32
    }

    /// Occupies a vacant slot below `max` with its former content; `None` when there is none.
    pub(crate) fn occupy(&mut self, max: u32) -> Option<u32> {
        let grown = self.touched >= max;
        if self.free.len() > self.quarantine || grown {
            // The oldest vacancy where stale indices must be recognised, else the most recent one,
            // which is likely still in the cache.
            let vacancy =
                if self.quarantine > 0 { self.free.pop_front() } else { self.free.pop_back() };
            if vacancy.is_some() || grown {
                return vacancy;
            }
        }
        Some(self.grow())
    }

    /// Puts `value` into a vacant slot below `max`; returns it when there is none.
    pub(crate) fn insert(&mut self, value: T, max: u32) -> Result<u32, T> {
        let Some(index) = self.occupy(max) else { return Err(value) };
        self[index] = value;
        Ok(index)
    }

    /// Empties a slot.
    pub(crate) fn remove(&mut self, index: u32) -> T {
        self.vacate(index);
        std::mem::take(&mut self[index])
    }

    /// Vacates a slot and leaves its content.
    pub(crate) fn vacate(&mut self, index: u32) {
        self.free.push_back(index);
    }

    /// All slots ever used, vacant ones included.
    pub(crate) fn indices(&self) -> std::ops::Range<u32> {
        0..self.touched
    }

    fn grow(&mut self) -> u32 {
        let index = self.touched;
        if index as usize == self.chunks.len() << CHUNK_BITS {
            let chunk: Vec<T> = std::iter::repeat_with(T::default).take(CHUNK).collect();
            let Ok(chunk) = chunk.into_boxed_slice().try_into() else {
                unreachable!("the chunk was made with CHUNK records")
            };
            self.chunks.push(chunk);
        }
        self.touched += 1;
        index
    }
}

impl<T> Slots<T> {
    /// The record at an index that may never have been used.
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        (index < self.touched).then(|| &self[index])
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.chunks[(index >> CHUNK_BITS) as usize][index as usize & (CHUNK - 1)]
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.chunks[(index >> CHUNK_BITS) as usize][index as usize & (CHUNK - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarantined_slot_comes_back_last() {
        let mut slots = Slots::new(2);
        let first: Vec<u32> = (0..4u8).map(|n| slots.insert(n, 4).expect("room")).collect();
        assert_eq!(first, [0, 1, 2, 3]);
        assert_eq!(slots.insert(9, 4), Err(9), "full");
        slots.remove(2);
        slots.remove(0);
        assert_eq!(slots.insert(9, 4), Ok(2), "full but for vacancies: the oldest one");
        assert_eq!(slots.insert(9, 5), Ok(4), "too few vacancies: a fresh slot");
        assert_eq!(slots.len(), 4);
    }

    #[test]
    fn without_quarantine_the_warm_slot_comes_back_first() {
        let mut slots = Slots::new(0);
        for n in 0..1500u32 {
            assert_eq!(slots.insert(n, NONE), Ok(n));
        }
        slots.remove(3);
        slots.remove(1400);
        assert_eq!(slots.insert(7, NONE), Ok(1400));
        assert_eq!((slots[1400], slots[1399], slots.len()), (7, 1399, 1499));
    }
}
