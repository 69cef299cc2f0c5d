//! Tracks which server has which part of the key space.

use dunlin_wire::resp::Value;

use super::partition::{PartitionState, ServerLink};
use super::{Pending, RedisEngine, Topology};
use crate::links::{Links, Server, ServerRole, ShardId};
use crate::status::ShardState;

/// Milliseconds between two requests for the topology during a failure.
const ASK_AGAIN_MS: u64 = 200;

/// Milliseconds until a server that does not answer is given up.
const ANSWER_MS: u64 = 2000;

/// The state of the requests for the topology to Sentinels or cluster nodes.
#[derive(Debug, Default)]
pub(super) struct Discovery {
    /// The connection to the server that is asked.
    link: Option<ShardId>,
    /// The index of that server in the configuration.
    at: usize,
    /// The earliest time of the next request, if one is due.
    ask_ms: Option<u64>,
    ask: bool,
    /// When the unanswered request was sent.
    asked_ms: Option<u64>,
    /// When to switch to another server, after the connection has failed.
    next_ms: Option<u64>,
}

impl RedisEngine {
    pub(super) fn begin_topology(&mut self, now_ms: u64) {
        match self.config.topology.clone() {
            Topology::Servers(servers) => {
                for (partition, server) in servers.into_iter().enumerate() {
                    let shard = self.link_to(server, now_ms);
                    self.partitions[partition].link = Some(shard);
                }
            }
            Topology::Sentinel { .. } | Topology::Cluster { .. } => {
                if let Some(server) = self.askable(0) {
                    self.discovery.link = Some(self.link_to(server, now_ms));
                }
            }
        }
    }

    /// Returns a configured server that knows the topology.
    fn askable(&self, at: usize) -> Option<Server> {
        let (servers, role) = match &self.config.topology {
            Topology::Servers(_) => return None,
            Topology::Sentinel { sentinels, .. } => (sentinels, ServerRole::Sentinel),
            Topology::Cluster { seeds, .. } => (seeds, ServerRole::Data),
        };
        let server = servers.get(at.checked_rem(servers.len())?)?;
        Some(Server { role, ..server.clone() })
    }

    /// Returns the connection to a server, existing or new.
    pub(super) fn link_to(&mut self, server: Server, now_ms: u64) -> ShardId {
        // Two shards may share one server, as in tests and small fleets.
        let shared = match server.role {
            ServerRole::Data => self.keys.is_sharded(),
            ServerRole::Sentinel => true,
            ServerRole::Replica => false,
        };
        let at = self.links.iter().position(|link| shared && !link.closed && link.server == server);
        // A number can be reused once its connection is closed.
        let free = || self.links.iter().position(|link| link.closed && !link.open);
        let at = at.or_else(free);
        match at {
            Some(at) if !self.links[at].closed => ShardId(at as u16),
            Some(at) => {
                self.links[at] = ServerLink::new(server, now_ms);
                ShardId(at as u16)
            }
            None => {
                self.links.push(ServerLink::new(server, now_ms));
                ShardId(self.links.len() as u16 - 1)
            }
        }
    }

    /// Handles a Sentinel that can be asked.
    pub(super) fn sentinel_ready(&mut self, now_ms: u64, shard: ShardId) {
        let link = &mut self.links[usize::from(shard.0)];
        link.enter(now_ms, ShardState::Ready);
        link.detail.clear();
        self.discovery.next_ms = None;
        self.discovery.ask = true;
    }

    /// Handles a cluster node that can be asked.
    pub(super) fn cluster_ready(&mut self, shard: ShardId) {
        if self.keys.is_sharded() {
            let is_up = |shard: ShardId| self.links[usize::from(shard.0)].is_up;
            if self.discovery.link.is_none_or(|link| !is_up(link)) {
                self.discovery.link = Some(shard);
            }
            self.discovery.next_ms = None;
            self.discovery.ask = true;
        }
    }

    /// Requests the topology, because it has changed.
    pub(super) fn refresh_topology(&mut self, now_ms: u64) {
        if self.discovery.link.is_some() && self.discovery.ask_ms.is_none() {
            self.discovery.ask_ms = Some(now_ms + ASK_AGAIN_MS / 4);
        }
    }

    pub(super) fn topology_closed(&mut self, now_ms: u64, shard: ShardId) {
        if self.discovery.link == Some(shard) {
            (self.discovery.asked_ms, self.discovery.ask) = (None, false);
            self.discovery.next_ms.get_or_insert(now_ms + ASK_AGAIN_MS);
        }
        self.refresh_topology(now_ms);
    }

