//! The local side of a channel: its subscribers on this worker.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::quality::FixedState;

use crate::channel_table::ChannelRecord;
use crate::options::ChannelOptions;
use crate::position::StreamPosition;
use crate::session_id::SESSIONS_MAX;
use crate::shares::Owner;
use crate::slots::NONE;

/// One session's subscription to one channel. A vacant record has no channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subscription {
    /// Slot of the session, below [`LISTED`], [`SKIPS_OWN_JOIN`], [`SERVER_SIDE`] and [`OF_CONNECTION`].
    session: u32,
    pub(crate) channel: u32,
    pub(crate) state: PackedState,
    /// Next of the session's list.
    pub(crate) next: u32,
}

const _: () = assert!(size_of::<Subscription>() == 16);

/// The home worker has the session among the channel's members.
pub(crate) const LISTED: u32 = 1 << 31;
/// The session is not sent its own join.
pub(crate) const SKIPS_OWN_JOIN: u32 = 1 << 30;
/// The server made it: the client does not make it again while it is connected.
pub(crate) const SERVER_SIDE: u32 = 1 << 29;
/// It rests on what the session was given when it began.
pub(crate) const OF_CONNECTION: u32 = 1 << 28;
const _: () = assert!(SESSIONS_MAX <= OF_CONNECTION as usize);

/// How far a subscription has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubscriptionState {
    /// It has the entry `index` of the channel's list of subscribers.
    Established { index: u32 },
    /// The home worker has not yet replied to the request `key`, at most [`REQUEST_KEY_MAX`].
    Pending { key: u32 },
    /// Neither: just made, or its request has failed.
    Detached,
}

/// Largest key of a request that fits a [`PackedState`].
pub(crate) const REQUEST_KEY_MAX: u32 = PENDING - 2;

const PENDING: u32 = 1 << 31;

/// A [`SubscriptionState`] in 32 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedState(u32);

impl PackedState {
    pub(crate) fn get(self) -> SubscriptionState {
        match self.0 {
            u32::MAX => SubscriptionState::Detached,
            PENDING.. => SubscriptionState::Pending { key: self.0 & !PENDING },
            index => SubscriptionState::Established { index },
        }
    }
}

impl From<SubscriptionState> for PackedState {
    fn from(state: SubscriptionState) -> Self {
        Self(match state {
            SubscriptionState::Established { index } => index,
            SubscriptionState::Pending { key } => PENDING | key,
            SubscriptionState::Detached => u32::MAX,
        })
    }
}

impl Default for Subscription {
    fn default() -> Self {
        Self { session: 0, channel: NONE, state: SubscriptionState::Detached.into(), next: NONE }
    }
}

impl Subscription {
    /// One that is not established yet, before `next` in its session's list.
    pub(crate) fn new(slot: u32, flags: u32, channel: u32, next: u32) -> Self {
        Self { session: slot | flags, channel, next, ..Self::default() }
    }

    /// Slot of the session.
    pub(crate) fn slot(&self) -> u32 {
        self.session & !(LISTED | SKIPS_OWN_JOIN | SERVER_SIDE | OF_CONNECTION)
    }

    pub(crate) fn is(&self, flag: u32) -> bool {
        self.session & flag != 0
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.state.0 & PENDING != 0
    }
}

/// Subscriptions have indices below this.
pub(crate) const SUBSCRIPTIONS_MAX: u32 = 1 << 31;

/// All the fan-out loop needs of a subscriber, in eight bytes: subscription 31 · flags 8 ·
/// encoding 5 · slot 20 bits.
#[derive(Clone, Copy)]
pub(crate) struct Subscriber(u64);

const _: () = assert!(size_of::<Subscriber>() == 8);

/// Receives join and leave pushes.
pub(crate) const JOIN_LEAVE: u8 = 1;
/// Rests on a grant, not on the rules of the channel.
pub(crate) const GRANTED: u8 = 2;
/// The join and leave pushes rest on a grant.
pub(crate) const JOIN_LEAVE_GRANTED: u8 = 4;
/// Gets only what its filter admits.
pub(crate) const FILTERED: u8 = 8;
/// Takes differences between publications.
pub(crate) const DELTA: u8 = 16;
/// Has a publication that the next one may be a difference from.
pub(crate) const BASED: u8 = 32;
/// Is left out of the push that is fanned out now.
pub(crate) const EXCEPTED: u8 = 64;
/// Gets publications by itself: its window is full, or it is behind the others.
pub(crate) const PAUSED: u8 = 128;

