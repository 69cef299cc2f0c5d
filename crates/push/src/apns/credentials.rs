//! Many credentials in one process, by name.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use super::Apns;

/// Senders by the names of their credentials. Each has its own queue, connections and back-off, so that one
/// whose key was revoked keeps no other waiting.
#[derive(Debug, Default)]
pub struct Credentials(RwLock<BTreeMap<String, Apns>>);

impl Credentials {
    /// None yet.
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

    /// Removes a sender. True if there was one.
    pub fn remove(&self, name: &str) -> bool {
        let mut senders = self.0.write().unwrap_or_else(PoisonError::into_inner);
        senders.remove(name).inspect(Apns::close).is_some()
    }

    /// The sender of a name.
    pub fn get(&self, name: &str) -> Option<Apns> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// The names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }
}
