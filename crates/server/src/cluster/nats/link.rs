//! A connection to NATS on the control thread: messages leave in order, answers find who has asked by a number in their subject, and
//! what is delivered out of a stream, which keeps its subject, by the number of a subscription.
//!
//! The codec is `wire::nats`, and who logs in is said as the workers' engines say it. What the control thread asks is a few requests a
//! second, so this stands on `tokio` and has no loop of its own.

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

use super::{condition_of, refused};
use crate::cluster::condition::Condition;
use crate::cluster::inbox::{Inbox, OVERRUN};
use crate::cluster::store::{RawMessage, StoreError};

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 64 << 10;
/// The subscription for answers; others are for what nodes say.
const ANSWERS: u64 = 1;
/// Numbers below are those of subscriptions that last.
const TOKENS_FROM: u64 = 16;
/// The header of a part: the name of the whole, the part's place in it, and whether others follow.
const PART: &str = "Dunlin-Part";
/// Wholes of which parts are missing, and bytes of each.
const WHOLES_MAX: usize = 64;
const WHOLE_BYTES_MAX: usize = 16 << 20;
/// What headers and an acknowledgement may take of the bytes of a message.
const HEAD_BYTES_MAX: usize = 4_096;

/// A message that was asked for.
pub(super) struct NatsReply {
    pub(super) subject: Box<str>,
    /// What it tells of itself where the server delivers what it has stored.
    pub(super) reply: Option<Box<str>>,
    /// What a server says in place of a message.
    pub(super) status: Option<u16>,
    pub(super) payload: RawMessage,
}

/// Who waits for messages, by the number in their subjects, and why the connection answers no more.
#[derive(Default)]
struct Waiters {
    open: HashMap<u64, mpsc::UnboundedSender<NatsReply>>,
    ended: Option<StoreError>,
}

/// The answers to a request.
pub(super) struct NatsReplies {
    token: u64,
    waiters: Arc<Mutex<Waiters>>,
    answers: Result<mpsc::UnboundedReceiver<NatsReply>, StoreError>,
    /// What ends the subscription.
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
    /// The next.
    ///
    /// # Errors
    /// What NATS says, or that it says nothing.
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

/// An open connection. Dropped, it closes.
pub(super) struct NatsLink {
    /// Bytes of a message.
    max_payload: usize,
    /// What subjects of answers begin with.
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
    /// Logs in on an open connection: `greeting` is what follows `CONNECT`, `subjects` are heard, and what is said there goes to
    /// `messages`, which closes when the connection does.
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
            // The reader finds out why.
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

    /// The payload of a message.
    pub(super) fn message_bytes_max(&self) -> usize {
        self.max_payload.saturating_sub(HEAD_BYTES_MAX)
    }

    /// Says something to nodes, in parts if it is larger than a message. It has its place in the order of all from now on.
    ///
    /// # Errors
    /// The connection has ended.
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

    /// Asks something. It has its place in the order of all from now on.
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

    /// Asks for messages out of a stream.
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
    /// Where the number stands in the subject of an answer.
    at: usize,
    /// Messages of which parts are missing, and how many are there.
    parts: HashMap<Box<str>, (u32, Vec<u8>)>,
}

impl Reader<'_> {
    /// Reads until the connection ends, and says why it does.
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

    /// Why the connection ends, if it does.
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
                // Who has asked may have given up.
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
            // It says so of a subject, and the connection goes on; whoever has asked there would wait in vain.
            Operation::Error(text) => return Some(refusal(text)),
            _ => {}
        }
        None
    }
    /// The whole, once its last part is there. The parts of one come in order.
    fn assemble(&mut self, part: &str, payload: &[u8]) -> Option<RawMessage> {
        let mut words = part.split(' ');
        let (name, at, left) = (words.next()?, words.next()?.parse::<u32>().ok()?, words.next()?);
        if at == 0 {
            if self.parts.len() >= WHOLES_MAX {
                // Of nodes that have ended in between.
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
    use crate::cluster::inbox::inbox;

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
