//! Events that the server sends: those of the protocol, and by [`write_push`] those of channels.

use std::fmt;
use std::sync::Arc;

use dunlin_hub::{ClientInfo, Outgoing, Publication};

use super::channel::{ChannelKind, pusher_name};
use super::payload::{event_name, write_data, write_user_id};
use super::{PusherCode, SocketId};
use crate::json::{Object, write_string};

/// Writes the response to a ping.
pub fn write_pong(out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"event":"pusher:pong","data":{}}"#);
}

/// Writes the first event of a connection. A client that receives nothing for `activity_timeout_s` sends a ping.
pub fn write_connection_established(
    out: &mut Vec<u8>,
    socket_id: SocketId,
    activity_timeout_s: u64,
) {
    let data = format!(r#"{{"socket_id":"{socket_id}","activity_timeout":{activity_timeout_s}}}"#);
    write_event(out, "pusher:connection_established", None, &data);
}

/// Writes an error, with or without a code.
pub fn write_error(out: &mut Vec<u8>, code: Option<PusherCode>, message: impl fmt::Display) {
    write_error_code(out, code.map(PusherCode::code), &message.to_string());
}

fn write_error_code(out: &mut Vec<u8>, code: Option<u16>, message: &str) {
    let mut event = Object::begin(out);
    event.string("event", "pusher:error");
    let mut data = Object::begin(event.key("data"));
    match code {
        Some(code) => data.integer("code", code),
        None => data.raw("code", b"null"),
    };
    data.string("message", message);
    data.end();
    event.end();
}

/// Writes the confirmation of a subscription. A presence channel's includes its members, each user once.
pub fn write_subscription_succeeded(out: &mut Vec<u8>, channel: &str, members: &[Arc<ClientInfo>]) {
    const EVENT: &str = "pusher_internal:subscription_succeeded";
    if ChannelKind::of(channel) != ChannelKind::Presence {
        return write_event(out, EVENT, Some(channel), "{}");
    }
    let mut members: Vec<&ClientInfo> = members.iter().map(|member| &**member).collect();
    members.sort_by(|a, b| a.user.cmp(&b.user));
    members.dedup_by(|a, b| a.user == b.user);
    let mut data = Vec::with_capacity(64 + members.len() * 64);
    let mut outer = Object::begin(&mut data);
    let mut presence = Object::begin(outer.key("presence"));
    presence.integer("count", members.len());
    let ids = presence.key("ids");
    ids.push(b'[');
    for (at, member) in members.iter().enumerate() {
        if at > 0 {
            ids.push(b',');
        }
        write_user_id(ids, member);
    }
    ids.push(b']');
    let mut hash = Object::begin(presence.key("hash"));
    for member in members {
        hash.text_key(&member.user).extend_from_slice(info_of(member));
    }
    hash.end();
    presence.end();
    outer.end();
    write_event(out, EVENT, Some(channel), &String::from_utf8_lossy(&data));
}

/// Writes that a subscription was rejected or has ended, with an error type, an HTTP status and a message.
pub fn write_subscription_error(
    out: &mut Vec<u8>,
    channel: &str,
    kind: &str,
    status: u32,
    error: impl fmt::Display,
) {
    let mut event = Object::begin(out);
    event.string("event", "pusher:subscription_error").string("channel", channel);
    let mut data = Object::begin(event.key("data"));
    data.string("type", kind).string("error", &error.to_string()).integer("status", status);
    data.end();
    event.end();
}

/// Writes the confirmation of a sign-in.
pub fn write_signin_success(out: &mut Vec<u8>, user_data: &str) {
    let mut data = Vec::with_capacity(user_data.len() + 32);
    let mut object = Object::begin(&mut data);
    object.string("user_data", user_data);
    object.end();
    write_event(out, "pusher:signin_success", None, &String::from_utf8_lossy(&data));
}

/// Writes that a cache channel has no event yet.
pub fn write_cache_miss(out: &mut Vec<u8>, channel: &str) {
    let mut event = Object::begin(out);
    event.string("event", "pusher:cache_miss").string("channel", channel);
    event.end();
}

/// Writes the last event of a cache channel, and for how many seconds it is kept, for an answer of the HTTP API.
pub fn write_cached(out: &mut Vec<u8>, publication: &Publication, ttl_s: u64) {
    let mut cached = Object::begin(out);
    cached.string("event", event_name(publication));
    write_data(cached.key("data"), publication);
    cached.integer("ttl", ttl_s);
    cached.end();
}

/// Writes a push of the hub, except a disconnect. Writes nothing for a push that this protocol does not support.
pub fn write_push(out: &mut Vec<u8>, outgoing: &Outgoing<'_>) {
    match *outgoing {
        Outgoing::Publication { channel, publication }
        | Outgoing::Delta { channel, publication, .. } => {
            let (channel, name) = (pusher_name(channel), event_name(publication));
            out.reserve(publication.data().len() + channel.len() + 96);
            out.extend_from_slice(b"{\"event\":");
            write_string(out, name);
            out.extend_from_slice(b",\"channel\":");
            write_string(out, channel);
            out.extend_from_slice(b",\"data\":");
            write_data(out, publication);
            if let Some(info) = publication.info()
                && name.starts_with("client-")
                && ChannelKind::of(channel) == ChannelKind::Presence
            {
                out.extend_from_slice(b",\"user_id\":");
                write_user_id(out, info);
            }
            out.push(b'}');
        }
        Outgoing::Join { channel, info, of_user: true } => {
            write_member(out, "pusher_internal:member_added", channel, info, true);
        }
        Outgoing::Leave { channel, info, of_user: true } => {
            write_member(out, "pusher_internal:member_removed", channel, info, false);
        }
        // For codes from 2500 on the client should subscribe again; it does so when the connection ends.
        Outgoing::Unsubscribe { channel, code, reason } if code < 2500 => {
            write_subscription_error(out, pusher_name(channel), "Unsubscribed", code, reason);
        }
        Outgoing::Message { data, .. } => {
            write_event(out, "message", None, &String::from_utf8_lossy(data));
        }
        _ => {}
    }
}

/// Writes the error that precedes the end of a connection.
pub(crate) fn write_disconnect(out: &mut Vec<u8>, code: u16, reason: &str) {
    write_error_code(out, Some(code), reason);
}

fn write_member(out: &mut Vec<u8>, event: &str, channel: &str, info: &ClientInfo, with_info: bool) {
    let channel = pusher_name(channel);
    if ChannelKind::of(channel) != ChannelKind::Presence {
        return;
    }
    let mut data = Vec::with_capacity(96);
    let mut member = Object::begin(&mut data);
    write_user_id(member.key("user_id"), info);
    if with_info {
        member.raw("user_info", info_of(info));
    }
    member.end();
    write_event(out, event, Some(channel), &String::from_utf8_lossy(&data));
}

/// Returns the information of a member; of its connection if the client uses another protocol.
fn info_of(member: &ClientInfo) -> &[u8] {
    member.chan_info.as_deref().or(member.conn_info.as_deref()).unwrap_or(b"null")
}

/// Writes an event whose data is a string.
fn write_event(out: &mut Vec<u8>, event: &str, channel: Option<&str>, data: &str) {
    let mut object = Object::begin(out);
    object.string("event", event);
    if let Some(channel) = channel {
        object.string("channel", channel);
    }
    object.string("data", data);
    object.end();
}

#[cfg(test)]
mod tests {
    use dunlin_hub::{PublicationParts, SessionId};
    use serde_json::{Value, json};

    use super::*;

    fn info(user: &str, number: u64, chan_info: Option<&str>) -> Arc<ClientInfo> {
        Arc::new(ClientInfo {
            user_is_number: false,
            foreign_client: None,
            user: user.into(),
            client: SessionId::from_u64(number).unwrap(),
            conn_info: None,
            chan_info: chan_info.map(|info| info.as_bytes().into()),
        })
    }

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> Value {
        let mut out = Vec::new();
        write(&mut out);
        match out.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&out).unwrap(),
        }
    }

    fn parts(event: Option<&str>, data: &str) -> PublicationParts {
        let tags = event.map(|event| ("event".into(), event.into())).into_iter().collect();
        PublicationParts { data: data.as_bytes().into(), tags, ..PublicationParts::default() }
    }

    fn publication(event: Option<&str>, data: &str) -> Publication {
        parts(event, data).into()
    }

    #[test]
    fn a_publication_is_an_event_whose_data_is_a_text() {
        let push = |publication: &Publication| {
            written(|out| {
                write_push(out, &Outgoing::Publication { channel: "chat:news", publication });
            })
        };
        assert_eq!(
            push(&publication(Some("made"), r#"{"a":1}"#)),
            json!({"event": "made", "channel": "news", "data": r#"{"a":1}"#})
        );
        assert_eq!(
            push(&publication(None, r#""hi""#)),
            json!({"event": "message", "channel": "news", "data": "hi"})
        );
        let forged = publication(Some("pusher_internal:member_removed"), "{}");
        assert_eq!(push(&forged)["event"], "message");
    }

    #[test]
    fn a_client_event_says_in_a_presence_channel_who_sent_it() {
        let from = |channel: &'static str, event| {
            let info = Some(info("7", 1, None));
            let publication = PublicationParts { info, ..parts(Some(event), "1") }.into();
            written(|out| {
                write_push(out, &Outgoing::Publication { channel, publication: &publication });
            })
        };
        assert_eq!(from("c:presence-a", "client-a")["user_id"], "7");
        assert_eq!(from("c:private-a", "client-a").get("user_id"), None);
        assert_eq!(from("c:presence-a", "a").get("user_id"), None);
    }

    #[test]
    fn a_presence_channel_lists_each_user_once() {
        let members =
            [info("b", 1, Some(r#"{"n":1}"#)), info("a", 2, None), info("b", 3, Some("2"))];
        let event = written(|out| write_subscription_succeeded(out, "presence-a", &members));
        let data: Value = serde_json::from_str(event["data"].as_str().unwrap()).unwrap();
        assert_eq!(data["presence"]["ids"], json!(["a", "b"]));
        assert_eq!(
            (&data["presence"]["count"], &data["presence"]["hash"]),
            (&json!(2), &json!({"a": null, "b": {"n": 1}}))
        );
        let event = written(|out| write_subscription_succeeded(out, "private-a", &members));
        assert_eq!(event["data"], "{}");
    }

    #[test]
    fn members_are_announced_once_for_all_their_connections_and_only_in_presence_channels() {
        let info = &*info("7", 1, Some(r#"{"name":"Ada"}"#));
        let push = |outgoing: &Outgoing<'_>| written(|out| write_push(out, outgoing));
        let channel = "c:presence-a";
        let added = push(&Outgoing::Join { channel, info, of_user: true });
        assert_eq!(
            added,
            json!({"event": "pusher_internal:member_added", "channel": "presence-a",
                "data": r#"{"user_id":"7","user_info":{"name":"Ada"}}"#})
        );
        let removed = push(&Outgoing::Leave { channel, info, of_user: true });
        assert_eq!(removed["data"], r#"{"user_id":"7"}"#);
        assert_eq!(push(&Outgoing::Join { channel, info, of_user: false }), Value::Null);
        assert_eq!(push(&Outgoing::Leave { channel: "c:news", info, of_user: true }), Value::Null);
    }

    /// Regression test: a number became a string, and applications that compare it with `===` found nobody.
    #[test]
    fn a_user_whose_id_was_sent_as_a_number_is_a_number_in_each_event() {
        let member =
            Arc::new(ClientInfo { user_is_number: true, ..(*info("10", 1, None)).clone() });
        let channel = "c:presence-a";
        let event = written(|out| {
            write_subscription_succeeded(
                out,
                "presence-a",
                &[Arc::clone(&member), info("a", 2, None)],
            );
        });
        let data: Value = serde_json::from_str(event["data"].as_str().unwrap()).unwrap();
        assert_eq!(data["presence"]["ids"], json!([10, "a"]));
        assert_eq!(data["presence"]["hash"], json!({"10": null, "a": null}));
        let push = |outgoing: &Outgoing<'_>| written(|out| write_push(out, outgoing));
        let added = push(&Outgoing::Join { channel, info: &member, of_user: true });
        assert_eq!(added["data"], r#"{"user_id":10,"user_info":null}"#);
        let removed = push(&Outgoing::Leave { channel, info: &member, of_user: true });
        assert_eq!(removed["data"], r#"{"user_id":10}"#);
        let info = Some(member);
        let publication = PublicationParts { info, ..parts(Some("client-a"), "1") }.into();
        let sent = push(&Outgoing::Publication { channel, publication: &publication });
        assert_eq!(sent["user_id"], 10);
    }

    #[test]
    fn the_servers_own_events_are_as_documented() {
        let socket_id = SocketId { session: SessionId::from_u64(12).unwrap(), serial: 34 };
        assert_eq!(
            written(|out| write_connection_established(out, socket_id, 120)),
            json!({"event": "pusher:connection_established",
                "data": r#"{"socket_id":"12.34","activity_timeout":120}"#})
        );
        assert_eq!(
            written(|out| write_error(out, Some(PusherCode::NoApp), "no app")),
            json!({"event": "pusher:error", "data": {"code": 4001, "message": "no app"}})
        );
        let refused =
            written(|out| write_subscription_error(out, "private-a", "AuthError", 401, "no"));
        assert_eq!(
            refused,
            json!({"event": "pusher:subscription_error", "channel": "private-a",
                "data": {"type": "AuthError", "error": "no", "status": 401}})
        );
        let signed_in = written(|out| write_signin_success(out, r#"{"id":"1"}"#));
        assert_eq!(signed_in["data"], r#"{"user_data":"{\"id\":\"1\"}"}"#);
        let ended =
            Outgoing::Unsubscribe { channel: "c:a", code: 2000, reason: "server unsubscribe" };
        assert_eq!(written(|out| write_push(out, &ended))["data"]["status"], 2000);
        let gap =
            Outgoing::Unsubscribe { channel: "c:a", code: 2500, reason: "insufficient state" };
        assert_eq!(written(|out| write_push(out, &gap)), Value::Null);
    }
}
