//! What goes wrong, in an order that the seed says.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::deployment::{Deployment, Layout};
use super::proxy::Proxy;
use crate::fleet::Node;
use dunlin_load::{Error, say};
use dunlin_wire::backoff::Jitter;

/// Workers of a node that was changed, at most.
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
    /// A node's connections to Redis end
    LinkCut,
    /// A node does not reach Redis for a while
    LinkClosed,
    /// A node's connections to Redis carry nothing for a while
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
}

/// What of the acknowledged publications faults may lose; of several the last counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loss {
    /// Nothing: everybody recovers.
    Nothing,
    /// All of a server.
    All,
    /// The last ones of a server: what was before is there.
    Tail,
}

impl Fault {
    pub(super) fn is_possible(self, layout: Layout) -> bool {
        match self {
            Fault::FailoverOrdered
            | Fault::PrimaryKilled
            | Fault::PrimaryStopped
            | Fault::PrimarySplit => layout != Layout::Single,
            Fault::SlotsMoved => layout == Layout::Cluster,
            _ => true,
        }
    }

    pub(super) fn loss(self, layout: Layout) -> Loss {
        match self {
            Fault::RedisWiped if layout == Layout::Single => Loss::All,
            Fault::RedisStopped | Fault::RedisKilled if layout == Layout::Single => Loss::Nothing,
            // Slow enough, they end in a failover.
            Fault::RedisWiped
            | Fault::RedisStopped
            | Fault::RedisKilled
            | Fault::FailoverOrdered
            | Fault::PrimaryKilled
            | Fault::PrimaryStopped
            | Fault::PrimarySplit => Loss::Tail,
            _ => Loss::Nothing,
        }
    }
}

/// Whom faults happen to.
pub(super) struct Stage {
    pub(super) nodes: Vec<Node>,
    /// Another version of the program, for each node that it has not now.
    pub(super) versions: Vec<String>,
    pub(super) deployment: Deployment,
    pub(super) random: Jitter,
    pub(super) counts: BTreeMap<Fault, u64>,
}

impl Stage {
    /// Does harm until then, in the ways that are `chosen`, with so long between two of them at most.
    pub(super) fn torture(
        &mut self,
        chosen: &[Fault],
        until: Instant,
        pause_max: Duration,
    ) -> Result<(), Error> {
        while Instant::now() < until {
            let fault = chosen[self.random.below(chosen.len() as u64) as usize];
            *self.counts.entry(fault).or_default() += 1;
            self.carry_out(fault, pause_max)?;
            self.pause(pause_max);
        }
        Ok(())
    }

    fn pause(&mut self, max: Duration) {
        let ms = self.random.below(max.as_millis() as u64 + 1);
        std::thread::sleep(Duration::from_millis(ms));
    }

    fn carry_out(&mut self, fault: Fault, pause_max: Duration) -> Result<(), Error> {
        let at = self.random.below(self.nodes.len() as u64) as usize;
        match fault {
            Fault::NodeKilled
            | Fault::NodeRestarted
            | Fault::NodesRolled
            | Fault::NodeStopped
            | Fault::LinkCut
            | Fault::LinkClosed
            | Fault::LinkSilent => {
                say(format!("chaos: {fault:?}, node {}", at + 1));
                self.harm_node(fault, at, pause_max)
            }
            _ => {
                let at = self.deployment.any_primary(&mut self.random)?;
                say(format!("chaos: {fault:?}, server {at}"));
                self.harm_server(fault, at, pause_max)?;
                // Two servers that fail at once are more than a replica is there for.
                self.deployment.settle()
            }
        }
    }

    fn harm_node(&mut self, fault: Fault, at: usize, pause_max: Duration) -> Result<(), Error> {
        match fault {
            Fault::NodeKilled => {
                self.nodes[at].kill();
                self.pause(pause_max);
                self.nodes[at].begin()?;
            }
            Fault::NodeRestarted => {
                self.nodes[at].stop();
                self.nodes[at].begin()?;
            }
            Fault::NodesRolled => {
                for at in 0..self.nodes.len() {
                    self.nodes[at].stop();
                    self.nodes[at].workers = 1 + self.random.below(WORKERS_MAX) as u8;
                    std::mem::swap(&mut self.nodes[at].program, &mut self.versions[at]);
                    self.nodes[at].begin()?;
                    self.nodes[at].ready()?;
                    self.pause(pause_max);
                }
            }
            Fault::NodeStopped => {
                self.signal_node(at, Signal::STOP);
                self.pause(2 * pause_max);
                self.signal_node(at, Signal::CONT);
            }
            Fault::LinkClosed => self.while_so(pause_max, |proxy, on| proxy.close(at + 1, on)),
            Fault::LinkSilent => self.while_so(pause_max, |proxy, on| proxy.silence(at + 1, on)),
            _ => self.deployment.proxies().for_each(|proxy| proxy.cut(at + 1)),
        }
        Ok(())
    }

    fn while_so(&mut self, pause_max: Duration, set: impl Fn(&Proxy, bool)) {
        self.deployment.proxies().for_each(|proxy| set(proxy, true));
        self.pause(2 * pause_max);
        self.deployment.proxies().for_each(|proxy| set(proxy, false));
    }

    fn harm_server(&mut self, fault: Fault, at: usize, pause_max: Duration) -> Result<(), Error> {
        match fault {
            Fault::RedisStopped => {
                self.deployment.signal(at, Signal::STOP);
                self.pause(2 * pause_max);
                self.deployment.signal(at, Signal::CONT);
            }
            Fault::RedisKilled | Fault::RedisWiped => {
                self.deployment.kill(at, fault == Fault::RedisKilled)?;
                self.pause(pause_max);
                self.deployment.begin(at)?;
            }
            Fault::PubsubKilled => {
                self.deployment.call(at, &["CLIENT", "KILL", "TYPE", "pubsub"])?;
            }
            Fault::ScriptsFlushed => {
                self.deployment.call(at, &["SCRIPT", "FLUSH"])?;
            }
            Fault::FailoverOrdered => self.deployment.fail_over(at, &mut self.random)?,
            Fault::PrimaryKilled => {
                self.deployment.kill(at, true)?;
                self.deployment.replaced(at)?;
                self.pause(pause_max);
                self.deployment.begin(at)?;
            }
            Fault::PrimaryStopped => {
                self.deployment.signal(at, Signal::STOP);
                let replaced = self.deployment.replaced(at);
                self.deployment.signal(at, Signal::CONT);
                replaced?;
            }
            Fault::PrimarySplit => {
                let ms = self.random.below(pause_max.as_millis() as u64 + 1);
                let pause = || std::thread::sleep(Duration::from_millis(ms));
                self.deployment.split(at, pause)?;
            }
            _ => self.deployment.move_slots(at, &mut self.random)?,
        }
        Ok(())
    }

    fn signal_node(&self, at: usize, signal: Signal) {
        if let Some(process) = self.nodes[at].process() {
            process.signal(signal);
        }
    }
}
