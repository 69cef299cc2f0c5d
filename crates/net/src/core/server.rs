//! A server in one call: several workers on one address.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use super::config::{ListenConfig, LoopConfig};
use super::context::Context;
use super::event_loop::EventLoop;
use super::handler::Handler;
use super::listener::open_listener;
use super::remote::{Remote, remote_pair};
use super::worker::{Exit, WorkerConfig, Workers, spawn_workers};

/// How a [`Server`] serves. Workers with descriptor tables of their own are started by
/// [`spawn_workers`](crate::spawn_workers), each with a listener that [`open_listener`] opens in it.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Threads, at least 1.
    pub workers: usize,
    /// What is spoken, and its bounds. `reuse_port` is set.
    pub listen: ListenConfig,
    /// Bounds of each worker's loop: connections, buffers, ticks.
    pub event_loop: LoopConfig,
    /// Run each worker on a core of its own, as far as there are as many.
    pub pin: bool,
}

impl ServerConfig {
    /// So many workers with the default bounds.
    pub fn new(workers: usize, listen: ListenConfig) -> ServerConfig {
        ServerConfig { workers, listen, event_loop: LoopConfig::default(), pin: false }
    }
}

/// Workers that serve one address, each with a loop, a listener and a handler of its own. Dropping it stops them, and
/// waits until they have ended: a turn of each loop.
#[must_use = "a server that is dropped stops"]
pub struct Server<H: Handler> {
    addr: SocketAddr,
    remotes: Vec<Remote<H>>,
    workers: Workers<io::Result<()>>,
}

/// Starts threads that serve `addr`; port 0 takes a free one. `handler` makes the handler of each worker, in its
/// thread, from its index. The kernel spreads connections over them (`SO_REUSEPORT`).
///
/// ```no_run
/// use dunlin_net::http::{Request, Response};
/// use dunlin_net::{ConnId, Context, Handler, Http, HttpHandler, ListenConfig, ServerConfig};
///
/// struct Hello(usize);
///
/// impl Handler for Hello {
///     type Data = ();
///     type Protocols = Http;
/// }
///
/// impl HttpHandler for Hello {
///     fn on_request(&mut self, cx: &mut Context<()>, conn: ConnId, _: &Request<'_>) {
///         let _ = cx.respond(conn, &Response::text(&format!("hello from worker {}\n", self.0)));
///     }
/// }
///
/// let config = ServerConfig { pin: true, ..ServerConfig::new(4, ListenConfig::http()) };
/// dunlin_net::start("127.0.0.1:8080".parse().unwrap(), config, Hello)?.wait()?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// Those of [`open_listener`] and of starting threads.
pub fn start<H: Handler + 'static>(
    addr: SocketAddr,
    config: ServerConfig,
    handler: impl Fn(usize) -> H + Send + Sync + 'static,
) -> io::Result<Server<H>> {
    start_with(addr, config, move |_, index| Ok(handler(index)))
}

/// As [`start`], for a handler that needs its worker's loop to be made: to register a descriptor, or to connect.
///
/// # Errors
///
/// As [`start`]. An error of `handler` ends its worker, and [`Server::wait`] returns it.
pub fn start_with<H: Handler + 'static>(
    addr: SocketAddr,
    config: ServerConfig,
    handler: impl Fn(&mut Context<H::Data>, usize) -> io::Result<H> + Send + Sync + 'static,
) -> io::Result<Server<H>> {
    let count = config.workers.max(1);
    let listen = ListenConfig { reuse_port: true, ..config.listen };
    let (mut addr, mut remotes, mut places) = (addr, Vec::new(), Vec::new());
    for _ in 0..count {
        let listener = open_listener(addr, &listen)?;
        addr = listener.local_addr()?;
        let (remote, inbox) = remote_pair::<H>()?;
        remotes.push(remote);
        places.push(Some((listener, inbox)));
    }
    let places = Mutex::new(places);
    let (pin, name) = (config.pin, "worker".to_owned());
    let worker = WorkerConfig { pin, name, ..WorkerConfig::default() };
    let workers = spawn_workers(count, &worker, move |index| {
        let place = places.lock().unwrap_or_else(PoisonError::into_inner)[index].take();
        let (listener, inbox) = place.ok_or(io::ErrorKind::AlreadyExists)?;
        let mut event_loop = EventLoop::with_inbox(config.event_loop.clone(), inbox)?;
        let mut handler = handler(event_loop.context(), index)?;
        event_loop.context().adopt_listener(listener, &listen)?;
        event_loop.run(&mut handler)
    })?;
    Ok(Server { addr, remotes, workers })
}

impl<H: Handler> Server<H> {
    /// The address it serves.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its workers, for running closures in their loops.
    pub fn remotes(&self) -> &[Remote<H>] {
        &self.remotes
    }

    /// Ends every loop at the end of its turn.
    pub fn stop(&self) {
        for remote in &self.remotes {
            // One that is gone has ended.
            let _ = remote.run(|_, cx: &mut Context<H::Data>| cx.stop());
        }
    }

    /// Waits until all workers have ended.
    ///
    /// # Errors
    ///
    /// The error of the first worker that failed or panicked; the others are then stopped.
    pub fn wait(mut self) -> io::Result<()> {
        let mut result = Ok(());
        while let Some((index, exit)) = self.workers.wait() {
            let ended = match exit {
                Exit::Returned(ended) => ended,
                other => Err(io::Error::other(format!("worker {index} {other}"))),
            };
            if ended.is_err() && result.is_ok() {
                self.stop();
                result = ended;
            }
        }
        result
    }
}

impl<H: Handler> Drop for Server<H> {
    fn drop(&mut self) {
        self.stop();
        while self.workers.wait().is_some() {}
    }
}

impl<H: Handler> fmt::Debug for Server<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addr", &self.addr).finish_non_exhaustive()
    }
}
