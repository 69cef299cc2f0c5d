//! The events that hooks select. Producers check them before they create an event.

use std::sync::Arc;

use dunlin_config::{Hook, HookEventKind, Map, Pattern};
use dunlin_hub::{glob, tenant};
use hashbrown::HashMap;

/// Maximum number of channels with cached kinds; beyond it the cache is cleared.
const CHANNELS_MAX: usize = 65_536;

/// A set of event kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KindSet(u16);

impl KindSet {
    pub(crate) fn of(kinds: &[HookEventKind]) -> KindSet {
        KindSet(kinds.iter().fold(0, |set, &kind| set | 1 << kind as u8))
    }

    pub(crate) fn contains(self, kind: HookEventKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    fn union(self, other: KindSet) -> KindSet {
        KindSet(self.0 | other.0)
    }
}

/// The event kinds that the hooks of a configuration select, by channel.
#[derive(Debug, Default)]
pub struct EventFilter {
    /// Selected from at least one channel.
    anywhere: KindSet,
    /// Selected from every channel.
    everywhere: KindSet,
    /// Selected from channels that match a pattern.
    patterns: Vec<(KindSet, Pattern)>,
}

impl EventFilter {
    /// Creates the filter for these hooks.
    pub fn of(hooks: &Map<Hook>) -> EventFilter {
        let mut filter = EventFilter::default();
        for hook in hooks.values() {
            let kinds = KindSet::of(&hook.events);
            filter.anywhere = filter.anywhere.union(kinds);
            match &hook.channels {
                None => filter.everywhere = filter.everywhere.union(kinds),
                Some(pattern) => filter.patterns.push((kinds, pattern.clone())),
            }
        }
        filter
    }

    fn in_channel(&self, channel: &str) -> KindSet {
        // Includes channels with this name of all tenants; the hooks of an event are determined later.
        let channel = tenant::bare(channel);
        let matching =
            self.patterns.iter().filter(|(_, pattern)| glob::matches(pattern.as_str(), channel));
        matching.fold(self.everywhere, |set, (kinds, _)| set.union(*kinds))
    }
}

/// An [`EventFilter`] of one producer with a cache: patterns are matched once per channel.
#[derive(Debug, Default)]
pub struct FilterCache {
    filter: Arc<EventFilter>,
    channels: HashMap<Arc<str>, KindSet, foldhash::fast::RandomState>,
}

impl FilterCache {
    /// Switches to the filter of the current settings. The cache is kept if the filter has not changed.
    pub fn set_filter(&mut self, filter: &Arc<EventFilter>) {
        if !Arc::ptr_eq(&self.filter, filter) {
            *self = FilterCache { filter: Arc::clone(filter), channels: HashMap::default() };
        }
    }

    /// Returns whether any hook selects such events from at least one channel. Without hooks this is the only branch.
    pub fn wants(&self, kind: HookEventKind) -> bool {
        self.filter.anywhere.contains(kind)
    }

    /// Returns whether any hook selects such events from this channel.
    pub fn wants_from(&mut self, kind: HookEventKind, channel: &Arc<str>) -> bool {
        if !self.wants(kind) {
            return false;
        }
        if self.filter.everywhere.contains(kind) {
            return true;
        }
        if let Some(set) = self.channels.get(channel) {
            return set.contains(kind);
        }
        if self.channels.len() >= CHANNELS_MAX {
            self.channels.clear();
        }
        let set = self.filter.in_channel(channel);
        self.channels.insert(Arc::clone(channel), set);
        set.contains(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(events: &[HookEventKind], channels: Option<&str>) -> Hook {
        let channels = channels.map(|pattern| Pattern::parse(pattern).unwrap());
        Hook { events: events.into(), channels, ..Hook::default() }
    }

    #[test]
    fn patterns_decide_by_channel_and_events_without_one_by_kind() {
        let mut cache = FilterCache::default();
        assert!(!cache.wants(HookEventKind::Publish));

        let hooks: Map<Hook> = [
            ("chat", hook(&[HookEventKind::Publish, HookEventKind::Connect], Some("chat:*"))),
            ("all", hook(&[HookEventKind::Subscribe], None)),
        ]
        .into_iter()
        .collect();
        cache.set_filter(&Arc::new(EventFilter::of(&hooks)));
        let (chat, news): (Arc<str>, Arc<str>) = ("chat:1".into(), "news".into());
        for _ in 0..2 {
            assert!(cache.wants_from(HookEventKind::Publish, &chat));
            assert!(!cache.wants_from(HookEventKind::Publish, &news));
            assert!(cache.wants_from(HookEventKind::Subscribe, &news));
        }
        assert!(cache.wants(HookEventKind::Connect), "it belongs to no channel");
        assert!(!cache.wants(HookEventKind::Disconnect));

        cache.set_filter(&Arc::new(EventFilter::default()));
        assert!(!cache.wants_from(HookEventKind::Publish, &chat), "the cache is cleared");
    }

    #[test]
    fn the_cache_is_bounded() {
        let hooks: Map<Hook> =
            [("chat", hook(&[HookEventKind::Publish], Some("chat:*")))].into_iter().collect();
        let mut cache = FilterCache::default();
        cache.set_filter(&Arc::new(EventFilter::of(&hooks)));
        for channel in 0..2 * CHANNELS_MAX {
            cache.wants_from(HookEventKind::Publish, &Arc::from(format!("room:{channel}")));
        }
        assert!(cache.channels.len() <= CHANNELS_MAX);
    }
}
