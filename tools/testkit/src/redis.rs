use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::process::Process;

/// Longer than a server takes to start, and than a port is somebody else's.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The output of a server that accepts connections.
const READY: &str = "Ready to accept";
const SENTINEL_READY: &str = "Sentinel ID is";

/// A real Redis or Sentinel with a directory of its own, killed when it is dropped.
#[derive(Debug)]
pub struct Redis {
    /// Where it listens, or would if its arguments did not say otherwise.
    pub addr: SocketAddr,
    arguments: Vec<String>,
    process: Process,
    directory: TempDir,
}

/// A free port of 127.0.0.1; another process may take it before it is used.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it listens").port()
}

impl Redis {
    /// Starts a server on 127.0.0.1 with these arguments behind those that every test needs: no snapshots, a port and a
    /// directory of its own. With `--sentinel` first, the others are lines of a Sentinel's configuration.
    pub fn start(arguments: &[&str]) -> Redis {
        Redis::start_with(|_| arguments.iter().map(|&text| text.to_owned()).collect())
    }

    /// Starts a server whose arguments depend on its port.
    pub fn start_with(arguments: impl Fn(&str) -> Vec<String>) -> Redis {
        // Another process may take the port meanwhile; then another one is tried.
        for _ in 0..20 {
            let port = free_port();
            let addr = SocketAddr::from(([127, 0, 0, 1], port));
            let arguments = arguments(&port.to_string());
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            if let Some(redis) = Redis::start_at(addr, &arguments) {
                return redis;
            }
        }
        panic!("redis-server does not start");
    }

    /// Starts a server at an address; `None` if it ends, as it does when the port is taken.
    pub fn start_at(addr: SocketAddr, arguments: &[&str]) -> Option<Redis> {
        let directory = tempfile::tempdir().expect("a directory");
        let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
        let process = spawn(addr, &arguments, directory.path(), READY)?;
        Some(Redis { addr, arguments, process, directory })
    }

    /// Starts another process at the same address with its arguments and its data.
    pub fn restart(&mut self) {
        self.restart_until(READY);
    }

    /// The same, and waits for this output.
    pub fn restart_until(&mut self, mark: &str) {
        self.kill();
        let since = Instant::now();
        loop {
            let process = spawn(self.addr, &self.arguments, self.directory.path(), mark);
            if let Some(process) = process {
                self.process = process;
                return;
            }
            assert!(since.elapsed() < TIMEOUT, "its port is somebody else's");
        }
    }

    /// The arguments that it was started with.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// The directory with its data.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Sends it a signal as `kill` names it: `-STOP`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Returns the output of `redis-cli` for a command, without the blanks around it.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let (host, port) = (self.addr.ip().to_string(), self.addr.port().to_string());
        let mut cli = Command::new("redis-cli");
        let output = cli.args(["-h", &host, "-p", &port]).args(arguments).output();
        String::from_utf8_lossy(&output.expect("redis-cli runs").stdout).trim().to_owned()
    }
}

fn spawn(addr: SocketAddr, arguments: &[String], directory: &Path, mark: &str) -> Option<Process> {
    let (host, port) = (addr.ip().to_string(), addr.port().to_string());
    let mut command = Command::new("redis-server");
    if arguments.first().is_some_and(|first| first == "--sentinel") {
        let path = directory.join("sentinel.conf");
        if !path.exists() {
            let lines = arguments[1..].join("\n");
            let text = format!("port {port}\nbind {host}\n{lines}\n");
            std::fs::write(&path, text).expect("a file");
        }
        command.arg(path).arg("--sentinel");
    } else {
        command.args(["--bind", &host, "--port", &port, "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(directory).args(arguments);
    }
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("redis-server: {error}; scripts/packages installs it"));
    let output = child.stdout.take().expect("a pipe");
    let is_ready =
        |line: String| (line.contains(mark) || line.contains(SENTINEL_READY)).then_some(());
    Process::until(child, output, is_ready).map(|(process, ())| process)
}
