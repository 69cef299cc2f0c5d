//! Opens, inspects, disconnects and closes sessions.

use std::net::IpAddr;
use std::sync::Arc;

use arcstr::ArcStr;

use super::Hub;
use crate::channel::{LISTED, OF_CONNECTION, Subscription};
use crate::channel_event::UnsubscribeCause;
use crate::command::{MemberUser, NewSession, SessionView};
use crate::config::Now;
use crate::encode::{ENCODINGS_MAX, EncodingId, Outgoing};
use crate::error::Error;
use crate::event::Event;
use crate::message::HubMessageKind;
use crate::publication::{ClientInfo, Tags};
use crate::session::{BLOCKED, CLOSING, HELD, OPEN, POLL, Session};
use crate::session_id::SessionId;
use crate::shares::Owner;
use crate::slots::NONE;

/// Largest limit of an outbox: the bytes between two flushes must fit its counter.
const OUTBOX_BYTES_MAX: u32 = 256 << 20;

/// The hub's time in minutes, truncated to two bytes.
fn minutes(now: Now) -> u16 {
    (now.ms / 60_000) as u16
}

/// Why a session is disconnected.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DisconnectCause {
    Caller,
    ServerApi,
    /// Its outbox is full: it is cleared except for the rest of a partly sent frame.
    Slow,
}

impl Hub {
    /// Opens a session.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] at the limit of sessions, [`Error::BadRequest`] for an encoding
    /// that is not below [`ENCODINGS_MAX`].
    pub fn open_session(&mut self, now: Now, new: NewSession<'_>) -> Result<SessionId, Error> {
        self.now = now;
        if usize::from(new.encoding.0) >= ENCODINGS_MAX {
            return Err(Error::BadRequest);
        }
        let slot = self.sessions.occupy(self.config.sessions_max).ok_or(Error::LimitExceeded)?;
        let generation = self.sessions[slot].generation;
        let poll = if new.poll { POLL } else { 0 };
        self.sessions[slot] = Session {
            tag: new.tag,
            outbox_bytes_max: new.outbox_bytes_max.min(OUTBOX_BYTES_MAX),
            flags: OPEN | poll | Session::opened_under(self.nodes.opened()),
            generation,
            encoding: new.encoding.0,
            owner: new.owner,
            opened_min: minutes(now),
            ..Session::default()
        };
        self.sessions_by_encoding[usize::from(new.encoding.0)] += 1;
        self.users.link(&mut self.sessions, slot, new.user);
        if let Some(info) = new.conn_info {
            self.conn_infos.insert(slot, info);
        }
        if new.held {
            self.sessions[slot].flags |= HELD;
            self.link_slow(slot);
        }
        Ok(self.id_of(slot))
    }

    /// Sets the user of a session that was opened without one, and that is still [held](NewSession::held). A
    /// stale id is ignored.
    pub fn identify(
        &mut self,
        id: SessionId,
        user: &str,
        owner: Owner,
        conn_info: Option<Box<[u8]>>,
    ) {
        let Some(slot) = self.slot_of(id) else { return };
        self.users.unlink(&mut self.sessions, slot);
        self.users.link(&mut self.sessions, slot, user);
        self.sessions[slot].owner = owner;
        match conn_info {
            Some(info) => self.conn_infos.insert(slot, info),
            None => self.conn_infos.remove(&slot),
        };
    }

    /// Sets the labels of a connection, by which [commands](crate::SessionFilter) and operators select
    /// connections. A stale id is ignored.
    pub fn set_labels(&mut self, id: SessionId, labels: Tags) {
        if let Some(slot) = self.slot_of(id) {
            self.labels.set(slot, labels);
        }
    }

    /// The labels of a connection; none for a stale id.
    pub fn labels(&self, id: SessionId) -> &Tags {
        const NONE: &Tags = &Tags::NONE;
        self.slot_of(id).map_or(NONE, |slot| self.labels.get(slot))
    }

