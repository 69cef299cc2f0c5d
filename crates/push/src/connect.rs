//! How connections are opened, and why opening one failed.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};

/// A byte stream whose other end speaks HTTP/2.
pub type Io = Box<dyn Stream>;

/// What a connection is made of.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection that is being opened.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Io, ConnectError>> + Send + 'a>>;

/// Opens connections.
pub trait Connect: Send + Sync + 'static {
    /// A new one. While it waits for something, `stage` is to know for what: requests whose deadline passes meanwhile
    /// are reported.
    fn connect(&self, stage: Stage) -> Connecting<'_>;
}

/// What keeps a connection from being opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ConnectFault {
    /// The name cannot be looked up.
    Dns,
    /// The address does not answer, or refuses.
    Address,
    /// The proxy does not answer, or refuses.
    Proxy,
    /// The other end's certificate is signed by nobody we trust: something opens TLS on the way, or it is somebody else.
    Untrusted,
    /// TLS fails otherwise: a certificate of another name or time, our own refused, no TLS at all.
    Tls,
    /// The other end does not speak HTTP/2 as it should, or ends connections before it has answered anything.
    Http2,
    /// Something else.
    Other,
}

impl ConnectFault {
    /// All of them, for metrics.
    pub const ALL: [ConnectFault; 7] = [
        ConnectFault::Dns,
        ConnectFault::Address,
        ConnectFault::Proxy,
        ConnectFault::Untrusted,
        ConnectFault::Tls,
        ConnectFault::Http2,
        ConnectFault::Other,
    ];

    /// The word for it in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            ConnectFault::Dns => "dns",
            ConnectFault::Address => "address",
            ConnectFault::Proxy => "proxy",
            ConnectFault::Untrusted => "untrusted",
            ConnectFault::Tls => "tls",
            ConnectFault::Http2 => "http2",
            ConnectFault::Other => "other",
        }
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{why}")]
pub struct ConnectError {
    /// What stands in the way.
    pub fault: ConnectFault,
    /// The sentence for it, and how to fix it.
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

/// What an attempt to connect waits for. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Stage(Arc<Mutex<Option<Waiting>>>);

#[derive(Debug)]
struct Waiting {
    error: ConnectError,
    since: Instant,
}

impl Stage {
    /// Begins to wait for something. `fault` and `why` are reported if it does not come.
    pub fn wait(&self, fault: ConnectFault, why: impl Into<String>) {
        let error = ConnectError::new(fault, why);
        *self.waiting() = Some(Waiting { error, since: Instant::now() });
    }

    /// Waits for something, at most so long.
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

    /// What has been waited for in vain, if for so long.
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
