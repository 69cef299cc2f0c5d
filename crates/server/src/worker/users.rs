//! Connections of users: what ends with one, and how many there are where they are counted ([`crate::limits::user_connections`]).

use std::sync::Arc;

use dunlin_hub::SessionId;
use dunlin_hub::tenant::MARK;
use dunlin_net::{ConnId, Context};
use dunlin_protocol::centrifuge::DisconnectCode;

use super::Worker;
use super::link::Link;
use crate::limits::user_connections::is_somebody;
use crate::message::cluster::ClusterMessage;
use crate::metrics::Metric;
use crate::state::settings::Settings;

/// How long a connect waits for the nodes to count it, plus up to one second; then it is accepted.
pub(super) const COUNT_TIMEOUT_MS: u64 = 1_000;
/// The most sessions counted in one turn.
const STEPS: u32 = 1_024;

impl Worker<'_> {
    /// Whether a user may have one more connection; if so, it is counted.
    pub(super) fn admits_user(&self, user: &str) -> bool {
        let max = self.settings.config.limits.connections_per_user_max;
        let table = self.settings.user_connections.as_ref().filter(|_| is_somebody(user));
        let is_admitted = table.is_none_or(|table| table.admit(user, self.index, max));
        if !is_admitted {
            self.count(Metric::RefusedUser);
        }
        is_admitted
    }

    /// Called after a session of this user was opened or closed, or could not be opened.
    pub(super) fn user_changed(&mut self, user: &str) {
        let Some(table) = self.settings.user_connections.as_ref().filter(|_| is_somebody(user))
        else {
            return;
        };
        if table.set(user, self.index, self.hub.session_count(user)) {
            // If the ring is full, the agent reads the counts when it renews its lease.
            let _ = self.endpoint.send(self.state.bus.control(), ClusterMessage::UsersChanged);
        }
    }

    /// Whether a connect of this user is answered only when the nodes have counted it: as long as they do.
    pub(super) fn awaits_count(&self, user: &str) -> bool {
        let limits = &self.settings.config.limits;
        limits.connections_per_user_max > 0
            && is_somebody(user)
            && self.state.cluster.counts_users()
    }

    /// Answers a connect of this user that the nodes have counted.
    pub(super) fn user_counted(&mut self, cx: &mut Context<Link>, user: &str) {
        if let Some(session) = self.connects.handle_counted(user) {
            self.answer_connect(cx, session);
        }
    }

    /// Answers connects that the nodes have not counted in time; called once a second.
    pub(super) fn expire_counts(&mut self, cx: &mut Context<Link>) {
        for session in self.connects.expire_counts(cx.now_ms()) {
            self.answer_connect(cx, session);
        }
    }

    /// A connection with a session has closed.
    pub(super) fn session_closed(&mut self, cx: &mut Context<Link>, session: SessionId) {
        self.connects.forget(session);
        self.heartbeat.set_token(session, None);
        self.grants.forget(session);
        self.capabilities.forget(session);
        self.pusher.end(session);
        self.polls.take(session);
        let now = self.now(cx);
        let user = self.user_to_report(session);
        let counted = self.counted_user(session);
        self.hub.close_session(now, session);
        counted.iter().for_each(|user| self.population_changed(user));
        self.drain_events(cx);
        if let Some(user) = user {
            let code = DisconnectCode::ConnectionClosed;
            self.emit_disconnect(session, user, u32::from(code.code()), code.text());
        }
    }

    /// The user of a session that is counted somewhere, to whom something changes when it ends.
    fn counted_user(&self, session: SessionId) -> Option<String> {
        let user = self.hub.session(session)?.user;
        let is_counted = self.settings.user_connections.is_some();
        (is_counted || user.starts_with(MARK)).then(|| user.to_owned())
    }

    /// Begins to count the existing sessions, if the table is new.
    pub(super) fn apply_user_table(&mut self, before: &Settings) {
        let table = |of: &Settings| of.user_connections.as_ref().map(Arc::as_ptr);
        if table(before) != table(&self.settings) {
            self.sweeps.begin_users(self.settings.user_connections.is_some());
        }
    }

    /// Continues that, one step a turn.
    pub(super) fn continue_counting_users(&mut self) {
        let Some(from) = self.sweeps.users_from() else { return };
        let (sessions, next) = self.hub.sessions_page(from, STEPS);
        for session in sessions {
            let user = self.hub.session(session).map(|view| view.user.to_owned());
            user.iter().for_each(|user| self.user_changed(user));
        }
        self.sweeps.continue_users(next);
        if next.is_none()
            && let Some(table) = &self.settings.user_connections
        {
            table.set_counted(self.index);
        }
    }

    /// Ends the newest session of a user on this worker, because the user has too many connections on all nodes together.
    pub(super) fn end_last_of_user(&mut self, cx: &mut Context<Link>, user: &str) {
        let views = self.hub.sessions_of(user).filter_map(|id| Some((id, self.hub.session(id)?)));
        let Some((session, view)) = views.into_iter().find(|(_, view)| !view.closing) else {
            return;
        };
        let (conn, is_poll) = (ConnId::from_u64(view.tag), view.poll);
        self.count(Metric::RefusedUser);
        match is_poll {
            true => self.refuse_poll(cx, session),
            false => self.disconnect(cx, conn, &DisconnectCode::ConnectionLimit.into()),
        }
    }
}
