//! One connection of a pipelining client, without its socket.

use dunlin_wire::http1::{Body, BodyDecoder, Error, HeaderSlots, Limits, decode_response};
use dunlin_wire::http1::{Decoded, Method};

use crate::head::{Head, Known, ParsedHead};
use crate::in_flight::{InFlight, Queue};
use crate::{Kind, ProtocolError};

/// Takes what a connection reads. Every method has an empty default.
///
/// For each answer the connection calls `on_head` once, then passes the body in pieces, then calls `on_end`. An answer that is cut short
/// has no `on_end`; [`Connection::poll_unanswered`] returns its request.
#[expect(unused_variables, reason = "the names of the arguments are documentation")]
pub trait Sink {
    /// The final head of an answer.
    fn on_head(&mut self, request: &InFlight, head: &Head<'_>) {}

    /// An interim answer: 1xx, other than 101. The final one follows.
    fn on_interim(&mut self, request: &InFlight, head: &Head<'_>) {}

    /// Bytes of the body, without the framing of chunks. Never empty.
    fn on_body(&mut self, request: &InFlight, bytes: &[u8]) {}

    /// A trailer field of a chunked body.
    fn on_trailer(&mut self, request: &InFlight, name: &str, value: &[u8]) {}

    /// The answer is complete.
    fn on_end(&mut self, request: &InFlight) {}
}

/// A sink for those who only count what [`Connection::answered`] counts.
impl Sink for () {}

/// Bounds on the answers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Bytes of a head.
    pub head_bytes_max: usize,
    /// Headers of a head.
    pub headers_max: usize,
    /// Bytes of a body. It is handed on in pieces, so that none of it costs memory here.
    pub body_bytes_max: u64,
    /// Bytes of chunk extensions and trailers of one body.
    pub chunk_overhead_bytes_max: u32,
}

impl Default for ConnectionLimits {
    /// 64 KiB of head, 100 headers, any body.
    fn default() -> ConnectionLimits {
        ConnectionLimits {
            head_bytes_max: 64 << 10,
            headers_max: 100,
            body_bytes_max: u64::MAX,
            chunk_overhead_bytes_max: 64 << 10,
        }
    }
}

/// What the caller does after the connection has read bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It goes on.
    Open,
    /// The server answers nothing more on this connection. Close it, and ask for the
    /// [unanswered](Connection::poll_unanswered).
    LastAnswer,
    /// HTTP has ended (101, or a tunnel): the last `rest` bytes given, and all that follow, are the other
    /// protocol's. What had been sent behind the request for it is [unanswered](Connection::poll_unanswered).
    Upgraded {
        /// Bytes at the end of the input that are not HTTP any more.
        rest: usize,
    },
}

/// How a connection ended, and what that means for the requests that were outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// The server had said that it would close: by `Connection: close`, by a body that lasts until then, or by a
    /// 408 to an idle client.
    pub notice: bool,
    /// It closed, without a word, behind as many answers as it is known to give.
    pub at_budget: bool,
    /// It closed in the middle of an answer.
    pub cut: bool,
    /// Nothing was outstanding: an idle connection was closed, as any server may at any time.
    pub idle: bool,
}

/// What the caller may do with a request that was sent and not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayDecision {
    /// The server has not processed it and will not, for it said `Connection: close` before its turn came
    /// (RFC 9112 §9.6), or closed at the number of requests it is known to take. Send it again, whatever its method.
    NotProcessed,
    /// Nobody knows whether it was processed, and it does not matter: it is idempotent. Send it again.
    Replay,
    /// Nobody knows whether it was processed, and to send it again might do it twice.
    Uncertain,
    /// Its answer had begun, so it was processed. Send it again if it is idempotent and nothing of the answer was
    /// passed on.
    Cut {
        /// The status, 0 when not even that came.
        status: u16,
        /// Whether it may be sent twice.
        idempotent: bool,
    },
    /// It was the oldest, and its time ran out.
    TimedOut {
        /// Whether it may be sent twice.
        idempotent: bool,
    },
    /// Its answer was none.
    ProtocolError(ProtocolError),
}

/// The state of one HTTP/1.1 connection as its client sees it: which requests are out, and where in the answers
/// it is. Does no I/O and reads no clock.
///
/// 1. [`room`](Connection::room) says how many requests may leave; write them in one piece, then call
///    [`handle_sent`](Connection::handle_sent).
/// 2. Give all that is received to [`handle_input`](Connection::handle_input), as it comes. The [`Sink`] is called for
///    each answer, with the tag of its request.
/// 3. When that returns anything but [`Progress::Open`], or the connection ends
///    ([`handle_eof`](Connection::handle_eof), [`handle_reset`](Connection::handle_reset)), or the oldest request has
///    waited too long ([`handle_timeout`](Connection::handle_timeout)), close the socket and drain
///    [`poll_unanswered`](Connection::poll_unanswered): each request that got no answer comes out once, with what
///    may be done with it.
///
/// Each tag given to `handle_sent` thus comes back once: in `on_end`, or from `poll_unanswered`.
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
    /// The answer under way: its head has been handed out, its end has not.
    reading: Option<Reading>,
    phase: Phase,
    /// What the first of the unanswered is to hear, when it differs from the others.
    oldest_decision: Option<ReplayDecision>,
    /// The server has said that it closes behind the answer under way, or behind the last one.
    notice: bool,
    /// A cut head or chunk line.
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
    /// Bytes came while nothing was asked. No request may leave any more, lest they be taken for its answer.
    Unasked,
    /// No byte means anything any more.
    Over,
}

