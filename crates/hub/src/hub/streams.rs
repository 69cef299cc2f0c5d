//! Streams of the channels at home here: creation, accounting, limits, expiry.
//!
//! To make room, an owner first loses its own channels, longest idle first, then the namespace with most of them. Memory is
//! taken from the largest [account](crate::accounts). A stream with publications is never evicted for one without. What can be
//! evicted is in a list, so a refusal is decided without a search.

use std::cmp::Reverse;
use std::sync::Arc;

use super::Hub;
use crate::accounts::{Arrival, OwnChannel};
use crate::error::Error;
use crate::history::Stream;
use crate::home_channel::HomeChannel;
use crate::options::ChannelOptions;
use crate::publication::Publication;
use crate::shares::{Idle, Owner};

/// Publications evicted to store one: at least this number, and as many more as fit in its place.
const EVICTIONS_MIN: usize = 1024;
const PUBLICATION_BYTES_MIN: usize = 64;

/// What an idle channel may be evicted for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictableFor {
    /// A channel without publications.
    Empty,
    /// A channel with its first publication.
    Publication,
}

impl Hub {
    /// The record of a channel at home here, created if necessary. `None` if the limit of its namespace or of
    /// this worker is reached.
    pub(super) fn home_channel(
        &mut self,
        name: &Arc<str>,
        options: &ChannelOptions,
        owner: Owner,
        wanted: EvictableFor,
    ) -> Option<u32> {
        if let Some(at) = self.homes.find(&self.names, name) {
            return Some(at);
        }
        let namespace = self.shares.namespace(&options.namespace);
        if !self.make_room(namespace, options, owner, wanted) {
            return None;
        }
        let record = HomeChannel::new(Arc::clone(name), namespace, self.next_incarnation());
        let at = self.homes.insert(&self.names, record, self.config.channels_max)?;
        self.shares.share_mut(namespace).channels += 1;
        Some(at)
    }

    /// Removes the record of a channel without a stream.
    pub(super) fn remove_home(&mut self, at: u32) {
        if let Some(home) = self.homes.remove(&self.names, at) {
            self.shares.share_mut(home.namespace).channels -= 1;
        }
    }

