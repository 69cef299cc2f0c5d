//! Outgoing connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use socket2::{Domain, Protocol as SocketProtocol, Socket, Type};

use super::config::ConnectConfig;
use super::connection::{ConnId, Flags, Phase};
use super::context::{Context, Profile};
use super::handler::Handler;
use super::tls::Session;
use super::upper::{Protocol, Spoken};

impl<D: Default> Context<D> {
    /// Connects to an address. `on_connect` or `on_connect_failed` follows. Output written before is sent once the
    /// connection is open.
    ///
    /// # Errors
    ///
    /// Those that occur before anything is sent: no descriptor (`EMFILE`), no source port (`AddrNotAvailable`), no
    /// route. `QuotaExceeded` when the loop has `connections_max` connections.
    pub fn connect(&mut self, addr: SocketAddr, config: &ConnectConfig) -> io::Result<ConnId> {
        let fd = connect_socket(addr, config.from)?;
        self.begin_connect(Some(fd), config)
    }

    /// Connects to a Unix socket; otherwise as [`Context::connect`].
    ///
    /// # Errors
    ///
    /// Those of [`Context::connect`]; `WouldBlock` when the server's backlog is full.
    pub fn connect_unix(&mut self, path: &Path, config: &ConnectConfig) -> io::Result<ConnId> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(path)?)?;
        self.begin_connect(Some(socket.into()), config)
    }

    fn expect_room(&self) -> io::Result<()> {
        if self.slab.len() >= self.config.connections_max {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "the loop holds connections_max connections; raise it or close some",
            ));
        }
        Ok(())
    }

    /// Creates the record of an outgoing connection. `fd` is `None` until an address has answered.
    pub(crate) fn begin_connect(
        &mut self,
        fd: Option<OwnedFd>,
        config: &ConnectConfig,
    ) -> io::Result<ConnId> {
        self.expect_room()?;
        // Timeout and attempts count from now, not from the last turn.
        self.update_clock();
        let session = config.tls.as_ref().map(Session::client).transpose()?;
        let profile = self.profile(&Profile::from(&config.limits))?;
        let conn = self.admit(fd, Protocol::RAW, profile, Phase::Connecting)?;
        let record = self.slab.at_mut(conn.index());
        record.flags.set(Flags::SOCKET_FULL);
        if let Some(session) = session {
            record.flags.set(Flags::TLS);
            let spill = record.spill.get_or_insert_with(|| self.pool.borrow());
            spill.tls = Some(Box::new(session));
        }
        self.schedule_own(conn, config.timeout_ms);
        Ok(conn)
    }

    /// Handles the kernel's report that a connect has ended.
    pub(crate) fn connected<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        match socket_error(record.fd()) {
            Ok(Ok(())) if record.flags.has(Flags::TLS) => {
                record.phase = Phase::Securing;
                self.tls_handshake(handler, conn);
            }
            Ok(Ok(())) => self.opened(handler, conn),
            Ok(Err(errno)) | Err(errno) => self.fail_connect(conn, errno.into()),
        }
    }

    /// Handles a connection that has opened, including TLS.
    pub(crate) fn opened<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        let is_upgraded = record.phase == Phase::Upgrading;
        record.phase = Phase::Open;
        record.flags.clear(Flags::SOCKET_FULL);
        self.schedule_own(conn, None);
        self.start_clock(conn);
        if is_upgraded {
            handler.on_secure(self, conn);
        } else {
            self.stats.connected += 1;
            handler.on_connect(self, conn);
        }
        // Send what was written before.
        self.flush(conn);
        let record = self.slab.at_mut(conn.index());
        if record.phase == Phase::Open
            && !record.flags.has(Flags::SOCKET_FULL)
            && record.flags.take(Flags::WANT_WRITE)
        {
            handler.on_writable(self, conn);
        }
    }
}

/// Returns a socket that connects to this address.
pub(crate) fn connect_socket(addr: SocketAddr, from: Option<SocketAddr>) -> io::Result<OwnedFd> {
    let kind = Type::STREAM.nonblocking();
    let socket = Socket::new(Domain::for_address(addr), kind, Some(SocketProtocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    if let Some(from) = from {
        if from.port() == 0 {
            choose_port_late(&socket)?;
        }
        socket.bind(&from.into())?;
    }
    match rustix::net::connect(&socket, &addr) {
        // The kernel reports the result by an event in both cases.
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes the kernel choose the source port in `connect` instead of `bind`, so that ports only run out per destination
/// (`IP_BIND_ADDRESS_NO_PORT`, which also applies to IPv6).
#[expect(unsafe_code, reason = "neither socket2 nor rustix knows the option")]
fn choose_port_late(socket: &Socket) -> io::Result<()> {
    let on: libc::c_int = 1;
    let size = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the descriptor is open, and the value is a `c_int` of the size given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
