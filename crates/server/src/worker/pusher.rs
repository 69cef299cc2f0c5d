//! Clients of the Pusher protocol: admission by the app's key, and authorization by the app's signatures.

use std::fmt;
use std::sync::Arc;

use dunlin_hub::{
    ChannelRef, Event, MemberUser, NewPublication, NewSession, Outgoing, SessionId, StreamPosition,
    SubscribeOptions, tenant,
};
use dunlin_net::{ConnId, http};
use dunlin_protocol::Encoding;
use dunlin_protocol::centrifuge::{Disconnect, ErrorCode};
use dunlin_protocol::pusher::{
    ChannelKind, EVENT_NAME_BYTES_MAX, EVENT_TAG, Member, Message, Messages, PusherCode, SignIn,
    SocketId, Subscribe, VERSIONS, event, is_name, presence_channel_text, private_channel_text,
    pusher_name, server_to_user, server_to_user_channel, sign_in_text,
};
use dunlin_wire::http1::query;

use super::clients::Clients;
use super::command_timer::CommandTimer;
use super::link::{Link, Role};
use super::parts::{Pending, SessionParams};
use super::permission::{Entitlement, Source};
use super::routes::{origin_of, origin_refused};
use super::turn::{Core, Turn};
use crate::limits::budget::{BudgetKey, CommandKind, Rates, Work};

use crate::metrics::Metric;
use crate::pusher::App;
use crate::request::origin;

/// Why a subscription is refused: type and status of the error, and a message.
struct SubscriptionError {
    kind: &'static str,
    status: u32,
    why: String,
}

impl SubscriptionError {
    fn new(kind: &'static str, status: u32, why: impl fmt::Display) -> SubscriptionError {
        SubscriptionError { kind, status, why: why.to_string() }
    }

    fn auth(why: impl fmt::Display) -> SubscriptionError {
        SubscriptionError::new("AuthError", 401, why)
    }

    fn limit(why: impl fmt::Display) -> SubscriptionError {
        SubscriptionError::new("LimitReached", 4004, why)
    }
}

/// Checks the app's signature for a subscription. Returns the member as which the connection joins the channel; `None` for
/// channels without members. `user`: the signed-in user.
fn authorized_member(
    app: &App,
    socket_id: SocketId,
    user: Option<&Arc<Member>>,
    request: &Subscribe<'_>,
) -> Result<Option<Arc<Member>>, SubscriptionError> {
    let name = &*request.channel;
    let signed = |text: &str| match app.has_authorized(&request.auth, text) {
        true => Ok(()),
        false => Err(SubscriptionError::auth(
            "the signature is not the app's for this socket id, channel and channel_data",
        )),
    };
    match ChannelKind::of(name) {
        ChannelKind::Public => Ok(None),
        ChannelKind::Private => signed(&private_channel_text(socket_id, name)).map(|()| None),
        ChannelKind::Presence if request.channel_data.is_empty() => {
            // A signed-in connection joins the channel as its user.
            signed(&private_channel_text(socket_id, name))?;
            let why = "channel_data is missing, and nobody has signed in";
            user.cloned().map(Some).ok_or_else(|| SubscriptionError::auth(why))
        }
        ChannelKind::Presence => {
            let (data, max) = (&*request.channel_data, app.config.member_bytes_max);
            if data.len() > max {
                let why = format_args!("channel_data has more than {max} bytes");
                return Err(SubscriptionError::limit(why));
            }
            signed(&presence_channel_text(socket_id, name, data))?;
            let of_data = Member::of_channel_data(data)
                .map_err(|why| SubscriptionError::new("InvalidChannelData", 400, why))?;
            Ok(Some(Arc::new(of_data)))
        }
        ChannelKind::User => {
            let is_own =
                |user: &Arc<Member>| server_to_user(name).is_some_and(|of| *of == *user.user_id);
            let why = "the connection has not signed in as this user";
            let is_signed_in = user.is_some_and(is_own);
            is_signed_in.then_some(None).ok_or_else(|| SubscriptionError::auth(why))
        }
    }
}

