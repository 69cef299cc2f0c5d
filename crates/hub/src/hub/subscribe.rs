//! Subscriptions, on the subscriber's worker.

use std::sync::Arc;

use super::Hub;
use crate::channel::{
    Channel, DELTA, FILTERED, GRANTED, JOIN_LEAVE, JOIN_LEAVE_GRANTED, LISTED, OF_CONNECTION,
    SERVER_SIDE, SKIPS_OWN_JOIN, SUBSCRIPTIONS_MAX, Subscriber, Subscription, SubscriptionState,
};
use crate::channel_event::{ChannelEvent, UnsubscribeCause};
use crate::code;
use crate::command::SubscribeOptions;
use crate::config::Now;
use crate::cursor::{CursorOwner, CursorState};
use crate::encode::Outgoing;
use crate::error::Error;
use crate::event::{Event, Subscribed};
use crate::filter_shares::FilterOwner;
use crate::inbox;
use crate::message::{HubMessageKind, SubscribeRequest};
use crate::options::{ChannelOptions, ChannelRef, RecoveryMode};
use crate::pending_requests::{PendingSubscribe, SubscriptionMode, Waiter};
use crate::position::StreamPosition;
use crate::publication::{ClientInfo, Publication};
use crate::session::POLL;
use crate::session_id::SessionId;
use crate::shares::Owner;
use crate::slots::NONE;

/// The position to recover from.
struct Since {
    recover: Option<StreamPosition>,
    /// See [`SubscribeOptions::reject_unrecovered`].
    rejects: bool,
    /// See [`SubscribeOptions::cursor`].
    cursor: Option<Box<CursorOwner>>,
}

/// The initial content of a subscription besides its position.
#[derive(Default)]
pub(super) struct Recovered {
    pub(super) recovered: bool,
    pub(super) publications: Vec<Publication>,
    pub(super) members: Vec<Arc<ClientInfo>>,
    pub(super) cursor: Option<Box<CursorState>>,
}

impl Hub {
    /// Subscribes a session; ends with [`Event::Subscribed`].
    ///
    /// Further subscribers of a channel on this worker are subscribed locally, at the position of the others.
    /// The home worker is asked for the position of the first subscriber here, for recovery and for presence.
    /// Its reply arrives in order with the channel's publications.
    pub fn handle_subscribe(
        &mut self,
        now: Now,
        token: u64,
        session: SessionId,
        ChannelRef { name: channel, options }: ChannelRef<'_>,
        subscribe: SubscribeOptions,
    ) {
        self.now = now;
        if let Err(error) = self.subscribe(Some(token), session, channel, options, subscribe) {
            self.events.push_back(Event::Subscribed {
                token,
                session,
                channel: channel.into(),
                result: Err(error),
            });
        }
        self.run();
    }

    /// Ends a session's subscription or cancels a pending one ([`Error::Cancelled`]). `notify`: code and
    /// reason of an [`Outgoing::Unsubscribe`] to the client, if the client did not request this. Returns
    /// `false` if there is no such subscription.
    pub fn handle_unsubscribe(
        &mut self,
        now: Now,
        session: SessionId,
        channel: &str,
        notify: Option<(u32, &str)>,
    ) -> bool {
        self.now = now;
        let subscription = self.live_slot(session).and_then(|slot| {
            let channel = self.channels.find(&self.names, channel)?;
            Some((slot, self.subscription_to(slot, channel)?))
        });
        let Some((slot, subscription)) = subscription else { return false };
        match notify {
            Some((code, reason)) => {
                self.end_subscription(subscription, UnsubscribeCause::Server, code);
                self.enqueue(slot, &Outgoing::Unsubscribe { channel, code, reason });
            }
            None => self.detach(subscription, UnsubscribeCause::Client),
        }
        self.run();
        true
    }

