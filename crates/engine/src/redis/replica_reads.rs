//! Reads histories from replicas if [`ReadFrom::ReplicaPreferred`] is configured.
//!
//! A primary lists its replicas (`INFO replication`, with each probe). One of them is read from, on a connection that is opened
//! for the first read and carries nothing else. A replica lags and may be cut off, so **its answer counts only if the primary
//! could have given it**; otherwise the same page is read from the primary:
//!
//! | what | why |
//! |---|---|
//! | the replica's link to its primary is up, and its data are of the primary's generation | it shares the primary's history |
//! | the stream has the epoch and top known here, or a higher top | all that this engine knows of is there |
//! | the answer continues at the requested position without a gap | only the primary decides that something was removed: the clock of a replica may be ahead |
//! | the answer does not decide whether a position is refused | only the primary refuses a position |
//!
//! Positions, generations, subscriptions and everything about a moving slot come from the primary alone.

use std::collections::VecDeque;
use std::sync::Arc;

use dunlin_wire::backoff::Backoff;
use dunlin_wire::resp::{ServerError, Value};

use super::config::{Layout, ReadFrom};
use super::encode::{Arguments, with_renewal};
use super::history::{HistoryRead, Page};
use super::operation::{Operation, Queued};
use super::partition::ServerLink;
use super::{GREETING_MS, Pending, RedisEngine};
use crate::links::{Links, Server, ServerRole, ShardId};
use crate::status::{RefusalReason, ShardState};
use dunlin_hub::StreamPosition;

/// Milliseconds in which a replica has to answer a page; after that the primary is asked.
const ANSWER_MS: u64 = 100;

/// Delay before a failed replica, or another one in its place, is tried again.
const RETRY: Backoff = Backoff { min_ms: 250, max_ms: 5_000 };

/// Consecutive pages that lagged behind, after which the replica is not used for a while.
const BEHIND_MAX: u32 = 16;

/// Maximum bytes of the unanswered pages at a replica.
const PAGES_BYTES_MAX: usize = 16 << 20;

const NO_REPLICA: RefusalReason = RefusalReason {
    name: "no_replica",
    fix: "no replica follows this server, so it answers all reads: start one (INFO replication shows those that follow), or set `read_from = \"primary\"`",
};

const UNREACHABLE: RefusalReason = RefusalReason {
    name: "replica_unreachable",
    fix: "the primary answers all reads: is the replica running, and is it reached at the address that INFO replication of the primary shows (`replica-announce-ip`)?",
};

const SILENT: RefusalReason = RefusalReason {
    name: "replica_silent",
    fix: "the replica did not answer in 100 ms, and the primary answers all reads until it does: see its load",
};

const CUT_OFF: RefusalReason = RefusalReason {
    name: "replica_cut_off",
    fix: "the replica has lost its primary, which answers all reads: see INFO replication of the replica",
};

const BEHIND: RefusalReason = RefusalReason {
    name: "replica_behind",
    fix: "the replica lags behind what subscribers have heard, and the primary answers all reads for a while: see INFO replication, and the network between the two",
};

const PROMOTED: RefusalReason = RefusalReason {
    name: "replica_promoted",
    fix: "it is no replica any more; its primary will say who is",
};

/// The replicas of a primary, stored with the connection to the primary.
#[derive(Debug, Default)]
pub(crate) struct FollowingReplicas {
    /// The replicas that the primary has listed.
    known: Vec<Server>,
    /// The connection to the replica in use.
    pub(super) link: Option<ShardId>,
    /// Index of the next replica to try.
    at: usize,
    /// No replica is tried before this time.
    retry_ms: u64,
    /// Failures since the last successful read.
    failures: u32,
    /// Why no replica is in use.
    pub(super) reason: Option<RefusalReason>,
}

/// The reads of a replica, stored with the connection to it.
#[derive(Debug, Default)]
pub(crate) struct ReplicaReads {
    /// Unanswered reads, in the order of their answers.
    out: VecDeque<ReadOut>,
    bytes: usize,
    wants_check: bool,
    /// When the unanswered check was sent.
    checked_ms: Option<u64>,
    /// Consecutive pages that lagged behind.
    behind: u32,
    /// Streams that are read and whose state would expire; the primary renews them.
    renewals: Vec<(usize, Arc<str>, u64)>,
}

