//! Server API calls under way: which commands have begun, which are answered, and the response when all are.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use dunlin_config::ApiScope;
use dunlin_hub::{Published, TraceContext};
use dunlin_net::ConnId;

use super::call_rest::{BroadcastRest, CallRest, RestCommands};
use super::{CommandPlace, FastMap};
use crate::api::{
    ApiError, ApiErrorCode, CommandOutcome, CommandResult, Method, NodeFacts, UnknownFields,
    too_long, write_batch, write_legacy, write_response,
};
use crate::limits::budget::{BudgetKey, Rates};
use crate::program::OnResponse;
use crate::pusher::Plan;
use crate::telemetry::BegunSpan;
use crate::tenants::Tenant;

/// Counts up while the worker runs.
pub(crate) type CallId = u64;

/// The most outstanding answers of one call; no more of the call begins beyond them.
const OUTSTANDING_MAX: usize = 1_024;
/// What the method of a command is called that could not be read.
const NO_METHOD: &str = "unknown";
/// The calls of one budget may keep one part in this many of the bytes that all calls may keep.
const KEPT_SHARE: usize = 4;
/// Held calls checked per millisecond: the more are held, the longer the interval between checks.
const LOOKS_PER_MS: usize = 1_024;

/// The calls of one worker.
///
/// [`ApiCalls::open`] a call, give commands to the hub as [`ApiCalls::begin_next`] allows, [`ApiCalls::keep`] those that are
/// left, then [`ApiCalls::pause`]. Report answers, in any order, with [`ApiCalls::handle_answer`]. After each answer and after a
/// pause, [`ApiCalls::poll`] returns the call if it is complete. A call that may begin more is [ready](ApiCalls::take_ready) for
/// the next turn, which continues it with [`ApiCalls::resume`]. A [held](ApiCalls::hold) call neither continues nor completes
/// before it is [released](ApiCalls::release).
#[derive(Default)]
pub(crate) struct ApiCalls {
    calls: FastMap<CallId, ApiCall>,
    ready: VecDeque<CallId>,
    held: Vec<WaitingCall>,
    /// When the held calls are checked next.
    look_ms: u64,
    /// A timer is set that will check them.
    is_armed: bool,
    kept: HeldBytes,
    opened: u64,
}

/// Bytes of the commands kept for calls.
#[derive(Default)]
struct HeldBytes {
    bytes: usize,
    /// Of the calls that have a budget.
    of: FastMap<BudgetKey, usize>,
}

impl HeldBytes {
    /// Whether `bytes` more may be kept. A budget that keeps nothing yet is not bound by its share.
    fn fits(&self, budget_key: Option<BudgetKey>, bytes: usize, bytes_max: usize) -> bool {
        let own = budget_key.and_then(|budget_key| self.of.get(&budget_key)).copied().unwrap_or(0);
        self.bytes + bytes <= bytes_max
            && (budget_key.is_none() || own == 0 || own + bytes <= bytes_max / KEPT_SHARE)
    }

    fn add(&mut self, budget_key: Option<BudgetKey>, bytes: usize) {
        self.bytes += bytes;
        if let Some(budget_key) = budget_key.filter(|_| bytes > 0) {
            *self.of.entry(budget_key).or_default() += bytes;
        }
    }

    fn remove(&mut self, budget_key: Option<BudgetKey>, bytes: usize) {
        self.bytes -= bytes;
        if let Some(budget_key) = budget_key
            && let Some(own) = self.of.get_mut(&budget_key)
        {
            *own -= bytes;
            if *own == 0 {
                self.of.remove(&budget_key);
            }
        }
    }
}

/// A call that is held.
#[derive(Clone, Copy)]
pub(crate) struct WaitingCall {
    call: CallId,
    /// When it is released at the latest.
    pub(crate) until_ms: u64,
    /// The channel that it published to, by its hash in [`Pressure`](crate::state::pressure::Pressure); the call is released
    /// once the channel is no longer behind.
    pub(crate) channel: Option<u64>,
}

