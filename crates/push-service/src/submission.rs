//! The bodies of `/api/push` and `/api/push/batch`: notifications and their recipients.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use dunlin_hub::tenant::has_control;
use dunlin_push::notification::Notification;
use dunlin_push::registry::{Device, Platform};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use dunlin_api::server_api::{ApiError, ApiErrorCode};

/// Most recipients in a request to `/api/push`.
const DEVICES_MAX: usize = 1_000;
const USERS_MAX: usize = 100;
const BROADCASTS_MAX: usize = 100;
/// Limits of the registry; user and token are repeated in the line of an outcome.
const USER_BYTES_MAX: usize = 1_024;
const TOKEN_BYTES_MAX: usize = 4_096;
/// Length of a channel id, topic or condition.
const TARGET_BYTES_MAX: usize = 1_024;
/// Default and maximum time of a push, queued and in flight.
const TIMEOUT_MS: u64 = 30_000;
const TIMEOUT_MS_MAX: u64 = 3_600_000;
/// A later time is one in milliseconds.
const SEND_AT_S_MAX: u64 = 100_000_000_000;

/// A notification and its recipients.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Submission {
    pub(super) notification: Notification,
    /// Devices by token.
    #[serde(default, skip_serializing, deserialize_with = "dunlin_protocol::json::nullable")]
    devices: Vec<Recipients>,
    /// Users by id, each with all registered devices.
    #[serde(default, skip_serializing, deserialize_with = "dunlin_protocol::json::nullable")]
    pub(super) users: Vec<String>,
    /// Subscribers at a push service, reached with one push to it.
    #[serde(default, skip_serializing, deserialize_with = "dunlin_protocol::json::nullable")]
    broadcasts: Vec<PushBroadcast>,
    /// Skips users who have a session here.
    #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
    pub(super) only_offline: bool,
    timeout_ms: Option<u64>,
    /// Resends pushes without an answer, which may arrive twice.
    #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
    pub(super) resend_uncertain: bool,
}

/// Submissions, and how they are accepted.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SubmissionBatch {
    pub(super) pushes: Vec<Submission>,
    /// The batch is acknowledged once it is in the journal, and sent from there.
    #[serde(default, skip_serializing, deserialize_with = "dunlin_protocol::json::nullable")]
    pub(super) durable: bool,
    /// A request whose key was used before is not executed again.
    #[serde(default, skip_serializing)]
    pub(super) idempotency_key: Option<String>,
    /// Unix time in seconds before which nothing is sent.
    pub(super) send_at_s: Option<u64>,
    /// The node that the request is for: each has its own devices and keys.
    #[serde(default, skip_serializing)]
    pub(super) node: Option<String>,
}

/// Why a user gets no push: a code and a sentence.
pub(super) type NoPush = (&'static str, Cow<'static, str>);

/// The recipients of one notification so far: each is sent to once, however often a request has it.
#[derive(Debug, Default)]
pub(super) struct Addressed(HashSet<String>);

impl Addressed {
    /// Returns whether a recipient is new.
    pub(super) fn add(&mut self, to: &Recipient) -> bool {
        self.0.insert(match to {
            Recipient::Device { device, .. } => device.identity(),
            Recipient::Broadcast(broadcast) => format!("{broadcast:?}"),
        })
    }

    /// Returns those devices of a user that are new.
    pub(super) fn add_all(&mut self, devices: Vec<Device>) -> Result<Vec<Device>, NoPush> {
        let new: Vec<Device> =
            devices.into_iter().filter(|device| self.0.insert(device.identity())).collect();
        match new.is_empty() {
            true => Err(("repeated", "the request has all devices of the user already".into())),
            false => Ok(new),
        }
    }

    /// The same for each of several users.
    pub(super) fn add_each(
        &mut self,
        found: Vec<Result<Vec<Device>, NoPush>>,
    ) -> Vec<Result<Vec<Device>, NoPush>> {
        found.into_iter().map(|found| found.and_then(|devices| self.add_all(devices))).collect()
    }
}

/// Devices of one app.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recipients {
    provider: Platform,
    app: String,
    token: Option<Token>,
    #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
    tokens: Vec<Token>,
    /// `apns-id` of the push; requires exactly one token.
    id: Option<String>,
}

