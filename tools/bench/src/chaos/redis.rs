//! Servers of Redis that the nodes share, alone or replicated, each behind a proxy whose address all others know.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::deployment::{Deployment, Layout, until};
use super::faults::{Chance, Fault};
use super::proxy::{OTHERS, Peer, Proxy, user};
use crate::fleet::{Redis, address};
use dunlin_load::{Error, say};
use dunlin_wire::backoff::Jitter;

/// A failover that Sentinels accepted may be abandoned on a loaded machine; it is ordered again after this time.
const ORDERED_AGAIN: Duration = Duration::from_secs(15);
const PORT: u16 = 6379;
/// Port of the servers behind the proxies.
const PORT_BEHIND: u16 = 6380;
const SENTINEL_PORT: u16 = 26_379;
/// Port of the cluster bus.
const BUS_PORT: u16 = 16_380;
const SLOTS: usize = 16_384;
/// Primaries of a cluster.
const SHARDS: usize = 3;
const SENTINELS: usize = 3;
/// Slots that move one after the other, keys that move at once, and the longest pause before the next keys.
const SLOTS_MOVED: usize = 12;
const KEYS_MOVED: &str = "10";
const KEYS_PAUSE_MS: u64 = 20;
const APPEND: &str = "appendonly yes\nappendfsync always\n";

struct Server {
    redis: Redis,
    /// The address others know, which is its proxy's.
    address: SocketAddr,
    proxy: Proxy,
}

/// The servers.
pub(super) struct RedisServers {
    layout: Layout,
    servers: Vec<Server>,
    sentinels: Vec<Redis>,
}

impl Deployment for RedisServers {
    fn engine(&self, node: Peer) -> String {
        let (topology, more, known): (_, _, Vec<_>) = match self.layout {
            Layout::Sentinel => (
                "sentinel",
                "sentinel_primaries = [\"main\"]\n",
                self.sentinels.iter().map(|sentinel| sentinel.address).collect(),
            ),
            Layout::Cluster => ("cluster", "", self.addresses().collect()),
            _ => ("servers", "", self.addresses().collect()),
        };
        let known: Vec<String> = known.iter().map(|address| format!("\"{address}\"")).collect();
        let user = user(node);
        format!(
            "[engines.main]\ntopology = \"{topology}\"\naddresses = [{}]\n{more}user = \"{user}\"\npassword = \"{user}\"\n",
            known.join(", ")
        )
    }

    fn proxies(&self) -> Box<dyn Iterator<Item = &Proxy> + '_> {
        Box::new(self.servers.iter().map(|server| &server.proxy))
    }

    fn harm(&mut self, fault: Fault, chance: &mut Chance) -> Result<(), Error> {
        let at = self.any_primary(&mut chance.random)?;
        say(format!("chaos: {fault:?}, server {at}"));
        self.harm_server(fault, at, chance)?;
        // A replica tolerates one failure: all servers must be healthy before the next.
        self.until("all servers are back in their places", Self::is_whole)
    }
}

impl RedisServers {
    /// Starts the servers for this number of nodes.
    pub(super) fn start(layout: Layout, nodes: u8, scratch: &Path) -> Result<Self, Error> {
        let count = match layout {
            Layout::Sentinel => 3,
            Layout::Cluster => 2 * SHARDS,
            _ => 1,
        };
        let mut all = RedisServers { layout, servers: Vec::new(), sentinels: Vec::new() };
        for number in 0..count as u8 {
            all.start_server(number, nodes, scratch)?;
        }
        match layout {
            Layout::Sentinel => all.start_sentinels(scratch)?,
            Layout::Cluster => all.form_cluster()?,
            _ => {}
        }
        all.until("the servers find each other", Self::is_whole)?;
        Ok(all)
    }

