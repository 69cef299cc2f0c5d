//! What `dunlin apns bench` is asked to do.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use dunlin_bench::PushTable as Table;
use dunlin_load::Output;

use super::peers::Peer;

#[derive(Debug, Args)]
#[command(
    after_help = "Without --server each table starts the simulator in-process, on threads of its own. \
                        CPU is that of the sender's thread alone."
)]
pub(crate) struct Bench {
    /// What to measure; may be repeated. By default everything, which takes about ten minutes
    #[arg(long = "table", value_name = "TABLE")]
    pub(super) tables: Vec<Table>,
    /// Another HTTP/2 server to measure windows and CPU against
    #[arg(long, value_name = "HOST:PORT", requires = "roots")]
    pub(super) server: Option<String>,
    /// The name in that server's certificate
    #[arg(long, value_name = "NAME", default_value = "localhost")]
    pub(super) host: String,
    /// The certificate to trust that server by, PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) roots: Option<PathBuf>,
    /// How many devices that server knows; pushes go to them in turn. Without it each push has a device of its own
    #[arg(long, value_name = "N", requires = "server")]
    pub(super) devices: Option<NonZeroU64>,
    /// Bytes that its connection window lets pass in a round trip for certain: all of it if it is returned at once,
    /// half if it is returned by halves. With it the rate is judged
    #[arg(long, value_name = "BYTES", requires = "server")]
    pub(super) window: Option<u32>,
    /// What to call that server
    #[arg(long, value_name = "NAME", default_value = "server")]
    pub(super) name: String,
    /// Another sender to measure beside ours, by its name on the page; scripts/bench/apns says what it is asked
    #[arg(long = "peer", value_name = "NAME=PROGRAM")]
    pub(super) peers: Vec<Peer>,
    /// The h2load to measure CPU beside
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
    /// Of the tables `windows` and `vary` only rows whose name holds this
    #[arg(long, value_name = "TEXT")]
    pub(super) only: Option<String>,
    #[command(flatten)]
    pub(super) output: Output,
}

impl Bench {
    /// Whether a row of this name is not asked for.
    pub(super) fn omits(&self, what: &str) -> bool {
        self.only.as_ref().is_some_and(|only| !what.contains(only))
    }

    pub(super) fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}
