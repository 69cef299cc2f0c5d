//! Events of the hub: outcomes of operations, and sessions that are to end.

use std::sync::Arc;

use dunlin_hub::code::UNSUBSCRIBE_INSUFFICIENT_STATE;
use dunlin_hub::{Event, SessionId};
use dunlin_net::ConnId;
use dunlin_protocol::centrifuge::{Disconnect, DisconnectCode, Reply, SubscribeResult};

use super::acks::with_cursor;
use super::clients::Clients;
use super::parts::{DeadLetter, Pending};
use super::turn::{Core, Turn};
use crate::api::{ApiError, CommandOutcome};
use crate::limits::budget::Work;

impl Clients {
    /// Lets the hub work, and handles its events. Called after every group of operations, so that a reply
    /// is in its session's outbox before anything that was published later.
    pub(super) fn drain_events(&mut self, turn: &mut Turn<'_, '_>) {
        loop {
            let event = turn.core.hub.poll_event();
            // What led to an event is emitted before it.
            turn.core.emit_channel_events();
            let Some(event) = event else {
                // Every end of a subscription is known: a poll's positions are those of its outbox.
                let Some(session) = self.polls.take_due() else { return };
                self.answer_poll(turn, session);
                continue;
            };
            match event {
                Event::Disconnect { session, tag, code, reason, by_server_api } => {
                    if by_server_api {
                        self.sessions.bar(turn.core, session, code);
                    }
                    let link = turn.cx.data(ConnId::from_u64(tag)).copied();
                    turn.core.client_disconnected((session, link), (code, &reason));
                    if let Some(user) = turn.core.ended_user_to_report(session) {
                        turn.core.emit_disconnect(session, user, code, &reason);
                    }
                    self.session_ended(turn, session, tag);
                    self.end_program_conn(ConnId::from_u64(tag), code, &reason);
                }
                Event::Refreshed { session, tag, expire_at_s } => {
                    self.sessions.session_refreshed(
                        turn,
                        session,
                        ConnId::from_u64(tag),
                        expire_at_s,
                    );
                }
                Event::Expires { session, channel, expire_at_s } => {
                    self.sessions.renew_grant(turn, session, &channel, Some(expire_at_s));
                }
                Event::Undeliverable { channel, owner, position, deliveries } => {
                    let letter = DeadLetter { channel, owner, position, deliveries };
                    self.undeliverable(turn, letter);
                }
                // The hub has sent the client a push.
                Event::Unsubscribed { .. } => self.unsubscribed(turn, event),
                event => self.complete(turn, event),
            }
        }
    }

    /// The server has ended a subscription, and the hub has sent the client a push. The client makes it again and recovers,
    /// unless its transport or the kind of the subscription does not let it: it is then made to come back.
    fn unsubscribed(&mut self, turn: &mut Turn<'_, '_>, event: Event) {
        let Event::Unsubscribed { session, ref channel, code, server_side, .. } = event else {
            return;
        };
        self.sessions.grants.remove(session, channel);
        turn.core.unsubscribed(session, channel, code);
        if self.polls.contains(session) {
            let channel = Arc::clone(channel);
            return self.poll_progress(turn, session, &channel, event);
        }
        self.pusher_unsubscribed(turn, session, code);
        if server_side && code == UNSUBSCRIBE_INSUFFICIENT_STATE {
            let (why, now) = (Disconnect::from(DisconnectCode::InsufficientState), turn.now());
            turn.core.hub.disconnect_session(now, session, u32::from(why.code), &why.reason);
        }
    }

    /// Ends the operation behind a token.
    fn complete(&mut self, turn: &mut Turn<'_, '_>, event: Event) {
        let Some(token) = token_of(&event) else { return };
        // The request may have timed out.
        let Some(pending) = turn.core.pending.take(token) else { return };
        if let Some((pending, event)) = self.large_answers.admit(pending, event) {
            self.answer_pending(turn, pending, event);
        }
    }

    /// Makes the large answers that have waited for this turn.
    pub(super) fn make_large_answers(&mut self, turn: &mut Turn<'_, '_>) {
        self.large_answers.begin_turn(turn.core.broadcasts_are_due());
        while let Some((pending, event)) = self.large_answers.next() {
            self.answer_pending(turn, pending, event);
        }
        self.drain_events(turn);
    }

