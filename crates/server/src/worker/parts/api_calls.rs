//! Server API calls under way: which commands have begun, which are answered, and the response when all are.

use std::collections::VecDeque;
use std::sync::Arc;

use dunlin_config::ApiScope;
use dunlin_hub::Published;
use dunlin_net::ConnId;

use super::call_rest::{Broadcast, Rest, RestCommands};
use super::{CommandPlace, FastMap};
use crate::api::{
    Answer, ApiError, ApiErrorCode, Method, NodeFacts, Outcome, write_batch, write_legacy,
    write_response,
};
use crate::budget::{Payer, Rates};
use crate::pusher::Plan;

/// Counts up while the worker runs.
pub(crate) type CallId = u64;

/// Answers of one call that are outstanding at once, before more of it begins.
const OUTSTANDING_MAX: usize = 1_024;

/// The calls of one worker.
///
/// [`ApiCalls::open`] a call, give commands to the hub as [`ApiCalls::begin_next`] allows, [`ApiCalls::keep`] what is left of
/// it, then [`ApiCalls::pause`]. Answers come in any order with [`ApiCalls::handle_answer`]; after each, and after a pause,
/// [`ApiCalls::poll`] gives the call when it is answered. One that has more to begin is [ready](ApiCalls::take_ready) for the
/// next turn, in which it goes on with [`ApiCalls::resume`]. One that is [held](ApiCalls::hold) goes on, and is answered, once it is
/// [released](ApiCalls::release).
#[derive(Default)]
pub(crate) struct ApiCalls {
    calls: FastMap<CallId, Call>,
    ready: VecDeque<CallId>,
    held: Vec<Held>,
    /// A timer will have them looked at.
    is_armed: bool,
    /// Of what is kept.
    bytes: usize,
    opened: u64,
}

/// A call that waits.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    call: CallId,
    /// Until then at most.
    pub(crate) until_ms: u64,
    /// The channel that it has published to, by its hash in [`Pressure`](crate::pressure::Pressure): until that is not behind.
    pub(crate) channel: Option<u64>,
}

/// What a call begins with.
pub(crate) struct NewCall {
    pub(crate) conn: ConnId,
    pub(crate) form: CallForm,
    /// The caller wants errors as HTTP statuses (`X-Centrifugo-Error-Mode: transport`).
    pub(crate) errors_as_status: bool,
    /// What the caller's key may do; `None`: everything.
    pub(crate) scope: Option<KeyScope>,
    pub(crate) commands: Vec<CommandSlot>,
    /// So many begin whether or not those before them are answered; each after them waits for that.
    pub(crate) at_once: usize,
    /// Of the response, about the request: see [`Lenient`](crate::api::Lenient).
    pub(crate) warning: Option<Box<str>>,
    /// A call of the Pusher protocol's API, which is answered by this in place of its form.
    pub(crate) pusher: Option<Box<Plan>>,
}

/// What an API key may do.
#[derive(Clone)]
pub(crate) struct KeyScope {
    pub(crate) may: Arc<ApiScope>,
    /// Who pays for its calls, if they are bounded.
    pub(crate) budget: Option<(Payer, Rates)>,
}

/// How a call was made, and is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallForm {
    Single,
    Batch,
    Legacy,
    /// A command for a node of the cluster; the response goes there.
    Cluster {
        request_id: u64,
    },
}

/// One command of a call, and its answer once there is one.
pub(crate) struct CommandSlot {
    method: Option<Method>,
    /// The id of a command of the legacy endpoint.
    id: u32,
    answer: Option<Answer>,
    /// Answers of the channels of a broadcast, and how many are outstanding.
    parts: Vec<Option<Result<Published, ApiError>>>,
    parts_missing: usize,
}

/// A call whose commands are all answered.
pub(crate) struct AnsweredCall {
    pub(crate) conn: ConnId,
    form: CallForm,
    errors_as_status: bool,
    commands: Vec<CommandSlot>,
    /// The `Warning` header of the response.
    pub(crate) warning: Option<Box<str>>,
    /// Who pays for it.
    pub(crate) budget: Option<(Payer, Rates)>,
    /// See [`NewCall::pusher`].
    pub(crate) pusher: Option<Box<Plan>>,
}

