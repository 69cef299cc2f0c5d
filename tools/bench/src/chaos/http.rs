//! Clients over plain HTTP that follow channels: long-polls, server-sent events and HTTP streams. Each has a thread and a
//! blocking socket, and goes to another node with each request.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::clients::{CHANNELS, Phase, Progress, Shared, read};
use super::ledger::{Arrival, Follower};
use dunlin_wire::backoff::Jitter;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one read blocks before the client looks at its other duties.
const READ_TIMEOUT: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_millis(200);
/// A response that is late by this much is given up, because its node may be stopped.
const LATE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time that a poll asks the server to wait, in milliseconds.
const POLL_MS: u64 = 5_000;
/// One poll in this many is given up before its response.
const GIVEN_UP: u64 = 6;
/// Streams are silent for this long at most: their pings come every 25 seconds.
const SILENCE: Duration = Duration::from_secs(40);

/// A transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Poll,
    UniSse,
    /// Server-sent events as a browser's `EventSource` has them: after a cut it asks for its first URL again, and so for what
    /// it has received since.
    EventSource,
    UniHttpStream,
}

impl Transport {
    /// Returns the transport of the stream at this index.
    pub(super) fn of_stream(index: usize) -> Transport {
        [Transport::UniSse, Transport::EventSource, Transport::UniHttpStream][index % 3]
    }
}

/// A client, from before its first request to the end of the run.
struct Client<'a> {
    shared: &'a Shared,
    progress: &'a Progress,
    number: usize,
    random: Jitter,
    slots: [Slot; CHANNELS],
}

#[derive(Clone, Copy)]
struct Slot {
    channel: usize,
    follower: Follower,
    live: bool,
}

/// How a request ended without a response.
struct Cut;

/// Runs client `number` until the phase is [`Phase::End`].
pub(super) fn run(
    shared: &Shared,
    progress: &Progress,
    number: usize,
    transport: Transport,
    seed: u64,
) {
    let slot = |at| Slot {
        channel: shared.http_channel(number, at),
        follower: Follower::default(),
        live: false,
    };
    let random = Jitter::new(seed ^ (number as u64) << 16);
    let slots = std::array::from_fn(slot);
    let mut client = Client { shared, progress, number, random, slots };
    client.report();
    match transport {
        Transport::Poll => client.poll(),
        _ => client.stream(transport),
    }
    for slot in &client.slots {
        shared.ledger.ended(slot.channel, number, &slot.follower);
    }
}

