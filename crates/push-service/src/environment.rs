//! Infers from Apple's answers whether a credential is set to the environment of its device tokens.
//!
//! Sandbox and production have separate tokens, and each answers `BadDeviceToken` to those of the other. A credential set
//! to the wrong environment would thus remove every valid token from the registry. So `BadDeviceToken` removes a token
//! only while the credential has proven to be right: it had answers that only the right environment gives, and at least
//! as many of them as of `BadDeviceToken`.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of answers at which both counts are halved, so that older ones lose weight.
const ANSWERS_MAX: u32 = 1_024;
/// Number of bad tokens from which a mismatch is logged, if they exceed the good ones.
const BAD_LOGGED: u32 = 10;

/// The answers to one credential.
#[derive(Debug, Default)]
pub(super) struct Environment(Mutex<TokenAnswers>);

#[derive(Debug, Default)]
struct TokenAnswers {
    /// Accepted, or no longer active since a given time: in both cases Apple knows the token.
    good: u32,
    /// `BadDeviceToken`.
    bad: u32,
    is_logged: bool,
    kept: u64,
}

/// Whether to doubt an answer `BadDeviceToken`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EnvironmentDoubt {
    /// The environment is right.
    None,
    /// The environment is not known to be right.
    Some,
    /// The environment looks wrong for the first time; log it.
    FirstSign,
}

impl Environment {
    /// Handles an answer that shows that Apple knows a token.
    pub(super) fn handle_known(&self) {
        let mut answers = self.answers();
        answers.good += 1;
        answers.fade();
        answers.is_logged &= !answers.is_right();
    }

    /// Handles `BadDeviceToken`.
    pub(super) fn handle_bad(&self) -> EnvironmentDoubt {
        let mut answers = self.answers();
        answers.bad += 1;
        answers.fade();
        if answers.is_right() {
            return EnvironmentDoubt::None;
        }
        answers.kept += 1;
        if answers.is_logged || !answers.looks_wrong() {
            return EnvironmentDoubt::Some;
        }
        answers.is_logged = true;
        EnvironmentDoubt::FirstSign
    }

    /// Whether the environment looks wrong.
    pub(super) fn looks_wrong(&self) -> bool {
        self.answers().looks_wrong()
    }

    /// Returns the number of bad tokens that were kept.
    pub(super) fn kept(&self) -> u64 {
        self.answers().kept
    }

    fn answers(&self) -> MutexGuard<'_, TokenAnswers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TokenAnswers {
    fn is_right(&self) -> bool {
        self.good > 0 && self.bad <= self.good
    }

    fn looks_wrong(&self) -> bool {
        self.bad >= BAD_LOGGED && !self.is_right()
    }

    fn fade(&mut self) {
        if self.good + self.bad >= ANSWERS_MAX {
            // Rounded up, so that a count never drops to zero.
            self.good = self.good.div_ceil(2);
            self.bad = self.bad.div_ceil(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_environment_drops_nothing_and_is_logged_once() {
        let environment = Environment::default();
        let doubts: Vec<EnvironmentDoubt> = (0..10_000).map(|_| environment.handle_bad()).collect();
        assert!(!doubts.contains(&EnvironmentDoubt::None));
        assert_eq!(doubts.iter().filter(|doubt| **doubt == EnvironmentDoubt::FirstSign).count(), 1);
        assert_eq!(doubts[BAD_LOGGED as usize - 1], EnvironmentDoubt::FirstSign);
        assert!(environment.looks_wrong());
        assert_eq!(environment.kept(), 10_000);
    }

    #[test]
    fn a_bad_token_among_good_ones_is_bad() {
        let environment = Environment::default();
        assert_eq!(environment.handle_bad(), EnvironmentDoubt::Some, "nothing is known yet");
        for _ in 0..100 {
            for _ in 0..95 {
                environment.handle_known();
            }
            for _ in 0..5 {
                assert_eq!(environment.handle_bad(), EnvironmentDoubt::None);
            }
        }
        assert!(!environment.looks_wrong());
        assert_eq!(environment.kept(), 1);
    }

    #[test]
    fn a_few_good_tokens_do_not_cost_many_others_theirs() {
        // First the phones of testers, then the whole registry of the released app.
        let environment = Environment::default();
        for _ in 0..5 {
            environment.handle_known();
        }
        let dropped =
            (0..100_000).filter(|_| environment.handle_bad() == EnvironmentDoubt::None).count();
        assert_eq!(dropped, 5);
        // Once the environment is right again, `BadDeviceToken` counts again, and a new mismatch would be logged.
        for _ in 0..2_000 {
            environment.handle_known();
        }
        assert_eq!(environment.handle_bad(), EnvironmentDoubt::None);
        assert!(!environment.looks_wrong());
    }
}
