//! Attacks with valid and invalid requests, and their effect on ordinary clients.
//!
//! Each attack has its own server, so that earlier attacks leave no traces. While it runs, ordinary clients receive
//! numbered messages by a [`Schedule`], `/health` is polled, and an untouched channel must keep its history.

mod attacks;
mod backend;
mod client;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use self::attacks::{ATTACKS, Attack};
use self::backend::{Backend, Victims};
use self::client::{AttackPlan, request};
use crate::dunlin::Dunlin;
use crate::schedule::{Arrivals, Schedule, Subscribers};
use crate::swarm::Faults;
use crate::target::Target;
use crate::token;
use dunlin_load::clock::{Percentiles, new_histogram};
use dunlin_load::url::duration;
use dunlin_load::{Clock, Error, ExitStatus, Output, Scratch, say};

const KEY: &str = "a-key-of-the-abuse-bench";
/// The channel of ordinary clients, to which anyone may publish.
const TALK: &str = "room:talk";
/// Channels that the attack does not touch, to check their histories: this, and a number.
const WITNESS: &str = "kept:witness";
const WITNESSES: usize = 50;
const WITNESS_MESSAGES: usize = 10;
/// The part of an attack's time after which another client does what it must be able to do.
const OTHER_AT: f64 = 0.8;
/// Duration of the baseline without an attack.
const CALM: Duration = Duration::from_secs(3);
/// Time from the first publish to the attack.
const LEAD: Duration = Duration::from_millis(500);
/// Time for memory to be released after an attack.
const REST: Duration = Duration::from_secs(10);
const ATTACKER_NICENESS: i32 = 19;
const HEALTH_EVERY: Duration = Duration::from_millis(100);
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
const MIB: u64 = 1 << 20;

/// Limits of a server under attack; all of them exist in every version that can be measured.
const SETTINGS: &str = r#"
[client]
anonymous = true
[api.keys]
bench = "a-key-of-the-abuse-bench"
[limits]
frame_bytes_max = 4_194_304
message_bytes_max = 4_194_304
history_bytes_max = 67_108_864
pending_bytes_max = 67_108_864
channels_max = 20_000
[channel.namespaces.room]
join_leave = true
allow_subscribe_for_anonymous = true
allow_publish_for_anonymous = true
allow_tags_filter = true
[channel.namespaces.kept]
history_size = 1_000
history_ttl_ms = 600_000
allow_subscribe_for_anonymous = true
allow_publish_for_anonymous = true
allow_history_for_anonymous = true
[channel.namespaces.other]
history_size = 1_000
history_ttl_ms = 600_000
recover = true
allow_subscribe_for_anonymous = true
allow_publish_for_anonymous = true
allow_history_for_anonymous = true
"#;
/// Settings of attacks on what a backend or an expression decides. `SECRET` and `BACKEND` are filled in.
const BACKEND_SETTINGS: &str = r#"
[client.token]
hmac_secret = "SECRET"
[client.proxy]
rpc = "slow"
[proxies.slow]
endpoint = "http://BACKEND/rpc"
connections_max = 64
[webhooks.upstreams.slow.members.a]
address = "BACKEND"
[webhooks.hooks.all]
upstream = "slow"
events = ["connect", "subscribe", "unsubscribe"]
queue_bytes_max = 262_144
batch_events_max = 10
[limits.client_budget]
commands_per_s = 20_000
[channel.namespaces.loop]
allow_subscribe_for_client = true
[channel.namespaces.ruled]
publish_cel = "'role999' in meta.roles"
"#;
/// The attacks that need them.
const WITH_BACKEND: [&str; 4] = ["meta", "calls", "events", "cursors"];
/// Settings of the attack on what acknowledgements take.
const ACK_SETTINGS: &str = r#"
[channel.namespaces.acked]
history_size = 10
history_ttl_ms = 600_000
recover = true
ack = "device"
ack_bytes_max = 65_536
allow_subscribe_for_client = true
allow_publish_for_client = true
"#;
/// Growth in memory that the settings allow: history, outboxes, and 192 MiB for input and output of all connections.
const MEMORY_BYTES_MAX: u64 = (64 + 64 + 192) * MIB;

