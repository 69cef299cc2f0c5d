//! Server API calls under way: which commands have begun, which are answered, and the response when all are.

use std::collections::VecDeque;
use std::sync::Arc;

use dunlin_config::ApiScope;
use dunlin_hub::Published;
use dunlin_net::ConnId;

use super::{CommandPlace, FastMap};
use crate::api::{
    Answer, ApiError, ApiErrorCode, Method, NodeFacts, Outcome, write_batch, write_legacy,
    write_response,
};

/// Counts up while the worker runs.
pub(crate) type CallId = u64;

/// The calls of one worker.
///
/// [`ApiCalls::open`] a call, [`ApiCalls::begin_command`] for each command given to the hub, then
/// [`ApiCalls::all_begun`]. Answers come in any order with [`ApiCalls::handle_answer`]; after each,
/// [`ApiCalls::poll`] says how the call continues.
#[derive(Default)]
pub(crate) struct ApiCalls {
    calls: FastMap<CallId, Call>,
    opened: u64,
}

/// What a call begins with.
pub(crate) struct NewCall {
    pub(crate) conn: ConnId,
    pub(crate) form: CallForm,
    /// The caller wants errors as HTTP statuses (`X-Centrifugo-Error-Mode: transport`).
    pub(crate) errors_as_status: bool,
    /// What the caller's key may do; `None`: everything.
    pub(crate) scope: Option<Arc<ApiScope>>,
    pub(crate) commands: Vec<CommandSlot>,
    /// The text of the last commands, which wait until those before them are answered.
    pub(crate) queue: VecDeque<Box<[u8]>>,
    /// The `Warning` header of the response.
    pub(crate) warning: Option<Box<str>>,
}

/// How a call was made, and is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallForm {
    Single,
    Batch,
    Legacy,
}

/// One command of a call, and its answer once there is one.
pub(crate) struct CommandSlot {
    method: Option<Method>,
    /// The id of a command of the legacy endpoint.
    id: u32,
    answer: Option<Answer>,
    /// Answers of the channels of a broadcast.
    parts: Vec<Option<Result<Published, ApiError>>>,
}

/// How a call continues.
pub(crate) enum CallStep {
    /// With its next command, whose text this is.
    Execute { at: u32, text: Box<[u8]> },
    /// With its response.
    Respond(AnsweredCall),
}

/// A call whose commands are all answered.
pub(crate) struct AnsweredCall {
    pub(crate) conn: ConnId,
    form: CallForm,
    errors_as_status: bool,
    commands: Vec<CommandSlot>,
    /// The `Warning` header of the response.
    pub(crate) warning: Option<Box<str>>,
}

struct Call {
    new: NewCall,
    /// Answers outstanding, and one more while commands are being given out.
    outstanding: usize,
}

impl CommandSlot {
    pub(crate) fn new(method: Option<Method>, id: u32) -> Self {
        Self { method, id, answer: None, parts: Vec::new() }
    }

    fn take_answer(&mut self) -> Answer {
        self.answer.take().unwrap_or_else(|| Err(ApiErrorCode::Internal.into()))
    }
}

impl ApiCalls {
    /// Opens a call. It is not answered before [`ApiCalls::all_begun`].
    pub(crate) fn open(&mut self, new: NewCall) -> CallId {
        let id = self.opened;
        self.opened += 1;
        self.calls.insert(id, Call { new, outstanding: 1 });
        id
    }

    /// What the key of a call may do; `None`: everything.
    pub(crate) fn scope(&self, call: CallId) -> Option<&ApiScope> {
        self.calls.get(&call)?.new.scope.as_deref()
    }

    /// One more command is given to the hub.
    pub(crate) fn begin_command(&mut self, call: CallId) {
        if let Some(call) = self.calls.get_mut(&call) {
            call.outstanding += 1;
        }
    }

    /// A command is a broadcast to so many channels, each answered by itself.
    pub(crate) fn begin_broadcast(&mut self, place: CommandPlace, channels: usize) {
        if let Some(command) = self.command(place) {
            command.parts = vec![None; channels];
        }
    }

    /// Every command that can begin now has begun.
    pub(crate) fn all_begun(&mut self, call: CallId) {
        self.settle(call);
    }

    /// A command, or one channel of a broadcast, is answered.
    pub(crate) fn handle_answer(&mut self, place: CommandPlace, answer: Answer) {
        let Some(command) = self.command(place) else { return };
        let Some(part) = place.part else {
            command.answer = Some(answer);
            return self.settle(place.call);
        };
        command.parts[part as usize] = Some(answer.map(|outcome| match outcome {
            Outcome::Published(published) => published,
            _ => Published::default(),
        }));
        if command.parts.iter().all(Option::is_some) {
            let parts = std::mem::take(&mut command.parts).into_iter().flatten().collect();
            command.answer = Some(Ok(Outcome::Broadcast(parts)));
            self.settle(place.call);
        }
    }

