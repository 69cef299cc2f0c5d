//! Channel records by index and by name.

use hashbrown::HashTable;

use crate::channel::NameHasher;
use crate::slots::Slots;

/// A record with a channel's name.
pub(crate) trait ChannelRecord {
    fn name(&self) -> &str;
}

/// Records of channels. A name is stored once, in its record; the index costs five bytes.
pub(crate) struct ChannelTable<T> {
    records: Slots<Option<T>>,
    by_name: HashTable<u32>,
}

impl<T: ChannelRecord> ChannelTable<T> {
    pub(crate) const fn new() -> Self {
        Self { records: Slots::new(0), by_name: HashTable::new() }
    }

    pub(crate) fn len(&self) -> u32 {
        self.records.len()
    }

    pub(crate) fn find(&self, hasher: &NameHasher, name: &str) -> Option<u32> {
        self.by_name.find(hasher.hash(name), |&at| self[at].name() == name).copied()
    }

    /// Adds a record whose name has none yet; `None` when there are `max`.
    pub(crate) fn insert(&mut self, hasher: &NameHasher, record: T, max: u32) -> Option<u32> {
        let hash = hasher.hash(record.name());
        let at = self.records.insert(Some(record), max).ok()?;
        let records = &self.records;
        self.by_name.insert_unique(hash, at, |&at| {
            records[at].as_ref().map_or(0, |record| hasher.hash(record.name()))
        });
        Some(at)
    }

    pub(crate) fn remove(&mut self, hasher: &NameHasher, at: u32) -> Option<T> {
        let hash = hasher.hash(self[at].name());
        if let Ok(entry) = self.by_name.find_entry(hash, |&other| other == at) {
            entry.remove();
        }
        self.records.remove(at)
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.records.get(at)?.as_ref()
    }

    /// Every index that may hold a record.
    pub(crate) fn indices(&self) -> std::ops::Range<u32> {
        self.records.indices()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.records.indices().filter_map(|at| Some((at, self.get(at)?)))
    }
}

impl<T> std::ops::Index<u32> for ChannelTable<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: u32) -> &T {
        self.records[at].as_ref().expect("an index is given up with its record")
    }
}

impl<T> std::ops::IndexMut<u32> for ChannelTable<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        self.records[at].as_mut().expect("an index is given up with its record")
    }
}
