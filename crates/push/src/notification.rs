//! A notification for Apple, Google and browsers, with overrides for each platform.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::apns::PushType;
use crate::web_push;

/// How soon a notification should be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Urgency {
    /// At once, waking the device (`apns-priority` 10, Android `HIGH`, Web Push `high`).
    #[default]
    High,
    /// When it suits the device (5, `NORMAL`, `normal`).
    Normal,
    /// When it costs the device nothing (1, `NORMAL`, `very-low`).
    Low,
}

/// A notification to a user, for any kind of device. `apns`, `fcm` and `web` are merged into the message for that
/// platform (JSON merge patch, RFC 7396: `null` removes a member), so that all features of a platform can be used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Notification {
    /// The first line.
    pub title: Option<String>,
    /// The text.
    pub body: Option<String>,
    /// The URL of a picture.
    pub image: Option<String>,
    /// The name of a sound in the app; `default` is the system's sound.
    pub sound: Option<String>,
    /// The number on the app's icon.
    pub badge: Option<u32>,
    /// The URL to open when the notification is tapped.
    pub link: Option<String>,
    /// Data for the app. A notification with neither title nor body is silent: it wakes the app in the background.
    pub data: Map<String, Value>,
    /// A later notification with the same id replaces this one; at most 32 letters, digits, `-` and `_`, which every
    /// platform accepts.
    pub collapse_id: Option<String>,
    /// Seconds for which the service tries to deliver it; 0 delivers it at once or never. Without it the platform
    /// decides; Web Push requires a value, and gets four weeks.
    pub ttl_s: Option<u32>,
    /// The urgency.
    pub urgency: Urgency,
    /// Merged into the payload for Apple.
    pub apns: Value,
    /// Headers for Apple.
    pub apns_options: ApnsOptions,
    /// Merged into FCM's `Message`.
    pub fcm: Value,
    /// Merged into the message for the page's service worker.
    pub web: Value,
}

/// Headers for Apple, if the defaults of the notification are not suitable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApnsOptions {
    /// `apns-push-type`; by default `alert`, or `background` for a silent notification.
    pub push_type: Option<String>,
    /// The app's bundle identifier or the complete topic; by default that of the credential.
    pub topic: Option<String>,
    /// `apns-priority`: 10, 5 or 1; by default from `urgency`.
    pub priority: Option<u8>,
}

/// Why a notification is invalid; the text names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotificationError(&'static str);

/// A notification, encoded for Apple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApnsMessage {
    /// The payload.
    pub payload: Vec<u8>,
    /// `apns-push-type`.
    pub push_type: &'static str,
    /// The topic, if it is not the credential's.
    pub topic: Option<String>,
    /// `apns-priority`.
    pub priority: u8,
    /// `apns-expiration`, seconds since 1970; 0 is at once or never.
    pub expiration_s: Option<u64>,
    /// `apns-collapse-id`.
    pub collapse_id: Option<String>,
}

const LIVE_ACTIVITY: &str = "liveactivity";
const COLLAPSE_ID_BYTES_MAX: usize = 32;
/// The longest time that FCM and push services of browsers store a message: four weeks.
const TTL_S_MAX: u32 = 2_419_200;

impl Notification {
    /// Checks the fields that apply to every platform.
    ///
    /// # Errors
    ///
    /// Names the invalid field and its valid values.
    pub fn validate(&self) -> Result<(), NotificationError> {
        let wrong = |text| Err(NotificationError(text));
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if let Some(id) = &self.collapse_id
            && (id.is_empty() || id.len() > COLLAPSE_ID_BYTES_MAX || !id.bytes().all(legal))
        {
            return wrong("collapse_id: write 1 to 32 letters, digits, - and _");
        }
        for (part, text) in [
            (&self.apns, "apns: write an object, to be merged into the payload"),
            (&self.fcm, "fcm: write an object, to be merged into the message"),
            (&self.web, "web: write an object, to be merged into what the service worker is given"),
        ] {
            if !part.is_null() && !part.is_object() {
                return wrong(text);
            }
        }
        if let Some(name) = &self.apns_options.push_type
            && name.parse::<PushType>().is_err()
        {
            return wrong(
                "apns_options.push_type: write alert, background, location, voip, complication, fileprovider, \
                 mdm, liveactivity, pushtotalk, widgets or controls",
            );
        }
        if !matches!(self.apns_options.priority, None | Some(10 | 5 | 1)) {
            return wrong("apns_options.priority: write 10, 5 or 1");
        }
        if self.data.contains_key("aps") {
            return wrong("data: `aps` is Apple's own; what belongs there goes into `apns`");
        }
        let visible = self.title.is_some() || self.body.is_some();
        if !visible
            && self.data.is_empty()
            && self.apns.is_null()
            && self.fcm.is_null()
            && self.web.is_null()
        {
            return wrong(
                "title: there is neither title, body nor data; a notification needs one of them",
            );
        }
        Ok(())
    }

