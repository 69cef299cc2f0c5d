//! Broadcast channels, as Apple documents their management ("Sending channel management requests to APNs").

use std::collections::{BTreeMap, HashSet};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use super::Reason;
use crate::http2::Request;

/// Maximum number of channels of one app.
const CHANNELS_MAX: usize = 10_000;

/// The channels of all apps.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    /// Message storage policies by bundle id and channel id.
    of_apps: BTreeMap<String, BTreeMap<String, u8>>,
    deleted: HashSet<String>,
}

/// A channel management request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelRequest<'r> {
    method: &'r [u8],
    bundle: &'r str,
    all: bool,
    channel: Option<&'r str>,
    pub(crate) authorization: Option<&'r [u8]>,
    /// `apns-request-id`.
    pub(crate) id: Option<&'r [u8]>,
}

/// An answer: status, id of a new channel, and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChannelResponse {
    pub(crate) status: u16,
    pub(crate) channel: Option<String>,
    pub(crate) body: String,
}

impl<'r> ChannelRequest<'r> {
    /// Parses a request; `None` if it is not about channel management.
    pub(crate) fn read(request: &'r Request) -> Option<ChannelRequest<'r>> {
        let field = |wanted: &[u8]| {
            request.head.iter().find_map(|(name, value)| (name == wanted).then_some(value))
        };
        let text = |value: &'r [u8]| std::str::from_utf8(value).ok();
        let path = field(b":path").and_then(text)?.strip_prefix("/1/apps/")?;
        let (bundle, what) = path.split_once('/')?;
        let all = match what {
            "channels" => false,
            "all-channels" => true,
            _ => return None,
        };
        Some(ChannelRequest {
            method: field(b":method")?,
            bundle,
            all,
            channel: field(b"apns-channel-id").and_then(text),
            authorization: field(b"authorization"),
            id: field(b"apns-request-id"),
        })
    }
}

impl Channels {
    /// Returns whether a push may go to a channel. Only deleted ones are refused: an unknown one may have been created
    /// elsewhere.
    pub(crate) fn takes(&self, channel: &[u8]) -> bool {
        std::str::from_utf8(channel).is_ok_and(|channel| !self.deleted.contains(channel))
    }

    /// Executes a request. `random` becomes the id of a new channel.
    pub(crate) fn handle(
        &mut self,
        asked: ChannelRequest<'_>,
        body: &[u8],
        random: u64,
    ) -> Result<ChannelResponse, Reason> {
        #[derive(Deserialize)]
        struct NewChannelBody {
            #[serde(rename = "message-storage-policy")]
            policy: u8,
            #[serde(rename = "push-type")]
            push_type: String,
        }
        let done = |status, channel, body| Ok(ChannelResponse { status, channel, body });
        let channels = self.of_apps.entry(asked.bundle.to_owned()).or_default();
        let known = || {
            let channel = asked.channel.ok_or(Reason::MissingChannelId)?;
            if channel.is_empty() { Err(Reason::BadChannelId) } else { Ok(channel) }
        };
        match (asked.method, asked.all) {
            (b"POST", false) => {
                let wanted: NewChannelBody = serde_json::from_slice(body)
                    .map_err(|_| Reason::InvalidMessageStoragePolicy)?;
                if wanted.policy > 1 {
                    return Err(Reason::InvalidMessageStoragePolicy);
                }
                if wanted.push_type != "LiveActivity" {
                    return Err(Reason::InvalidPushType);
                }
                if channels.len() >= CHANNELS_MAX {
                    return Err(Reason::CannotCreateChannelConfig);
                }
                let id = BASE64_STANDARD.encode(random.to_be_bytes());
                channels.insert(id.clone(), wanted.policy);
                done(201, Some(id), String::new())
            }
            (b"GET", true) => {
                let ids: Vec<&String> = channels.keys().collect();
                done(200, None, serde_json::json!({ "channels": ids }).to_string())
            }
            (b"GET", false) => {
                let policy = channels.get(known()?).ok_or(Reason::ChannelNotRegistered)?;
                let body =
                    format!(r#"{{"message-storage-policy":{policy},"push-type":"LiveActivity"}}"#);
                done(200, None, body)
            }
            (b"DELETE", false) => {
                let channel = known()?;
                channels.remove(channel).ok_or(Reason::ChannelNotRegistered)?;
                self.deleted.insert(channel.to_owned());
                done(204, None, String::new())
            }
            _ => Err(Reason::MethodNotAllowed),
        }
    }
}
