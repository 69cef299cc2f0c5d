//! Server API calls: carried out on the worker that took the request, answered when all of it is answered.

use std::collections::VecDeque;
use std::sync::Arc;

use dunlin_hub::{
    ChannelOptions, DisconnectUser, SessionId, SubscribeOptions, SubscribeUser, UnsubscribeUser,
};
use dunlin_net::{ConnId, Context, http};
use dunlin_protocol::centrifuge::{DisconnectCode, UnsubscribeCode};

use super::Worker;
use super::connect::VERSION;
use super::link::Link;
use super::pending::Pending;
use super::reply;
use super::routes::method_refused;
use crate::api::request::{Message, RefreshRequest, SubscribeRequest, Target};
use crate::api::{
    Answer, ApiError, ApiErrorCode, Batch, Legacy, Method, NodeFacts, Outcome, Request,
    presented_key, write_batch, write_legacy, write_response,
};
use crate::metrics::Metric;
use crate::session_token;

/// A call under way.
pub(crate) type CallId = u64;

/// An HTTP request to the API, until its last command is answered.
pub(super) struct Call {
    conn: ConnId,
    form: Form,
    /// The caller wants errors as HTTP statuses (`X-Centrifugo-Error-Mode: transport`).
    errors_as_status: bool,
    commands: Vec<Command>,
    /// Answers outstanding, and one more while commands are being given out.
    waiting: usize,
    /// Commands that wait for those before them: place and text.
    queue: VecDeque<(usize, Box<[u8]>)>,
}

/// How a call was made, and wants to be answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Single,
    Batch,
    Legacy,
}

/// One command of a call.
struct Command {
    method: Option<Method>,
    /// The id of a command of the single endpoint.
    id: u32,
    answer: Option<Answer>,
    /// What became of the parts of a broadcast.
    parts: Vec<Option<Result<dunlin_hub::Published, ApiError>>>,
}

impl Command {
    fn new(method: Option<Method>, id: u32) -> Self {
        Self { method, id, answer: None, parts: Vec::new() }
    }
}

