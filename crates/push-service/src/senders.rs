//! The senders by provider and credential name, and notifications encoded for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dunlin_config::{ConfigError, ConfigErrors, Map, Path};
use dunlin_push::apns::{Apns, DeviceToken, Push, PushType, Target};
use dunlin_push::fcm::{self, Fcm};
use dunlin_push::notification::{ApnsMessage, Notification};
use dunlin_push::registry::Platform;
use dunlin_push::web_push::{self, Options, Subscription, WebPush};
use dunlin_push::{NotSent, Results, SenderMetrics};
use serde_json::Value;

use super::credentials::{start_apns, start_fcm, start_vapid};
use super::environment::Environment;
use super::submission::{BroadcastTarget, Recipient, Submission};
use super::tally::Tally;
use crate::clock::unix_ms;

type ByName = HashMap<Arc<str>, Arc<Credential>>;

/// The credentials in use.
#[derive(Debug, Default)]
pub(super) struct Senders {
    by_name: RwLock<HashMap<Platform, ByName>>,
    generations: AtomicU64,
}

/// A credential and its sender.
#[derive(Debug)]
pub(super) struct Credential {
    pub(super) platform: Platform,
    /// Its name in the configuration.
    pub(super) app: Arc<str>,
    /// Differs from that of the credential it replaced.
    pub(super) generation: u64,
    /// The sender, or why it cannot be used: a credential that was valid when set may have expired.
    sender: Result<Sender, String>,
    pub(super) tally: Arc<Tally>,
    /// New for each credential: the previous one may have been set to the other environment.
    pub(super) environment: Environment,
}

#[derive(Debug)]
enum Sender {
    Apns(Apns, Arc<str>),
    Fcm(Fcm),
    Web(WebPush),
}

impl Senders {
    /// Returns the credential with this name.
    pub(super) fn get(&self, platform: Platform, app: &str) -> Option<Arc<Credential>> {
        let by_name = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        by_name.get(&platform)?.get(app).cloned()
    }

    /// Returns all credentials, in no particular order.
    pub(super) fn all(&self) -> Vec<Arc<Credential>> {
        let by_name = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        by_name.values().flat_map(HashMap::values).cloned().collect()
    }

    /// Starts, replaces and closes senders according to the differences. Must be called in a runtime.
    pub(super) fn apply(
        &self,
        before: &dunlin_config::PushConfig,
        after: &dunlin_config::PushConfig,
    ) -> ConfigErrors {
        let mut faults = ConfigErrors::default();
        self.follow(Platform::Apns, &before.apns, &after.apns, &mut faults, |name, config| {
            let sender = start_apns(&Path::of("push.apns").join(name), config)?;
            Ok(Sender::Apns(sender, Arc::clone(&config.topic)))
        });
        self.follow(Platform::Fcm, &before.fcm, &after.fcm, &mut faults, |name, config| {
            start_fcm(&Path::of("push.fcm").join(name), config).map(Sender::Fcm)
        });
        self.follow(Platform::Web, &before.vapid, &after.vapid, &mut faults, |name, config| {
            start_vapid(&Path::of("push.vapid").join(name), config).map(Sender::Web)
        });
        faults
    }

    fn follow<T: PartialEq>(
        &self,
        platform: Platform,
        before: &Map<T>,
        after: &Map<T>,
        faults: &mut ConfigErrors,
        start: impl Fn(&str, &T) -> Result<Sender, ConfigError>,
    ) {
        for (name, _, config) in after.changes_from(before) {
            let Some(config) = config else {
                let mut by_name = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
                let old = by_name.entry(platform).or_default().remove(name);
                drop(by_name);
                if let Some(old) = old {
                    old.close();
                }
                continue;
            };
            let sender = start(name, config).map_err(|fault| {
                let why = fault.to_string();
                faults.push(fault);
                why
            });
            let tally = self.get(platform, name).map(|old| Arc::clone(&old.tally));
            let credential = Arc::new(Credential {
                platform,
                app: Arc::clone(name),
                generation: self.generations.fetch_add(1, Relaxed),
                sender,
                tally: tally.unwrap_or_default(),
                environment: Environment::default(),
            });
            let mut by_name = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
            let old = by_name.entry(platform).or_default().insert(Arc::clone(name), credential);
            drop(by_name);
            // Closed only now, so that a push that ends as `Closed` finds the new credential.
            if let Some(old) = old {
                old.close();
            }
        }
    }

    /// Closes all senders.
    pub(super) fn close(&self) {
        self.all().iter().for_each(|credential| credential.close());
    }
}

