//! HTTP/1.1 served on the loop: requests to the handler, answers to the socket.

use dunlin_wire::http1::HeaderSlots;

use crate::core::connection::{ConnId, Flags, Phase, Protocol};
use crate::core::context::Context;
use crate::core::error::{CloseReason, WriteError};
use crate::core::handler::{Handler, ProtocolError};
use crate::http::{
    AfterResponse, Error, Framing, OutOfTurn, RequestHead, Response, ServerConnection, ServerEvent,
    ServerState, encode_continue, encode_error,
};

/// Bytes of a head beyond status line and the caller's headers: enough for `Date`, framing and connection.
const HEAD_BYTES: usize = 128;

impl From<OutOfTurn> for WriteError {
    fn from(OutOfTurn: OutOfTurn) -> WriteError {
        WriteError::OutOfTurn
    }
}

impl<D: Default> Context<D> {
    /// Answers the request outstanding, now or long after `on_request`. The connection is kept or closed as
    /// the request asked.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfTurn`] when no request is outstanding, [`WriteError::Full`] when
    /// [`buffered_bytes_max`](crate::LoopConfig::buffered_bytes_max) of the loop is reached,
    /// [`WriteError::Stale`].
    pub fn respond(&mut self, conn: ConnId, response: &Response<'_>) -> Result<(), WriteError> {
        let mut http = self.http(conn)?;
        http.expect_answer()?;
        self.write_dated(conn, response, |out, date| _ = http.respond(out, response, date))?;
        self.answered(conn, &http);
        Ok(())
    }

    /// As [`Context::respond`], and closes the connection behind the answer, whatever the request asked.
    ///
    /// # Errors
    ///
    /// As [`Context::respond`].
    pub fn respond_and_close(
        &mut self,
        conn: ConnId,
        response: &Response<'_>,
    ) -> Result<(), WriteError> {
        let mut http = self.http(conn)?;
        http.expect_answer()?;
        http.close_after_response();
        self.set_http(conn, &http);
        self.respond(conn, response)
    }

    /// Answers with a head, and its body as the first bytes of a stream that the caller writes from now on,
    /// framing included, by [`Context::write`] or [`Context::try_write_slices`] as on a raw connection. What
    /// the client still sends is dropped, its FIN ends the connection. The stream ends with
    /// [`Context::close`].
    ///
    /// # Errors
    ///
    /// As [`Context::respond`]; [`WriteError::OutOfTurn`] also when an HTTP/1.0 client was to get chunks.
    pub fn start_stream(
        &mut self,
        conn: ConnId,
        head: &Response<'_>,
        framing: Framing,
    ) -> Result<(), WriteError> {
        let mut http = self.http(conn)?;
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
        // Pipelined requests behind a stream will never be answered.
        if let Some(spill) = &mut record.spill {
            self.stats.buffered_bytes -= spill.input.len();
            spill.input.clear();
        }
        if record.flags.has(Flags::READ_READY) {
            self.queue_read(conn);
        }
        self.write_with(conn, head.body.len(), |out| out.extend_from_slice(head.body))
    }

    /// Begins an answer whose body follows in pieces, by [`Context::write_chunk`], and ends with
    /// [`Context::end_chunks`]; then the connection serves the next request. The body of `head` is the first
    /// piece.
    ///
    /// # Errors
    ///
    /// As [`Context::respond`].
    pub fn start_chunked(&mut self, conn: ConnId, head: &Response<'_>) -> Result<(), WriteError> {
        let mut http = self.http(conn)?;
        http.expect_answer()?;
        self.write_dated(conn, head, |out, date| _ = http.start_chunked(out, head, date))?;
        self.set_http(conn, &http);
        self.write_chunk(conn, head.body)
    }

    /// Sends the next piece of an answer begun with [`Context::start_chunked`]; an empty one is no piece.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfTurn`] when none has begun, [`WriteError::Full`], [`WriteError::Stale`].
    pub fn write_chunk(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), WriteError> {
        let http = self.http(conn)?;
        http.expect_chunk()?;
        if !http.takes_chunk(bytes) {
            return Ok(());
        }
        self.write_with(conn, bytes.len() + 16, |out| _ = http.write_chunk(out, bytes))
    }

