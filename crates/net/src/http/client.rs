//! The asking side of HTTP/1.1: requests out, pipelined if the caller likes; answers in, in their order.

use dunlin_wire::http1::{self, Body, Decoded, HeaderSlots, RequestWriter};

use super::{Answer, Method, NewRequest, PartialMessage, worth_decoding};
use crate::conn::{ConnId, Flags, Phase, Protocol};
use crate::context::Context;
use crate::error::{CloseReason, WriteError};
use crate::handler::{Handler, ProtocolError};

/// What must be remembered of a request until its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// It was a `HEAD`: the answer has no body, whatever its head says.
    head: bool,
    stream: bool,
}

impl<D: Default> Context<D> {
    /// Sends a request on a client's connection, which may still be connecting. Requests may follow each
    /// other without waiting (pipelining); the answers come in their order. A server may close the connection
    /// before it has answered all of them: `on_close` then says so, and which were answered is known.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfTurn`] when it is not a connection of an HTTP client, [`WriteError::Full`],
    /// [`WriteError::Stale`].
    pub fn request(&mut self, conn: ConnId, request: &NewRequest<'_>) -> Result<(), WriteError> {
        let record = self.slab.get(conn).ok_or(WriteError::Stale)?;
        if record.protocol != Protocol::HttpClient {
            return Err(WriteError::OutOfTurn);
        }
        let bytes = 256 + request.target.len() + request.body.map_or(0, <[u8]>::len);
        self.append(conn, bytes, |out| {
            let writer = RequestWriter::new(out, request.method, request.target, request.host)
                .headers(request.headers);
            match request.body {
                Some(body) => writer.body(body),
                None => writer.no_body(),
            }
        })?;
        let record = self.slab.at_mut(conn.index());
        let asked = Asked { head: request.method == "HEAD", stream: request.stream };
        record.spill.get_or_insert_with(|| self.pool.borrow()).asked.push_back(asked);
        Ok(())
    }

    /// Requests sent on a client's connection and not answered completely.
    pub fn requests_outstanding(&self, conn: ConnId) -> usize {
        let spill = self.slab.get(conn).and_then(|record| record.spill.as_ref());
        spill.map_or(0, |spill| spill.asked.len())
    }