/// Options of `dunlin bench abuse`.
#[derive(Debug, clap::Args)]
pub struct Abuse {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    dunlin: Dunlin,
    /// Attacks to run, by name; all by default
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    attack: Vec<String>,
    /// Ordinary clients
    #[arg(long, default_value_t = 1_000)]
    clients: usize,
    /// Messages a second to each of them
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// How long an attack lasts at most
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    time: Duration,
    /// Size of the attacks: 1 is what brought servers down
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Another build of the program, attacked in the same way for comparison
    #[arg(long, value_name = "PROGRAM")]
    beside: Option<String>,
    /// What it is called on the page
    #[arg(long, value_name = "TEXT", default_value = "before")]
    beside_label: String,
    /// Judge what holds on any machine: not latency, nor what memory is left afterwards
    #[arg(long)]
    short: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct AbuseReport {
    clients: usize,
    rate: u32,
    scale: f64,
    workers: u8,
    memory_bytes_max: u64,
    beside: Option<String>,
    rows: Vec<Row>,
}

/// One attack, and its effect on other clients.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    what: &'static str,
    /// How much the server accepted, in the attack's own unit.
    done: u64,
    closed: u64,
    delivered: u64,
    expected: u64,
    complete: u64,
    faults: Faults,
    /// Latency of ordinary messages, without the attack and beside it.
    calm_p99_us: f64,
    p99_us: f64,
    max_us: f64,
    before_bytes: u64,
    peak_bytes: u64,
    /// Ten seconds after the attack; `None` in a short run.
    after_bytes: Option<u64>,
    /// Bytes that the server keeps on purpose: histories, within their bound.
    kept_bytes: Option<u64>,
    health: Health,
    /// History and epoch of an untouched channel did not change.
    history_kept: bool,
    /// Clients that depend on what the attack takes beside messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    victims: Option<Victims>,
    /// Why ordinary clients could not be served at all.
    failure: Option<String>,
    /// Why another client could not do what it wanted meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_failure: Option<String>,
    /// Why the attack was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<String>,
    holds: bool,
    /// Whether latency and memory meet their targets too.
    meets: bool,
    /// The same attack on the other build.
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<Box<Row>>,
}

pub(crate) fn run(options: &Abuse) -> Result<ExitStatus, Error> {
    options.target.settle()?;
    let known = |name: &String| ATTACKS.iter().any(|attack| attack.name == name);
    if let Some(unknown) = options.attack.iter().find(|name| !known(name)) {
        let names: Vec<_> = ATTACKS.iter().map(|attack| attack.name).collect();
        return Err(Error::new(format!(
            "--attack {unknown} is unknown; known attacks: {}",
            names.join(", ")
        )));
    }
    let wanted = |attack: &&Attack| {
        options.attack.is_empty() || options.attack.iter().any(|name| *name == attack.name)
    };
    let mut rows = Vec::new();
    for attack in ATTACKS.iter().filter(wanted) {
        let mut row = one(options, &options.dunlin, attack)?;
        row.print();
        if let Some(program) = &options.beside {
            let dunlin = Dunlin { program: program.clone(), ..options.dunlin.clone() };
            let beside = one(options, &dunlin, attack)?;
            say(&options.beside_label);
            beside.print();
            row.beside = Some(Box::new(beside));
        }
        rows.push(row);
    }
    let passed = rows.iter().all(|row| if options.short { row.holds } else { row.meets });
    let report = AbuseReport {
        clients: options.clients,
        rate: options.rate,
        scale: options.scale,
        workers: options.dunlin.workers,
        memory_bytes_max: MEMORY_BYTES_MAX,
        beside: options.beside.as_ref().map(|_| options.beside_label.clone()),
        rows,
    };
    options.output.report("abuse", &report)?;
    Ok(if passed { ExitStatus::Passed } else { ExitStatus::Failed })
}

