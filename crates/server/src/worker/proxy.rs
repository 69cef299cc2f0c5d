//! Proxies: commands that a backend decides. Each waits as a [`ProxyCall`], and is executed with the decision.

use std::sync::Arc;
use std::time::Instant;

use dunlin_config::OnFailure;
use dunlin_hub::tenant::{MARK, bare};
use dunlin_hub::{NewSession, Owner, PayloadFormat, SessionId};
use dunlin_net::{CloseReason, ConnId, Handler as _};
use dunlin_pipeline::Client;
use dunlin_protocol::centrifuge::{
    Command, CommandError, Commands, ConnectRequest, DisconnectCode, Error, ErrorCode, Reply,
    Request, RpcRequest,
};
use dunlin_protocol::{Encoding, Format, Payload};

use super::backends::{BackendResult, BackendResults, Backends, EndedRequest};
use super::clients::Clients;
use super::connect::{AcceptedClient, one_line};
use super::deciders::Deciders;
use super::key_wait::Unverified;
use super::link::{Link, Role};
use super::parts::{ForwardedFields, ForwardedTable, ProxyCall};
use super::programs::Programs;
use super::sessions::Sessions;
use super::turn::{Core, Turn};
use crate::auth::Identity;
use crate::auth::revocation::TokenId;
use crate::namespace::meta::Meta;
use crate::proxy::{
    BackendDecision, ConnectResult, Event, ProxyError, ProxyMetric, ProxyReply, Question,
    Requester, RpcResult, payload,
};

/// The most answers handled in one turn.
const ANSWERS_PER_TURN: usize = 1_024;
/// The longest user name that a backend may return, in bytes: as long as a token.
const USER_BYTES_MAX: usize = 16 * 1024;

impl Deciders {
    /// Applies the settings of proxies. Returns what is to be forwarded of the requests of clients.
    pub(super) fn apply_proxies(&mut self, core: &Core<'_>) -> ForwardedFields {
        let config = &core.settings.config;
        let mut wanted = ForwardedFields::default();
        if self.backends.is_some() || !config.proxies.is_empty() {
            let workers = core.state.workers();
            let backends = self.backends.get_or_insert_with(|| Box::new(Backends::new(workers)));
            backends.update(core.index, config, &core.state.proxies);
            backends.decisions.clear();
            wanted = backends.wanted();
        }
        if self.has_authorizer()
            && let Some(program) = &self.program
        {
            wanted.add(&program.headers);
        }
        Programs::add_wanted(config, &mut wanted);
        wanted.meta |= core.settings.looks_at_meta;
        wanted
    }

    /// Applies the settings of the upstreams of proxies.
    pub(super) fn apply_upstreams(&mut self, core: &mut Core<'_>) {
        if let Some(backends) = &mut self.backends {
            backends.update_upstreams(&core.settings.config.webhooks.upstreams);
        }
    }

    /// Passes an event of a backend's connection to the client of the backends.
    pub(super) fn with_backends(&mut self, event: impl FnOnce(&mut Client<BackendResults>)) {
        if let Some(backends) = &mut self.backends {
            event(&mut backends.client);
        }
    }

    /// Handles a connection to a backend that was established.
    pub(super) fn backend_connected(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        if let Some(link) = turn.cx.data(conn) {
            link.role = Role::Backend;
        }
        let Some(backends) = &mut self.backends else { return };
        backends.connections += 1;
        backends.client.on_connect(turn.cx, conn);
    }

    /// Handles a connection to a backend that was closed.
    pub(super) fn backend_closed(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        link: Link,
        reason: CloseReason,
    ) {
        let Some(backends) = &mut self.backends else { return };
        backends.connections -= 1;
        backends.client.on_close(turn.cx, conn, link, reason);
    }

    /// Drops the pending calls of a client's closed connection.
    pub(super) fn proxied_closed(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        let reserved = self.proxy_calls.forget(conn);
        turn.give_back(reserved);
    }

    /// Sends the requests of this turn.
    pub(super) fn send_to_backends(&mut self, turn: &mut Turn<'_, '_>) {
        if let Some(backends) = &mut self.backends {
            backends.client.on_tick(turn.cx);
        }
    }

    /// Whether answers wait to be handled, so that the worker must not sleep.
    pub(super) fn has_answers(&mut self) -> bool {
        self.backends.as_mut().is_some_and(|of| !of.client.caller().ended.is_empty())
    }

