//! Connects: whose a connection is, with which subscriptions it begins, and how long it may last.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use dunlin_hub::tenant::{NO_CONTROL, bare, has_control};
use dunlin_hub::{ChannelRef, DEVICE_BYTES_MAX, NewSession, SessionId, SubscribeOptions};
use dunlin_net::ConnId;
use dunlin_protocol::centrifuge::{
    CommandError, ConnectRequest, ConnectResult, Disconnect, DisconnectCode, ErrorCode,
    RefreshResult, Reply,
};
use dunlin_protocol::{Encoding, device_of};

use super::clients::Clients;
use super::key_wait::{Handled, Unverified};
use super::link::{Link, Role};
use super::parts::{Connected, GrantToken, NewConnect, Pending, SessionParams, TokenFacts};
use super::permission::{Entitlement, NamedChannels, Standings};
use super::server_side::ServerSide;
use super::sessions::Sessions;
use super::turn::{Core, Turn};
use super::users::COUNT_TIMEOUT_MS;
use crate::auth::revocation::{TokenId, TokenRevoked};
use crate::auth::session_token;
use crate::auth::{self, Identity, Subscription};
use crate::metrics::labelled::ClientConnect;

/// The server's name and version, for clients and API callers.
pub(crate) const VERSION: &str = concat!("dunlin ", env!("CARGO_PKG_VERSION"));

/// A client whose session was just opened.
#[derive(Clone, Copy)]
pub(super) struct NewClient {
    pub(super) conn: ConnId,
    pub(super) session: SessionId,
    pub(super) encoding: Encoding,
}

impl Clients {
    /// Opens the session of a connection. `id` is the command's; `None` on the unidirectional transports. `said` is the
    /// command as it came.
    pub(super) fn connect(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        id: Option<u32>,
        request: &ConnectRequest<'_>,
        said: &[u8],
    ) -> Handled {
        let Some(&mut Link { role: Role::Client(_), .. }) = turn.cx.data(conn) else {
            return Handled::Done;
        };
        if self.deciders.has_authorizer() && self.consult_connect(turn, conn, id, request, said) {
            return Handled::Done;
        }
        if request.token.is_empty()
            && let Some(proxy) = turn.core.settings.config.client.proxy.connect.clone()
        {
            if let Some(session) = self.reserve_session(turn, conn, request) {
                self.ask_connect(turn, (conn, session, id), request, said, &proxy);
            }
            return Handled::Done;
        }
        match self.sessions.identify(turn.core, &request.token) {
            Ok(identity) => return self.connect_as(turn, conn, id, request, identity.into()),
            Err(Unverified::Refused(error)) => self.refuse_connect(turn, conn, id, error),
            Err(Unverified::KeyPending) => return Handled::AwaitsKey,
        }
        Handled::Done
    }

