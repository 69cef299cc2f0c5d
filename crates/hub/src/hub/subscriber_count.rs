//! How many a change of a namespace would concern.

use std::sync::Arc;

use super::Hub;

/// A count of the sessions subscribed to some channels, in pieces: a worker with a million of them does
/// other things in between. What comes or goes meanwhile may be counted or not.
#[derive(Debug, Default)]
pub struct SubscriberCount {
    /// Where to go on: a channel, and a place among its subscribers.
    channel: u32,
    place: usize,
    /// A bit a session: most are subscribed more than once.
    seen: Vec<u64>,
    sessions: u64,
}

impl SubscriberCount {
    /// Sessions found so far, each once.
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
    /// Goes on with a count, for about as many channels and subscribers as `steps` says. `is_wanted` is asked
    /// once for each channel that has subscribers here: its namespace, and how many they are. True when all
    /// have been looked at.
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
            // One that came to this place since has fewer subscribers than were counted of the one before.
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
