//! Repeated fan-out of one message to many subscribers: messages a second and CPU per message, compared with the floor and peers.
//!
//! Contenders take turns, and each has the machine to itself while it is measured: in every round each one is
//! started, gets its subscribers and the same work, and is stopped before the next begins. So no contender's sockets
//! affect the layout of kernel memory for another, and none benefits from connecting first. The order rotates by one
//! each round. A contender's ratio to the floor is computed within each round; the report has the median.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::peer::{Peer, PeerName};
use crate::protocol::{Protocol, ProtocolName};
use crate::publisher::{Publishing, Template};
use crate::swarm::{Counts, Faults, Ping, Plan, Swarm, Tally};
use crate::target::Target;
use dunlin_load::figures::median;
use dunlin_load::process::KernelMemory;
use dunlin_load::{Clock, Error, ExitStatus, Output, Process, Progress, Scratch, say};

/// How messages are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One publish at a time: the next leaves when the last was answered
    One,
    /// Many publishes in one request
    Batch,
}

/// Options of `dunlin bench fanout`.
#[derive(Debug, clap::Args)]
pub struct Fanout {
    #[command(flatten)]
    target: Target,
    /// Subscribers of one channel, on each server
    #[arg(long, default_value_t = 10_000)]
    subscribers: usize,
    /// Messages each round, on each server
    #[arg(long, default_value_t = 100)]
    publishes: u32,
    /// How to publish
    #[arg(long, value_enum, default_value_t = Mode::One)]
    mode: Mode,
    /// Messages in a batch
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=1000))]
    batch: u32,
    /// Rounds; every server once a round
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Bytes of each message as the subscriber's protocol frames it
    #[arg(long, default_value_t = 109)]
    message_bytes: usize,
    /// Measure the floor of this kernel in the same run
    #[arg(long)]
    floor: bool,
    /// Measure a peer in the same run; may be repeated
    #[arg(long, value_enum)]
    peer: Vec<PeerName>,
    /// Measure only the floor and the peers, not the server at --url
    #[arg(long)]
    without_target: bool,
    /// Name of the server at --url in the report
    #[arg(long, default_value = "dunlin")]
    name: String,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Round {
    messages: u64,
    seconds: f64,
    messages_per_s: f64,
    cpu_us_per_message: Option<f64>,
}

pub(crate) fn run(options: &Fanout) -> Result<ExitStatus, Error> {
    options.target.settle()?;
    let clock = Clock::new();
    let scratch = Scratch::temporary("bench")?;
    let mut candidates = Vec::new();
    if options.floor {
        candidates.push(Candidate::new(Source::Floor, "floor".to_owned()));
    }
    for &name in &options.peer {
        let peer = crate::peer::peer(name, &scratch)?;
        let mut candidate = Candidate::new(Source::Peer(name), peer.name.to_owned());
        candidate.version = peer.version;
        candidates.push(candidate);
    }
    if !options.without_target {
        candidates.push(Candidate::new(Source::Target, options.name.clone()));
    }
    if candidates.is_empty() {
        return Err(Error::new("nothing to measure: --without-target needs --floor or --peer"));
    }

    let turns = u64::from(options.rounds) * candidates.len() as u64;
    let mut progress = Progress::new("fan-out: turns", turns);
    let mut done = 0;
    let mut all_arrived = true;
    for round in 0..options.rounds as usize {
        for place in 0..candidates.len() {
            let next = (round + place) % candidates.len();
            all_arrived &= candidates[next].turn(options, &scratch, clock)?;
            done += 1;
            progress.set(done);
        }
    }
    drop(progress);

    let floor_rounds: Option<Vec<Round>> = candidates
        .iter()
        .find(|candidate| matches!(candidate.source, Source::Floor))
        .map(|floor| floor.rounds.clone());
    let clean = all_arrived
        && candidates.iter().all(|candidate| candidate.faults.is_none() && candidate.closed == 0);
    let finish = |candidate: Candidate| candidate.finish(floor_rounds.as_deref());
    options.output.report(
        "fanout",
        &json!({
            "mode": options.mode,
            "subscribers": options.subscribers,
            "publishes_per_round": options.publishes,
            "batch": (options.mode == Mode::Batch).then_some(options.batch),
            "rounds": options.rounds,
            "contenders": candidates.into_iter().map(finish).collect::<Vec<_>>(),
        }),
    )?;
    Ok(if clean { ExitStatus::Passed } else { ExitStatus::Failed })
}

