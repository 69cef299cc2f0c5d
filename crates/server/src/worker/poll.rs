//! Long-poll: a session that lives for one request.
//!
//! It subscribes with the cursor's positions, so that what was missed and what comes next meet without a
//! hole, and is closed with the answer. Where the cursor is too far back for one recovery, the answer is a
//! page of history instead, and the next poll goes on from its end.

use std::sync::Arc;

use dunlin_hub::{Event, HistoryFilter, NewSession, SessionId, StreamPosition, SubscribeOptions};
use dunlin_net::{ConnId, Context};
use dunlin_protocol::Encoding;
use dunlin_protocol::long_poll::{
    Gap, PollLimits, PollRequest, ResponseChannel, Since, write_publication_item, write_response,
};

use super::Worker;
use super::link::{Link, NO_PARAMS, Role};
use super::pending::Pending;
use super::reply::Answer;
use crate::metrics::Metric;

/// A poll that waits for its answer.
pub(super) struct Poll {
    conn: ConnId,
    channels: Vec<PollChannel>,
    /// What was missed before the poll came, in the words of the answer.
    missed: Vec<u8>,
    /// Subscriptions and pages not there yet.
    waiting: usize,
    /// Part of the history is answered; the outbox, which is further on, is not.
    paged: bool,
    timeout_ms: u32,
    /// The page that asks, which has to be permitted to read the answer.
    origin: Option<Box<str>>,
}

struct PollChannel {
    name: Arc<str>,
    /// What the cursor said.
    since: Option<StreamPosition>,
    /// Where the client will stand after the answer.
    position: StreamPosition,
    gap: Option<Gap>,
}

