//! A call: reads its body, submits its pushes, and reports their outcomes as they arrive.
//!
//! One half of the task submits pushes, at most [`WINDOW`] ahead of their reported outcomes; the other reports outcomes as
//! fast as the client reads. So a client that does not read delays only its own batch. If it disconnects, the outcomes of
//! the pushes that had begun go to the feed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dunlin_api::server_api::{ApiError, ApiErrorCode};
use dunlin_net::ConnId;
use dunlin_push::journal::JournalChange;
use dunlin_push::registry::Device;
use dunlin_push::{Outcome, OutcomeCounts, ResultStream, Results, results};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tracing::Instrument;

use super::flow::{Flow, FlowError};
use super::outcome::{self, LineSubject};
use super::pending::{PendingPush, RequestForm};
use super::senders::EncodedNotification;
use super::submission::{Addressed, NoPush, Recipient, Submission, SubmissionBatch};
use super::thread::Shared;
use super::{devices, durable, outcomes_feed, scheduled};
use crate::message::{PushMethod, PushReplyBody, PushRequest};
use crate::trace_parent::TraceParent;

/// Most pushes of one call that are submitted and not reported.
const WINDOW: usize = 2_048;
/// Users looked up at once.
const USERS_AT_ONCE: usize = 100;
/// Bytes of lines that are sent together.
const LINES_BYTES: usize = 16 << 10;
/// Bytes of a response that the kernels on both sides may buffer (`tcp_wmem` and `tcp_rmem`, 4 and 6 MiB): a client that
/// disconnects may not have read them.
const KERNEL_BYTES: u64 = 10 << 20;
/// A body larger than this is read in a blocking task.
const BODY_BYTES_LARGE: usize = 64 << 10;

/// Executes a call in a tracing span that is the parent of its pushes' spans.
pub(super) async fn run(shared: Arc<Shared>, worker: usize, request: PushRequest, flow: Arc<Flow>) {
    let span = TraceParent::span(request.trace, request.call);
    carry_out(shared, worker, request, flow).instrument(span).await;
}

async fn carry_out(shared: Arc<Shared>, worker: usize, request: PushRequest, flow: Arc<Flow>) {
    let PushRequest { call, conn, method, body, errors_as_status, permit, .. } = request;
    let caller = ResponseTarget { shared: Arc::clone(&shared), worker, call, conn };
    let answered = match method {
        PushMethod::Push => push(&shared, body, &flow).await,
        PushMethod::Batch => match read(body, SubmissionBatch::many).await {
            Ok(batch) if batch.durable => durable::accept(&shared, batch).await,
            Ok(batch) if let Err(error) = shared.check_key(&batch) => Err(error),
            Ok(batch) => {
                let mut sink = OutcomeSink::streamed(&caller, &flow);
                let counts = send(&shared, batch.pushes, true, &flow, &mut sink).await;
                sink.end(&counts).await;
                shared.close_flow(call);
                drop(permit);
                return;
            }
            Err(error) => Err(error),
        },
        PushMethod::Register => devices::register(&shared, &body).await,
        PushMethod::Remove => devices::remove(&shared, &body).await,
        PushMethod::List => devices::list(&shared, &body).await,
        PushMethod::Feed => devices::feed(&shared, &body).await,
        PushMethod::Outcomes => outcomes_feed::read_on(&shared, &body).await,
        PushMethod::ScheduledList => scheduled::list(&shared, &body).await,
        PushMethod::ScheduledCancel => scheduled::cancel(&shared, &body).await,
    };
    let (status, body) = match answered.map(|result| shared.named(result)) {
        Ok(result) => (200, json!({ "result": result }).to_string().into_bytes()),
        Err(error) => error.response(errors_as_status),
    };
    caller.reply(PushReplyBody::Complete(status, body));
    shared.close_flow(call);
    drop(permit);
}

/// Executes `/api/push`: durably, once per idempotency key, or directly.
async fn push(shared: &Arc<Shared>, body: Box<[u8]>, flow: &Flow) -> Result<Value, ApiError> {
    let mut batch = read(body, SubmissionBatch::one).await?;
    if batch.durable {
        return durable::accept(shared, batch).await;
    }
    shared.check_key(&batch)?;
    let key = batch.idempotency_key.take();
    // A call with a key runs to completion, so that a repetition gets the complete response.
    let whole = Flow::new();
    let flow = if key.is_some() { &whole } else { flow };
    let send_all = async {
        let mut sink = OutcomeSink::Buffered { lines: Vec::new() };
        let counts = send(shared, std::mem::take(&mut batch.pushes), false, flow, &mut sink).await;
        let lines = std::mem::take(sink.lines());
        if flow.is_gone() {
            feed(shared, &lines).await;
        }
        result(&lines, &counts)
    };
    match key {
        Some(key) => Ok(shared.repeats.once(key, send_all).await),
        None => Ok(send_all.await),
    }
}