    fn start_server(&mut self, number: u8, nodes: u8, scratch: &Path) -> Result<(), Error> {
        let (behind, known) = (address(200 + number, PORT_BEHIND), address(200 + number, PORT));
        let ip = known.ip();
        let mut settings = format!("{APPEND}repl-diskless-sync-delay 0\n");
        for node in 1..=usize::from(nodes) {
            let user = user(node);
            settings += &format!("user {user} on >{user} ~* &* +@all\n");
        }
        settings += &format!("replica-announce-ip {ip}\nreplica-announce-port {PORT}\n");
        if self.layout == Layout::Sentinel
            && let Some(primary) = self.servers.first()
        {
            settings += &format!("replicaof {} {PORT}\n", primary.address.ip());
        }
        if self.layout == Layout::Cluster {
            settings += &format!(
                "cluster-enabled yes\ncluster-node-timeout 2000\ncluster-port {BUS_PORT}\n\
                 cluster-announce-ip {ip}\ncluster-announce-port {PORT}\ncluster-announce-bus-port {BUS_PORT}\n"
            );
        }
        let proxy = Proxy::start(known, behind)?;
        let directory = scratch.join(format!("redis{number}"));
        let redis = Redis::start(behind, directory, &[], &settings)?;
        self.servers.push(Server { redis, address: known, proxy });
        Ok(())
    }

    fn start_sentinels(&mut self, scratch: &Path) -> Result<(), Error> {
        let primary = self.servers[0].address.ip();
        for number in 0..SENTINELS {
            let address = address(220 + number as u8, SENTINEL_PORT);
            let settings = format!(
                "sentinel announce-ip {}\nsentinel announce-port {SENTINEL_PORT}\n\
                 sentinel monitor main {primary} {PORT} 2\nsentinel down-after-milliseconds main 1000\n\
                 sentinel failover-timeout main 3000\n",
                address.ip()
            );
            let directory = scratch.join(format!("sentinel{number}"));
            self.sentinels.push(Redis::sentinel(address, directory, &settings)?);
        }
        Ok(())
    }

