//! Errors of commands, and their exit codes.

use std::fmt;
use std::process::ExitCode;

use dunlin_push::{Outcome, OutcomeKind};

/// Why a command did not do what was asked: what to print.
pub(crate) type CliError = Box<dyn std::error::Error>;

/// Exit codes for scripts.
pub(crate) const REPEAT: u8 = 3;
pub(crate) const REFUSED: u8 = 4;
const UNCERTAIN: u8 = 5;

/// Not all was accepted.
#[derive(Debug)]
pub(crate) struct Incomplete {
    pub(crate) code: u8,
    pub(crate) text: String,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Incomplete {}

impl Incomplete {
    /// Why a push was not accepted; `None`: it was.
    pub(crate) fn of(outcome: &Outcome) -> Option<Incomplete> {
        let code = match outcome.kind() {
            OutcomeKind::Accepted => return None,
            OutcomeKind::Uncertain => UNCERTAIN,
            _ if outcome.is_final() => REFUSED,
            _ => REPEAT,
        };
        let text = match outcome {
            Outcome::Rejected(rejected) => match &rejected.advice {
                Some(advice) => advice.clone(),
                None => format!("the service answered {}", rejected.status),
            },
            Outcome::NotSent(why) => why.to_string(),
            _ => "it was sent, and may or may not have been accepted".to_owned(),
        };
        Some(Incomplete { code, text })
    }
}

/// The code that a command ends with for this reason.
pub(crate) fn exit_code(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    error.downcast_ref::<Incomplete>().map_or(ExitCode::FAILURE, |error| error.code.into())
}
