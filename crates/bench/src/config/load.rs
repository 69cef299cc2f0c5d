//! Messages delivered while the configuration changes: what the change costs everyone else.

use std::io::Write as _;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::client::Client;
use super::{ConfigBench, NAMESPACES, Replace};
use crate::error::{Context, Error};
use crate::host::Host;
use crate::report::median;
use crate::swarm::{Clock, Departures, Swarm, new_histogram};

const SUBSCRIBERS: usize = 100;
const PUBLISHES_PER_S: u32 = 200;
/// Of a round, without and with replaces; the medians of the rounds count, for a noisy neighbour spoils one.
const SECONDS: u32 = 2;
const ROUNDS: usize = 7;
const PAUSE: Duration = Duration::from_millis(300);

/// Replaces all namespaces again and again while a channel is published to. Publisher, subscribers and the one who
/// replaces stay away from the server's cores if there are others: what they take is not the server's delay.
pub(super) fn replace(options: &ConfigBench) -> Result<Replace, Error> {
    let cores: Vec<usize> =
        (0..Host::now().cores).filter(|core| !options.target.server_core.contains(core)).collect();
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            crate::system::pin(&cores).context("cannot leave the server's cores")?;
            replace_here(options, &cores)
        });
        measuring.join().map_err(|_| Error::new("the measuring thread panicked"))?
    })
}

fn replace_here(options: &ConfigBench, cores: &[usize]) -> Result<Replace, Error> {
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
    Ok(Replace {
        namespaces: NAMESPACES,
        replaces: ms.len() as u32,
        p50_ms: median(&ms).unwrap_or(0.0),
        max_ms: ms.iter().copied().fold(0.0, f64::max),
        rounds: ROUNDS,
        quiet_p99_us: median(&quiet).unwrap_or(0.0),
        meanwhile_p99_us: median(&meanwhile).unwrap_or(0.0),
        more_p99_us: median(&more).unwrap_or(0.0),
    })
}

/// The 99th percentile while somebody replaces, and how long the replaces took.
fn delivery_meanwhile(options: &ConfigBench, cores: &[usize]) -> Result<(f64, Vec<f64>), Error> {
    let over = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let told = Arc::clone(&over);
        let replacing = scope.spawn(move || replace_until(options, &told));
        let delivery = delivery_p99_us(options, cores);
        over.store(true, Ordering::Release);
        let ms = replacing.join().map_err(|_| Error::new("the replacing thread panicked"))??;
        Ok((delivery?, ms))
    })
}

fn replace_until(options: &ConfigBench, over: &AtomicBool) -> Result<Vec<f64>, Error> {
    // Publisher and subscribers on this core go first when they wake: what they wait is to be the server's doing. Under a
    // kernel without such slices a little of it is this thread's.
    let _ = dunlin_net::set_time_slice(Some(dunlin_net::TIME_SLICE_MAX));
    let mut client = Client::connect(options.admin)?;
    let mut ms = Vec::new();
    let mut history_size = 100;
    while !over.load(Ordering::Acquire) {
        // Another value than the one before, of the same length.
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

/// The 99th percentile from when each publish should have left to its arrivals.
fn delivery_p99_us(options: &ConfigBench, cores: &[usize]) -> Result<f64, Error> {
    let target = &options.target;
    let url = target.address()?;
    let clock = Clock::new();
    let publishes = PUBLISHES_PER_S * SECONDS;
    let departures = Arc::new(Departures::new(publishes as usize));
    let mut plan = target.plan(&url, Some("c"), SUBSCRIBERS, clock)?;
    plan.cores = cores.to_vec();
    plan.departures = Some(Arc::clone(&departures));
    let swarm = Swarm::start(&plan)?;
    swarm.wait_ready(Duration::from_secs(60), |_| {})?;
    let (mut writer, mut answers) = target.publishing(&url, "c")?.connect()?.split();
    let publishing = target.publishing(&url, "c")?;
    // 50 µs of the default slack would be the generator's, not the server's.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))
        .context("cannot set the timer slack")?;
    let interval_ns = 1_000_000_000 / u64::from(PUBLISHES_PER_S);
    let start_ns = clock.now_ns() + 10_000_000;
    let answered = std::thread::scope(|scope| {
        let reader = scope.spawn(move || answers.wait(publishes));
        let mut request = Vec::new();
        let mut publish = || -> Result<(), Error> {
            for sequence in 1..=publishes {
                let due_ns = start_ns + u64::from(sequence - 1) * interval_ns;
                request.clear();
                publishing.request(sequence, 1, &mut request);
                departures.set(sequence, due_ns);
                let now_ns = clock.now_ns();
                if due_ns > now_ns {
                    std::thread::sleep(Duration::from_nanos(due_ns - now_ns));
                }
                writer.write_all(&request).context("cannot publish")?;
            }
            Ok(())
        };
        let sent = publish();
        if sent.is_err() {
            let _ = writer.shutdown(std::net::Shutdown::Both);
        }
        (reader.join(), sent)
    });
    answered.1?;
    answered.0.map_err(|_| Error::new("the reader of the answers panicked"))??;
    let expected = u64::from(publishes) * SUBSCRIBERS as u64;
    let counts = swarm.wait_publications(expected, Duration::from_secs(5), |_| {});
    let tally = swarm.finish(publishes)?;
    if counts.publications != expected || tally.counts.closed > 0 {
        return Err(Error::new(format!(
            "{} of {expected} messages arrived, {} clients lost their connection",
            counts.publications, tally.counts.closed
        )));
    }
    let latencies = tally.latencies.unwrap_or_else(new_histogram);
    Ok(latencies.value_at_quantile(0.99) as f64 / 1e3)
}
