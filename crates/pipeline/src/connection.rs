//! The client side of one pipelined HTTP/1.1 connection, without a socket.

use dunlin_wire::http1::{self, Body, BodyDecoder, Error, HeaderSlots, Limits, decode_response};
use dunlin_wire::http1::{Decoded, Method};

use crate::head::{Head, Known, ParsedHead};
use crate::in_flight::{InFlight, Queue};
use crate::{Kind, ProtocolError};

/// Receives the answers of a connection. Every method has an empty default.
///
/// For each answer the connection calls `on_head` once, then `on_body` for each piece of the body, then `on_end`. For
/// an answer that is cut short `on_end` is not called; [`Connection::poll_unanswered`] returns its request.
#[expect(unused_variables, reason = "the names of the arguments are documentation")]
pub trait Sink {
    /// Receives the final head of an answer.
    fn on_head(&mut self, request: &InFlight, head: &Head<'_>) {}

    /// Receives an interim answer: 1xx, except 101. The final answer follows.
    fn on_interim(&mut self, request: &InFlight, head: &Head<'_>) {}

    /// Receives a piece of the body, without chunk framing. It is never empty.
    fn on_body(&mut self, request: &InFlight, bytes: &[u8]) {}

    /// Receives a trailer field of a chunked body.
    fn on_trailer(&mut self, request: &InFlight, name: &str, value: &[u8]) {}

    /// Receives the end of a complete answer.
    fn on_end(&mut self, request: &InFlight) {}
}

/// A sink that discards answers; [`Connection::answered`] counts them.
impl Sink for () {}

/// Limits of the answers on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Most bytes of a head.
    pub head_bytes_max: usize,
    /// Most headers of a head.
    pub headers_max: usize,
    /// Most bytes of a body. Bodies are passed on in pieces and not buffered here.
    pub body_bytes_max: u64,
    /// Most bytes of the chunk extensions and trailers of a body.
    pub chunk_overhead_bytes_max: u32,
}

impl Default for ConnectionLimits {
    /// 64 KiB for a head, 100 headers, and no limit for bodies.
    fn default() -> ConnectionLimits {
        ConnectionLimits {
            head_bytes_max: 64 << 10,
            headers_max: 100,
            body_bytes_max: u64::MAX,
            chunk_overhead_bytes_max: 64 << 10,
        }
    }
}

/// What the caller does after a call of [`Connection::handle_input`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Continue to use the connection.
    Open,
    /// The server sends no more answers on this connection. Close it and drain
    /// [`poll_unanswered`](Connection::poll_unanswered).
    LastAnswer,
    /// HTTP has ended (101, or a tunnel). The last `rest` bytes of the input, and all further input, belong to the
    /// other protocol. [`poll_unanswered`](Connection::poll_unanswered) returns the requests sent after the upgrade
    /// request.
    Upgraded {
        /// Bytes at the end of the input that are not HTTP.
        rest: usize,
    },
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// The server had announced the close: with `Connection: close`, a body delimited by the close, or a 408 to an
    /// idle client.
    pub notice: bool,
    /// The server closed without notice after as many answers as its known limit.
    pub at_budget: bool,
    /// The server closed during an answer.
    pub cut: bool,
    /// No request was outstanding: an idle connection was closed, which a server may do at any time.
    pub idle: bool,
}

/// What the caller may do with a request that was sent and not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayDecision {
    /// The server has not processed the request and will not: it sent `Connection: close` first (RFC 9112 §9.6), or
    /// closed at its known limit of requests. Send it again, whatever its method.
    NotProcessed,
    /// The request may have been processed, but it is idempotent. Send it again.
    Replay,
    /// The request may have been processed, and is not idempotent. Sending it again could execute it twice.
    Uncertain,
    /// The answer had begun, so the request was processed. Send it again only if it is idempotent and no part of the
    /// answer was passed on.
    Cut {
        /// The status; 0 if it did not arrive.
        status: u16,
        /// Whether the request is idempotent.
        idempotent: bool,
    },
    /// The request was the oldest, and its timeout expired.
    TimedOut {
        /// Whether the request is idempotent.
        idempotent: bool,
    },
    /// The answer violated the protocol.
    ProtocolError(ProtocolError),
}

