//! The sender for browsers: one application key, and a sender for each push service.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dunlin_wire::backoff::Backoff;
use dunlin_wire::http2::client::Response;
use dunlin_wire::http2::hpack::Indexing;
use tokio::time::Instant;

use super::{Options, Subscription, Urgency, Vapid, WebPushAnswer, WebPushRequest};
use crate::connect::{Connect, Connecting, Stage};
use crate::dial::Dialer;
use crate::origin::Origin;
use crate::outcome::{Accepted, NotSent, Outcome, Rejected};
use crate::request::{Class, ConnectionGroup, Header, Request};
use crate::sender::{Results, Sender, SenderConfig, SenderMetrics};
use crate::service::{Attempt, Authorization, CredentialError, ResponseAction, Service};

/// Delay after a 5xx or 429 without `Retry-After`.
const RETRY: Backoff = Backoff { min_ms: 1_000, max_ms: 15 * 60_000 };

/// Push services of common browsers. A host that begins with a dot includes all hosts below it.
pub const KNOWN_HOSTS: [&str; 4] =
    ["fcm.googleapis.com", ".push.services.mozilla.com", ".push.apple.com", ".notify.windows.com"];

/// A push: its recipient, its content and its options.
#[derive(Clone, Copy, Debug)]
pub struct Push<'a> {
    /// The recipient.
    pub subscription: &'a Subscription,
    /// The data for the page's service worker, at most [`PLAINTEXT_BYTES_MAX`](super::PLAINTEXT_BYTES_MAX) bytes. It is
    /// encrypted for the subscription.
    pub message: &'a [u8],
    /// Delivery options.
    pub options: &'a Options,
    /// Time limit for queue and response together.
    pub timeout: Duration,
    /// Send it again if it was sent and no response came. A message with a topic always is: the later one replaces the
    /// earlier one.
    pub resend_uncertain: bool,
}

/// Configuration of Web Push.
#[derive(Clone, Debug)]
pub struct WebPushConfig {
    /// Hosts of push services that subscriptions may use. Endpoints come from browsers, that is from anyone, and would
    /// otherwise let an attacker make this machine send requests to any address. Empty: any host.
    pub hosts: Vec<String>,
    /// Maximum number of push services in use; a further one replaces one without queued pushes.
    pub origins_max: usize,
    /// Configuration of each service's sender.
    pub sender: SenderConfig,
}

impl Default for WebPushConfig {
    /// Returns a configuration with [`KNOWN_HOSTS`] and at most 100 services.
    fn default() -> WebPushConfig {
        let hosts = KNOWN_HOSTS.map(str::to_owned).to_vec();
        WebPushConfig { hosts, origins_max: 100, sender: SenderConfig::default() }
    }
}

/// Creates the connector of a push service, which is identified by its origin.
type Dial = Box<dyn Fn(&str) -> Result<Box<dyn Connect>, String> + Send + Sync>;

/// Sends messages to browsers with one application key. Clones share the sender.
#[derive(Clone)]
pub struct WebPush {
    inner: Arc<Inner>,
}

struct Inner {
    vapid: Arc<Mutex<Vapid>>,
    config: WebPushConfig,
    dial: Dial,
    senders: Mutex<HashMap<String, Sender<WebPushService>>>,
}

impl fmt::Debug for WebPush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebPush").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

/// A push service for its [`Sender`](crate::Sender).
#[derive(Debug)]
pub struct WebPushService {
    origin: String,
    vapid: Arc<Mutex<Vapid>>,
}

