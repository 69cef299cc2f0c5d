//! The requirements of N connections, compared with a machine's limits.

use dunlin_config::{Config, Limits};
use dunlin_server::MemoryBounds;

use super::machine::Machine;
use crate::style::grouped;

/// Kernel memory of an idle TCP socket, measured over a million loopback pairs (Linux 6.18).
const SOCKET_BYTES: u64 = 3_000;
/// Memory of an idle client in the server: connection, session and one subscription.
const CLIENT_BYTES: u64 = 300;
/// Memory of a client of `dunlin bench connections`.
const BENCH_CLIENT_BYTES: u64 = 24;
/// Files of a process beside its connections: listeners, doorbells, timers, logs.
const FILES_BESIDE: u64 = 512;
/// `SO_REUSEPORT` spreads by hash: the fullest worker has a few per cent more than its share.
const UNEVEN_PERCENT: u64 = 5;
/// Sessions that a worker can number: 20 bits of the session id.
const SESSIONS_PER_WORKER_MAX: u64 = 1 << 20;
/// Most workers of a server.
const WORKERS_MAX: u64 = 128;

/// The requested connections, and the server's settings.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    pub(crate) connections: u64,
    pub(crate) workers: u64,
    pub(crate) both_ends: bool,
    own_descriptor_tables: bool,
    /// The port that clients connect to.
    port: u16,
    backlog: u64,
    connections_max: u64,
    limits: Limits,
}

/// A limit compared with what the connections need.
#[derive(Clone, Debug)]
pub(crate) struct Requirement {
    pub(crate) name: &'static str,
    pub(crate) has: String,
    pub(crate) needs: String,
    pub(crate) level: Level,
    pub(crate) fixes: Vec<Fix>,
}

/// Whether one limit lets the machine hold the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// The limit is high enough.
    Fits,
    /// They can be held, but some operations will be slow or fail at times.
    Hurts,
    /// They cannot be held.
    Stops,
}

/// A command that raises the limit, with a remark.
#[derive(Clone, Debug)]
pub(crate) struct Fix {
    pub(crate) command: String,
    pub(crate) why: String,
}

impl Demand {
    pub(crate) fn new(
        connections: u64,
        workers: Option<u8>,
        both_ends: bool,
        config: &Config,
        cores: usize,
    ) -> Demand {
        let workers = match workers.unwrap_or(config.server.workers) {
            0 => cores as u64,
            workers => u64::from(workers),
        };
        Demand {
            connections,
            workers,
            both_ends,
            own_descriptor_tables: config.server.own_descriptor_tables,
            port: config.server.client_addr.port(),
            backlog: u64::from(config.server.backlog),
            connections_max: u64::from(config.limits.connections_max),
            limits: config.limits.clone(),
        }
    }

    /// Returns the number of sockets on this machine.
    fn sockets(&self) -> u64 {
        self.connections * if self.both_ends { 2 } else { 1 }
    }

    /// Returns the connections of the fullest worker.
    fn per_worker(&self, workers: u64) -> u64 {
        let share = self.connections.div_ceil(workers);
        if workers == 1 { share } else { share + share * UNEVEN_PERCENT / 100 }
    }

    /// Returns the workers needed if each holds at most this many; `None` if no number suffices.
    fn workers_for(&self, per_worker_max: u64) -> Option<u64> {
        (self.workers..=WORKERS_MAX).find(|workers| self.per_worker(*workers) <= per_worker_max)
    }
}

impl Requirement {
    fn fits(name: &'static str, has: impl Into<String>, needs: impl Into<String>) -> Requirement {
        let (has, needs) = (has.into(), needs.into());
        Requirement { name, has, needs, level: Level::Fits, fixes: Vec::new() }
    }

    fn or(mut self, fits: bool, level: Level) -> Requirement {
        if !fits {
            self.level = level;
        }
        self
    }

    /// Adds a command, unless the requirement is met.
    fn fix(mut self, command: impl Into<String>, why: impl Into<String>) -> Requirement {
        if self.level != Level::Fits {
            self.fixes.push(Fix { command: command.into(), why: why.into() });
        }
        self
    }
}

/// Returns all requirements, met or not.
pub(crate) fn requirements(machine: &Machine, demand: &Demand) -> Vec<Requirement> {
    let mut requirements = descriptors(machine, demand);
    requirements.extend(kernel_tables(machine, demand));
    requirements.extend(queues(machine, demand));
    requirements.extend(ports(machine, demand));
    requirements.extend(memory(machine, demand));
    requirements.extend(own_bounds(demand));
    requirements
}

