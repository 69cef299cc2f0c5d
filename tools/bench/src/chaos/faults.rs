//! Injects faults, in an order determined by the seed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::deployment::{Deployment, Layout};
use super::proxy::Proxy;
use crate::fleet::Node;
use dunlin_load::{Error, say};
use dunlin_wire::backoff::Jitter;

/// Most workers of a node that restarts with another number of them.
const WORKERS_MAX: u64 = 3;

/// One way to do harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fault {
    /// A node is killed, and starts again
    NodeKilled,
    /// A node is ended as an operator does, and starts again
    NodeRestarted,
    /// All nodes are restarted as an operator does, one after the other, each with another number of workers, and of another
    /// version where there is one
    NodesRolled,
    /// A node hangs for a while
    NodeStopped,
    /// A server of Redis hangs for a while
    RedisStopped,
    /// A server of Redis is killed, and starts again with all it had
    RedisKilled,
    /// A server of Redis is killed, and starts again with nothing
    RedisWiped,
    /// A server of NATS hangs for a while
    NatsStopped,
    /// A server of NATS is killed, and starts again with all it had
    NatsKilled,
    /// A server of NATS is killed, and starts again with nothing
    NatsWiped,
    /// A node's connections to the servers end
    LinkCut,
    /// A node does not reach the servers for a while
    LinkClosed,
    /// A node's connections to the servers carry nothing for a while
    LinkSilent,
    /// A server of Redis ends the connections that hear publications
    PubsubKilled,
    /// A server of Redis forgets its scripts
    ScriptsFlushed,
    /// An operator has a replica take the place of a primary
    FailoverOrdered,
    /// A primary is killed, and starts again when a replica has taken its place
    PrimaryKilled,
    /// A primary hangs until a replica has taken its place
    PrimaryStopped,
    /// A primary is written to and not replicated, until a replica has taken its place
    PrimarySplit,
    /// Slots of a cluster move to another primary, some keys after the other
    SlotsMoved,
    /// An operator has another server of NATS lead a stream
    LeaderMoved,
    /// The leader of a stream is killed, and starts again when another one leads
    LeaderKilled,
    /// The leader of a stream hangs until another one leads
    LeaderStopped,
    /// The leader of a stream reaches no other server, and nodes reach it, until another one leads
    LeaderSplit,
}

/// Which acknowledged publications a run's faults may lose; for several faults the largest applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loss {
    /// None: every client recovers.
    Nothing,
    /// All publications of a server.
    All,
    /// The latest publications of a server; earlier ones are kept.
    Tail,
}

impl Fault {
    /// Returns whether the fault hits a node or its links to the servers.
    fn is_of_nodes(self) -> bool {
        matches!(
            self,
            Fault::NodeKilled
                | Fault::NodeRestarted
                | Fault::NodesRolled
                | Fault::NodeStopped
                | Fault::LinkCut
                | Fault::LinkClosed
                | Fault::LinkSilent
        )
    }

    pub(super) fn is_possible(self, layout: Layout) -> bool {
        match self {
            Fault::NatsStopped | Fault::NatsKilled | Fault::NatsWiped => layout.is_nats(),
            Fault::LeaderMoved
            | Fault::LeaderKilled
            | Fault::LeaderStopped
            | Fault::LeaderSplit => layout == Layout::NatsCluster,
            Fault::FailoverOrdered
            | Fault::PrimaryKilled
            | Fault::PrimaryStopped
            | Fault::PrimarySplit => layout.has_others() && !layout.is_nats(),
            Fault::SlotsMoved => layout == Layout::Cluster,
            _ => self.is_of_nodes() || !layout.is_nats(),
        }
    }

    pub(super) fn loss(self, layout: Layout) -> Loss {
        match self {
            Fault::RedisWiped | Fault::NatsWiped if !layout.has_others() => Loss::All,
            Fault::RedisStopped | Fault::RedisKilled if layout == Layout::Single => Loss::Nothing,
            // If they last long enough, they end in a failover.
            Fault::RedisWiped
            | Fault::RedisStopped
            | Fault::RedisKilled
            | Fault::FailoverOrdered
            | Fault::PrimaryKilled
            | Fault::PrimaryStopped
            | Fault::PrimarySplit => Loss::Tail,
            // A majority of NATS servers stores every acknowledged publication. But a leader that is cut off may lag
            // behind a client, which is then not recovered.
            Fault::LeaderSplit => Loss::All,
            _ => Loss::Nothing,
        }
    }
}

/// Random choices, derived from the seed.
pub(super) struct Chance {
    pub(super) random: Jitter,
    pub(super) pause_max: Duration,
}

impl Chance {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    /// Sleeps for a random time of at most this many pauses.
    pub(super) fn pause(&mut self, count: u32) {
        let max_ms = (self.pause_max * count).as_millis() as u64;
        std::thread::sleep(Duration::from_millis(self.random.below(max_ms + 1)));
    }
}

/// The nodes and servers that faults are injected into.
pub(super) struct Stage {
    pub(super) nodes: Vec<Node>,
    /// Other versions of the program: for each node, the one that it does not run at present.
    pub(super) versions: Vec<String>,
    pub(super) deployment: Box<dyn Deployment>,
    pub(super) chance: Chance,
    pub(super) counts: BTreeMap<Fault, u64>,
}

impl Stage {
    /// Injects faults of the `chosen` kinds until the given time.
    pub(super) fn torture(&mut self, chosen: &[Fault], until: Instant) -> Result<(), Error> {
        while Instant::now() < until {
            let fault = chosen[self.chance.below(chosen.len())];
            *self.counts.entry(fault).or_default() += 1;
            match fault.is_of_nodes() {
                true => self.harm_node(fault)?,
                false => self.deployment.harm(fault, &mut self.chance)?,
            }
            self.chance.pause(1);
        }
        Ok(())
    }

    fn harm_node(&mut self, fault: Fault) -> Result<(), Error> {
        let at = self.chance.below(self.nodes.len());
        say(format!("chaos: {fault:?}, node {}", at + 1));
        match fault {
            Fault::NodeKilled => {
                self.nodes[at].kill();
                self.chance.pause(1);
                self.nodes[at].begin()?;
            }
            Fault::NodeRestarted => {
                self.nodes[at].stop();
                self.nodes[at].begin()?;
            }
            Fault::NodesRolled => {
                for at in 0..self.nodes.len() {
                    self.nodes[at].stop();
                    self.nodes[at].workers = 1 + self.chance.random.below(WORKERS_MAX) as u8;
                    std::mem::swap(&mut self.nodes[at].program, &mut self.versions[at]);
                    self.nodes[at].begin()?;
                    self.nodes[at].ready()?;
                    self.chance.pause(1);
                }
            }
            Fault::NodeStopped => {
                self.signal_node(at, Signal::STOP);
                self.chance.pause(2);
                self.signal_node(at, Signal::CONT);
            }
            Fault::LinkClosed => self.while_so(|proxy, on| proxy.close(at + 1, on)),
            Fault::LinkSilent => self.while_so(|proxy, on| proxy.silence(at + 1, on)),
            _ => self.deployment.proxies().for_each(|proxy| proxy.cut(at + 1)),
        }
        Ok(())
    }

    fn while_so(&mut self, set: impl Fn(&Proxy, bool)) {
        self.deployment.proxies().for_each(|proxy| set(proxy, true));
        self.chance.pause(2);
        self.deployment.proxies().for_each(|proxy| set(proxy, false));
    }

    fn signal_node(&self, at: usize, signal: Signal) {
        if let Some(process) = self.nodes[at].process() {
            process.signal(signal);
        }
    }
}
