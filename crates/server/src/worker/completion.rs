//! Events of the hub: outcomes of operations, and sessions that are to end.

use std::sync::Arc;

use dunlin_hub::code::UNSUBSCRIBE_INSUFFICIENT_STATE;
use dunlin_hub::{Event, SessionId};
use dunlin_net::{ConnId, Context};
use dunlin_protocol::centrifuge::{Disconnect, DisconnectCode, Reply, SubscribeResult};

use super::Worker;
use super::link::Link;
use super::parts::Pending;
use crate::api::{ApiError, CommandOutcome};
use crate::limits::budget::Work;
use crate::metrics::Metric;

impl Worker<'_> {
    /// Lets the hub work, and handles its events. Called after every group of operations, so that a reply
    /// is in its session's outbox before anything that was published later.
    pub(super) fn drain_events(&mut self, cx: &mut Context<Link>) {
        loop {
            let event = self.hub.poll_event();
            // What led to an event is emitted before it.
            self.emit_channel_events();
            let Some(event) = event else {
                // Every end of a subscription is known: a poll's positions are those of its outbox.
                let Some(session) = self.polls.take_due() else { return };
                self.answer_poll(cx, session);
                continue;
            };
            match event {
                Event::Disconnect { session, tag, code, reason, by_server_api } => {
                    if by_server_api {
                        self.bar(session, code);
                    }
                    if let Some(user) = self.ended_user_to_report(session) {
                        self.emit_disconnect(session, user, code, &reason);
                    }
                    self.session_ended(cx, session, tag);
                }
                Event::Refreshed { session, tag, expire_at_s } => {
                    self.session_refreshed(cx, session, ConnId::from_u64(tag), expire_at_s);
                }
                Event::Expires { session, channel, expire_at_s } => {
                    self.renew_grant(cx, session, &channel, Some(expire_at_s));
                }
                // The hub has sent the client a push.
                Event::Unsubscribed { .. } => self.unsubscribed(cx, event),
                event => self.complete(cx, event),
            }
        }
    }

    /// The server has ended a subscription, and the hub has sent the client a push. The client makes it again and recovers,
    /// unless its transport or the kind of the subscription does not let it: it is then made to come back.
    fn unsubscribed(&mut self, cx: &mut Context<Link>, event: Event) {
        let Event::Unsubscribed { session, ref channel, code, server_side, .. } = event else {
            return;
        };
        self.grants.remove(session, channel);
        if self.polls.contains(session) {
            let channel = Arc::clone(channel);
            return self.poll_progress(cx, session, &channel, event);
        }
        self.pusher_unsubscribed(cx, session, code);
        if server_side && code == UNSUBSCRIBE_INSUFFICIENT_STATE {
            let (why, now) = (Disconnect::from(DisconnectCode::InsufficientState), self.now(cx));
            self.hub.disconnect_session(now, session, u32::from(why.code), &why.reason);
        }
    }

    /// Ends the operation behind a token.
    fn complete(&mut self, cx: &mut Context<Link>, event: Event) {
        let Some(token) = token_of(&event) else { return };
        // The request may have timed out.
        let Some(pending) = self.pending.take(token) else { return };
        if let Some((pending, event)) = self.large_answers.admit(pending, event) {
            self.answer_pending(cx, pending, event);
        }
    }

    /// Makes the large answers that have waited for this turn.
    pub(super) fn make_large_answers(&mut self, cx: &mut Context<Link>) {
        self.large_answers.begin_turn(self.broadcasts_are_due());
        while let Some((pending, event)) = self.large_answers.next() {
            self.answer_pending(cx, pending, event);
        }
        self.drain_events(cx);
    }

    pub(super) fn answer_pending(
        &mut self,
        cx: &mut Context<Link>,
        pending: Pending,
        event: Event,
    ) {
        match (pending, event) {
            (Pending::Command { session, id }, event) => self.complete_command(session, id, event),
            (Pending::ChargedCommand { session, id, channel }, event) => {
                let before = self.hub.outbox_bytes(session);
                self.complete_command(session, id, event);
                let bytes = self.hub.outbox_bytes(session).saturating_sub(before) as u64;
                self.charge_namespace(&channel, Work { bytes, ..Work::default() });
            }
            (Pending::Pusher { session }, event) => self.pusher_answered(session, event),
            (Pending::PusherSignIn { session, user_data }, event) => {
                self.sign_in_answered(cx, session, &user_data, &event);
            }
            (Pending::Connect { session }, Event::Subscribed { channel, result, .. }) => {
                self.connect_subscribed(cx, session, channel, result);
            }
            (Pending::Poll { session, channel }, event) => {
                self.poll_progress(cx, session, &channel, event);
            }
            (Pending::Api(place), event) => {
                self.api_answered(cx, place, outcome_of(event).map_err(ApiError::from));
            }
            (Pending::Connect { .. } | Pending::MemberList(_), _) => {
                debug_assert!(false, "only another answer is asked for with such a token");
            }
        }
    }

    fn complete_command(&mut self, session: SessionId, id: u32, event: Event) {
        let error = match event {
            Event::Subscribed { channel, result: Ok(subscribed), .. } => {
                self.charge_recovery(&channel, &subscribed.publications);
                let ttl_s = self.grants.ttl_s(session, &channel, self.clock.now());
                let data = self.grants.take_data(session, &channel);
                let result =
                    SubscribeResult { subscribed: &subscribed, ttl_s, data: data.as_deref() };
                return self.reply(session, id, &Reply::Subscribe(&result));
            }
            Event::Subscribed { result: Err(dunlin_hub::Error::Cancelled), .. } => {
                // Ended by the client before it was made: to the client it began and ended.
                let ended = dunlin_hub::Subscribed::default();
                let result = SubscribeResult::from(&ended);
                return self.reply(session, id, &Reply::Subscribe(&result));
            }
            Event::Published { result: Ok(_), .. } => {
                return self.reply(session, id, &Reply::Publish);
            }
            Event::History { result: Ok(history), .. } => {
                return self.reply(session, id, &Reply::History(&history));
            }
            Event::Presence { result: Ok(present), .. } => {
                return self.reply(session, id, &Reply::Presence(&present));
            }
            Event::PresenceStats { result: Ok(stats), .. } => {
                return self.reply(session, id, &Reply::PresenceStats(stats));
            }
            Event::Subscribed { channel, result: Err(error), .. } => {
                // Of one that was made before, the grant stays.
                if error != dunlin_hub::Error::AlreadySubscribed {
                    self.grants.remove(session, &channel);
                }
                error
            }
            Event::Published { result: Err(error), .. }
            | Event::History { result: Err(error), .. }
            | Event::Presence { result: Err(error), .. }
            | Event::PresenceStats { result: Err(error), .. } => error,
            _ => return,
        };
        self.count(Metric::CommandErrors);
        self.reply(session, id, &Reply::Error(&error.into()));
    }

    /// The hub wants a session ended, and has put the disconnect into its outbox.
    fn session_ended(&mut self, cx: &mut Context<Link>, session: SessionId, tag: u64) {
        self.count(Metric::Disconnects);
        if self.polls.contains(session) {
            return self.poll_overflowed(cx, session);
        }
        self.connects.forget(session);
        // All that was held back until the connect reply may go now, and the disconnect after it.
        self.hub.release(session, |_| {});
        let conn = ConnId::from_u64(tag);
        let Some(link) = cx.data(conn) else { return };
        if link.session() != Some(session) {
            return;
        }
        link.closing = true;
        let timeout_ms = self.settings.config.client.pong_timeout_ms;
        cx.set_deadline(conn, Some(cx.now_ms() + timeout_ms));
        self.flush_session(cx, session, conn);
    }
}