/// The recipients of a broadcast: subscribers of a target at a push service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Subscribers")]
pub(super) struct PushBroadcast {
    #[serde(rename = "provider")]
    pub(super) platform: Platform,
    pub(super) app: String,
    #[serde(flatten)]
    pub(super) target: BroadcastTarget,
}

/// The target that recipients of a broadcast subscribed to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum BroadcastTarget {
    /// The id of an APNs broadcast channel.
    Channel(String),
    /// An FCM topic.
    Topic(String),
    /// An FCM condition on topics: `'dogs' in topics || 'cats' in topics`.
    Condition(String),
}

/// A broadcast as written in a request body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subscribers {
    provider: Platform,
    app: String,
    channel: Option<String>,
    topic: Option<String>,
    condition: Option<String>,
}

/// The recipient of a push.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Recipient {
    /// One device, or one browser.
    Device {
        /// The device.
        device: Device,
        /// The caller's id of the push: `apns-id`.
        id: Option<String>,
    },
    /// All subscribers of a target.
    Broadcast(PushBroadcast),
}

/// A token; a browser's subscription may be a JSON object instead of a string.
#[derive(Debug, Deserialize)]
#[serde(from = "Value")]
struct Token(String);

impl From<Value> for Token {
    fn from(value: Value) -> Token {
        match value {
            Value::String(text) => Token(text),
            other => Token(other.to_string()),
        }
    }
}

impl TryFrom<Subscribers> for PushBroadcast {
    type Error = String;

    fn try_from(named: Subscribers) -> Result<PushBroadcast, String> {
        let Subscribers { provider: platform, app, channel, topic, condition } = named;
        let target = match (platform, channel, topic, condition) {
            (Platform::Apns, Some(channel), None, None) => BroadcastTarget::Channel(channel),
            (Platform::Apns, ..) => {
                return Err("channel: a broadcast of Apple's goes to one".into());
            }
            (Platform::Fcm, None, Some(topic), None) => BroadcastTarget::Topic(topic),
            (Platform::Fcm, None, None, Some(condition)) => BroadcastTarget::Condition(condition),
            (Platform::Fcm, ..) => {
                return Err("topic: name either a `topic` or a `condition` of FCM's".into());
            }
            (Platform::Web, ..) => {
                return Err("provider: browsers know no broadcasts; write apns or fcm".into());
            }
        };
        let (field, name, what, legal): (_, _, _, fn(u8) -> bool) = match &target {
            // Base64, as issued by Apple.
            BroadcastTarget::Channel(id) => {
                ("channel", id, "its id in Base64, as Apple gave it", |byte| {
                    byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte)
                })
            }
            BroadcastTarget::Topic(name) => ("topic", name, "letters, digits and -_.~%", |byte| {
                byte.is_ascii_alphanumeric() || b"-_.~%".contains(&byte)
            }),
            BroadcastTarget::Condition(text) => {
                ("condition", text, "it as in 'dogs' in topics || 'cats' in topics", |byte| {
                    byte.is_ascii_graphic() || byte == b' '
                })
            }
        };
        match (1..=TARGET_BYTES_MAX).contains(&name.len()) && name.bytes().all(legal) {
            true => Ok(PushBroadcast { platform, app, target }),
            false => Err(format!("{field}: {name:?} is unknown; write {what}")),
        }
    }
}

impl Recipient {
    /// Returns the platform of its push service.
    pub(super) fn platform(&self) -> Platform {
        match self {
            Recipient::Device { device, .. } => device.platform,
            Recipient::Broadcast(broadcast) => broadcast.platform,
        }
    }

    /// Returns the name of the credential.
    pub(super) fn app(&self) -> &str {
        match self {
            Recipient::Device { device, .. } => &device.app,
            Recipient::Broadcast(broadcast) => &broadcast.app,
        }
    }

    /// Returns the token of the device.
    pub(super) fn token(&self) -> Option<&str> {
        match self {
            Recipient::Device { device, .. } => Some(&device.token),
            Recipient::Broadcast(_) => None,
        }
    }