    /// Opens the session of a client that may come in. What refuses it and costs little is checked first; the signatures of the
    /// subscription tokens of a unidirectional client, of which there may be many, last.
    pub(super) fn connect_as(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        id: Option<u32>,
        request: &ConnectRequest<'_>,
        mut accepted: AcceptedClient,
    ) -> Handled {
        let Some(&mut Link { role: Role::Client(encoding), peer, .. }) = turn.cx.data(conn) else {
            return Handled::Done;
        };
        let data = request.data.as_ref().map_or(&b""[..], |data| data.as_bytes());
        accepted.identity.device = device_of(data).map(|device| bounded_device(&device));
        let identity = &accepted.identity;
        let of_token = identity.subscriptions.keys().map(String::as_str);
        let asked = request.subs.iter().filter(|_| !encoding.is_bidirectional());
        let channels = of_token.chain(asked.map(|(channel, _)| channel));
        if turn.core.wait_to_begin(&identity.user, peer, channels) > 0 {
            turn.give_back(accepted.reserved);
            let error = ErrorCode::TooManyRequests.into();
            self.refuse_connect(turn, conn, id, CommandError::Reply(error));
            return Handled::Done;
        }
        if accepted.by_proxy
            && let Err(why) = check_names(identity)
        {
            turn.give_back(accepted.reserved);
            self.disconnect(turn, conn, &why);
            return Handled::Done;
        }
        if !turn.core.has_room_for(&identity.user) {
            turn.core.charge_refused(&identity.user, peer);
            turn.give_back(accepted.reserved);
            self.disconnect(turn, conn, &DisconnectCode::ConnectionLimit.into());
            return Handled::Done;
        }
        let barred = self.sessions.check_barred(turn.core, identity);
        let verified = barred.map_err(Unverified::Refused).and_then(|()| {
            self.sessions.verify_subscriptions(turn.core, &identity.user, request, encoding)
        });
        let tokens = match verified {
            Ok(tokens) => tokens,
            Err(unverified) => {
                turn.core.population_changed(&identity.user);
                let error = match (unverified, accepted.reserved) {
                    (Unverified::Refused(error), _) => error,
                    (Unverified::KeyPending, None) => return Handled::AwaitsKey,
                    // The key will be known when the client reconnects.
                    (Unverified::KeyPending, Some(_)) => {
                        self.want_keys(turn.core);
                        CommandError::Reply(ErrorCode::Internal.into())
                    }
                };
                match accepted.reserved {
                    Some(session) => self.refuse_reserved(turn, (conn, id), session, error),
                    None => self.refuse_connect(turn, conn, id, error),
                }
                return Handled::Done;
            }
        };
        let Some(session) = self.open_session(turn, conn, encoding, &accepted) else {
            turn.core.population_changed(&identity.user);
            turn.give_back(accepted.reserved);
            self.disconnect(turn, conn, &DisconnectCode::ConnectionLimit.into());
            return Handled::Done;
        };
        self.sessions.forwarded.keep_meta(conn, identity.meta.as_deref().map(one_line));
        // Before what it subscribes to.
        turn.core.emit_connect(session, &identity.user, encoding);
        let client = NewClient { conn, session, encoding };
        let mut subscriptions = self.server_side(turn, client, identity, request, tokens);
        let data = subscriptions
            .iter_mut()
            .filter_map(|of| {
                let data = of.take_data()?;
                Some((of.channel.as_str().into(), data))
            })
            .collect();
        let channels = subscriptions.iter().map(|of| of.channel.as_str());
        turn.core.charge_subscriptions((Some(session), &identity.user, peer), 0, channels);
        let limits = &turn.core.settings.config.limits;
        let bytes_max = limits.answer_bytes_max.min(limits.outbox_bytes_max);
        let (own_data, subscriptions_count) = (accepted.data, subscriptions.len());
        let connect = NewConnect {
            id,
            encoding,
            subscriptions: subscriptions_count,
            bytes_max,
            data,
            own_data,
            began: accepted.began,
        };
        self.connects.begin(session, connect);
        if turn.core.awaits_count(&identity.user) {
            let until_ms = turn.cx.now_ms() + COUNT_TIMEOUT_MS;
            self.connects.await_count(session, &identity.user, until_ms);
        }
        let now = turn.now();
        for ServerSide { channel, entitlement } in subscriptions {
            let Entitlement { options, subscribe, grant, by, .. } = entitlement;
            turn.core.permitted(session, &channel, "subscribe", by);
            let subscribe = SubscribeOptions { server_side: true, ..subscribe };
            match self.token(turn, Pending::Connect { session }) {
                Some(token) => {
                    if let Some(grant) = grant {
                        self.sessions.grants.insert(session, &channel, grant);
                    }
                    turn.core.hub.handle_subscribe(
                        now,
                        token,
                        session,
                        ChannelRef::new(&channel, &options),
                        subscribe,
                    );
                }
                None => {
                    let overloaded = Err(dunlin_hub::Error::Overloaded);
                    self.connect_subscribed(turn, session, channel.into(), overloaded);
                }
            }
        }
        self.answer_connect(turn, session);
        self.drain_events(turn);
        Handled::Done
    }

