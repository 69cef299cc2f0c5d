//! `dunlin bench webhooks`: measures events from the publish to the backend's program.
//!
//! The backend is a separate program (`scripts/bench/go-receiver`). It parses every request and records when each event
//! arrived, by the machine's clock, which the publisher uses too. The floor is a plain HTTP client that posts events of
//! the same length to the same backend from the server's core. Finally, clients of a channel that no hook covers are
//! measured while the same number of events is published elsewhere, with and without a hook for them.

mod floor;
mod load;
mod receiver;

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use self::load::{PublishedCounts, Publisher};
use self::receiver::{Received, Receiver};
use crate::dunlin::{Dunlin, OPEN};
use crate::schedule::{Arrivals, Schedule, Subscribers};
use crate::target::Target;
use dunlin_load::clock::Percentiles;
use dunlin_load::figures::{group, median};
use dunlin_load::url::duration;
use dunlin_load::{Clock, Error, ExitStatus, Output, Process, Scratch};

/// Options of `dunlin bench webhooks`.
#[derive(Debug, clap::Args)]
pub struct Webhooks {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    dunlin: Dunlin,
    /// The backend's program, started with its address: scripts/bench/go-receiver, built
    #[arg(long, value_name = "PROGRAM")]
    receiver: String,
    /// Where it listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8398")]
    receiver_addr: SocketAddr,
    /// Events a second of the rows by a schedule, and the last of them beside other clients
    #[arg(long, value_name = "RATE", value_delimiter = ',', default_values_t = [1_000, 10_000])]
    rate: Vec<u32>,
    /// How long each of them is measured
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    time: Duration,
    /// Turns of the measurement beside other clients, with and without a hook
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Clients of a channel without a hook
    #[arg(long, default_value_t = 100)]
    subscribers: usize,
    #[command(flatten)]
    output: Output,
}

/// The result of sending a number of events.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) published: u64,
    /// Events that arrived.
    pub(crate) delivered: u64,
    /// Events that arrived more than once.
    pub(crate) twice: u64,
    /// Events that arrived after a later one of their channel; a floor keeps no order.
    pub(crate) disordered: u64,
    /// Events that were reported to the backend as missing.
    pub(crate) missed: u64,
    pub(crate) events_per_s: f64,
    pub(crate) events_per_request: f64,
    /// From an event's scheduled time to when the backend had read it, microseconds.
    pub(crate) latency_us: Percentiles,
    /// CPU of the sender per 10,000 events: for Dunlin, of the webhooks' thread.
    pub(crate) post_cpu_s_per_10k: f64,
    /// CPU of the whole server, publishes included.
    pub(crate) server_cpu_s_per_10k: Option<f64>,
    /// CPU of the backend.
    pub(crate) receiver_cpu_s_per_10k: f64,
}

/// Name of Dunlin's webhook thread, whose CPU time is measured.
const THREAD: &str = "dunlin-webhooks";
/// Connections to a backend: the default of an upstream.
const CONNECTIONS: usize = 8;
/// Events of one request: the default of a hook.
const BATCH_EVENTS_MAX: usize = 100;
const WARM_UP: Duration = Duration::from_secs(1);
/// Publishes a second to the clients of the other channel.
const BESIDE_RATE: u32 = 100;

impl Row {
    /// Returns whether each event arrived once, in the order of its channel.
    pub(crate) fn is_clean(&self) -> bool {
        self.delivered == self.published && self.twice + self.disordered + self.missed == 0
    }

    fn of(what: String, published: PublishedCounts, received: &Received) -> Row {
        let seconds = received.last_ns.saturating_sub(published.began_ns) as f64 / 1e9;
        Row {
            what,
            published: published.events,
            delivered: received.distinct,
            twice: received.events - received.distinct,
            disordered: received.disordered,
            missed: received.missed,
            events_per_s: received.distinct as f64 / seconds.max(f64::MIN_POSITIVE),
            events_per_request: received.events as f64 / received.requests.max(1) as f64,
            latency_us: received.latency_us,
            post_cpu_s_per_10k: 0.0,
            server_cpu_s_per_10k: None,
            receiver_cpu_s_per_10k: 0.0,
        }
    }
}

