//! Connecting to others.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use socket2::{Domain, Protocol as SocketProtocol, Socket, Type};

use crate::config::{ConnectConfig, Role};
use crate::conn::{ConnId, Flags, Phase, Protocol};
use crate::context::{Context, Ending, Profile};
use crate::handler::Handler;
use crate::tls::Session;

impl<D: Default> Context<D> {
    /// Connects to an address. `on_open` or `on_connect_failed` follows; what is written before leaves once
    /// the connection is open.
    ///
    /// # Errors
    ///
    /// What fails before anything is sent: no descriptor (`EMFILE`), no source port (`AddrNotAvailable`), no
    /// route. `QuotaExceeded` when the loop holds `connections_max` connections.
    pub fn connect(&mut self, addr: SocketAddr, config: &ConnectConfig) -> io::Result<ConnId> {
        self.expect_room()?;
        let kind = Type::STREAM.nonblocking();
        let socket = Socket::new(Domain::for_address(addr), kind, Some(SocketProtocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        if let Some(from) = config.from {
            if from.port() == 0 {
                choose_port_late(&socket)?;
            }
            socket.bind(&from.into())?;
        }
        match rustix::net::connect(&socket, &addr) {
            // Open at once or not, the kernel will say so.
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.connecting(socket, config)
    }

    /// Connects to a unix socket. As [`Context::connect`] in all else.
    ///
    /// # Errors
    ///
    /// As [`Context::connect`]; `WouldBlock` when the server's backlog is full.
    pub fn connect_unix(&mut self, path: &Path, config: &ConnectConfig) -> io::Result<ConnId> {
        self.expect_room()?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(path)?)?;
        self.connecting(socket, config)
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

    /// A connect is under way.
    fn connecting(&mut self, socket: Socket, config: &ConnectConfig) -> io::Result<ConnId> {
        let session = config.tls.as_ref().map(Session::new).transpose()?;
        let profile = self.profile(&Profile::from(&config.limits))?;
        let protocol = match config.role {
            Role::Tcp => Protocol::Tcp,
            Role::Http => Protocol::HttpClient,
            Role::Redis => Protocol::RedisClient,
        };
        let conn = self.admit(socket.into(), protocol, profile, Phase::Connecting)?;
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

    /// The kernel has decided about a connect.
    pub(crate) fn connected<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        match socket_error(record.fd()) {
            Ok(Ok(())) if record.flags.has(Flags::TLS) => {
                record.flags.set(Flags::TLS_HANDSHAKE);
                self.tls_handshake(handler, conn);
            }
            Ok(Ok(())) => self.opened(handler, conn),
            Ok(Err(errno)) | Err(errno) => self.fail_connect(conn, errno.into()),
        }
    }

    /// A connection is there, TLS included.
    pub(crate) fn opened<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        record.phase = Phase::Open;
        record.flags.clear(Flags::SOCKET_FULL);
        self.stats.connected += 1;
        self.schedule_own(conn, 0);
        self.start_clock(conn);
        handler.on_open(self, conn);
        // What was written meanwhile.
        self.flush(conn);
        let record = self.slab.at_mut(conn.index());
        if record.phase == Phase::Open
            && !record.flags.has(Flags::SOCKET_FULL)
            && record.flags.take(Flags::WANT_WRITE)
        {
            handler.on_writable(self, conn);
        }
    }

    pub(crate) fn fail_connect(&mut self, conn: ConnId, error: io::Error) {
        self.slab.at_mut(conn.index()).phase = Phase::Closed;
        self.stats.connect_failed += 1;
        self.ended.push_back((conn, Ending::ConnectFailed(error)));
    }
}

/// Has the kernel choose the source port when the destination is known, instead of at `bind`: ports then run
/// out for each destination alone (`IP_BIND_ADDRESS_NO_PORT`, which holds for IPv6 too).
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
