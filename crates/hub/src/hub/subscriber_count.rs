//! Counts the sessions that a change of a namespace would affect.

use std::sync::Arc;

use super::Hub;

/// A count of the sessions subscribed to selected channels, in steps, so that a worker with a million
/// sessions is not blocked. Sessions that open or close meanwhile may or may not be counted.
#[derive(Debug, Default)]
pub struct SubscriberCount {
    /// The next channel, and the next of its subscribers.
    channel: u32,
    place: usize,
    /// A bit for each session slot, because most sessions have several subscriptions.
    seen: Vec<u64>,
    sessions: u64,
}

impl SubscriberCount {
    /// Distinct sessions found so far.
    pub fn sessions(&self) -> u64 {
        self.sessions
    }

    fn mark(&mut self, slot: u32) {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if word >= self.seen.len() {
            self.seen.resize(word + 1, 0);
        }
        self.sessions += u64::from(self.seen[word] & bit == 0);
        self.seen[word] |= bit;
    }
}

impl Hub {
    /// Continues a count for about `steps` channels and subscribers. `is_wanted` is called once for each
    /// channel with subscribers here, with its namespace and their number. Returns whether the count is
    /// complete.
    pub fn count_subscribers(
        &self,
        count: &mut SubscriberCount,
        steps: usize,
        mut is_wanted: impl FnMut(&Arc<str>, u64) -> bool,
    ) -> bool {
        let mut left = steps;
        let end = self.channels.indices().end;
        while count.channel < end {
            if left == 0 {
                return false;
            }
            left -= 1;
            let found = self.channels.get(count.channel);
            // The slot may have been reused for a channel with fewer subscribers.
            let Some(channel) = found.filter(|channel| channel.subscribers.len() > count.place)
            else {
                count.channel += 1;
                count.place = 0;
                continue;
            };
            let subscribers = channel.subscribers.len();
            if count.place == 0 && !is_wanted(&channel.options.namespace, subscribers as u64) {
                count.channel += 1;
                continue;
            }
            let to = subscribers.min(count.place + left + 1);
            left = left.saturating_sub(to - count.place);
            for subscriber in &channel.subscribers[count.place..to] {
                count.mark(subscriber.slot());
            }
            count.place = to;
        }
        true
    }
}
