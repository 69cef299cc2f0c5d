//! `dunlin bench config --table count`: clients that count their messages while everything is changed under them.
//!
//! Each client checks that every number and every offset arrives once and in order, and that nobody closes its
//! connection. Meanwhile one caller makes valid changes drawn at random, of every kind of object there is, and goes back to
//! revisions drawn at random. What it did follows from the seed alone.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use super::ConfigBench;
use crate::swarm::{Faults, Swarm};
use dunlin_load::client::Client;
use dunlin_load::{Clock, Context, Error, ExitStatus, Progress, Scratch, say};

/// The channel that is counted in; its history gives each message an offset.
const CHANNEL: &str = "count:all";
const CHANGES_PER_S: u32 = 1_000;
const PUBLISHES_PER_S: u32 = 20;
/// How long to wait for what is on its way when the last change is made.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How many objects of a kind come and go.
const OBJECTS: u64 = 50;
/// The first revision that may be gone back to: the file's own.
const FIRST: u64 = 1;

/// What clients counted.
#[derive(Debug, Serialize)]
pub(crate) struct Counted {
    pub(crate) clients: usize,
    pub(crate) seed: u64,
    /// Changes that were made, those below included.
    pub(crate) changes: u64,
    /// Of them, goings back to an earlier revision.
    pub(crate) undos: u64,
    /// Listeners that were opened, and closed again.
    pub(crate) listeners: u64,
    /// Messages published.
    pub(crate) publications: u32,
    /// Messages that arrived, all clients together.
    pub(crate) arrived: u64,
    /// Clients that were connected at the end and had every message.
    pub(crate) complete: u64,
    /// Connections that ended.
    pub(crate) closed: u64,
    pub(crate) faults: Faults,
    pub(crate) seconds: f64,
}

impl Counted {
    /// Whether every client had every message once, in order, on the connection it began with.
    pub(crate) fn holds(&self) -> bool {
        self.faults.is_none()
            && self.closed == 0
            && self.complete == self.clients as u64
            && self.arrived == self.clients as u64 * u64::from(self.publications)
    }
}

pub(super) fn run(options: &ConfigBench) -> Result<ExitStatus, Error> {
    let directory = Scratch::below(&options.state, "bench-config")?;
    let server =
        options.dunlin.start(&options.target, &directory, "count", &configuration(), true)?;
    let target = &options.target;
    let url = target.address()?;
    let mut plan = target.plan(&url, Some(CHANNEL), options.clients, Clock::new())?;
    // Nothing is timed: they may run where there is room.
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
    let counted = Counted {
        clients: options.clients,
        seed: options.seed,
        changes: changes.made,
        undos: changes.undos,
        listeners: changes.listeners,
        publications,
        arrived: tally.counts.publications,
        complete: tally.complete,
        closed: tally.counts.closed,
        faults: tally.faults,
        seconds,
    };
    say(format!(
        "{} changes, {} of them undos, in {seconds:.1} s: {} of {expected} messages arrived, {} of {} clients have \
         all, {} connections ended",
        counted.changes,
        counted.undos,
        counted.arrived,
        counted.complete,
        counted.clients,
        counted.closed
    ));
    for (reason, count) in &tally.reasons {
        say(format!("  {count} × {reason}"));
    }
    options.output.report("config-count", &counted)?;
    Ok(if counted.holds() { ExitStatus::Passed } else { ExitStatus::Failed })
}

/// The file the server begins with. Nobody needs a key or a token, so that one that comes and goes ends no session.
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

