//! Encoding of events as JSON, in the format of `docs/operating/webhooks.md`. Fields may be added but not removed.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dunlin_hub::{PayloadFormat, Publication, UnsubscribeCause, tenant};

use crate::event::{HookEvent, HookEventBody};
use crate::queue::Missed;

/// Why events were dropped: the `reason` of a `missed` event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// They occurred faster than the dispatcher handled them.
    Overflow,
    /// The hook's queue was full.
    QueueFull,
    /// A backend rejected them.
    Rejected,
    /// They were sent `attempts_max` times.
    GivenUp,
}

impl DropReason {
    fn name(self) -> &'static str {
        match self {
            DropReason::Overflow => "overflow",
            DropReason::QueueFull => "queue_full",
            DropReason::Rejected => "rejected",
            DropReason::GivenUp => "given_up",
        }
    }
}

/// Encodes events as JSON, each with a unique id.
#[derive(Debug)]
pub struct EventEncoder {
    run: Box<str>,
    node: Box<str>,
}

impl EventEncoder {
    /// Creates an encoder for one run of a process. `run` is different in each run and needs no JSON escaping; `node`
    /// is the name of this node.
    pub fn new(run: &str, node: &str) -> EventEncoder {
        EventEncoder { run: run.into(), node: node.into() }
    }

    /// Returns the id of an event or request of this process, by its number.
    pub(crate) fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.run)
    }

    /// Encodes an event. `None` for [`HookEventBody::Missed`], which is not sent alone.
    pub(crate) fn encode(&self, number: u64, event: &HookEvent) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(256);
        let name = match &event.body {
            HookEventBody::Connect { .. } => "connect",
            HookEventBody::Disconnect { .. } => "disconnect",
            HookEventBody::Subscribe { .. } => "subscribe",
            HookEventBody::Unsubscribe { .. } => "unsubscribe",
            HookEventBody::Publish { .. } => "publish",
            HookEventBody::PushOutcome { .. } => "push_outcome",
            body => channel_event_name(body)?,
        };
        self.begin(&mut out, number, name, event.unix_ms);
        if let Some(tenant) = event.body.tenant() {
            text(&mut out, "tenant", tenant);
        }
        match &event.body {
            HookEventBody::Connect { session, user, transport } => {
                client(&mut out, session, user);
                text(&mut out, "transport", transport);
            }
            HookEventBody::Disconnect { session, user, code, reason } => {
                client(&mut out, session, user);
                integer(&mut out, "code", u64::from(*code));
                text(&mut out, "reason", reason);
            }
            HookEventBody::Subscribe { session, user, channel } => {
                client(&mut out, session, user);
                text(&mut out, "channel", tenant::bare(channel));
            }
            HookEventBody::Unsubscribe { session, user, channel, cause } => {
                client(&mut out, session, user);
                text(&mut out, "channel", tenant::bare(channel));
                text(
                    &mut out,
                    "reason",
                    match cause {
                        UnsubscribeCause::Client => "client",
                        UnsubscribeCause::Server => "server",
                        UnsubscribeCause::Disconnect => "disconnect",
                        UnsubscribeCause::InsufficientState => "insufficient_state",
                    },
                );
            }
            HookEventBody::Publish { channel, epoch, publication } => {
                if let Some(info) = publication.info() {
                    client(&mut out, &info.client, &info.user);
                }
                text(&mut out, "channel", tenant::bare(channel));
                if publication.offset() > 0 {
                    integer(&mut out, "offset", publication.offset());
                    text(&mut out, "epoch", &epoch.to_string());
                }
                if !publication.tags().is_empty() {
                    out.extend_from_slice(b",\"tags\":{");
                    for (at, (name, value)) in publication.tags().iter().enumerate() {
                        if at > 0 {
                            out.push(b',');
                        }
                        quote(&mut out, name);
                        out.push(b':');
                        quote(&mut out, value);
                    }
                    out.push(b'}');
                }
                payload(&mut out, publication.data(), publication.format());
            }
            HookEventBody::Occupied { channel, .. } => text(&mut out, "channel", channel),
            HookEventBody::Member { channel, user, .. } => {
                text(&mut out, "user", tenant::bare(user));
                text(&mut out, "channel", tenant::bare(channel));
            }
            HookEventBody::ClientEvent { channel, publication } => {
                if let Some(info) = publication.info() {
                    client(&mut out, &info.client, &info.user);
                }
                text(&mut out, "channel", tenant::bare(channel));
                text(&mut out, "name", event_name(publication));
                payload(&mut out, publication.data(), publication.format());
            }
            HookEventBody::PushOutcome { outcome } => {
                // The outcome is one line of JSON.
                out.extend_from_slice(b",\"data\":");
                out.extend_from_slice(outcome.trim_ascii_end());
            }
            HookEventBody::Missed { .. } => {}
        }
        out.push(b'}');
        Some(out)
    }

    /// Encodes an event in Pusher's format, with the channel's name without its namespace. `None` for events that
    /// Pusher does not have.
    pub(crate) fn encode_for_pusher(event: &HookEvent) -> Option<Vec<u8>> {
        let name = channel_event_name(&event.body)?;
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(b"{\"name\":");
        quote(&mut out, name);
        let channel = event.body.channel().map_or("", |channel| pusher_name(channel));
        text(&mut out, "channel", tenant::bare(channel));
        match &event.body {
            HookEventBody::Member { user, .. } => text(&mut out, "user_id", user),
            HookEventBody::ClientEvent { publication, .. } => {
                text(&mut out, "event", event_name(publication));
                text(&mut out, "data", &String::from_utf8_lossy(publication.data()));
                let info = publication.info().filter(|_| channel.starts_with("presence-"));
                if let Some(info) = info {
                    text(&mut out, "user_id", &info.user);
                }
            }
            _ => {}
        }
        out.push(b'}');
        Some(out)
    }

    /// Encodes a `missed` event in place of dropped events.
    pub(crate) fn encode_missed(
        &self,
        out: &mut Vec<u8>,
        number: u64,
        unix_ms: u64,
        missed: &Missed,
    ) {
        self.begin(out, number, "missed", unix_ms);
        integer(out, "count", missed.count);
        text(out, "reason", missed.reason.name());
        out.extend_from_slice(missed.owner.as_ref().map_or(&[], |owner| &owner.json));
        out.push(b'}');
    }

    fn begin(&self, out: &mut Vec<u8>, number: u64, event: &str, unix_ms: u64) {
        // The run and the event's name need no escaping. Writing to memory cannot fail.
        let _ = write!(out, "{{\"id\":\"{}-{number}\",\"event\":\"{event}\"", self.run);
        integer(out, "time_ms", unix_ms);
        text(out, "node", &self.node);
    }
}

