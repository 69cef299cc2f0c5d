//! The cluster agent of this node: one task with one connection to the store that the nodes share ([`super::store`]).
//!
//! The task handles one event at a time: messages of workers and of other nodes, completed operations, timers. Operations on the
//! store run as separate tasks, so a slow store delays only the requests that need it. Without a connection the agent answers
//! requests with an error, executes locally what it can, and reconnects.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dunlin_access::limits::user_connections::UserCount;
use dunlin_api::online::OnlineQuery;
use dunlin_api::server_api::{ApiErrorCode, Method};
use dunlin_config::{Cluster, Engine};
use dunlin_webhooks::FilterCache;
use dunlin_wire::backoff::{Backoff, Jitter};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::address::StoreAddress;
use super::budgets::BudgetsShared;
use super::calls::{CallOrigin, Calls};
use super::changes::{self, Changes, ChangesDone};
use super::completeness::Completeness;
use super::condition::Condition;
use super::forwarding::answer_without;
use super::inbox::{InboxReader, inbox};
use super::kept::{KeptRead, KnownCalls};
use super::lease::{Lease, LeaseReply, LeaseWrite, Node, random_number, random_seed};
use super::local_node::LocalNode;
use super::member_writes::{MemberBatch, MemberWrites};
use super::members::{Gathered, MembersByChannel, Reconciliation};
use super::name_conflict::NameConflict;
use super::newcomers::Newcomers;
use super::node_message::{MemberChange, NodeMessage, VERSION};
use super::occupancy::Occupancy;
use super::online::{self, ClusterOnlineQueries};
use super::outbox::Outbox;
use super::presence_reads::{PresenceKind, PresenceReads, PresenceRequest};
use super::recent_changes::RecentChanges;
use super::standing::Passed;
use super::state::ClusterMetric;
use super::status::{self, StatusQueries};
use super::store::{Destination, RawMessage, Store, StoreError, UserCountsWrite};
use super::user_counts::UserCounts;
use crate::message::{ClusterMessage, ClusterOutput, ClusterRequest, ClusterToWorker};

/// The pause between two attempts to connect to the store.
const RECONNECT: Backoff = Backoff { min_ms: 50, max_ms: 1_000 };
/// Renewals within the duration of a lease.
const WRITES_A_LEASE: u32 = 3;

/// An event from outside the agent.
pub(super) enum Input {
    /// From an endpoint of the bus.
    Bus(usize, ClusterMessage),
    /// Leave the cluster and stop.
    Leave,
}

/// The result of an operation that ran as a separate task.
pub(super) enum TaskResult {
    Connected(Result<(Arc<dyn Store>, InboxReader), StoreError>),
    /// The lease was written over this connection.
    Wrote(u64, Result<LeaseReply, StoreError>, Duration),
    /// A call was sent, and stored if it is one that is kept.
    Sent(u64),
    /// A call could not be sent to these nodes.
    Unsent(u64, Vec<Arc<str>>),
    /// Calls that were kept while this node was disconnected.
    Missed(Result<KeptRead, StoreError>),
    /// The number of lost calls that were stored again.
    KeptAgain(usize, Result<(), StoreError>),
    /// Changes of members were written over this connection; a flag for each says whether it changed the store.
    MembersWritten(u64, MemberBatch, Result<Vec<bool>, StoreError>),
    /// The members of this node that the store has.
    MembersRead(Result<MembersByChannel, StoreError>),
    /// A dead node and its members, which this node has removed; `None`: another node removes them.
    Swept(Arc<str>, Result<Option<Vec<MemberChange>>, StoreError>),
    /// The members of a channel were read for these requests.
    Present(Arc<str>, Vec<PresenceRequest>, Result<Gathered, StoreError>),
    Changes(ChangesDone),
    /// Connection counts of users were written over this connection; the counts of the other nodes are returned.
    UsersWritten(u64, Vec<UserCount>, Result<Vec<u64>, StoreError>),
    /// The key with which names of budgets are hashed.
    BudgetsKey(Result<[u8; 16], StoreError>),
    Failed(StoreError),
    Nothing,
}