/// The client side of one HTTP/1.1 connection: the outstanding requests and the position in the answers. It does no
/// I/O and reads no clock.
///
/// 1. [`room`](Connection::room) returns how many requests may be sent. Write them, then call
///    [`handle_sent`](Connection::handle_sent).
/// 2. Pass all received bytes to [`handle_input`](Connection::handle_input). It calls the [`Sink`] for each answer,
///    with the tag of its request.
/// 3. Close the socket when `handle_input` returns anything but [`Progress::Open`], when the connection ends
///    ([`handle_eof`](Connection::handle_eof), [`handle_reset`](Connection::handle_reset)), or when the oldest
///    request times out ([`handle_timeout`](Connection::handle_timeout)). Then drain
///    [`poll_unanswered`](Connection::poll_unanswered): it returns each request without an answer once, and what may
///    be done with it.
///
/// Each tag passed to `handle_sent` is returned exactly once: in `on_end`, or from `poll_unanswered`.
///
/// ```
/// use dunlin_pipeline::{Connection, ConnectionLimits, ReplayDecision, Head, InFlight, Kind, Progress, Sink};
///
/// struct Statuses(Vec<(u64, u16)>);
/// impl Sink for Statuses {
///     fn on_head(&mut self, request: &InFlight, head: &Head<'_>) {
///         self.0.push((request.tag, head.status));
///     }
/// }
///
/// let mut connection = Connection::new(&ConnectionLimits::default());
/// assert_eq!(connection.room(3), 3);
/// connection.handle_sent(1, 3, Kind::POST, 0);
/// let mut seen = Statuses(Vec::new());
/// let answers = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\
///                 HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
/// assert_eq!(connection.handle_input(answers, &mut seen), Ok(Progress::LastAnswer));
/// assert_eq!(seen.0, [(1, 200), (2, 404)]);
/// // The third was not processed: it can be sent again although it is a POST.
/// let (request, decision) = connection.poll_unanswered().expect("one is left");
/// assert_eq!((request.tag, decision), (3, ReplayDecision::NotProcessed));
/// ```
#[derive(Debug)]
pub struct Connection {
    queue: Queue,
    known: Known,
    /// The current answer: its head has been passed on, its end has not.
    reading: Option<Reading>,
    phase: Phase,
    /// The decision for the oldest unanswered request, if it differs from the others.
    oldest_decision: Option<ReplayDecision>,
    /// The server has announced that it closes after the current or the last answer.
    notice: bool,
    /// An incomplete head or chunk line.
    carry: Vec<u8>,
    limits: Limits,
    budget: Option<u64>,
    sent: u64,
    answered: u64,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    body: BodyDecoder,
    status: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Bytes arrived without a request. No further request may be sent, because they could be mistaken for its
    /// answer.
    Unasked,
    /// All further input is ignored.
    Over,
}

impl Connection {
    /// Creates the state of a new connection.
    pub fn new(limits: &ConnectionLimits) -> Connection {
        let limits = Limits {
            head_bytes_max: limits.head_bytes_max,
            headers_max: limits.headers_max,
            body_bytes_max: limits.body_bytes_max,
            chunk_overhead_bytes_max: limits.chunk_overhead_bytes_max,
            ..Limits::default()
        };
        Connection {
            queue: Queue::default(),
            known: Known::default(),
            reading: None,
            phase: Phase::Open,
            oldest_decision: None,
            notice: false,
            carry: Vec::new(),
            limits,
            budget: None,
            sent: 0,
            answered: 0,
        }
    }

    /// Returns the number of requests that may be sent now, if at most `depth` may be in flight. It is 0 once the
    /// server has announced a close, or has received as many requests as its limit.
    #[inline]
    pub fn room(&self, depth: u32) -> u32 {
        if self.phase != Phase::Open || self.notice {
            return 0;
        }
        let room = depth.saturating_sub(self.queue.len());
        match self.budget {
            None => room,
            Some(budget) => {
                let left = budget.saturating_sub(self.sent);
                room.min(u32::try_from(left).unwrap_or(u32::MAX))
            }
        }
    }