/// Returns the name of an event that Pusher also has.
fn channel_event_name(event: &HookEventBody) -> Option<&'static str> {
    Some(match event {
        HookEventBody::Occupied { occupied: true, .. } => "channel_occupied",
        HookEventBody::Occupied { occupied: false, .. } => "channel_vacated",
        HookEventBody::Member { added: true, .. } => "member_added",
        HookEventBody::Member { added: false, .. } => "member_removed",
        HookEventBody::ClientEvent { .. } => "client_event",
        _ => return None,
    })
}

/// Returns the event name that a client chose.
fn event_name(publication: &Publication) -> &str {
    let tag = publication.tags().iter().find(|(name, _)| &**name == "event");
    tag.map_or("", |(_, event)| event)
}

fn pusher_name(channel: &str) -> &str {
    channel.split_once(':').map_or(channel, |(_, name)| name)
}

/// Writes a payload. For one that is not JSON, `data` is `null` and `b64data` has the bytes in base64, as in the
/// client protocol.
fn payload(out: &mut Vec<u8>, data: &[u8], format: PayloadFormat) {
    out.extend_from_slice(b",\"data\":");
    let is_json = format == PayloadFormat::Json
        || serde_json::from_slice::<&serde_json::value::RawValue>(data).is_ok();
    match data {
        [] => out.extend_from_slice(b"null"),
        data if is_json => out.extend_from_slice(data),
        data => {
            out.extend_from_slice(b"null");
            text(out, "b64data", &STANDARD.encode(data));
        }
    }
}

