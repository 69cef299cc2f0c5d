//! The presence part of the agent: stores what workers report, and passes announcements of other nodes to the workers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dunlin_api::server_api::{ApiError, ApiErrorCode};
use dunlin_config::HookEventKind;
use dunlin_hub::{MemberListError, SessionId, UnsubscribeCause};
use dunlin_webhooks::{HookEvent, HookEventBody};
use tokio::time::{Instant, timeout};

use super::agent::{Agent, TaskResult};
use super::calls::CallOrigin;
use super::completeness::Readiness;
use super::inbox::InboxReader;
use super::lease::Node;
use super::member_writes::MemberBatch;
use super::members::{self, Gathered};
use super::node_message::{MemberChange, NodeMessage, unix_ms};
use super::occupancy::OccupancyKey;
use super::presence_reads::{PresenceKind, PresenceRequest, WAITING_MAX};
use super::state::ClusterMetric;
use super::store::{Destination, StoreError};
use crate::message::{
    ClusterOutput, ClusterReply, ClusterToWorker, MembersReport, OccupancyChange, RemoteMember,
};

/// How long reports of workers that have lost changes are collected, before all members are compared with the store.
const LOST_REPORTS: Duration = Duration::from_millis(20);
/// The most joins and leaves in one announcement.
const MEMBERS_A_MESSAGE: usize = 256;

impl Agent {
    pub(super) fn handle_members(&mut self, worker: usize, report: MembersReport) {
        match report {
            MembersReport::Changed(events) => {
                let uid = &self.lease.uid;
                // There is no connection, or the lease is not written on it yet: the pending reconciliation finds these changes.
                if self.members_lost {
                    return;
                }
                let changes = events.iter().map(|event| members::change(uid, event)).collect();
                if !self.member_writes.add(changes) {
                    self.lose_members();
                }
                self.write_due_members();
            }
            MembersReport::All(events) => {
                let uid = &self.lease.uid;
                let listed: Vec<_> =
                    events.iter().map(|event| members::change(uid, event)).collect();
                let stale =
                    self.reconciliation.as_mut().and_then(|of| of.handle_list(worker, &listed));
                if self.members_lost {
                    return;
                }
                self.member_writes.add_listed(listed);
                if let Some(stale) = stale {
                    self.reconciliation = None;
                    self.member_writes.add_listed(stale);
                    self.completeness.handle_listed();
                }
                self.write_due_members();
                self.check_members_stored();
            }
            MembersReport::Lost => {
                self.lose_members();
                // The renewal starts the reconciliation. The reports of several workers lead to one.
                if self.store.is_some() {
                    self.next = self.next.min(Instant::now() + LOST_REPORTS);
                }
            }
        }
    }

    /// Drops the pending writes; a reconciliation of all members with the store replaces them.
    pub(super) fn lose_members(&mut self) {
        self.members_lost = true;
        self.member_writes.clear();
        self.completeness.lose(Instant::now());
    }

    /// Marks the members for a reconciliation. Pending writes are not dropped: one in flight could be overtaken by the reading of
    /// the store, and a pending leave would then be missing.
    pub(super) fn mark_members_lost(&mut self) {
        self.members_lost = true;
        self.completeness.lose(Instant::now());
    }

    /// Allows reads of presence, and tells the other nodes, once the store has all members of this node.
    pub(super) fn check_members_stored(&mut self) {
        if self.members_lost || self.reconciliation.is_some() || self.member_writes.has_listed() {
            return;
        }
        if self.completeness.handle_written() {
            self.next = Instant::now();
        }
        self.read_presence();
    }

    /// Writes pending changes, up to the bound on those in flight.
    pub(super) fn write_due_members(&mut self) {
        if let Some(store) = self.store.clone() {
            let batch = self.member_writes.take();
            if !batch.changes.is_empty() {
                let written = store.write_members(&batch.changes);
                self.jobs.spawn(async move {
                    TaskResult::MembersWritten(store.number(), batch, written.await)
                });
            }
        }
        let counters = &self.node.cluster().counters;
        counters.set(ClusterMetric::MembersPending, self.member_writes.count() as u64);
    }

