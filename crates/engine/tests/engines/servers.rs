//! Real Redis servers and deployments of them.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dunlin_engine::redis::Topology;
use dunlin_engine::{Server, ServerRole};
use dunlin_testkit::Redis;
pub use dunlin_testkit::free_port;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(300);

/// A server, killed when it is dropped.
pub struct RedisServer {
    pub port: u16,
    redis: Redis,
}

impl Deref for RedisServer {
    type Target = Redis;

    fn deref(&self) -> &Redis {
        &self.redis
    }
}

impl DerefMut for RedisServer {
    fn deref_mut(&mut self) -> &mut Redis {
        &mut self.redis
    }
}

impl RedisServer {
    pub fn start(arguments: &[&str]) -> RedisServer {
        let redis = Redis::start(arguments);
        RedisServer { port: redis.addr.port(), redis }
    }

    /// Copies what it has on its disk from one directory to another: its own, or one that is kept.
    fn copy(from: &Path, to: &Path) {
        let log = to.join("appendonlydir");
        if log.exists() {
            std::fs::remove_dir_all(log).unwrap();
        }
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(from.join("appendonlydir")).arg(to);
        assert!(copy.status().unwrap().success());
    }

    /// Copies its current data.
    pub fn backup(&self) -> TempDir {
        let backup = TempDir::new().unwrap();
        RedisServer::copy(self.directory(), backup.path());
        backup
    }

    /// Replaces its data while it is stopped.
    pub fn put_back(&self, backup: &TempDir) {
        RedisServer::copy(backup.path(), self.directory());
    }

    /// Pins it to one core.
    pub fn pin(&self, core: usize) {
        let (pid, core) = (self.pid().to_string(), core.to_string());
        let mut taskset = Command::new("taskset");
        taskset.args(["-apc", &core, &pid]).stdout(Stdio::null());
        assert!(taskset.status().unwrap().success());
    }

    /// Returns the CPU time that it has used, in microseconds.
    pub fn cpu_us(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let ticks = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
        // A tick is a hundredth of a second wherever Linux runs.
        ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>() * 10_000
    }

    pub fn wait(&self, arguments: &[&str], part: &str) {
        let since = Instant::now();
        while !self.cli(arguments).contains(part) {
            assert!(since.elapsed() < TIMEOUT, "{arguments:?}: {}", self.cli(arguments));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn server(&self) -> Server {
        Server { host: "127.0.0.1".to_owned(), port: self.port, role: ServerRole::Data }
    }
}

/// Servers in one of the supported deployments.
pub struct Deployment {
    pub topology: Topology,
    pub servers: Vec<RedisServer>,
    _sentinels: Vec<RedisServer>,
}

impl Deployment {
    pub fn single() -> Deployment {
        Deployment::servers(1)
    }

    pub fn servers(count: usize) -> Deployment {
        let servers: Vec<_> = (0..count).map(|_| RedisServer::start(&[])).collect();
        let topology = Topology::Servers(servers.iter().map(RedisServer::server).collect());
        Deployment { topology, servers, _sentinels: Vec::new() }
    }

    /// A primary, a replica that follows it, and a Sentinel that watches both.
    pub fn sentinel() -> Deployment {
        let primary = RedisServer::start(&[]);
        let port = primary.port.to_string();
        let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &port]);
        replica.wait(&["INFO", "replication"], "master_link_status:up");
        let monitor = format!("sentinel monitor main 127.0.0.1 {port} 1");
        let sentinel = RedisServer::start(&[
            "--sentinel",
            &monitor,
            "sentinel down-after-milliseconds main 500",
            "sentinel failover-timeout main 5000",
        ]);
        sentinel.wait(&["SENTINEL", "REPLICAS", "main"], &replica.port.to_string());
        let sentinels = vec![
            // One that does not run.
            Server { host: "127.0.0.1".to_owned(), port: 1, role: ServerRole::Sentinel },
            Server { role: ServerRole::Sentinel, ..sentinel.server() },
        ];
        let topology = Topology::Sentinel { sentinels, primaries: vec!["main".to_owned()] };
        Deployment { topology, servers: vec![primary, replica], _sentinels: vec![sentinel] }
    }

    /// Starts primaries that share the slots.
    pub fn cluster(count: usize) -> Deployment {
        let servers: Vec<_> = (0..count).map(|_| cluster_node()).collect();
        let width = 16_384 / count;
        for (index, server) in servers.iter().enumerate() {
            let last = if index + 1 == count { 16_383 } else { (index + 1) * width - 1 };
            let (first, last) = ((index * width).to_string(), last.to_string());
            server.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            server.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
        }
        for server in &servers[1..] {
            meet(&servers[0], server);
        }
        for server in &servers {
            server.wait(&["CLUSTER", "INFO"], "cluster_state:ok");
            server.wait(&["CLUSTER", "INFO"], &format!("cluster_known_nodes:{count}"));
        }
        let topology = Topology::Cluster { seeds: vec![servers[0].server()], partitions: 16 };
        Deployment { topology, servers, _sentinels: Vec::new() }
    }
}

pub fn cluster_node() -> RedisServer {
    let bus = free_port().to_string();
    RedisServer::start(&[
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--cluster-node-timeout",
        "2000",
    ])
}

pub fn meet(one: &RedisServer, other: &RedisServer) {
    let bus = one.arguments()[3].clone();
    other.cli(&["CLUSTER", "MEET", "127.0.0.1", &one.port.to_string(), &bus]);
}
