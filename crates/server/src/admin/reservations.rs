//! Reservations of listener addresses: bound before a change is committed, held until the configuration drops them.
//!
//! Each worker opens its own socket in a `SO_REUSEPORT` group, in its own descriptor table. A reservation is one more
//! socket of the group that is bound and does not listen. So an address that cannot be bound is detected before the
//! change is logged, and no other process takes the address while workers restart.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use dunlin_config::{Config, ConfigError, Path};
use socket2::{Domain, Protocol, Socket, Type};

/// The addresses held.
#[derive(Debug)]
pub(crate) struct Reservations {
    /// By name in `listeners`; `server.client_addr` has an empty name.
    held: Vec<(Arc<str>, SocketAddr, Socket)>,
    /// The next listener of `server.admin_addr`, which listens already.
    admin: Option<(SocketAddr, TcpListener)>,
    /// Addresses that are served and need no reservation.
    served: ServedAddrs,
    /// Whether the operator has a Unix socket.
    has_socket: bool,
}

/// The addresses of `server` that are served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedAddrs {
    pub(crate) clients: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl ServedAddrs {
    pub(crate) fn of(config: &Config) -> ServedAddrs {
        ServedAddrs { clients: config.server.client_addr, admin: config.server.admin_addr }
    }
}

impl Reservations {
    /// Creates it without reservations; others listen on the addresses of `server`.
    pub(crate) fn new(served: ServedAddrs, has_socket: bool) -> Reservations {
        Reservations { held: Vec::new(), admin: None, served, has_socket }
    }

    /// Reserves the addresses that `new` listens on and `old` does not.
    ///
    /// # Errors
    /// Returns the first address that cannot be bound, with its key.
    pub(crate) fn reserve(&mut self, old: &Config, new: &Config) -> Result<(), ConfigError> {
        let (before, after) = (&old.server, &new.server);
        if before.client_addr != after.client_addr && after.client_addr != self.served.clients {
            self.hold(&Arc::from(""), Path::of("server.client_addr"), after.client_addr)?;
        }
        let opens = !before.admin_tcp && after.admin_tcp;
        if before.admin_addr != after.admin_addr || opens {
            self.admin = None;
            if after.admin_tcp && (opens || after.admin_addr != self.served.admin) {
                let path = || Path::of("server.admin_addr");
                has_port(path, after.admin_addr)?;
                let listener = TcpListener::bind(after.admin_addr)
                    .map_err(|error| taken(path(), after.admin_addr, &error))?;
                self.admin = Some((after.admin_addr, listener));
            }
        }
        self.reserve_listeners(old, new)
    }

    /// Checks whether [`Reservations::reserve`] would succeed now, without keeping new reservations.
    ///
    /// # Errors
    /// As [`Reservations::reserve`].
    pub(crate) fn try_out(&mut self, old: &Config, new: &Config) -> Result<(), ConfigError> {
        // A commit may be in progress; its reservations stay.
        let (held, admin) = (self.held.len(), self.admin.take());
        let outcome = self.reserve(old, new);
        self.held.truncate(held);
        self.admin = admin;
        outcome
    }

    /// Reserves addresses as [`Reservations::reserve`] does, for `listeners` only.
    ///
    /// # Errors
    /// As [`Reservations::reserve`].
    pub(crate) fn reserve_listeners(
        &mut self,
        old: &Config,
        new: &Config,
    ) -> Result<(), ConfigError> {
        if !new.server.admin_tcp && !self.has_socket {
            return Err(fault(
                Path::of("server.admin_tcp"),
                "nobody could reach this server any more: it has no state directory with the operator's socket".into(),
                "start it with `--state DIR`, or leave the port open",
            ));
        }
        for (name, before, after) in new.listeners.changes_from(&old.listeners) {
            let Some(listener) = after else { continue };
            let address = listener.addr;
            let is_held =
                |(held, at, _): &(Arc<str>, SocketAddr, Socket)| held == name && *at == address;
            if before.is_some_and(|before| before.addr == address) && self.held.iter().any(is_held)
            {
                continue;
            }
            self.hold(name, Path::of("listeners").join(name).join("addr"), address)?;
        }
        Ok(())
    }

    fn hold(
        &mut self,
        name: &Arc<str>,
        path: Path,
        address: SocketAddr,
    ) -> Result<(), ConfigError> {
        has_port(|| path.clone(), address)?;
        let socket = bind(address).map_err(|error| taken(path, address, &error))?;
        self.held.push((Arc::clone(name), address, socket));
        Ok(())
    }

    /// Releases addresses that this configuration does not listen on.
    pub(crate) fn keep_only(&mut self, config: &Config) {
        self.held.retain(|(name, address, _)| match &**name {
            "" => config.server.client_addr == *address,
            name => config.listeners.get(name).is_some_and(|listener| listener.addr == *address),
        });
        let is_wanted = |address| config.server.admin_tcp && address == config.server.admin_addr;
        if self.admin.as_ref().is_some_and(|(address, _)| !is_wanted(*address)) {
            self.admin = None;
        }
    }

    /// Handles that the configuration is in effect. Returns the listener of `server.admin_addr` if that has changed.
    pub(crate) fn serve(&mut self, config: &Config) -> Option<TcpListener> {
        self.served = ServedAddrs::of(config);
        self.keep_only(config);
        self.admin.take().map(|(_, listener)| listener)
    }
}

fn has_port(path: impl Fn() -> Path, address: SocketAddr) -> Result<(), ConfigError> {
    if address.port() != 0 {
        return Ok(());
    }
    Err(fault(path(), "nobody would know which port that is".into(), "name its port; it is 0"))
}

fn taken(path: Path, address: SocketAddr, error: &io::Error) -> ConfigError {
    fault(
        path,
        format!("cannot listen on {address}: {error}"),
        "name a free address of this machine",
    )
}

fn fault(path: Path, sentence: String, fix: &str) -> ConfigError {
    ConfigError { path, line: None, message: sentence, fix: Some(fix.into()) }
}

fn bind(address: SocketAddr) -> io::Result<Socket> {
    // Without SO_REUSEPORT first: it finds another process of this user in a group on the address, which
    // would silently share the connections. A socket of our own there, from a listener just given up, has
    // the option and is found as well: the caller may try again.
    TcpListener::bind(address).map(drop)?;
    let socket =
        Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}
