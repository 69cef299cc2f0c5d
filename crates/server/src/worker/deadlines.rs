//! Which clients are still there: pings, pongs, and deadlines of everything that a client may delay.
//!
//! A connection has one deadline in the wheel, and what it means follows from where the connection stands:
//! before the connect, that it has not come; after a ping, that the pong has not; otherwise that the next
//! ping is due, or the token has run out.

use dunlin_hub::SessionId;
use dunlin_net::{ConnId, Handler as _};
use dunlin_protocol::centrifuge::DisconnectCode;
use dunlin_protocol::{Encoding, ping};

use super::clients::Clients;
use super::link::Role;
use super::parts::{SessionParams, first_ping_ms};
use super::sessions::Sessions;
use super::turn::Turn;
use crate::metrics::Metric;

impl Turn<'_, '_> {
    /// A transport is open; the connect has to follow.
    pub(super) fn await_connect(&mut self, conn: ConnId) {
        let timeout = self.core.settings.config.client.connect_timeout_ms;
        self.cx.set_deadline(conn, Some(self.cx.now_ms() + timeout));
    }
}

impl Clients {
    /// What a connection was to have done by now it has not.
    pub(super) fn handle_deadline(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        let Some(&mut link) = turn.cx.data(conn) else { return };
        if link.closing {
            // The disconnect was not read in time.
            return turn.cx.abort(conn);
        }
        match link.role {
            Role::Http | Role::Push => turn.cx.close(conn),
            // It has none.
            Role::Engine => {}
            Role::Backend => {
                self.deciders.with_backends(|client| client.on_deadline(turn.cx, conn));
            }
            Role::Poll => {
                if let Some(session) = link.session() {
                    self.answer_poll(turn, session);
                }
            }
            Role::Client(encoding) => {
                let Some(session) = link.session() else {
                    turn.core.count(Metric::DeadlinesMissed);
                    if self.backlogs.contains(conn) {
                        return self.key_timed_out(turn, conn);
                    }
                    return self.disconnect(turn, conn, &DisconnectCode::Stale.into());
                };
                let grace_ms = self.sessions.grace_ms(turn.core, session);
                // The clock stands where the last turn has left it.
                let now = turn.now();
                if self.sessions.heartbeat.has_expired(session, now, grace_ms) {
                    if self.ask_refresh(turn, conn, session) {
                        return self.sessions.schedule_expiry(turn, conn, session);
                    }
                    return self.disconnect(turn, conn, &DisconnectCode::Expired.into());
                }
                if let Some(at_ms) = self.sessions.heartbeat.ends_at_ms(session, now, grace_ms) {
                    return turn.cx.set_deadline(conn, Some(at_ms));
                }
                if encoding == Encoding::Program {
                    // Whether its client is there is the program's business.
                    return self.sessions.schedule_ping(turn, conn);
                }
                if link.protocol_state.awaits_pong() && self.backlogs.contains(conn) {
                    // Its pong may be among what is not read of it yet.
                    let timeout = self.sessions.params_of(turn, session).pong_timeout_ms;
                    return self.sessions.schedule(turn, conn, session, timeout);
                }
                if link.protocol_state.awaits_pong() {
                    turn.core.count(Metric::DeadlinesMissed);
                    return self.disconnect(turn, conn, &DisconnectCode::NoPong.into());
                }
                turn.core.count(Metric::Pings);
                turn.core.hub.push(session, |out| out.extend_from_slice(ping(encoding)));
                if encoding.is_bidirectional() {
                    if let Some(link) = turn.cx.data(conn) {
                        link.protocol_state.ping_sent();
                    }
                    let timeout = self.sessions.params_of(turn, session).pong_timeout_ms;
                    self.sessions.schedule(turn, conn, session, timeout);
                } else {
                    self.sessions.schedule_ping(turn, conn);
                }
            }
        }
    }
}

impl Sessions {
    /// A session has begun.
    pub(super) fn schedule_first_ping(&mut self, turn: &mut Turn<'_, '_>, session: SessionId) {
        let Some(view) = turn.core.hub.session(session) else { return };
        let conn = ConnId::from_u64(view.tag);
        let interval_ms = self.params_of(turn, session).ping_interval_ms;
        let first_ms = first_ping_ms(interval_ms, &mut turn.core.jitter);
        // Not with others: how many there will be is not known yet.
        self.schedule(turn, conn, session, first_ms);
    }

    /// Sets the deadline to the next ping, or to the end of the token if that comes first.
    pub(super) fn schedule_ping(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        let Some(session) = turn.cx.data(conn).and_then(|link| link.session()) else { return };
        let interval_ms = self.params_of(turn, session).ping_interval_ms;
        self.schedule_with_others(turn, conn, session, interval_ms, interval_ms);
    }

    /// What was agreed with a session when it began.
    pub(super) fn params_of(&self, turn: &mut Turn<'_, '_>, session: SessionId) -> SessionParams {
        let conn = turn.core.hub.session(session).map(|view| ConnId::from_u64(view.tag));
        let link = conn.and_then(|conn| turn.cx.data(conn));
        link.and_then(|link| self.heartbeat.params(link.params())).unwrap_or_else(|| {
            // The session has just ended: it needs no pings.
            let client = &turn.core.settings.config.client;
            SessionParams {
                ping_interval_ms: client.ping_interval_ms,
                pong_timeout_ms: client.pong_timeout_ms,
                key: None,
            }
        })
    }

    /// Schedules the session's next ping for when others leave too, `in_ms` from now or a little earlier.
    fn schedule_with_others(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        session: SessionId,
        in_ms: u64,
        interval_ms: u64,
    ) {
        let now = turn.now();
        let in_ms = self.heartbeat.ping_in_ms(in_ms, interval_ms, now);
        self.schedule(turn, conn, session, in_ms);
    }

    fn schedule(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, session: SessionId, in_ms: u64) {
        let grace_ms = self.grace_ms(turn.core, session);
        let now = turn.now();
        let at_ms = self.heartbeat.deadline_ms(session, in_ms, now, grace_ms);
        turn.cx.set_deadline(conn, Some(at_ms));
    }

    /// The session expires at another time from now on.
    pub(super) fn schedule_expiry(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        session: SessionId,
    ) {
        let Some(&mut link) = turn.cx.data(conn).filter(|link| !link.closing) else { return };
        match link.protocol_state.awaits_pong() {
            true => {
                let timeout = self.params_of(turn, session).pong_timeout_ms;
                self.schedule(turn, conn, session, timeout);
            }
            false => self.schedule_ping(turn, conn),
        }
    }

    /// A client has answered a ping.
    pub(super) fn pong_received(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        let Some(session) = turn.cx.data(conn).and_then(|link| link.session()) else { return };
        let params = self.params_of(turn, session);
        // The pong's deadline is running; the ping after it is due an interval after the last.
        let rest = params.ping_interval_ms - params.pong_timeout_ms;
        let due = turn.cx.deadline(conn).map_or(0, |at| at.saturating_sub(turn.cx.now_ms()));
        self.schedule_with_others(turn, conn, session, due + rest, params.ping_interval_ms);
    }
}
