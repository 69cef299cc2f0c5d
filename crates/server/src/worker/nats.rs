//! The connection of an engine on NATS.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;

use dunlin_engine::nats::{Credentials, CredentialsError, NatsEngine, Pipe};
use dunlin_engine::{LinkFull, Server};
use dunlin_engine_servers::login::credentials;
use dunlin_engine_servers::tls::PeerTls;
use dunlin_net::{ConnId, ConnectConfig, Context, Limits};

use super::link::Link;

/// The connection, and how the next is made.
pub(super) struct NatsConnection {
    connect: ConnectConfig,
    tls: PeerTls,
    conn: Option<ConnId>,
    /// Why the connection that was asked for could not even be begun.
    failed: Option<io::Error>,
    config: Arc<dunlin_config::Engine>,
    /// The credentials that were read for the connection that is being made.
    read: Option<Result<Credentials, CredentialsError>>,
}

/// The connection, while there is a loop to use it on.
struct NatsConnectionOnLoop<'a> {
    connection: &'a mut NatsConnection,
    cx: &'a mut Context<Link>,
}

impl NatsConnection {
    pub(super) fn new(config: &Arc<dunlin_config::Engine>) -> NatsConnection {
        let limits = Limits { output_bytes_max: config.queue_bytes_max, ..Limits::default() };
        let timeout_ms = NonZeroU64::new(config.connect_timeout_ms);
        let connect = ConnectConfig { limits, timeout_ms, ..ConnectConfig::default() };
        let (tls, config) = (PeerTls::of_engine(config), Arc::clone(config));
        NatsConnection { connect, tls, conn: None, failed: None, config, read: None }
    }

    pub(super) fn owns(&self, conn: ConnId) -> bool {
        self.conn == Some(conn)
    }

    /// The connection has ended, or was not made.
    pub(super) fn lost(&mut self) {
        self.conn = None;
    }

    pub(super) fn close(&mut self, cx: &mut Context<Link>) {
        if let Some(conn) = self.conn.take() {
            cx.close(conn);
        }
    }

    /// Sends what the engine has to say.
    pub(super) fn flush(&mut self, cx: &mut Context<Link>, now_ms: u64, engine: &mut NatsEngine) {
        engine.flush(now_ms, &mut NatsConnectionOnLoop { connection: self, cx });
        if let Some(read) = self.read.take() {
            engine.handle_credentials(now_ms, read);
        }
        if let Some(error) = self.failed.take() {
            engine.handle_closed(now_ms, &error.to_string());
        }
    }
}

impl Pipe for NatsConnectionOnLoop<'_> {
    fn open(&mut self, server: &Server, tls_first: bool) {
        self.close();
        let NatsConnection { config, connect, tls, conn, failed, read } = &mut *self.connection;
        connect.tls = tls_first.then(|| tls.client(&server.host)).flatten();
        // A file may have been replaced: a JWT is over in time.
        *read = credentials(config).map(|(_, read)| read);
        match self.cx.connect_name(&server.host, server.port, connect) {
            Ok(new) => *conn = Some(new),
            Err(error) => *failed = Some(error),
        }
    }

    fn begin_tls(&mut self, server: &Server, unread: &[u8]) -> Result<(), String> {
        let tls = self.connection.tls.client(&server.host);
        let (Some(tls), Some(conn)) = (tls, self.connection.conn) else {
            return Err("the settings say that it speaks plain text".to_owned());
        };
        let timeout_ms = self.connection.connect.timeout_ms;
        let begun = self.cx.begin_tls(conn, &tls, unread, timeout_ms);
        begun.map_err(|error| error.to_string())
    }

    fn close(&mut self) {
        if let Some(conn) = self.connection.conn.take() {
            self.cx.abort(conn);
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), LinkFull> {
        let conn = self.connection.conn.ok_or(LinkFull)?;
        self.cx.write(conn, bytes).map_err(|_| LinkFull)
    }
}
