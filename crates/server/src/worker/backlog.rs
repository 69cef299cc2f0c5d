//! Budgets of client commands, and the commands that wait for them.
//!
//! A command is executed and then charged to its budget keys: session, user, address and namespace. What it took is measured: one
//! that takes long counts as several. Replies, connects and polls
//! are charged, too. While a key is beyond its burst, connects and polls are refused temporarily, the following commands of a
//! connection wait in a [backlog](super::parts::Backlogs), and the connection is not read, so that its socket buffer is the
//! queue. A session that sends commands in separate requests ([`emulation`](Clients::emulation)) is disconnected if too many of
//! them wait.

use dunlin_hub::tenant::bare;
use dunlin_hub::{Owner, Publication, SessionId};
use dunlin_net::ConnId;
use dunlin_protocol::centrifuge::{Command, DisconnectCode, Request};

use super::clients::Clients;
use super::link::{Peer, Role};
use super::parts::{Frames, Pending};
use super::turn::{Core, Turn};
use crate::limits::budget::{BudgetKey, CommandKind, Rates, Work};
use crate::metrics::Metric;

/// A delivery counts once more for each of so many bytes.
const DELIVERY_BYTES: usize = 1024;
/// A key that must already wait longer than this is not charged for refused requests.
const REFUSED_WAIT_MS_MAX: u64 = 1_000;
/// How long a publisher to a channel whose subscribers are behind waits before its next command.
const BEHIND_MS: u64 = 2;
/// Smaller replies are not charged.
const REPLY_BYTES_MIN: usize = 1024;

/// The budget keys of session, user and address; `None` without a budget.
type BudgetKeys = [Option<(BudgetKey, Rates)>; 3];

impl Turn<'_, '_> {
    /// Charges an executed command. `Some`: when the next command of its connection may start.
    pub(super) fn charge(
        &mut self,
        conn: ConnId,
        command: &Command<'_>,
        (bytes, spent_ns): (usize, u64),
    ) -> Option<u64> {
        let deliveries = self.core.deliveries_of(&command.request);
        let kind = CommandKind::of_command(&command.request);
        let work = Work { commands: 1, kind, bytes: bytes as u64, deliveries, spent_ns };
        let wait_until = self.charge_request(conn, command.request.channel(), work);
        match &command.request {
            Request::Publish(publish)
                if self.core.state.pressure.of(&publish.channel).is_some() =>
            {
                wait_until.max(Some(self.cx.now_ms() + BEHIND_MS))
            }
            _ => wait_until,
        }
    }

    /// Charges a request of a connection, with or without a session, also one that ended it. `Some`: when the next one may start.
    pub(super) fn charge_request(
        &mut self,
        conn: ConnId,
        channel: Option<&str>,
        work: Work,
    ) -> Option<u64> {
        let &mut link = self.cx.data(conn)?;
        let session = link.session();
        let user = session.and_then(|of| self.core.hub.session(of)).map_or("", |view| view.user);
        let keys = self.core.keys(session, user, link.peer);
        let now_ms = self.cx.now_ms();
        let taken = work;
        let already_ms = match session {
            Some(_) => 0,
            None => self.core.charge_keys(&keys, Work::default(), now_ms),
        };
        // Refused connects are not charged beyond a bound, so that they do not lock out other clients of the address for long.
        let work = if already_ms > REFUSED_WAIT_MS_MAX { Work::default() } else { work };
        let mut wait_ms = self.core.charge_keys(&keys, work, now_ms);
        if let Some(channel) = channel {
            wait_ms = wait_ms.max(self.core.charge_namespace(channel, work));
        }
        let goes_on = self.core.goes_on(conn, taken);
        if link.closing {
            return None;
        }
        (wait_ms > 0 || !goes_on).then_some(now_ms + wait_ms)
    }

    /// Charges the replies of this turn to users and addresses.
    pub(super) fn charge_answers(&mut self) {
        while let Some((session, bytes)) = self.core.budgets.next_put_off() {
            let Some(view) = self.core.hub.session(session) else { continue };
            let conn = ConnId::from_u64(view.tag);
            let Some(peer) = self.cx.data(conn).map(|link| link.peer) else { continue };
            let keys = self.core.keys(None, view.user, peer);
            let work = Work { bytes: bytes as u64, ..Work::default() };
            self.core.charge_keys(&keys, work, self.cx.now_ms());
        }
    }
}

