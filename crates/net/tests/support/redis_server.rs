//! A real Redis, started for a test.
#![allow(clippy::unwrap_used, reason = "a server that does not start fails the test")]
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(unreachable_pub, reason = "a module of tests has no outside")]

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

pub struct RedisServer {
    pub addr: SocketAddr,
    child: Child,
}

impl RedisServer {
    pub fn start() -> RedisServer {
        // Free a moment ago; somebody else may be quicker, and then it is another.
        for _ in 0..10 {
            let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            if let Some(server) = RedisServer::start_at(addr) {
                return server;
            }
        }
        panic!("redis-server does not start");
    }

    pub fn start_at(addr: SocketAddr) -> Option<RedisServer> {
        RedisServer::start_with(addr, &["--port", &addr.port().to_string()])
    }

    /// One that speaks TLS with this certificate and key, each in a file.
    pub fn start_tls(certificate: &str, key: &str) -> RedisServer {
        for _ in 0..10 {
            let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let port = addr.port().to_string();
            let tls = ["--port", "0", "--tls-port", &port, "--tls-auth-clients", "no"];
            let files = ["--tls-cert-file", certificate, "--tls-key-file", key];
            let authority = ["--tls-ca-cert-file", certificate];
            if let Some(server) =
                RedisServer::start_with(addr, &[&tls[..], &files, &authority].concat())
            {
                return server;
            }
        }
        panic!("redis-server does not start");
    }

    fn start_with(addr: SocketAddr, arguments: &[&str]) -> Option<RedisServer> {
        let mut child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("redis-server: {error}; scripts/packages installs it"));
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready =
            said.by_ref().map_while(Result::ok).any(|line| line.contains("Ready to accept"));
        // It goes on talking, and must not wait for a reader.
        std::thread::spawn(move || said.for_each(drop));
        if ready {
            return Some(RedisServer { addr, child });
        }
        let _ = child.wait();
        None
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
