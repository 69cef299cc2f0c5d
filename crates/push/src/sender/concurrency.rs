//! How many requests a connection may have in flight: as many as do not wait for each other.
//!
//! # What is asked of it
//!
//! The peer's windows and its stream limit bind first wherever nothing queues: they are used to the last byte. Where
//! something does queue (in our own socket, in a proxy, at the service), more in flight brings nothing but later answers.
//! The limit has to tell the two apart while answer times vary by a factor of a thousand for reasons of their own.
//!
//! # What it looks at
//!
//! A queue delays everybody who stands in it, the quickest too. A service that takes long for some requests does not. So
//! what is compared are *low quantiles* (5 to 50 %) of answer times: the median of the distances between those of now
//! and those of a *baseline* taken at lower load is the *delay*. Tails (a Pareto, a slow shard, stalls of half a minute) do
//! not reach these quantiles; two modes upset at most one or two of the five.
//!
//! What it looks at is a *cohort*: requests sent one after the other at one limit. Its quantiles are read when its
//! last member is as old as its median, so that those still without an answer are known to be longer.
//!
//! # What it does
//!
//! - The limit grows while it binds and there is no delay: threefold a cohort at the start, later by a step that doubles.
//! - A delay above an eighth of the median answer is only a suspicion, for the service may have become slower. So the limit
//!   goes down, and the next cohort says: if the delay falls with it, it was a queue, and the limit stays where a little of
//!   it is left. If not, the baseline was out of date: it is replaced, and the limit restored.
//! - At the end of the start, and after any large delay, the limit is halved until nothing falls any more: the start itself
//!   may have queued in its baseline. A limit that binds is looked at from below now and then for the same reason.
//!
//! - Where the whole machine stands still now and again, everything is late together, and a delay says nothing of the number in
//!   flight. So what cohorts at one limit differ by is *noise*, and a delay is one above twice that; and a large delay is
//!   looked at a second time, with requests that left after the first look.
//!
//! # What was weighed
//!
//! - Rate × shortest round trip (BBR) takes the quickest answer for the path: one answer in twenty at 1 ms and the rest at
//!   30 ms leave a thirtieth in flight. Of the mean instead of the minimum, a heavy tail makes noise without end.
//! - Goodput that stops growing (PCC) needs many answers for each comparison, and falls behind requests that stall.
//! - Gradients of mean times (Netflix's Gradient2, Envoy) pull the limit down whenever a service becomes slower, and hold the
//!   time at a limit of almost nothing for the truth, which costs throughput at every measurement.
//! - HTTP/2 PING measures the path apart from the service, but whoever answers it stands in front of the service's queue.
//! - The kernel's account (`TCP_INFO`) ends at whoever acknowledges bytes, a proxy perhaps. What it could say of unsent bytes
//!   `TCP_NOTSENT_LOWAT` bounds already (`dial`): beyond that the socket takes no more, and that binds as
//!   [`Binding::Socket`](super::Binding::Socket).

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// In flight on a new connection before anything is known of its path.
const FIRST: f64 = 128.0;
/// In flight at least, so that there is something to learn from.
const MIN: f64 = 4.0;
const MAX: f64 = 1e9;
/// Growth a cohort before the first delay.
const STARTUP_GROWTH: f64 = 3.0;
/// The first growth after a queue, doubled with each that follows.
const STEP_MIN: f64 = 0.05;
const STEP_FINE: f64 = 0.1;
const STEP_MAX: f64 = 1.0;
/// Of the median answer, how much may be queueing.
const DELAY_SHARE: f64 = 0.12;
/// On paths shorter than this the queue may be longer, so that their own jitter does not leave them without work.
const SHORT: Duration = Duration::from_millis(2);
/// Of the delay allowed: below this there is none.
const NO_DELAY: f64 = 0.7;
/// How often a delay has to be seen in a row before anything is done about it, unless it is large.
const DELAYED_COHORTS: u32 = 2;
/// Of what cohorts at one limit differ by, how much may be queueing; and over how many cohorts that is taken.
const NOISE_ALLOWED: f64 = 2.0;
const NOISE_COHORTS: f64 = 8.0;
/// Requests of a cohort.
const COHORT_MIN: u32 = 16;
const COHORT_MAX: u32 = 512;
/// And of one that something is decided by for long.
const COHORT_TRIAL: f64 = 48.0;
/// Cohorts that are sent or wait for answers at once.
const COHORTS_MAX: usize = 3;
/// A limit that binds is looked at from below so often.
const PROBE_EVERY: Duration = Duration::from_secs(30);
const PROBE_COHORTS: u32 = 64;
/// A shortest answer time is believed for so long, and as long again.
const SHORTEST_BELIEVED: Duration = Duration::from_secs(10);