/// The parameters of a new call.
pub(crate) struct NewCall {
    pub(crate) conn: ConnId,
    pub(crate) form: CallForm,
    /// The caller wants errors as HTTP statuses (`X-Centrifugo-Error-Mode: transport`).
    pub(crate) errors_as_status: bool,
    /// The rights of the caller's API key; `None`: everything.
    pub(crate) scope: Option<KeyScope>,
    pub(crate) commands: Vec<CommandSlot>,
    /// How many commands may begin before earlier ones are answered; each later one begins when no answer is outstanding.
    pub(crate) at_once: usize,
    /// Members of the body that were ignored; the response names them.
    pub(crate) unknown: UnknownFields,
    /// Set for a call of the Pusher protocol's API; encodes the response in place of `form`.
    pub(crate) pusher: Option<Box<Plan>>,
    /// Set for a call of the embedding program; takes the response.
    pub(crate) then: Option<OnResponse>,
    /// When the call came.
    pub(crate) began: Instant,
    /// Its span, if it is traced.
    pub(crate) span: Option<Box<BegunSpan>>,
}

/// The connection id of calls that have no connection: those of cluster nodes, of the admin port and of the embedding program.
const NO_CONNECTION: u64 = u64::MAX;

impl NewCall {
    /// Creates a call with one command that did not come over HTTP.
    pub(crate) fn without_connection(form: CallForm, method: Method) -> NewCall {
        NewCall {
            scope: None,
            conn: ConnId::from_u64(NO_CONNECTION),
            form,
            errors_as_status: false,
            commands: vec![CommandSlot::new(Some(method), 0)],
            at_once: 1,
            unknown: UnknownFields::default(),
            pusher: None,
            then: None,
            began: Instant::now(),
            span: None,
        }
    }
}

/// The rights of an API key.
#[derive(Clone)]
pub(crate) struct KeyScope {
    pub(crate) may: Arc<ApiScope>,
    /// The tenant of the key; `None`: the key is for what belongs to no tenant.
    pub(crate) tenant: Option<Arc<Tenant>>,
    /// The budget of its calls, if it has one.
    pub(crate) budget: Option<(BudgetKey, Rates)>,
}

/// How a call was made, which decides how its response is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallForm {
    Single,
    Batch,
    Legacy,
    /// A command of a node of the cluster; the response is sent to that node.
    Cluster {
        request_id: u64,
    },
    /// A command that came through the admin port; the response is sent to the admin thread.
    Admin {
        request_id: u64,
    },
}

/// One command of a call, and its answer once there is one.
pub(crate) struct CommandSlot {
    method: Option<Method>,
    /// The id of a command of the legacy endpoint.
    id: u32,
    answer: Option<CommandResult>,
    /// Answers of the channels of a broadcast.
    parts: Vec<Option<Result<Published, ApiError>>>,
    parts_missing: usize,
}

/// A call whose commands are all answered.
pub(crate) struct AnsweredCall {
    pub(crate) conn: ConnId,
    form: CallForm,
    errors_as_status: bool,
    commands: Vec<CommandSlot>,
    /// See [`NewCall::unknown`].
    pub(crate) unknown: UnknownFields,
    /// The budget of the call, if it has one.
    pub(crate) budget: Option<(BudgetKey, Rates)>,
    /// See [`NewCall::pusher`].
    pub(crate) pusher: Option<Box<Plan>>,
    /// See [`NewCall::then`].
    pub(crate) then: Option<OnResponse>,
    /// See [`NewCall::began`].
    pub(crate) began: Instant,
    /// See [`NewCall::span`].
    pub(crate) span: Option<Box<BegunSpan>>,
}

