//! Real Redis servers and deployments of them.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dunlin_engine::redis::Topology;
use dunlin_engine::{Server, ServerRole};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(300);

/// A server, killed when it is dropped.
pub struct RedisServer {
    pub port: u16,
    arguments: Vec<String>,
    child: Child,
    directory: TempDir,
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl RedisServer {
    pub fn start(arguments: &[&str]) -> RedisServer {
        // A free port may be taken by another process meanwhile; then another port is tried.
        for _ in 0..20 {
            let directory = TempDir::new().unwrap();
            let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
            let port = free_port();
            if let Some(child) = spawn(port, &arguments, &directory, READY) {
                return RedisServer { port, arguments, child, directory };
            }
        }
        panic!("redis-server does not start");
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Restarts it on the same port with its data.
    pub fn restart(&mut self) {
        self.restart_until(READY);
    }

    /// Like [`RedisServer::restart`], but waits for this output.
    pub fn restart_until(&mut self, said: &str) {
        let since = Instant::now();
        loop {
            if let Some(child) = spawn(self.port, &self.arguments, &self.directory, said) {
                self.child = child;
                return;
            }
            assert!(since.elapsed() < TIMEOUT, "the port was taken");
        }
    }

    /// Copies what it has on its disk from one directory to another: its own, or one that is kept.
    fn copy(from: &TempDir, to: &TempDir) {
        let log = to.path().join("appendonlydir");
        if log.exists() {
            std::fs::remove_dir_all(log).unwrap();
        }
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(from.path().join("appendonlydir")).arg(to.path());
        assert!(copy.status().unwrap().success());
    }

    /// Copies its current data.
    pub fn backup(&self) -> TempDir {
        let backup = TempDir::new().unwrap();
        RedisServer::copy(&self.directory, &backup);
        backup
    }

    /// Replaces its data while it is stopped.
    pub fn put_back(&self, backup: &TempDir) {
        RedisServer::copy(backup, &self.directory);
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Pins it to one core.
    pub fn pin(&self, core: usize) {
        let (pid, core) = (self.child.id().to_string(), core.to_string());
        let mut taskset = Command::new("taskset");
        taskset.args(["-apc", &core, &pid]).stdout(Stdio::null());
        assert!(taskset.status().unwrap().success());
    }

    /// Returns the CPU time that it has used, in microseconds.
    pub fn cpu_us(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let ticks = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
        // A tick is a hundredth of a second wherever Linux runs.
        ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>() * 10_000
    }

    /// Returns the output of `redis-cli` for a command.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let port = self.port.to_string();
        let output =
            Command::new("redis-cli").args(["-p", &port]).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
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

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The output of a server that accepts connections.
const READY: &str = "Ready to accept";

fn spawn(port: u16, arguments: &[String], directory: &TempDir, mark: &str) -> Option<Child> {
    let mut command = Command::new("redis-server");
    if arguments.first().is_some_and(|first| first == "--sentinel") {
        let path = directory.path().join("sentinel.conf");
        if !path.exists() {
            let lines = arguments[1..].join("\n");
            std::fs::write(&path, format!("port {port}\nbind 127.0.0.1\n{lines}\n")).unwrap();
        }
        command.arg(path).arg("--sentinel");
    } else {
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
        command.arg("--dir").arg(directory.path()).args(arguments);
    }
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("redis-server: {error}; scripts/packages installs it"));
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_ready = said
        .by_ref()
        .map_while(Result::ok)
        .any(|line| line.contains(mark) || line.contains("Sentinel ID is"));
    // The server keeps writing and must not block on its output.
    std::thread::spawn(move || said.for_each(drop));
    if !is_ready {
        let _ = child.wait();
        return None;
    }
    Some(child)
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
    let bus = one.arguments[3].clone();
    other.cli(&["CLUSTER", "MEET", "127.0.0.1", &one.port.to_string(), &bus]);
}
