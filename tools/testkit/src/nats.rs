use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::process::Process;

/// Longer than a server takes to start, and than a port is somebody else's.
const TIMEOUT: Duration = Duration::from_secs(300);
const LISTENING: &str = "Listening for client connections on ";

/// A real NATS server with a directory of its own, killed when it is dropped.
#[derive(Debug)]
pub struct Nats {
    /// Where clients connect to.
    pub addr: SocketAddr,
    arguments: Vec<String>,
    process: Process,
    directory: TempDir,
}

impl Nats {
    /// Starts a server on a port of 127.0.0.1 that the kernel chooses, with these arguments and this configuration.
    pub fn start(arguments: &[&str], config: &str) -> Nats {
        Nats::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), arguments, config)
    }

    /// Starts a server at an address.
    pub fn start_at(addr: SocketAddr, arguments: &[&str], config: &str) -> Nats {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("nats.conf"), config).expect("a file");
        let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
        let (process, addr) =
            spawn(addr, &arguments, directory.path()).expect("nats-server starts");
        Nats { addr, arguments, process, directory }
    }

    /// Starts another process at the same address with the stored data.
    pub fn restart(&mut self) {
        self.kill();
        let since = Instant::now();
        loop {
            let started = spawn(self.addr, &self.arguments, self.directory.path());
            if let Some((process, _)) = started {
                self.process = process;
                return;
            }
            assert!(since.elapsed() < TIMEOUT, "its port is somebody else's");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Replaces its configuration, for the next start.
    pub fn configure(&self, config: &str) {
        std::fs::write(self.directory.path().join("nats.conf"), config).expect("a file");
    }

    /// Deletes the stored data, while it is stopped.
    pub fn lose_store(&self) {
        std::fs::remove_dir_all(self.store_dir()).expect("it has stored something");
    }

    /// The directory of JetStream's data.
    pub fn store_dir(&self) -> std::path::PathBuf {
        self.directory.path().join("store")
    }

    /// The directory with its configuration and its data.
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
}

/// Starts a server; returns it with its address once it is ready.
fn spawn(
    addr: SocketAddr,
    arguments: &[String],
    directory: &Path,
) -> Option<(Process, SocketAddr)> {
    // -1: the kernel chooses the port.
    let port = if addr.port() == 0 { "-1".to_owned() } else { addr.port().to_string() };
    let mut child = Command::new("nats-server")
        .args(["-a", &addr.ip().to_string(), "-p", &port])
        .arg("-c")
        .arg(directory.join("nats.conf"))
        .arg("-sd")
        .arg(directory.join("store"))
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("nats-server: {error}; scripts/packages installs it"));
    let output = child.stderr.take().expect("a pipe");
    let mut listens = None;
    Process::until(child, output, |line| {
        if let Some((_, address)) = line.split_once(LISTENING) {
            listens = address.trim().parse().ok();
        }
        line.contains("Server is ready").then(|| listens.expect("it says where it listens"))
    })
}
