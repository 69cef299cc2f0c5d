//! The embedding program: its authorizer is asked like a backend, and its routes and threads are served.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_hub::SessionId;
use dunlin_hub::tenant::MARK;
use dunlin_net::{ConnId, Context, Interest, http};
use dunlin_protocol::Encoding;
use dunlin_protocol::centrifuge::{ConnectRequest, Request, SubscribeRequest};

use super::Worker;
use super::api::Api;
use super::clients::Clients;
use super::deciders::Deciders;
use super::link::{Link, Role};
use super::parts::{CallForm, ForwardedTable, NewCall, ProxyCall};
use super::proxy_channels::CommandOrigin;
use super::reply::PlainResponse;
use super::routes::origin_refused;
use super::turn::Turn;
use crate::api;
use crate::auth::SubscribeOptions;
use crate::limits::budget::Work;
use crate::metrics::log_gate::LogGate;
use crate::namespace::meta::Meta;
use crate::program::{
    Authorizer, AuthorizerReply, Deferral, HttpResponse, Inbox, InboxMessage, Reply, ask,
};
use crate::proxy::{
    BackendDecision, Event, ProxyError, ProxyReply, Question, Requester, SubscribeResult,
};

/// The inbox's doorbell among the loop's foreign descriptors.
pub(super) const INBOX: u64 = 1;
/// The most messages of the program's threads handled in one turn.
const MESSAGES_PER_TURN: usize = 256;
/// The longest time for a decision.
const DECISION_TIMEOUT: Duration = Duration::from_secs(30);

/// The session in calls about a long-poll, whose session begins once its subscriptions are known.
pub(super) const NO_SESSION: SessionId = SessionId::pack(0, 0, 0, 0, 0);

/// A worker's connection to the program.
pub(super) struct ProgramLink {
    authorizer: Option<Box<dyn Authorizer>>,
    inbox: Arc<Inbox>,
    /// Header fields of connections that the authorizer reads.
    pub(super) headers: Vec<String>,
    incarnation: u32,
    /// The proxy's name in calls to the program: empty.
    name: Arc<str>,
    pub(super) log: LogGate,
}

/// The authorizer's decision about a subscription that cannot wait.
pub(super) enum ImmediateDecision {
    Rules,
    Granted(SubscribeResult),
    Denied,
}

impl Deciders {
    /// Connects this worker to the embedding program, if there is one.
    pub(super) fn begin_program(
        &mut self,
        turn: &mut Turn<'_, '_>,
        incarnation: u32,
    ) -> io::Result<()> {
        let state = Arc::clone(&turn.core.state);
        let Some(program) = state.program.get() else { return Ok(()) };
        let Some(inbox) = program.inbox(turn.core.index) else { return Ok(()) };
        turn.cx.register_fd(inbox.doorbell(), INBOX, Interest::READABLE)?;
        let authorizer = program.authorizer.as_ref().map(|make| make());
        let headers = authorizer.as_ref().map(|of| of.headers()).unwrap_or_default();
        self.program = Some(Box::new(ProgramLink {
            authorizer,
            inbox: Arc::clone(inbox),
            headers,
            incarnation,
            name: "".into(),
            log: LogGate::default(),
        }));
        Ok(())
    }

    /// Whether the program has an authorizer.
    pub(super) fn has_authorizer(&self) -> bool {
        self.program.as_ref().is_some_and(|program| program.authorizer.is_some())
    }

    fn program_name(&self) -> Arc<str> {
        self.program.as_ref().map_or_else(|| "".into(), |program| Arc::clone(&program.name))
    }

    /// Asks the authorizer about a subscription that is made at once or not at all.
    pub(super) fn consult_at_once(
        &mut self,
        turn: &mut Turn<'_, '_>,
        forwarded: &ForwardedTable,
        (conn, session, user): (ConnId, SessionId, &str),
        request: &SubscribeRequest<'_>,
    ) -> ImmediateDecision {
        if !self.has_authorizer() || turn.core.namespace_of(&request.channel).is_err() {
            return ImmediateDecision::Rules;
        }
        let encoding = match turn.cx.data(conn).map(|link| link.role) {
            Some(Role::Client(encoding)) => encoding,
            _ => Encoding::Poll,
        };
        let number = self.proxy_calls.next_number();
        let client = (conn, session, Some(encoding), user);
        match self.put(turn, forwarded, client, &Question::Subscribe(request), number) {
            AuthorizerReply::Rules => ImmediateDecision::Rules,
            AuthorizerReply::Now(decided) => match ProxyReply::Decided(decided).read() {
                Ok(BackendDecision::Granted(result)) => ImmediateDecision::Granted(result),
                _ => ImmediateDecision::Denied,
            },
            AuthorizerReply::Later => ImmediateDecision::Denied,
        }
    }