impl Clients {
    /// Upgrades `GET /app/KEY` to WebSocket and opens the session.
    pub(super) fn open_pusher(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        key: &str,
        request: &http::Request<'_>,
    ) {
        let app = turn.core.settings.pusher.by_key(key).map(Arc::clone);
        if let Some(app) = &app
            && origin::admitted(&app.config.allowed_origins, origin_of(request), request.host)
                .is_none()
        {
            return turn.answer(conn, &origin_refused());
        }
        let Some(upgraded) = turn.upgrade(conn, request, &[]) else { return };
        let encoding = Encoding::pusher(upgraded.compressed);
        if let Some(link) = turn.cx.data(conn) {
            link.role = Role::Client(encoding);
        }
        turn.await_connect(conn);
        let query = request.query.unwrap_or("");
        let version = query::pairs(query).find(|(name, _)| name == "protocol");
        let opened = match (app, version.map(|(_, version)| version.parse::<u32>())) {
            (None, _) => Err((PusherCode::NoApp, "no app has this key")),
            (_, None) => Err((PusherCode::NoVersion, "the query names no `protocol`")),
            (_, Some(Err(_))) => Err((PusherCode::BadVersion, "`protocol` is no number")),
            (_, Some(Ok(version))) if !VERSIONS.contains(&version) => {
                Err((PusherCode::UnsupportedVersion, "versions 5 to 7 of the protocol are spoken"))
            }
            (Some(app), _) => self.begin_pusher(turn, conn, encoding, &app),
        };
        if let Err((code, why)) = opened {
            self.end_pusher(turn, conn, code, why);
        }
    }

    /// Opens the session of a connection.
    fn begin_pusher(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        encoding: Encoding,
        app: &Arc<App>,
    ) -> Result<(), (PusherCode, &'static str)> {
        const FULL: (PusherCode, &str) = (PusherCode::OverCapacity, "there is no room now");
        let Some(&mut Link { peer, .. }) = turn.cx.data(conn) else { return Ok(()) };
        let user = &*app.prefix;
        let is_open = turn.core.tenant_of(user).is_none_or(|tenant| tenant.is_open());
        if turn.core.wait_to_begin(user, peer, std::iter::empty()) > 0
            || !is_open
            || !turn.core.has_room_for(user)
        {
            return Err(FULL);
        }
        let config = &turn.core.settings.config.pusher;
        let activity_timeout_ms = config.activity_timeout_ms;
        let params = SessionParams {
            ping_interval_ms: activity_timeout_ms,
            pong_timeout_ms: config.pong_timeout_ms,
            key: None,
        };
        let now = turn.now();
        let params = self.sessions.heartbeat.hold(params).ok_or(FULL)?;
        let new = NewSession {
            tag: conn.to_u64(),
            encoding: encoding.into(),
            user,
            owner: turn.core.owner_of(user, peer),
            outbox_bytes_max: turn.core.outbox_bytes_max(),
            ..NewSession::default()
        };
        let Ok(session) = turn.core.hub.open_session(now, new) else {
            self.sessions.heartbeat.release(params);
            return Err(FULL);
        };
        if let Some(link) = turn.cx.data(conn) {
            link.set_session(Some(session), params);
            link.protocol_state.connected();
        }
        turn.authenticated(conn);
        if let Some(&mut link) = turn.cx.data(conn) {
            turn.core.client_connected(link);
        }
        turn.cx.coalesce_input(conn);
        turn.core.population_changed(user);
        let socket_id = self.pusher.begin(session, app);
        turn.core.emit_connect(session, user, encoding);
        self.say(turn.core, session, |out| {
            event::write_connection_established(out, socket_id, activity_timeout_ms.div_ceil(1000));
        });
        self.sessions.schedule_first_ping(turn, session);
        let _ = turn.charge_request(conn, None, Work { commands: 1, ..Work::default() });
        Ok(())
    }

    fn end_pusher(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, code: PusherCode, why: &str) {
        self.disconnect(
            turn,
            conn,
            &Disconnect { code: code.code(), reason: why.to_owned().into() },
        );
    }