    /// A channel's stream, created if necessary. Its meta time to live begins now. `None` if the limit of its
    /// owner is reached; the channel is unchanged.
    pub(super) fn ensure_stream(
        &mut self,
        at: u32,
        options: &ChannelOptions,
        owner: Owner,
    ) -> Option<&mut Stream> {
        if self.homes[at].stream.is_none() {
            let owned_max = self.share_of(self.config.channels_per_owner_max);
            if owner != Owner::NONE
                && self.shares.owned(owner) >= owned_max
                && !self.evict_own_channel(owner, None)
            {
                return None;
            }
            let epoch = self.next_epoch();
            self.homes[at].stream = Some(Box::new(Stream::new(epoch, owner)));
            self.shares.add(owner);
            self.shares.relist(&mut self.homes, at);
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

    /// Makes room for a channel in its namespace and on this worker. Evicts channels without subscribers; a
    /// client that returns to one gets a new epoch.
    fn make_room(
        &mut self,
        namespace: u32,
        options: &ChannelOptions,
        owner: Owner,
        wanted: EvictableFor,
    ) -> bool {
        if let Some(all) = options.channels_max
            && self.shares.share(namespace).channels >= self.share_of(all)
            && !self.evict_own_channel(owner, Some(namespace))
            && !self.evict_idle(Idle::Empty, Some(namespace))
        {
            return false;
        }
        if self.homes.len() < self.config.channels_max
            || self.evict_own_channel(owner, None)
            || self.evict_idle(Idle::Empty, None)
        {
            return true;
        }
        if wanted == EvictableFor::Empty {
            return false;
        }
        match self.shares.accounts.own_channel(&mut self.homes, namespace, owner) {
            OwnChannel::Idle(at) => self.evict_home(at),
            OwnChannel::InUse => false,
            OwnChannel::None => self.evict_idle(Idle::Holding, None),
        }
    }

    /// This worker's share of a limit of the process.
    fn share_of(&self, all: u32) -> u32 {
        all.div_ceil(u32::from(self.config.workers))
    }

    /// Evicts the oldest empty channel created by this owner, optionally of one namespace.
    fn evict_own_channel(&mut self, owner: Owner, namespace: Option<u32>) -> bool {
        let oldest = self.shares.own_empty(&mut self.homes, owner, namespace);
        oldest.is_some_and(|at| self.evict_home(at))
    }

    /// Evicts the channel that nobody has been in for longest, of this namespace or of the one with most of them.
    fn evict_idle(&mut self, idle: Idle, namespace: Option<u32>) -> bool {
        let longest = self.shares.longest_idle(idle, namespace);
        longest.is_some_and(|at| self.evict_home(at))
    }

    fn evict_home(&mut self, at: u32) -> bool {
        if let Some(stream) = &self.homes[at].stream {
            self.stats.history_evicted += stream.len() as u64;
        }
        self.stats.channels_evicted += 1;
        self.end_agent(at, Error::LimitExceeded);
        self.end_stream(at);
        self.remove_home(at);
        true
    }

    /// Removes a channel's publications.
    pub(super) fn clear_history(&mut self, at: u32) {
        let Some(stream) = &mut self.homes[at].stream else { return };
        let bytes = stream.clear();
        self.count_history(at, -(bytes as isize));
    }

    /// Accounts for a change of the memory of a channel's publications.
    fn count_history(&mut self, at: u32, by: isize) {
        self.history_bytes = self.history_bytes.saturating_add_signed(by);
        let Self { homes, shares, .. } = self;
        if homes[at].stream.is_some() {
            shares.change_bytes(homes[at].namespace, by);
            shares.accounts.update(homes, at, by);
            shares.relist(homes, at);
        }
    }

    /// Ends a channel's stream and its epoch.
    pub(super) fn end_stream(&mut self, at: u32) {
        self.clear_history(at);
        let Self { homes, shares, .. } = self;
        shares.unlist(homes, at);
        if let Some(stream) = homes[at].stream.take() {
            shares.remove(stream.owner);
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

    fn own_history_bytes_max(&self, options: &ChannelOptions) -> usize {
        let own = |all: usize| all.div_ceil(usize::from(self.config.workers));
        options.history_bytes_max.map_or(usize::MAX, own)
    }

    /// Appends a publication to its channel's history, charged to its publisher. A publication larger than the limit of
    /// history is not stored and evicts no other.
    pub(super) fn append_history(
        &mut self,
        at: u32,
        publication: &Publication,
        options: &ChannelOptions,
        publisher: Owner,
    ) {
        let cost = publication.cost();
        if cost > self.config.history_bytes_max.min(self.own_history_bytes_max(options)) {
            self.stats.history_evicted += 1;
            return;
        }
        self.make_room_in_history(Arrival { channel: at, publisher, cost }, options);
        let Self { homes, shares, .. } = self;
        if homes[at].stream.is_none() {
            return;
        }
        // Its links are those of its owner's empty streams, or those of an account.
        shares.unlist(homes, at);
        shares.accounts.begin(homes, at, publisher);
        let Some(stream) = &mut self.homes[at].stream else { return };
        let grown = stream.keep(publication.clone(), options.history_size as usize);
        stream.expires_ms = self.now.ms + options.history_ttl_ms;
        self.count_history(at, grown);
        self.schedule_timer(at);
    }

    /// Inserts publications that were read elsewhere before a channel's history, if there is room for all of
    /// them.
    pub(super) fn fill_history(&mut self, at: u32, read: &[Publication]) {
        let Some(agent) = self.engines.agents.get(&at) else { return };
        let options = Arc::clone(&agent.options);
        let cost: usize = read.iter().map(|publication| publication.cost()).sum();
        let own = self.shares.share(self.homes[at].namespace).bytes;
        if self.history_bytes + cost > self.config.history_bytes_max
            || own.saturating_add(cost) > self.own_history_bytes_max(&options)
        {
            return;
        }
        let Some(stream) = &mut self.homes[at].stream else { return };
        let grown = stream.fill(read, options.history_size as usize);
        if grown > 0 {
            stream.expires_ms = self.now.ms + options.history_ttl_ms;
            self.count_history(at, grown);
            self.schedule_timer(at);
        }
    }

    /// Evicts publications until `cost` fits: from the namespace if it has reached its limit, otherwise from
    /// the largest one. Evicts more than required, so that a lowered limit is reached after some calls.
    fn make_room_in_history(&mut self, arrival: Arrival, options: &ChannelOptions) {
        let cost = arrival.cost;
        let mut evictions = EVICTIONS_MIN + cost / PUBLICATION_BYTES_MIN;
        let own_max = self.own_history_bytes_max(options);
        let namespace = self.homes[arrival.channel].namespace;
        loop {
            let own_excess = (self.shares.share(namespace).bytes + cost).saturating_sub(own_max);
            let excess = (self.history_bytes + cost).saturating_sub(self.config.history_bytes_max);
            let (victim, floor, mut wanted) = match (own_excess, excess) {
                (0, 0) => return,
                (0, _) => {
                    let (largest, next) = self.shares.largest();
                    // Prevents two namespaces of equal size from alternating with each publication.
                    (largest, next / 8 * 7, excess)
                }
                _ => (namespace, 0, own_excess),
            };
            while wanted > 0 && evictions > 0 && self.shares.share(victim).bytes > floor {
                let (count, bytes) = self.evict_oldest(victim, arrival, wanted, evictions);
                wanted = wanted.saturating_sub(bytes);
                evictions = evictions.saturating_sub(count.max(1));
            }
            if evictions == 0 {
                return;
            }
        }
    }

    /// Evicts the oldest publications of the account that pays in a namespace: at least one, and no more than
    /// until another account pays. Returns their number and memory.
    fn evict_oldest(
        &mut self,
        victim: u32,
        arrival: Arrival,
        wanted: usize,
        count_max: usize,
    ) -> (usize, usize) {
        let eviction = self.shares.accounts.eviction(&self.homes, victim, arrival);
        let Some(eviction) = eviction else { return (0, 0) };
        let Some(stream) = &mut self.homes[eviction.channel].stream else { return (0, 0) };
        let (mut count, mut freed) = (0, 0);
        let bytes_max = wanted.min(eviction.bytes).max(1);
        while stream.len() > 0 && count < count_max && freed < bytes_max {
            freed += stream.evict();
            count += 1;
        }
        self.stats.history_evicted += count as u64;
        self.count_history(eviction.channel, -(freed as isize));
        (count, freed)
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
