//! A server on `wire`'s codec behind a delay line, with a ledger of what it accepted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dunlin_push::apns::{Apns, DeviceToken, Push};
use dunlin_push::{Connect, Connecting, Connections, Io, Outcome, SenderConfig, Stage, results};
use dunlin_wire::http2::frame::{self, Frame};
use dunlin_wire::http2::hpack::{Decoder, Encoder, Indexing};
use dunlin_wire::http2::{ErrorCode, HeaderAssembly, PREFACE, Setting};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// What the server does with a request that arrived whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    Accept,
    /// Status and reason.
    Refuse(u16, &'static str),
    /// Accepted, and no answer ever.
    AcceptSilently,
    /// Not accepted: REFUSED_STREAM.
    RefuseStream,
    /// Accepted, and the stream reset.
    AcceptAndReset,
    /// Accepted, answered, and then the connection says goodbye; what came later is above the last stream.
    GoAway,
    /// Accepted, and the connection is cut before the answer.
    Cut,
    /// Accepted, and from now on so many streams.
    Streams(u32),
}

#[derive(Clone)]
pub struct Script {
    pub rtt: Duration,
    pub streams: u32,
    /// Bytes added to the connection's window at the start, and from then on returned after so many.
    pub window_more: u32,
    pub window_return: u32,
    /// By the number of the request over all connections.
    pub act: Arc<dyn Fn(usize) -> Act + Send + Sync>,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            rtt: Duration::from_millis(250),
            streams: 1_000,
            window_more: 16 << 20,
            window_return: 1,
            act: Arc::new(|_| Act::Accept),
        }
    }
}

/// A server that can be connected to.
#[derive(Clone)]
pub struct Server {
    pub script: Script,
    pub ledger: Arc<Mutex<Ledger>>,
}

#[derive(Default)]
pub struct Ledger {
    /// How often each path was accepted.
    pub accepted: HashMap<String, u32>,
    /// In the order they arrived.
    pub arrived: Vec<String>,
    pub connections: usize,
    requests: usize,
}

impl Server {
    pub fn new(script: Script) -> Server {
        Server { script, ledger: Arc::default() }
    }

    pub fn sender(&self, connections: Connections) -> Apns {
        let answer_within = Duration::from_secs(5);
        let config = SenderConfig { connections, answer_within, ..SenderConfig::default() };
        Apns::start_with("push.test".to_owned(), None, self.clone(), config)
    }

    pub fn accepted(&self, push: &Push) -> u32 {
        let dunlin_push::apns::Target::Device(token) = &push.target else { return 0 };
        let path = format!("/3/device/{token}");
        self.ledger.lock().unwrap().accepted.get(&path).copied().unwrap_or(0)
    }
}

impl Connect for Server {
    fn connect(&self, _: Stage) -> Connecting<'_> {
        Box::pin(async {
            let (near, line) = duplex(1 << 20);
            let (far, server) = duplex(1 << 20);
            tokio::spawn(delay(line, far, self.script.rtt / 2));
            self.ledger.lock().unwrap().connections += 1;
            tokio::spawn(serve(server, self.script.clone(), self.ledger.clone()));
            Ok(Box::new(near) as Io)
        })
    }
}

/// Carries bytes both ways, each `time` late.
pub async fn delay(a: impl AsyncRead + AsyncWrite, b: impl AsyncRead + AsyncWrite, time: Duration) {
    let (mut a_read, a_write) = split(a);
    let (mut b_read, b_write) = split(b);
    let there = carry(&mut a_read, b_write, time);
    let back = carry(&mut b_read, a_write, time);
    tokio::join!(there, back);
}

