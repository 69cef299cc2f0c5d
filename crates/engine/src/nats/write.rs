//! Sends requests to JetStream, and publications.

use std::num::NonZeroU64;
use std::sync::Arc;

use dunlin_hub::engine::EngineEvent;
use dunlin_hub::{Error, Published};
use dunlin_wire::nats::encode_publish;
use serde_json::json;

use super::answer::Pending;
use super::channel_state::{Batch, KnownTail, Work};
use super::{Confirmation, NatsEngine, StreamPhase, message};
use crate::frame::{self, FrameKind};

impl NatsEngine {
    /// Registers a request that awaits an answer, and returns its token.
    pub(super) fn expect(&mut self, now_ms: u64, pending: Pending) -> u64 {
        self.last_token += 1;
        self.pending.insert(self.last_token, pending);
        self.due.push_back((now_ms + self.config.answer_ms, self.last_token));
        self.last_token
    }

    /// Requests the stream if that is due.
    pub(super) fn flush_stream(&mut self, now_ms: u64) {
        if self.config.stream.is_some()
            && matches!(self.stream, StreamPhase::Wanted { at_ms } if at_ms <= now_ms)
        {
            self.ask_stream(now_ms, "CREATE");
        }
    }

    /// Creates the stream, or updates it. Creating an existing stream with the same configuration succeeds.
    pub(super) fn ask_stream(&mut self, now_ms: u64, what: &str) {
        let Some(config) = self.config.stream else { return };
        let prefix = &self.config.prefix;
        let nanoseconds = |ms: u64| ms.saturating_mul(1_000_000);
        let max_age_ms = config.max_age_ms.map(NonZeroU64::get);
        let stream = json!({
            "name": prefix,
            "subjects": [format!("{prefix}.s.>"), format!("{prefix}.k")],
            "retention": "limits",
            "storage": if config.in_memory { "memory" } else { "file" },
            "num_replicas": config.replicas,
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": config.bytes_max.map_or(-1, |bytes| bytes.get() as i64),
            "max_msg_size": -1,
            "max_msgs_per_subject": config.channel_messages_max,
            "max_age": nanoseconds(max_age_ms.unwrap_or(0)),
            "discard": "old",
            "duplicate_window": nanoseconds(config.idempotency_ms.min(max_age_ms.unwrap_or(u64::MAX))),
            "allow_direct": true,
            "republish": { "src": format!("{prefix}.s.>"), "dest": format!("{prefix}.p.>") },
        });
        let subject = format!("$JS.API.STREAM.{what}.{prefix}");
        let token = self.expect(now_ms, Pending::Stream { updates: what == "UPDATE" });
        self.stream = StreamPhase::Asked;
        self.request(&subject, token, &[], &[stream.to_string().as_bytes()]);
    }

