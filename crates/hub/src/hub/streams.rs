//! Streams of the channels at home here: begun, counted, bounded, expired.
//!
//! Whoever wants room gives up something of his own first: a maker his empty streams, a namespace its oldest publications,
//! and in it the channel that is published to. What has publications never gives way to what has none.

use std::cmp::Reverse;
use std::sync::Arc;

use super::Hub;
use crate::history::Stream;
use crate::home_channel::HomeChannel;
use crate::options::ChannelOptions;
use crate::publication::Publication;
use crate::shares::{Maker, Owner};
use crate::slots::NONE;

/// Home channels examined to make room for one channel, publications evicted for one.
const EVICTION_STEPS_MAX: usize = 1024;
/// Channels of which the one with the largest history gives some up.
const SAMPLE: u32 = 16;

/// What an idle channel may give way to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A channel without publications.
    Empty,
    /// A channel whose first publication is here.
    Publication,
}

impl Hub {
    /// The record of a channel at home here, made if there is none. `None` at the limit.
    pub(super) fn home_channel(
        &mut self,
        name: &Arc<str>,
        options: &ChannelOptions,
        maker: Maker,
        wanted: Wanted,
    ) -> Option<u32> {
        if let Some(at) = self.homes.find(&self.names, name) {
            return Some(at);
        }
        if self.homes.len() >= self.config.channels_max {
            self.evict_channel(options, maker, wanted);
        }
        let record = HomeChannel::new(Arc::clone(name), self.next_incarnation());
        self.homes.insert(&self.names, record, self.config.channels_max)
    }

    /// A channel's stream, begun if there is none. Its meta time to live counts from now. `None` when its maker or its
    /// namespace has as many as it may; the channel is as it was.
    pub(super) fn ensure_stream(
        &mut self,
        at: u32,
        options: &ChannelOptions,
        maker: Maker,
    ) -> Option<&mut Stream> {
        if self.homes[at].stream.is_none() {
            let owner = Owner { namespace: self.shares.namespace(&options.namespace), maker };
            if !self.has_room_for_stream(owner, options) {
                return None;
            }
            let epoch = self.next_epoch();
            self.homes[at].stream = Some(Box::new(Stream::new(epoch, owner)));
            self.shares.add(owner, (at, self.homes[at].incarnation));
        }
        let meta_ttl_ms = match options.history_meta_ttl_ms {
            0 => self.config.history_meta_ttl_ms,
            ttl_ms => ttl_ms,
        };
        let now_ms = self.now.ms;
        if let Some(stream) = &mut self.homes[at].stream {
            stream.meta_ttl_ms = meta_ttl_ms;
            stream.meta_expires_ms = now_ms + meta_ttl_ms;
        }
        self.schedule_timer(at);
        self.homes[at].stream.as_deref_mut()
    }

    fn has_room_for_stream(&mut self, owner: Owner, options: &ChannelOptions) -> bool {
        let made_max = self.share_of(self.config.streams_per_maker_max);
        if owner.maker != Maker::NONE
            && self.shares.made(owner.maker) >= made_max
            && !self.evict_own_channel(owner.maker)
        {
            return false;
        }
        let streams_max = self.share_of(options.channels_max);
        options.channels_max == 0
            || self.shares.share(owner.namespace).streams < streams_max
            || self.evict_own_channel(owner.maker)
            || self.evict_where(|home, stream| {
                stream.owner.namespace == owner.namespace && home.is_forgettable(stream)
            })
    }

    /// This worker's part of a bound that holds for the process.
    fn share_of(&self, all: u32) -> u32 {
        all.div_ceil(u32::from(self.config.workers))
    }

    /// Evicts a channel that nobody is subscribed to, so that another may begin. A client that returns to it sees a new
    /// epoch.
    fn evict_channel(&mut self, options: &ChannelOptions, maker: Maker, wanted: Wanted) {
        if self.evict_own_channel(maker)
            || self.evict_where(|home, stream| home.is_forgettable(stream))
            || wanted == Wanted::Empty
        {
            return;
        }
        let own = self.shares.namespace(&options.namespace);
        let largest = self.shares.most_streams();
        let _ = self.evict_where(|home, stream| {
            home.is_idle() && [own, largest].contains(&stream.owner.namespace)
        });
    }

    /// Evicts the oldest channel that this maker has made and that holds nothing.
    fn evict_own_channel(&mut self, maker: Maker) -> bool {
        let Self { shares, homes, .. } = self;
        let oldest = shares.oldest(maker, EVICTION_STEPS_MAX, |(at, incarnation)| {
            let home = homes.get(at).filter(|home| home.incarnation == incarnation)?;
            let stream = home.stream.as_ref().filter(|stream| stream.owner.maker == maker)?;
            Some(home.is_forgettable(stream))
        });
        oldest.is_some_and(|at| self.evict_home(at))
    }

    /// Evicts the next channel of which this is true, if one is found in time.
    fn evict_where(&mut self, may_go: impl Fn(&HomeChannel, &Stream) -> bool) -> bool {
        let channels = self.homes.indices().end;
        for _ in 0..EVICTION_STEPS_MAX.min(channels as usize) {
            self.history_cursor = (self.history_cursor + 1) % channels;
            let at = self.history_cursor;
            let Some(home) = self.homes.get(at) else { continue };
            if home.stream.as_ref().is_some_and(|stream| may_go(home, stream)) {
                return self.evict_home(at);
            }
        }
        false
    }

    fn evict_home(&mut self, at: u32) -> bool {
        if let Some(stream) = &self.homes[at].stream {
            self.stats.history_evicted += stream.len() as u64;
        }
        self.stats.channels_evicted += 1;
        self.end_stream(at);
        self.homes.remove(&self.names, at);
        true
    }