struct ApiCall {
    new: NewCall,
    begun: usize,
    /// Outstanding answers, plus one while `is_running`.
    outstanding: usize,
    rest: CallRest,
    /// Its commands are being given to the hub.
    is_running: bool,
    /// It is in `ApiCalls::ready`.
    is_ready: bool,
    /// It is in `ApiCalls::held`.
    is_held: bool,
}

impl ApiCall {
    /// Returns the key of the call's budget, if it has one.
    fn budget_key(&self) -> Option<BudgetKey> {
        Some(self.new.scope.as_ref()?.budget?.0)
    }

    fn has_more(&self) -> bool {
        self.begun < self.new.commands.len() || self.rest.broadcast.is_some()
    }

    /// Whether another command, or another channel of a broadcast, may begin now.
    fn may_begin(&self) -> bool {
        let outstanding = self.outstanding - usize::from(self.is_running);
        self.has_more()
            && !self.is_held
            && outstanding < OUTSTANDING_MAX
            && (outstanding == 0 || self.rest.broadcast.is_some() || self.begun < self.new.at_once)
    }
}

impl CommandSlot {
    pub(crate) fn new(method: Option<Method>, id: u32) -> Self {
        Self { method, id, answer: None, parts: Vec::new(), parts_missing: 0 }
    }

    fn method_name(&self) -> &'static str {
        self.method.map_or(NO_METHOD, Method::name)
    }

    fn take_answer(&mut self) -> CommandResult {
        self.answer.take().unwrap_or_else(|| Err(ApiErrorCode::Internal.into()))
    }
}

impl ApiCalls {
    /// Opens a call, which is running: it is not answered before [`ApiCalls::pause`].
    pub(crate) fn open(&mut self, new: NewCall) -> CallId {
        let id = self.opened;
        self.opened += 1;
        let call = ApiCall {
            new,
            begun: 0,
            outstanding: 1,
            rest: CallRest::default(),
            is_running: true,
            is_ready: false,
            is_held: false,
        };
        self.calls.insert(id, call);
        id
    }

    /// Returns the rights of a call's API key; `None`: everything.
    pub(crate) fn scope(&self, call: CallId) -> Option<&ApiScope> {
        Some(&self.calls.get(&call)?.new.scope.as_ref()?.may)
    }

    /// Returns the budget of a call, if it has one.
    pub(crate) fn budget(&self, call: CallId) -> Option<(BudgetKey, Rates)> {
        self.calls.get(&call)?.new.scope.as_ref()?.budget
    }

    /// Returns the tenant of a call's API key.
    pub(crate) fn tenant(&self, call: CallId) -> Option<&Arc<Tenant>> {
        self.calls.get(&call)?.new.scope.as_ref()?.tenant.as_ref()
    }

    /// Returns the ids of the span of a call, if it is traced.
    pub(crate) fn trace(&self, call: CallId) -> Option<TraceContext> {
        self.calls.get(&call)?.new.span.as_ref().map(|span| span.context)
    }

    /// Returns the method of a command.
    pub(crate) fn method(&self, place: CommandPlace) -> Option<Method> {
        self.calls.get(&place.call)?.new.commands.get(place.at as usize)?.method
    }

    /// Notes what a command is that was read as it began, and what was ignored in it.
    pub(crate) fn handle_read(
        &mut self,
        place: CommandPlace,
        method: Option<Method>,
        unknown: UnknownFields,
    ) {
        let Some(call) = self.calls.get_mut(&place.call) else { return };
        call.new.unknown.append(unknown);
        if let Some(command) = call.new.commands.get_mut(place.at as usize) {
            command.method = command.method.or(method);
        }
    }

    /// Whether a call belongs to the Pusher protocol's API.
    pub(crate) fn is_of_pusher(&self, call: CallId) -> bool {
        self.calls.get(&call).is_some_and(|call| call.new.pusher.is_some())
    }

    /// Whether a call was made by a node of the cluster.
    pub(crate) fn is_of_cluster(&self, call: CallId) -> bool {
        self.calls.get(&call).is_some_and(|call| matches!(call.new.form, CallForm::Cluster { .. }))
    }

