//! The snapshot of the settings that a worker has adopted.

use std::ops::Deref;
use std::sync::Arc;

use crate::state::settings::Settings;

/// The snapshot that a worker has adopted.
pub(crate) struct AdoptedSettings {
    snapshot: Arc<Settings>,
    /// The publication it was part of.
    generation: u64,
}

impl AdoptedSettings {
    pub(crate) fn new(generation: u64, snapshot: Arc<Settings>) -> AdoptedSettings {
        AdoptedSettings { snapshot, generation }
    }

    /// The snapshot, to be kept while others are asked.
    pub(crate) fn snapshot(&self) -> Arc<Settings> {
        Arc::clone(&self.snapshot)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The worker has adopted what was published with this generation, or has refused it.
    pub(crate) fn handle_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// Adopts another snapshot.
    pub(crate) fn adopt(&mut self, newest: &Arc<Settings>) {
        self.snapshot = Arc::clone(newest);
    }
}

impl Deref for AdoptedSettings {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.snapshot
    }
}
