//! Limits the requests in flight on a connection to the most that do not queue behind each other.
//!
//! # Requirements
//!
//! Where nothing queues, only the peer's windows and its stream limit may bind, and they are used in full. Where requests
//! queue (in our own socket, in a proxy, at the service), more of them in flight only delays answers. The limit has to
//! distinguish the two although answer times vary by a factor of a thousand for other reasons.
//!
//! # Measurement
//!
//! A queue delays every request, including the fastest; a service that is slow for some requests does not. Therefore *low
//! quantiles* (5 to 50 %) of answer times are compared. The *delay* is the median of the differences between the current
//! quantiles and those of a *baseline* measured at lower load. Tails (a Pareto distribution, a slow shard, stalls of half a
//! minute) do not reach these quantiles; a bimodal distribution disturbs at most one or two of the five.
//!
//! The unit of measurement is a *cohort*: consecutive requests sent at one limit. Its quantiles are read when its last
//! member is as old as its median, so that requests without an answer are known to take longer.
//!
//! # Algorithm
//!
//! A delay alone does not say that fewer requests should be in flight. A server whose core is busy answers a little later the
//! more it has to do, long before more in flight stops to pay; the requests of an increase arrive at once and wait for each
//! other; a collector of garbage stands in the way. What decides is the *rate*. By Little's law it is the number in flight divided
//! by the answer time: if the number falls by a fifth, and answers are quicker by less than half of a fifth, a good part of the
//! rate was lost, and there was no queue worth the name.
//!
//! - The limit grows while it binds and there is no delay: threefold per cohort during startup, later by a step that doubles.
//!   During startup it also grows with a delay, if the last increase paid.
//! - A delay above a seventh of the median answer time has to last until consecutive cohorts agree. Then the limit is lowered,
//!   and the next cohorts decide. If answers become quicker about as the number in flight falls, there was a queue, and the
//!   limit is set to what the same rate needs without it, and a little more. If not, the baseline was out of date: it is
//!   replaced, and the limit restored.
//! - At the end of startup, and after any large delay, the limit is halved until answer times stop falling, because the
//!   baseline itself may include queueing. For the same reason a binding limit is probed from below now and then. The limit
//!   afterwards follows from how much quicker answers became, without a threshold: so there is one state to settle in.
//! - When the whole machine stalls now and then, all answers are late together, whatever the number in flight. So the
//!   differences between cohorts at one limit are measured as *noise*, and a delay must exceed twice the noise.
//!
//! # Alternatives considered
//!
//! - Rate × shortest round trip (BBR) takes the fastest answer for the round trip of the path: if one answer in twenty takes
//!   1 ms and the rest 30 ms, a thirtieth of the right number is in flight. With the mean instead of the minimum, a heavy
//!   tail causes unlimited noise.
//! - Goodput that stops growing (PCC) needs many answers for each comparison, and is misled by requests that stall. Low
//!   quantiles and Little's law answer the same question from a few hundred.
//! - A fixed number of queued requests (Vegas, and the limit of that name in Netflix's library) is too few for a core that is
//!   taken away for milliseconds.
//! - Gradients of mean times (Netflix's Gradient2, Envoy) lower the limit whenever a service becomes slower. They take the
//!   time measured at a minimal limit as the reference, which costs throughput at every measurement.
//! - HTTP/2 PING measures the path without the service, but its answer does not pass through the service's queue.
//! - The kernel's statistics (`TCP_INFO`) end at the peer that acknowledges bytes, which may be a proxy. Unsent bytes are
//!   already bounded by `TCP_NOTSENT_LOWAT` (`dial`): beyond that the socket accepts no more, which binds as
//!   [`Binding::Socket`](super::Binding::Socket).

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

