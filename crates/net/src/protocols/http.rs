//! The HTTP/1.1 server on the loop: passes requests to the handler and writes responses.

use dunlin_wire::http1::HeaderSlots;

use super::HttpHandler;
use super::protocol::Protocol;
use crate::core::connection::{ConnId, Flags, Phase};
use crate::core::context::Context;
use crate::core::error::{CloseReason, WriteError};
use crate::http::{
    AfterResponse, Error, Framing, OutOfTurn, RequestHead, RequestId, Response, ServerConnection,
    ServerEvent, ServerState, encode_continue, encode_error,
};

/// Bytes of a head besides the status line and the caller's headers: `Date`, framing and `Connection`.
const HEAD_BYTES: usize = 128;

impl From<OutOfTurn> for WriteError {
    fn from(OutOfTurn: OutOfTurn) -> WriteError {
        WriteError::OutOfTurn
    }
}

impl<D: Default> Context<D> {
    /// Responds to a request, during `on_request` or at any later time. The connection is then kept open
    /// or closed, as the request asked.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfTurn`] if this request has been answered. [`WriteError::Full`] if the loop has reached
    /// [`buffered_bytes_max`](crate::LoopConfig::buffered_bytes_max). [`WriteError::Stale`] if the connection has
    /// ended.
    pub fn respond(
        &mut self,
        request: RequestId,
        response: &Response<'_>,
    ) -> Result<(), WriteError> {
        let (conn, mut http) = self.exchange(request)?;
        http.expect_answer()?;
        self.write_dated(conn, response, |out, date| _ = http.respond(out, response, date))?;
        self.answered(conn, &http);
        Ok(())
    }

    /// Like [`Context::respond`], but closes the connection after the response, even if the request asked to keep it
    /// open.
    ///
    /// # Errors
    ///
    /// Those of [`Context::respond`].
    pub fn respond_and_close(
        &mut self,
        request: RequestId,
        response: &Response<'_>,
    ) -> Result<(), WriteError> {
        let (conn, mut http) = self.exchange(request)?;
        http.expect_answer()?;
        http.close_after_response();
        self.set_http(conn, &http);
        self.respond(request, response)
    }

    /// Sends a response head and makes the body a stream. The body of `head` is sent first; the caller then writes
    /// the rest, including its framing, with [`Context::write`] or [`Context::try_write_slices`], as on a raw
    /// connection. Further input of the client is discarded; its FIN ends the connection. Call [`Context::close`] to
    /// end the stream.
    ///
    /// # Errors
    ///
    /// Those of [`Context::respond`]; also [`WriteError::OutOfTurn`] if `framing` is chunked and the request was
    /// HTTP/1.0.
    pub fn start_stream(
        &mut self,
        request: RequestId,
        head: &Response<'_>,
        framing: Framing,
    ) -> Result<(), WriteError> {
        let (conn, mut http) = self.exchange(request)?;
        http.expect_answer()?;
        let mut started = Err(OutOfTurn);
        self.write_dated(conn, head, |out, date| {
            started = http.start_stream(out, head, framing, date);
        })?;
        if started? == AfterResponse::Close {
            self.begin_drain(conn);
            return Ok(());
        }
        let record = self.slab.at_mut(conn.index());
        record.protocol = Protocol::Stream;
        // Pipelined requests after a stream never get a response.
        if let Some(spill) = &mut record.spill {
            self.stats.buffered_bytes -= spill.input.len();
            spill.input.clear();
        }
        if record.flags.has(Flags::READ_READY) {
            self.queue_read(conn);
        }
        self.write_with(conn, head.body.len(), |out| out.extend_from_slice(head.body))
    }

    /// Sends a response head whose body follows in pieces. Write the pieces with [`Context::write_chunk`] and call
    /// [`Context::end_chunks`]; the connection then serves the next request. The body of `head` is the first piece.
    ///
    /// # Errors
    ///
    /// Those of [`Context::respond`].
    pub fn start_chunked(
        &mut self,
        request: RequestId,
        head: &Response<'_>,
    ) -> Result<(), WriteError> {
        let (conn, mut http) = self.exchange(request)?;
        http.expect_answer()?;
        self.write_dated(conn, head, |out, date| _ = http.start_chunked(out, head, date))?;
        self.set_http(conn, &http);
        self.write_chunk(request, head.body)
    }

    /// Sends the next piece of a response begun with [`Context::start_chunked`]. An empty piece is ignored.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfTurn`] if no chunked response has begun, [`WriteError::Full`], [`WriteError::Stale`].
    pub fn write_chunk(&mut self, request: RequestId, bytes: &[u8]) -> Result<(), WriteError> {
        let (conn, http) = self.exchange(request)?;
        http.expect_chunk()?;
        if !http.takes_chunk(bytes) {
            return Ok(());
        }
        self.write_with(conn, bytes.len() + 16, |out| _ = http.write_chunk(out, bytes))
    }