struct Call {
    new: NewCall,
    begun: usize,
    /// Answers outstanding, and one more while commands are being given out.
    outstanding: usize,
    rest: Rest,
    /// Commands are being given out.
    is_running: bool,
    /// It is among those that are ready.
    is_ready: bool,
    /// It is among those that are held.
    is_held: bool,
}

impl Call {
    fn has_more(&self) -> bool {
        self.begun < self.new.commands.len() || self.rest.broadcast.is_some()
    }

    /// Whether more may begin beside what is outstanding.
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

    fn take_answer(&mut self) -> Answer {
        self.answer.take().unwrap_or_else(|| Err(ApiErrorCode::Internal.into()))
    }
}

impl ApiCalls {
    /// Opens a call, whose commands are given out now. It is not answered before [`ApiCalls::pause`].
    pub(crate) fn open(&mut self, new: NewCall) -> CallId {
        let id = self.opened;
        self.opened += 1;
        let call = Call {
            new,
            begun: 0,
            outstanding: 1,
            rest: Rest::default(),
            is_running: true,
            is_ready: false,
            is_held: false,
        };
        self.calls.insert(id, call);
        id
    }

    /// What the key of a call may do; `None`: everything.
    pub(crate) fn scope(&self, call: CallId) -> Option<&ApiScope> {
        Some(&self.calls.get(&call)?.new.scope.as_ref()?.may)
    }

    /// Who pays for a call, if it is bounded.
    pub(crate) fn budget(&self, call: CallId) -> Option<(Payer, Rates)> {
        self.calls.get(&call)?.new.scope.as_ref()?.budget
    }

    /// Whether a call is of the Pusher protocol's API.
    pub(crate) fn is_of_pusher(&self, call: CallId) -> bool {
        self.calls.get(&call).is_some_and(|call| call.new.pusher.is_some())
    }

    /// Whether a call was made by a node of the cluster.
    pub(crate) fn is_of_cluster(&self, call: CallId) -> bool {
        self.calls.get(&call).is_some_and(|call| matches!(call.new.form, CallForm::Cluster { .. }))
    }

    /// The connection of a call.
    pub(crate) fn conn(&self, call: CallId) -> Option<ConnId> {
        Some(self.calls.get(&call)?.new.conn)
    }

    /// How many commands of a call have begun.
    pub(crate) fn begun(&self, call: CallId) -> usize {
        self.calls.get(&call).map_or(usize::MAX, |call| call.begun)
    }

    /// The next command, if it may begin now.
    pub(crate) fn begin_next(&mut self, call: CallId) -> Option<u32> {
        let call = self.calls.get_mut(&call)?;
        if call.begun == call.new.commands.len() || !call.may_begin() {
            return None;
        }
        call.begun += 1;
        call.outstanding += 1;
        Some((call.begun - 1) as u32)
    }

    /// A command is a broadcast to so many channels, each answered by itself.
    pub(crate) fn begin_broadcast(&mut self, place: CommandPlace, channels: usize) {
        if let Some(command) = self.command(place) {
            command.parts = vec![None; channels];
            command.parts_missing = channels;
        }
    }

    /// One more channel of a broadcast is given to the hub. False: so many are outstanding that the next has to wait.
    pub(crate) fn begin_part(&mut self, call: CallId) -> bool {
        self.calls.get_mut(&call).is_none_or(|call| {
            call.outstanding += 1;
            call.outstanding < OUTSTANDING_MAX
        })
    }

    /// Keeps commands that have not begun. False, and they are not kept, when more than `bytes_max` would be of all calls.
    pub(crate) fn keep(&mut self, call: CallId, commands: RestCommands, bytes_max: usize) -> bool {
        let Some(call) = self.calls.get_mut(&call) else { return true };
        let before = call.rest.bytes();
        call.rest.commands = commands;
        self.bytes += call.rest.bytes() - before;
        let fits = self.bytes <= bytes_max;
        if !fits {
            self.bytes -= call.rest.bytes() - before;
            call.rest.commands = RestCommands::None;
        }
        fits
    }

