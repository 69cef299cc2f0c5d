//! Channels a bounded page at a time, for those who look at a hub with a million of them.

use std::sync::Arc;

use super::Hub;
use crate::error::Error;
use crate::glob;

/// A pattern of channel names: `*` matches any characters, `?` one, `[a-z]`, `{chat,news}:*`; empty: all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelPattern(Vec<String>);

impl ChannelPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// [`Error::BadRequest`] for one that is malformed or stands for too many alternatives.
    pub fn parse(pattern: &str) -> Result<ChannelPattern, Error> {
        let patterns = if pattern.is_empty() { Some(Vec::new()) } else { glob::expand(pattern) };
        patterns.map(ChannelPattern).ok_or(Error::BadRequest)
    }

    /// Whether a name matches.
    pub fn admits(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|pattern| glob::matches(pattern, name))
    }

    /// The number of alternatives, which a name is compared with.
    pub fn alternatives(&self) -> usize {
        self.0.len().max(1)
    }

    /// The only name that matches, if the pattern is a name.
    fn name(&self) -> Option<&str> {
        match &*self.0 {
            [name] if !glob::is_pattern(name) => Some(name),
            _ => None,
        }
    }
}

impl Hub {
    /// Channels at home here that match, in the slots from `from` on, `places` at most: each with its slot. And the next slot
    /// unless all were visited. A channel is at home on one worker. `idle`: also those without subscribers, which have a
    /// history or a position.
    pub fn channels_page(
        &self,
        from: u32,
        places: u32,
        pattern: &ChannelPattern,
        idle: bool,
    ) -> (Vec<(u32, Arc<str>)>, Option<u32>) {
        let listed = |slot: u32| {
            let channel = self.homes.get(slot)?;
            let fits = (idle || !channel.interest.is_empty()) && pattern.admits(&channel.name);
            fits.then(|| (slot, Arc::clone(&channel.name)))
        };
        if let Some(name) = pattern.name() {
            let found = self.homes.find(&self.names, name).filter(|slot| *slot >= from);
            return (found.and_then(listed).into_iter().collect(), None);
        }
        let len = self.homes.indices().end;
        let end = from.saturating_add(places).min(len);
        ((from..end).filter_map(listed).collect(), (end < len).then_some(end))
    }

    /// The number of this worker's sessions that are subscribed to a channel.
    pub fn subscriber_count(&self, channel: &str) -> u64 {
        let channel = self.channels.find(&self.names, channel);
        channel.map_or(0, |at| self.channels[at].subscribers.len() as u64)
    }
}