    /// Disconnects the sessions of apps that no longer exist, or belong to another tenant now, and of those whose secret, which
    /// has signed what their sessions have, is another now.
    pub(super) fn end_pusher_apps(&mut self, turn: &mut Turn<'_, '_>) {
        let (apps, hub) = (Arc::clone(&turn.core.settings.pusher), &turn.core.hub);
        let ended = self.pusher.renew_apps(|session, before| {
            let tenant = hub.session(session).and_then(|view| tenant::split(view.user).0);
            let app = apps.by_name(&before.name)?;
            let is_same = app.config.tenant.as_deref() == tenant
                && (&app.config.key, &app.config.secret)
                    == (&before.config.key, &before.config.secret);
            is_same.then(|| Arc::clone(app))
        });
        for session in ended {
            let app = self.pusher.get(session).and_then(|of| apps.by_name(&of.app.name));
            let (code, why) = match app {
                Some(_) => (PusherCode::Reconnect, "the app's key or secret was replaced"),
                None => (PusherCode::NoApp, "the app was taken away"),
            };
            if let Some(view) = turn.core.hub.session(session) {
                let conn = ConnId::from_u64(view.tag);
                self.end_pusher(turn, conn, code, why);
            }
        }
    }

    /// Executes the messages of a frame while there is budget. `Some`: the remaining messages, and when they may continue.
    pub(super) fn handle_pusher<'f>(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        frame: &'f [u8],
    ) -> Option<(&'f [u8], u64)> {
        let mut messages = Messages::new(frame);
        let mut timer = CommandTimer::start(&turn.core.state);
        loop {
            let before = messages.rest().len();
            let message = messages.next()?;
            let link = turn.cx.data(conn).filter(|link| !link.closing)?;
            let session = link.session()?;
            if link.protocol_state.heard() {
                self.sessions.pong_received(turn, conn);
            }
            let kind = match &message {
                Ok(Message::ClientEvent { .. }) => Some(CommandKind::Publish),
                Ok(Message::Subscribe(_) | Message::Unsubscribe { .. }) => {
                    Some(CommandKind::Subscribe)
                }
                _ => None,
            };
            let (channel, deliveries) = match message {
                Ok(message) => self.handle_message(turn, conn, session, message),
                Err(malformed) => {
                    turn.core.count(Metric::ProtocolErrors);
                    let why = malformed.to_string();
                    self.refuse_message(turn.core, session, "unknown", ("", None, &why));
                    (None, 0)
                }
            };
            self.drain_events(turn);
            let bytes = (before - messages.rest().len()) as u64;
            let work = Work { commands: 1, kind, bytes, deliveries, spent_ns: timer.lap() };
            if let Some(ready_ms) = turn.charge_request(conn, channel.as_deref(), work) {
                return Some((messages.rest(), ready_ms));
            }
        }
    }

    /// Executes one message. Returns the channel that it is about, and the number of deliveries that it may cause.
    fn handle_message(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        session: SessionId,
        message: Message<'_>,
    ) -> (Option<String>, u64) {
        let app = self.pusher.get(session).map(|of| &*of.app.name);
        let Some(app) =
            app.and_then(|name| turn.core.settings.pusher.by_name(name)).map(Arc::clone)
        else {
            return (None, 0);
        };
        let method = message.name();
        if message != Message::Pong
            && let Some(&mut link) = turn.cx.data(conn)
        {
            turn.core.command(link, (0, method).into());
        }
        match message {
            Message::Pong => {}
            Message::Ping => self.say(turn.core, session, event::write_pong),
            Message::Subscribe(request) => {
                let channel = app.channel(&request.channel);
                match self.subscribe_pusher(turn, session, &app, &channel, &request) {
                    Ok(()) => {
                        let deliveries = turn.core.joins_of(&channel);
                        return (Some(channel), deliveries);
                    }
                    Err(refused) => {
                        self.refuse_subscription(turn.core, session, &request.channel, &refused);
                    }
                }
            }
            Message::Unsubscribe { channel } => {
                let (channel, now) = (app.channel(&channel), turn.now());
                let deliveries = turn.core.joins_of(&channel);
                turn.core.hub.handle_unsubscribe(now, session, &channel, None);
                return (Some(channel), deliveries);
            }
            Message::SignIn(request) => self.sign_in(turn, conn, session, &app, &request),
            Message::ClientEvent { channel, event: name, data } => {
                let channel = app.channel(&channel);
                let deliveries = turn.core.deliveries_to(&channel, data.as_bytes().len());
                let bytes = data.as_bytes().len();
                match self
                    .may_send(turn.core, session, &app, &channel, (&name, bytes))
                    .and_then(|()| self.charge_client_event(turn, session, &app))
                {
                    Ok(()) => {
                        let publish = NewPublication {
                            format: data.format(),
                            data: data.into_bytes(),
                            tags: [(EVENT_TAG.into(), (&*name).into())].into_iter().collect(),
                            ..NewPublication::default()
                        };
                        self.send_client_event(turn, session, &channel, publish);
                        return (Some(channel), deliveries);
                    }
                    Err(why) => {
                        let code = Some(PusherCode::ClientEventRefused);
                        self.refuse_message(turn.core, session, method, (&channel, code, &why));
                    }
                }
            }
            Message::Unknown { event: name } => {
                let name = &name[..name.floor_char_boundary(64)];
                let why = format!("{name:?} is no event that clients send");
                self.refuse_message(turn.core, session, method, ("", None, &why));
            }
        }
        (None, 0)
    }

    fn subscribe_pusher(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        app: &App,
        channel: &str,
        request: &Subscribe<'_>,
    ) -> Result<(), SubscriptionError> {
        let name = &*request.channel;
        if !is_name(name) {
            let why = "a channel's name has 1 to 200 letters, digits and _-=@,.;";
            return Err(SubscriptionError::new("InvalidChannel", 400, why));
        }
        let (Some(socket_id), Some(of)) =
            (self.pusher.socket_id(session), self.pusher.get(session))
        else {
            return Ok(());
        };
        let member = authorized_member(app, socket_id, of.user.as_ref(), request)?;
        if ChannelKind::of(name) == ChannelKind::User
            && turn.core.hub.is_subscribed(session, channel)
        {
            // Since the sign-in; libraries subscribe once they learn of it.
            self.say(turn.core, session, |out| event::write_subscription_succeeded(out, name, &[]));
            return Ok(());
        }
        let is_presence = ChannelKind::of(name) == ChannelKind::Presence;
        let asked = SubscribeOptions {
            // The client gets the last event.
            recover: ChannelKind::is_cache(name).then(StreamPosition::default),
            join_leave: is_presence,
            skip_own_join: true,
            list_members: is_presence,
            chan_info: member.as_ref().and_then(|member| member.user_info.clone()),
            member: member.map(|member| MemberUser {
                name: member.user_id.as_str().into(),
                is_number: member.is_number,
            }),
            ..SubscribeOptions::default()
        };
        self.request_channel(turn, Pending::Pusher { session }, session, channel, asked)
    }

    /// Requests a subscription from the hub.
    fn request_channel(
        &mut self,
        turn: &mut Turn<'_, '_>,
        pending: Pending,
        session: SessionId,
        channel: &str,
        asked: SubscribeOptions,
    ) -> Result<(), SubscriptionError> {
        let entitled = self
            .sessions
            .claim(turn.core, session, channel)
            .and_then(|claim| claim.entitle(Source::App, asked));
        let Entitlement { options, subscribe, .. } = entitled
            .map_err(|error| SubscriptionError::new("InvalidChannel", 400, error.message))?;
        let now = turn.now();
        if let Some(token) = self.token(turn, pending) {
            let channel = ChannelRef::new(channel, &options);
            turn.core.hub.handle_subscribe(now, token, session, channel, subscribe);
        }
        Ok(())
    }

    fn refuse_subscription(
        &mut self,
        core: &mut Core<'_>,
        session: SessionId,
        name: &str,
        refused: &SubscriptionError,
    ) {
        let SubscriptionError { kind, status, why } = refused;
        core.pusher_refused(session, ("subscribe", name), (Some(*status), why));
        let name = &name[..name.floor_char_boundary(dunlin_protocol::pusher::NAME_BYTES_MAX)];
        self.say(core, session, |out| {
            event::write_subscription_error(out, name, kind, *status, why);
        });
    }

    fn sign_in(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        session: SessionId,
        app: &App,
        request: &SignIn<'_>,
    ) {
        let Some(socket_id) = self.pusher.socket_id(session) else { return };
        if self.pusher.get(session).is_some_and(|of| of.user.is_some()) {
            let why = "the connection has signed in already";
            return self.refuse_message(turn.core, session, "sign_in", ("", None, why));
        }
        let data = &*request.user_data;
        let unauthorized = PusherCode::Unauthorized;
        if data.len() > app.config.event_bytes_max {
            return self.end_pusher(turn, conn, unauthorized, "user_data is too long");
        }
        if !app.has_authorized(&request.auth, &sign_in_text(socket_id, data)) {
            let why = "the signature is not the app's for this socket id and user_data";
            return self.end_pusher(turn, conn, unauthorized, why);
        }
        let member = match Member::of_user_data(data) {
            Ok(member) => member,
            Err(why) => return self.end_pusher(turn, conn, unauthorized, &why),
        };
        let owner = turn.core.hub.owner(session);
        let user = app.user(&member.user_id);
        if !turn.core.admits_user(&user) {
            let why = "the user has as many connections as it may";
            return self.end_pusher(turn, conn, PusherCode::OverCapacity, why);
        }
        turn.core.hub.identify(session, &user, owner, None);
        turn.core.population_changed(&user);
        let name = server_to_user_channel(&member.user_id);
        if let Some(of) = self.pusher.get_mut(session) {
            of.user = Some(Arc::new(member));
        }
        // What a backend sends to the user once the client knows of its sign-in must arrive, so the user's channel is
        // subscribed first.
        let pending = Pending::PusherSignIn { session, user_data: data.into() };
        let subscribe = SubscribeOptions { granted: true, ..SubscribeOptions::default() };
        let is_requested = is_name(&name)
            && self.request_channel(turn, pending, session, &app.channel(&name), subscribe).is_ok();
        if !is_requested {
            // Nobody can send to a user whose channel would have such a name.
            self.say(turn.core, session, |out| event::write_signin_success(out, data));
        }
    }

    /// Confirms a sign-in, once the user's channel is subscribed.
    pub(super) fn sign_in_answered(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        user_data: &str,
        answer: &Event,
    ) {
        match answer {
            Event::Subscribed { result: Err(dunlin_hub::Error::Cancelled), .. } => {}
            Event::Subscribed {
                result: Ok(_) | Err(dunlin_hub::Error::AlreadySubscribed), ..
            } => self.say(turn.core, session, |out| event::write_signin_success(out, user_data)),
            _ => self.sign_in_failed(turn, session),
        }
    }

    /// The user's channel could not be subscribed: the client comes back after a while, and signs in again.
    pub(super) fn sign_in_failed(&mut self, turn: &mut Turn<'_, '_>, session: SessionId) {
        if let Some(view) = turn.core.hub.session(session) {
            let conn = ConnId::from_u64(view.tag);
            let why = "the channel of the user cannot be subscribed now; come back";
            self.end_pusher(turn, conn, PusherCode::OverCapacity, why);
        }
    }

    /// Whether a client may send such an event to a channel.
    fn may_send(
        &self,
        core: &Core<'_>,
        session: SessionId,
        app: &App,
        channel: &str,
        (event, bytes): (&str, usize),
    ) -> Result<(), String> {
        let name = pusher_name(channel);
        if !app.config.client_events {
            return Err("client events are off for this app (pusher.apps.*.client_events)".into());
        }
        if !ChannelKind::takes_client_events(name) || !core.hub.is_subscribed(session, channel) {
            let why = "client events are for subscribers of private and presence channels";
            return Err(why.into());
        }
        if event.len() > EVENT_NAME_BYTES_MAX {
            return Err(format!("an event's name has at most {EVENT_NAME_BYTES_MAX} bytes"));
        }
        let max = app.config.event_bytes_max;
        if bytes > max {
            return Err(format!("the data of an event has at most {max} bytes"));
        }
        Ok(())
    }

    /// Charges an event to the client's rate.
    fn charge_client_event(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        app: &App,
    ) -> Result<(), String> {
        let per_s = app.config.client_events_per_s;
        // Refused events are not charged, so that a client that sends too fast keeps its rate.
        let (budget_key, rates) = (BudgetKey::client_events(session), Rates::per_second(per_s));
        if turn.core.budgets.charge(budget_key, &rates, Work::default(), turn.cx.now_ms()) > 0 {
            return Err(format!("at most {per_s} client events a second"));
        }
        let one = Work { commands: 1, ..Work::default() };
        turn.core.budgets.charge(budget_key, &rates, one, turn.cx.now_ms());
        Ok(())
    }

    fn send_client_event(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        channel: &str,
        publish: NewPublication,
    ) {
        let Ok(namespace) = turn.core.namespace_of(channel) else { return };
        let options = Arc::clone(&namespace.options);
        let publish = NewPublication {
            info: turn.core.hub.client_info(session, Some(channel)),
            owner: turn.core.hub.owner(session),
            except: Some(session),
            // The last event of a cache channel is the last of a backend.
            skip_history: true,
            ..publish
        };
        let now = turn.now();
        if let Some(token) = self.token(turn, Pending::Pusher { session }) {
            turn.core.hub.handle_publish(now, token, ChannelRef::new(channel, &options), publish);
        }
    }

    /// Handles the hub's success of a client's request.
    pub(super) fn pusher_answered(
        &mut self,
        core: &mut Core<'_>,
        session: SessionId,
        event: Event,
    ) {
        match event {
            Event::Subscribed { channel, result: Ok(subscribed), .. } => {
                core.charge_recovery(&channel, &subscribed.publications);
                let name = pusher_name(&channel);
                self.say(core, session, |out| {
                    event::write_subscription_succeeded(out, name, &subscribed.members);
                });
                if ChannelKind::is_cache(name) {
                    match subscribed.publications.last() {
                        Some(publication) => {
                            let outgoing =
                                &Outgoing::Publication { channel: &channel, publication };
                            self.say(core, session, |out| event::write_push(out, outgoing));
                        }
                        None => self.say(core, session, |out| event::write_cache_miss(out, name)),
                    }
                }
            }
            Event::Subscribed { channel, result: Err(error), .. } => {
                let refused = match error {
                    // The client unsubscribed before the subscription was made.
                    dunlin_hub::Error::Cancelled => return,
                    // The sign-in is subscribing to the user's channel.
                    dunlin_hub::Error::AlreadySubscribed
                        if ChannelKind::of(pusher_name(&channel)) == ChannelKind::User =>
                    {
                        let name = pusher_name(&channel);
                        return self.say(core, session, |out| {
                            event::write_subscription_succeeded(out, name, &[]);
                        });
                    }
                    dunlin_hub::Error::AlreadySubscribed => {
                        let why =
                            format!("existing subscription to channel {}", pusher_name(&channel));
                        return self.refuse_message(
                            core,
                            session,
                            "subscribe",
                            (&channel, None, &why),
                        );
                    }
                    dunlin_hub::Error::LimitExceeded => SubscriptionError::limit(
                        "the channel has as many members, or the connection as many channels, as it may",
                    ),
                    error => SubscriptionError::new("Error", 503, error),
                };
                self.refuse_subscription(core, session, pusher_name(&channel), &refused);
            }
            Event::Published { result: Err(error), .. } => self.pusher_failed(core, session, error),
            _ => {}
        }
    }

    /// Handles the hub's failure of a client's request.
    pub(super) fn pusher_failed(
        &mut self,
        core: &mut Core<'_>,
        session: SessionId,
        error: dunlin_hub::Error,
    ) {
        let error = dunlin_protocol::centrifuge::Error::from(error);
        let code = match ErrorCode::from_code(error.code) {
            Some(ErrorCode::LimitExceeded) => Some(PusherCode::ClientEventRefused),
            _ => None,
        };
        self.refuse_message(core, session, "client_event", ("", code, &error.message));
    }

    /// Answers a message with an error.
    fn refuse_message(
        &mut self,
        core: &mut Core<'_>,
        session: SessionId,
        method: &'static str,
        (channel, code, why): (&str, Option<PusherCode>, &str),
    ) {
        let number = code.map(|code| u32::from(code.code()));
        core.pusher_refused(session, (method, channel), (number, why));
        self.say(core, session, |out| event::write_error(out, code, why));
    }

    /// Appends an event to a session's outbox.
    fn say(&mut self, core: &mut Core<'_>, session: SessionId, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(view) = core.hub.session(session) else { return };
        let Some(encoding) = Encoding::of(view.encoding) else { return };
        let encoder = &mut core.encoder;
        let mut bytes = 0;
        core.hub.push(session, |out| {
            let before = out.len();
            encoder.pusher_event(encoding, out, write);
            bytes = out.len() - before;
        });
        core.charge_reply(session, bytes);
    }

    /// The hub has ended a subscription because messages of the channel were lost. The protocol has no recovery: who comes
    /// back subscribes again, and knows that there was a break.
    pub(super) fn pusher_unsubscribed(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        code: u32,
    ) {
        if code >= 2500
            && self.pusher.get(session).is_some()
            && let Some(view) = turn.core.hub.session(session)
        {
            let conn = ConnId::from_u64(view.tag);
            self.end_pusher(turn, conn, PusherCode::Reconnect, "messages were lost; come back");
        }
    }
}
