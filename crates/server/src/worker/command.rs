//! Executes commands of clients and replies to them.

use dunlin_hub::{ChannelRef, HistoryFilter, NewPublication, SessionId, SubscribeOptions, tenant};
use dunlin_net::ConnId;
use dunlin_protocol::Encoding;
use dunlin_protocol::centrifuge::{
    AckRequest, Command, CommandError, Commands, Disconnect, DisconnectCode, Error, ErrorCode,
    HistoryRequest, PublishRequest, RemoteSend, Reply, Request, RpcRequest, SubscribeRequest,
};

use super::clients::Clients;
use super::command_timer::CommandTimer;
use super::key_wait::{Handled, Unverified};
use super::link::Role;
use super::logged::About;
use super::parts::{ONCE_ANSWERED, Pending};
use super::permission::{Entitlement, Permission, Source};
use super::sessions::Sessions;
use super::turn::{Core, Turn};
use crate::limits::budget::Work;

use crate::metrics::Metric;
use crate::telemetry::SpanKind;

impl Clients {
    /// Executes the commands of a frame in order. Stops at the first that ends the connection; commands without budget wait.
    pub(super) fn handle_frame(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, frame: &[u8]) {
        if self.backlogs.contains(conn) {
            return self.append_to_backlog(turn, conn, frame);
        }
        let Some(encoding) = turn.cx.data(conn).and_then(|link| link.encoding()) else { return };
        if Commands::of(encoding.format(), frame).is_empty() {
            let empty = DisconnectCode::BadRequest.with_reason("a frame without a command");
            return self.disconnect(turn, conn, &empty);
        }
        if let Some((rest, ready_ms)) = self.handle_commands(turn, conn, frame) {
            self.hold_back(turn, conn, rest.to_vec().into(), ready_ms);
        }
    }