fn descriptors(machine: &Machine, demand: &Demand) -> Vec<Requirement> {
    let tables = if demand.own_descriptor_tables { demand.workers } else { 1 };
    let need = demand.per_worker(tables) + FILES_BESIDE;
    let fits = machine.nofile_hard >= need;
    let what = if tables == 1 { "of the process" } else { "of each worker" };
    let mut limit = Requirement::fits(
        "descriptors",
        format!("{} {what}", count(machine.nofile_hard)),
        format!("{} needed (RLIMIT_NOFILE)", grouped(need)),
    )
    .or(fits, Level::Stops);
    if machine.may_raise_nofile {
        limit = limit.fix(
            format!("ulimit -n {need}"),
            "in the shell that starts it; LimitNOFILE= in a systemd unit",
        );
    }
    let spare = machine.nofile_hard.saturating_sub(FILES_BESIDE);
    if let Some(workers) = demand.workers_for(spare).filter(|_| demand.own_descriptor_tables) {
        limit = limit.fix(
            format!("dunlin serve --workers {workers}"),
            "each worker has its own table, so more workers hold more",
        );
    }
    if !machine.may_raise_nofile {
        limit = limit.fix(
            format!("echo '* - nofile {need}' > /etc/security/limits.d/dunlin.conf"),
            "as root, then log in again; LimitNOFILE= in a systemd unit",
        );
    }
    let mut requirements = vec![limit];
    if let Some(nr_open) = machine.nr_open.filter(|_| !fits) {
        requirements.push(
            Requirement::fits(
                "nr_open",
                grouped(nr_open),
                format!("{} to raise it", grouped(need)),
            )
            .or(nr_open >= need, Level::Stops)
            .fix(format!("sysctl -w fs.nr_open={need}"), "before the limit above is raised"),
        );
    }
    requirements
}

/// Checks kernel tables with an entry for each connection.
fn kernel_tables(machine: &Machine, demand: &Demand) -> Vec<Requirement> {
    let mut requirements = Vec::new();
    if let Some(max) = machine.file_max {
        let need = demand.sockets() + machine.files_open.unwrap_or(0) + FILES_BESIDE;
        requirements.push(
            Requirement::fits("file-max", count(max), format!("{} open files", grouped(need)))
                .or(max >= need, Level::Stops)
                .fix(format!("sysctl -w fs.file-max={need}"), ""),
        );
    }
    if let Some(max) = machine.epoll_watches {
        let need = demand.sockets() + FILES_BESIDE;
        requirements.push(
            Requirement::fits("epoll", count(max), format!("{} watches of a user", grouped(need)))
                .or(max >= need, Level::Stops)
                .fix(format!("sysctl -w fs.epoll.max_user_watches={need}"), ""),
        );
    }
    if let Some(max) = machine.conntrack_max {
        let need = demand.connections + demand.connections / 10;
        let port = demand.port;
        // The module may be loaded without tracking anything; then its table is no limit.
        let tracks = machine.conntrack_count.is_some_and(|count| count > 0);
        let level = if tracks { Level::Stops } else { Level::Hurts };
        let state = if tracks { "entries" } else { "entries, if a firewall rule tracks them" };
        requirements.push(
            Requirement::fits("conntrack", grouped(max), format!("{} {state}", grouped(need)))
                .or(max >= need, level)
                .fix(format!("sysctl -w net.netfilter.nf_conntrack_max={need}"), "")
                .fix(
                    format!("iptables -t raw -A PREROUTING -p tcp --dport {port} -j NOTRACK"),
                    "or do not track them at all",
                ),
        );
    }
    requirements
}

/// Checks the queues in which connections wait when all clients connect at once.
fn queues(machine: &Machine, demand: &Demand) -> Vec<Requirement> {
    // In the worst case all clients wait at once.
    let need = demand.backlog.min(demand.connections);
    let requirement = |name, key: &str, has: u64| {
        Requirement::fits(
            name,
            grouped(has),
            format!("{} waiting connects a worker", grouped(need)),
        )
        .or(has >= need, Level::Hurts)
        .fix(
            format!("sysctl -w {key}={need}"),
            "or clients that all come at once wait a second and more",
        )
    };
    let backlog = machine.somaxconn.map(|has| requirement("backlog", "net.core.somaxconn", has));
    let syn = machine
        .syn_backlog
        .map(|has| requirement("syn backlog", "net.ipv4.tcp_max_syn_backlog", has));
    backlog.into_iter().chain(syn).collect()
}

fn ports(machine: &Machine, demand: &Demand) -> Vec<Requirement> {
    let Some(ports) = machine.local_ports else { return Vec::new() };
    // Each source address has its own ports to one destination; all of 127/8 is available.
    let addresses = demand.connections.div_ceil(ports.max(1));
    let (needs, fits) = if demand.both_ends {
        (format!("{} source addresses of 127.0.0.0/8 suffice", grouped(addresses)), ports >= 1_024)
    } else {
        let needs = "connections a proxy on this machine can open to one port of ours";
        (needs.to_owned(), true)
    };
    vec![Requirement::fits("ports", grouped(ports), needs).or(fits, Level::Hurts).fix(
        "sysctl -w net.ipv4.ip_local_port_range='10240 65535'",
        "above the ports servers listen on",
    )]
}

