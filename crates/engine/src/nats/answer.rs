//! Converts answers and messages to events.

use std::sync::Arc;

use dunlin_hub::engine::{EngineEvent, EnginePosition};
use dunlin_hub::{Epoch, Error, PayloadFormat, PublicationParts, Published, StreamPosition};
use dunlin_wire::nats::{Headers, NatsMessage};
use serde::Deserialize;

use super::channel_state::{Batch, KnownTail, UnstoredPublication, Work};
use super::jetstream_error::JetStreamError;
use super::message::State;
use super::stored::{Message, StoredMessage, StoredReply};
use super::{Confirmation, NatsEngine, StreamPhase, message, refusals};
use crate::frame::{Frame, FrameKind};
use crate::status::ShardState;

/// Milliseconds until JetStream is asked again after it was unable to answer.
const RETRY_MS: u64 = 250;

/// A request without an answer so far.
#[derive(Debug)]
pub(super) enum Pending {
    /// Creates or updates the stream.
    Stream {
        updates: bool,
    },
    /// Reads the last message of a channel.
    Last(Arc<str>),
    /// Stores the first message of a stream or an epoch, with the state after it.
    Begin(Arc<str>, Box<KnownTail>),
    Publish(Arc<str>, Box<Batch>, Box<KnownTail>),
    Remove(Arc<str>, u64, Box<KnownTail>),
    /// Reads the message after the one that a batch was sent behind.
    Successor(Arc<str>, Box<Batch>),
    /// Reads the message that was published with an idempotency key.
    Duplicate(Arc<str>, Box<Batch>),
    /// Reads a message of a history, by reader and sequence.
    Fetch(u64, u64),
    /// Reads the stream's last sequence, for a request for positions.
    Newest(u64),
    /// Reads one of the requested positions, by its index in the request.
    Peek(u64, usize, Arc<str>),
    /// Claims an idempotency key for an unstored publication.
    Claim(Box<UnstoredPublication>),
    Ignored,
}

/// The answer of JetStream's API.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ApiResponse {
    seq: u64,
    duplicate: bool,
    error: Option<JetStreamError>,
    state: StreamState,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StreamState {
    last_seq: u64,
}

impl NatsEngine {
    pub(super) fn handle_answer(
        &mut self,
        now_ms: u64,
        token: u64,
        headers: Headers<'_>,
        payload: &[u8],
    ) {
        let Some(pending) = self.pending.remove(&token) else { return };
        while self.due.front().is_some_and(|(_, token)| !self.pending.contains_key(token)) {
            self.due.pop_front();
        }
        let message = match self.asks_leader() && pending.is_of_message() {
            true => Message::of_leader(headers, payload),
            false => Message::of_replica(headers, payload),
        };
        match pending {
            Pending::Last(channel) => {
                self.free(&channel);
                match message.read() {
                    StoredReply::Stored(stored) => self.settle(now_ms, &channel, Some(stored)),
                    StoredReply::Nothing => self.settle(now_ms, &channel, None),
                    StoredReply::Unreadable => self.unreadable(&channel),
                    StoredReply::Unavailable => self.stream_gone(now_ms),
                }
            }
            Pending::Successor(channel, batch) => match message.read() {
                StoredReply::Stored(stored) => self.successor(&channel, batch, &stored),
                _ => {
                    self.channel_state(&channel).is_fresh = false;
                    self.again_or_fail(now_ms, &channel, batch);
                }
            },
            Pending::Duplicate(channel, batch) => {
                let result = match message.read() {
                    StoredReply::Stored(stored) => {
                        let suppressed = stored.state.nonce != batch.nonce;
                        Ok(Published {
                            position: stored.frame.position,
                            suppressed,
                            durability: None,
                        })
                    }
                    // Among replicas, one may know a key whose message is not stored yet.
                    StoredReply::Unavailable => Err(Error::EngineUncertain),
                    _ => Ok(Published { suppressed: true, ..Published::default() }),
                };
                self.finish_batch(&batch, result);
                self.free(&channel);
            }
            Pending::Fetch(reader, sequence) => match message.status {
                None => self.fetched(now_ms, reader, sequence, Some(&message.payload)),
                Some(404) => self.fetched(now_ms, reader, sequence, None),
                // Whether the message exists is unknown.
                Some(_) => self.read_failed(reader),
            },
            Pending::Peek(gathering, index, channel) => {
                let position = match message.read() {
                    StoredReply::Stored(stored) => Ok(stored.frame.position),
                    StoredReply::Nothing => Ok(StreamPosition::default()),
                    StoredReply::Unreadable => Err(Error::EngineRefused),
                    StoredReply::Unavailable => Err(Error::EngineUnavailable),
                };
                self.peeked(gathering, index, &channel, position);
            }
            Pending::Ignored => {}
            pending => {
                let answer = match headers.status() {
                    Some(_) => None,
                    None => serde_json::from_slice(payload).ok(),
                };
                self.handle_json(now_ms, pending, answer);
            }
        }
    }

