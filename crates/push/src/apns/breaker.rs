//! Stops a credential that Apple refuses. With a revoked key every push fails in the same way, and Apple treats
//! continued attempts as an attack.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dunlin_wire::backoff::Backoff;
use tokio::time::Instant;

/// Refusals in a row that stop a credential that has never been accepted. Apple's servers learn of a new key at
/// different times, so a single refusal proves nothing.
const REFUSALS_MIN: u32 = 3;
/// Good responses that compensate one refusal: a server of Apple may occasionally refuse a good credential.
const GOOD_PER_REFUSAL: u32 = 16;
/// Most good responses that are counted.
const GOOD_MAX: u32 = 1_024;
/// Good responses no longer compensate refusals if none has come for this time after the first refusal.
const ROW_MAX: Duration = Duration::from_secs(10);
/// Delay from the last refusal to the next trial.
const HOLD: Backoff = Backoff { min_ms: 30_000, max_ms: 15 * 60_000 };
/// A trial without a response is followed by another after this time.
const TRIAL_WITHIN: Duration = Duration::from_secs(30);

/// Closed while the credential is accepted, open while it is not, and half open for an occasional trial.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Refusals were counted: the state must be checked.
    noted: AtomicBool,
    /// Responses that only a good credential gets, up to [`GOOD_MAX`]; approximate.
    good: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Consecutive refusals, and the time of the first.
    refusals: u32,
    since: Option<Instant>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    why: String,
    /// How often it opened since the last good response: refused trials, plus one.
    times: u32,
    /// When a trial may be sent.
    trial_at: Instant,
    /// A trial was sent, and its outcome is unknown.
    trying: bool,
}

impl Breaker {
    /// Checks whether pushes may be sent now; otherwise returns the cause and the fix.
    ///
    /// While it is open, the first call at or after the time of the trial may send one push.
    pub(super) fn check(&self, now: Instant) -> Result<(), String> {
        if !self.noted.load(Relaxed) {
            return Ok(());
        }
        let mut state = self.state();
        let Some(open) = &mut state.open else { return Ok(()) };
        if now >= open.trial_at {
            open.trial_at = now + TRIAL_WITHIN;
            open.trying = true;
            return Ok(());
        }
        let wait_s = (open.trial_at - now).as_secs() + 1;
        Err(format!("{}; nothing is sent for {wait_s} s, then one push as a trial", open.why))
    }

    /// Returns whether the credential is on trial: one push at a time.
    pub(super) fn is_open(&self) -> bool {
        self.noted.load(Relaxed) && self.state().open.is_some()
    }

    /// Counts a refusal of the credential by Apple. `why` returns the fix.
    pub(super) fn handle_refused(&self, why: impl FnOnce() -> String, now: Instant) {
        self.noted.store(true, Relaxed);
        let mut state = self.state();
        state.refusals += 1;
        let since = *state.since.get_or_insert(now);
        let good = if now >= since + ROW_MAX { 0 } else { self.good.load(Relaxed) };
        let times = match &state.open {
            // Late responses to pushes that were sent before it opened are not results of the trial.
            Some(open) if !open.trying => return,
            Some(open) => open.times + 1,
            None if state.refusals >= REFUSALS_MIN + good / GOOD_PER_REFUSAL => 1,
            None => return,
        };
        let hold = Duration::from_millis(HOLD.delay_ms(times));
        let why = why();
        tracing::warn!(%why, ?hold, "the credential is refused: nothing more is sent with it");
        self.good.store(0, Relaxed);
        state.open = Some(Open { why, times, trial_at: now + hold, trying: false });
    }

    /// Counts a response that only a good credential gets.
    pub(super) fn handle_taken(&self) {
        let good = self.good.load(Relaxed);
        if good < GOOD_MAX {
            self.good.store(good + 1, Relaxed);
        }
        if self.noted.load(Relaxed) {
            *self.state() = State::default();
            self.noted.store(false, Relaxed);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(breaker: &Breaker, now: Instant) {
        breaker.handle_refused(|| "revoked".to_owned(), now);
    }

    #[test]
    fn one_refusal_proves_nothing_three_in_a_row_do() {
        let (breaker, now) = (Breaker::default(), Instant::now());
        refuse(&breaker, now);
        refuse(&breaker, now);
        breaker.handle_taken();
        refuse(&breaker, now);
        refuse(&breaker, now);
        assert_eq!(breaker.check(now), Ok(()));
        refuse(&breaker, now);
        assert!(breaker.is_open());
        let why = breaker.check(now).expect_err("it is open");
        assert!(why.starts_with("revoked; nothing is sent for 31 s"), "{why}");
    }

    #[test]
    fn a_proven_credential_is_stopped_by_more_refusals_or_by_time() {
        let (breaker, begin) = (Breaker::default(), Instant::now());
        let prove = || (0..500).for_each(|_| breaker.handle_taken());
        prove();
        let needed = REFUSALS_MIN + 500 / GOOD_PER_REFUSAL;
        for _ in 1..needed {
            refuse(&breaker, begin);
            assert!(!breaker.is_open());
        }
        refuse(&breaker, begin);
        assert!(breaker.is_open());
        prove();
        // A few refusals a minute, and nothing else: they need not be many.
        refuse(&breaker, begin);
        refuse(&breaker, begin + ROW_MAX);
        assert!(!breaker.is_open());
        refuse(&breaker, begin + 2 * ROW_MAX);
        assert!(breaker.is_open());
    }

    #[test]
    fn one_push_tries_ever_more_rarely_until_one_passes() {
        let (breaker, begin) = (Breaker::default(), Instant::now());
        for _ in 0..3 {
            refuse(&breaker, begin);
        }
        let mut now = begin;
        for hold_s in [30, 60, 120, 240, 480, 900, 900] {
            now += Duration::from_secs(hold_s - 1);
            assert!(breaker.check(now).is_err());
            now += Duration::from_secs(1);
            assert_eq!(breaker.check(now), Ok(()), "after {hold_s} s");
            assert!(breaker.check(now).is_err(), "one only");
            refuse(&breaker, now);
        }
        now += Duration::from_millis(HOLD.max_ms);
        assert_eq!(breaker.check(now), Ok(()));
        breaker.handle_taken();
        assert!(!breaker.is_open());
        assert_eq!(breaker.check(now), Ok(()));
        assert_eq!(breaker.check(now), Ok(()));
    }

    #[test]
    fn late_answers_do_not_double_the_wait_and_a_lost_trial_is_repeated() {
        let (breaker, begin) = (Breaker::default(), Instant::now());
        for _ in 0..3 {
            refuse(&breaker, begin);
        }
        let hold = Duration::from_millis(HOLD.min_ms);
        let trial = begin + hold;
        assert_eq!(breaker.check(trial), Ok(()));
        refuse(&breaker, trial);
        for _ in 0..1_000 {
            refuse(&breaker, trial);
        }
        assert_eq!(breaker.check(trial + hold * 2), Ok(()));
        assert!(breaker.check(trial + hold * 2 + TRIAL_WITHIN / 2).is_err());
        assert_eq!(breaker.check(trial + hold * 2 + TRIAL_WITHIN), Ok(()));
    }
}
