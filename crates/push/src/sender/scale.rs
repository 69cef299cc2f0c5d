//! Decides how many connections to keep open.
//!
//! More connections are tried while every connection is bound by its own limit (window, streams or socket) and requests
//! wait. The gain is measured, and the new connections are kept or closed. A full path is no reason to try: the connections
//! would only share it. Connections that drained a backlog are closed afterwards, because the rate of submissions needs fewer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::metrics::{Binding, ConnectionStats};
use super::pool::Rates;

/// The share of linear growth that a trial has to reach.
const PAYS: f64 = 0.4;
/// The time in which waiting requests should be sent: they count as demand, like submissions.
const DRAIN_WITHIN: Duration = Duration::from_secs(4);
/// Most connections added by one trial.
const STEP_MAX: usize = 8;
/// The delay before the first repetition of a failed trial. It is short, because the rate before the trial may have been that
/// of a new connection whose streams are not yet occupied by slow requests.
const REPEAT: Duration = Duration::from_secs(2);
/// The delay before further repetitions, doubled each time.
const HOLD_MIN: Duration = Duration::from_secs(30);
const HOLD_MAX: Duration = Duration::from_secs(600);
/// A connection is closed after this time in which not all were bound.
const CALM: Duration = Duration::from_secs(60);
/// At most half of the connections are closed after this time, if the others suffice for the rate of submissions.
const SURPLUS: Duration = Duration::from_secs(10);
/// Rates are measured over two answer times, after two more have passed: a new connection has a full window, which it never
/// has again if the peer returns it by halves.
const SPAN_MIN: Duration = Duration::from_millis(300);
const TRIAL_MIN: Duration = Duration::from_secs(2);

/// The input of a decision.
pub(super) struct View<'a> {
    /// The open main connections.
    pub(super) links: &'a [Arc<ConnectionStats>],
    /// The number of connections being opened.
    pub(super) opening: usize,
    pub(super) wanted: usize,
    pub(super) max: usize,
    /// Requests waiting for a main connection.
    pub(super) waiting: usize,
    /// The queue is nearly full: callers wait, so the rate of submissions equals the rate of answers.
    pub(super) saturated: bool,
    pub(super) submitted: u64,
    pub(super) answered: u64,
}

#[derive(Debug)]
pub(super) struct Scale {
    rates: Rates,
    bound_since: Option<Instant>,
    bound_at: Instant,
    /// Answers per second of one connection, measured when all were bound.
    of_one: Option<f64>,
    /// Connections that have ended since the last tick because their windows were exhausted for good.
    dry: usize,
    trial: Option<Trial>,
    hold: Duration,
    hold_until: Instant,
}

#[derive(Debug)]
struct Trial {
    /// Answers per second before the trial.
    before: f64,
    /// Connections before the trial.
    of: usize,
    added: usize,
    /// When all added connections were open.
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

    /// Returns whether a trial is in progress.
    pub(super) fn is_busy(&self) -> bool {
        self.trial.is_some()
    }

    /// Records a connection that has ended because its window was exhausted for good. It is replaced without a trial, because
    /// a new connection certainly has a window.
    pub(super) fn handle_dry(&mut self) {
        self.dry += 1;
    }

    /// Returns how many main connections are wanted from now on.
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
            // Answers free a window for a moment; that alone does not mean that demand is low.
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

    /// Returns the number of connections for the current rate of submissions, plus one. `None` if nothing is submitted, or the
    /// rate of one connection is not known.
    fn needed(&self, now: Instant) -> Option<usize> {
        let of_one = self.of_one.filter(|rate| *rate > 0.0)?;
        let (_, submitted) = self.rates.since(now - DRAIN_WITHIN)?;
        (submitted > 0.0).then(|| (submitted / of_one).ceil() as usize + 1)
    }
}

impl Trial {
    /// Returns whether the trial succeeded, once that is known.
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
                // The connections cannot be opened.
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
        // The trial also succeeds if no request waits any more.
        Some(after >= self.before + linear * PAYS || view.waiting == 0)
    }
}
