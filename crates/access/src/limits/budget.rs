//! Budgets of clients, users, addresses, namespaces and API keys, and how much of them is used.
//!
//! A budget is a token bucket whose tokens are time. A command takes the time that its number, its bytes and its deliveries take
//! at the rates of the budget; a key that is ahead of the clock by more than the burst has to wait. So a bucket is one instant, a
//! key whose instant has passed needs no bucket, and an idle client costs nothing.
//!
//! A session's bucket belongs to its worker. Those of users, addresses, namespaces and keys are [shared](crate::limits::shared_buckets).

use dunlin_config::{ClientBudget, SharedBudget};
use dunlin_hub::SessionId;
use dunlin_protocol::centrifuge::Request;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

const SECOND_NS: u64 = 1_000_000_000;

/// The key of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BudgetKey(u64);

/// The upper three bits are the kind of the key.
const KIND_SHIFT: u32 = 61;

impl BudgetKey {
    /// The budget of a session.
    pub fn session(session: SessionId) -> BudgetKey {
        BudgetKey(session.to_u64())
    }

    /// Creates the key of a name from its hash.
    pub fn named(kind: u64, hash: u64) -> BudgetKey {
        BudgetKey(kind << KIND_SHIFT | hash >> (u64::BITS - KIND_SHIFT))
    }

    pub(crate) fn of_u64(key: u64) -> BudgetKey {
        BudgetKey(key)
    }

    /// Returns the number of the key.
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// Returns the key of a session's client events in the Pusher protocol.
    pub fn client_events(session: SessionId) -> BudgetKey {
        BudgetKey(5 << KIND_SHIFT | session.to_u64())
    }

    /// Whether its bucket belongs to a worker.
    pub fn is_session(self) -> bool {
        self.0 >> KIND_SHIFT == 0
    }
}

/// The kinds of commands for which a budget may have a separate rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// Publications.
    Publish,
    /// Subscriptions and their ends.
    Subscribe,
    /// Reads of history and presence.
    Read,
    /// Procedures and messages to the backend.
    Rpc,
}

impl CommandKind {
    /// Returns the kind of a client's request; `None` if only the rate of all commands counts.
    pub fn of_command(request: &Request<'_>) -> Option<CommandKind> {
        match request {
            Request::Publish(_) => Some(CommandKind::Publish),
            Request::Subscribe(_) | Request::Unsubscribe(_) => Some(CommandKind::Subscribe),
            Request::History(_) | Request::Presence(_) | Request::PresenceStats(_) => {
                Some(CommandKind::Read)
            }
            Request::Rpc(_) | Request::Send(_) => Some(CommandKind::Rpc),
            Request::Connect(_)
            | Request::Refresh(_)
            | Request::SubRefresh(_)
            | Request::Ping
            | Request::Pong
            | Request::Unknown(_) => None,
        }
    }
}

/// The rates of a budget. A rate of 0 is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    commands_per_s: u32,
    /// By [`CommandKind`].
    kinds_per_s: [u32; 4],
    bytes_per_s: u64,
    deliveries_per_s: u64,
    burst_ms: u32,
}

impl Rates {
    /// Returns rates of so many commands per second, and a burst of as many.
    pub fn per_second(commands_per_s: u32) -> Rates {
        Rates {
            commands_per_s,
            kinds_per_s: [0; 4],
            bytes_per_s: 0,
            deliveries_per_s: 0,
            burst_ms: 1_000,
        }
    }

    /// Whether there is any bound.
    pub fn is_limited(&self) -> bool {
        self.commands_per_s > 0
            || self.bytes_per_s > 0
            || self.deliveries_per_s > 0
            || self.kinds_per_s != [0; 4]
    }

    /// Returns how many milliseconds of its rates may be used at once.
    pub fn burst_ms(&self) -> u32 {
        self.burst_ms
    }

    /// Returns the time that the work takes at these rates.
    pub(crate) fn time_ns(&self, work: Work) -> u64 {
        let of = |count: u64, per_s: u64| match per_s {
            0 => 0,
            per_s => count.saturating_mul(SECOND_NS) / per_s,
        };
        let kind_per_s = work.kind.map_or(0, |kind| self.kinds_per_s[kind as usize]);
        let commands = u64::from(work.commands).saturating_add(work.spent_ns / COMMAND_NS);
        of(commands, self.commands_per_s.into())
            .saturating_add(of(commands, kind_per_s.into()))
            .saturating_add(of(work.bytes, self.bytes_per_s))
            .saturating_add(of(work.deliveries, self.deliveries_per_s))
    }
}

