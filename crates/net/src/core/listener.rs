//! Listeners and accepted connections.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use mio::unix::SourceFd;
use mio::{Interest, Token as MioToken};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use socket2::{Domain, Protocol as SocketProtocol, SockAddr, SockRef, Socket, Type};

use super::config::{ListenConfig, Role};
use super::connection::{ConnId, Phase};
use super::context::{Context, ListenerId, Profile};
use super::handler::{Admit, Handler};
use super::proxy::Arrival;
use super::tls::{ServerTls, Session};
use super::token::Token;
use super::upper::{Protocol, Spoken};

/// Maximum unsent bytes in a socket: enough to keep a fast path busy for a turn of the loop. By default the kernel
/// would use megabytes per peer that does not read, from memory that all sockets share.
const UNSENT_BYTES_MAX: u32 = 256 << 10;

/// The listeners of a loop.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    places: Vec<Option<Listener>>,
    /// Listeners that exceeded their budget or were resumed: accept from them without an event.
    pub(crate) ready: Vec<u32>,
    /// When to retry listeners that lack descriptors or memory, in milliseconds.
    pub(crate) retry_at_ms: Option<u64>,
}

#[derive(Debug)]
struct Listener {
    fd: OwnedFd,
    role: Role,
    tls: Option<ServerTls>,
    proxies: Arc<[IpNet]>,
    profile: u16,
    /// The handler has paused it.
    paused: bool,
    /// Descriptors or memory were lacking.
    blocked: bool,
    queued: bool,
}

/// Opens a listening socket without a loop, to be adopted by a loop, possibly of another thread.
///
/// # Errors
///
/// Those of `socket`, `bind` and `listen`: the address is in use, or does not belong to this machine.
pub fn open_listener(addr: SocketAddr, config: &ListenConfig) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(SocketProtocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(config.reuse_port)?;
    if addr.is_ipv6() {
        // One socket per address family, whatever net.ipv6.bindv6only.
        socket.set_only_v6(true)?;
    }
    socket.bind(&addr.into())?;
    socket.listen(config.backlog)?;
    Ok(socket.into())
}

impl<D: Default> Context<D> {
    /// Listens on an address; with port 0 on a free port, see [`Context::listener_addr`].
    ///
    /// # Errors
    ///
    /// Those of `socket`, `bind`, `listen` and `epoll_ctl`; `InvalidInput` for a role that the handler does not
    /// support.
    pub fn listen(&mut self, addr: SocketAddr, config: &ListenConfig) -> io::Result<ListenerId> {
        self.expect_role(config.role)?;
        self.adopt_listener(open_listener(addr, config)?, config)
    }