impl WebPush {
    /// Creates a sender. Connections are opened with the first message to a service, on the `tokio` runtime of that
    /// call. They trust the roots of the system and use no proxy; use [`WebPush::with_dial`] with a [`Dialer`] for each
    /// origin to change that.
    pub fn new(vapid: Vapid, config: WebPushConfig) -> WebPush {
        WebPush::with_dial(vapid, config, |origin| {
            let authority = origin.strip_prefix("https://").unwrap_or(origin);
            let (host, port) = match authority.rsplit_once(':') {
                Some((host, port)) => {
                    (host, port.parse().map_err(|_| format!("{port:?} is no port"))?)
                }
                None => (authority, 443),
            };
            let dialer = Dialer::new(Origin::new(host, port)).map_err(|error| error.to_string())?;
            Ok(Box::new(dialer) as Box<dyn Connect>)
        })
    }

    /// Like [`WebPush::new`], with connectors that `dial` creates for an origin.
    pub fn with_dial(
        vapid: Vapid,
        config: WebPushConfig,
        dial: impl Fn(&str) -> Result<Box<dyn Connect>, String> + Send + Sync + 'static,
    ) -> WebPush {
        let vapid = Arc::new(Mutex::new(vapid));
        let (dial, senders) = (Box::new(dial), Mutex::default());
        WebPush { inner: Arc::new(Inner { vapid, config, dial, senders }) }
    }

    /// Returns the public key in base64url, which the page passes as `applicationServerKey`.
    pub fn public_key(&self) -> String {
        lock(&self.inner.vapid).public_key().to_owned()
    }

    /// Encrypts and sends a message: waits for room in its service's queue, then for the outcome. A rejection with the
    /// reason `Gone` means that the subscription is invalid.
    ///
    /// # Panics
    ///
    /// Panics outside of a `tokio` runtime.
    pub async fn send(&self, push: &Push<'_>) -> Outcome {
        match self.request(push) {
            Ok((sender, request)) => sender.send(request).await,
            Err(why) => Outcome::NotSent(why),
        }
    }

    /// Encrypts and queues a message; waits only for room in the queue. Its outcome is reported with `tag`.
    ///
    /// # Errors
    /// Returns an error if the message or the subscription is invalid; no outcome is reported then.
    ///
    /// # Panics
    ///
    /// Panics outside of a `tokio` runtime.
    pub async fn submit(
        &self,
        push: &Push<'_>,
        tag: u64,
        results: &Results,
    ) -> Result<(), NotSent> {
        let (sender, request) = self.request(push)?;
        sender.submit(request, tag, results).await;
        Ok(())
    }

    fn request(&self, push: &Push<'_>) -> Result<(Sender<WebPushService>, Request), NotSent> {
        let &Push { subscription, message, options, timeout, resend_uncertain } = push;
        let sender = self.sender(subscription.origin()).map_err(NotSent::Invalid)?;
        let request = {
            let now_s = seconds(SystemTime::now());
            WebPushRequest::new(subscription, message, options, &mut lock(&self.inner.vapid), now_s)
        };
        let request = request.map_err(|error| NotSent::Invalid(error.to_string()))?;
        let header = |(name, value): (&'static str, Arc<str>)| {
            // The sender adds the authorization when it sends the request.
            let indexing = if name == "topic" { Indexing::None } else { Indexing::Table };
            (name != "authorization").then(|| Header { name: name.into(), value, indexing })
        };
        let request = Request {
            subject: crate::subject(&request.path),
            path: request.path,
            headers: request.headers.into_iter().filter_map(header).collect(),
            body: request.body.into(),
            class: match options.urgency() {
                Urgency::High => Class::High,
                Urgency::Normal => Class::Normal,
                Urgency::Low | Urgency::VeryLow => Class::Low,
            },
            group: ConnectionGroup::Main,
            deadline: Instant::now() + timeout,
            expires: None,
            resend_uncertain: resend_uncertain || options.topic().is_some(),
        };
        Ok((sender, request))
    }

    /// Returns the current figures of each push service, by its origin.
    pub fn metrics(&self) -> Vec<(String, SenderMetrics)> {
        let senders = lock(&self.inner.senders);
        senders.iter().map(|(origin, sender)| (origin.clone(), sender.metrics())).collect()
    }

