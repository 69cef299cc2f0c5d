//! A notification for FCM, which serves Android and, through Apple, iPhones.

use serde_json::{Map, Value, json};

use super::apple::wake;
use super::{Notification, TTL_S_MAX, Urgency, merge, put, put_all};
use crate::apns::PushType;

impl Notification {
    /// Returns FCM's `Message` without its target.
    pub fn fcm(&self, now_s: u64) -> Map<String, Value> {
        let mut message = Map::new();
        let mut shown = Map::new();
        put(&mut shown, "title", &self.title);
        put(&mut shown, "body", &self.body);
        if !shown.is_empty() {
            put(&mut shown, "image", &self.image);
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
        message.insert("android".into(), self.fcm_android());
        message.insert("apns".into(), self.fcm_apns(now_s));
        let mut message = Value::Object(message);
        merge(&mut message, &self.fcm);
        self.set_apple_type(&mut message);
        match message {
            Value::Object(message) => message,
            _ => Map::new(),
        }
    }

    /// Returns `AndroidConfig`.
    fn fcm_android(&self) -> Value {
        let priority = if self.urgency == Urgency::High { "HIGH" } else { "NORMAL" };
        let mut android = json!({ "priority": priority });
        if let Some(ttl_s) = self.ttl_s {
            android["ttl"] = format!("{}s", ttl_s.min(TTL_S_MAX)).into();
        }
        put_into(&mut android, "collapse_key", &self.collapse_id);
        let mut shown = Map::new();
        put(&mut shown, "sound", &self.sound);
        put(&mut shown, "tag", &self.collapse_id);
        put(&mut shown, "click_action", &self.category);
        put(&mut shown, "title_loc_key", &self.title_loc_key);
        put_all(&mut shown, "title_loc_args", &self.title_loc_args);
        put(&mut shown, "body_loc_key", &self.body_loc_key);
        put_all(&mut shown, "body_loc_args", &self.body_loc_args);
        if let Some(badge) = self.badge {
            shown.insert("notification_count".into(), badge.into());
        }
        if !self.is_silent() && !shown.is_empty() {
            android["notification"] = shown.into();
        }
        android
    }

    /// Returns `ApnsConfig`: FCM hands its headers and its payload on to Apple. It writes title and body into them itself.
    fn fcm_apns(&self, now_s: u64) -> Value {
        let mut headers = Map::new();
        if let Some(expiration_s) = self.apns_expiration_s(now_s) {
            headers.insert("apns-expiration".into(), expiration_s.to_string().into());
        }
        put(&mut headers, "apns-collapse-id", &self.collapse_id);
        let mut aps = self.aps();
        let alert = self.alert();
        // What FCM knows no field for replaces what it writes.
        if alert.keys().any(|name| !matches!(name.as_str(), "title" | "body")) {
            aps.insert("alert".into(), alert.into());
        }
        let mut apns = json!({ "headers": headers, "payload": { "aps": aps } });
        if let Some(image) = &self.image {
            apns["fcm_options"] = json!({ "image": image });
        }
        apns
    }

    /// Sets the headers for Apple that follow from what an iPhone is to do with the message, unless `fcm` has them.
    fn set_apple_type(&self, message: &mut Value) {
        let is_shown = |message: &Value| {
            ["title", "body"].iter().any(|part| message["notification"][part].is_string())
        };
        let is_shown = is_shown(message);
        let Some(apns) = message.get_mut("apns").filter(|apns| apns.is_object()) else { return };
        let of_payload = PushType::of_payload(&apns["payload"]);
        let push_type = match is_shown {
            true => PushType::Alert,
            false => of_payload.unwrap_or(PushType::Background),
        };
        if push_type == PushType::Background {
            let payload = apns.get_mut("payload");
            payload.into_iter().for_each(|payload| wake(payload, &self.fcm["apns"]["payload"]));
        }
        let priority = match self.urgency {
            Urgency::High => push_type.priority(),
            // FCM documents 10 and 5.
            Urgency::Normal | Urgency::Low => 5,
        };
        let own = &self.fcm["apns"]["headers"];
        let Some(apns) = apns.as_object_mut() else { return };
        let headers = apns.entry("headers").or_insert_with(|| Map::new().into());
        for (name, value) in [
            ("apns-push-type", push_type.as_str().to_owned()),
            ("apns-priority", priority.to_string()),
        ] {
            if own.get(name).is_none() {
                put_into(headers, name, &Some(value));
            }
        }
    }
}

fn put_into(object: &mut Value, name: &str, value: &Option<String>) {
    if let Some(object) = object.as_object_mut() {
        put(object, name, value);
    }
}
