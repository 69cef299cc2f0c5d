//! Channels at home on this worker.

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::HashSet;

use super::Hub;
use crate::channel_event::ChannelEvent;
use crate::error::Error;
use crate::event::{History, Published};
use crate::history::Stream;
use crate::home_channel::{HomeChannel, HomeMember};
use crate::idempotency::DEFAULT_TTL_MS;
use crate::message::{
    HistoryRequest, HubMessage, HubMessageKind, HubReply, PublishRequest, ReplyContent, RequestId,
    SubscribeRequest,
};
use crate::options::ChannelOptions;
use crate::position::StreamPosition;
use crate::publication::Publication;
use crate::session_id::SessionId;

/// Home channels examined to make room for one publication.
const EVICTION_STEPS_MAX: usize = 1024;

impl Hub {
    pub(super) fn home_subscribe(&mut self, from: u8, asked: SubscribeRequest) {
        let SubscribeRequest { request, channel, options, since, member } = asked;
        let Some(at) = self.home_channel(&channel) else {
            self.reply(from, request, ReplyContent::Failed(Error::LimitExceeded));
            return;
        };
        if options.keeps_history() {
            self.ensure_stream(at, &options);
        }
        let (position, recovered) = match &self.homes[at].stream {
            Some(stream) => (
                stream.position(),
                since.map(|since| {
                    stream.recover(
                        since,
                        options.recovery_publications_max as usize,
                        options.recovery_bytes_max,
                    )
                }),
            ),
            // No position in a channel without a stream counts as recovered, as in Centrifugo.
            None => (
                StreamPosition::default(),
                since.map(|since| (since == StreamPosition::default()).then(Vec::new)),
            ),
        };
        let recovered = recovered.flatten();
        let content = ReplyContent::Subscribed {
            position,
            recovered: recovered.is_some(),
            publications: recovered.unwrap_or_default(),
        };
        // The reply goes first: everything sent to `from` after it belongs to the subscriber.
        // Without room for the reply there is no subscriber.
        if !self.reply(from, request, content) {
            self.remove_if_empty(at);
            return;
        }
        if self.homes[at].interest.is_empty() {
            self.active_homes += 1;
        }
        self.homes[at].interest.insert(from);
        if let Some(info) = member {
            let listed = HomeMember {
                info: Arc::clone(&info),
                presence: options.presence,
                join_leave: options.join_leave,
            };
            self.homes[at].members.get_or_insert_default().insert(info.client, listed);
            if options.join_leave {
                self.broadcast(at, |channel| HubMessageKind::Join {
                    channel,
                    info: Arc::clone(&info),
                });
            }
        }
    }

    pub(super) fn home_unsubscribe(
        &mut self,
        from: u8,
        channel: &str,
        member: Option<SessionId>,
        last: bool,
    ) {
        let Some(at) = self.homes.find(&self.names, channel) else { return };
        if last {
            self.drop_interest(at, from);
        }
        if let Some(member) = member {
            self.remove_member(at, member);
        }
        self.remove_if_empty(at);
    }

    pub(super) fn home_publish(&mut self, from: u8, asked: PublishRequest) {
        let PublishRequest { request, channel, options, publish } = asked;
        if let Some(key) = &publish.idempotency_key
            && let Some(position) = self.idempotency.find(&channel, key, self.now.ms)
        {
            let published = Published { position, suppressed: true };
            self.reply(from, request, ReplyContent::Published(published));
            return;
        }
        let kept = options.keeps_history() && !publish.skip_history;
        let at = if kept {
            let Some(at) = self.home_channel(&channel) else {
                self.reply(from, request, ReplyContent::Failed(Error::LimitExceeded));
                return;
            };
            Some(at)
        } else {
            self.homes.find(&self.names, &channel)
        };

        let mut position = StreamPosition::default();
        if let (true, Some(at)) = (kept, at) {
            let stream = self.ensure_stream(at, &options);
            if !stream.advance_version(publish.version, &publish.version_epoch) {
                let published = Published { position: stream.position(), suppressed: true };
                self.reply(from, request, ReplyContent::Published(published));
                return;
            }
            stream.top += 1;
            position = stream.position();
        }
        if let Some(key) = &publish.idempotency_key {
            let ttl_ms = publish.idempotency_ttl_ms.unwrap_or(DEFAULT_TTL_MS);
            self.stats.idempotency_evicted +=
                self.idempotency.remember(&channel, key, position, self.now.ms, ttl_ms);
        }
        self.stats.publications += 1;
        let publication = Arc::new(Publication {
            offset: position.offset,
            data: publish.data,
            info: publish.info,
            tags: publish.tags,
            key: publish.key,
            time_ms: self.now.unix_ms,
        });
        if self.channel_event_filter.publications {
            let (publication, epoch) = (Arc::clone(&publication), position.epoch);
            self.channel_events.push_back(ChannelEvent::Published { channel, epoch, publication });
        }
        if let Some(at) = at {
            if kept {
                self.append_history(at, &publication, &options);
            }
            let epoch = position.epoch;
            self.broadcast(at, |channel| HubMessageKind::Publication {
                channel,
                epoch,
                publication: Arc::clone(&publication),
            });
        }
        let published = Published { position, suppressed: false };
        self.reply(from, request, ReplyContent::Published(published));
    }