    /// Closes all senders: queued pushes end as not sent, pushes in flight have
    /// [`SenderConfig::drain`](crate::SenderConfig) to be answered.
    pub fn close(&self) {
        for (_, sender) in lock(&self.inner.senders).drain() {
            sender.close();
        }
    }

    fn sender(&self, origin: &str) -> Result<Sender<WebPushService>, String> {
        let inner = &*self.inner;
        let mut senders = lock(&inner.senders);
        if let Some(sender) = senders.get(origin) {
            return Ok(sender.clone());
        }
        if !inner.config.is_allowed(origin) {
            return Err(format!(
                "endpoint: {origin} is no known push service; allow it in `hosts`"
            ));
        }
        if senders.len() >= inner.config.origins_max {
            let idle = senders.iter().find(|(_, sender)| sender.metrics().queued_bytes == 0);
            let idle = idle.map(|(origin, _)| origin.clone());
            let idle = idle.ok_or("endpoint: too many push services are being sent to at once")?;
            senders.remove(&idle);
        }
        let dial = (inner.dial)(origin).map_err(|why| format!("endpoint: {why}"))?;
        let service = WebPushService { origin: origin.to_owned(), vapid: Arc::clone(&inner.vapid) };
        let sender = Sender::start(service, Boxed(dial), inner.config.sender.clone());
        senders.insert(origin.to_owned(), sender.clone());
        Ok(sender)
    }
}

impl WebPushConfig {
    fn is_allowed(&self, origin: &str) -> bool {
        let authority = origin.strip_prefix("https://").unwrap_or(origin);
        let host =
            authority.rsplit_once(':').map_or(authority, |(host, _)| host).to_ascii_lowercase();
        self.hosts.is_empty()
            || self.hosts.iter().any(|known| match known.strip_prefix('.') {
                Some(_) => host.ends_with(known.as_str()),
                None => host == *known,
            })
    }
}

/// A boxed connector, because `Sender::start` is generic.
struct Boxed(Box<dyn Connect>);

impl Connect for Boxed {
    fn connect(&self, stage: Stage) -> Connecting<'_> {
        self.0.connect(stage)
    }
}

impl Service for WebPushService {
    fn platform(&self) -> &'static str {
        "web_push"
    }

    fn authority(&self) -> &str {
        self.origin.strip_prefix("https://").unwrap_or(&self.origin)
    }

    fn authorization(&self, now: SystemTime) -> Result<Option<Authorization>, CredentialError> {
        let value = lock(&self.vapid).authorization(&self.origin, seconds(now));
        Ok(Some(Authorization { value, generation: 0 }))
    }

    fn classify(&self, request: &Request, response: &Response, attempt: Attempt) -> ResponseAction {
        let now_s = seconds(SystemTime::now());
        let header = |name: &str| response.fields.get(name);
        let rejected = |reason: String, message: String, retry_after| {
            Outcome::Rejected(Rejected::said(response.status, reason, message, retry_after))
        };
        match super::classify(response.status, header, &response.body, now_s) {
            WebPushAnswer::Accepted { location } => {
                let id = location.unwrap_or_default();
                ResponseAction::Finish(Outcome::Accepted(Accepted { id, ..Accepted::default() }))
            }
            WebPushAnswer::Gone => {
                ResponseAction::Finish(rejected("Gone".to_owned(), String::new(), None))
            }
            WebPushAnswer::Refused { reason, message, .. } => {
                ResponseAction::Finish(rejected(reason, message, None))
            }
            WebPushAnswer::Retry { status, after } => {
                let reason =
                    if matches!(status, 406 | 429) { "TooManyRequests" } else { "Unavailable" };
                let wait = attempt.wait(after, RETRY);
                let otherwise = rejected(reason.to_owned(), String::new(), Some(wait));
                ResponseAction::Retry { after: attempt.spread(request, wait), otherwise }
            }
        }
    }
}

fn seconds(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Locks a mutex. The data are consistent even if a holder of the lock has panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
