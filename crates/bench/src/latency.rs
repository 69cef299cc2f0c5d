//! Latency at a fixed rate, from when each publish should have left.
//!
//! An open model: the publisher keeps its timetable whatever the server does, and a publish that left late, because
//! the one before was slow to take, counts from its time in the timetable. So a server that stands still for a second
//! is seen by every message of that second, not by one (Tene, "How not to measure latency").

use std::io::Write;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::ExitStatus;
use crate::crowd::{Broadcasting, Crowd};
use crate::error::{Context, Error};
use crate::host::Host;
use crate::process::Process;
use crate::progress::{Progress, say};
use crate::report::emit;
use crate::swarm::{Clock, Departures, Faults, Swarm, new_histogram};
use crate::target::{Target, duration};

/// Options of `dunlin bench latency`.
#[derive(Debug, clap::Args)]
pub struct Latency {
    #[command(flatten)]
    target: Target,
    /// Subscribers of the channel
    #[arg(long, default_value_t = 100)]
    subscribers: usize,
    /// Publishes a second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Publishes before that count for nothing
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    warm_up: Duration,
    /// Filler in each message, bytes
    #[arg(long, default_value_t = 30)]
    pad_bytes: usize,
    /// Clients of another channel, to whom messages are broadcast meanwhile
    #[arg(long, value_name = "CLIENTS", default_value_t = 0)]
    crowd: usize,
    /// Time between two broadcasts to them
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    crowd_every: Duration,
    /// What this run is called on the page
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// One JSON object as the last line of standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Findings {
    pub(crate) benchmark: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    pub(crate) host: Host,
    pub(crate) subscribers: usize,
    pub(crate) rate: u32,
    pub(crate) publishes: u32,
    pub(crate) delivered: u64,
    pub(crate) expected: u64,
    /// From the time in the timetable to the arrival at a subscriber, microseconds.
    pub(crate) latency_us: Percentiles,
    /// From the time in the timetable to when the publish left: the generator's own share.
    pub(crate) late_us: Percentiles,
    pub(crate) cpu_us_per_message: Option<f64>,
    pub(crate) complete: u64,
    pub(crate) closed: u64,
    pub(crate) faults: Faults,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) crowd: Option<crate::crowd::Findings>,
}

/// Percentiles of a histogram, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
}

impl Percentiles {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| us(histogram.value_at_quantile(quantile));
        Self {
            min: us(histogram.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: us(histogram.max()),
            mean: histogram.mean() / 1e3,
        }
    }
}

