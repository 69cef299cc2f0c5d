//! The sender for Google: one service account.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use dunlin_wire::backoff::Backoff;
use dunlin_wire::http1::retry_after;
use dunlin_wire::http2::client::Response;
use dunlin_wire::http2::hpack::Indexing;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::{
    AUTHORITY, AccessTokens, FcmAnswer, FcmRequest, Recipient, ServiceAccount, TokenError,
    TokenRequest,
};
use crate::connect::{Connect, ConnectError, ConnectFault};
use crate::dial::Dialer;
use crate::origin::{Origin, OriginError};
use crate::outcome::{Accepted, NotSent, Outcome, Rejected};
use crate::request::{Class, ConnectionGroup, Header, Request};
use crate::sender::{Results, Sender, SenderConfig, SenderMetrics};
use crate::service::{Attempt, Authorization, CredentialError, ResponseAction, Service};

/// The longest delay between two attempts.
const RETRY_MS_MAX: u64 = 15 * 60_000;
/// Time limit for the token server.
const EXCHANGE_WITHIN: Duration = Duration::from_secs(30);

/// Sends messages with one service account. Clones share the sender.
#[derive(Clone, Debug)]
pub struct Fcm {
    sender: Sender<FcmService>,
}

/// FCM for a [`Sender`](crate::Sender).
#[derive(Debug)]
pub struct FcmService {
    project_id: String,
    access: Arc<Access>,
}

/// The access token, and how it is fetched.
#[derive(Debug)]
struct Access {
    tokens: Arc<Mutex<AccessTokens>>,
    exchange: Sender<Exchange>,
}

/// Google's token server for a separate sender.
#[derive(Debug)]
struct Exchange {
    authority: String,
    tokens: Arc<Mutex<AccessTokens>>,
    error: Mutex<Option<TokenError>>,
    /// What the server answered instead of a token, until it gives one.
    unavailable: Mutex<Option<String>>,
}

/// A message: its recipient, its content and its options.
#[derive(Clone, Copy, Debug)]
pub struct Push<'a> {
    /// The recipient.
    pub to: Recipient<'a>,
    /// The `Message` of the API without its target.
    pub message: &'a Map<String, Value>,
    /// Time limit for queue and response together.
    pub timeout: Duration,
    /// Send it again if it was sent and no response came. A message with a `collapse_key` always is: the later one replaces
    /// the earlier one.
    pub resend_uncertain: bool,
}

impl<'a> Push<'a> {
    /// Creates a push that is sent again only where that is harmless.
    pub fn new(to: Recipient<'a>, message: &'a Map<String, Value>, timeout: Duration) -> Push<'a> {
        Push { to, message, timeout, resend_uncertain: false }
    }
}