/// The limit of a new connection, before anything is measured.
const FIRST: f64 = 128.0;
/// The lowest limit: fewer requests give too few measurements.
const MIN: f64 = 4.0;
const MAX: f64 = 1e9;
/// Growth factor per cohort before the first delay.
const STARTUP_GROWTH: f64 = 3.0;
/// Relative growth after a queue was found; doubles with each further growth, up to [`STEP_MAX`].
const STEP_MIN: f64 = 0.05;
const STEP_FINE: f64 = 0.1;
const STEP_MAX: f64 = 1.0;
/// The share of the median answer time that queueing may take: a seventh.
const DELAY_SHARE: f64 = 1.0 / 7.0;
/// On paths shorter than this a longer queue is allowed, so that jitter does not leave the connection idle.
const SHORT: Duration = Duration::from_millis(2);
/// Requests queue if answers take longer by this share of what they would take longer if the rate stayed the same.
const QUEUED: f64 = 0.5;
/// Such a share is measured again, over at most so many cohorts.
const UNCLEAR: Range<f64> = 0.35..0.6;
const VERIFY_COHORTS: u32 = 2;
/// With more than this share, requests still queue at the lowered limit.
const STILL_QUEUED: f64 = 0.8;
/// The limit grows fast only while the delay is below this share of the allowed delay.
const NO_DELAY: f64 = 0.7;
/// Consecutive delayed cohorts after which the limit is lowered even if answers are still becoming slower.
const DELAYED_MAX: u32 = 5;
/// The least growth of the number in flight whose effect can be judged.
const GROWN: f64 = 1.25;
/// The allowed delay as a multiple of the noise, and the number of cohorts over which the noise is averaged.
const NOISE_ALLOWED: f64 = 2.0;
const NOISE_COHORTS: f64 = 8.0;
/// Bounds of the number of requests in a cohort.
const COHORT_MIN: u32 = 16;
const COHORT_MAX: u32 = 512;
/// A cohort of a steady limit is spread over so many times the requests in flight, so that no burst is the whole of it.
const COHORT_WINDOWS: u32 = 2;
/// The least number in a cohort that decides a [`Phase::Verify`] or [`Phase::Search`], before the clamp.
const COHORT_TRIAL: f64 = 48.0;
/// Most cohorts that are being sent or await answers.
const COHORTS_MAX: usize = 3;
/// Least time and least number of cohorts between two probes of a binding limit from below.
const PROBE_EVERY: Duration = Duration::from_secs(30);
const PROBE_COHORTS: u32 = 64;
/// The length of a period over which the shortest answer time is taken; the period before counts, too.
const SHORTEST_BELIEVED: Duration = Duration::from_secs(10);

/// The limit of one connection.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    limit: f64,
    phase: Phase,
    baseline: Option<Level>,
    cohorts: VecDeque<Cohort>,
    next_cohort: u32,
    /// A request had to wait for the limit since the last decision.
    bound: bool,
    /// Consecutive delayed cohorts.
    delayed: u32,
    step: f64,
    /// When a search last ended, and the number of cohorts since.
    probed_at: Instant,
    probed_cohorts: u32,
    /// The last cohort at this limit, and the mean difference between cohorts at one limit, in seconds: changes of this
    /// size are not caused by the number in flight.
    previous: Option<Level>,
    noise: f64,
    /// The level before the limit was last increased.
    grown_from: Option<Level>,
    /// The median answer time of the last cohort.
    median: Option<Duration>,
    /// The shortest answer times of the current period and of the one before.
    shortest: Option<Duration>,
    shortest_before: Option<Duration>,
    shortest_since: Instant,
    answers: AnswerRate,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// No delay has been seen yet.
    Startup,
    Steady,
    /// The limit was lowered, to see whether the delay falls with it.
    Verify(Verify),
    /// The limit is halved until answer times stop falling, because the baseline cannot be trusted.
    Search(Search),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Verify {
    above: Level,
    /// The limit to restore if there was no queue.
    restore: f64,
    /// The limit to set if there was one.
    target: f64,
    /// The sum of the shares that were found queued, and the number of cohorts it is of.
    queued: f64,
    cohorts: u32,
    /// The baseline is that of the first requests, which were sent at once and queued behind each other.
    startup: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Search {
    /// The level at the higher limit before this step.
    above: Level,
    /// Answer times were still changing at `above`: the search goes on even if they have not fallen.
    changing: bool,
    /// The limit to set when answer times stop falling.
    restore: f64,
}

/// The measurement of one cohort; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    /// The highest number of requests in flight.
    in_flight: f64,
    quantiles: [f64; SHARES.len()],
    median: f64,
}

