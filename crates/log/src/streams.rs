//! Every stream of a log in memory: 24 bytes each, in tables that are four fifths full on average.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

const SHARDS: usize = 1 << 12;
const TAG_BITS: u32 = 56;

/// What stands for a stream's name: 68 bits of a keyed hash. That two of 100 million names share it is as likely as
/// 1 in 30,000, and nobody who does not know the key can search for such names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NameHash {
    shard: u16,
    tag: u64,
}

impl NameHash {
    pub(crate) const BYTES: usize = 9;

    pub(crate) fn new(key: &[u8; 16], name: &str) -> NameHash {
        let mut hasher = SipHasher13::new_with_key(key);
        hasher.write(name.as_bytes());
        let hash = hasher.finish128();
        NameHash { shard: (hash.h2 as usize % SHARDS) as u16, tag: hash.h1 & ((1 << TAG_BITS) - 1) }
    }

    pub(crate) fn to_bytes(self) -> [u8; NameHash::BYTES] {
        let mut bytes = [0; NameHash::BYTES];
        bytes[..7].copy_from_slice(&self.tag.to_le_bytes()[..7]);
        bytes[7..].copy_from_slice(&self.shard.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> NameHash {
        let shard = crate::record::number(bytes, 7, 2) as usize % SHARDS;
        NameHash { shard: shard as u16, tag: crate::record::number(bytes, 0, 7) }
    }
}

/// A stream as it is kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) id: u64,
    /// Offset of its last record.
    pub(crate) top: u64,
    /// Position of its last record; never 0.
    pub(crate) position: u64,
}

/// The tag, and the stream: 7, 5, 5 and 7 bytes. A position of 0 is an empty cell.
#[derive(Clone, Copy)]
struct Cell([u8; 24]);

impl Cell {
    const EMPTY: Cell = Cell([0; 24]);

    fn new(tag: u64, stream: &Stream) -> Cell {
        let mut cell = [0; 24];
        cell[..7].copy_from_slice(&tag.to_le_bytes()[..7]);
        cell[7..12].copy_from_slice(&stream.id.to_le_bytes()[..5]);
        cell[12..17].copy_from_slice(&stream.top.to_le_bytes()[..5]);
        cell[17..].copy_from_slice(&stream.position.to_le_bytes()[..7]);
        Cell(cell)
    }

    fn is_empty(&self) -> bool {
        self.0[17..] == [0; 7]
    }

    fn tag(&self) -> u64 {
        crate::record::number(&self.0, 0, 7)
    }

    fn stream(&self) -> Stream {
        Stream {
            id: crate::record::number(&self.0, 7, 5),
            top: crate::record::number(&self.0, 12, 5),
            position: crate::record::number(&self.0, 17, 7),
        }
    }
}

/// Cells by tag, with linear probing.
#[derive(Default)]
struct Shard {
    cells: Vec<Cell>,
    len: usize,
}

impl Shard {
    fn home(&self, tag: u64) -> usize {
        ((u128::from(tag) * self.cells.len() as u128) >> TAG_BITS) as usize
    }

    /// The cell of this tag, or the empty one where it belongs.
    fn find(&self, tag: u64) -> usize {
        let mut at = self.home(tag);
        while !self.cells[at].is_empty() && self.cells[at].tag() != tag {
            at = (at + 1) % self.cells.len();
        }
        at
    }

    fn insert(&mut self, cell: Cell) {
        if (self.len + 1) * 10 > self.cells.len() * 9 {
            let capacity = (self.cells.len() * 5 / 4).max(self.len + 2) + 1;
            let old = std::mem::replace(&mut self.cells, vec![Cell::EMPTY; capacity]);
            for cell in old.iter().filter(|cell| !cell.is_empty()) {
                let at = self.find(cell.tag());
                self.cells[at] = *cell;
            }
        }
        let at = self.find(cell.tag());
        self.len += usize::from(self.cells[at].is_empty());
        self.cells[at] = cell;
    }

