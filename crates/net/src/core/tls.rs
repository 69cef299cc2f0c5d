//! TLS below every protocol, by `rustls`: for listeners, and for outgoing connections, which always verify the server.
//!
//! `rustls` performs the handshake of an accepted connection. Then [`Records`] takes over the keys, so that an idle
//! connection uses some hundred bytes. An outgoing connection uses some tens of KiB; a process has at most hundreds of
//! them.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::{Arc, OnceLock};

use dunlin_wire::text::without_byte_order_mark;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ServerConnectionData, UnbufferedServerConnection};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use super::connection::{ConnId, Flags, Phase};
use super::context::Context;
use super::driver::Driver;
use super::error::CloseReason;
use super::handler::Handler;
use super::record::Records;
use super::upper::Spoken;

/// The trusted servers of outgoing connections. Clones share one configuration and its session cache.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
}

/// The identity of a listener; see [`ListenConfig::tls`](crate::ListenConfig). Clones share one configuration.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    exports: bool,
}

impl ServerTls {
    /// Creates a configuration from a certificate chain, the server's own certificate first, and its private key, both
    /// in PEM. ALPN is not used: every client gets the protocol of the listener.
    ///
    /// # Errors
    ///
    /// There is no certificate or no key, one cannot be parsed, or they do not match.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> io::Result<ServerTls> {
        let (chain, key) = identity(certificates, key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(invalid)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(invalid)?;
        // Tickets suffice to resume sessions, and need no state in the server.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(invalid)?;
        Ok(ServerTls::from_config(config))
    }

    /// Uses a configuration of `rustls`, for example for several names or client certificates. It must allow secret
    /// extraction, which this function enables: after the handshake the loop seals and opens records itself.
    pub fn from_config(config: impl Into<Arc<ServerConfig>>) -> ServerTls {
        let mut config = config.into();
        Arc::make_mut(&mut config).enable_secret_extraction = true;
        ServerTls { config, exports: false }
    }

    /// Keeps what [`Context::export_keying_material`] needs for accepted connections. Each of them then uses some tens of KiB, as
    /// outgoing ones do.
    #[must_use]
    pub fn with_exporter(mut self) -> ServerTls {
        self.exports = true;
        self
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

/// TLS to a server with this name; see [`ConnectConfig::tls`](crate::ConnectConfig).
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// Trusts the system's root certificates, which are read once per process.
    ///
    /// # Errors
    ///
    /// The system has no readable root certificates: install `ca-certificates`, or set `SSL_CERT_FILE`.
    pub fn system() -> io::Result<Tls> {
        static SYSTEM: OnceLock<Tls> = OnceLock::new();
        if let Some(system) = SYSTEM.get() {
            return Ok(system.clone());
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(invalid(
                "the system trusts no root certificate; install ca-certificates, or set SSL_CERT_FILE",
            ));
        }
        Ok(SYSTEM.get_or_init(|| Tls::trusting(roots)).clone())
    }

    /// Trusts only these certificates, in PEM.
    ///
    /// # Errors
    ///
    /// There is no certificate, or one cannot be parsed.
    pub fn with_roots(pem: &[u8]) -> io::Result<Tls> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(without_byte_order_mark(pem)) {
            roots.add(certificate.map_err(invalid)?).map_err(invalid)?;
        }
        if roots.is_empty() {
            return Err(invalid("there is no CERTIFICATE in the PEM given"));
        }
        Ok(Tls::trusting(roots))
    }

    /// Uses a configuration of `rustls`, for example for client certificates or other verifiers.
    pub fn from_config(config: impl Into<Arc<ClientConfig>>) -> Tls {
        Tls { config: config.into() }
    }

