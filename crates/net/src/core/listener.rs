//! Listening and accepting.

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

/// Bytes that a socket takes beyond what it has sent: enough to keep a fast path busy for as long as a turn of the loop lasts. The
/// kernel alone would take megabytes for each peer that does not read, of memory that all sockets share.
const UNSENT_BYTES_MAX: u32 = 256 << 10;

/// The listeners of a loop.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    places: Vec<Option<Listener>>,
    /// Listeners that ran out of their budget, or were resumed: to be accepted from without an event.
    pub(crate) ready: Vec<u32>,
    /// Some listener waits for descriptors or memory, until then in milliseconds.
    pub(crate) retry_at_ms: Option<u64>,
}

#[derive(Debug)]
struct Listener {
    fd: OwnedFd,
    role: Role,
    tls: Option<ServerTls>,
    proxies: Arc<[IpNet]>,
    profile: u16,
    /// Paused by the handler.
    paused: bool,
    /// Out of descriptors or memory.
    blocked: bool,
    queued: bool,
}

/// Opens a listening socket without a loop; a loop of another thread adopts it later.
///
/// # Errors
///
/// Those of `socket`, `bind` and `listen`: the address is in use, or is not one of this machine.
pub fn open_listener(addr: SocketAddr, config: &ListenConfig) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(SocketProtocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(config.reuse_port)?;
    if addr.is_ipv6() {
        // One socket a family, whatever net.ipv6.bindv6only says.
        socket.set_only_v6(true)?;
    }
    socket.bind(&addr.into())?;
    socket.listen(config.backlog)?;
    Ok(socket.into())
}

impl<D: Default> Context<D> {
    /// Listens on an address; port 0 takes a free one, see [`Context::listener_addr`].
    ///
    /// # Errors
    ///
    /// Those of `socket`, `bind`, `listen` and `epoll_ctl`; `InvalidInput` for a role that the handler does not speak.
    pub fn listen(&mut self, addr: SocketAddr, config: &ListenConfig) -> io::Result<ListenerId> {
        self.expect_role(config.role)?;
        self.adopt_listener(open_listener(addr, config)?, config)
    }

    /// Listens on a path of the file system. A socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    ///
    /// Those of `socket`, `bind`, `listen` and `epoll_ctl`; `AddrInUse` when somebody listens there, or the path is
    /// something else; `InvalidInput` for a role that the handler does not speak.
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

    /// Accepts from a TCP or Unix socket that listens already: it was opened before the threads were started, or another
    /// process has handed it over. Role, TLS, proxies and limits of `config` apply.
    ///
    /// # Errors
    ///
    /// Those of `fcntl`, `setsockopt` and `epoll_ctl`; `InvalidInput` for a role that the handler does not speak.
    pub fn adopt_listener(
        &mut self,
        listener: impl Into<OwnedFd>,
        config: &ListenConfig,
    ) -> io::Result<ListenerId> {
        self.expect_role(config.role)?;
        let fd: OwnedFd = listener.into();
        rustix::io::ioctl_fionbio(&fd, true)?;
        // Linux hands the options down to accepted sockets: a call here instead of one a connection.
        match rustix::net::sockopt::set_tcp_nodelay(&fd, true) {
            Ok(()) => SockRef::from(&fd).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?,
            // A Unix socket does not know it, nor does it need it.
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

    /// The address of a listener; `None` when it has been closed.
    pub fn listener_addr(&self, listener: ListenerId) -> Option<SocketAddr> {
        let listener = self.listeners.places.get(listener.0 as usize)?.as_ref()?;
        rustix::net::getsockname(&listener.fd).ok()?.try_into().ok()
    }

    /// A connection of a role that the handler does not speak would have nobody to answer it.
    fn expect_role(&self, role: Role) -> io::Result<()> {
        if role == Role::Http && !self.plugged.http {
            let why = "a listener for HTTP, and a handler that does not speak it; name `Http` in its `type Protocols`";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(())
    }

    /// The listeners of the loop.
    pub fn listeners(&self) -> impl Iterator<Item = ListenerId> + '_ {
        let open = self.listeners.places.iter().enumerate().filter(|(_, place)| place.is_some());
        open.map(|(place, _)| ListenerId(place as u32))
    }

    /// Accepts no more from a listener. Further connections wait in the kernel's backlog.
    pub fn pause_accept(&mut self, listener: ListenerId) {
        if let Some(listener) = self.listeners.get_mut(listener.0) {
            listener.paused = true;
        }
    }

    /// Accepts again after [`Context::pause_accept`] or [`Admit::Pause`].
    pub fn resume_accept(&mut self, listener: ListenerId) {
        if let Some(found) = self.listeners.get_mut(listener.0) {
            found.paused = false;
            self.listeners.queue(listener.0);
        }
    }

    /// Replaces limits, TLS and proxies for connections that are accepted from now on; the rest of `config` is ignored.
    /// Connections that were accepted before keep theirs.
    ///
    /// # Errors
    ///
    /// `QuotaExceeded` after 65,536 different limits on one loop; nothing changes then.
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

    /// Sets how many connections the kernel queues until they are accepted (`listen(2)`).
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

    /// Closes a listener. Connections accepted from it stay.
    pub fn close_listener(&mut self, listener: ListenerId) {
        let place = self.listeners.places.get_mut(listener.0 as usize);
        if let Some(closed) = place.and_then(Option::take) {
            // The file may be open in another thread's descriptor table: closing it here would leave it
            // in the interest list.
            let _ = self.poll.registry().deregister(&mut SourceFd(&closed.fd.as_raw_fd()));
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
                // The connection died in the backlog, or the network under it did: on to the next.
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
                // No descriptors (EMFILE, ENFILE) or no memory (ENOBUFS, ENOMEM): not now.
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

    /// Whether the handler keeps a connection.
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

    /// A connection that the handler keeps begins with its TLS handshake, or is open.
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

    /// An accepted connection is open, its TLS handshake included.
    pub(crate) fn accepted<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        self.stats.accepted += 1;
        self.start_clock(conn);
        handler.on_open(self, conn);
    }

    /// Gives a socket a record and has the kernel watch it, once for as long as it is open.
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

    /// A descriptor has become free, or it is time to try again.
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

    /// A driver for a loop that does not run.
    struct Nobody;

    impl Handler for Nobody {
        type Data = ();
        type Protocols = crate::Http;
    }

    impl crate::HttpHandler for Nobody {
        fn on_request(&mut self, _: &mut Context<()>, _: ConnId, _: &crate::http::Request<'_>) {}
    }

    #[test]
    fn a_longer_queue_takes_who_did_not_fit_the_shorter_one() {
        let mut event_loop = EventLoop::<Nobody>::new(LoopConfig::default()).unwrap();
        let cx = event_loop.context();
        let config = ListenConfig { backlog: 1, ..ListenConfig::http() };
        let listener = cx.listen("127.0.0.1:0".parse().unwrap(), &config).unwrap();
        let address = cx.listener_addr(listener).unwrap();
        // Nobody accepts: the queue takes one more than it is long.
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