    /// Starts the next work of a channel.
    pub(super) fn advance(&mut self, now_ms: u64, channel: &Arc<str>) {
        let Some(channel_state) = self.channel_states.get_mut(channel) else { return };
        channel_state.dirty = false;
        if channel_state.is_idle() {
            let known =
                self.channel_states.remove(channel).and_then(|channel_state| channel_state.known);
            if let Some(known) = known.filter(|known| known.written) {
                self.remembered.set(channel, known);
            }
            return;
        }
        self.hear(channel);
        let generation = self.session.generation;
        let Some(channel_state) = self.channel_states.get_mut(channel) else { return };
        if channel_state.busy || !channel_state.wants_stream() {
            return;
        }
        if self.stream != StreamPhase::Ready {
            channel_state.dirty = true;
            return self.stalled.push(channel.clone());
        }
        let was_read = std::mem::take(&mut channel_state.was_read);
        let known =
            channel_state.known.as_ref().filter(|known| known.state.generation == generation);
        let known = known.filter(|_| channel_state.is_fresh).cloned();
        let is_versioned =
            matches!(channel_state.work.front(), Some(Work::Publish(batch)) if batch.version > 0);
        channel_state.busy = true;
        let known = match known {
            Some(known)
                if !channel_state.opening
                    && channel_state.reads.is_empty()
                    && (was_read || !is_versioned) =>
            {
                known
            }
            _ => {
                let wanted = json!({ "last_by_subj": self.subject('s', channel) });
                let token = self.expect(now_ms, Pending::Last(channel.clone()));
                return self.ask_message(token, &wanted);
            }
        };
        match channel_state.work.pop_front() {
            Some(Work::Publish(batch)) => match batch.sent_after {
                Some(after) if known.sequence > after => {
                    self.look_for(now_ms, channel, batch, after);
                }
                _ => self.send(now_ms, channel, batch, &known),
            },
            Some(Work::Remove { token, .. }) => {
                if known.sequence == 0 {
                    channel_state.busy = false;
                    self.touch(channel);
                    return self.removed(token, Ok(()));
                }
                let mut state = known.state.next(known.sequence, 0);
                state.before.clear();
                let known = Box::new(KnownTail { state, written: true, ..known.clone() });
                let expected = known.sequence;
                let pending = Pending::Remove(channel.clone(), token, known.clone());
                let token = self.expect(now_ms, pending);
                self.store(
                    channel,
                    token,
                    expected,
                    &StreamMessage::mark(FrameKind::Cleared, &known),
                );
            }
            None => channel_state.busy = false,
        }
    }

    /// Publishes a batch after the known end of the stream.
    fn send(&mut self, now_ms: u64, channel: &Arc<str>, mut batch: Box<Batch>, known: &KnownTail) {
        if batch.is_older_than(&known.state) {
            let published =
                Published { position: known.position, suppressed: true, durability: None };
            self.finish_batch(&batch, Ok(published));
            return self.free(channel);
        }
        let mut state = known.state.next(known.sequence, batch.nonce);
        if batch.version > 0 {
            (state.version, state.version_epoch) = (batch.version, (&*batch.version_epoch).into());
        }
        let mut position = known.position;
        position.offset += batch.tokens.len() as u64;
        let after = Box::new(KnownTail { position, sequence: 0, state, written: true });
        let key = batch.key.as_ref().map(|key| key_of(channel, key));
        let encoded = std::mem::take(&mut batch.encoded);
        if !batch.is_sought {
            batch.sent_after = Some(known.sequence);
        }
        let token = self.expect(now_ms, Pending::Publish(channel.clone(), batch, after.clone()));
        let message = StreamMessage {
            kind: FrameKind::Publications,
            after: &after,
            key: key.as_deref(),
            publications: &encoded,
        };
        self.store(channel, token, known.sequence, &message);
        // The batch is kept, because it may have to be sent again.
        if let Some(Pending::Publish(_, batch, _)) = self.pending.get_mut(&token) {
            batch.encoded = encoded;
        }
    }

    /// Reads a message of the stream. Any server that has it answers at once, but may lag behind; with several replicas the
    /// leader is asked, because a missing message must not be taken for lost.
    pub(super) fn ask_message(&mut self, token: u64, wanted: &serde_json::Value) {
        let kind = if self.asks_leader() { "STREAM.MSG" } else { "DIRECT" };
        let subject = format!("$JS.API.{kind}.GET.{}", self.config.prefix);
        self.request(&subject, token, &[], &[wanted.to_string().as_bytes()]);
    }

    pub(super) fn asks_leader(&self) -> bool {
        self.config.stream.is_some_and(|stream| stream.replicas > 1)
    }

    /// Searches the stream for a message without an answer.
    fn look_for(&mut self, now_ms: u64, channel: &Arc<str>, batch: Box<Batch>, after: u64) {
        let next = json!({ "seq": after + 1, "next_by_subj": self.subject('s', channel) });
        let token = self.expect(now_ms, Pending::Successor(channel.clone(), batch));
        self.ask_message(token, &next);
        self.stats.retried += 1;
    }