    /// Asks a program, or a backend. Returns the call with the answer if there is one at once: that of a program, or why a backend
    /// was not asked. `None`: the call waits.
    pub(super) fn ask(
        &mut self,
        turn: &mut Turn<'_, '_>,
        sessions: &Sessions,
        mut call: ProxyCall,
        question: &Question<'_>,
    ) -> Option<(ProxyCall, BackendResult)> {
        call.span = turn.core.state.telemetry.begin().map(Box::new);
        if self.programs.has(&call.proxy) {
            return self.ask_program(turn, sessions, call, question);
        }
        let asked = self.ask_backend(turn, &sessions.forwarded, call, question);
        asked.err().map(|(call, fault)| (call, Err(fault)))
    }

    /// Asks a backend.
    ///
    /// # Errors
    /// The request is not sent and the call is not stored; the caller continues as after a malformed response.
    #[expect(clippy::result_large_err, reason = "it is looked at where it is made")]
    fn ask_backend(
        &mut self,
        turn: &mut Turn<'_, '_>,
        forwarded: &ForwardedTable,
        mut call: ProxyCall,
        question: &Question<'_>,
    ) -> Result<(), (ProxyCall, ProxyError)> {
        let bytes_max = turn.core.waiting_bytes_max();
        let (conn, event, proxy) = (call.conn, call.event, Arc::clone(&call.proxy));
        let flow = turn.flow_of(conn, Some(call.session));
        call.flow = flow;
        let Some(backends) = &mut self.backends else { return Err((call, ProxyError::Cancelled)) };
        let Some(view) = turn.core.hub.session(call.session) else {
            return Err((call, ProxyError::Cancelled));
        };
        let Some(encoding) = Encoding::of(view.encoding) else {
            return Err((call, ProxyError::Cancelled));
        };
        let passed = forwarded.get(conn);
        let meta = passed.filter(|_| backends.wants_meta(&proxy)).and_then(|of| of.meta.as_ref());
        let meta = meta.map(Meta::raw);
        let requester = Requester {
            client: call.session,
            encoding,
            user: view.user,
            meta,
            labels: turn.core.hub.labels(call.session),
            address: None,
            headers: &[],
            emulated: &[],
        };
        let body = question.body(&requester);
        if let Some(stats) = backends.stats(&proxy) {
            stats.counters.count(ProxyMetric::Calls);
        }
        let trace = call.span.as_ref().map(|span| span.header());
        let number = self.proxy_calls.next_number();
        if let Err(call) = self.proxy_calls.insert(number, call, bytes_max) {
            return Err((call, ProxyError::ShareFull));
        }
        backends.follow_health(&turn.core.state.upstreams);
        let of = (conn.to_u64(), flow, number);
        let Err(fault) =
            backends.send(turn.cx.now_ms(), &proxy, (event, &body), (passed, trace.as_deref()), of)
        else {
            return Ok(());
        };
        match self.proxy_calls.take(number) {
            Some(call) => Err((call, fault)),
            None => Ok(()),
        }
    }

    /// Logs and counts that a backend, or the program, has not decided.
    pub(super) fn report_fault(
        &mut self,
        turn: &mut Turn<'_, '_>,
        proxy: &str,
        fault: &ProxyError,
    ) {
        if self.programs.report(proxy, turn.cx.now_ms(), fault) {
            return;
        }
        match (&mut self.program, &mut self.backends) {
            (Some(program), _) if proxy.is_empty() => {
                if let Some(before) = program.log.pass(turn.cx.now_ms()) {
                    tracing::warn!(before, "the program has not decided: {fault}");
                }
            }
            (_, Some(backends)) => backends.report(turn.cx.now_ms(), proxy, fault),
            _ => {}
        }
    }

    /// Whether the rules decide if the backend, or the program, fails to.
    pub(super) fn falls_back(&self, proxy: &str) -> bool {
        if let Some(falls_back) = self.programs.falls_back(proxy) {
            return falls_back;
        }
        let backends = self.backends.as_ref();
        backends.is_some_and(|backends| backends.on_failure(proxy) == OnFailure::Rules)
    }
}