    /// Handles a JSON answer; `None` if there is no responder.
    fn handle_json(&mut self, now_ms: u64, pending: Pending, answer: Option<ApiResponse>) {
        let Some(mut answer) = answer else {
            self.stream_gone(now_ms);
            // Nothing was stored.
            return self.put_back(now_ms, pending);
        };
        match answer.error.take() {
            None => self.handle_done(now_ms, pending, &answer),
            Some(error) => self.handle_refused(now_ms, pending, error),
        }
    }

    /// Handles a successful answer of JetStream.
    fn handle_done(&mut self, now_ms: u64, pending: Pending, done: &ApiResponse) {
        let ApiResponse { seq, duplicate, .. } = *done;
        match pending {
            Pending::Stream { .. } => {
                self.stream = StreamPhase::Ready;
                self.ready(now_ms);
                self.dirty.append(&mut self.stalled);
            }
            Pending::Begin(channel, mut known) => {
                known.sequence = seq;
                self.channel_state(&channel).known = Some(*known);
                self.free(&channel);
                self.opened(now_ms, &channel);
            }
            Pending::Publish(channel, batch, _) if duplicate => {
                let token = self.expect(now_ms, Pending::Duplicate(channel, batch));
                self.ask_message(token, &serde_json::json!({ "seq": seq }));
            }
            Pending::Publish(channel, batch, mut known) => {
                self.stats.publish_commands += 1;
                self.session.refusing = None;
                known.sequence = seq;
                let published = Published { position: known.position, ..Published::default() };
                self.learn(&channel, *known);
                self.finish_batch(&batch, Ok(published));
                self.free(&channel);
            }
            Pending::Remove(channel, token, mut known) => {
                known.sequence = seq;
                let subject = self.subject('s', &channel);
                self.learn(&channel, *known);
                self.removed(token, Ok(()));
                self.free(&channel);
                // Messages before it are not read any more; the purge frees their space.
                let purge = serde_json::json!({ "filter": subject, "seq": seq }).to_string();
                let token = self.expect(now_ms, Pending::Ignored);
                let subject = format!("$JS.API.STREAM.PURGE.{}", self.config.prefix);
                self.request(&subject, token, &[], &[purge.as_bytes()]);
            }
            Pending::Claim(plain) if duplicate => {
                let position = StreamPosition::default();
                self.finish_plain(
                    &plain,
                    Ok(Published { position, suppressed: true, durability: None }),
                );
            }
            Pending::Claim(plain) => {
                self.send_plain(&plain.channel, plain.token, &plain.encoded);
            }
            Pending::Newest(gathering) => self.newest(now_ms, gathering, done.state.last_seq),
            _ => {}
        }
    }

    /// Handles an error answer of JetStream.
    fn handle_refused(&mut self, now_ms: u64, pending: Pending, error: JetStreamError) {
        match pending {
            Pending::Stream { updates: false } if error.is_stream_name_in_use() => {
                self.ask_stream(now_ms, "UPDATE");
            }
            Pending::Stream { .. } => {
                self.stream = StreamPhase::Wanted { at_ms: now_ms + 4 * RETRY_MS };
                let refusal = error.reason();
                self.session.detail = error.description;
                self.session.enter(now_ms, ShardState::Refused(refusal));
            }
            pending @ (Pending::Begin(..) | Pending::Publish(..) | Pending::Remove(..))
                if error.is_wrong_last_sequence() =>
            {
                if let Some(channel) = pending.channel() {
                    self.channel_state(&channel.clone()).is_fresh = false;
                }
                self.put_back(now_ms, pending);
            }
            pending => {
                let refusal = error.reason();
                self.session.detail = error.description;
                if refusal == refusals::UNAVAILABLE {
                    self.stream_gone(now_ms);
                    return self.put_back(now_ms, pending);
                }
                self.session.refusing = Some(refusal);
                self.refused(pending);
            }
        }
    }