#[derive(Debug)]
struct ReadOut {
    token: u64,
    since_ms: u64,
    page_bytes: usize,
}

/// A page of a history requested from a replica.
#[derive(Debug)]
pub(super) struct ReplicaRead {
    partition: usize,
    /// The number of the generation in which it was requested.
    generations: u32,
    queued: Queued,
}

/// Whether an answer can be used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Coverage {
    Whole,
    /// The replica has less of the stream than is known here.
    Behind,
    /// Only the primary can decide.
    Undecided,
}

impl ReplicaReads {
    /// Removes an answered or lost read.
    fn ended(&mut self, token: u64) {
        if let Some(at) = self.out.iter().position(|out| out.token == token)
            && let Some(out) = self.out.remove(at)
        {
            self.bytes -= out.page_bytes;
        }
    }

    fn late_ms(&self) -> Option<u64> {
        self.out.front().map(|out| out.since_ms + ANSWER_MS)
    }
}

impl ServerLink {
    /// Returns when a timeout of a replica is due.
    pub(super) fn replica_due_ms(&self) -> Option<u64> {
        let due_ms = self.reads.late_ms().into_iter().chain([self.probe.next_ms]).min();
        due_ms.filter(|_| !self.closed)
    }
}

impl RedisEngine {
    /// Sets which servers histories are read from.
    pub fn set_read_from(&mut self, read_from: ReadFrom) {
        self.config.read_from = read_from;
        if !self.reads_from_replicas() {
            for at in 0..self.links.len() {
                self.leave_replica(ShardId(at as u16));
                self.links[at].following = FollowingReplicas::default();
            }
        }
    }

    fn reads_from_replicas(&self) -> bool {
        self.config.read_from == ReadFrom::ReplicaPreferred && self.config.layout == Layout::Dunlin
    }

    /// Records the replicas that a primary has listed, with host and port of each.
    pub(super) fn replicas_said(&mut self, primary: ShardId, said: &str) {
        if !self.reads_from_replicas() {
            return;
        }
        let server = |text: &str| {
            let (host, port) = text.split_once(' ')?;
            let (host, port) = (host.to_owned(), port.parse().ok()?);
            Some(Server { host, port, role: ServerRole::Replica })
        };
        let known: Vec<Server> = said.split(',').filter_map(server).collect();
        let following = &self.links[usize::from(primary.0)].following;
        let link = following.link.map(|link| &self.links[usize::from(link.0)].server);
        if link.is_some_and(|server| !known.contains(server)) {
            self.leave_replica(primary);
        }
        let (seed, following) = (self.id, &mut self.links[usize::from(primary.0)].following);
        if known.is_empty() {
            following.reason = Some(NO_REPLICA);
        } else if following.known.is_empty() {
            // The random start spreads workers and nodes over the replicas.
            (following.at, following.reason) = ((seed >> 32) as usize, None);
        }
        following.known = known;
    }

    /// Returns the primary of the replica at this connection.
    fn primary_of(&self, replica: ShardId) -> Option<ShardId> {
        let at = self.links.iter().position(|link| link.following.link == Some(replica));
        at.map(|at| ShardId(at as u16))
    }

    /// Returns the replica of a primary that can be asked. Connects to one if there is none.
    fn replica_of(&mut self, now_ms: u64, primary: ShardId) -> Option<ShardId> {
        let following = &self.links[usize::from(primary.0)].following;
        if let Some(replica) = following.link {
            let link = &self.links[usize::from(replica.0)];
            let takes =
                link.is_up && link.state == ShardState::Ready && link.reads.bytes < PAGES_BYTES_MAX;
            return takes.then_some(replica);
        }
        if now_ms >= following.retry_ms && !following.known.is_empty() {
            let server = following.known[following.at % following.known.len()].clone();
            let replica = self.link_to(server, now_ms);
            self.links[usize::from(primary.0)].following.link = Some(replica);
        }
        None
    }

    /// Stops using the connection to the replica of a primary.
    pub(super) fn leave_replica(&mut self, primary: ShardId) {
        let following = &mut self.links[usize::from(primary.0)].following;
        if let Some(replica) = following.link.take() {
            self.withdraw_reads(replica);
            self.close_unused(replica);
        }
    }

