//! A call: its body, its pushes, and their outcomes as they come.
//!
//! Two halves of one task: one hands pushes over, at most [`WINDOW`] before their outcomes are told; the other tells
//! outcomes, as fast as the client reads. So a client that does not read stops its own batch, and nothing else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dunlin_net::ConnId;
use dunlin_push::registry::Platform;
use dunlin_push::{NotSent, Outcome, OutcomeCounts, ResultStream, Results, results};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tracing::Instrument;

use super::devices;
use super::flow::{Flow, Unread};
use super::order::{Order, Recipient};
use super::outcome::{self, Whom};
use super::senders::{Credential, Spelled};
use super::thread::Shared;
use crate::api::{ApiError, ApiErrorCode};
use crate::push_message::{PushMethod, PushReplyBody, PushRequest};
use crate::trace_parent::TraceParent;

/// PushHandle of one call that are handed over and not told about.
const WINDOW: usize = 2_048;
/// Users looked up at once.
const USERS_AT_ONCE: usize = 100;
/// Lines that leave together.
const LINES_BYTES: usize = 16 << 10;
/// A body larger than this is read where it keeps nobody waiting.
const BODY_BYTES_LARGE: usize = 64 << 10;

/// Carries a call out, in a span of its own that those of its pushes are children of.
pub(super) async fn run(shared: Arc<Shared>, worker: usize, request: PushRequest, flow: Arc<Flow>) {
    let span = TraceParent::span(request.trace, request.call);
    carry_out(shared, worker, request, flow).instrument(span).await;
}

async fn carry_out(shared: Arc<Shared>, worker: usize, request: PushRequest, flow: Arc<Flow>) {
    let PushRequest { call, conn, method, body, errors_as_status, permit, .. } = request;
    let caller = Caller { shared: Arc::clone(&shared), worker, call, conn };
    let answered = match method {
        PushMethod::Push => match read(body, Order::one).await {
            Ok(order) => {
                let mut told = Told::Kept { lines: Vec::new() };
                let ends = send(&shared, vec![order], false, &flow, &mut told).await;
                Ok(told.into_result(&ends))
            }
            Err(error) => Err(error),
        },
        PushMethod::Batch => match read(body, Order::batch).await {
            Ok(orders) => {
                let mut told = Told::Streamed { caller: &caller, flow: &flow, lines: Vec::new() };
                let ends = send(&shared, orders, true, &flow, &mut told).await;
                told.end(&ends).await;
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
    };
    let (status, body) = match answered {
        Ok(result) => (200, json!({ "result": result }).to_string().into_bytes()),
        Err(error) => error.response(errors_as_status),
    };
    caller.say(PushReplyBody::Complete(status, body));
    shared.close_flow(call);
    drop(permit);
}

/// Reads a body, a large one on a thread that may take its time.
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

/// Whom a call answers.
struct Caller {
    shared: Arc<Shared>,
    worker: usize,
    call: u64,
    conn: ConnId,
}

impl Caller {
    fn say(&self, body: PushReplyBody) {
        self.shared.say(self.worker, self.call, self.conn, body);
    }
}

/// Where the lines of outcomes go.
enum Told<'a> {
    /// Into one answer.
    Kept { lines: Vec<u8> },
    /// To the client, as it reads them.
    Streamed { caller: &'a Caller, flow: &'a Flow, lines: Vec<u8> },
}

impl Told<'_> {
    fn lines(&mut self) -> &mut Vec<u8> {
        match self {
            Told::Kept { lines } | Told::Streamed { lines, .. } => lines,
        }
    }

    /// Sends what there is, once the client has room.
    async fn flush(&mut self) {
        let Told::Streamed { caller, flow, lines } = self else { return };
        if lines.is_empty() || flow.is_gone() {
            return lines.clear();
        }
        let lines = std::mem::take(lines);
        match flow.take(lines.len()).await {
            Ok(()) => caller.say(PushReplyBody::Lines(lines)),
            Err(Unread::Gone) => {}
            Err(Unread::Stalled) => {
                tracing::warn!(
                    call = caller.call,
                    "the caller of a batch does not read; it is cut off"
                );
                flow.handle_gone();
                caller.say(PushReplyBody::Abort);
            }
        }
    }

    /// The last line, by which a client knows that none is missing.
    async fn end(mut self, ends: &OutcomeCounts) {
        self.flush().await;
        let Told::Streamed { caller, flow, .. } = &self else { return };
        if !flow.is_gone() {
            let mut last = json!(ends);
            last["end"] = true.into();
            caller.say(PushReplyBody::LastLines(format!("{last}\n").into_bytes()));
        }
    }

    fn into_result(mut self, ends: &OutcomeCounts) -> Value {
        let lines = std::mem::take(self.lines());
        let outcomes: Vec<Value> = serde_json::Deserializer::from_slice(&lines)
            .into_iter()
            .map_while(Result::ok)
            .collect();
        let mut result = json!(ends);
        result["outcomes"] = outcomes.into();
        result
    }
}