pub(crate) fn run(options: &Latency) -> Result<ExitStatus, Error> {
    let target = &options.target;
    crate::system::pin(&target.core)
        .map_err(|error| Error::io(format!("cannot run on cores {:?}", target.core), error))?;
    let publishes_of =
        |time: Duration| (time.as_secs_f64() * f64::from(options.rate)).ceil() as u32;
    let warm_up = publishes_of(options.warm_up);
    let publishes = warm_up + publishes_of(options.duration).max(1);

    let clock = Clock::new();
    let url = target.address()?;
    let process = target.process(url.address)?;
    let channel = target.channel.as_deref().unwrap_or("c");
    let departures = Arc::new(Departures::new(publishes as usize));
    let mut plan = target.plan(&url, Some(channel), options.subscribers, clock)?;
    plan.departures = Some(Arc::clone(&departures));
    let crowd = match options.crowd {
        0 => None,
        clients => Some(Crowd::gather(target, &url, clients, clock)?),
    };
    let swarm = Swarm::start(&plan)?;
    swarm.wait_ready(Duration::from_secs(60), |_| {})?;

    let mut publishing = target.publishing(&url, channel)?;
    publishing.pad_bytes = options.pad_bytes;
    let (mut writer, mut answers) = publishing.connect()?.split();
    let before = swarm.counts();
    let cpu_ns = process.as_ref().map(Process::cpu_ns);

    // 50 µs of the default slack would be the generator's, not the server's.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))
        .context("cannot set the timer slack")?;
    let interval_ns = 1_000_000_000 / u64::from(options.rate);
    let start_ns = clock.now_ns() + 10_000_000;
    let mut late = new_histogram();
    let mut progress = Progress::new("publishes", u64::from(publishes));
    let crowd = crowd.map(|crowd| crowd.broadcast_every(options.crowd_every)).transpose()?;
    let (answered, sent) = std::thread::scope(|scope| {
        let reader = scope.spawn(move || answers.wait(publishes));
        let mut send_all = || -> Result<(), Error> {
            let mut request = Vec::new();
            for sequence in 1..=publishes {
                let due_ns = start_ns + u64::from(sequence - 1) * interval_ns;
                request.clear();
                publishing.request(sequence, 1, &mut request);
                let measured = sequence > warm_up;
                if measured {
                    departures.set(sequence, due_ns);
                }
                let now_ns = clock.now_ns();
                if due_ns > now_ns {
                    std::thread::sleep(Duration::from_nanos(due_ns - now_ns));
                }
                if measured {
                    late.saturating_record(clock.now_ns().saturating_sub(due_ns));
                }
                writer.write_all(&request).context("cannot publish")?;
                progress.set(u64::from(sequence));
            }
            Ok(())
        };
        let sent = send_all();
        if sent.is_err() {
            // The answers that are missing will not come: let the reader see the end.
            let _ = writer.shutdown(std::net::Shutdown::Both);
        }
        (reader.join(), sent)
    });
    sent?;
    answered.map_err(|_| Error::new("the reader of the answers panicked"))??;
    drop(progress);

    let expected = u64::from(publishes) * options.subscribers as u64;
    let counts =
        swarm.wait_publications(before.publications + expected, Duration::from_secs(5), |_| {});
    let delivered = counts.publications - before.publications;
    let crowd = crowd.map(Broadcasting::finish).transpose()?;
    let cpu_ns = process.as_ref().map(Process::cpu_ns).zip(cpu_ns);
    let tally = swarm.finish(publishes)?;
    let latencies = tally.latencies.unwrap_or_else(new_histogram);
    let findings = Findings {
        benchmark: "latency".into(),
        label: options.label.clone(),
        host: Host::now(),
        subscribers: options.subscribers,
        rate: options.rate,
        publishes,
        delivered,
        expected,
        latency_us: Percentiles::of(&latencies),
        late_us: Percentiles::of(&late),
        cpu_us_per_message: cpu_ns.map(|(after, before)| {
            after.saturating_sub(before) as f64 / 1e3 / delivered.max(1) as f64
        }),
        complete: tally.complete,
        closed: tally.counts.closed,
        faults: tally.faults,
        crowd,
    };
    say(format!(
        "{} publishes a second to {} subscribers: {delivered} of {expected} messages delivered",
        options.rate, options.subscribers
    ));
    for (name, of) in [("latency", findings.latency_us), ("left late", findings.late_us)] {
        say(format!(
            "{name:<10} us: min {:.0}, p50 {:.0}, p90 {:.0}, p99 {:.0}, p99.9 {:.0}, max {:.0}",
            of.min, of.p50, of.p90, of.p99, of.p999, of.max
        ));
    }
    if let Some(crowd) = &findings.crowd {
        say(format!(
            "meanwhile {} broadcasts to {} others: {} of {} messages delivered, one took {:.0} ms",
            crowd.broadcasts, crowd.clients, crowd.delivered, crowd.expected, crowd.longest_ms
        ));
    }
    let clean = delivered == expected
        && findings.faults.is_none()
        && findings.closed == 0
        && findings.crowd.as_ref().is_none_or(crate::crowd::Findings::is_clean);
    emit(options.json, &findings)?;
    Ok(if clean { ExitStatus::Passed } else { ExitStatus::Failed })
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
}