impl Worker<'_> {
    /// Begins a poll. `credentials` is the token of the Authorization header, if there is one.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        query: &str,
        credentials: Option<&str>,
        origin: Option<&str>,
    ) {
        self.count(Metric::Polls);
        let config = &self.settings.config;
        let limits = PollLimits {
            channels_max: config.limits.subscriptions_per_client_max as usize,
            channel_bytes_max: config.limits.channel_bytes_max,
            timeout_ms_default: config.client.long_poll.timeout_ms as u32,
            timeout_ms_max: config.client.long_poll.timeout_ms_max as u32,
        };
        let request = match PollRequest::parse(query, &limits) {
            Ok(request) => request,
            Err(malformed) => {
                return self.answer_to(cx, conn, origin, Answer::error(400, malformed));
            }
        };
        let token =
            if request.token.is_empty() { credentials.unwrap_or("") } else { &request.token };
        let user = match self.identify(token) {
            Ok(identity) => identity.user,
            Err(refusal) => {
                let answer = Answer::error(401, refusal_text(&refusal));
                return self.answer_to(cx, conn, origin, answer);
            }
        };
        let mut wishes = Vec::with_capacity(request.channels.len());
        for channel in &request.channels {
            match self.may_subscribe(&user, channel) {
                Ok(options) => wishes.push((Arc::<str>::from(&**channel), options)),
                Err(error) => {
                    let status = if error.code == 102 { 404 } else { 403 };
                    let why = format!("channel {channel:?}: {}", error.message);
                    return self.answer_to(cx, conn, origin, Answer::error(status, why));
                }
            }
        }
        let now = self.now(cx);
        let opened = self.hub.open_session(
            now,
            NewSession {
                tag: conn.to_u64(),
                encoding: Encoding::Poll.into(),
                user: &user,
                conn_info: None,
                outbox_bytes_max: u32::try_from(self.settings.config.limits.outbox_bytes_max)
                    .unwrap_or(u32::MAX),
                poll: true,
                held: true,
            },
        );
        let Ok(session) = opened else {
            let answer = Answer::error(503, "too many sessions; try again later");
            return self.answer_to(cx, conn, origin, answer);
        };
        if let Some(link) = cx.data(conn) {
            link.role = Role::Poll;
            link.set_session(Some(session), NO_PARAMS);
        }
        let since =
            |channel: &str| match request.cursor.as_ref().map(|cursor| cursor.since(channel)) {
                None | Some(Since::Now) => None,
                Some(Since::Beginning) => Some(StreamPosition::default()),
                Some(Since::Position(position)) => Some(position),
            };
        let channels = wishes.iter().map(|(name, _)| PollChannel {
            name: Arc::clone(name),
            since: since(name),
            position: since(name).unwrap_or_default(),
            gap: None,
        });
        self.polls.insert(
            session,
            Poll {
                conn,
                channels: channels.collect(),
                missed: Vec::new(),
                waiting: wishes.len(),
                paged: false,
                timeout_ms: request.timeout_ms,
                origin: origin.map(Into::into),
            },
        );
        for (name, options) in wishes {
            let subscribe = SubscribeOptions {
                recover: since(&name),
                positioned: true,
                recoverable: true,
                server_side: true,
                ..SubscribeOptions::default()
            };
            let Some(token) = self.token(cx, Pending::Poll { session, channel: Arc::clone(&name) })
            else {
                return self.poll_failed(cx, session, dunlin_hub::Error::Overloaded);
            };
            self.hub.handle_subscribe(now, token, session, &name, &options, subscribe);
        }
        self.drain_events(cx);
    }

    /// A subscription or a page of history of a poll.
    pub(super) fn poll_progress(
        &mut self,
        cx: &mut Context<Link>,
        session: SessionId,
        channel: &Arc<str>,
        event: Event,
    ) {
        let now = self.now(cx);
        let Some(poll) = self.polls.get_mut(&session) else { return };
        let Some(entry) = poll.channels.iter_mut().find(|entry| entry.name == *channel) else {
            return;
        };
        match event {
            Event::Subscribed { result: Ok(subscribed), .. } => {
                let expected = entry.since.is_some() && !subscribed.recovered;
                if expected && !subscribed.position.epoch.is_none() {
                    let since = entry.since.filter(|since| {
                        since.epoch == subscribed.position.epoch || since.epoch.is_none()
                    });
                    let filter = HistoryFilter {
                        since,
                        limit: Some(self.settings.config.limits.recovery_messages_max),
                        reverse: false,
                    };
                    let options = self.settings.namespace(channel).map(|n| Arc::clone(&n.options));
                    let pending = Pending::Poll { session, channel: Arc::clone(channel) };
                    if let (Some(options), Some(token)) = (options, self.token(cx, pending)) {
                        return self.hub.handle_history(now, token, channel, &options, filter);
                    }
                    return self.poll_failed(cx, session, dunlin_hub::Error::Overloaded);
                }
                if expected {
                    let since = entry.since.unwrap_or_default();
                    // A cursor of a channel that has never kept history has nothing to miss but by name.
                    entry.gap = Some(Gap::between(since, subscribed.position));
                }
                entry.position = subscribed.position;
                for publication in &subscribed.publications {
                    write_publication_item(&mut poll.missed, channel, publication);
                }
            }
            Event::History { result: Ok(history), .. } => {
                poll.paged = true;
                let since = entry.since.unwrap_or_default();
                let same_stream = since.epoch.is_none() || since.epoch == history.position.epoch;
                let follows = history
                    .publications
                    .first()
                    .is_some_and(|first| first.offset == since.offset + 1);
                let whole = since.epoch.is_none() && since.offset == 0;
                if !(same_stream && (follows || whole)) {
                    entry.gap = Some(Gap::between(since, history.position));
                }
                entry.position = history.position;
                if let Some(last) = history.publications.last() {
                    entry.position.offset = last.offset;
                }
                for publication in &history.publications {
                    write_publication_item(&mut poll.missed, channel, publication);
                }
            }
            Event::Subscribed { result: Err(error), .. }
            | Event::History { result: Err(error), .. } => {
                return self.poll_failed(cx, session, error);
            }
            _ => return,
        }
        poll.waiting -= 1;
        if poll.waiting > 0 {
            return;
        }
        let told = !poll.missed.is_empty() || poll.channels.iter().any(|entry| entry.gap.is_some());
        let (conn, timeout_ms) = (poll.conn, poll.timeout_ms);
        if told || timeout_ms == 0 {
            return self.answer_poll(cx, session);
        }
        self.hub.release(session, |_| {});
        cx.set_deadline(conn, Some(cx.now_ms() + u64::from(timeout_ms)));
    }

    /// Something has been published.
    pub(super) fn poll_woken(&mut self, cx: &mut Context<Link>, session: SessionId) {
        self.answer_poll(cx, session);
    }

    /// Answers with what there is, which may be nothing.
    pub(super) fn answer_poll(&mut self, cx: &mut Context<Link>, session: SessionId) {
        let Some(mut poll) = self.polls.remove(&session) else { return };
        let mut items = std::mem::take(&mut poll.missed);
        if !poll.paged {
            let mut slices = [std::io::IoSlice::new(&[]); 32];
            loop {
                let pieces = self.hub.outbox(session, &mut slices);
                let taken: usize = slices[..pieces].iter().map(|slice| slice.len()).sum();
                slices[..pieces].iter().for_each(|slice| items.extend_from_slice(slice));
                if taken == 0 {
                    break;
                }
                slices = [std::io::IoSlice::new(&[]); 32];
                self.hub.advance(session, taken);
            }
            for entry in &mut poll.channels {
                if let Some(position) = self.hub.position(&entry.name) {
                    entry.position = position;
                }
            }
        }
        let channels: Vec<ResponseChannel<'_>> = poll
            .channels
            .iter()
            .map(|entry| ResponseChannel {
                channel: &entry.name,
                position: entry.position,
                gap: entry.gap,
            })
            .collect();
        let mut body = Vec::new();
        write_response(&mut body, &items, &channels);
        self.end_poll(cx, session, poll.conn);
        self.answer_to(cx, poll.conn, poll.origin.as_deref(), Answer::json(200, body));
    }

    /// The hub has ended a poll's session, since more came in one turn than its outbox holds: the client is
    /// answered nothing and where it stood, and finds everything in the history.
    pub(super) fn poll_overflowed(&mut self, cx: &mut Context<Link>, session: SessionId) {
        let Some(mut poll) = self.polls.remove(&session) else { return };
        poll.paged = true;
        poll.missed.clear();
        for entry in &mut poll.channels {
            if let Some(since) = entry.since {
                entry.position = since;
            }
        }
        self.polls.insert(session, poll);
        self.answer_poll(cx, session);
    }

    /// Forgets a poll whose client has gone.
    pub(super) fn poll_gone(&mut self, session: SessionId) {
        self.polls.remove(&session);
    }

    fn poll_failed(
        &mut self,
        cx: &mut Context<Link>,
        session: SessionId,
        error: dunlin_hub::Error,
    ) {
        let Some(poll) = self.polls.remove(&session) else { return };
        self.end_poll(cx, session, poll.conn);
        let status = if error.is_temporary() { 503 } else { 400 };
        self.answer_to(cx, poll.conn, poll.origin.as_deref(), Answer::error(status, error));
    }

    fn end_poll(&mut self, cx: &mut Context<Link>, session: SessionId, conn: ConnId) {
        let now = self.now(cx);
        self.hub.close_session(now, session);
        cx.set_deadline(conn, None);
        if let Some(link) = cx.data(conn) {
            link.role = Role::Http;
            link.set_session(None, NO_PARAMS);
        }
    }
}

fn refusal_text(refusal: &dunlin_protocol::centrifuge::CommandError) -> String {
    use dunlin_protocol::centrifuge::CommandError;
    match refusal {
        CommandError::Reply(error) => error.message.clone().into_owned(),
        CommandError::Disconnect(disconnect) => disconnect.reason.clone().into_owned(),
    }
}
