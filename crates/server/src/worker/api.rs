//! Server API calls: executed on the worker that received the request, and answered when all commands are answered.

use std::sync::Arc;
use std::time::Instant;

use dunlin_config::Inbox;
use dunlin_hub::{ChannelOptions, ChannelRef, NewPublication, Owner, SendToUser, tenant};
use dunlin_net::{ConnId, http};

use super::api_turns::BEHIND_MS_MAX;
use super::clients::Clients;
use super::command_timer::CommandTimer;
use super::connect::VERSION;
use super::parts::{
    ApiCalls, BroadcastRest, CallCommands, CallForm, CallId, CommandPlace, CommandSlot, KeyScope,
    NewCall, Pending, RestCommands,
};
use super::reply;
use super::routes::{method_refused, origin_refused};
use super::turn::{Core, Turn};
use crate::api::request::{BroadcastRequest, HistoryRequest, PublishParams, SendRequest};
use crate::api::{
    ApiError, ApiErrorCode, CommandResult, LegacyCommand, LenientReader, Method, NodeFacts,
    OPENAPI, Request, UnknownFields, check_channels, commands_max, presented_key, scope,
    write_response,
};
use crate::auth::revocation::Revocation;
use crate::limits::budget::{Rates, Work};
use crate::message::admin::AdminMessage;
use crate::metrics::Metric;
use crate::metrics::labelled::ApiCall;
use crate::state::settings::Settings;
use crate::telemetry::BegunSpan;

/// The description of the API, which takes no key.
const DOCUMENT: &str = "openapi.json";

/// The scope of a caller's key; `None`: everything is permitted.
pub(super) type Scope = Option<KeyScope>;

/// The machine of the server API: calls and their commands, until they are answered.
#[derive(Default)]
pub(super) struct Api {
    pub(super) api_calls: ApiCalls,
}

impl Api {
    /// Lets the hub work, lets clients have its events, and takes the answers to commands.
    pub(super) fn settle(&mut self, turn: &mut Turn<'_, '_>, clients: &mut Clients) {
        clients.drain_events(turn);
        while let Some((place, answer)) = turn.core.api_answers.pop_front() {
            self.api_answered(turn, clients, place, answer);
        }
    }

    /// Serves `/api` and the paths below it. Returns `true` if the call is admitted and the push thread's.
    pub(super) fn api(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        conn: ConnId,
        method: &str,
        request: &http::Request<'_>,
    ) -> bool {
        if method == DOCUMENT {
            match request.method {
                http::Method::Get | http::Method::Head => {
                    let document = reply::PlainResponse::json(200, OPENAPI.as_bytes().to_vec());
                    turn.answer(conn, &document.header("Cache-Control", "no-cache"));
                }
                _ => turn.answer(conn, &method_refused("GET, HEAD")),
            }
            return false;
        }
        let Some(scope) = self.admit_call(turn, conn, method, request) else { return false };
        if is_push(method) {
            return true;
        }
        self.serve_http(turn, clients, conn, request, (method, scope));
        false
    }

    fn serve_http(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        conn: ConnId,
        request: &http::Request<'_>,
        (method, scope): (&str, Scope),
    ) {
        let (status, error) = match method {
            "" => match LegacyCommand::parse(request.body, self.commands_max(turn.core)) {
                Ok(commands) => {
                    return self.legacy_call(turn, clients, conn, request, (scope, commands));
                }
                Err(error) => (error.status(), error),
            },
            "batch" => match self.batch_call(turn, clients, conn, request, scope) {
                Ok(()) => return,
                Err(error) => (error.status(), error),
            },
            name => match Method::find(name) {
                Ok(method) => {
                    return self.single_call(turn, clients, conn, request, (scope, method));
                }
                Err(error) => (404, error),
            },
        };
        turn.core.count(Metric::ApiErrors);
        turn.core.api_refused(Some(conn), method, &error);
        turn.core.api_answered("server", known(method), error.code);
        let mut body = Vec::new();
        write_response(&mut body, &Err(error), &NodeFacts::default(), usize::MAX);
        turn.answer(conn, &reply::PlainResponse::json(status, body));
    }

