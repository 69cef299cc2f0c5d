//! Whole workers in one process, with sockets: what no single module can show.

mod budgets;
mod edge;
mod engines;
mod memory;
mod pages;
mod polls;
mod programs;
mod protocols;
pub(crate) mod proxies;
mod pusher;
mod turns;
mod upstreams;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use dunlin_config::{Config, Secret};
use dunlin_hub::SessionId;

use crate::message::bus::{Endpoint, SmallBus};
use crate::message::control::ControlMessage;
use crate::message::worker::WorkerMessage;
use crate::metrics::Metric;
use crate::state::settings::Settings;
use crate::state::{Lifecycle, ServerState};
use crate::worker::listeners::listen;
use crate::worker::thread::{Placement, Workers};

/// Longer than anything here takes; a read that takes longer has failed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Workers without the control thread around them.
pub(crate) struct Cluster {
    pub(crate) state: Arc<ServerState>,
    control: Endpoint<ControlMessage>,
    workers: Workers,
    pub(crate) address: SocketAddr,
}

impl Cluster {
    fn start(workers: usize) -> Self {
        Self::start_with(workers, |_| {})
    }

    pub(crate) fn start_with(workers: usize, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::development();
        config.shutdown.reconnect_spread_ms = 0;
        change(&mut config);
        let listeners = listen(SocketAddr::from(([127, 0, 0, 1], 0)), workers, 128).unwrap();
        let address = listeners[0].local_addr().unwrap();
        let SmallBus { workers: endpoints, control, .. } = SmallBus::open(workers).unwrap();
        let snapshot = Arc::new(dunlin_config::Snapshot::new(1, config).unwrap());
        let state =
            Arc::new(ServerState::new(Settings::new(snapshot), workers, [7; 16], String::new()));
        let placement = Placement { own_descriptor_tables: true, pinned: false };
        let mut workers = Workers::start(&state, endpoints, &[], listeners, placement).unwrap();
        workers.wait_until_ready().unwrap();
        state.set_lifecycle(Lifecycle::Serving);
        Self { state, control, workers, address }
    }

    pub(crate) fn send(&mut self, worker: usize, message: WorkerMessage) {
        assert!(self.control.send(self.state.bus.worker(worker), message).is_ok());
        self.control.flush();
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        self.call(&format!("POST {path}"), "", body).1
    }