macro_rules! rates_of {
    ($budget:ty) => {
        impl From<&$budget> for Rates {
            fn from(of: &$budget) -> Rates {
                Rates {
                    commands_per_s: of.commands_per_s,
                    kinds_per_s: [
                        of.publishes_per_s,
                        of.subscribes_per_s,
                        of.reads_per_s,
                        of.rpcs_per_s,
                    ],
                    bytes_per_s: of.bytes_per_s,
                    deliveries_per_s: of.deliveries_per_s,
                    burst_ms: of.burst_ms,
                }
            }
        }
    };
}

rates_of!(ClientBudget);
rates_of!(SharedBudget);

/// The work that is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Commands.
    pub commands: u32,
    /// The kind of the commands, for a separate rate.
    pub kind: Option<CommandKind>,
    /// Bytes of the commands.
    pub bytes: u64,
    /// Messages sent to other clients.
    pub deliveries: u64,
    /// Time that the commands have taken, in nanoseconds, if it was measured.
    pub spent_ns: u64,
}

/// The time that the rate of commands provides for one. What takes longer counts as so many commands: an expression over a large
/// `meta`, a large token, a regular expression.
pub const COMMAND_NS: u64 = if cfg!(debug_assertions) { 1_000_000 } else { 50_000 };

/// The buckets of keys that are ahead of the clock.
#[derive(Debug, Default)]
pub struct Buckets {
    /// By key: the instant until which its budget is used.
    used_until_ns: HashMap<u64, u64, RandomState>,
}

impl Buckets {
    /// Charges a key. Returns how long the next command has to wait, in milliseconds.
    pub fn charge(&mut self, key: BudgetKey, rates: &Rates, work: Work, now_ms: u64) -> u64 {
        if !rates.is_limited() {
            return 0;
        }
        let ahead_ms = self.advance(key, rates.time_ns(work), now_ms) / 1_000_000;
        ahead_ms.saturating_sub(u64::from(rates.burst_ms))
    }

    /// Advances a key by what it has used. Returns how far it is ahead of the clock, in nanoseconds.
    pub fn advance(&mut self, key: BudgetKey, used_ns: u64, now_ms: u64) -> u64 {
        let now_ns = now_ms.saturating_mul(1_000_000);
        let until_ns = match self.used_until_ns.get_mut(&key.0) {
            Some(until) => {
                *until = (*until).max(now_ns).saturating_add(used_ns);
                *until
            }
            None => {
                self.make_room(now_ns);
                let until = now_ns.saturating_add(used_ns);
                self.used_until_ns.insert(key.0, until);
                until
            }
        };
        until_ns - now_ns
    }

    /// Whether a key is ahead of the clock.
    pub(crate) fn is_ahead(&self, key: BudgetKey, now_ms: u64) -> bool {
        let until = self.used_until_ns.get(&key.0);
        until.is_some_and(|until| *until > now_ms.saturating_mul(1_000_000))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.used_until_ns.len()
    }

    /// Removes keys that are not ahead of the clock.
    pub fn sweep(&mut self, now_ms: u64) {
        self.forget_idle(now_ms.saturating_mul(1_000_000));
        if self.used_until_ns.len() * 8 <= self.used_until_ns.capacity() {
            self.used_until_ns.shrink_to(self.used_until_ns.len() * 2);
        }
    }

    /// Before one more is remembered. Most owe nothing after milliseconds, and a large table that is given back would leave
    /// a hole in the heap.
    fn make_room(&mut self, now_ns: u64) {
        let capacity = self.used_until_ns.capacity();
        if self.used_until_ns.len() < capacity {
            return;
        }
        self.forget_idle(now_ns);
        if self.used_until_ns.len() > capacity / 2 {
            self.used_until_ns.reserve(capacity);
        }
    }