/// The kind of server that takes part.
#[derive(Debug, Clone, Copy)]
enum Source {
    Floor,
    Peer(PeerName),
    Target,
}

/// A server that takes part, with its results so far.
#[derive(Debug)]
struct Candidate {
    source: Source,
    name: String,
    version: Option<String>,
    rounds: Vec<Round>,
    user_bytes_per_connection: Vec<f64>,
    kernel_bytes_per_pair: Vec<f64>,
    message_bytes: f64,
    /// Over all turns, the fewest clients that had received every message once.
    complete: u64,
    subscribers: usize,
    faults: Faults,
    closed: u64,
}

impl Candidate {
    fn new(source: Source, name: String) -> Self {
        Self {
            source,
            name,
            version: None,
            rounds: Vec::new(),
            user_bytes_per_connection: Vec::new(),
            kernel_bytes_per_pair: Vec::new(),
            message_bytes: 0.0,
            complete: u64::MAX,
            subscribers: 0,
            faults: Faults::default(),
            closed: 0,
        }
    }

    /// Starts the server, connects its subscribers, measures a round, and stops it. Returns false if messages are missing.
    fn turn(&mut self, options: &Fanout, scratch: &Scratch, clock: Clock) -> Result<bool, Error> {
        let peer = match self.source {
            Source::Floor => Some(crate::peer::floor(options.message_bytes)?),
            Source::Peer(name) => Some(crate::peer::peer(name, scratch)?),
            Source::Target => None,
        };
        if self.rounds.is_empty() {
            let command = peer.as_ref().map(|peer| &peer.command).or(options.target.cmd.as_ref());
            say(format!("{}: {}", self.name, command.unwrap_or(&options.target.url)));
        }
        let mut contender = match peer {
            Some(peer) => Contender::start_peer(peer, options, clock)?,
            None => Contender::start_target(options, clock)?,
        };
        contender.calibrate(options.message_bytes)?;
        // The first messages on a connection allocate socket memory that later ones reuse.
        let (_, warm) = contender.round(options, WARM_UP.min(options.publishes), clock)?;
        let (round, arrived) = contender.round(options, options.publishes, clock)?;
        self.rounds.push(round);
        let end = contender.finish()?;
        self.user_bytes_per_connection
            .extend(end.user_bytes_per_connection.map(|bytes| bytes as f64));
        self.kernel_bytes_per_pair.push(end.kernel_bytes_per_pair as f64);
        self.message_bytes = end.message_bytes;
        self.complete = self.complete.min(end.tally.complete);
        self.subscribers = end.subscribers;
        self.faults.add(end.tally.faults);
        self.closed += end.tally.counts.closed;
        // Memory that the kernel frees after the close must not count in the next turn.
        std::thread::sleep(BETWEEN_TURNS);
        Ok(warm && arrived)
    }

