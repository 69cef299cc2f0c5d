//! Which clients are still there: pings, pongs, and deadlines of everything that a client may delay.
//!
//! A connection has one deadline in the wheel, and what it means follows from where the connection stands:
//! before the connect, that it has not come; after a ping, that the pong has not; otherwise that the next
//! ping is due, or the token has run out.

use dunlin_hub::SessionId;
use dunlin_net::{ConnId, Context, Handler as _};
use dunlin_protocol::centrifuge::DisconnectCode;
use dunlin_protocol::ping;

use super::Worker;
use super::link::{Link, Role};
use super::parts::{SessionParams, first_ping_ms};
use crate::metrics::Metric;

impl Worker<'_> {
    /// A transport is open; the connect has to follow.
    pub(super) fn await_connect(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        let timeout = self.settings.config.client.connect_timeout_ms;
        cx.set_deadline(conn, Some(cx.now_ms() + timeout));
    }

    /// A session has begun.
    pub(super) fn schedule_first_ping(&mut self, cx: &mut Context<Link>, session: SessionId) {
        let Some(view) = self.hub.session(session) else { return };
        let conn = ConnId::from_u64(view.tag);
        let interval_ms = self.params_of(cx, session).ping_interval_ms;
        let first_ms = first_ping_ms(interval_ms, &mut self.jitter);
        // Not with others: how many there will be is not known yet.
        self.schedule(cx, conn, session, first_ms);
    }

    /// Sets the deadline to the next ping, or to the end of the token if that comes first.
    pub(super) fn schedule_ping(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        let Some(session) = cx.data(conn).and_then(|link| link.session()) else { return };
        let interval_ms = self.params_of(cx, session).ping_interval_ms;
        self.schedule_with_others(cx, conn, session, interval_ms, interval_ms);
    }

    /// What was agreed with a session when it began.
    pub(super) fn params_of(&self, cx: &mut Context<Link>, session: SessionId) -> SessionParams {
        let conn = self.hub.session(session).map(|view| ConnId::from_u64(view.tag));
        let link = conn.and_then(|conn| cx.data(conn));
        link.and_then(|link| self.heartbeat.params(link.params())).unwrap_or_else(|| {
            // The session has just ended: it needs no pings.
            let client = &self.settings.config.client;
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
        cx: &mut Context<Link>,
        conn: ConnId,
        session: SessionId,
        in_ms: u64,
        interval_ms: u64,
    ) {
        let now = self.now(cx);
        let in_ms = self.heartbeat.ping_in_ms(in_ms, interval_ms, now);
        self.schedule(cx, conn, session, in_ms);
    }

    fn schedule(&mut self, cx: &mut Context<Link>, conn: ConnId, session: SessionId, in_ms: u64) {
        let grace_ms = self.grace_ms(session);
        let now = self.now(cx);
        let at_ms = self.heartbeat.deadline_ms(session, in_ms, now, grace_ms);
        cx.set_deadline(conn, Some(at_ms));
    }

    /// The session expires at another time from now on.
    pub(super) fn schedule_expiry(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        session: SessionId,
    ) {
        let Some(&mut link) = cx.data(conn).filter(|link| !link.closing) else { return };
        match link.protocol_state.awaits_pong() {
            true => {
                let timeout = self.params_of(cx, session).pong_timeout_ms;
                self.schedule(cx, conn, session, timeout);
            }
            false => self.schedule_ping(cx, conn),
        }
    }

    /// A client has answered a ping.
    pub(super) fn pong_received(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        let Some(session) = cx.data(conn).and_then(|link| link.session()) else { return };
        let params = self.params_of(cx, session);
        // The pong's deadline is running; the ping after it is due an interval after the last.
        let rest = params.ping_interval_ms - params.pong_timeout_ms;
        let due = cx.deadline(conn).map_or(0, |at| at.saturating_sub(cx.now_ms()));
        self.schedule_with_others(cx, conn, session, due + rest, params.ping_interval_ms);
    }

    /// What a connection was to have done by now it has not.
    pub(super) fn handle_deadline(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        let Some(&mut link) = cx.data(conn) else { return };
        if link.closing {
            // The disconnect was not read in time.
            return cx.abort(conn);
        }
        match link.role {
            Role::Http | Role::Push => cx.close(conn),
            // It has none.
            Role::Engine => {}
            Role::Backend => self.with_backends(|client| client.on_deadline(cx, conn)),
            Role::Poll => {
                if let Some(session) = link.session() {
                    self.answer_poll(cx, session);
                }
            }
            Role::Client(encoding) => {
                let Some(session) = link.session() else {
                    self.count(Metric::DeadlinesMissed);
                    if self.backlogs.contains(conn) {
                        return self.key_timed_out(cx, conn);
                    }
                    return self.disconnect(cx, conn, &DisconnectCode::Stale.into());
                };
                let grace_ms = self.grace_ms(session);
                // The clock stands where the last turn has left it.
                let now = self.now(cx);
                if self.heartbeat.has_expired(session, now, grace_ms) {
                    if self.ask_refresh(cx, conn, session) {
                        return self.schedule_expiry(cx, conn, session);
                    }
                    return self.disconnect(cx, conn, &DisconnectCode::Expired.into());
                }
                if let Some(at_ms) = self.heartbeat.ends_at_ms(session, now, grace_ms) {
                    return cx.set_deadline(conn, Some(at_ms));
                }
                if link.protocol_state.awaits_pong() && self.backlogs.contains(conn) {
                    // Its pong may be among what is not read of it yet.
                    let timeout = self.params_of(cx, session).pong_timeout_ms;
                    return self.schedule(cx, conn, session, timeout);
                }
                if link.protocol_state.awaits_pong() {
                    self.count(Metric::DeadlinesMissed);
                    return self.disconnect(cx, conn, &DisconnectCode::NoPong.into());
                }
                self.count(Metric::Pings);
                self.hub.push(session, |out| out.extend_from_slice(ping(encoding)));
                if encoding.is_bidirectional() {
                    if let Some(link) = cx.data(conn) {
                        link.protocol_state.ping_sent();
                    }
                    let timeout = self.params_of(cx, session).pong_timeout_ms;
                    self.schedule(cx, conn, session, timeout);
                } else {
                    self.schedule_ping(cx, conn);
                }
            }
        }
    }
}