/// The limit of one connection.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    limit: f64,
    phase: Phase,
    baseline: Option<Level>,
    cohorts: VecDeque<Cohort>,
    next_cohort: u32,
    /// Something waited for the limit since the cohort in front was begun.
    bound: bool,
    /// Cohorts in a row that were delayed.
    delayed: u32,
    step: f64,
    /// When the limit was last looked at from below, and cohorts since.
    probed_at: Instant,
    probed_cohorts: u32,
    /// The last cohort at this limit, and by how much cohorts at one limit differ, in seconds: what changes by itself says
    /// nothing of the number in flight.
    previous: Option<Level>,
    noise: f64,
    /// The median answer of late.
    median: Option<Duration>,
    /// The shortest answer time now and in the period before.
    shortest: Option<Duration>,
    shortest_before: Option<Duration>,
    shortest_since: Instant,
    answers: AnswerRate,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Nothing was delayed yet.
    Startup,
    Steady,
    /// The limit is lower than it was: does the delay fall with it?
    Verify(Verify),
    /// The limit is halved until nothing falls any more, for there is no baseline to be trusted.
    Search(Search),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Verify {
    above: Level,
    delay: f64,
    /// Where the limit goes if it was no queue.
    restore: f64,
    /// And where if it was one.
    target: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Search {
    /// What it was at twice the limit.
    above: Level,
    /// It was still changing: a lower one now is a sign, an equal one is not.
    changing: bool,
    /// Where the limit goes if nothing falls any more.
    restore: f64,
}

/// What a cohort found; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    /// The most that was in flight.
    in_flight: f64,
    quantiles: [f64; SHARES.len()],
    median: f64,
}

#[derive(Clone, Copy, Debug)]
struct Fallen {
    quicker: f64,
    expected: f64,
}

const SHARES: [f64; 5] = [0.05, 0.1, 0.2, 0.3, 0.5];

/// Requests that were sent one after the other, and the times of their answers.
#[derive(Debug)]
struct Cohort {
    id: u32,
    size: u32,
    sent: u32,
    begun_at: Instant,
    closed_at: Option<Instant>,
    /// When all members are as old as the median, once that is known.
    due_at: Option<Instant>,
    in_flight: u32,
    /// Microseconds.
    times: Vec<u32>,
}

/// What the limit remembers of a request until its answer.
#[derive(Clone, Copy, Debug)]
pub struct SentRequest {
    sent_at: Instant,
    cohort: u32,
}

impl SentRequest {
    /// When the request was sent.
    pub(crate) fn sent_at(&self) -> Instant {
        self.sent_at
    }
}

impl ConcurrencyLimit {
    /// The limit of a new connection.
    pub fn new(now: Instant) -> ConcurrencyLimit {
        ConcurrencyLimit {
            limit: FIRST,
            phase: Phase::Startup,
            baseline: None,
            cohorts: VecDeque::with_capacity(COHORTS_MAX),
            next_cohort: 0,
            bound: false,
            delayed: 0,
            step: STEP_MIN,
            probed_at: now,
            probed_cohorts: 0,
            previous: None,
            noise: 0.0,
            median: None,
            shortest: None,
            shortest_before: None,
            shortest_since: now,
            answers: AnswerRate { since: now, count: 0, rate: None },
        }
    }

    /// How many requests may be in flight.
    #[inline]
    pub fn limit(&self) -> u32 {
        self.limit as u32
    }

