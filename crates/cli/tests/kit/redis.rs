//! A real Redis for a test, at its own address.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Addresses, TIMEOUT};

pub struct Redis {
    child: Child,
    pub at: SocketAddr,
    directory: tempfile::TempDir,
}

impl Redis {
    pub fn start() -> Redis {
        let at = SocketAddr::new(Addresses::new().client.ip(), 6379);
        let directory = tempfile::tempdir().unwrap();
        let child = Redis::begin(at, directory.path());
        Redis { child, at, directory }
    }

    /// One that speaks TLS alone, and to those alone who show a certificate of this authority; `issue` makes those of a name.
    pub fn start_verifying(ca: &str, issue: impl Fn(&str) -> (String, String)) -> Redis {
        let at = SocketAddr::new(Addresses::new().client.ip(), 6379);
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = issue(&at.ip().to_string());
        let files = [("ca", ca), ("cert", &*certificate), ("key", &*key)].map(|(name, text)| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        });
        let [ca, certificate, key] = &files;
        let port = at.port().to_string();
        let tls = ["--port", "0", "--tls-port", &port, "--tls-auth-clients", "yes"];
        let of_tls =
            ["--tls-ca-cert-file", ca, "--tls-cert-file", certificate, "--tls-key-file", key];
        let child = Redis::run(at, directory.path(), &[tls, of_tls].concat());
        Redis { child, at, directory }
    }

    /// Restarts it without data.
    pub fn restart(&mut self) {
        self.kill();
        self.child = Redis::begin(self.at, self.directory.path());
    }

    fn begin(at: SocketAddr, directory: &std::path::Path) -> Child {
        Redis::run(at, directory, &["--port", &at.port().to_string()])
    }

    fn run(at: SocketAddr, directory: &std::path::Path, arguments: &[&str]) -> Child {
        let child = Command::new("redis-server")
            .args(["--bind", &at.ip().to_string()])
            .args(arguments)
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("redis-server: {error}; scripts/packages installs it"));
        let deadline = Instant::now() + TIMEOUT;
        while TcpStream::connect(at).is_err() {
            assert!(Instant::now() < deadline, "redis-server does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the output of redis-cli, without its last line end.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-h", &self.at.ip().to_string(), "-p", &self.at.port().to_string()])
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
