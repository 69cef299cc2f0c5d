//! A persistent sorted map: copies share their common parts.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::iter::Peekable;
use std::ops::Index;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::{DiffItem, DiffIter};
use imbl::shared_ptr::DefaultSharedPtr;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map sorted by name. A copy costs a reference count, and a change of a copy only the path to the changed entry, for
/// a thousand entries as for a hundred thousand.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
pub struct Map<T>(#[schemars(with = "BTreeMap<String, T>")] OrdMap<Arc<str>, Shared<T>>);

/// A name with its old and new value; `None` where the map has no such name.
pub type MapChange<'a, T> = (&'a Arc<str>, Option<&'a Arc<T>>, Option<&'a Arc<T>>);

/// A value that is compared by address first, so that shared values are not compared by content.
struct Shared<T>(Arc<T>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared(Arc::clone(&self.0))
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Shared<T>) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl<T> Map<T> {
    /// Returns an empty map.
    pub fn new() -> Map<T> {
        Map(OrdMap::new())
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of a name.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.get_shared(name).map(|value| &**value)
    }

    /// Like [`Map::get`], but returns the `Arc`, which can be cloned.
    pub fn get_shared(&self, name: &str) -> Option<&Arc<T>> {
        self.0.get(name).map(|value| &value.0)
    }

    /// Returns a name and its value as `Arc`s.
    pub fn get_entry(&self, name: &str) -> Option<(&Arc<str>, &Arc<T>)> {
        self.0.get_key_value(name).map(|(name, value)| (name, &value.0))
    }

    /// Returns whether the map has this name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Sets the value of a name.
    pub fn insert(&mut self, name: impl Into<Arc<str>>, value: T) {
        self.0.insert(name.into(), Shared(Arc::new(value)));
    }

    /// Removes an entry and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<Arc<T>> {
        self.0.remove(name).map(|value| value.0)
    }

    /// Returns all names and values, sorted by name.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &T)> {
        self.iter_shared().map(|(name, value)| (&**name, &**value))
    }

    /// Like [`Map::iter`], but returns the `Arc`s.
    pub fn iter_shared(&self) -> impl DoubleEndedIterator<Item = (&Arc<str>, &Arc<T>)> {
        self.0.iter().map(|(name, value)| (name, &value.0))
    }

    /// Returns all names, sorted.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    /// Returns all values, sorted by name.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }

    /// Returns whether both are the same tree, or both empty; unlike `==` it never compares entries.
    pub fn is_same(&self, other: &Map<T>) -> bool {
        self.0.ptr_eq(&other.0) || self.is_empty() && other.is_empty()
    }
}

impl<T: PartialEq> Map<T> {
    /// Returns the entries added, removed or changed since `older`. Skips shared subtrees, so that the cost is
    /// proportional to the number of differences.
    pub fn changes_from<'a>(&'a self, older: &'a Map<T>) -> impl Iterator<Item = MapChange<'a, T>> {
        // Most maps are the same tree, or small: a search for shared subtrees costs more than it saves there.
        if self.is_same(older) {
            MapChanges::None
        } else if self.len() <= SMALL && older.len() <= SMALL {
            MapChanges::ByEntry(older.0.iter().peekable(), self.0.iter().peekable())
        } else {
            MapChanges::BySubtree(older.0.diff(&self.0))
        }
    }
}

/// The most entries of maps that are compared entry by entry: about those of one node of the tree.
const SMALL: usize = 64;

/// The differences of two maps.
enum MapChanges<'a, T> {
    None,
    /// Compares all entries of the older map with those of the newer one.
    ByEntry(Peekable<Entries<'a, T>>, Peekable<Entries<'a, T>>),
    /// Skips shared subtrees.
    BySubtree(DiffIter<'a, 'a, Arc<str>, Shared<T>, DefaultSharedPtr>),
}

type Entries<'a, T> = imbl::ordmap::Iter<'a, Arc<str>, Shared<T>, DefaultSharedPtr>;

impl<'a, T: PartialEq> Iterator for MapChanges<'a, T> {
    type Item = MapChange<'a, T>;

    fn next(&mut self) -> Option<MapChange<'a, T>> {
        match self {
            MapChanges::None => None,
            MapChanges::ByEntry(before, after) => next_by_entry(before, after),
            MapChanges::BySubtree(items) => Some(match items.next()? {
                DiffItem::Add(name, after) => (name, None, Some(&after.0)),
                DiffItem::Update { old: (_, before), new: (name, after) } => {
                    (name, Some(&before.0), Some(&after.0))
                }
                DiffItem::Remove(name, before) => (name, Some(&before.0), None),
            }),
        }
    }
}

fn next_by_entry<'a, T: PartialEq>(
    before: &mut Peekable<Entries<'a, T>>,
    after: &mut Peekable<Entries<'a, T>>,
) -> Option<MapChange<'a, T>> {
    loop {
        let order = match (before.peek(), after.peek()) {
            (Some((old, _)), Some((new, _))) if Arc::ptr_eq(old, new) => Ordering::Equal,
            (Some((old, _)), Some((new, _))) => old.cmp(new),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        match order {
            Ordering::Less => return before.next().map(|(name, old)| (name, Some(&old.0), None)),
            Ordering::Greater => return after.next().map(|(name, new)| (name, None, Some(&new.0))),
            Ordering::Equal => {
                let ((_, old), (name, new)) = (before.next()?, after.next()?);
                if old != new {
                    return Some((name, Some(&old.0), Some(&new.0)));
                }
            }
        }
    }
}

