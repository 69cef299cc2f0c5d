//! The HTTP API of the Pusher protocol: what its server libraries ask for, carried out as calls of the server API are.

use std::sync::Arc;
use std::time::Instant;

use dunlin_hub::NewPublication;
use dunlin_net::{ConnId, http};
use dunlin_protocol::pusher::{EVENT_TAG, PusherCode};

use super::api::Api;
use super::clients::Clients;
use super::parts::{CallForm, CallId, CommandPlace, CommandSlot, NewCall};
use super::reply::PlainResponse;
use super::turn::{Core, Turn};
use crate::api::request::{
    ChannelRequest, ChannelsRequest, DisconnectRequest, HistoryRequest, Target,
};
use crate::api::{Request, UnknownFields};
use crate::metrics::Metric;
use crate::metrics::labelled::ApiCall;
use crate::pusher::{
    App, Call, CallHead, ChannelAttribute, Plan, PlanStep, PusherError, ResponseShape,
    TriggeredEvent, split_path,
};

/// What the JSON around an event's data takes, in bytes; a byte of the data takes up to six.
const EVENT_OVERHEAD: usize = 64 << 10;

impl Api {
    /// How much is taken of the body of a call, of which not all is here; `None`: the call is answered already.
    pub(super) fn takes_pusher_body(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        head: &http::RequestHead<'_>,
    ) -> Option<u64> {
        match self.pusher_caller(turn.core, &head_of(head), None) {
            Ok(app) => {
                let config = &app.config;
                let events = config
                    .event_bytes_max
                    .saturating_mul(6)
                    .saturating_mul(config.batch_events_max);
                let channels = config.channels_per_event_max * 256;
                Some((EVENT_OVERHEAD + events + channels) as u64)
            }
            Err(refusal) => {
                self.refuse_pusher_call(turn, conn, &refusal);
                None
            }
        }
    }

    /// Serves what is below `/apps/`.
    pub(super) fn pusher_api(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        conn: ConnId,
        request: &http::Request<'_>,
    ) {
        let head = head_of(&request.head);
        let called = self.pusher_caller(turn.core, &head, Some(request.body));
        let called = called.and_then(|app| Ok((head.parse(&app, request.body)?, app)));
        let (call, app) = match called {
            Ok(called) => called,
            Err(refusal) => return self.refuse_pusher_call(turn, conn, &refusal),
        };
        turn.authenticated(conn);
        turn.core.count(Metric::ApiCommands);
        if let Err(refusal) = self.carry_out(turn, clients, conn, &app, call) {
            self.refuse_pusher_call(turn, conn, &refusal);
        }
    }

    /// The app whose secret has signed a call.
    fn pusher_caller(
        &self,
        core: &Core<'_>,
        head: &CallHead<'_>,
        body: Option<&[u8]>,
    ) -> Result<Arc<App>, PusherError> {
        let id = split_path(head.path).map_or("", |(id, _)| id);
        let Some(app) = core.settings.pusher.by_id(id) else {
            let why = "no app has this id".to_owned();
            return Err(PusherError { status: 404, why });
        };
        head.authorize(app, core.clock.now().unix_ms, body)?;
        if core.tenant_of(&app.prefix).is_some_and(|tenant| !tenant.is_open()) {
            let why = "a tenant of this name is being taken away; try again".to_owned();
            return Err(PusherError { status: 503, why });
        }
        Ok(Arc::clone(app))
    }

    fn refuse_pusher_call(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, refusal: &PusherError) {
        turn.core.count(Metric::ApiErrors);
        turn.core.api_answered("pusher", "unknown", refusal.status.into());
        self.answer_pusher_call(turn, conn, refusal.status, refusal.why.as_bytes().to_vec());
    }

    fn answer_pusher_call(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        status: u16,
        body: Vec<u8>,
    ) {
        let mut answer = PlainResponse::json(status, body);
        if status >= 400 {
            answer.content_type = "text/plain; charset=utf-8";
        }
        turn.answer(conn, &answer);
    }

    fn carry_out(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        conn: ConnId,
        app: &Arc<App>,
        call: Call,
    ) -> Result<(), PusherError> {
        let none = crate::pusher::RequestedInfo::NONE;
        let unix_ms = turn.core.clock.now().unix_ms;
        let plan_of = |shape, info| Plan::new(app, shape, info, unix_ms);
        match call {
            Call::Publish(publish) => {
                let mut plan = plan_of(ResponseShape::Events, publish.info);
                publish.channels.iter().for_each(|name| plan.count(name, publish.info));
                plan.check()?;
                self.publish_events(turn, clients, conn, plan, vec![publish]);
            }
            Call::Batch(events) => {
                let mut plan = plan_of(ResponseShape::Batch, none);
                let channels =
                    events.iter().flat_map(|of| of.channels.iter().map(|name| (name, of.info)));
                channels.for_each(|(name, info)| plan.count(name, info));
                plan.check()?;
                self.publish_events(turn, clients, conn, plan, events);
            }
            Call::Channels { prefix, info } => {
                let pattern = format!("{}*", app.pattern(&prefix)).into();
                let request =
                    Request::Channels(ChannelsRequest { pattern, ..ChannelsRequest::default() });
                self.ask_one(turn, clients, conn, plan_of(ResponseShape::Channels, info), &request);
            }
            Call::Channel { name, info } => {
                let mut plan = plan_of(ResponseShape::Channel, info);
                plan.count(&name, crate::pusher::RequestedInfo { subscriptions: true, ..info });
                let step = (Instant::now(), plan.next(Vec::new()));
                self.go_on(turn, clients, conn, ResponseShape::Channel.method(), step);
            }
            Call::Users { name } => {
                let request =
                    Request::Presence(ChannelRequest { channel: app.channel(&name).into() });
                self.ask_one(turn, clients, conn, plan_of(ResponseShape::Users, none), &request);
            }
            Call::Terminate { user } => {
                let request = Request::Disconnect(DisconnectRequest {
                    target: Target::user(app.user(&user)),
                    whitelist: Vec::new(),
                    code: PusherCode::Unauthorized.code(),
                    reason: "the backend has terminated the user's connections".into(),
                });
                self.ask_one(turn, clients, conn, plan_of(ResponseShape::Done, none), &request);
            }
        }
        Ok(())
    }