    pub(super) fn handle_members_written(
        &mut self,
        number: u64,
        batch: MemberBatch,
        written: Result<Vec<bool>, StoreError>,
    ) {
        self.member_writes.handle_done(&batch);
        self.read_own_members();
        match written {
            Ok(written) => {
                let written = batch.changes.into_iter().zip(written);
                let announced =
                    written.filter(|((of, _), has_changed)| of.member.join_leave && *has_changed);
                let announced: Vec<_> = announced.map(|((of, _), _)| of).collect();
                self.announce(&announced);
            }
            // A write without an answer may still arrive at the store, which ignores it once the next connection has begun.
            Err(error @ StoreError::Closed(_))
                if self.store.as_ref().is_some_and(|store| store.number() == number) =>
            {
                self.lose_store(&error);
            }
            Err(error) => {
                self.lose_members();
                self.handle_failure(&error);
            }
        }
        self.write_due_members();
        self.check_members_stored();
    }

    /// Starts a reconciliation: compares this node's members with the store and corrects the store.
    pub(super) fn compare_members(&mut self) {
        self.member_writes.pause();
        self.is_comparison_due = true;
        self.read_own_members();
    }

    /// Reads what the store has of this node, once no write is under way that the reading could overtake.
    fn read_own_members(&mut self) {
        let Some(store) = &self.store else { return };
        if !self.is_comparison_due || !self.member_writes.is_at_rest() {
            return;
        }
        self.is_comparison_due = false;
        self.node.cluster().counters.count(ClusterMetric::Resyncs);
        let read = store.own_members();
        self.jobs.spawn(async move { TaskResult::MembersRead(read.await) });
    }

    /// Removes the records of a dead process, unless another node does so.
    pub(super) fn sweep(&mut self, dead: Arc<str>) {
        let Some(store) = &self.store else { return };
        let swept = store.sweep(Arc::clone(&dead), self.lease.lease_ms);
        self.jobs.spawn(async move { TaskResult::Swept(dead, swept.await) });
    }

    /// Announces the leaves of a dead node's members. Only the node that removed them does so.
    pub(super) fn handle_swept(&mut self, dead: &Arc<str>, gone: Vec<MemberChange>) {
        let counters = &self.node.cluster().counters;
        counters.set(ClusterMetric::Swept, counters.get(ClusterMetric::Swept) + gone.len() as u64);
        for change in &gone {
            self.emit_unsubscribe(change);
            if change.member.join_leave {
                self.announce_here(change);
            }
        }
        let announced: Vec<_> =
            gone.into_iter().filter(|change| change.member.join_leave).collect();
        let Some(store) = self.store.clone() else { return };
        let sent = store.send(self.announcements(&announced));
        let dead = Arc::clone(dead);
        self.spawn(async move {
            sent.await?;
            store.forget(dead).await
        });
    }

    /// Takes the occupancy of channels on this node.
    pub(super) fn handle_occupancy(&mut self, changes: Vec<OccupancyChange>) {
        for OccupancyChange { channel, user, edge } in changes {
            self.occupancy.handle_own(OccupancyKey { channel, user }, edge);
        }
    }

    /// The leases were read: the nodes that are alive own the occupancy of channels.
    pub(super) fn follow_occupancy(&mut self) {
        let shares = |node: &&Node| node.is_alive() && node.facts.shares_occupancy;
        let living = self.nodes.values().filter(shares).map(|node| Arc::clone(&node.uid));
        self.occupancy.set_living(living);
        self.occupancy.handle_connected();
    }