impl<T> Clone for Map<T> {
    fn clone(&self) -> Map<T> {
        Map(self.0.clone())
    }
}

impl<T> Default for Map<T> {
    fn default() -> Map<T> {
        Map::new()
    }
}

impl<T: PartialEq> PartialEq for Map<T> {
    fn eq(&self, other: &Map<T>) -> bool {
        self.is_same(other)
            || self.len() == other.len() && self.changes_from(other).next().is_none()
    }
}

impl<T: fmt::Debug> fmt::Debug for Map<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<T> Index<&str> for Map<T> {
    type Output = T;

    fn index(&self, name: &str) -> &T {
        self.get(name).unwrap_or_else(|| panic!("there is no {name:?}"))
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<T>>, T> FromIterator<(K, V)> for Map<T> {
    /// Builds a map. If a name occurs twice, the later value is used.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(values: I) -> Map<T> {
        let shared = |(name, value): (K, V)| (name.into(), Shared(value.into()));
        Map(values.into_iter().map(shared).collect())
    }
}

impl<T: Serialize> Serialize for Map<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Map<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Map<T>, D::Error> {
        Ok(BTreeMap::<Arc<str>, T>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn of_values_in_any_order_the_later_one_of_a_name_counts() {
        let of = |values: &[(&str, u32)]| -> Map<u32> { values.iter().copied().collect() };
        let map = of(&[("b", 1), ("a", 2), ("b", 3), ("c", 4), ("a", 5), ("b", 6)]);
        assert_eq!(map.iter().collect::<Vec<_>>(), [("a", &5), ("b", &6), ("c", &4)]);
        assert_eq!(of(&[]).len(), 0);
    }

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// Counts its comparisons.
    struct Watched(usize);

    impl PartialEq for Watched {
        fn eq(&self, other: &Watched) -> bool {
            COMPARED.set(COMPARED.get() + 1);
            self.0 == other.0
        }
    }

    #[test]
    fn a_comparison_looks_at_what_changed_and_at_nothing_else() {
        let named = |i: usize| (format!("{i:06}"), Watched(i));
        let old: Map<Watched> = (0..100_000).map(named).collect();
        let mut new = old.clone();
        for i in [7, 50_000, 99_999] {
            new.insert(format!("{i:06}"), Watched(0));
        }
        new.insert("000007a", Watched(1));
        new.remove("070000");
        let reported: Vec<_> = new.changes_from(&old).map(|(name, ..)| name.to_string()).collect();
        assert_eq!(reported, ["000007", "000007a", "050000", "070000", "099999"]);
        assert_eq!(COMPARED.get(), 3, "each changed value once, and no other");
    }

    proptest! {
        #[test]
        fn it_is_a_map_that_lists_its_differences(
            // Some are small, some are not.
            steps in proptest::collection::vec((0..120_u8, any::<Option<u8>>()), 0..300),
            copied_at in 0..300_usize,
        ) {
            let mut map = Map::new();
            let mut model = BTreeMap::new();
            let mut copy = (map.clone(), model.clone());
            for (at, (name, value)) in steps.into_iter().enumerate() {
                if at == copied_at {
                    copy = (map.clone(), model.clone());
                }
                let name = format!("n{name}");
                match value {
                    Some(value) => {
                        map.insert(name.as_str(), value);
                        model.insert(name, value);
                    }
                    None => prop_assert_eq!(map.remove(&name).map(|v| *v), model.remove(&name)),
                }
            }
            let listed = |map: &Map<u8>| -> BTreeMap<String, u8> {
                map.iter().map(|(name, value)| (name.to_owned(), *value)).collect()
            };
            prop_assert_eq!(&listed(&map), &model);
            prop_assert_eq!(&listed(&copy.0), &copy.1);
            prop_assert!(map.keys().rev().eq(model.keys().rev().map(String::as_str)));
            let names: std::collections::BTreeSet<_> = model.keys().chain(copy.1.keys()).collect();
            let due: Vec<_> = names
                .into_iter()
                .map(|name| (name.clone(), copy.1.get(name).copied(), model.get(name).copied()))
                .filter(|(_, before, after)| before != after)
                .collect();
            let diff: Vec<_> = map
                .changes_from(&copy.0)
                .map(|(name, old, new)| (name.to_string(), old.map(|v| **v), new.map(|v| **v)))
                .collect();
            prop_assert_eq!(diff, due);
        }
    }

    #[test]
    fn a_copy_keeps_what_it_had_and_says_what_the_other_changed() {
        let old: Map<u32> = (0..1_000).map(|i| (format!("{i:04}"), i)).collect();
        let mut new = old.clone();
        new.insert("0500", 7);
        new.insert("0501", 501);
        new.remove("0900");
        new.insert("zzz", 1);
        assert_eq!((old["0500"], new["0500"], old.len(), new.len()), (500, 7, 1_000, 1_000));
        let reported: Vec<_> = new
            .changes_from(&old)
            .map(|(name, before, after)| (&**name, before.map(|v| **v), after.map(|v| **v)))
            .collect();
        assert_eq!(
            reported,
            [("0500", Some(500), Some(7)), ("0900", Some(900), None), ("zzz", None, Some(1))]
        );
        assert!(Arc::ptr_eq(old.get_shared("0001").unwrap(), new.get_shared("0001").unwrap()));
        assert!(old != new && new == new.clone() && old.is_same(&old.clone()));
    }
}
