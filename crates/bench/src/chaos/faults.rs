//! What goes wrong, in an order that the seed says.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::proxy::Proxy;
use crate::fleet::{Node, Redis};
use dunlin_load::{Error, say};
use dunlin_wire::backoff::Jitter;

/// One way to do harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fault {
    /// A node is killed, and starts again
    NodeKilled,
    /// A node is ended as an operator does, and starts again
    NodeRestarted,
    /// A node hangs for a while
    NodeStopped,
    /// Redis hangs for a while
    RedisStopped,
    /// Redis is killed, and starts again with all it had
    RedisKilled,
    /// Redis is killed, and starts again with nothing
    RedisWiped,
    /// A node's connections to Redis end
    LinkCut,
    /// A node does not reach Redis for a while
    LinkClosed,
    /// A node's connections to Redis carry nothing for a while
    LinkSilent,
    /// Redis ends the connections that hear publications
    PubsubKilled,
    /// Redis forgets its scripts
    ScriptsFlushed,
}

/// Whom faults happen to.
pub(super) struct Stage {
    pub(super) nodes: Vec<Node>,
    pub(super) redis: Redis,
    pub(super) proxies: Vec<Proxy>,
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
        say(format!("chaos: {fault:?}, node {}", at + 1));
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
            Fault::NodeStopped => {
                self.signal_node(at, Signal::STOP);
                self.pause(2 * pause_max);
                self.signal_node(at, Signal::CONT);
            }
            Fault::RedisStopped => {
                self.signal_redis(Signal::STOP);
                self.pause(2 * pause_max);
                self.signal_redis(Signal::CONT);
            }
            Fault::RedisKilled | Fault::RedisWiped => {
                self.redis.kill(fault == Fault::RedisKilled)?;
                self.pause(pause_max);
                self.redis.begin()?;
            }
            Fault::LinkCut => self.proxies[at].cut(),
            Fault::LinkClosed => {
                self.proxies[at].close(true);
                self.pause(2 * pause_max);
                self.proxies[at].close(false);
            }
            Fault::LinkSilent => {
                self.proxies[at].silence(true);
                self.pause(2 * pause_max);
                self.proxies[at].silence(false);
            }
            Fault::PubsubKilled => {
                self.redis.call(&["CLIENT", "KILL", "TYPE", "pubsub"])?;
            }
            Fault::ScriptsFlushed => {
                self.redis.call(&["SCRIPT", "FLUSH"])?;
            }
        }
        Ok(())
    }

    fn signal_node(&self, at: usize, signal: Signal) {
        if let Some(process) = self.nodes[at].process() {
            process.signal(signal);
        }
    }

    fn signal_redis(&self, signal: Signal) {
        if let Some(process) = self.redis.process() {
            process.signal(signal);
        }
    }
}
