//! Measures the cost of connecting and of receiving messages: connects and tokens, a deciding backend, unicast,
//! subscriptions, encodings, deltas, stored messages.

mod clients;
mod messages;

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::dunlin::Dunlin;
use crate::protocol::ProtocolName;
use crate::swarm::{Plan, Swarm};
use crate::target::Target;
use dunlin_load::figures::median;
use dunlin_load::url::duration;
use dunlin_load::{Clock, Context, Error, ExitStatus, Output, Process, Progress, Scratch, say};

/// Any client may subscribe to any channel, and budgets do not limit.
const SETTINGS: &str = "[client]\nanonymous = true\n[api]\nwithout_key = true\n\
    [limits]\nconnections_per_address_max = 0\n\
    [limits.client_budget]\ncommands_per_s = 0\nbytes_per_s = 0\ndeliveries_per_s = 0\n\
    [limits.anonymous_budget]\ncommands_per_s = 0\nbytes_per_s = 0\ndeliveries_per_s = 0\n\
    [channel.without_namespace]\nallow_subscribe_for_anonymous = true\nallow_subscribe_for_client = true\n";

const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of `dunlin bench front-door`.
#[derive(Debug, clap::Args)]
pub struct FrontDoor {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    dunlin: Dunlin,
    /// Only these measurements
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Measurement>,
    /// Clients that are connected
    #[arg(long, default_value_t = 10_000)]
    clients: usize,
    /// Time to publish messages in each round
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration)]
    time: Duration,
    /// Rounds of each measurement, a server each; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    output: Output,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Measurement {
    /// Publishes to one client at a time, over 64 connections of the API
    Unicast,
    /// The same, a hundred in a request
    UnicastBatch,
    /// Subscribing and unsubscribing
    Subscribe,
    /// Connects without a token
    Connect,
    /// Connects with a token by HS256
    ConnectHs256,
    /// Connects with a token by ES256, beside the bare verification
    ConnectEs256,
    /// Connects that a backend decides on, beside what the backend answers by itself
    ConnectProxy,
    /// Connects through a backend that answers after a second
    ConnectSlowProxy,
    /// Memory of an idle client: Protobuf, token, two subscriptions, presence in one that a hundred share
    Idle,
    /// The same with one channel with presence for each client
    IdleApart,
    /// Fan-out to as many in JSON as in Protobuf, beside one encoding
    Encodings,
    /// Documents of 1 KB of which 5 % change, as deltas and whole
    Delta,
    /// Memory of a message of 77 B in a history
    Stored,
}

/// The figures of a round.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Round {
    /// Operations a second.
    per_s: Option<f64>,
    /// Server CPU per operation, and the part of it in user space.
    cpu_us: Option<f64>,
    user_us: Option<f64>,
    /// CPU of the floor per operation: the same system calls with the same bytes, and nothing else.
    floor_us: Option<f64>,
    /// Bytes per item, of memory or on the wire.
    bytes: Option<f64>,
    /// Ratio to what the measurement is compared with.
    ratio: Option<f64>,
    /// The same ratio of the server's CPU.
    cpu_ratio: Option<f64>,
    /// Messages or clients that were lost.
    lost: u64,
}

pub(crate) fn run(options: &FrontDoor) -> Result<ExitStatus, Error> {
    options.target.settle()?;
    let all = <Measurement as clap::ValueEnum>::value_variants();
    let chosen = if options.only.is_empty() { all } else { &options.only[..] };
    let turns = chosen.len() as u64 * u64::from(options.rounds);
    let mut progress = Progress::new("front door: turns", turns);
    let (mut rows, mut lost, mut done) = (serde_json::Map::new(), 0, 0);
    for &measurement in chosen {
        let mut rounds = Vec::new();
        for _ in 0..options.rounds {
            let round = measure(options, measurement)
                .map_err(|error| Error::new(format!("{}: {error}", name(measurement))))?;
            lost += round.lost;
            rounds.push(round);
            done += 1;
            progress.set(done);
        }
        let row = row(&rounds);
        say(format!("{}: {row}", name(measurement)));
        rows.insert(name(measurement), row);
    }
    drop(progress);
    options.output.report(
        "front-door",
        &json!({
            "clients": options.clients,
            "rounds": options.rounds,
            "workers": options.dunlin.workers,
            "rows": rows,
        }),
    )?;
    Ok(if lost == 0 { ExitStatus::Passed } else { ExitStatus::Failed })
}