pub(crate) fn run(options: &Webhooks) -> Result<ExitStatus, Error> {
    let target = &options.target;
    target.settle()?;
    let scratch = Scratch::temporary("bench-webhooks")?;
    let mut rows = Vec::new();
    for events in [1, BATCH_EVENTS_MAX] {
        rows.push(plain(options, events)?);
    }
    for &rate in &options.rate {
        let what = format!("Dunlin, {} events a second", group(f64::from(rate)));
        let row = measured(options, &scratch, what, |publisher, _| {
            publisher.by_schedule(rate, WARM_UP, options.time)
        })?;
        rows.push(row);
    }
    rows.push(measured(
        options,
        &scratch,
        "Dunlin, as many as go".into(),
        |publisher, receiver| publisher.flat_out(receiver, options.time),
    )?);
    let (beside, all_arrived) = beside(options, &scratch)?;
    let measured = rows.iter().filter(|row| row.server_cpu_s_per_10k.is_some());
    let clean = all_arrived && measured.clone().all(Row::is_clean);
    options.output.report(
        "webhooks",
        &json!({
            "workers": options.dunlin.workers,
            // Most connections to the backend.
            "connections": CONNECTIONS,
            // Channels that events are spread over.
            "channels": load::CHANNELS,
            // Most events per request.
            "batch_events_max": BATCH_EVENTS_MAX,
            "rows": rows,
            // Clients of another channel, and their latency.
            "subscribers": options.subscribers,
            "beside": beside,
        }),
    )?;
    Ok(if clean { ExitStatus::Passed } else { ExitStatus::Failed })
}

/// Returns the server's settings, with a hook for the channels of [`load`] if requested.
fn settings(options: &Webhooks, hooked: bool) -> String {
    let mut text = format!("{OPEN}[channel.namespaces.noted]\n");
    if hooked {
        text += &format!(
            "[webhooks.upstreams.backend]\nconnections_per_member_max = {CONNECTIONS}\n\
             [webhooks.upstreams.backend.members.a]\naddress = \"{}\"\n\
             [webhooks.hooks.noted]\nupstream = \"backend\"\npath = \"/noted\"\nevents = [\"publish\"]\n\
             channels = \"noted:*\"\nbatch_events_max = {BATCH_EVENTS_MAX}\n",
            options.receiver_addr
        );
    }
    text
}

fn serve(options: &Webhooks, scratch: &Scratch, hooked: bool) -> Result<Process, Error> {
    let text = settings(options, hooked);
    options.dunlin.start(&options.target, scratch, "webhooks", &text, false)
}

fn receiver(options: &Webhooks, gives_way: bool) -> Result<Receiver, Error> {
    let (address, cores) = (options.receiver_addr, &options.target.core);
    Receiver::start(&options.receiver, address, cores, gives_way)
}

/// Measures the floor.
fn plain(options: &Webhooks, events: usize) -> Result<Row, Error> {
    let mut receiver = receiver(options, false)?;
    let cores = &options.target.server_core;
    // The first run is a warm-up.
    for duration in [WARM_UP, options.time] {
        receiver.reset()?;
        let busy_ns = receiver.process.cpu_ns();
        let posted = floor::post(receiver.address, cores, CONNECTIONS, events, duration)?;
        if duration == options.time {
            receiver.wait(posted.published.events)?;
            let busy_ns = receiver.process.cpu_ns() - busy_ns;
            let per_10k = 1e4 / posted.published.events.max(1) as f64;
            let what = format!("floor: a plain client, {events} a request");
            let mut row = Row::of(what, posted.published, &receiver.received()?);
            row.post_cpu_s_per_10k = posted.cpu_s * per_10k;
            row.receiver_cpu_s_per_10k = busy_ns as f64 / 1e9 * per_10k;
            return Ok(row);
        }
    }
    Err(Error::new("--time must be longer than nothing"))
}

/// Measures events published at a server with a hook.
fn measured(
    options: &Webhooks,
    scratch: &Scratch,
    what: String,
    publish: impl FnOnce(&mut Publisher, &mut Receiver) -> Result<PublishedCounts, Error>,
) -> Result<Row, Error> {
    let mut receiver = receiver(options, false)?;
    let server = serve(options, scratch, true)?;
    let mut publisher = Publisher::connect(options.target.address()?.address)?;
    let cpu = || (server.thread_cpu_ns(THREAD), server.cpu_ns());
    let (before, busy_ns) = (cpu(), receiver.process.cpu_ns());
    let published = publish(&mut publisher, &mut receiver)?;
    receiver.wait(published.events)?;
    let (after, busy_ns) = (cpu(), receiver.process.cpu_ns() - busy_ns);
    let mut row = Row::of(what, published, &receiver.received()?);
    let per_10k = |ns: u64| ns as f64 / 1e9 * 1e4 / published.events.max(1) as f64;
    row.post_cpu_s_per_10k = per_10k(after.0.saturating_sub(before.0));
    row.server_cpu_s_per_10k = Some(per_10k(after.1.saturating_sub(before.1)));
    row.receiver_cpu_s_per_10k = per_10k(busy_ns);
    Ok(row)
}