    /// Recent rate of answers, per second.
    pub fn rate(&self) -> Option<f64> {
        self.answers.rate
    }

    /// The shortest time of late, from request to answer.
    pub fn shortest(&self) -> Option<Duration> {
        match (self.shortest, self.shortest_before) {
            (Some(now), Some(before)) => Some(now.min(before)),
            (now, before) => now.or(before),
        }
    }

    /// The median time of recent answers; the shortest time before a median is known.
    pub fn median(&self) -> Option<Duration> {
        self.median.or_else(|| self.shortest())
    }

    /// A request is sent while `in_flight` others await their answers.
    #[inline]
    pub fn handle_sent(&mut self, in_flight: u32, now: Instant) -> SentRequest {
        let open = self.cohorts.back().is_some_and(|cohort| cohort.closed_at.is_none());
        if !open && self.cohorts.len() < COHORTS_MAX {
            self.begin_cohort(now);
        }
        let mut cohort = u32::MAX;
        if let Some(last) = self.cohorts.back_mut()
            && last.closed_at.is_none()
        {
            cohort = last.id;
            last.sent += 1;
            last.in_flight = last.in_flight.max(in_flight + 1);
            if last.sent == last.size {
                last.closed_at = Some(now);
            }
        }
        SentRequest { sent_at: now, cohort }
    }

    fn begin_cohort(&mut self, now: Instant) {
        let size = match self.phase {
            Phase::Startup => self.limit / 2.0,
            // To grow by much takes no fine measure.
            Phase::Steady if self.step > STEP_FINE => self.limit * 2.0,
            Phase::Steady => self.limit * 8.0,
            Phase::Verify(_) | Phase::Search(_) => (self.limit * 2.0).max(COHORT_TRIAL),
        };
        let size = (size as u32).clamp(COHORT_MIN, COHORT_MAX);
        let id = self.next_cohort;
        // The highest number is nobody's.
        self.next_cohort = if id == u32::MAX - 1 { 0 } else { id + 1 };
        self.cohorts.push_back(Cohort {
            id,
            size,
            sent: 0,
            begun_at: now,
            closed_at: None,
            due_at: None,
            in_flight: 0,
            times: Vec::with_capacity(size as usize),
        });
    }

    /// A request waits although windows and stream limit would admit it: this limit binds.
    #[inline]
    pub(crate) fn handle_bound(&mut self) {
        self.bound = true;
    }

    /// An answer came.
    #[inline]
    pub fn handle_answer(&mut self, sent: &SentRequest, now: Instant) {
        let time = now - sent.sent_at;
        self.answers.count(now);
        if now - self.shortest_since > SHORTEST_BELIEVED {
            self.shortest_before = self.shortest.take();
            self.shortest_since = now;
        }
        self.shortest = Some(self.shortest.map_or(time, |shortest| shortest.min(time)));

        let Some(first) = self.cohorts.front() else { return };
        let index = sent.cohort.wrapping_sub(first.id) as usize;
        if let Some(cohort) = self.cohorts.get_mut(index) {
            cohort.times.push(time.as_micros().min(u128::from(u32::MAX)) as u32);
        }
        while self.cohorts.front_mut().is_some_and(|cohort| cohort.is_over(now)) {
            let Some(cohort) = self.cohorts.pop_front() else { return };
            self.handle_cohort(cohort, now);
        }
    }

    fn handle_cohort(&mut self, cohort: Cohort, now: Instant) {
        let Some(level) = cohort.level() else {
            // Hardly any of it was answered.
            match self.phase {
                Phase::Verify(Verify { restore, .. }) | Phase::Search(Search { restore, .. }) => {
                    self.go(Phase::Steady, restore);
                }
                Phase::Startup | Phase::Steady => {}
            }
            return;
        };
        self.median = Some(Duration::from_secs_f64(level.median));
        self.probed_cohorts = self.probed_cohorts.saturating_add(1);
        match self.phase {
            Phase::Startup | Phase::Steady => self.handle_level(level, now),
            Phase::Verify(verify) => self.handle_verified(&verify, level),
            Phase::Search(search) => self.handle_found(search, level, now),
        }
    }

