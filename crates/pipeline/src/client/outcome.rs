//! How a request ends: once, in one of four ways.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::{Head, ProtocolError, RequestId, SendError};

/// How a request ended. Each request that was taken ends once.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// The server has answered it completely, with whatever status.
    Answered(ResponseView<'a>),
    /// It never left, or the server said that it did not process it: it had no effect.
    NotSent(RequestError),
    /// It has no valid answer. It may have had an effect if it is one that may be repeated; see
    /// [`ErrorKind`] for what is known.
    Failed(RequestError),
    /// It left, nobody knows whether it was processed, and repeating it might do it twice. Ask the server.
    Uncertain(RequestError),
}

impl Outcome<'_> {
    /// Why there is no answer, if there is none.
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
    /// The head, headers and all.
    pub head: Head<'a>,
    /// The body, when it was gathered.
    pub body: &'a [u8],
    /// Bytes of the body, gathered or not.
    pub body_bytes: u64,
    /// Nanoseconds from [`send`](crate::Requests::send) to leaving, for the last time it left: what the client's own
    /// queue and its lost connections cost.
    pub queue_ns: u64,
    /// Nanoseconds from leaving to the last byte of the answer: what path and server cost, those before it on the
    /// same connection included.
    pub service_ns: u64,
}

/// Why a request was not answered: which, by whom, why, and what to do. Its text is one line.
#[derive(Clone, Debug, thiserror::Error)]
#[error("request {request} to {host}: {kind}")]
pub struct RequestError {
    /// The host asked.
    pub host: Arc<str>,
    /// The request.
    pub request: RequestId,
    /// What happened.
    pub kind: ErrorKind,
    /// Whether the request may have had an effect.
    pub effect: Effect,
}

/// What a request without an answer may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: it never left, or the server said that it did not process it.
    None,
    /// It may have been processed, once or, if it may be repeated, more often.
    Possible,
    /// Nobody knows whether it was processed, and to repeat it might do it twice. Ask the server.
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

/// What happened to a request.
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
    /// The host's certificate is not one to be trusted, or TLS failed otherwise.
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
    /// As many requests as a [`ThreadedClient`](crate::ThreadedClient) takes had not ended.
    #[error(
        "outstanding_max requests have not ended; send it again when one has, or raise outstanding_max"
    )]
    Outstanding,
    /// The client has no such host.
    #[error("the client has no such host; take the id from the client that sends")]
    UnknownHost,
    /// It did not leave within `queue_timeout_ms`.
    #[error("it did not leave within queue_timeout_ms; send less, or raise connections or depth")]
    QueueTimeout,
    /// The answer is malformed.
    #[error("{0}")]
    Protocol(ProtocolError),
    /// The connection ended in the middle of the answer; the status, if that came.
    #[error("the connection ended in the {}; look at the server's log", truncated(*status))]
    Truncated {
        /// The status, 0 when not even that came.
        status: u16,
    },
    /// The connection ended before the answer: closed by the server, or broken.
    #[error(
        "the connection ended before the answer ({0}); look at the server's log before sending it again"
    )]
    Closed(io::ErrorKind),
    /// The answer's body is longer than `body_bytes_max`.
    #[error("the body is longer than body_bytes_max; raise it, or stream the answer")]
    BodyTooLong,
    /// The client was shut down.
    #[error("the client was shut down; send it to another")]
    Shutdown,
    /// The host was [removed](crate::Requests::remove) while it waited to leave.
    #[error("the host was removed; send it to another")]
    Removed,
}

impl From<SendError> for ErrorKind {
    fn from(error: SendError) -> ErrorKind {
        match error {
            SendError::Full => ErrorKind::QueueFull,
            SendError::Outstanding => ErrorKind::Outstanding,
            SendError::UnknownHost => ErrorKind::UnknownHost,
            SendError::Closing => ErrorKind::Shutdown,
        }
    }
}

/// Where a connection ended whose answer had this status, 0 being none.
fn truncated(status: u16) -> String {
    match status {
        0 => "head of the answer".to_owned(),
        status => format!("body of the answer, whose status was {status}"),
    }
}