    /// Handles the loss of the stream, or of JetStream.
    pub(super) fn stream_gone(&mut self, now_ms: u64) {
        if self.stream != StreamPhase::Asked {
            self.stream = StreamPhase::Wanted { at_ms: now_ms + RETRY_MS };
        }
        self.session.enter(now_ms, ShardState::Refused(refusals::NO_JETSTREAM));
        self.session.detail = "nobody answers for the stream".to_owned();
    }

    /// Repeats a request that was not carried out.
    fn put_back(&mut self, now_ms: u64, pending: Pending) {
        match pending {
            Pending::Stream { .. } => {
                self.stream = StreamPhase::Wanted { at_ms: now_ms + RETRY_MS };
            }
            Pending::Publish(channel, mut batch, known) => {
                // Refused at the first attempt: the message is not stored. After an unanswered attempt it may be.
                let expected = known.state.before.first().copied().unwrap_or(0);
                if batch.sent_after == Some(expected) && !batch.is_sought {
                    batch.sent_after = None;
                }
                self.again(&channel, Work::Publish(batch));
            }
            Pending::Successor(channel, batch) | Pending::Duplicate(channel, batch) => {
                self.again(&channel, Work::Publish(batch));
            }
            Pending::Remove(channel, token, _) => {
                self.again(&channel, Work::Remove { token, since_ms: now_ms });
            }
            Pending::Last(channel) | Pending::Begin(channel, _) => self.free(&channel),
            Pending::Claim(plain) => self.plain.push_front(*plain),
            Pending::Newest(gathering) => self.gathering_failed(gathering),
            Pending::Peek(gathering, ..) => self.gathering_failed(gathering),
            Pending::Fetch(reader, _) => self.read_failed(reader),
            Pending::Ignored => {}
        }
    }

    /// Handles a request without an answer, after a timeout or a lost connection. Its outcome is unknown.
    pub(super) fn pending_lost(&mut self, now_ms: u64, pending: Pending, disconnected: bool) {
        if !disconnected && self.stream == StreamPhase::Ready {
            // Requests that wait for JetStream fail after their timeout until it answers again.
            self.stream = StreamPhase::Wanted { at_ms: now_ms };
            self.session.detail = "JetStream did not answer".to_owned();
            self.session.enter(now_ms, ShardState::Refused(refusals::UNAVAILABLE));
        }
        match pending {
            Pending::Publish(channel, mut batch, known) => {
                batch.sent_after.get_or_insert(known.state.before.first().copied().unwrap_or(0));
                batch.is_sought = true;
                self.channel_state(&channel).is_fresh = false;
                self.again_or_fail(now_ms, &channel, batch);
            }
            Pending::Successor(channel, batch) => self.again_or_fail(now_ms, &channel, batch),
            Pending::Duplicate(channel, batch) => {
                self.finish_batch(&batch, Err(Error::EngineUncertain));
                self.free(&channel);
            }
            Pending::Remove(channel, token, _) => {
                self.channel_state(&channel).is_fresh = false;
                self.removed(token, Err(Error::EngineUncertain));
                self.free(&channel);
            }
            Pending::Claim(plain) => self.finish_plain(&plain, Err(Error::EngineUncertain)),
            Pending::Begin(channel, _) => {
                self.channel_state(&channel).is_fresh = false;
                self.free(&channel);
            }
            Pending::Stream { .. } if !disconnected => {
                self.stream = StreamPhase::Wanted { at_ms: now_ms + RETRY_MS };
                if !matches!(self.session.state, ShardState::Refused(_)) {
                    self.session.detail = "JetStream did not answer".to_owned();
                    self.session.enter(now_ms, ShardState::Refused(refusals::UNAVAILABLE));
                }
            }
            pending => self.put_back(now_ms, pending),
        }
    }

    /// Sends a batch again, or fails it if its publisher has waited too long.
    fn again_or_fail(&mut self, now_ms: u64, channel: &Arc<str>, batch: Box<Batch>) {
        if batch.since_ms + self.config.answer_ms > now_ms {
            return self.again(channel, Work::Publish(batch));
        }
        self.finish_batch(&batch, Err(Error::EngineUncertain));
        self.free(channel);
    }

