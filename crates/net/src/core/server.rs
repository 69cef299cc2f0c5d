//! A server in one call: several workers with the same address.

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

/// Configuration of a [`Server`]. For workers with their own descriptor tables use
/// [`spawn_workers`](crate::spawn_workers), and [`open_listener`] in each of them.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Number of threads, at least 1.
    pub workers: usize,
    /// Protocol and limits. `reuse_port` is always set.
    pub listen: ListenConfig,
    /// Limits of each worker's loop: connections, buffers, ticks.
    pub event_loop: LoopConfig,
    /// Pins each worker to a core; cores are shared if there are more workers than cores.
    pub pin: bool,
}

impl ServerConfig {
    /// Returns a configuration with the default limits.
    pub fn new(workers: usize, listen: ListenConfig) -> ServerConfig {
        ServerConfig { workers, listen, event_loop: LoopConfig::default(), pin: false }
    }
}

/// Workers that serve one address, each with its own loop, listener and handler. Dropping it stops them and waits until
/// they have ended, which takes a turn of each loop.
#[must_use = "a server that is dropped stops"]
pub struct Server<H: Handler> {
    addr: SocketAddr,
    remotes: Vec<Remote<H>>,
    workers: Workers<io::Result<()>>,
}

/// Starts threads that serve `addr`; port 0 selects a free one. `handler` creates the handler of each worker, in its
/// thread, from its index. The kernel distributes connections to them (`SO_REUSEPORT`).
///
/// ```no_run
/// use dunlin_net::http::{Request, RequestId, Response};
/// use dunlin_net::{Context, Handler, Http, HttpHandler, ListenConfig, ServerConfig};
///
/// struct Hello(usize);
///
/// impl Handler for Hello {
///     type Data = ();
///     type Protocols = Http;
/// }
///
/// impl HttpHandler for Hello {
///     fn on_request(&mut self, cx: &mut Context<()>, id: RequestId, _: &Request<'_>) {
///         let _ = cx.respond(id, &Response::text(&format!("hello from worker {}\n", self.0)));
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

/// As [`start`], for a handler that is created with access to its loop: to register a descriptor, or to connect.
///
/// # Errors
///
/// Those of [`start`]. If `handler` returns an error, its worker ends and [`Server::wait`] returns the error.
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
    /// Returns the address of the server.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns a handle per worker to run closures in its loop.
    pub fn remotes(&self) -> &[Remote<H>] {
        &self.remotes
    }

    /// Stops every loop at the end of its turn.
    pub fn stop(&self) {
        for remote in &self.remotes {
            // An error means that the loop has already ended.
            let _ = remote.run(|_, cx: &mut Context<H::Data>| cx.stop());
        }
    }

    /// Waits until all workers have ended.
    ///
    /// # Errors
    ///
    /// The error of the first worker that failed or panicked; the other workers are then stopped.
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
