//! Pending requests to other workers and to this one.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::channel::REQUEST_KEY_MAX;
use crate::command::SubscribeOptions;
use crate::event::{ChannelSummary, Info};
use crate::message::{ReplyContent, WaiterId};
use crate::options::{ChannelOptions, OverflowPolicy};
use crate::session_id::SessionId;
use crate::tag_filter::TagFilter;
use crate::worker_set::WorkerSet;

/// Minimum time between two scans of all deadlines: with a worker stuck, requests expire every
/// millisecond.
const SWEEP_INTERVAL_MS: u64 = 50;

/// Requests by key.
pub(crate) struct PendingRequests<W = Waiter> {
    pending: HashMap<u32, Pending<W>, RandomState>,
    next_key: u32,
    incarnation: u32,
    max: usize,
    /// Next scan for requests past their deadline; `None` while there are none.
    sweep_ms: Option<u64>,
}

pub(crate) struct Pending<W> {
    pub(crate) deadline_ms: u64,
    pub(crate) waiter: W,
}

pub(crate) enum Waiter {
    Subscribe(Box<PendingSubscribe>),
    Publish { token: u64, home: u8 },
    History { token: u64, home: u8 },
    HistoryRemove { token: u64, home: u8 },
    Cursor { token: u64, home: u8 },
    Delivery(PendingDelivery),
    Presence { token: u64, home: u8, stats: bool },
    ScatterGather(Box<ScatterGather>),
}

#[derive(Clone)]
pub(crate) struct PendingSubscribe {
    /// `None`: no event is due.
    pub(crate) token: Option<u64>,
    pub(crate) session: SessionId,
    pub(crate) subscription: u32,
    pub(crate) home: u8,
    pub(crate) mode: SubscriptionMode,
}

/// A request for a subscriber to which messages come again.
#[derive(Clone, Copy)]
pub(crate) struct PendingDelivery {
    pub(crate) session: SessionId,
    pub(crate) subscription: u32,
    pub(crate) home: u8,
    pub(crate) step: DeliveryStep,
}

/// What is asked for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeliveryStep {
    /// Publications that it was not sent yet.
    Feed,
    /// Where its cursor stands, because it has not acknowledged in time.
    Cursor,
    /// The publications that it has not acknowledged.
    Again,
}

/// Properties of a subscription.
#[derive(Clone)]
pub(crate) struct SubscriptionMode {
    pub(crate) was_recovering: bool,
    pub(crate) positioned: bool,
    pub(crate) recoverable: bool,
    pub(crate) join_leave: bool,
    /// The channel sends them to every subscriber, or a grant of the subscriber's says so.
    pub(crate) join_leave_granted: bool,
    pub(crate) granted: bool,
    pub(crate) delta: bool,
    pub(crate) filter: Option<TagFilter>,
    pub(crate) announce: bool,
    pub(crate) data: Option<Box<[u8]>>,
    /// The device of its cursor, where messages come again.
    pub(crate) device: Option<Box<str>>,
}

/// A request to several workers whose replies are combined.
pub(crate) struct ScatterGather {
    pub(crate) token: u64,
    pub(crate) waiting: WorkerSet,
    pub(crate) result: Aggregate,
}

pub(crate) enum Aggregate {
    Channels(HashMap<std::sync::Arc<str>, u64, RandomState>),
    Info(Info),
    Affected(u64),
    Sent(u64),
}

