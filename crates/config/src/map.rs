//! A map whose copies share what is the same in them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::tree::Tree;

/// Named values in the order of their names. A copy costs a reference, a change of a copy the path to
/// what changed: the same for a thousand values as for a hundred thousand.
pub struct Map<T>(Tree<T>);

/// A name and its value in two maps; `None` where it is not.
pub type MapChange<'a, T> = crate::tree::Difference<'a, T>;

impl<T> Map<T> {
    /// A map without values.
    pub fn new() -> Map<T> {
        Map(Tree::EMPTY)
    }

    /// A map of all these; of two values of one name the later one counts.
    pub fn of(mut values: Vec<(Arc<str>, Arc<T>)>) -> Map<T> {
        if !values.is_sorted_by(|(before, _), (after, _)| before < after) {
            // Of one name, in the order they came.
            values.sort_by(|(before, _), (after, _)| before.cmp(after));
            values.dedup_by(|later, earlier| {
                let is_same = later.0 == earlier.0;
                if is_same {
                    std::mem::swap(later, earlier);
                }
                is_same
            });
        }
        Map(Tree::from_sorted(values))
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.get_shared(name).map(|value| &**value)
    }

    /// The value of a name, to be kept.
    pub fn get_shared(&self, name: &str) -> Option<&Arc<T>> {
        self.0.get(name).map(|(_, value)| value)
    }

    /// A name and its value, to be kept: two maps with the same piece of memory for a name are compared faster.
    pub(crate) fn get_entry(&self, name: &str) -> Option<(&Arc<str>, &Arc<T>)> {
        self.0.get(name)
    }

    /// Whether there is a value of this name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.0.get(name).is_some()
    }

    /// Sets the value of a name.
    pub fn insert(&mut self, name: impl AsRef<str> + Into<Arc<str>>, value: T) {
        self.insert_shared(name, Arc::new(value));
    }

    /// Sets the value of a name to one that others hold too.
    pub fn insert_shared(&mut self, name: impl AsRef<str> + Into<Arc<str>>, value: Arc<T>) {
        self.0.insert(name, value);
    }

    /// Takes a value out.
    pub fn remove(&mut self, name: &str) -> Option<Arc<T>> {
        self.0.remove(name)
    }

    /// All values with their names, in the order of the names.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &T)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// As [`Map::iter`], to be kept.
    pub fn iter_shared(&self) -> impl DoubleEndedIterator<Item = (&Arc<str>, &Arc<T>)> {
        self.0.iter()
    }

    /// All names in their order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }

    /// All values in the order of their names.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.0.iter().map(|(_, value)| &**value)
    }

    /// Whether both are the same tree; unlike `==` it never looks inside.
    pub fn is_same(&self, other: &Map<T>) -> bool {
        self.0.is_same(&other.0)
    }
}

impl<T: PartialEq> Map<T> {
    /// What is new, gone or different against an older map. What both share is skipped: the cost is
    /// that of the difference.
    pub fn changes_from<'a>(&'a self, older: &'a Map<T>) -> impl Iterator<Item = MapChange<'a, T>> {
        older.0.diff(&self.0)
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
        self.is_same(other) || self.len() == other.len() && other.0.diff(&self.0).next().is_none()
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

impl<K: Into<Arc<str>>, T> FromIterator<(K, T)> for Map<T> {
    fn from_iter<I: IntoIterator<Item = (K, T)>>(values: I) -> Map<T> {
        Map::of(values.into_iter().map(|(name, value)| (name.into(), Arc::new(value))).collect())
    }
}

impl<T: Serialize> Serialize for Map<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Map<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Map<T>, D::Error> {
        struct Named<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Named<T> {
            type Value = Map<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Map<T>, A::Error> {
                let mut values = Vec::new();
                while let Some((name, value)) = access.next_entry::<Arc<str>, T>()? {
                    values.push((name, Arc::new(value)));
                }
                Ok(Map::of(values))
            }
        }

        deserializer.deserialize_map(Named(std::marker::PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for Map<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Map_of_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        std::collections::BTreeMap::<String, T>::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_values_in_any_order_the_later_one_of_a_name_counts() {
        let of = |values: &[(&str, u32)]| -> Map<u32> { values.iter().copied().collect() };
        let map = of(&[("b", 1), ("a", 2), ("b", 3), ("c", 4), ("a", 5), ("b", 6)]);
        assert_eq!(map.iter().collect::<Vec<_>>(), [("a", &5), ("b", &6), ("c", &4)]);
        assert_eq!(of(&[]).len(), 0);
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