    /// Sets the raw JSON about a connection that other clients receive. Existing presence entries do not
    /// change. A stale id is ignored.
    pub fn set_conn_info(&mut self, id: SessionId, conn_info: Box<[u8]>) {
        if let Some(slot) = self.slot_of(id) {
            self.replace_conn_info(slot, conn_info);
        }
    }

    /// Sets the raw JSON about a session in one channel that other clients receive, including in presence.
    /// Subscribers are not notified. Ignored if the session is not subscribed.
    pub fn set_chan_info(&mut self, now: Now, id: SessionId, channel: &str, chan_info: Box<[u8]>) {
        self.now = now;
        let Some(slot) = self.slot_of(id) else { return };
        let Some(channel) = self.channels.find(&self.names, channel) else { return };
        let Some(at) = self.subscription_to(slot, channel) else { return };
        let chan_info = Some(chan_info);
        let info = match self.infos.get(&at) {
            Some(before) if before.chan_info == chan_info => return,
            Some(before) => Arc::new(ClientInfo { chan_info, ..ClientInfo::clone(before) }),
            None => self.new_client_info(slot, None, chan_info),
        };
        self.infos.insert(at, Arc::clone(&info));
        if self.subscriptions[at].is(LISTED) {
            let record = &self.channels[channel];
            let (channel, home) = (Arc::clone(&record.name), record.home);
            self.send_to(home, HubMessageKind::Describe { channel, info });
            self.run();
        }
    }

    /// Changes the information about a connection, but not in channels of which it is a member already.
    pub(super) fn replace_conn_info(&mut self, slot: u32, conn_info: Box<[u8]>) {
        let listed = |&at: &u32| self.subscriptions[at].is(LISTED);
        for at in self.subscriptions_of(slot).filter(listed).collect::<Vec<_>>() {
            if !self.infos.contains_key(&at) {
                self.infos.insert(at, self.new_client_info(slot, None, None));
            }
        }
        self.conn_infos.insert(slot, conn_info);
    }

    /// Closes a session: it leaves every channel, pending subscriptions are cancelled, and its outbox is
    /// cleared. A stale id is ignored.
    pub fn close_session(&mut self, now: Now, id: SessionId) {
        self.now = now;
        let Some(slot) = self.slot_of(id) else { return };
        self.detach_all(slot);
        self.clear_outbox(slot);
        self.unlink_slow(slot);
        self.users.unlink(&mut self.sessions, slot);
        self.conn_infos.remove(&slot);
        self.labels.remove(slot);
        self.nodes.closed(self.sessions[slot].node());
        let Session { generation, encoding, .. } = self.sessions[slot];
        self.sessions_by_encoding[usize::from(encoding)] -= 1;
        let generation = generation.wrapping_add(1);
        self.sessions[slot] = Session { generation, ..Session::default() };
        self.sessions.vacate(slot);
        self.run();
    }

    /// Disconnects a session: it leaves every channel, an [`Outgoing::Disconnect`] is the last frame in its
    /// outbox, and [`Event::Disconnect`] asks the caller to close it. A stale or closing id is ignored.
    pub fn disconnect_session(&mut self, now: Now, id: SessionId, code: u32, reason: &str) {
        self.now = now;
        if let Some(slot) = self.live_slot(id) {
            self.disconnect(slot, code, &Arc::from(reason), DisconnectCause::Caller);
        }
        self.run();
    }