fn client(out: &mut Vec<u8>, session: &dunlin_hub::SessionId, user: &str) {
    // The session id is a string, as in the client protocol.
    let _ = write!(out, ",\"client\":\"{session}\"");
    text(out, "user", tenant::bare(user));
}

fn integer(out: &mut Vec<u8>, key: &str, value: u64) {
    let _ = write!(out, ",\"{key}\":{value}");
}

pub(crate) fn text(out: &mut Vec<u8>, key: &str, value: &str) {
    let _ = write!(out, ",\"{key}\":");
    quote(out, value);
}

fn quote(out: &mut Vec<u8>, value: &str) {
    let _ = serde_json::to_writer(out, value);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dunlin_hub::{ClientInfo, Epoch, PublicationParts, SessionId};
    use serde_json::{Value, json};

    use super::*;

    fn encoded(body: HookEventBody) -> Value {
        let encoder = EventEncoder::new("9f3c", "a \"node\"");
        let event = encoder.encode(7, &HookEvent { unix_ms: 1_800_000_000_000, body }).unwrap();
        serde_json::from_slice(&event).unwrap()
    }

    #[test]
    fn every_event_is_json_with_an_id_and_says_who_where_and_why() {
        let session = SessionId::from_u64(42).unwrap();
        let user = || Box::from("a\"da\u{1}");
        let begin = |event: &str| {
            let time_ms = 1_800_000_000_000_u64;
            json!({"id": "9f3c-7", "event": event, "time_ms": time_ms, "node": "a \"node\"",
                   "client": "42", "user": "a\"da\u{1}"})
        };
        let with = |mut base: Value, more: Value| {
            let more = more.as_object().unwrap().clone();
            base.as_object_mut().unwrap().extend(more);
            base
        };
        assert_eq!(
            encoded(HookEventBody::Connect { session, user: user(), transport: "websocket" }),
            with(begin("connect"), json!({"transport": "websocket"}))
        );
        let reason = "connection closed".into();
        assert_eq!(
            encoded(HookEventBody::Disconnect { session, user: user(), code: 3000, reason }),
            with(begin("disconnect"), json!({"code": 3000, "reason": "connection closed"}))
        );
        let channel: Arc<str> = "chat:\\1".into();
        assert_eq!(
            encoded(HookEventBody::Subscribe {
                session,
                user: user(),
                channel: Arc::clone(&channel)
            }),
            with(begin("subscribe"), json!({"channel": "chat:\\1"}))
        );
        let cause = UnsubscribeCause::Disconnect;
        assert_eq!(
            encoded(HookEventBody::Unsubscribe { session, user: user(), channel, cause }),
            with(begin("unsubscribe"), json!({"channel": "chat:\\1", "reason": "disconnect"}))
        );
    }

    #[test]
    fn a_publication_carries_its_place_and_its_data_as_they_are() {
        let info = ClientInfo {
            user_is_number: false,
            foreign_client: None,
            user: "ada".into(),
            client: SessionId::from_u64(42).unwrap(),
            conn_info: None,
            chan_info: None,
        };
        let publication = PublicationParts {
            offset: 3,
            data: b"{\"n\": 1.50}".as_slice().into(),
            info: Some(Arc::new(info)),
            tags: [("a".into(), "b\"".into()), ("c".into(), "".into())].into_iter().collect(),
            ..PublicationParts::default()
        };
        let body = HookEventBody::Publish {
            channel: "news".into(),
            epoch: Epoch::parse("xyz"),
            publication: publication.into(),
        };
        assert_eq!(
            encoded(body),
            json!({"id": "9f3c-7", "event": "publish", "time_ms": 1_800_000_000_000_u64,
                   "node": "a \"node\"", "client": "42", "user": "ada", "channel": "news", "offset": 3,
                   "epoch": "xyz", "tags": {"a": "b\"", "c": ""}, "data": {"n": 1.5}})
        );
        let bare = HookEventBody::Publish {
            channel: "news".into(),
            epoch: Epoch::NONE,
            publication: PublicationParts::default().into(),
        };
        let bare = encoded(bare);
        assert_eq!((bare.get("offset"), &bare["data"]), (None, &Value::Null));
    }
}
