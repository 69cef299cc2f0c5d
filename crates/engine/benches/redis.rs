//! What publications cost a Redis server in CPU: each form of them, beside bare `PUBLISH`. Starts a server, pins it and
//! itself to a core each, and prints microseconds of the server's CPU for each publication.
//!
//! ```sh
//! cargo bench -p dunlin-engine --bench redis
//! ```
#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the benchmark")]
#![allow(unreachable_pub, dead_code, reason = "shared with the tests, and each uses its part")]

#[path = "../tests/engines/nodes.rs"]
mod nodes;
#[path = "../tests/engines/servers.rs"]
mod servers;

use std::sync::Arc;

use dunlin_engine::redis::RedisConfig;
use dunlin_engine::{EngineEvent, EngineRequest, Retention};
use dunlin_hub::{HistoryFilter, NewPublication};

use nodes::{Fleet, KEPT, UNKEPT};
use servers::Deployment;

/// Publications of one form.
const COUNT: usize = 200_000;
const CHANNELS: usize = 10_000;

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        // `cargo test` runs it, too, and wants nothing measured.
        return;
    }
    dunlin_net::pin(Some(0)).unwrap();
    let deployment = Deployment::single();
    let server = &deployment.servers[0];
    server.pin(1);
    let config =
        RedisConfig { queue_bytes_max: 1 << 30, ..RedisConfig::new(deployment.topology.clone()) };
    let mut fleet = Fleet::starting(&config, 1, None);
    fleet.until_ready();
    println!(
        "{} of Redis, 100 bytes, {CHANNELS} channels",
        fleet.nodes.0[0].engine.shards().next().unwrap().version
    );
    let mut measure = |name: &str,
                       each: usize,
                       channel: &dyn Fn(usize) -> usize,
                       retention: Retention,
                       change: &dyn Fn(usize, &mut NewPublication)| {
        for warm in [true, false] {
            let before = server.cpu_us();
            let count = if warm { COUNT / 4 } else { COUNT };
            let mut answered = 0;
            let mut number = 0;
            let commands = fleet.nodes.0[0].engine.stats().publish_commands;
            while answered < count {
                // As many as a busy turn of a worker's loop has.
                while number < count && number < answered + 1024 {
                    for _ in 0..64usize.min(count - number) {
                        let name = format!("channel:{}", channel(number));
                        let mut publish = NewPublication {
                            data: vec![b'x'; 100].into(),
                            ..NewPublication::default()
                        };
                        change(number, &mut publish);
                        fleet.send(0, &name, retention, publish);
                        number += 1;
                    }
                    fleet.turn_now();
                }
                fleet.turn();
                answered += fleet.nodes.0[0]
                    .events
                    .drain(..)
                    .filter(|event| {
                        assert!(
                            !matches!(event, EngineEvent::Published { result: Err(_), .. }),
                            "{event:?}"
                        );
                        matches!(event, EngineEvent::Published { .. })
                    })
                    .count();
            }
            if !warm {
                let cpu = (server.cpu_us() - before) as f64 / count as f64;
                let commands = fleet.nodes.0[0].engine.stats().publish_commands - commands;
                println!(
                    "{name:48} {cpu:6.2} µs  ({:.1} a command, {each} wanted)",
                    count as f64 / commands as f64
                );
            }
        }
    };
    // A step that is prime to the number of channels: no channel twice in a turn.
    let spread = |number: usize| number * 7919 % CHANNELS;
    let sixteen = |number: usize| number / 16 * 7919 % CHANNELS;
    let nothing = |_: usize, _: &mut NewPublication| {};
    measure("not kept: PUBLISH", 1, &spread, UNKEPT, &nothing);
    measure("not kept, sixteen of a channel", 16, &sixteen, UNKEPT, &nothing);
    measure("kept", 1, &spread, KEPT, &nothing);
    measure("kept, sixteen of a channel", 16, &sixteen, KEPT, &nothing);
    measure("kept, one channel", 64, &|_| 0, KEPT, &nothing);
    measure("kept, with idempotency key", 1, &spread, KEPT, &|number, publish| {
        publish.idempotency_key = Some(format!("{number}").into());
        publish.idempotency_ttl_ms = Some(2000);
    });
    measure("kept, with version", 1, &spread, KEPT, &|number, publish| {
        publish.version = number as u64 + 1_000_000_000 * (1 + number as u64 / CHANNELS as u64);
    });
    reads(&mut fleet, server);
}

/// What reading costs.
fn reads(fleet: &mut Fleet, server: &servers::RedisServer) {
    let before = server.cpu_us();
    for number in 0..CHANNELS {
        fleet.begin_subscribe(0, &format!("channel:{number}"), KEPT);
    }
    fleet.until("subscribed", |nodes| nodes[0].events.len() == CHANNELS);
    println!(
        "{:48} {:6.2} µs a channel",
        "subscribe with position",
        (server.cpu_us() - before) as f64 / CHANNELS as f64
    );
    fleet.nodes.0[0].events.clear();
    let names: Vec<Arc<str>> = (0..512).map(|number| format!("channel:{number}").into()).collect();
    let before = server.cpu_us();
    for _ in 0..200 {
        let channels = names.clone();
        fleet.ask(0, |token| EngineRequest::Positions { token, channels });
    }
    fleet.until("positions", |nodes| nodes[0].events.len() == 200);
    println!(
        "{:48} {:6.2} µs a channel",
        "512 positions in one call",
        (server.cpu_us() - before) as f64 / (512.0 * 200.0)
    );
    fleet.nodes.0[0].events.clear();
    let before = server.cpu_us();
    for number in 0..10_000 {
        let channel = format!("channel:{number}");
        let filter = HistoryFilter { limit: Some(10), reverse: true, ..HistoryFilter::default() };
        fleet.begin_history(0, &channel, filter, false);
    }
    fleet.until("history", |nodes| nodes[0].events.len() == 10_000);
    println!(
        "{:48} {:6.2} µs",
        "the last ten publications",
        (server.cpu_us() - before) as f64 / 10_000.0
    );
}
