//! A connection to NATS on the control thread. Messages are sent in order. A response is matched to its request by a number in
//! its subject; a message that is delivered from a stream keeps its subject and is matched by its subscription id.
//!
//! The codec is `wire::nats`, and the login is that of the workers' engines. The control thread sends a few requests a second, so
//! this uses `tokio`.
//!
//! Not the crate `async-nats`: it connects again by itself, without a way to turn that off, and sends then what the lost connection
//! had not; but the number of a connection fences what it wrote. Credentials must be read anew for each connection, and waiting
//! messages are bounded in bytes, joins and leaves being dropped first.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dunlin_engine::nats::{ServerInfo, refusal_of_text};
use dunlin_wire::nats::{
    Limits, Operation, PING, PONG, encode_publish, encode_subscribe, encode_unsubscribe, parse,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::condition_of;
use crate::condition::Condition;
use crate::inbox::{Inbox, OVERRUN};
use crate::records::refused;
use crate::store::{RawMessage, StoreError};

/// The timeout of a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 64 << 10;
/// The subscription id for responses; the other ids are for messages of nodes.
const ANSWERS: u64 = 1;
/// Lower numbers are ids of permanent subscriptions.
const TOKENS_FROM: u64 = 16;
/// The header of a part: the name of the message, the index of the part, and whether more follow.
const PART: &str = "Dunlin-Part";
/// The most incomplete messages, and the largest size of each.
const WHOLES_MAX: usize = 64;
const WHOLE_BYTES_MAX: usize = 16 << 20;
/// Bytes of a message that are reserved for headers and the acknowledgement.
const HEAD_BYTES_MAX: usize = 4_096;

/// A response.
pub(super) struct NatsReply {
    pub(super) subject: Box<str>,
    /// The reply subject, which describes a message that is delivered from a stream.
    pub(super) reply: Option<Box<str>>,
    /// The status that a server sends in place of a message.
    pub(super) status: Option<u16>,
    pub(super) payload: RawMessage,
}

/// The waiters for responses, by the number in the subject, and the reason once the connection has ended.
#[derive(Default)]
struct Waiters {
    open: HashMap<u64, mpsc::UnboundedSender<NatsReply>>,
    ended: Option<StoreError>,
}

/// The responses to a request.
pub(super) struct NatsReplies {
    token: u64,
    waiters: Arc<Mutex<Waiters>>,
    answers: Result<mpsc::UnboundedReceiver<NatsReply>, StoreError>,
    /// Sends the end of the subscription when this is dropped.
    unsubscribe: Option<mpsc::UnboundedSender<Vec<u8>>>,
}

impl Drop for NatsReplies {
    fn drop(&mut self) {
        lock(&self.waiters).open.remove(&self.token);
        if let Some(output) = &self.unsubscribe {
            let mut out = Vec::new();
            encode_unsubscribe(&mut out, self.token);
            let _ = output.send(out);
        }
    }
}

impl NatsReplies {
    /// Waits for the next response.
    ///
    /// # Errors
    /// The error of NATS, or a timeout.
    pub(super) async fn next(&mut self) -> Result<NatsReply, StoreError> {
        let answers = self.answers.as_mut().map_err(|error| error.clone())?;
        match timeout(ANSWER_TIMEOUT, answers.recv()).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(lock(&self.waiters).ended.clone().unwrap_or_else(ended)),
            Err(_) => {
                Err(StoreError::Closed(format!("no answer within {ANSWER_TIMEOUT:?}").into()))
            }
        }
    }
}

fn ended() -> StoreError {
    StoreError::Closed("the connection has ended".into())
}

fn lock(waiters: &Mutex<Waiters>) -> std::sync::MutexGuard<'_, Waiters> {
    waiters.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open connection. It closes when it is dropped.
