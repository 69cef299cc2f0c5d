//! Background load: broadcasts to many clients of another channel while something else is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;

use crate::publisher::Publishing;
use crate::swarm::{Faults, Swarm};
use crate::target::Target;
use dunlin_load::url::Url;
use dunlin_load::{Clock, Context, Error, Progress};

const CHANNEL: &str = "background";
/// Length of a broadcast message's filler, bytes.
const PAD_BYTES: usize = 60;
/// A broadcast ends when nothing arrives for this long.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The results of the broadcasts.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct BackgroundLoadReport {
    pub(crate) clients: usize,
    pub(crate) broadcasts: u32,
    pub(crate) delivered: u64,
    pub(crate) expected: u64,
    /// From a broadcast's publish to its last arrival.
    pub(crate) longest_ms: f64,
    pub(crate) closed: u64,
    pub(crate) faults: Faults,
}

impl BackgroundLoadReport {
    pub(crate) fn is_clean(&self) -> bool {
        self.delivered == self.expected && self.closed == 0 && self.faults.is_none()
    }
}

/// Background clients, connected.
#[derive(Debug)]
pub(crate) struct BackgroundLoad {
    swarm: Swarm,
    publishing: Publishing,
    clock: Clock,
}

impl BackgroundLoad {
    /// Connects the clients.
    pub(crate) fn connect(
        target: &Target,
        url: &Url,
        clients: usize,
        clock: Clock,
    ) -> Result<Self, Error> {
        let plan = target.plan(url, Some(CHANNEL), clients, clock)?;
        // Threads inherit their priority: background clients must not delay the measured ones.
        let swarm = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _ = rustix::process::nice(19);
                Swarm::start(&plan)
            });
            thread.join().map_err(|_| Error::new("a thread of the generator panicked"))?
        })?;
        let mut progress = Progress::new("background connections", clients as u64);
        swarm.wait_ready(Duration::from_secs(60), |counts| progress.set(counts.ready))?;
        let mut publishing = target.publishing(url, CHANNEL)?;
        publishing.pad_bytes = PAD_BYTES;
        Ok(Self { swarm, publishing, clock })
    }

    /// Publishes to all of them repeatedly, from its own thread.
    pub(crate) fn broadcast_every(self, interval: Duration) -> Result<Broadcasting, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("broadcasts".into())
            .spawn(move || self.run(interval, &ended))
            .context("cannot start a thread of the generator")?;
        Ok(Broadcasting { stop, thread })
    }

    fn run(self, interval: Duration, stop: &AtomicBool) -> Result<BackgroundLoadReport, Error> {
        let mut publisher = self.publishing.connect()?;
        let before = self.swarm.counts().publications;
        let clients = self.swarm.connections() as u64;
        let (mut broadcasts, mut longest_ns, mut delivered) = (0, 0, 0);
        while !stop.load(Ordering::Acquire) {
            let start_ns = self.clock.now_ns();
            broadcasts += 1;
            publisher.publish(broadcasts, 1)?;
            let expected = before + u64::from(broadcasts) * clients;
            let counts = self.swarm.wait_publications(expected, TIMEOUT, |_| {});
            delivered = counts.publications - before;
            let took_ns = counts.last_publication_ns.saturating_sub(start_ns);
            longest_ns = took_ns.max(longest_ns);
            std::thread::sleep(interval.saturating_sub(Duration::from_nanos(took_ns)));
        }
        let tally = self.swarm.finish(broadcasts)?;
        Ok(BackgroundLoadReport {
            clients: clients as usize,
            broadcasts,
            delivered,
            expected: u64::from(broadcasts) * clients,
            longest_ms: longest_ns as f64 / 1e6,
            closed: tally.counts.closed,
            faults: tally.faults,
        })
    }
}

/// Broadcasts in progress.
#[derive(Debug)]
pub(crate) struct Broadcasting {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<BackgroundLoadReport, Error>>,
}

impl Broadcasting {
    /// Waits for the last broadcast to end.
    pub(crate) fn finish(self) -> Result<BackgroundLoadReport, Error> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().map_err(|_| Error::new("a thread of the generator panicked"))?
    }
}