    /// Sends and emits what occupancy leads to.
    pub(super) fn flush_occupancy(&mut self) {
        let messages = self.occupancy.take_messages().into_iter().map(|(to, message)| {
            let message =
                NodeMessage { occupancy: Some(message), ..NodeMessage::from(&self.lease.uid) };
            (Destination::Node(to), message.encode())
        });
        let messages = messages.collect();
        self.say(messages);
        let events = self.occupancy.take_events();
        if events.is_empty() {
            return;
        }
        self.hooks.set_filter(&self.node.event_filter());
        for (OccupancyKey { channel, user }, occupied) in events {
            let kind = match (&user, occupied) {
                (None, true) => HookEventKind::ChannelOccupied,
                (None, false) => HookEventKind::ChannelVacated,
                (Some(_), true) => HookEventKind::MemberAdded,
                (Some(_), false) => HookEventKind::MemberRemoved,
            };
            if !self.hooks.wants_from(kind, &channel) {
                continue;
            }
            self.emit(match user {
                None => HookEventBody::Occupied { channel, occupied },
                Some(user) => {
                    HookEventBody::Member { channel, user: (&*user).into(), added: occupied }
                }
            });
        }
    }

    fn emit(&self, body: HookEventBody) {
        let event = HookEvent { unix_ms: unix_ms(), body };
        let _ = self.outbox.send(ClusterOutput::Webhooks(Box::new(event)));
    }

    fn emit_unsubscribe(&mut self, change: &MemberChange) {
        self.hooks.set_filter(&self.node.event_filter());
        let Some(session) = SessionId::from_u64(change.client) else { return };
        if !self.hooks.wants_from(HookEventKind::Unsubscribe, &change.channel) {
            return;
        }
        let body = HookEventBody::Unsubscribe {
            session,
            user: change.member.user.clone(),
            channel: Arc::clone(&change.channel),
            cause: UnsubscribeCause::Disconnect,
        };
        self.emit(body);
    }

    /// Announces joins and leaves to the other nodes.
    pub(super) fn announce(&mut self, changes: &[MemberChange]) {
        self.say(self.announcements(changes));
    }

    fn announcements(&self, changes: &[MemberChange]) -> Vec<(Destination, Vec<u8>)> {
        let message = |members: &[MemberChange]| {
            let members = members.to_vec();
            (
                Destination::All,
                NodeMessage { members, ..NodeMessage::from(&self.lease.uid) }.encode(),
            )
        };
        changes.chunks(MEMBERS_A_MESSAGE).map(message).collect()
    }

    /// Counts joins and leaves of other nodes that were dropped on their way to this agent. If some were, here or on the way
    /// to a worker, the workers read the lists of members again.
    pub(super) fn count_dropped(&mut self) {
        let dropped = self.messages.as_ref().map_or(0, InboxReader::take_dropped);
        let (counters, metric) =
            (&self.node.cluster().counters, ClusterMetric::AnnouncementsDropped);
        let dropped = counters.get(metric) + dropped;
        counters.set(metric, dropped);
        if std::mem::replace(&mut self.announcements_dropped, dropped) != dropped {
            self.refresh_member_lists();
            self.occupancy.handle_lost();
        }
    }

    /// Announcements of other nodes may not have come: the workers read the lists of members again.
    pub(super) fn refresh_member_lists(&self) {
        self.tell_workers(|| ClusterToWorker::RefreshMemberLists);
    }

    /// Announces a join or leave to the subscribers on this node.
    pub(super) fn announce_here(&self, change: &MemberChange) {
        let Some(client) = SessionId::from_u64(change.client) else { return };
        let info = Arc::new(change.member.info(client));
        // One of the workers is the channel's home; the others ignore the message.
        self.tell_workers(|| {
            ClusterToWorker::RemoteMember(Box::new(RemoteMember {
                channel: Arc::clone(&change.channel),
                info: Arc::clone(&info),
                joined: change.joined,
            }))
        });
    }

    /// Queues a request for the members of a channel.
    pub(super) fn ask_presence(
        &mut self,
        origin: CallOrigin,
        channel: &Arc<str>,
        kind: PresenceKind,
    ) {
        let request = PresenceRequest { origin, kind };
        if self.store.is_none() {
            let server = self.address.server();
            let why = format_args!("there is no connection to the cluster's {server}");
            return self.answer_presence(&request, Err(unknown(&why)));
        }
        if !self.presence_reads.add(channel, request) {
            self.node.cluster().counters.count(ClusterMetric::PresenceRefused);
            let why = format_args!("{WAITING_MAX} requests for presence wait; ask again later");
            let refused = ApiErrorCode::LimitExceeded.with_reason(why);
            return self.answer_presence(&request, Err(refused));
        }
        self.read_presence();
    }

