//! Real NATS servers.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dunlin_engine::nats::NatsConfig;
use dunlin_engine::{Server, ServerRole};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(300);

/// A server, killed when it is dropped.
pub struct NatsServer {
    pub port: u16,
    arguments: Vec<String>,
    child: Child,
    pub directory: TempDir,
}

impl NatsServer {
    pub fn start(arguments: &[&str]) -> NatsServer {
        NatsServer::start_with(arguments, "")
    }

    /// Starts a server with this configuration text.
    pub fn start_with(arguments: &[&str], config: &str) -> NatsServer {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("nats.conf");
        std::fs::write(&path, config).unwrap();
        let mut arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let store = directory.path().join("store");
        for argument in ["-c", path.to_str().unwrap(), "-sd", store.to_str().unwrap()] {
            arguments.push(argument.to_owned());
        }
        // The kernel chooses the port.
        let (child, port) = spawn(&arguments, -1).expect("it starts");
        NatsServer { port, arguments, child, directory }
    }

    pub fn config(&self) -> NatsConfig {
        NatsConfig::new(vec![Server {
            host: Ipv4Addr::LOCALHOST.to_string(),
            port: self.port,
            role: ServerRole::Data,
        }])
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts another process on the same port with the stored data.
    pub fn restart(&mut self) {
        let since = Instant::now();
        loop {
            if let Some((child, _)) = spawn(&self.arguments, i32::from(self.port)) {
                self.child = child;
                return;
            }
            assert!(since.elapsed() < TIMEOUT, "its port is somebody else's");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Deletes the stored data.
    pub fn lose_store(&self) {
        std::fs::remove_dir_all(self.directory.path().join("store")).unwrap();
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a server; returns it and its port.
fn spawn(arguments: &[String], port: i32) -> Option<(Child, u16)> {
    let mut child = Command::new("nats-server")
        .args(["-a", "127.0.0.1", "-p", &port.to_string()])
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("nats-server: {error}; scripts/packages installs it"));
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut port = None;
    while let Some(Ok(line)) = said.next() {
        if let Some((_, address)) = line.split_once("Listening for client connections on ") {
            port = address.rsplit(':').next().and_then(|port| port.parse().ok());
        }
        if line.contains("Server is ready") {
            // The server keeps writing and must not block on its output.
            std::thread::spawn(move || said.for_each(drop));
            return Some((child, port.expect("it says where it listens")));
        }
    }
    let _ = child.wait();
    None
}