impl Fcm {
    /// Starts a sender on the current `tokio` runtime. It trusts the roots of the system and uses no proxy. For other
    /// settings use [`Fcm::start_with`] with two [`Dialer`]s.
    ///
    /// # Errors
    ///
    /// Returns an error if the token server's address or the system's certificates are invalid.
    ///
    /// # Panics
    ///
    /// Panics outside of a `tokio` runtime.
    pub fn start(account: ServiceAccount, config: SenderConfig) -> Result<Fcm, OriginError> {
        let (authority, _) = split(account.token_uri());
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => {
                let none = || OriginError(format!("token_uri: {port:?} is no port"));
                (host, port.parse().map_err(|_| none())?)
            }
            None => (authority, 443),
        };
        let token_dial = Dialer::new(Origin::new(host, port))?;
        let dial = Dialer::new(Origin::new(AUTHORITY, 443))?;
        Ok(Fcm::start_with(account, dial, token_dial, config))
    }

    /// Starts a sender whose connections to FCM and to the token server are opened by `dial` and `token_dial`:
    /// usually two [`Dialer`]s with an [`Origin`] each, for [`AUTHORITY`] and for the host of
    /// [`ServiceAccount::token_uri`].
    ///
    /// # Panics
    ///
    /// Panics outside of a `tokio` runtime.
    pub fn start_with(
        account: ServiceAccount,
        dial: impl Connect,
        token_dial: impl Connect,
        config: SenderConfig,
    ) -> Fcm {
        let authority = split(account.token_uri()).0.to_owned();
        let project_id = account.project_id().to_owned();
        let tokens = Arc::new(Mutex::new(AccessTokens::new(account)));
        let exchange = Exchange {
            authority,
            tokens: Arc::clone(&tokens),
            error: Mutex::default(),
            unavailable: Mutex::default(),
        };
        let exchange = Sender::start(
            exchange,
            token_dial,
            SenderConfig { name: config.name.clone(), ..SenderConfig::default() },
        );
        let access = Arc::new(Access { tokens, exchange });
        Fcm { sender: Sender::start(FcmService { project_id, access }, dial, config) }
    }

    /// Sends a message: waits for room in the queue, then for the outcome, at most its timeout.
    pub async fn send(&self, push: &Push<'_>) -> Outcome {
        match self.request(push) {
            Ok(request) => self.sender.send(request).await,
            Err(why) => Outcome::NotSent(why),
        }
    }

    /// Queues a message; waits only for room in the queue. Its outcome is reported with `tag`.
    ///
    /// # Errors
    ///
    /// Returns an error if the message is invalid; no outcome is reported then.
    pub async fn submit(
        &self,
        push: &Push<'_>,
        tag: u64,
        results: &Results,
    ) -> Result<(), NotSent> {
        let request = self.request(push)?;
        self.sender.submit(request, tag, results).await;
        Ok(())
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

    fn request(&self, push: &Push<'_>) -> Result<Request, NotSent> {
        let &Push { to, message, timeout, resend_uncertain } = push;
        let project_id = &self.sender.service().project_id;
        let request = FcmRequest::new(project_id, to, message, false)
            .map_err(|error| NotSent::Invalid(error.to_string()))?;
        let target = match to {
            Recipient::Token(target) | Recipient::Topic(target) | Recipient::Condition(target) => {
                target
            }
        };
        let high = message.get("android").is_some_and(|android| android["priority"] == "HIGH");
        Ok(Request {
            path: request.path,
            headers: vec![header("content-type", "application/json")],
            body: request.body.into(),
            class: if high { Class::High } else { Class::Normal },
            group: ConnectionGroup::Main,
            deadline: Instant::now() + timeout,
            expires: None,
            resend_uncertain: resend_uncertain
                || message
                    .get("android")
                    .is_some_and(|android| android["collapse_key"].is_string()),
            subject: crate::subject(target),
        })
    }
}

impl Service for FcmService {
    fn platform(&self) -> &'static str {
        "fcm"
    }

    fn authority(&self) -> &str {
        AUTHORITY
    }

    fn authorization(&self, now: SystemTime) -> Result<Option<Authorization>, CredentialError> {
        let (current, due) = {
            let tokens = lock(&self.access.tokens);
            (tokens.authorization(seconds(now)), tokens.is_due(seconds(now)))
        };
        let (value, generation) = current.ok_or(CredentialError::Stale)?;
        if due {
            // The old token is used until the new one arrives.
            let access = Arc::clone(&self.access);
            tokio::spawn(async move { drop(access.renew().await) });
        }
        Ok(Some(Authorization { value, generation }))
    }

    fn prepare(
        &self,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<(), CredentialError>> + Send + '_>> {
        Box::pin(self.access.renew())
    }

    fn obstacle(&self) -> Option<ConnectError> {
        self.access.obstacle()
    }

    fn handle_spent(&self, generation: u64) {
        lock(&self.access.tokens).handle_spent(generation);
    }

    fn classify(&self, request: &Request, response: &Response, attempt: Attempt) -> ResponseAction {
        let now_s = seconds(SystemTime::now());
        let header = |name: &str| response.fields.get(name);
        let rejected = |reason: String, message: String, retry_after| {
            Outcome::Rejected(Rejected::said(response.status, reason, message, retry_after))
        };
        match super::classify(response.status, header, &response.body, now_s) {
            FcmAnswer::Accepted { name } => ResponseAction::Finish(Outcome::Accepted(Accepted {
                id: name,
                ..Accepted::default()
            })),
            FcmAnswer::Unregistered => {
                ResponseAction::Finish(rejected("UNREGISTERED".to_owned(), String::new(), None))
            }
            FcmAnswer::Refused { reason, message, .. } => {
                ResponseAction::Finish(rejected(reason, message, None))
            }
            FcmAnswer::Reauthorize => {
                lock(&self.access.tokens).handle_refused(now_s);
                let advice = "check that the service account may send for this project".to_owned();
                ResponseAction::Reauthorize {
                    otherwise: rejected("UNAUTHENTICATED".to_owned(), advice, None),
                }
            }
            FcmAnswer::Pause { after, message } => ResponseAction::Pause {
                after,
                otherwise: rejected("QUOTA_EXCEEDED".to_owned(), message, Some(after)),
            },
            FcmAnswer::Retry { reason, after, least, message } => {
                let min_ms = least.as_millis() as u64;
                let wait = attempt.wait(after, Backoff { min_ms, max_ms: RETRY_MS_MAX });
                ResponseAction::Retry {
                    after: attempt.spread(request, wait),
                    otherwise: rejected(reason, message, Some(wait)),
                }
            }
        }
    }
}

