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
        self.names.insert(Arc::clone(name), at);
        at
    }

    pub(crate) fn share(&self, namespace: u32) -> &Share {
        &self.namespaces[namespace as usize]
    }

    /// The namespace whose history is largest.
    pub(crate) fn largest(&self) -> u32 {
        let all = (0..).zip(&self.namespaces);
        all.max_by_key(|(_, share)| share.bytes).map_or(0, |(at, _)| at)
    }

    /// The namespace with most streams.
    pub(crate) fn most_streams(&self) -> u32 {
        let all = (0..).zip(&self.namespaces);
        all.max_by_key(|(_, share)| share.streams).map_or(0, |(at, _)| at)
    }

    /// Streams that this maker has.
    pub(crate) fn made(&self, maker: Maker) -> u32 {
        self.makers.get(&maker).map_or(0, |made| made.streams)
    }

    /// A stream has begun in this channel.
    pub(crate) fn add(&mut self, owner: Owner, channel: (u32, u32)) {
        self.namespaces[owner.namespace as usize].streams += 1;
        if owner.maker != Maker::NONE {
            let made = self.makers.entry(owner.maker).or_default();
            made.streams += 1;
            made.channels.push_back(channel);
        }
    }

    /// A stream without publications has ended. `is_made`: whether a channel still has a stream of this maker.
    pub(crate) fn remove(&mut self, owner: Owner, is_made: impl Fn((u32, u32)) -> bool) {
        self.namespaces[owner.namespace as usize].streams -= 1;
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