fn measure(options: &FrontDoor, measurement: Measurement) -> Result<Round, Error> {
    use Measurement::*;
    match measurement {
        Unicast => messages::unicast(options, 1),
        UnicastBatch => messages::unicast(options, 100),
        Encodings => messages::encodings(options),
        Delta => messages::delta(options),
        Stored => messages::stored(options),
        Subscribe => clients::subscribe(options),
        Connect => clients::connect(options),
        ConnectHs256 => clients::connect_hs256(options),
        ConnectEs256 => clients::connect_es256(options),
        ConnectProxy => clients::connect_proxy(options),
        ConnectSlowProxy => clients::connect_slow_proxy(options),
        Idle => clients::idle(options, 100),
        IdleApart => clients::idle(options, 1),
    }
}

/// Returns the name used by the command line and the report.
fn name(measurement: Measurement) -> String {
    serde_json::to_value(measurement)
        .ok()
        .and_then(|name| name.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Returns the median of each figure.
fn row(rounds: &[Round]) -> Value {
    let of = |figure: fn(&Round) -> Option<f64>| {
        median(&rounds.iter().filter_map(figure).collect::<Vec<_>>())
    };
    json!({
        "per_s": of(|round| round.per_s),
        "cpu_us": of(|round| round.cpu_us),
        "user_us": of(|round| round.user_us),
        "floor_us": of(|round| round.floor_us),
        "bytes": of(|round| round.bytes),
        "ratio": of(|round| round.ratio),
        "cpu_ratio": of(|round| round.cpu_ratio),
        "lost": rounds.iter().map(|round| round.lost).sum::<u64>(),
    })
}

/// Time and CPU time of a server at one moment.
#[derive(Debug, Clone, Copy)]
struct Cpu {
    all_ns: u64,
    user_ns: u64,
}

impl Cpu {
    fn of(server: &Process) -> Self {
        Self { all_ns: server.cpu_ns(), user_ns: server.user_ns() }
    }

    /// Returns microseconds of CPU per item since `since`, in total and in user space.
    fn each_us(since: Self, server: &Process, count: u64) -> (f64, f64) {
        let now = Self::of(server);
        let each = |now: u64, then: u64| (now - then) as f64 / 1e3 / count.max(1) as f64;
        (each(now.all_ns, since.all_ns), each(now.user_ns, since.user_ns))
    }
}

impl FrontDoor {
    /// Starts the server with the usual settings and `more`. Its files are removed once it runs.
    fn serve(&self, more: &str) -> Result<Process, Error> {
        let scratch = Scratch::temporary("front-door")?;
        let settings = format!("{SETTINGS}{more}");
        self.dunlin.start(&self.target, &scratch, "front-door", &settings, false)
    }

    /// Starts `dunlin bench floor` at the server's address.
    fn floor(&self, message_bytes: u16) -> Result<Process, Error> {
        let address = self.address()?;
        let program = &self.dunlin.program;
        let command =
            format!("{program} bench floor --listen {address} --message-bytes {message_bytes}");
        Process::start(&command, &self.target.server_core, address, None)
    }

    fn address(&self) -> Result<SocketAddr, Error> {
        Ok(self.target.address()?.address)
    }

    /// Returns a plan for clients with a channel each, or with a shared one.
    fn plan(&self, protocol: ProtocolName, channel: &str, clients: usize) -> Result<Plan, Error> {
        let target = &self.target;
        let mut plan = target.plan(&target.address()?, Some(channel), clients, Clock::new())?;
        plan.protocol.name = protocol;
        Ok(plan)
    }

    /// Starts this program's load generator with these requests.
    fn requests(&self, url: &str, body: &str, flags: &[&str]) -> Result<Child, Error> {
        let mut command = Command::new(&self.dunlin.program);
        command.args(["bench", "http", url, "--body", body, "--json"]).args(flags);
        command.args(["-H", "Content-Type: application/json"]);
        if !self.target.core.is_empty() {
            let cores: Vec<String> = self.target.core.iter().map(usize::to_string).collect();
            command.args(["--core", &cores.join(",")]);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().context(format!("cannot start {}", self.dunlin.program))
    }
}

/// Connects all clients. Returns also how many failed or were closed.
fn connected(plan: &Plan) -> Result<(Swarm, u64), Error> {
    let swarm = Swarm::start(plan)?;
    let counts = swarm.wait_ready(READY_TIMEOUT, |_| {})?;
    Ok((swarm, counts.failed + counts.closed))
}

/// Waits for a generator, which must exit successfully.
fn ended(mut child: Child) -> Result<(), Error> {
    let status = child.wait().context("cannot wait for the publisher")?;
    if status.success() { Ok(()) } else { Err(Error::new("not every request was answered well")) }
}
