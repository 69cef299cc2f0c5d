//! The sender for Apple: one credential, one environment.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dunlin_wire::backoff::Backoff;
use dunlin_wire::http2::client::Response;
use serde::Deserialize;
use tokio::time::Instant;

use super::breaker::Breaker;
use super::feed::{Dead, Feed};
use super::provider_token::TokenAge;
use super::{Certificate, DeadToken, ProviderToken, Push, Reason, certificate, clock};
use crate::connect::Connect;
use crate::dial::Dialer;
use crate::origin::{Origin, OriginError};
use crate::outcome::{Accepted, NotSent, Outcome, Rejected};
use crate::request::{ConnectionGroup, Request};
use crate::sender::{Results, Sender, SenderConfig, SenderMetrics};
use crate::service::{Attempt, Authorization, CredentialError, ResponseAction, Service};

/// Delay after a 5xx or 429, up to the longest that Apple requests.
const RETRY: Backoff = Backoff { min_ms: 1_000, max_ms: 15 * 60_000 };
const DEVICE_PATH: &str = "/3/device/";

/// The environment of Apple's service that an app was built for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Environment {
    /// The App Store and TestFlight: `api.push.apple.com`.
    #[default]
    Production,
    /// Builds from Xcode: `api.sandbox.push.apple.com`.
    Sandbox,
}

impl Environment {
    /// Returns the host of its provider API.
    pub fn host(self) -> &'static str {
        match self {
            Environment::Production => "api.push.apple.com",
            Environment::Sandbox => "api.sandbox.push.apple.com",
        }
    }

    /// Returns its origin. Apple also listens on port 2197.
    pub fn origin(self) -> Origin {
        Origin::new(self.host(), 443)
    }
}

/// How the sender authenticates to Apple.
#[derive(Debug)]
pub enum Credential {
    /// A signing key's tokens, for all apps of a team.
    Token(ProviderToken),
    /// A certificate, for one app.
    Certificate(Certificate),
}

impl Credential {
    /// Returns the header of a request sent now; `None` if the connection authenticates it.
    pub(super) fn authorization(&self, now: SystemTime) -> Option<Authorization> {
        match self {
            Credential::Token(token) => Some(token.authorization(now)),
            Credential::Certificate(_) => None,
        }
    }
}

/// Sends pushes with one credential. Clones are the same sender.
#[derive(Clone, Debug)]
pub struct Apns {
    sender: Sender<ApnsService>,
}

/// Apple's service for a [`Sender`](crate::Sender).
#[derive(Debug)]
pub struct ApnsService {
    authority: String,
    token: Option<ProviderToken>,
    /// The expiry of the certificate.
    valid_until: Option<SystemTime>,
    dead: Arc<Dead>,
    breaker: Breaker,
}

impl Apns {
    /// Starts a sender on the current `tokio` runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the origin or the certificate is invalid.
    ///
    /// # Panics
    ///
    /// Panics outside of a `tokio` runtime.
    pub fn start(
        mut origin: Origin,
        credential: Credential,
        config: SenderConfig,
    ) -> Result<Apns, OriginError> {
        let mut valid_until = None;
        let token = match credential {
            Credential::Token(token) => Some(token),
            Credential::Certificate(certificate) => {
                origin.identity = Some(certificate.identity());
                valid_until = certificate.valid_until();
                None
            }
        };
        let authority = origin.host.clone();
        Ok(Apns::begin(authority, token, valid_until, Dialer::new(origin)?, config))
    }

    /// Starts a sender whose connections are opened by `dial`.
    ///
    /// # Panics
    ///
    /// Panics outside of a `tokio` runtime.
    pub fn start_with(
        authority: String,
        token: Option<ProviderToken>,
        dial: impl Connect,
        config: SenderConfig,
    ) -> Apns {
        Apns::begin(authority, token, None, dial, config)
    }

    fn begin(
        authority: String,
        token: Option<ProviderToken>,
        valid_until: Option<SystemTime>,
        dial: impl Connect,
        config: SenderConfig,
    ) -> Apns {
        let service = ApnsService {
            authority,
            token,
            valid_until,
            dead: Arc::new(Dead::new()),
            breaker: Breaker::default(),
        };
        Apns { sender: Sender::start(service, dial, config) }
    }

