//! What an import sends to each device, for each push service.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueHint};
use dunlin_push::apns::{Apns, DeviceToken, Push, PushType, Target};
use dunlin_push::fcm::{self, AUTHORITY, Fcm, ServiceAccount};
use dunlin_push::notification::Notification;
use dunlin_push::registry::Platform;
use dunlin_push::web_push::{self, Options, Subscription, Vapid, WebPush, WebPushConfig};
use dunlin_push::{Connect, Dialer, NotSent, Origin, Results, SenderConfig};
use serde_json::{Map, Value};

use super::list::Entry;
use super::send::authority;
use crate::apns::{Account, expiration, read, text_or_file};
use crate::error::CliError;

/// What is sent, unless a line has its own.
#[derive(Debug, Args)]
pub(super) struct Content {
    /// The app's bundle identifier, for lines without a `topic`
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// Payload of lines without one: JSON, or @FILE. For Apple the payload, for FCM the message without its target, for
    /// browsers what the service worker is given
    #[arg(long, value_name = "JSON", default_value = "{}", hide_default_value = true)]
    payload: String,
    /// The notification as `/api/push` takes it, for all services: JSON, or @FILE
    #[arg(long, value_name = "JSON", conflicts_with = "payload")]
    notification: Option<String>,
    /// alert, background, voip, liveactivity, ...; by default what the payload asks for
    #[arg(long = "type", value_name = "TYPE")]
    push_type: Option<PushType>,
    /// 10: at once; 5: when it suits the device's power; 1: never wakes the device
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// Collapse id: a later push with this id replaces an earlier one
    #[arg(long, value_name = "ID")]
    collapse_id: Option<String>,
    /// Seconds that the service stores the push for a device that is offline; 0: not at all
    #[arg(long, value_name = "SECONDS")]
    expiration: Option<u64>,
    /// Time limit of each push in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
}

/// The credentials of services other than Apple's.
#[derive(Debug, Args)]
pub(super) struct OtherAccounts {
    /// For FCM: the service account's JSON file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    service_account: Option<PathBuf>,
    /// For FCM: fetch access tokens here instead
    #[arg(long, value_name = "HOST:PORT", requires = "service_account")]
    token_address: Option<String>,
    /// For browsers: the VAPID private key, 32 bytes in Base64 or PEM, or @FILE
    #[arg(long, value_name = "KEY", requires = "contact")]
    vapid_key: Option<String>,
    /// For browsers: contact for the push service, mailto: or https:
    #[arg(long, value_name = "URL")]
    contact: Option<String>,
}

/// The common content, read.
pub(super) struct Common {
    payload: Vec<u8>,
    notification: Option<Notification>,
    content: Content,
}

/// A push to one device, as its service takes it.
pub(super) enum Prepared {
    Apns(Box<Push>),
    Fcm { token: String, message: Map<String, Value>, timeout: Duration },
    Web { subscription: Subscription, message: Vec<u8>, options: Options, timeout: Duration },
}

/// The senders of those services that credentials are given for.
pub(super) struct Services {
    apns: Option<Apns>,
    fcm: Option<Fcm>,
    web: Option<WebPush>,
}

impl Content {
    /// Reads the content, and checks it.
    pub(super) fn read(self) -> Result<Common, CliError> {
        let payload = text_or_file(&self.payload)?;
        let notification: Option<Notification> = match &self.notification {
            Some(json) => Some(
                serde_json::from_slice(&text_or_file(json)?)
                    .map_err(|error| format!("notification: {error}"))?,
            ),
            None => None,
        };
        if let Some(notification) = &notification {
            notification.validate().map_err(|error| format!("notification.{error}"))?;
        }
        let common = Common { payload, notification, content: self };
        // Faults of the content are those of every line: they are reported before anything is opened.
        let sample = Entry { token: "0".repeat(64), ..Entry::default() };
        common.apns(&sample)?.request()?;
        Ok(common)
    }
}

impl Common {
    /// Returns the push of an entry to a service.
    ///
    /// # Errors
    /// What is wrong with the entry.
    pub(super) fn prepare(&self, entry: &Entry, platform: Platform) -> Result<Prepared, String> {
        let timeout = Duration::from_secs(self.content.timeout);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        match platform {
            Platform::Apns => {
                let push = self.apns(entry)?;
                push.request().map_err(|error| error.to_string())?;
                Ok(Prepared::Apns(Box::new(push)))
            }
            Platform::Fcm => {
                let mut whole = self.whole(entry)?;
                if self.is_raw(entry) {
                    whole.fcm = self.json(entry)?;
                    whole.validate().map_err(|error| format!("payload: {error}"))?;
                }
                let message = whole.fcm(now);
                Ok(Prepared::Fcm { token: entry.token.clone(), message, timeout })
            }
            Platform::Web => {
                let subscription =
                    Subscription::from_json(&entry.token).map_err(|error| error.to_string())?;
                let (mut message, options) = self.whole(entry)?.web();
                if self.is_raw(entry) {
                    message = self.json(entry)?.to_string().into_bytes();
                }
                Ok(Prepared::Web { subscription, message, options, timeout })
            }
        }
    }

