//! The filters of a channel's subscribers on one worker. Equal filters are shared.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::filter_shares::FilterOwner;
use crate::publication::Tags;
use crate::tag_filter::TagFilter;

/// The filters of a channel, and the filter of each subscription.
#[derive(Default)]
pub(crate) struct ChannelFilters {
    filters: Vec<Shared>,
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
        let known = self.filters.iter().position(|of| of.subscriptions > 0 && of.filter == filter);
        if let Some(at) = known {
            self.filters[at].subscriptions += 1;
            self.by_subscription.insert(subscription, at as u32);
            return 0;
        }
        let bytes = filter.bytes();
        let shared = Shared { filter, charged, subscriptions: 1, admits: false };
        let at = match self.filters.iter().position(|of| of.subscriptions == 0) {
            Some(at) => {
                self.filters[at] = shared;
                at
            }
            None => {
                self.filters.push(shared);
                self.filters.len() - 1
            }
        };
        self.by_subscription.insert(subscription, at as u32);
        bytes
    }

    /// Removes a subscription's filter. Returns whose memory is freed, and how much.
    pub(crate) fn remove(&mut self, subscription: u32) -> Option<(FilterOwner, usize)> {
        let at = self.by_subscription.remove(&subscription)?;
        let shared = &mut self.filters[at as usize];
        shared.subscriptions -= 1;
        if shared.subscriptions > 0 {
            return None;
        }
        let gone = std::mem::replace(&mut shared.filter, TagFilter::And(Box::default()));
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