    /// Whether to receive the rest of a request's body.
    pub(super) fn takes_api_body(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        head: &http::RequestHead<'_>,
    ) -> Option<u64> {
        let method = head.path.strip_prefix("/api").unwrap_or_default().trim_start_matches('/');
        if method == DOCUMENT {
            return Some(0);
        }
        self.admit_call(turn, conn, method, head).map(|_| u64::MAX)
    }

    /// Returns the scope of a call that its head admits. `None`: it is answered. Asked before a body is received that is not here
    /// yet, and again with the body.
    fn admit_call(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        method: &str,
        head: &http::RequestHead<'_>,
    ) -> Option<Scope> {
        let scope = match self.judge_call(turn, conn, method, head) {
            Ok(scope) => scope,
            Err(refusal) => {
                turn.answer(conn, &refusal);
                return None;
            }
        };
        let budget = scope.as_ref().and_then(|scope| scope.budget).filter(|_| !is_push(method));
        if let Some(wait_ms) = budget.and_then(|budget| self.wait_to_call(turn.core, budget)) {
            turn.core.count(Metric::ApiErrors);
            turn.core.api_answered("server", known(method), 429);
            let why = "the key is too far ahead of its budget; see api.scopes";
            let after_s = wait_ms.div_ceil(1_000).to_string();
            let answer = reply::PlainResponse::error(429, why).header("Retry-After", &after_s);
            turn.answer(conn, &answer);
            return None;
        }
        Some(scope)
    }