/// Makes as many changes as asked for, a thousand a second at most.
fn change(options: &ConfigBench, made: &AtomicU64) -> Result<Changes, Error> {
    let mut client = options.dunlin.admin_client()?;
    let ports = free_ports()?;
    let mut random = Random(options.seed | 1);
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
            // What was drawn to be taken away is not there, or its revision is not kept any more.
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

/// Two ports that nobody listens on.
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
    fn draw(random: &mut Random, ports: &[u16; 2], revision: u64) -> RandomChange {
        const JSON: &str = "application/json";
        let object = random.below(OBJECTS);
        let put =
            |target: String, body: String| RandomChange { method: "PUT", target, kind: JSON, body };
        let delete = |target: String| RandomChange {
            method: "DELETE",
            target,
            kind: JSON,
            body: String::new(),
        };
        let n = random.below(1 << 20);
        match random.below(20) {
            0 => put(
                format!("/config/channel/namespaces/n{object}"),
                json!({"presence": n.is_multiple_of(2), "history_size": n % 100 + 1, "history_ttl_ms": 60_000})
                    .to_string(),
            ),
            1 => delete(format!("/config/channel/namespaces/n{object}")),
            2 => put("/config/client/ping_interval_ms".into(), (10_000 + n % 50_000).to_string()),
            3 => put("/config/limits/outbox_bytes_max".into(), (1_000_000 + n).to_string()),
            4 => put("/config/limits/channels_max".into(), (100_000 + n).to_string()),
            5 => put("/config/limits/head_bytes_max".into(), (4_096 + n % 60_000).to_string()),
            6 => put("/config/limits/broadcast_quantum".into(), (16 + n % 512).to_string()),
            7 => put("/config/channel/namespaces/count/presence".into(), n.is_multiple_of(2).to_string()),
            8 => put(
                "/config/channel/namespaces/count/history_size".into(),
                (500 + n % 500).to_string(),
            ),
            9 => put(
                "/config/channel/namespaces/count/pacing/sessions_per_turn".into(),
                (n % 256).to_string(),
            ),
            10 => put(
                "/config/client/allowed_origins".into(),
                json!([format!("https://{n}.example")]).to_string(),
            ),
            11 => put(
                format!("/config/api/keys/k{object}"),
                json!(format!("an API key of some length, {object}")).to_string(),
            ),
            12 => delete(format!("/config/api/keys/k{object}")),
            13 => put(
                format!("/config/client/token/keys/k{object}"),
                json!(format!("a token key of some length, {n}")).to_string(),
            ),
            14 => delete(format!("/config/client/token/keys/k{object}")),
            15 => put(
                format!("/config/webhooks/upstreams/u{object}"),
                json!({"members": {"a": {"address": format!("10.0.0.{}:80", n % 250 + 1)}}})
                    .to_string(),
            ),
            16 => {
                let port = ports[(n % 2) as usize];
                let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                put(format!("/config/listeners/l{port}"), json!({"addr": addr}).to_string())
            }
            17 => delete(format!("/config/listeners/l{}", ports[(n % 2) as usize])),
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
                // Of the last thousand: as many as are kept.
                let oldest = revision.saturating_sub(900).max(FIRST);
                let number = oldest + random.below(revision.saturating_sub(oldest).max(1));
                RandomChange {
                    method: "POST",
                    target: format!("/config/revisions/{number}/restore"),
                    kind: JSON,
                    body: String::new(),
                }
            }
        }
    }
}

/// Numbers that follow from the first one (xorshift*).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_change_is_drawn_and_the_seed_says_which() {
        let drawn = |seed| {
            let mut random = Random(seed);
            (0..400)
                .map(|_| {
                    let change = RandomChange::draw(&mut random, &[7, 8], 2_000);
                    (change.method, change.target, change.body)
                })
                .collect::<Vec<_>>()
        };
        let first = drawn(7);
        assert_eq!(first, drawn(7));
        assert_ne!(first, drawn(9));
        for method in ["PUT", "DELETE", "PATCH", "POST"] {
            assert!(first.iter().any(|(of, ..)| *of == method), "{method}");
        }
        for part in
            ["/listeners/", "/token/keys/", "/api/keys/", "/upstreams/", "/limits/", "/restore"]
        {
            assert!(first.iter().any(|(_, target, _)| target.contains(part)), "{part}");
        }
    }

    #[test]
    fn one_message_less_or_one_connection_less_and_it_does_not_hold() {
        let whole = || Counted {
            clients: 2,
            seed: 1,
            changes: 10,
            undos: 1,
            listeners: 1,
            publications: 3,
            arrived: 6,
            complete: 2,
            closed: 0,
            faults: Faults::default(),
            seconds: 1.0,
        };
        assert!(whole().holds());
        assert!(!Counted { arrived: 5, ..whole() }.holds());
        assert!(!Counted { complete: 1, ..whole() }.holds());
        assert!(!Counted { closed: 1, ..whole() }.holds());
        let faults = Faults { duplicated: 1, ..Faults::default() };
        assert!(!Counted { faults, ..whole() }.holds());
    }
}