    /// Returns a copy with a client certificate for servers that request one: a chain, the client's own certificate
    /// first, and its private key, both in PEM.
    ///
    /// # Errors
    ///
    /// There is no certificate or no key, one cannot be parsed, or they do not match.
    pub fn with_client_certificate(&self, certificates: &[u8], key: &[u8]) -> io::Result<Tls> {
        let (chain, key) = identity(certificates, key)?;
        let mut config = ClientConfig::clone(&self.config);
        let own = CertifiedKey::from_der(chain, key, config.crypto_provider()).map_err(invalid)?;
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(own));
        // Sessions of another identity must not be resumed.
        config.resumption = Resumption::default();
        Ok(Tls { config: Arc::new(config) })
    }

    fn trusting(roots: RootCertStore) -> Tls {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for both versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Tls { config: Arc::new(config) }
    }

    /// Returns the configuration of `rustls`, for connections outside this loop.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// Returns TLS to the server with this name or address, which its certificate must contain.
    ///
    /// # Errors
    ///
    /// `name` is neither a valid name nor an address.
    pub fn client(&self, name: &str) -> io::Result<ClientTls> {
        let name = ServerName::try_from(name.to_owned()).map_err(invalid)?;
        Ok(ClientTls { config: Arc::clone(&self.config), name })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Parses a certificate chain and a private key from PEM.
fn identity(
    certificates: &[u8],
    key: &[u8],
) -> io::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    // A mark before the first line would hide the first certificate.
    let chain = CertificateDer::pem_slice_iter(without_byte_order_mark(certificates));
    let chain: Vec<CertificateDer<'static>> = chain.collect::<Result<_, _>>().map_err(invalid)?;
    if chain.is_empty() {
        return Err(invalid("there is no CERTIFICATE in the PEM given"));
    }
    Ok((chain, PrivateKeyDer::from_pem_slice(without_byte_order_mark(key)).map_err(invalid)?))
}

/// Returns the error for every failure of TLS: `ErrorKind::InvalidData`.
fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The TLS state of a connection.
#[derive(Debug)]
pub(crate) struct Session {
    state: State,
    /// Incomplete record or handshake message.
    partial: Vec<u8>,
    /// Handshake records that the socket has not taken yet.
    handshake: Vec<u8>,
    /// Input that arrived directly after the peer's handshake.
    early: Vec<u8>,
    /// The peer has sent something.
    heard: bool,
}

#[expect(clippy::large_enum_variant, reason = "the large one is that of which there are millions")]
enum State {
    /// An outgoing connection, or an accepted one that [exports](ServerTls::with_exporter); there are few.
    Whole(Box<Connection>),
    /// The handshake of an accepted connection.
    Handshake(Box<UnbufferedServerConnection>),
    /// An accepted connection after its handshake; there may be millions.
    Open(Records),
    /// The handshake has failed.
    Over,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Whole(_) => "Whole",
            State::Handshake(_) => "Handshake",
            State::Open(_) => "Open",
            State::Over => "Over",
        })
    }
}

impl Session {
    pub(crate) fn client(to: &ClientTls) -> io::Result<Session> {
        let tls = ClientConnection::new(Arc::clone(&to.config), to.name.clone());
        let mut session = Session::whole(tls.map_err(invalid)?.into());
        session.advance(&[])?;
        Ok(session)
    }

    fn whole(mut tls: Connection) -> Session {
        // The loop bounds the buffers.
        tls.set_buffer_limit(None);
        Session::new(State::Whole(Box::new(tls)))
    }

    pub(crate) fn server(tls: &ServerTls) -> io::Result<Session> {
        if tls.exports {
            let tls = ServerConnection::new(Arc::clone(&tls.config)).map_err(invalid)?;
            return Ok(Session::whole(tls.into()));
        }
        let tls = UnbufferedServerConnection::new(Arc::clone(&tls.config)).map_err(invalid)?;
        Ok(Session::new(State::Handshake(Box::new(tls))))
    }

    fn new(state: State) -> Session {
        let (partial, handshake, early) = (Vec::new(), Vec::new(), Vec::new());
        Session { state, partial, handshake, early, heard: false }
    }

    /// Returns the number of the peer's bytes that are buffered here.
    pub(crate) fn bytes(&self) -> usize {
        self.partial.len()
    }

    fn is_handshaking(&self) -> bool {
        match &self.state {
            State::Whole(tls) => tls.is_handshaking(),
            State::Handshake(_) => true,
            State::Open(_) | State::Over => false,
        }
    }

