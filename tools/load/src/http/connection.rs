//! One connection of the generator: the pipeline's state, its socket, and what to send next.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use dunlin_pipeline::{
    Budget, Close, Connection as Pipeline, ConnectionLimits, Copies, InFlight, Kind, Progress,
    ProtocolError, ReplayDecision, Window, WindowConfig,
};
use rustix::io::Errno;

use super::options::Depth;
use super::plan::{Ledger, Plan};
use super::reader::{Read, Reader, Reading};
use super::schedule::Schedule;
use super::tally::Tally;
use crate::transport::{Broken, Transport};

/// The largest depth of `--pipeline auto`.
const AUTO_DEPTH_MAX: u32 = 1_000;
/// A connection still open this long after its request budget was used up has outlived the budget.
const OUTLIVED_NS: u64 = 50_000_000;

/// A request to be sent again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resend {
    pub(super) tag: u64,
    /// When it was first sent or scheduled; latency counts from this time.
    pub(super) since_ns: u64,
    pub(super) attempt: u16,
}

/// State shared by the connections of a thread.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) plan: Arc<Plan>,
    pub(super) schedule: Schedule,
    pub(super) tally: Box<Tally>,
    pub(super) ledger: Option<Ledger>,
    pub(super) again: VecDeque<Resend>,
    /// How often each in-flight request was sent, for those sent more than once.
    attempts: HashMap<u64, u16>,
    copies: Option<(Copies, Kind)>,
    /// The kind of all requests, if they share one.
    kind: Option<Kind>,
    budget: Budget,
    seed: Window,
    look_inside: bool,
    /// The tag of the first request that counts, after those of the warm-up.
    pub(super) counted_from: u64,
    pub(super) body: Vec<u8>,
    pub(super) out: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) transport: Transport,
    pub(super) opened: bool,
    /// When the current state began: connecting, or waiting for the oldest answer.
    pub(super) since_ns: u64,
    pub(super) pipeline: Pipeline,
    window: Option<Window>,
    depth: u32,
    reading: Reading,
}

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum CloseCause {
    /// The server announced that it sends no more answers.
    Notice,
    Broken(Broken),
    Violation(ProtocolError),
    Upgraded,
    /// Nothing arrived for `--timeout`.
    Silence,
    /// It was not open after `--connect-timeout`.
    ConnectTimeout,
}

impl Core {
    pub(super) fn new(plan: Arc<Plan>, thread: u32) -> Self {
        let kind = plan.requests.kind();
        let seed = Window::new(WindowConfig { min: 1, max: AUTO_DEPTH_MAX });
        let depth_max = match plan.depth {
            Depth::Fixed(depth) => depth,
            Depth::Auto => AUTO_DEPTH_MAX,
        };
        let copies = plan
            .requests
            .constant()
            .zip(kind)
            .map(|(bytes, kind)| (Copies::new(&bytes, depth_max as usize), kind));
        Self {
            schedule: Schedule::new(thread, plan.threads, plan.rate),
            tally: Box::new(Tally::new()),
            ledger: plan.ledger.clone().map(Ledger::new),
            again: VecDeque::new(),
            attempts: HashMap::new(),
            copies,
            kind,
            budget: Budget::default(),
            seed,
            look_inside: plan.checks.look_inside() || plan.ledger.is_some(),
            counted_from: 0,
            body: Vec::new(),
            out: Vec::new(),
            plan,
        }
    }

    #[inline]
    fn reader<'a>(&'a mut self, reading: &'a mut Reading, now_ns: u64) -> Reader<'a> {
        Reader {
            checks: &self.plan.checks,
            host: &self.plan.address.authority,
            schedule: &self.schedule,
            tally: &mut self.tally,
            ledger: self.ledger.as_mut(),
            attempts: &mut self.attempts,
            reading,
            look_inside: self.look_inside,
            counted_from: self.counted_from,
            now_ns,
            read: Read::default(),
        }
    }

    /// Ends the warm-up.
    pub(super) fn begin_to_count(&mut self) {
        self.counted_from = self.schedule.sent();
        if let Some(count) = self.plan.requests_wanted() {
            self.schedule.limit(count);
        }
    }

