//! One connection of the test server: bytes in, steps of answers out. The thread owns the socket.

use std::collections::VecDeque;

use dunlin_wire::backoff::Jitter;
use dunlin_wire::http1::{
    self, Body, BodyDecoder, Decoded, HeaderSlots, Limits, Method, RequestHead,
};

use super::answer::{AfterStep, RequestFacts, Step, steps};
use super::behaviour::{Behaviour, ConnectionEnd, listing};

/// State shared by the connections of one thread.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) behaviour: Behaviour,
    pub(super) limits: Limits,
    /// Numbers answers across threads: this thread's next number, and the increment between its numbers.
    pub(super) served: u64,
    pub(super) served_step: u64,
    /// Random numbers, seeded alike in each run.
    pub(super) random: Jitter,
    pub(super) log: Option<super::log::Log>,
    constant: Constant,
}

/// The most recent request whose answer is constant, and that answer.
#[derive(Debug, Default)]
struct Constant {
    request: Vec<u8>,
    answer: Vec<u8>,
    /// Answers of a connection before its last, which differs from the others.
    answers_before_last: u64,
}

impl Shared {
    pub(super) fn new(behaviour: Behaviour, thread: u64, threads: u64) -> Self {
        Self {
            behaviour,
            limits: Limits { body_bytes_max: 64 << 20, ..Limits::default() },
            served: thread,
            served_step: threads,
            random: Jitter::new(0x9e37_79b9_7f4a_7c15 ^ (thread + 1)),
            log: None,
            constant: Constant::default(),
        }
    }
}

/// The thread's next action after some input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Send what was appended to the output; the connection goes on.
    Open,
    /// As [`Outcome::Open`], but the whole thread first sleeps for this many nanoseconds.
    Stall(u64),
}

/// State of one connection.
#[derive(Debug, Default)]
pub(super) struct Connection {
    /// Requests answered or in progress.
    answers: u64,
    /// The part of an incomplete request head that has arrived.
    pub(super) cut: Vec<u8>,
    /// A request whose body is not complete.
    pending: Option<Box<Pending>>,
    /// Steps that wait for their time, or for earlier steps.
    pub(super) script: VecDeque<Step>,
    /// The last answer is in progress: later requests are not read (RFC 9112 §9.6).
    pub(super) ended: bool,
}

/// The answer to send once the request body is complete.
#[derive(Debug)]
struct Pending {
    behaviour: Behaviour,
    head: bool,
    close: bool,
    id: Option<String>,
    target: String,
    decoder: BodyDecoder,
    body: Vec<u8>,
}

impl Connection {
    /// Processes input. Appends answers that may be sent at once to `out`, unless others wait before them.
    pub(super) fn handle_input(
        &mut self,
        mut bytes: &[u8],
        shared: &mut Shared,
        now_ns: u64,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let mut outcome = Outcome::Open;
        while !bytes.is_empty() && !self.ended {
            if self.pending.is_some() {
                match self.take_body(bytes, shared, now_ns, out) {
                    // An incomplete chunk-size line: it is passed again with more data.
                    0 if self.pending.is_some() => break,
                    taken => bytes = &bytes[taken..],
                }
                continue;
            }
            let repeats = self.repeat(bytes, shared, out);
            if repeats > 0 {
                bytes = &bytes[repeats..];
                continue;
            }
            let mut slots = HeaderSlots::new();
            match http1::decode_request(bytes, &mut slots, &shared.limits) {
                Ok(Decoded::NeedMore) => break,
                Ok(Decoded::Head(head, consumed)) => {
                    let (request, rest) = bytes.split_at(consumed);
                    bytes = rest;
                    if let Outcome::Stall(ns) = self.take_head(&head, request, shared, now_ns, out)
                    {
                        outcome = Outcome::Stall(ns);
                        // Answers before the stall are sent first; later input is read after it.
                        break;
                    }
                }
                Err(error) => {
                    self.refuse(error, now_ns, out);
                }
            }
        }
        if self.ended {
            bytes = &[];
        }
        self.cut.clear();
        self.cut.extend_from_slice(bytes);
        outcome
    }

