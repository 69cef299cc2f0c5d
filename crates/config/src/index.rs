//! What is looked up across the configuration, kept beside each snapshot so that a change is judged by
//! what it touches: whose API key is this, how many hooks need that upstream.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use crate::error::ConfigErrors;
use crate::path::Path;
use crate::{Config, Map, Secret};

/// Shared with the snapshots before and after, as the configuration is.
#[derive(Clone, Default)]
pub(crate) struct Index {
    /// Keys with their names, by hashes that outsiders cannot predict: the way down a tree of the keys themselves
    /// would show by its time how much of a guess is right.
    api_keys: Map<Vec<(Secret, Arc<str>)>>,
    hashes: RandomState,
    /// Hooks by the upstream they name.
    hooks: Map<usize>,
}

impl Index {
    pub(crate) fn api_key(&self, shown: &str) -> Option<&Arc<str>> {
        let same_hash = self.api_keys.get(self.hash(shown).digits())?;
        same_hash.iter().find(|(key, _)| key.matches(shown)).map(|(_, name)| name)
    }

    fn hash(&self, key: &str) -> Hash {
        let hash = self.hashes.hash_one(key);
        // Asked with every request to the API: nothing is allocated.
        Hash(std::array::from_fn(|at| b"0123456789abcdef"[(hash >> (4 * at)) as usize & 15]))
    }

    /// Changes what is known under the hash of a key.
    fn edit(&mut self, key: &Secret, edit: impl FnOnce(&mut Vec<(Secret, Arc<str>)>)) {
        let hash = self.hash(key.reveal());
        let mut same_hash = self.api_keys.get(hash.digits()).cloned().unwrap_or_default();
        edit(&mut same_hash);
        match same_hash.is_empty() {
            true => drop(self.api_keys.remove(hash.digits())),
            false => self.api_keys.insert(hash.digits(), same_hash),
        }
    }

    /// Follows a change of the configuration.
    pub(crate) fn follow(&mut self, old: &Config, new: &Config, errors: &mut ConfigErrors) {
        let keys = || new.api.keys.changes_from(&old.api.keys);
        for (name, before, _) in keys() {
            let Some(before) = before else { continue };
            self.edit(before, |known| known.retain(|(key, of)| (key, of) != (&**before, name)));
        }
        for (name, _, after) in keys() {
            let Some(after) = after else { continue };
            match self.api_key(after.reveal()) {
                Some(other) if other != name => errors.add(
                    Path::of("api.keys").join(name),
                    format!("it is the same key as {other:?}, and logs could not distinguish them"),
                    "give each caller its own",
                ),
                Some(_) => {}
                None => {
                    let known = (Secret::clone(after), Arc::clone(name));
                    self.edit(after, |same_hash| same_hash.push(known));
                }
            }
        }
        for (_, before, after) in new.webhooks.hooks.changes_from(&old.webhooks.hooks) {
            if let Some(before) = before {
                let left = self.hooks.get(&before.upstream).map_or(0, |hooks| hooks - 1);
                match left {
                    0 => drop(self.hooks.remove(&before.upstream)),
                    left => self.hooks.insert(Arc::clone(&before.upstream), left),
                }
            }
            if let Some(after) = after {
                let hooks = self.hooks.get(&after.upstream).copied().unwrap_or(0);
                self.hooks.insert(Arc::clone(&after.upstream), hooks + 1);
            }
        }
    }

    /// How many hooks name this upstream.
    pub(crate) fn hooks_of(&self, upstream: &str) -> usize {
        self.hooks.get(upstream).copied().unwrap_or(0)
    }
}

/// A hash as a name for a [`Map`].
struct Hash([u8; 16]);

impl Hash {
    fn digits(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({} API keys)", self.api_keys.len())
    }
}
