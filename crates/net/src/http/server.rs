//! The server side of one HTTP/1.1 connection, without a socket. Requests are emitted one at a time and in order.

use dunlin_wire::http1::{
    self, Body, BodyDecoder, CONTINUE, Decoded, HeaderSlots, LAST_CHUNK, RequestHead,
    ResponseWriter,
};

use super::{Error, Framing, Limits, Method, Request, Response, Version};

/// The connection cannot send this response now: no request is outstanding, or another response has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer of this kind is due on the connection")]
pub struct OutOfTurn;

/// The state of the outstanding request in two bytes. An idle connection stores nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerState {
    flags: FiveBits,
    /// The number of the latest request, modulo 256.
    number: u8,
}

/// Five flags. The byte has values that no flags have, by which the compiler distinguishes the protocols of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[rustfmt::skip]
enum FiveBits {
    #[default]
    B00, B01, B02, B03, B04, B05, B06, B07, B08, B09, B10, B11, B12, B13, B14, B15,
    B16, B17, B18, B19, B20, B21, B22, B23, B24, B25, B26, B27, B28, B29, B30, B31,
}

impl From<u8> for FiveBits {
    #[rustfmt::skip]
    fn from(bits: u8) -> FiveBits {
        use FiveBits::*;
        const ALL: [FiveBits; 32] = [
            B00, B01, B02, B03, B04, B05, B06, B07, B08, B09, B10, B11, B12, B13, B14, B15,
            B16, B17, B18, B19, B20, B21, B22, B23, B24, B25, B26, B27, B28, B29, B30, B31,
        ];
        ALL[usize::from(bits & 31)]
    }
}

impl ServerState {
    /// A request has been emitted and its response is not complete.
    const AWAITING_RESPONSE: u8 = 1;
    /// The peer wants to keep the connection open after the current response.
    const KEEP_ALIVE: u8 = 2;
    /// The current request is a `HEAD`: its response has no body.
    const HEAD: u8 = 4;
    /// The current request is HTTP/1.0: its response cannot be chunked.
    const HTTP_1_0: u8 = 8;
    /// The response is being written in chunks.
    const CHUNKED: u8 = 16;

    /// Returns the state with the next request outstanding.
    fn next(self, head: &RequestHead<'_>) -> ServerState {
        let bit = |bit: u8, on: bool| if on { bit } else { 0 };
        let flags = ServerState::AWAITING_RESPONSE
            | bit(ServerState::KEEP_ALIVE, head.keep_alive)
            | bit(ServerState::HEAD, head.method == Method::Head)
            | bit(ServerState::HTTP_1_0, head.version == Version::Http10);
        ServerState { flags: flags.into(), number: self.number.wrapping_add(1) }
    }

    /// Returns the state with the next request outstanding, which is answered before its body has arrived. The
    /// connection is closed after the response.
    pub(crate) fn next_refused(self, head: &RequestHead<'_>) -> ServerState {
        self.next(head).without(ServerState::KEEP_ALIVE)
    }

    fn has(self, bit: u8) -> bool {
        self.flags as u8 & bit != 0
    }

    fn with(self, bits: u8) -> ServerState {
        ServerState { flags: (self.flags as u8 | bits).into(), ..self }
    }

    fn without(self, bits: u8) -> ServerState {
        ServerState { flags: (self.flags as u8 & !bits).into(), ..self }
    }

    /// Returns the number of the latest request, modulo 256.
    pub(crate) fn number(self) -> u8 {
        self.number
    }

    pub(crate) fn is_awaiting_response(self) -> bool {
        self.has(ServerState::AWAITING_RESPONSE)
    }

    fn version(self) -> Version {
        if self.has(ServerState::HTTP_1_0) { Version::Http10 } else { Version::Http11 }
    }
}

/// A request whose head is complete and whose body is not.
#[derive(Debug)]
pub struct PartialRequest {
    /// The bytes of the head. It is decoded again when the body is complete.
    head: Vec<u8>,
    body: Vec<u8>,
    decoder: BodyDecoder,
}

impl PartialRequest {
    pub(crate) fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Limits the body to `bytes_max` bytes.
    pub(crate) fn restrict(&mut self, bytes_max: u64) -> Result<(), Error> {
        self.decoder.restrict(bytes_max)
    }

