//! Broadcasts in progress: fan-outs flushed over several turns.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::pacing::{Pacing, RateLimiter};

/// Maximum number of broadcasts of one worker. A further fan-out is flushed in one turn.
pub(crate) const BROADCASTS_MAX: usize = 256;

/// A channel's broadcast on one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BroadcastStatus {
    /// The channel. It has at most one broadcast on a worker; later publications join it.
    pub channel: Arc<str>,
    /// Unix time at which it began, milliseconds.
    pub started_unix_ms: u64,
    /// Publications in the broadcast.
    pub publications: u64,
    /// Writes to clients so far.
    pub written: u64,
    /// Bytes written to clients so far.
    pub written_bytes: u64,
    /// Clients not written to yet; for a paused broadcast those at the time of the pause.
    pub waiting: u64,
    /// Paused until it is resumed.
    pub paused: bool,
}

/// One channel's broadcast.
#[derive(Debug)]
pub(crate) struct Broadcast {
    pub(crate) status: BroadcastStatus,
    /// The channel's namespace, whose rates apply.
    pub(crate) namespace: Arc<str>,
    /// Sessions to be flushed, in the order they subscribed. Some may have been flushed already.
    pub(crate) queue: VecDeque<u32>,
    /// The flag its sessions carry: [`BULK`](crate::session::BULK) or
    /// [`LIMITED`](crate::session::LIMITED).
    pub(crate) flag: u16,
    /// Sessions that may still be flushed in this turn.
    pub(crate) turn_budget: u32,
    /// Shares that its last flush used beyond the first; it skips as many turns.
    pub(crate) debt: u32,
    /// An outbox is half full only because it was not flushed.
    pub(crate) is_behind: bool,
}

/// The cost of a flush in shares of a turn's quantum: one share for each client and one for each 16 KiB, which cost
/// about the same.
pub(crate) fn shares(bytes: u64) -> u32 {
    const SHARE_BYTES: u64 = 16 << 10;
    const SHARES_MAX: u64 = 256;
    (1 + bytes / SHARE_BYTES).min(SHARES_MAX) as u32
}

/// All broadcasts of a worker and their rates.
#[derive(Debug)]
pub(crate) struct Broadcasts {
    pub(crate) running: Vec<Broadcast>,
    /// The next broadcast to flush.
    pub(crate) cursor: usize,
    /// Sessions a turn; `None`: all. See [`HubConfig`](crate::HubConfig).
    pub(crate) quantum: Option<NonZeroU32>,
    /// [`shares`] left of this turn's quantum.
    pub(crate) budget: u32,
    /// Rates of namespaces with a limit.
    pub(crate) namespaces: HashMap<Arc<str>, RateLimiter, RandomState>,
    /// Rates of all broadcasts together.
    pub(crate) worker: RateLimiter,
}

impl Broadcasts {
    pub(crate) fn new(quantum: Option<NonZeroU32>) -> Self {
        Self {
            running: Vec::new(),
            cursor: 0,
            quantum,
            budget: u32::MAX,
            namespaces: HashMap::default(),
            worker: RateLimiter::new(Pacing::default(), 0),
        }
    }

    /// Whether a fan-out of this size to this many subscribers takes several turns, and the flag of its sessions.
    pub(crate) fn flag_for(
        &self,
        namespace: &Arc<str>,
        subscribers: usize,
        bytes: usize,
    ) -> Option<u16> {
        if !self.namespaces.is_empty() && self.namespaces.contains_key(namespace) {
            return Some(crate::session::LIMITED);
        }
        let shares = subscribers.saturating_mul(shares(bytes as u64) as usize);
        let most = self.quantum.filter(|_| subscribers > 1);
        let large = most.is_some_and(|most| shares > most.get() as usize);
        (large || self.worker.pacing().is_limited()).then_some(crate::session::BULK)
    }

    /// The broadcast that a publication of `channel` joins, created if there is none. `is_new` is `false` if the
    /// publication has joined it before in another encoding. Returns `None` if there are too many broadcasts.
    pub(crate) fn join(
        &mut self,
        channel: &Arc<str>,
        namespace: &Arc<str>,
        flag: u16,
        unix_ms: u64,
        is_new: bool,
    ) -> Option<&mut Broadcast> {
        let at = match self.position(channel) {
            Some(at) => at,
            None if self.running.len() >= BROADCASTS_MAX => return None,
            None => {
                self.running.push(Broadcast {
                    status: BroadcastStatus {
                        channel: Arc::clone(channel),
                        started_unix_ms: unix_ms,
                        publications: 0,
                        written: 0,
                        written_bytes: 0,
                        waiting: 0,
                        paused: false,
                    },
                    namespace: Arc::clone(namespace),
                    queue: VecDeque::new(),
                    flag,
                    turn_budget: self.sessions_per_turn(namespace),
                    debt: 0,
                    is_behind: false,
                });
                self.running.len() - 1
            }
        };
        let broadcast = &mut self.running[at];
        broadcast.status.publications += u64::from(is_new);
        Some(broadcast)
    }

    /// Maximum number of sessions of a namespace's broadcast flushed in one turn.
    pub(crate) fn sessions_per_turn(&self, namespace: &str) -> u32 {
        let own = self.namespaces.get(namespace);
        own.map_or(u32::MAX, |limiter| limiter.pacing().turn_budget())
    }

    pub(crate) fn position(&self, channel: &str) -> Option<usize> {
        self.running.iter().position(|broadcast| *broadcast.status.channel == *channel)
    }

    /// When the rates of namespace and worker permit a broadcast to continue; a time in the past means now.
    pub(crate) fn ready_ms(&self, broadcast: &Broadcast) -> u64 {
        let namespace = self.namespaces.get(&broadcast.namespace).map_or(0, RateLimiter::ready_ms);
        namespace.max(self.worker.ready_ms())
    }

    /// Charges a write to the rates that apply.
    pub(crate) fn charge(&mut self, at: usize, messages: u64, bytes: u64) {
        let broadcast = &mut self.running[at];
        broadcast.status.written += 1;
        broadcast.status.written_bytes += bytes;
        if let Some(limiter) = self.namespaces.get_mut(&broadcast.namespace) {
            limiter.take(messages, bytes);
        }
        self.worker.take(messages, bytes);
    }

    /// Whether writes are charged by messages.
    pub(crate) fn counts_messages(&self, at: usize) -> bool {
        let namespace = self.namespaces.get(&self.running[at].namespace);
        self.worker.pacing().messages_per_s.is_some()
            || namespace.is_some_and(|limiter| limiter.pacing().messages_per_s.is_some())
    }
}
