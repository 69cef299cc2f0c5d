//! Resolves names in a separate thread, because the system's resolver blocks.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use dunlin_wire::dial::interleave;
use rustix::event::EventfdFlags;

/// A name that does not resolve. Inside the [`io::Error`] of `on_connect_failed`, see [`ResolveError::of`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} does not resolve: {message}")]
pub struct ResolveError {
    /// The name.
    pub name: String,
    /// The resolver's error.
    pub message: String,
}

impl ResolveError {
    /// Returns the resolver's error, if it caused the failure of a connect.
    pub fn of(error: &io::Error) -> Option<&ResolveError> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<ResolveError> for io::Error {
    fn from(error: ResolveError) -> io::Error {
        io::Error::new(io::ErrorKind::NotFound, error)
    }
}

/// A name and a port.
pub(crate) type Name = (String, u16);
/// The result for a name.
pub(crate) type Resolved = (Name, Result<Vec<SocketAddr>, ResolveError>);

/// A thread that resolves one name after another, and a cache of addresses.
#[derive(Debug)]
pub(crate) struct Resolver {
    names: Sender<Name>,
    shared: Arc<Shared>,
    /// Addresses and their expiry in milliseconds of the loop's clock. `None`: being resolved.
    known: HashMap<Name, Option<(Vec<SocketAddr>, u64)>>,
}

#[derive(Debug)]
struct Shared {
    results: Mutex<Vec<Resolved>>,
    /// An eventfd, registered edge-triggered: it is written and never read.
    bell: OwnedFd,
}

/// Maximum number of names in the cache.
const KNOWN_MAX: usize = 10_000;

impl Resolver {
    /// Starts the thread, which ends when this handle is dropped.
    pub(crate) fn start() -> io::Result<Resolver> {
        let (names, asked) = mpsc::channel::<Name>();
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { results: Mutex::default(), bell });
        let answering = Arc::clone(&shared);
        std::thread::Builder::new().name("resolver".to_owned()).spawn(move || {
            while let Ok((name, port)) = asked.recv() {
                let error = |message: String| ResolveError { name: name.clone(), message };
                let result = match (name.as_str(), port).to_socket_addrs() {
                    Ok(addresses) => match interleave(addresses.collect()) {
                        none if none.is_empty() => Err(error("it has no address".to_owned())),
                        addresses => Ok(addresses),
                    },
                    Err(failed) => Err(error(failed.to_string())),
                };
                let mut results = answering.results.lock().unwrap_or_else(PoisonError::into_inner);
                results.push(((name, port), result));
                // Fails only when the counter is full, and then the loop is awake.
                let _ = rustix::io::write(&answering.bell, &1u64.to_ne_bytes());
            }
        })?;
        Ok(Resolver { names, shared, known: HashMap::new() })
    }

    pub(crate) fn bell(&self) -> RawFd {
        self.shared.bell.as_raw_fd()
    }

    /// Returns the addresses of a name from the cache. Otherwise resolves it, and [`Resolver::take`] returns them
    /// later.
    pub(crate) fn resolve(&mut self, name: &Name, now_ms: u64) -> Option<Vec<SocketAddr>> {
        match self.known.get(name) {
            Some(Some((addresses, until_ms))) if *until_ms > now_ms => {
                return Some(addresses.clone());
            }
            Some(None) => return None,
            _ => {}
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.retain(|_, known| known.as_ref().is_none_or(|&(_, until)| until > now_ms));
        }
        self.known.insert(name.clone(), None);
        // The thread lives as long as this handle.
        let _ = self.names.send(name.clone());
        None
    }

    /// Takes the results. Their addresses expire at `until_ms`.
    pub(crate) fn take(&mut self, until_ms: u64) -> Vec<Resolved> {
        let results = std::mem::take(
            &mut *self.shared.results.lock().unwrap_or_else(PoisonError::into_inner),
        );
        for (name, result) in &results {
            match result {
                Ok(addresses) => {
                    self.known.insert(name.clone(), Some((addresses.clone(), until_ms)));
                }
                Err(_) => _ = self.known.remove(name),
            }
        }
        results
    }

    /// Moves the address that answered before the others of its name.
    pub(crate) fn prefer(&mut self, name: &Name, address: SocketAddr) {
        if let Some(Some((addresses, _))) = self.known.get_mut(name)
            && let Some(at) = addresses.iter().position(|&other| other == address)
        {
            addresses[..=at].rotate_right(1);
        }
    }

    /// Removes a name from the cache if none of its addresses answered, because they may have changed.
    pub(crate) fn forget(&mut self, name: &Name) {
        if self.known.get(name).is_some_and(Option::is_some) {
            self.known.remove(name);
        }
    }
}
