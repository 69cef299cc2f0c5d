//! Parses a request as a push and checks its headers.

use super::ledger::parse_uuid;
use super::push_type::PushType;
use super::{Environment, Reason};
use crate::http2::Request;

/// Bounds of a device token's length in hexadecimal digits. Apple's have 64 today and "vary in length".
const TOKEN_DIGITS_MIN: usize = 64;
const TOKEN_DIGITS_MAX: usize = 200;
const COLLAPSE_ID_BYTES_MAX: usize = 64;
const BROADCAST_BYTES_MAX: usize = 5_120;
const TOPIC_BYTES_MAX: usize = 255;

/// The headers of a push, unparsed.
#[derive(Debug, Default)]
pub(crate) struct Fields<'r> {
    method: &'r [u8],
    path: &'r [u8],
    pub(crate) authorization: Option<&'r [u8]>,
    id: Option<&'r [u8]>,
    topic: Option<&'r [u8]>,
    push_type: Option<&'r [u8]>,
    expiration: Option<&'r [u8]>,
    priority: Option<&'r [u8]>,
    collapse_id: Option<&'r [u8]>,
    pub(crate) channel: Option<&'r [u8]>,
    duplicate: bool,
}

/// The recipient of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<'r> {
    Device(&'r [u8]),
    /// All subscribers of a channel of this bundle id.
    Broadcast(&'r [u8]),
}

impl<'r> Target<'r> {
    /// Returns what the ledger records as device token.
    pub(crate) fn name(self) -> &'r [u8] {
        match self {
            Target::Device(token) => token,
            Target::Broadcast(bundle) => bundle,
        }
    }
}

/// A push with valid headers and payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Push<'r> {
    pub(crate) target: Target<'r>,
    pub(crate) topic: &'r str,
}

impl<'r> Fields<'r> {
    pub(crate) fn read(request: &'r Request) -> Fields<'r> {
        let mut fields = Fields::default();
        for (name, value) in request.head.iter() {
            let field = match name {
                b":method" => {
                    fields.method = value;
                    continue;
                }
                b":path" => {
                    fields.path = value;
                    continue;
                }
                b"authorization" => &mut fields.authorization,
                b"apns-id" => &mut fields.id,
                b"apns-topic" => &mut fields.topic,
                b"apns-push-type" => &mut fields.push_type,
                b"apns-expiration" => &mut fields.expiration,
                b"apns-priority" => &mut fields.priority,
                b"apns-collapse-id" => &mut fields.collapse_id,
                b"apns-channel-id" => &mut fields.channel,
                _ => continue,
            };
            fields.duplicate |= field.replace(value).is_some();
        }
        fields
    }

    /// Returns the `apns-id` of the sender, if any; `Err` when it is invalid.
    pub(crate) fn apns_id(&self) -> Result<Option<[u8; 16]>, Reason> {
        self.id.map(|id| parse_uuid(id).ok_or(Reason::BadMessageId)).transpose()
    }

    /// Checks method, path and duplicate headers, which needs no authentication.
    pub(crate) fn target(&self) -> Result<Target<'r>, Reason> {
        if self.method != b"POST" {
            return Err(Reason::MethodNotAllowed);
        }
        let target = if let Some(token) = self.path.strip_prefix(b"/3/device") {
            match token {
                [] | [b'/'] => return Err(Reason::MissingDeviceToken),
                [b'/', token @ ..] => Target::Device(token),
                _ => return Err(Reason::BadPath),
            }
        } else if let Some(bundle) = self.path.strip_prefix(b"/4/broadcasts/apps/") {
            Target::Broadcast(bundle)
        } else {
            return Err(Reason::BadPath);
        };
        if self.duplicate { Err(Reason::DuplicateHeaders) } else { Ok(target) }
    }

