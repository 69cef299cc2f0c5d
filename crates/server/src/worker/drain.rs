//! Goodbye: after SIGTERM clients are asked to reconnect, a few at a time, and what they are owed is sent.

use dunlin_net::{ConnId, Context};
use dunlin_protocol::centrifuge::DisconnectCode;

use super::Worker;
use super::link::{Link, Role};
use super::parts::{DRAIN_STEP_MS, Drain};
use super::reply::PlainResponse;
use super::timer::Timer;
use crate::api::ApiErrorCode;

/// What a call is answered that the end of the process cuts short.
const CUT_SHORT: &str =
    "the server stops before there is an answer: what was asked may have been carried out";

impl Worker<'_> {
    /// Begins to say goodbye.
    pub(super) fn begin_drain(&mut self, cx: &mut Context<Link>) {
        if self.drain.is_some() {
            return;
        }
        self.front.listeners.close_all(cx);
        let spread_ms = self.core.settings.config.shutdown.reconnect_spread_ms;
        self.drain = Some(Drain::new(cx.connections().collect(), spread_ms, &mut self.core.jitter));
        cx.run_every(DRAIN_STEP_MS, Timer::Drain as u64);
        self.drain_step(cx);
    }

    /// Leaves the loop: the time of the drain is over, or a second signal has come. Who waits for an answer gets an error.
    pub(super) fn stop(&mut self, cx: &mut Context<Link>) {
        let open: Vec<ConnId> = cx.connections().collect();
        for conn in open {
            let Some(&mut link) = cx.data(conn) else { continue };
            match link.role {
                Role::Poll => {
                    if let Some(session) = link.session() {
                        self.clients.answer_poll(&mut self.core.turn(cx), session);
                    }
                }
                Role::Http | Role::Push if cx.outstanding(conn).is_ok() => {
                    let error = ApiErrorCode::Internal.with_reason(CUT_SHORT);
                    let (_, body) = error.response(false);
                    self.core.turn(cx).answer(conn, &PlainResponse::json(503, body));
                }
                _ => {}
            }
        }
        cx.stop();
    }

    pub(super) fn drain_step(&mut self, cx: &mut Context<Link>) {
        let Some(drain) = &mut self.drain else { return };
        let mut busy = Vec::new();
        for conn in drain.next_slice() {
            let Some(&mut link) = cx.data(conn) else { continue };
            match link.role {
                Role::Client(_) => self.clients.disconnect(
                    &mut self.core.turn(cx),
                    conn,
                    &DisconnectCode::Shutdown.into(),
                ),
                Role::Poll => {
                    if let Some(session) = link.session() {
                        self.clients.answer_poll(&mut self.core.turn(cx), session);
                    }
                    cx.close(conn);
                }
                // A call that waits for another worker, or for pushes, is answered first.
                Role::Http | Role::Push if cx.outstanding(conn).is_ok() => busy.push(conn),
                // Who waits for it has been asked to leave.
                Role::Http | Role::Push | Role::Backend => cx.close(conn),
                // Clients that are still here go on publishing and listening.
                Role::Engine => {}
            }
        }
        let Some(drain) = &mut self.drain else { return };
        drain.put_back(busy);
        if drain.is_empty() && cx.connections().all(|conn| self.engines.is_engine(conn)) {
            self.core.state.worker_drained(self.core.index);
        }
    }
}