    pub(super) fn subscribe(
        &mut self,
        token: Option<u64>,
        session: SessionId,
        name: &str,
        options: &Arc<ChannelOptions>,
        mut subscribe: SubscribeOptions,
    ) -> Result<(), Error> {
        let slot = self.live_slot(session).ok_or(Error::NoSession)?;
        self.check_name(name)?;
        let known = self.channels.find(&self.names, name);
        if known.is_some_and(|channel| self.subscription_to(slot, channel).is_some()) {
            return Err(Error::AlreadySubscribed);
        }
        if self.sessions[slot].subscriptions >= self.config.subscriptions_per_session_max {
            return Err(Error::LimitExceeded);
        }
        if options.wildcard {
            subscribe.follow_nothing();
        }
        if options.ack.is_none() {
            subscribe.cursor = None;
        }
        let since = Since {
            recover: subscribe.recover,
            rejects: subscribe.reject_unrecovered,
            cursor: subscribe.cursor.clone(),
        };
        let recover = since.recover;
        if let Some(filter) = &subscribe.filter {
            let owner = self.sessions[slot].owner;
            let of = FilterOwner { owner, namespace: self.shares.namespace(&options.namespace) };
            self.filter_shares.check(of, filter.bytes(), self.config.filter_bytes_max)?;
        }
        let listed = options.presence || options.join_leave;
        let local = !listed
            && since.cursor.is_none()
            && known.is_some_and(|at| self.can_answer(&self.channels[at], options, recover));
        let (member, chan_info) = (subscribe.member.take(), subscribe.chan_info.take());
        let says_more = member.is_some() || chan_info.is_some();
        let info = (listed || says_more).then(|| self.new_client_info(slot, member, chan_info));
        let list_members = subscribe.list_members;
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags = flag(listed, LISTED)
            | flag(subscribe.skip_own_join, SKIPS_OWN_JOIN)
            | flag(subscribe.server_side, SERVER_SIDE)
            | flag(subscribe.of_connection, OF_CONNECTION);

        let channel = match known {
            Some(channel) => channel,
            None => self.insert_channel(name, options, self.sessions[slot].owner)?,
        };
        let record = Subscription::new(slot, flags, channel, self.sessions[slot].subscription);
        let Ok(subscription) = self.subscriptions.insert(record, SUBSCRIPTIONS_MAX) else {
            return Err(Error::LimitExceeded);
        };
        let mut pending = Some(PendingSubscribe {
            token,
            session,
            subscription,
            home: self.channels[channel].home,
            mode: SubscriptionMode::new(subscribe, options),
        });
        if !local && let Some(pending) = pending.take() {
            let member = info.clone().filter(|_| listed);
            let member = (member, list_members);
            if let Err(error) = self.request_subscription(pending, options, since, member) {
                self.subscriptions.remove(subscription);
                if self.channels[channel].is_unused() {
                    self.remove_channel(channel);
                }
                return Err(error);
            }
        }
        self.channels[channel].options = Arc::clone(options);
        let session = &mut self.sessions[slot];
        session.subscription = subscription;
        session.subscriptions += 1;
        if let Some(info) = info.filter(|_| says_more) {
            self.infos.insert(subscription, info);
        }
        if let Some(pending) = pending {
            let position = self.channels[channel].position;
            let recovered = Recovered { recovered: recover.is_some(), ..Recovered::default() };
            self.establish(pending, position, recovered);
        }
        Ok(())
    }

    /// Adds the record of a channel, within the limit of its owner.
    fn insert_channel(
        &mut self,
        name: &str,
        options: &Arc<ChannelOptions>,
        owner: Owner,
    ) -> Result<u32, Error> {
        if self.channels.len() >= self.config.channels_max
            || !self.shares.add_live(owner, self.config.channels_per_owner_max)
        {
            return Err(Error::LimitExceeded);
        }
        let record = Channel {
            name: self.shared_name(name),
            subscribers: Vec::new(),
            position: StreamPosition::default(),
            options: Arc::clone(options),
            pending: 0,
            incarnation: self.next_incarnation(),
            home: self.names.home(self.names.hash(name)),
            joined: false,
            owner,
        };
        let at = self.channels.insert(&self.names, record, self.config.channels_max);
        at.ok_or(Error::LimitExceeded)
    }

