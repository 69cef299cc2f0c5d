//! The agent's part for presence: what workers report goes to Redis, and what others have announced to workers.

use std::collections::HashSet;
use std::sync::Arc;

use dunlin_config::HookEventKind;
use dunlin_hub::{SessionId, UnsubscribeCause};
use dunlin_webhooks::{HookEvent, HookEventBody};

use super::agent::{Agent, TaskResult};
use super::calls::CallOrigin;
use super::link::Commands;
use super::members::{NodeKeys, bounded, counted};
use super::message::{MemberChange, NodeMessage, unix_ms};
use super::state::ClusterMetric;
use crate::api::ApiErrorCode;
use crate::bus_message::BusMessage;
use crate::cluster_message::{ClusterAnswer, MembersReport, RemoteMember};

/// Members whose coming and going is announced in one message.
const MEMBERS_A_MESSAGE: usize = 256;

impl Agent {
    pub(super) fn place(&self) -> NodeKeys {
        NodeKeys { prefix: Arc::clone(&self.prefix), uid: Arc::clone(&self.lease.uid) }
    }

    pub(super) fn handle_members(&mut self, worker: usize, report: MembersReport) {
        match report {
            MembersReport::Changed(events) => {
                let place = self.place();
                // Without a connection, or before the lease is written on it, they are found by the comparison that is due.
                if self.members_lost {
                    return;
                }
                let changes = events.iter().map(|event| place.change(event)).collect();
                if !self.member_writes.add(changes) {
                    self.members_lost = true;
                }
                self.write_due_members();
            }
            MembersReport::All(events) => {
                let place = self.place();
                let listed: Vec<_> = events.iter().map(|event| place.change(event)).collect();
                let stale = self.comparison.as_mut().and_then(|of| of.handle_list(worker, &listed));
                if self.members_lost {
                    return;
                }
                self.member_writes.add_listed(listed);
                if let Some(stale) = stale {
                    self.comparison = None;
                    self.member_writes.add_listed(stale);
                }
                self.write_due_members();
            }
            MembersReport::Lost => self.lose_members(),
        }
    }

    /// What waits is not written any more: all members are compared with what Redis has.
    pub(super) fn lose_members(&mut self) {
        self.members_lost = true;
        self.member_writes.clear();
    }

    /// Writes what waits, as much as may be out at once.
    pub(super) fn write_due_members(&mut self) {
        if let Some(link) = self.link.clone() {
            let changes = self.member_writes.take();
            let count = changes.len();
            if count > 0 {
                let written = self.place().write(&link, changes);
                self.jobs.spawn(async move { TaskResult::MembersWritten(count, written.await) });
            }
        }
        let counters = &self.state.cluster.counters;
        counters.set(ClusterMetric::MembersPending, self.member_writes.count() as u64);
    }

    /// Compares this node's members with what Redis has of them, and corrects that.
    pub(super) fn compare_members(&mut self) {
        let Some(link) = self.link.clone() else { return };
        self.state.cluster.counters.count(ClusterMetric::Resyncs);
        let place = self.place();
        self.jobs.spawn(async move {
            TaskResult::MembersRead(place.of_process(&link, &place.uid).await)
        });
    }

    /// Removes what a dead process has left, unless another node does.
    pub(super) fn sweep(&mut self, dead: Arc<str>) {
        let Some(link) = self.link.clone() else { return };
        let (place, claim_ms) = (self.place(), self.lease.lease_ms);
        self.jobs.spawn(async move {
            let swept = place.sweep(&link, &dead, claim_ms).await;
            TaskResult::Swept(dead, swept)
        });
    }

    /// Tells everybody of a dead node's members that they have gone: this node alone does, for it has removed them.
    pub(super) fn handle_swept(&mut self, dead: &str, gone: Vec<MemberChange>) {
        let counters = &self.state.cluster.counters;
        counters.set(ClusterMetric::Swept, counters.get(ClusterMetric::Swept) + gone.len() as u64);
        for change in &gone {
            self.emit_unsubscribe(change);
            if change.member.join_leave {
                self.announce_here(change);
            }
        }
        let announced: Vec<_> =
            gone.into_iter().filter(|change| change.member.join_leave).collect();
        let mut commands = self.announcements(&announced);
        self.place().forget(&mut commands, dead);
        self.spawn(commands);
    }

    fn emit_unsubscribe(&mut self, change: &MemberChange) {
        self.hooks.set_filter(&self.state.settings.load().event_filter);
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
        let event = HookEvent { unix_ms: unix_ms(), body };
        let to = self.state.webhooks_endpoint();
        let _ = self.to_workers.send((to, BusMessage::HookEvent(Box::new(event))));
    }

    /// Tells the other nodes who has come and gone.
    pub(super) fn announce(&mut self, changes: &[MemberChange]) {
        let commands = self.announcements(changes);
        if !commands.is_empty() {
            self.spawn(commands);
        }
    }

    fn announcements(&self, changes: &[MemberChange]) -> Commands {
        let channel = format!("{}:calls", self.prefix);
        let mut commands = Commands::default();
        for members in changes.chunks(MEMBERS_A_MESSAGE) {
            let message =
                NodeMessage { members: members.to_vec(), ..NodeMessage::from(&self.lease.uid) };
            commands.push(&[b"PUBLISH", channel.as_bytes(), &message.encode()]);
        }
        commands
    }

    /// Tells the subscribers on this node.
    pub(super) fn announce_here(&self, change: &MemberChange) {
        let Some(client) = SessionId::from_u64(change.client) else { return };
        let info = Arc::new(change.member.info(client));
        // The home worker of the channel is one of them; the others have nobody to tell.
        self.tell_workers(|| {
            BusMessage::RemoteMember(Box::new(RemoteMember {
                channel: Arc::clone(&change.channel),
                info: Arc::clone(&info),
                joined: change.joined,
            }))
        });
    }

    /// Reads who is in a channel; without a bound, how many.
    pub(super) fn read_presence(
        &mut self,
        origin: CallOrigin,
        channel: &str,
        bytes_max: Option<usize>,
    ) {
        let answer = move |present: Result<_, _>| match bytes_max {
            Some(max) => ClusterAnswer::Presence(present.and_then(|all| bounded(all, max))),
            None => ClusterAnswer::PresenceStats(present.map(|all| counted(&all))),
        };
        let unknown = |why: &dyn std::fmt::Display| {
            let why = format_args!("presence on other nodes is unknown: {why}");
            ApiErrorCode::Internal.with_reason(why)
        };
        let Some(link) = self.link.clone() else {
            let why = unknown(&"there is no connection to the cluster's Redis");
            return self.answer_worker(origin, answer(Err(why)));
        };
        let living = self.nodes.values().filter(|node| node.is_alive());
        let mut living: HashSet<Arc<str>> = living.map(|node| Arc::clone(&node.uid)).collect();
        living.insert(Arc::clone(&self.lease.uid));
        let present = self.place().present(&link, channel, living, self.address.foreign_presence());
        self.jobs.spawn(async move {
            TaskResult::Present(origin, answer(present.await.map_err(|error| unknown(&error))))
        });
    }
}
