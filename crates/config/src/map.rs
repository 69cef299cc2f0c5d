//! A map whose copies share what is the same in them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Named values in the order of their names. A copy costs a reference, a change of a copy the path to
/// what changed: the same for a thousand values as for a hundred thousand.
pub struct Map<T>(OrdMap<Arc<str>, Shared<T>>);

/// A value as the tree holds it: equal to itself without a look inside.
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

/// A name and its value in two maps; `None` where it is not.
pub type Changed<'a, T> = (&'a Arc<str>, Option<&'a Arc<T>>, Option<&'a Arc<T>>);

impl<T> Map<T> {
    /// A map without values.
    pub fn new() -> Map<T> {
        Map(OrdMap::new())
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.0.get(name).map(|value| &*value.0)
    }

    /// The value of a name, to be kept.
    pub fn get_shared(&self, name: &str) -> Option<&Arc<T>> {
        self.0.get(name).map(|value| &value.0)
    }

    /// Whether there is a value of this name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Sets the value of a name.
    pub fn insert(&mut self, name: impl Into<Arc<str>>, value: T) {
        self.insert_shared(name, Arc::new(value));
    }

    /// Sets the value of a name to one that others hold too.
    pub fn insert_shared(&mut self, name: impl Into<Arc<str>>, value: Arc<T>) {
        self.0.insert(name.into(), Shared(value));
    }

    /// Takes a value out.
    pub fn remove(&mut self, name: &str) -> Option<Arc<T>> {
        self.0.remove(name).map(|value| value.0)
    }

    /// All values with their names, in the order of the names.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &T)> {
        self.0.iter().map(|(name, value)| (&**name, &*value.0))
    }

    /// As [`Map::iter`], to be kept.
    pub fn iter_shared(&self) -> impl DoubleEndedIterator<Item = (&Arc<str>, &Arc<T>)> {
        self.0.iter().map(|(name, value)| (name, &value.0))
    }

    /// All names in their order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }

    /// All values in the order of their names.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.0.values().map(|value| &*value.0)
    }

    /// Whether both are the same tree; unlike `==` it never looks inside.
    pub fn is_same(&self, other: &Map<T>) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl<T: PartialEq> Map<T> {
    /// What is new, gone or different against an older map. What both share is skipped: the cost is
    /// that of the difference.
    pub fn changes_from<'a>(&'a self, older: &'a Map<T>) -> impl Iterator<Item = Changed<'a, T>> {
        older.0.diff(&self.0).map(|difference| match difference {
            DiffItem::Add(name, value) => (name, None, Some(&value.0)),
            DiffItem::Update { old: (_, before), new: (name, after) } => {
                (name, Some(&before.0), Some(&after.0))
            }
            DiffItem::Remove(name, value) => (name, Some(&value.0), None),
        })
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
        let mut map = Map::new();
        for (name, value) in values {
            map.insert(name, value);
        }
        map
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
                let mut map = Map::new();
                while let Some((name, value)) = access.next_entry::<Arc<str>, T>()? {
                    map.insert(name, value);
                }
                Ok(map)
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
    fn a_copy_keeps_what_it_had_and_says_what_the_other_changed() {
        let old: Map<u32> = (0..1_000).map(|i| (format!("{i:04}"), i)).collect();
        let mut new = old.clone();
        new.insert("0500", 7);
        new.insert("0501", 501);
        new.remove("0900");
        new.insert("zzz", 1);
        assert_eq!((old["0500"], new["0500"], old.len(), new.len()), (500, 7, 1_000, 1_000));
        let told: Vec<_> = new
            .changes_from(&old)
            .map(|(name, before, after)| (&**name, before.map(|v| **v), after.map(|v| **v)))
            .collect();
        assert_eq!(
            told,
            [("0500", Some(500), Some(7)), ("0900", Some(900), None), ("zzz", None, Some(1))]
        );
        assert!(Arc::ptr_eq(old.get_shared("0001").unwrap(), new.get_shared("0001").unwrap()));
        assert!(old != new && new == new.clone() && old.is_same(&old.clone()));
    }
}
