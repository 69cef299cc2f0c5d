//! Several nodes of Dunlin and the Redis that they share, each on its own loopback address.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dunlin_load::client::Client;
use dunlin_load::installed::installed;
use dunlin_load::{Context, Error, Process};

/// Token of the admin ports.
const ADMIN_TOKEN: &str = "the token of the benchmark";
/// Time limit for a node to connect its engine, and for Redis to load its data.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Any client may subscribe to any channel, budgets do not limit, and channels live in Redis, except those of `local`.
pub(crate) const SETTINGS: &str = "[client]\nanonymous = true\n[api]\nwithout_key = true\n\
    [limits]\nconnections_per_address_max = 0\n\
    [limits.client_budget]\ncommands_per_s = 0\nbytes_per_s = 0\ndeliveries_per_s = 0\n\
    [limits.anonymous_budget]\ncommands_per_s = 0\nbytes_per_s = 0\ndeliveries_per_s = 0\n\
    [channel.namespaces.local]\nallow_subscribe_for_anonymous = true\nallow_subscribe_for_client = true\n\
    [channel.without_namespace]\nallow_subscribe_for_anonymous = true\nallow_subscribe_for_client = true\n\
    engine = \"main\"\n";

/// Returns an address that no other run on this machine uses, derived from the process id.
pub(crate) fn address(host: u8, port: u16) -> SocketAddr {
    let [low, high, ..] = std::process::id().to_le_bytes();
    SocketAddr::from((Ipv4Addr::new(127, 128 | high & 63, low, host), port))
}

/// A Redis server that this process starts, with its data.
#[derive(Debug)]
pub(crate) struct Redis {
    pub(crate) address: SocketAddr,
    command: String,
    directory: PathBuf,
    cores: Vec<usize>,
    process: Option<Process>,
}

impl Redis {
    /// Starts it with its data in `directory`, which it does not share. `more` are lines of its configuration.
    pub(crate) fn start(
        address: SocketAddr,
        directory: PathBuf,
        cores: &[usize],
        more: &str,
    ) -> Result<Self, Error> {
        let settings = format!("save \"\"\nmaxclients 10000\n{more}");
        Self::configured(address, directory, cores, &settings, "")
    }

    /// Starts a Sentinel with these lines.
    pub(crate) fn sentinel(
        address: SocketAddr,
        directory: PathBuf,
        settings: &str,
    ) -> Result<Self, Error> {
        Self::configured(address, directory, &[], settings, "--sentinel")
    }

    /// Starts it with a configuration file that it may rewrite: a role changed by a failover survives a restart.
    fn configured(
        address: SocketAddr,
        directory: PathBuf,
        cores: &[usize],
        settings: &str,
        flag: &str,
    ) -> Result<Self, Error> {
        std::fs::create_dir_all(&directory).context("cannot create a directory for Redis")?;
        let program = installed("redis-server", "redis-server")?;
        let file = directory.join("redis.conf");
        let text = format!(
            "bind {}\nport {}\nprotected-mode no\ndir {}\n{settings}\n",
            address.ip(),
            address.port(),
            directory.display()
        );
        std::fs::write(&file, text).context("cannot write the settings of Redis")?;
        let command = format!("{} {} {flag}", program.display(), file.display());
        let mut redis = Self { address, command, directory, cores: cores.to_vec(), process: None };
        redis.begin()?;
        Ok(redis)
    }

