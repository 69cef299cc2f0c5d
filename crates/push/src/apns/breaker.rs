//! Stops a credential that Apple refuses: a revoked key fails every push the same way, and Apple takes those who go on
//! asking for attackers.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dunlin_wire::backoff::Backoff;
use tokio::time::Instant;

/// So many refusals in a row, without an answer between that shows the credential to be good, stop a credential that has
/// proved nothing yet. Apple's servers do not learn of a new key all at once, so that one refusal proves nothing.
const REFUSALS_MIN: u32 = 3;
/// A proven credential is refused by one of Apple's servers now and then: so many good answers outweigh one more refusal.
const GOOD_PER_REFUSAL: u32 = 16;
/// Good answers that count.
const GOOD_MAX: u32 = 1_024;
/// Good answers outweigh nothing any more when there has been none for so long after a first refusal.
const ROW_MAX: Duration = Duration::from_secs(10);
/// From the last refusal to the next trial.
const HOLD: Backoff = Backoff { min_ms: 30_000, max_ms: 15 * 60_000 };
/// A trial whose answer does not come is followed by another after so long.
const TRIAL_WITHIN: Duration = Duration::from_secs(30);

/// Closed while the credential is taken, open while it is not, and half open for one push now and then.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// There is something to look at: refusals were counted.
    noted: AtomicBool,
    /// Answers that only a good credential gets, up to [`GOOD_MAX`]; approximate, for nothing depends on one.
    good: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Refusals in a row, and when the first of them came.
    refusals: u32,
    since: Option<Instant>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    why: String,
    /// How often it has opened since an answer proved the credential good: trials that were refused, and one.
    times: u32,
    /// When one push may try.
    trial_at: Instant,
    /// One has been let go, and its answer is not known.
    trying: bool,
}

impl Breaker {
    /// Whether pushes may be sent now; why not, and how to fix it.
    ///
    /// While it is open, a call at or after the time of the trial grants it, to its caller alone.
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

    /// The credential is on trial: one push at a time.
    pub(super) fn is_open(&self) -> bool {
        self.noted.load(Relaxed) && self.state().open.is_some()
    }

    /// Apple refused the credential. `why` says how to fix it.
    pub(super) fn handle_refused(&self, why: impl FnOnce() -> String, now: Instant) {
        self.noted.store(true, Relaxed);
        let mut state = self.state();
        state.refusals += 1;
        let since = *state.since.get_or_insert(now);
        let good = if now >= since + ROW_MAX { 0 } else { self.good.load(Relaxed) };
        let times = match &state.open {
            // Late answers to what was sent before it opened are no further trial.
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

    /// An answer that only a good credential gets.
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