impl Access {
    /// Returns why there is no token now.
    fn obstacle(&self) -> Option<ConnectError> {
        let now_s = seconds(SystemTime::now());
        if lock(&self.tokens).authorization(now_s).is_some() {
            return None;
        }
        let authority = &self.exchange.service().authority;
        if let Some(why) = &*lock(&self.exchange.service().unavailable) {
            let why = format!("no access token from {authority}: {why}");
            return Some(ConnectError::new(ConnectFault::Token, why));
        }
        let error = self.exchange.obstacle()?;
        let why = format!("no access token, since its server cannot be reached: {}", error.why);
        Some(ConnectError::new(error.fault, why))
    }

    /// Fetches a token if one is due, after the delay of a failed attempt.
    async fn renew(&self) -> Result<(), CredentialError> {
        let now_s = || seconds(SystemTime::now());
        let wait = lock(&self.tokens).wait(now_s());
        tokio::time::sleep(wait).await;
        let Some(request) = lock(&self.tokens).poll_request(now_s()) else {
            // Another task is fetching a token, or has done so.
            let there = lock(&self.tokens).authorization(now_s()).is_some();
            return if there { Ok(()) } else { Err(CredentialError::Stale) };
        };
        let exchange = self.exchange.service();
        lock(&exchange.error).take();
        let outcome = self.exchange.send(exchange_request(request)).await;
        if lock(&self.tokens).authorization(now_s()).is_some() {
            lock(&exchange.unavailable).take();
            return Ok(());
        }
        match (lock(&exchange.error).take(), outcome) {
            (Some(refused @ TokenError::Refused(_)), _) => {
                Err(CredentialError::Invalid(refused.to_string()))
            }
            (Some(TokenError::Unavailable(why)), _) => {
                tracing::warn!(why, "no access token yet");
                *lock(&exchange.unavailable) = Some(why);
                Err(CredentialError::Stale)
            }
            (None, outcome) => {
                tracing::warn!(why = %outcome, "the token server cannot be reached");
                lock(&self.tokens).handle_failure(now_s());
                Err(CredentialError::Stale)
            }
        }
    }
}

impl Service for Exchange {
    fn authority(&self) -> &str {
        &self.authority
    }

    fn authorization(&self, _: SystemTime) -> Result<Option<Authorization>, CredentialError> {
        Ok(None)
    }

    fn classify(&self, _: &Request, response: &Response, _: Attempt) -> ResponseAction {
        let now_s = seconds(SystemTime::now());
        let after = response.fields.get("retry-after");
        let after = after.and_then(|text| retry_after::parse(text, now_s));
        let taken =
            lock(&self.tokens).handle_response(response.status, &response.body, after, now_s);
        ResponseAction::Finish(match taken {
            Ok(()) => Outcome::Accepted(Accepted::default()),
            Err(error) => {
                let reason = error.to_string();
                *lock(&self.error) = Some(error);
                let status = response.status;
                Outcome::Rejected(Rejected { status, reason, ..Rejected::default() })
            }
        })
    }
}

fn exchange_request(request: TokenRequest) -> Request {
    Request {
        path: split(&request.url).1.to_owned(),
        headers: vec![header("content-type", request.content_type)],
        body: Bytes::from(request.body),
        class: Class::High,
        group: ConnectionGroup::Main,
        deadline: Instant::now() + EXCHANGE_WITHIN,
        expires: None,
        // Requesting a token twice is harmless.
        resend_uncertain: true,
        subject: 0,
    }
}

/// Splits a URL that begins with `https://` into authority and path.
fn split(url: &str) -> (&str, &str) {
    let rest = url.strip_prefix("https://").unwrap_or(url);
    rest.find('/').map_or((rest, "/"), |at| rest.split_at(at))
}

fn header(name: &'static str, value: &str) -> Header {
    Header { name: name.into(), value: value.into(), indexing: Indexing::Table }
}

fn seconds(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Locks a mutex. The data are consistent even if a holder of the lock has panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