    /// Removes a channel's publications.
    pub(super) fn clear_history(&mut self, at: u32) {
        let Some(stream) = &mut self.homes[at].stream else { return };
        let bytes = stream.clear();
        self.count_history(at, -(bytes as isize));
    }

    /// The memory of a channel's publications has changed by this.
    fn count_history(&mut self, at: u32, by: isize) {
        self.history_bytes = self.history_bytes.saturating_add_signed(by);
        let Self { homes, shares, .. } = self;
        let Some(stream) = &mut homes[at].stream else { return };
        let namespace = stream.owner.namespace;
        shares.change_bytes(namespace, by);
        let place = stream.listed_at;
        if (stream.len() > 0) == (place != NONE) {
            return;
        }
        if place == NONE {
            stream.listed_at = shares.list(namespace, at);
            return;
        }
        stream.listed_at = NONE;
        let moved = shares.unlist(namespace, place);
        if let Some(stream) = moved.and_then(|moved| homes[moved].stream.as_mut()) {
            stream.listed_at = place;
        }
    }

    /// Ends a channel's stream: its epoch with it.
    fn end_stream(&mut self, at: u32) {
        self.clear_history(at);
        let Self { homes, shares, .. } = self;
        if let Some(stream) = homes[at].stream.take() {
            shares.remove(stream.owner, |(at, incarnation)| {
                let home = homes.get(at).filter(|home| home.incarnation == incarnation);
                home.and_then(|home| home.stream.as_ref())
                    .is_some_and(|other| other.owner.maker == stream.owner.maker)
            });
        }
    }

    /// Expires streams.
    pub(super) fn expire_streams(&mut self) {
        while let Some(&Reverse((due, at, incarnation))) = self.stream_timers.peek() {
            if due > self.now.ms {
                return;
            }
            self.stream_timers.pop();
            if self.homes.get(at).is_none_or(|home| home.incarnation != incarnation) {
                continue;
            }
            let Some(stream) = &mut self.homes[at].stream else { continue };
            if stream.timer_ms != due {
                continue;
            }
            stream.timer_ms = u64::MAX;
            if stream.expires_ms <= self.now.ms {
                stream.expires_ms = u64::MAX;
                self.clear_history(at);
            }
            let home = &mut self.homes[at];
            let Some(stream) = &mut home.stream else { continue };
            if stream.meta_expires_ms <= self.now.ms {
                if home.interest.is_empty() {
                    self.end_stream(at);
                    self.remove_if_empty(at);
                    continue;
                }
                stream.meta_expires_ms = self.now.ms + stream.meta_ttl_ms;
            }
            self.schedule_timer(at);
        }
    }

    /// Appends a publication to its channel's history.
    pub(super) fn append_history(
        &mut self,
        at: u32,
        publication: &Arc<Publication>,
        options: &ChannelOptions,
    ) {
        let cost = publication.cost();
        let Some(stream) = &self.homes[at].stream else { return };
        let namespace = stream.owner.namespace;
        let own_max = match options.history_bytes_max {
            0 => usize::MAX,
            all => all.div_ceil(usize::from(self.config.workers)),
        };
        let bytes_max = self.config.history_bytes_max;
        for _ in 0..EVICTION_STEPS_MAX {
            let payer = if self.shares.share(namespace).bytes + cost > own_max {
                namespace
            } else if self.history_bytes + cost > bytes_max {
                self.shares.largest()
            } else {
                break;
            };
            if !self.evict_oldest(payer, at) {
                break;
            }
        }
        let Some(stream) = &mut self.homes[at].stream else { return };
        let grown = stream.keep(Arc::clone(publication), options.history_size as usize);
        stream.expires_ms = self.now.ms + options.history_ttl_ms;
        self.count_history(at, grown);
        if self.history_bytes > bytes_max || self.shares.share(namespace).bytes > own_max {
            self.stats.history_evicted +=
                self.homes[at].stream.as_ref().map_or(0, |of| of.len() as u64);
            self.clear_history(at);
        }
        self.schedule_timer(at);
    }

    /// Evicts the oldest publication of one of a namespace's channels: of the one that is published to, if it is the
    /// namespace's and holds as much as others on average, else of the one that holds most among some. False when it has none.
    fn evict_oldest(&mut self, payer: u32, published: u32) -> bool {
        let Self { homes, shares, history_cursor, .. } = self;
        let share = shares.share(payer);
        let held = |at: u32| homes.get(at)?.stream.as_ref().filter(|stream| stream.len() > 0);
        let own = held(published).filter(|stream| stream.owner.namespace == payer);
        let mut most = own.map(|stream| (stream.bytes(), published));
        let average = share.bytes / share.channels.len().max(1);
        if most.is_none_or(|(bytes, _)| bytes < average) {
            let channels = share.channels.len() as u32;
            for _ in 0..channels.min(SAMPLE) {
                *history_cursor = (*history_cursor + 1) % channels;
                let at = share.channels[*history_cursor as usize];
                most = most.max(held(at).map(|stream| (stream.bytes(), at)));
            }
        }
        let Some((_, at)) = most else { return false };
        let Some(stream) = &mut self.homes[at].stream else { return false };
        let freed = stream.evict();
        self.stats.history_evicted += 1;
        self.count_history(at, -(freed as isize));
        true
    }

    /// Schedules the next expiry of a stream.
    fn schedule_timer(&mut self, at: u32) {
        let home = &mut self.homes[at];
        let Some(stream) = &mut home.stream else { return };
        let due = stream.expires_ms.min(stream.meta_expires_ms);
        if due < stream.timer_ms {
            stream.timer_ms = due;
            self.stream_timers.push(Reverse((due, at, home.incarnation)));
        }
    }
}
