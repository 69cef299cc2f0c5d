//! Workers and the admin thread in this process, and clients of both ports, for the tests of this module.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dunlin_config::store::{Disk, InitialConfig, Store};
use dunlin_config::{Config, Log, Secret};
use serde_json::{Value, json};

use crate::admin::reservations::{Reservations, ServedAddrs};
use crate::admin::{Admin, AdminParams, AdminThread, Cx, OperatorAccess};
use crate::message::bus::{Endpoint, SmallBus};
use crate::message::control::ControlMessage;
use crate::message::worker::WorkerMessage;
use crate::state::settings::Settings;
use crate::state::{Lifecycle, ServerState};
use crate::worker::listeners::listen;
use crate::worker::thread::{Placement, Workers};

/// Time limit of any step; a step that takes longer has failed.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// The token in a server's state directory. Tests send it unless they are about tokens.
pub(super) const OPERATOR: &str = "the operator's token";

/// Workers and the admin thread, in this process.
pub(super) struct TestServer {
    pub(super) state: Arc<ServerState>,
    control: Mutex<Endpoint<ControlMessage>>,
    workers: Mutex<Option<Workers>>,
    admin: Option<AdminThread>,
    pub(super) clients: SocketAddr,
    pub(super) address: SocketAddr,
    pub(super) token: Option<&'static str>,
    /// The `log` settings that were passed to `on_log`.
    pub(super) logs: Arc<Mutex<Vec<Log>>>,
    /// The directory of the Unix socket.
    scratch: tempfile::TempDir,
}

/// A response of the admin port.
#[derive(Debug)]
pub(super) struct TestResponse {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl TestResponse {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub(super) fn problem(&self) -> String {
        self.json()["type"].as_str().unwrap_or_default().to_owned()
    }
}

impl TestServer {
    pub(super) fn start(workers: usize) -> TestServer {
        TestServer::begin(workers, development(), None)
    }

    pub(super) fn begin(workers: usize, config: Config, disk: Option<Box<dyn Disk>>) -> TestServer {
        TestServer::begin_as(workers, config, disk, true)
    }

    /// Starts a server with or without the operator's token and socket of a state directory.
    pub(super) fn begin_as(
        workers: usize,
        config: Config,
        disk: Option<Box<dyn Disk>>,
        has_operator: bool,
    ) -> TestServer {
        let start = InitialConfig {
            config: Ok(config),
            name: "test".into(),
            judge: crate::validation::settings,
        };
        let (store, _) = Store::open(disk, start, 0).unwrap();
        let listeners = listen(SocketAddr::from(([127, 0, 0, 1], 0)), workers, 1024).unwrap();
        let clients = listeners[0].local_addr().unwrap();
        let boot = listeners.iter().map(|listener| listener.try_clone().unwrap()).collect();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let SmallBus { workers: endpoints, control, admin: endpoint } =
            SmallBus::open(workers).unwrap();
        let settings = Settings::new(Arc::clone(store.head()));
        let state = Arc::new(ServerState::new(settings, workers, [7; 16], String::new()));
        let _ = state.monitor.set(control.monitor());
        let doorbells = [control.doorbell(), endpoint.doorbell()];
        let placement = Placement { own_descriptor_tables: true, pinned: false };
        let mut threads =
            Workers::start(&state, endpoints, &doorbells, listeners, placement).unwrap();
        threads.wait_until_ready().unwrap();
        state.set_lifecycle(Lifecycle::Serving);
        let reservations = Reservations::new(ServedAddrs::of(&store.head().config), has_operator);
        let logs = Arc::new(Mutex::new(Vec::new()));
        let given = Arc::clone(&logs);
        let on_log = Box::new(move |log: &Log| given.lock().unwrap().push(log.clone()));
        let scratch = tempfile::tempdir().unwrap();
        let socket_path = scratch.path().join("admin-socket");
        let parts = AdminParams {
            reload: None,
            state: Arc::clone(&state),
            push: None,
            endpoint,
            store,
            reservations,
            listener,
            operator: has_operator.then(|| OperatorAccess {
                token: Secret::new(OPERATOR),
                socket: Some(socket_path.clone()),
            }),
            revocation_log: None,
            socket: has_operator.then(|| UnixListener::bind(&socket_path).unwrap()),
            boot,
            on_log,
            counters: Arc::default(),
        };
        let admin = Some(AdminThread::start(parts).unwrap());
        let (control, workers) = (Mutex::new(control), Mutex::new(Some(threads)));
        let token = Some(OPERATOR);
        TestServer { state, control, workers, admin, clients, address, token, logs, scratch }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.scratch.path().join("admin-socket")
    }

    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    pub(super) fn call(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TestResponse {
        let mut stream = self.connect();
        self.send(&mut stream, method, target, headers, body);
        receive(&mut stream)
    }

    pub(super) fn send(
        &self,
        stream: &mut TcpStream,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) {
        let mut text = format!("{method} {target} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            text += "Host: dunlin\r\n";
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        if let Some(token) = self.token {
            text += &format!("Authorization: Bearer {token}\r\n");
        }
        text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(text.as_bytes()).unwrap();
    }

    pub(super) fn get(&self, target: &str) -> TestResponse {
        self.call("GET", target, &[], "")
    }

    pub(super) fn put(&self, target: &str, body: &str) -> TestResponse {
        self.call("PUT", target, &[], body)
    }

    pub(super) fn merge(&self, target: &str, patch: &Value) -> TestResponse {
        let media = [("Content-Type", "application/merge-patch+json")];
        self.call("PATCH", target, &media, &patch.to_string())
    }

    pub(super) fn revision(&self) -> u64 {
        self.get("/config/revisions?limit=0").json()["current"].as_u64().unwrap()
    }

    /// Runs a closure on the admin thread.
    pub(super) fn on_admin<R: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Admin, &mut Cx) -> R + Send + 'static,
    ) -> R {
        let (done, result) = channel();
        let remote = &self.admin.as_ref().unwrap().remote;
        assert!(remote.run(move |admin, cx| drop(done.send(run(admin, cx)))).is_ok());
        result.recv_timeout(TIMEOUT).unwrap()
    }