    pub(super) fn answer_pending(
        &mut self,
        turn: &mut Turn<'_, '_>,
        pending: Pending,
        event: Event,
    ) {
        match (pending, event) {
            (Pending::Command { session, id }, event) => {
                self.complete_command(turn.core, session, id, event);
            }
            (Pending::ChargedCommand { session, id, channel }, event) => {
                let before = turn.core.hub.outbox_bytes(session);
                self.complete_command(turn.core, session, id, event);
                let bytes = turn.core.hub.outbox_bytes(session).saturating_sub(before) as u64;
                turn.core.charge_namespace(&channel, Work { bytes, ..Work::default() });
            }
            (Pending::Ack(ack), Event::Cursor { result, .. }) => {
                self.acknowledged(turn, &ack, result);
            }
            (Pending::DeadLetter(letter), event) => {
                self.dead_letter_answered(turn, *letter, event);
            }
            (Pending::Pusher { session }, event) => self.pusher_answered(turn.core, session, event),
            (Pending::PusherSignIn { session, user_data }, event) => {
                self.sign_in_answered(turn, session, &user_data, &event);
            }
            (Pending::Connect { session }, Event::Subscribed { channel, result, .. }) => {
                self.connect_subscribed(turn, session, channel, result);
            }
            (Pending::Poll { session, channel }, event) => {
                self.poll_progress(turn, session, &channel, event);
            }
            (Pending::Remote(id), event) => turn.core.remote_published(*id, &event),
            (Pending::Api(place), event) => {
                turn.core.api_answers.push_back((place, outcome_of(event).map_err(ApiError::from)));
            }
            (
                Pending::Connect { .. }
                | Pending::MemberList(_)
                | Pending::Ack(_)
                | Pending::ProgramStore { .. },
                _,
            ) => {
                debug_assert!(false, "only another answer is asked for with such a token");
            }
        }
    }

    fn complete_command(&mut self, core: &mut Core<'_>, session: SessionId, id: u32, event: Event) {
        let method = method_of(&event);
        let error = match event {
            Event::Subscribed { channel, result: Ok(subscribed), .. } => {
                core.charge_recovery(&channel, &subscribed.publications);
                let ttl_s = self.sessions.grants.ttl_s(session, &channel, core.clock.now());
                let data = self.sessions.grants.take_data(session, &channel);
                let data = with_cursor(data, &subscribed);
                let result =
                    SubscribeResult { subscribed: &subscribed, ttl_s, data: data.as_deref() };
                return core.reply(session, id, &Reply::Subscribe(&result));
            }
            Event::Subscribed { result: Err(dunlin_hub::Error::Cancelled), .. } => {
                // Ended by the client before it was made: to the client it began and ended.
                let ended = dunlin_hub::Subscribed::default();
                let result = SubscribeResult::from(&ended);
                return core.reply(session, id, &Reply::Subscribe(&result));
            }
            Event::Published { result: Ok(_), .. } => {
                return core.reply(session, id, &Reply::Publish);
            }
            Event::History { result: Ok(history), .. } => {
                return core.reply(session, id, &Reply::History(&history));
            }
            Event::Presence { result: Ok(present), .. } => {
                return core.reply(session, id, &Reply::Presence(&present));
            }
            Event::PresenceStats { result: Ok(stats), .. } => {
                return core.reply(session, id, &Reply::PresenceStats(stats));
            }
            Event::Subscribed { channel, result: Err(error), .. } => {
                // Of one that was made before, the grant stays.
                if error != dunlin_hub::Error::AlreadySubscribed {
                    self.sessions.grants.remove(session, &channel);
                }
                error
            }
            Event::Published { result: Err(error), .. }
            | Event::History { result: Err(error), .. }
            | Event::Presence { result: Err(error), .. }
            | Event::PresenceStats { result: Err(error), .. } => error,
            _ => return,
        };
        core.reply_refusal(session, (id, method), &error.into());
    }

    /// The hub wants a session ended, and has put the disconnect into its outbox.
    fn session_ended(&mut self, turn: &mut Turn<'_, '_>, session: SessionId, tag: u64) {
        if self.polls.contains(session) {
            return self.poll_overflowed(turn, session);
        }
        self.connects.forget(session);
        // All that was held back until the connect reply may go now, and the disconnect after it.
        turn.core.hub.release(session, |_| {});
        let conn = ConnId::from_u64(tag);
        let Some(link) = turn.cx.data(conn) else { return };
        if link.session() != Some(session) {
            return;
        }
        link.closing = true;
        let timeout_ms = turn.core.settings.config.client.pong_timeout_ms;
        turn.cx.set_deadline(conn, Some(turn.cx.now_ms() + timeout_ms));
        self.flush_session(turn, session, conn);
    }
}

/// Returns the command of a client that has an event for its answer.
fn method_of(event: &Event) -> &'static str {
    match event {
        Event::Subscribed { .. } => "subscribe",
        Event::Published { .. } => "publish",
        Event::History { .. } => "history",
        Event::Presence { .. } => "presence",
        Event::PresenceStats { .. } => "presence_stats",
        _ => "",
    }
}

fn token_of(event: &Event) -> Option<u64> {
    Some(match event {
        Event::Subscribed { token, .. }
        | Event::Published { token, .. }
        | Event::History { token, .. }
        | Event::HistoryRemoved { token, .. }
        | Event::Cursor { token, .. }
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