    /// A token that is not accepted: the client of a command is answered and may try again, any other is disconnected.
    pub(super) fn refuse_connect(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        id: Option<u32>,
        error: CommandError,
    ) {
        match (error, id) {
            (CommandError::Reply(error), Some(id)) => {
                if let Some(link) = turn.cx.data(conn) {
                    link.protocol_state.rejected();
                }
                turn.reply_error(conn, (id, "connect"), &error);
            }
            (CommandError::Reply(error), None) => {
                let code = ErrorCode::from_code(error.code).unwrap_or(ErrorCode::Internal);
                self.disconnect(turn, conn, &code.disconnect().with_reason(error.message));
            }
            (CommandError::Disconnect(disconnect), _) => self.disconnect(turn, conn, &disconnect),
        }
    }

    /// Opens a session, whose outbox is held until the connect is answered. `None`: there are too many.
    fn open_session(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        encoding: Encoding,
        accepted: &AcceptedClient,
    ) -> Option<SessionId> {
        let identity = &accepted.identity;
        let peer = turn.cx.data(conn)?.peer;
        let client = &turn.core.settings.config.client;
        let params = SessionParams {
            ping_interval_ms: client.ping_interval_ms,
            pong_timeout_ms: client.pong_timeout_ms,
            key: identity.key,
        };
        let now = turn.now();
        let params = self.sessions.heartbeat.hold(params)?;
        let owner = turn.core.owner_of(&identity.user, peer);
        let conn_info = identity.info.as_deref().map(one_line);
        let opened = match accepted.reserved {
            Some(session) => {
                turn.core.hub.identify(session, &identity.user, owner, conn_info);
                Ok(session)
            }
            None => {
                let new = NewSession {
                    tag: conn.to_u64(),
                    encoding: encoding.into(),
                    user: &identity.user,
                    owner,
                    conn_info,
                    outbox_bytes_max: turn.core.outbox_bytes_max(),
                    poll: false,
                    held: true,
                };
                turn.core.hub.open_session(now, new)
            }
        };
        let Ok(session) = opened else {
            self.sessions.heartbeat.release(params);
            return None;
        };
        turn.core.label(session, identity);
        turn.core.population_changed(&identity.user);
        if let Some(link) = turn.cx.data(conn) {
            link.set_session(Some(session), params);
            link.protocol_state.connected();
        }
        turn.authenticated(conn);
        if let Some(&mut link) = turn.cx.data(conn) {
            turn.core.client_connected(link);
        }
        turn.cx.coalesce_input(conn);
        let facts = match accepted.by_proxy {
            true => Some(TokenFacts::of_proxy(now.unix_ms / 1000, identity.expire_at_s)),
            false => turn.core.token_facts(identity),
        };
        self.sessions.heartbeat.set_token(session, facts);
        self.sessions.capabilities.set(session, &identity.capabilities);
        self.sessions.set_device(session, identity.device.as_deref());
        Some(session)
    }

    /// One of the subscriptions of a connect is made, or has failed.
    pub(super) fn connect_subscribed(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        channel: Arc<str>,
        result: Result<dunlin_hub::Subscribed, dunlin_hub::Error>,
    ) {
        if let Err(error) = &result {
            tracing::debug!(%channel, %error, "a server-side subscription failed");
            self.sessions.grants.remove(session, &channel);
            if error.is_temporary() {
                // Connected without the channel, the client would miss what is published there and not know: it comes back.
                self.connects.forget(session);
                let (why, now) = (DisconnectCode::ServerError.with_reason(error), turn.now());
                return turn.core.hub.disconnect_session(
                    now,
                    session,
                    u32::from(why.code),
                    &why.reason,
                );
            }
        }
        if let Ok(subscribed) = &result {
            turn.core.charge_recovery(&channel, &subscribed.publications);
        }
        self.connects.handle_subscribed(session, channel, result);
        self.answer_connect(turn, session);
    }

