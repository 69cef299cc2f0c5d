//! Server API calls: executed on the worker that received the request, and answered when all commands are answered.

use std::sync::Arc;

use dunlin_hub::{ChannelOptions, ChannelRef, NewPublication, Owner, SendToUser, tenant};
use dunlin_net::{ConnId, Context, http};

use super::Worker;
use super::api_turns::BEHIND_MS_MAX;
use super::command_timer::CommandTimer;
use super::connect::VERSION;
use super::link::Link;
use super::parts::{
    BroadcastRest, CallCommands, CallForm, CallId, CommandPlace, CommandSlot, KeyScope, NewCall,
    Pending, RestCommands,
};
use super::reply;
use super::routes::{method_refused, origin_refused};
use crate::api::request::{BroadcastRequest, HistoryRequest, PublishParams, SendRequest};
use crate::api::{
    ApiError, ApiErrorCode, CommandResult, LegacyCommand, LenientReader, Method, NodeFacts,
    OPENAPI, Request, UnknownFields, check_channels, commands_max, presented_key, scope,
    write_response,
};
use crate::auth::revocation::Revocation;
use crate::limits::budget::{Rates, Work};
use crate::metrics::Metric;

/// The description of the API, which takes no key.
const DOCUMENT: &str = "openapi.json";

/// The scope of a caller's key; `None`: everything is permitted.
pub(super) type Scope = Option<KeyScope>;

