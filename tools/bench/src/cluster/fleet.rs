//! The nodes of a measurement and the server that they share.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::store::Store;
use super::{ClusterBench, Round, Side};
use crate::fleet::{Node, SETTINGS, address};
use crate::token::SECRET;
use dunlin_load::{Error, Process, Scratch};

/// History settings of the channels.
#[derive(Debug, Clone, Copy)]
pub(super) enum Channel {
    Plain,
    /// A hundred messages for five minutes, from which clients recover.
    History,
    Presence,
}

impl Channel {
    /// Dunlin's settings.
    fn settings(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::History => {
                "history_size = 100\nhistory_ttl_ms = 300_000\nrecover = true\npositioned = true\n"
            }
            Self::Presence => "presence = true\n",
        }
    }

    /// The peer's flags.
    fn flags(self) -> &'static str {
        match self {
            Self::Plain => "-history=false -presence=false",
            Self::History => "-presence=false",
            Self::Presence => "-history=false",
        }
    }
}

/// A node, Dunlin's or the peer's.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) client: SocketAddr,
    pub(super) process: Process,
}

/// Nodes and the server that they share, for one measurement.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) nodes: Vec<Server>,
    pub(super) store: Store,
    _scratch: Scratch,
}

/// What nodes of Dunlin to start.
#[derive(Debug)]
pub(super) struct FleetPlan<'a> {
    pub(super) nodes: u8,
    pub(super) workers: u8,
    /// Settings of clients.
    pub(super) client: &'a str,
    pub(super) channel: Channel,
}

/// CPU time of the nodes and the server.
#[derive(Debug)]
pub(super) struct Cpu {
    nodes: Vec<u64>,
    store: u64,
}

impl Fleet {
    /// Starts this many nodes of one side.
    pub(super) fn start(
        options: &ClusterBench,
        side: Side,
        nodes: u8,
        channel: Channel,
    ) -> Result<Self, Error> {
        match (side, &options.peer) {
            (Side::Peer, Some(program)) => Self::of_peer(options, program, nodes, channel),
            _ => {
                let workers = options.workers;
                Self::with(options, &FleetPlan { nodes, workers, client: "", channel })
            }
        }
    }

    pub(super) fn with(options: &ClusterBench, plan: &FleetPlan<'_>) -> Result<Self, Error> {
        let (scratch, store) = store(options)?;
        let FleetPlan { client, channel, .. } = plan;
        let settings = SETTINGS.replacen("[client]\n", &format!("[client]\n{client}"), 1);
        let settings = format!(
            "{settings}{}[client.token]\nhmac_secret = \"{SECRET}\"\n\
             [engines.main]\n{}\n[cluster]\nengine = \"main\"\n",
            channel.settings(),
            store.settings()
        );
        let start = |number| {
            let (path, cores) = (scratch.path(), &options.server_core);
            Node::start(&options.program, number, plan.workers, path, cores, &settings)
        };
        let nodes = (1..=plan.nodes).map(start).collect::<Result<Vec<_>, _>>()?;
        for node in &nodes {
            node.ready()?;
        }
        let server =
            |node: Node| Some(Server { client: node.client, process: node.into_process()? });
        Ok(Self { nodes: nodes.into_iter().filter_map(server).collect(), store, _scratch: scratch })
    }

    /// Starts nodes of the peer, which check positions and presence as often as Centrifugo's do.
    fn of_peer(
        options: &ClusterBench,
        program: &Path,
        nodes: u8,
        channel: Channel,
    ) -> Result<Self, Error> {
        let (scratch, store) = store(options)?;
        let start = |number| {
            let client = address(number, 8000);
            let command = format!(
                "'{}' -listen {client} -redis {} -position-check 40s -join-leave=false {}",
                program.display(),
                store.redis()?.address,
                channel.flags()
            );
            let process = Process::start(&command, &options.server_core, client, None)?;
            Ok(Server { client, process })
        };
        let nodes = (1..=nodes).map(start).collect::<Result<Vec<_>, Error>>()?;
        Ok(Self { nodes, store, _scratch: scratch })
    }

    pub(super) fn cpu(&self) -> Cpu {
        Cpu {
            nodes: self.nodes.iter().map(|node| node.process.cpu_ns()).collect(),
            store: self.store.cpu_ns(),
        }
    }

    /// Returns the cores that nodes and server used since then.
    pub(super) fn cores(&self, since: &Cpu, time: Duration) -> f64 {
        let sum = |cpu: &Cpu| cpu.nodes.iter().sum::<u64>() + cpu.store;
        (sum(&self.cpu()) - sum(since)) as f64 / time.as_nanos() as f64
    }

    /// Adds the CPU time per item since then to a round.
    pub(super) fn cost(&self, since: &Cpu, count: usize, round: &mut Round) {
        let now = self.cpu();
        let each = |now: u64, then: u64| Some((now - then) as f64 / 1e3 / count.max(1) as f64);
        round.node_us = each(now.nodes[0], since.nodes[0]);
        round.other_us = now.nodes.get(1).and_then(|&other| each(other, since.nodes[1]));
        round.server_us = each(now.store, since.store);
    }
}

/// Starts a server on the generator's cores.
fn store(options: &ClusterBench) -> Result<(Scratch, Store), Error> {
    let scratch = Scratch::temporary("cluster")?;
    let store = Store::start(options.store, &scratch, &options.core)?;
    Ok((scratch, store))
}