    /// Answers a connect whose subscriptions are all made.
    pub(super) fn answer_connect(&mut self, turn: &mut Turn<'_, '_>, session: SessionId) {
        let Some(connected) = self.connects.poll(session) else { return };
        let Connected { id, encoding, .. } = connected;
        let ping_interval_ms = self.sessions.params_of(turn, session).ping_interval_ms;
        let (emulation, node) = match encoding.is_emulated() {
            true => (
                session_token::issue(&turn.core.state.keys.session_token, session),
                &*turn.core.state.uid,
            ),
            false => (String::new(), ""),
        };
        let result = ConnectResult {
            client: Some(session),
            version: VERSION,
            ttl_s: self.sessions.heartbeat.ttl_s(session, turn.core.clock.now()),
            data: connected.data.as_deref(),
            subs: &connected.subscriptions(),
            ping_s: (ping_interval_ms / 1000) as u32,
            pong: encoding.is_bidirectional(),
            session: &emulation,
            node,
        };
        let encoder = &mut turn.core.encoder;
        let mut bytes = 0;
        if let (Encoding::Program, Some(id), Some(view)) =
            (encoding, id, turn.core.hub.session(session))
        {
            let (conn, mut text) = (ConnId::from_u64(view.tag), Vec::new());
            encoder.reply(encoding, id, &Reply::Connect(&result), &mut text);
            bytes = text.len();
            // A program that has passed a token on learns whose it is.
            let user = serde_json::Value::from(bare(view.user));
            text.truncate(text.len().saturating_sub(b"}}\n".len()));
            text.extend_from_slice(format!(",\"user\":{user}}}}}\n").as_bytes());
            turn.core.program_answers.push_back((conn, id, text));
        }
        turn.core.hub.release(session, |out| {
            if encoding == Encoding::Program {
                return;
            }
            let before = out.len();
            match id {
                Some(id) => encoder.reply(encoding, id, &Reply::Connect(&result), out),
                None => encoder.connect_push(encoding, &result, out),
            }
            bytes = out.len() - before;
        });
        let took = connected.began.elapsed();
        turn.core.charge_reply(session, bytes);
        let labels = ClientConnect { transport: encoding.transport() };
        turn.core.labelled().connects.of(labels).record(took.as_nanos() as u64);
        self.sessions.schedule_first_ping(turn, session);
    }

    /// Compares the subscriptions of a session with what it may have now. `renewed`: what its new token names, if it has one.
    pub(super) fn compare_grants(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        renewed: Option<&NamedChannels>,
    ) {
        let now = turn.now();
        let settings = turn.core.settings.snapshot();
        let standings = Standings {
            settings: &settings,
            forwarded: &self.sessions.forwarded,
            grants: &self.sessions.grants,
            capabilities: &self.sessions.capabilities,
            renewed,
        };
        let why = "the permission to subscribe was withdrawn";
        turn.core.hub.compare_session(now, session, why, |of| standings.rights(of));
        self.drain_events(turn);
    }

    /// Gives a session what its new token gives it, and takes what that does not name any more.
    fn renew(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        session: SessionId,
        identity: &Identity,
    ) {
        self.sessions.heartbeat.set_token(session, turn.core.token_facts(identity));
        self.sessions.capabilities.set(session, &identity.capabilities);
        self.sessions.forwarded.keep_meta(conn, identity.meta.as_deref().map(one_line));
        turn.core.hub.set_labels(session, identity.labels.clone());
        if let Some(info) = identity.info.as_deref() {
            turn.core.hub.set_conn_info(session, one_line(info));
        }
        if let Some(link) = turn.cx.data(conn)
            && let Some(params) = self.sessions.heartbeat.set_key(link.params(), identity.key)
        {
            link.set_session(Some(session), params);
        }
        let named = self.sessions.named_channels(turn.core, identity);
        self.compare_grants(turn, session, Some(&named));
        let is_made_anew = |(channel, options): (&String, &auth::SubscribeOptions)| {
            let grant = self.sessions.grants.get(session, channel);
            turn.core.hub.is_of_connection(session, channel)
                && self
                    .sessions
                    .claim(turn.core, session, channel)
                    .is_ok_and(|claim| claim.is_overridden_anew(grant, options.overrides))
        };
        if named.iter().any(is_made_anew) {
            // The client cannot subscribe to them by itself: it connects again.
            return self.disconnect(turn, conn, &DisconnectCode::InsufficientState.into());
        }
        let now = turn.now();
        for (channel, options) in &named {
            if let Some(info) = options.info.as_deref()
                && turn.core.hub.is_of_connection(session, channel)
            {
                turn.core.hub.set_chan_info(now, session, channel, one_line(info));
            }
        }
    }

