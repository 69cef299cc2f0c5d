//! Accounts a worker's streams and their memory by namespace and by owner.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

/// The user that created a stream, or the address if the client has no user. Streams created by the server have no owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Owner(pub(crate) u32);

impl Owner {
    /// No owner: for callers of an API.
    pub const NONE: Owner = Owner(0);
}

/// A namespace's channels and memory on this worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceShare {
    /// Its name ([`ChannelOptions::namespace`](crate::ChannelOptions)).
    pub name: Arc<str>,
    /// Its channels at home here.
    pub channels: u32,
    /// Memory of its publications, in bytes.
    pub history_bytes: usize,
}

/// A namespace's share.
#[derive(Default)]
pub(crate) struct Share {
    name: Arc<str>,
    /// Its channels at home here, for whatever reason they exist.
    pub(crate) channels: u32,
    /// Memory of its publications.
    pub(crate) bytes: usize,
    /// Indices of its channels that hold publications; each stream knows its place here.
    pub(crate) holders: Vec<u32>,
    /// The place that was visited last.
    pub(crate) cursor: usize,
}

impl Share {
    /// Returns the next of the channels that hold publications, in rotation.
    pub(crate) fn next_holder(&mut self) -> Option<u32> {
        self.cursor = if self.cursor + 1 < self.holders.len() { self.cursor + 1 } else { 0 };
        self.holders.get(self.cursor).copied()
    }
}

/// The streams of one owner.
#[derive(Default)]
struct Owned {
    streams: u32,
    /// Index and incarnation of the channels, oldest first; includes some whose stream has ended.
    channels: VecDeque<(u32, u32)>,
}

/// The shares of one worker.
#[derive(Default)]
pub(crate) struct Shares {
    names: HashMap<Arc<str>, u32, RandomState>,
    namespaces: Vec<Share>,
    by_bytes: Ranking,
    by_holders: Ranking,
    owners: HashMap<Owner, Owned, RandomState>,
    /// Number of channels with subscribers here, by owner.
    live: HashMap<Owner, u32, RandomState>,
}

impl Shares {
    /// Returns the index of a namespace, adding it if it is new.
    pub(crate) fn namespace(&mut self, name: &Arc<str>) -> u32 {
        if let Some(&at) = self.names.get(name) {
            return at;
        }
        let at = self.namespaces.len() as u32;
        self.namespaces.push(Share { name: Arc::clone(name), ..Share::default() });
        self.by_bytes.push();
        self.by_holders.push();
        self.names.insert(Arc::clone(name), at);
        at
    }

    /// Returns the index of a known namespace.
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    /// Returns the shares of at most `places` namespaces from index `from` on, and the next index unless all were visited.
    pub(crate) fn page(&self, from: u32, places: u32) -> (Vec<NamespaceShare>, Option<u32>) {
        let len = self.namespaces.len() as u32;
        let end = from.saturating_add(places).min(len);
        let of = |share: &Share| NamespaceShare {
            name: Arc::clone(&share.name),
            channels: share.channels,
            history_bytes: share.bytes,
        };
        let page = self.namespaces.get(from as usize..end as usize).unwrap_or_default();
        (page.iter().map(of).collect(), (end < len).then_some(end))
    }

    pub(crate) fn share(&self, namespace: u32) -> &Share {
        &self.namespaces[namespace as usize]
    }

    pub(crate) fn share_mut(&mut self, namespace: u32) -> &mut Share {
        &mut self.namespaces[namespace as usize]
    }

    /// Returns the namespace with the largest history, and the size of the second largest in bytes.
    pub(crate) fn largest(&self) -> (u32, usize) {
        (self.by_bytes.first(), self.by_bytes.second())
    }

    /// Returns the namespace with the most channels that hold publications.
    pub(crate) fn most_holders(&self) -> u32 {
        self.by_holders.first()
    }

    /// Changes the memory of a namespace's publications, in bytes.
    pub(crate) fn change_bytes(&mut self, namespace: u32, by: isize) {
        let bytes = &mut self.namespaces[namespace as usize].bytes;
        *bytes = bytes.saturating_add_signed(by);
        self.by_bytes.set(namespace, *bytes);
    }

    /// Adds a channel with its first publication. Returns its place in the list of its namespace.
    pub(crate) fn list(&mut self, namespace: u32, channel: u32) -> u32 {
        let holders = &mut self.namespaces[namespace as usize].holders;
        holders.push(channel);
        self.by_holders.set(namespace, holders.len());
        (holders.len() - 1) as u32
    }

    /// Removes the channel at this place, which has no publications any more. Returns the channel that has its place now.
    pub(crate) fn unlist(&mut self, namespace: u32, place: u32) -> Option<u32> {
        let holders = &mut self.namespaces[namespace as usize].holders;
        holders.swap_remove(place as usize);
        if holders.len() * 4 <= holders.capacity() {
            holders.shrink_to(holders.len() * 2);
        }
        self.by_holders.set(namespace, holders.len());
        holders.get(place as usize).copied()
    }

