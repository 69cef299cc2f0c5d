//! A proxy between a node and Redis, which can cut the node off.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dunlin_load::{Context, Error};

/// How often a direction that is held up looks whether it still is.
const HELD: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct State {
    /// Bytes stay where they are: a network that takes everything and delivers nothing.
    silent: AtomicBool,
    /// No connection is made.
    closed: AtomicBool,
    over: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

/// One node's way to Redis.
#[derive(Debug)]
pub(super) struct Proxy {
    state: Arc<State>,
}

impl Proxy {
    pub(super) fn start(listen: SocketAddr, to: SocketAddr) -> Result<Self, Error> {
        let listener = TcpListener::bind(listen).context(format!("cannot listen on {listen}"))?;
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.over.load(Ordering::Acquire) {
                    return;
                }
                let server = match shared.closed.load(Ordering::Acquire) {
                    true => continue,
                    false => TcpStream::connect(to),
                };
                if let Ok(server) = server {
                    // A connection that fails here is one that ends.
                    let _ = carry(&shared, client, server);
                }
            }
        });
        Ok(Self { state })
    }

    /// Ends all connections.
    pub(super) fn cut(&self) {
        let mut streams = self.state.streams.lock().unwrap_or_else(|held| held.into_inner());
        for stream in streams.drain(..) {
            // It has ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Whether connections are refused from now on; those there are end.
    pub(super) fn close(&self, closed: bool) {
        self.state.closed.store(closed, Ordering::Release);
        if closed {
            self.cut();
        }
    }

    /// Whether bytes stay where they are.
    pub(super) fn silence(&self, silent: bool) {
        self.state.silent.store(silent, Ordering::Release);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Release);
        self.cut();
    }
}

fn carry(state: &Arc<State>, client: TcpStream, server: TcpStream) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut streams = state.streams.lock().unwrap_or_else(|held| held.into_inner());
    streams.extend([client.try_clone()?, server.try_clone()?]);
    drop(streams);
    let there = (client.try_clone()?, server.try_clone()?);
    for (mut from, mut to) in [there, (server, client)] {
        let state = Arc::clone(state);
        std::thread::spawn(move || {
            let mut piece = [0; 16 << 10];
            while let Ok(read @ 1..) = from.read(&mut piece) {
                while state.silent.load(Ordering::Acquire) && !state.over.load(Ordering::Acquire) {
                    std::thread::sleep(HELD);
                }
                if to.write_all(&piece[..read]).is_err() {
                    break;
                }
            }
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }
    Ok(())
}