impl Clients {
    /// Executes commands with the decisions of backends.
    pub(super) fn handle_answers(&mut self, turn: &mut Turn<'_, '_>) {
        let Some(backends) = &mut self.deciders.backends else { return };
        let ended = &mut backends.client.caller().ended;
        let taken = ended.len().min(ANSWERS_PER_TURN);
        let ended: Vec<EndedRequest> = ended.drain(..taken).collect();
        let now = (turn.cx.now_ms(), turn.core.clock.now().unix_ms);
        for ended in ended {
            let number = ended.tag;
            let is_gone = self.deciders.proxy_calls.is_gone(number);
            let Some(backends) = &mut self.deciders.backends else { return };
            let answer = backends.settle(now, ended, is_gone, &turn.core.state.upstreams);
            // The call keeps waiting if another member is asked.
            let Some(answer) = answer else { continue };
            if let Some(call) = self.deciders.proxy_calls.take(number) {
                self.answered(turn, &call, answer);
            }
        }
    }

    /// Creates the call of a command that will wait.
    pub(super) fn call(
        &self,
        (conn, session, id): (ConnId, SessionId, Option<u32>),
        event: Event,
        proxy: &Arc<str>,
        channel: &str,
        frame: &[u8],
    ) -> ProxyCall {
        ProxyCall {
            conn,
            // Set when it is asked about.
            flow: 0,
            session,
            id,
            event,
            proxy: Arc::clone(proxy),
            channel: channel.into(),
            frame: frame.into(),
            began: Instant::now(),
            span: None,
            gone: false,
        }
    }

    pub(super) fn answered(
        &mut self,
        turn: &mut Turn<'_, '_>,
        call: &ProxyCall,
        answer: BackendResult,
    ) {
        let stats =
            self.deciders.backends.as_ref().and_then(|backends| backends.stats(&call.proxy));
        if let Some(stats) = stats {
            stats.durations.record(call.began.elapsed().as_nanos() as u64);
        }
        turn.core.question_ended(call, answer.as_ref().err());
        let conn = call.conn;
        if !call.gone {
            self.decide(turn, call, answer);
        }
        // Commands behind it may continue.
        self.backlogs.wake(conn, turn.cx.now_ms());
    }

    pub(super) fn decide(
        &mut self,
        turn: &mut Turn<'_, '_>,
        call: &ProxyCall,
        answer: BackendResult,
    ) {
        match call.event {
            Event::Connect => self.connect_decided(turn, call, answer),
            Event::Rpc => self.rpc_decided(turn, call, answer),
            Event::Subscribe => self.subscribe_decided(turn, call, answer, true),
            Event::Publish => self.publish_decided(turn, call, answer),
            Event::Refresh => self.refresh_decided(turn, call, answer),
            Event::SubRefresh => self.sub_refresh_decided(turn, call, answer),
        }
        self.drain_events(turn);
    }

    /// Asks the proxy to authenticate a client without a token, with its reserved session. `said` is the connect command as
    /// received.
    pub(super) fn ask_connect(
        &mut self,
        turn: &mut Turn<'_, '_>,
        (conn, session, id): (ConnId, SessionId, Option<u32>),
        request: &ConnectRequest<'_>,
        said: &[u8],
        proxy: &Arc<str>,
    ) {
        // From here on the proxy's own timeouts apply.
        turn.cx.set_deadline(conn, None);
        let call = self.call((conn, session, id), Event::Connect, proxy, "", said);
        if let Some((call, answer)) =
            self.deciders.ask(turn, &self.sessions, call, &Question::Connect(request))
        {
            self.connect_decided(turn, &call, answer);
        }
    }

    /// Reserves a session for a client that a proxy will authenticate. `None`: there is no room, and the client is disconnected.
    pub(super) fn reserve_session(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        request: &ConnectRequest<'_>,
    ) -> Option<SessionId> {
        let Some(&mut Link { role: Role::Client(encoding), .. }) = turn.cx.data(conn) else {
            return None;
        };
        let headers = request.headers.iter().map(|(name, value)| (name, &*value.0));
        self.sessions.forwarded.keep_emulated(conn, headers);
        let now = turn.now();
        // The request to the backend contains the id that the session will have.
        let reserved = NewSession {
            tag: conn.to_u64(),
            encoding: encoding.into(),
            user: "",
            owner: Owner::NONE,
            conn_info: None,
            outbox_bytes_max: turn.core.outbox_bytes_max(),
            poll: false,
            held: true,
        };
        let opened = turn.core.hub.open_session(now, reserved);
        if opened.is_err() {
            self.disconnect(turn, conn, &DisconnectCode::ConnectionLimit.into());
        }
        opened.ok()
    }