/// A push that has been handed over.
struct UnderWay {
    /// Its notification's place in the batch.
    at: usize,
    user: Option<Arc<str>>,
    to: Recipient,
    spelled: Arc<Spelled>,
    credential: Option<Arc<Credential>>,
    handed_over_ms: u64,
}

/// What the two halves share.
struct Run<'a> {
    shared: &'a Shared,
    flow: &'a Flow,
    /// Whether lines name their notification.
    numbered: bool,
    results: Results,
    window: Semaphore,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    under_way: HashMap<u64, UnderWay>,
    tags: u64,
    /// Every push has been handed over.
    handed_out: bool,
    /// Lines about users whom nothing is sent, and how many.
    notes: Vec<u8>,
    noted: u64,
}

/// Sends everything and tells all outcomes.
async fn send(
    shared: &Shared,
    orders: Vec<Order>,
    numbered: bool,
    flow: &Flow,
    told: &mut Told<'_>,
) -> OutcomeCounts {
    let (sink, mut outcomes) = results();
    let run = Run {
        shared,
        flow,
        numbered,
        results: sink,
        window: Semaphore::new(WINDOW),
        state: Mutex::default(),
        changed: Notify::new(),
    };
    let ((), ends) = tokio::join!(run.hand_out(orders), run.tell(&mut outcomes, told));
    ends
}