    /// Blocks a worker in its turn until the result is dropped. The turn has begun when this returns.
    pub(super) fn stall(&mut self, worker: usize) -> Sender<()> {
        let (stalled, stalls) = channel();
        let (release, until) = channel();
        let control = self.control.get_mut().unwrap();
        assert!(
            control
                .send(self.state.bus.worker(worker), WorkerMessage::Stall(stalled, until))
                .is_ok()
        );
        control.flush();
        stalls.recv_timeout(TIMEOUT).expect("the worker takes it");
        release
    }

    /// Waits until `done`, performing the control thread's duties meanwhile.
    pub(super) fn wait_until(&mut self, mut done: impl FnMut(&TestServer) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !done(self) {
            assert!(Instant::now() < deadline, "it never came to be");
            if let Some(workers) = self.workers.get_mut().unwrap() {
                workers.look_after().unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until every worker has adopted the newest settings, and has ended the turn in which it did.
    pub(super) fn wait_until_adopted(&self) {
        let stats = &self.state.loop_stats;
        let sleeps: Vec<u64> = stats.iter().map(|of| of.sleep_count()).collect();
        let revision = self.state.settings.load().revision;
        let adopted = |worker: usize| {
            let of = &stats[worker];
            // One that was about to sleep, and one more that followed a turn.
            of.revision() >= revision && of.sleep_count() >= sleeps[worker] + 2
        };
        let deadline = Instant::now() + TIMEOUT;
        while !(0..self.state.workers()).all(adopted) {
            assert!(Instant::now() < deadline, "revision {revision} was not adopted");
            let mut control = self.control.lock().unwrap();
            for worker in 0..self.state.workers() {
                let to = self.state.bus.worker(worker);
                let _ = control.send(to, WorkerMessage::AdoptSettings);
            }
            control.flush();
            drop(control);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn publish(&self, channel: &str, data: u64) -> String {
        let mut stream = TcpStream::connect(self.clients).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let body = json!({ "channel": channel, "data": data }).to_string();
        let head =
            format!("POST /api/publish HTTP/1.1\r\nHost: d\r\nContent-Length: {}", body.len());
        write!(stream, "{head}\r\n\r\n{body}").unwrap();
        receive(&mut stream).body
    }

    pub(super) fn subscribe(&self, channel: &str) -> Subscriber {
        Subscriber::at(self.clients, channel, "")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(admin) = self.admin.take() {
            admin.stop(TIMEOUT);
        }
        let control = self.control.get_mut().unwrap();
        for worker in 0..self.state.workers() {
            let _ = control.send(self.state.bus.worker(worker), WorkerMessage::Stop);
        }
        control.flush();
        if let Some(mut workers) = self.workers.get_mut().unwrap().take() {
            workers.join(TIMEOUT);
        }
    }
}

pub(super) fn development() -> Config {
    let mut config = Config::development();
    config.channel.any_namespace = false;
    config.shutdown.reconnect_spread_ms = 0;
    config
}

pub(super) fn receive(stream: &mut impl Read) -> TestResponse {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).unwrap() > 0, "closed before an answer: {head}");
        if line == "\r\n" {
            break;
        }
        head += line.trim_end();
        head.push('\n');
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let answer = TestResponse { status, head, body: String::new() };
    let length = answer.header("Content-Length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    TestResponse { body: String::from_utf8(body).unwrap(), ..answer }
}

/// A client of `/connection/uni_http_stream`, which sends one JSON object per line.
pub(super) struct Subscriber(BufReader<TcpStream>);

impl Subscriber {
    pub(super) fn at(address: SocketAddr, channel: &str, token: &str) -> Subscriber {
        Subscriber::to(address, &[channel], token)
    }

    pub(super) fn to(address: SocketAddr, channels: &[&str], token: &str) -> Subscriber {
        let (subscriber, first) = Subscriber::open(address, channels, token);
        assert!(first["connect"]["client"].is_string(), "{first}");
        subscriber
    }

    /// Returns the first message that a client gets: the connect push or the error.
    pub(super) fn begin(address: SocketAddr, channels: &[&str], token: &str) -> Value {
        Subscriber::open(address, channels, token).1
    }

    /// Takes what has come, and returns whether the connection is still open.
    pub(super) fn is_open(&mut self) -> bool {
        self.0.get_ref().set_nonblocking(true).unwrap();
        let open = loop {
            match self.0.fill_buf().map(<[u8]>::len) {
                Ok(0) => break false,
                Ok(bytes) => self.0.consume(bytes),
                Err(error) => break error.kind() == std::io::ErrorKind::WouldBlock,
            }
        };
        self.0.get_ref().set_nonblocking(false).unwrap();
        open
    }

    fn open(address: SocketAddr, channels: &[&str], token: &str) -> (Subscriber, Value) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let subs: serde_json::Map<String, Value> =
            channels.iter().map(|&channel| (channel.to_owned(), json!({}))).collect();
        let body = json!({ "token": token, "subs": subs }).to_string();
        write!(
            stream,
            "POST /connection/uni_http_stream HTTP/1.1\r\nHost: d\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut subscriber = Subscriber(BufReader::new(stream));
        let first = subscriber.next().expect("a push");
        (subscriber, first)
    }

    /// Returns the next push except pings; `None` at the end of the stream.
    pub(super) fn next(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            match self.0.read_line(&mut line) {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
            if line.starts_with('{') && line.trim_end() != "{}" {
                return Some(serde_json::from_str(&line).unwrap());
            }
        }
    }

    pub(super) fn publication(&mut self) -> Value {
        self.next().expect("a publication")["pub"].clone()
    }
}

/// A reader of the watch.
pub(super) struct Watch(BufReader<TcpStream>);

impl Watch {
    pub(super) fn begin(server: &TestServer, target: &str) -> Watch {
        let mut stream = server.connect();
        server.send(&mut stream, "GET", target, &[], "");
        Watch(BufReader::new(stream))
    }

    /// Returns id and data of the next event of kind `wanted`.
    pub(super) fn next(&mut self, wanted: &str) -> (String, Value) {
        let (mut kind, mut id) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream ended");
            let line = line.trim_end();
            if let Some(value) = line.strip_prefix("event: ") {
                kind = value.to_owned();
            } else if let Some(value) = line.strip_prefix("id: ") {
                id = value.to_owned();
            } else if let Some(value) = line.strip_prefix("data: ")
                && kind == wanted
            {
                return (id, serde_json::from_str(value).unwrap());
            }
        }
    }
}