    fn put(
        &mut self,
        turn: &mut Turn<'_, '_>,
        forwarded: &ForwardedTable,
        (conn, session, encoding, user): (ConnId, SessionId, Option<Encoding>, &str),
        question: &Question<'_>,
        number: u64,
    ) -> AuthorizerReply {
        if user.starts_with(MARK) {
            // Tenants have their own tokens and rules.
            return AuthorizerReply::Rules;
        }
        let peer = turn.cx.data(conn).map(|link| link.peer);
        let Some(ProgramLink { authorizer: Some(authorizer), inbox, .. }) =
            self.program.as_deref_mut()
        else {
            return AuthorizerReply::Rules;
        };
        let passed = forwarded.get(conn);
        let requester = Requester {
            client: session,
            encoding: encoding.unwrap_or(Encoding::Poll),
            user,
            meta: passed.and_then(|passed| passed.meta.as_ref()).map(Meta::raw),
            labels: turn.core.hub.labels(session),
            address: peer.and_then(|peer| turn.core.peers.address(peer)),
            headers: passed.map_or(&[], |passed| &passed.http_headers),
            emulated: passed.map_or(&[], |passed| &passed.emulated_headers),
        };
        ask(&mut **authorizer, &requester, question, Deferral { inbox, number })
    }

    /// Serves a request for a route of the program. Returns `false` if there is no such route.
    pub(super) fn serve_route(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        request: &http::Request<'_>,
    ) -> bool {
        let state = Arc::clone(&turn.core.state);
        let (Some(program), Some(link)) = (state.program.get(), &self.program) else {
            return false;
        };
        let place = (Arc::clone(&link.inbox), link.incarnation, conn);
        match program.routes.call(request, place) {
            None => false,
            Some(Reply(response)) => {
                if let Some(response) = response {
                    turn.respond_by_route(conn, &response);
                }
                true
            }
        }
    }

    /// Returns the subscription options that an authorizer has granted.
    pub(super) fn granted_options(
        &mut self,
        turn: &mut Turn<'_, '_>,
        result: SubscribeResult,
    ) -> Option<SubscribeOptions> {
        match result.options() {
            Ok(options) => Some(options),
            Err(fault) => {
                let name = self.program_name();
                self.report_fault(turn, &name, &fault);
                None
            }
        }
    }
}

impl Clients {
    /// Asks the authorizer about a command of a client with a session. Returns `false` if the rules decide.
    pub(super) fn consult_about(
        &mut self,
        turn: &mut Turn<'_, '_>,
        (conn, session, id): CommandOrigin,
        request: &Request<'_>,
        said: &[u8],
    ) -> bool {
        let (event, question, channel, frame) = match request {
            Request::Subscribe(of) if of.token.is_empty() => {
                if turn.core.hub.has_subscription(session, &of.channel) {
                    return false;
                }
                (Event::Subscribe, Question::Subscribe(of), &*of.channel, said)
            }
            Request::Publish(of) => (Event::Publish, Question::Publish(of), &*of.channel, said),
            Request::Rpc(of) => (Event::Rpc, Question::Rpc(of), "", &b""[..]),
            _ => return false,
        };
        if event != Event::Rpc && turn.core.namespace_of(channel).is_err() {
            return false;
        }
        let name = self.deciders.program_name();
        let call = self.call((conn, session, Some(id)), event, &name, channel, frame);
        self.consult(turn, call, &question).is_none()
    }

    /// Asks the authorizer to authenticate a client. Returns `false` if the rules decide.
    pub(super) fn consult_connect(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        id: Option<u32>,
        request: &ConnectRequest<'_>,
        said: &[u8],
    ) -> bool {
        let Some(session) = self.reserve_session(turn, conn, request) else { return true };
        let name = self.deciders.program_name();
        let call = self.call((conn, session, id), Event::Connect, &name, "", said);
        let left = self.consult(turn, call, &Question::Connect(request));
        if left.is_some() {
            turn.give_back(Some(session));
        }
        left.is_none()
    }

    /// Asks the authorizer. Returns the call if the rules decide, or if there is no authorizer.
    pub(super) fn consult(
        &mut self,
        turn: &mut Turn<'_, '_>,
        mut call: ProxyCall,
        question: &Question<'_>,
    ) -> Option<ProxyCall> {
        let Some(view) = turn.core.hub.session(call.session) else { return Some(call) };
        let encoding = Encoding::of(view.encoding);
        let user = view.user.to_owned();
        let number = self.deciders.proxy_calls.next_number();
        let client = (call.conn, call.session, encoding, user.as_str());
        match self.deciders.put(turn, &self.sessions.forwarded, client, question, number) {
            AuthorizerReply::Rules => Some(call),
            AuthorizerReply::Now(decided) => {
                self.decide(turn, &call, Ok(ProxyReply::Decided(decided)));
                None
            }
            AuthorizerReply::Later => {
                if call.event == Event::Connect {
                    // From here on the decision's own timeout applies.
                    turn.cx.set_deadline(call.conn, None);
                }
                call.flow = turn.flow_of(call.conn, Some(call.session));
                let bytes_max = turn.core.waiting_bytes_max();
                if let Err(call) = self.deciders.proxy_calls.insert(number, call, bytes_max) {
                    self.decide(turn, &call, Err(ProxyError::ShareFull));
                }
                None
            }
        }
    }