    fn remove_channel(&mut self, at: u32) {
        if let Some(channel) = self.channels.remove(&self.names, at) {
            self.shares.remove_live(channel.owner);
        }
    }

    /// A session has left a channel with other subscribers: the channel now counts for one of them.
    fn hand_over(&mut self, at: u32, leaver: Owner) {
        let channel = &mut self.channels[at];
        if channel.owner != leaver {
            return;
        }
        let Some(heir) = channel.subscribers.first() else { return };
        channel.owner = self.sessions[heir.slot()].owner;
        if channel.owner != leaver {
            self.shares.remove_live(leaver);
            self.shares.add_live(channel.owner, u32::MAX);
        }
    }

    /// Requests a subscription from the channel's home worker.
    fn request_subscription(
        &mut self,
        pending: PendingSubscribe,
        options: &Arc<ChannelOptions>,
        since: Since,
        (member, list_members): (Option<Arc<ClientInfo>>, bool),
    ) -> Result<(), Error> {
        let (home, subscription) = (pending.home, pending.subscription);
        let at = self.subscriptions[subscription].channel;
        let channel = Arc::clone(&self.channels[at].name);
        let owner = self.sessions[self.subscriptions[subscription].slot()].owner;
        let options = Arc::clone(options);
        let waiter = Waiter::Subscribe(Box::new(pending));
        let request = self.request(home, waiter, |request| {
            let Since { recover: since, rejects: reject_unrecovered, cursor } = since;
            let asked = SubscribeRequest {
                request,
                channel,
                options,
                since,
                cursor,
                cursor_state: None,
                reject_unrecovered,
                member,
                list_members,
                owner,
            };
            HubMessageKind::Subscribe(Box::new(asked))
        })?;
        self.subscriptions[subscription].state =
            SubscriptionState::Pending { key: request.key }.into();
        self.channels[at].pending += 1;
        Ok(())
    }

    /// Handles the home worker's reply to a subscription that still exists.
    pub(super) fn handle_subscribed(
        &mut self,
        pending: PendingSubscribe,
        position: StreamPosition,
        recovered: Recovered,
    ) {
        let at = self.subscriptions[pending.subscription].channel;
        let channel = &mut self.channels[at];
        if channel.joined && !channel.position.epoch.is_none() && channel.position != position {
            // Messages between workers are ordered, so the home worker's position must match. If it does not,
            // publications are missing, and all subscribers must recover.
            debug_assert!(false, "{:?} answered at {position:?}", channel.position);
            self.gap(at);
            self.fail_subscribe(&pending, Error::WorkerRestarted);
            return;
        }
        channel.joined = true;
        channel.position = position;
        channel.pending -= 1;
        self.establish(pending, position, recovered);
    }

    /// Ends a subscription whose request failed.
    pub(super) fn fail_subscribe(&mut self, pending: &PendingSubscribe, error: Error) {
        let at = pending.subscription;
        let channel = self.subscriptions[at].channel;
        let name = Arc::clone(&self.channels[channel].name);
        self.subscriptions[at].state = SubscriptionState::Detached.into();
        self.detach(at, UnsubscribeCause::Server);
        if let Some(token) = pending.token {
            self.events.push_back(Event::Subscribed {
                token,
                session: pending.session,
                channel: name,
                result: Err(error),
            });
        }
    }