    /// The fast path: answers consecutive repetitions of the last constant request by copies. Returns the bytes consumed.
    fn repeat(&mut self, bytes: &[u8], shared: &Shared, out: &mut Vec<u8>) -> usize {
        let constant = &shared.constant;
        if constant.request.is_empty() || !self.script.is_empty() {
            return 0;
        }
        let mut rest = bytes;
        let room = constant.answers_before_last.saturating_sub(self.answers);
        let mut count = 0;
        while count < room
            && let Some(behind) = rest.strip_prefix(&constant.request[..])
        {
            rest = behind;
            count += 1;
            out.extend_from_slice(&constant.answer);
        }
        self.answers += count;
        bytes.len() - rest.len()
    }

    fn take_head(
        &mut self,
        head: &RequestHead<'_>,
        request: &[u8],
        shared: &mut Shared,
        now_ns: u64,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let behaviour = match shared.behaviour.of_path(head.path, head.query) {
            Ok(behaviour) => behaviour,
            Err(sentence) => {
                let behaviour = Behaviour { status: 404, ..Behaviour::default() };
                let text = format!("{sentence}\n");
                let asked =
                    RequestFacts { body: Some(text.as_bytes()), ..RequestFacts::new(head.method) };
                self.answers += 1;
                self.answer(&behaviour, asked, now_ns, out);
                return Outcome::Open;
            }
        };
        let id = behaviour
            .id
            .clone()
            .or_else(|| head.headers.get_str("x-request-id").map(str::to_owned));
        let stall_ns = behaviour.stall.as_nanos() as u64;
        if head.expect_continue {
            self.push(
                Step {
                    due_ns: 0,
                    bytes: http1::CONTINUE.to_vec(),
                    pace_ns: 0,
                    then: AfterStep::Go,
                },
                out,
            );
        }
        let constant = id.is_none()
            && stall_ns == 0
            && behaviour.is_constant()
            && head.method == Method::Get
            && head.keep_alive
            && head.path != "/"
            && head.body.is_done();
        if constant {
            let mut answer = Vec::new();
            steps(&behaviour, RequestFacts::new(head.method), 0, &mut answer);
            shared.constant = Constant {
                request: request.to_vec(),
                answer: answer.into_iter().flat_map(|step| step.bytes).collect(),
                answers_before_last: behaviour.answers_max().saturating_sub(1),
            };
        }
        let pending = Pending {
            head: head.method == Method::Head,
            close: !head.keep_alive,
            id,
            target: head.path.to_owned(),
            decoder: head.body,
            body: Vec::new(),
            behaviour,
        };
        if pending.decoder.is_done() {
            self.finish(&pending, shared, now_ns, out);
        } else {
            self.pending = Some(Box::new(pending));
        }
        if stall_ns > 0 { Outcome::Stall(stall_ns) } else { Outcome::Open }
    }

    /// Consumes bytes of a request's body, and answers when it is complete. Returns how many it consumed.
    fn take_body(
        &mut self,
        bytes: &[u8],
        shared: &mut Shared,
        now_ns: u64,
        out: &mut Vec<u8>,
    ) -> usize {
        let Some(mut pending) = self.pending.take() else { return 0 };
        let mut taken = 0;
        loop {
            match pending.decoder.decode(&bytes[taken..]) {
                Ok((consumed, piece)) => {
                    taken += consumed;
                    match piece {
                        Body::Data(data) if pending.behaviour.echo => {
                            pending.body.extend_from_slice(data);
                        }
                        Body::Data(_) | Body::Trailer(..) => {}
                        Body::NeedMore => {
                            self.pending = Some(pending);
                            return taken;
                        }
                        Body::End => {
                            self.finish(&pending, shared, now_ns, out);
                            return taken;
                        }
                    }
                }
                Err(error) => {
                    self.refuse(error, now_ns, out);
                    return bytes.len();
                }
            }
        }
    }