    /// Fails a request that JetStream refused. Nothing was stored, unless an earlier attempt had no answer.
    fn refused(&mut self, pending: Pending) {
        match pending {
            Pending::Publish(channel, batch, _) => {
                self.channel_state(&channel).is_fresh = false;
                let error = match batch.is_sought {
                    true => Error::EngineUncertain,
                    false => Error::EngineRefused,
                };
                self.finish_batch(&batch, Err(error));
                self.free(&channel);
            }
            Pending::Remove(channel, token, _) => {
                self.channel_state(&channel).is_fresh = false;
                self.removed(token, Err(Error::EngineRefused));
                self.free(&channel);
            }
            Pending::Claim(plain) => self.finish_plain(&plain, Err(Error::EngineRefused)),
            Pending::Begin(channel, _) | Pending::Last(channel) => {
                self.refuse_channel(&channel);
                self.free(&channel);
            }
            Pending::Newest(gathering) | Pending::Peek(gathering, ..) => {
                self.gathering_failed(gathering);
            }
            Pending::Fetch(reader, _) => self.read_failed(reader),
            _ => {}
        }
    }

    /// Fails everything that waits for a channel.
    fn refuse_channel(&mut self, channel: &Arc<str>) {
        let channel_state = self.channel_state(channel);
        let was_opening = std::mem::take(&mut channel_state.opening);
        let (work, reads) =
            (std::mem::take(&mut channel_state.work), std::mem::take(&mut channel_state.reads));
        for work in work {
            self.fail_work(work, Error::EngineRefused);
        }
        for read in reads {
            let result = Err(Error::EngineRefused);
            self.events.push_back(EngineEvent::History { token: read.token, result });
        }
        if was_opening {
            self.subscribed(channel, Err(Error::EngineRefused));
        }
    }

    fn unreadable(&mut self, channel: &Arc<str>) {
        self.stats.unreadable += 1;
        let what = "holds a message of a newer version, or somebody else's";
        self.session.detail = format!("channel {channel:?} {what}");
        self.session.refusing = Some(refusals::OTHER);
        self.refuse_channel(channel);
    }

    /// Handles the last message of a channel: derives the position of its stream and the epoch in which it continues.
    fn settle(&mut self, now_ms: u64, channel: &Arc<str>, last: Option<StoredMessage<'_>>) {
        let generation = self.session.generation;
        let fresh = self.fresh_epoch();
        let Some(channel_state) = self.channel_states.get_mut(channel) else { return };
        let seen = channel_state.known.take().filter(|known| known.written);
        let mut was_cut = seen.as_ref().is_some_and(|seen| seen.position.offset > 0);
        let known = match last {
            None => KnownTail {
                position: StreamPosition { offset: 0, epoch: fresh },
                sequence: 0,
                state: State { generation, ..State::default() },
                written: false,
            },
            Some(StoredMessage { sequence, mut state, frame }) => {
                let mut position = frame.position;
                // What this epoch reached here, for whom it is one of those before.
                let reached = |epoch| match epoch == position.epoch {
                    true => Some(position.offset),
                    false => state.reach(epoch),
                };
                was_cut = seen.as_ref().is_some_and(|seen| {
                    reached(seen.position.epoch).is_some_and(|top| top < seen.position.offset)
                });
                let written = state.generation == generation && !was_cut;
                if !written {
                    state = state.inheriting(position, generation);
                    if was_cut {
                        state.inherits = Arc::default();
                    }
                    position.epoch = fresh;
                }
                KnownTail { position, sequence, state, written }
            }
        };
        self.stats.streams_cut += u64::from(was_cut);
        (channel_state.known, channel_state.is_fresh, channel_state.was_read) =
            (Some(known.clone()), true, true);
        if !channel_state.opening && channel_state.reads.is_empty() {
            return;
        }
        if known.written {
            return self.opened(now_ms, channel);
        }
        channel_state.busy = true;
        self.begin(now_ms, channel, &known);
    }