impl Subscriber {
    pub(crate) fn new(subscription: u32, flags: u8, encoding: u8, slot: u32) -> Self {
        Self(
            u64::from(subscription) << 33
                | u64::from(flags) << 25
                | u64::from(encoding) << 20
                | u64::from(slot),
        )
    }

    pub(crate) fn subscription(self) -> u32 {
        (self.0 >> 33) as u32
    }

    pub(crate) fn without(self, flag: u8) -> Self {
        Self(self.0 & !(u64::from(flag) << 25))
    }

    /// The same with one more flag.
    pub(crate) fn with(self, flag: u8) -> Self {
        Self(self.0 | u64::from(flag) << 25)
    }

    #[inline]
    pub(crate) fn flags(self) -> u8 {
        (self.0 >> 25) as u8
    }

    #[inline]
    pub(crate) fn encoding(self) -> usize {
        (self.0 >> 20) as usize & 0x1f
    }

    #[inline]
    pub(crate) fn slot(self) -> u32 {
        self.0 as u32 & 0xf_ffff
    }
}

/// A channel with subscribers, or would-be subscribers, on this worker.
pub(crate) struct Channel {
    pub(crate) name: Arc<str>,
    pub(crate) subscribers: Vec<Subscriber>,
    /// What every subscriber here has been given. One position for all of them, because all are
    /// fed by the same first-in-first-out edge from the home worker.
    pub(crate) position: StreamPosition,
    pub(crate) options: Arc<ChannelOptions>,
    /// Subscriptions whose request is under way.
    pub(crate) pending: u32,
    /// Distinguishes successive channels at one index.
    pub(crate) incarnation: u32,
    /// One who is subscribed, or about to be: the channel counts for it.
    pub(crate) owner: Owner,
    pub(crate) home: u8,
    /// The home worker has replied: `position` is valid and messages that arrive are for
    /// `subscribers`. Earlier messages were meant for a former incarnation and are ignored.
    pub(crate) joined: bool,
}

const _: () = assert!(size_of::<Channel>() <= 80);
const _: () = assert!(size_of::<Option<Channel>>() == size_of::<Channel>());

impl Channel {
    pub(crate) fn is_unused(&self) -> bool {
        self.subscribers.is_empty() && self.pending == 0
    }
}

/// Hash of channel names, the same on every worker. It selects the home worker.
#[derive(Clone)]
pub(crate) struct NameHasher {
    state: FixedState,
    workers: u8,
}

impl NameHasher {
    pub(crate) fn new(seed: u64, workers: u8) -> Self {
        Self { state: FixedState::with_seed(seed), workers }
    }

    pub(crate) fn hash(&self, name: impl Hash) -> u64 {
        self.state.hash_one(name)
    }

    /// The home worker of a channel, selected by bits that a hash table uses neither for its
    /// buckets nor for its tags: both stay well distributed among the channels of one home.
    pub(crate) fn home(&self, hash: u64) -> u8 {
        let middle = (hash >> 25) as u32;
        ((u64::from(middle) * u64::from(self.workers)) >> 32) as u8
    }
}

impl ChannelRecord for Channel {
    fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscriber_entry_holds_its_extremes() {
        let entry = Subscriber::new(SUBSCRIPTIONS_MAX - 1, 255, 31, (1 << 20) - 1);
        assert_eq!(entry.subscription(), SUBSCRIPTIONS_MAX - 1);
        assert_eq!((entry.flags(), entry.encoding(), entry.slot()), (255, 31, (1 << 20) - 1));
        let entry = Subscriber::new(7, JOIN_LEAVE, 3, 9);
        assert_eq!((entry.subscription(), entry.flags()), (7, JOIN_LEAVE));
        assert_eq!((entry.encoding(), entry.slot()), (3, 9));
    }

    #[test]
    fn a_state_survives_packing() {
        use SubscriptionState::{Detached, Established, Pending};
        let keys = [0, REQUEST_KEY_MAX].map(|key| Pending { key });
        let indices = [0, PENDING - 1].map(|index| Established { index });
        for state in keys.into_iter().chain(indices).chain([Detached]) {
            assert_eq!(PackedState::from(state).get(), state);
        }
    }

    #[test]
    fn homes_are_spread_evenly() {
        let hasher = NameHasher::new(42, 7);
        let mut counts = [0u32; 7];
        for n in 0..70_000 {
            counts[usize::from(hasher.home(hasher.hash(format!("room:{n}"))))] += 1;
        }
        assert!(counts.iter().all(|&count| (9_500..10_500).contains(&count)), "{counts:?}");
    }
}
