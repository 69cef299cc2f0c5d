//! Who is charged for the publications that a namespace keeps.
//!
//! A stream is charged to the user who fills it alone: his streams in a namespace are one account. A stream to which the
//! server or several users publish is an account of its own. Whoever needs room takes it from the largest account, so an
//! account that holds less than the others is never taken from, whatever the others do.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::channel_table::ChannelTable;
use crate::history::Stream;
use crate::home_channel::HomeChannel;
use crate::list::{Linked, Links, List};
use crate::ranking::{Places, Ranking};
use crate::shares::Owner;
use crate::slots::NONE;

pub(crate) type Homes = ChannelTable<HomeChannel>;

/// Accounts are ranked by units of so many bytes.
const UNIT_BYTES: usize = 16;
/// Marks the account of a user in a ranking; the others are the indices of channels.
const OF_USER: u32 = 1 << 31;
/// An account may lose this part of its publications before the next one loses some.
const LOSS: usize = 16;
/// An owner's channels that are tried for one that nobody is in.
const OWN_CHANNELS_TRIED: usize = 16;

/// The streams that one user alone fills in one namespace.
struct Account {
    namespace: u32,
    owner: Owner,
    /// Memory of the publications.
    bytes: usize,
    /// Place in the ranking of its namespace.
    place: u32,
    /// Those with publications, in the order of their first ones.
    channels: List,
}

/// The accounts of one worker.
#[derive(Default)]
pub(crate) struct Accounts {
    /// By namespace: its accounts by size.
    rankings: Vec<Ranking<u32>>,
    users: Vec<Account>,
    /// Indices of `users` that are free.
    free: Vec<u32>,
    by_owner: HashMap<(u32, Owner), u32, RandomState>,
}

/// A publication that needs room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) channel: u32,
    pub(crate) publisher: Owner,
    pub(crate) cost: usize,
}

/// The channel that loses its oldest publications next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Eviction {
    pub(crate) channel: u32,
    /// So many bytes may go before another account pays.
    pub(crate) bytes: usize,
}

/// A channel that an owner gives up to make room for another one of his.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnChannel {
    /// He holds little, and need not.
    None,
    Idle(u32),
    /// He holds enough, and somebody is in all that were tried.
    InUse,
}

/// Links of a channel's stream in the list of its owner: those without publications, or those of an account.
pub(crate) struct OwnLinks<'h>(pub(crate) &'h mut Homes);

impl Linked for OwnLinks<'_> {
    fn links(&mut self, at: u32) -> &mut Links {
        &mut stream_of(self.0, at).own
    }
}

struct RankedIn<'a> {
    homes: &'a mut Homes,
    users: &'a mut [Account],
}

impl Places for RankedIn<'_> {
    fn place(&mut self, of: u32) -> &mut u32 {
        match of & OF_USER {
            0 => &mut stream_of(self.homes, of).ranked_at,
            _ => &mut self.users[(of ^ OF_USER) as usize].place,
        }
    }
}

pub(crate) fn stream_of(homes: &mut Homes, at: u32) -> &mut Stream {
    homes[at].stream.as_deref_mut().expect("a channel is in a list because of its stream")
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX)
}

impl Accounts {
    pub(crate) fn add_namespace(&mut self) {
        self.rankings.push(Ranking::default());
    }

    /// Charges the next publication of a channel to its publisher. Call before it is stored.
    pub(crate) fn begin(&mut self, homes: &mut Homes, at: u32, publisher: Owner) {
        let namespace = homes[at].namespace;
        let stream = stream_of(homes, at);
        let (user, bytes) = (stream.account, stream.bytes());
        if stream.len() == 0 {
            if publisher != Owner::NONE {
                let user = self.open(namespace, publisher);
                stream_of(homes, at).account = user;
                self.users[user as usize].channels.push(at, &mut OwnLinks(homes));
            }
        } else if user != NONE && self.users[user as usize].owner != publisher {
            self.release(homes, at, bytes);
            let places = &mut RankedIn { homes, users: &mut self.users };
            self.rankings[namespace as usize].set(at, units(bytes), places);
        }
    }

    /// Accounts for a change of the memory of a channel's publications.
    pub(crate) fn update(&mut self, homes: &mut Homes, at: u32, by: isize) {
        let namespace = homes[at].namespace as usize;
        let stream = stream_of(homes, at);
        let (user, is_empty) = (stream.account, stream.len() == 0);
        let (of, bytes) = match user {
            NONE => (at, stream.bytes()),
            user => {
                let account = &mut self.users[user as usize];
                account.bytes = account.bytes.saturating_add_signed(by);
                (user | OF_USER, account.bytes)
            }
        };
        if user != NONE && is_empty {
            return self.release(homes, at, 0);
        }
        let places = &mut RankedIn { homes, users: &mut self.users };
        match is_empty {
            true => self.rankings[namespace].remove(of, places),
            false => self.rankings[namespace].set(of, units(bytes), places),
        }
    }

