//! The address of Redis and the credentials for it: the engine through which the nodes of a cluster communicate.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use dunlin_config::{Engine, EngineLayout, EngineTopology, Secret};
use dunlin_engine_servers::tls::PeerTls;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::link::{Commands, RedisLink, RedisReply};
use super::refused;
use crate::byte_stream::ByteStream;
use crate::inbox::Inbox;
use crate::store::StoreError;

/// The most redirections between nodes of a Redis Cluster.
const REDIRECTIONS_MAX: usize = 4;

/// The servers of an engine.
#[derive(Clone)]
pub(crate) struct RedisAddress {
    engine: Arc<Engine>,
    tls: PeerTls,
    /// The prefix of all keys and channels of the cluster.
    pub(crate) prefix: Arc<str>,
}

impl RedisAddress {
    /// The prefix of the keys with Centrifugo's presence, if its nodes share this engine and it has one server.
    pub(super) fn foreign_presence(&self) -> Option<&str> {
        let is_one = match self.engine.topology {
            EngineTopology::Servers => self.engine.addresses.len() == 1,
            EngineTopology::Sentinel => self.engine.sentinel_primaries.len() == 1,
            EngineTopology::Cluster => false,
        };
        (is_one && self.engine.layout == EngineLayout::Centrifugo).then_some(&*self.engine.prefix)
    }

    pub(crate) fn new(engine: &Arc<Engine>) -> RedisAddress {
        // Pub/sub ignores the database number.
        let base = match engine.database {
            0 => engine.prefix.to_string(),
            database => format!("{}@{database}", engine.prefix),
        };
        let prefix = match engine.topology {
            // All keys are in one slot, so that a script can access them.
            EngineTopology::Cluster => format!("{{{base}:cluster}}"),
            _ => format!("{base}:cluster"),
        };
        let tls = PeerTls::of_engine(engine);
        RedisAddress { engine: Arc::clone(engine), tls, prefix: prefix.into() }
    }

    /// Opens a connection to the server that accepts writes. Messages of subscribed channels go to `messages`.
    pub(super) async fn open(&self, messages: Inbox) -> Result<RedisLink, StoreError> {
        let mut last = StoreError::Closed("there is no server".into());
        let is_servers = self.engine.topology == EngineTopology::Servers;
        // With several servers the first has the cluster's keys; any Sentinel or cluster node can be asked.
        let asked = if is_servers { 1 } else { self.engine.addresses.len() };
        for server in &self.engine.addresses[..asked.min(self.engine.addresses.len())] {
            let opened = match self.engine.topology {
                EngineTopology::Servers => self.open_at(server, messages.clone()).await,
                EngineTopology::Sentinel => self.open_primary(server, &messages).await,
                EngineTopology::Cluster => self.open_slot(server, &messages).await,
            };
            match opened {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Asks a Sentinel for the primary and connects to it.
    async fn open_primary(
        &self,
        sentinel: &str,
        messages: &Inbox,
    ) -> Result<RedisLink, StoreError> {
        let Engine { sentinel_user: user, sentinel_password: password, .. } = &*self.engine;
        let greeting = greeting(user.as_deref(), password.as_ref(), 0);
        let nobody = Inbox::of_nobody();
        let link = self.greet(sentinel, greeting, nobody).await?;
        let name = self.engine.sentinel_primaries.first().map_or("", String::as_str);
        let ask: &[&[u8]] = &[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name.as_bytes()];
        let replies = link.call(&[ask]).await?;
        let found = replies.first().map(RedisReply::list).and_then(|found| match found {
            [host, port] => Some((host.text()?, port.text()?)),
            _ => None,
        });
        match found {
            Some((host, port)) => self.open_at(&joined(host, port), messages.clone()).await,
            None => {
                let why = format!("ERR the Sentinel knows no primary {name:?}");
                Err(refused(why.into()))
            }
        }
    }

    /// Follows the redirections of a Redis Cluster to the node with the cluster's slot.
    async fn open_slot(&self, node: &str, messages: &Inbox) -> Result<RedisLink, StoreError> {
        let key = format!("{}:nodes", self.prefix);
        let mut node = node.to_owned();
        for _ in 0..REDIRECTIONS_MAX {
            let link = self.open_at(&node, messages.clone()).await?;
            match link.call(&[&[b"HLEN", key.as_bytes()]]).await {
                Err(StoreError::Elsewhere(error)) => {
                    node = error.rsplit(' ').next().unwrap_or_default().to_owned();
                }
                Err(error) => return Err(error),
                Ok(_) => return Ok(link),
            }
        }
        Err(refused("ERR the nodes of Redis send each other's clients in a circle".into()))
    }

    async fn open_at(&self, server: &str, messages: Inbox) -> Result<RedisLink, StoreError> {
        let Engine { user, password, database, .. } = &*self.engine;
        self.greet(server, greeting(user.as_deref(), password.as_ref(), *database), messages).await
    }

    async fn greet(
        &self,
        server: &str,
        greeting: Commands,
        messages: Inbox,
    ) -> Result<RedisLink, StoreError> {
        let bound = Duration::from_millis(self.engine.connect_timeout_ms);
        let opened = timeout(bound, async {
            let stream = self.connect(server).await;
            let stream = stream.map_err(|error| StoreError::Closed(error.to_string().into()))?;
            let link = RedisLink::start(stream, messages);
            link.send(greeting).await?;
            Ok(link)
        });
        let late =
            || StoreError::Closed(format!("{server} does not answer within {bound:?}").into());
        opened.await.map_err(|_| late())?
    }

    async fn connect(&self, server: &str) -> io::Result<Box<dyn ByteStream>> {
        if let Some(path) = server.strip_prefix("unix:") {
            return Ok(Box::new(UnixStream::connect(path).await?));
        }
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = self.tls.config() else { return Ok(Box::new(stream)) };
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        let host = host.trim_matches(['[', ']']).to_owned();
        let name = rustls::pki_types::ServerName::try_from(host).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::clone(tls.config()));
        Ok(Box::new(connector.connect(name, stream).await?))
    }

    /// The servers, for messages.
    pub(crate) fn place(&self) -> String {
        self.engine.addresses.join(", ")
    }
}

/// The first commands on a connection.
fn greeting(user: Option<&str>, password: Option<&Secret>, database: u32) -> Commands {
    let mut hello: Vec<&[u8]> = vec![b"HELLO", b"3"];
    if let Some(password) = password {
        let user = user.unwrap_or("default");
        hello.extend([&b"AUTH"[..], user.as_bytes(), password.reveal().as_bytes()]);
    }
    hello.extend([&b"SETNAME"[..], b"dunlin-cluster"]);
    let mut commands = Commands::default();
    commands.push(&hello);
    if database != 0 {
        commands.push(&[b"SELECT", database.to_string().as_bytes()]);
    }
    commands
}

/// Joins host and port; a Sentinel returns an IPv6 address without brackets.
fn joined(host: &str, port: &str) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}