    /// Status and body of the answer to a request with these header lines.
    pub(crate) fn call(&self, line: &str, headers: &str, body: &str) -> (u16, String) {
        let answer = self.exchange(line, &format!("Host: 127.0.0.1\r\n{headers}"), body);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    /// The whole answer to a request with these header lines, `Host` among them.
    pub(crate) fn exchange(&self, line: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{line} HTTP/1.1\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Waits until the control thread's duties have led to this.
    fn look_after_until(&mut self, done: impl Fn(&ServerState) -> bool) {
        let deadline = std::time::Instant::now() + TIMEOUT;
        while !done(&self.state) {
            assert!(std::time::Instant::now() < deadline, "it never came to be");
            self.workers.look_after().unwrap();
            std::thread::yield_now();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for worker in 0..self.state.counters.len() {
            let _ = self.control.send(self.state.bus.worker(worker), WorkerMessage::Stop);
        }
        self.control.flush();
        self.workers.join(TIMEOUT);
    }
}

/// A client of `/connection/uni_http_stream`: one JSON object a line.
pub(crate) struct Listener {
    lines: BufReader<TcpStream>,
    id: SessionId,
}

impl Listener {
    fn connect(address: SocketAddr, channel: &str) -> Self {
        Self::connect_with(address, &format!("{{\"subs\":{{\"{channel}\":{{}}}}}}"))
    }

    fn connect_with(address: SocketAddr, body: &str) -> Self {
        Self::connect_to(address, body).0
    }

    /// The same, with the connect push.
    pub(crate) fn connect_to(address: SocketAddr, body: &str) -> (Self, serde_json::Value) {
        Self::open(address, "/connection/uni_http_stream", body)
    }

    /// A stream, and the first object on it.
    pub(crate) fn open(address: SocketAddr, path: &str, body: &str) -> (Self, serde_json::Value) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut listener =
            Self { lines: BufReader::new(stream), id: SessionId::from_u64(0).unwrap() };
        let connect = listener.next().expect("a connect push");
        if let Some(client) = connect["connect"]["client"].as_str() {
            listener.id = client.parse().unwrap();
        }
        (listener, connect)
    }

    /// The next push; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<serde_json::Value> {
        loop {
            let mut line = String::new();
            match self.lines.read_line(&mut line) {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
            // Heads, chunk sizes and line ends are between the objects.
            if line.starts_with('{') {
                return Some(serde_json::from_str(&line).unwrap());
            }
        }
    }
}

#[test]
fn a_worker_that_panics_takes_no_other_workers_clients_along() {
    let mut cluster = Cluster::start(2);
    let mut listeners: Vec<Listener> =
        (0..40).map(|at| Listener::connect(cluster.address, &format!("room{at}"))).collect();
    let on_first = listeners.iter().filter(|listener| listener.id.worker() == 0).count();
    assert!((1..40).contains(&on_first), "the kernel spreads 40 connections over both");

    cluster.send(0, WorkerMessage::Panic);
    cluster.look_after_until(|state| state.counters[0].get(Metric::Restarts) == 1);
    cluster.look_after_until(|state| state.workers_ready() == 2);
    // A request under way when the new incarnation announces itself is answered with an error.
    for at in 0..16 {
        let body = format!("{{\"channel\":\"probe{at}\",\"data\":1}}");
        let deadline = std::time::Instant::now() + TIMEOUT;
        while !cluster.post("/api/publish", &body).contains("\"offset\"") {
            assert!(std::time::Instant::now() < deadline, "probe{at} is never served");
        }
    }

    // The clients of the other worker are still there, and whoever's channel had its home on the worker that
    // is gone has to subscribe anew.
    let mut gaps = 0;
    for (at, listener) in listeners.iter_mut().enumerate() {
        if listener.id.worker() == 0 {
            assert!(listener.next().is_none(), "a client of the worker that panicked is cut off");
            continue;
        }
        let body = format!("{{\"channel\":\"room{at}\",\"data\":{at}}}");
        let published = cluster.post("/api/publish", &body);
        assert!(published.contains("\"offset\":1"), "room{at}: {published}");
        let push = listener.next().expect("a client of the other worker is served on");
        if push["unsubscribe"]["code"] == 2500 {
            gaps += 1;
        } else {
            assert_eq!(push["pub"]["data"], at, "{push}");
        }
    }
    assert!(gaps > 0, "some channels had their home on the worker that panicked");

    // And the worker that panicked serves again, under other ids than its earlier incarnation.
    let old: Vec<SessionId> = listeners.iter().map(|listener| listener.id).collect();
    let again = (0..40)
        .map(|_| Listener::connect(cluster.address, "news"))
        .find(|listener| listener.id.worker() == 0)
        .expect("the kernel spreads 40 connections over both");
    assert!(!old.contains(&again.id));
}

#[test]
fn every_worker_numbers_and_delivers_the_same_stream() {
    let cluster = Cluster::start(3);
    let mut listeners: Vec<Listener> =
        (0..12).map(|_| Listener::connect(cluster.address, "news")).collect();
    for n in 1..=50 {
        let answer =
            cluster.post("/api/publish", &format!("{{\"channel\":\"news\",\"data\":{n}}}"));
        assert!(answer.contains(&format!("\"offset\":{n},")), "{answer}");
    }
    for listener in &mut listeners {
        for n in 1..=50 {
            let push = listener.next().unwrap();
            assert_eq!((&push["pub"]["offset"], &push["pub"]["data"]), (&n.into(), &n.into()));
        }
    }
}

#[test]
fn draining_says_goodbye_with_a_code_to_come_back_on() {
    let mut cluster = Cluster::start(2);
    let mut listeners: Vec<Listener> =
        (0..8).map(|_| Listener::connect(cluster.address, "news")).collect();
    cluster.state.set_lifecycle(Lifecycle::Draining);
    for worker in 0..2 {
        cluster.send(worker, WorkerMessage::Drain);
    }
    for listener in &mut listeners {
        let push = listener.next().expect("a disconnect push");
        assert_eq!(push["disconnect"]["code"], 3001, "{push}");
        assert!(listener.next().is_none());
    }
    drop(listeners);
    cluster.look_after_until(|state| state.workers_left() == 0);
}

/// Regression: a publisher was refused without a word of whether its message was stored.
#[test]
fn call_refused_while_draining_says_that_nothing_was_stored() {
    let mut cluster = Cluster::start_with(1, |config| {
        config.shutdown.reconnect_spread_ms = 10_000;
        config.shutdown.drain_timeout_ms = 20_000;
    });
    let open = |_| {
        let stream = TcpStream::connect(cluster.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    };
    let mut streams: Vec<TcpStream> = (0..40).map(open).collect();
    // A request of each has been answered, so that all are there.
    let send = |stream: &mut TcpStream, line: &str, body: &str| {
        let length = body.len();
        write!(
            stream,
            "{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let answer = |stream: &mut TcpStream| {
        let mut answer = vec![0; 4096];
        let length = stream.read(&mut answer).unwrap_or(0);
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };
    for stream in &mut streams {
        send(stream, "POST /api/info", "{}").unwrap();
        assert!(answer(stream).starts_with("HTTP/1.1 200"));
    }
    // While a client is there, connections stay open: it may send its commands over any.
    let clients = [(); 20].map(|()| Listener::connect(cluster.address, "news"));
    cluster.send(0, WorkerMessage::Drain);
    let mut first = streams.pop().unwrap();
    let deadline = std::time::Instant::now() + TIMEOUT;
    loop {
        send(&mut first, "POST /api/info", "{}").unwrap();
        if answer(&mut first).starts_with("HTTP/1.1 503") {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "calls are answered still");
    }
    let mut refused = 0;
    for stream in &mut streams {
        for line in ["POST /api/publish", "POST /api/batch", "POST /api/push"] {
            if send(stream, line, "{\"channel\":\"a\",\"data\":1}").is_err() {
                break;
            }
            let answer = answer(stream);
            if answer.is_empty() {
                break;
            }
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
            assert!(answer.contains("nothing was stored"), "{answer}");
            refused += 1;
        }
    }
    assert!(refused > 0, "some connections were still open");
    drop(clients);
}

#[test]
fn a_worker_that_panics_gives_the_places_of_its_connections_back() {
    let mut cluster = Cluster::start(1);
    let clients = [(); 3].map(|()| Listener::connect(cluster.address, "news"));
    assert_eq!(cluster.state.admissions.total(), 3);
    cluster.send(0, WorkerMessage::Panic);
    cluster.look_after_until(|state| state.counters[0].get(Metric::Restarts) == 1);
    assert_eq!(cluster.state.admissions.total(), 0, "of connections that are no more");
    drop(clients);
}

#[test]
fn a_token_that_ends_never_lets_its_client_stay() {
    const KEY: &str = "the backend's own key, long enough";
    let cluster = Cluster::start_with(1, |config| {
        config.client.token.hmac_secret = Some(Secret::new(KEY));
    });
    for exp in [i64::MAX as f64, 1e300] {
        let claims = serde_json::json!({"sub": "ada", "exp": exp});
        let key = jsonwebtoken::EncodingKey::from_secret(KEY.as_bytes());
        let token = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap();
        let body = serde_json::json!({"token": token, "subs": {"news": {}}}).to_string();
        let mut client = Listener::connect_with(cluster.address, &body);
        let answer = cluster.post("/api/publish", "{\"channel\":\"news\",\"data\":1}");
        assert!(answer.contains("\"offset\""), "{answer}");
        let push = client.next().expect("it is still connected");
        assert_eq!(push["pub"]["data"], 1, "{push}");
    }
}

#[test]
fn connections_beyond_the_accept_rate_are_served_later_on_every_listener() {
    // Free a moment ago; another process may still take it.
    let second = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let cluster = Cluster::start_with(1, |config| {
        config.limits.accepts_per_s_max = 5;
        let listener = dunlin_config::Listener { addr: second, ..Default::default() };
        config.listeners.insert("second", listener);
    });
    // Five at once, and then as they are let in.
    let mut clients: Vec<Listener> = Vec::new();
    for _ in 0..6 {
        clients.push(Listener::connect(cluster.address, "news"));
        clients.push(Listener::connect(second, "news"));
    }
    assert!(cluster.state.counters[0].get(Metric::RefusedRate) > 0, "accepting has paused");
    cluster.post("/api/publish", "{\"channel\":\"news\",\"data\":1}");
    for client in &mut clients {
        assert_eq!(client.next().unwrap()["pub"]["data"], 1);
    }
}
