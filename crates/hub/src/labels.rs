//! Labels of connections, in a side table because most sessions have none.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use crate::publication::Tags;

/// The labels of this worker's sessions by slot. Equal sets of labels are shared.
#[derive(Default)]
pub(crate) struct Labels {
    of: HashMap<u32, Arc<Tags>, RandomState>,
    /// Each distinct set once.
    sets: HashSet<Arc<Tags>, RandomState>,
}

impl Labels {
    /// Sets the labels of a session.
    pub(crate) fn set(&mut self, slot: u32, labels: Tags) {
        self.remove(slot);
        if labels.is_empty() {
            return;
        }
        let shared = match self.sets.get(&labels) {
            Some(shared) => Arc::clone(shared),
            None => {
                let shared = Arc::new(labels);
                self.sets.insert(Arc::clone(&shared));
                shared
            }
        };
        self.of.insert(slot, shared);
    }

    /// Removes the labels of a session, and their set if it is not used any more.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(labels) = self.of.remove(&slot) else { return };
        // One reference of the set, and this one.
        if Arc::strong_count(&labels) == 2 {
            self.sets.remove(&labels);
        }
    }

    /// The labels of a session.
    pub(crate) fn get(&self, slot: u32) -> &Tags {
        const NONE: &Tags = &Tags::NONE;
        self.of.get(&slot).map_or(NONE, |labels| labels)
    }

    /// The number of sessions with labels, and the number of distinct sets.
    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        (self.of.len(), self.sets.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(region: &str) -> Tags {
        [("region".into(), region.into())].into_iter().collect()
    }

    #[test]
    fn sessions_with_the_same_labels_share_them_and_the_last_one_takes_them_along() {
        let mut labels = Labels::default();
        (0..100).for_each(|slot| labels.set(slot, tags("eu")));
        labels.set(100, tags("us"));
        labels.set(101, Tags::default());
        assert_eq!(labels.len(), (101, 2));
        assert_eq!((labels.get(7), labels.get(101)), (&tags("eu"), &Tags::default()));
        labels.set(7, tags("us"));
        assert_eq!(labels.len(), (101, 2));
        (0..102).for_each(|slot| labels.remove(slot));
        assert_eq!(labels.len(), (0, 0));
    }
}