    fn connect_decided(
        &mut self,
        turn: &mut Turn<'_, '_>,
        call: &ProxyCall,
        answer: BackendResult,
    ) {
        let &ProxyCall { conn, session, id, .. } = call;
        let link = turn.cx.data(conn).filter(|link| !link.closing);
        let is_open = turn.core.hub.session(session).is_some_and(|view| !view.closing);
        let Some(encoding) = link.and_then(|link| link.encoding()).filter(|_| is_open) else {
            turn.give_back(Some(session));
            return turn.cx.close(conn);
        };
        let decided = match answer.and_then(ProxyReply::read::<ConnectResult>) {
            Ok(BackendDecision::Granted(result)) => self.accept(turn, &call.proxy, result),
            Ok(BackendDecision::Nothing) => self.sessions.accept_anonymous(turn.core),
            Ok(BackendDecision::Error(error)) => Err(CommandError::Reply(error)),
            Ok(BackendDecision::Disconnect(disconnect)) => {
                Err(CommandError::Disconnect(disconnect))
            }
            Err(fault) => {
                self.deciders.report_fault(turn, &call.proxy, &fault);
                match self.deciders.falls_back(&call.proxy) {
                    true => self.sessions.accept_anonymous(turn.core),
                    false => Err(CommandError::Reply(fault.reply())),
                }
            }
        };
        let accepted = match decided {
            Ok(accepted) => {
                AcceptedClient { reserved: Some(session), began: call.began, ..accepted }
            }
            Err(error) => return self.refuse_reserved(turn, (conn, id), session, error),
        };
        let command;
        let uni;
        let request = match id {
            Some(_) => {
                command = Commands::of(encoding.format(), &call.frame).next();
                match &command {
                    Some(Ok(Command { request: Request::Connect(request), .. })) => request,
                    // It was parsed before.
                    _ => return,
                }
            }
            None => {
                uni = ConnectRequest::parse(&call.frame).unwrap_or_default();
                &uni
            }
        };
        // A session is reserved: nothing waits for a key.
        let _ = self.connect_as(turn, conn, id, request, accepted);
    }

    /// Refuses a client for which a session was reserved.
    pub(super) fn refuse_reserved(
        &mut self,
        turn: &mut Turn<'_, '_>,
        (conn, id): (ConnId, Option<u32>),
        session: SessionId,
        error: CommandError,
    ) {
        turn.give_back(Some(session));
        turn.await_connect(conn);
        self.refuse_connect(turn, conn, id, error);
    }

    /// Returns the client's identity from a backend's answer.
    fn accept(
        &mut self,
        turn: &mut Turn<'_, '_>,
        proxy: &str,
        mut result: ConnectResult,
    ) -> Result<AcceptedClient, CommandError> {
        let judged = result.decode().and_then(|()| {
            let (subscriptions, labels) = (result.subscriptions()?, result.take_labels()?);
            match result.user.len() > USER_BYTES_MAX {
                true => Err(ProxyError::Malformed("result.user is too long".into())),
                false => Ok((subscriptions, labels)),
            }
        });
        let (subscriptions, labels) = judged.map_err(|fault| {
            self.deciders.report_fault(turn, proxy, &fault);
            CommandError::Reply(fault.reply())
        })?;
        let unknown = subscriptions.keys().find(|channel| turn.core.namespace_of(channel).is_err());
        if let Some(channel) = unknown {
            let why = format!("there is no namespace for its channel {channel:?}");
            self.deciders.report_fault(turn, proxy, &ProxyError::Malformed(why));
            return Err(CommandError::Reply(ErrorCode::UnknownChannel.into()));
        }
        let expire_at_s = (result.expire_at > 0).then_some(result.expire_at);
        let now_ms = turn.core.clock.now().unix_ms;
        if expire_at_s.is_some_and(|at_s| at_s.saturating_mul(1000) <= now_ms) {
            return Err(CommandError::Reply(ErrorCode::Expired.into()));
        }
        // A backend cannot admit a user whom an operator has blocked.
        let (id, now_s) = (TokenId::NONE, now_ms / 1000);
        if turn.core.state.revocations.refuses(id, &result.user, Some(now_s), now_ms).is_some() {
            let why = DisconnectCode::InvalidToken.with_reason("the user is blocked");
            return Err(CommandError::Disconnect(why));
        }
        let identity = Identity {
            user: result.user,
            expire_at_s,
            info: result.info,
            meta: result.meta,
            labels,
            subscriptions,
            ..Identity::default()
        };
        let data = result.data.as_deref().map(one_line);
        let began = Instant::now();
        Ok(AcceptedClient { identity, reserved: None, by_proxy: true, data, began })
    }

