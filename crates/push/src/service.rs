//! The interface between the sender and a push service.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dunlin_wire::backoff::Backoff;
use dunlin_wire::http2::client::Response;

use crate::connect::ConnectError;
use crate::outcome::Outcome;
use crate::request::Request;

/// A push service with one credential.
pub trait Service: Send + Sync + 'static {
    /// Returns `:authority`, for example `api.push.apple.com`.
    fn authority(&self) -> &str;

    /// Returns the name in traces: `apns`, `fcm`, `web_push`.
    fn platform(&self) -> &'static str {
        "other"
    }

    /// Returns the recipient of a request, if a part of it may be shown in traces: a device token.
    fn recipient<'r>(&self, request: &'r Request) -> &'r str {
        let _ = request;
        ""
    }

    /// Returns the header that authenticates a request sent now; `None` if the connection does. Called for every few
    /// requests, so it must be fast: keep a token until it has to be renewed.
    ///
    /// # Errors
    ///
    /// [`CredentialError::Stale`] requests a call of [`prepare`](Service::prepare); requests wait for it.
    /// [`CredentialError::Invalid`] ends them.
    fn authorization(&self, now: SystemTime) -> Result<Option<Authorization>, CredentialError>;

    /// Returns the number of requests that may be sent with one authorization: 1 while the credential is on trial.
    fn batch_max(&self) -> usize {
        usize::MAX
    }

    /// Prepares the credential if that requires I/O, such as fetching a token.
    fn prepare(&self) -> Pin<Box<dyn Future<Output = Result<(), CredentialError>> + Send + '_>> {
        Box::pin(ready(Ok(())))
    }

    /// Returns what keeps the credential from being prepared, if that requires I/O which fails. It is reported for requests
    /// that wait for it in vain.
    fn obstacle(&self) -> Option<ConnectError> {
        None
    }

    /// Handles the report of the service that an authorization has expired; the next one must be new.
    fn handle_spent(&self, generation: u64) {
        let _ = generation;
    }

    /// Returns how many streams a new connection may open before the peer's SETTINGS arrive.
    fn streams_before_settings(&self) -> u32 {
        100
    }

    /// Decides what follows a response.
    fn classify(&self, request: &Request, response: &Response, attempt: Attempt) -> ResponseAction;
}

/// The header that authenticates a request.
#[derive(Clone, Debug)]
pub struct Authorization {
    /// The value of `authorization`.
    pub value: Arc<str>,
    /// The number of renewals, so that a response to an old authorization does not expire the new one.
    pub generation: u64,
}

/// Why there is no authorization.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// It must be fetched first.
    #[error("the credential is being renewed")]
    Stale,
    /// It cannot be used; contains the fix.
    #[error("{0}")]
    Invalid(String),
}

/// The attempt that a response belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// The number of earlier attempts with a response that asked to try again.
    pub retries: u32,
    /// [`Authorization::generation`] of this attempt's header. A response about the authorization applies to this
    /// one, which may have been replaced meanwhile.
    pub generation: u64,
}

impl Attempt {
    /// Returns the delay before the next attempt: the one requested by the service, otherwise that of `backoff`, at
    /// most its `max_ms`.
    pub fn wait(self, retry_after: Option<Duration>, backoff: Backoff) -> Duration {
        let own = Duration::from_millis(backoff.delay_ms(self.retries.saturating_add(1)));
        retry_after.unwrap_or(own).min(Duration::from_millis(backoff.max_ms))
    }

    /// Returns `wait` plus up to a quarter of it, depending on recipient and retry, so that requests refused together
    /// are not retried together.
    pub fn spread(self, request: &Request, wait: Duration) -> Duration {
        let part = crate::hash((request.subject, &request.path, self.retries)) as u32;
        wait + wait.mul_f64(f64::from(part) / f64::from(u32::MAX) / 4.0)
    }
}

/// What the sender does after a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseAction {
    /// The push has ended with this outcome.
    Finish(Outcome),
    /// Try again after a delay, if the deadline permits; otherwise end with `otherwise`.
    Retry {
        /// The delay.
        after: Duration,
        /// The outcome if the deadline is too close.
        otherwise: Outcome,
    },
    /// Like `Retry`, and send no other request until then: a quota is exhausted.
    Pause {
        /// The delay.
        after: Duration,
        /// The outcome if the deadline is too close.
        otherwise: Outcome,
    },
    /// The authorization has expired: try again with a new one, on a new connection.
    Reauthorize {
        /// The outcome if this fails, too.
        otherwise: Outcome,
    },
}