    /// Returns the caller's id of the push.
    pub(super) fn id(&self) -> Option<&str> {
        match self {
            Recipient::Device { id, .. } => id.as_deref(),
            Recipient::Broadcast(_) => None,
        }
    }

    /// Returns the target of a broadcast.
    pub(super) fn broadcast_target(&self) -> Option<&BroadcastTarget> {
        match self {
            Recipient::Device { .. } => None,
            Recipient::Broadcast(broadcast) => Some(&broadcast.target),
        }
    }
}

impl Recipients {
    /// Returns each device.
    pub(super) fn into_devices(self) -> impl Iterator<Item = Device> {
        let Recipients { provider: platform, app, token, tokens, .. } = self;
        let tokens = token.into_iter().chain(tokens);
        tokens.map(move |Token(token)| Device { platform, app: app.clone(), token })
    }

    fn tokens(&self) -> impl Iterator<Item = &Token> {
        self.token.iter().chain(&self.tokens)
    }

    fn len(&self) -> usize {
        self.tokens().count()
    }
}

impl SubmissionBatch {
    /// Parses the body of `/api/push`: one submission together with the fields of a batch.
    ///
    /// # Errors
    /// Returns an error that names the invalid field.
    pub(super) fn one(body: &[u8]) -> Result<SubmissionBatch, ApiError> {
        #[derive(Default, Deserialize)]
        struct BatchFields {
            #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
            durable: bool,
            idempotency_key: Option<String>,
            send_at_s: Option<u64>,
            node: Option<String>,
        }
        let mut fields: serde_json::Map<String, Value> = read(body)?;
        let mut beside = serde_json::Map::new();
        for name in ["durable", "idempotency_key", "send_at_s", "node"] {
            beside.extend(fields.remove(name).map(|value| (name.to_owned(), value)));
        }
        // Batch fields are rare: without them the body is parsed directly, so that errors have positions.
        let submission: Submission = match beside.is_empty() {
            true => read(body)?,
            false => read(Value::Object(fields).to_string().as_bytes())?,
        };
        let BatchFields { durable, idempotency_key, send_at_s, node } =
            read(Value::Object(beside).to_string().as_bytes())?;
        submission.validate().map_err(ApiError::malformed)?;
        let devices: usize = submission.devices.iter().map(Recipients::len).sum();
        if devices > DEVICES_MAX
            || submission.users.len() > USERS_MAX
            || submission.broadcasts.len() > BROADCASTS_MAX
        {
            let why = format!(
                "/api/push takes {DEVICES_MAX} devices, {USERS_MAX} users and {BROADCASTS_MAX} broadcasts; \
                 /api/push/batch takes more, and answers as it goes"
            );
            return Err(ApiErrorCode::LimitExceeded.with_reason(why));
        }
        let pushes = vec![submission];
        let batch = SubmissionBatch { pushes, durable, idempotency_key, send_at_s, node };
        batch.validate()?;
        Ok(batch)
    }

    /// Parses the body of `/api/push/batch`.
    ///
    /// # Errors
    /// Returns an error that names the notification and its invalid field; nothing has been sent.
    pub(super) fn many(body: &[u8]) -> Result<SubmissionBatch, ApiError> {
        let batch: SubmissionBatch = read(body)?;
        for (at, submission) in batch.pushes.iter().enumerate() {
            let named = |why| ApiError::malformed(format!("pushes[{at}].{why}"));
            submission.validate().map_err(named)?;
        }
        if batch.idempotency_key.is_some() && !batch.durable {
            let why =
                "idempotency_key: an answer that is streamed is not kept; write `durable` too";
            return Err(ApiError::malformed(why));
        }
        batch.validate()?;
        Ok(batch)
    }

    fn validate(&self) -> Result<(), ApiError> {
        let legal = |key: &String| (1..=USER_BYTES_MAX).contains(&key.len());
        if !self.idempotency_key.iter().all(legal) {
            let why = format!("idempotency_key: write 1 to {USER_BYTES_MAX} bytes");
            return Err(ApiError::malformed(why));
        }
        if self.send_at_s.is_some() && !self.durable {
            let why = "send_at_s: what is sent later has to be kept; write `durable` too";
            return Err(ApiError::malformed(why));
        }
        if let Some(at) = self.send_at_s.filter(|at| *at > SEND_AT_S_MAX) {
            let why = format!(
                "send_at_s: {at} is in the year 5138 or later; write seconds since 1970, not milliseconds: {}",
                at / 1_000
            );
            return Err(ApiError::malformed(why));
        }
        Ok(())
    }
}