    /// How a call continues; `None` while answers are outstanding. After [`CallStep::Execute`] the caller says
    /// [`ApiCalls::all_begun`] again.
    pub(crate) fn poll(&mut self, id: CallId) -> Option<CallStep> {
        let call = self.calls.get_mut(&id).filter(|call| call.outstanding == 0)?;
        let at = (call.new.commands.len() - call.new.queue.len()) as u32;
        if let Some(text) = call.new.queue.pop_front() {
            call.outstanding = 1;
            return Some(CallStep::Execute { at, text });
        }
        let NewCall { conn, form, errors_as_status, commands, warning, .. } =
            self.calls.remove(&id)?.new;
        Some(CallStep::Respond(AnsweredCall { conn, form, errors_as_status, commands, warning }))
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
    /// Status and body of the response; of several commands, at most so many bytes and a few for each.
    pub(crate) fn encode(mut self, facts: &NodeFacts<'_>, bytes_max: usize) -> (u16, Vec<u8>) {
        let mut body = Vec::new();
        let mut status = 200;
        let commands = &mut self.commands;
        match self.form {
            CallForm::Single => {
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
    use dunlin_hub::Error;

    use super::*;

    fn conn(number: u64) -> ConnId {
        ConnId::from_u64(number)
    }

    fn new_call(number: u64, form: CallForm, commands: u32, queue: &[&str]) -> NewCall {
        NewCall {
            scope: None,
            conn: conn(number),
            form,
            errors_as_status: false,
            commands: (0..commands).map(|id| CommandSlot::new(Some(Method::Publish), id)).collect(),
            queue: queue.iter().map(|text| text.as_bytes().into()).collect(),
            warning: None,
        }
    }

    /// Opens a call and gives out its commands, but for those in the queue.
    fn begun(calls: &mut ApiCalls, new: NewCall) -> CallId {
        let now = new.commands.len() - new.queue.len();
        let id = calls.open(new);
        (0..now).for_each(|_| calls.begin_command(id));
        calls.all_begun(id);
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

    fn response(step: Option<CallStep>) -> (ConnId, u16, String) {
        let Some(CallStep::Respond(call)) = step else { panic!("the call is not answered yet") };
        let conn = call.conn;
        let (status, body) = call.encode(&NodeFacts::default(), usize::MAX);
        (conn, status, String::from_utf8(body).unwrap())
    }

    #[test]
    fn two_calls_answered_out_of_order_each_get_their_own_response() {
        let mut calls = ApiCalls::default();
        let first = begun(&mut calls, new_call(1, CallForm::Single, 1, &[]));
        let second = begun(&mut calls, new_call(2, CallForm::Single, 1, &[]));
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
    fn a_command_answered_while_others_begin_does_not_end_the_call() {
        let mut calls = ApiCalls::default();
        let call = calls.open(new_call(1, CallForm::Batch, 2, &[]));
        calls.begin_command(call);
        calls.handle_answer(place(call, 0), published(1));
        assert!(calls.poll(call).is_none(), "the second command has not begun");
        calls.begin_command(call);
        calls.all_begun(call);
        assert!(calls.poll(call).is_none());
        calls.handle_answer(place(call, 1), published(2));
        let (_, _, body) = response(calls.poll(call));
        assert!(body.find("\"offset\":1").unwrap() < body.find("\"offset\":2").unwrap(), "{body}");
    }

    #[test]
    fn a_batch_in_order_begins_a_command_when_the_one_before_is_answered() {
        let mut calls = ApiCalls::default();
        let call = begun(&mut calls, new_call(1, CallForm::Batch, 3, &["second", "third"]));
        assert!(calls.poll(call).is_none());
        for (number, text) in [(1, "second"), (2, "third")] {
            calls.handle_answer(place(call, number - 1), published(u64::from(number)));
            let Some(CallStep::Execute { at, text: given }) = calls.poll(call) else {
                panic!("{text} is next");
            };
            assert_eq!((at, &*given), (number, text.as_bytes()));
            calls.begin_command(call);
            calls.all_begun(call);
            assert!(calls.poll(call).is_none());
        }
        calls.handle_answer(place(call, 2), published(3));
        assert_eq!(response(calls.poll(call)).1, 200);
    }

    #[test]
    fn a_broadcast_waits_for_every_channel_and_keeps_their_order() {
        let mut calls = ApiCalls::default();
        let call = calls.open(new_call(1, CallForm::Single, 1, &[]));
        calls.begin_command(call);
        calls.begin_broadcast(place(call, 0), 3);
        calls.all_begun(call);
        let part = |part| CommandPlace { call, at: 0, part: Some(part) };
        calls.handle_answer(part(2), published(33));
        calls.handle_answer(part(0), published(11));
        assert!(calls.poll(call).is_none());
        calls.handle_answer(part(1), Err(ApiErrorCode::UnknownChannel.into()));
        let (_, status, body) = response(calls.poll(call));
        assert_eq!(status, 200, "what is wrong with one channel is that channel's answer");
        let places = ["\"offset\":11", "unknown channel", "\"offset\":33"];
        let places = places.map(|text| body.find(text).unwrap_or_else(|| panic!("{text}: {body}")));
        assert!(places.is_sorted(), "{body}");
    }
}
