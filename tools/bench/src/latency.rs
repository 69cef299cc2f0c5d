//! Latency at a fixed rate, by a [`Schedule`], alone or beside broadcasts to others.

use std::time::Duration;

use serde::Serialize;

use crate::background_load::{BackgroundLoad, BackgroundLoadReport, Broadcasting};
use crate::schedule::{Arrivals, Schedule, Subscribers};
use crate::target::Target;
use dunlin_load::url::duration;
use dunlin_load::{Clock, Error, ExitStatus, Output, Process};

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
    /// Time to publish before the measurement starts
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    warm_up: Duration,
    /// Filler in each message, bytes
    #[arg(long, default_value_t = 30)]
    pad_bytes: usize,
    /// Clients of another channel that receives broadcasts during the measurement
    #[arg(long, value_name = "CLIENTS", default_value_t = 0)]
    background_clients: usize,
    /// Time between two broadcasts to them
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    background_every: Duration,
    /// Name of this run on the page
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
pub(crate) struct LatencyReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    pub(crate) subscribers: usize,
    pub(crate) rate: u32,
    pub(crate) publishes: u32,
    #[serde(flatten)]
    pub(crate) arrivals: Arrivals,
    pub(crate) cpu_us_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) background_load: Option<BackgroundLoadReport>,
}

pub(crate) fn run(options: &Latency) -> Result<ExitStatus, Error> {
    let target = &options.target;
    target.settle()?;
    let clock = Clock::new();
    let url = target.address()?;
    let process = target.process(url.address)?;
    let background_load = match options.background_clients {
        0 => None,
        clients => Some(BackgroundLoad::connect(target, &url, clients, clock)?),
    };
    let channel = target.channel.as_deref().unwrap_or("c");
    let mut publishing = target.publishing(&url, channel)?;
    publishing.pad_bytes = options.pad_bytes;
    let schedule = Schedule::new(options.rate, options.warm_up, options.duration);
    let plan = target.plan(&url, Some(channel), options.subscribers, clock)?;
    let subscribers = Subscribers::connect(plan, publishing, schedule)?;

    let background_load = background_load
        .map(|background_load| background_load.broadcast_every(options.background_every))
        .transpose()?;
    let cpu_ns = process.as_ref().map(Process::cpu_ns);
    let published = subscribers.publish()?;
    let background_load = background_load.map(Broadcasting::finish).transpose()?;
    let cpu_ns = process.as_ref().map(Process::cpu_ns).zip(cpu_ns);
    let delivered = published.delivered;
    let report = LatencyReport {
        label: options.label.clone(),
        subscribers: options.subscribers,
        rate: options.rate,
        publishes: schedule.publishes,
        arrivals: published.finish()?,
        cpu_us_per_message: cpu_ns.map(|(after, before)| {
            after.saturating_sub(before) as f64 / 1e3 / delivered.max(1) as f64
        }),
        background_load,
    };
    options.output.report("latency", &report)?;
    let clean = report.arrivals.is_clean()
        && report.background_load.as_ref().is_none_or(BackgroundLoadReport::is_clean);
    Ok(if clean { ExitStatus::Passed } else { ExitStatus::Failed })
}