    fn finish(self, floor: Option<&[Round]>) -> Value {
        let rate = |round: &Round| Some(round.messages_per_s);
        let cpu = |round: &Round| round.cpu_us_per_message;
        let to_floor = |value: &dyn Fn(&Round) -> Option<f64>| {
            let ratios: Option<Vec<f64>> = self
                .rounds
                .iter()
                .zip(floor?)
                .map(|(round, floor)| Some(value(round)? / value(floor)?))
                .collect();
            median(&ratios?)
        };
        json!({
            "name": self.name,
            // As a peer reports it.
            "version": self.version,
            "messages_per_s": median(&self.rounds.iter().filter_map(rate).collect::<Vec<_>>()),
            "cpu_us_per_message": median(&self.rounds.iter().filter_map(cpu).collect::<Vec<_>>()),
            "rate_to_floor": to_floor(&rate),
            "cpu_to_floor": to_floor(&cpu),
            // Payload bytes of a message as received: a WebSocket frame's payload, a line, a packet's body.
            "message_bytes": self.message_bytes,
            "user_bytes_per_connection":
                median(&self.user_bytes_per_connection).map(|bytes| bytes as i64),
            "kernel_bytes_per_pair": median(&self.kernel_bytes_per_pair).unwrap_or(0.0) as i64,
            // Clients that had received every message once at the end.
            "complete": self.complete,
            "subscribers": self.subscribers,
            "faults": self.faults,
            "closed": self.closed,
            "rounds": self.rounds,
        })
    }
}

/// Messages before the measured ones.
const WARM_UP: u32 = 10;
const BETWEEN_TURNS: Duration = Duration::from_secs(1);

/// The result of a turn.
#[derive(Debug)]
struct TurnResult {
    message_bytes: f64,
    user_bytes_per_connection: Option<i64>,
    kernel_bytes_per_pair: i64,
    subscribers: usize,
    tally: Tally,
}

/// One server with its subscribers.
#[derive(Debug)]
struct Contender {
    name: String,
    process: Option<Process>,
    swarm: Swarm,
    publishing: Publishing,
    /// Whether the server adds its own number to each message.
    numbers: bool,
    sequence: u32,
    user_bytes_per_connection: Option<i64>,
    kernel_bytes_per_pair: i64,
    /// Publications and their bytes before the rounds: the probes.
    before: Counts,
}

impl Contender {
    fn start_peer(peer: Peer, options: &Fanout, clock: Clock) -> Result<Self, Error> {
        let process =
            Process::start(&peer.command, &options.target.server_core, peer.address, None)?;
        let plan = Self::plan(options, peer.protocol, peer.address, clock)?;
        Self::start(peer.name.to_owned(), Some(process), &plan, peer.publishing)
    }

    fn start_target(options: &Fanout, clock: Clock) -> Result<Self, Error> {
        let target = &options.target;
        let url = target.address()?;
        let process = target.process(url.address)?;
        let channel = target.channel.as_deref().unwrap_or("c");
        let plan = target.plan(&url, Some(channel), options.subscribers, clock)?;
        Self::start(options.name.clone(), process, &plan, target.publishing(&url, channel)?)
    }

    fn plan(
        options: &Fanout,
        protocol: Protocol,
        server: std::net::SocketAddr,
        clock: Clock,
    ) -> Result<Plan, Error> {
        Ok(Plan {
            server,
            protocol,
            connections: options.subscribers,
            tls: None,
            threads: options.target.threads,
            cores: options.target.core.clone(),
            connects_per_second: options.target.connect_rate,
            opening_max: options.target.opening,
            sources: crate::target::sources(options.target.sources.as_deref(), server)?,
            ping: Ping::Answer,
            departures: None,
            clock,
        })
    }

    fn start(
        name: String,
        process: Option<Process>,
        plan: &Plan,
        publishing: Publishing,
    ) -> Result<Self, Error> {
        let (before, kernel_before) = (process.as_ref().map(Process::sample), KernelMemory::now());
        let swarm = Swarm::start(plan)?;
        let mut progress = Progress::new(format!("{name}: connections"), plan.connections as u64);
        let counts =
            swarm.wait_ready(Duration::from_secs(60), |counts| progress.set(counts.ready))?;
        drop(progress);
        if counts.failed > 0 {
            return Err(Error::new(format!("{name}: {} connections failed", counts.failed)));
        }
        // Lets the server free what it needed for the connects.
        std::thread::sleep(Duration::from_millis(1500));
        let after = process.as_ref().map(Process::sample);
        let user = before
            .zip(after)
            .map(|(before, after)| after.pss_bytes as i64 - before.pss_bytes as i64);
        let kernel = KernelMemory::now().slab_bytes as i64 - kernel_before.slab_bytes as i64;
        let connections = plan.connections as i64;
        Ok(Self {
            name,
            process,
            swarm,
            publishing,
            numbers: matches!(
                plan.protocol.name,
                ProtocolName::Centrifuge | ProtocolName::Sse | ProtocolName::HttpStream
            ),
            sequence: 0,
            user_bytes_per_connection: user.map(|bytes| bytes / connections),
            kernel_bytes_per_pair: kernel / connections,
            before: counts,
        })
    }

