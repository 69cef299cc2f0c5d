#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod client;
pub mod clock;
pub mod delay;
mod error;
pub mod figures;
pub mod host;
pub mod http;
pub mod installed;
pub mod output;
pub mod process;
pub mod progress;
pub mod reactor;
pub mod scratch;
pub mod serve;
pub mod system;
mod transport;
pub mod url;

pub use clock::Clock;
pub use error::{Context, Error};
pub use output::Output;
pub use process::Process;
pub use progress::{Progress, say};
pub use scratch::Scratch;

/// How a benchmark ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// Everything was carried out and nothing was lost.
    Passed,
    /// The run ended, but connections or messages were lost, or a bound given on the command line was missed.
    Failed,
}

impl From<ExitStatus> for std::process::ExitCode {
    fn from(status: ExitStatus) -> Self {
        match status {
            ExitStatus::Passed => Self::SUCCESS,
            ExitStatus::Failed => Self::FAILURE,
        }
    }
}