    /// Executes commands while there is budget. `Some`: the remaining commands, and when they may continue.
    pub(super) fn handle_commands<'f>(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        frame: &'f [u8],
    ) -> Option<(&'f [u8], u64)> {
        let encoding = turn.cx.data(conn).and_then(|link| link.encoding())?;
        if encoding.is_pusher() {
            return self.handle_pusher(turn, conn, frame);
        }
        let mut commands = Commands::of(encoding.format(), frame);
        let mut timer = CommandTimer::start(&turn.core.state);
        loop {
            let before = commands.rest();
            let command = commands.next()?;
            let link = turn.cx.data(conn).filter(|link| !link.closing)?;
            let mut command = match command {
                Ok(command) => command,
                Err(malformed) => {
                    turn.core.count(Metric::ProtocolErrors);
                    let why = DisconnectCode::BadRequest.with_reason(malformed);
                    self.disconnect(turn, conn, &why);
                    return None;
                }
            };
            if let Some(session) = link.session()
                && let Err(error) = turn.core.admit_channel(session, &mut command.request)
            {
                turn.core.command(*link, (&command).into());
                turn.reply_error(conn, &command, &error);
                // To nobody whose channel it would be.
                let bytes = (before.len() - commands.rest().len()) as u64;
                let work = Work { commands: 1, bytes, spent_ns: timer.lap(), ..Work::default() };
                match turn.charge_request(conn, None, work) {
                    Some(ready_ms) => return Some((commands.rest(), ready_ms)),
                    None => continue,
                }
            }
            let concurrency = turn.core.settings.config.client.concurrency;
            if self.deciders.proxy_calls.holds(conn, &command.request, concurrency) {
                return Some((before, ONCE_ANSWERED));
            }
            let said = &before[..before.len() - commands.rest().len()];
            match link.protocol_state.admit(&command) {
                // A connect is decided at once. While its subscriptions are being made, its reply and those of later commands are
                // held back.
                Ok(_) => {
                    if self.handle_command(turn, conn, &command, said) == Handled::AwaitsKey {
                        return self
                            .await_key(turn, conn, before)
                            .map(|ready_ms| (before, ready_ms));
                    }
                }
                Err(CommandError::Reply(error)) => {
                    turn.core.command(*link, (&command).into());
                    turn.reply_error(conn, &command, &error);
                }
                Err(CommandError::Disconnect(disconnect)) => {
                    turn.core.count(Metric::ProtocolErrors);
                    self.disconnect(turn, conn, &disconnect);
                    return None;
                }
            }
            let bytes = before.len() - commands.rest().len();
            if let Some(ready_ms) = turn.charge(conn, &command, (bytes, timer.lap())) {
                return Some((commands.rest(), ready_ms));
            }
        }
    }

    fn handle_command(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        command: &Command<'_>,
        said: &[u8],
    ) -> Handled {
        let id = command.id;
        if let Request::Pong = command.request {
            self.sessions.pong_received(turn, conn);
            return Handled::Done;
        }
        if let Some(&mut link) = turn.cx.data(conn) {
            turn.core.command(link, command.into());
        }
        if let Request::Connect(connect) = &command.request {
            return self.connect(turn, conn, Some(id), connect, said);
        }
        let session = turn.cx.data(conn).and_then(|link| link.session());
        let Some(session) = session else { return Handled::Done };
        let is_own = matches!(&command.request, Request::Rpc(rpc) if is_own_rpc(rpc));
        if self.deciders.has_authorizer()
            && !is_own
            && self.consult_about(turn, (conn, session, id), &command.request, said)
        {
            return Handled::Done;
        }
        let now = turn.now();
        let outcome = match &command.request {
            Request::Subscribe(request) if !request.token.is_empty() => {
                match self.subscribe_by_token(turn, session, id, request) {
                    Ok(()) => Ok(()),
                    Err(error) => return self.refuse_token(turn, conn, command, error),
                }
            }
            Request::Subscribe(request) => {
                match self.sessions.proxy_of(
                    turn.core,
                    session,
                    &request.channel,
                    Permission::Subscribe,
                ) {
                    Some(proxy) => {
                        self.ask_subscribe(turn, (conn, session, id), request, said, &proxy)
                    }
                    None => self.subscribe(turn, session, id, request),
                }
            }
            Request::Unsubscribe(request) => {
                self.sessions.grants.remove(session, &request.channel);
                turn.core.hub.handle_unsubscribe(now, session, &request.channel, None);
                // The reply to a pending subscribe comes before that to its unsubscribe.
                self.drain_events(turn);
                turn.core.reply(session, id, &Reply::Unsubscribe);
                Ok(())
            }
            Request::Publish(request) => {
                match self.sessions.proxy_of(
                    turn.core,
                    session,
                    &request.channel,
                    Permission::Publish,
                ) {
                    Some(proxy) => {
                        self.ask_publish(turn, (conn, session, id), request, said, &proxy)
                    }
                    None => self.publish_by_keys(turn, session, id, request),
                }
            }
            Request::History(request) => self.history(turn, session, id, request),
            Request::Presence(request) => self.presence(turn, session, id, &request.channel),
            Request::PresenceStats(request) => {
                self.presence_stats(turn, session, id, &request.channel)
            }
            Request::Ping => {
                turn.core.reply(session, id, &Reply::Ping);
                Ok(())
            }
            Request::Refresh(request) => {
                return self.refresh(turn, conn, session, id, &request.token);
            }
            Request::SubRefresh(request) => match self.sub_refresh(turn, session, id, request) {
                Ok(()) => Ok(()),
                Err(error) => return self.refuse_token(turn, conn, command, error),
            },
            Request::Rpc(request) if RemoteSend::is_one(request) => {
                self.send_to_remote(turn, (session, id), request)
            }
            Request::Rpc(request) if is_own => self.acknowledge(turn, (session, id), request),
            Request::Rpc(request) => self.rpc(turn, conn, session, id, request),
            // Answered by ProtocolState::admit or above.
            Request::Connect(_) | Request::Send(_) | Request::Pong | Request::Unknown(_) => Ok(()),
        };
        if let Err(error) = outcome {
            turn.reply_error(conn, command, &error);
        }
        self.drain_events(turn);
        Handled::Done
    }

    fn history(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        id: u32,
        request: &HistoryRequest<'_>,
    ) -> Result<(), Error<'static>> {
        let options =
            self.sessions.allowed(turn.core, session, &request.channel, Permission::History)?;
        let max = turn.core.settings.config.limits.history_messages_max;
        let filter = HistoryFilter {
            since: request.since.as_ref().map(|since| since.to_hub()),
            limit: Some(u32::try_from(request.limit).unwrap_or(max).min(max)),
            reverse: request.reverse,
            bytes_max: Some(options.recovery_bytes_max),
            ..HistoryFilter::default()
        };
        let pending = turn.core.pending_answer(session, id, &request.channel);
        if let Some(token) = self.token(turn, pending) {
            let (now, owner) = (turn.now(), turn.core.hub.owner(session));
            turn.core.hub.handle_history(
                now,
                token,
                ChannelRef::new(&request.channel, &options),
                filter,
                owner,
            );
        }
        Ok(())
    }

    fn presence(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        id: u32,
        channel: &str,
    ) -> Result<(), Error<'static>> {
        let options = self.sessions.allowed(turn.core, session, channel, Permission::Presence)?;
        let pending = turn.core.pending_answer(session, id, channel);
        if let Some(token) = self.token(turn, pending) {
            let bytes_max = options.recovery_bytes_max;
            if !self.ask_presence(turn, (channel, &options), token, Some(bytes_max)) {
                let now = turn.now();
                turn.core.hub.handle_presence(
                    now,
                    token,
                    ChannelRef::new(channel, &options),
                    bytes_max,
                );
            }
        }
        Ok(())
    }

    fn presence_stats(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        id: u32,
        channel: &str,
    ) -> Result<(), Error<'static>> {
        let options = self.sessions.allowed(turn.core, session, channel, Permission::Presence)?;
        if let Some(token) = self.token(turn, Pending::Command { session, id })
            && !self.ask_presence(turn, (channel, &options), token, None)
        {
            let now = turn.now();
            turn.core.hub.handle_presence_stats(now, token, ChannelRef::new(channel, &options));
        }
        Ok(())
    }

    /// Rejects a command whose token is invalid, or delays it until its key is known.
    fn refuse_token(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        command: &Command<'_>,
        error: Unverified,
    ) -> Handled {
        match error {
            Unverified::KeyPending => return Handled::AwaitsKey,
            Unverified::Refused(CommandError::Reply(error)) => {
                turn.reply_error(conn, command, &error);
            }
            Unverified::Refused(CommandError::Disconnect(why)) => self.disconnect(turn, conn, &why),
        }
        Handled::Done
    }

    pub(super) fn subscribe(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        id: u32,
        request: &SubscribeRequest<'_>,
    ) -> Result<(), Error<'static>> {
        let channel = &*request.channel;
        let (asked, fault) = match self.sessions.client_side(turn.core, request) {
            Ok(asked) => (asked, None),
            Err(fault) => (SubscribeOptions::default(), Some(fault)),
        };
        let entitlement =
            self.sessions.claim(turn.core, session, channel)?.entitle(Source::Client, asked)?;
        // The missing permission is the error, and not what is wrong with the options.
        fault.map_or(Ok(()), Err)?;
        self.begin_subscription(turn, (session, id), channel, entitlement);
        Ok(())
    }

    /// Makes a subscription that a client has asked for and may have.
    pub(super) fn begin_subscription(
        &mut self,
        turn: &mut Turn<'_, '_>,
        (session, id): (SessionId, u32),
        channel: &str,
        entitlement: Entitlement,
    ) {
        let is_new = !turn.core.hub.has_subscription(session, channel);
        let now = turn.now();
        let Entitlement { options, subscribe, grant, by, .. } = entitlement;
        turn.core.permitted(session, channel, "subscribe", by);
        if let Some(token) = self.token(turn, Pending::Command { session, id }) {
            if let Some(grant) = grant.filter(|_| is_new) {
                self.sessions.grants.insert(session, channel, grant);
            }
            let channel = ChannelRef::new(channel, &options);
            turn.core.hub.handle_subscribe(now, token, session, channel, subscribe);
        }
    }

    fn publish_by_keys(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        id: u32,
        request: &PublishRequest<'_>,
    ) -> Result<(), Error<'static>> {
        let options =
            self.sessions.allowed(turn.core, session, &request.channel, Permission::Publish)?;
        let publish = turn.core.publication_of(session, request, NewPublication::default());
        self.publish_command(
            turn,
            (session, id),
            ChannelRef::new(&request.channel, &options),
            publish,
        );
        Ok(())
    }

    /// Executes the publish command of a client with permission.
    pub(super) fn publish_command(
        &mut self,
        turn: &mut Turn<'_, '_>,
        (session, id): (SessionId, u32),
        channel: ChannelRef<'_>,
        publish: NewPublication,
    ) {
        let now = turn.now();
        turn.core.publication(Some(session), channel.name, publish.data.len());
        if let Some(token) = self.token(turn, Pending::Command { session, id }) {
            turn.core.hub.handle_publish(now, token, channel, publish);
        }
    }

    /// Closes a connection with a disconnect code.
    pub(super) fn disconnect(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        why: &Disconnect<'_>,
    ) {
        let now = turn.now();
        let Some(link) = turn.cx.data(conn) else { return };
        if link.closing {
            return;
        }
        let Role::Client(encoding) = link.role else { return };
        let before = *link;
        if let Some(session) = link.session() {
            turn.core.hub.disconnect_session(now, session, u32::from(why.code), &why.reason);
            return self.drain_events(turn);
        }
        link.closing = true;
        turn.core.client_refused(before, why);
        if encoding == Encoding::Program {
            let linger_ms = turn.core.settings.config.client.pong_timeout_ms;
            turn.cx.set_deadline(conn, Some(turn.cx.now_ms() + linger_ms));
            return self.end_program_conn(conn, u32::from(why.code), &why.reason);
        }
        let mut bytes = Vec::with_capacity(128);
        let push = dunlin_hub::Outgoing::Disconnect {
            code: u32::from(why.code),
            reason: &why.reason,
            reconnect: why.reconnects(),
        };
        turn.core.encoder.push(encoding, &push, &mut bytes);
        let _ = turn.cx.write(conn, &bytes);
        turn.cx.close(conn);
    }
}

