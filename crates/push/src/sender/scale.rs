//! How many connections pay for themselves.
//!
//! One more is tried while every connection is bound by a limit of its own (window or streams) and demand
//! remains; what the trial brought is measured, and it is kept or taken back. A path that is full is no
//! reason: it would only be shared. Those that drained a backlog are given back once it is drained: what is submitted then needs
//! fewer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::metrics::{Binding, ConnectionStats};
use super::pool::Rates;

/// Of the growth that as many equal connections would bring, a trial has to bring so much.
const PAYS: f64 = 0.4;
/// What waits is to have left within so long: it is demand as much as what is submitted.
const DRAIN_WITHIN: Duration = Duration::from_secs(4);
/// At most so many are tried at once.
const STEP_MAX: usize = 8;
/// A trial that does not pay is repeated once soon: what it was compared with may have been the quick beginning of a connection,
/// before slow requests had taken up their share of its streams.
const REPEAT: Duration = Duration::from_secs(2);
/// After that it is not repeated for so long, doubled each time.
const HOLD_MIN: Duration = Duration::from_secs(30);
const HOLD_MAX: Duration = Duration::from_secs(600);
/// A connection is given back after so long without need.
const CALM: Duration = Duration::from_secs(60);
/// Half of them at most after so long, if what is submitted meanwhile needs no more than the others.
const SURPLUS: Duration = Duration::from_secs(10);
/// A rate is taken over two answer times, and not over the two before them: a connection begins with a full window, which it
/// does not see again where the peer returns it by halves.
const SPAN_MIN: Duration = Duration::from_millis(300);
const TRIAL_MIN: Duration = Duration::from_secs(2);

/// What the decision is made of.
pub(super) struct View<'a> {
    /// The main connections that are open.
    pub(super) links: &'a [Arc<ConnectionStats>],
    /// Those being opened.
    pub(super) opening: usize,
    pub(super) wanted: usize,
    pub(super) max: usize,
    /// Requests waiting for a main connection.
    pub(super) waiting: usize,
    /// The queue is nearly full: callers wait, so that what they submit is what is answered.
    pub(super) saturated: bool,
    pub(super) submitted: u64,
    pub(super) answered: u64,
}

#[derive(Debug)]
pub(super) struct Scale {
    rates: Rates,
    bound_since: Option<Instant>,
    bound_at: Instant,
    /// Answers a second of a connection, when all of them were bound.
    of_one: Option<f64>,
    /// Connections that have ended since the last look because their windows were used up for good.
    dry: usize,
    trial: Option<Trial>,
    hold: Duration,
    hold_until: Instant,
}

#[derive(Debug)]
struct Trial {
    /// Answers a second before.
    before: f64,
    /// Connections before.
    of: usize,
    added: usize,
    /// When all were open.
    open_at: Option<Instant>,
    began_at: Instant,
}

impl Scale {
    pub(super) fn new(now: Instant) -> Scale {
        Scale {
            rates: Rates::default(),
            bound_since: None,
            bound_at: now,
            of_one: None,
            dry: 0,
            trial: None,
            hold: REPEAT,
            hold_until: now,
        }
    }