    /// Listens on a path of the file system. A socket file without a listener is replaced.
    ///
    /// # Errors
    ///
    /// Those of `socket`, `bind`, `listen` and `epoll_ctl`; `AddrInUse` when another process listens there, or the path
    /// is not a socket; `InvalidInput` for a role that the handler does not support.
    pub fn listen_unix(&mut self, path: &Path, config: &ListenConfig) -> io::Result<ListenerId> {
        self.expect_role(config.role)?;
        let stale = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
            && UnixStream::connect(path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if stale {
            std::fs::remove_file(path)?;
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        socket.listen(config.backlog)?;
        self.adopt_listener(OwnedFd::from(socket), config)
    }

    /// Accepts from an existing TCP or Unix listening socket: opened before the threads were started, or passed by
    /// another process. Role, TLS, proxies and limits of `config` apply.
    ///
    /// # Errors
    ///
    /// Those of `fcntl`, `setsockopt` and `epoll_ctl`; `InvalidInput` for a role that the handler does not support.
    pub fn adopt_listener(
        &mut self,
        listener: impl Into<OwnedFd>,
        config: &ListenConfig,
    ) -> io::Result<ListenerId> {
        self.expect_role(config.role)?;
        let fd: OwnedFd = listener.into();
        rustix::io::ioctl_fionbio(&fd, true)?;
        // On Linux accepted sockets inherit these options: one call here instead of one per connection.
        match rustix::net::sockopt::set_tcp_nodelay(&fd, true) {
            Ok(()) => SockRef::from(&fd).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?,
            // Unix sockets neither support nor need these options.
            Err(Errno::OPNOTSUPP | Errno::NOPROTOOPT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let profile = self.profile(&Profile::from(&config.limits))?;
        let listeners = &mut self.listeners.places;
        let place = listeners.iter().position(Option::is_none).unwrap_or(listeners.len());
        let event: MioToken = Token::Listener(place as u32).into();
        let raw = fd.as_raw_fd();
        self.poll.registry().register(&mut SourceFd(&raw), event, Interest::READABLE)?;
        if place == listeners.len() {
            listeners.push(None);
        }
        listeners[place] = Some(Listener {
            fd,
            role: config.role,
            tls: config.tls.clone(),
            proxies: Arc::clone(&config.proxies),
            profile,
            paused: false,
            blocked: false,
            queued: false,
        });
        Ok(ListenerId(place as u32))
    }

    /// Returns the address of a listener; `None` when it was closed.
    pub fn listener_addr(&self, listener: ListenerId) -> Option<SocketAddr> {
        let listener = self.listeners.places.get(listener.0 as usize)?.as_ref()?;
        rustix::net::getsockname(&listener.fd).ok()?.try_into().ok()
    }

    /// Rejects a role that the handler does not support: requests would get no response.
    fn expect_role(&self, role: Role) -> io::Result<()> {
        if role == Role::Http && !self.plugged.http {
            let why = "a listener for HTTP, and a handler that does not speak it; name `Http` in its `type Protocols`";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(())
    }

    /// Iterates over the listeners of the loop.
    pub fn listeners(&self) -> impl Iterator<Item = ListenerId> + '_ {
        let open = self.listeners.places.iter().enumerate().filter(|(_, place)| place.is_some());
        open.map(|(place, _)| ListenerId(place as u32))
    }

    /// Stops accepting from a listener. Further connections wait in the kernel's backlog.
    pub fn pause_accept(&mut self, listener: ListenerId) {
        if let Some(listener) = self.listeners.get_mut(listener.0) {
            listener.paused = true;
        }
    }

    /// Resumes accepting after [`Context::pause_accept`] or [`Admit::Pause`].
    pub fn resume_accept(&mut self, listener: ListenerId) {
        if let Some(found) = self.listeners.get_mut(listener.0) {
            found.paused = false;
            self.listeners.queue(listener.0);
        }
    }

    /// Replaces limits, TLS and proxies for connections accepted from now on; the rest of `config` is ignored. Existing
    /// connections keep theirs.
    ///
    /// # Errors
    ///
    /// `QuotaExceeded` after 65,536 different limits in one loop; then nothing changes.
    pub fn update_listener(
        &mut self,
        listener: ListenerId,
        config: &ListenConfig,
    ) -> io::Result<()> {
        let profile = self.profile(&Profile::from(&config.limits))?;
        if let Some(listener) = self.listeners.get_mut(listener.0) {
            listener.profile = profile;
            listener.tls.clone_from(&config.tls);
            listener.proxies = Arc::clone(&config.proxies);
        }
        Ok(())
    }

    /// Sets how many connections the kernel queues to be accepted (`listen(2)`).
    ///
    /// # Errors
    ///
    /// Those of `listen`.
    pub fn set_backlog(&mut self, listener: ListenerId, backlog: i32) -> io::Result<()> {
        match self.listeners.get_mut(listener.0) {
            Some(listener) => Ok(rustix::net::listen(&listener.fd, backlog)?),
            None => Ok(()),
        }
    }

    /// Closes a listener. Its connections stay open.
    pub fn close_listener(&mut self, listener: ListenerId) {
        // The file may also be open in another thread's descriptor table: closing the descriptor would then leave it in the
        // interest list.
        self.forget_listener(listener.0);
        if let Some(place) = self.listeners.places.get_mut(listener.0 as usize) {
            *place = None;
        }
    }

    /// Does not wait for connections at a listener any more.
    fn forget_listener(&mut self, place: u32) {
        if let Some(listener) = self.listeners.get_mut(place) {
            let _ = self.poll.registry().deregister(&mut SourceFd(&listener.fd.as_raw_fd()));
        }
    }

    /// Accepts until no connection waits or the budget is spent.
    pub(crate) fn accept<H: Handler<Data = D>>(&mut self, handler: &mut H, place: u32) {
        if let Some(listener) = self.listeners.get_mut(place) {
            listener.queued = false;
        }
        for _ in 0..self.config.accept_budget {
            let Some(listener) = self.listeners.get_mut(place) else { return };
            if listener.paused || listener.blocked {
                return;
            }
            let (role, profile) = (listener.role, listener.profile);
            let tls = listener.tls.clone();
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let (fd, peer) = match rustix::net::acceptfrom_with(&listener.fd, flags) {
                Ok((fd, peer)) => (fd, peer),
                Err(Errno::AGAIN) => return,
                // The connection, or the network under it, failed in the backlog: accept the next one.
                Err(
                    Errno::CONNABORTED
                    | Errno::INTR
                    | Errno::PROTO
                    | Errno::PERM
                    | Errno::NETDOWN
                    | Errno::NETUNREACH
                    | Errno::HOSTDOWN
                    | Errno::HOSTUNREACH
                    | Errno::NONET
                    | Errno::NOPROTOOPT
                    | Errno::TIMEDOUT,
                ) => continue,
                // Somebody has shut it down: it does not listen any more.
                Err(Errno::INVAL) => return self.forget_listener(place),
                // No descriptors (EMFILE, ENFILE) or no memory (ENOBUFS, ENOMEM): retry later.
                Err(errno) => return self.block_listener(handler, place, &errno.into()),
            };
            let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
            let of_proxy = peer.is_some_and(|peer| {
                let peer = peer.ip().to_canonical();
                listener.proxies.iter().any(|network| network.contains(&peer))
            });
            if self.slab.len() >= self.config.connections_max {
                self.stats.refused += 1;
                continue;
            }
            let arrival = Arrival { listener: ListenerId(place), peer, tls };
            let mut data = D::default();
            if !of_proxy && !self.is_admitted(handler, &arrival, &mut data) {
                continue;
            }
            let protocol = Protocol::of(role);
            let conn = match self.admit(Some(fd), protocol, profile, Phase::Announcing) {
                Ok(conn) => conn,
                Err(error) => {
                    if !of_proxy {
                        handler.on_open_failed(self, data, &error);
                    }
                    return self.block_listener(handler, place, &error);
                }
            };
            self.slab.at_mut(conn.index()).data = data;
            self.mark_unauthenticated(conn);
            if of_proxy {
                self.await_proxy_header(handler, conn, arrival);
            } else {
                self.begin(handler, conn, arrival.tls.as_ref());
            }
        }
        self.listeners.queue(place);
    }

    /// Asks the handler whether to keep a connection.
    pub(crate) fn is_admitted<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        arrival: &Arrival,
        data: &mut D,
    ) -> bool {
        match handler.on_accept(self, arrival.listener, arrival.peer, data) {
            Admit::Accept => {}
            Admit::Refuse => {
                self.stats.refused += 1;
                return false;
            }
            Admit::Pause => self.pause_accept(arrival.listener),
        }
        true
    }

    /// Begins the TLS handshake of a connection that the handler keeps; without TLS, the connection is open.
    pub(crate) fn begin<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        tls: Option<&ServerTls>,
    ) {
        let record = self.slab.at_mut(conn.index());
        match tls.map(Session::server).transpose() {
            Ok(None) => {
                record.phase = Phase::Open;
                self.accepted(handler, conn);
            }
            Ok(Some(session)) => {
                record.phase = Phase::Accepting;
                self.secure(handler, conn, session);
            }
            Err(error) => {
                record.phase = Phase::Accepting;
                self.fail_connect(conn, error);
            }
        }
    }

    /// Reports an accepted connection that is open, after any TLS handshake.
    pub(crate) fn accepted<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        self.stats.accepted += 1;
        self.start_clock(conn);
        handler.on_open(self, conn);
    }

    /// Creates a record for a socket and registers it with the kernel, once for its lifetime.
    pub(crate) fn admit(
        &mut self,
        fd: Option<OwnedFd>,
        protocol: Protocol,
        profile: u16,
        phase: Phase,
    ) -> io::Result<ConnId> {
        let conn = self.slab.reserve();
        let both = Interest::READABLE | Interest::WRITABLE;
        let event = Token::Conn(conn).into();
        if let Some(fd) = &fd
            && let Err(error) =
                self.poll.registry().register(&mut SourceFd(&fd.as_raw_fd()), event, both)
        {
            self.slab.release(conn.index());
            return Err(error);
        }
        self.slab.at_mut(conn.index()).open(fd, protocol, profile, phase);
        Ok(conn)
    }

    fn block_listener<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        place: u32,
        error: &io::Error,
    ) {
        self.stats.accept_failed += 1;
        self.displace_some();
        if let Some(listener) = self.listeners.get_mut(place) {
            listener.blocked = true;
        }
        let retry = self.now_ms() + self.config.accept_retry_ms;
        self.listeners.retry_at_ms = Some(self.listeners.retry_at_ms.unwrap_or(retry).min(retry));
        handler.on_accept_failed(self, ListenerId(place), error);
    }
}