    /// Removes a subscription, established or pending, and reports it to the home worker if necessary. A
    /// channel without subscriptions is removed.
    pub(super) fn detach(&mut self, at: u32, cause: UnsubscribeCause) {
        let subscription = self.subscriptions[at];
        let slot = subscription.slot();
        let session_id = self.id_of(slot);
        self.unlink_subscription(slot, at);
        if self.channel_event_filter.subscriptions
            && !subscription.is_pending()
            && !self.sessions[slot].is(POLL)
        {
            let user = self.users.name(self.sessions[slot].user).into();
            let channel = Arc::clone(&self.channels[subscription.channel].name);
            let session = session_id;
            self.channel_events.push_back(ChannelEvent::Unsubscribed {
                session,
                user,
                channel,
                cause,
            });
        }

        let channel = &mut self.channels[subscription.channel];
        match subscription.state.get() {
            SubscriptionState::Established { index } => {
                let moved_to = subscription.state;
                let ended = channel.subscribers.swap_remove(index as usize);
                if let Some(moved) = channel.subscribers.get(index as usize) {
                    self.subscriptions[moved.subscription()].state = moved_to;
                }
                if channel.subscribers.len() < channel.subscribers.capacity() / 4 {
                    channel.subscribers.shrink_to(channel.subscribers.len() * 2);
                }
                self.end_forms(subscription.channel, at, ended.flags());
                self.in_flight.remove(subscription.channel, at);
            }
            SubscriptionState::Detached => channel.pending -= 1,
            SubscriptionState::Pending { key } => {
                channel.pending -= 1;
                if let Some(Waiter::Subscribe(pending)) = self.requests.cancel(key)
                    && let Some(token) = pending.token
                {
                    self.events.push_back(Event::Subscribed {
                        token,
                        session: pending.session,
                        channel: Arc::clone(&channel.name),
                        result: Err(Error::Cancelled),
                    });
                }
            }
        }
        self.subscriptions.remove(at);

        self.infos.remove(&at);
        let listed = subscription.is(LISTED);
        let channel = &self.channels[subscription.channel];
        let last = channel.is_unused();
        if last || listed {
            let kind = HubMessageKind::Unsubscribe {
                channel: Arc::clone(&channel.name),
                member: listed.then_some(session_id),
                last,
            };
            self.send_to(channel.home, kind);
        }
        if last {
            self.remove_channel(subscription.channel);
        } else {
            self.hand_over(subscription.channel, self.sessions[slot].owner);
        }
    }

    /// Ends every established subscription of a channel whose stream has a gap. Clients subscribe again and
    /// recover.
    pub(super) fn gap(&mut self, at: u32) {
        const CODE: u32 = code::UNSUBSCRIBE_INSUFFICIENT_STATE;
        let incarnation = self.channels[at].incarnation;
        // Messages before the home worker's next reply are for no subscriber.
        self.channels[at].joined = false;
        self.fan_out_unsubscribe(at, CODE, "insufficient state");
        let alive = self.channels.get(at).filter(|channel| channel.incarnation == incarnation);
        let subscribers = alive.map_or_else(Vec::new, |channel| channel.subscribers.clone());
        for subscriber in subscribers {
            self.stats.gaps += 1;
            let cause = UnsubscribeCause::InsufficientState;
            self.end_subscription(subscriber.subscription(), cause, CODE);
        }
    }

    /// Ends a subscription by the server's decision, and reports where it ended. A pending one is cancelled.
    pub(super) fn end_subscription(&mut self, at: u32, cause: UnsubscribeCause, code: u32) {
        let subscription = self.subscriptions[at];
        let (slot, is_pending) = (subscription.slot(), subscription.is_pending());
        let channel = &self.channels[subscription.channel];
        let (name, position) = (Arc::clone(&channel.name), channel.position);
        self.detach(at, cause);
        if !is_pending {
            self.events.push_back(Event::Unsubscribed {
                session: self.id_of(slot),
                tag: self.sessions[slot].tag,
                channel: name,
                code,
                position,
                server_side: subscription.is(SERVER_SIDE),
            });
        }
    }

    /// Subscriptions of a session, including pending ones.
    pub(super) fn subscriptions_of(&self, slot: u32) -> impl Iterator<Item = u32> {
        let some = |at: u32| (at != NONE).then_some(at);
        let first = some(self.sessions[slot].subscription);
        std::iter::successors(first, move |&at| some(self.subscriptions[at].next))
    }

    pub(super) fn subscription_to(&self, slot: u32, channel: u32) -> Option<u32> {
        self.subscriptions_of(slot).find(|&at| self.subscriptions[at].channel == channel)
    }