    /// Publishes events, each a command of the call whose channels are the parts of a broadcast.
    fn publish_events(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        conn: ConnId,
        plan: Plan,
        events: Vec<TriggeredEvent>,
    ) {
        let app = Arc::clone(&plan.app);
        let call = self.open_pusher_call(turn.core, conn, plan, events.len());
        for event in events {
            let Some(at) = self.api_calls.begin_next(call) else { break };
            let place = CommandPlace { call, at, part: None };
            self.api_calls.begin_broadcast(place, event.channels.len());
            let publish = NewPublication {
                data: event.payload,
                tags: [(EVENT_TAG.into(), (*event.event).into())].into_iter().collect(),
                except: event.except.map(|id| id.session),
                ..NewPublication::default()
            };
            for (part, name) in event.channels.iter().enumerate() {
                if turn.core.hub.wants_flush() {
                    // A call must not fill outboxes whose sockets would have taken it.
                    clients.flush_outboxes(turn);
                }
                let part = CommandPlace { part: Some(part as u32), ..place };
                self.api_calls.begin_part(call);
                if let Err(error) = self.publish(turn, part, &app.channel(name), publish.clone()) {
                    self.api_calls.handle_answer(part, Err(error));
                }
                self.settle(turn, clients);
            }
        }
        self.pause(turn, clients, call);
    }

    /// Has one command carried out for a call.
    fn ask_one(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        conn: ConnId,
        plan: Plan,
        request: &Request<'_>,
    ) {
        let call = self.open_pusher_call(turn.core, conn, plan, 1);
        if let Some(at) = self.api_calls.begin_next(call) {
            let place = CommandPlace { call, at, part: None };
            if let Err(error) = self.begin(turn, clients, place, request) {
                self.api_calls.handle_answer(place, Err(error));
            }
        }
        self.settle(turn, clients);
        self.pause(turn, clients, call);
    }

    fn open_pusher_call(
        &mut self,
        core: &Core<'_>,
        conn: ConnId,
        plan: Plan,
        commands: usize,
    ) -> CallId {
        let span = core.state.telemetry.begin().map(Box::new);
        self.api_calls.open(NewCall {
            conn,
            form: CallForm::Single,
            errors_as_status: true,
            scope: None,
            commands: (0..commands).map(|_| CommandSlot::new(None, 0)).collect(),
            at_once: usize::MAX,
            unknown: UnknownFields::default(),
            pusher: Some(Box::new(plan)),
            then: None,
            began: Instant::now(),
            span,
        })
    }

    /// A call goes on after the hub's answers.
    pub(super) fn go_on(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        conn: ConnId,
        method: &'static str,
        (began, next): (Instant, PlanStep),
    ) {
        let plan = match next {
            PlanStep::Respond { status, body } => {
                if status >= 400 {
                    turn.core.count(Metric::ApiErrors);
                }
                let result = if status >= 400 { status.into() } else { 0 };
                turn.core.api_answered("pusher", method, result);
                let took = began.elapsed().as_nanos() as u64;
                turn.core.labelled().api_calls.of(ApiCall { api: "pusher", method }).record(took);
                return self.answer_pusher_call(turn, conn, status, body);
            }
            PlanStep::Count(plan) => plan,
        };
        let app = Arc::clone(&plan.app);
        let attributes: Vec<(String, ChannelAttribute)> =
            plan.attributes().map(|(name, attribute)| (name.to_owned(), attribute)).collect();
        let call = self.open_pusher_call(turn.core, conn, plan, attributes.len());
        for (name, attribute) in attributes {
            let Some(at) = self.api_calls.begin_next(call) else { break };
            let place = CommandPlace { call, at, part: None };
            let request = match attribute {
                ChannelAttribute::Users => {
                    Request::PresenceStats(ChannelRequest { channel: app.channel(&name).into() })
                }
                ChannelAttribute::Subscriptions => Request::Channels(ChannelsRequest {
                    pattern: app.pattern(&name).into(),
                    ..ChannelsRequest::default()
                }),
                ChannelAttribute::Cached => Request::History(HistoryRequest {
                    channel: app.channel(&name).into(),
                    limit: 1,
                    since: None,
                    reverse: true,
                }),
            };
            if let Err(error) = self.begin(turn, clients, place, &request) {
                self.api_calls.handle_answer(place, Err(error));
            }
        }
        self.settle(turn, clients);
        self.pause(turn, clients, call);
    }
}

fn head_of<'a>(head: &http::RequestHead<'a>) -> CallHead<'a> {
    CallHead { method: head.method.as_str(), path: head.path, query: head.query.unwrap_or("") }
}
