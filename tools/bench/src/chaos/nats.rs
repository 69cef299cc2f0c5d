//! Servers of NATS that the nodes share, one or three. Each has an address for every node and every other server, which
//! a proxy serves.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::deployment::{Deployment, Layout, until};
use super::faults::{Chance, Fault};
use super::proxy::{Peer, Proxy};
use crate::fleet::address;
use dunlin_load::installed::installed;
use dunlin_load::{Context, Error, Process, say};

/// First port for nodes and for other servers; each peer adds its number.
const NODE_PORT: u16 = 4_223;
const ROUTE_PORT: u16 = 6_323;
/// Port of the servers behind the proxies.
const PORT_BEHIND: u16 = 4_222;
const ROUTE_PORT_BEHIND: u16 = 6_322;
const SERVERS: u8 = 3;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A server of NATS and its store.
struct Server {
    address: SocketAddr,
    command: String,
    store: PathBuf,
    process: Option<Process>,
    /// Proxies for nodes and for other servers.
    nodes: Proxy,
    routes: Proxy,
}

/// The servers.
pub(super) struct NatsServers {
    servers: Vec<Server>,
}

/// Returns the address at which a peer reaches a server, both numbered from 1.
fn way(server: u8, first: u16, peer: Peer) -> SocketAddr {
    address(200 + server, first + peer as u16 - 1)
}

fn name(at: usize) -> String {
    format!("server{at}")
}

impl Deployment for NatsServers {
    fn engine(&self, node: Peer) -> String {
        let servers = 1..=self.servers.len() as u8;
        let known: Vec<String> =
            servers.map(|server| format!("\"{}\"", way(server, NODE_PORT, node))).collect();
        format!(
            "[engines.main]\ntype = \"nats\"\naddresses = [{}]\nstream_replicas = {}\n",
            known.join(", "),
            self.servers.len()
        )
    }

    fn proxies(&self) -> Box<dyn Iterator<Item = &Proxy> + '_> {
        Box::new(self.servers.iter().map(|server| &server.nodes))
    }

    fn harm(&mut self, fault: Fault, chance: &mut Chance) -> Result<(), Error> {
        let (at, stream) = match fault {
            Fault::NatsStopped | Fault::NatsKilled | Fault::NatsWiped => {
                (chance.below(self.servers.len()), String::new())
            }
            _ => self.any_leader(chance)?,
        };
        say(format!("chaos: {fault:?}, server {at} {stream}"));
        match fault {
            Fault::NatsStopped => {
                self.signal(at, Signal::STOP);
                chance.pause(2);
                self.signal(at, Signal::CONT);
            }
            Fault::NatsKilled | Fault::NatsWiped => {
                self.servers[at].kill(fault == Fault::NatsKilled)?;
                chance.pause(1);
                self.servers[at].begin()?;
            }
            Fault::LeaderKilled => {
                self.servers[at].kill(true)?;
                self.replaced(at)?;
                chance.pause(1);
                self.servers[at].begin()?;
            }
            Fault::LeaderStopped => {
                self.signal(at, Signal::STOP);
                let replaced = self.replaced(at);
                self.signal(at, Signal::CONT);
                replaced?;
            }
            Fault::LeaderSplit => {
                self.set_split(at, true);
                let replaced = self.replaced(at);
                self.set_split(at, false);
                replaced?;
            }
            _ => {
                self.servers[at].ask(&format!("STREAM.LEADER.STEPDOWN.{stream}"))?;
            }
        }
        // Three servers tolerate one failure: all must be healthy before the next.
        self.until("all servers are back in their places", Self::is_whole)
    }
}

impl NatsServers {
    /// Starts the servers for this number of nodes.
    pub(super) fn start(layout: Layout, nodes: u8, scratch: &Path) -> Result<Self, Error> {
        let count = if layout == Layout::NatsCluster { SERVERS } else { 1 };
        let servers = (1..=count).map(|server| Server::start(server, count, nodes, scratch));
        let all = NatsServers { servers: servers.collect::<Result<_, _>>()? };
        all.until("the servers find each other", Self::is_whole)?;
        Ok(all)
    }

