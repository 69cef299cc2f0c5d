//! What metrics with labels, the log and live traces hear of a worker's work: a function for each kind of event. Each counts
//! it, and asks then whether anybody listens; only here is an [`Entry`] of a client made.

use std::io;
use std::net::IpAddr;

use dunlin_hub::{SessionId, tenant};
use dunlin_net::{CloseReason, ConnId, Context, http};
use dunlin_protocol::Encoding;
use dunlin_protocol::centrifuge::{Command, Disconnect, Error};

use super::link::Link;
use super::parts::{DeadLetter, FastMap, ProxyCall};
use super::reply::PlainResponse;
use super::routes::origin_of;
use super::turn::{Core, Turn};
use crate::api::{ApiError, Request};
use crate::log::{self, Entry, Kind};
use crate::metrics::Metric;
use crate::metrics::labelled::{
    ApiCommand, ClientCommand, ClientCommandError, ClientDisconnect, ClientUnsubscribe,
    ConnectionClosed, ConnectionRefused, HttpError,
};
use crate::proxy::ProxyError;
use crate::telemetry::{BegunSpan, SpanKind};

/// The longest body of an error whose message is looked for.
const ERROR_BYTES_MAX: usize = 4_096;
/// The longest text that is kept of a request.
const TEXT_BYTES_MAX: usize = 256;

/// What a client has asked for.
#[derive(Clone, Copy, Default)]
pub(super) struct About<'a> {
    pub(super) id: u32,
    method: &'static str,
    channel: &'a str,
    /// The proxy that was asked.
    by: &'a str,
}

impl From<u32> for About<'_> {
    fn from(id: u32) -> Self {
        About { id, ..About::default() }
    }
}

impl From<(u32, &'static str)> for About<'_> {
    fn from((id, method): (u32, &'static str)) -> Self {
        About { id, method, ..About::default() }
    }
}

impl<'a> From<&'a Command<'_>> for About<'a> {
    fn from(command: &'a Command<'_>) -> Self {
        let channel = command.request.channel().unwrap_or_default();
        About { id: command.id, method: command.request.method(), channel, by: "" }
    }
}

impl<'a> From<&'a ProxyCall> for About<'a> {
    fn from(call: &'a ProxyCall) -> Self {
        let id = call.id.unwrap_or_default();
        About { id, method: call.event.name(), channel: &call.channel, by: &call.proxy }
    }
}

/// Requests that wait for their answers, while anybody listens.
#[derive(Default)]
pub(super) struct Requests(FastMap<ConnId, RequestNote>);

/// What is kept of a request until it is answered.
struct RequestNote {
    method: Box<str>,
    /// Without the query, which may have a token.
    path: Box<str>,
    origin: Box<str>,
    /// The name of the API key.
    key: Box<str>,
    listener: Box<str>,
    has_access_log: bool,
    began_ms: u64,
}

fn kept(text: &str) -> Box<str> {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].into()
}

impl Requests {
    /// Whether something is kept of the request of a connection.
    pub(super) fn contains(&self, conn: ConnId) -> bool {
        !self.0.is_empty() && self.0.contains_key(&conn)
    }

    /// Sets the name of the API key that a request has shown.
    pub(super) fn set_key(&mut self, conn: ConnId, name: Box<str>) {
        if let Some(note) = self.0.get_mut(&conn) {
            note.key = name;
        }
    }

    fn key(&self, conn: Option<ConnId>) -> &str {
        conn.and_then(|conn| self.0.get(&conn)).map_or("", |note| &note.key)
    }

    /// Forgets the request of a connection that has closed.
    pub(super) fn forget(&mut self, conn: ConnId) {
        if !self.0.is_empty() {
            self.0.remove(&conn);
        }
    }
}