    /// Whether an entry is sent a payload, and not the notification.
    fn is_raw(&self, entry: &Entry) -> bool {
        entry.payload.is_some() || self.notification.is_none()
    }

    fn json(&self, entry: &Entry) -> Result<Value, String> {
        match &entry.payload {
            Some(payload) => Ok(payload.clone()),
            None => {
                serde_json::from_slice(&self.payload).map_err(|error| format!("payload: {error}"))
            }
        }
    }

    /// Returns the notification with the options of the command and of the entry.
    fn whole(&self, entry: &Entry) -> Result<Notification, String> {
        let mut whole = match self.is_raw(entry) {
            true => Notification::default(),
            false => self.notification.clone().unwrap_or_default(),
        };
        let content = &self.content;
        let id = entry.collapse_id.as_ref().or(content.collapse_id.as_ref());
        whole.collapse_id = id.cloned().or(whole.collapse_id);
        let kept = content.expiration.map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX));
        whole.ttl_s = kept.or(whole.ttl_s);
        whole.apns_options.priority = content.priority.or(whole.apns_options.priority);
        if let Some(push_type) = content.push_type {
            whole.apns_options.push_type = Some(push_type.as_str().to_owned());
        }
        Ok(whole)
    }

    fn apns(&self, entry: &Entry) -> Result<Push, String> {
        let content = &self.content;
        let token = DeviceToken::new(&entry.token).map_err(|error| error.to_string())?;
        let topic = entry.topic.as_ref().or(content.topic.as_ref());
        let mut push = match self.is_raw(entry) {
            true => {
                let payload = match &entry.payload {
                    Some(payload) => payload.to_string().into_bytes(),
                    None => self.payload.clone(),
                };
                let mut push = Push::new(token, "", payload);
                if let Some(push_type) = content.push_type {
                    (push.push_type, push.priority) = (push_type, push_type.priority());
                }
                push.topic = None;
                push
            }
            false => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let message = self.whole(entry)?.apns(now.as_secs());
                Push {
                    target: Target::Device(token.clone()),
                    push_type: message.push_type.parse().unwrap_or(PushType::Alert),
                    topic: message.topic.as_deref().map(Into::into),
                    priority: message.priority,
                    collapse_id: message.collapse_id,
                    expiration: message
                        .expiration_s
                        .map(|at_s| UNIX_EPOCH + Duration::from_secs(at_s)),
                    ..Push::new(token, "", message.payload)
                }
            }
        };
        push.topic = topic.map(|topic| topic.as_str().into()).or(push.topic);
        push.priority = content.priority.unwrap_or(push.priority);
        if let Some(seconds) = content.expiration {
            push.expiration = Some(expiration(seconds, SystemTime::now()));
        }
        let id = entry.collapse_id.as_ref().or(content.collapse_id.as_ref());
        push.collapse_id = id.cloned().or(push.collapse_id);
        push.resend_uncertain = push.collapse_id.is_some();
        push.id.clone_from(&entry.id);
        push.timeout = Duration::from_secs(content.timeout);
        Ok(push)
    }
}

impl Services {
    /// Starts the senders, in the current runtime.
    ///
    /// # Errors
    /// A credential cannot be read, or there is none.
    pub(super) fn start(account: &Account, others: &OtherAccounts) -> Result<Services, CliError> {
        let config = SenderConfig::default;
        let is_other = others.service_account.is_some() || others.vapid_key.is_some();
        let apns = match account.is_given() || !is_other {
            true => Some(Apns::start(account.origin()?, account.credential()?, config())?),
            false => None,
        };
        let fcm = match &others.service_account {
            Some(file) => {
                let text = String::from_utf8(read(file)?)?;
                let account_of = ServiceAccount::from_json(&text)
                    .map_err(|error| format!("{}: {error}", file.display()))?;
                let (host, port) = authority(account_of.token_uri())?;
                let mut token_origin = account.route().lead(Origin::new(host, port))?;
                token_origin.address.clone_from(&others.token_address);
                let dial = Dialer::new(account.route().lead(Origin::new(AUTHORITY, 443))?)?;
                Some(Fcm::start_with(account_of, dial, Dialer::new(token_origin)?, config()))
            }
            None => None,
        };
        let web = match (&others.vapid_key, &others.contact) {
            (Some(key), Some(contact)) => {
                let key = String::from_utf8(text_or_file(key)?)?;
                let vapid = Vapid::new(key.trim(), contact)?;
                let way = account.route().clone();
                Some(WebPush::with_dial(vapid, WebPushConfig::default(), move |origin| {
                    let (host, port) = authority(origin)?;
                    let origin =
                        way.lead(Origin::new(host, port)).map_err(|error| error.to_string())?;
                    let dialer = Dialer::new(origin).map_err(|error| error.to_string())?;
                    Ok(Box::new(dialer) as Box<dyn Connect>)
                }))
            }
            _ => None,
        };
        Ok(Services { apns, fcm, web })
    }

