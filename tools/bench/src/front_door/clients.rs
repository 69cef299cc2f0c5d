//! Measures connecting clients: credentials, a backend's decision, subscriptions, and the memory of an idle client.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Cpu, FrontDoor, Round, connected, ended};
use crate::protocol::{ProtocolName, WEBSOCKET_KEY, websocket_frame};
use crate::token::{SECRET, es256, hs256};
use dunlin_load::{Context, Error, Process};

/// Connections that subscribe, each with one command at a time, and the channels that each joins and leaves.
const SUBSCRIBING: usize = 64;
const CHANNELS: usize = 1_000;
/// Concurrent requests of a backend with a pool of workers or database connections, and the duration of each.
const POOL: u32 = 16;
const POOL_TAKES_MS: u32 = 5;
/// Time for the server to free memory after the last connect.
const SETTLED_AFTER: Duration = Duration::from_millis(1_500);
/// Payload of the floor's frame; connects do not receive it.
const MESSAGE_BYTES: u16 = 109;
/// Namespace of an idle client's channel.
const PRESENCE: &str =
    "[channel.namespaces.room]\npresence = true\nallow_subscribe_for_client = true\n";

pub(super) fn connect(options: &FrontDoor) -> Result<Round, Error> {
    connects(options, "", Vec::new())
}

pub(super) fn connect_hs256(options: &FrontDoor) -> Result<Round, Error> {
    let settings = format!("[client.token]\nhmac_secret = \"{SECRET}\"\n");
    connects(options, &settings, tokens(options, |user| json!({"sub": user})))
}

/// Measures connects with ES256. The ratio is CPU of a connect to that of the library's verification.
pub(super) fn connect_es256(options: &FrontDoor) -> Result<Round, Error> {
    let signed = es256(&json!({"sub": "ada"}))?;
    let settings =
        format!("[client.token]\necdsa_public_key = \"\"\"\n{}\"\"\"\n", signed.public_key);
    let round = connects(options, &settings, vec![signed.token])?;
    let verify_us = signed.verify.as_secs_f64() * 1e6;
    Ok(Round { cpu_ratio: round.cpu_us.map(|cpu_us| cpu_us / verify_us), ..round })
}

/// Measures clients that each connect and subscribe.
fn connects(options: &FrontDoor, settings: &str, tokens: Vec<String>) -> Result<Round, Error> {
    let server = options.serve(settings)?;
    let mut plan = options.plan(ProtocolName::Centrifuge, "c{n}", options.clients)?;
    plan.protocol.channel = None;
    plan.protocol.tokens = tokens.into();
    let (began, before) = (Instant::now(), Cpu::of(&server));
    let (swarm, lost) = connected(&plan)?;
    let seconds = began.elapsed().as_secs_f64();
    let (cpu_us, user_us) = Cpu::each_us(before, &server, options.clients as u64);
    drop((swarm, server));
    let floor = options.floor(MESSAGE_BYTES)?;
    let before = Cpu::of(&floor);
    let (swarm, _) = connected(&options.plan(ProtocolName::Websocket, "c", options.clients)?)?;
    let (floor_us, _) = Cpu::each_us(before, &floor, options.clients as u64);
    drop(swarm);
    let per_s = Some(options.clients as f64 / seconds);
    let (cpu_us, user_us, floor_us) = (Some(cpu_us), Some(user_us), Some(floor_us));
    Ok(Round { per_s, cpu_us, user_us, floor_us, lost, ..Round::default() })
}

/// Starts a typical Node backend: it handles a limited number of requests at once, each of which takes its time; others wait.
fn node(options: &FrontDoor, at_once: u32, takes_ms: u32) -> Result<(Process, SocketAddr), Error> {
    let mut address = options.address()?;
    address.set_port(address.port().saturating_add(19));
    let port = address.port();
    let program = format!(
        "let busy = 0; const waiting = []; \
         const next = () => {{ while (busy < {at_once} && waiting.length) {{ const response = waiting.shift(); busy++; \
         setTimeout(() => {{ busy--; response.writeHead(200, {{'Content-Type': 'application/json'}}); \
         response.end('{{\"result\":{{\"user\":\"ada\"}}}}'); next(); }}, {takes_ms}); }} }}; \
         require('http').createServer((request, response) => {{ request.resume(); \
         request.on('end', () => {{ waiting.push(response); next(); }}); }}).listen({port}, '127.0.0.1', 4096)"
    );
    let command = format!("node -e \"{}\"", program.replace('"', "\\\""));
    Ok((Process::start(&command, &options.target.core, address, None)?, address))
}