    /// Reports a channel's position to the requests that wait for it.
    fn opened(&mut self, now_ms: u64, channel: &Arc<str>) {
        let Some(channel_state) = self.channel_states.get_mut(channel) else { return };
        let Some(known) = channel_state.known.clone() else { return };
        if let Some(subscription) = &mut channel_state.subscription
            && channel_state.opening
        {
            if subscription.heard > known.sequence {
                // Another publication arrived in between: the position is read again.
                channel_state.is_fresh = false;
                return self.touch(channel);
            }
            (subscription.synced, channel_state.opening) = (true, false);
            let result =
                EnginePosition { position: known.position, inherits: known.state.lineage() };
            self.subscribed(channel, Ok(result));
        }
        let Some(channel_state) = self.channel_states.get_mut(channel) else { return };
        for read in std::mem::take(&mut channel_state.reads) {
            self.begin_read(now_ms, channel, read, &known);
        }
        self.touch(channel);
    }

    /// Handles the message at the place where an unanswered batch would be.
    fn successor(&mut self, channel: &Arc<str>, mut batch: Box<Batch>, stored: &StoredMessage<'_>) {
        if stored.state.nonce == batch.nonce {
            let position = stored.frame.position;
            self.finish_batch(&batch, Ok(Published { position, ..Published::default() }));
            return self.free(channel);
        }
        if stored.state.before.first().copied().unwrap_or(0) == batch.sent_after.unwrap_or(0) {
            // Another message was stored there.
            (batch.sent_after, batch.is_sought) = (None, false);
            return self.again(channel, Work::Publish(batch));
        }
        self.finish_batch(&batch, Err(Error::EngineUncertain));
        self.free(channel);
    }

    /// Updates the known end of a channel's stream.
    fn learn(&mut self, channel: &Arc<str>, known: KnownTail) {
        let channel_state = self.channel_state(channel);
        if channel_state
            .known
            .as_ref()
            .is_none_or(|old| !old.written || old.sequence < known.sequence)
        {
            channel_state.known = Some(known);
        }
    }

    /// Handles a message of a subscribed channel.
    pub(super) fn handle_message(&mut self, message: &NatsMessage<'_>) {
        let Some(channel) = self.sids.get(&message.sid).cloned() else { return };
        self.stats.messages += 1;
        if self.config.raw.is_some() {
            return self.handle_raw(&channel, message);
        }
        let parsed = State::parse(message.payload).ok();
        let parsed = parsed.and_then(|(state, rest)| Some((state, Frame::parse(rest).ok()?)));
        let sequence = message.headers.get("Nats-Sequence").and_then(|text| text.parse().ok());
        let Some((state, frame)) = parsed else { return self.stats.unreadable += 1 };
        let Some(channel_state) = self.channel_states.get_mut(&channel) else { return };
        let Some(subscription) = &mut channel_state.subscription else { return };
        if subscription.is_wildcard {
            return self.handle_match(&channel, message.subject, &frame);
        }
        if let (Some(state), Some(sequence)) = (state, sequence) {
            // The position that is being read covers messages before it.
            if !subscription.synced {
                return subscription.heard = subscription.heard.max(sequence);
            }
            let known = channel_state.known.as_ref().filter(|known| known.written);
            if known.is_none_or(|known| known.position.epoch != frame.position.epoch) {
                // The epoch's inheritance is reported before any of its messages.
                (channel_state.opening, subscription.synced) = (true, false);
                (subscription.heard, channel_state.is_fresh) = (sequence, false);
                return self.touch(&channel);
            }
            if known.is_some_and(|known| sequence > known.sequence) {
                let position = frame.position;
                channel_state.known = Some(KnownTail { position, sequence, state, written: true });
            }
        }
        match frame.kind {
            FrameKind::Publications => {
                let Ok(publications) = frame.publications() else {
                    return self.stats.unreadable += 1;
                };
                let epoch = frame.position.epoch;
                for (publication, except) in publications {
                    let (channel, publication) = (channel.clone(), publication.into());
                    let event = EngineEvent::Publication { channel, epoch, publication, except };
                    self.events.push_back(event);
                }
            }
            FrameKind::Cleared => self.events.push_back(EngineEvent::Cleared { channel }),
            FrameKind::EpochChanged => {}
            FrameKind::Unknown => self.stats.unreadable += 1,
        }
    }

    /// Handles a message from any publisher.
    fn handle_raw(&mut self, name: &Arc<str>, message: &NatsMessage<'_>) {
        let channel_state =
            self.channel_states.get(name).and_then(|channel_state| channel_state.subscription);
        let (Some(raw), Some(subscription)) = (&self.config.raw, channel_state) else { return };
        let channel = match subscription.is_wildcard {
            false => None,
            true => match raw.channel_of(name, message.subject) {
                Some(channel) => Some(channel.into()),
                None => return self.stats.unreadable += 1,
            },
        };
        let (data, format) = (message.payload.into(), format_of(message.payload));
        let parts = PublicationParts { data, format, channel, ..PublicationParts::default() };
        let (epoch, publication) = (Epoch::NONE, parts.into());
        let event =
            EngineEvent::Publication { channel: name.clone(), epoch, publication, except: None };
        self.events.push_back(event);
    }

