//! A notification for browsers: JSON for the page's service worker.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{Notification, TTL_S_MAX, Urgency, merge, put, put_all};
use crate::web_push::{self, Options};

/// What a topic may have (RFC 8030 §5.4), and the bytes of a hash that fills it.
const TOPIC_BYTES_MAX: usize = 32;
const TOPIC_HASH_BYTES: usize = 24;

impl Notification {
    /// Returns the message for the page's service worker, and its delivery options.
    pub fn web(&self) -> (Vec<u8>, Options) {
        let mut message = Map::new();
        put(&mut message, "title", &self.title);
        put(&mut message, "subtitle", &self.subtitle);
        put(&mut message, "body", &self.body);
        put(&mut message, "title_loc_key", &self.title_loc_key);
        put_all(&mut message, "title_loc_args", &self.title_loc_args);
        put(&mut message, "body_loc_key", &self.body_loc_key);
        put_all(&mut message, "body_loc_args", &self.body_loc_args);
        put(&mut message, "image", &self.image);
        put(&mut message, "link", &self.link);
        put(&mut message, "category", &self.category);
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
        let options = Options::new(self.ttl_s.unwrap_or(TTL_S_MAX).min(TTL_S_MAX), urgency);
        let options = match &self.collapse_id {
            // `validate` has reported an invalid id; without it the message is not replaced.
            Some(id) => options.clone().with_topic(&topic(id)).unwrap_or(options),
            None => options,
        };
        (message.to_string().into_bytes(), options)
    }
}

/// Returns the topic of a collapse id: itself, or a hash of one that is longer than a topic may be.
fn topic(id: &str) -> String {
    if id.len() <= TOPIC_BYTES_MAX {
        return id.to_owned();
    }
    BASE64_URL_SAFE_NO_PAD.encode(&Sha256::digest(id)[..TOPIC_HASH_BYTES])
}
