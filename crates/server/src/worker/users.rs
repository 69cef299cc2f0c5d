//! Connections of users: what ends with one, and how many there are where they are counted ([`crate::limits::user_connections`]).

use std::sync::Arc;

use dunlin_cluster::message::ClusterMessage;
use dunlin_hub::SessionId;
use dunlin_hub::tenant::MARK;
use dunlin_net::ConnId;
use dunlin_protocol::centrifuge::DisconnectCode;

use super::clients::Clients;
use super::turn::{Core, Turn};
use crate::limits::user_connections::is_somebody;
use crate::metrics::Metric;
use crate::state::settings::Settings;

/// How long a connect waits for the nodes to count it, plus up to one second; then it is accepted.
pub(super) const COUNT_TIMEOUT_MS: u64 = 1_000;
/// The most sessions counted in one turn.
const STEPS: u32 = 1_024;

impl Core<'_> {
    /// Whether a user may have one more connection; if so, it is counted.
    pub(super) fn admits_user(&self, user: &str) -> bool {
        let max = self.settings.config.limits.connections_per_user_max;
        let table = self.settings.user_connections.as_ref().filter(|_| is_somebody(user));
        let is_admitted = table.is_none_or(|table| table.admit(user, self.index, max));
        if !is_admitted {
            self.user_refused();
        }
        is_admitted
    }

    /// Counts a connection beyond the limit of its user.
    fn user_refused(&self) {
        self.count_refused(Metric::RefusedUser, "limits.connections_per_user_max");
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

    /// The user of a session that is counted somewhere, to whom something changes when it ends.
    fn counted_user(&self, session: SessionId) -> Option<String> {
        let user = self.hub.session(session)?.user;
        let is_counted = self.settings.user_connections.is_some();
        (is_counted || user.starts_with(MARK)).then(|| user.to_owned())
    }
}

impl Clients {
    /// Answers a connect of this user that the nodes have counted.
    pub(super) fn user_counted(&mut self, turn: &mut Turn<'_, '_>, user: &str) {
        if let Some(session) = self.connects.handle_counted(user) {
            self.answer_connect(turn, session);
        }
    }

    /// Answers connects that the nodes have not counted in time; called once a second.
    pub(super) fn expire_counts(&mut self, turn: &mut Turn<'_, '_>) {
        for session in self.connects.expire_counts(turn.cx.now_ms()) {
            self.answer_connect(turn, session);
        }
    }

    /// A connection with a session has closed.
    pub(super) fn session_closed(&mut self, turn: &mut Turn<'_, '_>, session: SessionId) {
        self.connects.forget(session);
        self.sessions.forget(session);
        self.pusher.end(session);
        self.polls.take(session);
        let now = turn.now();
        let user = turn.core.user_to_report(session);
        let counted = turn.core.counted_user(session);
        turn.core.hub.close_session(now, session);
        counted.iter().for_each(|user| turn.core.population_changed(user));
        self.drain_events(turn);
        if let Some(user) = user {
            let code = DisconnectCode::ConnectionClosed;
            turn.core.emit_disconnect(session, user, u32::from(code.code()), code.text());
        }
    }

    /// Begins to count the existing sessions, if the table is new.
    pub(super) fn apply_user_table(&mut self, core: &mut Core<'_>, before: &Settings) {
        let table = |of: &Settings| of.user_connections.as_ref().map(Arc::as_ptr);
        if table(before) != table(&core.settings) {
            self.sweeps.begin_users(core.settings.user_connections.is_some());
        }
    }

    /// Continues that, one step a turn.
    pub(super) fn continue_counting_users(&mut self, core: &mut Core<'_>) {
        let Some(from) = self.sweeps.users_from() else { return };
        let (sessions, next) = core.hub.sessions_page(from, STEPS);
        for session in sessions {
            let user = core.hub.session(session).map(|view| view.user.to_owned());
            user.iter().for_each(|user| core.user_changed(user));
        }
        self.sweeps.continue_users(next);
        if next.is_none()
            && let Some(table) = &core.settings.user_connections
        {
            table.set_counted(core.index);
        }
    }

    /// Ends the newest session of a user on this worker, because the user has too many connections on all nodes together.
    pub(super) fn end_last_of_user(&mut self, turn: &mut Turn<'_, '_>, user: &str) {
        let views =
            turn.core.hub.sessions_of(user).filter_map(|id| Some((id, turn.core.hub.session(id)?)));
        let Some((session, view)) = views.into_iter().find(|(_, view)| !view.closing) else {
            return;
        };
        let (conn, is_poll) = (ConnId::from_u64(view.tag), view.poll);
        turn.core.user_refused();
        match is_poll {
            true => self.refuse_poll(turn, session),
            false => self.disconnect(turn, conn, &DisconnectCode::ConnectionLimit.into()),
        }
    }
}
