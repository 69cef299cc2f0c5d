//! Reads histories, backwards from a channel's last message, and positions of many channels.

use std::collections::BTreeMap;
use std::sync::Arc;

use dunlin_hub::engine::{EngineEvent, Lineage};
use dunlin_hub::{Epoch, Error, StreamPosition};
use serde_json::json;

use super::NatsEngine;
use super::answer::Pending;
use super::channel_state::{KnownTail, StreamRead};
use super::message::State;
use crate::frame::{Frame, FrameKind};
use crate::select::select;

/// A history that is being read.
#[derive(Debug)]
pub(super) struct Reader {
    channel: Arc<str>,
    read: StreamRead,
    position: StreamPosition,
    inherits: Lineage,
    /// The lowest requested offset.
    lowest: u64,
    /// The highest requested offset.
    highest: u64,
    /// Messages by sequence, up to the size of the answer.
    messages: BTreeMap<u64, StreamMessage>,
    /// The time of the newest message's publications.
    newest_ms: u64,
    /// The number of unanswered requests.
    out: usize,
    /// Messages up to this sequence no longer exist.
    gone: u64,
}

/// A message of a history.
#[derive(Debug)]
struct StreamMessage {
    frame: Vec<u8>,
    kind: FrameKind,
    epoch: Epoch,
    /// Sequences of the messages before it, newest first.
    before: Vec<u64>,
    /// The offset of its first publication; without publications, that of the next message's first one.
    first_offset: u64,
    /// The offset of its last publication.
    offset: u64,
    time_ms: u64,
}

impl StreamMessage {
    /// Parses a message; `None` if this version cannot read it.
    fn parse(message: &[u8]) -> Option<Self> {
        let (state, rest) = State::parse(message).ok()?;
        let frame = Frame::parse(rest).ok()?;
        let publications = match frame.kind {
            FrameKind::Publications => frame.publications().ok()?,
            _ => Vec::new(),
        };
        let (kind, offset) = (frame.kind, frame.position.offset);
        Some(Self {
            frame: rest.to_vec(),
            kind,
            epoch: frame.position.epoch,
            before: state?.before,
            first_offset: publications.first().map_or(offset + 1, |(first, _)| first.offset),
            offset,
            time_ms: publications.last().map_or(0, |(last, _)| last.time_ms),
        })
    }
}

impl Reader {
    /// Drops the messages outside the answer or beyond its size. Returns whether older ones are needed.
    fn trim(&mut self) -> bool {
        let present = self.read.filter.present_epoch.then_some(self.position.epoch);
        let is_earlier = |message: &StreamMessage| present.is_some_and(|of| of != message.epoch);
        let counts = |message: &StreamMessage| {
            message.kind == FrameKind::Publications && !is_earlier(message)
        };
        let removal =
            |message: &StreamMessage| message.kind == FrameKind::Cleared || is_earlier(message);
        if let Some(newest) = self.messages.values().rev().find(|message| counts(message)) {
            self.newest_ms = self.newest_ms.max(newest.time_ms);
        }
        let oldest_kept = self.messages.iter().rev().find(|(_, message)| removal(message));
        if let Some((&sequence, _)) = oldest_kept {
            self.messages = self.messages.split_off(&sequence);
        }
        let Some((&oldest, first)) = self.messages.first_key_value() else { return false };
        let goes_on = !removal(first) && first.first_offset > self.lowest && self.gone < oldest;
        let Some(room) = self.read.filter.bytes_max else { return goes_on };
        let wanted = self.lowest..=self.highest;
        // The oldest message contains the sequences of those before it.
        self.messages.retain(|&sequence, message| {
            sequence == oldest || message.first_offset <= *wanted.end()
        });
        let has = |message: &&StreamMessage| {
            counts(message)
                && message.first_offset <= *wanted.end()
                && message.offset >= *wanted.start()
        };
        let of_answer = self.messages.values().filter(has);
        let mut bytes: usize = of_answer.map(|message| message.frame.len()).sum();
        if self.read.filter.reverse {
            return goes_on && bytes < room.max(1);
        }
        while let Some(newest) = self.messages.last_entry()
            && *newest.key() != oldest
        {
            let left = bytes - if has(&newest.get()) { newest.get().frame.len() } else { 0 };
            if left < room {
                break;
            }
            newest.remove();
            bytes = left;
        }
        goes_on
    }
}