    /// Checks the additional requirements of Apple's broadcast channels: they update Live Activities, and a phone
    /// ignores an invalid update.
    ///
    /// # Errors
    ///
    /// Names the invalid field and its valid values.
    pub fn validate_broadcast(&self) -> Result<(), NotificationError> {
        if !matches!(self.apns_options.push_type.as_deref(), None | Some(LIVE_ACTIVITY)) {
            return Err(NotificationError(
                "apns_options.push_type: a broadcast is of type liveactivity; leave it out",
            ));
        }
        let aps = &self.apns["aps"];
        if !aps["timestamp"].is_u64() || !aps["event"].is_string() {
            return Err(NotificationError(
                "apns.aps: a broadcast updates Live Activities: write `timestamp` (seconds since 1970), `event` \
                 (\"update\" or \"end\") and `content-state`",
            ));
        }
        Ok(())
    }

    /// Encodes the notification for a broadcast channel of Apple: an update of Live Activities, stored only if
    /// `ttl_s` is set. There is no collapse id: a later update replaces an earlier one by its `timestamp`.
    pub fn apns_broadcast(&self, now_s: u64) -> ApnsMessage {
        let mut live = self.clone();
        live.apns_options.push_type = Some(LIVE_ACTIVITY.to_owned());
        live.collapse_id = None;
        let message = live.apns(now_s);
        ApnsMessage { expiration_s: message.expiration_s.or(Some(0)), ..message }
    }

    /// Encodes the notification for Apple.
    pub fn apns(&self, now_s: u64) -> ApnsMessage {
        let silent = self.is_silent();
        let push_type = match self.apns_options.push_type.as_deref().map(str::parse::<PushType>) {
            Some(Ok(push_type)) => push_type,
            _ if silent => PushType::Background,
            _ => PushType::Alert,
        };
        let background = push_type == PushType::Background;
        let mut aps = Map::new();
        if background {
            aps.insert("content-available".into(), 1.into());
        }
        if !silent {
            let mut alert = Map::new();
            put(&mut alert, "title", &self.title);
            put(&mut alert, "body", &self.body);
            aps.insert("alert".into(), alert.into());
            put(&mut aps, "sound", &self.sound);
        }
        if let Some(badge) = self.badge {
            aps.insert("badge".into(), badge.into());
        }
        if self.image.is_some() {
            // An extension of the app fetches the picture.
            aps.insert("mutable-content".into(), 1.into());
        }
        let mut payload = self.data.clone();
        put(&mut payload, "image", &self.image);
        put(&mut payload, "link", &self.link);
        payload.insert("aps".into(), aps.into());
        let mut payload = Value::Object(payload);
        merge(&mut payload, &self.apns);
        ApnsMessage {
            payload: payload.to_string().into_bytes(),
            push_type: push_type.as_str(),
            topic: self.apns_options.topic.clone(),
            priority: self.apns_options.priority.unwrap_or(match (background, self.urgency) {
                (_, Urgency::Low) => 1,
                (false, Urgency::High) => 10,
                (true, Urgency::High) | (_, Urgency::Normal) => 5,
            }),
            expiration_s: self.ttl_s.map(|ttl_s| match ttl_s {
                0 => 0,
                ttl_s => now_s + u64::from(ttl_s),
            }),
            collapse_id: self.collapse_id.clone(),
        }
    }