fn proxied(backend: SocketAddr) -> String {
    format!(
        "[client.proxy]\nconnect = \"app\"\n[proxies.app]\nendpoint = \"http://{backend}/\"\ntimeout_ms = 30_000\n\
         queue_timeout_ms = 60_000\nconnections_max = 4_096\n"
    )
}

/// Measures connects through a backend. The ratio is their rate to that of plain requests to the backend.
pub(super) fn connect_proxy(options: &FrontDoor) -> Result<Round, Error> {
    let (backend, address) = node(options, POOL, POOL_TAKES_MS)?;
    let (requests, body) = (options.clients, "{\"client\":\"1\",\"transport\":\"websocket\"}");
    let began = Instant::now();
    let (count, url) = (requests.to_string(), format!("http://{address}/"));
    ended(options.requests(&url, body, &["-c", "64", "-n", &count])?)?;
    let alone_per_s = requests as f64 / began.elapsed().as_secs_f64();
    let round = connects(options, &proxied(address), Vec::new())?;
    drop(backend);
    Ok(Round { ratio: round.per_s.map(|per_s| per_s / alone_per_s), ..round })
}

/// Measures memory per waiting client: the server's largest growth.
pub(super) fn connect_slow_proxy(options: &FrontDoor) -> Result<Round, Error> {
    let (backend, address) = node(options, u32::MAX, 1_000)?;
    let server = options.serve(&proxied(address))?;
    let mut plan = options.plan(ProtocolName::Centrifuge, "c", options.clients)?;
    plan.protocol.channel = None;
    plan.opening_max = options.clients;
    let before = server.sample().pss_bytes;
    let began = Instant::now();
    let (swarm, lost) = connected(&plan)?;
    let per_s = options.clients as f64 / began.elapsed().as_secs_f64();
    let bytes = server.sample().pss_bytes.saturating_sub(before) as f64 / options.clients as f64;
    drop((swarm, backend));
    Ok(Round { per_s: Some(per_s), bytes: Some(bytes), lost, ..Round::default() })
}

/// Measures subscribes and unsubscribes, in channels where the client is not subscribed already. A pair counts as one.
pub(super) fn subscribe(options: &FrontDoor) -> Result<Round, Error> {
    let server = options.serve("")?;
    let mut clients = Vec::new();
    for number in 0..SUBSCRIBING {
        clients.push(Subscriber::connect(options.address()?, number)?);
    }
    let (began, before, mut pairs) = (Instant::now(), Cpu::of(&server), 0);
    while began.elapsed() < options.time {
        for method in ["subscribe", "unsubscribe"] {
            for client in &mut clients {
                client.send(method)?;
            }
            for client in &mut clients {
                client.wait()?;
            }
        }
        pairs += SUBSCRIBING;
    }
    let per_s = pairs as f64 / began.elapsed().as_secs_f64();
    let (cpu_us, user_us) = Cpu::each_us(before, &server, pairs as u64);
    drop((clients, server));
    // The floor has no subscribers and only answers. A pair has two commands, each with its reply.
    let floor = options.floor(MESSAGE_BYTES)?;
    let (before, count) = (Cpu::of(&floor), (2 * pairs).to_string());
    let url = format!("http://{}/one/1", options.address()?);
    ended(options.requests(&url, "{}", &["-c", "64", "-n", &count])?)?;
    let (floor_us, _) = Cpu::each_us(before, &floor, pairs as u64);
    Ok(Round {
        per_s: Some(per_s),
        cpu_us: Some(cpu_us),
        user_us: Some(user_us),
        floor_us: Some(floor_us),
        ..Round::default()
    })
}

