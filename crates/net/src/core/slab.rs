//! The connection slab: records in chunks that never move, with a free list.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::core::connection::{Conn, ConnId, Phase};
use crate::core::wheel::{TimerLink, TimerLinks};

/// Records per chunk. Growth costs one allocation per chunk and copies nothing.
const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 10;
/// Bits of an index. A loop has 16,777,216 connections at most; [`RequestId`](crate::http::RequestId) uses the bits above.
pub(crate) const INDEX_BITS: u32 = 24;
/// The largest index. Larger ones are used for tokens of other event sources.
pub(crate) const INDEX_MAX: u32 = (1 << INDEX_BITS) - 1;

#[derive(Debug)]
pub(crate) struct Slab<D> {
    chunks: Vec<Box<[Conn<D>]>>,
    /// Free records, the most recently freed last, because it is still in the cache.
    free: Vec<u32>,
    /// Number of records used at least once.
    touched: u32,
    len: usize,
    /// The first generation of each record.
    first_generation: u32,
}

/// Spreads the generations of loops: those of any two are far apart, so that an id of one loop is stale in all others.
fn first_generation() -> u32 {
    static LOOPS: AtomicU32 = AtomicU32::new(0);
    // 2^32 divided by the golden ratio: its multiples fill the circle evenly.
    LOOPS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9).wrapping_add(1).max(1)
}

impl<D: Default> Slab<D> {
    pub(crate) fn new() -> Slab<D> {
        let first_generation = first_generation();
        Slab { chunks: Vec::new(), free: Vec::new(), touched: 0, len: 0, first_generation }
    }

    /// Returns the number of allocated records.
    pub(crate) fn capacity(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// Returns a free record, which the caller opens.
    pub(crate) fn reserve(&mut self) -> ConnId {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = self.touched;
                assert!(index < INDEX_MAX, "descriptors run out long before indexes");
                if index as usize == self.capacity() {
                    let first = self.first_generation;
                    self.chunks.push((0..CHUNK).map(|_| Conn::free(first)).collect());
                }
                self.touched += 1;
                index
            }
        };
        self.len += 1;
        ConnId::new(index, self.at(index).generation)
    }

    /// Frees a record; see [`Conn::vacate`].
    pub(crate) fn release(&mut self, index: u32) {
        self.at_mut(index).vacate();
        self.free.push(index);
        self.len -= 1;
    }
}

impl<D> Slab<D> {
    /// Returns the number of records in use.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the record, unless the id is stale.
    #[inline]
    pub(crate) fn get(&self, id: ConnId) -> Option<&Conn<D>> {
        let chunk = self.chunks.get((id.index() >> CHUNK_BITS) as usize)?;
        let conn = &chunk[id.index() as usize & (CHUNK - 1)];
        (conn.generation == id.generation() && conn.phase != Phase::Free).then_some(conn)
    }

    /// Returns the record, unless the id is stale.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn<D>> {
        let chunk = self.chunks.get_mut((id.index() >> CHUNK_BITS) as usize)?;
        let conn = &mut chunk[id.index() as usize & (CHUNK - 1)];
        (conn.generation == id.generation() && conn.phase != Phase::Free).then_some(conn)
    }

    pub(crate) fn at(&self, index: u32) -> &Conn<D> {
        &self.chunks[(index >> CHUNK_BITS) as usize][index as usize & (CHUNK - 1)]
    }

    pub(crate) fn at_mut(&mut self, index: u32) -> &mut Conn<D> {
        &mut self.chunks[(index >> CHUNK_BITS) as usize][index as usize & (CHUNK - 1)]
    }

    /// Returns the first id in use with at least this index.
    pub(crate) fn next_from(&self, index: u32) -> Option<ConnId> {
        (index..self.touched).find_map(|index| {
            let conn = self.at(index);
            (conn.phase != Phase::Free).then(|| ConnId::new(index, conn.generation))
        })
    }

    /// Iterates over the ids in use, in the order of their records.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnId> + '_ {
        (0..self.touched).filter_map(|index| {
            let conn = self.at(index);
            (conn.phase != Phase::Free).then(|| ConnId::new(index, conn.generation))
        })
    }
}

impl<D> TimerLinks for Slab<D> {
    fn link(&self, index: u32) -> &TimerLink {
        &self.at(index).link
    }

    fn link_mut(&mut self, index: u32) -> &mut TimerLink {
        &mut self.at_mut(index).link
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::core::upper::{Protocol, Spoken};

    fn descriptor() -> OwnedFd {
        std::fs::File::open("/dev/null").expect("/dev/null").into()
    }

    #[test]
    fn id_of_another_loop_is_stale() {
        let mut slabs: [Slab<u32>; 3] = [Slab::new(), Slab::new(), Slab::new()];
        let ids = slabs.each_mut().map(|slab| {
            let id = slab.reserve();
            slab.at_mut(id.index()).open(Some(descriptor()), Protocol::RAW, 0, Phase::Open);
            id
        });
        for (of, slab) in slabs.iter().enumerate() {
            for (at, &id) in ids.iter().enumerate() {
                assert_eq!(slab.get(id).is_some(), of == at);
            }
        }
    }

    #[test]
    fn an_id_kept_too_long_is_recognised() {
        let mut slab: Slab<u32> = Slab::new();
        let first = slab.reserve();
        slab.at_mut(first.index()).open(Some(descriptor()), Protocol::RAW, 0, Phase::Open);
        assert!(slab.get(first).is_some());

        slab.release(first.index());
        assert!(slab.get(first).is_none(), "freed");

        let second = slab.reserve();
        slab.at_mut(second.index()).open(Some(descriptor()), Protocol::RAW, 0, Phase::Open);
        assert_eq!(second.index(), first.index(), "the record is used again");
        assert!(slab.get(first).is_none(), "but not for the old id");
        assert_eq!(slab.ids().collect::<Vec<_>>(), [second]);
    }

    #[test]
    fn a_slab_grows_by_chunks_and_reuses_what_is_free() {
        let mut slab: Slab<u32> = Slab::new();
        let ids: Vec<ConnId> = (0..CHUNK + 1).map(|_| slab.reserve()).collect();
        assert_eq!((slab.len(), slab.capacity()), (CHUNK + 1, 2 * CHUNK));
        for id in &ids {
            slab.release(id.index());
        }
        for _ in &ids {
            slab.reserve();
        }
        assert_eq!((slab.len(), slab.capacity()), (CHUNK + 1, 2 * CHUNK));
    }
}
