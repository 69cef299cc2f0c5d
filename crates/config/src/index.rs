//! Indices across the configuration, kept with each snapshot, so that validating a change costs only what it touches:
//! owners of API keys, and the number of hooks of an upstream.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use crate::error::ConfigErrors;
use crate::path::Path;
use crate::{Config, Map, Secret, Tenant};

/// Shares its maps with the snapshots before and after, like the configuration.
#[derive(Clone, Default)]
pub(crate) struct Index {
    /// API keys by hashes that outsiders cannot predict: the time of a search by the keys themselves would reveal how
    /// much of a guess is right.
    api_keys: Map<Vec<(Secret, ApiKey)>>,
    hashes: RandomState,
    /// Tenants by the ids of their token keys.
    token_keys: Map<Arc<str>>,
    /// The number of hooks by upstream.
    hooks: Map<usize>,
}

/// The owner of an API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Its name in `api.keys`, or in the tenant's `api_keys`.
    pub name: Arc<str>,
    /// Its tenant; `None`: the operator.
    pub tenant: Option<Arc<str>>,
}

impl ApiKey {
    fn path(&self) -> Path {
        match &self.tenant {
            None => Path::of("api.keys").join(&self.name),
            Some(tenant) => Path::of("tenants").join(tenant).join("api_keys").join(&self.name),
        }
    }
}

impl Index {
    pub(crate) fn api_key(&self, shown: &str) -> Option<&ApiKey> {
        let same_hash = self.api_keys.get(self.hash(shown).digits())?;
        same_hash.iter().find(|(key, _)| key.matches(shown)).map(|(_, name)| name)
    }

    fn hash(&self, key: &str) -> Hash {
        let hash = self.hashes.hash_one(key);
        // Called for every request to the API, so nothing is allocated.
        Hash(std::array::from_fn(|at| b"0123456789abcdef"[(hash >> (4 * at)) as usize & 15]))
    }

    /// Returns the tenant that has a token key of this id.
    pub(crate) fn token_key(&self, kid: &str) -> Option<&Arc<str>> {
        self.token_keys.get_shared(kid).map(|tenant| &**tenant)
    }

    /// Edits the entries with the same hash as `key`.
    fn edit(&mut self, key: &Secret, edit: impl FnOnce(&mut Vec<(Secret, ApiKey)>)) {
        let hash = self.hash(key.reveal());
        let mut same_hash = self.api_keys.get(hash.digits()).cloned().unwrap_or_default();
        edit(&mut same_hash);
        match same_hash.is_empty() {
            true => drop(self.api_keys.remove(hash.digits())),
            false => self.api_keys.insert(hash.digits(), same_hash),
        }
    }

    /// Updates the indices after a change of the configuration.
    pub(crate) fn follow(&mut self, old: &Config, new: &Config, errors: &mut ConfigErrors) {
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        let mut keys = |tenant: Option<&Arc<str>>, old: &Map<Secret>, new: &Map<Secret>| {
            for (name, before, after) in new.changes_from(old) {
                let of = ApiKey { name: Arc::clone(name), tenant: tenant.cloned() };
                gone.extend(before.map(|before| (Secret::clone(before), of.clone())));
                come.extend(after.map(|after| (Secret::clone(after), of)));
            }
        };
        keys(None, &old.api.keys, &new.api.keys);
        let nothing = Tenant::default();
        let tenants = || {
            new.tenants.changes_from(&old.tenants).map(|(name, before, after)| {
                (name, before.map_or(&nothing, |of| of), after.map_or(&nothing, |of| of))
            })
        };
        for (tenant, before, after) in tenants() {
            keys(Some(tenant), &before.api_keys, &after.api_keys);
        }
        for key in gone {
            self.edit(&key.0, |known| known.retain(|other| *other != key));
        }
        for (key, of) in come {
            match self.api_key(key.reveal()) {
                Some(other) if *other != of => {
                    errors.add(of.path(), same_key(other, &of), "give each caller its own");
                }
                Some(_) => {}
                None => self.edit(&key.clone(), |same_hash| same_hash.push((key, of))),
            }
        }
        for (_, before, after) in tenants() {
            for (kid, _, after) in after.token_keys.changes_from(&before.token_keys) {
                if after.is_none() {
                    self.token_keys.remove(kid);
                }
            }
        }
        for (tenant, before, after) in tenants() {
            for (kid, before, after) in after.token_keys.changes_from(&before.token_keys) {
                if before.is_some() || after.is_none() {
                    continue;
                }
                if self.token_keys.contains_key(kid) {
                    let path = Path::of("tenants").join(tenant).join("token_keys").join(kid);
                    let message = "another tenant's key has this id, and it says whose a token is";
                    errors.add(path, message, "give it another, as in `TENANT-1`");
                } else {
                    self.token_keys.insert(Arc::clone(kid), Arc::clone(tenant));
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

    /// Returns the number of hooks that use this upstream.
    pub(crate) fn hooks_of(&self, upstream: &str) -> usize {
        self.hooks.get(upstream).copied().unwrap_or(0)
    }
}

fn same_key(other: &ApiKey, of: &ApiKey) -> String {
    match other.tenant == of.tenant {
        true => {
            format!("it is the same key as {:?}, and logs could not distinguish them", other.name)
        }
        // The caller who sets a tenant's keys must not learn the keys of another tenant.
        false => "the same key is somebody else's".to_owned(),
    }
}

/// A hash in hexadecimal, as a key of a [`Map`].
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