    pub(super) fn topology_timeout(&self) -> Option<u64> {
        let answer_ms = self.discovery.asked_ms.map(|asked_ms| asked_ms + ANSWER_MS);
        [self.discovery.ask_ms, self.discovery.next_ms, answer_ms].into_iter().flatten().min()
    }

    pub(super) fn topology_due(&mut self, now_ms: u64) {
        let is_due = |at_ms: Option<u64>| at_ms.is_some_and(|at_ms| at_ms <= now_ms);
        if is_due(self.discovery.ask_ms) {
            (self.discovery.ask_ms, self.discovery.ask) = (None, true);
        }
        if is_due(self.discovery.asked_ms.map(|asked_ms| asked_ms + ANSWER_MS)) {
            self.discovery.asked_ms = None;
            self.discovery.next_ms = Some(now_ms);
        }
        if is_due(self.discovery.next_ms) {
            self.discovery.next_ms = None;
            self.ask_another(now_ms);
        }
    }

    /// Asks another server after the last one failed or did not answer.
    fn ask_another(&mut self, now_ms: u64) {
        // Any node of a cluster knows the topology.
        let is_data = |link: &ServerLink| link.server.role == ServerRole::Data;
        let up = self.links.iter().position(|link| is_data(link) && link.is_up && !link.closed);
        if self.keys.is_sharded()
            && let Some(at) = up
        {
            self.discovery.link = Some(ShardId(at as u16));
            self.discovery.ask = true;
            return;
        }
        self.discovery.at += 1;
        let Some(server) = self.askable(self.discovery.at) else { return };
        let before = self.discovery.link.take();
        let shard = self.link_to(server, now_ms);
        self.discovery.link = Some(shard);
        if let Some(before) = before.filter(|&before| before != shard) {
            self.close_unused(before);
        }
        self.discovery.next_ms = Some(now_ms + ANSWER_MS);
        self.discovery.ask = self.links[usize::from(shard.0)].is_up;
    }

    /// Marks a connection that serves no partition, so that the next flush closes it.
    pub(super) fn close_unused(&mut self, shard: ShardId) {
        let used = self.partitions.iter().any(|place| {
            let importer = place.moving.as_ref().and_then(|moving| moving.importer());
            place.link == Some(shard) || importer == Some(shard)
        });
        let used = used || self.links.iter().any(|link| link.following.link == Some(shard));
        if !used && self.discovery.link != Some(shard) {
            self.waits_lost(shard);
            self.leave_replica(shard);
            let link = &mut self.links[usize::from(shard.0)];
            // A connection to a replica that is not open yet need not be closed.
            let is_new = link.server.role == ServerRole::Replica && link.open;
            (link.closed, link.is_up, link.open) = (true, false, !is_new);
        }
    }

    pub(super) fn flush_topology(&mut self, now_ms: u64, links: &mut impl Links) {
        let Some(shard) = self.discovery.link.filter(|_| self.discovery.ask) else { return };
        if !self.links[usize::from(shard.0)].is_up {
            return;
        }
        self.discovery.ask = false;
        self.discovery.asked_ms.get_or_insert(now_ms);
        match self.config.topology.clone() {
            Topology::Servers(_) => {}
            Topology::Sentinel { primaries, .. } => {
                links.subscribe(shard, b"+switch-master", false);
                for (partition, name) in primaries.iter().enumerate() {
                    let command: [&[u8]; 3] =
                        [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name.as_bytes()];
                    self.plain_command(links, shard, Pending::Primary(partition), &command);
                }
            }
            Topology::Cluster { .. } => {
                self.plain_command(links, shard, Pending::Slots, &[b"CLUSTER", b"SLOTS"]);
            }
        }
    }

    pub(super) fn primary_reply(&mut self, now_ms: u64, partition: usize, reply: &Value<'_>) {
        self.discovery.asked_ms = None;
        let address = match reply.elements() {
            Some([host, port]) => host.text().zip(port.text().and_then(|port| port.parse().ok())),
            _ => None,
        };
        match address {
            Some((host, port)) => self.primary_at(now_ms, partition, host, port),
            None => {
                if let Some(shard) = self.discovery.link {
                    let link = &mut self.links[usize::from(shard.0)];
                    link.detail = match reply {
                        Value::Error(text) => (*text).to_owned(),
                        _ => "this Sentinel knows no primary of the configured name".to_owned(),
                    };
                }
                self.discovery.next_ms.get_or_insert(now_ms + ASK_AGAIN_MS);
            }
        }
        if self.partitions.iter().any(|place| place.state != PartitionState::Ready) {
            self.discovery.ask_ms.get_or_insert(now_ms + ASK_AGAIN_MS);
        }
    }