/// How much later answers are than those of the baseline, what is tolerated, and whether the cohort before says the same.
#[derive(Clone, Copy, Debug)]
struct Delay {
    delay: f64,
    allowed: f64,
    lasting: bool,
}

#[derive(Clone, Copy, Debug)]
struct Fallen {
    quicker: f64,
    expected: f64,
}

const SHARES: [f64; 5] = [0.05, 0.1, 0.2, 0.3, 0.5];

/// Consecutive requests and their answer times.
#[derive(Debug)]
struct Cohort {
    id: u32,
    size: u32,
    /// One request in so many is a member.
    stride: u32,
    /// Requests since the cohort began, members or not.
    passed: u32,
    sent: u32,
    begun_at: Instant,
    closed_at: Option<Instant>,
    /// When all members are as old as the median answer time, once that is known.
    due_at: Option<Instant>,
    in_flight: u32,
    /// Answer times in microseconds.
    times: Vec<u32>,
}

/// The time and the cohort of a request, kept until its answer.
#[derive(Clone, Copy, Debug)]
pub struct SentRequest {
    sent_at: Instant,
    cohort: u32,
}

impl SentRequest {
    /// Returns when the request was sent.
    pub(crate) fn sent_at(&self) -> Instant {
        self.sent_at
    }
}

