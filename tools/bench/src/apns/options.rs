//! Options of `dunlin apns bench`.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use crate::pushes::PushTable as Table;
use clap::{Args, ValueHint};
use dunlin_load::Output;

use super::peers::Peer;

#[derive(Debug, Args)]
#[command(
    after_help = "Without --server each table starts the simulator in-process, on threads of its own. \
                        CPU is that of the sender's thread alone."
)]
pub struct Bench {
    /// What to measure; may be repeated. By default everything, which takes about ten minutes
    #[arg(long = "table", value_name = "TABLE")]
    pub(super) tables: Vec<Table>,
    /// Another HTTP/2 server to measure windows and CPU against
    #[arg(long, value_name = "HOST:PORT", requires = "roots")]
    pub(super) server: Option<String>,
    /// The name in that server's certificate
    #[arg(long, value_name = "NAME", default_value = "localhost")]
    pub(super) host: String,
    /// Certificate of that server (PEM)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) roots: Option<PathBuf>,
    /// Number of devices of that server; pushes go to them in turn. By default each push goes to a different device
    #[arg(long, value_name = "N", requires = "server")]
    pub(super) devices: Option<NonZeroU64>,
    /// Guaranteed bytes of its connection window per round trip: the whole window if it is returned at once, half if
    /// it is returned by halves. Required to evaluate the rate
    #[arg(long, value_name = "BYTES", requires = "server")]
    pub(super) window: Option<u32>,
    /// Name of that server in the report
    #[arg(long, value_name = "NAME", default_value = "server")]
    pub(super) name: String,
    /// Another sender to measure, with its name in the report; scripts/bench/apns has the protocol
    #[arg(long = "peer", value_name = "NAME=PROGRAM")]
    pub(super) peers: Vec<Peer>,
    /// h2load program to compare CPU with
    #[arg(long, value_name = "PROGRAM")]
    pub(super) h2load: Option<String>,
    /// Seconds of each measurement of a window
    #[arg(long, value_name = "SECONDS", default_value_t = 6)]
    pub(super) seconds: u64,
    /// Pushes of the storm
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(super) storm: u64,
    /// Pushes of the full queue and of the CPU measurement
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(super) pushes: u64,
    /// Seconds of the table `drift`; an hour sees provider tokens renewed
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    pub(super) drift_seconds: u64,
    /// Measure only rows of `windows` and `vary` whose names contain this text
    #[arg(long, value_name = "TEXT")]
    pub(super) only: Option<String>,
    #[command(flatten)]
    pub(super) output: Output,
}

impl Bench {
    /// Returns whether the rows of this name are excluded by `--only`.
    pub(super) fn omits(&self, what: &str) -> bool {
        self.only.as_ref().is_some_and(|only| !what.contains(only))
    }

    pub(super) fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}