impl Core<'_> {
    /// The budget keys of a client's requests, without those of namespaces.
    fn keys(&self, session: Option<SessionId>, user: &str, peer: Peer) -> BudgetKeys {
        let limits = &self.settings.config.limits;
        let own = match bare(user) {
            "" => &limits.anonymous_budget,
            _ => &limits.client_budget,
        };
        let of_user = Rates::from(&limits.user_budget);
        let of_address = Rates::from(&limits.address_budget);
        let address = if of_address.is_limited() { self.peers.counted(peer) } else { None };
        [
            session.map(|session| (BudgetKey::session(session), Rates::from(own))),
            (of_user.is_limited() && !bare(user).is_empty())
                .then(|| (self.state.budgets.user(user), of_user)),
            address.map(|address| (self.state.budgets.address(address), of_address)),
        ]
    }

    /// Charges all keys. Returns the longest wait of any of them, in milliseconds.
    fn charge_keys(&mut self, keys: &BudgetKeys, work: Work, now_ms: u64) -> u64 {
        let all = keys.iter().flatten();
        all.map(|(budget_key, rates)| match budget_key.is_session() {
            true => self.budgets.charge(*budget_key, rates, work, now_ms),
            false => self.charge_shared(*budget_key, rates, work),
        })
        .max()
        .unwrap_or(0)
    }

    /// Charges a key whose budget is shared by the process. Returns the wait in milliseconds.
    pub(super) fn charge_shared(&self, budget_key: BudgetKey, rates: &Rates, work: Work) -> u64 {
        self.state.budgets.charge(budget_key, rates, work, self.state.uptime_ms())
    }

    /// Charges the namespace of a channel, if it has a budget.
    pub(super) fn charge_namespace(&self, channel: &str, work: Work) -> u64 {
        let budget_key = self.namespace_budget(channel);
        budget_key.map_or(0, |(budget_key, rates)| self.charge_shared(budget_key, &rates, work))
    }

    /// The budget of a channel's namespace, if it has one.
    fn namespace_budget(&self, channel: &str) -> Option<(BudgetKey, Rates)> {
        let namespace = self.settings.namespace(channel)?;
        let rates = Rates::from(&namespace.rules.budget);
        let budget_key = || self.state.budgets.namespace(&namespace.options.namespace);
        rates.is_limited().then(|| (budget_key(), rates))
    }

    /// The pending request of a history or presence reply, which is charged to the channel's namespace.
    pub(super) fn pending_answer(&self, session: SessionId, id: u32, channel: &str) -> Pending {
        match self.namespace_budget(channel) {
            Some(_) => Pending::ChargedCommand { session, id, channel: channel.into() },
            None => Pending::Command { session, id },
        }
    }

    /// Charges a connect that was refused to its user, who is known although there is no session. Its address is charged as for
    /// any other request.
    pub(super) fn charge_refused(&mut self, user: &str, peer: Peer) {
        let now_ms = self.clock.now().ms;
        let [_, of_user, _] = self.keys(None, user, peer);
        let keys = [None, of_user, None];
        if self.charge_keys(&keys, Work::default(), now_ms) <= REFUSED_WAIT_MS_MAX {
            self.charge_keys(&keys, Work { commands: 1, ..Work::default() }, now_ms);
        }
    }

    /// Charges the time of a request that has no session, beyond that of a command.
    pub(super) fn charge_time(&mut self, (user, peer): (&str, Peer), spent_ns: u64) {
        let keys = self.keys(None, user, peer);
        let work = Work { spent_ns, ..Work::default() };
        self.charge_keys(&keys, work, self.clock.now().ms);
    }

    /// Charges the initial subscriptions of a connect or a poll.
    pub(super) fn charge_subscriptions<'c>(
        &mut self,
        (session, user, peer): (Option<SessionId>, &str, Peer),
        bytes: usize,
        channels: impl Iterator<Item = &'c str>,
    ) {
        let now_ms = self.clock.now().ms;
        let kind = Some(CommandKind::Subscribe);
        let mut all = Work { kind, bytes: bytes as u64, ..Work::default() };
        for channel in channels {
            let deliveries = self.joins_of(channel);
            let work = Work { commands: 1, kind, deliveries, ..Work::default() };
            all.commands += 1;
            all.deliveries += work.deliveries;
            self.charge_namespace(channel, work);
        }
        let keys = self.keys(session, user, peer);
        self.charge_keys(&keys, all, now_ms);
    }

    /// How long a client must wait before it may start with these channels, because the budget of its user, its address or a
    /// namespace is used up.
    pub(super) fn wait_to_begin<'c>(
        &mut self,
        user: &str,
        peer: Peer,
        channels: impl Iterator<Item = &'c str>,
    ) -> u64 {
        let (nothing, now_ms) = (Work::default(), self.clock.now().ms);
        let keys = self.keys(None, user, peer);
        let own_ms = self.charge_keys(&keys, nothing, now_ms);
        channels
            .fold(own_ms, |wait_ms, channel| wait_ms.max(self.charge_namespace(channel, nothing)))
    }

    /// Charges a reply to its session and, at the end of the turn, to its user and address.
    pub(super) fn charge_reply(&mut self, session: SessionId, bytes: usize) {
        if bytes >= REPLY_BYTES_MIN {
            let (rates, now_ms) = (self.session_rates(session), self.clock.now().ms);
            let work = Work { bytes: bytes as u64, ..Work::default() };
            self.budgets.charge(BudgetKey::session(session), &rates, work, now_ms);
            let limits = &self.settings.config.limits;
            if limits.user_budget.bytes_per_s > 0 || limits.address_budget.bytes_per_s > 0 {
                self.budgets.put_off(session, bytes);
            }
        }
    }

    /// Charges the response to a poll, also to the namespaces of its channels.
    pub(super) fn charge_response<'c>(
        &mut self,
        (user, peer): (&str, Peer),
        bytes: usize,
        channels: impl ExactSizeIterator<Item = &'c str>,
    ) {
        let now_ms = self.clock.now().ms;
        let keys = self.keys(None, user, peer);
        self.charge_keys(&keys, Work { bytes: bytes as u64, ..Work::default() }, now_ms);
        let each = Work { bytes: (bytes / channels.len().max(1)) as u64, ..Work::default() };
        for channel in channels {
            self.charge_namespace(channel, each);
        }
    }

    /// Charges recovered publications to the channel's namespace.
    pub(super) fn charge_recovery(&mut self, channel: &str, missed: &[Publication]) {
        if !missed.is_empty() {
            let bytes = missed.iter().map(|of| of.data().len() as u64).sum();
            let work = Work { bytes, ..Work::default() };
            self.charge_namespace(channel, work);
        }
    }

    /// The owner of the streams that a client creates.
    pub(super) fn owner_of(&self, user: &str, peer: Peer) -> Owner {
        match (bare(user), self.peers.counted(peer)) {
            ("", Some(address)) => self.hub.owner_of_address(address.key()),
            ("", None) => Owner::NONE,
            _ => self.hub.owner_of(user),
        }
    }

    fn session_rates(&self, session: SessionId) -> Rates {
        let limits = &self.settings.config.limits;
        let anonymous = self.hub.session(session).is_some_and(|view| bare(view.user).is_empty());
        Rates::from(if anonymous { &limits.anonymous_budget } else { &limits.client_budget })
    }

    /// Estimates the deliveries that a request causes, assuming that other workers have as many subscribers as this one.
    fn deliveries_of(&self, request: &Request<'_>) -> u64 {
        let channel = match request {
            Request::Publish(publish) => {
                let bytes = publish.data.as_ref().map_or(0, |data| data.as_bytes().len());
                return self.deliveries_to(&publish.channel, bytes);
            }
            Request::Subscribe(subscribe) => &subscribe.channel,
            Request::Unsubscribe(unsubscribe) => &unsubscribe.channel,
            _ => return 0,
        };
        self.joins_of(channel)
    }

    /// Estimates the deliveries that a join or leave causes.
    pub(super) fn joins_of(&self, channel: &str) -> u64 {
        let (subscribers, join_leave) = self.hub.audience(channel);
        if join_leave { (subscribers * self.state.workers()) as u64 } else { 0 }
    }

    /// Estimates the deliveries of a message of this size.
    pub(super) fn deliveries_to(&self, channel: &str, bytes: usize) -> u64 {
        let (subscribers, _) = self.hub.audience(channel);
        (subscribers * self.state.workers()) as u64 * (1 + bytes / DELIVERY_BYTES) as u64
    }

    /// Counts a command, or a part of one, that was executed for a connection in this turn. Returns `false` if the connection
    /// must yield: to other connections, or to the flush of outboxes.
    pub(super) fn goes_on(&mut self, conn: ConnId, work: Work) -> bool {
        self.budgets.take_turn(conn.to_u64(), work) && !self.hub.wants_flush()
    }

    /// This worker's share of the bound on backlogs, in bytes.
    pub(super) fn backlog_bytes_max(&self) -> usize {
        self.settings.memory.pending_bytes_max.div_ceil(self.state.workers())
    }
}

