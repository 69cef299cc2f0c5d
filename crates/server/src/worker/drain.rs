//! Goodbye: after SIGTERM clients are told to reconnect, a few at a time, and what they are owed is sent.

use dunlin_net::{ConnId, Context};
use dunlin_protocol::centrifuge::DisconnectCode;

use super::link::{Link, Role};
use super::{DRAIN_STEP, Worker};

/// How often a slice of the clients is told.
const STEP_MS: u64 = 20;

/// A drain under way.
pub(super) struct Drain {
    /// Connections not told yet; new ones do not come.
    left: Vec<ConnId>,
    /// How many are told in each step.
    step: usize,
}

impl Worker<'_> {
    /// Begins to say goodbye.
    pub(super) fn begin_drain(&mut self, cx: &mut Context<Link>) {
        if self.drain.is_some() {
            return;
        }
        self.close_listeners(cx);
        let mut left: Vec<ConnId> = cx.connections().collect();
        // Neighbours in the slab came together; mixed, no group of clients leaves as one.
        for at in (1..left.len()).rev() {
            let other = self.jitter(at as u64 + 1) as usize;
            left.swap(at, other);
        }
        let steps = self.settings.config.shutdown.reconnect_spread_ms / STEP_MS;
        let step = left.len().div_ceil(steps.max(1) as usize).max(1);
        self.drain = Some(Drain { left, step });
        cx.run_every(STEP_MS, DRAIN_STEP);
        self.drain_step(cx);
    }

    pub(super) fn drain_step(&mut self, cx: &mut Context<Link>) {
        let Some(drain) = &mut self.drain else { return };
        let from = drain.left.len().saturating_sub(drain.step);
        let slice = drain.left.split_off(from);
        let mut answering = Vec::new();
        for conn in slice {
            let Some(&mut link) = cx.data(conn) else { continue };
            match link.role {
                Role::Client(_) => self.disconnect(cx, conn, &DisconnectCode::Shutdown.into()),
                Role::Poll => {
                    if let Some(session) = link.session() {
                        self.answer_poll(cx, session);
                    }
                    cx.close(conn);
                }
                // A call that waits for another worker, or for pushes, is answered first.
                Role::Http | Role::Push if cx.is_awaiting_response(conn) => answering.push(conn),
                Role::Http | Role::Push => cx.close(conn),
            }
        }
        let Some(drain) = &mut self.drain else { return };
        drain.left.extend(answering);
        if drain.left.is_empty() && cx.stats().connections == 0 {
            self.state.worker_drained(self.index);
        }
    }
}
