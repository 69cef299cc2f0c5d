//! Commands about all users, executed on each worker in steps, so that a worker with a million sessions is
//! not blocked.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Hub;
use crate::command::SessionFilter;
use crate::config::Now;
use crate::error::Error;
use crate::message::{ReplyContent, ScatterRequest, WaiterId};
use crate::session::{HELD, POLL};
use crate::slots::NONE;
use crate::tenant;

/// Most waiting walks on a worker and of one tenant: a further one is [`Error::Overloaded`].
const WALKS_MAX: usize = 64;
const WALKS_PER_TENANT_MAX: usize = 8;
/// The cost of a step: a slot of the session table counts one, and a filter its [`SessionFilter::cost`].
const STEP_COST: usize = 8_192;
/// Most sessions on which a step acts.
const STEP_ACTIONS: u32 = 256;
/// A walk that takes longer is answered before its end, because the requester would time out.
const ANSWER_MS: u64 = 1_000;

/// The walks of a worker, in order of arrival.
#[derive(Default)]
pub(super) struct Walks(VecDeque<Walk>);

struct Walk {
    /// The requesting worker and its request; `None` after the answer.
    asked_by: Option<(u8, WaiterId)>,
    scatter: Arc<ScatterRequest>,
    /// The next slot of the session table, and its length when the walk began: sessions opened later are not
    /// included.
    next: u32,
    end: u32,
    affected: u64,
    answer_ms: u64,
}

impl Hub {
    /// Whether [`continue_walks`](Hub::continue_walks) has something to do.
    pub fn has_walks(&self) -> bool {
        !self.walks.0.is_empty()
    }

    /// Continues the commands about all users by one step. Call it once a turn while [there are
    /// any](Hub::has_walks).
    pub fn continue_walks(&mut self, now: Now) {
        self.now = now;
        let Some(mut walk) = self.walks.0.pop_front() else { return };
        let is_over = self.walk_step(&mut walk);
        let mut answers = Vec::new();
        match is_over {
            true => answers.extend(walk.asked_by.map(|asked_by| (asked_by, walk.affected))),
            false => self.walks.0.push_front(walk),
        }
        for walk in &mut self.walks.0 {
            let late = walk.asked_by.take_if(|_| now.ms >= walk.answer_ms);
            answers.extend(late.map(|asked_by| (asked_by, walk.affected)));
        }
        for ((from, request), affected) in answers {
            self.reply(from, request, ReplyContent::Affected(affected));
        }
        self.run();
    }

    /// Begins a walk for a worker, or replies that there are too many.
    pub(super) fn begin_walk(&mut self, from: u8, request: WaiterId, scatter: Arc<ScatterRequest>) {
        let user = scatter.user().unwrap_or_default();
        let all = &self.walks.0;
        let same = || all.iter().filter(|walk| walk.scatter.user() == Some(user)).count();
        if all.len() >= WALKS_MAX || !user.is_empty() && same() >= WALKS_PER_TENANT_MAX {
            self.stats.overloaded += 1;
            self.reply(from, request, ReplyContent::Failed(Error::Overloaded));
            return;
        }
        let answer_ms = self.now.ms + ANSWER_MS.min(self.config.request_timeout_ms / 2);
        let asked_by = Some((from, request));
        let end = self.sessions.indices().end;
        self.walks.0.push_back(Walk { asked_by, scatter, next: 0, end, affected: 0, answer_ms });
    }

    /// Executes a step. Returns whether the walk has visited every slot.
    fn walk_step(&mut self, walk: &mut Walk) -> bool {
        let ScatterRequest::Sessions { user, only, action } = &*walk.scatter else { return true };
        let (mut cost, mut actions) = (0, 0);
        while walk.next < walk.end && cost < STEP_COST && actions < STEP_ACTIONS {
            let slot = walk.next;
            cost += 1;
            if self.is_of_walk(slot, user) {
                cost += only.cost(self.labels.get(slot));
                if self.is_selected(slot, only) {
                    if !self.has_room_for(action) {
                        return false;
                    }
                    actions += 1;
                    walk.affected += self.act(slot, action);
                }
            }
            walk.next += 1;
        }
        walk.next >= walk.end
    }

    /// Whether a session belongs to the users of a walk: those of a tenant, or those of no tenant.
    fn is_of_walk(&self, slot: u32, user: &str) -> bool {
        let session = &self.sessions[slot];
        let name = self.users.name(session.user);
        // The user of a held session may not be known yet.
        let is_known = session.user != NONE || !session.is(HELD) || session.is(POLL);
        session.is_live() && is_known && tenant::addresses(user, name)
    }

    /// Whether a session matches the filter of a command.
    pub(super) fn is_selected(&self, slot: u32, only: &SessionFilter) -> bool {
        only.client.is_none_or(|client| client == self.id_of(slot))
            && only.labels.as_ref().is_none_or(|of| of.admits(self.labels.get(slot)))
    }
}
