//! Commands of clients: what each may do, and what becomes of it.

use std::sync::Arc;

use dunlin_hub::{ChannelOptions, HistoryFilter, NewSession, Publish, SessionId, Subscribe};
use dunlin_net::{ConnId, Context};
use dunlin_protocol::Encoding;
use dunlin_protocol::centrifuge::{
    Command, Commands, ConnectRequest, ConnectResult, Disconnect, DisconnectCode, Error, ErrorCode,
    RefreshResult, Refusal, Reply, Request, SubscribeRequest, SubscribeResult,
};

use super::Worker;
use super::link::{Link, Role};
use super::pending::Pending;
use crate::auth::{self, Identity};
use crate::metrics::Metric;
use crate::session_token;

/// What every client is told the server is.
pub(crate) const VERSION: &str = concat!("dunlin ", env!("CARGO_PKG_VERSION"));

/// A connect under way: its server-side subscriptions are being made.
pub(super) struct Connecting {
    /// The connect command; 0 on a unidirectional transport.
    id: u32,
    encoding: Encoding,
    /// Subscriptions not answered yet.
    waiting: usize,
    /// Those that were, with what the token says for the application.
    done: Vec<(Arc<str>, dunlin_hub::Subscribed, Option<Box<[u8]>>)>,
    /// Raw JSON of the token for a channel, until its subscription is answered.
    data: Vec<(Box<str>, Box<[u8]>)>,
}

/// What a client wants to do in a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Subscribe,
    Publish,
    History,
    Presence,
}

