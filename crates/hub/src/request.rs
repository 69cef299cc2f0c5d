//! PendingRequests under way, to other workers and to this one.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::channel::PENDING;
use crate::event::{ChannelSummary, Info};
use crate::message::{ReplyContent, RequestId};
use crate::session_id::SessionId;
use crate::worker_set::WorkerSet;

/// Least time between two looks at all deadlines: with a worker stuck, requests expire every
/// millisecond.
const SWEEP_INTERVAL_MS: u64 = 50;

/// The key of no request.
pub(crate) const NO_KEY: u32 = !PENDING;

/// Who waits for what.
pub(crate) struct PendingRequests {
    pending: HashMap<u32, Pending, RandomState>,
    next_key: u32,
    incarnation: u32,
    max: usize,
    /// When to look for requests past their deadline; `None` while there are none at all.
    sweep_ms: Option<u64>,
}

pub(crate) struct Pending {
    pub(crate) deadline_ms: u64,
    pub(crate) waiter: Waiter,
}

pub(crate) enum Waiter {
    /// A subscription: the record knows the rest.
    Subscribe(Box<PendingSubscribe>),
    Publish {
        token: u64,
        home: u8,
    },
    History {
        token: u64,
        home: u8,
    },
    HistoryRemove {
        token: u64,
        home: u8,
    },
    Presence {
        token: u64,
        home: u8,
        stats: bool,
    },
    Gather(Box<Gather>),
}

#[derive(Clone)]
pub(crate) struct PendingSubscribe {
    /// `None`: nobody waits for an event.
    pub(crate) token: Option<u64>,
    pub(crate) session: SessionId,
    pub(crate) subscription: u32,
    pub(crate) home: u8,
    pub(crate) manner: Manner,
}

/// How a subscription is answered.
#[derive(Clone)]
pub(crate) struct Manner {
    pub(crate) was_recovering: bool,
    pub(crate) positioned: bool,
    pub(crate) recoverable: bool,
    pub(crate) join_leave: bool,
    pub(crate) announce: bool,
    pub(crate) data: Option<Box<[u8]>>,
}

/// Answers of several workers, put together.
pub(crate) struct Gather {
    pub(crate) token: u64,
    pub(crate) waiting: WorkerSet,
    pub(crate) sum: Sum,
}

pub(crate) enum Sum {
    Channels(HashMap<std::sync::Arc<str>, u64, RandomState>),
    Info(Info),
    Affected(u64),
}

impl Sum {
    /// Adds one worker's part.
    pub(crate) fn add(&mut self, content: ReplyContent) {
        match (self, content) {
            (Self::Channels(sum), ReplyContent::Channels(channels)) => {
                for (name, clients) in channels {
                    *sum.entry(name).or_default() += clients;
                }
            }
            (Self::Info(sum), ReplyContent::Info(info)) => {
                sum.clients += info.clients;
                sum.users += info.users;
                sum.channels += info.channels;
                sum.subscriptions += info.subscriptions;
            }
            (Self::Affected(sum), ReplyContent::Affected(sessions)) => *sum += sessions,
            (_, content) => debug_assert!(false, "{content:?} is no part of this sum"),
        }
    }

    pub(crate) fn into_channels(self) -> Vec<ChannelSummary> {
        let Self::Channels(channels) = self else { return Vec::new() };
        let mut channels: Vec<_> =
            channels.into_iter().map(|(name, clients)| ChannelSummary { name, clients }).collect();
        channels.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        channels
    }
}

impl Waiter {
    pub(crate) fn is_gather(&self) -> bool {
        matches!(self, Self::Gather(_))
    }

    /// True when it waits for an answer of `worker`, as a channel's home.
    pub(crate) fn waits_for_home(&self, worker: u8) -> bool {
        match self {
            Self::Subscribe(pending) => pending.home == worker,
            Self::Publish { home, .. }
            | Self::History { home, .. }
            | Self::HistoryRemove { home, .. }
            | Self::Presence { home, .. } => *home == worker,
            Self::Gather(_) => false,
        }
    }
}

impl PendingRequests {
    pub(crate) fn new(incarnation: u32, max: u32) -> Self {
        Self {
            pending: HashMap::default(),
            next_key: 0,
            incarnation,
            max: max as usize,
            sweep_ms: None,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.pending.len() < self.max
    }

    /// Keys fit beside the flag [`PENDING`] and are never [`NO_KEY`]. One comes back after 2^31
    /// requests, when nothing of its former use can be under way any more.
    pub(crate) fn insert(&mut self, deadline_ms: u64, waiter: Waiter) -> RequestId {
        while self.next_key == NO_KEY || self.pending.contains_key(&self.next_key) {
            self.next_key = (self.next_key + 1) & !PENDING;
        }
        let key = self.next_key;
        self.next_key = (key + 1) & !PENDING;
        self.pending.insert(key, Pending { deadline_ms, waiter });
        self.sweep_ms.get_or_insert(deadline_ms);
        RequestId { incarnation: self.incarnation, key }
    }

    /// Ends a request that is under way.
    pub(crate) fn take(&mut self, request: RequestId) -> Option<Waiter> {
        if request.incarnation != self.incarnation {
            return None;
        }
        self.cancel(request.key)
    }

    pub(crate) fn cancel(&mut self, key: u32) -> Option<Waiter> {
        let pending = self.pending.remove(&key)?;
        if self.pending.is_empty() {
            self.sweep_ms = None;
        }
        Some(pending.waiter)
    }

    pub(crate) fn gather_mut(&mut self, request: RequestId) -> Option<&mut Gather> {
        if request.incarnation != self.incarnation {
            return None;
        }
        match &mut self.pending.get_mut(&request.key)?.waiter {
            Waiter::Gather(gather) => Some(gather),
            _ => None,
        }
    }

    pub(crate) fn sweep_ms(&self) -> Option<u64> {
        self.sweep_ms
    }

    /// Keys of the requests whose deadline has passed, in the order they were made (as near as
    /// it matters).
    pub(crate) fn expired(&mut self, now_ms: u64) -> Vec<u32> {
        if self.sweep_ms.is_none_or(|at| at > now_ms) {
            return Vec::new();
        }
        let mut expired = Vec::new();
        let mut next = None::<u64>;
        for (&key, pending) in &self.pending {
            if pending.deadline_ms <= now_ms {
                expired.push(key);
            } else {
                next = Some(next.map_or(pending.deadline_ms, |at| at.min(pending.deadline_ms)));
            }
        }
        self.sweep_ms = next.map(|at| at.max(now_ms + SWEEP_INTERVAL_MS));
        expired.sort_unstable();
        expired
    }

    /// Keys of the requests that `test` picks, in order.
    pub(crate) fn keys(&self, test: impl Fn(&Waiter) -> bool) -> Vec<u32> {
        let mut keys: Vec<u32> = self
            .pending
            .iter()
            .filter(|(_, pending)| test(&pending.waiter))
            .map(|(&key, _)| key)
            .collect();
        keys.sort_unstable();
        keys
    }

    /// The request with this key.
    pub(crate) fn id(&self, key: u32) -> RequestId {
        RequestId { incarnation: self.incarnation, key }
    }
}
