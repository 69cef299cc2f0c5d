//! The load of the shared server at rest, and the effect of closing the connections that carry publications to nodes.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{ClusterBench, Fleet, Round, connected};
use crate::token::hs256;
use dunlin_load::Error;

/// Time after the last connect until its requests to the server are done.
const SETTLED_AFTER: Duration = Duration::from_secs(6);
const HEARD_TIMEOUT: Duration = Duration::from_secs(120);
/// If nothing arrives for this long, the rest counts as lost.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Channels per client, if there are more channels than clients the machine can hold.
const CHANNELS_EACH: usize = 100;
/// Messages published during the interruption.
const MISSED: usize = 100;

/// Measures at rest, with a client in each channel, on one node.
pub(super) fn at_rest(options: &ClusterBench, fleet: &Fleet) -> Result<Round, Error> {
    let plan = options.plan(fleet.nodes[1].client, Some("c{n}"), options.channels);
    let (swarm, lost) = connected(&plan)?;
    std::thread::sleep(SETTLED_AFTER);
    let time = Duration::from_secs(options.rest_s.into());
    let (began, cpu_before) = (Instant::now(), fleet.store.cpu_ns());
    let commands = fleet.store.commands(time)?;
    let (seconds, cpu_ns) = (began.elapsed().as_secs_f64(), fleet.store.cpu_ns() - cpu_before);
    Ok(Round {
        commands_per_s: Some(commands as f64 / seconds),
        server_share: Some(cpu_ns as f64 / 1e9 / seconds),
        thrown_out: swarm.counts().closed,
        lost,
        ..Round::default()
    })
}

pub(super) fn killed(options: &ClusterBench, fleet: &Fleet) -> Result<Round, Error> {
    let redis = fleet.store.redis()?;
    let clients = options.heard.div_ceil(CHANNELS_EACH);
    let channels = clients * CHANNELS_EACH;
    let mut plan = options.plan(fleet.nodes[1].client, None, clients);
    plan.protocol.tokens = (0..clients)
        .map(|client| {
            let first = client * CHANNELS_EACH;
            let names = (first..first + CHANNELS_EACH).map(|channel| format!("c{channel}"));
            hs256(&json!({"sub": format!("user{client}"), "channels": names.collect::<Vec<_>>()}))
        })
        .collect();
    let clock = plan.clock;
    let (swarm, failed) = connected(&plan)?;
    let heard = || -> Result<usize, Error> {
        let stats = redis.call(&["INFO", "stats"])?;
        let count = stats.lines().find_map(|line| line.strip_prefix("pubsub_channels:"));
        Ok(count.and_then(|count| count.trim().parse().ok()).unwrap_or(0))
    };
    let until = Instant::now() + HEARD_TIMEOUT;
    while heard()? < channels && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = heard()?;
    if before < channels {
        return Err(Error::new(format!("only {before} of {channels} channels are heard")));
    }

    let mut publisher = dunlin_load::client::Client::connect(fleet.nodes[0].client)?;
    let began = Instant::now();
    redis.call(&["CLIENT", "KILL", "TYPE", "pubsub"])?;
    let began_ns = clock.now_ns();
    let mut commands = Vec::new();
    for at in 0..MISSED {
        let channel = format!("c{}", at * channels / MISSED);
        commands.push(json!({"publish": {"channel": channel, "data": {}}}));
    }
    let body = json!({ "commands": commands }).to_string();
    publisher.call("POST", "/api/batch", "application/json", body.as_bytes())?;
    let refused = memchr::memmem::find_iter(publisher.body(), b"\"error\"").count();
    while heard()? < before && began.elapsed() < HEARD_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
    let heard_again_ms = began.elapsed().as_secs_f64() * 1e3;
    let counts = swarm.wait_publications(MISSED as u64, DELIVERY_TIMEOUT, |_| {});
    let late_ms = counts.last_publication_ns.saturating_sub(began_ns) as f64 / 1e6;
    let missed = (MISSED as u64).saturating_sub(counts.publications);

    // A client unsubscribed from any channel misses one of these.
    let (path, count) = ("/api/publish", channels);
    let body = format!("{{\"channel\":\"c{{n%{channels}}}\",\"data\":{{}}}}");
    options.requests(fleet.nodes[0].client, path, &body, count)?;
    let all = (MISSED + channels) as u64;
    let counts = swarm.wait_publications(all, DELIVERY_TIMEOUT, |_| {});
    Ok(Round {
        heard_again_ms: Some(heard_again_ms),
        late_ms: (missed < MISSED as u64).then_some(late_ms),
        missed: Some(missed),
        thrown_out: counts.closed,
        lost: failed + refused as u64 + all.abs_diff(counts.publications),
        ..Round::default()
    })
}
