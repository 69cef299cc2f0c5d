//! Opening of connections, and its errors.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};

/// A byte stream to a peer that speaks HTTP/2.
pub type Io = Box<dyn Stream>;

/// The requirements of a connection's byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection that is being opened.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Io, ConnectError>> + Send + 'a>>;

/// Opens connections.
pub trait Connect: Send + Sync + 'static {
    /// Opens a connection. Set `stage` while the attempt waits for something: it is reported for requests whose
    /// deadline passes meanwhile.
    fn connect(&self, stage: Stage) -> Connecting<'_>;
}

/// Why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ConnectFault {
    /// The name lookup fails.
    Dns,
    /// The address refuses the connection or does not respond.
    Address,
    /// The proxy refuses the connection or does not respond.
    Proxy,
    /// The certificate of the peer is not signed by a trusted authority: a proxy intercepts TLS, or it is another
    /// server.
    Untrusted,
    /// TLS fails otherwise: a certificate with another name or outside its validity, a refused client certificate, or
    /// no TLS at all.
    Tls,
    /// The peer does not speak HTTP/2 correctly, closes connections before its first response, or refuses every stream.
    Http2,
    /// The server that issues access tokens has none now.
    Token,
    /// Another error.
    Other,
}

impl ConnectFault {
    /// All faults, for metrics.
    pub const ALL: [ConnectFault; 8] = [
        ConnectFault::Dns,
        ConnectFault::Address,
        ConnectFault::Proxy,
        ConnectFault::Untrusted,
        ConnectFault::Tls,
        ConnectFault::Http2,
        ConnectFault::Token,
        ConnectFault::Other,
    ];

    /// Returns the name of the fault in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            ConnectFault::Dns => "dns",
            ConnectFault::Address => "address",
            ConnectFault::Proxy => "proxy",
            ConnectFault::Untrusted => "untrusted",
            ConnectFault::Tls => "tls",
            ConnectFault::Http2 => "http2",
            ConnectFault::Token => "token",
            ConnectFault::Other => "other",
        }
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{why}")]
pub struct ConnectError {
    /// The kind of the error.
    pub fault: ConnectFault,
    /// The cause and the fix.
    pub why: String,
}

impl ConnectError {
    pub(crate) fn new(fault: ConnectFault, why: impl Into<String>) -> ConnectError {
        ConnectError { fault, why: why.into() }
    }
}

impl From<String> for ConnectError {
    fn from(why: String) -> ConnectError {
        ConnectError { fault: ConnectFault::Other, why }
    }
}

/// The current stage of an attempt to connect. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Stage(Arc<Mutex<Option<Waiting>>>);

#[derive(Debug)]
struct Waiting {
    error: ConnectError,
    since: Instant,
}

impl Stage {
    /// Begins a stage. `fault` and `why` are reported if it does not end.
    pub fn wait(&self, fault: ConnectFault, why: impl Into<String>) {
        let error = ConnectError::new(fault, why);
        *self.waiting() = Some(Waiting { error, since: Instant::now() });
    }

    /// Waits for a stage, with a timeout.
    pub(crate) async fn within<T>(
        &self,
        time: Duration,
        fault: ConnectFault,
        why: String,
        what: impl Future<Output = T>,
    ) -> Result<T, ConnectError> {
        self.wait(fault, why);
        timeout(time, what).await.map_err(|_| self.error(Duration::ZERO).unwrap_or_else(nothing))
    }

    /// Returns the error of the current stage, if it has lasted for `grace`.
    pub(crate) fn error(&self, grace: Duration) -> Option<ConnectError> {
        let waiting = self.waiting();
        let waiting = waiting.as_ref()?;
        (waiting.since.elapsed() >= grace).then(|| waiting.error.clone())
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nothing() -> ConnectError {
    ConnectError::new(ConnectFault::Other, "no connection came about")
}
