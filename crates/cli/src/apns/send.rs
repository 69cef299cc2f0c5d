//! `dunlin apns send`: one push, and what happened.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use clap::Args;
use dunlin_push::apns::{Apns, Credential, DeviceToken, Push, PushType, Target};
use dunlin_push::{Connections, Outcome, SenderConfig};

use super::credential::{Account, text_or_file};
use crate::error::CliError;
use crate::style::{BAD, DIM, GOOD, WARN, paint, print, warning};

/// How soon a person learns what a push waits for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug, Args)]
#[command(
    after_help = "A first push:\n  dunlin apns send --sandbox --key AuthKey_ABC123DEFG.p8 --key-id ABC123DEFG \
                        --team-id TEAM123456 --topic com.example.app --token 80ab… --alert Hello"
)]
pub(crate) struct Send {
    #[command(flatten)]
    account: Account,
    /// The app's bundle identifier; the suffix of the type is added
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// The device token, hexadecimal
    #[arg(long, value_name = "TOKEN", required_unless_present = "channel")]
    token: Option<String>,
    /// A broadcast channel instead of a device
    #[arg(long, value_name = "CHANNEL", conflicts_with = "token")]
    channel: Option<String>,
    /// The text of an alert
    #[arg(long, value_name = "TEXT", required_unless_present = "payload")]
    alert: Option<String>,
    /// The whole payload: JSON, or @FILE
    #[arg(long, value_name = "JSON", conflicts_with = "alert")]
    payload: Option<String>,
    /// alert, background, voip, liveactivity, …
    #[arg(long = "type", value_name = "TYPE", default_value = "alert")]
    push_type: PushType,
    /// 10 now, 5 when it suits the device, 1 not at the cost of its power
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// Replace an earlier push of this id
    #[arg(long, value_name = "ID")]
    collapse_id: Option<String>,
    /// Keep it so many seconds for a device that is off; 0 not at all
    #[arg(long, value_name = "SECONDS")]
    expiration: Option<u64>,
    /// The push's UUID; Apple makes one otherwise
    #[arg(long, value_name = "UUID")]
    id: Option<String>,
    /// Seconds until it is given up
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
}

impl Send {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let push = self.push()?;
        // Judged before anything is opened.
        push.request()?;
        let (origin, credential) = (self.account.origin()?, self.account.credential()?);
        if push.topic.is_none() && matches!(credential, Credential::Token(_)) {
            // A key is for all apps of a team; only a certificate says which one is meant.
            return Err("--topic: name the app's bundle identifier, as in com.example.app".into());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let outcome = runtime.block_on(async {
            let config =
                SenderConfig { connections: Connections::Fixed(1), ..SenderConfig::default() };
            let apns = Apns::start(origin, credential, config)?;
            Ok::<Outcome, CliError>(tokio::select! {
                outcome = apns.send(&push) => outcome,
                never = tell_obstacles(&apns, push.timeout) => match never {},
            })
        })?;
        tell(&outcome)
    }

    fn push(&self) -> Result<Push, CliError> {
        let target = match (&self.token, &self.channel) {
            (Some(token), _) => Target::Device(DeviceToken::new(token)?),
            (None, Some(channel)) => Target::Channel(channel.clone()),
            (None, None) => return Err("name a device with --token, or a channel".into()),
        };
        let payload = match (&self.payload, &self.alert) {
            (Some(payload), _) => text_or_file(payload)?,
            (None, alert) => {
                serde_json::json!({ "aps": { "alert": alert } }).to_string().into_bytes()
            }
        };
        let background = self.push_type == PushType::Background;
        let now = SystemTime::now();
        Ok(Push {
            target,
            payload: payload.into(),
            push_type: self.push_type,
            topic: self.topic.as_deref().map(Into::into),
            id: self.id.clone(),
            expiration: self.expiration.map(|seconds| match seconds {
                0 => SystemTime::UNIX_EPOCH,
                seconds => now + Duration::from_secs(seconds),
            }),
            priority: self.priority.unwrap_or(if background { 5 } else { 10 }),
            collapse_id: self.collapse_id.clone(),
            timeout: Duration::from_secs(self.timeout),
            resend_uncertain: false,
            suspect: false,
        })
    }
}

/// Tells a person who waits what is in the way, as often as it is something else.
async fn tell_obstacles(apns: &Apns, timeout: Duration) -> Infallible {
    let mut told = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let error = apns.metrics().connect_error;
        if let Some(error) = error.filter(|error| told.as_ref() != Some(error)) {
            warning(format_args!("{error} (trying again, {} s in all)", timeout.as_secs()));
            told = Some(error);
        }
    }
}

/// Says how a push ended.
pub(crate) fn tell(outcome: &Outcome) -> Result<(), CliError> {
    match outcome {
        Outcome::Accepted(accepted) => {
            print(&format!("{} {}\n", paint(GOOD, "accepted"), accepted.id))?;
            if let Some(unique_id) = &accepted.unique_id {
                let hint = paint(DIM, "look for it in the Push Notifications console");
                print(&format!("  unique id {unique_id}  {hint}\n"))?;
            }
            Ok(())
        }
        Outcome::Rejected(rejected) => {
            let (status, reason) = (rejected.status, &rejected.reason);
            let since = rejected.timestamp_ms.map(|ms| format!(" since {ms} ms"));
            let since = since.unwrap_or_default();
            print(&format!("{} with {status} {reason}{since}\n", paint(BAD, "rejected")))?;
            match &rejected.advice {
                Some(advice) => Err(advice.clone().into()),
                None => Err(format!("the service answered {status}").into()),
            }
        }
        Outcome::NotSent(why) => Err(why.to_string().into()),
        Outcome::Uncertain(why) => {
            print(&format!("{} {why}\n", paint(WARN, "uncertain")))?;
            Err("it was sent, and may or may not have been accepted".into())
        }
    }
}