    /// Hands out the answers in `bytes`. Returns the bytes consumed.
    pub(crate) fn http_client_input<H: Handler<Data = D>>(
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
            if record.protocol != Protocol::HttpClient {
                return at;
            }
            let profile = record.profile;
            let limits = self.limits(profile).http;
            let record = self.slab.at_mut(conn.index());
            let Some(spill) = &mut record.spill else {
                // An answer nobody asked for.
                let error = ProtocolError::Http(http1::Error::StartLine);
                self.violation(handler, conn, &error);
                return bytes.len();
            };
            let Some(&asked) = spill.asked.front() else {
                let error = ProtocolError::Http(http1::Error::StartLine);
                self.violation(handler, conn, &error);
                return bytes.len();
            };

            if let Some(mut partial) = spill.partial.take() {
                if record.flags.has(Flags::STREAMING_BODY) {
                    match partial.decoder.decode(&bytes[at..]) {
                        Ok((consumed, piece)) => {
                            at += consumed;
                            let done = partial.decoder.is_done();
                            if done {
                                self.stats.buffered_bytes -= partial.bytes();
                                self.stream_ends(conn);
                            } else {
                                spill.partial = Some(partial);
                            }
                            match piece {
                                Body::Data(data) => handler.on_body(self, conn, data, done),
                                Body::End => handler.on_body(self, conn, b"", true),
                                Body::Trailer(..) => {}
                                Body::NeedMore => return at,
                            }
                            if done {
                                self.answer_ends(conn);
                            }
                        }
                        Err(error) => {
                            self.stats.buffered_bytes -= partial.bytes();
                            self.violation(handler, conn, &ProtocolError::Http(error));
                            return bytes.len();
                        }
                    }
                    continue;
                }
                let before = partial.bytes();
                let gathered = partial.gather(&bytes[at..]);
                self.stats.buffered_bytes += partial.bytes() - before;
                match gathered {
                    Ok((consumed, false)) => {
                        at += consumed;
                        if self.stats.buffered_bytes > self.config.buffered_bytes_max {
                            self.stats.buffered_bytes -= partial.bytes();
                            self.finish(conn, CloseReason::OutOfMemory);
                            return bytes.len();
                        }
                        self.slab.at_mut(conn.index()).spill.as_mut().expect("just seen").partial =
                            Some(partial);
                        return at;
                    }
                    Ok((consumed, true)) => {
                        at += consumed;
                        self.stats.buffered_bytes -= partial.bytes();
                        self.hand_out_gathered(handler, conn, &partial, asked);
                    }
                    Err(error) => {
                        self.stats.buffered_bytes -= partial.bytes();
                        self.violation(handler, conn, &ProtocolError::Http(error));
                        return bytes.len();
                    }
                }
                continue;
            }

            let rest = &bytes[at..];
            if !worth_decoding(rest, carried.saturating_sub(at), &limits) {
                return at;
            }
            let method = if asked.head { Method::Head } else { Method::Get };
            let mut slots = HeaderSlots::new();
            let (head, consumed) = match http1::decode_response(rest, &mut slots, &limits, method) {
                Ok(Decoded::NeedMore) => return at,
                Ok(Decoded::Head(head, consumed)) => (head, consumed),
                Err(error) => {
                    self.violation(handler, conn, &ProtocolError::Http(error));
                    return bytes.len();
                }
            };
            at += consumed;
            if head.is_interim() {
                continue;
            }
            record.flags.put(Flags::KEEP_ALIVE, head.keep_alive);
            let behind = &bytes[at..];
            let whole = head
                .body
                .remaining()
                .and_then(|length| behind.get(..usize::try_from(length).ok()?));
            if let Some(body) = whole.filter(|body| !asked.stream || body.is_empty()) {
                at += body.len();
                self.hand_out_answer(handler, conn, &Answer { head, body }, asked);
                continue;
            }
            let kept: &[u8] = if asked.stream { b"" } else { &rest[..consumed] };
            let partial = PartialMessage::new(kept, head.body);
            self.stats.buffered_bytes += partial.bytes();
            spill.partial = Some(Box::new(partial));
            if asked.stream {
                record.flags.set(Flags::STREAMING_BODY);
                handler.on_response(self, conn, &Answer { head, body: b"" });
            }
        }
        at
    }

    /// The server has closed: the end of a body that lasts until then.
    pub(crate) fn http_client_eof<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        let Some(spill) = &mut record.spill else { return };
        let Some(partial) = spill.partial.take_if(|partial| partial.decoder.ends_at_close()) else {
            return;
        };
        let Some(&asked) = spill.asked.front() else { return };
        self.stats.buffered_bytes -= partial.bytes();
        record.flags.clear(Flags::KEEP_ALIVE);
        if record.flags.has(Flags::STREAMING_BODY) {
            self.stream_ends(conn);
            handler.on_body(self, conn, b"", true);
            self.answer_ends(conn);
        } else {
            self.hand_out_gathered(handler, conn, &partial, asked);
        }
    }

    fn hand_out_gathered<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        partial: &PartialMessage,
        asked: Asked,
    ) {
        let limits = self.limits(self.slab.at(conn.index()).profile).http;
        let method = if asked.head { Method::Head } else { Method::Get };
        let mut slots = HeaderSlots::new();
        let head = http1::decode_response(&partial.head, &mut slots, &limits, method);
        if let Ok(Decoded::Head(head, _)) = head {
            self.hand_out_answer(handler, conn, &Answer { head, body: &partial.body }, asked);
        }
    }

    fn hand_out_answer<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        answer: &Answer<'_>,
        asked: Asked,
    ) {
        self.stream_ends(conn);
        handler.on_response(self, conn, answer);
        if asked.stream {
            handler.on_body(self, conn, b"", true);
        }
        self.answer_ends(conn);
    }

    /// Takes the request off the list before its answer is handed out, so that the handler may count.
    fn stream_ends(&mut self, conn: ConnId) {
        if let Some(record) = self.slab.get_mut(conn) {
            record.flags.clear(Flags::STREAMING_BODY);
            if let Some(spill) = &mut record.spill {
                spill.asked.pop_front();
            }
        }
    }

    /// An answer has been handed out, and the server may have said that it was the last.
    fn answer_ends(&mut self, conn: ConnId) {
        if let Some(record) = self.slab.get(conn)
            && record.phase == Phase::Open
            && !record.flags.has(Flags::KEEP_ALIVE)
        {
            self.drain_for_peer(conn);
        }
    }
}