    /// Returns the service of an entry: the one that it names, or the only one it can be for.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub(super) fn platform(&self, entry: &Entry) -> Result<Platform, String> {
        let is_subscription = entry.token.starts_with('{');
        let platform = match (entry.provider, &self.apns, &self.fcm) {
            (Some(platform), ..) => platform,
            _ if is_subscription => Platform::Web,
            (None, Some(_), None) => Platform::Apns,
            (None, None, Some(_)) => Platform::Fcm,
            (None, None, None) => Platform::Web,
            (None, Some(_), Some(_)) => {
                return Err("it names no `provider`, apns or fcm".to_owned());
            }
        };
        let (is_there, options) = match platform {
            Platform::Apns => (self.apns.is_some(), "--key with --key-id and --team-id"),
            Platform::Fcm => (self.fcm.is_some(), "--service-account"),
            Platform::Web => (self.web.is_some(), "--vapid-key and --contact"),
        };
        match is_there {
            true => Ok(platform),
            false => Err(format!("there is no credential for its service; give {options}")),
        }
    }

    /// Queues a push.
    ///
    /// # Errors
    /// It is invalid; no outcome follows.
    pub(super) async fn submit(
        &self,
        push: &Prepared,
        tag: u64,
        results: &Results,
    ) -> Result<(), NotSent> {
        let none = || NotSent::Credential("there is no credential for its service".to_owned());
        match push {
            Prepared::Apns(push) => {
                self.apns.as_ref().ok_or_else(none)?.submit(push, tag, results).await
            }
            Prepared::Fcm { token, message, timeout } => {
                let push = fcm::Push::new(fcm::Recipient::Token(token), message, *timeout);
                self.fcm.as_ref().ok_or_else(none)?.submit(&push, tag, results).await
            }
            Prepared::Web { subscription, message, options, timeout } => {
                let (timeout, resend_uncertain) = (*timeout, false);
                let push =
                    web_push::Push { subscription, message, options, timeout, resend_uncertain };
                self.web.as_ref().ok_or_else(none)?.submit(&push, tag, results).await
            }
        }
    }

    /// Returns the number of pushes that the connections carry.
    pub(super) fn carried(&self) -> usize {
        let one = [self.apns.as_ref().map(Apns::metrics), self.fcm.as_ref().map(Fcm::metrics)];
        let web = self.web.iter().flat_map(WebPush::metrics).map(|(_, metrics)| metrics);
        let all = one.into_iter().flatten().chain(web);
        all.flat_map(|metrics| metrics.connections).map(|link| link.in_flight as usize).sum()
    }

    pub(super) fn close(&self) {
        self.apns.iter().for_each(Apns::close);
        self.fcm.iter().for_each(Fcm::close);
        self.web.iter().for_each(WebPush::close);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        content: Content,
    }

    fn common(options: &[&str]) -> Common {
        let options = ["import", "--topic", "com.example.app"].iter().chain(options);
        Options::parse_from(options).content.read().expect("content")
    }

    fn device(payload: Value) -> Entry {
        Entry { token: "0".repeat(64), payload: Some(payload), ..Entry::default() }
    }

    #[test]
    fn type_and_priority_of_a_line_follow_its_own_payload_unless_they_are_named() {
        let silent = device(json!({ "aps": { "content-available": 1 } }));
        let shown = device(json!({ "aps": { "alert": "a" } }));
        let of = |options: &[&str], entry: &Entry| {
            let push = common(options).apns(entry).expect("a push");
            (push.push_type, push.priority)
        };
        assert_eq!(of(&[], &silent), (PushType::Background, 5));
        assert_eq!(of(&[], &shown), (PushType::Alert, 10));
        assert_eq!(of(&["--type", "voip"], &shown), (PushType::Voip, 10));
        assert_eq!(of(&["--priority", "5"], &shown), (PushType::Alert, 5));
    }

    #[test]
    fn one_notification_is_for_every_service_and_a_payload_for_its_own() {
        let both = common(&[
            "--notification",
            r#"{"title":"Hi"}"#,
            "--collapse-id",
            "c",
            "--expiration",
            "60",
        ]);
        let to = |token: &str| Entry { token: token.to_owned(), ..Entry::default() };
        let Ok(Prepared::Fcm { message, .. }) = both.prepare(&to("abc"), Platform::Fcm) else {
            panic!("a message")
        };
        assert_eq!(message["notification"]["title"], "Hi");
        assert_eq!(message["android"]["collapse_key"], "c");
        assert_eq!(message["android"]["ttl"], "60s");
        let browser = json!({
            "endpoint": "https://push.example.net/x",
            "keys": {
                "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
                "auth": "BTBZMqHH6r4Tts7J_aSIgg"
            }
        });
        let entry = Entry { payload: Some(json!({ "own": 1 })), ..to(&browser.to_string()) };
        let Ok(Prepared::Web { message, options, .. }) = both.prepare(&entry, Platform::Web) else {
            panic!("a message")
        };
        assert_eq!((message.as_slice(), options.topic()), (&br#"{"own":1}"#[..], Some("c")));
    }
}