impl Submission {
    fn validate(&self) -> Result<(), String> {
        self.notification.validate().map_err(|error| format!("notification.{error}"))?;
        if self.devices.is_empty() && self.users.is_empty() && self.broadcasts.is_empty() {
            return Err(
                "devices: there are neither devices nor users nor broadcasts to send to".to_owned()
            );
        }
        if self.broadcasts.iter().any(|broadcast| broadcast.platform == Platform::Apns) {
            let valid = self.notification.validate_broadcast();
            valid.map_err(|error| format!("notification.{error}"))?;
        }
        if let Some(at) = self.devices.iter().position(|group| group.len() == 0) {
            return Err(format!("devices[{at}].token: there is neither `token` nor `tokens`"));
        }
        let is_one = |group: &Recipients| {
            group.id.is_none() || (group.len() == 1 && group.provider == Platform::Apns)
        };
        if let Some(at) = self.devices.iter().position(|group| !is_one(group)) {
            return Err(format!("devices[{at}].id: it is the `apns-id` of one token's push"));
        }
        let is_token = |Token(token): &Token| (1..=TOKEN_BYTES_MAX).contains(&token.len());
        if let Some(at) = self.devices.iter().position(|group| !group.tokens().all(is_token)) {
            return Err(format!("devices[{at}].tokens: a token has 1 to {TOKEN_BYTES_MAX} bytes"));
        }
        // A user of a tenant is nobody here: whether one is connected would tell who the tenant's users are.
        let is_user =
            |user: &String| (1..=USER_BYTES_MAX).contains(&user.len()) && !has_control(user);
        if let Some(at) = self.users.iter().position(|user| !is_user(user)) {
            return Err(format!(
                "users[{at}]: a user's id has 1 to {USER_BYTES_MAX} bytes, and no control characters"
            ));
        }
        match self.timeout_ms {
            Some(ms) if !(1..=TIMEOUT_MS_MAX).contains(&ms) => {
                Err(format!("timeout_ms: {ms} is not from 1 to {TIMEOUT_MS_MAX}"))
            }
            _ => Ok(()),
        }
    }

    /// Returns how long each push may take.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.unwrap_or(TIMEOUT_MS))
    }

    /// Removes and returns its devices and broadcasts.
    pub(super) fn take_recipients(&mut self) -> impl Iterator<Item = Recipient> + use<> {
        let devices = std::mem::take(&mut self.devices).into_iter();
        let broadcasts = std::mem::take(&mut self.broadcasts).into_iter();
        let devices = devices.flat_map(|mut group| {
            let mut id = group.id.take();
            group.into_devices().map(move |device| Recipient::Device { device, id: id.take() })
        });
        devices.chain(broadcasts.map(Recipient::Broadcast))
    }
}