    fn form_cluster(&mut self) -> Result<(), Error> {
        let (port, bus) = (PORT.to_string(), BUS_PORT.to_string());
        let first = self.servers[0].address.ip().to_string();
        for (at, server) in self.servers.iter().enumerate() {
            let epoch = (at + 1).to_string();
            server.redis.call(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch])?;
            if at > 0 {
                server.redis.call(&["CLUSTER", "MEET", &first, &port, &bus])?;
            }
            if at < SHARDS {
                let from = (at * SLOTS / SHARDS).to_string();
                let to = ((at + 1) * SLOTS / SHARDS - 1).to_string();
                server.redis.call(&["CLUSTER", "ADDSLOTSRANGE", &from, &to])?;
            }
        }
        for at in SHARDS..self.servers.len() {
            let primary = self.servers[at - SHARDS].redis.call(&["CLUSTER", "MYID"])?;
            let replica = &self.servers[at].redis;
            // Refused until the replica knows the primary.
            self.until("a replica knows its primary", |_| {
                replica.call(&["CLUSTER", "REPLICATE", &primary]).is_ok()
            })?;
        }
        Ok(())
    }

    fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.servers.iter().map(|server| server.address)
    }

    /// Returns any server that is a primary.
    fn any_primary(&self, random: &mut Jitter) -> Result<usize, Error> {
        let primaries = self.primaries();
        match primaries.len() {
            0 => Err(Error::new("no server of Redis is a primary")),
            count => Ok(primaries[random.below(count as u64) as usize]),
        }
    }

    fn primaries(&self) -> Vec<usize> {
        (0..self.servers.len()).filter(|&at| self.is_primary(at)).collect()
    }

    fn is_primary(&self, at: usize) -> bool {
        self.replication(at).contains("role:master")
    }

    fn replication(&self, at: usize) -> String {
        self.servers[at].redis.call(&["INFO", "replication"]).unwrap_or_default()
    }

    fn primaries_wanted(&self) -> usize {
        match self.layout {
            Layout::Cluster => SHARDS,
            _ => 1,
        }
    }

    /// Returns whether all primaries and replicas are in place, and all servers and Sentinels know it.
    fn is_whole(&self) -> bool {
        let primaries = self.primaries();
        let replicas = self.servers.len() / self.primaries_wanted() - 1;
        primaries.len() == self.primaries_wanted()
            && (0..self.servers.len()).all(|at| match primaries.contains(&at) {
                true => self.replication(at).matches("state=online").count() == replicas,
                false => self.replication(at).contains("master_link_status:up"),
            })
            && match self.layout {
                Layout::Sentinel => {
                    let ip = self.servers[primaries[0]].address.ip();
                    let known = format!("{ip}\n{PORT}");
                    self.sentinels.iter().all(|sentinel| self.knows(sentinel, &known))
                }
                Layout::Cluster => self.servers.iter().all(|server| {
                    let ask = |what| server.redis.call(&["CLUSTER", what]).unwrap_or_default();
                    ask("INFO").contains("cluster_state:ok")
                        && !ask("NODES").contains("fail")
                        && ask("NODES").lines().count() == self.servers.len()
                }),
                _ => true,
            }
    }

    /// Returns whether a Sentinel knows this server as the primary, and has found the others.
    fn knows(&self, sentinel: &Redis, primary: &str) -> bool {
        let found = sentinel.call(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
        let quorum = sentinel.call(&["SENTINEL", "CKQUORUM", "main"]);
        let info = sentinel.call(&["INFO", "sentinel"]).unwrap_or_default();
        let others = format!("slaves={},sentinels={SENTINELS}", self.servers.len() - 1);
        found.is_ok_and(|found| found == primary)
            && quorum.is_ok()
            && info.contains("status=ok")
            && info.contains(&others)
    }

    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) -> Result<(), Error> {
        until(what, || holds(self)).inspect_err(|_| {
            for at in 0..self.servers.len() {
                let replication = self.replication(at).replace("\r\n", " ");
                say(format!("chaos: server {at}: {replication}"));
            }
        })
    }

    fn harm_server(&mut self, fault: Fault, at: usize, chance: &mut Chance) -> Result<(), Error> {
        match fault {
            Fault::RedisStopped => {
                self.signal(at, Signal::STOP);
                chance.pause(2);
                self.signal(at, Signal::CONT);
            }
            Fault::RedisKilled | Fault::RedisWiped => {
                self.servers[at].redis.kill(fault == Fault::RedisKilled)?;
                chance.pause(1);
                self.servers[at].redis.begin()?;
            }
            Fault::PubsubKilled => {
                self.call(at, &["CLIENT", "KILL", "TYPE", "pubsub"])?;
            }
            Fault::ScriptsFlushed => {
                self.call(at, &["SCRIPT", "FLUSH"])?;
            }
            Fault::FailoverOrdered => self.fail_over(at, &mut chance.random)?,
            Fault::PrimaryKilled => {
                self.servers[at].redis.kill(true)?;
                self.replaced(at)?;
                chance.pause(1);
                self.servers[at].redis.begin()?;
            }
            Fault::PrimaryStopped => {
                self.signal(at, Signal::STOP);
                let replaced = self.replaced(at);
                self.signal(at, Signal::CONT);
                replaced?;
            }
            Fault::PrimarySplit => self.split(at, || chance.pause(1))?,
            _ => self.move_slots(at, &mut chance.random)?,
        }
        Ok(())
    }

    fn signal(&self, at: usize, signal: Signal) {
        if let Some(process) = self.servers[at].redis.process() {
            process.signal(signal);
        }
    }

    fn call(&self, at: usize, command: &[&str]) -> Result<String, Error> {
        self.servers[at].redis.call(command)
    }

    /// Waits until another server has replaced this one, which the others cannot reach.
    fn replaced(&self, at: usize) -> Result<(), Error> {
        self.until("a replica becomes primary", |all| {
            let others = (0..all.servers.len()).filter(|&other| other != at);
            others.filter(|&other| all.is_primary(other)).count() == all.primaries_wanted()
        })
    }

    /// Orders a failover, as an operator does.
    fn fail_over(&self, at: usize, random: &mut Jitter) -> Result<(), Error> {
        let sentinel = random.below(SENTINELS as u64) as usize;
        let order = |all: &Self| -> Result<(), Error> {
            match all.layout {
                // Sentinel refuses this for some seconds after another failover.
                Layout::Sentinel => {
                    all.sentinels[sentinel].call(&["SENTINEL", "FAILOVER", "main"])?
                }
                Layout::Cluster => all.call(all.replica(at)?, &["CLUSTER", "FAILOVER"])?,
                _ => return Ok(()),
            };
            Ok(())
        };
        if self.layout == Layout::Single {
            return Ok(());
        }
        // A failover that takes too long is abandoned; an operator orders it again.
        let last = Cell::new(None);
        self.until("a replica becomes primary", |all| {
            if !all.is_primary(at) {
                return true;
            }
            if last.get().is_none_or(|at: Instant| at.elapsed() > ORDERED_AGAIN)
                && order(all).is_ok()
            {
                last.set(Some(Instant::now()));
            }
            false
        })
    }

    /// Returns the replica of a primary of a cluster.
    fn replica(&self, at: usize) -> Result<usize, Error> {
        let replicas = self.replication(at);
        let found = self
            .addresses()
            .position(|address| replicas.contains(&format!(":ip={},port={PORT},", address.ip())));
        found.ok_or_else(|| Error::new(format!("a primary has no replica: {replicas:?}")))
    }

    /// Cuts a primary off from its replicas and Sentinels but not from the nodes, which still write to it. A replica
    /// without those writes then takes its place.
    fn split(&self, at: usize, meanwhile: impl FnOnce()) -> Result<(), Error> {
        let proxy = &self.servers[at].proxy;
        let replica = match self.layout {
            Layout::Cluster => Some(self.replica(at)?),
            _ => None,
        };
        proxy.close(OTHERS, true);
        meanwhile();
        let replaced = match replica {
            // Cluster servers reach each other by other paths and would not detect the split.
            Some(replica) => self.call(replica, &["CLUSTER", "FAILOVER", "TAKEOVER"]).map(drop),
            None => self.replaced(at),
        };
        proxy.close(OTHERS, false);
        replaced
    }

    /// Moves slots that have keys from one primary of a cluster to another, some keys after the other.
    fn move_slots(&self, from: usize, random: &mut Jitter) -> Result<(), Error> {
        let others: Vec<usize> = self.primaries().into_iter().filter(|&at| at != from).collect();
        let to = others[random.below(others.len() as u64) as usize];
        let id = |at: usize| self.call(at, &["CLUSTER", "MYID"]);
        let (from_id, to_id) = (id(from)?, id(to)?);
        let keys = self.call(from, &["KEYS", "*"])?;
        // Keys with one tag are in one slot.
        let mut tags: Vec<&str> = keys.lines().filter_map(|key| key.split('}').next()).collect();
        tags.sort_unstable();
        tags.dedup();
        for at in (1..tags.len()).rev() {
            tags.swap(at, random.below(at as u64 + 1) as usize);
        }
        for tag in tags.into_iter().take(SLOTS_MOVED) {
            let slot = &self.call(from, &["CLUSTER", "KEYSLOT", &format!("{tag}}}")])?;
            self.call(to, &["CLUSTER", "SETSLOT", slot, "IMPORTING", &from_id])?;
            self.call(from, &["CLUSTER", "SETSLOT", slot, "MIGRATING", &to_id])?;
            loop {
                let keys = self.call(from, &["CLUSTER", "GETKEYSINSLOT", slot, KEYS_MOVED])?;
                if keys.is_empty() {
                    break;
                }
                let host = self.servers[to].redis.address.ip().to_string();
                let port = PORT_BEHIND.to_string();
                let mut migrate = vec!["MIGRATE", &host, &port, "", "0", "5000", "KEYS"];
                migrate.extend(keys.lines());
                self.call(from, &migrate)?;
                std::thread::sleep(Duration::from_millis(random.below(KEYS_PAUSE_MS)));
            }
            for at in [to, from] {
                self.call(at, &["CLUSTER", "SETSLOT", slot, "NODE", &to_id])?;
            }
        }
        Ok(())
    }
}
