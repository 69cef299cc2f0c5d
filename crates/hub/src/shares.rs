//! Who holds how much of a worker's streams and of their memory: by namespace, and by who brought a stream into being.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Who brings a stream into being: a user, or the address of those without one. The server itself is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Maker(pub(crate) u32);

impl Maker {
    /// The caller of an API, whose streams count as nobody's.
    pub const NONE: Maker = Maker(0);
}

/// What a stream is counted under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Index of its namespace in [`Shares`].
    pub(crate) namespace: u32,
    pub(crate) maker: Maker,
}

/// A namespace's share.
#[derive(Default)]
pub(crate) struct Share {
    pub(crate) streams: u32,
    /// Memory of its publications.
    pub(crate) bytes: usize,
    /// Its channels that have publications, in no order.
    pub(crate) channels: Vec<u32>,
}

/// The streams of one maker.
#[derive(Default)]
struct Made {
    streams: u32,
    /// Index and incarnation of the channels, oldest first; those whose stream is gone among them.
    channels: VecDeque<(u32, u32)>,
}

/// The shares of one worker.
#[derive(Default)]
pub(crate) struct Shares {
    names: HashMap<Arc<str>, u32, RandomState>,
    namespaces: Vec<Share>,
    by_bytes: Ranking,
    by_streams: Ranking,
    makers: HashMap<Maker, Made, RandomState>,
}

impl Shares {
    /// The index of a namespace.
    pub(crate) fn namespace(&mut self, name: &Arc<str>) -> u32 {
        if let Some(&at) = self.names.get(name) {
            return at;
        }
        let at = self.namespaces.len() as u32;
        self.namespaces.push(Share::default());
        self.by_bytes.push();
        self.by_streams.push();
        self.names.insert(Arc::clone(name), at);
        at
    }

    pub(crate) fn share(&self, namespace: u32) -> &Share {
        &self.namespaces[namespace as usize]
    }

    /// The namespace whose history is largest.
    pub(crate) fn largest(&self) -> u32 {
        self.by_bytes.first()
    }

    /// The namespace with most streams.
    pub(crate) fn most_streams(&self) -> u32 {
        self.by_streams.first()
    }

    /// Streams that this maker has.
    pub(crate) fn made(&self, maker: Maker) -> u32 {
        self.makers.get(&maker).map_or(0, |made| made.streams)
    }

    /// A stream has begun in this channel.
    pub(crate) fn add(&mut self, owner: Owner, channel: (u32, u32)) {
        self.change_streams(owner.namespace, 1);
        if owner.maker != Maker::NONE {
            let made = self.makers.entry(owner.maker).or_default();
            made.streams += 1;
            made.channels.push_back(channel);
        }
    }

    /// A stream without publications has ended. `is_made`: whether a channel still has a stream of this maker.
    pub(crate) fn remove(&mut self, owner: Owner, is_made: impl Fn((u32, u32)) -> bool) {
        self.change_streams(owner.namespace, -1);
        let Some(made) = self.makers.get_mut(&owner.maker) else { return };
        made.streams -= 1;
        if made.streams == 0 {
            self.makers.remove(&owner.maker);
        } else if made.channels.len() > 2 * made.streams as usize + 16 {
            made.channels.retain(|&channel| is_made(channel));
            made.channels.shrink_to(made.channels.len() * 2);
        }
    }

    /// The memory of a namespace's publications has changed.
    pub(crate) fn change_bytes(&mut self, namespace: u32, by: isize) {
        let bytes = &mut self.namespaces[namespace as usize].bytes;
        *bytes = bytes.saturating_add_signed(by);
        self.by_bytes.set(namespace, *bytes);
    }

    fn change_streams(&mut self, namespace: u32, by: i32) {
        let streams = &mut self.namespaces[namespace as usize].streams;
        *streams = streams.saturating_add_signed(by);
        self.by_streams.set(namespace, *streams as usize);
    }

    /// A channel has its first publication. Gives its place in the list of its namespace.
    pub(crate) fn list(&mut self, namespace: u32, channel: u32) -> u32 {
        let channels = &mut self.namespaces[namespace as usize].channels;
        channels.push(channel);
        (channels.len() - 1) as u32
    }

    /// The channel at this place has no publication any more. Gives the channel that has its place now.
    pub(crate) fn unlist(&mut self, namespace: u32, place: u32) -> Option<u32> {
        let channels = &mut self.namespaces[namespace as usize].channels;
        channels.swap_remove(place as usize);
        if channels.len() * 4 <= channels.capacity() {
            channels.shrink_to(channels.len() * 2);
        }
        channels.get(place as usize).copied()
    }

    /// The oldest channel of a maker that may go, of so many looked at. Those that may not are looked at last next time.
    pub(crate) fn oldest(
        &mut self,
        maker: Maker,
        steps_max: usize,
        may_go: impl Fn((u32, u32)) -> Option<bool>,
    ) -> Option<u32> {
        let made = self.makers.get_mut(&maker)?;
        for _ in 0..made.channels.len().min(steps_max) {
            let channel = made.channels.pop_front()?;
            match may_go(channel) {
                Some(true) => return Some(channel.0),
                Some(false) => made.channels.push_back(channel),
                None => {}
            }
        }
        None
    }
}

/// Namespaces by a number of each: the largest is known at any time. A binary heap in which each knows its place, for most
/// changes are small and move nothing.
#[derive(Default)]
struct Ranking {
    /// A number and whose it is. No parent's is below a child's.
    heap: Vec<(usize, u32)>,
    /// Where each namespace is in the heap.
    places: Vec<u32>,
}

impl Ranking {
    /// One more, with 0.
    fn push(&mut self) {
        let next = self.heap.len() as u32;
        self.heap.push((0, next));
        self.places.push(next);
    }

    fn first(&self) -> u32 {
        self.heap.first().map_or(0, |&(_, of)| of)
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

    /// Exchanges two places; gives the second.
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
            }
        }
    }
}