/// A client that subscribes and unsubscribes, one command per frame.
struct Subscriber {
    number: usize,
    stream: TcpStream,
    frame: Vec<u8>,
    answers: Vec<u8>,
    /// Id of the last command.
    id: usize,
}

impl Subscriber {
    fn connect(server: SocketAddr, number: usize) -> Result<Self, Error> {
        let stream = TcpStream::connect(server).context("cannot connect")?;
        stream.set_nodelay(true).context("cannot connect")?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).context("cannot connect")?;
        let mut client = Self { number, stream, frame: Vec::new(), answers: Vec::new(), id: 1 };
        let opening = format!(
            "GET /connection/websocket HTTP/1.1\r\nHost: {server}\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Key: {WEBSOCKET_KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        client.frame.extend_from_slice(opening.as_bytes());
        websocket_frame(0x1, b"{\"connect\":{},\"id\":1}", &mut client.frame);
        client.stream.write_all(&client.frame).context("cannot connect")?;
        client.wait()?;
        Ok(client)
    }

    fn send(&mut self, method: &str) -> Result<(), Error> {
        self.id += 1;
        let channel = self.id / 2 % CHANNELS;
        let command = format!(
            "{{\"{method}\":{{\"channel\":\"s{}-{channel}\"}},\"id\":{}}}",
            self.number, self.id
        );
        self.frame.clear();
        websocket_frame(0x1, command.as_bytes(), &mut self.frame);
        self.stream.write_all(&self.frame).context("the server takes no commands")
    }

    /// Waits until the last command is answered.
    fn wait(&mut self) -> Result<(), Error> {
        let last = format!("\"id\":{}", self.id);
        let mut piece = [0; 16 << 10];
        self.answers.clear();
        while memchr::memmem::find(&self.answers, last.as_bytes()).is_none() {
            let read = self.stream.read(&mut piece).context("no answer to a command")?;
            self.answers.extend_from_slice(&piece[..read]);
            if read == 0 || memchr::memmem::find(&self.answers, b"\"error\"").is_some() {
                let said =
                    String::from_utf8_lossy(&self.answers).chars().take(300).collect::<String>();
                return Err(Error::new(format!("a command was refused: {said}")));
            }
        }
        Ok(())
    }
}

/// Measures memory per idle client, counted after the first tenth of them, so that pages and tables that the first
/// clients load for all are excluded.
pub(super) fn idle(options: &FrontDoor, sharing: usize) -> Result<Round, Error> {
    let token = format!("[client.token]\nhmac_secret = \"{SECRET}\"\n");
    let server = options.serve(&format!("{token}{PRESENCE}"))?;
    let mut tokens = tokens(options, |user| json!({"sub": user, "channels": ["all"]}));
    let later = tokens.split_off(options.clients / 10);
    let begin = |network: u32, tokens: Vec<String>| {
        let channel = format!("room:{network}-{{n%{}}}", (tokens.len() / sharing).max(1));
        let mut plan = options.plan(ProtocolName::CentrifugeProtobuf, &channel, tokens.len())?;
        plan.sources = plan.sources.map(|first| (u32::from(first) + (network << 16)).into());
        plan.protocol.tokens = tokens.into();
        let begun = connected(&plan)?;
        std::thread::sleep(SETTLED_AFTER);
        Ok::<_, Error>(begun)
    };
    let (first, failed) = begin(0, tokens)?;
    let (before, each) = (server.sample().pss_bytes, later.len() as f64);
    let (others, lost) = begin(1, later)?;
    let bytes = server.sample().pss_bytes.saturating_sub(before) as f64 / each;
    drop((first, others));
    Ok(Round { bytes: Some(bytes), lost: failed + lost, ..Round::default() })
}

/// Returns a token for each client, each for a different user.
fn tokens(options: &FrontDoor, claims: impl Fn(String) -> Value) -> Vec<String> {
    (0..options.clients).map(|number| hs256(&claims(format!("user{number}")))).collect()
}