    /// Redirects the unanswered reads of a replica to the primary.
    fn withdraw_reads(&mut self, replica: ShardId) {
        let reads = &mut self.links[usize::from(replica.0)].reads;
        reads.bytes = 0;
        for out in std::mem::take(&mut reads.out) {
            let pending = &mut self.pending[out.token as usize];
            if let Some(Pending::Replica(read)) = pending.replace(Pending::Ignored) {
                self.read_from_primary(*read);
            }
        }
    }

    fn read_from_primary(&mut self, read: ReplicaRead) {
        let ReplicaRead { partition, mut queued, .. } = read;
        self.stats.replica_misses += 1;
        if let Operation::History(read) = &mut queued.operation {
            read.latest = true;
        }
        self.partitions[partition].histories.push_front(queued);
        self.touch(partition);
    }

    pub(super) fn replica_connected(&mut self, now_ms: u64, replica: ShardId) {
        let link = &mut self.links[usize::from(replica.0)];
        if !matches!(link.state, ShardState::Refused(_)) {
            link.enter(now_ms, ShardState::Greeting);
        }
        (link.reads.wants_check, link.reads.checked_ms) = (true, None);
        link.probe.next_ms = now_ms + GREETING_MS;
    }

    /// Handles a connection to a replica that was lost or could not be opened.
    pub(super) fn replica_unreachable(&mut self, now_ms: u64, replica: ShardId) {
        let reason = match self.links[usize::from(replica.0)].state {
            ShardState::Refused(reason) => reason,
            ShardState::Silent => SILENT,
            _ => UNREACHABLE,
        };
        self.replica_failed(now_ms, replica, reason);
    }

    /// Stops reading from a replica until it is checked again. Selects another replica if there is one.
    fn replica_failed(&mut self, now_ms: u64, replica: ShardId, reason: RefusalReason) {
        self.withdraw_reads(replica);
        let Some(primary) = self.primary_of(replica) else { return };
        let following = &mut self.links[usize::from(primary.0)].following;
        following.reason = Some(reason);
        following.failures = following.failures.saturating_add(1);
        let retry_ms = now_ms + RETRY.delay_ms(following.failures);
        if following.known.len() > 1 {
            (following.at, following.retry_ms) = (following.at.wrapping_add(1), retry_ms);
            self.leave_replica(primary);
        } else {
            self.links[usize::from(replica.0)].probe.next_ms = retry_ms;
        }
    }

    /// Handles an error reply of a replica.
    fn replica_refused(&mut self, now_ms: u64, replica: ShardId, text: &str) {
        let error = ServerError::parse(text);
        let link = &mut self.links[usize::from(replica.0)];
        if error == ServerError::NoScript {
            (link.load, link.reads.wants_check) = (true, true);
            return link.enter(now_ms, ShardState::Greeting);
        }
        let reason = match error {
            ServerError::MasterDown => CUT_OFF,
            ServerError::Moved { .. } => PROMOTED,
            _ if text.starts_with("PROMOTED") => PROMOTED,
            error => error.into(),
        };
        text.clone_into(&mut link.detail);
        link.enter(now_ms, ShardState::Refused(reason));
        self.replica_failed(now_ms, replica, reason);
        if reason == PROMOTED {
            self.refresh_topology(now_ms);
        }
    }

    pub(super) fn replica_checked(&mut self, now_ms: u64, replica: ShardId, reply: &Value<'_>) {
        self.links[usize::from(replica.0)].reads.checked_ms = None;
        if let Value::Error(text) = reply {
            return self.replica_refused(now_ms, replica, text);
        }
        let link = &mut self.links[usize::from(replica.0)];
        link.enter(now_ms, ShardState::Ready);
        link.detail.clear();
        link.reads.behind = 0;
        link.probe.next_ms = now_ms + self.config.probe_interval_ms;
        if let Some(primary) = self.primary_of(replica) {
            let following = &mut self.links[usize::from(primary.0)].following;
            (following.failures, following.reason) = (0, None);
        }
    }