    /// Sends a push: waits for room in the queue, then for the outcome.
    pub async fn send(&self, push: &Push) -> Outcome {
        match self.request(push) {
            Ok(request) => self.sender.send(request).await,
            Err(why) => Outcome::NotSent(why),
        }
    }

    /// Queues a push; waits only for room in the queue. Its outcome is reported with `tag`.
    ///
    /// # Errors
    ///
    /// Returns an error if the push is invalid; no outcome is reported then.
    pub async fn submit(&self, push: &Push, tag: u64, results: &Results) -> Result<(), NotSent> {
        let request = self.request(push)?;
        self.sender.submit(request, tag, results).await;
        Ok(())
    }

    fn request(&self, push: &Push) -> Result<Request, NotSent> {
        let mut request = push.request().map_err(|error| NotSent::Invalid(error.to_string()))?;
        if self.sender.service().dead.is_suspect(request.subject) {
            request.group = ConnectionGroup::Suspect;
        }
        Ok(request)
    }

    /// Returns a feed of the device tokens that Apple reports as invalid from now on.
    pub fn follow_dead_tokens(&self) -> Feed {
        self.sender.service().dead.follow()
    }

    /// Returns when its certificate expires; `None` for a signing key, which does not expire.
    pub fn valid_until(&self) -> Option<SystemTime> {
        self.sender.service().valid_until
    }

    /// Returns the current figures of the queue, the connections and the outcomes.
    pub fn metrics(&self) -> SenderMetrics {
        self.sender.metrics()
    }

    /// Closes the sender: queued pushes end as not sent, pushes in flight have
    /// [`SenderConfig::drain`](crate::SenderConfig) to be answered.
    pub fn close(&self) {
        self.sender.close();
    }
}

impl Service for ApnsService {
    fn authority(&self) -> &str {
        &self.authority
    }

    fn platform(&self) -> &'static str {
        "apns"
    }

    fn recipient<'r>(&self, request: &'r Request) -> &'r str {
        request.path.strip_prefix(DEVICE_PATH).unwrap_or_default()
    }

    fn authorization(&self, now: SystemTime) -> Result<Option<Authorization>, CredentialError> {
        self.breaker.check(Instant::now()).map_err(CredentialError::Invalid)?;
        Ok(self.token.as_ref().map(|token| token.authorization(now)))
    }

    fn batch_max(&self) -> usize {
        if self.breaker.is_open() { 1 } else { usize::MAX }
    }

    fn handle_spent(&self, generation: u64) {
        if let Some(token) = &self.token {
            // Keep a token that is young by our clock: a new one would not help, and Apple forbids it.
            token.handle_spent(generation, SystemTime::now());
        }
    }

    fn streams_before_settings(&self) -> u32 {
        // With a provider token Apple permits one stream until it has accepted a push.
        1
    }

    fn classify(&self, request: &Request, response: &Response, attempt: Attempt) -> ResponseAction {
        // The response to a broadcast has another header name.
        let id = response.fields.get("apns-id").or_else(|| response.fields.get("apns-request-id"));
        let id = id.unwrap_or_default().to_owned();
        if response.status == 200 {
            self.dead.handle_alive(request.subject);
            self.breaker.handle_taken();
            let unique_id = response.fields.get("apns-unique-id").map(str::to_owned);
            return ResponseAction::Finish(Outcome::Accepted(Accepted {
                id,
                unique_id,
                ..Accepted::default()
            }));
        }
        let answer: ErrorBody = serde_json::from_slice(&response.body).unwrap_or_default();
        let (reason, timestamp_ms) = (Reason::new(&answer.reason), answer.timestamp_ms());
        let advice = self.note_credential(&reason, response, attempt.generation);
        let retry_after = response.fields.get("retry-after").and_then(|text| text.parse().ok());
        let retry_after = retry_after.map(Duration::from_secs);
        let otherwise = Outcome::Rejected(Rejected {
            status: response.status,
            reason: answer.reason,
            timestamp_ms,
            retry_after,
            id,
            advice,
            ..Rejected::default()
        });
        let after = attempt.spread(request, attempt.wait(retry_after, RETRY));
        match (response.status, &reason) {
            (403, Reason::ExpiredProviderToken) => ResponseAction::Reauthorize { otherwise },
            (429, Reason::TooManyRequests) => ResponseAction::Retry { after, otherwise },
            (503, Reason::Shutdown) => {
                let after = after.min(Duration::from_millis(RETRY.min_ms));
                ResponseAction::Retry { after, otherwise }
            }
            (500..=599, _) => ResponseAction::Retry { after, otherwise },
            _ => {
                if reason.is_dead_token()
                    && let Some(token) = request.path.strip_prefix(DEVICE_PATH)
                {
                    let token = token.to_owned();
                    let dead = DeadToken { token, reason, timestamp_ms };
                    self.dead.handle_dead(request.subject, dead);
                }
                ResponseAction::Finish(otherwise)
            }
        }
    }
}