impl Core<'_> {
    /// Whether the log or a live trace wants events of this kind.
    pub(super) fn is_heard(&self, kind: Kind) -> bool {
        self.state.live.is_on() || log::is_enabled(kind)
    }

    fn tell(&self, kind: Kind, entry: Entry<'_>) {
        let (name, _) = tenant::bare(entry.channel).split_once(':').unwrap_or_default();
        let named = self.settings.config.channel.namespaces.contains_key(name);
        let entry = Entry { namespace: if named { name } else { "" }, ..entry };
        log::write(kind, &entry);
        self.state.live.record(self.clock.now().unix_ms, kind, &entry);
    }

    fn entry_of(&self, link: Link) -> Entry<'_> {
        let entry = link.session().map(|session| self.entry_of_session(session));
        let mut entry = entry.unwrap_or_default();
        if let Some(encoding) = link.encoding() {
            (entry.transport, entry.protocol) = (encoding.transport(), encoding.format().name());
        }
        Entry { address: self.peers.address(link.peer), ..entry }
    }

    fn entry_of_session(&self, session: SessionId) -> Entry<'_> {
        let view = self.hub.session(session);
        let encoding = view.and_then(|view| Encoding::of(view.encoding));
        Entry {
            user: view.map_or("", |view| view.user),
            client: Some(session),
            transport: encoding.map_or("", Encoding::transport),
            protocol: encoding.map_or("", |encoding| encoding.format().name()),
            ..Entry::default()
        }
    }

    /// Counts a connection beyond a limit.
    pub(super) fn count_refused(&self, metric: Metric, limit: &'static str) {
        self.count(metric);
        self.labelled().connections_refused.of(ConnectionRefused { reason: limit }).increment();
    }

    pub(super) fn connection_refused(
        &self,
        address: Option<IpAddr>,
        (metric, limit): (Metric, &'static str),
    ) {
        self.count_refused(metric, limit);
        if self.is_heard(Kind::ConnectionRefused) {
            let entry = Entry { address, reason: limit, ..Entry::default() };
            self.tell(Kind::ConnectionRefused, entry);
        }
    }

    pub(super) fn handshake_failed(&self, link: Link, error: &io::Error) {
        if self.is_heard(Kind::HandshakeFailed) {
            let reason = &error.to_string();
            self.tell(Kind::HandshakeFailed, Entry { reason, ..self.entry_of(link) });
        }
    }

    pub(super) fn client_connected(&self, link: Link) {
        if self.is_heard(Kind::ClientConnected) {
            self.tell(Kind::ClientConnected, self.entry_of(link));
        }
    }

    fn count_disconnect(&self, code: u32, encoding: Option<Encoding>) {
        self.count(Metric::Disconnects);
        let transport = encoding.map_or("", Encoding::transport);
        self.labelled().disconnects.of(ClientDisconnect::of(code, transport)).increment();
    }

    pub(super) fn client_refused(&self, link: Link, why: &Disconnect<'_>) {
        self.count_disconnect(why.code.into(), link.encoding());
        if self.is_heard(Kind::ClientRefused) {
            let (code, reason) = (Some(u32::from(why.code)), &*why.reason);
            self.tell(Kind::ClientRefused, Entry { code, reason, ..self.entry_of(link) });
        }
    }

    /// `link`: of its connection, if that is still open.
    pub(super) fn client_disconnected(
        &self,
        (session, link): (SessionId, Option<Link>),
        (code, reason): (u32, &str),
    ) {
        let encoding = self.hub.session(session).and_then(|view| Encoding::of(view.encoding));
        self.count_disconnect(code, encoding);
        if self.is_heard(Kind::ClientDisconnected) {
            let address = link.and_then(|link| self.peers.address(link.peer));
            let entry = self.entry_of_session(session);
            let entry = Entry { code: Some(code), reason, address, ..entry };
            self.tell(Kind::ClientDisconnected, entry);
        }
    }

    pub(super) fn connection_closed(&self, link: Link, reason: CloseReason) {
        self.count(Metric::Closed);
        let labels = ConnectionClosed { reason: reason.name() };
        self.labelled().connections_closed.of(labels).increment();
        if link.session().is_some() && !link.closing && self.is_heard(Kind::ClientClosed) {
            let reason = &format!("{reason:?}");
            self.tell(Kind::ClientClosed, Entry { reason, ..self.entry_of(link) });
        }
    }

    pub(super) fn protocol_error(&self, link: Link, reason: &dyn std::fmt::Display) {
        if self.is_heard(Kind::ProtocolError) {
            let reason = &reason.to_string();
            self.tell(Kind::ProtocolError, Entry { reason, ..self.entry_of(link) });
        }
    }

    pub(super) fn command(&self, link: Link, about: About<'_>) {
        self.count(Metric::Commands);
        let transport = link.encoding().map_or("", Encoding::transport);
        let labels = ClientCommand { method: about.method, transport };
        self.labelled().commands.of(labels).increment();
        if self.is_heard(Kind::Command) {
            let About { method, channel, .. } = about;
            self.tell(Kind::Command, Entry { method, channel, ..self.entry_of(link) });
        }
    }

    fn count_command_error(&self, method: &'static str, code: u32) {
        self.count(Metric::CommandErrors);
        self.labelled().command_errors.of(ClientCommandError::of(method, code)).increment();
    }

    pub(super) fn command_refused(&self, link: Link, about: About<'_>, error: &Error<'_>) {
        self.count_command_error(about.method, error.code);
        if self.is_heard(Kind::CommandRefused) {
            self.tell(Kind::CommandRefused, refused(self.entry_of(link), about, error));
        }
    }

    pub(super) fn command_of_session_refused(
        &self,
        session: SessionId,
        about: About<'_>,
        error: &Error<'_>,
    ) {
        self.count_command_error(about.method, error.code);
        if self.is_heard(Kind::CommandRefused) {
            self.tell(Kind::CommandRefused, refused(self.entry_of_session(session), about, error));
        }
    }

    /// A message of the Pusher protocol was answered with an error.
    pub(super) fn pusher_refused(
        &self,
        session: SessionId,
        (method, channel): (&'static str, &str),
        (code, reason): (Option<u32>, &str),
    ) {
        self.count_command_error(method, code.unwrap_or_default());
        if self.is_heard(Kind::CommandRefused) {
            let entry = Entry { method, channel, code, reason, ..self.entry_of_session(session) };
            self.tell(Kind::CommandRefused, entry);
        }
    }

    /// `by`: the rule that permits it.
    pub(super) fn permitted(&self, session: SessionId, channel: &str, method: &str, by: &str) {
        if self.is_heard(Kind::Permitted) {
            let entry = Entry { channel, method, by, ..self.entry_of_session(session) };
            self.tell(Kind::Permitted, entry);
        }
    }

    pub(super) fn unsubscribed(&self, session: SessionId, channel: &str, code: u32) {
        self.labelled().unsubscribes.of(ClientUnsubscribe::of(code)).increment();
        if self.is_heard(Kind::Unsubscribed) {
            let entry = Entry { channel, code: Some(code), ..self.entry_of_session(session) };
            self.tell(Kind::Unsubscribed, entry);
        }
    }

    pub(super) fn api_command(&self, conn: Option<ConnId>, request: &Request<'_>) {
        if self.is_heard(Kind::ApiCommand) {
            let (channel, user) =
                (request.channel().unwrap_or(""), request.user_name().unwrap_or(""));
            let (method, key) = (request.method().name(), self.requests.key(conn));
            let entry = Entry { channel, user, method, key, ..Entry::default() };
            self.tell(Kind::ApiCommand, entry);
        }
    }

    pub(super) fn api_refused(&self, conn: Option<ConnId>, method: &str, error: &ApiError) {
        if self.is_heard(Kind::ApiRefused) {
            let (code, reason, key) = (Some(error.code), &*error.message, self.requests.key(conn));
            self.tell(Kind::ApiRefused, Entry { code, reason, method, key, ..Entry::default() });
        }
    }

    /// Counts a command of an API that was answered. `result`: the code of its error; 0: none.
    pub(super) fn api_answered(&self, api: &'static str, method: &'static str, result: u32) {
        self.labelled().api_commands.of(ApiCommand { api, method, result }).increment();
    }

    /// Ends the span of a question to a backend or a program.
    pub(super) fn question_ended(&self, call: &ProxyCall, fault: Option<&ProxyError>) {
        let Some(span) = &call.span else { return };
        let mut attributes = vec![
            ("dunlin.event", call.event.name().into()),
            ("dunlin.proxy", (&*call.proxy).into()),
        ];
        if !call.channel.is_empty() {
            let channel = tenant::bare(&call.channel);
            attributes.push(("messaging.destination.name", channel.into()));
        }
        if let Some(fault) = fault {
            attributes.push(("error.type", (&*fault.to_string()).into()));
        }
        self.state.telemetry.end(**span, (SpanKind::Client, "ask"), fault.is_some(), attributes);
    }

    /// Ends the span of a call.
    pub(super) fn api_call_ended(
        &self,
        span: BegunSpan,
        (api, method): (&'static str, &'static str),
        results: impl Iterator<Item = (&'static str, u32)>,
    ) {
        let (mut commands, mut result) = (0_u64, 0);
        for (_, code) in results {
            commands += 1;
            result = result.max(code);
        }
        let attributes = vec![
            ("dunlin.api", api.into()),
            ("dunlin.method", method.into()),
            ("dunlin.result", u64::from(result).into()),
            ("dunlin.commands", commands.into()),
        ];
        self.state.telemetry.end(span, (SpanKind::Server, "api"), result > 0, attributes);
    }

    pub(super) fn publication(&self, session: Option<SessionId>, channel: &str, bytes: usize) {
        if self.is_heard(Kind::Publication) {
            let entry = session.map(|session| self.entry_of_session(session)).unwrap_or_default();
            self.tell(Kind::Publication, Entry { channel, bytes: Some(bytes as u64), ..entry });
        }
    }

    /// A message that cannot be delivered was put elsewhere; `why` it was not.
    pub(super) fn dead_letter(&self, letter: &DeadLetter, why: &str) {
        let kind = if why.is_empty() { Kind::DeadLetter } else { Kind::DeadLetterFailed };
        if self.is_heard(kind) {
            let offset = letter.position.offset;
            let (deliveries, device) = (letter.deliveries, &letter.owner.device);
            let reason = match why {
                "" => format!("offset {offset}, {deliveries} deliveries to device {device:?}"),
                why => format!("offset {offset}: {why}"),
            };
            let (channel, user) = (&*letter.channel, &*letter.owner.user);
            self.tell(kind, Entry { channel, user, reason: &reason, ..Entry::default() });
        }
    }

    pub(super) fn delivered(&self, session: SessionId, bytes: usize) {
        if self.is_heard(Kind::Delivered) {
            let bytes = Some(bytes as u64);
            self.tell(Kind::Delivered, Entry { bytes, ..self.entry_of_session(session) });
        }
    }

    pub(super) fn blocked(&self, session: SessionId) {
        if self.is_heard(Kind::Blocked) {
            let bytes = self.hub.session(session).map(|view| u64::from(view.outbox_bytes));
            self.tell(Kind::Blocked, Entry { bytes, ..self.entry_of_session(session) });
        }
    }
}

impl Turn<'_, '_> {
    /// Keeps what the log needs of a request until it is answered.
    pub(super) fn note_request(&mut self, conn: ConnId, head: &http::RequestHead<'_>) {
        let core = &mut *self.core;
        let has_listener = core.settings.has_access_log;
        if !has_listener && !core.is_heard(Kind::RequestRefused) && !core.is_heard(Kind::ApiRefused)
        {
            return;
        }
        let listener = listener_of(core, self.cx, conn).unwrap_or_default();
        let has_access_log = has_listener && core.settings.ingress_of(&listener).access_log;
        let note = RequestNote {
            method: kept(head.method.as_str()),
            path: kept(head.path),
            origin: kept(origin_of(head).unwrap_or_default()),
            key: "".into(),
            listener,
            has_access_log,
            began_ms: self.cx.now_ms(),
        };
        core.requests.0.insert(conn, note);
    }

    /// Tells how a request was answered.
    pub(super) fn request_answered(&mut self, conn: ConnId, answer: &PlainResponse<'_>) {
        if answer.status >= 400 {
            self.core.count(Metric::HttpErrors);
            let labels = HttpError { status: answer.status.into() };
            self.core.labelled().http_errors.of(labels).increment();
        }
        let note = match self.core.requests.0.is_empty() {
            true => None,
            false => self.core.requests.0.remove(&conn),
        };
        let is_refused = answer.status >= 400 && self.core.is_heard(Kind::RequestRefused);
        let is_logged = note.as_ref().is_some_and(|note| note.has_access_log);
        if !is_refused && !is_logged {
            return;
        }
        let Some(&mut link) = self.cx.data(conn) else { return };
        let now_ms = self.cx.now_ms();
        let reason = if is_refused { reason_of(answer) } else { String::new() };
        let mut entry = Entry {
            status: Some(answer.status),
            reason: &reason,
            bytes: Some(answer.body.len() as u64),
            ..self.core.entry_of(link)
        };
        if let Some(note) = &note {
            entry.duration_ms = Some(now_ms.saturating_sub(note.began_ms));
            (entry.method, entry.path, entry.origin) = (&note.method, &note.path, &note.origin);
            (entry.key, entry.listener) = (&note.key, &note.listener);
        }
        if is_refused {
            self.core.tell(Kind::RequestRefused, entry);
        }
        if is_logged {
            self.core.tell(Kind::Request, entry);
        }
    }

    /// Tells that a request begins a stream or a WebSocket.
    pub(super) fn request_upgraded(&mut self, conn: ConnId, status: u16) {
        self.request_answered(conn, &PlainResponse::empty(status));
    }
}

fn refused<'a>(entry: Entry<'a>, about: About<'a>, error: &'a Error<'_>) -> Entry<'a> {
    let About { method, channel, by, .. } = about;
    let (code, reason) = (Some(error.code), &*error.message);
    Entry { code, reason, method, channel, by, ..entry }
}

fn listener_of(core: &Core<'_>, cx: &Context<Link>, conn: ConnId) -> Option<Box<str>> {
    Some(core.settings.listener_at(cx.local_addr(conn)?).into())
}

/// The message of an error's body.
fn reason_of(answer: &PlainResponse<'_>) -> String {
    let body = &answer.body[..answer.body.len().min(ERROR_BYTES_MAX)];
    let parsed = serde_json::from_slice::<serde_json::Value>(body).ok();
    let message = parsed.as_ref().and_then(|body| body["error"]["message"].as_str());
    message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned)
}