pub(super) struct NatsLink {
    /// The largest message, in bytes.
    max_payload: usize,
    /// The prefix of the subjects of responses.
    inbox: String,
    tokens: AtomicU64,
    waiters: Arc<Mutex<Waiters>>,
    output: mpsc::UnboundedSender<Vec<u8>>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for NatsLink {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl NatsLink {
    /// Logs in on an open connection: `greeting` is the argument of `CONNECT`. Subscribes to `subjects`; their messages go to
    /// `messages`, which closes together with the connection.
    pub(super) async fn start(
        mut transport: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        info: &ServerInfo,
        greeting: Vec<u8>,
        (inbox, subjects): (String, [String; 2]),
        messages: Inbox,
    ) -> Result<NatsLink, StoreError> {
        let mut hello = greeting;
        encode_subscribe(&mut hello, format!("{inbox}*").as_bytes(), ANSWERS);
        for (sid, subject) in (ANSWERS + 1..).zip(subjects) {
            encode_subscribe(&mut hello, subject.as_bytes(), sid);
        }
        hello.extend_from_slice(PING);
        let closed = |error: io::Error| StoreError::Closed(error.to_string().into());
        transport.write_all(&hello).await.map_err(closed)?;
        transport.flush().await.map_err(closed)?;
        let mut bytes = Vec::new();
        'greeted: loop {
            while let Some((operation, length)) = scan(&bytes).map_err(closed)? {
                let is_answer = match operation {
                    Operation::Error(text) => return Err(refusal(text)),
                    Operation::Pong => true,
                    _ => false,
                };
                bytes.drain(..length);
                if is_answer {
                    break 'greeted;
                }
            }
            if transport.read_buf(&mut bytes).await.map_err(closed)? == 0 {
                return Err(ended());
            }
        }
        let waiters = Arc::<Mutex<Waiters>>::default();
        let (output, said) = mpsc::unbounded_channel();
        let (reading, writing) = tokio::io::split(transport);
        let (of_reader, answers) = (Arc::clone(&waiters), output.clone());
        let at = inbox.len();
        let reader = tokio::spawn(async move {
            let parts = HashMap::new();
            let mut reader =
                Reader { waiters: &of_reader, output: &answers, messages: &messages, at, parts };
            let why = reader.run(reading, bytes).await;
            tracing::debug!(%why, "the connection to NATS ended");
            let mut waiters = lock(&of_reader);
            waiters.ended.get_or_insert(why);
            waiters.open.clear();
        });
        let writer = tokio::spawn(async move {
            // The reader reports the reason.
            let _ = write(writing, said).await;
        });
        let max_payload = if info.max_payload == 0 { 1 << 20 } else { info.max_payload };
        Ok(NatsLink {
            max_payload,
            inbox,
            tokens: AtomicU64::new(TOKENS_FROM),
            waiters,
            output,
            tasks: [reader, writer],
        })
    }

    /// The largest payload of a message.
    pub(super) fn message_bytes_max(&self) -> usize {
        self.max_payload.saturating_sub(HEAD_BYTES_MAX)
    }

    /// Publishes a message to nodes, in parts if it exceeds the largest message. Its place in the order is fixed when this
    /// returns.
    ///
    /// # Errors
    /// When the connection has ended.
    pub(super) fn publish(&self, subject: &str, payload: &[u8]) -> Result<(), StoreError> {
        let room = self.message_bytes_max().max(1);
        if payload.len() <= room {
            return self.say(subject, None, &[], payload);
        }
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        let mut parts = payload.chunks(room).zip(0..).peekable();
        while let Some((part, at)) = parts.next() {
            let left = u8::from(parts.peek().is_some());
            let value = format!("{}{token:x} {at} {left}", self.inbox);
            self.say(subject, None, &[(PART, &value)], part)?;
        }
        Ok(())
    }

    fn say(
        &self,
        subject: &str,
        reply: Option<&str>,
        headers: &[(&str, &str)],
        payload: &[u8],
    ) -> Result<(), StoreError> {
        if payload.len() > self.message_bytes_max() {
            let (bytes, most) = (payload.len(), self.max_payload);
            let why = format!("a message of {bytes} bytes, of {most} that the server takes");
            return Err(refused(Condition::MaxPayload, &why));
        }
        let mut out = Vec::with_capacity(payload.len() + 256);
        encode_publish(&mut out, subject.as_bytes(), reply.map(str::as_bytes), headers, &[payload]);
        self.output.send(out).map_err(|_| ended())
    }

    /// Sends a request. Its place in the order is fixed when this returns.
    pub(super) fn request(
        &self,
        subject: &str,
        headers: &[(&str, &str)],
        payload: &[u8],
    ) -> NatsReplies {
        let (mut answers, token) = self.wait();
        if answers.answers.is_ok() {
            let reply = format!("{}{token:x}", self.inbox);
            if let Err(error) = self.say(subject, Some(&reply), headers, payload) {
                answers.answers = Err(error);
            }
        }
        answers
    }

    /// Requests messages from a stream.
    pub(super) fn request_messages(&self, subject: &str, payload: &[u8]) -> NatsReplies {
        let (mut answers, token) = self.wait();
        if answers.answers.is_ok() {
            let reply = format!("{}{token:x}.m", self.inbox);
            let mut out = Vec::new();
            encode_subscribe(&mut out, reply.as_bytes(), token);
            let subscribed = self.output.send(out).map_err(|_| ended());
            answers.unsubscribe = Some(self.output.clone());
            let asked = subscribed.and_then(|()| self.say(subject, Some(&reply), &[], payload));
            if let Err(error) = asked {
                answers.answers = Err(error);
            }
        }
        answers
    }

    fn wait(&self) -> (NatsReplies, u64) {
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        let (sender, answers) = mpsc::unbounded_channel();
        let mut waiters = lock(&self.waiters);
        let answers = match &waiters.ended {
            Some(error) => Err(error.clone()),
            None => {
                waiters.open.insert(token, sender);
                Ok(answers)
            }
        };
        drop(waiters);
        let waiters = Arc::clone(&self.waiters);
        (NatsReplies { token, waiters, answers, unsubscribe: None }, token)
    }
}

/// The meaning of `-ERR`.
pub(super) fn refusal(text: &str) -> StoreError {
    let condition = condition_of(refusal_of_text(text).name);
    match condition {
        Condition::Failed => StoreError::Closed(text.into()),
        condition => refused(condition, text),
    }
}

fn scan(bytes: &[u8]) -> io::Result<Option<(Operation<'_>, usize)>> {
    parse(bytes, &Limits::default())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

async fn write(
    mut to: impl AsyncWrite + Unpin,
    mut said: mpsc::UnboundedReceiver<Vec<u8>>,
) -> io::Result<()> {
    while let Some(mut bytes) = said.recv().await {
        while let Ok(more) = said.try_recv() {
            bytes.extend_from_slice(&more);
        }
        to.write_all(&bytes).await?;
        to.flush().await?;
    }
    Ok(())
}

struct Reader<'a> {
    waiters: &'a Mutex<Waiters>,
    output: &'a mpsc::UnboundedSender<Vec<u8>>,
    messages: &'a Inbox,
    /// The offset of the number in the subject of a response.
    at: usize,
    /// Incomplete messages, with the number of parts that have arrived.
    parts: HashMap<Box<str>, (u32, Vec<u8>)>,
}

impl Reader<'_> {
    /// Reads until the connection ends, and returns the reason.
    async fn run(&mut self, mut from: impl AsyncRead + Unpin, mut bytes: Vec<u8>) -> StoreError {
        loop {
            let mut done = 0;
            loop {
                match scan(&bytes[done..]) {
                    Ok(Some((operation, length))) => {
                        if let Some(why) = self.handle(&operation) {
                            return why;
                        }
                        done += length;
                    }
                    Ok(None) => break,
                    Err(error) => return StoreError::Closed(error.to_string().into()),
                }
            }
            bytes.drain(..done);
            bytes.reserve(READ_BYTES);
            match from.read_buf(&mut bytes).await {
                Ok(0) => return ended(),
                Ok(_) => {}
                Err(error) => return StoreError::Closed(error.to_string().into()),
            }
        }
    }

