//! Apps of the Pusher protocol.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use super::report::Mapping;
use super::source::ImportSource;
use super::variables::has_reference;
use crate::entries::SECRET_BYTES_MIN;
use crate::path::Path;

/// An app of another server.
pub(super) struct App<'a> {
    /// Where it stands, for the report.
    pub(super) key: &'a str,
    pub(super) id: String,
    pub(super) app_key: String,
    pub(super) secret: String,
    /// Options of `pusher.apps.NAME`.
    pub(super) options: Value,
}

impl App<'_> {
    /// Writes the app and its namespace. Without a secret of its own it is left out, since whoever knows the secret is the backend.
    pub(super) fn write(self, source: &mut ImportSource, is_only: bool) {
        let secret_key = format!("{}.secret", self.key);
        let refused = if self.secret.is_empty() {
            Some("it is not set".to_owned())
        } else if has_reference(&self.secret) {
            Some(
                "it refers to a variable that is not known here; give it with --env FILE"
                    .to_owned(),
            )
        } else if self.secret.len() < SECRET_BYTES_MIN {
            Some(format!(
                "it is shorter than {SECRET_BYTES_MIN} bytes, which is refused for apps without exception: make one with \
                 `openssl rand -hex 32`, and give it to the backend in the same minute"
            ))
        } else {
            None
        };
        if let Some(why) = refused {
            let note = format!("{why}; the app is left out, so that nobody connects to it");
            return source.row(&secret_key, Mapping::Closed, note);
        }
        let name: String = match is_only {
            true => "main".to_owned(),
            false => {
                self.id.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
            }
        };
        let to = Path::of("pusher.apps").join(&name);
        source.set(&Path::of("channel.namespaces").join(&name), json!({}));
        let mut app = json!({
            "id": self.id, "key": self.app_key, "secret": self.secret, "namespace": name,
        });
        for (key, value) in self.options.as_object().into_iter().flatten() {
            app[key] = value.clone();
        }
        source.set(&to, app);
        source.row(self.key, Mapping::Taken, format!("`{to}`, with the namespace `{name}`"));
    }
}

/// Sets the address of clients. Without an app nobody keeps others out, so it is for this machine alone.
pub(super) fn listen(source: &mut ImportSource, key: &str, host: Option<&str>, port: u16) {
    let has_app = source.out.pointer("/pusher/apps").is_some();
    let ip = match host {
        None | Some("") => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        Some("localhost") => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        Some(host) => host.trim_matches(['[', ']']).parse().ok(),
    };
    let allowed = ip.filter(|ip| has_app || ip.is_loopback());
    let to = SocketAddr::new(allowed.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), port);
    source.set(&Path::of("server.client_addr"), to.to_string());
    match allowed {
        Some(_) => source.row(key, Mapping::Taken, format!("`server.client_addr` is {to}")),
        None => {
            let note = format!("`server.client_addr` is {to}, for this machine alone");
            source.row(key, Mapping::Closed, note);
        }
    }
}
