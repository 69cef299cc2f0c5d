//! `dunlin apns send`, the same as `dunlin push send apns`: sends one push and prints its outcome.

use std::convert::Infallible;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use dunlin_push::apns::{Apns, Credential, DeviceToken, Push, PushType, Target};
use dunlin_push::notification::Notification;
use dunlin_push::{Connections, Outcome, SenderConfig};
use serde_json::{Value, json};

use super::credential::{Account, text_or_file};
use crate::error::{CliError, Incomplete};
use crate::style::{BAD, DIM, GOOD, WARN, paint, print, warning};

/// How often connect errors are checked and reported.
const LOOK_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug, Args)]
#[command(
    after_help = "A first push:\n  dunlin apns send --sandbox --key AuthKey_ABC123DEFG.p8 --key-id ABC123DEFG \
                  --team-id TEAM123456 --topic com.example.app --token 80ab… --alert Hello\n\n\
                  Exit codes: 0 accepted; 3 not sent, or refused temporarily: send it again; 4 refused; 5 uncertain: \
                  it was sent and no response came; 1 the command could not start."
)]
pub(crate) struct Send {
    #[command(flatten)]
    account: Account,
    /// The app's bundle identifier, without the suffix of the push type
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// The device token, hexadecimal
    #[arg(long, value_name = "TOKEN", required_unless_present = "channel")]
    token: Option<String>,
    /// Id of a broadcast channel: send to all subscribed devices
    #[arg(long, value_name = "CHANNEL", conflicts_with = "token")]
    channel: Option<String>,
    #[command(flatten)]
    content: Content,
    /// alert, background, voip, liveactivity, …
    #[arg(long = "type", value_name = "TYPE")]
    push_type: Option<PushType>,
    /// 10: at once; 5: when it suits the device's power; 1: never wakes the device
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// Replace an earlier push with this id
    #[arg(long, value_name = "ID")]
    collapse_id: Option<String>,
    /// Seconds that Apple stores the push for a device that is offline; 0: not at all
    #[arg(long, value_name = "SECONDS")]
    expiration: Option<u64>,
    /// UUID of the push; by default Apple assigns one
    #[arg(long, value_name = "UUID")]
    id: Option<String>,
    /// Time limit in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// What the device shows.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Content {
    /// The text of an alert without a title
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["title", "body"])]
    alert: Option<String>,
    /// The first line
    #[arg(long, value_name = "TEXT")]
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
    /// Let the app's service extension change the notification before it is shown
    #[arg(long)]
    mutable_content: bool,
    /// The whole notification as `/api/push` takes it: JSON, or @FILE
    #[arg(long, value_name = "JSON", conflicts_with_all = ["alert", "title", "body", "payload"])]
    notification: Option<String>,
    /// The whole payload: JSON, or @FILE
    #[arg(long, value_name = "JSON", conflicts_with_all = ["alert", "title", "body"])]
    payload: Option<String>,
}

impl Send {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let push = self.push()?;
        // Validate before anything is opened.
        push.request()?;
        let (origin, credential) = (self.account.origin()?, self.account.credential()?);
        if push.topic.is_none() && matches!(credential, Credential::Token(_)) {
            // A key is valid for all apps of a team; only a certificate identifies one.
            return Err("--topic: name the app's bundle identifier, as in com.example.app".into());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let outcome = runtime.block_on(async {
            let config =
                SenderConfig { connections: Connections::Fixed(1), ..SenderConfig::default() };
            let apns = Apns::start(origin, credential, config)?;
            Ok::<Outcome, CliError>(tokio::select! {
                outcome = apns.send(&push) => outcome,
                never = report_obstacles(&apns, push.timeout) => match never {},
            })
        })?;
        report(&outcome, self.json)
    }

    fn push(&self) -> Result<Push, CliError> {
        let target = match (&self.token, &self.channel) {
            (Some(token), _) => Target::Device(DeviceToken::new(token)?),
            (None, Some(channel)) => Target::Channel(channel.clone()),
            (None, None) => return Err("name a device with --token, or a channel".into()),
        };
        let mut push = self.content.push(target, self.push_type)?;
        push.priority = self.priority.unwrap_or(push.priority);
        push.topic = self.topic.as_deref().map(Into::into).or(push.topic);
        push.id.clone_from(&self.id);
        if let Some(seconds) = self.expiration {
            push.expiration = Some(expiration(seconds, SystemTime::now()));
        }
        push.collapse_id = self.collapse_id.clone().or(push.collapse_id);
        push.timeout = Duration::from_secs(self.timeout);
        Ok(push)
    }
}

