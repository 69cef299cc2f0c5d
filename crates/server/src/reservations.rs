//! Addresses of listeners, tried before a change is committed and kept until it is gone.
//!
//! Each worker opens its own socket in a `SO_REUSEPORT` group, in its own descriptor table. What is held here is
//! one more socket of the group that is bound and does not listen: whoever cannot be bound is found before
//! anything is logged, and nobody else takes the address while workers come and go.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use dunlin_config::{Config, Fault, Path};
use socket2::{Domain, Protocol, Socket, Type};

/// The addresses held.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    held: Vec<(Arc<str>, SocketAddr, Socket)>,
}

impl Reservations {
    /// Holds what `new` listens on and `old` does not.
    ///
    /// # Errors
    /// The first address that cannot be had, with the key that names it.
    pub(crate) fn reserve(&mut self, old: &Config, new: &Config) -> Result<(), Fault> {
        for (name, before, after) in new.listeners.changes_from(&old.listeners) {
            let Some(listener) = after else { continue };
            let address = listener.addr;
            let is_held =
                |(held, at, _): &(Arc<str>, SocketAddr, Socket)| held == name && *at == address;
            if before.is_some_and(|before| before.addr == address) && self.held.iter().any(is_held)
            {
                continue;
            }
            let fault = |sentence: String, fix: &str| Fault {
                path: Path::of("listeners").join(name).join("addr"),
                line: None,
                sentence,
                fix: Some(fix.into()),
            };
            if address.port() == 0 {
                return Err(fault("workers have to share one port".into(), "name it instead of 0"));
            }
            let socket = bind(address).map_err(|error| {
                let sentence = format!("cannot listen on {address}: {error}");
                fault(sentence, "name a free address of this machine")
            })?;
            self.held.push((Arc::clone(name), address, socket));
        }
        Ok(())
    }

    /// Gives up what this configuration does not listen on.
    pub(crate) fn keep_only(&mut self, config: &Config) {
        self.held.retain(|(name, address, _)| {
            config.listeners.get(name).is_some_and(|listener| listener.addr == *address)
        });
    }
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
