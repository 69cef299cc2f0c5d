//! A load generator for HTTP servers, a test server and a proxy that makes a network long.
//!
//! - [`http`]: load, pipelined or by a schedule, with checks, and a report.
//! - [`serve`]: a server that answers as the path asks: fast, slow, closing, or broken.
//! - [`delay`]: a proxy that delays all bytes by half a round trip.
//! - [`comparison`]: this generator beside others, and beside what must be true.
//!
//! The other modules are what every benchmark needs: processes and their memory, progress, results as JSON.

#![deny(unsafe_code)]

pub mod client;
pub mod clock;
pub mod comparison;
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
    /// Everything asked for was done and nothing was lost.
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