    /// Returns whether requests remain to be sent, now or later.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        !self.again.is_empty() || !self.schedule.is_over()
    }

    pub(super) fn waiting_again(&self) -> usize {
        self.again.len()
    }

    /// Counts the requests that cannot be sent any more as unanswered.
    pub(super) fn give_up_rest(&mut self) {
        let left = self.schedule.left() + self.again.len() as u64;
        let first = self.again.front().map_or(self.schedule.sent(), |again| again.tag);
        self.schedule.stop(0);
        self.tally.ends.unanswered += left;
        if left > 0 {
            let kind = "never answered: the run ended first";
            self.tally.error(kind, left);
            let (number, host) = (self.schedule.number(first), &self.plan.address.authority);
            let sentence = format!(
                "request {number} to {host}, and {} more: {kind}. Fix what kept its connections from opening, or give the \
                 run more time.",
                left - 1
            );
            self.tally.sample(kind, || sentence);
        }
        while let Some(again) = self.again.pop_front() {
            self.note(again.tag, again.attempt - 1, "unanswered", 0);
        }
    }

    fn note(&mut self, tag: u64, sent: u16, outcome: &str, status: u16) {
        if let Some(ledger) = &mut self.ledger {
            ledger.note(self.schedule.number(tag), sent, outcome, status, b"");
        }
    }

    /// Counts a connection that could not be started.
    pub(super) fn connect_failed(&mut self, error: &io::Error) {
        self.not_connected(&format!("connecting failed: {error}"), connect_advice(error));
    }

    /// Counts a connection that was not opened, and records advice.
    pub(super) fn not_connected(&mut self, kind: &str, advice: &str) {
        self.tally.events.connect_failed += 1;
        self.tally.error(kind, 1);
        let server = self.plan.server();
        self.tally.sample(kind, || format!("{server}: {kind}. {advice}").trim_end().to_owned());
    }

    /// Counts a request that failed, or whose answer was wrong.
    pub(super) fn fail(&mut self, tag: u64, attempt: u16, kind: &str, advice: &str) {
        if tag >= self.counted_from {
            self.tally.ends.failed += 1;
            self.explain(tag, attempt, "failed", kind, advice);
        }
    }

    /// Counts a request that may or may not have been processed.
    pub(super) fn doubt(&mut self, tag: u64, attempt: u16, kind: &str, advice: &str) {
        if tag >= self.counted_from {
            self.tally.ends.uncertain += 1;
            self.explain(tag, attempt, "uncertain", kind, advice);
        }
    }

    fn explain(&mut self, tag: u64, attempt: u16, outcome: &str, kind: &str, advice: &str) {
        self.tally.error(kind, 1);
        let number = self.schedule.number(tag);
        let authority = &self.plan.address.authority;
        let sentence = format!("request {number} to {authority}: {kind}. {advice}");
        self.tally.sample(kind, || sentence.trim_end().to_owned());
        self.note(tag, attempt, outcome, 0);
    }

    /// Decides what to do with a request that got no answer.
    fn judge(&mut self, request: &InFlight, decision: ReplayDecision) {
        let attempt =
            if request.kind.is_replayed() { self.attempts.remove(&request.tag) } else { None };
        let attempt = attempt.unwrap_or(1);
        match decision {
            ReplayDecision::NotProcessed
            | ReplayDecision::Replay
            | ReplayDecision::Cut { idempotent: true, .. } => {
                if attempt >= self.plan.attempts_max {
                    let how = closed(decision);
                    let times = if attempt == 1 { "attempt" } else { "attempts" };
                    let kind = format!("{how}, given up after {attempt} {times}");
                    let advice = "Look at the server's log; --attempts allows more.";
                    return self.fail(request.tag, attempt, &kind, advice);
                }
                self.tally.ends.resent += 1;
                self.again.push_back(Resend {
                    tag: request.tag,
                    since_ns: request.sent_ns,
                    attempt: attempt + 1,
                });
            }
            // The server processed it, and this client must not repeat it unasked.
            ReplayDecision::Cut { idempotent: false, .. } => {
                let advice = "Look at the server's log; --idempotent sends such requests again.";
                self.fail(request.tag, attempt, closed(decision), advice);
            }
            ReplayDecision::Uncertain => {
                let kind = "closed without a word; the request may have been done";
                let advice = "Look at the server's log; --idempotent sends such requests again.";
                self.doubt(request.tag, attempt, kind, advice);
            }
            ReplayDecision::TimedOut { .. } => {
                let advice = "Look why the server is silent, or give it more than --timeout.";
                self.fail(request.tag, attempt, "no answer in time", advice);
            }
            ReplayDecision::ProtocolError(violation) => {
                let kind = match violation {
                    ProtocolError::Malformed(error) => {
                        format!("bad answer: {}", error.to_string().trim_end_matches('.'))
                    }
                    ProtocolError::Unsolicited => "an answer nobody asked for".to_owned(),
                    ProtocolError::NotHttp => "the answer is not HTTP".to_owned(),
                    _ => "bad answer".to_owned(),
                };
                self.fail(request.tag, attempt, &kind, violation.message());
            }
        }
    }
}