    fn forget_idle(&mut self, now_ns: u64) {
        self.used_until_ns.retain(|_, until| *until > now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: Rates = Rates {
        commands_per_s: 100,
        kinds_per_s: [0; 4],
        bytes_per_s: 1_000,
        deliveries_per_s: 10_000,
        burst_ms: 1_000,
    };
    const COMMAND: Work = Work { commands: 1, kind: None, bytes: 0, deliveries: 0, spent_ns: 0 };

    fn key(number: u64) -> BudgetKey {
        BudgetKey(number)
    }

    #[test]
    fn a_burst_goes_at_once_and_after_it_the_rate() {
        let mut budgets = Buckets::default();
        for _ in 0..100 {
            assert_eq!(budgets.charge(key(1), &RATES, COMMAND, 5_000), 0);
        }
        assert_eq!(budgets.charge(key(1), &RATES, COMMAND, 5_000), 10);
        assert_eq!(budgets.charge(key(2), &RATES, COMMAND, 5_000), 0, "others are not concerned");
        assert_eq!(budgets.charge(key(1), &RATES, COMMAND, 5_010), 10);
        assert_eq!(budgets.charge(key(1), &RATES, COMMAND, 9_000), 0);
    }

    #[test]
    fn bytes_and_deliveries_take_time_as_well() {
        let mut budgets = Buckets::default();
        let work = Work { commands: 50, bytes: 500, deliveries: 5_000, ..COMMAND };
        assert_eq!(budgets.charge(key(1), &RATES, work, 0), 500);
        let free = Rates { burst_ms: 10, ..Rates::per_second(0) };
        let much = Work { commands: u32::MAX, bytes: u64::MAX, deliveries: u64::MAX, ..COMMAND };
        assert_eq!(budgets.charge(key(1), &free, much, 0), 0, "no bound");
        assert!(budgets.charge(key(3), &RATES, much, 0) > 1 << 32, "nothing overflows");
    }

    #[test]
    fn command_that_takes_long_counts_as_several() {
        let mut budgets = Buckets::default();
        let dear = Work { spent_ns: 19 * COMMAND_NS, ..COMMAND };
        for _ in 0..5 {
            assert_eq!(budgets.charge(key(1), &RATES, dear, 0), 0);
        }
        assert_eq!(budgets.charge(key(1), &RATES, dear, 0), 200);
        let cheap = Work { spent_ns: COMMAND_NS - 1, ..COMMAND };
        for _ in 0..100 {
            assert_eq!(budgets.charge(key(2), &RATES, cheap, 0), 0);
        }
    }

    #[test]
    fn a_kind_of_command_may_have_a_rate_of_its_own() {
        let mut budgets = Buckets::default();
        let rates = Rates { kinds_per_s: [10, 0, 0, 0], ..Rates::per_second(0) };
        assert!(rates.is_limited());
        let publish = Work { kind: Some(CommandKind::Publish), ..COMMAND };
        for _ in 0..10 {
            assert_eq!(budgets.charge(key(1), &rates, publish, 0), 0);
        }
        assert_eq!(budgets.charge(key(1), &rates, publish, 0), 100);
        let read = Work { kind: Some(CommandKind::Read), ..COMMAND };
        for _ in 0..1_000 {
            assert_eq!(budgets.charge(key(2), &rates, read, 0), 0, "no bound of its own");
        }
    }

    #[test]
    fn idle_budget_takes_no_memory_and_a_used_one_16_bytes() {
        let mut budgets = Buckets::default();
        assert_eq!(size_of::<(u64, u64)>(), 16);
        budgets.charge(key(1), &RATES, COMMAND, 0);
        budgets.charge(key(2), &RATES, Work { commands: 50, ..COMMAND }, 0);
        budgets.sweep(10);
        assert_eq!(budgets.used_until_ns.len(), 1);
        budgets.sweep(500);
        assert_eq!((budgets.used_until_ns.len(), budgets.used_until_ns.capacity()), (0, 0));
    }

    #[test]
    fn a_storm_of_clients_that_ask_for_little_leaves_no_large_table() {
        let mut budgets = Buckets::default();
        // A hundred clients each millisecond, which have used 10 ms each: a thousand at one time.
        for client in 0..100_000 {
            budgets.charge(key(client), &RATES, COMMAND, client / 100);
        }
        let capacity = budgets.used_until_ns.capacity();
        assert!((1_000..8_000).contains(&capacity), "{capacity}");
    }
}