impl Sessions {
    /// The options of a subscription that a client requests.
    ///
    /// # Errors
    /// When the channel does not offer an option, or the filter is malformed.
    pub(super) fn client_side(
        &self,
        core: &Core<'_>,
        request: &SubscribeRequest<'_>,
    ) -> Result<SubscribeOptions, Error<'static>> {
        let filter = match &request.tags_filter {
            None => None,
            Some(_) if !core.namespace_of(&request.channel)?.rules.allow_tags_filter => {
                let why = "subscribe.tf: allow_tags_filter is not set for this channel";
                return Err(ErrorCode::NotAvailable.with_reason(why));
            }
            Some(node) => Some(node.to_filter().map_err(|why| {
                ErrorCode::BadRequest.with_reason(format_args!("subscribe.tf: {why}"))
            })?),
        };
        let reject_unrecovered = request.rejects_unrecovered();
        let delta = request.takes_delta();
        Ok(SubscribeOptions { reject_unrecovered, delta, filter, ..subscribe(Some(request)) })
    }
}

impl Core<'_> {
    /// Builds the publication of a client. `publish` has its options, and data that replaces that of the request.
    pub(super) fn publication_of(
        &self,
        session: SessionId,
        request: &PublishRequest<'_>,
        mut publish: NewPublication,
    ) -> NewPublication {
        // ProtocolState::admit has checked that there is data.
        if publish.data.is_empty()
            && let Some(data) = request.data.clone()
        {
            publish.format = data.format();
            publish.data = data.into_bytes();
        }
        publish.info = self.hub.client_info(session, Some(&request.channel));
        publish.owner = self.hub.owner(session);
        if let Some(span) = self.state.telemetry.begin_within(publish.trace) {
            let transport = self.hub.session(session).and_then(|view| Encoding::of(view.encoding));
            let attributes = vec![
                ("messaging.destination.name", tenant::bare(&request.channel).into()),
                ("dunlin.transport", transport.map_or("", Encoding::transport).into()),
            ];
            publish.trace = Some(span.context);
            self.state.telemetry.end(span, (SpanKind::Server, "publish"), false, attributes);
        }
        publish
    }

    /// Answers a command of a session with an error.
    pub(super) fn reply_refusal<'a>(
        &mut self,
        session: SessionId,
        about: impl Into<About<'a>>,
        error: &Error<'_>,
    ) {
        let about = about.into();
        self.command_of_session_refused(session, about, error);
        self.reply(session, about.id, &Reply::Error(error));
    }

    /// Appends a reply to the session's outbox.
    pub(super) fn reply(&mut self, session: SessionId, id: u32, reply: &Reply<'_>) {
        let Some(view) = self.hub.session(session) else { return };
        let Some(encoding) = Encoding::of(view.encoding) else { return };
        let encoder = &mut self.encoder;
        let mut bytes = 0;
        if encoding == Encoding::Program {
            let (conn, mut text) = (ConnId::from_u64(view.tag), Vec::new());
            encoder.reply(encoding, id, reply, &mut text);
            bytes = text.len();
            self.program_answers.push_back((conn, id, text));
            return self.charge_reply(session, bytes);
        }
        self.hub.push(session, |out| {
            let before = out.len();
            encoder.reply(encoding, id, reply, out);
            bytes = out.len() - before;
        });
        self.charge_reply(session, bytes);
    }
}