fn memory(machine: &Machine, demand: &Demand) -> Vec<Requirement> {
    let mut requirements = Vec::new();
    if let Some(available) = machine.memory_available_bytes {
        let bench = if demand.both_ends { BENCH_CLIENT_BYTES } else { 0 };
        let need = demand.sockets() * SOCKET_BYTES + demand.connections * (CLIENT_BYTES + bench);
        let each = need / demand.connections;
        let hold = available / each;
        requirements.push(
            Requirement::fits("memory", bytes(available), format!("{} when idle", bytes(need)))
                .or(available >= need, Level::Stops)
                .fix(
                    format!(
                        "dunlin check {hold}{}",
                        if demand.both_ends { " --both-ends" } else { "" }
                    ),
                    "is what this memory can hold",
                ),
        );
    }
    if let Some(memory) = &machine.memory {
        let bounds = MemoryBounds::within(&demand.limits, memory.bytes_max);
        let total = bounds.total();
        requirements.push(
            Requirement::fits(
                "bounds",
                format!("{} of {}", bytes(memory.bytes_max), memory.limited_by),
                format!("{} at most: {bounds}", bytes(total)),
            )
            .or(total < memory.bytes_max, Level::Hurts)
            .fix(
                "history_bytes_max = 0",
                "in [limits] of the configuration, and pending_bytes_max = 0: they follow the memory",
            ),
        );
    }
    if let Some(max) = machine.tcp_mem_max_bytes {
        // Even the smallest queued message takes a page, at the sender or the receiver.
        let need = demand.connections * machine.page_bytes;
        let pages = need / machine.page_bytes.max(1);
        let (low, pressure, high) = (pages, pages + pages / 4, pages + pages / 2);
        requirements.push(
            Requirement::fits(
                "tcp_mem",
                bytes(max),
                format!("{} for one message to all", bytes(need)),
            )
            .or(max >= need, Level::Hurts)
            .fix(
                format!("sysctl -w net.ipv4.tcp_mem='{low} {pressure} {high}'"),
                "or the kernel delays messages to all clients at once",
            ),
        );
    }
    requirements
}

/// Checks the limits of the server itself.
fn own_bounds(demand: &Demand) -> Vec<Requirement> {
    let mut requirements = vec![
        Requirement::fits(
            "connections_max",
            grouped(demand.connections_max),
            "the configured bound, `limits.connections_max`",
        )
        .or(demand.connections_max >= demand.connections, Level::Stops)
        .fix(
            format!("connections_max = {}", demand.connections),
            "in [limits] of the configuration",
        ),
    ];
    let fullest = demand.per_worker(demand.workers);
    if fullest > SESSIONS_PER_WORKER_MAX {
        let requirement = Requirement::fits(
            "sessions",
            format!("{} of each worker", grouped(SESSIONS_PER_WORKER_MAX)),
            format!("{} on the fullest worker", grouped(fullest)),
        )
        .or(false, Level::Stops);
        requirements.push(match demand.workers_for(SESSIONS_PER_WORKER_MAX) {
            Some(workers) => requirement.fix(format!("dunlin serve --workers {workers}"), ""),
            None => requirement,
        });
    }
    requirements
}

/// Formats a limit, which some kernels do not have.
fn count(limit: u64) -> String {
    if limit >= i64::MAX as u64 { "no limit".to_owned() } else { grouped(limit) }
}

fn bytes(bytes: u64) -> String {
    const GIB: f64 = (1_u64 << 30) as f64;
    const MIB: f64 = (1_u64 << 20) as f64;
    let bytes = bytes as f64;
    if bytes >= GIB { format!("{:.1} GiB", bytes / GIB) } else { format!("{:.0} MiB", bytes / MIB) }
}

#[cfg(test)]
pub(super) mod tests {
    use dunlin_server::{Memory, MemoryLimit};

    use super::*;

    /// Returns a machine that holds a million connections easily.
    pub(crate) fn roomy() -> Machine {
        Machine {
            cores: 2,
            nofile_hard: 10_000_000,
            may_raise_nofile: true,
            nr_open: Some(20_000_000),
            file_max: Some(u64::MAX),
            files_open: Some(1_000),
            somaxconn: Some(65_535),
            syn_backlog: Some(65_535),
            tcp_mem_max_bytes: Some(16 << 30),
            epoll_watches: Some(10_000_000),
            local_ports: Some(55_296),
            conntrack_max: None,
            conntrack_count: None,
            memory_available_bytes: Some(32 << 30),
            memory: Some(Memory {
                bytes_max: 64 << 30,
                bytes_left: None,
                limited_by: MemoryLimit::Machine,
            }),
            page_bytes: 4_096,
        }
    }