impl Listeners {
    fn get_mut(&mut self, place: u32) -> Option<&mut Listener> {
        self.places.get_mut(place as usize)?.as_mut()
    }

    fn queue(&mut self, place: u32) {
        if let Some(listener) = self.get_mut(place)
            && !listener.queued
        {
            listener.queued = true;
            self.ready.push(place);
        }
    }

    /// Retries blocked listeners: a descriptor has become free, or the time has come.
    pub(crate) fn retry(&mut self) {
        if self.retry_at_ms.take().is_some() {
            for place in 0..self.places.len() as u32 {
                if let Some(listener) = self.get_mut(place)
                    && listener.blocked
                {
                    listener.blocked = false;
                    self.queue(place);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;
    use crate::Handler;
    use crate::{EventLoop, LoopConfig};

    /// A handler for a loop that does not run.
    struct Nobody;

    impl Handler for Nobody {
        type Data = ();
        type Protocols = crate::Http;
    }

    impl crate::HttpHandler for Nobody {
        fn on_request(
            &mut self,
            _: &mut Context<()>,
            _: crate::http::RequestId,
            _: &crate::http::Request<'_>,
        ) {
        }
    }

    #[test]
    fn a_longer_queue_takes_who_did_not_fit_the_shorter_one() {
        let mut event_loop = EventLoop::<Nobody>::new(LoopConfig::default()).unwrap();
        let cx = event_loop.context();
        let config = ListenConfig { backlog: 1, ..ListenConfig::http() };
        let listener = cx.listen("127.0.0.1:0".parse().unwrap(), &config).unwrap();
        let address = cx.listener_addr(listener).unwrap();
        // No connection is accepted: the kernel's queue takes one more than its length.
        let _queued = [TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap()];
        cx.set_backlog(listener, 64).unwrap();
        let third = TcpStream::connect_timeout(&address, Duration::from_secs(30));
        assert!(third.is_ok(), "{third:?}");
        cx.close_listener(listener);
        assert!(
            cx.set_backlog(listener, 64).is_ok(),
            "nothing is there any more, and nothing is wrong"
        );
    }
}
