//! What a push service is to the sender.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dunlin_wire::backoff::Backoff;
use dunlin_wire::http2::client::Response;

use crate::outcome::Outcome;
use crate::request::Request;

/// A push service with one credential.
pub trait Service: Send + Sync + 'static {
    /// `:authority`, as in `api.push.apple.com`.
    fn authority(&self) -> &str;

    /// What traces call it: `apns`, `fcm`, `web_push`.
    fn platform(&self) -> &'static str {
        "other"
    }

    /// Whom a request is for, where that may be shown in part: a device token.
    fn recipient<'r>(&self, request: &'r Request) -> &'r str {
        let _ = request;
        ""
    }

    /// The header that authenticates a request sent now; `None` when the connection does. Called for each
    /// handful of requests, so it is to be quick: a token is kept until it has to be renewed.
    ///
    /// # Errors
    ///
    /// [`CredentialError::Stale`] asks for a call of [`prepare`](Service::prepare); requests wait for it.
    /// [`CredentialError::Invalid`] ends them.
    fn authorization(&self, now: SystemTime) -> Result<Option<Authorization>, CredentialError>;

    /// How many requests may leave with one authorization: 1 while the credential is on trial.
    fn batch_max(&self) -> usize {
        usize::MAX
    }

    /// Gets the credential ready where that takes more than computing, as fetching a token does.
    fn prepare(&self) -> Pin<Box<dyn Future<Output = Result<(), CredentialError>> + Send + '_>> {
        Box::pin(ready(Ok(())))
    }

    /// The service said that an authorization is spent; the next one has to be a new one.
    fn handle_spent(&self, generation: u64) {
        let _ = generation;
    }

    /// Streams on a new connection before the peer says how many.
    fn streams_before_settings(&self) -> u32 {
        100
    }

    /// What a response means for its request.
    fn classify(&self, request: &Request, response: &Response, attempt: Attempt) -> ResponseAction;
}

/// The header that authenticates a request.
#[derive(Clone, Debug)]
pub struct Authorization {
    /// The value of `authorization`.
    pub value: Arc<str>,
    /// Counts the renewals, so that an answer to an old one does not spend the new one.
    pub generation: u64,
}

/// Why there is no authorization.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// It has to be fetched first.
    #[error("the credential is being renewed")]
    Stale,
    /// It cannot be used; the text says what to mend.
    #[error("{0}")]
    Invalid(String),
}

/// The attempt that a response answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// How many attempts of the request were answered before, and were to be repeated.
    pub retries: u32,
    /// [`Authorization::generation`] of the header that this attempt carried. What the service says of an authorization
    /// it says of that one, which may have been replaced meanwhile.
    pub generation: u64,
}

impl Attempt {
    /// How long to wait before the next attempt: what the service asks for, else what `backoff` says, at most its `max_ms`.
    pub fn wait(self, retry_after: Option<Duration>, backoff: Backoff) -> Duration {
        let own = Duration::from_millis(backoff.delay_ms(self.retries.saturating_add(1)));
        retry_after.unwrap_or(own).min(Duration::from_millis(backoff.max_ms))
    }

    /// `wait` and up to a quarter of it, another part for each recipient and retry, so that those who were refused together
    /// do not come back together.
    pub fn spread(self, request: &Request, wait: Duration) -> Duration {
        let part = crate::hash((request.subject, &request.path, self.retries)) as u32;
        wait + wait.mul_f64(f64::from(part) / f64::from(u32::MAX) / 4.0)
    }
}

/// What the sender does after a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseAction {
    /// The end.
    Finish(Outcome),
    /// Again after a while, if the deadline allows; else `otherwise` is the end.
    Retry {
        /// How long to wait.
        after: Duration,
        /// The outcome if there is no time left.
        otherwise: Outcome,
    },
    /// As `Retry`, and nothing else is sent either until then: a quota is used up.
    Pause {
        /// How long to wait.
        after: Duration,
        /// The outcome if there is no time left.
        otherwise: Outcome,
    },
    /// The authorization is spent: again with a new one, on a new connection.
    Reauthorize {
        /// The outcome if that does not help either.
        otherwise: Outcome,
    },
}