    /// Begins a stream, or a new epoch of it.
    pub(super) fn begin(&mut self, now_ms: u64, channel: &Arc<str>, known: &KnownTail) {
        let state = known.state.next(known.sequence, 0);
        let after = Box::new(KnownTail { state, written: true, ..known.clone() });
        let pending = Pending::Begin(channel.clone(), after.clone());
        let token = self.expect(now_ms, pending);
        let message = StreamMessage::mark(FrameKind::EpochChanged, &after);
        self.store(channel, token, known.sequence, &message);
    }

    /// Sends a message that is stored only after the channel's message of sequence `expected`.
    fn store(&mut self, channel: &str, token: u64, expected: u64, message: &StreamMessage<'_>) {
        let StreamMessage { kind, after, key, publications } = *message;
        let mut head = Vec::with_capacity(160);
        after.state.encode(&mut head);
        head.extend_from_slice(frame::head(kind, after.position).as_bytes());
        let expected = expected.to_string();
        let headers = [
            ("Nats-Expected-Last-Subject-Sequence", &*expected),
            ("Nats-Msg-Id", key.unwrap_or_default()),
        ];
        let headers = &headers[..1 + usize::from(key.is_some())];
        let subject = self.subject('s', channel);
        self.request(&subject, token, headers, &[&head, publications]);
    }

    /// Marks a channel as free for its next work.
    pub(super) fn free(&mut self, channel: &Arc<str>) {
        if let Some(channel_state) = self.channel_states.get_mut(channel) {
            channel_state.busy = false;
            self.touch(channel);
        }
    }

    /// Queues work that was not carried out before all that waits.
    pub(super) fn again(&mut self, channel: &Arc<str>, work: Work) {
        self.stats.retried += 1;
        self.channel_state(channel).work.push_front(work);
        self.free(channel);
    }

    /// Sends unstored publications.
    pub(super) fn flush_plain(&mut self, now_ms: u64) {
        let mut waiting = std::collections::VecDeque::new();
        while self.takes_more()
            && let Some(plain) = self.plain.pop_front()
        {
            match &plain.key {
                None => self.send_plain(&plain.channel, plain.token, &plain.encoded),
                Some(_) if self.stream != StreamPhase::Ready => waiting.push_back(plain),
                Some(key) => {
                    let key = key_of(&plain.channel, key);
                    let token = self.expect(now_ms, Pending::Claim(Box::new(plain)));
                    let subject = format!("{}.k", self.config.prefix);
                    self.request(&subject, token, &[("Nats-Msg-Id", &key)], &[]);
                }
            }
        }
        waiting.append(&mut self.plain);
        self.plain = waiting;
    }

    pub(super) fn send_plain(&mut self, channel: &str, token: u64, encoded: &[u8]) {
        self.queue_bytes = self.queue_bytes.saturating_sub(encoded.len());
        let raw = self.config.raw.as_ref().and_then(|raw| raw.of(channel, false));
        let head: &[u8] = if raw.is_some() { b"" } else { b"1p:0:" };
        let subject = raw.unwrap_or_else(|| self.subject('p', channel));
        encode_publish(&mut self.out, subject.as_bytes(), None, &[], &[head, encoded]);
        self.unconfirmed.push(Confirmation::Published { token, subject });
    }

    pub(super) fn removed(&mut self, token: u64, result: Result<(), Error>) {
        self.events.push_back(EngineEvent::HistoryRemoved { token, result });
    }
}

/// A message of a channel's stream.
struct StreamMessage<'a> {
    kind: FrameKind,
    /// The end of the stream after the message.
    after: &'a KnownTail,
    /// The idempotency key by which the server detects a duplicate.
    key: Option<&'a str>,
    publications: &'a [u8],
}

impl<'a> StreamMessage<'a> {
    /// Creates a message without publications.
    fn mark(kind: FrameKind, after: &'a KnownTail) -> StreamMessage<'a> {
        StreamMessage { kind, after, key: None, publications: &[] }
    }
}

/// Returns an idempotency key that is unique across channels.
fn key_of(channel: &str, key: &str) -> String {
    format!("{}:{}:{}", channel.len(), message::word(channel), message::word(key))
}