    /// Returns the names of the streams that a server knows.
    fn streams(&self, at: usize) -> Result<Vec<String>, Error> {
        let answer = self.servers[at].ask("STREAM.NAMES")?;
        let names = answer["streams"].as_array().into_iter().flatten();
        Ok(names.filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// Returns the server that leads a stream, as reported by the server `asked`.
    fn leader(&self, asked: usize, stream: &str) -> Option<usize> {
        if self.servers.len() == 1 {
            return Some(0);
        }
        let answer = self.servers[asked].ask(&format!("STREAM.INFO.{stream}")).ok()?;
        (0..self.servers.len()).find(|&at| answer["cluster"]["leader"] == name(at))
    }

    /// Returns a server that leads a stream, and the stream. The leader may be about to change.
    fn any_leader(&self, chance: &mut Chance) -> Result<(usize, String), Error> {
        self.until("the streams have leaders", |all| {
            all.streams(0).is_ok_and(|streams| {
                !streams.is_empty() && streams.iter().all(|of| all.leader(0, of).is_some())
            })
        })?;
        let mut streams = self.streams(0)?;
        let stream = streams.swap_remove(chance.below(streams.len()));
        let leader = self.leader(0, &stream);
        Ok((leader.ok_or_else(|| Error::new("a stream has lost its leader"))?, stream))
    }

    /// Returns whether every server has all messages of every stream.
    fn is_whole(&self) -> bool {
        (0..self.servers.len()).all(|at| {
            let streams = self.streams(at).unwrap_or_default();
            let has_all = |stream: &String| {
                let answer = self.servers[at].ask(&format!("STREAM.INFO.{stream}"));
                let answer = answer.unwrap_or_default();
                let replicas = answer["cluster"]["replicas"].as_array();
                answer["error"].is_null()
                    && (self.servers.len() == 1
                        || replicas.is_some_and(|replicas| {
                            replicas.len() + 1 == self.servers.len()
                                && replicas.iter().all(|replica| {
                                    replica["current"] == true && replica["offline"] != true
                                })
                        }))
            };
            self.servers[at].ask("INFO").is_ok_and(|answer| answer["error"].is_null())
                && streams.iter().all(has_all)
        })
    }

    /// Waits until other servers lead all streams.
    fn replaced(&self, at: usize) -> Result<(), Error> {
        let asked = usize::from(at == 0);
        self.until("another server leads", |all| {
            all.streams(asked).is_ok_and(|streams| {
                let leads = |stream: &String| all.leader(asked, stream).is_some_and(|of| of != at);
                !streams.is_empty() && streams.iter().all(leads)
            })
        })
    }

    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) -> Result<(), Error> {
        until(what, || holds(self)).inspect_err(|_| {
            for (at, server) in self.servers.iter().enumerate() {
                for what in ["INFO", "STREAM.INFO.dunlin", "STREAM.INFO.dunlin-cluster"] {
                    say(format!("chaos: server {at}: {:?}", server.ask(what)));
                }
            }
        })
    }

    /// Cuts a server off from all others, or reconnects it.
    fn set_split(&self, at: usize, is_split: bool) {
        for (other, server) in self.servers.iter().enumerate() {
            if other != at {
                server.routes.close(at + 1, is_split);
                self.servers[at].routes.close(other + 1, is_split);
            }
        }
    }

    fn signal(&self, at: usize, signal: Signal) {
        if let Some(process) = &self.servers[at].process {
            process.signal(signal);
        }
    }
}

impl Server {
    fn start(number: u8, count: u8, nodes: u8, scratch: &Path) -> Result<Self, Error> {
        let address = address(200 + number, PORT_BEHIND);
        let behind = SocketAddr::new(address.ip(), ROUTE_PORT_BEHIND);
        let directory = scratch.join(name(usize::from(number) - 1));
        std::fs::create_dir_all(&directory).context("cannot create a directory for NATS")?;
        let mut settings = format!(
            "server_name: {}\nlisten: \"{address}\"\njetstream {{ store_dir: {directory:?} }}\n",
            name(usize::from(number) - 1)
        );
        let others = (1..=count).filter(|&other| other != number);
        if count > 1 {
            let own = usize::from(number);
            let routes = others
                .clone()
                .map(|other| format!("\"nats-route://{}\"", way(other, ROUTE_PORT, own)));
            let routes = routes.collect::<Vec<_>>().join(", ");
            settings += &format!(
                "cluster {{ name: chaos, listen: \"{behind}\", no_advertise: true, routes: [{routes}] }}\n"
            );
        }
        let file = directory.join("nats.conf");
        std::fs::write(&file, settings).context("cannot write the settings of NATS")?;
        let ways = |peers: Vec<u8>, first: u16| {
            let way = move |peer: u8| (peer.into(), way(number, first, peer.into()));
            peers.into_iter().map(way)
        };
        let program = installed("nats-server", "nats-server")?;
        let mut server = Self {
            address,
            command: format!("{} -c {}", program.display(), file.display()),
            store: directory.join("jetstream"),
            process: None,
            nodes: Proxy::with_ways(ways((1..=nodes).collect(), NODE_PORT), address)?,
            routes: Proxy::with_ways(ways(others.collect(), ROUTE_PORT), behind)?,
        };
        server.begin()?;
        Ok(server)
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.process = Some(Process::start(&self.command, &[], self.address, None)?);
        Ok(())
    }

    /// Kills a server with `kill -9`, and keeps its data or deletes them.
    fn kill(&mut self, keep: bool) -> Result<(), Error> {
        if let Some(process) = self.process.take() {
            process.kill();
        }
        if !keep && self.store.exists() {
            std::fs::remove_dir_all(&self.store).context("cannot remove what NATS wrote")?;
        }
        Ok(())
    }

    /// Sends a request to the JetStream API of this server and returns its answer.
    fn ask(&self, what: &str) -> Result<Value, Error> {
        let sentence = || format!("NATS does not answer {what}");
        let mut stream = TcpStream::connect(self.address).context(sentence())?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).context(sentence())?;
        let hello = json!({"verbose": false, "headers": true, "no_responders": true});
        write!(stream, "CONNECT {hello}\r\nSUB answer 1\r\nPUB $JS.API.{what} answer 0\r\n\r\n")
            .context(sentence())?;
        for line in BufReader::new(stream).lines() {
            let line = line.context(sentence())?;
            if let Ok(answer @ Value::Object(_)) = serde_json::from_str(&line) {
                return Ok(answer);
            }
            // No responders: no server answers the request.
            if line.starts_with("HMSG") {
                break;
            }
        }
        Err(Error::new(sentence()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }
}
