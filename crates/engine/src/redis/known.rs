//! What an engine knows of streams, so that a common publication needs no read.

use std::sync::Arc;

use dunlin_hub::engine::Retention;
use dunlin_hub::{Epoch, StreamPosition};

use super::{RedisEngine, Subscription};

/// What is known of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownStream {
    pub(crate) epoch: Epoch,
    /// The highest offset seen or acknowledged.
    pub(crate) top: u64,
    /// The number of the partition's generation in which this was learned; the epoch of an earlier one is not used any more.
    pub(crate) generation: u32,
    /// When this engine last renewed the times to live of the keys.
    pub(crate) renewed_ms: u64,
    /// When this was learned.
    pub(crate) seen_ms: u64,
    pub(crate) meta_ttl_ms: u64,
    /// Learned from the node that imports the slot: the epoch is not used at any other node.
    pub(crate) asked: bool,
}

impl RedisEngine {
    /// Updates what is known of a stream. `renewed` is the retention if the keys' times to live were renewed as well.
    pub(super) fn learn(
        &mut self,
        now_ms: u64,
        partition: usize,
        channel: &Arc<str>,
        position: StreamPosition,
        renewed: Option<Retention>,
    ) {
        let generation = self.partitions[partition].generations;
        let update = |known: Option<KnownStream>| {
            let known = known
                .filter(|known| known.epoch == position.epoch && known.generation == generation);
            let (top, renewed_ms, meta_ttl_ms) =
                known.map_or((0, 0, 0), |known| (known.top, known.renewed_ms, known.meta_ttl_ms));
            KnownStream {
                epoch: position.epoch,
                top: top.max(position.offset),
                generation,
                renewed_ms: if renewed.is_some() { now_ms } else { renewed_ms },
                seen_ms: now_ms,
                meta_ttl_ms: renewed.map_or(meta_ttl_ms, |retention| retention.meta_ttl_ms),
                asked: known.is_some_and(|known| known.asked),
            }
        };
        match self.subscription(channel) {
            Some(subscription) => subscription.known = Some(update(subscription.known)),
            None => self.remembered.set(channel, update(self.remembered.get(channel))),
        }
    }

    /// Returns what is known of a stream in the current generation of its partition's server.
    pub(super) fn known_now(&self, partition: usize, channel: &str) -> Option<KnownStream> {
        let generation = self.partitions[partition].generations;
        self.known(channel).filter(|known| known.generation == generation && !known.asked)
    }

    pub(super) fn known(&self, channel: &str) -> Option<KnownStream> {
        match self.partitions[self.keys.partition(channel)].subscriptions.get(channel) {
            Some(subscription) => subscription.known,
            None => self.remembered.get(channel),
        }
    }

    pub(super) fn subscription(&mut self, channel: &str) -> Option<&mut Subscription> {
        self.partitions[self.keys.partition(channel)].subscriptions.get_mut(channel)
    }

    pub(super) fn forget(&mut self, channel: &str) {
        match self.subscription(channel) {
            Some(subscription) => subscription.known = None,
            None => self.remembered.remove(channel),
        }
    }

    /// Marks what is known of a stream as learned from the importing node: it is evidence, and its epoch is not used to
    /// publish.
    pub(super) fn distrust(&mut self, channel: &Arc<str>) {
        let distrusted = |known: KnownStream| KnownStream { asked: true, ..known };
        match self.subscription(channel) {
            Some(subscription) => subscription.known = subscription.known.map(distrusted),
            None => {
                if let Some(known) = self.remembered.get(channel) {
                    self.remembered.set(channel, distrusted(known));
                }
            }
        }
    }
}