    /// Continues the handshake with the peer's input, and puts the output into `handshake`.
    fn advance(&mut self, records: &[u8]) -> io::Result<()> {
        if let State::Whole(tls) = &mut self.state {
            let taken = receive(tls, records, &mut self.early);
            flush(tls, &mut self.handshake);
            return taken.map(drop);
        }
        self.partial.extend_from_slice(records);
        while let State::Handshake(tls) = &mut self.state {
            let UnbufferedStatus { mut discard, state } =
                tls.process_tls_records(&mut self.partial);
            let mut goes_on = true;
            let result = match state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(&mut data, &mut self.handshake)
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    Ok(())
                }
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(invalid)?;
                        discard += record.discard;
                        self.early.extend_from_slice(record.payload);
                    }
                    Ok(())
                }
                Ok(ConnectionState::BlockedHandshake) => {
                    goes_on = false;
                    Ok(())
                }
                Ok(ConnectionState::WriteTraffic(_)) => {
                    self.partial.drain(..discard);
                    return self.open();
                }
                Ok(_) => Err(invalid("the peer closed the connection in the TLS handshake")),
                Err(error) => {
                    self.partial.drain(..discard);
                    self.take_alert();
                    return Err(invalid(error));
                }
            };
            self.partial.drain(..discard);
            result?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Encodes the alert for the peer after a failed handshake, if there is one.
    fn take_alert(&mut self) {
        let State::Handshake(tls) = &mut self.state else { return };
        // `rustls` requires another call with the remaining bytes.
        let UnbufferedStatus { state, .. } = tls.process_tls_records(&mut self.partial);
        if let Ok(ConnectionState::EncodeTlsData(mut alert)) = state {
            let _ = encode(&mut alert, &mut self.handshake);
        }
    }

    /// Completes the handshake: takes over its keys, and drops the rest.
    fn open(&mut self) -> io::Result<()> {
        let State::Handshake(tls) = std::mem::replace(&mut self.state, State::Over) else {
            return Ok(());
        };
        let (secrets, kernel) = tls.dangerous_into_kernel_connection().map_err(invalid)?;
        let records = Records::new(secrets, kernel);
        self.state =
            State::Open(records.ok_or_else(|| invalid("an unknown cipher was agreed on"))?);
        // The buffers are mostly empty.
        self.partial.shrink_to_fit();
        self.handshake.shrink_to_fit();
        Ok(())
    }

    /// Decrypts records, appends their content to `plain`, and immediate responses to `out`. Returns true once the peer
    /// has sent `close_notify`.
    fn receive(
        &mut self,
        records: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> io::Result<bool> {
        match &mut self.state {
            State::Whole(tls) => {
                let closed = receive(tls, records, plain);
                flush(tls, out);
                closed
            }
            State::Handshake(_) | State::Over => Ok(false),
            State::Open(open) if self.partial.is_empty() => {
                let (taken, closed) = open.open(records, plain, out)?;
                if !closed {
                    self.partial.extend_from_slice(&records[taken..]);
                }
                Ok(closed)
            }
            State::Open(open) => {
                self.partial.extend_from_slice(records);
                let mut partial = std::mem::take(&mut self.partial);
                let (taken, closed) = open.open(&mut partial, plain, out)?;
                // A buffer of exactly this size, or none.
                self.partial = partial[taken..].into();
                Ok(closed)
            }
        }
    }

    /// Appends records with these bytes.
    ///
    /// # Errors
    ///
    /// No more can be sent: the connection must end.
    pub(crate) fn send(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        match &mut self.state {
            State::Whole(tls) => {
                tls.writer().write_all(plain)?;
                flush(tls, out);
                Ok(())
            }
            State::Handshake(_) | State::Over => Err(invalid("there is no TLS to send by")),
            State::Open(open) => Ok(open.seal(plain, out)?),
        }
    }

    /// Appends a `close_notify` alert: no more data follows.
    fn close(&mut self, out: &mut Vec<u8>) {
        match &mut self.state {
            State::Whole(tls) => {
                tls.send_close_notify();
                flush(tls, out);
            }
            State::Handshake(_) | State::Over => {}
            State::Open(open) => open.close(out),
        }
    }
}

/// Decrypts records and appends their content. Returns true once the peer has sent `close_notify`.
fn receive(tls: &mut Connection, mut records: &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
    let mut closed = false;
    while !records.is_empty() && !closed {
        if tls.read_tls(&mut records)? == 0 {
            break;
        }
        let state = tls.process_new_packets().map_err(invalid)?;
        closed = state.peer_has_closed();
        let at = plain.len();
        plain.resize(at + state.plaintext_bytes_to_read(), 0);
        tls.reader().read_exact(&mut plain[at..])?;
    }
    Ok(closed)
}

fn flush(tls: &mut Connection, out: &mut Vec<u8>) {
    // Writing to memory cannot fail.
    while tls.wants_write() && tls.write_tls(out).is_ok() {}
}

fn encode(data: &mut EncodeTlsData<'_, ServerConnectionData>, out: &mut Vec<u8>) -> io::Result<()> {
    let Err(EncodeError::InsufficientSize(error)) = data.encode(&mut []) else { return Ok(()) };
    let at = out.len();
    out.resize(at + error.required_size, 0);
    data.encode(&mut out[at..]).map(drop).map_err(invalid)
}

