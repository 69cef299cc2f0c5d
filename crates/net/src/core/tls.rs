//! TLS below every protocol, by `rustls`: of outgoing connections, always verified, and of listeners.
//!
//! A session costs some tens of KiB while its connection lives, unlike all else here; it is the kind of connection a
//! process has hundreds of, not millions.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use super::connection::{ConnId, Flags, Phase};
use super::context::Context;
use super::driver::Driver;
use super::error::CloseReason;

/// Whom to trust. Cloning it copies nothing; sessions of one are resumed.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
}

/// How a listener proves who it is; see [`ListenConfig::tls`](crate::ListenConfig). Cloning it copies nothing.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
}

impl ServerTls {
    /// A chain of certificates, the server's own first, and its private key, both in PEM.
    ///
    /// # Errors
    ///
    /// There is no certificate or no key, one cannot be read, or they do not belong together.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> io::Result<ServerTls> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(invalid)?;
        if chain.is_empty() {
            return Err(invalid("there is no CERTIFICATE in the PEM given"));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(invalid)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(invalid)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(invalid)?;
        Ok(ServerTls { config: Arc::new(config) })
    }

    /// A configuration of `rustls` made elsewhere: several names, client certificates.
    pub fn from_config(config: Arc<ServerConfig>) -> ServerTls {
        ServerTls { config }
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

/// TLS to one name; see [`ConnectConfig::tls`](crate::ConnectConfig).
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// The roots that the system trusts, read once a process.
    ///
    /// # Errors
    ///
    /// The system has none that can be read: install `ca-certificates`, or name a file in `SSL_CERT_FILE`.
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

    /// These certificates, in PEM, and no others.
    ///
    /// # Errors
    ///
    /// There is no certificate in it, or one that cannot be read.
    pub fn with_roots(pem: &[u8]) -> io::Result<Tls> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(invalid)?).map_err(invalid)?;
        }
        if roots.is_empty() {
            return Err(invalid("there is no CERTIFICATE in the PEM given"));
        }
        Ok(Tls::trusting(roots))
    }

    /// A configuration of `rustls` made elsewhere: client certificates, other verifiers.
    pub fn from_config(config: Arc<ClientConfig>) -> Tls {
        Tls { config }
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

    /// TLS to the server of this name or address, which its certificate must bear.
    ///
    /// # Errors
    ///
    /// It is neither a valid name nor an address.
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

/// How everything that fails in TLS is reported: `ErrorKind::InvalidData`.
fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// A connection's TLS: records in and out.
#[derive(Debug)]
pub(crate) struct Session {
    tls: Connection,
    /// Records of the handshake that the socket has not taken.
    handshake: Vec<u8>,
    /// What the peer said right behind its handshake.
    early: Vec<u8>,
}

impl Session {
    pub(crate) fn client(to: &ClientTls) -> io::Result<Session> {
        let tls = ClientConnection::new(Arc::clone(&to.config), to.name.clone());
        Ok(Session::new(tls.map_err(invalid)?.into()))
    }

    pub(crate) fn server(tls: &ServerTls) -> io::Result<Session> {
        let tls = ServerConnection::new(Arc::clone(&tls.config));
        Ok(Session::new(tls.map_err(invalid)?.into()))
    }

    fn new(mut tls: Connection) -> Session {
        // The loop bounds what is buffered.
        tls.set_buffer_limit(None);
        Session { tls, handshake: Vec::new(), early: Vec::new() }
    }

    /// Takes records, and appends what they hold. True once the peer has said that it closes.
    fn receive(&mut self, mut records: &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
        let mut closed = false;
        while !records.is_empty() && !closed {
            if self.tls.read_tls(&mut records)? == 0 {
                break;
            }
            let state = self.tls.process_new_packets().map_err(invalid)?;
            closed = state.peer_has_closed();
            let at = plain.len();
            plain.resize(at + state.plaintext_bytes_to_read(), 0);
            self.tls.reader().read_exact(&mut plain[at..])?;
        }
        Ok(closed)
    }

    /// Appends the records that hold these bytes.
    pub(crate) fn send(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        // Neither writing to memory nor a buffer without a bound can fail.
        let _ = self.tls.writer().write_all(plain);
        self.flush(out);
    }

    fn flush(&mut self, out: &mut Vec<u8>) {
        while self.tls.wants_write() {
            if self.tls.write_tls(out).is_err() {
                return;
            }
        }
    }
}

impl<D: Default> Context<D> {
    /// An accepted connection begins its handshake.
    pub(crate) fn secure<H: Driver<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        session: Session,
    ) {
        let record = self.slab.at_mut(conn.index());
        record.flags.set(Flags::TLS);
        let spill = record.spill.get_or_insert_with(|| self.pool.borrow());
        spill.tls = Some(Box::new(session));
        let request_timeout_ms = self.limits(self.slab.at(conn.index()).profile).request_timeout_ms;
        let timeout_ms = if request_timeout_ms > 0 { request_timeout_ms } else { 10_000 };
        self.schedule_own(conn, timeout_ms);
        self.tls_handshake(handler, conn);
    }

    /// The TCP connection is there: goes on with the handshake as far as the socket lets it.
    pub(crate) fn tls_handshake<H: Driver<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let room = self.config.receive_bytes;
        if self.receive.len() < room {
            self.receive.resize(room, 0);
        }
        let record = self.slab.at_mut(conn.index());
        record.flags.clear(Flags::SOCKET_FULL);
        loop {
            let record = self.slab.at_mut(conn.index());
            let fd = record.fd.as_ref().expect("a connection under way has a descriptor");
            let Some(session) = record.spill.as_mut().and_then(|spill| spill.tls.as_mut()) else {
                return;
            };
            let Session { tls, handshake, early } = &mut **session;
            while tls.wants_write() {
                if tls.write_tls(handshake).is_err() {
                    break;
                }
            }
            while !handshake.is_empty() {
                self.stats.writes += 1;
                match rustix::net::send(fd, handshake, super::stream::SEND) {
                    Ok(taken) => {
                        self.stats.bytes_out += taken as u64;
                        handshake.drain(..taken);
                    }
                    Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return,
                    Err(Errno::INTR) => {}
                    Err(errno) => return self.fail_connect(conn, errno.into()),
                }
            }
            if !tls.is_handshaking() {
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
            let mut plain = std::mem::take(early);
            let result = session.receive(&self.receive[..received], &mut plain);
            session.early = plain;
            if let Err(error) = result {
                // The peer is sent the reason.
                let mut alert = Vec::new();
                session.flush(&mut alert);
                let _ = rustix::net::send(fd, &alert, super::stream::SEND);
                return self.fail_connect(conn, error);
            }
        }
    }

    /// The handshake is done: the connection is open.
    fn tls_open<H: Driver<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        let accepting = record.phase == Phase::Accepting;
        let mut early = Vec::new();
        if let Some(spill) = &mut record.spill
            && let Some(session) = &mut spill.tls
        {
            early = std::mem::take(&mut session.early);
            // What was written before the connection was open.
            let before = spill.output.len();
            let plain = std::mem::take(spill.output.tail());
            session.send(&plain, spill.output.tail());
            self.stats.buffered_bytes += spill.output.len();
            self.stats.buffered_bytes -= before;
        }
        if accepting {
            self.slab.at_mut(conn.index()).phase = Phase::Open;
            self.schedule_own(conn, 0);
            self.accepted(handler, conn);
        } else {
            self.opened(handler, conn);
        }
        if !early.is_empty() {
            let consumed = handler.input(self, conn, &mut early, 0);
            self.keep_input(conn, &early[consumed..]);
        }
        // No event follows for what came meanwhile.
        self.read(handler, conn, true);
    }

    /// Turns the records received at `at` in the receive buffer into what they hold. Returns its length, and whether the
    /// peer has said that it closes.
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
        let result = session.receive(&self.receive[at..at + received], &mut plain);
        let before = spill.output.len();
        session.flush(spill.output.tail());
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

    /// Says that nothing more follows, so that the peer knows it from a cut.
    pub(crate) fn tls_goodbye(&mut self, conn: ConnId) {
        let Some(record) = self.slab.get_mut(conn) else { return };
        if record.phase != Phase::Open || !record.flags.has(Flags::TLS) {
            return;
        }
        if let Some(spill) = &mut record.spill
            && let Some(session) = &mut spill.tls
        {
            session.tls.send_close_notify();
            let before = spill.output.len();
            session.flush(spill.output.tail());
            self.stats.buffered_bytes += spill.output.len() - before;
        }
    }

    /// The end of the stream without the peer's word: what came may have been cut by somebody in between.
    pub(crate) fn tls_cut(&mut self, conn: ConnId) {
        self.finish(conn, CloseReason::Io(io::ErrorKind::UnexpectedEof));
    }
}
