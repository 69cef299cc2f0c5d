//! Many credentials in one process, by name.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use super::Apns;

/// Senders by the name of their credential. Each has its own queue, connections and back-off, so that a revoked key
/// does not affect the others.
#[derive(Debug, Default)]
pub struct Credentials(RwLock<BTreeMap<String, Apns>>);

impl Credentials {
    /// Creates an empty set.
    pub fn new() -> Credentials {
        Credentials::default()
    }

    /// Adds a sender, or replaces the one of that name: new pushes use the new one, and the old one finishes its pushes
    /// in flight.
    pub fn set(&self, name: &str, sender: Apns) {
        let mut senders = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = senders.insert(name.to_owned(), sender) {
            old.close();
        }
    }

    /// Removes a sender. Returns whether there was one.
    pub fn remove(&self, name: &str) -> bool {
        let mut senders = self.0.write().unwrap_or_else(PoisonError::into_inner);
        senders.remove(name).inspect(Apns::close).is_some()
    }

    /// Returns the sender of a name.
    pub fn get(&self, name: &str) -> Option<Apns> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Returns the names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }
}