impl Client<'_> {
    /// Updates what the run waits for.
    fn report(&self) {
        let missing = self.slots.iter().filter(|slot| !slot.live).count();
        let stays = self.shared.is(Phase::Stay);
        let is_behind =
            |slot: &&Slot| stays && slot.follower.last != self.shared.ledger.last(slot.channel);
        let behind = self.slots.iter().filter(is_behind).count();
        self.progress.missing.store(missing as u64, Ordering::Release);
        self.progress.behind.store(behind as u64, Ordering::Release);
    }

    fn is_over(&self) -> bool {
        self.shared.is(Phase::End)
    }

    /// Sends a request to any node. Returns the connection.
    fn send(&mut self, request: &str) -> Result<TcpStream, Cut> {
        let nodes = &self.shared.nodes;
        let node = nodes[self.random.below(nodes.len() as u64) as usize];
        let mut stream = TcpStream::connect_timeout(&node, CONNECT_TIMEOUT).map_err(|_| Cut)?;
        stream.set_read_timeout(Some(READ_TIMEOUT)).map_err(|_| Cut)?;
        stream.write_all(request.as_bytes()).map_err(|_| Cut)?;
        Ok(stream)
    }

    fn was_cut(&self) {
        self.shared.counts.cut.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(RETRY);
    }

    fn wrong(&self, kind: &'static str, what: impl std::fmt::Display) {
        self.shared.ledger.wrong(kind, format!("client {}: {what}", self.number));
    }

    /// Polls with the last cursor, at another node each time.
    fn poll(&mut self) {
        let names: String =
            self.slots.iter().map(|slot| format!("channel=c{}&", slot.channel)).collect();
        // Half of the clients begin at the beginning of the history.
        let mut cursor = if self.number.is_multiple_of(2) { String::new() } else { "0".to_owned() };
        while !self.is_over() {
            let wait_ms = self.random.below(POLL_MS);
            let timeout = match self.random.below(GIVEN_UP) {
                0 => Duration::from_millis(self.random.below(wait_ms + 1)),
                _ => Duration::from_millis(wait_ms) + LATE_TIMEOUT,
            };
            let cursor_part = if cursor.is_empty() { "" } else { "&cursor=" };
            let request = format!(
                "GET /connection/poll?{names}timeout={wait_ms}ms{cursor_part}{cursor} HTTP/1.1\r\n\
                 Host: chaos\r\nConnection: close\r\n\r\n"
            );
            let response = self.send(&request).and_then(|stream| self.response(stream, timeout));
            match response {
                Err(Cut) => self.was_cut(),
                Ok((200, body)) => match self.polled(&body) {
                    Some(next) => cursor = next,
                    None => self.wrong("an answer of another kind", body),
                },
                Ok((429 | 503, _)) => {
                    self.shared.counts.refused.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(RETRY);
                }
                Ok((status, body)) => {
                    self.wrong("a poll that was refused", format_args!("{status} {body}"));
                    std::thread::sleep(RETRY);
                }
            }
            self.report();
        }
    }

    /// Reads a whole response, within the timeout of the client.
    fn response(&self, mut stream: TcpStream, timeout: Duration) -> Result<(u16, Value), Cut> {
        let (mut response, until) = (Vec::new(), Instant::now() + timeout);
        let mut piece = [0; 16 << 10];
        loop {
            match stream.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => response.extend_from_slice(&piece[..length]),
                Err(error) if is_timeout(&error) => {
                    if Instant::now() > until || self.is_over() {
                        return Err(Cut);
                    }
                    self.report();
                }
                Err(_) => return Err(Cut),
            }
        }
        let end = memchr::memmem::find(&response, b"\r\n\r\n").ok_or(Cut)?;
        let head = str::from_utf8(&response[..end]).map_err(|_| Cut)?;
        let status = head.get(9..12).and_then(|status| status.parse().ok()).ok_or(Cut)?;
        // A response that was cut is no JSON, and its client keeps its cursor.
        serde_json::from_slice(&response[end + 4..]).map(|body| (status, body)).map_err(|_| Cut)
    }

    /// Takes a response. Returns the next cursor; `None` if something is missing in it.
    fn polled(&mut self, body: &Value) -> Option<String> {
        let publications = body["publications"].as_array()?;
        let gaps = || body["gap"].as_array().into_iter().flatten();
        for slot in &mut self.slots {
            let name = format!("c{}", slot.channel);
            let of = |value: &&Value| value["channel"] == *name;
            let numbers: Option<Vec<u32>> =
                publications.iter().filter(of).map(|of| Some(read(of)?.1)).collect();
            let epoch = body["positions"][&name]["epoch"].as_str().unwrap_or_default();
            let has_gap = gaps().any(|gap| of(&gap));
            let (ledger, follower) = (&self.shared.ledger, &mut slot.follower);
            ledger.polled(slot.channel, self.number, follower, (epoch, has_gap), &numbers?);
            slot.live = true;
        }
        self.shared.counts.polls.fetch_add(1, Ordering::Relaxed);
        Some(body["cursor"].as_str()?.to_owned())
    }

    /// Opens streams, one after the other.
    fn stream(&mut self, transport: Transport) {
        let mut first = self.slots;
        while !self.is_over() {
            let request = self.connect_request(transport);
            let stay_ms = self.shared.stay.as_millis() as u64;
            let stay = Duration::from_millis(stay_ms / 4 + self.random.below(stay_ms * 3 / 2 + 1));
            let moved = match self.send(&request) {
                Ok(stream) => self.follow(stream, Instant::now() + stay),
                Err(Cut) => Err(Cut),
            };
            self.slots.iter_mut().for_each(|slot| slot.live = false);
            self.report();
            match moved {
                Ok(()) => {
                    self.shared.counts.moves.fetch_add(1, Ordering::Relaxed);
                    first = self.slots;
                }
                Err(Cut) => self.was_cut(),
            }
            if transport == Transport::EventSource {
                self.slots = first;
            }
        }
    }

    fn connect_request(&self, transport: Transport) -> String {
        let mut subs = serde_json::Map::new();
        for slot in &self.slots {
            let sub = match slot.follower.position {
                None => json!({}),
                Some(position) => json!({
                    "recover": true,
                    "offset": position.offset,
                    "epoch": self.shared.ledger.epoch(slot.channel, position),
                }),
            };
            subs.insert(format!("c{}", slot.channel), sub);
        }
        let connect = json!({ "subs": subs }).to_string();
        // HTTP/1.0: the body is not chunked.
        match transport {
            Transport::UniHttpStream => format!(
                "POST /connection/uni_http_stream HTTP/1.0\r\nHost: chaos\r\nContent-Length: {}\r\n\r\n{connect}",
                connect.len()
            ),
            _ => {
                let mut query = String::new();
                for byte in connect.bytes() {
                    let _ = write!(query, "%{byte:02x}");
                }
                format!(
                    "GET /connection/uni_sse?cf_connect={query} HTTP/1.0\r\nHost: chaos\r\n\r\n"
                )
            }
        }
    }

    /// Follows a stream until the client moves. Fails when the stream ends or falls silent.
    fn follow(&mut self, stream: TcpStream, until: Instant) -> Result<(), Cut> {
        let (mut reader, mut line) = (BufReader::new(stream), Vec::new());
        let (mut heard, mut ended) = (Instant::now(), None::<Instant>);
        loop {
            if self.is_over() || Instant::now() > until && !self.shared.is(Phase::Stay) {
                return Ok(());
            }
            let timeout =
                if self.slots.iter().any(|slot| slot.live) { SILENCE } else { LATE_TIMEOUT };
            if heard.elapsed() > timeout {
                return Err(Cut);
            }
            if ended.is_some_and(|since| since.elapsed() > LATE_TIMEOUT) {
                self.wrong("a stream that goes on without its subscription", "unsubscribed");
                return Err(Cut);
            }
            match reader.read_until(b'\n', &mut line) {
                Ok(0) => return Err(Cut),
                Ok(_) if line.ends_with(b"\n") => heard = Instant::now(),
                Ok(_) => continue,
                Err(error) if is_timeout(&error) => {
                    self.report();
                    continue;
                }
                Err(_) => return Err(Cut),
            }
            let text = line.strip_prefix(b"data: ").unwrap_or(&line).trim_ascii();
            if text.starts_with(b"{") {
                let Ok(event) = serde_json::from_slice::<Value>(text) else { return Err(Cut) };
                if !self.on_event(&event)? {
                    ended.get_or_insert(Instant::now());
                }
                self.report();
            }
            line.clear();
        }
    }

    /// Takes an event of a stream. Returns false if a subscription has ended.
    fn on_event(&mut self, event: &Value) -> Result<bool, Cut> {
        if let Some(connect) = event.get("connect") {
            return self.connected(&connect["subs"]).map(|()| true);
        }
        if event.get("disconnect").is_some() {
            return Err(Cut);
        }
        let (ledger, number) = (&self.shared.ledger, self.number);
        let mut slots = self.slots.iter_mut();
        let slot = slots.find(|slot| event["channel"] == *format!("c{}", slot.channel));
        if let (Some(publication), Some(slot)) = (event.get("pub"), slot) {
            let Some((offset, message)) = read(publication) else {
                self.wrong("an answer of another kind", event);
                return Err(Cut);
            };
            let arrival = Arrival { offset, number: message, crosses: false };
            ledger.published(slot.channel, number, &mut slot.follower, arrival);
        } else if event.get("unsubscribe").is_some() {
            self.shared.counts.unsubscribed.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
        Ok(true)
    }

    fn connected(&mut self, subs: &Value) -> Result<(), Cut> {
        self.shared.counts.connects.fetch_add(1, Ordering::Relaxed);
        for at in 0..self.slots.len() {
            let slot = &mut self.slots[at];
            let sub = &subs[format!("c{}", slot.channel)];
            let publications: Option<Vec<(u64, u32)>> =
                sub["publications"].as_array().into_iter().flatten().map(read).collect();
            let (Some(publications), Some(epoch)) = (publications, sub["epoch"].as_str()) else {
                self.wrong("an answer of another kind", subs);
                return Err(Cut);
            };
            let recovered = sub["recovered"] == true;
            if slot.follower.position.is_some() {
                let counts = &self.shared.counts;
                let count = if recovered { &counts.recovered } else { &counts.notified };
                count.fetch_add(1, Ordering::Relaxed);
            }
            let position = (epoch, sub["offset"].as_u64().unwrap_or(0));
            let recovered = recovered.then_some(&publications[..]);
            let (ledger, follower) = (&self.shared.ledger, &mut slot.follower);
            ledger.subscribed(slot.channel, self.number, follower, position, recovered);
            slot.live = true;
        }
        Ok(())
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