impl ApnsService {
    /// Records what a refusal says about the credential of its push, and returns the fix.
    fn note_credential(
        &self,
        reason: &Reason,
        response: &Response,
        generation: u64,
    ) -> Option<String> {
        if !reason.is_credential() {
            // Apple checks the push only after it has accepted the credential; a 5xx may come before that.
            if (400..500).contains(&response.status) && !matches!(reason, Reason::Unknown(_)) {
                self.breaker.handle_taken();
            }
            return reason.advice().map(str::to_owned);
        }
        let now = SystemTime::now();
        let standing = self.token.as_ref().map(|token| token.standing(generation, now));
        let age = match standing {
            Some(TokenAge::Replaced) => return reason.advice().map(str::to_owned),
            Some(TokenAge::Young(age)) => Some(age),
            Some(TokenAge::Old) | None => None,
        };
        let off = clock::clock_error(reason, response.fields.get("date"), age, now);
        let grew_old = *reason == Reason::ExpiredProviderToken && standing == Some(TokenAge::Old);
        let over = (*reason == Reason::BadCertificate)
            .then(|| certificate::ended(self.valid_until, now))
            .flatten();
        let advice = off.or(over).or_else(|| reason.advice().map(str::to_owned));
        // An expired token is renewed first.
        if !grew_old {
            let why = || {
                let advice = advice.as_deref().unwrap_or("check the credential");
                format!("Apple answers {} {reason}: {advice}", response.status)
            };
            self.breaker.handle_refused(why, Instant::now());
        }
        advice
    }
}

/// The body of a refusal.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ErrorBody {
    reason: String,
    /// Documented as a number. If it is anything else, the reason is still used.
    timestamp: serde_json::Value,
}

impl ErrorBody {
    fn timestamp_ms(&self) -> Option<u64> {
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let ms = self.timestamp.as_f64().or_else(|| self.timestamp.as_str().and_then(number))?;
        // A millisecond since 1970 is far below where `f64` is no longer exact.
        (ms.is_finite() && ms >= 0.0).then_some(ms as u64)
    }
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Environment::Production => "production",
            Environment::Sandbox => "sandbox",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_its_reason_whatever_its_timestamp_is() {
        for (timestamp, ms) in [
            ("1795276142526", Some(1_795_276_142_526)),
            ("1795276142526.25", Some(1_795_276_142_526)),
            ("\"1795276142526\"", Some(1_795_276_142_526)),
            ("1.795276142526e12", Some(1_795_276_142_526)),
            ("-1", None),
            ("null", None),
            ("\"yesterday\"", None),
            ("{}", None),
        ] {
            let body = format!(r#"{{"reason":"Unregistered","timestamp":{timestamp}}}"#);
            let refusal: ErrorBody = serde_json::from_str(&body).expect("JSON");
            assert_eq!((&*refusal.reason, refusal.timestamp_ms()), ("Unregistered", ms), "{body}");
        }
    }
}