    pub(super) fn home_history(&mut self, from: u8, asked: &HistoryRequest) {
        let content = match self.home_channel(&asked.channel) {
            Some(at) => match self.ensure_stream(at, &asked.options).read(&asked.filter) {
                Ok(history) => ReplyContent::History(history),
                Err(error) => ReplyContent::Failed(error),
            },
            // There is no room to begin a stream, so there is none.
            None if asked.filter.since.is_none() => ReplyContent::History(History::default()),
            None => ReplyContent::Failed(Error::UnrecoverablePosition(StreamPosition::default())),
        };
        self.reply(from, asked.request, content);
    }

    pub(super) fn home_history_remove(&mut self, from: u8, request: RequestId, channel: &str) {
        if let Some(at) = self.homes.find(&self.names, channel)
            && let Some(stream) = &mut self.homes[at].stream
        {
            self.history_bytes -= stream.clear();
        }
        self.reply(from, request, ReplyContent::HistoryRemoved);
    }

    pub(super) fn home_presence(
        &mut self,
        from: u8,
        request: RequestId,
        channel: &str,
        stats: bool,
    ) {
        let members =
            self.homes.find(&self.names, channel).and_then(|at| self.homes[at].members.as_ref());
        let present = members
            .into_iter()
            .flat_map(|members| members.values())
            .filter(|member| member.presence)
            .map(|member| &member.info);
        let content = if stats {
            let mut clients = 0;
            let mut users = HashSet::new();
            for info in present {
                clients += 1;
                users.insert(&*info.user);
            }
            ReplyContent::PresenceStats { clients, users: users.len() as u64 }
        } else {
            ReplyContent::Presence(present.cloned().collect())
        };
        self.reply(from, request, content);
    }

    /// Expires streams.
    pub(super) fn expire_streams(&mut self) {
        while let Some(&Reverse((due, at, incarnation))) = self.stream_timers.peek() {
            if due > self.now.ms {
                return;
            }
            self.stream_timers.pop();
            if self.homes.get(at).is_none_or(|home| home.incarnation != incarnation) {
                continue;
            }
            let home = &mut self.homes[at];
            let Some(stream) = &mut home.stream else { continue };
            if stream.timer_ms != due {
                continue;
            }
            stream.timer_ms = u64::MAX;
            if stream.expires_ms <= self.now.ms {
                self.history_bytes -= stream.clear();
                stream.expires_ms = u64::MAX;
            }
            if stream.meta_expires_ms <= self.now.ms {
                if home.interest.is_empty() {
                    self.history_bytes -= stream.clear();
                    home.stream = None;
                    self.remove_if_empty(at);
                    continue;
                }
                stream.meta_expires_ms = self.now.ms + stream.meta_ttl_ms;
            }
            self.schedule_timer(at);
        }
    }

    /// Removes a session from a channel's presence and announces that it left.
    pub(super) fn remove_member(&mut self, at: u32, member: SessionId) {
        let home = &mut self.homes[at];
        let Some(members) = &mut home.members else { return };
        let listed = members.remove(&member);
        if members.is_empty() {
            home.members = None;
        }
        if let Some(HomeMember { info, join_leave: true, .. }) = listed {
            self.broadcast(at, |channel| HubMessageKind::Leave {
                channel,
                info: Arc::clone(&info),
            });
        }
    }

    pub(super) fn drop_interest(&mut self, at: u32, worker: u8) {
        let home = &mut self.homes[at];
        if home.interest.remove(worker) && home.interest.is_empty() {
            self.active_homes -= 1;
            if let Some(stream) = &mut home.stream {
                stream.meta_expires_ms = self.now.ms + stream.meta_ttl_ms;
            }
        }
    }

    pub(super) fn remove_if_empty(&mut self, at: u32) {
        if self.homes[at].is_empty() {
            self.homes.remove(&self.names, at);
        }
    }

    /// The record of a channel at home here, made if there is none. `None` at the limit.
    fn home_channel(&mut self, name: &Arc<str>) -> Option<u32> {
        if let Some(at) = self.homes.find(&self.names, name) {
            return Some(at);
        }
        if self.homes.len() >= self.config.channels_max {
            self.evict_idle_channel();
        }
        let record = HomeChannel::new(Arc::clone(name), self.next_incarnation());
        self.homes.insert(&self.names, record, self.config.channels_max)
    }