    /// A new connection token.
    pub(super) fn refresh(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        session: SessionId,
        id: u32,
        token: &str,
    ) -> Handled {
        if token.is_empty() {
            // It would take its time from who came with a token, or by a backend's leave.
            let why = "refresh.token is missing";
            turn.reply_error(conn, (id, "refresh"), &ErrorCode::BadRequest.with_reason(why));
            return Handled::Done;
        }
        let user =
            turn.core.hub.session(session).map(|view| view.user.to_owned()).unwrap_or_default();
        match self.sessions.identify(turn.core, token) {
            Ok(identity) if identity.user == user => {
                self.renew(turn, conn, session, &identity);
                let ttl_s = self.sessions.heartbeat.ttl_s(session, turn.core.clock.now());
                let result = RefreshResult { client: session, version: VERSION, ttl_s };
                turn.core.reply(session, id, &Reply::Refresh(&result));
                self.sessions.schedule_ping(turn, conn);
            }
            Ok(_) => {
                let other =
                    DisconnectCode::InvalidToken.with_reason("the token is of another user");
                self.disconnect(turn, conn, &other);
            }
            Err(Unverified::Refused(CommandError::Reply(error))) => {
                turn.reply_error(conn, (id, "refresh"), &error);
            }
            Err(Unverified::Refused(CommandError::Disconnect(disconnect))) => {
                self.disconnect(turn, conn, &disconnect);
            }
            Err(Unverified::KeyPending) => return Handled::AwaitsKey,
        }
        Handled::Done
    }
}

impl Sessions {
    /// Whether a session was let in by a backend's decision.
    pub(super) fn is_by_proxy(&self, session: Option<SessionId>) -> bool {
        let facts = session.and_then(|session| self.heartbeat.token(session));
        facts.is_some_and(|facts| facts.id == TokenId::NONE)
    }

    /// Whose connection this is, by its token.
    pub(super) fn identify(&self, core: &Core<'_>, token: &str) -> Result<Identity, Unverified> {
        if token.is_empty() {
            if core.settings.config.client.anonymous {
                return Ok(Identity::default());
            }
            let why = "a connection token is required (JWT signed with client.token.hmac_secret)";
            let denied = DisconnectCode::PermissionDenied.with_reason(why);
            return Err(CommandError::Disconnect(denied).into());
        }
        let now_ms = core.clock.now().unix_ms;
        let tenant = core.settings.tenant_of_token(token);
        let verifier = tenant.map_or(&core.settings.verifier, |of| &of.verifier);
        let mut identity = verifier.verify(token, now_ms).map_err(|error| {
            Unverified::of(&error, |error| {
                CommandError::Disconnect(DisconnectCode::InvalidToken.with_reason(error))
            })
        })?;
        check_names(&identity).map_err(CommandError::Disconnect)?;
        match tenant {
            Some(tenant) if !tenant.is_open() => {
                let why = "a tenant of this name is being taken away";
                return Err(CommandError::Reply(ErrorCode::Internal.with_reason(why)).into());
            }
            Some(tenant) => tenant.adopt(&mut identity),
            None => {}
        }
        self.check_revoked(core, &identity, now_ms)?;
        Ok(identity)
    }

    /// Whether a token was barred before its bearer was counted: the agent bars first, and then looks who is counted.
    pub(super) fn check_barred(
        &self,
        core: &Core<'_>,
        identity: &Identity,
    ) -> Result<(), CommandError> {
        match core.is_in_cluster() {
            true => self.check_revoked(core, identity, core.clock.now().unix_ms),
            false => Ok(()),
        }
    }

    /// Whether a token lets its bearer in though it is valid.
    fn check_revoked(
        &self,
        core: &Core<'_>,
        identity: &Identity,
        now_ms: u64,
    ) -> Result<(), CommandError> {
        let Some(token) = &identity.token else { return Ok(()) };
        let revocations = &core.state.revocations;
        let id = revocations.id_of(token);
        let why = match revocations.refuses(id, &identity.user, token.issued_at_s, now_ms) {
            None => return Ok(()),
            Some(TokenRevoked::Revoked) => {
                DisconnectCode::InvalidToken.with_reason("the token was revoked")
            }
            Some(TokenRevoked::Barred { left_s }) => {
                DisconnectCode::ForceNoReconnect.with_reason(format_args!(
                    "this token's client was disconnected; it lets in again in {left_s} s"
                ))
            }
        };
        Err(CommandError::Disconnect(why))
    }