    fn wrong(machine: &Machine, demand: &Demand) -> Vec<(&'static str, Level, Vec<String>)> {
        requirements(machine, demand)
            .into_iter()
            .filter(|requirement| requirement.level != Level::Fits)
            .map(|requirement| {
                let fixes = requirement.fixes.into_iter().map(|fix| fix.command).collect();
                (requirement.name, requirement.level, fixes)
            })
            .collect()
    }

    fn million(workers: u8) -> Demand {
        Demand::new(1_000_000, Some(workers), false, &Config::development(), 2)
    }

    #[test]
    fn a_roomy_machine_holds_a_million() {
        assert_eq!(wrong(&roomy(), &million(2)), []);
    }

    #[test]
    fn a_low_descriptor_limit_is_raised_or_met_with_more_workers() {
        let machine = Machine { nofile_hard: 20_000, ..roomy() };
        let reported = wrong(&machine, &million(2));
        assert_eq!(
            reported,
            [(
                "descriptors",
                Level::Stops,
                vec!["ulimit -n 525512".to_owned(), "dunlin serve --workers 54".to_owned()]
            )]
        );
        assert_eq!(wrong(&machine, &million(54)), [], "what it advises suffices");
    }

    #[test]
    fn one_table_for_all_workers_needs_a_descriptor_for_every_connection() {
        let mut config = Config::development();
        config.server.own_descriptor_tables = false;
        let demand = Demand::new(1_000_000, Some(64), false, &config, 2);
        let machine = Machine {
            nofile_hard: 20_000,
            nr_open: Some(1_000_000),
            may_raise_nofile: false,
            ..roomy()
        };
        let reported = wrong(&machine, &demand);
        let commands: Vec<_> = reported.iter().flat_map(|(_, _, fixes)| fixes).collect();
        assert_eq!(
            commands,
            [
                "echo '* - nofile 1000512' > /etc/security/limits.d/dunlin.conf",
                "sysctl -w fs.nr_open=1000512"
            ]
        );
    }

    #[test]
    fn each_kernel_table_that_is_too_small_is_named_with_its_command() {
        let machine = Machine {
            file_max: Some(100_000),
            epoll_watches: Some(100_000),
            somaxconn: Some(4_096),
            syn_backlog: Some(2_048),
            conntrack_max: Some(262_144),
            conntrack_count: Some(12),
            tcp_mem_max_bytes: Some(1 << 30),
            memory_available_bytes: Some(1 << 30),
            ..roomy()
        };
        let reported = wrong(&machine, &million(2));
        let expected = [
            ("file-max", Level::Stops, "sysctl -w fs.file-max=1001512"),
            ("epoll", Level::Stops, "sysctl -w fs.epoll.max_user_watches=1000512"),
            ("conntrack", Level::Stops, "sysctl -w net.netfilter.nf_conntrack_max=1100000"),
            ("backlog", Level::Hurts, "sysctl -w net.core.somaxconn=65535"),
            ("syn backlog", Level::Hurts, "sysctl -w net.ipv4.tcp_max_syn_backlog=65535"),
            ("memory", Level::Stops, "dunlin check 325376"),
            ("tcp_mem", Level::Hurts, "sysctl -w net.ipv4.tcp_mem='1000000 1250000 1500000'"),
        ];
        let reported: Vec<_> = reported
            .iter()
            .map(|(name, level, fixes)| (*name, *level, fixes[0].as_str()))
            .collect();
        assert_eq!(reported, expected);
    }

    #[test]
    fn a_tracker_that_tracks_nothing_only_hurts() {
        let machine = Machine { conntrack_max: Some(1_000), conntrack_count: Some(0), ..roomy() };
        assert_eq!(wrong(&machine, &million(2))[0].1, Level::Hurts);
    }

    #[test]
    fn both_ends_on_one_machine_need_twice_the_sockets() {
        let machine = Machine { memory_available_bytes: Some(5 << 30), ..roomy() };
        let demand = Demand { both_ends: true, ..million(2) };
        assert_eq!(wrong(&machine, &million(2)), []);
        assert_eq!(
            wrong(&machine, &demand),
            [("memory", Level::Stops, vec!["dunlin check 848941 --both-ends".to_owned()])]
        );
        let fits = Demand { connections: 848_941, ..demand };
        assert_eq!(wrong(&machine, &fits), [], "what it advises suffices");
    }

    #[test]
    fn our_own_bounds_are_reported_too() {
        let demand = Demand::new(3_000_000, Some(2), false, &Config::development(), 2);
        let reported = wrong(&roomy(), &demand);
        assert_eq!(reported[0].2, ["connections_max = 3000000"]);
        assert_eq!(reported[1].2, ["dunlin serve --workers 4"]);
    }
}