impl Worker<'_> {
    /// Serves `/api` and the paths below it.
    pub(super) fn api(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        method: &str,
        request: &http::Request<'_>,
    ) {
        if method == DOCUMENT {
            return match request.method {
                http::Method::Get | http::Method::Head => {
                    let document = reply::PlainResponse::json(200, OPENAPI.as_bytes().to_vec());
                    self.answer(cx, conn, &document.header("Cache-Control", "no-cache"));
                }
                _ => self.answer(cx, conn, &method_refused("GET, HEAD")),
            };
        }
        let Some(scope) = self.admit_call(cx, conn, method, request) else { return };
        if is_push(method) {
            return self.push_api(cx, conn, method, request);
        }
        let (status, error) = match method {
            "" => match LegacyCommand::parse(request.body, self.commands_max()) {
                Ok(commands) => return self.legacy_call(cx, conn, request, scope, commands),
                Err(error) => (error.status(), error),
            },
            "batch" => match self.batch_call(cx, conn, request, scope) {
                Ok(()) => return,
                Err(error) => (error.status(), error),
            },
            name => match Method::find(name) {
                Ok(method) => return self.single_call(cx, conn, request, scope, method),
                Err(error) => (404, error),
            },
        };
        self.count(Metric::ApiErrors);
        let mut body = Vec::new();
        write_response(&mut body, &Err(error), &NodeFacts::default(), usize::MAX);
        self.answer(cx, conn, &reply::PlainResponse::json(status, body));
    }

    /// Whether to receive the rest of a request's body.
    pub(super) fn takes_api_body(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        head: &http::RequestHead<'_>,
    ) -> Option<u64> {
        let method = head.path.strip_prefix("/api").unwrap_or_default().trim_start_matches('/');
        if method == DOCUMENT {
            return Some(0);
        }
        self.admit_call(cx, conn, method, head).map(|_| u64::MAX)
    }

    /// Returns the scope of a call that its head admits. `None`: it is answered. Asked before a body is received that is not here
    /// yet, and again with the body.
    fn admit_call(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        method: &str,
        head: &http::RequestHead<'_>,
    ) -> Option<Scope> {
        let scope = match self.judge_call(cx, conn, method, head) {
            Ok(scope) => scope,
            Err(refusal) => {
                self.answer(cx, conn, &refusal);
                return None;
            }
        };
        let budget = scope.as_ref().and_then(|scope| scope.budget).filter(|_| !is_push(method));
        if let Some(wait_ms) = budget.and_then(|budget| self.wait_to_call(budget)) {
            self.count(Metric::ApiErrors);
            let why = "the key is too far ahead of its budget; see api.scopes";
            let after_s = wait_ms.div_ceil(1_000).to_string();
            let answer = reply::PlainResponse::error(429, why).header("Retry-After", &after_s);
            self.answer(cx, conn, &answer);
            return None;
        }
        Some(scope)
    }

    fn judge_call(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        method: &str,
        head: &http::RequestHead<'_>,
    ) -> Result<Scope, reply::PlainResponse<'static>> {
        if head.method != http::Method::Post {
            return Err(method_refused("POST"));
        }
        // Without a key, a foreign web page could call on behalf of its visitor, and browsers send some requests without a
        // preflight.
        if self.settings.config.api.without_key && !self.is_same_or_allowed_origin(head) {
            return Err(origin_refused());
        }
        let scope = self.authorised(head).map_err(|why| reply::PlainResponse::error(401, why))?;
        self.authenticated(cx, conn);
        let is_push = is_push(method);
        let judged = match &scope {
            None => Ok(()),
            Some(KeyScope { tenant: Some(_), .. }) if is_push => {
                Err(ApiErrorCode::PermissionDenied
                    .with_reason("pushes are not of tenants: give the operator's key"))
            }
            Some(scope) if is_push => scope::permits_push(&scope.may),
            // What the command is about stands in its body.
            Some(scope) => {
                Method::of(method).map_or(Ok(()), |of| scope::permits_method(&scope.may, of))
            }
        };
        if let Err(error) = judged {
            self.count(Metric::ApiErrors);
            let (status, body) = error.response(errors_as_status(head));
            return Err(reply::PlainResponse::json(if is_push { 403 } else { status }, body));
        }
        Ok(scope)
    }

    fn single_call(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        request: &http::Request<'_>,
        scope: Scope,
        method: Method,
    ) {
        let mut timer = CommandTimer::start(&self.state);
        let lenient = self.lenient();
        let command = lenient.request(method, request.body);
        let commands = vec![CommandSlot::new(Some(method), 0)];
        let call = self.api_calls.open(new_call(conn, request, scope, CallForm::Single, commands));
        self.api_calls.begin_next(call);
        self.execute(cx, call, 0, command);
        let place = CommandPlace { call, at: 0, part: None };
        self.api_calls.handle_read(place, None, lenient.into_unknown());
        self.drain_events(cx);
        let spent_ns = timer.lap();
        self.charge_call_time(call, spent_ns);
        if !self.goes_on(conn, Work { spent_ns, ..Work::default() }) {
            self.hold(call, cx.now_ms(), None);
        }
        self.pause(cx, call);
    }

    pub(super) fn lenient(&self) -> LenientReader {
        LenientReader::new(self.settings.config.api.strict)
    }

    /// How many commands one call may have.
    fn commands_max(&self) -> usize {
        commands_max(self.settings.config.limits.answer_bytes_max)
    }

    fn legacy_call(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        request: &http::Request<'_>,
        scope: Scope,
        commands: Vec<LegacyCommand>,
    ) {
        let slots = commands.iter().map(|c| CommandSlot::new(c.method(), c.id)).collect();
        let call = self.api_calls.open(new_call(conn, request, scope, CallForm::Legacy, slots));
        let begun = self.give_out(cx, conn, call, CallCommands::Legacy(&commands));
        if begun < commands.len() {
            self.keep(call, RestCommands::Legacy(commands));
        }
        self.pause(cx, call);
    }

    fn batch_call(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        request: &http::Request<'_>,
        scope: Scope,
    ) -> Result<(), ApiError> {
        let lenient = self.lenient();
        let batch = lenient.batch(request.body, self.commands_max())?;
        let slots = batch.texts.iter().map(|_| CommandSlot::new(None, 0)).collect();
        let call = self.api_calls.open(NewCall {
            at_once: batch.at_once(),
            ..new_call(conn, request, scope, CallForm::Batch, slots)
        });
        let begun = self.give_out(cx, conn, call, CallCommands::Batch(&batch.texts));
        if begun < batch.texts.len() {
            self.keep(call, RestCommands::batch(begun, &batch.texts[begun..]));
        }
        let place = CommandPlace { call, at: 0, part: None };
        self.api_calls.handle_read(place, None, lenient.into_unknown());
        self.pause(cx, call);
        Ok(())
    }

    /// Returns the scope of the caller, or why it is refused.
    fn authorised(&self, request: &http::RequestHead<'_>) -> Result<Scope, &'static str> {
        let api = &self.settings.config.api;
        let query = if api.keys_in_query { request.query.unwrap_or("") } else { "" };
        let shown = presented_key(
            request.headers.get_str("X-API-Key"),
            request.headers.get_str("Authorization"),
            query,
        );
        let known = shown.as_ref().and_then(|shown| self.settings.api_key(shown));
        if let Some(tenant) = known.and_then(|key| key.tenant.as_ref()) {
            let tenant = self.settings.tenants.get(tenant);
            return tenant.map(|of| self.scope_of(of)).ok_or("the API key is in no api.keys");
        }
        let scope = match (&shown, known) {
            _ if api.without_key => None,
            (None, _) => return Err("no API key; send one of api.keys as the header X-API-Key"),
            (Some(_), None) => return Err("the API key is not in api.keys"),
            (Some(_), Some(key)) => api.scopes.get_shared(&key.name).map(|may| {
                let rates = Rates::from(&may.budget);
                let budget_key = rates.is_limited().then(|| self.state.budgets.api_key(&key.name));
                let budget = budget_key.map(|budget_key| (budget_key, rates));
                KeyScope { may: Arc::clone(may), tenant: None, budget }
            }),
        };
        match (request.headers.get_str("Dunlin-Tenant"), &scope) {
            (None, _) => Ok(scope),
            (Some(_), Some(_)) => Err("a key with a scope is for no tenant"),
            (Some(name), None) => match self.settings.tenants.get(name) {
                Some(tenant) => Ok(self.scope_of(tenant)),
                None => Err("there is no tenant of this name"),
            },
        }
    }

    /// Starts one command of a call.
    pub(super) fn execute(
        &mut self,
        cx: &mut Context<Link>,
        call: CallId,
        at: u32,
        command: Result<Request<'_>, ApiError>,
    ) {
        self.count(Metric::ApiCommands);
        if self.hub.wants_flush() {
            // A batch must not overflow outboxes whose sockets could take the data.
            self.flush_outboxes(cx);
        }
        if let Some(budget) = self.api_calls.budget(call) {
            let kind = command.as_ref().ok().and_then(Request::kind);
            self.charge_call(call, budget, Work { commands: 1, kind, ..Work::default() });
        }
        let place = CommandPlace { call, at, part: None };
        let begun = command.and_then(|mut request| {
            if let Some(scope) = self.api_calls.scope(call) {
                scope::permits(scope, &request)?;
            }
            self.admit_request(call, &mut request)?;
            self.begin(cx, place, &request)
        });
        if let Err(error) = begun {
            self.count(Metric::ApiErrors);
            self.api_calls.handle_answer(place, Err(error));
        }
    }

    /// Executes a command on the nodes that it concerns. `Err`: it is answered already.
    pub(super) fn begin(
        &mut self,
        cx: &mut Context<Link>,
        place: CommandPlace,
        request: &Request<'_>,
    ) -> Result<(), ApiError> {
        if let (Some(tenant), Request::Info) = (self.api_calls.tenant(place.call), request) {
            // Its channels determine the rest.
            let all = tenant.qualify("*");
            let (now, token) = (self.now(cx), self.api_token(cx, place)?);
            self.hub.handle_channels(now, token, &all);
            return Ok(());
        }
        if self.ask_cluster(cx, place, request)? {
            return Ok(());
        }
        match request {
            Request::Publish(publish) => {
                let message = self.checked(&publish.message)?;
                self.publish(cx, place, &publish.channel, message)
            }
            Request::Broadcast(broadcast) => self.api_broadcast(cx, place, broadcast),
            Request::Subscribe(of) => self.subscribe_user(cx, place, of),
            Request::Unsubscribe(of) => self.unsubscribe_user(cx, place, of),
            Request::Disconnect(of) => self.disconnect_user(cx, place, of),
            Request::Refresh(refresh) => self.expire(cx, place, refresh),
            Request::Presence(of) => self.api_presence(cx, place, &of.channel),
            Request::PresenceStats(of) => self.api_presence_stats(cx, place, &of.channel),
            Request::History(history) => self.api_history(cx, place, history),
            Request::HistoryRemove(of) => {
                let options = self.channel_options(&of.channel)?;
                let (now, token) = (self.now(cx), self.api_token(cx, place)?);
                self.hub.handle_history_remove(now, token, ChannelRef::new(&of.channel, &options));
                Ok(())
            }
            Request::Send(send) => self.send_to_user(cx, place, send),
            Request::RevokeToken(_)
            | Request::InvalidateUserTokens(_)
            | Request::BlockUser(_)
            | Request::UnblockUser(_) => self.change_revocations(cx, place, request),
            Request::Connections(request) => self.connections(cx, place, request),
            Request::Channels(request) => {
                let (now, token) = (self.now(cx), self.api_token(cx, place)?);
                self.hub.handle_channels(now, token, &request.pattern);
                Ok(())
            }
            Request::Info => {
                let (now, token) = (self.now(cx), self.api_token(cx, place)?);
                self.hub.handle_info(now, token);
                Ok(())
            }
        }
    }

    fn api_broadcast(
        &mut self,
        cx: &mut Context<Link>,
        place: CommandPlace,
        broadcast: &BroadcastRequest<'_>,
    ) -> Result<(), ApiError> {
        let Some(conn) = self.api_calls.conn(place.call) else { return Ok(()) };
        check_channels(broadcast.channels.len(), self.settings.config.limits.answer_bytes_max)?;
        let publish = self.checked(&broadcast.message)?;
        self.api_calls.begin_broadcast(place, broadcast.channels.len());
        let channels = || broadcast.channels.iter().map(|name| &*name.0);
        let given = self.give_parts(cx, conn, (place, 0), channels(), &publish);
        if (given as usize) < broadcast.channels.len() {
            let left = channels().skip(given as usize);
            let rest = BroadcastRest::new((place.at, given), left, publish);
            self.api_calls.keep_broadcast(place.call, rest);
        }
        Ok(())
    }

    fn api_presence(
        &mut self,
        cx: &mut Context<Link>,
        place: CommandPlace,
        channel: &str,
    ) -> Result<(), ApiError> {
        let options = self.channel_options(channel)?;
        let (now, token) = (self.now(cx), self.api_token(cx, place)?);
        let bytes_max = self.settings.config.limits.answer_bytes_max;
        if !self.ask_presence(cx, (channel, &*options), token, Some(bytes_max)) {
            self.hub.handle_presence(now, token, ChannelRef::new(channel, &options), bytes_max);
        }
        Ok(())
    }

    fn api_presence_stats(
        &mut self,
        cx: &mut Context<Link>,
        place: CommandPlace,
        channel: &str,
    ) -> Result<(), ApiError> {
        let options = self.channel_options(channel)?;
        let (now, token) = (self.now(cx), self.api_token(cx, place)?);
        if !self.ask_presence(cx, (channel, &*options), token, None) {
            self.hub.handle_presence_stats(now, token, ChannelRef::new(channel, &options));
        }
        Ok(())
    }

    fn api_history(
        &mut self,
        cx: &mut Context<Link>,
        place: CommandPlace,
        request: &HistoryRequest<'_>,
    ) -> Result<(), ApiError> {
        let options = self.channel_options(&request.channel)?;
        let limits = &self.settings.config.limits;
        let mut filter = request.filter();
        let max = limits.history_messages_max;
        filter.limit = Some(filter.limit.unwrap_or(max).min(max));
        filter.bytes_max = Some(limits.answer_bytes_max);
        let (now, token) = (self.now(cx), self.api_token(cx, place)?);
        self.hub.handle_history(
            now,
            token,
            ChannelRef::new(&request.channel, &options),
            filter,
            Owner::NONE,
        );
        Ok(())
    }

    fn send_to_user(
        &mut self,
        cx: &mut Context<Link>,
        place: CommandPlace,
        send: &SendRequest<'_>,
    ) -> Result<(), ApiError> {
        let has = send.data.as_bytes().len();
        let max = self.settings.config.limits.publication_bytes_max;
        if has > max {
            let why = format_args!("{has} bytes where limits.publication_bytes_max is {max}");
            return Err(ApiErrorCode::LimitExceeded.with_reason(why));
        }
        let Some(only) = self.selected(place, &send.target)? else { return Ok(()) };
        let message = SendToUser {
            client: only.client,
            device: (&*send.device).into(),
            data: send.data.as_bytes().into(),
            format: send.data.format(),
        };
        let (now, token) = (self.now(cx), self.api_token(cx, place)?);
        self.hub.handle_send_to_user(now, token, &send.target.user, message);
        Ok(())
    }

    /// Executes commands about revoked tokens and blocked users.
    fn change_revocations(
        &mut self,
        cx: &mut Context<Link>,
        place: CommandPlace,
        request: &Request<'_>,
    ) -> Result<(), ApiError> {
        let revocation = match request {
            Request::RevokeToken(of) => Revocation::of_token(&of.uid, of.expire_at),
            Request::InvalidateUserTokens(of) => {
                let issued_before = match of.issued_before {
                    0 => self.now(cx).unix_ms / 1000 + 1,
                    before => before,
                };
                Revocation::of_user(&of.user, issued_before, of.expire_at)
            }
            Request::BlockUser(of) => Revocation::block(&of.user, of.expire_at),
            Request::UnblockUser(of) => return self.unblock(cx, place, &of.user),
            _ => return Ok(()),
        };
        self.revoke(cx, place, revocation)
    }

    /// Validates a message and converts it for the hub.
    fn checked(&self, message: &PublishParams<'_>) -> Result<NewPublication, ApiError> {
        let limits = &self.settings.config.limits;
        for (has, max, key) in [
            (message.tags_bytes(), limits.tags_bytes_max, "tags_bytes_max"),
            (
                message.idempotency_key.len(),
                limits.idempotency_key_bytes_max,
                "idempotency_key_bytes_max",
            ),
        ] {
            if has > max {
                let why = format_args!("{has} bytes where limits.{key} is {max}");
                return Err(ApiErrorCode::LimitExceeded.with_reason(why));
            }
        }
        let mut publish = message.to_publish();
        publish.idempotency_ttl_ms =
            u32::try_from(self.settings.config.api.idempotency_ttl_ms).ok();
        Ok(publish)
    }

    pub(super) fn publish(
        &mut self,
        cx: &mut Context<Link>,
        place: CommandPlace,
        channel: &str,
        publish: NewPublication,
    ) -> Result<(), ApiError> {
        let options = self.channel_options(channel)?;
        let token = self.api_token(cx, place)?;
        let (now, bytes) = (self.now(cx), publish.data.len());
        self.hub.handle_publish(now, token, ChannelRef::new(channel, &options), publish);
        if let Some(hash) = self.state.pressure.of(channel) {
            // The caller publishes faster than subscribers can be written to: the delayed response slows it down.
            self.hold(place.call, now.ms + BEHIND_MS_MAX, Some(hash));
        }
        if let Some((budget_key, rates)) = self.api_calls.budget(place.call) {
            let deliveries = self.deliveries_to(channel, bytes);
            let work = Work { bytes: bytes as u64, deliveries, ..Work::default() };
            self.charge_call(place.call, (budget_key, rates), work);
        }
        Ok(())
    }

    pub(super) fn channel_options(&self, channel: &str) -> Result<Arc<ChannelOptions>, ApiError> {
        let max = self.settings.config.limits.channel_bytes_max;
        let bare = tenant::bare(channel);
        if bare.is_empty() || bare.len() > max {
            let why = format_args!("a channel name has 1 to {max} bytes");
            return Err(ApiErrorCode::BadRequest.with_reason(why));
        }
        match self.settings.namespace(channel) {
            Some(namespace) => Ok(Arc::clone(&namespace.options)),
            None => Err(ApiErrorCode::UnknownChannel.into()),
        }
    }

    pub(super) fn api_token(
        &mut self,
        cx: &mut Context<Link>,
        place: CommandPlace,
    ) -> Result<u64, ApiError> {
        let timeout_ms = self.settings.config.limits.bus_request_timeout_ms;
        self.pending
            .insert(cx.now_ms(), timeout_ms, Pending::Api(place))
            .map_err(|_| dunlin_hub::Error::Overloaded.into())
    }

    /// Handles the hub's answer to a command, or to one channel of a broadcast.
    pub(super) fn api_answered(
        &mut self,
        cx: &mut Context<Link>,
        place: CommandPlace,
        answer: CommandResult,
    ) {
        if answer.is_err() && place.part.is_none() {
            self.count(Metric::ApiErrors);
        }
        let answer = self.outward(place, answer);
        self.api_calls.handle_answer(place, answer);
        self.respond(cx, place.call);
    }

    /// Ends a call's share of this turn.
    pub(super) fn pause(&mut self, cx: &mut Context<Link>, call: CallId) {
        self.api_calls.pause(call);
        self.respond(cx, call);
    }

    /// Responds to a call whose commands are all answered.
    pub(super) fn respond(&mut self, cx: &mut Context<Link>, call: CallId) {
        if let Some(mut answered) = self.api_calls.poll(call) {
            if let Some(plan) = answered.pusher.take() {
                let conn = answered.conn;
                return self.go_on(cx, conn, plan.next(answered.into_answers()));
            }
            let facts = NodeFacts {
                uid: &self.state.uid,
                name: self.settings.node_name(),
                version: VERSION,
                uptime_s: self.state.uptime_s(),
            };
            let conn = answered.conn;
            let answered_for_cluster = answered.cluster_request();
            let (warning, then) = (answered.unknown.warning(), answered.then.take());
            let bytes_max = self.settings.config.limits.answer_bytes_max;
            let budget = answered.budget;
            let (status, body) = answered.encode(&facts, bytes_max);
            if let Some((budget_key, rates)) = budget {
                // Charged before its next call.
                let work = Work { bytes: body.len() as u64, ..Work::default() };
                self.charge_shared(budget_key, &rates, work);
            }
            if let Some(then) = then {
                return then(&body);
            }
            if let Some(request_id) = answered_for_cluster {
                return self.respond_to_cluster(request_id, body);
            }
            let mut answer = reply::PlainResponse::json(status, body);
            if let Some(warning) = &warning {
                answer = answer.header("Warning", warning);
            }
            self.answer(cx, conn, &answer);
        }
    }
}

fn new_call(
    conn: ConnId,
    request: &http::Request<'_>,
    scope: Scope,
    form: CallForm,
    commands: Vec<CommandSlot>,
) -> NewCall {
    let errors_as_status = errors_as_status(request);
    NewCall {
        conn,
        form,
        errors_as_status,
        scope,
        commands,
        at_once: usize::MAX,
        unknown: UnknownFields::default(),
        pusher: None,
        then: None,
    }
}

/// Whether a path below `/api` is of pushes.
fn is_push(method: &str) -> bool {
    method == "push" || method.starts_with("push/")
}

/// Whether the caller requests errors as HTTP statuses.
pub(super) fn errors_as_status(request: &http::RequestHead<'_>) -> bool {
    let mode = request.headers.get_str("X-Centrifugo-Error-Mode");
    mode.is_some_and(|mode| mode.eq_ignore_ascii_case("transport"))
}