impl Aggregate {
    /// Adds one worker's reply.
    pub(crate) fn add(&mut self, content: ReplyContent) {
        match (self, content) {
            (Self::Channels(result), ReplyContent::Channels(channels)) => {
                for (name, clients) in channels {
                    *result.entry(name).or_default() += clients;
                }
            }
            (Self::Info(result), ReplyContent::Info(info)) => {
                result.clients += info.clients;
                result.users += info.users;
                result.channels += info.channels;
                result.subscriptions += info.subscriptions;
            }
            (Self::Affected(result) | Self::Sent(result), ReplyContent::Affected(sessions)) => {
                *result += sessions;
            }
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

impl SubscriptionMode {
    /// What the subscriber asked for, and what the channel forces on it.
    pub(crate) fn new(asked: SubscribeOptions, channel: &ChannelOptions) -> Self {
        let recoverable = asked.recoverable || channel.force_recovery;
        let again = channel.ack.as_ref().filter(|ack| ack.timeout_ms > 0);
        let device = asked.cursor.as_ref().zip(again).map(|(owner, ack)| match ack.by_user {
            true => "".into(),
            false => owner.device.clone(),
        });
        Self {
            was_recovering: asked.recover.is_some() || asked.cursor.is_some(),
            positioned: asked.positioned || recoverable || channel.force_positioning,
            recoverable,
            join_leave: asked.join_leave || channel.force_push_join_leave,
            join_leave_granted: asked.join_leave_granted || channel.force_push_join_leave,
            granted: asked.granted,
            delta: asked.delta
                && channel.delta
                && channel.overflow == OverflowPolicy::Disconnect
                && device.is_none()
                && asked.filter.is_none(),
            filter: asked.filter,
            announce: asked.announce,
            data: asked.data,
            device,
        }
    }
}

impl Waiter {
    pub(crate) fn is_gather(&self) -> bool {
        matches!(self, Self::ScatterGather(_))
    }

    /// True when it waits for a reply of `worker` as a channel's home.
    pub(crate) fn waits_for_home(&self, worker: u8) -> bool {
        match self {
            Self::Subscribe(pending) => pending.home == worker,
            Self::Delivery(pending) => pending.home == worker,
            Self::Publish { home, .. }
            | Self::History { home, .. }
            | Self::HistoryRemove { home, .. }
            | Self::Cursor { home, .. }
            | Self::Presence { home, .. } => *home == worker,
            Self::ScatterGather(_) => false,
        }
    }
}

impl<W> PendingRequests<W> {
    pub(crate) fn new(incarnation: u32, max: u32) -> Self {
        Self {
            pending: HashMap::default(),
            next_key: 0,
            incarnation,
            max: max as usize,
            sweep_ms: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.pending.len() < self.max
    }

    /// Keys fit beside the flag [`PENDING`] and are never [`NO_KEY`]. One comes back after 2^31
    /// requests, when nothing of its former use can be under way any more.
    pub(crate) fn insert(&mut self, deadline_ms: u64, waiter: W) -> WaiterId {
        let after = |key| if key == REQUEST_KEY_MAX { 0 } else { key + 1 };
        while self.pending.contains_key(&self.next_key) {
            self.next_key = after(self.next_key);
        }
        let key = self.next_key;
        self.next_key = after(key);
        self.pending.insert(key, Pending { deadline_ms, waiter });
        self.sweep_ms.get_or_insert(deadline_ms);
        WaiterId { incarnation: self.incarnation, key }
    }

    /// Removes a request of this incarnation.
    pub(crate) fn take(&mut self, request: WaiterId) -> Option<W> {
        if request.incarnation != self.incarnation {
            return None;
        }
        self.cancel(request.key)
    }

    pub(crate) fn cancel(&mut self, key: u32) -> Option<W> {
        let pending = self.pending.remove(&key)?;
        if self.pending.is_empty() {
            self.sweep_ms = None;
        }
        Some(pending.waiter)
    }

    pub(crate) fn sweep_ms(&self) -> Option<u64> {
        self.sweep_ms
    }

    /// Keys of the requests whose deadline has passed, ascending.
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
    pub(crate) fn keys(&self, test: impl Fn(&W) -> bool) -> Vec<u32> {
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
    pub(crate) fn id(&self, key: u32) -> WaiterId {
        WaiterId { incarnation: self.incarnation, key }
    }
}

impl PendingRequests {
    /// What a subscription will be that is under way.
    pub(crate) fn mode_mut(&mut self, key: u32) -> Option<&mut SubscriptionMode> {
        match self.pending.get_mut(&key).map(|pending| &mut pending.waiter) {
            Some(Waiter::Subscribe(pending)) => Some(&mut pending.mode),
            _ => None,
        }
    }

    pub(crate) fn gather_mut(&mut self, request: WaiterId) -> Option<&mut ScatterGather> {
        if request.incarnation != self.incarnation {
            return None;
        }
        match &mut self.pending.get_mut(&request.key)?.waiter {
            Waiter::ScatterGather(gather) => Some(gather),
            _ => None,
        }
    }
}
