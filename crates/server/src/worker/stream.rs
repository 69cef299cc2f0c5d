//! Lasting transports: WebSocket, server-sent events, HTTP streams, and the emulation endpoint for clients of the latter two.

use dunlin_hub::SessionId;
use dunlin_net::{ConnId, http, websocket};
use dunlin_protocol::centrifuge::{Commands, ConnectRequest, DisconnectCode};
use dunlin_protocol::emulation::{EmulationRequest, EmulationStatus};
use dunlin_protocol::stream::{
    SUBPROTOCOLS, StreamError, StreamTransport, body_format, headers, query_format,
    websocket_format,
};
use dunlin_protocol::{Encoding, Format};
use dunlin_wire::websocket::deflate::{DeflateConfig, Deflater, Direction, WINDOW_BITS_MAX};
use dunlin_wire::websocket::handshake::{self, ServerConfig};
use dunlin_wire::websocket::{Opcode, encode_close, encode_frame};

use super::clients::Clients;
use super::command_timer::CommandTimer;
use super::key_wait::Handled;
use super::link::Role;
use super::reply::{PlainResponse, permission};
use super::routes::{method_refused, preflight};
use super::turn::Turn;
use crate::auth::session_token;
use crate::limits::budget::Work;
use crate::message::worker::WorkerMessage;
use crate::metrics::Metric;

/// Low, because compression costs CPU; each message is compressed once for all its receivers.
const DEFLATE_LEVEL: u32 = 1;

/// Returns the deflater that compresses a broadcast once for all receivers: no context takeover, the full window.
pub(super) fn broadcast_deflater() -> Deflater {
    let direction = Direction { window_bits: WINDOW_BITS_MAX, context_takeover: false };
    Deflater::new(DEFLATE_LEVEL, direction)
}

/// A connection that was upgraded to WebSocket.
pub(super) struct UpgradedConnection {
    /// The subprotocol.
    protocol: Option<&'static str>,
    /// The client accepts messages that are compressed once for all.
    pub(super) compressed: bool,
}

impl Clients {
    /// Upgrades a request to WebSocket, and begins the client's connection.
    pub(super) fn open_websocket(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        request: &http::Request<'_>,
        unidirectional: bool,
    ) {
        let query = request.query.unwrap_or("");
        if unidirectional && query_format(query) == Format::Protobuf {
            return turn.answer(conn, &PlainResponse::error(400, StreamError::Protobuf));
        }
        let protocols = if unidirectional { &SUBPROTOCOLS[..1] } else { SUBPROTOCOLS };
        let Some(upgraded) = turn.upgrade(conn, request, protocols) else { return };
        let encoding = if unidirectional {
            Encoding::uni_websocket(upgraded.compressed)
        } else {
            let format = websocket_format(upgraded.protocol, query);
            Encoding::websocket(format, upgraded.compressed)
        };
        if let Some(link) = turn.cx.data(conn) {
            link.role = Role::Client(encoding);
        }
        self.sessions.keep_headers(turn.core, conn, request);
        turn.await_connect(conn);
        if unidirectional
            && let Ok(Some(said)) =
                StreamTransport::UniWebSocket.initial_commands("GET", query, b"")
        {
            self.connect_said(turn, conn, &said);
        }
    }

    /// Opens an HTTP stream, with the connect command in the request.
    pub(super) fn open_stream(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        request: &http::Request<'_>,
        stream: StreamTransport,
    ) {
        if let Some(answer) = preflight(request, stream.methods()) {
            return turn.answer_to(conn, turn.core.reader_of(request), answer);
        }
        let content_type = request.headers.get_str("Content-Type").unwrap_or("");
        let query = request.query.unwrap_or("");
        let format = match stream.format(content_type, query) {
            Ok(format) => format,
            Err(refused) => {
                return turn.answer(conn, &PlainResponse::error(refused.status(), refused));
            }
        };
        let said = match stream.initial_commands(request.method.as_str(), query, request.body) {
            Ok(said) => said.unwrap_or_default(),
            Err(refused) => {
                let answer = PlainResponse::error(refused.status(), refused);
                let answer = match refused.status() {
                    405 => answer.header("Allow", stream.methods()),
                    _ => answer,
                };
                return turn.answer_to(conn, turn.core.reader_of(request), answer);
            }
        };
        let chunked = request.version != http::Version::Http10;
        let encoding = stream.encoding(format, chunked);
        let permission = permission(turn.core.reader_of(request));
        let mut fields: Vec<(&str, &str)> = headers(encoding).to_vec();
        fields.extend(permission.iter().map(|(name, value)| (*name, value.as_str())));
        let head = http::Response { status: 200, headers: &fields, body: b"" };
        let framing = if chunked { http::Framing::Chunked } else { http::Framing::UntilClose };
        if turn
            .cx
            .outstanding(conn)
            .and_then(|id| turn.cx.start_stream(id, &head, framing))
            .is_err()
        {
            return turn.cx.abort(conn);
        }
        turn.request_upgraded(conn, 200);
        if let Some(link) = turn.cx.data(conn) {
            link.role = Role::Client(encoding);
        }
        self.sessions.keep_headers(turn.core, conn, request);
        turn.await_connect(conn);
        if encoding.is_bidirectional() {
            self.handle_frame(turn, conn, &said);
        } else {
            self.connect_said(turn, conn, &said);
        }
    }