    /// Nothing is being tried: is there a delay?
    fn handle_level(&mut self, level: Level, now: Instant) {
        if self.phase == Phase::Steady
            && let Some(previous) = self.previous.replace(level)
        {
            // One jump is no noise.
            let most = 2.0 * self.noise + level.delay_max();
            self.noise += (level.behind(&previous).abs().min(most) - self.noise) / NOISE_COHORTS;
        }
        let Some(baseline) = &mut self.baseline else {
            self.baseline = Some(level);
            return;
        };
        let delay = level.behind(baseline);
        let allowed = baseline.delay_max().max(NOISE_ALLOWED * self.noise);
        if delay < -allowed || level.in_flight < baseline.in_flight * 0.5 {
            *baseline = level;
        } else if delay < 0.0 || level.in_flight <= baseline.in_flight {
            baseline.approach(&level);
        }
        let large = match self.phase {
            Phase::Startup => 3.0 * allowed,
            _ => baseline.median / 2.0 + allowed,
        };
        self.delayed = if delay > allowed { self.delayed + 1 } else { 0 };
        let bound = std::mem::take(&mut self.bound);
        let often = self.delayed >= DELAYED_COHORTS;
        if delay > large && !often && self.phase == Phase::Steady {
            // Perhaps everything stood still for a moment: what is sent from now on will say.
            self.cohorts.clear();
            return;
        }
        if delay > large || often && self.phase == Phase::Startup {
            let half = level.in_flight / 2.0;
            let restore = if self.phase == Phase::Startup { half } else { self.limit };
            return self.go(Phase::Search(Search { above: level, changing: true, restore }), half);
        }
        if often {
            let keep = 1.0 - (delay - allowed / 2.0) / level.median;
            let target = level.in_flight * keep.clamp(0.5, 1.0);
            let verify = Verify { above: level, delay, restore: self.limit, target };
            // Less than a fifth would be lost in noise.
            return self.go(Phase::Verify(verify), target.min(level.in_flight * 0.8));
        }
        if !bound || delay > allowed {
            return;
        }
        if self.phase == Phase::Startup {
            return self.go(Phase::Startup, self.limit * STARTUP_GROWTH);
        }
        if now >= self.probed_at + PROBE_EVERY && self.probed_cohorts >= PROBE_COHORTS {
            let search = Search { above: level, changing: false, restore: self.limit };
            // Not by half: this costs throughput, and whatever stands in a queue becomes quicker by this too.
            return self.go(Phase::Search(search), level.in_flight * 0.75);
        }
        if delay < NO_DELAY * allowed {
            let grown = self.limit * (1.0 + self.step);
            self.step = (2.0 * self.step).min(STEP_MAX);
            self.go(Phase::Steady, grown.max(self.limit + 1.0));
        }
    }

    /// The limit was lowered for a delay: has the delay become less?
    fn handle_verified(&mut self, verify: &Verify, level: Level) {
        let fallen = level.fallen_from(&verify.above);
        if fallen.quicker < -level.delay_max() {
            // It changes faster than can be said of either.
            let search = Search { above: level, changing: true, restore: verify.restore };
            return self.go(Phase::Search(search), level.in_flight / 2.0);
        }
        if fallen.quicker < 0.5 * fallen.expected.min(verify.delay) {
            // Nobody waited for anybody: the service has become slower.
            self.baseline = Some(level);
            return self.go(Phase::Steady, verify.restore);
        }
        self.step = STEP_MIN;
        self.go(Phase::Steady, verify.target);
    }

    fn handle_found(&mut self, search: Search, level: Level, now: Instant) {
        let above = search.above;
        let fallen = level.fallen_from(&above);
        let mut restore = search.restore;
        let mut goes_on = search.changing;
        if fallen.quicker >= 0.5 * fallen.expected.max(level.delay_max()) {
            let queued = (fallen.quicker - level.delay_max() / 2.0) / above.median;
            restore = (above.in_flight * (1.0 - queued).min(1.0)).max(level.in_flight);
            goes_on |= fallen.quicker >= 0.7 * fallen.expected;
            self.step = 2.0 * STEP_FINE;
        }
        if goes_on && level.in_flight > MIN {
            let search = Search { above: level, changing: false, restore };
            return self.go(Phase::Search(search), level.in_flight / 2.0);
        }
        self.probed_at = now;
        self.probed_cohorts = 0;
        self.baseline = Some(level);
        self.go(Phase::Steady, restore);
    }

