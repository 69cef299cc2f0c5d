//! The simulator's thread: accepts connections and runs a task for each.

use std::cell::RefCell;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use crate::apns::{Behaviour, BehaviourError, Config, Counts, Entry, Order, Shared};
use crate::connection::Connection;
use crate::{Authority, StartError, control};

/// Size of the read buffer, which all connections share.
const READ_BYTES: usize = 256 << 10;
/// Pause after a failed accept (no descriptors), so that the loop does not spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A simulator running in its own thread until dropped.
pub struct Simulator {
    addr: SocketAddr,
    control_addr: Option<SocketAddr>,
    authority: Authority,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Simulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator").field("addr", &self.addr).finish_non_exhaustive()
    }
}

impl Simulator {
    /// Starts a simulator.
    ///
    /// # Errors
    /// The address is in use, or a key or the behaviour is invalid; the message says what to change.
    pub fn start(config: Config) -> Result<Simulator, StartError> {
        let fault = |fault: BehaviourError| StartError::because("this is no behaviour", fault);
        config.behaviour.validate().map_err(fault)?;
        let authority = match config.authority {
            Some(authority) => authority,
            None => Authority::new()?,
        };
        let tls = if config.tls { Some(authority.server_config()?) } else { None };
        let (listener, addr) = listen(config.listen)?;
        let (control, control_addr) = match config.control.map(listen).transpose()? {
            Some((listener, addr)) => (Some(listener), Some(addr)),
            None => (None, None),
        };
        let mut seed = [0; 8];
        let no_random = |error: getrandom::Error| {
            StartError::new(format!("the system has no random numbers: {error}"))
        };
        getrandom::fill(&mut seed).map_err(no_random)?;
        let seed = u64::from_ne_bytes(seed);
        let keyring = crate::apns::Keyring::new(config.keys, config.environment)?;
        let shared = Arc::new(Shared::new(
            keyring,
            config.environment,
            config.rules,
            config.ledger_max,
            config.behaviour,
            seed,
        ));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| StartError::because("cannot start the simulator's loop", error))?;
        let (stop, stopped) = oneshot::channel();
        let server = Server {
            listener,
            control,
            tls,
            shared: Arc::clone(&shared),
            ca_pem: authority.pem().to_owned(),
            connections_max: config.connections_max,
            seed,
        };
        let thread = std::thread::Builder::new()
            .name("apns-simulator".to_owned())
            .spawn(move || {
                let local = LocalSet::new();
                let serving = local.run_until(async {
                    tokio::select! {
                        outcome = server.run() => if let Err(error) = outcome {
                            tracing::error!(%error, "the simulator has ended");
                        },
                        _ = stopped => {}
                    }
                });
                runtime.block_on(serving);
            })
            .map_err(|error| StartError::because("cannot start the simulator's thread", error))?;
        Ok(Simulator {
            addr,
            control_addr,
            authority,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the address that accepts pushes.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the address of the control port, if it is enabled.
    pub fn control_addr(&self) -> Option<SocketAddr> {
        self.control_addr
    }

    /// Returns the CA certificate to trust, in PEM.
    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// Returns the certificate authority, which also issues client certificates.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Returns the current behaviour.
    pub fn behaviour(&self) -> Behaviour {
        Behaviour::clone(&self.shared.behaviour.borrow())
    }

    /// Changes the behaviour, also for open connections.
    ///
    /// # Errors
    /// Names the invalid field; the behaviour is unchanged then.
    pub fn set_behaviour(&self, behaviour: Behaviour) -> Result<(), BehaviourError> {
        behaviour.validate()?;
        self.shared.behaviour.send_replace(Arc::new(behaviour));
        Ok(())
    }

    /// Executes an order on every open connection. Returns their number.
    pub fn order(&self, order: Order) -> usize {
        self.shared.orders.send(order).unwrap_or(0)
    }

    /// Returns the median answer time since the start, without the path but with the wait for a worker; 0 if there was
    /// no answer.
    pub fn answer_time_median(&self) -> Duration {
        self.shared.answer_time_median()
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Returns the outcome of each push, in order; the first [`Config::ledger_max`] of them.
    pub fn ledger(&self) -> Vec<Entry> {
        self.shared.world().ledger.entries(0, usize::MAX).collect()
    }

    /// Waits until the simulator ends by itself, which happens only when its listener fails.
    pub fn wait(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        // The send fails if the thread has already ended, which is fine.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn listen(addr: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let open = || {
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        Ok((listener, addr))
    };
    open().map_err(|error: std::io::Error| {
        StartError::because(format!("cannot listen on {addr}"), error)
    })
}

/// What the thread owns.
struct Server {
    listener: TcpListener,
    control: Option<TcpListener>,
    tls: Option<Arc<ServerConfig>>,
    shared: Arc<Shared>,
    ca_pem: String,
    connections_max: usize,
    seed: u64,
}

impl Server {
    async fn run(self) -> std::io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        if let Some(control) = self.control {
            let control = tokio::net::TcpListener::from_std(control)?;
            let shared = Arc::clone(&self.shared);
            tokio::task::spawn_local(control::serve(control, shared, self.ca_pem));
        }
        let buffer = Rc::new(RefCell::new(vec![0; READ_BYTES]));
        let mut number: u32 = 0;
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "could not accept");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            {
                let counts = &mut self.shared.world().counts;
                if counts.connections_open >= self.connections_max as u64 {
                    continue;
                }
                counts.connections += 1;
                counts.connections_open += 1;
            }
            number = number.wrapping_add(1);
            let shared = Arc::clone(&self.shared);
            let seed = self.seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let opened = Connection::open(
                stream,
                number,
                self.tls.as_ref(),
                Arc::clone(&shared),
                Rc::clone(&buffer),
                seed,
            );
            tokio::task::spawn_local(async move {
                match opened {
                    Ok(connection) => connection.run().await,
                    Err(error) => tracing::debug!(%error, "a connection could not be set up"),
                }
                shared.world().counts.connections_open -= 1;
            });
        }
    }
}
