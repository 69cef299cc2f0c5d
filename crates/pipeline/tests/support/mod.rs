//! A client in the test's own thread, and scripted servers on blocking sockets.
#![allow(clippy::unwrap_used, reason = "a server that does not play its part fails the test")]
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(unreachable_pub, reason = "a module of tests has no outside")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use dunlin_net::{Context, EventLoop, LoopConfig};
use dunlin_pipeline::{
    Caller, Client, ClientConfig, HostConfig, HostId, Outcome, Prepared, Request, RequestId,
    Requests,
};

/// Time limit after which a test fails. No test passes by waiting.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The outcome of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Answered(u16, Vec<u8>),
    NotSent(String),
    Failed(String),
    Uncertain(String),
}

impl End {
    pub fn body(&self) -> String {
        match self {
            End::Answered(_, body) => String::from_utf8_lossy(body).into_owned(),
            other => panic!("not answered: {other:?}"),
        }
    }

    pub fn error(&self) -> &str {
        match self {
            End::NotSent(error) | End::Failed(error) | End::Uncertain(error) => error,
            End::Answered(status, _) => panic!("answered with {status}"),
        }
    }
}

/// A caller that ignores outcomes.
pub struct Nobody;

impl Caller for Nobody {
    type Data = ();

    fn on_outcome(
        &mut self,
        _: &mut Context<()>,
        _: &mut Requests<'_>,
        _: RequestId,
        _: u64,
        _: &Outcome<'_>,
    ) {
    }
}

/// Records outcomes, and sends the remaining requests whenever there is room.
pub struct Notes {
    pub ends: Vec<(u64, End)>,
    pub pieces: Vec<(u64, Vec<u8>)>,
    waiting: std::vec::IntoIter<(HostId, Prepared, u64)>,
    held: Option<(HostId, Prepared, u64)>,
    pub refusals: usize,
}

impl Notes {
    fn send(&mut self, requests: &mut Requests<'_>) {
        while let Some((host, prepared, tag)) = self.held.take().or_else(|| self.waiting.next()) {
            if requests.send(host, &prepared, tag).is_err() {
                self.refusals += 1;
                self.held = Some((host, prepared, tag));
                return;
            }
        }
    }
}

impl Caller for Notes {
    type Data = ();

    fn on_outcome(
        &mut self,
        _: &mut Context<()>,
        _: &mut Requests<'_>,
        _: RequestId,
        tag: u64,
        outcome: &Outcome<'_>,
    ) {
        let end = match outcome {
            Outcome::Answered(answer) => {
                assert!(answer.body_bytes >= answer.body.len() as u64);
                End::Answered(answer.status, answer.body.to_vec())
            }
            Outcome::NotSent(error) => End::NotSent(error.to_string()),
            Outcome::Failed(error) => End::Failed(error.to_string()),
            Outcome::Uncertain(error) => End::Uncertain(error.to_string()),
        };
        self.ends.push((tag, end));
    }

    fn on_body(
        &mut self,
        _: &mut Context<()>,
        _: &mut Requests<'_>,
        _: RequestId,
        tag: u64,
        bytes: &[u8],
    ) {
        self.pieces.push((tag, bytes.to_vec()));
    }

    fn on_room(&mut self, _: &mut Context<()>, requests: &mut Requests<'_>, _: HostId) {
        self.send(requests);
    }

    fn on_idle(&mut self, cx: &mut Context<()>, _: &mut Requests<'_>) {
        if self.held.is_none() && self.waiting.len() == 0 {
            cx.stop();
        }
    }
}

/// Sends these requests to one host. Returns the outcomes in the order of their arrival.
pub fn ask(url: &str, config: HostConfig, asked: &[Request<'_>]) -> Notes {
    ask_with(ClientConfig { attempt_delay_ms: 20 }, url, config, asked)
}

pub fn ask_with(
    client: ClientConfig,
    url: &str,
    config: HostConfig,
    asked: &[Request<'_>],
) -> Notes {
    let notes = Notes {
        ends: Vec::new(),
        pieces: Vec::new(),
        waiting: Vec::new().into_iter(),
        held: None,
        refusals: 0,
    };
    let mut client = Client::new(client, notes);
    let mut requests = client.requests();
    let host = requests.host(url, config).unwrap();
    let prepared: Vec<_> = asked
        .iter()
        .zip(1..)
        .map(|(request, tag)| (host, requests.prepare(host, request), tag))
        .collect();
    client.caller().waiting = prepared.into_iter();
    let mut event_loop = EventLoop::new(LoopConfig::default()).unwrap();
    let began = Instant::now();
    let mut first = true;
    while !event_loop.context().is_stopping() {
        assert!(began.elapsed() < TIMEOUT, "not all ended: {:?}", client.caller().ends.len());
        if std::mem::take(&mut first) {
            // Sends as the caller would in its methods, but from outside.
            let mut waiting = std::mem::take(&mut client.caller().waiting);
            for (host, prepared, tag) in waiting.by_ref() {
                if client.requests().send(host, &prepared, tag).is_err() {
                    client.caller().refusals += 1;
                    client.caller().held = Some((host, prepared, tag));
                    break;
                }
            }
            client.caller().waiting = waiting;
        }
        event_loop.turn(&mut client, Some(Duration::from_millis(100))).unwrap();
    }
    let caller = client.caller();
    Notes {
        ends: std::mem::take(&mut caller.ends),
        pieces: std::mem::take(&mut caller.pieces),
        waiting: Vec::new().into_iter(),
        held: None,
        refusals: caller.refusals,
    }
}

/// One connection of a server.
pub struct Conversation {
    pub stream: TcpStream,
    behind: Vec<u8>,
}

impl Conversation {
    pub fn new(stream: TcpStream) -> Conversation {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Conversation { stream, behind: Vec::new() }
    }

    /// Reads the head of the next request and discards its body. Returns `None` if the client has closed.
    pub fn hears(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.behind.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.behind.drain(..end + 4).collect();
                let head = String::from_utf8(head).unwrap();
                let length: usize = head
                    .lines()
                    .find_map(|line| line.strip_prefix("Content-Length: "))
                    .map_or(0, |length| length.parse().unwrap());
                while self.behind.len() < length {
                    self.read()?;
                }
                self.behind.drain(..length);
                return Some(head);
            }
            self.read()?;
        }
    }

    fn read(&mut self) -> Option<()> {
        let mut bytes = [0; 16 << 10];
        let received = self.stream.read(&mut bytes).unwrap_or(0);
        self.behind.extend_from_slice(&bytes[..received]);
        (received > 0).then_some(())
    }

    pub fn says(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Answers 200 with this body.
    pub fn answers(&mut self, body: &str) {
        self.says(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    }

    /// Closes the connection with RST.
    pub fn resets(self) {
        let _ = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
    }
}

/// Starts a server that handles connections one after another, numbered from 1, until the test ends.
pub fn serve(mut conversation: impl FnMut(usize, Conversation) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, stream) in (1..).zip(listener.incoming()) {
            conversation(number, Conversation::new(stream.unwrap()));
        }
    });
    addr
}

/// Does the same as [`serve`], with a thread for each connection.
pub fn serve_many(
    conversation: impl Fn(usize, Conversation) + Send + Sync + 'static,
) -> SocketAddr {
    let conversation = std::sync::Arc::new(conversation);
    serve(move |number, stream| {
        let conversation = std::sync::Arc::clone(&conversation);
        std::thread::spawn(move || conversation(number, stream));
    })
}