    /// Returns the connection of a call.
    pub(crate) fn conn(&self, call: CallId) -> Option<ConnId> {
        Some(self.calls.get(&call)?.new.conn)
    }

    /// Returns how many commands of a call have begun; `usize::MAX` if the call does not exist.
    pub(crate) fn begun(&self, call: CallId) -> usize {
        self.calls.get(&call).map_or(usize::MAX, |call| call.begun)
    }

    /// Begins the next command, if it may begin now, and returns its index.
    pub(crate) fn begin_next(&mut self, call: CallId) -> Option<u32> {
        let call = self.calls.get_mut(&call)?;
        if call.begun == call.new.commands.len() || !call.may_begin() {
            return None;
        }
        call.begun += 1;
        call.outstanding += 1;
        Some((call.begun - 1) as u32)
    }

    /// Makes a command a broadcast to so many channels, each answered separately.
    pub(crate) fn begin_broadcast(&mut self, place: CommandPlace, channels: usize) {
        if let Some(command) = self.command(place) {
            command.parts = vec![None; channels];
            command.parts_missing = channels;
        }
    }

    /// Counts one more outstanding channel of a broadcast. Returns `false` if the next channel has to wait for answers.
    pub(crate) fn begin_part(&mut self, call: CallId) -> bool {
        self.calls.get_mut(&call).is_none_or(|call| {
            call.outstanding += 1;
            call.outstanding < OUTSTANDING_MAX
        })
    }

    /// Keeps commands that have not begun. Returns `false`, and keeps nothing, if all calls would keep more than `bytes_max`, or
    /// those of the same budget more than their share.
    pub(crate) fn keep(&mut self, call: CallId, commands: RestCommands, bytes_max: usize) -> bool {
        let Some(call) = self.calls.get_mut(&call) else { return true };
        let before = call.rest.bytes();
        call.rest.commands = commands;
        let (budget_key, added) = (call.budget_key(), call.rest.bytes() - before);
        let fits = self.kept.fits(budget_key, added, bytes_max);
        match fits {
            true => self.kept.add(budget_key, added),
            false => call.rest.commands = RestCommands::None,
        }
        fits
    }

    /// Answers all commands that have not begun with `error`.
    pub(crate) fn refuse_rest(&mut self, call: CallId, error: &ApiError) {
        let Some(call) = self.calls.get_mut(&call) else { return };
        for command in &mut call.new.commands[call.begun..] {
            command.answer = Some(Err(error.clone()));
        }
        call.begun = call.new.commands.len();
    }

    /// Keeps the rest of a broadcast, which continues before any other command of the call begins.
    pub(crate) fn keep_broadcast(&mut self, call: CallId, broadcast: BroadcastRest) {
        let Some(call) = self.calls.get_mut(&call) else { return };
        let budget_key = call.budget_key();
        self.kept.remove(budget_key, call.rest.bytes());
        call.rest.broadcast = Some(broadcast);
        self.kept.add(budget_key, call.rest.bytes());
    }

    /// Whether the rest of a broadcast is kept.
    pub(crate) fn has_broadcast(&self, call: CallId) -> bool {
        self.calls.get(&call).is_some_and(|call| call.rest.broadcast.is_some())
    }

    /// Ends the running state of a call: all that can begin now has begun, or the turn is over.
    pub(crate) fn pause(&mut self, call: CallId) {
        if let Some(call) = self.calls.get_mut(&call) {
            call.is_running = false;
        }
        self.settle(call);
    }