    /// Handles an operation of the server. Returns the reason if the connection must end.
    fn handle(&mut self, operation: &Operation<'_>) -> Option<StoreError> {
        match operation {
            Operation::Message(message) if message.sid == ANSWERS || message.sid >= TOKENS_FROM => {
                let token = match message.sid {
                    ANSWERS => {
                        let token = message.subject.get(self.at..);
                        let token = token.and_then(|token| str::from_utf8(token).ok())?;
                        u64::from_str_radix(token, 16).ok()?
                    }
                    token => token,
                };
                let waiters = lock(self.waiters);
                // The requester may have given up.
                let waiter = waiters.open.get(&token)?;
                let text = |bytes: &[u8]| str::from_utf8(bytes).ok().map(Box::from);
                let _ = waiter.send(NatsReply {
                    subject: text(message.subject).unwrap_or_default(),
                    reply: message.reply.and_then(text),
                    status: message.headers.status(),
                    payload: message.payload.into(),
                });
            }
            Operation::Message(message) => {
                let whole = match message.headers.get(PART) {
                    Some(part) => self.assemble(part, message.payload),
                    None => Some(message.payload.into()),
                };
                if let Some(whole) = whole {
                    let is_taken = self.messages.put(whole);
                    if !is_taken {
                        return Some(StoreError::Closed(OVERRUN.into()));
                    }
                }
            }
            Operation::Ping => {
                let _ = self.output.send(PONG.to_vec());
            }
            // The error concerns one subject and the connection stays open, but a request to it would wait in vain.
            Operation::Error(text) => return Some(refusal(text)),
            _ => {}
        }
        None
    }
    /// Returns the message once its last part has arrived. Parts of a message arrive in order.
    fn assemble(&mut self, part: &str, payload: &[u8]) -> Option<RawMessage> {
        let mut words = part.split(' ');
        let (name, at, left) = (words.next()?, words.next()?.parse::<u32>().ok()?, words.next()?);
        if at == 0 {
            if self.parts.len() >= WHOLES_MAX {
                // Incomplete messages of nodes that have ended.
                self.parts.clear();
            }
            self.parts.insert(name.into(), (0, Vec::new()));
        }
        let (next, bytes) = self.parts.get_mut(name)?;
        let fits = *next == at && bytes.len() + payload.len() <= WHOLE_BYTES_MAX;
        bytes.extend_from_slice(if fits { payload } else { b"" });
        *next += 1;
        if fits && left == "1" {
            return None;
        }
        let (_, whole) = self.parts.remove(name)?;
        fits.then(|| whole.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::inbox;

    #[test]
    fn parts_of_messages_are_put_together_in_their_order() {
        let (waiters, (output, _), (messages, _)) =
            (Mutex::default(), mpsc::unbounded_channel(), inbox());
        let (at, parts) = (0, HashMap::new());
        let mut reader =
            Reader { waiters: &waiters, output: &output, messages: &messages, at, parts };
        assert_eq!(reader.assemble("a 0 1", b"on"), None);
        assert_eq!(reader.assemble("b 0 1", b"tw"), None);
        assert_eq!(reader.assemble("a 1 0", b"e").as_deref(), Some(&b"one"[..]));
        assert_eq!(reader.assemble("b 1 0", b"o").as_deref(), Some(&b"two"[..]));
        assert_eq!(reader.assemble("a 1 0", b"late"), None);
        assert_eq!(reader.assemble("c 0 1", b"three"), None);
        assert_eq!(reader.assemble("c 2 0", b"a part is missing"), None);
        assert!(reader.parts.is_empty());
        for whole in 0..2 * WHOLES_MAX {
            reader.assemble(&format!("{whole} 0 1"), b"");
        }
        assert!(reader.parts.len() <= WHOLES_MAX);
    }
}
