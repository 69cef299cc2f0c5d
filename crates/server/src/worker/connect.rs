//! Connects: whose a connection is, with which subscriptions it begins, and how long it may last.

use std::sync::Arc;

use dunlin_hub::{ChannelOptions, NewSession, SessionId, SubscribeOptions};
use dunlin_net::{ConnId, Context};
use dunlin_protocol::Encoding;
use dunlin_protocol::centrifuge::{
    CommandError, ConnectRequest, ConnectResult, DisconnectCode, ErrorCode, RefreshResult, Reply,
    SubscribeResult,
};

use super::Worker;
use super::command::subscribe;
use super::link::{Link, Role};
use super::pending::Pending;
use super::session_params::SessionParams;
use crate::auth::{self, Identity};
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
    done: Vec<Done>,
    /// Raw JSON of the token for a channel, until its subscription is answered.
    data: Vec<(Box<str>, Box<[u8]>)>,
}

/// A server-side subscription that is made.
struct Done {
    channel: Arc<str>,
    subscribed: dunlin_hub::Subscribed,
    /// Raw JSON for the application.
    data: Option<Box<[u8]>>,
}

impl Worker<'_> {
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
            Err(CommandError::Reply(error)) if encoding.is_bidirectional() => {
                if let Some(link) = cx.data(conn) {
                    link.protocol_state.rejected();
                }
                return self.reply_error(cx, conn, id, &error);
            }
            Err(CommandError::Reply(error)) => {
                let code = ErrorCode::from_code(error.code).unwrap_or(ErrorCode::Internal);
                return self.disconnect(cx, conn, &code.disconnect().into());
            }
            Err(CommandError::Disconnect(disconnect)) => {
                return self.disconnect(cx, conn, &disconnect);
            }
        };
        let now = self.now(cx);
        let Some(params) = self.params.hold(self.params_for(identity.key)) else {
            return self.disconnect(cx, conn, &DisconnectCode::ConnectionLimit.into());
        };
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
                self.params.release(params);
                return self.disconnect(cx, conn, &DisconnectCode::ConnectionLimit.into());
            }
        };
        if let Some(link) = cx.data(conn) {
            link.set_session(Some(session), params);
            link.protocol_state.connected();
        }
        if let Some(expire_at_s) = identity.expire_at_s {
            self.expiries.insert(session, expire_at_s);
        }
        // Before what it subscribes to.
        self.emit_connect(session, &identity.user, encoding);
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

    /// What a session that begins now is promised.
    fn params_for(&self, key: Option<u64>) -> SessionParams {
        let client = &self.settings.config.client;
        SessionParams {
            ping_interval_ms: client.ping_interval_ms,
            pong_timeout_ms: client.pong_timeout_ms,
            key,
        }
    }

    /// The session's token is from now on one that this key has signed.
    fn rekey(&mut self, cx: &mut Context<Link>, conn: ConnId, key: Option<u64>) {
        let Some(&mut link) = cx.data(conn) else { return };
        let Some(params) = self.params.get(link.params()) else { return };
        if params.key == key {
            return;
        }
        if let Some(place) = self.params.hold(SessionParams { key, ..params }) {
            self.params.release(link.params());
            if let Some(link) = cx.data(conn) {
                link.set_session(link.session(), place);
            }
        }
    }

    /// Whose connection this is, by its token.
    pub(super) fn identify(&self, token: &str) -> Result<Identity, CommandError> {
        if token.is_empty() {
            if self.settings.config.client.anonymous {
                return Ok(Identity::default());
            }
            let why = "a connection token is required (JWT signed with client.token.hmac_secret)";
            return Err(CommandError::Disconnect(
                DisconnectCode::PermissionDenied.with_reason(why),
            ));
        }
        self.settings.verifier.verify(token, self.unix_ms()).map_err(|error| match error {
            auth::Error::Expired => CommandError::Reply(ErrorCode::TokenExpired.into()),
            error => CommandError::Disconnect(DisconnectCode::InvalidToken.with_reason(error)),
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
                        subscribe: SubscribeOptions {
                            server_side: true,
                            ..subscribe(Some(request))
                        },
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
                connecting.done.push(Done { channel, subscribed, data });
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
            .map(|Done { channel, subscribed, data }| {
                let result = SubscribeResult { subscribed, ttl_s: 0, data: data.as_deref() };
                (Arc::clone(channel), result)
            })
            .collect();
        let emulation = if encoding.is_emulated() {
            session_token::issue(&self.state.secret, session)
        } else {
            String::new()
        };
        let ping_interval_ms = self.params_of(cx, session).ping_interval_ms;
        let result = ConnectResult {
            client: Some(session),
            version: VERSION,
            ttl_s: self.ttl_s(session),
            data: None,
            subs: &subs,
            ping_s: (ping_interval_ms / 1000) as u32,
            pong: encoding.is_bidirectional(),
            session: &emulation,
            node: if encoding.is_emulated() { self.settings.node_name() } else { "" },
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

    /// A new connection token.
    pub(super) fn refresh(
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
                self.rekey(cx, conn, identity.key);
                let result =
                    RefreshResult { client: session, version: VERSION, ttl_s: self.ttl_s(session) };
                self.reply(session, id, &Reply::Refresh(&result));
                self.schedule_ping(cx, conn);
            }
            Ok(_) => {
                let other =
                    DisconnectCode::InvalidToken.with_reason("the token is of another user");
                self.disconnect(cx, conn, &other);
            }
            Err(CommandError::Reply(error)) => self.reply_error(cx, conn, id, &error),
            Err(CommandError::Disconnect(disconnect)) => self.disconnect(cx, conn, &disconnect),
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
}

struct ServerSide {
    channel: String,
    options: Arc<ChannelOptions>,
    subscribe: SubscribeOptions,
    data: Option<Box<[u8]>>,
}

/// Raw JSON from a token, which may have been written over several lines.
fn one_line(raw: &serde_json::value::RawValue) -> Box<[u8]> {
    dunlin_protocol::json::Json::from_raw(raw).into_bytes()
}