    /// Handles the connect request of a unidirectional transport.
    pub(super) fn connect_said(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, said: &[u8]) {
        match ConnectRequest::parse(said) {
            Ok(connect) => {
                if let Some(&mut link) = turn.cx.data(conn) {
                    turn.core.command(link, (0, "connect").into());
                }
                let mut timer = CommandTimer::start(&turn.core.state);
                if self.connect(turn, conn, None, &connect, said) == Handled::AwaitsKey {
                    if let Some(ready_ms) = self.await_key(turn, conn, said) {
                        self.hold_back(turn, conn, said.to_vec().into(), ready_ms);
                    }
                    return;
                }
                // No further command follows that could be delayed; the wait applies to the next connect.
                let (bytes, spent_ns) = (said.len() as u64, timer.lap());
                let work = Work { commands: 1, bytes, spent_ns, ..Work::default() };
                let _ = turn.charge_request(conn, None, work);
            }
            Err(malformed) => {
                turn.core.count(Metric::ProtocolErrors);
                self.disconnect(turn, conn, &DisconnectCode::BadRequest.with_reason(malformed));
            }
        }
    }

    /// Handles a WebSocket message.
    pub(super) fn websocket_message(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        message: &websocket::Message<'_>,
    ) {
        let Some(&mut link) = turn.cx.data(conn) else { return };
        let Some(encoding) = link.encoding() else { return };
        if encoding == Encoding::Program {
            return self.program_message(turn, conn, message);
        }
        if encoding == Encoding::Own {
            return self.translated_message(turn, conn, message.payload);
        }
        if encoding.is_bidirectional() {
            return self.handle_frame(turn, conn, message.payload);
        }
        let waits = self.backlogs.contains(conn) || self.deciders.proxy_calls.is_connecting(conn);
        if link.session().is_none() && !link.closing && !waits {
            return self.connect_said(turn, conn, message.payload);
        }
        // After its connect, a unidirectional client may only send `{}`, its pong.
        if Commands::of(encoding.format(), message.payload).any(|command| {
            !matches!(command, Ok(command) if command.request == dunlin_protocol::centrifuge::Request::Pong)
        }) {
            turn.core.count(Metric::ProtocolErrors);
            let why = "a unidirectional connection takes no commands; use /connection/websocket";
            self.disconnect(turn, conn, &DisconnectCode::BadRequest.with_reason(why));
        }
    }

    /// Handles a client's ping frame. The pong goes through the outbox, so that it does not split a message.
    pub(super) fn websocket_ping(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, payload: &[u8]) {
        let Some(&mut link) = turn.cx.data(conn) else { return };
        match link.session().filter(|_| link.encoding() != Some(Encoding::Program)) {
            Some(session) => {
                turn.core.hub.push(session, |out| encode_frame(out, Opcode::Pong, payload));
            }
            None => {
                let _ = turn.cx.ws_pong(conn, payload);
            }
        }
    }

    /// Handles a client's close frame. It is answered unless the answer would split a message.
    pub(super) fn websocket_closed(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, code: u16) {
        let Some(&mut link) = turn.cx.data(conn) else { return };
        if link.encoding() != Some(Encoding::Program)
            && link.session().is_some_and(|session| turn.core.hub.outbox_bytes(session) > 0)
        {
            return turn.cx.close(conn);
        }
        turn.cx.answer_close_frame(conn, code);
    }

    /// Handles malformed WebSocket input.
    pub(super) fn websocket_error(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        error: &websocket::ProtocolError,
    ) {
        turn.core.count(Metric::ProtocolErrors);
        let Some(&mut link) = turn.cx.data(conn) else { return };
        turn.core.protocol_error(link, error);
        let session = link.session().filter(|_| link.encoding() != Some(Encoding::Program));
        let (Some(session), websocket::ProtocolError::Frame(frame)) = (session, error) else {
            return turn.cx.answer_websocket_error(conn, error);
        };
        // The close frame is sent after the outbox, where it does not split a message.
        let (code, reason) = (frame.close_code(), frame.to_string());
        turn.core.hub.push(session, |out| {
            encode_close(out, code, &reason);
        });
        if let Some(link) = turn.cx.data(conn) {
            link.closing = true;
        }
        self.flush_session(turn, session, conn);
    }