    fn remove(&mut self, tag: u64) {
        let mut hole = self.find(tag);
        if self.cells[hole].is_empty() {
            return;
        }
        self.len -= 1;
        let capacity = self.cells.len();
        let mut at = hole;
        loop {
            self.cells[hole] = Cell::EMPTY;
            // The next cell that may not stay behind an empty one moves into the hole.
            loop {
                at = (at + 1) % capacity;
                if self.cells[at].is_empty() {
                    return;
                }
                let home = self.home(self.cells[at].tag());
                let distance = |from: usize| (at + capacity - from) % capacity;
                if distance(home) >= distance(hole) {
                    break;
                }
            }
            self.cells[hole] = self.cells[at];
            hole = at;
        }
    }
}

/// All streams.
pub(crate) struct Streams(Box<[Shard]>);

impl Default for Streams {
    fn default() -> Streams {
        Streams((0..SHARDS).map(|_| Shard::default()).collect())
    }
}

impl Streams {
    pub(crate) fn get(&self, hash: NameHash) -> Option<Stream> {
        let shard = &self.0[usize::from(hash.shard)];
        if shard.cells.is_empty() {
            return None;
        }
        let cell = &shard.cells[shard.find(hash.tag)];
        (!cell.is_empty()).then(|| cell.stream())
    }

    pub(crate) fn set(&mut self, hash: NameHash, stream: &Stream) {
        debug_assert!(stream.position > 0);
        self.0[usize::from(hash.shard)].insert(Cell::new(hash.tag, stream));
    }

    pub(crate) fn remove(&mut self, hash: NameHash) {
        let shard = &mut self.0[usize::from(hash.shard)];
        if !shard.cells.is_empty() {
            shard.remove(hash.tag);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.len).sum()
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        let cells: usize = self.0.iter().map(|shard| shard.cells.capacity()).sum();
        cells * size_of::<Cell>() + SHARDS * size_of::<Shard>()
    }

    /// The hash of the name of the stream with this id. Looks at all of them.
    pub(crate) fn name_of(&self, id: u64) -> Option<NameHash> {
        self.0.iter().enumerate().find_map(|(shard, cells)| {
            let cell =
                cells.cells.iter().find(|cell| !cell.is_empty() && cell.stream().id == id)?;
            Some(NameHash { shard: shard as u16, tag: cell.tag() })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_million_idle_streams_have_at_most_32_bytes_each() {
        let mut streams = Streams::default();
        for sizes in [100_000, 300_000, 1_000_000] {
            for id in streams.len() as u64..sizes {
                let hash = NameHash::new(&[7; 16], &format!("inbox:{id}"));
                streams.set(hash, &Stream { id, top: 1, position: 99 });
            }
            let each = streams.bytes() as f64 / sizes as f64;
            assert!(each <= 32.0, "{each} bytes of {sizes} streams");
        }
        assert_eq!(size_of::<Cell>(), 24);
    }

    proptest! {
        #[test]
        fn streams_set_and_removed_are_those_of_a_map(
            // Few names of few homes, so that runs of cells grow together.
            actions in proptest::collection::vec((0..60u64, any::<bool>(), 1..1u64 << 40), 1..400),
        ) {
            let (mut streams, mut model) = (Streams::default(), HashMap::new());
            for (name, sets, number) in actions {
                let hash = NameHash { shard: (name % 2) as u16, tag: (name / 7) << 50 | name };
                if sets {
                    let stream = Stream { id: number, top: number / 2, position: number };
                    streams.set(hash, &stream);
                    model.insert(hash, stream);
                } else {
                    streams.remove(hash);
                    model.remove(&hash);
                }
                prop_assert_eq!(streams.len(), model.len());
            }
            for name in 0..60 {
                let hash = NameHash { shard: (name % 2) as u16, tag: (name / 7) << 50 | name };
                prop_assert_eq!(streams.get(hash), model.get(&hash).copied());
                if let Some(stream) = model.get(&hash) {
                    let found = streams.name_of(stream.id).expect("there is one");
                    prop_assert_eq!(model[&found].id, stream.id);
                }
            }
        }
    }
}
