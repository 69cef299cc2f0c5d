//! Long-poll: a session that lives for one request.
//!
//! It subscribes with the cursor's positions, so that what was missed and what comes next meet without a
//! hole, and is closed with the answer. Where the cursor is too far back for one recovery, the answer is a
//! page of history instead, and the next poll continues from its end. A client that may not recover in the channel is
//! notified that it missed something between two polls, and not given it.

use std::borrow::Cow;
use std::sync::Arc;

use dunlin_hub::{
    ChannelRef, Event, HistoryFilter, NewSession, SessionId, StreamPosition, SubscribeOptions,
    tenant,
};
use dunlin_net::ConnId;
use dunlin_protocol::Encoding;
use dunlin_protocol::centrifuge::{CommandError, Error, ErrorCode, SubscribeRequest};
use dunlin_protocol::long_poll::{PollLimits, PollRequest, Since};

use super::clients::Clients;
use super::command_timer::CommandTimer;
use super::connect::{bounded_device, one_line};
use super::key_wait::Unverified;
use super::link::{NO_PARAMS, Peer, Role};
use super::parts::{AckBy, Missed, Pending, PendingAck, Poll, PollStep};
use super::permission::{Entitlement, Source};
use super::program::{ImmediateDecision, NO_SESSION};
use super::reply::PlainResponse;
use super::turn::Turn;
use crate::auth::Identity;
use crate::metrics::Metric;

/// What a poll is answered whose user, or whose user's tenant, has no room for it.
const FULL: &str = "the user or its tenant has as many connections as it may";

/// A channel that a poll reads, where its cursor stands, and the subscription to it.
struct PollSubscription {
    channel: Arc<str>,
    since: Option<StreamPosition>,
    entitlement: Entitlement,
}

impl Clients {
    /// Begins a poll, and charges the time that takes. `credentials` is the token of the Authorization header, if there is one.
    pub(super) fn poll(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        query: &str,
        credentials: Option<&str>,
        origin: Option<&str>,
    ) {
        turn.core.count(Metric::Polls);
        let mut timer = CommandTimer::start(&turn.core.state);
        let user = self.begin_poll_as(turn, conn, (query, credentials, origin));
        let peer = turn.cx.data(conn).map_or(Peer::UNKNOWN, |link| link.peer);
        turn.core.charge_time((user.as_deref().unwrap_or_default(), peer), timer.lap());
    }

    /// Returns whose poll it is, if its token says so.
    fn begin_poll_as(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        (query, credentials, origin): (&str, Option<&str>, Option<&str>),
    ) -> Option<String> {
        let config = &turn.core.settings.config;
        let limits = PollLimits {
            channels_max: config.limits.subscriptions_per_client_max as usize,
            channel_bytes_max: config.limits.channel_bytes_max,
            timeout_ms_default: config.client.long_poll.timeout_ms as u32,
            timeout_ms_max: config.client.long_poll.timeout_ms_max as u32,
        };
        let request = match PollRequest::parse(query, &limits) {
            Ok(request) => request,
            Err(malformed) => {
                turn.answer_to(conn, origin, PlainResponse::error(400, malformed));
                return None;
            }
        };
        let token =
            if request.token.is_empty() { credentials.unwrap_or("") } else { &request.token };
        let identity = match self.sessions.identify(turn.core, token) {
            Ok(identity) => Identity {
                device: (!request.device.is_empty()).then(|| bounded_device(&request.device)),
                ..identity
            },
            Err(Unverified::Refused(error)) => {
                let temporary = matches!(&error, CommandError::Reply(error) if error.temporary);
                let status = if temporary { 503 } else { 401 };
                let answer = PlainResponse::error(status, error_text(error));
                turn.answer_to(conn, origin, answer);
                return None;
            }
            Err(Unverified::KeyPending) => {
                self.want_keys(turn.core);
                let answer = PlainResponse::error(503, "the key of the token is being fetched");
                turn.answer_to(conn, origin, answer.header("Retry-After", "1"));
                return None;
            }
        };
        if let Err(refused) = self.try_poll(turn, conn, (query, &request, origin), &identity) {
            turn.answer_to(conn, origin, refused);
        }
        Some(identity.user)
    }