async fn carry(
    from: &mut (impl AsyncReadExt + Unpin),
    mut to: impl AsyncWriteExt + Unpin,
    time: Duration,
) {
    let (sender, mut receiver) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let reading = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let _ = sender.send((Instant::now() + time, buffer[..read].to_vec()));
        }
    };
    let writing = async move {
        while let Some((at, bytes)) = receiver.recv().await {
            sleep_until(at).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(reading, writing);
}

async fn serve(mut io: DuplexStream, script: Script, ledger: Arc<Mutex<Ledger>>) {
    let mut out = Vec::new();
    frame::encode_settings(&mut out, &[(Setting::MaxConcurrentStreams, script.streams)]);
    if script.window_more > 0 {
        frame::encode_window_update(&mut out, 0, script.window_more);
    }
    let mut preface = [0; PREFACE.len()];
    if io.read_exact(&mut preface).await.is_err() {
        return;
    }
    assert_eq!(&preface, PREFACE);
    let mut headers = HeaderAssembly::new(64 << 10);
    let (mut decoder, mut encoder) = (Decoder::new(4_096), Encoder::new());
    let mut paths: HashMap<u32, String> = HashMap::new();
    let (mut input, mut consumed, mut unreturned) = (Vec::new(), 0, 0);
    let mut last_stream = None;
    loop {
        let mut whole = Vec::new();
        while let Some((frame, length)) = frame::decode(&input[consumed..], 16_384).unwrap() {
            if let Some(block) = headers.handle_frame(&frame).unwrap() {
                let mut path = String::new();
                decoder
                    .decode(block.block, 16_384, |name, value| {
                        if name == b":path" {
                            path = String::from_utf8(value.to_vec()).unwrap();
                        }
                    })
                    .unwrap();
                paths.insert(block.stream, path);
            }
            match frame {
                Frame::Data { stream, flow_bytes, end_stream, .. } => {
                    unreturned += flow_bytes;
                    if end_stream {
                        whole.push(stream);
                    }
                }
                Frame::Settings(_) => frame::encode_settings_ack(&mut out),
                Frame::Ping { ack: false, payload } => frame::encode_ping(&mut out, payload, true),
                Frame::Reset { stream, .. } => drop(paths.remove(&stream)),
                _ => {}
            }
            if unreturned >= script.window_return {
                frame::encode_window_update(&mut out, 0, unreturned);
                unreturned = 0;
            }
            consumed += length;
        }
        input.drain(..consumed);
        consumed = 0;
        for stream in whole {
            let Some(path) = paths.remove(&stream) else { continue };
            if last_stream.is_some_and(|last| stream > last) {
                continue;
            }
            let act = {
                let mut ledger = ledger.lock().unwrap();
                let number = ledger.requests;
                ledger.requests += 1;
                ledger.arrived.push(path.clone());
                let act = (script.act)(number);
                if !matches!(act, Act::Refuse(..) | Act::RefuseStream) {
                    *ledger.accepted.entry(path).or_default() += 1;
                }
                act
            };
            let mut answer = |out: &mut Vec<u8>, status: u16, body: &str| {
                let mut block = Vec::new();
                let status = status.to_string();
                encoder.encode(&mut block, b":status", status.as_bytes(), Indexing::Table);
                encoder.encode(&mut block, b"apns-id", b"ID", Indexing::Table);
                frame::encode_headers(out, stream, &block, body.is_empty(), 16_384);
                if !body.is_empty() {
                    frame::encode_data(out, stream, body.as_bytes(), true);
                }
            };
            match act {
                Act::Accept => answer(&mut out, 200, ""),
                Act::Refuse(status, reason) => {
                    answer(
                        &mut out,
                        status,
                        &format!("{{\"reason\":\"{reason}\",\"timestamp\":9}}"),
                    );
                }
                Act::AcceptSilently => {}
                Act::RefuseStream => {
                    frame::encode_reset(&mut out, stream, ErrorCode::REFUSED_STREAM);
                }
                Act::AcceptAndReset => {
                    frame::encode_reset(&mut out, stream, ErrorCode::INTERNAL_ERROR);
                }
                Act::GoAway => {
                    answer(&mut out, 200, "");
                    frame::encode_go_away(&mut out, stream, ErrorCode::NO_ERROR, b"");
                    last_stream = Some(stream);
                }
                Act::Cut => {
                    let _ = io.write_all(&out).await;
                    return;
                }
                Act::Streams(streams) => {
                    answer(&mut out, 200, "");
                    let settings = [(Setting::MaxConcurrentStreams, streams)];
                    frame::encode_settings(&mut out, &settings);
                }
            }
        }
        if io.write_all(&out).await.is_err() {
            return;
        }
        out.clear();
        let mut buffer = [0; 16 << 10];
        match io.read(&mut buffer).await {
            Ok(read @ 1..) => input.extend_from_slice(&buffer[..read]),
            _ => return,
        }
    }
}

/// A push to the device of a number.
pub fn push(number: usize, bytes: usize) -> Push {
    let token = DeviceToken::new(&format!("{number:064x}")).unwrap();
    let filler = "x".repeat(bytes.saturating_sub(10));
    Push::new(token, "com.example.app", format!("{{\"aps\":\"{filler}\"}}"))
}

/// Hands all over and waits for all ends, by the index of the push.
pub async fn send_all(apns: &Apns, pushes: &[Push]) -> Vec<Outcome> {
    let (sender, mut ends) = results();
    let receiving = async {
        let mut outcomes: Vec<Option<Outcome>> = pushes.iter().map(|_| None).collect();
        for _ in 0..pushes.len() {
            let (tag, outcome) = ends.recv().await.unwrap();
            let before = outcomes[tag as usize].replace(outcome);
            assert_eq!(before, None, "a push ends once");
        }
        outcomes.into_iter().flatten().collect()
    };
    let sending = async {
        for (index, push) in pushes.iter().enumerate() {
            apns.submit(push, index as u64, &sender).await.unwrap();
        }
    };
    let ((), outcomes) = tokio::join!(sending, receiving);
    outcomes
}