fn one(options: &Abuse, dunlin: &Dunlin, attack: &Attack) -> Result<Row, Error> {
    let scratch = Scratch::temporary("abuse")?;
    let target = Target { api_key: Some(KEY.to_owned()), ..options.target.clone() };
    let backend = Backend::start()?;
    let mut settings = settings(attack);
    if WITH_BACKEND.contains(&attack.name) {
        let more = BACKEND_SETTINGS.replace("BACKEND", &backend.address.to_string());
        settings.push_str(&more.replace("SECRET", token::SECRET));
    }
    if attack.name == "cursors" {
        settings.push_str(ACK_SETTINGS);
    }
    let server = dunlin.start(&target, &scratch, "abuse", &settings, false)?;
    let plan = AttackPlan {
        client: target.address()?.address,
        admin: options.dunlin.admin,
        key: KEY,
        scale: options.scale,
        until: Instant::now(),
    };
    let witness = witness(&plan)?;
    let calm = if options.short { LEAD } else { CALM };
    let calm = subscribers(options, &target, calm)?.publish()?.finish()?;

    let calm_victims = attack.takes.map(|service| {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let victims = scope.spawn(|| service.victims(&plan, &backend, &over));
            std::thread::sleep(if options.short { LEAD } else { CALM });
            over.store(true, Ordering::Relaxed);
            victims.join()
        })
    });
    let ordinary = subscribers(options, &target, LEAD + options.time + LEAD)?;
    let (before_bytes, _) = server.resident_bytes();
    let plan = AttackPlan { until: Instant::now() + LEAD + options.time, ..plan };
    let over = AtomicBool::new(false);
    let (arrivals, done, other, health, beside) = std::thread::scope(|scope| {
        let health = scope.spawn(|| health(&plan, &over));
        let victims = attack.takes.map(|service| {
            let (plan, backend, over) = (&plan, &backend, &over);
            scope.spawn(move || service.victims(plan, backend, over))
        });
        let attacker = scope.spawn(|| {
            // Real attackers have machines of their own: here they run at low priority beside server and clients.
            let _ = rustix::process::setpriority_process(None, ATTACKER_NICENESS);
            std::thread::sleep(LEAD);
            (attack.run)(&plan)
        });
        let other = scope.spawn(|| {
            std::thread::sleep(LEAD + options.time.mul_f64(OTHER_AT));
            let other = (attack.other)(&plan);
            // In a short run the server has not published all figures yet.
            let effect = attack.effect.filter(|_| !options.short);
            (other, effect.and_then(|effect| without_effect(dunlin, options.scale, effect)))
        });
        let arrivals = ordinary.publish().and_then(|published| published.finish());
        let (done, other) = (attacker.join(), other.join());
        over.store(true, Ordering::Relaxed);
        (arrivals, done, other, health.join(), victims.map(|victims| victims.join()))
    });
    let panicked = |_| Error::new("a thread of the attack panicked");
    let (done, health) = (done.map_err(panicked)?, health.map_err(panicked)?);
    let (other, idle) = other.map_err(panicked)?;
    let victims = match (calm_victims, beside) {
        (Some(calm), Some(beside)) => {
            let (_, _, calm_p99_us) = calm.map_err(panicked)?;
            let (asked, served, p99_us) = beside.map_err(panicked)?;
            Some(Victims { asked, served, calm_p99_us, p99_us })
        }
        _ => None,
    };
    let (_, peak_bytes) = server.resident_bytes();
    let after_bytes = (!options.short).then(|| {
        std::thread::sleep(REST);
        server.resident_bytes().0
    });
    let kept_bytes = after_bytes.and_then(|_| kept_bytes(dunlin).ok());
    let failure = arrivals.as_ref().err().map(ToString::to_string);
    let arrivals = arrivals.unwrap_or_else(|_| Arrivals {
        delivered: 0,
        complete: 0,
        latency_us: Percentiles::of(&new_histogram()),
        ..calm.clone()
    });
    let mut row = Row {
        name: attack.name,
        what: attack.what,
        done,
        closed: arrivals.closed,
        delivered: arrivals.delivered,
        expected: arrivals.expected,
        complete: arrivals.complete,
        faults: arrivals.faults,
        calm_p99_us: calm.latency_us.p99,
        p99_us: arrivals.latency_us.p99,
        max_us: arrivals.latency_us.max,
        before_bytes,
        peak_bytes,
        after_bytes,
        kept_bytes,
        health,
        history_kept: history(&plan).is_ok_and(|now| now == witness),
        holds: failure.is_none() && arrivals.is_clean(),
        victims,
        failure,
        other_failure: other.err().map(|why| why.to_string()),
        idle,
        meets: false,
        beside: None,
    };
    row.holds &= row.health.failed == 0
        && row.health.asked > 0
        && row.other_failure.is_none()
        && row.idle.is_none()
        && row.history_kept
        && row.peak_bytes <= (before_bytes + MEMORY_BYTES_MAX) / 10 * 11;
    row.holds &= row.victims.as_ref().is_none_or(|victims| victims.served == victims.asked);
    row.meets = row.holds
        && row.victims.as_ref().is_none_or(|of| is_alike(of.p99_us, of.calm_p99_us))
        && is_alike(row.p99_us, row.calm_p99_us)
        && after_bytes.is_some_and(|after| {
            after.saturating_sub(kept_bytes.unwrap_or(0)) <= before_bytes / 10 * 12
        });
    Ok(row)
}

/// Whether a p99 is at most twice that without the attack, or 2 ms more.
fn is_alike(p99_us: f64, calm_p99_us: f64) -> bool {
    p99_us <= (2.0 * calm_p99_us).max(calm_p99_us + 2_000.0)
}

/// Returns the bytes of the server's histories.
fn kept_bytes(dunlin: &Dunlin) -> Result<u64, Error> {
    metric(dunlin, "dunlin_history_bytes")
}

/// Returns why an attack of this scale had no effect on a metric, if it has not the least that the attack causes.
fn without_effect(dunlin: &Dunlin, scale: f64, (name, least): (&str, u64)) -> Option<String> {
    let least = (least as f64 * scale.min(1.0)).max(1.0) as u64;
    match metric(dunlin, name) {
        Ok(value) if value >= least => None,
        Ok(value) => Some(format!("the attack was none: {name} is {value}, not {least} or more")),
        Err(error) => Some(format!("{name} cannot be read: {error}")),
    }
}