impl Worker<'_> {
    /// Serves `/api` and what is below it.
    pub(super) fn api(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        method: &str,
        request: &http::Request<'_>,
    ) {
        if request.method != http::Method::Post {
            return self.answer(cx, conn, &method_refused("POST"));
        }
        if let Err(why) = self.authorised(request) {
            return self.answer(cx, conn, &reply::Answer::error(401, why));
        }
        if method == "push" || method.starts_with("push/") {
            return self.push_api(cx, conn, method, request);
        }
        let mode = request.headers.get_str("X-Centrifugo-Error-Mode");
        let mut call = Call {
            conn,
            form: Form::Single,
            errors_as_status: mode.is_some_and(|mode| mode.eq_ignore_ascii_case("transport")),
            commands: Vec::new(),
            waiting: 1,
            queue: VecDeque::new(),
        };
        let id = self.calls_begun;
        self.calls_begun += 1;
        match method {
            "" => match Legacy::parse(request.body) {
                Ok(commands) => {
                    call.form = Form::Legacy;
                    call.commands =
                        commands.iter().map(|c| Command::new(c.method(), c.id)).collect();
                    self.calls.insert(id, call);
                    for (at, command) in commands.iter().enumerate() {
                        self.execute(cx, id, at, command.request());
                    }
                }
                Err(error) => return self.api_refused(cx, conn, error.status(), &error),
            },
            "batch" => match Batch::parse(request.body) {
                Ok(batch) => {
                    call.form = Form::Batch;
                    let method = |command: &Result<Request<'_>, ApiError>| {
                        command.as_ref().ok().map(Request::method)
                    };
                    call.commands =
                        batch.commands.iter().map(|c| Command::new(method(c), 0)).collect();
                    let now = if batch.parallel { batch.commands.len() } else { in_order(&batch) };
                    call.queue = (now..batch.texts.len())
                        .map(|at| (at, Box::from(batch.texts[at])))
                        .collect();
                    self.calls.insert(id, call);
                    for (at, command) in batch.commands.into_iter().take(now).enumerate() {
                        self.execute(cx, id, at, command);
                    }
                }
                Err(error) => return self.api_refused(cx, conn, error.status(), &error),
            },
            name => match Method::find(name) {
                Ok(method) => {
                    call.commands.push(Command::new(Some(method), 0));
                    self.calls.insert(id, call);
                    self.execute(cx, id, 0, Request::parse(method, request.body));
                }
                Err(error) => return self.api_refused(cx, conn, 404, &error),
            },
        }
        self.drain_events(cx);
        self.api_settled(cx, id);
    }

    /// Whether the caller may use the API.
    fn authorised(&self, request: &http::Request<'_>) -> Result<(), &'static str> {
        let api = &self.settings.config.api;
        if api.without_key {
            return Ok(());
        }
        let shown = presented_key(
            request.headers.get_str("X-API-Key"),
            request.headers.get_str("Authorization"),
            request.query.unwrap_or(""),
        );
        match shown {
            None => Err("no API key; send one of api.keys as the header X-API-Key"),
            Some(shown) if self.settings.api_key(&shown).is_some() => Ok(()),
            Some(_) => Err("the API key is none of api.keys"),
        }
    }

    fn api_refused(&mut self, cx: &mut Context<Link>, conn: ConnId, status: u16, error: &ApiError) {
        self.count(Metric::ApiErrors);
        let mut body = Vec::new();
        write_response(&mut body, &Err(error.clone()), &NodeFacts::default());
        self.answer(cx, conn, &reply::Answer::json(status, body));
    }

    /// Begins one command of a call.
    fn execute(
        &mut self,
        cx: &mut Context<Link>,
        call: CallId,
        at: usize,
        command: Result<Request<'_>, ApiError>,
    ) {
        self.count(Metric::ApiCommands);
        let Some(under_way) = self.calls.get_mut(&call) else { return };
        under_way.waiting += 1;
        let begun = command.and_then(|request| self.begin(cx, call, at, &request));
        if let Err(error) = begun {
            self.command_answered(cx, call, at, Err(error));
        }
    }

    /// Hands a command to the hub. `Err`: it is answered already.
    fn begin(
        &mut self,
        cx: &mut Context<Link>,
        call: CallId,
        at: usize,
        request: &Request<'_>,
    ) -> Result<(), ApiError> {
        let now = self.now(cx);
        match request {
            Request::Publish(publish) => {
                self.publish(cx, call, at, 0, &publish.channel, &publish.message)?;
            }
            Request::Broadcast(broadcast) => {
                if let Some(under_way) = self.calls.get_mut(&call) {
                    under_way.commands[at].parts = vec![None; broadcast.channels.len()];
                }
                for (part, channel) in broadcast.channels.iter().enumerate() {
                    let begun =
                        self.publish(cx, call, at, part as u32 + 1, &channel.0, &broadcast.message);
                    if let Err(error) = begun {
                        self.part_answered(cx, call, at, part, Err(error));
                    }
                }
            }
            Request::Subscribe(subscribe) => {
                let options = self.channel_options(&subscribe.channel)?;
                let client = self.target(&subscribe.target)?;
                let token = self.api_token(cx, call, at, 0)?;
                let (options, subscribe_user) = subscribe_user(options, subscribe, client);
                let (user, channel) = (&subscribe.target.user, &subscribe.channel);
                self.hub.handle_subscribe_user(now, token, user, channel, &options, subscribe_user);
            }
            Request::Unsubscribe(unsubscribe) => {
                let client = self.target(&unsubscribe.target)?;
                let token = self.api_token(cx, call, at, 0)?;
                let code = UnsubscribeCode::Server;
                let how = UnsubscribeUser { client, code: code.code(), reason: code.text().into() };
                let (user, channel) = (&unsubscribe.target.user, &unsubscribe.channel);
                self.hub.handle_unsubscribe_user(now, token, user, channel, how);
            }
            Request::Disconnect(disconnect) => {
                let how = DisconnectUser {
                    client: self.target(&disconnect.target)?,
                    except: disconnect.whitelist.clone(),
                    code: u32::from(disconnect.code),
                    reason: (&*disconnect.reason).into(),
                };
                let token = self.api_token(cx, call, at, 0)?;
                self.hub.handle_disconnect_user(now, token, &disconnect.target.user, how);
            }
            Request::Refresh(refresh) => self.expire(cx, call, at, refresh)?,
            Request::Presence(request) => {
                let options = self.channel_options(&request.channel)?;
                let token = self.api_token(cx, call, at, 0)?;
                self.hub.handle_presence(now, token, &request.channel, &options);
            }
            Request::PresenceStats(request) => {
                let options = self.channel_options(&request.channel)?;
                let token = self.api_token(cx, call, at, 0)?;
                self.hub.handle_presence_stats(now, token, &request.channel, &options);
            }
            Request::History(request) => {
                let options = self.channel_options(&request.channel)?;
                let max = self.settings.config.limits.history_messages_max;
                let mut filter = request.filter();
                filter.limit = Some(filter.limit.unwrap_or(max).min(max));
                let token = self.api_token(cx, call, at, 0)?;
                self.hub.handle_history(now, token, &request.channel, &options, filter);
            }
            Request::HistoryRemove(request) => {
                self.channel_options(&request.channel)?;
                let token = self.api_token(cx, call, at, 0)?;
                self.hub.handle_history_remove(now, token, &request.channel);
            }
            Request::Channels(request) => {
                let token = self.api_token(cx, call, at, 0)?;
                self.hub.handle_channels(now, token, &request.pattern);
            }
            Request::Info => {
                let token = self.api_token(cx, call, at, 0)?;
                self.hub.handle_info(now, token);
            }
        }
        Ok(())
    }

    fn publish(
        &mut self,
        cx: &mut Context<Link>,
        call: CallId,
        at: usize,
        part: u32,
        channel: &str,
        message: &Message<'_>,
    ) -> Result<(), ApiError> {
        let options = self.channel_options(channel)?;
        let token = self.api_token(cx, call, at, part)?;
        let mut publish = message.to_publish();
        publish.idempotency_ttl_ms =
            u32::try_from(self.settings.config.api.idempotency_ttl_ms).ok();
        let now = self.now(cx);
        self.hub.handle_publish(now, token, channel, &options, publish);
        Ok(())
    }

    /// `refresh`: ends the connections of a user whose backend says that they have expired.
    fn expire(
        &mut self,
        cx: &mut Context<Link>,
        call: CallId,
        at: usize,
        refresh: &RefreshRequest<'_>,
    ) -> Result<(), ApiError> {
        if !refresh.expired {
            let why = "refresh prolongs no connection here: the client does, with a new token; \
                       `expired: true` ends one";
            return Err(ApiErrorCode::NotAvailable.with_reason(why));
        }
        let code = DisconnectCode::Expired;
        let how = DisconnectUser {
            client: self.target(&refresh.target)?,
            except: Vec::new(),
            code: u32::from(code.code()),
            reason: code.text().into(),
        };
        let token = self.api_token(cx, call, at, 0)?;
        let now = self.now(cx);
        self.hub.handle_disconnect_user(now, token, &refresh.target.user, how);
        Ok(())
    }

    fn channel_options(&self, channel: &str) -> Result<Arc<ChannelOptions>, ApiError> {
        let max = self.settings.config.limits.channel_bytes_max;
        if channel.is_empty() || channel.len() > max {
            let why = format_args!("a channel name has 1 to {max} bytes");
            return Err(ApiErrorCode::BadRequest.with_reason(why));
        }
        match self.settings.namespace(channel) {
            Some(namespace) => Ok(Arc::clone(&namespace.options)),
            None => Err(ApiErrorCode::UnknownChannel.into()),
        }
    }

    /// The one session a command is about, if it is about one.
    fn target(&self, target: &Target<'_>) -> Result<Option<SessionId>, ApiError> {
        if target.session.is_empty() {
            return Ok(target.client);
        }
        match session_token::verify(&self.state.secret, &target.session) {
            Some(session) => Ok(Some(session)),
            None => Err(ApiErrorCode::BadRequest.with_reason("session: not issued by this server")),
        }
    }

    fn api_token(
        &mut self,
        cx: &mut Context<Link>,
        call: CallId,
        at: usize,
        part: u32,
    ) -> Result<u64, ApiError> {
        let patience = 4 * self.settings.config.limits.bus_request_timeout_ms;
        let pending = Pending::Api { call, at: at as u32, part };
        match self.pending.insert(cx.now_ms() + patience, pending) {
            Ok(id) => Ok(id.to_u64()),
            Err(_) => Err(dunlin_hub::Error::Overloaded.into()),
        }
    }

    /// The hub has answered a command, or a part of one.
    pub(super) fn api_answered(
        &mut self,
        cx: &mut Context<Link>,
        call: CallId,
        at: u32,
        part: u32,
        outcome: Result<Outcome, dunlin_hub::Error>,
    ) {
        let answer = outcome.map_err(ApiError::from);
        match part.checked_sub(1) {
            None => self.command_answered(cx, call, at as usize, answer),
            Some(part) => {
                let published = answer.map(|outcome| match outcome {
                    Outcome::Published(published) => published,
                    _ => dunlin_hub::Published::default(),
                });
                self.part_answered(cx, call, at as usize, part as usize, published);
            }
        }
        self.api_settled_if_last(cx, call);
    }

    fn part_answered(
        &mut self,
        cx: &mut Context<Link>,
        call: CallId,
        at: usize,
        part: usize,
        answer: Result<dunlin_hub::Published, ApiError>,
    ) {
        let Some(under_way) = self.calls.get_mut(&call) else { return };
        let parts = &mut under_way.commands[at].parts;
        parts[part] = Some(answer);
        if parts.iter().all(Option::is_some) {
            let parts = std::mem::take(parts).into_iter().flatten().collect();
            self.command_answered(cx, call, at, Ok(Outcome::Broadcast(parts)));
        }
    }

    fn command_answered(&mut self, _: &mut Context<Link>, call: CallId, at: usize, answer: Answer) {
        if answer.is_err() {
            self.count(Metric::ApiErrors);
        }
        let Some(under_way) = self.calls.get_mut(&call) else { return };
        under_way.commands[at].answer = Some(answer);
        under_way.waiting -= 1;
    }

    /// Takes back the guard that held a call open while its commands were given out.
    fn api_settled(&mut self, cx: &mut Context<Link>, call: CallId) {
        if let Some(under_way) = self.calls.get_mut(&call) {
            under_way.waiting -= 1;
        }
        self.api_settled_if_last(cx, call);
    }

    /// Goes on with a call of which nothing is outstanding: with its next commands, or with its answer.
    fn api_settled_if_last(&mut self, cx: &mut Context<Link>, call: CallId) {
        while let Some(under_way) = self.calls.get_mut(&call) {
            if under_way.waiting > 0 {
                return;
            }
            let Some((at, text)) = under_way.queue.pop_front() else { break };
            under_way.waiting = 1;
            self.execute(cx, call, at, Batch::command(at, &text));
            if let Some(under_way) = self.calls.get_mut(&call) {
                under_way.waiting -= 1;
                if under_way.waiting > 0 {
                    return;
                }
            }
        }
        let Some(under_way) = self.calls.remove(&call) else { return };
        let (state, settings) = (Arc::clone(&self.state), Arc::clone(&self.settings));
        let facts = NodeFacts {
            uid: &state.uid,
            name: settings.node_name(),
            version: VERSION,
            uptime_s: state.uptime_s(),
        };
        let mut status = 200;
        let mut body = Vec::new();
        let answer = |command: &mut Command| {
            command.answer.take().unwrap_or_else(|| Err(ApiErrorCode::Internal.into()))
        };
        let mut commands = under_way.commands;
        match under_way.form {
            Form::Single => {
                let answer = answer(&mut commands[0]);
                if let Err(error) = &answer {
                    status = error.status();
                    if under_way.errors_as_status {
                        status = error.transport_status();
                    }
                }
                write_response(&mut body, &answer, &facts);
            }
            Form::Batch => {
                let replies: Vec<_> = commands.iter_mut().map(|c| (c.method, answer(c))).collect();
                write_batch(&mut body, &replies, &facts);
            }
            Form::Legacy => {
                let replies: Vec<_> = commands.iter_mut().map(|c| (c.id, answer(c))).collect();
                write_legacy(&mut body, &replies, &facts);
            }
        }
        self.answer(cx, under_way.conn, &reply::Answer::json(status, body));
    }
}