    /// Who makes room in a namespace: the publisher if his account is the largest, else the largest one.
    pub(crate) fn eviction(
        &self,
        homes: &Homes,
        namespace: u32,
        arrival: Arrival,
    ) -> Option<Eviction> {
        let ranking = &self.rankings[namespace as usize];
        let (largest, of) = ranking.first()?;
        let own = self.own(homes, namespace, arrival);
        let (own_of, own_bytes) = own.unwrap_or((NONE, 0));
        let grown = if own.is_some() { own_bytes + arrival.cost } else { 0 };
        let (of, bytes, next) = if own_bytes > 0 && units(grown) >= largest {
            let next = if of == own_of { ranking.second().unwrap_or(0) } else { largest };
            (own_of, grown, next)
        } else {
            let next = if of == own_of { None } else { Some(units(grown)) };
            (of, self.bytes(homes, of), next.max(ranking.second()).unwrap_or(0))
        };
        let spare = bytes.saturating_sub(next as usize * UNIT_BYTES).max(bytes / LOSS);
        let channel = self.channel(homes, of, arrival.channel)?;
        Some(Eviction { channel, bytes: spare })
    }

    /// A channel with publications that an owner gives up in a namespace for another one.
    pub(crate) fn own_channel(
        &self,
        homes: &mut Homes,
        namespace: u32,
        owner: Owner,
    ) -> OwnChannel {
        let Some(&user) = self.by_owner.get(&(namespace, owner)) else { return OwnChannel::None };
        let channels = &self.users[user as usize].channels;
        let tried = channels.first_some(OWN_CHANNELS_TRIED, &mut OwnLinks(homes));
        match tried.iter().find(|&&at| homes[at].is_idle()) {
            Some(&at) => OwnChannel::Idle(at),
            None if tried.len() < OWN_CHANNELS_TRIED => OwnChannel::None,
            None => OwnChannel::InUse,
        }
    }

    /// The account to which a publication will be charged, and its bytes; `None` if that is a new one.
    fn own(&self, homes: &Homes, namespace: u32, arrival: Arrival) -> Option<(u32, usize)> {
        let home = homes.get(arrival.channel).filter(|home| home.namespace == namespace)?;
        let stream = home.stream.as_ref()?;
        let user = match stream.len() {
            0 => self.by_owner.get(&(namespace, arrival.publisher)).copied(),
            _ => Some(stream.account).filter(|&user| {
                user != NONE && self.users[user as usize].owner == arrival.publisher
            }),
        };
        match user {
            Some(user) => Some((user | OF_USER, self.users[user as usize].bytes)),
            None if stream.len() == 0 => None,
            None => Some((arrival.channel, stream.bytes())),
        }
    }

    fn bytes(&self, homes: &Homes, of: u32) -> usize {
        match of & OF_USER {
            0 => homes[of].stream.as_ref().map_or(0, |stream| stream.bytes()),
            _ => self.users[(of ^ OF_USER) as usize].bytes,
        }
    }

    /// The channel of an account that pays: the one that is published to, if it holds as much as the user's others, else
    /// his oldest.
    fn channel(&self, homes: &Homes, of: u32, published: u32) -> Option<u32> {
        if of & OF_USER == 0 {
            return Some(of);
        }
        let user = of ^ OF_USER;
        let account = &self.users[user as usize];
        let stream = homes[published].stream.as_ref().filter(|stream| stream.account == user);
        let average = account.bytes / (account.channels.len() as usize).max(1);
        match stream {
            Some(stream) if stream.len() > 0 && stream.bytes() >= average => Some(published),
            _ => account.channels.first(),
        }
    }

    /// The account of a user, opened if he has none.
    fn open(&mut self, namespace: u32, owner: Owner) -> u32 {
        let Self { users, free, by_owner, .. } = self;
        *by_owner.entry((namespace, owner)).or_insert_with(|| {
            let new =
                Account { namespace, owner, bytes: 0, place: NONE, channels: List::default() };
            match free.pop() {
                Some(at) => {
                    users[at as usize] = new;
                    at
                }
                None => {
                    users.push(new);
                    (users.len() - 1) as u32
                }
            }
        })
    }

    /// Takes a channel, with so many bytes, out of the account of its user.
    fn release(&mut self, homes: &mut Homes, at: u32, bytes: usize) {
        let user = std::mem::replace(&mut stream_of(homes, at).account, NONE);
        let account = &mut self.users[user as usize];
        account.bytes = account.bytes.saturating_sub(bytes);
        account.channels.remove(at, &mut OwnLinks(homes));
        let (namespace, owner, left) = (account.namespace, account.owner, account.bytes);
        let is_over = account.channels.len() == 0;
        let places = &mut RankedIn { homes, users: &mut self.users };
        let ranking = &mut self.rankings[namespace as usize];
        if !is_over {
            return ranking.set(user | OF_USER, units(left), places);
        }
        ranking.remove(user | OF_USER, places);
        self.by_owner.remove(&(namespace, owner));
        self.free.push(user);
        if self.by_owner.is_empty() {
            (self.users, self.free, self.by_owner) = Default::default();
        } else if self.by_owner.len() * 8 <= self.by_owner.capacity() {
            self.by_owner.shrink_to(self.by_owner.len() * 2);
        }
    }
}
