//! A notification for Apple. Type and priority follow from the payload as it is sent, with what was merged into it.

use serde_json::{Map, Value};

use super::{LIVE_ACTIVITY, Notification, Urgency, merge, put, put_all};
use crate::apns::PushType;

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

impl Notification {
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
        let mut aps = self.aps();
        let alert = self.alert();
        if !alert.is_empty() {
            aps.insert("alert".into(), alert.into());
        }
        let mut payload = self.data.clone();
        put(&mut payload, "image", &self.image);
        put(&mut payload, "link", &self.link);
        payload.insert("aps".into(), aps.into());
        let mut payload = Value::Object(payload);
        merge(&mut payload, &self.apns);
        let named = self.apns_options.push_type.as_deref().and_then(|name| name.parse().ok());
        let push_type = named.or_else(|| PushType::of_payload(&payload));
        let push_type = push_type.unwrap_or(PushType::Background);
        if push_type == PushType::Background {
            wake(&mut payload, &self.apns);
        }
        ApnsMessage {
            payload: payload.to_string().into_bytes(),
            push_type: push_type.as_str(),
            topic: self.apns_options.topic.clone(),
            priority: self.apns_options.priority.unwrap_or(match self.urgency {
                Urgency::High => push_type.priority(),
                Urgency::Normal => 5,
                Urgency::Low => 1,
            }),
            expiration_s: self.apns_expiration_s(now_s),
            collapse_id: self.collapse_id.clone(),
        }
    }

    /// Returns `apns-expiration`.
    pub(super) fn apns_expiration_s(&self, now_s: u64) -> Option<u64> {
        self.ttl_s.map(|ttl_s| if ttl_s == 0 { 0 } else { now_s + u64::from(ttl_s) })
    }

    /// Returns the members of `aps`, without `alert`.
    pub(super) fn aps(&self) -> Map<String, Value> {
        let mut aps = Map::new();
        put(&mut aps, "sound", &self.sound);
        if let Some(badge) = self.badge {
            aps.insert("badge".into(), badge.into());
        }
        put(&mut aps, "category", &self.category);
        put(&mut aps, "thread-id", &self.thread_id);
        if let Some(level) = self.interruption_level {
            aps.insert("interruption-level".into(), serde_json::json!(level));
        }
        if self.image.is_some() {
            // An extension of the app fetches the picture.
            aps.insert("mutable-content".into(), 1.into());
        }
        aps
    }

    /// Returns `alert`.
    pub(super) fn alert(&self) -> Map<String, Value> {
        let mut alert = Map::new();
        put(&mut alert, "title", &self.title);
        put(&mut alert, "subtitle", &self.subtitle);
        put(&mut alert, "body", &self.body);
        put(&mut alert, "title-loc-key", &self.title_loc_key);
        put_all(&mut alert, "title-loc-args", &self.title_loc_args);
        put(&mut alert, "subtitle-loc-key", &self.subtitle_loc_key);
        put_all(&mut alert, "subtitle-loc-args", &self.subtitle_loc_args);
        put(&mut alert, "loc-key", &self.body_loc_key);
        put_all(&mut alert, "loc-args", &self.body_loc_args);
        alert
    }
}

/// Makes a payload wake the app, unless `patch` decides that itself.
pub(super) fn wake(payload: &mut Value, patch: &Value) {
    let decided =
        patch.get("aps").is_some_and(|aps| aps.is_null() || aps.get("content-available").is_some());
    if decided {
        return;
    }
    let Some(payload) = payload.as_object_mut() else { return };
    let aps = payload.entry("aps").or_insert_with(|| Map::new().into());
    if let Some(aps) = aps.as_object_mut() {
        aps.insert("content-available".into(), 1.into());
    }
}