/// How many commands from the start can be given out at once without one seeing what the next has done. A
/// channel's commands go to its home worker in order, so only commands about users, which go to all workers,
/// have to be waited for.
fn in_order(batch: &Batch<'_>) -> usize {
    let about_users = |command: &Result<Request<'_>, ApiError>| {
        matches!(
            command,
            Ok(Request::Subscribe(_)
                | Request::Unsubscribe(_)
                | Request::Disconnect(_)
                | Request::Refresh(_)
                | Request::Channels(_)
                | Request::Info)
        )
    };
    batch.commands.iter().position(about_users).unwrap_or(batch.commands.len())
}

fn subscribe_user(
    options: Arc<ChannelOptions>,
    request: &SubscribeRequest<'_>,
    client: Option<SessionId>,
) -> (Arc<ChannelOptions>, SubscribeUser) {
    let options = match request.options.is_empty() {
        true => options,
        false => Arc::new(request.options.apply(&options)),
    };
    let raw =
        |json: &Option<dunlin_protocol::Json<'_>>| json.as_ref().map(|json| json.as_bytes().into());
    let subscribe = SubscribeOptions {
        recover: request.recover_since,
        chan_info: raw(&request.info),
        data: raw(&request.data),
        server_side: true,
        announce: true,
        ..SubscribeOptions::default()
    };
    (options, SubscribeUser { client, subscribe })
}