fn token_of(event: &Event) -> Option<u64> {
    Some(match event {
        Event::Subscribed { token, .. }
        | Event::Published { token, .. }
        | Event::History { token, .. }
        | Event::HistoryRemoved { token, .. }
        | Event::Presence { token, .. }
        | Event::PresenceStats { token, .. }
        | Event::Channels { token, .. }
        | Event::Info { token, .. }
        | Event::Affected { token, .. }
        | Event::Sent { token, .. } => *token,
        _ => return None,
    })
}

fn outcome_of(event: Event) -> Result<CommandOutcome, dunlin_hub::Error> {
    Ok(match event {
        Event::Published { result, .. } => CommandOutcome::Published(result?),
        Event::History { result, .. } => CommandOutcome::History(result?),
        Event::HistoryRemoved { result, .. } => {
            result?;
            CommandOutcome::Done
        }
        Event::Presence { result, .. } => CommandOutcome::Presence(result?),
        Event::PresenceStats { result, .. } => CommandOutcome::PresenceStats(result?),
        Event::Channels { result, .. } => CommandOutcome::Channels(result?),
        Event::Info { result, .. } => CommandOutcome::Info(result?),
        Event::Affected { result, .. } => {
            result?;
            CommandOutcome::Done
        }
        Event::Sent { result, .. } => CommandOutcome::Sent(result?),
        Event::Subscribed { result, .. } => {
            result?;
            CommandOutcome::Done
        }
        _ => CommandOutcome::Done,
    })
}