impl ConcurrencyLimit {
    /// Creates the limit of a new connection.
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
            grown_from: None,
            median: None,
            shortest: None,
            shortest_before: None,
            shortest_since: now,
            answers: AnswerRate { since: now, count: 0, rate: None },
        }
    }

    /// Returns how many requests may be in flight.
    #[inline]
    pub fn limit(&self) -> u32 {
        self.limit as u32
    }

    /// Returns the recent rate of answers per second.
    pub fn rate(&self) -> Option<f64> {
        self.answers.rate
    }

    /// Returns the shortest recent time from request to answer.
    pub fn shortest(&self) -> Option<Duration> {
        match (self.shortest, self.shortest_before) {
            (Some(now), Some(before)) => Some(now.min(before)),
            (now, before) => now.or(before),
        }
    }

    /// Returns the median time of recent answers, or the shortest time before a median is known.
    pub fn median(&self) -> Option<Duration> {
        self.median.or_else(|| self.shortest())
    }

    /// Records that a request is sent while `in_flight` others await their answers.
    #[inline]
    pub fn handle_sent(&mut self, in_flight: u32, now: Instant) -> SentRequest {
        let open = self.cohorts.back().is_some_and(|cohort| cohort.closed_at.is_none());
        if !open && self.cohorts.len() < COHORTS_MAX {
            self.begin_cohort(in_flight, now);
        }
        let mut cohort = u32::MAX;
        if let Some(last) = self.cohorts.back_mut()
            && last.closed_at.is_none()
        {
            last.in_flight = last.in_flight.max(in_flight + 1);
            last.passed += 1;
            if last.passed % last.stride == 0 {
                cohort = last.id;
                last.sent += 1;
            }
            if last.sent == last.size {
                last.closed_at = Some(now);
            }
        }
        SentRequest { sent_at: now, cohort }
    }

    fn begin_cohort(&mut self, in_flight: u32, now: Instant) {
        let size = match self.phase {
            Phase::Startup => self.limit / 2.0,
            // A large step needs no precise measurement.
            Phase::Steady if self.step > STEP_FINE => self.limit * 2.0,
            Phase::Steady => self.limit * 8.0,
            Phase::Verify(_) | Phase::Search(_) => (self.limit * 2.0).max(COHORT_TRIAL),
        };
        let size = (size as u32).clamp(COHORT_MIN, COHORT_MAX);
        let id = self.next_cohort;
        // `u32::MAX` marks requests without a cohort.
        self.next_cohort = if id == u32::MAX - 1 { 0 } else { id + 1 };
        self.cohorts.push_back(Cohort {
            id,
            size,
            stride: match self.phase {
                Phase::Startup => 1,
                Phase::Verify(_) | Phase::Search(_) => in_flight.div_ceil(size).max(1),
                Phase::Steady => (COHORT_WINDOWS * in_flight).div_ceil(size).max(1),
            },
            passed: 0,
            sent: 0,
            begun_at: now,
            closed_at: None,
            due_at: None,
            in_flight: 0,
            times: Vec::with_capacity(size as usize),
        });
    }

    /// Records that this limit binds: a request waits although windows and stream limit would admit it.
    #[inline]
    pub(crate) fn handle_bound(&mut self) {
        self.bound = true;
    }

    /// Records an answer.
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
            // Too few requests were answered to measure the quantiles.
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
            Phase::Verify(verify) => self.handle_verified(verify, level),
            Phase::Search(search) => self.handle_found(search, level, now),
        }
    }

    /// Looks for a delay while no lower limit is being tried.
    fn handle_level(&mut self, level: Level, now: Instant) {
        let previous = self.previous.replace(level);
        if self.phase == Phase::Steady
            && let Some(previous) = &previous
        {
            // Bounded, so that a single jump does not count as noise.
            let most = 2.0 * self.noise + level.delay_max();
            self.noise += (level.behind(previous).abs().min(most) - self.noise) / NOISE_COHORTS;
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
        let bound = std::mem::take(&mut self.bound);
        if delay > allowed {
            let lasting = previous.is_some_and(|previous| level.behind(&previous).abs() <= allowed);
            return self.handle_delay(level, Delay { delay, allowed, lasting }, bound);
        }
        self.delayed = 0;
        if !bound {
            return;
        }
        if self.phase == Phase::Startup {
            return self.grow(level);
        }
        if delay > NO_DELAY * allowed {
            self.step = STEP_MIN;
        }
        if now >= self.probed_at + PROBE_EVERY && self.probed_cohorts >= PROBE_COHORTS {
            let search = Search { above: level, changing: false, restore: self.limit };
            // A decrease by half would cost more throughput, and a quarter suffices to make queued requests faster.
            return self.go(Phase::Search(search), level.in_flight * 0.75);
        }
        self.grow(level);
    }

    fn grow(&mut self, level: Level) {
        let grown = match self.phase {
            Phase::Startup => self.limit * STARTUP_GROWTH,
            _ => (self.limit * (1.0 + self.step)).max(self.limit + 1.0),
        };
        if self.phase != Phase::Startup {
            self.step = (2.0 * self.step).min(STEP_MAX);
        }
        self.go(self.phase, grown);
        self.grown_from = Some(level);
    }

    /// Looks for the reason of a delay: grows on if the last increase paid, or tries a lower limit once the delay lasts.
    fn handle_delay(
        &mut self,
        level: Level,
        Delay { delay, allowed, lasting }: Delay,
        bound: bool,
    ) {
        self.delayed += 1;
        let grown_from = self.grown_from.filter(|from| level.in_flight >= GROWN * from.in_flight);
        if let Some(from) = grown_from
            && self.phase == Phase::Startup
        {
            let slower_if_queued = (level.in_flight / from.in_flight - 1.0) * from.median;
            if level.behind(&from) >= QUEUED * slower_if_queued {
                return self.search(level);
            }
            if bound {
                return self.grow(level);
            }
        }
        if !lasting && self.delayed < DELAYED_MAX {
            // The requests of the last increase came at once, the machine has stalled, or the service is becoming slower:
            // requests sent after these decide.
            self.cohorts.clear();
            return;
        }
        let median = self.baseline.map_or(level.median, |baseline| baseline.median);
        if delay > median / 2.0 + allowed && grown_from.is_none() {
            return self.search(level);
        }
        let keep = 1.0 - (delay - allowed / 2.0) / level.median;
        let target = level.in_flight * keep.clamp(0.5, 1.0);
        let startup = self.phase == Phase::Startup;
        let verify =
            Verify { above: level, restore: self.limit, target, queued: 0.0, cohorts: 0, startup };
        // A decrease by less than a fifth would be lost in noise.
        self.go(Phase::Verify(verify), target.min(level.in_flight * 0.8));
    }

    fn search(&mut self, above: Level) {
        let search = Search { above, changing: true, restore: above.in_flight };
        self.go(Phase::Search(search), above.in_flight / 2.0);
    }

    /// Decides whether a delay was a queue, from cohorts at the lowered limit.
    fn handle_verified(&mut self, mut verify: Verify, level: Level) {
        let fallen = level.fallen_from(&verify.above);
        if fallen.quicker < -verify.above.median / 2.0 {
            // Something else has changed meanwhile: the old baseline shows it.
            return self.go(Phase::Steady, verify.restore);
        }
        verify.queued += fallen.quicker / fallen.expected.max(1e-9);
        verify.cohorts += 1;
        let queued = verify.queued / f64::from(verify.cohorts);
        if UNCLEAR.contains(&queued) && verify.cohorts < VERIFY_COHORTS {
            self.phase = Phase::Verify(verify);
            return;
        }
        if queued < QUEUED {
            // More in flight brings more answers, late as they are.
            self.baseline = Some(level);
            return self.go(Phase::Steady, verify.restore);
        }
        let mut target = verify.above.unqueued(queued * fallen.expected, &level);
        if queued > STILL_QUEUED {
            target = target.min(verify.target);
        }
        if verify.startup {
            let search = Search { above: level, changing: false, restore: target };
            return self.go(Phase::Search(search), level.in_flight * 0.75);
        }
        self.step = STEP_MIN;
        self.go(Phase::Steady, target);
    }

    fn handle_found(&mut self, search: Search, level: Level, now: Instant) {
        let above = search.above;
        let fallen = level.fallen_from(&above);
        let mut restore = search.restore;
        let mut goes_on = search.changing;
        let unqueued = above.unqueued(fallen.quicker, &level);
        if unqueued < above.in_flight {
            restore = restore.min(unqueued).max(level.in_flight);
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

    /// Continues with another limit; the cohorts sent at the previous one are discarded.
    fn go(&mut self, phase: Phase, limit: f64) {
        self.phase = phase;
        self.limit = limit.clamp(MIN, MAX);
        self.cohorts.clear();
        self.previous = None;
        self.grown_from = None;
        self.delayed = 0;
        self.bound = false;
    }
}

impl Level {
    /// Returns the delay relative to another level: the median difference of the quantiles, in seconds.
    fn behind(&self, other: &Level) -> f64 {
        let mut distances: [f64; SHARES.len()] =
            std::array::from_fn(|index| self.quantiles[index] - other.quantiles[index]);
        distances.sort_unstable_by(f64::total_cmp);
        distances[SHARES.len() / 2]
    }

    /// Returns how much faster answers are than at a level with more in flight, and how much faster they would be if all of
    /// their time were queueing.
    fn fallen_from(&self, above: &Level) -> Fallen {
        let lower = (1.0 - self.in_flight / above.in_flight).max(0.0);
        Fallen { quicker: above.behind(self), expected: lower * above.median }
    }

    /// Returns how many in flight the rate of this level needs if answers are so much quicker, with half of the delay that is
    /// tolerated at the level below: Little's law.
    fn unqueued(&self, quicker: f64, below: &Level) -> f64 {
        let queued = quicker - below.delay_max() / 2.0;
        self.in_flight * (1.0 - queued / self.median).min(1.0)
    }

    /// Returns the delay that is tolerated.
    fn delay_max(&self) -> f64 {
        let share = DELAY_SHARE * self.median;
        share.max(SHORT.as_secs_f64() - share)
    }

    /// Moves an eighth of the way to a level measured at no higher load.
    fn approach(&mut self, level: &Level) {
        let near = |known: &mut f64, seen: f64| *known += (seen - *known) / 8.0;
        for (known, seen) in self.quantiles.iter_mut().zip(level.quantiles) {
            near(known, seen);
        }
        near(&mut self.median, level.median);
    }
}

impl Cohort {
    /// Returns whether the cohort is ready to be evaluated.
    fn is_over(&mut self, now: Instant) -> bool {
        let answered = self.times.len();
        if answered * 5 < self.sent as usize * 3 {
            // Fewer than three fifths are answered: gives up after a while.
            return self.closed_at.is_some_and(|closed_at| now >= closed_at + SHORTEST_BELIEVED);
        }
        let Some(closed_at) = self.closed_at else {
            // At a low rate, closes the cohort before it is full.
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
        // Requests without an answer take longer than these.
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

/// Answers per second, over the last second or a little more.
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
mod one_core;
#[cfg(test)]
mod tests;