impl Connection {
    pub(super) fn new(transport: Transport, core: &Core, now_ns: u64) -> Self {
        let mut pipeline = Pipeline::new(&ConnectionLimits::default());
        pipeline.set_budget(core.budget.limit());
        let window = (core.plan.depth == Depth::Auto).then(|| core.seed.next());
        let depth = match core.plan.depth {
            Depth::Fixed(depth) => depth,
            Depth::Auto => core.seed.depth(),
        };
        Self {
            transport,
            opened: false,
            since_ns: now_ns,
            pipeline,
            window,
            depth,
            reading: Reading::default(),
        }
    }

    /// Processes input. Returns the cause if the connection ends.
    #[inline]
    pub(super) fn take(
        &mut self,
        core: &mut Core,
        bytes: &[u8],
        now_ns: u64,
    ) -> Result<(), CloseCause> {
        core.tally.read_bytes += bytes.len() as u64;
        let mut reader = core.reader(&mut self.reading, now_ns);
        let progress = self.pipeline.handle_input(bytes, &mut reader);
        let (ended, last_sent_ns) = reader.finish(self.since_ns);
        if let Some(window) = self.window.as_mut().filter(|_| ended > 0) {
            window.handle_answers(ended as u32, last_sent_ns, now_ns, self.pipeline.in_flight());
            self.depth = window.depth();
            core.tally.depth_most = core.tally.depth_most.max(self.depth);
        }
        if ended > 0 {
            // The next request is now the oldest, and its timeout starts. Partial data does not restart the timeout:
            // a server that sends one byte a second would hold up all requests behind it.
            self.since_ns = now_ns;
        }
        match progress {
            Ok(Progress::Open) => Ok(()),
            Ok(Progress::LastAnswer) => Err(CloseCause::Notice),
            Ok(Progress::Upgraded { .. }) => Err(CloseCause::Upgraded),
            Err(violation) => Err(CloseCause::Violation(violation)),
        }
    }

    /// Sends requests up to the depth, at most `most`, in one write.
    #[inline]
    pub(super) fn fill(&mut self, core: &mut Core, now_ns: u64, most: u32) -> Result<u32, Broken> {
        if !self.opened || self.transport.has_unsent() {
            return Ok(0);
        }
        let room = self.pipeline.room(self.depth).min(most);
        if room == 0 {
            return Ok(0);
        }
        let was_idle = self.pipeline.in_flight() == 0;
        let sent = if let (Some((copies, kind)), true, false) =
            (&core.copies, core.again.is_empty(), core.schedule.is_open_model())
        {
            let count = core.schedule.available(now_ns, u64::from(room)) as u32;
            if count == 0 {
                return Ok(0);
            }
            let tag = core.schedule.take(u64::from(count));
            self.pipeline.handle_sent(tag, count, *kind, now_ns);
            let bytes = copies.slice(count);
            core.tally.written_bytes += bytes.len() as u64;
            self.transport.write(bytes)?;
            count
        } else {
            self.fill_one_by_one(core, now_ns, room)?
        };
        if was_idle && sent > 0 {
            self.since_ns = now_ns;
        }
        Ok(sent)
    }