impl Content {
    /// Returns the push with its content. Without a type by name it has the one that its payload asks for.
    fn push(&self, target: Target, named: Option<PushType>) -> Result<Push, CliError> {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let mut push = Push {
            target,
            payload: Vec::new().into(),
            push_type: PushType::Alert,
            topic: None,
            id: None,
            expiration: None,
            priority: 10,
            collapse_id: None,
            timeout: Duration::ZERO,
            resend_uncertain: false,
            suspect: false,
        };
        let payload = match &self.payload {
            Some(payload) => {
                let payload = self.with_options(text_or_file(payload)?)?;
                let json: Value = serde_json::from_slice(&payload).unwrap_or_default();
                let of_payload = named.or_else(|| PushType::of_payload(&json));
                push.push_type = of_payload.unwrap_or(PushType::Alert);
                push.priority = push.push_type.priority();
                payload
            }
            None => {
                let mut notification = self.notification()?;
                if let Some(named) = named {
                    notification.apns_options.push_type = Some(named.as_str().to_owned());
                }
                let message = match push.target {
                    Target::Device(_) => notification.apns(now_s),
                    Target::Channel(_) => {
                        let judged = notification.validate_broadcast();
                        judged.map_err(|error| format!("notification.{error}"))?;
                        notification.apns_broadcast(now_s)
                    }
                };
                push.push_type = message.push_type.parse()?;
                push.topic = message.topic.as_deref().map(Into::into);
                push.priority = message.priority;
                push.expiration =
                    message.expiration_s.map(|at_s| UNIX_EPOCH + Duration::from_secs(at_s));
                push.collapse_id = message.collapse_id;
                message.payload
            }
        };
        push.payload = payload.into();
        Ok(push)
    }

    fn notification(&self) -> Result<Notification, CliError> {
        let mut notification: Notification = match &self.notification {
            Some(json) => serde_json::from_slice(&text_or_file(json)?)
                .map_err(|error| format!("notification: {error}"))?,
            None => Notification {
                title: self.title.clone(),
                body: self.body.clone(),
                // A notification without any text still needs an `aps` object.
                apns: match (&self.alert, &self.title, &self.body) {
                    (Some(alert), ..) => json!({ "aps": { "alert": alert } }),
                    (None, None, None) => json!({ "aps": {} }),
                    _ => Value::Null,
                },
                ..Notification::default()
            },
        };
        notification.badge = self.badge.or(notification.badge);
        notification.sound = self.sound.clone().or(notification.sound);
        if self.mutable_content {
            if notification.apns.is_null() {
                notification.apns = json!({});
            }
            let apns = notification.apns.as_object_mut();
            let aps = apns.map(|all| all.entry("aps").or_insert_with(|| json!({})));
            let Some(aps) = aps.and_then(Value::as_object_mut) else {
                return Err("notification.apns: it and its `aps` are objects".into());
            };
            aps.insert("mutable-content".to_owned(), 1.into());
        }
        notification.validate().map_err(|error| format!("notification.{error}"))?;
        Ok(notification)
    }

    /// Adds the options to the `aps` object of a payload.
    fn with_options(&self, payload: Vec<u8>) -> Result<Vec<u8>, CliError> {
        let badge = self.badge.map(|badge| ("badge", Value::from(badge)));
        let sound = self.sound.as_deref().map(|sound| ("sound", Value::from(sound)));
        let mutable = self.mutable_content.then(|| ("mutable-content", Value::from(1)));
        let mut options = [badge, sound, mutable].into_iter().flatten().peekable();
        if options.peek().is_none() {
            return Ok(payload);
        }
        let mut payload: Value =
            serde_json::from_slice(&payload).map_err(|error| format!("payload: {error}"))?;
        let aps = payload.as_object_mut().map(|all| all.entry("aps").or_insert_with(|| json!({})));
        let Some(aps) = aps.and_then(Value::as_object_mut) else {
            return Err("payload: it and its `aps` are objects".into());
        };
        aps.extend(options.map(|(name, value)| (name.to_owned(), value)));
        Ok(payload.to_string().into_bytes())
    }
}

/// Returns the expiration time of a push that is stored for this many seconds; 0 means that it is not stored.
pub(crate) fn expiration(seconds: u64, now: SystemTime) -> SystemTime {
    match seconds {
        0 => UNIX_EPOCH,
        seconds => now + Duration::from_secs(seconds),
    }
}

/// Reports connect errors while waiting, whenever they change.
async fn report_obstacles(apns: &Apns, timeout: Duration) -> Infallible {
    let mut reported = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let error = apns.metrics().connect_error;
        if let Some(error) = error.filter(|error| reported.as_ref() != Some(error)) {
            warning(format_args!("{error} (trying again, {} s in all)", timeout.as_secs()));
            reported = Some(error);
        }
    }
}