impl Turn<'_, '_> {
    /// Answers a command with an error, on a connection that may not have a session yet.
    pub(super) fn reply_error<'a>(
        &mut self,
        conn: ConnId,
        about: impl Into<About<'a>>,
        error: &Error<'_>,
    ) {
        let (about, Some(&mut link)) = (about.into(), self.cx.data(conn)) else { return };
        self.core.command_refused(link, about, error);
        let Role::Client(encoding) = link.role else { return };
        let id = about.id;
        if let Some(session) = link.session() {
            return self.core.reply(session, id, &Reply::Error(error));
        }
        let mut bytes = Vec::with_capacity(128);
        self.core.encoder.reply(encoding, id, &Reply::Error(error), &mut bytes);
        if encoding == Encoding::Program {
            return self.core.program_answers.push_back((conn, id, bytes));
        }
        // The write fails if the client does not read; its deadline is running.
        let _ = self.cx.write(conn, &bytes);
    }
}

/// Converts the requested options of a subscription for the hub. [`Claim::entitle`](super::permission::Claim::entitle) decides
/// which of them are granted.
pub(super) fn subscribe(request: Option<&SubscribeRequest<'_>>) -> SubscribeOptions {
    let Some(request) = request else { return SubscribeOptions::default() };
    SubscribeOptions {
        recover: request.since(),
        positioned: request.positioned,
        recoverable: request.recoverable,
        join_leave: request.join_leave,
        ..SubscribeOptions::default()
    }
}

/// Whether a remote procedure is the server's own, which nobody else is asked about.
fn is_own_rpc(request: &RpcRequest<'_>) -> bool {
    AckRequest::is_one(request) || RemoteSend::is_one(request)
}