    /// Handles the timeouts of a connection to a replica.
    pub(super) fn replica_timeout(&mut self, now_ms: u64, replica: ShardId) {
        let link = &mut self.links[usize::from(replica.0)];
        if link.closed {
            return;
        }
        if link.reads.late_ms().is_some_and(|late_ms| late_ms <= now_ms) {
            link.enter(now_ms, ShardState::Refused(SILENT));
            return self.replica_failed(now_ms, replica, SILENT);
        }
        if now_ms < link.probe.next_ms {
            return;
        }
        link.probe.next_ms = now_ms + self.config.probe_interval_ms;
        let timeout_ms = self.config.probe_timeout_ms;
        match link.reads.checked_ms {
            _ if !link.is_up => {
                (link.reconnect, link.probe.next_ms) = (true, now_ms + GREETING_MS);
            }
            None => link.reads.wants_check = true,
            Some(checked_ms) if now_ms < checked_ms + timeout_ms => {
                link.probe.next_ms = checked_ms + timeout_ms;
            }
            Some(_) => {
                self.stats.silences += 1;
                link.enter(now_ms, ShardState::Silent);
                (link.is_up, link.reconnect) = (false, true);
                link.probe.next_ms = now_ms + GREETING_MS;
                self.replica_failed(now_ms, replica, SILENT);
            }
        }
    }

    /// Sends the pending checks to replicas.
    pub(super) fn flush_replicas(&mut self, now_ms: u64, links: &mut impl Links) {
        for at in 0..self.links.len() {
            let (shard, link) = (ShardId(at as u16), &mut self.links[at]);
            for (partition, channel, ttl_ms) in std::mem::take(&mut link.reads.renewals) {
                let state = self.keys.state(partition, &channel);
                let ttl_ms = ttl_ms.to_string();
                let renew: [&[u8]; 3] = [b"PEXPIRE", &state, ttl_ms.as_bytes()];
                if let Some(primary) = self.partitions[partition].link {
                    self.plain_command(links, primary, Pending::Ignored, &renew);
                }
            }
            let link = &mut self.links[at];
            if link.server.role != ServerRole::Replica || !link.is_up || link.closed {
                continue;
            }
            let sha = self.scripts.replica_history.sha.clone();
            if std::mem::take(&mut link.load) {
                let text = self.scripts.replica_history.text.clone();
                let load: [&[u8]; 3] = [b"SCRIPT", b"LOAD", text.as_bytes()];
                self.plain_command(links, shard, Pending::Ignored, &load);
                if self.keys.is_sharded() {
                    self.plain_command(links, shard, Pending::Ignored, &[b"READONLY"]);
                }
            }
            let reads = &mut self.links[at].reads;
            if std::mem::take(&mut reads.wants_check) {
                reads.checked_ms = Some(now_ms);
                let check = Arguments::script(&sha, 0);
                let check = check.slices();
                self.plain_command(links, shard, Pending::ReplicaCheck, &check);
            }
        }
    }

    /// Sends a replica those pages of a partition that it may answer.
    pub(super) fn flush_replica_reads(
        &mut self,
        now_ms: u64,
        partition: usize,
        primary: ShardId,
        links: &mut impl Links,
    ) {
        let mut at = 0;
        while self.reads_from_replicas()
            && let Some(queued) = self.partitions[partition].histories.get(at)
        {
            if !self.replica_may_have(partition, queued) {
                at += 1;
                continue;
            }
            let Some(replica) = self.replica_of(now_ms, primary) else { return };
            let Some(queued) = self.partitions[partition].histories.remove(at) else { return };
            let Operation::History(read) = &queued.operation else { return };
            let (arguments, page_bytes) =
                (self.encode_replica_history(partition, read), read.page_bytes);
            let generations = self.partitions[partition].generations;
            let read = Box::new(ReplicaRead { partition, generations, queued });
            let token = self.hold(Pending::Replica(read));
            if arguments.send(links, replica, token).is_ok() {
                let reads = &mut self.links[usize::from(replica.0)].reads;
                reads.bytes += page_bytes;
                reads.out.push_back(ReadOut { token, since_ms: now_ms, page_bytes });
            } else if let Some(Pending::Replica(read)) = self.release(token) {
                return self.partitions[partition].histories.insert(at, read.queued);
            }
        }
    }

    /// Returns whether a replica may be asked: the position that its answer has to reach is known, or nothing is known of the
    /// channel.
    fn replica_may_have(&self, partition: usize, queued: &Queued) -> bool {
        let Operation::History(read) = &queued.operation else { return false };
        let place = &self.partitions[partition];
        let is_known_now = self.known_now(partition, &read.channel).is_some();
        let has_measure = match place.subscriptions.get(&read.channel) {
            Some(subscription) => subscription.synced == place.syncs && is_known_now,
            None => is_known_now || self.known(&read.channel).is_none(),
        };
        // A read without entries asks for a position.
        has_measure && !read.latest && place.moving.is_none() && read.rest().limit != Some(0)
    }