    /// Evicts a channel without subscribers. A client that returns to it sees a new epoch.
    fn evict_idle_channel(&mut self) {
        let channels = self.homes.indices().end;
        for _ in 0..EVICTION_STEPS_MAX.min(channels as usize) {
            self.history_cursor = (self.history_cursor + 1) % channels;
            let at = self.history_cursor;
            if self.homes.get(at).is_none() {
                continue;
            }
            let home = &mut self.homes[at];
            if home.interest.is_empty() && home.members.is_none() {
                if let Some(mut stream) = home.stream.take() {
                    self.stats.history_evicted += stream.len() as u64;
                    self.history_bytes -= stream.clear();
                }
                self.stats.channels_evicted += 1;
                self.homes.remove(&self.names, at);
                return;
            }
        }
    }

    /// A channel's stream, begun if there is none. Its meta time to live counts from now.
    fn ensure_stream(&mut self, at: u32, options: &ChannelOptions) -> &mut Stream {
        if self.homes[at].stream.is_none() {
            let epoch = self.next_epoch();
            self.homes[at].stream = Some(Box::new(Stream::new(epoch)));
        }
        let meta_ttl_ms = match options.history_meta_ttl_ms {
            0 => self.config.history_meta_ttl_ms,
            ttl_ms => ttl_ms,
        };
        let now_ms = self.now.ms;
        if let Some(stream) = &mut self.homes[at].stream {
            stream.meta_ttl_ms = meta_ttl_ms;
            stream.meta_expires_ms = now_ms + meta_ttl_ms;
        }
        self.schedule_timer(at);
        self.homes[at].stream.as_mut().expect("made above")
    }

    /// Appends a publication to its channel's history.
    fn append_history(
        &mut self,
        at: u32,
        publication: &Arc<Publication>,
        options: &ChannelOptions,
    ) {
        self.evict_history(publication.cost());
        let expires_ms = self.now.ms + options.history_ttl_ms;
        let bytes_max = self.config.history_bytes_max;
        let Some(stream) = &mut self.homes[at].stream else { return };
        let grown = stream.keep(Arc::clone(publication), options.history_size as usize);
        self.history_bytes = self.history_bytes.saturating_add_signed(grown);
        stream.expires_ms = expires_ms;
        if self.history_bytes > bytes_max {
            self.stats.history_evicted += stream.len() as u64;
            self.history_bytes -= stream.clear();
        }
        self.schedule_timer(at);
    }

    /// Evicts the oldest publications of some channels, round robin, until there is room.
    fn evict_history(&mut self, cost: usize) {
        let channels = self.homes.indices().end;
        for _ in 0..EVICTION_STEPS_MAX {
            if self.history_bytes + cost <= self.config.history_bytes_max || channels == 0 {
                return;
            }
            self.history_cursor = (self.history_cursor + 1) % channels;
            if self.homes.get(self.history_cursor).is_none() {
                continue;
            }
            if let Some(stream) = &mut self.homes[self.history_cursor].stream
                && stream.len() > 0
            {
                self.history_bytes -= stream.evict();
                self.stats.history_evicted += 1;
            }
        }
    }

    /// Schedules the next expiry of a stream.
    fn schedule_timer(&mut self, at: u32) {
        let home = &mut self.homes[at];
        let Some(stream) = &mut home.stream else { return };
        let due = stream.expires_ms.min(stream.meta_expires_ms);
        if due < stream.timer_ms {
            stream.timer_ms = due;
            self.stream_timers.push(Reverse((due, at, home.incarnation)));
        }
    }

    /// Sends to every worker with subscribers. A worker whose queue is full gets a gap instead, and
    /// nothing more until it subscribes again.
    fn broadcast(&mut self, at: u32, kind: impl Fn(Arc<str>) -> HubMessageKind) {
        let home = &self.homes[at];
        let name = Arc::clone(&home.name);
        for worker in home.interest.iter() {
            let kind = kind(Arc::clone(&name));
            if self.has_room(worker, kind.cost()) {
                self.send_to(worker, kind);
            } else {
                self.stats.overloaded += 1;
                self.drop_interest(at, worker);
                self.send_to(worker, HubMessageKind::Gap { channel: Arc::clone(&name) });
            }
        }
    }

    /// Replies to a request. A reply that carries data is replaced by an error when the queue is
    /// full; then the result is false.
    pub(super) fn reply(&mut self, to: u8, request: RequestId, content: ReplyContent) -> bool {
        let kind = HubMessageKind::Reply(Box::new(HubReply { request, content }));
        let fits = kind.cost() <= REPLY_BYTES_SMALL || self.has_room(to, kind.cost());
        let kind = if fits {
            kind
        } else {
            self.stats.overloaded += 1;
            let content = ReplyContent::Failed(Error::Overloaded);
            HubMessageKind::Reply(Box::new(HubReply { request, content }))
        };
        self.send_to(to, kind);
        fits
    }
}

/// Replies up to this size carry no data.
const REPLY_BYTES_SMALL: usize = size_of::<HubReply>() + size_of::<HubMessage>();