    /// The subscription tokens that a unidirectional client shows with the channels it asks for. On the other transports
    /// it names positions alone there, and shows its tokens when it subscribes.
    pub(super) fn verify_subscriptions(
        &self,
        core: &Core<'_>,
        user: &str,
        request: &ConnectRequest<'_>,
        encoding: Encoding,
    ) -> Result<SubscriptionTokens, Unverified> {
        if encoding.is_bidirectional() {
            return Ok(BTreeMap::new());
        }
        let shown = request.subs.iter().filter(|(_, of)| !of.token.is_empty());
        shown
            .map(|(channel, of)| {
                let mut channel = Cow::Borrowed(channel);
                core.qualify(user, &mut channel).map_err(CommandError::Reply)?;
                let verified = self.verify_subscription(core, None, user, &channel, &of.token)?;
                Ok((channel.into_owned(), verified))
            })
            .collect()
    }
}

impl Core<'_> {
    /// Gives a session its labels; most have none.
    pub(super) fn label(&mut self, session: SessionId, identity: &Identity) {
        if !identity.labels.is_empty() {
            self.hub.set_labels(session, identity.labels.clone());
        }
    }

    pub(super) fn outbox_bytes_max(&self) -> u32 {
        u32::try_from(self.settings.config.limits.outbox_bytes_max).unwrap_or(u32::MAX)
    }

    /// What is kept of a token while its session is open; `None` without a token.
    pub(super) fn token_facts(&self, identity: &Identity) -> Option<TokenFacts> {
        let token = identity.token.as_ref()?;
        let id = self.state.revocations.id_of(token);
        Some(TokenFacts::new(id, token.issued_at_s, identity.expire_at_s))
    }
}

impl Turn<'_, '_> {
    /// A session that was reserved is not needed.
    pub(super) fn give_back(&mut self, reserved: Option<SessionId>) {
        if let Some(session) = reserved {
            let now = self.now();
            self.core.hub.close_session(now, session);
        }
    }
}

/// What is kept of a device that a client names: no more than shows whether it is too long.
pub(super) fn bounded_device(device: &str) -> Box<str> {
    device[..device.floor_char_boundary(DEVICE_BYTES_MAX + 4)].into()
}

/// Checks the names that a token, a backend or the program gives, before they are a tenant's.
fn check_names(identity: &Identity) -> Result<(), Disconnect<'static>> {
    let channels = identity.subscriptions.keys().map(String::as_str);
    let jti = identity.token.as_ref().and_then(|token| token.jti.as_deref());
    match channels.chain([&*identity.user]).chain(jti).any(has_control) {
        true => Err(DisconnectCode::InvalidToken.with_reason(NO_CONTROL)),
        false => Ok(()),
    }
}

/// The subscription tokens of a connect, by their channels.
pub(super) type SubscriptionTokens = BTreeMap<String, (Subscription, GrantToken)>;

/// A client that may come in.
pub(super) struct AcceptedClient {
    pub(super) identity: Identity,
    /// The session it is to have.
    pub(super) reserved: Option<SessionId>,
    /// A backend has decided.
    pub(super) by_proxy: bool,
    /// Raw JSON for the client.
    pub(super) data: Option<Box<[u8]>>,
    /// When its command came.
    pub(super) began: Instant,
}

impl From<Identity> for AcceptedClient {
    fn from(identity: Identity) -> AcceptedClient {
        let began = Instant::now();
        AcceptedClient { identity, reserved: None, by_proxy: false, data: None, began }
    }
}

/// Raw JSON from a token, which may have been written over several lines.
pub(super) fn one_line(raw: &serde_json::value::RawValue) -> Box<[u8]> {
    dunlin_protocol::json::Json::from_raw(raw).into_bytes()
}