    /// Starts pending reads, up to the bound on concurrent ones, unless the store may lack members.
    pub(super) fn read_presence(&mut self) {
        let Some(store) = self.store.clone() else { return };
        let within = self.call_timeout;
        match self.completeness.readiness(Instant::now(), within) {
            Readiness::Ready => {}
            Readiness::Waiting(_) => return,
            Readiness::Overdue(why) => return self.refuse_presence(&why),
        }
        while let Some((channel, asked)) = self.presence_reads.begin() {
            self.node.cluster().counters.count(ClusterMetric::PresenceReads);
            let living = self.nodes.values().filter(|node| node.is_alive());
            let mut living: HashSet<Arc<str>> = living.map(|node| Arc::clone(&node.uid)).collect();
            living.insert(Arc::clone(&self.lease.uid));
            let bytes_max = asked.iter().filter_map(|request| request.kind.bytes_max()).max();
            let is_counted = asked.iter().any(|request| request.kind == PresenceKind::Count);
            let gathered = Gathered::new(living, bytes_max, is_counted).apart_from(&self.lease.uid);
            let read = store.members_in(&channel, gathered);
            let server = self.address.server();
            self.jobs.spawn(async move {
                let read = timeout(within, read).await.unwrap_or_else(|_| {
                    let why = format!("{server} has not answered within {} ms", within.as_millis());
                    Err(StoreError::Closed(why.into()))
                });
                TaskResult::Present(channel, asked, read)
            });
        }
    }

    /// When the requests that wait for other members must be answered.
    pub(super) fn presence_deadline(&self) -> Option<Instant> {
        match self.completeness.readiness(Instant::now(), self.call_timeout) {
            Readiness::Waiting(until) if self.presence_reads.has_waiting() => Some(until),
            Readiness::Overdue(_) if self.presence_reads.has_waiting() => Some(Instant::now()),
            _ => None,
        }
    }

    pub(super) fn handle_present(
        &mut self,
        channel: &Arc<str>,
        asked: &[PresenceRequest],
        gathered: Result<Gathered, StoreError>,
    ) {
        self.presence_reads.end(channel);
        if let Err(error @ StoreError::Closed(_)) = &gathered {
            // The other requests would wait for the same server.
            self.refuse_presence(error);
        }
        let gathered = gathered.map_err(|error| unknown(&error));
        for request in asked {
            self.answer_presence(request, gathered.as_ref().map_err(ApiError::clone));
        }
        self.read_presence();
    }

    /// Answers the waiting requests with an error.
    pub(super) fn refuse_presence(&mut self, why: &dyn std::fmt::Display) {
        for request in self.presence_reads.take_waiting() {
            self.answer_presence(&request, Err(unknown(why)));
        }
    }

    fn answer_presence(&self, request: &PresenceRequest, gathered: Result<&Gathered, ApiError>) {
        let answer = match request.kind {
            PresenceKind::List { bytes_max } => {
                ClusterReply::Presence(gathered.and_then(|all| all.list(bytes_max)))
            }
            PresenceKind::Others { bytes_max } => ClusterReply::OtherMembers(match gathered {
                Ok(all) => all.others(bytes_max).ok_or(MemberListError::TooLarge),
                Err(_) => Err(MemberListError::Unavailable),
            }),
            PresenceKind::Count => ClusterReply::PresenceStats(gathered.map(Gathered::stats)),
        };
        self.answer_worker(request.origin, answer);
    }
}

fn unknown(why: &dyn std::fmt::Display) -> ApiError {
    ApiErrorCode::Internal.with_reason(format_args!("presence on other nodes is unknown: {why}"))
}
