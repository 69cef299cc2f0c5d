//! Outcomes of requests.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::{Head, ProtocolError, RequestId, SendError};

/// The outcome of a request. Each accepted request has exactly one.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// The server has answered completely, with any status.
    Answered(ResponseView<'a>),
    /// The request was not sent, or the server reported that it did not process it. It had no effect.
    NotSent(RequestError),
    /// The request has no valid answer. An idempotent request may have had an effect; see [`ErrorKind`].
    Failed(RequestError),
    /// The request was sent, and may have been processed. Repeating it could execute it twice. Ask the server for its
    /// state.
    Uncertain(RequestError),
}

impl Outcome<'_> {
    /// Returns the error, if there is no answer.
    pub fn error(&self) -> Option<&RequestError> {
        match self {
            Outcome::Answered(_) => None,
            Outcome::NotSent(error) | Outcome::Failed(error) | Outcome::Uncertain(error) => {
                Some(error)
            }
        }
    }
}

impl fmt::Display for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Answered(answer) => write!(f, "answered with {}", answer.status),
            Outcome::NotSent(error) => write!(f, "not sent: {error}"),
            Outcome::Failed(error) => write!(f, "failed: {error}"),
            Outcome::Uncertain(error) => write!(f, "perhaps processed: {error}"),
        }
    }
}

/// A complete answer.
#[derive(Clone, Copy, Debug)]
pub struct ResponseView<'a> {
    /// The status code.
    pub status: u16,
    /// The head with its headers.
    pub head: Head<'a>,
    /// The body, if it was gathered.
    pub body: &'a [u8],
    /// Bytes of the body, gathered or not.
    pub body_bytes: u64,
    /// Nanoseconds from [`send`](crate::Requests::send) to the last time it was written: the time in the client's
    /// queue and on lost connections.
    pub queue_ns: u64,
    /// Nanoseconds from writing to the last byte of the answer: the time of path and server, including earlier
    /// requests on the same connection.
    pub service_ns: u64,
}

/// Why a request was not answered. Its text is one line with host, request, cause and fix.
#[derive(Clone, Debug, thiserror::Error)]
#[error("request {request} to {host}: {kind}")]
pub struct RequestError {
    /// The host.
    pub host: Arc<str>,
    /// The request.
    pub request: RequestId,
    /// What happened.
    pub kind: ErrorKind,
    /// Whether the request may have had an effect.
    pub effect: Effect,
}

/// The possible effect of a request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None: it was not sent, or the server reported that it did not process it.
    None,
    /// It may have been processed; an idempotent request more than once.
    Possible,
    /// It may have been processed, and repeating it could execute it twice. Ask the server for its state.
    Unknown,
}

impl From<RequestError> for Outcome<'_> {
    fn from(error: RequestError) -> Self {
        match error.effect {
            Effect::None => Outcome::NotSent(error),
            Effect::Possible => Outcome::Failed(error),
            Effect::Unknown => Outcome::Uncertain(error),
        }
    }
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The name does not resolve.
    #[error("the name does not resolve ({0}); check its spelling and the resolver")]
    Name(Arc<str>),
    /// No address of the host could be connected to.
    #[error(
        "no connection could be opened ({0}); check that the server runs, its address and port"
    )]
    Connect(Arc<io::Error>),
    /// The TLS handshake failed, for example because the certificate is not trusted.
    #[error(
        "TLS failed ({0}); check the name in the URL, the server's certificate and the roots trusted"
    )]
    Tls(Arc<io::Error>),
    /// The oldest request of a connection was not answered within `answer_timeout_ms`.
    #[error("no answer within answer_timeout_ms; raise it, or look why the server is slow")]
    AnswerTimeout,
    /// The queue of the host was full.
    #[error("the host's queue is full; send less, or raise queue_max or queue_bytes_max")]
    QueueFull,
    /// The share of the host's queue that its flow may use was full.
    #[error("the flow's share of the host's queue is full; send less for it, or raise queue_max")]
    FlowFull,
    /// As many requests as a [`ThreadedClient`](crate::ThreadedClient) accepts have not ended.
    #[error(
        "outstanding_max requests have not ended; send it again when one has, or raise outstanding_max"
    )]
    Outstanding,
    /// The client has no such host.
    #[error("the client has no such host; take the id from the client that sends")]
    UnknownHost,
    /// The request was queued longer than `queue_timeout_ms`.
    #[error("it did not leave within queue_timeout_ms; send less, or raise connections or depth")]
    QueueTimeout,
    /// The answer is malformed.
    #[error("{0}")]
    Protocol(ProtocolError),
    /// The connection ended during the answer.
    #[error("the connection ended in the {}; look at the server's log", truncated(*status))]
    Truncated {
        /// The status; 0 if it did not arrive.
        status: u16,
    },
    /// The connection was closed or broke before the answer.
    #[error(
        "the connection ended before the answer ({0}); look at the server's log before sending it again"
    )]
    Closed(io::ErrorKind),
    /// The body of the answer is longer than `body_bytes_max`.
    #[error("the body is longer than body_bytes_max; raise it, or stream the answer")]
    BodyTooLong,
    /// The client was shut down.
    #[error("the client was shut down; send it to another")]
    Shutdown,
    /// The host was [removed](crate::Requests::remove) while the request was queued.
    #[error("the host was removed; send it to another")]
    Removed,
}

impl From<SendError> for ErrorKind {
    fn from(error: SendError) -> ErrorKind {
        match error {
            SendError::Full => ErrorKind::QueueFull,
            SendError::FlowFull => ErrorKind::FlowFull,
            SendError::Outstanding => ErrorKind::Outstanding,
            SendError::UnknownHost => ErrorKind::UnknownHost,
            SendError::Closing => ErrorKind::Shutdown,
        }
    }
}

/// Describes where in the answer a connection ended; `status` is 0 if none arrived.
fn truncated(status: u16) -> String {
    match status {
        0 => "head of the answer".to_owned(),
        status => format!("body of the answer, whose status was {status}"),
    }
}
