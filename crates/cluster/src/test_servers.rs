//! Servers of stores for tests, and a wire to them that can lose answers and be cut.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

use super::byte_stream::ByteStream;

/// A process that ends with the test.
pub(super) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server. Returns it with the first line of its log that contains `ready`.
fn begin(mut command: Command, ready: &str, is_stderr: bool) -> (Running, String) {
    let (out, err) = match is_stderr {
        true => (Stdio::null(), Stdio::piped()),
        false => (Stdio::piped(), Stdio::null()),
    };
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.stdout(out).stderr(err).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{name}: {error}; scripts/packages"));
    let log: Box<dyn std::io::Read + Send> = match is_stderr {
        true => Box::new(child.stderr.take().unwrap()),
        false => Box::new(child.stdout.take().unwrap()),
    };
    let mut lines = BufReader::new(log).lines().map_while(Result::ok);
    let line = lines.by_ref().find(|line| line.contains(ready));
    let line = line.unwrap_or_else(|| panic!("{name} does not start"));
    // It keeps writing, and must not block on a full pipe.
    std::thread::spawn(move || lines.for_each(drop));
    (Running(child), line)
}

/// A Redis server on a Unix socket.
pub(super) struct Redis {
    directory: tempfile::TempDir,
    _running: Running,
}

impl Redis {
    pub(super) fn start(arguments: &[&str]) -> Redis {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--dir"]).arg(directory.path());
        command.arg("--unixsocket").arg(directory.path().join("socket")).args(arguments);
        let (running, _) = begin(command, "ready to accept connections", false);
        Redis { directory, _running: running }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// The server, as an address of an engine.
    pub(super) fn server(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// Returns the output of redis-cli for a command.
    pub(super) fn cli(&self, arguments: &[&str]) -> String {
        let output =
            Command::new("redis-cli").arg("-s").arg(self.socket()).args(arguments).output();
        String::from_utf8_lossy(&output.unwrap().stdout).trim().to_owned()
    }
}

/// A NATS server with JetStream.
pub(super) struct Nats {
    /// Host and port.
    pub(super) server: String,
    _running: Running,
    _directory: tempfile::TempDir,
}

impl Nats {
    pub(super) fn start() -> Nats {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("nats-server");
        command.args(["-a", "127.0.0.1", "-p", "-1", "-js", "-sd"]).arg(directory.path());
        let listening = "Listening for client connections on ";
        let (running, line) = begin(command, listening, true);
        let server = line.split_once(listening).unwrap().1.to_owned();
        Nats { server, _running: running, _directory: directory }
    }

    /// Starts a server with a file of settings.
    pub(super) fn start_with(settings: &Path) -> Running {
        let mut command = Command::new("nats-server");
        command.arg("-c").arg(settings);
        begin(command, "Listening for client connections", true).0
    }
}

/// What a wire carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WireState {
    Whole,
    /// Bytes of the client arrive, those of the server do not.
    Mute,
    Cut,
}

/// A proxy before a server.
pub(super) struct Wire {
    /// Host and port.
    pub(super) address: String,
    state: watch::Sender<WireState>,
}

impl Wire {
    /// Leads to a server: `unix:PATH`, or host and port.
    pub(super) async fn to(server: String) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (state, watching) = watch::channel(WireState::Whole);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, watching) = (server.clone(), watching.clone());
                tokio::spawn(async move {
                    let server: Box<dyn ByteStream> = match server.strip_prefix("unix:") {
                        Some(path) => Box::new(UnixStream::connect(path).await.unwrap()),
                        None => Box::new(TcpStream::connect(&server).await.unwrap()),
                    };
                    let mut cut = watching.clone();
                    tokio::select! {
                        () = carry(client, server, watching) => {}
                        _ = cut.wait_for(|state| *state == WireState::Cut) => {}
                    }
                });
            }
        });
        Wire { address, state }
    }

    /// Loses all that the server sends from now on.
    pub(super) fn mute(&self) {
        self.state.send_replace(WireState::Mute);
    }

    pub(super) fn cut(&self) {
        self.state.send_replace(WireState::Cut);
    }
}

async fn carry(client: TcpStream, server: Box<dyn ByteStream>, state: watch::Receiver<WireState>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let down = async {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
            let is_mute = *state.borrow() == WireState::Mute;
            if !is_mute && to_client.write_all(&bytes[..count]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = down => {}
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
    }
}