    /// Publishes a probe, measures its received length, and pads the messages to the requested length.
    fn calibrate(&mut self, message_bytes: usize) -> Result<(), Error> {
        if !matches!(self.publishing.template, Template::Floor) {
            self.publishing.connect()?.publish(0, 1)?;
            let expected = self.before.publications + self.swarm.connections() as u64;
            let counts = self.swarm.wait_publications(expected, Duration::from_secs(5), |_| {});
            let arrived = counts.publications - self.before.publications;
            if arrived < self.swarm.connections() as u64 {
                return Err(Error::new(format!(
                    "{}: a message to {} subscribers reached {arrived}",
                    self.name,
                    self.swarm.connections()
                )));
            }
            let bytes = (counts.publication_bytes - self.before.publication_bytes) / arrived;
            self.publishing.pad_bytes = message_bytes.saturating_sub(bytes as usize);
            self.publishing.numbered_after = self.numbers.then_some(1);
        }
        self.before = self.swarm.counts();
        Ok(())
    }

    /// Publishes `publishes` messages and waits for all of them. The flag is false if messages are missing.
    fn round(
        &mut self,
        options: &Fanout,
        publishes: u32,
        clock: Clock,
    ) -> Result<(Round, bool), Error> {
        let mut publisher = self.publishing.connect()?;
        self.swarm.keep_awake(true);
        let before = self.swarm.counts();
        let cpu_before_ns = self.process.as_ref().map(Process::cpu_ns);
        let start_ns = clock.now_ns();
        let mut left = publishes;
        while left > 0 {
            let count = match options.mode {
                Mode::One => 1,
                Mode::Batch => options.batch.min(left),
            };
            publisher.publish(self.sequence + 1, count)?;
            self.sequence += count;
            left -= count;
        }
        let expected = u64::from(publishes) * self.swarm.connections() as u64;
        let counts = self.swarm.wait_publications(
            before.publications + expected,
            Duration::from_secs(5),
            |_| {},
        );
        self.swarm.keep_awake(false);
        // Work of the server after the last message is part of its cost.
        std::thread::sleep(Duration::from_millis(20));
        let messages = counts.publications - before.publications;
        let seconds = counts.last_publication_ns.saturating_sub(start_ns) as f64 / 1e9;
        let cpu_ns = self.process.as_ref().map(Process::cpu_ns).zip(cpu_before_ns);
        let round = Round {
            messages,
            seconds,
            messages_per_s: messages as f64 / seconds.max(1e-9),
            cpu_us_per_message: cpu_ns.map(|(after, before)| {
                after.saturating_sub(before) as f64 / 1e3 / messages.max(1) as f64
            }),
        };
        Ok((round, messages == expected))
    }

    fn finish(self) -> Result<TurnResult, Error> {
        let counts = self.swarm.counts();
        let publications = counts.publications - self.before.publications;
        let bytes = counts.publication_bytes - self.before.publication_bytes;
        Ok(TurnResult {
            message_bytes: bytes as f64 / publications.max(1) as f64,
            user_bytes_per_connection: self.user_bytes_per_connection,
            kernel_bytes_per_pair: self.kernel_bytes_per_pair,
            subscribers: self.swarm.connections(),
            tally: self.swarm.finish(self.sequence)?,
        })
    }
}