/// A request for positions that is under way.
#[derive(Debug)]
pub(super) struct PositionQuery {
    channels: Vec<Arc<str>>,
    positions: Vec<StreamPosition>,
    left: usize,
    failed: Option<Error>,
    /// The stream's last sequence at the start of the request.
    newest: u64,
}

impl NatsEngine {
    pub(super) fn begin_read(
        &mut self,
        now_ms: u64,
        channel: &Arc<str>,
        read: StreamRead,
        known: &KnownTail,
    ) {
        let top = known.position.offset;
        let (size, filter) = (u64::from(read.retention.size), &read.filter);
        let oldest = top.saturating_sub(size) + 1;
        let since = filter.since.map(|since| since.offset);
        let (lowest, highest) = match filter.reverse {
            false => (oldest.max(since.unwrap_or(0).saturating_add(1)), top),
            true => {
                let highest = since.map_or(top, |since| top.min(since - 1));
                let limit = filter.limit.map_or(u64::MAX, u64::from);
                (oldest.max(highest.saturating_sub(limit).saturating_add(1)), highest)
            }
        };
        let id = self.last_token + 1;
        // A backward read from beyond the end returns nothing.
        let is_beyond = filter.reverse && since.is_some_and(|since| since > top + 1);
        let wants = lowest <= highest && filter.limit != Some(0) && !is_beyond;
        self.readers.insert(
            id,
            Reader {
                channel: channel.clone(),
                position: known.position,
                inherits: known.state.lineage(),
                lowest,
                highest,
                messages: BTreeMap::new(),
                newest_ms: 0,
                out: 0,
                gone: 0,
                read,
            },
        );
        if !wants || known.sequence == 0 {
            return self.finish_read(now_ms, id);
        }
        let sequences = [&[known.sequence], &known.state.before[..]].concat();
        self.fetch(now_ms, id, &sequences, top);
    }

    /// Requests messages of a history, newest first; the first has at most the offset `newest`.
    fn fetch(&mut self, now_ms: u64, id: u64, sequences: &[u64], newest: u64) {
        let Some(reader) = self.readers.get_mut(&id) else { return };
        // Each message has at least one publication, except those that begin an epoch.
        let wanted = (newest + 2).saturating_sub(reader.lowest).max(1) as usize;
        let sequences = &sequences[..sequences.len().min(wanted)];
        reader.out += sequences.len();
        for sequence in sequences {
            let token = self.expect(now_ms, Pending::Fetch(id, *sequence));
            self.ask_message(token, &json!({ "seq": sequence }));
        }
    }

    /// Handles a message of a history, or that it no longer exists.
    pub(super) fn fetched(&mut self, now_ms: u64, id: u64, sequence: u64, message: Option<&[u8]>) {
        let Some(reader) = self.readers.get_mut(&id) else { return };
        reader.out -= 1;
        match message.map(StreamMessage::parse) {
            Some(Some(message)) => _ = reader.messages.insert(sequence, message),
            Some(None) => return self.read_failed(id),
            None => reader.gone = reader.gone.max(sequence),
        }
        if reader.out > 0 {
            return;
        }
        let goes_on = reader.trim();
        let Some(oldest) = reader.messages.first_entry().filter(|_| goes_on) else {
            return self.finish_read(now_ms, id);
        };
        // The offsets are known only in part: each later message has at least one.
        let (reached, gone) = (oldest.get().offset, reader.gone);
        let before: Vec<u64> =
            oldest.get().before.iter().copied().filter(|&before| before > gone).collect();
        match before.is_empty() {
            true => self.finish_read(now_ms, id),
            false => self.fetch(now_ms, id, &before, reached),
        }
    }

    pub(super) fn read_failed(&mut self, id: u64) {
        if let Some(reader) = self.readers.remove(&id) {
            let (token, result) = (reader.read.token, Err(Error::EngineUnavailable));
            self.events.push_back(EngineEvent::History { token, result });
        }
    }

