//! Goodbye: after SIGTERM clients are asked to reconnect, a few at a time, and what they are owed is sent.

use std::sync::Arc;

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

    /// Asks the next clients to leave. When those of all workers have left, connections of requests are closed: until then they
    /// carry the commands of clients whose transport has but one direction.
    pub(super) fn drain_step(&mut self, cx: &mut Context<Link>) {
        let Some(drain) = &mut self.drain else { return };
        for conn in drain.next_slice() {
            self.ask_to_leave(cx, conn);
        }
        let Some(drain) = &mut self.drain else { return };
        let have_left =
            drain.have_all_left(|conn| !cx.data(conn).is_some_and(|link| link.role.is_client()));
        let (state, worker) = (Arc::clone(&self.core.state), self.core.index);
        if have_left && state.worker_emptied(worker) && self.close_idle(cx) {
            state.worker_drained(worker);
        }
    }

    fn ask_to_leave(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        let Some(&mut link) = cx.data(conn) else { return };
        match link.role {
            Role::Client(_) => {
                let why = DisconnectCode::Shutdown.into();
                self.clients.disconnect(&mut self.core.turn(cx), conn, &why);
            }
            Role::Poll => {
                if let Some(session) = link.session() {
                    self.clients.answer_poll(&mut self.core.turn(cx), session);
                }
                cx.close(conn);
            }
            Role::Http | Role::Push | Role::Backend | Role::Engine => {}
        }
    }

    /// Closes connections of requests that have been answered, and those to backends. Returns whether none is left but engines'.
    fn close_idle(&mut self, cx: &mut Context<Link>) -> bool {
        let open: Vec<ConnId> = cx.connections().collect();
        let mut is_done = true;
        for conn in open {
            let Some(&mut link) = cx.data(conn) else { continue };
            if self.engines.is_engine(conn) {
                continue;
            }
            is_done = false;
            let awaits_answer =
                matches!(link.role, Role::Http | Role::Push) && cx.outstanding(conn).is_ok();
            if !awaits_answer {
                cx.close(conn);
            }
        }
        is_done
    }
}