    /// A session's state; `None` for a stale id.
    pub fn session(&self, id: SessionId) -> Option<SessionView<'_>> {
        let session = &self.sessions[self.slot_of(id)?];
        Some(SessionView {
            tag: session.tag,
            encoding: EncodingId(session.encoding),
            user: self.users.name(session.user),
            subscriptions: session.subscriptions,
            poll: session.is(POLL),
            held: session.is(HELD),
            blocked: session.is(BLOCKED),
            closing: session.is(CLOSING),
            outbox_bytes: session.outbox.bytes(),
            age_min: minutes(self.now).wrapping_sub(session.opened_min),
        })
    }

    /// All open sessions, including closing ones.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        let open = |&slot: &u32| self.sessions[slot].is(OPEN);
        self.sessions.indices().filter(open).map(|slot| self.id_of(slot))
    }

    /// Open sessions in the slots from `from` on, `places` at most, and the next slot unless all were
    /// visited. Consecutive pages include every session that stays open.
    pub fn sessions_page(&self, from: u32, places: u32) -> (Vec<SessionId>, Option<u32>) {
        let len = self.sessions.indices().end;
        let end = from.saturating_add(places).min(len);
        let open = |&slot: &u32| self.sessions.get(slot).is_some_and(|of| of.is(OPEN));
        let found = (from..end).filter(open).map(|slot| self.id_of(slot)).collect();
        (found, (end < len).then_some(end))
    }

    /// Memory used by a session in bytes: its record, its subscriptions with their filters, its information for
    /// others, and its outbox.
    pub fn session_bytes(&self, id: SessionId) -> usize {
        let Some(slot) = self.slot_of(id) else { return 0 };
        let info = self.conn_infos.get(&slot).map_or(0, |info| info.len());
        let session = &self.sessions[slot];
        let filter = |at: u32| {
            let filters = self.filters.get(&self.subscriptions[at].channel);
            filters.map_or(0, |filters| filters.bytes_of(at))
        };
        let filters = match self.filters.is_empty() {
            true => 0,
            false => self.subscriptions_of(slot).map(filter).sum::<usize>(),
        };
        size_of::<Session>()
            + filters
            + usize::from(session.subscriptions) * (size_of::<Subscription>() + 8)
            + info
            + session.outbox.bytes() as usize
    }

    /// Raw JSON about a connection, if there is any.
    pub fn conn_info(&self, id: SessionId) -> Option<&[u8]> {
        self.conn_infos.get(&self.slot_of(id)?).map(|info| &**info)
    }

    /// The number of a user's sessions on this worker.
    pub fn session_count(&self, user: &str) -> u32 {
        self.users.count(user)
    }

    /// This worker's sessions of a user, latest first.
    pub fn sessions_of(&self, user: &str) -> impl Iterator<Item = SessionId> {
        self.users.sessions(&self.sessions, user).map(|slot| self.id_of(slot))
    }

    /// Channels of the session's established subscriptions.
    pub fn subscriptions(&self, id: SessionId) -> impl Iterator<Item = &str> {
        let slot = self.slot_of(id);
        slot.into_iter()
            .flat_map(|slot| self.subscriptions_of(slot))
            .filter(|&subscription| !self.subscriptions[subscription].is_pending())
            .map(|subscription| &*self.channels[self.subscriptions[subscription].channel].name)
    }

    /// Whether the session's subscription to the channel is established.
    pub fn is_subscribed(&self, id: SessionId, channel: &str) -> bool {
        let subscription = self.slot_of(id).and_then(|slot| {
            let channel = self.channels.find(&self.names, channel)?;
            self.subscription_to(slot, channel)
        });
        subscription.is_some_and(|at| !self.subscriptions[at].is_pending())
    }

    /// Whether the session is subscribed to the channel, or has a pending subscription.
    pub fn has_subscription(&self, id: SessionId, channel: &str) -> bool {
        let channel = self.channels.find(&self.names, channel);
        let both = self.slot_of(id).zip(channel);
        both.is_some_and(|(slot, channel)| self.subscription_to(slot, channel).is_some())
    }

    /// Whether the session is subscribed to the channel [since it began](crate::SubscribeOptions::of_connection).
    pub fn is_of_connection(&self, id: SessionId, channel: &str) -> bool {
        let channel = self.channels.find(&self.names, channel);
        let found =
            self.slot_of(id).zip(channel).and_then(|(slot, of)| self.subscription_to(slot, of));
        found.is_some_and(|at| self.subscriptions[at].is(OF_CONNECTION))
    }

    /// The owner of streams created by this user.
    pub fn owner_of(&self, user: &str) -> Owner {
        Owner(self.names.hash((0_u8, user)) as u32 | 1)
    }

    /// The owner of streams created by clients without a user from this address.
    pub fn owner_of_address(&self, address: IpAddr) -> Owner {
        Owner(self.names.hash((1_u8, address)) as u32 | 1)
    }

    /// The owner of streams created by a session.
    pub fn owner(&self, id: SessionId) -> Owner {
        self.slot_of(id).map_or(Owner::NONE, |slot| self.sessions[slot].owner)
    }

    /// The number of sessions here that a message of the channel reaches, and whether joins and leaves are
    /// sent, too.
    pub fn audience(&self, channel: &str) -> (usize, bool) {
        self.channels.find(&self.names, channel).map_or((0, false), |at| {
            let channel = &self.channels[at];
            (channel.subscribers.len(), channel.options.join_leave)
        })
    }

    /// The client information of a session for publications: its entry in `channel`'s presence, otherwise
    /// that of its connection.
    pub fn client_info(&self, id: SessionId, channel: Option<&str>) -> Option<Arc<ClientInfo>> {
        let slot = self.slot_of(id)?;
        let member = channel
            .and_then(|channel| self.channels.find(&self.names, channel))
            .and_then(|channel| self.subscription_to(slot, channel))
            .and_then(|subscription| self.infos.get(&subscription));
        Some(match member {
            Some(info) => Arc::clone(info),
            None => self.new_client_info(slot, None, None),
        })
    }

    pub(super) fn new_client_info(
        &self,
        slot: u32,
        member: Option<MemberUser>,
        chan_info: Option<Box<[u8]>>,
    ) -> Arc<ClientInfo> {
        Arc::new(ClientInfo {
            user_is_number: member.as_ref().is_some_and(|of| of.is_number),
            foreign_client: None,
            user: member.map_or_else(
                || self.users.shared_name(self.sessions[slot].user),
                |of| ArcStr::from(of.name),
            ),
            client: self.id_of(slot),
            conn_info: self.conn_infos.get(&slot).cloned(),
            chan_info,
        })
    }

    pub(super) fn id_of(&self, slot: u32) -> SessionId {
        let config = &self.config;
        // Offset by the seed, so that a hub with a reused boot number does not repeat ids.
        let session = &self.sessions[slot];
        let generation = session.generation.wrapping_add(config.seed as u8);
        let node = self.nodes.number(session.node());
        SessionId::pack(node, config.boot, config.worker, slot, generation)
    }

    /// The slot of a session that is open.
    pub(super) fn slot_of(&self, id: SessionId) -> Option<u32> {
        let slot = id.slot();
        let session = self.sessions.get(slot)?;
        (session.is(OPEN) && self.id_of(slot) == id).then_some(slot)
    }

    /// The slot of a session that is open and not closing.
    pub(super) fn live_slot(&self, id: SessionId) -> Option<u32> {
        self.slot_of(id).filter(|&slot| self.sessions[slot].is_live())
    }

    /// Disconnects a live session.
    pub(super) fn disconnect(
        &mut self,
        slot: u32,
        code: u32,
        reason: &Arc<str>,
        cause: DisconnectCause,
    ) {
        let session = &mut self.sessions[slot];
        debug_assert!(session.is_live());
        session.flags |= CLOSING;
        // A client that has not received its connect reply yet does not need later output.
        let discard = cause == DisconnectCause::Slow || session.is(HELD);
        session.flags &= !HELD;
        let tag = session.tag;
        if discard {
            self.keep_partial_frame(slot);
        }
        if !self.sessions[slot].is(BLOCKED) {
            self.unlink_slow(slot);
        }
        self.detach_all(slot);
        let reconnect = crate::code::reconnects(code);
        self.enqueue(slot, &Outgoing::Disconnect { code, reason, reconnect });
        let session = self.id_of(slot);
        let (reason, by_server_api) = (Arc::clone(reason), cause == DisconnectCause::ServerApi);
        self.events.push_back(Event::Disconnect { session, tag, code, reason, by_server_api });
    }

    pub(super) fn detach_all(&mut self, slot: u32) {
        while self.sessions[slot].subscription != NONE {
            self.detach(self.sessions[slot].subscription, UnsubscribeCause::Disconnect);
        }
    }
}
