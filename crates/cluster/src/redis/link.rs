//! A connection to Redis on the control thread. Commands are pipelined in order; messages of channels arrive separately from
//! replies (RESP3).
//!
//! The codec is `wire::resp`, as in the workers' clients. The control thread sends a few commands a second, so this uses `tokio`.
//!
//! Not the crates `redis` or `fred`: what they would replace is this file, whose codec, TLS and logins the workers need anyway. A
//! place in the order must be fixed before a future is polled, a connection that ended must never be continued by another (its
//! number fences what it wrote), and waiting messages are bounded in bytes, joins and leaves being dropped first.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dunlin_wire::resp::{Limits, Scan, Scanner, Value, encode_command};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::refused;
use crate::inbox::{Inbox, OVERRUN};
use crate::store::StoreError;

/// The timeout of a reply. After it Redis counts as unreachable although its connection is open.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 64 << 10;

/// A reply that owns its bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RedisReply {
    Null,
    Integer(i64),
    Bytes(Box<[u8]>),
    /// An array, a set, or a map with its keys and values in turn.
    List(Vec<RedisReply>),
    Error(Box<str>),
}

/// Commands that are sent together.
#[derive(Default)]
pub(super) struct Commands {
    bytes: Vec<u8>,
    count: usize,
}

impl Commands {
    pub(super) fn push(&mut self, arguments: &[&[u8]]) -> &mut Self {
        encode_command(&mut self.bytes, arguments);
        self.count += 1;
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

struct Request {
    commands: Commands,
    answer: oneshot::Sender<Vec<RedisReply>>,
}

struct Waiter {
    missing: usize,
    replies: Vec<RedisReply>,
    answer: oneshot::Sender<Vec<RedisReply>>,
}

type Waiters = Arc<Mutex<VecDeque<Waiter>>>;

/// An open connection. It closes when it is dropped.
pub(super) struct RedisLink {
    /// The number of the connection; greater than those of connections that this process opened before.
    pub(super) number: u64,
    requests: mpsc::UnboundedSender<Request>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for RedisLink {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl RedisLink {
    /// Starts using an open connection. Messages of subscribed channels go to `messages`, which closes together with the
    /// connection.
    pub(super) fn start(
        transport: impl AsyncRead + AsyncWrite + Send + 'static,
        messages: Inbox,
    ) -> RedisLink {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let number = OPENED.fetch_add(1, Ordering::Relaxed) + 1;
        let (requests, asked) = mpsc::unbounded_channel();
        let waiters = Waiters::default();
        let (reading, writing) = tokio::io::split(transport);
        let of_reader = Arc::clone(&waiters);
        let reader = tokio::spawn(async move {
            if let Err(error) = read(reading, &of_reader, &messages).await {
                tracing::debug!(%error, "the connection to Redis ended");
            }
            // Drops the senders, so that the waiting requests end with an error.
            of_reader.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        let writer = tokio::spawn(async move {
            // The reader reports the reason.
            let _ = write(writing, &waiters, asked).await;
        });
        RedisLink { number, requests, tasks: [reader, writer] }
    }

    /// Whether the connection has ended, so that new requests get no reply.
    pub(super) fn has_ended(&self) -> bool {
        self.tasks.iter().any(JoinHandle::is_finished)
    }

    /// Sends commands, and returns their replies in order.
    ///
    /// # Errors
    /// The first error among the replies, a timeout, or the end of the connection.
    pub(super) async fn call(&self, commands: &[&[&[u8]]]) -> Result<Vec<RedisReply>, StoreError> {
        let mut all = Commands::default();
        for command in commands {
            all.push(command);
        }
        self.send(all).await
    }

    /// Sends commands like [`RedisLink::call`].
    pub(super) async fn send(&self, commands: Commands) -> Result<Vec<RedisReply>, StoreError> {
        self.begin(commands).await
    }

    /// Sends commands like [`RedisLink::call`]. Their place in the order is fixed when this returns, before the future is polled.
    pub(super) fn begin(
        &self,
        commands: Commands,
    ) -> impl Future<Output = Result<Vec<RedisReply>, StoreError>> + Send + use<> {
        let ended = || StoreError::Closed("the connection has ended".into());
        let asked = (!commands.is_empty()).then(|| {
            let (answer, answered) = oneshot::channel();
            self.requests.send(Request { commands, answer }).map(|()| answered).map_err(|_| ended())
        });
        async move {
            let Some(answered) = asked.transpose()? else { return Ok(Vec::new()) };
            let replies = timeout(REPLY_TIMEOUT, answered).await.map_err(|_| {
                StoreError::Closed(format!("no reply within {REPLY_TIMEOUT:?}").into())
            })?;
            unless_refused(replies.map_err(|_| ended())?)
        }
    }

    /// Runs a script by its SHA-1; sends its text if Redis does not have it.
    pub(super) async fn script(
        &self,
        script: &Script,
        keys: &[&[u8]],
        arguments: &[&[u8]],
    ) -> Result<RedisReply, StoreError> {
        let count = keys.len().to_string();
        let mut line: Vec<&[u8]> = vec![b"EVALSHA", script.sha1(), count.as_bytes()];
        line.extend_from_slice(keys);
        line.extend_from_slice(arguments);
        let replies = match self.call(&[&line]).await {
            Err(StoreError::Passed(_)) => {
                line[0] = b"EVAL";
                line[1] = script.text.as_bytes();
                self.call(&[&line]).await
            }
            replies => replies,
        };
        Ok(replies?.pop().unwrap_or(RedisReply::Null))
    }
}

/// Returns the replies, or the first error among them.
fn unless_refused(replies: Vec<RedisReply>) -> Result<Vec<RedisReply>, StoreError> {
    match replies.iter().find_map(|reply| match reply {
        RedisReply::Error(error) => Some(error.clone()),
        _ => None,
    }) {
        Some(error) => Err(refused(error)),
        None => Ok(replies),
    }
}

/// A Lua script, and the SHA-1 by which Redis caches it.
pub(super) struct Script {
    text: &'static str,
    sha1: String,
}

impl Script {
    pub(super) fn new(text: &'static str) -> Script {
        let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        let sha1 = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Script { text, sha1 }
    }

    pub(super) fn sha1(&self) -> &[u8] {
        self.sha1.as_bytes()
    }
}

async fn write(
    mut to: impl AsyncWrite + Unpin,
    waiters: &Waiters,
    mut asked: mpsc::UnboundedReceiver<Request>,
) -> io::Result<()> {
    while let Some(Request { commands, answer }) = asked.recv().await {
        let waiter = Waiter { missing: commands.count, replies: Vec::new(), answer };
        waiters.lock().unwrap_or_else(PoisonError::into_inner).push_back(waiter);
        to.write_all(&commands.bytes).await?;
        to.flush().await?;
    }
    Ok(())
}

async fn read(
    mut from: impl AsyncRead + Unpin,
    waiters: &Waiters,
    messages: &Inbox,
) -> io::Result<()> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "this is not RESP");
    let mut scanner = Scanner::new(&Limits::default());
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        let mut at = 0;
        loop {
            let length = match scanner.scan(&bytes[at..]).map_err(|_| malformed())? {
                Scan::Incomplete => break,
                Scan::Value(length) => length,
                Scan::Drop(length) | Scan::Overlong { bytes: length, is_push: true } => {
                    at += length;
                    continue;
                }
                Scan::Overlong { bytes: length, is_push: false } => {
                    at += length;
                    answer(waiters, RedisReply::Error("a reply longer than 64 MiB".into()));
                    continue;
                }
            };
            let value = Value::parse(&bytes[at..at + length]).ok_or_else(malformed)?;
            at += length;
            match value {
                Value::Push(said) => {
                    if let [kind, _, payload] = &said[..]
                        && kind.bytes() == Some(b"message")
                        && let Some(payload) = payload.bytes()
                    {
                        if !messages.put(payload.into()) {
                            return Err(io::Error::other(OVERRUN));
                        }
                    } else if said.first().and_then(Value::bytes) == Some(b"subscribe") {
                        answer(waiters, RedisReply::Null);
                    }
                }
                value => answer(waiters, owned(&value)),
            }
        }
        bytes.drain(..at);
        bytes.reserve(READ_BYTES);
        if from.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
    }
}

/// Assigns a reply to the oldest command without one.
fn answer(waiters: &Waiters, reply: RedisReply) {
    let mut waiters = waiters.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(waiter) = waiters.front_mut() else { return };
    waiter.replies.push(reply);
    waiter.missing -= 1;
    if waiter.missing == 0
        && let Some(Waiter { replies, answer, .. }) = waiters.pop_front()
    {
        // The caller may have timed out.
        let _ = answer.send(replies);
    }
}

fn owned(value: &Value<'_>) -> RedisReply {
    match value {
        Value::Integer(number) => RedisReply::Integer(*number),
        Value::Boolean(yes) => RedisReply::Integer(i64::from(*yes)),
        Value::Error(error) => RedisReply::Error((*error).into()),
        Value::Map(pairs) => RedisReply::List(
            pairs.iter().flat_map(|(key, value)| [owned(key), owned(value)]).collect(),
        ),
        Value::Attributed(_, value) => owned(value),
        value => match (value.bytes(), value.elements()) {
            (Some(bytes), _) => RedisReply::Bytes(bytes.into()),
            (_, Some(values)) => RedisReply::List(values.iter().map(owned).collect()),
            _ => RedisReply::Null,
        },
    }
}

impl RedisReply {
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            RedisReply::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        self.bytes().and_then(|bytes| str::from_utf8(bytes).ok())
    }

    pub(super) fn integer(&self) -> Option<i64> {
        match self {
            RedisReply::Integer(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn list(&self) -> &[RedisReply] {
        match self {
            RedisReply::List(list) => list,
            _ => &[],
        }
    }
}
