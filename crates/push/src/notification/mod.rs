//! A notification for Apple, Google and browsers, with overrides for each platform.

mod apple;
mod browser;
mod google;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

pub use self::apple::ApnsMessage;
use crate::apns::PushType;

/// Deserializes a value; `null` means "not given".
fn nullable<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

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

/// How much a notification may interrupt its user (`interruption-level`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterruptionLevel {
    /// Added to the list, without lighting up the screen.
    Passive,
    /// Shown at once; Apple's default.
    Active,
    /// Shown in spite of a focus; the app needs the entitlement.
    TimeSensitive,
    /// Heard in spite of the mute switch; the app needs the entitlement.
    Critical,
}

/// A notification to a user, for any kind of device. `apns`, `fcm` and `web` are merged into the message for that
/// platform (JSON merge patch, RFC 7396: `null` removes a member), so that all features of a platform can be used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Notification {
    /// The first line.
    pub title: Option<String>,
    /// The second line, on Apple's devices.
    pub subtitle: Option<String>,
    /// The text.
    pub body: Option<String>,
    /// The key of a title in the app's own languages, instead of `title`, and what is put into its places.
    pub title_loc_key: Option<String>,
    /// For `title_loc_key`.
    #[serde(deserialize_with = "nullable")]
    pub title_loc_args: Vec<String>,
    /// The same for the second line.
    pub subtitle_loc_key: Option<String>,
    /// For `subtitle_loc_key`.
    #[serde(deserialize_with = "nullable")]
    pub subtitle_loc_args: Vec<String>,
    /// The same for the text.
    pub body_loc_key: Option<String>,
    /// For `body_loc_key`.
    #[serde(deserialize_with = "nullable")]
    pub body_loc_args: Vec<String>,
    /// The URL of a picture.
    pub image: Option<String>,
    /// The name of a sound in the app; `default` is the system's sound.
    pub sound: Option<String>,
    /// The number on the app's icon.
    pub badge: Option<u32>,
    /// The URL to open when the notification is tapped.
    pub link: Option<String>,
    /// The category whose actions the app has registered: its buttons (Apple), `click_action` (Android).
    pub category: Option<String>,
    /// Notifications with the same id are shown as a group, on Apple's devices.
    pub thread_id: Option<String>,
    /// How much it may interrupt, on Apple's devices.
    pub interruption_level: Option<InterruptionLevel>,
    /// Data for the app. A notification that shows nothing, plays no sound and sets no number is silent: it wakes the app in
    /// the background.
    #[serde(deserialize_with = "nullable")]
    pub data: Map<String, Value>,
    /// A later notification with the same id replaces this one; at most 64 letters, digits, `-` and `_`. Web Push, whose
    /// topics have 32, is given a hash of a longer one.
    pub collapse_id: Option<String>,
    /// Seconds for which the service tries to deliver it; 0 delivers it at once or never. Without it the platform
    /// decides; Web Push requires a value, and gets four weeks.
    pub ttl_s: Option<u32>,
    /// The urgency.
    #[serde(deserialize_with = "nullable")]
    pub urgency: Urgency,
    /// Merged into the payload for Apple.
    #[serde(deserialize_with = "nullable")]
    pub apns: Value,
    /// Headers for Apple.
    #[serde(deserialize_with = "nullable")]
    pub apns_options: ApnsOptions,
    /// Merged into FCM's `Message`.
    #[serde(deserialize_with = "nullable")]
    pub fcm: Value,
    /// Merged into the message for the page's service worker.
    #[serde(deserialize_with = "nullable")]
    pub web: Value,
}

/// Headers for Apple, if the defaults of the notification are not suitable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApnsOptions {
    /// `apns-push-type`; by default what the payload asks for ([`PushType::of_payload`]), or `background` if it shows nothing.
    pub push_type: Option<String>,
    /// The app's bundle identifier or the complete topic; by default that of the credential.
    pub topic: Option<String>,
    /// `apns-priority`: 10, 5 or 1; by default from `urgency` and the type.
    pub priority: Option<u8>,
}

/// Why a notification is invalid; the text names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotificationError(&'static str);

const LIVE_ACTIVITY: &str = "liveactivity";
/// What Apple accepts; a UUID fits in.
const COLLAPSE_ID_BYTES_MAX: usize = 64;
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
            return wrong("collapse_id: write 1 to 64 letters, digits, - and _");
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
        for (key, args, text) in [
            (
                &self.title_loc_key,
                &self.title_loc_args,
                "title_loc_args: write `title_loc_key`, too",
            ),
            (
                &self.subtitle_loc_key,
                &self.subtitle_loc_args,
                "subtitle_loc_args: write `subtitle_loc_key`, too",
            ),
            (&self.body_loc_key, &self.body_loc_args, "body_loc_args: write `body_loc_key`, too"),
        ] {
            if key.is_none() && !args.is_empty() {
                return wrong(text);
            }
        }
        if self.is_silent()
            && self.sound.is_none()
            && self.badge.is_none()
            && self.data.is_empty()
            && self.apns.is_null()
            && self.fcm.is_null()
            && self.web.is_null()
        {
            return wrong(
                "title: there is neither title, body, sound, badge nor data; a notification needs one of them",
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

    /// Returns whether there is no text to display.
    fn is_silent(&self) -> bool {
        [
            &self.title,
            &self.subtitle,
            &self.body,
            &self.title_loc_key,
            &self.subtitle_loc_key,
            &self.body_loc_key,
        ]
        .into_iter()
        .all(Option::is_none)
    }
}

fn put(into: &mut Map<String, Value>, name: &str, value: &Option<String>) {
    if let Some(value) = value {
        into.insert(name.to_owned(), value.as_str().into());
    }
}

fn put_all(into: &mut Map<String, Value>, name: &str, values: &[String]) {
    if !values.is_empty() {
        into.insert(name.to_owned(), values.into());
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
