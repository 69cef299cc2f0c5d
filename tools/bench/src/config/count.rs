//! `dunlin bench config --table count`: clients count their messages while every part of the configuration changes.
//!
//! Each client checks that every number and every offset arrives once and in order, and that its connection stays
//! open. Meanwhile one caller makes random valid changes of every kind of object, and restores random revisions. Its
//! actions follow from the seed alone.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dunlin_wire::backoff::Jitter;
use serde_json::{Value, json};

use super::ConfigBench;
use crate::swarm::Swarm;
use dunlin_load::client::Client;
use dunlin_load::{Clock, Context, Error, ExitStatus, Progress, Scratch, say};

/// The channel that is counted in; its history gives each message an offset.
const CHANNEL: &str = "count:all";
const CHANGES_PER_S: u32 = 1_000;
const PUBLISHES_PER_S: u32 = 20;
/// How long to wait for messages in flight after the last change.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How many objects of each kind are added and removed.
const OBJECTS: u64 = 50;
/// The oldest revision that may be restored: the file's own.
const FIRST: u64 = 1;

pub(super) fn run(options: &ConfigBench) -> Result<ExitStatus, Error> {
    let directory = Scratch::below(&options.state, "bench-config")?;
    let server =
        options.dunlin.start(&options.target, &directory, "count", &configuration(), true)?;
    let target = &options.target;
    let url = target.address()?;
    let mut plan = target.plan(&url, Some(CHANNEL), options.clients, Clock::new())?;
    // No latency is measured: clients may run on any core.
    plan.cores = Vec::new();
    let swarm = Swarm::start(&plan)?;
    let mut progress = Progress::new("clients connected", options.clients as u64);
    let counts = swarm.wait_ready(Duration::from_secs(60), |counts| progress.set(counts.ready))?;
    drop(progress);
    if counts.failed > 0 {
        return Err(Error::new(format!("{} clients did not get ready", counts.failed)));
    }

    let (made, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let began = Instant::now();
    let (changes, publications) = std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let changes = change(options, &made);
            over.store(true, Ordering::Release);
            changes
        });
        let publishing = scope.spawn(|| publish(options, &over));
        let mut progress = Progress::new("changes", u64::from(options.changes));
        while !changing.is_finished() {
            progress.set(made.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(progress);
        let panicked = |_| Error::new("a thread of the generator panicked");
        let changes = changing.join().map_err(panicked)?;
        let publications = publishing.join().map_err(panicked)?;
        Ok::<_, Error>((changes?, publications?))
    })?;
    let expected = u64::from(publications) * options.clients as u64;
    swarm.wait_publications(expected, TIMEOUT, |_| {});
    let seconds = began.elapsed().as_secs_f64();
    let tally = swarm.finish(publications)?;
    drop(server);
    for (reason, count) in &tally.reasons {
        say(format!("  {count} × {reason}"));
    }
    let (clients, counts) = (options.clients as u64, tally.counts);
    options.output.report(
        "config-count",
        &json!({
            "clients": clients,
            "seed": options.seed,
            // All changes, including restored revisions and listeners opened or closed.
            "changes": changes.made,
            "undos": changes.undos,
            "listeners": changes.listeners,
            "publications": publications,
            // Messages that arrived, all clients together.
            "arrived": counts.publications,
            // Clients that were connected at the end and had received every message.
            "complete": tally.complete,
            // Connections that ended.
            "closed": counts.closed,
            "faults": tally.faults,
            "seconds": seconds,
        }),
    )?;
    // Every client received every message once, in order, on its first connection.
    let holds = tally.faults.is_none()
        && counts.closed == 0
        && tally.complete == clients
        && counts.publications == expected;
    Ok(if holds { ExitStatus::Passed } else { ExitStatus::Failed })
}

/// Returns the initial file. Keys and tokens are not required, so that changing them ends no session.
fn configuration() -> String {
    "[client]\nanonymous = true\n[api]\nwithout_key = true\n[channel.namespaces.count]\n\
     history_size = 1000\nhistory_ttl_ms = 600000\nallow_subscribe_for_anonymous = true\n"
        .into()
}

/// Publishes until the changes are over.
fn publish(options: &ConfigBench, over: &AtomicBool) -> Result<u32, Error> {
    let url = options.target.address()?;
    let publishing = options.target.publishing(&url, CHANNEL)?;
    let mut client = Client::connect(publishing.address)?;
    let began = Instant::now();
    let mut sequence = 0;
    while !over.load(Ordering::Acquire) || sequence < PUBLISHES_PER_S {
        let due = began + Duration::from_secs(1) / PUBLISHES_PER_S * sequence;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        sequence += 1;
        let body =
            format!("{{\"channel\":\"{CHANNEL}\",\"data\":{}}}", publishing.message(sequence));
        let (status, _) =
            client.call("POST", "/api/publish", "application/json", body.as_bytes())?;
        client.expect_success("POST", "/api/publish", status)?;
    }
    Ok(sequence)
}