impl Connection {
    /// A connection on which nothing has been sent.
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

    /// How many requests may be sent now, if at most `depth` may be in flight. It stays 0 once the server has announced that
    /// it closes, or has been sent all requests of its budget.
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

    /// `count` requests of one kind have left, with the tags `first`, `first + 1` and so on.
    #[inline]
    pub fn handle_sent(&mut self, first: u64, count: u32, kind: Kind, now_ns: u64) {
        self.sent += u64::from(count);
        self.queue.push(InFlight { tag: first, sent_ns: now_ns, kind }, count);
    }

    /// Takes what was received, all of it.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`]: close the connection; the oldest request has got a bad answer, the others none.
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

    /// Reads answers from the start of `bytes`, of which the first `seen` have been looked at before. Returns how
    /// many bytes it took; what is left is the beginning of something.
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
            let (meaning, length, repeated) = match self.known.recognise(rest, request.kind) {
                Some((meaning, length)) => (meaning, length, true),
                None => match self.read_head(rest, seen.saturating_sub(at), request.kind)? {
                    Some((meaning, length)) => (meaning, length, false),
                    None => return Ok((at, Progress::Open)),
                },
            };
            let head = meaning.head(&rest[..length], request.kind, repeated);

            // The whole answer is here, and others may follow it: what nearly every answer is.
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

    /// An answer that is out of the ordinary: its body is to come, it is interim, or it is the last.
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
        // A server tired of an idle client says so, and our request crosses its farewell: it did not see a whole
        // request (RFC 9110 §15.5.9). Once is enough; the second 408 is an answer.
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

    /// Reads on in a body. Returns how many bytes it took, and whether the body ended.
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

    /// Reads a head in full. `None`: it is not complete.
    #[cold]
    fn read_head(
        &mut self,
        bytes: &[u8],
        seen: usize,
        kind: Kind,
    ) -> Result<Option<(ParsedHead, usize)>, ProtocolError> {
        if !worth_decoding(bytes, seen, self.limits.head_bytes_max) {
            return Ok(None);
        }
        expect_http(bytes)?;
        self.known.decode(bytes, kind, &self.limits).map_err(ProtocolError::Malformed)
    }

    /// Bytes that answer nothing: behind the last answer they mean nothing, before a request they may be the
    /// farewell of a server tired of waiting. Returns how many it took.
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

    /// The server has finished sending (FIN): a body that lasts until then is complete.
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

    /// The connection has broken, could not be opened, or is given up by its owner.
    pub fn handle_reset(&mut self) -> Close {
        self.close()
    }

    /// The oldest request has waited too long for its answer. Close the connection: nobody takes an answer that comes
    /// late.
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

    /// The next request without an answer and what may be done with it, oldest first. `None` while the
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

    /// Requests that were sent and are not answered.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.queue.len()
    }

    /// The request whose answer comes next: the head of the line, and the only one whose clock runs.
    #[inline]
    pub fn oldest(&self) -> Option<InFlight> {
        self.queue.front()
    }

    /// Requests sent since the connection was opened.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Requests answered completely since the connection was opened.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Whether requests may be sent on it, now or when others are answered.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
            && !self.notice
            && self.budget.is_none_or(|budget| self.sent < budget)
    }

    /// Sets how many requests the server takes on one connection, so that none is sent in vain; see
    /// [`Budget`](crate::Budget).
    pub fn set_budget(&mut self, requests: Option<u64>) {
        self.budget = requests;
    }
}

/// True when a head that was not complete may be now: only a line end completes one. Spares the decoder from a
/// server that sends byte by byte.
fn worth_decoding(bytes: &[u8], seen: usize, head_bytes_max: usize) -> bool {
    seen == 0 || bytes.len() >= head_bytes_max || bytes[seen..].contains(&b'\n')
}

fn expect_http(bytes: &[u8]) -> Result<(), ProtocolError> {
    const BEGIN: &[u8] = b"HTTP/";
    let begun = bytes.len().min(BEGIN.len());
    match bytes[..begun] == BEGIN[..begun] {
        true => Ok(()),
        // Bytes too many behind a body, most often.
        false if matches!(bytes[0], b'\r' | b'\n') => {
            Err(ProtocolError::Malformed(Error::StartLine))
        }
        false => Err(ProtocolError::NotHttp),
    }
}