    /// Ends an answer begun with [`Context::start_chunked`].
    ///
    /// # Errors
    ///
    /// As [`Context::write_chunk`].
    pub fn end_chunks(&mut self, conn: ConnId) -> Result<(), WriteError> {
        let mut http = self.http(conn)?;
        http.expect_chunk()?;
        if http.frames_chunks() {
            self.write_with(conn, 8, |out| _ = http.end_chunks(out))?;
        } else {
            http.handle_answered();
        }
        self.answered(conn, &http);
        Ok(())
    }

    /// True while a request of this connection has been handed out and its answer is not complete.
    pub fn is_awaiting_response(&self, conn: ConnId) -> bool {
        self.http(conn).is_ok_and(|http| http.is_awaiting_response())
    }

    /// The machine of an open connection that speaks HTTP, without the request it may be receiving.
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
        let mut date = std::mem::take(&mut self.date);
        let text = date.get(self.now_ms());
        let bytes = HEAD_BYTES + response.body.len();
        // Requests wait while answers do: this one finds no more than a turn's answers before it.
        let result = self.write_within(conn, bytes, usize::MAX, |out| write(out, text));
        self.date = date;
        result
    }

    /// The answer to the request outstanding is complete.
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

    /// Hands out the requests in `bytes`, until one is left unanswered. Returns the bytes consumed.
    pub(super) fn http_input<H: Handler<Data = D>>(
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
            let partial = record.spill.as_mut().and_then(|spill| spill.request.take());
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
                record.spill.get_or_insert_with(|| self.pool.borrow()).request = partial;
            }
            match event {
                Ok((consumed, ServerEvent::Request(request))) => {
                    at += consumed;
                    self.stats.requests += 1;
                    // How long an answer may take is the handler's affair.
                    self.schedule_own(conn, None);
                    handler.on_request(self, conn, &request);
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
                        // Only a full buffer or a broken connection refuses it; either will show.
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
                    self.protocol_error(handler, conn, &ProtocolError::Http(error));
                    return bytes.len();
                }
            }
        }
        at
    }

    /// Asks the handler whether the body of a request is to be taken, and how much of it. False: the connection is ending.
    fn takes_body<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        head: &RequestHead<'_>,
        state: ServerState,
    ) -> bool {
        // It may be answered before its body is there, which then is not read.
        self.slab.at_mut(conn.index()).protocol = Protocol::Http(ServerState::of_refused(head));
        let bytes_max = handler.on_request_head(self, conn, head);
        let Some(record) = self.slab.get_mut(conn) else { return false };
        let Some(bytes_max) = bytes_max else {
            // What is still sent must not answer the last bytes with a reset.
            record.flags.set(Flags::READ_READY);
            self.begin_drain(conn);
            return false;
        };
        if record.phase != Phase::Open {
            return false;
        }
        record.protocol = Protocol::Http(state);
        let request = record.spill.as_mut().and_then(|spill| spill.request.as_mut());
        match request.map(|request| request.restrict(bytes_max)) {
            Some(Err(error)) => {
                self.protocol_error(handler, conn, &ProtocolError::Http(error));
                false
            }
            _ => true,
        }
    }

    /// No request, or not all of one, has come in time.
    pub(super) fn http_timeout<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        let begun = record
            .spill
            .as_ref()
            .is_some_and(|spill| !spill.input.is_empty() || spill.request.is_some());
        if begun {
            record.end = crate::core::connection::End::TimedOut;
            self.protocol_error(handler, conn, &ProtocolError::Http(Error::Timeout));
        } else {
            self.finish(conn, CloseReason::TimedOut);
        }
    }

    pub(super) fn answer_http_error(&mut self, conn: ConnId, error: Error) {
        self.respond_to_protocol_error(
            conn,
            &Response {
                status: error.status(),
                headers: &[("Content-Type", "text/plain; charset=utf-8")],
                body: error.message().as_bytes(),
            },
        );
    }

    /// Answers an HTTP error of the peer in the handler's own words, and closes. The status should be that of the
    /// error. Does nothing on a connection that speaks something else, or has been answered.
    pub fn respond_to_protocol_error(&mut self, conn: ConnId, response: &Response<'_>) {
        if self.http(conn).is_ok() {
            // If it does not fit, the peer is not reading.
            let _ = self.write_dated(conn, response, |out, date| encode_error(out, response, date));
        }
        self.begin_drain(conn);
    }
}