impl Run<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first half: hands every push over.
    async fn hand_out(&self, orders: Vec<Order>) {
        for (at, mut order) in orders.into_iter().enumerate() {
            let spelled = Arc::new(Spelled::new(&order));
            for to in order.take_recipients() {
                if !self.hand_over(at, None, to, &spelled).await {
                    break;
                }
            }
            for users in order.users.chunks(USERS_AT_ONCE) {
                self.hand_to_users(at, users, order.only_offline, &spelled).await;
            }
            if self.flow.is_gone() {
                break;
            }
        }
        self.state().handed_out = true;
        self.changed.notify_one();
    }

    async fn hand_to_users(
        &self,
        at: usize,
        users: &[String],
        only_offline: bool,
        spelled: &Arc<Spelled>,
    ) {
        let users: Arc<[String]> = users.into();
        let online = match only_offline {
            true => self.shared.online(&users).await,
            false => vec![false; users.len()],
        };
        let found = devices::of_users(self.shared, Arc::clone(&users)).await;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                let why = error.to_string();
                return users.iter().for_each(|user| self.note(at, user, "registry", &why));
            }
        };
        for ((user, devices), online) in users.iter().zip(found).zip(online) {
            if online {
                self.note(at, user, "online", "the user has a session here");
                continue;
            }
            if devices.is_empty() {
                self.note(at, user, "no_device", "the user has registered no device");
                continue;
            }
            let user: Arc<str> = user.as_str().into();
            for device in devices {
                let to = Recipient::Device(device);
                if !self.hand_over(at, Some(&user), to, spelled).await {
                    return;
                }
            }
        }
    }

    /// Hands one push over, once there is room for it. False: nobody waits for it any more.
    async fn hand_over(
        &self,
        at: usize,
        user: Option<&Arc<str>>,
        to: Recipient,
        spelled: &Arc<Spelled>,
    ) -> bool {
        let Ok(permit) = self.window.acquire().await else { return false };
        if self.flow.is_gone() {
            return false;
        }
        // Given back when its outcome has been told.
        permit.forget();
        let credential = self.shared.senders.get(to.platform(), to.app());
        let push = UnderWay {
            at,
            user: user.cloned(),
            to,
            spelled: Arc::clone(spelled),
            credential,
            handed_over_ms: devices::now_ms(),
        };
        self.submit(push).await;
        true
    }

    async fn submit(&self, push: UnderWay) {
        let spelled = Arc::clone(&push.spelled);
        let (credential, to) = (push.credential.clone(), push.to.clone());
        let tag = {
            let mut state = self.state();
            let tag = state.tags;
            state.tags += 1;
            state.under_way.insert(tag, push);
            tag
        };
        let refused = match credential {
            Some(credential) => credential.submit(&spelled, &to, tag, &self.results).await.err(),
            None => {
                let section = match to.platform() {
                    Platform::Apns => "apns",
                    Platform::Fcm => "fcm",
                    Platform::Web => "vapid",
                };
                Some(NotSent::Credential(format!("there is no push.{section}.{}", to.app())))
            }
        };
        if let Some(why) = refused {
            self.results.tell(tag, Outcome::NotSent(why));
        }
    }

    /// Says of a user that nothing is sent.
    fn note(&self, at: usize, user: &str, reason: &str, detail: &str) {
        let whom = Whom { push: self.numbered.then_some(at), user: Some(user), recipient: None };
        let mut state = self.state();
        state.noted += 1;
        outcome::write_user(&mut state.notes, whom, reason, detail);
        drop(state);
        self.changed.notify_one();
    }

    /// The second half: tells every outcome.
    async fn tell(&self, outcomes: &mut ResultStream, told: &mut Told<'_>) -> OutcomeCounts {
        let mut ends = OutcomeCounts::default();
        loop {
            let mut next = tokio::select! {
                biased;
                outcome = outcomes.recv() => outcome,
                () = self.changed.notified() => None,
            };
            while let Some((tag, outcome)) = next {
                self.end(tag, outcome, told, &mut ends).await;
                next = match told.lines().len() < LINES_BYTES {
                    true => outcomes.try_recv(),
                    false => None,
                };
            }
            let is_over = {
                let mut state = self.state();
                told.lines().append(&mut state.notes);
                ends.not_sent += std::mem::take(&mut state.noted);
                state.handed_out && state.under_way.is_empty()
            };
            told.flush().await;
            if is_over {
                return ends;
            }
        }
    }

    async fn end(&self, tag: u64, outcome: Outcome, told: &mut Told<'_>, ends: &mut OutcomeCounts) {
        let Some(mut push) = self.state().under_way.remove(&tag) else { return };
        if outcome == Outcome::NotSent(NotSent::Closed) && self.renew(&mut push) {
            // Its credential was rotated while it waited: the new one takes it.
            return self.submit(push).await;
        }
        let UnderWay { at, user, to, credential, handed_over_ms, .. } = &push;
        if let Some(credential) = credential {
            credential.tally.count(&outcome);
        }
        tracing::debug!(
            app = to.app(),
            token = to.token(),
            audience = ?to.audience(),
            user = user.as_deref(),
            took_ms = devices::now_ms().saturating_sub(*handed_over_ms),
            %outcome,
            "push"
        );
        if let (Recipient::Device(device), Some(credential)) = (to, credential) {
            let verdicts = &self.shared.verdicts;
            verdicts.handle(credential, device, &outcome, *handed_over_ms).await;
        }
        ends.count(outcome.kind());
        let whom =
            Whom { push: self.numbered.then_some(*at), user: user.as_deref(), recipient: Some(to) };
        outcome::write(told.lines(), whom, &outcome);
        self.window.add_permits(1);
    }

    /// Gives a push the credential that has taken the place of its own, if one has.
    fn renew(&self, push: &mut UnderWay) -> bool {
        let next = self.shared.senders.get(push.to.platform(), push.to.app());
        let before = push.credential.as_ref().map(|credential| credential.generation);
        let is_newer = next.as_ref().is_some_and(|next| Some(next.generation) != before);
        if is_newer {
            push.credential = next;
        }
        is_newer
    }
}
