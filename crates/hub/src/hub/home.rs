//! Channels at home on this worker.

use std::sync::Arc;

use hashbrown::HashSet;

use super::Hub;
use super::streams::EvictableFor;
use crate::channel_event::ChannelEvent;
use crate::error::Error;
use crate::event::{History, Published};
use crate::home_channel::HomeMember;
use crate::idempotency::{DEFAULT_TTL_MS, IdempotencyEntry};
use crate::message::{
    HistoryRequest, HubMessage, HubMessageKind, HubReply, PublishRequest, ReplyContent,
    SubscribeRequest, WaiterId,
};
use crate::options::RecoveryMode;
use crate::position::{Epoch, StreamPosition};
use crate::publication::{ClientInfo, Publication, PublicationParts};
use crate::session_id::SessionId;

impl Hub {
    pub(super) fn home_subscribe(&mut self, from: u8, asked: SubscribeRequest) {
        let Some(asked) = self.wait_for_cursor(from, asked) else { return };
        let Some(asked) = self.wait_for_members(from, asked) else { return };
        if let Some(engine) = self.engines.of(&asked.options.namespace) {
            return self.agent_subscribe(engine, from, asked);
        }
        let SubscribeRequest { request, channel, options, since, owner, .. } = &asked;
        let at = self.home_channel(channel, options, *owner, EvictableFor::Empty);
        let at = at.filter(|&at| {
            !options.keeps_history() || self.ensure_stream(at, options, *owner).is_some()
        });
        let Some(at) = at else {
            self.remove_if_unused(channel);
            self.reply(from, *request, ReplyContent::Failed(Error::LimitExceeded));
            return;
        };
        let recovered = since.and_then(|since| match &self.homes[at].stream {
            Some(stream) => match options.recovery_mode {
                RecoveryMode::Cache => stream.recover_latest(since),
                RecoveryMode::Stream => stream.recover(
                    since,
                    options.recovery_publications_max as usize,
                    options.recovery_bytes_max,
                ),
            },
            // No position in a channel without a stream counts as recovered, as in Centrifugo.
            None => (since == StreamPosition::default()).then(Vec::new),
        });
        self.answer_subscribe(at, from, asked, recovered);
    }