/// Parses a body; a large one in a blocking task.
async fn read<T: Send + 'static>(
    body: Box<[u8]>,
    reader: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if body.len() < BODY_BYTES_LARGE {
        return reader(&body);
    }
    let read = tokio::task::spawn_blocking(move || reader(&body)).await;
    read.unwrap_or_else(|error| Err(ApiErrorCode::Internal.with_reason(error)))
}

/// Returns the response of `/api/push`.
fn result(lines: &[u8], counts: &OutcomeCounts) -> Value {
    let outcomes = serde_json::Deserializer::from_slice(lines).into_iter::<Value>();
    let outcomes: Vec<Value> = outcomes.map_while(Result::ok).collect();
    let mut result = json!(counts);
    result["outcomes"] = outcomes.into();
    result
}

/// Writes lines that the client does not read to the feed.
async fn feed(shared: &Shared, lines: &[u8]) {
    let lines = lines.split_inclusive(|byte| *byte == b'\n');
    let changes: Vec<_> = lines.clone().map(|line| JournalChange::Outcome(line.to_vec())).collect();
    if !changes.is_empty() && shared.journal_writer.write(changes).await.is_ok() {
        shared.emit_outcomes(lines);
    }
}

/// The recipient of a call's response.
struct ResponseTarget {
    shared: Arc<Shared>,
    worker: usize,
    call: u64,
    conn: ConnId,
}

impl ResponseTarget {
    fn reply(&self, body: PushReplyBody) {
        self.shared.reply(self.worker, self.call, self.conn, body);
    }
}

/// The destination of the lines of outcomes.
enum OutcomeSink<'a> {
    /// One response.
    Buffered { lines: Vec<u8> },
    /// The client, as fast as it reads.
    Streamed {
        caller: &'a ResponseTarget,
        flow: &'a Flow,
        lines: Vec<u8>,
        /// Pieces that the client may not have read, each with its end position in the response.
        unread: VecDeque<(u64, Vec<u8>)>,
        sent_bytes: u64,
    },
}

impl<'a> OutcomeSink<'a> {
    fn streamed(caller: &'a ResponseTarget, flow: &'a Flow) -> OutcomeSink<'a> {
        let unread = VecDeque::new();
        OutcomeSink::Streamed { caller, flow, lines: Vec::new(), unread, sent_bytes: 0 }
    }

    fn lines(&mut self) -> &mut Vec<u8> {
        match self {
            OutcomeSink::Buffered { lines } | OutcomeSink::Streamed { lines, .. } => lines,
        }
    }

    /// Sends the buffered lines once the client has room; lines that it will not read go to the feed.
    async fn flush(&mut self) {
        let OutcomeSink::Streamed { caller, flow, lines, unread, sent_bytes } = self else {
            return;
        };
        let lines = std::mem::take(lines);
        while unread.front().is_some_and(|(end, _)| *end + KERNEL_BYTES <= flow.read_bytes()) {
            unread.pop_front();
        }
        if !lines.is_empty() && !flow.is_gone() {
            match flow.take(lines.len()).await {
                Ok(()) => {
                    *sent_bytes += lines.len() as u64;
                    unread.push_back((*sent_bytes, lines.clone()));
                    return caller.reply(PushReplyBody::Lines(lines));
                }
                Err(FlowError::Gone) => {}
                Err(FlowError::Stalled) => {
                    tracing::warn!(
                        call = caller.call,
                        "the caller of a batch does not read; it is cut off"
                    );
                    flow.handle_gone();
                    caller.reply(PushReplyBody::Abort);
                }
            }
        }
        if flow.is_gone() {
            let pieces = unread.drain(..).map(|(_, piece)| piece).chain([lines]);
            feed(&caller.shared, &pieces.collect::<Vec<_>>().concat()).await;
        }
    }

    /// Sends the last line, which shows the client that the response is complete.
    async fn end(mut self, counts: &OutcomeCounts) {
        self.flush().await;
        if let OutcomeSink::Streamed { caller, flow, .. } = &self {
            // A client that hangs up or stops reading early is detected here.
            if flow.drain().await == Err(FlowError::Stalled) {
                flow.handle_gone();
                caller.reply(PushReplyBody::Abort);
            }
            self.flush().await;
        }
        let OutcomeSink::Streamed { caller, flow, .. } = &self else { return };
        if !flow.is_gone() {
            let mut last = caller.shared.named(json!(counts));
            last["end"] = true.into();
            caller.reply(PushReplyBody::LastLines(format!("{last}\n").into_bytes()));
        }
    }
}

/// The state that both halves of a call share.
struct Run<'a> {
    shared: &'a Shared,
    flow: &'a Flow,
    /// Whether lines contain the number of their notification.
    numbered: bool,
    results: Results,
    window: Semaphore,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    pending: HashMap<u64, PendingPush>,
    tags: u64,
    /// Every push has been submitted.
    submitted: bool,
    /// Lines about users without a push, and their number.
    notes: Vec<u8>,
    noted: u64,
}

