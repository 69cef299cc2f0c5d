//! Measurements of publishes, and of messages from one node to another.

use std::fmt::Write as _;
use std::time::Duration;

use super::{ClusterBench, Fleet, Round, connected};
use crate::publisher::{Publishing, Template};
use crate::schedule::{Schedule, Subscribers};
use dunlin_load::Error;

/// Publications in a request.
const BATCH: usize = 100;
/// If nothing arrives for this long, the rest counts as lost.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
const RATE: u32 = 1_000;

/// Publishes to one channel after the other, without subscribers.
pub(super) fn publish(options: &ClusterBench, fleet: &Fleet) -> Result<Round, Error> {
    let (path, body, requests) = request(options, 1, false);
    measured(options, fleet, path, &body, requests, 1)
}

/// Publishes a hundred per request, to all channels or to one.
pub(super) fn batch(
    options: &ClusterBench,
    fleet: &Fleet,
    one_channel: bool,
) -> Result<Round, Error> {
    let (path, body, requests) = request(options, BATCH, one_channel);
    measured(options, fleet, path, &body, requests, BATCH)
}

/// Publishes to channels that each have a client on the other node.
pub(super) fn across(options: &ClusterBench, fleet: &Fleet, batch: usize) -> Result<Round, Error> {
    let plan = options.plan(fleet.nodes[1].client, Some("c{n}"), options.channels);
    let (swarm, failed) = connected(&plan)?;
    let (path, body, requests) = request(options, batch, false);
    let cpu = fleet.cpu();
    let took = options.requests(fleet.nodes[0].client, path, &body, requests)?;
    let published = requests * batch;
    let counts = swarm.wait_publications(published as u64, DELIVERY_TIMEOUT, |_| {});
    let mut round =
        Round { per_s: Some(published as f64 / took.as_secs_f64()), ..Round::default() };
    fleet.cost(&cpu, published, &mut round);
    let tally = swarm.finish(0)?;
    let missing = (published as u64).abs_diff(counts.publications);
    round.thrown_out = tally.counts.closed;
    round.lost = failed + missing + tally.faults.offset_jumps;
    Ok(round)
}

/// Measures latency from a publisher on the first node to a client on the last.
pub(super) fn latency(options: &ClusterBench, fleet: &Fleet) -> Result<Round, Error> {
    let (first, last) = (&fleet.nodes[0], &fleet.nodes[fleet.nodes.len() - 1]);
    let publishing = Publishing {
        address: first.client,
        template: Template::Http {
            host: first.client.to_string(),
            path: "/api/publish".into(),
            body: "{\"channel\":\"c\",\"data\":{data}}".into(),
            batch_path: None,
            api_key: None,
        },
        pad_bytes: 30,
        numbered_after: None,
    };
    let time = Duration::from_secs(options.seconds.into());
    let schedule = Schedule::new(RATE, Duration::from_secs(1), time);
    let plan = options.plan(last.client, Some("c"), 1);
    let arrivals = Subscribers::connect(plan, publishing, schedule)?.publish()?.finish()?;
    Ok(Round {
        p50_us: Some(arrivals.latency_us.p50),
        p99_us: Some(arrivals.latency_us.p99),
        lost: u64::from(!arrivals.is_clean()) + arrivals.expected.abs_diff(arrivals.delivered),
        thrown_out: arrivals.closed,
        ..Round::default()
    })
}

/// Returns path and body of a request, and how many requests to send.
fn request(
    options: &ClusterBench,
    batch: usize,
    one_channel: bool,
) -> (&'static str, String, usize) {
    let publish = |channel: String| {
        format!("{{\"channel\":\"{channel}\",\"data\":{{\"text\":\"what one is to know\"}}}}")
    };
    if batch == 1 {
        let body = publish(format!("c{{n%{}}}", options.channels));
        return ("/api/publish", body, options.publishes);
    }
    let mut body = String::from("{\"commands\":[");
    for index in 0..batch {
        let comma = if index == 0 { "" } else { "," };
        let channel = match one_channel {
            true => format!("c{{n%{}}}", options.channels),
            false => format!("c{{random:0-{}}}", options.channels - 1),
        };
        // Writing to a String cannot fail.
        let _ = write!(body, "{comma}{{\"publish\":{}}}", publish(channel));
    }
    body.push_str("]}");
    ("/api/batch", body, (options.publishes / batch).max(1))
}

/// Measures requests to publish without subscribers.
fn measured(
    options: &ClusterBench,
    fleet: &Fleet,
    path: &str,
    body: &str,
    requests: usize,
    batch: usize,
) -> Result<Round, Error> {
    let cpu = fleet.cpu();
    let took = options.requests(fleet.nodes[0].client, path, body, requests)?;
    let published = requests * batch;
    let mut round =
        Round { per_s: Some(published as f64 / took.as_secs_f64()), ..Round::default() };
    fleet.cost(&cpu, published, &mut round);
    Ok(round)
}