impl Clients {
    /// Stores the remaining commands of a connection, and pauses reading until they may continue.
    pub(super) fn hold_back(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        rest: Frames,
        ready_ms: u64,
    ) {
        let Some(&mut link) = turn.cx.data(conn) else { return };
        if link.closing || link.encoding().is_none() {
            return;
        }
        turn.core.count(Metric::CommandsDelayed);
        let role = link.role;
        let session = link.session();
        let flow = turn.flow_of(conn, session);
        if !self.backlogs.insert((conn, flow), rest, ready_ms, turn.core.backlog_bytes_max()) {
            return self.disconnect(turn, conn, &DisconnectCode::TooManyRequests.into());
        }
        // Input of a stream transport is not its commands, and its end must be noticed.
        if matches!(role, Role::Client(encoding) if !encoding.is_emulated()) {
            turn.cx.pause_read(conn);
        }
    }

    /// Appends a frame to the backlog of a session whose commands wait.
    pub(super) fn append_to_backlog(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        frame: &[u8],
    ) {
        let own_max = turn.core.settings.config.limits.message_bytes_max;
        let bytes_max = turn.core.backlog_bytes_max();
        let separator = turn
            .cx
            .data(conn)
            .and_then(|link| link.encoding())
            .map_or(&b""[..], |of| of.format().separator());
        if !self.backlogs.append(conn, separator, frame, own_max, bytes_max) {
            self.disconnect(turn, conn, &DisconnectCode::TooManyRequests.into());
        }
    }