    /// Records that `count` requests of one kind were sent, with the tags `first`, `first + 1` and so on.
    #[inline]
    pub fn handle_sent(&mut self, first: u64, count: u32, kind: Kind, now_ns: u64) {
        self.sent += u64::from(count);
        self.queue.push(InFlight { tag: first, sent_ns: now_ns, kind }, count);
    }

    /// Handles all received bytes.
    ///
    /// # Errors
    ///
    /// Returns [`ProtocolError`] if the server violates HTTP. Close the connection: the oldest request has a bad
    /// answer, the others have none.
    pub fn handle_input(
        &mut self,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<Progress, ProtocolError> {
        let result = if self.carry.is_empty() {
            match self.read(bytes, 0, sink) {
                Ok((at, progress)) => {
                    if progress == Progress::Open {
                        self.carry.extend_from_slice(&bytes[at..]);
                    }
                    Ok(progress)
                }
                Err(violation) => Err(violation),
            }
        } else {
            let mut carry = std::mem::take(&mut self.carry);
            let seen = carry.len();
            carry.extend_from_slice(bytes);
            self.read(&carry, seen, sink).map(|(at, progress)| {
                if progress == Progress::Open && at < carry.len() {
                    carry.drain(..at);
                    self.carry = carry;
                }
                progress
            })
        };
        if let Err(violation) = result {
            self.phase = Phase::Over;
            self.reading = None;
            if self.queue.len() > 0 && violation != ProtocolError::Unsolicited {
                self.oldest_decision = Some(ReplayDecision::ProtocolError(violation));
            }
        }
        result
    }

    /// Reads answers from the start of `bytes`, of which the first `seen` were examined before. Returns the number of
    /// bytes consumed; the rest is incomplete.
    #[inline]
    fn read(
        &mut self,
        bytes: &[u8],
        seen: usize,
        sink: &mut impl Sink,
    ) -> Result<(usize, Progress), ProtocolError> {
        let mut at = 0;
        while at < bytes.len() {
            if self.reading.is_some() {
                let (taken, ended) = self.read_body(&bytes[at..], sink)?;
                at += taken;
                match ended {
                    true if self.notice => return Ok((bytes.len(), self.over())),
                    true => continue,
                    false => return Ok((at, Progress::Open)),
                }
            }
            let rest = &bytes[at..];
            let Some(request) = self.queue.front().filter(|_| self.phase == Phase::Open) else {
                return Ok((at + self.read_unasked(rest)?, self.progress()));
            };
            let mut unfolded = Vec::new();
            let (meaning, length, repeated) = match self.known.recognise(rest, request.kind) {
                Some((meaning, length)) => (meaning, length, true),
                None => {
                    let seen = seen.saturating_sub(at);
                    match self.read_head(rest, seen, request.kind, &mut unfolded)? {
                        Some((meaning, length)) => (meaning, length, false),
                        None => return Ok((at, Progress::Open)),
                    }
                }
            };
            let bytes_of_head = if unfolded.is_empty() { &rest[..length] } else { &unfolded };
            let head = meaning.head(bytes_of_head, request.kind, repeated);

            // The fast path: the whole answer is in the buffer, and others may follow it.
            if let Some(body_bytes) = head.length
                && meaning.keep_alive
                && meaning.status >= 200
                && let Ok(body_bytes) = usize::try_from(body_bytes)
                && let Some(body) = rest[length..].get(..body_bytes)
            {
                sink.on_head(&request, &head);
                if !body.is_empty() {
                    sink.on_body(&request, body);
                }
                self.answer_ends(&request, sink);
                at += length + body_bytes;
                continue;
            }
            at += length;
            if let Some(progress) = self.begin(&request, &meaning, &head, sink) {
                return Ok((
                    bytes.len(),
                    match progress {
                        Progress::Upgraded { .. } => Progress::Upgraded { rest: bytes.len() - at },
                        progress => progress,
                    },
                ));
            }
        }
        Ok((at, self.progress()))
    }

    /// Handles an answer with a partial body, an interim answer, or the last answer.
    #[cold]
    fn begin(
        &mut self,
        request: &InFlight,
        meaning: &ParsedHead,
        head: &Head<'_>,
        sink: &mut impl Sink,
    ) -> Option<Progress> {
        if meaning.is_interim() {
            sink.on_interim(request, head);
            return None;
        }
        // A 408 ends an idle connection and may cross our request; the server has not seen a whole request (RFC 9110
        // §15.5.9). A second 408 for the same request is its answer.
        if meaning.status == 408 && !meaning.keep_alive && !request.kind.is_replayed() {
            self.notice = true;
            return Some(self.over());
        }
        let tunnel = request.kind.method() == Method::Connect && (200..300).contains(&head.status);
        sink.on_head(request, head);
        if meaning.status == 101 || tunnel {
            self.answer_ends(request, sink);
            self.phase = Phase::Over;
            return Some(Progress::Upgraded { rest: 0 });
        }
        self.notice = !meaning.keep_alive;
        if meaning.body.is_done() {
            self.answer_ends(request, sink);
            return self.notice.then(|| self.over());
        }
        self.reading = Some(Reading { body: meaning.body, status: meaning.status });
        None
    }

    /// Reads a body further. Returns the number of bytes consumed, and whether the body is complete.
    fn read_body(
        &mut self,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(usize, bool), ProtocolError> {
        let (Some(request), Some(reading)) = (self.queue.front(), &mut self.reading) else {
            return Ok((0, true));
        };
        let mut at = 0;
        loop {
            let (taken, piece) =
                reading.body.decode(&bytes[at..]).map_err(ProtocolError::Malformed)?;
            at += taken;
            match piece {
                Body::Data(data) => sink.on_body(&request, data),
                Body::Trailer(name, value) => sink.on_trailer(&request, name, value),
                Body::NeedMore => return Ok((at, false)),
                Body::End => {}
            }
            if reading.body.is_done() {
                self.reading = None;
                self.answer_ends(&request, sink);
                return Ok((at, true));
            }
        }
    }

    #[inline]
    fn answer_ends(&mut self, request: &InFlight, sink: &mut impl Sink) {
        self.queue.pop();
        self.answered += 1;
        sink.on_end(request);
    }

    /// Reads a complete head. Returns `None` if it is incomplete. If it has folded lines, `unfolded` is the head without
    /// them, of the same length.
    #[cold]
    fn read_head(
        &mut self,
        bytes: &[u8],
        seen: usize,
        kind: Kind,
        unfolded: &mut Vec<u8>,
    ) -> Result<Option<(ParsedHead, usize)>, ProtocolError> {
        if !worth_decoding(bytes, seen, self.limits.head_bytes_max) {
            return Ok(None);
        }
        expect_http(bytes)?;
        let mut decoded = self.known.decode(bytes, kind, &self.limits);
        if let Err(Error::Folded) = decoded {
            *unfolded = http1::unfolded(bytes);
            decoded = self.known.decode(unfolded, kind, &self.limits);
        }
        decoded.map_err(ProtocolError::Malformed)
    }

    /// Handles bytes without a request. After the last answer they are ignored; before a request they may be the 408
    /// of a server that closes an idle connection. Returns the number of bytes consumed.
    #[cold]
    fn read_unasked(&mut self, bytes: &[u8]) -> Result<usize, ProtocolError> {
        if self.phase == Phase::Over {
            return Ok(bytes.len());
        }
        self.phase = Phase::Unasked;
        expect_http(bytes).map_err(|_| ProtocolError::Unsolicited)?;
        let mut slots = HeaderSlots::new();
        match decode_response(bytes, &mut slots, &self.limits, Method::Get) {
            Ok(Decoded::NeedMore) => Ok(0),
            Ok(Decoded::Head(head, _)) if head.status == 408 => {
                self.notice = true;
                self.phase = Phase::Over;
                Ok(bytes.len())
            }
            Ok(Decoded::Head(..)) | Err(_) => Err(ProtocolError::Unsolicited),
        }
    }

    fn over(&mut self) -> Progress {
        self.phase = Phase::Over;
        Progress::LastAnswer
    }

    fn progress(&self) -> Progress {
        if self.phase == Phase::Over { Progress::LastAnswer } else { Progress::Open }
    }

    /// Handles the server's FIN. It completes a body that is delimited by the close.
    pub fn handle_eof(&mut self, sink: &mut impl Sink) -> Close {
        if let Some(reading) = self.reading
            && reading.body.ends_at_close()
            && let Some(request) = self.queue.front()
        {
            self.reading = None;
            self.answer_ends(&request, sink);
        }
        self.close()
    }

    /// Handles the end of a connection that broke, could not be opened, or was aborted by its owner.
    pub fn handle_reset(&mut self) -> Close {
        self.close()
    }

    /// Handles the timeout of the oldest request. Close the connection; a late answer is not accepted.
    pub fn handle_timeout(&mut self) -> Close {
        let close = self.close();
        if let Some(request) = self.queue.front() {
            let idempotent = request.kind.is_idempotent();
            self.oldest_decision = Some(ReplayDecision::TimedOut { idempotent });
        }
        close
    }

    fn close(&mut self) -> Close {
        let cut_head = self.phase == Phase::Open && !self.carry.is_empty();
        let cut = self.queue.len() > 0 && (self.reading.is_some() || cut_head);
        if let Some(request) = self.queue.front()
            && cut
            && self.oldest_decision.is_none()
        {
            self.oldest_decision = Some(ReplayDecision::Cut {
                status: self.reading.map_or(0, |reading| reading.status),
                idempotent: request.kind.is_idempotent(),
            });
        }
        let orderly = self.phase == Phase::Open && !cut && !self.notice;
        let at_budget = orderly && self.budget == Some(self.answered);
        let close = Close { notice: self.notice, at_budget, cut, idle: self.queue.len() == 0 };
        self.notice |= at_budget;
        self.phase = Phase::Over;
        self.reading = None;
        self.carry = Vec::new();
        close
    }

    /// Returns the next request without an answer and what may be done with it, oldest first. `None` while the
    /// connection is open, and after the last one.
    pub fn poll_unanswered(&mut self) -> Option<(InFlight, ReplayDecision)> {
        if self.phase != Phase::Over {
            return None;
        }
        let request = self.queue.pop()?;
        let decision = self.oldest_decision.take().unwrap_or(match () {
            () if self.notice => ReplayDecision::NotProcessed,
            () if request.kind.is_idempotent() => ReplayDecision::Replay,
            () => ReplayDecision::Uncertain,
        });
        Some((request, decision))
    }

    /// Returns the number of requests that were sent and are not answered.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.queue.len()
    }

    /// Returns the oldest request in flight. It is answered next, and its timeout is running.
    #[inline]
    pub fn oldest(&self) -> Option<InFlight> {
        self.queue.front()
    }

    /// Returns the number of requests sent on this connection.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the number of requests answered completely on this connection.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Returns whether requests can be sent, now or after others are answered.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
            && !self.notice
            && self.budget.is_none_or(|budget| self.sent < budget)
    }

    /// Sets the number of requests that the server accepts on one connection; see [`Budget`](crate::Budget).
    pub fn set_budget(&mut self, requests: Option<u64>) {
        self.budget = requests;
    }
}

/// Returns whether an incomplete head may be complete now: only a line end can complete one. Avoids decoding again for
/// each byte of a slow server.
fn worth_decoding(bytes: &[u8], seen: usize, head_bytes_max: usize) -> bool {
    seen == 0 || bytes.len() >= head_bytes_max || bytes[seen..].contains(&b'\n')
}

fn expect_http(bytes: &[u8]) -> Result<(), ProtocolError> {
    const BEGIN: &[u8] = b"HTTP/";
    let begun = bytes.len().min(BEGIN.len());
    match bytes[..begun] == BEGIN[..begun] {
        true => Ok(()),
        // Most often extra bytes after a body.
        false if matches!(bytes[0], b'\r' | b'\n') => {
            Err(ProtocolError::Malformed(Error::StartLine))
        }
        false => Err(ProtocolError::NotHttp),
    }
}