    /// Returns FCM's `Message` without its target.
    pub fn fcm(&self) -> Map<String, Value> {
        let mut message = Map::new();
        let mut shown = Map::new();
        put(&mut shown, "title", &self.title);
        put(&mut shown, "body", &self.body);
        put(&mut shown, "image", &self.image);
        if !self.is_silent() {
            message.insert("notification".into(), shown.into());
        }
        // FCM transports strings only.
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut data: Map<String, Value> =
            self.data.iter().map(|(name, value)| (name.clone(), text(value).into())).collect();
        put(&mut data, "link", &self.link);
        if !data.is_empty() {
            message.insert("data".into(), data.into());
        }
        let priority = if self.urgency == Urgency::High { "HIGH" } else { "NORMAL" };
        let mut android = json!({ "priority": priority });
        if let Some(ttl_s) = self.ttl_s {
            android["ttl"] = format!("{}s", ttl_s.min(TTL_S_MAX)).into();
        }
        if let Some(id) = &self.collapse_id {
            android["collapse_key"] = id.as_str().into();
        }
        let mut android_shown = Map::new();
        put(&mut android_shown, "sound", &self.sound);
        put(&mut android_shown, "tag", &self.collapse_id);
        if let Some(badge) = self.badge {
            android_shown.insert("notification_count".into(), badge.into());
        }
        if !self.is_silent() && !android_shown.is_empty() {
            android["notification"] = android_shown.into();
        }
        message.insert("android".into(), android);
        let mut message = Value::Object(message);
        merge(&mut message, &self.fcm);
        match message {
            Value::Object(message) => message,
            _ => Map::new(),
        }
    }

    /// Returns the message for the page's service worker, and its delivery options.
    pub fn web(&self) -> (Vec<u8>, web_push::Options) {
        let mut message = Map::new();
        put(&mut message, "title", &self.title);
        put(&mut message, "body", &self.body);
        put(&mut message, "image", &self.image);
        put(&mut message, "link", &self.link);
        put(&mut message, "tag", &self.collapse_id);
        if let Some(badge) = self.badge {
            message.insert("badge".into(), badge.into());
        }
        if !self.data.is_empty() {
            message.insert("data".into(), self.data.clone().into());
        }
        let mut message = Value::Object(message);
        merge(&mut message, &self.web);
        let urgency = match self.urgency {
            Urgency::High => web_push::Urgency::High,
            Urgency::Normal => web_push::Urgency::Normal,
            Urgency::Low => web_push::Urgency::VeryLow,
        };
        let options =
            web_push::Options::new(self.ttl_s.unwrap_or(TTL_S_MAX).min(TTL_S_MAX), urgency);
        let options = match &self.collapse_id {
            // `validate` has reported an invalid id; without it the message is not replaced.
            Some(id) => options.clone().with_topic(id).unwrap_or(options),
            None => options,
        };
        (message.to_string().into_bytes(), options)
    }

    /// Returns whether there is nothing to display.
    fn is_silent(&self) -> bool {
        self.title.is_none() && self.body.is_none()
    }
}

fn put(into: &mut Map<String, Value>, name: &str, value: &Option<String>) {
    if let Some(value) = value {
        into.insert(name.to_owned(), value.as_str().into());
    }
}