    /// Starts again after [`kill`](Self::kill), with the data that it has written.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        self.process = Some(Process::start(&self.command, &self.cores, self.address, None)?);
        let until = Instant::now() + READY_TIMEOUT;
        while self.call(&["PING"]).map_or(true, |answer| answer != "PONG") {
            if Instant::now() > until {
                return Err(Error::new("Redis does not answer"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Kills it with `kill -9`, and keeps its data or deletes them.
    pub(crate) fn kill(&mut self, keep: bool) -> Result<(), Error> {
        if let Some(process) = self.process.take() {
            process.kill();
        }
        let log = self.directory.join("appendonlydir");
        if !keep && log.exists() {
            std::fs::remove_dir_all(log).context("cannot remove what Redis wrote")?;
        }
        Ok(())
    }

    pub(crate) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Sends a command and returns the answer: a status, a number, a string, or strings with a line each.
    pub(crate) fn call(&self, command: &[&str]) -> Result<String, Error> {
        let sentence = || format!("Redis does not answer {}", command.join(" "));
        let mut stream = TcpStream::connect(self.address).context(sentence())?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).context(sentence())?;
        let mut request = format!("*{}\r\n", command.len());
        for word in command {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        stream.write_all(request.as_bytes()).context(sentence())?;
        answer(&mut BufReader::new(stream)).context(sentence())
    }

    /// Counts the commands that clients send within `time`, without those that scripts call.
    pub(crate) fn commands(&self, time: Duration) -> Result<u64, Error> {
        let sentence = "Redis does not say what it is asked";
        let mut stream = TcpStream::connect(self.address).context(sentence)?;
        stream.write_all(b"MONITOR\r\n").context(sentence)?;
        stream.set_read_timeout(Some(Duration::from_millis(100))).context(sentence)?;
        let (mut reader, until) = (BufReader::new(stream), Instant::now() + time);
        let (mut line, mut count) = (Vec::new(), 0);
        while Instant::now() < until {
            match reader.read_until(b'\n', &mut line) {
                Ok(0) => return Err(Error::new(sentence)),
                Ok(_) if line.ends_with(b"\n") => {
                    // `+1700000000.123456 [0 127.0.0.1:50000] "PING"`; a script's have `[0 lua]`.
                    let is_command = memchr::memchr(b'[', &line).is_some();
                    let by_script = memchr::memmem::find(&line, b" lua] ").is_some();
                    count += u64::from(is_command && !by_script);
                    line.clear();
                }
                // A partial line, or a timeout.
                _ => {}
            }
        }
        Ok(count)
    }
}

fn answer(reader: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let line = line.trim_end();
    match line.split_at_checked(1) {
        Some(("+" | ":", text)) => Ok(text.to_owned()),
        Some(("$", length)) => {
            // Includes the line end; a nil string has the length -1.
            let length = length.parse().map_or(0, |length: u64| length + 2);
            let mut text = String::new();
            reader.take(length).read_to_string(&mut text)?;
            text.truncate(text.len().saturating_sub(2));
            Ok(text)
        }
        Some(("*", count)) => {
            let count = count.parse().unwrap_or(0);
            let answers: Result<Vec<_>, _> = (0..count).map(|_| answer(reader)).collect();
            Ok(answers?.join("\n"))
        }
        _ => Err(std::io::Error::other(line)),
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }
}

/// A node of Dunlin.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) client: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// Program to run from its next start on.
    pub(crate) program: String,
    arguments: String,
    /// Number of workers from its next start on.
    pub(crate) workers: u8,
    cores: Vec<usize>,
    process: Option<Process>,
}

impl Node {
    /// Starts node `number`, counted from 1, with these settings, which are written to its file in `directory`.
    pub(crate) fn start(
        program: &str,
        number: u8,
        workers: u8,
        directory: &Path,
        cores: &[usize],
        settings: &str,
    ) -> Result<Self, Error> {
        let file = directory.join(format!("node{number}.toml"));
        let settings = format!("{settings}\n[admin]\ntoken = \"{ADMIN_TOKEN}\"\n");
        std::fs::write(&file, settings).context("cannot write a node's settings")?;
        let (client, admin) = (address(number, 8000), address(number, 8001));
        let arguments =
            format!("serve --config {} --client {client} --admin {admin}", file.display());
        let (program, cores) = (program.to_owned(), cores.to_vec());
        let mut node = Self { client, admin, program, arguments, workers, cores, process: None };
        node.begin()?;
        Ok(node)
    }

    /// Starts again after [`kill`](Self::kill) or [`stop`](Self::stop).
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        let command = format!("{} {} --workers {}", self.program, self.arguments, self.workers);
        self.process = Some(Process::start(&command, &self.cores, self.admin, None)?);
        Ok(())
    }

    /// Kills it with `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Stops it as an operator does: its clients are disconnected.
    pub(crate) fn stop(&mut self) {
        self.process = None;
    }

    pub(crate) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Returns the process, if it was not ended.
    pub(crate) fn into_process(self) -> Option<Process> {
        self.process
    }

    pub(crate) fn admin_client(&self) -> Result<Client, Error> {
        Ok(Client::connect(self.admin)?.with_token(ADMIN_TOKEN))
    }

    /// Waits until it can publish to every channel and, in a cluster, is a member.
    pub(crate) fn ready(&self) -> Result<(), Error> {
        let until = Instant::now() + READY_TIMEOUT;
        loop {
            let mut client = self.admin_client()?;
            client.call("GET", "/health", "application/json", b"")?;
            let health: serde_json::Value =
                serde_json::from_slice(client.body()).unwrap_or_default();
            let engine = health["engines"]["main"].as_str();
            let cluster = health["cluster"].as_str();
            if engine.is_none_or(|state| state == "ready")
                && cluster.is_none_or(|state| state == "member" || state == "record_lost")
            {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(Error::new(format!("a node does not become ready: {health}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
