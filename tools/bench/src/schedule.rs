//! Publishes at a fixed rate to subscribers of one channel, and records when each message arrived at each of them.
//!
//! An open model: the publisher keeps its schedule whatever the server does, and latency counts from the scheduled
//! time even if a publish left late because the one before blocked. So a server that stalls for a second affects
//! every message of that second, not one (Tene, "How not to measure latency").

use std::io::Write;
use std::net::TcpStream;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::publisher::{Answers, Publishing};
use crate::swarm::{Departures, Faults, Plan, Swarm};
use dunlin_load::clock::{Percentiles, new_histogram};
use dunlin_load::{Clock, Context, Error, Progress};

/// If nothing arrives for this long after the last publish, the rest counts as missing.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Delay between being ready and the first publish.
const START_NS: u64 = 10_000_000;

/// The number and rate of publishes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    /// Publishes a second.
    pub(crate) rate: u32,
    /// Publishes before the measured ones.
    pub(crate) warm_up: u32,
    /// All publishes, the warm-up included.
    pub(crate) publishes: u32,
}

impl Schedule {
    pub(crate) fn new(rate: u32, warm_up: Duration, duration: Duration) -> Self {
        let publishes_of = |time: Duration| (time.as_secs_f64() * f64::from(rate)).ceil() as u32;
        let warm_up = publishes_of(warm_up);
        Self { rate, warm_up, publishes: warm_up + publishes_of(duration).max(1) }
    }
}

/// The arrivals and their latency.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Arrivals {
    pub(crate) delivered: u64,
    pub(crate) expected: u64,
    /// From the scheduled time to the arrival at a subscriber, microseconds.
    pub(crate) latency_us: Percentiles,
    /// From the scheduled time to when the publish left: the generator's own delay.
    pub(crate) late_us: Percentiles,
    /// Subscribers that received every message once.
    pub(crate) complete: u64,
    pub(crate) closed: u64,
    pub(crate) faults: Faults,
}

impl Arrivals {
    pub(crate) fn is_clean(&self) -> bool {
        self.delivered == self.expected && self.faults.is_none() && self.closed == 0
    }
}

/// Subscribers that wait for messages published by a schedule.
pub(crate) struct Subscribers {
    schedule: Schedule,
    swarm: Swarm,
    publishing: Publishing,
    departures: Arc<Departures>,
    clock: Clock,
}

impl Subscribers {
    /// Connects the subscribers of `plan`.
    pub(crate) fn connect(
        mut plan: Plan,
        publishing: Publishing,
        schedule: Schedule,
    ) -> Result<Self, Error> {
        let departures = Arc::new(Departures::new(schedule.publishes as usize));
        plan.departures = Some(Arc::clone(&departures));
        let clock = plan.clock;
        let swarm = Swarm::start(&plan)?;
        swarm.wait_ready(Duration::from_secs(60), |_| {})?;
        Ok(Self { schedule, swarm, publishing, departures, clock })
    }

    /// Publishes all messages, and waits for the arrivals.
    pub(crate) fn publish(self) -> Result<Published, Error> {
        let (mut writer, mut answers) = self.publishing.connect()?.split();
        let before = self.swarm.counts().numbered;
        // The default timer slack of 50 µs would add to the generator's delay.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))
            .context("cannot set the timer slack")?;
        let late = self.keep(&mut writer, &mut answers)?;
        let publishes = self.schedule.publishes;
        let expected = u64::from(publishes) * self.swarm.connections() as u64;
        let counts = self.swarm.wait_numbered(before + expected, TIMEOUT);
        let delivered = counts.numbered - before;
        Ok(Published { swarm: self.swarm, publishes, late, delivered, expected })
    }

    /// Publishes by the schedule. Returns how late each publish left.
    fn keep(&self, writer: &mut TcpStream, answers: &mut Answers) -> Result<Histogram<u64>, Error> {
        let Schedule { rate, warm_up, publishes } = self.schedule;
        let interval_ns = 1_000_000_000 / u64::from(rate);
        let start_ns = self.clock.now_ns() + START_NS;
        let mut late = new_histogram();
        let mut progress = Progress::new("publishes", u64::from(publishes));
        let (answered, sent) = std::thread::scope(|scope| {
            let reader = scope.spawn(move || answers.wait(publishes));
            let mut send_all = || -> Result<(), Error> {
                let mut request = Vec::new();
                for sequence in 1..=publishes {
                    let due_ns = start_ns + u64::from(sequence - 1) * interval_ns;
                    request.clear();
                    self.publishing.request(sequence, 1, &mut request);
                    let measured = sequence > warm_up;
                    if measured {
                        self.departures.set(sequence, due_ns);
                    }
                    let now_ns = self.clock.now_ns();
                    if due_ns > now_ns {
                        std::thread::sleep(Duration::from_nanos(due_ns - now_ns));
                    }
                    if measured {
                        late.saturating_record(self.clock.now_ns().saturating_sub(due_ns));
                    }
                    writer.write_all(&request).context("cannot publish")?;
                    progress.set(u64::from(sequence));
                }
                Ok(())
            };
            let sent = send_all();
            if sent.is_err() {
                // Missing answers will not arrive: this ends the reader.
                let _ = writer.shutdown(std::net::Shutdown::Both);
            }
            (reader.join(), sent)
        });
        sent?;
        answered.map_err(|_| Error::new("the reader of the answers panicked"))??;
        Ok(late)
    }
}

/// The subscribers, after each has received what it will receive.
pub(crate) struct Published {
    swarm: Swarm,
    publishes: u32,
    late: Histogram<u64>,
    pub(crate) delivered: u64,
    expected: u64,
}

impl Published {
    /// Disconnects the subscribers and returns the results.
    pub(crate) fn finish(self) -> Result<Arrivals, Error> {
        let tally = self.swarm.finish(self.publishes)?;
        let latencies = tally.latencies.unwrap_or_else(new_histogram);
        Ok(Arrivals {
            delivered: self.delivered,
            expected: self.expected,
            latency_us: Percentiles::of(&latencies),
            late_us: Percentiles::of(&self.late),
            complete: tally.complete,
            closed: tally.counts.closed,
            faults: tally.faults,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_in_microseconds() {
        let mut histogram = new_histogram();
        for us in 1..=1000 {
            histogram.record(us * 1_000).unwrap();
        }
        let percentiles = Percentiles::of(&histogram);
        assert!((499.0..502.0).contains(&percentiles.p50), "{percentiles:?}");
        assert!((989.0..992.0).contains(&percentiles.p99), "{percentiles:?}");
    }

    #[test]
    fn a_schedule_has_at_least_one_measured_publish() {
        let second = Duration::from_secs(1);
        let schedule = Schedule::new(200, second, 2 * second);
        assert_eq!((schedule.warm_up, schedule.publishes), (200, 600));
        let shortest = Schedule::new(1, Duration::ZERO, Duration::ZERO);
        assert_eq!((shortest.warm_up, shortest.publishes), (0, 1));
    }
}
