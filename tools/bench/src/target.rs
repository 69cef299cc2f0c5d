//! The server under test, as the command line names it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::protocol::{Protocol, ProtocolName};
use crate::publisher::{Publishing, Template};
use crate::swarm::{Ping, Plan};
use dunlin_load::http::tls::unverified;
use dunlin_load::url::Url;
use dunlin_load::{Clock, Error, Process};

/// Which server to measure, and how to talk to it.
#[derive(Debug, Clone, clap::Args)]
pub struct Target {
    /// URL that clients connect to; wss:// uses TLS without verifying the certificate
    #[arg(long, value_name = "URL", default_value = "ws://127.0.0.1:8000/connection/websocket")]
    pub url: String,
    /// Protocol of the clients
    #[arg(long, value_enum, default_value_t = ProtocolName::Centrifuge)]
    pub protocol: ProtocolName,
    /// Channel to subscribe to. Its help is spelled so because clap takes the letter between bare braces for a line end.
    #[arg(long, value_name = "CHANNEL", long_help = None, help = "Channel to subscribe to; `{\u{1b}[1mn\u{1b}[22m}` is the client's number, `{n%K}` its remainder by K")]
    pub channel: Option<String>,
    /// First text frame of a plain WebSocket client
    #[arg(long, value_name = "TEXT")]
    pub hello: Option<String>,
    /// Connection token (JWT) of the Centrifugal protocol
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// Start the server with this command, and stop it at the end
    #[arg(long, value_name = "COMMAND", conflicts_with = "server_pid")]
    pub cmd: Option<String>,
    /// Process id of a running server, to report its memory and CPU
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Append the output of the started server to this file
    #[arg(long, value_name = "FILE")]
    pub server_log: Option<PathBuf>,
    /// Cores of the started server, e.g. 0 or 0,1
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    pub server_core: Vec<usize>,
    /// Cores of the generator
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    pub core: Vec<usize>,
    /// Threads of the generator; 0: as few as the descriptor limit allows
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Connects a second; by default as fast as the server answers
    #[arg(long, value_name = "RATE")]
    pub connect_rate: Option<u32>,
    /// Connections being opened at one time
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub opening: usize,
    /// /16 network of the clients' source addresses, or `none`; by default 127.1.0.0 for a server on 127.0.0.0/8
    #[arg(long, value_name = "NETWORK")]
    pub sources: Option<String>,
    /// Where to publish; by default /api/publish on the host of --url
    #[arg(long, value_name = "URL")]
    pub publish_url: Option<String>,
    /// Where to publish many at once; by default /api/batch beside /api/publish
    #[arg(long, value_name = "URL")]
    pub batch_url: Option<String>,
    /// Body of a publish; `{data}` stands for the message. By default that of Centrifugo's API
    #[arg(long, value_name = "BODY")]
    pub publish_body: Option<String>,
    /// Key of the server API
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
}

impl Target {
    pub(crate) fn address(&self) -> Result<Url, Error> {
        Url::parse(&self.url)
    }

    /// Pins this thread, and those it starts, to the generator's cores.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        dunlin_load::system::pin(&self.core)
            .map_err(|error| Error::io(format!("cannot run on cores {:?}", self.core), error))
    }

    /// Starts the server's process or attaches to a running one, if given.
    pub(crate) fn process(&self, address: SocketAddr) -> Result<Option<Process>, Error> {
        match (&self.cmd, self.server_pid) {
            (Some(command), _) => {
                Process::start(command, &self.server_core, address, self.server_log.as_deref())
                    .map(Some)
            }
            (None, Some(pid)) => Ok(Some(Process::running(pid))),
            (None, None) => Ok(None),
        }
    }

    pub(crate) fn plan(
        &self,
        url: &Url,
        channel: Option<&str>,
        connections: usize,
        clock: Clock,
    ) -> Result<Plan, Error> {
        Ok(Plan {
            server: url.address,
            protocol: Protocol {
                name: self.protocol,
                host: url.host.clone(),
                path: url.path.clone(),
                channel: channel.map(str::to_owned),
                hello: self.hello.clone(),
                tokens: self.token.iter().cloned().collect(),
                delta: false,
                join_leave: false,
            },
            connections,
            tls: url.tls.then(unverified).transpose()?,
            threads: self.threads,
            cores: self.core.clone(),
            connects_per_second: self.connect_rate,
            opening_max: self.opening,
            sources: sources(self.sources.as_deref(), url.address)?,
            ping: Ping::Answer,
            departures: None,
            clock,
        })
    }

    pub(crate) fn publishing(&self, url: &Url, channel: &str) -> Result<Publishing, Error> {
        let publish = match &self.publish_url {
            Some(publish) => Url::parse(publish)?,
            None if url.tls => {
                return Err(Error::new(
                    "messages are published by plain HTTP: say where with --publish-url http://HOST:PORT/api/publish",
                ));
            }
            None => Url { path: "/api/publish".into(), ..url.clone() },
        };
        let batch_path = match (&self.batch_url, publish.path.strip_suffix("/publish")) {
            (Some(batch), _) => Some(Url::parse(batch)?.path),
            (None, Some(api)) if self.publish_body.is_none() => Some(format!("{api}/batch")),
            (None, _) => None,
        };
        let template = self.publish_body.clone().unwrap_or_else(|| {
            format!("{{\"channel\":{},\"data\":{{data}}}}", serde_json::Value::from(channel))
        });
        Ok(Publishing {
            address: publish.address,
            template: Template::Http {
                host: publish.host,
                path: publish.path,
                body: template,
                batch_path,
                api_key: self.api_key.clone(),
            },
            pad_bytes: 0,
            numbered_after: None,
        })
    }
}

/// Returns the network of the source addresses: the one requested, or one of the loopback if the server is there.
pub(crate) fn sources(asked: Option<&str>, server: SocketAddr) -> Result<Option<Ipv4Addr>, Error> {
    match asked {
        Some("none") => Ok(None),
        Some(network) => {
            let address = network.strip_suffix("/16").unwrap_or(network);
            let address: Ipv4Addr = address.parse().map_err(|_| {
                Error::new(format!(
                    "--sources {network}: give a /16 network such as 127.1.0.0, or none"
                ))
            })?;
            Ok(Some(Ipv4Addr::from(u32::from(address) & 0xffff_0000)))
        }
        None if server.ip().is_loopback() && server.is_ipv4() => {
            Ok(Some(Ipv4Addr::new(127, 1, 0, 0)))
        }
        None => Ok(None),
    }
}