pub(super) struct Agent {
    pub(super) node: Arc<dyn LocalNode>,
    pub(super) outbox: Outbox,
    pub(super) address: StoreAddress,
    pub(super) call_timeout: Duration,
    every: Duration,
    /// `server.node`; 0: any.
    wanted: u16,
    pub(super) lease: Lease,
    /// The lease has been held at least once.
    pub(super) has_joined: bool,
    pub(super) lag: Duration,
    /// The current connection; `None` while there is none.
    pub(super) store: Option<Arc<dyn Store>>,
    pub(super) messages: Option<InboxReader>,
    is_connecting: bool,
    /// Attempts to connect since a lease was last written.
    attempts: u32,
    jitter: Jitter,
    /// Probes, messages of this node to itself, that have not come back.
    probes: u32,
    /// When the next probe is counted; renewals before that come early, because of a newcomer.
    probe_due: Instant,
    /// When the lease is renewed, or the next attempt to connect is made.
    pub(super) next: Instant,
    pub(super) jobs: JoinSet<TaskResult>,
    pub(super) nodes: BTreeMap<u16, Node>,
    newcomers: Newcomers,
    pub(super) calls: Calls,
    pub(super) known_calls: KnownCalls,
    /// Read the kept calls with the next lease renewal: they were not read yet, or the store lacks some that this node knows.
    pub(super) is_missed_due: bool,
    /// Commands that workers of this node execute: the requesting node, its call id, and when they began.
    pub(super) serving: HashMap<u64, (Arc<str>, u64, Instant)>,
    pub(super) served: u64,
    pub(super) online: ClusterOnlineQueries,
    pub(super) status: StatusQueries,
    pub(super) changes: Changes,
    pub(super) recent_changes: RecentChanges,
    pub(super) member_writes: MemberWrites,
    /// Member changes were dropped, or this node was taken for dead: its members must be reconciled with the store.
    pub(super) members_lost: bool,
    /// They are to be read once the writes under way have been answered.
    pub(super) is_comparison_due: bool,
    pub(super) reconciliation: Option<Reconciliation>,
    pub(super) completeness: Completeness,
    pub(super) presence_reads: PresenceReads,
    /// Announcements that were known to be dropped when the lists of members were last read again.
    pub(super) announcements_dropped: u64,
    pub(super) hooks: FilterCache,
    pub(super) occupancy: Occupancy,
    pub(super) user_counts: UserCounts,
    pub(super) budgets: BudgetsShared,
    /// A condition that is still shown although the last write succeeded.
    pub(super) passed: Option<Passed>,
    pub(super) name_conflict: NameConflict,
}

impl Agent {
    pub(super) fn new(
        node: Arc<dyn LocalNode>,
        settings: &Cluster,
        engine: &Arc<Engine>,
        (wanted, former): (u16, Option<u16>),
        outbox: Outbox,
    ) -> Agent {
        let address = StoreAddress::new(engine);
        let uid: Arc<str> = node.uid().into();
        let number = match wanted {
            0 => former.unwrap_or_else(random_number),
            wanted => wanted,
        };
        let lease_ms = settings.lease_ms;
        let lease = Lease { uid, number, lease_ms, is_wanted: wanted != 0 };
        let name = settings.engine.clone().unwrap_or_default();
        node.cluster().set_place(name, (&address, address.place()), lease_ms);
        let agent = Agent {
            outbox,
            address,
            call_timeout: Duration::from_millis(settings.call_timeout_ms),
            every: Duration::from_millis(settings.lease_ms) / WRITES_A_LEASE,
            wanted,
            lease,
            has_joined: false,
            lag: Duration::ZERO,
            store: None,
            messages: None,
            is_connecting: false,
            attempts: 0,
            jitter: Jitter::new(random_seed()),
            probes: 0,
            probe_due: Instant::now(),
            next: Instant::now(),
            jobs: JoinSet::new(),
            nodes: BTreeMap::new(),
            newcomers: Newcomers::default(),
            calls: Calls::default(),
            known_calls: KnownCalls::default(),
            is_missed_due: false,
            serving: HashMap::new(),
            served: 0,
            online: ClusterOnlineQueries::default(),
            status: StatusQueries::default(),
            changes: Changes::default(),
            recent_changes: RecentChanges::default(),
            member_writes: MemberWrites::default(),
            members_lost: true,
            is_comparison_due: false,
            reconciliation: None,
            completeness: Completeness::new(Instant::now()),
            presence_reads: PresenceReads::default(),
            announcements_dropped: node.cluster().counters.get(ClusterMetric::AnnouncementsDropped),
            hooks: FilterCache::default(),
            occupancy: Occupancy::new(&node.uid().into()),
            user_counts: UserCounts::default(),
            budgets: BudgetsShared::default(),
            passed: None,
            name_conflict: NameConflict::default(),
            node,
        };
        agent.say_number();
        agent.tell_workers(|| ClusterToWorker::ListOccupied);
        agent
    }