    /// Holds a call until `until_ms`, or until `channel` is no longer behind.
    pub(crate) fn hold(&mut self, id: CallId, until_ms: u64, channel: Option<u64>) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if !std::mem::replace(&mut call.is_held, true) {
            self.held.push(WaitingCall { call: id, until_ms, channel });
        } else if let Some(held) = self.held.iter_mut().rev().find(|held| held.call == id) {
            // Of two reasons, the one that lasts longer counts.
            *held = match held.until_ms < until_ms {
                true => WaitingCall { call: id, until_ms, channel },
                false => *held,
            };
        }
    }

    pub(crate) fn is_held(&self, call: CallId) -> bool {
        self.calls.get(&call).is_some_and(|call| call.is_held)
    }

    /// Whether the held calls are due for a check: the more are held, the less often.
    pub(crate) fn is_look_due(&self, now_ms: u64) -> bool {
        !self.held.is_empty() && now_ms >= self.look_ms
    }

    /// Releases and returns the held calls for which `is_over` is true.
    pub(crate) fn release(
        &mut self,
        now_ms: u64,
        mut is_over: impl FnMut(&WaitingCall) -> bool,
    ) -> Vec<CallId> {
        self.look_ms = now_ms + (self.held.len() / LOOKS_PER_MS) as u64;
        let released: Vec<_> = self.held.extract_if(.., |held| is_over(held)).collect();
        let released = released.into_iter().map(|held| held.call);
        let Self { calls, .. } = self;
        released
            .inspect(|id| {
                if let Some(call) = calls.get_mut(id) {
                    call.is_held = false;
                }
            })
            .collect()
    }

    /// Whether a timer must be set for the held calls; from then on it counts as set.
    pub(crate) fn arm_timer(&mut self) -> bool {
        !self.held.is_empty() && !std::mem::replace(&mut self.is_armed, true)
    }

    /// Notes that the timer has fired.
    pub(crate) fn handle_timer(&mut self) {
        self.is_armed = false;
    }

    /// Takes the calls that may continue.
    pub(crate) fn take_ready(&mut self) -> VecDeque<CallId> {
        std::mem::take(&mut self.ready)
    }

    /// Whether a call may continue.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Continues a call. Returns its connection and what was kept for it.
    pub(crate) fn resume(&mut self, id: CallId) -> Option<(ConnId, CallRest)> {
        let call = self.calls.get_mut(&id)?;
        call.is_ready = false;
        call.is_running = true;
        call.outstanding += 1;
        self.kept.remove(call.budget_key(), call.rest.bytes());
        Some((call.new.conn, std::mem::take(&mut call.rest)))
    }

    /// Stores the answer to a command, or to one channel of a broadcast.
    pub(crate) fn handle_answer(&mut self, place: CommandPlace, answer: CommandResult) {
        let Some(command) = self.command(place) else { return };
        let Some(part) = place.part else {
            command.answer = Some(answer);
            return self.settle(place.call);
        };
        let part = &mut command.parts[part as usize];
        if part.is_none() {
            command.parts_missing -= 1;
        }
        *part = Some(answer.map(|outcome| match outcome {
            CommandOutcome::Published(published) => published,
            _ => Published::default(),
        }));
        if command.parts_missing == 0 {
            let parts = std::mem::take(&mut command.parts).into_iter().flatten().collect();
            command.answer = Some(Ok(CommandOutcome::Broadcast(parts)));
            self.settle(place.call);
        }
        self.settle(place.call);
    }

    /// Returns the call if all its commands are answered. A call that may begin more becomes ready for the next turn.
    pub(crate) fn poll(&mut self, id: CallId) -> Option<AnsweredCall> {
        let call = self.calls.get_mut(&id).filter(|call| !call.is_running)?;
        if call.has_more() || call.outstanding > 0 || call.is_held {
            if !call.is_ready && call.may_begin() {
                call.is_ready = true;
                self.ready.push_back(id);
            }
            return None;
        }
        let call = self.calls.remove(&id)?;
        self.kept.remove(call.budget_key(), call.rest.bytes());
        let NewCall {
            conn,
            form,
            errors_as_status,
            commands,
            unknown,
            scope,
            pusher,
            then,
            began,
            span,
            ..
        } = call.new;
        let budget = scope.and_then(|scope| scope.budget);
        let call = AnsweredCall {
            conn,
            form,
            errors_as_status,
            commands,
            unknown,
            budget,
            pusher,
            then,
            began,
            span,
        };
        Some(call)
    }

    /// Counts one outstanding answer less.
    fn settle(&mut self, call: CallId) {
        if let Some(call) = self.calls.get_mut(&call) {
            call.outstanding -= 1;
        }
    }

    fn command(&mut self, place: CommandPlace) -> Option<&mut CommandSlot> {
        self.calls.get_mut(&place.call)?.new.commands.get_mut(place.at as usize)
    }
}