    /// Ends a response begun with [`Context::start_chunked`].
    ///
    /// # Errors
    ///
    /// Those of [`Context::write_chunk`].
    pub fn end_chunks(&mut self, request: RequestId) -> Result<(), WriteError> {
        let (conn, mut http) = self.exchange(request)?;
        http.expect_chunk()?;
        if http.frames_chunks() {
            self.write_with(conn, 8, |out| _ = http.end_chunks(out))?;
        } else {
            http.handle_answered();
        }
        self.answered(conn, &http);
        Ok(())
    }

    /// Returns the request of this connection that has been emitted and whose response is not complete. For events of
    /// the connection, such as its deadline; whoever answers later keeps the id that `on_request` had.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfTurn`] if no request is outstanding, [`WriteError::Stale`] if the connection has ended.
    pub fn outstanding(&self, conn: ConnId) -> Result<RequestId, WriteError> {
        let http = self.http(conn)?;
        let due = http.is_awaiting_response().then(|| RequestId::new(conn, http.state().number()));
        due.ok_or(WriteError::OutOfTurn)
    }

    /// Returns the connection of a request and its state, if the request is the latest of its connection.
    pub(super) fn exchange(
        &self,
        request: RequestId,
    ) -> Result<(ConnId, ServerConnection), WriteError> {
        let http = self.http(request.conn())?;
        let latest = http.state().number() == request.number();
        if latest { Ok((request.conn(), http)) } else { Err(WriteError::OutOfTurn) }
    }

    /// Returns the state of an open HTTP connection, without a partial request.
    pub(super) fn http(&self, conn: ConnId) -> Result<ServerConnection, WriteError> {
        let record = self.slab.get(conn).ok_or(WriteError::Stale)?;
        match (record.phase, record.protocol) {
            (Phase::Open, Protocol::Http(state)) => Ok(ServerConnection::resume(state, None)),
            (Phase::Open, _) => Err(WriteError::OutOfTurn),
            _ => Err(WriteError::Stale),
        }
    }

    fn set_http(&mut self, conn: ConnId, http: &ServerConnection) {
        self.slab.at_mut(conn.index()).protocol = Protocol::Http(http.state());
    }

    fn write_dated(
        &mut self,
        conn: ConnId,
        response: &Response<'_>,
        write: impl FnOnce(&mut Vec<u8>, &str),
    ) -> Result<(), WriteError> {
        let mut date = std::mem::take(&mut self.upper.date);
        let text = date.get(self.now_ms());
        let bytes = HEAD_BYTES + response.body.len();
        // Reading stops while responses are buffered, so at most one turn's responses precede this one.
        let result = self.write_within(conn, bytes, usize::MAX, |out| write(out, text));
        self.upper.date = date;
        result
    }

    /// Handles the end of the response to the outstanding request.
    pub(super) fn answered(&mut self, conn: ConnId, http: &ServerConnection) {
        let record = self.slab.at_mut(conn.index());
        if record.phase != Phase::Open {
            return;
        }
        record.protocol = Protocol::Http(http.state());
        if !http.keeps_alive() {
            record.flags.set(Flags::CLOSE_AT_ONCE);
            return self.begin_drain(conn);
        }
        self.queue_resume(conn);
        let profile = self.slab.at(conn.index()).profile;
        let keep_alive_timeout_ms = self.limits(profile).keep_alive_timeout_ms;
        self.schedule_own(conn, keep_alive_timeout_ms);
    }