impl Credential {
    /// Submits a push; waits only for queue space. Its outcome arrives with `tag`.
    ///
    /// # Errors
    /// Returns an error if it cannot be sent; then no outcome arrives.
    pub(super) async fn submit(
        &self,
        encoded: &EncodedNotification,
        to: &Recipient,
        tag: u64,
        results: &Results,
    ) -> Result<(), NotSent> {
        let sender = self.sender.as_ref().map_err(|why| NotSent::Credential(why.clone()))?;
        let invalid = |error: &dyn std::fmt::Display| NotSent::Invalid(error.to_string());
        // A broadcast was validated against its service when the body was read.
        let elsewhere = || NotSent::Invalid("it is no recipient of this service".to_owned());
        match (sender, to.token(), to.broadcast_target()) {
            (Sender::Apns(apns, topic), Some(token), _) => {
                let token = DeviceToken::new(token).map_err(|error| invalid(&error))?;
                let push = encoded.apns(token, topic);
                let push = Push { id: to.id().map(str::to_owned), ..push };
                apns.submit(&push, tag, results).await
            }
            (Sender::Apns(apns, topic), _, Some(BroadcastTarget::Channel(channel))) => {
                apns.submit(&encoded.apns_broadcast(channel, topic), tag, results).await
            }
            (Sender::Fcm(fcm), token, target) => {
                let to = match (token, target) {
                    (Some(token), _) => fcm::Recipient::Token(token),
                    (_, Some(BroadcastTarget::Topic(topic))) => fcm::Recipient::Topic(topic),
                    (_, Some(BroadcastTarget::Condition(text))) => fcm::Recipient::Condition(text),
                    _ => return Err(elsewhere()),
                };
                let push = fcm::Push {
                    to,
                    message: encoded.fcm(),
                    timeout: encoded.timeout,
                    resend_uncertain: encoded.resend_uncertain,
                };
                fcm.submit(&push, tag, results).await
            }
            (Sender::Web(web), Some(token), _) => {
                let subscription =
                    Subscription::from_json(token).map_err(|error| invalid(&error))?;
                let (message, options) = encoded.web();
                let push = web_push::Push {
                    subscription: &subscription,
                    message,
                    options,
                    timeout: encoded.timeout,
                    resend_uncertain: encoded.resend_uncertain,
                };
                web.submit(&push, tag, results).await
            }
            _ => Err(elsewhere()),
        }
    }

    /// Returns the metrics of its senders, each with its origin if there are several.
    pub(super) fn metrics(&self) -> Vec<(String, SenderMetrics)> {
        match &self.sender {
            Ok(Sender::Apns(apns, _)) => vec![(String::new(), apns.metrics())],
            Ok(Sender::Fcm(fcm)) => vec![(String::new(), fcm.metrics())],
            Ok(Sender::Web(web)) => web.metrics(),
            Err(_) => Vec::new(),
        }
    }

    /// Returns the expiry of its certificate, if it has one.
    pub(super) fn valid_until(&self) -> Option<SystemTime> {
        match &self.sender {
            Ok(Sender::Apns(apns, _)) => apns.valid_until(),
            _ => None,
        }
    }

    /// Whether it can be used at all.
    pub(super) fn is_usable(&self) -> bool {
        self.sender.is_ok()
    }

    fn close(&self) {
        match &self.sender {
            Ok(Sender::Apns(apns, _)) => apns.close(),
            Ok(Sender::Fcm(fcm)) => fcm.close(),
            Ok(Sender::Web(web)) => web.close(),
            Err(_) => {}
        }
    }
}

/// A notification, encoded once for each provider, whatever the number of recipients.
#[derive(Debug)]
pub(super) struct EncodedNotification {
    notification: Notification,
    timeout: Duration,
    resend_uncertain: bool,
    apns: OnceLock<Push>,
    apns_broadcast: OnceLock<Push>,
    fcm: OnceLock<serde_json::Map<String, Value>>,
    web: OnceLock<(Vec<u8>, Options)>,
}

impl EncodedNotification {
    pub(super) fn new(submission: &Submission) -> EncodedNotification {
        EncodedNotification {
            notification: submission.notification.clone(),
            timeout: submission.timeout(),
            resend_uncertain: submission.resend_uncertain,
            apns: OnceLock::new(),
            apns_broadcast: OnceLock::new(),
            fcm: OnceLock::new(),
            web: OnceLock::new(),
        }
    }

    fn apns(&self, token: DeviceToken, topic: &Arc<str>) -> Push {
        let target = Target::Device(token);
        let push = self
            .apns
            .get_or_init(|| self.push(target.clone(), self.notification.apns(unix_ms() / 1000)));
        Push { target, topic: topic_of(push, topic), ..push.clone() }
    }

    fn apns_broadcast(&self, channel: &str, topic: &Arc<str>) -> Push {
        let target = Target::Channel(channel.to_owned());
        let push = self.apns_broadcast.get_or_init(|| {
            self.push(target.clone(), self.notification.apns_broadcast(unix_ms() / 1000))
        });
        Push { target, topic: topic_of(push, topic), ..push.clone() }
    }

    fn push(&self, target: Target, message: ApnsMessage) -> Push {
        Push {
            target,
            payload: message.payload.into(),
            push_type: message.push_type.parse().unwrap_or(PushType::Alert),
            topic: message.topic.map(Into::into),
            id: None,
            expiration: message.expiration_s.map(|s| UNIX_EPOCH + Duration::from_secs(s)),
            priority: message.priority,
            collapse_id: message.collapse_id,
            timeout: self.timeout,
            resend_uncertain: self.resend_uncertain,
            suspect: false,
        }
    }

    fn fcm(&self) -> &serde_json::Map<String, Value> {
        self.fcm.get_or_init(|| self.notification.fcm(unix_ms() / 1000))
    }

    fn web(&self) -> (&[u8], &Options) {
        let (message, options) = self.web.get_or_init(|| self.notification.web());
        (message, options)
    }
}

/// Returns the topic of the notification, or else that of the credential.
fn topic_of(push: &Push, topic: &Arc<str>) -> Option<Arc<str>> {
    Some(push.topic.clone().unwrap_or_else(|| Arc::clone(topic)))
}
