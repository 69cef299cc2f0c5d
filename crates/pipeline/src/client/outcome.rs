//! How a request ends: once, in one of four ways.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::{Head, ProtocolError, RequestId, SendError};

/// How a request ended. Each request that was taken ends once.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// The server has answered it completely, with whatever status.
    Answered(Answer<'a>),
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
pub struct Answer<'a> {
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
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The name does not resolve.
    Name(Arc<str>),
    /// No address of the host could be connected to.
    Connect(Arc<io::Error>),
    /// The host's certificate is not one to be trusted, or TLS failed otherwise.
    Tls(Arc<io::Error>),
    /// The oldest request of a connection was not answered within `answer_timeout_ms`.
    AnswerTimeout,
    /// The queue of the host was full.
    QueueFull,
    /// It did not leave within `queue_timeout_ms`.
    QueueTimeout,
    /// The answer is malformed.
    Protocol(ProtocolError),
    /// The connection ended in the middle of the answer; the status, if that came.
    Truncated {
        /// The status, 0 when not even that came.
        status: u16,
    },
    /// The connection ended before the answer: closed by the server, or broken.
    Closed(io::ErrorKind),
    /// The answer's body is longer than `body_bytes_max`.
    BodyTooLong,
    /// The client was shut down.
    Shutdown,
    /// The host was [removed](crate::Requests::remove) while it waited to leave.
    Removed,
}

impl From<SendError> for ErrorKind {
    fn from(error: SendError) -> ErrorKind {
        match error {
            SendError::Full => ErrorKind::QueueFull,
            SendError::Closing => ErrorKind::Shutdown,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Name(error) => {
                write!(f, "the name does not resolve ({error}); check its spelling and the resolver")
            }
            ErrorKind::Connect(error) => write!(
                f,
                "no connection could be opened ({error}); check that the server runs, its address and port"
            ),
            ErrorKind::Tls(error) => write!(
                f,
                "TLS failed ({error}); check the name in the URL, the server's certificate and the roots trusted"
            ),
            ErrorKind::AnswerTimeout => f.write_str(
                "no answer within answer_timeout_ms; raise it, or look why the server is slow",
            ),
            ErrorKind::QueueFull => {
                f.write_str("the host's queue is full; send less, or raise queue_max")
            }
            ErrorKind::QueueTimeout => f.write_str(
                "it did not leave within queue_timeout_ms; send less, or raise connections or depth",
            ),
            ErrorKind::Protocol(violation) => violation.fmt(f),
            ErrorKind::Truncated { status: 0 } => f.write_str(
                "the connection ended in the head of the answer; look at the server's log",
            ),
            ErrorKind::Truncated { status } => write!(
                f,
                "the connection ended in the body of the answer, whose status was {status}; look at the server's log"
            ),
            ErrorKind::Closed(kind) => write!(
                f,
                "the connection ended before the answer ({kind}); look at the server's log before sending it again"
            ),
            ErrorKind::BodyTooLong => {
                f.write_str("the body is longer than body_bytes_max; raise it, or stream the answer")
            }
            ErrorKind::Shutdown => f.write_str("the client was shut down; send it to another"),
            ErrorKind::Removed => f.write_str("the host was removed; send it to another"),
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} to {}: {}", self.request, self.host, self.kind)
    }
}

impl std::error::Error for RequestError {}