    /// Checks the other headers and the payload. `implied_topic` is the topic of the certificate.
    pub(crate) fn push(
        &self,
        target: Target<'r>,
        body: &[u8],
        implied_topic: Option<&'r str>,
    ) -> Result<Push<'r>, Reason> {
        let expiration = self.expiration.map(|text| number(text).ok_or(Reason::BadExpirationDate));
        expiration.transpose()?;
        let priority = match self.priority {
            None => None,
            Some(text) => match number(text) {
                Some(priority @ (1 | 5 | 10)) => Some(priority as u8),
                _ => return Err(Reason::BadPriority),
            },
        };
        if self.collapse_id.is_some_and(|id| id.len() > COLLAPSE_ID_BYTES_MAX) {
            return Err(Reason::BadCollapseId);
        }
        let push_type =
            self.push_type.map(|text| PushType::parse(text).ok_or(Reason::InvalidPushType));
        let push_type = push_type.transpose()?;
        let (topic, bytes_max) = match target {
            Target::Broadcast(bundle) => {
                self.judge_channel(push_type)?;
                let bundle = topic_text(bundle).ok_or(Reason::BadTopic)?;
                (bundle, BROADCAST_BYTES_MAX)
            }
            Target::Device(token) => {
                let topic = match self.topic {
                    Some(topic) => topic_text(topic).ok_or(Reason::BadTopic)?,
                    None => implied_topic.ok_or(Reason::MissingTopic)?,
                };
                // The default is the type that the topic's suffix implies, or alert.
                let push_type = push_type.unwrap_or_else(|| implied_type(topic));
                if !push_type.fits_topic(topic) {
                    return Err(Reason::InvalidPushType);
                }
                if priority.is_some_and(|priority| !push_type.allows_priority(priority)) {
                    return Err(Reason::BadPriority);
                }
                if !is_device_token(token) {
                    return Err(Reason::BadDeviceToken);
                }
                (topic, push_type.payload_bytes_max())
            }
        };
        if body.is_empty() {
            return Err(Reason::PayloadEmpty);
        }
        if body.len() > bytes_max {
            return Err(Reason::PayloadTooLarge);
        }
        Ok(Push { target, topic })
    }

    /// Checks the channel id and push type of a broadcast. Apple's channel ids are base64 of at most 16 bytes.
    fn judge_channel(&self, push_type: Option<PushType>) -> Result<(), Reason> {
        let channel = self.channel.ok_or(Reason::MissingChannelId)?;
        let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(byte);
        if channel.is_empty() || channel.len() > 24 || !channel.iter().all(is_base64) {
            return Err(Reason::BadChannelId);
        }
        match push_type {
            Some(PushType::LiveActivity) => Ok(()),
            _ => Err(Reason::InvalidPushType),
        }
    }
}

/// Returns whether answers carry `apns-unique-id`: only the sandbox sends it.
pub(crate) fn has_unique_id(environment: Environment) -> bool {
    environment == Environment::Sandbox
}

fn implied_type(topic: &str) -> PushType {
    let suffixes = [
        (".voip-ptt", PushType::PushToTalk),
        (".voip", PushType::Voip),
        (".complication", PushType::Complication),
        (".pushkit.fileprovider", PushType::FileProvider),
        (".push-type.liveactivity", PushType::LiveActivity),
        (".location-query", PushType::Location),
    ];
    let found = suffixes.into_iter().find(|(suffix, _)| topic.ends_with(suffix));
    found.map_or(PushType::Alert, |(_, push_type)| push_type)
}

fn is_device_token(token: &[u8]) -> bool {
    (TOKEN_DIGITS_MIN..=TOKEN_DIGITS_MAX).contains(&token.len())
        && token.len().is_multiple_of(2)
        && token.iter().all(u8::is_ascii_hexdigit)
}

fn topic_text(topic: &[u8]) -> Option<&str> {
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if topic.is_empty() || topic.len() > TOPIC_BYTES_MAX || !topic.iter().all(legal) {
        return None;
    }
    std::str::from_utf8(topic).ok()
}

fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
