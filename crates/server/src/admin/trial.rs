//! Canary trials: one worker runs a change, and its error rate decides whether all workers get it.

use std::sync::Arc;

use dunlin_config::PreparedChange;
use dunlin_config::store::Origin;
use serde_json::{Value, json};

use super::call::CanaryOptions;
use super::commit::PendingReply;
use super::problem::{self, ProblemDetails};
use super::{Admin, Cx};
use crate::crash;
use crate::metrics::Metric;
use crate::state::ServerState;

/// Fewer errors than this are not significant.
const ERRORS_MIN: u64 = 5;
/// The trial fails if the worker's error rate is at least this many times that of the other workers, or of itself before,
/// whichever is higher,
const WORSE: f64 = 2.0;
/// and exceeds it by at least this.
const WORSE_BY: f64 = 0.01;

/// The metrics that count a worker's errors, and those that count its operations.
const ERRORS: [Metric; 5] = [
    Metric::CommandErrors,
    Metric::ApiErrors,
    Metric::HttpErrors,
    Metric::ProtocolErrors,
    Metric::SlowDisconnects,
];
const DONE: [Metric; 3] = [Metric::Commands, Metric::ApiCommands, Metric::HttpRequests];

/// A trial in progress.
pub(super) struct CanaryTrial {
    pending_reply: PendingReply,
    change: (PreparedChange, Origin),
    canary: CanaryOptions,
    generation: u64,
    ends_ms: u64,
    restarts: u64,
    own: Operations,
    own_before: Operations,
    others: Operations,
}

/// Operations since the start of the process, and errors among them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Operations {
    errors: u64,
    done: u64,
}

impl Operations {
    fn of(state: &ServerState, workers: impl Iterator<Item = usize>) -> Operations {
        let mut operations = Operations::default();
        for worker in workers {
            let sum = |metrics: &[Metric]| {
                metrics.iter().map(|metric| state.counters[worker].get(*metric)).sum::<u64>()
            };
            operations.errors += sum(&ERRORS);
            operations.done += sum(&DONE);
        }
        operations
    }

    fn since(self, earlier: Operations) -> Operations {
        Operations {
            errors: self.errors.saturating_sub(earlier.errors),
            done: self.done.saturating_sub(earlier.done),
        }
    }

    fn rate(self) -> f64 {
        if self.errors == 0 { 0.0 } else { self.errors as f64 / self.done.max(self.errors) as f64 }
    }

    /// Whether the error rate is significantly worse than `usual`.
    fn is_worse_than(self, usual: f64) -> bool {
        self.errors >= ERRORS_MIN && self.rate() >= usual * WORSE && self.rate() >= usual + WORSE_BY
    }
}

impl Admin {
    pub(super) fn begin_trial(
        &mut self,
        cx: &mut Cx,
        canary: CanaryOptions,
        pending_reply: PendingReply,
        change: (PreparedChange, Origin),
    ) {
        let state = Arc::clone(&self.state);
        // Read before the worker can adopt the change: everything from now on belongs to the trial.
        let own = Operations::of(&state, std::iter::once(canary.worker));
        let others = Operations::of(&state, others(&state, canary.worker));
        let restarts = state.counters[canary.worker].get(Metric::Restarts);
        let settings = Arc::new(state.settings.load().next(Arc::clone(change.0.snapshot())));
        self.retired.push(Arc::clone(&settings));
        let generation = state.publish_to(canary.worker, settings);
        self.wake_workers();
        crash::reach("trial");
        self.trial = Some(CanaryTrial {
            pending_reply,
            change,
            canary,
            generation,
            ends_ms: cx.now_ms() + canary.seconds * 1000,
            restarts,
            own,
            own_before: own,
            others,
        });
    }

    /// Returns the whole seconds until the trial in progress ends.
    pub(super) fn trial_seconds_left(&self, cx: &Cx) -> Option<u64> {
        let trial = self.trial.as_ref()?;
        Some(trial.ends_ms.saturating_sub(cx.now_ms()).div_ceil(1000).max(1))
    }

    /// Ends a trial as soon as it has failed, or when its time is over. Called once a second.
    pub(super) fn evaluate_trial(&mut self, cx: &mut Cx) {
        let Some(trial) = &self.trial else { return };
        let over = trial.ends_ms <= cx.now_ms();
        let result = self.result(trial);
        if result.failure.is_none() && !over {
            return;
        }
        let Some(trial) = self.trial.take() else { return };
        let report = result.report(&trial);
        match result.failure {
            None => {
                crash::reach("tried");
                self.commit(cx, vec![trial.change], vec![trial.pending_reply], Some(report));
            }
            Some(why) => {
                // The worker switches back to the settings of the others.
                self.state.publish(self.state.settings.load_full());
                self.wake_workers();
                self.reservations.keep_only(&self.store.head().config);
                tracing::warn!(
                    worker = trial.canary.worker,
                    why,
                    "a change failed its canary trial"
                );
                let problem = ProblemDetails::new(&problem::CANARY_FAILED, why);
                self.refuse(cx, trial.pending_reply.to, &problem.with("canary", report));
            }
        }
    }

    fn result(&self, trial: &CanaryTrial) -> TrialResult {
        let state = &self.state;
        let worker = trial.canary.worker;
        let own = Operations::of(state, std::iter::once(worker)).since(trial.own);
        let others = Operations::of(state, others(state, worker)).since(trial.others);
        let usual = others.rate().max(trial.own_before.rate());
        let standing = state.rollout.follower_state(worker);
        let failure = if let Some(reason) = state.rejection(worker, trial.generation) {
            Some(format!("worker {worker} could not switch: {reason}"))
        } else if state.counters[worker].get(Metric::Restarts) > trial.restarts {
            Some(format!("worker {worker} panicked"))
        } else if own.is_worse_than(usual) {
            Some(format!(
                "{} of {} operations on worker {worker} failed; usual is a rate of {usual:.4}",
                own.errors, own.done
            ))
        } else if !standing.is_at(trial.generation) && state.loop_stats[worker].lag_ms() > 1000 {
            Some(format!("worker {worker} is stuck in a turn"))
        } else {
            None
        };
        TrialResult { failure, own, others }
    }
}

struct TrialResult {
    /// Why the trial has failed, if it has.
    failure: Option<String>,
    own: Operations,
    others: Operations,
}

impl TrialResult {
    fn report(&self, trial: &CanaryTrial) -> Value {
        json!({
            "worker": trial.canary.worker,
            "seconds": trial.canary.seconds,
            "operations": self.own.done,
            "errors": self.own.errors,
            "error_rate": self.own.rate(),
            "error_rate_others": self.others.rate(),
        })
    }
}

fn others(state: &ServerState, worker: usize) -> impl Iterator<Item = usize> {
    (0..state.workers()).filter(move |&other| other != worker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_errors_are_chance_and_many_more_than_usual_are_not() {
        let operations = |errors, done| Operations { errors, done };
        assert!(!operations(4, 4).is_worse_than(0.0), "too few to be significant");
        assert!(operations(5, 100).is_worse_than(0.0));
        assert!(!operations(5, 1_000).is_worse_than(0.0), "half a percent");
        assert!(!operations(50, 1_000).is_worse_than(0.04), "as bad as it always is");
        assert!(operations(90, 1_000).is_worse_than(0.04));
        assert_eq!(operations(9, 30).since(operations(4, 10)), operations(5, 20));
    }
}