    /// Asks a backend to execute a remote procedure call.
    pub(super) fn rpc(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        session: SessionId,
        id: u32,
        request: &RpcRequest<'_>,
    ) -> Result<(), Error<'static>> {
        let user = turn.core.hub.session(session).map_or("", |view| view.user);
        if user.starts_with(MARK) {
            return Err(ErrorCode::NotAvailable.with_reason("no backend is asked for a tenant"));
        }
        let config = &turn.core.settings.config;
        let proxy = match config.rpc.proxy_of(&request.method) {
            Ok(Some(proxy)) => Arc::clone(proxy),
            Ok(None) => config.client.proxy.rpc.clone().ok_or_else(|| {
                ErrorCode::NotAvailable.with_reason("client.proxy.rpc is not set")
            })?,
            Err(dunlin_config::UnknownRpcNamespace) => {
                let why = "the method's namespace is not in rpc.namespaces";
                return Err(ErrorCode::MethodNotFound.with_reason(why));
            }
        };
        let call = self.call((conn, session, Some(id)), Event::Rpc, &proxy, "", b"");
        if let Some((call, answer)) =
            self.deciders.ask(turn, &self.sessions, call, &Question::Rpc(request))
        {
            self.rpc_decided(turn, &call, answer);
        }
        Ok(())
    }

    fn rpc_decided(&mut self, turn: &mut Turn<'_, '_>, call: &ProxyCall, answer: BackendResult) {
        let (conn, id) = (call.conn, call.id.unwrap_or_default());
        let Some(encoding) = turn.cx.data(conn).and_then(|link| link.encoding()) else { return };
        let decision = answer.and_then(|answered| {
            let decision = answered.read::<RpcResult>()?;
            let result = match decision {
                BackendDecision::Granted(result) => result,
                BackendDecision::Nothing => RpcResult::default(),
                BackendDecision::Error(error) => return Ok(BackendDecision::Error(error)),
                BackendDecision::Disconnect(disconnect) => {
                    return Ok(BackendDecision::Disconnect(disconnect));
                }
            };
            let data = payload(result.data.as_deref(), &result.b64data)?;
            let is_json = data.as_ref().is_none_or(|data| data.format() == PayloadFormat::Json);
            if encoding.format() == Format::Json && !is_json {
                let why = "result.b64data is no JSON, and the client speaks JSON";
                return Err(ProxyError::Malformed(why.into()));
            }
            let none = if encoding.format() == Format::Json { &b"null"[..] } else { b"" };
            Ok(BackendDecision::Granted(data.map_or_else(|| none.into(), Payload::into_bytes)))
        });
        match decision {
            Ok(BackendDecision::Granted(data)) => {
                turn.core.reply(call.session, id, &Reply::Rpc { data: &data });
            }
            Ok(BackendDecision::Nothing) => {}
            Ok(BackendDecision::Error(error)) => turn.reply_error(conn, call, &error),
            Ok(BackendDecision::Disconnect(disconnect)) => self.disconnect(turn, conn, &disconnect),
            Err(fault) => {
                self.deciders.report_fault(turn, &call.proxy, &fault);
                turn.reply_error(conn, call, &fault.reply());
            }
        }
    }
}

impl Sessions {
    /// Accepts a client without identity, if anonymous clients are allowed.
    fn accept_anonymous(&self, core: &Core<'_>) -> Result<AcceptedClient, CommandError> {
        match self.identify(core, "") {
            Ok(identity) => Ok(identity.into()),
            Err(Unverified::Refused(error)) => Err(error),
            Err(Unverified::KeyPending) => Err(CommandError::Reply(ErrorCode::Internal.into())),
        }
    }
}

impl Turn<'_, '_> {
    /// Returns whose share of queues a client uses: its user's, or its address's while it has none.
    pub(super) fn flow_of(&mut self, conn: ConnId, session: Option<SessionId>) -> u64 {
        let user = session.and_then(|of| self.core.hub.session(of)).map_or("", |view| view.user);
        if !bare(user).is_empty() {
            return self.core.state.budgets.user(user).to_u64();
        }
        let address = self.cx.data(conn).and_then(|link| self.core.peers.counted(link.peer));
        address.map_or(conn.to_u64(), |address| self.core.state.budgets.address(address).to_u64())
    }
}

impl Core<'_> {
    /// Returns this worker's share of the bound on waiting commands, in bytes.
    pub(super) fn waiting_bytes_max(&self) -> usize {
        self.settings.memory.pending_bytes_max.div_ceil(self.state.workers())
    }
}