/// Sends all submissions and reports all outcomes.
async fn send(
    shared: &Shared,
    submissions: Vec<Submission>,
    numbered: bool,
    flow: &Flow,
    sink: &mut OutcomeSink<'_>,
) -> OutcomeCounts {
    let (results, mut outcomes) = results();
    let run = Run {
        shared,
        flow,
        numbered,
        results,
        window: Semaphore::new(WINDOW),
        state: Mutex::default(),
        changed: Notify::new(),
    };
    let ((), counts) = tokio::join!(run.submit_all(submissions), run.report(&mut outcomes, sink));
    counts
}

impl Run<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits every push.
    async fn submit_all(&self, submissions: Vec<Submission>) {
        for (at, mut submission) in submissions.into_iter().enumerate() {
            let encoded = Arc::new(EncodedNotification::new(&submission));
            let mut addressed = Addressed::default();
            for to in submission.take_recipients() {
                if !addressed.add(&to) {
                    continue;
                }
                if !self.submit_one(at, None, to, &encoded).await {
                    break;
                }
            }
            for users in submission.users.chunks(USERS_AT_ONCE) {
                let only_offline = submission.only_offline;
                let found = devices::of_users_to_send(self.shared, users, only_offline).await;
                let found = found.map(|found| addressed.add_each(found));
                self.submit_to_users(at, users, found, &encoded).await;
            }
            if self.flow.is_gone() {
                break;
            }
        }
        self.state().submitted = true;
        self.changed.notify_one();
    }

    async fn submit_to_users(
        &self,
        at: usize,
        users: &[String],
        found: Result<Vec<Result<Vec<Device>, NoPush>>, ApiError>,
        encoded: &Arc<EncodedNotification>,
    ) {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                let why = error.to_string();
                return users.iter().for_each(|user| self.note(at, user, "registry", &why));
            }
        };
        for (user, found) in users.iter().zip(found) {
            let devices = match found {
                Ok(devices) => devices,
                Err((reason, detail)) => {
                    self.note(at, user, reason, &detail);
                    continue;
                }
            };
            let user: Arc<str> = user.as_str().into();
            for device in devices {
                let to = Recipient::Device { device, id: None };
                if !self.submit_one(at, Some(&user), to, encoded).await {
                    return;
                }
            }
        }
    }

    /// Submits a push when there is room for it. Returns `false` if its caller has disconnected.
    async fn submit_one(
        &self,
        at: usize,
        user: Option<&Arc<str>>,
        to: Recipient,
        encoded: &Arc<EncodedNotification>,
    ) -> bool {
        let Ok(permit) = self.window.acquire().await else { return false };
        if self.flow.is_gone() {
            return false;
        }
        // Released when its outcome has been reported.
        permit.forget();
        let push = PendingPush::new(self.shared, at, user.cloned(), to, encoded);
        self.submit(push).await;
        true
    }

    async fn submit(&self, push: PendingPush) {
        let tag = {
            let mut state = self.state();
            let tag = state.tags;
            state.tags += 1;
            state.pending.insert(tag, push.clone());
            tag
        };
        push.submit(tag, &self.results).await;
    }

    /// Adds a line that says why a user gets no push.
    fn note(&self, at: usize, user: &str, reason: &str, detail: &str) {
        let push = self.numbered.then_some(at);
        let subject = LineSubject { batch: None, push, user: Some(user), recipient: None };
        let mut state = self.state();
        state.noted += 1;
        outcome::write_user(&mut state.notes, subject, reason, detail);
        drop(state);
        self.changed.notify_one();
    }

    /// Reports every outcome.
    async fn report(
        &self,
        outcomes: &mut ResultStream,
        sink: &mut OutcomeSink<'_>,
    ) -> OutcomeCounts {
        let mut counts = OutcomeCounts::default();
        loop {
            let mut next = tokio::select! {
                biased;
                outcome = outcomes.recv() => outcome,
                () = self.changed.notified() => None,
            };
            while let Some((tag, outcome)) = next {
                self.end(tag, outcome, sink, &mut counts).await;
                next = match sink.lines().len() < LINES_BYTES {
                    true => outcomes.try_recv(),
                    false => None,
                };
            }
            let is_over = {
                let mut state = self.state();
                sink.lines().append(&mut state.notes);
                counts.not_sent += std::mem::take(&mut state.noted);
                state.submitted && state.pending.is_empty()
            };
            sink.flush().await;
            if is_over {
                return counts;
            }
        }
    }

    async fn end(
        &self,
        tag: u64,
        outcome: Outcome,
        sink: &mut OutcomeSink<'_>,
        counts: &mut OutcomeCounts,
    ) {
        let Some(mut push) = self.state().pending.remove(&tag) else { return };
        if push.renew(self.shared, &outcome) {
            // Its credential was replaced while it waited: the new one sends it.
            return self.submit(push).await;
        }
        push.note_outcome(self.shared, &outcome).await;
        counts.count(outcome.kind());
        let form = if self.numbered { RequestForm::Batch } else { RequestForm::Single };
        push.write_line(sink.lines(), form, &outcome);
        self.window.add_permits(1);
    }
}