    fn primary_at(&mut self, now_ms: u64, partition: usize, host: &str, port: u16) {
        let server = Server { host: host.to_owned(), port, role: ServerRole::Data };
        match self.partitions[partition].link {
            Some(shard) => {
                if self.links[usize::from(shard.0)].server != server {
                    self.waits_lost(shard);
                    self.leave_replica(shard);
                    let link = &mut self.links[usize::from(shard.0)];
                    let probed = link.probe.partition;
                    *link = ServerLink::new(server, now_ms);
                    link.probe.partition = probed;
                    self.partitions[partition].state = PartitionState::Down;
                }
            }
            None => {
                let shard = self.link_to(server, now_ms);
                self.partitions[partition].link = Some(shard);
                self.subscribe_partition(partition);
            }
        }
    }

    /// `+switch-master`: name, old host and port, new host and port.
    pub(super) fn primary_switched(&mut self, now_ms: u64, payload: &[u8]) {
        let Topology::Sentinel { primaries, .. } = &self.config.topology else { return };
        let Ok(text) = str::from_utf8(payload) else { return };
        let words: Vec<&str> = text.split(' ').collect();
        if let [name, _, _, host, port] = words[..]
            && let Some(partition) = primaries.iter().position(|primary| primary == name)
            && let Ok(port) = port.parse()
        {
            self.primary_at(now_ms, partition, host, port);
        }
    }

    /// Subscribes to all channels of a partition on its connection.
    fn subscribe_partition(&mut self, partition: usize) {
        let channels = self.partitions[partition].subscriptions.keys();
        let topics: Vec<_> = channels.map(|channel| (channel.clone(), true)).collect();
        self.topics.extend(topics);
    }

    /// Subscribes again to the channels of a slot that refused a subscription because it has moved or is about to.
    pub(super) fn resubscribe_slot(&mut self, slot: u16) {
        for partition in 0..self.partitions.len() {
            if self.keys.slot(partition) == Some(slot) {
                self.partitions[partition].resubscribe = true;
            }
        }
    }

    pub(super) fn slots_reply(&mut self, now_ms: u64, shard: ShardId, reply: &Value<'_>) {
        self.discovery.asked_ms = None;
        let asked = self.links[usize::from(shard.0)].server.clone();
        let mut owners: Vec<(u16, u16, Server)> = Vec::new();
        for range in reply.elements().unwrap_or_default() {
            let Some([Value::Integer(first), Value::Integer(last), node, ..]) = range.elements()
            else {
                continue;
            };
            let Some([host, Value::Integer(port), ..]) = node.elements() else { continue };
            // An empty host means the host of the node that was asked.
            let host = host.text().filter(|host| !host.is_empty()).unwrap_or(&asked.host);
            let port = u16::try_from(*port).unwrap_or(asked.port);
            let server = Server { host: host.to_owned(), port, role: ServerRole::Data };
            owners.push((*first as u16, *last as u16, server));
        }
        if let Value::Error(text) = reply {
            self.links[usize::from(shard.0)].detail = (*text).to_owned();
        }
        for partition in 0..self.partitions.len() {
            let Some(slot) = self.keys.slot(partition) else { continue };
            let owner = owners.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
            let Some((_, _, owner)) = owner else { continue };
            let before = self.partitions[partition].link;
            let after = self.link_to(owner.clone(), now_ms);
            let resubscribe = std::mem::take(&mut self.partitions[partition].resubscribe);
            if before == Some(after) {
                if resubscribe {
                    // Positions are read after the subscriptions.
                    let place = &mut self.partitions[partition];
                    if place.state == PartitionState::Ready {
                        place.state = PartitionState::Draining;
                    }
                    self.subscribe_partition(partition);
                    self.touch(partition);
                }
                continue;
            }
            if let Some(before) = before {
                let channels = self.partitions[partition].subscriptions.keys();
                self.moved_topics.extend(channels.map(|channel| (before, channel.clone())));
            }
            let is_up = self.links[usize::from(after.0)].is_up;
            self.partitions[partition].relink(Some(after), is_up);
            self.slot_has_moved(partition);
            self.subscribe_partition(partition);
            self.touch(partition);
        }
        for at in 0..self.links.len() {
            self.close_unused(ShardId(at as u16));
        }
        if self.partitions.iter().any(|place| place.state != PartitionState::Ready) {
            self.discovery.ask_ms.get_or_insert(now_ms + ASK_AGAIN_MS);
        }
    }
}