    /// Emits the requests in `bytes` until one gets no immediate response. Returns the number of bytes consumed.
    pub(super) fn http_input<H: HttpHandler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        bytes: &[u8],
        carried: usize,
    ) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let Some(record) = self.slab.get_mut(conn) else { return bytes.len() };
            if record.phase != Phase::Open {
                return bytes.len();
            }
            let Protocol::Http(state) = record.protocol else { return at };
            if record.holds_input() {
                return at;
            }
            let partial = record.spill.as_mut().and_then(|spill| spill.upper.request.take());
            let mut http = ServerConnection::resume(state, partial);
            let before = http.buffered_bytes();
            let limits = &self.profiles[record.profile as usize].limits.http;
            let seen = carried.saturating_sub(at);
            let (mut gathered, mut slots) = (None, HeaderSlots::new());
            let event = http.handle_input(&bytes[at..], seen, &mut gathered, &mut slots, limits);
            self.stats.buffered_bytes += http.buffered_bytes();
            self.stats.buffered_bytes -= before;
            let (state, partial) = http.suspend();
            record.protocol = Protocol::Http(state);
            let is_partial = partial.is_some();
            if is_partial {
                record.spill.get_or_insert_with(|| self.pool.borrow()).upper.request = partial;
            }
            match event {
                Ok((consumed, ServerEvent::Request(request))) => {
                    at += consumed;
                    self.stats.requests += 1;
                    // The handler decides how long a response may take.
                    self.schedule_own(conn, None);
                    handler.on_request(self, RequestId::new(conn, state.number()), &request);
                }
                Ok((consumed, ServerEvent::Head { head, expects_continue })) => {
                    at += consumed;
                    if !self.takes_body(handler, conn, &head, state) {
                        return bytes.len();
                    }
                    let body_timeout_ms =
                        self.limits(self.slab.at(conn.index()).profile).body_timeout_ms;
                    self.schedule_own(conn, body_timeout_ms);
                    if expects_continue {
                        // This fails only if the buffer is full or the connection is broken; both are detected later.
                        let _ = self.write_with(conn, 32, encode_continue);
                    }
                }
                Ok((consumed, ServerEvent::NeedMore { begun })) => {
                    at += consumed;
                    if is_partial && self.stats.buffered_bytes > self.config.buffered_bytes_max {
                        self.finish(conn, CloseReason::OutOfMemory);
                        return bytes.len();
                    }
                    if begun {
                        let profile = self.slab.at(conn.index()).profile;
                        let head_timeout_ms = self.limits(profile).head_timeout_ms;
                        self.schedule_own(conn, head_timeout_ms);
                    }
                    return at;
                }
                Err(error) => {
                    self.http_error(handler, conn, error);
                    return bytes.len();
                }
            }
        }
        at
    }

    /// Asks the handler whether to read the body of a request, and how much of it. Returns `false` if the connection
    /// is ending.
    fn takes_body<H: HttpHandler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        head: &RequestHead<'_>,
        state: ServerState,
    ) -> bool {
        // The handler may respond before the body has arrived; the body is then not read.
        let refused = state.next_refused(head);
        self.slab.at_mut(conn.index()).protocol = Protocol::Http(refused);
        let bytes_max = handler.on_request_head(self, RequestId::new(conn, refused.number()), head);
        let Some(record) = self.slab.get_mut(conn) else { return false };
        let Some(bytes_max) = bytes_max else {
            // Read the rest of the peer's input: unread input would reset the connection and lose the end of the
            // response.
            record.flags.set(Flags::READ_READY);
            self.begin_drain(conn);
            return false;
        };
        if record.phase != Phase::Open {
            return false;
        }
        record.protocol = Protocol::Http(state);
        let request = record.spill.as_mut().and_then(|spill| spill.upper.request.as_mut());
        match request.map(|request| request.restrict(bytes_max)) {
            Some(Err(error)) => {
                self.http_error(handler, conn, error);
                false
            }
            _ => true,
        }
    }

    /// Handles a request that did not arrive completely in time.
    pub(super) fn http_timeout<H: HttpHandler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        let begun = record
            .spill
            .as_ref()
            .is_some_and(|spill| !spill.input.is_empty() || spill.upper.request.is_some());
        if begun {
            record.end = crate::core::connection::End::TimedOut;
            self.http_error(handler, conn, Error::Timeout);
        } else {
            self.finish(conn, CloseReason::TimedOut);
        }
    }

    /// Handles a protocol violation: the handler decides on the response.
    fn http_error<H: HttpHandler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        error: Error,
    ) {
        // Later bytes cannot be trusted to begin a message: stop reading.
        self.distrust(conn);
        handler.on_http_error(self, conn, error);
    }

    /// Responds with the status of the error and closes the connection: the default of [`HttpHandler::on_http_error`].
    pub fn answer_http_error(&mut self, conn: ConnId, error: Error) {
        self.respond_to_http_error(
            conn,
            &Response {
                status: error.status(),
                headers: &[("Content-Type", "text/plain; charset=utf-8")],
                body: error.message().as_bytes(),
            },
        );
    }

    /// Responds to an HTTP protocol error of the peer with a custom response, and closes the connection. The status
    /// should be that of the error. No response is sent if the connection is not HTTP or is already closing.
    pub fn respond_to_http_error(&mut self, conn: ConnId, response: &Response<'_>) {
        if self.http(conn).is_ok() {
            // If the buffer is full, the peer does not read.
            let _ = self.write_dated(conn, response, |out, date| encode_error(out, response, date));
        }
        self.begin_drain(conn);
    }
}