    /// Appends the part of the body that is in `bytes`. Returns the number of bytes consumed and whether the body is
    /// complete.
    fn gather(&mut self, bytes: &[u8]) -> Result<(usize, bool), Error> {
        let mut at = 0;
        loop {
            let (consumed, piece) = self.decoder.decode(&bytes[at..])?;
            at += consumed;
            match piece {
                Body::Data(data) => self.body.extend_from_slice(data),
                Body::Trailer(..) => {}
                Body::NeedMore => return Ok((at, false)),
                Body::End => return Ok((at, true)),
            }
        }
    }
}

/// The result of one call of [`handle_input`](ServerConnection::handle_input).
#[derive(Debug)]
pub enum ServerEvent<'a> {
    /// The remaining bytes are an incomplete request head. Pass them again together with the bytes that follow.
    NeedMore {
        /// These are the first bytes of a request: start the timeout of its head.
        begun: bool,
    },
    /// The head is complete, but the body is incomplete or not in one piece. Pass the bytes after the head.
    Head {
        /// The head.
        head: RequestHead<'a>,
        /// The peer sends its body only after it has received [`CONTINUE`].
        expects_continue: bool,
    },
    /// A complete request. Respond to it before passing more input.
    Request(Request<'a>),
}

/// What to do with the connection after a call that wrote a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterResponse {
    /// Read the next request.
    KeepAlive,
    /// Close the connection after the response has been sent.
    Close,
    /// The response is not complete.
    More,
}

/// The server side of one HTTP/1.1 connection. It does no I/O and reads no clock.
///
/// 1. Pass received bytes to [`handle_input`](ServerConnection::handle_input). Pass bytes that it did not consume
///    again, together with those that follow.
/// 2. Respond to a request with [`respond`](ServerConnection::respond),
///    [`start_chunked`](ServerConnection::start_chunked) or [`start_stream`](ServerConnection::start_stream). Each
///    appends the bytes to send to a buffer.
/// 3. If `handle_input` returns an error, respond with the error's status and close the connection.
///
/// ```
/// use dunlin_net::http::{AfterResponse, Limits, Response, ServerConnection, ServerEvent};
///
/// let mut connection = ServerConnection::new();
/// let (mut partial, mut slots) = (None, Default::default());
/// let input = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// let (consumed, event) =
///     connection.handle_input(input, 0, &mut partial, &mut slots, &Limits::default())?;
/// assert!(matches!(event, ServerEvent::Request(request) if request.path == "/"));
/// assert_eq!(consumed, input.len());
/// let mut out = Vec::new();
/// let after = connection.respond(&mut out, &Response::text("hello"), "Sun, 06 Nov 1994 08:49:37 GMT");
/// assert_eq!(after, Ok(AfterResponse::KeepAlive));
/// assert!(out.starts_with(b"HTTP/1.1 200 OK\r\n") && out.ends_with(b"\r\n\r\nhello"));
/// # Ok::<(), dunlin_net::http::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct ServerConnection {
    state: ServerState,
    partial: Option<Box<PartialRequest>>,
}

impl ServerConnection {
    /// Creates the state of a new connection.
    pub fn new() -> ServerConnection {
        ServerConnection::default()
    }

    pub(crate) fn resume(
        state: ServerState,
        partial: Option<Box<PartialRequest>>,
    ) -> ServerConnection {
        ServerConnection { state, partial }
    }

    pub(crate) fn suspend(self) -> (ServerState, Option<Box<PartialRequest>>) {
        (self.state, self.partial)
    }

    pub(crate) fn state(&self) -> ServerState {
        self.state
    }