    /// Answers all commands that have not begun.
    pub(crate) fn refuse_rest(&mut self, call: CallId, error: &ApiError) {
        let Some(call) = self.calls.get_mut(&call) else { return };
        for command in &mut call.new.commands[call.begun..] {
            command.answer = Some(Err(error.clone()));
        }
        call.begun = call.new.commands.len();
    }

    /// Keeps what is left of a broadcast, which goes on before any other command of the call begins.
    pub(crate) fn keep_broadcast(&mut self, call: CallId, broadcast: Broadcast) {
        let Some(call) = self.calls.get_mut(&call) else { return };
        self.bytes -= call.rest.bytes();
        call.rest.broadcast = Some(broadcast);
        self.bytes += call.rest.bytes();
    }

    /// Something of a broadcast is left.
    pub(crate) fn has_broadcast(&self, call: CallId) -> bool {
        self.calls.get(&call).is_some_and(|call| call.rest.broadcast.is_some())
    }

    /// All that can begin now has begun, or the turn is over.
    pub(crate) fn pause(&mut self, call: CallId) {
        if let Some(call) = self.calls.get_mut(&call) {
            call.is_running = false;
        }
        self.settle(call);
    }

    /// A call waits from now on, until then or until a channel is not behind any more.
    pub(crate) fn hold(&mut self, id: CallId, until_ms: u64, channel: Option<u64>) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if !std::mem::replace(&mut call.is_held, true) {
            self.held.push(Held { call: id, until_ms, channel });
        } else if let Some(held) = self.held.iter_mut().find(|held| held.call == id) {
            // The longer of two reasons.
            *held = match held.until_ms < until_ms {
                true => Held { call: id, until_ms, channel },
                false => *held,
            };
        }
    }

    pub(crate) fn is_held(&self, call: CallId) -> bool {
        self.calls.get(&call).is_some_and(|call| call.is_held)
    }

    /// Something is held.
    pub(crate) fn holds_some(&self) -> bool {
        !self.held.is_empty()
    }

    /// Calls that are held no more.
    pub(crate) fn release(&mut self, mut is_over: impl FnMut(&Held) -> bool) -> Vec<CallId> {
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

    /// Whether a timer has to be set for those that are held.
    pub(crate) fn arm_timer(&mut self) -> bool {
        !self.held.is_empty() && !std::mem::replace(&mut self.is_armed, true)
    }

    /// It has fired.
    pub(crate) fn handle_timer(&mut self) {
        self.is_armed = false;
    }

    /// Calls that may go on.
    pub(crate) fn take_ready(&mut self) -> VecDeque<CallId> {
        std::mem::take(&mut self.ready)
    }

    /// True when a call may go on.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Goes on with a call, with what was kept of it.
    pub(crate) fn resume(&mut self, id: CallId) -> Option<(ConnId, Rest)> {
        let call = self.calls.get_mut(&id)?;
        call.is_ready = false;
        call.is_running = true;
        call.outstanding += 1;
        self.bytes -= call.rest.bytes();
        Some((call.new.conn, std::mem::take(&mut call.rest)))
    }

    /// A command, or one channel of a broadcast, is answered.
    pub(crate) fn handle_answer(&mut self, place: CommandPlace, answer: Answer) {
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
            Outcome::Published(published) => published,
            _ => Published::default(),
        }));
        if command.parts_missing == 0 {
            let parts = std::mem::take(&mut command.parts).into_iter().flatten().collect();
            command.answer = Some(Ok(Outcome::Broadcast(parts)));
            self.settle(place.call);
        }
        self.settle(place.call);
    }

    /// A call whose commands are all answered. One that has more to begin is ready for the next turn, if it can go on.
    pub(crate) fn poll(&mut self, id: CallId) -> Option<AnsweredCall> {
        let call = self.calls.get_mut(&id).filter(|call| !call.is_running)?;
        if call.has_more() || call.outstanding > 0 || call.is_held {
            if !call.is_ready && call.may_begin() {
                call.is_ready = true;
                self.ready.push_back(id);
            }
            return None;
        }
        let Call { new, rest, .. } = self.calls.remove(&id)?;
        self.bytes -= rest.bytes();
        let NewCall { conn, form, errors_as_status, commands, warning, scope, pusher, .. } = new;
        let budget = scope.and_then(|scope| scope.budget);
        Some(AnsweredCall { conn, form, errors_as_status, commands, warning, budget, pusher })
    }

    /// One thing less is outstanding.
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
    /// The answers to the commands, in their order.
    pub(crate) fn into_answers(mut self) -> Vec<Answer> {
        self.commands.iter_mut().map(CommandSlot::take_answer).collect()
    }

    /// The request of a node of the cluster that this answers, if it does.
    pub(crate) fn cluster_request(&self) -> Option<u64> {
        match self.form {
            CallForm::Cluster { request_id } => Some(request_id),
            _ => None,
        }
    }

    /// Status and body of the response; of several commands, at most so many bytes and a few for each.
    pub(crate) fn encode(mut self, facts: &NodeFacts<'_>, bytes_max: usize) -> (u16, Vec<u8>) {
        let mut body = Vec::new();
        let mut status = 200;
        let commands = &mut self.commands;
        match self.form {
            CallForm::Single | CallForm::Cluster { .. } => {
                let answer = commands[0].take_answer();
                if let Err(error) = &answer {
                    status = match self.errors_as_status {
                        true => error.transport_status(),
                        false => error.status(),
                    };
                }
                write_response(&mut body, &answer, facts);
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
mod tests {
    use dunlin_hub::{Error, NewPublication};

    use super::*;
    use crate::api::Request;

    fn conn(number: u64) -> ConnId {
        ConnId::from_u64(number)
    }

    fn new_call(number: u64, form: CallForm, commands: u32, at_once: usize) -> NewCall {
        NewCall {
            scope: None,
            conn: conn(number),
            form,
            errors_as_status: false,
            commands: (0..commands).map(|id| CommandSlot::new(Some(Method::Publish), id)).collect(),
            at_once,
            warning: None,
            pusher: None,
        }
    }

    /// Opens a call and gives out its commands.
    fn begun(calls: &mut ApiCalls, new: NewCall) -> CallId {
        let id = calls.open(new);
        while calls.begin_next(id).is_some() {}
        calls.pause(id);
        id
    }

    fn place(call: CallId, at: u32) -> CommandPlace {
        CommandPlace { call, at, part: None }
    }

    fn published(offset: u64) -> Answer {
        let mut published = Published::default();
        published.position.offset = offset;
        Ok(Outcome::Published(published))
    }

    fn response(answered: Option<AnsweredCall>) -> (ConnId, u16, String) {
        let call = answered.expect("an answered call");
        let conn = call.conn;
        let (status, body) = call.encode(&NodeFacts::default(), usize::MAX);
        (conn, status, String::from_utf8(body).unwrap())
    }

    #[test]
    fn two_calls_answered_out_of_order_each_get_their_own_response() {
        let mut calls = ApiCalls::default();
        let first = begun(&mut calls, new_call(1, CallForm::Single, 1, 1));
        let second = begun(&mut calls, new_call(2, CallForm::Single, 1, 1));
        assert!(calls.poll(first).is_none());

        calls.handle_answer(place(second, 0), published(22));
        assert!(calls.poll(first).is_none());
        let (to, status, body) = response(calls.poll(second));
        assert_eq!((to, status), (conn(2), 200));
        assert!(body.contains("\"offset\":22"), "{body}");

        calls.handle_answer(place(first, 0), Err(Error::Timeout.into()));
        let (to, status, body) = response(calls.poll(first));
        assert_eq!((to, status), (conn(1), 200));
        assert!(body.starts_with("{\"error\""), "{body}");
        calls.handle_answer(place(first, 0), published(1));
        assert!(calls.poll(first).is_none(), "an answer that comes late finds no call");
    }

    #[test]
    fn a_call_that_is_held_is_answered_once_it_is_released() {
        let mut calls = ApiCalls::default();
        let call = calls.open(new_call(1, CallForm::Batch, 2, 2));
        assert_eq!(calls.begin_next(call), Some(0));
        calls.hold(call, 50, Some(7));
        calls.hold(call, 40, None);
        assert_eq!(calls.begin_next(call), None, "what follows of it waits too");
        calls.pause(call);
        calls.handle_answer(place(call, 0), published(1));
        assert!(calls.poll(call).is_none() && !calls.is_ready());
        assert!(calls.arm_timer() && !calls.arm_timer());
        let until = |calls: &mut ApiCalls, now_ms: u64| {
            calls.release(|held| now_ms >= held.until_ms || held.channel == Some(8))
        };
        assert_eq!(until(&mut calls, 49), [] as [CallId; 0], "the longer of two reasons holds");
        assert_eq!(until(&mut calls, 50), [call]);
        assert!(calls.poll(call).is_none() && calls.is_ready(), "its second command is to come");
        calls.take_ready();
        assert!(calls.resume(call).is_some());
        assert_eq!(calls.begin_next(call), Some(1));
        calls.hold(call, 90, None);
        calls.pause(call);
        calls.handle_answer(place(call, 1), published(2));
        assert!(calls.poll(call).is_none(), "answered by the hub, and held");
        assert_eq!(until(&mut calls, 90), [call]);
        assert!(response(calls.poll(call)).2.contains("\"offset\":2"));
        calls.handle_timer();
        assert!(!calls.holds_some() && !calls.arm_timer());
    }

    #[test]
    fn a_command_answered_while_others_begin_does_not_end_the_call() {
        let mut calls = ApiCalls::default();
        let call = calls.open(new_call(1, CallForm::Batch, 2, 2));
        assert_eq!(calls.begin_next(call), Some(0));
        calls.handle_answer(place(call, 0), published(1));
        assert!(calls.poll(call).is_none(), "the second command has not begun");
        assert_eq!((calls.begin_next(call), calls.begin_next(call)), (Some(1), None));
        calls.pause(call);
        assert!(calls.poll(call).is_none());
        calls.handle_answer(place(call, 1), published(2));
        let (_, _, body) = response(calls.poll(call));
        assert!(body.find("\"offset\":1").unwrap() < body.find("\"offset\":2").unwrap(), "{body}");
    }

    /// Takes the one call that is ready and gives out what may begin; which commands those are.
    fn turn(calls: &mut ApiCalls) -> Vec<String> {
        let ready = calls.take_ready();
        let [call] = *ready.iter().collect::<Vec<_>>() else { panic!("{ready:?}") };
        let (_, rest) = calls.resume(*call).unwrap();
        let mut begun = Vec::new();
        while let Some(at) = calls.begin_next(*call) {
            let Request::Publish(publish) = rest.commands.command(at).unwrap() else { panic!() };
            begun.push(format!("{at}{}", publish.channel));
        }
        assert!(calls.keep(*call, rest.commands, usize::MAX));
        calls.pause(*call);
        begun
    }

    const PUBLISH: &[u8] = br#"{"publish":{"channel":"a","data":1}}"#;

    #[test]
    fn a_batch_in_order_begins_a_command_when_the_one_before_is_answered() {
        let mut calls = ApiCalls::default();
        let call = calls.open(new_call(1, CallForm::Batch, 3, 1));
        assert_eq!((calls.begin_next(call), calls.begin_next(call)), (Some(0), None));
        let second = PUBLISH.to_vec();
        let third = String::from_utf8_lossy(PUBLISH).replace("\"a\"", "\"b\"");
        let rest = RestCommands::batch(1, &[&second, third.as_bytes()]);
        assert!(calls.keep(call, rest, 1_000) && calls.bytes > 60);
        calls.pause(call);
        for (number, text) in [(1, "1a"), (2, "2b")] {
            assert!(calls.poll(call).is_none() && !calls.is_ready());
            calls.handle_answer(place(call, number - 1), published(u64::from(number)));
            assert!(calls.poll(call).is_none() && calls.poll(call).is_none());
            assert_eq!(turn(&mut calls), [text]);
        }
        calls.handle_answer(place(call, 2), published(3));
        assert_eq!(response(calls.poll(call)).1, 200);
        assert_eq!(calls.bytes, 0);
    }

    #[test]
    fn so_many_answers_are_outstanding_and_no_more() {
        let mut calls = ApiCalls::default();
        let commands = OUTSTANDING_MAX + 10;
        let call = calls.open(new_call(1, CallForm::Batch, commands as u32, commands));
        let begun = std::iter::from_fn(|| calls.begin_next(call)).count();
        assert_eq!(begun, OUTSTANDING_MAX);
        assert!(calls.keep(call, RestCommands::batch(begun, &[PUBLISH; 10]), 1_000));
        calls.pause(call);
        assert!(calls.poll(call).is_none() && !calls.is_ready());
        (0..4).for_each(|at| calls.handle_answer(place(call, at), published(1)));
        assert!(calls.poll(call).is_none());
        assert_eq!(turn(&mut calls).len(), 4);
    }

    #[test]
    fn what_would_take_too_much_memory_is_refused() {
        let mut calls = ApiCalls::default();
        let call = calls.open(new_call(1, CallForm::Batch, 2, 2));
        assert_eq!(calls.begin_next(call), Some(0));
        assert!(!calls.keep(call, RestCommands::batch(1, &[PUBLISH]), 10));
        calls.refuse_rest(call, &Error::Overloaded.into());
        calls.pause(call);
        calls.handle_answer(place(call, 0), published(7));
        let (_, _, body) = response(calls.poll(call));
        assert!(body.contains("\"offset\":7") && body.contains("overloaded"), "{body}");
        assert_eq!(calls.bytes, 0);
    }

    #[test]
    fn a_broadcast_waits_for_every_channel_and_keeps_their_order() {
        let mut calls = ApiCalls::default();
        let call = calls.open(new_call(1, CallForm::Single, 1, 1));
        assert_eq!(calls.begin_next(call), Some(0));
        calls.begin_broadcast(place(call, 0), 3);
        let part = |part| CommandPlace { call, at: 0, part: Some(part) };
        assert!(calls.begin_part(call));
        calls.handle_answer(part(0), published(11));
        // The rest is given out in later turns.
        let left = ["b", "c"].into_iter();
        calls.keep_broadcast(call, Broadcast::new((0, 1), left, NewPublication::default()));
        calls.pause(call);
        assert!(calls.poll(call).is_none() && calls.is_ready());
        let (_, rest) = calls.resume(calls.ready[0]).unwrap();
        let mut broadcast = rest.broadcast.unwrap();
        assert_eq!(broadcast.channels().collect::<Vec<_>>(), ["b", "c"]);
        broadcast.next += 1;
        assert_eq!(broadcast.channels().collect::<Vec<_>>(), ["c"]);
        assert!(calls.begin_part(call) && calls.begin_part(call));
        calls.pause(call);
        calls.handle_answer(part(2), published(33));
        assert!(calls.poll(call).is_none());
        calls.handle_answer(part(1), Err(ApiErrorCode::UnknownChannel.into()));
        let (_, status, body) = response(calls.poll(call));
        assert_eq!(status, 200, "what is wrong with one channel is that channel's answer");
        let places = ["\"offset\":11", "unknown channel", "\"offset\":33"];
        let places = places.map(|text| body.find(text).unwrap_or_else(|| panic!("{text}: {body}")));
        assert!(places.is_sorted(), "{body}");
    }
}
