//! `dunlin push send`: sends one notification to one device of any push service.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueHint};
use dunlin_push::fcm::{AUTHORITY, Fcm, Recipient, ServiceAccount};
use dunlin_push::notification::{Notification, Urgency};
use dunlin_push::web_push::{Push, Subscription, Vapid, WebPush, WebPushConfig};
use dunlin_push::{Connect, Connections, Dialer, Origin, Outcome, SenderConfig};

use crate::apns::{ServiceRoute, report, text_or_file};
use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct Send {
    #[command(subcommand)]
    to: To,
}

#[derive(Debug, Subcommand)]
enum To {
    /// To an Apple device, or to all subscribers of a channel; same as `dunlin apns send`
    Apns(Box<crate::apns::Send>),
    /// Through Firebase Cloud Messaging
    Fcm {
        /// The registration token
        #[arg(long, value_name = "TOKEN", required_unless_present_any = ["topic", "condition"])]
        token: Option<String>,
        /// Send to all devices subscribed to this topic
        #[arg(long, value_name = "NAME", conflicts_with_all = ["token", "condition"])]
        topic: Option<String>,
        /// Send to all devices whose topics match this condition, e.g. "'dogs' in topics || 'cats' in topics"
        #[arg(long, value_name = "TEXT", conflicts_with = "token")]
        condition: Option<String>,
        /// The service account's JSON file
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        account: PathBuf,
        /// Fetch access tokens here instead
        #[arg(long, value_name = "HOST:PORT")]
        token_address: Option<String>,
        #[command(flatten)]
        way: ServiceRoute,
        #[command(flatten)]
        what: NotificationArgs,
    },
    /// To a browser
    Web {
        /// The subscription as returned by `JSON.stringify(subscription)`, or @FILE
        #[arg(long, value_name = "JSON")]
        subscription: String,
        /// The VAPID private key: 32 bytes in base64url or PEM, or @FILE
        #[arg(long, value_name = "KEY")]
        key: String,
        /// Contact for the push service: mailto: or https:
        #[arg(long, value_name = "URL")]
        contact: String,
        #[command(flatten)]
        way: ServiceRoute,
        #[command(flatten)]
        what: NotificationArgs,
    },
}

#[derive(Debug, Args)]
struct NotificationArgs {
    /// The first line
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["body", "notification"])]
    title: Option<String>,
    /// The text
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
    /// The number on the app's icon
    #[arg(long, value_name = "N")]
    badge: Option<u32>,
    /// A sound of the app's, or `default`
    #[arg(long, value_name = "NAME")]
    sound: Option<String>,
    /// How soon: high, normal or low
    #[arg(long, value_name = "URGENCY", value_parser = ["high", "normal", "low"])]
    priority: Option<String>,
    /// The whole notification as `/api/push` takes it: JSON, or @FILE
    #[arg(long, value_name = "JSON", conflicts_with_all = ["title", "body"])]
    notification: Option<String>,
    /// Time limit in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

impl NotificationArgs {
    fn notification(&self) -> Result<Notification, CliError> {
        let mut notification = match &self.notification {
            Some(json) => serde_json::from_slice(&text_or_file(json)?)
                .map_err(|error| format!("notification: {error}"))?,
            None => Notification {
                title: self.title.clone(),
                body: self.body.clone(),
                ..Notification::default()
            },
        };
        notification.badge = self.badge.or(notification.badge);
        notification.sound = self.sound.clone().or(notification.sound);
        notification.urgency = match self.priority.as_deref() {
            Some("high") => Urgency::High,
            Some("normal") => Urgency::Normal,
            Some("low") => Urgency::Low,
            _ => notification.urgency,
        };
        notification.validate().map_err(|error| format!("notification.{error}"))?;
        Ok(notification)
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

impl Send {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let to = match self.to {
            To::Apns(send) => return send.run(),
            to => to,
        };
        let json = matches!(&to, To::Fcm { what, .. } | To::Web { what, .. } if what.json);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let outcome = runtime.block_on(async {
            match to {
                To::Apns(_) => unreachable!("it has been sent"),
                To::Fcm { token, topic, condition, account, token_address, way, what } => {
                    let account = String::from_utf8(crate::apns::read(&account)?)?;
                    let to = match (&token, &topic, &condition) {
                        (_, Some(topic), _) => Recipient::Topic(topic),
                        (_, _, Some(condition)) => Recipient::Condition(condition),
                        (token, ..) => Recipient::Token(token.as_deref().unwrap_or_default()),
                    };
                    fcm(to, &account, token_address, &way, &what).await
                }
                To::Web { subscription, key, contact, way, what } => {
                    web(&subscription, &key, &contact, way, &what).await
                }
            }
        })?;
        report(&outcome, json)
    }
}

fn config() -> SenderConfig {
    SenderConfig { connections: Connections::Fixed(1), ..SenderConfig::default() }
}

async fn fcm(
    to: Recipient<'_>,
    account: &str,
    token_address: Option<String>,
    way: &ServiceRoute,
    what: &NotificationArgs,
) -> Result<Outcome, CliError> {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let message = what.notification()?.fcm(now_s);
    let account = ServiceAccount::from_json(account)?;
    let (host, port) = authority(account.token_uri())?;
    let mut token_origin = way.lead(Origin::new(host, port))?;
    token_origin.address = token_address;
    let dial = Dialer::new(way.lead(Origin::new(AUTHORITY, 443))?)?;
    let fcm = Fcm::start_with(account, dial, Dialer::new(token_origin)?, config());
    Ok(fcm.send(&dunlin_push::fcm::Push::new(to, &message, what.timeout())).await)
}

async fn web(
    subscription: &str,
    key: &str,
    contact: &str,
    way: ServiceRoute,
    what: &NotificationArgs,
) -> Result<Outcome, CliError> {
    let (message, options) = what.notification()?.web();
    let subscription = String::from_utf8(text_or_file(subscription)?)?;
    let subscription = Subscription::from_json(&subscription)?;
    let vapid = Vapid::new(String::from_utf8(text_or_file(key)?)?.trim(), contact)?;
    // The user of this command chose the subscription, and thereby the host.
    let how = WebPushConfig { hosts: Vec::new(), sender: config(), ..WebPushConfig::default() };
    let web = WebPush::with_dial(vapid, how, move |origin| {
        let (host, port) = authority(origin)?;
        let origin = way.lead(Origin::new(host, port)).map_err(|error| error.to_string())?;
        let dialer = Dialer::new(origin).map_err(|error| error.to_string())?;
        Ok(Box::new(dialer) as Box<dyn Connect>)
    });
    let timeout = what.timeout();
    let (subscription, message, options) = (&subscription, &message[..], &options);
    let push = Push { subscription, message, options, timeout, resend_uncertain: false };
    Ok(web.send(&push).await)
}

/// Returns host and port of an `https://` address.
pub(super) fn authority(url: &str) -> Result<(&str, u16), String> {
    let rest = url.strip_prefix("https://").unwrap_or(url);
    let authority = rest.split('/').next().unwrap_or_default();
    match authority.rsplit_once(':') {
        Some((host, port)) => Ok((host, port.parse().map_err(|_| format!("{port:?} is no port"))?)),
        None => Ok((authority, 443)),
    }
}