/// Measures clients of a channel without a hook while events are published elsewhere, with a hook for those and without.
fn beside(options: &Webhooks, scratch: &Scratch) -> Result<(Vec<Value>, bool), Error> {
    let rate = options.rate.iter().copied().max().unwrap_or(10_000);
    let mut both = [false, true].map(|hooked| (hooked, Vec::new(), Vec::new()));
    for _ in 0..options.rounds {
        for (hooked, rounds, cores) in &mut both {
            let (arrivals, server_cores) = round(options, scratch, *hooked, rate)?;
            rounds.push(arrivals);
            cores.push(server_cores);
        }
    }
    let middle = |rounds: &[Arrivals], of: fn(&Percentiles) -> f64| {
        let all: Vec<f64> = rounds.iter().map(|round| of(&round.latency_us)).collect();
        median(&all).unwrap_or(0.0)
    };
    let clean = both.iter().flat_map(|(_, rounds, _)| rounds).all(Arrivals::is_clean);
    let rows = both.into_iter().map(|(hooked, rounds, cores)| {
        json!({
            "hooked": hooked,
            // Events published a second meanwhile.
            "rate": rate,
            "p50_us": middle(&rounds, |latency| latency.p50),
            "p99_us": middle(&rounds, |latency| latency.p99),
            "server_cores": median(&cores),
            "rounds": rounds,
        })
    });
    Ok((rows.collect(), clean))
}

/// Measures a round. Returns the clients' results, and the cores that the server used.
fn round(
    options: &Webhooks,
    scratch: &Scratch,
    hooked: bool,
    rate: u32,
) -> Result<(Arrivals, f64), Error> {
    let target = &options.target;
    // The receiver represents another machine, so it must not delay the clients on this core.
    let mut receiver = receiver(options, true)?;
    let server = serve(options, scratch, hooked)?;
    let url = target.address()?;
    let plan = target.plan(&url, Some("c"), options.subscribers, Clock::new())?;
    let schedule = Schedule::new(BESIDE_RATE, WARM_UP, options.time);
    let subscribers = Subscribers::connect(plan, target.publishing(&url, "c")?, schedule)?;
    let (before, began) = (server.cpu_ns(), std::time::Instant::now());
    std::thread::scope(|scope| {
        let publishing = scope
            .spawn(|| Publisher::connect(url.address)?.by_schedule(rate, WARM_UP, options.time));
        let heard = subscribers.publish();
        let published = publishing.join();
        let published =
            published.map_err(|_| Error::new("the thread that publishes panicked"))??;
        let spent = server.cpu_ns().saturating_sub(before) as f64;
        let cores = spent / began.elapsed().as_nanos() as f64;
        if hooked {
            receiver.wait(published.events)?;
            let came = receiver.count()?;
            if came != published.events {
                let all = published.events;
                return Err(Error::new(format!("{came} of {all} events came to the backend")));
            }
        }
        Ok((heard?.finish()?, cores))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(delivered: u64, twice: u64) -> Row {
        let received = Received {
            requests: 10,
            events: delivered + twice,
            distinct: delivered,
            disordered: 0,
            missed: 0,
            last_ns: 3_000_000_000,
            latency_us: Percentiles {
                min: 1.0,
                p50: 2.0,
                p90: 3.0,
                p99: 4.0,
                p999: 5.0,
                max: 6.0,
                mean: 2.5,
            },
        };
        let published = PublishedCounts { events: 100, began_ns: 1_000_000_000 };
        Row::of("some".into(), published, &received)
    }

    #[test]
    fn a_row_is_clean_when_each_event_came_once() {
        let whole = row(100, 0);
        assert!(whole.is_clean());
        assert_eq!((whole.events_per_s, whole.events_per_request), (50.0, 10.0));
        assert!(!row(99, 0).is_clean());
        assert!(!row(100, 1).is_clean());
        assert!(!Row { disordered: 1, ..row(100, 0) }.is_clean());
        assert!(!Row { missed: 1, ..row(100, 0) }.is_clean());
    }
}