    /// Sends requests that differ: rendered ones, retries, or scheduled ones.
    fn fill_one_by_one(&mut self, core: &mut Core, now_ns: u64, room: u32) -> Result<u32, Broken> {
        core.out.clear();
        let mut sent = 0;
        while sent < room
            && let Some(again) = core.again.pop_front()
        {
            let number = core.schedule.number(again.tag);
            let kind = core.plan.requests.get(number).kind.replayed();
            core.attempts.insert(again.tag, again.attempt);
            self.pipeline.handle_sent(again.tag, 1, kind, again.since_ns);
            core.plan.requests.write(number, &mut core.body, &mut core.out);
            sent += 1;
        }
        let fresh = core.schedule.available(now_ns, u64::from(room - sent)) as u32;
        if fresh > 0 {
            let first = core.schedule.take(u64::from(fresh));
            if !core.schedule.is_open_model()
                && let Some(kind) = core.kind
            {
                self.pipeline.handle_sent(first, fresh, kind, now_ns);
            }
            for tag in first..first + u64::from(fresh) {
                let number = core.schedule.number(tag);
                if let Some(due_ns) = core.schedule.due_ns(tag) {
                    let kind = core.plan.requests.get(number).kind;
                    self.pipeline.handle_sent(tag, 1, kind, due_ns);
                    core.tally.late.saturating_record(now_ns.saturating_sub(due_ns));
                } else if core.kind.is_none() {
                    let kind = core.plan.requests.get(number).kind;
                    self.pipeline.handle_sent(tag, 1, kind, now_ns);
                }
                match &core.copies {
                    Some((copies, _)) => core.out.extend_from_slice(copies.slice(1)),
                    None => core.plan.requests.write(number, &mut core.body, &mut core.out),
                }
            }
        }
        if !core.out.is_empty() {
            core.tally.written_bytes += core.out.len() as u64;
            self.transport.write(&core.out)?;
        }
        Ok(sent + fresh)
    }

    /// Checks timeouts. Called periodically.
    pub(super) fn sweep(&mut self, core: &mut Core, now_ns: u64) -> Result<(), CloseCause> {
        let waited_ns = now_ns.saturating_sub(self.since_ns);
        if !self.opened {
            return if waited_ns > core.plan.connect_timeout_ns {
                Err(CloseCause::ConnectTimeout)
            } else {
                Ok(())
            };
        }
        if self.pipeline.in_flight() > 0 {
            return if waited_ns > core.plan.timeout_ns {
                Err(CloseCause::Silence)
            } else {
                Ok(())
            };
        }
        if waited_ns > OUTLIVED_NS && self.pipeline.is_open() && self.pipeline.room(1) == 0 {
            core.budget.handle_outlived(self.pipeline.answered());
            self.pipeline.set_budget(core.budget.limit());
        }
        Ok(())
    }