    /// Fails decisions that are overdue; called once a second.
    pub(super) fn expire_decisions(&mut self, turn: &mut Turn<'_, '_>) {
        if !self.deciders.has_authorizer() {
            return;
        }
        let Some(before) = Instant::now().checked_sub(DECISION_TIMEOUT) else { return };
        for number in self.deciders.proxy_calls.of_program_before(before) {
            if let Some(call) = self.deciders.proxy_calls.take(number) {
                self.answered(turn, &call, Err(ProxyError::TimedOut));
            }
        }
    }

    /// Upgrades a request to the program's own protocol. Returns `false` if the path is another.
    pub(super) fn open_protocol(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        request: &http::Request<'_>,
    ) -> bool {
        let program = turn.core.state.program.get();
        let path = program.and_then(|program| program.protocol.as_ref()).map(|(path, _)| path);
        let codec = turn.core.encoder.codec().filter(|_| path.is_some_and(|of| of == request.path));
        let Some(codec) = codec.cloned() else {
            return false;
        };
        if !turn.core.is_same_or_allowed_origin(request) {
            turn.answer(conn, &origin_refused());
            return true;
        }
        if turn.upgrade(conn, request, codec.subprotocols()).is_none() {
            return true;
        }
        if let Some(link) = turn.cx.data(conn) {
            link.role = Role::Client(Encoding::Own);
        }
        self.sessions.keep_headers(turn.core, conn, request);
        turn.await_connect(conn);
        true
    }

    /// Handles a message of the program's own protocol.
    pub(super) fn translated_message(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        message: &[u8],
    ) {
        let Some(codec) = turn.core.encoder.codec() else { return };
        let mut commands = Vec::new();
        codec.decode(message, &mut commands);
        if !commands.is_empty() {
            return self.handle_frame(turn, conn, &commands);
        }
        self.websocket_pong(turn, conn);
        let work = Work { commands: 1, bytes: message.len() as u64, ..Work::default() };
        if let Some(ready_ms) = turn.charge_request(conn, None, work) {
            self.hold_back(turn, conn, Vec::new().into(), ready_ms);
        }
    }

    /// Handles a pong frame, or a message that has no command: a client of the program's own protocol is alive, whether a ping
    /// was sent or not.
    pub(super) fn websocket_pong(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        if let Some(link) = turn.cx.data(conn)
            && link.encoding() == Some(Encoding::Own)
            && link.protocol_state.heard()
        {
            self.sessions.pong_received(turn, conn);
        }
    }
}

impl Worker<'_> {
    /// Handles messages of the program's threads.
    pub(super) fn receive_from_program(&mut self, cx: &mut Context<Link>) {
        let Some(program) = &self.clients.deciders.program else { return };
        let incarnation = program.incarnation;
        for message in program.inbox.take(MESSAGES_PER_TURN) {
            match message {
                InboxMessage::Decided { number, decided } => {
                    let none =
                        || ProxyError::Unreachable("the program has dropped the question".into());
                    let answer = decided.map(ProxyReply::Decided).ok_or_else(none);
                    // Its client may be gone, or the decision may have timed out.
                    if let Some(call) = self.clients.deciders.proxy_calls.take(number) {
                        self.clients.answered(&mut self.core.turn(cx), &call, answer);
                    }
                }
                InboxMessage::Responded { conn, incarnation: of, response }
                    if of == incarnation =>
                {
                    self.core.turn(cx).respond_by_route(ConnId::from_u64(conn), &response);
                }
                // Its connection ended with the previous incarnation of the worker.
                InboxMessage::Responded { .. } => {}
                InboxMessage::Call { method, params, then } => {
                    let call = NewCall::without_connection(CallForm::Single, method);
                    self.api.serve_call(
                        &mut self.core.turn(cx),
                        &mut self.clients,
                        NewCall { then: Some(then), ..call },
                        method,
                        &params,
                    );
                }
            }
        }
    }
}

impl Api {
    /// Executes one command that did not come over HTTP.
    pub(super) fn serve_call(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        call: NewCall,
        method: api::Method,
        params: &[u8],
    ) {
        let call = self.api_calls.open(call);
        self.api_calls.begin_next(call);
        let parsed = api::Request::parse(method, params);
        self.execute(turn, clients, call, 0, parsed);
        self.settle(turn, clients);
        self.pause(turn, clients, call);
    }
}

impl Turn<'_, '_> {
    fn respond_by_route(&mut self, conn: ConnId, response: &HttpResponse) {
        if !self.cx.is_open(conn) {
            return;
        }
        if !response.is_valid() {
            tracing::error!(
                ?response,
                "a route of the program has answered what no response may be"
            );
            return self.answer(conn, &PlainResponse::empty(500));
        }
        let headers = response.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let answer = PlainResponse {
            status: response.status,
            content_type: "",
            headers: headers.collect(),
            body: response.body.as_slice().into(),
        };
        self.answer(conn, &answer);
    }
}
