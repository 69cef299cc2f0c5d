//! Divides what a worker has among namespaces and owners: streams, channels, memory of history and filters.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::accounts::{Accounts, Homes, OwnLinks, stream_of};
use crate::list::{Linked, Links, List};
use crate::ranking::Ranking;
use crate::slots::NONE;

/// An owner's idle channels that are tried for one of a certain namespace.
const OWN_CHANNELS_TRIED: usize = 64;

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
    /// Publications taken by its channels at home here.
    pub publications: u64,
    /// Its publications put into outboxes here.
    pub deliveries: u64,
}

/// The lists of channels that nobody is in: what may be removed to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Only the position is remembered.
    Empty,
    /// With publications.
    Holding,
}

/// A namespace's share.
#[derive(Default)]
pub(crate) struct Share {
    name: Arc<str>,
    /// Its channels at home here, for whatever reason they exist.
    pub(crate) channels: u32,
    /// Memory of its publications.
    pub(crate) bytes: usize,
    /// See [`NamespaceShare`].
    pub(crate) publications: u64,
    pub(crate) deliveries: u64,
    /// By [`Idle`]: its channels that nobody is in, idle for longest first.
    idle: [List; 2],
}

impl From<&Share> for NamespaceShare {
    fn from(share: &Share) -> NamespaceShare {
        NamespaceShare {
            name: Arc::clone(&share.name),
            channels: share.channels,
            history_bytes: share.bytes,
            publications: share.publications,
            deliveries: share.deliveries,
        }
    }
}

/// The streams that one owner has created.
#[derive(Default)]
struct Owned {
    streams: u32,
    /// Those without publications in channels that nobody is in, idle for longest first.
    empty: List,
}

/// Namespaces ordered by a number of each.
#[derive(Default)]
struct NamespaceRanking<N> {
    ranking: Ranking<N>,
    places: Vec<u32>,
}

impl<N: Copy + Ord + Default> NamespaceRanking<N> {
    fn push(&mut self) {
        let next = self.places.len() as u32;
        self.places.push(NONE);
        self.set(next, N::default());
    }

    fn set(&mut self, namespace: u32, number: N) {
        self.ranking.set(namespace, number, &mut self.places);
    }
}

/// Links of a channel's stream in the list of idle channels of its namespace.
struct IdleLinks<'h>(&'h mut Homes);

impl Linked for IdleLinks<'_> {
    fn links(&mut self, at: u32) -> &mut Links {
        &mut stream_of(self.0, at).idle
    }
}

/// The shares of one worker.
#[derive(Default)]
pub(crate) struct Shares {
    names: HashMap<Arc<str>, u32, RandomState>,
    namespaces: Vec<Share>,
    by_bytes: NamespaceRanking<usize>,
    /// By [`Idle`]: namespaces by their number of such channels.
    by_idle: [NamespaceRanking<u32>; 2],
    pub(crate) accounts: Accounts,
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
        self.by_idle.iter_mut().for_each(NamespaceRanking::push);
        self.accounts.add_namespace();
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
        let page = self.namespaces.get(from as usize..end as usize).unwrap_or_default();
        (page.iter().map(NamespaceShare::from).collect(), (end < len).then_some(end))
    }

    pub(crate) fn share(&self, namespace: u32) -> &Share {
        &self.namespaces[namespace as usize]
    }

    pub(crate) fn share_mut(&mut self, namespace: u32) -> &mut Share {
        &mut self.namespaces[namespace as usize]
    }

    /// Returns the namespace with the largest history, and the size of the second largest in bytes.
    pub(crate) fn largest(&self) -> (u32, usize) {
        let ranking = &self.by_bytes.ranking;
        (ranking.first().map_or(0, |(_, of)| of), ranking.second().unwrap_or(0))
    }

    /// Changes the memory of a namespace's publications, in bytes.
    pub(crate) fn change_bytes(&mut self, namespace: u32, by: isize) {
        let bytes = &mut self.namespaces[namespace as usize].bytes;
        *bytes = bytes.saturating_add_signed(by);
        self.by_bytes.set(namespace, *bytes);
    }

    /// Puts a channel with a stream into the list of idle channels in which it belongs now. Call whenever somebody joins or
    /// leaves it, and when its publications change.
    pub(crate) fn relist(&mut self, homes: &mut Homes, at: u32) {
        let home = &homes[at];
        let Some(stream) = &home.stream else { return };
        let wanted = match stream.len() {
            _ if !home.is_idle() => None,
            0 => Some(Idle::Empty),
            _ => Some(Idle::Holding),
        };
        let (listed, owner, namespace) = (stream.listed, stream.owner, home.namespace);
        if listed == wanted {
            return;
        }
        self.unlist(homes, at);
        let Some(idle) = wanted else { return };
        stream_of(homes, at).listed = wanted;
        let list = &mut self.namespaces[namespace as usize].idle[idle as usize];
        list.push(at, &mut IdleLinks(homes));
        self.by_idle[idle as usize].set(namespace, list.len());
        if idle == Idle::Empty
            && let Some(owned) = self.owners.get_mut(&owner)
        {
            owned.empty.push(at, &mut OwnLinks(homes));
        }
    }

    /// Takes a channel out of the lists of idle channels.
    pub(crate) fn unlist(&mut self, homes: &mut Homes, at: u32) {
        let namespace = homes[at].namespace;
        let Some(stream) = &mut homes[at].stream else { return };
        let owner = stream.owner;
        let Some(idle) = stream.listed.take() else { return };
        let list = &mut self.namespaces[namespace as usize].idle[idle as usize];
        list.remove(at, &mut IdleLinks(homes));
        self.by_idle[idle as usize].set(namespace, list.len());
        if idle == Idle::Empty
            && let Some(owned) = self.owners.get_mut(&owner)
        {
            owned.empty.remove(at, &mut OwnLinks(homes));
        }
    }

    /// Returns the channel that has been idle for longest: of this namespace, or of the one with the most.
    pub(crate) fn longest_idle(&self, idle: Idle, namespace: Option<u32>) -> Option<u32> {
        let most = || self.by_idle[idle as usize].ranking.first().map(|(_, of)| of);
        self.share(namespace.or_else(most)?).idle[idle as usize].first()
    }

    /// Returns the empty channel of an owner that has been idle for longest, optionally of one namespace.
    pub(crate) fn own_empty(
        &self,
        homes: &mut Homes,
        owner: Owner,
        namespace: Option<u32>,
    ) -> Option<u32> {
        let empty = &self.owners.get(&owner)?.empty;
        let Some(namespace) = namespace else { return empty.first() };
        // His are among those of the namespace: a refusal searches nothing.
        self.longest_idle(Idle::Empty, Some(namespace))?;
        let tried = empty.first_some(OWN_CHANNELS_TRIED, &mut OwnLinks(homes));
        tried.into_iter().find(|&at| homes[at].namespace == namespace)
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

    /// Counts a stream of this owner.
    pub(crate) fn add(&mut self, owner: Owner) {
        if owner != Owner::NONE {
            self.owners.entry(owner).or_default().streams += 1;
        }
    }

    /// Uncounts a stream of this owner, which is in no list any more.
    pub(crate) fn remove(&mut self, owner: Owner) {
        if let Entry::Occupied(mut owned) = self.owners.entry(owner) {
            owned.get_mut().streams -= 1;
            if owned.get().streams == 0 {
                owned.remove();
                if self.owners.len() * 8 <= self.owners.capacity() {
                    self.owners.shrink_to(self.owners.len() * 2);
                }
            }
        }
    }
}
