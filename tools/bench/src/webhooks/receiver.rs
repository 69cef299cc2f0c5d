//! The backend that receives webhooks: a separate program that reports when each event arrived.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::Deserialize;

use dunlin_load::client::Client;
use dunlin_load::clock::Percentiles;
use dunlin_load::{Context, Error, Process};

/// If no event arrives for this long, the rest counts as missing.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A running backend.
pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    client: Client,
    pub(super) process: Process,
}

/// The events received since the last reset, as `scripts/bench/go-receiver` reports them.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Received {
    pub(super) requests: u64,
    /// Events received, duplicates included.
    pub(super) events: u64,
    pub(super) distinct: u64,
    /// Events that arrived after a later one of their channel.
    pub(super) disordered: u64,
    /// Number of events covered by `missed` events.
    pub(super) missed: u64,
    /// When the last event arrived, nanoseconds since 1970.
    pub(super) last_ns: u64,
    pub(super) latency_us: Percentiles,
}

impl Receiver {
    /// Starts it on `cores`. If `gives_way`, it has the lowest priority and runs only when the cores are idle.
    pub(super) fn start(
        program: &str,
        address: SocketAddr,
        cores: &[usize],
        gives_way: bool,
    ) -> Result<Self, Error> {
        let way = if gives_way { "nice -n 19 " } else { "" };
        let process = Process::start(&format!("{way}{program} {address}"), cores, address, None)?;
        Ok(Self { address, client: Client::connect(address)?, process })
    }

    pub(super) fn reset(&mut self) -> Result<(), Error> {
        self.ask("DELETE", "/report").map(drop)
    }

    pub(super) fn received(&mut self) -> Result<Received, Error> {
        let text = self.ask("GET", "/report")?;
        serde_json::from_slice(text)
            .map_err(|error| Error::new(format!("the report of the receiver: {error}")))
    }

    /// Returns how many distinct events have arrived.
    pub(super) fn count(&mut self) -> Result<u64, Error> {
        let text = String::from_utf8_lossy(self.ask("GET", "/count")?).into_owned();
        text.trim()
            .parse()
            .map_err(|_| Error::new(format!("the receiver counts `{}`", text.trim())))
    }

    /// Waits until this many distinct events have arrived, or no more arrive.
    pub(super) fn wait(&mut self, wanted: u64) -> Result<(), Error> {
        let mut progress = (0, Instant::now());
        loop {
            let count = self.count()?;
            if count >= wanted || progress.1.elapsed() > TIMEOUT {
                return Ok(());
            }
            if count != progress.0 {
                progress = (count, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ask(&mut self, method: &str, target: &str) -> Result<&[u8], Error> {
        let (status, _) = self.client.call(method, target, "text/plain", b"")?;
        self.client.expect_success(method, target, status)?;
        Ok(self.client.body())
    }
}

/// Returns the current time, on the receiver's clock.
pub(super) fn unix_ns() -> Result<u64, Error> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map(|since| since.as_nanos() as u64)
        .map_err(|_| std::io::Error::other("it stands before 1970"))
        .context("the clock of this machine is wrong")
}