    /// Ends the connection: counts why, and decides what to do with each request in flight. Returns whether it was useful.
    pub(super) fn end(mut self, core: &mut Core, end: &CloseCause, now_ns: u64) -> bool {
        let in_flight = self.pipeline.in_flight() > 0;
        let events = &mut core.tally.events;
        let mut abort = true;
        let close = match end {
            _ if !self.opened => {
                self.explain_connect(core, end);
                return false;
            }
            CloseCause::Notice => {
                events.closed_with_notice += 1;
                abort = false;
                Close { notice: true, at_budget: false, cut: false, idle: false }
            }
            CloseCause::Broken(Broken::End) => {
                let mut reader = core.reader(&mut self.reading, now_ns);
                let close = self.pipeline.handle_eof(&mut reader);
                reader.finish(self.since_ns);
                let events = &mut core.tally.events;
                match () {
                    () if close.notice => events.closed_with_notice += 1,
                    () if close.idle => events.closed_idle += 1,
                    () if close.at_budget => events.closed_at_budget += 1,
                    () => events.closed_in_flight += 1,
                }
                abort = false;
                close
            }
            CloseCause::Broken(Broken::Reset | Broken::Io(_) | Broken::Tls(_)) => {
                events.reset += 1;
                self.pipeline.handle_reset()
            }
            CloseCause::Violation(violation) => {
                events.violated += 1;
                if !in_flight {
                    let kind = "an answer nobody asked for";
                    core.tally.error(kind, 1);
                    let sentence =
                        format!("{}: {}", core.plan.address.authority, violation.message());
                    core.tally.sample(kind, || sentence);
                }
                Close { notice: false, at_budget: false, cut: true, idle: false }
            }
            CloseCause::Upgraded => {
                events.violated += 1;
                core.tally.error("the server changed to another protocol (101)", 1);
                Close { notice: false, at_budget: false, cut: true, idle: false }
            }
            CloseCause::Silence | CloseCause::ConnectTimeout => {
                events.timed_out += 1;
                self.pipeline.handle_timeout()
            }
        };
        let answered = self.pipeline.answered();
        if !close.cut && !matches!(end, CloseCause::Silence) {
            core.budget.handle_close(answered, !close.idle);
        }
        if let Some(window) = self.window {
            core.seed = window;
        }
        while let Some((request, decision)) = self.pipeline.poll_unanswered() {
            core.judge(&request, decision);
        }
        if abort {
            self.transport.abort();
        }
        answered > 0
    }

    /// Ends the connection at the end of the run: requests in flight stay unanswered.
    pub(super) fn abandon(mut self, core: &mut Core) {
        self.pipeline.handle_reset();
        let mut left = 0;
        while let Some((request, _)) = self.pipeline.poll_unanswered() {
            left += u64::from(request.tag >= core.counted_from);
            let attempt = core.attempts.remove(&request.tag).unwrap_or(1);
            core.note(request.tag, attempt, "unanswered", 0);
        }
        core.tally.ends.unanswered += left;
        if left > 0 {
            core.tally.error("not answered when the run ended", left);
        }
    }

    fn explain_connect(&self, core: &mut Core, end: &CloseCause) {
        let (kind, advice) = match end {
            CloseCause::ConnectTimeout => (
                "connecting took too long".to_owned(),
                "Is the host up, and does a firewall drop the packets? --connect-timeout allows more.",
            ),
            CloseCause::Broken(Broken::Tls(error)) => (
                format!("TLS: {error}"),
                "Trust the certificate with --ca FILE, name its host with --server-name, or take any with --insecure.",
            ),
            CloseCause::Broken(Broken::Io(error)) => {
                (format!("connecting failed: {error}"), connect_advice(error))
            }
            _ if core.plan.tls.is_some() => (
                "the server closed during the TLS handshake".to_owned(),
                "Does it speak TLS on this port? http:// does without.",
            ),
            _ => (
                "the server closed before the first request".to_owned(),
                "Does it take more connections? Look at its log and its limits.",
            ),
        };
        core.not_connected(&kind, advice);
    }
}

/// Describes how the connection closed on a request that could have been sent again.
fn closed(decision: ReplayDecision) -> &'static str {
    match decision {
        ReplayDecision::Cut { status: 0, .. } => "closed in the head of the answer",
        ReplayDecision::Cut { .. } => "closed in the body of the answer",
        _ => "closed before the answer",
    }
}

/// Returns advice for a failed connect.
pub(super) fn connect_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "Nothing listens there: start the server, or fix the port."
        }
        io::ErrorKind::NotFound => "There is no such socket: start the server, or fix the path.",
        io::ErrorKind::PermissionDenied => "Run it as a user who may open that socket.",
        // A unix socket whose backlog is full.
        io::ErrorKind::WouldBlock => {
            "The server accepts too slowly: open fewer --connections, or give its socket a longer backlog."
        }
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            "There is no way there from this machine: look at its routes."
        }
        io::ErrorKind::AddrNotAvailable => {
            "This machine has no port left for another connection there: open fewer, or wait a minute."
        }
        _ if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            "Raise the number of open files (`ulimit -n`), or open fewer --connections."
        }
        _ => "",
    }
}