    /// A trial is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.trial.is_some()
    }

    /// A connection has ended because its window was used up for good. What a new one brings is certain: a window.
    pub(super) fn handle_dry(&mut self) {
        self.dry += 1;
    }

    /// How many main connections are wanted from now on.
    pub(super) fn handle_tick(&mut self, view: &View<'_>, now: Instant) -> usize {
        self.rates.record(now, view.answered, view.submitted);
        let dry = std::mem::take(&mut self.dry);
        if dry > 0 && view.waiting > 0 {
            self.trial = None;
            self.bound_at = now;
            return (view.wanted + dry).min(view.max);
        }
        let rtt = view.links.iter().filter_map(|link| link.median()).max().unwrap_or_default();
        if let Some(trial) = &mut self.trial {
            return match trial.judge(view, &self.rates, rtt, now) {
                None => view.wanted,
                Some(true) => {
                    self.trial = None;
                    self.hold = REPEAT;
                    view.wanted
                }
                Some(false) => {
                    let before = view.wanted.saturating_sub(trial.added).max(1);
                    self.trial = None;
                    self.hold_until = now + self.hold;
                    self.hold = (self.hold * 2).clamp(HOLD_MIN, HOLD_MAX);
                    before
                }
            };
        }

        let bound = view.waiting > 0
            && !view.links.is_empty()
            && view.links.iter().all(|link| {
                matches!(link.binding(), Binding::Streams | Binding::Window | Binding::Socket)
                    && link.median().is_some()
            });
        if !bound {
            // Answers free a window for a moment; that alone is no want of demand.
            if view.waiting == 0 || now > self.bound_at + Duration::from_millis(200) {
                self.bound_since = None;
            }
            if view.wanted <= 1 || view.opening > 0 {
                return view.wanted;
            }
            let after = if now > self.bound_at + CALM {
                view.wanted - 1
            } else if now > self.bound_at + SURPLUS {
                self.needed(now).map_or(view.wanted, |needed| needed.max(view.wanted.div_ceil(2)))
            } else {
                view.wanted
            };
            if after < view.wanted {
                self.bound_at = now;
            }
            return after.min(view.wanted);
        }
        self.bound_at = now;
        let since = *self.bound_since.get_or_insert(now);
        let span = SPAN_MIN.max(rtt * 2);
        if now < since + span * 2 || now < self.hold_until || view.opening > 0 {
            return view.wanted;
        }
        let count = view.links.len();
        let Some((before, submitted)) = self.rates.since(now - span) else { return view.wanted };
        self.of_one = Some(before / count as f64);
        let mut step = count.min(STEP_MAX).min(view.max.saturating_sub(view.wanted));
        if !view.saturated && before > 0.0 {
            let submitted =
                self.rates.since(now - Duration::from_secs(1)).map_or(submitted, |r| r.1);
            let demand = submitted + view.waiting as f64 / DRAIN_WITHIN.as_secs_f64();
            let needed = (demand / (before / count as f64)).ceil() as usize;
            step = step.min(needed.saturating_sub(count));
        }
        if step == 0 || count < view.wanted {
            return view.wanted;
        }
        self.trial = Some(Trial { before, of: count, added: step, open_at: None, began_at: now });
        view.wanted + step
    }

    /// How many connections carry what is submitted, and one more. `None`: nothing is, or what one carries is not known.
    fn needed(&self, now: Instant) -> Option<usize> {
        let of_one = self.of_one.filter(|rate| *rate > 0.0)?;
        let (_, submitted) = self.rates.since(now - DRAIN_WITHIN)?;
        (submitted > 0.0).then(|| (submitted / of_one).ceil() as usize + 1)
    }
}

impl Trial {
    /// Whether it paid, once that is known.
    fn judge(
        &mut self,
        view: &View<'_>,
        rates: &Rates,
        rtt: Duration,
        now: Instant,
    ) -> Option<bool> {
        if self.open_at.is_none() {
            if view.links.len() >= self.of + self.added {
                self.open_at = Some(now);
            } else if now > self.began_at + Duration::from_secs(20) {
                // They cannot be opened: nothing was gained.
                return Some(false);
            }
            return None;
        }
        let open_at = self.open_at?;
        let span = SPAN_MIN.max(rtt * 2);
        if now < open_at + span * 2 {
            return None;
        }
        let (after, _) = rates.since(now - span)?;
        let linear = self.before * self.added as f64 / self.of as f64;
        if after >= self.before + linear * PAYS.max(0.7) {
            return Some(true);
        }
        if now < open_at + TRIAL_MIN.max(span * 4) {
            return None;
        }
        // Demand met is success too: nothing waits any more.
        Some(after >= self.before + linear * PAYS || view.waiting == 0)
    }
}