    /// Counts a message that could not be read.
    pub fn count_unreadable(&mut self) {
        self.stats.unreadable += 1;
    }

    /// Handles a message of a channel that a wildcard matches.
    fn handle_match(&mut self, name: &Arc<str>, subject: &[u8], frame: &Frame<'_>) {
        if frame.kind != FrameKind::Publications {
            return;
        }
        let words = str::from_utf8(subject).ok();
        let words = words.and_then(|words| words.strip_prefix(&*self.config.prefix));
        let words = words.and_then(|words| words.strip_prefix(".p."));
        let of = words.and_then(|words| message::channel_of(name, words));
        let (Some(of), Ok(publications)) = (of, frame.publications()) else {
            return self.stats.unreadable += 1;
        };
        for (publication, except) in publications {
            let publication =
                PublicationParts { offset: 0, channel: Some(of.as_str().into()), ..publication };
            let (channel, epoch) = (name.clone(), Epoch::NONE);
            let publication = publication.into();
            self.events.push_back(EngineEvent::Publication { channel, epoch, publication, except });
        }
    }

    /// Handles a permission error of the server for publishing or subscribing to a subject.
    pub(super) fn forbidden(&mut self, now_ms: u64, subject: &str) {
        if subject.starts_with("$JS.API.STREAM.") || subject.starts_with(&self.answers) {
            let refusal = ShardState::Refused(refusals::NO_PERMISSION);
            self.session.enter(now_ms, refusal);
        }
        let is_it = |engine: &NatsEngine, pending: &Pending| match pending {
            Pending::Claim(_) => subject == format!("{}.k", engine.config.prefix),
            pending => pending.channel().is_some_and(|of| engine.subject('s', of) == subject),
        };
        let tokens = self.pending.iter().filter(|(_, pending)| is_it(self, pending));
        for token in tokens.map(|(&token, _)| token).collect::<Vec<_>>() {
            if let Some(pending) = self.pending.remove(&token) {
                self.refused(pending);
            }
        }
        let mut tokens = Vec::new();
        for group in self.pings.iter_mut().chain([&mut self.unconfirmed]) {
            group.retain(|confirmation| match confirmation {
                Confirmation::Published { token, subject: of } if of == subject => {
                    tokens.push(*token);
                    false
                }
                _ => true,
            });
        }
        self.finish_each(&tokens, Error::EngineRefused);
        let heard = self.sids.values().find(|channel| {
            let of = self
                .channel_states
                .get(*channel)
                .and_then(|channel_state| channel_state.subscription.as_ref());
            of.and_then(|of| self.heard_subject(channel, of)).is_some_and(|of| of == subject)
        });
        if let Some(channel) = heard.cloned() {
            self.subscribed(&channel, Err(Error::EngineRefused));
        }
    }

    fn finish_each(&mut self, tokens: &[u64], error: Error) {
        for &token in tokens {
            self.finish_publish(&[token], Err(error));
        }
    }
}

/// Returns the format of a foreign payload.
fn format_of(payload: &[u8]) -> PayloadFormat {
    let is_line = !payload.iter().any(|byte| matches!(byte, b'\n' | b'\r'));
    let is_json = is_line
        && str::from_utf8(payload)
            .is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok());
    if is_json { PayloadFormat::Json } else { PayloadFormat::Binary }
}

impl Pending {
    /// Returns whether the answer is a message of the stream.
    fn is_of_message(&self) -> bool {
        matches!(
            self,
            Pending::Last(_)
                | Pending::Successor(..)
                | Pending::Duplicate(..)
                | Pending::Fetch(..)
                | Pending::Peek(..)
        )
    }

    /// Returns the channel that a message was sent to.
    fn channel(&self) -> Option<&Arc<str>> {
        match self {
            Pending::Begin(channel, _)
            | Pending::Publish(channel, ..)
            | Pending::Remove(channel, ..) => Some(channel),
            _ => None,
        }
    }
}
