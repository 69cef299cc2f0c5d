//! Names to addresses, without blocking the loop: the system's resolver blocks, so it does in a thread of its own.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::EventfdFlags;

/// What a name resolved to, for the host that asked.
pub(crate) type Resolved = (u32, Result<Vec<SocketAddr>, Arc<str>>);

/// A thread that resolves one name after another. It ends with this handle.
#[derive(Debug)]
pub(crate) struct Resolver {
    asks: Sender<(u32, String, u16)>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    results: Mutex<Vec<Resolved>>,
    /// An eventfd, registered edge-triggered: it is written and never read.
    bell: OwnedFd,
}

impl Resolver {
    pub(crate) fn start() -> io::Result<Resolver> {
        let (asks, asked) = mpsc::channel::<(u32, String, u16)>();
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { results: Mutex::default(), bell });
        let answering = Arc::clone(&shared);
        std::thread::Builder::new().name("resolver".to_owned()).spawn(move || {
            while let Ok((host, name, port)) = asked.recv() {
                let result = match (name.as_str(), port).to_socket_addrs() {
                    Ok(addresses) => Ok(interleave(addresses.collect())),
                    Err(error) => Err(error.to_string().into()),
                };
                let mut results = answering.results.lock().unwrap_or_else(PoisonError::into_inner);
                results.push((host, result));
                // Fails only when the counter is full, and then the loop is awake.
                let _ = rustix::io::write(&answering.bell, &1u64.to_ne_bytes());
            }
        })?;
        Ok(Resolver { asks, shared })
    }

    /// Resolves a name for a host; the result is [taken](Resolver::take) after the bell has rung.
    pub(crate) fn resolve(&self, host: u32, name: &str, port: u16) {
        // The thread lives as long as this handle.
        let _ = self.asks.send((host, name.to_owned(), port));
    }

    pub(crate) fn take(&self) -> Vec<Resolved> {
        std::mem::take(&mut *self.shared.results.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

/// Orders addresses so that the families alternate, the family that the resolver put first leading
/// (RFC 8305 §4).
pub(crate) fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (leading, others): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let (mut leading, mut others) = (leading.into_iter(), others.into_iter());
    let mut ordered = Vec::new();
    loop {
        let pair = [leading.next(), others.next()];
        if pair == [None, None] {
            return ordered;
        }
        ordered.extend(pair.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate() {
        let [a, b, c, x, y] = ["[::1]:1", "[::2]:1", "[::3]:1", "10.0.0.1:1", "10.0.0.2:1"]
            .map(|address| address.parse::<SocketAddr>().expect("an address"));
        assert_eq!(interleave(vec![a, b, c, x, y]), [a, x, b, y, c]);
        assert_eq!(interleave(vec![x, y, a]), [x, a, y]);
        assert_eq!(interleave(vec![]), []);
    }
}
