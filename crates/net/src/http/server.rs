//! The serving side of HTTP/1.1: requests in, one at a time and in order; answers out.

use dunlin_wire::http1::{self, CONTINUE, Decoded, HeaderSlots, LAST_CHUNK, ResponseWriter};

use super::{Error, Framing, Method, PartialMessage, Request, Response, Version, worth_decoding};
use crate::conn::{ConnId, Flags, Phase, Protocol};
use crate::context::Context;
use crate::error::{CloseReason, WriteError};
use crate::handler::{Handler, ProtocolError};

/// Bytes of a head beyond status line and the caller's headers: enough for `Date`, framing and connection.
const HEAD_BYTES: usize = 128;

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
        let flags = self.answering(conn)?;
        self.append_dated(conn, response, |writer| {
            let writer = writer.keep_alive(flags.has(Flags::KEEP_ALIVE), version(flags));
            if matches!(response.status, 100..=199 | 204 | 304) {
                writer.no_body();
            } else if flags.has(Flags::HEAD_REQUEST) {
                writer.content_length(response.body.len() as u64);
            } else {
                writer.body(response.body);
            }
        })?;
        self.answered(conn);
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
        self.answering(conn)?;
        self.slab.at_mut(conn.index()).flags.clear(Flags::KEEP_ALIVE);
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
        let flags = self.answering(conn)?;
        if framing == Framing::Chunked && flags.has(Flags::HTTP_1_0) {
            return Err(WriteError::OutOfTurn);
        }
        self.append_dated(conn, head, |writer| {
            let writer = writer.keep_alive(false, version(flags));
            match framing {
                Framing::Chunked => writer.chunked(),
                Framing::UntilClose => writer.until_close(),
            }
        })?;
        if flags.has(Flags::HEAD_REQUEST) {
            self.begin_drain(conn);
            return Ok(());
        }
        let record = self.slab.at_mut(conn.index());
        record.flags.clear(Flags::AWAITING_RESPONSE);
        record.protocol = Protocol::Stream;
        // Pipelined requests behind a stream will never be answered.
        if let Some(spill) = &mut record.spill {
            self.stats.buffered_bytes -= spill.input.len();
            spill.input.clear();
        }
        if record.flags.has(Flags::READ_READY) {
            self.queue_read(conn);
        }
        self.append(conn, head.body.len(), |out| out.extend_from_slice(head.body))
    }

    /// Begins an answer whose body follows in pieces, by [`Context::write_chunk`], and ends with
    /// [`Context::end_chunks`]; then the connection serves the next request. The body of `head` is the first
    /// piece.
    ///
    /// # Errors
    ///
    /// As [`Context::respond`].
    pub fn start_chunked(&mut self, conn: ConnId, head: &Response<'_>) -> Result<(), WriteError> {
        let flags = self.answering(conn)?;
        let record = self.slab.at_mut(conn.index());
        // HTTP/1.0 knows no chunks: there the end of the connection is the end of the body.
        let until_close = flags.has(Flags::HTTP_1_0);
        if until_close {
            record.flags.clear(Flags::KEEP_ALIVE);
        }
        let keep_alive = record.flags.has(Flags::KEEP_ALIVE);
        self.append_dated(conn, head, |writer| {
            let writer = writer.keep_alive(keep_alive, version(flags));
            if until_close { writer.until_close() } else { writer.chunked() }
        })?;
        self.slab.at_mut(conn.index()).flags.set(Flags::CHUNKED);
        self.write_chunk(conn, head.body)
    }

    /// Sends the next piece of an answer begun with [`Context::start_chunked`]; an empty one is no piece.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfTurn`] when none has begun, [`WriteError::Full`], [`WriteError::Stale`].
    pub fn write_chunk(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), WriteError> {
        let flags = self.chunking(conn)?;
        if flags.has(Flags::HEAD_REQUEST) || bytes.is_empty() {
            return Ok(());
        }
        self.append(conn, bytes.len() + 16, |out| {
            if flags.has(Flags::HTTP_1_0) {
                out.extend_from_slice(bytes);
            } else {
                http1::encode_chunk(out, bytes);
            }
        })
    }

    /// Ends an answer begun with [`Context::start_chunked`].
    ///
    /// # Errors
    ///
    /// As [`Context::write_chunk`].
    pub fn end_chunks(&mut self, conn: ConnId) -> Result<(), WriteError> {
        let flags = self.chunking(conn)?;
        if !flags.has(Flags::HTTP_1_0 | Flags::HEAD_REQUEST) {
            self.append(conn, LAST_CHUNK.len(), |out| out.extend_from_slice(LAST_CHUNK))?;
        }
        self.answered(conn);
        Ok(())
    }

    /// True while a request of this connection has been handed out and its answer is not complete.
    pub fn is_awaiting_response(&self, conn: ConnId) -> bool {
        self.slab.get(conn).is_some_and(|record| {
            record.phase == Phase::Open
                && record.protocol == Protocol::HttpServer
                && record.flags.has(Flags::AWAITING_RESPONSE)
        })
    }

    /// The flags of a connection whose answer is due.
    pub(crate) fn answering(&self, conn: ConnId) -> Result<Flags, WriteError> {
        let record = self.slab.get(conn).ok_or(WriteError::Stale)?;
        match record.phase {
            Phase::Open => {}
            _ => return Err(WriteError::Stale),
        }
        let due = record.protocol == Protocol::HttpServer
            && record.flags.has(Flags::AWAITING_RESPONSE)
            && !record.flags.has(Flags::CHUNKED);
        due.then_some(record.flags).ok_or(WriteError::OutOfTurn)
    }

    fn chunking(&self, conn: ConnId) -> Result<Flags, WriteError> {
        let record = self.slab.get(conn).ok_or(WriteError::Stale)?;
        match record.phase {
            Phase::Open if record.flags.has(Flags::CHUNKED) => Ok(record.flags),
            Phase::Open => Err(WriteError::OutOfTurn),
            _ => Err(WriteError::Stale),
        }
    }

    fn append_dated(
        &mut self,
        conn: ConnId,
        response: &Response<'_>,
        end_head: impl FnOnce(ResponseWriter<'_>),
    ) -> Result<(), WriteError> {
        let mut date = std::mem::take(&mut self.date);
        let text = date.get(self.now_ms());
        let bytes = HEAD_BYTES + response.body.len();
        // Requests wait while answers do: this one finds no more than a turn's answers before it.
        let result = self.append_within(conn, bytes, usize::MAX, |out| {
            end_head(
                ResponseWriter::new(out, response.status)
                    .header("Date", text)
                    .headers(response.headers),
            );
        });
        self.date = date;
        result
    }

    /// The answer to the request outstanding is complete.
    pub(crate) fn answered(&mut self, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        if record.phase != Phase::Open {
            return;
        }
        record.flags.clear(Flags::AWAITING_RESPONSE | Flags::CHUNKED);
        if !record.flags.has(Flags::KEEP_ALIVE) {
            record.flags.set(Flags::CLOSE_AT_ONCE);
            return self.begin_drain(conn);
        }
        self.queue_resume(conn);
        let profile = self.slab.at(conn.index()).profile;
        let keep_alive_timeout_ms = self.limits(profile).keep_alive_timeout_ms;
        self.schedule_own(conn, keep_alive_timeout_ms);
    }

    /// Hands out the requests in `bytes`, until one is left unanswered. Returns the bytes consumed.
    pub(crate) fn http_server_input<H: Handler<Data = D>>(
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
            if record.protocol != Protocol::HttpServer || record.holds_requests() {
                return at;
            }
            let profile = record.profile;
            let limits = self.limits(profile).http;
            let partial = record_partial(&mut self.slab, conn);
            if let Some(mut partial) = partial {
                let before = partial.bytes();
                let gathered = partial.gather(&bytes[at..]);
                self.stats.buffered_bytes += partial.bytes() - before;
                match gathered {
                    Ok((consumed, complete)) => {
                        at += consumed;
                        if complete {
                            self.stats.buffered_bytes -= partial.bytes();
                            let mut slots = HeaderSlots::new();
                            let head = http1::decode_request(&partial.head, &mut slots, &limits);
                            if let Ok(Decoded::Head(head, _)) = head {
                                let request = Request { head, body: &partial.body };
                                self.hand_out_request(handler, conn, &request);
                            }
                            continue;
                        }
                        if self.stats.buffered_bytes > self.config.buffered_bytes_max {
                            self.stats.buffered_bytes -= partial.bytes();
                            self.finish(conn, CloseReason::OutOfMemory);
                            return bytes.len();
                        }
                        let record = self.slab.at_mut(conn.index());
                        record.spill.get_or_insert_with(|| self.pool.borrow()).partial =
                            Some(partial);
                        return at;
                    }
                    Err(error) => {
                        self.stats.buffered_bytes -= partial.bytes();
                        self.violation(handler, conn, &ProtocolError::Http(error));
                        return bytes.len();
                    }
                }
            }

            let rest = &bytes[at..];
            let seen = carried.saturating_sub(at);
            if !worth_decoding(rest, seen, &limits) {
                return at;
            }
            let mut slots = HeaderSlots::new();
            match http1::decode_request(rest, &mut slots, &limits) {
                Ok(Decoded::NeedMore) => {
                    if seen == 0 {
                        self.request_begins(conn, profile);
                    }
                    return at;
                }
                Ok(Decoded::Head(head, consumed)) => {
                    at += consumed;
                    let behind = &bytes[at..];
                    // Whole in the buffer, as nearly all are: no copy.
                    let whole = head
                        .body
                        .remaining()
                        .and_then(|length| behind.get(..usize::try_from(length).ok()?));
                    if let Some(body) = whole {
                        at += body.len();
                        self.hand_out_request(handler, conn, &Request { head, body });
                        continue;
                    }
                    if seen == 0 {
                        self.request_begins(conn, profile);
                    }
                    if head.expect_continue && behind.is_empty() {
                        // Only a full buffer or a broken connection refuses it; either will show.
                        let _ = self.append(conn, CONTINUE.len(), |out| {
                            out.extend_from_slice(CONTINUE);
                        });
                    }
                    let partial = PartialMessage::new(&rest[..consumed], head.body);
                    self.stats.buffered_bytes += partial.bytes();
                    let Some(record) = self.slab.get_mut(conn) else { return bytes.len() };
                    record.spill.get_or_insert_with(|| self.pool.borrow()).partial =
                        Some(Box::new(partial));
                }
                Err(error) => {
                    self.violation(handler, conn, &ProtocolError::Http(error));
                    return bytes.len();
                }
            }
        }
        at
    }

    fn hand_out_request<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        request: &Request<'_>,
    ) {
        let record = self.slab.at_mut(conn.index());
        record.flags.set(Flags::AWAITING_RESPONSE);
        record.flags.put(Flags::KEEP_ALIVE, request.keep_alive);
        record.flags.put(Flags::HEAD_REQUEST, request.method == Method::Head);
        record.flags.put(Flags::HTTP_1_0, request.version == Version::Http10);
        self.stats.requests += 1;
        // How long an answer may take is the handler's affair.
        self.schedule_own(conn, 0);
        handler.on_request(self, conn, request);
    }

    /// The first byte of a request is here: its last must follow in time.
    fn request_begins(&mut self, conn: ConnId, profile: u16) {
        let request_timeout_ms = self.limits(profile).request_timeout_ms;
        self.schedule_own(conn, request_timeout_ms);
    }

    pub(crate) fn http_server_timeout<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
    ) {
        let record = self.slab.at_mut(conn.index());
        let begun = record
            .spill
            .as_ref()
            .is_some_and(|spill| !spill.input.is_empty() || spill.partial.is_some());
        if begun {
            record.flags.set(Flags::OVERDUE);
            self.violation(handler, conn, &ProtocolError::Http(Error::Timeout));
        } else {
            self.finish(conn, CloseReason::TimedOut);
        }
    }

    /// The peer broke the rules: the handler says how it ends.
    pub(crate) fn violation<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        error: &ProtocolError,
    ) {
        let Some(record) = self.slab.get_mut(conn) else { return };
        // What follows cannot be trusted to begin anywhere: read no more of it.
        record.flags.set(Flags::VIOLATED);
        record.flags.set(Flags::READ_PAUSED);
        record.flags.set(Flags::READ_READY);
        handler.on_protocol_error(self, conn, error);
    }

    /// What [`Handler::on_protocol_error`] does by default: answers in the protocol's own words and closes.
    pub fn answer_violation(&mut self, conn: ConnId, error: &ProtocolError) {
        let Some(record) = self.slab.get(conn) else { return };
        match (error, record.protocol) {
            (ProtocolError::Http(error), Protocol::HttpServer) => {
                let head = Response {
                    status: error.status(),
                    headers: &[("Content-Type", "text/plain; charset=utf-8")],
                    body: error.message().as_bytes(),
                };
                // If it does not fit, the peer is not reading.
                let _ = self.append_dated(conn, &head, |writer| {
                    writer.keep_alive(false, Version::Http11).body(head.body);
                });
            }
            (ProtocolError::WebSocket(error), _) => {
                let _ = self.send_close_frame(conn, error.close_code(), error.message());
            }
            _ => {}
        }
        self.begin_drain(conn);
    }

    /// Answers an HTTP violation in the handler's own words, and closes. The status should be that of the
    /// error. Does nothing on a connection that speaks something else, or has been answered.
    pub fn refuse_violation(&mut self, conn: ConnId, response: &Response<'_>) {
        let Some(record) = self.slab.get(conn) else { return };
        if record.protocol == Protocol::HttpServer && record.phase == Phase::Open {
            // If it does not fit, the peer is not reading.
            let _ = self.append_dated(conn, response, |writer| {
                writer.keep_alive(false, Version::Http11).body(response.body);
            });
        }
        self.begin_drain(conn);
    }
}

fn record_partial<D>(slab: &mut crate::slab::Slab<D>, conn: ConnId) -> Option<Box<PartialMessage>> {
    slab.at_mut(conn.index()).spill.as_mut()?.partial.take()
}

fn version(flags: Flags) -> Version {
    if flags.has(Flags::HTTP_1_0) { Version::Http10 } else { Version::Http11 }
}
