//! Events as JSON: the format of `docs/operating/webhooks.md`, which may gain keys and loses none.

use std::io::Write;

use dunlin_hub::UnsubscribeCause;

use super::happening::{Happening, What};

/// Why events are missing, in the words of a `missed` event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// They happened faster than they could be taken to the hook's queue.
    Overflow,
    /// The hook's queue was full.
    QueueFull,
    /// The backend refused them.
    Refused,
    /// They were sent as often as they may be.
    GivenUp,
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Cause::Overflow => "overflow",
            Cause::QueueFull => "queue_full",
            Cause::Refused => "refused",
            Cause::GivenUp => "given_up",
        }
    }
}

/// Who speaks: what every event begins with.
pub(crate) struct Speller {
    /// Different in each run of a process.
    run: Box<str>,
    node: Box<str>,
}

impl Speller {
    pub(crate) fn new(run: &str, node: &str) -> Speller {
        Speller { run: run.into(), node: node.into() }
    }

    /// The name of the `number`th event or request of this process; no other has it.
    pub(crate) fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.run)
    }

    /// One event. `None` for what is no event by itself.
    pub(crate) fn event(&self, number: u64, happening: &Happening) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(256);
        let name = match &happening.what {
            What::Connect { .. } => "connect",
            What::Disconnect { .. } => "disconnect",
            What::Subscribe { .. } => "subscribe",
            What::Unsubscribe { .. } => "unsubscribe",
            What::Publish { .. } => "publish",
            What::Missed(_) => return None,
        };
        self.begin(&mut out, number, name, happening.unix_ms);
        match &happening.what {
            What::Connect { session, user, transport } => {
                who(&mut out, session, user);
                text(&mut out, "transport", transport);
            }
            What::Disconnect { session, user, code, reason } => {
                who(&mut out, session, user);
                integer(&mut out, "code", u64::from(*code));
                text(&mut out, "reason", reason);
            }
            What::Subscribe { session, user, channel } => {
                who(&mut out, session, user);
                text(&mut out, "channel", channel);
            }
            What::Unsubscribe { session, user, channel, cause } => {
                who(&mut out, session, user);
                text(&mut out, "channel", channel);
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
            What::Publish { channel, epoch, publication } => {
                if let Some(info) = &publication.info {
                    who(&mut out, &info.client, &info.user);
                }
                text(&mut out, "channel", channel);
                if publication.offset > 0 {
                    integer(&mut out, "offset", publication.offset);
                    text(&mut out, "epoch", &epoch.to_string());
                }
                if !publication.tags.is_empty() {
                    out.extend_from_slice(b",\"tags\":{");
                    for (at, (name, value)) in publication.tags.iter().enumerate() {
                        if at > 0 {
                            out.push(b',');
                        }
                        quote(&mut out, name);
                        out.push(b':');
                        quote(&mut out, value);
                    }
                    out.push(b'}');
                }
                // Raw JSON already; without any it is nothing.
                let data: &[u8] =
                    if publication.data.is_empty() { b"null" } else { &publication.data };
                out.extend_from_slice(b",\"data\":");
                out.extend_from_slice(data);
            }
            What::Missed(_) => {}
        }
        out.push(b'}');
        Some(out)
    }

    /// The word that events are missing, between the one before it and the one behind.
    pub(crate) fn missed(
        &self,
        out: &mut Vec<u8>,
        number: u64,
        unix_ms: u64,
        count: u64,
        cause: Cause,
    ) {
        self.begin(out, number, "missed", unix_ms);
        integer(out, "count", count);
        text(out, "reason", cause.name());
        out.push(b'}');
    }

    fn begin(&self, out: &mut Vec<u8>, number: u64, event: &str, unix_ms: u64) {
        // Neither the run nor the name of an event has anything to escape. Writing to memory cannot fail.
        let _ = write!(out, "{{\"id\":\"{}-{number}\",\"event\":\"{event}\"", self.run);
        integer(out, "time_ms", unix_ms);
        text(out, "node", &self.node);
    }
}

fn who(out: &mut Vec<u8>, session: &dunlin_hub::SessionId, user: &str) {
    // In quotes, as clients have it.
    let _ = write!(out, ",\"client\":\"{session}\"");
    text(out, "user", user);
}

fn integer(out: &mut Vec<u8>, key: &str, value: u64) {
    let _ = write!(out, ",\"{key}\":{value}");
}

fn text(out: &mut Vec<u8>, key: &str, value: &str) {
    let _ = write!(out, ",\"{key}\":");
    quote(out, value);
}

fn quote(out: &mut Vec<u8>, value: &str) {
    let _ = serde_json::to_writer(out, value);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dunlin_hub::{ClientInfo, Epoch, Publication, SessionId};
    use serde_json::{Value, json};

    use super::*;

    fn spelled(what: What) -> Value {
        let speller = Speller::new("9f3c", "a \"node\"");
        let event = speller.event(7, &Happening { unix_ms: 1_800_000_000_000, what }).unwrap();
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
            spelled(What::Connect { session, user: user(), transport: "websocket" }),
            with(begin("connect"), json!({"transport": "websocket"}))
        );
        let reason = "connection closed".into();
        assert_eq!(
            spelled(What::Disconnect { session, user: user(), code: 3000, reason }),
            with(begin("disconnect"), json!({"code": 3000, "reason": "connection closed"}))
        );
        let channel: Arc<str> = "chat:\\1".into();
        assert_eq!(
            spelled(What::Subscribe { session, user: user(), channel: Arc::clone(&channel) }),
            with(begin("subscribe"), json!({"channel": "chat:\\1"}))
        );
        let cause = UnsubscribeCause::Disconnect;
        assert_eq!(
            spelled(What::Unsubscribe { session, user: user(), channel, cause }),
            with(begin("unsubscribe"), json!({"channel": "chat:\\1", "reason": "disconnect"}))
        );
    }

    #[test]
    fn a_publication_carries_its_place_and_its_data_as_they_are() {
        let info = ClientInfo {
            user: "ada".into(),
            client: SessionId::from_u64(42).unwrap(),
            conn_info: None,
            chan_info: None,
        };
        let publication = Publication {
            offset: 3,
            data: b"{\"n\": 1.50}".as_slice().into(),
            info: Some(Arc::new(info)),
            tags: [("a".into(), "b\"".into()), ("c".into(), "".into())].into(),
            ..Publication::default()
        };
        let what = What::Publish {
            channel: "news".into(),
            epoch: Epoch::parse("xyz"),
            publication: Arc::new(publication),
        };
        assert_eq!(
            spelled(what),
            json!({"id": "9f3c-7", "event": "publish", "time_ms": 1_800_000_000_000_u64,
                   "node": "a \"node\"", "client": "42", "user": "ada", "channel": "news", "offset": 3,
                   "epoch": "xyz", "tags": {"a": "b\"", "c": ""}, "data": {"n": 1.5}})
        );
        let bare = What::Publish {
            channel: "news".into(),
            epoch: Epoch::NONE,
            publication: Arc::default(),
        };
        let bare = spelled(bare);
        assert_eq!((bare.get("offset"), &bare["data"]), (None, &Value::Null));
    }
}