    fn finish_read(&mut self, now_ms: u64, id: u64) {
        let Some(mut reader) = self.readers.remove(&id) else { return };
        let StreamRead { token, retention, filter, .. } = reader.read;
        let messages = reader.messages.split_off(&(reader.gone + 1));
        let mut frames: Vec<_> = messages
            .into_values()
            .filter(|message| message.kind == FrameKind::Publications)
            .map(|message| message.frame)
            .collect();
        if reader.newest_ms.saturating_add(retention.ttl_ms) < self.unix_ms + now_ms {
            frames.clear();
        }
        let frames = frames.iter().map(Vec::as_slice);
        let result = select(reader.position, &reader.inherits, frames, &filter, retention.size);
        self.stats.unreadable += u64::from(result == Err(Error::EngineRefused));
        if filter.since.is_some() && !reader.inherits.is_empty() {
            let Reader { channel, position, inherits, .. } = reader;
            let event = EngineEvent::Lineage { channel, epoch: position.epoch, inherits };
            self.events.push_back(event);
        }
        self.events.push_back(EngineEvent::History { token, result });
    }

    /// Requests the pending positions; first checks whether anything was stored since the last time.
    pub(super) fn flush_positions(&mut self, now_ms: u64) {
        if self.stream != super::StreamPhase::Ready && self.config.stream.is_some() {
            return;
        }
        while self.takes_more()
            && let Some((id, _, channels)) = self.positions.pop_front()
        {
            let count = channels.len();
            let positions = vec![StreamPosition::default(); count];
            let gathering =
                PositionQuery { channels, positions, left: count, failed: None, newest: 0 };
            self.gatherings.insert(id, gathering);
            if count == 0 || self.config.stream.is_none() {
                self.gathered(id);
                continue;
            }
            let token = self.expect(now_ms, Pending::Newest(id));
            let subject = format!("$JS.API.STREAM.INFO.{}", self.config.prefix);
            self.request(&subject, token, &[], &[]);
        }
    }

    /// Handles the stream's last sequence: the positions of channels checked at the same sequence have not changed.
    pub(super) fn newest(&mut self, now_ms: u64, id: u64, newest: u64) {
        let Some(mut gathering) = self.gatherings.remove(&id) else { return };
        gathering.newest = newest;
        let mut asked = Vec::new();
        for (index, channel) in gathering.channels.iter().enumerate() {
            let known = self.channel_states.get(channel).and_then(|channel_state| {
                let subscription = channel_state.subscription.as_ref()?;
                let is_verified = subscription.synced && subscription.verified == newest;
                channel_state.known.as_ref().filter(|known| is_verified && known.written)
            });
            match known {
                Some(known) => {
                    gathering.positions[index] = known.position;
                    gathering.left -= 1;
                }
                None => asked.push((index, channel.clone())),
            }
        }
        let is_done = gathering.left == 0;
        self.gatherings.insert(id, gathering);
        if is_done {
            return self.gathered(id);
        }
        for (index, channel) in asked {
            let wanted = json!({ "last_by_subj": self.subject('s', &channel) });
            let token = self.expect(now_ms, Pending::Peek(id, index, channel));
            self.ask_message(token, &wanted);
        }
    }

    pub(super) fn peeked(
        &mut self,
        id: u64,
        index: usize,
        channel: &Arc<str>,
        position: Result<StreamPosition, Error>,
    ) {
        let Some(gathering) = self.gatherings.get_mut(&id) else { return };
        gathering.left -= 1;
        match position {
            Ok(position) => {
                gathering.positions[index] = position;
                let newest = gathering.newest;
                if let Some(channel_state) = self.channel_states.get_mut(channel)
                    && let Some(subscription) = &mut channel_state.subscription
                    && channel_state.known.as_ref().is_some_and(|known| known.position == position)
                {
                    subscription.verified = newest;
                }
            }
            Err(error) => gathering.failed = Some(error),
        }
        if gathering.left == 0 {
            self.gathered(id);
        }
    }

    /// Fails a request for positions of which one part was not answered.
    pub(super) fn gathering_failed(&mut self, id: u64) {
        if let Some(gathering) = self.gatherings.get_mut(&id) {
            gathering.failed = Some(Error::EngineUnavailable);
            self.gathered(id);
        }
    }

    fn gathered(&mut self, id: u64) {
        if let Some(gathering) = self.gatherings.remove(&id) {
            let result = gathering.failed.map_or(Ok(gathering.positions), Err);
            self.events.push_back(EngineEvent::Positions { token: id, result });
        }
    }
}
