//! The address of NATS, and the credentials for it.

use std::sync::Arc;
use std::time::Duration;

use dunlin_config::Engine;
use dunlin_engine::Server;
use dunlin_engine::nats::{NatsConfig, ServerInfo, TlsMode, greeting, refusal_of_text};
use dunlin_engine_servers::login::credentials;
use dunlin_engine_servers::servers::nats_config;
use dunlin_engine_servers::tls::PeerTls;
use dunlin_wire::nats::{Limits, Operation, encode_connect, parse};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::condition_of;
use super::link::{NatsLink, refusal};
use crate::byte_stream::ByteStream;
use crate::condition::Condition;
use crate::inbox::Inbox;
use crate::records::refused;
use crate::store::StoreError;

/// The largest greeting of a server, in bytes.
const GREETING_BYTES_MAX: usize = 64 << 10;

/// The servers of an engine.
#[derive(Clone)]
pub(crate) struct NatsAddress {
    pub(super) engine: Arc<Engine>,
    config: Arc<NatsConfig>,
    tls: PeerTls,
    /// The prefix of the cluster's subjects.
    pub(crate) prefix: Arc<str>,
}

impl NatsAddress {
    pub(crate) fn new(engine: &Arc<Engine>) -> NatsAddress {
        let config = NatsConfig { name: "dunlin-cluster".to_owned(), ..nats_config(engine) };
        let prefix = format!("{}.cluster", engine.prefix).into();
        NatsAddress {
            engine: Arc::clone(engine),
            config: config.into(),
            tls: PeerTls::of_engine(engine),
            prefix,
        }
    }

    /// The name of the JetStream stream with the cluster's records.
    pub(super) fn stream(&self) -> String {
        format!("{}-cluster", self.engine.prefix)
    }

    /// Opens a connection to the first server that accepts one, and subscribes to `subjects`.
    pub(super) async fn open(
        &self,
        subjects: [String; 2],
        messages: &Inbox,
    ) -> Result<NatsLink, StoreError> {
        let mut config = NatsConfig::clone(&self.config);
        match credentials(&self.engine) {
            Some((_, Ok(read))) => config.login.credentials = Some(read),
            Some((_, Err(error))) => {
                return Err(refused(Condition::BadCredentials, &error.to_string()));
            }
            None => {}
        }
        let bound = Duration::from_millis(self.engine.connect_timeout_ms);
        let mut last = StoreError::Closed("there is no server".into());
        for server in &config.servers {
            let opened =
                timeout(bound, self.open_at(server, &config, subjects.clone(), messages.clone()));
            let name = format!("{}:{}", server.host, server.port);
            last = match opened.await {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(error)) => error,
                Err(_) => {
                    let why = format!("{name} does not answer within {bound:?}");
                    StoreError::Closed(why.into())
                }
            };
        }
        Err(last)
    }

    async fn open_at(
        &self,
        server: &Server,
        config: &NatsConfig,
        subjects: [String; 2],
        messages: Inbox,
    ) -> Result<NatsLink, StoreError> {
        let stream = TcpStream::connect((server.host.as_str(), server.port)).await;
        let stream = stream.map_err(|error| StoreError::Closed(error.to_string().into()))?;
        let _ = stream.set_nodelay(true);
        let mut stream: Box<dyn ByteStream> = match config.tls {
            TlsMode::HandshakeFirst => self.secured(server, stream).await?,
            _ => Box::new(stream),
        };
        let info = read_info(&mut *stream).await?;
        if !info.headers {
            return Err(refused(Condition::Failed, "nats-server 2.9 or later is needed"));
        }
        match config.tls {
            TlsMode::Off if info.tls_required => {
                let why = "the server asks for TLS; set `tls = true` of the engine";
                return Err(refused(Condition::TlsFailed, why));
            }
            TlsMode::Upgrade if info.tls_required || info.tls_available => {
                stream = self.secured(server, stream).await?;
            }
            TlsMode::Upgrade => {
                return Err(refused(Condition::TlsFailed, "the server does not offer TLS"));
            }
            TlsMode::Off | TlsMode::HandshakeFirst => {}
        }
        let Some(connect) = greeting(config, &info.nonce) else {
            return Err(refused(Condition::BadCredentials, "the server gave nothing to sign"));
        };
        let mut hello = Vec::new();
        encode_connect(&mut hello, &connect);
        let mut random = [0; 8];
        let _ = getrandom::fill(&mut random);
        let inbox = format!("{}.r.{:x}.", self.engine.prefix, u64::from_ne_bytes(random));
        NatsLink::start(stream, &info, hello, (inbox, subjects), messages).await
    }

    async fn secured(
        &self,
        server: &Server,
        stream: impl ByteStream + 'static,
    ) -> Result<Box<dyn ByteStream>, StoreError> {
        let failed =
            |error: &dyn std::fmt::Display| refused(Condition::TlsFailed, &error.to_string());
        let Some(tls) = self.tls.config() else {
            return Err(failed(&"the settings say that it speaks plain text"));
        };
        let name = rustls::pki_types::ServerName::try_from(server.host.clone());
        let name = name.map_err(|error| failed(&error))?;
        let connector = TlsConnector::from(Arc::clone(tls.config()));
        let secured = connector.connect(name, stream).await.map_err(|error| failed(&error))?;
        Ok(Box::new(secured))
    }

    /// The servers, for messages.
    pub(crate) fn place(&self) -> String {
        self.engine.addresses.join(", ")
    }
}

/// Reads the greeting of a server and nothing after it: before TLS begins, those bytes are not authenticated.
async fn read_info(stream: &mut dyn ByteStream) -> Result<ServerInfo, StoreError> {
    let closed = |why: String| StoreError::Closed(why.into());
    let mut bytes = Vec::new();
    while bytes.last() != Some(&b'\n') {
        if bytes.len() > GREETING_BYTES_MAX {
            return Err(closed("what answers is not NATS".to_owned()));
        }
        let byte = stream.read_u8().await;
        bytes.push(byte.map_err(|error| closed(format!("no greeting came: {error}")))?);
    }
    match parse(&bytes, &Limits::default()) {
        Ok(Some((Operation::Info(json), _))) => {
            serde_json::from_slice(json).map_err(|error| closed(error.to_string()))
        }
        Ok(Some((Operation::Error(text), _))) => {
            Err(match condition_of(refusal_of_text(text).name) {
                Condition::Failed => refused(Condition::Failed, text),
                _ => refusal(text),
            })
        }
        _ => Err(closed("what answers is not NATS".to_owned())),
    }
}
