//! A proxy in front of a server of Redis or NATS, which can cut off each peer separately.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dunlin_load::{Context, Error};

/// How often a silenced direction checks whether it may continue.
const HELD: Duration = Duration::from_millis(20);

/// A peer that connects: a node by its number, or 0 for others (replicas and Sentinels). Between NATS servers, the other server.
pub(super) type Peer = usize;
/// The peer number of replicas and Sentinels.
pub(super) const OTHERS: Peer = 0;
const PEERS: usize = 10;

/// Returns the user name that identifies a peer in its greeting.
pub(super) fn user(peer: Peer) -> String {
    format!("node{peer}")
}

#[derive(Debug, Default)]
struct Gate {
    /// Whether all bytes are held back, as in a network that accepts everything and delivers nothing.
    silent: AtomicBool,
    /// Whether connections are refused.
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    gates: [Gate; PEERS],
    over: AtomicBool,
    made: AtomicU64,
    /// Both ends of each connection, and its peer.
    connections: Mutex<BTreeMap<u64, (Peer, [TcpStream; 2])>>,
}

/// A proxy to one server.
#[derive(Debug)]
pub(super) struct Proxy {
    state: Arc<State>,
}

impl Proxy {
    /// Starts a proxy for all peers of a server where clients speak first: their greeting identifies them.
    pub(super) fn start(listen: SocketAddr, to: SocketAddr) -> Result<Self, Error> {
        let proxy = Self { state: Arc::default() };
        proxy.listen(listen, to, None)?;
        Ok(proxy)
    }

    /// Starts a proxy for a server that speaks first: each peer connects to its own address.
    pub(super) fn with_ways(
        ways: impl Iterator<Item = (Peer, SocketAddr)>,
        to: SocketAddr,
    ) -> Result<Self, Error> {
        let proxy = Self { state: Arc::default() };
        for (peer, listen) in ways {
            proxy.listen(listen, to, Some(peer))?;
        }
        Ok(proxy)
    }

    fn listen(&self, listen: SocketAddr, to: SocketAddr, peer: Option<Peer>) -> Result<(), Error> {
        let listener = TcpListener::bind(listen).context(format!("cannot listen on {listen}"))?;
        let shared = Arc::clone(&self.state);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.over.load(Ordering::Acquire) {
                    return;
                }
                let state = Arc::clone(&shared);
                // A failed connection is just closed.
                std::thread::spawn(move || carry(&state, client, to, peer).ok());
            }
        });
        Ok(())
    }

    /// Ends all connections of a peer.
    pub(super) fn cut(&self, peer: Peer) {
        self.end(|of| of == peer);
    }

    fn end(&self, which: impl Fn(Peer) -> bool) {
        let connections = self.state.connections.lock().unwrap_or_else(|held| held.into_inner());
        for (_, streams) in connections.values().filter(|(peer, _)| which(*peer)) {
            for stream in streams {
                // Fails only if the connection has already ended.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Refuses a peer's connections from now on and ends the open ones, or accepts them again.
    pub(super) fn close(&self, peer: Peer, closed: bool) {
        self.state.gates[peer].closed.store(closed, Ordering::Release);
        if closed {
            self.cut(peer);
        }
    }

    /// Holds a peer's bytes back, or lets them pass again.
    pub(super) fn silence(&self, peer: Peer, silent: bool) {
        self.state.gates[peer].silent.store(silent, Ordering::Release);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Release);
        self.end(|_| true);
    }
}

/// Returns the peer that sent this greeting.
fn peer(greeting: &[u8]) -> Peer {
    let is_of = |peer: &Peer| {
        memchr::memmem::find(greeting, format!("\r\n{}\r\n", user(*peer)).as_bytes()).is_some()
    };
    (1..PEERS).find(is_of).unwrap_or(OTHERS)
}

/// Carries a connection until it ends; the peer is known, or read from its greeting.
fn carry(
    state: &Arc<State>,
    mut client: TcpStream,
    to: SocketAddr,
    known: Option<Peer>,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let mut greeting = [0; 4 << 10];
    let length = if known.is_none() { client.read(&mut greeting)? } else { 0 };
    let peer = known.unwrap_or_else(|| peer(&greeting[..length]));
    let server = TcpStream::connect(to)?;
    server.set_nodelay(true)?;
    let number = state.made.fetch_add(1, Ordering::Relaxed);
    {
        let mut connections = state.connections.lock().unwrap_or_else(|held| held.into_inner());
        connections.insert(number, (peer, [client.try_clone()?, server.try_clone()?]));
    }
    // A concurrent close either finds this connection in the map, or this check sees the closed gate.
    if !state.gates[peer].closed.load(Ordering::Acquire) {
        let back = (Arc::clone(state), server.try_clone()?, client.try_clone()?);
        std::thread::spawn(move || copy(&back.0, peer, back.1, back.2, &[]));
        copy(state, peer, client, server, &greeting[..length]);
    }
    let mut connections = state.connections.lock().unwrap_or_else(|held| held.into_inner());
    connections.remove(&number);
    Ok(())
}

fn copy(state: &State, peer: Peer, mut from: TcpStream, mut to: TcpStream, first: &[u8]) {
    let silent = &state.gates[peer].silent;
    let mut pass = |bytes: &[u8]| {
        while silent.load(Ordering::Acquire) && !state.over.load(Ordering::Acquire) {
            std::thread::sleep(HELD);
        }
        to.write_all(bytes)
    };
    let mut piece = [0; 16 << 10];
    if pass(first).is_ok() {
        while let Ok(read @ 1..) = from.read(&mut piece) {
            if pass(&piece[..read]).is_err() {
                break;
            }
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