    fn finish(&mut self, pending: &Pending, shared: &mut Shared, now_ns: u64, out: &mut Vec<u8>) {
        self.answers += 1;
        let served = shared.served;
        shared.served += shared.served_step;
        let behaviour = &pending.behaviour;
        let reset = behaviour.reset_one_in.is_some_and(|n| shared.random.below(n) == 0);
        let processed = !reset || shared.random.below(2) == 0;
        if let (Some(log), Some(id), true) = (&mut shared.log, &pending.id, processed) {
            log.note(served, id, !reset);
        }
        if reset {
            return self.push(
                Step { due_ns: now_ns, bytes: Vec::new(), pace_ns: 0, then: AfterStep::Reset },
                out,
            );
        }
        let end = behaviour.end(self.answers).or(pending.close.then_some(ConnectionEnd::Said));
        let page;
        let body = if behaviour.echo {
            Some(&pending.body[..])
        } else if pending.target == "/" && pending.id.is_none() {
            page = listing();
            Some(page.as_bytes())
        } else {
            None
        };
        let asked =
            RequestFacts { head: pending.head, id: pending.id.as_deref(), served, end, body };
        self.answer(behaviour, asked, now_ns, out);
    }

    /// Sends the last answer of a connection on which invalid HTTP arrived.
    fn refuse(&mut self, error: http1::Error, now_ns: u64, out: &mut Vec<u8>) {
        let behaviour = Behaviour { status: error.status(), ..Behaviour::default() };
        let text = format!("{error}\n");
        let (end, body) = (Some(ConnectionEnd::Said), Some(text.as_bytes()));
        self.answer(
            &behaviour,
            RequestFacts { end, body, ..RequestFacts::new(Method::Get) },
            now_ns,
            out,
        );
    }

    fn answer(
        &mut self,
        behaviour: &Behaviour,
        asked: RequestFacts<'_>,
        now_ns: u64,
        out: &mut Vec<u8>,
    ) {
        let mut answer = Vec::new();
        steps(behaviour, asked, now_ns, &mut answer);
        for step in answer {
            // A step that is due needs no timer; 0 marks it.
            let due_ns = if step.due_ns <= now_ns { 0 } else { step.due_ns };
            self.push(Step { due_ns, ..step }, out);
        }
    }

    /// Appends a step to the output if it may be sent at once and nothing waits before it, else to the script.
    fn push(&mut self, step: Step, out: &mut Vec<u8>) {
        self.ended |=
            matches!(step.then, AfterStep::Finish | AfterStep::Reset | AfterStep::Silence);
        if self.script.is_empty()
            && step.due_ns == 0
            && step.pace_ns == 0
            && step.then == AfterStep::Go
        {
            out.extend_from_slice(&step.bytes);
        } else {
            self.script.push_back(step);
        }
    }