    /// Goes on at another limit; what was sent at the one before says nothing of it.
    fn go(&mut self, phase: Phase, limit: f64) {
        self.phase = phase;
        self.limit = limit.clamp(MIN, MAX);
        self.cohorts.clear();
        self.previous = None;
        self.delayed = 0;
        self.bound = false;
    }
}

impl Level {
    /// How much later answers come than at another level, all of them.
    fn behind(&self, other: &Level) -> f64 {
        let mut distances: [f64; SHARES.len()] =
            std::array::from_fn(|index| self.quantiles[index] - other.quantiles[index]);
        distances.sort_unstable_by(f64::total_cmp);
        distances[SHARES.len() / 2]
    }

    /// How much quicker answers are than at a level above, and by how much they would be if they had taken so long for
    /// nothing but the number in flight.
    fn fallen_from(&self, above: &Level) -> Fallen {
        let lower = (1.0 - self.in_flight / above.in_flight).max(0.0);
        Fallen { quicker: above.behind(self), expected: lower * above.median }
    }

    /// The delay that is no harm.
    fn delay_max(&self) -> f64 {
        let share = DELAY_SHARE * self.median;
        share.max(SHORT.as_secs_f64() - share)
    }

    /// Follows what is seen anew at no higher load.
    fn approach(&mut self, level: &Level) {
        let near = |known: &mut f64, seen: f64| *known += (seen - *known) / 8.0;
        for (known, seen) in self.quantiles.iter_mut().zip(level.quantiles) {
            near(known, seen);
        }
        near(&mut self.median, level.median);
    }
}

impl Cohort {
    /// Whether all is known of it that is going to be.
    fn is_over(&mut self, now: Instant) -> bool {
        let answered = self.times.len();
        if answered * 5 < self.sent as usize * 3 {
            // Most of it is never answered, it seems.
            return self.closed_at.is_some_and(|closed_at| now >= closed_at + SHORTEST_BELIEVED);
        }
        let Some(closed_at) = self.closed_at else {
            // Little is sent.
            let late = now >= self.begun_at + Duration::from_secs(1);
            if late && self.sent >= COHORT_MIN {
                self.closed_at = Some(now);
            }
            return false;
        };
        if self.due_at.is_none() {
            let middle = self.sent as usize / 2;
            let (_, median, _) = self.times.select_nth_unstable(middle.min(answered - 1));
            self.due_at = Some(closed_at + Duration::from_micros(u64::from(*median)));
        }
        self.due_at.is_some_and(|due_at| now >= due_at)
    }

    fn level(mut self) -> Option<Level> {
        self.times.sort_unstable();
        // Those without an answer take longer than these.
        let quantile = |share: f64| {
            let us = *self.times.get((f64::from(self.sent) * share) as usize)?;
            Some(f64::from(us) / 1e6)
        };
        let mut quantiles = [0.0; SHARES.len()];
        for (known, share) in quantiles.iter_mut().zip(SHARES) {
            *known = quantile(share)?;
        }
        let median = quantile(0.5)?.max(1e-6);
        Some(Level { in_flight: f64::from(self.in_flight), quantiles, median })
    }
}

/// Answers a second, over the last second or a little more.
#[derive(Debug)]
struct AnswerRate {
    since: Instant,
    count: u64,
    rate: Option<f64>,
}

impl AnswerRate {
    #[inline]
    fn count(&mut self, now: Instant) {
        self.count += 1;
        let time = now - self.since;
        if time >= Duration::from_secs(1) {
            self.rate = Some(self.count as f64 / time.as_secs_f64());
            self.since = now;
            self.count = 0;
        }
    }
}

#[cfg(test)]
mod tests;
