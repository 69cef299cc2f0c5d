//! Which events anybody wants to hear of: what workers ask before they tell.

use std::sync::Arc;

use dunlin_config::{Hook, HookEventKind, Map, Pattern};
use hashbrown::HashMap;

/// Channels whose answer is remembered; beyond it all are forgotten and asked for again.
const CHANNELS_MAX: usize = 65_536;

/// A set of kinds of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventSet(u8);

impl EventSet {
    pub(crate) fn of(events: &[HookEventKind]) -> EventSet {
        EventSet(events.iter().fold(0, |set, &event| set | 1 << event as u8))
    }

    pub(crate) fn has(self, event: HookEventKind) -> bool {
        self.0 & 1 << event as u8 != 0
    }

    fn with(self, other: EventSet) -> EventSet {
        EventSet(self.0 | other.0)
    }
}

/// What all hooks of one configuration want.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    /// Wanted somewhere.
    anywhere: EventSet,
    /// Wanted in every channel.
    everywhere: EventSet,
    /// Wanted in the channels of a pattern.
    patterns: Vec<(EventSet, Pattern)>,
}

impl Wishes {
    pub(crate) fn of(hooks: &Map<Hook>) -> Wishes {
        let mut wishes = Wishes::default();
        for hook in hooks.values() {
            let events = EventSet::of(&hook.events);
            wishes.anywhere = wishes.anywhere.with(events);
            match &hook.channels {
                None => wishes.everywhere = wishes.everywhere.with(events),
                Some(pattern) => wishes.patterns.push((events, pattern.clone())),
            }
        }
        wishes
    }

    /// What is wanted in this channel.
    fn in_channel(&self, channel: &str) -> EventSet {
        let fits = self.patterns.iter().filter(|(_, pattern)| pattern.matches(channel));
        fits.fold(self.everywhere, |set, (events, _)| set.with(*events))
    }
}

/// A worker's view of the wishes, with what it has found out about channels.
#[derive(Debug, Default)]
pub(crate) struct Interest {
    wishes: Arc<Wishes>,
    channels: HashMap<Arc<str>, EventSet, foldhash::fast::RandomState>,
}

impl Interest {
    /// Wishes have changed, or not.
    pub(crate) fn follow(&mut self, wishes: &Arc<Wishes>) {
        if !Arc::ptr_eq(&self.wishes, wishes) {
            *self = Interest { wishes: Arc::clone(wishes), channels: HashMap::default() };
        }
    }

    /// Whether any hook wants such events, at least from some channel: the one branch there is without hooks.
    pub(crate) fn wants(&self, event: HookEventKind) -> bool {
        self.wishes.anywhere.has(event)
    }

    /// Whether any hook wants such events from this channel. Patterns are tried once a channel.
    pub(crate) fn wants_from(&mut self, event: HookEventKind, channel: &Arc<str>) -> bool {
        if !self.wants(event) {
            return false;
        }
        if self.wishes.everywhere.has(event) {
            return true;
        }
        if let Some(set) = self.channels.get(channel) {
            return set.has(event);
        }
        if self.channels.len() >= CHANNELS_MAX {
            self.channels.clear();
        }
        let set = self.wishes.in_channel(channel);
        self.channels.insert(Arc::clone(channel), set);
        set.has(event)
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
        let mut interest = Interest::default();
        assert!(!interest.wants(HookEventKind::Publish));

        let hooks: Map<Hook> = [
            ("chat", hook(&[HookEventKind::Publish, HookEventKind::Connect], Some("chat:*"))),
            ("all", hook(&[HookEventKind::Subscribe], None)),
        ]
        .into_iter()
        .collect();
        interest.follow(&Arc::new(Wishes::of(&hooks)));
        let (chat, news): (Arc<str>, Arc<str>) = ("chat:1".into(), "news".into());
        for _ in 0..2 {
            assert!(interest.wants_from(HookEventKind::Publish, &chat));
            assert!(!interest.wants_from(HookEventKind::Publish, &news));
            assert!(interest.wants_from(HookEventKind::Subscribe, &news));
        }
        assert!(interest.wants(HookEventKind::Connect), "which belongs to no channel");
        assert!(!interest.wants(HookEventKind::Disconnect));

        interest.follow(&Arc::new(Wishes::default()));
        assert!(!interest.wants_from(HookEventKind::Publish, &chat), "what was known is forgotten");
    }

    #[test]
    fn what_is_known_of_channels_is_bounded() {
        let hooks: Map<Hook> =
            [("chat", hook(&[HookEventKind::Publish], Some("chat:*")))].into_iter().collect();
        let mut interest = Interest::default();
        interest.follow(&Arc::new(Wishes::of(&hooks)));
        for channel in 0..2 * CHANNELS_MAX {
            interest.wants_from(HookEventKind::Publish, &Arc::from(format!("room:{channel}")));
        }
        assert!(interest.channels.len() <= CHANNELS_MAX);
    }
}
