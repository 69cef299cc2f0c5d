//! State shared by all connections of a simulator.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, watch};

use super::channels::Channels;
use super::ledger::Ledger;
use super::provider_token::Keyring;
use super::rules::Rules;
use super::{AnswerTime, Behaviour, Environment, Order, Rule};

/// Counters since the start of the simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    /// Connections currently open.
    pub connections_open: u64,
    /// Pushes received completely, processed or not.
    pub received: u64,
    /// Pushes accepted, whatever answer was sent.
    pub accepted: u64,
    /// Pushes rejected, that is answered with a status other than 200.
    pub rejected: u64,
    /// Accepted pushes whose answer was never sent.
    pub answers_lost: u64,
    /// Accepted pushes whose answer had no end.
    pub answers_half: u64,
    /// Accepted pushes whose stream was reset.
    pub answers_reset: u64,
    /// Pushes that were not processed: reset with REFUSED_STREAM, or above GOAWAY's last stream id.
    pub unprocessed: u64,
    /// GOAWAY frames sent.
    pub goaways: u64,
    /// Bytes of payload received.
    pub body_bytes: u64,
    /// Processed pushes that did not fit in the ledger.
    pub ledger_beyond: u64,
}

/// Returns a histogram from a microsecond to an hour with three significant digits.
fn new_histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, 3_600_000_000, 3) {
        Ok(histogram) => histogram,
        Err(error) => unreachable!("constant bounds: {error}"),
    }
}

/// The state that changes with each push.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) ledger: Ledger,
    pub(crate) counts: Counts,
    pub(crate) rules: Rules,
    pub(crate) channels: Channels,
    /// Answer times without the path, in microseconds.
    answer_times: Histogram<u64>,
    /// When each busy worker of the service becomes free, as time since the start.
    workers: BinaryHeap<Reverse<Duration>>,
    /// State of the id generator (xorshift64*); ids must be unique, not secret.
    random: u64,
}

impl World {
    pub(crate) fn random_u64(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn random_share(&mut self) -> f64 {
        (self.random_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the time until the answer to a push, including the wait for a worker.
    pub(crate) fn answer_after(
        &mut self,
        time: &AnswerTime,
        number: u64,
        device_token: &[u8],
        now: Now,
    ) -> Duration {
        let subject = foldhash::fast::FixedState::default().hash_one(device_token);
        let drawn = time.draw(number, subject, now.uptime, || self.random_share());
        let after = self.end_of_work(time.workers, drawn, now) - now.uptime;
        self.answer_times.saturating_record(after.as_micros() as u64);
        after
    }

    /// Returns when one of `workers` has finished `work`; 0 workers means unlimited.
    fn end_of_work(&mut self, workers: u32, work: Duration, now: Now) -> Duration {
        if workers == 0 {
            self.workers.clear();
            return now.uptime + work;
        }
        while self.workers.len() > workers as usize {
            self.workers.pop();
        }
        let free = match self.workers.len() == workers as usize {
            true => self.workers.pop().map_or(now.uptime, |Reverse(at)| at.max(now.uptime)),
            false => now.uptime,
        };
        self.workers.push(Reverse(free + work));
        free + work
    }

    /// Returns a new UUID (RFC 9562 version 4).
    pub(crate) fn new_id(&mut self) -> [u8; 16] {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.random_u64().to_be_bytes());
        id[8..].copy_from_slice(&self.random_u64().to_be_bytes());
        id[6] = id[6] & 0x0f | 0x40;
        id[8] = id[8] & 0x3f | 0x80;
        id
    }
}

/// A simulator's state, shared by its thread and its owner's.
#[derive(Debug)]
pub(crate) struct Shared {
    world: Mutex<World>,
    pub(crate) keyring: Keyring,
    pub(crate) environment: Environment,
    pub(crate) started: Instant,
    started_unix_ms: u64,
    pub(crate) behaviour: watch::Sender<Arc<Behaviour>>,
    pub(crate) orders: broadcast::Sender<Order>,
}

/// Orders buffered for each connection; a stalled connection loses older ones.
const ORDERS_KEPT: usize = 64;

impl Shared {
    pub(crate) fn new(
        keyring: Keyring,
        environment: Environment,
        rules: Vec<Rule>,
        ledger_max: usize,
        behaviour: Behaviour,
        seed: u64,
    ) -> Shared {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started_unix_ms = now.as_millis() as u64;
        let world = World {
            ledger: Ledger::new(ledger_max),
            counts: Counts::default(),
            rules: Rules::new(rules, started_unix_ms.saturating_sub(3_600_000)),
            channels: Channels::default(),
            answer_times: new_histogram(),
            workers: BinaryHeap::new(),
            random: seed | 1,
        };
        Shared {
            world: Mutex::new(world),
            keyring,
            environment,
            started: Instant::now(),
            started_unix_ms,
            behaviour: watch::Sender::new(Arc::new(behaviour)),
            orders: broadcast::Sender::new(ORDERS_KEPT),
        }
    }

    /// Locks the mutable state. No holder awaits while the lock is held.
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current time.
    pub(crate) fn now(&self) -> Now {
        let uptime = self.started.elapsed();
        let at_ms = uptime.as_millis() as u64;
        Now { uptime, at_ms, unix_ms: self.started_unix_ms + at_ms }
    }

    pub(crate) fn answer_time_median(&self) -> Duration {
        Duration::from_micros(self.world().answer_times.value_at_quantile(0.5))
    }

    pub(crate) fn counts(&self) -> Counts {
        let world = self.world();
        Counts { ledger_beyond: world.ledger.beyond(), ..world.counts }
    }
}

/// A point in time, passed to state machines, which read no clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) uptime: Duration,
    pub(crate) at_ms: u64,
    pub(crate) unix_ms: u64,
}
