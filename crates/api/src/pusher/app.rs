//! Apps by name, key and id, and verification of their signatures.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use dunlin_config::{Map, PusherApp};
use dunlin_hub::tenant;
use ring::hmac;

/// One app, prepared for the data plane.
pub struct App {
    /// Its name in `pusher.apps`.
    pub name: Arc<str>,
    /// Its settings.
    pub config: Arc<PusherApp>,
    /// Prefix of its channel and user names in the hub; empty for an app without a tenant. As a user name it denotes a
    /// client that has not signed in.
    pub prefix: String,
    key: hmac::Key,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All apps of one revision.
#[derive(Default)]
pub struct Apps {
    by_name: HashMap<Arc<str>, Arc<App>>,
    by_key: HashMap<Arc<str>, Arc<App>>,
    by_id: HashMap<Arc<str>, Arc<App>>,
}

impl Apps {
    /// Prepares the apps of the settings.
    pub fn of(apps: &Map<PusherApp>) -> Apps {
        let mut all = Apps::default();
        for (name, config) in apps.iter_shared() {
            // Validation has already rejected an app without a secret.
            let Some(secret) = &config.secret else { continue };
            let key = hmac::Key::new(hmac::HMAC_SHA256, secret.reveal().as_bytes());
            let tenant = config.tenant.as_deref();
            let prefix = tenant.map(|tenant| tenant::qualify(tenant, "")).unwrap_or_default();
            let app = App { name: Arc::clone(name), config: Arc::clone(config), prefix, key };
            let app = Arc::new(app);
            all.by_name.insert(Arc::clone(name), Arc::clone(&app));
            all.by_key.insert(Arc::clone(&config.key), Arc::clone(&app));
            all.by_id.insert(Arc::clone(&config.id), app);
        }
        all
    }

    /// Returns the app of this name in `pusher.apps`.
    pub fn by_name(&self, name: &str) -> Option<&Arc<App>> {
        self.by_name.get(name)
    }

    /// Returns the app with this key.
    pub fn by_key(&self, key: &str) -> Option<&Arc<App>> {
        self.by_key.get(key)
    }

    /// Returns the app with this id.
    pub fn by_id(&self, id: &str) -> Option<&Arc<App>> {
        self.by_id.get(id)
    }
}

impl App {
    /// Returns the hub's name of a channel.
    pub fn channel(&self, name: &str) -> String {
        format!("{}{}:{name}", self.prefix, self.config.namespace)
    }

    /// Returns the hub's pattern for the channel of this name; with `*` appended it matches all channels whose names
    /// begin with it.
    pub fn pattern(&self, name: &str) -> String {
        let mut pattern = String::new();
        for char in self.channel(name).chars() {
            if "*?[]{}\\".contains(char) {
                pattern.push('\\');
            }
            pattern.push(char);
        }
        pattern
    }

    /// Returns the hub's name of a user. Users of different apps are distinct, also from users of tokens.
    pub fn user(&self, id: &str) -> String {
        format!("{}{}/{id}", self.prefix, self.config.id)
    }

    /// Whether `auth` is `KEY:SIGNATURE` with this app's key and signature of `text`.
    pub fn has_authorized(&self, auth: &str, text: &str) -> bool {
        auth.split_once(':').is_some_and(|(key, signature)| {
            *key == *self.config.key && self.has_signed(signature, text)
        })
    }

    /// Whether `signature` is this app's signature of `text`: HMAC-SHA256 in hexadecimal, compared in constant time.
    pub(crate) fn has_signed(&self, signature: &str, text: &str) -> bool {
        decode_hex(signature)
            .is_some_and(|tag| hmac::verify(&self.key, text.as_bytes(), &tag).is_ok())
    }
}

fn decode_hex(text: &str) -> Option<[u8; 32]> {
    let digits: &[u8; 64] = text.as_bytes().try_into().ok()?;
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use dunlin_config::Secret;

    use super::*;

    fn app() -> Arc<App> {
        let config = PusherApp {
            id: "3".into(),
            key: "278d425bdf160c739803".into(),
            secret: Some(Secret::new("7ad3773142a6692b25b8")),
            namespace: "chat".into(),
            ..PusherApp::default()
        };
        let apps: Map<PusherApp> = [("shop", config)].into_iter().collect();
        let apps = Apps::of(&apps);
        assert!(apps.by_name("shop").is_some() && apps.by_id("3").is_some());
        assert!(apps.by_key("3").is_none() && apps.by_id("shop").is_none());
        Arc::clone(apps.by_key("278d425bdf160c739803").unwrap())
    }

    #[test]
    fn the_signatures_of_pushers_documentation_are_right() {
        let app = app();
        let private = "58df8b0c36d6982b82c3ecf6b4662e34fe8c25bba48f5369f135bf843651c3a4";
        let text = "1234.1234:private-foobar";
        assert!(app.has_signed(private, text));
        assert!(app.has_authorized(&format!("278d425bdf160c739803:{private}"), text));
        let presence = "31935e7d86dba64c2a90aed31fdc61869f9b22ba9d8863bba239c03ca481bc80";
        let data = r#"{"user_id":10,"user_info":{"name":"Mr. Channels"}}"#;
        assert!(app.has_signed(presence, &format!("1234.1234:presence-foobar:{data}")));
    }

    #[test]
    fn malformed_signature_is_refused() {
        let app = app();
        let signature = "58df8b0c36d6982b82c3ecf6b4662e34fe8c25bba48f5369f135bf843651c3a4";
        let text = "1234.1234:private-foobar";
        for (shown, text) in [
            (format!("278d425bdf160c739803:{signature}"), "1234.1235:private-foobar"),
            (format!("other:{signature}"), text),
            (signature.to_owned(), text),
            (format!("278d425bdf160c739803:{}", &signature[1..]), text),
            (format!("278d425bdf160c739803:{signature}0"), text),
            (format!("278d425bdf160c739803:{}", "é".repeat(32)), text),
            (String::new(), text),
        ] {
            assert!(!app.has_authorized(&shown, text), "{shown}");
        }
    }

    #[test]
    fn channels_and_users_of_an_app_have_names_of_their_own() {
        let app = app();
        assert_eq!(app.pattern("a*"), "chat:a\\*");
        assert_eq!(
            (app.channel("private-a"), app.user("a/b")),
            ("chat:private-a".into(), "3/a/b".into())
        );
    }
}
