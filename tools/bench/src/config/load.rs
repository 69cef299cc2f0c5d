//! Latency of message delivery while the configuration changes.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::{ConfigBench, NAMESPACES};
use crate::schedule::{Schedule, Subscribers};
use dunlin_load::figures::median;
use dunlin_load::host::Host;
use dunlin_load::{Clock, Context, Error};

const SUBSCRIBERS: usize = 100;
const PUBLISHES_PER_S: u32 = 200;
/// Duration of a round without and with replaces. The medians of the rounds are reported, because a noisy neighbour
/// can spoil one.
const DELIVERY: Duration = Duration::from_secs(2);
const ROUNDS: usize = 7;
const PAUSE: Duration = Duration::from_millis(300);

/// Replaces all namespaces repeatedly while a channel is published to. Publisher, subscribers and the caller avoid
/// the server's cores if there are others, so that their CPU does not delay the server.
pub(super) fn replace(options: &ConfigBench) -> Result<Value, Error> {
    let cores: Vec<usize> =
        (0..Host::now().cores).filter(|core| !options.target.server_core.contains(core)).collect();
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            dunlin_load::system::pin(&cores).context("cannot leave the server's cores")?;
            replace_here(options, &cores)
        });
        measuring.join().map_err(|_| Error::new("the measuring thread panicked"))?
    })
}

fn replace_here(options: &ConfigBench, cores: &[usize]) -> Result<Value, Error> {
    let (mut quiet, mut meanwhile, mut more) = (Vec::new(), Vec::new(), Vec::new());
    let mut ms = Vec::new();
    for _ in 0..ROUNDS {
        let quiet_us = delivery_p99_us(options, cores)?;
        let (meanwhile_us, took) = delivery_meanwhile(options, cores)?;
        quiet.push(quiet_us);
        meanwhile.push(meanwhile_us);
        more.push(meanwhile_us - quiet_us);
        ms.extend(took);
    }
    Ok(json!({
        "namespaces": NAMESPACES,
        "replaces": ms.len(),
        "p50_ms": median(&ms),
        "max_ms": ms.iter().copied().fold(0.0, f64::max),
        // Delivery of messages to subscribers, without replaces and during them: medians over the rounds.
        "rounds": ROUNDS,
        "quiet_p99_us": median(&quiet),
        "meanwhile_p99_us": median(&meanwhile),
        // The median increase by replaces within each round.
        "more_p99_us": median(&more),
    }))
}

/// Returns the 99th percentile during replaces, and how long the replaces took.
fn delivery_meanwhile(options: &ConfigBench, cores: &[usize]) -> Result<(f64, Vec<f64>), Error> {
    let over = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reported = Arc::clone(&over);
        let replacing = scope.spawn(move || replace_until(options, &reported));
        let delivery = delivery_p99_us(options, cores);
        over.store(true, Ordering::Release);
        let ms = replacing.join().map_err(|_| Error::new("the replacing thread panicked"))??;
        Ok((delivery?, ms))
    })
}

fn replace_until(options: &ConfigBench, over: &AtomicBool) -> Result<Vec<f64>, Error> {
    // Give this thread a long time slice: publisher and subscribers on this core preempt it when they wake, so that
    // they wait only for the server. On a kernel without such slices, a little of their wait is caused by this thread.
    let _ = dunlin_net::set_time_slice(Some(dunlin_net::TIME_SLICE_MAX));
    let mut client = options.dunlin.admin_client()?;
    let mut ms = Vec::new();
    let mut history_size = 100;
    while !over.load(Ordering::Acquire) {
        // Alternates between values of the same length.
        history_size = if history_size == 101 { 102 } else { 101 };
        let mut body = Vec::from(*b"{");
        for namespace in 0..NAMESPACES {
            let comma = if namespace == 0 { "" } else { "," };
            // Writing to a Vec cannot fail.
            let _ = write!(
                body,
                "{comma}\"ns{namespace}\":{{\"history_size\":{history_size},\"history_ttl_ms\":60000}}"
            );
        }
        body.push(b'}');
        let took = client.change("/config/channel/namespaces", &body)?;
        ms.push(took.as_secs_f64() * 1e3);
        std::thread::sleep(PAUSE);
    }
    Ok(ms)
}

/// Returns the 99th percentile from a publish's scheduled time to its arrivals.
fn delivery_p99_us(options: &ConfigBench, cores: &[usize]) -> Result<f64, Error> {
    let target = &options.target;
    let url = target.address()?;
    let mut plan = target.plan(&url, Some("c"), SUBSCRIBERS, Clock::new())?;
    plan.cores = cores.to_vec();
    let schedule = Schedule::new(PUBLISHES_PER_S, Duration::ZERO, DELIVERY);
    let subscribers = Subscribers::connect(plan, target.publishing(&url, "c")?, schedule)?;
    let arrivals = subscribers.publish()?.finish()?;
    if !arrivals.is_clean() {
        return Err(Error::new(format!(
            "{} of {} messages arrived, {} clients lost their connection",
            arrivals.delivered, arrivals.expected, arrivals.closed
        )));
    }
    Ok(arrivals.latency_us.p99)
}