/// Applies a JSON merge patch (RFC 7396 §2), except that a patch of `null` as a whole changes nothing.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else { return };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (name, value) in patch {
        match value {
            Value::Null => {
                target.remove(name);
            }
            Value::Object(_) => merge(target.entry(name.clone()).or_insert(Value::Null), value),
            value => {
                target.insert(name.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notification(json: Value) -> Notification {
        let notification: Notification = serde_json::from_value(json).unwrap();
        notification.validate().unwrap();
        notification
    }

    #[test]
    fn one_notification_is_spelled_for_each_platform() {
        let notification = notification(json!({
            "title": "Hi", "body": "there", "badge": 3, "link": "https://a.example/x",
            "data": { "room": 7 }, "collapse_id": "room-7", "ttl_s": 60
        }));
        let apns = notification.apns(1_000);
        let payload: Value = serde_json::from_slice(&apns.payload).unwrap();
        let expected = json!({
            "aps": { "alert": { "title": "Hi", "body": "there" }, "badge": 3 },
            "link": "https://a.example/x", "room": 7
        });
        assert_eq!(payload, expected);
        assert_eq!((apns.push_type, apns.priority, apns.expiration_s), ("alert", 10, Some(1_060)));
        assert_eq!(apns.collapse_id.as_deref(), Some("room-7"));

        let expected = json!({
            "notification": { "title": "Hi", "body": "there" },
            "data": { "room": "7", "link": "https://a.example/x" },
            "android": {
                "priority": "HIGH", "ttl": "60s", "collapse_key": "room-7",
                "notification": { "tag": "room-7", "notification_count": 3 }
            }
        });
        assert_eq!(Value::Object(notification.fcm()), expected);

        let (message, options) = notification.web();
        let message: Value = serde_json::from_slice(&message).unwrap();
        let expected = json!({
            "title": "Hi", "body": "there", "badge": 3, "link": "https://a.example/x",
            "tag": "room-7", "data": { "room": 7 }
        });
        assert_eq!(message, expected);
        let wanted = web_push::Options::new(60, web_push::Urgency::High).with_topic("room-7");
        assert_eq!(options, wanted.unwrap());
    }

    #[test]
    fn a_platform_is_sent_what_it_alone_is_to_get() {
        let notification = notification(json!({
            "title": "Hi", "sound": "default",
            "apns": { "aps": { "sound": { "name": "alarm", "critical": 1 }, "thread-id": "t" } },
            "fcm": { "android": { "ttl": "5s" }, "notification": null },
            "web": { "actions": ["reply"] }
        }));
        let payload: Value = serde_json::from_slice(&notification.apns(0).payload).unwrap();
        assert_eq!(payload["aps"]["sound"], json!({ "name": "alarm", "critical": 1 }));
        assert_eq!(payload["aps"]["alert"]["title"], "Hi");
        let fcm = notification.fcm();
        assert!(!fcm.contains_key("notification") && fcm["android"]["ttl"] == "5s");
        assert_eq!(fcm["android"]["priority"], "HIGH");
        let web: Value = serde_json::from_slice(&notification.web().0).unwrap();
        assert_eq!(web["actions"], json!(["reply"]));
    }

    #[test]
    fn without_anything_to_see_it_wakes_the_app_and_never_urgently() {
        let silent = notification(json!({ "data": { "sync": true } }));
        let apns = silent.apns(0);
        assert_eq!((apns.push_type, apns.priority, apns.expiration_s), ("background", 5, None));
        assert!(!silent.fcm().contains_key("notification"));
    }

    #[test]
    fn only_a_background_push_says_that_there_is_content() {
        let live = notification(json!({
            "apns": { "aps": { "timestamp": 7, "event": "update", "content-state": { "goals": 1 } } },
            "apns_options": { "push_type": "liveactivity" }
        }));
        let apns = live.apns(0);
        let payload: Value = serde_json::from_slice(&apns.payload).unwrap();
        let expected =
            json!({ "timestamp": 7, "event": "update", "content-state": { "goals": 1 } });
        assert_eq!((&payload["aps"], apns.priority), (&expected, 10));
    }

    #[test]
    fn a_broadcast_is_a_live_activity_that_is_not_kept_unless_that_is_said() {
        let score = notification(json!({
            "collapse_id": "match-7",
            "apns": { "aps": { "timestamp": 7, "event": "update", "content-state": { "goals": 1 } } }
        }));
        score.validate_broadcast().unwrap();
        let sent = score.apns_broadcast(1_000);
        assert_eq!(
            (sent.push_type, sent.collapse_id, sent.expiration_s),
            ("liveactivity", None, Some(0))
        );
        let kept = Notification { ttl_s: Some(60), ..score.clone() };
        assert_eq!(kept.apns_broadcast(1_000).expiration_s, Some(1_060));
        let words = notification(json!({ "title": "Hi" }));
        assert!(words.validate_broadcast().unwrap_err().to_string().starts_with("apns.aps"));
        let mut alert = score;
        alert.apns_options.push_type = Some("alert".to_owned());
        assert!(alert.validate_broadcast().unwrap_err().to_string().starts_with("apns_options"));
    }

    #[test]
    fn no_service_is_asked_to_keep_a_message_for_longer_than_it_may() {
        let eternal = notification(json!({ "title": "Hi", "ttl_s": u32::MAX }));
        assert_eq!(eternal.fcm()["android"]["ttl"], "2419200s");
        let expected = web_push::Options::new(TTL_S_MAX, web_push::Urgency::High);
        assert_eq!(eternal.web().1, expected);
    }

    #[test]
    fn a_fault_is_named_with_its_field() {
        for (json, field) in [
            (json!({}), "title"),
            (json!({ "title": "x", "collapse_id": "a b" }), "collapse_id"),
            (json!({ "title": "x", "apns": [] }), "apns"),
            (json!({ "data": { "aps": {} } }), "data"),
        ] {
            let parsed: Notification = serde_json::from_value(json).unwrap();
            assert!(parsed.validate().unwrap_err().to_string().starts_with(field));
        }
        let unknown = serde_json::from_value::<Notification>(json!({ "titel": "x" })).unwrap_err();
        assert!(unknown.to_string().contains("titel"));
    }
}