impl<D: Default> Context<D> {
    /// Returns keying material that only the two ends of a connection know (RFC 8446 §7.5), for a protocol that binds its own
    /// authentication to the connection.
    ///
    /// # Errors
    ///
    /// The connection has no TLS, its handshake is not complete, or it was accepted without [`ServerTls::with_exporter`].
    pub fn export_keying_material<const N: usize>(
        &self,
        conn: ConnId,
        label: &[u8],
    ) -> io::Result<[u8; N]> {
        let spill = self.slab.get(conn).and_then(|record| record.spill.as_ref());
        match spill.and_then(|spill| spill.tls.as_ref()).map(|session| &session.state) {
            Some(State::Whole(tls)) => {
                tls.export_keying_material([0; N], label, None).map_err(invalid)
            }
            _ => Err(invalid("the connection keeps no secret to export from")),
        }
    }

    /// Begins the handshake of an accepted connection.
    pub(crate) fn secure<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        session: Session,
    ) {
        let record = self.slab.at_mut(conn.index());
        record.flags.set(Flags::TLS);
        let spill = record.spill.get_or_insert_with(|| self.pool.borrow());
        spill.tls = Some(Box::new(session));
        let profile = self.slab.at(conn.index()).profile;
        let timeout_ms = self.limits(profile).handshake_timeout_ms();
        self.schedule_own(conn, timeout_ms);
        self.tls_handshake(handler, conn);
    }

    /// Continues the handshake on a connected socket until the socket would block.
    pub(crate) fn tls_handshake<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let room = self.config.receive_bytes;
        if self.receive.len() < room {
            self.receive.resize(room, 0);
        }
        let record = self.slab.at_mut(conn.index());
        record.flags.clear(Flags::SOCKET_FULL);
        loop {
            let record = self.slab.at_mut(conn.index());
            let protocol = record.protocol;
            let fd = record.fd.as_ref().expect("a connection under way has a descriptor");
            let Some(session) = record.spill.as_mut().and_then(|spill| spill.tls.as_mut()) else {
                return;
            };
            while !session.handshake.is_empty() {
                self.stats.writes += 1;
                match rustix::net::send(fd, &session.handshake, super::stream::SEND) {
                    Ok(taken) => {
                        self.stats.bytes_out += taken as u64;
                        session.handshake.drain(..taken);
                    }
                    Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return,
                    Err(Errno::INTR) => {}
                    Err(errno) => return self.fail_connect(conn, errno.into()),
                }
            }
            if !session.is_handshaking() {
                return self.tls_open(handler, conn);
            }
            self.stats.reads += 1;
            let received =
                match rustix::net::recv(fd, &mut self.receive[..room], RecvFlags::DONTWAIT) {
                    Ok((0, _)) => {
                        let error = invalid("the peer closed the connection in the TLS handshake");
                        return self.fail_connect(conn, error);
                    }
                    Ok((received, _)) => received,
                    Err(Errno::AGAIN) => return,
                    Err(Errno::INTR) => continue,
                    Err(errno) => return self.fail_connect(conn, errno.into()),
                };
            self.stats.bytes_in += received as u64;
            // No TLS record begins with a letter, but an HTTP method does.
            let is_text = !std::mem::replace(&mut session.heard, true)
                && self.receive[0].is_ascii_uppercase();
            if is_text && let Some(answer) = protocol.answer_in_plain_text() {
                let _ = rustix::net::send(fd, answer, super::stream::SEND);
                return self.fail_connect(conn, invalid("plain text where TLS is spoken"));
            }
            let before = session.bytes();
            let result = session.advance(&self.receive[..received]);
            self.stats.buffered_bytes += session.bytes();
            self.stats.buffered_bytes -= before;
            if let Err(error) = result {
                let _ = rustix::net::send(fd, &session.handshake, super::stream::SEND);
                return self.fail_connect(conn, error);
            }
        }
    }

    /// Opens the connection after its handshake.
    fn tls_open<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        let accepting = record.phase == Phase::Accepting;
        let mut early = Vec::new();
        if let Some(spill) = &mut record.spill
            && let Some(session) = &mut spill.tls
        {
            early = std::mem::take(&mut session.early);
            session.handshake = Vec::new();
            // Output that was written before the connection was open.
            let before = spill.output.len();
            let plain = std::mem::take(spill.output.tail());
            let sent = session.send(&plain, spill.output.tail());
            self.stats.buffered_bytes += spill.output.len();
            self.stats.buffered_bytes -= before;
            if let Err(error) = sent {
                return self.fail_connect(conn, error);
            }
        }
        if accepting {
            self.slab.at_mut(conn.index()).phase = Phase::Open;
            self.schedule_own(conn, None);
            self.accepted(handler, conn);
        } else {
            self.opened(handler, conn);
        }
        if !early.is_empty() {
            let consumed = H::Protocols::input(handler, self, conn, &mut early, 0);
            self.keep_input(conn, &early[consumed..]);
        }
        // No event follows for input that arrived meanwhile.
        self.read(handler, conn, true);
    }

    /// Decrypts the records at `at` in the receive buffer in place. Returns the length of their content, and whether
    /// the peer has sent `close_notify`.
    pub(crate) fn decrypt(
        &mut self,
        conn: ConnId,
        at: usize,
        received: usize,
    ) -> io::Result<(usize, bool)> {
        let record = self.slab.at_mut(conn.index());
        let Some(spill) = &mut record.spill else { return Ok((received, false)) };
        let Some(session) = &mut spill.tls else { return Ok((received, false)) };
        let mut plain = std::mem::take(&mut self.decrypted);
        plain.clear();
        let (before, kept) = (spill.output.len(), session.bytes());
        let records = &mut self.receive[at..at + received];
        let result = session.receive(records, &mut plain, spill.output.tail());
        self.stats.buffered_bytes += session.bytes();
        self.stats.buffered_bytes -= kept;
        let answered = spill.output.len() - before;
        self.stats.buffered_bytes += answered;
        if self.receive.len() < at + plain.len() {
            self.receive.resize(at + plain.len(), 0);
        }
        self.receive[at..at + plain.len()].copy_from_slice(&plain);
        let length = plain.len();
        self.decrypted = plain;
        if answered > 0 {
            self.cork(conn);
            if result.is_err() {
                self.flush(conn);
            }
        }
        result.map(|closed| (length, closed))
    }

    /// Sends `close_notify`, so that the peer can distinguish the end from a truncation.
    pub(crate) fn tls_goodbye(&mut self, conn: ConnId) {
        let Some(record) = self.slab.get_mut(conn) else { return };
        if record.phase != Phase::Open || !record.flags.has(Flags::TLS) {
            return;
        }
        if let Some(spill) = &mut record.spill
            && let Some(session) = &mut spill.tls
        {
            let before = spill.output.len();
            session.close(spill.output.tail());
            self.stats.buffered_bytes += spill.output.len() - before;
        }
    }

    /// Ends a connection whose stream ended without the peer's `close_notify`: an attacker may have truncated it.
    pub(crate) fn tls_cut(&mut self, conn: ConnId) {
        self.finish(conn, CloseReason::Io(io::ErrorKind::UnexpectedEof));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::generate_simple_self_signed;

    use super::*;

    fn server() -> ServerTls {
        let own = generate_simple_self_signed(vec!["server.example".to_owned()]).unwrap();
        let (chain, key) = (own.cert.pem(), own.signing_key.serialize_pem());
        ServerTls::from_pem(chain.as_bytes(), key.as_bytes()).unwrap()
    }

    /// Returns a client's first message.
    fn hello() -> Vec<u8> {
        let tls = Tls::trusting(RootCertStore::empty());
        let mut session = Session::client(&tls.client("server.example").unwrap()).unwrap();
        std::mem::take(&mut session.handshake)
    }

    /// Passes these bytes to a handshake in two pieces: it must continue, complete or fail. Returns its output.
    fn survives(tls: &ServerTls, bytes: &[u8], cut: usize) -> Vec<u8> {
        let mut session = Session::server(tls).unwrap();
        let (first, second) = bytes.split_at(cut.min(bytes.len()));
        for piece in [first, second] {
            if session.advance(piece).is_err() {
                // The output then consists of records: those of the handshake so far, and an alert.
                let sent = &session.handshake;
                assert!(sent.first().is_none_or(|kind| (20..=23).contains(kind)), "{sent:?}");
                break;
            }
        }
        session.handshake
    }

    proptest! {
        #[test]
        fn a_handshake_survives_whatever_it_is_given(
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            appended in prop::collection::vec(any::<u8>(), 0..40),
            cut in any::<prop::sample::Index>(),
        ) {
            let tls = server();
            let mut bytes = hello();
            let answer = survives(&tls, &bytes, cut.index(bytes.len() + 1));
            // A handshake record with a ServerHello (RFC 8446 §4).
            prop_assert_eq!((answer.first(), answer.get(5)), (Some(&22), Some(&2)));
            for (at, with) in flips {
                let at = at.index(bytes.len());
                bytes[at] ^= with;
            }
            bytes.extend(&appended);
            survives(&tls, &bytes, cut.index(bytes.len() + 1));
            survives(&tls, &appended, cut.index(appended.len() + 1));
            for kind in 20..=24 {
                let length = appended.len() as u8;
                let record = [&[kind, 3, 1, 0, length][..], &appended].concat();
                survives(&tls, &record, cut.index(record.len() + 1));
            }
        }
    }
}