#[derive(Debug, Default)]
struct Changes {
    made: u64,
    undos: u64,
    listeners: u64,
}

/// Makes the requested number of changes, a thousand a second at most.
fn change(options: &ConfigBench, made: &AtomicU64) -> Result<Changes, Error> {
    let mut client = options.dunlin.admin_client()?;
    let ports = free_ports()?;
    let mut random = Jitter::new(options.seed);
    let mut changes = Changes::default();
    let began = Instant::now();
    while changes.made < u64::from(options.changes) {
        let due = began + Duration::from_secs(1) * changes.made as u32 / CHANGES_PER_S;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let change = RandomChange::draw(&mut random, &ports, client.revision());
        let (status, _) =
            client.call(change.method, &change.target, change.kind, change.body.as_bytes())?;
        match status {
            200 | 201 => {}
            // The object to remove does not exist, or the revision is not kept any more.
            404 => continue,
            _ => client.expect_success(change.method, &change.target, status)?,
        }
        changes.made += 1;
        changes.undos += u64::from(change.method == "POST");
        changes.listeners += u64::from(change.target.starts_with("/config/listeners"));
        made.store(changes.made, Ordering::Relaxed);
    }
    Ok(changes)
}

/// Returns two free ports.
fn free_ports() -> Result<[u16; 2], Error> {
    let free = || -> Result<(TcpListener, u16), Error> {
        let sentence = "cannot find a free port";
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context(sentence)?;
        let port = listener.local_addr().context(sentence)?.port();
        Ok((listener, port))
    };
    let (one, other) = (free()?, free()?);
    Ok([one.1, other.1])
}

/// A change drawn at random.
struct RandomChange {
    method: &'static str,
    target: String,
    kind: &'static str,
    body: String,
}

impl RandomChange {
    fn draw(random: &mut Jitter, ports: &[u16; 2], revision: u64) -> RandomChange {
        const JSON: &str = "application/json";
        let object = random.below(OBJECTS);
        let change = |method, target: String, body: Value| RandomChange {
            method,
            target: format!("/config/{target}"),
            kind: JSON,
            body: if body.is_null() { String::new() } else { body.to_string() },
        };
        let put = |target: &str, body: Value| change("PUT", target.to_owned(), body);
        let delete = |target: &str| change("DELETE", target.to_owned(), Value::Null);
        let n = random.below(1 << 20);
        match random.below(20) {
            0 => put(
                &format!("channel/namespaces/n{object}"),
                json!({"presence": n.is_multiple_of(2), "history_size": n % 100 + 1, "history_ttl_ms": 60_000}),
            ),
            1 => delete(&format!("channel/namespaces/n{object}")),
            2 => put("client/ping_interval_ms", json!(10_000 + n % 50_000)),
            3 => put("limits/outbox_bytes_max", json!(1_000_000 + n)),
            4 => put("limits/channels_max", json!(100_000 + n)),
            5 => put("limits/head_bytes_max", json!(4_096 + n % 60_000)),
            6 => put("limits/broadcast_quantum", json!(16 + n % 512)),
            7 => put("channel/namespaces/count/presence", json!(n.is_multiple_of(2))),
            8 => put("channel/namespaces/count/history_size", json!(500 + n % 500)),
            9 => put("channel/namespaces/count/pacing/sessions_per_turn", json!(n % 256)),
            10 => put("client/allowed_origins", json!([format!("https://{n}.example")])),
            11 => put(
                &format!("api/keys/k{object}"),
                json!(format!("an API key of some length, {object}")),
            ),
            12 => delete(&format!("api/keys/k{object}")),
            13 => put(
                &format!("client/token/keys/k{object}"),
                json!(format!("a token key of some length, {n}")),
            ),
            14 => delete(&format!("client/token/keys/k{object}")),
            15 => put(
                &format!("webhooks/upstreams/u{object}"),
                json!({"members": {"a": {"address": format!("10.0.0.{}:80", n % 250 + 1)}}}),
            ),
            16 => {
                let port = ports[(n % 2) as usize];
                let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                put(&format!("listeners/l{port}"), json!({"addr": addr}))
            }
            17 => delete(&format!("listeners/l{}", ports[(n % 2) as usize])),
            18 => RandomChange {
                method: "PATCH",
                target: "/config".into(),
                kind: "application/json-patch+json",
                body: json!([
                    {"op": "add", "path": format!("/channel/namespaces/p{object}"), "value": {}},
                    {"op": "replace", "path": "/limits/history_messages_max", "value": 100 + n % 900},
                ])
                .to_string(),
            },
            _ => {
                // Among the last thousand revisions: only those are kept.
                let oldest = revision.saturating_sub(900).max(FIRST);
                let number = oldest + random.below(revision.saturating_sub(oldest).max(1));
                change("POST", format!("revisions/{number}/restore"), Value::Null)
            }
        }
    }
}