    /// Continues waiting commands that are due, with a share of the turn for each connection.
    pub(super) fn run_backlogs(&mut self, turn: &mut Turn<'_, '_>) {
        for (conn, mut frames) in self.backlogs.take_ready(turn.cx.now_ms()) {
            if self.is_unidirectional(turn, conn) {
                // Its connect has waited for a token key.
                self.connect_said(turn, conn, frames.rest());
                if !self.backlogs.contains(conn) {
                    turn.cx.resume_read(conn);
                }
                continue;
            }
            match self.handle_commands(turn, conn, frames.rest()) {
                Some((rest, ready_ms)) => {
                    let left = rest.len();
                    frames.leave(left);
                    self.hold_back(turn, conn, frames, ready_ms);
                }
                None if self.program_conns.get(conn).is_some() => self.program_conns.wake(conn),
                None => turn.cx.resume_read(conn),
            }
        }
    }

    /// Wakes this worker when the next commands are due.
    pub(super) fn arm_backlog_timer(&mut self, turn: &mut Turn<'_, '_>) {
        if let Some(delay_ms) = self.backlogs.arm_timer(turn.cx.now_ms()) {
            turn.cx.run_after(delay_ms, super::timer::Timer::Backlog as u64);
        }
    }

    fn is_unidirectional(&self, turn: &mut Turn<'_, '_>, conn: ConnId) -> bool {
        let encoding = turn.cx.data(conn).and_then(|link| link.encoding());
        encoding.is_some_and(|encoding| !encoding.is_bidirectional())
    }
}