    fn judge_call(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        method: &str,
        head: &http::RequestHead<'_>,
    ) -> Result<Scope, reply::PlainResponse<'static>> {
        if head.method != http::Method::Post {
            return Err(method_refused("POST"));
        }
        // Without a key, a foreign web page could call on behalf of its visitor, and browsers send some requests without a
        // preflight.
        if turn.core.settings.config.api.without_key && !turn.core.is_same_or_allowed_origin(head) {
            return Err(origin_refused());
        }
        let scope = self
            .authorised(turn.core, head)
            .map_err(|why| reply::PlainResponse::error(401, why))?;
        turn.authenticated(conn);
        if turn.core.requests.contains(conn)
            && let Some(name) = key_name(&turn.core.settings, head)
        {
            turn.core.requests.set_key(conn, name);
        }
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
            turn.core.count(Metric::ApiErrors);
            turn.core.api_refused(Some(conn), method, &error);
            turn.core.api_answered("server", known(method), error.code);
            let (status, body) = error.response(errors_as_status(head));
            return Err(reply::PlainResponse::json(if is_push { 403 } else { status }, body));
        }
        Ok(scope)
    }

    fn single_call(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        conn: ConnId,
        request: &http::Request<'_>,
        (scope, method): (Scope, Method),
    ) {
        let mut timer = CommandTimer::start(&turn.core.state);
        let lenient = self.lenient(turn.core);
        let command = lenient.request(method, request.body);
        let commands = vec![CommandSlot::new(Some(method), 0)];
        let call = self.api_calls.open(new_call(
            turn.core,
            conn,
            request,
            scope,
            (CallForm::Single, commands),
        ));
        self.api_calls.begin_next(call);
        self.execute(turn, clients, call, 0, command);
        let place = CommandPlace { call, at: 0, part: None };
        self.api_calls.handle_read(place, None, lenient.into_unknown());
        self.settle(turn, clients);
        let spent_ns = timer.lap();
        self.charge_call_time(turn.core, call, spent_ns);
        if !turn.core.goes_on(conn, Work { spent_ns, ..Work::default() }) {
            self.hold(turn.core, call, turn.cx.now_ms(), None);
        }
        self.pause(turn, clients, call);
    }

    pub(super) fn lenient(&self, core: &Core<'_>) -> LenientReader {
        LenientReader::new(core.settings.config.api.strict)
    }

    /// How many commands one call may have.
    fn commands_max(&self, core: &Core<'_>) -> usize {
        commands_max(core.settings.config.limits.answer_bytes_max)
    }

    fn legacy_call(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        conn: ConnId,
        request: &http::Request<'_>,
        (scope, commands): (Scope, Vec<LegacyCommand>),
    ) {
        let slots = commands.iter().map(|c| CommandSlot::new(c.method(), c.id)).collect();
        let call = self.api_calls.open(new_call(
            turn.core,
            conn,
            request,
            scope,
            (CallForm::Legacy, slots),
        ));
        let begun = self.give_out(turn, clients, conn, call, CallCommands::Legacy(&commands));
        if begun < commands.len() {
            self.keep(turn.core, call, RestCommands::Legacy(commands));
        }
        self.pause(turn, clients, call);
    }

    fn batch_call(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        conn: ConnId,
        request: &http::Request<'_>,
        scope: Scope,
    ) -> Result<(), ApiError> {
        let lenient = self.lenient(turn.core);
        let batch = lenient.batch(request.body, self.commands_max(turn.core))?;
        let slots = batch.texts.iter().map(|_| CommandSlot::new(None, 0)).collect();
        let call = self.api_calls.open(NewCall {
            at_once: batch.at_once(),
            ..new_call(turn.core, conn, request, scope, (CallForm::Batch, slots))
        });
        let begun = self.give_out(turn, clients, conn, call, CallCommands::Batch(&batch.texts));
        if begun < batch.texts.len() {
            self.keep(turn.core, call, RestCommands::batch(begun, &batch.texts[begun..]));
        }
        let place = CommandPlace { call, at: 0, part: None };
        self.api_calls.handle_read(place, None, lenient.into_unknown());
        self.pause(turn, clients, call);
        Ok(())
    }

    /// Returns the scope of the caller, or why it is refused.
    fn authorised(
        &self,
        core: &Core<'_>,
        request: &http::RequestHead<'_>,
    ) -> Result<Scope, &'static str> {
        let api = &core.settings.config.api;
        let query = if api.keys_in_query { request.query.unwrap_or("") } else { "" };
        let shown = presented_key(
            request.headers.get_str("X-API-Key"),
            request.headers.get_str("Authorization"),
            query,
        );
        let known = shown.as_ref().and_then(|shown| core.settings.api_key(shown));
        if let Some(tenant) = known.and_then(|key| key.tenant.as_ref()) {
            let tenant = core.settings.tenants.get(tenant);
            return tenant.map(|of| self.scope_of(core, of)).ok_or("the API key is in no api.keys");
        }
        let scope = match (&shown, known) {
            _ if api.without_key => None,
            (None, _) => return Err("no API key; send one of api.keys as the header X-API-Key"),
            (Some(_), None) => return Err("the API key is not in api.keys"),
            (Some(_), Some(key)) => api.scopes.get_shared(&key.name).map(|may| {
                let rates = Rates::from(&may.budget);
                let budget_key = rates.is_limited().then(|| core.state.budgets.api_key(&key.name));
                let budget = budget_key.map(|budget_key| (budget_key, rates));
                KeyScope { may: Arc::clone(may), tenant: None, budget }
            }),
        };
        match (request.headers.get_str("Dunlin-Tenant"), &scope) {
            (None, _) => Ok(scope),
            (Some(_), Some(_)) => Err("a key with a scope is for no tenant"),
            (Some(name), None) => match core.settings.tenants.get(name) {
                Some(tenant) => Ok(self.scope_of(core, tenant)),
                None => Err("there is no tenant of this name"),
            },
        }
    }

    /// Starts one command of a call.
    pub(super) fn execute(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        call: CallId,
        at: u32,
        command: Result<Request<'_>, ApiError>,
    ) {
        turn.core.count(Metric::ApiCommands);
        if turn.core.hub.wants_flush() {
            // A batch must not overflow outboxes whose sockets could take the data.
            clients.flush_outboxes(turn);
        }
        if let Some(budget) = self.api_calls.budget(call) {
            let kind = command.as_ref().ok().and_then(Request::kind);
            self.charge_call(
                turn.core,
                call,
                budget,
                Work { commands: 1, kind, ..Work::default() },
            );
        }
        let place = CommandPlace { call, at, part: None };
        let conn = self.api_calls.conn(call);
        let method = command.as_ref().map_or("", |request| request.method().name());
        let begun = command.and_then(|mut request| {
            if let Some(scope) = self.api_calls.scope(call) {
                scope::permits(scope, &request)?;
            }
            self.admit_request(call, &mut request)?;
            turn.core.api_command(conn, &request);
            self.begin(turn, clients, place, &request)
        });
        if let Err(error) = begun {
            turn.core.count(Metric::ApiErrors);
            turn.core.api_refused(conn, method, &error);
            self.api_calls.handle_answer(place, Err(error));
        }
    }

    /// Executes a command on the nodes that it concerns. `Err`: it is answered already.
    pub(super) fn begin(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        place: CommandPlace,
        request: &Request<'_>,
    ) -> Result<(), ApiError> {
        if let (Some(tenant), Request::Info) = (self.api_calls.tenant(place.call), request) {
            // Its channels determine the rest.
            let all = tenant.qualify("*");
            let (now, token) = (turn.now(), self.api_token(turn, place)?);
            turn.core.hub.handle_channels(now, token, &all);
            return Ok(());
        }
        if self.ask_cluster(turn, place, request)? {
            return Ok(());
        }
        match request {
            Request::Publish(publish) => {
                let message = self.checked(turn.core, &publish.message)?;
                self.publish(turn, place, &publish.channel, message)
            }
            Request::Broadcast(broadcast) => self.api_broadcast(turn, clients, place, broadcast),
            Request::Subscribe(of) => self.subscribe_user(turn, clients, place, of),
            Request::Unsubscribe(of) => self.unsubscribe_user(turn, place, of),
            Request::Disconnect(of) => self.disconnect_user(turn, place, of),
            Request::Refresh(refresh) => self.expire(turn, place, refresh),
            Request::Presence(of) => self.api_presence(turn, clients, place, &of.channel),
            Request::PresenceStats(of) => {
                self.api_presence_stats(turn, clients, place, &of.channel)
            }
            Request::History(history) => self.api_history(turn, place, history),
            Request::HistoryRemove(of) => {
                let options = turn.core.channel_options(&of.channel)?;
                let (now, token) = (turn.now(), self.api_token(turn, place)?);
                turn.core.hub.handle_history_remove(
                    now,
                    token,
                    ChannelRef::new(&of.channel, &options),
                );
                Ok(())
            }
            Request::Ack(of) => {
                let whose = (&*of.channel, &*of.user, &*of.device);
                self.api_cursor(turn, place, whose, Some((of.offset, &of.epoch)))
            }
            Request::Unread(of) => {
                let whose = (&*of.channel, &*of.user, &*of.device);
                self.api_cursor(turn, place, whose, None)
            }
            Request::Send(send) => self.send_to_user(turn, place, send),
            Request::RevokeToken(_)
            | Request::InvalidateUserTokens(_)
            | Request::BlockUser(_)
            | Request::UnblockUser(_) => self.change_revocations(turn, place, request),
            Request::Connections(request) => self.connections(turn, clients, place, request),
            Request::Channels(request) if request.limit > 0 => {
                self.channel_page(turn, clients, place, request)
            }
            Request::Channels(request) => {
                let (now, token) = (turn.now(), self.api_token(turn, place)?);
                turn.core.hub.handle_channels(now, token, &request.pattern);
                Ok(())
            }
            Request::Info => {
                let (now, token) = (turn.now(), self.api_token(turn, place)?);
                turn.core.hub.handle_info(now, token);
                Ok(())
            }
        }
    }

    fn api_broadcast(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        place: CommandPlace,
        broadcast: &BroadcastRequest<'_>,
    ) -> Result<(), ApiError> {
        let Some(conn) = self.api_calls.conn(place.call) else { return Ok(()) };
        check_channels(
            broadcast.channels.len(),
            turn.core.settings.config.limits.answer_bytes_max,
        )?;
        if broadcast.method != Method::Broadcast
            && let Some(first) = broadcast.channels.first()
        {
            // All are of one namespace.
            let namespace = turn.core.settings.namespace(&first.0);
            if namespace.is_none_or(|of| of.rules.inbox == Inbox::Off) {
                let why = "namespace: it has no inboxes; set `inbox` of it";
                return Err(ApiErrorCode::BadRequest.with_reason(why));
            }
        }
        let publish = self.checked(turn.core, &broadcast.message)?;
        self.api_calls.begin_broadcast(place, broadcast.channels.len());
        let channels = || broadcast.channels.iter().map(|name| &*name.0);
        let given = self.give_parts(turn, clients, (conn, place, 0), channels(), &publish);
        if (given as usize) < broadcast.channels.len() {
            let left = channels().skip(given as usize);
            let rest = BroadcastRest::new((place.at, given), left, publish);
            self.api_calls.keep_broadcast(place.call, rest);
        }
        Ok(())
    }

    fn api_presence(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        place: CommandPlace,
        channel: &str,
    ) -> Result<(), ApiError> {
        let options = turn.core.channel_options(channel)?;
        let (now, token) = (turn.now(), self.api_token(turn, place)?);
        let bytes_max = turn.core.settings.config.limits.answer_bytes_max;
        if !clients.ask_presence(turn, (channel, &*options), token, Some(bytes_max)) {
            turn.core.hub.handle_presence(
                now,
                token,
                ChannelRef::new(channel, &options),
                bytes_max,
            );
        }
        Ok(())
    }

    fn api_presence_stats(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        place: CommandPlace,
        channel: &str,
    ) -> Result<(), ApiError> {
        let options = turn.core.channel_options(channel)?;
        let (now, token) = (turn.now(), self.api_token(turn, place)?);
        if !clients.ask_presence(turn, (channel, &*options), token, None) {
            turn.core.hub.handle_presence_stats(now, token, ChannelRef::new(channel, &options));
        }
        Ok(())
    }

    fn api_history(
        &mut self,
        turn: &mut Turn<'_, '_>,
        place: CommandPlace,
        request: &HistoryRequest<'_>,
    ) -> Result<(), ApiError> {
        let options = turn.core.channel_options(&request.channel)?;
        let limits = &turn.core.settings.config.limits;
        let mut filter = request.filter();
        let max = limits.history_messages_max;
        filter.limit = Some(filter.limit.unwrap_or(max).min(max));
        filter.bytes_max = Some(limits.answer_bytes_max);
        let (now, token) = (turn.now(), self.api_token(turn, place)?);
        turn.core.hub.handle_history(
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
        turn: &mut Turn<'_, '_>,
        place: CommandPlace,
        send: &SendRequest<'_>,
    ) -> Result<(), ApiError> {
        let has = send.data.as_bytes().len();
        let max = turn.core.settings.config.limits.publication_bytes_max;
        if has > max {
            let why = format_args!("{has} bytes where limits.publication_bytes_max is {max}");
            return Err(ApiErrorCode::LimitExceeded.with_reason(why));
        }
        if turn.core.is_remote(&send.target.user) {
            return self.send_to_remote(turn, place, send);
        }
        let Some(only) = self.selected(turn.core, place, &send.target)? else { return Ok(()) };
        let message = SendToUser {
            client: only.client,
            device: (&*send.device).into(),
            data: send.data.as_bytes().into(),
            format: send.data.format(),
        };
        let (now, token) = (turn.now(), self.api_token(turn, place)?);
        turn.core.hub.handle_send_to_user(now, token, &send.target.user, message);
        Ok(())
    }

    /// Executes commands about revoked tokens and blocked users.
    fn change_revocations(
        &mut self,
        turn: &mut Turn<'_, '_>,
        place: CommandPlace,
        request: &Request<'_>,
    ) -> Result<(), ApiError> {
        let revocation = match request {
            Request::RevokeToken(of) => Revocation::of_token(&of.uid, of.expire_at),
            Request::InvalidateUserTokens(of) => {
                let issued_before = match of.issued_before {
                    0 => turn.now().unix_ms / 1000 + 1,
                    before => before,
                };
                Revocation::of_user(&of.user, issued_before, of.expire_at)
            }
            Request::BlockUser(of) => Revocation::block(&of.user, of.expire_at),
            Request::UnblockUser(of) => return self.unblock(turn, place, &of.user),
            _ => return Ok(()),
        };
        self.revoke(turn, place, revocation)
    }

    /// Validates a message and converts it for the hub.
    fn checked(
        &self,
        core: &Core<'_>,
        message: &PublishParams<'_>,
    ) -> Result<NewPublication, ApiError> {
        let limits = &core.settings.config.limits;
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
            u32::try_from(core.settings.config.api.idempotency_ttl_ms).ok();
        Ok(publish)
    }

    pub(super) fn publish(
        &mut self,
        turn: &mut Turn<'_, '_>,
        place: CommandPlace,
        channel: &str,
        mut publish: NewPublication,
    ) -> Result<(), ApiError> {
        publish.trace = self.api_calls.trace(place.call);
        let options = turn.core.channel_options(channel)?;
        let token = self.api_token(turn, place)?;
        let (now, bytes) = (turn.now(), publish.data.len());
        turn.core.publication(None, channel, bytes);
        turn.core.hub.handle_publish(now, token, ChannelRef::new(channel, &options), publish);
        if let Some(hash) = turn.core.state.pressure.of(channel) {
            // The caller publishes faster than subscribers can be written to: the delayed response slows it down.
            self.hold(turn.core, place.call, now.ms + BEHIND_MS_MAX, Some(hash));
        }
        if let Some((budget_key, rates)) = self.api_calls.budget(place.call) {
            let deliveries = turn.core.deliveries_to(channel, bytes);
            let work = Work { bytes: bytes as u64, deliveries, ..Work::default() };
            self.charge_call(turn.core, place.call, (budget_key, rates), work);
        }
        Ok(())
    }

    pub(super) fn api_token(
        &mut self,
        turn: &mut Turn<'_, '_>,
        place: CommandPlace,
    ) -> Result<u64, ApiError> {
        let timeout_ms = turn.core.settings.config.limits.bus_request_timeout_ms;
        turn.core
            .pending
            .insert(turn.cx.now_ms(), timeout_ms, Pending::Api(place))
            .map_err(|_| dunlin_hub::Error::Overloaded.into())
    }

    /// Handles the hub's answer to a command, or to one channel of a broadcast.
    pub(super) fn api_answered(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        place: CommandPlace,
        answer: CommandResult,
    ) {
        if let Err(error) = &answer
            && place.part.is_none()
        {
            turn.core.count(Metric::ApiErrors);
            turn.core.api_refused(self.api_calls.conn(place.call), "", error);
        }
        let answer = self.outward(place, answer);
        self.api_calls.handle_answer(place, answer);
        self.respond(turn, clients, place.call);
    }

    /// Ends a call's share of this turn.
    pub(super) fn pause(&mut self, turn: &mut Turn<'_, '_>, clients: &mut Clients, call: CallId) {
        self.api_calls.pause(call);
        self.respond(turn, clients, call);
    }

    /// Responds to a call whose commands are all answered.
    pub(super) fn respond(&mut self, turn: &mut Turn<'_, '_>, clients: &mut Clients, call: CallId) {
        if let Some(mut answered) = self.api_calls.poll(call) {
            if let Some(plan) = answered.pusher.take() {
                let conn = answered.conn;
                let (method, began) = (plan.shape.method(), answered.began);
                if let Some(span) = answered.span.take() {
                    let results = answered.results();
                    turn.core.api_call_ended(*span, ("pusher", method), results);
                }
                let step = (began, plan.next(answered.into_answers()));
                return self.go_on(turn, clients, conn, method, step);
            }
            let (api, method) = answered.labels();
            for (method, code) in answered.results() {
                turn.core.api_answered(api, method, code);
            }
            let took = answered.began.elapsed().as_nanos() as u64;
            turn.core.labelled().api_calls.of(ApiCall { api, method }).record(took);
            if let Some(span) = answered.span.take() {
                let results = answered.results();
                turn.core.api_call_ended(*span, (api, method), results);
            }
            let facts = NodeFacts {
                uid: &turn.core.state.uid,
                name: turn.core.settings.node_name(),
                version: VERSION,
                uptime_s: turn.core.state.uptime_s(),
            };
            let conn = answered.conn;
            let answered_for_cluster = answered.cluster_request();
            let answered_for_admin = answered.admin_request();
            let (warning, then) = (answered.unknown.warning(), answered.then.take());
            let bytes_max = turn.core.settings.config.limits.answer_bytes_max;
            let budget = answered.budget;
            let (status, body) = answered.encode(&facts, bytes_max);
            if let Some((budget_key, rates)) = budget {
                // Charged before its next call.
                let work = Work { bytes: body.len() as u64, ..Work::default() };
                turn.core.charge_shared(budget_key, &rates, work);
            }
            if let Some(then) = then {
                return then(&body);
            }
            if let Some(request_id) = answered_for_cluster {
                return turn.core.respond_to_cluster(request_id, body);
            }
            if let Some(request_id) = answered_for_admin {
                let worker = turn.core.index;
                let reply = AdminMessage::ApiReply { request_id, worker, status, response: body };
                // If the ring is full, the caller is answered at its deadline.
                let _ = turn.core.endpoint.send(turn.core.state.bus.admin(), reply);
                return;
            }
            let mut answer = reply::PlainResponse::json(status, body);
            if let Some(warning) = &warning {
                answer = answer.header("Warning", warning);
            }
            turn.answer(conn, &answer);
        }
    }
}

impl Core<'_> {
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
}

/// Returns the name of the API key that a request shows.
fn key_name(settings: &Settings, head: &http::RequestHead<'_>) -> Option<Box<str>> {
    let query = if settings.config.api.keys_in_query { head.query.unwrap_or("") } else { "" };
    let shown = presented_key(
        head.headers.get_str("X-API-Key"),
        head.headers.get_str("Authorization"),
        query,
    )?;
    settings.api_key(&shown).map(|key| (&*key.name).into())
}

/// Begins the span of a call, if it is traced.
fn span_of(core: &Core<'_>, request: &http::Request<'_>) -> Option<Box<BegunSpan>> {
    let telemetry = &core.state.telemetry;
    if !telemetry.is_on() {
        return None;
    }
    telemetry.begin_request(request.headers.get_str("traceparent")).map(Box::new)
}

fn new_call(
    core: &Core<'_>,
    conn: ConnId,
    request: &http::Request<'_>,
    scope: Scope,
    (form, commands): (CallForm, Vec<CommandSlot>),
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
        began: Instant::now(),
        span: span_of(core, request),
    }
}

/// Returns the name of a method that there is, for a label.
fn known(method: &str) -> &'static str {
    Method::of(method).map_or("unknown", Method::name)
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