    /// Answers a subscription at the top of the stream, and counts the subscriber.
    pub(super) fn answer_subscribe(
        &mut self,
        at: u32,
        from: u8,
        asked: SubscribeRequest,
        recovered: Option<Vec<Publication>>,
    ) {
        let SubscribeRequest { request, options, since, member, list_members, .. } = asked;
        let position = self.homes[at].stream.as_ref().map(|stream| stream.position());
        let position = position.unwrap_or_default();
        if asked.reject_unrecovered
            && since.is_some()
            && recovered.is_none()
            && options.recovery_mode == RecoveryMode::Stream
            && self.homes[at].stream.is_some()
        {
            self.stats.unrecovered += 1;
            self.remove_if_empty(at);
            let error = Error::UnrecoverablePosition(position);
            self.reply(from, request, ReplyContent::Failed(error));
            return;
        }
        if let (Some(info), Some(users_max)) = (member.as_deref(), options.presence_users_max) {
            let elsewhere = self.remote_members.users(&self.homes[at].name);
            let members = self.homes[at].members.get_or_insert_default();
            members.count_users();
            if !members.has_place(&info.user, users_max, elsewhere) {
                self.remove_members_if_empty(at);
                self.remove_if_empty(at);
                self.reply(from, request, ReplyContent::Failed(Error::LimitExceeded));
                return;
            }
        }
        let listed = if list_members {
            self.known_members(at, member.as_ref(), options.recovery_bytes_max)
        } else {
            Some(Vec::new())
        };
        let Some(members) = listed else {
            self.remove_members_if_empty(at);
            self.remove_if_empty(at);
            self.reply(from, request, ReplyContent::Failed(Error::LimitExceeded));
            return;
        };
        let content = ReplyContent::Subscribed {
            position,
            recovered: recovered.is_some(),
            publications: recovered.unwrap_or_default(),
            members,
            cursor: asked.cursor_state.map(Box::new),
        };
        // The reply comes first: everything sent to `from` after it is for the subscriber. Without room for
        // the reply there is no subscriber.
        if !self.reply(from, request, content) {
            self.remove_members_if_empty(at);
            self.remove_if_empty(at);
            return;
        }
        if self.homes[at].interest.is_empty() {
            self.active_homes += 1;
            self.note_occupied(at, true);
        }
        self.homes[at].interest.insert(from);
        self.shares.relist(&mut self.homes, at);
        if let Some(info) = member {
            let listed = HomeMember {
                info: Arc::clone(&info),
                presence: options.presence,
                join_leave: options.join_leave,
            };
            self.record_member(at, &listed, true);
            self.homes[at].members.get_or_insert_default().insert(listed);
            self.note_member(at, &info.user, true);
            if options.join_leave {
                self.announce(at, &info, true);
                self.share_announcement(at, &info, true);
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
        if last || member.is_some() {
            self.forget_cursors(channel, from, member.filter(|_| !last));
            self.remote_members.forget_waiting(channel, from, member.filter(|_| !last));
        }
        let Some(at) = self.homes.find(&self.names, channel) else { return };
        if last || member.is_some() {
            self.forget_waiting(at, from, member.filter(|_| !last));
        }
        if last {
            self.drop_interest(at, from);
        }
        if let Some(member) = member {
            self.remove_member(at, member);
        }
        self.remove_if_empty(at);
    }

    /// Updates the information of a member; this is not a join.
    pub(super) fn home_describe(&mut self, channel: &str, info: &Arc<ClientInfo>) {
        let Some(at) = self.homes.find(&self.names, channel) else { return };
        let described = self.homes[at].members.as_mut().and_then(|members| members.describe(info));
        if let Some(member) = described {
            self.record_member(at, &member, true);
        }
    }

    pub(super) fn home_publish(&mut self, from: u8, asked: PublishRequest) {
        if let Some(engine) = self.engines.of(&asked.options.namespace) {
            return self.engine_publish(engine, from, asked);
        }
        let PublishRequest { request, channel, options, publish } = asked;
        if publish.durability.is_some() {
            self.reply(from, request, ReplyContent::Failed(Error::NotDurable));
            return;
        }
        let except = publish.except;
        if let Some(key) = &publish.idempotency_key
            && let Some(position) = self.idempotency.find(&channel, key, self.now.ms)
        {
            let published = Published { position, suppressed: true, durability: None };
            self.reply(from, request, ReplyContent::Published(published));
            return;
        }
        let kept = options.keeps_history() && !publish.skip_history;
        let at = if kept {
            let at =
                self.home_channel(&channel, &options, publish.owner, EvictableFor::Publication);
            let at = at.filter(|&at| self.ensure_stream(at, &options, publish.owner).is_some());
            if at.is_none() {
                self.remove_if_unused(&channel);
                self.reply(from, request, ReplyContent::Failed(Error::LimitExceeded));
                return;
            }
            at
        } else {
            self.homes.find(&self.names, &channel)
        };

        let mut position = StreamPosition::default();
        if let (true, Some(stream)) = (kept, at.and_then(|at| self.homes[at].stream.as_mut())) {
            if !stream.advance_version(publish.version, &publish.version_epoch) {
                let published =
                    Published { position: stream.position(), suppressed: true, durability: None };
                self.reply(from, request, ReplyContent::Published(published));
                return;
            }
            stream.top += 1;
            position = stream.position();
        }
        if let Some(key) = &publish.idempotency_key {
            let ttl_ms = publish.idempotency_ttl_ms.unwrap_or(DEFAULT_TTL_MS);
            let namespace = self.shares.namespace(&options.namespace);
            let result = IdempotencyEntry { position, expires_ms: self.now.ms + u64::from(ttl_ms) };
            self.stats.idempotency_evicted +=
                self.idempotency.remember(namespace, &channel, key, result, self.now.ms);
        }
        self.stats.publications += 1;
        let namespace = self.shares.namespace(&options.namespace);
        self.shares.share_mut(namespace).publications += 1;
        let publication = Publication::from(PublicationParts {
            offset: position.offset,
            data: publish.data,
            format: publish.format,
            delta: publish.delta || options.delta_publish,
            info: publish.info,
            tags: publish.tags,
            key: publish.key,
            channel: None,
            time_ms: self.now.unix_ms,
            trace: publish.trace,
        });
        if self.channel_event_filter.publications {
            let (publication, epoch) = (publication.clone(), position.epoch);
            self.channel_events.push_back(ChannelEvent::Published { channel, epoch, publication });
        }
        if let Some(at) = at {
            if kept {
                self.append_history(at, &publication, &options, publish.owner);
            }
            self.broadcast_publication(at, position.epoch, &publication, except);
        }
        let published = Published { position, suppressed: false, durability: None };
        self.reply(from, request, ReplyContent::Published(published));
    }

    pub(super) fn broadcast_publication(
        &mut self,
        at: u32,
        epoch: Epoch,
        publication: &Publication,
        except: Option<SessionId>,
    ) {
        self.broadcast(at, |channel| HubMessageKind::Publication {
            channel,
            epoch,
            publication: publication.clone(),
            except,
        });
    }

    pub(super) fn home_history(&mut self, from: u8, asked: &HistoryRequest) {
        if let Some(engine) = self.engines.of(&asked.options.namespace) {
            return self.engine_history(engine, from, asked);
        }
        let HistoryRequest { channel, options, owner, .. } = asked;
        let at = self.home_channel(channel, options, *owner, EvictableFor::Empty);
        let content = match at.and_then(|at| self.ensure_stream(at, options, *owner)) {
            Some(stream) => match stream.read(&asked.filter) {
                Ok(history) => ReplyContent::History(history),
                Err(error) => ReplyContent::Failed(error),
            },
            // There is no room for a new stream, so there is none.
            None if asked.filter.since.is_none() => ReplyContent::History(History::default()),
            None => ReplyContent::Failed(Error::UnrecoverablePosition(StreamPosition::default())),
        };
        self.remove_if_unused(&asked.channel);
        self.reply(from, asked.request, content);
    }

    pub(super) fn home_history_remove(
        &mut self,
        from: u8,
        request: WaiterId,
        channel: Arc<str>,
        namespace: &str,
    ) {
        if let Some(engine) = self.engines.of(namespace) {
            return self.engine_history_remove(engine, from, request, channel);
        }
        if let Some(at) = self.homes.find(&self.names, &channel) {
            self.clear_history(at);
        }
        self.reply(from, request, ReplyContent::HistoryRemoved);
    }

    pub(super) fn home_presence(
        &mut self,
        from: u8,
        request: WaiterId,
        channel: &str,
        bytes_max: Option<usize>,
    ) {
        let members =
            self.homes.find(&self.names, channel).and_then(|at| self.homes[at].members.as_ref());
        let content = if let Some(bytes_max) = bytes_max {
            if members.is_some_and(|members| members.exceed(bytes_max)) {
                ReplyContent::Failed(Error::LimitExceeded)
            } else {
                let members = members.into_iter().flat_map(|members| members.iter());
                let present = members.filter(|member| member.presence).map(|member| member.info);
                ReplyContent::Presence(present.collect())
            }
        } else {
            let mut clients = 0;
            let mut users = HashSet::new();
            for user in members.into_iter().flat_map(|members| members.present_users()) {
                clients += 1;
                users.insert(user);
            }
            ReplyContent::PresenceStats { clients, users: users.len() as u64 }
        };
        self.reply(from, request, content);
    }

    /// Removes a session from a channel's presence and announces that it left.
    pub(super) fn remove_member(&mut self, at: u32, member: SessionId) {
        let Some(members) = &mut self.homes[at].members else { return };
        let listed = members.remove(member);
        if let Some(listed) = &listed {
            self.note_member(at, &listed.info.user, false);
            self.record_member(at, listed, false);
        }
        if let Some(HomeMember { info, join_leave: true, .. }) = listed {
            self.announce(at, &info, false);
            self.share_announcement(at, &info, false);
        }
        self.remove_members_if_empty(at);
    }

    fn remove_members_if_empty(&mut self, at: u32) {
        let members = &mut self.homes[at].members;
        if members.as_ref().is_some_and(|members| members.is_empty()) {
            *members = None;
            self.shares.relist(&mut self.homes, at);
        }
    }

    /// The members of a channel as its subscribers know them, and `own`, which is about to join; each user
    /// once. `None` if they exceed `bytes_max` bytes (0: no limit).
    fn known_members(
        &self,
        at: u32,
        own: Option<&Arc<ClientInfo>>,
        bytes_max: usize,
    ) -> Option<Vec<Arc<ClientInfo>>> {
        let members = self.homes[at].members.iter().flat_map(|members| members.iter());
        let present = members.filter(|member| member.presence).map(|member| member.info);
        let present = present.chain(self.remote_members.members(&self.homes[at].name));
        let mut users = HashSet::new();
        let (mut known, mut bytes) = (Vec::new(), 0);
        let channel = (at, self.homes[at].incarnation);
        let own = own.cloned();
        for info in own.into_iter().chain(self.announcements.known(channel, present)) {
            if users.insert(info.user.clone()) {
                bytes += info.cost();
                if bytes_max > 0 && bytes > bytes_max {
                    return None;
                }
                known.push(info);
            }
        }
        Some(known)
    }

    pub(super) fn drop_interest(&mut self, at: u32, worker: u8) {
        let home = &mut self.homes[at];
        if home.interest.remove(worker) && home.interest.is_empty() {
            self.active_homes -= 1;
            if let Some(stream) = &mut home.stream {
                stream.meta_expires_ms = self.now.ms + stream.meta_ttl_ms;
            }
            self.note_occupied(at, false);
            self.shares.relist(&mut self.homes, at);
        }
    }

    fn note_occupied(&mut self, at: u32, occupied: bool) {
        if self.channel_event_filter.occupancy {
            let channel = Arc::clone(&self.homes[at].name);
            self.channel_events.push_back(ChannelEvent::Occupied { channel, occupied });
        }
    }

    /// Counts a session of a user that joined or left a channel.
    fn note_member(&mut self, at: u32, user: &str, added: bool) {
        let home = &self.homes[at];
        let sessions = home.members.as_ref().and_then(|members| members.sessions_of(user));
        if self.channel_event_filter.occupancy && sessions == Some(u32::from(added)) {
            let (channel, user) = (Arc::clone(&home.name), user.into());
            self.channel_events.push_back(ChannelEvent::Member { channel, user, added });
        }
    }

    pub(super) fn remove_if_empty(&mut self, at: u32) {
        if self.homes[at].is_empty() && !self.engines.agents.contains_key(&at) {
            self.remove_home(at);
        }
    }

    /// Removes the record of a channel that was not used because a limit was reached.
    pub(super) fn remove_if_unused(&mut self, channel: &str) {
        if let Some(at) = self.homes.find(&self.names, channel) {
            self.remove_if_empty(at);
        }
    }

    /// Sends to every worker with subscribers. A worker whose queue is full gets a gap instead, and nothing
    /// more until it subscribes again.
    pub(super) fn broadcast(&mut self, at: u32, kind: impl Fn(Arc<str>) -> HubMessageKind) {
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

    /// Replies to a request. If the queue is full, a reply with data is replaced by an error, and the result
    /// is `false`.
    pub(super) fn reply(&mut self, to: u8, request: WaiterId, content: ReplyContent) -> bool {
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

/// Replies up to this size have no data.
const REPLY_BYTES_SMALL: usize = size_of::<HubReply>() + size_of::<HubMessage>();