impl Worker<'_> {
    /// Carries out the commands of one frame, in order. The first that ends the connection ends it.
    pub(super) fn handle_frame(&mut self, cx: &mut Context<Link>, conn: ConnId, frame: &[u8]) {
        let commands = Commands::of(frame);
        if commands.is_empty() {
            let empty = DisconnectCode::BadRequest.because("a frame without a command");
            return self.disconnect(cx, conn, &empty);
        }
        for command in commands {
            let Some(link) = cx.data(conn) else { return };
            if link.closing {
                return;
            }
            let command = match command {
                Ok(command) => command,
                Err(malformed) => {
                    self.count(Metric::ProtocolErrors);
                    let why = DisconnectCode::BadRequest.because(malformed);
                    return self.disconnect(cx, conn, &why);
                }
            };
            match link.conversation.admit(&command) {
                // A connect is decided at once; while its subscriptions are being made, what it is answered
                // is held back, and so is the answer to anything said after it.
                Ok(_) => self.handle_command(cx, conn, &command),
                Err(Refusal::Error(error)) => {
                    self.count(Metric::Commands);
                    self.reply_error(cx, conn, command.id, &error);
                }
                Err(Refusal::Disconnect(disconnect)) => {
                    self.count(Metric::ProtocolErrors);
                    return self.disconnect(cx, conn, &disconnect);
                }
            }
        }
    }

    fn handle_command(&mut self, cx: &mut Context<Link>, conn: ConnId, command: &Command<'_>) {
        let id = command.id;
        if let Request::Pong = command.request {
            return self.pong_received(cx, conn);
        }
        self.count(Metric::Commands);
        if let Request::Connect(connect) = &command.request {
            return self.connect(cx, conn, id, connect);
        }
        let Some(session) = cx.data(conn).and_then(|link| link.session()) else { return };
        let now = self.now(cx);
        let outcome = match &command.request {
            Request::Subscribe(request) => self.subscribe(cx, session, id, request),
            Request::Unsubscribe(request) => {
                self.hub.handle_unsubscribe(now, session, &request.channel, None);
                self.reply(session, id, &Reply::Unsubscribe);
                Ok(())
            }
            Request::Publish(request) => {
                self.allowed(session, &request.channel, Wish::Publish).map(|options| {
                    let publish = Publish {
                        // Conversation::admit has seen to it that there is data.
                        data: request
                            .data
                            .clone()
                            .map(|data| data.into_bytes())
                            .unwrap_or_default(),
                        info: self.hub.client_info(session, Some(&request.channel)),
                        ..Publish::default()
                    };
                    if let Some(token) = self.token(cx, Pending::Command { session, id }) {
                        self.hub.handle_publish(now, token, &request.channel, &options, publish);
                    }
                })
            }
            Request::History(request) => {
                self.allowed(session, &request.channel, Wish::History).map(|options| {
                    let max = self.settings.config.limits.history_messages_max;
                    let filter = HistoryFilter {
                        since: request.since.as_ref().map(|since| since.to_hub()),
                        limit: Some(u32::try_from(request.limit).unwrap_or(max).min(max)),
                        reverse: request.reverse,
                    };
                    if let Some(token) = self.token(cx, Pending::Command { session, id }) {
                        self.hub.handle_history(now, token, &request.channel, &options, filter);
                    }
                })
            }
            Request::Presence(request) => {
                self.allowed(session, &request.channel, Wish::Presence).map(|options| {
                    if let Some(token) = self.token(cx, Pending::Command { session, id }) {
                        self.hub.handle_presence(now, token, &request.channel, &options);
                    }
                })
            }
            Request::PresenceStats(request) => {
                self.allowed(session, &request.channel, Wish::Presence).map(|options| {
                    if let Some(token) = self.token(cx, Pending::Command { session, id }) {
                        self.hub.handle_presence_stats(now, token, &request.channel, &options);
                    }
                })
            }
            Request::Ping => {
                self.reply(session, id, &Reply::Ping);
                Ok(())
            }
            Request::Refresh(request) => {
                return self.refresh(cx, conn, session, id, &request.token);
            }
            Request::SubRefresh(request) => {
                if self.hub.is_subscribed(session, &request.channel) {
                    // No subscription of this server expires, so any refresh is good for ever.
                    self.reply(session, id, &Reply::SubRefresh { ttl_s: 0 });
                    Ok(())
                } else {
                    Err(ErrorCode::PermissionDenied.because("not subscribed to this channel"))
                }
            }
            // Answered by Conversation::admit or above.
            Request::Connect(_)
            | Request::Send(_)
            | Request::Rpc(_)
            | Request::Pong
            | Request::Unknown(_) => Ok(()),
        };
        if let Err(error) = outcome {
            self.reply_error(cx, conn, id, &error);
        }
        self.drain_events(cx);
    }

    /// Opens the session of a connection. `id` is 0 on the unidirectional transports.
    pub(super) fn connect(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        id: u32,
        request: &ConnectRequest<'_>,
    ) {
        let Some(&mut Link { role: Role::Client(encoding), .. }) = cx.data(conn) else { return };
        let identity = match self.identify(&request.token) {
            Ok(identity) => identity,
            Err(Refusal::Error(error)) if encoding.is_bidirectional() => {
                if let Some(link) = cx.data(conn) {
                    link.conversation.refused();
                }
                return self.reply_error(cx, conn, id, &error);
            }
            Err(Refusal::Error(error)) => {
                let code = ErrorCode::from_code(error.code).unwrap_or(ErrorCode::Internal);
                return self.disconnect(cx, conn, &code.disconnect().into());
            }
            Err(Refusal::Disconnect(disconnect)) => return self.disconnect(cx, conn, &disconnect),
        };
        let now = self.now(cx);
        let limits = &self.settings.config.limits;
        let opened = self.hub.open_session(
            now,
            NewSession {
                tag: conn.to_u64(),
                encoding: encoding.into(),
                user: &identity.user,
                conn_info: identity.info.as_ref().map(|info| one_line(info)),
                outbox_bytes_max: u32::try_from(limits.outbox_bytes_max).unwrap_or(u32::MAX),
                poll: false,
                held: true,
            },
        );
        let session = match opened {
            Ok(session) => session,
            Err(_) => {
                return self.disconnect(cx, conn, &DisconnectCode::ConnectionLimit.into());
            }
        };
        if let Some(link) = cx.data(conn) {
            link.set_session(Some(session));
            link.conversation.connected();
        }
        if let Some(expire_at_s) = identity.expire_at_s {
            self.expiries.insert(session, expire_at_s);
        }
        let mut connecting =
            Connecting { id, encoding, waiting: 0, done: Vec::new(), data: Vec::new() };
        let wishes = self.server_side(&identity, request, encoding);
        connecting.waiting = wishes.len();
        connecting.data = wishes
            .iter()
            .filter_map(|wish| Some((wish.channel.as_str().into(), wish.data.clone()?)))
            .collect();
        self.connecting.insert(session, connecting);
        for wish in wishes {
            let Some(token) = self.token(cx, Pending::Connect { session }) else {
                self.connect_subscribed(
                    cx,
                    session,
                    wish.channel.as_str().into(),
                    Err(dunlin_hub::Error::Overloaded),
                );
                continue;
            };
            self.hub.handle_subscribe(
                now,
                token,
                session,
                &wish.channel,
                &wish.options,
                wish.subscribe,
            );
        }
        self.connect_answered(cx, session);
        self.drain_events(cx);
    }

    /// Whose connection this is, by its token.
    pub(super) fn identify(&self, token: &str) -> Result<Identity, Refusal> {
        if token.is_empty() {
            if self.settings.config.client.anonymous {
                return Ok(Identity::default());
            }
            let why = "a connection token is required (JWT signed with client.token.hmac_secret)";
            return Err(Refusal::Disconnect(DisconnectCode::PermissionDenied.because(why)));
        }
        self.settings.verifier.verify(token, self.unix_ms()).map_err(|error| match error {
            auth::Error::Expired => Refusal::Error(ErrorCode::TokenExpired.into()),
            error => Refusal::Disconnect(DisconnectCode::InvalidToken.because(error)),
        })
    }

    /// The subscriptions a connection begins with: those its token names, and on a unidirectional transport
    /// those it asks for and may have.
    fn server_side(
        &self,
        identity: &Identity,
        request: &ConnectRequest<'_>,
        encoding: Encoding,
    ) -> Vec<ServerSide> {
        let mut wishes = Vec::new();
        for (channel, options) in &identity.subscriptions {
            let Some(namespace) = self.settings.namespace(channel) else {
                tracing::warn!(channel, "a token subscribes to a channel of an unknown namespace");
                continue;
            };
            let mut hub_options = (*namespace.options).clone();
            let overrides = options.overrides;
            hub_options.presence = overrides.presence.unwrap_or(hub_options.presence);
            hub_options.join_leave = overrides.join_leave.unwrap_or(hub_options.join_leave);
            hub_options.force_recovery = overrides.recover.unwrap_or(hub_options.force_recovery);
            hub_options.force_positioning =
                overrides.positioned.unwrap_or(hub_options.force_positioning);
            hub_options.force_push_join_leave =
                overrides.push_join_leave.unwrap_or(hub_options.force_push_join_leave);
            let hub_options = if hub_options == *namespace.options {
                Arc::clone(&namespace.options)
            } else {
                Arc::new(hub_options)
            };
            let mut subscribe = subscribe(request.subs.get(channel.as_str()));
            subscribe.chan_info = options.info.as_ref().map(|info| one_line(info));
            subscribe.server_side = true;
            wishes.push(ServerSide {
                channel: channel.clone(),
                options: hub_options,
                subscribe,
                data: options.data.as_ref().map(|data| one_line(data)),
            });
        }
        if !encoding.is_bidirectional() {
            for (channel, request) in request.subs.iter() {
                if identity.subscriptions.contains_key(channel) {
                    continue;
                }
                if let Ok(options) = self.may_subscribe(&identity.user, channel) {
                    wishes.push(ServerSide {
                        channel: channel.to_owned(),
                        options,
                        subscribe: Subscribe { server_side: true, ..subscribe(Some(request)) },
                        data: None,
                    });
                }
            }
        }
        wishes
    }

    /// One of the subscriptions of a connect is made, or is not.
    pub(super) fn connect_subscribed(
        &mut self,
        cx: &mut Context<Link>,
        session: SessionId,
        channel: Arc<str>,
        result: Result<dunlin_hub::Subscribed, dunlin_hub::Error>,
    ) {
        let Some(connecting) = self.connecting.get_mut(&session) else { return };
        connecting.waiting -= 1;
        match result {
            Ok(subscribed) => {
                let data = connecting
                    .data
                    .iter()
                    .position(|(name, _)| **name == *channel)
                    .map(|at| connecting.data.swap_remove(at).1);
                connecting.done.push((channel, subscribed, data));
            }
            Err(error) => {
                tracing::debug!(%channel, %error, "a server-side subscription was not made");
            }
        }
        self.connect_answered(cx, session);
    }

    /// Answers a connect whose subscriptions are all made.
    fn connect_answered(&mut self, cx: &mut Context<Link>, session: SessionId) {
        if self.connecting.get(&session).is_none_or(|connecting| connecting.waiting > 0) {
            return;
        }
        let Some(connecting) = self.connecting.remove(&session) else { return };
        let Connecting { id, encoding, .. } = connecting;
        let subs: Vec<(Arc<str>, SubscribeResult<'_>)> = connecting
            .done
            .iter()
            .map(|(channel, subscribed, data)| {
                (
                    Arc::clone(channel),
                    SubscribeResult { subscribed, ttl_s: 0, data: data.as_deref() },
                )
            })
            .collect();
        let emulation = if encoding.is_emulated() {
            session_token::issue(&self.node.secret, session)
        } else {
            String::new()
        };
        let client = &self.settings.config.client;
        let result = ConnectResult {
            client: Some(session),
            version: VERSION,
            ttl_s: self.ttl_s(session),
            data: None,
            subs: &subs,
            ping_s: (client.ping_interval_ms / 1000) as u32,
            pong: encoding.is_bidirectional(),
            session: &emulation,
            node: if encoding.is_emulated() { &self.node.name } else { "" },
        };
        let encoder = &mut self.encoder;
        self.hub.release(session, |out| {
            if encoding.is_bidirectional() {
                encoder.reply(encoding, id, &Reply::Connect(&result), out);
            } else {
                encoder.connect_push(encoding, &result, out);
            }
        });
        self.connected(cx, session);
    }

    fn subscribe(
        &mut self,
        cx: &mut Context<Link>,
        session: SessionId,
        id: u32,
        request: &SubscribeRequest<'_>,
    ) -> Result<(), Error<'static>> {
        let options = self.allowed(session, &request.channel, Wish::Subscribe)?;
        let now = self.now(cx);
        if let Some(token) = self.token(cx, Pending::Command { session, id }) {
            let subscribe = subscribe(Some(request));
            self.hub.handle_subscribe(now, token, session, &request.channel, &options, subscribe);
        }
        Ok(())
    }

    /// A new connection token.
    fn refresh(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        session: SessionId,
        id: u32,
        token: &str,
    ) {
        let user = self.hub.session(session).map(|view| view.user.to_owned()).unwrap_or_default();
        match self.identify(token) {
            Ok(identity) if identity.user == user => {
                match identity.expire_at_s {
                    Some(expire_at_s) => self.expiries.insert(session, expire_at_s),
                    None => self.expiries.remove(&session),
                };
                let result =
                    RefreshResult { client: session, version: VERSION, ttl_s: self.ttl_s(session) };
                self.reply(session, id, &Reply::Refresh(&result));
                self.schedule_ping(cx, conn);
            }
            Ok(_) => {
                let other = DisconnectCode::InvalidToken.because("the token is of another user");
                self.disconnect(cx, conn, &other);
            }
            Err(Refusal::Error(error)) => self.reply_error(cx, conn, id, &error),
            Err(Refusal::Disconnect(disconnect)) => self.disconnect(cx, conn, &disconnect),
        }
    }

    /// Whole seconds until the connection expires; 0: never.
    fn ttl_s(&self, session: SessionId) -> u32 {
        self.expiries.get(&session).map_or(0, |&expire_at_s| {
            u32::try_from(expire_at_s.saturating_sub(self.unix_ms() / 1000))
                .unwrap_or(u32::MAX)
                .max(1)
        })
    }

    /// The options of the channel, if the session may do this in it.
    fn allowed(
        &self,
        session: SessionId,
        channel: &str,
        wish: Wish,
    ) -> Result<Arc<ChannelOptions>, Error<'static>> {
        let user = self.hub.session(session).map_or("", |view| view.user);
        let subscribed = self.hub.is_subscribed(session, channel);
        self.allowed_user(user, subscribed, channel, wish)
    }

    /// The options of the channel, if this user may subscribe to it.
    pub(super) fn may_subscribe(
        &self,
        user: &str,
        channel: &str,
    ) -> Result<Arc<ChannelOptions>, Error<'static>> {
        self.allowed_user(user, false, channel, Wish::Subscribe)
    }

    fn allowed_user(
        &self,
        user: &str,
        subscribed: bool,
        channel: &str,
        wish: Wish,
    ) -> Result<Arc<ChannelOptions>, Error<'static>> {
        let limit = self.settings.config.limits.channel_bytes_max;
        if channel.len() > limit {
            return Err(ErrorCode::LimitExceeded
                .because(format_args!("a channel name has at most {limit} bytes")));
        }
        let Some(namespace) = self.settings.namespace(channel) else {
            return Err(ErrorCode::UnknownChannel.into());
        };
        let rules = &namespace.rules;
        let (client, anonymous, subscriber, key) = match wish {
            Wish::Subscribe => (
                rules.allow_subscribe_for_client,
                rules.allow_subscribe_for_anonymous,
                false,
                "allow_subscribe",
            ),
            Wish::Publish => (
                rules.allow_publish_for_client,
                rules.allow_publish_for_anonymous,
                rules.allow_publish_for_subscriber,
                "allow_publish",
            ),
            Wish::History => (
                rules.allow_history_for_client,
                rules.allow_history_for_anonymous,
                rules.allow_history_for_subscriber,
                "allow_history",
            ),
            Wish::Presence => (
                rules.allow_presence_for_client,
                rules.allow_presence_for_anonymous,
                rules.allow_presence_for_subscriber,
                "allow_presence",
            ),
        };
        if (if user.is_empty() { anonymous } else { client }) || subscriber && subscribed {
            return Ok(Arc::clone(&namespace.options));
        }
        let whom = if user.is_empty() { "anonymous" } else { "client" };
        Err(ErrorCode::PermissionDenied
            .because(format_args!("{key}_for_{whom} is not set for this channel")))
    }

    /// Puts a reply into the session's outbox.
    pub(super) fn reply(&mut self, session: SessionId, id: u32, reply: &Reply<'_>) {
        let Some(view) = self.hub.session(session) else { return };
        let Some(encoding) = Encoding::of(view.encoding) else { return };
        let encoder = &mut self.encoder;
        self.hub.push(session, |out| encoder.reply(encoding, id, reply, out));
    }

    /// Answers a command with an error, on a connection that may not have a session yet.
    fn reply_error(&mut self, cx: &mut Context<Link>, conn: ConnId, id: u32, error: &Error<'_>) {
        self.count(Metric::CommandErrors);
        let Some(&mut link) = cx.data(conn) else { return };
        let Role::Client(encoding) = link.role else { return };
        if let Some(session) = link.session() {
            return self.reply(session, id, &Reply::Error(error));
        }
        let mut bytes = Vec::with_capacity(128);
        self.encoder.reply(encoding, id, &Reply::Error(error), &mut bytes);
        // A refused write is a client that does not read; its deadline is running.
        let _ = cx.write(conn, &bytes);
    }

    /// Ends a connection with a code the client understands.
    pub(super) fn disconnect(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        why: &Disconnect<'_>,
    ) {
        let now = self.now(cx);
        let Some(link) = cx.data(conn) else { return };
        if link.closing {
            return;
        }
        let Role::Client(encoding) = link.role else { return };
        if let Some(session) = link.session() {
            self.hub.disconnect_session(now, session, u32::from(why.code), &why.reason);
            return self.drain_events(cx);
        }
        link.closing = true;
        self.count(Metric::Disconnects);
        let mut bytes = Vec::with_capacity(128);
        let push = dunlin_hub::Push::Disconnect {
            code: u32::from(why.code),
            reason: &why.reason,
            reconnect: why.reconnects(),
        };
        self.encoder.push(encoding, &push, &mut bytes);
        let _ = cx.write(conn, &bytes);
        cx.close(conn);
    }
}

struct ServerSide {
    channel: String,
    options: Arc<ChannelOptions>,
    subscribe: Subscribe,
    data: Option<Box<[u8]>>,
}

/// The hub's form of what a client asks of a subscription.
fn subscribe(request: Option<&SubscribeRequest<'_>>) -> Subscribe {
    let Some(request) = request else { return Subscribe::default() };
    Subscribe {
        recover: request.since(),
        positioned: request.positioned,
        recoverable: request.recoverable,
        join_leave: request.join_leave,
        ..Subscribe::default()
    }
}

/// Raw JSON from a token, which may have been written over several lines.
fn one_line(raw: &serde_json::value::RawValue) -> Box<[u8]> {
    dunlin_protocol::json::Json::from_raw(raw).into_bytes()
}
