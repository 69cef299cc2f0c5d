//! A slow backend for proxies and webhooks, and the ordinary clients that depend on it beside an attack.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use super::client::{AttackPlan, connect_as, frame};
use crate::token;
use dunlin_load::clock::{Percentiles, new_histogram};
use dunlin_load::{Context, Error};

/// The time that the backend takes for each request.
const DELAY: Duration = Duration::from_millis(50);
/// The interval between two victims.
const EVERY: Duration = Duration::from_millis(20);
/// A victim that waits longer is counted as not served.
const VICTIM_TIMEOUT: Duration = Duration::from_secs(10);

/// What the victims of an attack use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    /// A remote procedure, over a proxy.
    Calls,
    /// The event of a connect, over a webhook.
    Events,
}

/// A backend in this process. Its threads end with their connections.
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) address: SocketAddr,
    /// When the `connect` event of a client has arrived.
    arrived: Arc<Mutex<HashMap<String, Instant>>>,
}

/// How the victims were served.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Victims {
    pub(super) asked: u64,
    pub(super) served: u64,
    pub(super) calm_p99_us: f64,
    pub(super) p99_us: f64,
}

impl Backend {
    pub(super) fn start() -> Result<Backend, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
        let address = listener.local_addr().context("cannot listen")?;
        let arrived: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
        let heard = Arc::clone(&arrived);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let heard = Arc::clone(&heard);
                std::thread::spawn(move || answer(stream, &heard));
            }
        });
        Ok(Backend { address, arrived })
    }

    fn take(&self, client: &str) -> Option<Instant> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).remove(client)
    }
}

/// Answers the requests of a connection, each after a while.
fn answer(mut stream: TcpStream, arrived: &Mutex<HashMap<String, Instant>>) -> io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line)? == 0 {
                return Ok(());
            }
            match line.trim_end().split_once(": ") {
                Some((name, of)) if name.eq_ignore_ascii_case("content-length") => {
                    length = of.parse().unwrap_or(0);
                }
                None if line == "\r\n" => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        lines.read_exact(&mut body)?;
        std::thread::sleep(DELAY);
        if let Ok(Value::Array(events)) = serde_json::from_slice(&body) {
            let mut arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
            let connects = events.iter().filter(|event| event["event"] == "connect");
            for client in connects.filter_map(|event| event["client"].as_str()) {
                arrived.insert(client.to_owned(), Instant::now());
            }
        }
        let body = r#"{"result":{"data":1}}"#;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + body).as_bytes())?;
    }
}

impl Service {
    /// Serves victims until `over`, one every few milliseconds. Returns how many were served of how many, and the p99 of their
    /// times in microseconds.
    pub(super) fn victims(
        self,
        plan: &AttackPlan,
        backend: &Backend,
        over: &AtomicBool,
    ) -> (u64, u64, f64) {
        let mut times = new_histogram();
        let (mut asked, mut served) = (0, 0);
        let mut record = |time: Option<Duration>| {
            if let Some(time) = time {
                served += 1;
                // Beyond what a histogram has, it is the longest.
                times.saturating_record(time.as_nanos() as u64);
            }
        };
        let mut waiting: Vec<(String, Instant)> = Vec::new();
        while !over.load(Ordering::Relaxed) {
            asked += 1;
            let user = format!("victim{asked}");
            match self {
                Service::Calls => record(call(plan, &user).ok()),
                Service::Events => {
                    let began = Instant::now();
                    if let Ok((_, client)) = connect_as(plan, &token_of(&user, &json!({}))) {
                        waiting.push((client, began));
                    }
                }
            }
            std::thread::sleep(EVERY);
        }
        let until = Instant::now() + VICTIM_TIMEOUT;
        for (client, began) in waiting {
            let mut at = backend.take(&client);
            while at.is_none() && Instant::now() < until {
                std::thread::sleep(EVERY);
                at = backend.take(&client);
            }
            record(at.map(|at| at - began));
        }
        (asked, served, Percentiles::of(&times).p99)
    }
}

/// Returns a token of this user.
pub(super) fn token_of(user: &str, meta: &Value) -> String {
    token::hs256(&json!({"sub": user, "meta": meta}))
}

/// Connects a user, and returns the time of one call.
fn call(plan: &AttackPlan, user: &str) -> io::Result<Duration> {
    let (mut stream, _) = connect_as(plan, &token_of(user, &json!({})))?;
    stream.set_read_timeout(Some(VICTIM_TIMEOUT))?;
    let mut bytes = Vec::new();
    frame(r#"{"id":2,"rpc":{"method":"a","data":1}}"#, &mut bytes);
    let began = Instant::now();
    stream.write_all(&bytes)?;
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    while memchr::memmem::find(&answer, b"\"id\":2").is_none() {
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => answer.extend_from_slice(&piece[..read]),
        }
    }
    match memchr::memmem::find(&answer, b"\"error\"") {
        None => Ok(began.elapsed()),
        Some(_) => Err(io::ErrorKind::Other.into()),
    }
}