    /// `POST /emulation`: commands of a session whose stream may be another worker's.
    pub(super) fn emulation(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        request: &http::Request<'_>,
    ) {
        if let Some(answer) = preflight(request, "POST, OPTIONS") {
            return turn.answer_to(conn, turn.core.reader_of(request), answer);
        }
        if request.method != http::Method::Post {
            return turn.answer(conn, &method_refused("POST, OPTIONS"));
        }
        let format = body_format(request.headers.get_str("Content-Type").unwrap_or(""));
        let answer = match EmulationRequest::parse(format, request.body) {
            Err(malformed) => {
                turn.core.count(Metric::ProtocolErrors);
                PlainResponse::error(EmulationStatus::Malformed.code(), malformed)
            }
            Ok(emulated) => match self.route_emulation(turn, &emulated) {
                EmulationStatus::Taken => {
                    turn.authenticated(conn);
                    PlainResponse::empty(EmulationStatus::Taken.code())
                }
                status => PlainResponse::error(status.code(), "no such session; connect again"),
            },
        };
        turn.answer_to(conn, turn.core.reader_of(request), answer);
    }

    fn route_emulation(
        &mut self,
        turn: &mut Turn<'_, '_>,
        emulated: &EmulationRequest<'_>,
    ) -> EmulationStatus {
        let Some(session) =
            session_token::verify(&turn.core.state.keys.session_token, &emulated.session)
        else {
            return EmulationStatus::NoSession;
        };
        let owner = usize::from(session.worker());
        if owner == turn.core.index {
            if turn.core.hub.session(session).is_none() {
                return EmulationStatus::NoSession;
            }
            self.emulate(turn, session, &emulated.data);
            return EmulationStatus::Taken;
        }
        let frame = (&*emulated.data).into();
        if owner < turn.core.state.counters.len()
            && let to = turn.core.state.bus.worker(owner)
            && turn.core.endpoint.send(to, WorkerMessage::Emulation { session, frame }).is_ok()
        {
            return EmulationStatus::Taken;
        }
        turn.core.count(Metric::BusRefused);
        EmulationStatus::NoSession
    }

    /// Executes commands for a session of this worker.
    pub(super) fn emulate(&mut self, turn: &mut Turn<'_, '_>, session: SessionId, frame: &[u8]) {
        let Some(view) = turn.core.hub.session(session) else { return };
        let conn = ConnId::from_u64(view.tag);
        if turn.cx.data(conn).and_then(|link| link.session()) == Some(session) {
            self.handle_frame(turn, conn, frame);
        }
    }
}

impl Turn<'_, '_> {
    /// Upgrades a connection to WebSocket, with one of these subprotocols if the client offers one. `None`: the request is
    /// already answered.
    pub(super) fn upgrade(
        &mut self,
        conn: ConnId,
        request: &http::Request<'_>,
        protocols: &'static [&'static str],
    ) -> Option<UpgradedConnection> {
        let limits = &self.core.settings.config.limits;
        let deflate = self.core.settings.config.client.compression.then(DeflateConfig::default);
        let config = websocket::WebSocketConfig {
            limits: websocket::Limits {
                frame_bytes_max: limits.frame_bytes_max,
                message_bytes_max: limits.message_bytes_max,
            },
            deflate,
            protocols,
            ..websocket::WebSocketConfig::default()
        };
        let server = ServerConfig { protocols: config.protocols, deflate: config.deflate };
        // Frames are compressed once for all receivers. A client that asked for a smaller window cannot read them, and receives
        // uncompressed frames.
        let accepted = handshake::accept(&request.head, &server).ok();
        let compressed =
            accepted.as_ref().and_then(|accepted| accepted.deflate()).is_some_and(|params| {
                params.outgoing(dunlin_wire::websocket::Role::Server).window_bits == WINDOW_BITS_MAX
            });
        let chosen = accepted.and_then(|accepted| accepted.protocol);
        let protocol = chosen.and_then(|chosen| protocols.iter().copied().find(|of| *of == chosen));
        let id = self.cx.outstanding(conn).ok()?;
        if self.cx.upgrade_websocket(id, request, &config).is_err() {
            self.request_upgraded(conn, 400);
            return None;
        }
        self.request_upgraded(conn, 101);
        Some(UpgradedConnection { protocol, compressed })
    }

    /// Handles malformed HTTP input.
    pub(super) fn http_error(&mut self, conn: ConnId, error: http::Error) {
        self.core.count(Metric::ProtocolErrors);
        if self.cx.data(conn).is_some() {
            self.request_answered(conn, &PlainResponse::error(error.status(), error));
            self.cx.answer_http_error(conn, error);
        }
    }
}