    /// Whether a subscription can begin at the position of the channel's other subscribers here.
    fn can_answer(
        &self,
        channel: &Channel,
        options: &ChannelOptions,
        recover: Option<StreamPosition>,
    ) -> bool {
        let current = channel.position;
        // A channel whose history was enabled later has no epoch yet.
        let up_to_date = !current.epoch.is_none() || !options.keeps_history();
        let recovers = recover.is_none_or(|at| match options.recovery_mode {
            RecoveryMode::Stream => at.offset == current.offset && at.epoch.accepts(current.epoch),
            RecoveryMode::Cache => at.offset > 0 && at == current,
        });
        channel.joined && up_to_date && recovers
    }

    /// Establishes a subscription.
    fn establish(
        &mut self,
        pending: PendingSubscribe,
        mut position: StreamPosition,
        mut recovered: Recovered,
    ) {
        let PendingSubscribe { token, session, subscription, mode, .. } = pending;
        let record = self.subscriptions[subscription];
        let (slot, at) = (record.slot(), record.channel);
        if mode.was_recovering {
            let counter = if recovered.recovered {
                &mut self.stats.recovered
            } else {
                &mut self.stats.unrecovered
            };
            *counter += 1;
        }
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(mode.join_leave, JOIN_LEAVE)
            | flag(mode.granted, GRANTED)
            | flag(mode.join_leave_granted, JOIN_LEAVE_GRANTED)
            | flag(mode.delta, DELTA)
            | flag(mode.filter.is_some(), FILTERED);
        if let Some(filter) = mode.filter {
            recovered.publications.retain(|publication| filter.admits(publication.tags()));
            self.begin_filter(at, subscription, filter);
        }
        if mode.delta {
            self.begin_delta(at);
        }
        if self.channels[at].options.inbox {
            inbox::fold(&mut recovered.publications, self.now.unix_ms);
        }
        let encoding = self.sessions[slot].encoding;
        let channel = &mut self.channels[at];
        if channel.subscribers.capacity() == 0 {
            channel.subscribers.reserve_exact(1);
        }
        let index = channel.subscribers.len() as u32;
        self.subscriptions[subscription].state = SubscriptionState::Established { index }.into();
        channel.subscribers.push(Subscriber::new(subscription, flags, encoding, slot));
        let name = Arc::clone(&channel.name);
        if let Some(device) = mode.device {
            self.begin_delivery(subscription, device, &mut position, &mut recovered);
        }
        let Recovered { recovered, publications, members, cursor } = recovered;
        if self.channel_event_filter.subscriptions && !self.sessions[slot].is(POLL) {
            let user = self.users.name(self.sessions[slot].user).into();
            let channel = Arc::clone(&name);
            self.channel_events.push_back(ChannelEvent::Subscribed { session, user, channel });
        }

        if mode.announce {
            self.enqueue(
                slot,
                &Outgoing::Subscribe {
                    channel: &name,
                    position,
                    recoverable: mode.recoverable,
                    positioned: mode.positioned,
                    data: mode.data.as_deref(),
                },
            );
            for publication in &publications {
                self.enqueue(slot, &Outgoing::Publication { channel: &name, publication });
            }
        }
        if let Some(token) = token {
            let result = Ok(Subscribed {
                position,
                was_recovering: mode.was_recovering,
                recovered,
                publications,
                positioned: mode.positioned,
                recoverable: mode.recoverable,
                delta: mode.delta,
                members,
                cursor,
            });
            self.events.push_back(Event::Subscribed { token, session, channel: name, result });
        }
    }

    fn unlink_subscription(&mut self, slot: u32, at: u32) {
        let next = self.subscriptions[at].next;
        let session = &mut self.sessions[slot];
        session.subscriptions -= 1;
        if session.subscription == at {
            session.subscription = next;
            return;
        }
        let mut before = session.subscription;
        while self.subscriptions[before].next != at {
            before = self.subscriptions[before].next;
        }
        self.subscriptions[before].next = next;
    }

    /// The name, shared with another record of this hub if possible.
    pub(super) fn shared_name(&self, name: &str) -> Arc<str> {
        if let Some(at) = self.channels.find(&self.names, name) {
            return Arc::clone(&self.channels[at].name);
        }
        match self.homes.find(&self.names, name) {
            Some(at) => Arc::clone(&self.homes[at].name),
            None => name.into(),
        }
    }
}
