//! What is looked up across the configuration, kept beside each snapshot so that a change is judged by
//! what it touches: whose API key is this, how many hooks need that upstream.

use std::fmt;
use std::sync::Arc;

use imbl::{HashMap, OrdMap};

use crate::fault::{Fault, Faults};
use crate::path::Path;
use crate::{Config, Secret};

/// Shared with the snapshots before and after, as the configuration is.
#[derive(Clone, Default)]
pub(crate) struct Index {
    api_keys: HashMap<Secret, Arc<str>>,
    /// Hooks by the upstream they name.
    hooks: OrdMap<Arc<str>, usize>,
}

impl Index {
    pub(crate) fn api_key(&self, shown: &Secret) -> Option<&Arc<str>> {
        self.api_keys.get(shown)
    }

    /// Follows a change of the configuration.
    pub(crate) fn follow(&mut self, old: &Config, new: &Config, faults: &mut Faults) {
        let keys = || new.api.keys.changes_from(&old.api.keys);
        for (name, before, _) in keys() {
            let Some(before) = before else { continue };
            if self.api_keys.get(&**before) == Some(name) {
                self.api_keys.remove(&**before);
            }
        }
        for (name, _, after) in keys() {
            let Some(after) = after else { continue };
            match self.api_keys.get(&**after) {
                Some(other) if other != name => faults.push(
                    Fault::new(
                        Path::of("api.keys").join(name),
                        format!(
                            "it is the same key as {other:?}, and logs could not tell them apart"
                        ),
                    )
                    .with_fix("give each caller its own"),
                ),
                _ => drop(self.api_keys.insert(Secret::clone(after), Arc::clone(name))),
            }
        }
        for (_, before, after) in new.webhooks.hooks.changes_from(&old.webhooks.hooks) {
            if let Some(before) = before {
                let left = self.hooks.get(&before.upstream).map_or(0, |hooks| hooks - 1);
                match left {
                    0 => drop(self.hooks.remove(&before.upstream)),
                    left => drop(self.hooks.insert(Arc::clone(&before.upstream), left)),
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

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({} API keys)", self.api_keys.len())
    }
}