    /// Returns whether the primary could have given a replica's answer.
    fn coverage(&self, read: &ReplicaRead, of: &HistoryRead, page: &Page) -> Coverage {
        if self.partitions[read.partition].generations != read.generations
            || !self.replica_may_have(read.partition, &read.queued)
        {
            return Coverage::Undecided;
        }
        let (at, rest) = (page.position, of.rest());
        let known = self.known_now(read.partition, &of.channel);
        let is_known = |epoch, top| epoch == at.epoch && top <= at.offset;
        if known.is_some_and(|known| !is_known(known.epoch, known.top))
            || rest.since.is_some_and(|since| since.offset > at.offset)
        {
            return Coverage::Behind;
        }
        let Ok(history) = &page.selected else { return Coverage::Undecided };
        let since = rest.since.filter(|_| !rest.reverse).map(|since| since.offset);
        let follows = match (history.publications.first(), since) {
            (Some(first), Some(since)) => first.offset() == since + 1,
            (Some(_), None) => true,
            (None, since) => page.more > 0 || since.unwrap_or(0) == at.offset,
        };
        if follows { Coverage::Whole } else { Coverage::Undecided }
    }

    pub(super) fn replica_reply(
        &mut self,
        now_ms: u64,
        replica: ShardId,
        token: u64,
        read: ReplicaRead,
        reply: &Value<'_>,
    ) {
        self.links[usize::from(replica.0)].reads.ended(token);
        let Operation::History(of) = &read.queued.operation else { return };
        let (page, ttl_ms) = match (reply, reply.elements()) {
            (_, Some([epoch, top, before, entries, more, ttl_ms])) => {
                (self.page(of, [epoch, top, before, entries, more]), ttl_ms)
            }
            (Value::Error(text), _) if text.starts_with("BEHIND") => {
                return self.replica_behind(now_ms, replica, read);
            }
            (Value::Error(text), _) => {
                self.read_from_primary(read);
                return self.replica_refused(now_ms, replica, text);
            }
            _ => return self.read_from_primary(read),
        };
        match self.coverage(&read, of, &page) {
            Coverage::Whole => {}
            Coverage::Behind => return self.replica_behind(now_ms, replica, read),
            Coverage::Undecided => return self.read_from_primary(read),
        }
        self.stats.replica_reads += 1;
        let partition = read.partition;
        let reads = &mut self.links[usize::from(replica.0)].reads;
        reads.behind = 0;
        let Operation::History(of) = read.queued.operation else { return };
        let meta_ttl_ms = of.retention.meta_ttl_ms;
        if meta_ttl_ms > 0
            && let Value::Integer(ttl_ms) = ttl_ms
            && *ttl_ms < i64::try_from(meta_ttl_ms).unwrap_or(i64::MAX)
        {
            let ttl_ms = with_renewal(meta_ttl_ms, of.retention);
            reads.renewals.push((partition, Arc::clone(&of.channel), ttl_ms));
        }
        self.reaches(now_ms, partition, &of.channel, page.position);
        self.page_came(now_ms, partition, of, page);
    }

    /// Handles an answer of a replica that has less than is known here.
    fn replica_behind(&mut self, now_ms: u64, replica: ShardId, read: ReplicaRead) {
        self.read_from_primary(read);
        let link = &mut self.links[usize::from(replica.0)];
        link.reads.behind += 1;
        if link.reads.behind >= BEHIND_MAX {
            link.enter(now_ms, ShardState::Refused(BEHIND));
            self.replica_failed(now_ms, replica, BEHIND);
        }
    }

    /// Reads a page from the primary after the connection to the replica was lost.
    pub(super) fn replica_lost(&mut self, replica: ShardId, token: u64, read: ReplicaRead) {
        if let Some(link) = self.links.get_mut(usize::from(replica.0)) {
            link.reads.ended(token);
        }
        self.read_from_primary(read);
    }

    /// Records that the stream of a channel, if it is known here, reaches at least this position.
    pub(super) fn reaches(
        &mut self,
        now_ms: u64,
        partition: usize,
        channel: &Arc<str>,
        at: StreamPosition,
    ) {
        if self.known_now(partition, channel).is_some_and(|known| known.epoch == at.epoch) {
            self.learn(now_ms, partition, channel, at, None);
        }
    }
}