    /// Moves due steps from the script to the output. Returns what to do once that is sent, and when to call again.
    pub(super) fn poll_script(
        &mut self,
        now_ns: u64,
        out: &mut Vec<u8>,
    ) -> (AfterStep, Option<u64>) {
        while let Some(step) = self.script.front_mut() {
            if step.due_ns > now_ns {
                return (AfterStep::Go, Some(step.due_ns));
            }
            if step.pace_ns > 0 && step.bytes.len() > 1 {
                out.push(step.bytes.remove(0));
                step.due_ns = now_ns.max(step.due_ns) + step.pace_ns;
                continue;
            }
            out.extend_from_slice(&step.bytes);
            let then = step.then;
            self.script.pop_front();
            if then != AfterStep::Go {
                self.script.clear();
                return (then, None);
            }
        }
        (AfterStep::Go, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &[u8] = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";

    fn shared(behaviour: Behaviour) -> Shared {
        Shared::new(behaviour, 0, 1)
    }

    fn outcome(
        connection: &mut Connection,
        shared: &mut Shared,
        bytes: &[u8],
        now_ns: u64,
    ) -> String {
        let mut out = Vec::new();
        connection.handle_input(bytes, shared, now_ns, &mut out);
        connection.poll_script(now_ns, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_hundred_pipelined_requests_get_a_hundred_answers_however_they_are_cut() {
        let mut shared = shared(Behaviour::default());
        let requests = GET.repeat(100);
        for cut in [1, 7, 31, 32, 33, 1000, requests.len()] {
            let mut connection = Connection::default();
            let mut all = String::new();
            let mut held = Vec::new();
            for piece in requests.chunks(cut) {
                held.extend_from_slice(piece);
                all += &outcome(&mut connection, &mut shared, &held, 0);
                held.clone_from(&connection.cut);
            }
            assert_eq!(all.matches("Hello, World!").count(), 100, "cut at {cut}");
        }
    }

    #[test]
    fn the_fast_path_stops_at_the_last_answer_of_a_connection() {
        let mut shared = shared(Behaviour { close_after: Some(3), ..Behaviour::default() });
        for _ in 0..2 {
            let mut connection = Connection::default();
            let all = outcome(&mut connection, &mut shared, &GET.repeat(10), 0);
            assert_eq!(all.matches("Hello").count(), 3);
            assert_eq!(all.matches("Connection: close").count(), 1);
            assert!(connection.ended);
        }
    }

    #[test]
    fn a_delayed_answer_holds_back_those_behind_it() {
        let mut shared = shared(Behaviour::default());
        let mut connection = Connection::default();
        let slow = b"GET /delay/1s HTTP/1.1\r\nHost: x\r\n\r\n";
        let both = [&slow[..], GET].concat();
        assert_eq!(outcome(&mut connection, &mut shared, &both, 5), "");
        let mut out = Vec::new();
        assert_eq!(connection.poll_script(6, &mut out), (AfterStep::Go, Some(1_000_000_005)));
        connection.poll_script(1_000_000_005, &mut out);
        assert_eq!(String::from_utf8(out).unwrap().matches("Hello").count(), 2);
    }

    #[test]
    fn a_slow_answer_leaves_byte_by_byte() {
        let mut shared = shared(Behaviour::default());
        let mut connection = Connection::default();
        let request = b"GET /slow/1s HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_eq!(outcome(&mut connection, &mut shared, request, 0), "H");
        let mut out = Vec::new();
        assert_eq!(connection.poll_script(1_000_000_000, &mut out).1, Some(2_000_000_000));
        assert_eq!(out, b"T");
    }

    #[test]
    fn an_echo_answers_with_the_body_chunked_or_not() {
        let mut shared = shared(Behaviour::default());
        let mut connection = Connection::default();
        let post = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nping";
        assert!(outcome(&mut connection, &mut shared, post, 0).ends_with("\r\n\r\nping"));
        let chunked =
            b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\npi\r\n2\r\nng\r\n0\r\n\r\n";
        assert!(outcome(&mut connection, &mut shared, chunked, 0).ends_with("\r\n\r\nping"));
        assert!(connection.cut.is_empty());
    }

    #[test]
    fn a_bad_request_and_an_unknown_path_are_reported_why() {
        let mut shared = shared(Behaviour::default());
        let mut connection = Connection::default();
        let unknown =
            outcome(&mut connection, &mut shared, b"GET /dance HTTP/1.1\r\nHost: x\r\n\r\n", 0);
        assert!(
            unknown.starts_with("HTTP/1.1 404") && unknown.contains("GET / lists"),
            "{unknown}"
        );
        let bad = outcome(&mut connection, &mut shared, b"GET /\r\n\r\n", 0);
        assert!(bad.starts_with("HTTP/1.1 400") && connection.ended, "{bad}");
    }
}