    /// Returns the number of bytes of an incomplete request that are buffered here.
    pub fn buffered_bytes(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| partial.bytes())
    }

    /// Returns whether a request has been emitted and its response is not complete.
    pub fn is_awaiting_response(&self) -> bool {
        self.state.is_awaiting_response()
    }

    /// Returns whether the connection stays open after the outstanding response.
    pub fn keeps_alive(&self) -> bool {
        self.state.has(ServerState::KEEP_ALIVE)
    }

    /// Reads at most one request from the start of `bytes`, of which the first `seen` were passed before. Returns the
    /// number of bytes consumed. `partial` and `slots` hold the data that the returned event borrows.
    ///
    /// # Errors
    ///
    /// Returns an error if the peer violates the protocol. Respond with the error's status and close the connection.
    pub fn handle_input<'a>(
        &mut self,
        bytes: &'a [u8],
        seen: usize,
        partial: &'a mut Option<Box<PartialRequest>>,
        slots: &'a mut HeaderSlots<'a>,
        limits: &Limits,
    ) -> Result<(usize, ServerEvent<'a>), Error> {
        if let Some(mut gathering) = self.partial.take() {
            let (consumed, complete) = gathering.gather(bytes)?;
            if !complete {
                self.partial = Some(gathering);
                return Ok((consumed, ServerEvent::NeedMore { begun: false }));
            }
            let gathered = partial.insert(gathering);
            return match http1::decode_request(&gathered.head, slots, limits)? {
                Decoded::Head(head, _) => {
                    self.state = self.state.next(&head);
                    let request = Request { head, body: &gathered.body };
                    Ok((consumed, ServerEvent::Request(request)))
                }
                // The head was already decoded once.
                Decoded::NeedMore => Err(Error::StartLine),
            };
        }
        if !worth_decoding(bytes, seen, limits) {
            return Ok((0, ServerEvent::NeedMore { begun: false }));
        }
        let begun = seen == 0;
        let (head, length) = match http1::decode_request(bytes, slots, limits)? {
            Decoded::NeedMore => return Ok((0, ServerEvent::NeedMore { begun })),
            Decoded::Head(head, length) => (head, length),
        };
        let behind = &bytes[length..];
        // Nearly all requests are in one buffer: do not copy them.
        let whole =
            head.body.remaining().and_then(|length| behind.get(..usize::try_from(length).ok()?));
        if let Some(body) = whole {
            self.state = self.state.next(&head);
            let request = Request { head, body };
            return Ok((length + body.len(), ServerEvent::Request(request)));
        }
        let expects_continue = head.expect_continue && behind.is_empty();
        self.partial = Some(Box::new(PartialRequest {
            head: bytes[..length].to_vec(),
            body: Vec::new(),
            decoder: head.body,
        }));
        Ok((length, ServerEvent::Head { head, expects_continue }))
    }

    /// Appends a complete response to the outstanding request. `date` is the value of the `Date` header (RFC 9110
    /// §6.6.1).
    ///
    /// # Errors
    ///
    /// Returns [`OutOfTurn`] if no request is outstanding; nothing is appended.
    pub fn respond(
        &mut self,
        out: &mut Vec<u8>,
        response: &Response<'_>,
        date: &str,
    ) -> Result<AfterResponse, OutOfTurn> {
        self.expect_answer()?;
        let writer = head(out, response, date).keep_alive(self.keeps_alive(), self.state.version());
        if matches!(response.status, 100..=199 | 204 | 304) {
            writer.no_body();
        } else if self.state.has(ServerState::HEAD) {
            writer.content_length(response.body.len() as u64);
        } else {
            writer.body(response.body);
        }
        Ok(self.handle_answered())
    }

    /// Closes the connection after the current response, even if the request asked to keep it open.
    pub fn close_after_response(&mut self) {
        self.state = self.state.without(ServerState::KEEP_ALIVE);
    }

    /// Appends a response head. Afterwards the caller writes the body itself, including its framing, until the
    /// connection is closed. No more requests are read. Returns [`AfterResponse::Close`] if the request was a `HEAD`.
    ///
    /// # Errors
    ///
    /// Returns [`OutOfTurn`] if no request is outstanding, or if `framing` is chunked and the request was HTTP/1.0.
    pub fn start_stream(
        &mut self,
        out: &mut Vec<u8>,
        response: &Response<'_>,
        framing: Framing,
        date: &str,
    ) -> Result<AfterResponse, OutOfTurn> {
        self.expect_answer()?;
        if framing == Framing::Chunked && self.state.has(ServerState::HTTP_1_0) {
            return Err(OutOfTurn);
        }
        let writer = head(out, response, date).keep_alive(false, self.state.version());
        match framing {
            Framing::Chunked => writer.chunked(),
            Framing::UntilClose => writer.until_close(),
        }
        let is_head = self.state.has(ServerState::HEAD);
        let over = ServerState::AWAITING_RESPONSE | ServerState::KEEP_ALIVE;
        self.state = self.state.without(over);
        Ok(if is_head { AfterResponse::Close } else { AfterResponse::More })
    }

    /// Appends the head of a response whose body follows in pieces. An HTTP/1.0 client receives the body without
    /// chunked coding; it ends when the connection is closed.
    ///
    /// # Errors
    ///
    /// Returns [`OutOfTurn`] if no request is outstanding; nothing is appended.
    pub fn start_chunked(
        &mut self,
        out: &mut Vec<u8>,
        response: &Response<'_>,
        date: &str,
    ) -> Result<(), OutOfTurn> {
        self.expect_answer()?;
        let until_close = self.state.has(ServerState::HTTP_1_0);
        if until_close {
            self.close_after_response();
        }
        let writer = head(out, response, date).keep_alive(self.keeps_alive(), self.state.version());
        if until_close {
            writer.until_close();
        } else {
            writer.chunked();
        }
        self.state = self.state.with(ServerState::CHUNKED);
        Ok(())
    }

    /// Appends a piece of a response begun with [`start_chunked`](ServerConnection::start_chunked). An empty piece is
    /// ignored.
    ///
    /// # Errors
    ///
    /// Returns [`OutOfTurn`] if no chunked response has begun.
    pub fn write_chunk(&self, out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), OutOfTurn> {
        self.expect_chunk()?;
        match self.state.has(ServerState::HTTP_1_0) {
            _ if !self.takes_chunk(bytes) => {}
            true => out.extend_from_slice(bytes),
            false => http1::encode_chunk(out, bytes),
        }
        Ok(())
    }

    /// Appends the end of a response begun with [`start_chunked`](ServerConnection::start_chunked).
    ///
    /// # Errors
    ///
    /// Returns [`OutOfTurn`] if no chunked response has begun.
    pub fn end_chunks(&mut self, out: &mut Vec<u8>) -> Result<AfterResponse, OutOfTurn> {
        self.expect_chunk()?;
        if self.frames_chunks() {
            out.extend_from_slice(LAST_CHUNK);
        }
        Ok(self.handle_answered())
    }

    /// Returns whether `write_chunk` appends anything for these bytes.
    pub(crate) fn takes_chunk(&self, bytes: &[u8]) -> bool {
        !self.state.has(ServerState::HEAD) && !bytes.is_empty()
    }

    /// Returns whether `end_chunks` appends anything.
    pub(crate) fn frames_chunks(&self) -> bool {
        !self.state.has(ServerState::HTTP_1_0 | ServerState::HEAD)
    }

    /// Marks the outstanding request as answered in another way, such as an accepted or rejected upgrade.
    pub(crate) fn handle_answered(&mut self) -> AfterResponse {
        let over = ServerState::AWAITING_RESPONSE | ServerState::CHUNKED;
        self.state = self.state.without(over);
        if self.keeps_alive() { AfterResponse::KeepAlive } else { AfterResponse::Close }
    }

    pub(crate) fn expect_answer(&self) -> Result<(), OutOfTurn> {
        let due = self.is_awaiting_response() && !self.state.has(ServerState::CHUNKED);
        due.then_some(()).ok_or(OutOfTurn)
    }

    pub(crate) fn expect_chunk(&self) -> Result<(), OutOfTurn> {
        self.state.has(ServerState::CHUNKED).then_some(()).ok_or(OutOfTurn)
    }
}