/// Parses a body; an error names the invalid field.
pub(super) fn read<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let (path, why) = (error.path().to_string(), error.inner().to_string());
        match path.as_str() {
            "." => ApiError::malformed(why),
            path => ApiError::malformed(format!("{path}: {why}")),
        }
    })?;
    reader.end().map_err(|error| ApiError::malformed(error.to_string()))?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_in_any_member_that_may_be_absent_is_as_if_it_were() {
        use dunlin_protocol::json::members_without_null;
        let submission = r#"{"notification":{}}"#;
        assert!(members_without_null::<Submission>(submission).is_empty());
        assert!(members_without_null::<SubmissionBatch>(r#"{"pushes":[]}"#).is_empty());
        assert!(members_without_null::<Notification>("{}").is_empty());
        let recipients = r#"{"provider":"apns","app":"a"}"#;
        assert!(members_without_null::<Recipients>(recipients).is_empty());
        let push =
            br#"{"notification":{"title":"a"},"users":["ada"],"durable":null,"send_at_s":null}"#;
        assert!(SubmissionBatch::one(push).is_ok());
    }

    #[test]
    fn the_openapi_document_has_every_field_of_a_push() {
        use dunlin_api::server_api::OPENAPI;
        use dunlin_api::server_api::member::of;
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        for (schema, members) in [
            ("Submission", of::<Submission>()),
            ("PushBatchRequest", of::<SubmissionBatch>()),
            ("Recipients", of::<Recipients>()),
            ("PushBroadcast", of::<Subscribers>()),
            ("Notification", of::<Notification>()),
        ] {
            let properties = &document["components"]["schemas"][schema]["properties"];
            let mut names: Vec<_> = properties.as_object().unwrap().keys().collect();
            names.sort();
            let mut members = members.to_vec();
            members.sort_unstable();
            assert_eq!(names, members, "{schema}");
        }
    }

    fn refused(body: &str) -> String {
        SubmissionBatch::one(body.as_bytes()).expect_err("refused").to_string()
    }

    #[test]
    fn a_token_is_a_text_and_a_subscription_may_be_an_object() {
        let body = r#"{"notification":{"title":"Hi"},"devices":[
            {"provider":"apns","app":"a","tokens":["1","2"]},
            {"provider":"web","app":"w","token":{"endpoint":"https://p.example/1"}}]}"#;
        let mut submission = SubmissionBatch::one(body.as_bytes()).unwrap().pushes.remove(0);
        assert_eq!(submission.timeout(), Duration::from_secs(30));
        let recipients: Vec<Recipient> = submission.take_recipients().collect();
        assert_eq!(recipients.len(), 3);
        assert_eq!(recipients[2].token(), Some(r#"{"endpoint":"https://p.example/1"}"#));
        assert_eq!(submission.take_recipients().count(), 0);
    }

    #[test]
    fn a_broadcast_names_what_its_service_knows() {
        let score = r#"{"apns":{"aps":{"timestamp":1,"event":"update","content-state":{}}}}"#;
        let to = |broadcast: &str| {
            let body = format!(r#"{{"notification":{score},"broadcasts":[{broadcast}]}}"#);
            SubmissionBatch::one(body.as_bytes())
                .map(|mut batch| batch.pushes[0].take_recipients().collect::<Vec<_>>())
        };
        let target = |broadcast| to(broadcast).unwrap()[0].broadcast_target().unwrap().clone();
        let channel = r#"{"provider":"apns","app":"a","channel":"dHN0LXNyY2gtY2hubA=="}"#;
        assert_eq!(target(channel), BroadcastTarget::Channel("dHN0LXNyY2gtY2hubA==".into()));
        let topic = r#"{"provider":"fcm","app":"a","topic":"news"}"#;
        assert_eq!(target(topic), BroadcastTarget::Topic("news".into()));
        let condition = r#"{"provider":"fcm","app":"a","condition":"'a' in topics"}"#;
        assert_eq!(target(condition), BroadcastTarget::Condition("'a' in topics".into()));

        let refused = |broadcast| to(broadcast).expect_err("refused").to_string();
        for (broadcast, field) in [
            (r#"{"provider":"apns","app":"a","topic":"news"}"#, "channel:"),
            (r#"{"provider":"apns","app":"a","channel":"a b"}"#, "channel:"),
            (r#"{"provider":"fcm","app":"a","channel":"YQ=="}"#, "topic:"),
            (r#"{"provider":"fcm","app":"a","topic":"a","condition":"'a' in topics"}"#, "topic:"),
            (r#"{"provider":"fcm","app":"a","topic":""}"#, "topic:"),
            (r#"{"provider":"web","app":"a","topic":"a"}"#, "provider:"),
            (r#"{"provider":"apns","app":"a","token":"ab"}"#, "token"),
        ] {
            let error = refused(broadcast);
            assert!(error.contains("broadcasts[0]") && error.contains(field), "{error}");
        }
        let words = r#"{"notification":{"title":"Hi"},"broadcasts":[{"provider":"apns","app":"a","channel":"YQ=="}]}"#;
        let error = self::refused(words);
        assert!(error.contains("notification.apns.aps") && error.contains("timestamp"), "{error}");
    }

    #[test]
    fn a_time_in_milliseconds_is_refused_with_the_seconds() {
        let at = |send_at_s: u64| {
            let body = format!(
                r#"{{"notification":{{"title":"Hi"}},"users":["ada"],"durable":true,"send_at_s":{send_at_s}}}"#
            );
            SubmissionBatch::one(body.as_bytes()).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(at(1_795_276_142), Ok(()));
        let error = at(1_795_276_142_526).unwrap_err();
        assert!(error.contains("milliseconds: 1795276142"), "{error}");
    }

    #[test]
    fn a_device_is_addressed_once_however_it_is_written() {
        let body = r#"{"notification":{"title":"Hi"},"devices":[
            {"provider":"apns","app":"a","tokens":["AB01","ab01","cd"]},
            {"provider":"apns","app":"b","token":"ab01"},
            {"provider":"fcm","app":"f","tokens":["X","x","X"]},
            {"provider":"web","app":"w","token":{"endpoint":"https://p.example/1"}},
            {"provider":"web","app":"w","token":"{ \"endpoint\": \"https://p.example/1\" }"}],
            "broadcasts":[{"provider":"fcm","app":"f","topic":"t"},{"provider":"fcm","app":"f","topic":"t"}]}"#;
        let mut submission = SubmissionBatch::one(body.as_bytes()).unwrap().pushes.remove(0);
        let mut addressed = Addressed::default();
        let to: Vec<Recipient> =
            submission.take_recipients().filter(|to| addressed.add(to)).collect();
        let tokens: Vec<&str> = to.iter().filter_map(Recipient::token).collect();
        let browser = r#"{"endpoint":"https://p.example/1"}"#;
        assert_eq!(tokens, ["AB01", "cd", "ab01", "X", "x", browser]);
        assert_eq!(to.len(), 7);
        let device = |token: &str| Device {
            platform: Platform::Apns,
            app: "a".to_owned(),
            token: token.to_owned(),
        };
        let new = addressed.add_all(vec![device("Ab01"), device("ef")]).unwrap();
        assert_eq!(new, [device("ef")]);
        assert_eq!(addressed.add_all(new).unwrap_err().0, "repeated");
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(refused("{").contains("107: bad request: "));
        assert!(refused(r#"{"notification":{"titel":1}}"#).contains("notification.titel"));
        let none = r#"{"notification":{"title":"Hi"}}"#;
        assert!(refused(none).contains("neither devices nor users nor broadcasts"));
        let empty = r#"{"notification":{"title":"Hi"},"devices":[{"provider":"apns","app":"a"}]}"#;
        assert!(refused(empty).contains("devices[0].token"));
        let silent = r#"{"notification":{},"users":["ada"]}"#;
        assert!(refused(silent).contains("notification.title"));
        let long = "a".repeat(USER_BYTES_MAX + 1);
        let nobody = format!(r#"{{"notification":{{"title":"Hi"}},"users":["ada","{long}"]}}"#);
        assert!(refused(&nobody).contains("users[1]"));
        let foreign = r#"{"notification":{"title":"Hi"},"users":["\u0001acme\u0001ada"]}"#;
        assert!(refused(foreign).contains("users[0]"));
        let void = r#"{"notification":{"title":"Hi"},"devices":[{"provider":"fcm","app":"a","token":""}]}"#;
        assert!(refused(void).contains("devices[0].tokens"));
        let eternal = r#"{"notification":{"title":"Hi"},"users":["ada"],"timeout_ms":0}"#;
        assert!(refused(eternal).contains("timeout_ms"));
        let batch = r#"{"pushes":[{"notification":{"title":"Hi"},"users":["ada"]},
            {"notification":{"title":"Hi","collapse_id":"a b"},"users":["ada"]}]}"#;
        let error = SubmissionBatch::many(batch.as_bytes()).expect_err("refused").to_string();
        assert!(error.contains("pushes[1].notification.collapse_id"), "{error}");
        let tokens = vec!["\"1\""; DEVICES_MAX + 1].join(",");
        let many = format!(
            r#"{{"notification":{{"title":"Hi"}},"devices":[{{"provider":"apns","app":"a","tokens":[{tokens}]}}]}}"#
        );
        assert!(refused(&many).starts_with("106: ") && refused(&many).contains("/api/push/batch"));
    }
}