impl AnsweredCall {
    /// Returns the answers in the order of the commands.
    pub(crate) fn into_answers(mut self) -> Vec<CommandResult> {
        self.commands.iter_mut().map(CommandSlot::take_answer).collect()
    }

    /// Returns the API that the call is of, and its method.
    pub(crate) fn labels(&self) -> (&'static str, &'static str) {
        let api = match self.form {
            _ if self.then.is_some() => "program",
            CallForm::Single | CallForm::Batch | CallForm::Legacy => "server",
            CallForm::Cluster { .. } => "cluster",
            CallForm::Admin { .. } => "admin",
        };
        let method = match self.form {
            CallForm::Batch | CallForm::Legacy => "batch",
            _ => self.commands.first().map_or(NO_METHOD, CommandSlot::method_name),
        };
        (api, method)
    }

    /// Returns the method of each command, with the code of its error; 0: it was carried out.
    pub(crate) fn results(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.commands.iter().map(|command| {
            let code = match &command.answer {
                Some(Ok(_)) => 0,
                Some(Err(error)) => error.code,
                None => ApiErrorCode::Internal.code(),
            };
            (command.method_name(), code)
        })
    }

    /// Returns the request id of the cluster node that made the call.
    pub(crate) fn cluster_request(&self) -> Option<u64> {
        match self.form {
            CallForm::Cluster { request_id } => Some(request_id),
            _ => None,
        }
    }

    /// Returns the request id of the admin thread that made the call.
    pub(crate) fn admin_request(&self) -> Option<u64> {
        match self.form {
            CallForm::Admin { request_id } => Some(request_id),
            _ => None,
        }
    }

    /// Returns status and body of the response. The body of several commands, or of a broadcast, has at most `bytes_max` bytes.
    pub(crate) fn encode(mut self, facts: &NodeFacts<'_>, bytes_max: usize) -> (u16, Vec<u8>) {
        let mut body = Vec::new();
        let mut status = 200;
        let commands = &mut self.commands;
        match self.form {
            CallForm::Single | CallForm::Cluster { .. } | CallForm::Admin { .. } => {
                let mut answer = commands[0].take_answer();
                write_response(&mut body, &answer, facts, bytes_max);
                // A page of history, and who is present, ended at the bound before they were written; a page has one message
                // at least.
                let has_ended = matches!(
                    answer,
                    Err(_) | Ok(CommandOutcome::History(_) | CommandOutcome::Presence(_))
                );
                if !has_ended && body.len() > bytes_max {
                    answer = Err(too_long(bytes_max));
                    body.clear();
                    write_response(&mut body, &answer, facts, bytes_max);
                }
                if let Err(error) = &answer {
                    status = match self.errors_as_status {
                        true => error.transport_status(),
                        false => error.status(),
                    };
                }
            }
            CallForm::Batch => {
                let replies: Vec<_> =
                    commands.iter_mut().map(|c| (c.method, c.take_answer())).collect();
                write_batch(&mut body, &replies, facts, bytes_max);
            }
            CallForm::Legacy => {
                let replies: Vec<_> =
                    commands.iter_mut().map(|c| (c.id, c.take_answer())).collect();
                write_legacy(&mut body, &replies, facts, bytes_max);
            }
        }
        (status, body)
    }
}

#[cfg(test)]
mod tests;