    /// Begins the poll of a client that is known, unless it is refused. What costs little is checked first.
    fn try_poll(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        (query, request, origin): (&str, &PollRequest<'_>, Option<&str>),
        identity: &Identity,
    ) -> Result<(), PlainResponse<'static>> {
        let user = &identity.user;
        let peer = turn.cx.data(conn).map_or(Peer::UNKNOWN, |link| link.peer);
        let no_channel = |channel: &str, error: Error<'_>| {
            let status = if error.code == 102 { 404 } else { 403 };
            PlainResponse::error(status, format!("channel {channel:?}: {}", error.message))
        };
        let mut names = Vec::with_capacity(request.channels.len());
        for channel in &request.channels {
            let mut name = Cow::Borrowed(&**channel);
            turn.core.qualify(user, &mut name).map_err(|error| no_channel(channel, error))?;
            names.push(name);
        }
        let wait_ms = turn.core.wait_to_begin(user, peer, names.iter().map(|name| &**name));
        if wait_ms > 0 {
            let after_s = wait_ms.div_ceil(1000).to_string();
            let answer =
                PlainResponse::error(429, "too many requests").header("Retry-After", &after_s);
            turn.answer_to(conn, origin, answer);
            return Ok(());
        }
        let mut subscriptions = Vec::with_capacity(names.len());
        for (channel, name) in request.channels.iter().zip(&names) {
            match self.poll_subscription(turn, conn, identity, (request, channel, name)) {
                Ok(subscription) => subscriptions.push(subscription),
                Err(error) => {
                    turn.core.charge_refused(user, peer);
                    return Err(no_channel(channel, error));
                }
            }
        }
        let acks = |of: &PollSubscription| of.entitlement.subscribe.cursor.is_some();
        if request.ack.is_some() && !subscriptions.iter().any(acks) {
            turn.core.charge_refused(user, peer);
            return Err(PlainResponse::error(400, dunlin_hub::Error::AckOff));
        }
        if !turn.core.has_room_for(user) {
            turn.core.charge_refused(user, peer);
            return Err(PlainResponse::error(503, FULL));
        }
        if let Err(error) = self.sessions.check_barred(turn.core, identity) {
            turn.core.population_changed(user);
            return Err(PlainResponse::error(401, error_text(error)));
        }
        let channels = subscriptions.iter().map(|of| &*of.channel);
        turn.core.charge_subscriptions((None, user, peer), query.len(), channels);
        let Some(session) = self.open_poll_session(turn, conn, identity, peer) else {
            turn.core.population_changed(user);
            return Err(PlainResponse::error(503, "too many sessions; try again later"));
        };
        self.begin_poll(turn, (conn, session), identity, request, (origin, subscriptions));
        Ok(())
    }

    /// The subscription of a poll to a channel that it may read, from where its cursor stands.
    fn poll_subscription(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        identity: &Identity,
        (request, channel, name): (&PollRequest<'_>, &str, &str),
    ) -> Result<PollSubscription, Error<'static>> {
        let user = &*identity.user;
        let since = match request.cursor.as_ref().map(|cursor| cursor.since(channel)) {
            None | Some(Since::Now) => None,
            Some(Since::Beginning) => Some(StreamPosition::default()),
            Some(Since::Position(position)) => Some(position),
        };
        let asked = SubscribeOptions {
            recover: since,
            positioned: true,
            recoverable: true,
            ..SubscribeOptions::default()
        };
        let question = SubscribeRequest { channel: name.into(), ..Default::default() };
        let decided = match self.deciders.consult_at_once(
            turn,
            &self.sessions.forwarded,
            (conn, NO_SESSION, user),
            &question,
        ) {
            ImmediateDecision::Granted(result) => {
                Some(self.deciders.granted_options(turn, result).unwrap_or_default())
            }
            ImmediateDecision::Denied => return Err(ErrorCode::PermissionDenied.into()),
            ImmediateDecision::Rules => None,
        };
        let facts = self.sessions.decision_facts(turn, name, None);
        let source = match &decided {
            Some(decided) => Source::Decision(decided, facts),
            None => Source::Client,
        };
        let mut entitlement =
            self.sessions.claim_of(turn.core, identity, name)?.entitle(source, asked)?;
        if entitlement.subscribe.cursor.is_some() {
            // A poll that names no position begins at what is not acknowledged.
            entitlement.subscribe.recover = since;
        }
        Ok(PollSubscription { channel: Arc::from(name), since, entitlement })
    }

    /// The session of a poll. `None`: there are too many.
    fn open_poll_session(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        identity: &Identity,
        peer: Peer,
    ) -> Option<SessionId> {
        let new = NewSession {
            tag: conn.to_u64(),
            encoding: Encoding::Poll.into(),
            user: &identity.user,
            owner: turn.core.owner_of(&identity.user, peer),
            conn_info: None,
            outbox_bytes_max: u32::try_from(turn.core.settings.config.limits.outbox_bytes_max)
                .unwrap_or(u32::MAX),
            poll: true,
            held: true,
        };
        let now = turn.now();
        let session = turn.core.hub.open_session(now, new).ok()?;
        turn.core.label(session, identity);
        turn.authenticated(conn);
        turn.core.population_changed(&identity.user);
        self.sessions.heartbeat.set_token(session, turn.core.token_facts(identity));
        self.sessions.capabilities.set(session, &identity.capabilities);
        self.sessions.set_device(session, identity.device.as_deref());
        self.sessions.forwarded.keep_meta(conn, identity.meta.as_deref().map(one_line));
        if let Some(link) = turn.cx.data(conn) {
            link.role = Role::Poll;
            link.set_session(Some(session), NO_PARAMS);
        }
        Some(session)
    }

    /// Subscribes the session of a poll.
    fn begin_poll(
        &mut self,
        turn: &mut Turn<'_, '_>,
        (conn, session): (ConnId, SessionId),
        identity: &Identity,
        request: &PollRequest<'_>,
        (origin, subscriptions): (Option<&str>, Vec<PollSubscription>),
    ) {
        let now = turn.now();
        let channels = subscriptions.iter().map(|of| {
            let Entitlement { options, subscribe, .. } = &of.entitlement;
            let missed = match subscribe.recoverable {
                _ if options.wildcard || !options.keeps_history() => Missed::NotKept,
                true => Missed::Readable,
                false => Missed::Withheld,
            };
            (Arc::clone(&of.channel), of.since, missed)
        });
        let limits = &turn.core.settings.config.limits;
        let bytes_max = limits.answer_bytes_max.min(limits.outbox_bytes_max);
        // A poll that waits ends with its token.
        let token = turn.core.token_facts(identity);
        let timeout_ms = match token.map_or(0, |token| token.ttl_s(now)) {
            // A client that gives up before the first response would have no position to continue from.
            _ if subscriptions.iter().any(|of| of.since.is_none()) => 0,
            0 => request.timeout_ms,
            ttl_s => request.timeout_ms.min(ttl_s.saturating_mul(1000)),
        };
        let poll = Poll::new(conn, identity.key, (timeout_ms, bytes_max), origin, channels);
        self.polls.begin(session, poll);
        self.poll_acks(turn, session, request, &subscriptions);
        if !self.polls.contains(session) {
            return;
        }
        for PollSubscription { channel, entitlement, .. } in subscriptions {
            let Entitlement { options, subscribe, grant, by, .. } = entitlement;
            turn.core.permitted(session, &channel, "subscribe", by);
            let pending = Pending::Poll { session, channel: Arc::clone(&channel) };
            let Some(token) = self.token(turn, pending) else {
                return self.poll_failed(turn, session, dunlin_hub::Error::Overloaded);
            };
            if let Some(grant) = grant {
                self.sessions.grants.insert(session, &channel, grant);
            }
            let channel = ChannelRef::new(&channel, &options);
            turn.core.hub.handle_subscribe(now, token, session, channel, subscribe);
        }
        self.drain_events(turn);
    }

    /// Acknowledges what a poll says, before it reads from there.
    fn poll_acks(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        request: &PollRequest<'_>,
        subscriptions: &[PollSubscription],
    ) {
        let Some(acked) = &request.ack else { return };
        for PollSubscription { channel, entitlement, .. } in subscriptions {
            let Entitlement { options, subscribe, .. } = entitlement;
            let (Some(owner), Since::Position(position)) =
                (&subscribe.cursor, acked.since(tenant::bare(channel)))
            else {
                continue;
            };
            if position.offset == 0 {
                // Nothing was there yet.
                continue;
            }
            let by_user = options.ack.as_ref().is_some_and(|ack| ack.by_user);
            let (user, name) = (owner.user.clone(), (&**channel).into());
            let pending = PendingAck { by: AckBy::Poll { session }, user, channel: name, by_user };
            let Some(token) = self.token(turn, Pending::Ack(Box::new(pending))) else { return };
            let (now, owner) = (turn.now(), (**owner).clone());
            let channel = ChannelRef::new(channel, options);
            turn.core.hub.handle_cursor(now, token, channel, owner, Some(position));
        }
    }

    /// A subscription of a poll that was made or has ended, or a page of history.
    pub(super) fn poll_progress(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        channel: &Arc<str>,
        event: Event,
    ) {
        let page_max = turn.core.settings.config.limits.recovery_messages_max;
        let step = match event {
            Event::Subscribed { result, .. } => {
                self.polls.handle_subscribed(session, channel, result, page_max)
            }
            Event::History { result, .. } => {
                self.polls.handle_history(session, channel, result, page_max)
            }
            Event::Unsubscribed { position, .. } => {
                self.polls.handle_unsubscribed(session, channel, position)
            }
            _ => return,
        };
        match step {
            PollStep::Wait => {}
            PollStep::ReadHistory(filter) => self.read_history(turn, session, channel, filter),
            PollStep::Park { conn, timeout_ms } => {
                turn.core.hub.release(session, |_| {});
                turn.cx.set_deadline(conn, Some(turn.cx.now_ms() + u64::from(timeout_ms)));
            }
            PollStep::Respond => self.polls.make_due(session),
            PollStep::Fail(error) => self.poll_failed(turn, session, error),
        }
    }

    fn read_history(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        channel: &Arc<str>,
        filter: HistoryFilter,
    ) {
        let options = turn.core.settings.namespace(channel).map(|of| Arc::clone(&of.options));
        let pending = Pending::Poll { session, channel: Arc::clone(channel) };
        if let (Some(options), Some(token)) = (options, self.token(turn, pending)) {
            let now = turn.now();
            let owner = turn.core.hub.owner(session);
            let filter = HistoryFilter { bytes_max: Some(options.recovery_bytes_max), ..filter };
            return turn.core.hub.handle_history(
                now,
                token,
                ChannelRef::new(channel, &options),
                filter,
                owner,
            );
        }
        self.poll_failed(turn, session, dunlin_hub::Error::Overloaded);
    }

    /// Answers with what there is, which may be nothing: something was published, or the poll has timed out.
    pub(super) fn answer_poll(&mut self, turn: &mut Turn<'_, '_>, session: SessionId) {
        let Some(mut poll) = self.polls.take(session) else { return };
        if poll.wants_outbox() {
            loop {
                let mut slices = [std::io::IoSlice::new(&[]); 32];
                let pieces = turn.core.hub.outbox(session, &mut slices);
                let items = &slices[..pieces];
                items.iter().for_each(|items| poll.handle_outbox(items));
                let taken: usize = items.iter().map(|items| items.len()).sum();
                if taken == 0 {
                    break;
                }
                turn.core.hub.advance(session, taken);
            }
            poll.set_positions(|channel| turn.core.hub.position(session, channel));
        }
        let body = poll.encode();
        if let (Some(view), Some(link)) = (turn.core.hub.session(session), turn.cx.data(poll.conn))
        {
            let who = (&*view.user.to_owned(), link.peer);
            turn.core.charge_response(who, body.len(), poll.channels());
        }
        self.end_poll(turn, session, poll.conn);
        let answer = PlainResponse::json(200, body);
        turn.answer_to(poll.conn, poll.origin.as_deref(), answer);
    }

    /// The hub has ended a poll's session, since more came in one turn than its outbox holds.
    pub(super) fn poll_overflowed(&mut self, turn: &mut Turn<'_, '_>, session: SessionId) {
        self.polls.handle_overflow(session);
        self.answer_poll(turn, session);
    }

    pub(super) fn poll_failed(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        error: dunlin_hub::Error,
    ) {
        let Some(poll) = self.polls.take(session) else { return };
        self.end_poll(turn, session, poll.conn);
        let status = if error.is_temporary() { 503 } else { 400 };
        turn.answer_to(poll.conn, poll.origin.as_deref(), PlainResponse::error(status, error));
    }

    /// Ends the polls whose clients would not be let in any more. `is_let_in`: by user and the key of the token, if there is one.
    pub(super) fn end_polls(
        &mut self,
        turn: &mut Turn<'_, '_>,
        is_let_in: impl Fn(&str, Option<u64>) -> bool,
    ) {
        let user = |session| turn.core.hub.session(session).map_or("", |view| view.user);
        for session in self.polls.sessions(|session, key| !is_let_in(user(session), key)) {
            let Some(poll) = self.polls.take(session) else { continue };
            self.end_poll(turn, session, poll.conn);
            let why = "what has let this poll in does so no more; poll with another token";
            turn.answer_to(poll.conn, poll.origin.as_deref(), PlainResponse::error(401, why));
        }
    }

    /// Ends a poll whose user has too many connections.
    pub(super) fn refuse_poll(&mut self, turn: &mut Turn<'_, '_>, session: SessionId) {
        let Some(poll) = self.polls.take(session) else { return };
        self.end_poll(turn, session, poll.conn);
        turn.answer_to(poll.conn, poll.origin.as_deref(), PlainResponse::error(503, FULL));
    }

    fn end_poll(&mut self, turn: &mut Turn<'_, '_>, session: SessionId, conn: ConnId) {
        let now = turn.now();
        self.sessions.forget(session);
        self.sessions.forwarded.keep_meta(conn, None);
        let user = turn.core.hub.session(session).map(|view| view.user.to_owned());
        turn.core.hub.close_session(now, session);
        user.iter().for_each(|user| turn.core.population_changed(user));
        turn.cx.set_deadline(conn, None);
        if let Some(link) = turn.cx.data(conn) {
            link.role = Role::Http;
            link.set_session(None, NO_PARAMS);
        }
    }
}

/// The sentence for a client whose transport has no error codes.
fn error_text(error: CommandError) -> Cow<'static, str> {
    match error {
        CommandError::Reply(error) => error.message,
        CommandError::Disconnect(disconnect) => disconnect.reason,
    }
}