/// Appends the response to a protocol error of the peer. The connection is closed after it.
pub(crate) fn encode_error(out: &mut Vec<u8>, response: &Response<'_>, date: &str) {
    head(out, response, date).keep_alive(false, Version::Http11).body(response.body);
}

/// Appends the interim response 100, which asks the peer for its body (RFC 9110 §10.1.1).
pub(crate) fn encode_continue(out: &mut Vec<u8>) {
    out.extend_from_slice(CONTINUE);
}

fn head<'o>(out: &'o mut Vec<u8>, response: &Response<'_>, date: &str) -> ResponseWriter<'o> {
    ResponseWriter::new(out, response.status).header("Date", date).headers(response.headers)
}

/// Returns whether an incomplete head may now be complete: only a line end can complete it. Avoids decoding again for
/// each byte of a peer that sends its head byte by byte.
fn worth_decoding(bytes: &[u8], seen: usize, limits: &Limits) -> bool {
    seen == 0 || bytes.len() >= limits.head_bytes_max || bytes[seen..].contains(&b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    /// A connection, its unconsumed input, and its output.
    #[derive(Default)]
    struct Scripted {
        connection: ServerConnection,
        input: Vec<u8>,
        seen: usize,
        out: Vec<u8>,
    }

    impl Scripted {
        /// Passes bytes to the connection; returns the request that they complete.
        fn hears(&mut self, bytes: &[u8]) -> Result<Option<String>, Error> {
            self.input.extend_from_slice(bytes);
            while !self.input.is_empty() {
                let (mut partial, mut slots) = (None, HeaderSlots::new());
                let limits = Limits::default();
                let (consumed, event) = self.connection.handle_input(
                    &self.input,
                    self.seen,
                    &mut partial,
                    &mut slots,
                    &limits,
                )?;
                let request = match &event {
                    ServerEvent::Request(request) => {
                        Some(format!("{} {}", request.path, String::from_utf8_lossy(request.body)))
                    }
                    _ => None,
                };
                self.input.drain(..consumed);
                self.seen = if consumed > 0 { 0 } else { self.input.len() };
                if request.is_some() {
                    self.seen = 0;
                    return Ok(request);
                }
                if consumed == 0 {
                    return Ok(None);
                }
            }
            Ok(None)
        }

        fn says(&mut self) -> String {
            String::from_utf8(std::mem::take(&mut self.out)).expect("text")
        }
    }

    #[test]
    fn a_state_is_two_bytes_and_a_machine_two_words() {
        assert_eq!((size_of::<ServerState>(), size_of::<ServerConnection>()), (2, 16));
    }

    #[test]
    fn requests_cut_anywhere_are_the_same_requests() {
        let input = b"GET /one HTTP/1.1\r\nHost: a\r\n\r\n\
            POST /two HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody\
            POST /three HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n";
        for piece in 1..input.len() {
            let mut scripted = Scripted::default();
            let mut requests = Vec::new();
            for bytes in input.chunks(piece) {
                let mut bytes = bytes;
                while let Some(request) = scripted.hears(bytes).expect("valid requests") {
                    requests.push(request);
                    let after =
                        scripted.connection.respond(&mut scripted.out, &Response::text("x"), DATE);
                    assert_eq!(after, Ok(AfterResponse::KeepAlive));
                    bytes = b"";
                }
            }
            assert_eq!(requests, ["/one ", "/two body", "/three abcd"], "in pieces of {piece}");
            assert_eq!(scripted.connection.buffered_bytes(), 0);
        }
    }

    #[test]
    fn nothing_is_answered_out_of_turn() {
        let mut scripted = Scripted::default();
        let Scripted { connection, out, .. } = &mut scripted;
        let ok = Response::text("x");
        assert_eq!(connection.respond(out, &ok, DATE), Err(OutOfTurn));
        assert_eq!(connection.write_chunk(out, b"x"), Err(OutOfTurn));
        assert_eq!(connection.end_chunks(out), Err(OutOfTurn));
        scripted.hears(b"GET / HTTP/1.0\r\n\r\n").expect("a request");
        let Scripted { connection, out, .. } = &mut scripted;
        let chunked = connection.start_stream(out, &ok, Framing::Chunked, DATE);
        assert_eq!(chunked, Err(OutOfTurn), "an old client knows no chunks");
        assert!(out.is_empty());
        assert_eq!(connection.start_chunked(out, &ok, DATE), Ok(()));
        assert_eq!(connection.respond(out, &ok, DATE), Err(OutOfTurn));
        connection.write_chunk(out, b"unframed").expect("it has begun");
        assert_eq!(connection.end_chunks(out), Ok(AfterResponse::Close));
        assert!(scripted.says().ends_with("\r\n\r\nunframed"));
    }

    #[test]
    fn a_head_request_gets_no_body() {
        let mut scripted = Scripted::default();
        scripted.hears(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").expect("a request");
        let Scripted { connection, out, .. } = &mut scripted;
        assert_eq!(
            connection.respond(out, &Response::text("four"), DATE),
            Ok(AfterResponse::KeepAlive)
        );
        let said = scripted.says();
        assert!(said.contains("Content-Length: 4\r\n") && said.ends_with("\r\n\r\n"), "{said}");
    }
}