    /// Runs until [`Input::Leave`].
    pub(super) async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        self.connect();
        loop {
            self.flush_occupancy();
            let deadlines = [
                self.calls.deadline(),
                self.online.deadline(),
                self.status.deadline(),
                self.budgets.deadline(),
                self.presence_deadline(),
            ];
            let due = deadlines.into_iter().flatten().fold(self.next, Instant::min);
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(Input::Bus(worker, message)) => self.handle_bus(worker, message),
                    Some(Input::Leave) | None => break,
                },
                message = next_message(&mut self.messages) => match message {
                    Some(message) => self.handle_message(&message),
                    None => self.lose_store(&StoreError::Closed("the connection has ended".into())),
                },
                Some(done) = self.jobs.join_next() => {
                    if let Ok(done) = done {
                        self.handle_done(done);
                    }
                }
                () = sleep_until(due) => self.handle_timeout(),
            }
        }
        self.leave().await;
    }

    async fn leave(&mut self) {
        let late = Instant::now() + self.call_timeout * 2;
        for answered in self.calls.expire(late) {
            self.answer(answered);
        }
        self.refuse_presence(&"this node leaves its cluster");
        if let Some(store) = &self.store {
            let uncounted =
                store.count_users(UserCountsWrite { is_all: true, ..UserCountsWrite::default() });
            let uncounted = uncounted.await.map(drop);
            if let Err(error) = uncounted.and(store.leave(self.lease.clone()).await) {
                tracing::warn!(%error, "the cluster was left without a word to the others");
            }
        }
        self.node.budgets().share(false);
        self.node.cluster().leave();
        self.tell_workers(|| ClusterToWorker::NodeNumber);
    }

    // The store.

    fn connect(&mut self) {
        if std::mem::replace(&mut self.is_connecting, true) {
            return;
        }
        let (address, uid) = (self.address.clone(), Arc::clone(&self.lease.uid));
        self.jobs.spawn(async move {
            let (sender, messages) = inbox();
            let opened = address.open(uid, sender).await;
            TaskResult::Connected(opened.map(|store| (store, messages)))
        });
    }

    pub(super) fn lose_store(&mut self, error: &StoreError) {
        self.store = None;
        self.count_dropped();
        self.messages = None;
        self.lose_members();
        self.occupancy.handle_disconnected();
        self.refuse_presence(error);
        self.user_counts.lose();
        self.node.cluster().set_counts_users(false);
        self.budgets.lose_key();
        self.node.budgets().share(false);
        self.reconciliation = None;
        self.changes = Changes::default();
        self.attempts = self.attempts.saturating_add(1);
        let delay_ms = RECONNECT.jittered_ms(self.attempts, &mut self.jitter);
        self.next = Instant::now() + Duration::from_millis(delay_ms);
        let place = self.address.place();
        self.set_condition(error.condition(), &format!("{place}: {error}"));
    }

    /// Runs an operation as a separate task.
    pub(super) fn spawn(
        &mut self,
        operation: impl Future<Output = Result<(), StoreError>> + Send + 'static,
    ) {
        self.jobs.spawn(async move {
            operation.await.map_or_else(TaskResult::Failed, |()| TaskResult::Nothing)
        });
    }

    /// Publishes messages to other nodes.
    pub(super) fn say(&mut self, messages: Vec<(Destination, Vec<u8>)>) {
        if let Some(store) = self.store.as_ref().filter(|_| !messages.is_empty()) {
            let sent = store.send(messages);
            self.spawn(sent);
        }
    }

    fn write_lease(&mut self) {
        let now = Instant::now();
        self.newcomers.handle_read(now, self.every);
        self.next = now + self.every;
        self.count_dropped();
        let Some(store) = self.store.clone() else { return };
        if self.probes >= WRITES_A_LEASE {
            let why = "its channels are silent: what is published does not arrive";
            return self.lose_store(&StoreError::Closed(why.into()));
        }
        if now >= self.probe_due {
            (self.probes, self.probe_due) = (self.probes + 1, self.next);
        }
        let probe = NodeMessage::from(&self.lease.uid).encode();
        let members_pending = self.completeness.publish();
        let written = store.write_lease(self.lease.clone(), self.facts(members_pending), probe);
        self.jobs.spawn(async move {
            let begun = Instant::now();
            let lease_reply = written.await;
            TaskResult::Wrote(store.number(), lease_reply, begun.elapsed())
        });
    }

    fn handle_done(&mut self, done: TaskResult) {
        match done {
            TaskResult::Connected(Ok((store, messages))) => {
                self.is_connecting = false;
                self.node.cluster().counters.count(ClusterMetric::Reconnects);
                (self.store, self.messages) = (Some(store), Some(messages));
                self.probes = 0;
                self.completeness.restart(Instant::now());
                self.refresh_member_lists();
                self.write_lease();
                self.read_missed();
            }
            TaskResult::Connected(Err(error)) => {
                self.is_connecting = false;
                self.lose_store(&error);
            }
            TaskResult::Failed(error) => self.handle_failure(&error),
            // A late result of a connection that was given up.
            TaskResult::Wrote(number, ..)
                if self.store.as_ref().is_none_or(|store| store.number() != number) => {}
            TaskResult::Wrote(_, Err(error @ StoreError::Closed(_)), _) => self.lose_store(&error),
            TaskResult::Wrote(_, Err(error), _) => self.handle_failure(&error),
            TaskResult::Wrote(_, Ok(lease_reply), lag) => self.handle_lease_reply(lease_reply, lag),
            TaskResult::Sent(id) => self.handle_sent(id),
            TaskResult::Unsent(id, uids) => {
                for uid in uids {
                    if let Some(answered) = self.calls.handle_missing(id, &uid) {
                        self.answer(answered);
                    }
                }
            }
            TaskResult::Missed(read) => self.handle_missed(read),
            TaskResult::KeptAgain(count, kept) => self.handle_kept_again(count, kept),
            TaskResult::MembersWritten(number, batch, written) => {
                self.handle_members_written(number, batch, written);
            }
            TaskResult::MembersRead(Ok(stale)) => {
                let waiting = (0..self.node.workers()).collect();
                self.reconciliation = Some(Reconciliation { stale, waiting });
                self.member_writes.resume();
                self.write_due_members();
                self.tell_workers(|| ClusterToWorker::ListMembers);
            }
            TaskResult::MembersRead(Err(error)) => {
                self.mark_members_lost();
                self.handle_failure(&error);
            }
            TaskResult::Swept(dead, Ok(Some(gone))) => self.handle_swept(&dead, gone),
            TaskResult::Swept(_, Ok(None)) => {}
            TaskResult::Swept(_, Err(error)) => self.handle_failure(&error),
            TaskResult::Changes(done) => self.handle_changes_done(done),
            TaskResult::BudgetsKey(read) => self.handle_budgets_key(read),
            TaskResult::UsersWritten(number, users, elsewhere) => {
                self.handle_users_written(number, users, elsewhere);
            }
            TaskResult::Present(channel, asked, read) => {
                self.handle_present(&channel, &asked, read);
            }
            TaskResult::Nothing => {}
        }
    }

    /// Handles an error of the store that may be temporary while the connection works. A broken connection is detected elsewhere:
    /// its message stream ends, or a lease renewal times out.
    pub(super) fn handle_failure(&mut self, error: &StoreError) {
        match error {
            // The primary or the slot has moved.
            StoreError::Elsewhere(_) | StoreError::Refused(Condition::ReadOnly, _)
                if self.store.is_some() =>
            {
                self.lose_store(error);
            }
            StoreError::Elsewhere(_) | StoreError::Refused(..) => {
                let place = self.address.place();
                self.set_condition(error.condition(), &format!("{place}: {error}"));
            }
            // The pending reconciliation finds what was not written.
            StoreError::Passed(_) | StoreError::Closed(_) => {}
        }
    }

    fn handle_lease_reply(&mut self, mut lease_reply: LeaseReply, lag: Duration) {
        (self.lag, self.attempts) = (lag, 0);
        let counters = &self.node.cluster().counters;
        counters.set(ClusterMetric::Lag, lag.as_micros() as u64);
        match lease_reply.written {
            LeaseWrite::Taken => return self.handle_taken(&lease_reply),
            LeaseWrite::Renewed => {}
            LeaseWrite::Created | LeaseWrite::Revived if !self.has_joined => {
                tracing::info!(node = self.lease.number, prefix = %self.address.prefix(), "joined the cluster");
            }
            LeaseWrite::Created => {
                counters.count(ClusterMetric::LeasesLost);
                self.is_missed_due = true;
                self.show(Condition::RecordLost, "the record of this node was gone");
            }
            LeaseWrite::Revived => {
                counters.count(ClusterMetric::LeasesLost);
                tracing::warn!("the lease of this node had ended: the others took it for dead");
            }
        }
        self.tell_bars();
        let members_stored = self.completeness.take_announcement();
        if lease_reply.written != LeaseWrite::Renewed || members_stored {
            // A node that does not know this one reads the leases.
            let message = NodeMessage { members_stored, ..NodeMessage::from(&self.lease.uid) };
            self.say(vec![(Destination::All, message.encode())]);
        }
        if lease_reply.written != LeaseWrite::Renewed || self.node.cluster().take_members_dropped()
        {
            self.mark_members_lost();
        }
        self.has_joined = true;
        if std::mem::take(&mut self.is_missed_due) {
            self.read_missed();
        }
        self.expire_served();
        for dead in std::mem::take(&mut lease_reply.dead) {
            self.sweep(dead);
        }
        if std::mem::take(&mut self.members_lost) {
            self.compare_members();
        }
        if lease_reply.written != LeaseWrite::Renewed {
            self.user_counts.lose();
            self.budgets.lose_key();
        }
        self.follow_changes(lease_reply.log);
        std::mem::swap(&mut self.nodes, &mut lease_reply.nodes);
        self.node.cluster().set_nodes(self.nodes.clone(), self.node.uptime_ms());
        let others = self.nodes.values().filter(|node| node.uid != self.lease.uid);
        let before = lease_reply.nodes.values().filter(|node| node.uid != self.lease.uid);
        self.completeness.follow(others, before, Instant::now());
        self.follow_occupancy();
        self.read_presence();
        for node in lease_reply.nodes.values().filter(|node| node.is_alive()) {
            let lives = self.nodes.values().any(|of| of.uid == node.uid && of.is_alive());
            if !lives {
                self.give_up_on(node);
            }
        }
        self.write_users();
        self.follow_budgets();
        self.show_standing(lease_reply.log);
    }

    /// Stops waiting for responses of a dead node.
    fn give_up_on(&mut self, node: &Node) {
        let (number, name) = (node.number, &node.facts.name);
        match self.nodes.values().any(|of| of.uid == node.uid && of.facts.left) {
            true => tracing::info!(number, %name, "a node has left"),
            false => tracing::warn!(number, %name, "a node's lease has ended"),
        }
        for id in self.calls.waiting_for(&node.uid) {
            if let Some(answered) = self.calls.handle_missing(id, &node.uid) {
                self.answer(answered);
            }
        }
    }

    /// Another node holds the number: chooses a free one.
    fn handle_taken(&mut self, lease_reply: &LeaseReply) {
        if self.lease.is_wanted
            && let Some(holder) = lease_reply.nodes.get(&self.lease.number)
        {
            let why = format!(
                "{} at {} holds node number {}; this node takes a free one",
                holder.facts.name, holder.facts.client_addr, self.wanted
            );
            self.show_until_restart(Condition::NumberTaken, why);
        }
        self.lease.is_wanted = false;
        let taken: HashSet<u16> = lease_reply.nodes.keys().copied().collect();
        // Picks among the 4,095 numbers, some of which are reserved for a day after their lease.
        self.lease.number = std::iter::repeat_with(random_number)
            .take(1_000)
            .find(|number| !taken.contains(number))
            .unwrap_or_else(random_number);
        self.say_number();
        self.write_lease();
    }

    fn handle_timeout(&mut self) {
        let now = Instant::now();
        for answered in self.calls.expire(now) {
            self.answer(answered);
        }
        self.expire_online(now);
        self.read_presence();
        self.expire_status(now);
        self.announce_budgets(now);
        if now >= self.next {
            match self.store {
                Some(_) => self.write_lease(),
                None => {
                    self.next = now + Duration::from_millis(RECONNECT.max_ms);
                    self.connect();
                }
            }
        }
    }

    // Workers.

    /// Sends the workers the node number for new session ids.
    fn say_number(&self) {
        self.node.cluster().set_number(Some(self.lease.number));
        self.tell_workers(|| ClusterToWorker::NodeNumber);
    }

    pub(super) fn tell_workers(&self, message: impl Fn() -> ClusterToWorker) {
        for worker in 0..self.node.workers() {
            if !self.outbox.send(ClusterOutput::Worker(worker, message())) {
                self.node.cluster().counters.count(ClusterMetric::AnnouncementsDropped);
            }
        }
    }

    fn handle_bus(&mut self, worker: usize, message: ClusterMessage) {
        match message {
            ClusterMessage::Request { token, request } => {
                let origin = CallOrigin { worker, token };
                match *request {
                    ClusterRequest::Command { method, request, to, about } => {
                        self.ask_nodes(origin, (method, request, about), &to);
                    }
                    ClusterRequest::Presence { channel, bytes_max } => {
                        self.ask_presence(origin, &channel, PresenceKind::List { bytes_max });
                    }
                    ClusterRequest::OtherMembers { channel, bytes_max } => {
                        self.ask_presence(origin, &channel, PresenceKind::Others { bytes_max });
                    }
                    ClusterRequest::PresenceStats { channel } => {
                        self.ask_presence(origin, &channel, PresenceKind::Count);
                    }
                }
            }
            ClusterMessage::OnlineQuery(OnlineQuery { request_id, users }) => {
                self.ask_online(request_id, &users);
            }
            ClusterMessage::StatusQuery { request_id, page } => self.ask_status(request_id, page),
            ClusterMessage::SharedChangeRequest(request) => self.handle_change_request(request),
            ClusterMessage::Members(report) => self.handle_members(worker, *report),
            ClusterMessage::UsersChanged => self.write_users(),
            ClusterMessage::Occupancy(changes) => self.handle_occupancy(changes),
            ClusterMessage::NodeReply { request_id, response } => {
                self.handle_served(request_id, &response);
            }
        }
    }

    // Other nodes.

    fn handle_message(&mut self, message: &[u8]) {
        let Ok(message) = serde_json::from_slice::<NodeMessage<'_>>(message) else {
            tracing::warn!("what came over the cluster's channel is no message of a node");
            return;
        };
        if *message.from == *self.lease.uid {
            self.probes = 0; // The probe of this connection, or a broadcast of this node.
            return;
        }
        let is_known =
            self.nodes.values().any(|node| *node.uid == *message.from && node.is_alive());
        if !is_known && self.has_joined && self.newcomers.is_due(&message.from) {
            self.next = Instant::now();
        }
        for change in &message.members {
            self.announce_here(change);
        }
        if message.members_stored {
            self.completeness.handle_stored(&message.from);
            // What it has not announced, because its connection was lost, is in the store now.
            self.refresh_member_lists();
            self.read_presence();
        }
        if let Some(occupancy) = message.occupancy.filter(|_| message.v == VERSION) {
            self.occupancy.handle_message(&message.from.as_ref().into(), occupancy);
        }
        self.handle_bars(&message.bars);
        if let Some(used) = message.budgets.as_ref().filter(|_| message.v == VERSION) {
            self.handle_budgets(used);
        }
        let id = message.id;
        if let Some(response) = message.response {
            let (from, text) = (&message.from, response.get());
            if self.handle_online(id, from, text) || self.handle_status(id, from, text) {
                return;
            }
            let response = response.get().as_bytes();
            if let Some(answered) = self.calls.handle_response(id, &message.from, response) {
                self.answer(answered);
            }
        } else if let Some(name) = &message.call {
            let from: Arc<str> = message.from.as_ref().into();
            let request = message.request.map_or("{}", |request| request.get());
            if *name == online::CALL && message.v == VERSION {
                return self.serve_online(&from, id, request);
            }
            if *name == status::CALL && message.v == VERSION {
                return self.serve_status(from, id, request);
            }
            if *name == changes::CALL && message.v == VERSION {
                return self.read_changes(Some((from, id)));
            }
            match Method::of(name).filter(|_| message.v == VERSION) {
                Some(method) if self.is_without(method, message.about.as_ref()) => {
                    self.node.cluster().counters.count(ClusterMetric::CallsUnconcerned);
                    self.respond(&from, id, answer_without(method));
                }
                Some(method) => {
                    self.carry_out(method, request.as_bytes().into(), Some((from, id)));
                }
                None => {
                    let why = format_args!(
                        "this node is of version {} and does not know {name} of protocol {}",
                        env!("CARGO_PKG_VERSION"),
                        message.v
                    );
                    let (_, body) = ApiErrorCode::NotAvailable.with_reason(why).response(false);
                    self.respond(&from, id, &body);
                }
            }
        }
    }
}

async fn next_message(messages: &mut Option<InboxReader>) -> Option<RawMessage> {
    match messages {
        Some(messages) => messages.next().await,
        None => std::future::pending().await,
    }
}