/// Prints the outcome of a push.
///
/// # Errors
/// When it was not accepted.
pub(crate) fn report(outcome: &Outcome, json: bool) -> Result<(), CliError> {
    if json {
        print(&format!("{}\n", serde_json::to_string(&outcome.to_json())?))?;
    } else {
        match outcome {
            Outcome::Accepted(accepted) => {
                print(&format!("{} {}\n", paint(GOOD, "accepted"), accepted.id))?;
                if let Some(unique_id) = &accepted.unique_id {
                    let hint = paint(DIM, "look for it in the Push Notifications console");
                    print(&format!("  unique id {unique_id}  {hint}\n"))?;
                }
            }
            Outcome::Rejected(rejected) => {
                let (status, reason) = (rejected.status, &rejected.reason);
                let since = rejected.timestamp_ms.map(|ms| format!(" since {ms} ms"));
                let since = since.unwrap_or_default();
                print(&format!("{} with {status} {reason}{since}\n", paint(BAD, "rejected")))?;
            }
            Outcome::NotSent(_) => {}
            Outcome::Uncertain(why) => print(&format!("{} {why}\n", paint(WARN, "uncertain")))?,
        }
    }
    match Incomplete::of(outcome) {
        Some(incomplete) => Err(incomplete.into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        send: Send,
    }

    fn push(options: &[&str]) -> Result<Push, String> {
        let token = "0".repeat(64);
        let always = ["send", "--token", &token, "--topic", "com.example.app"];
        let line = always.iter().chain(options);
        Line::try_parse_from(line)
            .map_err(|error| error.to_string())?
            .send
            .push()
            .map_err(|error| error.to_string())
    }

    fn payload(options: &[&str]) -> Value {
        serde_json::from_slice(&push(options).expect("a push").payload).expect("JSON")
    }

    #[test]
    fn options_of_the_alert_go_into_aps_whatever_else_the_payload_is() {
        let options = ["--badge", "3", "--sound", "default", "--mutable-content"];
        let wanted = json!({ "badge": 3, "sound": "default", "mutable-content": 1 });
        let with = |own: &[&str]| payload(&[own, &options[..]].concat());
        let alert = with(&["--alert", "Hello"]);
        assert_eq!(alert["aps"]["alert"], "Hello");
        for (name, value) in wanted.as_object().expect("an object") {
            assert_eq!(&alert["aps"][name], value, "{name}");
        }
        assert_eq!(with(&["--payload", r#"{"own":1}"#]), json!({ "own": 1, "aps": wanted }));
        assert_eq!(payload(&["--badge", "0"])["aps"]["badge"], 0);
        let error = push(&["--payload", "[]", "--badge", "3"]).unwrap_err();
        assert!(error.contains("payload"), "{error}");
    }

    #[test]
    fn priority_expiration_and_id_are_those_of_the_push() {
        let id = "123e4567-e89b-12d3-a456-426614174000";
        let options = ["--alert", "a", "--priority", "5", "--id", id, "--collapse-id", "c"];
        let given = push(&[&options[..], &["--expiration", "0", "--timeout", "7"]].concat())
            .expect("a push");
        assert_eq!((given.priority, given.id.as_deref()), (5, Some(id)));
        assert_eq!(given.collapse_id.as_deref(), Some("c"));
        assert_eq!((given.expiration, given.timeout), (Some(UNIX_EPOCH), Duration::from_secs(7)));
        let before = SystemTime::now();
        let kept = push(&["--alert", "a", "--expiration", "60"]).expect("a push");
        let left = kept.expiration.and_then(|at| at.duration_since(before).ok());
        assert!(left.is_some_and(|left| left >= Duration::from_secs(60)), "{left:?}");
        let background = push(&["--payload", "{}", "--type", "background"]).expect("a push");
        assert_eq!((background.priority, background.expiration), (5, None));
    }

    #[test]
    fn type_and_priority_follow_the_content_unless_they_are_named() {
        for (options, push_type, priority) in [
            (&["--alert", "Hello"][..], PushType::Alert, 10),
            (&["--alert", "Hello", "--type", "voip"], PushType::Voip, 10),
            (&["--notification", r#"{"apns":{"aps":{"alert":"Hello"}}}"#], PushType::Alert, 10),
            (&["--badge", "3"], PushType::Alert, 10),
            (&["--payload", r#"{"aps":{"content-available":1}}"#], PushType::Background, 5),
            (&["--payload", r#"{"own":1}"#, "--sound", "a"], PushType::Alert, 10),
            (&["--payload", "{}", "--type", "voip"], PushType::Voip, 10),
            (&["--alert", "Hello", "--priority", "5"], PushType::Alert, 5),
        ] {
            let push = push(options).expect("a push");
            assert_eq!((push.push_type, push.priority), (push_type, priority), "{options:?}");
            assert!(push.request().is_ok(), "{options:?}");
        }
        assert_eq!(payload(&["--alert", "Hello"])["aps"], json!({ "alert": "Hello" }));
    }

    #[test]
    fn a_push_without_anything_to_show_is_refused_with_the_options_that_would_do() {
        let error = push(&[]).unwrap_err();
        assert!(error.contains("--alert") && error.contains("--payload"), "{error}");
    }
}