    /// Counts a channel with subscribers for an owner. Returns `false` if the owner has `max` of them.
    pub(crate) fn add_live(&mut self, owner: Owner, max: u32) -> bool {
        if owner == Owner::NONE {
            return true;
        }
        let live = self.live.entry(owner).or_default();
        let fits = *live < max;
        *live += u32::from(fits);
        fits
    }

    /// Uncounts a channel that has no subscribers any more, or has another owner now.
    pub(crate) fn remove_live(&mut self, owner: Owner) {
        if let Entry::Occupied(mut live) = self.live.entry(owner) {
            *live.get_mut() -= 1;
            if *live.get() == 0 {
                live.remove();
                if self.live.len() * 8 <= self.live.capacity() {
                    self.live.shrink_to(self.live.len() * 2);
                }
            }
        }
    }

    /// Returns the number of an owner's streams.
    pub(crate) fn owned(&self, owner: Owner) -> u32 {
        self.owners.get(&owner).map_or(0, |owned| owned.streams)
    }

    /// Adds a stream of this owner in this channel.
    pub(crate) fn add(&mut self, owner: Owner, channel: (u32, u32)) {
        if owner != Owner::NONE {
            let owned = self.owners.entry(owner).or_default();
            owned.streams += 1;
            owned.channels.push_back(channel);
        }
    }

    /// Removes a stream of this owner. `is_owned` tests whether a channel still has one.
    pub(crate) fn remove(&mut self, owner: Owner, is_owned: impl Fn((u32, u32)) -> bool) {
        let Some(owned) = self.owners.get_mut(&owner) else { return };
        owned.streams -= 1;
        if owned.streams == 0 {
            self.owners.remove(&owner);
        } else if owned.channels.len() > 2 * owned.streams as usize + 16 {
            owned.channels.retain(|&channel| is_owned(channel));
            owned.channels.shrink_to(owned.channels.len() * 2);
        }
    }

    /// Returns the oldest channel of an owner that may be evicted, among its first `steps_max`. Streams that may
    /// not be evicted move to the end; entries of ended ones are dropped.
    pub(crate) fn oldest(
        &mut self,
        owner: Owner,
        steps_max: usize,
        may_go: impl Fn((u32, u32)) -> Option<bool>,
    ) -> Option<u32> {
        let owned = self.owners.get_mut(&owner)?;
        for _ in 0..owned.channels.len().min(steps_max) {
            let channel = owned.channels.pop_front()?;
            match may_go(channel) {
                Some(true) => return Some(channel.0),
                Some(false) => owned.channels.push_back(channel),
                None => {}
            }
        }
        None
    }
}

/// Namespaces ordered by a number of each, with the largest first. A binary heap that knows the place of each namespace,
/// because most changes are small and move nothing.
#[derive(Default)]
struct Ranking {
    /// Numbers with their namespaces. No parent's number is below a child's.
    heap: Vec<(usize, u32)>,
    /// Where each namespace is in the heap.
    places: Vec<u32>,
}

impl Ranking {
    /// Adds a namespace with 0.
    fn push(&mut self) {
        let next = self.heap.len() as u32;
        self.heap.push((0, next));
        self.places.push(next);
    }

    fn first(&self) -> u32 {
        self.heap.first().map_or(0, |&(_, of)| of)
    }

    /// Returns the second largest number.
    fn second(&self) -> usize {
        self.heap.iter().skip(1).take(2).map(|&(number, _)| number).max().unwrap_or(0)
    }

    fn set(&mut self, of: u32, number: usize) {
        let mut at = self.places[of as usize] as usize;
        self.heap[at].0 = number;
        while at > 0 && self.heap[(at - 1) / 2].0 < number {
            at = self.swap(at, (at - 1) / 2);
        }
        while let Some(larger) =
            (2 * at + 1..self.heap.len().min(2 * at + 3)).max_by_key(|&child| self.heap[child].0)
            && self.heap[larger].0 > number
        {
            at = self.swap(at, larger);
        }
    }

    /// Exchanges two places; returns the second.
    fn swap(&mut self, one: usize, other: usize) -> usize {
        self.heap.swap(one, other);
        for place in [one, other] {
            self.places[self.heap[place].1 as usize] = place as u32;
        }
        other
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_largest_of_all_is_known_whatever_changes(
            changes in proptest::collection::vec((0..40_u32, 0..50_usize), 1..300)
        ) {
            let mut ranking = Ranking::default();
            let mut numbers = [0; 40];
            numbers.iter().for_each(|_| ranking.push());
            for (of, number) in changes {
                numbers[of as usize] = number;
                ranking.set(of, number);
                let first = numbers[ranking.first() as usize];
                prop_assert_eq!(Some(first), numbers.iter().max().copied());
                let mut sorted = numbers;
                sorted.sort_unstable();
                prop_assert_eq!(ranking.second(), sorted[38]);
            }
        }
    }
}
