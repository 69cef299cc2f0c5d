//! The filters of a channel's subscribers on one worker. Equal filters are shared.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};

use crate::filter_shares::FilterOwner;
use crate::publication::Tags;
use crate::tag_filter::TagFilter;

/// The filters of a channel, and the filter of each subscription.
#[derive(Default)]
pub(crate) struct ChannelFilters {
    filters: Vec<Shared>,
    /// Indices of those in use, by the hash of the filter: each of a client's subscriptions to a channel with many filters would
    /// compare all of them.
    in_use: HashTable<u32>,
    /// Indices of the others.
    free: Vec<u32>,
    by_subscription: HashMap<u32, u32, RandomState>,
}

struct Shared {
    filter: TagFilter,
    /// Whose memory it counts as: that of the first who had it.
    charged: FilterOwner,
    subscriptions: u32,
    /// The result for the last evaluated publication.
    admits: bool,
}

impl ChannelFilters {
    /// Adds a subscription's filter. Returns the additional memory it uses.
    pub(crate) fn insert(
        &mut self,
        subscription: u32,
        filter: TagFilter,
        charged: FilterOwner,
    ) -> usize {
        let Self { filters, in_use, free, by_subscription } = self;
        let hash = by_subscription.hasher().hash_one(&filter);
        if let Some(&at) = in_use.find(hash, |&at| filters[at as usize].filter == filter) {
            filters[at as usize].subscriptions += 1;
            by_subscription.insert(subscription, at);
            return 0;
        }
        let bytes = filter.bytes();
        let shared = Shared { filter, charged, subscriptions: 1, admits: false };
        let at = match free.pop() {
            Some(at) => {
                filters[at as usize] = shared;
                at
            }
            None => {
                filters.push(shared);
                filters.len() as u32 - 1
            }
        };
        let hasher = by_subscription.hasher();
        in_use.insert_unique(hash, at, |&at| hasher.hash_one(&filters[at as usize].filter));
        by_subscription.insert(subscription, at);
        bytes
    }

    /// Removes a subscription's filter. Returns whose memory is freed, and how much.
    pub(crate) fn remove(&mut self, subscription: u32) -> Option<(FilterOwner, usize)> {
        let Self { filters, in_use, free, by_subscription } = self;
        let at = by_subscription.remove(&subscription)?;
        let shared = &mut filters[at as usize];
        shared.subscriptions -= 1;
        if shared.subscriptions > 0 {
            return None;
        }
        let gone = std::mem::replace(&mut shared.filter, TagFilter::And(Box::default()));
        if let Ok(entry) =
            in_use.find_entry(by_subscription.hasher().hash_one(&gone), |&of| of == at)
        {
            entry.remove();
        }
        free.push(at);
        Some((shared.charged, gone.bytes()))
    }

    /// The memory of a subscription's filter, shared or not.
    pub(crate) fn bytes_of(&self, subscription: u32) -> usize {
        let at = self.by_subscription.get(&subscription);
        at.map_or(0, |&at| self.filters[at as usize].filter.bytes())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_subscription.is_empty()
    }

    /// Evaluates every filter once.
    pub(crate) fn evaluate(&mut self, tags: &Tags) {
        for shared in &mut self.filters {
            shared.admits = shared.subscriptions > 0 && shared.filter.admits(tags);
        }
    }

    /// Whether the last evaluated publication passes a subscription's filter.
    pub(crate) fn admits(&self, subscription: u32) -> bool {
        let at = self.by_subscription.get(&subscription);
        at.is_none_or(|&at| self.filters[at as usize].admits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::Owner;
    use crate::tag_filter::TagCondition;

    fn filter(value: &str) -> TagFilter {
        TagFilter::Tag { key: "k".into(), is: TagCondition::Equal(value.into()) }
    }

    #[test]
    fn equal_filters_are_shared_and_the_last_subscription_takes_one_along() {
        let of = FilterOwner { owner: Owner::NONE, namespace: 0 };
        let mut filters = ChannelFilters::default();
        for round in 0..3 {
            for subscription in 0..1_000 {
                let value = (subscription % 100).to_string();
                let added = filters.insert(subscription, filter(&value), of);
                assert_eq!(added > 0, subscription < 100, "{round}: {subscription}");
            }
            assert_eq!((filters.filters.len(), filters.in_use.len()), (100, 100));
            filters.evaluate(&[("k".into(), "7".into())].into_iter().collect());
            let admitted = (0..1_000).filter(|subscription| filters.admits(*subscription)).count();
            assert_eq!(admitted, 10);
            let freed = (0..1_000).filter_map(|subscription| filters.remove(subscription)).count();
            assert_eq!((freed, filters.in_use.len()), (100, 0));
            assert!(filters.is_empty());
        }
    }
}