/// Returns the sum of a metric of the server, over workers.
fn metric(dunlin: &Dunlin, name: &str) -> Result<u64, Error> {
    let mut admin = dunlin.admin_client()?;
    admin.call("GET", "/metrics", "", b"")?;
    let metrics = String::from_utf8_lossy(admin.body());
    let samples = metrics
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    Ok(samples.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
}

fn subscribers(options: &Abuse, target: &Target, time: Duration) -> Result<Subscribers, Error> {
    let url = target.address()?;
    let mut plan = target.plan(&url, Some(TALK), options.clients, Clock::new())?;
    plan.protocol.join_leave = true;
    let schedule = Schedule::new(options.rate, Duration::ZERO, time);
    Subscribers::connect(plan, target.publishing(&url, TALK)?, schedule)
}

/// The settings of the server for an attack.
fn settings(attack: &Attack) -> String {
    let keys: Vec<_> = attack.limits.lines().filter_map(|line| line.split_once(" =")).collect();
    let replaced = |line: &&str| {
        keys.iter().any(|(key, _)| line.split_once(" =").is_some_and(|(of, _)| of == *key))
    };
    let kept: Vec<_> = SETTINGS.lines().filter(|line| !replaced(line)).collect();
    kept.join("\n").replacen("[limits]", &format!("[limits]\n{}", attack.limits), 1)
}

/// Publishes the messages that must still be stored at the end, and returns the histories.
fn witness(plan: &AttackPlan) -> Result<String, Error> {
    let channels: Vec<_> = (0..WITNESSES).map(|at| format!("\"{WITNESS}{at}\"")).collect();
    for number in 0..WITNESS_MESSAGES {
        let body = format!(r#"{{"channels":[{}],"data":{{"kept":{number}}}}}"#, channels.join(","));
        request(plan, "/api/broadcast", &body)?;
    }
    history(plan)
}

fn history(plan: &AttackPlan) -> Result<String, Error> {
    let ask = |at| format!(r#"{{"history":{{"channel":"{WITNESS}{at}","limit":100}}}}"#);
    let commands: Vec<_> = (0..WITNESSES).map(ask).collect();
    let answer =
        request(plan, "/api/batch", &format!(r#"{{"commands":[{}]}}"#, commands.join(",")))?;
    match answer.matches("\"kept\":").count() {
        count if count == WITNESSES * WITNESS_MESSAGES => Ok(answer),
        count => Err(Error::new(format!("the histories have {count} messages: {answer}"))),
    }
}

/// Results of polling `/health` during an attack.
#[derive(Debug, Default, Serialize)]
struct Health {
    asked: u64,
    failed: u64,
    longest_ms: f64,
}

fn health(plan: &AttackPlan, over: &AtomicBool) -> Health {
    let mut health = Health::default();
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let answered = client::get(plan.admin, "/health", HEALTH_TIMEOUT);
        health.asked += 1;
        health.failed +=
            u64::from(!answered.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")));
        health.longest_ms = health.longest_ms.max(began.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(HEALTH_EVERY);
    }
    health
}

impl Row {
    fn print(&self) {
        let mib = |bytes: u64| bytes / MIB;
        say(format!(
            "{:<18} {} {}: {} done; {} of {} messages, {} clients closed; p99 {:.0} → {:.0} us, longest {:.0}; \
             {} → {} MiB, then {} of which {} are kept; /health {} of {} failed, longest {:.0} ms; history {}{}",
            self.name,
            if self.meets {
                "meets"
            } else if self.holds {
                "holds"
            } else {
                "FAILS"
            },
            self.what,
            self.done,
            self.delivered,
            self.expected,
            self.closed,
            self.calm_p99_us,
            self.p99_us,
            self.max_us,
            mib(self.before_bytes),
            mib(self.peak_bytes),
            self.after_bytes.map_or("?".into(), |bytes| mib(bytes).to_string()),
            self.kept_bytes.map_or("?".into(), |bytes| mib(bytes).to_string()),
            self.health.failed,
            self.health.asked,
            self.health.longest_ms,
            if self.history_kept { "kept" } else { "LOST" },
            [&self.failure, &self.other_failure, &self.idle]
                .into_iter()
                .flatten()
                .map(|why| format!("; {why}"))
                .collect::<String>(),
        ));
        let Some(victims) = &self.victims else { return };
        say(format!(
            "{:<18} {} of {} others served; p99 {:.0} → {:.0} us",
            "", victims.served, victims.asked, victims.calm_p99_us, victims.p99_us
        ));
    }
}
